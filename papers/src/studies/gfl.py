"""Figures 2 to 5 of the graph federated learning paper, and a sweep of what it does not print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from statistics import fmean
from typing import Any

from .statistics import Estimate, against, difference
from .study import (
    ADULT,
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
    settings_of,
)

MU, VARIANCE = 0.7, 0.1
KINDS = ("none", "homomorphic", "random")
NOISY = KINDS[1:]
VARIANCES = (0.001, 0.01, 0.1, 1.0, 2.0, 10.0)
STEPS = (0.1, 0.5, 1.0, 5.0)
SCALES = (1.0, 0.3, 0.1, 0.05)
GRAPHS = ("erdos-renyi", "ring")
READINGS: Mapping[str, Sequence[Any]] = {"graph": GRAPHS, "scale": SCALES, "mu": (0.1, MU)}
"""What is not printed, and the readings that single units are looked at under."""
ROUNDS, FULL_ROUNDS, SEEDS = 80, 300, 5
OPEN = "the covariances, the noise of the data and the graph are not printed"
Deviations = list[float | None]
"""Steady deviations by seed; None where a run diverges."""


def case_of(
    label: str,
    seed: int,
    kind: str,
    *,
    mu: float = MU,
    variance: float = VARIANCE,
    rounds: int = ROUNDS,
    lazy: bool = False,
    measure: str = "deviation",
    options: Mapping[str, Any] | None = None,
    **workload: Any,
) -> Case:
    """Return a run, on a draw of the regression problem where ``workload`` names no other."""
    settings = {
        "step_size": mu,
        "batch": "sample",
        "perturbation": kind,
        "noise_variance": 0.0 if kind == "none" else variance,
        "mechanism": "laplace",
        "graph_lazy": lazy,
        "noise_seed": seed,
    }
    drawn = {"name": "regression", "draw": seed, **workload}
    return Case(label, seed, drawn, "gfl", settings, rounds, measure, options or {})


def _arms(label: str, **axes: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return all combinations of values, by what they are called."""
    points = (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
    return {label.format(**point): point for point in points}


def _cases(arms: Mapping[str, Mapping[str, Any]], study: str, options: Options) -> Sequence[Case]:
    return [
        case_of(label, seed, **{"rounds": FULL_ROUNDS if options.full else ROUNDS, **asked})
        for label, asked in arms.items()
        for seed in options.seeds(10, SEEDS, further_seeds(study).get(label, 0))
    ]


def steady(results: Sequence[Result], what: str) -> Deviations:
    """Return the mean deviation of the second half, by seed; None where a run diverges."""
    means = [fmean(one[what][len(one[what]) // 2 :]) for one in results]
    return [mean if math.isfinite(mean) and mean < 1e6 else None for mean in means]


def ratio(above: Deviations, below: Deviations) -> Estimate:
    """Return the difference of logarithms, by seed: deviations spread by factors."""
    pair = [[None if v is None else math.log(v) for v in own] for own in (above, below)]
    return difference(*pair)


def mean_of(values: Deviations) -> str:
    """Return the mean with its interval."""
    return str(Estimate.of(values))


def factor(logarithm: Estimate) -> str:
    """Return e to the power of an estimate, with its interval."""
    low, high = math.exp(logarithm.low), math.exp(logarithm.high)
    return f"{math.exp(logarithm.mean):.3g} ({low:.3g} to {high:.3g})"


def _levels(
    title: str, x_label: str, y_label: str, own: Mapping[str, Mapping[float, Deviations]]
) -> Panel:
    """Return a plot of the steady deviations of each kind of noise, where all runs arrive."""
    curves = {
        kind: Curve.of({x: one for x, v in values.items() if (one := Estimate.of(v)).complete})
        for kind, values in own.items()
    }
    return Panel(title, x_label, y_label, curves, x_log=True, y_log=True)


THREE = {kind: {"kind": kind} for kind in KINDS}


def figure_2(found: Results) -> Outcome:
    """Conclude Figure 2: centroids of the three variants."""
    own = {kind: steady(found[kind], "centroid") for kind in KINDS}
    said = {kind: mean_of(values) for kind, values in own.items()}
    rows = Rows("gfl", OPEN)
    rows.claim(
        "centroid: homomorphic noise tracks the algorithm without (within a factor of 3)",
        ratio(own["homomorphic"], own["none"]).below(math.log(3.0)),
        f"{said['homomorphic']} against {said['none']}",
    )
    rows.claim(
        "centroid: random noise is worse than homomorphic",
        ratio(own["random"], own["homomorphic"]),
        f"{said['random']} against {said['homomorphic']}",
    )
    curves = {kind: Curve.course(found[kind], "centroid") for kind in KINDS}
    return Outcome(rows, [Panel("centroid", "round", "MSD", curves, y_log=True)])


# ------------------------------------------------------------------ Figures 3 and 4

VARIED = "{kind}, sigma^2 {variance:g}"
READ = "{kind}, {graph}, covariances x {scale:g}, mu {mu:g}"
"""What runs of Figure 3 are called."""
GROWING = {
    **_arms(VARIED, kind=NOISY, variance=VARIANCES),
    **_arms(READ, kind=NOISY, **READINGS),
}


def figure_3(found: Results) -> Outcome:
    """Conclude Figure 3: growing variances, for the centroid (a) and single units (b)."""
    own = {
        (what, kind): {
            variance: steady(found[VARIED.format(kind=kind, variance=variance)], what)
            for variance in VARIANCES
        }
        for what in ("centroid", "units")
        for kind in NOISY
    }
    rows = Rows("gfl", OPEN)
    lowest, highest = VARIANCES[0], VARIANCES[-1]
    grown = {
        kind: ratio(own["centroid", kind][highest], own["centroid", kind][lowest]) for kind in NOISY
    }
    rows.claim(
        "(a) centroid: random noise is the more sensitive to the variance",
        grown["random"].minus(grown["homomorphic"]),
        f"x {factor(grown['random'])} against x {factor(grown['homomorphic'])} from .001 to 10",
    )
    for kind in NOISY:
        units = own["units", kind].values()
        rises = [ratio(after, before) for before, after in pairwise(units)]
        what = f"(b) single units: {kind} noise grows with the variance"
        rows.readings(what, {"": rises}, " < ".join(map(mean_of, units)))
    gaps = [
        ratio(own["units", "random"][variance], own["units", "homomorphic"][variance])
        for variance in VARIANCES
    ]
    factors = [factor(gap) for gap in gaps]
    rows.readings(
        "(b) single units: homomorphic noise is better at a fixed variance",
        {f"variance {variance:g}": [gap] for variance, gap in zip(VARIANCES, gaps, strict=True)},
        f"random is {', '.join(factors)} times homomorphic at .001 ... 10",
        why=_readings(found),
    )
    panels = [
        _levels(
            f"{what}: steady state",
            "variance of the noise",
            "MSD",
            {kind: own[what, kind] for kind in NOISY},
        )
        for what in ("centroid", "units")
    ]
    return Outcome(rows, panels)


def _readings(found: Results) -> str:
    """Return in how many readings of what is not printed single units are better off."""
    homomorphic, random = (
        [
            Estimate.of(steady(found[label], "units")).mean
            for label in _arms(READ, **READINGS, kind=[kind])
        ]
        for kind in ("homomorphic", "random")
    )
    better = [ours < other for ours, other in zip(homomorphic, random, strict=True)]
    return (
        f"better in {sum(better)} of {len(better)} readings (2 graphs, 4 scales of the "
        "covariances, 2 steps); the own share -(1 - a_pp) g_p stays in a unit's model: a round "
        "adds sigma^2 (1 - a_pp)^2 more than independent noise does, for any graph"
    )


STEPPED = "{kind}, mu {mu:g}, covariances x {scale:g}"
STEPPING = _arms(STEPPED, kind=NOISY, mu=STEPS, scale=SCALES)


def figure_4(found: Results) -> Outcome:
    """Conclude Figure 4: steps of different sizes, whatever the covariances are."""
    own = {
        (kind, scale): {
            mu: steady(found[STEPPED.format(kind=kind, mu=mu, scale=scale)], "centroid")
            for mu in STEPS
        }
        for kind in NOISY
        for scale in SCALES
    }
    rows = Rows("gfl", OPEN)
    arrives = {
        scale: all(Estimate.of(own[kind, scale][5.0]).complete for kind in NOISY)
        for scale in SCALES
    }
    text = ", ".join(f"x {scale:g}: {'yes' if ok else 'no'}" for scale, ok in arrives.items())
    why = f"whether it does depends on the covariances; {OPEN}"
    said = f"covariances {text}"
    rows.append(Row("mu = 5 converges", "yes", said, Verdict.NOT_DETERMINED, why))
    three = [own["homomorphic", 1.0][mu] for mu in STEPS[:3]]
    rows.readings(
        "homomorphic: the deviation grows with mu",
        {"": [ratio(after, before) for before, after in pairwise(three)]},
        " < ".join(map(mean_of, three)),
        why="covariances x 1; at smaller ones mu = .1 is not steady after so many rounds",
    )
    gaps = {scale: ratio(own["random", scale][0.1], own["random", scale][0.5]) for scale in SCALES}
    factors = ", ".join(f"{factor(gap)} at x {scale:g}" for scale, gap in gaps.items())
    rows.readings(
        "random: worse again at a small mu",
        {f"covariances x {scale:g}": [gap] for scale, gap in gaps.items()},
        f"mu .1 is {factors} times mu .5",
        why="brackets are intervals",
    )
    slow, fast = (
        [_tenth(one) for one in found[STEPPED.format(kind="homomorphic", mu=mu, scale=0.1)]]
        for mu in (0.1, 0.5)
    )
    slower = difference(slow, fast)
    what = "the rate slows down as mu falls (.1 against .5, covariances x .1)"
    rows.claim(what, slower, f"{slower} rounds more to a tenth of the first deviation")
    panels = [
        _levels(
            f"covariances x {scale:g}",
            "mu",
            "steady MSD of the centroid",
            {kind: own[kind, scale] for kind in NOISY},
        )
        for scale in SCALES
    ]
    return Outcome(rows, panels)


def _tenth(result: Result) -> float:
    """Return the first round whose deviation is a tenth of the first one's."""
    own = result["centroid"]
    return float(next((place for place, v in enumerate(own) if v < own[0] / 10), len(own)))


# ------------------------------------------------------------------ Figure 5 and what follows


ADULT_FOR_CLICKS = (
    "Adult in place of the click data; graph and noise of the features are not printed"
)


def adult(options: Options) -> Sequence[Case]:
    """Return the runs of Section V-B on Adult."""
    own = {
        "mu": 0.5,
        "variance": 0.6,
        "rounds": (80, 400)[options.full],
        "measure": "accuracy",
        "options": {"every": 4, "tail": 20},
        "name": "adult-on-ring",
        "folder": str(options.data_path),
    }
    return _cases(
        {kind: {**asked, **own} for kind, asked in THREE.items()}, "gfl/figure-5", options
    )


def figure_5(found: Results) -> Outcome:
    """Conclude Figure 5 on Adult: testing errors of the three variants."""
    error = {kind: [100.0 * (1.0 - one["value"]) for one in found[kind]] for kind in KINDS}
    rows = Rows("gfl", ADULT_FOR_CLICKS)
    rows.claim(
        "homomorphic noise does not hinder the model (within 1 point)",
        difference(error["homomorphic"], error["none"]).below(1.0),
        against(error["homomorphic"], error["none"]),
        why="the tolerance is ours",
    )
    rows.claim(
        "random noise costs more than homomorphic",
        difference(error["random"], error["homomorphic"]),
        against(error["random"], error["homomorphic"]),
    )
    curves = {}
    for kind in KINDS:
        errors = [{**one, "course": [1.0 - v for v in one["course"]]} for one in found[kind]]
        curves[kind] = Curve.course(errors)
    return Outcome(rows, [Panel("Adult, clean test set", "round", "test error", curves)])


REMEDIES: Mapping[str, Mapping[str, Any]] = {
    "plain": {"kind": "homomorphic"},
    "lazy": {"kind": "homomorphic", "lazy": True},
    "closing": {"kind": "homomorphic", "options": {"closing": 30}},
}


def steady_state(found: Results) -> Outcome:
    """Conclude what the text says of a consensus step at the end, and what helps besides."""
    plain, lazy, closing = (steady(found[name], "units") for name in REMEDIES)
    centre = steady(found["plain"], "centroid")
    rows = Rows("gfl", OPEN)
    rows.claim(
        "a consensus step at the end recovers the centroid (30 exchanges, within a factor of 2)",
        ratio(closing, centre).below(math.log(2.0)),
        f"{mean_of(closing)}, centroid {mean_of(centre)}, without {mean_of(plain)}",
    )
    what = "a lazy matrix (A + I)/2 helps single units"
    rows.append(Row(what, "-", f"{mean_of(lazy)} against {mean_of(plain)}", Verdict.BEYOND))
    return Outcome(rows)


NAMES = ("network", "data", "agents", "engine", "seeds")
OWN = settings_of("gfl", *NAMES, short=ROUNDS, full=FULL_ROUNDS)
CLICKS = settings_of("gfl", "clicks", "clicks-settings", "seeds")
STUDIES = (
    Study(
        "gfl/figure-2",
        "GFL: the three variants",
        partial(_cases, THREE, "gfl/figure-2"),
        figure_2,
        OWN,
    ),
    Study(
        "gfl/figure-3",
        "GFL: growing variance",
        partial(_cases, GROWING, "gfl/figure-3"),
        figure_3,
        OWN,
    ),
    Study(
        "gfl/figure-4", "GFL: step sizes", partial(_cases, STEPPING, "gfl/figure-4"), figure_4, OWN
    ),
    Study("gfl/figure-5", "GFL: classification", adult, figure_5, CLICKS, ADULT),
    Study(
        "gfl/steady-state",
        "GFL: what is left in single units",
        partial(_cases, REMEDIES, "gfl/steady-state"),
        steady_state,
        OWN,
    ),
)
