"""Tables as laboratories, hospitals and spreadsheets export them: nothing is silent."""

from __future__ import annotations

import logging
import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array, ArrayRecord

from privet import load_model
from privet.client_apps import client_app
from privet.core import ConfigError
from privet.core.errors import RunError
from privet.data import DataError, problem_from_config
from privet.data.held_out import hold_out
from privet.data.partitions import SCHEMES, partition
from privet.data.settings import DataSettings
from privet.data.tables.faults import TableError
from privet.data.tables.values import spelled
from privet.kernel.exits import rows_per_person
from privet.problems import BinaryLogistic
from privet.server_apps import read_config
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline
from privet.strategies import DPFedSGD
from support.cli import privet
from support.tables import csv, doubts, read

N = 120


def rows(**columns: Any) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    usual = {"x": draw.normal(size=N).round(3), "label": draw.choice(["ill", "well"], N)}
    return pd.DataFrame({**usual, **columns})


# ------------------------------------------------------------------ who gets which rows


@pytest.mark.parametrize(
    ("keys", "dealt"),
    [
        ({}, "label"),
        ({"dataset": "digits"}, "label"),
        ({"dataset": "csv"}, "iid"),
        ({"dataset": "csv", "id-column": "site"}, "natural-id"),
        ({"dataset": "adult", "id-column": "occupation"}, "natural-id"),
        ({"dataset": "csv", "id-column": "site", "partition": "iid"}, "iid"),
        ({"dataset": "csv", "partition": "label"}, "label"),
    ],
)
def test_a_table_is_dealt_by_label_only_where_that_is_asked(
    keys: dict[str, str], dealt: str
) -> None:
    path = {"data-path": "/a.csv"} if keys.get("dataset") in ("csv", "adult") else {}
    assert read_config({**keys, **path})["partition"] == dealt
    assert DataSettings.from_config(keys).partition == dealt


def test_keys_of_labels_are_refused_where_a_table_is_dealt_at_random() -> None:
    with pytest.raises(ConfigError, match="classes-per-agent = 3: not used with partition = iid"):
        read_config({"dataset": "csv", "data-path": "/a.csv", "classes-per-agent": 3})


# ------------------------------------------------------------------ persons


@pytest.mark.parametrize("scheme", [one for one in SCHEMES if not one.startswith("flwr")])
def test_a_person_is_in_one_agent(scheme: str) -> None:
    draw = np.random.default_rng(1)
    persons = draw.integers(0, 40, 300)
    labels, ids = draw.integers(0, 3, 300), persons % 4
    parts = partition(labels, 4, scheme, seed=2, ids=ids, persons=persons)
    if scheme == "none":
        assert all(len(part) == 300 for part in parts)
        return
    owners = [set(persons[part].tolist()) for part in parts]
    assert sum(map(len, owners)) == len(set.union(*owners)) == len(np.unique(persons))
    assert sorted(np.concatenate(parts)) == list(range(300))


def test_persons_that_cannot_be_dealt_are_named() -> None:
    persons, labels = np.repeat(np.arange(5), 4), np.arange(20) % 2
    with pytest.raises(DataError, match="num-agents: 5 persons cannot give each of 6 agents one"):
        partition(labels, 6, "iid", persons=persons)
    with pytest.raises(DataError, match="5 persons have rows under more than one id"):
        partition(labels, 2, "natural-id", ids=labels, persons=persons)


@pytest.mark.parametrize("with_ids", [False, True])
def test_a_person_is_on_one_side_of_the_hold_out(with_ids: bool) -> None:
    persons = np.random.default_rng(3).integers(0, 50, 400)
    ids = persons % 2 if with_ids else None
    train, test = hold_out(400, 7, ids, persons)
    assert not np.intersect1d(persons[train], persons[test]).size
    assert sorted([*train, *test]) == list(range(400))
    assert len(np.unique(persons[test])) == 10, "a fifth of 50"


def visits(folder: Path) -> Path:
    patient = np.repeat(np.arange(30), 4)
    return csv(folder / "visits.csv", rows(patient=patient))


def test_repeated_ids_are_doubted_and_the_line_keeps_persons_together(tmp_path: Path) -> None:
    path = visits(tmp_path)
    out = privet("data", path, "num-agents=3").out
    assert "column patient: 30 ids in 120 rows" in out
    words = shlex.split(out.splitlines()[-1])
    assert "person-column=patient" in words
    data = read(path, person_column="patient")
    assert data.columns == 1
    assert not data.doubts
    assert data.train_persons is not None
    assert len(data.train_persons) == 96
    texts = rows(patient=[f"P{one:03d}" for one in np.repeat(np.arange(30), 4)])
    text = csv(tmp_path / "texts.csv", texts)
    with pytest.raises(TableError, match="set person-column=patient"):
        read(text)
    assert len(read(text, person_column="patient").train_labels) == 96


def test_a_person_in_the_test_file_and_in_another_is_refused(tmp_path: Path) -> None:
    table = rows(patient=np.repeat(np.arange(30), 4))
    csv(tmp_path / "a.csv", table[:100])
    csv(tmp_path / "test.csv", table[98:])
    with pytest.raises(DataError, match="1 person has rows in test and in other files"):
        read(tmp_path, person_column="patient")


PRIVATE: dict[str, Any] = {
    "algorithm": "dp-fedsgd",
    "clip": 1.0,
    "target-epsilon": 4.0,
    "num-server-rounds": 2,
    "num-agents": 3,
    "baseline-seconds": 0.0,
}


def test_a_private_run_holds_persons_to_the_public_bound(tmp_path: Path) -> None:
    path = visits(tmp_path)
    schema = tmp_path / "s.toml"
    schema.write_text('[columns]\n"x" = [-5, 5]\n"label" = ["ill", "well"]\n')
    keys = {
        "dataset": "csv",
        "data-path": str(path),
        "schema": str(schema),
        "person-column": "patient",
        "output-dir": str(tmp_path),
    }
    line = "has 4 rows in an agent, and epsilon is stated for rows-per-person = 1: set rows-per"
    with pytest.raises(ConfigError, match=line):
        run_inline({**PRIVATE, **keys}, "refused")
    once = csv(tmp_path / "once.csv", rows(patient=np.arange(N)))
    run_inline({**PRIVATE, **keys, "data-path": str(once)}, "once")
    without = {key: value for key, value in PRIVATE.items() if key != "target-epsilon"}
    plain = {**without, "algorithm": "fed-plt", "num-server-rounds": 2}
    del plain["clip"]
    run_inline({**plain, **keys}, "plain")


def test_a_node_holds_persons_to_the_bound_and_names_no_count() -> None:
    assert rows_per_person({}, {}) == 1
    assert rows_per_person({"rows-per-person": 5}, {}) == 5
    assert rows_per_person({"rows-per-person": 5}, {"rows-per-person": 3}) == 3
    draw = np.random.default_rng(9)

    def problem(context: Any) -> BinaryLogistic:
        made = BinaryLogistic(draw.normal(size=(40, 2)), np.resize([-1, 1], 40))
        made.person_rows = 17
        return made

    strategy = DPFedSGD(num_agents=2, clip=1.0, target_epsilon=4.0)
    start = ArrayRecord({"x": Array(np.zeros(2))})
    with pytest.raises(RunError, match="a person has more rows than rows-per-person") as caught:
        strategy.start(InlineGrid(client_app("dp-fedsgd", problem), 2), start, num_rounds=2)
    assert "17" not in str(caught.value)
    # A coordinator that asks for one bound after another learns nothing of a deployed node.
    for bound in (16, 17, 18):
        config = {"rows-per-person": bound}
        grid = InlineGrid(client_app("dp-fedsgd", problem), [{"agent": "a"}], config)
        with pytest.raises(RunError, match="a person has more rows than rows-per-person"):
            DPFedSGD(num_agents=1, clip=1.0, noise_scale=1.0).start(grid, start, num_rounds=1)


def test_the_rows_of_a_person_are_kept_with_the_share_on_the_disk(tmp_path: Path) -> None:
    path = visits(tmp_path)
    os.utime(path, (1e9, 1e9))
    config = {"dataset": "csv", "data-path": str(path), "person-column": "patient"}
    for _ in range(2):
        one = problem_from_config(
            {**config, "partition": "none"}, 0, 1, own=True, folder=tmp_path / "kept"
        )
        assert one.person_rows == 4
    schema = tmp_path / "s.toml"
    schema.write_text('[columns]\n"x" = [-5, 5]\n"label" = ["ill", "well"]\n')
    public = {**config, "schema": str(schema)}
    split = problem_from_config({**public, "partition": "iid"}, 0, 2, own=True)
    assert "deals a node's own records by their persons" in split.data_dependent
    assert not problem_from_config({**public, "partition": "none"}, 0, 2, own=True).data_dependent


# ------------------------------------------------------------------ bounds and infinite numbers


def laboratory(folder: Path) -> tuple[Path, np.ndarray]:
    true = np.random.default_rng(4).gamma(1.5, 15, N).round(1)
    written = ["<5" if v < 5 else "> 60" if v > 60 else f"{v}" for v in true]
    return csv(folder / "lab.csv", rows(CRP=written)), true


@pytest.mark.parametrize(("how", "low"), [("bound", 5.0), ("half", 2.5)])
def test_bounds_of_a_laboratory_become_numbers(tmp_path: Path, how: str, low: float) -> None:
    path, true = laboratory(tmp_path)
    with pytest.raises(TableError, match=r"'> 60' among numbers.*set censored=bound;"):
        read(path)
    data = read(path, censored=how)
    expected = np.where(true < 5, low, np.minimum(true, 60.0))
    train, _ = hold_out(N, 42)
    chosen = expected[train]
    at = [column.name for column in data.source_columns].index("CRP")
    np.testing.assert_allclose(
        data.train_features[:, at], (chosen - chosen.mean()) / chosen.std(), atol=1e-12
    )


def test_few_bounds_are_no_silent_categories_and_groups_of_ages_are(tmp_path: Path) -> None:
    few = csv(tmp_path / "few.csv", rows(v=np.resize(["<1", "1", "2", "3"], N)))
    with pytest.raises(TableError, match="censored=bound"):
        read(few)
    ages = csv(tmp_path / "ages.csv", rows(v=np.resize(["<18", "18-64", ">64"], N)))
    column = next(one for one in read(ages).source_columns if one.name == "v")
    assert column.categories == ("18-64", "<18", ">64")
    comma = rows(v=np.resize(["<0,5", "1,25", "2,75"], N))
    data = read(csv(tmp_path / "comma.csv", comma, sep=";"), censored="half")
    assert [(one.low, one.high) for one in data.source_columns if one.name == "v"] == [(0.25, 2.75)]


def test_infinite_numbers_are_named_by_rows_and_cost_no_column(tmp_path: Path) -> None:
    rate = np.random.default_rng(5).normal(size=N)
    rate[[3, 50, 60, 70, 80, 90, 100, 110]] = np.inf
    path = csv(tmp_path / "flows.csv", rows(rate=rate, packets=2 * rate))
    out = privet("data", path, "num-agents=2").out
    assert "column rate: rows 4, 51, 61, 71, 81 and 3 more: 8 numbers, such as inf" in out
    words = shlex.split(out.splitlines()[-1])
    assert "infinite=drop" in words
    assert not any(word.startswith("drop-columns") for word in words)
    data = read(path, infinite="drop")
    assert len(data.train_labels) + len(data.test_labels) == N - 8
    assert (
        "infinite = drop" in read(path, infinite="drop", schema=schema_of(tmp_path)).data_dependent
    )
    filled = read(path, infinite="missing", missing="mean")
    assert len(filled.train_labels) + len(filled.test_labels) == N
    with pytest.raises(TableError, match="missing values, in rate of 8 rows, packets of 8 rows"):
        read(path, infinite="missing")


def schema_of(folder: Path) -> str:
    path = folder / "schema.toml"
    text = '"x" = [-5, 5]\n"rate" = [-5, 5]\n"packets" = [-9, 9]\n"label" = ["ill", "well"]\n'
    path.write_text(f"[columns]\n{text}")
    return str(path)


# ------------------------------------------------------------------ folders of mixed files


def test_booleans_are_one_however_they_are_spelt(tmp_path: Path) -> None:
    truth = np.random.default_rng(6).random(N) < 0.5
    folder = tmp_path / "all"
    csv(folder / "a.csv", rows(smoker=truth))
    csv(folder / "b.csv", rows(smoker=truth.astype(int)))
    csv(folder / "c.csv", rows(smoker=np.where(truth, "TRUE", "FALSE")))
    rows(smoker=truth).to_parquet(folder / "d.parquet")
    data = read(folder)
    smoker = next(one for one in data.source_columns if one.name == "smoker")
    assert smoker.categories == ("false", "true")
    assert doubts(data).startswith("a and b have the same rows")
    assert len(data.doubts) == 1
    for one in ("a.csv", "c.csv", "d.parquet"):
        alone = read(folder / one)
        np.testing.assert_array_equal(alone.train_features, read(folder / "a.csv").train_features)
    keys = {"dataset": "csv", "num-agents": 2, "num-server-rounds": 2, "baseline-seconds": 0.0}
    path = str(folder / "d.parquet")
    run = run_inline({**keys, "data-path": path, "output-dir": str(tmp_path)}, "run").folder
    model = load_model(run)
    first = model.predict(rows(smoker=truth))
    for spelt in (
        truth.astype(int),
        np.where(truth, "True", "False"),
        np.where(truth, "TRUE", "0"),
    ):
        np.testing.assert_array_equal(model.predict(rows(smoker=spelt)), first)


def test_texts_take_the_spelling_of_two_categories_of_that_meaning() -> None:
    import pyarrow as pa

    texts = pa.chunked_array([["TRUE", "0", None, "no", "1"]])
    assert spelled(texts, ("0", "1")).to_pylist() == ["1", "0", None, "no", "1"]
    assert spelled(texts, ("False", "True")).to_pylist() == ["True", "False", None, "no", "True"]
    assert spelled(texts, ("no", "yes")).to_pylist() == texts.to_pylist()


def test_each_file_of_a_folder_has_its_own_decimal_sign(tmp_path: Path) -> None:
    weight = np.random.default_rng(7).normal(75, 9, N).round(2)
    folder = tmp_path / "mixed"
    csv(folder / "bern.csv", rows(weight=weight))
    csv(folder / "graz.csv", rows(weight=weight), sep=";", decimal=",")
    rows(weight=weight, label=pd.Categorical(rows()["label"])).to_parquet(folder / "wien.parquet")
    same = tmp_path / "same"
    for name in ("bern", "graz", "wien"):
        csv(same / f"{name}.csv", rows(weight=weight))
    np.testing.assert_array_equal(read(folder).train_features, read(same).train_features)
    unclear = rows(weight=[f"1.{n:03d}" for n in range(N)], x=[f"{n},5" for n in range(N)])
    other = tmp_path / "unclear"
    csv(other / "bern.csv", rows(weight=weight))
    csv(other / "graz.csv", unclear, sep=";")
    with pytest.raises(TableError, match=r"column weight: graz: '1\.000' may have separators"):
        read(other)


def test_types_that_are_no_column_together_are_named(tmp_path: Path) -> None:
    rows(z=[[1]] * N).to_parquet(tmp_path / "a.parquet")
    rows(z=["q", "r"] * (N // 2)).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(TableError, match=r"column z: of type list.* in a and of type string in b"):
        read(tmp_path)
    assert read(tmp_path, drop_columns="z").columns == 1


def test_files_without_rows_are_named(tmp_path: Path) -> None:
    csv(tmp_path / "a.csv", rows())
    csv(tmp_path / "b.csv", rows()[:0])
    csv(tmp_path / "test.csv", rows()[:0])
    data = read(tmp_path)
    assert "b has a header and no rows, and no agent is its own" in doubts(data)
    assert "test has a header and no rows, so a fifth of the other rows is held out" in doubts(data)
    assert len(data.test_labels) == N // 5


# ------------------------------------------------------------------ doubts


NUMBERS, WORDS, LATER = ["0", "1"], ["no", "yes"], ["1", "2"]
INCOMES, DOTTED = ["<=50K", ">50K"], ["<=50K.", ">50K."]


@pytest.mark.parametrize(
    ("files", "doubt"),
    [
        (
            {"bern": NUMBERS, "graz": WORDS},
            "the classes '0', '1' in 'bern' alone and 'no', 'yes' in 'graz' alone",
        ),
        ({"bern": NUMBERS, "graz": LATER}, "are 3, and no site has more than two"),
        (
            {"bern": INCOMES, "graz": INCOMES, "test": DOTTED},
            "the classes '<=50K.', '>50K.' of test are in no other file",
        ),
        ({"bern": NUMBERS, "graz": NUMBERS, "test": NUMBERS}, ""),
        ({"bern": ["0"], "graz": ["1"], "wien": ["2"]}, ""),
    ],
)
def test_classes_that_part_along_files_are_doubted(
    tmp_path: Path, files: dict[str, list[str]], doubt: str
) -> None:
    for at, (name, classes) in enumerate(files.items()):
        own = np.random.default_rng(at).normal(size=N)
        csv(tmp_path / f"{name}.csv", rows(x=own, label=np.resize(classes, N)))
    found = read(tmp_path).doubts
    assert doubt in (found[0].text if found else ""), found
    assert bool(found) == bool(doubt)


def test_a_record_in_place_of_names_is_doubted(tmp_path: Path) -> None:
    table = rows(sex=np.resize(["f", "m"], N), age=np.arange(N) % 50 + 20)
    path = csv(tmp_path / "a.csv", table, header=False)
    header = path.read_text().splitlines()[0].split(",")
    assert "the first row may be a record" in doubts(read(path, label_column=header[1]))
    named = csv(tmp_path / "b.csv", table.rename(columns={"x": "0", "age": "1"}))
    assert not read(named, label_column="label").doubts, "columns counted by pandas"
    died = np.resize(["died", "survived", "survived"], N)
    good = csv(tmp_path / "c.csv", table.drop(columns="label").assign(died=died))
    assert "may be a record" not in doubts(read(good, label_column="died"))
    texts = rows(sex=table.sex, ward=np.resize(["a", "b"], N)).drop(columns=["x", "label"])
    good = csv(tmp_path / "d.csv", texts.assign(died=died))
    assert "may be a record" not in doubts(read(good, label_column="died")), "texts alone"


def test_a_year_for_each_row_is_rather_a_quantity(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", rows(YEAR=1947 + np.arange(N) % 16).iloc[:16])
    text = doubts(read(path, label_column="YEAR", drop_columns="label"))
    assert "YEAR: 16 classes in 16 rows, one of 1: if it is a quantity" in text
    keys = {"dataset": "csv", "data-path": str(path), "label-column": "YEAR"}
    said = privet("run", "loss=ridge", "drop-columns=label", *(f"{k}={v}" for k, v in keys.items()))
    assert said.code == 2
    assert 'a schema with a range, "YEAR" = [1947, 1962], makes it' in " ".join(said.err.split())


def test_a_time_in_hospital_is_no_number_of_a_place(tmp_path: Path) -> None:
    days = rows(time_in_hospital=np.arange(N) % 13 + 1, hospital=np.arange(N) % 7)
    found = doubts(read(csv(tmp_path / "a.csv", days)))
    assert "column hospital: 7 numbers that name places" in found
    assert "time_in_hospital" not in found


def test_the_time_to_an_event_is_doubted_as_a_feature(tmp_path: Path) -> None:
    table = rows(time=np.arange(N) * 7 % 101 + 1, status=np.resize([1, 2], N))
    path = csv(tmp_path / "lung.csv", table.drop(columns="label"))
    assert "for survival take Cox regression or Kaplan-Meier" in doubts(
        read(path, label_column="status")
    )
    assert "for survival take Cox regression or Kaplan-Meier" in doubts(
        read(path, label_column="time")
    )


def test_a_run_says_what_is_doubtful(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = visits(tmp_path)
    keys = {"dataset": "csv", "num-agents": 2, "num-server-rounds": 1, "baseline-seconds": 0.0}
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        run_inline({**keys, "data-path": str(path), "output-dir": str(tmp_path)}, "run")
    assert sum("30 ids in 120 rows" in one.getMessage() for one in caplog.records) == 1


# ------------------------------------------------------------------ new rows


def test_numbers_far_outside_of_the_training_are_marked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    age = np.random.default_rng(8).integers(20, 91, N)
    age[:2] = 20, 90
    path = csv(tmp_path / "a.csv", rows(age=age))
    keys = {"dataset": "csv", "num-agents": 2, "num-server-rounds": 2, "baseline-seconds": 0.0}
    run = run_inline({**keys, "data-path": str(path), "output-dir": str(tmp_path)}, "run").folder
    new = pd.DataFrame({"x": [0.0, 0.0, 9.0], "age": [50, 120, 600]})
    model = load_model(run)
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        marked = model.predicted(new)["extrapolated"]
    assert marked.tolist() == ["", "", "x;age"]
    assert "column age: row 3: 600 is far outside of the training's range [20, 90]" in caplog.text
    assert "extrapolated" not in model.predicted(new[:2])
    said = privet("predict", run, csv(tmp_path / "new.csv", new))
    assert said.out.splitlines()[3].endswith(",x;age")


def test_codes_of_missing_values_are_marked_in_new_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also those near the training's range: negative numbers, and 0 below numbers well above."""
    draw = np.random.default_rng(8)
    own = {"glucose": np.linspace(44, 199, N).round(), "stay": np.resize(np.arange(1, 31), N)}
    own["change"] = draw.normal(0, 3, N).round(1)
    own["q"] = np.resize(["agree", "neutral", ""], N)
    path = csv(tmp_path / "a.csv", rows(**own))
    keys = {"dataset": "csv", "num-agents": 2, "num-server-rounds": 2, "baseline-seconds": 0.0}
    keys |= {"data-path": str(path), "output-dir": str(tmp_path), "missing": "category"}
    model = load_model(run_inline(keys, "run").folder)
    usual = {"x": 0.0, "glucose": 120, "stay": 3, "change": 1.0, "q": "agree"}
    odd = [{"glucose": -9}, {"glucose": 0, "stay": 0}, {"stay": -1, "change": -4.0}, {"q": "agre"}]
    new = pd.DataFrame([usual, *({**usual, **one} for one in odd)])
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        marked = model.predicted(new, unknown="missing")["extrapolated"]
    assert marked.tolist() == ["", "glucose", "glucose", "stay", "q"]
    assert "column glucose: row 2 and 1 more rows: -9 is far outside of the" in caplog.text
    assert "column q: row 5: agre is unknown, and read as a missing value" in caplog.text
    with pytest.raises(DataError, match="column q: row 5: 'agre' is not one of the categories"):
        model.predicted(new)


def test_a_code_between_those_of_the_training_is_marked_in_new_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draw = np.random.default_rng(8)
    own = {"thal": draw.choice([3, 6, 7], N), "visits": draw.poisson(2, N)}
    path = csv(tmp_path / "a.csv", rows(**own))
    keys = {"dataset": "csv", "num-agents": 2, "num-server-rounds": 2, "baseline-seconds": 0.0}
    model = load_model(
        run_inline({**keys, "data-path": str(path), "output-dir": str(tmp_path)}, "run").folder
    )
    new = pd.DataFrame({"x": 0.0, "thal": [3, 7, 5, 8], "visits": [0, 1, 2, 3]})
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        marked = model.predicted(new)["extrapolated"]
    assert marked.tolist() == ["", "", "thal", "thal"]
    said = "column thal: row 3 and 1 more rows: 5 is none of the training's codes 3, 6, 7, and is"
    assert said in caplog.text
