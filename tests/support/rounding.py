"""How far rounding to multiples of 2^-40 can carry a run, and rounds written down independently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
HALF_UNIT = 2.0**-41
"""Largest error of a number that is rounded to a multiple of 2^-40."""


@dataclass(frozen=True)
class Quadratic:
    """f(x) = x'Hx/2 - c'x + const, read off the gradients of a ridge problem."""

    bend: Vector
    pull: Vector

    @classmethod
    def of(cls, problem: Any) -> Quadratic:
        """Return H and c of a problem whose gradient is H x - c."""
        origin = problem.gradient(np.zeros(problem.dim))
        columns = [problem.gradient(unit) - origin for unit in np.eye(problem.dim)]
        return cls(np.array(columns).T, -origin)


def farthest(
    step: Callable[[int, Vector], Vector],
    size: int,
    rounds: int,
    injected: Vector,
) -> float:
    """Return a bound on the Euclidean norm of what rounding does to the state of an affine round.

    ``step(t, state)`` is the round; ``injected`` (size, m) says how the m numbers that are rounded
    in a round enter the state after it. With J_t the linear part of round t, the error after K
    rounds is sum_t J_K ... J_{t+1} B r_t with |r_t| <= 2^-41 in every entry.
    """
    origin = np.zeros(size)
    after, bound = np.eye(size), 0.0
    for number in range(rounds, 0, -1):
        bound += float(np.linalg.norm(after @ injected, 2))
        base = step(number, origin)
        linear = np.array([step(number, unit) - base for unit in np.eye(size)]).T
        after = after @ linear  # J_K ... J_t, built from the last round on
    return bound * HALF_UNIT * injected.shape[1] ** 0.5


def fed_plt_round(
    agents: list[Quadratic], rho: float, step: float, epochs: int
) -> Callable[[int, Vector], Vector]:
    """Return Algorithm 1 of Fed-PLT, gradient steps, on the stacked (x, z), all agents active."""
    count, dim = len(agents), len(agents[0].pull)

    def play(number: int, state: Vector) -> Vector:
        x, z = state.reshape(2, count, dim)
        y = z.mean(axis=0)
        new = []
        for agent, own, shadow in zip(agents, x, z, strict=True):
            w, v = own, 2 * y - shadow
            for _ in range(epochs):
                w = w - step * (agent.bend @ w - agent.pull + (w - v) / rho)
            new.append(w)
        moved = np.array(new)
        return np.concatenate([moved, z + 2 * (moved - y)]).ravel()

    return play


def dp_iadmm_round(
    agents: list[Quadratic], rho: float, eta: Callable[[int], float]
) -> Callable[[int, Vector], Vector]:
    """Return Algorithm 1 of DP-IADMM with E = 1 on the stacked (z, lam), all agents active."""
    count, dim = len(agents), len(agents[0].pull)

    def play(number: int, state: Vector) -> Vector:
        z, lam = state.reshape(2, count, dim)
        w = (z - lam / rho).mean(axis=0)
        near = 1 / eta(number)
        slopes = np.array([a.bend @ own - a.pull for a, own in zip(agents, z, strict=True)])
        new = (rho * w + lam - slopes + near * z) / (rho + near)
        return np.concatenate([new, lam + rho * (w - new)]).ravel()

    return play


def fed_pdm_round(
    agents: list[Quadratic], rho: float, eta: float, steps: int
) -> Callable[[int, Vector], Vector]:
    """Return Algorithm 2 of FedPDM, dense, on the stacked (lam of all, x0), all agents active."""
    count, dim = len(agents), len(agents[0].pull)

    def play(number: int, state: Vector) -> Vector:
        lam, center = state[: count * dim].reshape(count, dim), state[count * dim :]
        duals, sent = [], []
        for agent, dual in zip(agents, lam, strict=True):
            x = center
            for _ in range(steps):
                x = x - eta * (agent.bend @ x - agent.pull - dual + rho * (x - center))
            duals.append(dual + rho * (center - x))
            sent.append(x - duals[-1] / rho)
        return np.concatenate([np.concatenate(duals), np.mean(sent, axis=0)])

    return play


def gfl_round(
    units: list[list[Quadratic]], weights: Vector, step: float, epochs: int
) -> Callable[[int, Vector], Vector]:
    """Return eqs. (6)-(8) of GFL on the stacked w, full gradients, all agents active, no noise."""

    def play(number: int, state: Vector) -> Vector:
        means = []
        for agents, model in zip(units, state.reshape(len(units), -1), strict=True):
            local = [model] * len(agents)
            for _ in range(epochs):
                local = [
                    x - step / epochs * (a.bend @ x - a.pull)
                    for a, x in zip(agents, local, strict=True)
                ]
            means.append(np.mean(local, axis=0))
        return (weights @ np.array(means)).ravel()

    return play
