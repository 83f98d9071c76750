"""All that a resume needs of a run between two rounds, as a checkpoint holds it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from privet.agents.state_tables import StateTable
from privet.agents.terms import MEAN_EXAMPLES, POOLED_WEIGHT
from privet.core.library import LIBRARY_VERSION, library_version
from privet.wire import sort_names

from ..exchange import EngineGrid
from ..half import ServerHalf
from ..roster import columns
from ..session import Session
from ..task import Task, saved
from .checkpoint import Checkpoint


def snapshot(
    half: ServerHalf[Any],
    session: Session,
    grid: Grid,
    requested: Mapping[str, Any],
    *,
    rounds: int | None = None,
    mark: str = "",
    tasks: Mapping[str, Task] | None = None,
    changed: Collection[str] | None = None,
    more: Mapping[str, int] | None = None,
) -> Checkpoint:
    """Return all that a resume needs except the history.

    Parameters
    ----------
    requested : mapping
        What a resume must request the same.
    rounds : int, optional
        The last round that was asked for.
    mark : str
        The journal's last mark.
    tasks : mapping of str to Task, optional
        What agents are working on, in a run that does not wait for all of them.
    changed : collection of str, optional
        With it the checkpoint has, of what there is for every agent, what these agents have of it.
    more : mapping, optional
        What the run's collector states (`Collector.about`).
    """
    roster = session.roster
    names = roster.names if changed is None else sort_names(changed)
    places = None if changed is None else np.array([roster.positions[n] for n in names], np.intp)
    manifest: dict[str, Any] = {
        "protocol": half.name,
        "version": half.version,
        "experiment": session.experiment,
        "round": session.round,
        "rounds": rounds,
        "epsilon": session.history[-1].epsilon if session.history else 0.0,
        "journal": mark,
        "initial": session.initial.to_dict(),
        "asked": requested,
        "settings": dict(half.settings()),
        **({"noises": sorted(session.noises)} if session.noises else {}),
        **({MEAN_EXAMPLES: session.mean_examples} if session.mean_examples else {}),
        **({POOLED_WEIGHT: session.pooled_weight} if session.pooled_weight else {}),
        **({"encoding": session.encoding.text} if session.encoding.text else {}),
        **({"encoding-sent": session.encoding_sent} if session.encoding_sent else {}),
        "trained": session.layout.names,
        "buffers": session.buffers.names if session.buffers else (),
        "tied": session.tied,
        LIBRARY_VERSION: library_version(),
        "agents": columns({name: roster.agents[name] for name in names}),
        **(more or {}),
    }
    arrays = {
        **half.dump(session.state, places),
        **session.buffers_sent,
        **session.gaps.dump(places),
        **session.steps.dump(),
    }
    members: dict[str, bytes] = {}
    if tasks is not None:
        entries, members = saved(tasks, half.name, half.version)
        manifest |= {"tasks": entries, "uploads": session.uploads, "clock": session.clock}
    return Checkpoint(manifest, arrays, _node_states(session, grid, names), members)


def _node_states(session: Session, grid: Grid, names: Collection[str]) -> list[StateTable]:
    """Return agents' own states where the engine can hand them over, else the last ones saved."""
    if not isinstance(grid, EngineGrid):
        return []
    agents = session.roster.agents
    found = list(grid.node_states({agents[name].node: agents[name].tag for name in names}))
    if sum(len(table.names) for table in found) < len(names):
        there = {name for table in found for name in table.names}
        found += session.saved_of(set(names) - there)
    return found
