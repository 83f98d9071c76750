"""What the figures of the FedPDM paper have in common: their runs, and how claims are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from privet.problems import make_h
from privet.sim.experiments.fed_pdm import BETA, GAMMA, STEPS, Task, adult, mnist, run, run_flower
from privet.sim.experiments.fed_pdm_tables import private_run

from .study import Case, Curve, Entry, Options, Outcome, Panel, Result

ROUNDS = 200
NOISY_ROUNDS = {"MNIST": 100, "Adult": 200}
NOISY = {
    "fed-pdm": "FedPDM",
    "dp-fedsgd": "DP-FedSGD with momentum",
    "scaffold": "SCAFFOLD",
    "fed-dyn": "FedDyn",
}
"""Methods with noise. FedAvg and FedProx with one step are DP-FedSGD without momentum."""
Tuned = tuple[float, float, float]
"""Step, clip, and the method's own knob."""
ALIKE = 0.002
"""Accuracies of one seed that are no further apart are alike."""


@lru_cache(maxsize=4)
def _task(data: str, folder: str, images: int, beta: float) -> Task:
    if data == "Adult":
        return adult(folder, beta=beta)
    return mnist(str(Path(folder) / "mnist_20k.npz"), images, beta=beta)


def run_case(case: Case) -> Result:
    """Run one method on one data set."""
    task = _task(case["data"], case["folder"], case["images"], case["beta"])
    more = dict(case["settings"])
    if case["method"] in ("fed-pdm", "dp-fedsgd"):
        more["h"] = make_h("l1", **{"h-weight": case["gamma"]}) if case["gamma"] else make_h("zero")
    rounds = case["rounds"]
    if case["epsilon"]:
        more |= dict(zip(("step", "clip", "value"), case["tuned"], strict=True))
        found = private_run(task, NOISY[case["method"]], case["epsilon"], rounds, **more)
    elif case["method"] in ("fed-avg", "fed-prox"):
        found = run_flower(task, case["method"], rounds=rounds, **STEPS, **more)
    else:
        found = run(task, case["method"], rounds=rounds, **STEPS, **more)
    last = [
        accuracy
        for number, accuracy in zip(found.rounds, found.accuracies, strict=True)
        if number > rounds - 20
    ]
    return {
        "rounds": found.rounds,
        "accuracies": found.accuracies,
        "bytes-up": found.bytes_up,
        "accuracy": fmean(last),
    }


def _tuned(data: str, epsilon: float) -> Tuned:
    """Return what FedPDM was tuned to at the nearest epsilon (docs/results/fed-pdm.md)."""
    if data == "Adult":
        return 1.0, 1.0, 0.1
    return (10.0 if epsilon >= 5 else 4.0), 1.0, 0.1


def case_of(
    options: Options,
    label: str,
    data: str,
    method: str = "fed-pdm",
    *,
    epsilon: float = 0.0,
    tuned: Tuned | None = None,
    beta: float = BETA,
    gamma: float = GAMMA,
    images: int = 600,
    **settings: Any,
) -> Case:
    """Return a run for ``run_case``: a method on a data set; epsilon 0 is without noise.

    With noise, ``tuned`` is by default what FedPDM was tuned to at the nearest epsilon.
    """
    if epsilon and tuned is None:
        tuned = _tuned(data, epsilon)
    if method == "fed-pdm" and not epsilon:
        settings.setdefault("rho", 10.0)
    return {
        "case": f"FedPDM paper, {data}: {label}",
        "label": label,
        "data": data,
        "method": method,
        "epsilon": epsilon,
        "tuned": None if tuned is None else list(tuned),
        "beta": beta,
        "gamma": gamma,
        "images": 0 if data == "Adult" else images,
        "rounds": NOISY_ROUNDS[data] if epsilon else ROUNDS,
        "folder": str(options.data_path),
        "settings": settings,
    }


def by_data(cases: Sequence[Case], results: Sequence[Result]) -> dict[str, dict[str, Result]]:
    """Return the results by data set and label."""
    found: dict[str, dict[str, Result]] = {}
    for case, result in zip(cases, results, strict=True):
        found.setdefault(case["data"], {})[case["label"]] = result
    return found


def outcome(
    found: Mapping[str, Mapping[str, Result]], entries: Sequence[Entry], *notes: str
) -> Outcome:
    """Return a figure: a row and a curve per run, beside the entries."""
    rows = [
        {
            "data": data,
            "case": label,
            "accuracy, mean of the last 20 rounds": round(result["accuracy"], 5),
            "bytes up": result["bytes-up"][-1],
        }
        for data, own in found.items()
        for label, result in own.items()
    ]
    panels = [
        Panel(
            data,
            "round",
            "test accuracy",
            {label: Curve(one["rounds"], one["accuracies"]) for label, one in own.items()},
        )
        for data, own in found.items()
    ]
    said = "100 agents, 30 a round, one seed, mean of the last 20 rounds; MNIST-10k."
    return Outcome(rows, entries, panels, (said, *notes))


def rising(
    what: str, accuracies: Sequence[float], *, slack: float = 0.005, reason: str = ""
) -> Entry:
    """Return the claim that accuracies rise, up to half a point of one seed's noise."""
    holds = all(b >= a - slack for a, b in pairwise(accuracies))
    said = ", ".join(f"{one:.3f}" for one in accuracies)
    return Entry(what, "yes", said, holds, f"{100 * slack:g} points", "" if holds else reason)


def above(what: str, ours: float, other: float, reason: str = "") -> Entry:
    """Return the claim that one number is above another by more than one seed's noise."""
    said, apart = f"{ours:.3f} against {other:.3f}", ours - other
    why = "alike" if abs(apart) <= ALIKE else reason
    holds = apart > ALIKE
    return Entry(what, "yes", said, holds, f"by {100 * ALIKE:g} points", "" if holds else why)
