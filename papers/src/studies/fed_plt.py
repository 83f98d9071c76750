"""Tables VI to IX of the Fed-PLT paper: Fed-PLT alone.

A printed computation time is N (N_e t_G + t_C) times the iterations, N the active agents, so every
table says how many iterations there were: those are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from .statistics import Estimate, difference
from .study import (
    Case,
    Curve,
    Options,
    Outcome,
    Panel,
    Result,
    Results,
    Rows,
    Study,
    further_seeds,
    settings_of,
)

TOLERANCE = 1e-5
FIRST_DRAW = 100
"""Draws that are reported begin here; rho was fitted, and rivals were tuned, on others."""
RHO = 1.3
STEP = 0.1
MONTE_CARLO, DRAWS = 100, 10
"""Repetitions of the paper, and of ours without ``--full`` where the paper's take long."""
TABLE_VI = {0.4: 38, 0.5: 29, 0.6: 22, 0.7: 19, 0.8: 14, 0.9: 12, 1.0: 9}
TABLE_VII = {
    1e-6: 2.583e-2,
    1e-5: 7.369e-2,
    1e-4: 2.524e-1,
    1e-3: 7.920e-1,
    1e-2: 2.565,
    1e-1: 8.116,
    1.0: 26.055,
    10.0: 85.273,
}
TABLE_VIII = {0.1: 123, 1.0: 39, 10.0: 162}
TABLE_IX: Mapping[float, float] = {1: 29, 2: 15, 5: 9, 8: 8, 10: 8, 20: 8}
BEST_EPOCHS: Mapping[float, float] = {0.1: 2, 1.0: 2, 10.0: 5, 100.0: 8}
"""t_C -> N_e with the least time in Table IX."""

COMMON = ("data", "start", "solver", "fitted", "draws-as-printed")
FIT = f"rho = {RHO:g}"
OPEN = "rho, step and the generator of the data are not printed"


def alone(label: str, draw: int, rounds: int = 300, **settings: Any) -> Case:
    """Return a run of Fed-PLT on the iid problem until ||sum grad f_i||^2 <= 1e-5."""
    share = settings.pop("fraction", 1.0)
    options: dict[str, Any] = {"tolerance": TOLERANCE}
    if share < 1:
        options["participation"] = {"fraction": share}
    return Case(
        label,
        draw,
        {"name": "logistic", "draw": FIRST_DRAW + draw},
        "fed-plt",
        {"rho": RHO, "local_epochs": 5, **settings},
        rounds,
        "iterations",
        options,
    )


def values(results: Sequence[Result]) -> list[float | None]:
    """Return the values of a label's results."""
    return [result["value"] for result in results]


def _cases(
    arms: Mapping[str, Mapping[str, Any]], number: int, draws: int, options: Options
) -> Sequence[Case]:
    return [
        alone(label, draw, **settings)
        for label, settings in arms.items()
        for draw in options.seeds(
            MONTE_CARLO, draws, further_seeds(f"fed-plt/table-{number}").get(label, 0)
        )
    ]


def _panel(
    name: str,
    measure: str,
    printed: Mapping[float, float],
    ours: Mapping[str, Mapping[float, Estimate]],
    x_log: bool = False,
) -> Panel:
    curves = {label: Curve.of(own) for label, own in ours.items()}
    marks = {"printed": Curve(list(printed), list(printed.values()))}
    return Panel("", name, measure, curves, marks, x_log=x_log, y_log=True)


SIX = {f"{share:.0%} active": {"fraction": share} for share in TABLE_VI}


def table_6(found: Results) -> Outcome:
    """Compare iterations by share of the agents, and the time that they stand for."""
    ours = {share: Estimate.of(values(found[f"{share:.0%} active"])) for share in TABLE_VI}
    rows = Rows("fed-plt", OPEN)
    for share, printed in TABLE_VI.items():
        rows.number(f"{share:.0%} active: iterations", printed, ours[share], fitted=FIT)
    few, many = (values(found[label]) for label in ("40% active", "100% active"))
    slower = difference([0.4 * (value or 0) for value in few], many)
    said = f"{1.5 * 0.4 * ours[0.4].mean:.3g}k to {1.5 * ours[1.0].mean:.3g}k"
    what = "computation time falls from 40 % to 100 % active"
    rows.claim(what, slower, said, printed="22.8k to 13.5k", why=f"fitted: {FIT}")
    return Outcome(rows, [_panel("share of the agents", "iterations", TABLE_VI, {"ours": ours})])


READINGS: Mapping[str, Mapping[str, float]] = {
    "rho 1, step .1": {"rho": 1.0, "step_size": STEP},
    "rho 1.3, step .2": {"rho": RHO, "step_size": 0.2},
    "rho 1.3, best step": {"rho": RHO, "step_size": 0.0},
}
MAIN = "rho 1, step .1"
FEWER = (1e-6, 1e-2, 10.0)
"""Variances of the other readings without ``--full``."""


def noisy_cases(options: Options) -> Sequence[Case]:
    """Return the cases of Table VII: the full variance of (13) under three readings."""
    return [
        replace(
            alone(
                f"variance {variance:g}, {name}",
                draw,
                30,
                **reading,
                local_solver="noisy-gd",
                noise_variance=variance,
                noise_seed=draw,
            ),
            measure="distance",
            options={"tail": 15},
        )
        for name, reading in READINGS.items()
        for variance in (TABLE_VII if options.full or name == MAIN else FEWER)
        for draw in options.seeds(MONTE_CARLO, DRAWS)
    ]


def table_7(found: Results) -> Outcome:
    """Compare the errors under noisy gradients."""
    ours = {
        name: {
            variance: Estimate.of(values(found[label]))
            for variance in TABLE_VII
            if (label := f"variance {variance:g}, {name}") in found
        }
        for name in READINGS
    }
    rows = Rows("fed-plt", OPEN)
    for variance, printed in TABLE_VII.items():
        there = {name: own[variance] for name, own in ours.items() if variance in own}
        shares = [f"{name}: {one.mean / printed:.2f}" for name, one in there.items()]
        why = f"times printed, by reading of rho and step: {'; '.join(shares)}"
        readings = {name: one for name, one in there.items() if name != MAIN}
        what = f"variance {variance:g}: ||x - x*||"
        rows.number(what, printed, there[MAIN], readings=readings, why=why)
    own = [values(found[f"variance {variance:g}, {MAIN}"]) for variance in TABLE_VII]
    what = "the larger the variance the larger the error"
    rows.falling(what, own[::-1])
    note = (
        "The noise of (13) is sqrt(2 gamma) tau, so the error depends on the step, which is not "
        "printed; the data do not single out one of the readings."
    )
    panel = _panel("noise variance", "||x - x*||", TABLE_VII, ours, x_log=True)
    return Outcome(rows, [panel], [note])


STEPS = {"step .1": STEP, "best step": 0.0}
EIGHT = {
    f"rho {rho:g}, {name}": {"rho": rho, "step_size": step}
    for name, step in STEPS.items()
    for rho in TABLE_VIII
}


def table_8(found: Results) -> Outcome:
    """Compare iterations by penalty: each printed number once, under both readings of the step."""
    own = {
        name: {rho: values(found[f"rho {rho:g}, {name}"]) for rho in TABLE_VIII} for name in STEPS
    }
    ours = {
        name: {rho: Estimate.of(counts) for rho, counts in by_rho.items()}
        for name, by_rho in own.items()
    }
    rows = Rows("fed-plt", OPEN)
    for rho, printed in TABLE_VIII.items():
        why = (
            f"one step .1 for all rho, fitted; with the best step for each {ours['best step'][rho]}"
        )
        what = f"rho {rho:g}: iterations"
        rows.number(what, printed, ours["step .1"][rho], why=why)
    for far in (0.1, 10.0):
        slower = difference(own["best step"][far], own["best step"][1.0])
        rows.claim(f"rho = 1 is faster than {far:g} (best step for each)", slower)
    named = {f"ours, {name}": by_rho for name, by_rho in ours.items()}
    return Outcome(rows, [_panel("rho", "iterations", TABLE_VIII, named, x_log=True)])


NINE = {f"N_e = {count}": {"local_epochs": count} for count in TABLE_IX}


def table_9(found: Results) -> Outcome:
    """Compare iterations by local epochs, and which number is the best at each t_C."""
    ours = {count: Estimate.of(values(found[f"N_e = {count}"])) for count in TABLE_IX}
    rows = Rows("fed-plt", OPEN)
    for count, printed in TABLE_IX.items():
        rows.number(f"N_e = {count}: iterations", printed, ours[count], fitted=FIT)
    times = {
        cost: {count: _times(found, count, cost) for count in TABLE_IX} for cost in BEST_EPOCHS
    }
    best = {
        cost: min(own, key=lambda count: Estimate.of(own[count]).mean)
        for cost, own in times.items()
    }
    for cost, printed in BEST_EPOCHS.items():
        own = times[cost]
        slower = [difference(own[other], own[printed]) for other in TABLE_IX if other != printed]
        what, why = f"best N_e at t_C = {cost:g}", f"fitted: {FIT}"
        rows.readings(what, {"": slower}, f"{best[cost]:g}", printed=f"{printed:g}", why=why)
    (low, few), *_, (high, many) = BEST_EPOCHS.items()
    grows = [
        difference(times[low][many], times[low][few]),
        difference(times[high][few], times[high][many]),
    ]
    said = ", ".join(f"{count:g} at {cost:g}" for cost, count in best.items())
    why = f"{few} before {many} at {low:g}, {many} before {few} at {high:g}; fitted: {FIT}"
    rows.readings("the best N_e grows with t_C", {"": grows}, said, why=why)
    return Outcome(rows, [_panel("local epochs", "iterations", TABLE_IX, {"ours": ours})])


def _times(found: Results, count: float, cost: float) -> list[float | None]:
    """Return the time of an agent by draw."""
    own = values(found[f"N_e = {count}"])
    return [None if value is None else value * (count + cost) for value in own]


NOISY = ("data", "noise", "noise-readings", "start-noise", "draws")
STEPPED = ("data", "start", "one-step", "draws")
STUDIES = tuple(
    Study(
        f"fed-plt/table-{number}",
        title,
        plan,
        conclude,
        settings_of("fed-plt", *settings, rho=RHO, step=STEP),
    )
    for number, title, plan, conclude, settings in (
        (
            6,
            "Fed-PLT with a share of the agents",
            partial(_cases, SIX, 6, MONTE_CARLO),
            table_6,
            COMMON,
        ),
        (7, "Fed-PLT's error under noisy gradients", noisy_cases, table_7, NOISY),
        (8, "Fed-PLT and its penalty", partial(_cases, EIGHT, 8, DRAWS), table_8, STEPPED),
        (
            9,
            "Fed-PLT and its local epochs",
            partial(_cases, NINE, 9, MONTE_CARLO),
            table_9,
            COMMON,
        ),
    )
)
