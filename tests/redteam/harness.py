"""A hostile coordinator and the node it writes to: the real handlers, ledger file and noise.

The coordinator builds its messages from settings JSON and arrays of its choice; nothing of the
server's halves checks them first. Everything on the node's side is the library's own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr
from typer.testing import CliRunner

from privet.cli.main import app as command
from privet.client_apps import client_app
from privet.core import algorithm
from privet.core.exits import Exit
from privet.kernel import Problem, SystemNoise
from privet.problems import L2, BinaryLogistic
from privet.sim.engine import InlineGrid
from privet.wire import ENROL, pack
from privet.wire.contract import (
    CONTRACT_VERSION,
    agent_record,
    encode_settings,
    is_need_state,
    read_update,
    shared_record,
)
from privet.wire.payload import ENCODED, encoded
from privet.wire.sparse import decode, encode
from support.told import own_log

DELTA = 1e-5
Array = NDArray[Any]

_STEPS: dict[str, Any] = {
    "clip": 1.0,
    "noise_scale": 1.0,
    "step_size_base": 0.5,
    "step_size_rule": "constant",
}
_ONE_STEP = {**_STEPS, "max_local_steps": 1}
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "fed-plt": {
        "rho": 3.0,
        "local_solver": "noisy-gd",
        "local_epochs": 2,
        "step_size": 0.1,
        "row_norm": 1.0,
        "clip": 1.0,
        "noise_variance": 1.0,
    },
    "dp-iadmm": {"clip": 1.0, "noise_scale": 1.0},
    "fed-pdm": {**_ONE_STEP, "rho": 1.0, "dual": "public", "batch": "full"},
    "dp-fedsgd": _STEPS,
    "dp-fedavg": {**_STEPS, "max_local_steps": 3},
    "scaffold": _ONE_STEP,
    "fed-dyn": _ONE_STEP,
}
SETTINGS: dict[str, dict[str, Any]] = {
    name: {**algorithm(name).load_strategy()(**arguments).half.settings(), "seed": 0}
    for name, arguments in _ARGUMENTS.items()
}
"""What a server of ours says of a private run, by algorithm: every key, so that a test can spoil
any of them."""

PRIVATE = tuple(SETTINGS)
NOISE_KEY = {name: "noise-variance" if name == "fed-plt" else "noise-scale" for name in PRIVATE}


def sent(name: str, x: Array) -> dict[str, Array]:
    """Return what a round broadcasts of the model x."""
    if name == "fed-pdm":
        return dict(encoded(encode(x)))
    if name == "fed-plt":
        return {"y": x}
    if name == "dp-iadmm":
        return {"w": x, "t": np.array(1), "rho": np.array(2.0)}
    return {"x": x, "c": np.zeros_like(x)} if name == "scaffold" else {"x": x}


def start(name: str, x: Array) -> dict[str, Array]:
    """Return the state of an agent in round 1 that starts at x, the dual variables at zero."""
    zero = np.zeros_like(x)
    return {
        "fed-plt": {"x": x, "z": x},
        "dp-iadmm": {"lam": zero, "inner": x},
        "fed-pdm": {"lam": zero},
        "scaffold": {"c": zero},
        "fed-dyn": {"g": zero},
        "dp-fedsgd": {},
        "dp-fedavg": {},
    }[name]


def problem() -> BinaryLogistic:
    """Return the data of a node where any will do: twenty records."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((20, 4))
    return BinaryLogistic(rows, np.where(rng.random(20) < 0.5, 1.0, -1.0), regularizer=L2(0.1))


@dataclass(frozen=True)
class Answer:
    """What a node sent back: the upload, or one line that says why not."""

    refusal: str | None
    upload: Array | None = None
    epsilon: float = 0.0


class Node:
    """One node with a budget.

    Parameters
    ----------
    folder : Path
        Where its ledger is.
    problem : Problem
        Its data.
    **rules
        Node config; underscores stand for hyphens, None removes a rule.

    Attributes
    ----------
    said : str
        What its own log says of the last message.
    """

    def __init__(
        self, folder: Path, problem: Problem, *, max_epsilon: float | None = 1e3, **rules: Any
    ) -> None:
        self.ledger = folder / "ledger.jsonl"
        config: dict[str, Any] = {
            "agent": "me",
            "max-epsilon": max_epsilon,
            "delta": DELTA,
            "ledger-path": str(self.ledger),
            "num-examples": problem.num_examples,
        }
        config |= {key.replace("_", "-"): value for key, value in rules.items()}
        config = {key: value for key, value in config.items() if value is not None}
        self.grid = InlineGrid(client_app(None, lambda context: problem), [config])
        self.said = ""
        self.dim = problem.dim
        self.dtype = problem.dtype

    @property
    def written(self) -> bytes:
        """The bytes of the ledger."""
        return self.ledger.read_bytes() if self.ledger.exists() else b""

    @property
    def charges(self) -> int:
        """Lines of the ledger."""
        return self.written.count(b"\n")

    def send(self, content: RecordDict, kind: str = "train") -> Message:
        """Return the reply to a message."""
        with own_log() as said:
            (reply,) = self.grid.send_and_receive([Message(content, 1000, kind)])
        self.said = said.text
        return reply

    def enrol(self, name: str, **question: Any) -> Message:
        """Ask the enrolment question."""
        asked = {
            "contract": CONTRACT_VERSION,
            "protocol": name,
            "version": 1,
            "experiment": "e",
            "quiet": True,
            "secure-sum": False,
            **question,
        }
        return self.send(RecordDict({"privet": ConfigRecord(asked)}), ENROL)

    def send_train(
        self,
        name: str,
        x: Array | float = 0.0,
        *,
        round_: int = 1,
        tag: int = 0,
        broadcast: Mapping[str, Array] | None = None,
        state: Mapping[str, Array] | None = None,
        experiment: str = "e",
        **changes: Any,
    ) -> Message:
        """Ask for a round at the model x, with some of the ordinary settings changed."""
        settings = {**SETTINGS[name], **{k.replace("_", "-"): v for k, v in changes.items()}}
        model = np.broadcast_to(np.asarray(x, self.dtype), (self.dim,)).copy()
        arrays = {**sent(name, model), **(broadcast or {})}
        shared = shared_record(name, 1, experiment, round_, encode_settings(settings), arrays)
        held = start(name, model) if state is None else dict(state)
        own = agent_record(tag, pack(held))
        return self.send(RecordDict({"privet": shared, "privet.agent": own}))

    def send_raw(self, name: str, settings: str) -> Message:
        """Ask for a first round at 0 with this text as its settings."""
        model = np.zeros(self.dim, self.dtype)
        broadcast = sent(name, model) if name in PRIVATE else {"x": model, "y": model}
        held = start(name, model) if name in PRIVATE else {"x": model, "z": model}
        shared = shared_record(name, 1, "e", 1, settings, broadcast)
        return self.send(
            RecordDict({"privet": shared, "privet.agent": agent_record(0, pack(held))})
        )

    def evaluate(self) -> Message:
        """Ask for the loss of the model 0."""
        model = ArrayRecord({"x": FlowerArray(np.zeros(self.dim, self.dtype))})
        return self.send(RecordDict({"arrays": model, "config": ConfigRecord()}), "evaluate")

    def train(self, name: str, x: Array | float = 0.0, **message: Any) -> Answer:
        """Return what the node answers to ``send_train``."""
        round_ = message.get("round_", 1)
        return read_answer(self.send_train(name, x, **message), name, round_)


def read_answer(reply: Message, name: str, round_: int) -> Answer:
    """Return what a reply to a training message says."""
    if reply.has_error():
        return Answer(reply.error.reason)
    if is_need_state(reply.content):
        return Answer("need-state")
    update = read_update(reply.content, name, 1, round_)
    arrays = update.arrays()
    if ENCODED in arrays:
        vector = decode(arrays[ENCODED], max_dim=1 << 20)
        upload = vector.values if vector.positions is None else vector.to_dense()
    else:
        (upload,) = arrays.values()
    return Answer(None, upload, update.epsilon)


def releases(node: Node) -> list[dict[str, Any]]:
    """Return the releases that a node's ledger charges, one a message."""
    return [json.loads(line)["release"] for line in node.written.splitlines()]


def differ(first: Array, second: Array) -> bool:
    """Whether two uploads were noised on their own: at most one coordinate agrees.

    On the grid one of d coordinates agrees by chance in about d / 30000 sqrt(d) of all pairs, two
    of four in less than one of 1e8. What was not sent is zero in both.
    """
    both = (first == second) & (first != 0)
    return int(both.sum()) <= 1 and not np.array_equal(first, second)


class Drawn:
    """Every draw that is asked of the operating system's noise: (number, scale)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.draws: list[tuple[int, float]] = []
        for kind in ("gaussian", "laplace"):
            monkeypatch.setattr(SystemNoise, kind, self._counting(getattr(SystemNoise, kind)))

    def _counting(self, draw: Callable[..., Array]) -> Callable[..., Array]:
        def counting(source: Any, size: Any, scale: float, *rest: Any, **options: Any) -> Array:
            drawn = draw(source, size, scale, *rest, **options)
            self.draws.append((drawn.size, scale))
            return drawn

        return counting

    def take(self) -> tuple[int, set[float]]:
        """Return how many numbers were drawn since the last time, and at which scales."""
        taken, self.draws = self.draws, []
        return sum(count for count, _ in taken), {scale for _, scale in taken}


def privet(*arguments: str) -> tuple[int, str]:
    """Run the ``privet`` command in this process; return its exit code and what it printed."""
    result = CliRunner().invoke(command, list(arguments))
    raised = result.exception
    said = result.output + ("" if isinstance(raised, SystemExit | None) else f"\n{raised}")
    return result.exit_code, said


def privet_json(*arguments: str) -> dict[str, Any]:
    """Return the one object that a command prints with ``--json``, also of a run that diverged."""
    code, said = privet(*arguments, "--json")
    assert code in (Exit.DONE, Exit.FRUITLESS), said
    found: dict[str, Any] = json.loads(said)
    return found


def gaussian_epsilon(charged: Iterable[Mapping[str, Any]], delta: float = DELTA) -> float:
    """Return the epsilon of the Gaussian releases among these, by the closed form.

    mu^2 is the sum over uses of (s / sigma)^2, or for steps of which only the last iterate leaves
    of (s sum chi^j / (sigma sqrt(sum chi^2j)))^2, and
    delta = Phi(-e/mu + mu/2) - exp(e) Phi(-e/mu - mu/2). With the rounding to the grid, which
    the library charges beside s, or without: without is the smaller number.
    """
    total = 0.0
    for release in charged:
        if release["mechanism"] != "gaussian":
            continue
        powers = float(release.get("contraction", 1.0)) ** np.arange(release.get("steps", 1))
        loss = release["sensitivity"] / release["scale"]
        if powers.size > 1:
            loss *= powers.sum() / math.sqrt((powers**2).sum())
        total += release.get("count", 1) * loss**2
    mu = math.sqrt(total)
    if mu == 0:
        return 0.0

    def excess(epsilon: float) -> float:
        tails = log_ndtr(-epsilon / mu + np.array([mu, -mu]) / 2)
        return float(np.exp(tails[0]) - np.exp(epsilon + tails[1])) - delta

    if excess(0.0) <= 0:
        return 0.0
    return float(brentq(excess, 0.0, mu**2 / 2 + 10 * mu, xtol=1e-12))


def spent(ledger: Path) -> float:
    """Return the epsilon of a ledger as its own command shows it."""
    return float(privet_json("ledger", str(ledger))["epsilon"])
