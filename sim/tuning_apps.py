"""Search the settings of the strategy that a Flower app starts, by successive halving.

The app's ServerApp is called once, up to the first ``start()`` of a strategy of this library, which
gives what is run: strategy, starting model, rounds, evaluation. A trial is that strategy with other
values of the keys that its class names (``search``), the first one with the app's values; a range
whose unit would be moduli is a factor around the app's value instead. All trials are played for
a share of the rounds, the better third of them for three times as many, and so on to all rounds
(K. Jamieson and A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization", 2016). They are compared by a metric of the app.
"""

from __future__ import annotations

import json
import math
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.clientapp import ClientApp

from privet.client_apps.solver_agents import USUAL_SMOOTHNESS
from privet.core import ConfigError
from privet.core.format import number, text
from privet.core.key import Key, keys_of, values_of
from privet.core.log_level import SILENT, hushed
from privet.kernel import stream
from privet.rounds.collect.outcome import OverflowedError
from privet.server_apps.report.document import document
from privet.server_apps.report.tables import html_table
from privet.strategies import PrimalDualStrategy, SearchAxis
from privet.wire.contract import means_privacy
from privet.wire.flower_internals import flat

from .engine import InlineGrid
from .tuning import Axis, Budget, hypercube, placed

KEPT = 3
"""One in this many trials goes on, to this many times the rounds."""
AROUND = 16.0
"""Factor by which a range extends to both sides of the app's value."""
STEPS = ("step-size", "step-size-base")
LARGER = ("acc", "auc", "f1", "precision", "recall", "r2")
"""Parts of the names of metrics that are maximised."""


@dataclass(frozen=True)
class Started:
    """The run that an app's ServerApp starts, and its ClientApp."""

    client_app: ClientApp
    nodes: int
    strategy: PrimalDualStrategy
    arrays: ArrayRecord
    rounds: int
    evaluate_fn: Callable[..., Any] | None = None
    run_config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, config: Mapping[str, Any], nodes: int = 0) -> Started:
        """Return the run that the app in a folder starts under these run-config keys.

        ``nodes`` replaces the number of nodes that its strategy waits for.

        Raises
        ------
        ConfigError
            If it is no app, or starts no strategy of this library.
        """
        server_app, client_app, defaults = components(folder)
        if unknown := config.keys() - defaults.keys():
            raise ConfigError(f"{sorted(unknown)[0]}: no run-config key of {folder}")
        captured: list[Started] = []
        run_config = {**defaults, **config}
        context = Context(0, 0, {}, RecordDict(), dict(run_config))
        with _captured(client_app, nodes, captured):
            server_app(InlineGrid(client_app, max(nodes, 1), run_config), context)
        if not captured:
            raise ConfigError(f"cannot tune {folder}: its ServerApp starts no strategy of privet")
        return replace(captured[0], run_config=run_config)


class _CapturedError(Exception):
    """Ends a ServerApp at its first start."""


@contextmanager
def _captured(client_app: ClientApp, nodes: int, captured: list[Started]) -> Iterator[None]:
    """Capture the arguments of the first ``start()`` of a strategy and end its ServerApp."""
    start = PrimalDualStrategy.start

    def capture(
        strategy: PrimalDualStrategy,
        grid: Any,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        *arguments: Any,
        evaluate_fn: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Any:
        run_options = strategy.options
        count = nodes or max(run_options.num_agents, run_options.min_available_nodes)
        if not count:
            raise ConfigError("num-agents: how many nodes the app is simulated with")
        evaluate_fn = evaluate_fn or (arguments[3] if len(arguments) > 3 else None)
        captured.append(
            Started(client_app, count, strategy, initial_arrays, num_rounds, evaluate_fn)
        )
        raise _CapturedError

    PrimalDualStrategy.start = capture  # type: ignore[method-assign, assignment]
    try:
        yield
    except _CapturedError:
        pass
    finally:
        PrimalDualStrategy.start = start  # type: ignore[method-assign]


def components(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Return ServerApp, ClientApp and run config of an app (raises ``ConfigError``)."""
    pyproject = folder / "pyproject.toml"
    try:
        table = tomllib.loads(pyproject.read_text())["tool"]["flwr"]["app"]
        names = [table["components"][name] for name in ("serverapp", "clientapp")]
        config = flat(table.get("config", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{pyproject}: expected a Flower app's pyproject.toml") from None
    if (where := str(folder.resolve())) not in sys.path:
        sys.path.insert(0, where)
    apps = []
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            apps.append(getattr(import_module(module), attribute))
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{name} of {pyproject}: {error}") from None
    return *apps, config


@dataclass(frozen=True, slots=True)
class Line:
    """The result of a trial in a stage: a line of ``trials.jsonl``.

    ``value`` is the metric, less being better; infinite for a run that diverged. ``cost`` is the
    cost of all its rounds so far.
    """

    trial: int
    settings: dict[str, Any]
    rounds: int
    value: float
    cost: float


@dataclass
class Search:
    """A search in a folder, which is resumed where it was stopped.

    Parameters
    ----------
    started : Started
    given : mapping
        Keys of the strategy that are set and not searched.
    budget : Budget
        Its ``settings`` are the trials; its costs are those of a local step and of a round.
    metric : str
        The metric that is compared; by default the only one, or the loss. The prefix "max:" or
        "min:" maximises or minimises it; without one, the name decides (accuracy: maximise).
    folder : Path
        For ``trials.jsonl``, checkpoints and the page ``tuning.html``.

    Raises
    ------
    ConfigError
        If the strategy cannot be tuned so, or the folder holds another search.
    """

    started: Started
    given: Mapping[str, Any]
    budget: Budget
    folder: Path
    metric: str = ""
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        strategy = self.started.strategy
        name = strategy.half.name
        if means_privacy(strategy.half.settings()):
            raise ConfigError(
                f"cannot tune {name} in a private run: its noise is planned for all its rounds, "
                "and every trial would be charged; tune without noise on public data"
            )
        owners = [strategy.half, *strategy.half.parts.values()]
        keys = {key.name: key for owner in owners for key in keys_of(type(owner)).values()}
        if unknown := self.given.keys() - keys.keys():
            raise ConfigError(f"{sorted(unknown)[0]}: {name} has no such key")
        self.base = strategy.varied(self.given)
        owners = [self.base.half, *self.base.half.parts.values()]
        values = {key: value for owner in owners for key, value in values_of(owner).items()}
        steps = values.get(strategy.local_steps, 1)
        self.axes = [
            _axis(axis, keys[axis.key], values[axis.key], steps)
            for axis in strategy.search
            if axis.key not in self.given and not keys[axis.key].unused(values)
        ]
        if not self.axes:
            raise ConfigError(f"cannot tune {name}: it has no key left to search")
        self.round_cost = self.started.nodes * self.budget.cost(steps, 1)
        self._values = values
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path = self.folder / "trials.jsonl"
        self._begin()

    def _begin(self) -> None:
        """Read the lines of an earlier call, or write the description of the search.

        Raises
        ------
        ConfigError
            If the folder holds another search.
        """
        what = {
            "strategy": self.base.half.name,
            "settings": self._values,
            "searched": {axis.key: [axis.low, axis.high] for axis in self.axes},
            "trials": self.budget.settings,
            "rounds": self.started.rounds,
            "nodes": self.started.nodes,
            "metric": self.metric,
            "seed": self.budget.seed,
        }
        head = json.dumps(what, default=str)
        if not self._path.exists():
            self._path.write_text(head + "\n")
        first, *rest = self._path.read_text().splitlines()
        if first != head:
            raise ConfigError(f"{self._path} is of another search: name another folder with --out")
        for line in rest:
            try:
                self.lines.append(Line(**json.loads(line)))
            except (ValueError, TypeError):  # the last one, if it was cut off
                break
        self._path.write_text("\n".join([head, *map(_json, self.lines)]) + "\n")

    def trials(self) -> list[dict[str, Any]]:
        """Return the settings of all trials; the first keeps the app's values."""
        count = self.budget.settings - 1
        rng = stream(self.budget.seed, "tuning", self.base.half.name)
        rows: Any = hypercube(rng, count, len(self.axes)) if count else ()
        return [{}, *(placed({}, self.axes, row) for row in rows)]

    def run(self) -> list[Line]:
        """Play the trials and return the last line of each, the best first."""
        settings, alive, before = self.trials(), list(range(self.budget.settings)), 0
        for rounds in stages(self.started.rounds, self.budget.settings):
            done = {line.trial: line for line in self.lines if line.rounds == rounds}
            for trial in alive:
                if trial not in done:
                    done[trial] = self._play(trial, settings[trial], before, rounds)
                    self.lines.append(done[trial])
                    with self._path.open("a") as file:
                        file.write(_json(done[trial]) + "\n")
                    self._write_page()
            order = sorted(alive, key=lambda trial: (done[trial].value, trial))
            alive, before = order[: max(1, len(alive) // KEPT)], rounds
        self._write_page()
        return self.ranked()

    def ranked(self) -> list[Line]:
        """Return the last line of every trial: those that got furthest first, then by value."""
        last = {line.trial: line for line in self.lines}
        return sorted(last.values(), key=lambda line: (-line.rounds, line.value, line.trial))

    def _play(self, trial: int, settings: dict[str, Any], before: int, rounds: int) -> Line:
        """Play a trial on to ``rounds`` from its checkpoint at round ``before``."""
        started, values = self.started, dict[str, Any]()
        grid = InlineGrid(started.client_app, started.nodes, started.run_config)
        earlier = self.folder / f"trial-{trial}-{before}.npz"
        cost = rounds * self.round_cost
        with hushed(SILENT), np.errstate(all="ignore"):
            try:
                result = self.base.varied(settings).start(
                    grid,
                    started.arrays,
                    rounds,
                    evaluate_fn=started.evaluate_fn,
                    evaluate_every=rounds,
                    resume=earlier if before else None,
                    checkpoint=self.folder / f"trial-{trial}-{rounds}.npz",
                    checkpoint_every=0,
                    log_rounds=False,
                )
            except OverflowedError:
                return Line(trial, settings, rounds, math.inf, cost)
        for metrics in (
            result.evaluate_metrics_serverapp,
            result.evaluate_metrics_clientapp,
            result.train_metrics_clientapp,
        ):
            values = {**dict(metrics.get(rounds, {})), **values}
        return Line(trial, settings, rounds, self._value(values), cost)

    def _value(self, values: Mapping[str, Any]) -> float:
        """Return the metric of a run, less being better (raises ``ConfigError`` for none)."""
        way, _, name = self.metric.rpartition(":")
        if not name and (len(values) == 1 or "loss" in values):
            name = "loss" if "loss" in values else next(iter(values))
        if name not in values:
            raise ConfigError(
                f"cannot tune by {name or 'a metric'}: the app reports "
                f"{', '.join(sorted(values)) or 'none'}; give start() an evaluate_fn, and --metric"
            )
        more = way == "max" or (not way and any(part in name.lower() for part in LARGER))
        value = float(values[name]) * (-1.0 if more else 1.0)
        return value if math.isfinite(value) else math.inf

    def _write_page(self) -> None:
        """Write the HTML table of all trials, their rounds and values."""
        keys = list(dict.fromkeys(key for line in self.lines for key in line.settings))
        rows: list[str] = []
        for line in self.ranked():
            cells = [*(line.settings.get(key, "the app's") for key in keys)]
            figures = [line.rounds, abs(line.value), line.cost]
            shown = [text(cell) if isinstance(cell, str) else number(cell) for cell in cells]
            shown += map(number, figures)
            columns = "".join(f"<td>{cell}</td>" for cell in shown)
            rows.append(f'<tr><th scope="row">{line.trial}</th>{columns}</tr>')
        heads = ["trial", *map(text, keys), "rounds", text(self.metric or "metric"), "cost"]
        title = f"Settings of {self.base.half.name}"
        summary = (
            f"<p>{self.budget.settings} trials, up to {self.started.rounds} rounds of "
            f"{self.started.nodes} nodes; the better third of a stage goes on to the next.</p>"
        )
        body = f"<h1>{text(title)}</h1>\n{summary}\n{html_table(heads, rows, 'numbers')}"
        (self.folder / "tuning.html").write_text(document(title, body))


def stages(rounds: int, trials: int) -> list[int]:
    """Return after how many rounds trials are compared: the last is all of them."""
    result = [rounds]
    while trials >= KEPT and result[0] > 1:
        result.insert(0, math.ceil(result[0] / KEPT))
        trials //= KEPT
    return result


def _axis(axis: SearchAxis, key: Key, value: Any, steps: int) -> Axis:
    """Return the range of a key: around the app's value where it is in units of moduli."""
    if axis.unit in ("plain", "epochs"):
        unit = 1.0 if axis.unit == "plain" else 1.0 / steps
        return Axis(axis.key, axis.low * unit, min(axis.high * unit, key.high))
    if key.automatic and key.left_open(value):
        value = key.automatic[1]
    if not value and axis.key in STEPS:
        value = 2.0 / USUAL_SMOOTHNESS
    if not value:
        raise ConfigError(f"{axis.key} = auto is nothing to search around: set it in the app")
    return Axis(axis.key, max(value / AROUND, key.floor), min(value * AROUND, key.high))


def _json(line: Line) -> str:
    return json.dumps(asdict(line))
