"""``privet tune``: an algorithm's own parameters, by runs on the engine or from its theory."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.core.key import shown

from .config import given_keys, named_callable, where_raised
from .keys import (
    ConfigOption,
    JsonLinesOption,
    PresetOption,
    SettingsArgument,
    completed_algorithm,
)

if TYPE_CHECKING:
    from privet.agents.base import ProblemFn
    from privet.kernel import Moduli
    from privet.rounds.hooks import Query, Theory
    from privet.sim.tuning import Budget, Trial
    from privet.strategies import PrimalDualStrategy

SETTINGS = 36
"""Settings that are run where --budget does not say how many."""
TRIALS = 9
"""The same of an app."""
AS_GIVEN = {"settings": "as given"}
"""Stands in the table for a run that adds no settings to the given keys."""


def tune(
    algorithm: Annotated[
        str,
        typer.Argument(
            help="Name of a registered algorithm, or algorithm=NAME; an app has its own.",
            autocompletion=completed_algorithm,
        ),
    ] = "",
    settings: SettingsArgument = None,
    config: ConfigOption = None,
    preset: PresetOption = "",
    app: Annotated[
        str,
        typer.Option(
            help="MODULE:FUNCTION, context -> problem of your own in place of a data set; or the "
            "folder of a Flower app, whose own strategy is tuned by successive halving."
        ),
    ] = "",
    theory: Annotated[
        bool | None,
        typer.Option(
            "--theory/--runs",
            help="Ask the algorithm's theory, or run it; by default the theory where it has one "
            "and no --budget is given.",
        ),
    ] = None,
    max_local_epochs: Annotated[
        int | None,
        typer.Option(
            help="Search the local steps of a round too, up to this; a theory always does.", min=1
        ),
    ] = None,
    budget: Annotated[int | None, typer.Option(help="Settings to run, 36 by default.", min=1)] = (
        None
    ),
    reduction: Annotated[
        float | None,
        typer.Option(help="Theory: factor by which the error is to shrink, 0.001 by default."),
    ] = None,
    gradient_cost: Annotated[float, typer.Option(help="Cost t_G of a local gradient.")] = 1.0,
    communication_cost: Annotated[float, typer.Option(help="Cost t_C of a round.")] = 10.0,
    penalty: Annotated[
        bool,
        typer.Option(
            "--penalty",
            help="Search the weight of the penalty in place of the algorithm's parameters: C of "
            ".01 to 100, by the loss on rows that every agent holds out, three times a fifth.",
        ),
    ] = False,
    metric: Annotated[
        str,
        typer.Option(
            help="App: what is compared, NAME, min:NAME or max:NAME; by default the loss."
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="App: folder of trials and page, where a search goes on; by default tuning."
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="Settings to print.", min=1)] = 8,
    workers: Annotated[
        int | None, typer.Option(help="Processes to search with; by default this one.", min=1)
    ] = None,
    ray_address: Annotated[
        str, typer.Option(help="Ray cluster to search on, host:port; all of it by default.")
    ] = "",
    json_lines: JsonLinesOption = False,
) -> None:
    """Search an algorithm's own parameters, the cheapest setting first.

    Keys that you give are not searched. With --runs, every algorithm gets the same search over
    the same number of settings, on the data of the keys or on --app; a run ends when
    ||sum grad f||^2 is at most the key tolerance (1e-5 where it is 0). With --theory, the
    algorithm's convergence rate decides, and nothing is run. Ranges are in units of the moduli:
    give strong-convexity and smoothness where the problems do not know them. With an app's folder,
    ranges lie around the values of its own strategy, and a metric is compared. With --penalty,
    the algorithm runs as its keys say, and the weight of its penalty is searched.
    """
    from privet.core import ConfigError
    from privet.core import algorithm as registered
    from privet.core.registry import DEFAULT_ALGORITHM
    from privet.sim.logs import plain
    from privet.sim.tuning import Budget

    costs = _costs(gradient_cost, communication_cost)
    words = list(settings or [])
    if "=" in algorithm:
        algorithm, words = "", [algorithm, *words]
    if app and Path(app).is_dir():
        if theory or reduction is not None or max_local_epochs or workers or ray_address or preset:
            raise ConfigError(
                "--app FOLDER searches by runs in this process: leave --theory, --reduction, "
                "--max-local-epochs, --workers, --ray-address and --preset out"
            )
        plain()
        given = given_keys(words, config)
        plan = Budget(budget or TRIALS, *costs)
        folder = out or Path("tuning")
        _by_halving(Path(app), algorithm, given, plan, folder, metric).show(top, json_lines)
        return
    if metric:
        raise ConfigError("--metric is of an app's folder; runs go by the gradient")
    if out:
        raise ConfigError("--out is of an app's folder; nothing else is kept of a search")
    if not (algorithm or config or preset or words):
        missing = f"{app}: no such folder; " if app else ""
        raise ConfigError(f"tune: {missing}name an algorithm, or give --app FOLDER")
    given = given_keys(words, config, preset, algorithm)
    algorithm = str(given.get("algorithm", DEFAULT_ALGORITHM))
    kind = registered(algorithm).load_strategy()
    problem_fn = _problem_fn(app) if app else None
    if penalty:
        if app or theory or budget or reduction or max_local_epochs:
            raise ConfigError(
                "--penalty runs the algorithm as its keys say: leave --app, --theory, --budget, "
                "--reduction and --max-local-epochs out"
            )
        plain()
        _by_penalty(given).show(top, json_lines)
        return
    processes = {
        "workers": workers or (None if ray_address else 1),
        "address": ray_address or None,
        "progress": bool(workers or ray_address),
    }
    by_theory = kind.theory is not None and budget is None if theory is None else theory
    if by_theory and kind.theory is None:
        raise ConfigError(f"--theory: {algorithm} has none; leave it out to search by runs")
    if by_theory and budget is not None:
        raise ConfigError("--budget counts runs: leave --theory out")
    if not by_theory and reduction is not None:
        raise ConfigError("--reduction belongs to a theory; runs use the key tolerance")
    plain()
    if by_theory:
        factor = 1e-3 if reduction is None else reduction
        query = _query(given, problem_fn, max_local_epochs or 0, factor, costs)
        result = _by_theory(kind.theory(query), given, kind if app else None, processes)
    else:
        plan = Budget(budget or SETTINGS, *costs)
        shown_as = kind if app else None
        result = _by_runs(given, problem_fn, plan, max_local_epochs or 0, shown_as, processes)
    result.show(top, json_lines)


def _problem_fn(name: str) -> ProblemFn:
    """Return the named function, wrapped so that its errors are one line that names it."""
    from privet.core import ConfigError, PrivetError
    from privet.kernel import Problem

    function = named_callable(name)

    def problem(context: Any) -> Any:
        try:
            result = function(context)
        except PrivetError:
            raise
        except Exception as error:
            raise ConfigError(f"{name}: {where_raised(error)}") from error
        if not isinstance(result, Problem):
            raise ConfigError(f"{name}: expected a problem, found {type(result).__name__}")
        return result

    return problem


@dataclass(frozen=True, slots=True)
class _SearchResult:
    """The result of a search: a summary line, and settings with their figures, the best first.

    ``use`` is a command that runs the best settings, or empty if none is good.
    """

    summary: str
    moduli: Moduli | None
    rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
    use: str = ""

    def show(self, top: int, json_lines: bool) -> None:
        """Print the first rows, as a table or as JSON."""
        from rich.box import HORIZONTALS
        from rich.table import Table

        from privet.core.terminal import console
        from privet.server_apps.run_folder import to_json

        if json_lines:
            for settings, figures in self.rows[:top]:
                print(json.dumps(to_json({**settings, **figures}), allow_nan=False))
            return
        if self.moduli is not None:
            low, high = self.moduli.strong_convexity, self.moduli.smoothness
            print(f"strong convexity {low:.4g}, smoothness {high:.4g}")
        print(self.summary)
        # Without vertical lines, so that a key and its value stay on one line of 80 columns.
        table = Table(box=HORIZONTALS, show_lines=True, show_edge=False, padding=(0, 1, 0, 0))
        table.add_column("settings", overflow="fold")
        for name in self.rows[0][1]:
            table.add_column(name, justify="right", overflow="fold")
        for settings, figures in self.rows[:top]:
            chosen = "\n".join(f"{key} {_cell(value)}" for key, value in settings.items())
            table.add_row(chosen, *map(_cell, figures.values()))
        console().print(table)
        if self.use:
            print(self.use)


def _use(
    given: Mapping[str, Any], best: Mapping[str, Any], kind: type[PrimalDualStrategy] | None
) -> str:
    """Return the command that runs the best settings, or the strategy if ``kind`` is given."""
    keys = {**{key: given[key] for key in ("algorithm",) if key in given}, **given, **best}
    if kind is None:
        return shlex.join(["privet", "run", *(f"{key}={shown(keys[key])}" for key in keys)])
    named = {name: keys[key.name] for name, key in kind.argument_keys().items() if key.name in keys}
    return f"{kind.__name__}({', '.join(f'{name}={value!r}' for name, value in named.items())})"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _costs(gradient: float, communication: float) -> tuple[float, float]:
    from privet.core import ConfigError

    for name, value in (("gradient", gradient), ("communication", communication)):
        if not 0 <= value < math.inf:
            raise ConfigError(f"--{name}-cost {value!r}: must be a finite number >= 0")
    if gradient == communication == 0:
        raise ConfigError("--gradient-cost and --communication-cost: at least one must be > 0")
    return gradient, communication


def _query(
    given: Mapping[str, Any],
    problem_fn: ProblemFn | None,
    most_steps: int,
    reduction: float,
    costs: tuple[float, float],
) -> Query:
    """Return the query to the theory; data are read if the keys do not give the moduli."""
    from privet.core import ConfigError
    from privet.rounds.hooks import Query
    from privet.sim.race import problems_of, read_searched
    from privet.sim.tuning import UNKNOWN_MODULI, given_moduli, moduli_of

    if not 0 < reduction <= 1:
        raise ConfigError(f"--reduction {reduction!r}: must be > 0 and <= 1")
    config = read_searched(given)
    moduli = given_moduli(given) or moduli_of(problems_of(config, problem_fn))
    if moduli is None:
        raise ConfigError(f"a theory needs the moduli, {UNKNOWN_MODULI}")
    return Query(moduli, config, frozenset(given), most_steps, reduction, *costs)


def _by_theory(
    theory: Theory,
    given: Mapping[str, Any],
    kind: type[PrimalDualStrategy] | None,
    processes: Mapping[str, Any],
) -> _SearchResult:
    """Return all settings of the theory's grid, the cheapest first."""
    from privet.sim.sweep import sweep

    parts = sweep(theory.search, theory.parts(), **processes)
    ranked = sorted(chain.from_iterable(parts), key=lambda one: one.rank)
    stable = sum(one.converges for one in ranked)
    summary = f"{stable} of {len(ranked)} settings contract"
    summary += f"\n{theory.note}" * bool(theory.note)
    rows = [(one.settings, one.figures) for one in ranked]
    use = _use(given, ranked[0].settings, kind) if ranked[0].converges else ""
    return _SearchResult(summary, theory.query.moduli, rows, use)


def _by_runs(
    given: Mapping[str, Any],
    problem_fn: ProblemFn | None,
    budget: Budget,
    most_epochs: int,
    kind: type[PrimalDualStrategy] | None,
    processes: Mapping[str, Any],
) -> _SearchResult:
    """Return the settings that were run, the fastest to the tolerance first."""
    from privet.sim.race import RaceTask
    from privet.sim.tuning import tune_task

    task = RaceTask.of(given, problem_fn)
    moduli, trials = tune_task(task, budget, most_epochs=most_epochs, **processes)
    reached = sum(trial.reached for trial in trials)
    summary = f"{reached} of {len(trials)} settings reach {task.tolerance:g}"
    rows = [(one.settings or AS_GIVEN, _figures(one, budget)) for one in trials]
    use = _use(given, trials[0].settings, kind) if reached else ""
    return _SearchResult(summary, moduli, rows, use)


def _by_penalty(given: Mapping[str, Any]) -> _SearchResult:
    """Return the values of C, the least loss on the agents' held-out rows first."""
    from privet.sim.penalties import search

    found = search(given, told=partial(typer.echo, err=True))
    rows = [
        ({"penalty-c": one.c}, {"loss": one.loss, "+-": one.spread, **one.measures})
        for one in found
    ]
    summary = "loss of rows that the agents held out, +- between draws"
    return _SearchResult(summary, None, rows, _use(given, {"penalty-c": found[0].c}, None))


def _by_halving(
    folder: Path, algorithm: str, given: dict[str, Any], budget: Budget, out: Path, metric: str
) -> _SearchResult:
    """Return the tuned settings of an app's strategy, the best first."""
    from privet.core import ConfigError
    from privet.sim.tuning_apps import Search, Started, components

    nodes, defaults = given.pop("num-agents", 0), components(folder)[2]
    config = {key: given.pop(key) for key in defaults.keys() & given.keys()}
    started = Started.of(folder, config, nodes)
    if (name := started.strategy.half.name) != (algorithm or given.pop("algorithm", name)):
        raise ConfigError(f"cannot tune that: the app of {folder} starts {name}")
    search = Search(started, given, budget, out, metric)
    rows = [
        (
            line.settings or {"settings": "the app's"},
            {"rounds": line.rounds, "metric": abs(line.value), "cost": line.cost},
        )
        for line in search.run()
    ]
    best = rows[0][0] if "settings" not in rows[0][0] else {}
    use = _use({}, best, type(started.strategy)) if best else "the app's own settings are the best"
    return _SearchResult(f"{name}: {len(rows)} trials; {out / 'tuning.html'}", None, rows, use)


def _figures(trial: Trial, budget: Budget) -> dict[str, Any]:
    """Return the cost figures of a trial."""
    (one,) = trial.outcomes
    return {
        "reached": one.reached,
        "iterations": one.iterations,
        "rounds": one.rounds,
        "gradients": one.gradients,
        "messages": one.messages,
        "cost": budget.cost(one.gradients, one.messages),
    }
