"""``privet errata``: each instance refutes its statement, and what is put in its place holds.

The corrected statements are tried on random instances, and the arithmetic by other means.
"""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from studies.commands.errata import completed_erratum
from studies.errata import ERRATA, PAPERS, dp_iadmm, fed_plt, fed_plt_privacy, fedpdm, gfl
from support.cli import privet
from support.paths import ROOT

quick = settings(max_examples=20, deadline=None)
FINE = {"allow_nan": False, "allow_infinity": False}


def exact(low: int, high: int, over: int = 100) -> st.SearchStrategy[Fraction]:
    return st.integers(low, high).map(lambda number: Fraction(number, over))


@st.composite
def federations(draw: st.DrawFn) -> dict[str, Any]:
    """Curvatures of three agents, rho, a step of the right range and N_e."""
    low = draw(st.floats(0.1, 10, **FINE))
    h = [low, *(low * draw(st.floats(1, 4, **FINE)) for _ in range(2))]
    rho = draw(st.floats(0.05, 20, **FINE))
    gamma = draw(st.floats(0.05, 0.95, **FINE)) * 2 / (max(h) + 1 / rho)
    return {"h": h, "rho": rho, "gamma": gamma, "epochs": draw(st.integers(1, 5))}


# ------------------------------------------------------------------ all of them


@pytest.mark.parametrize("name", ERRATA)
def test_an_instance_refutes_the_statement_and_agrees_with_the_corrected_one(name: str) -> None:
    found = ERRATA[name].counterexample()
    assert found.refutes
    assert found.agrees


def test_every_erratum_is_on_the_page_with_its_command() -> None:
    page = (ROOT / "docs" / "results" / "errata.md").read_text()
    named = [line.partition("{ #")[2] for line in page.splitlines() if line.startswith("### ")]
    assert named == [f"{name.replace('/', '')} }}" for name in ERRATA]
    assert all(f"`privet errata {name}`" in page for name in ERRATA)


def test_the_page_counts_kinds_as_the_results_do() -> None:
    """What is contradicted or vacuous by the rule, and the others by the page's own list."""
    results = ROOT / "docs" / "results"
    page = (results / "errata.md").read_text()
    said = re.search(r"\*\*Of seventeen .* (\d+) are refuted .*, (\d+) is vacuous, and (\d+)", page)
    assert said is not None
    contradicted, vacuous, others = map(int, said.groups())
    assert contradicted + vacuous + others == len(ERRATA) == 17
    index = (results / "index.md").read_text().split("**")[1]
    assert f"and {contradicted} are contradicted" in index
    texts = [json.loads(path.read_text()) for path in results.glob("*-theorems.json")]
    verdicts = [one["verdict"] for text in texts for one in text["entries"]]
    assert verdicts.count("vacuous") == vacuous
    named = re.findall(r"\]\(#[a-z0-9-]+\)", page[said.end() :].partition("The vacuous one")[0])
    assert len(named) == others


def test_the_page_of_choices_counts_fed_plts_entries_as_its_tables_do() -> None:
    results = ROOT / "docs" / "results"
    page = (ROOT / "docs" / "choose.md").read_text()
    said = re.search(r"Of the entries of Fed-PLT's tables (\d+) agree and (\d+) differ", page)
    assert said is not None
    texts = [json.loads(path.read_text()) for path in results.glob("fed-plt-table-*.json")]
    verdicts = [one["verdict"] for text in texts for one in text["entries"]]
    kinds = ("agrees under changed settings", "differs under changed settings")
    assert [verdicts.count(kind) for kind in kinds] == list(map(int, said.groups()))


def test_the_command_lists_runs_and_completes() -> None:
    code, out, _ = privet("errata")
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, list(ERRATA))
    code, out, _ = privet("errata", "fedpdm", "fed-plt/lemma-8", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    names = ["fedpdm/theorem-1", "fedpdm/assumption-1", "fed-plt/lemma-8"]
    assert (code, [line["erratum"] for line in lines]) == (0, names)
    assert all(line["refutes"] and line["agrees"] for line in lines)
    assert (lines[2]["found"], lines[2]["claimed"]) == ("11/1024", "5/512")
    assert completed_erratum("fed-plt/lem") == ["fed-plt/lemma-7", "fed-plt/lemma-8"]
    assert completed_erratum("") == ["all", *PAPERS, *ERRATA]


def test_a_statement_that_holds_is_not_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the right range of (11), at rho = 1 in (17), and at one steady step in FedPDM."""
    h = (Fraction(1), Fraction(9))
    assert not fed_plt.steps_beyond_the_curvature(h, gamma=Fraction(1, 6)).refutes
    assert not fed_plt.exact_update(rho=Fraction(1)).refutes
    assert not fedpdm.sensitivity(eta=Fraction(1, 20)).refutes
    assert not gfl.privacy_of_vectors(dim=1).refutes
    holds = fedpdm.sensitivity(rounds=1)
    own = ERRATA["fedpdm/theorem-1"]
    changed = type(own)(own.name, own.claim, own.correction, lambda: holds)
    monkeypatch.setitem(ERRATA, own.name, changed)
    code, out, _ = privet("errata", own.name)
    assert code == 1
    assert "as printed at most 4/25 = 0.16: holds" in out


# ------------------------------------------------------------------ Fed-PLT


@quick
@given(federations())
def test_steps_of_the_right_range_contract(one: dict[str, Any]) -> None:
    found = fed_plt.steps_beyond_the_curvature(
        (min(one["h"]), max(one["h"])), one["rho"], one["gamma"]
    )
    assert found.found < 1
    assert found.agrees


@quick
@given(st.integers(0, 10**6), st.floats(0.05, 20, **FINE))
def test_the_exact_update_has_the_right_constant(seed: int, rho: float) -> None:
    """On a random quadratic and with a softplus of each coordinate on top, solved by Newton."""
    rng = np.random.default_rng(seed)
    low = 10.0 ** rng.uniform(-1, 1)
    root = rng.standard_normal((3, 3))
    curvature = low * np.eye(3) + root @ root.T

    def update(v: Any) -> Any:
        x = v
        for _ in range(60):
            share = 1 / (1 + np.exp(-np.clip(x, -500, 500)))
            slope = curvature @ x + share + (x - v) / rho
            bend = curvature + np.diag(share * (1 - share)) + np.eye(3) / rho
            x = x - np.linalg.solve(bend, slope)
        return x

    v = rng.normal(0, 3, (2, 3))
    apart = float(np.linalg.norm(update(v[0]) - update(v[1])) / np.linalg.norm(v[0] - v[1]))
    assert apart <= fed_plt.shrink([low], rho) + 1e-7


@quick
@given(federations())
def test_the_iteration_contracts_by_the_corrected_matrix(one: dict[str, Any]) -> None:
    """Its norm, not its radius alone; and never does it expand where that matrix is stable."""
    assert fed_plt.contraction(**one).agrees
    solve = fed_plt.gradient_solver(**one)
    matrix = fed_plt.matrix_of(solve, 3)
    chi = fed_plt.step_factor(one["h"], one["rho"], one["gamma"]) ** one["epochs"]
    right = fed_plt.stability(one["h"], one["rho"], chi, fed_plt.shrink(one["h"], one["rho"]))
    assert fed_plt.norm(matrix) <= fed_plt.norm(right) * (1 + 1e-9)
    assert fed_plt.radius(matrix) <= fed_plt.radius(right) * (1 + 1e-6)
    # By the algorithm's own words, from one point.
    x, z = np.array([1.0, -2.0, 0.5]), np.array([0.3, 1.0, -1.0])
    y = z.sum() / 3
    after = x.copy()
    for agent, curvature in enumerate(one["h"]):
        for _ in range(one["epochs"]):
            pull = (after[agent] - (2 * y - z[agent])) / one["rho"]
            after[agent] -= one["gamma"] * (curvature * after[agent] + pull)
    both = np.concatenate([after, z + 2 * (after - y)])
    np.testing.assert_allclose(matrix @ np.concatenate([x, z]), both, rtol=1e-9, atol=1e-9)


@quick
@given(
    st.floats(0.1, 10),
    st.floats(0.7, 1.4),
    st.integers(5, 20),
    st.lists(st.floats(0.2, 1), min_size=3, max_size=3),
    st.integers(1, 40),
)
def test_the_corrected_bounds_hold_in_the_mean(
    low: float, share: float, epochs: int, shares: list[float], rounds: int
) -> None:
    """(15) for the root of the second moment, and (16), where S is of norm below 1."""
    h = [low, 1.3 * low, 1.6 * low]
    gamma = 1.8 / (1.6 * low + low / share)
    one = {"h": h, "rho": share / low, "gamma": gamma, "epochs": epochs}
    found = fed_plt.bound_on_iterates(**one, shares=shares, rounds=rounds)
    assume(found.corrected is not None)
    matrix = fed_plt.matrix_of(fed_plt.gradient_solver(**one), 3)
    start = np.linalg.qr(np.random.default_rng(rounds).standard_normal((6, 1)))[0][:, 0]
    assert found.found <= found.corrected * (1 + 1e-9)
    moment = fed_plt.second_moment(matrix, shares, start, rounds)
    assert moment <= float(found.corrected) * (1 + 1e-9)
    assert fed_plt.accuracy(**one, rounds=rounds).agrees


def test_the_second_moment_is_that_of_all_rosters() -> None:
    """Three rounds of two agents, every roster with its probability."""
    matrix = fed_plt.matrix_of(fed_plt.gradient_solver([1.0, 3.0], 0.5, 0.2, 2), 2)
    shares, start = (0.3, 0.8), np.array([1.0, -1.0, 0.5, 2.0])
    total = 0.0
    for code in range(4**3):
        state, weight = start, 1.0
        for turn in range(3):
            own = [code >> (2 * turn + agent) & 1 for agent in range(2)]
            weight *= math.prod(p if u else 1 - p for p, u in zip(shares, own, strict=True))
            state = np.where(np.tile(own, 2), matrix @ state, state)
        total += weight * float(state @ state)
    assert fed_plt.second_moment(matrix, shares, start, 3) ** 2 == pytest.approx(total)


@quick
@given(exact(1, 99), exact(1, 99), exact(1, 500))
def test_the_corrected_test_of_stability(chi: Fraction, zeta: Fraction, shrink: Fraction) -> None:
    """A matrix of two rows is stable if and only if |det| < 1 and |trace| < 1 + det."""
    assume(4 * chi * shrink != (1 - chi) * (1 - zeta))
    trace, det = chi + zeta + 2 * chi * shrink, chi * (zeta - 2 * shrink)
    stable = abs(det) < 1 and abs(trace) < 1 + det
    assert stable is (4 * chi * shrink < (1 - chi) * (1 - zeta))


@quick
@given(st.floats(1.02, 12, **FINE), st.integers(1, 60), st.integers(0, 10**6))
def test_accelerated_steps_contract_by_the_root(root: float, steps: int, seed: int) -> None:
    """Both points of (12), on quadratics; the slowest mode is (1 + l / root)(1 - 1/root)^l."""
    kappa, beta = root**2, (root - 1) / (root + 1)
    modes = np.random.default_rng(seed).uniform(1, kappa, 20)
    modes[:2] = 1, kappa
    before = point = np.ones(20)
    for _ in range(steps):
        after = point - modes / kappa * point
        point, before = after + beta * (after - before), after
    bound = math.sqrt((1 + kappa) * (1 - 1 / root) ** steps)
    assert float(np.abs(before).max()) <= bound * (1 + 1e-9)
    assert float(np.abs(point).max()) <= bound * (1 + 1e-9)
    slowest = (1 + steps / root) * (1 - 1 / root) ** steps
    assert before[0] == pytest.approx(slowest, rel=1e-6)


@quick
@given(exact(110, 900), st.integers(1, 12))
def test_lemma_8_fails_from_the_step_that_the_page_names(root: Fraction, more: int) -> None:
    steps = math.floor(root**3) + more
    assume(steps < 120)
    assert fed_plt.accelerated_mode(root, steps).refutes
    assert not fed_plt.accelerated_mode(root, max(math.floor(root**3) - 1, 1)).refutes


@quick
@given(federations())
def test_accelerated_iterations_contract_by_the_corrected_matrix(one: dict[str, Any]) -> None:
    h, rho, epochs = one["h"], one["rho"], one["epochs"]
    assume(max(h) > 1.001 * min(h))
    assert fed_plt.accelerated_contraction(h, rho, epochs).agrees
    matrix = fed_plt.matrix_of(fed_plt.accelerated_solver(h, rho, epochs), 3)
    chi = math.sqrt(fed_plt.accelerated_factor(h, rho, epochs))
    right = fed_plt.stability(h, rho, chi, fed_plt.shrink(h, rho))
    assert fed_plt.norm(matrix) <= fed_plt.norm(right) * (1 + 1e-9)


def test_the_two_data_sets_by_a_simulation() -> None:
    """The means of the first coordinate, by the loss itself in place of given signs."""
    numbers = {"agents": 20, "rho": 10.0, "gamma": 0.1, "epochs": 40, "rounds": 15}
    row, pull, clip = (220 / 221, 21 / 221), 1e13, 1000.0
    target = 0.0662 * row[1] * pull
    course = fed_plt_privacy.Course.of(**numbers, clip=clip, pull=pull, target=target, row=row)
    assert course.flips == (1, 561)
    assert course.doubt < -1e15
    ends = {}
    for side in (1, -1):
        own = np.array([side * row[0], row[1]])
        forces = np.zeros((20, 2))
        forces[:, 1] = -pull / 19
        forces[0, 1] = pull
        x = z = np.zeros((20, 2))
        for _ in range(15):
            y = z.mean(axis=0)
            w = x.copy()
            for _ in range(40):
                slope = w - forces
                over = float(own @ w[0]) - target
                slope[0] += clip / 2 * np.clip(over / fed_plt_privacy.WIDTH, -1, 1) * own
                w = w - 0.1 * (slope + (w - (2 * y - z)) / 10)
            x, z = w, z + 2 * (w - y)
        ends[side] = x[0, 0]
    assert ends[1] == pytest.approx(course.mean, rel=1e-3)
    assert ends[-1] == pytest.approx(-course.mean, rel=1e-3)
    # Gaussians of one deviation have the divergence (distance / deviation)^2 / 2.
    gaussian = (2 * course.mean / course.deviation) ** 2 / 2
    assert 0.95 * gaussian < course.divergence() < gaussian


@pytest.mark.parametrize("order", [1.34, 2.0, 10.0, 1e4])
def test_the_bound_is_exceeded_at_every_order(order: float) -> None:
    """One interval, by its probabilities under both laws, gives the divergence but for 100."""
    row = (220 / 221, 21 / 221)
    course = fed_plt_privacy.Course.of(
        agents=20, rho=10.0, gamma=0.1, epochs=40, rounds=15,
        clip=1000.0, pull=1e13, target=0.0662 * row[1] * 1e13, row=row,
    )  # fmt: skip
    mean, deviation = course.mean, course.deviation
    middle = mean + 2 * mean * (order - 1)

    def chance(of: float) -> float:
        """Return the logarithm of the interval's probability under the law of that mean."""
        ends = [(middle + side * deviation / 2 - of) / deviation for side in (-1, 1)]
        least, most = (float(stats.norm.logsf(end)) for end in ends)
        return least + math.log1p(-math.exp(most - least))

    found = (order * chance(mean) - (order - 1) * chance(-mean)) / (order - 1)
    gaussian = order * (2 * mean / deviation) ** 2 / 2
    assert gaussian - 100 < found < gaussian
    assert found > 1.34e6 * order
    assert chance(-mean) > -1.4e6 * order**2 > 0.5 * course.doubt


def test_the_deviation_by_drawn_noise() -> None:
    """Of 4,000 runs of a smaller federation: within five standard errors."""
    course = fed_plt_privacy.Course.of(
        agents=4, rho=2.0, gamma=0.3, epochs=3, rounds=4, clip=0.0, pull=0.0, target=1.0, row=(1, 0)
    )
    rng = np.random.default_rng(5)
    x, z = math.sqrt(2) * rng.standard_normal((4000, 4)), np.zeros((4000, 4))
    for _ in range(4):
        y = z.mean(axis=1, keepdims=True)
        w = x
        for _ in range(3):
            noise = math.sqrt(0.6) * rng.standard_normal(w.shape)
            w = w - 0.3 * (w + (w - (2 * y - z)) / 2) + noise
        x, z = w, z + 2 * (w - y)
    assert x[:, 0].std() == pytest.approx(course.deviation, rel=5 / math.sqrt(8000))


@quick
@given(
    st.integers(1, 12),
    st.floats(0.1, 20, **FINE),
    st.floats(0.05, 0.95, **FINE),
    st.integers(1, 10),
    st.integers(1, 8),
)
def test_the_corrected_divergence_holds(
    agents: int, rho: float, share: float, epochs: int, rounds: int
) -> None:
    """Of Gaussians, whose slopes differ by L with whatever signs: (mean / deviation)^2 / 2."""
    gamma = share * 2 / (1 + 1 / rho)
    for target, pull in ((-1e9, 0.0), (0.0662 * 21 / 221 * 1e13, 1e13)):
        assume(agents > 1)
        course = fed_plt_privacy.Course.of(
            agents=agents,
            rho=rho,
            gamma=gamma,
            epochs=epochs,
            rounds=rounds,
            clip=1.0,
            pull=pull,
            target=target,
            row=(1.0, 21 / 221),
        )
        divergence = (2 * course.mean / course.deviation) ** 2 / 2
        assert divergence <= rounds * epochs * gamma / 4 * (1 + 1e-9)


# ------------------------------------------------------------------ DP-IADMM


@quick
@given(
    st.lists(st.floats(-5, 5, **FINE), min_size=2, max_size=6, unique=True),
    st.floats(0.05, 3, **FINE),
    st.floats(-1e3, 1e3, **FINE),
)
def test_one_scale_for_all_data_is_private(
    domain: list[float], epsilon: float, output: float
) -> None:
    assume(max(domain) - min(domain) > 1e-3)
    for other in domain[1:]:
        found = dp_iadmm.one_step((domain[0], other), domain, epsilon, output, local=False)
        assert float(found.found) <= epsilon * (1 + 1e-9)


@quick
@given(st.integers(1, 200), st.floats(0.01, 3, **FINE))
def test_steps_add_up(steps: int, epsilon: float) -> None:
    found = dp_iadmm.all_steps(steps, epsilon=epsilon)
    assert float(found.found) == pytest.approx(steps * epsilon)


@quick
@given(
    exact(0, 100),
    exact(0, 100),
    st.integers(0, 1),
    st.integers(0, 1),
    exact(-300, 300),
    exact(-300, 300),
)
def test_no_record_moves_the_gradient_further(
    x: Fraction, other: Fraction, one: int, two: int, a: Fraction, b: Fraction
) -> None:
    assert dp_iadmm.parameter_of_the_noise((x, one), (other, two), (a, b), 5).agrees


# ------------------------------------------------------------------ FedPDM


@quick
@given(exact(20, 1000), exact(5, 99), st.integers(1, 8), st.integers(1, 6), st.randoms())
def test_the_corrected_sensitivity_holds_whatever_slopes_are(
    rho: Fraction, share: Fraction, steps: int, rounds: int, random: Any
) -> None:
    """rho eta up to 1.98, any slopes within [-G, G] step by step, any dual that both began with."""
    eta = 2 * share / rho
    duals, uploads = [Fraction(3), Fraction(3)], [Fraction(0)] * 2
    for _ in range(rounds):
        for side in (0, 1):
            x = Fraction(0)
            for _ in range(steps):
                slope = random.choice([Fraction(-1), Fraction(1), Fraction(1, 2)])
                x -= eta * (slope - duals[side] + rho * x)
            duals[side] -= rho * x
            uploads[side] = x - duals[side] / rho
        assert abs(uploads[0] - uploads[1]) <= fedpdm.corrected(rho, eta, steps)


@quick
@given(exact(20, 1000), exact(5, 99), st.integers(1, 12))
def test_the_factor_is_that_of_the_page_and_is_reached(
    rho: Fraction, share: Fraction, steps: int
) -> None:
    """1 / (2k) for k < 1/2, 2 - 1 / (2k) for k > 1/2, for rho eta <= 1."""
    eta = share / rho
    k = 1 - (1 - share) ** steps
    factor = fedpdm.corrected(rho, eta, steps) / fedpdm.printed(rho, eta, steps)
    assert factor == (1 / (2 * k) if 2 * k < 1 else 2 - 1 / (2 * k))
    found = fedpdm.sensitivity(float(rho), float(eta), steps, rounds=120)  # type: ignore[arg-type]
    assert float(found.found) >= 0.99 * float(fedpdm.corrected(rho, eta, steps))
    assert found.agrees


def test_the_papers_own_settings() -> None:
    for steps, factor in ((1, 1.25), (10, 1.497)):
        found = fedpdm.sensitivity(steps=steps, rounds=60)
        assert float(found.found / found.claimed) == pytest.approx(factor, abs=1e-3)


@quick
@given(st.integers(0, 10**6))
def test_the_lagrangian_is_bounded_at_the_duals_of_exact_steps(seed: int) -> None:
    """f(x) = cos(2x), smooth with L = 4: lambda = f'(x) and rho >= L give f(x_0) and more."""
    rng = np.random.default_rng(seed)
    x, x_0, rho = rng.normal(0, 3), rng.normal(0, 3), 4 * rng.uniform(1, 5)
    lagrangian = math.cos(2 * x) - 2 * math.sin(2 * x) * (x_0 - x) + rho / 2 * (x_0 - x) ** 2
    assert lagrangian >= math.cos(2 * x_0) - 1e-9
    assert fedpdm.lower_bound(Fraction(seed - 10**6)).refutes


# ------------------------------------------------------------------ graph federated learning


@quick
@given(st.integers(1, 50), st.integers(1, 60), st.floats(0.05, 1), st.floats(0.1, 3))
def test_vectors_cost_the_root_of_the_dimension(
    dim: int, rounds: int, mu: float, epsilon: float
) -> None:
    found = gfl.privacy_of_vectors(dim, rounds, mu, epsilon)
    assert found.agrees
    assert float(found.found) >= 0.999 * math.sqrt(dim) * epsilon


def test_what_is_left_in_single_units_has_a_threshold() -> None:
    for units in (2, 5, 10):
        at = gfl.threshold(units)
        assert gfl.single_units(units, 1.02 * at).refutes
        assert not gfl.single_units(units, 0.98 * at).refutes
        found = gfl.single_units(units, 0.3)
        assert found.found == pytest.approx(found.corrected)
    assert gfl.threshold(10) == pytest.approx(0.0055, abs=1e-4)


def test_no_graph_of_ten_units_helps_at_the_printed_step() -> None:
    """mu h of .14 and more on 40 random graphs, a path and a ring; it does at .002."""
    graphs = [
        nx.gnp_random_graph(10, share, seed=seed) for share in (0.3, 0.6) for seed in range(20)
    ]
    for graph in [
        nx.path_graph(10),
        nx.cycle_graph(10),
        nx.star_graph(9),
        *filter(nx.is_connected, graphs),
    ]:
        degree = dict(graph.degree)
        weights = np.zeros((10, 10))
        for a, b in graph.edges:
            weights[a, b] = weights[b, a] = 1 / (1 + max(degree[a], degree[b]))
        weights += np.diag(1 - weights.sum(axis=1))
        for mu_h, better in ((0.14, False), (0.5, False), (1.0, False), (0.002, True)):
            own, other = (
                gfl.steady_variance(weights, mu_h, homomorphic=kind) for kind in (True, False)
            )
            assert (own < other) is better
