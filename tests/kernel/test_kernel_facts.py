"""Facts: the public numbers that costs rest on, and nothing that depends on a record."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.client_apps import CallableProblem
from privet.kernel import RELATIONS, Facts, NoCertificateError, clipped_sensitivity
from privet.problems import (
    L2,
    BinaryLogistic,
    MultinomialLogistic,
    Nonconvex,
    OneClassLogistic,
    RidgeRegression,
    public_facts,
)

FACTS = Facts(12, 12.0, 3, "float64", "logistic", "l2", 0.5, penalty=0.5)


def rows(seed: int, count: int = 12, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 3)).astype(dtype)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (BinaryLogistic(rows(1), np.ones(12), regularizer=L2(0.5)), FACTS),
        (RidgeRegression(rows(1), np.ones(12)), Facts(12, 12.0, 3, loss="ridge")),
        (
            MultinomialLogistic(rows(1, dtype="float32"), np.zeros(12, int), 4, divisor=60.0),
            Facts(12, 60.0, 12, "float32", "multinomial"),
        ),
        (
            OneClassLogistic(rows(1), np.zeros(12, int), 2, regularizer=Nonconvex(0.3)),
            Facts(12, 12.0, 6, loss="one-class-logistic", regularizer="nonconvex"),
        ),
    ],
)
def test_of_a_linear_model(problem: Any, expected: Facts) -> None:
    assert public_facts(problem) == expected
    assert public_facts(problem).linear


def test_neighbours_have_the_same_facts() -> None:
    """They are a function of what both of a pair share, extreme rows included."""
    one = BinaryLogistic(rows(1), np.ones(12), regularizer=L2(0.5))
    two = BinaryLogistic(1e6 * rows(2), -np.ones(12), regularizer=L2(0.5))
    assert public_facts(one) == public_facts(two) == FACTS


def test_of_a_problem_of_ones_own() -> None:
    class Bare:
        num_examples, dim, dtype = 7, 2, np.dtype("float64")

        def loss(self, x: Any) -> float:
            return 0.0

        def gradient(self, x: Any, rows: Any = None) -> Any:
            return np.zeros(2)

    facts = public_facts(Bare())  # type: ignore[arg-type]
    assert facts == Facts(7, 7.0, 2, clips=False, moduli=False)
    assert not facts.linear
    with pytest.raises(
        NoCertificateError, match=r"cannot clip per example.*needs.*per_example_gradient"
    ):
        facts.sensitivity(1.0, relation="replace-one")
    with pytest.raises(NoCertificateError, match="of a custom loss"):
        facts.public_moduli(1.0)
    assert facts.sensitivity(1.0, relation="replace-one", clipping="batch") > 2.0


def test_an_adapter_clips_and_is_not_linear() -> None:
    problem = CallableProblem(
        lambda x: float(x @ x),
        lambda x: 2 * x,
        dim=2,
        num_examples=5,
        per_example_gradient=lambda x, rows: np.tile(2 * x, (len(rows), 1)),
    )
    facts = public_facts(problem)
    assert (facts.clips, facts.linear, facts.num_examples) == (True, False, 5)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("batch", [None, 4])
def test_sensitivity_is_the_clippings_own(relation: Any, dtype: str, batch: int | None) -> None:
    facts = replace(FACTS, dtype=dtype, divisor=40.0)
    if (relation, dtype) == ("add-remove", "float32"):
        with pytest.raises(NoCertificateError, match="needs dtype = float64"):
            facts.sensitivity(0.7, relation=relation, batch_size=batch)
        return
    found = facts.sensitivity(0.7, relation=relation, batch_size=batch)
    assert found == clipped_sensitivity(
        0.7, divisor=40.0, num_examples=12, batch_size=batch, relation=relation, dtype=dtype
    )
    moved = {"replace-one": 2, "add-remove": 1, "replace-agent": 2 * (batch or 12)}[relation]
    exact = moved * 0.7 * 12 / (40 * (batch or 12))
    assert exact < found <= exact * 1.005


def test_a_divisor_below_the_number_of_examples_is_refused() -> None:
    with pytest.raises(NoCertificateError, match="of 12 examples is divided by 11"):
        replace(FACTS, divisor=11.0).sensitivity(1.0, relation="replace-one")


@pytest.mark.parametrize(
    ("loss", "curvature"), [("logistic", 0.25), ("ridge", 2.0), ("multinomial", 0.5)]
)
def test_public_moduli_bound_those_of_any_rows_within_the_norm(loss: str, curvature: float) -> None:
    facts = replace(FACTS, loss=loss, divisor=24.0)
    moduli = facts.public_moduli(2.0)
    assert moduli.smoothness == pytest.approx(0.5 + curvature * 4.0 * 12 / 24)
    assert moduli.strong_convexity == pytest.approx(0.5)
    features = 2.0 * rows(3) / np.linalg.norm(rows(3), axis=1, keepdims=True)
    problem = {
        "logistic": lambda: BinaryLogistic(
            features, np.ones(12), regularizer=L2(0.5), divisor=24.0
        ),
        "ridge": lambda: RidgeRegression(features, np.ones(12), regularizer=L2(0.5), divisor=24.0),
        "multinomial": lambda: MultinomialLogistic(
            features, np.zeros(12, int), 3, regularizer=L2(0.5), divisor=24.0
        ),
    }[loss]()
    own = problem.moduli
    assert moduli.strong_convexity <= own.strong_convexity + 1e-12
    assert own.smoothness <= moduli.smoothness * (1 + 1e-12)


# ---------------------------------------------------------------------- as text


@given(
    count=st.integers(1, 10**9), times=st.integers(1, 1000), dim=st.integers(1, 10**7),
    dtype=st.sampled_from(["float32", "float64"]), modulus=st.floats(0, 1e6), clips=st.booleans(),
)  # fmt: skip
def test_text_and_back(
    count: int, times: int, dim: int, dtype: str, modulus: float, clips: bool
) -> None:
    facts = Facts(count, float(count * times), dim, dtype, "ridge", "l2", modulus, clips)
    assert Facts.from_json(facts.to_json()) == facts


@pytest.mark.parametrize(
    "change",
    [
        {"num_examples": 0}, {"num_examples": -3}, {"num_examples": 2.0}, {"num_examples": True},
        {"num_examples": "12"}, {"divisor": 0.0}, {"divisor": -1.0}, {"divisor": math.inf},
        {"divisor": math.nan}, {"divisor": 12}, {"dim": 0}, {"dim": 1.5}, {"dtype": "float16"},
        {"dtype": None}, {"loss": 3}, {"regularizer": None}, {"modulus": -0.1},
        {"modulus": math.nan}, {"modulus": math.inf}, {"clips": 1}, {"clips": "yes"},
        {"num_examples": 10**400}, {"dim": 10**400}, {"divisor": 1e-300}, {"divisor": 1e300},
        {"modulus": 1e150}, {"penalty": 1e150}, {"penalty": math.nan},
    ],
    ids=str,
)  # fmt: skip
def test_what_an_agent_says_is_validated(change: dict[str, Any]) -> None:
    (field,) = change
    with pytest.raises(ValueError, match=field):
        Facts(**{**asdict(FACTS), **change})
    with pytest.raises(ValueError, match=field):
        Facts.from_json(json.dumps({**asdict(FACTS), **change}))


def test_a_loss_that_no_table_has_is_refused() -> None:
    """It would be taken for one of which more than its clip is known."""
    with pytest.raises(ValueError, match="'loss' must be other or one of logistic, multinomial"):
        Facts.from_json(json.dumps({**asdict(FACTS), "loss": "of-its-own"}))
    assert not Facts.from_json(replace(FACTS, loss="other").to_json()).linear


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{}", "3", "nonsense", "[" * 1500, '{"num_examples": 3}',
     json.dumps({**asdict(FACTS), "records": 3}),
     json.dumps({k: v for k, v in asdict(FACTS).items() if k != "moduli"}),
     " " * 2001 + FACTS.to_json()],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_other_texts_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="facts") as caught:
        Facts.from_json(text)
    assert "\n" not in str(caught.value)
