"""Which studies there are, and where; a module is imported when one of its studies is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from privet.core import ConfigError
from privet.core.errors import did_you_mean

from .study import Study

PAPERS = {
    "fed-plt": "Fed-PLT",
    "dp-iadmm": "DP-IADMM",
    "fedpdm": "FedPDM",
    "gfl": "Graph federated learning",
}
MODULES = {
    "fed-plt": ("fed_plt_rivals", "fed_plt", "theorems"),
    "dp-iadmm": ("dp_iadmm", "theorems"),
    "fedpdm": ("fed_pdm", "theorems"),
    "gfl": ("gfl", "theorems"),
}


NIGHT = (
    "dp-iadmm/horizon", "dp-iadmm/horizon-femnist", "dp-iadmm/horizon-objpm",
    *(f"fedpdm/figure-{number}" for number in range(2, 9)),
    *(f"dp-iadmm/figure-{number}" for number in range(1, 4)),
)  # fmt: skip
"""What ``--night`` runs where no study is named: what a horizon decides, short ones first."""


def names() -> list[str]:
    """Return the names of all studies, in the papers' order."""
    return [study.name for paper in PAPERS for study in studies_of(paper)]


def studies_of(paper: str) -> list[Study]:
    """Return the studies of a paper, its theorems last."""
    return [
        study
        for module in MODULES[paper]
        for study in import_module(f"{__package__}.{module}").STUDIES
        if study.name.startswith(f"{paper}/")
    ]


def chosen(wanted: Iterable[str], *, full: bool = False) -> list[Study]:
    """Return studies by name, by paper, or ``all``.

    Raises
    ------
    ConfigError
        If there is no such study; the line lists those of the paper, or the papers, and names the
        nearest.
    """
    found: dict[str, Study] = {}
    for name in wanted:
        paper, _, _ = name.partition("/")
        if name != "all" and paper not in PAPERS:
            near = did_you_mean(name, PAPERS) or did_you_mean(name, names())
            papers = ", ".join(PAPERS)
            raise ConfigError(f"unknown study {name!r}: papers are {papers}, or all{near}")
        own = [one for each in (PAPERS if name == "all" else (paper,)) for one in studies_of(each)]
        some = [one for one in own if full or not one.full_only]
        matching = some if name in ("all", paper) else [one for one in own if one.name == name]
        if not matching:
            known = [one.name for one in own]
            near = did_you_mean(name, known)
            raise ConfigError(f"unknown study {name!r}: known are {', '.join(known)}{near}")
        found |= {one.name: one for one in matching}
    return list(found.values())
