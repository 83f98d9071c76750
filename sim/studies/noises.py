"""Seeded noise of the DP-IADMM studies, recorded as it is drawn; none of it is private."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

import numpy as np

from privet.privacy import SeededNoise, dp_iadmm_output_gain

from .study import Case
from .workloads import Workload

Factor = Callable[[int], float]
"""Round -> what a draw is multiplied by on its way into z_p."""


class Recorder:
    """A noise factory that remembers the mean magnitude of what arrives in z_p, by round."""

    def __init__(
        self, draw: Callable[[str, int], Any], factor: Factor = lambda number: 1.0
    ) -> None:
        self._draw = draw
        self._factor = factor
        self._heard: dict[int, list[float]] = {}

    def __call__(self, agent: str, round_: int) -> Any:
        """Return the recorded source of one agent in one round."""
        return _Recorded(self._draw(agent, round_), self._heard.setdefault(round_, []))

    def mean(self, round_: int) -> float:
        """Return the mean magnitude of a round's draws; 0 where nothing was drawn."""
        return self._factor(round_) * fmean(self._heard.get(round_) or [0.0])


class _Recorded:
    private = False

    def __init__(self, source: Any, heard: list[float]) -> None:
        self._source = source
        self._heard = heard

    def gaussian(self, *arguments: Any) -> Any:
        return self._keep(self._source.gaussian(*arguments))

    def laplace(self, *arguments: Any) -> Any:
        return self._keep(self._source.laplace(*arguments))

    def _keep(self, draw: Any) -> Any:
        self._heard.append(float(np.abs(draw).mean()))
        return draw


def drawer(case: Case, workload: Workload) -> Callable[[str, int], Any]:
    """Return where a case's noise comes from: the scale asked for, or ``noise`` "authors"."""
    if case.options.get("noise") != "authors":
        return lambda agent, round_: SeededNoise(case.seed, agent, round_)
    examples = workload.problems[0].num_examples

    def authors(agent: str, round_: int) -> Any:
        epsilon, fixed = case.options["printed-epsilon"], case.settings.get("rho", 0.0)
        rho = fixed or case.options.get("of-rho", 1.0) * penalty(epsilon, round_)
        deviation = authors_deviation(epsilon, rho, examples, round_)
        return _Fixed(SeededNoise(case.seed, agent, round_), deviation)

    return authors


class _Fixed:
    """Gaussian draws of one deviation, whatever is asked for."""

    private = False

    def __init__(self, source: SeededNoise, deviation: float) -> None:
        self._source = source
        self._deviation = deviation

    def gaussian(self, size: Any, scale: float) -> Any:
        return self._source.gaussian(size, self._deviation)


DELTA = 1e-6
"""delta of a release of OutP, as printed."""


def penalty(epsilon: float, round_: int) -> float:
    """Return (24) for MNIST: rho_t = 2 (1.2)^floor(t / 10000) + 5 / epsilon."""
    return 2.0 * 1.2 ** (round_ // 10_000) + 5.0 / epsilon


def authors_proximity(epsilon: float, examples: int, round_: int) -> float:
    """Return 1 / eta_t of the authors' OutP as coded: I_p / 4 + 2 sqrt(t ln(1.25/delta)) / eps."""
    return examples / 4.0 + 2.0 * math.sqrt(round_ * math.log(1.25 / DELTA)) / epsilon


def authors_deviation(epsilon: float, rho: float, examples: int, round_: int) -> float:
    """Return the deviation of the authors' output noise as coded: sigma^2 in place of sigma.

    sigma = 2 sqrt(2 ln(1.25/delta)) / (eps (rho + 1/eta_t)); the sensitivity has no 1 / I_p.
    """
    spread = rho + authors_proximity(epsilon, examples, round_)
    sigma = 2.0 * math.sqrt(2.0 * math.log(1.25 / DELTA)) / (epsilon * spread)
    return sigma * sigma


def recorder(case: Case, workload: Workload) -> Recorder:
    """Return the noise of a case; fair output noise is drawn in units of the gradient."""
    draw = drawer(case, workload)
    if case.settings.get("perturbation") != "output" or case.options.get("noise") == "authors":
        return Recorder(draw)

    def gain(round_: int) -> float:
        rho = penalty(float(case.settings["epsilon"]), round_)
        return dp_iadmm_output_gain(rho=rho, eta=1.0 / math.sqrt(round_), local_updates=1)

    return Recorder(draw, gain)
