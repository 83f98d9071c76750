"""The Ray engine: agents sharded over processes, one batch of messages per process and round.

Strategy, ClientApp and messages are the same as on the in-process engine, and so are the bits. The
agents' states stay in the agents' processes. ``privet.sim.ray.batches`` describes the transport of
a batch. Agents of an actor that are batched as on the cohort engine exchange rows, not messages.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Error, Message
from numpy.typing import NDArray

from privet.client_apps.cohort import Tags, Trained, row_of
from privet.client_apps.inputs import starting_rows
from privet.client_apps.state_tables import StateTable
from privet.core import ConfigError
from privet.sim.grid import CRASHED, LocalGrid, NodeConfig
from privet.sim.ray.actors import Actors, Seat
from privet.sim.ray.batches import pack, unpack
from privet.sim.ray.session import cluster_cpus, cluster_gpus, ray_session
from privet.sim.ray.shard import Factory, Shard

PULL_PATIENCE = 1.0
"""Seconds a pull waits for replies under way; a deadline is overrun by that much at most."""
GPU_UNIT = 1e-4
"""The unit in which Ray counts fractions of a GPU."""
UNREADABLE = (pickle.UnpicklingError, AttributeError, ImportError)
"""Errors of unpickling replies with values of classes that are not known here."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that were sent to one actor."""

    seat: Seat
    messages: list[Message]

    def ids(self) -> list[str]:
        """Return the messages' ids."""
        return [message.metadata.message_id for message in self.messages]


class RayGrid(LocalGrid):
    """Runs the agents in Ray actors, each of which holds a block of consecutive nodes.

    An actor whose process ends is replaced. The messages it was working on are answered with
    Flower's error for a crashed ClientApp, so that its agents count as absent from the round; in
    the next one they hold no state, and the algorithm's rule for that applies.

    Values of more than 4 kB go to actors on this machine, and come back, in memory that they share
    with the grid, up to 512 MB for each; to and from other machines they travel with the rest.

    Parameters
    ----------
    factory : callable
        Makes the ClientApp, once in every actor. It is sent there by name, so it must be a function
        of a module that is installed there, or hold all it needs.
    nodes : int or sequence of mappings
        Number of nodes, or one node config each, as in ``LocalGrid``.
    run_config : mapping, optional
        Passed to the ClientApp's context.
    actors : int, optional
        Processes to shard the nodes over, at most one per node; by default one per core (of the
        cluster), or as many as its GPUs have room for.
    num_gpus : float, optional
        Share of a GPU for each actor, as Flower's ``client-resources-num-gpus``: a fraction of
        one GPU, or a whole number of them. Ray counts them and sets ``CUDA_VISIBLE_DEVICES``; the
        memory of a GPU it does not divide. With 0 every actor sees all GPUs of its machine.
    address : str, optional
        A running Ray cluster; by default Ray is started here. See ``privet.sim.ray.session``.

    Raises
    ------
    ConfigError
        If Ray is not installed, ``actors`` is below 1, or Ray has no room for ``num_gpus``.
    RunError
        If Ray does not start, or the actors do not: the line says why.

    Examples
    --------
    ::

        with RayGrid(make_app, 100, actors=4) as grid:
            FedPLT(num_agents=100).start(grid, initial_arrays)
    """

    def __init__(
        self,
        factory: Factory,
        nodes: int | Sequence[NodeConfig],
        run_config: Mapping[str, Any] | None = None,
        *,
        actors: int | None = None,
        num_gpus: float = 0.0,
        address: str | None = None,
    ) -> None:
        if actors is not None and actors < 1:
            raise ConfigError(f"actors = {actors!r}: must be >= 1")
        if not (GPU_UNIT <= num_gpus < 1 or (num_gpus >= 0 and num_gpus % 1 == 0)):
            raise ConfigError(
                f"num_gpus = {num_gpus!r}: must be a fraction >= {GPU_UNIT:g}, or a whole number"
            )
        self._run_config = dict(run_config or {})
        super().__init__(nodes, self._run_config)
        self._factory = factory
        self._num_gpus = num_gpus
        self._under_way: dict[Any, Batch] = {}
        self._forgotten: set[str] = set()
        self._open = ExitStack()
        try:
            session = ray_session(address=address, num_cpus=actors)
            self._ray = self._open.enter_context(session)
            count = min(self._most_actors(actors), max(1, len(self.node_configs)))
            blocks = np.array_split(list(self.node_configs), count)
            self._actors = Actors(self._ray, self._start, [block.tolist() for block in blocks])
            self._open.callback(self._actors.end)
            self._actors.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RayGrid:
        """Return the grid."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the actors, and Ray if it was started here."""
        self.close()

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        self._open.close()

    @property
    def actors(self) -> list[Any]:
        """The Ray actors, in the order of their nodes."""
        return [seat.actor for seat in self._actors.seats]

    # ------------------------------------------------------------------ messages

    def dispatch(self, messages: list[Message]) -> None:
        """Send one batch to every actor that has messages."""
        seats, number_of = self._actors.seats, self._actors.number
        batches: dict[int, list[Message]] = {}
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self.online or node not in number_of:
                self.arrived(message, self.not_connected(message))
            else:
                batches.setdefault(number_of[node], []).append(message)
        busy = self._busy()
        for position, batch in batches.items():
            seat = seats[position]
            # An arena that is not read yet must not be overwritten.
            free = position not in busy
            sent = pack(batch, seat.arena if seat.shared and free else None)
            self._under_way[seat.actor.answer.remote(sent, free)] = Batch(seat, batch)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages, each once, waiting for them a short while."""
        wanted = list(message_ids)
        self._collect(wanted, PULL_PATIENCE)
        return super().pull_messages(wanted)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push the messages and return the replies that arrive in ``timeout`` seconds.

        Later ones are dropped.
        """
        wanted = list(self.push_messages(messages))
        self._collect(wanted, timeout)
        replies = super().pull_messages(wanted)
        self.forget(wanted)
        return replies

    def forget(self, message_ids: Iterable[str]) -> None:
        """Drop the replies to these messages, also those still to come."""
        unwanted = set(message_ids)
        super().forget(unwanted)
        for batch in self._under_way.values():
            self._forgotten |= unwanted.intersection(batch.ids())

    def _collect(self, wanted: Iterable[str], patience: float | None) -> None:
        """Take in replies until all that are wanted are there."""
        deadline = None if patience is None else time.monotonic() + patience
        missing = set(wanted) - self._replies.keys()
        while missing and self._under_way:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            finished, _ = self._ray.wait(list(self._under_way), num_returns=1, timeout=left)
            if not finished:
                return
            for reference in finished:
                missing -= self._take_in(reference)

    def _take_in(self, reference: Any) -> set[str]:
        """Keep the replies of a batch, but for forgotten ones; return the ids of its messages."""
        batch = self._under_way.pop(reference)
        seat, ids = batch.seat, batch.ids()
        unwanted = self._forgotten.intersection(ids)
        self._forgotten -= unwanted
        sent = zip(ids, batch.messages, strict=True)
        try:
            answers = self._ray.get(reference)
            replies = list(unpack(answers.replies, seat.arena))
        except (self._ray.exceptions.RayError, *UNREADABLE) as error:
            reason = self._actors.lost(seat, error)
            for message_id, message in sent:
                if message_id not in unwanted:
                    self.arrived(message, Message(Error(CRASHED, reason), reply_to=message))
        else:
            seat.shared = answers.shared
            for (message_id, message), reply in zip(sent, replies, strict=True):
                if message_id not in unwanted:
                    self.arrived(message, reply)
        return set(ids)

    def train_together(
        self,
        shared: ConfigRecord,
        nodes: Sequence[int],
        tags: Tags,
        states: Mapping[str, NDArray[Any]] | None,
        per_agent: Mapping[str, NDArray[Any]],
        timeout: float,
    ) -> list[Trained]:
        """Let every actor do a round's local work for those of its nodes that can be batched.

        The nodes of an actor that is busy, is late or ends are left to messages, which detect the
        cause.
        """
        busy, shares = self._busy(), dict[int, list[int]]()
        for place, node in enumerate(nodes):
            number = self._actors.number.get(node)
            if node in self.online and number is not None and number not in busy:
                shares.setdefault(number, []).append(place)
        requests: dict[Any, NDArray[np.intp]] = {}
        for number, share in shares.items():
            places = np.array(share)
            rows = states and starting_rows(states, places), row_of(per_agent, places)
            actor = self._actors.seats[number].actor
            chosen = [nodes[one] for one in share]
            requests[actor.train.remote(shared, chosen, tags[places], *rows)] = places
        if not requests:
            return []
        arrived, _ = self._ray.wait(list(requests), num_returns=len(requests), timeout=timeout)
        done: list[Trained] = []
        for reference in arrived:
            with suppress(self._ray.exceptions.RayError, *UNREADABLE):
                places = requests[reference]
                parts = self._ray.get(reference)
                done += [one._replace(places=places[one.places]) for one in parts]
        return done

    # ------------------------------------------------------------------ checkpoints

    def node_states(self) -> list[StateTable]:
        """Return the state of every agent that has one.

        The agents of an actor that is busy, does not answer or has ended count as holding none; a
        warning gives their number.
        """
        if self._under_way:
            pending = list(self._under_way)
            for reference in self._ray.wait(pending, num_returns=len(pending), timeout=0.0)[0]:
                self._take_in(reference)
        return self._actors.states(self._busy())

    def restore_node_states(self, states: Sequence[StateTable]) -> None:
        """Restore the states that ``node_states`` returned (raises ``RunError`` if that fails)."""
        self._actors.restore(states)

    # ------------------------------------------------------------------ actors

    def _busy(self) -> set[int]:
        """Return the numbers of the seats with batches under way."""
        return {batch.seat.number for batch in self._under_way.values()}

    def _most_actors(self, wanted: int | None) -> int:
        """Return the largest number of actors (raises ``ConfigError`` if there is no room).

        Ray itself would wait for GPUs that nobody has.
        """
        if not self._num_gpus:
            return wanted or cluster_cpus(self._ray)
        share, gpus = self._num_gpus, cluster_gpus(self._ray)
        on_each = int(1 / GPU_UNIT) // int(share / GPU_UNIT + 1e-6) if share < 1 else 1
        room = sum(int(gpu // max(1, share)) * on_each for gpu in gpus)
        if room < (wanted or 1):
            there = f"GPUs: {sum(gpus):g}" if gpus else "no GPU"
            raise ConfigError(
                f"num_gpus = {share:g}: Ray has {there}, room for {room} of {wanted or 1} actors"
            )
        return wanted or min(cluster_cpus(self._ray), room)

    def _start(self, nodes: list[int], address: str) -> Any:
        """Start an actor for some nodes, which finds its arena at an address."""
        configs = {node: self.node_configs[node] for node in nodes}
        kind = self._ray.remote(num_cpus=1, num_gpus=self._num_gpus, max_restarts=0)
        shard = kind(Shard)
        return shard.remote(self._factory, self.run.run_id, configs, self._run_config, address)
