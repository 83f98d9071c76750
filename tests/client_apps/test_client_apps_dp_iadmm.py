"""The agent half of DP-IADMM: its closed form, its numbers by hand, its noise and what it costs."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from privet.agents.half import Local, Streams
from privet.client_apps.dp_iadmm import Agent
from privet.core import ConfigError
from privet.kernel import (
    NoCertificateError,
    NoiseError,
    Perturber,
    RecordsError,
    dp_iadmm_output_gain,
    make_set,
)
from privet.kernel.perturb import spacing
from privet.problems import L2, BinaryLogistic, MultinomialLogistic, Nonconvex, public_facts
from support.opened import held, opened
from support.perturbers import perturber

Vector = NDArray[Any]
STREAMS = Streams(0, "0", 1)


class Quadratic:
    """f(z) = a ||z||^2 / 2 - b z, by hand."""

    num_examples = 1
    dtype = np.dtype(float)

    def __init__(self, a: float, b: Vector) -> None:
        self.a, self.b, self.dim = a, b, len(b)

    def value(self, x: Vector) -> float:
        return float(0.5 * self.a * x @ x - self.b @ x)

    def gradient(self, x: Vector, rows: Any = None) -> Vector:
        return self.a * x - self.b


class Clippable(Quadratic):
    """The same, of one's own, with gradients that are clipped."""

    def clipped_gradient(
        self, x: Vector, clip: float, norm: Any = "l2", rows: Any = None
    ) -> Vector:
        slope = self.gradient(x)
        length = np.abs(slope).sum() if norm == "l1" else np.linalg.norm(slope)
        return slope * min(1.0, clip / length)


class Unit:
    """Noise whose draws of scale 1 are given, one after the other; the scale multiplies them."""

    private = False

    def __init__(self, draws: Vector) -> None:
        self.draws = draws.ravel()
        self.scales: list[float] = []

    def gaussian(self, size: Any, scale: float, dtype: Any = float) -> Vector:
        self.scales.append(scale)
        taken, self.draws = np.split(self.draws, [int(np.prod(size))])
        return scale * taken.reshape(size)

    laplace = gaussian


def work(
    agent: Agent,
    problem: Any,
    *,
    w: Any,
    lam: Any,
    inner: Any,
    t: int = 1,
    rho: float = 2.0,
    noise: Any = None,
) -> Local:
    """Play one round on plain numbers."""
    state = {"lam": np.asarray(lam, float), "inner": np.asarray(inner, float)}
    broadcast = {"w": np.asarray(w, float), "t": np.array(t), "rho": np.array(rho)}
    found = perturber(agent, problem, noise)
    local = agent.local_update(state, broadcast, opened(agent, problem, found), STREAMS)
    found.settle()
    return local


def softmax(rows: int = 6, seed: int = 0, divisor: float = 18.0) -> MultinomialLogistic:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((rows, 3))
    return MultinomialLogistic(
        features, rng.integers(0, 4, rows), 4, regularizer=L2(0.02), divisor=divisor
    )


# ------------------------------------------------------------------ by hand


def test_two_inner_steps_by_hand() -> None:
    # f = z^2 - z, so g(z) = 2 z - 1; t = 4: eta = 1/2; rho = 2, w = 1, lam = 3, z = 0.
    agent = Agent(local_updates=2)
    local = work(agent, Quadratic(2.0, np.array([1.0])), w=[1.0], lam=[3.0], inner=[0.0], t=4)
    # z1 = (2 + 3 + 1 + 0) / 4 = 1.5, z2 = (2 + 3 - 2 + 3) / 4 = 1.5
    assert local.upload["z"].tolist() == [1.5]
    assert local.state["inner"].tolist() == [1.5]
    # lam = 3 + 2 (1 - 1.5)
    assert local.agreed[0].tolist() == local.state["lam"].tolist() == [2.0]


def test_the_mean_is_sent_and_the_last_iterate_kept() -> None:
    # g(z) = -1, eta = 1, rho = 1, w = 1, lam = 0, z = 4: z1 = (1 + 1 + 4)/2 = 3, z2 = 2.5
    agent = Agent(local_updates=2)
    local = work(agent, Quadratic(0.0, np.array([1.0])), w=[1.0], lam=[0.0], inner=[4.0], rho=1.0)
    assert local.upload["z"].tolist() == [2.75]
    assert local.state["inner"].tolist() == [2.5]
    assert local.state["lam"].tolist() == [-1.75]


def test_noise_enters_every_inner_step_with_a_minus() -> None:
    agent = Agent(local_updates=2, noise_scale=2.0)
    noise = Unit(np.array([[1.0], [-0.5]]))  # xi = 2, -1
    local = work(
        agent,
        Quadratic(0.0, np.array([1.0])),
        w=[1.0],
        lam=[0.0],
        inner=[4.0],
        rho=1.0,
        noise=noise,
    )
    # z1 = (1 - 2 + 1 + 4)/2 = 2, z2 = (1 + 1 + 1 + 2)/2 = 2.5
    assert local.upload["z"].tolist() == [2.25]
    assert local.state["inner"].tolist() == [2.5]
    assert noise.scales == [2.0, 2.0]


@pytest.mark.parametrize("domain", ["none", "box", "l2"])
def test_step_minimises_the_perturbed_subproblem(domain: str) -> None:
    """(8) is minimised over W iff a projected gradient step of it stays where it is."""
    rng = np.random.default_rng(3)
    problem = softmax()
    w, lam, inner, xi = rng.standard_normal((4, problem.dim))
    t, rho = 5, 0.7
    agent = Agent(set=domain, set_radius=0.3, noise_scale=1.0)
    z = work(agent, problem, w=w, lam=lam, inner=inner, t=t, rho=rho, noise=Unit(xi)).upload["z"]
    slope = problem.gradient(inner) + math.sqrt(t) * (z - inner) - rho * (w - z + (lam - xi) / rho)
    again = make_set(domain, 0.3).project(z - 0.1 * slope)
    np.testing.assert_allclose(again, z, atol=1e-13)
    assert (domain == "none") == (np.linalg.norm(slope) < 1e-12)


@given(seed=st.integers(0, 10_000), radius=st.floats(0.01, 2.0), updates=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("perturbation", ["objective", "output"])
def test_what_is_sent_stays_in_the_ball(
    perturbation: str, seed: int, radius: float, updates: int
) -> None:
    rng = np.random.default_rng(seed)
    problem = softmax(seed=seed)
    agent = Agent(
        local_updates=updates,
        set="l2",
        set_radius=radius,
        noise_scale=0.5,
        clip=1.0,
        perturbation=perturbation,
        row_norm=3.0,
    )
    w, lam, inner = rng.standard_normal((3, problem.dim))
    local = work(agent, problem, w=w, lam=lam, inner=inner)
    assert np.linalg.norm(local.upload["z"]) <= radius * (1 + 1e-12)


# ------------------------------------------------------------------ step sizes


def eta_of(agent: Agent, problem: Any, t: int) -> float:
    return agent.eta(opened(agent, problem, perturber(agent, problem)), public_facts(problem), t)


def test_rules_of_eta() -> None:
    problem = softmax()
    assert eta_of(Agent(), problem, 9) == pytest.approx(1 / 3)
    smooth = Agent(eta_rule="smooth", smoothness=0.7, epsilon=0.5)
    assert eta_of(smooth, problem, 4) == pytest.approx(1 / (0.7 + 2 / 0.5))
    assert eta_of(Agent(eta_rule="smooth", smoothness=0.7), problem, 4) == pytest.approx(1 / 0.7)
    strong = Agent(eta_rule="strongly-convex", strong_convexity=0.2)
    assert eta_of(strong, problem, 3) == pytest.approx(2 / (0.2 * 5))


def test_moduli_come_from_the_problem_where_they_are_not_given() -> None:
    problem = softmax()
    assert eta_of(Agent(eta_rule="smooth"), problem, 1) == pytest.approx(
        1 / problem.moduli.smoothness
    )
    strong = eta_of(Agent(eta_rule="strongly-convex"), problem, 1)
    assert strong == pytest.approx(2 / (3 * problem.moduli.strong_convexity))


@pytest.mark.parametrize("rule", ["smooth", "strongly-convex", "nonsmooth"])
def test_private_steps_do_not_depend_on_the_data(rule: str) -> None:
    agent = Agent(eta_rule=rule, clip=1.0, noise_scale=1.0, row_norm=2.0)
    one, other = softmax(seed=1), softmax(seed=2)
    assert one.moduli != other.moduli
    assert eta_of(agent, held(agent, one), 3) == eta_of(agent, held(agent, other), 3)
    bare = Agent(eta_rule=rule, clip=1.0, noise_scale=1.0)
    if rule == "nonsmooth":
        assert eta_of(bare, one, 1) == 1.0
    else:
        with pytest.raises(ConfigError, match=f"eta-rule = {rule} needs row-norm"):
            eta_of(bare, one, 1)


def test_private_smoothness_is_that_of_bounded_rows_and_the_common_divisor() -> None:
    agent = Agent(eta_rule="smooth", clip=1.0, noise_scale=1.0, row_norm=2.0)
    # 6 of 18 examples, rows of norm 2, softmax 1/2, plus the regulariser
    assert eta_of(agent, softmax(), 1) == pytest.approx(1 / (6 / 18 * 4 / 2 + 0.02))


@pytest.mark.parametrize(
    ("agent", "problem", "line"),
    [
        (Agent(eta_rule="strongly-convex"), Quadratic(1.0, np.ones(1)), "does not know its moduli"),
        (
            Agent(eta_rule="strongly-convex"),
            BinaryLogistic(np.eye(2), [1, -1]),
            "needs strong-convexity > 0",
        ),
    ],
)
def test_missing_moduli_are_one_line(agent: Agent, problem: Any, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        eta_of(agent, problem, 1)


# ------------------------------------------------------------------ variants and their cost


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_one_step_without_a_set_is_the_same_with_output_noise(mechanism: str) -> None:
    rng = np.random.default_rng(5)
    problem = softmax()
    w, lam, inner, xi = rng.standard_normal((4, problem.dim))
    common: dict[str, Any] = {"mechanism": mechanism, "clip": 0.4, "noise_scale": 0.3}
    sent = [
        work(
            Agent(perturbation=name, **common),
            problem,
            w=w,
            lam=lam,
            inner=inner,
            t=3,
            noise=Unit(sign * xi),
        ).upload["z"]
        for name, sign in (("objective", -1.0), ("output", 1.0))
    ]
    np.testing.assert_allclose(sent[0], sent[1], atol=1e-14)
    releases = [
        Agent(perturbation=name, **common).release(public_facts(problem), 1)
        for name in ("objective", "output")
    ]
    assert releases[0].loss == releases[1].loss
    assert releases[0].count == releases[1].count == 1


def test_papers_sensitivity_scales_the_noise_by_the_data() -> None:
    problem = softmax()
    rng = np.random.default_rng(7)
    inner = rng.standard_normal(problem.dim)
    agent = Agent(epsilon=0.5, mechanism="laplace", sensitivity="paper")
    noise = Unit(np.zeros(problem.dim))
    work(agent, problem, w=inner, lam=inner, inner=inner, noise=noise)
    bare = MultinomialLogistic(problem.features, problem.labels, 4, divisor=18.0)
    each = [6.0 * np.abs(bare.gradient(inner, np.array([i]))).sum() for i in range(6)]
    # one row stands for 6 of 6 in a mini-batch, so its own term is a sixth
    assert noise.scales == pytest.approx([max(each) / 36.0 / 0.5])


@pytest.mark.parametrize("updates", [1, 3, 8, 9, 100])
def test_rounding_of_hidden_steps_stays_below_half_the_grid(
    updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the largest numbers that are let in, against exact fractions; larger ones are refused."""
    weight, rho, eta = 0.05, 1e-3, 0.3
    problem = BinaryLogistic(np.zeros((4, 2)), [1, -1, 1, -1], regularizer=L2(weight))
    agent = Agent(
        local_updates=updates, clip=0.4, noise_scale=0.1, perturbation="output", row_norm=0.5
    )
    facts = public_facts(problem)
    grid = spacing(agent.release(facts, 1), 2)
    gain = dp_iadmm_output_gain(
        rho=rho,
        eta=eta,
        local_updates=updates,
        loss="logistic",
        smoothness=0.25 * 0.5**2,
        regularizer_modulus=weight,
    )
    largest = 2.0**46 * grid * gain / max(1.0, updates / 8)
    seen: list[Any] = []

    def perturb(self: Perturber, clipped: Any) -> Any:
        seen.append(clipped.value)
        self.taken += 1
        return clipped.value

    monkeypatch.setattr(Perturber, "perturb", perturb)
    t = 1 / eta**2
    eta = 1.0 / math.sqrt(t)
    near, shrink = 1.0 / eta, 1.0 / (rho + 1.0 / eta)
    for share in (0.999, 0.7, -1 / 3):
        inner = largest * share * np.array([1.0, 1 / 3])
        lam = 0.6 * largest / shrink * np.array([share, -share])
        state = {"lam": lam, "inner": inner}
        broadcast = {"w": np.zeros(2), "t": np.array(t), "rho": np.array(rho)}
        monkeypatch.setattr(Agent, "eta", lambda *_: eta)
        records = opened(agent, problem, perturber(agent, problem))
        agent.local_update(state, broadcast, records, STREAMS)
        for k in range(2):
            z, total = Fraction(inner[k]), Fraction(0)
            for _ in range(updates):
                z = (z * Fraction(near) + Fraction(lam[k]) - Fraction(weight) * z) * Fraction(
                    shrink
                )
                total += z
            exact = total / updates / Fraction(gain)
            assert abs(Fraction(seen[-1][k]) - exact) < Fraction(grid) / 2
    state = {"lam": np.zeros(2), "inner": np.array([1.01 * largest, 0.0])}
    records = opened(agent, problem, perturber(agent, problem))
    with pytest.raises(NoiseError, match="too large for noise"):
        agent.local_update(state, broadcast, records, STREAMS)


def test_output_variant_keeps_nothing_that_was_not_released() -> None:
    problem = softmax()
    zeros = np.zeros(problem.dim)
    agent = Agent(local_updates=3, clip=0.5, noise_scale=1.0, perturbation="output", row_norm=3.0)
    local = work(agent, problem, w=zeros, lam=zeros, inner=zeros)
    assert sorted(local.state) == ["lam", "z"]
    np.testing.assert_array_equal(local.state["z"], local.upload["z"])


def mean_of_steps(
    problem: Any, clip: float, rho: float, eta: float, updates: int, start: Vector
) -> Vector:
    """The un-noised map that output perturbation hides, written out."""
    z, total = start, np.zeros_like(start)
    for _ in range(updates):
        z = (z / eta - problem.clipped_gradient(z, clip)) / (rho + 1 / eta)
        total += z
    return total / updates


@pytest.mark.parametrize("kind", ["logistic", "multinomial"])
@given(
    seed=st.integers(0, 2**32 - 1),
    updates=st.integers(1, 6),
    rho=st.floats(0.01, 5.0),
    eta=st.floats(0.05, 5.0),
    clip=st.floats(0.05, 3.0),
    radius=st.floats(0.2, 3.0),
)
@settings(max_examples=150, deadline=None)
def test_no_pair_of_neighbours_moves_z_p_further_than_certified(
    kind: str, seed: int, updates: int, rho: float, eta: float, clip: float, radius: float
) -> None:
    rng = np.random.default_rng(seed)
    count, divisor, weight = 4, 9.0, 0.05
    features = rng.standard_normal((count, 2)) * 4
    labels = rng.integers(0, 2, count)
    other, flipped = features.copy(), labels.copy()
    other[0] = -features[0] if rng.random() < 0.5 else rng.standard_normal(2) * 4
    flipped[0] = 1 - labels[0]

    def problem(a: Vector, b: Vector) -> Any:
        if kind == "logistic":
            made: Any = BinaryLogistic(a, 2 * b - 1, regularizer=L2(weight), divisor=divisor)
        else:
            made = MultinomialLogistic(a, b, 3, regularizer=L2(weight), divisor=divisor)
        return made.with_rows_within(radius)

    pair = problem(features, labels), problem(other, flipped)
    start = rng.standard_normal(pair[0].dim) * rng.choice([0.1, 1.0, 5.0])
    moved = [mean_of_steps(one, clip, rho, eta, updates, start) for one in pair]
    gain = dp_iadmm_output_gain(
        rho=rho,
        eta=eta,
        local_updates=updates,
        loss=kind,
        regularizer_modulus=weight,
        smoothness=(0.25 if kind == "logistic" else 0.5) * radius**2 * count / divisor,
    )
    bound = gain * 2 * clip / divisor
    assert np.linalg.norm(moved[0] - moved[1]) <= bound * (1 + 1e-9)


def test_projection_to_a_ball_can_move_l1_neighbours_apart() -> None:
    """Why Laplace noise on what was projected there has no certificate."""
    ball = make_set("l2", 1.0)
    edge = np.array([math.sin(math.pi / 8), math.cos(math.pi / 8)])
    other = edge + np.array([1e-6, 0.0])
    spread = np.abs(ball.project(other) - ball.project(edge)).sum() / 1e-6
    assert spread == pytest.approx((1 + math.sqrt(2)) / 2, rel=1e-4)


def test_the_certificate_is_attained() -> None:
    """A lone example whose clipped gradient points the other way in the neighbour."""
    rho, eta, clip, divisor, updates = 0.5, 0.8, 0.01, 4.0, 5
    row = np.array([[3.0, 0.0]])
    pair = [BinaryLogistic(row, [sign], divisor=divisor) for sign in (1, -1)]
    start = np.zeros(2)  # the gradient, 1.5, stays clipped
    moved = [mean_of_steps(one, clip, rho, eta, updates, start) for one in pair]
    gain = dp_iadmm_output_gain(
        rho=rho,
        eta=eta,
        local_updates=updates,
        loss="logistic",
        smoothness=0.25 * 3.0**2 / divisor,
    )
    assert np.linalg.norm(moved[0] - moved[1]) == pytest.approx(gain * 2 * clip / divisor)


@pytest.mark.parametrize(
    ("settings", "problem", "line"),
    [
        ({"local_updates": 3}, softmax(), "needs row-norm"),
        ({"local_updates": 3, "mechanism": "laplace", "row_norm": 1.0}, softmax(), "laplace noise"),
        ({"mechanism": "laplace", "set": "l2"}, softmax(), "laplace noise"),
        ({"mechanism": "laplace", "set": "l2"}, Clippable(1.0, np.ones(2)), "laplace noise"),
        ({"local_updates": 2}, Clippable(1.0, np.ones(2)), "needs row-norm"),
        (
            {"local_updates": 2, "row_norm": 1.0},
            MultinomialLogistic(np.eye(2, dtype="f4"), [0, 1], 2),
            "needs dtype = float64",
        ),
        (
            {},
            MultinomialLogistic(np.eye(2), [0, 1], 2, regularizer=Nonconvex(0.1)),
            "l2 and no regulariser",
        ),
    ],
)
def test_output_perturbation_refuses_what_has_no_proof(
    settings: dict[str, Any], problem: Any, line: str
) -> None:
    agent = Agent(perturbation="output", clip=1.0, noise_scale=1.0, **settings)
    with pytest.raises(NoCertificateError, match=line):
        agent.release(public_facts(problem), 1)


def test_problem_that_cannot_clip_has_no_certificate() -> None:
    agent = Agent(clip=1.0, noise_scale=1.0)
    with pytest.raises(RecordsError, match="cannot clip per example"):
        held(agent, Quadratic(1.0, np.ones(2)))
    with pytest.raises(NoCertificateError, match="cannot clip per example"):
        agent.release(public_facts(Quadratic(1.0, np.ones(2))), 1)


def test_agent_refuses_an_epsilon_without_clip() -> None:
    for perturbation in ("objective", "output"):
        agent = Agent(epsilon=0.5, perturbation=perturbation)
        with pytest.raises(ConfigError, match=r"epsilon = 0.5 needs clip > 0"):
            work(agent, softmax(), w=np.zeros(12), lam=np.zeros(12), inner=np.zeros(12))


def test_restart_without_a_server_that_remembers() -> None:
    w = np.array([1.0, 2.0], np.float32)
    state = Agent().restart({"w": w}, public_facts(softmax()))
    assert state["z"].tolist() == [1.0, 2.0]
    assert state["lam"].tolist() == [0.0, 0.0]
    assert state["lam"].dtype == np.float32


def test_float32_stays_float32() -> None:
    rng = np.random.default_rng(0)
    problem = MultinomialLogistic(
        rng.random((5, 3), np.float32), rng.integers(0, 4, 5), 4, regularizer=L2(0.1)
    )
    zeros = np.zeros(12, np.float32)
    for perturbation, updates in (("objective", 2), ("output", 1)):
        agent = Agent(
            clip=1.0,
            noise_scale=0.1,
            perturbation=perturbation,
            local_updates=updates,
            row_norm=1.0,
        )
        local = agent.local_update(
            {"lam": zeros, "inner": zeros},
            {"w": zeros, "t": np.array(1), "rho": np.array(2.0)},
            opened(agent, problem, perturber(agent, problem)),
            STREAMS,
        )
        for array in (*local.state.values(), *local.upload.values(), *local.agreed):
            assert array.dtype == np.float32
