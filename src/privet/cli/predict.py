"""``privet predict`` and ``privet export``: what the model of a finished run is for."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, or its file model.npz.")
]


def predict(
    run: RunArgument,
    rows: Annotated[
        Path,
        typer.Argument(metavar="ROWS", help="A table with the model's columns: CSV, TSV, Parquet."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write; by default the output.")
    ] = None,
    unknown: Annotated[
        str,
        typer.Option(
            help="What a category is that the training did not have, or a number outside of the "
            "schema's range: refuse, or missing (read as a missing value).",
            autocompletion=lambda: ("refuse", "missing"),
        ),
    ] = "refuse",
) -> None:
    """Predict the rows of a table with the model of a run, as CSV: a row each, in their order."""
    from privet.core import ConfigError
    from privet.core.files import write_whole
    from privet.data import DataError
    from privet.data.tables.files import read_rows
    from privet.server_apps import load_model

    model = load_model(run)
    try:
        table = read_rows(str(rows)).table
        named = model.columns or table.column_names
        predictions = model.predicted(
            table if model.columns else table.to_pandas(), unknown=unknown
        )
    except DataError as error:
        at = "" if str(error).startswith(str(rows)) else f"{rows}: "
        raise ConfigError(f"{at}{error}") from None
    if others := [name for name in table.column_names if name not in named]:
        print(f"not used by the model: {', '.join(others)}", file=sys.stderr)
    text = _csv(predictions)
    if out is None:
        print(text, end="")
        return
    try:
        write_whole(out, text.encode())
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
    print(out.resolve())


def _csv(columns: Mapping[str, Any]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
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
    """Write the model of a run for other programs, and print where it is."""
    from privet.server_apps import load_model
    from privet.server_apps.model_export import export_model

    print(export_model(load_model(run), to, out).resolve())
