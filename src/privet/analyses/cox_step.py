"""The coordinator's steps for a Cox model: Newton's method on the sites' sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from .analysis import Arrays
from .cox_state import EVALUATE, FINAL, LARGEST, PENALTY, CoxProgress
from .frame import AnalysisError, FloatArray
from .sizes import sizes
from .texts import unpacked

S = TypeVar("S", bound=CoxProgress)

CLOSE = 1e-8
"""In standard errors: a step that is shorter is the last."""

_NEAR = 1e-3
"""After a shorter step the next is below CLOSE, so the table's other sums are asked for with it."""

FLOOR = 1e-6
"""A shorter step that is not half of the one before is rounding."""

_MOST_HALVINGS = 25
_MOST_ROUNDS = 200
_SMALLEST = 1e-9
"""Of a variance in the risk sets beside the columns'; fixed points are near 1e-12."""

_FEW_DIGITS = 1e-6
"""An eigenvalue of the correlations below this has too few digits for a basis."""

_NO_DIGITS = 1e-4
"""In a basis with directions that are up to 1 / sqrt(_SMALLEST) longer, rounding reaches 1e-6."""


def from_sizes(state: CoxProgress, totals: Arrays) -> CoxProgress:
    """Return the state with units of everything (raises ``AnalysisError``)."""
    counts = np.rint(totals["counts"] * state.unit)
    rows, deaths = float(counts[0]), float(counts[1])
    if not rows:
        raise AnalysisError("nobody is at risk: no site has a complete row")
    if not deaths:
        raise AnalysisError("event-column: the event occurs at no site")
    found = sizes(totals["sizes"] * state.unit, rows)
    columns, time_size, heaviness = found[:-2], float(found[-2]), float(found[-1])
    if not columns.all():
        names = np.array(unpacked(state.names))[columns == 0.0]
        raise AnalysisError(
            f"{listed(names)} does not vary within any stratum (sites are strata): leave it out"
        )
    return replace(
        state,
        phase=EVALUATE,
        rounds=state.rounds + 1,
        unit=2.0 ** round(np.log2(rows)),
        heaviness=heaviness,
        time_size=time_size or 1.0,
        sizes=columns,
        basis=np.diag(1.0 / columns),
        counts=counts,
        present=np.rint(totals["present"] * state.unit),
        left_out=np.rint(totals["left_out"] * state.unit),
    )


def lacks_rows(state: CoxProgress, totals: Arrays) -> bool:
    """Say whether sums are of other rows than those of the first round."""
    return round(float(totals["rows"]) * state.unit) != round(float(state.counts[0]))


def from_sums(state: S, totals: Arrays, firth: bool) -> S:
    """Return the state after score, information and likelihood at ``gamma``."""
    state = replace(state, rounds=state.rounds + 1)
    if state.rounds > _MOST_ROUNDS:
        raise AnalysisError(f"no maximum of the likelihood in {_MOST_ROUNDS} rounds")
    loglik, information = float(totals["loglik"]) * state.whole, totals["information"] * state.whole
    inside = all(np.abs(totals[name]).max() < LARGEST / 2 for name in ("score", "information"))
    if not state.null_information.any():
        return _from_null(state, totals["score"] * state.whole, information, loglik, firth)
    merit = penalised(loglik, information) if firth else loglik
    noise = 1e-11 * (state.whole + abs(state.held_loglik))
    falls = not merit >= state.held_loglik - noise
    if not inside or (falls and not state.gap < FLOOR):
        return _halved(state)
    state = replace(
        state, loglik=loglik, score=totals["score"] * state.whole, information=information
    )
    if state.phase == FINAL:
        state = replace(
            state,
            meat=totals["meat"] * state.whole * state.heaviness,
            cluster=totals["cluster"] * state.whole * state.heaviness,
            trend=totals["trend"] * state.whole,
            pairs=np.rint(totals["pairs"] * state.unit**2),
        )
    final = state.phase == FINAL
    return replace(state, phase=PENALTY) if firth else _moved(state, state.score, final, merit)


def from_slope(state: CoxProgress, totals: Arrays) -> CoxProgress:
    """Return the state after the slope of Firth's penalty at ``gamma``.

    How the slope changes is learnt from its changes along the steps (Broyden, 1965), so that they
    shorten faster than linearly.
    """
    slope = totals["slope"] / 2.0
    state = replace(state, rounds=state.rounds + 1)
    walked = state.gamma - state.held
    if walked.any():
        error = slope - state.slope - state.bend @ walked
        bend = state.bend + np.outer(error, walked) / (walked @ walked)
        state = replace(state, bend=bend)
    final = bool(state.trend[0, 0] > 0.0) and state.gap < _NEAR and not state.halvings
    state = replace(state, slope=slope)
    merit = penalised(state.loglik, state.information)
    return _moved(state, state.score + slope, final, merit)


def penalised(loglik: float, information: FloatArray) -> float:
    """Return l + log det I / 2 (Firth, Biometrika 80, 1993, 27-38); -infinity for no definite I."""
    sign, logarithm = np.linalg.slogdet(information)
    return loglik + float(logarithm) / 2.0 if sign > 0 else -np.inf


def _from_null(
    state: S, score: FloatArray, information: FloatArray, loglik: float, firth: bool
) -> S:
    """Return the state after the sums at 0, with a basis in which the information there is 1.

    Where some columns are nearly sums of others, a direction's information has few digits on the
    fixed-point grid. It is made larger then, and the sums at 0 are asked for once more.
    """
    one = information / (float(state.counts[1]) * state.heaviness)
    own = np.diag(one)
    if not state.attempts:
        _check_varying(own, unpacked(state.names))
    scale = np.sqrt(np.maximum(own, _SMALLEST))
    values, vectors = np.linalg.eigh(one / np.outer(scale, scale))
    turn = (vectors / np.sqrt(np.maximum(values, _SMALLEST))) / scale[:, None]
    if values[0] < (_NO_DIGITS if state.attempts else _FEW_DIGITS):
        if state.attempts:
            raise AnalysisError(_dependent(state, vectors[:, 0] / scale))
        return replace(state, basis=state.basis @ turn, attempts=1)
    score, information = turn.T @ score, turn.T @ information @ turn
    state = replace(
        state,
        basis=state.basis @ turn,
        loglik=loglik,
        score=score,
        information=information,
        null_loglik=loglik,
        null_score=score,
        null_information=information,
    )
    if firth:
        return replace(state, phase=PENALTY)
    return _moved(state, score, False, loglik)


def _moved(state: S, score: FloatArray, final: bool, merit: float) -> S:
    """Return the state with the next step from ``gamma``, or done."""
    information = state.information
    step = _solved(information - (state.bend + state.bend.T) / 2.0, score)
    if step is None:
        step = _solved(information, score)
    if step is None:  # it was 1 at 0, and vanishes along a direction without a maximum
        raise AnalysisError(_without_end(state, np.linalg.eigh(information)[1][:, 0]))
    # Of weights of 1 on average: those that add up to 1 would make any step a short one.
    rise = max(float(step @ information @ step), _fall(information, score))
    gap = float(np.sqrt(rise / state.heaviness))
    no_better = gap < FLOOR and gap > state.gap / 2.0
    if final and (gap < CLOSE or no_better):
        return replace(state, gamma=state.gamma + step, gap=gap, done=True)
    stalled = state.stalled + 1 if _stalls(step, state, gap) else 0
    if stalled >= 3 and not state.slope.any():
        raise AnalysisError(_without_end(state, step))
    return replace(
        state,
        gap=gap,
        phase=FINAL if gap < _NEAR else EVALUATE,
        held=state.gamma,
        held_loglik=merit,
        step=step,
        gamma=state.gamma + step,
        halvings=0,
        stalled=stalled,
    )


def _halved(state: S) -> S:
    """Return the state with half the last step."""
    if state.halvings >= _MOST_HALVINGS:
        raise AnalysisError("the likelihood rises along no step: are columns near sums of others?")
    step = state.step / 2.0
    return replace(
        state,
        phase=EVALUATE,
        step=step,
        gamma=state.held + step,
        halvings=state.halvings + 1,
    )


def _solved(matrix: FloatArray, score: FloatArray) -> FloatArray | None:
    """Return the solution for a definite matrix, None for another."""
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    return np.asarray(np.linalg.solve(matrix, score), np.float64)


def _fall(information: FloatArray, score: FloatArray) -> float:
    """Return U' I^-1 U: a step that a learnt curvature makes short is no end, unless U is 0."""
    return float(score @ np.linalg.solve(information, score))


def _stalls(step: FloatArray, state: CoxProgress, gap: float) -> bool:
    """Say whether a step is as long as the one before although the likelihood hardly rises.

    Near a maximum Newton's steps shorten quadratically. Where the likelihood has none its rise
    falls by e with each, and their length stays.
    """
    last = float(np.linalg.norm(state.step))
    along = float(step @ state.step)
    return gap**2 < 0.02 and 0.0 < 0.5 * last**2 < along


def _without_end(state: CoxProgress, step: FloatArray) -> str:
    moves = np.abs(state.basis @ step) * state.sizes
    names = np.array(unpacked(state.names))[moves > 0.1 * moves.max()]
    return (
        f"the likelihood rises without end along {listed(names)}, such as where nobody of a "
        "category has the event: set firth to true, or leave it out"
    )


def _check_varying(own: FloatArray, names: Sequence[str]) -> None:
    """Raise ``AnalysisError`` where a column does not vary in the risk sets."""
    flat = np.array(names)[own < _SMALLEST]
    if len(flat):
        raise AnalysisError(
            f"{listed(flat)} does not vary among those at risk when the event occurs: leave it out"
        )


def _dependent(state: CoxProgress, direction: FloatArray) -> str:
    part = np.abs(state.basis @ direction) * state.sizes
    names = np.array(unpacked(state.names))[part > 0.1 * part.max()]
    return f"{listed(names)} add up to the same within the strata: leave one of them out"


def listed(names: Iterable[str]) -> str:
    """Return names in quotes, for errors."""
    return ", ".join(repr(str(name)) for name in names)
