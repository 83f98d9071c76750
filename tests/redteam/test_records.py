"""One finite but extreme record never shows in what leaves, by overflow least of all."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.kernel import Problem
from privet.problems import (
    L2,
    BinaryLogistic,
    MultinomialLogistic,
    OneClassLogistic,
    RidgeRegression,
)
from redteam.harness import Node

LOSSES = ("logistic", "softmax", "ridge", "one-class")
MESSAGES: dict[str, dict[str, Any]] = {
    "dp-fedsgd": {"protocol": "dp-fedsgd"},
    "dp-fedsgd batch": {"protocol": "dp-fedsgd", "clipping": "batch"},
    "dp-fedsgd sampled": {"protocol": "dp-fedsgd", "batch": "sample", "batch_size": 4},
    "dp-fedavg": {"protocol": "dp-fedavg"},
    "scaffold": {"protocol": "scaffold", "max_local_steps": 2},
    "fed-dyn": {"protocol": "fed-dyn", "max_local_steps": 2},
    "dp-iadmm gaussian": {"protocol": "dp-iadmm", "local_updates": 2},
    "dp-iadmm laplace": {"protocol": "dp-iadmm", "local_updates": 2, "mechanism": "laplace"},
    "dp-iadmm output": {"protocol": "dp-iadmm", "perturbation": "output"},
    "fed-pdm": {"protocol": "fed-pdm"},
    "fed-pdm batch": {"protocol": "fed-pdm", "clipping": "batch", "max_local_steps": 3},
    "fed-plt": {"protocol": "fed-plt", "row_norm": 5.0},
    "fed-plt given smoothness": {"protocol": "fed-plt", "smoothness": 2.0, "row_norm": 0.0},
}
NO_LEDGER = dict.fromkeys(("delta", "ledger_path", "num_examples"))
SHAPES = ("all large", "one large", "signs differ", "in the label's way")


def data(loss: str, shape: str, dtype: str) -> Problem:
    """Four ordinary rows and one with entries of half the largest number."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((5, 4)).astype(dtype)
    big = np.finfo(dtype).max / 2
    rows[4] = {
        "all large": np.full(4, big),
        "one large": np.array([big, 0, 0, 0]),
        "signs differ": np.array([big, -big, big, -big]),
        "in the label's way": np.full(4, -big),
    }[shape].astype(dtype)
    ridge, labels = L2(0.1), np.array([0, 1, 2, 0, 1])
    if loss == "logistic":
        return BinaryLogistic(rows, np.array([1.0, -1, 1, -1, 1]), regularizer=ridge)
    if loss == "softmax":
        return MultinomialLogistic(rows, labels, 3, regularizer=ridge)
    if loss == "one-class":
        return OneClassLogistic(rows, labels, 3, regularizer=ridge)
    return RidgeRegression(rows, np.ones(5, dtype), regularizer=ridge)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_uploads_stay_finite(message: str, loss: str, tmp_path: Path) -> None:
    settings = dict(MESSAGES[message])
    name = settings.pop("protocol")
    for shape, dtype in product(SHAPES, ("float64", "float32")):
        node = Node(tmp_path, data(loss, shape, dtype), max_epsilon=None, **NO_LEDGER)
        for model in (0.0, 3.0):
            answer = node.train(name, model, **settings)
            assert answer.refusal is None
            assert answer.upload is not None
            assert np.isfinite(answer.upload).all(), (shape, dtype, model)


@pytest.mark.parametrize("loss", ["softmax", "ridge"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_record_counts_as_one_that_is_clipped(loss: str, tmp_path: Path) -> None:
    """With next to no noise: nothing moves by more than two clipped records' shares."""
    found = []
    for shape in ("all large", "signs differ"):
        node = Node(tmp_path, data(loss, shape, "float64"), max_epsilon=1e200)
        answer = node.train("dp-fedsgd", 3.0, noise_scale=1e-6)
        assert answer.upload is not None
        found.append(answer.upload)
    assert np.linalg.norm(found[0] - found[1]) <= 2 / 5 + 1e-4
