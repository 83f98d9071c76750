"""Analyses on the command line: what is found, printed and refused, as a newcomer meets it."""

from __future__ import annotations

import csv
import json
import logging
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2

from privet.analyses import GlmResult
from privet.cli.keys import completed
from privet.core import analyses
from privet.core.errors import RunError
from privet.sim import grid_of
from privet.strategies.analyses import GLM
from support.analysis_sites import TABLES
from support.cli import privet

SITES = {"north": (0, 1, 2), "south": (0, 1), "west": (1, 2, 3)}
"""By site, the codes of a stage that its rows have."""


@pytest.fixture
def table(tmp_path: Path) -> list[str]:
    """Return the keys of a table of three sites."""
    rng = np.random.default_rng(3)
    rows = ["site,days,died,coded,stage,age,ward"]
    for site, stages in SITES.items():
        for _ in range(40):
            died = int(rng.random() < 0.5)
            rows.append(
                f"{site},{rng.integers(1, 400)},{died},{died + 1},{rng.choice(stages)},"
                f"{rng.integers(30, 90)},{rng.choice(['A', 'B', 'C'])}"
            )
    path = tmp_path / "all.csv"
    path.write_text("\n".join(rows) + "\n")
    return [f"data-path={path}", "id-column=site", f"output-dir={tmp_path / 'runs'}"]


def test_analyses_are_found_where_algorithms_are() -> None:
    helps = [privet(command, "--help") for command in ("run", "describe")]
    assert [code for code, _, _ in helps] == [0, 0]
    assert "privet describe NORTH.csv" in helps[1].out
    _, listed, _ = privet("algorithms")
    for name in analyses():
        assert all(name in out for out in (helps[0].out, listed))
        assert f"algorithm={name}" in completed("algorithm=")
        assert privet("keys", name).code == 0
    assert "event-column" in privet("keys", "cox").out


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (["algorithm=glm"], "formula: it is empty; give outcome and terms"),
        (["algorithm=glm", "formula=died ~ exp(age)"], "formula: there is no function 'exp'"),
        (["algorithm=glm", "formula=died ~ log(age"], "formula: the end where ')'"),
        (["algorithm=glm", "formula=died ~ agee"], "no column agee; there are days,"),
        (["algorithm=glm", "formula=coded ~ age"], "recode it, such as 1 and 2 into 0 and 1"),
        (
            ["algorithm=glm", "formula=died ~ C(ward, ref='D')"],
            "formula: ward: 'D' is none of its categories, A, B, C",
        ),
        (["algorithm=cox", "event-column=died"], "time-column is empty: name the column"),
        (["algorithm=cox", "time-column=days"], "event-column is empty: name the column"),
        (["algorithm=kaplan-meier", "time-column=days"], "event-column is empty"),
        (
            ["algorithm=cox", "time-column=day", "event-column=died"],
            "no column day; there are days,",
        ),
        (["algorithm=describe", "by=nope"], "there are site, ward"),
    ],
)
def test_what_cannot_be_analysed_is_one_line_without_a_traceback(
    table: list[str], settings: list[str], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="flwr"):
        code, _, err = privet("run", *settings, *table)
    assert code != 0
    assert "Traceback" not in err
    assert not [record for record in caplog.records if record.exc_info]
    (last,) = [one for one in err.splitlines() if one.startswith("privet: ")]
    assert line in last


def test_a_run_prints_its_table_and_names_its_sites_and_page(table: list[str]) -> None:
    code, out, _ = privet("run", "algorithm=glm", "formula=died ~ age", *table)
    assert code == 0
    assert "sites: 3: north, south, west" in out
    assert "report.html" in out
    assert any(one.split()[:1] == ["Intercept"] for one in out.splitlines())


@pytest.mark.parametrize(
    "settings",
    [
        ["algorithm=glm", "formula=died ~ C(stage)"],
        ["algorithm=kaplan-meier", "time-column=days", "event-column=died", "group-column=stage"],
    ],
)
def test_numbers_that_are_categories_have_those_of_all_sites(
    table: list[str], settings: list[str]
) -> None:
    """No site is turned away for a code that the first one has not."""
    code, out, _ = privet("run", *settings, *table)
    assert code == 0
    file = next(one for one in out.splitlines() if one.startswith("table: ")).split()[1]
    found = json.loads(Path(file).read_text())
    assert found["site_names"] == list(SITES)
    assert found["n"] == 120


def test_a_schema_without_the_id_column_fits_the_files_of_the_sites(
    table: list[str], tmp_path: Path
) -> None:
    schema = tmp_path / "schema.toml"
    told = privet("describe", *table, "drop-columns=site", "--schema", str(schema))
    assert told.code == 0
    assert "3 sites" in told.out
    assert '"age" = ' in schema.read_text()
    assert '"site" = ' not in schema.read_text()


def own_table(site: str, **more: list[str]) -> dict[str, list[object]]:
    return {"site": [site] * 20, "age": list(range(20)), "died": [0, 1, 1, 0] * 5, **more}


def test_a_site_whose_rows_have_one_category_is_in_the_table() -> None:
    """`C(site)` in Python: each site knows its own name, the coordinator all of them."""
    tables = [own_table(site) for site in ("north", "south")]
    every = {"site": ["north", "south"], "age": [0, 1], "died": [0, 1]}
    strategy = GLM(formula="died ~ age + C(site)", table=every)
    result = strategy.start(grid_of("glm", tables))
    assert result.table["n"] == 40
    assert "site[T.south]" in result.table["terms"]


def test_no_table_is_made_without_a_simulated_site() -> None:
    tables = [own_table("north"), {"age": [1, 2, 3], "outcome": [0, 1, 1]}]
    with pytest.raises(RunError, match="1 sites cannot be in the table: agent 1: no column died"):
        GLM(formula="died ~ age").start(grid_of("glm", tables))


def test_a_run_is_tested_against_a_nested_one(tmp_path: Path, table: list[str]) -> None:
    smaller = privet(
        "run", *table[:-1], "algorithm=glm", "formula=died ~ age", f"output-dir={tmp_path / 'a'}"
    )
    assert smaller.code == 0
    (run,) = (tmp_path / "a").iterdir()
    larger = ["algorithm=glm", "formula=died ~ age + ward", f"output-dir={tmp_path / 'b'}"]
    found = privet("run", *table[:-1], *larger, f"nested-run={run}")
    (other,) = (tmp_path / "b").iterdir()
    tables = [json.loads((one / "table.json").read_text()) for one in (run, other)]
    test = tables[1]["likelihood_ratio"]
    statistic = 2.0 * (tables[1]["loglik"] - tables[0]["loglik"])
    assert (test["df"], test["chi2"]) == (2, pytest.approx(statistic))
    assert test["p"] == pytest.approx(chi2.sf(statistic, 2))
    line = "likelihood ratio against died ~ age: chi2(2) ="
    assert line in found.out
    assert line in (other / "report.html").read_text()
    apart = ["algorithm=glm", "formula=died ~ ward", f"output-dir={tmp_path / 'c'}"]
    found = privet("run", *table[:-1], *apart, f"nested-run={run}")
    assert found.code == 3
    assert "no test against the nested run: likelihood ratio: the models are not" in found.out
    (lacks,) = (tmp_path / "c").iterdir()
    summary = json.loads((lacks / "summary.json").read_text())
    assert (summary["exit-code"], summary["status"]) == (3, "completed")
    unreadable = privet("run", *table[:-1], *larger, f"nested-run={tmp_path}")
    assert unreadable.code == 2
    assert str(tmp_path) in unreadable.err


def test_privet_report_has_the_table_in_every_format(tmp_path: Path, table: list[str]) -> None:
    assert (
        privet(
            "run",
            *table[:-1],
            "algorithm=glm",
            "formula=died ~ age + ward",
            f"output-dir={tmp_path / 'made'}",
        ).code
        == 0
    )
    (run,) = (tmp_path / "made").iterdir()
    page = (run / "report.html").read_bytes()
    names = {"--csv": "t.csv", "--markdown": "t.md", "--latex": "t.tex"}
    options = [part for option, name in names.items() for part in (option, str(tmp_path / name))]
    assert privet("report", str(run), *options).code == 0
    assert (run / "report.html").read_bytes() == page
    assert b"<svg" in page
    assert (tmp_path / "t.csv").read_text() == (run / "table.csv").read_text()
    result = GlmResult(json.loads((run / "table.json").read_text()))
    assert (tmp_path / "t.md").read_text() == result.to_markdown()
    assert (tmp_path / "t.tex").read_text() == result.to_latex()
    own = privet("report", str(run), "--latex", str(run / "table.json"))
    assert own.code == 2
    assert privet("report", str(run), "--parquet", str(tmp_path / "t.parquet")).code == 2
    assert privet("report", str(run), str(run)).code == 2


def test_nested_models_are_compared_on_the_rows_of_both(tmp_path: Path) -> None:
    """As the pooled rows without gaps give them; with gaps alone the models are of other rows."""
    rows = pd.read_csv(TABLES / "glm-binomial-1.csv")
    rows.loc[::9, "crp"] = np.nan
    for name, own in (("gaps", rows), ("whole", rows.dropna())):
        own.to_csv(tmp_path / f"{name}.csv", index=False)

    def ran(name: str, formula: str, *keys: str, code: int = 0) -> tuple[str, Path]:
        path, out = tmp_path / f"{name}.csv", tmp_path / f"{name}-{len(formula)}-{len(keys)}"
        of = ["algorithm=glm", "id-column=site", f"formula={formula}", f"output-dir={out}"]
        found = privet("run", f"data-path={path}", *of, *keys)
        assert found.code == code, found.err
        (run,) = out.iterdir()
        return found.out, run

    larger, tables = "died ~ age + crp", {}
    of_all, _ = ran("gaps", larger, f"nested-run={ran('gaps', 'died ~ age')[1]}", code=3)
    assert "differ in n; fit the same rows: the smaller model with complete-cases=crp" in of_all
    for name, key in (("gaps", ["complete-cases=crp"]), ("whole", [])):
        _, run = ran(name, larger, f"nested-run={ran(name, 'died ~ age', *key)[1]}", "firth=false")
        tables[name] = json.loads((run / "table.json").read_text())
    test, expected = (tables[name]["likelihood_ratio"] for name in ("gaps", "whole"))
    assert (test["df"], test["chi2"]) == (1, pytest.approx(expected["chi2"], rel=1e-9))
    assert tables["gaps"]["n"] == len(rows.dropna())


@pytest.mark.parametrize("kind", ["describe", "table 1", "cox", "kaplan-meier"])
def test_other_analyses_have_their_rows_in_markdown_and_latex(tmp_path: Path, kind: str) -> None:
    """Beside the numbers of pandas and lifelines (0.30.3) on the pooled rows."""
    keys = [
        f"data-path={TABLES / 'cox-1.csv'}",
        "id-column=site",
        f"output-dir={tmp_path / 'made'}",
    ]
    asked = {"describe": ["describe"], "table 1": ["describe", "by=sex"]}
    name, *more = asked.get(kind, [kind, "time-column=days", "event-column=died"])
    assert privet("run", f"algorithm={name}", *more, *keys).code == 0
    (run,) = (tmp_path / "made").iterdir()
    files = tmp_path / "t.md", tmp_path / "t.tex"
    found = privet("report", str(run), "--markdown", str(files[0]), "--latex", str(files[1]))
    assert found.code == 0, found.err
    lines = files[0].read_text().splitlines()
    with (run / "table.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    if kind == "describe":
        assert len(lines) == len(rows) + 1
    width = lines[1].count("|")
    assert all(line.count("|") - line.count("\\|") == width for line in lines)
    assert files[1].read_text().count(r" \\") == len(lines) - 1
    cells = {row[0]: row for row in ([c.strip() for c in line.split("|")[1:-1]] for line in lines)}
    if kind == "table 1":
        pooled = pd.read_csv(TABLES / "cox-1.csv")
        ages = [pooled["age"], *(own["age"] for _, own in pooled.groupby("sex"))]
        means = [f"{own.mean():.1f} ({own.std():.1f})" for own in ages]
        assert cells["age, mean (sd)"][1:4] == means
    elif kind == "cox":
        low, high = (math.exp(0.03081737 + sign * 1.959964 * 0.0039842532) for sign in (-1, 1))
        assert cells["age"][5:] == ["1.031", f"{low:.4g}", f"{high:.4g}"]
        assert cells["age"][4] == "\\<0.001"
    elif kind == "kaplan-meier":
        pooled = pd.read_csv(TABLES / "cox-1.csv")
        assert cells["all"][1:3] == [str(len(pooled)), str(pooled["died"].sum())]
