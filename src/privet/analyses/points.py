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
        For an array of another shape, a number that is not finite, or a unit that is no power of
        two from 1 to 2^40.
    """
    for name, array in point.items():
        if array.shape != (expected := shapes.get(name, ())):
            raise AnalysisError(
                f"the point's {name} is of shape {array.shape}, expected {expected}", Told.MESSAGE
            )
        if not np.isfinite(array).all():
            raise AnalysisError(f"the point's {name} is not finite", Told.NUMBERS)
    require_powers(point, "unit", 0, 40)


def require_powers(point: Arrays, name: str, low: int, high: int) -> None:
    """Refuse a point whose units are no powers of two from 2^low to 2^high.

    Privacy: counts in such a unit lie on the grid of a secure sum, so that its total is a function
    of the pooled counts alone. In another unit the roundings of each site's own are in it as well.

    Raises
    ------
    AnalysisError
    """
    shares, powers = np.frexp(point[name])
    if (shares != 0.5).any() or ((powers - 1 < low) | (powers - 1 > high)).any():
        raise AnalysisError(
            f"the point's {name} is no power of two from 2^{low} to 2^{high}", Told.NUMBERS
        )


def require_grid(cells: float, least: int, most: int) -> int:
    """Return the number of cells of a grid of times, ``least`` to ``most``.

    Raises
    ------
    AnalysisError
        For another number, such as one that no memory holds. No time of the site's own decides.
    """
    if not least <= cells <= most:
        raise AnalysisError(
            f"the point's grid has {cells:.0f} cells, expected {least} to {most}", Told.MESSAGE
        )
    return int(cells)
