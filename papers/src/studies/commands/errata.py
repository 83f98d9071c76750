"""``privet errata``: counterexamples to what the papers state, one a statement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from studies.errata import Counterexample, Erratum


def completed_erratum(incomplete: str) -> list[str]:
    """Return the papers and errata that a word may become."""
    from studies.errata import ERRATA, PAPERS

    return [name for name in ("all", *PAPERS, *ERRATA) if name.startswith(incomplete)]


def errata(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="e.g. fed-plt/prop-3, a paper (fed-plt, dp-iadmm, fedpdm, gfl), or all; "
            "without a name they are listed.",
            autocompletion=completed_erratum,
        ),
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per erratum.")
    ] = False,
) -> None:
    """Refute what a paper states by an instance, and show what holds in its place.

    The proofs are in docs/results/errata.md. Exit code 0 if every instance that is run refutes the
    statement and agrees with the corrected one.
    """
    from studies.errata import ERRATA, chosen

    if not names:
        for one in ERRATA.values():
            print(json.dumps(_named(one)) if json_lines else f"{one.name:20} {one.claim}")
        return
    right = True
    for one in chosen(names):
        found = one.counterexample()
        right = right and found.refutes and found.agrees
        if json_lines:
            print(json.dumps(_named(one) | _line(found)), flush=True)
        else:
            print(_text(one, found), flush=True)
    raise typer.Exit(0 if right else 1)


def _named(one: Erratum) -> dict[str, Any]:
    return {"erratum": one.name, "claim": one.claim, "correction": one.correction}


def _line(found: Counterexample) -> dict[str, Any]:
    """Return a counterexample as JSON values; fractions are their texts, such as "11/1024".

    What was computed has twelve digits: the last ones are the processor's.
    """
    return {
        "instance": _plain(found.instance),
        "measured": found.measured,
        "found": _rounded(_plain(found.found)),
        "claimed": _rounded(_plain(found.claimed)),
        "corrected": _rounded(_plain(found.corrected)),
        "refutes": found.refutes,
        "agrees": found.agrees,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(own) for name, own in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(own) for own in value]
    return str(value) if isinstance(value, Fraction) else value


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(own) for own in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _text(one: Erratum, found: Counterexample) -> str:
    instance = ", ".join(f"{name} = {_short(value)}" for name, value in found.instance.items())
    lines = [
        f"{one.name}: {one.claim}",
        f"  {instance}",
        f"  {found.measured}: {_short(found.found)}",
        f"  as printed at most {_short(found.claimed)}: {'refuted' if found.refutes else 'holds'}",
        f"  corrected: {one.correction}",
    ]
    if found.corrected is not None:
        lines.append(
            f"    at most {_short(found.corrected)}: {'holds' if found.agrees else 'fails'}"
        )
    return "\n".join(lines)


def _short(value: Any) -> str:
    """Return a number with six digits, a fraction as it is with its value beside it."""
    if isinstance(value, tuple | list):
        return f"({', '.join(_short(own) for own in value)})"
    if isinstance(value, Fraction):
        digits = max(value.numerator, value.denominator)
        exact = str(value) if abs(digits) < 10**7 else ""
        decimal = "" if value.denominator == 1 else f"{float(value):.6g}"
        return f"{exact} = {decimal}" if exact and decimal else exact or decimal
    return f"{value:.6g}" if isinstance(value, float) else str(value)
