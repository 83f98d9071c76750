"""Categories that may be missing values, spellings of one, or quantities; and rows left out."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_iris, load_wine

from privet.data import DataError, load
from privet.data.problem import doubts_of
from privet.sim.inline import run_inline
from support.cli import privet
from support.paths import data_file
from support.sites import nodes, table, train

N = 200
DRAW = np.random.default_rng(3)


CLASSES = np.random.default_rng(7).choice(["ill", "well"], N).tolist()


def rows(values: list[Any], labels: list[Any] | None = None) -> pd.DataFrame:
    """Return a table in which a column has these values in turn."""
    numbers = DRAW.normal(size=N).round(4)
    return pd.DataFrame(
        {"x": numbers, "c": np.resize(values, N), "label": np.resize(labels or CLASSES, N)}
    ).sample(frac=1.0, random_state=0)


def doubts(folder: Path, values: list[Any], **keys: Any) -> list[str]:
    path = folder / "a.csv"
    rows(values, keys.pop("labels", None)).to_csv(path, index=False)
    data = load("csv", data_path=path, intercept=False, **keys)
    return [one.text for one in data.doubts]


@pytest.mark.parametrize(
    "text", ["#NULL!", "#N/A", ".", "<NA>", "n.a.", "k.A.", "missing", "99", "-999", "--"]
)
@pytest.mark.parametrize("name", ["c", "label"])
def test_texts_that_may_say_that_a_value_is_missing_are_doubted(
    tmp_path: Path, text: str, name: str
) -> None:
    values = ["male", "female"] * 9 + [text, "male"]
    given = {"labels": values} if name == "label" else {}
    (line,) = doubts(tmp_path, ["u", "v"] if given else values, **given)
    assert line == (
        f"column {name}: {text!r} in 10 rows: if it stands for missing values, leave these cells "
        "empty"
    )


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (["Privat", "Private", "State"], "'Privat', 'Private' differ by a letter"),
        (["Divorced", "Divrced", "Single"], "'Divorced', 'Divrced' differ by a letter"),
        (["Self-emp", "Self\u2013emp", "State"], r"'Self-emp', 'Self\u2013emp' look alike"),
        (["Self_emp", "Self-emp", "State"], "'Self-emp', 'Self_emp' look alike"),
        (["Male", "Male\u200b", "Female"], r"'Male', 'Male\u200b' look alike"),
        (["Male", "M\u0430le", "Female"], r"'Male', 'M\u0430le' look alike"),
        (["Zürich", "Zurich", "Bern"], r"'Zurich', 'Z\xfcrich' look alike"),
        (["m", "f", "w"], "'f', 'w'"),
        (["weiblich", "female", "male"], "'female', 'weiblich'"),
    ],
)
def test_spellings_of_one_text_are_doubted(tmp_path: Path, values: list[str], told: str) -> None:
    (line,) = doubts(tmp_path, values)
    assert line == f"column c: {told}: if they mean the same, write them alike"


@pytest.mark.parametrize(
    ("usual", "odd"),
    [
        (["Private", "State"], "Privat"),
        (["Private", "State"], "Pirvate"),
        (["Private", "State"], "Privste"),
        (["female", "male"], "femal"),
    ],
)
def test_a_mistyped_category_of_a_single_row_is_doubted(
    tmp_path: Path, usual: list[str], odd: str
) -> None:
    (line,) = doubts(tmp_path, [*usual * 99, odd, usual[0]])
    assert repr(odd) in line
    assert "differ by a letter" in line
    if odd != "Privat":  # of many rows each they may be two
        assert not doubts(tmp_path, [*usual, odd])


@pytest.mark.parametrize(
    ("usual", "odd"),
    [
        (["Iran", "Italy"], "Iraq"),
        (["typea", "typeb"], "typec"),
        (["symptomatic", "none"], "asymptomatic"),
        (["Niger", "Mali"], "Nigeria"),
        (["gradeA", "gradeB"], "gradeC"),
    ],
)
def test_a_rare_category_of_its_own_is_not_doubted(
    tmp_path: Path, usual: list[str], odd: str
) -> None:
    assert not doubts(tmp_path, [*usual * 99, odd, usual[0]])


def test_a_dash_beside_answers_may_be_a_missing_value(tmp_path: Path) -> None:
    (line,) = doubts(tmp_path, ["-", "nein", "ja"])
    assert line == (
        "column c: '-', 'nein': if they mean the same, write them alike; if '-' stands for missing "
        "values, leave these cells empty"
    )


@pytest.mark.parametrize(
    "values",
    [
        ["yes", "no", "unknown"],
        ["none", "mild", "severe"],
        ["+", "-"],
        ["A", "A-", "A+", "B"],
        ["A+", "A-", "AB+", "AB-"],
        ["stage I", "stage II", "stage III", "stage IV"],
        ["typical angina", "atypical angina", "asymptomatic", "symptomatic"],
        ["gradeA", "gradeAB"],
        ["M", "W"],
        ["1", "2", "3a", "3b"],
        ["A30", "A31", "A32"],
        ["10th", "11th", "12th"],
        ["18-64", "65-74", "75+"],
        ["male", "female"],
        ["Self-emp-inc", "Self-emp-not-inc", "Private"],
        ["left", "right", "both"],
        ["Iran", "Ireland", "Austria", "Australia", "Niger", "Nigeria"],
    ],
)
def test_categories_of_their_own_are_not_doubted(tmp_path: Path, values: list[str]) -> None:
    assert not doubts(tmp_path, values)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (["97%", "95%", "99%", "90 %"], "numbers with a unit, such as '90 %', are read as"),
        (["4 kg", "6 kg", "8 kg"], "numbers with a unit, such as '4 kg', are read as"),
        (["11.2 L", "13.1", "12.0"], "numbers with a flag, such as '11.2 L', are read as"),
        (["11 H", "13", "12"], "numbers with a flag, such as '11 H', are read as"),
        ([20190321, 20190402, 20181231, 20200229, 20190101], "dates that are written as numbers"),
    ],
)
def test_quantities_that_are_written_as_something_else_are_doubted(
    tmp_path: Path, values: list[Any], told: str
) -> None:
    (line,) = doubts(tmp_path, values)
    assert line.startswith(f"column c: {told}")


@pytest.mark.parametrize("values", [[20191321, 20190402, 20181231, 20200229, 20190101, 7], [2019]])
def test_other_numbers_are_no_dates(tmp_path: Path, values: list[Any]) -> None:
    assert not any("dates" in line for line in doubts(tmp_path, values))


def test_a_cell_that_is_no_date_among_dates_is_named(tmp_path: Path) -> None:
    days = [f"{1 + at % 28:02d}.0{1 + at % 9}.2018" for at in range(60)]
    with pytest.raises(DataError, match=r"dates, but for '43012' \(a day number of Excel\?\)"):
        doubts(tmp_path, [*days, "43012"])
    with pytest.raises(DataError, match=r"'1\.234,5' may have separators of thousands"):
        doubts(tmp_path, ["970,0", "1.234,5", "12,5"])
    with pytest.raises(DataError, match="a schema that lists the texts makes them categories"):
        doubts(tmp_path, ["1:20", "1:40", "1:80"])


# ------------------------------------------------------------------ sites


def three(way: str, folder: Path, tables: list[pd.DataFrame]) -> list[str]:
    """Return the doubts about three sites as a folder, one table with ids, or several tables."""
    sites = dict(zip(("bern", "graz", "linz"), tables, strict=True))
    for name, one in sites.items():
        one.to_csv(folder / f"{name}.csv", index=False)
    if way == "tables":
        shown = privet("data", *(str(folder / f"{name}.csv") for name in sites))
        text = shown.out.partition("worth a look:\n- ")[2]
        return [line for line in text.split("\n") if "column c:" in line]
    keys = {}
    if way == "ids":
        whole = pd.concat([one.assign(site=name) for name, one in sites.items()])
        folder = folder / "all.csv"
        whole.sample(frac=1.0, random_state=1).to_csv(folder, index=False)
        keys = {"id_column": "site"}
    return [fault.text for fault in load("csv", data_path=folder, intercept=False, **keys).doubts]


LIKERT = ["disagree", "neutral", "agree"]
WARDS = ["ICU"] * 7 + ["ER", "surgery", "ward"]


@pytest.mark.parametrize("way", ["folder", "ids"])
@pytest.mark.parametrize(
    ("usual", "odd", "told"),
    [
        (LIKERT, ["nein", "neutral", "ja"], r"the categories 'ja', 'nein' in 'graz.*' alone, in"),
        (WARDS, [*["IMC"] * 7, "ER", "surgery", "ward"], "the category 'IMC' in 'graz.*' alone"),
    ],
)
def test_categories_in_place_of_others_are_doubted(
    tmp_path: Path, way: str, usual: list[str], odd: list[str], told: str
) -> None:
    (line,) = three(way, tmp_path, [rows(usual), rows(odd), rows(usual)])
    assert re.match(f"column c: {told}", line), line
    assert line.endswith("in all others but there: if they mean the same, write them alike")


@pytest.mark.parametrize("way", ["folder", "ids", "tables"])
def test_a_category_that_a_site_alone_has_is_doubted(tmp_path: Path, way: str) -> None:
    odd = [*WARDS, *["unbekannt"] * 3]
    (line,) = three(way, tmp_path, [rows(WARDS), rows(odd), rows(WARDS)])
    assert "column c: the category 'unbekannt' in 'graz" in line
    assert "write it as the other sites do; if it stands for missing values" in line


@pytest.mark.parametrize(
    ("usual", "odd", "told"),
    [
        ([126.5, 200.5, *range(130, 170)], [0.0], "0 in every row"),
        ([1, 2, 3], [2], "2 in every row"),
        (["u", "u", "v"], ["v"], "v in every row"),
        ([126.5, 200.5, *range(130, 170)], [150.0], ""),  # may be some of the others'
        ([1, 1, 1, 1, 1, 2], [1], ""),
    ],
)
def test_one_value_in_every_row_of_a_table_is_doubted_beside_the_others(
    tmp_path: Path, usual: list[Any], odd: list[Any], told: str
) -> None:
    lines = three("tables", tmp_path, [rows(usual), rows(odd), rows(usual)])
    doubted = [
        line
        for line in lines
        if "if it stands for missing values, leave these cells empty; else check" in line
    ]
    assert len(doubted) == bool(told)
    assert len([line for line in lines if "column c" in line]) == 1
    assert all(f"column c: {told} of 'graz.csv'" in line for line in doubted)


def test_ids_are_in_no_unit(tmp_path: Path) -> None:
    tables = [rows(list(range(at, at + N))) for at in (1, 5000, 90000)]
    lines = three("tables", tmp_path, tables)
    assert len(lines) == 1
    assert all(line.endswith("if it is an id, leave it out") for line in lines)


@pytest.mark.parametrize("seed", range(8))
def test_rare_categories_at_random_sites_are_not_doubted(tmp_path: Path, seed: int) -> None:
    """False alarms of a column: below 1e-4 (40 categories of chance 1e-6 at most), of 96 columns
    below 1e-2; the seeds are fixed."""
    draw = np.random.default_rng(seed)
    names = [f"{one}{other}" for one in "bcdfghkl" for other in "aeiou"]
    table = pd.DataFrame(
        {
            **{
                f"c{at}": draw.choice(names, 900, p=draw.dirichlet(np.full(len(names), 0.4)))
                for at in range(12)
            },
            "site": draw.choice(list("rstuvw"), 900, p=draw.dirichlet(np.full(6, 2.0))),
            "label": draw.choice(["ill", "well"], 900),
        }
    )
    table.to_csv(tmp_path / "a.csv", index=False)
    data = load("csv", data_path=tmp_path / "a.csv", intercept=False, id_column="site")
    assert not data.doubts


def test_real_tables_are_not_doubted(tmp_path: Path) -> None:
    """Also dealt at random to sites."""
    adult = pd.read_csv(data_file("adult-train.csv.gz"), header=None, skipinitialspace=True)
    adult.columns = [f"c{at}" for at in range(adult.shape[1] - 1)] + ["target"]
    frames = [(adult, "target")]
    frames += [(one(as_frame=True).frame, "target") for one in (load_iris, load_wine)]
    frames += [(load_diabetes(as_frame=True).frame, "target")]
    for frame, label in frames:
        path = tmp_path / "a.csv"
        draw = np.random.default_rng(0)
        frame.assign(site=draw.choice(list("rst"), len(frame))).to_csv(path, index=False)
        keys = {"label_column": label, "id_column": "site", "missing": "mean"}
        data = load("csv", data_path=path, intercept=False, **keys)
        told = [one.text for one in data.doubts]
        nines = "column c10: 99999 in 159 rows"
        assert [line for line in told if not line.startswith(nines)] == []


@pytest.mark.parametrize("part", [3, 30, 57])
@pytest.mark.parametrize("days", [30, 9])
def test_day_numbers_of_excel_are_named_however_many_they_are(
    tmp_path: Path, part: int, days: int
) -> None:
    """Beside dates of their own file, or of another file of a folder."""
    seen = [f"2021-03-{1 + at % days:02d}" for at in range(N)]
    mixed = [str(44256 + at % days) if at < part else text for at, text in enumerate(seen)]
    expected = r"column c: .*dates, but for '\d{5}'.*\(a day number of Excel\?\): write it as one"
    rows(mixed).to_csv(tmp_path / "mixed.csv", index=False)
    (tmp_path / "all").mkdir()
    rows(seen).to_csv(tmp_path / "all" / "bern.csv", index=False)
    rows(list(range(44256, 44256 + N))).to_csv(tmp_path / "all" / "graz.csv", index=False)
    for where in ("mixed.csv", "all"):
        with pytest.raises(DataError, match=expected):
            load("csv", data_path=tmp_path / where, intercept=False, dates="day-first")


# ------------------------------------------------------------------ rows, keys and lines


def test_rows_left_out_are_said_wherever_a_table_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = rows([1, 2, None, 4])
    path = tmp_path / "a.csv"
    given.to_csv(path, index=False)
    told = "50 rows are left out, as values are missing"
    assert told in doubts(tmp_path, [1, 2, None, 4], missing="drop")
    assert not doubts(tmp_path, [1, 2, None, 4], missing="mean")
    shown = privet("data", str(path), str(path), "missing=drop")
    assert f"- {path}: {told}" in shown.out.splitlines()
    keys = {"dataset": "csv", "data-path": str(path), "missing": "drop", "num-agents": 2}
    run_inline({**keys, "num-server-rounds": 1, "baseline-seconds": 0.0}, tmp_path / "run")
    assert told in caplog.text
    caplog.clear()
    site = {
        "age": [*range(20, 60), "", ""],
        "sodium": [140 + at % 3 for at in range(42)],
        "ward": ["ab"[at % 2] for at in range(42)],
        "died": ["01"[at // 2 % 2] for at in range(42)],
    }
    sites = nodes(tmp_path / "nodes", [table(site), table(site)], missing="drop")
    train(sites, 1)
    assert "2 rows are left out, as values are missing" in caplog.text
    path = sites[0]["data-path"]
    assert f"privet data {path} label-column=died missing=drop" in caplog.text


def test_the_command_in_a_log_reads_the_table_as_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "a b.csv"
    rows([1]).rename(columns={"label": "01"}).to_csv(path, index=False)
    keys = {"data_path": str(path), "label_column": "01", "missing": "mean", "seed": 3}
    data = load("csv", data_path=path, label_column="01", intercept=False, missing="mean")
    *_, last = doubts_of(keys, data)
    command = last.partition(": ")[2]
    assert command == f"privet data '{path}' 'label-column=\"01\"' missing=mean"
    assert privet(*shlex.split(command)[1:]).code == 0


def test_many_columns_that_differ_are_few_lines(tmp_path: Path) -> None:
    names = [f"c{at}" for at in range(30)]
    for name, factor in (("bern", 1.0), ("graz", 100.0)):
        draw = np.random.default_rng(0)
        numbers = {one: factor * draw.normal(7.0, 0.5, N) for one in names}
        rows([1, 2, 3]).assign(**numbers).to_csv(tmp_path / f"{name}.csv", index=False)
    data = load("csv", data_path=tmp_path, intercept=False)
    assert len(data.doubts) == 30
    (line, _) = doubts_of({"data_path": str(tmp_path)}, data)
    start = f"{tmp_path}: columns c0 (about 7.01 in 'bern' and about 701 in 'graz'), c1 (about "
    assert line.startswith(start)
    assert ", c11 (about " in line
    assert " and 18 more: if their units differ" in line
