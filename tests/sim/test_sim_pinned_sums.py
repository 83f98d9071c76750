"""Secure sums of nodes that have pinned each other's keys: the coordinator's side, whole runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message

from privet.client_apps import client_app
from privet.core import RunError
from privet.kernel import Told
from privet.sim.engine import InlineGrid
from privet.sim.trusting import trusting_nodes
from privet.wire import FAILED, REFUSED
from support.federations import position
from support.masked import MAKE, grid_for, play, ridge_agents, start_at

Fate = Callable[["PinnedGrid", Message], Message | None]


class PinnedGrid(InlineGrid):
    """Nodes with pinned keys; ``fates`` are what becomes of a question to sign, by agent, round."""

    def __init__(
        self,
        name: str,
        folder: Path,
        count: int = 5,
        fates: dict[tuple[int, int], Fate] | None = None,
    ) -> None:
        problems = ridge_agents(count)
        configs = [
            {
                **{key: value for key, value in one.items() if not key.startswith("trust")},
                **{key: one[key] for key in ("trust-key", "trust-peers")},
                "least-trusted": 2,
            }
            for one in trusting_nodes(folder, map(str, range(count)), 0)
        ]
        app = client_app(name, lambda context: problems[position(context)])
        super().__init__(app, configs)
        self.fates, self.questions, self.uploads = fates or {}, 0, 0

    def deliver(self, message: Message) -> Message | None:
        record: Any = message.content.get("privet")
        if record.get("kind") != "roster":
            self.uploads += "names" in record
            return super().deliver(message)
        self.questions += 1
        agent = position(self.contexts[message.metadata.dst_node_id])
        fate = self.fates.pop((agent, record["round"]), None)
        return super().deliver(message) if fate is None else fate(self, message)


@pytest.mark.parametrize("name", sorted(MAKE))
def test_pinned_keys_change_no_bit_of_a_run(name: str, tmp_path: Path) -> None:
    plain, _, _ = play(name, secure_sum=True, rounds=4)
    grid = PinnedGrid(name, tmp_path)
    pinned, _, _ = play(name, grid=grid, secure_sum=True, rounds=4)
    assert np.array_equal(pinned.arrays["x"].numpy(), plain.arrays["x"].numpy())
    assert grid.questions == grid.uploads == 5 * 4  # one more exchange a sum
    # 64 bytes from each agent, and those of all to each, beside the questions: keys and a digest.
    for one, other in zip(pinned.history, plain.history, strict=True):
        assert one.bytes_up - other.bytes_up == 5 * 64
        assert one.bytes_down - other.bytes_down == 5 * (5 * 64 + 5 * 32 + 32)


def test_a_run_in_clear_asks_for_no_signature(tmp_path: Path) -> None:
    grid = PinnedGrid("fed-plt", tmp_path)
    clear, _, _ = play("fed-plt", grid=grid)
    plain, _, _ = play("fed-plt")
    assert np.array_equal(clear.arrays["x"].numpy(), plain.arrays["x"].numpy())
    assert [one.bytes_down for one in clear.history] == [one.bytes_down for one in plain.history]
    assert grid.questions == 0


def fails(code: int, reason: str) -> Fate:
    return lambda grid, message: Message(Error(code, reason), reply_to=message)


def forges(grid: PinnedGrid, message: Message) -> Message | None:
    reply = InlineGrid.deliver(grid, message)
    assert reply is not None
    reply.content["privet"]["signature"] = b"short"  # type: ignore[index]
    return reply


@pytest.mark.parametrize(
    ("fate", "why"),
    [
        (fails(FAILED, "agent 2: cannot"), "cannot"),
        (lambda grid, message: None, "no reply"),
        (forges, "signature has 5 bytes, expected 64"),
    ],
    ids=["error", "lost", "malformed"],
)
def test_an_agent_that_signs_nothing_is_left_out_alone(
    fate: Fate, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has uploaded anything for the first roster, so no other agent goes with it."""
    monkeypatch.setattr("privet.rounds.collect.masked.ENROL_TIMEOUT", 2.0)
    grid = PinnedGrid("fed-pdm", tmp_path, fates={(2, 2): fate})
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, rounds=3)
    assert [len(done.participants) for done in result.history] == [5, 4, 5]
    assert why in result.history[1].failures["2"].text
    assert (grid.questions, grid.uploads) == (5 * 3 + 4, 5 * 3 - 1)


def test_an_agent_that_declines_to_sign_is_asked_no_more(tmp_path: Path) -> None:
    grid = PinnedGrid("fed-pdm", tmp_path, fates={(2, 1): fails(REFUSED, "agent 2: no")})
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, rounds=3)
    assert [len(done.participants) for done in result.history] == [4, 4, 4]


def test_a_signature_that_is_another_s_spoils_the_sum_and_no_upload_leaves(
    tmp_path: Path,
) -> None:
    def another(grid: PinnedGrid, message: Message) -> Message | None:
        reply = InlineGrid.deliver(grid, message)
        assert reply is not None
        reply.content["privet"]["signature"] = bytes(64)  # type: ignore[index]
        return reply

    grid = PinnedGrid("fed-pdm", tmp_path, fates={(2, 1): another})
    with pytest.raises(RunError, match=Told.UNSIGNED.value[:40]):
        play("fed-pdm", grid=grid, secure_sum=True, rounds=1)


def test_too_few_that_sign_end_the_round(tmp_path: Path) -> None:
    fates: dict[tuple[int, int], Fate] = {(at, 1): fails(FAILED, "cannot") for at in (1, 2, 3)}
    grid = PinnedGrid("fed-pdm", tmp_path, fates=fates)
    with pytest.raises(RunError, match="a secure sum needs 3 agents"):
        play("fed-pdm", grid=grid, secure_sum=True, rounds=1)
    assert grid.uploads == 0


def test_flowers_own_loop_has_rosters_signed_too(tmp_path: Path) -> None:
    grid = PinnedGrid("fed-pdm", tmp_path)
    strategy = MAKE["fed-pdm"](num_agents=5, secure_sum=True)
    arrays: ArrayRecord | None = start_at(0.3)
    for number in (1, 2):
        assert arrays is not None
        messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
    expected, _, _ = play("fed-pdm", grid=grid_for("fed-pdm"), secure_sum=True, rounds=2)
    assert arrays is not None
    assert np.array_equal(arrays["x"].numpy(), expected.arrays["x"].numpy())
