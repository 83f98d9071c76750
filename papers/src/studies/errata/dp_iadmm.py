"""Errata of the DP-IADMM paper: densities of Laplace noise, written out.

One agent with one record. A record of slope s has the loss f(z) = s z on the line, and (8) is
solved by its slope plus the noise one to one, so that an output tells of the slope and the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from .counterexample import Counterexample, Erratum

DOMAIN = (0.0, 1.0, 3.0)
"""Slopes of all records."""


def log_density(value: float, scale: float) -> float:
    """Return the logarithm of the density of Laplace noise."""
    return -abs(value) / scale - math.log(2 * scale)


def local_scale(slope: float, domain: Sequence[float], epsilon: float) -> float:
    """Return the scale of (9): Delta of (9b) is the farthest that a record lies from the own."""
    return max(abs(slope - other) for other in domain) / epsilon


def common_scale(domain: Sequence[float], epsilon: float) -> float:
    """Return the scale of the two records that lie farthest apart, the same for all data."""
    return (max(domain) - min(domain)) / epsilon


def one_step(
    slopes: tuple[float, float] = (0.0, 1.0),
    domain: Sequence[float] = DOMAIN,
    epsilon: float = 1.0,
    output: float = -100.0,
    *,
    local: bool = True,
) -> Counterexample:
    """Theorem 1: |ln p(output; D) / p(output; D')|, by the printed scale or the common one."""
    common = common_scale(domain, epsilon)
    one, other = (
        log_density(output - slope, local_scale(slope, domain, epsilon) if local else common)
        for slope in slopes
    )
    instance = {"slopes": slopes, "domain": domain, "epsilon": epsilon, "output": output}
    return Counterexample(instance, "|ln p / p'|", abs(one - other), epsilon)


def all_steps(
    steps: int = 20, domain: Sequence[float] = DOMAIN, epsilon: float = 0.05
) -> Counterexample:
    """Remark 1 at the noise of Theorem 1: |ln p / p'| of the outputs of T E steps together.

    D and D' have the slopes that lie farthest apart, so that the scale is the same for both, and
    every output lies beyond both slopes.
    """
    low, high = min(domain), max(domain)
    scale = common_scale(domain, epsilon)
    outputs = [high + 1 + step for step in range(steps)]
    found = sum(log_density(at - high, scale) - log_density(at - low, scale) for at in outputs)
    instance = {"T E": steps, "slopes": (low, high), "epsilon": epsilon}
    return Counterexample(instance, "|ln p / p'|", abs(found), epsilon, steps * epsilon)


def parameter_of_the_noise(
    own: tuple[Fraction, int] = (Fraction(0), 0),
    other: tuple[Fraction, int] = (Fraction(1), 0),
    z: tuple[Fraction, Fraction] = (Fraction(0), Fraction(0)),
    total: int = 2,
) -> Counterexample:
    """The printed Delta-bar: how far one record moves the gradient, over what it is computed as.

    Two classes, one feature in [0, 1]; a record is its feature and class, the agent's records are
    ``total`` copies of ``own``. The probability of a class is that of z = 0, one half each, where
    z is 0, so that all is exact. 1/T of the formula is read as the 1/I of (2c).
    """

    def slope(record: tuple[Fraction, int]) -> list[Fraction]:
        x, label = record
        scores = [math.exp(float(weight * x)) for weight in z]
        half = Fraction(1, 2)
        shares = [half if not any(z) else Fraction(score / sum(scores)) for score in scores]
        return [x * (share - (label == k)) / total for k, share in enumerate(shares)]

    printed = sum(abs(entry) for entry in slope(own))
    found = sum(abs(a - b) for a, b in zip(slope(own), slope(other), strict=True))
    instance = {"(x, class)": own, "in place of it": other, "z": z, "I": total}
    return Counterexample(
        instance, "||f'(z; D) - f'(z; D')||_1", found, printed, Fraction(4, total)
    )


ERRATA = (
    Erratum(
        "dp-iadmm/theorem-1",
        "Theorem 1 (and Proposition 2): with the noise (9) a step is eps-bar-DP",
        "with one scale for all data sets, of the two records whose gradients lie farthest apart",
        one_step,
    ),
    Erratum(
        "dp-iadmm/delta-bar",
        "The formula for Delta-bar under the multiclass logistic model computes (9b)",
        "it has 1/T for 1/I and the norm of one gradient for that of a difference; with features "
        "of l1 norm at most R no difference exceeds 4 R / I",
        parameter_of_the_noise,
    ),
    Erratum(
        "dp-iadmm/remark-1",
        "Remark 1, at the noise of Theorem 1: all of the algorithm is eps-bar-DP",
        "T E steps together are T E eps-bar-DP, and no less",
        all_steps,
    ),
)
