"""The Ray engine: agents sharded over processes, one batch of messages per process and round.

Strategy, ClientApp and messages are the same as on the in-process engine, and so are the bits. The
agents' states stay in the agents' processes. ``privet.sim.ray.batches`` describes the transport of
a batch. Agents of an actor that are batched as on the cohort engine exchange rows, not messages.
"""

from __future__ import annotations

import logging
import math
import pickle
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Error, Message
from numpy.typing import NDArray

from privet.agents.cohort import Tags, row_of
from privet.agents.inputs import starting_rows
from privet.agents.state_tables import StateTable
from privet.core import ConfigError
from privet.rounds.collect.broadcast import payload_bytes
from privet.rounds.exchange import STOPPED, NotAwaited, Reply, late_reply
from privet.rounds.together import Worked

from ..grid import CRASHED, LocalGrid, NodeConfig
from .actors import Actors, Seat
from .batches import CROSSES_ONCE, Common, pack, unpack
from .hosts import check_hosts, living_hosts
from .session import cluster_cpus, cluster_gpus, ray_session
from .shard import Factory, Shard
from .waiting import Waiting

log = logging.getLogger("flwr.privet")

PULL_PATIENCE = 1.0
"""Seconds a pull waits for replies under way; a deadline is overrun by that much at most."""
STOPS = "no reply before the run stopped"
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


class Work(NamedTuple):
    """Work that one actor was given, and the places of its agents among those chosen."""

    seat: Seat
    places: NDArray[np.intp]


class RayGrid(LocalGrid):
    """Runs the agents in Ray actors, each of which holds a block of nodes; hosts may come and go.

    The agents of an actor whose process ends are absent from the round under way, and their
    releases in it count. Another process takes the actor's place if its host lives; else its nodes
    go to the actors that are left (``privet.sim.ray.actors``). In the next round the agents hold no
    state, and the algorithm's rule for that applies. An actor that starts later, on a host that
    joined, is given a share of the nodes with their states.

    Values of more than 4 kB go to actors on this machine, and come back, in memory that they share
    with the grid, up to 512 MB for each. To other machines, what several actors are sent goes once
    to each machine; all else travels with the messages.

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
    runtime_env : mapping, optional
        Ray's ``runtime_env``, for the processes on a cluster's hosts.

    Raises
    ------
    ConfigError
        If Ray is not installed, ``actors`` is below 1, or Ray has no room for ``num_gpus``.
    RunError
        If Ray does not start, the actors do not, or a host of the cluster cannot run agents: it has
        another version of Python, of this library, Flower or numpy, or no file at ``data-path``.
        The line says why.

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
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        if actors is not None and actors < 1:
            raise ConfigError(f"actors = {actors!r}: must be >= 1")
        if not (GPU_UNIT <= num_gpus < 1 or (num_gpus >= 0 and num_gpus % 1 == 0)):
            raise ConfigError(
                f"num_gpus = {num_gpus!r}: must be a fraction >= {GPU_UNIT:g}, or a whole number"
            )
        self._run_config = dict(run_config or {})
        super().__init__(nodes, self._run_config)
        self._num_gpus = num_gpus
        self._under_way: dict[Any, Batch] = {}
        self._training: dict[Any, Seat] = {}
        self._forgotten: set[str] = set()
        self._open = ExitStack()
        try:
            session = ray_session(address=address, num_cpus=actors, runtime_env=runtime_env)
            self._ray = self._open.enter_context(session)
            self._waiting = Waiting(self._ray, self._is_to_stop)
            self._fixed = actors
            self._sent_factory = self._ray.put(factory)  # what it holds, such as data, may be large
            count = self._wanted(require=True)
            hosts = living_hosts(self._ray)
            if address or len(hosts) > 1:
                data_path = str(self._run_config.get("data-path", ""))
                check_hosts(self._ray, hosts, data_path, log.info)
            self._actors = Actors(
                self._ray, self._start, self.node_configs, self._wanted, self._waiting
            )
            self._open.callback(self._actors.end)
            blocks = np.array_split(list(self.node_configs), count)
            self._actors.begin(block.tolist() for block in blocks)
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

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are online and whose actors work, after waiting for new actors."""
        self._actors.tend(self.round_timeout / 2, self._busy())
        return [node for node in super().get_node_ids() if self._actors.is_working(node)]

    # ------------------------------------------------------------------ messages

    def dispatch(self, messages: list[Message]) -> None:
        """Send one batch to every actor that has messages."""
        batches: dict[Seat, list[Message]] = {}
        for message in messages:
            node = message.metadata.dst_node_id
            seat = self._actors.seat_of(node)
            if node not in self.online or seat is None:
                self.arrived(message, self.not_connected(message))
            else:
                batches.setdefault(seat, []).append(message)
        busy = self._busy()
        common = Common(self._ray.put)
        for seat, batch in batches.items():
            if not seat.shared:
                common.note(batch)
        for seat, batch in batches.items():
            # An arena that is not read yet must not be overwritten.
            free = seat.number not in busy
            arena = seat.arena if seat.shared and free else None
            sent, references = pack(batch, arena, None if seat.shared else common)
            asked = seat.actor.answer.remote(sent, free, *references)
            self._under_way[asked] = Batch(seat, batch)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages, each once, waiting for them a short while.

        Where the run is to stop, those that are not there in time are answered with an error.
        """
        wanted = list(message_ids)
        self._collect(wanted, PULL_PATIENCE)
        if self._waiting.left() <= 0:
            self._give_up(set(wanted) - self._replies.keys())
        return super().pull_messages(wanted)

    def _give_up(self, message_ids: Container[str]) -> None:
        """Answer messages whose replies are not waited for any more."""
        for batch in self._under_way.values():
            for message in batch.messages:
                message_id = message.metadata.message_id
                if message_id in message_ids and message_id not in self._forgotten:
                    self.arrived(message, NotAwaited(STOPS, message))
                    self._forgotten.add(message_id)

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
        deadline = time.monotonic() + (math.inf if patience is None else patience)
        missing = set(wanted) - self._replies.keys()
        while missing and self._under_way:
            left = max(0.0, deadline - time.monotonic())
            finished, _ = self._waiting.wait(list(self._under_way), left, 1)
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
            seat.shared, seat.by_message = answers.shared, False
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
    ) -> Worked:
        """Let every actor do a round's local work for those of its nodes that can be batched.

        The nodes of an actor that is late or ends are missing; those of one that is busy, or that
        cannot do it, are left to messages, which detect the cause.
        """
        busy, shares = self._busy(), dict[Seat, list[int]]()
        for place, node in enumerate(nodes):
            seat = self._actors.seat_of(node)
            if (
                node in self.online
                and seat is not None
                and not seat.by_message
                and seat.number not in busy
            ):
                shares.setdefault(seat, []).append(place)
        told: Any = shared
        if len(shares) > 1 and payload_bytes(shared) >= CROSSES_ONCE:
            told = self._ray.put(shared)
        requests: dict[Any, Work] = {}
        for seat, share in shares.items():
            places, chosen = np.array(share), [nodes[one] for one in share]
            rows = states and starting_rows(states, places), row_of(per_agent, places)
            sent = seat.actor.train.remote(told, chosen, tags[places], *rows)
            requests[sent] = Work(seat, places)
        worked = Worked([], {})
        if not requests:
            return worked
        arrived, late = self._waiting.wait(list(requests), timeout)
        self._training |= {reference: requests[reference].seat for reference in late}
        for reference in arrived:
            seat, places = requests[reference]
            try:
                parts = self._ray.get(reference)
            except self._ray.exceptions.RayActorError as error:
                lost = Reply(None, f"error {CRASHED}: {self._actors.lost(seat, error)}", CRASHED)
                worked.missing.update(dict.fromkeys(places.tolist(), lost))
            except (self._ray.exceptions.RayError, *UNREADABLE):
                continue
            else:
                worked.done.extend(one._replace(places=places[one.places]) for one in parts)
        why = late_reply(timeout) if self._waiting.left() > 0 else Reply(None, STOPS, STOPPED)
        for reference in late:
            worked.missing.update(dict.fromkeys(requests[reference].places.tolist(), why))
        return worked

    # ------------------------------------------------------------------ checkpoints

    def node_states(self, accepted: Mapping[int, int] | None = None) -> list[StateTable]:
        """Return the states that agents have, those of the nodes ``accepted`` as of a `LocalGrid`.

        The agents of an actor that is busy, does not answer or has ended count as holding none; a
        warning gives their number.
        """
        if self._under_way:
            pending = list(self._under_way)
            for reference in self._ray.wait(pending, num_returns=len(pending), timeout=0.0)[0]:
                self._take_in(reference)
        return self._actors.states(self._busy(), accepted)

    def restore_node_states(self, states: Sequence[StateTable]) -> None:
        """Restore the states that ``node_states`` returned (raises ``RunError`` if that fails)."""
        self._actors.restore(states)

    # ------------------------------------------------------------------ actors

    def _busy(self) -> set[int]:
        """Return the numbers of the seats at work on batches, or on results that came too late."""
        if self._training:
            pending = list(self._training)
            for reference in self._ray.wait(pending, num_returns=len(pending), timeout=0.0)[0]:
                del self._training[reference]
        seats = (batch.seat for batch in self._under_way.values())
        return {seat.number for seat in (*seats, *self._training.values())}

    def _is_to_stop(self) -> bool:
        return self.stopping.is_set()

    def _wanted(self, *, require: bool = False) -> int:
        """Return how many actors there should be.

        With ``require`` there must be room for them (raises ``ConfigError``): Ray itself would wait
        for GPUs that nobody has.
        """
        nodes, cpus = max(1, len(self.node_configs)), cluster_cpus(self._ray)
        if not self._num_gpus:
            return min(self._fixed or cpus, nodes)
        share, gpus = self._num_gpus, cluster_gpus(self._ray)
        on_each = int(1 / GPU_UNIT) // int(share / GPU_UNIT + 1e-6) if share < 1 else 1
        room = sum(int(gpu // max(1, share)) * on_each for gpu in gpus)
        if require and room < (self._fixed or 1):
            there = f"GPUs: {sum(gpus):g}" if gpus else "no GPU"
            raise ConfigError(
                f"num_gpus = {share:g}: Ray has {there}, room for {room} of {self._fixed or 1} "
                "actors"
            )
        return min(self._fixed or min(cpus, room), nodes)

    def _start(self, nodes: list[int], address: str) -> Any:
        """Start an actor for some nodes, which finds its arena at an address.

        Ray spreads the actors over the hosts.
        """
        configs = {node: self.node_configs[node] for node in nodes}
        kind = self._ray.remote(
            num_cpus=1, num_gpus=self._num_gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )
        shard, given = kind(Shard), (self.run.run_id, configs, self._run_config, address)
        return shard.remote(self._sent_factory, *given)
