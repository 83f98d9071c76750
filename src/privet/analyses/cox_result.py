"""The result of a Cox model by the names that users of lifelines know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .cox_tests import cox_likelihood_ratio
from .frame import AnalysisError, FloatArray
from .glm_result import site_lines
from .labelled import frame, series
from .prediction import REFUSE, baseline_of, cumulative_hazards, row_names
from .regression_result import RegressionResult
from .survival_curve import NORMAL_QUANTILE
from .text_table import aligned, latex_rows, markdown_rows, p_text, short, test_text


class CoxResult(RegressionResult):
    """The result of a Cox model, with the attributes of lifelines' ``CoxPHFitter``.

    Series and frames are pandas' where it is installed, else mappings by term.

    Parameters
    ----------
    table : mapping
        As ``table.json`` holds it; see `cox_table`.
    cov_type : str
        Which errors are shown and tested with: ``nonrobust``, ``robust`` or ``cluster`` (by site).

    Raises
    ------
    AnalysisError
        If the table has no errors of this kind.
    """

    @property
    def params_(self) -> Any:
        """The coefficients, logarithms of hazard ratios."""
        return series(self.table["coef"], self.table["terms"], "coef")

    @property
    def hazard_ratios_(self) -> Any:
        """exp of the coefficients."""
        return series(np.exp(self._coef).tolist(), self.table["terms"], "exp(coef)")

    @property
    def standard_errors_(self) -> Any:
        """The standard errors; NaN where there is none."""
        return series(self._errors.tolist(), self.table["terms"], "se")

    @property
    def variance_matrix_(self) -> Any:
        """The covariance of the coefficients."""
        terms = self.table["terms"]
        return frame(dict(zip(terms, self._covariance.T.tolist(), strict=True)), terms)

    @property
    def confidence_intervals_(self) -> Any:
        """Intervals of the coefficients, of 95 per cent."""
        low, high = self._ends
        columns = {"95% lower-bound": low.tolist(), "95% upper-bound": high.tolist()}
        return frame(columns, self.table["terms"])

    @property
    def log_likelihood_(self) -> float:
        """The partial log-likelihood."""
        return float(self.table["loglik"])

    @property
    def AIC_partial_(self) -> float:
        """Akaike's criterion of the partial likelihood."""
        return float(self.table["aic"])

    @property
    def concordance_index_(self) -> float:
        """The share of pairs within sites and strata in the order of their risks, ties half."""
        value = self.table["concordance"]
        return float("nan") if value is None else float(value)

    @property
    def summary(self) -> Any:
        """The table of terms, with the columns of lifelines'."""
        return frame(self._columns(), self.table["terms"])

    def predict_partial_hazard(
        self, columns: Any, alpha: float = 0.05, unknown: str = REFUSE
    ) -> Any:
        """Return the relative hazards exp(x' b) of new rows, with intervals of level 1 - alpha.

        They are relative to a row of the same stratum whose numbers are 0 and whose categories are
        the references (lifelines': to one at the means); ratios of two rows are the same.

        Parameters
        ----------
        columns, alpha, unknown
            As of `GlmResult.predict`.

        Returns
        -------
        frame, or mappings
            ``linear_predictor``, ``partial_hazard``, ``partial_hazard_ci_lower``,
            ``partial_hazard_ci_upper``; NaN in rows with a missing value.

        Raises
        ------
        AnalysisError
            For a column that is not there, or holds what the model cannot read.
        """
        return self._predicted(columns, alpha, unknown)

    @property
    def baseline_cumulative_hazard_(self) -> Any:
        """Breslow's H_0 by time, of a row at the means; of ``baseline = pooled`` alone.

        Raises
        ------
        AnalysisError
            For a model stratified by site: no site's baseline leaves it.
        """
        baseline = baseline_of(self.table)
        hazard, times = baseline["cumulative_hazard"], baseline["times"]
        return series(hazard, times, "baseline cumulative hazard")

    @property
    def baseline_survival_(self) -> Any:
        """exp(-H_0) by time, of a row at the means; as `baseline_cumulative_hazard_`."""
        baseline = baseline_of(self.table)
        survival = np.exp(-np.array(baseline["cumulative_hazard"], float))
        return series(survival.tolist(), baseline["times"], "baseline survival")

    def predict_cumulative_hazard(
        self, columns: Any, times: Sequence[float] | None = None, unknown: str = REFUSE
    ) -> Any:
        """Return H(t | x) = H_0(t) exp((x - c)' b) by time, a column for each new row.

        Of a model with ``baseline = pooled``. Breslow's H_0 is a step function, also between the
        times of events, where lifelines' interpolates; there are no intervals.

        Parameters
        ----------
        columns, unknown
            As of `GlmResult.predict`.
        times : sequence of float, optional
            By default 0 and the times at which the event occurred.

        Raises
        ------
        AnalysisError
            For a model stratified by site, a time below 0, and what `GlmResult.predict` refuses.
        """
        asked, hazards = cumulative_hazards(self.table, columns, times, unknown=unknown)
        return _by_row(columns, asked, hazards)

    def predict_survival_function(
        self, columns: Any, times: Sequence[float] | None = None, unknown: str = REFUSE
    ) -> Any:
        """Return S(t | x) = exp(-H(t | x)) by time, a column for each new row.

        The arguments and errors are those of `predict_cumulative_hazard`.
        """
        asked, hazards = cumulative_hazards(self.table, columns, times, unknown=unknown)
        return _by_row(columns, asked, np.exp(-hazards))

    def log_likelihood_ratio_test(self, smaller: Any = None) -> dict[str, float]:
        """Return the test of this model against a smaller one, or that all coefficients are 0.

        Parameters
        ----------
        smaller : CoxResult, AnalysisResult or mapping, optional
            The result, or the table, of a model with some of this one's columns on the same rows.

        Raises
        ------
        AnalysisError
            For a model that is not nested in this one, of other rows, or penalised.
        """
        table = self.table
        if smaller is not None:
            test = cox_likelihood_ratio(getattr(smaller, "table", smaller), table)
            return {
                "test_statistic": test["chi2"],
                "degrees_freedom": test["df"],
                "p_value": test["p"],
            }
        return {
            "test_statistic": table["lr_chi2"],
            "degrees_freedom": table["df"],
            "p_value": table["lr_p"],
        }

    def proportional_hazard_test(self, time_transform: str = "identity") -> Any:
        """Return statistics and p-values by term, against a transform of time.

        These are ``identity`` and ``log``, and with ``baseline = pooled`` ``rank`` and ``km``, as
        lifelines has them, but that deaths at one time have the mean of their ranks.

        Raises
        ------
        AnalysisError
            For another transform, or where the table has no test of it.
        """
        tests = self.table["ph_test"]
        test = tests.get(time_transform)
        if test is None:
            pooled = time_transform in ("rank", "km") and time_transform not in tests
            why = ": it needs the pooled grid of baseline = pooled" if pooled else ""
            raise AnalysisError(f"time_transform {time_transform!r}: no such test{why}")
        return frame({"test_statistic": test["chi2"], "p": test["p"]}, self.table["terms"])

    def text(self) -> str:
        """Return the table as text of one width."""
        table = self.table
        own = f"baselines of their own by {table['strata']}"
        of_baselines = own if table["strata"] else "one baseline for all sites"
        facts = [
            f"Cox model, {of_baselines}; ties by {table['ties']}",
            f"{table['n']} rows, {table['events']} events ({table['event']}), {table['sites']} "
            f"sites, {table['num_strata']} strata; errors: {self.cov_type}",
            "partial log-likelihood "
            f"{table['loglik']:.6g}, at 0 {table['null_loglik']:.6g}; AIC {table['aic']:.6g}",
        ]
        header = ["", "coef", "exp(coef)", "se(coef)", "z", "p", "lower 95%", "upper 95%"]
        columns = self._columns()
        rows = []
        for place, term in enumerate(table["terms"]):
            cells = [short(columns[kind][place]) for kind in ("coef", "exp(coef)", "se(coef)", "z")]
            ends = [short(columns[f"exp(coef) {end} 95%"][place]) for end in ("lower", "upper")]
            rows.append([term, *cells, p_text(columns["p"][place]), *ends])
        lines = [*facts, "", *aligned([header, *rows]), "", *self._tests()]
        lines += [*site_lines(table), *table["notes"]]
        return "\n".join(lines)

    def print_summary(self) -> None:
        """Print `text`."""
        print(self.text())

    def __str__(self) -> str:
        return self.text()

    def to_markdown(self) -> str:
        """Return coefficients and hazard ratios with their intervals in Markdown."""
        return markdown_rows(*self._paper())

    def to_latex(self) -> str:
        """Return them as a ``tabular`` of LaTeX with rules of the package booktabs."""
        return latex_rows(*self._paper())

    def _paper(self) -> tuple[list[str], list[list[str]]]:
        ratio = "hazard ratio"
        header = ["term", "coef", "std err", "z", "p", ratio, f"{ratio} low", f"{ratio} high"]
        columns = self._columns()
        names = ["coef", "se(coef)", "z", "p"]
        names += ["exp(coef)", "exp(coef) lower 95%", "exp(coef) upper 95%"]
        shown = {"p": p_text}
        cells = [[shown.get(name, short)(value) for value in columns[name]] for name in names]
        return header, [list(row) for row in zip(self.table["terms"], *cells, strict=True)]

    def _tests(self) -> list[str]:
        lines = [f"concordance {short(self.concordance_index_)}", *self.model_tests()]
        for term, by_kind in self.table["tests"].items():
            if self.cov_type in by_kind:
                test = by_kind[self.cov_type]
                lines.append(test_text(term, test["chi2"], test["df"], test["p"]))
        return lines

    def model_tests(self) -> list[str]:
        """Return lines on the tests that all coefficients are 0, and of proportional hazards."""
        table, lines = self.table, []
        for kind, words in (("lr", "likelihood ratio"), ("wald", "Wald"), ("score", "score")):
            chi2, p = table[f"{kind}_chi2"], table[f"{kind}_p"]
            lines.append(test_text(words, chi2, table["df"], p))
        for name, test in table["ph_test"].items():
            if test is not None:
                words = f"proportional hazards against {name} time"
                numbers = (test["global_chi2"], test["global_df"], test["global_p"])
                lines.append(test_text(words, *numbers))
        return lines

    @property
    def _ends(self) -> tuple[FloatArray, FloatArray]:
        reach = NORMAL_QUANTILE * self._errors
        return self._coef - reach, self._coef + reach

    def _columns(self) -> dict[str, list[float]]:
        from scipy.stats import norm

        low, high = self._ends
        z = self._coef / self._errors
        columns = {
            "coef": self._coef,
            "exp(coef)": np.exp(self._coef),
            "se(coef)": self._errors,
            "coef lower 95%": low,
            "coef upper 95%": high,
            "exp(coef) lower 95%": np.exp(low),
            "exp(coef) upper 95%": np.exp(high),
            "z": z,
            "p": 2.0 * norm.sf(np.abs(z)),
            "-log2(p)": -(norm.logsf(np.abs(z)) / np.log(2.0) + 1.0),
        }
        return {name: np.asarray(values).tolist() for name, values in columns.items()}


def _by_row(columns: Any, times: Sequence[float], values: FloatArray) -> Any:
    """Return values (k, n) by time; columns are named as rows, numbered where names repeat."""
    names = row_names(columns, values.shape[1])
    if len(set(names)) < len(names):
        names = list(range(len(names)))
    by_row = {name: one.tolist() for name, one in zip(names, values.T, strict=True)}
    return frame(by_row, list(times))
