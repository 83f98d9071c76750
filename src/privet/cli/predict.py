"""``privet predict`` and ``privet export``: what the model of a finished run is for."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .keys import CohortOption
from .of_tables import times_of

if TYPE_CHECKING:
    from privet.data.sql.cohorts import NamedCohort

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, or its file model.npz or table.json.")
]


def predict(
    run: RunArgument,
    rows: Annotated[
        str,
        typer.Argument(
            metavar="ROWS",
            help="A table with the model's columns (CSV, TSV, Parquet), or a cohort of a database "
            "(a TOML file of cohorts, or a URL).",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="CSV file to write, by default the output; or the table that the operator's file "
            "names for the predictions of the cohort."
        ),
    ] = None,
    cohort: CohortOption = "",
    unknown: Annotated[
        str,
        typer.Option(
            help="What a category is that the run did not have, or a number outside of the range "
            "in a model's schema: refuse, or missing (read as a missing value).",
            autocompletion=lambda: ("refuse", "missing"),
        ),
    ] = "refuse",
    times: Annotated[
        str,
        typer.Option(
            help="Times, separated by commas, at which the probability of no event until then is "
            "predicted as well; of a cox run with baseline = pooled."
        ),
    ] = "",
) -> None:
    """Predict the rows of a table with the model of a run, as CSV: a row each, in their order.

    Of a glm, the linear predictor and the mean with its 95 % interval. Of a cox, the hazard
    relative to a row whose numbers are 0 and whose categories are the references; where its sites
    let their baseline be pooled, the survival at --times. Rows with a missing value get empty
    cells.
    """
    from privet.analyses.frame import AnalysisError
    from privet.core import ConfigError
    from privet.core.files import write_named
    from privet.data import DataError
    from privet.data.sql.cohorts import SQL, is_database
    from privet.data.sql.snapshots import held
    from privet.data.sql.writing import write_table
    from privet.server_apps.regression_file import is_analysis

    of_times = times_of(times)
    if of_times and not is_analysis(run):
        raise ConfigError("--times: the run is no Cox model, and has no survival to predict")
    asked = {"data-path": rows, "cohort": cohort, **({"dataset": SQL} if is_database(rows) else {})}
    try:
        target = _named_table(rows, cohort, out) if is_database(rows) and out else None
        with held(asked) as found:
            path = Path(found["data-path"])
            if is_analysis(run):
                predictions, others = _of_regression(run, path, unknown, of_times)
            else:
                predictions, others = _of_model(run, path, unknown)
            if target:
                given = _with_whose(target, path, predictions)
                replaced = write_table(target, given, run.resolve().name)
    except (AnalysisError, DataError) as error:
        at = "" if any(one and one in str(error) for one in (rows, cohort)) else f"{rows}: "
        raise ConfigError(f"{at}{error}") from None
    if others:
        print(f"not used by the model: {', '.join(others)}", file=sys.stderr)
    if target:
        before = f", in place of {replaced} of this run" if replaced else ""
        print(f"{len(next(iter(predictions.values())))} rows: {target.write}{before}")
        return
    text = _csv(predictions)
    if out is None:
        print(text, end="")
        return
    try:
        write_named(out, text.encode())
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
    print(out.resolve())


def _of_model(run: Path, rows: Path, unknown: str) -> tuple[Mapping[str, Any], list[str]]:
    """Return the predictions of a trained model, and the columns that it does not use."""
    from privet.data.tables.files import read_rows
    from privet.server_apps import load_model

    model = load_model(run)
    table = read_rows(str(rows)).table
    named = model.columns or table.column_names
    predictions = model.predicted(table if model.columns else table.to_pandas(), unknown=unknown)
    return predictions, [name for name in table.column_names if name not in named]


def _named_table(rows: str, name: str, out: Path) -> NamedCohort | None:
    """Return the cohort where ``out`` is the table that its operator names for predictions.

    Raises
    ------
    DataError
        Where it is no table of the operator's, and no file either by its name.
    """
    from privet.data import DataError
    from privet.data.sql.cohorts import cohort_of

    cohort = cohort_of(rows, name)
    if cohort.write and str(out) == cohort.write:
        return cohort
    if out.suffix == ".csv":
        return None
    known = f"names {cohort.write}" if cohort.write else "names none: it sets write"
    raise DataError(
        f"cohort {name}: --out {out}: a file ends in .csv, and of tables to write predictions to "
        f"its operator {known}"
    )


def _with_whose(cohort: NamedCohort, path: Path, predictions: Mapping[str, Any]) -> dict[str, Any]:
    """Return predictions with the columns that say whose each is."""
    from privet.data.tables.files import read_rows

    table = read_rows(str(path)).table
    named = [cohort.keys[key] for key in ("id-column", "person-column") if key in cohort.keys]
    whose = {name: table[name].to_numpy() for name in named}
    return {**whose, **predictions}


def _of_regression(
    run: Path, rows: Path, unknown: str, times: list[float]
) -> tuple[Mapping[str, Any], list[str]]:
    """Return the predictions of a regression table, and the columns that it does not use."""
    import numpy as np

    from privet.analyses.prediction import (
        baseline_of,
        columns_of,
        cumulative_hazards,
        predicted,
    )
    from privet.server_apps.regression_file import load_regression, read_new_rows, read_whole

    table = load_regression(run).table
    frame = read_new_rows(run, rows)
    with read_whole(run):
        covariance = np.array(table["cov"], float)
        predictions = predicted(table, frame, covariance, unknown=unknown)
        if times:
            _, hazards = cumulative_hazards(table, frame, times, unknown=unknown)
            predictions |= {
                f"survival_{time:.15g}": np.exp(-hazard)
                for time, hazard in zip(times, hazards, strict=True)
            }
            last = max(baseline_of(table)["times"], default=0.0)
    if times and (later := [f"{time:.15g}" for time in times if time > last]):
        said = f"--times {','.join(later)}: the last event is at {last:.15g}"
        print(f"{said}, and survival after it is given as it is then", file=sys.stderr)
    if empty := int(np.isnan(predictions["linear_predictor"]).sum()):
        print(f"{empty} of {frame.rows} rows have missing values: empty cells", file=sys.stderr)
    named = columns_of(table)
    return predictions, [name for name in frame.names if name not in named]


def _csv(columns: Mapping[str, Any]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*(column.tolist() for column in columns.values()), strict=True):
        missing = [isinstance(cell, float) and math.isnan(cell) for cell in row]
        writer.writerow(["" if one else cell for one, cell in zip(missing, row, strict=True)])
    return file.getvalue()


def _formats() -> list[str]:
    from privet.server_apps.model_export import FORMATS

    return list(FORMATS)


def export(
    run: RunArgument,
    to: Annotated[
        str,
        typer.Option(
            help="sklearn (a skops file of a scikit-learn pipeline), joblib (the same as a pickle: "
            "whoever loads one runs its code), safetensors (the arrays) or onnx.",
            autocompletion=_formats,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; by default model.skops and so on, in the run folder."),
    ] = None,
) -> None:
    """Write the model of a run for other programs, and print where it is.

    The table of a glm is exported to sklearn or joblib.
    """
    from privet.server_apps import load_model
    from privet.server_apps.model_export import export_model, export_regression
    from privet.server_apps.regression_file import is_analysis

    if is_analysis(run):
        print(export_regression(run, to, out).resolve())
        return
    print(export_model(load_model(run), to, out).resolve())
