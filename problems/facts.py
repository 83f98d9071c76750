"""Privacy-critical: the public numbers of an agent's problem."""

from __future__ import annotations

from privet.kernel import Facts, Moduli, Problem, can_clip
from privet.kernel.facts import OTHER, proven_loss
from privet.problems.linear import LinearModel


def public_facts(problem: Problem) -> Facts:
    """Return the facts of a problem whose number of examples is the declared one."""
    linear = isinstance(problem, LinearModel)
    regularizer = getattr(problem, "regularizer", None)
    kind = str(getattr(regularizer, "kind", "none"))
    modulus = regularizer.moduli.strong_convexity if kind == "l2" and regularizer else 0.0
    return Facts(
        num_examples=int(problem.num_examples),
        divisor=float(getattr(problem, "divisor", problem.num_examples)),
        dim=int(problem.dim),
        dtype=str(problem.dtype),
        loss=proven_loss(problem.kind) if isinstance(problem, LinearModel) else OTHER,
        regularizer=kind,
        modulus=float(modulus),
        clips=linear or can_clip(problem),
        moduli=linear or isinstance(getattr(problem, "moduli", None), Moduli),
    )
