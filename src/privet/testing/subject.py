"""The algorithm under test: its settings, a small federation, and how a run of it is played."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from privet.agents.value_bits import NONE
from privet.core import Algorithm, ConfigError, RunError, algorithm
from privet.kernel import Problem
from privet.problems import L2, BinaryLogistic
from privet.server_apps import read_config
from privet.server_apps.config import keys_of_algorithm
from privet.sim.cohort import CohortGrid
from privet.sim.engine import InlineGrid
from privet.sim.grid import LocalGrid
from privet.sim.inline import app_of
from privet.strategies import PrivetResult, Round
from privet.wire import RECORD, Instruction
from privet.wire.payload import ENCODED, from_payload

from .grids import Fates, WatchedCohort, WatchedGrid, disconnect

ROUNDS = 6
PATIENCE = 0.02
"""Seconds that a round waits for a reply that will not come."""
RAY_PATIENCE = 2.0
"""The same where replies come from other processes."""
FAULTS = {"1": 3, "2": 4}
"""Round of the fault by agent: two rounds in a row, as a method may alternate."""
CODED = "value-bits"
"""The key of coded uploads."""
HALF = {"participation": "fraction", "fraction": 0.5}
"""Run-config keys that let half of the agents take part, drawn afresh in each round."""


class CheckFailed(AssertionError):
    """A promise that an algorithm does not keep; its text is one line."""


def require(kept: bool, otherwise: str) -> None:
    """Raise ``CheckFailed`` with this text unless a promise is kept."""
    if not kept:
        raise CheckFailed(otherwise)


def logistic_federation(
    agents: int = 6, *, examples: int = 12, dim: int = 4, seed: int = 0
) -> tuple[BinaryLogistic, ...]:
    """Return strongly convex logistic problems, each with a separating direction of its own."""
    rng = np.random.default_rng(seed)
    problems = []
    for _ in range(agents):
        features = rng.standard_normal((examples, dim))
        labels = np.where(features @ rng.standard_normal(dim) > 0, 1.0, -1.0)
        problems.append(BinaryLogistic(features, labels, regularizer=L2(0.5)))
    return tuple(problems)


@dataclass(frozen=True)
class Played:
    """A finished run, and the grid it was played on."""

    result: PrivetResult
    grid: WatchedGrid

    @property
    def model(self) -> NDArray[Any]:
        """The last model as a vector."""
        return self.result.arrays["x"].numpy()

    @property
    def failures(self) -> list[dict[str, str]]:
        """Chosen agents whose upload was not used, with the reason, by round from the first."""
        return [
            {name: why.text for name, why in done.failures.items()} for done in self.result.history
        ]


@contextmanager
def _files_of(start: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give each engine's run files of its own, for a private run goes on in one place alone.

    One that begins replaces those of another engine, and one that goes on has a copy of them.
    """
    if resume := start.get("resume"):
        with TemporaryDirectory() as folder:
            copy = Path(shutil.copytree(resume.parent, Path(folder) / "run")) / resume.name
            yield {"resume": copy, "checkpoint": copy}
        return
    if file := start.get("checkpoint"):
        shutil.rmtree(file.parent)
        file.parent.mkdir()
    yield {}


@dataclass(frozen=True)
class Subject:
    """An algorithm, the settings it is run with, and the agents' problems: see `checks`.

    ``variant`` names the settings where they are not the first that are checked.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    private: Mapping[str, Any] = field(default_factory=dict)
    problems: Sequence[Problem] = field(default_factory=logistic_federation)
    engines: Sequence[str] = ("inline", "cohort")
    variant: str = ""

    @property
    def registered(self) -> Algorithm:
        """The entry of the registry."""
        return algorithm(self.name)

    @property
    def noise_key(self) -> str:
        """The run-config key of the noise, empty where the algorithm has no private form."""
        return str(getattr(self.registered.load_agent(), "noise_key", ""))

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, sorted."""
        return tuple(str(i) for i in range(len(self.problems)))

    @property
    def private_settings(self) -> dict[str, Any]:
        """Settings of a private run, where there is one: clipped, noised, with bounded rows."""
        noised = {"clip": 1.0, "row-norm": 4.0, self.noise_key: 1.0}
        return {**self.settings, **noised, **self.private}

    def config(self, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the resolved run config (raises ``ConfigError``).

        Keys that are left open until the agents are known have their usual values, so that runs
        which a check compares play one method.
        """
        requested = {
            "algorithm": self.name,
            "num-agents": len(self.problems),
            "seed": 3,
            **(self.settings if settings is None else settings),
        }
        config = read_config(requested)
        keys = keys_of_algorithm(self.name)
        left_open = {n: key.usual for n, key in keys.items() if key.left_open(config[n])}
        return read_config({**requested, **left_open}) if left_open else config

    def strategy(self, settings: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Return the Strategy that a run config makes (raises ``ConfigError``)."""
        return self.registered.load_strategy().from_config(self.config(settings), **options)

    def app(self, **options: Any) -> ClientApp:
        """Return the ClientApp that gives every node its own problem."""
        return app_of(self.name, self.problems, **options)

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes' configs."""
        return [{"partition-id": i} for i in range(len(self.problems))]

    def start(self) -> ArrayRecord:
        """Return the starting model: zeros."""
        first = self.problems[0]
        return ArrayRecord({"x": Array(np.zeros(first.dim, first.dtype))})

    def play(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        rounds: int = ROUNDS,
        fates: Fates | None = None,
        nodes: Sequence[Mapping[str, Any]] | None = None,
        app: Any = None,
        keeps_states: bool = True,
        options: Mapping[str, Any] | None = None,
        **start: Any,
    ) -> Played:
        """Play a run in this process, and once more on each other engine, with the same results.

        Not again where its ``app`` is given, which may count what it sees, or a node keeps a
        ledger. ``options`` go to the Strategy and ``start`` to its ``start``.

        Raises
        ------
        CheckFailed
            If another engine gives anything else.
        """
        patience = RAY_PATIENCE if "ray" in self.engines else PATIENCE
        timeouts = {"round-timeout": patience} if fates else {}
        requested = {**(self.settings if settings is None else settings), **timeouts}

        def played(kind: Any, made: Any) -> Played:
            grid = kind(made, nodes or self.nodes(), fates, keeps_states=keeps_states)
            with (
                grid if isinstance(grid, AbstractContextManager) else nullcontext(),
                _files_of(start) as files,
            ):
                # A further try would mend what one side got wrong, in place of showing it.
                strategy = self.strategy(requested, **{"patience": 0.0, **(options or {})})
                begun = {**start, **files}
                return Played(strategy.start(grid, self.start(), num_rounds=rounds, **begun), grid)

        result = played(WatchedGrid, app or self.app())
        if app is not None or any("ledger-path" in node for node in nodes or ()):
            return result
        drawn = self.noise_key in requested and requested.get("noise-seed", -1) < 0
        coded = requested.get(CODED, NONE) != NONE
        # Codes, and the places of sparse numbers, are as long as the noise makes them.
        alike = {"models": not drawn, "sizes": not (drawn and (coded or _is_sparse(result)))}
        if "cohort" in self.engines:
            again = played(WatchedCohort, self.app()).result
            require_alike(again, result.result, "cohort", **alike)
        if "ray" in self.engines:
            from .sharded import WatchedRay

            again = played(WatchedRay, partial(app_of, self.name, self.problems)).result
            require_alike(again, result.result, "ray", **alike)
        return result

    @cached_property
    def plain(self) -> Played:
        """The un-noised run in which nothing happens."""
        played = self.play()
        require(
            not any(played.failures),
            f"a run in which nothing is wrong has failures: {first_failure(played)}",
        )
        require(
            all(done.participants == self.names for done in played.result.history),
            "the settings let agents be absent: give settings in which everybody takes part",
        )
        return played

    @cached_property
    def absent(self) -> Played | None:
        """The run in which each agent of ``FAULTS`` is not chosen in its round; None if refused."""
        rounds = [
            ",".join(name for name in self.names if FAULTS.get(name) != number)
            for number in range(1, ROUNDS + 1)
        ]
        return self.play_if_allowed({"participation": "schedule", "schedule": ";".join(rounds)})

    def play_if_allowed(self, changes: Mapping[str, Any], **run: Any) -> Played | None:
        """Play with some settings changed; None where they are refused, which takes a reason."""
        settings = {**self.settings, **changes}
        try:
            self.strategy(settings)
        except ConfigError as refusal:
            require(
                "\n" not in str(refusal) and len(str(refusal)) > len(self.name),
                f"refuses {changes} without a reason in one line: {str(refusal)!r}",
            )
            return None
        return self.play(settings, **run)

    def can_run(self, *, private: bool) -> bool:
        """Return whether un-noised or private runs can be played; a variant may refuse one kind.

        Raises
        ------
        ConfigError
            If it refuses both: with the reason of this one.
        """
        refusal, other = self._refusals if private else reversed(self._refusals)
        if refusal is not None and other is not None:
            raise refusal
        return refusal is None

    @cached_property
    def _refusals(self) -> tuple[ConfigError | None, ConfigError | None]:
        """The refusals of a variant's private and un-noised runs; None where it is accepted."""
        return self._refusal(self.private_settings), self._refusal(self.settings)

    def _refusal(self, settings: Mapping[str, Any]) -> ConfigError | None:
        if not self.variant:
            return None
        try:
            grid = InlineGrid(self.app(), self.nodes())
            self.strategy(settings).start(grid, self.start(), num_rounds=1)
        except ConfigError as refusal:
            return refusal
        return None

    def instruction(self, settings: Mapping[str, Any] | None = None) -> Instruction:
        """Return the first message of a run with these settings, which no agent answers."""
        grid = WatchedGrid(self.app(), self.nodes(), {(name, 1): disconnect for name in self.names})
        with suppress(RunError):
            self.strategy(settings, patience=0.0).start(grid, self.start(), num_rounds=1)
        require(bool(grid.exchanges), "round 1 asks no agent")
        return grid.exchanges[0].instruction


def says_restart(done: Round, agent: str = "") -> bool:
    """Return whether a note of a round says that an agent (any by default) restarts."""
    about = f"agent {agent} " if agent else "agent "
    return any(
        note.startswith(about) and ("restarts" in note or "starts again" in note)
        for note in done.notes
    )


def first_failure(played: Played) -> str:
    """Return the first failure of a run in words."""
    for number, failures in enumerate(played.failures, 1):
        for name, why in failures.items():
            return f"round {number}, agent {name}: {why}"
    return "none"


def require_same(result: PrivetResult, expected: PrivetResult, what: str) -> None:
    """Raise ``CheckFailed`` unless two runs have the same models and history, to the bit."""
    require(
        result.models.keys() == expected.models.keys(), f"{what}: the models are of other names"
    )
    for name in result.models:
        ours, theirs = (run.models[name]["x"].numpy() for run in (result, expected))
        gap = float(np.abs(ours - theirs).max())
        require(ours.tobytes() == theirs.tobytes(), f"{what}: model {name!r} differs by {gap:.3g}")
    require(len(result.history) == len(expected.history), f"{what}: the histories differ in length")
    for ours_done, theirs_done in zip(result.history, expected.history, strict=True):
        for part in ("round", "participants", "residual"):
            # As text, so that a residual that is no number equals itself.
            one, other = (repr(getattr(done, part)) for done in (ours_done, theirs_done))
            require(one == other, f"{what}: {part} of round {theirs_done.round} differs")


def require_alike(
    result: PrivetResult, inline: PrivetResult, engine: str, *, models: bool, sizes: bool
) -> None:
    """Raise ``CheckFailed`` unless another engine's run says what the in-process one says.

    Without ``models``, as where noise is another in every run, of all but the numbers; without
    ``sizes``, as where the length of a code depends on the noise, of all but the bytes.
    """
    if models:
        require_same(result, inline, f"the {engine} engine")
    parts = ["participants", "failures", "notes", "epsilon"]
    if sizes:
        parts += ["bytes_up", "bytes_down"]
    for ours, theirs in zip(result.history, inline.history, strict=True):
        for part in parts:
            one, other = (repr(getattr(done, part)) for done in (ours, theirs))
            require(
                one == other,
                f"the {engine} engine: {part} of round {theirs.round}: {one}, not {other}",
            )


def ray_engine(subject: Subject) -> AbstractContextManager[LocalGrid]:
    """Return the Ray engine, with two actors."""
    from .sharded import WatchedRay

    return WatchedRay(partial(app_of, subject.name, subject.problems), subject.nodes())


ENGINES: dict[str, Callable[[Subject], AbstractContextManager[LocalGrid]]] = {
    "inline": lambda subject: nullcontext(InlineGrid(subject.app(), subject.nodes())),
    "cohort": lambda subject: nullcontext(CohortGrid(subject.app(), subject.nodes())),
    "ray": ray_engine,
}
"""Engines that run the nodes of a subject, as contexts that end them."""


def _is_sparse(played: Played) -> bool:
    """Return whether an upload of a run was a sparse vector."""
    replies = (exchange.reply for exchange in played.grid.exchanges)
    content = next((one.content for one in replies if one is not None and one.has_content()), None)
    record = None if content is None else content.get(RECORD)
    return record is not None and ENCODED in from_payload(cast(bytes, record["payload"]))
