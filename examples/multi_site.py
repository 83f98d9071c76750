"""Pooled fit, Privet, meta-analysis of the sites' own fits, and FedAvg, on three worked tables.

How far the worst coefficient (no intercept) ends from that of the pooled rows, in standard errors
of the pooled fit. Run from a checkout: python examples/multi_site.py
"""

import csv
import json
from pathlib import Path

import numpy as np

from privet.sim import grid_of, quiet
from privet.strategies.analyses import GLM, Cox

TABLES = Path(__file__).parents[1] / "tests" / "data" / "inference"
TERMS = "age + sex + bmi + crp + smoker"


def sites_of(name):
    """Return the table of each site: lists by column."""
    with (TABLES / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = sorted({row["site"] for row in rows})
    found = []
    for site in names:
        own = [row for row in rows if row["site"] == site]
        found.append({key: [number(row[key]) for row in own] for key in own[0]})
    return found


def number(text):
    try:
        return float(text)
    except ValueError:
        return text


def coefficients(strategy, tables):
    """Return terms but for intercepts, with coefficient and standard error."""
    grid = grid_of(strategy.algorithm, tables)
    table = strategy.start(grid).table
    assert table["sites"] == len(tables)
    columns = zip(table["terms"], table["coef"], table["se"]["nonrobust"], strict=True)
    return {t: (b, e) for t, b, e in columns if t != "Intercept" and "site" not in t}


def meta_analysis(strategy, tables):
    """Return the mean of the sites' own coefficients, weighted by inverse variance."""
    fits = [coefficients(strategy, [one]) for one in tables]
    return {
        term: np.average([f[term][0] for f in fits], weights=[f[term][1] ** -2 for f in fits])
        for term in fits[0]
    }


def design(tables, family, outcome, by_site):
    """Return the columns of every site, its outcome and offset; the intercepts come first."""
    made = []
    for place, one in enumerate(tables):
        rows = len(one["age"])
        ones = np.zeros((rows, len(tables) if by_site else 1))
        ones[:, place if by_site else 0] = 1.0
        dummies = {
            "sex[T.M]": np.array(one["sex"]) == "M",
            "smoker[T.former]": np.array(one["smoker"]) == "former",
            "smoker[T.never]": np.array(one["smoker"]) == "never",
        }
        named = {**dummies, **{key: np.array(one[key]) for key in ("age", "bmi", "crp")}}
        x = np.column_stack([ones, *(column.astype(float) for column in named.values())])
        offset = np.log(one["years"]) if family == "poisson" else np.zeros(rows)
        made.append((x, np.array(one[outcome]), offset))
    return list(named), made


def mean_and_weight(family, eta):
    if family == "poisson":
        return np.exp(eta), np.exp(eta)
    mean = 1.0 / (1.0 + np.exp(-eta))
    return mean, mean * (1.0 - mean)


def pooled_fit(family, made):
    """Return coefficients and standard errors of all rows together, by Newton's method."""
    x, y, offset = (np.concatenate(parts) for parts in zip(*made, strict=True))
    beta = np.zeros(x.shape[1])
    for _ in range(30):
        mean, weight = mean_and_weight(family, x @ beta + offset)
        information = x.T @ (weight[:, None] * x)
        beta = beta + np.linalg.solve(information, x.T @ (y - mean))
    return beta, np.sqrt(np.diag(np.linalg.inv(information)))


def fedavg(family, made, rounds=200, local_steps=10):
    """Return the model after rounds of local gradient steps and a mean weighted by rows.

    Columns have mean 0 and deviation 1 over all rows, which makes it easier; the step is the
    inverse of the largest curvature of a site's loss at the start.
    """
    everything = np.concatenate([x for x, _, _ in made])
    centre, scale = everything.mean(0), everything.std(0)
    centre[0], scale[0] = 0.0, 1.0
    parts = [((x - centre) / scale, y, offset) for x, y, offset in made]
    rows = [len(y) for _, y, _ in parts]
    beta = np.zeros(everything.shape[1])
    curvatures = []
    for x, _, offset in parts:
        _, weight = mean_and_weight(family, offset)
        curvatures.append(np.linalg.eigvalsh(x.T @ (weight[:, None] * x) / len(x))[-1])
    for _ in range(rounds):
        ends = []
        for x, y, offset in parts:
            own = beta.copy()
            for _ in range(local_steps):
                mean, _ = mean_and_weight(family, x @ own + offset)
                own += x.T @ (y - mean) / len(y) / max(curvatures)
            ends.append(own)
        beta = np.average(ends, axis=0, weights=rows)
    return beta / scale


def worst(found, pooled):
    """Return the largest difference to the pooled coefficients, in their standard errors."""
    gap = max(abs(found[term] - beta) / error for term, (beta, error) in pooled.items())
    return "below 1e-7" if gap < 1e-7 else f"{gap:.2f}"


def first(fit):
    return {term: values[0] for term, values in fit.items()}


def rows():
    """Yield table, model, and the distances of Privet, meta-analysis and FedAvg."""
    for name, family, outcome in (
        ("glm-binomial-1", "binomial", "died"),
        ("glm-poisson-1", "poisson", "visits"),
    ):
        tables = sites_of(name)
        keys = {"family": family}
        if family == "poisson":
            keys["exposure_column"] = "years"
        own = GLM(formula=f"{outcome} ~ {TERMS}", **keys)
        for by_site in (True, False):
            terms, made = design(tables, family, outcome, by_site)
            beta, errors = pooled_fit(family, made)
            pooled = dict(zip(terms, zip(beta[-6:], errors[-6:], strict=True), strict=True))
            sites = " + C(site)" if by_site else ""
            # A site knows its own name alone, so the coordinator says what the categories are.
            all_rows = {key: [v for one in tables for v in one[key]] for key in tables[0]}
            strategy = GLM(formula=f"{outcome} ~ {TERMS}{sites}", table=all_rows, **keys)
            averaged = "-"
            if not by_site:
                averaged = worst(dict(zip(terms, fedavg(family, made)[-6:], strict=True)), pooled)
            model = "an intercept for each site" if by_site else "one intercept"
            yield (
                f"{family}, {model}",
                worst(first(coefficients(strategy, tables)), pooled),
                worst(meta_analysis(own, tables), pooled),
                averaged,
            )
    known = json.loads((TABLES / "cox-1.json").read_text())
    efron = known["efron"]
    errors = efron["se"]["nonrobust"] if isinstance(efron["se"], dict) else efron["se"]
    terms = [term.replace("_", "[T.", 1) + "]" if "_" in term else term for term in known["terms"]]
    pooled = dict(zip(terms, zip(efron["coef"], errors, strict=True), strict=True))
    strategy = Cox(time_column="days", event_column="died", formula=TERMS)
    tables = sites_of("cox-1")
    yield (
        "Cox, stratified by site",
        worst(first(coefficients(strategy, tables)), pooled),
        worst(meta_analysis(strategy, tables), pooled),
        "-",
    )


if __name__ == "__main__":
    quiet()
    print("| model | Privet | meta-analysis | FedAvg |\n|---|---|---|---|")
    for row in rows():
        print(f"| {' | '.join(row)} |")
