"""A name is the node's that enrolled with it: nobody else is sent its state, or takes its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from flwr.app import Context, Message

from privet.client_apps import client_app
from privet.data import problem_from_context
from privet.server_apps import execute, read_config
from privet.sim.engine import InlineGrid
from privet.wire import unpack
from privet.wire.contract import read_instruction

OWNER, IMPOSTOR = 1000, 1003
RUN: dict[str, Any] = {
    "num-agents": 3,
    "num-server-rounds": 6,
    "dataset": "breast-cancer",
    "partition": "iid",
    "participation": "all",
}


class Told(NamedTuple):
    """One training message: to whom, and the state and account that came with it."""

    node: int
    round: int
    state: dict[str, Any]
    account: str


class Scene:
    """Three honest agents and a node that says it is the first of them.

    Parameters
    ----------
    after : callable
        ``(grid, round)``, called when the owner has answered in a round.
    early : bool
        Whether the impostor is there from the start.
    """

    def __init__(
        self, after: Callable[[InlineGrid, int], None] | None = None, *, early: bool = False
    ) -> None:
        self.told: list[Told] = []
        self.sent: dict[int, list[Any]] = {}
        self._app = client_app(None, problem_from_context)
        self._after = after
        nodes: list[dict[str, Any]] = [{"partition-id": i, "num-partitions": 3} for i in range(3)]
        nodes.append({"partition-id": 0, "num-partitions": 3, "agent": "0"})
        self.grid = InlineGrid(self._answer, nodes, RUN)
        if not early:
            self.grid.online.discard(IMPOSTOR)

    def _answer(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type != "train":
            return self._app(message, context)
        asked = read_instruction(message.content)
        state = {} if asked.recovery is None else dict(unpack(asked.recovery))
        self.told.append(Told(context.node_id, asked.round, state, asked.ledger))
        reply = self._app(message, context)
        self.sent.setdefault(context.node_id, []).append(reply)
        if context.node_id == OWNER and self._after is not None:
            self._after(self.grid, asked.round)
        return reply

    def play(self, folder: Path, algorithm: str, **more: Any) -> list[dict[str, Any]]:
        """Run to the end and return the history."""
        config = {**RUN, "algorithm": algorithm, "output-dir": str(folder), **more}
        summary = execute(self.grid, read_config(config), "run").summary
        lines = (Path(summary["run-folder"]) / "history.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def to_impostor(self) -> list[Told]:
        """Return what the impostor was sent."""
        return [told for told in self.told if told.node == IMPOSTOR]


def said(history: list[dict[str, Any]]) -> str:
    return json.dumps([[done["notes"], done["failures"]] for done in history])


@pytest.mark.parametrize("joins", [0, 2])
def test_while_the_owner_lives_its_name_is_taken(joins: int, tmp_path: Path) -> None:
    def after(grid: InlineGrid, round_: int) -> None:
        if round_ == joins:
            grid.online.add(IMPOSTOR)

    scene = Scene(after, early=joins == 0)
    history = scene.play(tmp_path, "fed-plt")
    assert scene.to_impostor() == []
    assert [done["participants"] for done in history] == [["0", "1", "2"]] * 6
    assert sum(told.node == OWNER for told in scene.told) == 6
    assert str(IMPOSTOR) in said(history)


@pytest.mark.parametrize("algorithm", ["fed-plt", "fed-pdm", "scaffold", "dp-iadmm"])
def test_a_successor_begins_anew(algorithm: str, tmp_path: Path) -> None:
    """When the owner has gone, the next node of its name is told nothing of what was before."""

    def after(grid: InlineGrid, round_: int) -> None:
        if round_ == 3:
            grid.online.add(IMPOSTOR)
            grid.online.discard(OWNER)

    scene = Scene(after)
    history = scene.play(tmp_path, algorithm, **{"recover-by-name": "no"})
    told = scene.to_impostor()
    assert {one.round for one in told} <= {4, 5, 6}
    assert all(one.account == "" for one in told[:1])
    context = scene.grid.contexts[OWNER]
    from privet.agents.state import read_state

    held = read_state(context)
    secrets = [
        array
        for round_ in held.rounds
        for array in (held.at(held.experiment, round_) or {}).values()
        if np.any(array)
    ]
    assert secrets
    for one in told[:1]:
        for array in one.state.values():
            assert not any(np.array_equal(array, secret) for secret in secrets)
    assert "agent 0" in said(history)
