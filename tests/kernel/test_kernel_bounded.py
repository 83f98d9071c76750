"""Clipped gradients against loops over examples that form every gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.kernel import clip_rows
from support.problem_cases import LOSSES, build, example_gradient, random_case

ORDER = {"l2": 2, "l1": 1}


def clipped_loop(case, clip, norm, rows=None):
    """The sum over examples of gradients scaled down to the clip."""
    total = np.zeros(case.problem.dim)
    for i in range(case.problem.num_examples) if rows is None else rows:
        g = example_gradient(case.loss, case.point, case.features[i], case.targets[i])
        size = np.linalg.norm(g, ORDER[norm])
        total += g if size <= clip else g * (clip / size)
    return total


@given(
    loss=st.sampled_from(LOSSES),
    norm=st.sampled_from(["l1", "l2"]),
    seed=st.integers(0, 10**6),
    examples=st.integers(1, 9),
    width=st.integers(1, 5),
    clip=st.floats(0.01, 30.0),
    divisor=st.sampled_from([None, 25.0]),
)
@settings(deadline=None, max_examples=100)
def test_clipping_equals_the_loop_over_examples(
    *, loss, norm, seed, examples, width, clip, divisor
):
    case = random_case(loss, seed=seed, examples=examples, width=width, divisor=divisor, weight=0.3)
    expected = clipped_loop(case, clip, norm) / (divisor or examples) + 0.3 * case.point
    result = case.problem.clipped_gradient(case.point, clip, norm)
    np.testing.assert_allclose(result, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_float32_clipping_and_mini_batches(loss, norm):
    case = random_case(loss, dtype=np.float32, regularizer="none")
    rows = np.array([5, 1, 1, 8])
    for clip in (0.05, 0.5, 5.0):
        result = case.problem.clipped_gradient(case.point, clip, norm, rows)
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, clipped_loop(case, clip, norm, rows) / 4, atol=3e-6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_last_clip_and_norm_are_not_confused_with_the_next(loss, norm):
    case = random_case(loss)
    other = "l1" if norm == "l2" else "l2"
    first = case.problem.clipped_gradient(case.point, 0.1, norm)
    case.problem.clipped_gradient(case.point, 0.2, norm)
    case.problem.clipped_gradient(case.point, 0.1, other)
    np.testing.assert_array_equal(case.problem.clipped_gradient(case.point, 0.1, norm), first)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 1e30])
def test_zero_rows_contribute_nothing(loss, dtype, clip):
    case = random_case(loss, dtype=dtype, regularizer="none")
    features = case.features.astype(dtype)
    features[::2] = 0.0
    halved = build(loss, features, case.targets)
    others = build(loss, features[1::2], case.targets[1::2], divisor=12.0)
    for norm in ("l1", "l2"):
        np.testing.assert_allclose(
            halved.clipped_gradient(case.point, clip, norm),
            others.clipped_gradient(case.point, clip, norm),
            rtol=1e-5,
            atol=1e-9,
        )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("clip", [0.01, 0.3, 100.0])
@pytest.mark.parametrize("divisor", [None, 40.0])
def test_the_whole_batch_is_clipped_as_one_vector(loss, clip, divisor):
    case = random_case(loss, divisor=divisor, weight=0.3)
    data = clipped_loop(case, math.inf, "l2") / (divisor or 12)
    expected = data * min(1.0, clip / np.linalg.norm(data)) + 0.3 * case.point
    result = case.problem.batch_clipped_gradient(case.point, clip)
    np.testing.assert_allclose(result, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan])
def test_a_clip_that_is_not_positive_is_refused(clip):
    case = random_case("binary")
    with pytest.raises(ValueError, match="clip must be finite and positive"):
        case.problem.clipped_gradient(case.point, clip)
    with pytest.raises(ValueError, match="clip must be finite and positive"):
        case.problem.batch_clipped_gradient(case.point, clip)


def test_an_unknown_norm_is_refused():
    case = random_case("ridge")
    with pytest.raises(ValueError, match="norm must be l1 or l2, found 'max'"):
        case.problem.clipped_gradient(case.point, 1.0, "max")


def test_clip_rows_leaves_its_argument_alone():
    features = np.array([[3.0, 4.0], [0.0, 0.0]])
    clipped = clip_rows(features, 1.0)
    np.testing.assert_allclose(clipped, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-14)
    np.testing.assert_array_equal(features, [[3.0, 4.0], [0.0, 0.0]])
    clipped[1] = 1.0  # the result is writable
    with pytest.raises(ValueError, match="radius must be finite and positive, found 0"):
        clip_rows(features, 0)
