"""The four papers' own privacy formulas, as printed. **None of them is a claim of this library.**

Each function evaluates what a paper prints so that it can be shown beside a rigorous account; its
docstring says why the two differ. Nothing here may feed a budget or a reported epsilon.
"""

from __future__ import annotations

import math
from typing import Any

from privet.kernel.checks import at_least_one, non_negative, positive


def fed_plt_proposition_4(
    *,
    sensitivity: float,
    strong_convexity: float,
    tau: float,
    num_examples: int,
    step_size: float,
    rounds: int,
    local_steps: int,
) -> float:
    """Return Fed-PLT's Proposition 4 as a Renyi divergence per order: R(alpha) / alpha.

    (L^2 / (lam tau^2 q^2)) (1 - exp(-lam gamma K Ne / 2)), bounded in K and Ne.

    Not a guarantee, not even for the final model: its proof takes v_i = 2y - z_i to be the same
    under both neighbours, but z_i depends on the data. Towards the coordinator the cost grows
    linearly in K.

    Parameters
    ----------
    sensitivity
        L of Assumption 3: twice the clipping bound.
    strong_convexity, tau, num_examples, step_size, rounds, local_steps
        lam, tau, q_i, gamma, K, Ne.
    """
    positive(sensitivity=sensitivity, strong_convexity=strong_convexity, step_size=step_size)
    non_negative(tau=tau)
    at_least_one(num_examples=num_examples, rounds=rounds, local_steps=local_steps)
    if tau == 0:
        return math.inf
    ceiling = (sensitivity / (tau * num_examples)) ** 2 / strong_convexity
    return -ceiling * math.expm1(-strong_convexity * step_size * rounds * local_steps / 2.0)


def fed_plt_epsilon(*, delta: float, **proposition_4: Any) -> float:
    """Return Proposition 4 through Lemma 5, min over alpha of a alpha + log(1/delta)/(alpha - 1).

    The minimum is a + 2 sqrt(a log(1/delta)) at alpha = 1 + sqrt(log(1/delta) / a), with a from
    `fed_plt_proposition_4`, whose arguments it takes.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta!r}, expected a number in (0, 1)")
    slope = fed_plt_proposition_4(**proposition_4)
    return slope + 2.0 * math.sqrt(slope * -math.log(delta))


def fed_pdm_theorem_2(
    *,
    epsilon: float,
    participation: float,
    sampled_share: float,
    rounds: int,
    constant: float = 1.0,
) -> float | None:
    """Return FedPDM's total (36): c0 q^2 epsilon sqrt(p T / (1 - q)); None where it is undefined.

    c0 is an unknown constant of an asymptotic statement, here 1 unless given, so the number has
    no scale. It also rests on amplification by subsampling, which hidden state does not give.

    Parameters
    ----------
    epsilon
        The per-round epsilon.
    participation
        p = K / N.
    sampled_share
        q = Q b / |D_i|, which must be below 1 for the formula to mean anything.
    """
    non_negative(epsilon=epsilon, participation=participation, sampled_share=sampled_share)
    at_least_one(rounds=rounds)
    if sampled_share >= 1:
        return None
    spread = math.sqrt(participation * rounds / (1.0 - sampled_share))
    return constant * sampled_share**2 * epsilon * spread


def gfl_theorem_2(*, step_size: float, clip: float, rounds: int, noise_deviation: float) -> float:
    """Return GFL's eps(i) of Theorem 2: sqrt(2) mu B (1 + i) i / sigma_g.

    About 3e4 after 100 rounds at the paper's own values (mu .7, B 1, sigma_g^2 .1). It speaks of
    the messages between servers only, and B has to be enforced by clipping.

    Parameters
    ----------
    step_size, clip, rounds, noise_deviation
        mu, B, i, and sigma_g, the standard deviation of the Laplace noise.
    """
    positive(step_size=step_size, clip=clip)
    non_negative(noise_deviation=noise_deviation)
    at_least_one(rounds=rounds)
    if noise_deviation == 0:
        return math.inf
    return math.sqrt(2.0) * step_size * clip * (1 + rounds) * rounds / noise_deviation
