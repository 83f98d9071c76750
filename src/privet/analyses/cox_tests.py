"""The likelihood-ratio test of two nested Cox models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .frame import AnalysisError
from .glm_tests import nested_test

_SAME = ("kind", "time", "event", "event_level", "entry", "strata", "weights", "ties")
_ROWS = ("n", "events", "num_strata", "site_names")


def cox_likelihood_ratio(smaller: Mapping[str, Any], larger: Mapping[str, Any]) -> dict[str, Any]:
    """Return the test of two tables of nested Cox models, 2 (l_1 - l_0), chi-squared.

    Degrees of freedom are the difference of columns. Both are of the partial likelihood of the same
    rows: a column with missing values leaves rows out of the larger model alone, and then the
    smaller has to be fitted without these too.

    Raises
    ------
    AnalysisError
        For tables of other times, strata, ties or rows, for penalised fits, whose penalties are of
        different matrices, and for models that are not nested.
    """
    if smaller["firth"] or larger["firth"]:
        raise AnalysisError(
            "likelihood ratio: firth penalises the two models differently: compare fits without it"
        )
    for key in (*_SAME, *_ROWS):
        if smaller.get(key) != larger.get(key):
            rows = "; fit the same rows" if key in _ROWS else ""
            raise AnalysisError(f"likelihood ratio: the tables differ in {key}{rows}")
    return nested_test(smaller, larger, "loglik")
