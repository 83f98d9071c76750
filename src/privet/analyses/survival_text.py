"""Numbers of survival results as texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def short(value: float) -> str:
    """Return a number in four digits; "-" for one that is not reached or does not exist."""
    return f"{value:.4g}" if np.isfinite(value) else "-"


def p_text(p: float) -> str:
    """Return a p-value in three decimals, or that it is below."""
    if not np.isfinite(p):
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def test_text(words: str, chi2: float, df: int, p: float) -> str:
    """Return a test's line."""
    compared = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return f"{words}: chi2({df}) = {short(chi2)}, {compared}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of columns of one width: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
