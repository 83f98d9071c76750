"""What a regression table predicts of new rows, by its formula, its categories and its covariance.

    eta = x' b + offset,   eta +- q (x' V x)^(1/2),   mean g(eta), between g of the ends

The interval is that of the mean, not of a new row's outcome. Of a Cox model it is exp(x' b), the
hazard relative to that of a row of the same stratum whose columns are all 0: numbers 0, categories
the references. Absolute risk needs a baseline hazard, which a model with ``baseline = pooled`` has:

    H(t | x) = H_0(t) exp((x - c)' b),   S(t | x) = exp(-H(t | x))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .cox import CoxAnalysis
from .design import Design, complete_cases, numbers_of
from .family import FAMILIES
from .formula import Formula, Piece, read_formula
from .frame import AnalysisError, Factor, FloatArray, Frame, Levels
from .labelled import frame as labelled_frame

REFUSE, MISSING = "refuse", "missing"
"""What a category is that the model does not have, or a number out of its range."""

_SHOWN = 8


def labelled(columns: Any, predictions: Mapping[str, FloatArray]) -> Any:
    """Return predictions as a frame with the rows of a pandas frame, or numbered."""
    names = row_names(columns, len(next(iter(predictions.values()))))
    return labelled_frame({name: one.tolist() for name, one in predictions.items()}, names)


def row_names(columns: Any, count: int) -> list[Any]:
    """Return the names of the rows of a pandas frame, of other columns their numbers."""
    own = getattr(columns, "index", None)
    return list(range(count) if own is None or callable(own) else own)


def predicted(
    table: Mapping[str, Any],
    columns: Any,
    covariance: FloatArray,
    *,
    alpha: float = 0.05,
    unknown: str = REFUSE,
) -> dict[str, FloatArray]:
    """Return the predictions (n,) of rows by a table of ``glm`` or ``cox``.

    Parameters
    ----------
    table : mapping
        As ``table.json`` holds it.
    columns : Frame or mapping of str to sequence
        The new rows; what the model does not read is left alone.
    covariance : float64 array (p, p)
        Of the coefficients.
    alpha : float
        The intervals are of level 1 - alpha.
    unknown : str
        ``refuse``, or ``missing``: a category that the model does not have, or a number outside of
        the range in the run's schema, is a missing value.

    Returns
    -------
    dict of str to float64 array (n,)
        ``linear_predictor``, then ``mean`` or ``partial_hazard``, with ``_ci_lower`` and
        ``_ci_upper``; NaN in rows with a missing value.

    Raises
    ------
    AnalysisError
        For a column that is not there, or holds what the model cannot read.
    """
    from scipy.stats import norm

    if not 0 < alpha < 1:
        raise AnalysisError(f"alpha {alpha}: between 0 and 1, such as .05 for 95 %")
    rows = columns if isinstance(columns, Frame) else Frame.of(columns)
    matrix, offset, complete = _design_of(table, rows, unknown)
    eta, error = np.full(rows.rows, np.nan), np.full(rows.rows, np.nan)
    eta[complete] = matrix @ np.array(table["coef"], float) + offset
    squares = ((matrix @ covariance) * matrix).sum(axis=1)
    error[complete] = np.sqrt(np.maximum(squares, 0.0))
    reach = norm.ppf(1.0 - alpha / 2.0) * error
    of_glm = table["kind"] == "glm"
    name = "mean" if of_glm else "partial_hazard"
    mean: Callable[[FloatArray], FloatArray] = FAMILIES[table["family"]].mean if of_glm else np.exp
    with np.errstate(over="ignore"):
        ends = {f"{name}_ci_lower": mean(eta - reach), f"{name}_ci_upper": mean(eta + reach)}
        return {"linear_predictor": eta, name: mean(eta), **ends}


def cumulative_hazards(
    table: Mapping[str, Any],
    columns: Any,
    times: Sequence[float] | None = None,
    *,
    unknown: str = REFUSE,
) -> tuple[list[float], FloatArray]:
    """Return times (k,) and the cumulative hazards (k, n) of rows at them.

    Breslow's baseline is a step function: it is 0 before the first event, and what it is at the
    last one later, where nobody is known to be at risk.

    Parameters
    ----------
    table : mapping
        Of ``cox`` with ``baseline = pooled``, as ``table.json`` holds it.
    columns, unknown
        As of `predicted`.
    times : sequence of float, optional
        From 0 on; by default 0 and the times at which the event occurred.

    Raises
    ------
    AnalysisError
        For a table without a baseline, a time below 0, and what `predicted` refuses.
    """
    baseline = baseline_of(table)
    steps = np.array(baseline["times"], float)
    if times is None:
        times = [0.0, *steps[steps > 0.0].tolist()]
    asked = np.array(times, float)
    if not (asked >= 0.0).all():  # NaN too
        raise AnalysisError("times: times of follow-up are from 0 on")
    rows = columns if isinstance(columns, Frame) else Frame.of(columns)
    matrix, _, complete = _design_of(table, rows, unknown)
    eta = np.full(rows.rows, np.nan)
    eta[complete] = (matrix - np.array(baseline["centre"])) @ np.array(table["coef"], float)
    heights = np.concatenate([[0.0], np.array(baseline["cumulative_hazard"], float)])
    places = np.searchsorted(steps, asked, side="right")
    with np.errstate(over="ignore"):
        hazards: FloatArray = np.outer(heights[places], np.exp(eta))
    return asked.tolist(), hazards


def baseline_of(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the baseline of a Cox model (raises ``AnalysisError`` where it has none)."""
    if table["kind"] == "glm":
        raise AnalysisError("no absolute risk: glm has no times; a cox run has")
    baseline = table.get("baseline")
    if not isinstance(baseline, Mapping):
        raise AnalysisError(
            "no absolute risk: the model is stratified by site and each site keeps its baseline "
            "hazard; fit with baseline = pooled, where the sites allow it (pooled-baseline)"
        )
    return baseline


def columns_of(table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns that predictions by a table need, each once."""
    return _columns_read(read_design(table).formula, read_offset(table))


def _columns_read(formula: Formula, offset: Sequence[Piece]) -> tuple[str, ...]:
    """Return the columns of terms and offset; new rows need not have the outcome's."""
    outcome = formula.outcome.column
    names = (name for name in formula.columns if name != outcome)
    return tuple(dict.fromkeys((*names, *(piece.column for piece in offset))))


def _design_of(
    table: Mapping[str, Any], rows: Frame, unknown: str
) -> tuple[FloatArray, FloatArray, Any]:
    """Return the matrix and the offset of the complete rows, and which those are (n,)."""
    design, offset = read_design(table), read_offset(table)
    names = _columns_read(design.formula, offset)
    if missing := [name for name in names if name not in rows]:
        listed = ", ".join(missing[:_SHOWN])
        raise AnalysisError(f"no column {listed}{_of(rows)}, which the model reads")
    rows = _coded(rows, names, design.levels, unknown)
    rows = _in_ranges(rows, names, table.get("ranges") or {}, unknown)
    complete, _ = complete_cases(rows, names)
    used = rows.taken(complete)
    matrix, added = design.matrix(used), np.zeros(used.rows)
    for piece in offset:
        added = added + numbers_of(piece, used)[0]
    return (matrix[:, 1:] if table["kind"] != "glm" else matrix), added, complete


def read_design(table: Mapping[str, Any]) -> Design:
    """Return the design of a table; that of a Cox model begins with an intercept."""
    if table["kind"] == "glm":
        return Design.of(read_formula(table["formula"]), table["levels"])
    model = CoxAnalysis(table["time"], table["event"], formula=table["formula"])
    return model.design(table["levels"])


def read_offset(table: Mapping[str, Any]) -> list[Piece]:
    """Return what is added to a linear predictor: the table writes it as terms of a formula."""
    if not table.get("offset"):
        return []
    outcome = read_formula(table["formula"]).outcome.name
    return [piece for (piece,) in read_formula(f"{outcome} ~ {table['offset']}").terms]


def _coded(rows: Frame, names: Sequence[str], levels: Levels, unknown: str) -> Frame:
    """Return rows whose categories have the model's codes (raises ``AnalysisError``)."""
    if unknown not in (REFUSE, MISSING):
        raise AnalysisError(f"unknown = {unknown!r}: {REFUSE} or {MISSING}")
    numbers, factors = dict(rows.numbers), dict(rows.factors)
    for name in names:
        if name not in levels:
            if name in factors:
                raise AnalysisError(f"column {name!r}{_of(rows)} holds texts; the model, numbers")
            continue
        known = tuple(levels[name])
        found = rows.factor(name)
        moved = np.array([known.index(one) if one in known else -1 for one in found.levels] + [-1])
        codes = moved[found.codes].astype(np.int32)
        strange = found.codes[(codes < 0) & (found.codes >= 0)]
        if len(strange) and unknown == REFUSE:
            listed = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
            raise AnalysisError(
                f"column {name!r}{_of(rows)}: {found.levels[strange[0]]!r} is none of the model's "
                f"categories, {listed}; with unknown = {MISSING} it is a missing value"
            )
        numbers.pop(name, None)
        factors[name] = Factor(codes, known)
    return replace(rows, numbers=numbers, factors=factors)


def _in_ranges(
    rows: Frame, names: Sequence[str], ranges: Mapping[str, Sequence[float]], unknown: str
) -> Frame:
    """Return rows whose numbers are in the ranges of the schema (raises ``AnalysisError``)."""
    numbers = dict(rows.numbers)
    for name in names:
        if name not in ranges or name not in numbers:
            continue
        low, high = ranges[name]
        outside = (numbers[name] < low) | (numbers[name] > high)
        if outside.any() and unknown == REFUSE:
            at = int(outside.argmax())
            raise AnalysisError(
                f"column {name!r}{_of(rows)}: {numbers[name][at]:g} in row {at + 1} is outside of "
                f"[{low:g}, {high:g}], the range in the run's schema; with unknown = {MISSING} it "
                "is a missing value"
            )
        numbers[name] = np.where(outside, np.nan, numbers[name])
    return replace(rows, numbers=numbers)


def _of(rows: Frame) -> str:
    return f" ({rows.source})" if rows.source else ""
