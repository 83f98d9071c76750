"""Tables with faults: all are listed at once, and the printed line mends them."""

from __future__ import annotations

import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet import load_model
from privet.core.assignments import comma_list
from privet.data import DataError, Dataset
from privet.data.tables.dates import DATES
from privet.data.tables.faults import TableError, dropped
from privet.sim.inline import run_inline
from support.cli import privet
from support.messy import LABEL, write_messy
from support.tables import read


def table(folder: Path, *rows: str, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def names(data: Dataset) -> list[str]:
    return [column.name for column in data.source_columns]


def test_a_messy_table_becomes_a_model_by_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, new, labels = write_messy(tmp_path)
    out = privet("data", path.name, f"label-column={LABEL}").out
    for fault in (
        "several columns are called 'BMI', with equal values",
        "2 empty rows, which are left out",
        "column Fall: a different whole number in every row: if it is an id, leave it out",
        "column Aufnahme: dates or times, such as '01-Jan-21'",
        "column Einheit: ICU in every row",
        "column Jahr: 2021 in every row",
        "column Notiz: 120 different texts in 120 rows",
        "2 rows have no label",
        "missing values, in Größe, cm of 7 rows",
        "2 rows are left out, as values are missing",  # with the keys of the last line
    ):
        assert f"\n- {fault}" in out
    assert out.count("\n- ") == 10, "the two spellings of one word are one"
    assert "dealt at random, the default for a table (partition=iid)" in out
    command, run, *words = shlex.split(out.splitlines()[-1])
    assert (command, run) == ("privet", "run")
    keys = dict(word.split("=", 1) for word in words)
    with pytest.raises(DataError, match="to list all faults: privet data '"):
        read(path, label_column=LABEL)
    folder = run_inline({**keys, "num-server-rounds": 3, "num-agents": 3}, "run").folder
    assert load_model(folder).columns == ["Größe, cm", "BMI", "Geschlecht"]
    predicted = privet("predict", folder, new).out.splitlines()[1:]
    assert [line.partition(",")[0] for line in predicted] == labels


COLUMNS: dict[str, Any] = {
    "id": lambda n: f"{100 + n}",
    "text": lambda n: f"text {n} {'ab'[n % 2]}",
    "date": lambda n: f"{n % 28 + 1:02d}.03.21",
    "one": lambda n: "ICU",
    "seven": lambda n: "7",
    "empty": lambda n: "",
    "gaps": lambda n: "" if n % 5 == 0 else f"{n % 7}.5",
    "kg": lambda n: f"{n}.5 kg",
    "below": lambda n: "<5" if n == 3 else f"{n % 29}.25",
    "case": lambda n: "yes" if n % 2 else "Yes",
    "thousands": lambda n: f'"1,{n + 100}"',
    "inf": lambda n: "inf" if n == 2 else f"{n}",
    "gap category": lambda n: ("", "x", "z")[n % 3],
}
HEADS = st.sampled_from(["a", "b", "a, b", "01", "true", "x\\", '"', " ü", "", "it's"])


@settings(max_examples=8)
@given(
    st.lists(st.tuples(HEADS, st.sampled_from(sorted(COLUMNS))), min_size=1, max_size=6),
    st.sets(st.integers(0, 59), max_size=4),
    st.sets(st.integers(0, 59), max_size=3),
)
def test_what_the_printed_line_says_is_accepted(
    columns: list[tuple[str, str]], unlabelled: set[int], blank: set[int]
) -> None:
    def quoted(head: str) -> str:
        return '"' + head.replace('"', '""') + '"'

    header = ",".join(quoted(head) for head, _ in columns)
    rows = [f"{header},fine,y"]
    for n in range(60):
        cells = ",".join(COLUMNS[kind](n) for _, kind in columns)
        label = "" if n in unlabelled else "no" if n % 3 else "ill"
        row = f"{cells},{n * n % 11}.5,{label}"
        rows.append("," * (len(columns) + 1) if n in blank else row)
    with TemporaryDirectory() as folder:
        path = table(Path(folder), *rows)
        code, out, err = privet("data", path, "num-agents=2")
        assert (code in (0, 2), err) == (True, "")
        command, run, *words = shlex.split(out.splitlines()[-1])
        assert (command, run) == ("privet", "run")
        again = privet("data", *words)
        assert again.code == 0, again
        assert shlex.split(again.out.splitlines()[-1]) == [command, run, *words], "nothing is left"


@settings(max_examples=30)
@given(st.lists(st.text(",\\ ab", min_size=1).map(str.strip).filter(bool), unique=True))
def test_names_of_columns_are_listed_so_that_they_are_read_again(columns: list[str]) -> None:
    assert dropped(comma_list(columns)) == columns


@pytest.mark.parametrize(
    ("text", "order", "expected"),
    [
        ("2021-03-05", "day-first", "2021-03-05"),
        ("2021-03-05", "month-first", "2021-03-05"),
        ("5.3.2021", "day-first", "2021-03-05"),
        ("5/3/21", "month-first", "2021-05-03"),
        ("05-Mar-21", "month-first", "2021-03-05"),
        ("5 March 1970", "day-first", "1970-03-05"),
        ("31.12.69", "day-first", "1969-12-31"),
        ("2021-03-05T08:30", "day-first", "2021-03-05 08:30"),
        ("2021-03-05 08:30:12.5+02:00", "day-first", "2021-03-05 06:30:12.5"),
        ("5.3.2021 8:30 PM", "day-first", "2021-03-05 20:30"),
        ("08:30", "day-first", "1970-01-01 08:30"),
    ],
)
def test_dates_may_be_numbers_of_days(tmp_path: Path, text: str, order: str, expected: str) -> None:
    path = table(tmp_path, "day,y", f"{text},0", "1970-01-01,1", ",1")
    data = read(path, dates=order, missing="mean", whole=True)
    day = (pd.Timestamp(expected) - pd.Timestamp(0)) / pd.Timedelta(days=1)
    column, _ = data.source_columns
    assert sorted((column.low, column.high)) == pytest.approx(sorted((0, day)), abs=1e-9)
    assert column.dates == order
    with pytest.raises(DataError, match=r"column day: dates or times.*\(dates = day-first or"):
        read(path, missing="mean")


def test_a_date_that_is_none_is_named(tmp_path: Path) -> None:
    path = table(tmp_path, "a,day,y", "1,31.1.2021,0", "2,1.2.2021,1", "3,5.2.2021,0")
    with pytest.raises(DataError, match=r"day: row 1: '31.1.2021' is no date with dates = month"):
        read(path, dates="month-first")
    odd = table(tmp_path, "a,day,y", "1,31.1.2021,0", "2,31.13.2021,1")
    with pytest.raises(
        DataError, match=r"row 1: '31.1.2021' is no .* month-first, but one with day"
    ):
        read(odd, dates="month-first")
    with pytest.raises(
        DataError, match=r"row 2: '31.13.2021' is no date with dates = day-first: set"
    ):
        read(odd, dates="day-first")
    assert set(DATES) == {"refuse", "day-first", "month-first"}


MONTHLY = [f"1/{month}/2021" for month in range(1, 13)]
MIXED = [f"{day}/{(5 * day) % 12 + 1}/2021" for day in range(1, 13)]
SPREAD = [f"{at % 28 + 1}/{at % 12 + 1}/2021" for at in range(40)]


@pytest.mark.parametrize(
    ("dates", "order", "doubted"),
    [
        (MIXED, "day-first", True),
        (MIXED, "month-first", True),
        (MIXED[:11], "day-first", False),
        (SPREAD, "day-first", False),
        (MONTHLY, "day-first", False),
        (MONTHLY, "month-first", True),
        ([f"2021-{day}-{day}" for day in range(1, 13)], "day-first", False),
        ([f"{one} 8:30" for one in MIXED], "day-first", True),
    ],
)
def test_dates_whose_day_may_be_the_month_are_doubted(
    tmp_path: Path, dates: list[str], order: str, doubted: bool
) -> None:
    path = table(tmp_path, "day,x,y", *(f"{one},{at},{at % 2}" for at, one in enumerate(3 * dates)))
    texts = [one.text for one in read(path, dates=order).doubts if "column day" in one.text]
    assert len(texts) == doubted
    if doubted:
        other = next(one for one in DATES[1:] if one != order)
        assert texts[0].endswith(f"if day and month are the other way round, set dates = {other}")


@pytest.mark.parametrize("ids", [False, True])
def test_the_site_whose_dates_may_be_exchanged_is_named(tmp_path: Path, ids: bool) -> None:
    """In one file with a column of the sites, and in a folder with a file of each."""
    sites = {"bern": SPREAD, "graz": 3 * MIXED}
    lines = {
        site: [f"{one},{at},{at % 2}" for at, one in enumerate(own)] for site, own in sites.items()
    }
    if ids:
        rows = [f"{line},{site}" for site, own in lines.items() for line in own]
        data = read(table(tmp_path, "day,x,y,site", *rows), dates="day-first", id_column="site")
    else:
        for site, own in lines.items():
            (tmp_path / f"{site}.csv").write_text("\n".join(["day,x,y", *own]))
        data = read(tmp_path, dates="day-first")
    (text,) = (one.text for one in data.doubts if "column day" in one.text)
    assert text == (
        "column day: no day or month in 'graz' is above 12, and '1/6/2021' is read as 2021-06-01: "
        "if day and month are the other way round, write these as the others"
    )


def test_dates_of_new_rows_are_those_of_the_training(tmp_path: Path) -> None:
    rows = [f"{n % 28 + 1}.{n % 12 + 1}.2021,{'ill' if n % 12 > 5 else 'no'}" for n in range(84)]
    path = table(tmp_path, "day,y", *rows)
    keys = {"dataset": "csv", "data-path": str(path), "dates": "day-first", "num-agents": 2}
    model = load_model(run_inline({**keys, "num-server-rounds": 5}, "run").folder)
    as_texts = model.features([{"day": "2.12.2021"}, {"day": "2021-02-12"}])
    days = pd.DataFrame({"day": pd.to_datetime(["2021-12-02", "2021-02-12"])})
    np.testing.assert_allclose(model.features(days), as_texts)
    assert list(model.predict(days)) == ["ill", "no"]
    assert "of a date, day-first" in model.describe()


def test_parquet_dates_are_dates(tmp_path: Path) -> None:
    days = pd.date_range("2021-01-01", periods=10)
    frame = pd.DataFrame({"day": days, "y": [0, 1] * 5})
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column day: dates or times, such as 2021-01-01"):
        read(tmp_path / "a.parquet")
    column = read(tmp_path / "a.parquet", dates="day-first").source_columns[0]
    assert (column.low, column.high) == (18628, 18637)


def test_rows_without_a_label_or_an_id_are_left_out_and_gaps_are_not(tmp_path: Path) -> None:
    rows = ["1,,a,0", ",x,b,1", "3,z,,1", "4,z,a,", "5,x,b,0", "6,x,b,1"]
    path = table(tmp_path, "a,b,site,y", *rows)
    keys = {"whole": True, "id_column": "site", "missing": "mean"}
    with pytest.raises(DataError, match=r"1 row has no label.*; 1 row has no id in column s"):
        read(path, **keys)
    data = read(path, missing_labels="drop", **keys)
    assert data.train_ids is not None
    assert data.train_ids.tolist() == ["a", "b", "b", "b"]
    assert "missing-labels = drop makes" in _with_schema(tmp_path, path).data_dependent


def test_no_key_is_offered_that_private_runs_refuse(tmp_path: Path) -> None:
    path = table(tmp_path, "a,y", "1,0", "2,1", "3,", "4,1")
    with pytest.raises(TableError, match="take it out of the file, for a private run") as caught:
        _with_schema(tmp_path, path, missing_labels="refuse")
    assert caught.value.keys == {}
    assert ": set " not in str(caught.value)


def _with_schema(folder: Path, path: Path, missing_labels: str = "drop") -> Dataset:
    schema = folder / "schema.toml"
    schema.write_text("[columns]\na = [0, 9]\ny = ['0', '1']\n")
    return read(path, missing_labels=missing_labels, missing="zero", schema=str(schema), whole=True)


def test_one_of_several_columns_of_a_name_may_be_kept(tmp_path: Path) -> None:
    rows = [f"{n},{n * n},{n % 2}" for n in range(4)]
    path = table(tmp_path, "BMI,BMI,y", *rows)
    with pytest.raises(DataError, match=r"called 'BMI' \(drop-columns = BMI.1 keeps the first, "):
        read(path)
    data = read(path, drop_columns="BMI.1", whole=True)
    assert (names(data), data.source_columns[0].high) == (["BMI", "y"], 3)
    with pytest.raises(DataError, match="expected a column beside y"):
        read(path, drop_columns="BMI")


def test_a_name_with_a_comma_may_be_left_out(tmp_path: Path) -> None:
    path = table(tmp_path, '"size, cm",age,y', "1,2,0", "3,4,1")
    assert names(read(path, drop_columns=r"size\, cm", whole=True)) == ["age", "y"]
    with pytest.raises(DataError, match=r"names 'size', not a column; a comma of a name is writ"):
        read(path, drop_columns="size, cm")


def test_texts_that_look_alike_are_one(tmp_path: Path) -> None:
    composed, apart = "Ko\u0308ln", "K\u00f6ln"
    path = table(tmp_path, f"{apart},y", f"{composed},0", f"{apart},1", "Bern,1")
    data = read(path, drop_columns="", label_column="y", whole=True)
    assert data.source_columns[0].categories == ("Bern", apart)
    schema = tmp_path / "schema.toml"
    schema.write_text(f"[columns]\n'{composed}' = ['{composed}', 'Bern']\ny = ['0', '1']\n")
    assert read(path, schema=str(schema), whole=True).source_columns[0].categories[0] == apart


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "SEP=;"])
def test_the_line_of_excel_names_the_separator(tmp_path: Path, first: str) -> None:
    path = table(tmp_path, first, "a,b;y", "1,5;0", "2,5;1")
    assert names(read(path, whole=True)) == ["a,b", "y"]


def test_a_number_may_be_a_quantity_and_no_id(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    grams = rng.choice(np.arange(2000, 5000), 40, replace=False)
    rows = [f"{n},{one},{one},{n / 2},{n % 2}" for n, one in enumerate(grams)]
    path = table(tmp_path, "row,grams,patientId,half,y", *rows)
    doubtful = [fault.drop for fault in read(path).doubts]
    assert doubtful == [("row",), ("patientId",)]


def test_cells_of_another_kind_are_named_with_their_rows_and_files(tmp_path: Path) -> None:
    """Of a folder the rows are counted in the file that they are of, not through all of them."""
    numbers = [f"{10 + at}.5,{at % 2}" for at in range(30)]
    spoilt = {1: "12.x,0", 4: "1o.3,1"}
    sites = {"a": numbers, "b": [spoilt.get(at, row) for at, row in enumerate(numbers)]}
    for name, rows in sites.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["hb,y", *rows, ""]))
    with pytest.raises(
        DataError, match=r"column hb: rows 2, 5 of 'b': numbers, but for '12\.x' and"
    ):
        read(tmp_path)
    with pytest.raises(
        DataError, match=r"column hb: rows 2, 5: numbers, but for '12\.x' and 1 more"
    ):
        read(tmp_path / "b.csv")
    (tmp_path / "a.csv").write_text("\n".join(["hb,y", *numbers, "oo,1", ""]))
    with pytest.raises(DataError, match="row 31 of 'a', rows 2, 5 of 'b': numbers, but for"):
        read(tmp_path)
