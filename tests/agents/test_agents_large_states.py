"""A large state of a node with a state-path: it is in the file alone, not in Flower's context."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict

from privet.agents.state import LARGE, STATE_RECORD, AgentState, read_state
from privet.client_apps import CallableProblem, client_app
from privet.core.errors import WireError
from privet.core.files import write_npz
from privet.kernel import Told
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT
from privet.wire.flower_internals import held_by

DIM = LARGE // 8


def grid(*files: Path | None) -> InlineGrid:
    def problem(context: Any) -> CallableProblem:
        at = float(context.node_config["partition-id"])
        return CallableProblem(
            lambda x: 0.5 * float((x - at) @ (x - at)), lambda x: x - at, DIM, num_examples=1
        )

    places = {"num-partitions": len(files)}
    configs = [
        {"partition-id": number, **places, **({"state-path": str(file)} if file else {})}
        for number, file in enumerate(files)
    ]
    return InlineGrid(client_app("fed-plt", problem), configs)


def strategy(agents: int) -> FedPLT:
    return FedPLT(rho=1.0, step_size=0.3, local_epochs=2, local_start="own", num_agents=agents)


def start() -> ArrayRecord:
    return ArrayRecord({"x": Array(np.linspace(-1.0, 1.0, DIM))})


def in_contexts(nodes: InlineGrid) -> list[int]:
    """Return the bytes of states in every context."""
    records: list[Any] = [held_by(one.state)[STATE_RECORD] for one in nodes.contexts.values()]
    return [sum(map(len, record["states"])) for record in records]


def test_a_large_state_is_in_the_file_alone_and_the_numbers_are_the_same(tmp_path: Path) -> None:
    kept, passed = grid(tmp_path / "0", tmp_path / "1"), grid(None, None)
    found = [
        strategy(2).start(each, start(), num_rounds=4).arrays["x"].numpy()
        for each in (kept, passed)
    ]
    assert np.array_equal(*found)
    assert not np.array_equal(found[0], start()["x"].numpy())
    assert in_contexts(kept) == [0, 0]
    assert min(in_contexts(passed)) > LARGE
    assert min((tmp_path / name).stat().st_size for name in "01") > LARGE
    both = zip(kept.contexts.values(), passed.contexts.values(), strict=True)
    for own, other in both:
        assert read_state(own)._replace(experiment="") == read_state(other)._replace(experiment="")


@pytest.mark.parametrize("what", ["another run's", "an older copy", "none"])
def test_a_file_that_is_not_of_the_last_round_is_not_gone_on_from(
    what: str, tmp_path: Path
) -> None:
    """The agent asks for its state, and is sent it: the limit stays, and nothing of the file's."""
    file, other = tmp_path / "0", tmp_path / "other"
    nodes, plain = grid(file), strategy(1)
    session = plain.begin(nodes, start())
    plain.play_round(nodes, 1)
    if what == "an older copy":
        shutil.copy(file, other)
    plain.play_round(nodes, 2)
    if what == "another run's":
        strategy(1).start(grid(other), start(), num_rounds=3)
    (context,) = nodes.contexts.values()
    own = read_state(context)
    assert own.rounds == (1, 2)
    file.unlink() if what == "none" else other.replace(file)
    left = read_state(context)
    assert (left.rounds, left.states) == ((), ())
    assert (left.experiment, left.ledger) == (own.experiment, own.ledger)
    plain.play_round(nodes, 3)
    assert session.history[-1].participants == ("0",)
    undisturbed, again = strategy(1), grid(None)
    expected = undisturbed.begin(again, start())
    for number in (1, 2, 3):
        undisturbed.play_round(again, number)
    assert np.array_equal(session.state.z, expected.state.z)


def test_a_node_that_was_killed_before_flower_had_its_context_goes_on_from_the_file(
    tmp_path: Path,
) -> None:
    nodes, plain = grid(tmp_path / "0"), strategy(1)
    plain.begin(nodes, start())
    plain.play_round(nodes, 1)
    (context,) = nodes.contexts.values()
    before = held_by(context.state)[STATE_RECORD]
    plain.play_round(nodes, 2)
    after = read_state(context)
    held_by(context.state)[STATE_RECORD] = before
    assert read_state(context) == after
    assert after.rounds == (1, 2)


def tagged(file: Path, change: Callable[[dict[str, Any]], Any]) -> AgentState:
    """Return the state of a file whose tag another version may have written."""
    state = AgentState("run", (3,), (b"state",), "", True, True)
    members = dict(state.to_members())
    tag = change(json.loads(members["tag"].tobytes()))
    write_npz(file, {**members, "tag": np.frombuffer(json.dumps(tag).encode(), "u1")})
    node = Context(1, 1, {"state-path": str(file)}, RecordDict(), {})
    return read_state(node)


def test_a_state_of_an_older_version_counts_as_not_charged(tmp_path: Path) -> None:
    """One that does not say so; the rest of it is gone on from."""
    same = tagged(tmp_path / "state", lambda tag: tag)
    said = ("covered", "private")
    older = tagged(tmp_path / "state", lambda tag: {k: v for k, v in tag.items() if k not in said})
    assert (same.fully_charged, same.private) == (True, True)
    assert (older.fully_charged, older.private) == (False, False)
    assert older[:4] == same[:4]


OLDER: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no ledger": lambda tag: {k: v for k, v in tag.items() if k != "ledger"},
    "one round": lambda tag: {**tag, "rounds": 3},
    "rounds by name": lambda tag: {**tag, "rounds": ["third"]},
    "rounds that it lacks": lambda tag: {**tag, "rounds": [1, 2]},
    "a list": list,
    "a number": lambda tag: 7,
}


@pytest.mark.parametrize("case", OLDER)
def test_a_state_of_another_form_is_refused_by_its_name(tmp_path: Path, case: str) -> None:
    with pytest.raises(WireError, match=r"^state-path .*/state is damaged \(\w+\)$") as caught:
        tagged(tmp_path / "state", OLDER[case])
    assert caught.value.told is Told.STATE
