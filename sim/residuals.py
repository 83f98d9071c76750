"""Distances of uploads from the same uploads without noise, in units of the charged scale.

A message is delivered once more to an agent in the state that it was in, with draws that are given:
none (the upload u_0), the charged scale b in every coordinate (u_1), and 40 b in each with signs
that change. Where these show that a coordinate of the upload is u_0 + c g of its draw g alone, as
with one noised step and no projection, the upload u that was sent has

    |u - u_0| / |u_1 - u_0| = |g| / b,

the size of its draw in units of what was charged, whatever c is; such sizes are exponential of mean
1 (`privet.sim.empirical.scale_bound`). Draws that are given are added off the grid, so that the
ratio may be too small by 2^-13, and by the rounding of the upload's dtype: so much is added to it,
which favours the run. Where an upload is of several draws, masked, or no such function, as
with local updates one after another, a set that models stay in, or an l1 regulariser, nothing is
measured.

Gaussian noise is measured so where records are sampled. Who takes part differs from one delivery to
the next, so that only coordinates count that no record moves, as those of canaries that are not
there. A message may have several draws g_1, ..., g_K: each is given by itself, which shows its
factor c_k, and the distance in units of b sqrt(sum c_k^2) is the size of a normal number.
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
from privet.sim.grid import NodeConfig, Nodes
from privet.sim.inline import app_of
from privet.wire.contract import Instruction, Update, read_update
from privet.wire.payload import ENCODED
from privet.wire.records import own_content
from privet.wire.sparse import decode

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

    Of Laplace noise, or, where ``gaussian``, of sampled records: then the sum of their squares.
    ``fits`` is false once an upload of such noise could not be measured.
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
        """Add the sizes of an upload's draws, where it is of Laplace noise, or of sampled records.

        ``state`` is a copy of the node's before the message, ``update`` its reply to it.
        """
        node = message.metadata.dst_node_id
        release = _last(self._accounts.get(node, ""), update.ledger)
        self._accounts[node] = update.ledger
        sampled = release is not None and release.sampling < 1
        if release is not None and release.mechanism != "laplace" and not sampled:
            return
        into.gaussian = sampled
        sizes = None
        if (
            sampled
            and release is not None
            and release.draws <= MOST_DRAWS
            and not instruction.attempt
        ):
            idle = _idle(self._problems[int(self._configs[node]["partition-id"])])
            sizes = self._normal(message, state, instruction, update, release, idle)
        elif release is not None and release.draws == 1 and not instruction.attempt:
            sizes = self._sizes(message, state, instruction, update, release.scale)
        if sizes is None:
            into.fits = False
            return
        into.total += float((sizes**2 if sampled else sizes).sum())
        into.count += sizes.size

    def _sizes(
        self,
        message: Message,
        state: RecordDict,
        instruction: Instruction,
        update: Update,
        scale: float,
    ) -> Vector | None:
        sent = _vector(update)
        if sent is None:
            return None
        signs = np.where(np.arange(sent.size) % 2, FAR, -FAR)
        draws = [np.full(sent.size, scale * share) for share in (0.0, 1.0)]
        played = [
            self._upload(message, state, instruction, given)
            for given in (*draws, signs * scale, -signs * scale)
        ]
        if any(one is None or one.shape != sent.shape for one in played):
            return None
        bare, moved, *far = (np.asarray(one, np.float64) for one in played)
        gain = moved - bare
        rounding = 8.0 * float(np.finfo(sent.dtype).eps)
        rounding *= max(float(np.abs(one).max()) for one in (sent, bare, moved))
        for signed, one in zip((signs, -signs), far, strict=True):
            off = np.abs(one - bare - signed * gain)
            if (off > ALIKE * np.abs(signed * gain) + FAR * rounding).any():
                return None
        if (np.abs(gain) <= 16.0 * rounding).any():
            return None
        sizes: Vector = (np.abs(sent - bare) + rounding) / (np.abs(gain) - rounding)
        return (sizes + GRID_SLACK) * (1.0 + ALIKE)

    def _normal(
        self,
        message: Message,
        state: RecordDict,
        instruction: Instruction,
        update: Update,
        release: Release,
        idle: NDArray[np.bool_],
    ) -> Vector | None:
        """Return the sizes of the noise where no record moves the upload, None if it is no line."""
        sent = _vector(update)
        if sent is None or not idle.any():
            return None
        shape = release.draws, sent.size
        far = np.where(np.arange(sent.size) % 2, FAR, -FAR) * release.scale
        given = [np.zeros(shape), np.broadcast_to(far, shape)]
        for step in range(release.draws):
            alone = np.zeros(shape)
            alone[step] = release.scale
            given.append(alone)
        played = [self._upload(message, state, instruction, draws) for draws in given]
        if any(one is None or one.shape != sent.shape for one in played):
            return None
        bare, moved, *each = (np.asarray(one, np.float64)[idle] for one in played)
        seen = np.asarray(sent, np.float64)[idle]
        rounding = 8.0 * release.draws * float(np.finfo(sent.dtype).eps)
        rounding *= max(float(np.abs(one).max()) for one in (seen, bare, moved))
        gains = np.array([one - bare for one in each])
        off = np.abs(moved - bare - far[idle] / release.scale * gains.sum(0))
        gain = np.sqrt((gains**2).sum(0))
        if (off > ALIKE * FAR * gain + FAR * rounding).any() or (gain <= 16.0 * rounding).any():
            return None
        sizes: Vector = (np.abs(seen - bare) + rounding) / (gain - rounding)
        slack = GRID_SLACK * math.sqrt(release.draws)
        return (sizes + slack) * (1.0 + ALIKE)

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


def _idle(problem: Problem) -> NDArray[np.bool_]:
    """Return the coordinates of a linear model that none of its records moves."""
    x = np.linspace(-1.0, 1.0, problem.dim).astype(problem.dtype)
    regularizer: Any = getattr(problem, "regularizer", None)
    idle: NDArray[np.bool_] = problem.gradient(x) == regularizer.gradient(x)
    return idle


def vectors_of(arrays: Mapping[str, NDArray[Any]], dim: int) -> list[Vector]:
    """Return the vectors of a model's length among arrays."""
    if ENCODED in arrays:
        vector = decode(arrays[ENCODED], max_dim=dim)
        return [vector.values if vector.positions is None else vector.to_dense()]
    return [array for array in arrays.values() if array.shape == (dim,) and array.dtype.kind == "f"]


def _vector(update: Update) -> NDArray[Any] | None:
    """Return the upload where it is one vector, not encoded."""
    arrays: Mapping[str, NDArray[Any]] = update.arrays()
    alone = None if len(arrays) != 1 or ENCODED in arrays else next(iter(arrays.values()))
    return None if alone is None or alone.dtype.kind != "f" else alone


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
