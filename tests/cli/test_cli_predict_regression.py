"""``privet predict`` of a regression's run folder."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from support.analysis_sites import TABLES
from support.cli import privet


def run(folder: Path, **keys: Any) -> Path:
    given = {"output-dir": folder, "id-column": "site", **keys}
    said = privet("run", *(f"{key}={value}" for key, value in given.items()))
    assert said.code == 0, said.err
    (found,) = (one for one in folder.iterdir() if (one / "table.json").exists())
    assert f"privet predict {found} ROWS.csv" in said.out
    return found


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = TABLES / "glm-poisson-1.csv"
    known = json.loads(path.with_suffix(".json").read_text())
    return run(
        tmp_path_factory.mktemp("glm"),
        algorithm="glm",
        family="poisson",
        formula=known["formula"],
        **{"data-path": path, "exposure-column": "years"},
    )


def test_means_and_intervals_of_a_table(glm: Path, tmp_path: Path) -> None:
    """The worked table's own answers make the expected numbers."""
    known = json.loads((TABLES / "glm-poisson-1.json").read_text())
    lines = (TABLES / "glm-poisson-1.csv").read_text().splitlines()[:6]
    head = lines[0].split(",")
    rows = [dict(zip(head, line.split(","), strict=True)) for line in lines[1:]]
    rows[2]["age"] = ""
    table = tmp_path / "rows.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, head)
        writer.writeheader()
        writer.writerows(rows)
    said = privet("predict", glm, table)
    assert said.code == 0
    assert said.err.splitlines()[0] == "1 of 5 rows have missing values: empty cells"
    found = list(csv.DictReader(io.StringIO(said.out)))
    assert set(found[2].values()) == {""}

    def column(term: str, row: dict[str, str]) -> float:
        if term == "Intercept":
            return 1.0
        name, _, level = term.partition("[T.")
        return float(row[name] == level[:-1]) if level else float(row[name])

    cov = np.array(known["cov"])
    for at in (0, 1, 3, 4):
        x = np.array([column(term, rows[at]) for term in known["terms"]])
        eta = x @ known["coef"] + np.log(float(rows[at]["years"]))
        reach = norm.ppf(0.975) * np.sqrt(x @ cov @ x)
        expected = [eta, np.exp(eta), np.exp(eta - reach), np.exp(eta + reach)]
        np.testing.assert_allclose([float(cell) for cell in found[at].values()], expected, 1e-7)
    out = tmp_path / "found.csv"
    assert privet("predict", glm / "table.json", table, "--out", out).out == f"{out}\n"
    assert out.read_text() == said.out


def test_numbers_out_of_a_schemas_range_are_refused_or_missing(tmp_path: Path) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text(
        '[columns]\nage = [0, 120]\nsex = ["F", "M"]\ncrp = [0, 1000]\ndied = [0, 1]\n'
    )
    keys = {"data-path": TABLES / "glm-binomial-1.csv", "schema": schema}
    folder = run(tmp_path / "runs", algorithm="glm", formula="died ~ age + sex + log(crp)", **keys)
    rows = tmp_path / "rows.csv"
    rows.write_text("age,sex,crp\n40,F,3\n150,M,3\n50,F,-5\n")
    refused = privet("predict", folder, rows)
    assert refused.code == 2
    assert f"column 'age' ({rows}): 150 in row 2 is outside of [0, 120], the range" in refused.err
    said = privet("predict", folder, rows, "--unknown", "missing")
    assert said.code == 0, said.err
    first, *others = csv.DictReader(io.StringIO(said.out))
    assert first["mean"]
    assert [row["mean"] for row in others] == ["", ""]
    rows.write_text("age,sex,crp\n40,F,3\n120,M,1000\n")
    assert privet("predict", folder, rows).code == 0


def test_relative_hazards_of_a_table(tmp_path: Path) -> None:
    keys = {"time-column": "days", "event-column": "died", "data-path": TABLES / "cox-1.csv"}
    folder = run(tmp_path / "runs", algorithm="cox", formula="age + sex", **keys)
    table = tmp_path / "rows.csv"
    table.write_text("age,sex\n40,F\n40,M\n")
    said = privet("predict", folder, table)
    assert (said.code, said.err) == (0, "")
    first, second = csv.DictReader(io.StringIO(said.out))
    known = json.loads((folder / "table.json").read_text())
    ratio = float(second["partial_hazard"]) / float(first["partial_hazard"])
    assert ratio == pytest.approx(known["ratio"][known["terms"].index("sex[T.M]")])
    refused = privet("predict", folder, table, "--times", "365")
    assert refused.code != 0
    assert "no absolute risk: the model is stratified by site" in refused.err


def test_survival_at_times_of_a_table_with_a_pooled_baseline(tmp_path: Path) -> None:
    known = json.loads((TABLES / "survival-rossi.json").read_text())
    path = TABLES / "survival-rossi.csv"
    keys = {"time-column": "week", "event-column": "arrest", "data-path": path}
    more = {"formula": known["formula"], "baseline": "pooled"}
    folder = run(tmp_path / "runs", algorithm="cox", **keys, **more)
    lines = path.read_text().splitlines()
    asked = known["pooled"]["predicted"]
    rows = tmp_path / "rows.csv"
    rows.write_text("\n".join([lines[0], *(lines[1 + at] for at in asked["rows"])]) + "\n")
    times = ",".join(f"{time:g}" for time in asked["times"])
    said = privet("predict", folder, rows, "--times", times)
    assert said.code == 0
    for row, right in zip(csv.DictReader(io.StringIO(said.out)), asked["survival"], strict=True):
        found = [float(row[f"survival_{time:g}"]) for time in asked["times"]]
        assert found == pytest.approx(right, rel=1e-7)
    late = privet("predict", folder, rows, "--times", "52,99")
    said = "--times 99: the last event is at 52, and survival after it is given as it is then\n"
    assert late.err.startswith(said)
    for row in csv.DictReader(io.StringIO(late.out)):
        assert row["survival_99"] == row["survival_52"]
    for wrong, says in (("week", "--times week: numbers"), ("-1", "from 0 on")):
        refused = privet("predict", folder, rows, "--times", wrong)
        assert refused.code != 0
        assert says in refused.err


def test_a_regression_without_times_has_no_survival(glm: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text((TABLES / "glm-poisson-1.csv").read_text())
    refused = privet("predict", glm, rows, "--times", "10")
    assert refused.code != 0
    assert "no absolute risk: glm has no times" in refused.err


def test_what_cannot_be_predicted_is_one_line(glm: Path, tmp_path: Path) -> None:
    rows = (TABLES / "glm-poisson-1.csv").read_text()
    table, other = tmp_path / "rows.csv", tmp_path / "other"
    other.mkdir()
    (other / "table.json").write_text('{"kind": "kaplan-meier"}')
    short = tmp_path / "short.csv"
    short.write_text("age\n40\n50\n")
    damaged = tmp_path / "table.json"
    damaged.write_text('{"kind": "glm"}')
    table.write_text(rows.replace(",M,", ",X,", 1))
    zero = tmp_path / "zero.csv"
    known = json.loads((glm / "table.json").read_text())
    head = rows.splitlines()[0].split(",")
    cells = rows.splitlines()[1].split(",")
    cells[head.index("years")] = "-1"
    zero.write_text(f"{rows.splitlines()[0]}\n{','.join(cells)}\n")
    assert known["offset"] == "log(years)"
    for words, says in (
        (("predict", glm, table), f"column 'sex' ({table}): 'X' is none of the model's categories"),
        (("predict", glm, short), f"({short})"),
        (("predict", glm, zero), "log(years) takes values above 0, and column 'years' has others"),
        (("predict", glm, zero), str(zero)),
        (("predict", glm, tmp_path / "none.csv"), "none.csv: no such file"),
        (("predict", other, table), "table.json: kaplan-meier predicts no rows; glm and cox do"),
        (("predict", damaged, table), "cannot be read as a regression"),
        (("predict", glm, table, "--unknown", "zero"), "unknown = 'zero': refuse or missing"),
    ):
        said = privet(*words)
        assert (said.code, said.out) == (2, "")
        assert said.err.count("\n") == 1
        assert says in said.err
    said = privet("predict", glm, table, "--unknown", "missing")
    assert said.code == 0
    assert "1 of " in said.err
