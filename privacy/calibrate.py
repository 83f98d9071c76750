"""From a total epsilon to the noise: one search, whatever is released.

What a given noise costs is the business of whoever knows the releases; here is only the search for
the smallest noise whose cost stays at or below a target.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from privet.privacy.checks import positive

SMALLEST, LARGEST = 1e-60, 1e60
_STEP = math.log(8.0)
_FINE, _COARSE = 1e-9, 1e-4


def smallest_noise(
    cost: Callable[[float], float], target: float, *, exact: bool = True, start: float = 1.0
) -> float:
    """Return the smallest noise that costs at most ``target``, never one that costs more.

    Parameters
    ----------
    cost : callable
        noise > 0 -> epsilon of everything that will have been released with it, and of what was
        released before; it must not grow with the noise.
    target : float
        epsilon > 0.
    exact : bool
        Whether the cost has a closed form; one that is found on a grid is searched to a relative
        1e-4 of the noise in place of 1e-9.
    start : float
        Where the search begins.

    Raises
    ------
    ValueError
        If no noise reaches the target, as where what was paid before passes it, or none is needed.
    """
    positive(target=target, start=start)
    tolerance = _FINE if exact else _COARSE

    def excess(place: float) -> float:
        return max(-1e300, min(1e300, cost(math.exp(place)) - target))

    high = math.log(start)
    while excess(high) > 0:
        high += _STEP
        if high > math.log(LARGEST):
            raise ValueError(f"no noise brings the total down to epsilon {target:g}")
    low = high - _STEP
    while excess(low) <= 0:
        high, low = low, low - _STEP
        if low < math.log(SMALLEST):
            raise ValueError("no noise is needed: nothing is released, or nothing of the data")
    from scipy import optimize

    found = float(optimize.brentq(excess, low, high, xtol=tolerance / 4, rtol=1e-15))
    # The root is met from either side: take the next noise that keeps the promise.
    step = tolerance / 4
    while excess(found) > 0:
        found, step = found + step, 2.0 * step
    return math.exp(found)
