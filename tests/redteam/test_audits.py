"""What an observer of the real agent's uploads can prove stays under the epsilon they say.

Each audit sends the same message to two agents whose data differ in one record, up to 10000 times
to each, and bounds epsilon from below by Clopper and Pearson over all thresholds together: a false
alarm once in a million audits that are tight. Where the upload is exactly Gaussian with the same
deviation on both sides, the Gaussian-DP parameter is bounded as well, by the gap of the means
(`privet.sim.empirical`): a false alarm once in three million.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq

from privet.kernel import Problem
from privet.problems import L2, BinaryLogistic, MultinomialLogistic, NoRegularizer, RidgeRegression
from privet.sim.empirical import mu_bound
from redteam.harness import DELTA, Node, gaussian_epsilon
from support.audit import epsilon_lower_bound

ROWS = 4
RARE = 3e-7


class Audit(NamedTuple):
    """One message, the data it meets, and what is known of the answer."""

    protocol: str
    settings: dict[str, Any]
    data: str = "saturated"
    exact: bool = True
    """Whether the upload's first coordinate is Gaussian, with one deviation on both sides."""
    power: float = 0.0
    """Share of the claimed epsilon that the bound must reach, lest the audit show nothing.

    The bound is seven standard deviations above it, or more.
    """
    dtype: str = "float64"
    messages: int = 10_000
    """To each side; those of a Laplace ledger cost several times as much."""


MU = 1.5
SCALE = 2.0 / ROWS / MU
"""Noise on a mean of four gradients clipped to 1, for a Gaussian-DP parameter of 1.5."""
HIDDEN_STEPS = {"step_size": 0.4, "rho": 2.0, "local_epochs": 4, "row_norm": 1.0}
AUDITS: dict[str, Audit] = {
    "dp-fedsgd": Audit("dp-fedsgd", {"noise_scale": SCALE}, power=0.15),
    "dp-fedsgd float32": Audit("dp-fedsgd", {"noise_scale": SCALE}, power=0.15, dtype="float32"),
    "dp-fedsgd batch clip": Audit(
        "dp-fedsgd", {"noise_scale": 2.0 / MU, "clipping": "batch"}, data="alone", power=0.15),
    "dp-fedavg": Audit("dp-fedavg", {"noise_scale": 2.0 / MU}, data="alone", power=0.15),
    "scaffold": Audit("scaffold", {"noise_scale": 1.8 * SCALE, "max_local_steps": 3}, power=0.05),
    "fed-dyn": Audit("fed-dyn", {"noise_scale": 1.8 * SCALE, "max_local_steps": 3}),
    "fed-plt contracting": Audit("fed-plt", {**HIDDEN_STEPS, "noise_variance": 0.5}),
    "fed-plt given smoothness": Audit(
        "fed-plt", {**HIDDEN_STEPS, "step_size": 0.0, "smoothness": 1.2, "noise_variance": 0.5}),
    "fed-plt logistic": Audit(
        "fed-plt", {**HIDDEN_STEPS, "noise_variance": 0.1}, data="logistic", exact=False),
    "fed-plt softmax": Audit(
        "fed-plt", {**HIDDEN_STEPS, "noise_variance": 0.1}, data="softmax", exact=False),
    "dp-iadmm": Audit("dp-iadmm", {"noise_scale": SCALE}, power=0.15),
    "dp-iadmm adaptive": Audit("dp-iadmm", {"noise_scale": 2 * SCALE, "local_updates": 4}),
    "dp-iadmm laplace": Audit(
        "dp-iadmm", {"noise_scale": 0.3, "mechanism": "laplace"}, exact=False, power=0.3,
        messages=2500),
    "dp-iadmm output": Audit(
        "dp-iadmm", {"noise_scale": SCALE, "perturbation": "output"}, power=0.15),
    "dp-iadmm output adaptive": Audit(
        "dp-iadmm",
        {"noise_scale": SCALE, "perturbation": "output", "local_updates": 4, "row_norm": 1.0},
        power=0.1),
    "fed-pdm": Audit("fed-pdm", {"noise_scale": SCALE}, power=0.15),
    "fed-pdm five steps": Audit(
        "fed-pdm",
        {"noise_scale": 1.5 * SCALE, "max_local_steps": 5, "step_size_base": 0.2, "row_norm": 1.0}),
    "fed-pdm batch": Audit(
        "fed-pdm",
        {"noise_scale": 3.0 / MU, "clipping": "batch", "max_local_steps": 3, "step_size_base": 0.2},
        data="alone"),
    "fed-pdm noisy-top-k": Audit(
        "fed-pdm", {"noise_scale": SCALE, "sparsifier": "noisy-top-k", "uplink_k": 1},
        exact=False),
}  # fmt: skip


def problem(data: str, side: int, dtype: str) -> Problem:
    """Return one of two neighbours: record 0 is another.

    "saturated": its clipped gradient is the same along the whole path, +1 or -1 along the first
    coordinate. "alone": all records of the one side are like it, so that the clip of the batch
    binds.
    """
    sign = 1.0 if side else -1.0
    rows = np.zeros((ROWS, 2), dtype)
    rows[:, 0] = 1.0
    targets = np.zeros(ROWS, dtype)
    plain = L2(0.2)
    if data == "logistic":
        return BinaryLogistic(rows, np.array([sign, 1, -1, 1]), regularizer=plain)
    if data == "softmax":
        labels = np.array([side, 0, 1, 0])
        return MultinomialLogistic(rows, labels, 2, regularizer=plain)
    if data == "alone":
        targets[0] = sign * 1e6
        return RidgeRegression(rows, targets, regularizer=NoRegularizer())
    targets[0] = sign * 50.0
    return RidgeRegression(rows, targets, regularizer=plain)


def uploads(audit: Audit, side: int, folder: Path) -> tuple[NDArray[np.float64], float]:
    """Return the first coordinate of every upload, and the epsilon that the first one said.

    The node has no rules of its own: the charge is the same, without a file to synchronise.
    """
    open_ = dict.fromkeys(("delta", "ledger_path", "num_examples"))
    node = Node(folder, problem(audit.data, side, audit.dtype), max_epsilon=None, **open_)
    values, claim = np.empty(audit.messages), 0.0
    for number in range(audit.messages):
        answer = node.train(audit.protocol, 0.0, **audit.settings)
        assert answer.upload is not None, answer.refusal
        values[number] = answer.upload[0]
        claim = claim or answer.epsilon
    return values, claim


def mu_of(epsilon: float) -> float:
    """Return the Gaussian-DP parameter whose epsilon this is."""
    return float(
        brentq(
            lambda mu: (
                gaussian_epsilon(
                    [{"mechanism": "gaussian", "scale": 1.0, "sensitivity": mu, "count": 1}]
                )
                - epsilon
            ),
            1e-6,
            100.0,
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", AUDITS)
def test_an_observer_proves_no_more_than_is_said(name: str, tmp_path: Path) -> None:
    audit = AUDITS[name]
    first, claim = uploads(audit, 0, tmp_path)
    second, same = uploads(audit, 1, tmp_path)
    assert 0 < claim == same < 50
    bound = epsilon_lower_bound(first, second, DELTA, confidence=1 - 1e-6)
    assert audit.power * claim <= bound <= claim
    if audit.exact:
        assert mu_bound(first, second, error=RARE) <= mu_of(claim)
