"""Distances of uploads from the same uploads without noise, in units of the charged scale.

A message is delivered once more to an agent in the state that it was in, with draws that are given:
none (the upload u_0), 40 times the charged scale b in every coordinate, with signs that change, the
same with the other signs, and b in every coordinate of each of the message's draws g_1, ..., g_K by
itself. Where these show that a coordinate of the upload is u_0 + c_1 g_1 + ... + c_K g_K of its own
draws alone, as with noised steps and no projection, the upload u that was sent has

    |u - u_0| / (b sqrt(c_1^2 + ... + c_K^2)),

whatever the c_k are: of one Laplace draw a size that is exponential of mean 1, of Gaussian draws
the size of a normal number (`privet.sim.empirical`). Draws that are given are added off the grid,
so that the ratio may be too small by 2^-13 sqrt(K), and by the rounding of the upload's dtype: so
much is added to it, which favours the run. Whether a coordinate counts depends on no draw that was
sent.

Where a message has several draws, the gradient of a later step may follow the earlier ones, and
where records are sampled, who takes part differs from one delivery to the next: then coordinates
alone count that no record moves, as those of canaries that are not there. Where an upload is
masked, sparse or of few bits, has several Laplace draws, or is no such function, as with a set that
models stay in, or an l1 regulariser, nothing is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from privet.kernel import AgentLedger, Problem, Release
from privet.wire.contract import Instruction, Update, read_update
from privet.wire.payload import ENCODED
from privet.wire.records import own_content
from privet.wire.sparse import decode

from .grid import NodeConfig, Nodes
from .inline import app_of

Vector = NDArray[np.float64]

FAR = 40.0
"""Draws up to so many scales are looked at: a larger one has a chance of e^-40."""
MOST_DRAWS = 50
"""Draws of a message that are looked at one by one."""
GRID_SLACK = 2.0**-13
"""Of the charged scale: the value and the draw are each rounded by half of the grid's spacing."""
ALIKE = 2.0**-10
"""Largest relative difference of an upload from u_0 + c g."""


class Silence:
    """A source of noise that is none: that of an agent which helps the observer."""

    private = False

    def gaussian(self, size: Any, scale: float, dtype: Any = np.float64) -> NDArray[Any]:
        """Return zeros."""
        return np.zeros(size, dtype)

    laplace = gaussian


@dataclass(frozen=True, slots=True)
class Given:
    """A source whose draws are these numbers (d,), or rows of them, whatever the scale."""

    draws: Vector
    private = False

    def laplace(self, size: Any, scale: float) -> Vector:
        """Return the numbers, in every row of the size."""
        if self.draws.ndim > 1 and self.draws.shape != size:
            raise ValueError(f"{len(self.draws)} draws are given, {size[0]} are asked for at once")
        return np.broadcast_to(self.draws, size).copy()

    gaussian = laplace


@dataclass(slots=True)
class Residuals:
    """Sizes of draws in units of the charged scale: their sum, and how many they are.

    Of Laplace noise, or, where ``gaussian``, of that: then the sum of their squares. ``fits`` is
    false once an upload could not be measured, and then no other is.
    """

    total: float = 0.0
    count: int = 0
    fits: bool = True
    gaussian: bool = False


class Replays:
    """Agents that do again what they did, with draws that are given.

    Parameters
    ----------
    algorithm : str
    problems : sequence of Problem
        By partition-id.
    run_id : int
    configs : mapping of node id to node config
    """

    def __init__(
        self,
        algorithm: str,
        problems: Sequence[Problem],
        run_id: int,
        configs: Mapping[int, NodeConfig],
    ) -> None:
        self._problems, self._configs = problems, configs
        self._source: Silence | Given = Silence()
        app = app_of(algorithm, problems, noise_factory=lambda agent, round_: self._source)
        self._nodes = Nodes(app, run_id, configs, {})
        self._accounts: dict[int, str] = {}

    def measure(
        self,
        into: Residuals,
        message: Message,
        state: RecordDict,
        instruction: Instruction,
        update: Update,
    ) -> None:
        """Add the sizes of an upload's draws.

        ``state`` is a copy of the node's before the message, ``update`` its reply to it.
        """
        if not into.fits:
            return
        node = message.metadata.dst_node_id
        release = _last(self._accounts.get(node, ""), update.ledger)
        self._accounts[node] = update.ledger
        sent, sizes = None if instruction.attempt else _vector(update), None
        if release is not None and sent is not None:
            into.gaussian = release.mechanism == "gaussian"
            most = MOST_DRAWS if into.gaussian else 1
            if release.draws == 1 and release.sampling == 1:
                still = np.ones(sent.size, bool)
            else:
                still = _still(self._problems[int(self._configs[node]["partition-id"])])
            if 1 <= release.draws <= most and still.any():
                sizes = self._sizes(message, state, instruction, sent, release, still)
        if sizes is None:
            into.fits = False
            return
        into.total += float((sizes**2 if into.gaussian else sizes).sum())
        into.count += sizes.size

    def _sizes(
        self,
        message: Message,
        state: RecordDict,
        instruction: Instruction,
        sent: NDArray[Any],
        release: Release,
        still: NDArray[np.bool_],
    ) -> Vector | None:
        """Return the sizes of the noise on the coordinates ``still``, None if it is no line."""
        shape = release.draws, sent.size
        signs = np.where(np.arange(sent.size) % 2, FAR, -FAR)
        far = np.broadcast_to(signs * release.scale, shape)
        given = [np.zeros(shape), far, -far]
        for step in range(release.draws):
            alone = np.zeros(shape)
            alone[step] = release.scale
            given.append(alone)
        played = [self._upload(message, state, instruction, draws) for draws in given]
        if any(one is None or one.shape != sent.shape for one in played):
            return None
        bare, up, down, *each = (np.asarray(one, np.float64)[still] for one in played)
        seen = np.asarray(sent, np.float64)[still]
        rounding = 8.0 * release.draws * float(np.finfo(sent.dtype).eps)
        rounding *= max(float(np.abs(one).max()) for one in (seen, bare, *each))
        gains = np.array([one - bare for one in each])
        line, gain = signs[still] * gains.sum(0), np.sqrt((gains**2).sum(0))
        for off in (np.abs(up - bare - line), np.abs(down - bare + line)):
            if (off > ALIKE * FAR * gain + FAR * rounding).any():
                return None
        if (gain <= 16.0 * rounding).any():
            return None
        sizes: Vector = (np.abs(seen - bare) + rounding) / (gain - rounding)
        return (sizes + GRID_SLACK * math.sqrt(release.draws)) * (1.0 + ALIKE)

    def _upload(
        self, message: Message, state: RecordDict, instruction: Instruction, draws: Vector
    ) -> NDArray[Any] | None:
        self._source = Given(draws)
        self._nodes.contexts[message.metadata.dst_node_id].state = own_content(state)
        reply = self._nodes.answer(message)
        if reply.has_error():
            return None
        return _vector(
            read_update(reply.content, instruction.protocol, instruction.version, instruction.round)
        )


def _still(problem: Problem) -> NDArray[np.bool_]:
    """Return the coordinates of a linear model that none of its records moves."""
    x = np.linspace(-1.0, 1.0, problem.dim).astype(problem.dtype)
    regularizer: Any = getattr(problem, "regularizer", None)
    still: NDArray[np.bool_] = problem.gradient(x) == regularizer.gradient(x)
    return still


def vectors_of(arrays: Mapping[str, NDArray[Any]], dim: int) -> list[Vector]:
    """Return the vectors of a model's length among arrays."""
    if ENCODED in arrays:
        vector = decode(arrays[ENCODED], max_dim=dim)
        return [vector.values if vector.positions is None else vector.to_dense()]
    return [array for array in arrays.values() if array.shape == (dim,) and array.dtype.kind == "f"]


def _vector(update: Update) -> NDArray[Any] | None:
    """Return the upload where it is one vector, with all of its coordinates."""
    arrays: Mapping[str, NDArray[Any]] = update.arrays()
    if len(arrays) != 1:
        return None
    ((name, alone),) = arrays.items()
    if name == ENCODED:
        vector = decode(alone, max_dim=max(alone.nbytes, 1))
        return vector.values if vector.positions is None else None
    return alone if alone.dtype.kind == "f" else None


def _last(before: str, after: str) -> Release | None:
    """Return the one release that an account has more than it had, None if it is not one."""
    known = dict(AgentLedger.joined([before]).entries)
    more = [
        (release, times - known.get(release, 0))
        for release, times in AgentLedger.joined([after]).entries
        if times != known.get(release, 0)
    ]
    return more[0][0] if len(more) == 1 and more[0][1] == 1 else None


__all__ = ["Replays", "Residuals", "Silence", "vectors_of"]
