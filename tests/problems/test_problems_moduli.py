"""Moduli against Hessians at many points, and eigenvalue bounds against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.kernel import Moduli, clip_rows, loss_curvature, public_moduli
from privet.kernel.curvature import PROVEN
from privet.kernel.sensitivity import SCALAR_LOSSES
from privet.problems import (
    BinaryLogistic,
    MultinomialLogistic,
    OneClassLogistic,
    RidgeRegression,
    make_regularizer,
)
from privet.problems.spectrum import EXACT_UP_TO, gram_extremes, largest_eigenvalue_bound
from support.problem_cases import LOSSES, build, random_case

REGULARIZERS = ("none", "l2", "nonconvex")
KIND = {
    "binary": BinaryLogistic,
    "multinomial": MultinomialLogistic,
    "one-class": OneClassLogistic,
    "ridge": RidgeRegression,
}


def spectra(case, points):
    """Extreme eigenvalues of the Hessians at the points."""
    values = [np.linalg.eigvalsh(case.problem.hessian(x)) for x in points]
    return min(v[0] for v in values), max(v[-1] for v in values)


@given(
    loss=st.sampled_from(LOSSES),
    regularizer=st.sampled_from(REGULARIZERS),
    seed=st.integers(0, 10**6),
    examples=st.integers(1, 12),
    width=st.integers(1, 4),
    divisor=st.sampled_from([None, 30.0]),
)
@settings(deadline=None, max_examples=60)
def test_moduli_bound_every_hessian(*, loss, regularizer, seed, examples, width, divisor):
    case = random_case(
        loss,
        seed=seed,
        examples=examples,
        width=width,
        regularizer=regularizer,
        divisor=divisor,
    )
    generator = np.random.default_rng(seed + 1)
    points = [scale * generator.standard_normal(case.problem.dim) for scale in (0, 0.3, 1, 3, 9)]
    low, high = spectra(case, points)
    moduli = case.problem.moduli
    slack = 1e-9 * (1.0 + moduli.smoothness)
    assert moduli.strong_convexity <= low + slack
    assert high <= moduli.smoothness + slack


@pytest.mark.parametrize("loss", ["binary", "one-class", "ridge"])
@pytest.mark.parametrize("regularizer", ["none", "l2"])
def test_smoothness_is_attained_at_zero(loss, regularizer):
    case = random_case(loss, examples=30, regularizer=regularizer)
    _, high = spectra(case, [np.zeros(case.problem.dim)])
    assert case.problem.moduli.smoothness == pytest.approx(high, rel=1e-12)


def test_convex_data_terms_claim_no_strong_convexity():
    for loss in ("binary", "multinomial", "one-class"):
        case = random_case(loss, examples=50, regularizer="l2", weight=0.3)
        assert case.problem.moduli.strong_convexity == 0.3
        case = random_case(loss, regularizer="nonconvex", weight=0.3)
        assert case.problem.moduli.strong_convexity == -0.15


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("regularizer", REGULARIZERS)
@pytest.mark.parametrize("divisor", [None, 30.0])
def test_public_moduli_cover_the_data_and_are_tight_for_equal_rows(loss, regularizer, divisor):
    r = make_regularizer(regularizer, 0.2)
    share = 12.0 / (divisor or 12.0)
    public = public_moduli(KIND[loss].kind, 1.5, r.moduli, share=share)
    case = random_case(loss)
    clipped = build(
        loss, clip_rows(case.features, 1.5), case.targets, regularizer=r, divisor=divisor
    )
    assert clipped.moduli.smoothness <= public.smoothness
    assert clipped.moduli.strong_convexity >= public.strong_convexity
    equal = np.tile([1.5, 0.0, 0.0, 0.0], (12, 1))
    worst = build(loss, equal, np.ones(12), regularizer=r, divisor=divisor)
    assert worst.moduli.smoothness == pytest.approx(public.smoothness, rel=1e-12)
    assert public.strong_convexity == r.moduli.strong_convexity


def test_public_moduli_closed_forms():
    for loss, smoothness in (
        ("binary", 1.0),
        ("one-class", 1.0),
        ("multinomial", 2.0),
        ("ridge", 8.0),
    ):
        assert public_moduli(KIND[loss].kind, 2.0) == Moduli(0.0, smoothness)
    with_l2 = public_moduli("logistic", 2.0, make_regularizer("l2", 0.5).moduli, share=0.5)
    assert with_l2 == Moduli(0.5, 1.0)


@pytest.mark.parametrize("loss", LOSSES)
def test_curvature_by_name_is_that_of_the_loss(loss):
    # One example with one feature of 1: the Hessian in x is that in the score.
    case = random_case(loss, examples=1, width=1, regularizer="none")
    one = build(loss, np.ones((1, 1)), case.targets)
    points = [s * np.arange(one.dim) for s in np.linspace(-8.0, 8.0, 161)]
    values = [np.linalg.eigvalsh(one.hessian(x)) for x in points]
    low, high = loss_curvature(KIND[loss].kind)
    assert min(v[0] for v in values) >= low - 1e-12
    largest = max(v[-1] for v in values)
    # Softmax over three classes comes near 1/2 where two of them share all probability.
    far = (
        one.hessian(np.array([0.0, 0.0, -80.0]))
        if loss == "multinomial"
        else one.hessian(np.zeros(one.dim))
    )
    assert largest <= high + 1e-12
    assert np.linalg.eigvalsh(far)[-1] == pytest.approx(high, rel=1e-12)


def test_a_loss_of_unknown_curvature_is_refused():
    with pytest.raises(ValueError, match="loss 'hinge' has no known curvature: expected one of"):
        loss_curvature("hinge")
    for radius, share in ((0.0, 1.0), (1.0, -1.0)):
        with pytest.raises(ValueError, match="must be finite and positive"):
            public_moduli("ridge", radius, share=share)


SCALAR = {"binary": "logistic", "one-class": "one-class-logistic", "ridge": "ridge"}


def test_every_certified_loss_is_looked_at():
    certified = {name for name, loss in PROVEN.items() if loss.certificate}
    assert certified == {*SCALAR.values(), "multinomial"}
    assert set(SCALAR.values()) == set(SCALAR_LOSSES)
    assert certified == {kind.kind for kind in KIND.values()}


@pytest.mark.parametrize("loss", SCALAR)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_clipped_gradient_of_a_scalar_score_keeps_the_public_moduli(loss, norm):
    generator = np.random.default_rng(1)
    features = clip_rows(generator.standard_normal((20, 3)), 1.0)
    targets = generator.choice([0, 1] if loss == "one-class" else [-1.0, 1.0], 20)
    problem = build(loss, features, targets, regularizer=make_regularizer("l2", 0.1))
    bound = public_moduli(SCALAR[loss], 1.0, problem.regularizer.moduli)
    for _ in range(200):
        x, y = 3.0 * generator.standard_normal((2, problem.dim))
        change = problem.clipped_gradient(x, 0.3, norm) - problem.clipped_gradient(y, 0.3, norm)
        assert change @ (x - y) >= (bound.strong_convexity - 1e-12) * (x - y) @ (x - y)
        assert np.linalg.norm(change) <= bound.smoothness * np.linalg.norm(x - y)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (7, 3), (40, 40)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_gram_extremes_equal_squared_singular_values(shape, dtype):
    matrix = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    low, high = gram_extremes(matrix)
    singular = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    assert high == pytest.approx(singular[0] ** 2, rel=1e-12)
    expected = singular[-1] ** 2 if shape[0] >= shape[1] else 0.0
    assert low == pytest.approx(expected, abs=1e-12 * high)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("decay", [0.0, 0.5, 2.0])
def test_the_bound_without_the_gram_matrix_is_safe_and_close(seed, decay):
    generator = np.random.default_rng(seed)
    matrix = generator.standard_normal((300, 200)) * np.arange(1, 201) ** -decay
    exact = np.linalg.norm(matrix, 2) ** 2
    bound = largest_eigenvalue_bound(matrix)
    assert exact <= bound <= exact / 0.98 * (1.0 + 1e-9)


def test_degenerate_matrices_have_bounds():
    assert largest_eigenvalue_bound(np.zeros((5, 4))) == 0.0
    # Rank one: the certain bounds are exact.
    assert largest_eigenvalue_bound(np.ones((6, 4))) == pytest.approx(24.0, rel=1e-12)
    assert gram_extremes(np.zeros((5, 4))) == (0.0, 0.0)


def test_large_matrices_take_the_bound():
    size = EXACT_UP_TO + 1
    diagonal = np.linspace(1.0, 2.0, size)
    low, high = gram_extremes(np.diag(diagonal))
    assert low == 0.0
    assert 4.0 <= high <= 4.0 / 0.98 * (1.0 + 1e-9)
