"""Tables in files and uploads on the disk: no bit is another, whatever the algorithm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from privet.core import mapped
from privet.rounds.keep.checkpoint import load
from privet.server_apps.model_file import load_model
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline
from privet.wire import AGENT_RECORD
from support.every_algorithm import EVERY_ALGORITHM
from support.federations import app_of, logistic_agents, model, train

RUN: dict[str, Any] = {
    "num-agents": 5, "num-server-rounds": 4, "dataset": "synthetic", "features": 30,
    "examples-per-agent": 20, "participation": "fraction", "fraction": 0.6, "init-scale": 1.0,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "fed-pdm": {"dual": "public", "aggregation": "table", "sparsifier": "top-k", "alpha-u": 0.5},
    "gfl": {"units": 2},
}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let everything be large from now on; the list has the sizes of the files."""
    sizes: list[int] = []
    mapping = mapped.mmap.mmap

    def counted(file: int, size: int) -> Any:
        sizes.append(size)
        return mapping(file, size)

    monkeypatch.setattr(mapped.mmap, "mmap", counted)
    monkeypatch.setattr(mapped, "LIMIT", 100)
    monkeypatch.setattr(mapped, "BLOCK", 500)
    return sizes


@pytest.mark.parametrize("name", EVERY_ALGORITHM)
def test_runs_have_the_same_bits(name: str, tmp_path: Path, request: Any) -> None:
    raw = {**RUN, **OWN.get(name, {}), "algorithm": name}
    usual = run_inline({**raw, "output-dir": str(tmp_path / "usual")}, "run")
    sizes = request.getfixturevalue("files")
    place = {"output-dir": str(tmp_path / "large"), "resume": "auto"}
    run_inline({**raw, **place, "num-server-rounds": 2}, "run")
    large = run_inline({**raw, **place}, "run")
    ours, theirs = (load_model(one.folder).arrays for one in (large, usual))
    assert ours.keys() == theirs.keys()
    for key, array in theirs.items():
        assert array.tobytes() == ours[key].tobytes()
    np.testing.assert_array_equal(  # NaN where it is not known
        *([done.residual for done in one.result.history] for one in (large, usual))
    )
    server = {"gfl", "dp-fedsgd", "dp-fedavg", "tamuna"}  # nothing, or little, is kept of an agent
    assert sizes or name in server
    assert sorted(one.name for one in large.folder.iterdir()) == sorted(
        one.name for one in usual.folder.iterdir()
    )


def test_a_newcomer_is_put_into_a_mapped_table(tmp_path: Path, files: list[int]) -> None:
    problems = logistic_agents(5)
    grid = InlineGrid(app_of(problems), 5)
    late = min(grid.online) + 2
    grid.online.discard(late)
    results = []
    for limit in (100, 1 << 29):
        mapped.LIMIT = limit
        grid = InlineGrid(app_of(problems), 5)
        grid.online.discard(late)

        def join(done: Any, strategy: Any, grid: Any = grid) -> None:
            grid.online.add(late)

        start = {"checkpoint": tmp_path / str(limit) / "checkpoint.npz", "observers": [join]}
        start["checkpoint"].parent.mkdir()
        result, strategy, _ = train(problems, 4, grid=grid, start=start, num_agents=4)
        assert [len(done.participants) for done in result.history] == [4, 5, 5, 5]
        assert strategy.session is not None
        results.append((model(result).tobytes(), strategy.session.state.z.tobytes()))
    assert results[0] == results[1]
    assert files


def test_states_are_in_their_messages_only_while_these_are_pushed(
    tmp_path: Path, files: list[int]
) -> None:
    """All agents lost theirs, as after a resume on real nodes."""
    problems, file = logistic_agents(4), tmp_path / "checkpoint.npz"
    train(problems, 2, start={"checkpoint": file})
    saved = replace(load(file), node_states=[])
    pushed: list[Message] = []

    class Counting(InlineGrid):
        def push_messages(self, messages: Any) -> Any:
            batch = list(messages)
            heavy = [
                one for one in (*pushed, *batch) if "recovery" in one.content.get(AGENT_RECORD, {})
            ]
            assert len(heavy) <= 1
            pushed.extend(batch)
            return super().push_messages(batch)

    result, _, _ = train(
        problems, 4, grid=Counting(app_of(problems), 4), start={"resume": saved, "checkpoint": file}
    )
    sent = [note for note in result.history[2].notes if "was sent its state of round 2" in note]
    assert len(sent) == 4
    mapped.LIMIT = 1 << 29
    usual, _, _ = train(problems, 4)
    assert np.array_equal(model(result), model(usual))
    small, _, _ = train(problems, 3, start={"resume": saved, "checkpoint": file})
    assert small.history[2].bytes_down == result.history[2].bytes_down


def test_uploads_wait_on_the_disk_until_they_are_folded(
    tmp_path: Path, files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = []
    keep = mapped.Spool.keep

    def counted(self: Any, arrays: Any) -> Any:
        waiting.append(sorted(arrays))
        return keep(self, arrays)

    monkeypatch.setattr(mapped.Spool, "keep", counted)
    problems = logistic_agents(4)
    result, _, _ = train(problems, 2, start={"checkpoint": tmp_path / "checkpoint.npz"})
    assert waiting == [["x"]] * 8
    monkeypatch.setattr(mapped, "LIMIT", 1 << 29)
    usual, _, _ = train(problems, 2)
    assert np.array_equal(model(result), model(usual))
    assert load(tmp_path).manifest["round"] == 2
