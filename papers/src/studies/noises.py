"""Seeded noise of the DP-IADMM studies, recorded as it is drawn; none of it is private."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from statistics import fmean
from typing import Any

import numpy as np

from privet.kernel import SeededNoise, dp_iadmm_output_gain
from privet.strategies.dp_iadmm import Penalty

from .study import Case
from .workloads import Workload

DELTA = 1e-6
"""delta of a release of OutP, as printed."""
STRETCH = 2.0 * math.sqrt(math.log(1.25 / DELTA))
"""1/eta_t of the authors' OutP is I_p / 4 + STRETCH sqrt(t) / eps: rule (15) at eps / STRETCH."""


class Recorder:
    """A noise factory that remembers the mean magnitude of what arrives in z_p, by round.

    Fair output noise is drawn in units of the gradient and arrives multiplied by a gain.
    """

    private = False

    def __init__(self, case: Case, workload: Workload) -> None:
        self._case = case
        self._examples = [problem.num_examples for problem in workload.problems]
        self._heard: dict[int, list[float]] = {}

    def __call__(self, agent: str, round_: int) -> _Recorded:
        """Return the recorded source of one agent in one round."""
        source = SeededNoise(self._case.seed, agent, round_)
        deviation = None
        if self._case.options.get("noise") == "authors":
            deviation = authors_deviation(self._case.settings, self._examples[int(agent)], round_)
        return _Recorded(source, deviation, self._heard.setdefault(round_, []))

    def mean(self, round_: int) -> float:
        """Return the mean magnitude of a round's draws; 0 where nothing was drawn."""
        settings, gain = self._case.settings, 1.0
        if settings.get("perturbation") == "output" and "noise" not in self._case.options:
            rho, eta = penalty(settings, round_), 1.0 / math.sqrt(round_)
            gain = dp_iadmm_output_gain(rho=rho, eta=eta, local_updates=1)
        return gain * fmean(self._heard.get(round_) or [0.0])


class _Recorded:
    """Draws of the scale asked for, or Gaussian ones of a ``deviation`` whatever is asked for."""

    private = False

    def __init__(self, source: SeededNoise, deviation: float | None, heard: list[float]) -> None:
        self._source = source
        self._deviation = deviation
        self._heard = heard

    def gaussian(self, size: Any, scale: float) -> Any:
        scale = scale if self._deviation is None else self._deviation
        return self._keep(self._source.gaussian(size, scale))

    def laplace(self, *arguments: Any) -> Any:
        return self._keep(self._source.laplace(*arguments))

    def _keep(self, draw: Any) -> Any:
        self._heard.append(float(np.abs(draw).mean()))
        return draw


def penalty(settings: Mapping[str, Any], round_: int) -> float:
    """Return rho_t of a run with these settings."""
    own = {one.name for one in fields(Penalty)}
    return Penalty(**{key: value for key, value in settings.items() if key in own})(round_)


def authors_deviation(settings: Mapping[str, Any], examples: int, round_: int) -> float:
    """Return the deviation of the authors' output noise as coded: sigma^2 in place of sigma.

    sigma = 2 sqrt(2 ln(1.25/delta)) / (eps (rho + 1/eta_t)), with eps / STRETCH in the settings;
    the sensitivity has no 1 / I_p.
    """
    epsilon = float(settings["epsilon"])
    spread = penalty(settings, round_) + examples / 4.0 + math.sqrt(round_) / epsilon
    sigma = math.sqrt(2.0) / (epsilon * spread)
    return sigma * sigma
