"""A study over three hospitals' databases, from invented records to a prediction.

    python examples/omop/study.py FOLDER
    python examples/omop/study.py FOLDER --postgresql postgresql://owner@127.0.0.1:5432

Without a server each hospital has an SQLite file in the folder. With one, the databases north,
south and west are there, and empty; the password comes from PGPASSWORD, PGPASSFILE or ~/.pgpass.

The three nodes work in this process, with the node config that their SuperNodes would have; the
run configs are those that `flwr run` would be given. Everything else is done by the `privet`
command, as printed.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import cdm
from flwr.app import Context, RecordDict

from privet.client_apps import client_app
from privet.data import problem_from_context, table_from_context
from privet.server_apps import server_app
from privet.sim import InlineGrid, quiet

HERE = Path(__file__).parent
TRAINED, NEW = ("2016-01-01", "2022-12-31"), ("2023-01-01", "2023-12-31")
"""When the persons were diagnosed that a model is fitted to, and those it is for."""

COHORTS = """\
url = "{url}"

[cohorts.heart-failure]
query-file = "heart-failure.sql"
person-column = "person_id"
schema = "schema.toml"

[cohorts.risk]
query-file = "heart-failure.sql"
person-column = "person_id"
schema = "schema.toml"
label-column = "died_1y"
drop-columns = "days,died"
missing = "zero"

[cohorts.new]
query-file = "new.sql"
person-column = "person_id"
drop-columns = "died_1y,days,died"
write = "predicted_risk"
"""
"""What the operator of a hospital writes: which queries there are. A run names one of them."""

FORMULA = "died_1y ~ age + sex + log(creatinine) + diabetes + lisinopril"
GLM = {
    "algorithm": "glm",
    "cohort": "heart-failure",
    "formula": FORMULA,
}
PRIVATE = {
    "algorithm": "fed-plt",
    "cohort": "risk",
    # Of the coordinator's own: invented rows, on which the model is evaluated.
    "dataset": "csv",
    "data-path": "sample.csv",
    "schema": "schema.toml",
    "label-column": "died_1y",
    "drop-columns": "days,died",
    "missing": "zero",
    "local-solver": "noisy-gd",
    "num-server-rounds": 5,
    "row-norm": 2.0,
    "clip": 1.0,
    "target-epsilon": 4.0,
}


def prepare(folder: Path, server: str = "") -> list[Path]:
    """Load the hospitals' databases, and return the files of their cohorts."""
    files = []
    for name in cdm.HOSPITALS:
        own = folder / name
        own.mkdir(parents=True, exist_ok=True)
        tables, url = cdm.generate(name), f"{server}/{name}" if server else "sqlite:///records.db"
        if server:
            cdm.load_postgresql(url, tables)
        else:
            cdm.load_sqlite(str(own / "records.db"), tables)
        dialect = "" if server else ".sqlite"
        query = (HERE / f"heart-failure{dialect}.sql").read_text()
        (own / "heart-failure.sql").write_text(query)
        for known, of_new in zip(TRAINED, NEW, strict=True):
            query = query.replace(known, of_new)
        (own / "new.sql").write_text(query)
        shutil.copy(HERE / "schema.toml", own)
        (own / f"{name}.toml").write_text(COHORTS.format(url=url))
        files.append(own / f"{name}.toml")
    return files


def invent_sample(folder: Path) -> None:
    """Write what the coordinator has: a schema, and rows that nobody's are, of another seed."""
    shutil.copy(HERE / "schema.toml", folder)
    records, sample = folder / "sample.db", folder / "sample.csv"
    cdm.load_sqlite(str(records), cdm.generate("north", seed=1))
    with closing(sqlite3.connect(records)) as connection:
        rows = connection.execute((HERE / "heart-failure.sqlite.sql").read_text())
        names = [one[0] for one in rows.description]
        with sample.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(names[1:])  # whose a row is has no part in it
            writer.writerows(row[1:] for row in rows)
    records.unlink()


def privet(*arguments: str) -> None:
    """Run a command of Privet, which is printed first."""
    print(f"\n$ privet {shlex.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "privet.cli", *arguments], check=True)


def run(folder: Path, files: list[Path], keys: dict[str, Any], name: str) -> Path:
    """Play a run over the hospitals' nodes, and return its folder."""
    print(f"\n== {name}: {json.dumps(keys)}", flush=True)
    told = {**keys, "num-agents": len(files)}
    nodes = [
        {
            "agent": file.stem,
            "dataset": "sql",
            "data-path": str(file),
            "state-path": str(file.with_suffix(".state")),
            "partition": "none",
            "partition-id": place,
            "num-partitions": len(files),
        }
        for place, file in enumerate(files)
    ]
    own = {key: str(folder / told[key]) for key in ("data-path", "schema") if key in told}
    config = {**told, **own, "output-dir": str(folder / "runs" / name)}
    hospitals = client_app(None, problem_from_context, table_fn=table_from_context)
    coordinator = Context(1, 0, {}, RecordDict(), config)
    server_app()(InlineGrid(hospitals, nodes, told), coordinator)
    return folder / "runs" / name / "1"


def study(folder: Path, server: str = "") -> None:
    """Describe the cohorts, fit a regression and a private model, and predict."""
    files = prepare(folder, server)
    names = [str(file) for file in files]
    out = f"output-dir={folder / 'runs'}"
    privet("data", *names, "--cohort", "risk", "num-agents=3")
    privet("describe", *names, "--cohort", "heart-failure", out)
    privet("describe", *names, "--cohort", "heart-failure", "by=died_1y", out)
    curves = ("time-column=days", "event-column=died", "group-column=diabetes")
    privet("survival", *names, "cohort=heart-failure", *curves, out)
    privet("run", *names, "cohort=heart-failure", "algorithm=glm", f"formula={FORMULA}", out)
    quiet()
    fitted = run(folder, files, GLM, "glm")
    table = json.loads((fitted / "table.json").read_text())
    for term, coef, error in zip(
        table["terms"], table["coef"], table["se"]["nonrobust"], strict=True
    ):
        print(f"{term:20} {coef:8.4f} ({error:.4f})")
    invent_sample(folder)
    private = run(folder, files, PRIVATE, "private")
    print(json.loads((private / "summary.json").read_text())["privacy"])
    privet("predict", str(fitted), names[0], "--cohort", "new", "--out", "predicted_risk")
    ours = str(folder / "private-risk.csv")
    privet("predict", str(private), names[0], "--cohort", "new", "--out", ours)


def main() -> None:
    """Play the whole study in a folder."""
    parser = argparse.ArgumentParser(description="A study over three hospitals' databases.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--postgresql", default="", help="postgresql://USER@HOST:PORT")
    asked = parser.parse_args()
    study(asked.folder.absolute(), asked.postgresql)


if __name__ == "__main__":
    main()
