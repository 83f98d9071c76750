"""How well a fitted binomial model predicts, by sums over the sites: rounds after those of the fit.

Of the linear predictor eta = x' beta + offset, outcomes y of 0 and 1 and weights w: the area under
the ROC curve from histograms of eta by outcome on public edges, Brier's score, a calibration table,
and the calibration slope b of logit P(y = 1) = a + b eta (Cox, Biometrika 45, 1958, 562-565). The
rows are those that a site holds out; where it holds out none they are those of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from privet.kernel import Told

from .analysis import Analysis, Arrays, Claim, Progress, Shapes
from .family import FAMILIES
from .frame import AnalysisError, FloatArray, Frame, Levels
from .glm import Glm
from .glm_begun import BegunModel
from .glm_site import GlmSums, point_shapes
from .glm_state import EVALUATE, LARGEST, GlmProgress, Packed
from .glm_step import CLOSE
from .points import require_point
from .possible import below_0, few_squares, no_counts, no_squares

HELD_OUT = "(held out)"
"""The column of 0 and 1 that says which rows a site does not fit."""

_MOMENTS, _HISTOGRAM, _SLOPE = 10, 11, 12
"""What a round asks for, beside the phases of a fit."""

_WIDTH = 4.0
"""Standard deviations of eta on both sides of its mean that the bins cover; two more are open."""

_GROUPS = 10
_MOST_ROUNDS = 40
_MOST_BINS = 2**16
_FLAT = 1e-6
"""Information below it, of all rows, is that of outcomes which eta separates within a bin."""


@dataclass(slots=True)
class EvaluationProgress(Progress):
    """Where the rounds of the evaluation stand.

    Attributes
    ----------
    phase, rounds : int
    row_count, events, centre, deviation : float
        Rows, those of outcome 1, and mean and standard deviation of eta.
    counts : float64 array (2, bins + 2)
        Sums of weights by outcome and bin of eta.
    expected : float64 array (bins + 2,)
        Sums of predicted probabilities, weighted.
    brier : float
    line, covariance : float64 arrays (2,), (2, 2)
        Intercept and slope on (eta - centre) / deviation, and their covariance.
    refused : uint8 array
        Why there is no evaluation, as a text; empty where there is one.
    """

    phase: int
    rounds: int
    row_count: float
    events: float
    centre: float
    deviation: float
    counts: FloatArray
    expected: FloatArray
    brier: float
    line: FloatArray
    covariance: FloatArray
    refused: Packed


@dataclass(slots=True)
class EvaluatedProgress(Progress):
    """The state of a fit, and after it that of its evaluation."""

    fit: GlmProgress
    evaluation: EvaluationProgress


@dataclass(frozen=True, eq=False)
class EvaluatedSums:
    """The rows of a site that are fitted, and those that are evaluated."""

    fitted: GlmSums
    evaluated: GlmSums
    bins: int

    @property
    def num_examples(self) -> int:
        """The complete cases of the smaller of the two."""
        return min(self.fitted.num_examples, self.evaluated.num_examples)

    @property
    def left_out(self) -> Mapping[str, int]:
        """The rows with missing values, by column, of those to be fitted."""
        return self.fitted.left_out

    def statistics(self, point: Arrays) -> dict[str, FloatArray]:
        """Return the sums that the point's phase asks for; see `EvaluatedGlm`."""
        require_point({name: point[name] for name in ("phase", "unit")}, {})
        phase = int(point["phase"])
        if phase < _MOMENTS:
            return self.fitted.statistics(point)
        if phase > _SLOPE:
            raise AnalysisError(f"the point's phase {phase} is none of a regression", Told.MESSAGE)
        require_point(point, {**point_shapes(self.evaluated.matrix.shape[1]), "line": (2,)})
        totals: dict[str, Any] = {}
        for part in self.evaluated.parts(point):
            eta = part.columns @ point["gamma"] + part.offset
            if phase == _MOMENTS:
                found = {
                    "rows": float(len(eta)),
                    "events": part.outcome.sum(),
                    "sum": eta.sum(),
                    "squares": (eta**2).sum(),
                }
            else:
                scaled = (eta - point["place"]) / point["deviation"]
                found = _line_sums(scaled, part.outcome, part.weights, point["line"])
                if phase == _HISTOGRAM:
                    found |= self._histogram(scaled, eta, part.outcome, part.weights)
            for name, value in found.items():
                totals[name] = totals.get(name, 0.0) + value
        unit = float(point["unit"])
        return {
            name: np.clip(np.asarray(value, np.float64) / unit, -LARGEST, LARGEST)
            for name, value in totals.items()
        }

    def _histogram(
        self, scaled: FloatArray, eta: FloatArray, outcome: FloatArray, weights: FloatArray
    ) -> dict[str, Any]:
        edges = np.linspace(-_WIDTH, _WIDTH, self.bins + 1)
        places = np.searchsorted(edges, scaled, side="right")
        predicted = FAMILIES["binomial"].mean(eta)
        width = self.bins + 2
        by_outcome = [weights * (outcome == value) for value in (0, 1)]
        return {
            "counts": np.array([np.bincount(places, one, width) for one in by_outcome]),
            "expected": np.bincount(places, weights * predicted, width),
            "brier": weights @ (outcome - predicted) ** 2,
        }


def _line_sums(
    scaled: FloatArray, outcome: FloatArray, weights: FloatArray, line: FloatArray
) -> dict[str, Any]:
    mean = FAMILIES["binomial"].mean(line[0] + line[1] * scaled)
    design = np.stack([np.ones_like(scaled), scaled], axis=1)
    return {
        "score": design.T @ (weights * (outcome - mean)),
        "information": (design * (weights * mean * (1.0 - mean))[:, None]).T @ design,
    }


@dataclass(frozen=True)
class EvaluatedGlm(Analysis[EvaluatedProgress]):
    """A binomial regression and its evaluation.

    Attributes
    ----------
    model : Glm
    hold_out : bool
        Whether the rows are fitted whose column `HELD_OUT` is 0, and the others evaluated; else the
        evaluation is of the rows that are fitted, which the table calls apparent.
    bins : int
        Of the histogram; the AUC's bound halves with twice as many, and so do the counts in them.
    """

    name: ClassVar[str] = Glm.name
    progress: ClassVar[type[Any]] = EvaluatedProgress

    model: Glm = field(default_factory=Glm)
    hold_out: bool = False
    bins: int = 512

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the model (raises ``AnalysisError``)."""
        if not 2 <= self.bins <= _MOST_BINS:
            raise AnalysisError(f"bins {self.bins}: 2 to {_MOST_BINS}")
        if self.model.family != "binomial":
            raise AnalysisError(f"evaluate: of family = binomial, not {self.model.family[:30]}")
        return self.model.columns

    def factors(self, frame: Frame) -> tuple[str, ...]:
        """Return the columns that are categories in the model."""
        return self.model.factors(frame)

    def begun_at(self, model: BegunModel) -> Self:
        """Return the same whose regression's steps begin at another method's model."""
        return replace(self, model=self.model.begun_at(model))

    def sums(self, frame: Frame, levels: Levels) -> EvaluatedSums:
        """Return what a site sums of its complete cases (raises ``AnalysisError``)."""
        if not self.hold_out:
            rows = self.model.sums(frame, levels)
            return EvaluatedSums(rows, rows, self.bins)
        if HELD_OUT not in frame.numbers:
            raise AnalysisError("hold-out: the table does not say which rows are held out")
        held = frame.numbers[HELD_OUT] == 1.0
        fitted, evaluated = (self.model.sums(frame.taken(rows), levels) for rows in (~held, held))
        return EvaluatedSums(fitted, evaluated, self.bins)

    def guarded(self, sums: Any, least: int) -> Any:
        """Refuse: counts by the linear predictor's parts are of few records."""
        raise AnalysisError(
            f"min-cell = {least}: evaluate counts records in narrow parts of the linear predictor; "
            "it is answered in secure sums",
            Told.SMALL_CELL,
        )

    def saturates(self, point: Arrays) -> bool:
        """Return whether coefficients of the coordinator's are in the point, as the model does."""
        return self.model.saturates(point)

    def begin(self, levels: Levels) -> EvaluatedProgress:
        """Return the state before the first round (raises ``AnalysisError``)."""
        evaluation = EvaluationProgress(
            gap=np.nan,
            done=False,
            phase=_MOMENTS,
            rounds=0,
            row_count=0.0,
            events=0.0,
            centre=0.0,
            deviation=1.0,
            counts=np.zeros((2, self.bins + 2)),
            expected=np.zeros(self.bins + 2),
            brier=np.nan,
            line=np.zeros(2),
            covariance=np.zeros((2, 2)),
            refused=np.zeros(0, np.uint8),
        )
        return EvaluatedProgress(np.nan, False, self.model.begin(levels), evaluation)

    def point(self, state: EvaluatedProgress) -> dict[str, FloatArray]:
        """Return the point of the fit, and after it the phase and where eta lies."""
        if not state.fit.done:
            return self.model.point(state.fit)
        own = state.evaluation
        return {
            **self.model.point(replace(state.fit, phase=EVALUATE)),
            "phase": np.array(float(own.phase)),
            "place": np.array(own.centre),
            "deviation": np.array(own.deviation),
            "line": own.line,
        }

    def shapes(self, state: EvaluatedProgress) -> Shapes:
        """Return the shapes of the sums that `point` asks for."""
        if not state.fit.done:
            return self.model.shapes(state.fit)
        if state.evaluation.phase == _MOMENTS:
            return {"rows": (), "events": (), "sum": (), "squares": ()}
        line: dict[str, tuple[int, ...]] = {"score": (2,), "information": (2, 2)}
        if state.evaluation.phase == _SLOPE:
            return line
        width = self.bins + 2
        return {**line, "counts": (2, width), "expected": (width,), "brier": ()}

    def step(self, state: EvaluatedProgress, totals: Arrays) -> EvaluatedProgress:
        """Return the next state (raises ``AnalysisError`` where there is no estimate).

        Where the model cannot be evaluated the table says why, and has the estimate all the same.
        """
        if not state.fit.done:
            fit = self.model.step(state.fit, totals)
            return replace(state, fit=fit, gap=fit.gap)
        own = replace(state.evaluation, rounds=state.evaluation.rounds + 1)
        try:
            own = _stepped(own, state.fit, totals)
        except AnalysisError as error:
            text = np.frombuffer(str(error).encode(), np.uint8).copy()
            own = replace(own, refused=text, done=True)
        return replace(state, evaluation=own, gap=own.gap, done=own.done)

    def rows_said(self, state: EvaluatedProgress, sums: Arrays) -> float:
        """Return the complete cases that are fitted; of those evaluated nothing is compared."""
        return math.nan if state.fit.done else self.model.rows_said(state.fit, sums)

    def impossible(self, state: EvaluatedProgress, claim: Claim) -> str:
        """Say what the sums of a site cannot be, in the fit and after it."""
        sums = claim.sums
        if not state.fit.done:
            return self.model.impossible(state.fit, claim)
        if state.evaluation.phase == _MOMENTS:
            rows = sums["rows"] * state.fit.unit
            return (
                no_counts("rows", rows)
                or no_counts("events", sums["events"] * state.fit.unit, float(rows))
                or few_squares(sums["squares"], sums["sum"], float(sums["rows"]))
            )
        positive = ("counts", "expected", "brier")
        found = [below_0(name, sums[name]) for name in positive if name in sums]
        return next(filter(None, [no_squares("information", sums["information"]), *found]), "")

    def by_site(
        self, before: EvaluatedProgress, after: EvaluatedProgress, sites: Sequence[Arrays]
    ) -> EvaluatedProgress:
        """Keep each site's counts and test of the fit; of the evaluation nothing is kept."""
        if before.fit.done:
            return after
        return replace(after, fit=self.model.by_site(before.fit, after.fit, sites))

    def table(self, state: EvaluatedProgress) -> dict[str, Any]:
        """Return the regression table, with ``evaluation`` beside it.

        ``auc`` takes cases and controls of one bin for tied. It is off by no more than
        ``auc_bound``, half the sum over bins of the share of cases times the share of controls.
        ``calibration`` has sums of weights for ``n`` and ``events`` in about tenths of the rows.
        ``evaluation`` is None where there is none; ``notes`` say why.
        """
        table, own = self.model.table(state.fit), state.evaluation
        table |= {"rounds": state.fit.rounds + own.rounds, "evaluation": None}
        if own.refused.size:
            why = own.refused.tobytes().decode()
            return {**table, "notes": [*table["notes"], f"no evaluation: {why}"]}
        intercept, slope, errors = _line(own)
        finite = bool(np.isfinite(slope))
        if not finite:
            why = "no calibration slope: the linear predictor separates the outcomes"
            table["notes"] = [*table["notes"], why]
        controls, cases = own.counts
        below = np.cumsum(controls) - controls
        pairs = cases.sum() * controls.sum()
        evaluation = {
            "apparent": not self.hold_out,
            "n": round(own.row_count),
            "events": round(own.events),
            "auc": float(cases @ (below + controls / 2.0) / pairs),
            "auc_bound": float(cases @ controls / pairs / 2.0),
            "brier": own.brier,
            "calibration": _calibration(own),
            "calibration_intercept": intercept if finite else None,
            "calibration_slope": slope if finite else None,
            "calibration_se": errors if finite else None,
        }
        return {**table, "evaluation": evaluation}


def _stepped(state: EvaluationProgress, fit: GlmProgress, totals: Arrays) -> EvaluationProgress:
    """Return the state after a round (raises ``AnalysisError`` where nothing can be evaluated)."""
    if state.phase == _MOMENTS:
        return _placed(state, fit.unit, totals)
    whole = fit.unit * fit.heaviness
    if state.phase == _HISTOGRAM:
        counts = np.maximum(totals["counts"] * whole, 0.0)
        if max(float(np.abs(total).max()) for total in totals.values()) >= LARGEST:
            raise AnalysisError("a sum is too large for its fixed point")
        state = replace(
            state,
            phase=_SLOPE,
            counts=counts,
            expected=totals["expected"] * whole,
            brier=float(totals["brier"]) * whole / float(counts.sum()),
        )
    information = totals["information"] * whole
    flat = np.linalg.eigvalsh(information)[0] < _FLAT
    if flat or _apart(state) or state.rounds > _MOST_ROUNDS:
        return replace(state, line=np.full(2, np.nan), done=True)
    covariance = np.asarray(np.linalg.inv(information), np.float64)
    score = totals["score"] * whole
    gap = float(np.sqrt(score @ covariance @ score))
    line = state.line + np.asarray(covariance @ score, np.float64)
    return replace(state, line=line, covariance=covariance, gap=gap, done=gap < CLOSE)


def _placed(state: EvaluationProgress, unit: float, totals: Arrays) -> EvaluationProgress:
    """Return the state with the place and width of eta."""
    rows = float(np.round(totals["rows"] * unit))
    events = float(np.round(totals["events"] * unit))
    if rows < 2:
        raise AnalysisError(f"{round(rows)} complete rows to evaluate")
    if not 0 < events < rows:
        raise AnalysisError("the outcome is the same in every row evaluated")
    centre = float(totals["sum"]) * unit / rows
    variance = float(totals["squares"]) * unit / rows - centre**2
    if float(totals["squares"]) >= LARGEST or variance <= 1e-6 * (1.0 + centre**2):
        raise AnalysisError("the model predicts the same for every row, or numbers too far apart")
    return replace(
        state,
        phase=_HISTOGRAM,
        row_count=rows,
        events=events,
        centre=centre,
        deviation=float(np.sqrt(variance)),
    )


def _line(state: EvaluationProgress) -> tuple[float, float, list[float]]:
    """Return intercept and slope on eta, with their standard errors."""
    turn = np.array([[1.0, -state.centre / state.deviation], [0.0, 1.0 / state.deviation]])
    intercept, slope = (turn @ state.line).tolist()
    errors: list[float] = np.sqrt(np.diag(turn @ state.covariance @ turn.T)).tolist()
    return intercept, slope, errors


def _apart(state: EvaluationProgress) -> bool:
    """Return whether no bin holds a row of one outcome beyond all rows of the other."""
    controls, cases = (np.flatnonzero(counts > _FLAT) for counts in state.counts)
    return bool(cases[0] > controls[-1] or controls[0] > cases[-1])


def _calibration(state: EvaluationProgress) -> list[dict[str, float]]:
    """Return predicted and observed shares in about tenths of the rows, by whole bins of eta."""
    counts = state.counts.sum(axis=0)
    middles = (np.cumsum(counts) - counts / 2.0) / counts.sum()
    groups = np.minimum((middles * _GROUPS).astype(int), _GROUPS - 1)
    found = []
    for group in range(_GROUPS):
        weight = float(counts[groups == group].sum())
        if weight > 0:
            events = float(state.counts[1][groups == group].sum())
            predicted = float(state.expected[groups == group].sum()) / weight
            found.append(
                {
                    "n": weight,
                    "events": events,
                    "predicted": predicted,
                    "observed": events / weight,
                }
            )
    return found
