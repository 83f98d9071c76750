"""Halves that mean harm learn of an agent's records what was charged, and nothing beside it.

The half runs here, and the records, the problem and the noise in another process: requests and
answers are all that crosses, so that this needs no trust in names that begin with an underscore.
On two neighbouring data sets the same requests are made, adaptively. What the noise gives back on
the first is given back on the second. Then all answers and refusals must be the same to the bit,
which makes them functions of the released values alone, and each value that was handed to the noise
may differ by what was charged. Of hidden steps, whose released values are not all seen, the draws
are the same instead, and the answer may differ by what the contraction leaves.

Hostile code within one interpreter is out of scope. It can read any object's private attributes, a
traceback's local variables or the collector's list of objects, and replace the noise itself; no
Python class keeps that from it. A half is code that a node's operator has installed. What the door
does keep, even in one process, is that nothing of another class than the plain ones is ever
computed with or asked for rows, which the last tests here hold it to.

Nor is noise that agents share out searched: what hides a record is then the sum over all agents, so
a half must upload the noised value as it is (`Half.noise_sharing`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from privet.agents.guard import Received
from privet.core import algorithms
from privet.kernel import Moduli, NoCertificateError, NoiseError, Records, RecordsError, UnNoised
from privet.kernel.events import GRID, geometric
from privet.kernel.programs.drift import Drift
from privet.kernel.programs.gradients import Gradients
from privet.kernel.programs.inexact import Inexact
from privet.kernel.programs.steps import LocalTask
from privet.kernel.streams import StackedStreams, Streams
from privet.problems import public_facts
from privet.testing.subject import Subject
from privet.wire import unpack
from privet.wire.contract import decode_settings
from support.neighbours import CHARGES, COUNT, LEAKS, RECORDS, STREAMS, of_algorithm, problem, side
from support.remote_records import (
    Earlier,
    RemoteRecords,
    RemoteUnNoised,
    Room,
    Uncrossable,
    packed,
    surface,
    unpacked,
)

PRIVATE = {"fed-plt": {"local-solver": "noisy-gd"}}
SETTINGS = {"gfl": {"units": 2}}
Requests = list[tuple[str, tuple[Any, ...]]]


@pytest.fixture(scope="module")
def room() -> Iterator[Room]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        made = Room()
    yield made
    made.close()
    with pytest.raises(ValueError, match="closed"):
        _ = made.pid


# ------------------------------------------------------------------ honest halves


def test_the_half_has_the_whole_public_surface_and_nothing_else(room: Room) -> None:
    assert surface(RemoteRecords) == surface(Records)
    assert surface(RemoteUnNoised) == surface(UnNoised)
    room.hold("own", side, "gradients", "ordinary", 0)
    records, charge = room.records("own"), CHARGES["gradients"]
    for name in ("_problem", "_noise", "_row_norm"):
        with pytest.raises(AttributeError):
            getattr(records, name)
    assert (records.facts, records.release) == (charge.facts, charge.release)
    assert (records.dim, records.dtype, records.charged) == (2, np.float64, True)
    with pytest.raises(NoiseError, match="records without noise were asked for"):
        _ = records.un_noised


@pytest.mark.parametrize("private", [True, False], ids=["private", "un-noised"])
@pytest.mark.parametrize("name", sorted(algorithms()))
def test_every_half_plays_its_rounds_from_another_process(
    name: str, private: bool, room: Room
) -> None:
    subject = Subject(name, SETTINGS.get(name, {}), PRIVATE.get(name, {}), engines=("inline",))
    if private and not subject.noise_key:
        return
    played = subject.play(
        subject.private_settings if private else subject.settings, rounds=2, keeps_states=True
    )
    state: Any = None
    rounds = 0
    for agent, asked, _ in played.grid.exchanges:
        if agent != subject.names[0]:
            continue
        told, broadcast = decode_settings(asked.settings), Received(asked.broadcast())
        half = subject.registered.load_agent().from_settings(told)
        facts = public_facts(subject.problems[0])
        if state is None:
            state = (
                unpack(asked.recovery) if asked.recovery else dict(half.restart(broadcast, facts))
            )
        room.hold("own", of_algorithm, name, dict(told), asked.round)
        streams = Streams(int(told.get("seed", 0)), agent, asked.round)
        remote, local = (
            half.local_update(Received(state), broadcast, records, streams)
            for records in (room.records("own"), of_algorithm(name, dict(told), asked.round))
        )
        assert half.private is private
        (said,), _ = room.converse("own", [("dim", ())])
        assert said.taken == half.release(facts, asked.round).draws
        for here, there in zip(local[:2], remote[:2], strict=True):
            assert {key: _bits(value) for key, value in here.items()} == {
                key: _bits(value) for key, value in there.items()
            }
        assert [*map(_bits, local.agreed)] == [*map(_bits, remote.agreed)]
        state, rounds = local.state, rounds + 1
    assert rounds == 2


def _bits(array: Any) -> tuple[Any, ...]:
    array = np.asarray(array)
    return array.dtype.str, array.shape, array.tobytes()


# ------------------------------------------------------------------ what is looked for


def findings(
    room: Room, name: str, record: str, requests: Requests, *, leak: str = ""
) -> list[str]:
    """Return what the same requests tell of one record beyond what was charged."""
    charge = CHARGES[name]
    release, hidden = charge.release, charge.release.steps > 1
    room.hold("one", side, name, record, 0, leak=leak)
    first = {} if hidden else {"first": "one"}
    room.hold("two", side, name, record, 1, leak=leak, **first)
    one, made = room.converse("one", requests)
    two = room.again("two", made)
    found, seen, taken = [], 0, 0
    for number, (mine, other) in enumerate(zip(one, two, strict=True)):
        drawn, taken = mine.taken > taken, mine.taken
        seen += drawn and mine.error is None
        if hidden and drawn and mine.error is other.error is None:
            found += _apart(charge, unpacked(mine.answer), unpacked(other.answer))
        elif repr(mine) != repr(other):
            found.append(f"request {number} is answered {str(mine)[:90]} or {str(other)[:90]}")
    if taken > release.draws:
        found.append(f"{taken} draws of {release.draws}")
    if hidden and seen > release.count:
        found.append(f"{seen} iterates of hidden steps, {release.count} charged")
    order, most = (1 if release.norm == "l1" else 2), _moves(release)
    if not hidden:
        for mine, other in zip(*room.handed("one", "two"), strict=False):
            moved = float(np.linalg.norm(mine - other, order))
            if not moved <= most:
                found.append(f"a value moves by {moved:.6g}, {most:.6g} was charged")
    return found


def _moves(release: Any) -> float:
    """Return the change that one draw is charged for, its rounding included."""
    return float(release.sensitivity + min(release.sensitivity, release.scale) * GRID)


def _apart(charge: Any, mine: Any, other: Any) -> list[str]:
    """Return what is wrong with the ends of hidden steps with the same draws."""
    release = charge.release
    most = _moves(release) * geometric(release.contraction, release.steps)
    moved = float(np.linalg.norm(mine.end - other.end))
    found = [] if moved <= most else [f"hidden steps move by {moved:.6g}, charged {most:.6g}"]
    if repr(mine._replace(end=None)) != repr(other._replace(end=None)):
        found.append("hidden steps tell more than their end")
    return found


def test_what_is_charged_is_given_and_reached(room: Room) -> None:
    """The honest request of each charge is answered, and some record moves it as far."""
    for name, charge in CHARGES.items():
        moved = 0.0
        for record in RECORDS:
            assert findings(room, name, record, [(charge.method, charge.arguments)]) == []
            (said,), _ = room.converse("one", [("dim", ())])
            assert said.taken > 0
            order = 1 if charge.release.norm == "l1" else 2
            for pair in zip(*room.handed("one", "two"), strict=True):
                moved = max(moved, float(np.linalg.norm(np.subtract(*pair), order)))
        assert moved > 0.2 * charge.release.sensitivity, name


# ------------------------------------------------------------------ attacks by hand

ONE_STEP = LocalTask(np.full(2, 0.1), 0.2, 1, np.full(2, 0.2), 2.0, solver="noisy-gd")
TASK: LocalTask = CHARGES["gradients of the softmax"].arguments[0]
CLIPPED: Gradients = CHARGES["gradients"].program
SQUARE = np.full(2, 0.1)


def asked(name: str, **changes: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the request of a charge with fields of its program, or of a task, changed."""
    charge = CHARGES[name]
    first, *others = charge.arguments
    return charge.method, (_changed(first, changes), *others)


def _changed(program: Any, changes: dict[str, Any]) -> Any:
    """Return a program with those of the fields changed that it, or its gradients, have."""
    inner = getattr(program, "gradients", None)
    if type(inner) is Gradients:
        own = {key: value for key, value in changes.items() if key in Gradients.__slots__}
        changes = {"gradients": replace(inner, **own), **changes}
    if isinstance(program, LocalTask):
        return program._replace(**{k: v for k, v in changes.items() if k in LocalTask._fields})
    names = {each.name for each in fields(program)}
    return replace(program, **{key: value for key, value in changes.items() if key in names})


def _shifted(lam: float, *, rho: float, eta: float, **changes: Any) -> Any:
    """Return one inner step from 0 with output noise, to (lam - gradient) / (rho + 1 / eta)."""
    program = replace(CHARGES["output"].program, steps=1, **changes)
    return "inexact", (program, np.zeros(2), np.zeros(2), np.array([lam, 0.0]), rho, eta)


ATTACKS: dict[str, tuple[str, Requests]] = {
    "a solver without noise": (
        "gradients of the softmax",
        [("walk", (TASK._replace(solver="agd", needs=(), moduli=Moduli(0.1, 1.0)), STREAMS))],
    ),
    "the gradient at the end": (
        "gradients of the softmax", [asked("gradients of the softmax", needs=("end_gradient",))]),
    "inner steps without noise": ("objective", [asked("objective", perturbation="none")]),
    "inner steps of no kind": ("objective", [asked("objective", perturbation="")]),
    "inner steps without clip": ("objective", [asked("objective", clip=0.0)]),
    "the largest gradient": ("objective", [asked("objective", largest=1.0)]),
    "another relation": ("gradients", [asked("gradients", clip=1.6, relation="add-remove")]),
    "a record for an agent": (
        "replace-agent", [asked("replace-agent", clip=4.0, relation="replace-one")]),
    "another relation of inner steps": (
        "objective", [asked("objective", clip=1.6, relation="add-remove")]),
    "another relation of output noise": (
        "output", [asked("output", clip=1.6, relation="add-remove")]),
    "another relation of a drift": ("drift", [asked("drift", clip=1.6, relation="add-remove")]),
    "hidden steps one by one": (
        "hidden steps", [asked("hidden steps", steps=1)] * 3),
    "hidden steps that do not contract": ("hidden steps", [asked("hidden steps", rho=1e9)]),
    "hidden steps backwards": ("hidden steps", [asked("hidden steps", step_size=-5.0)]),
    "hidden steps of no size": ("hidden steps", [asked("hidden steps", step_size=math.nan)]),
    "gradients of hidden steps": ("hidden steps", [("gradient", (CLIPPED, SQUARE, STREAMS))] * 3),
    "a batch's gain for examples": (
        "drift",
        [("drift", (Drift(0.5, 1.2, 4, Gradients(clip=0.6), "batch"), np.zeros(2), np.zeros(2),
                    STREAMS))],
    ),
    "a batch where one comes or goes": (
        "add-remove", [asked("add-remove", clip=0.4, batch_size=2)] * 3),
    "as many rows as there are": (
        "add-remove",
        [asked("add-remove", batch_size=size, replace=True, clipping=clipping)
         for size, clipping in product((1, 2, 3, 4, 5, 6), ("example", "batch"))],
    ),
    "a clip at the limit": (
        "add-remove",
        [asked("add-remove", clip=0.8 * (1 + 1e-12) * (1 + step * 2.0**-52))
         for step in range(-24, 8)],
    ),
    "an example twice": (
        "mini-batches",
        [asked("mini-batches", replace=True, batch_size=size) for size in (1, 2, 3, 4, 5, 9)],
    ),
    "errors of shapes": (
        "add-remove",
        [("gradient", (replace(CLIPPED, relation="add-remove"), np.zeros(shape), STREAMS))
         for shape in ((3,), (1, 2), (2, 2), (5, 2), (2, 5), (), (0,))],
    ),
    "streams of many": (
        "mini-batches",
        [("walk", (CHARGES["mini-batches"].arguments[0], StackedStreams(3, "", 1, agents)))
         for agents in ((), ("0",), ("0", "1"), ("0", "1", "2", "3", "4"))],
    ),
    "a clip that grows": (
        "gradients", [asked("gradients", clip=clip) for clip in (0.8000001, 1.6, 1e300, math.inf)]),
    "after a refusal": (
        "gradients", [asked("gradients", clip=8.0), asked("gradients"), asked("gradients", clip=8),
                      asked("gradients"), asked("gradients"), asked("gradients")]),
    "steps until all is nearly still": (
        "gradients of the softmax",
        [asked("gradients of the softmax", tolerance=tolerance, steps=1) for tolerance in
         (1e-9, 0.3, 1e9)],
    ),
    "a step of no size": (
        "noisy steps",
        [asked("noisy steps", step_size=size) for size in
         (math.nan, math.inf, -math.inf, -0.2, 0.0, -0.0, 1e308, 5e-324)],
    ),
    "far numbers": (
        "gradients", [("gradient", (CLIPPED, np.array(x), STREAMS)) for x in
                      ([math.inf, 0.0], [math.nan, 1.0], [1e308, -1e308])]),
    "a ball whose norm overflows": (
        "output", [_shifted(1.34, rho=1e-154, eta=1e160, set="l2", set_radius=1.4e154)]),
    "a ball whose norm underflows": (
        "output", [_shifted(1.55, rho=1e162, eta=1.0, set="l2", set_radius=1e-165)]),
    "an iterate that overflows": (
        "output", [_shifted(3.6, rho=1e-308, eta=1e308, set="none")]),
    "far inner steps": (
        "output",
        [("inexact", (CHARGES["output"].program, SQUARE, SQUARE, SQUARE, rho, eta))
         for rho, eta in ((1e300, 1e300), (1e-300, 1e300), (1e-300, 1e-320), (math.nan, 1.0),
                          (-1.0, 0.4), (math.inf, 0.4), (0.0, 0.0))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_learns_nothing_that_was_not_charged(attack: str, room: Room) -> None:
    name, requests = ATTACKS[attack]
    for record in RECORDS:
        assert findings(room, name, record, requests) == [], record


# ------------------------------------------------------------------ attacks that are generated

NUMBERS = (
    0, 1, 2, 3, -1, 0.4, 0.8, 1.6, 4.0, -0.8, 1e-9, 1e300, -1e300, 5e-324, math.nan, math.inf,
    -math.inf, True, False, None, "1", "", 1 << 2000, np.float32(0.8), np.float64(0.8),
)  # fmt: skip
SIZES = (0, 1, 2, 3, 4, COUNT, COUNT + 1, -1, 2.0, True, math.nan, "2", None)
CHOICES: dict[str, tuple[Any, ...]] = {
    "batch_size": SIZES,
    "steps": (*SIZES, 7),
    "replace": (True, False, None, 2),
    "clipping": ("example", "batch", "none", "", None, 1.0),
    "relation": ("replace-one", "add-remove", "replace-agent", "", None),
    "solver": ("gd", "sgd", "agd", "noisy-gd", "", None),
    "needs": ((), ("mean_gradient",), ("end_gradient",), ("end",), (("end_gradient",),), None),
    "moduli": (Moduli(0.1, 1.0), Moduli(math.nan, -1.0), Moduli(np.zeros(2), np.zeros(2)), None),  # type: ignore[arg-type]
    "set": ("none", "box", "l2", "", None),
    "norm": ("l1", "l2", "", None),
    "perturbation": ("none", "objective", "output", "", None),
    "mechanism": ("gaussian", "laplace", "none", "", None),
    **dict.fromkeys(
        ("clip", "noise_scale", "step_size", "rho", "noise_variance", "tolerance", "set_radius",
         "scale", "largest"),
        NUMBERS,
    ),
}  # fmt: skip
STREAM_CHOICES = (
    STREAMS, Streams(0, "", -1), Streams(1 << 2000, "0", 1), StackedStreams(3, "0", 1, ("0",)),
    StackedStreams(3, "", 1, ("0", "1", "2")), Streams("x", 0.5, None), None, "",  # type: ignore[arg-type]
)  # fmt: skip
DTYPES = ("f8", "f8", "f8", "f4", "f2", "g", ">f8", "i8", "c16", "?", "U8", "M8[s]", "f8,f8")
SHAPES = ((), (0,), (1,), (2,), (3,), (4,), (1, 2), (2, 1), (2, 2), (COUNT,), (COUNT, 2))


def _array(value: float, shape: tuple[int, ...], dtype: str, view: int) -> Any:
    with np.errstate(all="ignore"):
        try:
            found = np.full(shape, value).astype(dtype)
        except (TypeError, ValueError):
            found = np.zeros(shape, dtype)
    if view == 1:
        return np.broadcast_to(found.reshape(-1)[0], shape) if found.size else found
    return found.T[::-1] if view == 2 and found.ndim else found


def vectors(name: str) -> st.SearchStrategy[Any]:
    """Return the strategy of arguments that should be vectors; most of them are."""
    charge = CHARGES[name]
    floats = st.sampled_from(
        [0.0, 0.1, -0.3, 1.0, 30.0, -1e9, 1e154, 1e308, math.nan, math.inf, -math.inf, 5e-324]
    )
    fitting = (
        st.builds(
            lambda values: np.resize(np.array(values), charge.facts.dim).astype(charge.dtype),
            st.lists(floats, min_size=1, max_size=2),
        )
        if charge.dtype == "float64"
        else st.builds(charge.vector, st.sampled_from([0.0, 0.1, -9.0]))
    )
    other = st.builds(
        _array, floats, st.sampled_from(SHAPES), st.sampled_from(DTYPES), st.integers(0, 2)
    )
    earlier = st.builds(
        Earlier,
        st.integers(0, 3),
        st.sampled_from([1.0, -1.0, 0.5, 1e300]),
        otherwise=st.just(charge.vector()),
    )
    return st.one_of(fitting, fitting, earlier, other, st.sampled_from([None, 0.0, (), ""]))


@st.composite
def request(draw: st.DrawFn, name: str) -> tuple[str, tuple[Any, ...]]:
    """Return a request of a charge's program, of which a few things are others."""
    charge = CHARGES[name]
    method, (first, *others) = charge.method, charge.arguments
    if draw(st.integers(0, 9)) == 0:
        method = draw(
            st.sampled_from(["un_noised.gradient", "un_noised.moduli", "un_noised.perturb"])
        )
        return method, {
            "un_noised.gradient": (charge.vector(),),
            "un_noised.moduli": (),
            "un_noised.perturb": (charge.vector(), 1.0),
        }[method]
    if draw(st.integers(0, 5)) == 0:
        method, (first, *others) = draw(
            st.sampled_from([(each.method, each.arguments) for each in CHARGES.values()])
        )
    keys = draw(st.lists(st.sampled_from(sorted(CHOICES)), max_size=3, unique=True))
    first = _changed(first, {key: draw(st.sampled_from(CHOICES[key])) for key in keys})
    if isinstance(first, LocalTask):
        for key in draw(st.lists(st.sampled_from(["start", "center", "shift"]), max_size=2)):
            first = first._replace(**{key: draw(vectors(name))})
    elif draw(st.integers(0, 19)) == 0:
        first = draw(st.sampled_from([None, 1.0, "gradients", (), LocalTask(SQUARE, 0.1, 1)]))
    for place, argument in enumerate(others):
        if draw(st.integers(0, 3)):
            continue
        if isinstance(argument, np.ndarray):
            others[place] = draw(vectors(name))
        elif isinstance(argument, LocalTask):
            changed = {key: draw(st.sampled_from(CHOICES[key])) for key in keys}
            others[place] = _changed(argument, {**changed, "start": draw(vectors(name))})
        else:
            choices = STREAM_CHOICES if isinstance(argument, Streams) else NUMBERS
            others[place] = draw(st.sampled_from(choices))
    return method, (first, *others)


def conversation(name: str) -> st.SearchStrategy[tuple[str, Requests]]:
    """Return the strategy of a record and of a few requests."""
    return st.tuples(st.sampled_from(RECORDS), st.lists(request(name), min_size=1, max_size=5))


def _search(room: Room, name: str, examples: int) -> None:
    answered = []

    @settings(
        max_examples=examples,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=(Phase.generate,),
    )
    @given(conversation(name))
    def look(found: tuple[str, Requests]) -> None:
        record, requests = found
        assert findings(room, name, record, requests) == []
        (said,), _ = room.converse("one", [("dim", ())])
        answered.append(said.taken > 0)

    look()
    assert sum(answered) > len(answered) / 20  # else only refusals were looked at


@pytest.mark.parametrize("name", CHARGES)
def test_no_conversation_learns_what_was_not_charged(name: str, room: Room) -> None:
    _search(room, name, 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHARGES)
def test_no_long_search_learns_what_was_not_charged(name: str, room: Room) -> None:
    _search(room, name, 3000)


@pytest.mark.parametrize("leak", LEAKS)
def test_the_search_finds_a_leak(leak: str, room: Room) -> None:
    found = find(
        conversation("gradients"),
        lambda asked: findings(room, "gradients", *asked, leak=leak) != [],
        settings=settings(
            max_examples=400, suppress_health_check=list(HealthCheck), database=None,
            phases=(Phase.generate,), derandomize=True,
        ),
    )  # fmt: skip
    record, requests = found
    assert findings(room, "gradients", record, requests) == []  # it is the leak's alone


# ------------------------------------------------------------------ objects, in one process


class Spy:
    """An object that keeps whatever it is computed with, whichever way."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def _keep(self, *arguments: Any, **options: Any) -> Any:
        self.kept += [each for each in (*arguments, *options.values()) if each is not self]
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = _keep
    __truediv__ = __rtruediv__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __abs__ = _keep
    __array_ufunc__ = __array_function__ = __array_wrap__ = __call__ = __getitem__ = _keep
    clip = oracle = rows = size = open = each = relation = _keep

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.kept.append("array")
        return np.zeros(2)

    def __float__(self) -> float:
        self.kept.append("float")
        return 0.1


class SpyArray(np.ndarray[Any, Any]):
    """An array that hands what it is computed with to its spy."""

    spy: Spy

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        self.spy._keep(*(each for each in inputs if each is not self))
        plain = [np.asarray(each) for each in inputs]
        return getattr(ufunc, method)(*plain)


class EqualText(str):
    """A text that is what it is compared with, but for the first time."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other != "end_gradient" or bool(self.__dict__.setdefault("asked", []).append(1))


class Number(float):
    """A number that is small when it is looked at and large when it is used."""

    def __le__(self, other: float) -> bool:
        return True

    __lt__ = __ge__ = __gt__ = __le__


class OwnStreams(Streams):
    """Streams that choose the rows."""

    def open(self, purpose: str) -> Any:
        return ChosenRows()


class ChosenRows:
    """Draws one example twice, by two of its indices."""

    def choice(self, count: int, size: int, **options: Any) -> Any:
        return np.array([0, -count])


class OwnGradients(Gradients):
    """Gradients that hand out the problem."""

    def oracle(self, problem: Any, *arguments: Any) -> Any:
        raise RecordsError(str(problem.features))


class OwnTask(LocalTask):
    """A task whose gradients are plain for those who look through its fields."""

    @property
    def gradients(self) -> Any:  # type: ignore[override]
        return OwnGradients()


class OwnDrift(Drift):
    """A drift with a gain of its own."""

    def gain(self, *arguments: Any) -> tuple[float, str]:
        return 1e-9, "none"


class OwnInexact(Inexact):
    """Inner steps with a gain of their own."""

    def output_gain(self, *arguments: Any) -> float:
        return 1e9


def hostile() -> dict[str, Any]:
    """Return one object of each kind that no plain request holds."""
    spy = Spy()
    array = np.full(2, 0.1).view(SpyArray)
    array.spy = Spy()
    objects = np.empty(2, object)
    objects[:] = [spy, spy]
    lone = np.empty((), object)
    lone[()] = spy
    spy.kept.clear()  # of what filling the arrays asked
    return {
        "spy": spy,
        "array of a class": array,
        "masked": np.ma.MaskedArray([0.1, 0.1]),
        "matrix": np.ma.asarray(np.full(2, 0.1)),
        "objects": objects,
        "object": lone,
        "number": Number(0.1),
        "text": EqualText("gd"),
        "list": [0.1, 0.1],
        "function": lambda *_: 0.1,
        "complex": 1j,
        "half": np.float16(0.1),
        "gradients": OwnGradients(clip=0.8),
    }


PLACES = [
    (name, place, key)
    for name, charge in CHARGES.items()
    if name in ("gradients", "gradients of the softmax", "objective", "output", "drift",
                "hidden steps", "mini-batches")
    for place, argument in enumerate(charge.arguments)
    for key in ("", *getattr(type(argument), "_fields", getattr(type(argument), "__slots__", ())))
]  # fmt: skip


@pytest.mark.parametrize(("name", "place", "key"), PLACES)
def test_no_object_but_plain_ones_is_computed_with(
    name: str, place: int, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stands in a request, it is refused before the problem is asked for anything."""
    charge = CHARGES[name]
    asked_of: list[str] = []
    own = problem(charge.loss, charge.relation, charge.dtype, "ordinary", 0)
    for method in ("gradient", "clipped_gradient", "clipped_term", "batch_clipped_gradient"):
        monkeypatch.setattr(
            type(own), method, lambda *_, method=method, **__: asked_of.append(method)
        )
    for kind, found in hostile().items():
        records = side(name, "ordinary", 0)
        arguments: list[Any] = list(charge.arguments)
        arguments[place] = _with(arguments[place], key, found) if key else found
        with pytest.raises((NoiseError, RecordsError)):
            getattr(records, charge.method)(*arguments)
        assert asked_of == [], kind
        for spy in (found, getattr(found, "spy", None), found[()] if kind == "object" else None):
            assert getattr(spy, "kept", []) == [], kind


def _with(argument: Any, key: str, value: Any) -> Any:
    """Return a copy of a request's argument with one field set, past every check of its class."""
    if isinstance(argument, LocalTask):
        return argument._replace(**{key: value})
    copy = object.__new__(type(argument))
    for each in fields(argument):
        object.__setattr__(copy, each.name, getattr(argument, each.name))
    object.__setattr__(copy, key, value)
    return copy


SUBCLASSES: dict[str, tuple[str, Any]] = {
    "task": ("gradients of the softmax", lambda task, streams: (OwnTask(*task), streams)),
    "gradients": ("gradients", lambda _, x, streams: (OwnGradients(clip=0.8), x, streams)),
    "gradients of a task": (
        "gradients of the softmax",
        lambda task, streams: (task._replace(gradients=OwnGradients(clip=0.8)), streams),
    ),
    "needs": (
        "gradients of the softmax",
        lambda task, streams: (task._replace(needs=(EqualText("mean_gradient"),)), streams),
    ),
    "needs in a tuple": (
        "gradients of the softmax",
        lambda task, streams: (task._replace(needs=((EqualText("mean_gradient"),),)), streams),
    ),
    "moduli": (
        "gradients of the softmax",
        lambda task, streams: (task._replace(moduli=Moduli(Spy(), Spy())), streams),  # type: ignore[arg-type]
    ),
    "streams": ("mini-batches", lambda task, _: (task, OwnStreams(3, "0", 1))),
    "seed": ("mini-batches", lambda task, _: (task, Streams(Spy(), "0", 1))),  # type: ignore[arg-type]
    "drift": (
        "drift",
        lambda program, *rest: (OwnDrift(*(getattr(program, n) for n in Drift.__slots__)), *rest),
    ),
    "output": (
        "output",
        lambda program, *rest: (
            OwnInexact(*(getattr(program, n) for n in Inexact.__slots__)), *rest
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SUBCLASSES)
def test_a_class_of_its_own_is_refused(kind: str) -> None:
    name, spoiled = SUBCLASSES[kind]
    charge = CHARGES[name]
    with pytest.raises(NoiseError, match="a charged program takes"):
        getattr(side(name, "ordinary", 0), charge.method)(*spoiled(*charge.arguments))


def test_a_file_may_be_a_vector_and_is_left_as_it_is(tmp_path: Path) -> None:
    held = np.memmap(tmp_path / "x", np.float64, "w+", shape=(2,))
    held[:] = 0.1
    own, other = (side("gradients", "ordinary", 0) for _ in range(2))
    given = own.gradient(CLIPPED, held, STREAMS)
    assert given.tobytes() == other.gradient(CLIPPED, np.full(2, 0.1), STREAMS).tobytes()
    assert type(given) is np.ndarray
    assert (held == 0.1).all()


@pytest.mark.parametrize("name", CHARGES)
@pytest.mark.parametrize("record", RECORDS)
def test_no_warning_tells_of_a_record(name: str, record: str) -> None:
    """Not where a half makes errors of them either."""
    charge = CHARGES[name]
    with np.errstate(all="raise"):
        getattr(side(name, record, 0), charge.method)(*charge.arguments)


def test_what_does_not_cross() -> None:
    for kind, found in hostile().items():
        if kind not in ("complex", "half"):
            with pytest.raises(Uncrossable):
                packed(found)
    for found in (OwnTask(*TASK), OwnStreams(3, "0", 1), (1, EqualText("x"))):
        with pytest.raises(Uncrossable):
            packed(found)
    assert repr(unpacked(packed(TASK))) == repr(TASK)


def test_a_gain_is_that_of_what_is_clipped() -> None:
    """Softmax has a gain of convex losses only where nothing is clipped."""
    charge = CHARGES["drift of whole batches"]
    with pytest.raises(
        NoCertificateError, match="gain for clipping 'none' is not that of gradients"
    ):
        Drift(0.5, 0.4, 4, Gradients(clip=1.4), "none").gain(charge.facts, 1.0)
    Drift(0.5, 0.4, 4, Gradients(clip=math.sqrt(2.0)), "none").gain(charge.facts, 1.0)
