"""Coins and sampled sums: their law, one toss a draw, records in their place, and who may ask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.core import ConfigError
from privet.kernel import (
    Clipped,
    Facts,
    NoCertificateError,
    NoiseError,
    Perturber,
    Records,
    RecordsError,
    Release,
    SeededNoise,
    SystemNoise,
)
from privet.kernel import noise as noise_module
from privet.kernel.bounded import places
from privet.kernel.door import Held, sampled_sum
from privet.kernel.perturb import Perturbers
from privet.kernel.programs.gradients import Gradients
from privet.kernel.programs.steps import LocalTask
from privet.kernel.programs.update import ClippedUpdate
from privet.kernel.streams import Streams
from privet.problems import (
    BinaryLogistic,
    MultinomialLogistic,
    RidgeRegression,
    make_regularizer,
    public_facts,
)
from privet.strategies import FedDyn

COUNT, CLIP, BATCH = 12, 0.7, 3
STREAMS = Streams(0, "a", 1)
GRADIENTS = Gradients(BATCH, False, CLIP, "example", "add-remove", 0.5, True)


class Scripted:
    """A source whose coins are known, and whose noise is zero."""

    private = True

    def __init__(self, *coins: Any) -> None:
        self._coins = iter(coins)

    def gaussian(self, size: Any, scale: float) -> Any:
        return np.zeros(size)

    laplace = gaussian

    def coins(self, count: int, rate: float) -> Any:
        kept = np.zeros(count, bool)
        kept[list(next(self._coins))] = True
        return kept


def problem(kind: str = "logistic", dtype: str = "float64", bend: int | None = None) -> Any:
    """Return a problem; of ``bend`` the row and its label are others."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(COUNT, 4)).astype(dtype)
    labels = rng.integers(0, 2, COUNT)
    if bend is not None:
        rows[bend] *= -37.5
        labels[bend] = 1 - labels[bend]
    term = make_regularizer("l2", 0.1)
    if kind == "softmax":
        return MultinomialLogistic(rows, labels, 3, regularizer=term)
    if kind == "ridge":
        return RidgeRegression(rows, labels.astype(dtype), regularizer=term)
    return BinaryLogistic(rows, 2.0 * labels - 1.0, regularizer=term)


def records(
    held: Any, source: Any = None, gradients: Gradients = GRADIENTS, count: int = 1
) -> Records:
    facts = public_facts(held)
    release = gradients.release(facts, count=count)
    return Records(Held(held), Perturber(release, source or SystemNoise(), facts))


# ------------------------------------------------------------------ coins


@pytest.mark.parametrize("source", [SystemNoise(), SeededNoise(1, "a")])
def test_coins_have_their_chance_and_are_fresh(source: Any) -> None:
    tossed = np.array([source.coins(1000, 0.2) for _ in range(100)])
    deviation = np.sqrt(0.2 * 0.8 / tossed.size)
    assert abs(tossed.mean() - 0.2) < 6 * deviation
    # Alike for no record, no toss and no pair of neighbours: six deviations each.
    assert np.abs(tossed.mean(0) - 0.2).max() < 6.5 * np.sqrt(0.16 / 100)
    assert np.abs(tossed.mean(1) - 0.2).max() < 6 * np.sqrt(0.16 / 1000)
    assert abs((tossed[1:] & tossed[:-1]).mean() - 0.04) < 6 * np.sqrt(0.04 * 0.96 / tossed.size)


def test_a_coin_is_never_likelier_than_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = 1 / 3  # 2^64 / 3 rounds down: heads are words below it, as numbers without a sign
    edge = (1 << 64) // 3
    words = np.array([0, edge - 2000, edge + 2000, (1 << 64) - 1], np.uint64)
    monkeypatch.setattr(noise_module, "_fresh_words", lambda count: lambda size: words.view("<i8"))
    assert SystemNoise().coins(4, rate).tolist() == [True, True, False, False]
    assert int(np.ldexp(rate, 64)) <= rate * 2**64
    with pytest.raises(ValueError, match="chance of a coin"):
        SystemNoise().coins(4, 1.0)


def test_one_toss_for_one_draw() -> None:
    facts = Facts(COUNT, float(COUNT), 2)
    release = Release(
        "gaussian", scale=1.0, relation="add-remove", sampling=0.5, count=2, program="gradients"
    )
    noise = Perturber(release, SystemNoise(), facts)
    value = Clipped(np.zeros(2), 1.0, "l2")
    with pytest.raises(NoiseError, match="no coins were tossed"):
        noise.perturb(value)
    noise.coins(COUNT)
    with pytest.raises(NoiseError, match="tossed twice"):
        noise.coins(COUNT)
    noise.perturb(value)
    with pytest.raises(NoiseError, match="no coins were tossed"):
        noise.perturb(value)
    with pytest.raises(NoiseError, match="more records are held"):
        noise.coins(COUNT + 1)
    both = Perturbers(release, 2, lambda: [SystemNoise()] * 2, facts)
    with pytest.raises(NoiseError, match="several agents at once"):
        both.coins(COUNT)
    plain = Perturber(replace(release, sampling=1.0), SystemNoise(), facts)
    with pytest.raises(NoiseError, match="no sampling was charged"):
        plain.coins(COUNT)


# ------------------------------------------------------------------ sums


@pytest.mark.parametrize("kind", ["logistic", "softmax", "ridge"])
def test_a_step_is_the_clipped_sum_of_those_that_take_part(kind: str) -> None:
    held = problem(kind)
    x = np.linspace(-1, 1, held.dim)
    kept = [1, 4, 5, 11]
    got = records(held, Scripted(kept)).gradient(GRADIENTS, x, STREAMS)
    slope = held.regularizer.gradient(x)
    total = np.zeros(held.dim)
    for row in kept:
        one = (held.gradient(x, np.array([row])) - slope) * held.divisor / COUNT
        total += one * min(1.0, CLIP / np.linalg.norm(one))
    assert np.allclose(got, total / BATCH + slope, rtol=0, atol=1e-3)  # the grid
    nobody = records(held, Scripted([])).gradient(GRADIENTS, x, STREAMS)
    assert np.allclose(nobody, slope, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["logistic", "softmax", "ridge"])
def test_the_others_have_the_same_bits_with_a_record_and_without_it(kind: str, dtype: str) -> None:
    one, other = problem(kind, dtype), problem(kind, dtype, bend=5)
    rng = np.random.default_rng(0)
    for scale in (1.0, 1e6, 1e12):
        x = (scale * rng.normal(size=one.dim)).astype(dtype)
        kept = rng.random(COUNT) < 0.5
        kept[5] = False
        mine, theirs = (each.sampled_term(x, CLIP, kept)[0] for each in (one, other))
        assert mine.tobytes() == theirs.tobytes()
        kept[5] = True
        gap = one.sampled_term(x, CLIP, kept)[0] - mine
        moved = public_facts(one).sensitivity(CLIP, relation="add-remove", in_place=True)
        assert np.linalg.norm(gap) <= moved


@given(st.lists(st.booleans(), min_size=1, max_size=80), st.integers(1, 16))
@settings(max_examples=60, deadline=None)
def test_a_record_keeps_its_place_whichever_others_take_part(kept: list[bool], width: int) -> None:
    every = list(places(np.array(kept), width))
    found = [row for rows, there in every for row in rows[there].tolist()]
    assert sorted(found) == np.flatnonzero(kept).tolist()
    for rows, there in every:
        assert rows.shape == there.shape == (width,)
        assert all(row % width == place for place, row in enumerate(rows) if there[place])
    assert all(there.any() for _, there in every)


# ------------------------------------------------------------------ who may ask for what


def test_the_charge_is_of_the_probability_and_the_expected_batch() -> None:
    facts = public_facts(problem())
    release = GRADIENTS.release(facts, count=5)
    assert release.sampling == BATCH / COUNT
    whole = facts.sensitivity(CLIP, relation="add-remove")
    assert release.sensitivity == pytest.approx(whole * COUNT / BATCH, rel=1e-15)
    everybody = replace(GRADIENTS, batch_size=COUNT).release(facts)
    assert everybody.sampling == 1
    assert everybody.sensitivity == whole
    # A declared number above the held one is the one that counts.
    declared = replace(facts, num_examples=2 * COUNT, divisor=2.0 * COUNT)
    assert GRADIENTS.release(declared).sampling == BATCH / (2 * COUNT)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"relation": "replace-one"}, "no proof under relation = 'replace-one'"),
        ({"relation": "replace-agent"}, "no proof under relation = 'replace-agent'"),
        ({"clipping": "batch"}, "no proof with clipping = 'batch'"),
    ],
)
def test_what_has_no_proof_is_refused_by_name(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(NoCertificateError, match=reason):
        replace(GRADIENTS, **changed).release(public_facts(problem()))
    keys = {"batch": "poisson", "clip": 1.0, "relation": "add-remove", **changed}
    with pytest.raises(ConfigError, match=reason):
        FedDyn(**keys)
    with pytest.raises(ConfigError, match="batch = 'poisson' samples for privacy"):
        FedDyn(**{**keys, "relation": "add-remove", "clipping": "example", "clip": 0.0})


def test_nothing_but_what_was_charged_is_sampled() -> None:
    held = problem()
    x = np.zeros(held.dim)
    more = replace(GRADIENTS, batch_size=2 * BATCH)
    for asked in (more, replace(GRADIENTS, poisson=False), replace(GRADIENTS, batch_size=COUNT)):
        with pytest.raises((NoiseError, NoCertificateError)):
            records(held).gradient(asked, x, STREAMS)
    # A full batch was charged: sampled records are not taken for it.
    full = Gradients(0, False, CLIP, "example", "add-remove", 0.5)
    with pytest.raises(NoiseError):
        records(held, gradients=full).gradient(GRADIENTS, x, STREAMS)
    # Nor a caller's batch for sampled records, and the other way round.
    with pytest.raises(NoiseError, match="are to be sampled"):
        records(held).clipped_sum(GRADIENTS, x)
    with pytest.raises(NoiseError, match=r"was charged|no sampling was charged"):
        sampled_sum(records(held, gradients=full), full, COUNT, lambda kept: x)
    release = ClippedUpdate(CLIP, "add-remove").release(public_facts(held), 1.0, "")
    update = Records(Held(held), Perturber(release, SystemNoise(), public_facts(held)))
    task = LocalTask(x, 0.1, 2, gradients=replace(GRADIENTS, noise_scale=0.0))
    with pytest.raises(NoiseError, match="batch = 'poisson' was not charged as that"):
        update.update(ClippedUpdate(CLIP, "add-remove"), task, STREAMS)


def test_a_problem_that_cannot_leave_records_out_is_refused() -> None:
    class Own:
        dim, dtype, num_examples, divisor = 2, np.dtype("f8"), COUNT, float(COUNT)

        def value(self, x: Any) -> float:
            return 0.0

        def gradient(self, x: Any, rows: Any = None) -> Any:
            return x

        def clipped_gradient(self, x: Any, *options: Any, **more: Any) -> Any:
            return x

    with pytest.raises(RecordsError, match="cannot leave records out"):
        records(Own()).gradient(GRADIENTS, np.zeros(2), STREAMS)


def test_coins_do_not_follow_the_seed_of_the_run() -> None:
    held, x = problem(), np.zeros(4)
    quiet = replace(GRADIENTS, noise_scale=1e-6)
    first, again = (records(held, gradients=quiet).gradient(quiet, x, STREAMS) for _ in range(2))
    seen = {
        records(held, gradients=quiet).gradient(quiet, x, STREAMS).round(3).tobytes()
        for _ in range(40)
    }
    assert first.shape == again.shape
    assert len(seen) > 20  # of 4096 choices: 20 alike have a chance below 1e-9
