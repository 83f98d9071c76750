"""What a run leaves behind after a round, and how another run goes on from it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from privet.wire import RunError

from .checkpoint import Checkpoint, load, save
from .half import summing
from .history import Round
from .recovery import HoldsNodeStates
from .roster import Agent
from .round import Session, admit, renew

if TYPE_CHECKING:
    from .base import PrimalDualStrategy

log = logging.getLogger("flwr.privet")


def write_checkpoint(strategy: PrimalDualStrategy, grid: Grid, path: Path) -> bool:
    """Write the run's checkpoint; a failure is logged and leaves the previous one."""
    session = strategy.session
    assert session is not None
    manifest = {
        "protocol": strategy.half.name,
        "version": strategy.half.version,
        "experiment": session.experiment,
        "round": session.round,
        "seed": strategy.seed,
        "settings": dict(strategy.half.settings()),
        "secure-sum": summing(strategy.half) is not None,
        "agents": [
            {
                "name": name,
                "num-examples": session.roster.agents[name].num_examples,
                "tag": session.roster.agents[name].tag,
                "ledger": session.roster.agents[name].ledger,
                "unit": session.roster.agents[name].unit,
                "node": session.roster.agents[name].node,
                "facts": session.roster.agents[name].facts,
                "former": list(session.roster.agents[name].former),
            }
            for name in session.roster.names
        ],
    }
    node_states = grid.node_states() if isinstance(grid, HoldsNodeStates) else {}
    arrays = strategy.half.dump(session.state)
    # Each round is encoded once, not again for every checkpoint that follows it.
    session.lines += [json.dumps(done.to_dict()) for done in session.history[len(session.lines) :]]
    try:
        save(path, Checkpoint(manifest, arrays, node_states, session.lines))
    except OSError as error:
        log.warning("checkpoint %s not written (%s): the previous one is kept", path, error)
        return False
    return True


def restore(
    strategy: PrimalDualStrategy, grid: Grid, initial_arrays: ArrayRecord, where: Path
) -> Session:
    """Set a strategy up from a checkpoint and return its session.

    Raises
    ------
    RunError
        If the checkpoint is missing, damaged, or of another algorithm, model or seed.
    """
    saved = load(where)
    manifest = saved.manifest
    said = (manifest["protocol"], manifest["version"])
    if said != (strategy.half.name, strategy.half.version):
        raise RunError(
            f"resume: the checkpoint is of {said[0]} version {said[1]}, "
            f"this run of {strategy.half.name} version {strategy.half.version}"
        )
    if manifest["seed"] != strategy.seed:
        raise RunError(
            f"resume: the checkpoint has seed {manifest['seed']}, this run {strategy.seed}"
        )
    masked = bool(manifest.get("secure-sum", False))
    if masked != (summing(strategy.half) is not None):
        raise RunError(
            f"resume: the checkpoint is of a run {'with' if masked else 'without'} secure sums, "
            f"this run {'without' if masked else 'with'}"
        )
    if saved.node_states and isinstance(grid, HoldsNodeStates):
        grid.restore_node_states(saved.node_states)
    session = strategy.enrol(grid, initial_arrays, str(manifest["experiment"]))
    session.state = strategy.half.load(saved.arrays)
    model = strategy.half.models(session.state)["last"]
    if (model.shape, model.dtype) != (session.start.shape, session.start.dtype):
        raise RunError(
            f"resume: the checkpoint's model has {model.size} parameters in {model.dtype}, "
            f"this run's {session.start.size} in {session.start.dtype}"
        )
    _merge_roster(strategy, session, manifest["agents"])
    session.round = int(manifest["round"])
    session.history = [Round.from_dict(json.loads(line)) for line in saved.history]
    if strategy.prepare is not None:  # after the merge: agents that are absent count as well
        session.settings_before = dict(manifest["settings"])
        strategy.half = strategy.prepare(strategy.half, session)
    _warn_of_changes(manifest["settings"], strategy.half.settings())
    strategy.session = session
    log.info("resumed after round %d with %d agents", session.round, len(session.roster.agents))
    return session


def _warn_of_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changed = [key for key in now if before.get(key) != now[key]]
    if changed:
        text = ", ".join(f"{key} {before.get(key)} -> {now[key]}" for key in changed)
        log.warning("resume: settings differ from the checkpoint's: %s", text)


def _merge_roster(strategy: PrimalDualStrategy, session: Session, saved: list[Any]) -> None:
    """Bring the agents enrolled now together with those of the checkpoint.

    Agents that have not come back stay in the roster, absent; new ones are admitted, and nodes
    that take the place of others begin anew.
    """
    agents = {
        str(entry["name"]): Agent(
            int(entry.get("node", 0)),
            int(entry["num-examples"]),
            int(entry["tag"]),
            ledger=str(entry["ledger"]),
            unit=str(entry.get("unit", "")),
            facts=str(entry.get("facts", "")),
            former=tuple(map(str, entry.get("former", ()))),
        )
        for entry in saved
    }
    for name in session.roster.merge(agents, strategy.question(session)):
        admit(strategy.half, session, name)
    for name in session.roster.take_anew():
        renew(strategy.half, session, name)
