"""The model of a run for other programs: scikit-learn, safetensors, ONNX."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from privet.analyses.frame import AnalysisError
from privet.analyses.glm_result import GlmResult
from privet.core import ConfigError
from privet.core.errors import did_you_mean
from privet.core.files import write_named
from privet.data.dataset import FloatArray
from privet.data.source_column import SourceColumn

from .model_file import Model
from .regression_file import load_regression, read_whole
from .run_folder import TABLE

NEEDED = "pip install 'flwr-privet[export]'"


def to_sklearn(model: Model) -> Any:
    """Return a fitted scikit-learn pipeline that predicts from raw rows as the model does.

    Its input is a DataFrame with `Model.columns`, categories as texts; where the model has no
    encoding, an array of features. Scaling is folded into ``coef_`` and ``intercept_``: of a column
    with weight w, ``w (x - origin) / unit = (w / unit) x - w origin / unit``. Texts become one-hot
    codes with a coefficient for each category; missing numbers what they were in the training,
    missing texts a category. The last step is a LogisticRegression or LinearRegression, and where
    the loss gives no probabilities, or ``row-norm`` changes them, a LinearSVC, which has the same
    classes. Numbers outside of a schema's range are not refused.

    Raises
    ------
    ConfigError
        For a model of the user's own; a regression with ``row-norm``, which is not linear; where
        pandas is missing.
    """
    from sklearn.pipeline import Pipeline

    weights = model.weights.astype(np.float64)
    if model.about["task"] == "regression" and model.about["row-norm"]:
        raise ConfigError(
            f"{model.path}: row-norm = {model.about['row-norm']:g} scales each row by its norm, "
            "which scikit-learn's linear models cannot: predict with privet"
        )
    bias = weights[-1] if model.about["intercept"] else np.zeros(weights.shape[1])
    weights = weights[: model.about["features"]]
    if model.encoding is None:
        return Pipeline([("model", _linear(model, weights, bias))])
    encoder, coef, bias = _encoder(model, weights, bias)
    return Pipeline([("columns", encoder), ("model", _linear(model, coef, bias))])


def _encoder(model: Model, weights: FloatArray, bias: FloatArray) -> tuple[Any, Any, Any]:
    """Return a fitted ColumnTransformer, and the weights of what comes out of it."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    with _extra("pandas"):
        import pandas as pd
    encoding, at = model.encoding, 0
    steps: list[Any] = []
    coef: list[FloatArray] = []
    assert encoding is not None
    samples: dict[str, Any] = {}
    for column in encoding.columns:
        own = slice(at, at + column.width)
        w, origin, unit, filling = (
            part[own] for part in (weights, encoding.origin, encoding.unit, encoding.filling)
        )
        at += column.width
        optional = column.name in encoding.optional
        step: Any = "passthrough"
        if column.categories:
            known: list[Any] = [*column.categories, *([None, np.nan] if optional else [])]
            step = OneHotEncoder(categories=[known], sparse_output=False)
            coef.append(_of_categories(column, w, filling, optional))
            samples[column.name] = pd.Series(known, dtype=object)
        else:
            if optional:
                value = float(origin[0] + unit[0] * filling[0])
                step = SimpleImputer(
                    strategy="constant", fill_value=value, add_indicator=column.gap
                )
            samples[column.name] = pd.Series([0.0, np.nan if optional else 0.0])
            coef.append(np.vstack([w[:1] / unit[0], w[1:]]))
            bias = bias - w[0] * origin[0] / unit[0]
        steps.append((f"column {len(steps)}", step, [column.name]))
    rows = max(map(len, samples.values()))
    frame = pd.DataFrame(
        {name: np.resize(np.array(values, object), rows) for name, values in samples.items()}
    )
    for column in encoding.columns:
        if not column.categories:
            frame[column.name] = frame[column.name].astype(float)
    encoder = ColumnTransformer(steps).fit(frame)
    return encoder, np.vstack(coef), bias


def _of_categories(
    column: SourceColumn, w: FloatArray, filling: FloatArray, optional: bool
) -> FloatArray:
    """Return the weights of a one-hot code with all categories, then None and NaN."""
    count, outputs = len(column.categories), w.shape[1]
    rows = [np.zeros((1, outputs)), w[: count - 1]]
    if optional:
        missing = filling @ w + (w[-1] if column.gap else 0.0)
        rows.append(np.tile(missing, (2, 1)))
    return np.vstack(rows)


def _linear(model: Model, coef: FloatArray, bias: FloatArray) -> Any:
    """Return a linear model of scikit-learn with these weights (d, K) and intercepts (K,)."""
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.svm import LinearSVC

    if model.about["task"] == "regression":
        origin, unit = model.encoding.target if model.encoding else (0.0, 1.0)
        done = LinearRegression()
        done.coef_, done.intercept_ = coef[:, 0] * unit, float(bias[0] * unit + origin)
    else:
        certain = model.has_probabilities and not model.about["row-norm"]
        done = LogisticRegression() if certain else LinearSVC()
        if coef.shape[1] == 2:
            coef, bias = coef[:, 1:] - coef[:, :1], bias[1:] - bias[:1]
        done.coef_, done.intercept_ = np.ascontiguousarray(coef.T), bias
        done.classes_ = model.classes
        done.n_iter_ = np.array([0])
    done.n_features_in_ = len(coef)
    return done


@contextmanager
def _extra(name: str) -> Any:
    try:
        yield
    except ImportError:
        raise ConfigError(f"export: {name} is not installed: {NEEDED}") from None


def _skops(pipeline: Any) -> bytes:
    with _extra("skops"):
        from skops.io import dumps
    data: bytes = dumps(pipeline)
    return data


def _joblib(pipeline: Any) -> bytes:
    import io

    import joblib

    file = io.BytesIO()
    joblib.dump(pipeline, file)
    return file.getvalue()


def _safetensors(model: Model) -> bytes:
    with _extra("safetensors"):
        from safetensors.numpy import save
    arrays = {name: np.ascontiguousarray(array) for name, array in model.arrays.items()}
    data: bytes = save(arrays, metadata={"about": json.dumps(model.about)})
    return data


def _onnx(model: Model) -> bytes:
    pipeline = to_sklearn(model)
    with _extra("skl2onnx"):
        from skl2onnx import convert_sklearn
        from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    if model.encoding is None:
        inputs = [("features", FloatTensorType([None, model.about["features"]]))]
    else:
        for column in model.encoding.columns:
            if column.gap or (column.categories and column.name in model.encoding.optional):
                raise ConfigError(
                    f"{model.path}: column {column.name} may be missing, which ONNX has no code "
                    "for: export to sklearn, or predict with privet"
                )
        inputs = [
            (column.name, (StringTensorType if column.categories else FloatTensorType)([None, 1]))
            for column in model.encoding.columns
        ]
    options = {}
    last = pipeline[-1]
    if hasattr(last, "predict_proba"):
        options = {id(last): {"zipmap": False}}
    data: bytes = convert_sklearn(
        pipeline, initial_types=inputs, options=options
    ).SerializeToString()
    return data


PIPELINES: dict[str, tuple[str, Callable[[Any], bytes]]] = {
    "sklearn": (".skops", _skops),
    "joblib": (".joblib", _joblib),
}
"""Suffix and writer of each format of a scikit-learn pipeline."""
_ARRAYS: dict[str, tuple[str, Callable[[Model], bytes]]] = {
    "safetensors": (".safetensors", _safetensors),
    "onnx": (".onnx", _onnx),
}
FORMATS = (*PIPELINES, *_ARRAYS)
"""The formats of a trained model."""


def export_model(model: Model, to: str, out: Path | None = None) -> Path:
    """Write a model in one of `FORMATS`, beside its own file if ``out`` is None; return the path.

    Raises
    ------
    ConfigError
        Another format, a missing package (with the command that installs it), a model that the
        format has no room for, or a file that cannot be written: one line.
    """
    if to not in FORMATS:
        near = did_you_mean(to, FORMATS)
        raise ConfigError(f"--to {to!r}: choose one of {', '.join(FORMATS)}{near}")
    if to in PIPELINES:
        suffix, write = PIPELINES[to]
        return _written(model.path, suffix, out, lambda: write(to_sklearn(model)))
    suffix, make = _ARRAYS[to]
    return _written(model.path, suffix, out, lambda: make(model))


def export_regression(run: Path, to: str, out: Path | None = None) -> Path:
    """Write the table of a ``glm`` run as a scikit-learn pipeline; return the path.

    Parameters
    ----------
    run : Path
        A run folder, or its ``table.json``, beside which ``model.skops`` or ``model.joblib`` is
        written if ``out`` is None.

    Raises
    ------
    ConfigError
        As `export_model`; for a run of another analysis too.
    """
    result = load_regression(run)
    if not isinstance(result, GlmResult):
        raise ConfigError(f"{run}: scikit-learn has no Cox model: predict with privet")
    if to not in PIPELINES:
        raise ConfigError(
            f"--to {to!r}: a regression is exported to {' or '.join(PIPELINES)}; its coefficients "
            f"are in {TABLE}"
        )
    suffix, write = PIPELINES[to]
    beside = run / "model" if run.is_dir() else run.with_name("model")
    try:
        with read_whole(run):
            pipeline = result.to_sklearn()
        return _written(beside, suffix, out, lambda: write(pipeline))
    except AnalysisError as error:
        raise ConfigError(f"export: {error}") from None


def _written(beside: Path, suffix: str, out: Path | None, make: Callable[[], bytes]) -> Path:
    """Write what is made to a file, beside the model's own if ``out`` is None; return its path."""
    path = beside.with_suffix(suffix) if out is None else out
    if path.resolve() == beside.resolve():
        raise ConfigError(f"--out {path}: that is the model itself")
    content = make()
    try:
        write_named(path, content)
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror}") from None
    return path
