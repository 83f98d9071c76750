"""Every theorem, lemma, corollary, numbered remark and drawing of the papers, in their order.

A statement that can be checked numerically has a check: it is tried on a hundred random instances.
A counterexample refutes a statement, a hundred instances that hold prove nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from . import checks
from .catalogue import PAPERS
from .errata import ERRATA
from .study import Case, Options, Outcome, Result, Results, Row, Setting, Study, Verdict, said_of

SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a paper: what is checked, or why nothing can be.

    Attributes
    ----------
    what : str
    why : str
        What the check covers, or why there is none.
    check : str
        Function of `checks` that draws one instance: random generator -> by how much it fails, and
        what names it. Empty where nothing can be measured.
    given : mapping
        Its further arguments.
    stream : int
        Of the random numbers.
    held : Verdict
        Where every instance holds, or where there is no check.
    count : int
        Instances.
    ratio : bool
        Whether a check returns left over right side, minus 1: how tight the bound is, is printed.
    erratum : str
        Name in `errata.ERRATA` of the counterexample that refutes it, in place of a check.
    """

    what: str
    why: str = ""
    check: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    stream: int = 0
    held: Verdict = Verdict.REPRODUCED
    count: int = 100
    ratio: bool = False
    erratum: str = ""

    @classmethod
    def read(cls, paper: str) -> tuple[Statement, ...]:
        """Return the statements of a paper's data file; ``{name}`` is one of its reasons."""
        said = said_of(paper)

        def filled(why: str = "", held: str = "", **own: Any) -> Statement:
            otherwise = Verdict.REPRODUCED if "check" in own else Verdict.NOT_TESTABLE
            verdict = Verdict(held) if held else otherwise
            return cls(why=why.format(**said["reasons"]), held=verdict, **own)

        return tuple(filled(**own) for own in said["statements"])

    def row(self, found: Results) -> Row:
        """Return the verdict; a counterexample that was found is named."""
        if self.erratum:
            example = ERRATA[self.erratum].counterexample()
            verdict = Verdict.CONTRADICTED if example.refutes else Verdict.NOT_DETERMINED
            most, claimed = float(example.found), float(example.claimed)
            ours = f"{example.measured}: {most:.4g}, where {claimed:.4g} is the most printed"
            anchor = self.erratum.replace("/", "")
            why = f"{self.why}; [erratum](errata.md#{anchor})".removeprefix("; ")
            return Row(self.what, "yes", ours, verdict, why)
        if not self.check:
            return Row(self.what, "-", "-", self.held, self.why)
        (result,) = found[self.what]
        ours = f"holds on {result['held']} of {result['tried']}"
        if self.ratio:
            ours = f"{ours}; left over right at most {result['worst'] + 1:.3g}"
        if result["held"] == result["tried"]:
            return Row(self.what, "yes", ours, self.held, self.why)
        refuted = self.held is Verdict.REPRODUCED
        verdict = Verdict.CONTRADICTED if refuted else self.held
        said = ", ".join(f"{name} {_short(value)}" for name, value in result["instance"].items())
        why = "; ".join(part for part in (self.why, f"counterexample: {said}") if part)
        return Row(self.what, "yes", ours, verdict, why)


def judged(what: str, seed: int) -> Result:
    """Return how many instances of a statement hold, and the worst of those that do not."""
    (one,) = [one for own in STATEMENTS.values() for one in own if one.what == what and one.check]
    rng, check = np.random.default_rng([seed, one.stream]), getattr(checks, one.check)
    gaps = [check(rng, **one.given) for _ in range(one.count)]
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


STATEMENTS = {paper: Statement.read(paper) for paper in PAPERS}
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
