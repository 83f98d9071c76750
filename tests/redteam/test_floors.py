"""Scales and sensitivities that underflow are refused by name, never charged as nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privet.core import ConfigError
from redteam.harness import NOISE_KEY, PRIVATE, Node, problem

DENORMAL = 5e-324
LEAST, MOST = 1e-100, 1e100


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        # 2C/b underflows to 0, so that the charge is 0 and the noise a denormal.
        (
            "fed-pdm",
            {"clip": 1e-322, "noise_scale": DENORMAL, "step_size_base": 1e307, "rho": 1e-307},
            ("clip", "noise-scale", "step-size-base", "rho"),
        ),
        ("dp-fedsgd", {"clip": 1e-322, "noise_scale": DENORMAL}, ("clip", "noise-scale")),
        ("scaffold", {"clip": 1e-322, "noise_scale": DENORMAL}, ("clip", "noise-scale")),
        ("fed-dyn", {"clip": 1e-322, "noise_scale": DENORMAL}, ("clip", "noise-scale")),
        ("dp-iadmm", {"clip": 1e-322, "noise_scale": DENORMAL}, ("clip", "noise-scale")),
        (
            "dp-iadmm",
            {"clip": 1e-322, "noise_scale": DENORMAL, "mechanism": "laplace"},
            ("clip", "noise-scale"),
        ),
        # sqrt(2 gamma tau^2) is 0 where sqrt(2 gamma) tau is not.
        (
            "fed-plt",
            {"clip": 1e-156, "noise_variance": 1e-320, "step_size": 1e-10, "row_norm": 1e3},
            ("clip", "noise-variance"),
        ),
    ],
)
def test_what_underflows_is_refused(
    name: str, settings: dict[str, Any], named: tuple[str, ...], tmp_path: Path
) -> None:
    node = Node(tmp_path, problem(), max_epsilon=1.0)
    answer = node.train(name, **settings)
    assert answer.refusal is not None
    assert "\n" not in answer.refusal
    assert any(key in node.said for key in named)
    assert node.written == b""


@pytest.mark.parametrize("bad", [LEAST / 2, MOST * 2, DENORMAL, 1e308])
@pytest.mark.parametrize("kind", ["clip", "noise"])
@pytest.mark.parametrize("name", PRIVATE)
def test_bounds_and_noise_stay_within_the_range(
    name: str, kind: str, bad: float, tmp_path: Path
) -> None:
    """Both at once, so that their ratio is ordinary."""
    noise = NOISE_KEY[name]
    key = "clip" if kind == "clip" else noise
    if key == "noise-variance":
        bad = bad**2 if LEAST**2 < bad < MOST**2 else bad
    node = Node(tmp_path, problem(), max_epsilon=1e300)
    other = {"clip": bad, noise: bad} if kind == "clip" else {noise: bad}
    answer = node.train(name, **{k.replace("-", "_"): v for k, v in other.items()})
    assert answer.refusal is not None
    assert any(key in node.said for key in ("clip", noise))
    assert node.written == b""


@pytest.mark.parametrize("key", ["clip", "noise-scale", "noise-variance"])
def test_a_run_config_is_refused_where_it_is_read(key: str) -> None:
    from privet.server_apps import read_config

    for value in (LEAST / 10, MOST * 10, DENORMAL):
        with pytest.raises(ConfigError, match=key):
            read_config({"algorithm": "dp-fedsgd", key: value})
