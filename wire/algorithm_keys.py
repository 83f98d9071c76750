"""The run-config keys of the algorithms, by the algorithm that brought them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .key import Key

SMALLEST_STEP, LARGEST_STEP = 1e-100, 1e100
"""Steps and penalties beyond these under- or overflow in products."""
MOST_STEPS = 100_000
"""Local steps of a round at most: no message keeps a node at work for days."""

SOLVERS = ("gd", "agd", "sgd", "noisy-gd")
LOCAL_SOLVERS: Mapping[str, tuple[str, ...]] = {
    "fed-lin": ("gd",),
    "fed-pd": ("gd", "sgd"),
    "fed-split": ("gd", "agd", "sgd"),
    "five-gcs": ("gd", "agd", "sgd"),
    "led": ("gd", "sgd"),
    "tamuna": ("gd", "sgd"),
}
"""Local solvers of the algorithms that do not take all."""

ALGORITHM_KEYS: tuple[Key, ...] = (
    Key(
        "rho",
        0.0,
        "penalty of the splitting; 0 is the algorithm's default",
        low=0,
        floor=SMALLEST_STEP,
        high=LARGEST_STEP,
        auto={
            "fed-plt": 3.0,
            "fed-pdm": 1.0,
            "fed-pd": 3.0,
            "fed-split": 3.0,
            "five-gcs": 3.0,
        },
    ),
    Key(
        "local-epochs",
        10,
        "local solver steps in a round (N_e); tamuna: their mean",
        low=1,
        high=MOST_STEPS,
    ),
    Key("local-solver", "gd", "local solver", choices=SOLVERS),
    Key(
        "step-size",
        0.0,
        "local step size, gfl: mu; 0 computes it from the moduli, gfl, fed-lin, led, tamuna: 0.1",
        low=0,
        floor=SMALLEST_STEP,
        high=LARGEST_STEP,
        auto={"gfl": 0.1, "fed-lin": 0.1, "led": 0.1, "tamuna": 0.1},
    ),
    Key(
        "dual-step-size",
        0.0,
        "led: beta, 0 is 1 / local-epochs; tamuna: eta, 0 is the largest its theory allows",
        low=0,
    ),
    Key("common-convexity", 0.0, "five-gcs: strong convexity that every f_i has (mu)", low=0),
    Key("batch-size", 32, "local-solver = sgd, batch = sample: examples of a step", low=1),
    Key("strong-convexity", 0.0, "strong convexity of every f_i, used when smoothness is given"),
    Key("smoothness", 0.0, "smoothness of every f_i; 0 lets each agent compute its own", low=0),
)

DP_IADMM_KEYS: tuple[Key, ...] = (
    Key("local-updates", 1, "inner steps in a round (E)", low=1, high=MOST_STEPS),
    Key(
        "eta-rule",
        "nonsmooth",
        "step sizes by (15), (19) or (22)",
        choices=("smooth", "nonsmooth", "strongly-convex"),
    ),
    Key("rho-c1", 2.0, "rho = 0: c1 of the schedule (24)", low=0),
    Key("rho-c2", 5.0, "rho = 0: c2 of (24), divided by epsilon", low=0),
    Key("rho-growth", 1.2, "rho = 0: factor of c1 after every period", low=1),
    Key("rho-period", 10_000, "rho = 0: rounds of a period (T_c)", low=1),
    Key("rho-max", 1e9, "rho = 0: largest rho", low=0, open_low=True),
    Key("set", "none", "the set W that models stay in", choices=("none", "box", "l2")),
    Key("set-radius", 1.0, "radius of the set", low=0, open_low=True),
    Key(
        "perturbation",
        "auto",
        "what the noise is added to",
        choices=("auto", "none", "objective", "output", "random", "homomorphic"),
        auto={"dp-iadmm": "objective"},
    ),
    Key("mechanism", "gaussian", "distribution of the noise", choices=("gaussian", "laplace")),
    Key(
        "epsilon",
        math.inf,
        "epsilon of one release: its noise, where noise-scale is 0, and the schedules; inf is none",
        low=0,
        open_low=True,
    ),
    Key(
        "sensitivity",
        "clip",
        "what noise is scaled by; paper: a number computed from the data, which is not private",
        choices=("clip", "paper"),
    ),
)

FED_PDM_KEYS: tuple[Key, ...] = (
    Key(
        "step-size-base",
        0.04,
        "fed-pdm and its rivals: local step size of the first round",
        low=0,
        open_low=True,
        floor=SMALLEST_STEP,
        high=LARGEST_STEP,
        auto={"fed-pdm:private": 0.5},
    ),
    Key(
        "step-size-rule",
        "inverse-sqrt",
        "constant, or divided by sqrt(1 + t) in round t = 0, 1, ...",
        choices=("constant", "inverse-sqrt"),
        auto={"fed-pdm:private": "constant"},
    ),
    Key(
        "max-local-steps",
        10,
        "local steps in a round (Q); fewer where nu > 0 ends them",
        low=1,
        high=MOST_STEPS,
        auto={"fed-pdm:private": 1, "dp-fedsgd": 1},
    ),
    Key(
        "server-step-size",
        1.0,
        "scaffold: step of the server along the agents' mean move; five-gcs: gamma",
        low=0,
        open_low=True,
    ),
    Key("momentum", 0.9, "dp-fedsgd: share of the last step that is kept", low=0, high=1),
    Key(
        "fed-dyn-alpha",
        0.1,
        "fed-dyn: weight of the proximal term",
        low=0,
        high=LARGEST_STEP,
        open_low=True,
    ),
    Key("nu", 0.0, "local steps end when the squared gradient norm is at most this", low=0),
    Key("batch", "full", "examples of a step: all or batch-size", choices=("full", "sample")),
    Key(
        "dual",
        "auto",
        "the paper's, or computed by both sides from what was released; auto: public with noise",
        choices=("auto", "private", "public"),
    ),
    Key(
        "aggregation",
        "participants",
        "mean over those that sent a coordinate, plain mean, or with a table of all duals",
        choices=("participants", "plain", "table"),
    ),
    Key(
        "sparsifier",
        "none",
        "which coordinates an agent sends",
        choices=("none", "top-k", "rand-k", "public-top-k", "noisy-top-k"),
    ),
    Key("uplink-k", 0, "coordinates an agent sends; 0 takes alpha-u", low=0),
    Key("downlink-k", 0, "coordinates the server sends; 0 takes alpha-d", low=0),
    Key("alpha-u", 1.0, "share of the coordinates an agent sends", low=0, high=1, open_low=True),
    Key("alpha-d", 1.0, "share of the coordinates the server sends", low=0, high=1, open_low=True),
)

GFL_KEYS: tuple[Key, ...] = (
    Key("units", 5, "gfl: servers, each with its own agents (P)", low=1),
    Key(
        "graph",
        "ring",
        "gfl: which servers exchange models",
        choices=("ring", "complete", "path", "star", "erdos-renyi", "grid", "edges"),
    ),
    Key("graph-edges", "", "graph = edges: pairs of units, such as 0-1,1-2"),
    Key("graph-seed", 0, "graph = erdos-renyi: its seed", low=0),
    Key("graph-probability", 0.5, "graph = erdos-renyi: share of the pairs", low=0, high=1),
    Key("graph-lazy", False, "gfl: weights (A + I) / 2 in place of Metropolis weights A"),
    Key("participants", 0, "gfl: agents a unit asks in a round (L); 0 asks all", low=0),
    Key(
        "closing-rounds",
        0,
        "gfl: exchanges without noise after the last round, towards the mean of the models",
        low=0,
    ),
)

PEER_KEYS: tuple[Key, ...] = (
    Key("unit", "", "gfl: the unit this server hosts; empty hosts all of them, a simulation"),
    Key("unit-agents", 0, "unit: agents it waits for; 0 takes num-agents / units", low=0),
    Key("peers", "", "unit: the other servers, such as 1=https://host:9443,2=https://host:9443"),
    Key("peer-bind", "127.0.0.1:9443", "unit: where this server listens for the others"),
    Key("peer-certificate", "", "unit: absolute path of the certificate with the name unit-<unit>"),
    Key("peer-key", "", "unit: absolute path of its private key"),
    Key(
        "peer-ca", "", "unit: absolute path of the authority that signed all servers' certificates"
    ),
    Key(
        "peer-timeout",
        60.0,
        "unit: seconds that a round waits for another server",
        low=0,
        open_low=True,
    ),
    Key("gfl-run", "gfl", "unit: name of the run, the same on all servers"),
)
