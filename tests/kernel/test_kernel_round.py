"""The order of a round, and what a failure at each of its steps leaves."""

from __future__ import annotations

from typing import Any

import pytest

from privet.kernel.round import AgentRound, Ended, View

ORDER = ("screen", "receive", "check", "charge", "grant", "work", "settle", "seal", "keep")


class Failure(Exception):
    """What a step ends with."""


class Logged(AgentRound[str, str]):
    """A round that notes its steps, one of which may fail."""

    def __init__(self, fails: str = "", how: type[Exception] = Failure) -> None:
        self.steps: list[str] = []
        self.fails, self.how = fails, how
        self.worker = self

    def step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.fails:
            raise self.how(name)

    def screen(self) -> None:
        self.step("screen")

    def receive(self) -> None:
        self.step("receive")

    def check(self) -> None:
        self.step("check")

    def charge(self) -> None:
        self.step("charge")

    def grant(self) -> list[View]:
        self.step("grant")
        records: Any = self
        return [View({}, {}, records, records)]

    def local_update(self, *view: Any) -> str:
        self.step("work")
        return "done"

    def settle(self) -> None:
        self.step("settle")

    def seal(self, done: list[str]) -> str:
        self.step("seal")
        return done.pop()

    def keep(self) -> None:
        self.step("keep")


def test_steps_come_in_their_order_and_the_reply_last() -> None:
    round_ = Logged()
    assert round_.play() == "done"
    assert tuple(round_.steps) == ORDER


@pytest.mark.parametrize("fails", ORDER)
def test_nothing_follows_a_step_that_fails(fails: str) -> None:
    round_ = Logged(fails)
    with pytest.raises(Failure, match=fails):
        round_.play()
    assert tuple(round_.steps) == ORDER[: ORDER.index(fails) + 1]


def test_a_round_that_ends_before_its_work_is_not_charged() -> None:
    round_ = Logged("receive", Ended)
    with pytest.raises(Ended):
        round_.play()
    assert "charge" not in round_.steps
