"""What the operator of a node says in its node config, no message can change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.kernel import Told
from privet.problems import L2, BinaryLogistic
from privet.wire.enrolment import read_enrolment
from redteam.harness import PRIVATE, Node, releases

ROWS = 20


def problem(rows: int = ROWS) -> BinaryLogistic:
    """The first so many rows of one file; every gradient at 0 is longer than the clip."""
    features = 3.0 + np.random.default_rng(2).random((ROWS, 4))
    labels = np.where(np.arange(ROWS) % 3 == 0, 1.0, -1.0)
    return BinaryLogistic(features[:rows], labels[:rows], regularizer=L2(0.1))


# ------------------------------------------------------------------ the neighbouring relation


@pytest.mark.parametrize("name", PRIVATE)
def test_a_message_does_not_choose_the_relation(name: str, tmp_path: Path) -> None:
    """It would halve the charge; and one such line would close the ledger to all honest runs."""
    node = Node(tmp_path, problem())
    assert node.train(name).refusal is None
    before = node.written
    for settings in ({}, {"noise_scale": 1e6, "noise_variance": 1e12}):
        answer = node.train(name, relation="add-remove", **settings)
        assert answer.refusal is not None
        assert "relation" in answer.refusal
        assert node.written == before
    assert node.train(name, round_=2).refusal is None
    assert node.charges == 2


def test_the_budget_is_not_stretched_by_the_relation(tmp_path: Path) -> None:
    """Noise for which one message costs 1.8 under replace-one and .8 under add-remove."""
    settings: dict[str, Any] = {"noise_scale": 2.0 / ROWS / 0.45}
    node = Node(tmp_path, problem(), max_epsilon=1.0)
    for relation in ("replace-one", "add-remove"):
        answer = node.train("dp-fedsgd", relation=relation, **settings)
        assert answer.refusal is not None
    assert node.written == b""


# ------------------------------------------------------------------ the declared number of examples


def test_the_declared_number_divides_and_is_charged(tmp_path: Path) -> None:
    declared = 50
    node = Node(tmp_path, problem(), max_epsilon=1e200, num_examples=declared)
    assert read_enrolment(node.enrol("dp-fedsgd").content).num_examples == declared
    answer = node.train("dp-fedsgd", noise_scale=1e-6)
    assert answer.upload is not None
    rows, labels = problem().features, problem().labels
    each = -0.5 * labels[:, None] * rows
    each /= np.maximum(1.0, np.linalg.norm(each, axis=1))[:, None]
    np.testing.assert_allclose(answer.upload, each.sum(axis=0) / declared, atol=2e-5)
    (charged,) = releases(node)
    assert charged["sensitivity"] == pytest.approx(2.0 / declared, rel=0.01)


def test_a_deleted_record_moves_its_own_share_alone(tmp_path: Path) -> None:
    """One line less in the file: the others must not count 1/19 in place of 1/20."""
    sides = []
    for rows in (ROWS, ROWS - 1):
        folder = tmp_path / str(rows)
        folder.mkdir()
        node = Node(
            folder, problem(rows), max_epsilon=1e200, num_examples=ROWS, relation="add-remove"
        )
        answer = node.train("dp-fedsgd", noise_scale=1e-6, relation="add-remove")
        assert answer.upload is not None
        sides.append(answer.upload)
        assert releases(node)[0]["sensitivity"] == pytest.approx(1.0 / ROWS, rel=0.01)
    moved = float(np.linalg.norm(sides[0] - sides[1]))
    assert moved == pytest.approx(1.0 / ROWS, abs=2e-5)


def test_a_declared_number_that_is_none_closes_the_node(tmp_path: Path) -> None:
    node = Node(tmp_path, problem(), num_examples=-3)
    answer = node.train("dp-fedsgd")
    assert answer.refusal is not None
    assert answer.refusal == f"agent me: {Told.RULES_UNREADABLE}"
    assert "num-examples = -3" in node.said
    assert node.written == b""


# ------------------------------------------------------------------ keys that are nearly ours


@pytest.mark.parametrize(
    ("wrong", "right", "value"),
    [
        ("max-cllip", "max-clip", 0.1),
        ("min-nois", "min-noise", 40.0),
        ("max-epsilo", "max-epsilon", 0.1),
    ],
)
def test_a_misspelt_rule_closes_the_node(
    wrong: str, right: str, value: Any, tmp_path: Path
) -> None:
    """Beside a budget that is spelt right, and alone."""
    alone = dict.fromkeys(("max_epsilon", "delta", "ledger_path", "num_examples"))
    for rules in ({}, alone):
        node = Node(tmp_path, problem(), **{wrong: value, **rules})  # type: ignore[arg-type]
        for ask in (node.enrol, node.send_train):
            assert ask("dp-fedsgd").error.reason == f"agent me: {Told.RULES_UNREADABLE}"
            assert wrong in node.said
            assert right in node.said
        assert node.written == b""
