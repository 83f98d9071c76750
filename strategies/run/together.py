"""Agents whose local work a grid does together, without a message to each of them.

The cohort engine (`privet.sim.cohort`) is such a grid. What the messages and replies would have
been is known all the same: their sizes count, their digests are compared, and where an upload has
to be looked at by itself, its reply is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from privet.client_apps.cohort import Tags, Trained
from privet.wire import RECORD, Update, UploadError
from privet.wire.contract import update_record
from privet.wire.dense import pack as payload
from privet.wire.records import record_dict

from ..half import FoldingHalf, Rows, ServerHalf, Uploads, grouped, summing
from .exchange import Reply


@runtime_checkable
class WorksTogether(Protocol):
    """A grid that can do the local work of many nodes at once (the cohort engine)."""

    def train_together(
        self,
        shared: ConfigRecord,
        nodes: Sequence[int],
        tags: Tags,
        states: Mapping[str, NDArray[Any]] | None,
    ) -> list[Trained]:
        """Do a round's local work of those of these nodes that can, as `Cohort.train`."""
        ...


def working_together(half: ServerHalf[Any], grid: Grid) -> WorksTogether | None:
    """Return the grid as one that works together, None where it or the algorithm does not."""
    if not isinstance(grid, WorksTogether) or summing(half) or grouped(half):
        return None
    if half.agent.codes or half.agent.broadcast_width:  # a code is one agent's at a time
        return None
    return grid if isinstance(half, FoldingHalf) and half.stacks and half.agent.stacks else None


class Together(NamedTuple):
    """What agents did together in a round, in folding order.

    Attributes
    ----------
    names : list of str
    positions : array (k,) of int
    upload : Rows
    digests, num_examples : array (k,)
    delta : float
    size : int
        Bytes of one upload.
    """

    names: list[str]
    positions: NDArray[np.intp]
    upload: Rows
    digests: NDArray[np.uint64]
    num_examples: NDArray[np.int64]
    delta: float
    size: int

    @classmethod
    def of(
        cls, names: Sequence[str], positions: Sequence[int], done: Sequence[Trained]
    ) -> Together:
        """Return the results of several blocks as one; ``names`` are those that were asked."""
        places = np.concatenate([one.places for one in done])
        order = np.argsort(places)
        places = places[order]

        def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
            whole: NDArray[Any] = np.concatenate(parts)[order]
            return whole

        upload = Rows({name: joined([one.upload[name] for one in done]) for name in done[0].upload})
        return cls(
            [names[place] for place in places.tolist()],
            np.array(positions, np.intp)[places],
            upload,
            joined([one.digests for one in done]),
            joined([one.num_examples for one in done]),
            done[0].delta,
            len(payload({name: array[0] for name, array in upload.items()})),
        )

    @classmethod
    def merged(cls, parts: Sequence[Together]) -> Together:
        """Return the results of several groups of agents, in folding order, as one."""
        if len(parts) == 1:
            return parts[0]
        order = np.argsort(np.concatenate([part.positions for part in parts]))

        def joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
            whole: NDArray[Any] = np.concatenate(arrays)[order]
            return whole

        names = [name for part in parts for name in part.names]
        return cls(
            [names[place] for place in order.tolist()],
            joined([part.positions for part in parts]),
            Rows({key: joined([part.upload[key] for part in parts]) for key in parts[0].upload}),
            joined([part.digests for part in parts]),
            joined([part.num_examples for part in parts]),
            parts[0].delta,
            parts[0].size,
        )

    def accepted(self, half: FoldingHalf[Any], state: Any, expected: NDArray[np.int64]) -> Uploads:
        """Return what is folded of all uploads.

        Parameters
        ----------
        expected : array (k,) of int
            The numbers of examples that the agents are enrolled with.

        Raises
        ------
        UploadError, WireError
            If one of them cannot be folded.
        """
        folded, agreed = cast(Any, half).accept(state, self.positions, self.upload)
        if not np.array_equal(agreed, self.digests):
            raise UploadError("digests differ")
        if not np.array_equal(expected, self.num_examples):
            raise UploadError("numbers of examples differ")
        return Uploads(self.positions, folded)

    def replies(self, protocol: str, version: int, round_: int) -> dict[str, Reply]:
        """Return the replies that the agents would have sent."""
        return {
            name: Reply(
                record_dict({RECORD: update_record(protocol, version, self.update(row, round_))})
            )
            for row, name in enumerate(self.names)
        }

    def update(self, row: int, round_: int) -> Update:
        """Return one agent's upload as it would have been sent."""
        return Update(
            agent=self.names[row],
            round=round_,
            num_examples=int(self.num_examples[row]),
            digest=int(self.digests[row]),
            payload=payload({name: array[row] for name, array in self.upload.items()}),
            epsilon=math.inf,
            delta=self.delta,
            note="",
            ledger="",
        )
