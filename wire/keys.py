"""The typed table of run-config keys: name, type, default, range and meaning, in one place.

``pyproject.toml`` lists the same keys with the same defaults (a test compares them), because
Flower refuses an override of a key that is not there.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Key:
    """One run-config key.

    ``auto`` gives, per algorithm, the value that stands in for the default: a shared key such as
    ``rho`` has one entry in the run config but another sensible value for each algorithm. Entries
    named ``algorithm:preset`` do so where the run config asks for that preset.
    """

    name: str
    default: Scalar
    doc: str
    choices: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    auto: Mapping[str, Scalar] = field(default_factory=dict)

    def check(self, value: Any) -> Scalar:
        """Return the value in the key's type.

        Raises
        ------
        ConfigError
            If the type, range or choice is wrong.
        """
        kind = type(self.default)
        if kind is float and type(value) is int:
            value = float(value)
        if kind is float and value == "inf":
            value = math.inf
        if type(value) is not kind:
            raise ConfigError(f"{self.name} = {value!r}: expected {_KINDS[kind]}")
        if self.choices and value not in self.choices:
            raise ConfigError(f"{self.name} = {value!r}: choose one of {', '.join(self.choices)}")
        if isinstance(value, int | float) and kind is not bool:
            self._check_range(value)
        checked: Scalar = value
        return checked

    def _check_range(self, value: float) -> None:
        below = value <= self.low if self.open_low else value < self.low
        if math.isnan(value) or below or value > self.high:
            sign = ">" if self.open_low else ">="
            bounds = [f"{sign} {self.low:g}"] if self.low > -math.inf else []
            bounds += [f"<= {self.high:g}"] if self.high < math.inf else []
            raise ConfigError(
                f"{self.name} = {value!r}: must be {' and '.join(bounds) or 'a number'}"
            )


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
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
H_NAMES = ("zero", "l1", "elastic-net", "box", "l2-ball", "group-l1")

RUN_KEYS: tuple[Key, ...] = (
    Key("algorithm", "fed-plt", "which algorithm runs"),
    Key("num-server-rounds", 40, "rounds at most", low=0),
    Key("num-agents", 10, "agents to wait for; 0 takes those that are there", low=0),
    Key("min-agents", 1, "fewer replies than this end the run", low=1),
    Key("wait-timeout", 60.0, "seconds to wait for the agents", low=0),
    Key("round-timeout", 600.0, "seconds to wait for the replies of a round", low=0, open_low=True),
    Key("seed", 0, "seed of everything random but privacy noise", low=0),
    Key(
        "participation",
        "all",
        "who takes part in a round",
        choices=("all", "fraction", "balanced", "probability", "schedule"),
    ),
    Key(
        "fraction",
        1.0,
        "participation = fraction or balanced: share of the agents, in each round",
        low=0,
        high=1,
        open_low=True,
    ),
    Key("probability", "1.0", "participation = probability: one for all, or name=p,name=p,..."),
    Key("schedule", "", "participation = schedule: names by comma, rounds by semicolon, repeated"),
    Key("tolerance", 0.0, "stop when the stationarity measure is at most this; 0 never", low=0),
    Key("evaluate-every", 1, "rounds between evaluations on the server", low=1),
    Key("checkpoint-every", 1, "rounds between checkpoints; 0 only at the end", low=0),
    Key("output-dir", "", "absolute folder for run folders; empty is ./runs where the server runs"),
    Key("resume", "", "absolute path of a run folder to go on from"),
    Key(
        "init-scale",
        0.0,
        "standard deviation of the random starting model; 0 starts at zero",
        low=0,
    ),
)

DATA_KEYS: tuple[Key, ...] = (
    Key("dataset", "breast-cancer", "name of the data set"),
    Key("data-path", "", "absolute path of the data, where the data set needs one"),
    Key("data-seed", 42, "seed of generated data and of splits that are not given", low=0),
    Key("features", 5, "dataset = synthetic, regression: number of features", low=2),
    Key("examples-per-agent", 250, "dataset = synthetic, regression: examples an agent", low=1),
    Key("columns", 0, "dataset = click: number of columns; 0 is the file's", low=0),
    Key("hashing", False, "dataset = click: whether indices are hashed to the columns"),
    Key("label-column", "", "data-path = hf:...: column of the labels; empty is the usual one"),
    Key("id-column", "", "data-path = hf:...: column of the ids for partition = natural-id"),
    Key("intercept", "auto", "column of ones", choices=("auto", "yes", "no")),
    Key(
        "partition",
        "label",
        "how examples are dealt to agents",
        choices=(
            "iid",
            "label",
            "dirichlet",
            "natural-id",
            "none",
            "flwr-iid",
            "flwr-dirichlet",
            "flwr-pathological",
        ),
    ),
    Key("partition-seed", 0, "seed of the partition", low=0),
    Key(
        "classes-per-agent",
        2,
        "partition = label, flwr-pathological: label shards, labels an agent holds",
        low=1,
    ),
    Key(
        "dirichlet-alpha",
        0.5,
        "partition = dirichlet, flwr-dirichlet: concentration",
        low=0,
        open_low=True,
    ),
    Key(
        "loss",
        "auto",
        "loss of the agents",
        choices=(
            "auto",
            "binary-logistic",
            "multinomial-logistic",
            "one-class-logistic",
            "ridge",
        ),
    ),
    Key(
        "regularizer",
        "l2",
        "smooth regulariser of each agent's loss",
        choices=("none", "l2", "nonconvex"),
    ),
    Key("regularizer-weight", 0.05, "weight of the regulariser", low=0),
    Key("beta", 0.0, "weight of ||x||^2 in the sum: regularizer-weight is 2 beta / agents", low=0),
    Key(
        "divisor",
        "auto",
        "what a summed loss is divided by: the agent's examples or all; auto: the algorithm's",
        choices=("auto", "agent", "federation"),
    ),
    Key("row-norm", 0.0, "rows are clipped to this public L2 norm; 0 leaves them", low=0),
    Key("dtype", "float64", "arithmetic", choices=("float32", "float64")),
)

MODEL_KEYS: tuple[Key, ...] = (
    Key("h", "zero", "shared regulariser h with a proximal operator", choices=H_NAMES),
    Key("h-weight", 0.0, "weight of h (l1, elastic-net, group-l1)", low=0),
    Key("h-ratio", 0.5, "elastic-net: share of the l1 part", low=0, high=1),
    Key("h-radius", 1.0, "box, l2-ball: radius", low=0, open_low=True),
    Key("h-group-size", 1, "group-l1: length of each group", low=1),
)

ALGORITHM_KEYS: tuple[Key, ...] = (
    Key(
        "rho",
        0.0,
        "penalty of the splitting; 0 is the algorithm's default",
        low=0,
        auto={
            "fed-plt": 3.0,
            "fed-pdm": 1.0,
            "fed-pd": 3.0,
            "fed-split": 3.0,
            "five-gcs": 3.0,
        },
    ),
    Key("local-epochs", 10, "local solver steps in a round (N_e); tamuna: their mean", low=1),
    Key("local-solver", "gd", "local solver", choices=SOLVERS),
    Key(
        "step-size",
        0.0,
        "local step size, gfl: mu; 0 computes it from the moduli, gfl, fed-lin, led, tamuna: 0.1",
        low=0,
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
    Key("local-updates", 1, "inner steps in a round (E)", low=1),
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
    Key("fed-dyn-alpha", 0.1, "fed-dyn: weight of the proximal term", low=0, open_low=True),
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

PRIVACY_KEYS: tuple[Key, ...] = (
    Key(
        "preset",
        "none",
        "private: values for a certified run in place of defaults",
        choices=("none", "private"),
    ),
    Key(
        "clip",
        0.0,
        "gradient norm bound; 0 does not clip",
        low=0,
        auto={"fed-pdm:private": 1.0},
    ),
    Key(
        "clipping",
        "example",
        "what is clipped: each example's gradient or the whole batch's",
        choices=("example", "batch"),
    ),
    Key("noise-scale", 0.0, "noise on an upload (fed-pdm) or a gradient (dp-iadmm)", low=0),
    Key(
        "noise-variance",
        0.0,
        "variance tau^2 of the noisy gradient (13); gfl: sigma_g^2 of a message between servers",
        low=0,
    ),
    Key(
        "noise-seed",
        -1,
        "seed of the privacy noise: marks the run not private; -1 uses the system",
        low=-1,
    ),
    Key(
        "target-epsilon",
        0.0,
        "total epsilon to calibrate the noise for; 0 takes it as given",
        low=0,
    ),
    Key(
        "secure-sum",
        False,
        "agents mask their uploads: the server sees sums over at least three of them; an attempt "
        "at one takes half of the round-timeout at most",
    ),
    Key("delta", 1e-5, "delta of the account", low=0, high=1, open_low=True),
    Key("relation", "replace-one", "neighbouring relation", choices=("replace-one", "add-remove")),
)

TABLE: tuple[Key, ...] = (
    RUN_KEYS
    + DATA_KEYS
    + MODEL_KEYS
    + ALGORITHM_KEYS
    + DP_IADMM_KEYS
    + FED_PDM_KEYS
    + GFL_KEYS
    + PEER_KEYS
    + PRIVACY_KEYS
)
_BY_NAME = {key.name: key for key in TABLE}


def key(name: str) -> Key:
    """Return one key of the table."""
    return _BY_NAME[name]


def defaults() -> dict[str, Scalar]:
    """Return the table as the ``[tool.flwr.app.config]`` section holds it."""
    return {entry.name: entry.default for entry in TABLE}


def resolve(raw: Mapping[str, Any], algorithm: str, extra: Iterable[Key] = ()) -> dict[str, Any]:
    """Return every key of the table, checked, with defaults filled in for the algorithm.

    Raises
    ------
    ConfigError
        If a key is unknown (with the nearest known name) or a value does not fit.
    """
    table = {**_BY_NAME, **{entry.name: entry for entry in extra}}
    for name in raw:
        if name not in table:
            near = difflib.get_close_matches(name, table, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"unknown config key {name!r}{hint}")
    preset = f"{algorithm}:{raw.get('preset', 'none')}"
    if not preset.endswith(":none") and not any(preset in entry.auto for entry in table.values()):
        raise ConfigError(f"preset = {raw['preset']!r}: {algorithm} has no such preset")
    resolved: dict[str, Any] = {}
    for name, entry in table.items():
        value = entry.check(raw[name]) if name in raw else entry.default
        if value == entry.default:
            value = entry.auto.get(preset, entry.auto.get(algorithm, value))
        resolved[name] = value
    return resolved
