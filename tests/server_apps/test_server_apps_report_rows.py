"""The histories of runs as CSV and Parquet."""

from __future__ import annotations

import csv
import io
import math
import shlex
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from privet.server_apps.report.rows import csv_table, parquet_table
from privet.server_apps.report.runs import IDENTITY, read_runs
from support.reports import rounds, run_folder


def csv_rows(folders: list[Path]) -> list[dict[str, str]]:
    """Return what a reader of the CSV file finds, its columns in order."""
    text = csv_table(read_runs(folders)).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


class TestRows:
    """The CSV and Parquet files: a row per run and round, with what tells the runs apart."""

    def folders(self, tmp_path: Path) -> tuple[list[Path], list[tuple[str, dict[str, Any]]]]:
        histories = [rounds(4, seed=1), rounds(3, seed=2, epsilon="inf", loss=None)]
        histories[1][2]["measures"] = {"msd-units": 0.125}
        summaries = [
            {
                "algorithm": name,
                "dataset": "digits",
                "config": {"num-agents": 9, "seed": number, "rho": rho, "clip": clip, "h": "l1"},
            }
            for number, (name, rho, clip) in enumerate([("fed-plt", 1, "inf"), ("fed-pdm", 2, 0.5)])
        ]
        folders = [
            run_folder(tmp_path / f"run{i}", history, summary=summary)
            for i, (history, summary) in enumerate(zip(histories, summaries, strict=True))
        ]
        lines = [(f"run{i}", line) for i, history in enumerate(histories) for line in history]
        return folders, lines

    def test_csv_has_the_histories_row_by_row(self, tmp_path: Path) -> None:
        folders, lines = self.folders(tmp_path)
        rows = csv_rows(folders)
        assert len(rows) == 7
        for row, (name, line) in zip(rows, lines, strict=True):
            assert (row["run"], int(row["round"])) == (name, line["round"])
            assert int(row["participants"]) == len(line["participants"])
            assert row["participant-names"].split() == line["participants"]
            assert row["failures"] == "0"
            assert (float(row["loss"]) if row["loss"] else None) == line["loss"]
            for key in ("accuracy", "stationarity", "bytes-up", "bytes-down", "seconds", "epsilon"):
                assert float(row[key]) == float(line[key])
        assert [row["msd-units"] for row in rows] == [""] * 6 + ["0.125"]
        assert [row["algorithm"] for row in rows] == ["fed-plt"] * 4 + ["fed-pdm"] * 3
        assert {(row["dataset"], row["num-agents"]) for row in rows} == {("digits", "9")}
        assert [row["seed"] for row in rows] == ["0"] * 4 + ["1"] * 3
        assert {row["config.rho"] for row in rows[:4]} == {"1"}
        assert "config.h" not in rows[0], "the same in both runs"

    def test_runs_with_a_clock_have_columns_of_it_and_of_their_uploads(
        self, tmp_path: Path
    ) -> None:
        timed = rounds(3)
        for line, names, clock in zip(
            timed, (["a"], ["a", "b"], ["b"]), (0.0, 2.5, 7), strict=True
        ):
            line |= {"participants": names, "versions": [1] * len(names), "clock": clock}
        folders = [run_folder(tmp_path / "timed", timed), run_folder(tmp_path / "waits", rounds(2))]
        rows = csv_rows(folders)
        assert [row["clock"] for row in rows] == ["0.0", "2.5", "7.0", "", ""]
        assert [row["uploads"] for row in rows] == ["1", "3", "4", "", ""]
        assert "clock" not in csv_rows(folders[1:])[0]
        table = parquet.read_table(io.BytesIO(parquet_table(read_runs(folders))))
        assert table.column("clock").to_pylist() == [0.0, 2.5, 7.0, None, None]
        assert table.column("uploads").to_pylist() == [1, 3, 4, None, None]
        assert [str(table.schema.field(key).type) for key in ("clock", "uploads")] == [
            "double",
            "int64",
        ]

    def test_parquet_has_the_same_rows_in_types(self, tmp_path: Path) -> None:
        folders, lines = self.folders(tmp_path)
        table = parquet.read_table(io.BytesIO(parquet_table(read_runs(folders))))
        types = {field.name: str(field.type) for field in table.schema}
        expected = {
            "run": "string",
            "num-agents": "int64",
            "seed": "int64",
            "partition-seed": "int64",
            "round": "int64",
            "bytes-up": "int64",
            "epsilon": "double",
            "residual": "double",
            "msd-units": "double",
            "config.rho": "int64",
            "config.clip": "double",
        }
        assert types | expected == types
        assert types["participant-names"].startswith("list<")
        rows = table.to_pylist()
        assert len(rows) == 7
        for row, (name, line) in zip(rows, lines, strict=True):
            assert (row["run"], row["round"]) == (name, line["round"])
            assert row["participant-names"] == line["participants"]
            assert row["participants"] == len(line["participants"])
            for key in ("loss", "accuracy", "stationarity", "bytes-up", "bytes-down", "seconds"):
                assert row[key] == line[key]
            assert row["epsilon"] == float(line["epsilon"])
            assert row["residual"] is None
        assert [row["config.clip"] for row in rows] == [math.inf] * 4 + [0.5] * 3
        assert rows[6]["msd-units"] == 0.125
        assert list(csv_rows(folders)[0]) == table.column_names

    @pytest.mark.parametrize(
        ("seeds", "stored", "kind"),
        [
            ((2**63, 1), [str(2**63), "1"], "string"),
            ((2**63 - 1, -(2**63)), [2**63 - 1, -(2**63)], "int64"),
            (("drawn", 1), ["drawn", "1"], "string"),
            ((0.5, 1), [0.5, 1.0], "double"),
            ((0.5, 10**400), ["0.5", str(10**400)], "string"),
        ],
        ids=["beyond int64", "int64", "text", "float", "beyond floats"],
    )
    def test_parquet_has_what_fits_no_type_as_text(
        self, tmp_path: Path, seeds: tuple[Any, ...], stored: list[Any], kind: str
    ) -> None:
        folders = [
            run_folder(
                tmp_path / f"run{i}",
                rounds(1),
                summary={"config": dict.fromkeys(("seed", "num-agents", "rho"), seed)},
            )
            for i, seed in enumerate(seeds)
        ]
        table = parquet.read_table(io.BytesIO(parquet_table(read_runs(folders))))
        for key in ("seed", "num-agents", "config.rho"):
            assert table.column(key).to_pylist() == stored
            assert str(table.schema.field(key).type) == kind

    def test_runs_without_a_summary_have_rows_too(self, tmp_path: Path) -> None:
        (row,) = csv_rows([run_folder(tmp_path / "bare", rounds(1))])
        assert {key for key in IDENTITY if row[key]} == set()
        assert (row["run"], row["round"]) == ("bare", "1")


def test_no_cell_is_a_formula_and_every_name_can_be_told_apart(tmp_path: Path) -> None:
    """Agents choose their names, also ``=HYPERLINK(...)``, and ones with spaces."""
    names = [["=1+1", "b"], ["@SUM(A1)", "a b", "it's"], ["-2", "-x"]]
    history = rounds(3)
    for line, participants in zip(history, names, strict=True):
        line["participants"] = participants
    summary = {"algorithm": "=cmd|' /C calc'!A1", "dataset": "digits", "config": {"seed": 1}}
    rows = csv_rows([run_folder(tmp_path / "run", history, summary=summary)])
    for row in rows:
        for cell in row.values():
            assert not cell.startswith(("=", "+", "@")), cell
    assert rows[0]["participant-names"] == "'=1+1 b"
    assert shlex.split(rows[1]["participant-names"]) == names[1]
    assert rows[2]["participant-names"] == "'-2 -x"
    assert rows[0]["algorithm"] == "'=cmd|' /C calc'!A1"
