"""The generated regression whose agents differ."""

from __future__ import annotations

import numpy as np
import pytest

from privet.data import DataError, federation_from_config, problem_from_config
from privet.data.built_in import EIGENVALUES, NOISE_VARIANCES, regression
from privet.data.loaders import load
from privet.problems import RidgeRegression

CONFIG = {
    "dataset": "regression",
    "features": 2,
    "examples-per-agent": 100,
    "partition": "natural-id",
    "regularizer-weight": 0.2,
}


def test_every_agent_has_a_covariance_and_a_noise_of_its_own() -> None:
    """10,000 examples an agent: moments are within a few per cent of what was drawn."""
    agents, each = 4, 10_000
    data = regression(3, 2, agents * each, agents)
    features = data.train_features.reshape(agents, each, 2)
    targets = data.train_labels.reshape(agents, each)
    covariances = np.einsum("kni,knj->kij", features, features) / each
    eigenvalues = np.linalg.eigvalsh(covariances)
    assert (eigenvalues > 0.9 * EIGENVALUES[0]).all()
    assert (eigenvalues < 1.1 * EIGENVALUES[1]).all()
    assert np.linalg.norm(covariances[0] - covariances[1]) > 0.05
    models = [np.linalg.lstsq(u, d, rcond=None)[0] for u, d in zip(features, targets, strict=True)]
    for model in models:
        np.testing.assert_allclose(model, models[0], atol=0.1)
    left = [np.var(d - u @ w) for u, d, w in zip(features, targets, models, strict=True)]
    assert min(left) > 0.9 * NOISE_VARIANCES[0]
    assert max(left) < 1.1 * NOISE_VARIANCES[1]
    assert max(left) / min(left) > 1.05


def test_agents_are_dealt_their_own_examples() -> None:
    data = load("regression", seed=42, features=2, examples=600, agents=6)
    federation = federation_from_config(CONFIG | {"examples-per-agent": 100}, 6)
    assert [len(part) for part in federation.parts] == [100] * 6
    for agent, part in enumerate(federation.parts):
        assert part.tolist() == list(range(100 * agent, 100 * (agent + 1)))
    problem = problem_from_config(CONFIG, 4, 6)
    assert isinstance(problem, RidgeRegression)
    assert np.array_equal(problem.features, data.train_features[400:500])
    assert federation.held_out.num_examples == 6 * 20
    w = np.array([0.4, -0.3])
    gaps = problem.features @ w - problem.targets
    assert problem.value(w) == pytest.approx(np.mean(gaps**2) + 0.1 * (w @ w))


def test_draws_are_fixed_by_the_seed() -> None:
    one, other = (load("regression", seed=s, features=3, examples=40, agents=2) for s in (1, 2))
    again = regression(1, 3, 40, 2)
    assert np.array_equal(one.train_features, again.train_features)
    assert not np.allclose(one.train_features, other.train_features)


@pytest.mark.parametrize(("features", "examples", "agents"), [(1, 10, 2), (2, 1, 2)])
def test_sizes_that_make_no_regression(features: int, examples: int, agents: int) -> None:
    with pytest.raises(DataError, match="regression: expected features >= 2"):
        regression(0, features, examples, agents)
