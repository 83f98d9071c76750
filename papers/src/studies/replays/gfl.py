"""Replaying worked instances of graph federated learning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.agents.masking import MaskFactory
from privet.core import ConfigError
from privet.kernel import GivenMasks, Problem
from privet.problems import L2
from privet.sim.grid import NodeConfig
from privet.strategies import GFL
from privet.wire import ring

from .instance import Found, Instance, build_problems


class GivenNoise:
    """The draws of an instance: ``server`` [round][unit], ``link`` [round][receiver][sender]."""

    private = False

    def __init__(self, draws: Any) -> None:
        self._draws = draws

    def shared(self, unit: int, round_: int, dim: int) -> NDArray[Any]:
        """Return the given g_p."""
        return np.asarray(self._draws["server"][round_ - 1][unit], float)

    def independent(
        self, unit: int, round_: int, receivers: Sequence[int], dim: int
    ) -> dict[int, NDArray[Any]]:
        """Return the given noise of every link."""
        links = self._draws["link"][round_ - 1]
        return {receiver: np.asarray(links[receiver][unit], float) for receiver in receivers}


class GivenBatches:
    """A problem whose gradients are those of given batches, one after the other."""

    def __init__(self, problem: Problem, batches: Iterator[Any]) -> None:
        self._problem = problem
        self._batches = batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def gradient(self, x: NDArray[Any], rows: Any = None) -> NDArray[Any]:
        """Return the gradient on the next batch."""
        return self._problem.gradient(x, np.asarray(next(self._batches)))


def play_gfl(instance: Instance) -> Iterator[Found]:
    """Yield, after every round, psi, w, their centroid and the noise in it."""
    config = instance.config
    units, each = int(config["units"]), int(config["agents-per-unit"])
    names = [str(number) for number in range(units * each)]
    problems = _problems(instance, names)
    masks = _given_masks(instance, names, each)
    strategy = GFL(
        step_size=float(config["step-size"]),
        perturbation=config["perturbation"],
        weights=config["combination-matrix"],
        link_noise=None if instance.noise is None else GivenNoise(instance.noise),
        participation=instance.schedule,
        num_agents=len(names),
        secure_sum=masks is not None,
    )
    strategy.options = replace(strategy.options, least_roster=2)
    nodes: list[NodeConfig] = [
        {
            "unit": str(number // each),
            "local-epochs": _of(config["local-epochs"], number // each, number % each),
        }
        for number in range(len(names))
    ]
    grid = instance.grid(problems, nodes, mask_factory=masks)
    for state in instance.play(strategy, grid, np.asarray(instance.init["w"], float)):
        center, before = state.models.mean(axis=0), state.psi.mean(axis=0)
        yield {
            "psi": [state.psi],
            "w": [state.models],
            "centroid": [center],
            "total_noise_46": [units * (center - before)],
        }


def _given_masks(instance: Instance, names: list[str], each: int) -> MaskFactory | None:
    """Return the masks of an instance with ``secure-sum``: ``pair_masks`` [round][unit][pair].

    The pairs of a unit are in order of its agents, and a single one needs no list of its own. The
    first agent of a pair adds the mask, the second subtracts it.
    """
    if not instance.config.get("secure-sum", False):
        return None
    if instance.noise is None or "pair_masks" not in instance.noise:
        raise ConfigError("secure-sum = true: the instance gives no noise.pair_masks")
    draws = instance.noise["pair_masks"]

    def source(agent: str, round_: int) -> GivenMasks:
        unit = int(agent) // each
        pairs = list(combinations(names[unit * each : (unit + 1) * each], 2))
        given = np.asarray(draws[round_ - 1][unit], float).reshape(len(pairs), -1)
        words = {}
        for pair, mask in zip(pairs, given, strict=True):
            signed = mask if pair[0] < pair[1] else -mask  # names are ordered as texts there
            words[min(pair), max(pair)] = ring.encode({"x": signed}, 2).words
        return GivenMasks(words)

    return source


def _problems(instance: Instance, names: list[str]) -> list[Any]:
    """Return the agents' problems in order, those of ridge carrying rho ||w||^2 and a factor 2."""
    spec = dict(instance.problem)
    for name in ("features", "targets", "labels"):
        if name in spec:
            spec[name] = [agent for unit in spec[name] for agent in unit]
    regularizer = L2(2.0 * float(spec.pop("rho", 0.0)))
    problems = build_problems(spec, regularizer=regularizer)
    if instance.batches is None:
        return list(problems)
    each = int(instance.config["agents-per-unit"])
    active = instance.participation
    found = []
    for number, problem in enumerate(problems):
        unit, agent = divmod(number, each)
        batches = [
            batch
            for index, drawn in enumerate(instance.batches)
            if active is None or number in active[index % len(active)]
            for batch in drawn[unit][agent]
        ]
        found.append(GivenBatches(problem, iter(batches)))
    return found


def _of(value: Any, unit: int, agent: int) -> int:
    return int(value[unit][agent] if isinstance(value, list) else value)
