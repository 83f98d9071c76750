"""Figures 2 to 8 of the FedPDM paper, on MNIST-10k and Adult with 100 agents, 30 a round.

The printed weights beta = gamma = .5 do not train (Figure 6), so the other figures have small
ones. The printed epsilons stand for a formula with an unknown constant and its top-k releases index
sets in clear: noise here has a certified account (one clipped full-batch step a round, public
duals), and sparse messages are compared without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from .fed_plt_rivals import tuned
from .statistics import Estimate, band, difference
from .study import ADULT, MNIST, Case, Curve, Options, Outcome, Panel, Results, Row, Setting, Study

DATA: Mapping[str, Mapping[str, Any]] = {
    "MNIST": {"name": "digits-by-label"},
    "Adult": {"name": "adult-by-class"},
}
STEP = {"MNIST": 0.04, "Adult": 0.01}
"""Numerators of the printed eta_t = c / sqrt(1 + t)."""
ROUNDS, FULL_ROUNDS, TAIL = 30, 200, 10
WEIGHT = 1e-4
"""Ours for beta and gamma, in place of .5."""
SHARES = (0.05, 0.1, 0.5)
FULL_SHARES = (0.05, 0.1, 0.3, 0.5, 0.7, 0.9)
DOWN = (0.5, 0.75, 0.9, 1.0)
EPSILONS: Mapping[str, tuple[float, ...]] = {"MNIST": (10.0, 20.0, 30.0), "Adult": (0.2, 0.5, 1.0)}
PAIR = {"MNIST": 20.0, "Adult": 0.5}
RIVAL_EPSILON = {"MNIST": 10.0, "Adult": 0.5}
WEIGHTS = (0.0, 0.05, 0.5, 5.0)
RIVALS = ("fed-avg", "fed-prox", "scaffold", "fed-dyn")
PRIVATE_RIVALS = ("dp-fedsgd", "scaffold", "fed-dyn")
OPEN = "noise constant, start and Q_max are not printed; other weights, digits and horizon"


def arm(
    options: Options,
    label: str,
    data: str,
    algorithm: str = "fed-pdm",
    *,
    settings: Mapping[str, Any] | None = None,
    epsilon: float = 0.0,
    whole: bool = False,
    search: Mapping[str, Any] | None = None,
    **workload: Any,
) -> list[Case]:
    """Return one curve of a figure: a case a seed, the data dealt anew for each.

    Parameters
    ----------
    settings : mapping
        Over the printed ones.
    epsilon : float
        Certified total at delta 1e-4; 0 is without noise.
    whole : bool
        One clipped full-batch step a round, as private runs have it, whatever the noise.
    """
    rounds = FULL_ROUNDS if options.full else ROUNDS
    run: dict[str, Any] = {"every": 5, "tail": TAIL}
    if whole or epsilon:
        run["participation"] = {"balanced": 0.3}
        own: dict[str, Any] = {**ONE_STEP, **kept(data, algorithm, private=True)}
    else:
        run["participation"] = {"fraction": 0.3}
        own = {**LOCAL, "step_size_base": STEP[data]}
    if algorithm == "fed-pdm" and not (whole or epsilon):
        own["rho"] = 10.0
    if algorithm in ("fed-pdm", "dp-fedsgd"):
        own["h"] = WEIGHT
    own |= settings or {}
    if epsilon:
        run["epsilon"] = epsilon
    if search is not None:
        run["search"] = {**search, "draws": 1, "workload": {"validation": True}}
    return [
        Case(
            f"{data}: {label}",
            seed,
            {**DATA[data], "folder": str(options.data_path), "draw": seed, **workload},
            algorithm,
            _private(algorithm, own) if epsilon else own,
            rounds,
            "accuracy",
            run,
        )
        for seed in options.seeds(5)
    ]


LOCAL = {
    "max_local_steps": 10,
    "batch": "sample",
    "batch_size": 10,
    "step_size_rule": "inverse-sqrt",
}
ONE_STEP = {"max_local_steps": 1, "step_size_rule": "constant", "clip": 1.0}


def _private(algorithm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    own = {**settings, "delta": 1e-4}
    return own | ({"dual": "public"} if algorithm == "fed-pdm" else {})


# ------------------------------------------------------------------ tuning


@cache
def kept(data: str, algorithm: str, *, private: bool = False) -> Mapping[str, Any]:
    """Return what the search found for Figures 4, 7 and 8 on validation examples."""
    name = f"fedpdm {data}, {'private' if private else 'plain'}"
    found: Mapping[str, Any] = tuned().get(name, {}).get(algorithm, {}).get("settings", {})
    return found


PLAIN_GRIDS: Mapping[str, Sequence[Any]] = {
    "fed-pdm": (["step_size_base", [0.1, 0.3, 0.7]], ["rho", [1.0, 10.0]]),
    "fed-avg": (["step_size_base", [0.05, 0.1, 0.2, 0.35, 0.5, 0.7]],),
    "fed-prox": (["step_size_base", [0.1, 0.3, 0.7]], ["mu", [0.1, 1.0]]),
    "scaffold": (["step_size_base", [0.05, 0.1, 0.2, 0.35, 0.5, 0.7]],),
    "fed-dyn": (["step_size_base", [0.1, 0.3, 0.7]], ["fed_dyn_alpha", [0.1, 1.0]]),
}
"""Six settings for each, without noise."""


def private_grid(data: str, algorithm: str) -> Sequence[Mapping[str, Any]]:
    """Return four settings whose model moves by ``step`` times the mean gradient a round."""
    steps = (4.0, 10.0) if data == "MNIST" else (0.3, 1.0)
    if algorithm == "fed-pdm":
        return [
            {"rho": 1.0 / step, "step_size_base": memory * step}
            for step in steps
            for memory in (0.1, 0.5)
        ]
    knob, values = {
        "dp-fedsgd": ("momentum", (0.0, 0.9)),
        "scaffold": ("server_step_size", (1.0, 0.3)),
        "fed-dyn": ("fed_dyn_alpha", (0.1, 1.0)),
    }[algorithm]
    return [
        {"step_size_base": step * (1.0 - value if knob == "momentum" else 1.0), knob: value}
        for step in steps
        for value in values
    ]


# ------------------------------------------------------------------ judging


def scores(found: Results, label: str) -> list[float]:
    """Return the accuracies of an arm, in per cent, by seed."""
    return [100.0 * result["value"] for result in found[label]]


def said(found: Results, labels: Sequence[str]) -> str:
    """Return the mean accuracies of arms."""
    return ", ".join(str(Estimate.of(scores(found, label))) for label in labels) + " %"


def rising(found: Results, what: str, labels: Sequence[str], unprinted: str = OPEN) -> Row:
    """Return the claim that accuracies do not fall along the labels, and rise over all of them."""
    steps = [difference(scores(found, b), scores(found, a)) for a, b in pairwise(labels)]
    whole = difference(scores(found, labels[-1]), scores(found, labels[0]))
    falls = [step for step in steps if step.high < 0]
    ours = said(found, labels)
    return Row.claim(what, "yes", falls[0] if falls else whole, ours=ours, unprinted=unprinted)


def above(found: Results, what: str, ours: str, other: str, unprinted: str = OPEN) -> Row:
    """Return the claim that one arm is above another, paired by seed."""
    gap = difference(scores(found, ours), scores(found, other))
    text = f"{said(found, [ours])[:-2]} against {said(found, [other])}"
    return Row.claim(what, "yes", gap, ours=f"{text}: {gap} points", unprinted=unprinted)


def panels(found: Results) -> list[Panel]:
    """Return accuracies by round, a panel a data set."""
    return [
        Panel(
            data,
            "round",
            "test accuracy",
            {
                label.split(": ", 1)[1]: Curve(
                    results[0]["rounds"],
                    *(one.tolist() for one in band([result["course"] for result in results])),
                )
                for label, results in found.items()
                if label.startswith(data)
            },
        )
        for data in DATA
    ]


def _each(plan: Callable[[Options, str], list[Case]]) -> Callable[[Options], Sequence[Case]]:
    return lambda options: [case for data in DATA for case in plan(options, data)]


# ------------------------------------------------------------------ the figures


def _uplink(options: Options, data: str) -> list[Case]:
    shares = FULL_SHARES if options.full else SHARES
    sparse = [
        case
        for kind in ("top-k", "rand-k")
        for share in shares
        for case in arm(
            options, f"{kind} {share:g}", data, settings={"sparsifier": kind, "alpha_u": share}
        )
    ]
    return [*sparse, *arm(options, "dense", data)]


def figure_2(found: Results) -> Outcome:
    """Conclude Figure 2: uplink compression."""
    rows = []
    for data in DATA:
        own = [label for label in found if label.startswith(data)]
        for kind in ("top-k", "rand-k"):
            labels = [label for label in own if kind in label] + [f"{data}: dense"]
            rows.append(rising(found, f"{data}: accuracy rises with alpha_U, {kind}", labels))
        for share in SHARES:
            rows.append(
                above(
                    found,
                    f"{data}: top-k above rand-k at {share:g}",
                    f"{data}: top-k {share:g}",
                    f"{data}: rand-k {share:g}",
                )
            )
    lost = {
        data: difference(scores(found, f"{data}: dense"), scores(found, f"{data}: top-k 0.05"))
        for data in DATA
    }
    gap = lost["MNIST"].minus(lost["Adult"])
    text = f"{lost['MNIST']} against {lost['Adult']} points lost at .05"
    rows.append(Row.claim("MNIST loses more than Adult", "yes", gap, ours=text, unprinted=OPEN))
    return Outcome(rows, panels(found))


def _downlink(options: Options, data: str) -> list[Case]:
    return [
        case
        for share in DOWN
        for case in arm(
            options,
            f"alpha_D {share:g}",
            data,
            settings={"sparsifier": "top-k", "alpha_u": 0.5}
            | ({"alpha_d": share} if share < 1 else {}),
        )
    ]


def figure_3(found: Results) -> Outcome:
    """Conclude Figure 3: downlink compression at alpha_U = .5, as printed."""
    rows = [
        rising(
            found,
            f"{data}: accuracy rises with alpha_D",
            [f"{data}: alpha_D {share:g}" for share in DOWN],
        )
        for data in DATA
    ]
    lost = {
        data: difference(scores(found, f"{data}: alpha_D 1"), scores(found, f"{data}: alpha_D 0.5"))
        for data in DATA
    }
    text = f"{lost['MNIST']} against {lost['Adult']} points lost at .5"
    gap = lost["MNIST"].minus(lost["Adult"])
    rows.append(
        Row.claim("MNIST is more sensitive than Adult", "yes", gap, ours=text, unprinted=OPEN)
    )
    return Outcome(rows, panels(found))


def _privacy(options: Options, data: str) -> list[Case]:
    noisy = [
        case
        for epsilon in EPSILONS[data]
        for case in arm(options, f"epsilon {epsilon:g}", data, epsilon=epsilon)
    ]
    return [*noisy, *arm(options, "without noise", data, whole=True)]


def figure_4(found: Results) -> Outcome:
    """Conclude Figure 4: total epsilons, and no noise at the same settings."""
    rows = []
    for data in DATA:
        labels = [f"{data}: epsilon {epsilon:g}" for epsilon in EPSILONS[data]]
        rows.append(rising(found, f"{data}: accuracy rises with epsilon", labels))
        rows.append(
            above(
                found,
                f"{data}: without noise above epsilon {EPSILONS[data][0]:g}",
                f"{data}: without noise",
                labels[0],
            )
        )
        rows.append(
            above(
                found,
                f"{data}: without noise above epsilon {EPSILONS[data][-1]:g}",
                f"{data}: without noise",
                labels[-1],
            )
        )
    return Outcome(rows, panels(found))


def _beta(options: Options, data: str) -> list[Case]:
    return [
        case
        for loss, weights in (("(41)", WEIGHTS), ("softmax", (0.0, 0.5)))
        for weight in weights
        for case in arm(options, f"beta {weight:g}, {loss}", data, loss=loss, beta=weight)
    ]


def figure_5(found: Results) -> Outcome:
    """Conclude Figure 5: the weight of the nonconvex regulariser, on both losses."""
    rows = []
    for data in DATA:
        labels = [f"{data}: beta {weight:g}, (41)" for weight in reversed(WEIGHTS)]
        rows.append(rising(found, f"{data}: the smaller beta the better, loss (41)", labels))
        both = [f"{data}: beta {weight:g}, softmax" for weight in (0.5, 0.0)]
        rows.append(
            rising(found, f"{data}: the smaller beta the better, cross entropy (ours)", both)
        )
    return Outcome([row.beyond() if "ours" in row.what else row for row in rows], panels(found))


def _gamma(options: Options, data: str) -> list[Case]:
    plain = [
        case
        for loss, weights in (("softmax", WEIGHTS), ("(41)", (0.0, 0.5)))
        for weight in weights
        for case in arm(
            options, f"gamma {weight:g}, {loss}", data, settings={"h": weight}, loss=loss
        )
    ]
    noisy = [
        case
        for weight in (0.0, 0.5)
        for case in arm(
            options,
            f"gamma {weight:g}, epsilon {PAIR[data]:g}",
            data,
            settings={"h": weight},
            epsilon=PAIR[data],
        )
    ]
    printed = arm(
        options, "as printed", data, settings={"h": 0.5}, loss="(41)", beta=0.5, start_scale=1.0
    )
    return [*plain, *noisy, *printed]


def figure_6(found: Results) -> Outcome:
    """Conclude Figure 6: the weight of the l1 norm, on both losses, and the printed defaults."""
    rows = []
    for data in DATA:
        labels = [f"{data}: gamma {weight:g}, softmax" for weight in reversed(WEIGHTS)]
        rows.append(
            rising(found, f"{data}, no noise: the smaller gamma the better, cross entropy", labels)
        )
        labels = [f"{data}: gamma {weight:g}, (41)" for weight in (0.5, 0.0)]
        rows.append(
            rising(found, f"{data}, no noise: the smaller gamma the better, loss (41)", labels)
        )
        tail = f"epsilon {PAIR[data]:g}"
        labels = [f"{data}: gamma {weight:g}, {tail}" for weight in (0.0, 0.5)]
        rows.append(rising(found, f"{data}, noise: the larger gamma the better", labels))
        rows.append(
            above(
                found,
                f"{data}: the printed weights (.5, .5), loss (41), start N(0, I) train as well as "
                "gamma = 0",
                f"{data}: as printed",
                f"{data}: gamma 0, (41)",
            )
        )
    return Outcome(rows, panels(found))


def _plain_rival(options: Options, data: str, algorithm: str, **settings: Any) -> list[Case]:
    own = {**kept(data, algorithm), **settings}
    search = {"axes": list(PLAIN_GRIDS[algorithm])} if options.full else None
    return arm(options, algorithm, data, algorithm, settings=own, search=search)


def _rivals(options: Options, data: str) -> list[Case]:
    plain = [
        case
        for algorithm in ("fed-pdm", *RIVALS)
        for case in _plain_rival(options, data, algorithm)
    ]
    epsilon = RIVAL_EPSILON[data]
    noisy = []
    for name in ("fed-pdm", *PRIVATE_RIVALS):
        search = {"points": list(private_grid(data, name))} if options.full else None
        label = f"{name}, epsilon {epsilon:g}"
        noisy += arm(options, label, data, name, epsilon=epsilon, search=search)
    return [*plain, *noisy]


EQUAL = "alike tuned on validation examples; the paper prints no settings of a rival; horizon"


def figure_7(found: Results) -> Outcome:
    """Conclude Figure 7: rivals, tuned alike, without noise and at one certified epsilon."""
    rows = []
    for data in DATA:
        for name in RIVALS:
            what = f"{data}: FedPDM above {name}"
            rows.append(above(found, what, f"{data}: fed-pdm", f"{data}: {name}", EQUAL))
        tail = f"epsilon {RIVAL_EPSILON[data]:g}"
        for name in PRIVATE_RIVALS:
            rows.append(
                above(
                    found,
                    f"{data}: FedPDM above {name}, {tail}",
                    f"{data}: fed-pdm, {tail}",
                    f"{data}: {name}, {tail}",
                    EQUAL,
                )
            )
        for name in ("fed-pdm", "scaffold", "fed-dyn"):
            what = f"{data}: {name} loses under noise"
            rows.append(above(found, what, f"{data}: {name}", f"{data}: {name}, {tail}", EQUAL))
    return Outcome(rows, panels(found), [_chosen(found, data) for data in DATA])


def _chosen(found: Results, data: str) -> str:
    """Say which settings were tuned to, and which of them lie at an end of their grid."""
    said = []
    for name, axes in PLAIN_GRIDS.items():
        settings = found[f"{data}: {name}"][0]["settings"]
        own = [
            f"{key.replace('_', ' ')} {settings[key]:g}"
            + (" (end of grid)" if len(grid) > 2 and settings[key] in (grid[0], grid[-1]) else "")
            for key, grid in axes
        ]
        said.append(f"{name} {', '.join(own)}")
    return f"{data}, without noise, tuned to: {'; '.join(said)}."


SPARSE = ((0.1, 1.0), (0.5, 0.75))


def _sparse_rivals(options: Options, data: str) -> list[Case]:
    cases = []
    for up, down in SPARSE:
        settings: dict[str, Any] = {**kept(data, "fed-pdm"), "sparsifier": "top-k", "alpha_u": up}
        settings |= {"alpha_d": down} if down < 1 else {}
        cases += arm(options, f"fed-pdm {up:g}/{down:g}", data, settings=settings)
        for name in RIVALS[:2]:
            own = {**kept(data, name), "share": up}
            cases += arm(options, f"{name} {up:g}", data, name, settings=own)
    return cases


def figure_8(found: Results) -> Outcome:
    """Conclude Figure 8: sparse messages, for those that have them."""
    rows = [
        above(
            found,
            f"{data}: FedPDM above {name} at alpha_U {up:g}",
            f"{data}: fed-pdm {up:g}/{down:g}",
            f"{data}: {name} {up:g}",
            EQUAL,
        )
        for data in DATA
        for up, down in SPARSE
        for name in RIVALS[:2]
    ]
    return Outcome(rows, panels(found))


# ------------------------------------------------------------------ settings

PARTITION = Setting(
    "data",
    "MNIST 60,000, 600 a client of 4 labels; Adult, 325 of one class; n = 785 and 81",
    "10,000 digits, 100 a client of 4 random labels; Adult as printed; dealt anew for each seed",
    "10,000 are at hand",
)
LOSS = Setting(
    "loss",
    "(41): ln(1 + exp(-Tr XY)), one-hot labels",
    "softmax cross entropy where a row does not say (41)",
    "(41) learns one centroid a class; Figures 5 and 6 have both",
)
WEIGHT_SETTING = Setting(
    "beta, gamma",
    ".5 and .5",
    "1e-4 and 1e-4",
    "the printed ones do not train: Figure 6 has them as printed",
)
KNOWN = Setting("K, b, rho, eta_t", "30, 10, 10, .04 or .01 / sqrt(1 + t)", "as printed")
LOCAL_STEPS = Setting("local steps", "until nu = .01; Q_max not printed", "10", "not printed")
BEGIN = Setting("start", "five random ones; law not printed", "zero (as printed: N(0, I))")
WITHOUT = Setting(
    "noise",
    "epsilon .5 (Adult), 20 (MNIST) of (36)",
    "none",
    "(36) has an unknown constant; noised top-k releases its index set in clear",
)
CERTIFIED = Setting(
    "noise",
    "epsilon of (36), an asymptotic formula with an unknown constant c_0",
    "certified totals at delta 1e-4: one clipped full-batch step a round, balanced turns",
    "unknown constant; data-dependent Q",
)
LENGTH = Setting("rounds", "200", f"{ROUNDS} (200 with `--full`); mean of the last {TAIL}", "time")
SEEDS = Setting("repetitions", "5 starts", "5 seeds: other data, batches, participants, noise")
ALIKE = Setting(
    "tuning",
    "not said",
    "6 settings for each without noise, 4 with, on one draw, by accuracy on a fifth of the "
    "training examples that no agent has",
    "no settings of rivals are printed",
)
BASE = (PARTITION, LOSS, WEIGHT_SETTING, KNOWN, LOCAL_STEPS, BEGIN, LENGTH, SEEDS)
STUDIES = tuple(
    Study(
        f"fedpdm/figure-{number}",
        f"FedPDM: {title}",
        _each(plan),
        conclude,
        (*BASE, *more),
        MNIST + ADULT,
    )
    for number, title, plan, conclude, more in (
        (2, "uplink compression", _uplink, figure_2, (WITHOUT,)),
        (3, "downlink compression", _downlink, figure_3, (WITHOUT,)),
        (4, "accuracy and privacy", _privacy, figure_4, (CERTIFIED, ALIKE)),
        (5, "weight of the nonconvex regulariser", _beta, figure_5, (WITHOUT,)),
        (6, "weight of the l1 norm", _gamma, figure_6, (CERTIFIED,)),
        (7, "rivals", _rivals, figure_7, (CERTIFIED, ALIKE)),
        (8, "rivals with sparse messages", _sparse_rivals, figure_8, (WITHOUT, ALIKE)),
    )
)
