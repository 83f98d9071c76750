"""`start-run`: the model of a finished run, at which a regression's Newton steps begin.

A method that ends at the pooled optimum without a penalty gets its table so: its coefficients, and
one or two steps of the unregularised likelihood, which bring the information. A penalised fit has
no such table, and neither has a noised one; both are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from privet.analyses.formula import quoted
from privet.analyses.frame import Frame
from privet.analyses.glm_begun import BegunModel
from privet.core import ConfigError
from privet.core.key import Config
from privet.kernel import stream
from privet.problems import BinaryLogistic, MultinomialLogistic, RidgeRegression
from privet.strategies.analyses import GLM

from .config import defaults
from .model_file import OWN, Model, load_model

KEY = "start-run"
_FAMILIES = {
    BinaryLogistic.kind: "binomial",
    MultinomialLogistic.kind: "binomial",
    RidgeRegression.kind: "gaussian",
}
_ROWS = 64
"""Rows, and as many times the features, on which the model's predictor is taken."""


def begun(config: Config) -> tuple[Config, BegunModel | None]:
    """Return a config, with the formula of the model that a regression begins at, and that model.

    Raises
    ------
    ConfigError
        For a file that is no model, and a model that has no regression table: names why.
    """
    path = str(config.get(KEY, ""))
    if not path:
        return config, None
    if config["algorithm"] != GLM.algorithm:
        raise ConfigError(f"{KEY}: of algorithm = {GLM.algorithm}, not {config['algorithm']}")
    found = load_model(path)
    model = begun_model(found, str(config["family"]))
    if not config["formula"]:
        config = Config({**config, "formula": _formula(found)})
    return config, model


def begun_model(model: Model, family: str) -> BegunModel:
    """Return a linear model of a table as what a regression of a family begins at.

    Raises
    ------
    ConfigError
        For a model that has no regression table: names why.
    """
    if why := _no_table(model, family):
        raise ConfigError(f"{KEY}: {model.path} {why}")
    rows = _rows(model)
    about = model.about["run"]
    source = f"{about['algorithm']} ({about['id']})"
    classes = tuple(model.encoding.label.categories) if model.encoding else ()
    return BegunModel(source, Frame.of(rows), _predictor(model, rows), classes)


def _no_table(model: Model, family: str) -> str:
    """Return why a model has no regression table; empty where it has."""
    about = model.about
    if about["task"] == OWN:
        return "is a model of code of its author's; a table is of the columns of a table"
    if about["privacy"]["private"]:
        return "is of a private run: standard errors of noised models are not computed"
    if about["withheld"] or model.encoding is None:
        return "does not say what its columns are: train it on dataset=csv with one schema"
    if about["row-norm"]:
        return "scaled its rows (row-norm), which is another model"
    if _FAMILIES.get(about["loss"], "") != family or len(model.classes) > 2:
        return f"minimises {about['loss']}, and family = {family}"
    if penalty := _penalty({**defaults(), **about["run"]["config"]}):
        return (
            f"is a penalised fit ({penalty}), which has no standard errors and no p-values: train "
            "it with regularizer=none"
        )
    if any(column.dates for column in model.encoding.columns):
        return "has columns of dates; give them as numbers"
    return ""


def _penalty(keys: Mapping[str, Any]) -> str:
    """Return the key of a penalty or constraint in a run's objective; empty where it has none."""
    if keys["regularizer"] != "none" and (keys["regularizer-weight"] or keys["beta"]):
        return f"regularizer = {keys['regularizer']}"
    if keys["h"] != "zero":
        return f"h = {keys['h']}"
    return f"set = {keys['set']}" if keys["set"] != "none" else ""


def _formula(model: Model) -> str:
    """Return the formula of the model's columns."""
    assert model.encoding is not None
    terms = [quoted(name) for name in model.columns]
    terms += [] if model.about["intercept"] else ["0"]
    return f"{quoted(model.encoding.label.name)} ~ {' + '.join(terms or ['1'])}"


def _rows(model: Model) -> dict[str, Any]:
    """Return rows by column, drawn in the ranges that the training had, and of all categories."""
    assert model.encoding is not None
    rng, encoding = stream(0, "rows"), model.encoding
    count = _ROWS + _ROWS * int(model.about["features"])
    rows: dict[str, Any] = {}
    at = 0
    for column in encoding.columns:
        if column.categories:
            rows[column.name] = [
                column.categories[place]
                for place in rng.integers(len(column.categories), size=count)
            ]
        elif column.codes:
            rows[column.name] = rng.choice(column.codes, count)
        else:
            middle, reach = encoding.origin[at], 2.0 * abs(encoding.unit[at])
            low, high = (
                (column.low, column.high)
                if np.isfinite([column.low, column.high]).all()
                else (middle - reach, middle + reach)
            )
            rows[column.name] = rng.uniform(low, high, count)
        at += column.width
    return rows


def _predictor(model: Model, rows: Mapping[str, Any]) -> Any:
    """Return x' b of rows (n,), in the units of the outcome."""
    import pyarrow as pa

    table = pa.table(dict(rows))
    if not len(model.classes):
        return np.asarray(model.predict(table), np.float64)
    scores = np.asarray(model.scores(table), np.float64)
    return scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0]


__all__ = ["KEY", "begun", "begun_model"]
