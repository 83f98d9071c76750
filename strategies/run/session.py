"""What a run knows between its rounds: its state, its agents, and the history of its rounds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.core import NotFiniteError, UploadError
from privet.core.errors import one_line
from privet.wire import Enrolment, Layout
from privet.wire.magnitude import finite
from privet.wire.payload import BUFFERS

from .failure import Failure
from .roster import Roster

Metrics = Mapping[str, int | float | list[int] | list[float]]
"""As in Flower's ``MetricRecord``."""
METRICS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
"""The fields of a round's record that hold such."""


@dataclass(frozen=True, slots=True)
class Round:
    """One finished round: a line of ``history.jsonl``.

    Attributes
    ----------
    round : int
        Counted from 1.
    participants : tuple of str
        Agents whose upload was folded.
    failures : dict of str to Failure
        Agents that were asked and not folded, with the reason.
    notes : tuple of str
        What else should be known, e.g. an agent that was sent its state again.
    loss, accuracy, stationarity : float
        From the server's monitor; without one loss and accuracy are those of ``evaluate_fn``, or
        of the agents' evaluation, if their metrics have these names. NaN where not evaluated.
    residual : float
        The algorithm's squared fixed-point residual.
    bytes_up, bytes_down : int
        Array and bytes lengths of the messages, without transport.
    seconds : float
        Wall time of the round with its evaluation.
    epsilon : float
        Largest total epsilon an agent has reported; infinity where a reply was not private.
    measures : dict of str to float
        What else the algorithm or the monitor measures, by kebab-case name.
    train_metrics_clientapp, evaluate_metrics_clientapp, evaluate_metrics_serverapp : dict
        Of this round, as Flower's result has them of all: what came with the uploads, what the
        agents say of the model, and what ``evaluate_fn`` does. Empty where there is nothing.
    """

    round: int
    participants: tuple[str, ...]
    failures: dict[str, Failure] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    loss: float = math.nan
    accuracy: float = math.nan
    stationarity: float = math.nan
    residual: float = math.nan
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    epsilon: float = math.inf
    measures: dict[str, float] = field(default_factory=dict)
    train_metrics_clientapp: Metrics = field(default_factory=dict)
    evaluate_metrics_clientapp: Metrics = field(default_factory=dict)
    evaluate_metrics_serverapp: Metrics = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the line of ``history.jsonl`` as JSON types: NaN is null, infinity "inf".

        Measures and metrics have an entry where there are any.
        """
        line = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("measures", *METRICS):
            if not line[name]:
                del line[name]
        return {name.replace("_", "-"): _json(value) for name, value in line.items()}

    @classmethod
    def from_dict(cls, line: dict[str, Any]) -> Round:
        """Return the round of ``to_dict``."""
        values: dict[str, Any] = {key.replace("-", "_"): value for key, value in line.items()}
        for name in ("loss", "accuracy", "stationarity", "residual", "epsilon"):
            values[name] = _float(values[name])
        values["measures"] = {k: _float(v) for k, v in values.get("measures", {}).items()}
        values["failures"] = {k: Failure.from_json(v) for k, v in values["failures"].items()}
        for name in METRICS:
            metrics = values.get(name, {})
            values[name] = {key: _metric(value) for key, value in metrics.items()}
        values["participants"] = tuple(values["participants"])
        values["notes"] = tuple(values["notes"])
        return cls(**values)


def _metric(value: Any) -> Any:
    if isinstance(value, list):
        return [_metric(each) for each in value]
    return value if isinstance(value, int) else _float(value)


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _json(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [_json(each) for each in value]
    if isinstance(value, Failure):
        return value.to_json()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


class _Fit(NamedTuple):
    """Which arrays of the starting model an agent trains, takes as buffers, and ties."""

    trained: Sequence[str]
    buffers: Sequence[str]
    tied: Mapping[str, str]


@dataclass
class Session:
    """The state of one run on the server.

    ``layout`` is of the arrays of the starting model that the agents train: all its floats, until
    an agent enrols whose model names fewer. The others come back as they were, but for the
    statistics (``buffers``) that the agents are sent and may send back, whose mean follows.
    """

    experiment: str
    layout: Layout
    arrays: ArrayRecord
    """The starting model."""
    state: Any
    roster: Roster
    round: int = 0
    history: list[Round] = field(default_factory=list)
    initial: Round = Round(0, (), epsilon=0.0)
    """What was measured of the starting model: round 0, which is not in the history."""
    settings_before: Mapping[str, Any] = field(default_factory=dict)
    """The agents' settings before a resume, empty in a run that was not resumed."""
    mean_examples: float = 0.0
    """Of the agents of the first round, where they are weighted by their examples."""
    buffers: Layout | None = None
    statistics: NDArray[Any] | None = None
    """The numbers of ``buffers``, flat."""
    tied: Mapping[str, str] | None = None
    """Further names that the starting model has its trained arrays under, each with the one that
    is sent, whose values they come back with; None until an agent has stated them."""
    settled: bool = False
    """Whether an agent has said which arrays are trained."""

    @classmethod
    def of(cls, experiment: str, arrays: ArrayRecord) -> Session:
        """Return the session of a run that starts from a model: without state and agents yet."""
        return cls(experiment, Layout.of_floats(arrays), arrays, None, Roster())

    @property
    def start(self) -> NDArray[Any]:
        """The trained arrays of the starting model, flat; made anew, as few rounds need it."""
        return self.layout.flatten(self.arrays)

    def check(self, said: Enrolment) -> str:
        """Return why an agent's model is not the run's, or nothing; see `adopt`."""
        found = self._fit(said)
        return found if isinstance(found, str) else ""

    def adopt(self, said: Enrolment) -> None:
        """Take over what an agent that was enrolled says of its model.

        The first that names its arrays settles which of the starting model's are trained.
        """
        found = self._fit(said)
        if isinstance(found, str) or found is None:
            return
        if not self.settled:
            self.settle(found.trained, found.buffers)
        self.tied = found.tied

    def _fit(self, said: Enrolment) -> _Fit | str | None:
        """Return how an agent's model is the run's, or why it is not; None for one flat array."""
        try:
            model, beside = (
                Layout.from_json(text) if text else None for text in (said.layout, said.buffers)
            )
        except ValueError as error:
            return one_line(str(error))
        trained, buffers = self.layout, self.buffers
        if model is not None and not self.settled:
            trained = self.layout.chosen(model) or trained
            buffers = beside and self.layout.chosen(beside)
        if said.dim != trained.dim:
            apart = "" if model is None else model.difference(trained)
            numbers = f"its model has {said.dim} parameters, the server's {trained.dim}"
            return f"{numbers}: {apart}" if apart else numbers
        if model is not None and (apart := model.difference(trained)):
            return f"its model has {apart} by the starting model"
        if said.dtype != str(trained.dtype):
            return f"computes in {said.dtype}, the server in {trained.dtype}"
        if beside is not None and buffers is None and not self.settled:
            return (
                f"it takes {beside.names[0]!r} from the server, which is not in the starting "
                "model: begin with initial_arrays(model), or its state_dict()"
            )
        if beside is None or buffers is None:
            differ = beside is not None or buffers is not None
        else:
            differ = beside.dim != buffers.dim or bool(beside.difference(buffers))
        if differ:
            return "handles its buffers (average, constant, local) otherwise than the other agents"
        if model is None:
            return None
        pairs = [*zip(model.names, trained.names, strict=False)]  # one flat array stands for any
        if beside is not None and buffers is not None:
            pairs += zip(beside.names, buffers.names, strict=True)
        try:
            tied = self._tied(said.tied, dict(pairs))
        except ValueError as error:
            return one_line(str(error))
        if self.tied not in (None, tied):
            return "it ties other parameters of its model than other agents do"
        return _Fit(trained.names, () if buffers is None else buffers.names, tied)

    def _tied(self, text: str, names: Mapping[str, str]) -> dict[str, str]:
        """Return the tied names that an agent stated, as the starting model has them.

        ``names`` are the starting model's of the agent's arrays (raises ``ValueError``).
        """
        try:
            stated = json.loads(text) if text else {}
        except RecursionError:
            stated = None
        if not isinstance(stated, dict) or not all(isinstance(n, str) for n in stated.values()):
            raise ValueError("what it says of tied parameters is not a table of names")
        found = {}
        for other, own in stated.items():
            if own not in names:
                raise ValueError(f"it ties {other!r} to {own!r}, which it does not train")
            name = names[own]
            if own.endswith(name):  # one side may have a prefix more, as a wrapped module has
                alias = other.removeprefix(own.removesuffix(name))
            else:
                alias = name.removesuffix(own) + other
            if alias in names.values():
                raise ValueError(f"it ties {alias!r} to {own!r}, but trains both")
            if alias not in self.arrays:
                continue  # a start without it, of which nothing comes back under this name
            if self.arrays[alias].shape != self.arrays[name].shape:
                raise ValueError(f"it ties {alias!r} to {name!r}, of another shape in the start")
            found[alias] = name
        return found

    def settle(self, trained: Iterable[str], buffers: Iterable[str]) -> None:
        """Take these arrays as the trained ones, and as those that the agents are sent beside."""
        self.settled = True
        self.layout = Layout.of(ArrayRecord({name: self.arrays[name] for name in trained}))
        if named := {name: self.arrays[name] for name in buffers}:
            self.buffers = Layout.of(ArrayRecord(named))
            self.statistics = self.buffers.flatten(self.arrays)

    @property
    def buffers_sent(self) -> dict[str, NDArray[Any]]:
        """The statistics of the model's buffers, as the agents are sent them; none or one array."""
        return {} if self.statistics is None else {BUFFERS: self.statistics}

    def restore(self, vector: NDArray[Any]) -> ArrayRecord:
        """Return a model as the named arrays of the starting model."""
        arrays = {**self.arrays, **self.layout.restore(vector)}  # in the former's order
        if self.buffers is not None and self.statistics is not None:
            arrays |= self.buffers.restore(self.statistics)
        for alias, name in (self.tied or {}).items():
            kind = self.arrays[alias].dtype
            same = arrays[name].dtype == kind
            arrays[alias] = arrays[name] if same else Array(arrays[name].numpy().astype(kind))
        return ArrayRecord(arrays)

    def statistics_of(self, found: NDArray[Any] | None) -> NDArray[Any] | None:
        """Return a copy of an upload's statistics, if it has any.

        Raises
        ------
        UploadError
            If they are not the model's, or not finite.
        """
        own = self.statistics
        if found is None:
            return None
        if own is None or (found.shape, found.dtype) != (own.shape, own.dtype):
            raise UploadError("upload holds buffers that do not fit the model")
        if not finite(found):
            raise NotFiniteError("upload holds buffers that are not finite")
        return found.copy()

    def average(self, statistics: Iterable[NDArray[Any] | None]) -> None:
        """Take the mean of the statistics that came with the uploads, if any did."""
        if sent := [each for each in statistics if each is not None]:
            self.statistics = np.mean(sent, axis=0, dtype=np.float64).astype(sent[0].dtype)
