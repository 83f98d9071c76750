"""Figures 2 to 8 of the FedPDM paper, on MNIST-10k and Adult with 100 agents, 30 a round.

The printed weights beta = gamma = .5 do not train (Figure 6), so the other figures have small
ones. The printed epsilons stand for a formula with an unknown constant and its top-k releases index
sets in clear: noise here has a certified account (one clipped full-batch step a round, public
duals), and sparse messages are compared without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from .rule import Gap, Side
from .search import ends
from .statistics import Estimate, against, difference
from .study import (
    ADULT,
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
    Study,
    Verdict,
    further_seeds,
    said_of,
    settings_of,
    tuned,
)

DATA = {"MNIST": "digits-by-label", "Adult": "adult-by-class"}
STEP = {"MNIST": 0.04, "Adult": 0.01}
"""Numerators of the printed eta_t = c / sqrt(1 + t)."""
ROUNDS, FULL_ROUNDS, TAIL = 30, 200, 10
SEEDS = 5
REPETITIONS = {4: 20}
"""Of the figures that have more than the paper's five, set before they were played."""
WEIGHT = 1e-4
"""Ours for beta and gamma, in place of .5."""
SHARES = (0.05, 0.1, 0.5)
FULL_SHARES = (0.05, 0.1, 0.3, 0.5, 0.7, 0.9)
DOWN = (0.5, 0.75, 0.9, 1.0)
EPSILONS: Mapping[str, tuple[float, ...]] = {"MNIST": (10.0, 20.0, 30.0), "Adult": (0.2, 0.5, 1.0)}
NOISY_GAMMA = {"MNIST": 5.0, "Adult": 0.1}
"""Totals of Figure 6."""
RIVAL_EPSILON = {"MNIST": 10.0, "Adult": 0.5}
WEIGHTS = (0.0, 0.05, 0.5, 5.0)
RIVALS = ("fed-avg", "fed-prox", "scaffold", "fed-dyn")
PRIVATE_RIVALS = ("dp-fedsgd", "scaffold", "fed-dyn")
IN_THEORY = "scaffold within its theory"
SCAFFOLD_STEP = 0.3 ** (2 / 3) / (24 * 10)
"""Its longest local step, in units of 1/L, for nonconvex losses, K / N = .3 and Q = 10."""
SPARSE = ((0.1, 1.0), (0.5, 0.75))
OPEN = "noise constant, start and Q_max are not printed; other weights, digits and horizon"
EQUAL = "alike tuned on validation examples; the paper prints no settings of a rival; horizon"
BYTES = "ours counts index sets and headers too, the paper 32 bits a value"
LOCAL = {
    "max_local_steps": 10,
    "batch": "sample",
    "batch_size": 10,
    "step_size_rule": "inverse-sqrt",
}
ONE_STEP: Mapping[str, Any] = {"step_size_rule": "constant", "clip": 1.0}
ON = {"softmax": "", "(41)": ", (41)"}
"""What a label says of the loss."""
Arms = Mapping[str, Mapping[str, Any]]
"""Curves of a figure: what `arm` is given, by label."""


def arm(
    options: Options,
    label: str,
    data: str,
    algorithm: str = "fed-pdm",
    *,
    settings: Mapping[str, Any] | None = None,
    epsilon: float = 0.0,
    whole: bool = False,
    over_smoothness: float = 0.0,
    search: Mapping[str, Any] | None = None,
    loss: str = "softmax",
    repetitions: int = SEEDS,
    further: int = 0,
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
    over_smoothness : float
        Constant step in units of 1/L, in place of the printed one.
    search : mapping
        What is tried in a full run, see `search`.
    repetitions, further : int
        Of a short run; the paper's rounds are played with its five.
    """
    run: dict[str, Any] = {"every": 5, "tail": TAIL}
    if whole or epsilon:
        run["participation"] = {"balanced": 0.3}
        own = {**ONE_STEP, **tuned("fedpdm", f"{data}, private{ON[loss]}", algorithm)}
        if algorithm != "dp-fedsgd":  # it has no other number of steps
            own["max_local_steps"] = 1
    else:
        run["participation"] = {"fraction": 0.3}
        own = {**LOCAL, "step_size_base": STEP[data]}
        if algorithm == "fed-pdm":
            own["rho"] = 10.0
    if algorithm in ("fed-pdm", "dp-fedsgd"):
        own["h"] = WEIGHT
    own |= settings or {}
    if over_smoothness:
        run["over-smoothness"] = {"step_size_base": over_smoothness}
        own["step_size_rule"] = "constant"
    if epsilon:
        run["epsilon"] = epsilon
        own["delta"] = 1e-4
        if algorithm == "fed-pdm":
            own["dual"] = "public"
    if search and options.full:
        run["search"] = {**search, "draws": 1, "workload": {"validation": True}}
    folder = str(options.data_path)
    return [
        Case(
            f"{data}: {label}",
            seed,
            {"name": DATA[data], "folder": folder, "draw": seed, "loss": loss, **workload},
            algorithm,
            {**own, "noise_seed": seed} if epsilon else own,
            FULL_ROUNDS if options.long else ROUNDS,
            "accuracy",
            run,
        )
        for seed in options.seeds(SEEDS, SEEDS if options.long else repetitions, further)
    ]


def _cases(
    arms: Callable[[str, bool], Arms], number: int, repetitions: int, options: Options
) -> Sequence[Case]:
    further = further_seeds(f"fedpdm/figure-{number}")
    return [
        case
        for data in DATA
        for label, asked in arms(data, options.full).items()
        for case in arm(
            options,
            label,
            data,
            repetitions=repetitions,
            further=further.get(f"{data}: {label}", 0),
            **asked,
        )
    ]


# ------------------------------------------------------------------ judging


class Claims(Rows):
    """Claims about the accuracies of arms, in per cent and paired by seed."""

    def __init__(self, found: Results, changed: str = OPEN) -> None:
        super().__init__("fedpdm", changed)
        self.found = found

    def scores(self, data: str, label: str) -> list[float]:
        """Return the accuracies of an arm by seed."""
        return [100.0 * result["value"] for result in self.found[f"{data}: {label}"]]

    def said(self, data: str, labels: Sequence[str]) -> str:
        """Return the mean accuracies of arms."""
        return ", ".join(str(Estimate.of(self.scores(data, label))) for label in labels)

    def rising(self, data: str, what: str, labels: Sequence[str]) -> None:
        """Add: accuracies do not fall along the labels, and rise over all of them."""
        own = [self.scores(data, label) for label in labels]
        steps = [difference(after, before) for before, after in pairwise(own)]
        over_all = difference(own[-1], own[0])
        falls = [step for step in steps if Gap(step).side(self.entries * len(own)) is Side.OUTSIDE]
        self.claim(f"{data}{what}", (falls or [over_all])[0], f"{self.said(data, labels)} %")

    def above(self, data: str, what: str, ours: str, other: str, untuned: str = "") -> None:
        """Add: one arm is above another; ``untuned`` says whose settings end their grid."""
        pair = self.scores(data, ours), self.scores(data, other)
        gap = difference(*pair)
        text = f"{against(*pair)}: {gap} points"
        self.claim(f"{data}{what}", gap, text, untuned=untuned)

    def more_lost(self, what: str, best: str, worst: str, at: str) -> None:
        """Add: MNIST loses more from one arm to another than Adult."""
        lost = {
            data: difference(self.scores(data, best), self.scores(data, worst)) for data in DATA
        }
        text = f"{lost['MNIST']} against {lost['Adult']} points lost at {at}"
        self.claim(what, lost["MNIST"].minus(lost["Adult"]), text)

    def outcome(self, *notes: str) -> Outcome:
        """Return the rows, with a panel for each of what comes after the names of arms."""
        groups: dict[str, dict[str, list[Result]]] = {}
        for label, results in self.found.items():
            data, _, arm = label.partition(": ")
            name, _, under = arm.partition(", ")
            groups.setdefault(f"{data}, {under}" if under else data, {})[name] = results
        return Outcome(self, [_panel(title, own) for title, own in groups.items()], notes)


DENSE = ("dense", "alpha_D 1")
"""Names of the arm without compression."""


def _panel(title: str, arms: Mapping[str, list[Result]]) -> Panel:
    """Return the courses of arms, or where they lie on each other their differences to dense."""
    curves = {name: Curve.course(results) for name, results in arms.items()}
    reference = next((name for name in DENSE if name in arms), "")
    dense = curves.get(reference)
    if dense is None or len(curves) == 1 or not dense.low:
        return Panel(title, "round", "test accuracy", curves)
    width = max(curve.high[-1] - curve.low[-1] for curve in curves.values())
    if any(abs(curve.y[-1] - dense.y[-1]) > width for curve in curves.values()):
        return Panel(title, "round", "test accuracy", curves)
    gaps = {
        name: Curve.course([_gap(*pair) for pair in zip(results, arms[reference], strict=False)])
        for name, results in arms.items()
        if name != reference
    }
    return Panel(title, "round", f"test accuracy, minus {reference}", gaps)


def _gap(ours: Result, other: Result) -> Result:
    """Return the course of a difference between two runs of one seed."""
    if "course" not in ours or "course" not in other:
        return {}
    course = [a - b for a, b in zip(ours["course"], other["course"], strict=True)]
    return {**ours, "course": course}


# ------------------------------------------------------------------ the figures


def _uplink(data: str, full: bool) -> Arms:
    sparse = {
        f"{kind} {share:g}": {"settings": {"sparsifier": kind, "alpha_u": share}}
        for kind in ("top-k", "rand-k")
        for share in (FULL_SHARES if full else SHARES)
    }
    return {**sparse, "dense": {}}


def figure_2(found: Results) -> Outcome:
    """Conclude Figure 2: uplink compression."""
    rows = Claims(found)
    for data in DATA:
        for kind in ("top-k", "rand-k"):
            shares = [label for label in found if label.startswith(f"{data}: {kind}")]
            labels = [*(label.removeprefix(f"{data}: ") for label in shares), "dense"]
            rows.rising(data, f": accuracy rises with alpha_U, {kind}", labels)
        for share in SHARES:
            pair = f"top-k {share:g}", f"rand-k {share:g}"
            rows.above(data, f": top-k above rand-k at {share:g}", *pair)
        for share in SHARES:
            sent, dense = (found[f"{data}: {label}"] for label in (f"top-k {share:g}", "dense"))
            ours = [one["bytes"] / all_["bytes"] for one, all_ in zip(sent, dense, strict=False)]
            what = f"{data}: uplink of top-k {share:g} over the dense one"
            rows.append(Row(what, share, Estimate.of(ours), Verdict.CONSTRUCTION, BYTES))
    rows.more_lost("MNIST loses more than Adult", "dense", "top-k 0.05", ".05")
    return rows.outcome()


def _downlink(data: str, full: bool) -> Arms:
    top = {"sparsifier": "top-k", "alpha_u": 0.5}
    return {
        f"alpha_D {share:g}{named}": {
            "settings": {**top, "alpha_d": share} if share < 1 else top,
            "loss": loss,
        }
        for loss, named in ON.items()
        for share in DOWN
    }


def figure_3(found: Results) -> Outcome:
    """Conclude Figure 3: downlink compression at alpha_U = .5, as printed."""
    rows = Claims(found)
    for data in DATA:
        for named in ON.values():
            labels = [f"alpha_D {share:g}{named}" for share in DOWN]
            rows.rising(data, f": accuracy rises with alpha_D{named}", labels)
    rows.more_lost("MNIST is more sensitive than Adult", "alpha_D 1", "alpha_D 0.5", ".5")
    return rows.outcome()


def _privacy(data: str, full: bool) -> Arms:
    arms: dict[str, Mapping[str, Any]] = {}
    for loss, named in ON.items():
        for epsilon in EPSILONS[data]:
            arms[f"epsilon {epsilon:g}{named}"] = {"epsilon": epsilon, "loss": loss}
        arms[f"without noise{named}"] = {"whole": True, "loss": loss}
    return arms


def figure_4(found: Results) -> Outcome:
    """Conclude Figure 4: total epsilons, and no noise at the same settings."""
    rows = Claims(found)
    for data in DATA:
        for named in ON.values():
            labels = [f"epsilon {epsilon:g}{named}" for epsilon in EPSILONS[data]]
            rows.rising(data, f": accuracy rises with epsilon{named}", labels)
            for label in (labels[0], labels[-1]):
                rows.above(data, f": without noise above {label}", f"without noise{named}", label)
    return rows.outcome()


def _beta(data: str, full: bool) -> Arms:
    return {
        f"beta {weight:g}, {loss}": {"loss": loss, "beta": weight}
        for loss, weights in (("(41)", WEIGHTS), ("softmax", (0.0, 0.5)))
        for weight in weights
    }


def figure_5(found: Results) -> Outcome:
    """Conclude Figure 5: the weight of the nonconvex regulariser, on both losses."""
    rows = Claims(found)
    for data in DATA:
        labels = [f"beta {weight:g}, (41)" for weight in reversed(WEIGHTS)]
        rows.rising(data, ": the smaller beta the better, loss (41)", labels)
        labels = ["beta 0.5, softmax", "beta 0, softmax"]
        rows.rising(data, ": the smaller beta the better, cross entropy (ours)", labels)
        rows.beyond()
    return rows.outcome()


def _gamma(data: str, full: bool) -> Arms:
    plain = {
        f"gamma {weight:g}, {loss}": {"settings": {"h": weight}, "loss": loss}
        for loss, weights in (("softmax", WEIGHTS), ("(41)", (0.0, 0.5)))
        for weight in weights
    }
    noisy = {
        f"gamma {weight:g}, epsilon {NOISY_GAMMA[data]:g}": {
            "settings": {"h": weight},
            "epsilon": NOISY_GAMMA[data],
        }
        for weight in (0.0, 0.5)
    }
    printed = {"settings": {"h": 0.5}, "loss": "(41)", "beta": 0.5, "start_scale": 1.0}
    return {**plain, **noisy, "as printed, (41)": printed}


def figure_6(found: Results) -> Outcome:
    """Conclude Figure 6: the weight of the l1 norm, on both losses, and the printed defaults."""
    rows = Claims(found)
    for data in DATA:
        labels = [f"gamma {weight:g}, softmax" for weight in reversed(WEIGHTS)]
        rows.rising(data, ", no noise: the smaller gamma the better, cross entropy", labels)
        labels = ["gamma 0.5, (41)", "gamma 0, (41)"]
        rows.rising(data, ", no noise: the smaller gamma the better, loss (41)", labels)
        labels = [f"gamma {weight:g}, epsilon {NOISY_GAMMA[data]:g}" for weight in (0.0, 0.5)]
        rows.rising(data, ", noise: the larger gamma the better", labels)
        what = ": the printed weights (.5, .5), loss (41), start N(0, I) train as well as gamma = 0"
        rows.above(data, what, "as printed, (41)", "gamma 0, (41)")
        rows.beyond()
    return rows.outcome()


GRIDS: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]] = said_of("fedpdm")["grids"]
"""What was tried for each, by comparison; a search goes on where the best is at an end."""


def untuned(comparison: str, *algorithms: str) -> str:
    """Say which settings are the last of their grid; empty where none is."""
    at = [
        f"{name}'s {key.replace('_', ' ')} is the end of its grid"
        for name in algorithms
        for key in ends(tuned("fedpdm", comparison, name), GRIDS[comparison][name])
    ]
    return "; ".join(at)


def _rivals(data: str, full: bool) -> Arms:
    arms: dict[str, Mapping[str, Any]] = {}
    epsilon = RIVAL_EPSILON[data]
    for loss, named in ON.items():
        for name, grid in GRIDS[f"{data}{named}"].items():
            arms[f"{name}{named}"] = {
                "algorithm": name,
                "settings": tuned("fedpdm", f"{data}{named}", name),
                "search": {"grid": grid},
                "loss": loss,
            }
        arms[f"{IN_THEORY}{named}"] = {
            "algorithm": "scaffold",
            "over_smoothness": SCAFFOLD_STEP,
            "loss": loss,
        }
        for name in ("fed-pdm", *PRIVATE_RIVALS):
            arms[f"{name}, epsilon {epsilon:g}{named}"] = {
                "algorithm": name,
                "epsilon": epsilon,
                "search": {"grid": GRIDS[f"{data}, private{named}"][name]},
                "loss": loss,
            }
    return arms


def figure_7(found: Results) -> Outcome:
    """Conclude Figure 7: rivals, tuned alike, without noise and at one certified epsilon."""
    rows = Claims(found, EQUAL)
    for data in DATA:
        tail = f", epsilon {RIVAL_EPSILON[data]:g}"
        for on in ON.values():
            plain, private = f"{data}{on}", f"{data}, private{on}"
            for name in RIVALS:
                at = untuned(plain, "fed-pdm", name)
                rows.above(data, f": FedPDM above {name}{on}", f"fed-pdm{on}", f"{name}{on}", at)
            theory = f"{IN_THEORY}{on}"
            rows.above(data, f": FedPDM above {theory}", f"fed-pdm{on}", theory)
            rows.beyond()
            for name in PRIVATE_RIVALS:
                pair = f"fed-pdm{tail}{on}", f"{name}{tail}{on}"
                at = untuned(private, "fed-pdm", name)
                rows.above(data, f": FedPDM above {name}{tail}{on}", *pair, at)
            for name in ("fed-pdm", "scaffold", "fed-dyn"):
                what = f": {name} loses under noise{on}"
                at = "; ".join(filter(None, (untuned(plain, name), untuned(private, name))))
                rows.above(data, what, f"{name}{on}", f"{name}{tail}{on}", at)
    return rows.outcome(*map(_chosen, GRIDS))


def _chosen(comparison: str) -> str:
    """Say which settings were best, and what was tried."""
    said = []
    for name, grid in GRIDS[comparison].items():
        settings = tuned("fedpdm", comparison, name)
        own = [
            f"{key.replace('_', ' ')} {settings[key]:g} ({min(axis):g} to {max(axis):g})"
            for key, axis in grid.items()
        ]
        said.append(f"{name} {', '.join(own)}")
    return f"{comparison}, tuned to: {'; '.join(said)}."


def _sparse_rivals(data: str, full: bool) -> Arms:
    arms: dict[str, Mapping[str, Any]] = {}
    for up, down in SPARSE:
        ours = {**tuned("fedpdm", data, "fed-pdm"), "sparsifier": "top-k", "alpha_u": up}
        arms[f"fed-pdm {up:g}/{down:g}"] = {
            "settings": {**ours, "alpha_d": down} if down < 1 else ours
        }
        for name in RIVALS[:2]:
            settings = {**tuned("fedpdm", data, name), "share": up}
            arms[f"{name} {up:g}"] = {"algorithm": name, "settings": settings}
    return arms


def figure_8(found: Results) -> Outcome:
    """Conclude Figure 8: sparse messages, for those that have them."""
    rows = Claims(found, f"tuned without sparse messages; {EQUAL}")
    for data in DATA:
        for up, down in SPARSE:
            for name in RIVALS[:2]:
                what = f": FedPDM above {name} at alpha_U {up:g}"
                at = untuned(data, "fed-pdm", name)
                rows.above(data, what, f"fed-pdm {up:g}/{down:g}", f"{name} {up:g}", at)
    return rows.outcome()


BASE = ("data", "loss", "weights", "known", "local-steps", "start", "length", "seeds")
STUDIES = tuple(
    Study(
        f"fedpdm/figure-{number}",
        f"FedPDM: {title}",
        partial(_cases, arms, number, REPETITIONS.get(number, SEEDS)),
        conclude,
        settings_of(
            "fedpdm",
            *BASE,
            *more,
            rounds=ROUNDS,
            tail=TAIL,
            seeds=REPETITIONS.get(number, SEEDS),
        ),
        MNIST + ADULT,
    )
    for number, title, arms, conclude, *more in (
        (2, "uplink compression", _uplink, figure_2, "without"),
        (3, "downlink compression", _downlink, figure_3, "without"),
        (4, "accuracy and privacy", _privacy, figure_4, "certified", "alike"),
        (5, "weight of the nonconvex regulariser", _beta, figure_5, "without"),
        (6, "weight of the l1 norm", _gamma, figure_6, "certified"),
        (7, "rivals", _rivals, figure_7, "certified", "alike", "theory"),
        (
            8,
            "rivals with sparse messages",
            _sparse_rivals,
            figure_8,
            "without",
            "alike",
            "no-theory",
        ),
    )
)
