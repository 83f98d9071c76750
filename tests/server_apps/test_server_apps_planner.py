"""The plan of a private run and the run itself: the same noise, the same releases, the target.

Every private algorithm is tried with every option that a private run may take; what an algorithm
does not take, the plan and the run refuse alike.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privet.core import ConfigError
from privet.core.registry import BUILT_IN
from privet.server_apps import Finished, read_config
from privet.server_apps.planning import plan_account
from privet.sim.inline import run_inline

TARGET = 3.0
BASE: dict[str, Any] = {
    "dataset": "synthetic",
    "features": 3,
    "num-agents": 4,
    "examples-per-agent": 60,
    "partition": "iid",
    "num-server-rounds": 4,
    "clip": 1.0,
    "target-epsilon": TARGET,
    "delta": 1e-4,
    "regularizer": "l2",
    "regularizer-weight": 0.05,
    "round-timeout": 1000.0,
    "evaluate-every": 4,
    "baseline-seconds": 0.0,
    "checkpoint-every": 0,
}
OWN: dict[str, dict[str, Any]] = {
    "fed-plt": {"local-solver": "noisy-gd", "row-norm": 1.0, "local-epochs": 2},
    "fed-pdm": {"max-local-steps": 1},
    "scaffold": {"max-local-steps": 2},
}
"""What an algorithm needs beside these to be private."""
OF_OLD_UPLOADS = {"fed-pdm": {"aggregation": "latest"}, "dp-iadmm": {"rho": 1.0}}
"""What it needs to fold uploads of older models."""
ASYNCHRONOUS = {"asynchronous": True, "speeds": "lognormal", "buffer": 2, "num-server-rounds": 40}
"""More versions than the uploads of four agents can make, so that all of these are given."""
OLD_UPLOADS = ("asynchronous", "asynchronous-few", "asynchronous-share", "late-replies")
CYCLIC = {"batch": "cyclic", "batches": 3, "noise-bands": 2}
OPTIONS: dict[str, dict[str, Any]] = {
    "rounds": {},
    "asynchronous": {**ASYNCHRONOUS, "max-uploads": 5},
    "asynchronous-few": {**ASYNCHRONOUS, "max-uploads": 1},
    "asynchronous-share": {
        **ASYNCHRONOUS, "max-uploads": 3, "participation": "fraction", "fraction": 0.5,
    },
    "late-replies": {"late-replies": "fold", "speeds": "equal"},
    "fraction": {"participation": "fraction", "fraction": 0.5},
    "balanced": {"participation": "balanced", "fraction": 0.5},
    "probability": {"participation": "probability", "probability": "0.6"},
    "schedule": {"participation": "schedule", "schedule": "0,1;2,3;0"},
    "secure-sum": {"secure-sum": True},
    "noise-sharing": {"secure-sum": True, "noise-sharing": True, "num-agents": 7},
    "dropouts": {"secure-sum": True, "noise-sharing": True, "num-agents": 7, "dropouts": 1},
    "geometric": {"budget-schedule": "geometric", "budget-ratio": 0.9},
    "geometric-fraction": {
        "budget-schedule": "geometric", "budget-ratio": 0.8, "participation": "balanced",
        "fraction": 0.5,
    },
    "poisson": {"batch": "poisson", "batch-size": 10, "relation": "add-remove"},
    "sample": {"batch": "sample", "batch-size": 10},
    "cyclic": CYCLIC,
    "cyclic-fraction": {**CYCLIC, "participation": "fraction", "fraction": 0.5},
    "cyclic-old-uploads": {**CYCLIC, **ASYNCHRONOUS, "max-uploads": 4},
    "laplace": {"mechanism": "laplace"},
    "add-remove": {"relation": "add-remove", "divisor": "agent"},
}  # fmt: skip
PRIVATE = [one.name for one in BUILT_IN if one.load_agent().noise_key]
TAKE: dict[str, set[str]] = {
    **{option: {"fed-plt", "dp-iadmm", "fed-pdm", "scaffold"} for option in OLD_UPLOADS},
    "secure-sum": {"fed-plt", "dp-iadmm", "fed-pdm", "dp-fedsgd", "dp-fedavg"},
    **{option: {"dp-fedsgd", "dp-fedavg"} for option in ("noise-sharing", "dropouts")},
    **{
        option: {"fed-plt", "dp-iadmm", "fed-pdm", "dp-fedsgd", "dp-fedavg"}
        for option in ("geometric", "geometric-fraction")
    },
    "poisson": {"dp-fedsgd", "fed-dyn", "scaffold"},
    **{option: {"dp-fedsgd", "fed-dyn", "scaffold"} for option in ("cyclic", "cyclic-fraction")},
    "cyclic-old-uploads": {"scaffold"},
    "sample": {"dp-fedsgd", "dp-fedavg", "fed-dyn", "scaffold", "fed-pdm"},
    "laplace": {"dp-iadmm"},
}
"""The algorithms that take an option, where not all do."""


def releases(account: Any) -> dict[str, dict[str, int]]:
    """Return by agent the releases of an account, each with its number of times."""
    return {
        name: {
            json.dumps({**one, "times": 0}, sort_keys=True): one["times"]
            for one in entry["releases"]
        }
        for name, entry in account["agents"].items()
    }


def run_of(asked: dict[str, Any], folder: Path) -> Finished:
    colluders = 1 if "noise-sharing" in asked else None
    settings = {**asked, "output-dir": str(folder)}
    return run_inline(settings, "run", engine="inline", colluders=colluders)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("algorithm", PRIVATE)
def test_the_run_spends_what_is_planned_which_is_the_target(
    tmp_path: Path, algorithm: str, option: str
) -> None:
    asked = {"algorithm": algorithm, **BASE, **OWN.get(algorithm, {}), **OPTIONS[option]}
    if option in OLD_UPLOADS:
        asked |= OF_OLD_UPLOADS.get(algorithm, {})
    public = {"colluders": 1} if "noise-sharing" in asked else {}
    if algorithm not in TAKE.get(option, PRIVATE):
        with pytest.raises(ConfigError):
            plan_account(read_config(asked), public)
        with pytest.raises(ConfigError):
            run_of(asked, tmp_path)
        return
    planned = plan_account(read_config(asked), public)
    spent = planned.account["accounts"][0]["epsilon"]
    assert 0.999 * TARGET <= spent <= TARGET, planned.account["reason"]
    run = run_of(asked, tmp_path)
    account = json.loads((run.folder / "privacy.json").read_text())
    charged, expected = releases(account), releases(planned.account)
    assert charged.keys() == expected.keys()
    if reserve := asked.get("dropouts", 0):  # for attempts that are repeated when agents are gone
        for name, entries in expected.items():
            assert sum(charged[name].values()) == sum(entries.values()) - reserve
    else:
        assert charged == expected


@pytest.mark.parametrize("algorithm", OF_OLD_UPLOADS)
def test_the_plan_refuses_what_the_run_refuses_of_older_models(
    tmp_path: Path, algorithm: str
) -> None:
    """Each without the setting that it needs to fold uploads of older models."""
    asked = {"algorithm": algorithm, **BASE, **OWN.get(algorithm, {}), **OPTIONS["asynchronous"]}
    with pytest.raises(ConfigError, match="asynchronous = true") as planned:
        plan_account(read_config(asked), {})
    with pytest.raises(ConfigError) as run:
        run_of(asked, tmp_path)
    assert str(run.value) == str(planned.value)
