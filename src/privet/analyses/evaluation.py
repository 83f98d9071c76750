"""How well a fitted binomial model predicts, by sums over the sites.

Of the linear predictor eta = x' beta + offset and outcomes y of 0 and 1: the area under the ROC
curve from histograms of eta by outcome on public edges, Brier's score, a calibration table, and the
calibration slope b of logit P(y = 1) = a + b eta (Cox, Biometrika 45, 1958, 562-565).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from privet.kernel import Told

from .analysis import Analysis, Arrays, Progress, Shapes
from .family import FAMILIES
from .frame import AnalysisError, FloatArray, Frame, Levels
from .glm import Glm
from .glm_site import GlmSums
from .glm_step import CLOSE
from .points import require_point
from .sizes import FIRST_UNIT

_MOMENTS, _HISTOGRAM, _SLOPE = range(3)
_WIDTH = 4.0
"""Standard deviations of eta on both sides of its mean that the bins cover; two more are open."""

_GROUPS = 10
_MOST_ROUNDS = 40
_MOST_BINS = 2**16
_FLAT = 1e-6
"""Information below it, of all rows, is that of outcomes which eta separates within a bin."""


@dataclass(slots=True)
class EvaluationProgress(Progress):
    """The state between two rounds.

    Attributes
    ----------
    phase, rounds : int
    unit : float
    coefficients : float64 array (p,)
    row_count, centre, deviation : float
        Rows, and mean and standard deviation of eta.
    counts : float64 array (2, bins + 2)
        Rows by outcome and bin of eta.
    expected : float64 array (bins + 2,)
        Sums of predicted probabilities.
    brier : float
    line, covariance : float64 arrays (2,), (2, 2)
        Intercept and slope on (eta - centre) / deviation, and their covariance.
    """

    phase: int
    rounds: int
    unit: float
    coefficients: FloatArray
    row_count: float
    centre: float
    deviation: float
    counts: FloatArray
    expected: FloatArray
    brier: float
    line: FloatArray
    covariance: FloatArray


@dataclass(frozen=True, eq=False)
class EvaluationSums:
    """The rows of a site and their design."""

    rows: GlmSums
    bins: int

    @property
    def num_examples(self) -> int:
        """The complete cases."""
        return self.rows.num_examples

    @property
    def left_out(self) -> Mapping[str, int]:
        """The rows with missing values, by column."""
        return self.rows.left_out

    def statistics(self, point: Arrays) -> dict[str, FloatArray]:
        """Return the sums that the point's phase asks for; see `LinearEvaluation`."""
        require_point(point, {"coefficients": (self.rows.matrix.shape[1],), "line": (2,)})
        phase = int(point["phase"])
        eta = self.rows.matrix @ point["coefficients"] + self.rows.offset
        outcome, unit = self.rows.outcome, float(point["unit"])
        if phase == _MOMENTS:
            found = {"rows": float(len(eta)), "sum": eta.sum(), "squares": (eta**2).sum()}
        else:
            scaled = (eta - point["centre"]) / point["deviation"]
            found = _line_sums(scaled, outcome, point["line"])
            if phase == _HISTOGRAM:
                found |= self._histogram(scaled, eta, outcome)
        return {name: np.asarray(value, np.float64) / unit for name, value in found.items()}

    def _histogram(
        self, scaled: FloatArray, eta: FloatArray, outcome: FloatArray
    ) -> dict[str, Any]:
        edges = np.linspace(-_WIDTH, _WIDTH, self.bins + 1)
        places = np.searchsorted(edges, scaled, side="right")
        predicted = FAMILIES["binomial"].mean(eta)
        width = self.bins + 2
        counts = [np.bincount(places[outcome == value], minlength=width) for value in (0, 1)]
        return {
            "counts": np.array(counts, np.float64),
            "expected": np.bincount(places, predicted, width),
            "brier": ((outcome - predicted) ** 2).sum(),
        }


def _line_sums(scaled: FloatArray, outcome: FloatArray, line: FloatArray) -> dict[str, Any]:
    mean = FAMILIES["binomial"].mean(line[0] + line[1] * scaled)
    design = np.stack([np.ones_like(scaled), scaled], axis=1)
    return {
        "score": design.T @ (outcome - mean),
        "information": (design * (mean * (1.0 - mean))[:, None]).T @ design,
    }


@dataclass(frozen=True)
class LinearEvaluation(Analysis[EvaluationProgress]):
    """An evaluation of the coefficients of a binomial model.

    Attributes
    ----------
    formula, exposure_column, offset_column : str
        Of the model: see `Glm`.
    coefficients : tuple of float
        In the order of its terms; the coordinator's, which sends them to the sites.
    bins : int
        Of the histogram; the AUC's bound halves with twice as many, and so do the counts in them.
    apparent : bool
        Whether the rows are those that the model was fitted to, which the table says.
    """

    name: ClassVar[str] = "evaluation"
    progress: ClassVar[type[Any]] = EvaluationProgress

    formula: str = ""
    exposure_column: str = ""
    offset_column: str = ""
    coefficients: tuple[float, ...] = ()
    bins: int = 512
    apparent: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the model (raises ``AnalysisError``)."""
        if not 2 <= self.bins <= _MOST_BINS:
            raise AnalysisError(f"bins {self.bins}: 2 to {_MOST_BINS}")
        return self._model.columns

    @property
    def _model(self) -> Glm:
        return Glm("binomial", self.formula, self.exposure_column, self.offset_column)

    def factors(self, frame: Frame) -> tuple[str, ...]:
        """Return the columns that are categories in the model."""
        return self._model.factors(frame)

    def sums(self, frame: Frame, levels: Levels) -> EvaluationSums:
        """Return what a site sums of its complete cases (raises ``AnalysisError``)."""
        return EvaluationSums(self._model.sums(frame, levels), self.bins)

    def guarded(self, sums: Any, least: int) -> Any:
        """Refuse: counts by the linear predictor's parts are of few records."""
        raise AnalysisError(
            f"min-cell = {least}: an evaluation counts records in narrow parts", Told.SMALL_CELL
        )

    def begin(self, levels: Levels) -> EvaluationProgress:
        """Return the state before the first round (raises ``AnalysisError``)."""
        width = len(self._model.begin(levels).gamma)
        if len(self.coefficients) != width:
            raise AnalysisError(f"coefficients: {len(self.coefficients)} for {width} columns")
        return EvaluationProgress(
            gap=np.nan,
            done=False,
            phase=_MOMENTS,
            rounds=0,
            unit=FIRST_UNIT,
            coefficients=np.array(self.coefficients, float),
            row_count=0.0,
            centre=0.0,
            deviation=1.0,
            counts=np.zeros((2, self.bins + 2)),
            expected=np.zeros(self.bins + 2),
            brier=np.nan,
            line=np.zeros(2),
            covariance=np.zeros((2, 2)),
        )

    def point(self, state: EvaluationProgress) -> dict[str, FloatArray]:
        """Return the phase, the coefficients, and where eta lies."""
        numbers = {"phase": float(state.phase), "unit": state.unit}
        if state.phase != _MOMENTS:
            numbers |= {"centre": state.centre, "deviation": state.deviation}
        found = {name: np.array(value) for name, value in numbers.items()}
        return {**found, "coefficients": state.coefficients, "line": state.line}

    def shapes(self, state: EvaluationProgress) -> Shapes:
        """Return the shapes of the sums of the state's phase."""
        if state.phase == _MOMENTS:
            return {"rows": (), "sum": (), "squares": ()}
        line: dict[str, tuple[int, ...]] = {"score": (2,), "information": (2, 2)}
        if state.phase == _SLOPE:
            return line
        width = self.bins + 2
        return {**line, "counts": (2, width), "expected": (width,), "brier": ()}

    def step(self, state: EvaluationProgress, totals: Arrays) -> EvaluationProgress:
        """Return the next state (raises ``AnalysisError`` where nothing can be evaluated)."""
        state = replace(state, rounds=state.rounds + 1)
        if state.phase == _MOMENTS:
            return _placed(state, totals)
        if state.phase == _HISTOGRAM:
            state = replace(
                state,
                phase=_SLOPE,
                counts=np.round(totals["counts"] * state.unit),
                expected=totals["expected"] * state.unit,
                brier=float(totals["brier"]) * state.unit / state.row_count,
            )
            if not state.counts.sum(axis=1).all():
                raise AnalysisError("the outcome is the same in every row evaluated")
        information = totals["information"] * state.unit
        flat = np.linalg.eigvalsh(information)[0] < _FLAT
        if flat or _apart(state) or state.rounds > _MOST_ROUNDS:
            return replace(state, line=np.full(2, np.nan), done=True)
        covariance = np.asarray(np.linalg.inv(information), np.float64)
        score = totals["score"] * state.unit
        gap = float(np.sqrt(score @ covariance @ score))
        moved = np.asarray(covariance @ score, np.float64)
        return replace(
            state, line=state.line + moved, covariance=covariance, gap=gap, done=gap < CLOSE
        )

    def table(self, state: EvaluationProgress) -> dict[str, Any]:
        """Return the AUC and its bound, Brier's score, the calibration table and the slope.

        The AUC takes cases and controls of one bin for tied. It is off by no more than half the sum
        over bins of the share of cases times the share of controls.
        """
        controls, cases = state.counts
        below = np.cumsum(controls) - controls
        pairs = cases.sum() * controls.sum()
        turn = np.array([[1.0, -state.centre / state.deviation], [0.0, 1.0 / state.deviation]])
        intercept, slope = turn @ state.line
        errors = np.sqrt(np.diag(turn @ state.covariance @ turn.T))
        finite = bool(np.isfinite(slope))
        notes = ["apparent: of the rows that were fitted"] if self.apparent else []
        if not finite:
            notes.append("no calibration slope: the linear predictor separates the outcomes")
        return {
            "format": 1,
            "kind": "evaluation",
            "formula": self.formula,
            "apparent": self.apparent,
            "n": round(state.row_count),
            "events": round(float(cases.sum())),
            "auc": float(cases @ (below + controls / 2.0) / pairs),
            "auc_bound": float(cases @ controls / pairs / 2.0),
            "brier": state.brier,
            "calibration": _calibration(state),
            "calibration_intercept": float(intercept) if finite else None,
            "calibration_slope": float(slope) if finite else None,
            "calibration_se": errors.tolist() if finite else None,
            "rounds": state.rounds,
            "notes": notes,
        }


def _placed(state: EvaluationProgress, totals: Arrays) -> EvaluationProgress:
    """Return the state with the place and width of eta."""
    rows = float(np.round(totals["rows"] * state.unit))
    if rows < 2:
        raise AnalysisError(f"{round(rows)} complete rows to evaluate")
    centre = float(totals["sum"]) * state.unit / rows
    variance = float(totals["squares"]) * state.unit / rows - centre**2
    if variance <= 1e-6 * (1.0 + centre**2):
        raise AnalysisError("the model predicts the same for every row")
    deviation = float(np.sqrt(variance))
    return replace(
        state,
        phase=_HISTOGRAM,
        unit=float(2.0 ** np.round(np.log2(rows))),
        row_count=rows,
        centre=centre,
        deviation=deviation,
    )


def _apart(state: EvaluationProgress) -> bool:
    """Return whether no bin holds a row of one outcome beyond all rows of the other."""
    controls, cases = (np.flatnonzero(counts) for counts in state.counts)
    return bool(cases[0] > controls[-1] or controls[0] > cases[-1])


def _calibration(state: EvaluationProgress) -> list[dict[str, float]]:
    """Return predicted and observed shares in about tenths of the rows, by whole bins of eta."""
    counts = state.counts.sum(axis=0)
    middles = (np.cumsum(counts) - counts / 2.0) / state.row_count
    groups = np.minimum((middles * _GROUPS).astype(int), _GROUPS - 1)
    found = []
    for group in range(_GROUPS):
        rows = float(counts[groups == group].sum())
        if rows > 0:
            events = float(state.counts[1][groups == group].sum())
            predicted = float(state.expected[groups == group].sum()) / rows
            found.append(
                {"n": rows, "events": events, "predicted": predicted, "observed": events / rows}
            )
    return found
