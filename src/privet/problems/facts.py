"""Privacy-critical: the public numbers of an agent's problem."""

from __future__ import annotations

from functools import lru_cache

from privet.kernel import Facts, Moduli, Problem, can_clip
from privet.kernel.facts import OTHER, proven_loss

from .linear import LinearModel
from .regularizers import L2, SlopesL2

# Agents of equal numbers share their facts.
_shared = lru_cache(maxsize=64, typed=True)(Facts)
_name = lru_cache(maxsize=8, typed=True)(str)


def public_facts(problem: Problem, colluders: int = -1) -> Facts:
    """Return the facts of a problem whose number of examples is the declared one.

    ``colluders`` are those that its node states (`Facts`).
    """
    linear = isinstance(problem, LinearModel)
    regularizer = getattr(problem, "regularizer", None)
    kind = str(getattr(regularizer, "kind", "none"))
    modulus = regularizer.moduli.strong_convexity if kind == "l2" and regularizer else 0.0
    penalty = regularizer.weight if isinstance(regularizer, L2 | SlopesL2) else 0.0
    return _shared(
        num_examples=int(problem.num_examples),
        divisor=float(getattr(problem, "divisor", problem.num_examples)),
        dim=int(problem.dim),
        dtype=_name(problem.dtype),
        loss=proven_loss(problem.kind) if isinstance(problem, LinearModel) else OTHER,
        regularizer=kind,
        modulus=float(modulus),
        penalty=float(penalty),
        clips=linear or can_clip(problem),
        moduli=linear or isinstance(getattr(problem, "moduli", None), Moduli),
        colluders=colluders,
    )
