"""What a private node says of its failures: of neighbouring data, and of more or fewer, the same.

Every text comes from the closed list (`privet.kernel.Told`), whatever fails, wherever it does; the
node's own log has the line with the numbers.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import math
import pkgutil
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from privet.client_apps import LoopParticipant, client_app
from privet.client_apps.local_sgd import local_sgd_app
from privet.core.errors import PrivetError
from privet.data import problem_from_context
from privet.kernel import NoiseError, Problem, Told
from privet.problems import L2, BinaryLogistic
from privet.sim.engine import InlineGrid
from privet.wire import ENROL, FAILED, pack
from privet.wire.contract import (
    CONTRACT_VERSION,
    agent_record,
    encode_settings,
    shared_record,
)
from privet.wire.rosters import with_roster
from support.told import own_log

from .harness import PRIVATE, SETTINGS, Node, sent, start

SECRET = "4711"
LIST = {f"agent me: {told}" for told in Told}
BESIDE = {"max-clip": 10.0, "relation": "add-remove", "num-examples": 100}
NEIGHBOURS = (87, 88)


def rows(count: int, loud: float = 1.0) -> BinaryLogistic:
    """Return so many records, the last of them loud; with one more, the others are the same."""
    rng = np.random.default_rng(0)
    every = rng.standard_normal((200, 4))
    labels = np.where(rng.random(200) < 0.5, 1.0, -1.0)
    every[count - 1] *= loud
    return BinaryLogistic(every[:count], labels[:count], regularizer=L2(0.1))


def asked(app: Any, content: RecordDict, kind: str = "train", **node: Any) -> tuple[str, str]:
    """Return what a private node answers, by one code, and what its own log says."""
    grid = InlineGrid(app, [{"agent": "me", **BESIDE, **node}])
    with own_log() as said:
        (reply,) = grid.send_and_receive([Message(content, 1000, kind)])
    assert reply.has_error()
    if reply.error.reason in (f"agent me: {Told.DATA}", f"agent me: {Told.WORK}"):
        assert reply.error.code == FAILED
    return reply.error.reason, said.text


def training(name: str = "dp-fedsgd", dim: int = 4, **changes: Any) -> RecordDict:
    settings = {**SETTINGS[name], "relation": "add-remove", **changes}
    x = np.zeros(dim)
    shared = shared_record(name, 1, "e", 1, encode_settings(settings), sent(name, x))
    return RecordDict({"privet": shared, "privet.agent": agent_record(0, pack(start(name, x)))})


# ------------------------------------------------------------------ where data are read


def csv(folder: Path, count: int, fault: str) -> dict[str, Any]:
    """Return the config of a node with a table of so many rows, of which the last is wrong."""
    path = folder / f"{fault}-{count}.csv"
    lines = [f"{n % 7},{'ab'[n % 2]},{n % 2}" for n in range(count - 1)]
    last = {
        "value": f"secret{count},a,1",
        "width": f"1,a,1,{count}",
        "label": f"1,a,{count}",
        "missing": ",a,1",
        "rows": "1,a,1",
    }[fault]
    header = f"age,salary_{count},y" if fault == "rows" else "age,sex,y"
    path.write_text("\n".join([header, *lines, last]) + "\n")
    label = "income" if fault == "rows" else "y"
    own = {"dataset": "csv", "data-path": str(path), "label-column": label, "partition": "none"}
    return {**own, "partition-id": 0, "num-partitions": 1}


@pytest.mark.parametrize("kind", ["enrol", "train"])
@pytest.mark.parametrize("fault", ["value", "width", "label", "missing", "rows"])
def test_a_file_is_not_described(fault: str, kind: str, tmp_path: Path) -> None:
    """Not its columns, nor in which row something is wrong: enrolment asks before any charge."""
    answers, lines = set(), set()
    for count in NEIGHBOURS:
        content = training() if kind == "train" else question()
        message = "train" if kind == "train" else ENROL
        app = client_app(None, problem_from_context)
        reason, said = asked(app, content, message, **csv(tmp_path, count, fault))
        answers.add(reason)
        lines.add(said.replace(f"-{count}.csv", ".csv"))
    assert answers in ({f"agent me: {Told.DATA}"}, {f"agent me: {Told.PREPARATION}"})
    assert all("csv" in line or "schema" in line for line in lines)


def question(**more: Any) -> RecordDict:
    asked = {"contract": CONTRACT_VERSION, "protocol": "dp-fedsgd", "version": 1}
    asked |= {"experiment": "e", "quiet": True, "secure-sum": False}
    return RecordDict({"privet": ConfigRecord({**asked, **more})})


# ------------------------------------------------------------------ every kind of error


def own_errors() -> list[type[Exception]]:
    """Return every class of exceptions that a module of this library defines."""
    found: dict[str, type[Exception]] = {}
    for room in ("core", "kernel", "wire", "problems", "analyses", "data", "agents", "client_apps"):
        package = importlib.import_module(f"privet.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            try:
                held = vars(importlib.import_module(module.name))
            except ImportError:  # of a package that is not installed
                continue
            for each in held.values():
                if inspect.isclass(each) and issubclass(each, Exception):
                    found.setdefault(f"{each.__module__}.{each.__qualname__}", each)
    return [each for name, each in sorted(found.items()) if name.startswith("privet.")]


BUILT_IN = [
    each
    for each in vars(builtins).values()
    if inspect.isclass(each) and issubclass(each, Exception) and not issubclass(each, Warning)
]


def made(kind: type[Exception]) -> Exception:
    text = f"row 87 of {SECRET}"
    if issubclass(kind, ExceptionGroup):
        return kind(text, [ValueError(text)])
    try:
        return kind(text)
    except TypeError:  # UnicodeDecodeError and its like
        return kind.__new__(kind)


@pytest.mark.parametrize("place", ["problem", "work", "loop", "before the round", "mod", "metrics"])
def test_whatever_is_raised_is_told_by_one_text(place: str) -> None:
    """So that no record can choose among texts, nor by the class of what it makes fail."""
    kinds = [*BUILT_IN, *(each for each in own_errors() if each.__name__ not in ("Ended",))]
    assert len(kinds) > 60
    assert {PrivetError, NoiseError} <= set(kinds)
    answers = {}
    for kind in kinds:
        reason, said = asked(app_that_fails(place, made(kind)), training("fed-dyn"))
        answers.setdefault(reason, []).append(kind.__name__)
        assert said
    assert len(answers) == 1, answers
    assert answers.keys() == {f"agent me: {Told.DATA if place == 'problem' else Told.WORK}"}


def app_that_fails(place: str, error: Exception) -> Any:
    def failing(*args: Any, **named: Any) -> Any:
        raise error

    if place == "problem":
        return client_app(None, failing)
    if place == "work":
        problem = rows(50)
        problem.clipped_term = failing  # type: ignore[method-assign]
        return client_app(None, lambda context: problem)
    if place == "mod":
        return client_app(None, lambda context: rows(50), mods=[failing])
    torch = pytest.importorskip("torch", reason="needs the group torch")
    model = torch.nn.Linear(4, 1, bias=False, dtype=torch.float64)
    participant = LoopParticipant(None, model, lambda context: 50)
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if place == "before the round":
            failing()
        with participant.round(message, context, model) as local:
            if place == "loop":
                failing()
            for _ in range(local.steps):
                local.private_step(lambda net, batch: net(batch).mean(), torch.ones(50, 4).double())
        if place == "metrics":
            failing()
        return local.reply()

    return app


def test_nor_do_other_handlers_of_an_app_say_more() -> None:
    """Flower would send the class and the text of what they raise."""
    for app in (
        client_app(None, lambda context: rows(50)),
        local_sgd_app(lambda context: rows(50), clip=1.0, noise_scale=1.0),
        LoopParticipant(None, {"w": np.zeros(4)}, lambda context: 50).app(),
    ):
        seen = []

        @app.query("dump")
        def dump(message: Message, context: Context, seen: list[Any] = seen) -> Message:
            seen.append(message)
            raise ValueError(SECRET)

        assert asked(app, RecordDict(), "query.dump")[0] == f"agent me: {Told.QUERY}"
        assert not seen
        (reply,) = InlineGrid(app, [{"agent": "me"}]).send_and_receive(
            [Message(RecordDict(), 1000, "query.dump")]
        )
        assert (len(seen) == 1) is (not reply.error.reason.endswith(Told.QUERY))


def test_a_mod_that_fails_at_the_enrolment_question_says_nothing() -> None:
    def failing(message: Message, context: Context, call_next: Any) -> Message:
        call_next(message, context)
        raise ValueError(SECRET)

    for app in (
        client_app(None, lambda context: rows(50), mods=[failing]),
        LoopParticipant(None, {"w": np.zeros(4)}, lambda context: 50).app(mods=[failing]),
    ):
        assert asked(app, RecordDict(), ENROL)[0] == f"agent me: {Told.WORK}"


# ------------------------------------------------------------------ lengths of data


def poisson_loop(count: int, walk: Callable[[Any, Any, Any], Any]) -> tuple[str, str]:
    """Return what comes of a loop that does not give its steps the whole data set."""
    torch = pytest.importorskip("torch", reason="needs the group torch")
    model = torch.nn.Linear(4, 1, bias=False, dtype=torch.float64)
    data = torch.tensor(rows(count).features.copy())
    participant = LoopParticipant("fed-dyn", model, lambda context: 100, reply_seconds=0.0)
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        with participant.round(message, context, model) as local:
            walk(local, data, lambda net, batch: net(batch).square().mean())
        return local.reply()

    sampled = {"batch": "poisson", "batch-size": 32, "max-local-steps": 3}
    content = training("fed-dyn", **sampled)
    grid = InlineGrid(app, [{"agent": "me", **BESIDE, "reply-seconds": 2.0}])
    with own_log() as said:
        (reply,) = grid.send_and_receive([Message(content, 1000, "train")])
    assert reply.has_error()
    return reply.error.reason, said.text


def by_loader(local: Any, data: Any, loss: Any) -> None:
    for batch in data.split(32):
        local.private_step(loss, batch)


def whole(local: Any, data: Any, loss: Any) -> None:
    for _ in range(local.steps):
        local.private_step(loss, data)


@pytest.mark.usefixtures("clock")
def test_the_number_of_records_does_not_leave_by_a_loaders_last_batch() -> None:
    """The last of batches of 32 has 23 of 87 rows, and 24 of 88."""
    found = [poisson_loop(count, by_loader) for count in NEIGHBOURS]
    assert [reason for reason, _ in found] == 2 * [f"agent me: {Told.SAME_DATA}"]
    assert "found 23 examples after 32" in found[0][1]
    assert "found 24 examples after 32" in found[1][1]


@pytest.mark.usefixtures("clock")
def test_nor_by_a_step_of_more_than_were_declared() -> None:
    found = [poisson_loop(count, whole) for count in (101, 102)]
    assert [reason for reason, _ in found] == 2 * [f"agent me: {Told.BATCH}"]
    assert "found [101]" in found[0][1]
    assert "found [102]" in found[1][1]


def lacking(count: int) -> Problem:
    problem = rows(count)

    def clipped_term(*args: Any, **named: Any) -> Any:
        raise ValueError(f"operands could not be broadcast together, ({count},4) (100,4)")

    problem.clipped_term = clipped_term  # type: ignore[method-assign]
    return problem


@pytest.mark.parametrize(
    ("make", "counts", "told"),
    [
        (lacking, NEIGHBOURS, Told.WORK),
        (rows, (101, 102), Told.DATA),  # more than the node declares
    ],
)
def test_no_other_text_has_a_length_in_it(make: Any, counts: Any, told: Told) -> None:
    found = [asked(client_app(None, lambda _, n=n: make(n)), training()) for n in counts]
    assert [reason for reason, _ in found] == 2 * [f"agent me: {told}"]


# ------------------------------------------------------------------ whatever a message says


VALUES = [
    *(0, 1, -1, 2**62, 1e-300, 1e300, -0.5, 0.5, math.inf, math.nan, 87, 88, 100),
    *("", "full", "poisson", "sample", "add-remove", "replace-one", "paper", "example", "batch"),
    *(True, False, None, [], {}, "x" * 400),
]


def hostile(draw: random.Random) -> tuple[RecordDict, str]:
    """Return a message of a coordinator that tries what comes to its mind."""
    name = draw.choice(PRIVATE)
    settings = {**SETTINGS[name], "relation": "add-remove"}
    for key in draw.sample(sorted(settings), draw.choice((0, 1, 1, 2))):
        settings[key] = draw.choice(VALUES)
    dim = draw.choice((4, 4, 4, 3, 1))
    x = np.full(dim, draw.choice((0.0, 0.0, 1e200, math.nan)))
    try:
        text = encode_settings(settings)
    except (TypeError, ValueError):
        text = "{"
    round_ = draw.choice((1, 1, 2, 10**6))
    shared = shared_record(name, draw.choice((1, 1, 7)), "e", round_, text, sent(name, x))
    if draw.random() < 0.2:
        shared = with_roster(shared, 1, {"me": bytes(32), "b": bytes(31), "c": bytes(32)})
    held = None if draw.random() < 0.1 else pack(start(name, x))
    content = RecordDict({"privet": shared, "privet.agent": agent_record(0, held)})
    kind = draw.choice(("train",) * 6 + (ENROL, "evaluate"))
    if kind == ENROL:
        content = question(**{draw.choice(("contract", "protocol", "version", "experiment")): 9})
    if kind == "evaluate":
        model = ArrayRecord({"x": FlowerArray(x)})
        content = RecordDict({"arrays": model, "config": ConfigRecord()})
    if draw.random() < 0.1:
        del content[draw.choice(sorted(content))]
    return content, kind


@pytest.mark.parametrize("seed", range(4))
def test_two_nodes_say_the_same_to_every_message(seed: int, tmp_path: Path) -> None:
    """Of 87 and 88 records, one of them loud: they fail alike, and every text is of the list."""
    nodes = []
    for name, problem in (("a", rows(87)), ("b", rows(88, loud=1e6))):
        (folder := tmp_path / name).mkdir()
        rules = {"relation": "add-remove", "num_examples": 100, "max_epsilon": 40.0}
        nodes.append(Node(folder, problem, **rules))
    draw, failed, said = random.Random(seed), 0, set()
    for _ in range(150):
        content, kind = hostile(draw)
        replies = [node.send(content, kind) for node in nodes]
        assert replies[0].has_error() == replies[1].has_error()
        if not replies[0].has_error():
            continue
        failed += 1
        reasons = {reply.error.reason for reply in replies}
        assert len(reasons) == 1
        assert reasons <= LIST
        assert len({reply.error.code for reply in replies}) == 1
        said |= reasons
        assert all(node.said for node in nodes)
    assert failed > 30
    assert len(said) > 5
    assert nodes[0].charges == nodes[1].charges
