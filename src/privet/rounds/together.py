"""Agents whose local work a grid computes together, without a message to each of them.

The cohort engine (`privet.sim.cohort`) is such a grid, and so is the Ray engine. The messages and
replies are accounted for as if they had been sent: their sizes count, and their digests are
compared. A checkpoint holds the result of a task as the reply that its agent would have sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray

from privet.agents.cohort import ReplyCost, Tags, Trained, row_of
from privet.wire import RECORD, Update
from privet.wire.contract import update_record
from privet.wire.payload import to_payload
from privet.wire.records import record_dict

from .exchange import Reply
from .half import Arrays, ServerHalf


@runtime_checkable
class WorksTogether(Protocol):
    """A grid that can do the local work of many nodes at once."""

    def train_together(
        self,
        shared: ConfigRecord,
        nodes: Sequence[int],
        tags: Tags,
        states: Mapping[str, NDArray[Any]] | None,
        per_agent: Mapping[str, NDArray[Any]],
        timeout: float,
    ) -> Worked:
        """Do the local work of a round for those of these nodes that can, as `Cohort.train`.

        Nodes that were asked in another process, and whose result did not come within ``timeout``
        seconds, are missing.
        """
        ...


class Worked(NamedTuple):
    """What has come of the work of many nodes at once.

    Attributes
    ----------
    done : list of Trained
        The results that came.
    missing : dict of int to Reply
        By place among the nodes, why a result did not come. It may have left its agent, so the
        agent is absent from the round and its release counts; all others are asked by message.
    """

    done: list[Trained]
    missing: dict[int, Reply]


def by_message(half: ServerHalf[Any]) -> str:
    """Return why all agents of a half are asked by message; empty if they need not be."""
    if half.masked:
        return "uploads are masked"
    if half.agent.reads_tables:
        return "each reads its own table"
    if half.agent.codes:
        return "a code is one agent's at a time"
    return ""


class Together(NamedTuple):
    """The results of agents that worked together in a round, in folding order.

    Attributes
    ----------
    names : list of str
    positions : array (k,) of int
    upload : dict of str to array (k, ...)
        Of objects where the arrays differ in length.
    digests, num_examples : array (k,)
    costs : list of Cost
        The privacy cost of each agent by its own account; agents of one account share the object.
    size : int
        Bytes of all uploads, as if they had been sent.
    """

    names: list[str]
    positions: NDArray[np.intp]
    upload: Arrays
    digests: NDArray[np.uint64]
    num_examples: NDArray[np.int64]
    costs: list[ReplyCost]
    size: int

    @classmethod
    def of(
        cls, names: Sequence[str], positions: Sequence[int], done: Sequence[Trained]
    ) -> Together:
        """Return the results of several blocks as one; ``names`` are all agents that were given."""
        places = np.concatenate([one.places for one in done])
        order = np.argsort(places)
        places = places[order]
        upload = {key: _joined([one.upload[key] for one in done], order) for key in done[0].upload}
        costs = [one for part in done for one in part.costs]
        return cls(
            [names[place] for place in places.tolist()],
            np.array(positions, np.intp)[places],
            upload,
            _joined([one.digests for one in done], order),
            _joined([one.num_examples for one in done], order),
            [costs[place] for place in order.tolist()],
            _size(upload),
        )

    @classmethod
    def merged(cls, parts: Sequence[Together]) -> Together:
        """Return the results of several groups of agents, in folding order, as one."""
        if len(parts) == 1:
            return parts[0]
        order = np.argsort(np.concatenate([part.positions for part in parts]))
        names = [name for part in parts for name in part.names]
        costs = [one for part in parts for one in part.costs]
        upload = {
            key: _joined([part.upload[key] for part in parts], order) for key in parts[0].upload
        }
        return cls(
            [names[place] for place in order.tolist()],
            _joined([part.positions for part in parts], order),
            upload,
            _joined([part.digests for part in parts], order),
            _joined([part.num_examples for part in parts], order),
            [costs[place] for place in order.tolist()],
            sum(part.size for part in parts),
        )

    @classmethod
    def of_rows(
        cls,
        names: list[str],
        positions: Sequence[int],
        rows: Sequence[tuple[Together, int]],
    ) -> Together:
        """Return rows of several results, one of each agent, in folding order."""
        first, order = rows[0][0], np.arange(len(rows))
        upload = {
            key: _joined([one.upload[key][row : row + 1] for one, row in rows], order)
            for key in first.upload
        }
        return cls(
            names,
            np.array(positions, np.intp),
            upload,
            np.array([one.digests[row] for one, row in rows], np.uint64),
            np.array([one.num_examples[row] for one, row in rows], np.int64),
            [one.costs[row] for one, row in rows],
            _size(upload),
        )

    def reply(self, row: int, protocol: str, version: int, round_: int) -> Reply:
        """Return the reply that an agent would have sent."""
        update = self.update(row, round_, to_payload(row_of(self.upload, row)))
        return Reply(record_dict({RECORD: update_record(protocol, version, update)}))

    def updates(self, rounds: Sequence[int]) -> dict[str, Update]:
        """Return the uploads' metadata, without arrays, by the round of each.

        Agents of one account and round share an object.
        """
        shared: dict[tuple[int, int], Update] = {}
        for row, (one, round_) in enumerate(zip(self.costs, rounds, strict=True)):
            if (id(one), round_) not in shared:
                shared[id(one), round_] = self.update(row, round_)
        each = zip(self.names, self.costs, rounds, strict=True)
        return {name: shared[id(one), round_] for name, one, round_ in each}

    def update(self, row: int, round_: int, arrays: bytes = b"") -> Update:
        """Return an upload's metadata, and its arrays if they are given."""
        cost = self.costs[row]
        return Update(
            agent=self.names[row],
            round=round_,
            num_examples=int(self.num_examples[row]),
            digest=int(self.digests[row]),
            payload=arrays,
            epsilon=cost.epsilon,
            delta=cost.delta,
            note=cost.note,
            ledger=cost.ledger,
        )


def _size(upload: Arrays) -> int:
    count = len(next(iter(upload.values())))
    if any(array.dtype == object for array in upload.values()):
        return sum(len(to_payload(row_of(upload, row))) for row in range(count))
    return count * len(to_payload(row_of(upload, 0)))


def _joined(parts: Sequence[NDArray[Any]], order: NDArray[np.intp]) -> NDArray[Any]:
    """Return the rows of all parts in this order, as objects if their shapes differ."""
    if len({(part.shape[1:], part.dtype) for part in parts}) == 1:
        whole: NDArray[Any] = np.concatenate(parts)
    else:
        whole = np.empty(len(order), object)
        for row, array in enumerate(chain.from_iterable(parts)):
            whole[row] = array
    return whole[order]
