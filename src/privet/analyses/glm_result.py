"""A regression table as people read it: numbers by term, and texts for a page or a paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .frame import AnalysisError, FloatArray
from .glm_tests import likelihood_ratio
from .labelled import pandas_or_none, series
from .prediction import REFUSE
from .regression_result import RegressionResult
from .site_tests import hidden_sites, site_rows, tests_said
from .sklearn_pipeline import sklearn_pipeline
from .text_table import aligned, csv_text, digits, latex_rows, line, markdown_rows, side_by_side


class GlmResult(RegressionResult):
    """The result of a generalised linear model, by the names that statsmodels' users know.

    Series and frames are pandas' where it is installed, else mappings by term.

    Parameters
    ----------
    table : mapping
        As ``table.json`` holds it; see `glm_table`.
    cov_type : str
        Which errors are shown and tested with: ``nonrobust``, ``HC0`` or ``cluster`` (by site).

    Raises
    ------
    AnalysisError
        If the table has no errors of this kind.
    """

    def __init__(self, table: Mapping[str, Any], cov_type: str = "nonrobust") -> None:
        super().__init__(table, cov_type)
        self.model_terms: tuple[str, ...] = tuple(table["terms"])

    @property
    def params(self) -> Any:
        """The coefficients."""
        return self._series(self._coef)

    @property
    def bse(self) -> Any:
        """The standard errors; NaN where there is none."""
        return self._series(self._errors)

    @property
    def tvalues(self) -> Any:
        """The coefficients over their standard errors, which are normal."""
        return self._series(self._coef / self._errors)

    @property
    def pvalues(self) -> Any:
        """The two-sided p-values, by the normal distribution."""
        return self._series(self._p)

    @property
    def llf(self) -> float:
        """The log-likelihood."""
        return float(self.table["loglik"])

    @property
    def aic(self) -> float:
        """Akaike's criterion, -2 llf + 2 p."""
        return float(self.table["aic"])

    @property
    def bic(self) -> float:
        """Schwarz's criterion, -2 llf + p log n."""
        return float(self.table["bic"])

    @property
    def nobs(self) -> int:
        """The rows of all sites that were used."""
        return int(self.table["n"])

    def conf_int(self, alpha: float = 0.05) -> Any:
        """Return the intervals of level 1 - alpha: columns 0 and 1, or pairs by term."""
        ends = self._ends(alpha)
        pandas = pandas_or_none()
        if pandas is None:
            return {name: tuple(pair) for name, pair in zip(self.model_terms, ends, strict=True)}
        return pandas.DataFrame(ends, index=list(self.model_terms), columns=[0, 1])

    def cov_params(self) -> Any:
        """Return the covariance of the coefficients: a frame, or mappings by term."""
        values = self._covariance
        names, pandas = list(self.model_terms), pandas_or_none()
        if pandas is None:  # by row, which rounding tells from a column
            rows = values.tolist()
            return {
                name: dict(zip(names, row, strict=True))
                for name, row in zip(names, rows, strict=True)
            }
        return pandas.DataFrame(values, index=names, columns=names)

    def predict(self, columns: Any, alpha: float = 0.05, unknown: str = REFUSE) -> Any:
        """Return the linear predictor and the mean of new rows, with intervals of level 1 - alpha.

        The interval is of the mean, made on the scale of the linear predictor and then transformed.

        Parameters
        ----------
        columns : pandas frame, or mapping of str to sequence (n,)
            The columns of the terms, and those of the offset; others are left alone.
        alpha : float
        unknown : str
            ``refuse``, or ``missing``: a category that the model does not have is a missing value.

        Returns
        -------
        frame, or mappings
            ``linear_predictor``, ``mean``, ``mean_ci_lower``, ``mean_ci_upper``; NaN in rows with a
            missing value.

        Raises
        ------
        AnalysisError
            For a column that is not there, or holds what the model cannot read.
        """
        return self._predicted(columns, alpha, unknown)

    def to_sklearn(self) -> Any:
        """Return a scikit-learn pipeline that predicts from raw rows; see `sklearn_pipeline`.

        Raises
        ------
        AnalysisError
            For a model of the intercept alone, and where pandas is missing.
        """
        return sklearn_pipeline(self.table)

    def compare_lr_test(self, restricted: GlmResult) -> tuple[float, float, int]:
        """Return the likelihood-ratio test against a smaller model: statistic, p, and degrees.

        Raises
        ------
        AnalysisError
            For a model that is not nested in this one, or was fitted to other rows.
        """
        test = likelihood_ratio(restricted.table, self.table)
        return test["chi2"], test["p"], test["df"]

    def summary(self, alpha: float = 0.05) -> str:
        """Return the table as text of one width, in ASCII but for the names of columns."""
        low, high = f"[{alpha / 2:.3g}", f"{1 - alpha / 2:.3g}]"
        header = ("", "coef", "std err", "z", "P>|z|", low, high)
        ends = self._ends(alpha)
        rows = [
            (name, *(_fixed(value, 4) for value in values[:2]), *map(_fixed, values[2:]))
            for name, *values in zip(
                self.model_terms, self._coef, self._errors, self._z, self._p, *ends.T, strict=True
            )
        ]
        widths = [max(len(row[place]) for row in [header, *rows]) for place in range(7)]
        widths = [widths[0], *(max(width, 9) for width in widths[1:])]
        width = max(sum(widths) + 12, 78)
        widths[0] += width - sum(widths) - 12
        lines = ["Generalized linear model, all sites".center(width).rstrip(), "=" * width]
        lines += side_by_side(self._facts(), width)
        lines += ["=" * width, line(header, widths), "-" * width]
        lines += [line(row, widths) for row in rows]
        lines += ["=" * width, *self._ratio_lines(alpha)]
        lines += [*self._test_lines(), *site_lines(self.table), *evaluation_lines(self.table)]
        lines += self.table["notes"]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return self.summary()

    def to_markdown(self, alpha: float = 0.05) -> str:
        """Return the table in Markdown, with ratios where the link makes them."""
        return markdown_rows(self._header(alpha), self._rows(alpha, _short, _short_p))

    def to_latex(self, alpha: float = 0.05) -> str:
        """Return the table as a ``tabular`` of LaTeX with rules of the package booktabs."""
        return latex_rows(self._header(alpha), self._rows(alpha, _short, _short_p))

    def to_csv(self, alpha: float = 0.05) -> str:
        """Return the table as comma-separated values, all digits."""
        return csv_text([self._header(alpha), *self._rows(alpha, _all_digits, _all_digits)])

    @property
    def _z(self) -> FloatArray:
        return self._coef / self._errors

    @property
    def _p(self) -> FloatArray:
        from scipy.stats import norm

        values: FloatArray = 2.0 * norm.sf(np.abs(self._z))
        return values

    def _ends(self, alpha: float) -> FloatArray:
        from scipy.stats import norm

        if not 0 < alpha < 1:
            raise AnalysisError(f"alpha {alpha}: between 0 and 1, such as .05 for 95 %")
        reach = norm.ppf(1 - alpha / 2) * self._errors
        return np.stack([self._coef - reach, self._coef + reach], axis=1)

    def _series(self, values: FloatArray) -> Any:
        return series(values.tolist(), self.model_terms)

    def _facts(self) -> list[tuple[str, str]]:
        table, pearson = self.table, self.table["pearson_chi2"]
        facts = [
            ("Outcome", str(table["formula"]).split("~")[0].strip()),
            ("Family", f"{table['family']} ({table['link']})"),
            ("Errors", "clustered by site" if self.cov_type == "cluster" else self.cov_type),
            ("Penalty", "Firth" if table["firth"] else ""),
            ("Offset", table["offset"] or ""),
            ("Weights", table["weights"] or ""),
            ("Sites", str(table["sites"])),
            ("Observations", str(table["n"])),
            ("Events", "" if table["events"] is None else str(table["events"])),
            ("Df residuals", str(table["df_resid"])),
            ("Log-likelihood", f"{table['loglik']:.6g}"),
            ("Deviance", f"{table['deviance']:.6g}"),
            ("Pearson chi2", "" if pearson is None else f"{pearson:.4g}"),
            ("Scale", f"{table['scale']:.5g}"),
            ("AIC", f"{table['aic']:.6g}"),
            ("BIC", f"{table['bic']:.6g}"),
            ("Rounds", str(table["rounds"])),
        ]
        return [fact for fact in facts if fact[1]]

    def _ratio_lines(self, alpha: float) -> list[str]:
        """Return odds or rate ratios with their intervals, but for the intercept."""
        name = self.table.get("ratio_name")
        shown = [place for place, term in enumerate(self.model_terms) if term != "Intercept"]
        if not name or not shown:
            return []
        with np.errstate(over="ignore"):
            numbers = np.exp(np.column_stack([self._coef, self._ends(alpha)]))
        header = [name, "exp(coef)", f"[{alpha / 2:.3g}", f"{1 - alpha / 2:.3g}]"]
        rows = [[self.model_terms[place], *map(_short, numbers[place])] for place in shown]
        return [*aligned([header, *rows]), ""]

    def _test_lines(self) -> list[str]:
        return [
            f"{term}: chi2({test['df']}) = {test['chi2']:.4g}, p {_compared(test['p'])}"
            for term, by_kind in self.table["tests"].items()
            for kind, test in by_kind.items()
            if kind == self.cov_type
        ] + likelihood_ratio_lines(self.table)

    def _header(self, alpha: float) -> list[str]:
        level = f"{100 * (1 - alpha):g} %"
        header = ["term", "coef", "std err", "z", "p", f"{level} low", f"{level} high"]
        ratio = self.table.get("ratio_name")
        return header + ([ratio, f"{ratio} low", f"{ratio} high"] if ratio else [])

    def _rows(
        self, alpha: float, shown: Callable[[float], str], shown_p: Callable[[float], str]
    ) -> list[list[str]]:
        ends = self._ends(alpha)
        columns = [self._coef, self._errors, self._z, self._p, *ends.T]
        if self.table.get("ratio_name"):
            with np.errstate(over="ignore"):
                columns += [np.exp(self._coef), *np.exp(ends).T]
        return [
            [name, *(shown_p(v) if place == 3 else shown(v) for place, v in enumerate(row))]
            for name, row in zip(self.model_terms, np.stack(columns, axis=1).tolist(), strict=True)
        ]


def site_lines(table: Mapping[str, Any]) -> list[str]:
    """Return the lines of what a table has of each site, between blank ones; none without it."""
    heads, rows = site_rows(table)
    if not rows:
        return []
    shown = {"chi2": _short, "p": _short_p, "p_corrected": _short_p, "p_between": _short_p}
    cells = [
        ["" if row[head] is None else shown.get(head, str)(row[head]) for head in heads]
        for row in rows
    ]
    lines = aligned([[head.replace("_", " ") for head in heads], *cells])
    hidden, said = hidden_sites(table), tests_said(table)
    return ["", *lines, *filter(None, (said, hidden)), ""]


def likelihood_ratio_lines(table: Mapping[str, Any]) -> list[str]:
    """Return a line on the test against a nested run; none where there is none."""
    test = table.get("likelihood_ratio")
    if not test:
        return []
    chi2 = f"chi2({test['df']}) = {test['chi2']:.4g}"
    return [f"likelihood ratio against {test['smaller']}: {chi2}, p {_compared(test['p'])}"]


def evaluation_lines(table: Mapping[str, Any]) -> list[str]:
    """Return a line on how well the model predicts; none where it was not evaluated."""
    found = table.get("evaluation")
    if not found:
        return []
    which = "apparent, of the rows fitted" if found["apparent"] else "of rows held out"
    parts = [
        f"AUC {found['auc']:.4f} (off by {found['auc_bound']:.1g} at most)",
        f"Brier {found['brier']:.4f}",
    ]
    if found["calibration_slope"] is not None:
        errors = found["calibration_se"]
        parts.append(f"calibration slope {found['calibration_slope']:.3f} (se {errors[1]:.3f})")
        parts.append(f"intercept {found['calibration_intercept']:.3f} (se {errors[0]:.3f})")
    rows = f"{found['n']} rows, {found['events']} events"
    return [f"Evaluation, {which} ({rows}): {', '.join(parts)}"]


def _fixed(value: float, digits: int = 3) -> str:
    """Return a number with so many decimals, or in short where they would hide it."""
    if np.isnan(value):
        return ""
    if digits == 4 and value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3e}"
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3e}"


def _short(value: float) -> str:
    return "" if np.isnan(value) else digits(value)


def _short_p(value: float) -> str:
    if np.isnan(value):
        return ""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _compared(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _all_digits(value: float) -> str:
    return "" if np.isnan(value) else repr(value)
