"""The search of the penalty's weight, beside scikit-learn on the rows that the agents keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from privet.core import ConfigError
from privet.data.held_out import hold_out
from privet.server_apps.build import build_federation
from privet.server_apps.config import read_config
from privet.sim.inline import run_inline
from privet.sim.penalties import search
from support.cli import privet

FEW = {"num-agents": 220, "partition": "iid"}
CONFIG: dict[str, Any] = {
    "algorithm": "fed-plt", "dataset": "breast-cancer", "num-agents": 4, "partition": "label",
    "num-server-rounds": 40,
}  # fmt: skip


def fitted(features: Any, labels: Any, c: float) -> LogisticRegression:
    """Return scikit-learn's fit; the last column is the intercept's."""
    model = LogisticRegression(C=c, tol=1e-10, max_iter=10_000, solver="newton-cholesky")
    return model.fit(features[:, :-1], labels)


def test_losses_are_those_of_scikit_learn_on_the_rows_that_are_kept() -> None:
    found = {one.c: one for one in search(CONFIG, grid=(0.03, 0.3, 3.0), draws=2)}
    federation = build_federation(read_config(CONFIG))
    data, parts = federation.dataset, federation.parts
    for c, one in found.items():
        losses, hits = [], []
        for draw in range(2):
            cuts = [
                hold_out(len(part), int(read_config(CONFIG)["seed"]) + draw + 7919 * index)
                for index, part in enumerate(parts)
            ]
            kept = np.concatenate([part[cut[0]] for part, cut in zip(parts, cuts, strict=True)])
            held = np.concatenate([part[cut[1]] for part, cut in zip(parts, cuts, strict=True)])
            assert not set(kept) & set(held)
            model = fitted(data.train_features[kept], data.train_labels[kept], c)
            rows, labels = data.train_features[held, :-1], data.train_labels[held]
            losses.append(log_loss(labels, model.predict_proba(rows)))
            hits.append(model.score(rows, labels))
        assert one.loss == pytest.approx(np.mean(losses), rel=1e-4)
        assert one.spread == pytest.approx(np.std(losses), rel=1e-2, abs=1e-6)
        assert one.measures["accuracy"] == pytest.approx(np.mean(hits), abs=2e-2)


@pytest.mark.parametrize("c", [0.1, 1.0, 5.0])
def test_penalty_c_is_that_of_scikit_learn(c: float, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    config = {**CONFIG, "penalty-c": c}
    federation = build_federation(read_config(config))
    data = federation.dataset
    model = fitted(data.train_features, data.train_labels, c)
    wanted = np.r_[model.coef_[0], model.intercept_]
    found = run_inline(config, "c").result.arrays["x"].numpy()
    assert np.linalg.norm(found - wanted) <= 1e-4 * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"clip": 1.0, "local-solver": "noisy-gd", "noise-variance": 0.1},
            "give regularizer-weight",
        ),
        ({"divisor": "agent"}, "give regularizer-weight"),
    ],
)
def test_penalty_c_of_another_penalty_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match="penalty-c") as refused:
        build_federation(read_config({**CONFIG, **keys, "penalty-c": 2.0}))
    assert said in str(refused.value)


def test_penalty_c_beside_a_given_weight_is_refused(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    config = {**CONFIG, "regularizer-weight": 0.1, "penalty-c": 2.0}
    with pytest.raises(ConfigError, match="4 of 4 agents: a penalty of its own"):
        run_inline(config, "c")


def test_a_search_of_another_penalty_is_refused() -> None:
    with pytest.raises(ConfigError, match="regularizer-weight"):
        search({**CONFIG, "regularizer-weight": 0.1})


def test_an_agent_with_too_few_rows_is_named() -> None:
    with pytest.raises(ConfigError, match="has 2 rows, too few"):
        search({**CONFIG, **FEW})


def test_the_command_ends_with_the_run_of_the_best(capsys: Any) -> None:
    code, out, _ = privet("tune", "fed-plt", "num-agents=2", "num-server-rounds=4", "--penalty")
    assert code == 0
    assert "privet run" in out.splitlines()[-1]
    assert "penalty-c=" in out.splitlines()[-1]
