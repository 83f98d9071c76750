"""Errata of the Fed-PLT paper.

The algorithm is run as its listing says on f_i(x) = h_i x^2 / 2, whose optimum is 0: y is the mean
of all z_i, v_i = 2y - z_i, x_i comes from steps on f_i(x) + (x - v_i)^2 / (2 rho) from the old x_i,
and z_i grows by 2 (x_i - y). lambda is the least h_i, Lambda the largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .counterexample import Counterexample, Erratum

Vector: TypeAlias = NDArray[Any]
Solver: TypeAlias = Callable[[Vector, Vector], Vector]
"""Old x_i and v_i of all agents to new x_i; agents are the last axis."""


def gradient_solver(h: Sequence[float], rho: float, gamma: float, epochs: int) -> Solver:
    """Return N_e steps of (11)."""
    curvatures = np.asarray(h)

    def solve(x: Vector, v: Vector) -> Vector:
        for _ in range(epochs):
            x = x - gamma * (curvatures * x + (x - v) / rho)
        return x

    return solve


def accelerated_solver(h: Sequence[float], rho: float, epochs: int) -> Solver:
    """Return N_e steps of (12), which ends with the extrapolated point."""
    curvatures = np.asarray(h)
    low, high = min(h) + 1 / rho, max(h) + 1 / rho
    momentum = (math.sqrt(high) - math.sqrt(low)) / (math.sqrt(high) + math.sqrt(low))

    def solve(x: Vector, v: Vector) -> Vector:
        before = point = x
        for _ in range(epochs):
            after = point - (curvatures * point + (point - v) / rho) / high
            point, before = after + momentum * (after - before), after
        return point

    return solve


def matrix_of(solve: Solver, count: int) -> Vector:
    """Return the linear map (x, z) -> (x, z) of a round in which all take part."""
    x, z = np.hsplit(np.eye(2 * count), 2)
    y = z.mean(axis=1, keepdims=True)
    x = solve(x, 2 * y - z)
    return np.hstack([x, z + 2 * (x - y)]).T


def radius(matrix: Vector) -> float:
    """Return the spectral radius."""
    return float(np.abs(np.linalg.eigvals(matrix)).max())


def norm(matrix: Vector) -> float:
    """Return the largest singular value."""
    return float(np.linalg.norm(matrix, 2))


def reflection_factor(h: Sequence[Any], rho: Any) -> Any:
    """Return zeta of Lemma 3."""
    return max(abs(1 - rho * m) / (1 + rho * m) for m in (min(h), max(h)))


def stability(h: Sequence[float], rho: float, chi: float, shrink: float) -> Vector:
    """Return S for a solver that contracts by chi, with the constant of (17)."""
    zeta = reflection_factor(h, rho)
    return np.array([[chi, (1 + chi) * shrink], [2 * chi, zeta + 2 * chi * shrink]])


def printed_shrink(h: Sequence[Any], rho: Any) -> Any:
    """Return 1 / (lambda + 1/rho), the constant of (17)."""
    return 1 / (min(h) + 1 / rho)


def shrink(h: Sequence[Any], rho: Any) -> Any:
    """Return 1 / (1 + rho lambda)."""
    return 1 / (1 + rho * min(h))


def step_factor(h: Sequence[Any], rho: Any, gamma: Any) -> Any:
    """Return chi, by which one step of (11) contracts."""
    return max(abs(1 - gamma * (m + 1 / rho)) for m in (min(h), max(h)))


def steps_beyond_the_curvature(
    h: tuple[Fraction, Fraction] = (Fraction(1), Fraction(9)),
    rho: Fraction = Fraction(1),
    gamma: Fraction = Fraction(1, 2),
) -> Counterexample:
    """(11): by how much one step on f(x) = Lambda x^2 / 2, v = 0 multiplies the distance to 0."""
    start = Fraction(1)
    after = start - gamma * (h[1] * start + start / rho)
    factor = step_factor(h, rho, gamma)
    instance = {"lambda": h[0], "Lambda": h[1], "rho": rho, "gamma": gamma}
    return Counterexample(instance, "|w_1| / |w_0|", abs(after), Fraction(1), factor)


def exact_update(
    h: tuple[Fraction, ...] = (Fraction(1), Fraction(4)), rho: Fraction = Fraction(1, 2)
) -> Counterexample:
    """(17): how far two exact updates lie apart, over how far their v do."""
    moved = max((Fraction(1) / rho) / (m + 1 / rho) for m in h)  # of (m + 1/rho) x = v / rho
    instance = {"h": h, "rho": rho}
    measured = "|x(v) - x(v')| / |v - v'|"
    return Counterexample(instance, measured, moved, printed_shrink(h, rho), shrink(h, rho))


def contraction(
    h: Sequence[float] = (0.95, 1.15), rho: float = 0.4, gamma: float = 0.35, epochs: int = 1
) -> Counterexample:
    """Proposition 1: the rate of the iteration, its spectral radius."""
    chi = step_factor(h, rho, gamma) ** epochs
    found = radius(matrix_of(gradient_solver(h, rho, gamma, epochs), len(h)))
    claimed = norm(stability(h, rho, chi, printed_shrink(h, rho)))
    corrected = norm(stability(h, rho, chi, shrink(h, rho)))
    instance = {"h": h, "rho": rho, "gamma": gamma, "N_e": epochs}
    return Counterexample(instance, "spectral radius of T", found, claimed, corrected)


def mean_map(matrix: Vector, shares: Sequence[float]) -> Vector:
    """Return the map of E (x, z) where agent i is active with probability p_i."""
    active = np.tile(np.asarray(shares), 2)[:, None]
    own: Vector = (1 - active) * np.eye(len(matrix)) + active * matrix
    return own


def second_moment(matrix: Vector, shares: Sequence[float], start: Vector, rounds: int) -> float:
    """Return sqrt(E ||(x, z)||^2) exactly: agents are active independently of each other."""
    p = np.asarray(shares)
    # An agent's x and z move together.
    spread = np.tile(np.diag(p * (1 - p)), (2, 2))
    moment, mean, change = (
        np.outer(start, start),
        mean_map(matrix, shares),
        matrix - np.eye(2 * len(p)),
    )
    for _ in range(rounds):
        moment = mean @ moment @ mean.T + spread * (change @ moment @ change.T)
    return math.sqrt(float(np.trace(moment)))


def bound_on_iterates(
    h: Sequence[float] = (4.66, 4.79, 4.92),
    rho: float = 0.197,
    gamma: float = 0.139,
    epochs: int = 1,
    shares: Sequence[float] = (0.942, 0.802, 0.949),
    rounds: int = 60,
) -> Counterexample:
    """Proposition 2, (15) without noise: ||E (x, z)||, which E ||(x, z)|| is not below.

    It is about contractions: where the corrected S has a norm of 1 or more it promises nothing.
    """
    matrix = matrix_of(gradient_solver(h, rho, gamma, epochs), len(h))
    chi, low, high = step_factor(h, rho, gamma) ** epochs, min(shares), max(shares)
    start = np.linalg.svd(np.linalg.matrix_power(mean_map(matrix, shares), rounds))[2][0]
    found = float(np.linalg.norm(np.linalg.matrix_power(mean_map(matrix, shares), rounds) @ start))

    def bound(constant: float) -> float | None:
        size = norm(stability(h, rho, chi, constant))
        sigma = math.sqrt(1 - low + low * size**2)
        return math.sqrt(high / low) * sigma**rounds if size < 1 else None

    claimed, corrected = bound(printed_shrink(h, rho)), bound(shrink(h, rho))
    claimed = math.inf if claimed is None else claimed
    instance = {"h": h, "rho": rho, "gamma": gamma, "N_e": epochs, "p": shares, "k": rounds}
    measured = "||E (x_k, z_k)|| from norm 1"
    return Counterexample(instance, measured, found, claimed, corrected)


def accuracy(
    h: Sequence[float] = (0.95, 1.15),
    rho: float = 0.4,
    gamma: float = 0.35,
    epochs: int = 1,
    tau: float = 1e-3,
    rounds: int = 60,
) -> Counterexample:
    """Corollary 1, (16), from z_0 with |z_0| = 1: ||E (x, z)||, which the noise does not move.

    x_0 is drawn as printed, so that its mean is 0 and its mean norm at most tau sqrt(2N / lambda).
    """
    count, power = len(h), np.linalg.matrix_power
    matrix = matrix_of(gradient_solver(h, rho, gamma, epochs), count)
    found = norm(power(matrix, rounds)[:, count:])
    factor = step_factor(h, rho, gamma)
    chi, first = factor**epochs, 1 + tau * math.sqrt(2 * count / min(h))
    noise = tau * math.sqrt(10 * count * gamma) * sum(factor**step for step in range(epochs))

    def bound(constant: float) -> float:
        size = norm(stability(h, rho, chi, constant))
        return float(size**rounds * first + sum(size**k for k in range(rounds)) * noise)

    claimed, corrected = bound(printed_shrink(h, rho)), bound(shrink(h, rho))
    instance = {"h": h, "rho": rho, "gamma": gamma, "N_e": epochs, "tau": tau, "K": rounds}
    measured = "||E (x_K, z_K)|| from |z_0| = 1"
    return Counterexample(instance, measured, found, claimed, corrected)


def stable_by_the_printed_test(
    h: tuple[Fraction, ...] = (Fraction(1), Fraction(4)),
    rho: Fraction = Fraction(1, 2),
    gamma: Fraction = Fraction(1, 6),
) -> Counterexample:
    """Lemma 7's proof: the radius of S, N_e = 1, where its inequality calls S stable.

    The right condition is 4 chi s < (1 - chi)(1 - zeta), s the constant in S; where it fails the
    corrected statement promises nothing.
    """
    chi, zeta, s = step_factor(h, rho, gamma), reflection_factor(h, rho), printed_shrink(h, rho)
    met = (1 - zeta) * (1 - chi) < 4 * chi * s
    own = stability([float(m) for m in h], float(rho), float(chi), float(s))
    instance = {"h": h, "rho": rho, "gamma": gamma, "chi": chi, "zeta": zeta}
    claimed, corrected = (1.0, None) if met else (math.inf, 1.0)
    return Counterexample(instance, "spectral radius of S", radius(own), claimed, corrected)


def accelerated_mode(root: Fraction = Fraction(2), steps: int = 9) -> Counterexample:
    """Lemma 8 on f(x) = lambda x^2 / 2: |x_l| from x_0 = 1; ``root`` is sqrt(kappa)."""
    kappa, momentum = root**2, (root - 1) / (root + 1)
    before = point = Fraction(1)
    for _ in range(steps):
        after = point - point / kappa
        point, before = after + momentum * (after - before), after
    claimed = (1 + kappa) * (1 - 1 / root) ** steps
    instance = {"kappa": kappa, "l": steps}
    return Counterexample(instance, "|x_l| / |x_0|", abs(before), claimed, math.sqrt(claimed))


def accelerated_factor(h: Sequence[float], rho: float, epochs: int) -> float:
    """Return chi(N_e) of Proposition 3, without a root."""
    kappa = (max(h) + 1 / rho) / (min(h) + 1 / rho)
    return (1 + kappa) * (1 - 1 / math.sqrt(kappa)) ** epochs


def accelerated_contraction(
    h: Sequence[float] = (40.61, 40.76, 43.77), rho: float = 0.02615, epochs: int = 1
) -> Counterexample:
    """Proposition 3: the rate of the iteration with (12), its spectral radius."""
    chi = accelerated_factor(h, rho, epochs)
    found = radius(matrix_of(accelerated_solver(h, rho, epochs), len(h)))
    claimed = norm(stability(h, rho, chi, printed_shrink(h, rho)))
    corrected = norm(stability(h, rho, math.sqrt(chi), shrink(h, rho)))
    instance = {"h": h, "rho": rho, "N_e": epochs}
    return Counterexample(instance, "spectral radius of T'", found, claimed, corrected)


def error_of_a_run(
    size: Fraction = Fraction(4), chance: Fraction = Fraction(1, 4)
) -> Counterexample:
    """V-C4: how large the error of x and z is again and again.

    One agent with f(x) = x^2 / 2, rho = 1, gamma = 1/2, N_e = 1; x is off by ``size`` after a round
    with this chance, nu = size * chance. A round takes (x, z) to (z/2, 0), so that the error is
    ``size`` or 0.
    """
    h, rho, gamma = Fraction(1), Fraction(1), Fraction(1, 2)
    x, z = Fraction(0), Fraction(0)
    errors = []
    for off in (size, Fraction(0), size):
        y = z
        step = x - gamma * (h * x + (x - (2 * y - z)) / rho)
        x, z = step + off, z + 2 * (step - y)
        errors.append(abs(x) + abs(z))  # z is 0
    sigma = shrink([h], rho)  # the norm of S, as chi and zeta are 0
    instance = {"h": (h,), "rho": rho, "gamma": gamma, "N_e": 1, "off by": size, "chance": chance}
    claimed = size * chance / (1 - sigma)
    return Counterexample(instance, "lim sup ||(x, z) - limit||", max(errors), claimed)


ERRATA = (
    Erratum(
        "fed-plt/eq-11",
        "(11): gradient steps on d contract for gamma < 2 / (lambda + 1/rho)",
        "for gamma < 2 / (Lambda + 1/rho)",
        steps_beyond_the_curvature,
    ),
    Erratum(
        "fed-plt/eq-17",
        "(17): the exact local update is 1 / (lambda + 1/rho)-Lipschitz",
        "it is 1 / (1 + rho lambda)-Lipschitz",
        exact_update,
    ),
    Erratum(
        "fed-plt/prop-1",
        "Proposition 1: where S is stable Fed-PLT contracts, by ||S|| at most",
        "with 1 / (1 + rho lambda) in S",
        contraction,
    ),
    Erratum(
        "fed-plt/lemma-7",
        "Lemma 7's proof: S is stable if (1 - zeta)(1 - chi) < 4 chi / (lambda + 1/rho)",
        "if and only if 4 chi s < (1 - zeta)(1 - chi), s the constant in S",
        stable_by_the_printed_test,
    ),
    Erratum(
        "fed-plt/prop-2",
        "Proposition 2: the bound (15)",
        "with 1 / (1 + rho lambda) in S",
        bound_on_iterates,
    ),
    Erratum(
        "fed-plt/lemma-8",
        "Lemma 8: accelerated steps contract by (1 + kappa)(1 - 1/sqrt(kappa))^l",
        "by its square root",
        accelerated_mode,
    ),
    Erratum(
        "fed-plt/prop-3",
        "Proposition 3: where S' is stable Fed-PLT with (12) contracts, by ||S'|| at most",
        "with the square root in chi(N_e) and 1 / (1 + rho lambda) in S'",
        accelerated_contraction,
    ),
    Erratum(
        "fed-plt/lim-sup",
        "V-C4: the lim sup of the error is sqrt(max p / min p) nu / (1 - sigma)",
        "that bounds the lim sup of its mean",
        error_of_a_run,
    ),
    Erratum(
        "fed-plt/cor-1",
        "Corollary 1: the bound (16)",
        "with 1 / (1 + rho lambda) in S",
        accuracy,
    ),
)
