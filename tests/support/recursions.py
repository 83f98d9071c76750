"""The papers' recursions of all algorithms, with loops over agents and in the papers' variables.

Each is named after its algorithm. It takes the agents' problems, the starting point, its parameters
and an iterable of who is active in each iteration, and returns the coordinator's model. Gradient
steps only, of a size that may depend on the round; without noise; no messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Active = Iterable[Sequence[int]]
Steps = Callable[[int], float]
"""The step size of each round, from 1 on."""


def constant(step: float) -> Steps:
    """Return the same step in all rounds."""
    return lambda t: step


def inverse_sqrt(step: float) -> Steps:
    """Return step / sqrt(t)."""
    return lambda t: step / math.sqrt(t)


def cosine(step: float, period: int) -> Steps:
    """Return half a wave from the step down to a hundredth of it, then constant."""

    def falling(t: int) -> float:
        share = min(t - 1, period) / period
        return step * (1 + 99 * math.cos(math.pi * share / 2) ** 2) / 100

    return falling


def fed_plt(
    problems: list[Any], start: Vector, active: Active, *, rho: float, step: Steps, epochs: int
) -> Vector:
    """Algorithm 1 without h: gradient descent from the last x_i, reflection, average of the z_i."""
    count = len(problems)
    x, z = [start] * count, [start] * count
    for t, round_ in enumerate(active, 1):
        y = sum(z) / count
        for i in round_:
            w = x[i]
            for _ in range(epochs):
                w = w - step(t) * (problems[i].gradient(w) + (w - (2 * y - z[i])) / rho)
            x[i] = w
            z[i] = z[i] + 2 * (w - y)
    return sum(z) / count


def dp_iadmm(
    problems: list[Any], start: Vector, active: Active, *, rho: float, updates: int
) -> Vector:
    """Algorithm 1 with (15)'s eta_t = 1 / sqrt(t) and a constant penalty."""
    count = len(problems)
    z, lam, inner = [start] * count, [0 * start] * count, [start] * count

    def center() -> Vector:
        return sum(own - dual / rho for own, dual in zip(z, lam, strict=True)) / count

    for t, round_ in enumerate(active, 1):
        w, eta = center(), 1 / math.sqrt(t)
        for p in round_:
            steps = []
            for _ in range(updates):
                top = rho * w + lam[p] - problems[p].gradient(inner[p]) + inner[p] / eta
                inner[p] = top / (rho + 1 / eta)
                steps.append(inner[p])
            z[p] = sum(steps) / updates
            lam[p] = lam[p] + rho * (w - z[p])
    return center()


def fed_pdm(
    problems: list[Any], start: Vector, active: Active, *, rho: float, eta: Steps, steps: int
) -> Vector:
    """Algorithm 1, everything sent and no threshold on the gradient."""
    x0, lam = start, [0 * start for _ in problems]
    for t, round_ in enumerate(active, 1):
        sent = []
        for i in round_:
            x = x0
            for _ in range(steps):
                v = problems[i].gradient(x) - lam[i] + rho * (x - x0)
                x = x - eta(t) * v
            lam[i] = lam[i] + rho * (x0 - x)
            sent.append(x - lam[i] / rho)
        x0 = sum(sent) / len(sent)
    return x0


def dp_fedsgd(
    problems: list[Any],
    start: Vector,
    active: Active,
    *,
    eta: Steps,
    momentum: float,
    l1: float = 0.0,
) -> Vector:
    """The heavy ball, and the proximal step of an l1 norm."""
    x, m = start, 0 * start
    for t, round_ in enumerate(active, 1):
        step = eta(t)
        m = momentum * m + np.mean([problems[i].gradient(x) for i in round_], axis=0)
        x = x - step * m
        x = np.sign(x) * np.maximum(np.abs(x) - step * l1, 0)
    return x


def moved(problem: Any, x: Vector, step: float, epochs: int) -> Vector:
    """Return how far gradient steps of one agent get from the model."""
    w = x
    for _ in range(epochs):
        w = w - step * problem.gradient(w)
    return w - x


def dp_fedavg(
    problems: list[Any], start: Vector, active: Active, *, step: Steps, epochs: int, clip: float
) -> Vector:
    """Algorithm 1 of McMahan et al. (2018) without noise, with agents that count equally."""
    x = start
    for t, round_ in enumerate(active, 1):
        moves = [moved(problems[i], x, step(t), epochs) for i in round_]
        moves = [move * min(1.0, clip / math.sqrt(sum(move**2))) for move in moves]
        x = x + sum(moves) / len(moves)
    return x


def fed_buff(
    problems: list[Any],
    start: Vector,
    active: Active,
    *,
    step: Steps,
    epochs: int,
    server_step: float,
) -> Vector:
    """FedBuff where nobody is sent an old model: FedAvg with a step of the server."""
    x = start
    for t, round_ in enumerate(active, 1):
        moves = [moved(problems[i], x, step(t), epochs) for i in round_]
        x = x + server_step * sum(moves) / len(moves)
    return x


def fed_async(
    problems: list[Any],
    start: Vector,
    active: Active,
    *,
    step: Steps,
    epochs: int,
    alpha: float,
    proximal: float,
) -> Vector:
    """FedAsync where nobody is sent an old model: the mean of mixtures with each new model."""
    x = start
    for t, round_ in enumerate(active, 1):
        mixtures = []
        for i in round_:
            w = x
            for _ in range(epochs):
                w = w - step(t) * (problems[i].gradient(w) + proximal * (w - x))
            mixtures.append((1 - alpha) * x + alpha * w)
        x = sum(mixtures) / len(mixtures)
    return x


def area(problems: list[Any], start: Vector, active: Active, *, gamma: float) -> Vector:
    """The mean over all agents of their last step."""
    x, z = start, [start] * len(problems)
    for round_ in active:
        for i in round_:
            z[i] = x - gamma * problems[i].gradient(x)
        x = sum(z) / len(z)
    return x


def scaffold(
    problems: list[Any],
    start: Vector,
    active: Active,
    *,
    eta: Steps,
    steps: int,
    server_step: float,
) -> Vector:
    """Algorithm 1 with option II."""
    count = len(problems)
    x, c, own = start, 0 * start, [0 * start for _ in problems]
    for t, round_ in enumerate(active, 1):
        step = eta(t)
        moves, changes = [], []
        for i in round_:
            y = x
            for _ in range(steps):
                y = y - step * (problems[i].gradient(y) - own[i] + c)
            new = own[i] - c + (x - y) / (steps * step)
            moves.append(y - x)
            changes.append(new - own[i])
            own[i] = new
        x = x + server_step * np.mean(moves, axis=0)
        c = c + len(moves) / count * np.mean(changes, axis=0)
    return x


def fed_dyn(
    problems: list[Any],
    start: Vector,
    active: Active,
    *,
    eta: Steps,
    steps: int,
    alpha: float,
) -> Vector:
    """Algorithm 1, each minimisation by gradient steps."""
    count = len(problems)
    x, h, own = start, 0 * start, [0 * start for _ in problems]
    for t, round_ in enumerate(active, 1):
        models = []
        for i in round_:
            w = x
            for _ in range(steps):
                slope = problems[i].gradient(w) - own[i] + alpha * (w - x)
                w = w - eta(t) * slope
            own[i] = own[i] - alpha * (w - x)
            models.append(w)
        h = h - alpha * sum(w - x for w in models) / count
        x = np.mean(models, axis=0) - h / alpha
    return x


def gfl(
    problems: list[Any],
    start: Vector,
    active: Active,
    *,
    weights: Vector,
    mu: float,
    epochs: int,
) -> Vector:
    """Eqs. (6)-(8) on all examples, without noise; units are blocks of agents, their mean is sent.

    A unit of which nobody is active brings its own model to the exchange.
    """
    units = len(weights)
    each = len(problems) // units
    w = [start] * units
    for round_ in active:
        psi = list(w)
        for p in range(units):
            ends = []
            for k in round_:
                if k // each == p:
                    x = w[p]
                    for _ in range(epochs):
                        x = x - mu / epochs * problems[k].gradient(x)
                    ends.append(x)
            if ends:
                psi[p] = sum(ends) / len(ends)
        w = [sum(weights[p][m] * psi[m] for m in range(units)) for p in range(units)]
    return sum(w) / units


def fed_pd(
    problems: list[Any], start: Vector, active: Active, *, eta: float, step: Steps, epochs: int
) -> Vector:
    """Augmented Lagrangian, dual ascent, average of x_i + eta lam_i."""
    count = len(problems)
    x, lam = [start] * count, [0 * start] * count
    sent, x0 = [start] * count, start
    for t, round_ in enumerate(active, 1):
        for i in round_:
            w = x[i]
            for _ in range(epochs):
                w = w - step(t) * (problems[i].gradient(w) + lam[i] + (w - x0) / eta)
            x[i] = w
            lam[i] = lam[i] + (w - x0) / eta
            sent[i] = x[i] + eta * lam[i]
        x0 = sum(sent) / count
    return x0


def fed_lin(
    problems: list[Any], start: Vector, active: Active, *, step: Steps, epochs: int
) -> Vector:
    """Two of ``active`` an iteration: who sends a gradient, and who takes that round's steps."""
    x, own = start, [0 * start for _ in problems]
    rounds = iter(enumerate(active, 1))
    for _, senders in rounds:
        for i in senders:
            own[i] = problems[i].gradient(x)
        g = sum(own) / len(problems)
        ends = []
        t, movers = next(rounds)
        for i in movers:
            w = x
            for _ in range(epochs):
                w = w - step(t) * (problems[i].gradient(w) - own[i] + g)
            ends.append(w)
        x = sum(ends) / len(ends)
    return x


def led(
    problems: list[Any],
    start: Vector,
    active: Active,
    *,
    alpha: Steps,
    beta: float,
    epochs: int,
) -> Vector:
    """Local exact diffusion with the mean as mixing matrix, in y / alpha, which may change."""
    x, y = start, [0 * start for _ in problems]
    for t, round_ in enumerate(active, 1):
        phi = {}
        for i in round_:
            phi[i] = x
            for _ in range(epochs):
                phi[i] = phi[i] - alpha(t) * (problems[i].gradient(phi[i]) + beta * y[i])
        x = sum(phi.values()) / len(phi)
        for i in round_:
            y[i] = y[i] + (phi[i] - x) / alpha(t)
    return x


def tamuna(
    problems: list[Any],
    start: Vector,
    active: Active,
    *,
    gamma: Steps,
    p: float,
    steps: Iterable[int],
    eta: float | None = None,
) -> Vector:
    """Without sparsification; eta is p n (c - 1) / (c (n - 1)) where it is not given."""
    n = len(problems)
    x, h = start, [0 * start for _ in problems]
    for t, (cohort, local) in enumerate(zip(active, steps, strict=False), 1):
        c = len(cohort)
        ends = {}
        for i in cohort:
            w = x
            for _ in range(local):
                w = w - gamma(t) * (problems[i].gradient(w) - h[i])
            ends[i] = w
        x = sum(ends.values()) / c
        rate = p * n * (c - 1) / (c * (n - 1)) if eta is None else eta
        for i in cohort:
            h[i] = h[i] + rate / gamma(t) * (x - ends[i])
    return x


def five_gcs(
    problems: list[Any],
    start: Vector,
    active: Active,
    *,
    gamma: float,
    tau: float,
    mu: float,
    step: Steps,
    epochs: int,
) -> Vector:
    """As the paper scales it: F_m = (f_m - (mu/2) ||.||^2) / M, v the sum of u_m; returns xhat."""
    m = len(problems)

    def slope(i: int, y: Vector) -> Vector:
        return (problems[i].gradient(y) - mu * y) / m

    x, u = start, [0 * start for _ in problems]
    v = sum(u)
    for t, cohort in enumerate(active, 1):
        hat = (x - gamma * v) / (1 + gamma * mu)
        for i in cohort:
            y = hat
            for _ in range(epochs):
                y = y - step(t) * (slope(i, y) + tau * (y - (hat + u[i] / tau)))
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
