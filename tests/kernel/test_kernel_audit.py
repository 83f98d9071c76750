"""Likelihood-ratio audits: what an observer can prove stays under the claim, as built.

400000 draws a side (half to choose thresholds, half counted), Clopper-Pearson at 95 % over all
thresholds together. The noise is seeded, so that a run is repeatable: the transformation is the
one `SystemNoise` uses, only its key is known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privet.core import algorithm
from privet.kernel import Clipped, Facts, Perturber, Release, SeededNoise, Totals
from support.audit import epsilon_lower_bound

DRAWS = 400_000
DELTA = 1e-5


def noise(side: str, kind: str, scale: float, *context: int) -> np.ndarray:
    return getattr(SeededNoise(2024, side, *context), kind)(DRAWS, scale)


def charged(name: str, num_examples: int, **settings: Any) -> Release:
    """Return what the algorithm's agent half charges for a round on ridge regression in one d."""
    facts = Facts(num_examples, float(num_examples), 1, loss="ridge", regularizer="l2", modulus=0.2)
    config = {key.replace("_", "-"): value for key, value in settings.items()}
    release: Release = algorithm(name).load_agent().from_settings(config).release(facts, 1)
    return release


def epsilon(release: Release) -> float:
    return Totals().add(release).epsilon(DELTA)


def judge(outputs: dict[str, np.ndarray], claim: float, power: float) -> None:
    """The bound must stay under the claim, and reach `power` of it or the audit shows nothing."""
    found = epsilon_lower_bound(outputs["one"], outputs["two"], DELTA)
    assert power * claim <= found <= claim


def through_the_perturber(release: Release, side: str, value: float) -> np.ndarray:
    """Return independent uses of a mechanism on one number: one draw on each of many entries.

    The grid is that of `DRAWS` entries, which is finer than that of one.
    """
    facts = Facts(1, 1.0, DRAWS)
    clipped = Clipped(np.full(DRAWS, value), release.sensitivity, release.norm)
    return Perturber(release, SeededNoise(2024, side), facts).perturb(clipped)


@pytest.mark.parametrize(("kind", "power"), [("laplace", 0.95), ("gaussian", 0.4)])
def test_the_perturbers_own_claim(kind: Any, power: float) -> None:
    """For a pure claim of 1 the bound comes within 5 %: the audit itself is sharp."""
    release = Release(kind, scale=1.0, norm="l1" if kind == "laplace" else "l2")
    outputs = {
        "one": through_the_perturber(release, "one", 0.25),
        "two": through_the_perturber(release, "two", 1.25),
    }
    judge(outputs, epsilon(release), power)


def test_audit_catches_half_the_noise() -> None:
    """With half the noise that is claimed the bound passes the claim."""
    outputs = {
        "one": noise("one", "laplace", 0.5),
        "two": 1.0 + noise("two", "laplace", 0.5),
    }
    assert epsilon_lower_bound(outputs["one"], outputs["two"], DELTA) > 1.5


def test_data_dependent_scale_of_the_paper_breaks_its_claim() -> None:
    """DP-IADMM's Delta_bar: at a claimed .05 an iteration, at least 1.5 is measured.

    Logistic regression at z = 0 on ten records of which one is replaced. Delta_bar is the largest
    gradient norm in the data, so the *scale* of the noise tells the neighbours apart.
    """
    claim, total = 0.05, 10
    common = np.full(total - 1, 0.1)
    outputs = {}
    for side, feature in (("one", 0.5), ("two", 0.1)):
        features = np.append(common, feature)
        gradients = -0.5 * features / total
        scale = float(np.abs(gradients).max()) / claim
        outputs[side] = gradients.sum() + noise(side, "laplace", scale)
    # The size of the output orders the likelihood ratio of two Laplaces of different scales.
    found = epsilon_lower_bound(np.abs(outputs["one"]), np.abs(outputs["two"]), 0.0)
    assert found >= 1.5
    # The clipped, data-independent scale at the same claim keeps it.
    kept = {}
    for side, feature in (("one", 0.5), ("two", 0.1)):
        features = np.append(common, feature)
        gradients = -0.5 * np.minimum(features, 1.0) / total
        release = charged("dp-iadmm", total, clip=0.5, epsilon=claim, mechanism="laplace")
        assert release.loss == pytest.approx(claim, rel=1e-3)
        kept[side] = gradients.sum() + noise(side, "laplace", release.scale)
    for view in (np.abs, lambda draws: draws):
        assert epsilon_lower_bound(view(kept["one"]), view(kept["two"]), 0.0) <= claim
