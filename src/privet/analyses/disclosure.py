"""What the sums of a regression would give away of single records, which a node refuses.

At coefficients of 0 the information X' X is the cross-table of the columns that are 0 and 1. So a
site with one to ``least`` - 1 ones, or zeros, in such a column, the outcome among them, shows a
cell of as many records. A model with more than a third as many terms as rows shows rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from privet.kernel import Told

from .frame import AnalysisError, FloatArray
from .small_cells import is_rare


def require_large_cells(columns: Iterable[tuple[str, FloatArray]], least: int) -> None:
    """Refuse columns of 0 and 1 with few of either (raises ``AnalysisError``)."""
    for name, values in columns:
        if is_rare(values, least):
            raise AnalysisError(
                f"min-cell = {least}: {name} has fewer ones or zeros at this site", Told.SMALL_CELL
            )


def require_few_terms(terms: int, rows: int) -> None:
    """Refuse more than a third as many terms as rows (raises ``AnalysisError``)."""
    if 3 * terms > rows:
        raise AnalysisError(f"{terms} terms of {rows} rows of this site", Told.MANY_TERMS)
