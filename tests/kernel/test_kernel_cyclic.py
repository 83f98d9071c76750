"""Batches in turn and noise in bands: the law, the proof, the account and what is refused."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from privet.kernel import (
    AgentLedger,
    Clipped,
    Facts,
    NoCertificateError,
    NoiseError,
    Perturber,
    Records,
    Release,
    SeededNoise,
    Totals,
    checked_spacing,
)
from privet.kernel.cyclic import BANDS, MOST_BANDS, Cycle, growth, width
from privet.kernel.door import Held, cyclic_sum
from privet.kernel.ledger_lines import dearer
from privet.kernel.perturb import norm_bound, spacing
from privet.kernel.programs.drift import Drift
from privet.kernel.programs.gradients import Gradients
from privet.kernel.programs.steps import LocalTask
from privet.kernel.streams import Streams
from privet.problems import L2, BinaryLogistic, public_facts

ALL_BANDS = range(1, MOST_BANDS + 1)


def release(bands: int = 1, batches: int = 4, **changes: Any) -> Release:
    given = {"scale": 3.0, "sensitivity": 0.5, "batches": batches, "bands": bands, **changes}
    return Release("gaussian", **given)


def noises(charged: Release, dim: int, messages: int, value: float = 0.0) -> np.ndarray:
    """Return what several messages release of equal values, (steps, d), in units of the grid."""
    facts, cycle, released = Facts(12, 12.0, dim), Cycle("key", 0, "a"), []
    for message in range(messages):
        place = cycle.step % charged.batches
        one = Release(**{**fields_of(charged), "place": place})
        noise = Perturber(one, SeededNoise(7, "a", message), facts, cycle=cycle)
        for _ in range(one.count):
            noise.batch(12)
            released.append(noise.perturb(Clipped(np.full(dim, value), 0.5, "l2")))
        noise.settle()
        assert noise.cycle is not None
        cycle = noise.cycle
    return np.array(released) / spacing(charged, dim)


def fields_of(one: Release) -> dict[str, Any]:
    return {**one.to_dict()}


def matrix(bands: int, steps: int) -> np.ndarray:
    """Return C times M: m_i on the i-th diagonal below the first."""
    return sum(m * np.eye(steps, k=-i) for i, m in enumerate(BANDS[bands - 1]))  # type: ignore[return-value]


# ------------------------------------------------------------------ the law of the noise


@pytest.mark.parametrize("bands", [1, 2, 3, 4, 8, MOST_BANDS])
def test_c_applied_to_the_added_noise_is_white(bands: int) -> None:
    """Of 24 steps over 4,000 coordinates, seeded: the covariance is that of independent draws.

    Entries of the covariance of normal numbers err by 1/sqrt(4000), 2 times that on the diagonal;
    6 deviations of any of 300 have a chance of 1e-6. All entries pass one test of normality.
    """
    dim, steps = 4000, 24
    charged = release(bands, batches=12, count=3)
    noise = noises(charged, dim, steps // 3)
    assert (noise == np.rint(noise)).all()
    white = matrix(bands, steps) @ noise
    white *= spacing(charged, dim) / charged.drawn
    covariance = white @ white.T / dim
    assert np.abs(covariance - np.eye(steps)).max() < 6 * math.sqrt(2 / dim)
    assert stats.kstest(white.ravel(), "norm").pvalue > 1e-6
    if bands > 1:  # and the noise itself is not
        assert np.abs(np.corrcoef(noise)[5, 6]) > 0.3


@pytest.mark.parametrize("bands", ALL_BANDS)
def test_releases_are_made_of_the_banded_sums_and_public_numbers(bands: int) -> None:
    """The identity of the proof, in exact integers: x_t from C k + z and earlier x alone."""
    charged = release(bands, batches=12)
    facts, unit = Facts(12, 12.0, 5), spacing(charged, 5)
    draws = np.random.default_rng(bands).normal(size=(30, 5)) * charged.drawn
    values = np.random.default_rng(99).normal(size=(30, 5))

    class Handed:
        private = False

        def __init__(self, draw: np.ndarray) -> None:
            self.draw = draw

        def gaussian(self, size: Any, scale: float) -> np.ndarray:
            assert scale == charged.drawn
            return self.draw.reshape(size).copy()

    cycle, released = Cycle("key", 0, "a"), []
    for t in range(30):
        one = release(bands, batches=12, place=t % 12)
        noise = Perturber(one, Handed(draws[t]), facts, cycle=cycle)
        noise.batch(12)
        released.append(noise.perturb(Clipped(values[t], 0.5, "l2")) / unit)
        assert noise.cycle is not None
        cycle = noise.cycle
    m = BANDS[bands - 1]
    for t, entry in itertools.product(range(30), range(5)):
        y = round(draws[t, entry] / unit)
        y += sum(m[i] * round(values[t - i, entry] / unit) for i in range(min(bands, t + 1)))
        y -= sum(m[i] * int(released[t - i][entry]) for i in range(1, min(bands, t + 1)))
        assert released[t][entry] == math.floor(Fraction(y, m[0]) + Fraction(1, 2))


@pytest.mark.parametrize("bands", ALL_BANDS)
def test_noise_of_a_step_and_the_bound_on_it(bands: int) -> None:
    steps, dim = 60, 3000
    charged = release(bands, batches=12)
    noise = noises(charged, dim, steps)[40:] * spacing(charged, dim)
    settled = growth(bands) * charged.scale
    assert noise.std() == pytest.approx(settled, rel=0.02)
    inverse = np.linalg.inv(matrix(bands, 400))
    assert width(bands) * np.linalg.norm(inverse[-1]) == pytest.approx(growth(bands), rel=1e-9)
    assert np.linalg.norm(noise, axis=1).max() < norm_bound(charged, dim, 1.0)


# ------------------------------------------------------------------ the coefficients


def error(free: np.ndarray, steps: int) -> float:
    """Return the root mean square error of all sums over steps, at equal privacy."""
    band = np.concatenate([[1.0], free])
    c = sum(m * np.eye(steps, k=-i) for i, m in enumerate(band))
    sums = np.tril(np.ones((steps, steps)))
    return float(np.linalg.norm(band) * np.linalg.norm(sums @ np.linalg.inv(c)) / math.sqrt(steps))


@pytest.mark.parametrize("bands", [2, 3, 4, 6])
def test_coefficients_are_the_best_for_sums_over_64_steps(bands: int) -> None:
    start = [math.comb(2 * k, k) / 4**k for k in range(1, bands)]
    best = optimize.minimize(error, start, (64,), method="BFGS")
    ours = error(np.array(BANDS[bands - 1][1:]) / 64, 64)
    assert best.fun <= ours * (1 + 1e-9)
    assert ours <= best.fun * (1 + 2e-4)


def test_coefficients_gain_what_is_said_and_are_stable() -> None:
    alone = math.sqrt((64 + 1) / 2)  # of independent noise: the root of the mean of 1, ..., 64
    assert error(np.array(BANDS[3][1:]) / 64, 64) / alone == pytest.approx(0.568, abs=1e-3)
    for before, band in itertools.pairwise(BANDS):
        assert len(band) == len(before) + 1
        assert band[0] == 64
        assert all(a > b > 0 for a, b in itertools.pairwise(band))
        assert np.abs(np.roots(band)).max() < 1
        ours, less = (error(np.array(each[1:]) / each[0], 64) for each in (band, before))
        assert ours < less


# ------------------------------------------------------------------ the account


def begun(messages: list[tuple[int, bool]], batches: int) -> tuple[Totals, list[list[int]]]:
    """Return the account of messages of so many steps, begun anew or not, and whose turns came.

    The turns are those of each sequence that goes on by itself, each the batch of one step after
    the other.
    """
    totals, every = Totals(), list[list[int]]()
    for count, anew in messages:
        if anew or not every:
            every.append([])
        turns = every[-1]
        place = len(turns) % batches
        totals = totals.add(release(batches=batches, count=count, place=place))
        turns.extend([(place + i) % batches for i in range(count)])
    return totals, every


@pytest.mark.parametrize("seed", range(40))
def test_no_record_and_no_participation_costs_more_than_the_account(seed: int) -> None:
    """By the columns of C: every batch, messages of any length, sequences that break off."""
    rng = np.random.default_rng(seed)
    batches = int(rng.integers(2, 9))
    bands = int(rng.integers(1, batches + 1))
    messages = [(int(rng.integers(1, 8)), rng.random() < 0.2) for _ in range(20)]
    totals, every = begun(messages, batches)
    loss = release(bands, batches).loss
    worst = 0.0
    for batch in range(batches):
        cost = 0.0
        for turns in every:
            shown = (np.array(turns) == batch).astype(float)
            c = matrix(bands, len(turns)) / width(bands)
            # One direction in all steps, which is the worst where columns overlap.
            cost += float(np.sum((c @ shown) ** 2))
        worst = max(worst, cost)
    assert worst * loss**2 <= totals.mu**2 * (1 + 1e-12)
    whole, _ = begun([(6 * batches, False)], batches)
    assert whole.mu**2 == pytest.approx(6 * loss**2, rel=1e-12)


def test_steps_that_are_closer_than_the_bands_would_cost_more() -> None:
    c = matrix(4, 12) / width(4)
    apart, close = np.zeros(12), np.zeros(12)
    apart[[1, 5]], close[[1, 3]] = 1, 1
    assert np.sum((c @ apart) ** 2) == pytest.approx(2, rel=1e-12)
    assert np.sum((c @ close) ** 2) > 2.8


@pytest.mark.parametrize("bands", [1, 4])
@pytest.mark.parametrize(("steps", "cycles"), [(1, 1), (4, 1), (5, 2), (30, 8), (64, 16)])
def test_the_account_is_dp_accountings_number(bands: int, steps: int, cycles: int) -> None:
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    ledger = AgentLedger()
    for step in range(steps):
        ledger = ledger.record(release(bands, place=step % 4))
    c = matrix(bands, steps) / width(bands)
    shown = np.array([[step % 4 == batch for step in range(steps)] for batch in range(4)], float)
    sensitivity = np.linalg.norm(c @ shown.T, axis=0).max() * 0.5 * (1 + 2**-12)
    charged = ledger.spent(1e-5)
    if steps % 4 == 0 or bands == 1:  # a cycle at the end shows but a part of its columns
        assert charged == pytest.approx(get_epsilon_gaussian(3.0 / sensitivity, 1e-5), rel=1e-6)
    most = get_epsilon_gaussian(3.0 / (math.sqrt(cycles) * 0.5 * (1 + 2**-12)), 1e-5)
    assert charged == pytest.approx(most, rel=1e-6)
    assert AgentLedger.from_json(ledger.to_json()) == ledger
    assert AgentLedger.from_json(ledger.to_json()).spent(1e-5) == charged


@pytest.mark.parametrize("batches", range(1, 7))
def test_uses_are_the_cycles_that_are_begun(batches: int) -> None:
    for place, count in itertools.product(range(batches), range(1, 20)):
        begin = sum(step % batches == 0 for step in range(place, place + count))
        assert release(batches=batches, place=place, count=count).uses == begin


def test_a_torn_line_costs_a_whole_cycle() -> None:
    later, first = release(place=3), release()
    assert later.uses == 0
    assert dearer(None, later) == first
    assert dearer(first, later) == first


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"bands": 5}, "bands"),
        ({"batches": 20, "bands": MOST_BANDS + 1}, "bands"),
        ({"batches": 0}, "batches"),
        ({"place": 4}, "place"),
        ({"place": -1}, "place"),
        ({"place": True}, "place"),
        ({"relation": "add-remove"}, "batches"),
        ({"relation": "replace-agent"}, "batches"),
        ({"steps": 2}, "batches"),
        ({"agents": 3}, "batches"),
        ({"mechanism": "laplace", "norm": "l1"}, "batches"),
        ({"batches": 1, "place": 1}, "place"),
    ],
)
def test_releases_without_a_proof_are_refused(changes: dict[str, Any], field: str) -> None:
    given = {"mechanism": "gaussian", **release().to_dict(), **changes}
    with pytest.raises(ValueError, match=f"release field '{field}'"):
        Release(**given)
    with pytest.raises(ValueError, match=f"release field '{field}'"):
        Release.from_dict(json.loads(json.dumps(given)))


# ------------------------------------------------------------------ records

ROWS = np.random.default_rng(0).standard_normal((11, 3))
LABELS = np.where(np.arange(11) % 3, 1.0, -1.0)


def table(replaced: int | None = None, row: Any = (0.0, 0.0, 0.0), label: float = 1.0) -> Any:
    rows, labels = ROWS.copy(), LABELS.copy()
    if replaced is not None:
        rows[replaced], labels[replaced] = row, label
    return BinaryLogistic(rows, labels, regularizer=L2(0.1))


def gradients(**changes: Any) -> Gradients:
    return Gradients(**{"clip": 1.0, "noise_scale": 0.5, "batches": 4, "bands": 4, **changes})


def records(
    problem: Any, program: Gradients, count: int = 1, cycle: Cycle | None = None
) -> Records:
    facts, cycle = public_facts(problem), cycle or Cycle("key", 0, "a")
    charged = program.release(facts, count=count)
    charged = Release(
        **{**charged.to_dict(), "place": cycle.step % charged.batches}, program="gradients"
    )
    return Records(Held(problem), Perturber(charged, SeededNoise(1, "a", 1), facts, cycle=cycle))


@pytest.mark.parametrize(("count", "batches"), [(11, 4), (12, 4), (4, 4), (100, 7)])
def test_each_record_is_in_one_step_of_b_and_sizes_are_public(count: int, batches: int) -> None:
    steps = [Cycle("key", 5, "a", step).rows(count, batches) for step in range(2 * batches)]
    first, second = steps[:batches], steps[batches:]
    assert sorted(np.concatenate(first)) == list(range(count))
    assert all((one == other).all() for one, other in zip(first, second, strict=True))
    assert {len(rows) for rows in steps} <= {count // batches, -(-count // batches)}
    other = Cycle("key", 5, "b").rows(count, batches)
    assert count < 12 or list(other) != list(first[0])


def test_too_few_records_have_no_certificate() -> None:
    with pytest.raises(NoCertificateError, match="batches = 12: an agent has 11"):
        gradients(batches=12).release(public_facts(table()))
    with pytest.raises(NoiseError, match="fewer than the 4"):
        Cycle("key", 0, "a").rows(3, 4)


@pytest.mark.parametrize("relation", ["add-remove", "replace-agent"])
def test_other_relations_have_no_certificate(relation: Any) -> None:
    with pytest.raises(NoCertificateError, match="'cyclic' has no proof"):
        gradients(relation=relation).release(public_facts(table()))


@pytest.mark.parametrize("clipping", ["example", "batch"])
def test_no_pair_of_neighbours_is_told_apart_by_more_than_is_charged(clipping: Any) -> None:
    """All records, two cycles and a half, models that follow what was released.

    The same noise gives the distance of the values step by step: given what was released before,
    each is a Gaussian mechanism of deviation M sigma, which m_i times an earlier value moves.
    """
    program, steps = gradients(clipping=clipping), 10
    facts = public_facts(table())
    charged = program.release(facts)
    worst = 0.0
    for record, far in itertools.product(range(11), (50.0, -50.0)):
        values = []
        for problem in (table(), table(record, (far, -far, far), -1.0)):
            seen = records(table(), program, steps)  # what is released, of the one data set
            other = records(problem, program, steps)
            noised = []
            x = np.zeros(3)
            for step in range(steps):
                rows = other._noise.batch(11)
                clip = problem.clipped_term(x, 1.0, "l2", rows, clipping)[0]
                noised.append(clip)
                other._noise.perturb(Clipped(clip, charged.sensitivity, "l2"))
                g = seen.gradient(program, x, Streams(0, "a", 1))
                x = x - 0.5 * g if step else x - 3.0 * g
            values.append(np.array(noised))
        moved = np.linalg.norm(values[0] - values[1], axis=1)
        assert moved.max() <= charged.sensitivity
        assert np.count_nonzero(moved) <= -(-steps // 4)
        shown = matrix(4, steps) / width(4) @ (values[0] - values[1]) / charged.scale
        worst = max(worst, float((shown**2).sum()))
    account = Release(**{**charged.to_dict(), "count": steps})
    bound = Totals().add(account).mu ** 2
    assert 0.2 * bound < worst <= bound


def test_fedpdms_rounds_tell_no_neighbours_apart_by_more_than_is_charged() -> None:
    """As above, of y: what moves it is -2 eta times a batch's clipped gradient."""
    program, steps, rho, step = gradients(), 10, 2.0, 0.3
    drift = Drift(rho, step, 1, program, "example")
    facts, worst = public_facts(table()), 0.0
    charged = drift.release(facts, 0.0, 0.5)
    assert charged.sensitivity == pytest.approx(2 * step * program.sensitivity(facts))
    for record, far in itertools.product(range(11), (50.0, -50.0)):
        values, problems = [], (table(), table(record, (far, -far, far), -1.0))
        center, lam, cycle = np.zeros(3), np.zeros(3), Cycle("key", 0, "a")
        for _ in range(steps):
            one = Release(**{**fields_of(charged), "place": cycle.step % 4}, program="drift")
            noise = Perturber(one, SeededNoise(1, "a", cycle.step), facts, cycle=cycle)
            y = Records(Held(problems[0]), noise).drift(drift, center, lam, Streams(0, "a", 1))
            rows = cycle.rows(11, 4)
            values.append(
                [-2 * step * one.clipped_term(center, 1.0, "l2", rows)[0] for one in problems]
            )
            lam = 0.5 * (lam + rho * (center - y))
            center = 0.5 * (center + y)
            assert noise.cycle is not None
            cycle = noise.cycle
        differ = np.array([one - other for one, other in values])
        assert np.linalg.norm(differ, axis=1).max() <= charged.sensitivity
        shown = matrix(4, steps) / width(4) @ differ / charged.scale
        worst = max(worst, float((shown**2).sum()))
    bound = Totals().add(Release(**{**fields_of(charged), "count": steps})).mu ** 2
    assert 0.2 * bound < worst <= bound


def test_a_step_of_fedpdm_takes_the_batch_whose_turn_it_is() -> None:
    """y without noise is that of the batch's clipped mean, written out; two steps are refused."""
    rho, step, x, lam = 2.0, 0.3, np.array([0.3, -0.2, 0.1]), np.array([0.5, 0.0, -1.0])
    drift, facts = Drift(rho, step, 1, gradients(), "example"), public_facts(table())
    charged = drift.release(facts, 0.0, 1e-9)
    noise = Perturber(charged, SeededNoise(1), facts, cycle=Cycle("key", 0, "a"))
    y = Records(Held(table()), noise).drift(drift, x, lam, Streams(0, "a", 1))
    rows = Cycle("key", 0, "a").rows(11, 4)
    each = [BinaryLogistic(ROWS[[i]], LABELS[[i]]).clipped_gradient(x, 1.0) for i in rows]
    end = x - step * (sum(each) / len(rows) + 0.1 * x - lam)
    assert np.allclose(y, 2 * end - x - lam / rho, rtol=0, atol=1e-6)
    with pytest.raises(NoCertificateError, match="take one local step"):
        Drift(rho, step, 2, gradients(clipping="batch"), "batch").release(facts, 0.0, 0.5)


def test_a_charge_of_batches_runs_that_program_alone() -> None:
    problem, program, streams = table(), gradients(), Streams(0, "a", 1)
    x = np.zeros(3)
    for asked in (gradients(batches=5), gradients(bands=2), gradients(batches=1, bands=1)):
        with pytest.raises(NoiseError, match="batches in turn"):
            records(problem, program).gradient(asked, x, streams)
    plain = gradients(batches=1, bands=1)
    facts = public_facts(problem)
    alone = Records(Held(problem), Perturber(plain.release(facts), SeededNoise(1), facts))
    with pytest.raises(NoiseError, match="batches in turn"):
        alone.gradient(program, x, streams)
    with pytest.raises(NoiseError, match="come in turn"):
        records(problem, program).clipped_sum(program, np.zeros(3))
    with pytest.raises(NoiseError, match=r"noisy-gd|charged"):
        records(problem, program).walk(LocalTask(x, 0.1, 1, solver="noisy-gd"), streams)


def test_a_step_takes_its_turn_and_no_other() -> None:
    program, problem = gradients(), table()
    facts = public_facts(problem)
    charged = program.release(facts)
    with pytest.raises(NoiseError, match="another batch was charged"):
        Perturber(charged, SeededNoise(1), facts, cycle=Cycle("key", 0, "a", 1))
    with pytest.raises(NoiseError, match="another batch was charged"):
        Perturber(charged, SeededNoise(1), facts)
    noise = records(problem, program)._noise
    with pytest.raises(NoiseError, match="none was asked for"):
        noise.perturb(Clipped(np.zeros(3), charged.sensitivity, "l2"))
    noise.batch(11)
    with pytest.raises(NoiseError, match="twice"):
        noise.batch(11)
    with pytest.raises(NoiseError, match="the agent states 11"):
        records(problem, program)._noise.batch(10)


def test_a_sum_of_the_callers_is_of_the_batch_whose_turn_it_is() -> None:
    """As the built-in gradient, which has the regulariser beside the noise."""
    problem, program, x = table(), gradients(), np.array([0.3, -0.2, 0.1])
    asked = []

    def sum_of(rows: np.ndarray) -> np.ndarray:
        asked.append(rows)
        return sum(BinaryLogistic(ROWS[[i]], LABELS[[i]]).clipped_gradient(x, 1.0) for i in rows)

    own = cyclic_sum(records(problem, program), program, 11, sum_of)
    built_in = records(problem, program).gradient(program, x, Streams(0, "a", 1))
    assert np.allclose(own, built_in - 0.1 * x, rtol=0, atol=1e-12)
    assert (asked[0] == Cycle("key", 0, "a").rows(11, 4)).all()
    with pytest.raises(NoiseError, match="the agent states 11"):
        cyclic_sum(records(problem, program), program, 10, sum_of)


def test_the_grid_is_no_finer_than_the_digits_of_the_wider_draws() -> None:
    facts = Facts(12, 12.0, 1 << 20)
    for scale in np.geomspace(1.0, 1e6, 40):
        given = release(4, scale=float(scale))
        alone = release(1, scale=float(scale))
        if checked(given, facts):
            assert checked(alone, facts)
    assert not checked(release(4, scale=1e6), facts)


def checked(one: Release, facts: Facts) -> bool:
    try:
        checked_spacing(one, facts.dim)
    except NoiseError:
        return False
    return True
