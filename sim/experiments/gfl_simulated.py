"""The graph federated learning recursion on arrays of all agents at once, for long runs.

`simulate` computes what `privet.sim.experiments.gfl.run` plays: from the same named streams
(`Named`) the same numbers, or from one generator (`Quick`) as many rounds as steady states need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privet.problems import RidgeRegression
from privet.strategies.gfl.graph import neighbours
from privet.strategies.gfl.noise import PURPOSE
from privet.wire import stream

from .gfl import MU, RHO, VARIANCE, Course, Network

Vector = NDArray[Any]
Index = NDArray[np.intp]


class Chance(Protocol):
    """What is drawn in a round."""

    def participants(self, round_: int) -> Index:
        """Return the agents that take part, unit by unit, shape (P L,)."""
        ...

    def rows(self, round_: int, agents: Index) -> Index:
        """Return their batches, shape (P L, largest E, largest B); what is too much is ignored."""
        ...

    def noise(self, round_: int, kind: str, scale: float) -> Vector:
        """Return sum_m a_pm g_pm, g_pm the noise on the message from m to p, shape (P, d)."""
        ...


class Quick:
    """One generator for everything."""

    def __init__(self, network: Network, seed: int) -> None:
        self._network = network
        self._rng = np.random.default_rng([seed, 1])
        self._largest = (max(network.epochs), max(network.batches))

    def participants(self, round_: int) -> Index:
        """Return L agents of each unit: those with the smallest of K random numbers."""
        each, taken = self._network.each, self._network.participants
        ranks = self._rng.random((self._network.units, each)).argpartition(taken - 1, axis=1)
        return (ranks[:, :taken] + each * np.arange(self._network.units)[:, None]).ravel()

    def rows(self, round_: int, agents: Index) -> Index:
        """Return uniform rows."""
        count = self._network.problems[0].num_examples
        return self._rng.integers(count, size=(len(agents), *self._largest))

    def noise(self, round_: int, kind: str, scale: float) -> Vector:
        """Return what eqs. (8) and (47) add to w."""
        weights, dim = self._network.weights, self._network.problems[0].dim
        units = len(weights)
        if kind == "homomorphic":
            return (weights - np.eye(units)) @ self._rng.laplace(0.0, scale, (units, dim))
        links = self._rng.laplace(0.0, scale, (units, units, dim))
        off = weights - np.diag(np.diag(weights))
        total: Vector = np.einsum("pm,pmd->pd", off, links)
        return total


class Named:
    """The streams of the real run: the same participants, batches and noise."""

    def __init__(self, network: Network, seed: int) -> None:
        self._network = network
        self._seed = seed

    def participants(self, round_: int) -> Index:
        """Return what `privet.strategies.PerGroup` chooses."""
        each, taken = self._network.each, self._network.participants
        chosen = [
            sorted(
                unit * each
                + stream(self._seed, "participation", str(unit), round_).choice(
                    each, size=taken, replace=False
                )
            )
            for unit in range(self._network.units)
        ]
        return np.array(chosen).ravel()

    def rows(self, round_: int, agents: Index) -> Index:
        """Return every agent's own draws."""
        found = np.zeros(
            (len(agents), max(self._network.epochs), max(self._network.batches)), np.intp
        )
        for place, agent in enumerate(agents):
            shape = (self._network.epochs[agent], self._network.batches[agent])
            rng = stream(self._seed, "batches", str(agent), round_)
            count = self._network.problems[agent].num_examples
            found[place, : shape[0], : shape[1]] = rng.integers(count, size=shape)
        return found

    def noise(self, round_: int, kind: str, scale: float) -> Vector:
        """Return what eqs. (8) and (47) add to w, from the units' streams."""
        weights, dim = self._network.weights, self._network.problems[0].dim
        total = np.zeros((len(weights), dim))
        for unit in range(len(weights)):
            rng = stream(self._seed, PURPOSE, str(unit), round_)
            others = neighbours(weights, unit)
            if kind == "homomorphic":
                own = rng.laplace(0.0, scale, dim)
                total[unit] -= (1 - weights[unit, unit]) * own
                total[list(others)] += weights[list(others), unit][:, None] * own
            else:
                draws = rng.laplace(0.0, scale, (len(others), dim))
                total[list(others)] += weights[list(others), unit][:, None] * draws
        return total


def simulate(
    network: Network,
    rounds: int,
    *,
    mu: float = MU,
    variance: float = VARIANCE,
    kind: str = "homomorphic",
    chance: Chance,
    closing: int = 0,
) -> Course:
    """Compute the recursion (6)-(8) of ridge problems of equal size on arrays.

    Laplace noise of this variance. With ``closing`` > 0 the deviations are those of the models
    after so many further exchanges without noise, had the run ended there.
    """
    features = np.stack([problem.features for problem in network.problems])
    targets = np.stack([np.asarray(problem.targets) for problem in _ridge(network)])
    epochs, batches = np.array(network.epochs), np.array(network.batches)
    weights, scale = network.weights, np.sqrt(variance / 2.0)
    shrink = 2.0 * RHO
    after = np.linalg.matrix_power(weights, closing)
    w = np.zeros((network.units, features.shape[2]))
    found = np.empty((2, rounds))
    for number in range(1, rounds + 1):
        agents = chance.participants(number)
        rows = chance.rows(number, agents)
        x = np.repeat(w, len(agents) // network.units, axis=0)
        own_epochs, own_batches = epochs[agents], batches[agents]
        share = (np.arange(rows.shape[2]) < own_batches[:, None]) / own_batches[:, None]
        for epoch in range(int(own_epochs.max())):
            u = features[agents[:, None], rows[:, epoch]]
            errors = np.einsum("abd,ad->ab", u, x) - targets[agents[:, None], rows[:, epoch]]
            slope = 2.0 * np.einsum("ab,abd->ad", errors * share, u) + shrink * x
            active = (epoch < own_epochs) * (mu / own_epochs)
            x = x - active[:, None] * slope
        w = weights @ x.reshape(network.units, -1, x.shape[1]).mean(axis=1)
        if kind != "none":
            w = w + chance.noise(number, kind, scale)
        gaps = after @ w - network.optimum
        center = gaps.mean(axis=0)
        found[:, number - 1] = center @ center, np.mean(np.sum(gaps * gaps, axis=1))
    return Course(found[0], found[1])


def _ridge(network: Network) -> Sequence[RidgeRegression]:
    return [problem for problem in network.problems if isinstance(problem, RidgeRegression)]


def observed(network: Network, rounds: int, *, mu: float, seed: int, unit: int = 0) -> Vector:
    """Return the error of an observer of all messages at the sum of a unit's moves, by round.

    From M_j = psi_j + g_j, j <= i, and the public start, eq. (47) gives the observer
    M_i - w_0 - sum_{j<i} ((A - I) M_j)_p = sum of the moves psi_j - w_{j-1} so far + g_i: the noise
    of earlier rounds is gone, and the error is one draw whatever i is. The norm of what is left
    after subtracting the true sum, shape (rounds,).
    """
    weights, scale = network.weights, np.sqrt(VARIANCE / 2.0)
    rng = np.random.default_rng([seed, 2])
    step = mu * 0.5
    dim = len(network.optimum)
    w = np.zeros((network.units, dim))
    known, moved = np.zeros(dim), np.zeros(dim)
    errors = np.empty(rounds)
    for index in range(rounds):
        move = -step * (w - network.optimum)
        psi = w + move
        g = rng.laplace(0.0, scale, w.shape)
        messages = psi + g
        moved = moved + move[unit]
        errors[index] = np.linalg.norm(messages[unit] - known - moved)
        known = known + (weights[unit] @ messages - messages[unit])
        w = weights @ psi + (weights - np.eye(network.units)) @ g
    return errors
