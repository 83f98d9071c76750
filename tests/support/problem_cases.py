"""Random problems of every loss, and per-example formulas written out in plain Python."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from privet.problems import (
    BinaryLogistic,
    LinearModel,
    MultinomialLogistic,
    OneClassLogistic,
    RidgeRegression,
    make_regularizer,
)

LOSSES = ("binary", "multinomial", "one-class", "ridge")
CLASSES = 3


@dataclass(frozen=True)
class Case:
    """A problem together with the data it was built from."""

    loss: str
    problem: LinearModel[Any]
    features: np.ndarray
    targets: np.ndarray
    point: np.ndarray


def example_loss(loss: str, x: np.ndarray, a: np.ndarray, target: float) -> float:
    """The loss of one example in float64, straight from its definition."""
    x = np.asarray(x, np.float64)
    if loss == "ridge":
        return (math.fsum(a * x) - target) ** 2
    if loss == "binary":
        return math.log1p(math.exp(-target * math.fsum(a * x)))
    if loss == "one-class":
        return math.log1p(math.exp(-math.fsum(a * x.reshape(CLASSES, -1)[int(target)])))
    scores = [math.fsum(a * column) for column in x.reshape(-1, CLASSES).T]
    return math.log(math.fsum(map(math.exp, scores))) - scores[int(target)]


def example_gradient(loss: str, x: np.ndarray, a: np.ndarray, target: float) -> np.ndarray:
    """The gradient of `example_loss` in x, with the outer product formed."""
    x = np.asarray(x, np.float64)
    if loss == "ridge":
        return 2.0 * (a @ x - target) * a
    if loss == "binary":
        return -target / (1.0 + math.exp(target * (a @ x))) * a
    if loss == "one-class":
        rows = np.zeros((CLASSES, a.size))
        rows[int(target)] = -a / (1.0 + math.exp(a @ x.reshape(CLASSES, -1)[int(target)]))
        return rows.ravel()
    exponentials = np.exp(a @ x.reshape(-1, CLASSES))
    return np.outer(a, exponentials / exponentials.sum() - np.eye(CLASSES)[int(target)]).ravel()


def regularizer_value(name: str, weight: float, x: np.ndarray) -> float:
    """r(x) in float64."""
    squares = np.asarray(x, np.float64) ** 2
    terms = {"none": 0.0 * squares, "l2": squares / 2.0, "nonconvex": squares / (1.0 + squares)}
    return weight * math.fsum(terms[name])


def regularizer_gradient(name: str, weight: float, x: np.ndarray) -> np.ndarray:
    """The gradient of r in float64."""
    x = np.asarray(x, np.float64)
    terms = {"none": 0.0 * x, "l2": x, "nonconvex": 2.0 * x / (1.0 + x**2) ** 2}
    return weight * terms[name]


def build(
    loss: str,
    features: np.ndarray,
    targets: np.ndarray,
    **keywords: Any,
) -> LinearModel[Any]:
    """The problem of a loss on given data."""
    if loss == "binary":
        return BinaryLogistic(features, targets, **keywords)
    if loss == "ridge":
        return RidgeRegression(features, targets, **keywords)
    if loss == "one-class":
        return OneClassLogistic(features, targets, CLASSES, **keywords)
    return MultinomialLogistic(features, targets, CLASSES, **keywords)


def random_case(
    loss: str,
    *,
    seed: int = 0,
    examples: int = 12,
    width: int = 4,
    dtype: Any = np.float64,
    regularizer: str = "l2",
    weight: float = 0.3,
    divisor: float | None = None,
) -> Case:
    """A random problem and a random point."""
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((examples, width)).astype(dtype)
    if loss == "binary":
        targets = generator.choice([-1.0, 1.0], examples)
    elif loss == "ridge":
        targets = generator.standard_normal(examples).astype(dtype)
    else:
        targets = generator.integers(0, CLASSES, examples)
    problem = build(
        loss,
        features,
        targets,
        regularizer=make_regularizer(regularizer, weight),
        divisor=divisor,
    )
    point = generator.standard_normal(problem.dim).astype(dtype)
    return Case(loss, problem, features.astype(np.float64), targets, point)
