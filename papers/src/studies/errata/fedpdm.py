"""Errata of the FedPDM paper, in exact arithmetic.

One client with one record d = +1 in D and d = -1 in D', whose loss is d phi(x) with
phi'(x) = 1 for x <= -1, -x between and -1 for x >= 1: smooth, with slopes of at most G = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from .counterexample import Counterexample, Erratum


def slope(x: Fraction) -> Fraction:
    """Return phi'(x)."""
    return -x if abs(x) < 1 else -x / abs(x)


def upload(
    broadcasts: Sequence[Fraction], sign: int, rho: Fraction, eta: Fraction, steps: int
) -> Fraction:
    """Return y of the last round after the broadcasts x_0, from a dual of 0."""
    dual = y = Fraction(0)
    for centre in broadcasts:
        x = centre
        for _ in range(steps):
            x = x - eta * (sign * slope(x) - dual + rho * (x - centre))
        dual = dual + rho * (centre - x)
        y = x - dual / rho
    return y


def printed(rho: Fraction, eta: Fraction, steps: int) -> Fraction:
    """Return s of (35) for G = 1."""
    keep = abs(1 - rho * eta)
    return 4 * eta * sum(keep**step for step in range(steps))


def corrected(rho: Fraction, eta: Fraction, steps: int) -> Fraction:
    """Return s of (35) and what the dual adds, 2 G eta |1 - 2k| / (1 - |1 - rho eta|)."""
    apart = 2 * eta / (1 - abs(1 - rho * eta))  # the most that two duals differ, over rho
    return printed(rho, eta, steps) + abs(2 * (1 - rho * eta) ** steps - 1) * apart


def sensitivity(
    rho: Fraction = Fraction(10),
    eta: Fraction = Fraction(1, 25),
    steps: int = 1,
    rounds: int = 20,
) -> Counterexample:
    """Theorem 1: |y - y'| after some rounds with the same broadcasts.

    Broadcasts lie where phi has one slope, in the last round where it has the other if k > 1/2,
    k = 1 - (1 - rho eta)^Q: the difference of the duals then adds to that of the last gradients.
    """
    away = 2 + 20 / rho
    last = away if 2 * (1 - rho * eta) ** steps < 1 else -away
    broadcasts = [-away] * (rounds - 1) + [last]
    one, other = (upload(broadcasts, sign, rho, eta, steps) for sign in (1, -1))
    claimed, allowed = printed(rho, eta, steps), corrected(rho, eta, steps)
    instance = {"rho": rho, "eta": eta, "Q": steps, "rounds": rounds, "records": (1, -1)}
    return Counterexample(instance, "|y - y'|", abs(one - other), claimed, allowed)


def lower_bound(
    bound: Fraction = Fraction(-(10**6)), rho: Fraction = Fraction(1)
) -> Counterexample:
    """Assumption 1: minus the Lagrangian f(x) + lambda (x_0 - x) + rho/2 (x_0 - x)^2 for f = 0.

    At x = 0, x_0 = 1 and a dual that passes any bound, which the assumption says there is.
    """
    dual = bound - rho / 2 - 1
    found = -(dual + rho / 2)
    instance = {"f": "0", "rho": rho, "x": 0, "x_0": 1, "lambda": dual}
    return Counterexample(instance, "- Lagrangian", found, -bound)


ERRATA = (
    Erratum(
        "fedpdm/theorem-1",
        "Theorem 1: y of any round moves by at most s of (35)",
        "by s + 2 G eta |1 - 2k| / (1 - |1 - rho eta|), k = 1 - (1 - rho eta)^Q; by s alone in the "
        "first round",
        sensitivity,
    ),
    Erratum(
        "fedpdm/assumption-1",
        "Assumption 1, (29): the Lagrangian is bounded below in the models and the duals",
        "the losses are; the Lagrangian then is where every lambda_i = grad f_i(x_i), rho >= L",
        lower_bound,
    ),
)
