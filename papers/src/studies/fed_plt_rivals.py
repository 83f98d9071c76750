"""Tables II to V of the Fed-PLT paper: Fed-PLT and its rivals, within their theory and freely.

All are tuned by one search with one budget on draws that are not reported, freely, and once more
with the dual step (LED, TAMUNA) or the step (FedLin) that their own theory allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from .fed_plt import DRAWS, FIRST_DRAW, MONTE_CARLO, TOLERANCE, values
from .search import near_ends
from .statistics import Estimate, common, difference
from .study import (
    Case,
    Curve,
    Options,
    Outcome,
    Panel,
    Results,
    Rows,
    Study,
    further_seeds,
    settings_of,
    tuned,
)

LOCAL_EPOCHS = 5
COSTS = (0.1, 1.0, 10.0, 100.0)
ROUNDS = 150
FREE, THEORY = "tuned freely", "within its theory"
IN_THEORY: Mapping[str, Mapping[str, float]] = {
    "fed-lin": {},  # its step is 1 / (L N_e)
    "led": {"dual_step_size": 1 / LOCAL_EPOCHS},
    "tamuna": {"dual_step_size": 0.0},  # the largest that its theory allows
}
"""Algorithms whose best free settings lie beyond their published theory, and what that fixes."""
UNPRINTED = "the paper prints no step size of any rival, nor rho"
SEARCH = {"budget": 30, "draws": 4}
AXES: Mapping[str, Sequence[Any]] = {
    "fed-plt": (["rho", 0.1, 10.0], ["step_size", 0.1, 1.0]),
    "fed-pd": (["rho", 0.1, 10.0], ["step_size", 0.1, 1.0]),
    "fed-lin": (["step_size", 0.05, 3.0],),
    "led": (["step_size", 0.05, 3.0], ["dual_step_size", 0.02, 2.0]),
    "tamuna": (["step_size", 0.05, 3.0], ["dual_step_size", 0.02, 2.0]),
    "five-gcs": (["rho", 0.1, 10.0], ["server_step_size", 0.1, 20.0]),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One column of a table: who was compared on which problem, and the printed iterations.

    ``draws`` are those without ``--full``.
    """

    name: str
    printed: Mapping[str, int]
    workload: Mapping[str, Any] = field(default_factory=dict)
    fraction: float = 1.0
    solver: str = "gd"
    gradient_cost: float = 1.0
    costs: tuple[float, ...] = (10.0,)
    draws: int = MONTE_CARLO


CONVEX = Comparison(
    "convex",
    {"fed-plt": 9, "fed-lin": 6, "led": 34, "tamuna": 17, "five-gcs": 38, "fed-pd": 47},
)
NONCONVEX = tuple(
    Comparison(
        f"nonconvex, from {scale:g} N(0, I)",
        {"fed-plt": 14, "fed-lin": 12, "led": 292, "five-gcs": 26, "fed-pd": 149},
        {"regularizer": "nonconvex", "start_scale": scale},
        draws=DRAWS,
    )
    for scale in (1.0, 3.0, 10.0)
)
HALF = Comparison("half active", {"fed-plt": 29, "tamuna": 71, "five-gcs": 30}, fraction=0.5)
AGD = Comparison("accelerated", {"fed-plt": 10, "five-gcs": 38}, solver="agd")
AGD_HALF = Comparison(
    "accelerated, half active", {"fed-plt": 38, "five-gcs": 31}, fraction=0.5, solver="agd"
)
LARGE = Comparison(
    "100 features",
    {"fed-plt": 10, "fed-lin": 7, "led": 34, "tamuna": 24, "five-gcs": 30, "fed-pd": 68},
    {"features": 100},
    gradient_cost=20.0,
    costs=(2.0, 20.0, 200.0, 2000.0),
    draws=DRAWS,
)


def case_of(one: Comparison, algorithm: str, kind: str, draw: int, *, search: bool = False) -> Case:
    """Return the run of one algorithm on one draw, with kept settings or a search for them."""
    options: dict[str, Any] = {"tolerance": TOLERANCE}
    if algorithm == "five-gcs":
        options["at"] = "last-gradient"  # its y_i, where its paper measures
    if one.fraction < 1:
        options["participation"] = {"fraction": one.fraction}
    settings: dict[str, Any] = {"local_epochs": LOCAL_EPOCHS}
    if one.solver != "gd":
        settings["local_solver"] = one.solver
    if algorithm == "five-gcs":
        settings["common_convexity"] = 0.0 if "regularizer" in one.workload else 0.5
    if kind == THEORY:
        settings |= IN_THEORY[algorithm]
    if kind == THEORY and algorithm == "fed-lin":
        options["over-smoothness"] = {"step_size": 1 / LOCAL_EPOCHS}
    elif search:
        given = set(settings) | ({"step_size"} if one.solver == "agd" else set())
        axes = [axis for axis in AXES[algorithm] if axis[0] not in given]
        options["search"] = {**SEARCH, "axes": axes}
    else:
        settings |= _found(one, algorithm, kind)
    workload = {"name": "logistic", "draw": FIRST_DRAW + draw, **one.workload}
    label = _label(one, algorithm, kind)
    return Case(label, draw, workload, algorithm, settings, ROUNDS, "iterations", options)


def _found(one: Comparison, algorithm: str, kind: str) -> dict[str, Any]:
    """Return what a search found; nonconvex starts share the one from N(0, I)."""
    name = one.name.split(", from ")[0]
    return tuned("fed-plt", f"{name}, {kind}" if kind == THEORY else name, algorithm)


def untuned(one: Comparison, *algorithms: str) -> str:
    """Say which settings lie at an end of the box they were searched in; empty where none does."""
    said = []
    for algorithm in algorithms or one.printed:
        for kind in kinds(algorithm):
            if (kind, algorithm) == (THEORY, "fed-lin"):
                continue  # 1 / (L N_e), not searched
            found = _found(one, algorithm, kind)
            axes = [axis for axis in AXES[algorithm] if axis[0] in found]
            said += [
                f"{algorithm}'s {key} is at the end of its box" for key in near_ends(found, axes)
            ]
    return "; ".join(dict.fromkeys(said))


def _label(one: Comparison, algorithm: str, kind: str) -> str:
    return f"{one.name}: {algorithm}, {kind}"


def kinds(algorithm: str) -> tuple[str, ...]:
    """Return the ways in which an algorithm is tuned: where it matters also within its theory."""
    return (THEORY, FREE) if algorithm in IN_THEORY else (FREE,)


def _cases(comparisons: Sequence[Comparison], number: int, options: Options) -> Sequence[Case]:
    further = further_seeds(f"fed-plt/table-{number}")
    return [
        case_of(one, algorithm, kind, draw, search=options.full)
        for one in comparisons
        for algorithm in one.printed
        for kind in kinds(algorithm)
        for draw in options.seeds(
            MONTE_CARLO, one.draws, further.get(_label(one, algorithm, kind), 0)
        )
    ]


def time_of(one: Comparison, algorithm: str, iterations: float, cost: float) -> float:
    """Return the paper's time of an agent: FedLin has one gradient and one message more."""
    more = int(algorithm == "fed-lin")
    return iterations * ((LOCAL_EPOCHS + more) * one.gradient_cost + (1 + more) * cost)


def _own(found: Results, one: Comparison, algorithm: str, kind: str) -> list[float | None]:
    """Return iterations by draw; None where a run does not arrive."""
    return values(found[_label(one, algorithm, kind)])


def _times(
    found: Results, one: Comparison, cost: float, kind: str
) -> dict[str, list[float | None]]:
    """Return times by algorithm and draw, of ``kind`` where an algorithm has it."""
    return {
        algorithm: [
            None if value is None else time_of(one, algorithm, value, cost)
            for value in _own(found, one, algorithm, kind if kind in kinds(algorithm) else FREE)
        ]
        for algorithm in one.printed
    }


def numbers(found: Results, one: Comparison) -> Rows:
    """Return a row for each printed number: the in-theory measurement, the free one beside it."""
    rows = Rows("fed-plt", UNPRINTED)
    for algorithm, printed in one.printed.items():
        own = kinds(algorithm)
        ours = {kind: Estimate.of(_own(found, one, algorithm, kind)) for kind in own}
        first, *others = own
        why = "; ".join([first, *(f"{kind} {ours[kind]}" for kind in others)]) if others else ""
        readings = {kind: ours[kind] for kind in others}
        what = f"{algorithm}, {one.name}: iterations"
        ended = untuned(one, algorithm)
        rows.number(what, printed, ours[first], readings=readings, why=why, untuned=ended)
    return rows


def fastest(rows: Rows, found: Results, one: Comparison, cost: float) -> None:
    """Add whether the algorithm that is fastest in print is so here, however rivals are tuned."""
    first = _order(one, cost)[0]
    gaps, said = _leads(found, one, cost, first)
    what = f"{first} is fastest at t_C = {cost:g}, {one.name}"
    rows.readings(what, gaps, said, printed=first, untuned=untuned(one))


def _leads(
    found: Results, one: Comparison, cost: float, first: str
) -> tuple[dict[str, list[Estimate]], str]:
    """Return by how much one is ahead of the others, however rivals are tuned, and in words."""
    said, gaps = [], dict[str, list[Estimate]]()
    for kind in (THEORY, FREE):
        times = _times(found, one, cost, kind)
        means = {name: Estimate.of(own) for name, own in times.items()}
        arrive = {name: own.mean for name, own in means.items() if own.complete}
        rivals = {name: mean for name, mean in arrive.items() if name != first}
        if first not in arrive or not rivals:
            gaps[kind] = [Estimate(math.nan, math.nan, 0, 1)]
            said.append(f"{kind}: {first} or all others do not arrive")
            continue
        best = min(rivals, key=rivals.__getitem__)
        # Rivals that miss the tolerance on some draw are not ahead.
        gaps[kind] = [difference(times[name], times[first]) for name in rivals]
        said.append(f"{kind}: {best} {_longer(times, best, first)}")
    return gaps, "; ".join(said)


def _order(one: Comparison, cost: float) -> list[str]:
    """Return the algorithms by their printed times."""
    return sorted(one.printed, key=lambda name: time_of(one, name, one.printed[name], cost))


def order(rows: Rows, found: Results, one: Comparison, cost: float) -> None:
    """Add whether the printed order of all algorithms, by time, comes out."""
    printed, said = _order(one, cost), list[str]()
    gaps: dict[str, list[Estimate]] = {}
    for kind in (THEORY, FREE):
        times = _times(found, one, cost, kind)
        means = {name: Estimate.of(own).mean for name, own in times.items()}
        said.append(f"{kind}: {' < '.join(sorted(means, key=means.__getitem__))}")
        gaps[kind] = [difference(times[after], times[name]) for name, after in pairwise(printed)]
    what = f"order at t_C = {cost:g}, {one.name}"
    ours, orders = "; ".join(said), " < ".join(printed)
    rows.readings(what, gaps, ours, printed=orders, untuned=untuned(one))


def bars(found: Results, one: Comparison) -> Panel:
    """Return a named bar for each algorithm, with the paper's number as a mark."""
    curves, marks = {}, {}
    for algorithm, printed in one.printed.items():
        for kind in kinds(algorithm):
            ours = Estimate.of(_own(found, one, algorithm, kind))
            label = f"{algorithm}, {kind}" if algorithm in IN_THEORY else algorithm
            if not ours.complete:
                label = f"{label}, {ours.count} of {ours.tried} arrive"
            marks[label] = Curve([0], [printed])
            mean, half = (ours.mean, ours.half_width) if ours.count else (0.0, 0.0)
            curves[label] = Curve([0], [mean], [max(mean - half, 0.0)], [mean + half])
    return Panel(one.name, "", "iterations", curves, marks, bars=True)


def table_2(found: Results) -> Outcome:
    """Conclude Table II, its nonconvex half from several starts."""
    rows = numbers(found, CONVEX)
    fastest(rows, found, CONVEX, 10.0)
    rows += _nonconvex(found)
    return Outcome(rows, [bars(found, one) for one in (CONVEX, *NONCONVEX)])


def _nonconvex(found: Results) -> Rows:
    """Return one row a printed number: from N(0, I), with the other starts beside it."""
    rows = Rows("fed-plt", "the start is not printed and decides")
    for algorithm, printed in NONCONVEX[0].printed.items():
        said = []
        for kind in kinds(algorithm):
            ours = [Estimate.of(_own(found, one, algorithm, kind)) for one in NONCONVEX]
            starts = [f"{_start(one)} {own}" for one, own in zip(NONCONVEX, ours, strict=True)]
            said.append(f"{kind}: {', '.join(starts)}")
        first, *others = [
            (f"{kind}, {_start(one)}", Estimate.of(_own(found, one, algorithm, kind)))
            for kind in kinds(algorithm)
            for one in NONCONVEX
        ]
        what = f"{algorithm}, nonconvex: iterations"
        rows.number(what, printed, first[1], readings=dict(others), why="; ".join(said))
    readings, texts = dict[str, list[Estimate]](), list[str]()
    for one in NONCONVEX:
        gaps, text = _leads(found, one, 10.0, "fed-plt")
        readings |= {f"{_start(one)}, {kind}": own for kind, own in gaps.items()}
        texts.append(f"{_start(one)}: {text}")
    what = "fed-plt is fastest at t_C = 10, nonconvex"
    rows.readings(what, readings, "; ".join(texts), printed="fed-plt")
    return rows


def _start(one: Comparison) -> str:
    return one.name.removeprefix("nonconvex, ")


def table_3(found: Results) -> Outcome:
    """Conclude Table III: who is fastest, and in what order, at each t_C."""
    rows = Rows("fed-plt", UNPRINTED)
    for cost in COSTS:
        if cost != 10.0:
            fastest(rows, found, CONVEX, cost)
    for cost in COSTS:
        order(rows, found, CONVEX, cost)
    for cost, quicker, slower in ((0.1, "fed-lin", "fed-plt"), (100.0, "fed-plt", "fed-lin")):
        both = {kind: _times(found, CONVEX, cost, kind) for kind in (THEORY, FREE)}
        said = [f"{kind}: {slower} {_longer(own, slower, quicker)}" for kind, own in both.items()]
        gaps = {kind: [difference(own[slower], own[quicker])] for kind, own in both.items()}
        what = f"{quicker} is faster than {slower} at t_C = {cost:g}"
        rows.readings(what, gaps, "; ".join(said), untuned=untuned(CONVEX, quicker, slower))
    curves, marks = {}, {}
    for name, printed in CONVEX.printed.items():
        label = f"{name}, {THEORY}" if name in IN_THEORY else name
        ours = {cost: Estimate.of(_times(found, CONVEX, cost, THEORY)[name]) for cost in COSTS}
        curves[label] = Curve.of(ours)
        marks[label] = Curve(COSTS, [time_of(CONVEX, name, printed, cost) for cost in COSTS])
    (own, first), *rivals = curves.items()
    panels = [
        Panel(
            f"{own} and {label}",
            "t_C",
            "time of an agent",
            {own: first, label: curve},
            {one: marks[one] for one in (own, label) if one in marks},
            x_log=True,
            y_log=True,
        )
        for label, curve in rivals
    ]
    note = (
        "With N_e fixed the time is a constant times the iterations, so that the settings that are "
        "best at one t_C are best at each; Table III has no tuning of its own to do."
    )
    return Outcome(rows, panels, [note])


def _longer(times: Mapping[str, list[float | None]], slower: str, quicker: str) -> str:
    """Return how many times as long one takes, and the difference with its interval."""
    means = [Estimate.of(own).mean for own in common(times[slower], times[quicker])]
    apart = difference(times[slower], times[quicker])
    return f"{means[0] / means[1]:.2f} times as long (difference {apart})"


def _thousands(found: Results, one: Comparison, algorithm: str) -> list[float | None]:
    """Return the paper's time of all active agents at t_C = 10, in thousands, by draw."""
    own = _times(found, one, 10.0, FREE)[algorithm]
    return [None if value is None else 0.1 * one.fraction * value for value in own]


def table_4(found: Results) -> Outcome:
    """Conclude Table IV: half of the agents, accelerated steps, both."""
    comparisons = (HALF, AGD, AGD_HALF)
    rows = Rows("fed-plt", UNPRINTED)
    for one in comparisons:
        rows += numbers(found, one)
    for one in comparisons:
        fastest(rows, found, one, 10.0)
    plain, accelerated = (_own(found, one, "fed-plt", FREE) for one in (CONVEX, AGD))
    rows.claim(
        "Fed-PLT: gradient steps are faster than accelerated ones",
        difference(accelerated, plain),
        printed="9 against 10",
    )
    for name, takes, printed in (
        ("fed-plt", "longer", "13.5k to 21.75k"),
        ("five-gcs", "less long", "57k to 22.5k"),
    ):
        whole, half = common(*(_thousands(found, one, name) for one in (CONVEX, HALF)))
        gap = difference(half, whole) if takes == "longer" else difference(whole, half)
        said = f"{Estimate.of(whole).mean:.3g}k to {Estimate.of(half).mean:.3g}k: {gap}k"
        rows.claim(f"{name} takes {takes} with half of the agents", gap, said, printed=printed)
    return Outcome(rows, [bars(found, one) for one in comparisons])


def table_5(found: Results) -> Outcome:
    """Conclude Table V: 100 features."""
    rows = numbers(found, LARGE)
    for cost in LARGE.costs:
        fastest(rows, found, LARGE, cost)
    for cost in LARGE.costs:
        order(rows, found, LARGE, cost)
    return Outcome(rows, [bars(found, LARGE)])


SHARED = ("data", "start", "solver-rivals", "tuned", "theory", "measure")
STUDIES = tuple(
    Study(
        f"fed-plt/table-{number}",
        title,
        partial(_cases, compared, number),
        conclude,
        settings_of("fed-plt", *SHARED, *more),
    )
    for number, title, compared, conclude, *more in (
        (
            2,
            "Fed-PLT and its rivals, convex and nonconvex",
            (CONVEX, *NONCONVEX),
            table_2,
            "draws-convex",
            "start-nonconvex",
        ),
        (
            3,
            "Fed-PLT and its rivals at other costs of communication",
            (CONVEX,),
            table_3,
            "draws-as-printed",
        ),
        (
            4,
            "Other local solvers and half of the agents",
            (HALF, AGD, AGD_HALF, CONVEX),
            table_4,
            "draws-as-printed",
        ),
        (5, "100 features", (LARGE,), table_5, "draws"),
    )
)
