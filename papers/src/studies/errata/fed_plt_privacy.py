"""Proposition 4 of the Fed-PLT paper, on two data sets that differ in one record.

N agents with f_i(x) = ||x||^2 / 2 - b_i x_2 in two dimensions, lambda = 1. Agent 1 alone has a
record, a row a of norm 1 with target t under the Huber loss, whose slope is the clip L/2 beyond a
width. In D the row is (c, s), in D' it is (-c, s): while a.x > t the two gradients differ by c L in
the first coordinate, while a.x < t by -c L. b_1 is large and the b_i sum to 0, so that agent 1
moves away from t in the first steps, and back over it at the beginning of the last round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .counterexample import Counterexample, Erratum

WIDTH = 1e6
"""Of the Huber loss, in units of tau: its curvature L / (2 WIDTH) adds to Lambda."""


@dataclass(frozen=True, slots=True)
class Course:
    """What K rounds of (13) do to x of agent 1 under D, if slopes have the signs they have at
    the mean.

    Under D' the mean of the first coordinate is the opposite, all else is the same.

    Attributes
    ----------
    mean, deviation : float
        Of the first coordinate of x_{1,K}, in units of tau.
    flips : tuple of int
        Local steps before which the sign of the slope changed.
    doubt : float
        The logarithm of a bound on the probability that a slope is not +-L/2 with that sign.
    """

    mean: float
    deviation: float
    flips: tuple[int, ...]
    doubt: float

    @classmethod
    def of(
        cls,
        *,
        agents: int,
        rho: float,
        gamma: float,
        epochs: int,
        rounds: int,
        clip: float,
        pull: float,
        target: float,
        row: tuple[float, float],
    ) -> Course:
        """Follow means and covariances, local step by local step, with tau = 1 and z_0 = 0."""
        eye, zero = np.eye(agents), np.zeros((agents, agents))
        mean_of = np.full((agents, agents), 1 / agents)
        stay, towards = (1 - gamma * (1 + 1 / rho)) * eye, gamma / rho * (2 * mean_of - eye)
        step = np.block([[stay, towards], [zero, eye]])
        end = np.block([[eye, zero], [2 * eye, eye - 2 * mean_of]])
        forces = np.full(agents, -pull / (agents - 1))
        forces[0] = pull
        first, second = np.zeros(2 * agents), np.zeros(2 * agents)
        covariance = np.diag([2.0] * agents + [0.0] * agents)
        widest, nearest, signs = 0.0, math.inf, list[int]()
        for _ in range(rounds):
            for _ in range(epochs):
                over = row[0] * first[0] + row[1] * second[0] - target
                signs.append(1 if over > 0 else -1)
                nearest = min(nearest, abs(over) - WIDTH)
                widest = max(widest, float(covariance[0, 0]))
                first, second = step @ first, step @ second
                first[0] -= gamma * signs[-1] * clip / 2 * row[0]
                second[0] -= gamma * signs[-1] * clip / 2 * row[1]
                second[:agents] += gamma * forces
                covariance = step @ covariance @ step.T
                covariance[np.arange(agents), np.arange(agents)] += 2 * gamma
            first, second, covariance = end @ first, end @ second, end @ covariance @ end.T
        flips = tuple(at for at in range(1, len(signs)) if signs[at] != signs[at - 1])
        doubt = math.log(2 * len(signs)) - max(nearest, 0) ** 2 / widest / 2
        return cls(float(first[0]), math.sqrt(covariance[0, 0]), flips, doubt)

    def divergence(self) -> float:
        """Return a bound from below on the Kullback-Leibler divergence of x_{1,K}, D against D'.

        By the one event that the first coordinate lies within three deviations of its mean under
        D, or beyond: its probability is p under D and q under D', and the divergence is at least
        p ln(1/q) - ln 2.
        """
        apart = 2 * abs(self.mean) / self.deviation
        q = float(np.logaddexp(-((apart - 3) ** 2) / 2, self.doubt))
        p = 0.5 * math.erfc(-3 / math.sqrt(2)) - math.exp(self.doubt)
        return -p * q - math.log(2)


def last_model(
    agents: int = 20,
    rho: float = 10.0,
    gamma: float = 0.1,
    epochs: int = 40,
    rounds: int = 15,
    clip: float = 1000.0,
    pull: float = 1e13,
    target: float = 0.0662,
) -> Counterexample:
    """Proposition 4 for orders alpha -> 1, where it bounds the Kullback-Leibler divergence.

    ``clip`` is L / tau, ``pull`` b_1 / tau, ``target`` t over s b_1.
    """
    row = (220 / 221, 21 / 221)
    course = Course.of(
        agents=agents,
        rho=rho,
        gamma=gamma,
        epochs=epochs,
        rounds=rounds,
        clip=clip,
        pull=pull,
        target=target * row[1] * pull,
        row=row,
    )
    claimed = clip**2 * -math.expm1(-gamma * rounds * epochs / 2)
    corrected = rounds * epochs * gamma * clip**2 / 4
    instance = {
        "N": agents,
        "rho": rho,
        "gamma": gamma,
        "N_e": epochs,
        "K": rounds,
        "L/tau": clip,
        "rows": ((220 / 221, 21 / 221), (-220 / 221, 21 / 221)),
        "b_1/tau": pull,
        "t/(s b_1)": target,
        "sign changes before steps": course.flips,
    }
    measured = "divergence of x_{1,K}, at least"
    return Counterexample(instance, measured, course.divergence(), claimed, corrected)


ERRATA = (
    Erratum(
        "fed-plt/prop-4",
        "Proposition 4: a Renyi divergence of at most alpha L^2 / (lambda tau^2 q^2) "
        "(1 - exp(-lambda gamma K N_e / 2)), however many rounds",
        "alpha K N_e gamma L^2 / (4 tau^2 q^2), which grows with the rounds",
        last_model,
    ),
)
