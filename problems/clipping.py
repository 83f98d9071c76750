"""Bounding the rows of a feature matrix by a public norm."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from privet.problems.base import FloatArray
from privet.problems.validation import check_features, check_positive


def clip_rows(features: npt.ArrayLike, radius: float) -> FloatArray:
    """Return a copy of the features whose rows are scaled down to l2 norm <= ``radius``.

    Rows inside the ball keep their exact values; norms are taken in float64, and longer rows
    are shrunk by a few units in the last place more than needed, so that rounding cannot leave
    one outside.

    Privacy: every row depends on itself alone, so the clipped data set has the neighbours of
    the original one; the radius must be public.
    """
    radius = check_positive("radius", radius)
    result = np.array(check_features(features))
    wide = result.astype(np.float64, copy=False)
    norms = np.linalg.norm(wide, axis=1)
    outside = norms > radius
    shrunk = radius * (1.0 - 4.0 * float(np.finfo(result.dtype).eps))
    result[outside] = wide[outside] * (shrunk / norms[outside])[:, None]
    return result
