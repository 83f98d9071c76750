"""Figures 2 to 8 of the FedPDM paper, on MNIST-10k and Adult with 100 agents, 30 a round.

The paper's epsilons stand for an asymptotic formula with an unknown constant, and its top-k
releases index sets in clear. Where it has noise, the runs here have a certified account instead:
one clipped full-batch step a round, public duals, delta 1e-4, epsilons at which the accuracy lies
where the paper's curves do. Sparse messages are compared without noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .fed_pdm_cases import Tuned, above, by_data, case_of, outcome, rising, run_case
from .study import ADULT, MNIST, Case, Entry, Options, Outcome, Result, Study

DATA = ("MNIST", "Adult")
SHARES = (0.05, 0.1, 0.5)
DOWN = (0.1, 0.5, 0.75, 1.0)
EPSILONS: Mapping[str, tuple[float, ...]] = {"MNIST": (1.0, 5.0, 20.0), "Adult": (0.1, 0.5, 1.0)}
PAIR: Mapping[str, float] = {"MNIST": 5.0, "Adult": 0.5}
"""Epsilon of the figures that compare one private case with one that is not."""
WEIGHTS = (0.0, 0.05, 0.5, 5.0)
RIVALS = ("fed-avg", "fed-prox", "scaffold", "fed-dyn")
NOISY: Mapping[str, tuple[float, Mapping[str, Tuned]]] = {
    "MNIST": (
        5.0,
        {
            "fed-pdm": (10.0, 1.0, 0.1),
            "dp-fedsgd": (10.0, 1.0, 0.9),
            "scaffold": (10.0, 0.5, 1.0),
            "fed-dyn": (4.0, 1.0, 0.1),
        },
    ),
    "Adult": (
        1.0,
        {
            "fed-pdm": (1.0, 1.0, 0.5),
            "dp-fedsgd": (1.0, 1.0, 0.9),
            "scaffold": (1.0, 1.0, 1.0),
            "fed-dyn": (0.3, 0.5, 0.1),
        },
    ),
}
"""Epsilon, and for each method the best of its eight settings there (docs/results/fed-pdm.md)."""
CANNOT_TRAIN = {
    "beta": "it trains, but its pull towards zero is stronger than the data's",
    "gamma": "at weights this large zero is a local minimum: nothing can train",
}


def uplink_cases(options: Options) -> Sequence[Case]:
    """Return the cases of Figure 2: shares of the uplink, by two sparsifiers."""
    return [
        *(
            case_of(options, f"{kind} {share:g}", data, sparsifier=kind, alpha_u=share)
            for data in DATA
            for kind in ("top-k", "rand-k")
            for share in SHARES
        ),
        *(case_of(options, "dense", data) for data in DATA),
    ]


def uplink(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude Figure 2."""
    found = by_data(cases, results)
    entries = []
    for data in DATA:
        score = {label: one["accuracy"] for label, one in found[data].items()}
        for kind in ("top-k", "rand-k"):
            shares = [score[f"{kind} {share:g}"] for share in SHARES] + [score["dense"]]
            entries.append(rising(f"{data}: accuracy rises with alpha_U, {kind}", shares))
        for share in SHARES:
            entries.append(
                above(
                    f"{data}: top-k above rand-k at {share:g}",
                    score[f"top-k {share:g}"],
                    score[f"rand-k {share:g}"],
                    "element-wise averaging of rand-k loses no coordinate for good; top-k sends "
                    "the same ones again",
                )
            )
    lost = {
        data: found[data]["dense"]["accuracy"] - found[data]["top-k 0.05"]["accuracy"]
        for data in DATA
    }
    entries.append(
        above("MNIST loses more than Adult at alpha_U .05", lost["MNIST"], lost["Adult"])
    )
    return outcome(found, entries, "Without noise: noised top-k releases its index set in clear.")


def downlink_cases(options: Options) -> Sequence[Case]:
    """Return the cases of Figure 3: shares of the downlink."""
    return [
        case_of(options, f"alpha_D {share:g}", data, alpha_d=share)
        for data in DATA
        for share in DOWN
    ]


def downlink(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude Figure 3."""
    found = by_data(cases, results)
    score = {data: [one["accuracy"] for one in found[data].values()] for data in DATA}
    entries = [rising(f"{data}: accuracy rises with alpha_D", score[data]) for data in DATA]
    lost = {data: max(score[data]) - min(score[data]) for data in DATA}
    entries.append(above("MNIST is more sensitive than Adult", lost["MNIST"], lost["Adult"]))
    return outcome(found, entries)


def privacy_cases(options: Options) -> Sequence[Case]:
    """Return the cases of Figure 4: total epsilons, and none."""
    return [
        case
        for data in DATA
        for case in (
            *(
                case_of(options, f"epsilon {epsilon:g}", data, epsilon=epsilon)
                for epsilon in EPSILONS[data]
            ),
            case_of(options, "no noise", data),
        )
    ]


def privacy(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude Figure 4."""
    found = by_data(cases, results)
    entries = []
    for data in DATA:
        noisy = [found[data][f"epsilon {epsilon:g}"]["accuracy"] for epsilon in EPSILONS[data]]
        entries.append(rising(f"{data}: accuracy rises with epsilon", noisy))
        none = found[data]["no noise"]["accuracy"]
        entries.append(
            above(
                f"{data}: no noise is best",
                none,
                max(noisy),
                "the private runs take full batches, with a step tuned for them",
            )
        )
    return outcome(found, entries, "Epsilons are certified totals at delta 1e-4, not the paper's.")


def _weight_cases(options: Options, name: str) -> Sequence[Case]:
    return [
        {
            **case_of(options, f"{name} {weight:g}, {said}", data, epsilon=epsilon),
            name: weight,
        }
        for data in DATA
        for epsilon, said in ((0.0, "no noise"), (PAIR[data], f"epsilon {PAIR[data]:g}"))
        for weight in WEIGHTS
    ]


def beta_cases(options: Options) -> Sequence[Case]:
    """Return the cases of Figure 5: weights of the nonconvex regulariser."""
    return _weight_cases(options, "beta")


def gamma_cases(options: Options) -> Sequence[Case]:
    """Return the cases of Figure 6: weights of h = gamma ||x||_1."""
    return _weight_cases(options, "gamma")


def _by_weight(found: Mapping[str, Result], name: str, said: str) -> list[float]:
    return [found[f"{name} {weight:g}, {said}"]["accuracy"] for weight in WEIGHTS]


def beta(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude Figure 5."""
    found = by_data(cases, results)
    entries = [
        rising(
            f"{data}, {said}: the smaller beta the better",
            _by_weight(found[data], "beta", said)[::-1],
        )
        for data in DATA
        for said in ("no noise", f"epsilon {PAIR[data]:g}")
    ]
    entries += _trains(found, "beta")
    return outcome(found, entries)


def gamma(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude Figure 6."""
    found = by_data(cases, results)
    entries = []
    for data in DATA:
        plain = _by_weight(found[data], "gamma", "no noise")
        noisy = _by_weight(found[data], "gamma", f"epsilon {PAIR[data]:g}")
        entries.append(rising(f"{data}, no noise: the smaller gamma the better", plain[::-1]))
        entries.append(
            rising(
                f"{data}, noise: the larger gamma the better",
                noisy,
                reason="thresholding at gamma / rho removes the model before the noise",
            )
        )
    entries += _trains(found, "gamma")
    return outcome(found, entries)


def _trains(found: Mapping[str, Mapping[str, Result]], name: str) -> list[Entry]:
    """Return whether the paper's own weight .5 trains at all."""
    entries = []
    for data in DATA:
        none, half = (_by_weight(found[data], name, "no noise")[place] for place in (0, 2))
        entries.append(
            Entry(
                f"{data}: the paper's {name} = .5 trains",
                "yes",
                f"{half:.3f} against {none:.3f} at 0",
                half > none - 0.05,
                "5 points",
                "" if half > none - 0.05 else CANNOT_TRAIN[name],
            )
        )
    return entries


def rival_cases(options: Options) -> Sequence[Case]:
    """Return the cases of Figure 7: the rivals, without noise and at one epsilon."""
    plain = [
        case
        for data in DATA
        for case in (
            case_of(options, "fed-pdm", data, rho=1.0, images=100),
            *(case_of(options, name, data, name, images=100) for name in RIVALS),
        )
    ]
    noisy = [
        case_of(options, f"{name}, epsilon {epsilon:g}", data, name, epsilon=epsilon, tuned=tuned)
        for data, (epsilon, methods) in NOISY.items()
        for name, tuned in methods.items()
    ]
    return [*plain, *noisy]


def rivals(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude Figure 7."""
    found = by_data(cases, results)
    entries = []
    for data in DATA:
        score = {label: one["accuracy"] for label, one in found[data].items()}
        for name in RIVALS:
            entries.append(above(f"{data}: FedPDM above {name}", score["fed-pdm"], score[name]))
        epsilon, methods = NOISY[data]
        tail = f", epsilon {epsilon:g}"
        for name in list(methods)[1:]:
            entries.append(
                above(
                    f"{data}: FedPDM above {name}{tail}",
                    score[f"fed-pdm{tail}"],
                    score[f"{name}{tail}"],
                    "at equal epsilon and tuning the methods are alike",
                )
            )
    return outcome(
        found,
        entries,
        "With noise every method has the same account, and the best of eight settings of its own.",
    )


def sparse_rival_cases(options: Options) -> Sequence[Case]:
    """Return the cases of Figure 8: sparse messages, for those that have them."""
    return [
        case
        for data in DATA
        for up, down in ((0.1, 1.0), (0.5, 0.75))
        for case in (
            case_of(
                options,
                f"fed-pdm {up:g}/{down:g}",
                data,
                sparsifier="top-k",
                alpha_u=up,
                alpha_d=down,
            ),
            *(case_of(options, f"{name} {up:g}", data, name, share=up) for name in RIVALS[:2]),
        )
    ]


def sparse_rivals(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude Figure 8."""
    found = by_data(cases, results)
    entries = [
        above(
            f"{data}: FedPDM above {name} at alpha_U {up:g}",
            found[data][f"fed-pdm {up:g}/{down:g}"]["accuracy"],
            found[data][f"{name} {up:g}"]["accuracy"],
            "FedAvg sends what changed, of which the largest tenth is nearly all; FedPDM sends the "
            "model, of which it is not",
        )
        for data in DATA
        for up, down in ((0.1, 1.0), (0.5, 0.75))
        for name in RIVALS[:2]
    ]
    return outcome(
        found,
        entries,
        "Without noise. FedAvg and FedProx send the largest coordinates of what changed and "
        "receive dense models; SCAFFOLD and FedDyn have no sparse messages here.",
    )


STUDIES = tuple(
    Study(
        f"fedpdm/figure-{number}", f"FedPDM: {title}", plan, run_case, conclude, files=MNIST + ADULT
    )
    for number, title, plan, conclude in (
        (2, "uplink compression", uplink_cases, uplink),
        (3, "downlink compression", downlink_cases, downlink),
        (4, "accuracy and privacy", privacy_cases, privacy),
        (5, "weight of the nonconvex regulariser", beta_cases, beta),
        (6, "weight of the l1 norm", gamma_cases, gamma),
        (7, "rivals", rival_cases, rivals),
        (8, "rivals with sparse messages", sparse_rival_cases, sparse_rivals),
    )
)
