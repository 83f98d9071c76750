"""The table of a Cox run: coefficients, hazard ratios, errors and tests of the last sums."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from .cox_state import TREND, CoxProgress
from .cox_step import penalised
from .follow_up import counts_by_column
from .frame import FloatArray
from .survival_curve import NORMAL_QUANTILE
from .texts import unpacked

FEW_SITES = 20
FEW_EVENTS = 10
"""Events a column; with fewer, estimates are biased away from 0 (Peduzzi and others, 1995)."""


def cox_table(state: CoxProgress, columns: Sequence[str]) -> dict[str, Any]:
    """Return the result of a finished run, flat, as JSON types.

    ``se`` and ``cov`` are of the inverse information I^-1; ``se`` has also ``robust``,
    I^-1 (sum_i w_i^2 r_i r_i') I^-1 (Lin and Wei, Journal of the American Statistical Association
    84, 1989, 1074-1078), and ``cluster``, I^-1 (sum_s U_s U_s') I^-1 over sites, without
    small-sample factors. ``z``, ``p`` and ``ci95`` are of the first. What is not defined is None.
    """
    from scipy.stats import norm

    basis = state.basis
    coefficients = basis @ state.gamma
    inverse = np.asarray(np.linalg.inv(state.information), np.float64)
    cov = basis @ inverse @ basis.T
    rows, events, strata, sites = (int(count) for count in state.counts)
    se = np.sqrt(np.diag(cov))
    z = coefficients / se
    reach = NORMAL_QUANTILE * se
    ends = np.stack([coefficients - reach, coefficients + reach], axis=1)
    robust = _sandwich(basis @ inverse, state.meat)
    cluster = _sandwich(basis @ inverse, state.cluster) if sites > 1 else np.full_like(se, np.nan)
    with np.errstate(over="ignore"):
        ratio, ratio_ends = np.exp(coefficients), np.exp(ends)
    named = unpacked(state.event_level)
    terms = unpacked(state.names)
    # The weights' unit w is in log D of each death: it leaves the likelihood by W log w.
    shift = float(state.trend[0, 0]) * float(np.log(state.heaviness))
    return {
        "event_level": named[0] if named else "1",
        "n": rows,
        "events": events,
        "num_strata": strata,
        "num_sites": sites,
        "left_out": counts_by_column(columns, state.left_out),
        "terms": terms,
        "short_terms": [short_name(term) for term in terms],
        "coef": coefficients.tolist(),
        "se": {
            "nonrobust": se.tolist(),
            "robust": _numbers(robust),
            "cluster": _numbers(cluster),
        },
        "cov": cov.tolist(),
        "z": z.tolist(),
        "p": (2.0 * norm.sf(np.abs(z))).tolist(),
        "ci95": ends.tolist(),
        "ratio": _numbers(ratio),
        "ratio_ci95": [_numbers(pair) for pair in ratio_ends],
        "loglik": state.loglik - shift,
        "null_loglik": state.null_loglik - shift,
        "aic": 2.0 * len(terms) - 2.0 * (state.loglik - shift),
        **_overall(state),
        "concordance": _concordance(state),
        "pairs": [int(count) for count in state.pairs],
        "ph_test": ph_tests(state, inverse),
        "rounds": state.rounds,
        "notes": _notes(state),
    }


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
        found["penalised_rise"] = high - low
    ratio = 2.0 * (high - low)
    wald = float(state.gamma @ state.information @ state.gamma)
    score = float(state.null_score @ np.linalg.solve(state.null_information, state.null_score))
    for name, value in (("lr", ratio), ("wald", wald), ("score", score)):
        found |= {f"{name}_chi2": value, f"{name}_p": float(chi2.sf(value, df))}
    return found


def ph_tests(state: CoxProgress, inverse: FloatArray) -> dict[str, Any]:
    """Return tests of proportional hazards against time and its logarithm.

    With g centred over deaths, s = sum_k w_k g_k r_k of Schoenfeld's residuals r, V = I^-1 and d
    the deaths' weight, column j has the statistic d (V s)_j^2 / (V_jj sum_k w_k g_k^2), and all
    together d s' V s / sum_k w_k g_k^2: Grambsch and Therneau, Biometrika 81, 1994, 515-526, with
    the information of each death taken as I / d. None where a death at time 0 has no logarithm, or
    all deaths are at one time.
    """
    from scipy.stats import chi2

    found: dict[str, Any] = {}
    for name, numbers in zip(("identity", "log"), state.trend, strict=True):
        weight, first, second, at_zero = numbers[:TREND]
        slopes = numbers[TREND:] - first / weight * state.score
        spread = second - first**2 / weight
        if (name == "log" and at_zero > 0.5) or spread <= 1e-9 * max(second, 1e-300):
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


def _sandwich(bread: FloatArray, meat: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", bread, meat, bread)), np.float64)


def _numbers(values: FloatArray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _notes(state: CoxProgress) -> list[str]:
    _, events, _, sites = state.counts
    notes = []
    if sites < FEW_SITES:
        notes.append(
            f"errors clustered by site are of {int(sites)} sites: below {FEW_SITES} they are too "
            "small more often than not"
        )
    if events < FEW_EVENTS * len(state.gamma):
        notes.append(
            f"{int(events)} events for {len(state.gamma)} columns: below {FEW_EVENTS} for each, "
            "estimates are biased away from 0; firth = true, or fewer columns, is a way out"
        )
    return notes
