"""Figures 2 to 5 of the graph federated learning paper, and the steady states behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from privet.sim.experiments import gfl_adult
from privet.sim.experiments.gfl import MU, VARIANCE

from .gfl_cases import (
    DIVERGED,
    KINDS,
    NOISY,
    OWN_NOISE,
    VARIANCES,
    Key,
    by_setting,
    classified,
    deviations,
    played,
    seeds_of,
    setting,
)
from .gfl_steady import steady_cases, steady_states
from .study import ADULT, Case, Curve, Entry, Options, Outcome, Panel, Result, Study

FIGURE_4 = (0.1, 0.5, 1.0, 5.0)
TOO_LARGE = "an agent with one epoch multiplies its error by 1 - 2 mu (lambda + rho), below -1"


def headline(options: Options) -> Sequence[Case]:
    """Return the real runs of Figure 2."""
    rounds = 300 if options.full else 150
    return [
        setting(kind, 0.0 if kind == "none" else VARIANCE, MU, rounds, seed)
        for kind in KINDS
        for seed in seeds_of(options)
    ]


def figure_2(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude Figure 2: centroids of the three variants."""
    found = by_setting(cases, results)
    curves = {key: _curve([run["centroid"] for run in runs]) for key, runs in found.items()}
    last = {key[0]: fmean(curve.y[50:]) for key, curve in curves.items()}
    entries = [
        Entry(
            "homomorphic noise tracks the algorithm without noise",
            "yes",
            f"{last['homomorphic']:.2g} against {last['none']:.2g}",
            last["homomorphic"] < 3 * last["none"],
            "a factor of 3",
        ),
        Entry(
            "random noise is worse than both",
            "yes",
            f"{last['random']:.2g}",
            last["random"] > 3 * last["homomorphic"],
            "a factor of 3",
        ),
    ]
    panel = Panel(
        "centroid", "round", "MSD", {key[0]: curve for key, curve in curves.items()}, y_log=True
    )
    note = f"The real Strategy, ClientApps and messages; {len(seeds_of(options))} seeds."
    return Outcome(_rows(curves), entries, [panel], [note])


def _sweep(variances: Sequence[float], steps: Sequence[float]) -> Callable[..., Sequence[Case]]:
    def cases(options: Options) -> Sequence[Case]:
        return [
            setting(kind, variance, mu, 150, seed, **{"burn-in": 0, "weights": "", "closing": 0})
            for kind in NOISY
            for variance in variances
            for mu in steps
            for seed in seeds_of(options)
        ]

    return cases


def figure_3(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude Figure 3: growing variances, for the centroid (a) and single units (b)."""
    found = by_setting(cases, results)
    curves = {
        name: {key: _curve([run[name] for run in runs]) for key, runs in found.items()}
        for name in ("centroid", "units")
    }
    last = {
        name: {key: fmean(curve.y[50:]) for key, curve in own.items()}
        for name, own in curves.items()
    }
    growth = {
        kind: last["centroid"][kind, 10.0, MU] / last["centroid"][kind, 0.001, MU] for kind in NOISY
    }
    better = [
        last["units"]["homomorphic", v, MU] < last["units"]["random", v, MU] for v in VARIANCES
    ]
    entries = [
        Entry(
            "(a) centroid: random noise is the more sensitive to the variance",
            "yes",
            f"x {growth['random']:.0f} against x {growth['homomorphic']:.0f} from .001 to 10",
            growth["random"] > growth["homomorphic"],
        ),
        Entry(
            "(b) single units: homomorphic noise is better at a fixed variance",
            "yes",
            f"at {sum(better)} of {len(better)} variances",
            all(better),
            "",
            OWN_NOISE,
        ),
    ]
    panels = [
        Panel(f"{name}, {kind}", "round", "MSD", _shown(curves[name], kind, 1), y_log=True)
        for name in ("centroid", "units")
        for kind in NOISY
    ]
    return Outcome([*_rows(curves["centroid"]), *_rows(curves["units"], "units")], entries, panels)


def figure_4(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude Figure 4: steps of different sizes."""
    found = by_setting(cases, results)
    curves = {key: _curve([run["centroid"] for run in runs]) for key, runs in found.items()}
    last = {(key[0], key[2]): fmean(curve.y[100:]) for key, curve in curves.items()}
    steady = [last["homomorphic", mu] for mu in FIGURE_4[:3]]
    bad = [kind for kind in NOISY if not last[kind, 5.0] < DIVERGED]
    entries = [
        Entry(
            "homomorphic noise: the deviation grows with mu",
            "yes",
            " < ".join(f"{value:.2g}" for value in steady),
            steady == sorted(steady),
        ),
        Entry(
            "random noise: worse again at a small mu",
            "yes",
            f"{last['random', 0.1]:.2g} at .1, {last['random', 0.5]:.2g} at .5",
            last["random", 0.1] > last["random", 0.5],
        ),
        Entry(
            "mu = 5 converges",
            "yes",
            f"diverges: {', '.join(bad)}" if bad else "yes",
            not bad,
            "",
            TOO_LARGE,
        ),
    ]
    panels = [
        Panel(kind, "round", "MSD of the centroid", _shown(curves, kind, 2), y_log=True)
        for kind in NOISY
    ]
    return Outcome(_rows(curves), entries, panels)


def adult_cases(options: Options) -> Sequence[Case]:
    """Return the real runs of Section V-B."""
    rounds = 400 if options.full else 150
    return [
        setting(
            kind,
            0.0 if kind == "none" else gfl_adult.VARIANCE,
            gfl_adult.MU,
            rounds,
            seed,
            data=str(options.data_path),
        )
        for kind in KINDS
        for seed in seeds_of(options)
    ]


def figure_5(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude Figure 5 on Adult: testing errors of the three variants."""
    found = by_setting(cases, results)
    curves = {key: _curve([run["errors"] for run in runs]) for key, runs in found.items()}
    last = {key[0]: fmean(curve.y[-50:]) for key, curve in curves.items()}
    lost = {kind: last[kind] - last["none"] for kind in NOISY}
    entries = [
        Entry(
            "homomorphic noise does not hinder the model",
            "yes",
            f"{100 * last['homomorphic']:.1f} % against {100 * last['none']:.1f} %",
            lost["homomorphic"] < 0.01,
            "1 point",
        ),
        Entry(
            "random noise costs significantly more",
            "yes",
            f"{100 * last['random']:.1f} %",
            lost["random"] > 2 * max(lost["homomorphic"], 0.0),
            "twice as much",
        ),
    ]
    panel = Panel(
        "Adult, clean test set",
        "round",
        "test error",
        {key[0]: curve for key, curve in curves.items()},
    )
    note = "Adult in place of the click data; means of the last 50 rounds."
    return Outcome(_rows(curves, "error"), entries, [panel], [note])


def _curve(runs: Sequence[Sequence[float | str]]) -> Curve:
    values = np.array([[math.inf if isinstance(v, str) else v for v in run] for run in runs])
    mean = values.mean(axis=0)
    return Curve(list(range(1, len(mean) + 1)), [float(value) for value in mean])


def _shown(curves: Mapping[Key, Curve], kind: str, part: int) -> dict[str, Curve]:
    """Return one kind's curves as far as they stay on the page."""
    name = ("", "sigma^2", "mu")[part]
    shown = {}
    for key, curve in curves.items():
        if key[0] == kind:
            kept = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if y < 1e3]
            shown[f"{name} {key[part]:g}"] = Curve([x for x, _ in kept], [y for _, y in kept])
    return shown


def _rows(curves: Mapping[Key, Curve], what: str = "centroid") -> list[Mapping[str, Any]]:
    return [
        {"noise": kind, "sigma^2": variance, "mu": mu, "of": what, "round": number, "value": value}
        for (kind, variance, mu), curve in curves.items()
        for number, value in zip(curve.x, curve.y, strict=True)
    ]


STUDIES = (
    Study("gfl/figure-2", "GFL: the three variants", headline, played, figure_2),
    Study("gfl/figure-3", "GFL: growing variance", _sweep(VARIANCES, (MU,)), deviations, figure_3),
    Study("gfl/figure-4", "GFL: step sizes", _sweep((VARIANCE,), FIGURE_4), deviations, figure_4),
    Study(
        "gfl/figure-5",
        "GFL: classification",
        adult_cases,
        classified,
        figure_5,
        files=ADULT,
    ),
    Study(
        "gfl/steady-state",
        "GFL: steady states over variances and steps",
        steady_cases,
        deviations,
        steady_states,
    ),
)
