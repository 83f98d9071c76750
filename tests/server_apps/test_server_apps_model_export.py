"""Exports: what other programs make of raw rows is what the model itself predicts."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

from privet.analyses.frame import AnalysisError
from privet.cli.predict import _of_regression
from privet.core import ConfigError, PrivetError
from privet.server_apps.model_export import export_model, export_regression, to_sklearn
from privet.server_apps.model_file import ABOUT, FORMAT, Model, load_model, write_model
from privet.server_apps.regression_file import load_regression
from privet.sim.inline import run_inline
from support.analysis_runs import config
from support.analysis_sites import TABLES
from support.patients import patients, run


@pytest.mark.parametrize(
    ("gaps", "keys"),
    [
        (False, {}),
        (True, {"missing": "mean"}),
        (True, {"missing": "category"}),
        (False, {"loss": "one-class-logistic"}),
        (False, {"intercept": "no"}),
    ],
)
def test_a_pipeline_predicts_from_raw_rows(
    tmp_path: Path, gaps: bool, keys: dict[str, Any]
) -> None:
    frame = patients(gaps=gaps)
    model = run(tmp_path, frame, **keys)
    pipeline = to_sklearn(model)
    assert (pipeline.predict(frame) == model.predict(frame)).all()
    assert np.abs(pipeline.decision_function(frame) - model.scores(frame)).max() < 1e-12
    if model.has_probabilities:
        gap = pipeline.predict_proba(frame) - model.predict_proba(frame)
        assert np.abs(gap).max() < 1e-12


def test_two_classes_and_values(tmp_path: Path) -> None:
    frame = patients()
    two = frame.assign(outcome=np.where(frame["age"] > 50, "old", "young"))
    model = run(tmp_path, two)
    pipeline = to_sklearn(model)
    assert np.abs(pipeline.predict_proba(two) - model.predict_proba(two)).max() < 1e-12
    regression = run(tmp_path, frame.drop(columns="outcome"), label_column="dose")
    gap = to_sklearn(regression).predict(frame) - regression.predict(frame)
    assert np.abs(gap).max() < 1e-12


def test_row_norm_leaves_classes_alone(tmp_path: Path) -> None:
    frame = patients()
    model = run(tmp_path, frame, row_norm=1.0)
    pipeline = to_sklearn(model)
    assert (pipeline.predict(frame) == model.predict(frame)).all()
    assert not hasattr(pipeline, "predict_proba")
    regression = run(tmp_path, frame.drop(columns="outcome"), label_column="dose", row_norm=1.0)
    with pytest.raises(ConfigError, match="row-norm = 1 scales each row"):
        to_sklearn(regression)


def test_files_are_read_by_their_own_libraries(tmp_path: Path) -> None:
    from safetensors.numpy import load_file
    from skops.io import get_untrusted_types, load

    frame = patients()
    model = run(tmp_path, frame)
    expected = model.predict_proba(frame)
    skops = export_model(model, "sklearn")
    assert skops == model.path.with_name("model.skops")
    assert get_untrusted_types(file=skops) == []
    assert np.abs(load(skops).predict_proba(frame) - expected).max() < 1e-12
    gaps = run(tmp_path, patients(gaps=True), missing="mean")
    filled = export_model(gaps, "sklearn", tmp_path / "filled.skops")
    asks = get_untrusted_types(file=filled)
    assert set(asks) <= {"numpy.dtype"}  # as the page says
    assert (
        np.abs(load(filled, trusted=asks).predict_proba(frame) - gaps.predict_proba(frame)).max()
        < 1e-12
    )
    pickled = joblib.load(export_model(model, "joblib", tmp_path / "own.joblib"))
    assert np.abs(pickled.predict_proba(frame) - expected).max() < 1e-12
    tensors = load_file(export_model(model, "safetensors"))
    assert {name: array.tobytes() for name, array in tensors.items()} == {
        name: array.tobytes() for name, array in model.arrays.items()
    }


@pytest.mark.parametrize("task", ["classes", "values"])
def test_onnx_predicts_in_float32(tmp_path: Path, task: str) -> None:
    import onnxruntime

    frame = patients()
    if task == "values":
        frame = frame.drop(columns="outcome")
        model = run(tmp_path, frame, label_column="dose")
    else:
        model = run(tmp_path, frame)
    session = onnxruntime.InferenceSession(export_model(model, "onnx").read_bytes())
    inputs = {
        name: frame[[name]].to_numpy(np.float32 if frame[name].dtype.kind == "f" else object)
        for name in model.columns
    }
    found = session.run(None, inputs)
    if task == "values":
        assert np.abs(found[0][:, 0] - model.predict(frame)).max() < 1e-4
    else:
        assert (found[0] == model.predict(frame)).all()
        assert np.abs(found[1] - model.predict_proba(frame)).max() < 1e-5


def test_onnx_has_no_missing_texts(tmp_path: Path) -> None:
    model = run(tmp_path, patients(gaps=True), missing="mean")
    with pytest.raises(ConfigError, match="column ward may be missing"):
        export_model(model, "onnx")


def test_bundled_data_without_names(tmp_path: Path) -> None:
    config = {"dataset": "synthetic", "num-agents": 2, "num-server-rounds": 2}
    model = load_model(run_inline({**config, "output-dir": str(tmp_path)}, "run").folder)
    rows = np.random.default_rng(0).normal(size=(9, 5))
    gap = to_sklearn(model).predict_proba(rows) - model.predict_proba(rows)
    assert np.abs(gap).max() < 1e-12


def own_model(tmp_path: Path) -> Model:
    privacy = {"private": False, "reason": "not private"}
    about = {"format": FORMAT, "task": "own", "run": {}, "privacy": privacy}
    write_model(tmp_path / "model.npz", {"0.weight": np.ones((2, 3), np.float32)}, about)
    return load_model(tmp_path)


def test_a_model_of_ones_own_is_arrays(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    model = own_model(tmp_path)
    assert load_file(export_model(model, "safetensors"))["0.weight"].shape == (2, 3)
    for to in ("sklearn", "joblib", "onnx"):
        with pytest.raises(ConfigError, match=r"a model of your own: put its arrays \(0.weight\)"):
            export_model(model, to)


@pytest.mark.parametrize(
    ("to", "module"),
    [("sklearn", "skops.io"), ("onnx", "skl2onnx"), ("safetensors", "safetensors.numpy")],
)
def test_a_missing_extra_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, module: str
) -> None:
    model = run(tmp_path, patients())
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"is not installed: pip install 'flwr-privet\[export\]'"):
        export_model(model, to)


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    model = own_model(tmp_path)
    with pytest.raises(ConfigError, match=r"--to 'sklear': choose one of .*did you mean 'sklearn'"):
        export_model(model, "sklear")
    with pytest.raises(ConfigError, match="that is the model itself"):
        export_model(model, "safetensors", model.path)
    assert json.loads(str(np.load(model.path)[ABOUT]))["format"] == FORMAT


@pytest.mark.parametrize(("to", "name"), [("sklearn", "model.skops"), ("joblib", "model.joblib")])
def test_a_regression_is_exported_as_its_pipeline(tmp_path: Path, to: str, name: str) -> None:
    import pandas as pd
    from skops.io import get_untrusted_types, load

    formula = "died ~ age*sex + rcs(bmi, 20, 25, 30) + log(crp) + smoker"
    run_inline(config(tmp_path, "glm", formula=formula), "run")
    folder = tmp_path / "runs" / "run"
    path = export_regression(folder, to)
    assert path == folder / name
    if to == "sklearn":
        foreign = get_untrusted_types(file=path)
        assert all(re.match(r"scipy\.|numpy\.", one) for one in foreign)
        pipeline = load(path, trusted=foreign)
    else:
        pipeline = joblib.load(path)
    rows = pd.read_csv(TABLES / "glm-binomial-1.csv").dropna()
    expected = load_regression(folder).predict(rows)["mean"]
    np.testing.assert_allclose(pipeline.predict_proba(rows)[:, 1], expected, rtol=1e-9)


def test_a_format_that_a_regression_has_not_is_refused(tmp_path: Path) -> None:
    run_inline(config(tmp_path, "cox"), "cox")
    run_inline(config(tmp_path, "glm"), "glm")
    with pytest.raises(ConfigError, match="no Cox model"):
        export_regression(tmp_path / "runs" / "cox", "sklearn")
    with pytest.raises(ConfigError, match="sklearn or joblib; its coefficients are in table"):
        export_regression(tmp_path / "runs" / "glm", "onnx")


def _entries(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of a table's entries, two deep."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, one in inner:
        yield (*path, key)
        if isinstance(one, dict | list) and len(path) < 2:
            yield from _entries(one, (*path, key))


@pytest.mark.parametrize("name", ["glm", "cox"])
def test_a_damaged_table_is_one_line_at_every_entry(name: str, tmp_path: Path) -> None:
    """Whatever stands in it: predictions and exports may come from somebody else's file."""
    run_inline(config(tmp_path, name), "run")
    folder = tmp_path / "runs" / "run"
    file = folder / "table.json"
    whole = json.loads(file.read_bytes())
    rows = next(iter(sorted(TABLES.glob(f"{name}*.csv"))))
    refused: list[str] = []
    for path in _entries(whole):
        for other in (None, "x", [[1, 2], [3]]):
            table = json.loads(json.dumps(whole))
            held: Any = table
            for key in path[:-1]:
                held = held[key]
            held[path[-1]] = other
            file.write_text(json.dumps(table))
            for used in (
                lambda: _of_regression(folder, rows, "refuse", []),
                lambda: export_regression(folder, "joblib"),
            ):
                with warnings.catch_warnings(action="ignore"):
                    try:
                        used()
                    except (PrivetError, AnalysisError) as error:
                        refused.append(str(error))
    assert len(refused) > 60
    assert not any("\n" in line for line in refused)
