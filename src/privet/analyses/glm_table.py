"""The table of a generalised linear model: flat, of JSON types, on the scale of its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .design import Design
from .family import FAMILIES
from .follow_up import counts_by_column, left_out_notes
from .frame import FloatArray
from .glm_begun import distance
from .glm_start import raw, within
from .glm_state import LARGEST, GlmProgress
from .glm_step import dispersion
from .site_tests import site_entries, site_notes

FEW_SITES = 20
"""Errors clustered by fewer sites are too small; the table says so."""


def glm_table(
    state: GlmProgress,
    summed: Design,
    design: Design,
    columns: Sequence[str],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the table of a state whose sums were of a design, for the columns of the same or less.

    ``se`` and ``cov`` are in the units of the columns: ``nonrobust`` phi I^-1, ``HC0`` and
    ``cluster`` I^-1 M I^-1 without a factor for small samples; ``cov`` is the first. phi is
    Pearson's chi-squared over n - p of a Gaussian and 1 of others. The log-likelihood of a Gaussian
    is at the variance RSS / n, as statsmodels has it; the null model is an intercept beside the
    same offset and weights, with a variance of its own. ``z``, ``p`` and ``ci95`` are by the normal
    distribution and the nonrobust errors; ``bic`` is -2 loglik + p log n. ``begun_distance`` is how
    far the model that Newton's steps began at was off, in standard errors. ``by_site`` and
    ``heterogeneity`` are lists in the order of the sites: see `site_entries`. Entries that do not
    exist are None.
    """
    family = str(settings["family"])
    spread = state.spread
    kept = np.array([name in design.names for name in summed.names])
    free = within(state, summed.ones, kept)
    turn = raw(state, summed.ones)[kept]
    inverse = free @ np.linalg.inv(free.T @ state.information @ free) @ free.T
    variance = dispersion(state, family) / state.heaviness
    nonrobust = turn @ (inverse * (variance * spread**2)) @ turn.T
    coef = turn @ (state.gamma * spread) + design.ones * state.shift
    se, notes = _errors(state, design, turn @ inverse * spread, nonrobust, bool(settings["firth"]))
    fit = _fit(state, family, len(coef))
    entries = site_entries(state.site_counts, state.site_tests, family != "gaussian")
    if settings["firth"]:
        fit["penalised_loglik"] = fit["loglik"] + _penalty(state, summed)
    if len(state.begun):
        off = distance(state, summed.ones, np.sqrt(np.diag(nonrobust)))
        fit["begun_distance"] = off
        notes.append(
            f"begun at {settings['begun']}: its worst coefficient is {off:.2g} standard errors off"
        )
    left_out = counts_by_column(columns, state.left_out)
    return {
        "format": 1,
        "kind": "glm",
        **settings,
        "n": round(state.row_count),
        "events": _whole(state.events) if family != "gaussian" else None,
        "sites": round(state.sites),
        "terms": list(design.names),
        "levels": {name: list(levels) for name, levels in design.levels.items()},
        "coef": coef.tolist(),
        "se": {kind: finite_or_none(np.sqrt(np.diag(of_kind))) for kind, of_kind in se.items()},
        "cov": nonrobust.tolist(),
        "cov_robust": {
            kind: _square(of_kind) for kind, of_kind in se.items() if kind != "nonrobust"
        },
        **_normal(coef, np.sqrt(np.diag(nonrobust)), FAMILIES[family].ratio),
        **fit,
        "tests": _joint_tests(coef, se, design, state),
        **entries,
        "rounds": state.rounds,
        "left_out": left_out,
        "notes": [
            *_notes(design),
            *left_out_notes(left_out, UNUSABLE),
            *notes,
            *site_notes(entries),
        ],
    }


UNUSABLE = "missing values, or values that cannot be used,"
"""For which values rows are left out, in a note."""


def _penalty(state: GlmProgress, summed: Design) -> float:
    """Return log det I / 2 on the scale of the columns, X = Z T^-1."""
    of_basis = 2.0 * np.linalg.slogdet(raw(state, summed.ones))[1]
    of_weights = len(state.gamma) * np.log(state.heaviness)
    return float(np.linalg.slogdet(state.information)[1] - of_basis + of_weights) / 2.0


def _fit(state: GlmProgress, family: str, width: int) -> dict[str, Any]:
    """Return likelihoods, deviances and the numbers made of them."""
    rows, heaviness = state.row_count, state.heaviness
    squares = heaviness * state.spread**2
    null_squares = heaviness * state.null_spread**2
    deviance, null_deviance = state.deviance * squares, state.null_deviance * null_squares
    scale = 1.0
    if family == "gaussian":
        scale = deviance / (rows - width)
        constant = rows * np.log(2.0 * np.pi) - state.log_weights
        loglik = -(rows * np.log(deviance / rows) + rows + constant) / 2.0
        null_loglik = -(rows * np.log(null_deviance / rows) + rows + constant) / 2.0
    else:
        loglik, null_loglik = state.loglik * heaviness, state.null_loglik * heaviness
    return {
        "loglik": float(loglik),
        "null_loglik": float(null_loglik),
        "deviance": deviance,
        "null_deviance": null_deviance,
        # One row of a fitted probability near 0 may be beyond the fixed point.
        "pearson_chi2": state.pearson * squares if state.pearson < LARGEST * state.whole else None,
        "scale": scale,
        "df_resid": round(rows) - width,
        "aic": float(-2.0 * loglik + 2.0 * width),
        "bic": float(-2.0 * loglik + width * np.log(rows)),
    }


def _errors(
    state: GlmProgress, design: Design, bread: FloatArray, nonrobust: FloatArray, firth: bool
) -> tuple[dict[str, FloatArray], list[str]]:
    """Return the covariances by kind, and what is to be said of them.

    An indicator that is 0 at all sites but one has a score of 0 there at the estimate, so clustered
    errors of it, and of the intercept beside it, do not exist.
    """
    if firth:
        return {"nonrobust": nonrobust}, ["robust errors of penalised estimates are not given"]
    hc0 = bread @ state.meat @ bread.T
    cluster = bread @ state.cluster @ bread.T
    alone = np.round(state.present) <= 1
    for places in design.terms.values():
        if all(alone[list(places)]):
            alone = alone | (design.ones > 0)
    cluster = np.where(alone[:, None] | alone[None, :], np.nan, cluster)
    notes = few_sites_notes(round(state.sites))
    if alone.any():
        names = [name for name, one in zip(design.names, alone, strict=True) if one]
        notes.append(
            f"no errors clustered by site for {', '.join(names[:20])}: a column that is 0 at all "
            "sites but one has none, and then the intercept has none either"
        )
    return {"nonrobust": nonrobust, "HC0": hc0, "cluster": cluster}, notes


def few_sites_notes(sites: int) -> list[str]:
    """Return the note that so many sites are few for errors clustered by site, if they are."""
    if sites >= FEW_SITES:
        return []
    return [
        f"with {sites} sites errors clustered by site (in table.json) are too small; "
        f"{FEW_SITES} or more are needed"
    ]


def _normal(coef: FloatArray, error: FloatArray, ratio: str) -> dict[str, Any]:
    from scipy.stats import norm

    z = coef / error
    reach = norm.ppf(0.975) * error
    ends = np.stack([coef - reach, coef + reach], axis=1)
    found: dict[str, Any] = {
        "z": z.tolist(),
        "p": (2.0 * norm.sf(np.abs(z))).tolist(),
        "ci95": ends.tolist(),
    }
    if ratio:
        with np.errstate(over="ignore"):
            exponents = np.exp(coef), np.exp(ends)
        found |= {
            "ratio_name": ratio,
            "ratio": finite_or_none(exponents[0]),
            "ratio_ci95": [finite_or_none(pair) for pair in exponents[1]],
        }
    return found


def _joint_tests(
    coef: FloatArray, errors: Mapping[str, FloatArray], design: Design, state: GlmProgress
) -> dict[str, Any]:
    """Return Wald's test b' V^-1 b of every term of two columns or more, by kind of error.

    The scores of the sites add up to 0, so clustered errors have rank sites - 1 at most, and test
    no more columns than that.
    """
    tests: dict[str, Any] = {}
    for term, places in design.terms.items():
        if len(places) < 2:
            continue
        found: dict[str, Any] = {}
        for kind, covariance in errors.items():
            if kind == "cluster" and state.sites <= len(places):
                continue
            test = wald_test(coef, covariance, places)
            if test is not None:
                found[kind] = test
        tests[term] = found
    return tests


def wald_test(
    coef: FloatArray, covariance: FloatArray, places: Sequence[int]
) -> dict[str, float] | None:
    """Return Wald's test that some coefficients are 0: b' V^-1 b, chi-squared.

    None where their covariance is singular or does not exist.
    """
    from scipy.stats import chi2

    part = covariance[np.ix_(places, places)]
    if not np.isfinite(part).all() or np.linalg.matrix_rank(_correlation(part)) < len(places):
        return None
    chosen = coef[list(places)]
    statistic = float(chosen @ np.linalg.solve(part, chosen))
    freedom = len(places)
    return {"chi2": statistic, "df": freedom, "p": float(chi2.sf(statistic, freedom))}


def _correlation(covariance: FloatArray) -> FloatArray:
    errors = np.sqrt(np.diag(covariance))
    errors = np.where(errors > 0, errors, 1.0)
    found: FloatArray = covariance / np.outer(errors, errors)
    return found


def _notes(design: Design) -> list[str]:
    notes = []
    outcome = design.formula.outcome.column
    if outcome in design.levels:
        event = design.levels[outcome][1]
        notes.append(f"{outcome}: {event} counts as 1, {design.levels[outcome][0]} as 0")
    return notes


def finite_or_none(values: FloatArray) -> list[float | None]:
    """Return numbers as JSON has them: None for one that is not finite."""
    return [float(value) if np.isfinite(value) else None for value in values]


def _square(values: FloatArray) -> list[list[float | None]]:
    return [finite_or_none(row) for row in values]


def _whole(value: float) -> float | int:
    return round(value) if abs(value - round(value)) < 1e-3 else value
