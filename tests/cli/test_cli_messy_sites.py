"""Messy tables of three sites become a schema and a model, by the commands of the guide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privet.data.tables.schema import read_schema
from support.cli import privet
from support.messy_sites import SHAPES, Tables
from support.pooled import pooled


def design(kind: str, tables: Tables) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The terms, design and outcome of the pooled mended rows, complete cases, by hand."""
    rows = pd.concat(tables.values())
    if kind == "heart":
        rows = rows[rows["trestbps"] != "?"].astype(float)
        columns = {name: rows[name] for name in ("age", "sex", "trestbps")}
        columns |= {f"cp[T.{code}]": rows["cp"] == code for code in (2, 3, 4)}
        outcome = rows["num"]
    elif kind == "registry":
        columns = {"glucose": rows["glucose"], "sex[T.m]": rows["sex"] == "m"}
        columns |= {"smoker[T.yes]": rows["smoker"] == "yes"}
        outcome = rows["died"] == "yes"
    else:
        columns = {"age": rows["age"], "acute[T.true]": rows["acute"]}
        columns |= {f"severity[T.{one}]": rows["severity"] == one for one in ("moderate", "severe")}
        outcome = rows["visits"]
    columns = {"Intercept": np.ones(len(rows)), **columns}
    made = np.column_stack([np.asarray(one, float) for one in columns.values()])
    return list(columns), made, np.asarray(outcome, float)


@pytest.mark.parametrize("kind", SHAPES)
def test_four_commands_from_messy_tables_to_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    shape = SHAPES[kind]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()
    tables = shape.tables()
    shape.write(tmp_path / "sites", tables)

    first = privet("describe", "sites")
    assert first.code == 0, first.err
    for line in shape.said:
        assert line in first.out

    mended = shape.mended(tables)
    shape.write(tmp_path / "sites", mended)
    second = privet("describe", "sites", "--schema", "schema.toml")
    assert second.code == 0, second.err
    assert " may be the same" not in second.out
    assert "another unit?" not in second.out
    known = read_schema("schema.toml").columns
    assert not {"patient", "born", "admitted"} & known.keys()

    if kind == "visits":  # the column that a site lacks
        kept = [one for one in Path("schema.toml").read_text().splitlines() if "bmi" not in one]
        Path("schema.toml").write_text("\n".join(kept))
    keys = ["dataset=csv", "data-path=sites", "schema=schema.toml"]
    model = [f"family={shape.family}", f"formula={shape.formula}"]
    third = privet("run", "algorithm=glm", *model, *keys)
    assert third.code == 0, third.err
    [title] = [one for one in third.out.splitlines() if "Generalized linear model" in one]
    assert "all sites" in title
    run = next(one.split()[1] for one in third.out.splitlines() if one.startswith("table: "))
    table: dict[str, Any] = json.loads(Path(run).read_text())
    terms, matrix, outcome = design(kind, mended)
    fit = pooled(shape.family, matrix, outcome, np.zeros(len(outcome)))
    assert sorted(table["terms"]) == sorted(terms)
    places = [table["terms"].index(term) for term in terms]
    errors = np.asarray(fit.errors("nonrobust"), float)
    near = 1e-8 * np.maximum(abs(np.asarray(fit.coef, float)), errors)
    assert (abs(np.array(table["coef"])[places] - np.asarray(fit.coef, float)) <= near).all()
    own = np.array(table["se"]["nonrobust"])[places]
    np.testing.assert_allclose(own, errors, rtol=1e-6)
    assert table["n"] == len(outcome)

    new = next(iter(mended.values())).head(3)
    new.to_csv("new.csv", index=False)
    fourth = privet("predict", Path(run).parent, "new.csv")
    assert fourth.code == 0, fourth.err
    lines = [one for one in fourth.out.splitlines() if one]
    assert lines[0].startswith("linear_predictor,mean")
    assert len(lines) == 4
