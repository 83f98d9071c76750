"""The noise of a plan beside the most that records can say, and what is proposed in its place."""

from __future__ import annotations

import logging
import math
import re
from pathlib import Path
from typing import Any

import pytest

from privet.server_apps import planning
from privet.server_apps.config import read_config
from privet.server_apps.noise_plan import NoisePlan
from privet.server_apps.planning import plan_account
from privet.sim.inline import run_inline
from support.cli import privet

SGD = {"algorithm": "dp-fedsgd", "clip": 0.7, "num-agents": 9, "target-epsilon": 1.0}
PLT = {"local-solver": "noisy-gd", "clip": 1.0, "row-norm": 5.0, "target-epsilon": 0.5}
PUBLIC = {"num-examples": 50, "dim": 30}


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that returns the `NoisePlan` of some keys, and the noise."""
    seen: list[NoisePlan] = []
    advice = NoisePlan.advice

    def watched(self: NoisePlan, *arguments: Any) -> str:
        seen.append(self)
        return advice(self, *arguments)

    monkeypatch.setattr(NoisePlan, "advice", watched)

    def planned(public: dict[str, int] = PUBLIC, **keys: Any) -> tuple[NoisePlan, planning.Planned]:
        config = read_config({key.replace("_", "-"): value for key, value in keys.items()})
        account = plan_account(config, public)
        return seen[-1], account

    return planned


@pytest.mark.parametrize("rounds", [1, 40])
def test_a_step_of_private_gradients_by_hand(plan: Any, rounds: int) -> None:
    """A clipped mean gradient is within C of 0; the mean over agents has noise sigma / sqrt(N)."""
    found, account = plan(**SGD, num_server_rounds=rounds)
    sigma = account.noise["noise-scale"]
    by_hand = sigma * math.sqrt(PUBLIC["dim"]) / (math.sqrt(9) * 0.7)
    assert found.noise == pytest.approx(by_hand, rel=1e-3)
    assert (found.rounds, found.local) == (rounds, 1)


@pytest.mark.parametrize("relation", ["replace-one", "replace-agent", "add-remove"])
def test_a_whole_update_by_hand(plan: Any, relation: str) -> None:
    """It is within C of 0, however many records it is of."""
    keys = {**SGD, "algorithm": "dp-fedavg", "relation": relation}
    found, account = plan(**keys, num_server_rounds=40)
    sigma = account.noise["noise-scale"]
    by_hand = sigma * math.sqrt(PUBLIC["dim"]) / (math.sqrt(9) * 0.7)
    assert found.noise == pytest.approx(by_hand, rel=1e-3)
    assert found.noise > 1
    assert "raise target-epsilon, or have more agents" in account.advice


def test_a_total_epsilon_fixes_the_sum_whatever_shares_it(plan: Any) -> None:
    few, _ = plan(**SGD, num_server_rounds=2)
    many, _ = plan(**SGD, num_server_rounds=200)
    local, _ = plan(**{**PLT, "loss": "binary-logistic", "num-agents": 9, "target-epsilon": 1.0})
    assert many.squared == pytest.approx(few.squared, rel=1e-2)
    assert local.squared == pytest.approx(few.squared, rel=1e-2)
    assert many.noise == pytest.approx(10 * few.noise, rel=1e-2)


def test_shared_noise_and_whole_agents(plan: Any) -> None:
    own, _ = plan(**SGD)
    shared, _ = plan({**PUBLIC, "colluders": 0}, **SGD, secure_sum=True, noise_sharing=True)
    assert math.sqrt(shared.squared / own.squared) == pytest.approx(own.sharing, rel=1e-2)
    whole, _ = plan(**SGD, relation="replace-agent")
    assert math.sqrt(own.squared / whole.squared) == pytest.approx(50, rel=1e-2)


@pytest.mark.parametrize(("examples", "epsilon"), [(20, 1.0), (45, 4.0), (45, 0.5), (200, 0.1)])
def test_what_is_proposed_has_the_noise_that_is_said(
    plan: Any, examples: int, epsilon: float
) -> None:
    keys: dict[str, Any] = {**PLT, "loss": "binary-logistic", "target-epsilon": epsilon}
    public = {"num-examples": examples, "dim": 31}
    found, account = plan(public, **keys)
    assert found.noise > 1
    assert f"{found.noise:.2g} times the longest update" in account.advice
    changes = dict(re.findall(r"([a-z-]+)=(\d+)", account.advice))
    assert changes
    then, better = plan(public, **{**keys, **{key: int(value) for key, value in changes.items()}})
    assert account.advice.endswith(f"it is {then.noise:.2g} times")
    assert then.noise <= 1
    assert better.advice == ""


def test_where_no_number_of_rounds_helps_other_ways_are_named(plan: Any) -> None:
    found, account = plan({"num-examples": 5, "dim": 7840}, **SGD)
    assert found.noise_of(1) > 1
    assert "raise target-epsilon, or have fewer agents with more records each" in account.advice
    assert "num-server-rounds" not in account.advice
    shared = float(re.findall(r"then ([\d.]+) times", account.advice)[0])
    assert shared == pytest.approx(found.noise_of(1) / 3, rel=0.05)


def test_a_poor_plan_is_named_before_it_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {**SGD, "num-agents": 2, "target-epsilon": 0.3, "output-dir": str(tmp_path)}
    keys |= {"num-server-rounds": 10, "partition": "iid"}
    with caplog.at_level(logging.INFO):
        summary = run_inline(keys, "run").summary
    said = next(place for place, line in enumerate(caplog.messages) if "longest update" in line)
    first = next(place for place, line in enumerate(caplog.messages) if line.startswith("round 1"))
    assert said < first
    assert summary["plan"] in caplog.messages[said]
    assert summary["plan"] in (tmp_path / "run" / "report.html").read_text()
    better = {key: int(v) for key, v in re.findall(r"([a-z-]+)=(\d+)", summary["plan"])}
    assert "plan" not in run_inline({**keys, **better}, "better").summary


def test_the_account_says_it_too() -> None:
    keys = [f"{key}={value}" for key, value in PLT.items()]
    code, out, _ = privet("account", *keys, "num-examples=45", "dim=31", "loss=binary-logistic")
    assert code == 0
    assert "40 rounds of 10 noised steps share epsilon 0.5: the noise of a step is " in out
