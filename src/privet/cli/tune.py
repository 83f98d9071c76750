"""``privet tune``: an algorithm's own parameters, by runs on the engine or from its theory."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
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
from .search_result import SearchResult

if TYPE_CHECKING:
    from privet.agents.base import ProblemFn
    from privet.rounds.hooks import Query, Theory
    from privet.sim.tuning import Budget, Trial
    from privet.strategies import PrimalDualStrategy

SETTINGS = 36
"""Settings that are run where --budget does not say how many."""
TRIALS = 9
"""The same of an app."""
AS_GIVEN = {"settings": "as given"}
"""Stands in the table for a run that adds no settings to the given keys."""


AlgorithmArgument = Annotated[
    str,
    typer.Argument(
        help="Name of a registered algorithm, or algorithm=NAME; an app has its own.",
        autocompletion=completed_algorithm,
    ),
]
AppOption = Annotated[
    str,
    typer.Option(
        help="MODULE:FUNCTION, context -> problem of your own in place of a data set; or the "
        "folder of a Flower app, whose own strategy is tuned by successive halving."
    ),
]
TheoryOption = Annotated[
    bool | None,
    typer.Option(
        "--theory/--runs",
        help="Ask the algorithm's theory, or run it; by default the theory where it has one "
        "and no --budget is given.",
    ),
]
MaxLocalEpochsOption = Annotated[
    int | None,
    typer.Option(
        help="Search the local steps of a round too, up to this; a theory always does.", min=1
    ),
]
BudgetOption = Annotated[int | None, typer.Option(help="Settings to run, 36 by default.", min=1)]
ReductionOption = Annotated[
    float | None,
    typer.Option(help="Theory: factor by which the error is to shrink, 0.001 by default."),
]
GradientCostOption = Annotated[float, typer.Option(help="Cost t_G of a local gradient.")]
CommunicationCostOption = Annotated[float, typer.Option(help="Cost t_C of a round.")]
PenaltyOption = Annotated[
    bool,
    typer.Option(
        "--penalty",
        help="Search the weight of the penalty in place of the algorithm's parameters: C of "
        ".01 to 100, by the loss on rows that every agent holds out, three times a fifth.",
    ),
]
MetricOption = Annotated[
    str,
    typer.Option(help="App: what is compared, NAME, min:NAME or max:NAME; by default the loss."),
]
OutOption = Annotated[
    Path | None,
    typer.Option(help="App: folder of trials and page, where a search goes on; by default tuning."),
]
TopOption = Annotated[int, typer.Option(help="Settings to print.", min=1)]
WorkersOption = Annotated[
    int | None, typer.Option(help="Processes to search with; by default this one.", min=1)
]
RayAddressOption = Annotated[
    str, typer.Option(help="Ray cluster to search on, host:port; all of it by default.")
]


def tune(
    algorithm: AlgorithmArgument = "",
    settings: SettingsArgument = None,
    config: ConfigOption = None,
    preset: PresetOption = "",
    app: AppOption = "",
    theory: TheoryOption = None,
    max_local_epochs: MaxLocalEpochsOption = None,
    budget: BudgetOption = None,
    reduction: ReductionOption = None,
    gradient_cost: GradientCostOption = 1.0,
    communication_cost: CommunicationCostOption = 10.0,
    penalty: PenaltyOption = False,
    metric: MetricOption = "",
    out: OutOption = None,
    top: TopOption = 8,
    workers: WorkersOption = None,
    ray_address: RayAddressOption = "",
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
    from privet.core import algorithm as registered
    from privet.core.registry import DEFAULT_ALGORITHM
    from privet.sim.logs import plain
    from privet.sim.tuning import Budget

    costs = _costs(gradient_cost, communication_cost)
    words = list(settings or [])
    if "=" in algorithm:
        algorithm, words = "", [algorithm, *words]
    if app and Path(app).is_dir():
        _require_of_folder(theory, reduction, max_local_epochs, workers, ray_address, preset)
        plain()
        given = given_keys(words, config)
        plan = Budget(budget or TRIALS, *costs)
        folder = out or Path("tuning")
        _by_halving(Path(app), algorithm, given, plan, folder, metric).show(top, json_lines)
        return
    _require_of_keys(metric, out, app, named=bool(algorithm or config or preset or words))
    given = given_keys(words, config, preset, algorithm)
    kind = registered(str(given.get("algorithm", DEFAULT_ALGORITHM))).load_strategy()
    problem_fn = _problem_fn(app) if app else None
    if penalty:
        _require_of_penalty(app, theory, budget, reduction, max_local_epochs)
        plain()
        _by_penalty(given).show(top, json_lines)
        return
    asked = _theory_to_ask(kind, theory, budget, reduction)
    processes = _processes(workers, ray_address)
    search = _SettingsSearch(given, kind, problem_fn, max_local_epochs or 0, costs, processes)
    plain()
    if asked:
        result = search.by_theory(asked, 1e-3 if reduction is None else reduction)
    else:
        result = search.by_runs(budget or SETTINGS)
    result.show(top, json_lines)


def _require_of_folder(
    theory: bool | None,
    reduction: float | None,
    max_local_epochs: int | None,
    workers: int | None,
    ray_address: str,
    preset: str,
) -> None:
    """Refuse what a search of an app's folder has no use for (raises ``ConfigError``)."""
    from privet.core import ConfigError

    if theory or reduction is not None or max_local_epochs or workers or ray_address or preset:
        raise ConfigError(
            "--app FOLDER searches by runs in this process: leave --theory, --reduction, "
            "--max-local-epochs, --workers, --ray-address and --preset out"
        )


def _require_of_keys(metric: str, out: Path | None, app: str, *, named: bool) -> None:
    """Refuse what is of an app's folder alone, and a search of nothing (raises ``ConfigError``)."""
    from privet.core import ConfigError

    if metric:
        raise ConfigError("--metric is of an app's folder; runs go by the gradient")
    if out:
        raise ConfigError("--out is of an app's folder; nothing else is kept of a search")
    if not named:
        missing = f"{app}: no such folder; " if app else ""
        raise ConfigError(f"tune: {missing}name an algorithm, or give --app FOLDER")


def _require_of_penalty(
    app: str,
    theory: bool | None,
    budget: int | None,
    reduction: float | None,
    max_local_epochs: int | None,
) -> None:
    """Refuse what a search of the penalty's weight has no use for (raises ``ConfigError``)."""
    from privet.core import ConfigError

    if app or theory or budget or reduction or max_local_epochs:
        raise ConfigError(
            "--penalty runs the algorithm as its keys say: leave --app, --theory, --budget, "
            "--reduction and --max-local-epochs out"
        )


def _theory_to_ask(
    kind: type[PrimalDualStrategy],
    theory: bool | None,
    budget: int | None,
    reduction: float | None,
) -> type[Theory] | None:
    """Return the algorithm's theory where it decides, None where runs do.

    By default it decides where there is one, unless ``budget`` counts runs.

    Raises
    ------
    ConfigError
        If an option does not go with that, or the algorithm has no theory.
    """
    from privet.core import ConfigError

    by_theory = kind.theory is not None and budget is None if theory is None else theory
    if by_theory and kind.theory is None:
        raise ConfigError(f"--theory: {kind.algorithm} has none; leave it out to search by runs")
    if by_theory and budget is not None:
        raise ConfigError("--budget counts runs: leave --theory out")
    if not by_theory and reduction is not None:
        raise ConfigError("--reduction belongs to a theory; runs use the key tolerance")
    return kind.theory if by_theory else None


def _processes(workers: int | None, ray_address: str) -> dict[str, Any]:
    """Return the processes of a search as ``privet.sim.sweep.sweep`` takes them."""
    return {
        "workers": workers or (None if ray_address else 1),
        "address": ray_address or None,
        "progress": bool(workers or ray_address),
    }


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


def _use(
    given: Mapping[str, Any], best: Mapping[str, Any], kind: type[PrimalDualStrategy] | None
) -> str:
    """Return the command that runs the best settings, or the strategy if ``kind`` is given."""
    keys = {**{key: given[key] for key in ("algorithm",) if key in given}, **given, **best}
    if kind is None:
        return shlex.join(["privet", "run", *(f"{key}={shown(keys[key])}" for key in keys)])
    named = {name: keys[key.name] for name, key in kind.argument_keys().items() if key.name in keys}
    return f"{kind.__name__}({', '.join(f'{name}={value!r}' for name, value in named.items())})"


def _costs(gradient: float, communication: float) -> tuple[float, float]:
    from privet.core import ConfigError

    for name, value in (("gradient", gradient), ("communication", communication)):
        if not 0 <= value < math.inf:
            raise ConfigError(f"--{name}-cost {value!r}: must be a finite number >= 0")
    if gradient == communication == 0:
        raise ConfigError("--gradient-cost and --communication-cost: at least one must be > 0")
    return gradient, communication


@dataclass(frozen=True, slots=True)
class _SettingsSearch:
    """A search of an algorithm's own parameters, around the given keys.

    ``problem_fn`` is a problem of the user's own in place of a data set, ``most_steps`` the most
    local steps to search (0 for none), ``costs`` are t_G and t_C.
    """

    given: Mapping[str, Any]
    kind: type[PrimalDualStrategy]
    problem_fn: ProblemFn | None
    most_steps: int
    costs: tuple[float, float]
    processes: Mapping[str, Any]

    def by_theory(self, ask: type[Theory], reduction: float) -> SearchResult:
        """Return all settings of the theory's grid, the cheapest first."""
        from privet.sim.sweep import sweep

        theory = ask(self.query(reduction))
        parts = sweep(theory.search, theory.parts(), **self.processes)
        ranked = sorted(chain.from_iterable(parts), key=lambda one: one.rank)
        stable = sum(one.converges for one in ranked)
        summary = f"{stable} of {len(ranked)} settings contract"
        summary += f"\n{theory.note}" * bool(theory.note)
        rows = [(one.settings, one.figures) for one in ranked]
        use = self.use(ranked[0].settings) if ranked[0].converges else ""
        return SearchResult(summary, theory.query.moduli, rows, use)

    def query(self, reduction: float) -> Query:
        """Return the query to the theory; data are read if the keys do not give the moduli."""
        from privet.core import ConfigError
        from privet.rounds.hooks import Query
        from privet.sim.race import problems_of, read_searched
        from privet.sim.tuning import UNKNOWN_MODULI, given_moduli, moduli_of

        if not 0 < reduction <= 1:
            raise ConfigError(f"--reduction {reduction!r}: must be > 0 and <= 1")
        config = read_searched(self.given)
        moduli = given_moduli(self.given) or moduli_of(problems_of(config, self.problem_fn))
        if moduli is None:
            raise ConfigError(f"a theory needs the moduli, {UNKNOWN_MODULI}")
        return Query(moduli, config, frozenset(self.given), self.most_steps, reduction, *self.costs)

    def by_runs(self, settings: int) -> SearchResult:
        """Return the settings that were run, the fastest to the tolerance first."""
        from privet.sim.race import RaceTask
        from privet.sim.tuning import Budget, tune_task

        budget = Budget(settings, *self.costs)
        task = RaceTask.of(self.given, self.problem_fn)
        moduli, trials = tune_task(task, budget, most_epochs=self.most_steps, **self.processes)
        reached = sum(trial.reached for trial in trials)
        summary = f"{reached} of {len(trials)} settings reach {task.tolerance:g}"
        rows = [(one.settings or AS_GIVEN, _figures(one, budget)) for one in trials]
        use = self.use(trials[0].settings) if reached else ""
        return SearchResult(summary, moduli, rows, use)

    def use(self, best: Mapping[str, Any]) -> str:
        """Return the command of the best settings, or the strategy where the problem is its own."""
        return _use(self.given, best, self.kind if self.problem_fn else None)


def _by_penalty(given: Mapping[str, Any]) -> SearchResult:
    """Return the values of C, the least loss on the agents' held-out rows first."""
    from privet.sim.penalties import search

    found = search(given, told=partial(typer.echo, err=True))
    rows = [
        ({"penalty-c": one.c}, {"loss": one.loss, "+-": one.spread, **one.measures})
        for one in found
    ]
    summary = "loss of rows that the agents held out, +- between draws"
    return SearchResult(summary, None, rows, _use(given, {"penalty-c": found[0].c}, None))


def _by_halving(
    folder: Path, algorithm: str, given: dict[str, Any], budget: Budget, out: Path, metric: str
) -> SearchResult:
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
    return SearchResult(f"{name}: {len(rows)} trials; {out / 'tuning.html'}", None, rows, use)


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
