"""What the papers state and does not hold: a counterexample each that runs in a second.

Nothing here is shared with the library or with `studies.checks`; docs/results/errata.md has the
proofs.
"""

from __future__ import annotations

from collections.abc import Iterable

from privet.core import ConfigError
from privet.core.errors import did_you_mean

from . import dp_iadmm, fed_plt, fed_plt_privacy, fedpdm, gfl
from .counterexample import Counterexample, Erratum, Number

ERRATA = {
    one.name: one
    for module in (fed_plt, fed_plt_privacy, dp_iadmm, fedpdm, gfl)
    for one in module.ERRATA
}
PAPERS = tuple(dict.fromkeys(name.partition("/")[0] for name in ERRATA))

__all__ = ["ERRATA", "PAPERS", "Counterexample", "Erratum", "Number", "chosen"]


def chosen(wanted: Iterable[str]) -> list[Erratum]:
    """Return errata by name, by paper, or ``all``.

    Raises
    ------
    ConfigError
        If there is none of that name; the line lists those of the paper, or the papers.
    """
    found: dict[str, Erratum] = {}
    for name in wanted:
        paper = name.partition("/")[0]
        if name != "all" and paper not in PAPERS:
            near = did_you_mean(name, PAPERS) or did_you_mean(name, ERRATA)
            papers = ", ".join(PAPERS)
            raise ConfigError(f"unknown erratum {name!r}: papers are {papers}, or all{near}")
        own = [one for one in ERRATA if name == "all" or one.startswith(f"{paper}/")]
        matching = own if name in ("all", paper) else [one for one in own if one == name]
        if not matching:
            known = ", ".join(own)
            raise ConfigError(
                f"unknown erratum {name!r}: known are {known}{did_you_mean(name, own)}"
            )
        found |= {one: ERRATA[one] for one in matching}
    return list(found.values())
