"""Figures 1 to 4 of the DP-IADMM paper, its MNIST half.

The paper has 60,000 training digits and epsilons .05, .1, 1, 5 for one release; the same noise on
10,000 digits has six times those epsilons. OutP is output perturbation with a clipped sensitivity
(Gaussian, delta 1e-6 a release): the authors' own takes a variance for a standard deviation and
leaves the number of examples out. Noise is seeded here, and nothing in these runs is private.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from privet.datasets import Federation
from privet.privacy import SeededNoise, dp_iadmm_output_gain
from privet.sim.experiments.dp_iadmm import PAPER, mnist, run
from privet.strategies import DPIADMM
from privet.strategies.dp_iadmm import Server

from .study import MNIST, Case, Curve, Entry, Options, Outcome, Panel, Result, Study

EPSILONS = (0.3, 0.6, 6.0, 30.0)
PRINTED = {0.3: 0.05, 0.6: 0.1, 6.0: 1.0, 30.0: 5.0}
ROUNDS, FULL_ROUNDS, FULL_SEEDS = 1000, 20_000, 10
SCHEDULE = {"rho_c1": 2.0, "rho_c2": 5.0, "rho_period": 10_000}
OUT_CLIP = 10.0
"""Hardly any digit's gradient is longer, so that clipping costs OutP nothing but its noise."""
METHODS: dict[str, dict[str, Any]] = {
    "OutP": {"perturbation": "output", "clip": OUT_CLIP, "delta": 1e-6, **SCHEDULE},
    "ObjP": {**PAPER, "local_updates": 1},
    "ObjPM": {**PAPER, "local_updates": 10},
}
STATIC = {"0.1": {"rho": 0.1}, "1": {"rho": 1.0}, "10": {"rho": 10.0}}
RHOS: dict[str, dict[str, Any]] = {
    **STATIC,
    "(24)": SCHEDULE,
    "(24) / 100": {**SCHEDULE, "rho_c1": 0.02, "rho_c2": 0.05},
}
FAIR = (
    "a fair Gaussian noise on the output is smaller than the Laplace noise in the objective; with "
    "one mechanism, one local update and no set W the two are the same arithmetic"
)


class Listening:
    """Seeded noise that remembers the mean magnitude of its draws, by round."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.sums: dict[int, list[float]] = {}

    def __call__(self, agent: str, round_: int) -> Any:
        """Return the source of one agent in one round."""
        heard = self.sums.setdefault(round_, [])
        source = SeededNoise(self.seed, agent, round_)

        class Source:
            private = False

            def gaussian(self, *arguments: Any) -> Any:
                draw = source.gaussian(*arguments)
                heard.append(float(np.abs(draw).mean()))
                return draw

            def laplace(self, *arguments: Any) -> Any:
                draw = source.laplace(*arguments)
                heard.append(float(np.abs(draw).mean()))
                return draw

        return Source()


@lru_cache(maxsize=1)
def _digits(path: str) -> Federation:
    return mnist(str(Path(path) / "mnist_20k.npz"))


def run_case(case: Case) -> Result:
    """Run one method at one epsilon with one seed."""
    settings = dict(case["settings"])
    settings["epsilon"] = math.inf if case["epsilon"] == "inf" else case["epsilon"]
    if case["epsilon"] == "inf":
        settings |= {"perturbation": "none", "clip": 0.0, "sensitivity": "clip"}
    ears = Listening(case["seed"])
    course = run(
        _digits(case["data"]),
        case["rounds"],
        settings,
        seed=case["seed"],
        every=max(1, case["rounds"] // 50),
        noise_factory=ears,
    )
    return {
        "rounds": course.rounds,
        "errors": course.errors,
        "noise": [
            _share_that_arrives(settings, number) * fmean(ears.sums.get(number) or [0.0])
            for number in course.rounds
        ],
    }


def _share_that_arrives(settings: Mapping[str, Any], number: int) -> float:
    """Return what a draw is multiplied by before it is added.

    Output noise is drawn in units of the gradient and added to z_p in those of the model.
    """
    if settings.get("perturbation") != "output":
        return 1.0
    half = DPIADMM(**settings).half
    assert isinstance(half, Server)
    return dp_iadmm_output_gain(
        rho=half.penalty(number), eta=1.0 / math.sqrt(number), local_updates=1
    )


def _case(
    options: Options,
    method: str,
    epsilon: float,
    seed: int,
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> Case:
    printed = "inf" if math.isinf(epsilon) else epsilon
    return {
        "case": f"DP-IADMM {method}, epsilon {printed}, seed {seed}",
        "method": method,
        "epsilon": printed,
        "seed": seed,
        "rounds": FULL_ROUNDS if options.full else ROUNDS,
        "data": str(options.data_path),
        "settings": {**METHODS[method], **(settings or {})},
        **more,
    }


def comparison(options: Options) -> Sequence[Case]:
    """Return the cases of Figures 1 to 3: three methods, four epsilons, and no noise."""
    seeds = range(1, 1 + (FULL_SEEDS if options.full else 1))
    noisy = [
        _case(options, method, epsilon, seed)
        for method in METHODS
        for epsilon in EPSILONS
        for seed in seeds
    ]
    return [*noisy, *(_case(options, method, math.inf, 1) for method in ("ObjP", "ObjPM"))]


def _found(cases: Sequence[Case], results: Sequence[Result]) -> dict[tuple[str, Any], list[Result]]:
    found: dict[tuple[str, Any], list[Result]] = {}
    for case, result in zip(cases, results, strict=True):
        found.setdefault((case["method"], case["epsilon"]), []).append(result)
    return found


def _final(results: Sequence[Result]) -> float:
    return fmean(result["errors"][-1] for result in results)


def _curve(results: Sequence[Result], what: str) -> Curve:
    table = np.array([result[what] for result in results])
    low, high = np.percentile(table, [20, 80], axis=0)
    shade = len(results) > 1
    return Curve(
        results[0]["rounds"],
        table.mean(axis=0).tolist(),
        low.tolist() if shade else (),
        high.tolist() if shade else (),
    )


def _panels(found: dict[tuple[str, Any], list[Result]], what: str, label: str) -> list[Panel]:
    return [
        Panel(
            f"epsilon {epsilon:g} (as {PRINTED[epsilon]:g} on 60,000 digits)",
            "round",
            label,
            {method: _curve(found[method, epsilon], what) for method in METHODS},
            y_log=what == "noise",
        )
        for epsilon in EPSILONS
    ]


def errors_by_round(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude Figure 1: who has the smaller error, and what epsilon does to it."""
    found = _found(cases, results)
    final = {key: _final(value) for key, value in found.items()}
    entries = []
    for method in METHODS:
        errors = [final[method, epsilon] for epsilon in EPSILONS]
        entries.append(
            Entry(
                f"errors of {method} grow as epsilon shrinks",
                "yes",
                " > ".join(f"{error:.2f}" for error in errors),
                all(a > b for a, b in pairwise(errors)),
                "each step",
            )
        )
    for epsilon in EPSILONS:
        out, single, several = (final[method, epsilon] for method in METHODS)
        entries.append(
            Entry(
                f"ObjP below OutP at epsilon {epsilon:g}",
                "yes",
                f"{single:.2f} against {out:.2f} %",
                single < out,
                "at the last round",
                "" if single < out else FAIR,
            )
        )
        entries.append(
            Entry(
                f"ObjPM lowest at epsilon {epsilon:g}",
                "yes",
                f"{several:.2f} %",
                several < min(out, single),
                "at equal rounds, ten times the gradients and the releases",
            )
        )
    gap = final["ObjPM", 6.0] - final["ObjPM", "inf"]
    entries.append(
        Entry(
            "ObjPM at epsilon 6 close to no noise",
            "yes",
            f"{gap:.2f} points apart",
            gap < 2.0,
            "2 points",
        )
    )
    rows = [
        {"method": method, "epsilon": epsilon, "round": number, "error": error, "run": place}
        for (method, epsilon), runs in found.items()
        for place, result in enumerate(runs)
        for number, error in zip(result["rounds"], result["errors"], strict=True)
    ]
    notes = [_horizon(options), "FEMNIST is not at hand: the MNIST half of the figure only."]
    return Outcome(rows, entries, _panels(found, "errors", "test error, %"), notes)


def _horizon(options: Options) -> str:
    if options.full:
        return f"T = {FULL_ROUNDS}, {FULL_SEEDS} seeds, as in the paper; 10,000 digits."
    return f"T = {ROUNDS} and one seed in place of the paper's 20,000 and ten; 10,000 digits."


def best_errors(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude Figure 2: the best error of each method."""
    found = _found(cases, results)
    best = {key: min(min(run["errors"]) for run in runs) for key, runs in found.items()}
    entries = []
    for method, printed in (("ObjPM", 11.74), ("OutP", 21.79)):
        ours = best[method, 0.3]
        what = f"best error of {method} at epsilon .3 (printed: .05 on 60,000 digits), %"
        if options.full:
            entries.append(Entry.number(what, printed, ours, within=0.2))
        else:
            entries.append(Entry(what, printed, ours, None, f"not compared at T = {ROUNDS}"))
    for epsilon in EPSILONS:
        lowest = min(METHODS, key=lambda method, e=epsilon: best[method, e])  # type: ignore[misc]
        entries.append(
            Entry(f"best of all at epsilon {epsilon:g}", "ObjPM", lowest, lowest == "ObjPM")
        )
    rows = [{"method": m, "epsilon": e, "best error": value} for (m, e), value in best.items()]
    curves = {
        method: Curve(EPSILONS, [best[method, epsilon] for epsilon in EPSILONS])
        for method in METHODS
    }
    panel = Panel("best test error", "epsilon of a release", "test error, %", curves, x_log=True)
    return Outcome(rows, entries, [panel], [_horizon(options)])


def noise_by_round(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    """Conclude Figure 3: mean magnitude of the noise."""
    found = _found(cases, results)
    size = {key: fmean(fmean(run["noise"]) for run in runs) for key, runs in found.items()}
    entries = []
    for method in METHODS:
        sizes = [size[method, epsilon] for epsilon in EPSILONS]
        holds = all(a > b for a, b in pairwise(sizes))
        said = " > ".join(f"{value:.2g}" for value in sizes)
        entries.append(Entry(f"noise of {method} grows as epsilon shrinks", "yes", said, holds))
    for epsilon in EPSILONS:
        ours, out = size["ObjP", epsilon], size["OutP", epsilon]
        entries.append(
            Entry(
                f"noise of ObjP above OutP's at epsilon {epsilon:g}",
                "yes",
                f"{ours:.2g} against {out:.2g}",
                ours > out,
                "",
                "" if ours > out else "a fair OutP needs the clipped sensitivity of every release",
            )
        )
    rows = [
        {"method": method, "epsilon": epsilon, "round": number, "mean |noise|": value}
        for (method, epsilon), runs in found.items()
        for number, value in zip(runs[0]["rounds"], runs[0]["noise"], strict=True)
        if epsilon != "inf"
    ]
    return Outcome(rows, entries, _panels(found, "noise", "mean |noise|"), [_horizon(options)])


def penalties(options: Options) -> Sequence[Case]:
    """Return the cases of Figure 4: OutP under five choices of rho."""
    return [
        _case(options, "OutP", epsilon, 1, settings=settings, rho=name)
        for name, settings in RHOS.items()
        for epsilon in EPSILONS
    ]


def errors_by_penalty(
    options: Options, cases: Sequence[Case], results: Sequence[Result]
) -> Outcome:
    """Conclude Figure 4: the penalty matters less than epsilon."""
    final = {
        (case["rho"], case["epsilon"]): result["errors"][-1]
        for case, result in zip(cases, results, strict=True)
    }
    entries = []
    for epsilon in EPSILONS:
        errors = [final[name, epsilon] for name in RHOS]
        spread = max(errors) - min(errors)
        entries.append(
            Entry(
                f"rho hardly matters at epsilon {epsilon:g}",
                "yes",
                f"{min(errors):.1f} ... {max(errors):.1f} %",
                spread <= 5.0,
                "5 points",
                "" if spread <= 5.0 else f"at round {cases[0]['rounds']} the choices still differ",
            )
        )
    rows = [{"rho": name, "epsilon": e, "error": value} for (name, e), value in final.items()]
    panels = [
        Panel(
            f"epsilon {epsilon:g}",
            "round",
            "test error, %",
            {
                case["rho"]: Curve(result["rounds"], result["errors"])
                for case, result in zip(cases, results, strict=True)
                if case["epsilon"] == epsilon
            },
        )
        for epsilon in EPSILONS
    ]
    return Outcome(rows, entries, panels, [_horizon(options)])


STUDIES = tuple(
    Study(f"dp-iadmm/figure-{number}", title, plan, run_case, conclude, files=MNIST)
    for number, title, plan, conclude in (
        (1, "DP-IADMM: test errors by round (MNIST)", comparison, errors_by_round),
        (2, "DP-IADMM: best test errors (MNIST)", comparison, best_errors),
        (3, "DP-IADMM: mean noise magnitude by round (MNIST)", comparison, noise_by_round),
        (4, "DP-IADMM: OutP under five penalties (MNIST)", penalties, errors_by_penalty),
    )
)
