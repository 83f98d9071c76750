"""The page and the CSV of a description: what stands first, and that they say what JSON says."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privet.server_apps.report.described import described_csv, described_page
from privet.server_apps.report.tables import in_cell
from privet.sim.inline import run_inline
from support.analysis_runs import SITES, config
from support.analysis_sites import TABLES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a table with a unit and a spelling that differ at one site."""
    where = tmp_path_factory.mktemp("described")
    rows = pd.read_csv(TABLES / "glm-binomial-1.csv")
    there = rows["site"] == "west"
    rows.loc[there, "bmi"] *= 100
    rows.loc[there, "smoker"] = rows.loc[there, "smoker"].str.title()
    rows.loc[rows.index % 7 == 0, "crp"] = None
    rows["note"] = "<script>"
    rows.to_csv(where / "all.csv", index=False)
    keys = {**config(where, "describe"), "data-path": str(where / "all.csv")}
    return Path(run_inline(keys, "run").folder)


def tables(folder: Path) -> tuple[dict[str, Any], str, list[dict[str, str]]]:
    table = json.loads((folder / "table.json").read_text())
    rows = list(csv.DictReader(io.StringIO((folder / "table.csv").read_text())))
    return table, (folder / "report.html").read_text(), rows


def test_disagreements_stand_before_groups_and_columns(folder: Path) -> None:
    _, page, _ = tables(folder)
    text = html.unescape(page)
    order = [
        text.index(one)
        for one in (
            "What the sites disagree about",
            "column bmi: the mean at west is",
            "'Never' and 'never' may be the same",
            "<h2>By sex",
            "<h2>Columns",
            "<h3>age",
        )
    ]
    assert order == sorted(order)
    assert page.count("<script>") == 1  # its own
    assert "&lt;script&gt;" in page


def test_every_column_has_a_histogram_and_missing_values_by_site(folder: Path) -> None:
    table, page, _ = tables(folder)
    parts = dict(re.findall(r"<h3>(\w+)</h3>(.*?)(?=<h3>|</main>|</body>)", page, re.DOTALL))
    assert parts.keys() == table["columns"].keys()
    for name, column in table["columns"].items():
        if "histogram" in column:
            bars = re.findall(r"<title>([\d,]+)</title>", parts[name])
            counts = [int(bar.replace(",", "")) for bar in bars]
            drawn = column["histogram"]
            assert counts == [one for one in drawn["counts"] if one]
            edges = np.linspace(drawn["low"], drawn["high"], len(drawn["counts"]) + 1)
            filled = np.flatnonzero(drawn["counts"])
            ends = edges[filled[0]], edges[filled[-1] + 1]
            assert re.findall(r"<text[^>]*>([^<]*)<", parts[name]) == [*map(in_cell, ends)]
            assert re.search(r'<rect x="0.00"', parts[name])
        rows = re.findall(r"<tr><th>(\w+)</th><td>([\d,]+)</td><td>([\d,]+)</td>", parts[name])
        found = {site: (int(n), int(missing)) for site, n, missing in rows if site in SITES}
        of_json = zip(table["site_names"], column["by_site"], strict=True)
        assert found == {site: (row["n"], row["missing"]) for site, row in of_json}


def test_csv_says_what_json_says_of_all_rows_sites_and_groups(folder: Path) -> None:
    table, page, rows = tables(folder)
    found = {(r["column"], r["category"], r["site"], r["group"]): r for r in rows}
    assert len(found) == len(rows)
    for name, column in table["columns"].items():
        parts = {("", ""): column}
        parts |= {
            (site, ""): row
            for site, row in zip(table["site_names"], column["by_site"], strict=True)
        }
        parts |= {("", group): own for group, own in column.get("groups", {}).items()}
        for (site, group), own in parts.items():
            row = found.pop((name, "", site, group))
            for key in ("n", "missing", "other", "mean", "sd", "standardised_difference"):
                value = own.get(key)
                assert row[key] == ("" if value is None else str(value))
            for q, value in own.get("quantiles", {}).items():
                assert row[f"q{q}"] == str(value)
            for category, count in own.get("categories", {}).items():
                assert found.pop((name, category, site, group))["n"] == str(count)
    assert not found
    assert "<th>age, mean (sd)</th>" in page


def test_hidden_counts_are_bounds_in_csv_and_on_the_page(folder: Path) -> None:
    table, _, _ = tables(folder)
    column = table["columns"]["sex"]
    column |= {"categories": {"F": None, "M": 500}, "bounds": {"F": [0, 4]}}
    assert "sex,F,,,0-4" in described_csv(table)
    assert "0 to 4" in described_page(table)
