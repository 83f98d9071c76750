"""How far output perturbation of DP-IADMM lets a record move z_p: the formula and its refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from privet.kernel import NoCertificateError, dp_iadmm_output_gain


def test_one_step_is_the_closed_form() -> None:
    assert dp_iadmm_output_gain(rho=3.0, eta=0.5, local_updates=1) == pytest.approx(0.5 / 2.5)
    laplace = dp_iadmm_output_gain(rho=3.0, eta=0.5, local_updates=1, norm="l1", projection="box")
    assert laplace == pytest.approx(0.2)


def test_mean_of_three_steps_by_hand() -> None:
    # s = 1/2, c = 1/2, L = 1 <= 2c/s: differences s, s(1 + c), s(1 + c + c^2)
    gain = dp_iadmm_output_gain(rho=1.0, eta=1.0, local_updates=3, loss="logistic", smoothness=1.0)
    assert gain == pytest.approx((0.5 + 0.75 + 0.875) / 3)


@pytest.mark.parametrize(
    ("loss", "factor"),
    [
        ("ridge", 0.5 * 4.0 - 0.5),
        ("multinomial", math.sqrt(0.25 + 0.5 * 2.0 / 4 + 4.0)),
        ("other", 0.5 + 2.0),
    ],
)
def test_factor_of_a_common_step(loss: str, factor: float) -> None:
    # s = c = 1/2, s L = 2
    gain = dp_iadmm_output_gain(rho=1.0, eta=1.0, local_updates=2, loss=loss, smoothness=4.0)
    assert gain == pytest.approx(0.5 * (2 + factor) / 2)


def test_regulariser_shrinks_the_factor() -> None:
    # s = 1/2, c = (1 - 1 * 0.4) / 2 = 0.3
    gain = dp_iadmm_output_gain(
        rho=1.0, eta=1.0, local_updates=2, loss="logistic", smoothness=0.2, regularizer_modulus=0.4
    )
    assert gain == pytest.approx(0.5 * (2 + 0.3) / 2)


def test_softmax_clipping_really_costs_its_eighth() -> None:
    """P J d, with P the projection of a clip and J positive: <d, P J d> reaches -L/8."""
    angles = np.linspace(0, np.pi, 2001)
    direction = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    stretched = np.array([1.0, 0.0])  # J = L e e^T, L = 1
    inner = direction @ stretched
    lowest = min(
        float(np.min(inner * (direction @ (projected * (projected @ stretched)))))
        for projected in (np.array([np.cos(a), np.sin(a)]) for a in angles[::10])
    )
    assert lowest == pytest.approx(-1 / 8, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"local_updates": 2}, "needs row-norm"),
        ({"local_updates": 2, "norm": "l1"}, "laplace noise"),
        ({"local_updates": 1, "norm": "l1", "projection": "l2"}, "laplace noise"),
        ({"local_updates": 1, "projection": "simplex"}, "set 'simplex'"),
        ({"local_updates": 2, "smoothness": 1.0, "regularizer_modulus": 2.0}, "<= 1"),
        ({"local_updates": 5000, "smoothness": 50.0}, "explodes"),
    ],
)
def test_refusals(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(NoCertificateError, match=line):
        dp_iadmm_output_gain(rho=1.0, eta=1.0, **settings)


@pytest.mark.parametrize("settings", [{"rho": 0.0}, {"eta": -1.0}, {"local_updates": 0}])
def test_numbers_out_of_range(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        dp_iadmm_output_gain(**{"rho": 1.0, "eta": 1.0, "local_updates": 1, **settings})
