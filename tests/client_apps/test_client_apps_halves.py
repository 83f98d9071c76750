"""Agent halves: every method's local task against its paper's, what follows of a walk, defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from privet.agents.half import Half, Streams
from privet.agents.terms import BudgetSchedule
from privet.agents.value_bits import ValueBits
from privet.client_apps.arithmetic import FARTHEST, distance
from privet.client_apps.dp_iadmm import Agent as DPIADMM
from privet.client_apps.fed_plt import Agent as FedPLT
from privet.client_apps.rivals.fed_lin import Agent as FedLin
from privet.client_apps.rivals.fed_pd import Agent as FedPD
from privet.client_apps.rivals.fed_split import Agent as FedSplit
from privet.client_apps.rivals.led import Agent as LED
from privet.client_apps.solver_agents import SolverAgent, StepSchedule
from privet.core import ConfigError
from privet.kernel import Facts, Perturber, Records, Release
from privet.kernel.door import Held
from privet.kernel.masks import MOST_MEMBERS
from privet.problems import L2, RidgeRegression, public_facts
from privet.wire import ring
from support.opened import held

RNG = np.random.default_rng(3)
DIM = 4
PROBLEM = RidgeRegression(
    RNG.standard_normal((8, DIM)), RNG.standard_normal(8), regularizer=L2(0.3)
)
FACTS = public_facts(PROBLEM)
X = RNG.standard_normal(DIM)
STREAMS = Streams(5, "2", 4)


def grad(w: Any) -> Any:
    return PROBLEM.gradient(w)


@pytest.mark.parametrize("rho", [0.7, np.inf])
def test_without_a_step_size_it_is_the_best_for_the_task(rho: float) -> None:
    """2 / (L + lambda + 2 / rho) with the moduli that are given, else the problem's."""
    records = Records(Held(PROBLEM), Perturber(Release("none"), cast(Any, None), FACTS))
    given = FedSplit(step_size=0.0, smoothness=3.0, strong_convexity=0.5).local_task(
        X, records, STREAMS, rho=rho
    )
    assert given.step_size == pytest.approx(2 / (3.5 + 2 / rho), rel=1e-15)
    own = FedSplit(step_size=0.0).local_task(X, records, STREAMS, rho=rho)
    eigenvalues = np.linalg.eigvalsh(np.array([grad(e) - grad(0 * e) for e in np.eye(DIM)]))
    expected = 2 / (eigenvalues[0] + eigenvalues[-1] + 2 / rho)
    assert own.step_size == pytest.approx(expected, rel=1e-9)


# ------------------------------------------------------------------ construction


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (LED, {"local_solver": "agd"}, "local-solver = 'agd': choose one of gd, sgd"),
        (FedLin, {"local_solver": "sgd"}, "local-solver = 'sgd': choose one of gd"),
        (
            FedSplit,
            {"local_solver": "noisy-gd"},
            "local-solver = 'noisy-gd': choose one of gd, agd, sgd",
        ),
        (
            FedPLT,
            {"noise_variance": 1.0},
            "noise-variance needs local-solver = noisy-gd, found auto",
        ),
        (
            DPIADMM,
            {"perturbation": "random"},
            "perturbation = 'random': choose one of none, objective, output",
        ),
    ],
)
def test_what_a_method_does_not_have_is_refused_however_it_is_made(
    kind: Any, options: dict[str, Any], message: str
) -> None:
    settings = {name.replace("_", "-"): value for name, value in options.items()}
    for make in (lambda: kind(**options), lambda: kind.from_settings(settings)):
        with pytest.raises(ConfigError) as refused:
            make()
        assert str(refused.value) == message


@dataclass(frozen=True)
class Priced(Half):
    """A private half that notes which releases it was asked to work out."""

    name = "priced"
    steady = True

    noise_scale: float = 1.0
    asked: list[tuple[int, int]] = field(default_factory=list, compare=False)

    @property
    def private(self) -> bool:
        return self.noise_scale > 0

    def noised_release(self, facts: Facts, round_: int) -> Release:
        self.asked.append((facts.num_examples, round_))
        return Release("gaussian", scale=self.noise_scale, sensitivity=1.0 / round_)


@dataclass(frozen=True)
class Varying(Priced):
    """One whose rounds may cost differently, as those of any half that does not say otherwise."""

    steady = Half.steady


def test_a_release_is_worked_out_once_for_the_same_facts() -> None:
    half = Priced()
    few, many = Facts(2, 2.0, 1), Facts(9, 9.0, 1)
    assert half.release(few, 1) is half.release(few, 7)
    half.release(many, 3)
    assert half.asked == [(2, 1), (9, 1)]  # a steady one is that of any round


def test_a_release_that_varies_is_that_of_its_round() -> None:
    half, facts = Varying(), Facts(2, 2.0, 1)
    first = half.release(facts, 1)
    assert half.release(facts, 4).sensitivity == 0.25
    assert half.release(facts, 1) is first
    assert half.asked == [(2, 1), (2, 4)]
    for round_ in range(1, 1000):  # whatever is kept, it is the round's own
        assert half.release(facts, round_).sensitivity == 1.0 / round_


def test_a_half_is_neither_private_nor_clipped_unless_it_says_so() -> None:
    half = Half()
    assert (half.private, half.clip, half.noise_key, half.needs) == (False, 0.0, "", ())
    assert held(half, PROBLEM) is PROBLEM
    assert half.restart({}, FACTS) == {}
    assert Priced(noise_scale=0.0).release(FACTS, 1) == Release("none", what="priced upload")


def test_settings_are_the_fields_and_other_keys_are_left_alone() -> None:
    half = FedPD.from_settings({"rho": 0.5, "local-epochs": 4, "seed": 3, "clip": 1.0})
    assert (half.rho, half.local_epochs, half.clip) == (0.5, 4, 0.0)
    with pytest.raises(ConfigError, match="local-epochs"):
        FedPD.from_settings({"local-epochs": 0})


# ------------------------------------------------------------------ what secure sums measure


def test_distance_is_the_norm_up_to_what_can_be_summed() -> None:
    x, y = np.array([1.0, -2.0, 5.0], "f4"), np.array([1.0, 1.0, 1.0], "f4")
    gap = distance(x, y)
    assert (gap.shape, gap.dtype, float(gap)) == ((), np.float64, 5.0)
    far = distance(np.full(3, 1e30), np.zeros(3))
    assert float(far) == FARTHEST <= ring.largest(MOST_MEMBERS)
    ring.encode({"distance": far}, MOST_MEMBERS)


@dataclass(frozen=True)
class KeysLast(SolverAgent, StepSchedule, ValueBits, BudgetSchedule):
    """The groups of keys stand behind the base here, and before it elsewhere."""

    name: ClassVar[str] = "keys-last"


@dataclass(frozen=True)
class KeysFirst(BudgetSchedule, ValueBits, StepSchedule, SolverAgent):
    name: ClassVar[str] = "keys-first"


@pytest.mark.parametrize("kind", [KeysLast, KeysFirst])
def test_groups_of_keys_do_the_same_in_any_order(kind: Any) -> None:
    half = kind(
        step_size_rule="inverse-sqrt",
        value_bits="8",
        budget_schedule="geometric",
        budget_ratio=0.5,
    )
    assert half.scheduled(1.0, 4) == 0.5
    assert half.codes
    assert half.noise_growth(3) == 0.25
    with pytest.raises(ConfigError, match="step-size-rule = cosine: needs step-size-rounds"):
        kind(step_size_rule="cosine")
