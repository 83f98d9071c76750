"""Likelihood-ratio audits: what an observer can prove stays under the claim, as built.

400000 draws a side (half to choose thresholds, half counted), Clopper-Pearson at 95 % over all
thresholds together. The noise is seeded, so that a run is repeatable: the transformation is the
one `SystemNoise` uses, only its key is known.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from privet.privacy import (
    Release,
    SeededNoise,
    account,
    dp_iadmm_release,
    fed_pdm_release,
    fed_plt_contraction,
    fed_plt_release,
    gfl_release,
)
from support.audit import epsilon_lower_bound

DRAWS = 400_000
DELTA = 1e-5


def noise(side: str, kind: str, scale: float, *context: int) -> np.ndarray:
    return getattr(SeededNoise(2024, side, *context), kind)(DRAWS, scale)


def clipped_ridge(w: np.ndarray, target: float, clip: float) -> np.ndarray:
    return np.clip(w - target, -clip, clip)


def judge(outputs: dict[str, np.ndarray], claim: float, power: float) -> None:
    """The bound must stay under the claim, and reach `power` of it or the audit shows nothing."""
    found = epsilon_lower_bound(outputs["one"], outputs["two"], DELTA)
    assert power * claim <= found <= claim


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("updates", [1, 4])
def test_dp_iadmm_message(kind: str, updates: int) -> None:
    """The mean of E noisy inner iterates, of which the mean gradient is a sufficient view."""
    clip, total, scale, rho, eta = 0.5, 10, 0.1 if kind == "laplace" else 0.12, 1.0, 2.0
    release = dp_iadmm_release(
        clip=clip, num_examples=total, noise_scale=scale, local_updates=updates, mechanism=kind
    )
    outputs = {}
    for side, target in (("one", 50.0), ("two", -50.0)):
        z = np.zeros(DRAWS)
        iterates = []
        for e in range(updates):
            gradient = clipped_ridge(z, target, clip) / total
            z = (-noise(side, kind, scale, e, updates) - gradient + z / eta) / (rho + 1 / eta)
            iterates.append(z)
        outputs[side] = np.mean(iterates, axis=0)
    judge(outputs, account([release], DELTA).epsilon, 0.25)


def test_fed_plt_round() -> None:
    numbers = {"clip": 0.5, "num_examples": 4, "step_size": 0.4, "local_steps": 6, "tau": 0.25}
    ridge, rho = 0.2, 2.0
    chi = fed_plt_contraction(
        loss="ridge", step_size=0.4, strong_convexity=ridge, smoothness=ridge + 1, rho=rho
    )
    outputs = {}
    for side, target in (("one", 40.0), ("two", -40.0)):
        w = np.zeros(DRAWS)
        for j in range(6):
            data = (clipped_ridge(w, target, 0.5) + 3 * clipped_ridge(w, 0.0, 0.5)) / 4
            step = 0.4 * (data + ridge * w + w / rho)
            w = w - step + noise(side, "gaussian", math.sqrt(2 * 0.4) * 0.25, j)
        outputs[side] = w
    judge(outputs, account([fed_plt_release(**numbers, contraction=chi)], DELTA).epsilon, 0.15)


@pytest.mark.parametrize("dual", ["public", "private"])
def test_fed_pdm_upload(dual: str) -> None:
    """Whole-batch clip; with the private dual, an observer of a late round."""
    rho, eta, steps, clip, scale = 1.0, 0.15, 3, 0.5, 1.0
    release = fed_pdm_release(
        noise_scale=scale, clipping="batch", clip=clip, rho=rho, step_size=eta,
        local_steps=steps, dual=dual,
    )  # fmt: skip
    outputs = {}
    for side, target in (("one", 40.0), ("two", -40.0)):
        lam = 0.0
        for _ in range(1 if dual == "public" else 12):
            x = 0.0
            for _ in range(steps):
                x -= eta * (float(np.clip(x - target, -clip, clip)) - lam + rho * x)
            lam += rho * (0.0 - x)
        # The public dual of the next round is common knowledge; here it starts at 0.
        y = x - lam / rho
        outputs[side] = y + noise(side, "gaussian", scale)
    judge(outputs, account([release], DELTA).epsilon, 0.3)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_gfl_message_in_a_late_round(kind: str) -> None:
    mu, bound, rounds, scale = 0.5, 0.4, 3, 1.2
    release = gfl_release(
        clip=bound, step_size=mu, round_number=rounds, noise_scale=scale, mechanism=kind
    )
    outputs = {}
    for side, target in (("one", 40.0), ("two", -40.0)):
        psi = 0.0
        for _ in range(rounds):
            psi -= mu * float(np.clip(psi - target, -bound, bound))
        outputs[side] = psi + noise(side, kind, scale)
    judge(outputs, account([release], DELTA).epsilon, 0.3)


def test_laplace_claim_is_tight() -> None:
    """The bound comes within 5 % of a pure claim of 1: the audit itself is sharp."""
    outputs = {
        "one": noise("one", "laplace", 1.0),
        "two": 1.0 + noise("two", "laplace", 1.0),
    }
    release = Release(mechanism="laplace", scale=1.0, norm="l1")
    judge(outputs, account([release], DELTA).epsilon, 0.95)


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
        release = dp_iadmm_release(
            clip=0.5, num_examples=total, noise_scale=2 * 0.5 / total / claim, mechanism="laplace"
        )
        assert release.loss == pytest.approx(claim)
        kept[side] = gradients.sum() + noise(side, "laplace", release.scale)
    for view in (np.abs, lambda draws: draws):
        assert epsilon_lower_bound(view(kept["one"]), view(kept["two"]), 0.0) <= claim
