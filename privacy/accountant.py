"""What a list of releases costs: Renyi DP in closed form, privacy loss distributions beside it.

Both are upper bounds on the same quantity, so the smaller is reported and both are kept. The
Renyi part is our own closed form (microseconds, used by the agent's veto); the other composes
privacy loss distributions with dp_accounting, pessimistically discretised.

A vector Laplace release of L1 sensitivity s is dominated by the scalar one of sensitivity s
(hybrid argument: the trade-off function of the shifted product is at least the group composition
of its factors, which for Laplace is the scalar one), and a vector Gaussian release of L2
sensitivity s by the scalar Gaussian. The sensitivity of a `Release` already belongs to its
neighbouring relation, so nothing here doubles it.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privet.privacy.errors import UnsupportedAccountError
from privet.privacy.events import Release

ORDERS: Final[NDArray[np.float64]] = 1.0 + np.logspace(-1.9, 6.0, 400)
ORDERS.setflags(write=False)

_FINEST, _COARSEST = 1e-7, 1e-3
_MOST_SINGLE_POINTS, _MOST_COMPOSED_POINTS = 1e5, 4e6
_STAGE, _ABSURD, _HOPELESS = 1000, 1e5, 1e100
_DISTINCT_LAPLACE, _ROUNDING = 64, math.log(1.005)


@dataclass(frozen=True, slots=True)
class Account:
    """The cost of a list of releases at one delta.

    Attributes
    ----------
    epsilon
        The smaller of `rdp` and `pld`; inf if anything left without noise.
    delta
        The delta all three epsilons refer to.
    method
        "rdp", "pld", or "none" when there is nothing to account (no release, or no noise).
    rdp, pld
        Epsilon by Renyi differential privacy and by privacy loss distributions (inf, unevaluated,
        when the former is above 1e5).
    """

    epsilon: float
    delta: float
    method: str
    rdp: float
    pld: float


def account(releases: Iterable[Release], delta: float) -> Account:
    """Compose releases and return the epsilon at delta: the smaller of RDP and PLD.

    Composition is adaptive and sequential over everything given; select the releases of one agent
    towards one audience before the call.

    Parameters
    ----------
    releases
        Release events of one agent; one relation and one unit.
    delta
        In (0, 1).

    Raises
    ------
    UnsupportedAccountError
        For subsampled releases or mixed relations or units.
    ValueError
        For a delta outside (0, 1).
    """
    gaussian, laplace, unnoised = _collapse(_once(releases))
    _check_delta(delta)
    if unnoised:
        return Account(math.inf, delta, "none", math.inf, math.inf)
    if gaussian == 0 and not laplace:
        return Account(0.0, delta, "none", 0.0, 0.0)
    rdp = _convert(_curve(gaussian, laplace, ORDERS), ORDERS, delta)
    if rdp == 0:
        return Account(0.0, delta, "rdp", 0.0, 0.0)
    # Far beyond any use, a loss distribution would only cost time and memory.
    pld = _epsilon_pld(gaussian, laplace, delta) if rdp < _ABSURD else math.inf
    method = "pld" if pld < rdp else "rdp"
    return Account(min(rdp, pld), delta, method, rdp, pld)


def epsilon_rdp(
    releases: Iterable[Release],
    delta: float,
    orders: Sequence[float] | NDArray[np.float64] | None = None,
) -> float:
    """Return the RDP epsilon at delta: closed forms only, well under a millisecond.

    Gaussian: R(alpha) = alpha mu^2 / 2. Laplace of pure loss t:
    R(alpha) = log[alpha e^{(alpha-1) t} / (2 alpha-1) + (alpha-1) e^{-alpha t} / (2 alpha-1)] /
    (alpha-1) (Mironov 2017, Proposition 6). Conversion: Canonne, Kamath and Steinke 2020,
    Proposition 12. Infinite without noise, 0 without releases.

    Parameters
    ----------
    releases
        As for `account`.
    delta
        In (0, 1).
    orders
        Renyi orders > 1 to minimise over; a grid from 1.01 to 1e6 unless given.
    """
    grid = ORDERS if orders is None else np.asarray(orders, dtype=np.float64)
    return epsilon_of_messages(_once(releases), delta, grid)


def epsilon_of_messages(
    messages: Iterable[tuple[Release, int]], delta: float, orders: NDArray[np.float64] = ORDERS
) -> float:
    """Return `epsilon_rdp` of releases that were each made some number of times."""
    gaussian, laplace, unnoised = _collapse(messages)
    _check_delta(delta)
    if unnoised:
        return math.inf
    return _convert(_curve(gaussian, laplace, orders), orders, delta)


def rdp_curve(
    releases: Iterable[Release], orders: Sequence[float] | NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the composed Renyi divergence bound at each order > 1 (inf without noise)."""
    gaussian, laplace, unnoised = _collapse(_once(releases))
    grid = np.asarray(orders, dtype=np.float64)
    if np.any(grid <= 1):
        raise ValueError("orders must be greater than 1")
    if unnoised:
        return np.full(grid.shape, math.inf)
    return _curve(gaussian, laplace, grid)


def epsilon_of_curve(
    curve: NDArray[np.float64], orders: NDArray[np.float64], delta: float
) -> float:
    """Return the epsilon at delta of a composed Renyi curve, e.g. a running sum of `rdp_curve`."""
    _check_delta(delta)
    return _convert(curve, orders, delta)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta!r}, expected a number in (0, 1)")


def _once(releases: Iterable[Release]) -> Iterable[tuple[Release, int]]:
    return ((release, 1) for release in releases)


def _collapse(
    messages: Iterable[tuple[Release, int]],
) -> tuple[float, dict[float, int], bool]:
    """Return (sum of mu^2, {Laplace loss: count}, anything un-noised?), after the checks."""
    gaussian, laplace, unnoised = Counter[float](), Counter[float](), False
    first: Release | None = None
    for release, times in messages:
        first = first or release
        if release.sampling != "none":
            raise UnsupportedAccountError(
                f"sampling {release.sampling!r} cannot be accounted: the observer sees who and "
                "what takes part, so nothing is amplified; account it as 'none'"
            )
        if (release.relation, release.unit) != (first.relation, first.unit):
            raise UnsupportedAccountError(
                f"releases under {first.relation!r} and {release.relation!r} cannot be composed"
            )
        loss = release.loss
        if loss > _HOPELESS:
            unnoised = True
        elif loss > 0:
            (gaussian if release.mechanism == "gaussian" else laplace)[loss] += (
                release.count * times
            )
    # Grouped and summed exactly, so that the order and grouping of equal releases does not move
    # the last bit of a total that is compared with a budget.
    total = math.fsum(count * (loss * loss) for loss, count in gaussian.items())
    return total, dict(sorted(laplace.items())), unnoised


def _curve(
    gaussian: float, laplace: dict[float, int], orders: NDArray[np.float64]
) -> NDArray[np.float64]:
    curve = orders * (gaussian / 2.0)
    for loss, count in laplace.items():
        curve += count * _laplace_curve(loss, orders)
    return curve


def _laplace_curve(loss: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    less = orders - 1.0
    up, down = orders / (2.0 * orders - 1.0), less / (2.0 * orders - 1.0)
    # The first-order terms of the two exponentials cancel: expm1 keeps the difference exact, and
    # factoring e^{(alpha-1) t} out keeps it finite.
    inner = np.where(
        less * loss < 1.0,
        np.log1p(up * np.expm1(np.minimum(less * loss, 1.0)) + down * np.expm1(-orders * loss)),
        less * loss + np.log(up + down * np.exp((1.0 - 2.0 * orders) * loss)),
    )
    result: NDArray[np.float64] = np.maximum(inner, 0.0) / less
    return result


def _convert(curve: NDArray[np.float64], orders: NDArray[np.float64], delta: float) -> float:
    """Turn a Renyi curve into the smallest epsilon at delta."""
    if not curve.size or np.any(delta**2 + np.expm1(-curve) > 0):
        # Total variation <= sqrt(1 - exp(-KL)), and KL is below every order's divergence.
        return 0.0
    bonus, logs, less, usable = _TERMS if orders is ORDERS else _terms(orders)
    epsilon = curve + bonus - (math.log(delta) + logs) / less
    best = epsilon[usable]
    return max(0.0, float(best.min())) if best.size else math.inf


def _terms(orders: NDArray[np.float64]) -> tuple[NDArray[Any], ...]:
    """Return what the conversion needs of the orders: log(1 - 1/a), log a, a - 1, a > 1.01."""
    return np.log1p(-1.0 / orders), np.log(orders), orders - 1.0, orders > 1.01


_TERMS = _terms(ORDERS)


def _epsilon_pld(gaussian: float, laplace: dict[float, int], delta: float) -> float:
    """Compose privacy loss distributions; pessimistic, so never below the true epsilon.

    Gaussians alone compose to one Gaussian, whose epsilon is known exactly and needs no grid.
    """
    if not laplace:
        from dp_accounting.gaussian_mechanism import (
            get_epsilon_gaussian,
        )

        return float(get_epsilon_gaussian(1.0 / math.sqrt(gaussian), delta))
    from dp_accounting.pld import (
        privacy_loss_distribution as pld,
    )

    laplace = _rounded_up(laplace)
    step = _discretisation(gaussian, laplace)
    parts: list[Any] = []
    if gaussian > 0:
        parts.append(
            pld.from_gaussian_mechanism(
                1.0 / math.sqrt(gaussian), value_discretization_interval=step
            )
        )
    for loss, count in laplace.items():
        single = pld.from_laplace_mechanism(1.0 / loss, value_discretization_interval=step)
        parts.append(_self_composed(single, count))
    total = functools.reduce(lambda left, right: left.compose(right), parts)
    return float(total.get_epsilon_for_delta(delta))


def _self_composed(single: Any, count: int) -> Any:
    """Compose `count` copies in square-root stages.

    One stage over very many copies truncates by a loose Chernoff bound and needs 20 times the
    memory; stages truncate tightly, and what they cut is counted as infinite loss.
    """
    if count <= _STAGE:
        return single.self_compose(count) if count > 1 else single
    inner = round(math.sqrt(count))
    outer, rest = divmod(count, inner)
    total = _self_composed(_self_composed(single, inner), outer)
    return total.compose(_self_composed(single, rest)) if rest else total


def _rounded_up(laplace: dict[float, int]) -> dict[float, int]:
    """Round losses up to a grid of 0.5 % when too many differ: costs a little, never gains."""
    if len(laplace) <= _DISTINCT_LAPLACE:
        return laplace
    rounded = Counter[float]()
    for loss, count in laplace.items():
        rounded[math.exp(math.ceil(math.log(loss) / _ROUNDING) * _ROUNDING)] += count
    return dict(rounded)


def _discretisation(gaussian: float, laplace: dict[float, int]) -> float:
    """Pick the loss grid: fine against every single loss, coarse enough for time and memory."""
    finest = min([*laplace, math.sqrt(gaussian) or math.inf]) / 20.0
    spread = math.sqrt(gaussian + sum(n * loss * loss for loss, n in laplace.items()))
    single = 20.0 * math.sqrt(gaussian) + 2.0 * sum(laplace)
    return max(
        min(_COARSEST, max(_FINEST, finest)),
        single / _MOST_SINGLE_POINTS,
        20.0 * spread / _MOST_COMPOSED_POINTS,
    )
