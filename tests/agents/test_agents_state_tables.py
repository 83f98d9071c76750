"""Agents' states as tables: the same states come back, whatever shapes they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privet.agents.state import AgentState
from privet.agents.state_tables import (
    StateTable,
    from_members,
    joined,
    tabulated,
    to_members,
    with_ledgers,
)
from privet.wire import pack


def state(
    *rounds: int, experiment: str = "e", ledger: str = "", dim: int = 3, **more: NDArray[Any]
) -> AgentState:
    held = [{"x": np.full(dim, float(one)), "n": np.array(one), **more} for one in rounds]
    return AgentState(experiment, rounds, tuple(map(pack, held)), ledger, bool(rounds[0] % 2))


STATES: Mapping[str, AgentState] = {
    "a": state(3, 4, ledger="one"),
    "b": state(2, 4, ledger="two"),
    "c": state(3, 4, dim=5),
    "d": state(4),
    "e": state(3, 4, experiment="another"),
    "f": state(1, 2, extra=np.zeros((2, 0), np.float32)),
    "g": state(3, 4, ledger="one"),
}


def held(tables: list[StateTable]) -> dict[str, AgentState]:
    return {name: one for table in tables for name, one in table.rows()}


def test_states_come_back_from_tables_and_from_a_file() -> None:
    tables = tabulated(STATES.items())
    assert [table.names for table in tables] == [["a", "b", "g"], ["c"], ["d"], ["e"], ["f"]]
    assert held(tables) == STATES
    members = to_members(tables)
    assert all(array.dtype != object for array in members.values())
    assert held(from_members(members)) == STATES
    assert held(from_members({})) == {}


def test_tables_of_one_layout_are_joined_and_others_taken_apart() -> None:
    """A block whose agents' arrays have several shapes holds them as objects."""
    one = [table for name in "abg" for table in tabulated([(name, STATES[name])])]
    assert [table.names for table in joined(one)] == [["a", "b", "g"]]
    ragged = np.empty(2, object)
    ragged[:] = [np.zeros(3), np.ones(5)]
    charged = np.array([True, False])
    block = StateTable("e", ["p", "q"], np.array([[1, 1]]), ({"x": ragged},), ["", "z"], charged)
    (table,) = tabulated([("r", AgentState("e", (1,), (pack({"x": np.ones(5)}),)))])
    found = joined([block, table])
    assert [one.names for one in found] == [["p"], ["q", "r"]]
    assert held(found) == held([block, table])


def test_accounts_of_some_agents_are_replaced() -> None:
    changed = with_ledgers(tabulated(STATES.items()), {"b": "more", "d": "some", "z": "none"})
    assert held(changed) == {
        "b": STATES["b"]._replace(ledger="more"),
        "d": STATES["d"]._replace(ledger="some"),
    }


@pytest.mark.parametrize(
    "damage",
    [
        lambda m: m.update({"0/rounds": m["0/rounds"][:, :2]}),
        lambda m: m.update({"0/1/x": m["0/1/x"][:2]}),
        lambda m: m.update({"0/ledger": m["0/ledger"] + 1}),
        lambda m: m.update({"0/about": np.frombuffer(b"[]", np.uint8)}),
        lambda m: m.pop("0/covered"),
    ],
)
def test_tables_that_do_not_fit_together_are_refused(damage: Any) -> None:
    members = to_members(tabulated(STATES.items()))
    damage(members)
    with pytest.raises((ValueError, KeyError, TypeError)):
        from_members(members)
