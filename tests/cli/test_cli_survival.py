"""Survival from the command line: curves, pages, durations of two dates, and what is refused."""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privet.cli.config import given_keys
from support.analysis_sites import TABLES
from support.cli import privet

WORKED = json.loads((TABLES / "cox-1.json").read_text())
SURVIVAL = ("survival", TABLES / "cox-1.csv", "id-column=site", "time-column=days")
KEYS = ("event-column=died", "group-column=sex")


def test_survival_prints_the_curves_of_all_sites_and_names_a_page(tmp_path: Path) -> None:
    said = privet(*SURVIVAL, *KEYS, f"output-dir={tmp_path}")
    assert said.code == 0
    assert "log-rank" in said.out
    assert f"{WORKED['logrank_sex']['chi2']:.4g}" in said.out
    assert "log-rank within sites" in said.out
    assert "numbers at risk" in said.out
    page = Path(re.search(r"page: (\S+)", said.out)[1]).read_text()  # type: ignore[index]
    curves, at_risk = page.index('role="img"'), page.index("at risk")
    assert curves < at_risk  # the numbers stand below the curves
    for group in ("all", "F", "M"):
        assert f"<title>{group}</title>" in page
        assert f"<tr><th>{group}</th>" in page[at_risk:]
    first = re.search(r"<tr><th>all</th><td>([\d,]+)</td>", page[at_risk:])
    assert first is not None
    assert first[1] == "800"
    assert "log-rank, stratified by site" in page
    assert page.count("<td>&lt; 0.001</td></tr>") == 2  # of both tests
    assert "@media (max-width:40rem){\n.curve svg text{font-size:20px}" in page
    folder = Path(re.search(r"run folder: (\S+)", said.out)[1])  # type: ignore[index]
    rows = list(csv.DictReader(io.StringIO((folder / "table.csv").read_text())))
    assert {row["group"] for row in rows} == {"all", "F", "M"}
    own = [row for row in rows if row["group"] == "all"]
    at = [row for row in own if float(row["times"]) <= 365.0][-1]
    assert float(at["survival"]) == pytest.approx(WORKED["kaplan_meier"]["survival"][1], abs=1e-12)


def test_survival_is_printed_at_asked_times(tmp_path: Path) -> None:
    """As the product over a group's pooled rows gives it; none after the last follow-up."""
    rows = pd.read_csv(TABLES / "cox-1.csv")
    said = privet(*SURVIVAL, *KEYS, f"output-dir={tmp_path}", "--times", "365,730.5,1e6")
    assert said.code == 0
    lines = said.out[said.out.index("survival and its interval") :].splitlines()[1:4]
    assert lines[0].split() == ["365", "730.5", "1e+06"]
    for line, sex in zip(lines[1:], "FM", strict=True):
        own = rows[rows.sex == sex]
        found = [float(one) for one in re.findall(r"[\d.]+(?= \()", line)]
        ends = [float(one) for one in re.findall(r"[\d.]+(?= to |\))", line)]
        assert line.rstrip().endswith("-")
        for place, time in enumerate((365.0, 730.5)):
            height, variance = 1.0, 0.0
            for at in sorted(own.days[(own.died == 1) & (own.days <= time)].unique()):
                dead = int(((own.days == at) & (own.died == 1)).sum())
                risk = int((own.days >= at).sum())
                height *= 1.0 - dead / risk
                variance += dead / (risk * (risk - dead))
            assert found[place] == pytest.approx(height, abs=5e-4)
            # Symmetric in log(-log S) (Kalbfleisch and Prentice).
            half = 1.959963984540054 * math.sqrt(variance) / abs(math.log(height))
            low, high = height ** math.exp(half), height ** math.exp(-half)
            assert ends[2 * place : 2 * place + 2] == pytest.approx([low, high], abs=5e-4)
    wrong = privet(*SURVIVAL, *KEYS, f"output-dir={tmp_path}", "--times", "a year")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "--times a year: numbers separated by commas" in wrong.err


def test_survival_as_json_is_the_table_alone(tmp_path: Path) -> None:
    said = privet(*SURVIVAL, *KEYS, f"output-dir={tmp_path}", "--json")
    table = json.loads(said.out)
    assert (said.code, table["kind"]) == (0, "kaplan-meier")
    assert table["median"][0] == WORKED["kaplan_meier"]["median"]
    assert table["logrank"]["chi2"] == pytest.approx(WORKED["logrank_sex"]["chi2"], rel=1e-12)


def test_tables_of_sites_are_one_curve(tmp_path: Path) -> None:
    """Each site in a file of its own gives what one table with an id column does."""
    with (TABLES / "cox-1.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    files = []
    for site in ("hill", "north", "south", "west"):
        path = tmp_path / f"{site}.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(row for row in rows if row["site"] == site)
        files.append(path)
    keys = ("time-column=days", *KEYS, f"output-dir={tmp_path / 'runs'}", "--json")
    found = json.loads(privet("survival", *files, *keys).out)
    right = json.loads(privet(*SURVIVAL, *KEYS, f"output-dir={tmp_path / 'one'}", "--json").out)
    assert found["survival"] == right["survival"]
    assert found["logrank_by_site"] == right["logrank_by_site"]


def test_of_many_groups_the_largest_are_drawn_each_in_its_own_colour(tmp_path: Path) -> None:
    """The tables below the curves have every group."""
    sizes = {f"g{at:02}": 20 + 7 * at % 51 for at in range(51)}
    lines = [f"{1 + at},{at % 2},{name}" for name, n in sizes.items() for at in range(n)]
    for site in ("a.csv", "b.csv"):
        (tmp_path / site).write_text("\n".join(["days,died,ward", *lines]))
    keys = ("time-column=days", "event-column=died", "group-column=ward", f"output-dir={tmp_path}")
    said = privet("survival", tmp_path / "a.csv", tmp_path / "b.csv", *keys)
    page = Path(re.search(r"page: (\S+)", said.out)[1]).read_text()  # type: ignore[index]
    largest = sorted(sizes, key=lambda name: -sizes[name])[:7]
    assert re.findall(r"<title>(\w+)</title></polyline>", page) == ["all", *sorted(largest)]
    colours = re.findall(r'stroke="(var\(--run-\d\))" stroke-width', page)
    assert len(set(colours)) == len(colours) == 8
    assert "Of 52 curves the 8 of most rows are drawn; tables have all." in page
    assert all(f"<tr><th>{name}</th>" in page for name in sizes)


def test_a_cox_page_has_a_forest_plot_with_each_term_once(tmp_path: Path) -> None:
    table = f"data-path={TABLES / 'cox-1.csv'}"
    keys = ("algorithm=cox", "time-column=days", "event-column=died", "formula=age + sex + smoker")
    said = privet("run", *keys, table, "id-column=site", f"output-dir={tmp_path}")
    assert said.code == 0
    (page,) = tmp_path.glob("*/report.html")
    text = page.read_text()
    assert "hazard ratio" in text
    for term in ("age", "sex[T.M]", "smoker[T.former]", "smoker[T.never]"):
        assert (
            len(re.findall(rf"<th>{re.escape(term)}</th>.*?<td class=\"forest\"><svg", text)) == 1
        )


# ------------------------------------------------------------------ two dates


def dated(folder: Path, *, until: str = "") -> tuple[Path, list[float], list[int]]:
    """A table of dates at two sites, and the days and events by the calendar."""
    rng = np.random.default_rng(7)
    first = datetime.date(2019, 12, 1)
    lines, days, events = ["site,came,gone,died,age"], [], []
    for place in range(80):
        came = first + datetime.timedelta(int(rng.integers(0, 400)))
        gone = came + datetime.timedelta(int(rng.integers(1, 700)))
        died = int(rng.random() < 0.6)
        lines.append(f"{'ab'[place % 2]},{came},{gone},{died},{rng.integers(30, 90)}")
        last = datetime.date.fromisoformat(until) if until else gone
        days.append(float((min(gone, last) - came).days))
        events.append(died if gone <= last else 0)
    path = folder / "dates.csv"
    path.write_text("\n".join(lines) + "\n")
    return path, days, events


def survived(days: list[float], events: list[int], time: float) -> float:
    share = 1.0
    for at in sorted(set(days)):
        if at <= time:
            died = sum(e for d, e in zip(days, events, strict=True) if d == at)
            share *= 1.0 - died / sum(d >= at for d in days)
    return share


@pytest.mark.parametrize("until", ["", "2021-02-01"])
@pytest.mark.parametrize("unit", ["days", "weeks"])
def test_durations_of_two_dates_are_those_of_the_calendar(
    tmp_path: Path, unit: str, until: str
) -> None:
    path, days, events = dated(tmp_path, until=until)
    keys = ["start-column=came", "end-column=gone", "event-column=died", f"duration-unit={unit}"]
    keys += ["dates=day-first"]
    keys += [f"until={until}"] if until else []
    size = {"days": 1.0, "weeks": 1.0 / 7.0}[unit]
    said = privet(
        *("survival", path, "id-column=site", *keys, f"time-unit={size:.17g}"),
        *(f"output-dir={tmp_path / 'runs'}", "--json"),
    )
    assert said.code == 0, said.err
    table = json.loads(said.out)
    assert (table["n"], table["events"]) == (80, sum(events))
    for time in (50.0, 200.0, 400.0):
        place = np.searchsorted(table["times"][0], time * size * (1.0 + 1e-9), side="right") - 1
        assert table["survival"][0][place] == pytest.approx(survived(days, events, time), abs=1e-12)


def test_a_cox_model_of_two_dates_is_that_of_their_days(tmp_path: Path) -> None:
    path, days, events = dated(tmp_path, until="2021-02-01")
    lines = path.read_text().splitlines()
    plain = tmp_path / "days.csv"
    rows = [f"{line},{d},{e}" for line, d, e in zip(lines[1:], days, events, strict=True)]
    plain.write_text("\n".join([f"{lines[0]},days,event", *rows]) + "\n")
    found = []
    for table, *keys in (
        (
            path,
            "start-column=came",
            "end-column=gone",
            "event-column=died",
            "until=2021-02-01",
            "dates=day-first",
        ),
        (plain, "time-column=days", "event-column=event"),
    ):
        runs = tmp_path / f"runs-{table.stem}"
        said = privet(
            *("run", "algorithm=cox", "formula=age", f"data-path={table}", "id-column=site"),
            *(*keys, f"output-dir={runs}"),
        )
        assert said.code == 0, said.err
        found.append(json.loads(next(runs.glob("*/table.json")).read_text()))
    assert found[0]["coef"] == pytest.approx(found[1]["coef"], rel=1e-12)
    assert found[0]["se"]["nonrobust"] == pytest.approx(found[1]["se"]["nonrobust"], rel=1e-12)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("algorithm", ["cox", "kaplan-meier"])
@pytest.mark.parametrize(
    ("cells", "keys", "words"),
    [
        ("{site},{day},{coded},50", (), "codes other than 0 (censored) and 1 (the event)"),
        ("{site},-{day},{died},50", (), "'days' has negative times"),
        ("{site},,{died},50", (), "min-records: this node has fewer rows that are complete"),
        ("{site},{day},{died},{day}", ("entry-column=age",), "min-records: this node has fewer"),
    ],
)
def test_doubtful_times_and_events_are_one_line(
    tmp_path: Path, algorithm: str, cells: str, keys: tuple[str, ...], words: str
) -> None:
    rng = np.random.default_rng(1)
    lines = ["site,days,died,age"]
    for place in range(30):
        died = int(rng.integers(0, 2))
        values: dict[str, Any] = {"site": "ab"[place % 2], "day": place + 1}
        lines.append(cells.format(**values, died=died, coded=died + 1))
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    settings = ["time-column=days", "event-column=died", *keys, f"output-dir={tmp_path / 'runs'}"]
    settings += ["formula=C(site)"] if algorithm == "cox" else []
    said = privet("run", f"algorithm={algorithm}", f"data-path={path}", "id-column=site", *settings)
    assert said.code != 0
    assert words in said.err
    assert "Traceback" not in said.err


def test_a_date_is_a_text_wherever_a_key_takes_one(tmp_path: Path) -> None:
    """TOML has dates of its own, on the command line and in a file."""
    file = tmp_path / "run.toml"
    file.write_text("until = 2021-02-01\nnum-agents = 3\n")
    assert given_keys(["until=2021-02-01"]) == {"until": "2021-02-01"}
    assert given_keys(["until=2021-02-01 13:45"]) == {"until": "2021-02-01 13:45"}
    assert given_keys([], file) == {"until": "2021-02-01", "num-agents": 3}


@pytest.mark.parametrize("key", ["target-epsilon=1", "noise-scale=2", "clip=1"])
def test_a_noised_cox_model_is_refused_with_the_reason(key: str) -> None:
    asked = ("algorithm=cox", "time-column=days", "event-column=died", "formula=age")
    said = privet("run", *asked, f"data-path={TABLES / 'cox-1.csv'}", key)
    assert said.code != 0
    assert "a record is in the risk sets of all earlier events" in said.err
    assert said.err.count("\n") == 1


def test_a_hospital_that_is_not_in_the_curves_is_named_and_ends_with_3(tmp_path: Path) -> None:
    rows = "days,died\n" + "".join(f"{10 + one},{one % 2}\n" for one in range(20))
    for name in ("bern", "graz"):
        (tmp_path / f"{name}.csv").write_text(rows)
    (tmp_path / "linz.csv").write_text(rows.replace("\n1", "\n-1").replace("\n2", "\n-2"))
    paths = [str(tmp_path / f"{name}.csv") for name in ("bern", "graz", "linz")]
    keys = ["time-column=days", "event-column=died", f"output-dir={tmp_path / 'runs'}"]
    said = privet("survival", *paths, *keys)
    assert said.code == 3
    assert "not in the table: linz" in said.out


def test_a_file_without_rows_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "sites"
    folder.mkdir()
    rows = "".join(f"{20 + one},{one % 2}\n" for one in range(40))
    for name, text in (("bern", rows), ("graz", rows), ("linz", "")):
        (folder / f"{name}.csv").write_text("age,died\n" + text)
    keys = ["algorithm=glm", "formula=died ~ age", "dataset=csv", f"data-path={folder}"]
    said = privet("run", *keys, f"output-dir={tmp_path / 'runs'}")
    assert said.code == 2
    assert "linz: no rows below the header" in said.err
