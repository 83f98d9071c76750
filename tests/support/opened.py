"""An agent's records as its half sees them in a round."""

from __future__ import annotations

from privet.agents.guard import prepared
from privet.client_apps import Half
from privet.kernel import Perturber, Problem, Records
from privet.kernel.door import Held
from privet.problems import public_facts


def held(half: Half, problem: Problem) -> Problem:
    """Return a problem as its agent works on it: with rows within the half's bound."""
    return prepared(half, problem, public_facts(problem)).problem


def opened(half: Half, problem: Problem, noise: Perturber) -> Records:
    """Return the records of a problem that is held already, behind what was charged."""
    return Records(Held(problem, half.row_bound(noise.facts)), noise)
