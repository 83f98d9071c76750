"""A regression as a scikit-learn pipeline that predicts from raw rows without this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .coding import CodedBlock
from .design import Design, numbers_of
from .family import FAMILIES
from .formula import Piece
from .frame import AnalysisError, FloatArray, Frame, Levels
from .labelled import pandas_or_none
from .prediction import read_design, read_offset

_FUNCTIONS = {"log": np.log, "log1p": np.log1p, "sqrt": np.sqrt}


@dataclass(frozen=True)
class _Step:
    """What a transformer makes of a column, and the columns of the design in terms of that.

    Attributes
    ----------
    piece : Piece
    transformer
        Of scikit-learn, one column to q; not fitted.
    turn : float64 array (q, c)
        The design's c columns of the piece are the q columns times this.
    sample : sequence
        Values of the column to fit it on.
    """

    piece: Piece
    transformer: Any
    turn: FloatArray
    sample: Sequence[Any]


def sklearn_pipeline(table: Mapping[str, Any]) -> Any:
    """Return a fitted scikit-learn pipeline that predicts from raw rows as a table of ``glm`` does.

    Its input is a DataFrame with the columns of the terms and of the offset: categories as texts,
    or numbers where all of them are; no value may be missing. Each term is one step of a
    ColumnTransformer: categories are one-hot codes, ``rcs`` cubic B-splines that go on as straight
    lines, whose span holds Harrell's columns, and products of pieces PolynomialFeatures of those.
    An offset is a column with the coefficient 1. The last step is a LogisticRegression,
    PoissonRegressor or LinearRegression with ``coef_`` and ``intercept_`` of the table, in the
    units of those steps; it has no standard errors.

    Raises
    ------
    AnalysisError
        For a table that is not of ``glm``, one with the intercept alone, and where pandas is
        missing.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline

    if table["kind"] != "glm":
        raise AnalysisError(f"scikit-learn has no {table['kind']} model: predict with privet")
    pandas = pandas_or_none()
    if pandas is None:
        raise AnalysisError("pandas is not installed: pip install 'flwr-privet[export]'")
    design = read_design(table)
    given = np.array(table["coef"], float)
    intercept, place = 0.0, 0
    steps: list[Any] = []
    coef: list[FloatArray] = []
    samples: dict[str, Sequence[Any]] = {}
    for block in design.blocks:
        own = given[place : place + len(block.names)]
        place += len(own)
        if not block.factors:
            intercept = float(own[0])
            continue
        parts = _steps(block, design.levels)
        samples |= {one.piece.column: one.sample for one in parts}
        columns = list(dict.fromkeys(one.piece.column for one in parts))
        steps.append((f"term {len(steps)}", _product(parts), columns))
        coef.append(_of_products(block, parts, own))
    for piece in read_offset(table):
        one = _step(piece, (), design.levels)
        samples[piece.column] = one.sample
        steps.append((f"offset {len(steps)}", one.transformer, [piece.column]))
        coef.append(np.ones(1))
    if not steps:
        raise AnalysisError("a model of the intercept alone has no columns for scikit-learn")
    rows = max(map(len, samples.values()))
    frame = pandas.DataFrame(
        {
            name: [values[row % len(values)] for row in range(rows)]
            for name, values in samples.items()
        }
    )
    columns = ColumnTransformer(steps).fit(frame)
    classes = _classes(table, design)
    last = _last(table["family"], np.concatenate(coef), intercept, classes)
    return Pipeline([("columns", columns), ("model", last)])


def _steps(block: CodedBlock, levels: Levels) -> list[_Step]:
    return [_step(factor.piece, factor.codes, levels) for factor in block.factors]


def _step(piece: Piece, codes: Sequence[int], levels: Levels) -> _Step:
    """Return the step of a piece; of a category the columns are the indicators of ``codes``."""
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, PolynomialFeatures

    one = np.ones((1, 1))
    if piece.kind == "C":
        known = _values(levels[piece.column])
        order = np.argsort(known) if known.dtype != object else np.arange(len(known))
        encoder = OneHotEncoder(categories=[known[order]], sparse_output=False)
        turn = np.eye(len(known))[order][:, list(codes)]
        return _Step(piece, encoder, turn, known.tolist())
    if piece.kind == "column":
        return _Step(piece, "passthrough", one, [0.0])
    if piece.kind == "I":
        power = int(piece.numbers[0])
        return _Step(piece, PolynomialFeatures((power, power), include_bias=False), one, [0.0])
    if piece.kind == "rcs":
        return _spline(piece)
    return _Step(piece, FunctionTransformer(_FUNCTIONS[piece.kind]), one, [1.0])


def _spline(piece: Piece) -> _Step:
    """Return the step of Harrell's splines: B-splines of the same knots, continued by lines.

    Between the knots a B-spline basis of degree 3 holds every cubic spline, and both go on with
    their slopes at the ends, so that what holds at enough points between holds everywhere.
    """
    from sklearn.preprocessing import SplineTransformer

    knots = np.array(piece.numbers)
    basis = SplineTransformer(degree=3, knots=knots[:, None], extrapolation="linear")
    between = np.linspace(0.0, 1.0, 9)[:-1]
    points = np.append((knots[:-1, None] + np.diff(knots)[:, None] * between).ravel(), knots[-1])
    wanted = np.column_stack(numbers_of(piece, Frame.of({piece.column: points})))
    made = basis.fit_transform(points[:, None])
    turn = np.linalg.lstsq(made, wanted, rcond=None)[0]
    return _Step(piece, basis, turn, points.tolist())


def _product(parts: Sequence[_Step]) -> Any:
    """Return the transformer of a term: its own of one piece, else all products of them."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures

    if len(parts) == 1:
        return parts[0].transformer
    each = [(f"piece {at}", one.transformer, [one.piece.column]) for at, one in enumerate(parts)]
    degree = len(parts), len(parts)
    products = PolynomialFeatures(degree, interaction_only=True, include_bias=False)
    return make_pipeline(ColumnTransformer(each), products)


def _of_products(block: CodedBlock, parts: Sequence[_Step], own: FloatArray) -> FloatArray:
    """Return the coefficients of the columns of `_product` from those of the design's.

    A product of columns of different pieces is linear in each, so its coefficients are turned piece
    by piece; `PolynomialFeatures` also has products within a piece, whose coefficients are 0.
    """
    from itertools import combinations

    widths = [len(one.turn) for one in parts]
    cube = np.zeros([one.turn.shape[1] for one in parts])
    for value, pick in zip(own, block.picks, strict=True):
        cube[pick] = value
    for axis, one in enumerate(parts):
        cube = np.moveaxis(np.tensordot(one.turn, cube, (1, axis)), 0, axis)
    if len(parts) == 1:
        return cube
    starts = np.cumsum([0, *widths])
    piece = np.repeat(np.arange(len(parts)), widths)
    found = []
    for chosen in combinations(range(starts[-1]), len(parts)):
        whole = [int(piece[one]) for one in chosen] == list(range(len(parts)))
        at = tuple(one - starts[axis] for axis, one in enumerate(chosen))
        found.append(float(cube[at]) if whole else 0.0)
    return np.array(found)


def _values(levels: Sequence[str]) -> Any:
    """Return categories as a frame of raw rows has them: numbers where all are written as such."""
    try:
        numbers = [float(level) for level in levels]
    except ValueError:
        return np.array(levels, object)
    written = all(f"{one:.15g}" == level for one, level in zip(numbers, levels, strict=True))
    return np.array(numbers) if written and np.isfinite(numbers).all() else np.array(levels, object)


def _classes(table: Mapping[str, Any], design: Design) -> Any:
    outcome = design.formula.outcome.column
    return _values(table["levels"][outcome]) if outcome in table["levels"] else np.array([0, 1])


def _last(family: str, coef: FloatArray, intercept: float, classes: Any) -> Any:
    """Return the fitted linear model of a family: coefficients (d,) and an intercept."""
    from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor

    if family == "binomial":
        model = LogisticRegression()
        model.coef_, model.intercept_ = coef[None], np.array([intercept])
        model.classes_, model.n_iter_ = classes, np.array([0])
        model.n_features_in_ = len(coef)
        return model
    if family == "poisson":
        # It keeps its link in an attribute of its own, which a fit alone sets.
        model = PoissonRegressor().fit(np.zeros((1, len(coef))), np.ones(1))
    elif family == "gaussian":
        model = LinearRegression()
        model.n_features_in_ = len(coef)
    else:
        raise AnalysisError(f"family {family}: one of {', '.join(FAMILIES)}")
    model.coef_, model.intercept_ = coef, intercept
    return model
