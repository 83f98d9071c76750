"""The typed table of run-config keys: name, type, default, range and meaning, in one place.

``pyproject.toml`` lists the same keys with the same defaults (a test compares them), because
Flower refuses an override of a key that is not there.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from .algorithm_keys import ALGORITHM_KEYS, DP_IADMM_KEYS, FED_PDM_KEYS, GFL_KEYS, PEER_KEYS
from .errors import ConfigError
from .key import Key, Scalar

SMALLEST_NOISE, LARGEST_NOISE = 1e-100, 1e100
"""Noise and clips are 0 or in between: beyond, products with them under- or overflow."""

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
    Key(
        "recover-by-name",
        "auto",
        "who goes on for an agent whose node is gone: the next node of its name (yes), that node "
        "but anew (no), nobody else (node-key); auto: yes in simulation, else no",
        choices=("auto", "yes", "no", "node-key"),
    ),
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
    Key(
        "row-norm",
        0.0,
        "rows are clipped to this public L2 norm; 0 leaves them",
        low=0,
        floor=1e-30,
        high=LARGEST_NOISE,
    ),
    Key("dtype", "float64", "arithmetic", choices=("float32", "float64")),
)

MODEL_KEYS: tuple[Key, ...] = (
    Key("h", "zero", "shared regulariser h with a proximal operator", choices=H_NAMES),
    Key("h-weight", 0.0, "weight of h (l1, elastic-net, group-l1)", low=0),
    Key("h-ratio", 0.5, "elastic-net: share of the l1 part", low=0, high=1),
    Key("h-radius", 1.0, "box, l2-ball: radius", low=0, open_low=True),
    Key("h-group-size", 1, "group-l1: length of each group", low=1),
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
        floor=SMALLEST_NOISE,
        high=LARGEST_NOISE,
        auto={"fed-pdm:private": 1.0},
    ),
    Key(
        "clipping",
        "example",
        "what is clipped: each example's gradient or the whole batch's",
        choices=("example", "batch"),
    ),
    Key(
        "noise-scale",
        0.0,
        "noise on an upload (fed-pdm) or a gradient (dp-iadmm)",
        low=0,
        floor=SMALLEST_NOISE,
        high=LARGEST_NOISE,
    ),
    Key(
        "noise-variance",
        0.0,
        "variance tau^2 of the noisy gradient (13); gfl: sigma_g^2 of a message between servers",
        low=0,
        floor=SMALLEST_NOISE,
        high=LARGEST_NOISE,
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
    Key("delta", 1e-5, "delta of the account", low=0, high=0.5, open_low=True),
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
