"""Certified sensitivities against an adversarial search over neighbouring data sets, d <= 3.

A certificate must never be exceeded (1e-9 allows for rounding between iterates of size 1e3) and
must be reached to 95 % where it is said to be tight.
"""

from __future__ import annotations

import numpy as np
import pytest

from privet.privacy import (
    dp_iadmm_sensitivity,
    fed_plt_contraction,
    fed_plt_round,
    gfl_sensitivity,
)
from support import adversary as adv

ROUNDING = 1e-9
TIGHT = 0.95


def softmax(classes: int) -> adv.Gradients:
    return lambda data, x: adv.softmax_gradients(data, x, classes)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("name", ["logistic", "ridge", "softmax"])
def test_dp_iadmm_inner_gradient(relation: str, norm: int, name: str) -> None:
    gradients = {"logistic": adv.logistic_gradients, "ridge": adv.ridge_gradients}.get(
        name, softmax(3)
    )
    width, total, clip = 2, 7, 0.8
    size = width * 3 if name == "softmax" else width

    def gap(parameters: np.ndarray) -> np.ndarray:
        first, second, rest = adv.neighbours(parameters, 2, width, None, relation)
        at = adv.stretched(rest[:, :size])
        one = adv.clip_rows(gradients(first, at), clip, norm).sum(axis=1)
        other = adv.clip_rows(gradients(second, at), clip, norm).sum(axis=1)
        change = (one - other) / total
        return np.abs(change).sum(axis=1) if norm == 1 else np.linalg.norm(change, axis=1)

    found = adv.climb(gap, 3 * (width + 1) + size, seed=1)
    certified = dp_iadmm_sensitivity(clip=clip, num_examples=total, relation=relation)
    assert TIGHT <= found / certified <= 1 + ROUNDING


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("loss", ["logistic", "ridge", "multinomial"])
@pytest.mark.parametrize("step", [0.2, 0.9])
def test_fed_plt_local_drift(loss: str, step: float, relation: str) -> None:
    """The displacement of w_Ne, whatever noise both neighbours share; reached while chi is slow."""
    gradients = {
        "logistic": adv.logistic_gradients,
        "ridge": adv.ridge_gradients,
        "multinomial": softmax(2),
    }[loss]
    width, examples, steps, clip, ridge, rho, row_norm = 2, 2, 6, 0.3, 0.1, 2.0, 1.0
    size = width * 2 if loss == "multinomial" else width
    smooth = {"logistic": 0.25, "ridge": 2.0, "multinomial": 0.5}[loss] * row_norm**2 + ridge

    def gap(parameters: np.ndarray) -> np.ndarray:
        first, second, rest = adv.neighbours(parameters, examples, width, row_norm, relation)
        points = adv.stretched(rest).reshape(-1, steps + 2, size)
        return adv.fed_plt_gap(
            gradients, (first, second), points[:, 0], points[:, 1], points[:, 2:],
            clip=clip, ridge=ridge, rho=rho, step=step,
        )  # fmt: skip

    chi = fed_plt_contraction(
        loss=loss, step_size=step, strong_convexity=ridge, smoothness=smooth, rho=rho
    )
    certified, _ = fed_plt_round(
        clip=clip, num_examples=examples, step_size=step, local_steps=steps, tau=1.0,
        contraction=chi, relation=relation,
    )  # fmt: skip
    found = adv.climb(gap, (examples + 1) * (width + 1) + (steps + 2) * size, seed=2)
    assert found / certified <= 1 + ROUNDING
    # With the larger step ridge's chi is |1 - gamma (L + 1/rho)|, which saturated gradients, the
    # ones that shift most, do not have; multinomial's chi = 1 ignores the pull of v.
    if loss != "multinomial" and chi == abs(1 - step * (ridge + 1 / rho)):
        assert found / certified >= TIGHT


@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize("order", [1, 2])
def test_gfl_hidden_state_accumulates(rounds: int, order: int) -> None:
    width, step, bound = 2, 0.7, 0.5

    def gap(parameters: np.ndarray) -> np.ndarray:
        first, second, rest = adv.neighbours(parameters, 1, width, None)
        messages = adv.stretched(rest).reshape(-1, rounds, width)
        return adv.gfl_gap(
            adv.ridge_gradients, (first, second), messages, step=step, local_steps=3,
            example_clip=None, batch_clip=bound, order=order,
        )  # fmt: skip

    found = adv.climb(gap, 2 * (width + 1) + rounds * width, seed=6)
    certified = gfl_sensitivity(clip=bound, step_size=step, round_number=rounds)
    assert TIGHT <= found / certified <= 1 + ROUNDING


def test_gfl_nonexpansive_rounds() -> None:
    width, step, clip, rounds, row_norm = 2, 0.7, 0.5, 3, 1.0

    def gap(parameters: np.ndarray) -> np.ndarray:
        first, second, rest = adv.neighbours(parameters, 2, width, row_norm)
        other = adv.Data(first.features[:, ::-1], -first.targets[:, ::-1])
        messages = adv.stretched(rest).reshape(-1, rounds, width)
        return adv.gfl_gap(
            adv.logistic_gradients, (first, second), messages, step=step, local_steps=2,
            example_clip=clip, batch_clip=None, shared=other,
        )  # fmt: skip

    found = adv.climb(gap, 3 * (width + 1) + rounds * width, seed=7)
    certified = gfl_sensitivity(
        clip=clip, step_size=step, round_number=rounds, contraction=1.0, batch_size=2,
        participants=2,
    )  # fmt: skip
    assert TIGHT <= found / certified <= 1 + ROUNDING
