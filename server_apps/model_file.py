"""The model of a run in one file, ``model.npz``: its arrays, and all that is needed to predict.

The file holds the arrays of the run under their names, and a text, ``about``, in JSON: shapes and
dtypes, the columns of the table with their encoding and scaling, classes or the scaling of the
target, intercept, loss, the run and its account of privacy. Nothing in it is a pickle.

Privacy: the file of a private run holds public numbers alone. The arrays are what the account is
of. An encoding is written where none of it was read from records: where a schema gives all ranges
and categories, or the data set fixes them (``Dataset.data_dependent`` is empty, the very condition
under which agents take part in private runs). Otherwise means, deviations, categories, classes and
names of columns are left out, and the file says what the user has to supply. The extremes of
columns are in the files of runs without privacy alone, beside their means, so that new rows far
outside of them are marked. Numbers of rows and of missing values are in no file, nor are paths and
the seed of the noise.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from privet.core import ConfigError
from privet.core import format as fmt
from privet.core.errors import did_you_mean, near_path
from privet.core.files import read_npz, write_npz
from privet.core.key import AUTO
from privet.core.library import LIBRARY_VERSION, library_version
from privet.core.shapes import Entries, Items, parsed, require
from privet.data import Federation
from privet.data.dataset import DataError, Encoding, FloatArray
from privet.data.encoding import encoded_rows
from privet.data.loaders import has_intercept
from privet.data.settings import INTERCEPT, dealt_by
from privet.data.source_column import SourceColumn
from privet.kernel import clip_rows
from privet.problems import BinaryLogistic, MultinomialLogistic, OneClassLogistic
from privet.rounds.roster import in_simulation
from privet.strategies import PrimalDualStrategy
from privet.wire.contract import means_privacy

from .account import privacy_account
from .config import decisive, defaults

log = logging.getLogger("flwr.privet")

FORMAT = 1
FILE = "model.npz"
ABOUT = "about"
"""The member with the text; all others are arrays of the model."""
OWN = "own"
"""The task of a model whose arrays only their author knows to use."""

ONE_CLASS = OneClassLogistic.kind

_PRIVATE = (
    "columns, scaling and classes were read from records, and the run is private: they are not in "
    "this file; supply rows that are encoded as those of the nodes, or train with a public schema"
)
_SEVERAL = (
    "each node scaled its own table with its own numbers, so no encoding is that of all: supply "
    "rows that are encoded as theirs, or train with one schema"
)
_UNTOLD = ("data-path", "schema", "noise-seed")


_OWN_SHAPE = Entries(
    {
        "task": str,
        "run": Entries(),
        "privacy": Entries({"private": bool, "reason": str}, required=("private", "reason")),
    },
    required=("task", "run", "privacy"),
)
_LINEAR = {
    "loss": str,
    "dtype": ("float32", "float64"),
    "features": int,
    "intercept": bool,
    "row-norm": float,
    "classes": (int, None),
    "withheld": str,
    "data": str,
    "encoding": object,
}
_SHAPE = Entries(
    {**_OWN_SHAPE.known, **_LINEAR, "task": ("binary", "multinomial", "regression")},
    required=(*_OWN_SHAPE.required, *_LINEAR),
)
_COLUMN_SHAPE = Entries(
    {
        "name": str,
        "categories": Items(str),
        **dict.fromkeys(("origin", "unit"), float),
        **dict.fromkeys(("range", "seen", "missing", "codes"), Items(float)),
        **dict.fromkeys(("gap", "zeros"), bool),
        **dict.fromkeys(("dates", "censored"), str),
    },
    required=("name",),
)
_ENCODING_SHAPE = Entries(
    {
        "columns": Items(_COLUMN_SHAPE),
        "label": Entries(
            {"name": str, "classes": Items(str), "origin": float, "unit": float},
            required=("name", "classes"),
        ),
    },
    required=("columns", "label"),
)
"""What predictions take the text of a model to hold; other entries are shown as they are."""


def write_model(path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write the arrays with their description, whole or not at all (raises ``OSError``)."""
    shapes = {
        name: {"shape": list(array.shape), "dtype": str(array.dtype)}
        for name, array in arrays.items()
    }
    text = json.dumps({**about, "arrays": shapes}, ensure_ascii=False, allow_nan=False)
    write_npz(path, {**arrays, ABOUT: np.array(text)})


def about_arrays(run: Mapping[str, Any], privacy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a user-defined model: the run, and its account."""
    return {
        "format": FORMAT,
        LIBRARY_VERSION: library_version(),
        "task": OWN,
        "run": dict(run),
        "privacy": _account(privacy),
    }


def about_run(
    strategy: PrimalDualStrategy,
    config: Mapping[str, Any],
    federation: Federation,
    run_id: str,
    grid: Grid,
) -> dict[str, Any]:
    """Return what the file says of a run on a table, beside the arrays.

    The data are those that the coordinator has: in a simulation those of all agents.
    """
    dataset, model = federation.dataset, federation.held_out
    usual = {**defaults(), "algorithm": "", "partition": dealt_by({**config, "partition": AUTO})}
    recorded = {
        name: value
        for name, value in decisive(config).items()
        if value != usual.get(name) and name not in _UNTOLD
    }
    private = means_privacy(strategy.half.settings())
    encoding, dependent = dataset.encoding, bool(dataset.data_dependent)
    withheld = ""
    # That of all nodes where they have agreed on it, and on means of all their rows.
    agreed = "" if strategy.session is None else strategy.session.encoding.text
    common = in_simulation(grid) or (agreed and agreed == getattr(model.meaning, "text", ""))
    if encoding is not None and dependent and (private or not common):
        encoding, withheld = None, _PRIVATE if private else _SEVERAL
    width = model.num_features
    configured = INTERCEPT[config["intercept"]]
    intercept = has_intercept(dataset.name) if configured is None else configured
    return {
        "format": FORMAT,
        LIBRARY_VERSION: library_version(),
        "task": dataset.task,
        "loss": model.kind,
        "run": {
            "id": run_id,
            "algorithm": config["algorithm"],
            "dataset": dataset.name,
            "config": recorded,
        },
        "privacy": _account(privacy_account(strategy, config), config),
        "dtype": str(model.dtype),
        "layout": "classes x features" if model.kind == ONE_CLASS else "features x classes",
        "features": width - intercept,
        "intercept": intercept,
        "row-norm": float(config["row-norm"]),
        "classes": dataset.classes,
        "withheld": withheld,
        # That of a table names its file, and numbers of rows.
        "data": "" if dataset.source_columns else dataset.description,
        "encoding": None if encoding is None else _to_json(encoding),
    }


def _account(privacy: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the account in short."""
    if not privacy["private"] or not privacy["accounts"]:
        return {"private": False, "reason": privacy["reason"]}
    first = privacy["accounts"][0]
    claim = {key: first[key] for key in ("epsilon", "delta", "method") if key in first}
    relation = {"relation": config["relation"]} if config and "relation" in config else {}
    return {"private": True, **claim, **relation, "reason": privacy["reason"]}


def _to_json(encoding: Encoding) -> dict[str, Any]:
    columns, at = [], 0
    for column in encoding.columns:
        own = slice(at, at + column.width)
        one: dict[str, Any] = {"name": column.name}
        if column.categories:
            one["categories"] = list(column.categories)
        else:
            one |= {"origin": float(encoding.origin[at]), "unit": float(encoding.unit[at])}
        if not column.categories and -np.inf < column.low <= column.high < np.inf:
            one["range" if column.public else "seen"] = [column.low, column.high]
        if column.name in encoding.optional:
            one["missing"] = encoding.filling[own].tolist()
        if column.gap:
            one["gap"] = True
        if column.zeros:
            one["zeros"] = True
        if column.dates:
            one["dates"] = column.dates
        if column.censored:
            one["censored"] = column.censored
        if column.codes:
            one["codes"] = list(column.codes)
        columns.append(one)
        at += column.width
    label = encoding.label
    target: dict[str, Any] = {"name": label.name, "classes": list(label.categories)}
    if not label.categories:
        target |= {"origin": encoding.target[0], "unit": encoding.target[1]}
    return {"columns": columns, "label": target}


def _from_json(document: Mapping[str, Any]) -> Encoding:
    columns, origin, unit, filling = [], [], [], []
    for one in document["columns"]:
        low, high = one.get("range", one.get("seen", (-np.inf, np.inf)))
        column = SourceColumn(
            one["name"],
            0,
            tuple(one.get("categories", ())),
            low,
            high,
            public="range" in one,
            gap=one.get("gap", False),
            zeros=one.get("zeros", False),
            dates=one.get("dates", ""),
            censored=one.get("censored", ""),
            codes=tuple(one.get("codes", ())),
        )
        rest = 0 if column.categories else 1
        origin += [one.get("origin", 0.0)] * rest + [0.0] * (column.width - rest)
        unit += [one.get("unit", 1.0)] * rest + [1.0] * (column.width - rest)
        filling += one.get("missing", [0.0] * column.width)
        columns.append(column)
    label = document["label"]
    return Encoding(
        tuple(columns),
        np.array(origin, float),
        np.array(unit, float),
        np.array(filling, float),
        SourceColumn(label["name"], 0, tuple(label["classes"])),
        optional=tuple(one["name"] for one in document["columns"] if "missing" in one),
        target=(label.get("origin", 0.0), label.get("unit", 1.0)),
    )


def load_model(path: str | Path) -> Model:
    """Return the model of a run folder, or of its file ``model.npz``.

    Raises
    ------
    ConfigError
        A file that is not there, is damaged, or is of another format: one line that names it.
    """
    file = Path(path)
    file = file / FILE if file.is_dir() else file
    try:
        arrays = read_npz(file)
    except OSError as error:
        raise ConfigError(
            f"{file}: {error.strerror}; expected the folder of a run that is over, or its {FILE}"
            f"{near_path(file)}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{file} cannot be read as a model ({error})") from None
    if ABOUT not in arrays:
        raise ConfigError(
            f"{file} is of an older format, without columns and classes: run it again with this "
            "version, or read its flat array x with numpy"
        )
    damaged = f"{file} cannot be read as a model (its text {ABOUT} is damaged)"
    try:
        about = parsed(str(arrays.pop(ABOUT)).encode())
        version = about["format"]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(damaged) from None
    if version != FORMAT:
        raise ConfigError(
            f"{file} has format {version}, this version reads {FORMAT}: read it with flwr-privet "
            f"{about.get(LIBRARY_VERSION, 'as it was')}"
        )
    model = Model(file, about, arrays)
    try:
        json.dumps(about, allow_nan=False)
        require(about, _OWN_SHAPE if about["task"] == OWN else _SHAPE)
        if about["task"] != OWN:
            _require_agreement(model)
        model.describe()
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError):
        raise ConfigError(damaged) from None
    return model


def _require_agreement(model: Model) -> None:
    """Refuse a linear model whose text does not agree with itself, or with the array ``x``."""
    about, wanted = model.about, model.about["features"]
    if about["encoding"] is not None:
        require(about["encoding"], _ENCODING_SHAPE)
        encoding = model.encoding
        assert encoding is not None
        sizes = {sum(column.width for column in encoding.columns), wanted}
        sizes |= {len(part) for part in (encoding.origin, encoding.unit, encoding.filling)}
        if len(sizes) > 1:
            raise ValueError("encoding: its columns are not the features")
        if not (encoding.unit.all() and encoding.target[1]):
            raise ValueError("encoding: a unit is 0")
    if about["row-norm"] < 0 or model.arrays["x"].dtype.kind != "f":
        raise ValueError("row-norm is negative, or x has no real numbers")
    if about["task"] != "regression":
        label = about["encoding"] and about["encoding"]["label"]["classes"]
        counts = {about["classes"], max(2, model.weights.shape[1])}
        if len(counts | ({len(label)} if label is not None else set())) > 1:
            raise ValueError("classes: not as many as the model has")
    elif model.weights.shape[1] != 1:
        raise ValueError("a regression has one score")


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """The model of a finished run, ready to predict.

    A linear model: of the features a (d,) of a row, an intercept's 1 included, and of its weights
    W (d, K), the scores are ``a W``; K is 1 but for a loss with a score for each class. Classes are
    those of the largest score, of two classes with one score the second where it is >= 0; the value
    of a regression is ``a w`` times the unit of the target, plus its origin.

    Attributes
    ----------
    path : Path
    about : dict
        The text of the file.
    arrays : dict of str to array
        As the run left them: ``x`` (d K,), the last model, and others such as ``mean/x``; of a
        model of the user's own, its arrays by their names.
    """

    path: Path
    about: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    @cached_property
    def encoding(self) -> Encoding | None:
        """The encoding of the table's rows as features; None if the file does not hold it."""
        encoding = self.about.get("encoding")
        return None if encoding is None else _from_json(encoding)

    @property
    def columns(self) -> list[str]:
        """The columns that a row has, in order; empty where the file does not name them."""
        return [column.name for column in self.encoding.columns] if self.encoding else []

    @cached_property
    def classes(self) -> NDArray[Any]:
        """Labels in the order of the probabilities, as numbers where all are whole; none of a
        regression."""
        if self.about["task"] in ("regression", OWN):
            return np.array([])
        if self.encoding is not None:
            names = self.encoding.label.categories
            whole = all(name.removeprefix("-").isdecimal() for name in names)
            if whole and all(str(int(name)) == name for name in names):
                return np.array([int(name) for name in names])
            return np.array(names)
        if self.about["task"] == "binary":
            return np.array([-1, 1])
        return np.arange(self.about["classes"])

    @cached_property
    def weights(self) -> FloatArray:
        """W of shape (d, K), the last row that of the intercept where there is one.

        Raises
        ------
        ConfigError
            For a model of the user's own.
        """
        self._require_linear()
        x: FloatArray = self.arrays["x"]
        if self.about["loss"] == ONE_CLASS:
            x = x.reshape(self.about["classes"], -1).T
        else:
            x = x.reshape(self.about["features"] + self.about["intercept"], -1)
        return x

    def features(
        self, rows: Any, *, unknown: str = "refuse", far: dict[str, Any] | None = None
    ) -> FloatArray:
        """Return rows as the training encoded them, of shape (n, d), an intercept's 1 included.

        Numbers far outside of a column's range are named in a warning of the log, as the model
        extrapolates there: by more than half of its width, or negative, or 0, where the training
        had none or all were well above. So are values that are read as missing, and numbers that
        the training did not have where its few skip some, as codes do.

        Parameters
        ----------
        rows : DataFrame, pyarrow table, list of dicts, dict, or array (n, columns)
            Columns by name, in any order and with others beside them; an array has them in the
            order of `columns`. Where the file has no encoding, features (n, d) in numbers.
        unknown : "refuse" or "missing"
            What a category is that the training did not have, or a number outside of the schema's
            range.
        far : dict, optional
            Is filled with the columns, by name, that have such values, and in which rows (n,).

        Raises
        ------
        ConfigError, DataError
            A column that is not there, or a value that cannot be used: one line that names it.
        """
        self._require_linear()
        if self.encoding is None:
            coded = self._numbers(rows)
        else:
            far = {} if far is None else far
            table = _table(rows, self.columns)
            coded = encoded_rows(table, self.encoding, unknown=unknown, far=far)
            for name, marked in far.items():
                log.warning("%s", self._of_far(name, marked, table[name]))
        coded = coded.astype(self.about["dtype"])
        if self.about["intercept"]:
            coded = np.hstack([coded, np.ones((len(coded), 1), coded.dtype)])
        norm = self.about["row-norm"]
        return clip_rows(coded, norm) if norm and len(coded) else coded

    def _of_far(self, name: str, marked: NDArray[Any], values: Any) -> str:
        """Return the line on a column's values far outside of those of the training."""
        column = next(one for one in self.about["encoding"]["columns"] if one["name"] == name)
        first, *others = np.flatnonzero(marked)
        more = f" and {len(others)} more rows" if others else ""
        found = f"column {name}: row {first + 1}{more}: {values[int(first)].as_py()}"
        if "seen" not in column:
            return f"{found} is unknown, and read as a missing value"
        if "codes" in column:
            known = ", ".join(f"{code:g}" for code in column["codes"])
            return f"{found} is none of the training's codes {known}, and is read as a quantity"
        low, high = column["seen"]
        return (
            f"{found} is far outside of the training's range [{low:g}, {high:g}]: the prediction "
            "is an extrapolation"
        )

    def scores(self, rows: Any, *, unknown: str = "refuse") -> FloatArray:
        """Return ``a W``, of shape (n, K); `features` says what rows are."""
        result: FloatArray = self.features(rows, unknown=unknown) @ self.weights
        return result

    def predict(self, rows: Any, *, unknown: str = "refuse") -> NDArray[Any]:
        """Return the class, or the value, of each row, of shape (n,); see `features`."""
        return self._predicted(self.scores(rows, unknown=unknown))

    def _predicted(self, scores: FloatArray) -> NDArray[Any]:
        if self.about["task"] == "regression":
            origin, unit = self.encoding.target if self.encoding else (0.0, 1.0)
            values: FloatArray = scores[:, 0] * unit + origin
            return values
        best = (scores[:, 0] >= 0.0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)
        labels: NDArray[Any] = self.classes[best]
        return labels

    @property
    def has_probabilities(self) -> bool:
        """Whether the loss is a likelihood of the classes."""
        return self.about.get("loss") in (BinaryLogistic.kind, MultinomialLogistic.kind)

    def predict_proba(self, rows: Any, *, unknown: str = "refuse") -> FloatArray:
        """Return the probabilities of the classes, of shape (n, classes); see `features`.

        Raises
        ------
        ConfigError
            Where the loss gives none.
        """
        if not self.has_probabilities:
            what = self.about.get("loss", "a model of your own")
            raise ConfigError(f"{self.path}: {what} has no probabilities of classes")
        return self._probabilities(self.scores(rows, unknown=unknown))

    def _probabilities(self, scores: FloatArray) -> FloatArray:
        if scores.shape[1] == 1:
            scores = np.hstack([np.zeros_like(scores), scores])
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        result: FloatArray = powers / powers.sum(axis=1, keepdims=True)
        return result

    def predicted(self, rows: Any, *, unknown: str = "refuse") -> dict[str, NDArray[Any]]:
        """Return predictions and, where there are any, probabilities, as named columns (n,).

        Where values are far outside of the training's (see `features`), ``extrapolated`` has the
        names of their columns in each row, separated by semicolons.
        """
        far: dict[str, Any] = {}
        scores = self.features(rows, unknown=unknown, far=far) @ self.weights
        predictions = {"prediction": self._predicted(scores)}
        if self.has_probabilities:
            each = self._probabilities(scores).T
            names = (f"probability {name}" for name in self.classes)
            predictions |= dict(zip(names, each, strict=True))
        if far:
            marks = [";".join(name for name in far if far[name][row]) for row in range(len(scores))]
            predictions["extrapolated"] = np.array(marks)
        return predictions

    def describe(self) -> str:
        """Return what the file says, in lines to be read."""
        about, run, privacy = self.about, self.about["run"], self.about["privacy"]
        lines = [repr(self), ", ".join(f"{key}: {value}" for key, value in run.items())]
        private = f"private: {privacy['reason']}" if privacy["private"] else privacy["reason"]
        lines.append(private)
        if kept := about.get("kept"):
            lines.append(fmt.kept({"file": self.path.name, **kept}))
        if about["task"] == OWN:
            lines += [f"array {name}: {array.shape}" for name, array in self.arrays.items()]
            return "\n".join(lines)
        if what := about["withheld"] or about["data"]:
            lines.append(what)
        if self.encoding is None:
            lines.append(f"a row is {about['features']} numbers, encoded and scaled already")
        else:
            lines += [f"column {_said(one)}" for one in about["encoding"]["columns"]]
        if len(self.classes):
            lines.append(f"classes: {', '.join(map(str, self.classes))}")
        elif self.encoding is not None:
            origin, unit = self.encoding.target
            lines.append(f"{self.encoding.label.name} = score x {unit:g} + {origin:g}")
        if about["row-norm"]:
            lines.append(f"rows are scaled down to norm {about['row-norm']:g}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        about = self.about
        if about["task"] == OWN:
            return f"Model({self.path}: arrays {', '.join(self.arrays)})"
        what = f"{len(self.classes)} classes" if len(self.classes) else "regression"
        return f"Model({self.path}: {about['loss']}, {what}, {about['features']} features)"

    def _require_linear(self) -> None:
        if self.about["task"] == OWN:
            raise ConfigError(
                f"{self.path} holds a model of your own: put its arrays ({', '.join(self.arrays)}) "
                "into it, they are in Model.arrays"
            )

    def _numbers(self, rows: Any) -> FloatArray:
        """Return rows of a model without an encoding."""
        width = self.about["features"]
        try:
            features = np.asarray(rows, dtype=np.float64)
        except (TypeError, ValueError):
            features = np.empty(0)
        if features.ndim != 2 or features.shape[1] != width or not np.isfinite(features).all():
            why = self.about["withheld"] or f"of data set {self.about['run']['dataset']}"
            raise DataError(f"expected rows of {width} finite features, as an array; {why}")
        return features


def _said(one: Mapping[str, Any]) -> str:
    if "categories" not in one:
        text = f"{one['name']}: (x - {one['origin']:.6g}) / {one['unit']:.6g}"
        if "dates" in one:
            text = f"{text}, x the days since 1970-01-01 of a date, {one['dates']}"
    else:
        text = f"{one['name']}: one of {', '.join(map(repr, one['categories']))}"
    return f"{text}, or missing" if "missing" in one else text


def _table(rows: Any, names: Sequence[str]) -> Any:
    """Return rows in any form as a pyarrow table (raises ``DataError``)."""
    import pyarrow as pa

    if isinstance(rows, pa.Table):
        return rows
    try:
        if hasattr(rows, "iloc"):
            if not hasattr(rows, "columns"):
                raise DataError("expected a DataFrame, found one column of it")
            for name in names:
                if name not in rows.columns:
                    near = did_you_mean(name, map(str, rows.columns))
                    raise DataError(f"no column {name!r}, which the model was trained on{near}")
            used = [name for name in rows.columns if name in names]
            if len(set(used)) < len(used):
                raise DataError("the DataFrame has several columns of one name")
            return pa.Table.from_pandas(rows[used], preserve_index=False)
        if isinstance(rows, Mapping):
            rows = [rows]
        if isinstance(rows, list) and rows and all(isinstance(one, Mapping) for one in rows):
            return pa.table(
                {name: pa.array(_values(rows, name), from_pandas=True) for name in names}
            )
        array = np.asarray(rows)
        if array.ndim != 2 or array.shape[1] != len(names):
            raise DataError(
                f"expected rows of {len(names)} columns ({', '.join(names)}), found an array of "
                f"shape {array.shape}"
            )
        columns = zip(names, array.T, strict=True)
        return pa.table(
            {name: pa.array(column.tolist(), from_pandas=True) for name, column in columns}
        )
    except (pa.ArrowException, TypeError) as error:
        raise DataError(f"rows cannot be used ({' '.join(str(error).split())})") from None


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    for number, row in enumerate(rows, start=1):
        if name not in row:
            raise DataError(f"row {number}: no column {name!r}, which the model was trained on")
    return [row[name] for row in rows]
