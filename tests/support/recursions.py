"""The papers' recursions of Fed-PLT's rivals, with loops over agents and in the papers' variables.

Each takes the agents' problems, the starting point, its parameters and an iterable of who is active
in each iteration, and returns the coordinator's model. Gradient steps only; no messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Active = Iterable[Sequence[int]]


def fed_pd(
    problems: list[Any], start: Vector, active: Active, *, eta: float, step: float, epochs: int
) -> Vector:
    """Augmented Lagrangian, dual ascent, average of x_i + eta lam_i."""
    count = len(problems)
    x, lam = [start] * count, [0 * start] * count
    sent, x0 = [start] * count, start
    for round_ in active:
        for i in round_:
            w = x[i]
            for _ in range(epochs):
                w = w - step * (problems[i].gradient(w) + lam[i] + (w - x0) / eta)
            x[i] = w
            lam[i] = lam[i] + (w - x0) / eta
            sent[i] = x[i] + eta * lam[i]
        x0 = sum(sent) / count
    return x0


def fed_lin(
    problems: list[Any], start: Vector, active: Active, *, step: float, epochs: int
) -> Vector:
    """Two of ``active`` an iteration: who sends a gradient, and who takes local steps."""
    x, own = start, [0 * start for _ in problems]
    rounds = iter(active)
    for senders in rounds:
        for i in senders:
            own[i] = problems[i].gradient(x)
        g = sum(own) / len(problems)
        ends = []
        for i in next(rounds):
            w = x
            for _ in range(epochs):
                w = w - step * (problems[i].gradient(w) - own[i] + g)
            ends.append(w)
        x = sum(ends) / len(ends)
    return x


def led(
    problems: list[Any],
    start: Vector,
    active: Active,
    *,
    alpha: float,
    beta: float,
    epochs: int,
) -> Vector:
    """Local exact diffusion with the mean as mixing matrix, in y."""
    x, y = start, [0 * start for _ in problems]
    for round_ in active:
        phi = {}
        for i in round_:
            phi[i] = x
            for _ in range(epochs):
                phi[i] = phi[i] - alpha * problems[i].gradient(phi[i]) - beta * y[i]
        x = sum(phi.values()) / len(phi)
        for i in round_:
            y[i] = y[i] + phi[i] - x
    return x


def tamuna(
    problems: list[Any],
    start: Vector,
    active: Active,
    *,
    gamma: float,
    p: float,
    steps: Iterable[int],
    eta: float | None = None,
) -> Vector:
    """Without sparsification; eta is p n (c - 1) / (c (n - 1)) where it is not given."""
    n = len(problems)
    x, h = start, [0 * start for _ in problems]
    for cohort, local in zip(active, steps, strict=False):
        c = len(cohort)
        ends = {}
        for i in cohort:
            w = x
            for _ in range(local):
                w = w - gamma * problems[i].gradient(w) + gamma * h[i]
            ends[i] = w
        x = sum(ends.values()) / c
        rate = p * n * (c - 1) / (c * (n - 1)) if eta is None else eta
        for i in cohort:
            h[i] = h[i] + rate / gamma * (x - ends[i])
    return x


def five_gcs(
    problems: list[Any],
    start: Vector,
    active: Active,
    *,
    gamma: float,
    tau: float,
    mu: float,
    step: float,
    epochs: int,
) -> Vector:
    """As the paper scales it: F_m = (f_m - (mu/2) ||.||^2) / M, v the sum of u_m; returns xhat."""
    m = len(problems)

    def slope(i: int, y: Vector) -> Vector:
        return (problems[i].gradient(y) - mu * y) / m

    x, u = start, [0 * start for _ in problems]
    v = sum(u)
    for cohort in active:
        hat = (x - gamma * v) / (1 + gamma * mu)
        for i in cohort:
            y = hat
            for _ in range(epochs):
                y = y - step * (slope(i, y) + tau * (y - (hat + u[i] / tau)))
            u[i] = slope(i, y)
        x = hat - gamma * m / len(cohort) * (sum(u) - v)
        v = sum(u)
    return (x - gamma * v) / (1 + gamma * mu)


def fed_split(
    problems: list[Any], start: Vector, active: Active, *, s: float, step: float, epochs: int
) -> Vector:
    """Proximal step by gradient descent from its argument, reflection, average."""
    z, x = [start] * len(problems), start
    for round_ in active:
        for i in round_:
            argument = 2 * x - z[i]
            w = argument
            for _ in range(epochs):
                w = w - step * (problems[i].gradient(w) + (w - argument) / s)
            z[i] = z[i] + 2 * (w - x)
        x = sum(z) / len(z)
    return x
