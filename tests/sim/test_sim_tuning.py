"""The race to a tolerance and the one tuner: what is counted, what is found, what is the same."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privet.problems import L2, Moduli, RidgeRegression
from privet.sim.cli.main import main
from privet.sim.experiments.fed_plt_rivals import (
    CASES,
    Row,
    measure,
    read_rows,
    search,
    write_rows,
)
from privet.sim.experiments.fed_plt_rivals_page import page
from privet.sim.race import Task, race
from privet.sim.tuning import SPACES, Axis, Budget, axes, fixed, hypercube, moduli_of, tune
from privet.strategies import Fraction
from privet.wire import ConfigError, RunError, algorithm, resolve
from support.federations import logistic_agents
from support.paths import ROOT

PROBLEMS = logistic_agents(5)
TASK = Task(PROBLEMS, np.ones(4), 1e-6)


def quadratic(curvature: float, count: int = 3) -> list[RidgeRegression]:
    """Return agents with f_i(x) = (curvature / 2) ||x||^2 in one dimension."""
    data, target = np.full((1, 1), math.sqrt(0.5)), np.zeros(1)  # the loss is (a x - b)^2
    return [RidgeRegression(data, target, regularizer=L2(curvature - 1.0)) for _ in range(count)]


def test_quadratics_take_the_iterations_one_computes_by_hand() -> None:
    """One step of FedLin multiplies x by 1 - 0.5 * 1.2 = 0.4, and the measure by 0.16."""
    problems = quadratic(1.2)
    assert problems[0].gradient(np.array([2.0])) == pytest.approx([2.4])
    first = (3 * 1.2 * 5.0) ** 2
    for iterations in (1, 2, 7):
        tolerance = first * 0.16**iterations * 1.01
        task = Task(problems, np.array([5.0]), tolerance)
        one = race("fed-lin", {"step-size": 0.5, "local-epochs": 1}, task)
        assert one.reached
        assert (one.iterations, one.rounds) == (iterations, 2 * iterations)
        assert one.gradients == 3 * iterations  # the gradient it sends is its only one
        assert one.messages == 3 * 2 * iterations
        assert one.measure == pytest.approx(first * 0.16**iterations)
        assert one.time(1.0, 10.0) == 3 * iterations * 21
        # Where the measure crosses the tolerance on its straight line in the logarithm.
        exact = math.log(tolerance / first) / math.log(0.16)
        assert one.smooth[0] == pytest.approx(3 * exact, rel=1e-9)
        assert one.score(tolerance, 1.0, 10.0) == pytest.approx(63 * exact, rel=1e-9)


def test_a_run_that_does_not_arrive_scores_worse_the_farther_it_stopped() -> None:
    short, shorter = (race("led", {"step-size": 0.1}, TASK, most=most) for most in (3, 2))
    assert not short.reached
    assert short.iterations == 3
    assert short.measure < shorter.measure
    far, near = (
        race("led", {"step-size": step, "local-epochs": 1}, TASK, most=4) for step in (0.01, 0.2)
    )
    assert near.score(1e-6, 1, 1) < far.score(1e-6, 1, 1) < math.inf


def test_a_run_that_diverges_is_given_up() -> None:
    one = race("led", {"step-size": 40.0, "local-epochs": 5}, TASK, most=400)
    assert not one.reached
    assert one.rounds < 40
    assert one.measure == one.score(1e-6, 1, 1) == math.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_run_that_overflows_in_its_first_round_is_one_that_diverges(dtype: Any) -> None:
    problems = [RidgeRegression(np.full((1, 1), 1e3, dtype), np.zeros(1, dtype)) for _ in range(2)]
    task = Task(problems, np.ones(1, dtype), 1e-6)
    settings = {"rho": 1e-3, "step-size": 1e8, "local-epochs": 40}
    one = race("fed-plt", settings, task)
    assert (one.reached, one.rounds, one.measure) == (False, 0, math.inf)
    trials = tune("fed-plt", [task], [Axis("step-size", 1e-12, 1e8)], settings, Budget(8))
    assert len(trials) == 8
    assert trials[0].score < trials[-1].score == math.inf


def test_a_fault_of_the_agents_is_not_taken_for_divergence() -> None:
    class Broken(RidgeRegression):
        def gradient(self, x: Any, rows: Any = None) -> Any:
            raise KeyError("age")

    broken = [Broken(np.ones((1, 1)), np.zeros(1)) for _ in range(2)]

    class Calm(Task):
        def measure(self, models: Any) -> float:
            return 1.0

    with pytest.raises(RunError, match="round 1: 0 of 2 agents replied"):
        race("fed-plt", {"local-epochs": 1}, Calm(broken, np.ones(1)))


def test_a_run_that_costs_too_much_is_stopped_where_it_has_not_arrived() -> None:
    settings = {"step-size": 0.1}
    whole = race("led", settings, TASK)
    assert whole.reached
    cut = race("led", settings, TASK, too_dear=lambda gradients, messages: messages >= 3 * 5)
    assert (cut.reached, cut.rounds) == (False, 3)
    enough = race(
        "led", settings, TASK, too_dear=lambda gradients, messages: messages >= whole.messages
    )
    assert enough == whole


def test_settings_that_arrive_come_before_those_that_do_not() -> None:
    """A setting whose iterations are cheap may stop far from the optimum for little."""
    features = np.diag([1.0, 0.03])
    problems = [RidgeRegression(features, np.zeros(2)) for _ in range(3)]
    task = Task(problems, np.array([1.0, 30.0]), 1e-6)
    budget = Budget(12, 1.0, 0.01)
    searched = [Axis("local-epochs", 1, 60, whole=True)]
    trials = tune("fed-plt", [task], searched, {"rho": 20.0, "step-size": 0.4}, budget)
    order = [trial.reached for trial in trials]
    assert order == sorted(order, reverse=True)
    assert order[0]
    assert not order[-1]
    least = min(trial.score for trial in trials if not trial.reached)
    assert least < trials[0].score  # what the order is about


def test_active_agents_alone_cost() -> None:
    half = Task(PROBLEMS, np.ones(4), 1e-6, Fraction(0.6), seed=3)
    one = race("fed-plt", {"rho": 1.0, "local-epochs": 4}, half)
    assert one.reached
    assert one.messages == 3 * one.rounds
    assert one.gradients == 4 * one.messages


@pytest.mark.parametrize("name", sorted(SPACES))
def test_the_budget_is_the_same_for_all_and_the_search_reproducible(name: str) -> None:
    moduli = moduli_of([TASK])
    searched, given = axes(name, moduli, 3), fixed(name, moduli, 3)
    assert 1 <= len(searched) <= 2
    for axis in searched:  # every parameter is the algorithm's own
        assert axis.key.replace("-", "_") in dir(algorithm(name).load_agent()) or (
            axis.key in algorithm(name).load_strategy().keys
        )
    found = [tune(name, [TASK], searched, given, Budget(9)) for _ in range(2)]
    assert [len(trials) for trials in found] == [9, 9]
    assert found[0] == found[1]
    ranks = [(not trial.reached, trial.score) for trial in found[0]]
    assert ranks == sorted(ranks)
    assert len({json.dumps(trial.settings) for trial in found[0]}) == 9
    for trial in found[0]:
        resolve(trial.settings, name)
        assert trial.settings["local-epochs"] == 3
        for axis in searched:
            unit = 1.0 if axis.unit is None else axis.unit(trial.settings)
            assert axis.low * unit <= trial.settings[axis.key] <= axis.high * unit


def test_the_search_finds_the_best_step_of_a_quadratic() -> None:
    """Gradient descent on it is over in one step of 1/1.2.

    Of 30 settings the last 6 lie in an eighth of the three decades, one in each sixth of that: the
    nearest is within a factor 10^(3/48) of any point of that box.
    """
    task = Task(quadratic(1.2), np.array([5.0]), 1e-4)
    searched = [Axis("step-size", 0.01, 10.0)]
    trials = tune("fed-lin", [task], searched, {"local-epochs": 1}, Budget(30))
    assert trials[0].settings["step-size"] == pytest.approx(1 / 1.2, rel=0.155)
    assert trials[0].outcomes[0].iterations <= 4


def test_the_number_of_local_steps_follows_the_price_of_communication() -> None:
    moduli = moduli_of([TASK])
    found = []
    for communication in (0.01, 1000.0):
        budget = Budget(24, 1.0, communication)
        searched = axes("fed-plt", moduli, 5, most_epochs=12)
        best = tune("fed-plt", [TASK], searched, fixed("fed-plt", moduli, 5), budget)[0]
        assert best.reached
        assert isinstance(best.settings["local-epochs"], int)
        found.append((best.settings["local-epochs"], best.outcomes[0].iterations))
    (few, many_rounds), (many, few_rounds) = found
    assert few < many
    assert few_rounds < many_rounds


def test_latin_hypercube_has_one_point_in_every_slice() -> None:
    points: NDArray[Any] = hypercube(np.random.default_rng(0), 7, 3)
    for column in points.T:
        assert sorted(np.floor(column * 7)) == list(range(7))


def test_axes_are_in_units_of_the_problem() -> None:
    convex, nonconvex = Moduli(0.25, 4.0), Moduli(-1.0, 4.0)
    rho, step = axes("fed-plt", convex, 5)
    assert (rho.at(0.0, {}), rho.at(1.0, {})) == pytest.approx((0.05, 20.0))  # sqrt(0.25 * 4) = 1
    ends = [step.at(share, {"rho": 0.5}) for share in (0.0, 1.0)]
    assert ends == pytest.approx([0.25 * 2 / 8.25, 1.5 * 2 / 8.25])  # L + lambda + 2/rho = 8.25
    (slow, _) = axes("led", convex, 5)
    assert (slow.low, slow.high, slow.unit) == (0.05 / 4, 3.0 / 4, None)
    assert axes("fed-plt", nonconvex, 5)[0].low == pytest.approx(0.05 / 4)
    assert [axis.key for axis in axes("five-gcs", convex, 5, solver="agd")] == [
        "rho",
        "server-step-size",
    ]
    assert fixed("five-gcs", convex, 5)["common-convexity"] == 0.25
    assert fixed("five-gcs", nonconvex, 5)["common-convexity"] == 0.0
    with pytest.raises(ConfigError, match="tune 'fed-dyn': choose one of fed-lin"):
        axes("fed-dyn", convex, 5)


def test_a_row_of_the_page_is_measured_on_other_draws(tmp_path: Any) -> None:
    tuned = search("table-2-convex", "fed-lin", settings=3, tuning_draws=1)
    row = measure("table-2-convex", "fed-lin", tuned, draws=2)
    assert (row.draws, row.reached, row.tried, row.exchanges) == (2, 2, 3, 2)
    assert row.gradients == 5
    assert row.times["10"] == pytest.approx(100 * row.iterations * (5 + 2 * 10))
    write_rows(tmp_path / "rows.json", [row])
    assert read_rows(tmp_path / "rows.json") == [row]
    text = page([row])
    assert f"| FedLin | {row.iterations:.1f} ± {row.deviation:.1f} | 6 | 2 | 5.0 |" in text


def test_the_page_shows_who_did_not_arrive(tmp_path: Path) -> None:
    nowhere = Row(
        "table-5",
        "led",
        {"step-size": 0.1, "local-epochs": 5},
        math.nan,
        math.nan,
        0,
        2,
        1,
        5.0,
        {f"{cost:g}": math.nan for cost in CASES["table-5"].costs},
        9,
        0,
        2,
        34,
    )
    assert "| LED | does not arrive | 34 |" in page([nowhere])
    write_rows(tmp_path / "rows.json", [nowhere])
    assert "NaN" not in (tmp_path / "rows.json").read_text()
    assert page(read_rows(tmp_path / "rows.json")) == page([nowhere])


def test_printed_iterations_are_those_of_the_papers_times() -> None:
    """Time = N (gradients t_G + exchanges t_C) iterations, with the gradients the paper counts."""
    thousands = {
        "table-2-convex": {
            "fed-pd": 70.5,
            "fed-lin": 15.6,
            "tamuna": 25.5,
            "led": 51,
            "five-gcs": 57,
            "fed-plt": 13.5,
        },
        "table-2-nonconvex": {
            "fed-pd": 223.5,
            "fed-lin": 31.2,
            "led": 438,
            "five-gcs": 39,
            "fed-plt": 21,
        },
        "table-4-partial": {"tamuna": 53.25, "five-gcs": 22.5, "fed-plt": 21.75},
        "table-4-agd": {"five-gcs": 57, "fed-plt": 15},
        "table-4-agd-partial": {"five-gcs": 23.25, "fed-plt": 28.5},
        "table-5": {
            "fed-pd": 2040,
            "fed-lin": 364,
            "tamuna": 720,
            "led": 1020,
            "five-gcs": 900,
            "fed-plt": 300,
        },
    }
    for name, times in thousands.items():
        case = CASES[name]
        assert set(case.printed) == set(times)
        for one, time in times.items():
            gradients, exchanges = (6, 2) if one == "fed-lin" else (5, 1)
            each = gradients * case.gradient_cost + exchanges * case.tuned_at
            active = 100 * case.fraction
            assert case.printed[one] * each * active == pytest.approx(1000 * time), (name, one)


def test_the_command_searches_by_runs(capsys: Any) -> None:
    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main(["tune", *arguments])
        return int(left.value.code or 0), capsys.readouterr().out

    here = ("num-agents=3", "local-epochs=4", "--budget", "6")
    code, out = call("led", *here, "--json", "--top", "6", "--communication-cost", "100")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == 6
    assert rows[0]["reached"]
    assert rows[0]["gradients"] == 4 * rows[0]["messages"] == 12 * rows[0]["rounds"]
    assert rows[0]["cost"] == rows[0]["gradients"] + 100 * rows[0]["messages"]
    costs = [row["cost"] for row in rows if row["reached"]]
    # Sorted where the measure crosses the tolerance, which whole rounds may tie or turn.
    assert costs[0] <= min(costs) + 3 * 104
    code, out = call("fed-plt", *here)
    assert code == 0
    assert "settings reach 1e-05" in out
    assert "rho" in out
    assert call("led", "h=l1", "h-weight=0.1")[0] == 2


def test_the_page_on_rivals_states_the_costs_of_the_code() -> None:
    text = (ROOT / "docs" / "rivals.md").read_text()
    section = text.split("## What they cost")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if " | N_e" in line]
    assert {line[0] for line in lines} == set(SPACES)
    for name, *numbers, gradients in lines:
        cost = algorithm(name).load_strategy().cost
        stated = (cost.agent, cost.coordinator, cost.shared, cost.exchanges, cost.up, cost.down)
        assert tuple(map(int, numbers)) == stated, name
        assert gradients == ("N_e + 1" if cost.extra_gradients else "N_e"), name
