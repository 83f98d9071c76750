"""What a record costs where agents with states share the noise of sums over changing rosters.

    .venv/bin/python -m results.changing_rosters docs/identities.md

It computes the table of that page, which has the proofs, and fills it in: seconds, no data, seed 0.

An agent's message in its rounds is, but for public terms, A_i u_i: u_i its gradients with noise of
deviation sigma, A_i = L lower triangular over its own rounds. With the noise of all honest agents
in Sigma = sum_h A_h A_h', one record of agent i, whose gradients it moves by d_k of norm at most
Delta in round k, costs mu^2 = max_d d' A_i' Sigma^-1 A_i d / sigma^2. All figures here are in units
of (Delta / sigma)^2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from results.marked import fill

Matrix = NDArray[np.float64]
Rosters = NDArray[np.bool_]
"""Who takes part: (agents, rounds)."""

HONEST, ROUNDS = 91, 40
"""Agents whose noise counts, the one that is looked at among them; rounds."""


def fed_plt(p: float, rounds: int) -> Matrix:
    """Return L of Fed-PLT, p = 2 a gamma / rho: u_k - p sum_{j<k} (1 - p)^(k-1-j) u_j."""
    return _toeplitz([1.0, *(-p * (1 - p) ** m for m in range(rounds - 1))])


def fed_pdm(kappa: float, rounds: int) -> Matrix:
    """Return L of FedPDM, kappa = rho eta, in units of 2 eta."""
    remembered = [(0.5 - kappa) * (1 - kappa) ** m for m in range(rounds - 1)]
    return _toeplitz([1.0, *remembered])


def _toeplitz(column: list[float]) -> Matrix:
    count = len(column)
    found = np.zeros((count, count))
    for place, value in enumerate(column):
        found += value * np.eye(count, k=-place)
    return found


def placed(matrix: Matrix, present: NDArray[np.bool_]) -> Matrix:
    """Return A_i, (rounds, own rounds): L over the rounds that an agent took part in."""
    own = np.flatnonzero(present)
    found = np.zeros((len(present), len(own)))
    found[own] = matrix[: len(own), : len(own)]
    return found


def information(matrix: Matrix, rosters: Rosters, agent: int = 0) -> Matrix:
    """Return M = A_i' Sigma^-1 A_i, (own rounds, own rounds)."""
    maps = [placed(matrix, present) for present in rosters]
    noise = np.sum([one @ one.T for one in maps], axis=0)
    heard = rosters.any(axis=0)
    own = maps[agent][heard]
    return own.T @ np.linalg.solve(noise[np.ix_(heard, heard)], own)


def at_most(information: Matrix) -> float:
    """Return a bound on the cost for vectors d_k, proven: the sum of all |M_jk|."""
    return float(np.abs(information).sum())


def at_least(information: Matrix, tries: int = 40, seed: int = 0) -> float:
    """Return the largest s' M s that a search over signs finds, which some record may cost."""
    rng, best = np.random.default_rng(seed), 0.0
    for _ in range(tries):
        signs = rng.choice([-1.0, 1.0], len(information))
        while True:
            # What a change of one sign gains: -4 s_j sum_{k != j} M_jk s_k.
            gains = -4 * signs * (information @ signs - np.diag(information) * signs)
            place = int(np.argmax(gains))
            if gains[place] <= 1e-12:
                break
            signs[place] *= -1
        best = max(best, float(signs @ information @ signs))
    return best


def charged(rosters: Rosters, agent: int = 0) -> float:
    """Return what composition charges: the sum of 1 / n_k over the agent's rounds."""
    present = rosters[agent]
    return float(np.sum(1.0 / rosters.sum(axis=0)[present]))


def left_after_one(matrix: Matrix, agents: int) -> float:
    """Return the cost of an agent that leaves after round 1, v / (1 + v)."""
    first = np.linalg.solve(matrix, np.eye(len(matrix))[0])
    v = float(first @ first) / (agents - 1)
    return v / (1 + v)


# ------------------------------------------------------------------ the table


def _always(agents: int, rounds: int) -> Rosters:
    return np.ones((agents, rounds), bool)


def _leaves(agents: int, rounds: int) -> Rosters:
    found = _always(agents, rounds)
    found[0, 1:] = False
    return found


def _misses(agents: int, rounds: int) -> Rosters:
    found = _always(agents, rounds)
    found[0, rounds // 2] = False
    return found


def _random(seed: int) -> Callable[[int, int], Rosters]:
    def present(agents: int, rounds: int) -> Rosters:
        found = np.random.default_rng(seed).random((agents, rounds)) < 0.3
        found[0, 0] = True
        return found

    return present


ROSTERS: Mapping[str, Sequence[Callable[[int, int], Rosters]]] = {
    "all rounds": [_always],
    "leaves after round 1": [_leaves],
    "misses one": [_misses],
    "30 % present, at random": [_random(seed) for seed in range(5)],
}
METHODS: Mapping[str, Matrix] = {
    **{f"Fed-PLT, $p$ = {p:g}": fed_plt(p, ROUNDS) for p in (0.1, 0.5, 1.0, 1.5)},
    **{f"FedPDM, $\\rho\\eta$ = {kappa:g}": fed_pdm(kappa, ROUNDS) for kappa in (0.1, 0.5, 1.0)},
}


def factors(matrix: Matrix, rosters: Rosters) -> tuple[float, float]:
    """Return at least and at most how many times what is charged a record costs."""
    found, cost = information(matrix, rosters), charged(rosters)
    return at_least(found) / cost, at_most(found) / cost


def table() -> list[str]:
    """Return the rows of the page."""
    lines = [f"| | {' | '.join(ROSTERS)} |", "|---|" + "--:|" * len(ROSTERS)]
    for name, matrix in METHODS.items():
        cells = []
        for kind in ROSTERS.values():
            found = [factors(matrix, make(HONEST, ROUNDS)) for make in kind]
            low, high = min(least for least, _ in found), max(most for _, most in found)
            cells.append(f"{low:.2f}" if high < 1.005 * low else f"{low:.2f} to {high:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    fill(parser.parse_args().page, "rosters", table())


if __name__ == "__main__":
    main()
