"""Tables of three sites in shapes that public data have, as they come and after mending."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

Tables = Mapping[str, pd.DataFrame]


class Shape(NamedTuple):
    """Sites' tables, what a description says of them, and the model of the mended ones."""

    write: Callable[[Path, Tables], None]
    tables: Callable[[], Tables]
    mended: Callable[[Tables], Tables]
    said: tuple[str, ...]
    family: str
    formula: str


def _chance(rng: np.random.Generator, linear: np.ndarray) -> np.ndarray:
    return rng.random(len(linear)) < 1.0 / (1.0 + np.exp(-linear))


def _csv(folder: Path, tables: Tables) -> None:
    for site, table in tables.items():
        table.to_csv(folder / f"{site}.csv", index=False)


# ------------------------------------------------------------------ heart: ? and codes


def heart() -> Tables:
    """As the heart disease tables of UCI: ? for missing values, codes, a column that is 0."""
    rng, tables = np.random.default_rng(11), {}
    for site, rows in (("cleveland", 303), ("hungarian", 294), ("switzerland", 123)):
        age, sex = rng.integers(29, 78, rows), rng.integers(0, 2, rows)
        pain = rng.integers(1, 5, rows)
        ill = _chance(rng, -1.5 + 0.05 * (age - 54) + 0.9 * sex + 1.1 * (pain == 4))
        table = pd.DataFrame({"age": age, "sex": sex, "cp": pain})
        table["trestbps"] = rng.normal(131, 17, rows).round()
        table["chol"] = 0.0 if site == "switzerland" else rng.normal(246, 50, rows).round()
        table["num"] = ill.astype(int)
        table = table.astype(object)
        table.loc[rng.random(rows) < 0.03, "trestbps"] = "?"
        tables[site] = table
    return tables


def heart_mended(tables: Tables) -> Tables:
    return {site: table.drop(columns="chol") for site, table in tables.items()}


# ------------------------------------------------------------------ registry: three languages


def registry() -> Tables:
    """As registries of three countries: words of each, dates, and units of two laboratories."""
    rng, tables = np.random.default_rng(12), {}
    for site, rows in (("berlin", 180), ("leeds", 220), ("lyon", 150)):
        smoker, male = rng.random(rows) < 0.4, rng.random(rows) < 0.5
        glucose = rng.normal(105, 20, rows).round(1)
        died = _chance(rng, -1.2 + 0.02 * (glucose - 105) + 0.7 * smoker)
        born = pd.Timestamp("1940-01-01") + pd.to_timedelta(rng.integers(0, 20000, rows), "D")
        no, yes = {"berlin": ("nein", "ja"), "leeds": ("No", "Yes"), "lyon": ("non", "oui")}[site]
        woman, man = {"berlin": ("weiblich", "männlich"), "leeds": ("Female", "Male")}.get(
            site, ("f", "m")
        )
        written = "%d.%m.%Y" if site == "berlin" else "%Y-%m-%d"
        tables[site] = pd.DataFrame(
            {
                "patient": [f"{site[:2].upper()}{at:05d}" for at in range(rows)],
                "born": born.strftime(written),
                "sex": np.where(male, man, woman),
                "smoker": np.where(smoker, yes, no),
                "glucose": (glucose / 18.02).round(2) if site == "leeds" else glucose,
                "died": np.where(died, yes, no),
            }
        )
    return tables


def registry_written(folder: Path, tables: Tables) -> None:
    for site, table in tables.items():
        if site == "berlin":
            table.to_csv(folder / "berlin.csv", index=False, sep=";", decimal=",")
        elif site == "leeds":
            table.to_csv(folder / "leeds.csv", index=False)
        else:
            table.to_csv(folder / "lyon.tsv", index=False, sep="\t")


def registry_mended(tables: Tables) -> Tables:
    words = {"ja": "yes", "Yes": "yes", "oui": "yes", "nein": "no", "No": "no", "non": "no"}
    words |= {"männlich": "m", "Male": "m", "weiblich": "f", "Female": "f"}
    mended = {site: table.replace(words) for site, table in tables.items()}
    mended["leeds"]["glucose"] = (mended["leeds"]["glucose"] * 18.02).round(2)
    return mended


# ------------------------------------------------------------------ visits: formats and codes


def visits() -> Tables:
    """As extracts of three hospitals' systems: booleans, upper case, a column that one lacks."""
    rng, tables = np.random.default_rng(13), {}
    for site, rows in (("a", 400), ("b", 260), ("c", 330)):
        age, acute = rng.normal(58, 15, rows).round(), rng.random(rows) < 0.4
        table = pd.DataFrame({"age": age, "acute": acute})
        table["severity"] = rng.choice(["mild", "moderate", "severe"], rows, p=[0.5, 0.3, 0.2])
        table["bmi"] = rng.normal(27, 5, rows).round(1)
        table["visits"] = rng.poisson(np.exp(-0.5 + 0.02 * (age - 58) + 0.5 * acute))
        table["admitted"] = pd.Timestamp("2021-03-01") + pd.to_timedelta(
            rng.integers(0, 700, rows), "D"
        )
        tables[site] = table
    tables["a"].loc[rng.random(400) < 0.2, "bmi"] = np.nan
    tables["b"]["severity"] = tables["b"]["severity"].str.upper()
    tables["c"] = tables["c"].drop(columns="bmi")
    return tables


def visits_written(folder: Path, tables: Tables) -> None:
    tables["a"].to_parquet(folder / "a.parquet")
    tables["b"].to_csv(folder / "b.csv", index=False)
    tables["c"].to_csv(folder / "c.csv.gz", index=False, encoding="utf-8-sig")


def visits_mended(tables: Tables) -> Tables:
    mended = dict(tables)
    mended["b"] = tables["b"].assign(severity=tables["b"]["severity"].str.lower())
    return mended


SHAPES: Mapping[str, Shape] = {
    "heart": Shape(
        *(_csv, heart, heart_mended),
        ("column chol: every value is the same at switzerland",),
        *("binomial", "num ~ age + sex + trestbps + C(cp)"),
    ),
    "registry": Shape(
        *(registry_written, registry, registry_mended),
        (
            "column glucose: the mean at leeds is 5.8",
            "another unit? (glucose in mg/dl beside mmol/l)",
            "column smoker: 'No' and 'nein' and 'non' may be the same; berlin has nein",
            "column sex: 'Male' and 'm' and 'männlich' may be the same",
        ),
        *("binomial", "died ~ glucose + sex + smoker"),
    ),
    "visits": Shape(
        *(visits_written, visits, visits_mended),
        (
            "column bmi: no column of numbers at c",
            "column severity: 'MILD' and 'mild' may be the same; a has mild, b has MILD",
        ),
        *("poisson", "visits ~ age + severity + acute"),
    ),
}
