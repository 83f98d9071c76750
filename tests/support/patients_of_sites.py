"""Made-up patients of several sites, with columns that are hard for a regression."""

from __future__ import annotations

from typing import Any

import numpy as np


def patients(count: int = 800, seed: int = 0, sites: int = 5) -> dict[str, Any]:
    """Return columns by name: numbers as arrays, categories as lists of texts."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "site": rng.choice([f"s{place}" for place in range(sites)], count).tolist(),
        "age": rng.integers(20, 90, count).astype(float),
        "bmi": rng.normal(26.0, 4.0, count),
        "crp": rng.gamma(2.0, 3.0, count) + 0.1,
        "sex": rng.choice(["F", "M"], count).tolist(),
        "smoker": rng.choice(["current", "former", "never"], count).tolist(),
        "cells": rng.normal(1e5, 2e4, count),
        "tiny": rng.normal(0.0, 1e-6, count),
        "year": rng.integers(2000, 2020, count).astype(float),
        "weight": rng.gamma(2.0, 1.0, count) + 0.05,
        "years": rng.gamma(2.0, 2.0, count) + 0.01,
        "log_dose": rng.normal(0.0, 0.5, count),
    }
    columns["near"] = columns["bmi"] + rng.normal(0.0, 1e-5, count)
    columns["heavy"] = 1e6 * columns["weight"]
    male, never = (np.array(columns["sex"]) == "M"), (np.array(columns["smoker"]) == "never")
    line = 0.02 * (columns["age"] - 50) + 0.1 * (columns["bmi"] - 26) + 0.5 * male - 0.4 * never - 1
    columns["died"] = (rng.random(count) < 1 / (1 + np.exp(-line))).astype(float)
    columns["rare"] = (rng.random(count) < 1 / (1 + np.exp(3.5 - line))).astype(float)
    columns["visits"] = rng.poisson(np.exp(0.3 * line) * columns["years"]).astype(float)
    columns["many"] = rng.poisson(np.exp(0.3 * line) * 1e6).astype(float)
    columns["pressure"] = 1e5 + 3 * line + rng.normal(0.0, 1.0, count)
    columns["exact"] = 1e5 + 3 * line + rng.normal(0.0, 1e-4, count)
    return columns
