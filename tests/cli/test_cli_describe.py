"""``privet describe``: files, a folder, a run folder, a schema, and odd inputs in one line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from privet.cli.config import run_name
from privet.data.tables.schema import read_schema
from support.cli import privet
from support.paths import ROOT

WORKED = Path(__file__).parents[1] / "data" / "inference" / "glm-binomial-1.csv"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the table of each site."""
    monkeypatch.chdir(tmp_path)
    pooled = pd.read_csv(WORKED)
    (tmp_path / "sites").mkdir()
    for site, rows in pooled.groupby("site"):
        rows.drop(columns="site").to_csv(tmp_path / "sites" / f"{site}.csv", index=False)
    return tmp_path


def described(*arguments: object) -> dict[str, object]:
    said = privet("describe", *arguments, "--json")
    assert said.code == 0, said.err
    table: dict[str, object] = json.loads(said.out[said.out.index("{") :])
    return table


def means(table: dict[str, object]) -> dict[str, float]:
    columns: dict[str, dict[str, float]] = table["columns"]  # type: ignore[assignment]
    return {name: columns[name]["mean"] for name in ("age", "bmi", "crp")}


def test_files_a_folder_and_ids_are_described_alike(here: Path) -> None:
    files = sorted((here / "sites").glob("*.csv"))
    pooled = pd.read_csv(WORKED)
    expected = {
        name: pytest.approx(pooled[name].mean(), rel=1e-12) for name in ("age", "bmi", "crp")
    }
    for arguments in (files, [here / "sites"], [WORKED, "id-column=site"]):
        table = described(*arguments)
        assert means(table) == expected
        assert (table["rows"], table["sites"]) == (len(pooled), 4)
    assert described(*files)["site_names"] == ["hill", "north", "south", "west"]


def test_csv_parquet_and_folders_of_both_are_those_of_pandas(here: Path) -> None:
    pooled = pd.read_csv(WORKED).drop(columns="site")
    (here / "both").mkdir()
    for at, file in enumerate(sorted((here / "sites").glob("*.csv"))):
        rows = pd.read_csv(file)
        rows.to_parquet(here / "sites" / f"{file.stem}.parquet")
        if at % 2:
            rows.to_parquet(here / "both" / f"{file.stem}.parquet")
        else:
            rows.to_csv(here / "both" / f"{file.stem}.tsv", index=False, sep="\t")
    for arguments in (sorted((here / "sites").glob("*.parquet")), [here / "both"]):
        table: Any = described(*arguments)
        assert (table["rows"], table["sites"]) == (len(pooled), 4)
        for name, column in table["columns"].items():
            if column["kind"] == "categories":
                assert column["categories"] == pooled[name].value_counts().to_dict()
                continue
            assert (column["n"], column["missing"]) == (pooled[name].count(), 0)
            assert column["mean"] == pytest.approx(pooled[name].mean(), rel=1e-12)
            assert column["sd"] == pytest.approx(pooled[name].std(), rel=1e-12)
            for q, low in column["quantiles"].items():
                true = pooled[name].quantile(float(q), interpolation="inverted_cdf")
                assert low <= true <= low + column["quantile_errors"][q]


def test_a_model_trains_predicts_and_is_exported_by_the_schema(here: Path) -> None:
    """One that was read from records: a private run refuses it, and says what to do."""
    assert privet("describe", here / "sites", "--schema", "schema.toml").code == 0
    keys = ["dataset=csv", "data-path=sites", "label-column=died", "schema=schema.toml"]
    train = ["algorithm=fed-plt", "num-server-rounds=5", "output-dir=trained", *keys]
    said = privet("run", *train)
    assert said.code == 0, said.err
    [run] = (here / "trained").iterdir()
    rows = pd.read_csv(WORKED).drop(columns=["site", "died"]).head(3)
    rows.to_csv("new.csv", index=False)
    predicted = privet("predict", run, "new.csv")
    assert predicted.code == 0, predicted.err
    assert len(predicted.out.splitlines()) == 4
    exported = privet("export", run, "--to", "safetensors")
    assert exported.code == 0, exported.err
    rows.assign(sex="unheard of").to_csv("odd.csv", index=False)
    assert "unheard of" in privet("predict", run, "odd.csv").err
    private = privet(
        "run", *train, "target-epsilon=1", "clip=1", "row-norm=1", "local-solver=noisy-gd"
    )
    assert private.code != 0
    assert "take out the line from-records" in private.err


def test_a_run_folder_is_read_again(here: Path) -> None:
    table = described(here / "sites")
    [run] = (here / "runs").iterdir()
    assert described(run)["columns"] == table["columns"]
    said = privet("describe", run)
    assert said.code == 0
    assert "rows of 4 sites" in said.out


def test_json_is_all_that_is_printed(here: Path) -> None:
    said = privet("describe", here / "sites", "--json")
    assert json.loads(said.out)["analysis"] == "describe"


def test_a_schema_is_written_once(here: Path) -> None:
    out = here / "schema.toml"
    assert privet("describe", here / "sites", "--schema", out).code == 0
    columns = read_schema(str(out)).columns
    assert columns["sex"].categories == ("F", "M")
    ages = pd.read_csv(WORKED)["age"]
    assert columns["age"].low <= ages.min() <= ages.max() <= columns["age"].high
    text = out.read_text()
    said = privet("describe", here / "sites", "--schema", out)
    assert said.code != 0
    assert "is there already" in said.err
    assert out.read_text() == text


def test_the_schema_of_a_run_folder_is_the_same(here: Path) -> None:
    assert privet("describe", here / "sites", "--schema", "one.toml").code == 0
    [run] = (here / "runs").iterdir()
    assert privet("describe", run, "--schema", "two.toml").code == 0
    assert (here / "one.toml").read_text() == (here / "two.toml").read_text()


FILES = {
    "empty.csv": "",
    "header.csv": "a,b\n",
    "ragged.csv": "a,b\n1\n2,3,4\n",
    "binary.csv": "\x00\x01\x02",
    "twice.csv": "a,a\n1,2\n",
    "text.json": "{}",
    "inf.csv": "a\ninf\n1\n",
    "bad.parquet": "PAR1",
}


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["none.csv"],
        ["sites/hill.csv", "none.csv"],
        *[[name] for name in FILES],
        ["sites", "no-such-key=1"],
        ["sites", "id-column=none"],
        ["sites", "only=none"],
        ["sites", "by=none"],
        ["sites", "by=age,bmi"],
        ["sites", "num-agents=0"],
        ["sites", "num-agents=-1"],
        ["sites", "schema=none.toml"],
        ["sites", "algorithm=fed-plt"],
        ["sites", "secure-sum=maybe"],
        ["sites/hill.csv", "sites/north.csv", "secure-sum=true"],
        ["sites", "--schema", "none/schema.toml"],
        ["sites", "--schema", "sites"],
        ["sites", "target-epsilon=1.0"],
        ["broken"],
        ["broken", "sites"],
    ],
    ids=" ".join,
)
def test_odd_inputs_are_told_in_a_line(here: Path, arguments: list[str]) -> None:
    for name, text in FILES.items():
        (here / name).write_text(text)
    (here / "broken").mkdir()
    (here / "broken" / "table.json").write_text('{"analysis": "glm"}')
    said = privet("describe", *arguments)
    assert "Traceback" not in said.err + said.out
    if said.code:
        lines = [line for line in said.err.splitlines() if line.strip()]
        assert lines, said.out
        assert len(said.err) < 1200, said.err
    shutil.rmtree(here / "broken")


def test_few_of_the_odd_inputs_can_be_described(here: Path) -> None:
    """A table of numbers without rows, and a key that is at its default."""
    for arguments in (["header.csv"], ["sites", "only=none"], ["sites", "by=none"], ["none.csv"]):
        (here / "header.csv").write_text("a,b\n")
        assert privet("describe", *arguments).code != 0


def test_runs_that_begin_in_one_second_have_folders_of_their_own(here: Path) -> None:
    names = {run_name("describe") for _ in range(50)}
    assert len(names) == 50
    for _ in range(2):
        assert privet("describe", here / "sites" / "hill.csv").code == 0
    assert len(list((here / "runs").iterdir())) == 2


def test_groups_are_printed_as_a_table_1(here: Path) -> None:
    said = privet("describe", here / "sites", "by=died")
    assert said.code == 0
    pooled = pd.read_csv(WORKED)
    ages = [pooled["age"], *(rows["age"] for _, rows in pooled.groupby("died"))]
    shown = " +".join(re.escape(f"{one.mean():.1f} ({one.std():.1f})") for one in ages)
    assert re.search(rf"age, mean \(sd\) +{shown} +0 +-?\d\.\d{{3}}\n", said.out)
    assert "std. difference" in said.out


@pytest.mark.parametrize("command", ["describe", "survival"])
def test_noise_needs_a_schema_that_is_not_read_from_the_records(
    tmp_path: Path, command: str
) -> None:
    text = (ROOT / "tests" / "data" / "inference" / "cox-1.csv").read_text()
    (tmp_path / "study.csv").write_text(text)
    common = [str(tmp_path / "study.csv"), "id-column=site", "drop-columns=site"]
    schema = str(tmp_path / "schema.toml")
    assert privet("describe", *common, f"output-dir={tmp_path}/a", "--schema", schema).code == 0
    keys = ["time-column=days", "event-column=died", "horizon=1000", "time-unit=100"]
    noised = [*common, f"schema={schema}", "target-epsilon=1", f"output-dir={tmp_path}/b"]
    said = privet(command, *noised, *(keys if command == "survival" else []))
    assert said.code == 2
    assert "the schema holds from-records = true" in said.err
    assert not list(tmp_path.glob("b/*/statement*"))


def test_a_schema_names_the_keys_of_the_cells_that_it_was_read_with(here: Path) -> None:
    """A run with the schema and these keys reads the same cells."""
    for file in (here / "sites").glob("*.csv"):
        rows = pd.read_csv(file, dtype={"crp": str})
        rows.loc[rows.index[:5], "crp"] = "<0.5"
        rows.to_csv(file, index=False)
    assert "censored = bound" in privet("describe", "sites").err
    said = privet("describe", "sites", "censored=half", "--schema", "schema.toml")
    (line,) = re.findall(r"^schema: schema.toml, for runs with (.*)$", said.out, re.MULTILINE)
    assert line == "censored=half"
    run = ["algorithm=glm", "formula=died ~ age + crp", "dataset=csv", "data-path=sites"]
    assert privet("run", *run, "schema=schema.toml").code == 2
    assert privet("run", *run, "schema=schema.toml", line).code == 0
    for file in (here / "sites").glob("*.csv"):
        pd.read_csv(file).drop(columns="crp").to_csv(file, index=False)
    plain = privet("describe", "sites", "--schema", "plain.toml")
    assert "schema: plain.toml\n" in plain.out
