"""Faults that leave every cell plausible: copies, units beside codes, signs, means, exchanges."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from privet.data.source_column import SourceColumn
from privet.data.tables.heaps import of_part
from privet.data.tables.sites import facts_of
from support.cli import privet
from support.tables import csv, doubts, read

SITES = ("bern", "graz", "linz")
COUNT = 400


def patients(seed: int, count: int = COUNT) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    height = draw.normal(169, 9, count).round(1)
    table = pd.DataFrame(
        {
            "height": height,
            "weight": draw.normal(82, 14, count).round(1),
            "bilirubin": draw.lognormal(0.15, 0.6, count).round(1).clip(0.3),
            "albumin": draw.normal(3.8, 0.6, count).round(1),
            "glucose": draw.normal(82, 14, count).round(),
            "change": draw.normal(10, 12, count).round(),
            "ascites": draw.integers(0, 2, count),
        }
    )
    score = 1.3 * (table.ascites - 0.5) - 1.5 * (table.albumin - 3.8)
    return table.assign(label=np.where(draw.logistic(0, 1, count) < score, "ill", "well"))


def found_by(folder: Path, way: str, **tables: pd.DataFrame) -> list[str]:
    """Return the doubts about files of a folder, or about several tables that are compared."""
    files = [str(csv(folder / f"{name}.csv", table)) for name, table in tables.items()]
    if way == "files":
        return [fault.text for fault in read(folder).doubts]
    known: dict[str, Any] = json.loads(privet("data", *files, "--json").out)
    return [text.replace(".csv'", "'") for text in known["doubts"]]


def ages(seed: int) -> Any:
    """Ages of adults, of whom many are 16, from the ward from that age on."""
    draw = np.random.default_rng(seed)
    young, old = draw.normal(33, 14, COUNT), draw.normal(80, 8, COUNT)
    return pd.Series(np.where(draw.random(COUNT) < 0.6, young, old)).clip(16, 97).round()


BERN, GRAZ, LINZ = (patients(seed) for seed in (1, 2, 3))
AT = np.random.default_rng(4).permutation(COUNT)
FEW = AT < COUNT // 10
SWAPPED = GRAZ.assign(
    height=GRAZ.height.where(~FEW, GRAZ.weight), weight=GRAZ.weight.where(~FEW, GRAZ.height)
)
FAULTS: dict[str, tuple[dict[str, pd.DataFrame], str]] = {
    "none": ({}, ""),
    "a code that is no series of nines": (
        {"bern": BERN.assign(glucose=BERN.glucose.sub(40).clip(0).where(AT >= 20, -200))},
        "(.*bern.csv: )?column glucose: -200 in 20",
    ),
    "0 for unknown at one site": (
        {
            name: table.assign(albumin=ages(seed).where(~FEW | (name != "linz"), 0))
            for seed, (name, table) in enumerate((("bern", BERN), ("graz", GRAZ), ("linz", LINZ)))
        },
        "column albumin: 0 in 40 of 400 rows of 'linz', far more often than numbers next",
    ),
    "Fahrenheit beside cold degrees Celsius": (
        {
            "bern": BERN.assign(change=(BERN.change * 0.9).round(1)),
            "graz": GRAZ.assign(change=(GRAZ.change * 0.9 * 1.8 + 32).round(1)),
            "linz": LINZ.assign(change=(LINZ.change * 0.9).round(1)),
        },
        "column change: about .* in 'bern', 'linz' and about 4.* in 'graz': if their units",
    ),
    "another unit of near a factor": (
        {
            "bern": BERN.assign(albumin=(1013 + 9 * BERN.albumin.sub(3.8)).round(1)),
            "graz": GRAZ.assign(albumin=(760 + 6.75 * GRAZ.albumin.sub(3.8)).round(1)),
            "linz": LINZ.assign(albumin=(1013 + 9 * LINZ.albumin.sub(3.8)).round(1)),
        },
        "column albumin: about 760 in 'graz'",
    ),
    "a unit, beside a code": (
        {
            "graz": GRAZ.assign(bilirubin=(GRAZ.bilirubin * 17.1).round()),
            "linz": LINZ.assign(bilirubin=LINZ.bilirubin.where(~FEW, 9.9)),
        },
        "column bilirubin: about 1.* in 'bern', 'linz' and about 2.* in 'graz': if their units",
    ),
    "a unit, beside 999": (
        {
            "graz": GRAZ.assign(bilirubin=(GRAZ.bilirubin * 17.1).round()),
            "linz": LINZ.assign(bilirubin=LINZ.bilirubin.where(~FEW, 999)),
        },
        "column bilirubin: about 1.* in 'bern', 'linz' and about 2.* in 'graz': if their units",
    ),
    "9.9 for unknown": (
        {"linz": LINZ.assign(bilirubin=LINZ.bilirubin.where(~FEW, 9.9))},
        "column bilirubin: 9.9 in 4. of 400 rows of 'linz', far more often than numbers next",
    ),
    "another sign": (
        {"graz": GRAZ.assign(change=-GRAZ.change)},
        "column change: -.* in 'graz', with the other sign than all others",
    ),
    "a mean": (
        {"linz": LINZ.assign(glucose=LINZ.glucose.where(~FEW, LINZ.glucose[~FEW].mean()))},
        "(.*linz.csv: )?column glucose: 8.* in 40 of 400 rows( of 'linz')?, unlike the numbers",
    ),
    "exchanged columns": (
        {"graz": SWAPPED},
        "(.*graz.csv: )?columns height, weight: in .* rows, such as .*, both fit when exchanged",
    ),
    "mixed codes": (
        {"graz": GRAZ.assign(ascites=GRAZ.ascites + (AT % 2))},
        "column ascites: 2 in .* of 400 rows of 'graz', and 0, 1 alone in all others: if two codes",
    ),
    "reversed classes, and two units": (
        {
            "graz": GRAZ.assign(
                label=GRAZ.label.map({"ill": "well", "well": "ill"}),
                ascites=GRAZ.ascites + 1,
                bilirubin=GRAZ.bilirubin * 17.1,
            )
        },
        "column (label: 'albumin', 'ascites' go|label: 'ascites', 'albumin' go|ascites: 0|bili)",
    ),
}


@pytest.mark.parametrize("way", ["files", "tables"])
@pytest.mark.parametrize("name", FAULTS)
def test_what_leaves_every_cell_plausible_is_named(tmp_path: Path, name: str, way: str) -> None:
    odd, expected = FAULTS[name]
    lines = found_by(tmp_path, way, **({"bern": BERN, "graz": GRAZ, "linz": LINZ} | odd))
    if "999" in name:
        assert any("999 in 40 rows" in line for line in lines)
        lines = [line for line in lines if "999" not in line]
    assert len(lines) == (3 if "and two" in name else bool(expected)), lines
    for line in lines:
        assert re.match(expected, line), line


@pytest.mark.parametrize("sign", [1, -1])
def test_a_label_that_is_the_sum_of_columns_is_named(tmp_path: Path, sign: int) -> None:
    """As rentals of all users are, beside those of members and of others."""
    rides = BERN[["height", "glucose", "change"]].assign(label=BERN.glucose + sign * BERN.change)
    expected = f"label label is glucose {'+' if sign > 0 else '-'} change in every row"
    found = [fault for fault in read(csv(tmp_path / "a.csv", rides)).doubts if fault.drop]
    assert [fault.text.split(":")[0] for fault in found] == [expected]
    assert found[0].drop == ("glucose", "change")
    nearly = rides.assign(label=rides.label.where(AT > 0, rides.label + 1))
    assert not [one for one in read(csv(tmp_path / "b.csv", nearly)).doubts if one.drop]


@pytest.mark.parametrize("copied", [12, 25, 30])
def test_few_copied_rows_are_named_also_beside_columns_in_doubt(
    tmp_path: Path, copied: int
) -> None:
    def made(seed: int) -> pd.DataFrame:
        draw = np.random.default_rng(seed)
        time = draw.exponential(300, COUNT).round()
        inst = draw.integers(1, 34, COUNT)
        grade = draw.integers(0, 3, COUNT)
        status = draw.choice(["alive", "dead"], COUNT)
        columns = {"inst": inst, "time": time, "grade": grade, "status": status}
        columns |= {
            "meal": 25 * draw.normal(37, 12, COUNT).round(),
            "age": draw.normal(62, 9, COUNT),
        }
        table = pd.DataFrame({**columns, "karno": 10 * draw.integers(5, 10, COUNT)})
        return table.assign(age=table.age.round())

    one, other = made(1), made(2)
    csv(tmp_path / "a.csv", one)
    for rows in (0, copied):
        csv(tmp_path / "b.csv", pd.concat([other, one.iloc[:rows]]))
        files = [str(tmp_path / f"{name}.csv") for name in "ab"]
        shown = privet("data", *files, "label-column=status").out
        line = f"- {rows} rows stand in more than one of 'a.csv', 'b.csv', alike in every column, "
        assert (line in shown) == bool(rows)
        csv(tmp_path / "c.csv", pd.concat([one, one.iloc[:rows]]))
        text = doubts(read(tmp_path / "c.csv", label_column="status"))
        assert (f"{rows} rows repeat others in every column, more" in text) == bool(rows)


def test_a_block_of_rows_copied_in_order_is_named_where_single_rows_are_often_equal(
    tmp_path: Path,
) -> None:
    draw = np.random.default_rng(1)
    table = pd.DataFrame({name: draw.choice(["a", "b", "c"], 600) for name in "pqrs"})
    table = table.assign(label=draw.choice(["ill", "well"], 600))
    assert table.duplicated().sum() > 400
    sort = table.sort_values(list(table.columns))
    design = pd.concat([table.iloc[:40]] * 6)
    for honest in (table, sort, design, pd.concat([table, table.iloc[5:12]])):
        assert "repeat" not in doubts(read(csv(tmp_path / "a.csv", honest)))
    copied = pd.concat([table, table.iloc[4:59]])
    text = doubts(read(csv(tmp_path / "a.csv", copied)))
    assert "55 rows repeat others in every column in the same order, more than by chance" in text


def test_honest_rows_of_two_kinds_are_not_taken_for_exchanged_columns(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    tall, heavy = draw.normal(169, 9, 900).round(1), draw.lognormal(4.3, 0.3, 900).round(1)
    far = np.where(draw.random(900) < 0.03, 95.0, tall)  # children, of a usual weight
    label = draw.choice(["ill", "well"], 900)
    table = pd.DataFrame({"height": far, "weight": heavy, "label": label})
    assert "exchanged" not in doubts(read(csv(tmp_path / "a.csv", table)))


def test_a_number_that_many_rows_have_by_nature_is_no_filled_in_mean(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    usual = draw.normal(60, 20, 900).round(1)
    label = draw.choice(["ill", "well"], 900)
    rare = draw.random(900)
    for honest in (
        usual.clip(30, 95),
        np.where(rare < 0.1, 50.0, usual),  # a usual setting
        np.where(rare < 0.3, 0.0, usual.clip(0)),
        usual.round(),
    ):
        table = pd.DataFrame({"c": honest, "label": label})
        assert "mean" not in doubts(read(csv(tmp_path / "a.csv", table)))
    filled = np.where(rare < 0.1, usual[rare >= 0.1].mean().round(1), usual)
    table = pd.DataFrame({"c": filled, "label": label})
    assert "unlike the numbers next to it: if it is a mean" in doubts(
        read(csv(tmp_path / "a.csv", table))
    )


def test_a_limit_of_detection_is_no_part_in_another_unit() -> None:
    draw = np.random.default_rng(4)
    column = SourceColumn("c", 0)
    for _ in range(300):
        spread, part = draw.uniform(1.0, 1.6), draw.uniform(0.12, 0.2)
        sites = {}
        for site, least in {"bern": 0.01, "graz": np.exp(1 - 2 * spread)}.items():
            numbers = draw.lognormal(1.0, spread, rows := int(np.exp(draw.uniform(4, 7.6))))
            numbers = np.where(draw.random(rows) < part, least, numbers)
            sites |= facts_of(column, pa.array(numbers.round(3)), {site: slice(None)})
        assert not of_part(sites)


def test_alike_lines_of_several_tables_are_one_after_those_that_weigh_more(tmp_path: Path) -> None:
    tables = {}
    for at, name in enumerate(SITES):
        draw = np.random.default_rng(at)
        counts = {column: draw.integers(20, 60, COUNT) for column in ("p", "q", "r")}
        rare = draw.random(COUNT) < 0.03
        gaps = {column: np.where(rare, 999, numbers) for column, numbers in counts.items()}
        tables[name] = patients(at).assign(**gaps, patient=range(at, COUNT + at))
    tables["graz"]["weight"] = (tables["graz"].weight * 2.2046).round(1)
    lines = found_by(tmp_path, "tables", **tables)
    assert [line.count("999 in") for line in lines] == [0, 3, 0]
    assert lines[0].startswith("column weight: about ")
    files = ", ".join(str(tmp_path / f"{name}.csv") for name in SITES)
    assert lines[1].startswith(f"{files}: columns p (999 in ")
    assert "far from all other numbers: if it stands for missing values" in lines[1]
    assert "column patient: a different whole number" in lines[2]


def test_a_table_that_differs_is_compared_by_name_where_all_three_differ(tmp_path: Path) -> None:
    sexes = {"bern": ["f", "m"], "graz": ["w", "m"], "linz": ["1", "m"]}
    tables = {
        name: patients(at).assign(sex=np.resize(sexes[name], COUNT))
        for at, name in enumerate(SITES)
    }
    files = {name: str(csv(tmp_path / f"{name}.csv", one)) for name, one in tables.items()}
    shown = privet("data", *files.values()).out.splitlines()
    for name, texts in {"graz": "m, w", "linz": "1, m"}.items():
        line = f"- {files[name]}: has sex = {texts}, 'bern.csv' sex = f, m"
        assert any(one.startswith(line) for one in shown), shown
    csv(tmp_path / "linz.csv", tables["linz"].assign(sex=tables["bern"].sex))
    assert (
        f"- {files['graz']}: has sex = m, w, the others sex = f, m"
        in privet("data", *files.values()).out
    )


def test_codes_are_no_ids_and_ids_that_repeat_may_be_of_persons(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    table = patients(1).assign(
        discharge_disposition_id=draw.choice([1, 3, 6, 11, 18], COUNT),
        uniquepid=[f"073-{one}" for one in draw.integers(100, 300, COUNT)],
    )
    path = csv(tmp_path / "a.csv", table)
    shown = privet("data", str(path)).out
    assert "uniquepid: if it says whose a row is, person-column keeps" in shown
    assert "5 different numbers in 400 rows, rather codes than ids, are used as a quan" in shown
    assert shown.strip().endswith("person-column=uniquepid")
    shown = privet("data", str(csv(path, table.rename(columns={"uniquepid": "code"})))).out
    assert "leave them out if they are ids, set person-column if they say whose a row is" in shown
