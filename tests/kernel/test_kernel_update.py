"""Uploads that are clipped and noised as a whole: what moves them, and that nothing else leaves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privet.agents.adapters import CallableProblem
from privet.client_apps import Half, Local, LocalTask, Streams
from privet.kernel import (
    RELATIONS,
    Facts,
    Moduli,
    NoiseError,
    Perturber,
    Records,
    RecordsError,
    Relation,
    Release,
    SeededNoise,
    shared_spacing,
)
from privet.kernel.door import Held
from privet.kernel.perturb import Perturbers
from privet.kernel.programs import update as module
from privet.kernel.programs.gradients import Gradients
from privet.kernel.programs.update import ClippedUpdate
from privet.kernel.streams import StackedStreams
from privet.problems import BinaryLogistic, RidgeRegression, public_facts
from privet.problems.stacks import Stack
from support.adversary import Case, climb

ROUNDING = 1e-9
TIGHT = 0.98
CLIP = 0.8
Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Uploading(Half):
    """A half that sends x and the noised update of a few steps from there."""

    name: ClassVar[str] = "uploading"

    clip: float = CLIP
    solver: str = "gd"
    step_size: float = 0.3
    steps: int = 4
    rho: float = 5.0
    batch_size: int = 0
    tolerance: float = 0.0
    relation: Relation = "replace-one"

    @property
    def private(self) -> bool:
        return True

    @property
    def clipping(self) -> Any:
        return "update"

    @cached_property
    def program(self) -> ClippedUpdate:
        return ClippedUpdate(self.clip, self.relation)

    def noised_release(self, facts: Facts, round_: int) -> Release:
        return self.program.release(facts, 0.3, "uploading noised updates")

    def task(self, state: Any, broadcast: Any, records: Records, streams: Streams) -> LocalTask:
        x = broadcast["x"]
        return LocalTask(
            *(x, self.step_size, self.steps, x, self.rho),
            solver=self.solver,
            gradients=Gradients(self.batch_size),
            moduli=Moduli(0.1, 3.0),
            tolerance=self.tolerance,
        )

    def local_update(self, state: Any, broadcast: Any, records: Records, streams: Streams) -> Local:
        task = self.task(state, broadcast, records, streams)
        moved = broadcast["x"] + records.update(self.program, task, streams)
        return Local({}, {"x": moved}, (moved,))


# ------------------------------------------------------------------ what neighbours move


AGENT: dict[str, Any] = {"relation": "replace-agent", "examples": 3}


def uploading(**options: Any) -> Case:
    names = Case.__dataclass_fields__
    case = {key: value for key, value in options.items() if key in names}
    own = {k: v for k, v in options.items() if k not in names or k == "relation"}
    return Case(Uploading(**own), **case)


CASES = {
    "gd": uploading(),
    "float32": uploading(dtype="float32", loss="logistic"),
    "batches": uploading(solver="sgd", batch_size=2, examples=4, loss="multinomial", seed=1),
    "agd": uploading(solver="agd", loss="logistic"),
    "until the slope is small": uploading(tolerance=1e-2, steps=20, step_size=0.05),
    "add-remove": uploading(relation="add-remove", loss="one-class-logistic", dtype="float32"),
    "agent": uploading(**AGENT),
    "agent in batches of float32": uploading(
        solver="sgd", batch_size=2, dtype="float32", loss="logistic", seed=1, **AGENT
    ),
    "overflow": uploading(step_size=1e3, steps=60, rho=1e300),
    "overflow of an agent": uploading(
        step_size=1e3, steps=8, rho=1e300, dtype="float32", loss="multinomial", **AGENT
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_no_pair_of_neighbours_exceeds_the_charge(name: str) -> None:
    case = CASES[name]
    found = climb(case.adaptive_gap, case.size, seed=len(name))
    assert TIGHT <= found <= 1 + ROUNDING


def longer_by_three_hundredths(patch: Patch) -> None:
    patch.setattr(module, "_WITHIN", 1.03)


def every_entry_on_its_own(patch: Patch) -> None:
    patch.setattr(module, "clipped_whole", lambda vector, clip: np.clip(vector, -clip, clip))


def the_steps_alone(patch: Patch) -> None:
    """The end is within the clip of 0, and not of the start."""
    patch.setattr(module, "_clipped", lambda end, start, clip: np.clip(end, -2, 2) - 0 * start)


@pytest.mark.parametrize(
    "spoil", [longer_by_three_hundredths, every_entry_on_its_own, the_steps_alone]
)
@pytest.mark.parametrize("name", ["gd", "agent"])
def test_the_search_finds_a_wrong_clip(
    spoil: Callable[[Patch], None], name: str, monkeypatch: Patch
) -> None:
    spoil(monkeypatch)
    case = CASES[name]
    assert climb(case.adaptive_gap, case.size, seed=len(name)) > 1 + ROUNDING


# ------------------------------------------------------------------ the norm


NUMBERS = st.one_of(
    st.floats(width=64),
    st.floats(-1e3, 1e3),
    st.sampled_from([0.0, 5e-324, 1e-160, 1e154, 1.7e308, float("inf"), float("nan")]),
)


@given(
    st.lists(NUMBERS, min_size=1, max_size=40),
    st.one_of(st.floats(1e-100, 1e100), st.floats(1e-3, 1e3)),
)
def test_no_norm_is_above_the_clip(numbers: list[float], clip: float) -> None:
    end = np.array(numbers)
    found = module._clipped(end, np.zeros_like(end), clip)
    squares = sum(Fraction(entry) ** 2 for entry in found.tolist())
    assert squares <= Fraction(clip) ** 2
    if np.isfinite(end).all() and squares:
        largest = np.abs(end).argmax()
        # The smallest of all numbers have few digits.
        fine = 2.0**-1073 / abs(found[largest])
        assert np.allclose(found / found[largest], end / end[largest], rtol=1e-12, atol=fine)
    if not np.isfinite(end).all():
        assert not found.any()


@given(st.integers(0, 1000), st.sampled_from([1, 3, 1000]))
def test_what_is_longer_has_the_norm_of_the_clip(seed: int, dim: int) -> None:
    vector = np.random.default_rng(seed).standard_normal(dim) * 1e5
    found = module._clipped(vector, np.zeros(dim), CLIP)
    assert np.linalg.norm(found) == pytest.approx(CLIP, rel=2e-6)


# ------------------------------------------------------------------ charges


def ridge(seed: int = 0, dtype: str = "float64", scale: float = 1.0) -> RidgeRegression:
    rng = np.random.default_rng(seed)
    return RidgeRegression((scale * rng.standard_normal((6, 3))).astype(dtype), np.arange(6.0))


def perturber(problem: Any, release: Release, seed: int = 0) -> Perturber:
    return Perturber(release, SeededNoise(seed), public_facts(problem))


PROGRAM = ClippedUpdate(CLIP)
FACTS = Facts(6, 6.0, 3)
CHARGED = PROGRAM.release(FACTS, 0.5, "updates")
STREAMS = Streams(3, "0", 1)
TASK = LocalTask(np.ones(3), 0.1, 5)


@pytest.mark.parametrize("relation", RELATIONS)
def test_one_draw_of_twice_the_clip_is_charged(relation: Relation) -> None:
    release = ClippedUpdate(CLIP, relation).release(FACTS, 0.5, "updates")
    assert release == Release(
        "gaussian", scale=0.5, sensitivity=2 * CLIP, relation=relation, what="updates"
    )
    assert release.draws == 1
    problem = ridge()
    noise = perturber(problem, release)
    Records(Held(problem), noise).update(ClippedUpdate(CLIP, relation), TASK, STREAMS)
    noise.settle()
    with pytest.raises(NoiseError, match="more than the 1 draws"):
        Records(Held(problem), noise).update(ClippedUpdate(CLIP, relation), TASK, STREAMS)


@pytest.mark.parametrize("clip", [0.0, float("nan")])
def test_nothing_can_be_charged_without_a_clip(clip: float) -> None:
    with pytest.raises(ValueError, match="release field 'sensitivity' is"):
        ClippedUpdate(clip).release(FACTS, 0.5, "updates")
    problem = ridge()
    with pytest.raises(NoiseError, match="charged for an update without a clip"):
        Records(Held(problem), perturber(problem, CHARGED)).update(
            ClippedUpdate(clip), TASK, STREAMS
        )


def test_a_larger_clip_than_was_charged_is_refused() -> None:
    problem = ridge()
    with pytest.raises(NoiseError, match=r"moves by 1\.616 in l2, more than the 1\.6"):
        Records(Held(problem), perturber(problem, CHARGED)).update(
            ClippedUpdate(1.01 * CLIP), TASK, STREAMS
        )


def test_without_a_charge_it_is_what_the_steps_make() -> None:
    problem = ridge()
    records = Records(Held(problem), perturber(problem, Release("none")))
    moved = records.walk(TASK, STREAMS).end - TASK.start
    assert np.linalg.norm(moved) > 0.1
    assert records.update(ClippedUpdate(), TASK, STREAMS) == pytest.approx(moved, abs=0)
    short = records.update(ClippedUpdate(0.1), TASK, STREAMS)
    assert short == pytest.approx(0.1 * moved / np.linalg.norm(moved), rel=2e-6)
    assert np.array_equal(records.update(ClippedUpdate(1e3), TASK, STREAMS), moved)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_noise_is_added_to_the_clipped_difference(dtype: str) -> None:
    """Exactly the draw of the source, up to the grid."""
    problem = ridge(dtype=dtype)
    task = TASK._replace(start=np.ones(3, dtype))
    plain = Records(Held(problem), perturber(problem, Release("none")))
    noised = Records(Held(problem), perturber(problem, CHARGED)).update(PROGRAM, task, STREAMS)
    drawn = SeededNoise(0).gaussian((1, 3), 0.5)[0]
    assert noised.dtype == dtype
    assert noised - drawn == pytest.approx(plain.update(PROGRAM, task, STREAMS), abs=1e-3)


def test_shared_noise_stays_on_its_grid_until_it_is_summed() -> None:
    problem = ridge(dtype="float32")
    facts = replace(public_facts(problem), agents=5, colluders=1)
    noise = Perturber(replace(CHARGED, agents=5, colluders=1), SeededNoise(0), facts)
    task = TASK._replace(start=np.ones(3, np.float32))
    sent = Records(Held(problem), noise).update(PROGRAM, task, STREAMS)
    units = sent / shared_spacing(0.5, 3)
    assert sent.dtype == np.float64
    assert np.array_equal(units, np.rint(units))


# ------------------------------------------------------------------ what does not leave


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (TASK._replace(solver="noisy-gd", noise_variance=0.1), "take no noise of their own"),
        (TASK._replace(gradients=Gradients(noise_scale=0.1)), "take no noise of their own"),
    ],
)
def test_noise_that_nobody_charged_is_refused(task: LocalTask, says: str) -> None:
    problem = ridge()
    with pytest.raises(NoiseError, match=says):
        Records(Held(problem), perturber(problem, CHARGED)).update(PROGRAM, task, STREAMS)


@pytest.mark.parametrize("need", ["mean_gradient", "end_gradient"])
def test_nothing_else_of_the_walk_can_be_asked_for(need: Any) -> None:
    problem = ridge()
    with pytest.raises(RecordsError, match=f"does not supply {need}"):
        Records(Held(problem), perturber(problem, CHARGED)).update(
            PROGRAM, TASK._replace(needs=(need,)), STREAMS
        )


class Spy:
    """An entry of an array that keeps what it is added to."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __radd__(self, other: Any) -> Any:
        self.seen.append(other)
        return other

    __add__ = __rmul__ = __mul__ = __rsub__ = __sub__ = __radd__


@pytest.mark.parametrize("field", ["start", "center", "shift", "step_size", "rho"])
def test_an_array_of_objects_sees_no_iterate(field: str) -> None:
    problem, spy = ridge(), Spy()
    spies = np.array([spy, spy, spy], object)
    task = TASK._replace(**{field: spies})  # type: ignore[arg-type]
    with pytest.raises((NoiseError, RecordsError), match=r"in object|found ndarray"):
        Records(Held(problem), perturber(problem, CHARGED)).update(PROGRAM, task, STREAMS)
    assert not spy.seen


@pytest.mark.parametrize(
    "changes",
    [
        {"moduli": Moduli(Spy(), 1.0), "solver": "agd"},  # type: ignore[arg-type]
        {"gradients": Gradients(batch_size=np.array([Spy()], object))},  # type: ignore[arg-type]
        {"needs": (Spy(),)},
    ],
)
def test_nor_does_an_object_inside_a_program(changes: dict[str, Any]) -> None:
    problem = ridge()
    with pytest.raises(NoiseError, match="takes numbers, texts and vectors"):
        Records(Held(problem), perturber(problem, CHARGED)).update(
            PROGRAM, TASK._replace(**changes), STREAMS
        )


# ------------------------------------------------------------------ loops of the user's


def charged_records() -> Records:
    problem = ridge()
    return Records(Held(problem), perturber(problem, CHARGED))


@pytest.mark.parametrize("end", [1.01, 1e9, -1e300, float("nan"), float("inf")])
def test_wherever_a_loop_ends_one_noised_difference_within_the_clip_leaves(end: float) -> None:
    records, start = charged_records(), np.ones(3)
    noised = records.difference(PROGRAM, start, np.full(3, end))
    drawn = SeededNoise(0).gaussian((1, 3), 0.5)[0]
    under = noised - drawn
    length = {1.01: 0.01 * math.sqrt(3), 1e9: CLIP}.get(end, 0.0)  # squares of 1e300 overflow
    assert np.linalg.norm(under) == pytest.approx(length, abs=1e-4)  # the noise's grid
    records.settle()
    with pytest.raises(NoiseError, match="more than the 1 draws"):
        records.difference(PROGRAM, start, start)


def test_the_difference_of_a_loop_is_held_to_the_charge() -> None:
    class Larger(ClippedUpdate):
        sensitivity = 2 * CLIP  # type: ignore[assignment]

    start, spies = np.ones(3), np.array([Spy(), Spy(), Spy()], object)
    refused: list[tuple[Any, Any, Any, str]] = [
        (ClippedUpdate(1.01 * CLIP), start, start, r"moves by 1\.616 in l2, more than the 1\.6"),
        (Larger(9.0), start, start, "takes ClippedUpdate"),
        (ClippedUpdate(CLIP, "add-remove"), start, start, "relation = 'add-remove' was asked for"),
        (PROGRAM, start, spies, "in object"),
        (PROGRAM, spies, start, "in object"),
        (PROGRAM, start, start.astype(np.float32), "vector in float32"),
        (PROGRAM, start, np.ones(4), "3"),
    ]
    for program, begin, end, said in refused:
        records = charged_records()
        with pytest.raises((NoiseError, RecordsError), match=said):
            records.difference(program, begin, end)
    assert not any(spy.seen for spy in spies)
    problem = ridge()
    other = Records(Held(problem), perturber(problem, replace(CHARGED, program="gradients")))
    with pytest.raises(NoiseError, match="program 'update' was asked for"):
        other.difference(PROGRAM, start, start)


def failing(beyond: float, pull: float) -> CallableProblem:
    """Return a problem whose gradient, ``pull`` everywhere, fails where x is above ``beyond``."""

    def gradient(x: NDArray[Any]) -> NDArray[Any]:
        if x[0] > beyond or not np.isfinite(x).all():
            raise ZeroDivisionError(f"record {pull}")
        return np.array([-pull, 0.0])

    return CallableProblem(lambda x: 0.0, gradient, 2, 4)


FROM_ZERO = LocalTask(np.zeros(2), 1.0, 6)


def test_a_failure_along_the_way_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Which iterates come about depends on the records, and so would the error."""
    drawn = SeededNoise(0).gaussian((1, 2), 0.5)[0]
    for pull, moved in ((0.1, 0.6), (5.0, 0.0), (1e308, 0.0)):
        problem = failing(7.0, pull)
        noise = perturber(problem, CHARGED)
        sent = Records(Held(problem), noise).update(PROGRAM, FROM_ZERO, STREAMS)
        assert sent - drawn == pytest.approx([moved, 0.0], abs=1e-3)
        noise.settle()
    assert "ZeroDivisionError" in caplog.text
    assert "record" not in caplog.text


def test_a_problem_that_fails_at_the_start_says_so() -> None:
    problem = failing(-1.0, 1.0)
    with pytest.raises(ZeroDivisionError):
        Records(Held(problem), perturber(problem, CHARGED)).update(PROGRAM, FROM_ZERO, STREAMS)


def test_without_a_charge_a_failure_is_an_error() -> None:
    problem = failing(7.0, 5.0)
    with pytest.raises(ZeroDivisionError):
        Records(Held(problem), perturber(problem, Release("none"))).update(
            PROGRAM, FROM_ZERO, STREAMS
        )


def test_steps_that_blow_up_are_no_error_and_no_warning() -> None:
    problem = ridge(scale=1e200)
    noise = perturber(problem, CHARGED)
    sent = Records(Held(problem), noise).update(PROGRAM, TASK, STREAMS)
    drawn = SeededNoise(0).gaussian((1, 3), 0.5)[0]
    assert sent == pytest.approx(drawn, abs=1e-3)


@pytest.mark.parametrize("clip", [0.0, CLIP])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_without_a_charge_steps_that_blow_up_show(clip: float) -> None:
    problem = ridge(scale=1e200)
    records = Records(Held(problem), perturber(problem, Release("none")))
    assert not np.isfinite(records.update(ClippedUpdate(clip), TASK, STREAMS)).all()


def test_a_problem_that_cannot_clip_will_do() -> None:
    problem = failing(7.0, 0.1)
    assert not public_facts(problem).clips
    release = Uploading().release(public_facts(problem), 1)
    sent = Uploading().local_update(
        {}, {"x": np.zeros(2)}, Records(Held(problem), perturber(problem, release)), STREAMS
    )
    assert np.isfinite(sent.upload["x"]).all()


# ------------------------------------------------------------------ stacks


@pytest.mark.parametrize("options", [{}, {"solver": "sgd", "gradients": Gradients(2)}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_stack_has_the_bits_of_each_alone(options: dict[str, Any], dtype: str) -> None:
    """The second agent's steps are longer than the clip, the third's blow up."""
    problems = [ridge(seed, dtype, scale) for seed, scale in ((0, 0.1), (1, 1.0), (2, 1e30))]
    names = ("a", "b", "c")
    starts = np.random.default_rng(1).standard_normal((3, 3)).astype(dtype)
    task = TASK._replace(**options, center=np.zeros((3, 3), dtype), rho=3.0, steps=7)
    noise = Perturbers(CHARGED, 3, lambda: [SeededNoise(seed) for seed in range(3)], FACTS)
    streams = StackedStreams(3, "", 1, names)
    records = Records(Held(Stack(problems)), noise)  # type: ignore[arg-type]
    together = records.update(PROGRAM, task._replace(start=starts), streams)
    noise.settle()
    for seed, (problem, row, name) in enumerate(zip(problems, together, names, strict=True)):
        own = replace(FACTS, dtype=dtype)
        alone = Records(Held(problem), Perturber(CHARGED, SeededNoise(seed), own)).update(
            PROGRAM,
            task._replace(start=starts[seed], center=np.zeros(3, dtype)),
            Streams(3, name, 1),
        )
        assert alone.dtype == row.dtype == dtype
        assert alone.tobytes() == row.tobytes()


def test_a_stack_refuses_steps_that_end_one_by_one() -> None:
    stack: Any = Stack([ridge(0), ridge(1)])
    noise = Perturbers(CHARGED, 2, lambda: [SeededNoise(0), SeededNoise(1)], FACTS)
    task = TASK._replace(start=np.zeros((2, 3)), tolerance=0.1)
    with pytest.raises(RecordsError, match="an update of a stack takes no tolerance"):
        Records(Held(stack), noise).update(PROGRAM, task, StackedStreams(3, "", 1, ("a", "b")))


def test_a_start_of_another_dtype_is_refused() -> None:
    problem = BinaryLogistic(np.ones((2, 3), np.float32), np.array([1.0, -1.0]))
    noise = perturber(problem, CHARGED)
    with pytest.raises(RecordsError, match="vector in float64, expected float32"):
        Records(Held(problem), noise).update(PROGRAM, TASK, STREAMS)
