"""Privacy-critical: loss and metrics of a model at an agent that is not private.

Privacy: every number here is computed from the data and not noised. Private agents report none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from flwr.app import ArrayRecord, MetricRecord, RecordDict

from privet.core import ConfigError, WireError
from privet.kernel import Problem
from privet.wire import Layout
from privet.wire.payload import ENCODED
from privet.wire.sparse import decode

from .half import Arrays, Vector

EVALUATE_ON = ("training", "held-out")
METRICS = "metrics"
"""Name of the record of an agent's measures."""

MODELS = ("x", "y", "w")
"""Names under which the algorithms broadcast the model."""


@runtime_checkable
class MeasuredProblem(Problem, Protocol):
    """A problem that can compute metrics of a model in addition to its loss."""

    def metrics(self, x: Vector) -> Mapping[str, float]:
        """Return named numbers, averaged over the agents by their numbers of examples."""
        ...


def evaluated_part(problem: Problem, evaluate_on: str) -> Problem:
    """Return the problem whose examples an agent evaluates a model on, ``held_out`` of its own.

    Raises
    ------
    ConfigError
        If the problem has none.
    """
    if evaluate_on == "training":
        return problem
    held_out: Problem | None = getattr(problem, "held_out", None)
    if held_out is None:
        raise ConfigError(
            "evaluate_on = 'held-out': the problem has no held_out; SklearnModel.problem and "
            "TorchProblem take held_out=(inputs, targets), another problem has it as an attribute"
        )
    return held_out


def measures(problem: Problem, x: Vector | None) -> MetricRecord:
    """Return ``num-examples`` and, where there is a model, ``loss`` and the problem's metrics."""
    numbers: dict[str, Any] = {"num-examples": problem.num_examples}
    if x is not None:
        numbers["loss"] = float(problem.value(x))
        if isinstance(problem, MeasuredProblem):
            numbers.update({name: float(number) for name, number in problem.metrics(x).items()})
    return MetricRecord(numbers)


def broadcast_model(broadcast: Arrays, problem: Problem) -> Vector | None:
    """Return the model that the agents were sent, None for an algorithm that sends none.

    Privacy: the server knows this model already.
    """
    if ENCODED in broadcast:
        return decode(broadcast[ENCODED], max_dim=problem.dim).to_dense()
    return next((broadcast[name] for name in MODELS if name in broadcast), None)


def sent_model(content: RecordDict, problem: Problem) -> Vector:
    """Return the one model of an evaluation message as a vector of the problem.

    Raises
    ------
    WireError
        If there is no model, more than one, or one of another size.
    """
    records: list[ArrayRecord] = list(content.array_records.values())
    if len(records) != 1:
        raise WireError(f"evaluation message has {len(records)} ArrayRecords, expected one")
    vector = _trained(records[0], problem)
    if vector.size != problem.dim:
        raise WireError(f"model has {vector.size} parameters, the problem {problem.dim}")
    return vector.astype(problem.dtype, copy=False)


def _trained(arrays: ArrayRecord, problem: Problem) -> Vector:
    """Return the arrays of a model that the problem names, all of them where it names none."""
    layout, expected = Layout.of_floats(arrays), getattr(problem, "layout", None)
    return ((expected and layout.chosen(expected)) or layout).flatten(arrays)
