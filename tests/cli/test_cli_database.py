"""Commands on cohorts of a database: check, describe, predict, and what a node config means."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cli import privet
from support.cohorts import QUERY, cohorts, database
from support.pooled import pooled
from support.sites import COLUMNS, rows, table

NEW = f"""
[cohorts.new]
query = "{QUERY.replace("order", "where id < 9 order").replace("age", "id, age")}"
person-column = "id"
write = "risk"
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    columns = rows(80, 1)
    database(tmp_path / "site.db", columns)
    (tmp_path / "site.csv").write_text(table(columns))
    return cohorts(tmp_path, more=f'label-column = "died"\n{NEW}')


def test_a_cohort_is_checked_as_a_file_is(site: Path) -> None:
    keys = ("label-column=died", "num-agents=2", "--json")
    of_file = json.loads(privet("data", site.with_name("site.csv"), *keys).out)
    for source in (site, f"sqlite:///{site.parent}/site.db"):
        name = "stroke" if source == site else "patients"
        code, out, err = privet("data", source, "--cohort", name, *keys)
        assert (code, err) == (0, "")
        found = json.loads(out)
        known = {one["name"]: one for one in found["columns"] if one["name"] != "id"}
        assert list(known.values()) == of_file["columns"]
        assert (found["rows"], found["task"]) == (of_file["rows"], of_file["task"])


def test_the_line_that_a_check_ends_with_runs(site: Path, tmp_path: Path) -> None:
    code, out, _ = privet("data", site, "--cohort", "stroke", "num-agents=2")
    assert code == 0
    (line,) = [one for one in out.splitlines() if one.startswith("privet run ")]
    assert "dataset=sql" in line
    more = ("num-server-rounds=1", f"output-dir={tmp_path / 'runs'}")
    assert privet(*line.split()[1:], *more).code == 0


def test_cohorts_of_several_sites_are_compared_and_described(site: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    database(other / "site.db", rows(50, 2))
    second = cohorts(other, more='label-column = "died"').rename(other / "other.toml")
    code, out, _ = privet("data", site, second, "--cohort", "stroke")
    assert code == 0
    assert out.count("as the others") == 2
    into = f"output-dir={tmp_path / 'runs'}"
    code, out, _ = privet("describe", site, second, "--cohort", "stroke", into, "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["rows"], found["site_names"]) == (130, ["cohorts", "other"])
    assert found["columns"]["age"]["n"] == 130


def test_a_regression_is_fitted_over_the_cohorts_of_several_sites(
    site: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    database(other / "site.db", rows(50, 2))
    second = cohorts(other, more='label-column = "died"').rename(other / "other.toml")
    keys = ("algorithm=glm", "formula=died ~ age + sodium", f"output-dir={tmp_path / 'runs'}")
    assert privet("run", site, second, "cohort=stroke", *keys).code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    found = json.loads((folder / "table.json").read_text())
    assert found["site_names"] == ["cohorts", "other"]
    both = {name: [*rows(80, 1)[name], *rows(50, 2)[name]] for name in COLUMNS}
    design = np.column_stack([np.ones(130), both["age"], both["sodium"]])
    fit = pooled("binomial", design, np.array(both["died"], float), np.arange(130))
    np.testing.assert_allclose(found["coef"], fit.coef.astype(float), rtol=1e-8)
    code, out, err = privet("run", site, second, "cohort=stroke", "num-agents=2")
    assert (code, out) == (2, "")
    assert f"{str(site)!r}: expected key=value; tables of sites are for analyses" in err


def test_zeros_and_ones_beside_booleans_are_counted_as_booleans(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as opened, opened:
        opened.execute("create table visits (smoker)")
        opened.executemany("insert into visits values (?)", [(0,)] * 30 + [(1,)] * 12 + [(None,)])
    own, texts = "sqlite:///a.db", ["smoker", *["true"] * 7, *["false"] * 5]
    (tmp_path / "a.toml").write_text(f'url = "{own}"\n[cohorts.v]\nquery = "select * from visits"')
    (tmp_path / "b.csv").write_text("\n".join(texts) + "\n")
    (tmp_path / "c.csv").write_text("\n".join(["smoker", "true", "false", "true"]) + "\n")
    more = ("--cohort", "v", f"output-dir={tmp_path / 'runs'}", "--json")

    def described(*names: str) -> Any:
        code, out, _ = privet("describe", *(tmp_path / name for name in names), *more)
        assert code == 0
        return json.loads(out)["columns"]["smoker"]

    numbers = described("a.toml", "b.csv")  # as many sites have numbers as have booleans
    assert (numbers["n"], numbers["missing"]) == (54, 1)
    assert numbers["mean"] == pytest.approx(19 / 54, rel=1e-12)
    booleans = described("a.toml", "b.csv", "c.csv")
    assert (booleans["n"], booleans["missing"]) == (57, 1)
    assert booleans["categories"] == {"false": 36, "true": 21}


def test_faults_are_one_line(site: Path) -> None:
    for words, line in (
        ((site,), f"{site}: no cohort is named: give cohort"),
        ((site, "--cohort", "strok"), f"{site}: no cohort strok; did you mean 'stroke'?"),
        (("sqlite:///nowhere.db", "--cohort", "a"), "cohort a: unable to open database file"),
    ):
        code, out, err = privet("data", *words, "num-agents=2")
        assert (code, out, err) == (2, "", f"privet: {line}\n")


def test_predictions_go_where_the_operator_says(site: Path, tmp_path: Path) -> None:
    run = ("run", "dataset=sql", f"data-path={site}", "cohort=stroke", "num-agents=2")
    into = (f"output-dir={tmp_path / 'runs'}", "num-server-rounds=2")
    assert privet(*run, *into).code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    new = ("predict", folder, site, "--cohort", "new")
    printed = privet(*new)
    assert printed.code == 0
    assert len(printed.out.splitlines()) == 10
    code, out, _ = privet(*new, "--out", "risk")
    assert (code, out) == (0, "9 rows: risk\n")
    assert privet(*new, "--out", "risk").out == "9 rows: risk, in place of 9 of this run\n"
    with closing(sqlite3.connect(tmp_path / "site.db")) as opened:
        found = opened.execute('select id, prediction, "probability 1", run from risk').fetchall()
    assert [one[0] for one in found] == list(range(9))
    assert {one[3] for one in found} == {folder.name}
    csv = [line.split(",") for line in printed.out.splitlines()[1:]]
    assert [(str(one[1]), one[2]) for one in found] == [(a, float(c)) for a, _, c in csv]
    for name, said in (("new", "names risk"), ("stroke", "names none: it sets write")):
        code, out, err = privet("predict", folder, site, "--cohort", name, "--out", "elsewhere")
        assert (code, out) == (2, "")
        assert err.endswith(f"its operator {said}\n")
    assert not Path("elsewhere").exists()


def test_predictions_of_another_kind_of_model_are_refused(site: Path, tmp_path: Path) -> None:
    """Those of another run of one kind are told apart by the name of the run."""
    runs, folders = tmp_path / "runs", []
    data = ("dataset=sql", f"data-path={site}", "cohort=stroke", f"output-dir={runs}")
    glm = ("algorithm=glm", "formula=died ~ age + sodium")
    for keys in (glm, glm, ("num-agents=2", "num-server-rounds=1")):
        known = set(runs.iterdir()) if runs.exists() else set()
        assert privet("run", *keys, *data).code == 0
        folders += [*set(runs.iterdir()) - known]
    new = (site, "--cohort", "new", "--out", "risk")
    for folder in folders[:2]:
        assert privet("predict", folder, *new).code == 0
    code, out, err = privet("predict", folders[2], *new)
    assert (code, out) == (2, "")
    assert "cohort new: table risk has no column prediction" in err
    assert "name another table with write" in err
    with closing(sqlite3.connect(tmp_path / "site.db")) as opened:
        found = opened.execute("select run, count(*) from risk group by run").fetchall()
    assert sorted(found) == sorted((one.name, 9) for one in folders[:2])


def said(site: Path, **keys: Any) -> tuple[int, str]:
    config = {"dataset": "sql", "data-path": site, "state-path": site.parent / "state", **keys}
    text = " ".join(f'{key}="{value}"' for key, value in config.items() if value)
    code, out, _ = privet("check-node", text)
    return code, out


def test_a_nodes_cohorts_are_listed_and_no_database_is_asked(site: Path) -> None:
    (site.parent / "site.db").unlink()
    assert "ok   cohorts that a run may name: stroke, new" in said(site)[1]
    assert "ok   cohorts that a run may name: new\n" in said(site, cohort="new")[1]
    for keys, line in (
        ({"cohort": "nothing"}, f"cohort = nothing: {site} has stroke, new"),
        ({"state-path": ""}, "dataset = sql needs state-path"),
        ({"data-path": "postgresql://me@host/db"}, "data-path is a URL"),
    ):
        code, out = said(site, **keys)
        assert code == 2
        assert f"bad  {line}" in out
    site.chmod(0o666)
    assert f"weak {site}: others may write it" in said(site)[1]
    site.write_text(site.read_text().replace("query", "qery"))
    code, out = said(site)
    assert code == 2
    assert "cohort stroke: unknown key 'qery'; did you mean 'query'?" in out
