"""From run-config keys to the problem of one agent, or of a whole federation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from privet.core import mapped
from privet.core.key import values_of
from privet.kernel import Facts, clip_rows
from privet.kernel.facts import OTHER, proven_loss
from privet.problems import (
    BinaryLogistic,
    LinearModel,
    NoRegularizer,
    OneClassLogistic,
    PooledL2,
)
from privet.problems.linear import MatrixScoreModel
from privet.problems.loss import Loss
from privet.problems.losses import LOSSES
from privet.problems.stacks import total_gradient

from .built_in import STANDARDISED
from .dataset import (
    UNUSABLE,
    DataError,
    Dataset,
    FloatArray,
    Indices,
    LabelArray,
    frozen,
)
from .held_out import most_rows
from .hub import PREFIX
from .loaders import FROM_PATH, Changes, changes, has_intercept, load
from .meaning import Meaning, digest
from .partitions import PARTITIONS, partition
from .prepared import Share, prepared
from .settings import DATA_KEYS, INTERCEPT, PRIVACY_KEYS, DataSettings
from .sql.snapshots import held
from .tables.faults import command, together
from .tables.values import is_number

log = logging.getLogger("flwr.privet")

_OF_LOSS = (
    "loss", "regularizer", "regularizer_weight", "beta", "divisor", "row_norm", "own",
)  # fmt: skip
"""Fields of the settings without a part in what an agent's examples are."""
_AUTO = {"binary": "binary-logistic", "multinomial": "multinomial-logistic", "regression": "ridge"}
"""The loss of each task where ``loss`` is "auto"."""


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
    _total: list[Callable[[FloatArray], FloatArray]] = field(
        default_factory=list, repr=False, compare=False
    )

    @property
    def dim(self) -> int:
        """Length of x."""
        return self.held_out.dim

    def objective(self, x: FloatArray) -> float:
        """Return sum_i f_i(x)."""
        return sum(problem.value(x) for problem in self.problems)

    def gradient(self, x: FloatArray) -> FloatArray:
        """Return sum_i grad f_i(x), shape (dim,)."""
        if not self._total:
            self._total.append(total_gradient(self.problems))
        return self._total[0](x)

    def evaluate(self, x: FloatArray, held_out: LinearModel[Any] | None = None) -> dict[str, float]:
        """Return ``accuracy`` (a fraction) and ``loss`` (a mean, unregularised) on the test set.

        A regression has no ``accuracy``. ``held_out`` is the test set with other features.
        """
        model = self.held_out if held_out is None else held_out
        result = {"loss": model.value(x)}
        if isinstance(model, MatrixScoreModel):
            result["accuracy"] = model.accuracy(x, model.features, model.labels)
        elif self.dataset.task == "binary":
            labels = self.dataset.test_labels
            result["accuracy"] = BinaryLogistic.accuracy(x, model.features, labels)
        return result


def problem_from_config(
    config: Mapping[str, Any],
    agent_index: int,
    num_agents: int,
    *,
    own: bool = False,
    folder: Path | None = None,
    agreed: str = "",
    changed: Changes | None = None,
) -> LinearModel[Any]:
    """Return the problem f_i of one agent, built from that agent's rows alone.

    With partition none it has all rows of the data, or of their training set where they come with
    a test set; otherwise the split is that of `federation_from_config`. Data, split and problem
    are cached per process until a file of theirs changes: another call costs microseconds, and
    gives the same object.

    Parameters
    ----------
    config : mapping
        Run-config or node-config values; the keys are those of `DataSettings`.
    agent_index : int
        0 ... num_agents - 1.
    num_agents : int
    own : bool
        Whether a path in the config is of one operator's own records, not of a pool that is dealt
        to all agents of a federation. A split that goes by their labels or ids is then
        ``data_dependent``: a record that changes moves others in or out of the agent's share.
    folder : Path, optional
        Where the agent's share is kept from process to process (`privet.data.prepared`).
    agreed : str
        The encoding that the agents of a run have in common, as `privet.data.load` takes it.
    changed : Changes, optional
        The stamps of the files, where the caller has looked at them.

    Raises
    ------
    DataError
        A key, file or agent that cannot be used: one line that names it.
    """
    with held(config) as found:
        settings = _settings(found)
        if not 0 <= agent_index < num_agents:
            raise DataError(f"agent {agent_index}: expected 0 ... {num_agents - 1}")
        own = own and settings.dataset in FROM_PATH
        of_hub = settings.data_path.startswith(PREFIX)  # no file says if a hub changes
        with _hidden(settings):
            if folder is None or of_hub:
                if changed is None:
                    changed = changes(settings.data_path, settings.schema)
                return _agents(settings, num_agents, own, agreed, changed).problem(agent_index)
            asked = {
                "settings": _of_share(settings),
                "agent": [agent_index, num_agents, own],
                **({"agreed": digest(agreed)} if agreed else {}),
            }
            sources = filter(None, (settings.data_path, settings.schema))

            def make() -> Share:
                return _Agents(settings, num_agents, own, agreed).share(agent_index)

            share = prepared(folder, asked, sources, make)
            return _problem(settings, share, num_agents)


def federation_from_config(
    config: Mapping[str, Any], num_agents: int, *, agreed: str = ""
) -> Federation:
    """Return all agents' problems and the held-out set; see `problem_from_config`.

    Raises
    ------
    DataError
        As there; partition none, where only each node knows what it has; and data of which nothing
        is held out.
    """
    with held(config) as found:
        settings = DataSettings.from_config(found)
        if settings.partition == "none" and num_agents > 1:
            raise DataError(
                "partition none is for a node's own config; a federation needs its examples dealt"
            )
        with _hidden(settings):
            changed = changes(settings.data_path, settings.schema)
            agents = _agents(settings, num_agents, False, agreed, changed)
            dataset = agents.dataset
            if not len(dataset.test_labels):
                raise DataError(_nothing_held_out(settings, len(dataset.train_labels)))
            return Federation(
                dataset=dataset,
                parts=agents.parts,
                problems=tuple(agents.problem(index) for index in range(num_agents)),
                held_out=agents.held_out(),
            )


def own_table(config: Mapping[str, Any]) -> tuple[Meaning, Dataset]:
    """Return what a node states of a table of its own, and the table; see `problem_from_config`.

    Raises
    ------
    DataError
        As there.
    """
    with held(config) as found, _hidden(settings := _settings(found)):
        changed = changes(settings.data_path, settings.schema)
        agents = _agents(settings, 1, True, "", changed)
        return agents.problem(0).meaning, agents.dataset


def _settings(config: Mapping[str, Any]) -> DataSettings:
    """Return the data settings of a config, which the agents of a process have in common."""
    keys = (*DATA_KEYS, *PRIVACY_KEYS, "algorithm")
    given = {key: config[key] for key in keys if key in config}
    try:
        return _read(tuple((key, type(value), value) for key, value in given.items()))
    except TypeError:  # a value without a hash, which is refused with the name of its key
        return DataSettings.from_config(config)


@lru_cache(maxsize=16)
def _read(given: tuple[tuple[str, type, Any], ...]) -> DataSettings:
    return DataSettings.from_config({key: value for key, _, value in given})


@contextmanager
def _hidden(settings: DataSettings) -> Iterator[None]:
    """Hide from the coordinator what is wrong with records that were read from a path."""
    try:
        yield
    except DataError as error:
        if settings.data_path and settings.dataset in FROM_PATH:
            error.told = UNUSABLE
        raise


def _where(settings: DataSettings) -> str:
    return settings.data_path or settings.dataset


def _nothing_held_out(settings: DataSettings, count: int) -> str:
    where = _where(settings)
    if settings.partition == "none":
        return f"{where}: partition none holds nothing out; expected a test set, or partition iid"
    return (
        f"{where}: {count} examples are too few to hold a fifth out; expected a test set, or at "
        "least 3 examples (of one id, where there are ids)"
    )


def planned_facts(config: Mapping[str, Any], num_agents: int, num_examples: int, dim: int) -> Facts:
    """Return the public numbers that each of ``num_agents`` agents of equal size has.

    They are those of the problems that `federation_from_config` builds, without any data: with
    loss "auto", which depends on the data, the loss is "other".

    Parameters
    ----------
    config : mapping
        As there.
    num_examples : int
        Of every agent.
    dim : int
        Length of the model.

    Raises
    ------
    DataError
        A key or number that cannot be used.
    """
    settings = DataSettings.from_config(config)
    divisor = settings.divisor_of(num_examples, num_agents * num_examples, num_agents)
    if settings.pooled:
        kind, l2, penalty = PooledL2.kind, 0.0, settings.pooled_weight(divisor, num_agents)
    else:
        regularizer = settings.make_regularizer(num_agents)
        kind = regularizer.kind
        l2 = penalty = regularizer.moduli.strong_convexity if kind == "l2" else 0.0
    try:
        return Facts(
            num_examples=num_examples,
            divisor=float(divisor),
            dim=dim,
            dtype=settings.dtype,
            loss=OTHER
            if settings.loss == "auto"
            else proven_loss(LOSSES[settings.loss].problem.kind),
            regularizer=kind,
            modulus=float(l2),
            penalty=float(penalty),
        )
    except ValueError as error:
        raise DataError(str(error)) from None


class _Agents:
    """The problems of one federation, each built when it is first needed."""

    def __init__(
        self, settings: DataSettings, num_agents: int, own: bool, agreed: str = ""
    ) -> None:
        self.settings = settings
        self.dataset = _dataset(settings, num_agents, own, agreed)
        self._doubts = doubts_of(asdict(settings), self.dataset) if own else ()
        self._data_dependent = self.dataset.data_dependent or (self._own_split() if own else "")
        self.parts = self._parts(num_agents)
        self._dealt = sum(map(len, self.parts))
        self._num_agents = num_agents
        self._built: dict[int, LinearModel[Any]] = {}

    def _parts(self, num_agents: int) -> tuple[Indices, ...]:
        settings, data = self.settings, self.dataset
        _require_fit(settings, data)
        if settings.id_column and PARTITIONS[settings.partition].by != "ids":
            log.warning(
                "id-column = %s: partition = %s does not deal by it, partition = natural-id does; "
                "the column is only left out of the features",
                *(settings.id_column, settings.partition),
            )
        try:
            parts = partition(
                data.train_labels,
                num_agents,
                settings.partition,
                seed=settings.partition_seed,
                ids=data.train_ids,
                persons=data.train_persons,
                **asdict(settings.keys_of_row(PARTITIONS[settings.partition])),
            )
        except DataError as error:
            where = f"{settings.data_path}: " if settings.data_path else ""
            raise DataError(f"{where}{error}") from None
        return tuple(parts)

    def _own_split(self) -> str:
        """Return how the split of one operator's own records depends on them."""
        scheme, ids = self.settings.partition, self.dataset.train_ids
        by: str = PARTITIONS[scheme].by if ids is None else "ids"
        by = by if self.dataset.train_persons is None else "persons"
        if scheme == "none" or not by:
            return ""
        return f"partition = {scheme} deals a node's own records by their {by}: set it to none"

    def share(self, index: int) -> Share:
        """Return the examples of an agent."""
        rows, data = self.parts[index], self.dataset
        given = data.train_features, data.train_labels
        share = self._of(*(mapped.rows_of(one, rows) for one in given))
        persons = data.train_persons
        return share if persons is None else share._replace(person_rows=most_rows(persons[rows]))

    def _of(self, features: FloatArray, labels: LabelArray) -> Share:
        data = self.dataset
        about = (data.task, data.classes, self._data_dependent, data.meaning)
        return Share(features, labels, self._dealt, *about, doubts=self._doubts)

    def problem(self, index: int) -> LinearModel[Any]:
        """Return f_index."""
        if index not in self._built:
            self._built[index] = _problem(self.settings, self.share(index), self._num_agents)
        return self._built[index]

    def held_out(self) -> LinearModel[Any]:
        """Return the mean loss over the test set, without regulariser."""
        share = self._of(self.dataset.test_features, self.dataset.test_labels)
        return _model(self.settings, share)


def doubts_of(keys: Mapping[str, Any], dataset: Dataset) -> tuple[str, ...]:
    """Return a line on each thing that is doubtful about a table, and where to look.

    ``keys`` are the run-config keys that it was read by, with underscores.
    """
    path = keys["data_path"]
    lines = together(([str(path)], doubt.text) for doubt in dataset.doubts)
    if lines:
        drop = any(doubt.drop or doubt.keys for doubt in dataset.doubts)
        what = "the keys that leave out what is doubtful" if drop else "to look at them again"
        lines.append(f"{what}: {command(path, keys)}")
    return tuple(lines)


def _require_fit(settings: DataSettings, data: Dataset) -> None:
    """Raise ``DataError`` where a loss of quantities is given whole numbers that are classes."""
    if settings.loss == "auto" or data.task in LOSSES[settings.loss].tasks or data.task == "binary":
        return
    label = data.source_columns[-1] if data.source_columns else None
    numbers = [float(one) for one in label.categories if is_number(one)] if label else []
    if label and len(numbers) == len(label.categories) > 0:
        raise DataError(
            f"loss {settings.loss} does not fit dataset {settings.dataset}, a {data.task} task: "
            f"the {len(numbers)} whole numbers of {label.name} are classes; a schema with a range, "
            f'"{label.name}" = [{min(numbers):g}, {max(numbers):g}], makes it a quantity'
        )


def _of_share(settings: DataSettings) -> dict[str, Any]:
    """Return the keys that an agent's share depends on: all but those of its loss."""
    values = {name: value for name, value in asdict(settings).items() if name not in _OF_LOSS}
    return {**values, **asdict(settings.keys_of_row(PARTITIONS[settings.partition]))}


def _problem(settings: DataSettings, share: Share, num_agents: int) -> LinearModel[Any]:
    """Return f_i of the agent with this share."""
    model = _model(settings, share)
    if settings.partition == "none":  # of the others' rows nothing is known here
        num_agents = 1
    divisor = settings.divisor_of(len(share.labels), share.dealt, num_agents)
    model.divisor = float(divisor)
    if settings.pooled:
        # With a free intercept the one-class loss has no minimum: it falls with each of them.
        fits = _has_intercept(settings) and not isinstance(model, OneClassLogistic)
        free = model.dim // model.num_features if fits else 0
        model.regularizer = PooledL2(settings.pooled_weight(divisor, num_agents), free)
    else:
        model.regularizer = settings.make_regularizer(num_agents)
    return model


def _has_intercept(settings: DataSettings) -> bool:
    """Whether the last column of the features is one of ones."""
    configured = INTERCEPT[settings.intercept]
    return has_intercept(settings.dataset) if configured is None else configured


def _model(settings: DataSettings, share: Share) -> LinearModel[Any]:
    """Return the mean loss over the examples of a share, without regulariser."""
    task = share.task
    loss = LOSSES[_AUTO[task] if settings.loss == "auto" else settings.loss]
    if task not in loss.tasks:
        raise DataError(
            f"loss {settings.loss} does not fit dataset {settings.dataset}, a {task} task"
        )
    try:
        norm = settings.row_norm
        rows = frozen(clip_rows(share.features, norm) if norm else share.features)
        model = loss.build(
            *(rows, share.labels, settings.keys_of_row(loss)),
            task=task,
            classes=share.classes,
            regularizer=NoRegularizer(),
            divisor=None,
        )
    except ValueError as error:
        raise DataError(f"{_where(settings)}: {error}") from None
    model.data_dependent, model.person_rows = share.data_dependent, share.person_rows
    model.doubts = share.doubts
    model.meaning = _meaning(settings, share.meaning, loss, model.num_features)
    return model


@lru_cache(maxsize=8)
def _meaning(settings: DataSettings, table: Meaning | None, loss: Loss, width: int) -> Meaning:
    """Return what the numbers of an agent's rows mean: its table, and what else makes them."""
    name = settings.dataset
    facts: dict[str, Any] = {
        "loss": loss.name,
        **values_of(settings.keys_of_row(loss)),
        "row-norm": settings.row_norm,
        "dtype": settings.dtype,
        "intercept": _has_intercept(settings),
    }
    if table is not None:
        return replace(table, settings=facts)
    facts |= {"dataset": name, "columns": width}
    if name == "click":
        facts["hashing"] = settings.hashing or settings.data_path.startswith(PREFIX)
    if name in STANDARDISED:
        facts["data-seed"] = settings.data_seed
    return Meaning(settings=facts)


# Bounded, so that a sweep over settings does not keep every federation it has visited.
@lru_cache(maxsize=4)
def _agents(
    settings: DataSettings, num_agents: int, own: bool, agreed: str, changed: Changes
) -> _Agents:
    return _Agents(settings, num_agents, own, agreed)


def _dataset(settings: DataSettings, num_agents: int, own: bool, agreed: str) -> Dataset:
    return load(
        settings.dataset,
        data_path=settings.data_path,
        seed=settings.data_seed,
        dtype=settings.dtype,
        intercept=INTERCEPT[settings.intercept],
        features=settings.features,
        examples=settings.examples_per_agent * num_agents,
        agents=num_agents if settings.dataset == "regression" else 1,
        columns=settings.columns,
        hashing=settings.hashing,
        label_column=settings.label_column,
        id_column=settings.id_column,
        person_column=settings.person_column,
        drop_columns=settings.drop_columns,
        schema=settings.schema,
        missing=settings.missing,
        missing_labels=settings.missing_labels,
        dates=settings.dates,
        censored=settings.censored,
        infinite=settings.infinite,
        whole=settings.partition == "none",
        alone=own,
        agreed=agreed,
    )
