"""The cases: run configs whose results are recorded, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Kind = Literal["run", "epsilon", "cost"]


@dataclass(frozen=True)
class Case:
    """One run config and what is recorded of it.

    Attributes
    ----------
    name : str
    kind : str
        ``run``: model, history and account; ``epsilon``: the account of noise from the system, as
        nothing else of such a run repeats; ``cost``: what one agent's release costs over rounds.
    settings : mapping
        The run config, without ``output-dir``, ``resume`` and what `config` adds.
    first_rounds : int
        Where > 0, the run is ended after so many rounds and resumed from its checkpoint.
    ray : bool
        Whether the Ray engine plays it too.
    """

    name: str
    kind: Kind
    settings: Mapping[str, Any]
    first_rounds: int = 0
    ray: bool = False

    @property
    def algorithm(self) -> str:
        """The algorithm that runs."""
        return str(self.settings["algorithm"])

    @property
    def config(self) -> Mapping[str, Any]:
        """The run config with `OBJECTIVE`, and for Fed-PLT with the paper's local solver."""
        solver = {"local-solver": "gd"} if self.algorithm == "fed-plt" else {}
        l2 = "beta" not in self.settings and "regularizer" not in self.settings
        return {**(OBJECTIVE if l2 else {}), **solver, **self.settings}


OBJECTIVE: Mapping[str, Any] = {"regularizer-weight": 0.05}
"""What every case with an l2 term is played at."""

DATA: Mapping[str, Any] = {
    "dataset": "synthetic",
    "num-agents": 5,
    "examples-per-agent": 16,
    "features": 4,
    "num-server-rounds": 5,
    "seed": 7,
}
BREAST_CANCER: Mapping[str, Any] = {
    "dataset": "breast-cancer",
    "examples-per-agent": None,
    "features": None,
}
"""A data set of its own size; None takes a key out."""
HALF: Mapping[str, Any] = {"participation": "fraction", "fraction": 0.6}
CHANCE: Mapping[str, Any] = {"participation": "probability", "probability": "0=0.5,2=0.7,4=0.6"}
SCHEDULE: Mapping[str, Any] = {"participation": "schedule", "schedule": "0,1,2;2,3,4;0,4"}
BALANCED: Mapping[str, Any] = {"participation": "balanced", "fraction": 0.4}
MASKED: Mapping[str, Any] = {"secure-sum": True}
SINGLE: Mapping[str, Any] = {"dtype": "float32"}
L1: Mapping[str, Any] = {"h": "l1", "h-weight": 0.05}
SAMPLE: Mapping[str, Any] = {"batch": "sample", "batch-size": 4}
SEEDED: Mapping[str, Any] = {"noise-seed": 3}
PUBLIC: Mapping[str, Any] = {"clip": 1.0, "row-norm": 4.0}
BATCH_CLIP: Mapping[str, Any] = {"clipping": "batch"}

PLT_NOISE: Mapping[str, Any] = {"local-solver": "noisy-gd", "noise-variance": 0.01, **PUBLIC}
STRONG: Mapping[str, Any] = {"eta-rule": "strongly-convex", "strong-convexity": 0.05}
IADMM: Mapping[str, Any] = {"rho": 0.5}
IADMM_NOISE: Mapping[str, Any] = {**IADMM, **PUBLIC, "epsilon": 2.0}
OUTPUT: Mapping[str, Any] = {"perturbation": "output"}
LAPLACE: Mapping[str, Any] = {"mechanism": "laplace"}
STEPS: Mapping[str, Any] = {"max-local-steps": 3, "step-size-base": 0.2}
PDM_NOISE: Mapping[str, Any] = {"preset": "private", "noise-scale": 0.1, "row-norm": 4.0}
TABLE: Mapping[str, Any] = {"dual": "public", "aggregation": "table"}
STEP_NOISE: Mapping[str, Any] = {**PUBLIC, "noise-scale": 0.1, "step-size-base": 0.2}
WIDE: Mapping[str, Any] = {"features": 10}
SMALL: Mapping[str, Any] = {"server-learning-rate": 0.1}
GFL: Mapping[str, Any] = {
    "dataset": "regression",
    "features": 2,
    "partition": "natural-id",
    "num-agents": 8,
    "units": 4,
    "step-size": 0.05,
    **SAMPLE,
}
GFL_NOISE: Mapping[str, Any] = {"perturbation": "homomorphic", "noise-variance": 0.04}

_RUNS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "fed-plt": {
        "gd": {},
        "agd": {"local-solver": "agd"},
        "sgd": {"local-solver": "sgd", "batch-size": 4, "step-size": 0.1},
        "relaxed": {"relaxation": 0.5},
        "from-the-model": {"local-start": "model"},
        "given-moduli": {"strong-convexity": 0.05, "smoothness": 2.0, "rho": 1.0},
        "starting-model": {"init-scale": 1.0},
        "l1-breast-cancer": {**L1, **BREAST_CANCER, "partition": "dirichlet"},
        "elastic-net": {"h": "elastic-net", "h-weight": 0.05},
        "group-l1": {"h": "group-l1", "h-weight": 0.05, "h-group-size": 2},
        "box": {"h": "box", "h-radius": 0.3},
        "l2-ball": {"h": "l2-ball", "h-radius": 0.5},
        "fraction": HALF,
        "probability": CHANCE,
        "schedule": SCHEDULE,
        "balanced": BALANCED,
        "secure-sum": MASKED,
        "secure-sum-fraction": {**MASKED, **HALF},
        "float32": SINGLE,
        "nonconvex": {"regularizer": "nonconvex", "step-size": 0.1},
        "multinomial": {"loss": "multinomial-logistic"},
        "ridge-diabetes": {**BREAST_CANCER, "dataset": "diabetes", "partition": "iid"},
        "noise": {**PLT_NOISE, **SEEDED},
        "noise-no-clip": {**SEEDED, "local-solver": "noisy-gd", "noise-variance": 0.01},
        "noise-probability": {**PLT_NOISE, **SEEDED, **CHANCE},
        "noise-l1": {**PLT_NOISE, **SEEDED, **L1},
        "noise-float32": {**PLT_NOISE, **SEEDED, **SINGLE},
        "noise-secure-sum": {**PLT_NOISE, **SEEDED, **MASKED},
        "noise-target-epsilon": {**PLT_NOISE, **SEEDED, "noise-variance": 0.0, "target-epsilon": 8},
    },
    "dp-iadmm": {
        "plain": IADMM,
        "smooth": {**IADMM, "eta-rule": "smooth", "smoothness": 0.7},
        "strongly-convex": {**IADMM, **STRONG},
        "local-updates": {**IADMM, "local-updates": 3},
        "rho-schedule": {"epsilon": 1.0, "perturbation": "none", "rho-period": 2},
        "box": {**IADMM, "set": "box", "set-radius": 0.15},
        "l2-set": {**IADMM, "set": "l2", "set-radius": 0.1},
        "fraction": {**IADMM, **HALF},
        "secure-sum": {**IADMM, **MASKED},
        "float32": {**IADMM, **SINGLE},
        "beta": {**IADMM, "beta": 0.01},
        "objective-gaussian": {**IADMM_NOISE, **SEEDED},
        "objective-laplace": {**IADMM_NOISE, **SEEDED, **LAPLACE},
        "objective-local-updates": {**IADMM_NOISE, **SEEDED, "local-updates": 3},
        "objective-set": {**IADMM_NOISE, **SEEDED, "set": "box", "set-radius": 0.15},
        "objective-fraction": {**IADMM_NOISE, **SEEDED, **HALF},
        "objective-float32": {**IADMM_NOISE, **SEEDED, **SINGLE},
        "objective-secure-sum": {**IADMM_NOISE, **SEEDED, **MASKED},
        "output-gaussian": {**IADMM_NOISE, **SEEDED, **OUTPUT},
        "output-laplace": {**IADMM_NOISE, **SEEDED, **OUTPUT, **LAPLACE},
        "output-strongly-convex": {**IADMM_NOISE, **SEEDED, **OUTPUT, **STRONG},
        "noise-scale": {**IADMM, **PUBLIC, **SEEDED, "noise-scale": 0.05},
        "paper-sensitivity": {**IADMM, **SEEDED, "epsilon": 2.0, "sensitivity": "paper", **LAPLACE},
    },
    "fed-pdm": {
        "dense": STEPS,
        "sample": {**STEPS, **SAMPLE},
        "nu": {**STEPS, "nu": 0.05, "max-local-steps": 20},
        "l1": {**STEPS, **L1},
        "clip": {**STEPS, "clip": 0.5},
        "fraction": {**STEPS, **HALF},
        "plain-mean": {
            **STEPS,
            **WIDE,
            "sparsifier": "rand-k",
            "uplink-k": 4,
            "aggregation": "plain",
        },
        "public-dual": {**STEPS, "dual": "public"},
        "table": {**STEPS, **TABLE, **SCHEDULE},
        "latest": {**STEPS, **SCHEDULE, "aggregation": "latest"},
        "top-k": {**STEPS, **WIDE, "sparsifier": "top-k", "uplink-k": 3, "downlink-k": 5},
        "rand-k": {**STEPS, **WIDE, "sparsifier": "rand-k", "alpha-u": 0.4},
        "public-top-k": {**STEPS, **WIDE, "sparsifier": "public-top-k", "uplink-k": 4},
        "secure-sum": {**STEPS, **MASKED},
        "secure-sum-rand-k": {**STEPS, **WIDE, **MASKED, "sparsifier": "rand-k", "uplink-k": 4},
        "float32": {**STEPS, **SINGLE},
        "noise": {**PDM_NOISE, **SEEDED},
        "noise-whole-batch": {**PDM_NOISE, **SEEDED, **BATCH_CLIP},
        "noise-sample": {**PDM_NOISE, **SEEDED, **SAMPLE, "max-local-steps": 2},
        "noise-private-dual": {**PDM_NOISE, **SEEDED, "dual": "private"},
        "noise-table": {**PDM_NOISE, **SEEDED, **TABLE, **HALF},
        "noise-rand-k": {**PDM_NOISE, **SEEDED, **WIDE, "sparsifier": "rand-k", "uplink-k": 4},
        "noise-noisy-top-k": {
            **PDM_NOISE,
            **SEEDED,
            **WIDE,
            "sparsifier": "noisy-top-k",
            "uplink-k": 4,
        },
        "noise-secure-sum": {**PDM_NOISE, **SEEDED, **MASKED},
        "noise-float32": {**PDM_NOISE, **SEEDED, **SINGLE},
    },
    "dp-fedavg": {
        "plain": {"step-size-base": 0.2},
        "clip": {"step-size-base": 0.2, "clip": 0.1, "server-optimizer": "momentum"},
        "noise": {**STEP_NOISE, **SEEDED, "server-optimizer": "adam", **SMALL},
        "noise-sample": {**STEP_NOISE, **SEEDED, **SAMPLE},
    },
    "dp-fedsgd": {
        "plain": {"step-size-base": 0.2},
        "clip": {"step-size-base": 0.2, "clip": 0.5, "momentum": 0.5},
        "sample": {"step-size-base": 0.2, **SAMPLE, **HALF},
        "noise": {**STEP_NOISE, **SEEDED},
        "noise-batch-clip": {**STEP_NOISE, **SEEDED, **BATCH_CLIP},
        "noise-sample": {**STEP_NOISE, **SEEDED, **SAMPLE},
        "noise-float32": {**STEP_NOISE, **SEEDED, **SINGLE},
    },
    "fed-dyn": {
        "plain": STEPS,
        "fraction": {**STEPS, **HALF, "fed-dyn-alpha": 0.5},
        "noise": {**STEPS, **STEP_NOISE, **SEEDED},
        "noise-sample": {**STEPS, **STEP_NOISE, **SEEDED, **SAMPLE},
    },
    "scaffold": {
        "plain": STEPS,
        "fraction": {**STEPS, **HALF, "server-step-size": 0.7},
        "noise": {**STEPS, **STEP_NOISE, **SEEDED},
        "noise-sample": {**STEPS, **STEP_NOISE, **SEEDED, **SAMPLE},
    },
    "fed-lin": {"gd": {"local-epochs": 3}, "fraction": {"local-epochs": 3, **HALF}},
    "fed-pd": {
        "gd": {"local-epochs": 3},
        "sgd": {"local-epochs": 3, "local-solver": "sgd", "batch-size": 4, "step-size": 0.1},
    },
    "fed-split": {
        "gd": {"local-epochs": 3},
        "agd": {"local-epochs": 3, "local-solver": "agd"},
    },
    "five-gcs": {
        "gd": {"local-epochs": 3},
        "agd-fraction": {
            "local-epochs": 3,
            "local-solver": "agd",
            "common-convexity": 0.05,
            **HALF,
        },
    },
    "led": {
        "gd": {"local-epochs": 3},
        "sgd": {"local-epochs": 3, "local-solver": "sgd", "batch-size": 4, "dual-step-size": 0.2},
    },
    "tamuna": {
        "gd": {"local-epochs": 3},
        "fraction": {"local-epochs": 3, **HALF},
    },
    "fed-buff": {"gd": {"local-epochs": 3, "server-step-size": 0.7}},
    "fed-async": {"gd": {"local-epochs": 3, "fed-async-rho": 0.5}},
    "area": {"fraction": HALF},
    "gfl": {
        "plain": GFL,
        "complete": {**GFL, "graph": "complete", "batch": "full", "batch-size": None},
        "lazy-path": {**GFL, "graph": "path", "graph-lazy": True},
        "erdos-renyi": {**GFL, "graph": "erdos-renyi", "graph-seed": 3, "graph-probability": 0.7},
        "participants": {**GFL, "participants": 1},
        "float32": {**GFL, **SINGLE},
        "random": {**GFL, **GFL_NOISE, "perturbation": "random", **SEEDED},
        "homomorphic": {**GFL, **GFL_NOISE, **SEEDED},
        "homomorphic-laplace": {**GFL, **GFL_NOISE, **LAPLACE, **SEEDED},
        "homomorphic-closing-rounds": {**GFL, **GFL_NOISE, **SEEDED, "closing-rounds": 3},
        "homomorphic-secure-sum": {
            **GFL,
            **GFL_NOISE,
            **SEEDED,
            **MASKED,
            "num-agents": 6,
            "units": 2,
            "graph": "complete",
        },
    },
}
"""Runs that repeat: algorithm, name, and settings beside those of ``DATA``."""

_RESUMED: Mapping[str, str] = {
    "fed-plt": "noise-probability",
    "dp-iadmm": "objective-local-updates",
    "fed-pdm": "noise-table",
    "scaffold": "fraction",
    "gfl": "homomorphic-closing-rounds",
}
"""Cases that are also played in two parts."""

ENGINES_DATA: Mapping[str, Any] = {
    **DATA,
    "num-agents": 6,
    "features": 6,
    "row-norm": 4.0,
    "divisor": "agent",
}
"""What the cases that the Ray engine plays too have in common: the agents' data."""

_ENGINES: Mapping[str, Mapping[str, Any]] = {
    "fed-plt": {**PLT_NOISE, **SEEDED, **CHANCE, **L1},
    "dp-iadmm": {**IADMM_NOISE, **SEEDED, **HALF, "local-updates": 2},
    "fed-pdm": {**PDM_NOISE, **SEEDED, "sparsifier": "noisy-top-k", "uplink-k": 4},
    "dp-fedsgd": {**STEP_NOISE, **SEEDED, **SAMPLE, **HALF},
    "dp-fedavg": {**STEP_NOISE, **SEEDED, **SAMPLE, **HALF},
    "fed-dyn": {**STEPS, **STEP_NOISE, **SEEDED},
    "scaffold": {**STEPS, **STEP_NOISE, **SEEDED, **SAMPLE},
    "fed-lin": {"local-epochs": 3},
    "fed-pd": {"local-epochs": 3, "local-solver": "sgd", "batch-size": 4, "step-size": 0.1},
    "fed-split": {"local-epochs": 3, "local-solver": "agd"},
    "five-gcs": {"local-epochs": 3, "common-convexity": 0.05, **HALF},
    "led": {"local-epochs": 3, "local-solver": "sgd", "batch-size": 4},
    "tamuna": {"local-epochs": 3, **HALF},
    "fed-buff": {"local-epochs": 3, "local-solver": "sgd", "batch-size": 4},
    "fed-async": {"local-epochs": 3, **HALF},
    "area": HALF,
    "gfl": {**SAMPLE, **GFL_NOISE, **SEEDED, "units": 3, "step-size": 0.05},
}
"""Settings of the case of each algorithm that the Ray engine plays too."""

_TARGET: Mapping[str, Any] = {"target-epsilon": 4.0}
_NO_SCALE: Mapping[str, Any] = {"noise-scale": 0.0, **_TARGET}

_EPSILONS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "fed-plt": {
        "noise": PLT_NOISE,
        "target": {**PLT_NOISE, "noise-variance": 0.0, **_TARGET},
        "target-probability": {**PLT_NOISE, **CHANCE, "noise-variance": 0.0, **_TARGET},
        "secure-sum": {**PLT_NOISE, **MASKED},
        "no-clip": {"local-solver": "noisy-gd", "noise-variance": 0.01},
    },
    "dp-iadmm": {
        "gaussian": IADMM_NOISE,
        "laplace": {**IADMM_NOISE, **LAPLACE},
        "output-gaussian": {**IADMM_NOISE, **OUTPUT},
        "output-laplace": {**IADMM_NOISE, **OUTPUT, **LAPLACE},
        "target-gaussian": {**IADMM, **PUBLIC, **_TARGET},
        "target-laplace": {**IADMM, **PUBLIC, **_TARGET, **LAPLACE},
        "target-output": {**IADMM, **PUBLIC, **_TARGET, **OUTPUT},
    },
    "fed-pdm": {
        "public-dual": PDM_NOISE,
        "whole-batch": {**PDM_NOISE, **BATCH_CLIP},
        "noisy-top-k": {**PDM_NOISE, **WIDE, "sparsifier": "noisy-top-k", "uplink-k": 4},
        "target": {**PDM_NOISE, **_NO_SCALE},
        "target-fraction": {**PDM_NOISE, **_NO_SCALE, **HALF},
    },
    "dp-fedsgd": {
        "noise": STEP_NOISE,
        "target": {**STEP_NOISE, **_NO_SCALE},
        "target-fraction": {**STEP_NOISE, **_NO_SCALE, **HALF},
    },
    "fed-dyn": {
        "noise": {**STEPS, **STEP_NOISE},
        "target": {**STEPS, **STEP_NOISE, **_NO_SCALE},
    },
    "scaffold": {
        "noise": {**STEPS, **STEP_NOISE},
        "target": {**STEPS, **STEP_NOISE, **_NO_SCALE},
    },
    "gfl": {
        "homomorphic": {**GFL, **GFL_NOISE},
        "random": {**GFL, **GFL_NOISE, "perturbation": "random"},
    },
}
"""Runs with noise from the system, in which the account repeats and the model does not."""

_COSTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "fed-plt": {
        "base": PLT_NOISE,
        "one-epoch": {**PLT_NOISE, "local-epochs": 1},
        "rho-1": {**PLT_NOISE, "rho": 1.0},
        "step-size": {**PLT_NOISE, "step-size": 0.1},
        "given-moduli": {**PLT_NOISE, "strong-convexity": 0.05, "smoothness": 4.05},
        "no-regularizer": {**PLT_NOISE, "regularizer": "none"},
        "less-noise": {**PLT_NOISE, "noise-variance": 1e-3},
        "clip-2": {**PLT_NOISE, "clip": 2.0},
        "delta": {**PLT_NOISE, "delta": 1e-3},
        "float32": {**PLT_NOISE, **SINGLE},
    },
    "dp-iadmm": {
        "nonsmooth": IADMM_NOISE,
        "smooth": {**IADMM_NOISE, "eta-rule": "smooth", "smoothness": 0.7},
        "strongly-convex": {**IADMM_NOISE, **STRONG},
        "local-updates": {**IADMM_NOISE, "local-updates": 3},
        "laplace": {**IADMM_NOISE, **LAPLACE},
        "output": {**IADMM_NOISE, **OUTPUT},
        "output-laplace": {**IADMM_NOISE, **OUTPUT, **LAPLACE},
        "output-rho-2": {**IADMM_NOISE, **OUTPUT, "rho": 2.0},
        "epsilon-1": {**IADMM_NOISE, "epsilon": 1.0},
        "noise-scale": {**IADMM, **PUBLIC, "noise-scale": 0.05},
        "divisor-agent": {**IADMM_NOISE, "divisor": "agent"},
    },
    "fed-pdm": {
        "public-dual": PDM_NOISE,
        "two-steps": {**PDM_NOISE, "max-local-steps": 2},
        "falling-steps": {**PDM_NOISE, "step-size-rule": "inverse-sqrt", "step-size-base": 0.4},
        "sample": {**PDM_NOISE, **SAMPLE},
        "sample-two-steps": {**PDM_NOISE, **SAMPLE, "max-local-steps": 2},
        "whole-batch": {**PDM_NOISE, **BATCH_CLIP},
        "noisy-top-k": {**PDM_NOISE, **WIDE, "sparsifier": "noisy-top-k", "uplink-k": 4},
    },
    "dp-fedsgd": {
        "base": STEP_NOISE,
        "sample": {**STEP_NOISE, **SAMPLE},
        "batch-clip": {**STEP_NOISE, **BATCH_CLIP},
    },
    "fed-dyn": {
        "base": {**STEPS, **STEP_NOISE},
        "alpha": {**STEPS, **STEP_NOISE, "fed-dyn-alpha": 0.5},
        "sample": {**STEPS, **STEP_NOISE, **SAMPLE},
    },
    "scaffold": {
        "base": {**STEPS, **STEP_NOISE},
        "falling-steps": {**STEPS, **STEP_NOISE, "step-size-rule": "inverse-sqrt"},
        "sample": {**STEPS, **STEP_NOISE, **SAMPLE},
    },
}
"""Settings whose cost is tabulated, over three rounds of two agents."""


def _build() -> dict[str, Case]:
    cases: list[Case] = []
    for algorithm, runs in _RUNS.items():
        for name, own in runs.items():
            settings = {**DATA, "algorithm": algorithm, **own}
            cases.append(Case(f"{algorithm}-{name}", "run", settings))
        if name := _RESUMED.get(algorithm):
            settings = {**DATA, "algorithm": algorithm, **runs[name]}
            cases.append(Case(f"{algorithm}-resumed", "run", settings, first_rounds=2))
    for algorithm, own in _ENGINES.items():
        settings = {**ENGINES_DATA, "algorithm": algorithm, **own}
        cases.append(Case(f"{algorithm}-engines", "run", settings, ray=True))
    for algorithm, runs in _EPSILONS.items():
        for name, own in runs.items():
            settings = {**DATA, "algorithm": algorithm, **own}
            cases.append(Case(f"epsilon-{algorithm}-{name}", "epsilon", settings))
    small = {**DATA, "num-agents": 2, "num-server-rounds": 3}
    for algorithm, runs in _COSTS.items():
        for name, own in runs.items():
            settings = {**small, "algorithm": algorithm, **own}
            cases.append(Case(f"{algorithm}/{name}", "cost", settings))
    return {case.name: replace(case, settings=_given(case.settings)) for case in cases}


def _given(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}


CASES: Mapping[str, Case] = _build()
