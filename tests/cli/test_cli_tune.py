"""``privet tune``: flags that make no sense are named, and what it prints is JSON."""

from __future__ import annotations

import json
import math
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from privet.cli.search_result import SearchResult
from privet.strategies import FedPLT
from support.cli import privet

MODULI = ("strong-convexity=0.5", "smoothness=2")
RUNS = ("led", "num-agents=2", "--budget=1")


def test_settings_are_whole_however_narrow_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys of any length: rows that differ look different, and a usual key has its line."""
    monkeypatch.setenv("COLUMNS", "80")
    names = ("reached", "iterations", "rounds", "gradients", "messages", "cost")
    rows = [
        ({"dual-step-size": step, "gradient-tracking-step-size": step}, dict.fromkeys(names, 12345))
        for step in (0.1234, 0.5678)
    ]
    SearchResult("2 settings", None, rows).show(2, json_lines=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith("dual")] == [
        "dual-step-size 0.1234",
        "dual-step-size 0.5678",
    ]
    written = "".join(line[:23].strip() for line in lines if "12345" not in line)
    assert written.count("gradient-tracking-step-size 0.1234") == 1
    assert written.count("gradient-tracking-step-size 0.5678") == 1
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("command", [("fed-plt",), RUNS])
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["smoothness=-1", "strong-convexity=0.5"], "smoothness = -1.0: must be auto or > 0"),
        (["smoothness=nan", "strong-convexity=0.5"], "smoothness = nan: must be"),
        (["smoothness=inf", "strong-convexity=0.5"], "strong-convexity = 0.5: must be finite"),
        (["smoothness=0.5", "strong-convexity=2"], "smoothness = 0.5: must be >= strong"),
        (["strong-convexity=2"], "strong-convexity = 2: give smoothness as well"),
        (["--gradient-cost=-1"], "--gradient-cost -1.0: must be a finite number >= 0"),
        (["--gradient-cost=nan"], "--gradient-cost nan: must be a finite number >= 0"),
        (["--communication-cost=inf"], "--communication-cost inf: must be a finite number >= 0"),
        (["--gradient-cost=0", "--communication-cost=0"], "--communication-cost: at least one"),
    ],
)
def test_a_flag_without_sense_is_one_line(
    command: tuple[str, ...], flags: list[str], said: str
) -> None:
    code, _, err = privet("tune", *command, *flags)
    assert code == 2
    (line,) = err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*RUNS, "--reduction=nan"), "--reduction belongs to a theory; runs use the key tolerance"),
        (("led", "--theory"), "--theory: led has none; leave it out to search by runs"),
        (("fed-plt", "--theory", "--budget=3"), "--budget counts runs: leave --theory out"),
        (("fed-plt", "--reduction=0", *MODULI), "--reduction 0.0: must be > 0 and <= 1"),
        (("fed-plt", "smoothness=2"), "strong convexity is 0: the theory needs it above 0"),
        (("fed-plt", *MODULI, "local-solver=sgd"), "the theory covers gd and agd"),
        (("fed-plt", *MODULI, "participation=schedule", "schedule=0;1"), "one probability for all"),
        (("led", "--app", "nowhere"), "'nowhere': expected MODULE:FUNCTION"),
        (("led", "--app", "nowhere:f"), "'nowhere:f': No module named 'nowhere'"),
        (("led", "--app", "json:nothing"), "'json:nothing': json has no function nothing"),
        (("led", "--app", "json:dumps", "num-agents=0"), "num-agents = auto: give the number"),
        (("fed-pdm", "h=l1", "h-weight=0.1"), "h = 'l1': a race measures the gradient alone"),
        (("led", "h=l1", "h-weight=0.1"), "h = l1: led does not use it"),
        (("led", "step-size=0.1", "dual-step-size=1"), "tune 'led': nothing is left to search"),
    ],
)
def test_what_does_not_go_together_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    code, _, err = privet("tune", *arguments)
    assert code == 2
    (line,) = err.splitlines()
    assert said in line


def rows(*arguments: str) -> list[Any]:
    code, out, err = privet("tune", *arguments, "--json")
    assert not code, err
    return [strict(line) for line in out.splitlines()]


def test_the_theory_keeps_to_what_is_given() -> None:
    free = rows("fed-plt", *MODULI, "--top=400")
    assert len({row["rho"] for row in free}) > 5
    some = rows("fed-plt", *MODULI, "rho=1.5", "step-size=0.3", "--top=400")
    assert {(row["rho"], row["step-size"]) for row in some} == {(1.5, 0.3)}
    assert sorted(row["local-epochs"] for row in some) == list(range(1, 41))
    (one,) = rows("fed-plt", *MODULI, "rho=1.5", "local-epochs=4", "local-solver=agd")
    assert (one["local-epochs"], one["local-solver"]) == (4, "agd")
    half = rows("fed-plt", *MODULI, "participation=fraction", "fraction=0.5", "--top=1")
    assert half[0]["rounds"] > free[0]["rounds"]


def test_the_run_with_the_given_keys_alone_is_one_of_the_settings() -> None:
    (row,) = rows("fed-plt", "--runs", "num-agents=3", "--budget=1")
    assert row["settings"] == "as given"
    assert row["reached"]
    code, out, _ = privet("tune", "fed-plt", "--runs", "num-agents=3", "--budget=1")
    assert code == 0
    assert out.splitlines()[-1] == "privet run algorithm=fed-plt num-agents=3"


def test_a_problem_of_ones_own_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of N numbers, whose f_i have the modulus 2: by runs and by theory."""
    (tmp_path / "own_means.py").write_text(
        "import numpy as np\n"
        "from privet.problems import RidgeRegression\n"
        "def mean(context):\n"
        "    number = float(context.node_config['partition-id'])\n"
        "    assert context.run_config['num-agents'] == 3\n"
        "    return RidgeRegression(np.eye(1), np.array([number]))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    here = ("--app", "own_means:mean", "num-agents=3")
    best = rows("led", *here, "--budget=8")[0]
    assert best["reached"]
    out = privet("tune", "fed-plt", *here).out
    assert "strong convexity 2, smoothness 2" in out
    strategy = eval(out.splitlines()[-1], {"FedPLT": FedPLT})
    assert strategy.half.settings()["step-size"] > 0


@pytest.mark.parametrize("how", [("--budget=4",), ()])
def test_the_last_line_runs_the_best(how: tuple[str, ...], tmp_path: Path) -> None:
    given = ("num-agents=4", "tolerance=1e-2", "local-solver=gd", f"output-dir={tmp_path}")
    best = rows("fed-plt", *given, *how)[0]
    command = shlex.split(privet("tune", "fed-plt", *given, *how).out.splitlines()[-1])
    assert command[:3] == ["privet", "run", "algorithm=fed-plt"]
    code, out, _ = privet(*command[1:], "--json")
    assert code == 0
    summary = json.loads(out)
    assert {key: summary["config"][key] for key in ("rho", "step-size")} == {
        key: best[key] for key in ("rho", "step-size")
    }
    assert summary["stopped"] == "tolerance"
    if how:
        assert summary["rounds"] == best["rounds"]


def test_nothing_is_recommended_where_nothing_arrives() -> None:
    assert "privet run" not in privet("tune", *RUNS, "num-server-rounds=1").out


@pytest.mark.parametrize("free", ["--gradient-cost=0", "--communication-cost=0"])
def test_one_cost_may_be_nothing(free: str) -> None:
    found = rows("fed-plt", *MODULI, "--max-local-epochs=3", free)
    assert all(0 < row["cost"] < math.inf for row in found)


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("figures", "written"),
    [
        (
            {"reached": False, "iterations": 3, "gradients": 12, "cost": math.inf},
            {"reached": False, "iterations": 3, "gradients": 12, "cost": "inf"},
        ),
        (
            {"spectral-radius": math.nan, "norm": math.inf, "rounds": math.inf, "cost": math.nan},
            {"spectral-radius": None, "norm": "inf", "rounds": "inf", "cost": None},
        ),
    ],
)
def test_numbers_that_are_not_finite_are_valid_json(
    figures: dict[str, Any], written: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = SearchResult("", None, [({"rho": 1.0}, figures)])
    found.show(8, json_lines=True)
    assert strict(capsys.readouterr().out) == {"rho": 1.0, **written}
    found.show(8, json_lines=False)
    assert ("no" in capsys.readouterr().out.split()) == ("reached" in figures)


def test_a_cost_beyond_all_numbers_is_valid_json() -> None:
    (row,) = rows(*RUNS, "--gradient-cost=1e308", "--communication-cost=1e308")
    assert row["gradients"] > 1
    assert row["cost"] == "inf"


def test_the_theory_says_that_a_run_without_its_settings_is_quicker() -> None:
    said = "solves its subproblems and learns rho and the curvature"
    code, out, _ = privet("tune", "fed-plt", *MODULI)
    assert code == 0
    assert said in out
    code, out, _ = privet("tune", "fed-plt", *MODULI, "local-solver=agd")
    assert code == 0
    assert said not in out
