"""Numerical checks of the papers' statements: each draws one random instance.

A check returns by how much the instance fails, which is not positive where the statement holds, and
the numbers that name it. All are a few lines of numpy of their own and share no code with the
algorithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[Any]
Generator: TypeAlias = np.random.Generator
Gap: TypeAlias = tuple[float, Mapping[str, Any]]
"""By how much an instance fails, and the instance."""

# ------------------------------------------------------------------ Fed-PLT


def _moduli(rng: Generator) -> tuple[float, float]:
    low = 10.0 ** rng.uniform(-2, 1)
    return low, low * 10.0 ** rng.uniform(0.02, 2)


def _quadratic(rng: Generator, low: float, high: float, dim: int = 4) -> Vector:
    """Return a symmetric matrix with extreme eigenvalues ``low`` and ``high``."""
    basis, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    values = np.concatenate([[low, high], rng.uniform(low, high, dim - 2)])
    matrix: Vector = basis @ np.diag(values) @ basis.T
    return matrix


def gradient_descent(rng: Generator) -> Gap:
    """x - rho grad f(x) contracts by max(|1 - rho lambda|, |1 - rho Lambda|)."""
    low, high = _moduli(rng)
    step = rng.uniform(0, 2 / high)
    rate = np.linalg.norm(np.eye(4) - step * _quadratic(rng, low, high), 2)
    zeta = max(abs(1 - step * low), abs(1 - step * high))
    return float(rate - zeta), {"lambda": low, "Lambda": high, "rho": step}


def peaceman_rachford(rng: Generator) -> Gap:
    """refl_f refl_g contracts by max |1 - rho m| / (1 + rho m) over m = lambda, Lambda."""
    low, high = _moduli(rng)
    rho = 10.0 ** rng.uniform(-2, 2)
    reflect = 2 * np.linalg.inv(np.eye(4) + rho * _quadratic(rng, low, high)) - np.eye(4)
    plane, _ = np.linalg.qr(rng.standard_normal((4, 2)))
    mirror = 2 * plane @ plane.T - np.eye(4)  # g is the indicator of a subspace
    rate = np.linalg.norm(reflect @ mirror, 2)
    return float(rate) - zeta_of(rho, low, high), {"rho": rho, "lambda": low}


def zeta_of(rho: float, low: float, high: float) -> float:
    """Return the contraction constant of Lemma 3."""
    return max(abs(1 - rho * m) / (1 + rho * m) for m in (low, high))


def proximal_of_consensus(rng: Generator) -> Gap:
    """The prox of consensus + h is prox_{rho h / N} of the mean, for h = ||.||_1."""
    count, rho = int(rng.integers(2, 9)), 10.0 ** rng.uniform(-1, 1)
    z = rng.standard_normal((count, 3)) * 3
    mean = z.mean(axis=0)
    x = np.sign(mean) * np.maximum(np.abs(mean) - rho / count, 0)

    def objective(y: Vector) -> float:
        return float(np.abs(y).sum() + ((y - z) ** 2).sum() / (2 * rho))

    others = x + 10.0 ** rng.uniform(-6, 0, (200, 1)) * rng.standard_normal((200, 3))
    gap = objective(x) - min(objective(y) for y in others)
    return gap - 1e-9, {"N": count, "rho": rho}


def stability_matrix(
    rho: float, moduli: tuple[float, float], chi: float, *, printed: bool
) -> Vector:
    """Return S of Proposition 1: printed with 1/(lambda + 1/rho), corrected 1/(1 + rho lambda)."""
    low, high = moduli
    shrink = 1 / (low + 1 / rho) if printed else 1 / (1 + rho * low)
    zeta = zeta_of(rho, low, high)
    return np.array([[chi, (1 + chi) * shrink], [2 * chi, zeta + 2 * chi * shrink]])


def fed_plt_matrix(curvatures: Vector, rho: float, step: float, epochs: int) -> Vector:
    """Return the linear map (x, z) -> (x, z) of Fed-PLT on f_i(x) = h_i x^2 / 2, all active."""
    count = len(curvatures)
    mean = np.full((count, count), 1 / count)
    target = 2 * mean - np.eye(count)
    shrink = np.diag(1 - step * (curvatures + 1 / rho))
    x_of_x, x_of_z = np.eye(count), np.zeros((count, count))
    for _ in range(epochs):
        x_of_x, x_of_z = shrink @ x_of_x, shrink @ x_of_z + step / rho * target
    lower = np.hstack([2 * x_of_x, np.eye(count) + 2 * x_of_z - 2 * mean])
    matrix: Vector = np.vstack([np.hstack([x_of_x, x_of_z]), lower])
    return matrix


def radius(matrix: Vector) -> float:
    """Return the spectral radius."""
    return float(np.abs(np.linalg.eigvals(matrix)).max())


@dataclass(frozen=True, slots=True)
class Federation:
    """Three agents with f_i(x) = h_i x^2 / 2 and settings of Fed-PLT with a stable matrix S.

    ``chi`` is the contraction of the N_e = ``epochs`` steps together, ``norm`` that of S.
    """

    curvatures: Vector
    rho: float
    step: float
    epochs: int
    chi: float
    norm: float

    @classmethod
    def drawn(cls, rng: Generator, *, printed: bool, contracting: bool = False) -> Federation:
        """Draw one whose S is stable and, where asked for, of norm below 1."""
        while True:
            low = 10.0 ** rng.uniform(-1, 1)
            high = low * 10.0 ** rng.uniform(0.02, 0.5)
            rho, epochs = 10.0 ** rng.uniform(-1, 1), int(rng.integers(1, 6))
            step = rng.uniform(0, 2 / (high + 1 / rho))
            chi = max(abs(1 - step * (m + 1 / rho)) for m in (low, high)) ** epochs
            stability = stability_matrix(rho, (low, high), chi, printed=printed)
            norm = float(np.linalg.norm(stability, 2))
            if radius(stability) < 1 and (norm < 1 or not contracting):
                curvatures = np.array([low, *rng.uniform(low, high, 1), high])
                return cls(curvatures, rho, step, epochs, chi, norm)

    @property
    def matrix(self) -> Vector:
        """Its linear map (x, z) -> (x, z)."""
        return fed_plt_matrix(self.curvatures, self.rho, self.step, self.epochs)

    @property
    def numbers(self) -> dict[str, Any]:
        """What names it on the page."""
        own = {"h": self.curvatures.tolist(), "rho": self.rho, "gamma": self.step}
        return {**own, "N_e": self.epochs}


def contraction(rng: Generator, *, printed: bool) -> Gap:
    """Where S has a radius below 1, the iteration's own radius is below 1."""
    one = Federation.drawn(rng, printed=printed)
    return radius(one.matrix) - 1, one.numbers


def a_stable_choice(rng: Generator) -> Gap:
    """Some rho, step and N_e make S stable, whatever the moduli are."""
    low, high = _moduli(rng)
    rho = 1 / math.sqrt(low * high)
    step = 2 / (low + high + 2 / rho)
    chi = max(abs(1 - step * (m + 1 / rho)) for m in (low, high))
    least = min(
        radius(stability_matrix(rho, (low, high), chi**epochs, printed=True))
        for epochs in (1, 5, 25, 125, 625)
    )
    return least - 1, {"lambda": low, "Lambda": high}


def bound_on_iterates(rng: Generator, *, printed: bool) -> Gap:
    """E ||(x, z)|| <= sqrt(p/p_) sigma^k ||...||, sigma^2 = 1 - p_ + p_ ||S||^2, after 40 rounds.

    Agent i is active with probability p_i, .9 at least. The left side is exact: with the printed S
    the norm of E (x, z), which is not above it, with the corrected one the root of E ||(x, z)||^2,
    which is not below it.
    """
    one = Federation.drawn(rng, printed=printed, contracting=True)
    share, rounds = rng.uniform(0.9, 1.0, 3), 40
    sigma = math.sqrt(1 - share.min() + share.min() * one.norm**2)
    mean = rng.standard_normal(6)
    bound = math.sqrt(share.max() / share.min()) * sigma**rounds * float(np.linalg.norm(mean))
    change, moment = one.matrix - np.eye(6), np.outer(mean, mean)
    average = np.eye(6) + np.tile(share, 2)[:, None] * change
    # Covariances of who is active: an agent's x and z move together, agents do not.
    spread = np.tile(np.diag(share * (1 - share)), (2, 2))
    for _ in range(rounds):
        mean = average @ mean
        moment = average @ moment @ average.T + spread * (change @ moment @ change.T)
    left = float(np.linalg.norm(mean)) if printed else math.sqrt(float(np.trace(moment)))
    return left / bound - 1, {**one.numbers, "p": share.tolist()}


def accelerated(rng: Generator, *, printed: bool) -> Gap:
    """N_e steps of (12) contract by (1 + k)(1 - 1/sqrt(k))^N_e, or by its square root."""
    low, kappa = 10.0 ** rng.uniform(-1, 1), 10.0 ** rng.uniform(0.1, 2)
    epochs = int(rng.integers(1, 30))
    curvature = _quadratic(rng, low, low * kappa)
    momentum = (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)
    before = after = extrapolated = np.eye(4)
    for _ in range(epochs):
        after = extrapolated - curvature @ extrapolated / (low * kappa)
        extrapolated, before = after + momentum * (after - before), after
    bound = (1 + kappa) * (1 - 1 / math.sqrt(kappa)) ** epochs
    gap = float(np.linalg.norm(after, 2)) - (bound if printed else math.sqrt(bound))
    return gap, {"kappa": kappa, "N_e": epochs}


def accelerated_iteration(rng: Generator, *, printed: bool, rate: bool) -> Gap:
    """Fed-PLT with N_e steps of (12): its radius is below 1, or its rate at most ||S'||.

    S' is stable, for the rate of norm below 1; rho times the curvatures is near 1, where the
    reflections contract most. The rate is the radius of the iteration, with the corrected S' its
    norm.
    """
    while True:
        epochs, rho = int(rng.integers(1, 4)), 10.0 ** rng.uniform(-2, 1)
        low = rng.uniform(0.85, 1.1) / rho
        high = low * rng.uniform(1.01, 1.2)
        least, most = low + 1 / rho, high + 1 / rho
        chi = (1 + most / least) * (1 - math.sqrt(least / most)) ** epochs
        chi = chi if printed else math.sqrt(chi)
        stability = stability_matrix(rho, (low, high), chi, printed=printed)
        size = float(np.linalg.norm(stability, 2))
        if radius(stability) < 1 and (size < 1 or not rate):
            break
    h = np.array([low, rng.uniform(low, high), high])
    momentum = (math.sqrt(most) - math.sqrt(least)) / (math.sqrt(most) + math.sqrt(least))
    before = kept = np.ones(3)  # of the distance to the exact update
    for _ in range(epochs):
        after = kept - (h + 1 / rho) * kept / most
        kept, before = after + momentum * (after - before), after
    mean = np.full((3, 3), 1 / 3)
    exact = np.diag(1 / (1 + rho * h)) @ (2 * mean - np.eye(3))
    x_of_x, x_of_z = np.diag(kept), np.diag(1 - kept) @ exact
    lower = np.hstack([2 * x_of_x, np.eye(3) + 2 * x_of_z - 2 * mean])
    matrix = np.vstack([np.hstack([x_of_x, x_of_z]), lower])
    left = radius(matrix) if printed else float(np.linalg.norm(matrix, 2))
    instance = {"h": h.tolist(), "rho": rho, "N_e": epochs}
    return left / (size if rate else 1) - 1, instance


def divergence_of_the_last_model(rng: Generator) -> Gap:
    """The Renyi divergence of x_{i,K} is at most alpha L^2 / (lambda tau^2 q^2) (1 - e^...).

    tau = L / q = 1 and f_i(x) = h x^2 / 2 with a clipped record: its gradient differs by -1 between
    neighbours until the others have moved y past it, by 1 from then on. All is Gaussian, and the
    order alpha cancels against alpha (mean)^2 / (2 variance).
    """
    h, rho, epochs = 10.0 ** rng.uniform(-1, 1), 10.0 ** rng.uniform(-1, 2), rng.integers(1, 41)
    step, rounds = rng.uniform(0, 2 / (h + 1 / rho)), int(rng.integers(2, 31))
    factor = 1 - step * (h + 1 / rho)
    kept, summed = factor**epochs, (1 - factor**epochs) / (1 - factor)
    variance = 2 * step * (1 - kept**2) / (1 - factor**2)
    pull = step * summed
    matrix = np.array([[kept, -pull / rho], [2 * kept, 1 - 2 * pull / rho]])
    both = np.array([1.0, 2.0])  # what moves x by 1 moves z by 2
    moved, covariance, effects = pull * both, np.diag([2 / h, 0.0]), []
    for _ in range(rounds):
        effects.append(float(moved[0]))
        moved = matrix @ moved
        covariance = matrix @ covariance @ matrix.T + variance * np.outer(both, both)
    late = np.cumsum(effects)  # of the last rounds
    mean = float(np.abs(2 * late - late[-1]).max())
    allowed = (1 - math.exp(-h * step * rounds * epochs / 2)) / h
    instance = {"h": h, "rho": rho, "gamma": step, "N_e": int(epochs), "K": rounds}
    return mean**2 / (2 * float(covariance[0, 0])) / allowed - 1, instance


def accuracy_under_noise(rng: Generator, *, printed: bool) -> Gap:
    """The error under noise of tau = .3 after 60 rounds, where the norm of S is below 1.

    x_0 is drawn from N(0, 2 tau^2 / lambda) and z_0 = 0 is the fixed point; of the mean of 100
    runs four standard errors are taken off.
    """
    one = Federation.drawn(rng, printed=printed, contracting=True)
    rounds, tau, runs = 60, 0.3, 100
    state, matrix = np.zeros((runs, 6)), one.matrix
    state[:, :3] = tau * math.sqrt(2 / one.curvatures.min()) * rng.standard_normal((runs, 3))
    first = float(np.linalg.norm(state, axis=1).mean())
    shrink = 1 - one.step * (one.curvatures + 1 / one.rho)
    for _ in range(rounds):
        noise = np.zeros((runs, 3))
        for _ in range(one.epochs):
            drawn = math.sqrt(2 * one.step) * tau * rng.standard_normal((runs, 3))
            noise = shrink * noise + drawn
        state = state @ matrix.T + np.hstack([noise, 2 * noise])
    errors = np.linalg.norm(state, axis=1)
    mean = float(errors.mean() - 4 * errors.std(ddof=1) / math.sqrt(runs))
    geometric = (1 - one.chi) / (1 - one.chi ** (1 / one.epochs))
    summed = (1 - one.norm**rounds) / (1 - one.norm)
    bound = one.norm**rounds * first + summed * geometric * tau * math.sqrt(10 * 3 * one.step)
    return mean / bound - 1, one.numbers


def limit_of_local_training(rng: Generator, *, own: bool = False, partial: bool = False) -> Gap:
    """Four agents with f_i(x) = h_i x^2 / 2 - b_i x, whose local steps have a closed form.

    With ``own`` each agent has a step and a number of steps of its own; else all have one step, of
    up to 1/(L + 1/rho), and one N_e, which may be infinite. With ``partial`` each is there in half
    of the rounds.
    """
    count, rho = 4, 1.0
    h, b = rng.uniform(0.5, 2.0, count), rng.standard_normal(count)
    if own:
        step = rng.uniform(0.5, 1.5, count) / (h + 1 / rho)
        epochs = rng.integers(2, 8, count).astype(float)
    else:
        step = np.full(count, rng.uniform(0.2, 1.0) / (h.max() + 1 / rho))
        epochs = np.full(count, rng.choice([1.0, 2.0, 5.0, 20.0, math.inf]))
    x, z = rng.standard_normal((2, count))
    left = (1 - step * (h + 1 / rho)) ** epochs
    for _ in range(1000 if partial else 200):
        there = rng.random(count) < (0.5 if partial else 1.0)
        y = z.mean()
        exact = (b + (2 * y - z) / rho) / (h + 1 / rho)
        x = np.where(there, left * x + (1 - left) * exact, x)
        z = np.where(there, z + 2 * (x - y), z)
    gap = float(np.abs(x - b.sum() / h.sum()).max()) - 1e-6
    return gap, {"h": h.tolist(), "gamma": step.tolist(), "N_e": [f"{one:g}" for one in epochs]}


# ------------------------------------------------------------------ DP-IADMM


def penalised_subproblem(rng: Generator) -> Gap:
    """The minimiser of G + sum_m ln(1 + exp(l h_m)) tends to that of (8)."""
    from scipy.optimize import minimize_scalar

    curvature, centre, bound = rng.uniform(0.5, 5), rng.normal(0, 2), rng.uniform(0.2, 1)

    def penalised(z: float) -> float:
        walls = np.logaddexp(0, 1e5 * (z - bound)) + np.logaddexp(0, 1e5 * (-z - bound))
        return float(curvature / 2 * (z - centre) ** 2 + walls)

    bracket = (min(-bound, centre) - 1, max(bound, centre) + 1)
    options = {"xatol": 1e-10}
    found = minimize_scalar(penalised, bounds=bracket, method="bounded", options=options)
    error = abs(found.x - float(np.clip(centre, -bound, bound)))
    return error - 1e-2, {"a": curvature, "centre": centre, "r": bound}


def privacy_of_a_step(rng: Generator) -> Gap:
    """|ln p(z; D) / p(z; D')| <= eps for neighbours D, D' of five records, at one z.

    Scalar logistic losses; the noise of D has the scale (9b) of D.
    """
    records, epsilon = np.linspace(-1, 1, 9), 1.0
    z = rng.normal()
    data = rng.choice(records, 5)
    other = data.copy()
    other[0] = rng.choice(records)
    points = np.concatenate([np.linspace(-50, 50, 2001), rng.normal(0, 1, 100)])
    logs = []
    for own in (data, other):
        slopes, every = _slope(own, z), _slope(records, z)
        # Delta of (9b) over eps: the most that changing one record moves the gradient.
        scale = float(np.abs(slopes[:, None] - every[None]).max()) / epsilon
        logs.append(-np.abs(points - slopes.sum()) / scale - math.log(2 * scale))
    gap = float(np.abs(logs[0] - logs[1]).max()) - epsilon
    return gap, {"z": z, "data": data.tolist(), "neighbour": other.tolist()}


def _slope(records: Vector, z: float) -> Vector:
    slope: Vector = -records / (1 + np.exp(records * z)) / 5
    return slope


def whole_process(rng: Generator) -> Gap:
    """|ln p / p'| <= eps of the outputs of all steps, each with the noise that makes one eps-DP.

    One record, whose slope is the least of its domain in D and the largest in D'.
    """
    steps, epsilon, apart = int(rng.integers(2, 21)), rng.uniform(0.05, 2), rng.uniform(0.5, 2)
    scale = apart / epsilon
    outputs = apart + rng.exponential(1, steps)  # beyond both slopes
    told = float((np.abs(outputs) - np.abs(outputs - apart)).sum()) / scale
    return told / epsilon - 1, {"T E": steps, "eps": epsilon}


RULES = ("smooth", "nonsmooth", "strong")
"""For eta_t, of Theorems 2 to 4."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The right sides of (16a), (20a) and (23), with J = K = 1 and lambda^1 = 0.

    ``smoothness`` and ``convexity`` are L and alpha, ``u1`` ... ``u3`` the constants of the paper.
    """

    rounds: int
    epsilon: float
    rho: float
    gamma: float
    u1: float
    u2: float
    u3: float
    smoothness: float
    convexity: float
    agents: int

    def of(self, rule: str, updates: int) -> float:
        """Return the bound of a rule for eta_t after E local updates a round."""
        u1, u2, u3, gamma, rho = self.u1, self.u2, self.u3, self.gamma, self.rho
        if rule == "smooth":
            slow = 2 * self.agents * u3**2 + u2**2 / (2 * updates)
            rest = u2**2 * (rho + self.smoothness / updates) + gamma**2 / rho
            return slow / (self.epsilon * math.sqrt(self.rounds)) + rest / (2 * self.rounds)
        if rule == "nonsmooth":
            slow = 2 * self.agents * u3**2 / self.epsilon**2 + self.agents * u1**2
            rest = u2**2 * rho + gamma**2 / rho + 2 * gamma * u2
            fast = u2**2 / (2 * updates)
            return (slow + fast) / math.sqrt(self.rounds) + rest / (2 * self.rounds)
        noise = 2 * self.agents * (u1**2 + 2 * u3**2 / self.epsilon**2) / self.convexity
        first = 2 * u2 * gamma + u2**2 * rho + 4 * gamma**2 / rho
        return (first + self.convexity * u2**2 / (2 * updates) + noise) / (self.rounds + 1)


def rate(rng: Generator, *, rule: str) -> Gap:
    """Left side over right side, minus 1, of (16a), (20a) or (23).

    f_p(z) = a_p (z - b_p)^2 / 2 on W = [-1, 1], Laplace noise of scale U_3 / eps, constant rho,
    gamma = 2 |lambda*|, 40 repetitions; for (23) gamma is not below any dual of the runs.
    """
    agents, rounds, spread, shape = 3, 40, 0.2, (40, 3)
    updates, epsilon = int(rng.integers(1, 5)), rng.uniform(0.5, 3)
    a, b = rng.uniform(0.5, 2, agents), rng.uniform(-1, 1, agents)
    best = float(np.clip((a * b).sum() / a.sum(), -1, 1))
    bound = Bound(
        rounds,
        epsilon,
        rng.uniform(0.5, 3),
        gamma=2 * float(np.linalg.norm(a * (best - b))) + 1e-3,
        u1=float((a * (1 + np.abs(b))).max()),
        u2=2.0 * math.sqrt(agents),
        u3=spread,
        smoothness=float(a.max()),
        convexity=float(a.min()),
        agents=agents,
    )
    rho, z, lam = bound.rho, np.zeros(shape), np.zeros(shape)
    z_sum, w_sum, total, longest = np.zeros(shape), np.zeros((40, 1)), 0.0, 0.0
    for t in range(1, rounds + 1):
        eta = {
            "smooth": 1 / (bound.smoothness + math.sqrt(t) / epsilon),
            "nonsmooth": 1 / math.sqrt(t),
            "strong": 2 / (bound.convexity * (t + 2)),
        }[rule]
        weight = t if rule == "strong" else 1
        w = (z - lam / rho).mean(axis=1, keepdims=True)
        inner, before, after = z.copy(), np.zeros(shape), np.zeros(shape)
        for _ in range(updates):
            before += inner / updates
            noise = rng.laplace(0, spread / epsilon, shape)
            pull = rho * w + lam - noise - a * (inner - b) + inner / eta
            inner = np.clip(pull / (rho + 1 / eta), -1, 1)
            after += inner / updates
        z = after
        lam = lam + rho * (w - z)
        longest = max(longest, float(np.linalg.norm(lam, axis=1).max()))
        z_sum += weight * (after if rule == "smooth" else before)
        w_sum, total = w_sum + weight * w, total + weight
    if rule == "strong":
        bound = replace(bound, gamma=max(bound.gamma, longest))
    z_bar, w_bar = z_sum / total, w_sum / total
    values = (a / 2 * ((z_bar - b) ** 2 - (best - b) ** 2)).sum(axis=1)
    left = float((values + bound.gamma * np.linalg.norm(w_bar - z_bar, axis=1)).mean())
    instance = {"a": a.tolist(), "b": b.tolist(), "E": updates, "eps": epsilon, "rho": rho}
    return left / bound.of(rule, updates) - 1, instance


def more_updates(rng: Generator) -> Gap:
    """The right sides of (16a), (20a) and (23) fall from E = 1 to 10."""
    u1, u2, u3, epsilon, rho, gamma, smoothness = rng.uniform(0.1, 3, 7)
    bound = Bound(100, epsilon, rho, gamma, u1, u2, u3, smoothness, smoothness / 2, agents=5)
    rises = {rule: bound.of(rule, 10) - bound.of(rule, 1) for rule in RULES}
    worst = max(rises, key=rises.__getitem__)
    return rises[worst], {"rule": worst}


# ------------------------------------------------------------------ FedPDM


def sensitivity(rng: Generator, *, rounds: int, reach: float, printed: bool = True) -> Gap:
    """||y_i - y_i'|| <= s of (35) of neighbours, over rounds with the same broadcasts.

    y = x - lambda / rho is what is sent, of which s is the sensitivity by Appendix B. Near the
    round's broadcast the two losses have slopes +-G of their own, as nonconvex losses may: G is all
    that Theorem 1 asks of them. rho eta is uniform in (0.1, ``reach``). Corrected, s has the part
    of the duals, 2 G eta |1 - 2k| / (1 - |1 - rho eta|) with k = 1 - (1 - rho eta)^Q.
    """
    rho, steps, bound = rng.uniform(0.5, 2), int(rng.integers(1, 6)), 1.0
    eta = rng.uniform(0.1, reach) / rho
    lam, apart = np.zeros(2), 0.0
    for centre in rng.normal(0, 1, rounds):
        slopes = rng.choice([-bound, bound], 2)
        x = np.full(2, centre)
        for _ in range(steps):
            x = x - eta * (slopes - lam + rho * (x - centre))
        lam = lam + rho * (centre - x)
        y = x - lam / rho
        apart = max(apart, abs(float(y[0] - y[1])))
    keep = 1 - rho * eta
    shrink = abs(keep)
    allowed = (1 - shrink**steps) / (1 - shrink) * 4 * eta * bound
    if not printed:
        allowed += abs(2 * keep**steps - 1) * 2 * eta * bound / (1 - shrink)
    return apart / allowed - 1, {"rho": rho, "eta": eta, "Q": steps, "rounds": rounds}


def bounded_below(rng: Generator) -> Gap:
    """lambda (x_0 - x) + rho (x_0 - x)^2 / 2 stays above -1e6 for f = 0 and |lambda| <= 1e9."""
    rho, apart = rng.uniform(0.5, 5), float(rng.choice([-1, 1])) * rng.uniform(0.1, 1)
    least = min(dual * apart + rho / 2 * apart**2 for dual in (-1e9, 0.0, 1e9))
    return -1e6 - least, {"rho": rho, "x_0 - x": apart}


STOP = 1e-2
"""nu of (10)."""


@dataclass(frozen=True, slots=True)
class Course:
    """DP-FedPDM on f_i(x) = a_i ||x - b_i||^2 / 2, h = 0, everybody active, means of 20 runs.

    ``gaps`` is P of (37) by round, ``falls`` how the Lagrangian changed, ``shifts`` and ``moves``
    ||x_0^t - x_0^{t+1}||^2 and sum_i ||x_i^t - x_i^{t+1}||^2; ``excess`` is the first Lagrangian
    over the least value of the loss, which stands for its infimum.
    """

    agents: int
    smoothness: float
    rho: float
    noise: float
    gaps: Vector
    falls: Vector
    shifts: Vector
    moves: Vector
    excess: float

    @classmethod
    def drawn(cls, rng: Generator, noise: float, dim: int) -> Course:
        """Run 20 rounds that meet .472 <= L <= rho / 4, with full gradients."""
        agents, runs, rounds = 4, 20, 20
        high = rng.uniform(0.6, 2)
        rho = 4 * high * rng.uniform(1, 2)
        a, b = high * rng.uniform(0.5, 1, (agents, 1)), rng.normal(0, 2, (agents, dim))
        a[0] = high
        eta = rng.uniform(0.2, 1, (agents, 1)) / (a + rho)
        x_0 = np.repeat(rng.standard_normal((1, 1, dim)), runs, axis=0)
        x, dual = np.repeat(x_0, agents, axis=1), np.zeros((runs, agents, dim))
        sums = {name: list[float]() for name in ("gaps", "values", "shifts", "moves")}

        for _ in range(rounds):
            gap, value = _gap_and_value(x, x_0, dual, a, b, rho)
            sums["gaps"].append(gap)
            sums["values"].append(value)
            w, going = np.repeat(x_0, agents, axis=1), np.ones((runs, agents, 1), bool)
            while going.any():
                slope = a * (w - b) - dual + rho * (w - x_0)
                w = np.where(going, w - eta * slope, w)
                going &= (slope**2).sum(2, keepdims=True) > STOP
            dual = dual + rho * (x_0 - w)
            sent = w - dual / rho + noise * rng.standard_normal(w.shape)
            after = sent.mean(1, keepdims=True)
            sums["shifts"].append(float(((x_0 - after) ** 2).sum()) / runs)
            sums["moves"].append(float(((x - w) ** 2).sum()) / runs)
            x, x_0 = w, after
        values = np.array([*sums["values"], _gap_and_value(x, x_0, dual, a, b, rho)[1]])
        best = (a * b).sum(0) / a.sum()
        least = float((a / 2 * (best - b) ** 2).sum()) / agents
        gaps, shifts, moves = (np.array(sums[name]) for name in ("gaps", "shifts", "moves"))
        falls, excess = np.diff(values), float(values[0]) - least
        return cls(agents, high, rho, noise, gaps, falls, shifts, moves, excess)

    @property
    def constants(self) -> tuple[float, ...]:
        """B_1 ... B_8."""
        high, rho = self.smoothness, self.rho
        share = high / (4 * high - 2)
        weight = 1 + 4 * rho / self.agents
        b7 = high**2 + rho**2 + 4 / self.agents * (rho + 4 * high**2 / rho) + 4 * high**2 / rho**2
        return (
            rho * self.agents / 2,
            rho / 2 - 4 * high**2 / rho - high,
            8 / rho + share,
            16 / rho,
            2.0,
            weight * 16 / rho**2,
            b7,
            high * share + weight * 8 / rho**2,
        )

    @property
    def numbers(self) -> dict[str, Any]:
        """What names it on the page."""
        return {"L": self.smoothness, "rho": self.rho, "sigma": self.noise}


def _gap_and_value(
    x: Vector, x_0: Vector, dual: Vector, a: Vector, b: Vector, rho: float
) -> tuple[float, float]:
    """Return P of (37) and the Lagrangian, means over the runs."""
    runs, agents, _ = x.shape
    apart = x_0 - x
    slopes = (a * (x - b) - dual - rho * apart, apart, (dual + rho * apart).sum(1))
    gap = sum(float((slope**2).sum()) for slope in slopes)
    value = float((a / 2 * (x - b) ** 2 + dual * apart + rho / 2 * apart**2).sum())
    return gap / agents**2 / runs, value / agents / runs


def lagrangian_falls(rng: Generator) -> Gap:
    """L^{t+1} - L^t - 2 B_3 nu <= -B_1 shift + sum_i (-B_2 move_i - B_3 nu), by round."""
    one = Course.drawn(rng, 0.0, 3)
    b1, b2, b3, *_ = one.constants
    left = one.falls - 2 * b3 * STOP
    right = -b1 * one.shifts - b2 * one.moves - one.agents * b3 * STOP
    return float((left - right)[1:].max()), one.numbers


def gap_of_a_round(rng: Generator, *, noise: float) -> Gap:
    """P^t <= B_5 shift + sum_i (B_7 move_i + B_8 nu) + 8 rho sigma^2, in every round."""
    one = Course.drawn(rng, noise, 30)
    *_, b5, _, b7, b8 = one.constants
    right = b5 * one.shifts + b7 * one.moves + one.agents * b8 * STOP
    return float((one.gaps - right - 8 * one.rho * noise**2).max()), one.numbers


def mean_gap(rng: Generator, *, noise: float) -> Gap:
    """The mean of P over the rounds is at most (38), with C_0 ... C_3 of (C.5)."""
    one = Course.drawn(rng, noise, 30)
    constants = one.constants
    factor = max(constants[4:]) / min(constants[:4])
    right = factor * (one.excess / len(one.gaps) + 2 * constants[2] * STOP)
    return float(one.gaps.mean() / (right + 8 * one.rho * noise**2)) - 1, one.numbers


# ------------------------------------------------------------------ graph federated learning


def _metropolis(rng: Generator, units: int) -> Vector:
    adjacent = np.triu(rng.random((units, units)) < 0.5, 1)
    adjacent = adjacent | adjacent.T
    degree = adjacent.sum(axis=1)
    weights = np.where(adjacent, 1 / (1 + np.maximum(degree[:, None], degree[None])), 0.0)
    np.fill_diagonal(weights, 1 - weights.sum(axis=1))
    return weights


def gradient_noise(rng: Generator) -> Gap:
    """E ||s||^2 is at most (28), with the constants (25), (26) and (29).

    Ridge regression of 3 units with 5 agents of 6 records. The left side is exact: the variance of
    L agents drawn without replacement, each with the mean of E_{p,k} records with replacement.
    """
    units, agents, records, ridge = 3, 5, 6, 0.1
    taken, epochs = int(rng.integers(1, agents + 1)), rng.integers(1, 6, (units, agents))
    u = rng.uniform(0.3, 1.5, (units, agents, 1, 1)) * rng.standard_normal((units, agents, 6, 2))
    d = u @ rng.standard_normal(2) + rng.standard_normal((units, agents, records))
    flat = u.reshape(-1, 2)
    best = np.linalg.solve(
        flat.T @ flat / len(flat) + ridge * np.eye(2), flat.T @ d.ravel() / d.size
    )
    w = best + rng.uniform(0, 3) * rng.standard_normal((units, 2))

    def slopes(x: Vector) -> Vector:
        x = x[:, None, None]
        slope: Vector = 2 * (((u * x).sum(-1) - d)[..., None] * u + ridge * x)
        return slope

    def square(x: Vector) -> Vector:
        return np.asarray((x * x).sum(-1))

    means = slopes(w).mean(axis=2)
    within = square(slopes(w) - means[:, :, None]).mean(axis=2) / epochs
    between = square(means - means.mean(axis=1, keepdims=True)) * (agents - taken) / (agents - 1)
    left = (within + between).mean(axis=1).sum() / taken / units**2
    delta = 2 * (square(u).max() + ridge)
    beta = 6 * delta**2 / taken * (1 + (1 / epochs).mean(axis=1))
    at_best = square(slopes(np.tile(best, (units, 1)))).mean(axis=2)
    sigma = ((12 / epochs + 3) * at_best).mean(axis=1) / taken
    centre = w.mean(axis=0)
    apart = 2 * (beta * square(w - centre)).mean()
    right = 2 * beta.mean() * square(centre - best) + sigma.mean() + apart
    return float(left / right) - 1, {"L": taken, "E": epochs.tolist()}


def noise_cancels(rng: Generator) -> Gap:
    """The messages of (47) add up to nothing for doubly stochastic weights."""
    units = int(rng.integers(3, 12))
    weights, g = _metropolis(rng, units), rng.laplace(0, 1, (units, 3))
    own = np.diag(weights)
    sent = np.repeat(g[None], units, axis=0)
    for unit in range(units):
        sent[unit, unit] = -(1 - own[unit]) / own[unit] * g[unit]
    total = np.einsum("pm,pmd->d", weights, sent)
    return float(np.abs(total).max()) - 1e-10, {"P": units}


def steady_noise(rng: Generator, *, homomorphic: bool) -> Gap:
    """sigma^2 mu^p of the centroid's steady state: p is -1, of homomorphic noise not negative.

    The noise's own recursion: w <- A (1 - mu h_p) w + noise with unlike curvatures h_p, exact
    covariances by iteration.
    """
    units = 5
    weights, h = _metropolis(rng, units), rng.uniform(0.5, 1.5, units)
    off = weights - np.diag(np.diag(weights))
    added = np.diag((off**2).sum(axis=1))
    if homomorphic:
        added = (weights - np.eye(units)) @ (weights - np.eye(units)).T
    found = []
    for mu in (0.01, 0.04):
        step = weights @ np.diag(1 - mu * h)
        covariance = np.zeros((units, units))
        for _ in range(2500):
            covariance = step @ covariance @ step.T + added
        found.append(float(covariance.mean()))
    exponent = math.log(found[1] / max(found[0], 1e-300)) / math.log(4.0)
    return -exponent if homomorphic else abs(exponent + 1) - 0.2, {"exponent": exponent}


SMALL = (1e-4, 4e-4)
ORDERS: Mapping[str, tuple[float, float]] = {"disagreement": (2.0, 0.0), "errors": (1.0, -1.0)}
"""Least exponents of mu without noise, and of what is left of the noise: (41) and (61)."""


def order_in_the_network(rng: Generator, *, of: str) -> Gap:
    """What is left is of no lower order in mu than printed: without noise, and of the noise.

    Quadratic units of unlike curvature h_p and optima o_p, w <- A (w - mu h (w - o)) + noise: the
    fixed point and the noise's covariance are exact.
    """
    from scipy.linalg import solve_discrete_lyapunov

    units = 5
    weights, h, optima = (
        _connected(rng, units),
        rng.uniform(0.5, 1.5, units),
        rng.standard_normal(units),
    )
    off = weights - np.diag(np.diag(weights))
    added, best = np.diag((off**2).sum(axis=1)), float(h @ optima / h.sum())
    centred = np.eye(units) - 1 / units
    found = []
    for mu in SMALL:
        step = weights @ np.diag(1 - mu * h)
        fixed = np.linalg.solve(np.eye(units) - step, weights @ (mu * h * optima))
        covariance = solve_discrete_lyapunov(step, added)
        if of == "disagreement":
            covariance = centred @ covariance @ centred
        gap = fixed - (fixed.mean() if of == "disagreement" else best)
        found.append((float(gap @ gap), float(np.trace(covariance))))
    exponents = [math.log(high / low) / math.log(4.0) for low, high in zip(*found, strict=True)]
    short = [least - own for least, own in zip(ORDERS[of], exponents, strict=True)]
    return max(short) - 0.2, {"without noise": exponents[0], "of the noise": exponents[1]}


def order_of_local_steps(rng: Generator) -> Gap:
    """Lemma 2: the second moment of the incremental noise is O(mu), for E_k gradient steps."""
    h, optima = rng.uniform(0.5, 1.5, 6), rng.standard_normal(6)
    steps, w, found = rng.integers(2, 8, 6), rng.standard_normal(), []
    for mu in SMALL:
        noise = 0.0
        for curvature, optimum, count in zip(h, optima, steps, strict=True):
            own, mean = w, 0.0
            for _ in range(count):
                slope = curvature * (own - optimum)
                mean += (slope - curvature * (w - optimum)) / count
                own -= mu / count * slope
            noise += mean / len(h)
        found.append(noise**2)
    exponent = math.log(found[1] / max(found[0], 1e-300)) / math.log(4.0)
    return 1.0 - exponent - 0.2, {"exponent": exponent}


def order_of_the_largest_error(rng: Generator) -> Gap:
    """Theorem 4: from w^o no unit's error grows as mu falls; the largest of 1,000 rounds."""
    units = 5
    weights, h, optima = (
        _connected(rng, units),
        rng.uniform(0.5, 1.5, units),
        rng.standard_normal(units),
    )
    best, found = float(h @ optima / h.sum()), []
    for mu in SMALL:
        w, largest = np.full(units, best), 0.0
        for _ in range(1000):
            w = weights @ (w - mu * h * (w - optima))
            largest = max(largest, float(np.abs(w - best).max()))
        found.append(largest)
    exponent = math.log(found[1] / found[0]) / math.log(4.0)
    return -exponent - 0.2, {"exponent": exponent}


def _connected(rng: Generator, units: int) -> Vector:
    """Return Metropolis weights of a connected random graph."""
    while True:
        weights = _metropolis(rng, units)
        if np.sort(np.linalg.eigvalsh(weights))[-2] < 1 - 1e-6:
            return weights


def privacy_of_a_trajectory(rng: Generator, *, dim: int) -> Gap:
    """What i rounds of messages tell of a unit's data is at most eps(i), for gradients of norm B.

    Noise of variance sigma_g^2 in every coordinate; ln p(message; D) / p(message; D') is largest
    beyond both psi. Given the messages, which all others hear, psi depends on the data alone.
    """
    rounds, mu, own = int(rng.integers(2, 20)), rng.uniform(0.05, 1), rng.uniform(0.1, 0.9)
    epsilon = rng.uniform(0.1, 3)
    scale = mu * (1 + rounds) * rounds / epsilon  # sigma_g / sqrt(2) for B = 1
    optima, w, told = rng.choice([-1e6, 1e6], (2, dim)), np.zeros((2, dim)), 0.0
    for _ in range(rounds):
        slopes = w - optima
        psi = w - mu * slopes / np.linalg.norm(slopes, axis=1, keepdims=True)
        told += float(np.abs(psi[0] - psi[1]).sum()) / scale
        heard = psi[0] + rng.laplace(0, scale, dim)
        w = psi + (1 - own) * (rng.standard_normal(dim) - heard)
    return told / epsilon - 1, {"i": rounds, "mu": mu, "eps": epsilon}


def own_share_is_larger(rng: Generator) -> Gap:
    """Section V-A, single units: the variances that a round adds."""
    weights = _metropolis(rng, int(rng.integers(3, 12)))
    off = weights - np.diag(np.diag(weights))
    independent = (off**2).sum(axis=1)
    homomorphic = independent + (1 - np.diag(weights)) ** 2
    return float((homomorphic - independent).max()), {"P": len(weights)}
