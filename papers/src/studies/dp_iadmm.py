"""Figures 1 to 4 of the DP-IADMM paper: MNIST on 10,000 digits, FEMNIST on 114 writers.

The paper has 60,000 digits and 195 writers; the same noise on fewer examples has a larger epsilon.
OutP is run twice: as the authors coded it (sigma^2 for a standard deviation, no 1/I_p in the
sensitivity, losses divided by an agent's own examples), and with a fair, clipped sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from .noises import DELTA, STRETCH
from .statistics import Estimate, against, difference
from .study import (
    WHOLE,
    Case,
    Curve,
    Options,
    Outcome,
    Panel,
    Results,
    Row,
    Rows,
    Setting,
    Study,
    Verdict,
    further_seeds,
    said_of,
    settings_of,
)

PRINTED = (0.05, 0.1, 1.0, 5.0)
FEWER = (0.05, 1.0)
"""Of them, those that are run without ``--full``."""
FULL_ROUNDS, FULL_SEEDS, SEEDS = 20_000, 10, 5


@dataclass(frozen=True, slots=True)
class Half:
    """One data set of the figures.

    Attributes
    ----------
    workload : str
        Of `workloads`.
    files : sequence of str
    examples_printed, examples : int
        Of the paper, and here.
    scaled, fewer : str
        What the page says of that.
    rounds : int
        Without ``--full``.
    rho : mapping
        The printed constants of (24).
    free, best, best_of_outp : float
        Printed errors in per cent: without noise, and the best at epsilon .05 of ObjPM and OutP.
    data, penalty : sequence of str
        Settings.
    """

    name: str
    workload: str
    files: Sequence[str]
    examples_printed: int
    examples: int
    scaled: str
    fewer: str
    rounds: int
    rho: Mapping[str, Any]
    free: float
    best: float
    best_of_outp: float
    data: Sequence[str]
    penalty: Sequence[str]

    @property
    def ratio(self) -> float:
        """What epsilon is multiplied by for the same noise on fewer examples."""
        return self.examples_printed / self.examples


OBJECTIVE = {"mechanism": "laplace", "sensitivity": "paper"}
FAIR = {"perturbation": "output", "clip": 10.0, "delta": DELTA}
"""Hardly any gradient is longer than the clip, so that it costs OutP nothing but its noise."""
METHODS = ("ObjP", "ObjPM", "OutP, authors", "OutP, fair")
FIGURE_4: Mapping[str, Mapping[str, Any]] = {
    "rho .1": {"rho": 0.1},
    "rho 1": {"rho": 1.0},
    "rho 10": {"rho": 10.0},
    "(24)": {},
    "(24) / 100": {"of_rho": 0.01},
}


def case_of(
    options: Options,
    half: Half,
    method: str,
    epsilon: float,
    seed: int,
    *,
    label: str = "",
    rho: float = 0.0,
    of_rho: float = 1.0,
) -> Case:
    """Return a run of one method at a printed epsilon (infinity is without noise).

    ``rho`` is fixed, ``of_rho`` what (24) is multiplied by.
    """
    workload = {"name": half.workload, "folder": str(options.data_path)}
    whole = options.all_digits and half is MNIST_HALF
    if whole:
        workload["file"] = WHOLE[0]
    own = epsilon * (1.0 if whole else half.ratio)
    settings: dict[str, Any] = {**half.rho, "epsilon": own}
    extras: dict[str, Any] = {}
    if math.isinf(epsilon):
        settings |= {"perturbation": "none", "epsilon": "inf"}
    elif method == "OutP, fair":
        settings |= FAIR
    elif method == "OutP, authors":
        settings |= {
            "perturbation": "output",
            "noise_scale": 1.0,
            "eta_rule": "smooth",
            "epsilon": own / STRETCH,
            "rho_c1": half.rho["rho_c1"] * of_rho,
            "rho_c2": half.rho["rho_c2"] * of_rho / STRETCH,
        }
        extras = {"noise": "authors"}
        workload["divisor"] = "own"
    else:
        settings |= OBJECTIVE
    settings["local_updates"] = 10 if method == "ObjPM" else 1
    if rho:
        settings["rho"] = rho
    rounds = FULL_ROUNDS if options.long else half.rounds
    return Case(
        label or _label(method, epsilon),
        seed,
        workload,
        "dp-iadmm",
        settings,
        rounds,
        "error-and-noise",
        {"every": max(1, min(rounds // 10, 200)), "tail": 1, **extras},
    )


def _label(method: str, epsilon: float) -> str:
    return f"{method}, epsilon {epsilon:g}"


def comparison(half: Half, study: str, options: Options) -> Sequence[Case]:
    """Return the cases of Figures 1 to 3: four methods at some epsilons, and no noise."""
    noisy = [
        case_of(options, half, method, epsilon, seed)
        for method in METHODS
        for epsilon in (PRINTED if options.full else FEWER)
        for seed in _seeds(options, study, _label(method, epsilon))
    ]
    return [*noisy, *(case_of(options, half, method, math.inf, 0) for method in METHODS[:2])]


def _seeds(options: Options, study: str, label: str) -> range:
    return options.seeds(FULL_SEEDS, SEEDS, further_seeds(study).get(label, 0))


def _of(found: Results, method: str, epsilon: float, what: str = "value") -> list[float]:
    return [result[what] for result in found[_label(method, epsilon)]]


PAIRS = (
    ("ObjP", "OutP, authors", "the paper's own baseline"),
    (
        "ObjP",
        "OutP, fair",
        "with one mechanism, one local update and no set W the two are the same arithmetic",
    ),
    ("ObjPM", "ObjP", "per round: ten times the gradients and the releases"),
)


def _panels(
    found: Results, names: Sequence[str], what: str, label: str, y_log: bool
) -> list[Panel]:
    return [
        Panel(
            f"epsilon {epsilon:g}",
            "round",
            label,
            {name: Curve.course(found[_label(name, epsilon)], what) for name in names},
            y_log=y_log,
        )
        for epsilon in epsilons_of(found)
    ]


def epsilons_of(found: Results) -> list[float]:
    """Return the printed epsilons that were run."""
    own = {float(label.rsplit(" ", 1)[1]) for label in found}
    return sorted(epsilon for epsilon in own if math.isfinite(epsilon))


def _open(half: Half, found: Results) -> str:
    """Return what ours changes, as the runs' examples and rounds say."""
    one = next(iter(found.values()))[0]
    fewer = half.fewer if one.get("examples", half.examples) < half.examples_printed else ""
    short = "a shorter horizon" if one["rounds"][-1] < FULL_ROUNDS else ""
    return ", and ".join(part for part in (fewer, short) if part)


def figure_1(half: Half, found: Results) -> Outcome:
    """Conclude Figure 1: who has the smaller error, and what epsilon does to it."""
    epsilons, rows = epsilons_of(found), Rows("dp-iadmm", _open(half, found))
    for method in METHODS[:3]:
        errors = [_of(found, method, epsilon) for epsilon in epsilons]
        rows.falling(f"errors of {method} grow as epsilon shrinks", errors)
    for epsilon in epsilons:
        for better, worse, why in PAIRS:
            below, above = (_of(found, name, epsilon) for name in (better, worse))
            what = f"{better} below {worse} at epsilon {epsilon:g}"
            rows.claim(what, difference(above, below), against(below, above), why=why)
            if worse == "OutP, fair":
                rows.beyond()
    for method, name in (("ObjPM", "close to"), ("ObjP", "not close to")):
        free = found[_label(method, math.inf)][0]["value"]
        gap = Estimate.of([value - free for value in _of(found, method, 1.0)])
        why = f'"close" is no number; points above {free:.2f} %; {rows.changed}'
        what = f"{method} at epsilon 1 is {name} the run without noise"
        rows.append(Row(what, "yes", gap, Verdict.NOT_DETERMINED, why))
    free = Estimate(_of(found, "ObjP", math.inf)[0])
    rows.number("error without noise, %", half.free, free, exact=True)
    return Outcome(rows, _panels(found, METHODS, "course", "test error, %", True))


def least_of_ten(errors: Sequence[float]) -> list[float]:
    """Return the least error of each ten runs, as the paper has it; of all where they are fewer."""
    firsts = range(0, len(errors) - FULL_SEEDS + 1, FULL_SEEDS)
    return [min(errors[first : first + FULL_SEEDS]) for first in firsts] or [min(errors)]


def figure_2(half: Half, found: Results) -> Outcome:
    """Conclude Figure 2: the best error of each method."""
    epsilons, rows = epsilons_of(found), Rows("dp-iadmm", _open(half, found))
    best = {
        (name, epsilon): _of(found, name, epsilon, "best")
        for name in METHODS
        for epsilon in epsilons
    }
    marks = {
        "ObjPM": Curve([0.05], [half.best]),
        "OutP, authors": Curve([0.05], [half.best_of_outp]),
    }
    for name, printed in marks.items():
        tens = least_of_ten(best[name, 0.05])
        why = "the least of some runs has no interval"
        if len(tens) > 1:
            why = f"the least of ten runs, {len(tens)} times"
        what = f"best error of {name} at epsilon .05, %"
        rows.number(what, printed.y[0], Estimate.of(tens), why=why)
    for epsilon in epsilons:
        gaps = [
            difference(best[name, epsilon], best["ObjPM", epsilon])
            for name in ("ObjP", "OutP, authors")
        ]
        said = f"differences {gaps[0]} (ObjP), {gaps[1]} (OutP)"
        what = f"ObjPM is best of all at epsilon {epsilon:g}"
        rows.readings(what, {"": gaps}, said, printed="ObjPM")
    curves = {
        name: Curve(epsilons, [min(best[name, epsilon]) for epsilon in epsilons])
        for name in METHODS
    }
    labels = ("best test error", "epsilon of a release", "test error, %")
    return Outcome(rows, [Panel(*labels, curves, marks, x_log=True)])


AUTHORS_NOISE = "OutP's is that of the authors' code, which takes sigma^2 for sigma"


def figure_3(half: Half, found: Results) -> Outcome:
    """Conclude Figure 3: mean magnitude of the noise that arrives in z_p."""
    epsilons, rows = epsilons_of(found), Rows("dp-iadmm", _open(half, found))
    size = {
        (method, epsilon): [
            sum(one["noise"]) / len(one["noise"]) for one in found[_label(method, epsilon)]
        ]
        for method in METHODS
        for epsilon in epsilons
    }
    for method in METHODS[:3]:
        sizes = [size[method, epsilon] for epsilon in epsilons]
        rows.falling(f"noise of {method} grows as epsilon shrinks", sizes)
    for method, epsilon in product(("ObjP", "ObjPM"), epsilons):
        gap = difference(size[method, epsilon], size["OutP, authors", epsilon])
        pair = [Estimate.of(size[name, epsilon]) for name in (method, "OutP, authors")]
        what = f"noise of {method} above OutP's at epsilon {epsilon:g}"
        rows.claim(what, gap, f"{pair[0]} against {pair[1]}", why=AUTHORS_NOISE)
        fair = difference(size[method, epsilon], size["OutP, fair", epsilon])
        what = f"noise of {method} above that of a fair OutP at epsilon {epsilon:g}"
        rows.claim(what, fair, f"{pair[0]} against {Estimate.of(size['OutP, fair', epsilon])}")
        rows.beyond()
    return Outcome(rows, _panels(found, METHODS, "noise", "mean |noise|", True))


def penalties(half: Half, study: str, options: Options) -> Sequence[Case]:
    """Return the cases of Figure 4: the authors' OutP under five choices of rho."""
    return [
        case_of(
            options, half, "OutP, authors", epsilon, seed, label=_label(name, epsilon), **choice
        )
        for name, choice in FIGURE_4.items()
        for epsilon in (PRINTED if options.full else FEWER)
        for seed in _seeds(options, study, _label(name, epsilon))
    ]


def figure_4(half: Half, found: Results) -> Outcome:
    """Conclude Figure 4: the penalty matters less than epsilon."""
    errors = np.array(
        [[_of(found, name, epsilon) for epsilon in epsilons_of(found)] for name in FIGURE_4], float
    )
    by_rho = np.ptp(errors, axis=0).max(axis=0).tolist()
    by_epsilon = np.ptp(errors, axis=1).min(axis=0).tolist()
    rows = Rows("dp-iadmm", _open(half, found))
    said = f"{Estimate.of(by_rho)} points over rho, {Estimate.of(by_epsilon)} over epsilon"
    rows.claim("the choice of rho matters less than epsilon", difference(by_epsilon, by_rho), said)
    return Outcome(rows, _panels(found, tuple(FIGURE_4), "course", "test error, %", False))


# ------------------------------------------------------------------ the printed horizon

Runs = Sequence[tuple[str, float]]
"""Methods and printed epsilons."""


def at_length(half: Half, runs: Runs, options: Options) -> Sequence[Case]:
    """Return single runs at the printed horizon."""
    long = replace(options, night=True)
    return [case_of(long, half, method, epsilon, 0) for method, epsilon in runs]


def errors_at_length(half: Half, runs: Runs, found: Results) -> Outcome:
    """Conclude the single runs at the printed horizon."""
    rows, marks = Rows("dp-iadmm", _open(half, found)), {}
    for method, epsilon in runs:
        label, kind = _label(method, epsilon), "value" if math.isinf(epsilon) else "best"
        printed = half.best if method == "ObjPM" else half.best_of_outp
        what = f"best error of {method} at epsilon .05, %"
        if math.isinf(epsilon):
            what, printed = "error without noise, %", half.free
        own, exact = Estimate(found[label][0][kind]), math.isinf(epsilon)
        rows.number(what, printed, own, exact=exact)
        marks[label] = Curve([FULL_ROUNDS], [printed])
    curves = {label: Curve.course(results) for label, results in found.items()}
    return Outcome(rows, [Panel("", "round", "test error, %", curves, marks, x_log=True)])


# ------------------------------------------------------------------ the data and the studies

HALVES = tuple(Half(name, **own) for name, own in said_of("dp-iadmm")["halves"].items())
MNIST_HALF, FEMNIST_HALF = HALVES


def _settings(half: Half, long: str = "") -> tuple[Setting, ...]:
    """Return the settings of the figures, or of single runs at the printed horizon, so ``long``."""
    numbers = {"scaled": half.scaled, "rounds": half.rounds, "time": long}
    varied = [f"{name}-long" if long else name for name in ("epsilon", "iterations", "repetitions")]
    return (
        Setting(*half.data),
        *settings_of("dp-iadmm", *varied, **numbers),
        Setting(*half.penalty),
        *settings_of("dp-iadmm", "outp", "eta", "zero"),
    )


FIGURES: tuple[tuple[int, str, Callable[..., Sequence[Case]], Callable[..., Outcome]], ...] = (
    (1, "test errors by round", comparison, figure_1),
    (2, "best test errors", comparison, figure_2),
    (3, "mean noise magnitude by round", comparison, figure_3),
    (4, "OutP under five penalties", penalties, figure_4),
)
AT_LENGTH: tuple[tuple[str, Half, Runs, str], ...] = (
    (
        "horizon",
        MNIST_HALF,
        (("ObjP", math.inf), ("OutP, authors", 0.05)),
        "five minutes of a core a run",
    ),
    ("horizon-objpm", MNIST_HALF, (("ObjPM", 0.05),), "half an hour of a core"),
    ("horizon-femnist", FEMNIST_HALF, (("ObjP", math.inf),), "forty minutes of a core"),
)
STUDIES = (
    *(
        Study(
            name,
            f"DP-IADMM: {title} ({half.name})",
            partial(plan, half, name),
            partial(conclude, half),
            _settings(half),
            tuple(half.files),
        )
        for half, suffix in zip(HALVES, ("", "-femnist"), strict=True)
        for number, title, plan, conclude in FIGURES
        for name in (f"dp-iadmm/figure-{number}{suffix}",)
    ),
    *(
        Study(
            f"dp-iadmm/{name}",
            f"DP-IADMM: single runs at the printed horizon ({half.name})",
            partial(at_length, half, runs),
            partial(errors_at_length, half, runs),
            _settings(half, time),
            tuple(half.files),
            full_only=True,
        )
        for name, half, runs, time in AT_LENGTH
    ),
)
