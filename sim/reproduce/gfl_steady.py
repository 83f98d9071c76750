"""The steady states of graph federated learning over variances and steps, Section V-A."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from privet.sim.experiments.gfl import MU, VARIANCE, regression_network
from privet.sim.experiments.gfl_simulated import observed

from .gfl_cases import NOISY, OWN_NOISE, VARIANCES, Key, by_setting, seeds_of, setting
from .study import Case, Curve, Entry, Options, Outcome, Panel, Result

STEPS = (0.04, 0.1, 0.2, 0.5, 0.7, 1.0, 2.0)
CLOSING = 30


def _steady_case(options: Options, kind: str, variance: float, mu: float, seed: int) -> Case:
    burn_in = 20 + round(10 / mu)  # the slowest direction loses a factor e every 1/(1.2 mu) rounds
    rounds = burn_in + _length(options)
    return setting(
        kind, variance, mu, rounds, seed, **{"burn-in": burn_in, "weights": "", "closing": 0}
    )


def _length(options: Options) -> int:
    return 3000 if options.full else 800


def steady_cases(options: Options) -> Sequence[Case]:
    """Return all variances and steps, and at mu .7 and sigma^2 .1 what helps single units."""
    seeds = seeds_of(options)
    cases = [_steady_case(options, "none", 0.0, mu, seed) for mu in STEPS for seed in seeds]
    cases += [
        _steady_case(options, kind, variance, mu, seed)
        for kind in NOISY
        for variance in VARIANCES
        for mu in STEPS
        for seed in seeds
    ]
    for name, change in (("lazy weights", {"weights": "lazy"}), ("closed", {"closing": CLOSING})):
        for seed in seeds:
            case = _steady_case(options, "homomorphic", VARIANCE, MU, seed)
            cases.append({**case, **change, "case": f"GFL: {name}, seed {seed}"})
    return cases


def steady_states(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude the table and the claims that rest on it."""
    plain = [not case["weights"] and not case["closing"] for case in cases]
    pairs = list(zip(cases, results, strict=True))
    table = by_setting(
        [case for (case, _), yes in zip(pairs, plain, strict=True) if yes],
        [result for (_, result), yes in zip(pairs, plain, strict=True) if yes],
    )
    mean = {
        key: {name: _mean([one[name] for one in own]) for name in ("centroid", "units")}
        for key, own in table.items()
    }
    rows = [
        {"noise": kind, "sigma^2": variance, "mu": mu, **values}
        for (kind, variance, mu), values in mean.items()
    ]
    helped = {
        name: _mean([result["units"] for case, result in pairs if case[key] == value])
        for name, key, value in (("lazy", "weights", "lazy"), ("closed", "closing", CLOSING))
    }
    rows += [
        {"noise": f"homomorphic, {name}", "sigma^2": VARIANCE, "mu": MU, "units": value}
        for name, value in helped.items()
    ]
    entries = [*_claims(mean), *_remedies(mean, helped)]
    notes = [
        f"Means over {len(seeds_of(options))} seeds and {_length(options):,} rounds after a "
        "burn-in, simulated on arrays of all agents; a test holds the simulation against the real "
        "run.",
        _observer(),
    ]
    return Outcome(rows, entries, _steady_panels(mean), notes)


def _claims(mean: Mapping[Key, Mapping[str, float]]) -> list[Entry]:
    def at(kind: str, name: str = "centroid", variance: float = VARIANCE, mu: float = MU) -> float:
        return mean[kind, 0.0 if kind == "none" else variance, mu][name]

    less = [at("homomorphic", variance=v) < at("random", variance=v) for v in VARIANCES]
    worse = [
        at("homomorphic", "units", v, mu) > at("random", "units", v, mu)
        for v in VARIANCES[2:]
        for mu in STEPS
    ]
    slow, fast = (at("random", mu=mu) for mu in (STEPS[0], 0.5))
    calm, quick = (at("homomorphic", mu=mu) for mu in (STEPS[0], 0.5))
    return [
        Entry(
            "centroid: homomorphic noise close to none (sigma^2 .1, mu .7)",
            "yes",
            f"{at('homomorphic'):.2g} against {at('none'):.2g}",
            at("homomorphic") < 3 * at("none"),
            "a factor of 3",
        ),
        Entry(
            "centroid: random noise is far worse (sigma^2 .1, mu .7)",
            "yes",
            f"{at('random'):.2g} against {at('homomorphic'):.2g}",
            at("random") > 5 * at("homomorphic"),
            "a factor of 5",
        ),
        Entry(
            "centroid: homomorphic noise is better at every variance (mu .7)",
            "yes",
            f"{sum(less)} of {len(less)}",
            all(less),
        ),
        Entry(
            "centroid: random noise gets worse as mu shrinks, like 1/mu",
            "yes",
            f"{slow:.2g} at mu {STEPS[0]:g}, {fast:.2g} at mu .5",
            slow > 4 * fast,
            "a factor of 4",
        ),
        Entry(
            "centroid: homomorphic noise does not",
            "yes",
            f"{calm:.2g} at mu {STEPS[0]:g}, {quick:.2g} at mu .5",
            calm < quick,
        ),
        Entry(
            "single units: homomorphic noise is better at a fixed variance",
            "yes",
            f"{at('homomorphic', 'units'):.2g} against {at('random', 'units'):.2g} at mu .7, "
            f"worse in {sum(worse)} of {len(worse)} settings with sigma^2 >= .1",
            at("homomorphic", "units") < at("random", "units"),
            "",
            OWN_NOISE,
        ),
    ]


def _remedies(mean: Mapping[Key, Mapping[str, float]], helped: Mapping[str, float]) -> list[Entry]:
    plain = mean["homomorphic", VARIANCE, MU]
    return [
        Entry(
            "single units: a lazy matrix (A + I)/2 helps",
            "-",
            f"{helped['lazy']:.2g} against {plain['units']:.2g}",
            None,
        ),
        Entry(
            f"single units: {CLOSING} closing exchanges recover the centroid",
            "yes",
            f"{helped['closed']:.2g}, centroid {plain['centroid']:.2g}",
            helped["closed"] < 2 * plain["centroid"],
            "a factor of 2",
        ),
    ]


def _observer() -> str:
    network = regression_network()
    errors = np.array([observed(network, 400, mu=MU, seed=seed) for seed in range(200)])
    sizes = [float(np.sqrt(np.mean(errors[:, t] ** 2))) for t in (0, 19, 399)]
    said = ", ".join(f"{size:.2f}" for size in sizes)
    return (
        "An observer of all messages of a unit subtracts what it knows and is left with one draw "
        f"of the noise, whatever the round: its error at the sum of the unit's moves is {said} "
        "after 1, 20 and 400 rounds (root mean square, sigma^2 .1)."
    )


def _mean(values: Sequence[float | str]) -> float:
    return fmean(math.inf if isinstance(value, str) else value for value in values)


def _steady_panels(mean: Mapping[Key, Mapping[str, float]]) -> list[Panel]:
    panels = []
    for name, title in (("centroid", "centroid"), ("units", "single units")):
        curves = {
            f"{kind}, mu {mu:g}": Curve(
                VARIANCES, [mean[kind, variance, mu][name] for variance in VARIANCES]
            )
            for kind in NOISY
            for mu in (0.1, 0.7)
        }
        panels.append(
            Panel(title, "sigma_g^2", "mean-square deviation", curves, x_log=True, y_log=True)
        )
    return panels
