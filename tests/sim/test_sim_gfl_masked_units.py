"""GFL with a secure sum in every unit and a server of its own for each, against the simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message

from privet.agents.masking import MASK_RECORD, MaskState
from privet.server_apps import execute, read_config
from privet.sim.engine import InlineGrid
from privet.sim.grid import App
from privet.sim.inline import configured_app
from support.graph_servers import Hosts, at_once, simulated, unit_config, unit_grid
from support.run_files import history

UNITS, EACH, DIM, ROUNDS = 3, 3, 2, 3
COMMON: dict[str, Any] = {
    "num-server-rounds": ROUNDS,
    "num-agents": UNITS * EACH,
    "units": UNITS,
    "graph": "path",
    "dataset": "regression",
    "features": DIM,
    "examples-per-agent": 20,
    "partition": "natural-id",
    "regularizer-weight": 0.2,
    "noise-variance": 0.01,
    "noise-seed": 5,
    "seed": 7,
    "init-scale": 1.0,
    "step-size": 0.3,
    "local-epochs": 2,
    "peer-timeout": 20.0,
}
MASKED = {**COMMON, "secure-sum": True}
ROUNDING = 2.7e-12
"""How far 2^-41 in every number that is masked may carry the models of all units."""


def serve(
    hosts: Hosts, name: str, output: Path, app: App | None = None, **changed: Any
) -> tuple[Path, InlineGrid]:
    """Run a unit's ServerApp with its agents; return its run folder and what was with them."""
    config = {**unit_config(hosts, name, **MASKED), "output-dir": str(output), **changed}
    grid = unit_grid(config, app)
    return execute(grid, read_config(config), f"unit-{name}").folder, grid


def models(config: dict[str, Any]) -> Any:
    """Return w_p of every unit (P, d) after a simulation."""
    strategy = simulated(config, {})
    assert strategy.session is not None
    return strategy.session.state.models


def test_masked_units_with_a_server_each_follow_the_plain_simulation(tmp_path: Path) -> None:
    with Hosts(tmp_path, UNITS) as hosts:
        done = at_once([lambda n=name: serve(hosts, n, tmp_path) for name in hosts.names])
    found = np.array([np.load(folder / "model.npz")["x"] for folder, _ in done])
    assert found.shape == (UNITS, DIM)
    plain = models(COMMON)
    assert 0 < np.linalg.norm(found - plain) <= ROUNDING
    # Sums in the ring are exact: which process adds makes no difference at all.
    assert found.tobytes() == models(MASKED).tobytes()
    noiseless = models(
        {key: value for key, value in COMMON.items() if key not in ("noise-variance", "noise-seed")}
    )
    assert np.linalg.norm(plain - noiseless) > 1e-2


def test_each_server_sums_its_own_agents_only_and_says_so(tmp_path: Path) -> None:
    with Hosts(tmp_path, UNITS) as hosts:
        done = at_once([lambda n=name: serve(hosts, n, tmp_path) for name in hosts.names])
    for unit, (folder, grid) in enumerate(done):
        names = tuple(str(EACH * unit + k) for k in range(EACH))
        for context in grid.contexts.values():
            state = MaskState.from_record(context.state[MASK_RECORD])
            assert (state.round, state.attempt, state.names) == (ROUNDS, 1, names)
        rounds = history(folder)
        assert [tuple(line["participants"]) for line in rounds] == [names] * ROUNDS
        assert all(line["failures"] == {} and line["notes"] == [] for line in rounds)
        assert all(
            {"msd-centroid", "msd-units"} & set(line["measures"]) == {"msd-units"}
            for line in rounds
        )
        privacy = json.loads((folder / "privacy.json").read_text())
        assert "sees sums of its agents' models" in privacy["reason"]
        assert "one process hosted all units" not in privacy["reason"]


def agent_7_fails_in_round_2(message: Message, context: Context) -> Message:
    """Answer as every agent does, but for that."""
    record = message.content.get("privet")
    if record is not None and (context.node_config["partition-id"], record.get("round")) == (7, 2):
        raise RuntimeError("out of memory")
    return configured_app()(message, context)


def test_a_unit_whose_agent_fails_adds_what_the_simulation_adds(tmp_path: Path) -> None:
    """The second attempt lacks the agent and one more: the same one, whoever draws it."""
    larger = {**MASKED, "algorithm": "gfl", "num-agents": 15, "output-dir": str(tmp_path)}
    del larger["peer-timeout"]  # all units in one process
    app = agent_7_fails_in_round_2
    whole = execute(unit_grid(larger, app), read_config(larger), "simulation").folder
    with Hosts(tmp_path, UNITS) as hosts:
        jobs = [
            lambda n=name: serve(hosts, n, tmp_path, app, **{"num-agents": 15})
            for name in hosts.names
        ]
        done = at_once(jobs)
    with np.load(whole / "model.npz") as expected:
        for unit, (folder, _) in enumerate(done):
            with np.load(folder / "model.npz") as found:
                assert found["x"].tobytes() == expected[f"unit-{unit}/x"].tobytes()
    (_, second, third) = history(done[1][0])
    assert "out of memory" in second["failures"].pop("7")["text"]
    ((spared, why),) = second["failures"].items()
    assert why["code"] == "left out"
    assert set(second["participants"]) == set("5689") - {spared}
    assert third["participants"] == list("56789")
    assert any("attempt 1 failed" in note for note in second["notes"])
    assert all(line["failures"] == {} for unit in (0, 2) for line in history(done[unit][0]))
