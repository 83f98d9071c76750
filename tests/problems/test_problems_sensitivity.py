"""What clipped sums say they may move by, against what neighbouring data make them move."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.kernel import (
    RELATIONS,
    Clipped,
    clip_rows,
    clipped_sensitivity,
    clipped_sum,
    clipped_term,
)
from privet.kernel.bounded import clipped_whole, row_norms
from privet.problems import LinearModel, RidgeRegression, make_regularizer
from support.problem_cases import CLASSES, LOSSES, build, random_case

ORDER = {"l2": 2, "l1": 1}
MODES = (("example", "l2"), ("example", "l1"), ("batch", "l2"))
DTYPES = (np.float32, np.float64)


def distance(one: Clipped, other: Clipped) -> float:
    """How far apart two clipped sums are, in their norm."""
    return float(np.linalg.norm(one.value - other.value, ORDER[one.norm]))


def targets_of(loss: str, generator: np.random.Generator, count: int) -> np.ndarray:
    if loss == "binary":
        return generator.choice([-1.0, 1.0], count)
    if loss == "ridge":
        return 5.0 * generator.standard_normal(count)
    return generator.integers(0, CLASSES, count)


# ---------------------------------------------------------------- the number itself


def test_closed_forms():
    sensitivity = clipped_sensitivity(0.5, divisor=200, num_examples=100)
    assert sensitivity == pytest.approx(2 * 0.5 / 200, rel=2e-6)
    assert sensitivity > 2 * 0.5 / 200
    batch = clipped_sensitivity(0.5, divisor=200, num_examples=100, batch_size=10)
    assert batch == pytest.approx(2 * 0.5 * 100 / (200 * 10), rel=2e-6)
    removed = clipped_sensitivity(0.5, divisor=200, num_examples=100, relation="add-remove")
    assert removed == pytest.approx(0.5 / 200, rel=2e-6)
    agent = clipped_sensitivity(
        0.5, divisor=200, num_examples=100, batch_size=10, relation="replace-agent"
    )
    assert agent == pytest.approx(2 * 0.5 * 100 / 200, rel=2e-6)
    for relation in RELATIONS:
        whole = clipped_sensitivity(
            0.5, divisor=200, num_examples=100, clipping="batch", relation=relation
        )
        assert whole == pytest.approx(2 * 0.5, rel=2e-6)


@pytest.mark.parametrize("examples", [1, 256, 257, 10**5, 10**7])
def test_float32_is_charged_the_rounding_of_one_block(examples):
    ratio = clipped_sensitivity(
        1.0, divisor=examples, num_examples=examples, dtype="f4"
    ) / clipped_sensitivity(1.0, divisor=examples, num_examples=examples, dtype="f8")
    block = min(examples, 256)
    assert ratio == pytest.approx(1 + block**2 * 2.0**-24, abs=2e-4 * block / 256 + 1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip": 0.0}, "clip must be finite and positive"),
        ({"clip": math.inf}, "clip must be finite and positive"),
        ({"clip": 1e-30, "dtype": "f4"}, "clip = 1e-30 is out of the range that float32 sums"),
        ({"clip": 1e200}, "clip = 1e[+]200 is out of the range that float64 sums"),
        ({"divisor": 0}, "divisor must be finite and positive"),
        ({"num_examples": 0}, "num_examples must be finite and positive"),
        ({"num_examples": 1e16}, "no useful bound"),
        ({"batch_size": 0}, "batch_size must be finite and positive"),
        ({"clipping": "rows"}, "clipping must be example or batch, found 'rows'"),
        ({"relation": "none"}, "relation must be one of replace-one, add-remove, replace-agent"),
        ({"dtype": "f2"}, "dtype must be float32 or float64, found float16"),
    ],
)
def test_numbers_without_a_sensitivity_are_refused(change, message):
    numbers: dict[str, Any] = {"clip": 1.0, "divisor": 10, "num_examples": 10} | change
    with pytest.raises(ValueError, match=message):
        clipped_sensitivity(**numbers)


# ---------------------------------------------------------------- neighbours, searched


@pytest.mark.parametrize("clipping", ["example", "batch"])
def test_other_records_altogether_move_a_float32_sum_by_what_is_stated(clipping):
    # Largest sums there are, of either sign, of examples that round to one side.
    generator = np.random.default_rng(0)
    count, clip = 100_000, 0.7051
    features = generator.uniform(0.9, 1.1, (count, 1)).astype("f4")
    sums = [
        clipped_term(
            RidgeRegression(features, np.full(count, target)), np.zeros(1, "f4"), clip,
            clipping=clipping, relation="replace-agent",
        )[0]
        for target in (-100.0, 100.0)
    ]  # fmt: skip
    assert 0.999 < distance(*sums) / sums[0].sensitivity <= 1.0


def test_one_record_among_100000_moves_a_float32_sum_by_what_is_stated():
    # All examples pull the same way: a plain float32 sum would be off by a hundredth of a clip.
    generator = np.random.default_rng(0)
    count, clip = 100_000, 0.7051
    features = generator.uniform(0.9, 1.1, (count, 1)).astype("f4")
    targets = np.full(count, -100.0)
    x = np.zeros(1, "f4")
    first, _ = clipped_term(RidgeRegression(features, targets), x, clip)
    change = 0.0
    for i in generator.integers(0, count, 40):
        other = targets.copy()
        other[i] = 100.0
        second, _ = clipped_term(RidgeRegression(features, other), x, clip)
        change = max(change, distance(first, second))
    assert first.sensitivity <= 2 * clip / count * 1.004
    assert 2 * clip / count * 0.9999 <= change <= first.sensitivity


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("examples", [1, 300, 5000])
def test_a_search_for_bad_neighbours_stays_within_the_stated_sensitivity(loss, dtype, examples):
    generator = np.random.default_rng(examples)
    clip, reached = 0.3, 0.0
    for trial in range(12):
        width = int(generator.integers(1, 5))
        # Directions that agree make the sum, and its rounding, large.
        features = np.abs(generator.standard_normal((examples, width))) * [1.0, 30.0][trial % 2]
        targets = targets_of(loss, generator, examples)
        if trial % 3 == 0:
            targets[:] = targets[0]
        i = int(generator.integers(examples))
        twin, answers = features.copy(), targets.copy()
        twin[i] = -features[i] if trial % 2 else 100.0 * generator.standard_normal(width)
        answers[i] = targets[i] if trial % 2 else targets_of(loss, generator, 1)[0]
        divisor = [None, 7.0 * examples][trial % 2]
        pair = [
            build(loss, rows.astype(dtype), values, divisor=divisor)
            for rows, values in ((features, targets), (twin, answers))
        ]
        x = (0.1 * generator.standard_normal(pair[0].dim)).astype(dtype)
        batch = generator.permutation(examples)[: max(1, examples // 3)]
        batch[0] = i if i not in batch else batch[0]
        for clipping, norm in MODES:
            for rows in (None, batch):
                one, other = (
                    clipped_term(p, x, clip, norm=norm, rows=rows, clipping=clipping)[0]
                    for p in pair
                )
                assert one.value.dtype == np.float64
                assert one.sensitivity == other.sensitivity
                moved = distance(one, other)
                assert moved <= one.sensitivity
                reached = max(reached, moved / one.sensitivity)
    assert reached > 0.9


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", LOSSES)
def test_an_example_that_is_there_or_not_moves_the_sum_by_one_clip(loss, dtype):
    generator = np.random.default_rng(4)
    for _ in range(20):
        features = 10.0 * generator.standard_normal((600, 3))
        targets = targets_of(loss, generator, 600)
        absent = features.copy()
        absent[77] = 0.0  # contributes nothing
        pair = [build(loss, rows.astype(dtype), targets) for rows in (features, absent)]
        x = generator.standard_normal(pair[0].dim).astype(dtype)
        for norm in ("l1", "l2"):
            one, other = (
                clipped_term(p, x, 0.2, norm=norm, relation="add-remove")[0] for p in pair
            )
            assert distance(one, other) <= one.sensitivity <= 0.2 / 600 * 1.008


# ---------------------------------------------------------------- extreme records


def extreme(dtype: Any) -> list[float]:
    """Numbers at every edge of a dtype's range."""
    info = np.finfo(dtype)
    half = math.sqrt(float(info.max))
    sizes = [
        0.0, 1.0, half, 2 * half, 1 / half, 0.1 / half,
        float(info.max), float(info.max) / 2, float(info.tiny), float(info.smallest_subnormal),
    ]  # fmt: skip
    return [sign * size for size in sizes for sign in (1.0, -1.0)]


@given(data=st.data(), loss=st.sampled_from(LOSSES), dtype=st.sampled_from(DTYPES))
@settings(deadline=None, max_examples=100)
def test_extreme_records_give_finite_sums_within_the_sensitivity(data, loss, dtype):
    edges = st.sampled_from(extreme(dtype))
    case = random_case(loss, examples=6, width=3, dtype=dtype, regularizer="none")
    x = np.array(
        data.draw(st.lists(edges, min_size=case.problem.dim, max_size=case.problem.dim)), dtype
    )
    clip = data.draw(st.sampled_from([1e-9, 0.3, 1e9]))
    problems = []
    for _ in range(2):
        features = case.features.astype(dtype)
        features[2] = data.draw(st.lists(edges, min_size=3, max_size=3))
        targets = case.targets.copy()
        if loss == "ridge":
            targets[2] = data.draw(edges)
        problems.append(build(loss, features, targets))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for clipping, norm in MODES:
            for rows in (None, np.array([2, 4])):
                pair = [
                    clipped_term(p, x, clip, norm=norm, rows=rows, clipping=clipping)[0]
                    for p in problems
                ]
                assert all(np.isfinite(one.value).all() for one in pair)
                assert distance(*pair) <= pair[0].sensitivity


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("clipping", "norm"), MODES)
@pytest.mark.parametrize("loss", LOSSES)
def test_an_example_without_a_finite_residual_counts_as_zero(loss, clipping, norm, dtype):
    case = random_case(loss, dtype=dtype, width=4, regularizer="none")
    big = float(np.finfo(dtype).max) / 2
    features = case.features.astype(dtype)
    absent = features.copy()
    absent[3] = 0.0
    x = np.abs(case.point) + 3
    features[3] = [big, big, -big, -big]  # inf - inf in every score
    one, other = (
        clipped_term(build(loss, rows, case.targets), x, 0.3, norm=norm, clipping=clipping)[0]
        for rows in (features, absent)
    )
    np.testing.assert_array_equal(one.value, other.value)
    if loss == "ridge":
        features[3] = [big, 0.0, 0.0, 0.0]  # a residual that is infinite
        one, _ = clipped_term(build(loss, features, case.targets), x, 0.3, norm=norm)
        other, _ = clipped_term(build(loss, absent, case.targets), x, 0.3, norm=norm)
        np.testing.assert_array_equal(one.value, other.value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_is_summed_without_the_examples_whose_gradient_overflows(dtype):
    big = float(np.finfo(dtype).max) / 2
    features = np.array([[big, 0.0], [1.0, 2.0], [3.0, 0.0]], dtype)
    absent = features.copy()
    absent[0] = 0.0
    one, other = (
        clipped_term(RidgeRegression(rows, [5.0, 1.0, 2.0]), np.zeros(2), 1e6, clipping="batch")
        for rows in (features, absent)
    )
    np.testing.assert_array_equal(one[0].value, other[0].value)
    # Each gradient is finite, their sum is not: then all of it counts as zero.
    both = np.array([[big, 0.0], [big, 0.0], [big, 0.0]], dtype)
    found, _ = clipped_term(RidgeRegression(both, [0.9] * 3), np.zeros(2), 1.0, clipping="batch")
    np.testing.assert_array_equal(found.value, [0.0, 0.0])


def test_long_rows_are_clipped_like_any_other():
    # A score of moderate size along a row of norm 1e25 in float32, whose square overflows there.
    features = np.array([[1e25, 1e25], [1.0, 2.0]], "f4")
    problem = RidgeRegression(features, [1e20, 0.0])
    found, _ = clipped_term(problem, np.zeros(2, "f4"), 0.5)
    np.testing.assert_allclose(found.value, -0.25 * np.ones(2) / math.sqrt(2.0), rtol=1e-6)
    wide = RidgeRegression(np.array([[1e142, 1e142], [1.0, 2.0]]), [1e20, 0.0])
    found, _ = clipped_term(wide, np.zeros(2), 0.5)
    np.testing.assert_allclose(found.value, -0.25 * np.ones(2) / math.sqrt(2.0), rtol=1e-14)


def test_small_rows_with_large_residuals_are_clipped():
    # The squares of such rows are 0 in float64: taken so, nothing bounds them.
    problem = RidgeRegression(np.array([[1e-170, 0.0], [1.0, 2.0]]), [-1e300, 0.0])
    found, _ = clipped_term(problem, np.zeros(2), 0.5)
    np.testing.assert_allclose(found.value, [0.25, 0.0], rtol=1e-14)


def test_small_residuals_of_long_rows_are_clipped():
    # Squares of these residuals underflow in float32, their products with the rows do not.
    features = np.array([[1e30, 0.0], [0.0, 0.0]], "f4")
    problem = build("multinomial", features, [0, 0])
    x = np.zeros(problem.dim, "f4")
    x[0] = 6e-29  # a score of 60: residuals of e^-60 for the two other classes
    found, _ = clipped_term(problem, x, 0.5)
    assert np.linalg.norm(found.value) == pytest.approx(0.25, rel=1e-6)


# ---------------------------------------------------------------- term and rest


@given(
    loss=st.sampled_from(LOSSES),
    mode=st.sampled_from(MODES),
    dtype=st.sampled_from(DTYPES),
    examples=st.integers(1, 600),
    batch=st.booleans(),
    clip=st.floats(1e-3, 10.0),
    weight=st.sampled_from([0.0, 0.3, 1e6]),
    seed=st.integers(0, 10**6),
)
@settings(deadline=None, max_examples=60)
def test_the_clipped_gradient_is_the_term_and_the_regulariser(
    *, loss, mode, dtype, examples, batch, clip, weight, seed
):
    case = random_case(loss, seed=seed, examples=examples, dtype=dtype, weight=weight, divisor=77.0)
    clipping, norm = mode
    problem, x = case.problem, case.point
    rows = np.arange(0, examples, 2) if batch else None
    term, rest = clipped_term(problem, x, clip, norm=norm, rows=rows, clipping=clipping)
    assert term.norm == norm
    assert rest is not None
    np.testing.assert_array_equal(rest, make_regularizer("l2", weight).gradient(x))
    if clipping == "batch":
        whole = problem.batch_clipped_gradient(x, clip, rows)
    else:
        whole = problem.clipped_gradient(x, clip, norm, rows)
    assert whole.dtype == dtype
    np.testing.assert_array_equal(whole, term.value.astype(dtype) + rest)


@pytest.mark.parametrize("loss", LOSSES)
def test_float32_sums_of_many_blocks_agree_with_float64(loss):
    for examples in (255, 256, 257, 1024, 1100):
        case = random_case(loss, examples=examples, dtype=np.float32)
        wide = build(loss, case.features, case.targets)
        for norm in ("l1", "l2"):
            found, _ = clipped_term(case.problem, case.point, 0.4, norm=norm)
            expected, _ = clipped_term(wide, case.point.astype("f8"), 0.4, norm=norm)
            np.testing.assert_allclose(found.value, expected.value, atol=3e-7)


class Foreign:
    """A problem that knows its clipped gradient and nothing else."""

    dim, num_examples, dtype = 2, 4, np.dtype("f8")

    def __init__(self, answer: list[float]) -> None:
        self.answer = np.array(answer)
        self.asked: list[Any] = []

    def value(self, x: Any) -> float:
        return 0.0

    def gradient(self, x: Any, rows: Any = None) -> Any:
        return self.answer

    def clipped_gradient(self, x: Any, clip: float, norm: Any = "l2", rows: Any = None) -> Any:
        self.asked.append((clip, norm, rows))
        return self.answer


def test_a_foreign_problem_is_taken_at_its_word():
    problem = Foreign([1.0, 2.0])
    term, rest = clipped_term(problem, np.zeros(2), 0.5, norm="l1")
    assert rest is None
    np.testing.assert_array_equal(term.value, [1.0, 2.0])
    assert term.sensitivity == clipped_sensitivity(0.5, divisor=4, num_examples=4)
    assert problem.asked == [(0.5, "l1", None)]
    problem.divisor = 10.0  # type: ignore[attr-defined]
    again, _ = clipped_term(problem, np.zeros(2), 0.5, norm="l1", rows=np.array([3]))
    assert again.sensitivity == clipped_sensitivity(0.5, divisor=10, num_examples=4, batch_size=1)
    with pytest.raises(ValueError, match="clipping = 'batch': this problem cannot clip"):
        clipped_term(problem, np.zeros(2), 0.5, clipping="batch")
    for wrong in ([1.0, math.nan], [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match="clipped_gradient must give 2 finite numbers"):
            clipped_term(Foreign(wrong), np.zeros(2), 0.5)


def test_settings_without_a_bound_are_refused():
    case = random_case("ridge")
    with pytest.raises(ValueError, match="rows holds an example twice"):
        clipped_term(case.problem, case.point, 1.0, rows=np.array([1, 2, 1]))
    with pytest.raises(ValueError, match="clipping = 'batch' needs norm = 'l2'"):
        clipped_term(case.problem, case.point, 1.0, norm="l1", clipping="batch")
    with pytest.raises(ValueError, match="norm must be l1 or l2, found 'max'"):
        clipped_term(case.problem, case.point, 1.0, norm="max")  # type: ignore[arg-type]


# ---------------------------------------------------------------- another divisor


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_another_divisor_gives_the_problem_built_with_it(loss, dtype):
    case = random_case(loss, dtype=dtype)
    before: LinearModel[Any] = case.problem
    assert before.moduli.smoothness > 0  # computed, and kept by the instance
    before.clipped_gradient(case.point, 0.4)
    after = before.with_divisor(50)
    regularizer = make_regularizer("l2", 0.3)
    built = build(
        loss, case.features.astype(dtype), case.targets, regularizer=regularizer, divisor=50.0
    )
    assert (after.divisor, before.divisor) == (50.0, 12.0)
    assert after.moduli == built.moduli != before.moduli
    assert after.features is before.features
    rows = np.array([1, 5])
    for name, arguments in (
        ("gradient", (rows,)),
        ("clipped_gradient", (0.4, "l1")),
        ("batch_clipped_gradient", (0.4,)),
        ("value", ()),
    ):
        found = getattr(after, name)(case.point, *arguments)
        np.testing.assert_array_equal(found, getattr(built, name)(case.point, *arguments))
    assert type(after.with_rows_within(0.1)) is type(before)
    assert after.with_rows_within(0.1).divisor == 50.0
    with pytest.raises(ValueError, match="divisor must be finite and positive, found 0"):
        before.with_divisor(0)


# ---------------------------------------------------------------- norms and rows


@given(
    rows=st.lists(
        st.lists(
            st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(extreme(np.float64)),
            min_size=3,
            max_size=3,
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(deadline=None, max_examples=100)
def test_row_norms_neither_overflow_nor_underflow(rows):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {norm: row_norms(np.array(rows), norm) for norm in ("l1", "l2")}
    np.testing.assert_allclose(found["l2"], [math.hypot(*row) for row in rows], rtol=1e-14)
    sums = []
    for row in rows:
        try:
            sums.append(math.fsum(map(abs, row)))
        except OverflowError:
            sums.append(math.inf)
    np.testing.assert_allclose(found["l1"], sums, rtol=1e-14)


@given(data=st.data(), dtype=st.sampled_from(DTYPES), radius=st.sampled_from([1e-25, 1.0, 1e30]))
@settings(deadline=None, max_examples=100)
def test_rows_at_the_edge_of_the_dtype_come_within_the_radius(data, dtype, radius):
    edges = st.sampled_from(extreme(dtype))
    features = np.array(
        data.draw(st.lists(st.lists(edges, min_size=4, max_size=4), min_size=1, max_size=3)), dtype
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clipped = clip_rows(features, radius)
    assert clipped.dtype == dtype
    for before, after in zip(features.tolist(), clipped.tolist(), strict=True):
        largest = max(map(abs, before)) or 1.0
        length = math.hypot(*(entry / largest for entry in before))  # times largest
        if math.hypot(*before) <= radius:
            assert before == after
        else:
            assert math.hypot(*after) <= radius
            expected = [radius * (entry / largest) / length for entry in before]
            np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-6 * radius)


def test_rows_that_are_not_finite_or_radii_without_rows_are_refused():
    with pytest.raises(ValueError, match="features must be finite, found inf in row 0, column 1"):
        clip_rows([[1.0, math.inf]], 1.0)
    with pytest.raises(ValueError, match="radius is 1e-40: too small for rows in float32"):
        clip_rows(np.ones((1, 1), "f4"), 1e-40)


def test_a_float32_target_that_overflows_is_refused():
    with pytest.raises(ValueError, match=r"targets must be finite in float32, found 1e[+]300"):
        RidgeRegression(np.ones((1, 1), "f4"), [1e300])


# ---------------------------------------------------------------- explicit gradients


@given(
    rows=st.lists(
        st.lists(
            st.floats() | st.sampled_from([*extreme(np.float64), math.nan, math.inf]),
            min_size=2,
            max_size=2,
        ),
        min_size=1,
        max_size=5,
    ),
    norm=st.sampled_from(["l1", "l2"]),
    clip=st.sampled_from([1e-9, 1.0, 1e9]),
)
@settings(deadline=None, max_examples=100)
def test_any_row_adds_at_most_a_clip_to_an_explicit_sum(rows, norm, clip):
    gradients = np.array(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total = clipped_sum(gradients, clip, norm)
        for i in range(len(rows)):
            others = clipped_sum(np.delete(gradients, i, axis=0), clip, norm)
            moved = np.linalg.norm(total - others, ORDER[norm])
            assert moved <= clip * (1 + 1e-12)
            if not np.isfinite(rows[i]).all():
                np.testing.assert_allclose(total, others, rtol=1e-12, atol=1e-12 * clip)


@given(
    vector=st.lists(st.floats() | st.sampled_from(extreme(np.float64)), min_size=1, max_size=4),
    clip=st.sampled_from([1e-9, 1.0, 1e9]),
)
@settings(deadline=None, max_examples=100)
def test_a_whole_vector_comes_within_the_clip(vector, clip):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = clipped_whole(np.array(vector), clip)
    assert np.linalg.norm(found) <= clip * (1 + 1e-12)
    if not np.isfinite(vector).all():
        assert not found.any()
    elif math.hypot(*vector) <= clip:
        np.testing.assert_array_equal(found, vector)
    elif math.hypot(*vector) < 1e200 * clip:
        expected = np.array(vector) * (clip / math.hypot(*vector))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-300)
