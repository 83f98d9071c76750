"""Damaged run folders: one line that names file and line, or the page of a run that diverged."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from privet.server_apps.report import ReportError, write_report
from privet.server_apps.report.history import IDENTITY, NAMES
from privet.server_apps.report.rows import csv_table
from privet.server_apps.report.runs import read_runs
from support.reports import render, rounds, run_folder

LONG = "9" * 400
DEEP = "[" * 100_000
NESTED = "[" * 500 + "]" * 500


def refused(folder: Path) -> str:
    """Return why there is no report, and see that there is none."""
    with pytest.raises(ReportError) as caught:
        write_report([folder], folder.parent / "out.html")
    assert not (folder.parent / "out.html").exists()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (DEEP, "expected a JSON object (lists and objects are nested"),
        (f'{{"round": 1, "failures": {NESTED}}}', "lists and objects are nested more than 32 deep"),
        (f'{{"round": 1, "loss": {LONG}}}', "expected loss below 1.8e308, got 400 digits"),
        (f'{{"round": 1, "measures": {{"a": -{LONG}}}}}', "expected a below 1.8e308"),
        (f'{{"round": 1, "loss": {LONG * 20}}}', "expected a JSON object (Exceeds the limit"),
        (f'{{"round": {LONG}}}', "expected a round below 2^63, got 999"),
        ('{"round": -1}', "expected a round below 2^63, got -1"),
        (json.dumps({"round": 1, "loss": "x" * 9000}), "expected loss a number, null"),
        ('{"round": 1, "participants": ["\\ud800"]}', "expected Unicode, got '\\ud800'"),
        ("garbage", "expected a JSON object"),
        ("{garbage", "expected a JSON object"),
        ("\0" * 50, "expected a JSON object"),
        ('{"round": 2, "lo' + "\0" * 50, "expected a JSON object"),
    ],
)
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_wrong_line_is_named(tmp_path: Path, line: str, said: str, before: int, end: str) -> None:
    folder = run_folder(tmp_path / "run", rounds(before))
    with (folder / "history.jsonl").open("a") as file:
        file.write(line + end)
    found = refused(folder)
    assert found.startswith(f"{folder / 'history.jsonl'}, line {before + 1}: ")
    assert said in found


def test_half_a_line_that_was_ended_is_no_unfinished_one(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", rounds(2))
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"round": 3, "lo\n')
    assert f"{folder / 'history.jsonl'}, line 3: expected a JSON object" in refused(folder)


@pytest.mark.parametrize(
    "name",
    [*IDENTITY, "run", "round", "rounds", "participants", NAMES, "distance", "privacy-0-epsilon"],
)
def test_a_measure_does_not_take_a_name_that_the_report_has(tmp_path: Path, name: str) -> None:
    history = rounds(2)
    history[1]["measures"] = {name: 1.0}
    said = refused(run_folder(tmp_path / "run", history))
    assert said.endswith(f"line 2: expected a new name in kebab-case, got measure '{name}'")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("summary", f'{{"distance-to-optimum": {LONG}}}', "below 1.8e308, got one of 400 digits"),
        ("summary", DEEP, "expected JSON (lists and objects are nested"),
        ("summary", f'{{"a": {NESTED}}}', "lists and objects are nested more than 32 deep"),
        ("privacy", f'{{"epsilon": {LONG}}}', "below 1.8e308, got one of 400 digits"),
        ("privacy", f'{{"claims": [{{"epsilon": 1, "delta": {LONG}}}]}}', "of 400 digits"),
        ("privacy", DEEP, "expected JSON (lists and objects are nested"),
        ("privacy", "\0" * 9, "expected JSON"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, file: str, content: str, said: str) -> None:
    folder = run_folder(tmp_path / "run", rounds(2))
    (folder / f"{file}.json").write_text(content)
    found = refused(folder)
    assert found.startswith(f"{folder / file}.json: ")
    assert said in found


def test_a_seed_may_be_longer_than_any_float(tmp_path: Path) -> None:
    config = {"seed": 10**400, "distance": 10**400}
    page = render(run_folder(tmp_path / "run", rounds(2), summary={"config": config}))
    assert "1" + "0" * 400 in page.html
    assert "run-0-distance" not in page.ids


def test_numbers_beyond_int64_are_floats(tmp_path: Path) -> None:
    history = rounds(3, **{"bytes-up": 10**308})
    page = render(run_folder(tmp_path / "run", history))
    assert page.value(0, "bytes-up") == math.inf


def test_an_end_of_line_inside_a_text_ends_no_line(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    line: dict[str, Any] = {"round": 1, "notes": ["one\u2028two\x85three"]}
    (folder / "history.jsonl").write_text(
        json.dumps(line, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    assert render(folder).value(0, "rounds") == 1


def test_a_folder_whose_name_is_no_text_is_reported(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    folder = run_folder(tmp_path / name, rounds(2))
    assert "caf\N{REPLACEMENT CHARACTER}" in render(folder).html
    assert b"\xef\xbf\xbd" in csv_table(read_runs([folder]))


EXTREMES = [
    [1e17 * 1e16**n for n in range(18)],
    [1e-310, 1e300, 5e297],
    [5e-324, 1.7e308],
    [0.0, 1.7e308, -1.7e308],
    [-1.7e308] * 3,
    [math.inf, math.inf],
]


@pytest.mark.parametrize("values", EXTREMES, ids=str)
def test_a_diverged_run_has_its_page(tmp_path: Path, values: list[float]) -> None:
    keys = ("loss", "accuracy", "stationarity", "residual", "seconds", "epsilon", "bytes-up")
    history = [
        {"round": t, **dict.fromkeys(keys, value), "measures": {"gap": value}}
        for t, value in enumerate(values, start=1)
    ]
    page = render(run_folder(tmp_path / "run", history))
    assert page.value(0, "loss") == values[-1]
    drawn = any(0 < value < 1e300 for value in values)
    start = page.html.index('id="figure-stationarity"')
    figure = page.html[start : page.html.index("</figure>", start)]
    assert ("stroke: var(--run-0)" in figure) == drawn
    assert ("too large, not drawn" in figure) == any(not 0 < value < 1e300 for value in values)
