"""The states of many agents as tables: one array for each array of a state, a row for each agent.

Engines hand the states of their agents over as such tables, and a checkpoint holds them so. Agents
without a state are in none.
"""

from __future__ import annotations

import json
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privet.wire import pack, unpack

from .state import AgentState

Arrays = Mapping[str, NDArray[Any]]


class StateTable(NamedTuple):
    """The states of k agents that hold as many rounds of one experiment each.

    Attributes
    ----------
    experiment : str
    names : list of str
        The agents.
    rounds : int64 array (r, k)
        The rounds that are held, oldest first.
    states : tuple of r mappings of str to array (k, ...)
        The states after these rounds; of dtype object where the agents' arrays have several shapes.
    ledgers : list of str
        The agents' accounts.
    fully_charged : bool array (k,)
        As in `AgentState`.
    """

    experiment: str
    names: list[str]
    rounds: NDArray[np.int64]
    states: tuple[Arrays, ...]
    ledgers: list[str]
    fully_charged: NDArray[np.bool_]

    def rows(self) -> Iterator[tuple[str, AgentState]]:
        """Yield every agent's name and state."""
        charged = self.fully_charged.tolist()
        for row, (name, rounds) in enumerate(zip(self.names, self.rounds.T.tolist(), strict=True)):
            states = tuple(pack({key: a[row] for key, a in each.items()}) for each in self.states)
            account = self.ledgers[row], charged[row]
            yield name, AgentState(self.experiment, tuple(rounds), states, *account)

    def layout(self) -> Hashable:
        """Return what tables that can be joined have in common; None where shapes differ."""
        if any(array.dtype == object for each in self.states for array in each.values()):
            return None
        return self.experiment, tuple(
            tuple((name, array.dtype.str, array.shape[1:]) for name, array in each.items())
            for each in self.states
        )


def tabulated(states: Iterable[tuple[str, AgentState]]) -> list[StateTable]:
    """Return states as tables, one for all agents whose arrays have the same shapes.

    Raises
    ------
    WireError
        If a state cannot be unpacked.
    """
    groups: dict[Hashable, list[tuple[str, AgentState, tuple[Arrays, ...]]]] = {}
    for name, state in states:
        arrays = tuple(map(unpack, state.states))
        shapes = tuple(
            tuple((key, array.dtype.str, array.shape) for key, array in each.items())
            for each in arrays
        )
        groups.setdefault((state.experiment, shapes), []).append((name, state, arrays))
    tables = []
    for group in groups.values():
        names, held, rows = zip(*group, strict=True)
        slots = zip(*rows, strict=True)
        tables.append(
            StateTable(
                held[0].experiment,
                list(names),
                np.array([state.rounds for state in held], np.int64).T,
                tuple({key: np.stack([a[key] for a in slot]) for key in slot[0]} for slot in slots),
                [state.ledger for state in held],
                np.array([state.fully_charged for state in held], bool),
            )
        )
    return tables


def joined(tables: Iterable[StateTable]) -> list[StateTable]:
    """Return the tables with those of one layout made one."""
    groups: dict[Hashable, list[StateTable]] = {}
    for table in tables:
        alike = [table] if table.layout() is not None else tabulated(table.rows())
        for one in alike:
            groups.setdefault(one.layout(), []).append(one)
    return [group[0] if len(group) == 1 else _one(group) for group in groups.values()]


def _one(group: list[StateTable]) -> StateTable:
    slots = zip(*(table.states for table in group), strict=True)
    return StateTable(
        group[0].experiment,
        [name for table in group for name in table.names],
        np.concatenate([table.rounds for table in group], axis=1),
        tuple(
            {key: np.concatenate([each[key] for each in slot]) for key in slot[0]} for slot in slots
        ),
        [ledger for table in group for ledger in table.ledgers],
        np.concatenate([table.fully_charged for table in group]),
    )


def of_rounds(
    tables: Iterable[StateTable], experiment: str, rounds: Mapping[str, int]
) -> list[StateTable]:
    """Return the states of these agents of an experiment that are held after these rounds."""
    found: dict[int, set[str]] = {}
    tables = [table for table in tables if table.experiment == experiment]
    for number, table in enumerate(tables):
        for name, held in zip(table.names, table.rounds.T.tolist(), strict=True):
            if rounds.get(name) in held:
                found.setdefault(number, set()).add(name)
    return [of_agents(tables[number], names) for number, names in found.items()]


def of_agents(table: StateTable, names: Container[str]) -> StateTable:
    """Return the states of these agents alone."""
    rows = [row for row, name in enumerate(table.names) if name in names]
    return table._replace(
        names=[table.names[row] for row in rows],
        rounds=table.rounds[:, rows],
        states=tuple({key: array[rows] for key, array in each.items()} for each in table.states),
        ledgers=[table.ledgers[row] for row in rows],
        fully_charged=table.fully_charged[rows],
    )


def of_others(tables: Iterable[StateTable], names: Set[str]) -> list[StateTable]:
    """Return the states of all agents but these."""
    some = (
        table if names.isdisjoint(table.names) else of_agents(table, set(table.names) - names)
        for table in tables
    )
    return [table for table in some if table.names]


def with_ledgers(tables: Iterable[StateTable], ledgers: Mapping[str, str]) -> list[StateTable]:
    """Return the states of these agents alone, with other accounts."""
    some = (of_agents(table, ledgers) for table in tables)
    return [
        table._replace(ledgers=[ledgers[name] for name in table.names])
        for table in some
        if table.names
    ]


# ------------------------------------------------------------------ in a file


def to_members(tables: Iterable[StateTable]) -> dict[str, NDArray[Any]]:
    """Return tables as named arrays, of which none is of objects."""
    members: dict[str, NDArray[Any]] = {}
    for number, table in enumerate(joined(tables)):
        accounts = {text: place for place, text in enumerate(dict.fromkeys(table.ledgers))}
        about = {"experiment": table.experiment, "agents": table.names, "ledgers": list(accounts)}
        members[f"{number}/about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        members[f"{number}/rounds"] = table.rounds
        members[f"{number}/ledger"] = np.array([accounts[text] for text in table.ledgers], np.int64)
        members[f"{number}/covered"] = table.fully_charged
        for slot, each in enumerate(table.states):
            members |= {f"{number}/{slot}/{name}": array for name, array in each.items()}
    return members


def from_members(members: Mapping[str, NDArray[Any]]) -> list[StateTable]:
    """Return the tables of ``to_members`` (raises ``ValueError``, ``KeyError``, ``TypeError``)."""
    tables: list[StateTable] = []
    while f"{len(tables)}/about" in members:
        number = len(tables)
        about = json.loads(members[f"{number}/about"].tobytes())
        names, accounts = list(map(str, about["agents"])), list(map(str, about["ledgers"]))
        rounds, count = members[f"{number}/rounds"], len(names)
        states = []
        for slot in range(len(rounds)):
            prefix = f"{number}/{slot}/"
            of = {n[len(prefix) :]: array for n, array in members.items() if n.startswith(prefix)}
            states.append(of)
        places, covered = members[f"{number}/ledger"], members[f"{number}/covered"]
        columns = [rounds.T, places, covered, *(a for each in states for a in each.values())]
        if any(column.shape[:1] != (count,) for column in columns):
            raise ValueError("a table of agents' states has rows of other agents")
        if any(not 0 <= place < len(accounts) for place in places.tolist()):
            raise ValueError("an account of the agents' states is not there")
        ledgers = [accounts[place] for place in places.tolist()]
        tables.append(
            StateTable(str(about["experiment"]), names, rounds, tuple(states), ledgers, covered)
        )
    return tables
