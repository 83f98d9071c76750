"""Execute the run config of an analysis: enrol the sites, sum, and write the table."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from privet.analyses.prediction import columns_of
from privet.analyses.site_tests import odd_sites
from privet.core import ConfigError, RunError
from privet.core.assignments import comma_list
from privet.core.errors import HopelessError
from privet.core.exits import EXIT_CODE
from privet.core.files import write_whole
from privet.core.key import Config
from privet.core.shapes import parsed
from privet.core.threads import pin_blas_threads
from privet.data import DataError
from privet.data.frames import (
    Dealt,
    dealt_from_config,
    table_from_config,
    table_of_schema,
)
from privet.rounds.keep.checkpoint import Checkpoint
from privet.rounds.roster import in_simulation
from privet.strategies.analyses import GLM
from privet.strategies.analyses.base import AnalysisResult, AnalysisStrategy

from .build import build_strategy
from .config import ANEW, NEWEST, decisive
from .control import Control, stopped_by_sigterm
from .execute import Finished, finish, finish_failed
from .progress_bar import progress
from .regression_file import compared, nested_table
from .regression_start import begun
from .report import ReportError
from .report.analysed import PAGES, table_latex, table_markdown
from .report.files import PAGE, write_outputs
from .run_folder import TABLE, RunFolder
from .tracking import Tracking

log = logging.getLogger("flwr.privet")

CSV = "table.csv"


@dataclass(frozen=True, slots=True)
class FinishedAnalysis(Finished):
    """A finished analysis: its folder, its result and its summary."""

    result: AnalysisResult

    @property
    def missing(self) -> dict[str, str]:
        """The sites that the table is without, and why, by label; empty where it has all."""
        table, told = self.result.table, {}
        if table["sites_away"]:
            last = self.result.history[-1].failures
            away = [f"{one} ({last[one]})" if one in last else one for one in table["sites_away"]]
            told["away, and not in the table"] = ", ".join(away)
        if "turned_away" in table:
            told["turned away, and not in the table"] = "; ".join(table["turned_away"])
        return told

    def headline(self) -> dict[str, str]:
        """Return the lines that end the run's log: label and value."""
        table = self.result.table
        told = {"rounds": f"{self.summary['rounds']} (stopped by {self.summary['stopped']})"}
        names = table["site_names"]
        told["sites"] = f"{len(names)}: {', '.join(names)}"
        told |= self.missing
        if self.result.untested:
            told["no test against the nested run"] = self.result.untested
        if odd := odd_sites(table, names):
            lines = "; ".join(f"{name}: {why}" for name, why in odd.items())
            told["not like the others"] = (
                f"{lines}; look at its units and codes, or leave it out: exclude={comma_list(odd)}"
            )
        told["bytes up"] = f"{self.summary['bytes-up']:,}"
        told["privacy"] = str(self.summary["privacy"])
        told["table"] = str(self.folder / TABLE)
        told["page"] = str(self.folder / PAGE)
        return told


def write_pages(folder: Path, table: Mapping[str, Any]) -> None:
    """Write the page, and the table as CSV, where the analysis has them."""
    if table.get("analysis") in PAGES:
        page, rows = PAGES[table["analysis"]]
        write_whole(folder / PAGE, page(table).encode())
        write_whole(folder / CSV, rows(table).encode())


def report_table(
    folder: Path, out: Path, csv: Path | None, markdown: Path | None, latex: Path | None
) -> Path:
    """Write the page of an analysis' run folder, and its table in other formats; return the page.

    Raises
    ------
    ReportError
        If the table cannot be read, or an output path is a file of the run.
    """
    try:
        table = parsed((folder / TABLE).read_bytes())
        page, rows = PAGES[table["analysis"]]
        path = out / PAGE if out.is_dir() else out
        outputs = {"--out": (path, page(table).encode())}
        for option, place, made in (
            ("--csv", csv, rows),
            ("--markdown", markdown, table_markdown),
            ("--latex", latex, table_latex),
        ):
            if place is not None:
                outputs[option] = place, made(table).encode()
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        raise ReportError(f"{folder / TABLE} cannot be read: run the analysis again") from None
    write_outputs(outputs, [folder])
    return path


def sites_of(config: Mapping[str, Any]) -> Dealt:
    """Return the tables that a simulated analysis deals (raises ``ConfigError``)."""
    try:
        return dealt_from_config(config, int(config["num-agents"]))
    except DataError as error:
        raise ConfigError(str(error)) from None


def execute_analysis(grid: Grid, config: Config, run_id: str) -> FinishedAnalysis:
    """Run the analysis of a resolved config on a grid, and write a run folder.

    Raises
    ------
    ConfigError
        If values do not fit together, or cannot be used with the data.
    RunError
        If the run cannot go on, or the sums show that there is no result.
    """
    pin_blas_threads()
    with ExitStack() as held:
        config, model = begun(config)
        smaller = nested_table(config)
        strategy: Any = build_strategy(config)
        assert isinstance(strategy, AnalysisStrategy)
        if model is not None:
            assert isinstance(strategy, GLM)
            strategy.begin_at(model)
        names = _read_columns(strategy, grid, config)
        folder, saved, config = _folder(config, run_id, held)
        log.info("%s, run folder: %s", config["algorithm"], folder.path.absolute())
        strategy.options = replace(strategy.options, config=decisive(config))
        tracking = Tracking((), folder.path, config)
        began = time.monotonic()
        control = Control(folder.path, config["exclude"], None, readmit=config["readmit"])
        try:
            total = config["num-server-rounds"]
            with stopped_by_sigterm(strategy.stopping), progress(total) as show:
                result = strategy.start(
                    grid,
                    num_rounds=total,
                    resume=saved,
                    checkpoint=folder.checkpoint,
                    checkpoint_every=config["checkpoint-every"],
                    observers=(control, show),
                    log_rounds=False,
                )
            _require_table(result, strategy)
        except BaseException as error:
            finish_failed(folder, strategy, config, tracking, error)
            raise
        result.table = _with_names(result.table, names) | _ranges(result.table, config["schema"])
        if smaller is not None:
            result.table, result.untested = compared(result.table, smaller)
        result.fitted = strategy.fitted(result.table)
        folder.write_json(TABLE, result.table)
        outcome = {
            "status": "completed" if result.complete else "incomplete",
            EXIT_CODE: result.exit_code,
            "stopped": result.stopped,
            "seconds": time.monotonic() - began,
            "simulated": in_simulation(grid),
        }
        summary = finish(folder, strategy, config, tracking, outcome)
        write_pages(folder.path, result.table)
        return FinishedAnalysis(folder.path, result, summary)


def _read_columns(
    strategy: AnalysisStrategy, grid: Grid, config: Mapping[str, Any]
) -> tuple[str, ...]:
    """Have the coordinator know the columns that it can know; return the names of the sites."""
    try:
        if in_simulation(grid) and config["data-path"]:
            dealt = sites_of(config)
            # Of all rows: a site's own may lack some numbers of a column of categories.
            strategy.reads_as(table_from_config(config))
            return dealt.names
        if config["schema"]:
            strategy.reads_as(table_of_schema(config["schema"]))
    except DataError as error:
        raise ConfigError(str(error)) from None
    return ()


def _ranges(table: Mapping[str, Any], schema: str) -> dict[str, Any]:
    """Return the schema's ranges of the columns that predictions read, where there are any."""
    if table.get("analysis") not in ("glm", "cox") or not schema:
        return {}
    stated = table_of_schema(schema).ranges
    return {"ranges": {name: list(stated[name]) for name in columns_of(table) if name in stated}}


def _folder(
    config: Config, run_id: str, held: ExitStack
) -> tuple[RunFolder, str | Checkpoint | None, Config]:
    """Return the run folder, and what the run goes on from, if anything."""
    saved: str | Checkpoint | None = config["resume"] or None
    if saved in (ANEW, NEWEST):
        found = None
        if saved == NEWEST:
            held.enter_context(RunFolder.chosen_in(config["output-dir"]))
            found = RunFolder.newest(config["output-dir"], private=False)
        config = Config(config, resume=str(found.path) if found else "")
        if found is not None:
            held.enter_context(found.held())
            return found, found.saved(), config
        saved = None
    folder = RunFolder.create(config["output-dir"], run_id)
    held.enter_context(folder.held())
    return folder, saved, config


def _require_table(result: AnalysisResult, strategy: AnalysisStrategy) -> None:
    """Raise ``RunError`` where the analysis has not ended.

    A noised sum has one round: once it was asked for, no resume brings it.
    """
    if result.table:
        return
    if strategy.most_rounds == 1:
        raise HopelessError(
            "the one round of a noised sum was asked for, and no sum came of it; what it cost "
            "stays spent: begin another run, with a target of its own"
        )
    failures = result.history[-1].failures if result.history else {}
    reasons = "; ".join(f"site {name}: {why}" for name, why in failures.items())
    raise RunError(
        f"the analysis has no result after {len(result.history)} rounds: "
        f"{reasons or 'set num-server-rounds to more, and resume'}"
    )


def _with_names(table: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return a table with the ids of the sites that rows were dealt to, in place of numbers."""
    if not names:
        return dict(table)
    sites = {key: [names[int(one)] for one in table[key]] for key in ("site_names", "sites_away")}
    return {**table, **sites}
