"""``privet tune``: flags that make no sense are named, and what it prints is JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from privet.sim.cli.main import main
from privet.sim.cli.tune import _row
from privet.sim.cli.tune_by_runs import _figures, _print
from privet.sim.race import Outcome
from privet.sim.tuning import Budget, Trial
from privet.strategies.fed_plt_theory import Prediction, Setting

MODULI = ("--strong-convexity=0.5", "--smoothness=2")
RUNS = ("led", "num-agents=2", "--budget=1")


@pytest.mark.parametrize("command", [("fed-plt",), RUNS])
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--smoothness=-1", "--strong-convexity=0.5"], "--smoothness -1.0: must be a finite"),
        (["--smoothness=nan", "--strong-convexity=0.5"], "--smoothness nan: must be a finite"),
        (["--smoothness=inf", "--strong-convexity=0.5"], "--smoothness inf: must be a finite"),
        (["--smoothness=0", "--strong-convexity=0.5"], "--smoothness 0.0: must be a finite"),
        (["--smoothness=2", "--strong-convexity=0"], "--strong-convexity 0.0: must be a finite"),
        (["--smoothness=0.5", "--strong-convexity=2"], "--smoothness 0.5: must be >= --strong"),
        (["--smoothness=2"], "--strong-convexity is needed: give both"),
        (["--strong-convexity=2"], "--smoothness is needed: give both"),
        (["--gradient-cost=-1"], "--gradient-cost -1.0: must be a finite number >= 0"),
        (["--gradient-cost=nan"], "--gradient-cost nan: must be a finite number >= 0"),
        (["--communication-cost=inf"], "--communication-cost inf: must be a finite number >= 0"),
        (["--gradient-cost=0", "--communication-cost=0"], "--communication-cost: at least one"),
    ],
)
def test_a_flag_without_sense_is_one_line(
    command: tuple[str, ...], flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["tune", *command, *flags])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (MODULI, "--smoothness is of fed-plt's theory; runs go by the data"),
        (["--solver=agd"], "--solver is of fed-plt's theory; runs go by the key local-solver"),
        (["--reduction=nan"], "--reduction is of fed-plt's theory"),
        (["--participation=0.5"], "--participation is of fed-plt's theory"),
    ],
)
def test_runs_do_not_ignore_flags_of_the_theory(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["tune", *RUNS, *flags])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("free", ["--gradient-cost=0", "--communication-cost=0"])
def test_one_cost_may_be_nothing(free: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["tune", "fed-plt", *MODULI, "--json", "--max-local-epochs=3", free])
    assert not stop.value.code
    rows = [strict(line) for line in capsys.readouterr().out.splitlines()]
    assert all(0 < row["cost"] < math.inf for row in rows)


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_run_that_diverged_is_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    lost = Outcome(False, 3, 3, 12, 6, math.inf, (math.inf, math.nan))
    trial = Trial({"rho": 1.0}, (lost,), math.inf)
    budget = Budget(1, 1e308, 1e308)
    figures = strict(json.dumps(_figures(trial, budget)))
    assert figures["cost"] is None
    assert figures["gradients"] == 12
    _print([trial], budget)
    assert "does not arrive" in capsys.readouterr().out


def test_a_setting_that_does_not_contract_is_valid_json() -> None:
    one = Prediction(Setting(1.0, 1.0, 1), math.nan, math.inf, math.inf, math.nan)
    row = strict(json.dumps(_row(one)))
    assert (row["spectral-radius"], row["norm"]) == (None, None)
    assert (row["rounds"], row["cost"]) == ("inf", "inf")
