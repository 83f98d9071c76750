"""Proximal operators by Moreau's identity, optimality conditions and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privet.kernel import Box, ConvexSet, L2Ball, Zero, make_set
from privet.problems import ElasticNet, GroupL1, ProximalFunction, Scaled, make_h, soft_threshold

DIM = 6
PARAMS = {"h-weight": 0.7, "h-ratio": 0.4, "h-radius": 1.3, "h-group-size": 2}
NAMES = ("zero", "l1", "elastic-net", "box", "l2-ball", "group-l1")

vectors = arrays(np.float64, DIM, elements=st.floats(-50.0, 50.0))
steps = st.floats(0.01, 20.0)
names = st.sampled_from(NAMES)


def soft(v, t):
    return np.array([math.copysign(max(abs(c) - t, 0.0), c) for c in v])


def into_ball(v, radius):
    return v * min(1.0, radius / max(np.linalg.norm(v), 1e-300))


def conjugate_prox(name, v, step):
    """prox of step * h* at v, from the conjugates' closed forms."""
    w, ratio, radius = PARAMS["h-weight"], PARAMS["h-ratio"], PARAMS["h-radius"]
    if name == "zero":  # h* is the indicator of {0}
        return np.zeros_like(v)
    if name == "l1":  # the indicator of the max-norm ball
        return np.clip(v, -w, w)
    if name == "group-l1":  # the indicator of one l2 ball per group
        return np.concatenate([into_ball(part, w) for part in v.reshape(-1, 2)])
    if name == "box":  # radius * l1 norm
        return soft(v, step * radius)
    if name == "l2-ball":  # radius * l2 norm
        return v - into_ball(v, step * radius)
    # Elastic net: h*(y) = (|y| - w ratio)_+^2 / (2 w (1 - ratio)) per coordinate.
    t, c = w * ratio, w * (1.0 - ratio)
    return np.array(
        [y if abs(y) <= t else (c * y + step * math.copysign(t, y)) / (c + step) for y in v]
    )


@given(name=names, v=vectors, step=steps)
@settings(deadline=None, max_examples=100)
def test_moreau_identity(name, v, step):
    h = make_h(name, **PARAMS)
    total = h.prox(v, step) + step * conjugate_prox(name, v / step, 1.0 / step)
    np.testing.assert_allclose(total, v, rtol=1e-12, atol=1e-12)


@given(name=names, v=vectors, step=steps)
@settings(deadline=None, max_examples=100)
def test_prox_satisfies_its_optimality_condition(name, v, step):
    h = make_h(name, **PARAMS)
    x = h.prox(v, step)
    assert h.subgradient_residual(x, (x - v) / step) <= 1e-11 * (1.0 + np.linalg.norm(v) / step)
    assert h.value(x) < math.inf


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_residual_is_the_length_of_a_tiny_prox_gradient_step(name, seed, scale):
    # As its length t falls, the step -t g followed by prox moves x by t times the distance.
    h = make_h(name, **PARAMS)
    generator = np.random.default_rng(seed)
    v, g = scale * generator.standard_normal((2, DIM))
    x, tiny = h.prox(v, 1.0), 1e-7
    moved = np.linalg.norm(h.prox(x - tiny * g, tiny) - x) / tiny
    assert h.subgradient_residual(x, g) == pytest.approx(moved, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtypes_are_kept_and_results_are_new_or_the_point_itself(name, dtype):
    h = make_h(name, **PARAMS)
    assert isinstance(h, ProximalFunction)
    for scale in (0.1, 1.0, 10.0):
        v = scale * np.linspace(-1.0, 1.0, DIM).astype(dtype)
        kept = v.copy()
        x = h.prox(v, np.float64(0.5))
        assert x.dtype == dtype
        assert x.shape == v.shape
        assert x is v if name == "zero" else not np.shares_memory(x, v)
        np.testing.assert_array_equal(v, kept)
        expected = h.prox(v.astype(np.float64), 0.5)
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)
        assert h.value(x) < math.inf
        tolerance = 1e-5 if dtype == np.float32 else 1e-13
        assert h.subgradient_residual(x, (x - v) * dtype(2.0)) <= tolerance * (1 + scale)


def test_closed_forms():
    v = np.array([3.0, -0.5, 0.0, -2.0, 0.6, 0.8])
    np.testing.assert_array_equal(soft_threshold(v, 1.0), [2.0, 0.0, 0.0, -1.0, 0.0, 0.0])
    np.testing.assert_array_equal(
        make_h("l1", **{"h-weight": 0.5}).prox(v, 2.0), soft_threshold(v, 1.0)
    )
    assert ElasticNet(2.0).value(v) == pytest.approx(2.0 * 6.9, rel=1e-14)
    assert ElasticNet(2.0, 0.25).value(v) == pytest.approx(
        2.0 * (0.25 * 6.9 + 0.75 * 14.25 / 2.0), rel=1e-14
    )
    np.testing.assert_allclose(ElasticNet(2.0, 0.5).prox(v, 1.0), soft(v, 1.0) / 2.0)
    np.testing.assert_array_equal(Box(1.0).project(v), [1.0, -0.5, 0.0, -1.0, 0.6, 0.8])
    np.testing.assert_allclose(L2Ball(1.0).project(np.array([3.0, 4.0])), [0.6, 0.8])
    assert GroupL1(2.0, 2).value(np.array([3.0, 4.0, 0.0, 0.0, 0.0, 1.0])) == 12.0
    np.testing.assert_allclose(
        GroupL1(1.0, 2).prox(np.array([3.0, 4.0, 0.0, 0.0, 0.3, 0.4]), 1.0),
        [2.4, 3.2, 0.0, 0.0, 0.0, 0.0],
    )
    assert Zero().value(v) == 0.0


@given(name=names, v=vectors, step=steps, factor=st.floats(0.1, 10.0))
@settings(deadline=None, max_examples=60)
def test_a_multiple_of_h_has_its_value_prox_and_residual(name, v, step, factor):
    h, multiple = make_h(name, **PARAMS), Scaled(make_h(name, **PARAMS), factor)
    x = multiple.prox(v, step)
    assert multiple.value(x) == factor * h.value(x)
    np.testing.assert_array_equal(x, h.prox(v, step * factor))
    residual = multiple.subgradient_residual(x, (x - v) / step)
    assert residual <= 1e-11 * (1.0 + factor) * (1.0 + np.linalg.norm(v) / step)
    with pytest.raises(ValueError, match="factor"):
        Scaled(h, 0.0)


@pytest.mark.parametrize("name", ["l1", "group-l1", "elastic-net"])
def test_a_zero_weight_is_no_term(name):
    v = np.array([1e-200, -3.0, 0.0, 2.0, 0.0, 0.0])
    h = make_h(name, **(PARAMS | {"h-weight": 0.0}))
    np.testing.assert_allclose(h.prox(v, 5.0), v, atol=1e-199)
    assert h.value(v) == 0.0
    assert h.subgradient_residual(v, np.ones(DIM)) == pytest.approx(math.sqrt(DIM), rel=1e-14)


def test_values_outside_the_sets_are_infinite():
    for h in (Box(1.0), L2Ball(1.0)):
        outside = np.array([1.1, 0.0])
        assert h.value(outside) == math.inf
        assert h.subgradient_residual(outside, np.zeros(2)) == math.inf
        assert h.value(np.array([0.6, 0.7])) == 0.0


@given(
    v=arrays(np.float64, 9, elements=st.floats(-1e6, 1e6)),
    radius=st.floats(1e-3, 1e3),
    name=st.sampled_from(["none", "box", "l2"]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(deadline=None, max_examples=100)
def test_projections_are_idempotent_and_feasible(v, radius, name, dtype):
    w = make_set(name, None if name == "none" else radius)
    assert isinstance(w, ConvexSet)
    x = w.project(v.astype(dtype))
    assert x.dtype == dtype
    np.testing.assert_array_equal(w.project(x), x)
    assert w.value(x) == 0.0
    size = {"none": 0.0, "box": np.abs(x).max(), "l2": np.linalg.norm(x.astype(np.float64))}
    assert size[name] <= radius * (1 + 1e-5)


def test_sets_and_indicators_are_one_implementation():
    assert make_set("none") == make_h("zero") == Zero()
    assert make_set("box", 2.0) == make_h("box", **{"h-radius": 2.0}) == Box(2.0)
    assert make_set("l2", 2.0) == make_h("l2-ball", **{"h-radius": 2.0}) == L2Ball(2.0)


def test_unneeded_parameters_are_ignored():
    assert make_h("zero", **{"h-weight": 0.0}) == Zero()
    assert make_h("l1", **PARAMS) == ElasticNet(0.7, 1.0)
    assert make_h("l1", **{"h-weight": 0.7, "h-ratio": None}) == ElasticNet(0.7)
    assert make_h("group-l1", **PARAMS) == GroupL1(0.7, 2)
