"""Runs that name no weight end at scikit-learn's model of the pooled rows, whoever holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import scale

from privet.client_apps import client_app
from privet.data import federation_from_config, problem_from_context
from privet.sim.cohort import CohortGrid
from privet.sim.engine import InlineGrid
from privet.sim.estimator import FederatedClassifier, FederatedRegressor
from privet.sim.inline import run_inline
from privet.strategies import DPIADMM, FedPLT
from support.sites import COLUMNS, SCHEMA, nodes, rows, table, train, turned_away
from support.told import own_log

BERN, GRAZ, LINZ = rows(80, 1), rows(230, 2), rows(40, 3)
SITES = (BERN, GRAZ, LINZ)
START = ArrayRecord({"x": Array(np.zeros(4))})


def scikit_learns(*sites: dict[str, list[Any]], strength: float = 1.0, scaled_by: Any = ()) -> Any:
    """Return slopes and intercept of LogisticRegression(C=strength) on the sites' rows.

    They are standardised with the numbers of all of them, or of those of ``scaled_by``.
    """
    whole = {name: np.concatenate([one[name] for one in sites]) for name in COLUMNS}
    numbers = []
    for name in ("age", "sodium"):
        known = np.concatenate([one[name] for one in scaled_by or sites])
        numbers.append((whole[name] - known.mean()) / known.std())
    design = np.column_stack([*numbers, whole["ward"] == "b"])
    best = LogisticRegression(C=strength, tol=1e-12, max_iter=10_000).fit(design, whole["died"])
    return np.append(best.coef_[0], best.intercept_)


def unweighted(folder: Path, *about: Any, **keys: Any) -> list[dict[str, Any]]:
    """Return nodes whose operators leave the weight to the run."""
    return nodes(folder, *about, **{"regularizer-weight": -1.0, **keys})


def tables(*sites: dict[str, list[Any]]) -> list[str]:
    return [table(one) for one in sites]


@pytest.mark.parametrize("engine", [InlineGrid, CohortGrid])
def test_sites_of_unequal_sizes_end_at_the_pooled_model(tmp_path: Path, engine: Any) -> None:
    model, strategy = train(unweighted(tmp_path, tables(*SITES)), 40, engine=engine)
    assert not turned_away(strategy)
    assert model == pytest.approx(scikit_learns(*SITES), abs=1e-5)


def test_methods_with_one_divisor_end_there_too(tmp_path: Path) -> None:
    """DP-IADMM divides by the examples of all agents, which a site does not know."""
    grid = InlineGrid(
        client_app("dp-iadmm", problem_from_context), unweighted(tmp_path, tables(*SITES))
    )
    strategy = DPIADMM(num_agents=3, eta_rule="smooth", smoothness=0.5, rho=0.05, local_updates=5)
    result = strategy.start(grid, START, num_rounds=1500)
    assert result.arrays["x"].numpy() == pytest.approx(scikit_learns(*SITES), abs=1e-3)


@pytest.mark.parametrize("engine", ["inline", "cohort"])
@pytest.mark.parametrize("scheme", ["label", "dirichlet", "iid"])
@pytest.mark.parametrize("dataset", ["breast-cancer", "digits"])
def test_simulated_runs_of_defaults_end_at_the_pooled_model(
    tmp_path: Path, dataset: str, scheme: str, engine: str
) -> None:
    config = {
        "dataset": dataset,
        "partition": scheme,
        "num-server-rounds": 40,
        "output-dir": str(tmp_path),
        "baseline-seconds": 0.0,
    }
    folder = run_inline(config, "defaults", engine=engine).folder
    with np.load(folder / "model.npz") as arrays:
        x = arrays["x"]
    data = federation_from_config(config, 10).dataset
    ones = dataset == "breast-cancer"
    width = data.train_features.shape[1] - ones
    best = LogisticRegression(fit_intercept=ones, tol=1e-10, max_iter=10_000)
    best.fit(data.train_features[:, :width], data.train_labels)
    expected = np.append(best.coef_, best.intercept_) if ones else best.coef_.T.ravel()
    assert np.linalg.norm(x - expected) < 1e-3 * np.linalg.norm(expected)


def test_private_runs_of_sites_keep_their_objective(tmp_path: Path) -> None:
    """Without a message that says so no site could know that the run is private."""
    options = {"clip": 1.0, "noise_variance": 0.1, "local_solver": "noisy-gd", "row_norm": 3.0}
    sites = tables(BERN, GRAZ)
    found = [
        train(
            unweighted(tmp_path / name, sites, (SCHEMA, SCHEMA), **keys), 3, noise_seed=3, **options
        )
        for name, keys in {"open": {}, "written": {"regularizer-weight": 0.05}}.items()
    ]
    assert found[0][0].tobytes() == found[1][0].tobytes()
    for _, strategy in found:
        assert not turned_away(strategy)
        session = strategy.session
        assert session is not None
        facts = [agent.facts for agent in session.roster.agents.values()]
        assert all('"regularizer":"l2","modulus":0.05' in text for text in facts)
        assert session.pooled_weight == session.mean_examples == 0.0


def test_sites_with_weights_of_their_own_are_named(tmp_path: Path) -> None:
    sites = unweighted(tmp_path, tables(*SITES))
    sites[1]["regularizer-weight"] = 0.05
    with own_log() as lines:
        _, strategy = train(sites, 2)
    assert strategy.session is not None
    assert strategy.session.mean_examples == 0.0
    told = [
        line for line in lines.lines if "2 of 3 agents leave the weight of their penalty" in line
    ]
    assert len(told) == 1


def test_a_run_that_goes_on_keeps_the_weight_with_which_it_began(tmp_path: Path) -> None:
    path = tmp_path / "half.npz"
    sites = unweighted(tmp_path / "sites", tables(*SITES))

    def play(rounds: int, grid: InlineGrid, **more: Any) -> Any:
        strategy = FedPLT(num_agents=3)
        result = strategy.start(grid, START, num_rounds=rounds, **more)
        return strategy, result.arrays["x"].numpy()

    app = client_app("fed-plt", problem_from_context)
    _, whole = play(8, InlineGrid(app, sites))
    grid = InlineGrid(app, sites)
    play(4, grid, checkpoint=path)
    strategy, found = play(8, grid, resume=path)
    assert found.tobytes() == whole.tobytes()
    assert strategy.session.pooled_weight == pytest.approx(1 / 350)
    assert strategy.session.mean_examples == pytest.approx(350 / 3)


class LaterGrid(InlineGrid):
    """Nodes of which the last connects after round 3."""

    here = 2

    def get_node_ids(self) -> list[int]:
        return list(super().get_node_ids())[: self.here]


def test_a_site_that_comes_later_takes_the_weight_of_the_run(tmp_path: Path) -> None:
    app = client_app("fed-plt", problem_from_context)
    grid = LaterGrid(app, unweighted(tmp_path, tables(*SITES)))
    sent: list[tuple[float, float]] = []

    def connect(done: Any, strategy: Any) -> None:
        grid.here = 3 if done.round >= 3 else 2
        sent.append((strategy.session.mean_examples, strategy.session.pooled_weight))

    strategy = FedPLT(num_agents=2, min_agents=2)
    result = strategy.start(grid, START, num_rounds=60, observers=[connect])
    assert len(result.history[-1].participants) == 3
    assert set(sent) == {(155.0, 1 / 310)}
    # Three agents then have the penalty of 1 / 310, on losses that are divided by 155.
    expected = scikit_learns(*SITES, strength=2 / 3, scaled_by=SITES[:2])
    assert result.arrays["x"].numpy() == pytest.approx(expected, abs=1e-5)


def test_the_facts_of_a_site_say_that_its_penalty_is_open(tmp_path: Path) -> None:
    _, strategy = train(unweighted(tmp_path, tables(BERN)), 1)
    assert strategy.session is not None
    (agent,) = strategy.session.roster.agents.values()
    assert '"regularizer":"l2-pooled","modulus":0.0' in agent.facts


def parts_of(rows: Any, labels: Any, kind: str) -> Any:
    """Return rows and labels of agents: shuffled ones of equal or very unequal sizes."""
    order = np.random.default_rng(0).permutation(len(rows))
    cuts = [0.2, 0.4, 0.6, 0.8] if kind == "equal" else [0.05, 0.1, 0.2, 0.5]
    places = np.split(order, [int(cut * len(rows)) for cut in cuts])
    return [rows[place] for place in places], [labels[place] for place in places]


@pytest.mark.parametrize("sizes", ["equal", "unequal"])
@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
def test_a_classifier_of_defaults_has_scikit_learns_coefficients(load: Any, sizes: str) -> None:
    rows, labels = load(return_X_y=True)
    rows = scale(rows)
    best = LogisticRegression(tol=1e-10, max_iter=10_000).fit(rows, labels)
    found = FederatedClassifier(random_state=0).fit(*parts_of(rows, labels, sizes))
    np.testing.assert_allclose(found.coef_, best.coef_, atol=1e-3)
    middle = found.intercept_ - found.intercept_.mean() * (len(best.intercept_) > 1)
    np.testing.assert_allclose(middle, best.intercept_, atol=1e-3)


def test_a_regressor_of_defaults_has_scikit_learns_coefficients() -> None:
    rows, targets = load_diabetes(return_X_y=True)
    rows, targets = scale(rows), scale(targets)
    best = Ridge(tol=1e-12).fit(rows, targets)
    found = FederatedRegressor(random_state=0).fit(*parts_of(rows, targets, "unequal"))
    np.testing.assert_allclose(found.coef_, best.coef_, atol=1e-3)


def test_masked_sites_have_the_weight_of_the_run_too(tmp_path: Path) -> None:
    found = {}
    for masked in (False, True):
        about = unweighted(tmp_path / str(masked), tables(*SITES), (SCHEMA,) * 3)
        found[masked], strategy = train(about, 20, secure_sum=masked, rho=3.0)
        assert not turned_away(strategy)
        assert strategy.session is not None
        assert strategy.session.pooled_weight == pytest.approx(1 / 350)
    assert found[True] == pytest.approx(found[False], abs=1e-9)
