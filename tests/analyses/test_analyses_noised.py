"""What is read from the noised sum of a description, and the schema that is written of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privet.analyses.frame import Frame
from privet.analyses.noised_description import NoisedLayout
from privet.data import DataError
from privet.data.described_schema import schema_of
from privet.data.tables.schema import read_schema

LAYOUT = NoisedLayout({"sex": ("F", "M")}, {"age": (0.0, 100.0), "bmi": (10.0, 60.0)})


def table_of_rows(count: int) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    rows = pd.DataFrame(
        {
            "sex": rng.choice(["F", "M"], count),
            "age": rng.uniform(20, 90, count),
            "bmi": rng.normal(26, 4, count).clip(10, 60),
        }
    )
    rows.loc[rng.random(count) < 0.2, "bmi"] = np.nan
    return rows


def exact(rows: pd.DataFrame) -> np.ndarray:
    frame = Frame.of({name: rows[name].tolist() for name in rows})
    return sum(block.sum(axis=0) for block in LAYOUT.contributions(frame))  # type: ignore[no-any-return]


def test_without_noise_it_is_the_description_of_the_pooled_rows() -> None:
    rows = table_of_rows(500)
    table = LAYOUT.table(exact(rows), 0.0)
    assert table["rows"] == pytest.approx(500)
    for name in ("age", "bmi"):
        column, known = table["columns"][name], rows[name].dropna()
        assert (column["n"], column["missing"]) == pytest.approx((len(known), 500 - len(known)))
        assert column["mean"] == pytest.approx(known.mean(), rel=1e-12)
        assert column["sd"] == pytest.approx(known.std(ddof=0), rel=1e-9)
    counts = table["columns"]["sex"]["categories"]
    assert counts == pytest.approx(rows["sex"].value_counts().to_dict())


def test_the_stated_errors_are_those_of_the_noise() -> None:
    """Over 4,000 draws, whose deviations are known to 1.2 %; margins of 8 of these."""
    rows, rng = table_of_rows(5000), np.random.default_rng(3)
    total, deviation = exact(rows), 5.0
    draws = [
        LAYOUT.table(total + rng.normal(0.0, deviation, len(total)), deviation) for _ in range(4000)
    ]
    cells = [one["columns"]["sex"]["categories"]["F"] for one in draws]
    assert np.std(cells) == pytest.approx(draws[0]["count_error"], rel=0.1)
    for name in ("sex", "age", "bmi"):
        found = [one["columns"][name]["n"] for one in draws]
        error = draws[0]["n_error"]
        assert 0.5 * error < np.std(found) <= 1.1 * error
        assert np.mean(found) == pytest.approx(rows[name].count(), abs=8 * error / 63)


def test_no_count_is_below_0_and_no_deviation_is_made_of_noise() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        table = LAYOUT.table(rng.normal(0.0, 40.0, LAYOUT.width), 40.0)
        assert table["rows"] >= 0
        for column in table["columns"].values():
            cells = column["categories"].values() if "categories" in column else ()
            counts = column["histogram"]["counts"] if "histogram" in column else ()
            assert min(column["n"], column["missing"], *cells, *counts) >= 0
            assert column.get("sd") is None or column["sd"] > 0


def test_its_schema_is_public_and_says_what_it_cost(tmp_path: Path) -> None:
    table = {**LAYOUT.table(exact(table_of_rows(500)), 1.0), "epsilon": 0.5, "delta": 1e-5}
    (tmp_path / "schema.toml").write_text(schema_of(table))
    read = read_schema(str(tmp_path / "schema.toml"))
    assert not read.from_records
    assert read.described == {"epsilon": 0.5, "delta": 1e-5}
    assert read.columns["sex"].categories == ("F", "M")
    ends = {name: (column.low, column.high) for name, column in read.columns.items()}
    assert (ends["age"], ends["bmi"]) == ((0.0, 100.0), (10.0, 60.0))
    assert {name: column.gap for name, column in read.columns.items()} == {
        "sex": False,
        "age": False,
        "bmi": True,  # 100 values of 500 are missing, and the error is below 3
    }


def test_an_account_that_is_not_known_is_none(tmp_path: Path) -> None:
    """As of seeded noise: the schema is then one from records, which private runs refuse."""
    (tmp_path / "schema.toml").write_text(schema_of(LAYOUT.table(exact(table_of_rows(500)), 0.0)))
    assert read_schema(str(tmp_path / "schema.toml")).from_records


@pytest.mark.parametrize(
    "spent",
    ["epsilon = 1.0", "epsilon = 0.0\ndelta = 1e-5", "epsilon = 1.0\ndelta = true", "a = 1", "x"],
)
def test_a_cost_that_cannot_be_read_is_told(tmp_path: Path, spent: str) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(f"[columns]\na = [0, 1]\n[described]\n{spent}\n")
    with pytest.raises(DataError, match=r"schema .*: expected"):
        read_schema(str(path))
