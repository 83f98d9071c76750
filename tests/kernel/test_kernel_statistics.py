"""Sums over records: exact, of a sensitivity that is reached and never exceeded, and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.kernel import Facts, NoiseError, Perturber, RecordsError, Relation, Release
from privet.kernel.door import Held, Records
from privet.kernel.programs.statistics import Statistics, bounded_sum
from support.adversary import Recording, SomeNoise, climb, stretched

CLIP, WIDTH, TIGHT = 0.8, 3, 0.98
NEAR_CLIP = 1.0 - 2.0**-19


class Rows:
    """A problem of given contributions, in blocks."""

    dtype = np.dtype("f8")

    def __init__(self, rows: Any, block: int = 1 << 20) -> None:
        self.rows, self.block = np.asarray(rows, np.float64), block
        self.dim, self.num_examples = self.rows.shape[1], len(self.rows)

    def value(self, x: Any) -> float:
        raise AssertionError

    def gradient(self, x: Any, rows: Any = None) -> Any:
        raise AssertionError

    def contributions(self, point: Any) -> Iterator[Any]:
        for start in range(0, len(self.rows), self.block):
            yield self.rows[start : start + self.block]

    def statistics(self, point: Any) -> dict[str, Any]:
        return {"total": self.rows.sum(axis=0)}


class Mute(Rows):
    """One that has neither kind of sums."""

    contributions = statistics = None  # type: ignore[assignment]


def opened(problem: Any, release: Release, count: int = 0) -> tuple[Records, Recording]:
    facts = Facts(count or problem.num_examples, 1.0, problem.dim)
    noise = Recording(release, SomeNoise(), facts, given=True)
    return Records(Held(problem), noise), noise


def charged(program: Statistics, problem: Any) -> tuple[Records, Recording]:
    facts = Facts(problem.num_examples, 1.0, problem.dim)
    return opened(problem, program.release(facts, 2.0, "a sum"))


def summed(rows: Any, clip: float = CLIP) -> Any:
    rows = np.atleast_2d(np.asarray(rows, np.float64))
    return bounded_sum(clip, [rows], rows.shape[1])


# ------------------------------------------------------------------ the sum


@given(st.integers(0, 2**32), st.sampled_from([1e-9, 0.8, 1.0, 3e7]))
def test_a_sum_is_the_same_whatever_the_order_and_the_blocks(seed: int, clip: float) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.exponential(clip, (40, 5)) * 10.0 ** rng.uniform(-9, 3, (40, 1))
    once = bounded_sum(clip, [rows], 5)
    blocks = np.array_split(rows[rng.permutation(40)], 7)
    assert np.array_equal(bounded_sum(clip, blocks, 5), once)
    units = sum(np.rint(summed(row, clip) * (2.0**32 / clip)) for row in rows)  # whole numbers
    assert np.array_equal(np.rint(once * (2.0**32 / clip)), units)


def test_rows_within_the_clip_are_added_to_a_unit_each() -> None:
    rows = np.random.default_rng(1).uniform(0, 0.3, (1000, 4))
    assert (abs(summed(rows, 1.0) - rows.sum(axis=0)) <= 1000 * 2.0**-32).all()


@pytest.mark.parametrize("clip", [1e-90, 1e-12, 0.8, 1e12, 1e90])
@pytest.mark.parametrize("size", [5e-324, 1e-160, 1e-3, 1.0, 1e3, 1e160, 1.7e308])
def test_no_row_adds_more_than_the_clip(clip: float, size: float) -> None:
    for row in (np.full(7, size), np.eye(7)[2] * size, np.linspace(0, 1, 7) * size):
        added = summed(row, clip)
        assert (added >= 0).all()
        assert float(np.linalg.norm(added / clip)) <= 1.0
        shares = row / row.max()
        norm = float(np.linalg.norm(shares))
        if NEAR_CLIP * size * norm > clip:  # held to the clip, in its own direction
            assert float(np.linalg.norm(added / clip)) >= 1.0 - 2.0**-18
            assert np.allclose(added / clip, shares / norm, rtol=0, atol=2.0**-18)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_adds_nothing(bad: float) -> None:
    rows = np.full((3, 4), 0.1)
    rows[1, 2] = bad
    assert np.array_equal(summed(rows), summed(rows[[0, 2]]))


def test_no_entry_below_zero_is_added() -> None:
    rows = [[-3.0, 0.1], [-math.inf, 0.2], [0.3, -1e308]]
    assert np.array_equal(summed(rows), summed(np.maximum(rows, 0.0)))
    assert (summed(rows) >= 0).all()


@pytest.mark.parametrize("kind", ["f2", "f4", "i8", "u1", "?"])
def test_rows_of_any_type_are_held_as_their_float64(kind: str) -> None:
    rows = (np.random.default_rng(2).uniform(0, 3, (200, 50))).astype(kind)
    found = bounded_sum(CLIP, [rows], 50)
    assert found.dtype == np.float64
    assert np.array_equal(found, bounded_sum(CLIP, [rows.astype(np.float64)], 50))


@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 5), (1, 2, 2)])
def test_blocks_of_another_length_than_was_charged_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(RecordsError, match="another length"):
        bounded_sum(CLIP, [np.zeros(shape)], 4)


def test_no_rows_are_a_sum_of_zeros() -> None:
    assert bounded_sum(CLIP, [], 4).tolist() == [0.0] * 4
    assert bounded_sum(CLIP, [np.zeros((0, 4))], 4).tolist() == [0.0] * 4


# ------------------------------------------------------------------ sensitivity


def neighbours(relation: Relation, rows: Any) -> tuple[Any, Any]:
    """Two data sets of two records, or of one less."""
    if relation == "replace-one":
        return rows[:2], rows[[0, 2]]
    return (rows[:2], rows[:1]) if relation == "add-remove" else (rows[:2], rows[2:])


@pytest.mark.parametrize("relation", ["replace-one", "add-remove", "replace-agent"])
def test_a_search_over_neighbours_reaches_the_sensitivity_and_never_more(
    relation: Relation,
) -> None:
    program = Statistics(CLIP, relation)
    charge = program.sensitivity(2)

    def handed(rows: Any) -> Any:
        """What a data set's sum is when it is handed to the noise, by the door."""
        facts = Facts(2, 1.0, WIDTH)
        records, noise = opened(Rows(rows), program.release(facts, 2.0, "a sum"), 2)
        records.noised_statistics(program, {})
        records.settle()
        return noise.handed[0]

    def gap(parameters: Any) -> float:
        one, two = neighbours(relation, stretched(parameters).reshape(4, WIDTH))
        return float(np.linalg.norm(handed(one) - handed(two))) / charge

    worst = climb(gap, 4 * WIDTH, seed=3)
    assert TIGHT <= worst <= 1.0


@given(st.integers(0, 2**32), st.sampled_from(["replace-one", "add-remove", "replace-agent"]))
def test_neighbours_of_a_thousand_dimensions_are_within_the_sensitivity(
    seed: int, relation: Any
) -> None:
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-6, 300, (4, 1))
    rows = rng.exponential(1.0, (4, 1000)) * (rng.random((4, 1000)) < rng.random()) * scale
    one, two = neighbours(relation, rows)
    apart = np.linalg.norm(summed(one) - summed(two))
    assert apart <= Statistics(CLIP, relation).sensitivity(2)


@pytest.mark.parametrize(
    ("relation", "expected"),
    [("replace-one", math.sqrt(2)), ("add-remove", 1.0), ("replace-agent", 50 * math.sqrt(2))],
)
def test_a_release_charges_the_sensitivity_of_its_relation(
    relation: Relation, expected: float
) -> None:
    release = Statistics(CLIP, relation).release(Facts(50, 1.0, 4), 3.0, "a sum")
    assert (release.mechanism, release.scale, release.norm) == ("gaussian", 3.0, "l2")
    assert (release.relation, release.count, release.program) == (relation, 1, "statistics")
    assert release.sensitivity == pytest.approx(expected * CLIP, rel=2e-6)
    assert release.sensitivity >= expected * CLIP


@pytest.mark.parametrize(("clip", "scale"), [(0.0, 1.0), (math.nan, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_a_clip_or_scale_that_cannot_be_charged_is_refused(clip: float, scale: float) -> None:
    with pytest.raises(ValueError, match=r"scale|sensitivity"):
        Statistics(clip).release(Facts(5, 1.0, 4), scale, "a sum")


# ------------------------------------------------------------------ the door

ROWS = np.random.default_rng(4).uniform(0, 1, (6, WIDTH))


def test_sums_without_noise_are_those_of_the_problem() -> None:
    records, _ = opened(Rows(ROWS), Release("none"))
    assert np.array_equal(records.statistics({})["total"], ROWS.sum(axis=0))


def test_sums_without_noise_are_refused_where_noise_is_charged() -> None:
    records, _ = charged(Statistics(CLIP), Rows(ROWS))
    with pytest.raises(NoiseError, match="without noise"):
        records.statistics({})


def test_noised_sums_are_refused_where_nothing_is_charged() -> None:
    records, _ = opened(Rows(ROWS), Release("none"))
    with pytest.raises(NoiseError):
        records.noised_statistics(Statistics(CLIP), {})


@pytest.mark.parametrize(
    "other",
    [Statistics(CLIP, "add-remove"), Statistics(CLIP * 1.01), Statistics(math.inf), Statistics()],
)
def test_another_program_than_was_charged_is_refused(other: Statistics) -> None:
    records, noise = charged(Statistics(CLIP), Rows(ROWS))
    with pytest.raises(NoiseError):
        records.noised_statistics(other, {})
    assert not noise.released


def test_a_sum_is_drawn_once() -> None:
    records, _ = charged(Statistics(CLIP), Rows(ROWS))
    with pytest.raises(NoiseError):
        records.settle()
    records.noised_statistics(Statistics(CLIP), {})
    with pytest.raises(NoiseError):
        records.noised_statistics(Statistics(CLIP), {})


def test_the_noise_is_added_to_the_bounded_sum_alone() -> None:
    """A problem's own sums without noise are not asked for."""
    problem = Rows(ROWS * 1e9, block=2)
    records, noise = charged(Statistics(CLIP), problem)
    found = records.noised_statistics(Statistics(CLIP), {})
    assert np.array_equal(noise.handed[0], bounded_sum(CLIP, [problem.rows], WIDTH))
    assert np.allclose(found - noise.handed[0], 2.0 * np.array([-2.0, 1.0, 0.3]), atol=1e-3)


@pytest.mark.parametrize("asked", ["statistics", "noised_statistics"])
def test_a_problem_without_sums_is_refused(asked: str) -> None:
    class Neither:
        dim, num_examples, dtype = WIDTH, 6, np.dtype("f8")
        value = gradient = Rows.value

    program = Statistics(CLIP)
    noised = asked == "noised_statistics"
    records, _ = charged(program, Neither()) if noised else opened(Neither(), Release("none"))
    ask: Callable[[], Any] = (
        (lambda: records.noised_statistics(program, {}))
        if noised
        else (lambda: records.statistics({}))
    )
    with pytest.raises(RecordsError, match="no sums"):
        ask()


def test_sums_of_another_type_are_refused() -> None:
    problem = Rows(ROWS)
    problem.statistics = lambda point: {"total": np.zeros(3, np.float32)}  # type: ignore[method-assign]
    records, _ = opened(problem, Release("none"))
    with pytest.raises(RecordsError, match="'total' is not of float64"):
        records.statistics({})


def test_a_point_of_a_noised_sum_is_of_arrays_alone() -> None:
    class Odd(np.ndarray):
        pass

    records, _ = charged(Statistics(CLIP), Rows(ROWS))
    with pytest.raises(NoiseError, match="takes arrays"):
        records.noised_statistics(Statistics(CLIP), {"x": np.zeros(2).view(Odd)})


def test_perturbers_of_the_door_are_the_kernels_own() -> None:
    records, noise = charged(Statistics(CLIP), Rows(ROWS))
    assert isinstance(noise, Perturber)
    assert records.charged
