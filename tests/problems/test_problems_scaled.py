"""factor * h against the definition of the proximal operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from privet.problems import Scaled, make_h


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("l1", {"h-weight": 0.3}),
        ("elastic-net", {"h-weight": 0.4, "h-ratio": 0.5}),
        ("box", {"h-radius": 0.6}),
    ],
)
def test_prox_and_optimality_of_a_multiple(name: str, settings: dict[str, Any]) -> None:
    h = Scaled(make_h(name, **settings), 2.5)
    for start in (-1.7, -0.2, 0.0, 0.4, 3.0):
        v = np.array([start])

        def objective(x: float, v: Any = v) -> float:
            inside = np.array([np.clip(x, -0.6, 0.6)] if name == "box" else [x])
            return h.value(inside) + float((inside[0] - v[0]) ** 2) / (2 * 0.7)

        best = minimize_scalar(
            objective, bounds=(-4, 4), method="bounded", options={"xatol": 1e-10}
        )
        found = h.prox(v, 0.7)
        assert objective(float(found[0])) <= best.fun + 1e-12
        assert h.subgradient_residual(found, (found - v) / 0.7) < 1e-12
    assert h.value(np.array([0.5])) == 2.5 * make_h(name, **settings).value(np.array([0.5]))


def test_factor_must_be_positive() -> None:
    with pytest.raises(ValueError, match="factor"):
        Scaled(make_h("zero"), 0.0)
