"""Perturbers as the guard makes them, for tests that call an agent half directly."""

from __future__ import annotations

from typing import Any

from privet.kernel import NoCertificateError, NoiseSource, Perturber, Release, SystemNoise
from privet.problems import public_facts


def perturber(
    half: Any, problem: Any, source: NoiseSource | None = None, round_: int = 1
) -> Perturber:
    """Return what a round's local work takes its noise from.

    A source counts as given noise: added as it is, and without a certificate un-accounted.
    """
    facts = public_facts(problem)
    try:
        release = half.release(facts, round_)
    except NoCertificateError:
        if source is None:
            raise
        release = Release("none", what="noise without a certificate")
    return Perturber(release, source or SystemNoise(), facts, given=source is not None)
