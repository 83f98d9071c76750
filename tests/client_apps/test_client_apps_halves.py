"""Agent halves: every method's local task against its paper's, what follows of a walk, defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

from privet.client_apps.arithmetic import FARTHEST, distance
from privet.client_apps.dp_iadmm import Agent as DPIADMM
from privet.client_apps.fed_pdm import Agent as FedPDM
from privet.client_apps.fed_plt import Agent as FedPLT
from privet.client_apps.gfl import Agent as GFL
from privet.client_apps.half import Half, Streams
from privet.client_apps.local_sgd import Agent as LocalSGD
from privet.client_apps.local_task import LocalTask
from privet.client_apps.rivals.fed_dyn import Agent as FedDyn
from privet.client_apps.rivals.fed_lin import Agent as FedLin
from privet.client_apps.rivals.fed_pd import Agent as FedPD
from privet.client_apps.rivals.fed_split import Agent as FedSplit
from privet.client_apps.rivals.five_gcs import Agent as FiveGCS
from privet.client_apps.rivals.led import Agent as LED
from privet.client_apps.rivals.scaffold import Agent as Scaffold
from privet.client_apps.rivals.tamuna import Agent as Tamuna
from privet.client_apps.rivals.tamuna import local_steps
from privet.privacy import Facts, Release
from privet.privacy.masks import MOST_MEMBERS
from privet.problems import L2, RidgeRegression
from privet.wire import ConfigError, ring
from privet.wire.payload import encoded
from privet.wire.sparse import encode
from support.perturbers import perturber

RNG = np.random.default_rng(3)
DIM = 4
PROBLEM = RidgeRegression(
    RNG.standard_normal((8, DIM)), RNG.standard_normal(8), regularizer=L2(0.3)
)
FACTS = Facts.of(PROBLEM)
GIVEN = RNG.standard_normal((6, DIM))
GIVEN.setflags(write=False)  # whoever writes into what it received fails
X, Y, Z, G, C, OTHER = GIVEN
STREAMS = Streams(5, "2", 4)

Arrays = dict[str, Any]


class Method(NamedTuple):
    """A method on numbers, and what its paper says of the local task and of what follows.

    ``slope(w)`` is the gradient of everything but f_i, ``after(end)`` the upload.
    """

    half: Half
    state: Arrays
    broadcast: Arrays
    start: Any
    slope: Callable[[Any], Any]
    step: float
    steps: int
    after: Callable[[Any], Any] = lambda end: end


def grad(w: Any) -> Any:
    return PROBLEM.gradient(w)


def scaffold_upload(end: Any) -> Any:
    """Option II: c_i - c + (x - y) / (K eta), which is the mean gradient."""
    return G - C + (X - end) / (3 * 0.05)


SIZES: dict[str, Any] = {"step_size": 0.05, "local_epochs": 3}
RATES: dict[str, Any] = {
    "step_size_base": 0.05,
    "step_size_rule": "constant",
    "max_local_steps": 3,
}
METHODS = {
    "fed-plt": Method(
        FedPLT(rho=0.7, **SIZES),
        {"x": X, "z": Z}, {"y": Y}, X, lambda w: (w - (2 * Y - Z)) / 0.7, 0.05, 3,
    ),
    "fed-split": Method(
        FedSplit(rho=0.7, **SIZES),
        {"z": Z}, {"y": Y}, 2 * Y - Z, lambda w: (w - (2 * Y - Z)) / 0.7, 0.05, 3,
    ),
    "fed-pd": Method(
        FedPD(rho=0.7, **SIZES),
        {"x": X, "lam": G}, {"x": Y}, X, lambda w: G + (w - Y) / 0.7, 0.05, 3,
    ),
    "fed-dyn": Method(
        FedDyn(fed_dyn_alpha=0.4, **RATES),
        {"g": G}, {"x": X}, X, lambda w: -G + 0.4 * (w - X), 0.05, 3,
    ),
    "fed-pdm": Method(
        FedPDM(rho=0.4, dual="private", **RATES),
        {"lam": G}, encoded(encode(X)), X, lambda w: -G + 0.4 * (w - X), 0.05, 3,
    ),
    "scaffold": Method(
        Scaffold(**RATES),
        {"c": G}, {"x": X, "c": C}, X, lambda w: C - G, 0.05, 3, scaffold_upload,
    ),
    "led": Method(
        LED(**SIZES), {"h": G}, {"x": X, "rate": np.ones(1)}, X, lambda w: -G, 0.05, 3
    ),
    "led, x known": Method(
        LED(**SIZES), {"h": G, "x": OTHER}, {"x": X, "rate": np.array([0.6])},
        X, lambda w: -(G + 0.6 * (X - OTHER)), 0.05, 3,
    ),
    "led, h sent": Method(
        LED(**SIZES), {"h": G, "x": OTHER}, {"x": X, "h": C, "rate": np.ones(1)},
        X, lambda w: -C, 0.05, 3,
    ),
    "tamuna": Method(
        Tamuna(**SIZES), {"h": G}, {"x": X, "rate": np.ones(1)},
        X, lambda w: -G, 0.05, local_steps(5, 4, 3),
    ),
    "fed-lin, x again": Method(
        FedLin(**SIZES), {"x": OTHER, "g": G}, {"x": X, "g": C}, X, lambda w: C - G, 0.05, 3
    ),
    "fed-lin": Method(  # the first of the three steps, at x, is along g
        FedLin(**SIZES), {"x": X, "g": G}, {"g": C}, X - 0.05 * C, lambda w: C - G, 0.05, 2
    ),
    "five-gcs": Method(
        FiveGCS(rho=0.7, common_convexity=0.3, **SIZES),
        {"u": G}, {"x": X}, X, lambda w: -0.3 * w + (w - (X + 0.7 * G)) / 0.7, 0.05, 3,
        lambda end: grad(end) - 0.3 * end,
    ),
    "five-gcs, mu rho = 1": Method(
        FiveGCS(rho=2.0, common_convexity=0.5, **SIZES),
        {"u": G}, {"x": X}, X, lambda w: -0.5 * w + (w - (X + 2 * G)) / 2, 0.05, 3,
        lambda end: grad(end) - 0.5 * end,
    ),
    "gfl": Method(GFL(step_size=0.15, local_epochs=3), {}, {"w": X}, X, np.zeros_like, 0.05, 3),
    "local-sgd": Method(
        LocalSGD(**RATES), {}, {"x": X, "mu": np.float64(0.4)}, X, lambda w: 0.4 * (w - X), 0.05, 3
    ),
    "local-sgd, mu = 0": Method(
        LocalSGD(**RATES), {}, {"x": X, "mu": np.float64(0.0)}, X, np.zeros_like, 0.05, 3
    ),
}  # fmt: skip


def slope_of(task: LocalTask, w: Any) -> Any:
    """Gradient of <shift, w> + ||w - center||^2 / (2 rho)."""
    center = np.zeros(DIM) if task.center is None else task.center
    shift = np.zeros(DIM) if task.shift is None else task.shift
    return shift + (w - center) / task.rho


@pytest.mark.parametrize("name", METHODS)
def test_the_local_task_is_that_of_the_paper(name: str) -> None:
    method = METHODS[name]
    task = method.half.task(method.state, method.broadcast, PROBLEM, FACTS, STREAMS)
    assert (task.steps, task.needs) == (method.steps, method.half.needs)
    assert task.step_size == pytest.approx(method.step, rel=1e-15)
    np.testing.assert_allclose(task.start, method.start, rtol=1e-14)
    for w in RNG.standard_normal((3, DIM)):
        expected = method.slope(w)
        np.testing.assert_allclose(slope_of(task, w), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", METHODS)
def test_an_upload_is_what_plain_steps_give(name: str) -> None:
    method = METHODS[name]
    w = method.start
    for _ in range(method.steps):
        w = w - method.step * (grad(w) + method.slope(w))
    local = method.half.local_update(
        method.state, method.broadcast, PROBLEM, STREAMS, perturber(method.half, PROBLEM)
    )
    if name == "fed-pdm":  # y = x - lam_new / rho
        lam = G + 0.4 * (X - w)
        np.testing.assert_allclose(local.state["lam"], lam, rtol=1e-12)
        np.testing.assert_allclose(local.agreed, w - lam / 0.4, rtol=1e-12)
        return
    (upload,) = local.upload.values()
    np.testing.assert_allclose(upload, method.after(w), rtol=1e-11)


def test_round_a_of_fed_lin_sends_the_gradient() -> None:
    half = FedLin(**SIZES)
    local = half.local_update({"g": G}, {"x": X}, PROBLEM, STREAMS, perturber(half, PROBLEM))
    np.testing.assert_array_equal(local.upload["g"], grad(X))
    assert set(local.state) == {"x", "g"}


@pytest.mark.parametrize("rho", [0.7, np.inf])
def test_without_a_step_size_it_is_the_best_for_the_task(rho: float) -> None:
    """2 / (L + lambda + 2 / rho) with the moduli that are given, else the problem's."""
    given = FedSplit(step_size=0.0, smoothness=3.0, strong_convexity=0.5).local_task(
        X, PROBLEM, FACTS, STREAMS, rho=rho
    )
    assert given.step_size == pytest.approx(2 / (3.5 + 2 / rho), rel=1e-15)
    own = FedSplit(step_size=0.0).local_task(X, PROBLEM, FACTS, STREAMS, rho=rho)
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
            "noise-variance needs local-solver = noisy-gd, found gd",
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
    assert half.asked == [(2, 1), (9, 3)]


def test_a_release_that_varies_is_that_of_its_round() -> None:
    half, facts = Varying(), Facts(2, 2.0, 1)
    first = half.release(facts, 1)
    assert half.release(facts, 4).sensitivity == 0.25
    assert half.release(facts, 1) is first
    assert half.asked == [(2, 1), (2, 4)]
    for round_ in range(1, 1000):  # whatever is kept, it is the round's own
        assert half.release(facts, round_).sensitivity == 1.0 / round_


def test_a_step_size_that_falls_makes_fed_pdm_cheaper_every_round() -> None:
    half = FedPDM(dual="public", clip=1.0, noise_scale=0.1, max_local_steps=1)
    sizes = [half.release(FACTS, round_).sensitivity for round_ in (1, 4, 1)]
    assert sizes[0] == sizes[2]
    assert sizes[1] == pytest.approx(sizes[0] / 2)


def test_a_half_is_neither_private_nor_clipped_unless_it_says_so() -> None:
    half = Half()
    assert (half.private, half.clip, half.noise_key, half.needs) == (False, 0.0, "", ())
    assert half.prepare(PROBLEM) is PROBLEM
    assert half.restart({}, PROBLEM) == {}
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
