"""The array simulation of Section V-A is the real run, and says what the page says."""

from __future__ import annotations

import numpy as np
import pytest

from privet.sim.experiments.gfl import regression_network, run
from privet.sim.experiments.gfl_simulated import Named, Quick, observed, simulate


@pytest.mark.parametrize("kind", ["none", "random", "homomorphic"])
def test_simulation_and_real_run_are_the_same(kind: str) -> None:
    network = regression_network(4, 15, 2, "ring")
    real = run(network, 6, kind=kind, seed=3)
    found = simulate(network, 6, kind=kind, chance=Named(network, 3))
    np.testing.assert_allclose(found.centroid, real.centroid, rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(found.units, real.units, rtol=1e-10, atol=1e-15)


def test_optimum_is_the_papers_closed_form() -> None:
    """Eq. (55), with the mean of all agents' second moments."""
    network = regression_network(4, 15, 2, "ring")
    u = np.concatenate([problem.features for problem in network.problems])
    d = np.concatenate([np.asarray(problem.targets) for problem in network.problems])
    wanted = np.linalg.solve(u.T @ u / len(d) + 0.1 * np.eye(2), u.T @ d / len(d))
    np.testing.assert_allclose(network.optimum, wanted, atol=1e-10)


def test_what_the_papers_figures_claim() -> None:
    """Orders of magnitude at mu .7 and sigma_g^2 .1, from 600 rounds after 100."""
    network = regression_network()
    steady = {
        kind: simulate(network, 700, kind=kind, chance=Quick(network, 1)).steady(100)
        for kind in ("none", "random", "homomorphic")
    }
    assert steady["homomorphic"][0] < 3 * steady["none"][0]
    assert steady["random"][0] > 5 * steady["homomorphic"][0]
    # The individual models are worse with homomorphic noise, contrary to what the paper says.
    assert steady["homomorphic"][1] > 2 * steady["random"][1]
    closed = simulate(network, 700, chance=Quick(network, 1), closing=30).steady(100)
    assert closed[1] < 0.05 * steady["homomorphic"][1]


def test_large_steps_diverge() -> None:
    network = regression_network()
    with np.errstate(over="ignore", invalid="ignore"):
        found = simulate(network, 150, mu=5.0, kind="none", chance=Quick(network, 1))
    assert not found.centroid[-1] < 10.0


def test_an_observer_of_all_links_is_off_by_one_draw() -> None:
    """Its error has the size of one g, sqrt(2 sigma_g^2) = .447 (mean square), at any round."""
    network = regression_network(4, 15, 2, "ring")
    errors = np.array([observed(network, 40, mu=0.1, seed=seed) for seed in range(400)])
    sizes = np.sqrt(np.mean(errors**2, axis=0))
    # 400 draws of squared Laplace norms: five standard deviations are 18 %.
    np.testing.assert_allclose(sizes, np.sqrt(0.2), rtol=0.25)
