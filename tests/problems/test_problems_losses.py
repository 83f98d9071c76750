"""Values, gradients and Hessians of the losses against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privet.kernel import ClippableProblem, Problem
from privet.problems import (
    BinaryLogistic,
    MultinomialLogistic,
    OneClassLogistic,
    RidgeRegression,
    make_regularizer,
)
from support.problem_cases import (
    CLASSES,
    LOSSES,
    build,
    example_gradient,
    example_loss,
    random_case,
    regularizer_gradient,
    regularizer_value,
)

DTYPES = (np.float64, np.float32)
REGULARIZERS = ("none", "l2", "nonconvex")
RELATIVE = {np.float64: 1e-11, np.float32: 2e-5}

losses = pytest.mark.parametrize("loss", LOSSES)
dtypes = pytest.mark.parametrize("dtype", DTYPES)
regularizers = pytest.mark.parametrize("regularizer", REGULARIZERS)


@losses
@dtypes
@regularizers
@pytest.mark.parametrize("divisor", [None, 40.0])
def test_value_and_gradient_follow_the_definition(loss, dtype, regularizer, divisor):
    case = random_case(loss, dtype=dtype, regularizer=regularizer, weight=0.3, divisor=divisor)
    x, count = case.point, case.problem.num_examples
    pairs = list(zip(case.features, case.targets, strict=True))
    value = math.fsum(example_loss(loss, x, a, t) for a, t in pairs) / (divisor or count)
    value += regularizer_value(regularizer, 0.3, x)
    slope = sum(example_gradient(loss, x, a, t) for a, t in pairs) / (divisor or count)
    slope = slope + regularizer_gradient(regularizer, 0.3, x)
    gradient = case.problem.gradient(x)
    assert case.problem.value(x) == pytest.approx(value, rel=RELATIVE[dtype])
    assert gradient.dtype == dtype
    assert gradient.shape == (case.problem.dim,)
    np.testing.assert_allclose(gradient, slope, rtol=RELATIVE[dtype], atol=RELATIVE[dtype])


@losses
@regularizers
def test_hessian_is_the_slope_of_the_gradient(loss, regularizer):
    case = random_case(loss, regularizer=regularizer)
    hessian, step = case.problem.hessian(case.point), 1e-5
    for j, unit in enumerate(np.eye(case.problem.dim)):
        ahead = case.problem.gradient(case.point + step * unit)
        behind = case.problem.gradient(case.point - step * unit)
        np.testing.assert_allclose(hessian[:, j], (ahead - behind) / (2.0 * step), atol=1e-8)


@losses
@dtypes
def test_float64_points_are_taken_to_the_dtype_of_the_problem(loss, dtype):
    case = random_case(loss, dtype=dtype)
    wide = case.point.astype(np.float64)
    assert case.problem.gradient(wide).dtype == dtype
    np.testing.assert_array_equal(case.problem.gradient(wide), case.problem.gradient(case.point))
    assert case.problem.clipped_gradient(wide, 0.1).dtype == dtype
    assert case.problem.batch_clipped_gradient(wide, 0.1).dtype == dtype
    assert case.problem.gradient(wide, np.array([1, 3])).dtype == dtype


@losses
@dtypes
@pytest.mark.parametrize("regularizer", ["l2", "nonconvex"])
def test_numpy_scalars_as_weight_and_divisor_keep_float32(loss, dtype, regularizer):
    case = random_case(
        loss,
        dtype=dtype,
        regularizer=regularizer,
        weight=np.float64(0.3),
        divisor=np.float64(12.0),
    )
    assert case.problem.gradient(case.point).dtype == dtype
    assert case.problem.clipped_gradient(case.point, np.float64(0.2)).dtype == dtype


@dtypes
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_binary_margins_of_1e4(dtype, sign):
    features = np.array([[1e4, 0.0], [0.0, 1e4], [5e3, 5e3]], dtype)
    problem = BinaryLogistic(features, [1, -1, 1])
    x = np.array([sign, -sign], dtype)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        value, gradient = problem.value(x), problem.gradient(x)
        clipped = problem.clipped_gradient(x, 1.0)
    # Margins are 1e4 sign for the first two examples and 0 for the third.
    wrong = 0.0 if sign > 0 else 1.0
    assert value == pytest.approx((2e4 * wrong + math.log(2.0)) / 3.0, rel=1e-6)
    third = np.array([-2500.0, -2500.0])
    np.testing.assert_allclose(
        gradient, (wrong * np.array([-1e4, 1e4]) + third) / 3.0, rtol=1e-6, atol=1e-300
    )
    unit = -math.sqrt(0.5) * np.ones(2)
    np.testing.assert_allclose(clipped, (wrong * np.array([-1.0, 1.0]) + unit) / 3.0, rtol=1e-6)


@dtypes
def test_multinomial_scores_of_1e4(dtype):
    features = np.array([[1e4, 0.0], [0.0, 1e4]], dtype)
    problem = MultinomialLogistic(features, [0, 0], 3)
    x = np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, -1.0]], dtype)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        value, gradient = problem.value(x.ravel()), problem.gradient(x.ravel())
    # The first example is right with certainty, the second wrong by a score of 2e4.
    assert value == pytest.approx(1e4, rel=1e-6)
    expected = np.array([[0.0, 0.0, 0.0], [-5e3, 5e3, 0.0]])
    np.testing.assert_allclose(gradient.reshape(2, 3), expected, rtol=1e-6, atol=1e-300)


@losses
@dtypes
def test_far_points_raise_no_warning(loss, dtype):
    case = random_case(loss, dtype=dtype, regularizer="nonconvex")
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for scale in (1e4, -1e4, 1e8):
            x = case.point * dtype(scale)
            assert math.isfinite(case.problem.value(x))
            assert np.isfinite(case.problem.gradient(x)).all()
            assert np.isfinite(case.problem.clipped_gradient(x, 1.0, "l1")).all()


@losses
@dtypes
@pytest.mark.parametrize("divisor", [None, 40.0])
def test_mini_batches_average_to_the_gradient(loss, dtype, divisor):
    case = random_case(loss, dtype=dtype, examples=12, divisor=divisor)
    batches = np.random.default_rng(5).permutation(12).reshape(4, 3)
    mean = np.mean([case.problem.gradient(case.point, rows) for rows in batches], axis=0)
    full = case.problem.gradient(case.point)
    np.testing.assert_allclose(mean, full, rtol=RELATIVE[dtype], atol=RELATIVE[dtype])


@losses
def test_a_mini_batch_is_the_problem_of_its_examples(loss):
    case = random_case(loss)
    rows = np.array([3, 3, 0, 7])
    alone = build(
        loss,
        case.features[rows],
        case.targets[rows],
        regularizer=make_regularizer("l2", 0.3),
    )
    for batch, full in (
        (case.problem.gradient(case.point, rows), alone.gradient(case.point)),
        (
            case.problem.clipped_gradient(case.point, 0.2, "l1", rows),
            alone.clipped_gradient(case.point, 0.2, "l1"),
        ),
        (
            case.problem.batch_clipped_gradient(case.point, 0.2, rows),
            alone.batch_clipped_gradient(case.point, 0.2),
        ),
    ):
        np.testing.assert_allclose(batch, full, rtol=1e-12, atol=1e-14)


@losses
def test_results_are_fresh_and_arguments_untouched(loss):
    case = random_case(loss)
    x = case.point.copy()
    first = case.problem.gradient(x)
    kept = first.copy()
    case.problem.gradient(2.0 * x)
    case.problem.clipped_gradient(x, 0.1)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(x, case.point)
    assert not np.shares_memory(first, case.problem.gradient(x))


@losses
def test_problems_satisfy_the_protocols(loss):
    problem = random_case(loss).problem
    assert isinstance(problem, Problem)
    assert isinstance(problem, ClippableProblem)
    assert problem.num_examples == 12
    assert problem.dim == (4 if loss in ("binary", "ridge") else 4 * CLASSES)


def test_integer_features_become_float64_and_layout_becomes_c():
    features = np.asfortranarray(np.arange(12).reshape(4, 3))
    problem = RidgeRegression(features, [0, 1, 2, 3])
    assert problem.dtype == np.float64
    assert problem.features.flags.c_contiguous
    assert not problem.features.flags.writeable
    assert features.flags.writeable


def test_contiguous_features_are_not_copied():
    features = np.ones((4, 3), np.float32)
    assert np.shares_memory(RidgeRegression(features, np.zeros(4)).features, features)


def test_binary_accuracy():
    features = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 0.0]])
    x = np.array([2.0, -1.0])
    np.testing.assert_array_equal(BinaryLogistic.predict_margin(x, features), [2, -1, -2, 0])
    assert BinaryLogistic.accuracy(x, features, np.array([1, 1, -1, 1])) == 0.75


def test_class_accuracy_reads_each_layout():
    weights = np.array([[1.0, 0.0, -1.0], [0.0, 2.0, 1.0]])  # (features, classes)
    features = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [-1.0, 1.0]])
    labels = np.array([0, 1, 2, 1])
    for kind, x in ((MultinomialLogistic, weights), (OneClassLogistic, weights.T)):
        scores = kind.predict_margin(x.ravel(), features)
        np.testing.assert_array_equal(scores, features @ weights)
        assert kind.accuracy(x.ravel(), features, labels) == 1.0
        assert kind.accuracy(x.ravel(), features, np.array([0, 1, 2, 0])) == 0.75


@dtypes
@regularizers
def test_regularizers_keep_the_dtype_and_their_curvature(dtype, regularizer):
    r = make_regularizer(regularizer, np.float64(0.7))
    x = np.linspace(-3.0, 3.0, 13).astype(dtype)
    assert r.gradient(x).dtype == r.curvature(x).dtype == dtype
    step = 1e-6
    wide = x.astype(np.float64)
    slope = (r.gradient(wide + step) - r.gradient(wide - step)) / (2.0 * step)
    np.testing.assert_allclose(r.curvature(wide), slope, atol=1e-8)


def test_nonconvex_regularizer_attains_its_moduli():
    r = make_regularizer("nonconvex", 0.8)
    curvature = r.curvature(np.linspace(-20.0, 20.0, 400_001))
    assert curvature.min() == pytest.approx(r.moduli.strong_convexity, rel=1e-9)
    assert curvature.max() == pytest.approx(r.moduli.smoothness, rel=1e-9)
    assert r.moduli.strong_convexity == -0.4
    assert r.moduli.smoothness == 1.6
