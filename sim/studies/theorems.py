"""Numerical checks of the papers' statements: do they hold on a hundred random instances?

A check draws instances from a seed and returns how many hold, and the instance that fails by most:
a counterexample refutes a statement, a hundred instances that hold prove nothing. Every check is a
few lines of numpy of its own and shares no code with the algorithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .study import Result

Vector = NDArray[Any]
COUNT = 100
SLACK = 1e-9


def judged(gaps: Sequence[tuple[float, Mapping[str, Any]]]) -> Result:
    """Return how many instances hold (gap <= 0), and the worst of those that do not."""
    worst, instance = max(gaps, key=lambda gap: gap[0])
    held = sum(bool(gap <= SLACK) for gap, _ in gaps)
    return {
        "held": held,
        "tried": len(gaps),
        "worst": float(worst),
        "instance": dict(instance) if held < len(gaps) else {},
    }


# ------------------------------------------------------------------ Fed-PLT


def _moduli(rng: np.random.Generator) -> tuple[float, float]:
    low = 10.0 ** rng.uniform(-2, 1)
    return low, low * 10.0 ** rng.uniform(0.02, 2)


def _quadratic(rng: np.random.Generator, low: float, high: float, dim: int = 4) -> Vector:
    """Return a symmetric matrix with extreme eigenvalues ``low`` and ``high``."""
    basis, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    values = np.concatenate([[low, high], rng.uniform(low, high, dim - 2)])
    matrix: Vector = basis @ np.diag(values) @ basis.T
    return matrix


def gradient_descent(seed: int) -> Result:
    """Lemma 2: x - rho grad f(x) contracts by max(|1 - rho lambda|, |1 - rho Lambda|)."""
    rng, gaps = np.random.default_rng([seed, 2]), []
    for _ in range(COUNT):
        low, high = _moduli(rng)
        step = rng.uniform(0, 2 / high)
        rate = np.linalg.norm(np.eye(4) - step * _quadratic(rng, low, high), 2)
        zeta = max(abs(1 - step * low), abs(1 - step * high))
        gaps.append((float(rate - zeta), {"lambda": low, "Lambda": high, "rho": step}))
    return judged(gaps)


def peaceman_rachford(seed: int) -> Result:
    """Lemma 3: refl_f refl_g contracts by max |1 - rho m| / (1 + rho m) over m = lambda, Lambda."""
    rng, gaps = np.random.default_rng([seed, 3]), []
    for _ in range(COUNT):
        low, high = _moduli(rng)
        rho = 10.0 ** rng.uniform(-2, 2)
        reflect = 2 * np.linalg.inv(np.eye(4) + rho * _quadratic(rng, low, high)) - np.eye(4)
        plane, _ = np.linalg.qr(rng.standard_normal((4, 2)))
        mirror = 2 * plane @ plane.T - np.eye(4)  # g is the indicator of a subspace
        rate = np.linalg.norm(reflect @ mirror, 2)
        gaps.append((float(rate) - zeta_of(rho, low, high), {"rho": rho, "lambda": low}))
    return judged(gaps)


def zeta_of(rho: float, low: float, high: float) -> float:
    """Return the contraction constant of Lemma 3."""
    return max(abs(1 - rho * m) / (1 + rho * m) for m in (low, high))


def proximal_of_consensus(seed: int) -> Result:
    """Lemma 6: the prox of consensus + h is prox_{rho h / N} of the mean, for h = ||.||_1."""
    rng, gaps = np.random.default_rng([seed, 6]), []
    for _ in range(COUNT):
        count, rho = int(rng.integers(2, 9)), 10.0 ** rng.uniform(-1, 1)
        z = rng.standard_normal((count, 3)) * 3
        mean = z.mean(axis=0)
        x = np.sign(mean) * np.maximum(np.abs(mean) - rho / count, 0)

        def objective(y: Vector, z: Vector = z, rho: float = rho) -> float:
            return float(np.abs(y).sum() + ((y - z) ** 2).sum() / (2 * rho))

        others = x + 10.0 ** rng.uniform(-6, 0, (200, 1)) * rng.standard_normal((200, 3))
        gap = objective(x) - min(objective(y) for y in others)
        gaps.append((gap - 1e-9, {"N": count, "rho": rho}))
    return judged(gaps)


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


Instance = tuple[Vector, float, float, int, tuple[float, float], float]


def _fed_plt_instances(seed: int, *, printed: bool) -> Iterator[Instance]:
    """Yield problems, rho, step and N_e for which the matrix S is stable."""
    rng, found = np.random.default_rng([seed, 7]), 0
    while found < COUNT:
        low = 10.0 ** rng.uniform(-1, 1)
        high = low * 10.0 ** rng.uniform(0.02, 0.5)
        rho, epochs = 10.0 ** rng.uniform(-1, 1), int(rng.integers(1, 6))
        step = rng.uniform(0, 2 / (high + 1 / rho))
        chi = max(abs(1 - step * (m + 1 / rho)) for m in (low, high)) ** epochs
        if radius(stability_matrix(rho, (low, high), chi, printed=printed)) >= 1:
            continue
        found += 1
        yield np.array([low, *rng.uniform(low, high, 1), high]), rho, step, epochs, (low, high), chi


def _stable_but_divergent(seed: int, *, printed: bool) -> Result:
    gaps = []
    for curvatures, rho, step, epochs, _, _ in _fed_plt_instances(seed, printed=printed):
        gap = radius(fed_plt_matrix(curvatures, rho, step, epochs)) - 1
        gaps.append((gap, {"h": curvatures.tolist(), "rho": rho, "gamma": step, "N_e": epochs}))
    return judged(gaps)


def contraction_as_printed(seed: int) -> Result:
    """Proposition 1: where the printed S is stable, Fed-PLT converges."""
    return _stable_but_divergent(seed, printed=True)


def contraction_corrected(seed: int) -> Result:
    """Proposition 1 with 1/(1 + rho lambda) in S."""
    return _stable_but_divergent(seed, printed=False)


def a_stable_choice(seed: int) -> Result:
    """Lemma 7: some rho, step and N_e make S stable, whatever the moduli are."""
    rng, gaps = np.random.default_rng([seed, 77]), []
    for _ in range(COUNT):
        low, high = _moduli(rng)
        rho = 1 / math.sqrt(low * high)
        step = 2 / (low + high + 2 / rho)
        chi = max(abs(1 - step * (m + 1 / rho)) for m in (low, high))
        least = min(
            radius(stability_matrix(rho, (low, high), chi**epochs, printed=True))
            for epochs in (1, 5, 25, 125, 625)
        )
        gaps.append((least - 1, {"lambda": low, "Lambda": high}))
    return judged(gaps)


def bound_on_iterates(seed: int) -> Result:
    """Proposition 2, (15) without noise: E ||(x, z) - fixed point|| <= sqrt(p/p_) sigma^k ||...||.

    sigma^2 = 1 - p_ + p_ ||S||^2 with the printed S, everybody active with probability p_i.
    """
    rng = np.random.default_rng([seed, 15])
    gaps: list[tuple[float, Mapping[str, Any]]] = []
    source = _fed_plt_instances(seed + 1, printed=True)
    while len(gaps) < COUNT:
        try:
            curvatures, rho, step, epochs, moduli, chi = next(source)
        except StopIteration:
            source = _fed_plt_instances(int(rng.integers(2**31)), printed=True)
            continue
        norm = float(np.linalg.norm(stability_matrix(rho, moduli, chi, printed=True), 2))
        if norm >= 1:
            continue
        share = rng.uniform(0.3, 1.0, 3)
        sigma = math.sqrt(1 - share.min() + share.min() * norm**2)
        matrix, rounds = fed_plt_matrix(curvatures, rho, step, epochs), 40
        state = np.repeat(rng.standard_normal(6)[None], 200, axis=0)
        first = float(np.linalg.norm(state[0]))
        for _ in range(rounds):
            active = np.tile(rng.random((200, 3)) < share, 2)
            state = np.where(active, state @ matrix.T, state)
        mean = float(np.linalg.norm(state, axis=1).mean())
        bound = math.sqrt(share.max() / share.min()) * sigma**rounds * first
        instance = {"h": curvatures.tolist(), "rho": rho, "gamma": step, "N_e": epochs}
        gaps.append((mean / bound - 1, {**instance, "p": share.tolist()}))
    return judged(gaps)


def accelerated_contraction(seed: int) -> Result:
    """Proposition 3, Lemma 8: N_e steps of (12) contract by (1 + k)(1 - 1/sqrt(k))^N_e, k >= 1."""
    return _accelerated(seed, printed=True)


def accelerated_corrected(seed: int) -> Result:
    """Lemma 8 with the square root of (1 + k)(1 - 1/sqrt(k))^N_e."""
    return _accelerated(seed, printed=False)


def _accelerated(seed: int, *, printed: bool) -> Result:
    rng, gaps = np.random.default_rng([seed, 8]), []
    for _ in range(COUNT):
        low, kappa = 10.0 ** rng.uniform(-1, 1), 10.0 ** rng.uniform(0.1, 2)
        epochs = int(rng.integers(1, 30))
        curvature = _quadratic(rng, low, low * kappa)
        momentum = (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)
        before = after = extrapolated = np.eye(4)
        for _ in range(epochs):
            after = extrapolated - curvature @ extrapolated / (low * kappa)
            extrapolated, before = after + momentum * (after - before), after
        bound = (1 + kappa) * (1 - 1 / math.sqrt(kappa)) ** epochs
        rate = float(np.linalg.norm(after, 2))
        gap = rate - (bound if printed else math.sqrt(bound))
        gaps.append((gap, {"kappa": kappa, "N_e": epochs}))
    return judged(gaps)


def accuracy_under_noise(seed: int) -> Result:
    """Corollary 1, (16): the error under noise, with the corrected S where its norm is below 1."""
    rng = np.random.default_rng([seed, 16])
    gaps: list[tuple[float, Mapping[str, Any]]] = []
    source = _fed_plt_instances(seed + 2, printed=False)
    rounds, tau = 60, 0.3
    while len(gaps) < COUNT:
        try:
            curvatures, rho, step, epochs, moduli, chi_all = next(source)
        except StopIteration:
            source = _fed_plt_instances(int(rng.integers(2**31)), printed=False)
            continue
        norm = float(np.linalg.norm(stability_matrix(rho, moduli, chi_all, printed=False), 2))
        chi = chi_all ** (1 / epochs)
        if norm >= 1:
            continue
        state = np.zeros((100, 6))
        matrix = fed_plt_matrix(curvatures, rho, step, epochs)
        shrink = 1 - step * (curvatures + 1 / rho)
        for _ in range(rounds):
            noise = np.zeros((100, 3))
            for _ in range(epochs):
                noise = shrink * noise + math.sqrt(2 * step) * tau * rng.standard_normal((100, 3))
            state = state @ matrix.T + np.hstack([noise, 2 * noise])
        mean = float(np.linalg.norm(state, axis=1).mean())
        geometric = (1 - norm**rounds) / (1 - norm) * (1 - chi_all) / (1 - chi)
        bound = geometric * tau * math.sqrt(10 * 3 * step)
        gaps.append((mean / bound - 1, {"h": curvatures.tolist(), "rho": rho, "gamma": step}))
    return judged(gaps)


def uncoordinated_solvers(seed: int) -> Result:
    """Remark 1: agents with steps and N_e of their own still converge to the optimum."""
    rng, gaps = np.random.default_rng([seed, 11]), []
    for _ in range(COUNT):
        count = 4
        h, b = rng.uniform(0.5, 2.0, count), rng.standard_normal(count)
        rho = 1.0
        step = rng.uniform(0.5, 1.5, count) / (h + 1 / rho)
        epochs = rng.integers(2, 8, count)
        x, z = rng.standard_normal((2, count))
        for _ in range(200):
            y = z.mean()
            w, v = x.copy(), 2 * y - z
            for epoch in range(int(epochs.max())):
                moved = w - step * (h * w - b + (w - v) / rho)
                w = np.where(epoch < epochs, moved, w)
            x, z = w, z + 2 * (w - y)
        gap = float(np.abs(x - b.sum() / h.sum()).max()) - 1e-6
        gaps.append((gap, {"h": h.tolist(), "gamma": step.tolist()}))
    return judged(gaps)


# ------------------------------------------------------------------ DP-IADMM


def penalised_subproblem(seed: int) -> Result:
    """Proposition 1: the minimiser of G + sum_m ln(1 + exp(l h_m)) tends to that of (8)."""
    from scipy.optimize import minimize_scalar

    rng, gaps = np.random.default_rng([seed, 21]), []
    for _ in range(COUNT):
        curvature, centre, bound = rng.uniform(0.5, 5), rng.normal(0, 2), rng.uniform(0.2, 1)
        wanted = float(np.clip(centre, -bound, bound))

        def penalised(
            z: float, level: float, a: float = curvature, c: float = centre, r: float = bound
        ) -> float:
            walls = np.logaddexp(0, level * (z - r)) + np.logaddexp(0, level * (-z - r))
            return float(a / 2 * (z - c) ** 2 + walls)

        bracket = (min(-bound, centre) - 1, max(bound, centre) + 1)
        errors = [
            abs(
                minimize_scalar(
                    penalised,
                    bounds=bracket,
                    args=(level,),
                    method="bounded",
                    options={"xatol": 1e-10},
                ).x
                - wanted
            )
            for level in (10.0, 1e5)
        ]
        gaps.append((errors[1] - 1e-2, {"a": curvature, "centre": centre, "r": bound}))
    return judged(gaps)


def privacy_of_a_step(seed: int) -> Result:
    """Proposition 2, Theorem 1: |ln p(z; D) / p(z; D')| <= eps for neighbours D, D'.

    Scalar logistic losses of five records at one z; the noise of D has the scale (9b) of D.
    """
    rng, gaps = np.random.default_rng([seed, 22]), []
    records = np.linspace(-1, 1, 9)
    for _ in range(COUNT):
        epsilon, z = 1.0, rng.normal()
        data = rng.choice(records, 5)
        other = data.copy()
        other[0] = rng.choice(records)

        def slope(own: Vector, z: float = z) -> Vector:
            value: Vector = -own / (1 + np.exp(own * z)) / 5
            return value

        def scale(own: Vector, z: float = z, epsilon: float = epsilon) -> float:
            """Delta of (9b) over eps: the most that changing one record moves the gradient."""
            each, all_ = slope(own, z), slope(records, z)
            return float(np.abs(each[:, None] - all_[None]).max()) / epsilon

        points = np.concatenate([np.linspace(-50, 50, 2001), rng.normal(0, 1, 100)])
        ratio = _log_laplace(points - slope(data).sum(), scale(data))
        ratio = ratio - _log_laplace(points - slope(other).sum(), scale(other))
        instance = {"z": z, "data": data.tolist(), "neighbour": other.tolist()}
        gaps.append((float(np.abs(ratio).max()) - epsilon, instance))
    return judged(gaps)


def _log_laplace(x: Vector, scale: float) -> Vector:
    density: Vector = -np.abs(x) / scale - math.log(2 * scale)
    return density


def _admm_gap(rng: np.random.Generator, rule: str) -> tuple[float, Mapping[str, Any]]:
    """Return left side over right side, minus 1, of (16a), (20a) or (23).

    f_p(z) = a_p (z - b_p)^2 / 2 on W = [-1, 1], Laplace noise of scale U_3 / eps, constant rho,
    gamma = 2 |lambda*|, 40 repetitions.
    """
    agents, updates, rounds, epsilon = 3, int(rng.integers(1, 5)), 40, rng.uniform(0.5, 3)
    a, b = rng.uniform(0.5, 2, agents), rng.uniform(-1, 1, agents)
    best = float(np.clip((a * b).sum() / a.sum(), -1, 1))
    gamma = 2 * float(np.linalg.norm(a * (best - b))) + 1e-3
    bend, spread = float(a.max()), 0.2
    u1, u2, u3 = float((a * (1 + np.abs(b))).max()), 2.0 * math.sqrt(agents), spread
    rho = rng.uniform(0.5, 3)
    shape = (40, agents)
    z, lam = np.zeros(shape), np.zeros(shape)
    z_sum, w_sum, total = np.zeros(shape), np.zeros((40, 1)), 0.0
    for t in range(1, rounds + 1):
        eta = {
            "smooth": 1 / (bend + math.sqrt(t) / epsilon),
            "nonsmooth": 1 / math.sqrt(t),
            "strong": 2 / (float(a.min()) * (t + 2)),
        }[rule]
        weight = t if rule == "strong" else 1
        w = (z - lam / rho).mean(axis=1, keepdims=True)
        inner, mean = z.copy(), np.zeros(shape)
        own = np.zeros(shape)
        for _ in range(updates):
            own += inner / updates
            noise = rng.laplace(0, spread / epsilon, shape)
            pull = rho * w + lam - noise - a * (inner - b) + inner / eta
            inner = np.clip(pull / (rho + 1 / eta), -1, 1)
            mean += inner / updates
        z = mean
        lam = lam + rho * (w - z)
        z_sum += weight * (mean if rule == "smooth" else own)
        w_sum, total = w_sum + weight * w, total + weight
    z_bar, w_bar = z_sum / total, w_sum / total
    values = (a / 2 * ((z_bar - b) ** 2 - (best - b) ** 2)).sum(axis=1)
    left = float((values + gamma * np.linalg.norm(w_bar - z_bar, axis=1)).mean())
    instance = {"a": a.tolist(), "b": b.tolist(), "E": updates, "eps": epsilon, "rho": rho}
    right = admm_bound(
        rule, rounds, updates, epsilon, rho, gamma, (u1, u2, u3), bend, float(a.min()), agents
    )
    return left / right - 1, instance


def admm_bound(
    rule: str,
    rounds: int,
    updates: int,
    epsilon: float,
    rho: float,
    gamma: float,
    bounds: tuple[float, float, float],
    bend: float,
    convexity: float,
    agents: int,
) -> float:
    """Return the right side of (16a), (20a) or (23), with J = K = 1 and lambda^1 = 0."""
    u1, u2, u3 = bounds
    if rule == "smooth":
        slow = (2 * agents * u3**2 + u2**2 / (2 * updates)) / (epsilon * math.sqrt(rounds))
        return slow + (u2**2 * (rho + bend / updates) + gamma**2 / rho) / (2 * rounds)
    if rule == "nonsmooth":
        slow = 2 * agents * u3**2 / epsilon**2 + agents * u1**2 + u2**2 / (2 * updates)
        rest = (u2**2 * rho + gamma**2 / rho + 2 * gamma * u2) / (2 * rounds)
        return slow / math.sqrt(rounds) + rest
    noise = 2 * agents * (u1**2 + 2 * u3**2 / epsilon**2) / convexity
    first = 2 * u2 * gamma + u2**2 * rho + 4 * gamma**2 / rho + convexity * u2**2 / (2 * updates)
    return (first + noise) / (rounds + 1)


def _rate(rule: str) -> Callable[[int], Result]:
    def check(seed: int) -> Result:
        rng = np.random.default_rng([seed, 23])
        return judged([_admm_gap(rng, rule) for _ in range(COUNT)])

    return check


def more_updates_lower_the_bounds(seed: int) -> Result:
    """Corollary 1: the right sides of (16a), (20a), (23) fall as E grows."""
    rng, gaps = np.random.default_rng([seed, 24]), []
    for _ in range(COUNT):
        numbers = rng.uniform(0.1, 3, 7)
        bounds = (numbers[0], numbers[1], numbers[2])
        for rule in ("smooth", "nonsmooth", "strong"):
            few, many = (
                admm_bound(
                    rule,
                    100,
                    updates,
                    numbers[3],
                    numbers[4],
                    numbers[5],
                    bounds,
                    numbers[6],
                    numbers[6] / 2,
                    5,
                )
                for updates in (1, 10)
            )
            gaps.append((many - few, {"rule": rule}))
    return judged(gaps)


# ------------------------------------------------------------------ FedPDM


def _pdm_gaps(seed: int, rounds: int, reach: float) -> Result:
    """Compare x_i of neighbours with s of (35), over rounds with the same broadcasts.

    Near the round's broadcast the two losses have slopes +-G of their own, as nonconvex losses
    may: G is all that Theorem 1 asks of them. rho eta is uniform in (0.1, ``reach``).
    """
    rng, gaps = np.random.default_rng([seed, 31]), []
    for _ in range(COUNT):
        rho, steps, bound = rng.uniform(0.5, 2), int(rng.integers(1, 6)), 1.0
        eta = rng.uniform(0.1, reach) / rho
        lam, apart = np.zeros(2), 0.0
        for centre in rng.normal(0, 1, rounds):
            slopes = rng.choice([-bound, bound], 2)
            x = np.full(2, centre)
            for _ in range(steps):
                x = x - eta * (slopes - lam + rho * (x - centre))
            lam = lam + rho * (centre - x)
            apart = max(apart, abs(float(x[0] - x[1])))
        shrink = abs(1 - rho * eta)
        sensitivity = (1 - shrink**steps) / (1 - shrink) * 4 * eta * bound
        gaps.append((apart - sensitivity, {"rho": rho, "eta": eta, "Q": steps, "rounds": rounds}))
    return judged(gaps)


def sensitivity_first_round(seed: int) -> Result:
    """Theorem 1: ||x_i - x_i'|| <= s_i of (35), while the duals are still equal."""
    return _pdm_gaps(seed, 1, 1.9)


def sensitivity_later(seed: int) -> Result:
    """Theorem 1 after 30 rounds: the duals are private state and differ as well."""
    return _pdm_gaps(seed, 30, 1.9)


def sensitivity_short_steps(seed: int) -> Result:
    """Theorem 1 after 30 rounds for rho eta < 1, as in the paper's experiments (.4)."""
    return _pdm_gaps(seed, 30, 0.99)


def sparse_dense_identity(seed: int) -> Result:
    """DP-FedPDM is BSDP-FedPDM with alpha_U = alpha_D = 1: dense means and element-wise ones."""
    rng = np.random.default_rng([seed, 32])
    gaps: list[tuple[float, Mapping[str, Any]]] = []
    for _ in range(COUNT):
        y = rng.standard_normal((4, 6))
        sums, senders = np.zeros(6), np.zeros(6)
        for row in y:
            kept = np.argsort(-np.abs(row))[:6]
            sums[kept] += row[kept]
            senders[kept] += 1
        gaps.append((float(np.abs(sums / senders - y.mean(axis=0)).max()) - 1e-12, {}))
    return judged(gaps)


# ------------------------------------------------------------------ graph federated learning


def _metropolis(rng: np.random.Generator, units: int) -> Vector:
    adjacent = np.triu(rng.random((units, units)) < 0.5, 1)
    adjacent = adjacent | adjacent.T
    degree = adjacent.sum(axis=1)
    weights = np.where(adjacent, 1 / (1 + np.maximum(degree[:, None], degree[None])), 0.0)
    np.fill_diagonal(weights, 1 - weights.sum(axis=1))
    return weights


def noise_cancels(seed: int) -> Result:
    """(46), (47): the noise cancels in the centroid for doubly stochastic weights."""
    rng, gaps = np.random.default_rng([seed, 46]), []
    for _ in range(COUNT):
        units = int(rng.integers(3, 12))
        weights, g = _metropolis(rng, units), rng.laplace(0, 1, (units, 3))
        own = np.diag(weights)
        sent = np.repeat(g[None], units, axis=0)
        for unit in range(units):
            sent[unit, unit] = -(1 - own[unit]) / own[unit] * g[unit]
        total = np.einsum("pm,pmd->d", weights, sent)
        gaps.append((float(np.abs(total).max()) - 1e-10, {"P": units}))
    return judged(gaps)


def _centroid_noise(seed: int, kind: str) -> list[float]:
    """Return the exponent p of sigma^2 mu^p in the centroid's steady state, by instance.

    The noise's own recursion: w <- A (1 - mu h_p) w + noise with unlike curvatures h_p, exact
    covariances by iteration.
    """
    rng, slopes = np.random.default_rng([seed, 45]), []
    for _ in range(20):
        units = 5
        weights, h = _metropolis(rng, units), rng.uniform(0.5, 1.5, units)
        off = weights - np.diag(np.diag(weights))
        added = np.diag((off**2).sum(axis=1))
        if kind == "homomorphic":
            added = (weights - np.eye(units)) @ (weights - np.eye(units)).T
        found = []
        for mu in (0.01, 0.04):
            step = weights @ np.diag(1 - mu * h)
            covariance = np.zeros((units, units))
            for _ in range(2500):
                covariance = step @ covariance @ step.T + added
            found.append(float(covariance.mean()))
        slopes.append(math.log(found[1] / max(found[0], 1e-300)) / math.log(4.0))
    return slopes


def random_noise_like_one_over_mu(seed: int) -> Result:
    """Theorem 1, (45): independent noise leaves O(1/mu) sigma_g^2 in the centroid."""
    slopes = _centroid_noise(seed, "random")
    return judged([(abs(slope + 1) - 0.2, {"exponent": slope}) for slope in slopes])


def homomorphic_noise_falls_with_mu(seed: int) -> Result:
    """Corollary 1, (50): homomorphic noise leaves nothing that grows as mu falls."""
    slopes = _centroid_noise(seed, "homomorphic")
    return judged([(-slope, {"exponent": slope}) for slope in slopes])


def own_share_is_larger(seed: int) -> Result:
    """Section V-A, single units: a round of (47) adds no more noise than independent noise does."""
    rng, gaps = np.random.default_rng([seed, 59]), []
    for _ in range(COUNT):
        weights = _metropolis(rng, int(rng.integers(3, 12)))
        off = weights - np.diag(np.diag(weights))
        independent = (off**2).sum(axis=1)
        homomorphic = independent + (1 - np.diag(weights)) ** 2
        gaps.append((float((homomorphic - independent).max()), {"P": len(weights)}))
    return judged(gaps)


CHECKS: Mapping[str, Callable[[int], Result]] = {
    "gradient-descent": gradient_descent,
    "peaceman-rachford": peaceman_rachford,
    "proximal-of-consensus": proximal_of_consensus,
    "contraction-as-printed": contraction_as_printed,
    "contraction-corrected": contraction_corrected,
    "a-stable-choice": a_stable_choice,
    "bound-on-iterates": bound_on_iterates,
    "accelerated-contraction": accelerated_contraction,
    "accelerated-corrected": accelerated_corrected,
    "accuracy-under-noise": accuracy_under_noise,
    "uncoordinated-solvers": uncoordinated_solvers,
    "penalised-subproblem": penalised_subproblem,
    "privacy-of-a-step": privacy_of_a_step,
    "rate-smooth": _rate("smooth"),
    "rate-nonsmooth": _rate("nonsmooth"),
    "rate-strong": _rate("strong"),
    "more-updates": more_updates_lower_the_bounds,
    "sensitivity-first-round": sensitivity_first_round,
    "sensitivity-later": sensitivity_later,
    "sensitivity-short-steps": sensitivity_short_steps,
    "sparse-dense-identity": sparse_dense_identity,
    "noise-cancels": noise_cancels,
    "random-noise": random_noise_like_one_over_mu,
    "homomorphic-noise": homomorphic_noise_falls_with_mu,
    "own-share": own_share_is_larger,
}
