"""What a failure says decides nothing: its code does, and one agent's word ends no run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MessageType
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from privet.core import RunError
from privet.problems import L2, RidgeRegression
from privet.rounds.collect.outcome import OverflowedError, TooFewError
from privet.rounds.exchange import NO_CLIENT_FN, NO_HANDLER
from privet.rounds.failure import overflowed
from privet.sim.engine import InlineGrid
from privet.strategies import Failure, FailureCode, FedPLT, Fraction, Round, Schedule, Stop
from privet.wire import ENROL, FAILED, NOT_FINITE, REFUSED
from support.federations import app_of

AGENTS, DIM = 5, 2
rng = np.random.default_rng(8)
PROBLEMS = [
    RidgeRegression(rng.standard_normal((9, DIM)), rng.standard_normal(9), regularizer=L2(0.1))
    for _ in range(AGENTS)
]
WORDS = "upload holds numbers that are not finite, or too large"


class Answering(InlineGrid):
    """A grid in which some agents answer every training message with an error of their own."""

    def __init__(self, errors: dict[str, Error], rounds: range = range(2, 99)) -> None:
        super().__init__(app_of(PROBLEMS), AGENTS)
        self.errors, self.rounds, self.asked = errors, rounds, 0

    def deliver(self, message: Message) -> Message | None:
        agent = str(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
        if message.metadata.message_type == MessageType.TRAIN and agent in self.errors:
            self.asked += 1
            if message.content["privet"]["round"] in self.rounds:  # type: ignore[index,operator]
                return Message(self.errors[agent], reply_to=message)
        return super().deliver(message)


def play(grid: InlineGrid, **options: Any) -> Any:
    strategy = FedPLT(num_agents=AGENTS, on_divergence="stop", **options)
    return strategy.start(grid, ArrayRecord({"x": Array(np.ones(DIM))}), num_rounds=6)


@pytest.mark.parametrize("secure_sum", [False, True])
@pytest.mark.parametrize("code", [FAILED, REFUSED, 2, 7, NOT_FINITE])
def test_one_agent_ends_no_run_by_its_error(code: int, secure_sum: bool) -> None:
    found = play(Answering({"2": Error(code, WORDS)}), secure_sum=secure_sum)
    assert (found.stopped, found.diverged, len(found.history)) == (Stop.ROUNDS, "", 6)
    assert "not finite" in found.history[1].failures["2"].text
    assert found.history[1].failures["2"].code != FailureCode.NOT_FINITE


def test_a_round_without_enough_agents_is_tried_again_whatever_an_agent_says() -> None:
    """Agent 0 lies while agent 1 is away for a moment."""
    errors = {"0": Error(FAILED, WORDS), "1": Error(7, "its node is gone")}

    class Back(Answering):
        def deliver(self, message: Message) -> Message | None:
            if self.asked > 5:
                self.errors.pop("1", None)
            return super().deliver(message)

    found = play(Back(errors), min_agents=4, patience=60.0)
    assert (found.stopped, len(found.history)) == (Stop.ROUNDS, 6)


def test_a_failed_round_is_divergence_by_its_codes_alone() -> None:
    said = {str(i): Error(FAILED, WORDS) for i in range(AGENTS)}
    with pytest.raises(TooFewError, match="not finite") as caught:
        play(Answering(said), patience=0.0)
    assert not isinstance(caught.value, OverflowedError)
    half = {str(i): Error(NOT_FINITE, "numbers") for i in range(3)}
    found = play(Answering(half), patience=0.0, min_agents=4)
    assert (found.stopped, found.diverged) == (
        Stop.DIVERGENCE,
        "uploads that are not finite in round 2",
    )


@pytest.mark.parametrize(
    ("codes", "asked", "expected"),
    [
        (["not finite"] * 4, 9, False),
        (["not finite"] * 5, 9, True),
        (["says not finite"] * 4, 9, False),
        (["says not finite"] * 5, 9, True),
        (["not finite", "says not finite"], 4, True),
        (["failed", "late", "lost", "refused", "dropped"], 5, False),
        ([], 0, False),
    ],
)
def test_half_of_the_agents_diverge_or_none(codes: list[str], asked: int, expected: bool) -> None:
    failures = {str(i): Failure(FailureCode(code), WORDS) for i, code in enumerate(codes)}
    assert overflowed(failures, asked, lately=[]) == expected


def test_agents_that_were_never_finite_are_not_counted() -> None:
    failures = {name: Failure(FailureCode.NOT_FINITE, WORDS) for name in "012"}
    assert overflowed(failures, 4, "0", [])
    assert not overflowed(failures, 9, "0", [])
    assert not overflowed(failures, 3, "012", ["3", "4"])
    assert not overflowed(failures, 3, "12", [])
    assert overflowed(failures, 3, "12", ["4"])


def test_one_agent_counts_beside_another_alone() -> None:
    failures = {"0": Failure(FailureCode.SAYS_NOT_FINITE, WORDS)}
    assert not overflowed(failures, 1, lately=["0"])
    assert overflowed(failures, 1, lately=["0", "1"])
    assert overflowed(failures, 1, lately=None), "a run of one agent"


@pytest.mark.parametrize(
    "options",
    [
        {"participation": Fraction(0.4)},
        {"participation": Fraction(0.4), "min_agents": 1},
        {"asynchronous": True, "buffer": 1},
    ],
)
def test_one_agent_that_says_not_finite_ends_no_run_of_small_rounds(
    options: dict[str, Any],
) -> None:
    """It does so in every round but its first; the others' uploads are folded."""
    lies = Error(NOT_FINITE, "numbers")

    class Lying(Answering):
        told = 0

        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            node = self.contexts[message.metadata.dst_node_id].node_config
            if message.metadata.message_type == ENROL or str(node["partition-id"]) != "2":
                return reply
            self.told += 1
            return reply if self.told == 1 else Message(lies, reply_to=message)

    grid = Lying({})
    strategy = FedPLT(num_agents=AGENTS, on_divergence="stop", patience=1.0, **options)
    started = {"timeout": 60.0, "num_rounds": 20}
    found = strategy.start(grid, ArrayRecord({"x": Array(np.ones(DIM))}), **started)
    assert grid.told > 2
    assert (found.stopped, found.diverged, len(found.history)) == (Stop.ROUNDS, "", 20)


def test_agents_that_overflow_one_by_one_diverge() -> None:
    """Rounds of two: one is not finite in each, first the same one again, then another."""

    class OneARound(Answering):
        said = 0

        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            if message.metadata.message_type == ENROL:
                return reply
            agent = str(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
            number = message.content["privet"]["round"]
            if agent != {2: "2", 4: "2", 6: "3"}.get(int(number)):  # type: ignore[call-overload]
                return reply
            self.said += 1
            return Message(Error(NOT_FINITE, "numbers"), reply_to=message)

    everybody = OneARound({})
    found = play(everybody, participation=Schedule((("0", "2"), ("1", "2"), ("3", "2"))))
    assert everybody.said == 3
    assert found.stopped == Stop.DIVERGENCE
    assert found.diverged == "uploads that are not finite in round 6"


def test_codes_are_in_the_history() -> None:
    done = Round(1, (), failures={"1": Failure(FailureCode.LATE, "no reply within 9 s")})
    line = json.loads(json.dumps(done.to_dict()))
    assert line["failures"] == {"1": {"code": "late", "text": "no reply within 9 s"}}
    assert Round.from_dict(line).failures == done.failures


def test_each_kind_of_absence_has_its_code() -> None:
    errors = {
        "0": Error(REFUSED, "its budget is spent"),
        "1": Error(FAILED, "no data"),
        "2": Error(2, "its ClientApp raised"),
    }
    found = play(Answering(errors))
    codes = {name: failure.code for name, failure in found.history[1].failures.items()}
    assert codes == {"0": "refused", "1": "failed", "2": "lost"}


def test_a_client_app_that_stopped_responding_has_the_likely_reasons() -> None:
    from flwr.supernode.nodestate.in_memory_nodestate import CLIENT_APP_CRASHED_ERROR as flowers

    found = play(Answering({"0": flowers, "1": Error(2, "its ClientApp raised")}))
    texts = {name: failure.text for name, failure in found.history[1].failures.items()}
    assert texts["0"].startswith(f"error {flowers.code}: ClientApp stopped responding")
    assert "its process ended, or a large model's state" in texts["0"]
    assert texts["0"].endswith("state-path in the node config keeps it on the node's disk")
    assert texts["1"] == "error 2: its ClientApp raised"


def test_an_agent_cannot_speak_for_flower() -> None:
    errors = {"0": Error(FAILED, NO_HANDLER), "1": Error(2, f"of Ray: {NO_HANDLER}")}
    found = play(Answering(errors))
    codes = {name: failure.code for name, failure in found.history[1].failures.items()}
    assert codes == {"0": "failed", "1": "other app"}


def test_an_app_of_a_client_fn_is_told_what_to_use() -> None:
    class Client(NumPyClient):  # type: ignore[misc]
        pass

    old = ClientApp(client_fn=lambda context: Client().to_client())
    with pytest.raises(RunError, match=r"this ClientApp is not Privet's: use client_app\(\.\.\.\)"):
        play(InlineGrid(old, AGENTS), wait_timeout=0.1)
    found = play(Answering({"0": Error(FAILED, NO_CLIENT_FN)}))  # which an agent may not say
    assert found.history[1].failures["0"].code == "failed"
