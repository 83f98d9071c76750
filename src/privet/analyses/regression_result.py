"""What results of regressions share: coefficients, their errors and their covariance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .frame import AnalysisError, FloatArray
from .prediction import labelled, predicted


class RegressionResult:
    """A regression table with the kind of errors that it is read with.

    Parameters
    ----------
    table : mapping
        As ``table.json`` holds it.
    cov_type : str
        The kind of standard errors.

    Raises
    ------
    AnalysisError
        If the table has no errors of this kind.
    """

    def __init__(self, table: Mapping[str, Any], cov_type: str = "nonrobust") -> None:
        if cov_type not in table["se"]:
            raise AnalysisError(f"cov_type {cov_type!r}: the table has {', '.join(table['se'])}")
        self.table = table
        self.cov_type = cov_type

    def _predicted(self, columns: Any, alpha: float, unknown: str) -> Any:
        found = predicted(self.table, columns, self._covariance, alpha=alpha, unknown=unknown)
        return labelled(columns, found)

    @property
    def _coef(self) -> FloatArray:
        return np.array(self.table["coef"], float)

    @property
    def _errors(self) -> FloatArray:
        return np.array(self.table["se"][self.cov_type], float)

    @property
    def _covariance(self) -> FloatArray:
        robust = self.table["cov_robust"].get(self.cov_type)
        return np.array(self.table["cov"] if robust is None else robust, float)
