"""An algorithm of somebody else's whose uploads are clipped and noised as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.client_apps.adapters import CallableProblem
from privet.core import algorithm
from privet.kernel import Facts, gaussian_epsilon
from privet.server_apps import read_config
from privet.sim.inline import grid_of
from privet.testing import Check, CheckFailed, checks, logistic_federation
from support.cli import privet
from support.federations import zeros
from support.outside import installed
from support.paths import ROOT

VARIANTS = {
    "clipped": {"clip": 0.05},
    "mini-batches": {"batch": "sample", "batch-size": 4, "max-local-steps": 3},
}
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module", autouse=True)
def dp_fedavg() -> Iterator[None]:
    with installed(ROOT / "tests" / "foreign" / "dp_fedavg"):
        yield


def every(**options: Any) -> tuple[Check, ...]:
    return checks("dp-fedavg", **options)


@pytest.mark.slow
def test_it_keeps_every_promise() -> None:
    played = set()
    for check in every(variants=VARIANTS):
        check()
        played.add(check.name)
    assert played >= {
        "a_record_moves_no_more_than_is_charged",
        "an_agent_moves_no_more_than_is_charged",
        "charge_is_what_is_drawn",
        "engines_agree_to_the_bit",
        "uploads_tell_only_what_was_noised",
    }


def model(problems: Any, rounds: int, **keys: Any) -> Any:
    own = {key.replace("_", "-"): value for key, value in keys.items()}
    config = read_config({"algorithm": "dp-fedavg", "num-agents": len(problems), **own})
    strategy = algorithm("dp-fedavg").load_strategy().from_config(config)
    grid = grid_of("dp-fedavg", problems, engine="inline")
    return strategy.start(grid, zeros(problems[0].dim), num_rounds=rounds)


def test_it_is_the_papers_recursion() -> None:
    """Written with loops; every clip bites in the first rounds and not in the last."""
    problems, clip, gamma, steps, rounds = logistic_federation(), 0.2, 0.4, 3, 40
    x, bitten = np.zeros(4), 0
    for _ in range(rounds):
        moves = []
        for problem in problems:
            w = x.copy()
            for _ in range(steps):
                w -= gamma * problem.gradient(w)
            length = np.linalg.norm(w - x)
            bitten += length > clip
            moves.append((w - x) * min(1.0, clip / length))
        x = x + np.mean(moves, axis=0)
    found = model(problems, rounds, clip=clip, gamma=gamma, max_local_steps=steps).arrays["x"]
    assert 0 < bitten < rounds * len(problems)
    assert found.numpy() == pytest.approx(x, rel=1e-5)  # a clip is 1e-6 shorter than it says


def test_a_round_costs_one_gaussian_of_twice_the_clip() -> None:
    half = algorithm("dp-fedavg").load_agent()(clip=0.5, noise_scale=2.0)
    release = half.release(Facts(40, 40.0, 7), 1)
    assert (release.sensitivity, release.scale, release.draws) == (1.0, 2.0, 1)


def test_problems_that_cannot_clip_take_part() -> None:
    def problem(target: float) -> CallableProblem:
        return CallableProblem(
            lambda x: float((x - target) @ (x - target)) / 2, lambda x: x - target, 2, 5
        )

    keys = {"clip": 1.0, "noise_scale": 0.1, "gamma": 0.5}
    result = model([problem(target) for target in (1.0, 2.0)], 4, **keys)
    assert not any(done.failures for done in result.history)
    epsilon = result.history[-1].epsilon
    ideal = gaussian_epsilon(2 * 2.0 / 0.1, 1e-5)  # mu = 2 C sqrt(rounds) / sigma
    assert ideal <= epsilon <= 1.001 * ideal


def test_it_is_planned_and_calibrated(tmp_path: Path) -> None:
    data = {"dataset": "synthetic", "examples-per-agent": 40, "num-agents": 3, "partition": "iid"}
    run = {**data, "algorithm": "dp-fedavg", "clip": 1.0, "target-epsilon": 2.0}
    words = [f"{key}={value}" for key, value in {**run, "num-server-rounds": 5}.items()]
    said = [
        privet(*call, *words, "--json")
        for call in (("account",), ("run", f"output-dir={tmp_path}"))
    ]
    assert not any(code for code, _, _ in said), said
    planned, done = (json.loads(out.splitlines()[-1]) for _, out, _ in said)
    account = json.loads((Path(done["run-folder"]) / "privacy.json").read_text())
    assert 1.9 < planned["epsilon"] <= 2.0
    assert account["accounts"][0]["epsilon"] == pytest.approx(planned["epsilon"], rel=1e-6)


# ------------------------------------------------------------------ wrong forms of it


def half_of_what_it_costs_is_charged(patch: Patch) -> None:
    update = import_module("dp_fedavg.agent").Update
    patch.setattr(update, "sensitivity", property(lambda self: self.clip))


def the_upload_has_a_trace_of_the_gradient(patch: Patch) -> None:
    half = algorithm("dp-fedavg").load_agent()
    original = half.local_update

    def local_update(self: Any, state: Any, broadcast: Any, records: Any, streams: Any) -> Any:
        local = original(self, state, broadcast, records, streams)
        trace = 1e-9 * records._problem.gradient(broadcast["x"])
        return local._replace(upload={"u": local.upload["u"] + trace})

    patch.setattr(half, "local_update", local_update)


WRONG: dict[Callable[[Patch], None], str] = {
    half_of_what_it_costs_is_charged: "an_agent_moves_no_more_than_is_charged",
    the_upload_has_a_trace_of_the_gradient: "uploads_tell_only_what_was_noised",
}


@pytest.mark.parametrize("breaks", WRONG, ids=lambda breaks: breaks.__name__)
def test_a_wrong_one_is_caught(breaks: Callable[[Patch], None], monkeypatch: Patch) -> None:
    breaks(monkeypatch)
    (check,) = (one for one in every(private={"clip": 0.01}) if one.name == WRONG[breaks])
    with pytest.raises(CheckFailed, match=f"dp-fedavg-{WRONG[breaks]}: "):
        check()
