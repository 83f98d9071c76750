"""Figures 2 to 5 of the graph federated learning paper, and a sweep of what it does not print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from .statistics import Estimate, band, difference
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
    Setting,
    Study,
    Verdict,
)

MU, VARIANCE = 0.7, 0.1
KINDS = ("none", "homomorphic", "random")
NOISY = KINDS[1:]
VARIANCES = (0.001, 0.01, 0.1, 1.0, 2.0, 10.0)
STEPS = (0.1, 0.5, 1.0, 5.0)
SCALES = (1.0, 0.3, 0.1, 0.05)
GRAPHS = ("erdos-renyi", "ring")
ROUNDS, BURN_IN = 150, 50
PLAYED, FULL_PLAYED = 40, 300
OPEN = "the covariances, the noise of the data and the graph are not printed"


def simulated(
    label: str,
    kind: str,
    seed: int,
    *,
    mu: float = MU,
    variance: float = VARIANCE,
    scale: float = 1.0,
    graph: str = "erdos-renyi",
    **more: Any,
) -> Case:
    """Return a run of the recursion on arrays, on a draw of the regression problem."""
    settings = {"kind": kind, "mu": mu, "variance": variance, **more}
    workload = {"name": "regression", "draw": seed, "scale": scale, "graph": graph}
    return Case(label, seed, workload, "gfl", settings, ROUNDS, "deviation-on-arrays")


def steady(results: Sequence[Result], what: str) -> list[float | None]:
    """Return the mean deviation after the burn-in, by seed; None where a run diverges."""
    means = [fmean(one[what][-(len(one[what]) - _burn_in(one)) :]) for one in results]
    return [mean if math.isfinite(mean) and mean < 1e6 else None for mean in means]


def _burn_in(result: Result) -> int:
    return min(BURN_IN, len(result["centroid"]) // 2)


def logs(values: Sequence[float | None]) -> list[float | None]:
    """Return logarithms: deviations spread by factors."""
    return [None if value is None else math.log(value) for value in values]


def course(results: Sequence[Result], what: str) -> Curve:
    """Return the mean course with its band, kept above zero for a logarithmic axis."""
    kept = [one[what] for one in results if one[what][-1] < 1e6]
    if not kept:
        return Curve((), ())
    mean, low, high = band(kept)
    floor = mean / 10
    x = list(range(1, len(mean) + 1))
    return Curve(x, mean.tolist(), low.clip(floor).tolist(), high.tolist())


# ------------------------------------------------------------------ Figure 2, by real messages


def played(options: Options) -> Sequence[Case]:
    """Return the runs of Figure 2 with Strategy, ClientApps and messages."""
    return [
        Case(
            kind,
            seed,
            {"name": "regression", "draw": seed},
            "gfl",
            {
                "step_size": MU,
                "batch": "sample",
                "perturbation": kind,
                "noise_variance": 0.0 if kind == "none" else VARIANCE,
                "mechanism": "laplace",
                "noise_seed": seed,
            },
            FULL_PLAYED if options.full else PLAYED,
            "deviation",
        )
        for kind in KINDS
        for seed in options.seeds(10)
    ]


def figure_2(found: Results) -> Outcome:
    """Conclude Figure 2: centroids of the three variants."""
    own = {kind: steady(found[kind], "centroid") for kind in KINDS}
    said = {kind: f"{Estimate.of(own[kind]).mean:.2g}" for kind in KINDS}
    rows = Rows(OPEN)
    rows.claim(
        "centroid: homomorphic noise tracks the algorithm without (within a factor of 3)",
        difference(logs(own["homomorphic"]), logs(own["none"])).below(math.log(3.0)),
        f"{said['homomorphic']} against {said['none']}",
    )
    rows.claim(
        "centroid: random noise is worse than homomorphic",
        difference(logs(own["random"]), logs(own["homomorphic"])),
        f"{said['random']} against {said['homomorphic']}",
    )
    curves = {kind: course(found[kind], "centroid") for kind in KINDS}
    return Outcome(rows, [Panel("centroid", "round", "MSD", curves, y_log=True)])


# ------------------------------------------------------------------ Figures 3 and 4


def _three(kind: str, variance: float) -> str:
    return f"{kind}, sigma^2 {variance:g}"


def growing(options: Options) -> Sequence[Case]:
    """Return the cases of Figure 3: growing variances, and other readings for single units."""
    cases = [
        simulated(_three(kind, variance), kind, seed, variance=variance)
        for kind in NOISY
        for variance in VARIANCES
        for seed in options.seeds(10)
    ]
    for graph in GRAPHS:
        for scale in SCALES:
            for mu in (0.1, MU):
                cases += [
                    simulated(
                        _reading(kind, graph, scale, mu),
                        kind,
                        seed,
                        mu=mu,
                        scale=scale,
                        graph=graph,
                    )
                    for kind in NOISY
                    for seed in options.seeds(10)
                ]
    return cases


def _reading(kind: str, graph: str, scale: float, mu: float) -> str:
    return f"{kind}, {graph}, covariances x {scale:g}, mu {mu:g}"


def figure_3(found: Results) -> Outcome:
    """Conclude Figure 3: growing variances, for the centroid (a) and single units (b)."""
    own = {
        (what, kind): [steady(found[_three(kind, variance)], what) for variance in VARIANCES]
        for what in ("centroid", "units")
        for kind in NOISY
    }
    rows = Rows(OPEN)
    grown = {
        kind: difference(logs(own["centroid", kind][-1]), logs(own["centroid", kind][0]))
        for kind in NOISY
    }
    factors = [f"x {math.exp(grown[kind].mean):.0f}" for kind in ("random", "homomorphic")]
    rows.claim(
        "(a) centroid: random noise is the more sensitive to the variance",
        grown["random"].minus(grown["homomorphic"]),
        f"{factors[0]} against {factors[1]} from .001 to 10",
    )
    for kind in NOISY:
        steps = [difference(logs(b), logs(a)) for a, b in pairwise(own["units", kind])]
        text = " < ".join(f"{Estimate.of(one).mean:.2g}" for one in own["units", kind])
        what = f"(b) single units: {kind} noise grows with the variance"
        rows.claim(what, min(steps, key=lambda step: step.low), text)
    gaps = [
        difference(logs(random), logs(homomorphic))
        for random, homomorphic in zip(
            own["units", "random"], own["units", "homomorphic"], strict=True
        )
    ]
    factors = [f"{math.exp(gap.mean):.2f}" for gap in gaps]
    rows.claim(
        "(b) single units: homomorphic noise is better at a fixed variance",
        max(gaps, key=lambda gap: gap.low),
        f"random is {', '.join(factors)} times homomorphic at .001 ... 10",
        why=f"{_readings(found)}; {OPEN}",
    )
    panels = [
        Panel(
            f"{what}: steady state",
            "variance of the noise",
            "MSD",
            {kind: _levels(own[what, kind]) for kind in NOISY},
            x_log=True,
            y_log=True,
        )
        for what in ("centroid", "units")
    ]
    return Outcome(rows, panels)


OWN_SHARE = (
    "the own share -(1 - a_pp) g_p stays in a unit's model: a round adds sigma^2 (1 - a_pp)^2 more "
    "than independent noise does, for any graph"
)


def _readings(found: Results) -> str:
    """Return in how many readings of what is not printed single units are better off."""
    better = []
    for graph in GRAPHS:
        for scale in SCALES:
            for mu in (0.1, MU):
                pair = [
                    Estimate.of(steady(found[_reading(kind, graph, scale, mu)], "units"))
                    for kind in NOISY
                ]
                better.append(pair[0].mean < pair[1].mean)
    return (
        f"better in {sum(better)} of {len(better)} readings (2 graphs, 4 scales of the "
        f"covariances, 2 steps); {OWN_SHARE}"
    )


def _levels(values: Sequence[Sequence[float | None]], x: Sequence[float] = VARIANCES) -> Curve:
    own = [(place, Estimate.of(one)) for place, one in zip(x, values, strict=True)]
    own = [(place, one) for place, one in own if one.complete]
    return Curve(
        [place for place, _ in own],
        [one.mean for _, one in own],
        [max(one.low, one.mean / 10) for _, one in own],
        [one.high for _, one in own],
    )


def _four(kind: str, mu: float, scale: float) -> str:
    return f"{kind}, mu {mu:g}, covariances x {scale:g}"


def steps(options: Options) -> Sequence[Case]:
    """Return the cases of Figure 4: steps of four sizes at four scales of the covariances."""
    return [
        simulated(_four(kind, mu, scale), kind, seed, mu=mu, scale=scale)
        for kind in NOISY
        for mu in STEPS
        for scale in SCALES
        for seed in options.seeds(10)
    ]


def figure_4(found: Results) -> Outcome:
    """Conclude Figure 4: steps of different sizes, whatever the covariances are."""
    own = {
        (kind, mu, scale): steady(found[_four(kind, mu, scale)], "centroid")
        for kind in NOISY
        for mu in STEPS
        for scale in SCALES
    }
    rows = Rows(OPEN)
    arrives = {
        scale: all(Estimate.of(own[kind, 5.0, scale]).complete for kind in NOISY)
        for scale in SCALES
    }
    text = ", ".join(f"x {scale:g}: {'yes' if ok else 'no'}" for scale, ok in arrives.items())
    why = f"whether it does depends on the covariances; {OPEN}"
    said = f"covariances {text}"
    rows.append(Row("mu = 5 converges", "yes", said, Verdict.NOT_DETERMINED, why))
    three = [own["homomorphic", mu, 1.0] for mu in STEPS[:3]]
    rises = [difference(logs(b), logs(a)) for a, b in pairwise(three)]
    rows.claim(
        "homomorphic: the deviation grows with mu",
        min(rises, key=lambda step: step.low),
        " < ".join(f"{Estimate.of(one).mean:.2g}" for one in three),
        why="covariances x 1; at smaller ones mu = .1 is not steady after so many rounds",
    )
    gaps = {
        scale: difference(logs(own["random", 0.1, scale]), logs(own["random", 0.5, scale]))
        for scale in SCALES
    }
    factors = ", ".join(f"{math.exp(gap.mean):.1f} (x {scale:g})" for scale, gap in gaps.items())
    rows.claim(
        "random: worse again at a small mu",
        min(gaps.values(), key=lambda gap: gap.low),
        f"mu .1 is {factors} times mu .5",
        why="covariances times the scale in brackets",
    )
    slow, fast = (
        [_tenth(one) for one in found[_four("homomorphic", mu, 0.1)]] for mu in (0.1, 0.5)
    )
    slower = difference(slow, fast)
    what = "the rate slows down as mu falls (.1 against .5, covariances x .1)"
    rows.claim(what, slower, f"{slower} rounds more to a tenth of the first deviation")
    panels = []
    for kind in NOISY:
        curves = {
            f"covariances x {scale:g}": _levels([own[kind, mu, scale] for mu in STEPS], STEPS)
            for scale in SCALES
        }
        label = "steady MSD of the centroid"
        panels.append(Panel(kind, "mu", label, curves, x_log=True, y_log=True))
    return Outcome(rows, panels)


def _tenth(result: Result) -> float:
    """Return the first round whose deviation is a tenth of the first one's."""
    own = result["centroid"]
    return float(next((place for place, v in enumerate(own) if v < own[0] / 10), len(own)))


# ------------------------------------------------------------------ Figure 5 and what follows


def adult(options: Options) -> Sequence[Case]:
    """Return the runs of Section V-B on Adult, with Strategy, ClientApps and messages."""
    return [
        Case(
            kind,
            seed,
            {"name": "adult-on-ring", "draw": seed, "folder": str(options.data_path)},
            "gfl",
            {
                "step_size": 0.5,
                "batch": "sample",
                "perturbation": kind,
                "noise_variance": 0.0 if kind == "none" else 0.6,
                "mechanism": "laplace",
                "noise_seed": seed,
            },
            400 if options.full else 80,
            "accuracy",
            {"every": 4, "tail": 20},
        )
        for kind in KINDS
        for seed in options.seeds(10)
    ]


def figure_5(found: Results) -> Outcome:
    """Conclude Figure 5 on Adult: testing errors of the three variants."""
    error = {kind: [100.0 * (1.0 - one["value"]) for one in found[kind]] for kind in KINDS}
    said = {kind: str(Estimate.of(own)) for kind, own in error.items()}
    rows = Rows("Adult in place of the click data; graph and noise of the features are not printed")
    rows.claim(
        "homomorphic noise does not hinder the model (within 1 point)",
        difference(error["homomorphic"], error["none"]).below(1.0),
        f"{said['homomorphic']} against {said['none']} %",
    )
    rows.claim(
        "random noise costs more than homomorphic",
        difference(error["random"], error["homomorphic"]),
        f"{said['random']} against {said['homomorphic']} %",
    )
    curves = {}
    for kind in KINDS:
        mean, low, high = band([[1.0 - v for v in one["course"]] for one in found[kind]])
        curves[kind] = Curve(found[kind][0]["rounds"], mean.tolist(), low.tolist(), high.tolist())
    return Outcome(rows, [Panel("Adult, clean test set", "round", "test error", curves)])


CONSENSUS = {"closing": 30}


def remedies(options: Options) -> Sequence[Case]:
    """Return what helps single units: a lazy matrix, closing exchanges."""
    return [
        simulated(name, "homomorphic", seed, **more)
        for name, more in (("plain", {}), ("lazy", {"lazy": True}), ("closing", CONSENSUS))
        for seed in options.seeds(10)
    ]


def steady_state(found: Results) -> Outcome:
    """Conclude what the text says of a consensus step at the end, and what helps besides."""
    plain, lazy, closing = (steady(found[name], "units") for name in ("plain", "lazy", "closing"))
    centre = steady(found["plain"], "centroid")
    said = {
        name: f"{Estimate.of(own).mean:.2g}"
        for name, own in (("plain", plain), ("lazy", lazy), ("closing", closing), ("c", centre))
    }
    rows = Rows(OPEN)
    rows.claim(
        "a consensus step at the end recovers the centroid (30 exchanges, within a factor of 2)",
        difference(logs(closing), logs(centre)).below(math.log(2.0)),
        f"{said['closing']}, centroid {said['c']}, without {said['plain']}",
    )
    what = "a lazy matrix (A + I)/2 helps single units"
    rows.append(Row(what, "-", f"{said['lazy']} against {said['plain']}", Verdict.BEYOND))
    return Outcome(rows)


NETWORK = Setting(
    "network",
    "P = 10, K = 100, L = 11; graph not printed",
    "as printed; random graph of probability .4 (and a ring), Metropolis weights",
    "not printed",
)
MODEL = Setting(
    "data",
    "u ~ N(0, R_k), unlike random covariances and noises; laws not printed",
    "eigenvalues uniform in [.05, 1] times a scale (1 where none is said), noises in [.1, .3]",
    "not printed; Figure 4 and the readings of Figure 3 sweep the scale",
)
LOCAL = Setting("agents", "mu = .7, rho = .1; E_k, B_k random", "as printed; E_k 1-10, B_k 5-10")
SEEDS = Setting("repetitions", "not printed", "5 (10 with `--full`): data, graph, draws, noise")
ARRAYS = Setting(
    "engine",
    "-",
    f"recursion on arrays, {ROUNDS} rounds, steady after {BURN_IN}",
    "a test holds it against the real messages",
)
REAL = Setting(
    "engine",
    "-",
    f"Strategy, ClientApps, messages; {PLAYED} rounds (300 with "
    "`--full`), steady after the first half",
)
CLICKS = Setting(
    "data",
    "Avazu, 5,101 examples, 256 clean test samples",
    "Adult, 5,101 examples dealt unequally, its test set",
    "not at hand",
)
REST = Setting(
    "settings",
    "P = 5, K = 10, rho = .03, mu = .5; variance printed as .6",
    "as printed; ring; 80 rounds (400 with `--full`)",
)
STUDIES = (
    Study(
        "gfl/figure-2",
        "GFL: the three variants",
        played,
        figure_2,
        (NETWORK, MODEL, LOCAL, REAL, SEEDS),
    ),
    Study(
        "gfl/figure-3",
        "GFL: growing variance",
        growing,
        figure_3,
        (NETWORK, MODEL, LOCAL, ARRAYS, SEEDS),
    ),
    Study(
        "gfl/figure-4", "GFL: step sizes", steps, figure_4, (NETWORK, MODEL, LOCAL, ARRAYS, SEEDS)
    ),
    Study("gfl/figure-5", "GFL: classification", adult, figure_5, (CLICKS, REST, SEEDS), ADULT),
    Study(
        "gfl/steady-state",
        "GFL: what is left in single units",
        remedies,
        steady_state,
        (NETWORK, MODEL, LOCAL, ARRAYS, SEEDS),
    ),
)
