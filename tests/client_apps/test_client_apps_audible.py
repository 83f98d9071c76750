"""A coordinator cannot make the noise vanish by sending numbers beside which it is rounded off."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privet.client_apps.audible import require_audible
from privet.client_apps.half import Streams
from privet.privacy import SystemNoise
from privet.problems import L2, BinaryLogistic
from privet.wire import ConfigError, algorithm, resolve
from privet.wire.payload import encoded
from privet.wire.sparse import encode

PROBLEM = BinaryLogistic(np.eye(3), [1, -1, 1], regularizer=L2(0.1))
PRIVATE: dict[str, dict[str, Any]] = {
    "fed-plt": {"local-solver": "noisy-gd", "noise-variance": 0.1},
    "dp-iadmm": {"noise-scale": 0.1, "row-norm": 1.0},
    "fed-pdm": {"noise-scale": 0.1, "max-local-steps": 1},
    "fed-dyn": {"noise-scale": 0.1, "max-local-steps": 1},
    "scaffold": {"noise-scale": 0.1, "max-local-steps": 1},
    "dp-fedsgd": {"noise-scale": 0.1, "max-local-steps": 1},
}


def work(name: str, size: float) -> Any:
    """Do one round's local work from a server that sent numbers of this size."""
    config = resolve({**PRIVATE[name], "clip": 1.0, "row-norm": 1.0, "batch": "full"}, name)
    strategy = algorithm(name).load_strategy().from_config(config)
    half = algorithm(name).load_agent().from_settings(dict(strategy.half.settings()))
    assert half.private
    sent = np.full(3, size)
    zero = np.zeros(3)
    broadcast = {
        "fed-plt": {"y": sent},
        "dp-iadmm": {"w": sent, "t": np.array(1), "rho": np.array(1.0)},
        "fed-pdm": encoded(encode(sent)),
    }.get(name, {"x": sent, "c": zero})
    state = {"x": sent, "z": sent, "lam": zero, "inner": zero, "g": zero, "c": zero}
    problem = half.prepare(PROBLEM)
    return half.local_update(state, broadcast, problem, Streams(0, "0", 1), SystemNoise())


@pytest.mark.parametrize("name", PRIVATE)
def test_huge_numbers_are_refused_and_ordinary_ones_are_not(name: str) -> None:
    assert work(name, 1.0) is not None
    for size in (2.0**60, np.inf, np.nan):
        with np.errstate(invalid="ignore"), pytest.raises(ConfigError, match="lost in rounding"):
            work(name, size)


@given(
    st.floats(1e-30, 1e30),
    hnp.arrays("f4", 30, elements=st.floats(-(2.0**100), 2.0**100, width=32)),
)
def test_refused_is_what_one_number_alone_makes_inaudible(scale: float, array: Any) -> None:
    """The quick look at the norm changes no verdict."""
    unit = float(np.finfo("f4").eps)
    lost = scale < 16 * unit * float(np.abs(array.astype("f8")).max())
    with pytest.raises(ConfigError, match="rounding") if lost else nullcontext():
        require_audible(scale, array)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_threshold_is_sixteen_units_in_the_last_place(dtype: str) -> None:
    array = np.array([-1.0, 0.5], dtype)
    unit = float(np.finfo(dtype).eps)
    require_audible(16.01 * unit, array)
    with pytest.raises(ConfigError, match="rounding"):
        require_audible(15.99 * unit, array)
    require_audible(0.0, array)  # no noise is not this rule's business
