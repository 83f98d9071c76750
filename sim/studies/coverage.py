"""Every theorem, lemma, corollary, numbered remark and drawing of the papers has a row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .study import Case, Options, Outcome, Results, Row, Setting, Study, Verdict


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a paper: what is checked, or why nothing can be.

    Attributes
    ----------
    what : str
    check : str
        Of `theorems.CHECKS`; empty where there is none.
    why : str
        What the check covers, or why there is none.
    ours : bool
        Whether it is a correction of ours and no claim of the paper.
    open : bool
        Whether it could be run and was not.
    """

    what: str
    check: str = ""
    why: str = ""
    ours: bool = False
    open: bool = False


CITED = "a result of the cited literature, nothing of this paper to measure"
CONSTANTS = "an order of magnitude, its constants are not given"

FED_PLT = (
    Statement("Table I", why="a survey of other methods' properties"),
    Statement("Figure 1", why="a drawing"),
    Statement("Lemma 1", why=CITED),
    Statement("Lemma 2: contraction of gradient descent", "gradient-descent"),
    Statement("Lemma 3: contraction of Peaceman-Rachford", "peaceman-rachford"),
    Statement("Lemma 4", why=CITED),
    Statement("Lemma 5", why=CITED),
    Statement("Lemma 6: the proximal operator of consensus and h", "proximal-of-consensus"),
    Statement(
        "Proposition 1: where S is stable Fed-PLT contracts",
        "contraction-as-printed",
        "S as printed, with 1/(lambda + 1/rho)",
    ),
    Statement(
        "Proposition 1 with 1/(1 + rho lambda) in S", "contraction-corrected", "corrected", True
    ),
    Statement(
        "Lemma 7: a stable choice exists",
        "a-stable-choice",
        "its proof's inequality is reversed; the statement holds",
    ),
    Statement(
        "Proposition 2: the bound (15)",
        "bound-on-iterates",
        "with the printed S of norm below 1, without noise",
    ),
    Statement(
        "Proposition 3, Lemma 8: contraction of the accelerated solver",
        "accelerated-contraction",
        "chi(N_e) as printed, without a root",
    ),
    Statement("Lemma 8 with the root", "accelerated-corrected", "corrected", True),
    Statement(
        "Proposition 4: a bounded Renyi divergence",
        why="an upper bound for someone who "
        "sees the last model only; no sample refutes or proves it, and the coordinator sees "
        "every round (docs/privacy.md has the account for that)",
    ),
    Statement("Corollary 1: the bound (16)", "accuracy-under-noise", "with the corrected S"),
    Statement(
        "Remark 1: agents may have solvers of their own",
        "uncoordinated-solvers",
        "steps and N_e of their own, limits within 1e-6 of the optimum",
    ),
)
DP_IADMM = (
    Statement("Lemma 1", why=CITED),
    Statement(
        "Proposition 1: the penalised subproblem tends to (8)",
        "penalised-subproblem",
        "in one dimension, within .01 at l = 1e5",
    ),
    Statement(
        "Proposition 2, Theorem 1: every step is eps-DP",
        "privacy-of-a-step",
        "noise scaled by (9b) of the data at hand: neighbours have other scales, and the "
        "ratio of their densities is not bounded by eps",
    ),
    Statement("Remark 1", why=CITED),
    Statement("Theorem 2: the bound (16a)", "rate-smooth", "one dimension, three agents, T = 40"),
    Statement(
        "Theorem 3: the bound (20a)", "rate-nonsmooth", "one dimension, three agents, T = 40"
    ),
    Statement("Theorem 4: the bound (23)", "rate-strong", "one dimension, three agents, T = 40"),
    Statement(
        "Corollary 1: more local updates lower the bounds",
        "more-updates",
        "the right sides; that errors fall is Figure 1",
    ),
)
FED_PDM = (
    Statement("Figure 1", why="a drawing"),
    Statement("Table I", why="a list of symbols"),
    Statement("Lemma 1", why=CITED),
    Statement(
        "Theorem 1: the sensitivity (35), first round", "sensitivity-first-round", "rho eta < 1.9"
    ),
    Statement(
        "Theorem 1: the sensitivity (35), later rounds",
        "sensitivity-later",
        "rho eta < 1.9: the duals are private state and differ as well",
    ),
    Statement(
        "Theorem 1, later rounds, rho eta < 1",
        "sensitivity-short-steps",
        "the paper's experiments have rho eta = .4",
        True,
    ),
    Statement("Theorem 2: the total loss (36)", why="asymptotic, with an unknown constant c_0"),
    Statement(
        "Theorem 3, Lemmas 2 and 3",
        why="bounds of the gap (37) with the constants of (C.5); not run",
        open=True,
    ),
    Statement("Remark 1", why="reads Theorem 3's terms off"),
    Statement("Remark 2: T of order 1/zeta", why="not run", open=True),
    Statement("P1: DP-FedPDM is the dense case of BSDP-FedPDM", "sparse-dense-identity"),
    Statement("P2: sparse messages trade accuracy for bytes", why="the rows of Figures 2 and 3"),
    Statement("P3: robust against noise", why="the rows of Figures 6 and 7"),
    Statement(
        "P4: the l1 norm suits the top-k sparsifier", why="no experiment of the paper isolates it"
    ),
)
GFL = (
    Statement("Figure 1", why="a drawing"),
    Statement("Lemmas 1 to 4", why=CONSTANTS),
    Statement(
        "(46), (47): the noise cancels in the centroid",
        "noise-cancels",
        "Metropolis weights of random graphs",
    ),
    Statement(
        "Theorem 1, (45): independent noise leaves O(1/mu) sigma_g^2",
        "random-noise",
        "exponent of mu between .01 and .04 within .2 of -1",
    ),
    Statement(
        "Corollary 1, (50): homomorphic noise leaves no 1/mu",
        "homomorphic-noise",
        "exponent of mu between .01 and .04 not negative",
    ),
    Statement(
        "Theorem 2: eps(i)-differential privacy of a trajectory",
        why="eps grows like i^2 "
        "and its constant B is not given; an observer of all links of a unit is left with "
        "one draw of the noise whatever the round (docs/gfl.md)",
    ),
    Statement("Theorems 3 and 4", why=CONSTANTS),
    Statement(
        "a round of (47) adds no more noise to a unit's own model than independent noise",
        "own-share",
        "for any graph; explains Figure 3(b)",
        True,
    ),
)


def _conclude(statements: Sequence[Statement]) -> Callable[[Results], Outcome]:
    def conclude(found: Results) -> Outcome:
        return Outcome([_row(one, found) for one in statements])

    return conclude


def _row(one: Statement, found: Results) -> Row:
    if not one.check:
        verdict = Verdict.NOT_DETERMINED if one.open else Verdict.NOT_TESTABLE
        return Row(one.what, "-", "-", verdict, one.why)
    (result,) = found[one.check]
    ours = f"holds on {result['held']} of {result['tried']}"
    held = result["held"] == result["tried"]
    verdict = Verdict.REPRODUCED if held else Verdict.CONTRADICTED
    why = one.why
    if not held:
        instance = ", ".join(
            f"{name} {_short(value)}" for name, value in result["instance"].items()
        )
        why = "; ".join(part for part in (why, f"counterexample: {instance}") if part)
    return Row(one.what, "yes", ours, Verdict.BEYOND if one.ours else verdict, why)


def _short(value: object) -> str:
    if isinstance(value, list):
        return "(" + " ".join(f"{one:.3g}" for one in value) + ")"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _cases(statements: Sequence[Statement]) -> Callable[[Options], Sequence[Case]]:
    def cases(options: Options) -> Sequence[Case]:
        return [
            Case(one.check, 0, algorithm=one.check, measure="theorem")
            for one in statements
            if one.check
        ]

    return cases


INSTANCES = Setting(
    "instances",
    "for all",
    "a hundred random ones (twenty for exponents); a counterexample refutes, a hundred that hold "
    "prove nothing",
)
STUDIES: Mapping[str, Study] = {
    paper: Study(
        f"{paper}/theorems",
        f"{title}: theorems, lemmas, remarks",
        _cases(statements),
        _conclude(statements),
        (INSTANCES,),
    )
    for paper, title, statements in (
        ("fed-plt", "Fed-PLT", FED_PLT),
        ("dp-iadmm", "DP-IADMM", DP_IADMM),
        ("fedpdm", "FedPDM", FED_PDM),
        ("gfl", "GFL", GFL),
    )
}
