"""The run-config keys about data, typed and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from privet.datasets.dataset import DataError

LOSSES = ("binary-logistic", "multinomial-logistic", "ridge", "one-class-logistic")
INTERCEPT = {"auto": None, "yes": True, "no": False}
_DIVISORS = ("auto", "agent", "federation")
# What divisor = auto means where the algorithm's own problem is not a mean over the agent.
_DIVISOR_OF = {"dp-iadmm": "federation"}


@dataclass(frozen=True, slots=True)
class DataSettings:
    """The run-config keys about data, in kebab case, with their defaults; others are ignored.

    Attributes
    ----------
    dataset, data_path, data_seed, intercept, dtype
        As the arguments of `load`; ``intercept`` is "auto", "yes" or "no".
    features, examples_per_agent : int
        Size of the ``synthetic`` and the ``regression`` data.
    columns, hashing, label_column, id_column
        As the arguments of `load`.
    partition, partition_seed, classes_per_agent, dirichlet_alpha
        As the arguments of `partition`.
    loss : str
        "auto" (by the task of the data set), "binary-logistic", "multinomial-logistic",
        "one-class-logistic", "ridge".
    regularizer, regularizer_weight
        As the arguments of `make_regularizer`.
    row_norm : float
        Rows, the intercept included, are scaled down to this public l2 norm; 0 leaves them.
    beta : float
        Where > 0, the l2 weight is 2 beta / agents: the agent's share of a term beta ||x||^2.
    divisor : str
        What an agent's summed loss is divided by: its own number of examples ("agent") or that
        of all agents ("federation"); "auto" is the latter where the key ``algorithm`` is
        dp-iadmm, whose objective (2c) is the mean over all agents' examples.
    """

    dataset: str = "breast-cancer"
    data_path: str = ""
    data_seed: int = 42
    intercept: str = "auto"
    dtype: str = "float64"
    features: int = 5
    examples_per_agent: int = 250
    columns: int = 0
    hashing: bool = False
    label_column: str = ""
    id_column: str = ""
    partition: str = "label"
    partition_seed: int = 0
    classes_per_agent: int = 2
    dirichlet_alpha: float = 0.5
    loss: str = "auto"
    regularizer: str = "l2"
    regularizer_weight: float = 0.05
    beta: float = 0.0
    row_norm: float = 0.0
    divisor: Literal["auto", "agent", "federation"] = "auto"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DataSettings:
        """Read the keys that are there.

        Raises
        ------
        DataError
            A value of the wrong type or outside its range: names the key.
        """
        given = {
            name: _typed(key, config[key], default) for key, name, default in _KEYS if key in config
        }
        if given.get("divisor", "auto") == "auto":
            given["divisor"] = _DIVISOR_OF.get(str(config.get("algorithm")), "agent")
        settings = cls(**given)
        for key, value, known in (
            ("intercept", settings.intercept, INTERCEPT),
            ("loss", settings.loss, ("auto", *LOSSES)),
            ("divisor", settings.divisor, _DIVISORS),
        ):
            if value not in known:
                raise DataError(f"{key} {value!r} is unknown; expected one of {', '.join(known)}")
        # Written so that a nan fails too.
        if not 0 <= settings.row_norm < float("inf"):
            raise DataError(f"row-norm must be >= 0, got {settings.row_norm}")
        if not 0 <= settings.beta < float("inf"):
            raise DataError(f"beta must be >= 0, got {settings.beta}")
        if settings.beta and settings.regularizer != "l2":
            raise DataError(f"beta needs regularizer l2, got {settings.regularizer}")
        return settings


_KEYS = tuple(
    (field.name.replace("_", "-"), field.name, field.default) for field in fields(DataSettings)
)
_TYPE_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


def _typed(key: str, value: Any, default: Any) -> Any:
    kind = type(default)
    if kind is float and type(value) is int:
        value = float(value)
    elif key == "data-path" and value is not None:
        value = str(value)
    if type(value) is not kind:
        raise DataError(f"{key} must be {_TYPE_NAMES[kind]}, got {value!r}")
    return value
