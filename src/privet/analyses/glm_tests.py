"""Tests beside the table: of two nested models, and of each site against the pooled model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from .frame import AnalysisError, FloatArray

_RANK = 1e-8


def likelihood_ratio(smaller: Mapping[str, Any], larger: Mapping[str, Any]) -> dict[str, Any]:
    """Return the test of two tables of nested models, 2 (l_1 - l_0), chi-squared.

    Degrees of freedom are the difference of columns. A column of the smaller has to be one of the
    larger, or the first of a spline of it. Penalised likelihoods are compared where the smaller
    model was fitted within the larger, with its penalty (``within`` of `Glm`), as logistf does.

    Raises
    ------
    AnalysisError
        For tables of other rows, families, outcomes or penalties, or models that are not nested.
    """
    for key in ("family", "n", "events", "offset", "weights", "firth"):
        if smaller[key] != larger[key]:
            way = _way(smaller, larger)
            raise AnalysisError(
                f"likelihood ratio: the tables differ in {key}; fit the same rows{way}"
            )
    if _outcome(smaller) != _outcome(larger):
        raise AnalysisError("likelihood ratio: the tables have different outcomes")
    key = "loglik"
    if larger["firth"]:
        key = "penalised_loglik"
        if smaller["within"] != larger["formula"]:
            raise AnalysisError(
                f"likelihood ratio: with firth, fit the smaller model within='{larger['formula']}'"
            )
    return nested_test(smaller, larger, key)


def nested_test(smaller: Mapping[str, Any], larger: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the test of two tables of the same rows by the likelihoods that ``key`` names.

    Raises
    ------
    AnalysisError
        If a column of the smaller is none of the larger's, or none is added.
    """
    from scipy.stats import chi2

    columns = {_plain(name) for name in larger["terms"]}
    missing = [name for name in smaller["terms"] if _plain(name) not in columns]
    freedom = len(larger["terms"]) - len(smaller["terms"])
    if missing or freedom < 1:
        names = ", ".join(missing[:5]) or "no column is added"
        raise AnalysisError(f"likelihood ratio: the models are not nested ({names})")
    statistic = max(2.0 * (larger[key] - smaller[key]), 0.0)
    return {
        "smaller": smaller["formula"],
        "larger": larger["formula"],
        "chi2": statistic,
        "df": freedom,
        "p": float(chi2.sf(statistic, freedom)),
    }


def _way(smaller: Mapping[str, Any], larger: Mapping[str, Any]) -> str:
    """Return the key by which the smaller model leaves out the rows that the larger one does."""
    lacking = [
        name
        for name, count in larger["left_out"].items()
        if name and count and name not in smaller["left_out"]
    ]
    return f": the smaller model with complete-cases={','.join(lacking)}" if lacking else ""


def _outcome(table: Mapping[str, Any]) -> str:
    return str(table["formula"]).split("~")[0].strip()


def _plain(name: str) -> str:
    return re.sub(r"rcs\(([^,()]+|Q\(\"[^\"]*\"\)), [^()]*\)\[0\]", r"\1", name)


def score_parts(
    score: FloatArray, information: FloatArray, pooled: FloatArray, dispersion: float = 1.0
) -> tuple[FloatArray, FloatArray]:
    """Return the squares of a site's independent scores, over phi, and their variances (df,).

    Where the site's rows are of the pooled model, its score at the pooled estimate, less what the
    estimation takes away, is normal with covariance (I_s - I_s I^-1 I_s) phi (Rao, Proceedings of
    the Cambridge Philosophical Society 44, 1948, 50-57). In the coordinates in which I is the
    identity and I_s is diagonal, with shares l, its entries are independent with variances l (1 -
    l); those without any are left out. The sum of squares over variances is chi-squared. Shapes
    are (p,), (p, p), (p, p).
    """
    root = np.linalg.cholesky(pooled)
    half = np.linalg.solve(root, np.linalg.solve(root, information).T)
    shares, vectors = np.linalg.eigh((half + half.T) / 2.0)
    spread = shares * (1.0 - shares)
    free = spread > _RANK
    turned = vectors.T @ np.linalg.solve(root, score)
    return turned[free] ** 2 / dispersion, spread[free]
