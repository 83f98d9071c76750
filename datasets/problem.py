"""From run-config keys to the problem of one agent, or of a whole federation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from privet.datasets.dataset import DataError, Dataset, FloatArray, LabelArray, frozen
from privet.datasets.loaders import load
from privet.datasets.partitions import Indices, partition
from privet.problems import (
    BinaryLogistic,
    LinearModel,
    MultinomialLogistic,
    OneClassLogistic,
    Regularizer,
    RidgeRegression,
    clip_rows,
    make_regularizer,
)

LOSSES = ("binary-logistic", "multinomial-logistic", "ridge", "one-class-logistic")
_AUTO = dict(zip(("binary", "multinomial", "regression"), LOSSES[:3], strict=True))
_INTERCEPT = {"auto": None, "yes": True, "no": False}
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
        Size of the ``synthetic`` data.
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
            ("intercept", settings.intercept, _INTERCEPT),
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
_TYPE_NAMES = {str: "a string", int: "an integer", float: "a number"}


def _typed(key: str, value: Any, default: Any) -> Any:
    kind = type(default)
    if kind is float and type(value) is int:
        value = float(value)
    elif key == "data-path" and value is not None:
        value = str(value)
    if type(value) is not kind:
        raise DataError(f"{key} must be {_TYPE_NAMES[kind]}, got {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class Federation:
    """All agents' problems and the held-out set: what a simulation and its evaluation see.

    Privacy: this is the view of someone who holds everybody's data. A coordinator has only
    `evaluate`, and that only if the held-out set is public.

    Attributes
    ----------
    dataset : Dataset
    parts : tuple of sorted index arrays
        The training examples of each agent.
    problems : tuple of LinearModel
        f_1 ... f_N.
    held_out : LinearModel
        The mean loss over the test set, without regulariser.
    """

    dataset: Dataset
    parts: tuple[Indices, ...]
    problems: tuple[LinearModel[Any], ...]
    held_out: LinearModel[Any]

    @property
    def dim(self) -> int:
        """Length of x."""
        return self.held_out.dim

    def objective(self, x: FloatArray) -> float:
        """Return sum_i f_i(x)."""
        return sum(problem.value(x) for problem in self.problems)

    def gradient(self, x: FloatArray) -> FloatArray:
        """Return sum_i grad f_i(x), shape (dim,)."""
        total: FloatArray = np.sum([problem.gradient(x) for problem in self.problems], axis=0)
        return total

    def evaluate(self, x: FloatArray) -> dict[str, float]:
        """Return ``accuracy`` (a fraction) and ``loss`` (a mean, unregularised) on the test set.

        A regression has no ``accuracy``.
        """
        model = self.held_out
        result = {"loss": model.value(x)}
        if isinstance(model, MultinomialLogistic | OneClassLogistic):
            result["accuracy"] = model.accuracy(x, model.features, model.labels)
        elif self.dataset.task == "binary":
            labels = self.dataset.test_labels
            result["accuracy"] = BinaryLogistic.accuracy(x, model.features, labels)
        return result


def problem_from_config(
    config: Mapping[str, Any], agent_index: int, num_agents: int
) -> LinearModel[Any]:
    """Return the problem f_i of one agent, built from that agent's rows alone.

    The split is that of `federation_from_config`, and data, split and problem are cached per
    process: asking again costs microseconds, and gives the same object.

    Parameters
    ----------
    config : mapping
        Run-config or node-config values; the keys are those of `DataSettings`.
    agent_index : int
        0 ... num_agents - 1.
    num_agents : int

    Raises
    ------
    DataError
        A key, file or agent that cannot be used: one line that names it.
    """
    settings = DataSettings.from_config(config)
    if not 0 <= agent_index < num_agents:
        raise DataError(f"agent {agent_index}: expected 0 ... {num_agents - 1}")
    return _agents(settings, num_agents).problem(agent_index)


def federation_from_config(config: Mapping[str, Any], num_agents: int) -> Federation:
    """Return all agents' problems and the held-out set; see `problem_from_config`."""
    settings = DataSettings.from_config(config)
    agents = _agents(settings, num_agents)
    dataset = agents.dataset
    return Federation(
        dataset=dataset,
        parts=agents.parts,
        problems=tuple(agents.problem(index) for index in range(num_agents)),
        held_out=agents.model(
            dataset.test_features, dataset.test_labels, make_regularizer("none"), divisor=None
        ),
    )


class _Agents:
    """The problems of one federation, each built when it is first asked for."""

    def __init__(self, settings: DataSettings, num_agents: int) -> None:
        self.settings = settings
        self.dataset = _dataset(settings, num_agents)
        self.parts = tuple(
            partition(
                self.dataset.train_labels,
                num_agents,
                settings.partition,
                seed=settings.partition_seed,
                classes_per_agent=settings.classes_per_agent,
                alpha=settings.dirichlet_alpha,
            )
        )
        share = 2.0 * settings.beta / num_agents
        try:
            self._regularizer = make_regularizer(
                settings.regularizer, share or settings.regularizer_weight
            )
        except ValueError as error:
            raise DataError(str(error)) from None
        self._built: dict[int, LinearModel[Any]] = {}

    def problem(self, index: int) -> LinearModel[Any]:
        """Return f_index."""
        if index not in self._built:
            rows, settings = self.parts[index], self.settings
            labels = self.dataset.train_labels
            self._built[index] = self.model(
                self.dataset.train_features[rows],
                labels[rows],
                self._regularizer,
                divisor=len(labels) if settings.divisor == "federation" else None,
            )
        return self._built[index]

    def model(
        self,
        features: FloatArray,
        labels: LabelArray,
        regularizer: Regularizer,
        *,
        divisor: int | None,
    ) -> LinearModel[Any]:
        """Return the loss the settings ask for, on the given rows."""
        task, classes = self.dataset.task, self.dataset.classes
        norm, loss = self.settings.row_norm, self.settings.loss
        loss = _AUTO[task] if loss == "auto" else loss
        rows = frozen(clip_rows(features, norm) if norm else features)
        if loss in ("multinomial-logistic", "one-class-logistic") and task != "regression":
            numbers = (labels + 1) // 2 if task == "binary" else labels
            kind = MultinomialLogistic if loss == "multinomial-logistic" else OneClassLogistic
            return kind(rows, numbers, classes, regularizer=regularizer, divisor=divisor)
        if loss == "binary-logistic" and task == "binary":
            return BinaryLogistic(rows, labels, regularizer=regularizer, divisor=divisor)
        if loss == "ridge" and task != "multinomial":
            return RidgeRegression(rows, labels, regularizer=regularizer, divisor=divisor)
        raise DataError(f"loss {loss} does not fit dataset {self.dataset.name}, a {task} task")


# Bounded, so that a sweep over settings does not keep every federation it has visited.
@lru_cache(maxsize=4)
def _agents(settings: DataSettings, num_agents: int) -> _Agents:
    return _Agents(settings, num_agents)


def _dataset(settings: DataSettings, num_agents: int) -> Dataset:
    return load(
        settings.dataset,
        data_path=settings.data_path,
        seed=settings.data_seed,
        dtype=settings.dtype,
        intercept=_INTERCEPT[settings.intercept],
        features=settings.features,
        examples=settings.examples_per_agent * num_agents,
    )
