"""What a site takes as a point: its work, memory and reply grow with the arrays that it is sent."""

from __future__ import annotations

import numpy as np

from privet.kernel import Told

from .analysis import Arrays, Shapes
from .frame import AnalysisError


def require_point(point: Arrays, shapes: Shapes) -> None:
    """Refuse a point of another form than the analysis is asked at, before any work.

    ``shapes`` are those of its vectors and matrices; all others are numbers.

    Raises
    ------
    AnalysisError
        For an array of another shape, a number that is not finite, or a unit that is not above 0.
    """
    for name, array in point.items():
        if array.shape != (expected := shapes.get(name, ())):
            raise AnalysisError(
                f"the point's {name} is of shape {array.shape}, expected {expected}", Told.MESSAGE
            )
        if not np.isfinite(array).all():
            raise AnalysisError(f"the point's {name} is not finite", Told.NUMBERS)
    if not float(point["unit"]) > 0.0:
        raise AnalysisError("the point's unit is not above 0", Told.NUMBERS)


def require_grid(cells: float, least: int, most: int) -> int:
    """Return the number of cells of a grid of times, ``least`` to ``most``.

    Raises
    ------
    AnalysisError
        For another number: one that the site's own times pass, or that no memory holds.
    """
    if not least <= cells <= most:
        raise AnalysisError(
            f"the point's grid has {cells:.0f} cells, expected {least} to {most}", Told.MESSAGE
        )
    return int(cells)
