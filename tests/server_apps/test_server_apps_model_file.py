"""The file of a model: predictions as scikit-learn's own pipelines make them, privacy, errors."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from privet.core import ConfigError
from privet.core.files import read_npz, write_npz
from privet.data import DataError, federation_from_config
from privet.server_apps import read_config
from privet.server_apps.model_file import ABOUT, load_model
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline
from support.patients import WARDS, patients, run


def encoder() -> ColumnTransformer:
    """The same encoding by scikit-learn, of the means over known values where some are missing."""
    numbers = make_pipeline(StandardScaler(), SimpleImputer(strategy="mean"))
    return ColumnTransformer(
        [
            ("numbers", numbers, ["age", "dose", "year"]),
            ("ward", OneHotEncoder(drop="first", sparse_output=False), ["ward"]),
            ("code", OneHotEncoder(drop="first", sparse_output=False), ["code"]),
        ]
    )


def test_predictions_are_those_of_a_pipeline_built_by_hand(tmp_path: Path) -> None:
    frame = patients()
    model = run(tmp_path, frame)
    weights = np.load(model.path)["x"].reshape(-1, 3)
    features = encoder().fit_transform(frame)
    oracle = LogisticRegression()
    oracle.coef_, oracle.intercept_ = weights[:-1].T, weights[-1]
    oracle.classes_ = np.array(["mild", "none", "severe"])
    assert np.abs(model.predict_proba(frame) - oracle.predict_proba(features)).max() < 1e-12
    assert (model.predict(frame) == oracle.predict(features)).all()
    assert list(model.classes) == ["mild", "none", "severe"]
    assert model.columns == ["age", "dose", "year", "ward", "site", "code"]
    assert (model.predict(frame[model.columns]) == model.predict(frame)).all()


def test_missing_values_become_what_they_became_in_the_training(tmp_path: Path) -> None:
    frame = patients(gaps=True)
    model = run(tmp_path, frame, missing="mean")
    numbers = make_pipeline(StandardScaler(), SimpleImputer()).fit_transform(
        frame[["age", "dose", "year"]]
    )
    ward = pd.get_dummies(frame["ward"]).astype(float)[WARDS[1:]]
    ward[frame["ward"].isna()] = np.nan
    rest = SimpleImputer().fit_transform(ward)
    code = (frame[["code"]] == "B").to_numpy(float)
    features = np.hstack([numbers, rest, code, np.ones((len(frame), 1))])
    expected = features @ np.load(model.path)["x"].reshape(-1, 3)
    assert np.abs(model.scores(frame) - expected).max() < 1e-12


def test_a_gap_is_a_column_of_its_own(tmp_path: Path) -> None:
    frame = patients(gaps=True)
    model = run(tmp_path, frame, missing="category")
    age = StandardScaler().fit_transform(frame[["age"]])
    gap = frame["age"].isna().to_numpy(float)[:, None]
    others = StandardScaler().fit_transform(frame[["dose", "year"]])
    ward = np.column_stack([frame["ward"] == one for one in WARDS[1:]])
    texts = [ward, frame["ward"].isna(), frame["code"] == "B", np.ones(len(frame))]
    features = np.column_stack([np.nan_to_num(age), gap, others, *texts])
    expected = features.astype(float) @ np.load(model.path)["x"].reshape(-1, 3)
    assert np.abs(model.scores(frame) - expected).max() < 1e-12
    with pytest.raises(DataError, match="column dose: row 1: no value"):
        model.predict(frame.assign(dose=None))


@pytest.mark.parametrize("keys", [{}, {"dtype": "float32"}, {"row_norm": 1.0}])
def test_the_model_sees_what_the_training_saw(tmp_path: Path, keys: dict[str, Any]) -> None:
    frame = patients()
    model = run(tmp_path, frame, **keys)
    config = json.loads((model.path.parent / "summary.json").read_text())["config"]
    federation = federation_from_config(read_config(config), 3)
    rows = federation.held_out.features
    assert model.features(frame).tobytes() == rows.tobytes()


def test_a_regression_has_the_units_of_its_target(tmp_path: Path) -> None:
    frame = patients().drop(columns="outcome")
    model = run(tmp_path, frame, label_column="dose")
    target = StandardScaler().fit(frame[["dose"]])
    scores = model.features(frame) @ np.load(model.path)["x"]
    expected = target.inverse_transform(scores[:, None])[:, 0]
    assert np.abs(model.predict(frame) - expected).max() < 1e-12
    with pytest.raises(ConfigError, match="ridge has no probabilities"):
        model.predict_proba(frame)


def test_rows_come_in_many_forms(tmp_path: Path) -> None:
    frame = patients()
    model = run(tmp_path, frame)
    expected = model.scores(frame)
    inputs = frame[list(model.columns)]
    for rows in (
        inputs.to_numpy(dtype=object),
        frame.to_dict("records"),
        frame.iloc[:, ::-1],
        frame.assign(code=frame["code"].astype("category")),
    ):
        assert (model.scores(rows) == expected).all()
    first = frame.iloc[0].to_dict()  # whose score is summed in another order
    assert (model.features(first) == model.features(frame)[:1]).all()
    assert model.scores(first) == pytest.approx(expected[:1], rel=1e-12)
    assert model.predict(frame.iloc[:0]).shape == (0,)


def test_labels_that_are_numbers_stay_numbers(tmp_path: Path) -> None:
    frame = patients()
    numbered = run(tmp_path, frame.assign(outcome=(frame["outcome"] == "none").astype(int)))
    assert numbered.predict(frame).dtype.kind == "i"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"age": None}, "column age: row 1: no value, and the model was trained without missing"),
        ({"age": "old"}, "column age: row 1: 'old' is not a number"),
        ({"age": math.inf}, "column age: row 1: inf is outside of the range of finite numbers"),
        ({"ward": "south"}, "column ward: row 1: 'south' is not one of the categories 'east', 'no"),
        ({"site": "other"}, "column site: row 1: 'other' is not one of the categories 'main'"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path: Path, change: dict[str, Any], line: str) -> None:
    frame = patients()
    model = run(tmp_path, frame)
    with pytest.raises(DataError) as error:
        model.predict(frame.assign(**change))
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    frame = patients()
    model = run(tmp_path, frame)
    near = "no column 'ward', which the model was trained on; did you mean 'Ward'"
    with pytest.raises(DataError, match=near):
        model.predict(frame.rename(columns={"ward": "Ward"}))
    with pytest.raises(DataError, match="row 1: no column 'ward'"):
        model.predict([{"age": 1.0, "dose": 1.0, "year": 1.0}])
    with pytest.raises(DataError, match="rows of 6 columns"):
        model.predict(np.zeros((2, 5)))


def test_an_unknown_value_may_count_as_missing(tmp_path: Path) -> None:
    frame = patients(gaps=True)
    model = run(tmp_path, frame, missing="mean")
    south, none = (frame.assign(ward=ward) for ward in ("south", None))
    assert (model.scores(south, unknown="missing") == model.scores(none)).all()
    with pytest.raises(DataError, match="; with --unknown missing it counts as a missing value"):
        model.predict(south)
    whole = run(tmp_path, patients())
    with pytest.raises(DataError, match="'south' is unknown, and the model was trained without"):
        whole.predict(patients().assign(ward="south"), unknown="missing")


def test_truth_values_are_the_texts_of_a_file(tmp_path: Path) -> None:
    frame = patients()
    frame["smoker"] = frame["age"] > 50
    model = run(tmp_path, frame)  # the file has True and False
    texts = frame.assign(smoker=frame["smoker"].map({True: "True", False: "False"}))
    assert (model.scores(frame) == model.scores(texts)).all()


def test_categories_may_be_numbers_with_zeros_before_them(tmp_path: Path) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text('[columns]\ncode = ["01", "7"]\noutcome = ["none", "mild", "severe"]\n')
    frame = patients()
    frame["code"] = frame["code"].map({"A": "01", "B": "7"})
    model = run(tmp_path, frame, schema=str(schema))
    assert model.features(frame)[:, 0].tolist() == (frame["code"] == "7").astype(float).tolist()
    assert (model.features([{"code": "7"}])[:, 0] == [1.0]).all()
    assert (model.features([{"code": 7}])[:, 0] == [1.0]).all()
    with pytest.raises(DataError, match="column code: row 2: '8' is not one of the categories"):
        model.predict([{"code": "01"}, {"code": "8"}])


# ------------------------------------------------------------------ privacy

SCHEMA = """[columns]
age = [0, 120]
dose = [-10, 20]
ward = ["east", "north", "south", "west"]
outcome = ["none", "mild", "severe"]
"""
NOISE = {"local-solver": "noisy-gd", "clip": 1.0, "row-norm": 2.0, "target-epsilon": 4.0}


def test_the_file_of_a_private_run_holds_what_the_schema_says(tmp_path: Path) -> None:
    """Two tables that agree in the schema alone leave the same text."""
    schema = tmp_path / "schema.toml"
    schema.write_text(SCHEMA)
    texts = []
    for name, frame in (("a", patients()), ("b", patients().iloc[::-1].assign(dose=1.5))):
        (tmp_path / name).mkdir()
        model = run(tmp_path / name, frame, schema=str(schema), **NOISE)
        texts.append(json.dumps(model.about))
    about = json.loads(texts[0])
    assert texts[0] == texts[1]
    assert about["privacy"]["epsilon"] == pytest.approx(4.0, rel=0.01)
    assert about["privacy"]["relation"] == "replace-one"
    assert about["encoding"]["columns"][0] == {
        "name": "age", "origin": 60.0, "unit": 60.0, "range": [0, 120],
    }  # fmt: skip
    assert "south" in texts[0]
    assert str(tmp_path) not in texts[0]
    assert "rows" not in texts[0]
    with pytest.raises(DataError, match=r"column age: row 1: 130.0 is outside of the range \[0, 1"):
        model.predict(patients().assign(age=130.0))


def test_an_encoding_from_records_is_left_out_of_a_private_run(tmp_path: Path) -> None:
    """In a deployment, where the coordinator's own table may have been read without a schema."""
    from privet.server_apps.build import build_evaluation, build_strategy
    from privet.server_apps.model_file import about_run

    public = run(tmp_path, patients())
    config = json.loads((public.path.parent / "summary.json").read_text())["config"]
    resolved = read_config({**config, **NOISE})
    strategy = build_strategy(resolved)
    federation = build_evaluation(resolved).federation
    grid: Any = InlineGrid(None, 3)
    about = about_run(strategy, resolved, federation, "run", grid)
    text = json.dumps(about)
    assert about["encoding"] is None
    for word in ("age", "ward", "main", "severe", "dose"):
        assert f'"{word}"' not in text
    assert "train with a public schema" in about["withheld"]
    file = tmp_path / "model.npz"
    write_npz(file, {"x": read_npz(public.path)["x"], ABOUT: np.array(text)})
    model = load_model(file)
    assert model.predict(np.zeros((2, 6))).tolist() == [model.weights[-1].argmax()] * 2
    with pytest.raises(DataError, match="rows of 6 finite features, as an array; columns, scaling"):
        model.predict(patients())


# ------------------------------------------------------------------ files


def test_files_of_other_formats_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "model.npz"
    with pytest.raises(ConfigError, match="No such file"):
        load_model(tmp_path)
    write_npz(file, {"x": np.zeros(3)})
    with pytest.raises(ConfigError, match=r"of an older format.*run it again"):
        load_model(tmp_path)
    about = json.dumps({"format": 99, "library-version": "9.1"})
    write_npz(file, {"x": np.zeros(3), ABOUT: np.array(about)})
    with pytest.raises(ConfigError, match=r"format 99, this version reads 1.*flwr-privet 9\.1"):
        load_model(file)
    write_npz(file, {"x": np.zeros(3), ABOUT: np.array("{")})
    with pytest.raises(ConfigError, match="is damaged"):
        load_model(file)
    write_npz(file, {"x": np.zeros(3), ABOUT: np.array('{"format": ' + "[" * 100_000)})
    with pytest.raises(ConfigError, match="is damaged"):
        load_model(file)
    np.savez(file, x=np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError, match="cannot be read as a model"):
        load_model(file)


def changes(value: Any) -> Iterator[Any]:
    """Yield a JSON value with each of its entries left out, or another in its place."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        others = [None, -1, "a", [], {}, 10**400]
        others += changes(value[key]) if isinstance(value[key], dict | list) else []
        for other in others:
            changed = copy.copy(value)
            changed[key] = other
            yield changed
        changed = copy.copy(value)
        del changed[key]
        yield changed


def column(place: int, **entries: Any) -> Callable[[dict[str, Any]], None]:
    return lambda about: about["encoding"]["columns"][place].update(entries)


EDITED: dict[str, Callable[[dict[str, Any]], None]] = {
    "classes of any memory": lambda about: about.update(encoding=None, classes=10**10),
    "more classes": lambda about: about.update(encoding=None, classes=4),
    "no class": lambda about: about["encoding"]["label"].update(classes=[]),
    "one class": lambda about: about["encoding"]["label"].update(classes=["0"]),
    "classes in a text": lambda about: about["encoding"]["label"].update(classes="01"),
    "negative norm": lambda about: about.update({"row-norm": -5}),
    "norm not finite": lambda about: about.update({"row-norm": math.inf}),
    "fewer features": lambda about: about.update(features=about["features"] - 1, intercept=True),
    "no name": column(0, name=None),
    "half a pair": column(0, name="\ud800"),
    "a text as range": column(0, seen=["a", 1.0]),
    "a number as category": column(0, categories=[1e308, "b"]),
    "a category too many": column(0, categories=["a", "b", "c"]),
    "two values for one column": column(0, missing=[0.0, 0.0]),
    "unit 0": column(0, unit=0),
    "unit not a number": column(0, unit=math.nan),
}


@pytest.mark.parametrize("what", EDITED)
def test_a_text_that_does_not_agree_with_itself_is_damaged(tmp_path: Path, what: str) -> None:
    """And takes no memory, whatever numbers are in it."""
    table = patients(gaps=True)
    whole = run(tmp_path, table, missing="mean")
    about = json.loads(json.dumps(whole.about))
    EDITED[what](about)
    file = tmp_path / "again.npz"
    write_npz(file, {**whole.arrays, ABOUT: np.array(json.dumps(about))})
    with pytest.raises(ConfigError, match=r"again.npz cannot be read as a model .*damaged"):
        load_model(file)


def test_a_pipe_or_device_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(ConfigError, match=f"{name}: not a regular file"):
            load_model(tmp_path / name)


def test_a_text_without_one_of_its_entries_is_damaged(tmp_path: Path) -> None:
    """Every entry left out, and every one of another type: one line, or a model that predicts."""
    whole = run(tmp_path, patients(gaps=True), missing="mean")
    file = tmp_path / "again.npz"
    arrays = dict(whole.arrays)

    said = []
    for about in changes(json.loads(json.dumps(whole.about))):
        write_npz(file, {**arrays, ABOUT: np.array(json.dumps(about))})
        try:
            model = load_model(file)
        except ConfigError as error:
            said.append(str(error))
        else:
            assert model.describe()
            assert repr(model)
            assert len(model.weights)
    assert len(said) > 50
    assert all(line.startswith(str(file)) and "\n" not in line for line in said)


@pytest.mark.parametrize("dataset", ["breast-cancer", "digits", "diabetes"])
def test_bundled_data_sets_have_columns_and_labels(tmp_path: Path, dataset: str) -> None:
    from sklearn import datasets

    table = getattr(datasets, f"load_{dataset.replace('-', '_')}")()
    config = {"dataset": dataset, "num-server-rounds": 3, "num-agents": 2, "partition": "iid"}
    finished = run_inline({**config, "output-dir": str(tmp_path)}, "run")
    model = load_model(finished.folder)
    assert model.columns == list(table.feature_names)
    federation = federation_from_config(read_config(finished.summary["config"]), 2)
    features = model.features(table.data)
    known = {row.tobytes() for row in features}
    assert all(row.tobytes() in known for row in federation.dataset.train_features)
    if dataset == "digits":
        assert (model.predict(table.data) == table.target).mean() > 0.9
    assert dataset in model.describe()
