"""Figures 1 to 4 of the DP-IADMM paper: MNIST on 10,000 digits, FEMNIST on 114 writers.

The paper has 60,000 digits; the same noise on 10,000 has six times its epsilons. OutP is run twice:
as the authors coded it (sigma^2 for a standard deviation, no 1/I_p in the sensitivity, losses
divided by an agent's own examples), and with a fair, clipped sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from .noises import DELTA
from .statistics import Estimate, band, difference
from .study import (
    FEMNIST,
    MNIST,
    Case,
    Curve,
    Options,
    Outcome,
    Panel,
    Result,
    Results,
    Row,
    Rows,
    Setting,
    Study,
    Verdict,
)

PRINTED = (0.05, 0.1, 1.0, 5.0)
FEWER = (0.05, 1.0)
"""Of them, those that are run without ``--full``."""
RATIO = {"MNIST": 6.0, "FEMNIST": 36_708 / 15_440}
"""Examples of the paper over examples here: what epsilon is multiplied by for the same noise."""
ROUNDS, FULL_ROUNDS, FULL_SEEDS = 100, 20_000, 10
FEMNIST_ROUNDS = 15
RHO: Mapping[str, Mapping[str, Any]] = {
    "MNIST": {"rho_c1": 2.0, "rho_c2": 5.0, "rho_period": 10_000},
    "FEMNIST": {"rho_c1": 0.005, "rho_c2": 0.05, "rho_period": 2_000},
}
OBJECTIVE = {"mechanism": "laplace", "sensitivity": "paper"}
FAIR = {"perturbation": "output", "clip": 10.0, "delta": DELTA}
"""Hardly any gradient is longer than the clip, so that it costs OutP nothing but its noise."""
METHODS = ("ObjP", "ObjPM", "OutP, authors", "OutP, fair")
STRETCH = 2.0 * math.sqrt(math.log(1.25 / DELTA))
"""1/eta_t of the authors' OutP is I_p / 4 + STRETCH sqrt(t) / eps: `noises.authors_proximity`."""
FIGURE_4: Mapping[str, Mapping[str, Any]] = {
    "rho .1": {"rho": 0.1},
    "rho 1": {"rho": 1.0},
    "rho 10": {"rho": 10.0},
    "(24)": {},
    "(24) / 100": {"of-rho": 0.01},
}


def case_of(
    options: Options, label: str, data: str, method: str, epsilon: float, seed: int, **more: Any
) -> Case:
    """Return a run of one method at a printed epsilon; infinity is without noise."""
    own = epsilon * RATIO[data]
    settings: dict[str, Any] = {**RHO[data], "epsilon": own}
    extras: dict[str, Any] = {}
    workload = {"name": "digits-in-ten" if data == "MNIST" else "femnist"}
    if math.isinf(epsilon):
        settings |= {"perturbation": "none", "epsilon": "inf"}
    elif method == "OutP, fair":
        settings |= FAIR
    elif method == "OutP, authors":
        scale = more.get("of-rho", 1.0)
        settings |= {
            "perturbation": "output",
            "noise_scale": 1.0,
            "eta_rule": "smooth",
            "smoothness": 250.0,
            "epsilon": own / STRETCH,
            "rho_c1": RHO[data]["rho_c1"] * scale,
            "rho_c2": RHO[data]["rho_c2"] * scale / STRETCH,
        }
        extras = {"noise": "authors", "printed-epsilon": own, "of-rho": scale}
        workload["divisor"] = "own"
    else:
        settings |= OBJECTIVE
    settings["local_updates"] = 10 if method == "ObjPM" else 1
    if "rho" in more:
        settings["rho"] = more["rho"]
    rounds = ROUNDS if data == "MNIST" else FEMNIST_ROUNDS
    rounds = FULL_ROUNDS if options.full else rounds
    return Case(
        label,
        seed,
        {**workload, "folder": str(options.data_path)},
        "dp-iadmm",
        settings,
        rounds,
        "error-and-noise",
        {"every": max(1, rounds // 10), "tail": 1, **extras},
    )


def _label(method: str, epsilon: float) -> str:
    return f"{method}, epsilon {epsilon:g}"


def comparison(options: Options) -> Sequence[Case]:
    """Return the cases of Figures 1 to 3: four methods, four epsilons, and no noise."""
    noisy = [
        case_of(options, _label(method, epsilon), "MNIST", method, epsilon, seed)
        for method in METHODS
        for epsilon in (PRINTED if options.full else FEWER)
        for seed in options.seeds(FULL_SEEDS)
    ]
    plain = [
        case_of(options, _label(method, math.inf), "MNIST", method, math.inf, 0)
        for method in METHODS[:2]
    ]
    return [*noisy, *plain]


def _of(found: Results, method: str, epsilon: float, what: str = "value") -> list[float | None]:
    return [result[what] for result in found[_label(method, epsilon)]]


def _course(results: Sequence[Result], what: str = "course") -> Curve:
    mean, low, high = band([result[what] for result in results])
    return Curve(results[0]["rounds"], mean.tolist(), low.tolist(), high.tolist())


PAIRS = (
    ("ObjP", "OutP, authors", "the paper's own baseline"),
    (
        "ObjP",
        "OutP, fair",
        "with one mechanism, one local update and no set W the two are the same arithmetic",
    ),
    ("ObjPM", "ObjP", "per round: ten times the gradients and the releases"),
)


def _panels(found: Results, what: str, label: str) -> list[Panel]:
    return [
        Panel(
            f"epsilon {epsilon:g}",
            "round",
            label,
            {method: _course(found[_label(method, epsilon)], what) for method in METHODS},
            y_log=True,
        )
        for epsilon in epsilons_of(found)
    ]


def epsilons_of(found: Results) -> list[float]:
    """Return the printed epsilons that were run."""
    own = {float(label.rsplit(" ", 1)[1]) for label in found}
    return sorted(epsilon for epsilon in own if math.isfinite(epsilon))


OPEN = "10,000 digits in place of 60,000, and a shorter horizon"


def figure_1(found: Results) -> Outcome:
    """Conclude Figure 1: who has the smaller error, and what epsilon does to it."""
    epsilons, rows = epsilons_of(found), Rows(OPEN)
    for method in METHODS[:3]:
        steps = [
            difference(_of(found, method, small), _of(found, method, large))
            for small, large in pairwise(epsilons)
        ]
        said = " > ".join(f"{Estimate.of(_of(found, method, e)).mean:.2f}" for e in epsilons)
        what = f"errors of {method} grow as epsilon shrinks"
        rows.claim(what, min(steps, key=lambda step: step.low), said)
    for epsilon in epsilons:
        for better, worse, why in PAIRS:
            gap = difference(_of(found, worse, epsilon), _of(found, better, epsilon))
            pair = [Estimate.of(_of(found, name, epsilon)) for name in (better, worse)]
            what = f"{better} below {worse} at epsilon {epsilon:g}"
            rows.claim(what, gap, f"{pair[0]} against {pair[1]} %", why=why)
            if worse == "OutP, fair":
                rows[-1] = rows[-1].beyond()
    for method, name in (("ObjPM", "close to"), ("ObjP", "not close to")):
        free = found[_label(method, math.inf)][0]["value"]
        gap = Estimate.of([(v or math.nan) - free for v in _of(found, method, 1.0)])
        why = f'"close" is no number; points above {free:.2f} %; {OPEN}'
        what = f"{method} at epsilon 1 is {name} the run without noise"
        rows.append(Row(what, "yes", gap, Verdict.NOT_DETERMINED, why))
    free = Estimate(found[_label("ObjP", math.inf)][0]["value"])
    rows.number("error without noise, %", 9.1, free)
    return Outcome(rows, _panels(found, "course", "test error, %"))


def figure_2(found: Results) -> Outcome:
    """Conclude Figure 2: the best error of each method."""
    epsilons, rows = epsilons_of(found), Rows(OPEN)
    marks = {"ObjPM": Curve([0.05], [11.74]), "OutP, authors": Curve([0.05], [21.79])}
    for name, printed in marks.items():
        best = Estimate(min(_best(found, name, 0.05)))
        rows.number(f"best error of {name} at epsilon .05, %", printed.y[0], best)
    for epsilon in epsilons:
        others = {name: min(_best(found, name, epsilon)) for name in ("ObjP", "OutP, authors")}
        second = min(others, key=others.__getitem__)
        gap = difference(_best(found, second, epsilon), _best(found, "ObjPM", epsilon))
        rows.claim(f"ObjPM is best of all at epsilon {epsilon:g}", gap, printed="ObjPM")
    curves = {
        name: Curve(epsilons, [min(_best(found, name, epsilon)) for epsilon in epsilons])
        for name in METHODS
    }
    labels = ("best test error", "epsilon of a release", "test error, %")
    return Outcome(rows, [Panel(*labels, curves, marks, x_log=True)])


def _best(found: Results, method: str, epsilon: float) -> list[float]:
    return [float(result["best"]) for result in found[_label(method, epsilon)]]


def figure_3(found: Results) -> Outcome:
    """Conclude Figure 3: mean magnitude of the noise that arrives in z_p."""
    epsilons, rows = epsilons_of(found), Rows(OPEN)
    size = {
        (method, epsilon): [
            sum(one["noise"]) / len(one["noise"]) for one in found[_label(method, epsilon)]
        ]
        for method in METHODS
        for epsilon in epsilons
    }
    for method in METHODS[:3]:
        steps = [difference(size[method, a], size[method, b]) for a, b in pairwise(epsilons)]
        said = " > ".join(f"{Estimate.of(size[method, e]).mean:.2g}" for e in epsilons)
        what = f"noise of {method} grows as epsilon shrinks"
        rows.claim(what, min(steps, key=lambda step: step.low), said)
    for epsilon in epsilons:
        gap = difference(size["ObjP", epsilon], size["OutP, authors", epsilon])
        pair = [Estimate.of(size[name, epsilon]) for name in ("ObjP", "OutP, authors")]
        what = f"noise of ObjP above OutP's at epsilon {epsilon:g}"
        rows.claim(what, gap, f"{pair[0]} against {pair[1]}")
    return Outcome(rows, _panels(found, "noise", "mean |noise|"))


def penalties(options: Options) -> Sequence[Case]:
    """Return the cases of Figure 4: the authors' OutP under five choices of rho."""
    return [
        case_of(
            options, f"{name}, epsilon {epsilon:g}", "MNIST", "OutP, authors", epsilon, seed, **more
        )
        for name, more in FIGURE_4.items()
        for epsilon in (PRINTED if options.full else FEWER)
        for seed in options.seeds(FULL_SEEDS)
    ]


def figure_4(found: Results) -> Outcome:
    """Conclude Figure 4: the penalty matters less than epsilon."""
    own = {label: [one["value"] for one in results] for label, results in found.items()}
    epsilons = epsilons_of(found)
    count = len(next(iter(own.values())))
    by_rho, by_epsilon = [], []
    for seed in range(count):
        error = {
            (name, e): own[f"{name}, epsilon {e:g}"][seed] for name in FIGURE_4 for e in epsilons
        }
        by_rho.append(max(_span([error[name, e] for name in FIGURE_4]) for e in epsilons))
        by_epsilon.append(min(_span([error[name, e] for e in epsilons]) for name in FIGURE_4))
    rows = Rows(OPEN)
    said = f"{Estimate.of(by_rho)} points over rho, {Estimate.of(by_epsilon)} over epsilon"
    rows.claim("the choice of rho matters less than epsilon", difference(by_epsilon, by_rho), said)
    panels = [
        Panel(
            f"epsilon {epsilon:g}",
            "round",
            "test error, %",
            {name: _course(found[f"{name}, epsilon {epsilon:g}"]) for name in FIGURE_4},
        )
        for epsilon in epsilons
    ]
    return Outcome(rows, panels)


def _span(values: Sequence[float]) -> float:
    return max(values) - min(values)


WRITERS = ("ObjP", "ObjPM", "OutP, fair")


def writers(options: Options) -> Sequence[Case]:
    """Return the cases of the FEMNIST halves at the smallest epsilon, and without noise."""
    noisy = [
        case_of(options, _label(method, 0.05), "FEMNIST", method, 0.05, seed)
        for method in WRITERS
        for seed in options.seeds(FULL_SEEDS)
    ]
    plain = case_of(options, _label("ObjP", math.inf), "FEMNIST", "ObjP", math.inf, 0)
    return [*noisy, plain]


def femnist_halves(found: Results) -> Outcome:
    """Conclude the FEMNIST halves of Figures 1 and 2."""
    rows = Rows("114 writers in place of 195, and a shorter horizon")
    free = Estimate(found[_label("ObjP", math.inf)][0]["value"])
    rows.number("error without noise, %", 37.27, free)
    best = Estimate(min(_best(found, "ObjPM", 0.05)))
    rows.number("best error of ObjPM at epsilon .05, %", 59.42, best)
    why = f"the authors' OutP has a step of each agent's own size, not run here; {rows.unprinted}"
    said = f"{min(_best(found, 'OutP, fair', 0.05)):.2f} (fair OutP)"
    what = "best error of OutP at epsilon .05, %"
    rows.append(Row(what, 91.05, said, Verdict.NOT_DETERMINED, why))
    gap = difference(_of(found, "ObjP", 0.05), _of(found, "ObjPM", 0.05))
    rows.claim("ObjPM below ObjP at epsilon 0.05", gap, why=PAIRS[2][2])
    curves = {method: _course(found[_label(method, 0.05)]) for method in WRITERS}
    return Outcome(rows, [Panel("FEMNIST, epsilon 0.05", "round", "test error, %", curves)])


EXAMPLES = Setting(
    "data",
    "MNIST, 60,000 digits over 10 agents, iid",
    "10,000 digits over 10 agents, iid, x/255",
    "10,000 are at hand",
)
EPSILON = Setting(
    "epsilon",
    ".05, .1, 1, 5 of a release",
    "six times as large, so that the noise is that of the printed one on 60,000; .05 and 1 (all "
    "with `--full`)",
    "fewer digits; the page names the printed value; time",
)
HORIZON = Setting("iterations", "20,000", f"{ROUNDS} (20,000 with `--full`)", "time")
SEEDS = Setting("repetitions", "10", "5 (10 with `--full`)", "time")
PENALTY = Setting("rho", "(24): c_1 = 2, c_2 = 5, T_c = 10,000", "as printed")
OUTP = Setting(
    "OutP",
    'the algorithm of "[2]", delta 1e-6',
    "as the authors coded it: step and noise; beside it a fair one, clipped at 10",
    "its text leaves the noise to the code",
)
ETA = Setting("eta of ObjP, ObjPM", "of Theorem 3: 1 / sqrt(t)", "as printed")
ZERO = Setting("start, set W", "not printed", "zero, none", "as in the authors' code")
COMMON = (EXAMPLES, EPSILON, HORIZON, SEEDS, PENALTY, OUTP, ETA, ZERO)
WRITER_SETTINGS = (
    Setting(
        "data",
        "36,708 images of 195 writers",
        "15,440 of 114 writers, 1 - x/255",
        "those of the authors' files that are whole",
    ),
    Setting("rho", "(24): c_1 = .005, c_2 = .05, T_c = 2,000", "as printed"),
    Setting("iterations", "20,000", f"{FEMNIST_ROUNDS} (20,000 with `--full`)", "time"),
    Setting("OutP", 'the algorithm of "[2]"', "the fair one only", "see the row"),
    SEEDS,
)
STUDIES = (
    *(
        Study(f"dp-iadmm/figure-{number}", title, plan, conclude, COMMON, MNIST)
        for number, title, plan, conclude in (
            (1, "DP-IADMM: test errors by round (MNIST)", comparison, figure_1),
            (2, "DP-IADMM: best test errors (MNIST)", comparison, figure_2),
            (3, "DP-IADMM: mean noise magnitude by round (MNIST)", comparison, figure_3),
            (4, "DP-IADMM: OutP under five penalties (MNIST)", penalties, figure_4),
        )
    ),
    Study(
        "dp-iadmm/femnist",
        "DP-IADMM: the FEMNIST halves of Figures 1 and 2",
        writers,
        femnist_halves,
        WRITER_SETTINGS,
        FEMNIST,
    ),
)
