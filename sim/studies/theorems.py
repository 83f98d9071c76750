"""Every theorem, lemma, corollary, numbered remark and drawing of the papers, in their order.

A statement that can be checked numerically has a check: it is tried on a hundred random instances.
A counterexample refutes a statement, a hundred instances that hold prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from . import checks
from .catalogue import PAPERS
from .checks import Gap, Generator
from .study import Case, Options, Outcome, Result, Results, Row, Setting, Study, Verdict

SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a paper: what is checked, or why nothing can be.

    Attributes
    ----------
    what : str
    why : str
        What the check covers, or why there is none.
    check : callable, optional
        Draws one instance: random generator -> by how much it fails, and what names it.
    stream : int
        Of the random numbers.
    verdict : Verdict
        Where every instance holds.
    count : int
        Instances.
    """

    what: str
    why: str = ""
    check: Callable[[Generator], Gap] | None = None
    stream: int = 0
    verdict: Verdict = Verdict.REPRODUCED
    count: int = 100

    def row(self, found: Results) -> Row:
        """Return the verdict; a counterexample that was found is named."""
        if self.check is None:
            return Row(self.what, "-", "-", Verdict.NOT_TESTABLE, self.why)
        (result,) = found[self.what]
        ours = f"holds on {result['held']} of {result['tried']}"
        if result["held"] == result["tried"]:
            return Row(self.what, "yes", ours, self.verdict, self.why)
        refuted = self.verdict is Verdict.REPRODUCED
        verdict = Verdict.CONTRADICTED if refuted else self.verdict
        said = ", ".join(f"{name} {_short(value)}" for name, value in result["instance"].items())
        why = "; ".join(part for part in (self.why, f"counterexample: {said}") if part)
        return Row(self.what, "yes", ours, verdict, why)


def judged(what: str, seed: int) -> Result:
    """Return how many instances of a statement hold, and the worst of those that do not."""
    (one,) = [one for own in STATEMENTS.values() for one in own if one.what == what and one.check]
    assert one.check is not None
    rng = np.random.default_rng([seed, one.stream])
    gaps = [one.check(rng) for _ in range(one.count)]
    worst, instance = max(gaps, key=lambda gap: gap[0])
    held = sum(bool(gap <= SLACK) for gap, _ in gaps)
    return {
        "held": held,
        "tried": len(gaps),
        "worst": float(worst),
        "instance": dict(instance) if held < len(gaps) else {},
    }


def _cases(statements: Sequence[Statement], options: Options) -> Sequence[Case]:
    return [
        Case(one.what, 0, algorithm=one.what, rounds=one.count, measure="theorem")
        for one in statements
        if one.check
    ]


def _conclude(statements: Sequence[Statement], found: Results) -> Outcome:
    return Outcome([one.row(found) for one in statements])


def _short(value: object) -> str:
    if isinstance(value, list):
        return "(" + " ".join(_short(one) for one in value) + ")"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _and_corrected(
    what: str, why: str, corrected: str, check: Callable[..., Gap], stream: int, count: int = 100
) -> tuple[Statement, Statement]:
    """Return a statement as printed, and what is true in its place."""
    return (
        Statement(what, why, partial(check, printed=True), stream, count=count),
        Statement(corrected, "corrected", partial(check, printed=False), stream, Verdict.BEYOND),
    )


CITED = "a result of the cited literature, nothing of this paper to measure"
ORDER = "an order of magnitude, its constants are not given"
READ = "no loss meets Assumption 1, read as: the loss is bounded below"
SMALL = "one dimension, three agents, T = 40"
RARE = 400
"""Instances where a statement fails on one in a hundred."""
LATER = partial(checks.sensitivity, rounds=30)
OPEN, BEYOND = Verdict.NOT_DETERMINED, Verdict.BEYOND

FED_PLT = (
    Statement("Table I", "properties of the algorithms by construction, no measurement"),
    Statement("Figure 1", "a drawing"),
    Statement("Lemma 1", CITED),
    Statement("Lemma 2: contraction of gradient descent", "", checks.gradient_descent, 2),
    Statement("Lemma 3: contraction of Peaceman-Rachford", "", checks.peaceman_rachford, 3),
    Statement("Lemma 4", CITED),
    Statement("Lemma 5", CITED),
    Statement(
        "Lemma 6: the proximal operator of consensus and h", "", checks.proximal_of_consensus, 6
    ),
    *_and_corrected(
        "Proposition 1: where S is stable Fed-PLT contracts",
        "S as printed, with 1/(lambda + 1/rho)",
        "Proposition 1 with 1/(1 + rho lambda) in S",
        checks.contraction,
        7,
    ),
    Statement(
        "Lemma 7: a stable choice exists",
        "its proof's inequality is reversed; the statement holds",
        checks.a_stable_choice,
        77,
    ),
    Statement(
        "Proposition 2: the bound (15)",
        "with the printed S of norm below 1, without noise",
        checks.bound_on_iterates,
        15,
        count=RARE,
    ),
    *_and_corrected(
        "Proposition 3, Lemma 8: contraction of the accelerated solver",
        "chi(N_e) as printed, without a root",
        "Lemma 8 with the root",
        checks.accelerated,
        8,
    ),
    Statement(
        "Proposition 4: a bounded Renyi divergence",
        "of the last model; its proof overlooks that z_i depends on the data too, and the "
        "coordinator sees every round (docs/privacy.md)",
        checks.divergence_of_the_last_model,
        4,
    ),
    *_and_corrected(
        "Corollary 1: the bound (16)",
        "with the printed S of norm below 1",
        "Corollary 1 with 1/(1 + rho lambda) in S",
        checks.accuracy_under_noise,
        16,
        count=RARE,
    ),
    Statement(
        "Remark 1: agents may have solvers of their own",
        "steps and N_e of their own, limits within 1e-6 of the optimum",
        checks.uncoordinated_solvers,
        11,
    ),
)
DP_IADMM = (
    Statement("Lemma 1", CITED),
    Statement(
        "Proposition 1: the penalised subproblem tends to (8)",
        "in one dimension, within .01 at l = 1e5",
        checks.penalised_subproblem,
        21,
    ),
    Statement(
        "Proposition 2, Theorem 1: every step is eps-DP",
        "noise scaled by (9b) of the data at hand: neighbours have other scales, and the ratio of "
        "their densities is not bounded by eps",
        checks.privacy_of_a_step,
        22,
    ),
    Statement("Remark 1", CITED),
    *(
        Statement(
            f"Theorem {number}: the bound {bound}", SMALL, partial(checks.rate, rule=rule), 23
        )
        for number, bound, rule in zip(
            (2, 3, 4), ("(16a)", "(20a)", "(23)"), checks.RULES, strict=True
        )
    ),
    Statement(
        "Corollary 1: more local updates lower the bounds",
        "the right sides; that errors fall is Figure 1",
        checks.more_updates,
        24,
    ),
)
FED_PDM = (
    Statement("Figure 1", "a drawing"),
    Statement("Table I", "a list of symbols"),
    Statement("Lemma 1", CITED),
    Statement(
        "Theorem 1: the sensitivity (35), first round",
        "rho eta < 1.9",
        partial(checks.sensitivity, rounds=1, reach=1.9),
        31,
    ),
    Statement(
        "Theorem 1: the sensitivity (35), later rounds",
        "rho eta < 1.9: the duals are private state and differ as well",
        partial(LATER, reach=1.9),
        31,
    ),
    Statement(
        "Theorem 1, later rounds, rho eta < 1",
        "the paper's experiments have rho eta = .4",
        partial(LATER, reach=0.99),
        31,
        BEYOND,
    ),
    Statement("Theorem 2: the total loss (36)", "asymptotic, with an unknown constant c_0"),
    Statement(
        "Assumption 1: the Lagrangian (7a) is bounded below in x, x_0 and the duals",
        "it is linear in the duals: no loss meets it",
        checks.bounded_below,
        33,
    ),
    Statement(
        "Lemma 2: the Lagrangian falls",
        f"{READ}; without noise, full gradients, from the second round on; as printed it falls for "
        "ever where four agents are active",
        checks.lagrangian_falls,
        34,
        OPEN,
    ),
    *(
        Statement(
            f"{what}, {'with' if noise else 'without'} noise",
            f"{READ}; full gradients, 30 dimensions{more if noise else ''}",
            partial(check, noise=noise),
            35,
            OPEN,
        )
        for noise in (0.0, 1.0)
        for what, check, more in (
            ("Lemma 3: the gap of a round", checks.gap_of_a_round, ""),
            (
                "Theorem 3: the bound (38)",
                checks.mean_gap,
                "; C_3 knows neither dimension nor agents",
            ),
        )
    ),
    Statement("Remark 1", "reads Theorem 3's terms off"),
    Statement(
        "Remark 2: T of order 1/zeta",
        "sets each of the four terms of (38) to zeta / 4; no more to run",
    ),
    Statement(
        "P1: the element-wise mean is free of those who did not send an element",
        "agents that hold one vector and send two of its six elements; its effect on training is "
        "in the rows of Figure 2",
        checks.free_of_those_who_did_not_send,
        36,
    ),
    Statement(
        "P2: half the uplink for y in place of (x, lambda), alpha_U of that if sparse",
        "by construction; the bytes and the accuracy lost are the rows of Figure 2",
    ),
    Statement(
        "P3: sparse models by the l1 norm, robust against noise",
        "the rows of Figures 6 and 7",
    ),
    Statement(
        "P4: DP-FedPDM is the dense case of BSDP-FedPDM", "", checks.sparse_dense_identity, 32
    ),
)
GFL = (
    Statement("Figure 1", "a drawing"),
    Statement(
        "Lemma 1: the second moment (28) of the gradient noise",
        "ridge regression, the left side exact",
        checks.gradient_noise,
        28,
    ),
    Statement("Lemma 2: the incremental noise (37)", ORDER),
    Statement("Lemma 3: the network disagreement (40), (41)", ORDER),
    Statement("Lemma 4: gradients are bounded", "some constant, which is not given"),
    Statement(
        "(46), (47): the noise cancels in the centroid",
        "Metropolis weights of random graphs",
        checks.noise_cancels,
        46,
    ),
    Statement(
        "Theorem 1, (45): independent noise leaves O(1/mu) sigma_g^2",
        "exponent of mu between .01 and .04 within .2 of -1",
        checks.random_noise_like_one_over_mu,
        45,
        count=20,
    ),
    Statement(
        "Corollary 1, (50): homomorphic noise leaves no 1/mu",
        "exponent of mu between .01 and .04 not negative",
        checks.homomorphic_noise_falls_with_mu,
        45,
        count=20,
    ),
    Statement(
        "Theorem 2: eps(i)-differential privacy of a trajectory",
        "gradients of norm B and one dimension; at the printed settings eps is beyond use "
        "(docs/gfl.md)",
        partial(checks.privacy_of_a_trajectory, dim=1),
        52,
    ),
    Statement(
        "Theorem 2 for vectors",
        "how they are noised is not printed; with noise of variance sigma_g^2 in every coordinate",
        partial(checks.privacy_of_a_trajectory, dim=2),
        52,
        OPEN,
    ),
    Statement("Theorem 3: errors of single units (60), (61)", ORDER),
    Statement("Theorem 4: errors of single units are bounded (76)", ORDER),
    Statement(
        "a round of (47) adds no more noise to a unit's own model than independent noise",
        "for any graph; explains Figure 3(b)",
        checks.own_share_is_larger,
        59,
        BEYOND,
    ),
)
STATEMENTS: Mapping[str, Sequence[Statement]] = {
    "fed-plt": FED_PLT,
    "dp-iadmm": DP_IADMM,
    "fedpdm": FED_PDM,
    "gfl": GFL,
}
INSTANCES = Setting(
    "instances",
    "for all",
    "a hundred random ones (twenty for exponents, four hundred where few fail); a counterexample "
    "refutes, a hundred that hold prove nothing",
)
STUDIES = tuple(
    Study(
        f"{paper}/theorems",
        f"{PAPERS[paper]}: theorems, lemmas, remarks",
        partial(_cases, STATEMENTS[paper]),
        partial(_conclude, STATEMENTS[paper]),
        (INSTANCES,),
    )
    for paper in PAPERS
)
