"""From a total (epsilon, delta) to the noise of every algorithm.

All solvers share one search: the smallest noise for which the account of the whole list of
releases stays at or below the target, never above. Count realised participations of one agent:
who takes part is visible, so nothing is amplified. With accountant = "rdp" the answer also passes
a node's veto, which counts by RDP; "smaller" needs up to about 10 % less noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from privet.privacy.accountant import account, epsilon_rdp
from privet.privacy.checks import at_least_one, positive
from privet.privacy.events import Mechanism, Relation, Release
from privet.privacy.releases import (
    dp_iadmm_release,
    fed_plt_release,
    gfl_release,
)

Accountant: TypeAlias = Literal["smaller", "rdp"]
_TOLERANCE = 1e-6
_LAPLACE_TOLERANCE = 1e-4


def noise_scale(
    releases: Callable[[float], Sequence[Release]],
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant = "smaller",
) -> float:
    """Return the smallest noise scale whose releases together cost at most epsilon at delta.

    Parameters
    ----------
    releases
        Maps a noise scale > 0 to all releases of one agent; more noise must not cost more.
    epsilon, delta
        The total, epsilon > 0 and delta in (0, 1).
    accountant
        "smaller" (of RDP and PLD, as reported) or "rdp" (as the veto counts).

    Returns
    -------
    float
        A scale within a relative 1e-6 (Gaussian) or 1e-4 (Laplace) of the smallest, on the safe
        side.
    """
    positive(epsilon=epsilon)
    if accountant not in ("smaller", "rdp"):
        raise ValueError(f"accountant is {accountant!r}, expected smaller or rdp")

    def rdp(log_scale: float) -> bool:
        return epsilon_rdp(releases(math.exp(log_scale)), delta) <= epsilon

    def smaller(log_scale: float) -> bool:
        return account(releases(math.exp(log_scale)), delta).epsilon <= epsilon

    low, high = 0.0, 0.0
    while rdp(low):
        low -= 2.0
        if low < -600:
            raise ValueError("no noise is needed: these releases do not depend on the data")
    while not rdp(high):
        high += 2.0
        if high > 600:
            raise ValueError("no finite noise reaches this epsilon: something leaves un-noised")
    safe = _bisect(rdp, low, high, _TOLERANCE)
    if accountant == "rdp":
        return math.exp(safe)
    gaussian = all(release.mechanism == "gaussian" for release in releases(math.exp(safe)))
    step = 0.05
    low = safe - step
    while smaller(low):
        safe, step = low, 2.0 * step
        low = safe - step
    return math.exp(_bisect(smaller, low, safe, _TOLERANCE if gaussian else _LAPLACE_TOLERANCE))


def _bisect(enough: Callable[[float], bool], low: float, high: float, tolerance: float) -> float:
    """Return the safe end of an interval of the given width around the threshold."""
    while high - low > tolerance:
        middle = (low + high) / 2.0
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    count: int,
    mechanism: Mechanism = "gaussian",
    accountant: Accountant = "smaller",
) -> float:
    """Return the noise multiplier (scale / sensitivity) of `count` equal releases in total."""
    at_least_one(count=count)

    def releases(scale: float) -> list[Release]:
        norm: Literal["l1", "l2"] = "l1" if mechanism == "laplace" else "l2"
        return [Release(mechanism=mechanism, scale=scale, norm=norm, count=count)]

    return noise_scale(releases, epsilon=epsilon, delta=delta, accountant=accountant)


def fed_plt_tau(
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    clip: float,
    num_examples: int,
    step_size: float,
    local_steps: int,
    contraction: float,
    relation: Relation = "replace-one",
    accountant: Accountant = "smaller",
) -> float:
    """Return Fed-PLT's tau (tau^2 is the variance of (13)) for `rounds` participations."""
    multiplier = noise_multiplier(epsilon=epsilon, delta=delta, count=rounds, accountant=accountant)
    unit = fed_plt_release(
        clip=clip,
        num_examples=num_examples,
        step_size=step_size,
        local_steps=local_steps,
        tau=1.0,
        contraction=contraction,
        relation=relation,
    )
    return multiplier / unit.noise_multiplier


def dp_iadmm_noise_scale(
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    clip: float,
    num_examples: int,
    local_updates: int = 1,
    mechanism: Mechanism = "gaussian",
    relation: Relation = "replace-one",
    accountant: Accountant = "smaller",
) -> float:
    """Return DP-IADMM's sigma (gaussian) or b (laplace) for `rounds` participations of E steps."""
    at_least_one(rounds=rounds)
    unit = dp_iadmm_release(
        clip=clip,
        num_examples=num_examples,
        noise_scale=1.0,
        local_updates=local_updates,
        mechanism=mechanism,
        relation=relation,
    )
    multiplier = noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        count=rounds * local_updates,
        mechanism=mechanism,
        accountant=accountant,
    )
    return multiplier * unit.sensitivity


def fed_pdm_noise_scale(
    sensitivities: Sequence[float],
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant = "smaller",
) -> float:
    """Return FedPDM's sigma, one for all of an agent's participations.

    Parameters
    ----------
    sensitivities
        `fed_pdm_certificate(...).sensitivity` of each participation; they differ when the step
        size changes over the rounds.
    """
    if not sensitivities:
        raise ValueError("sensitivities is empty, expected one for each participation")
    unit = [Release(mechanism="gaussian", scale=1.0, sensitivity=s) for s in sensitivities]
    return noise_scale(
        lambda scale: [replace(release, scale=scale) for release in unit],
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
    )


def gfl_noise_scale(
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    clip: float,
    step_size: float,
    mechanism: Mechanism = "gaussian",
    relation: Relation = "replace-one",
    contraction: float | None = None,
    batch_size: int | None = None,
    participants: int | None = None,
    accountant: Accountant = "smaller",
) -> float:
    """Return GFL's sigma (gaussian) or b (laplace) against observers of the links in all rounds.

    The sensitivity grows with the round, so the noise grows like rounds^1.5 (gaussian).
    """
    at_least_one(rounds=rounds)
    unit = [
        gfl_release(
            clip=clip,
            step_size=step_size,
            round_number=number,
            noise_scale=1.0,
            mechanism=mechanism,
            relation=relation,
            contraction=contraction,
            batch_size=batch_size,
            participants=participants,
        )
        for number in range(1, rounds + 1)
    ]
    return noise_scale(
        lambda scale: [replace(release, scale=scale) for release in unit],
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
    )
