"""A model that Newton's steps begin at: the limit of another method, by what it predicts.

Coefficients depend on how a method codes categories and scales columns, and the linear predictor
does not. So the model is given by its predictor on some rows, and what the regression has for them
is found by least squares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .design import Design
from .frame import AnalysisError, FloatArray, Frame
from .glm_start import raw
from .glm_state import GlmProgress

_CLOSE = 1e-5
"""Of the largest predictor: models of float32 have seven digits."""


@dataclass(frozen=True, eq=False)
class BegunModel:
    """A model on a table's columns.

    Attributes
    ----------
    source : str
        Where it is from, for errors and the table.
    frame : Frame
        Rows, which are nobody's, in the range of the columns.
    predictor : float64 array (n,)
        x' b of these rows, in the units of the outcome.
    classes : tuple of str
        The outcome's categories, the second of which counts as 1; empty where it is a number.
    """

    source: str
    frame: Frame
    predictor: FloatArray
    classes: tuple[str, ...] = ()

    def taken(self, state: GlmProgress, design: Design) -> GlmProgress:
        """Return a state with a basis, at the coefficients of the model.

        Raises
        ------
        AnalysisError
            Where no coefficients of the formula predict what the model does.
        """
        formula = design.formula
        for name in formula.columns[1:]:
            if name not in self.frame:
                raise AnalysisError(f"start-run: {self.source} has no column {name!r}")
        columns = (design.matrix(self.frame) - state.centre) @ state.basis
        predictor = self._turned(design) - state.shift
        found, *_ = np.linalg.lstsq(columns, predictor / state.spread)
        gamma = np.asarray(found, np.float64)
        missed = float(np.abs(columns @ gamma * state.spread - predictor).max())
        if missed > _CLOSE * max(1.0, float(np.abs(predictor).max())):
            raise AnalysisError(
                f"start-run: no coefficients of this formula predict what {self.source} does: "
                "leave formula out to have that of its columns"
            )
        return replace(state, gamma=gamma, step=gamma, begun=gamma * state.spread)

    def _turned(self, design: Design) -> FloatArray:
        """Return the predictor of the outcome that the regression counts as 1."""
        outcome = design.formula.outcome.column
        if not self.classes:
            return self.predictor
        levels = tuple(design.levels.get(outcome, ("0", "1")))
        if levels not in (self.classes, self.classes[::-1]):
            raise AnalysisError(
                f"start-run: {self.source} tells {' from '.join(self.classes)}, and {outcome} has "
                f"{', '.join(levels)}"
            )
        return self.predictor if levels == self.classes else -self.predictor


def distance(state: GlmProgress, ones: FloatArray, errors: FloatArray) -> float:
    """Return how far the worst coefficient of the begun model is off, in standard errors (p,)."""
    moved = raw(state, ones) @ (state.gamma * state.spread - state.begun)
    return float((np.abs(moved) / errors).max())
