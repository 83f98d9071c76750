"""From the units of the columns to a basis in which the information is near the identity.

A basis is found from sums that a fixed-point grid has rounded, so columns that are nearly dependent
(a year and its square) take one more round: what is small in one basis is large in the next. What
stays at 0 is a linear dependence and is named.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .analysis import Arrays
from .frame import AnalysisError, FloatArray
from .glm_state import EVALUATE, GRID, LARGEST, START, GlmProgress

_DEPENDENT = 1e-9
_SMALLEST = 1e-8
_MOST_ATTEMPTS = 6


def from_sizes(
    state: GlmProgress, totals: Arrays, family: str, names: tuple[str, ...]
) -> GlmProgress:
    """Return the state after the first round: how many rows there are, and in what units."""
    unit = state.unit
    rows = round(float(totals["rows"]) * unit)
    nonzero = totals["nonzero"] * unit
    if rows <= len(names):
        raise AnalysisError(
            f"{rows} complete rows for {len(names)} columns: leave out terms, or columns that have "
            "many missing values"
        )
    empty = [name for name, count in zip(names, nonzero, strict=False) if count < 0.5]
    if empty:
        raise AnalysisError(f"{_listed(empty)}: 0 in every row; leave it out")
    sizes = 2.0 ** (totals["sizes"] * unit / np.maximum(nonzero, 1.0))
    outcomes, outcome, weight = nonzero[-2], float(sizes[-2]), float(sizes[-1])
    share = outcomes / rows
    if family == "binomial" and not 0 < round(outcomes) < rows:
        raise AnalysisError("the outcome is the same in every row")
    if family == "poisson" and round(outcomes) == 0:
        raise AnalysisError("the outcome is 0 in every row")
    variance = {"binomial": share * (1.0 - share), "poisson": share * outcome}.get(family, 1.0)
    spread = _power_of_two(outcome) if family == "gaussian" and outcomes > 0 else 1.0
    near = _power_of_two(float(rows))
    level = _power_of_two(variance)
    # An even power, so that the root of unit * level is one as well.
    level *= 2.0 if round(np.log2(near * level)) % 2 else 1.0
    return replace(
        state,
        phase=START,
        unit=near,
        level=level,
        heaviness=_power_of_two(weight),
        spread=spread,
        first_spread=spread,
        null_spread=spread,
        mean=share if family == "binomial" else share * outcome,
        basis=np.diag(1.0 / np.array([_power_of_two(size) for size in sizes[:-2]])),
        row_count=float(rows),
        sites=float(np.round(totals["sites"] * unit)),
        events=float(np.round(outcomes)) if family == "binomial" else 0.0,
        present=np.round(totals["present"] * unit),
        left_out=np.round(totals["left_out"] * unit),
    )


def from_start(
    state: GlmProgress,
    totals: Arrays,
    family: str,
    ones: FloatArray,
    names: tuple[str, ...],
) -> GlmProgress:
    """Return the state with a basis, and with a first estimate where the sums are good enough."""
    information = (totals["information"] + totals["information"].T) / 2.0
    score = totals["score"]
    if state.attempts >= _MOST_ATTEMPTS:
        raise AnalysisError("the columns' units are too far apart; give them others")
    beyond = np.diag(information) >= LARGEST / 2.0
    if beyond.any():
        basis = state.basis * np.where(beyond, LARGEST**-0.5, 1.0)
        return replace(state, basis=basis, attempts=state.attempts + 1)
    grid = 10.0 * GRID * np.sqrt(state.sites)
    first = not state.scales.any()
    alpha = float(totals["null_score"] / totals["null_information"])
    if first and family == "gaussian" and ones.any():
        # As if the outcome had been sent less its mean, which is what the next rounds do.
        score = score - information @ (ones / np.diag(state.basis)) * alpha
        state, alpha = replace(state, shift=alpha * state.spread), 0.0
    if first:
        state, information, score, lost = _centred(state, information, score, ones, grid)
        deviations = np.sqrt(np.maximum(np.diag(information), lost))
        clip = max(_SMALLEST, 100.0 * float((lost / deviations**2).max()))
    else:
        deviations, clip = np.ones(len(score)), max(_SMALLEST, 100.0 * grid)
    values, vectors = np.linalg.eigh(information / np.outer(deviations, deviations))
    if not first and values[0] < _DEPENDENT:
        direction = state.basis @ vectors[:, 0]
        raise AnalysisError(
            f"{_listed(dependent(state, direction, ones, names))}: linearly dependent columns; "
            "leave one out"
        )
    roots = vectors / np.sqrt(np.maximum(values, clip)) / deviations[:, None]
    state = replace(state, basis=state.basis @ roots, attempts=state.attempts + 1)
    if values[0] < clip:
        return state
    gamma = roots.T @ score
    return replace(state, phase=EVALUATE, gamma=gamma, step=gamma, alpha=alpha)


def _centred(
    state: GlmProgress,
    information: FloatArray,
    score: FloatArray,
    ones: FloatArray,
    grid: float,
) -> tuple[GlmProgress, FloatArray, FloatArray, FloatArray]:
    """Take the columns about their means, where the span of the design holds a constant.

    Returned are the state, the information and score of the centred columns, and below which size a
    diagonal entry is lost in the rounding.
    """
    sizes = np.diag(state.basis)
    squares = np.diag(information).copy()
    one = ones / sizes
    means = np.zeros(len(ones))
    total = float(one @ information @ one)
    if ones.any():
        means = np.where(ones > 0, 0.0, information @ one / total)
    turn = np.eye(len(ones)) - np.outer(one, means)
    information, score = turn.T @ information @ turn, turn.T @ score
    total = total if ones.any() else float(squares.max())
    scales = np.array([np.maximum(np.diag(information), 0.0), squares])
    scales = np.sqrt(scales / total) / sizes
    state = replace(state, centre=means / sizes, scales=scales)
    return state, information, score, grid * squares


def raw(state: GlmProgress, ones: FloatArray) -> FloatArray:
    """Return the matrix T (p, p) for which X T gamma is Z gamma: T = (I - a centre') basis."""
    turned: FloatArray = state.basis - np.outer(ones, state.centre @ state.basis)
    return turned


def within(state: GlmProgress, ones: FloatArray, kept: NDArray[np.bool_]) -> FloatArray:
    """Return a basis (p, k) of the gamma at which all columns of X but those kept have 0."""
    if kept.all():
        return np.eye(len(kept))
    others = raw(state, ones)[~kept]
    sizes = np.linalg.norm(others, axis=1, keepdims=True)
    vectors = np.linalg.svd(others / sizes)[2]
    free: FloatArray = vectors[len(others) :].T
    return free


def named(scales: FloatArray, direction: FloatArray, names: tuple[str, ...]) -> list[str]:
    """Return the columns with a part in a direction of the coefficients of X."""
    shares = np.abs(direction) * scales
    return [name for name, share in zip(names, shares, strict=True) if share > 0.03 * shares.max()]


def dependent(
    state: GlmProgress, direction: FloatArray, ones: FloatArray, names: tuple[str, ...]
) -> list[str]:
    """Return the columns of a linear dependence, given before its means are taken off."""
    direction = direction - ones * (state.centre @ direction)
    found = [named(scales, direction, names) for scales in state.scales if scales.any()]
    return [name for name in names if any(name in one for one in found)]


def _power_of_two(value: float) -> float:
    return float(2.0 ** np.round(np.log2(value))) if value > 0 else 1.0


def _listed(names: list[str]) -> str:
    shown = names[:20]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
