"""Newton's method on the sums of a generalised linear model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .analysis import Arrays
from .frame import AnalysisError, FloatArray
from .glm_start import named, raw
from .glm_state import EVALUATE, FIRTH, GRID, LARGEST, MEAT, GlmProgress

CLOSE = 1e-8
"""Standard errors: a step below it is the last."""

_NEAR = 1e-3
"""Standard errors: the next step is likely to be the last, so robust errors are asked for."""

_MOST_ROUNDS = 100
_MOST_HALVINGS = 30
_LEAP = 256.0
"""Steps at once, to tell separated outcomes from large coefficients."""

_WAIT = 2
"""Steps after a leap that failed until the next."""


def from_sums(
    state: GlmProgress,
    totals: Arrays,
    family: str,
    firth: bool,
    ones: FloatArray,
    names: tuple[str, ...],
) -> GlmProgress:
    """Return the state after sums at coefficients: the next of them, or the end."""
    if state.rounds > _MOST_ROUNDS:
        raise AnalysisError(f"no convergence in {_MOST_ROUNDS} rounds; scale or leave out columns")
    height = _height(state, totals, firth)
    slack = 1e-13 * abs(height) + _rounding(state) * state.heaviness
    if firth:
        slack += _rounding(state) * _of_inverse(totals["information"] * state.whole)
    lower = state.held_loglik - height > slack or not np.isfinite(height)
    if state.leap:
        return _landed(state, lower, ones, names)
    if lower:
        return _halved(state)
    state = _read(state, totals, family)
    state = replace(state, held=state.gamma, held_loglik=height, halvings=0)
    state, null_gap = _null_step(state, totals, family)
    score = totals["score"] * np.sqrt(state.whole)
    if firth:
        return replace(state, phase=FIRTH, step=score, gap=max(null_gap, 0.0))
    if family == "gaussian":
        state, rescaled = _rescaled(state, names)
        if rescaled:
            return state
    last_step, last_gap = state.step, state.gap
    step, gap = newton(state, score, state.information, dispersion(state, family), ones, names)
    violations = round(float(totals["violations"]) * state.unit)
    stalled = _stalled(last_step, last_gap, step, gap)
    state = replace(state, stalled=state.stalled + 1 if stalled else min(state.stalled, 0))
    if state.stalled >= 2 and violations == 0 and family != "gaussian":
        return replace(state, leap=1, step=step, gap=gap, gamma=state.held + _LEAP * step)
    state = replace(state, step=step, gamma=state.gamma + step, gap=max(gap, null_gap))
    done = state.phase == MEAT and state.gap < max(CLOSE, _digits(state, family))
    return replace(state, done=done, phase=MEAT if state.gap < _NEAR else EVALUATE)


def from_correction(
    state: GlmProgress,
    totals: Arrays,
    free: FloatArray,
    ones: FloatArray,
    names: tuple[str, ...],
) -> GlmProgress:
    """Return the state after Firth's correction: a step by the penalised score.

    The score's slope is the information; that of the correction is estimated from its changes, by
    the symmetric rank-one update (Nocedal and Wright, Numerical Optimization, section 6.2). Steps
    are in the span of ``free`` (p, k).
    """
    correction = totals["correction"] * np.sqrt(state.whole) / state.heaviness
    bend = np.zeros_like(state.bend)
    if state.correction.any():
        moved = state.held - state.centre_of_correction
        missed = state.correction - correction - state.bend @ moved
        bend, along = state.bend, float(missed @ moved)
        if abs(along) > 1e-8 * np.linalg.norm(missed) * np.linalg.norm(moved) > 0:
            bend = bend + np.outer(missed, missed) / along
    score = free.T @ (state.step + correction)
    slope = _rising(free.T @ (state.information + bend) @ free, state.information)
    step, gap = newton(state, score, slope, 1.0, ones, names)
    step, gap = free @ step, max(gap, state.gap)
    return replace(
        state,
        phase=EVALUATE,
        correction=correction,
        centre_of_correction=state.held,
        bend=bend,
        step=step,
        gamma=state.gamma + step,
        gap=gap,
        done=gap < max(CLOSE, _digits(state, "") + _of_correction(state, correction)),
    )


def _rising(slope: FloatArray, information: FloatArray) -> FloatArray:
    """Return a slope made positive definite: the penalised likelihood need not be concave.

    Its eigenvalues are taken by size and bounded below (Nocedal and Wright, section 3.4).
    """
    values, vectors = np.linalg.eigh(slope)
    lowest = 0.1 * np.linalg.eigvalsh(information)[0]
    bounded: FloatArray = (vectors * np.maximum(np.abs(values), lowest)) @ vectors.T
    return bounded


def newton(
    state: GlmProgress,
    score: FloatArray,
    slope: FloatArray,
    dispersion: float,
    ones: FloatArray,
    names: tuple[str, ...],
) -> tuple[FloatArray, float]:
    """Return Newton's step and its length in standard errors, (U' I^-1 U / phi)^(1/2).

    No coefficient moves by more than this many of its own standard errors.
    """
    try:
        root = np.linalg.cholesky(slope)
    except np.linalg.LinAlgError:
        direction = raw(state, ones) @ np.linalg.eigh(state.information)[1][:, 0]
        raise AnalysisError(_separation(direction, state, names, "nearly ")) from None
    half = np.linalg.solve(root, score)
    step: FloatArray = np.linalg.solve(root.T, half)
    return step, float(np.sqrt(half @ half * state.heaviness / dispersion))


def dispersion(state: GlmProgress, family: str) -> float:
    """Return phi, in the units of ``spread`` and ``heaviness``.

    It is Pearson's chi-squared over n - p of a Gaussian, else 1 (and the weights are not divided).
    """
    if family != "gaussian":
        return 1.0
    return state.heaviness * state.pearson / (state.row_count - len(state.gamma))


def _digits(state: GlmProgress, family: str) -> float:
    """Return which step, in standard errors, is lost in the digits of coefficients and sums."""
    rows = state.heaviness * state.whole / dispersion(state, family)
    of_sums = 4.0 * GRID * np.sqrt(state.sites * len(state.gamma) * rows / state.whole)
    of_numbers = 8.0 * np.finfo(float).eps * np.linalg.norm(state.gamma) * np.sqrt(rows)
    return float(of_sums + of_numbers)


def _rounding(state: GlmProgress) -> float:
    """Return how far a sum over sites may be off on the fixed-point grid."""
    return 4.0 * state.sites * GRID * state.whole


def _of_inverse(information: FloatArray) -> float:
    """Return the trace of the inverse: what log det I moves by, for an error of 1 in I."""
    values = np.linalg.eigvalsh(information)
    return float((1.0 / values).sum()) if values[0] > 0 else 0.0


def _of_correction(state: GlmProgress, correction: FloatArray) -> float:
    """Return how many standard errors of Firth's correction are lost in the rounding of I."""
    length = np.sqrt(correction @ np.linalg.solve(state.information, correction))
    return float(_rounding(state) * _of_inverse(state.information) * length)


def _height(state: GlmProgress, totals: Arrays, firth: bool) -> float:
    height = float(totals["loglik"]) * state.whole * state.heaviness
    if float(totals["loglik"]) <= -LARGEST / 2.0:
        return -np.inf
    if firth:
        sign, logarithm = np.linalg.slogdet(totals["information"])
        return height + float(logarithm) / 2.0 if sign > 0 else -np.inf
    return height


def _halved(state: GlmProgress) -> GlmProgress:
    halvings = state.halvings + 1
    if halvings > _MOST_HALVINGS:
        raise AnalysisError("the likelihood rises along no step; scale or leave out columns")
    gamma = state.held + state.step * 0.5**halvings
    return replace(state, gamma=gamma, halvings=halvings, phase=EVALUATE)


def _landed(
    state: GlmProgress, lower: bool, ones: FloatArray, names: tuple[str, ...]
) -> GlmProgress:
    """Return the state after a leap: where outcomes are separated the likelihood has risen.

    Where they are not, the rows that the step hardly moves stop it: it is taken once.
    """
    if not lower:
        raise AnalysisError(_separation(raw(state, ones) @ state.step, state, names))
    gamma = state.held + state.step
    return replace(state, leap=0, stalled=-_WAIT, gamma=gamma, phase=EVALUATE)


def _read(state: GlmProgress, totals: Arrays, family: str) -> GlmProgress:
    """Take the totals over, in the units of the table."""
    whole = state.whole
    numbers = ("loglik", "deviance", "pearson", "null_loglik", "null_deviance")
    matrices = ("information", "meat", "cluster") if "meat" in totals else ("information",)
    checked = {*numbers, *matrices} - ({"pearson"} if family != "gaussian" else set())
    if max(float(np.abs(totals[name]).max()) for name in checked) >= LARGEST:
        raise AnalysisError("a sum is too large for its fixed point; leave out extreme rows")
    loglik, deviance, pearson, null_loglik, null_deviance = (
        float(totals[name]) * whole for name in numbers
    )
    square = {name: (totals[name] + totals[name].T) * (whole / 2.0) for name in matrices}
    return replace(
        state,
        loglik=loglik,
        deviance=deviance,
        pearson=pearson,
        null_loglik=null_loglik,
        null_deviance=null_deviance,
        log_weights=float(totals["log_weights"]) * state.unit,
        events=float(totals["outcomes"]) * whole if family == "poisson" else state.events,
        information=square["information"],
        meat=square.get("meat", state.meat),
        cluster=square.get("cluster", state.cluster),
    )


def _null_step(state: GlmProgress, totals: Arrays, family: str) -> tuple[GlmProgress, float]:
    """Return the state with the next intercept of the null model, and the step in errors."""
    score = float(totals["null_score"]) / np.sqrt(state.whole)
    information = float(totals["null_information"])
    if information <= 0:
        return replace(state, alpha=state.alpha * 0.5), 1.0
    step = score / information
    gap = abs(step) * np.sqrt(information * state.whole * state.heaviness)
    if family == "poisson":
        # The mean of the null model is exp(alpha) times a constant, which gives its root at once.
        step = float(np.log1p(max(step, -1.0 + 1e-12)))
    elif family == "binomial":
        step = float(np.clip(step, -2.0, 2.0))
    else:
        gap /= np.sqrt(max(state.heaviness * state.null_deviance / state.row_count, 1e-300))
    return replace(state, alpha=state.alpha + step), float(gap)


def _rescaled(state: GlmProgress, names: tuple[str, ...]) -> tuple[GlmProgress, bool]:
    """Bring the residual sums of squares of a Gaussian near the number of rows.

    An outcome with a mean far from 0, or a close fit, would leave few digits of them on the grid.
    """
    moved = False
    for name, squares in (("spread", state.deviance), ("null_spread", state.null_deviance)):
        mean = max(squares / state.row_count, 2.0**-36)
        if 2.0**-6 <= mean <= 2.0**6:
            continue
        moved, factor = True, float(2.0 ** np.round(np.log2(mean) / 2.0))
        state = replace(state, **{name: getattr(state, name) * factor})
        if name == "spread":
            state = replace(state, gamma=state.gamma / factor, held_loglik=np.nan, gap=np.nan)
        else:
            state = replace(state, alpha=state.alpha / factor)
    if state.null_spread < 2.0**-40 * state.first_spread:
        raise AnalysisError("the outcome is the same in every row")
    if state.spread < 2.0**-40 * state.first_spread:
        raise AnalysisError(f"the outcome is a linear function of {', '.join(names[:20])}")
    return (replace(state, phase=EVALUATE) if moved else state), moved


def _stalled(last: FloatArray, last_gap: float, step: FloatArray, gap: float) -> bool:
    """Return whether a step repeats the last: Newton's go on so where outcomes are separated.

    There the likelihood rises like -exp(-t) for ever: steps are equal and lose exp(-1/2) of their
    length in standard errors, where others lose their square.
    """
    if not 0.25 * last_gap < gap < min(0.95 * last_gap, 0.5):
        return False
    lengths = np.linalg.norm(step) * np.linalg.norm(last)
    return bool(step @ last > 0.9 * lengths > 0)


def _separation(
    direction: FloatArray, state: GlmProgress, names: tuple[str, ...], nearly: str = ""
) -> str:
    found = [name for name in named(state.scales[0], direction, names) if name != "Intercept"]
    columns = ", ".join(found[:20]) or "Intercept"
    return (
        f"{columns}: separation, the likelihood rises {nearly}for ever along "
        f"{'this column' if len(found) < 2 else 'a combination of these columns'}; "
        "leave it out, join categories, or set firth = true"
    )
