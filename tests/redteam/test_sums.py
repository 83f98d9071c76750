"""No upload can be solved for from all the sums of a run, whoever is absent when.

A coordinator that sees every sum and everything that it broadcast looks for a linear combination
that is one agent's upload. The models are longer than it sees vectors, so that a combination which
fits is no accident.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from numpy.typing import NDArray

from privet.agents import masking
from privet.agents.state import LARGE
from privet.core import ConfigError, algorithms
from privet.core.errors import FruitlessError, HopelessError
from privet.core.exits import Exit
from privet.problems import L2, BinaryLogistic
from privet.rounds.collect.masked import MOST_SPOILED
from privet.rounds.stop import Stop
from privet.server_apps import read_config
from privet.server_apps.own_run import run_and_save
from privet.sim.engine import InlineGrid
from privet.strategies import DPFedAvg, DPFedSGD, Schedule
from privet.wire import REFUSED
from support.federations import FaultyGrid, app_of, logistic_agents, lose_reply
from support.masked import MAKE

AGENTS, DIM, ROUNDS = 6, 90, 7
MAKERS = {
    **MAKE,
    "dp-fedsgd": lambda **o: DPFedSGD(**{"step_size_base": 0.1, **o}),
    "dp-fedavg": lambda **o: DPFedAvg(**{"step_size_base": 0.1, "max_local_steps": 3, **o}),
}
Key = tuple[str, int, int, str]
Vectors = dict[Key, NDArray[Any]]


def problems() -> list[BinaryLogistic]:
    """Return agents whose gradients are no linear function of the model."""
    rng = np.random.default_rng(3)
    rows = [rng.standard_normal((120, DIM)) for _ in range(AGENTS)]
    truth = rng.standard_normal(DIM)
    return [
        BinaryLogistic(row, np.sign(row @ truth + rng.standard_normal(120)), regularizer=L2(0.1))
        for row in rows
    ]


def play(
    name: str, schedule: Iterable[Iterable[int]], lost: Iterable[tuple[int, int]], monkeypatch: Any
) -> tuple[Vectors, list[NDArray[Any]]]:
    """Run an algorithm; return all uploads, and all that its coordinator can ever know.

    The sum of an attempt counts as known where every agent of its roster sent something, even if
    it came too late to be used.
    """
    uploads: Vectors = {}
    rosters: dict[tuple[int, int], tuple[str, ...]] = {}
    whole = masking.Masking.payload

    def payload(self: Any, upload: Any) -> bytes:
        rosters[self.binding.round, self.binding.attempt] = self.binding.names
        for key, array in upload.items():
            if array.shape == (DIM,):
                place = (self.agent, self.binding.round, self.binding.attempt, key)
                uploads[place] = np.array(array, "f8")
        return whole(self, upload)

    monkeypatch.setattr(masking.Masking, "payload", payload)
    grid = FaultyGrid(app_of(problems(), name), AGENTS, dict.fromkeys(lost, lose_reply))
    start = np.random.default_rng(8).standard_normal(DIM)
    strategy = MAKERS[name](
        num_agents=AGENTS,
        secure_sum=True,
        round_timeout=1.0,
        patience=0,
        participation=Schedule(tuple(tuple(map(str, names)) for names in schedule)),
    )
    known = [start]
    broadcast = type(strategy.half).broadcast

    def recorded(self: Any, *arguments: Any) -> Any:
        state, arrays = broadcast(self, *arguments)
        known.extend(np.array(a, "f8") for a in arrays.values() if a.shape == (DIM,))
        return state, arrays

    monkeypatch.setattr(type(strategy.half), "broadcast", recorded)
    strategy.start(grid, ArrayRecord({"x": Array(start)}), num_rounds=ROUNDS)
    for (number, attempt), names in rosters.items():
        for key in {place[3] for place in uploads}:
            places = [(name, number, attempt, key) for name in names]
            if all(place in uploads for place in places):
                known.append(np.add.reduce([uploads[place] for place in places]))
    return uploads, known


def betrayed(uploads: Vectors, known: list[NDArray[Any]]) -> list[Key]:
    """Return the uploads that are linear combinations of what is known.

    Where models hardly change any more, sums of different rosters come near one without it: to
    6e-6 of its size here, in GFL. A combination that betrays is exact, to about 1e-12.
    """
    assert ROUNDS < len(known) < DIM / 2
    matrix = np.stack(known, axis=1)
    matrix = matrix / np.linalg.norm(matrix, axis=0)
    left, sizes, _ = np.linalg.svd(matrix, full_matrices=False)
    basis = left[:, sizes > 1e-12]
    found = []
    for place, upload in uploads.items():
        rest = upload - basis @ (basis.T @ upload)
        if np.linalg.norm(rest) < 1e-9 * np.linalg.norm(upload):
            found.append(place)
    return found


EVERYBODY = range(AGENTS)
SCHEDULES = {
    "one-away": [EVERYBODY, range(1, 6), EVERYBODY, [0, 1, 2, 4, 5]],
    "by-threes": [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [0, 4, 5]],
    "shrinking": [EVERYBODY, range(5), range(4), range(3)],
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", MAKERS)
def test_sums_over_changing_rosters_betray_no_upload(
    name: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [(2, 2)] if schedule != "by-threes" else []  # three are too few for less
    uploads, known = play(name, SCHEDULES[schedule], lost, monkeypatch)
    assert len(uploads) >= 3 * ROUNDS
    assert not betrayed(uploads, known)


def test_the_attack_finds_an_upload_that_two_sums_betray(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that sent the new and the old model each would be seen when it is away."""
    uploads, known = play("fed-plt", SCHEDULES["one-away"], [], monkeypatch)
    known.append(np.add.reduce([uploads[str(i), 1, 1, "x"] for i in range(1, 6)]))
    assert ("0", 1, 1, "x") in betrayed(uploads, known)


def test_every_algorithm_with_secure_sums_is_attacked() -> None:
    """A new one must be added above."""
    asked = set()
    for name, found in algorithms().items():
        with suppress(ConfigError):
            found.load_strategy().from_config(read_config({"algorithm": name, "secure-sum": True}))
            asked.add(name)
    assert asked == set(MAKERS)


# ---------------------------------------------------------------------- who spoils sums


def _wrong_digest(reply: Message, message: Message) -> Message:
    record: Any = reply.content["privet"]
    record["about"] = json.dumps(json.loads(record["about"]) | {"digest": 1})
    return reply


def _needs_state(reply: Message, message: Message) -> Message:
    record = ConfigRecord({"kind": "need-state", "agent": "2"})
    return Message(RecordDict({"privet": record}), reply_to=message)


def _fails(code: int) -> Callable[[Message, Message], Message]:
    return lambda reply, message: Message(Error(code, "x"), reply_to=message)


SPOILERS: dict[str, Callable[[Message, Message], Message]] = {
    "its work fails": _fails(101),
    "its app fails": _fails(2),
    "a digest": _wrong_digest,
    "never has its state": _needs_state,
}


class Spoiling(InlineGrid):
    """A grid whose agent 2 spoils its replies; where it ``moves``, on a new node each time."""

    def __init__(
        self, spoil: Callable[[Message, Message], Message] | None, *, moves: bool = False
    ) -> None:
        super().__init__(app_of(logistic_agents(6), "dp-fedsgd"), 6)
        self.spoil, self.charged, self.moves = spoil, Counter[int](), moves
        self.spoiled_on = 0

    def get_node_ids(self) -> Iterable[int]:
        if self.moves and self.spoiled_on:
            context, node = self.contexts.pop(self.spoiled_on), self.spoiled_on + 9
            self.contexts[node] = replace(context, node_id=node, state=RecordDict())
            self.online.remove(self.spoiled_on)
            self.online.add(node)
            self.spoiled_on = 0
        return super().get_node_ids()

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        if reply is None or message.metadata.message_type != "train":
            return reply
        agent = int(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
        self.charged[agent] += not reply.has_error()
        if self.spoil is None or agent != 2:
            return reply
        self.spoiled_on = message.metadata.dst_node_id
        return self.spoil(reply, message)


def summed(grid: InlineGrid, *, rounds: int = 8, folder: Path | None = None, **keys: Any) -> Any:
    strategy = DPFedSGD(
        num_agents=6,
        min_agents=3,
        secure_sum=True,
        step_size_base=0.1,
        patience=5.0,
        round_timeout=6.0,
        **keys,
    )
    start, options = ArrayRecord({"x": Array(np.zeros(4))}), {"log_rounds": False}
    if folder is None:
        return strategy.start(grid, start, rounds, **options)
    return run_and_save(
        strategy, grid, start, num_rounds=rounds, output_dir=folder, name="run", **options
    )


@pytest.mark.parametrize("name", SPOILERS)
def test_an_agent_that_spoils_two_private_sums_is_left_out(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So the others pay for two more attempts in a whole run, whatever it sends."""
    honest, spoiled = Spoiling(None), Spoiling(SPOILERS[name])
    private = {"clip": 1.0, "noise_scale": 1.0}
    alone, result = summed(honest, **private), summed(spoiled, **private)
    assert set(honest.charged.values()) == {8}
    others = [count for agent, count in spoiled.charged.items() if agent != 2]
    assert max(others) <= 8 + MOST_SPOILED
    assert spoiled.charged[2] <= MOST_SPOILED
    assert len(result.history) == 8
    assert result.history[-1].participants == ("0", "1", "3", "4", "5")
    assert result.privacy.private
    assert result.privacy.epsilon < 1.2 * alone.privacy.epsilon
    left = "agent 2 is asked no more: 2 secure sums lacked its upload"
    assert sum(line.startswith(left) for line in caplog.messages) == 1


@pytest.mark.parametrize("schedule", ["constant", "geometric"])
@pytest.mark.parametrize("name", SPOILERS)
def test_a_target_that_lost_attempts_spend_ends_the_run_in_order(
    name: str, schedule: str, tmp_path: Path
) -> None:
    """With the model and the account of what was released: nothing is left to change or retry."""
    grid = Spoiling(SPOILERS[name])
    geometric = {"budget_schedule": "geometric", "budget_ratio": 0.7}
    keys = geometric if schedule == "geometric" else {}
    found = summed(grid, folder=tmp_path, clip=1.0, target_epsilon=4.0, **keys)
    assert (found.result.stopped, found.result.exit_code) == (Stop.BUDGET, Exit.DONE)
    assert found.summary["exit-code"] == Exit.DONE
    assert (tmp_path / "run" / "statement.html").exists()
    assert 6 <= len(found.result.history) < 8
    privacy = found.result.privacy
    assert (privacy.unbound, privacy.apart) == ((), ())
    assert privacy.epsilon <= 4.0
    for agent, ledger in privacy.agents.items():
        assert ledger.messages == grid.charged[int(agent)]


def test_a_target_that_the_attempts_of_its_first_round_spend_yields_no_model(
    tmp_path: Path,
) -> None:
    with pytest.raises(FruitlessError, match="no upload was folded"):
        summed(
            Spoiling(SPOILERS["a digest"]),
            rounds=1, folder=tmp_path, clip=1.0, target_epsilon=4.0,
        )  # fmt: skip
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["exit-code"] == Exit.FRUITLESS
    assert not (tmp_path / "run" / "statement.html").exists()


def test_a_sum_that_agents_decline_for_another_reason_needs_a_person() -> None:
    """Of a target that the account says is not spent."""

    def declines(_: Message, message: Message) -> Message:
        return Message(Error(REFUSED, "target-epsilon: spent"), reply_to=message)

    class Declining(Spoiling):
        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            training = message.metadata.message_type == "train"
            return declines(reply, message) if training and reply is not None else reply

    with pytest.raises(HopelessError, match="target-epsilon: spent"):
        summed(Declining(None), clip=1.0, target_epsilon=4.0)


@pytest.mark.parametrize("recovery", ["no", "yes"])
def test_an_agent_that_spoils_private_sums_is_left_out_on_every_node(recovery: str) -> None:
    grid = Spoiling(SPOILERS["a digest"], moves=True)
    result = summed(grid, clip=1.0, noise_scale=1.0, recover_by_name=recovery)
    assert max(count for agent, count in grid.charged.items() if agent != 2) <= 8 + MOST_SPOILED
    assert grid.charged[2] <= MOST_SPOILED
    assert result.history[-1].participants == ("0", "1", "3", "4", "5")


def test_sums_that_cost_no_privacy_ask_an_agent_again_that_failed() -> None:
    grid = Spoiling(SPOILERS["its work fails"])
    result = summed(grid)
    assert all("2" in done.failures and done.failures["2"].code != "out" for done in result.history)


@pytest.mark.parametrize(("size", "kept"), [(100, True), (LARGE, True), (LARGE + 1, False)])
def test_no_large_payload_is_kept_for_its_digest(size: int, kept: bool) -> None:
    payload = random.Random(size).randbytes(size)
    held = sys.getrefcount(payload)
    found = [masking.task_digest("dp-fedsgd", 1, "{}", payload, grid) for grid in (0.0, 0.5)]
    assert (sys.getrefcount(payload) > held) is kept
    for digest, more in zip(found, ([], [0.5]), strict=True):
        head = json.dumps(["dp-fedsgd", 1, "{}", *more]).encode()
        assert digest == hashlib.sha256(len(head).to_bytes(8, "big") + head + payload).digest()
