"""Tables of analyses: formats, types, missing values, dates, schemas, and how rows are dealt."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privet.analyses.frame import TEXTS_LEVEL, Frame
from privet.data import DataError
from privet.data.frames import (
    FEW_LEVELS,
    MOST_LEVELS,
    dealt_from_config,
    table_from_config,
    table_of_schema,
)

ROWS = pd.DataFrame(
    {
        "age": [1.5, 2.0, math.nan, 4.25],
        "sex": ["F", "M", "F", None],
        "well": [True, False, True, True],
        "site": ["b", "a", "b", "a"],
    }
)


def read(path: Path, **keys: Any) -> Frame:
    config = {"data-path": str(path), **{k.replace("_", "-"): v for k, v in keys.items()}}
    return table_from_config(config).frame


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def require_rows(frame: Frame) -> None:
    """It holds the rows above."""
    assert frame.rows == 4
    np.testing.assert_array_equal(frame.numbers["age"], [1.5, 2.0, math.nan, 4.25])
    sex, well = frame.factors["sex"], frame.factors["well"]
    assert (sex.levels, sex.codes.tolist()) == (("F", "M"), [0, 1, 0, -1])
    assert (well.levels, well.codes.tolist()) == (("false", "true"), [1, 0, 1, 1])


def test_formats_are_read_alike(tmp_path: Path) -> None:
    ROWS.to_csv(tmp_path / "t.csv", index=False)
    ROWS.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    ROWS.to_parquet(tmp_path / "t.parquet")
    ROWS.to_csv(tmp_path / "comma.csv", index=False, sep=";", decimal=",")
    for name in ("t.csv", "t.tsv", "t.parquet", "comma.csv"):
        require_rows(read(tmp_path / name))


def test_a_folder_of_formats_has_a_site_for_each_file(tmp_path: Path) -> None:
    ROWS[:1].to_csv(tmp_path / "b.csv", index=False)
    ROWS[1:].to_parquet(tmp_path / "a.parquet")
    dealt = dealt_from_config({"data-path": str(tmp_path)})
    assert [table.frame.rows for table in dealt.tables] == [3, 1]
    assert [name.split(".")[0] for name in dealt.names] == ["a", "b"]
    assert dealt.tables[1].frame.numbers["age"].tolist() == [1.5]
    assert {table.frame.factors["sex"].levels for table in dealt.tables} == {("F", "M")}


def test_rows_are_dealt_by_ids_and_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    ROWS.to_csv(path, index=False)
    config = {"data-path": str(path), "id-column": "site"}
    dealt = dealt_from_config(config)
    assert (dealt.names, dealt.count) == (("a", "b"), 2)
    assert dealt.tables[0].frame.numbers["age"].tolist() == [2.0, 4.25]
    with pytest.raises(DataError, match=r"num-agents = 3: site has 2 ids.*num-agents = 2"):
        dealt_from_config(config, 3)
    with pytest.raises(DataError, match="partition = natural-id: needs id-column"):
        dealt_from_config({"data-path": str(path), "partition": "natural-id"})
    spread = dealt_from_config({"data-path": str(path)}, 3)
    assert sum(table.frame.rows for table in spread.tables) == 4


def test_persons_are_counted_and_are_no_column(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "who,x\n1,5\n1,6\n2,7\n")
    frame = read(path, person_column="who")
    assert (frame.persons, frame.names) == (2, ("x",))


def test_a_column_of_more_texts_than_categories_is_one_of_texts(tmp_path: Path) -> None:
    for count in (MOST_LEVELS, MOST_LEVELS + 1):
        text = "t\n" + "".join(f"name {one}\n" for one in range(count)) * 2
        levels = read(write(tmp_path / f"{count}.csv", text)).factors["t"].levels
        assert levels == (TEXTS_LEVEL,) if count > MOST_LEVELS else len(levels) == count


@pytest.mark.parametrize(
    ("dates", "level"),
    [
        ("31.1.2020\n5.2.2020\n", "(dates, day first)"),
        ("1/31/2020\n2/5/2020\n", "(dates, month first)"),
        ("2020-01-31\n2020-02-05\n", "(dates)"),
    ],
)
def test_dates_are_no_categories_and_say_their_order(
    tmp_path: Path, dates: str, level: str
) -> None:
    path = write(tmp_path / "t.csv", "d\n" + dates)
    assert read(path).factors["d"].levels == (level,)


def test_dates_become_days_where_their_order_is_given(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "d\n31.1.2020\n5.2.2020\n")
    assert np.diff(read(path, dates="day-first").numbers["d"]).tolist() == [5.0]


SCHEMA = '[columns]\nage = [0, 120]\nsex = ["M", "F", "X"]\n'


def test_a_schema_states_columns_order_and_ranges(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    ROWS.to_csv(path, index=False)
    schema = str(write(tmp_path / "s.toml", SCHEMA))
    table = table_from_config({"data-path": str(path), "schema": schema})
    assert set(table.frame.names) == {"age", "sex"}
    assert table.frame.factors["sex"].levels == ("M", "F", "X")
    assert table.frame.factors["sex"].codes.tolist() == [1, 0, 1, -1]
    assert (table.stated, table.ranges) == (frozenset({"age", "sex"}), {"age": (0.0, 120.0)})
    empty = table_of_schema(schema)
    assert (empty.frame.rows, set(empty.frame.names)) == (0, {"age", "sex"})


def test_ids_of_a_few_rows_are_no_categories(tmp_path: Path) -> None:
    ids = "".join(f"{one},{'ab'[one % 2]}\n" for one in range(FEW_LEVELS + 1)).replace(",", "x,")
    factors = read(write(tmp_path / "a.csv", f"id,arm\n{ids}")).factors
    assert factors["id"].levels == (TEXTS_LEVEL,)
    assert factors["arm"].levels == ("a", "b")


def test_cells_of_a_schemas_columns_are_read_by_themselves(tmp_path: Path) -> None:
    """Files of a folder with decimal commas and points, and booleans in other cases."""
    folder = tmp_path / "sites"
    folder.mkdir()
    write(folder / "a.csv", "age;sex;ill\n30,5;F;True\n29;M;False\n")
    write(folder / "b.csv", "age,sex,ill\n31.25,X,false\n,F,true\n")
    schema = write(
        tmp_path / "s.toml",
        '[columns]\nage = [0, 120, ""]\nsex = ["M", "F", "X"]\nill = ["false", "true"]\n',
    )
    frame = read(folder, schema=str(schema))
    assert frame.numbers["age"].tolist()[:3] == [30.5, 29.0, 31.25]
    assert np.isnan(frame.numbers["age"][3])
    assert frame.factors["ill"].codes.tolist() == [1, 0, 0, 1]


def test_what_others_are_told_of_a_cell_is_its_column_alone(tmp_path: Path) -> None:
    path, schema = write(tmp_path / "t.csv", "age,sex\nsecret,F\n"), write(tmp_path / "s", SCHEMA)
    with pytest.raises(DataError, match="'secret' is a text") as caught:
        read(path, schema=str(schema))
    assert caught.value.told == "column age: a cell that does not fit the range in the schema"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("age,sex\n130,F\n", r"column age: values outside of \[0, 120\]"),
        ("age,sex\nold,F\n", "column age: "),
        ("age,sex\n1,secret\n", "column sex: a value that is none of the schema's categories"),
        ("age\n1\n", "no column sex; there are age"),
        ("age,sex\ninf,F\n", "column age: "),
    ],
)
def test_values_outside_of_the_schema_are_refused_by_column(
    tmp_path: Path, text: str, line: str
) -> None:
    path, schema = write(tmp_path / "t.csv", text), write(tmp_path / "s.toml", SCHEMA)
    with pytest.raises(DataError, match=line) as caught:
        read(path, schema=str(schema))
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_infinite_numbers_are_missing_where_the_key_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x\ninf\n1\n")
    assert np.isnan(read(path, infinite="missing").numbers["x"]).tolist() == [True, False]


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x\n1\n")
    assert read(path).rows == 1
    write(path, "x\n1\n2\n3\n")
    assert read(path).rows == 3
