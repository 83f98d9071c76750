"""FedPDM's agent half: local steps, what is sent, and what it is worth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

from privet.agents.half import Streams
from privet.agents.sparsifiers import Choice, choose
from privet.client_apps.fed_pdm import Agent
from privet.core import ConfigError
from privet.kernel import Facts, NoCertificateError, NoiseError, Perturber, Records, Release
from privet.kernel.door import Held
from privet.kernel.perturb import spacing
from privet.problems import BinaryLogistic, make_regularizer, public_facts
from privet.wire.payload import ENCODED, encoded
from privet.wire.sparse import decode, encode
from privet.wire.sparse.selection import index_seed, rand_k, top_k
from support.opened import held, opened
from support.perturbers import perturber

RNG = np.random.default_rng(5)
FEATURES = RNG.standard_normal((12, 6))
LABELS = np.where(RNG.random(12) < 0.5, -1.0, 1.0)
CENTER = RNG.standard_normal(6)
LAM = RNG.standard_normal(6)


class Ones:
    """Noise whose every draw is the scale: it can be counted."""

    private = True

    def gaussian(
        self, size: int | tuple[int, ...], scale: float, dtype: DTypeLike = float
    ) -> NDArray[Any]:
        return np.full(size, scale, dtype)

    laplace = gaussian


def problem(**options: Any) -> BinaryLogistic:
    return BinaryLogistic(FEATURES, LABELS, **options)


def agent(**settings: Any) -> Agent:
    base = {"dual": "private", "step-size-rule": "constant", "step-size-base": 0.2, "rho": 1.5}
    given = {name.replace("_", "-"): value for name, value in settings.items()}
    return Agent.from_settings({**base, **given})


def update(half: Agent, on: Any = None, lam: Any = None, round_: int = 1, noise: Any = None) -> Any:
    on = problem() if on is None else on
    state = {"lam": LAM if lam is None else lam}
    broadcast = encoded(encode(CENTER.astype(on.dtype)))
    found = perturber(half, on, noise, round_)
    local = half.local_update(state, broadcast, opened(half, on, found), Streams(0, "3", round_))
    found.settle()
    return local


def uncharged(source: Any, dim: int) -> Perturber:
    return Perturber(Release("none"), source, Facts(1, 1.0, dim))


def behind(source: Any, dim: int) -> Records:
    problem = BinaryLogistic(np.zeros((1, dim)), np.ones(1))
    return Records(Held(problem), uncharged(source, dim))


def release(half: Agent, on: Any, round_: int = 1) -> Release:
    return half.release(public_facts(on), round_)


def sent(local: Any) -> Any:
    return decode(local.upload[ENCODED], max_dim=6)


def logistic_gradient(x: NDArray[np.float64]) -> NDArray[np.float64]:
    total = np.zeros(6)
    for a, b in zip(FEATURES, LABELS, strict=True):
        total -= b * a / (1 + math.exp(b * float(a @ x)))
    return total / len(LABELS)


@pytest.mark.parametrize(("nu", "limit"), [(0.0, 5), (0.5, 5), (0.05, 40), (1e9, 5)])
@pytest.mark.parametrize("round_", [1, 9])
def test_local_steps_are_those_of_the_paper(nu: float, limit: int, round_: int) -> None:
    rho, eta = 1.5, 0.2 / math.sqrt(round_)
    x, steps = CENTER.copy(), 0
    while True:
        v = logistic_gradient(x) - LAM + rho * (x - CENTER)
        x = x - eta * v
        steps += 1
        if float(v @ v) <= nu or steps == limit:
            break
    lam = LAM + rho * (CENTER - x)
    half = agent(nu=nu, max_local_steps=limit, step_size_rule="inverse-sqrt")
    local = update(half, round_=round_)
    assert np.allclose(local.state["lam"], lam, atol=1e-12)
    assert np.allclose(sent(local).to_dense(), x - lam / rho, atol=1e-12)
    if nu == 1e9:
        assert steps == 1


def test_public_dual_is_half_the_way_of_what_was_released() -> None:
    local = update(agent(dual="public", noise_scale=0.3, clip=1.0, max_local_steps=1), noise=Ones())
    y = sent(local).to_dense()
    assert np.allclose(local.state["lam"], LAM / 2 + 1.5 * (CENTER - y) / 2, atol=1e-14)
    assert np.array_equal(local.agreed[0], local.state["lam"])


def test_noise_is_added_to_every_value_that_is_sent() -> None:
    for sparsifier in ("none", "top-k", "rand-k", "public-top-k", "noisy-top-k"):
        options = {"sparsifier": sparsifier, "uplink_k": 4, "clip": 1.0}
        clean = sent(update(agent(**options)))
        noisy = sent(update(agent(**options, noise_scale=0.25), noise=Ones()))
        assert len(noisy.values) == (6 if sparsifier == "none" else 4)
        whole = sent(update(agent(clip=1.0)))
        assert np.allclose(noisy.values, whole.values[noisy.indices] + 0.25, atol=1e-12)
        if sparsifier != "noisy-top-k":
            assert np.array_equal(clean.indices, noisy.indices)


def test_private_dual_is_not_noised() -> None:
    local = update(agent(noise_scale=0.5, clip=1.0), noise=Ones())
    assert np.array_equal(local.state["lam"], update(agent(clip=1.0)).state["lam"])


def test_explicit_draws_go_to_entries_in_descending_order() -> None:
    class Ranks(Ones):
        def gaussian(
            self, size: int | tuple[int, ...], scale: float, dtype: DTypeLike = float
        ) -> NDArray[Any]:
            return np.arange(np.prod(size), dtype=dtype).reshape(size)

    y = np.array([1.0, -4.0, 3.0, 0.5, -3.0])
    records = behind(Ranks(), 5)
    _, found = choose(Choice("top-k", 4, 1.0, 1.0), y, y, Streams(0, "a", 1), records)
    # |y| in order: -4 (index 1), 3 (2, a tie goes to the smaller index), -3 (4), 1 (0).
    assert found.indices.tolist() == [0, 1, 2, 4]
    assert found.values.tolist() == [1.0 + 3, -4.0 + 0, 3.0 + 1, -3.0 + 2]


def test_random_and_public_index_sets_do_not_depend_on_the_data() -> None:
    center = np.where(RNG.random(400) < 0.5, 0.0, RNG.standard_normal(400))
    streams = Streams(9, "ward-b", 4)
    for sparsifier in ("rand-k", "public-top-k"):
        sets = []
        for _ in range(2):
            y = RNG.standard_normal(400)
            choice = Choice(sparsifier, 0, 0.1, 0.0)
            data, vector = choose(choice, y, center, streams, behind(Ones(), 400))
            assert np.array_equal(decode(data, max_dim=400).indices, vector.indices)
            assert np.array_equal(vector.values, y[vector.indices])
            sets.append(vector.indices)
        assert np.array_equal(*sets)
        assert len(sets[0]) == 40
    assert set(top_k(center, 30)) <= set(sets[1].tolist())
    expected = rand_k(index_seed(9, "ward-b", 4), 400, 40)
    _, found = choose(Choice("rand-k", 40, 1.0, 0.0), center, center, streams, behind(Ones(), 400))
    assert np.array_equal(found.indices, expected)


def test_public_choice_reaches_every_coordinate_from_a_zero_start() -> None:
    center, seen = np.zeros(40), set()
    for number in range(1, 60):
        choice = Choice("public-top-k", 8, 1.0, 0.0)
        _, vector = choose(choice, np.ones(40), center, Streams(0, "a", number), behind(Ones(), 40))
        seen |= set(vector.indices.tolist())
        center[vector.indices[:2]] = 1.0
    assert seen == set(range(40))


# ------------------------------------------------------------------ what a message is worth


def test_curved_regulariser_and_odd_divisor_are_refused() -> None:
    half = agent(dual="public", clip=1.0, clipping="batch", noise_scale=0.1, max_local_steps=2)
    curved = problem(regularizer=make_regularizer("nonconvex", 0.1))
    with pytest.raises(NoCertificateError, match="nonconvex"):
        release(half, curved)
    one_step = agent(dual="public", clip=1.0, noise_scale=0.1, max_local_steps=1)
    assert release(one_step, curved).sensitivity > 0
    with pytest.raises(NoCertificateError, match="of 12 examples is divided by 3"):
        release(one_step, problem(divisor=3.0))


@pytest.mark.parametrize("sparsifier", ["none", "rand-k", "public-top-k", "noisy-top-k"])
def test_the_ways_out_cost_the_same_as_a_dense_message(sparsifier: str) -> None:
    half = agent(
        dual="public",
        clip=1.0,
        noise_scale=0.1,
        max_local_steps=1,
        sparsifier=sparsifier,
        alpha_u=0.5,
    )
    dense = agent(dual="public", clip=1.0, noise_scale=0.1, max_local_steps=1)
    assert release(half, problem()) == release(dense, problem())


@pytest.mark.parametrize("steps", [1, 5])
def test_charged_noise_leaves_the_steps_of_the_paper(steps: int) -> None:
    """Without its noise the split into a public and a noised part is Algorithm 1 again."""
    zero = np.zeros(6)

    class Silent(Ones):
        def gaussian(self, size: Any, scale: float, dtype: DTypeLike = float) -> NDArray[Any]:
            return np.zeros(size, dtype)

    on = problem(regularizer=make_regularizer("l2", 0.3)).with_rows_within(1.0)
    settings = {"dual": "public", "clip": 0.2, "max_local_steps": steps, "row_norm": 1.0}
    noised = update(agent(**settings, noise_scale=0.5), on, noise=Silent())
    assert agent(**settings, noise_scale=0.5).release(public_facts(on), 1).mechanism == "gaussian"
    x = CENTER.copy()
    for _ in range(steps):
        slope = zero.copy()
        for a, b in zip(on.features, on.labels, strict=True):
            g = -b * a / (1 + math.exp(b * float(a @ x)))
            slope += g * min(1.0, 0.2 / np.linalg.norm(g)) / 12
        x = x - 0.2 * (slope + 0.3 * x - LAM + 1.5 * (x - CENTER))
    lam = LAM + 1.5 * (CENTER - x)
    np.testing.assert_allclose(sent(noised).to_dense(), x - lam / 1.5, atol=1e-12)


@pytest.mark.parametrize("steps", [2, 8, 60])
def test_numbers_beside_which_the_steps_would_round_too_much_are_refused(steps: int) -> None:
    """More steps round more: what they may start from shrinks with their number."""
    on = problem().with_rows_within(1.0)
    half = agent(dual="public", clip=0.4, noise_scale=0.5, max_local_steps=steps, row_norm=1.0)
    grid = spacing(release(half, on), 6)
    largest = 2.0**46 * grid / max(1.0, steps / 8)
    for lam in (0.99 * largest * 1.5, 1.01 * largest * 1.5):
        state = {"lam": np.array([lam, 0.0, 0.0, 0.0, 0.0, 0.0])}
        found, sent_out = perturber(half, on), encoded(encode(np.zeros(6)))
        if lam < largest * 1.5:
            half.local_update(state, sent_out, opened(half, on, found), Streams(0, "3", 1))
            found.settle()
        else:
            with pytest.raises(NoiseError, match="too large for noise"):
                half.local_update(state, sent_out, opened(half, on, found), Streams(0, "3", 1))


def test_rows_are_clipped_before_a_bound_on_them_is_used() -> None:
    half = agent(dual="public", clip=1.0, noise_scale=0.1, max_local_steps=3, row_norm=1.0)
    bounded = held(half, problem())
    assert np.linalg.norm(bounded.features, axis=1).max() <= 1 + 1e-12  # type: ignore[attr-defined]
    assert release(half, bounded).sensitivity > 0


def test_server_must_say_which_dual() -> None:
    with pytest.raises(ConfigError, match="dual = 'auto': choose one of private, public"):
        agent(dual="auto")


def test_broadcast_of_another_length_or_precision_is_refused() -> None:
    half, streams = agent(), Streams(0, "0", 1)
    for center in (np.zeros(5), np.zeros(6, "f4")):
        with pytest.raises(ConfigError, match="expected 6 in float64"):
            half.local_update(
                {"lam": LAM},
                encoded(encode(center)),
                opened(half, problem(), uncharged(Ones(), 6)),
                streams,
            )
