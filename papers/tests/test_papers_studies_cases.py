"""Cases of the studies: small runs of each kind, and rows derived a second time by a few lines."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privet.core import ConfigError
from privet.kernel import NoCertificateError
from privet.problems import L2, BinaryLogistic, LinearModel
from privet.strategies import Balanced
from privet.strategies.gfl.graph import graph_edges, metropolis
from studies import (
    Case,
    Options,
    Verdict,
    catalogue,
    checks,
    dp_iadmm,
    fed_pdm,
    fed_plt,
    fed_plt_rivals,
    gfl,
)
from studies.checks import fed_plt_matrix, radius, stability_matrix
from studies.noises import authors_deviation, penalty
from studies.runner import FLOWER, build_strategy, play
from studies.search import FIRST_TUNING_DRAW, searched
from studies.statistics import Estimate
from studies.theorems import STATEMENTS, judged
from studies.workloads import Workload, build
from support.paths import SHARED

DATA = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="needs the papers' data")
OPTIONS = Options(data_path=SHARED / "data")


def slopes(problems: Any, x: Any) -> Any:
    return np.stack([problem.gradient(row) for problem, row in zip(problems, x, strict=True)])


# ------------------------------------------------------------------ Fed-PLT, by a few lines


def splitting(
    draw: int, step: Any, epochs: int, rho: float, rounds: int, noise: float = 0.0
) -> Any:
    """Yield all x_i of Peaceman-Rachford with ``epochs`` steps, in numpy alone."""
    workload = build({"name": "logistic", "draw": draw})
    problems, rng = workload.problems, np.random.default_rng(0)
    x = np.tile(workload.optimum if noise else workload.start, (100, 1))
    z = x.copy()
    for _ in range(rounds):
        y = z.mean(axis=0)
        target, w = 2 * y - z, x
        for _ in range(epochs):
            w = w - step * (slopes(problems, w) + (w - target) / rho)
            if noise:
                w = w + math.sqrt(2 * step * noise) * rng.standard_normal(w.shape)
        x, z = w, z + 2 * (w - y)
        yield x


@pytest.mark.parametrize("epochs", [1, 5])
def test_rows_of_table_9_by_a_few_lines(epochs: int) -> None:
    case = replace(fed_plt.alone("", 0, local_epochs=epochs), rounds=60)
    problems = build(case.workload).problems
    step = np.array(
        [2 / (p.moduli.smoothness + p.moduli.strong_convexity + 2 / fed_plt.RHO) for p in problems]
    )[:, None]
    counted = 0
    for x in splitting(100, step, epochs, fed_plt.RHO, 60):
        counted += 1
        total = slopes(problems, np.tile(x.mean(axis=0), (100, 1))).sum(axis=0)
        if total @ total <= 1e-5:
            break
    assert play(case)["value"] == counted


def test_a_row_of_table_7_by_a_few_lines() -> None:
    """Both are means over 15 rounds of sqrt(500) draws: they agree to some per cent."""
    (case,) = [
        one
        for one in fed_plt.noisy_cases(Options())
        if one.label == "variance 0.01, rho 1, step .1" and one.seed == 0
    ]
    optimum = build(case.workload).optimum
    runs = splitting(100, 0.1, 5, 1.0, 30, noise=0.01)
    errors = [float(np.linalg.norm(x - optimum)) for x in runs]
    assert play(case)["value"] == pytest.approx(np.mean(errors[-15:]), rel=0.1)


def test_theory_of_the_rivals() -> None:
    cases = {
        name: fed_plt_rivals.case_of(fed_plt_rivals.CONVEX, name, fed_plt_rivals.THEORY, 0)
        for name in fed_plt_rivals.IN_THEORY
    }
    assert cases["led"].settings["dual_step_size"] == 0.2
    assert cases["tamuna"].settings["dual_step_size"] == 0.0  # its theory's own
    assert cases["fed-lin"].options["over-smoothness"] == {"step_size": 0.2}
    at = fed_plt_rivals.case_of(fed_plt_rivals.CONVEX, "five-gcs", fed_plt_rivals.FREE, 0)
    assert at.options["at"] == "last-gradient"


def test_tuning_takes_draws_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from studies import search

    seen: list[Case] = []

    def scored(case: Case) -> dict[str, Any]:
        seen.append(case)
        return {"smooth": abs(math.log(case.settings["step_size"] / 0.7)), "value": 1}

    monkeypatch.setattr(search, "play", scored)
    asked = {"budget": 12, "draws": 2, "axes": [["step_size", 0.05, 3.0]]}
    case = Case(
        "",
        3,
        {"name": "logistic", "draw": 103},
        "fed-lin",
        {},
        50,
        "iterations",
        {"tolerance": 1e-5, "search": asked},
    )
    found = searched(case)
    assert found.settings["step_size"] == pytest.approx(0.7, rel=0.3)
    assert "search" not in found.options
    assert {one.workload["draw"] for one in seen} == {FIRST_TUNING_DRAW, FIRST_TUNING_DRAW + 1}
    assert found.workload["draw"] == 103
    asked = {"grid": {"step_size": [2.0, 0.5, 1.0]}, "draws": 1}
    gridded = replace(case, options={"tolerance": 1e-5, "search": asked})
    assert searched(gridded).settings == {"step_size": 0.5}


@pytest.mark.parametrize(
    ("axis", "best", "ended"),
    [([2.0, 8.0], 0.5, []), ([0.01, 0.1], 1.0, []), ([0.0, 0.5], 0.5, ["step_size"])],
)
def test_a_grid_goes_on_until_the_best_is_at_neither_end(
    axis: list[float], best: float, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from studies import search

    def scored(case: Case) -> dict[str, Any]:
        return {"smooth": abs(case.settings["step_size"] - 0.7), "value": 1}

    monkeypatch.setattr(search, "play", scored)
    case = Case("", 0, {"name": "logistic"}, "fed-lin", {}, 50, "iterations", {})
    found, grid = search.widened(case, {"grid": {"step_size": axis}, "draws": 1})
    assert found == {"step_size": best}
    assert search.ends(found, grid) == ended


def test_a_grid_ends_where_no_certificate_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from studies import search

    def scored(case: Case) -> dict[str, Any]:
        if case.settings["step_size"] > 1:
            raise NoCertificateError("rho * step size is above 1")
        return {"smooth": -case.settings["step_size"], "value": 1}

    monkeypatch.setattr(search, "play", scored)
    case = Case("", 0, {"name": "logistic"}, "fed-pdm", {}, 50, "iterations", {})
    found, grid = search.widened(case, {"grid": {"step_size": [0.25, 0.5]}, "draws": 1})
    assert (found, grid) == ({"step_size": 1.0}, {"step_size": [0.25, 0.5, 1.0, 2.0]})


def test_ends_of_a_box_are_its_outer_twentieths() -> None:
    from studies.search import near_ends

    axes = [["rho", 0.1, 10.0], ["step_size", 0.1, 1.0]]
    assert near_ends({"rho": 1.0, "step_size": 0.95}, axes) == ["step_size"]
    assert near_ends({"rho": 0.12, "step_size": 0.2}, axes) == ["rho"]


def test_measures_and_workloads_are_named() -> None:
    with pytest.raises(ConfigError, match="measure 'speed': known are iterations"):
        play(Case("", 0, measure="speed"))
    with pytest.raises(ConfigError, match="workload 'nowhere': known are logistic"):
        build({"name": "nowhere"})


@pytest.mark.parametrize("full", [False, True])
def test_every_strategy_takes_the_settings_of_its_cases(full: bool) -> None:
    """On two agents in place of the federations, which are dear to build."""
    problems = [BinaryLogistic(np.ones((2, 3)), np.array([-1.0, 1.0]), regularizer=L2(0.5))] * 2
    for study in catalogue.chosen(["all"], full=full):
        for case in {one.label: one for one in study.cases(Options(full, SHARED))}.values():
            if case.measure == "theorem" or case.algorithm in FLOWER:
                continue
            workload = Workload(tuple(problems), np.zeros(3))
            options = {key: value for key, value in case.options.items() if key != "epsilon"}
            build_strategy(replace(case, options=options), workload)


# ------------------------------------------------------------------ DP-IADMM, by a few lines


@DATA
def test_the_run_without_noise_of_figure_1_by_a_few_lines() -> None:
    case = dp_iadmm.case_of(OPTIONS, dp_iadmm.MNIST_HALF, "ObjP", math.inf, 0)
    case = replace(case, rounds=4, options={"every": 1, "tail": 1})
    workload = build(case.workload)
    z, lam = np.zeros((2, 10, len(workload.start)))
    errors = []
    for t in range(1, 5):
        rho, near = 2.0, math.sqrt(t)
        w = (z - lam / rho).mean(axis=0)
        slope = slopes(workload.problems, z.astype(np.float32))
        z = (rho * w + lam - slope + near * z) / (rho + near)
        lam = lam + rho * (w - z)
        assert workload.score is not None
        last = (z - lam / rho).mean(axis=0)
        errors.append(100 * (1 - workload.score(last.astype(np.float32))))
    found = play(case)["course"]
    # The coordinator's model of a round is w of that round, or of the next: one round apart.
    assert any(np.allclose(found[shift:], errors[: 4 - shift], atol=0.05) for shift in (0, 1)), (
        found,
        errors,
    )


@DATA
@pytest.mark.parametrize("half", dp_iadmm.HALVES, ids=lambda half: half.name)
def test_the_authors_output_noise_by_its_formula(half: dp_iadmm.Half) -> None:
    """Mean |N(0, s^2)| with s = sigma^2, sigma = 2 sqrt(2 ln(1.25/delta)) / (eps (rho + 1/eta)).

    1/eta = I_p/4 + 2 sqrt(t ln(1.25/delta)) / eps, of each agent's own number of examples.
    """
    case = dp_iadmm.case_of(OPTIONS, half, "OutP, authors", 0.05, 1)
    found = play(replace(case, rounds=2, options={**case.options, "every": 1, "tail": 1}))
    epsilon, examples = 0.05 * half.ratio, [p.num_examples for p in build(case.workload).problems]
    for t, noise in enumerate(found["noise"], start=1):
        rho = half.rho["rho_c1"] + half.rho["rho_c2"] / epsilon
        deviations = []
        for size in examples:
            spread = rho + size / 4 + 2 * math.sqrt(t * math.log(1.25e6)) / epsilon
            deviations.append((2 * math.sqrt(2 * math.log(1.25e6)) / (epsilon * spread)) ** 2)
        assert noise == pytest.approx(math.sqrt(2 / math.pi) * np.mean(deviations), rel=0.02)
        assert penalty(case.settings, t) == pytest.approx(rho, rel=1e-12)
        own = authors_deviation(case.settings, examples[-1], t)
        assert own == pytest.approx(deviations[-1], rel=1e-12)


# ------------------------------------------------------------------ FedPDM, by a few lines


@DATA
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_runs_of_figures_4_and_6_by_a_few_lines(weight: float) -> None:
    """With one full-batch step and rho eta = 1/2 dense FedPDM is proximal FedSGD.

    x <- soft(x - mean slope / rho, gamma / rho), whatever the duals are: gamma = 0 is Figure 4
    without noise, gamma = .5 is Figure 6, where nothing trains.
    """
    settings = {"rho": 1.0, "step_size_base": 0.5, "h": weight}
    case = fed_pdm.arm(OPTIONS, "", "Adult", whole=True, settings=settings)[0]
    case = replace(case, rounds=6, options={**case.options, "every": 1, "tail": 1})
    workload = build(case.workload)
    x, scores = workload.start.copy(), []
    names = [str(agent) for agent in range(100)]
    for number in range(1, 7):
        chosen = [int(name) for name in Balanced(0.3).select(number, sorted(names), case.seed)]
        clipped = [_clipped(workload.problems[agent], x) for agent in chosen]
        x = (x - np.mean(clipped, axis=0)).astype(np.float32)
        x = np.sign(x) * np.maximum(np.abs(x) - np.float32(weight), np.float32(0))
        assert workload.score is not None
        scores.append(workload.score(x))
    assert play(case)["course"] == pytest.approx(scores, abs=2e-3)
    if weight == 0.5:
        assert not x.any()


def _clipped(problem: LinearModel[Any], x: Any) -> Any:
    """Return the mean of the examples' gradients, each cut to norm 1, and the regulariser's."""
    size = problem.num_examples
    plain = type(problem)(problem.features, problem.labels, 2)  # type: ignore[attr-defined]
    total = np.zeros_like(x, dtype=float)
    for row in range(size):
        slope = plain.gradient(x, np.array([row])).astype(float)
        total += slope / max(1.0, float(np.linalg.norm(slope)))
    return total / size + problem.gradient(x) - plain.gradient(x)


def test_arms_under_other_noise_or_loss_have_a_panel_of_their_own() -> None:
    result = {"value": 0.5, "rounds": [5], "course": [0.5]}
    arms = ("fed-pdm", "scaffold within its theory", "fed-pdm, epsilon 10, (41)")
    panels = fed_pdm.Claims({f"MNIST: {arm}": [result] for arm in arms}).outcome().panels
    assert {panel.title: list(panel.curves) for panel in panels} == {
        "MNIST": ["fed-pdm", "scaffold within its theory"],
        "MNIST, epsilon 10, (41)": ["fed-pdm"],
    }


def test_arms_that_lie_on_each_other_are_drawn_as_differences_to_the_dense_one() -> None:
    """By hand: .01 and .03 above dense, whose own runs are .2 apart."""
    dense = [{"value": 0.0, "rounds": [5], "course": [one]} for one in (0.5, 0.7)]
    near = [{"value": 0.0, "rounds": [5], "course": [one]} for one in (0.51, 0.73)]
    far = [{"value": 0.0, "rounds": [5], "course": [one]} for one in (8.5, 8.7)]
    (panel,) = fed_pdm.Claims({"MNIST: dense": dense, "MNIST: near": near}).outcome().panels
    assert panel.y_label == "test accuracy, minus dense"
    assert list(panel.curves) == ["near"]
    np.testing.assert_allclose(panel.curves["near"].y, [0.02])
    down = {"MNIST: alpha_D 0.5, (41)": near, "MNIST: alpha_D 1, (41)": dense}
    (panel,) = fed_pdm.Claims(down).outcome().panels
    assert (panel.y_label, *panel.curves) == ("test accuracy, minus alpha_D 1", "alpha_D 0.5")
    (panel,) = fed_pdm.Claims({"MNIST: dense": dense, "MNIST: far": far}).outcome().panels
    assert list(panel.curves) == ["dense", "far"]


@DATA
def test_a_private_run_is_the_same_again() -> None:
    case = fed_pdm.arm(OPTIONS, "", "Adult", epsilon=0.5)[1]
    case = replace(case, rounds=10, options={**case.options, "every": 1, "tail": 1})
    assert play(case)["course"] == play(case)["course"]


@DATA
@pytest.mark.parametrize("loss", ["softmax", "(41)"])
def test_accuracy_by_a_few_lines(loss: str) -> None:
    """The test rule (42) is an argmax of scores: rows of X for (41), columns for softmax."""
    workload = {"name": "adult-by-class", "folder": str(SHARED / "data"), "draw": 0, "loss": loss}
    built = build(workload)
    assert built.score is not None
    majority = built.score(np.zeros_like(built.start))
    assert majority == pytest.approx(0.7638, abs=1e-3)  # 12,435 of 16,281
    sizes = [problem.num_examples for problem in built.problems]
    assert len(sizes) == 100
    assert set(sizes) <= {325, 326, 327}
    aside = build({**workload, "validation": True})
    assert sum(problem.num_examples for problem in aside.problems) == round(0.8 * sum(sizes))


# ------------------------------------------------------------------ GFL, by a few lines


@pytest.mark.parametrize("closing", [0, 3])
def test_deviations_by_a_few_lines_where_nothing_is_random(closing: int) -> None:
    """w <- A (w - mu mean grad), all agents with full batches and one epoch."""
    workload = {"name": "regression", "draw": 2, "units": 4, "each": 6, "graph": "ring"}
    settings = {"step_size": 0.3, "local_epochs": 1, "batch": "full", "participants": 0}
    built = build(workload)
    object.__setattr__(built, "nodes", tuple({"unit": node["unit"]} for node in built.nodes))
    found = play(Case("", 0, workload, "gfl", settings, 5, "deviation", {"closing": closing}))
    a, w = np.eye(4) / 3, np.zeros((4, 2))
    for unit in range(4):
        a[unit, [unit - 1, (unit + 1) % 4]] = 1 / 3
    for number in range(5):
        steps = slopes(built.problems, np.repeat(w, 6, axis=0)).reshape(4, 6, 2).mean(axis=1)
        w = a @ (w - 0.3 * steps)
        gaps = np.linalg.matrix_power(a, closing) @ w - built.optimum
        assert found["units"][number] == pytest.approx((gaps**2).sum(axis=1).mean(), rel=1e-9)
        centre = gaps.mean(axis=0)
        assert found["centroid"][number] == pytest.approx(centre @ centre, rel=1e-9)


def test_optimum_is_the_papers_closed_form() -> None:
    """Eq. (55), with the mean of all agents' second moments."""
    built = build({"name": "regression", "draw": 2, "units": 4, "each": 6, "graph": "ring"})
    u = np.concatenate([problem.features for problem in built.problems])
    d = np.concatenate([np.asarray(getattr(problem, "targets")) for problem in built.problems])  # noqa: B009
    wanted = np.linalg.solve(u.T @ u / len(d) + 0.1 * np.eye(2), u.T @ d / len(d))
    np.testing.assert_allclose(built.optimum, wanted, atol=1e-10)


@pytest.mark.slow
def test_ratios_of_figures_3a_and_3b_by_a_few_lines() -> None:
    """Noise of single units and of the centroid, by the covariance of w <- A (1 - mu H) w + noise.

    H is the mean curvature.
    """
    case = gfl.case_of("", 0, "random", variance=10.0)
    built = build(case.workload)
    a = metropolis(graph_edges("erdos-renyi", 10, seed=0, probability=0.4), 10)
    hessians = [
        2 * p.features.T @ p.features / p.num_examples + 0.2 * np.eye(2) for p in built.problems
    ]
    shrink = np.linalg.eigvalsh(np.mean(hessians, axis=0))
    noise = {
        "random": np.diag(((a - np.diag(np.diag(a))) ** 2).sum(axis=1)),
        "homomorphic": (a - np.eye(10)) @ (a - np.eye(10)).T,
    }
    sizes, centre = dict.fromkeys(noise, 0.0), 0.0
    for kind, added in noise.items():
        for curvature in shrink:
            step, covariance = a * (1 - gfl.MU * curvature), np.zeros((10, 10))
            for _ in range(400):
                covariance = step @ covariance @ step.T + added
            sizes[kind] += float(np.trace(covariance)) / 10
            centre += float(covariance.mean()) * (kind == "random")
    runs = {kind: play(gfl.case_of("", 0, kind, variance=10.0)) for kind in noise}
    (random,), (homomorphic,) = (gfl.steady([runs[kind]], "units") for kind in noise)
    assert random
    assert homomorphic
    assert random / homomorphic == pytest.approx(sizes["random"] / sizes["homomorphic"], rel=0.35)
    assert random / homomorphic < 0.5
    (centroid,) = gfl.steady([runs["random"]], "centroid")
    assert centroid
    assert centroid / random == pytest.approx(centre / sizes["random"], rel=0.35)


# ------------------------------------------------------------------ theorems

NUMBERED = {
    "fed-plt": {"Lemma ": 8, "Proposition ": 4, "Corollary ": 1, "Remark ": 1},
    "dp-iadmm": {"Lemma ": 1, "Proposition ": 2, "Theorem ": 4, "Corollary ": 1, "Remark ": 1},
    "fedpdm": {"Lemma ": 3, "Theorem ": 3, "Remark ": 2, "P": 4},
    "gfl": {"Lemma ": 4, "Theorem ": 4, "Corollary ": 1},
}
"""What the papers number; their tables and figures are studies."""


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_numbered_statement_of_a_paper_has_a_row(paper: str) -> None:
    said = "; ".join(one.what for one in STATEMENTS[paper])
    for kind, count in NUMBERED[paper].items():
        for number in range(1, count + 1):
            assert re.search(rf"\b{kind}{number}\b", said), f"{kind}{number}"


def test_the_printed_stability_matrix_has_a_counterexample() -> None:
    """h = (.95, 1.15), rho .4, gamma .35, one step: a norm of .945 and a radius of 1.196."""
    h, rho, gamma = np.array([0.95, 1.15]), 0.4, 0.35
    chi = max(abs(1 - gamma * (m + 1 / rho)) for m in h)
    printed = stability_matrix(rho, (0.95, 1.15), chi, printed=True)
    assert np.linalg.norm(printed, 2) == pytest.approx(0.945, abs=1e-3)
    assert radius(fed_plt_matrix(h, rho, gamma, 1)) == pytest.approx(1.196, abs=1e-3)
    corrected = stability_matrix(rho, (0.95, 1.15), chi, printed=False)
    assert radius(corrected) > 1


@pytest.mark.parametrize(
    ("what", "holds"),
    [
        ("Proposition 1 with 1/(1 + rho lambda) in S", True),
        ("Lemma 8 with the root", True),
        ("Proposition 2 with 1/(1 + rho lambda) in S", True),
        ("Proposition 3: where S' is stable Fed-PLT with (12) contracts", True),
        ("Proposition 3 with the root and 1/(1 + rho lambda) in S'", True),
        ("Theorem 1: the sensitivity (35), first round", True),
        ("Theorem 1 with the part of the duals in s", True),
        ("Corollary 1 with 1/(1 + rho lambda) in S", True),
        ("Lemma 1: the second moment (28) of the gradient noise", True),
        ("Proposition 2: the bound (15)", False),
        ("Proposition 4: a bounded Renyi divergence", False),
        ("Corollary 1: the bound (16)", False),
        ("Proposition 1: where S is stable Fed-PLT contracts", False),
        ("Proposition 3: the rate ||S'||, as (15) has it", False),
        ("Lemma 8: contraction of the accelerated solver", False),
        ("Remark 1: eps-DP for the entire process", False),
        ("Proposition 2, Theorem 1: every step is eps-DP", False),
        ("Theorem 1: the sensitivity (35), later rounds", False),
        ("Theorem 1, later rounds, rho eta < 1", False),
    ],
)
def test_refuted_statements_keep_a_counterexample_and_corrected_ones_hold(
    what: str, holds: bool
) -> None:
    found = judged(what, 1)
    assert found["tried"] >= 100
    assert (found["held"] == found["tried"]) is holds
    assert bool(found["instance"]) is not holds


def test_the_sensitivity_is_that_of_what_is_sent() -> None:
    """y = x - lambda / rho: in the first round it attains s, in later ones it moves further.

    x alone moves by s / 2 in the first round.
    """
    what = "Theorem 1: the sensitivity (35), first round"
    assert judged(what, 0)["worst"] == pytest.approx(0, abs=1e-12)
    later = judged("Theorem 1, later rounds, rho eta < 1", 0)
    assert later["held"] < 5
    assert 1.5 < 1 + later["worst"] < 3


def test_rows_without_a_check_and_of_bounds() -> None:
    rows = {one.what: one for own in STATEMENTS.values() for one in own}
    assert rows["Table I"].row({}).verdict == "not testable"  # a list of symbols
    assert STATEMENTS["fed-plt"][0].row({}).verdict == "by construction"
    name = "Theorem 2: the bound (16a)"
    found = {name: [{"held": 100, "tried": 100, "worst": -0.9, "instance": {}}]}
    assert rows[name].row(found).ours == "holds on 100 of 100; left over right at most 0.1"
    (assumed,) = (one for one in rows.values() if one.what.startswith("Assumption 1"))
    found = {assumed.what: [{"held": 0, "tried": 9, "worst": 1.0, "instance": {"rho": 1.0}}]}
    assert assumed.row(found).verdict == "vacuous"


def test_estimates_of_what_never_arrives_are_not_numbers() -> None:
    assert math.isnan(Estimate.of([None, None]).mean)


def test_orders_in_the_network_are_those_that_two_units_have() -> None:
    """With A = (1 + c, 1 - c; 1 - c, 1 + c) / 2, h = 1 and optima +-1 there are closed forms.

    w = (1, -1) s with s = c (s - mu (s - 1)), so s = c mu / (1 - c + c mu): of order mu. Noise has
    the variance v / (1 - (1 - mu)^2) along (1, 1), of order 1 / mu, and v / (1 - c^2 (1 - mu)^2)
    along (1, -1), of order 1. Five units of any curvature have the same orders.
    """
    generator = np.random.default_rng(5)
    of = {name: checks.order_in_the_network(generator, of=name)[1] for name in checks.ORDERS}
    assert of["disagreement"]["without noise"] == pytest.approx(2, abs=0.05)
    assert of["disagreement"]["of the noise"] == pytest.approx(0, abs=0.05)
    assert of["errors"]["without noise"] == pytest.approx(2, abs=0.05)
    assert of["errors"]["of the noise"] == pytest.approx(-1, abs=0.05)


def test_a_statement_may_rest_on_an_erratum() -> None:
    (one,) = [one for one in STATEMENTS["fed-plt"] if one.erratum == "fed-plt/eq-11"]
    row = one.row({})
    assert row.verdict is Verdict.CONTRADICTED
    assert "errata.md#fed-plteq-11" in row.why
