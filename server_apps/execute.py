"""Execute a run config: build the strategy, run it, evaluate, save and report."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.serverapp import Grid

from privet.core import ConfigError, PrivetError, RunError
from privet.core import format as fmt
from privet.core.errors import FruitlessError, HopelessError, listed, one_line
from privet.core.exits import EXIT_CODE, Exit, exit_code
from privet.core.key import Config, read
from privet.core.library import LIBRARY_VERSION, library_digest, library_version
from privet.core.threads import pin_blas_threads
from privet.rounds import Run
from privet.rounds.absences import unknown_residual
from privet.rounds.account import draw_length
from privet.rounds.asynchrony import AsynchronySettings
from privet.rounds.collect.tasks import Tasks
from privet.rounds.keep.checkpoint import Checkpoint, journal_beside, read_manifest
from privet.rounds.keep.journal import attempts
from privet.rounds.keep.resume import require_protocol
from privet.rounds.late import Late, late_agents, late_ones
from privet.rounds.nearness import nearness
from privet.rounds.odd_sites import odd_sites
from privet.rounds.optimum_distance import ESTIMATE
from privet.rounds.roster import in_simulation
from privet.rounds.stop import Stop
from privet.rounds.views import table
from privet.strategies import Observer, PrimalDualStrategy, PrivetResult
from privet.wire.contract import means_privacy

from .account import privacy_account
from .advice import advice, remark
from .baselines import USUAL_SECONDS, baselines
from .build import (
    build_evaluation,
    build_strategy,
    require_public_data,
    starting_model,
    tell_doubts,
)
from .config import ANEW, NEWEST, decisive
from .control import Alarms, Control, stopped_by_sigterm
from .evaluation import Evaluation
from .keep_best import KeepBest, require_private_choice
from .model_file import about_run
from .noise_plan import NoiseOfPlan
from .peers.run import hosted_here, started, unit_mixer
from .planning import missing_named
from .progress_bar import progress
from .report import write_report
from .report.baselines import UN_NOISED, baselines_line
from .report.files import PAGE, STATEMENT
from .report.statement import digests_of, has_statement
from .run_folder import RunFolder, schema_stated, to_json
from .telemetry import Metrics, json_log, served
from .tracking import Tracking, named, require_trackers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("flwr.privet")

ATTEMPTS = 5
"""Processes that ``resume = auto`` lets ask agents for one round, at most."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished run: its folder, its result and its summary."""

    folder: Path
    result: PrivetResult
    summary: dict[str, Any]

    def plot(self, *names: str) -> Figure:
        """Return a figure of measures over the rounds, as `PrivetResult.plot`."""
        return self.result.plot(*names)

    def headline(self) -> dict[str, str]:
        """Return the run's final figures, formatted, by their labels."""
        return headline(self.summary)

    def __str__(self) -> str:
        return "; ".join(f"{name}: {text}" for name, text in self.headline().items())

    def _repr_html_(self) -> str:
        return table([], headline(self.summary).items())


def execute(grid: Grid, config: Config, run_id: str) -> Finished:
    """Run a resolved config on a grid and write a run folder.

    Parameters
    ----------
    grid : Grid
        A Flower grid, of any engine.
    config : Config
        A resolved run config, from ``privet.server_apps.read_config``.
    run_id : str
        Name of the run folder.

    Raises
    ------
    ConfigError
        If values do not fit together, or cannot be used with the data.
    RunError
        If the run cannot go on. The run folder holds the rounds completed until then.
    """
    pin_blas_threads()
    config = _in_versions(config)
    choosing = config["resume"] == NEWEST
    with ExitStack() as held:
        if choosing:
            held.enter_context(RunFolder.chosen_in(config["output-dir"]))
        return _begin(grid, config, run_id, held)


def _begin(grid: Grid, config: Config, run_id: str, held: ExitStack) -> Finished:
    """Begin as ``execute``; ``held`` keeps others out of the folder of a run that is found."""
    trackers = require_trackers(config["track"])
    mixer = unit_mixer(config)
    with _missing_named(config):  # before any data are read: settings may not fit together
        strategy = build_strategy(hosted_here(config), **({"mixer": mixer} if mixer else {}))
    require_private_choice(config["keep-best"], private=means_privacy(strategy.half.settings()))
    earlier, saved = None, config["resume"] or None
    private = means_privacy(strategy.half.settings()) or config.get("target-epsilon", 0.0) > 0
    if saved == ANEW:
        if private and (before := RunFolder.spent_before(config["output-dir"])):
            log.warning("resume = new: this run's account does not hold what was spent: %s", before)
        saved, config = None, Config(config, resume="")
    elif saved == NEWEST:
        earlier, saved = RunFolder.newest(config["output-dir"], private=private), None
        if earlier is not None:
            held.enter_context(earlier.held())  # to the end, since data may be read for minutes
            saved = earlier.saved()
            _require_hope(earlier, saved)
        config = Config(config, resume=str(earlier.path) if earlier else "")
    elif config["resume"]:
        source = RunFolder.of(config["resume"])
        manifest = read_manifest(Path(config["resume"]))
        require_protocol(strategy.half, manifest)  # before there is a folder of this run
        _require_rounds_left(config, manifest, source)
    with json_log(run_id) if config["log-json"] else nullcontext():
        evaluation = build_evaluation(config)
        if in_simulation(grid):  # in a deployment the nodes read their data themselves
            require_public_data(strategy, evaluation.federation, config)
        with started(mixer, config, evaluation.federation.dim):
            tell_doubts(evaluation.federation, config)
            folder = earlier or RunFolder.create(config["output-dir"], run_id)
            about = (config["algorithm"], config["dataset"], config["num-agents"])
            log.info("%s on %s, %d agents", *about)
            log.info("run folder: %s", folder.path.absolute())
            strategy.monitor = evaluation
            strategy.options = replace(
                strategy.options,
                config=decisive(config),
                encoding=evaluation.encoding,
                doubtful=bool(evaluation.federation.dataset.doubts) and not private,
                unattended=earlier is not None,
            )
            control = Control(folder.path, config["exclude"], mixer, readmit=config["readmit"])
            tracking = Tracking(trackers, folder.path, config)
            source = RunFolder.of(config["resume"]) if private and config["resume"] else folder
            if earlier is None:
                held.enter_context(folder.held())
            folder.require_unspent(config["resume"], private=private)
            with source.held_as_source(folder), _missing_named(config):
                noted = (Noted(folder),) if private else ()
                return _execute(
                    strategy, grid, config, folder, evaluation, (*noted, control), tracking, saved
                )


class Noted(Observer):
    """Notes, before a private run's first message, that it is the newest and has not ended."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def on_begin(self, run: Run) -> None:
        """Note that it is the newest, and remove what an earlier end stated."""
        self._folder.note_newest()
        self._folder.remove_end()


def _require_hope(folder: RunFolder, saved: Checkpoint) -> None:
    """Refuse to go on by itself with a run that spends and gains nothing.

    A person who has mended the cause names the folder as ``resume``.

    Raises
    ------
    HopelessError
        If the run ended of no use, or `ATTEMPTS` processes asked agents for the round that comes
        next and ended before it was folded.
    """
    summary = folder.summary()
    on = f"mend that, and go on with resume={folder.path}"
    if summary.get(EXIT_CODE) == Exit.FRUITLESS:
        why = one_line(str(summary.get("cause") or f"it diverged, {summary.get('diverged')}"))
        raise HopelessError(f"resume: {folder.path} ended without a model of use: {why}; {on}")
    number = int(saved.manifest["round"]) + 1
    if (tried := attempts(journal_beside(folder.checkpoint), number)) >= ATTEMPTS:
        raise HopelessError(
            f"resume: {folder.path}: agents were charged {tried} times for round {number}, and it "
            f"was never folded: see in the log what ended it; {on}"
        )


def _in_versions(config: Config) -> Config:
    """Return the config with what it counts in sweeps counted in versions."""
    changes = {}
    for sweeps, rounds in (
        ("num-sweeps", "num-server-rounds"),
        ("evaluate-sweeps", "evaluate-every"),
    ):
        if not config[sweeps]:
            continue
        if not config["num-agents"]:
            raise ConfigError(f"{sweeps}: needs num-agents")
        settings = read(AsynchronySettings, config)
        changes[rounds] = max(1, settings.versions(config[sweeps], config["num-agents"]))
    return Config({**config, **changes})


def _missing_named(config: Config) -> AbstractContextManager[None]:
    """Make a ``ConfigError`` of a private run name all keys that are missing."""
    private = config.get("target-epsilon", 0.0) > 0 or means_privacy(config)
    return missing_named(config, {}) if private else nullcontext()


def _execute(
    strategy: PrimalDualStrategy,
    grid: Grid,
    config: Mapping[str, Any],
    folder: RunFolder,
    evaluation: Evaluation,
    controls: tuple[Observer, ...],
    tracking: Tracking,
    saved: str | Checkpoint | None,
) -> Finished:
    began = time.monotonic()
    best = _best(config, folder)
    try:
        with stopped_by_sigterm(strategy.stopping), _watched(config) as watched:
            noise = NoiseOfPlan(strategy)
            watching = (*controls, noise, *watched, *best, tracking)
            result = _run(strategy, grid, config, folder, evaluation, watching, saved)
        require_gain(result)
        seconds = time.monotonic() - began
        kept: dict[str, Any] = {}
        with _write_errors_in_one_line(folder):
            about = about_run(strategy, config, evaluation.federation, folder.path.name, grid)
            folder.write_model(result, about)
            for keeper in best:
                private = means_privacy(strategy.half.settings())
                if said := keeper.finish(to_json(about), private=private):
                    kept = {"best": said}
        outcome = {
            **_outcome(strategy, result, evaluation, seconds),
            "simulated": in_simulation(grid),
            **({"plan": noise.said} if noise.said else {}),
            **_baselines(strategy, grid, config, evaluation),
            **kept,
        }
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        hint = _resume_hint(folder, strategy, config) if interrupted else ""
        finish_failed(folder, strategy, config, tracking, error)
        if interrupted:
            raise KeyboardInterrupt(hint) from None
        raise
    with _write_errors_in_one_line(folder):
        summary = finish(folder, strategy, config, tracking, outcome)
    return Finished(folder.path, result, summary)


def _best(config: Mapping[str, Any], folder: RunFolder) -> tuple[KeepBest, ...]:
    """Return what keeps the model of the best round, if the run asks for it."""
    if config["keep-best"] == "none":
        return ()
    source = Path(config["resume"]) if config["resume"] else None
    return (KeepBest(config["keep-best"], folder.path, source),)


def _require_rounds_left(
    config: Mapping[str, Any], manifest: Mapping[str, Any], source: RunFolder
) -> None:
    """Raise ``ConfigError`` if the checkpoint to resume from has played every round.

    Not where the run ended before it wrote what comes after the last round: that is written now.
    """
    done, last = int(manifest.get("round", 0)), config["num-server-rounds"]
    if done >= last and source.has_ended(done):
        raise ConfigError(
            f"resume: num-server-rounds = {last}, and {config['resume']} has played round {done}: "
            "ask for more rounds to go on"
        )


@contextmanager
def _watched(config: Mapping[str, Any]) -> Iterator[tuple[Observer, ...]]:
    """Yield the alarms and, if ``metrics-port`` is set, the metrics served on that port."""
    target = float(config.get("target-epsilon", 0.0))
    alarms, port = Alarms(target), int(config["metrics-port"])
    if not port:
        yield (alarms,)
        return
    metrics = Metrics(target, alarms)
    with served(metrics, config["metrics-host"], port):
        yield alarms, metrics


@contextmanager
def _write_errors_in_one_line(folder: RunFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{folder.path} cannot be written: {error.strerror}; the run is over, and resume=auto "
            "writes what is missing"
        ) from None


def _run(
    strategy: PrimalDualStrategy,
    grid: Grid,
    config: Mapping[str, Any],
    folder: RunFolder,
    evaluation: Evaluation,
    watching: tuple[Observer, ...],
    saved: str | Checkpoint | None,
) -> PrivetResult:
    total = config["num-server-rounds"]
    with progress(total, every=max(1, total // 200)) as show:
        return strategy.start(
            grid,
            starting_model(config, evaluation.federation.dim),
            num_rounds=total,
            resume=saved,
            checkpoint=folder.checkpoint,
            checkpoint_every=config["checkpoint-every"],
            evaluate_every=config["evaluate-every"],
            tolerance=config["tolerance"],
            observers=(*watching, show),
            log_rounds=False,
        )


def require_gain(result: PrivetResult) -> None:
    """Raise ``FruitlessError`` for a run that ended without folding an upload."""
    if result.status != "failed":
        return
    failures = result.history[-1].failures if result.history else {}
    reasons = listed(f"agent {name}: {why}" for name, why in failures.items())
    raise FruitlessError(
        f"no upload was folded in {len(result.history)} rounds, so the model is the start"
        f"{reasons and f': {reasons}'}"
    )


def bad_ends(run: Run) -> dict[str, Any]:
    """Return the summary's entries on a run that diverged, did not improve, or lacks agents."""
    late = {name: count._asdict() for name, count in late_agents(run.session.history).items()}
    entries = {
        "diverged": run.diverged,
        "no-better": run.no_better,
        "doubtful-data": run.options.doubtful and bool(run.diverged or run.no_better),
        "late": late,
        "odd-sites": odd_sites(run.session.history),
        "residual-unknown": unknown_residual(run),
    }
    return {key: entry for key, entry in entries.items() if entry}


def pace(run: Run) -> dict[str, Any]:
    """Return the summary's entries on a run that has a clock; else none.

    A sweep is an upload of every agent in the mean; the clock is in seconds since the start.
    """
    session = run.session
    if not isinstance(run.collector, Tasks):
        return {}
    sweeps = session.uploads / max(1, len(session.roster.agents))
    return {"uploads": session.uploads, "sweeps": sweeps, "clock": session.clock}


def _baselines(
    strategy: PrimalDualStrategy,
    grid: Grid,
    config: Mapping[str, Any],
    evaluation: Evaluation,
) -> dict[str, Any]:
    """Return the summary's entry of baselines: none on nodes that hold their own records.

    They are fitted without noise, so that a private run has none unless its config asks for them.
    """
    seconds = float(config["baseline-seconds"])
    if seconds < 0:
        private = strategy.half.agent.private or means_privacy(strategy.half.settings())
        seconds = 0.0 if private else USUAL_SECONDS
    if not seconds or not in_simulation(grid):
        return {}
    return {"baselines": baselines(evaluation, strategy, config, seconds)}


def _outcome(
    strategy: PrimalDualStrategy,
    result: PrivetResult,
    evaluation: Evaluation,
    seconds: float,
) -> dict[str, Any]:
    models = strategy.run.models()
    numbers = evaluation(strategy.run.session.round, models)
    return {
        "status": result.status,
        EXIT_CODE: result.exit_code,
        "stopped": result.stopped,
        "accuracy": numbers.get("accuracy", math.nan),
        "loss": numbers["loss"],
        "stationarity": numbers["stationarity"],
        "distance-to-optimum": evaluation.distance(models["last"]),
        "objective-excess": evaluation.excess(models["last"]),
        **_nearness(result),
        "seconds": seconds,
    }


def _nearness(result: PrivetResult) -> dict[str, Any]:
    """Return the summary's entries on the estimated distance to the pooled optimum, if any."""
    said = nearness(result.history)
    return {ESTIMATE: result.estimated_error, "pooled-optimum": said} if said else {}


def finish_failed(
    folder: RunFolder,
    strategy: PrimalDualStrategy,
    config: Mapping[str, Any],
    tracking: Tracking,
    error: BaseException,
    /,
    **entries: Any,
) -> None:
    """Write the summary of a run that ended early, and further entries of it.

    An error in doing so is only logged. A resume that was refused has nothing to say: what the
    run's own end wrote stays, and a new folder beside it goes.
    """
    if strategy.session is None and folder.has_begun():
        return
    refused = strategy.session is None and exit_code(error) is Exit.PERSON
    resumed = config.get("resume", "")
    beside = resumed and folder != RunFolder.of(resumed)
    if refused and beside and folder.remove_empty():
        return
    outcome: dict[str, Any]
    if isinstance(error, KeyboardInterrupt):
        outcome = {"status": "interrupted", EXIT_CODE: Exit.INTERRUPTED}
    elif isinstance(error, SystemExit):  # as `flwr stop` ends a ServerApp
        outcome = {"status": "stopped", "stopped": Stop.REQUEST, EXIT_CODE: Exit.DONE}
    else:
        outcome = {"status": "failed", "cause": _cause(error), EXIT_CODE: exit_code(error)}
    if strategy.session is not None and strategy.run.diverged:
        repeatable = outcome[EXIT_CODE] in (Exit.DONE, Exit.RETRY)
        outcome[EXIT_CODE] = Exit.FRUITLESS if repeatable else outcome[EXIT_CODE]
    try:
        summary = finish(folder, strategy, config, tracking, {**outcome, **entries})
        if outcome["status"] == "failed" and (hint := advice(summary)):
            log.warning("%s", hint)
    except KeyboardInterrupt:  # a second interrupt ends only the writing of the summary
        if not isinstance(error, KeyboardInterrupt):
            raise
    except Exception as fault:
        log.warning(
            "%s: the summary of the failed run could not be written: %s",
            folder.path,
            one_line(_cause(fault)),
        )


def _resume_hint(folder: RunFolder, strategy: PrimalDualStrategy, config: Mapping[str, Any]) -> str:
    """Return the message for an interrupted run: its last round and how to resume."""
    done, saved = (strategy.session.round, strategy.run.saved.round) if strategy.session else (0, 0)
    text = f"interrupted after round {done} of {config['num-server-rounds']}"
    if not folder.checkpoint.exists():
        return f"{text}, before the first checkpoint; {folder.path} has what was done"
    after = f" after round {saved}" if saved < done else ""
    if config["resume"] == str(folder.path):
        return f"{text}; to go on{after}, the same command again"
    return f"{text}; to go on{after}, the same command with resume={folder.path}"


def finish(
    folder: RunFolder,
    strategy: PrimalDualStrategy,
    config: Mapping[str, Any],
    tracking: Tracking,
    outcome: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the summary, privacy account and report, also of a run that failed.

    ``config`` may lack any key, as that of an app of its own does.
    """
    history = strategy.session.history if strategy.session is not None else []
    failed = strategy.run.failed if strategy.session is not None else None
    if strategy.session is not None:
        outcome = {**bad_ends(strategy.run), **pace(strategy.run), **outcome}
    if failed is not None:
        failures = {name: why.to_json() for name, why in failed.tally.failures.items()}
        outcome = {**outcome, "failed-round": failed.number, "failures": failures}
    privacy = privacy_account(strategy, config)
    summary = {
        "algorithm": config.get("algorithm", strategy.half.name),
        "dataset": config.get("dataset", "own data"),
        "config": dict(config),
        **outcome,
        **_start(strategy),
        "rounds": history[-1].round if history else 0,
        **_saved(strategy),
        LIBRARY_VERSION: library_version(),
        **schema_stated(str(config.get("schema", ""))),
        "bytes-up": sum(done.bytes_up for done in history),
        "bytes-down": sum(done.bytes_down for done in history),
        "private": privacy["private"],
        "privacy": privacy["reason"],
        **(bound(folder, strategy) if privacy["private"] else {}),
        "run-folder": str(folder.path),
        "ended": datetime.now().astimezone().isoformat(timespec="seconds"),
        "tags": named(config.get("tags", "")),
        "notes": config.get("notes", ""),
    }
    # The summary last: its exit code says that the run needs nothing more.
    folder.write_json("privacy.json", privacy)
    folder.write_json("summary.json", summary)
    if history or failed is not None:
        _report(folder, stated=has_statement(privacy, outcome, history))
    tracking.finish(summary)
    converted: dict[str, Any] = to_json(summary)
    return converted


def bound(folder: RunFolder, strategy: PrimalDualStrategy) -> dict[str, Any]:
    """Return the summary's entries that bind the statement of a private run.

    Digests of the run's files and of the library's code at the coordinator, the name by which
    nodes' ledgers know the run, the number of records that each agent stated in public, the length
    of a draw of noise, the trained arrays where the model has others, and by agent the newest head
    of its node's ledger, where nodes keep one.
    """
    session = strategy.run.session
    agents = session.roster.agents
    heads = {name: agent.head for name, agent in agents.items() if agent.head}
    trained = session.layout.names
    return {
        "sha-256": digests_of(folder.path),
        "code": library_digest(),
        "experiment": session.experiment,
        "records": {name: agent.num_examples for name, agent in agents.items()},
        "draw-length": max((draw_length(one, session) for one in agents.values()), default=1),
        **({"trained": list(trained)} if len(trained) < len(session.arrays) else {}),
        **({"ledger-heads": heads} if heads else {}),
    }


def _start(strategy: PrimalDualStrategy) -> dict[str, Any]:
    """Return the summary's entry on the starting model, where it was measured."""
    if strategy.session is None or math.isnan(strategy.session.initial.loss):
        return {}
    initial = strategy.session.initial
    return {"start": {"loss": initial.loss, "accuracy": initial.accuracy}}


def _saved(strategy: PrimalDualStrategy) -> dict[str, Any]:
    if strategy.session is None:
        return {}
    saved = strategy.run.saved
    return {
        "checkpoint-round": saved.round,
        "checkpoint-failures": saved.failures,
        "checkpoint-error": saved.error,
    }


def _report(folder: RunFolder, *, stated: bool) -> None:
    """Write the report page, and where there is something to state the statement.

    The run does not depend on it, so an error is only logged.
    """
    page, statement = folder.path / PAGE, folder.path / STATEMENT
    try:
        for earlier in (statement, page):  # of before a resume
            earlier.unlink(missing_ok=True)
        write_report([folder.path], page, statement=statement if stated else None)
    except Exception as error:
        lacking = f"{page} and {STATEMENT}" if stated else f"{page}"
        log.warning(
            "%s: not written (%s); privet report writes them", lacking, one_line(_cause(error))
        )


def _cause(error: BaseException) -> str:
    return str(error) if isinstance(error, PrivetError) else repr(error)


def headline(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return a run's final figures, formatted, by their labels."""
    shown: dict[str, str] = {}
    for key, label, form in (
        ("accuracy", "test accuracy", "{:.4f}".format),
        ("loss", "test loss", fmt.loss),
        ("stationarity", "squared gradient norm at the mean model", "{:.3e}".format),
        ("distance-to-optimum", "distance to the centralised optimum", "{:.3e}".format),
    ):
        value = summary.get(key)
        if isinstance(value, int | float):
            shown[label] = form(value)
    if summary.get("pooled-optimum"):
        shown["pooled optimum"] = str(summary["pooled-optimum"])
    if line := baselines_line(summary):
        shown[UN_NOISED if summary["private"] else "baselines"] = line
    shown["rounds"] = f"{summary['rounds']} (stopped by {summary.get('stopped', 'failure')})"
    if "uploads" in summary:
        sweeps, clock = summary["sweeps"], summary["clock"]
        shown["uploads"] = f"{summary['uploads']:,}, {sweeps:.4g} sweeps in {clock:.6g} s"
    for key, label in (
        ("diverged", "diverged"),
        ("no-better", "no better than its start"),
        ("plan", "noise"),
    ):
        if summary.get(key):
            shown[label] = str(summary[key])
    if late := summary.get("late"):
        shown["late agents"] = late_ones({name: Late(**count) for name, count in late.items()})
    if odd := summary.get("odd-sites"):
        shown["not like the others"] = "; ".join(
            f"agent {name}: {why}" for name, why in odd.items()
        )
    if summary.get("residual-unknown"):
        shown["residual"] = f"unknown: {summary['residual-unknown']}"
    if said := remark(summary):
        shown["beware"] = said
    if hint := advice(summary):
        shown["advice"] = hint
    if best := summary.get("best"):
        shown["best model"] = fmt.kept(best)
    if summary.get("checkpoint-error"):
        shown["checkpoint"] = (
            f"of round {summary['checkpoint-round']}; {summary['checkpoint-failures']} could not "
            f"be written ({summary['checkpoint-error']})"
        )
    shown["bytes up"] = f"{summary['bytes-up']:,}"
    shown["bytes down"] = f"{summary['bytes-down']:,}"
    shown["privacy"] = str(summary["privacy"])
    shown["run folder"] = str(summary["run-folder"])
    page = Path(summary["run-folder"]) / PAGE
    if page.exists():
        shown["report"] = str(page)
    statement = page.with_name(STATEMENT)
    if statement.exists():
        shown["statement to sign"] = str(statement)
    return shown
