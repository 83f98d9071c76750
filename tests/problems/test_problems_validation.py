"""What constructors and builders refuse, with the line they give."""

from __future__ import annotations

import re

import numpy as np
import pytest

from privet.kernel import make_set
from privet.problems import (
    BinaryLogistic,
    MultinomialLogistic,
    OneClassLogistic,
    RidgeRegression,
    make_h,
    make_regularizer,
)

FEATURES = np.ones((3, 2))


def refuses(message):
    return pytest.raises(ValueError, match="^" + re.escape(message) + "$")


@pytest.mark.parametrize("kind", [BinaryLogistic, RidgeRegression])
@pytest.mark.parametrize("empty", [np.empty((0, 4)), np.empty(0), []])
def test_no_examples(kind, empty):
    with refuses("agent has no data"):
        kind(empty, [])


@pytest.mark.parametrize("label", [0, 2.5, -2])
def test_binary_labels_name_the_offending_value(label):
    with refuses(f"labels must be -1 or +1, found {np.array([1, label])[1]}"):
        BinaryLogistic(FEATURES, [1, label, -1])


def test_nan_labels():
    with refuses("labels must be -1 or +1, found nan"):
        BinaryLogistic(FEATURES, [1.0, np.nan, -1.0])
    with refuses("labels must be integers 0..2, found nan"):
        MultinomialLogistic(FEATURES, [1.0, np.nan, 0.0], 3)


@pytest.mark.parametrize("kind", [MultinomialLogistic, OneClassLogistic])
def test_class_labels_name_the_offending_value(kind):
    with refuses("labels must be integers 0..2, found 3"):
        kind(FEATURES, [0, 3, 1], 3)
    with refuses("labels must be integers 0..2, found -1"):
        kind(FEATURES, [0, 2, -1], 3)
    with refuses("labels must be integers 0..2, found 0.5"):
        kind(FEATURES, [0, 0.5, 1], 3)
    with refuses("classes must be at least 2, found 1"):
        kind(FEATURES, [0, 0, 0], 1)
    assert kind(FEATURES, [0.0, 2.0, 1.0], 3).labels.tolist() == [0, 2, 1]


def test_targets_must_be_finite_numbers():
    with refuses("targets must be finite in float64, found inf"):
        RidgeRegression(FEATURES, [0.0, np.inf, 1.0])
    with refuses("targets must be real numbers, found dtype <U1"):
        RidgeRegression(FEATURES, ["a", "b", "c"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_features_must_be_finite(bad):
    features = FEATURES.copy()
    features[1, 0] = bad
    with refuses(f"features must be finite, found {bad} in row 1, column 0"):
        BinaryLogistic(features, [1, -1, 1])


def test_features_must_be_real_matrices():
    with refuses("features must have shape (examples, features), found (3,)"):
        RidgeRegression(np.ones(3), np.ones(3))
    with refuses("features must have shape (examples, features), found (3, 0)"):
        RidgeRegression(np.ones((3, 0)), np.ones(3))
    with refuses("features must be real numbers, found dtype complex128"):
        RidgeRegression(1j * FEATURES, np.ones(3))


@pytest.mark.parametrize("labels", [[1, -1], [[1], [-1], [1]], [1, -1, 1, 1]])
def test_one_label_per_example(labels):
    shape = np.shape(labels)
    with refuses(f"labels must have shape (3,) as features have 3 rows, found {shape}"):
        BinaryLogistic(FEATURES, labels)


@pytest.mark.parametrize("divisor", [0, -1.0, float("inf"), float("nan")])
def test_the_divisor_is_positive(divisor):
    with refuses(f"divisor must be finite and positive, found {divisor}"):
        RidgeRegression(FEATURES, np.ones(3), divisor=divisor)


@pytest.mark.parametrize("shape", [(3,), (2, 1), ()])
def test_points_have_the_shape_of_the_problem(shape):
    problem = RidgeRegression(FEATURES, np.ones(3))
    x = np.ones(shape)
    for call in (problem.value, problem.gradient, problem.hessian):
        with refuses(f"x must have shape (2,), found {shape}"):
            call(x)
    with refuses(f"x must have shape (2,), found {shape}"):
        problem.clipped_gradient(x, 1.0)


def test_mini_batches_are_not_empty_and_in_range():
    problem = RidgeRegression(FEATURES, np.ones(3))
    with refuses("rows is an empty mini-batch"):
        problem.gradient(np.ones(2), np.array([], int))
    with pytest.raises(IndexError):
        problem.gradient(np.ones(2), np.array([3]))


def test_regularizers():
    with refuses("regularizer = 'l3' is unknown; known: none, l2, nonconvex"):
        make_regularizer("l3", 0.1)
    for name in ("l2", "nonconvex"):
        for weight in (-0.1, float("nan"), float("inf")):
            with refuses(f"regularizer weight must be finite and at least 0, found {weight}"):
                make_regularizer(name, weight)


def test_unknown_h():
    with refuses("h = 'lasso' is unknown; known: zero, l1, elastic-net, box, l2-ball, group-l1"):
        make_h("lasso", **{"h-weight": 0.1})


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("l1", {}, "h = 'l1' needs h-weight"),
        ("l1", {"h-weight": None}, "h = 'l1' needs h-weight"),
        ("elastic-net", {"h-weight": 0.1}, "h = 'elastic-net' needs h-ratio"),
        ("box", {"h-weight": 0.1}, "h = 'box' needs h-radius"),
        ("l2-ball", {}, "h = 'l2-ball' needs h-radius"),
        ("group-l1", {"h-weight": 0.1}, "h = 'group-l1' needs h-group-size"),
        ("l1", {"h-weight": -1.0}, "h-weight must be finite and at least 0, found -1.0"),
        ("l1", {"h-weight": np.nan}, "h-weight must be finite and at least 0, found nan"),
        (
            "elastic-net",
            {"h-weight": 0.1, "h-ratio": 1.5},
            "h-ratio must be in [0, 1], found 1.5",
        ),
        ("box", {"h-radius": 0.0}, "h-radius must be finite and positive, found 0.0"),
        (
            "group-l1",
            {"h-weight": 0.1, "h-group-size": 1.5},
            "h-group-size must be a positive integer, found 1.5",
        ),
        (
            "group-l1",
            {"h-weight": 0.1, "h-group-size": 0},
            "h-group-size must be a positive integer, found 0",
        ),
        (
            "l1",
            {"h-wieght": 0.1},
            "h-wieght is not a parameter of h; known: h-weight, h-ratio, h-radius, h-group-size",
        ),
    ],
)
def test_h_parameters(name, params, message):
    with refuses(message):
        make_h(name, **params)


def test_groups_must_divide_the_parameters():
    h = make_h("group-l1", **{"h-weight": 0.1, "h-group-size": 3})
    for call in (lambda: h.value(np.ones(4)), lambda: h.prox(np.ones(4), 1.0)):
        with refuses("h-group-size 3 does not divide 4 parameters"):
            call()


def test_sets():
    with refuses("set = 'ball' is unknown; known: none, box, l2"):
        make_set("ball", 1.0)
    with refuses("set = 'l2' needs set-radius"):
        make_set("l2")
    for radius in (0.0, -1.0, float("inf")):
        with refuses(f"set-radius must be finite and positive, found {radius}"):
            make_set("box", radius)
