"""The table of a Cox run: coefficients, hazard ratios, errors and tests of the last sums."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .cox_state import TREND, CoxProgress
from .cox_step import penalised
from .follow_up import UNUSABLE, counts_by_column, left_out_notes
from .frame import FloatArray
from .glm_table import few_sites_notes, finite_or_none, wald_test
from .site_tests import site_entries, site_notes
from .survival_curve import NORMAL_QUANTILE
from .texts import unpacked

FEW_EVENTS = 10
"""Events a column; with fewer, estimates are biased away from 0 (Peduzzi and others, 1995)."""


def cox_table(
    state: CoxProgress, columns: Sequence[str], *, weighted: bool = False
) -> dict[str, Any]:
    """Return the result of a finished run, flat, as JSON types.

    ``se`` and ``cov`` are of the inverse information I^-1; ``se`` has also ``robust``,
    I^-1 (sum_i w_i^2 r_i r_i') I^-1 (Lin and Wei, Journal of the American Statistical Association
    84, 1989, 1074-1078), and ``cluster``, I^-1 (sum_s U_s U_s') I^-1 over sites, without
    small-sample factors. ``z``, ``p`` and ``ci95`` are of the first. What is not defined is None.
    """
    coefficients = state.basis @ state.gamma
    covariances, notes = _covariances(state)
    rows, events, strata, sites = (int(count) for count in state.counts)
    terms = unpacked(state.names)
    shift = _weight_unit(state)
    entries = site_entries(state.site_counts, state.site_tests)
    left_out = counts_by_column(columns, state.left_out)
    of_left = left_out_notes(
        left_out, f"{UNUSABLE} or no weight above 0," if weighted else UNUSABLE
    )
    return {
        "n": rows,
        "events": events,
        "sites": sites,
        "num_strata": strata,
        "terms": terms,
        "levels": json.loads(state.levels.tobytes()),
        "short_terms": [short_name(term) for term in terms],
        "coef": coefficients.tolist(),
        "se": {kind: finite_or_none(np.sqrt(np.diag(one))) for kind, one in covariances.items()},
        "cov": covariances["nonrobust"].tolist(),
        "cov_robust": {
            kind: [finite_or_none(row) for row in one]
            for kind, one in covariances.items()
            if kind != "nonrobust"
        },
        **_normal(coefficients, np.sqrt(np.diag(covariances["nonrobust"]))),
        "loglik": state.loglik - shift,
        "null_loglik": state.null_loglik - shift,
        "aic": 2.0 * len(terms) - 2.0 * (state.loglik - shift),
        **_overall(state),
        "tests": _joint_tests(state, coefficients, covariances),
        "concordance": _concordance(state),
        "pairs": [int(count) for count in state.pairs],
        "ph_test": ph_tests(state),
        **entries,
        "rounds": state.rounds,
        "left_out": left_out,
        "notes": [*of_left, *notes, *_few_events(state), *site_notes(entries)],
    }


def _covariances(state: CoxProgress) -> tuple[dict[str, FloatArray], list[str]]:
    """Return the covariances by kind, and what is to be said of them.

    The score of a column that varies at one site alone is 0 there at the estimate, so it has no
    error clustered by site.
    """
    inverse = np.asarray(np.linalg.inv(state.information), np.float64)
    bread = state.basis @ inverse
    nonrobust = bread @ state.basis.T
    found = {"nonrobust": (nonrobust + nonrobust.T) / 2.0}
    if state.slope.any():
        return found, ["robust errors of penalised estimates are not given"]
    alone = state.present < 2.0
    cluster = bread @ state.cluster @ bread.T
    found["robust"] = bread @ state.meat @ bread.T
    found["cluster"] = np.where(alone[:, None] | alone[None, :], np.nan, cluster)
    notes = few_sites_notes(int(state.counts[3]))
    if alone.any():
        names = ", ".join(np.array(unpacked(state.names))[alone][:20])
        notes.append(f"no errors clustered by site for {names}: varies at one site alone")
    return found, notes


def _normal(coefficients: FloatArray, errors: FloatArray) -> dict[str, Any]:
    from scipy.stats import norm

    z = coefficients / errors
    reach = NORMAL_QUANTILE * errors
    ends = np.stack([coefficients - reach, coefficients + reach], axis=1)
    with np.errstate(over="ignore"):
        ratio, ratio_ends = np.exp(coefficients), np.exp(ends)
    return {
        "z": z.tolist(),
        "p": (2.0 * norm.sf(np.abs(z))).tolist(),
        "ci95": ends.tolist(),
        "ratio_name": "hazard ratio",
        "ratio": finite_or_none(ratio),
        "ratio_ci95": [finite_or_none(pair) for pair in ratio_ends],
    }


def _joint_tests(
    state: CoxProgress, coefficients: FloatArray, covariances: Mapping[str, FloatArray]
) -> dict[str, Any]:
    """Return Wald's test of every term of two columns or more, by kind of error.

    The sites' scores add up to 0, so errors clustered by site test fewer columns than sites.
    """
    labels = unpacked(state.labels)
    tests: dict[str, Any] = {}
    for term in dict.fromkeys(labels):
        places = [place for place, label in enumerate(labels) if label == term]
        if len(places) < 2:
            continue
        kinds = [kind for kind in covariances if kind != "cluster" or state.counts[3] > len(places)]
        found = {kind: wald_test(coefficients, covariances[kind], places) for kind in kinds}
        tests[term] = {kind: test for kind, test in found.items() if test is not None}
    return tests


def _weight_unit(state: CoxProgress) -> float:
    """Return what the weights' unit w adds to the state's likelihoods: log w for each death."""
    return float(state.trend[0, 0]) * float(np.log(state.heaviness))


def short_name(term: str) -> str:
    """Return a term's name as tables of hazard ratios have it: ``sex_M`` for ``sex[T.M]``."""
    plain = re.sub(r'Q\("([^"]*)"\)', r"\1", term)
    return re.sub(r"\[(?:T\.)?([^\]]*)\]", r"_\1", plain)


def _overall(state: CoxProgress) -> dict[str, Any]:
    """Return the tests that all coefficients are 0; the first is penalised where the fit is."""
    from scipy.stats import chi2

    df = len(state.gamma)
    found: dict[str, Any] = {"df": df}
    high, low = state.loglik, state.null_loglik
    if state.slope.any():
        high = penalised(high, state.information)
        low = penalised(low, state.null_information)
        # On the scale of the columns, x = basis^-T z.
        turned = np.linalg.slogdet(state.basis)[1] + _weight_unit(state)
        found["penalised_loglik"] = float(high - turned)
        found["null_penalised_loglik"] = float(low - turned)
    ratio = 2.0 * (high - low)
    wald = float(state.gamma @ state.information @ state.gamma)
    score = float(state.null_score @ np.linalg.solve(state.null_information, state.null_score))
    for name, value in (("lr", ratio), ("wald", wald), ("score", score)):
        found |= {f"{name}_chi2": value, f"{name}_p": float(chi2.sf(value, df))}
    return found


def ph_tests(state: CoxProgress) -> dict[str, Any]:
    """Return tests of proportional hazards against time and its logarithm.

    With one baseline for all sites, which has the pooled grid, against the ranks of deaths (those
    at one time have the mean of theirs) and against 1 - S by Kaplan and Meier as well.

    With g centred over deaths, s = sum_k w_k g_k r_k of Schoenfeld's residuals r, V = I^-1 and d
    the deaths' weight, column j has the statistic d (V s)_j^2 / (V_jj sum_k w_k g_k^2), and all
    together d s' V s / sum_k w_k g_k^2: Grambsch and Therneau, Biometrika 81, 1994, 515-526, with
    the information of each death taken as I / d. None where a death at time 0 has no logarithm, or
    all deaths are at one time.
    """
    from scipy.stats import chi2

    inverse = np.asarray(np.linalg.inv(state.information), np.float64)
    found: dict[str, Any] = {}
    names = ("identity", "log", "rank", "km")[: len(state.trend)]
    for name, numbers in zip(names, state.trend, strict=True):
        weight, first, second, at_zero = numbers[:TREND]
        slopes = numbers[TREND:] - first / weight * state.score
        spread = second - first**2 / weight
        if (name == "log" and at_zero > 0.0) or spread <= 1e-9 * max(second, 1e-300):
            found[name] = None
            continue
        trend = state.basis @ (inverse @ slopes)
        variance = np.einsum("ij,jk,ik->i", state.basis, inverse, state.basis)
        single = weight * trend**2 / (variance * spread)
        joint = float(weight * (slopes @ inverse @ slopes) / spread)
        found[name] = {
            "chi2": single.tolist(),
            "p": chi2.sf(single, 1).tolist(),
            "global_chi2": joint,
            "global_df": len(slopes),
            "global_p": float(chi2.sf(joint, len(slopes))),
        }
    return found


def _concordance(state: CoxProgress) -> float | None:
    concordant, tied, every = state.pairs
    return float((concordant + tied / 2.0) / every) if every else None


def _few_events(state: CoxProgress) -> list[str]:
    events, width = int(state.counts[1]), len(state.gamma)
    if events >= FEW_EVENTS * width:
        return []
    return [
        f"{events} events for {width} columns: below {FEW_EVENTS} for each, estimates are biased "
        "away from 0; firth = true, or fewer columns, is a way out"
    ]
