"""The result of a Cox model by the names that users of lifelines know."""

from __future__ import annotations

from typing import Any

import numpy as np

from .frame import AnalysisError, FloatArray
from .glm_result import site_lines
from .labelled import frame, series
from .prediction import REFUSE
from .regression_result import RegressionResult
from .survival_curve import NORMAL_QUANTILE
from .text_table import aligned, p_text, short, test_text


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
        the references (lifelines': to one at the means); ratios of two rows are the same. There is
        no absolute risk, as no baseline hazard leaves a site.

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

    def log_likelihood_ratio_test(self) -> dict[str, float]:
        """Return the test that all coefficients are 0."""
        table = self.table
        return {
            "test_statistic": table["lr_chi2"],
            "degrees_freedom": table["df"],
            "p_value": table["lr_p"],
        }

    def proportional_hazard_test(self, time_transform: str = "identity") -> Any:
        """Return statistics and p-values by term, against ``identity`` or ``log`` time.

        Raises
        ------
        AnalysisError
            For another transform, or where the table has no test of it.
        """
        test = self.table["ph_test"].get(time_transform)
        if test is None:
            raise AnalysisError(f"time_transform {time_transform!r}: the table has no such test")
        return frame({"test_statistic": test["chi2"], "p": test["p"]}, self.table["terms"])

    def text(self) -> str:
        """Return the table as text of one width."""
        table = self.table
        facts = [
            f"Cox model, baselines of their own by {table['strata']}; ties by {table['ties']}",
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

    def _tests(self) -> list[str]:
        table = self.table
        lines = [f"concordance {short(self.concordance_index_)}"]
        for kind, words in (("lr", "likelihood ratio"), ("wald", "Wald"), ("score", "score")):
            chi2, p = table[f"{kind}_chi2"], table[f"{kind}_p"]
            lines.append(test_text(words, chi2, table["df"], p))
        for term, by_kind in table["tests"].items():
            if self.cov_type in by_kind:
                test = by_kind[self.cov_type]
                lines.append(test_text(term, test["chi2"], test["df"], test["p"]))
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
