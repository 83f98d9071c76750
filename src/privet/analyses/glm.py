"""The generalised linear model of the pooled rows, by sums over the sites.

    maximise  l(beta) = sum_s sum_{i in s} w_i l(y_i, x_i' beta + o_i)

Newton's method, which is Fisher scoring at canonical links (McCullagh and Nelder, Generalized
Linear Models, 2nd edition, section 2.5): a site sends its part of the score U = X' w (y - mu), of
the information I = X' diag(w V(mu)) X and of the likelihood, and beta moves by I^-1 U of the sums,
so it ends where the pooled rows' estimate is. The first round is of counts and units, the second a
weighted least squares, the last also of what robust errors need: sum_i u_i u_i' (White,
Econometrica 48, 1980, 817-838), and sum_s U_s U_s' for errors clustered by site (Liang and Zeger,
Biometrika 73, 1986, 13-22).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from privet.core import mapped

from .analysis import Analysis, Arrays, Claim, Shapes
from .design import (
    Design,
    codes_of,
    column_of,
    complete_cases,
    numbers_of,
    too_large,
    undefined,
    unusable,
)
from .disclosure import (
    require_few_terms,
    require_large_cells,
    require_large_left_out,
    require_large_pairs,
    require_large_patterns,
)
from .family import FAMILIES
from .follow_up import add_left_out, are_many, are_other_codes
from .formula import Formula, Piece, quoted, read_formula
from .frame import AnalysisError, FloatArray, Frame, Levels
from .glm_begun import BegunModel
from .glm_site import GlmSums
from .glm_start import from_sizes, from_start, within
from .glm_state import EVALUATE, FIRTH, MEAT, SIZES, START, GlmProgress, design_of, fresh
from .glm_step import dispersion, from_correction, from_sums
from .glm_table import glm_table
from .possible import below_0, no_counts, no_left_out, no_product, no_squares
from .site_tests import against_pooled


@dataclass(frozen=True)
class Glm(Analysis[GlmProgress]):
    """A generalised linear model.

    Attributes
    ----------
    family : str
        ``binomial`` (logit), ``poisson`` (log) or ``gaussian`` (identity).
    formula : str
        See `formula`.
    exposure_column, offset_column : str
        Columns whose logarithm, and which as it is, is added to the linear predictor; "" is none.
    weight_column : str
        Weights w of rows whose variance is phi V(mu) / w: statsmodels' ``var_weights``. Rows, not
        weights, are counted.
    firth : bool
        Whether log det I / 2 is added to the likelihood, which gives separated outcomes finite
        estimates: Firth, Biometrika 80, 1993, 27-38. Binomial and Poisson; two sums a step.
    within : str
        With ``firth``, a larger formula whose penalty is taken, its other coefficients at 0: the
        smaller model of a likelihood-ratio test.
    complete_cases : str
        Further columns, separated by commas, in which a row has to have a value: those of a larger
        model whose likelihood is compared.
    begun : BegunModel, optional
        The coordinator's: where Newton's steps begin, in place of a weighted least squares.
    """

    name: ClassVar[str] = "glm"
    progress: ClassVar[type[Any]] = GlmProgress

    family: str = "binomial"
    formula: str = ""
    exposure_column: str = ""
    offset_column: str = ""
    weight_column: str = ""
    firth: bool = False
    within: str = ""
    complete_cases: str = ""
    begun: BegunModel | None = field(default=None, compare=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads: the outcome, those of the terms, then the others named."""
        further = (name.strip() for name in self.complete_cases.split(","))
        return tuple(dict.fromkeys((*self._used(), *filter(None, further))))

    def _used(self) -> tuple[str, ...]:
        """Return the columns whose values are used, each once."""
        others = (self.exposure_column, self.offset_column, self.weight_column)
        named = (*self._read().columns, *(name for name in others if name))
        return tuple(dict.fromkeys(named))

    def factors(self, frame: Frame) -> tuple[str, ...]:
        """Return the columns of texts, and those that the formula calls categories."""
        categories = self._read().categories
        return tuple(name for name in self._used() if name in frame.factors or name in categories)

    def sums(self, frame: Frame, levels: Levels) -> GlmSums:
        """Return what a site sums of its complete cases (raises ``AnalysisError``)."""
        formula = self._read()
        design = Design.of(formula, levels)
        complete, left_out = complete_cases(frame, self.columns)
        used = frame.only(self.columns).taken(complete)
        fine, dropped = self._usable(used, formula, levels)
        add_left_out(left_out, dropped)
        used = used.taken(fine)
        offset = np.zeros(used.rows)
        if self.offset_column:
            offset = offset + column_of(used, self.offset_column)
        if self.exposure_column:
            offset = offset + np.log(column_of(used, self.exposure_column))
        whole = 8 * used.rows * len(design.names)
        offset = mapped.kept(offset, whole)
        weights = np.ones(used.rows)
        if self.weight_column:
            weights = column_of(used, self.weight_column)
        weights = mapped.kept(weights, whole)
        outcome = mapped.kept(_outcome(used, formula.outcome, levels), whole)
        matrix, cells = design.matrix(used), tuple(design.cells(used))
        counts = tuple(dropped.values())
        return GlmSums(matrix, outcome, offset, weights, self.family, left_out, cells, counts)

    def _usable(
        self, frame: Frame, formula: Formula, levels: Levels
    ) -> tuple[NDArray[np.bool_], dict[str, int]]:
        """Return which complete rows (n,) can be used, and how many others there are by column.

        A row whose outcome is no code or count, whose weight or exposure is not above 0, or at
        which a logarithm or root is not defined, or a term too large, is left out: an error would
        say that there is one.

        Raises
        ------
        AnalysisError
            For a column of which more than a quarter of the rows are so.
        """
        reasons = [_no_outcome(frame, formula.outcome, levels, self.family)]
        for key, name in (
            ("exposure-column", self.exposure_column),
            ("weight-column", self.weight_column),
        ):
            if name:
                text = f"{key} {name!r} has numbers that are not above 0"
                reasons.append((name, column_of(frame, name) <= 0.0, text))
        reasons += undefined(formula, frame)
        fine, counts = np.ones(frame.rows, bool), dict[str, int]()
        for name, bad, text in reasons:
            if are_many(bad):
                raise AnalysisError(text)
            counts[name] = counts.get(name, 0) + int((fine & bad).sum())
            fine &= ~bad
        return fine, counts

    def guarded(self, sums: GlmSums, least: int) -> GlmSums:
        """Refuse terms, or an outcome, that show few records (raises ``AnalysisError``)."""
        names = [f"term {place + 1}" for place in range(sums.matrix.shape[1])]
        columns = [
            *zip(names, sums.matrix.T, strict=True),
            ("the offset", sums.offset),
            ("the weights", sums.weights),
            ("the outcome", sums.outcome),
        ]
        require_large_left_out(sums.dropped, least)
        require_few_terms(len(names), sums.num_examples)
        cells = require_large_cells(columns, least)
        require_large_pairs(cells, sums.cells, least)
        require_large_patterns(cells[:-1], cells[-1], least)
        return replace(sums, least=least)

    def begun_at(self, model: BegunModel) -> Self:
        """Return the same regression whose steps begin at another method's model."""
        return replace(self, begun=model)

    def saturates(self, point: Arrays) -> bool:
        """Return whether coefficients of the coordinator's are in the point."""
        return int(point["phase"]) != SIZES

    def begin(self, levels: Levels) -> GlmProgress:
        """Return the state before the first round (raises ``AnalysisError``)."""
        design = Design.of(self._read(), levels)
        if not design.names:
            raise AnalysisError("formula: no column has two categories")
        if not set(Design.of(read_formula(self.formula), levels).names) <= set(design.names):
            raise AnalysisError("within: the formula has columns that this one has not")
        outcome = self._read().outcome
        if outcome.column in levels:
            _two_levels(outcome, levels, self.family)
        return fresh(levels, len(design.names), len(self.columns))

    def point(self, state: GlmProgress) -> dict[str, FloatArray]:
        """Return the phase, units, and where there are any the basis and the coefficients."""
        point = {"phase": np.array(float(state.phase)), "unit": np.array(state.unit)}
        if state.phase == SIZES:
            return point
        for name in ("level", "heaviness", "spread", "null_spread", "shift"):
            point[name] = np.array(float(getattr(state, name)))
        point |= {"centre": state.centre, "basis": state.basis}
        if state.phase == START:
            return point | {"mean": np.array(state.mean)}
        point |= {"gamma": state.gamma}
        if state.phase == FIRTH:
            return point | {"inverse": np.linalg.inv(state.information)}
        return point | {"alpha": np.array(state.alpha), "direction": state.step}

    def shapes(self, state: GlmProgress) -> Shapes:
        """Return the shapes of the sums of the state's phase, p columns of the design."""
        width = len(state.gamma)
        square: tuple[int, ...] = (width, width)
        if state.phase == SIZES:
            return {
                "rows": (),
                "sites": (),
                "present": (width,),
                "nonzero": (width + 2,),
                "sizes": (width + 2,),
                "left_out": state.left_out.shape,
            }
        if state.phase == FIRTH:
            return {"rows": (), "correction": (width,)}
        of_null = {"null_information": (), "null_score": ()}
        if state.phase == START:
            return {"rows": (), "information": square, "score": (width,), **of_null}
        scalars = ("loglik", "deviance", "pearson", "outcomes", "log_weights", "violations")
        robust = {"meat": square, "cluster": square} if state.phase == MEAT else {}
        return {
            "rows": (),
            "information": square,
            "score": (width,),
            **dict.fromkeys(scalars, ()),
            **of_null,
            "null_loglik": (),
            "null_deviance": (),
            **robust,
        }

    def step(self, state: GlmProgress, totals: Arrays) -> GlmProgress:
        """Return the next state (raises ``AnalysisError`` for data without an estimate).

        Sums of other rows than those of the first round, since a site was away, are asked for
        again: likelihoods of different rows cannot be compared.
        """
        design = self._design(state)
        state = replace(state, rounds=state.rounds + 1)
        if state.phase == SIZES:
            return from_sizes(state, totals, self.family, design.names)
        if round(float(totals["rows"]) * state.unit) != round(state.row_count):
            return state
        if state.phase == START:
            state = from_start(state, totals, self.family, design.ones, design.names)
            free = self._free(state, design)
            gamma = free @ (free.T @ state.gamma)
            if self.begun is not None and state.phase == EVALUATE:
                return self.begun.taken(state, design)
            return replace(state, gamma=gamma, step=gamma)
        if state.phase in (EVALUATE, MEAT):
            return from_sums(state, totals, self.family, self.firth, design.ones, design.names)
        free = self._free(state, design)
        return from_correction(state, totals, free, design.ones, design.names)

    def rows_said(self, state: GlmProgress, sums: Arrays) -> float:
        """Return the complete cases."""
        return float(sums["rows"]) * state.unit

    def impossible(self, state: GlmProgress, claim: Claim) -> str:
        """Say what the counts, squares and information of a site cannot be."""
        sums, rows = claim.sums, claim.rows
        if state.phase == SIZES:
            return (
                no_counts("rows", sums["rows"] * state.unit)
                or no_counts("sites", sums["sites"] * state.unit, claim.sites)
                or no_counts("present", sums["present"] * state.unit, claim.sites)
                or no_counts("nonzero", sums["nonzero"] * state.unit, rows)
                or no_left_out(sums["left_out"] * state.unit)
            )
        positive = ("null_information", "deviance", "null_deviance", "pearson")
        found = [below_0(name, sums[name]) for name in positive if name in sums]
        matrices = ("information", "meat", "cluster")
        found += [no_squares(name, sums[name]) for name in matrices if name in sums]
        if "cluster" in sums and claim.sites == 1:
            found.append(no_product("cluster", sums["cluster"], sums["score"]))
        if "violations" in sums:
            found.append(no_counts("violations", sums["violations"] * state.unit))
        if "outcomes" in sums and self.family == "binomial":
            found.append(no_counts("outcomes", sums["outcomes"] * state.whole, rows))
        return next(filter(None, found), "")

    def by_site(
        self, before: GlmProgress, after: GlmProgress, sites: Sequence[Arrays]
    ) -> GlmProgress:
        """Keep each site's counts, and at the end its score test of the pooled model.

        At a penalised estimate the scores do not add up to 0, and there is no test.
        """
        if before.phase not in (EVALUATE, MEAT):
            return after
        counts = [(site["rows"] * before.unit, site["outcomes"] * before.whole) for site in sites]
        after = replace(after, site_counts=np.array(counts, float))
        if not after.done:
            return after
        root = np.sqrt(before.whole * before.heaviness)
        own = ((site["score"] * root, site["information"] * before.whole) for site in sites)
        phi = dispersion(after, self.family)
        return replace(after, site_tests=against_pooled(own, after.information, phi))

    def table(self, state: GlmProgress) -> dict[str, Any]:
        """Return the regression table; see `glm_table`."""
        settings = {
            "family": self.family,
            "link": FAMILIES[self.family].link,
            "formula": self.formula,
            "offset": self._offset(),
            "weights": self.weight_column or None,
            "firth": self.firth,
            "within": self.within or None,
        }
        if self.begun is not None:
            settings["begun"] = self.begun.source
        design = design_of(self.formula, state.levels)
        return glm_table(state, self._design(state), design, self.columns, settings)

    def _offset(self) -> str | None:
        logged = f"log({quoted(self.exposure_column)})" if self.exposure_column else ""
        plain = quoted(self.offset_column) if self.offset_column else ""
        return " + ".join(part for part in (logged, plain) if part) or None

    def _design(self, state: GlmProgress) -> Design:
        return design_of(self.within or self.formula, state.levels)

    def _free(self, state: GlmProgress, design: Design) -> FloatArray:
        """Return a basis (p, k) of the coefficients of Z at which those left out are 0."""
        names = design_of(self.formula, state.levels).names
        return within(state, design.ones, np.array([name in names for name in design.names]))

    def _read(self) -> Formula:
        """Return the formula whose design is taken, and check the settings."""
        if self.family not in FAMILIES:
            raise AnalysisError(f"family {self.family[:30]!r}: one of {', '.join(FAMILIES)}")
        if self.firth and self.family == "gaussian":
            raise AnalysisError("firth: of binomial and poisson; a Gaussian needs none")
        formula = read_formula(self.formula)
        if not self.within:
            return formula
        larger = read_formula(self.within)
        if not self.firth or larger.outcome != formula.outcome:
            raise AnalysisError("within: of firth, a larger formula of the same outcome")
        return larger


def _two_levels(outcome: Piece, levels: Levels, family: str) -> None:
    if family != "binomial":
        raise AnalysisError(f"outcome {outcome.column!r} holds texts; {family} needs numbers")
    count = len(levels[outcome.column])
    if count != 2:
        raise AnalysisError(f"outcome {outcome.column!r} has {count} categories; binomial needs 2")


def _outcome(frame: Frame, outcome: Piece, levels: Levels) -> FloatArray:
    """Return the outcome (n,); of two categories the second, in the agreed order, is 1."""
    if outcome.column in levels:
        return codes_of(frame, outcome.column, levels).astype(np.float64)
    return numbers_of(outcome, frame)[0]


def _no_outcome(
    frame: Frame, outcome: Piece, levels: Levels, family: str
) -> tuple[str, NDArray[np.bool_], str]:
    """Return the outcome's column, the rows (n,) whose value is none of the family's, and the error
    of a column of many of these."""
    name = outcome.column
    if name in levels:
        _two_levels(outcome, levels, family)
        return name, np.zeros(frame.rows, bool), ""
    bad = unusable(outcome, frame)
    if outcome.kind == "I":
        bad |= too_large([outcome], frame)
    text = f"{outcome.name} is not defined at the values of column {name!r}"
    if family == "gaussian" or are_many(bad):
        return name, bad, text
    (values,) = numbers_of(outcome, frame.taken(~bad))
    if family == "poisson":
        bad[~bad] = values < 0
        return name, bad, f"outcome {outcome.name} has numbers below 0; poisson counts"
    known = (values == 0) | (values == 1)
    bad[~bad] = ~known
    if are_other_codes(values, known):
        bad[:] = True
    return (
        name,
        bad,
        (
            f"outcome {outcome.name} has numbers other than 0 and 1: recode it, such as 1 and 2 "
            "into 0 and 1, use texts, or choose another family"
        ),
    )
