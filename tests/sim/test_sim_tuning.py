"""The race to a tolerance and the one tuner: what is counted, what is found, what is the same."""

from __future__ import annotations

import json
import math
from operator import add
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privet.core import ConfigError, RunError, algorithm, algorithms
from privet.kernel import Moduli
from privet.problems import L2, BinaryLogistic, RidgeRegression
from privet.server_apps import read_config
from privet.server_apps.config import keys_of_algorithm
from privet.sim.race import RaceTask, race
from privet.sim.tuning import Axis, Budget, axes, fixed, hypercube, moduli_of, tune, tune_task
from support.cli import privet
from support.every_algorithm import EVERY_ALGORITHM
from support.federations import logistic_agents
from support.paths import ROOT

PROBLEMS = logistic_agents(5)
TASK = RaceTask(PROBLEMS, np.ones(4), 1e-6)
RIVALS = ("fed-lin", "fed-pd", "fed-plt", "fed-split", "five-gcs", "led", "tamuna")
"""Those that are compared on the page on rivals."""


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
        task = RaceTask(problems, np.array([5.0]), tolerance)
        one = race("fed-lin", {"step-size": 0.5, "local-epochs": 1}, task)
        assert one.reached
        assert (one.iterations, one.rounds) == (iterations, 2 * iterations)
        assert one.gradients == 3 * iterations  # the gradient it sends is its only one
        assert one.messages == 3 * 2 * iterations
        assert one.measure == pytest.approx(first * 0.16**iterations)
        assert Budget().cost(one.gradients, one.messages) == 3 * iterations * 21
        # Where the measure crosses the tolerance on its straight line in the logarithm.
        exact = math.log(tolerance / first) / math.log(0.16)
        assert one.smooth[0] == pytest.approx(3 * exact, rel=1e-9)
        assert one.score(tolerance, Budget().cost) == pytest.approx(63 * exact, rel=1e-9)


def test_a_run_that_does_not_arrive_scores_worse_the_farther_it_stopped() -> None:
    short, shorter = (race("led", {"step-size": 0.1}, TASK, most=most) for most in (3, 2))
    assert not short.reached
    assert short.iterations == 3
    assert short.measure < shorter.measure
    far, near = (
        race("led", {"step-size": step, "local-epochs": 1}, TASK, most=4) for step in (0.01, 0.2)
    )
    assert near.score(1e-6, add) < far.score(1e-6, add) < math.inf


def test_a_run_that_diverges_is_given_up() -> None:
    one = race("led", {"step-size": 40.0, "local-epochs": 5}, TASK, most=400)
    assert not one.reached
    assert one.rounds < 40
    assert one.measure == one.score(1e-6, add) == math.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_run_that_overflows_in_its_first_round_is_one_that_diverges(dtype: Any) -> None:
    problems = [RidgeRegression(np.full((1, 1), 1e3, dtype), np.zeros(1, dtype)) for _ in range(2)]
    task = RaceTask(problems, np.ones(1, dtype), 1e-6, {"num-server-rounds": 20})
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

    class Calm(RaceTask):
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
    features = np.diag([1.0, 0.1])
    problems = [RidgeRegression(features, np.zeros(2)) for _ in range(3)]
    task = RaceTask(problems, np.array([1.0, 30.0]), 1e-6, {"num-server-rounds": 60})
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
    config = {"participation": "fraction", "fraction": 0.6, "seed": 3}
    half = RaceTask(PROBLEMS, np.ones(4), 1e-6, config)
    one = race("fed-plt", {"rho": 1.0, "local-epochs": 4}, half)
    assert one.reached
    assert one.messages == 3 * one.rounds
    assert one.gradients == 4 * one.messages


@pytest.mark.parametrize("name", EVERY_ALGORITHM)
def test_the_budget_is_the_same_for_all_and_the_search_reproducible(name: str) -> None:
    moduli, kind = moduli_of(PROBLEMS), algorithm(name).load_strategy()
    searched, given = axes(name, moduli, 3), fixed(name, moduli, 3)
    assert 1 <= len(searched) <= 2
    for axis in searched:  # every parameter is the algorithm's own
        assert axis.key in keys_of_algorithm(name)
    task = RaceTask(PROBLEMS, np.ones(4), 1e-6, {"num-server-rounds": 15})
    found = [tune(name, [task], searched, given, Budget(7)) for _ in range(2)]
    assert [len(trials) for trials in found] == [7, 7]
    assert found[0] == found[1]
    ranks = [(not trial.reached, trial.score) for trial in found[0]]
    assert ranks == sorted(ranks)
    assert len({json.dumps(trial.settings) for trial in found[0]}) == 7
    for trial in found[0]:
        read_config({**trial.settings, "algorithm": name})
        assert not kind.local_steps or trial.settings[kind.local_steps] == 3
        for axis in searched:
            unit = 1.0 if axis.unit is None else axis.unit(trial.settings)
            assert axis.low * unit <= trial.settings[axis.key] <= axis.high * unit


def test_the_search_finds_the_best_step_of_a_quadratic() -> None:
    """Gradient descent on it is over in one step of 1/1.2.

    Of 30 settings the last 6 lie in an eighth of the three decades, one in each sixth of that: the
    nearest is within a factor 10^(3/48) of any point of that box.
    """
    task = RaceTask(quadratic(1.2), np.array([5.0]), 1e-4)
    searched = [Axis("step-size", 0.01, 10.0)]
    trials = tune("fed-lin", [task], searched, {"local-epochs": 1}, Budget(30))
    assert trials[0].settings["step-size"] == pytest.approx(1 / 1.2, rel=0.155)
    assert trials[0].outcomes[0].iterations <= 4


def test_the_number_of_local_steps_follows_the_price_of_communication() -> None:
    moduli = moduli_of(PROBLEMS)
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
    assert [axis.key for axis in axes("fed-plt", convex, 5, solver="newton")] == ["rho"]
    alpha, _ = axes("fed-dyn", Moduli(1.0, 4.0), 5)
    assert (alpha.low, alpha.high) == pytest.approx((0.05 * 2, 20.0 * 2))  # sqrt(1 * 4) = 2
    assert [axis.key for axis in axes("led", convex, 5, given={"step-size": 1})] == [
        "dual-step-size"
    ]
    with pytest.raises(ConfigError, match="tune 'fed-lin': nothing is left to search"):
        axes("fed-lin", convex, 5, given={"step-size": 1})
    with pytest.raises(ConfigError, match="tune 'dp-fedsgd': it has no number of local steps"):
        axes("dp-fedsgd", convex, 1, most_epochs=3)
    with pytest.raises(ConfigError, match="rho is searched in units of the moduli, which these"):
        axes("fed-plt", None, 5)


def test_keys_that_are_given_reach_the_runs_and_are_not_searched() -> None:
    def task(**more: Any) -> RaceTask:
        given = {"dataset": "synthetic", "examples-per-agent": 40, "num-agents": 3, **more}
        return RaceTask.of({"algorithm": "led", "num-server-rounds": 30, **given})

    budget = Budget(4)
    sizes = ({"local-solver": "sgd", "batch-size": size} for size in (4, 16))
    small, large = (tune_task(task(**size), budget)[1] for size in sizes)
    assert {one.settings["local-solver"] for one in small + large} == {"sgd"}
    assert {one.outcomes[0].measure for one in small}.isdisjoint(
        one.outcomes[0].measure for one in large
    )
    _, fixed_step = tune_task(task(**{"step-size": 0.2, "local-epochs": 3}), budget)
    assert {one.settings["step-size"] for one in fixed_step} == {0.2}
    assert {one.settings["local-epochs"] for one in fixed_step} == {3}
    assert len({one.settings["dual-step-size"] for one in fixed_step}) == 4
    assert all(one.outcomes[0].rounds <= 30 for one in fixed_step)
    _, half = tune_task(task(participation="fraction", fraction=0.4, seed=2), Budget(1))
    assert half[0].outcomes[0].messages == half[0].outcomes[0].rounds
    with pytest.raises(ConfigError, match=r"clip = 1\.0: a race measures"):
        task(algorithm="dp-fedsgd", clip=1.0)


@pytest.mark.parametrize(
    "data",
    [{"partition": "label"}, {"dataset": "synthetic", "features": 6, "examples-per-agent": 30}],
    ids=["breast-cancer", "synthetic"],
)
def test_a_run_that_solves_its_subproblems_is_tuned_by_such_runs(data: dict[str, Any]) -> None:
    """The first setting is the run's own choice, so that the answer costs no more than that."""
    task = RaceTask.of({"algorithm": "fed-plt", "num-agents": 4, **data})
    budget = Budget(6)
    moduli, trials = tune_task(task, budget)
    assert moduli is not None
    assert len(trials) == 6
    (usual,) = (trial for trial in trials if not trial.settings)
    assert usual.outcomes[0] == race("fed-plt", {}, task)
    chosen = usual.outcomes[0].chosen
    assert chosen["local-solver"] == "newton"
    assert chosen["acceleration"] == "quasi-newton"
    rest = [trial.settings for trial in trials if trial.settings]
    for settings in rest:
        assert settings.keys() == {"rho", "local-solver", "acceleration", "local-epochs"}
        assert (settings["local-solver"], settings["local-epochs"]) == ("newton", 10)
        read_config({**task.config, **settings})
    assert len({settings["rho"] for settings in rest}) == 5
    assert trials[0].score <= usual.score
    again = race("fed-plt", trials[0].settings, task)
    assert again.score(task.tolerance, budget.cost) == trials[0].score
    if "partition" in data:  # gradient steps, which are searched where their number is
        _, steps = tune_task(task, Budget(3), most_epochs=20)
        assert steps[0].settings == {}
        assert all("step-size" in one.settings for one in steps[1:])
    _, (alone,) = tune_task(task, Budget(1))
    assert alone == usual


def test_a_product_with_a_hessian_counts_as_a_gradient() -> None:
    counts = {"gradient": 0, "product": 0}

    class Counted(BinaryLogistic):
        def gradient(self, x: Any, rows: Any = None) -> Any:
            counts["gradient"] += 1
            return super().gradient(x, rows)

        def hessian_product(self, x: Any) -> Any:
            product = super().hessian_product(x)

            def counted(along: Any) -> Any:
                counts["product"] += 1
                return product(along)

            return counted

    problems = [Counted(one.features, one.labels, regularizer=L2(0.5)) for one in PROBLEMS]

    class Calm(RaceTask):
        def measure(self, models: Any) -> float:
            return 1.0  # takes no gradient of its own

    settings = {"local-solver": "newton", "rho": 1.0}
    one = race("fed-plt", settings, Calm(problems, np.ones(4)), most=3)
    assert one.rounds == 3
    assert counts["product"] > 3 * len(problems)
    assert one.gradients == counts["gradient"] + counts["product"]


class Bare:
    """f(x) = ||x||^2 / 2 without a word on its moduli."""

    dim, dtype, num_examples = 3, np.dtype("f4"), 1

    def gradient(self, x: Any, rows: Any = None) -> Any:
        return x


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_every_search_may_be_told_the_moduli(name: str) -> None:
    """Its ranges are in their units, also where the algorithm itself has no use for them."""
    given = {"algorithm": name, "num-agents": 5, "smoothness": 2.0, "strong-convexity": 0.5}
    task = RaceTask.of(given, lambda context: Bare())
    moduli, trials = tune_task(task, Budget(2))
    assert moduli == Moduli(0.5, 2.0)
    assert len(trials) == 2
    assert any(trial.settings for trial in trials)


def test_moduli_are_those_of_the_keys_where_they_are_given() -> None:
    def task(**more: Any) -> RaceTask:
        return RaceTask.of(
            {"algorithm": "fed-plt", "num-agents": 2, **more}, lambda context: Bare()
        )

    assert task().start.dtype == np.float32
    with pytest.raises(ConfigError, match="rho is searched in units of the moduli"):
        tune_task(task(), Budget(1))
    given = {"smoothness": 1.0, "strong-convexity": 1.0, "init-scale": 3.0, "seed": 1}
    moduli, trials = tune_task(task(**given), Budget(6))
    assert moduli == Moduli(1.0, 1.0)
    assert trials[0].reached
    _, plain = tune_task(task(**given, **{"step-size": 0.5, "rho": 1.0}), Budget(2), most_epochs=9)
    assert [one.settings["rho"] for one in plain] == [1.0, 1.0]


def test_the_command_searches_by_runs() -> None:
    here = ("num-agents=3", "local-epochs=4", "--budget", "6")
    code, out, _ = privet(
        "tune", "led", *here, "--json", "--top", "6", "--communication-cost", "100"
    )
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == 6
    assert rows[0]["reached"]
    assert rows[0]["gradients"] == 4 * rows[0]["messages"] == 12 * rows[0]["rounds"]
    assert rows[0]["cost"] == rows[0]["gradients"] + 100 * rows[0]["messages"]
    costs = [row["cost"] for row in rows if row["reached"]]
    # Sorted where the measure crosses the tolerance, which whole rounds may tie or turn.
    assert costs[0] <= min(costs) + 3 * 104
    code, out, _ = privet("tune", "fed-plt", *here)
    assert code == 0
    assert "settings reach 1e-05" in out
    assert "rho" in out
    assert privet("tune", "led", "h=l1", "h-weight=0.1").code == 2


def test_the_page_on_rivals_states_the_costs_of_the_code() -> None:
    text = (ROOT / "docs" / "rivals.md").read_text()
    section = text.split("## What they cost")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if " | N_e" in line]
    rows = [(name, *line[1:]) for line in lines for name in line[0].split(", ")]
    assert {name for name, *_ in rows} >= set(RIVALS)
    for name, *numbers, gradients in rows:
        cost = algorithm(name).load_strategy().cost
        stated = (cost.agent, cost.coordinator, cost.shared, cost.exchanges, cost.up, cost.down)
        assert tuple(map(int, numbers)) == stated, name
        assert gradients == ("N_e + 1" if cost.extra_gradients else "N_e"), name
