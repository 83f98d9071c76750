"""Every algorithm against its paper's recursion, with steps that may fall over the rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.client_apps.rivals.tamuna import local_steps
from privet.core import ConfigError, algorithm
from privet.problems import make_h
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn, FedPDM, FedPLT, FedSplit, FiveGCS, Fraction, Scaffold
from support import recursions
from support.federations import app_of, logistic_agents, model

Vector = NDArray[np.float64]
COUNT, ROUNDS, PERIOD = 6, 10, 7
PROBLEMS = logistic_agents(COUNT)
NAMES = [str(i) for i in range(COUNT)]
START = np.array([1.0, -2.0, 0.5, 3.0])
# Metropolis weights of 0 - 1 - 2: 1 / (1 + the larger degree) on an edge.
PATH = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
RULES: dict[str, Callable[[float], recursions.Steps]] = {
    "constant": recursions.constant,
    "inverse-sqrt": recursions.inverse_sqrt,
    "cosine": lambda step: recursions.cosine(step, PERIOD),
}


class Case(NamedTuple):
    """An algorithm's settings, and its recursion with the same in the paper's letters.

    The step size is the first argument of neither where it has no schedule (``step`` 0).
    """

    algorithm: str
    settings: dict[str, Any]
    recursion: Callable[..., Vector]
    letters: dict[str, Any]
    step: float = 0.0
    letter: str = "step"
    scale: float = 1.0
    """Of the recursion's step, in the algorithm's."""


THREE: dict[str, Any] = {"local_epochs": 3}
PDM: dict[str, Any] = {"rho": 1.2, "max_local_steps": 3}
TAMUNA: dict[str, Any] = {
    "p": 1 / 3,
    "steps": [local_steps(0, number, 3) for number in range(1, ROUNDS + 1)],
}
CLIP = 0.4
"""Norm bound of an update: some exceed it and some do not."""
GCS: dict[str, Any] = {"server_step_size": 0.7, **THREE}
CASES = {
    "fed-plt": Case(
        "fed-plt", {"rho": 1.2, **THREE}, recursions.fed_plt, {"rho": 1.2, "epochs": 3}, 0.4
    ),
    "dp-iadmm": Case(
        "dp-iadmm",
        {"rho": 1.2, "local_updates": 3},
        recursions.dp_iadmm,
        {"rho": 1.2, "updates": 3},
    ),
    "fed-pdm": Case(
        "fed-pdm",
        {"dual": "private", **PDM},
        recursions.fed_pdm,
        {"rho": 1.2, "steps": 3},
        0.3,
        "eta",
    ),
    "fed-pdm, public dual": Case(
        "fed-pdm",
        {"dual": "public", **PDM},
        recursions.fed_pdm,
        {"rho": 1.2, "steps": 3},
        0.3,
        "eta",
    ),
    "scaffold": Case(
        "scaffold",
        {"max_local_steps": 3, "server_step_size": 0.8},
        recursions.scaffold,
        {"steps": 3, "server_step": 0.8},
        0.3,
        "eta",
    ),
    "fed-dyn": Case(
        "fed-dyn",
        {"max_local_steps": 4, "fed_dyn_alpha": 0.5},
        recursions.fed_dyn,
        {"steps": 4, "alpha": 0.5},
        0.3,
        "eta",
    ),
    "dp-fedsgd": Case(
        "dp-fedsgd", {"momentum": 0.7}, recursions.dp_fedsgd, {"momentum": 0.7}, 0.3, "eta"
    ),
    "dp-fedsgd, l1": Case(
        "dp-fedsgd",
        {"momentum": 0.7, "h": make_h("l1", **{"h-weight": 0.05})},
        recursions.dp_fedsgd,
        {"momentum": 0.7, "l1": 0.05},
        0.3,
        "eta",
    ),
    "dp-fedavg": Case(
        "dp-fedavg",
        {"max_local_steps": 3, "clip": CLIP},
        recursions.dp_fedavg,
        {"epochs": 3, "clip": CLIP * (1 - 2**-20)},  # the kernel's reserve for its rounding
        0.3,
    ),
    "gfl": Case(
        "gfl",
        {"units": 3, "graph": "path", "step_size": 0.3, "local_epochs": 2},
        recursions.gfl,
        {"weights": PATH, "mu": 0.3, "epochs": 2},
    ),
    "fed-pd": Case(
        "fed-pd", {"rho": 1.2, **THREE}, recursions.fed_pd, {"eta": 1.2, "epochs": 3}, 0.4
    ),
    "fed-lin": Case("fed-lin", {"local_epochs": 4}, recursions.fed_lin, {"epochs": 4}, 0.3),
    "led": Case(
        "led",
        {"dual_step_size": 0.25, **THREE},
        recursions.led,
        {"beta": 0.25, "epochs": 3},
        0.3,
        "alpha",
    ),
    "tamuna": Case("tamuna", THREE, recursions.tamuna, TAMUNA, 0.3, "gamma"),
    "fed-buff": Case(
        "fed-buff",
        {"step_size": 0.3, "server_step_size": 0.8, **THREE},
        recursions.fed_buff,
        {"step": recursions.constant(0.3), "epochs": 3, "server_step": 0.8},
    ),
    "fed-async": Case(
        "fed-async",
        {"step_size": 0.3, "fed_async_alpha": 0.8, "fed_async_rho": 0.5, **THREE},
        recursions.fed_async,
        {"step": recursions.constant(0.3), "epochs": 3, "alpha": 0.8, "proximal": 0.5},
    ),
    "area": Case("area", {"step_size": 0.3}, recursions.area, {"gamma": 0.3}),
    "five-gcs": Case(
        "five-gcs",
        {"rho": 1.1, "common_convexity": 0.3, **GCS},
        recursions.five_gcs,
        {"tau": 1 / (1.1 * COUNT), "gamma": 0.7, "mu": 0.3, "epochs": 3},
        0.4,
        scale=COUNT,
    ),
    "five-gcs, mu rho = 1": Case(
        "five-gcs",
        {"rho": 2.0, "common_convexity": 0.5, **GCS},
        recursions.five_gcs,
        {"tau": 1 / (2.0 * COUNT), "gamma": 0.7, "mu": 0.5, "epochs": 3},
        0.4,
        scale=COUNT,
    ),
    "fed-split": Case(
        "fed-split",
        {"rho": 1.2, "step_size": 0.4, **THREE},
        recursions.fed_split,
        {"s": 1.2, "step": 0.4, "epochs": 3},
    ),
}
RUNS = [
    pytest.param(case, rule, id=f"{name}, {rule}" if case.step else name)
    for name, case in CASES.items()
    for rule in (RULES if case.step else ["constant"])
]


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize(("case", "rule"), RUNS)
def test_it_is_the_papers_recursion(case: Case, rule: str, fraction: float) -> None:
    who = Fraction(fraction)
    active = [[int(n) for n in who.select(t, NAMES, 0)] for t in range(1, ROUNDS + 1)]
    kind: Any = algorithm(case.algorithm).load_strategy()
    settings, letters = dict(case.settings), dict(case.letters)
    if case.step:
        base = "step_size" if "step_size" in kind.arguments() else "step_size_base"
        settings |= {base: case.step, "step_size_rule": rule}
        settings |= {"step_size_rounds": PERIOD} if rule == "cosine" else {}
        letters[case.letter] = RULES[rule](case.scale * case.step)
    strategy = kind(num_agents=COUNT, participation=who, **settings)
    grid = InlineGrid(app_of(PROBLEMS, case.algorithm), COUNT)
    found = model(strategy.start(grid, ArrayRecord({"x": Array(START)}), num_rounds=ROUNDS))
    assert np.abs(found - case.recursion(PROBLEMS, START, active, **letters)).max() < 1e-12


# ------------------------------------------------------------------ rules of the step size


def test_a_limit_that_depends_on_the_steps_has_no_schedule() -> None:
    with pytest.raises(TypeError, match="step_size_rule"):
        FedSplit(step_size_rule="cosine")  # type: ignore[call-arg]


def test_what_does_not_go_together_is_one_line() -> None:
    for strategy in (FedDyn, FedPDM, Scaffold):
        with pytest.raises(ConfigError, match="cosine: needs step-size-rounds"):
            strategy(step_size_rule="cosine")
    with pytest.raises(ConfigError, match="cosine: needs step-size-rounds"):
        FedPLT(step_size=0.1, step_size_rule="cosine")
    private: Any = {"local_solver": "noisy-gd", "clip": 1.0, "noise_variance": 1.0}
    with pytest.raises(ConfigError, match="step-size-rule = 'cosine': not with noisy-gd"):
        FedPLT(step_size=0.1, step_size_rule="cosine", step_size_rounds=4, **private)
    with pytest.raises(ConfigError, match="step-size-rule = 'cosine': not with agd"):
        FiveGCS(local_solver="agd", step_size_rule="cosine", step_size_rounds=4)
