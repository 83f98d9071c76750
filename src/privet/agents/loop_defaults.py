"""Defaults around training loops: rho, alpha and relaxation from the length of a loop's step.

An agent takes K steps of length eta (`LoopParticipant`'s ``step_size``); nobody knows a modulus. If
the loss is multiplied by c, the same loop needs a step of eta / c, and alpha (Fed-PLT's 1 / rho)
has to be c alpha: a rule may depend on alpha eta alone. What counts over a round is

    kappa = 1 - (1 - alpha eta)^K  ~  alpha eta K,

the share that the steps close of the distance to the minimum of the proximal term. To first order
in the steps, where all agents take part and g is their mean gradient,

* FedDyn and FedPDM move by -(1 / alpha) (2 kappa g + (1 - 2 kappa) h) with
  h <- (1 - kappa) h + kappa g: a momentum of 1 - kappa, which begins with twice FedAvg's move and
  ends with 1 / kappa of it;
* Fed-PLT moves by -2 a kappa rho g: twice FedAvg's move at a = 1. The z_i - y are the agents' own
  gradients, averaged at a rate of 2 a kappa, and take the drift away.

So kappa is a constant of the method, alpha = kappa / (K eta), and rho = K eta / kappa.

Where a share s of the agents takes part, y moves by a share s of that alone, since the others' z_i
stay. With a = 1 / s a z_i that takes part moves 1 / s as far, and the expected move of y is that
of all agents at a = 1, as in the unbiased sum of a random coordinate method. A z_i follows
its own gradient at a rate of 2 a kappa, which has to stay below 2: kappa is multiplied by s as
well. An a above 1 is right for few, short local steps alone, not where agents solve their
subproblems.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from privet.core.key import Scalar

MOMENTUM_KAPPA = 0.3
"""kappa of FedDyn and FedPDM."""
SPLITTING_KAPPA = 0.07
"""kappa of Fed-PLT where all agents take part: the drift goes at a rate of 2 kappa s a round."""


class Loops(NamedTuple):
    """What is known of the agents' training loops.

    Attributes
    ----------
    step : float
        eta, the length of a step; 0 where no agent states it.
    share : float
        s, the mean share of the agents that take part in a round.
    """

    step: float = 0.0
    share: float = 1.0


NO_LOOPS = Loops()
"""Nobody states a step."""


def alpha(loops: Loops, steps: int) -> float:
    """Return FedDyn's alpha, FedPDM's rho: kappa / (K eta)."""
    return MOMENTUM_KAPPA / (steps * loops.step)


def splitting(loops: Loops, steps: int) -> Mapping[str, Scalar]:
    """Return Fed-PLT's rho = K eta / (kappa s), a = 1 / s and the step, by key."""
    rho = steps * loops.step / (SPLITTING_KAPPA * loops.share)
    return {"rho": rho, "relaxation": 1.0 / loops.share, "step-size": loops.step}
