"""The distributions of a generalised linear model with their canonical links.

    E y = mu = g(eta),   Var y = phi V(mu) / w,   g' = V(mu)

McCullagh and Nelder, Generalized Linear Models, 2nd edition, chapter 2. All are functions of arrays
of one shape, elementwise, without the weights w and the dispersion phi.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .frame import FloatArray

_LARGEST = 700.0
"""Beyond it exp overflows; a step that leads there is halved, as its likelihood is far too low."""


@dataclass(frozen=True)
class Family:
    """A distribution.

    Attributes
    ----------
    name, link : str
    ratio : str
        What exp of a coefficient is called; "" where it is nothing.
    mean : function of eta
    variance : function of mu
        Also the slope of the mean in eta.
    loglik : function of y and eta
        The log-likelihood; for the Gaussian -(y - eta)^2 / 2.
    deviance : function of y and mu
    """

    name: str
    link: str
    ratio: str
    mean: Callable[[FloatArray], FloatArray]
    variance: Callable[[FloatArray], FloatArray]
    loglik: Callable[[FloatArray, FloatArray], FloatArray]
    deviance: Callable[[FloatArray, FloatArray], FloatArray]


def _logistic(eta: FloatArray) -> FloatArray:
    small = np.exp(-np.abs(eta))
    return np.where(eta >= 0, 1.0, small) / (1.0 + small)


def _binomial_loglik(outcome: FloatArray, eta: FloatArray) -> FloatArray:
    return outcome * eta - np.logaddexp(0.0, eta)


def _binomial_deviance(outcome: FloatArray, mean: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        right = np.where(outcome > 0.5, mean, 1.0 - mean)
        return -2.0 * np.log(right)


def _exponential(eta: FloatArray) -> FloatArray:
    return np.exp(np.minimum(eta, _LARGEST))


def _poisson_loglik(outcome: FloatArray, eta: FloatArray) -> FloatArray:
    from scipy.special import gammaln

    values: FloatArray = outcome * eta - _exponential(eta) - gammaln(outcome + 1.0)
    return values


def _poisson_deviance(outcome: FloatArray, mean: FloatArray) -> FloatArray:
    from scipy.special import xlogy

    values: FloatArray = 2.0 * (xlogy(outcome, outcome / mean) - (outcome - mean))
    return values


def _squares(outcome: FloatArray, mean: FloatArray) -> FloatArray:
    return (outcome - mean) ** 2


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "binomial",
            "logit",
            "odds ratio",
            _logistic,
            lambda mean: mean * (1.0 - mean),
            _binomial_loglik,
            _binomial_deviance,
        ),
        Family(
            "poisson",
            "log",
            "rate ratio",
            _exponential,
            lambda mean: mean,
            _poisson_loglik,
            _poisson_deviance,
        ),
        Family(
            "gaussian",
            "identity",
            "",
            lambda eta: eta,
            np.ones_like,
            lambda outcome, eta: -_squares(outcome, eta) / 2.0,
            _squares,
        ),
    )
}
