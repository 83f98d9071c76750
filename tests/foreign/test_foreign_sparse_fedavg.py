"""A package that was written from CONTRIBUTING alone: clipped as a whole, noised, sparse, coded."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import numpy as np
import pytest

from privet.client_apps import Choice
from privet.core import algorithm
from privet.kernel import gaussian_epsilon
from privet.problems import minimize
from privet.server_apps import read_config
from privet.sim import grid_of
from privet.testing import checks, logistic_federation
from support.federations import zeros
from support.outside import installed
from support.paths import ROOT


@pytest.fixture(scope="module", autouse=True)
def sparse_fedavg() -> Iterator[None]:
    with installed(ROOT / "tests" / "foreign" / "sparse_fedavg"):
        yield


def test_it_keeps_every_promise() -> None:
    for check in checks("sparse-fedavg"):
        check()


def test_all_coordinates_of_one_step_are_gradient_descent() -> None:
    problems = logistic_federation()
    keys = {"algorithm": "sparse-fedavg", "num-agents": 6, "gamma": 0.5, "max-local-steps": 1}
    config = read_config({**keys, "share": 1.0})
    strategy = algorithm("sparse-fedavg").load_strategy().from_config(config)
    grid = grid_of("sparse-fedavg", problems)
    result = strategy.start(grid, zeros(4), num_rounds=300, log_rounds=False)
    optimum = minimize(list(problems)).x
    assert np.abs(result.arrays["x"].numpy() - optimum).max() < 1e-6


def test_a_round_costs_one_gaussian_release_of_twice_the_clip() -> None:
    problems = logistic_federation()
    keys = {"algorithm": "sparse-fedavg", "num-agents": 6, "clip": 0.5, "noise-scale": 2.0}
    keys |= {"value-bits": "8", "delta": 1e-5}
    strategy = algorithm("sparse-fedavg").load_strategy().from_config(read_config(keys))
    grid = grid_of("sparse-fedavg", problems)
    result = strategy.start(grid, zeros(4), num_rounds=9, log_rounds=False)
    mu = 2 * 0.5 / 2.0 * np.sqrt(9)
    assert result.history[-1].epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-3)


def test_a_variant_that_is_private_is_refused() -> None:
    with pytest.raises(ValueError, match=r"variant 'noisy' draws unseeded noise .* as private="):
        checks("sparse-fedavg", variants={"noisy": {"clip": 1.0, "noise-scale": 0.1}})


def test_places_that_follow_the_noise_need_not_have_one_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On another engine the noise is another, and with it which coordinates are the largest."""

    def largest(_: str, count: int, share: float, noise: float) -> Choice:
        return Choice("noisy-top-k", count, share, noise)

    monkeypatch.setattr(import_module("sparse_fedavg.agent"), "Choice", largest)
    names = ("uploads_tell_only_what_was_noised", "charge_is_what_is_drawn")
    for check in checks("sparse-fedavg"):
        if check.name in names:
            check()
