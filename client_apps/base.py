"""One Flower ClientApp for every primal-dual algorithm: messages, state, failures, the veto.

The handlers obey the message and the node config, never ``run_config``, so that they work inside
any Flower project. State is written last and only on success.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from privet.privacy import BudgetRefused, NoCertificateError
from privet.problems import Problem
from privet.wire import (
    FAILED,
    RECORD,
    REFUSED,
    ConfigError,
    Enrolment,
    Layout,
    PrivetError,
    Update,
    WireError,
    algorithm,
    digest,
    unpack,
)
from privet.wire.contract import (
    CONTRACT_VERSION,
    Instruction,
    decode_settings,
    enrolment_record,
    need_state_record,
    read_instruction,
    update_record,
)
from privet.wire.errors import one_line
from privet.wire.payload import to_payload
from privet.wire.threads import pin_blas_threads

from .guard import Guard, NoiseFactory, is_private, node_veto, require_tame, speaks_little
from .half import AgentHalf, Streams
from .state import PRIVATE_RECORD, AgentState, read_state, write_state

log = logging.getLogger("flwr.privet")

ProblemFn = Callable[[Context], Problem]

LOCAL_KEYS = (
    "local-solver",
    "local-epochs",
    "step-size",
    "batch-size",
    "strong-convexity",
    "smoothness",
)
"""Parameters that an agent may set for itself, in its node config or in ``client_app``."""


def agent_name(context: Context) -> str:
    """Return the agent's stable name: ``agent`` or ``partition-id`` of the node config, else its
    node id."""
    config = context.node_config
    for key in ("agent", "partition-id"):
        if key in config:
            return str(config[key])
    return str(context.node_id)


class Participant:
    """What an agent does with the messages of any registered algorithm.

    Parameters
    ----------
    problem_fn : callable
        ``context -> Problem``; called once per run and node in a process.
    protocol : str, optional
        The only algorithm to serve; by default every registered one.
    overrides : mapping, optional
        The agent's own values of ``LOCAL_KEYS``; its node config may override them again.
    noise_factory : callable, optional
        Replaces the source of privacy noise; what it gives counts as explicit noise, and the
        run as not private.
    """

    def __init__(
        self,
        problem_fn: ProblemFn,
        *,
        protocol: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        noise_factory: NoiseFactory | None = None,
    ) -> None:
        for key in overrides or {}:
            if key not in LOCAL_KEYS:
                raise ConfigError(f"{key!r} cannot be set by an agent: {', '.join(LOCAL_KEYS)}")
        self._problem_fn = problem_fn
        self._protocol = protocol
        self._overrides = dict(overrides or {})
        self._noise_factory = noise_factory
        self._problems: dict[tuple[int, int], Problem] = {}
        self._prepared: dict[tuple[int, int], tuple[AgentHalf, Problem]] = {}

    # ------------------------------------------------------------------ handlers

    def query(self, message: Message, context: Context) -> Message:
        """Answer the enrolment question.

        Privacy: the reply holds the agent's name, its declared number of examples (public), the
        model's shape and dtype, and which rounds' states it holds; nothing else.
        """
        return self._guarded(self._query, message, context)

    def train(self, message: Message, context: Context) -> Message:
        """Do one round's local work and return the upload.

        Privacy: the upload is one release; it is charged to the agent's ledger, and its budget
        asked, before anything is computed from the data.
        """
        return self._guarded(self._train, message, context)

    def evaluate(self, message: Message, context: Context) -> Message:
        """Return the loss of the model at this agent's data, unless the agent is private.

        Privacy: an evaluation is an un-noised release, so an agent with a budget, or one that was
        enrolled or has taken part in a private run, declines.
        """
        return self._guarded(self._evaluate, message, context)

    # ------------------------------------------------------------------ what they do

    def _guarded(
        self,
        handler: Callable[[Message, Context, str], RecordDict],
        message: Message,
        context: Context,
    ) -> Message:
        """Run a handler; a failure becomes an error reply of one line naming the agent.

        Only this library's own texts are sent from an agent with privacy on: any other could
        quote a record.
        """
        pin_blas_threads()
        name = agent_name(context)
        try:
            return Message(handler(message, context, name), reply_to=message)
        except BudgetRefused as refusal:
            log.warning("agent %s refuses: %s", name, refusal.reason)
            error = Error(REFUSED, f"agent {name}: {refusal.reason}")
        except (PrivetError, NoCertificateError) as problem:
            log.warning("agent %s: %s", name, problem)
            error = Error(FAILED, f"agent {name}: {problem}")
        except Exception as problem:
            log.exception("agent %s failed", name)
            kind = type(problem).__name__
            quiet = speaks_little(message, context)
            said = f"{kind} (text withheld: private run)" if quiet else one_line(str(problem))
            error = Error(FAILED, f"agent {name}: {said or kind}")
        return Message(error, reply_to=message)

    def _problem(self, context: Context) -> Problem:
        key = (context.run_id, context.node_id)
        if key not in self._problems:
            if any(run != context.run_id for run, _ in self._problems):
                self._problems.clear()
                self._prepared.clear()
            self._problems[key] = self._problem_fn(context)
        return self._problems[key]

    def _prepared_problem(self, half: AgentHalf, context: Context) -> Problem:
        key = (context.run_id, context.node_id)
        known = self._prepared.get(key)
        if known is None or known[0] is not half:
            known = self._prepared[key] = (half, half.prepare(self._problem(context)))
        return known[1]

    def _half(self, protocol: str, version: int, settings: str, context: Context) -> AgentHalf:
        if self._protocol not in (None, protocol):
            raise WireError(f"serves {self._protocol}, not {protocol}")
        own = {k: context.node_config[k] for k in LOCAL_KEYS if k in context.node_config}
        half = _agent_half(protocol, settings, tuple({**self._overrides, **own}.items()))
        if half.version != version:
            raise WireError(f"speaks {protocol} version {half.version}, asked for {version}")
        return half

    def _query(self, message: Message, context: Context, name: str) -> RecordDict:
        node_veto(context)  # a budget that cannot be read closes the node at once
        asked = message.content[RECORD]
        if not isinstance(asked, ConfigRecord) or asked.get("contract") != CONTRACT_VERSION:
            raise WireError(f"enrolment question is not of contract version {CONTRACT_VERSION}")
        protocol = str(asked["protocol"])
        half = algorithm(protocol).load_agent()
        if self._protocol not in (None, protocol):
            raise WireError(f"serves {self._protocol}, not {protocol}")
        if asked.get("quiet"):
            context.state[PRIVATE_RECORD] = ConfigRecord()
        problem = self._problem(context)
        held = read_state(context)
        known = held.rounds if held.experiment == asked["experiment"] else ()
        said = Enrolment(
            agent=name,
            num_examples=problem.num_examples,
            dim=problem.dim,
            dtype=str(problem.dtype),
            protocol=protocol,
            version=half.version,
            experiment=held.experiment,
            rounds=known,
            unit=str(context.node_config.get("unit", "")),
        )
        return RecordDict({RECORD: enrolment_record(said)})

    def _train(self, message: Message, context: Context, name: str) -> RecordDict:
        asked = read_instruction(message.content)
        half = self._half(asked.protocol, asked.version, asked.settings, context)
        problem = self._prepared_problem(half, context)
        broadcast = asked.broadcast()
        held = read_state(context)
        base = _base_state(asked, held)
        if base is None:
            if asked.tag:
                return RecordDict({RECORD: need_state_record(name)})
            base = dict(half.restart(broadcast, problem))
        if half.private:
            require_tame((*base.values(), *broadcast.values()))
        settings = _settings(asked.settings)
        ledger = held.ledger or asked.ledger
        guard = Guard(context, settings, ledger, name, asked.round, self._noise_factory)
        spent = guard.charge(half, problem)
        streams = Streams(int(settings.get("seed", 0)), name, asked.round)
        local = half.local_update(base, broadcast, problem, streams, spent.noise)
        reply = Update(
            agent=name,
            round=asked.round,
            num_examples=problem.num_examples,
            digest=digest(local.agreed),
            payload=to_payload(local.upload),
            epsilon=spent.epsilon,
            delta=spent.delta,
            note=spent.note,
            ledger=spent.ledger,
        )
        content = RecordDict({RECORD: update_record(asked.protocol, asked.version, reply)})
        write_state(
            context,
            held.follow(asked.experiment, asked.tag, base, asked.round, local.state, spent.ledger),
        )
        return content

    def _evaluate(self, message: Message, context: Context, name: str) -> RecordDict:
        if is_private(context):
            raise BudgetRefused("declines evaluation: it would be an un-noised release")
        arrays = message.content["arrays"]
        if not isinstance(arrays, ArrayRecord):
            raise WireError("evaluation message has no ArrayRecord 'arrays'")
        problem = self._problem(context)
        vector = Layout.of(arrays).flatten(arrays)
        if vector.size != problem.dim:
            raise WireError(f"model has {vector.size} parameters, the problem {problem.dim}")
        metrics: dict[str, int | float] = {
            "loss": problem.value(vector.astype(problem.dtype, copy=False)),
            "num-examples": problem.num_examples,
        }
        return RecordDict({"metrics": MetricRecord(metrics)})  # type: ignore[arg-type]


def client_app(
    protocol: str | None,
    problem_fn: ProblemFn,
    *,
    settings: Mapping[str, Any] | None = None,
    noise_factory: NoiseFactory | None = None,
    mods: list[Mod] | None = None,
) -> ClientApp:
    """Return a Flower ClientApp that takes part in an algorithm.

    Parameters
    ----------
    protocol : str or None
        Name of the algorithm; None serves every registered one, as the message asks.
    problem_fn : callable
        ``context -> Problem``, the agent's own data and loss.
    settings : mapping, optional
        The agent's own ``local-solver``, ``local-epochs``, ``step-size``, ``batch-size``,
        ``strong-convexity``, ``smoothness``.
    noise_factory : callable, optional
        ``(agent, round) -> NoiseSource`` in place of the system's noise; for replays.
    mods : list of Flower mods, optional

    Examples
    --------
    >>> import numpy as np
    >>> from privet.problems import RidgeRegression
    >>> app = client_app("fed-plt", lambda context: RidgeRegression(np.eye(2), np.ones(2)))
    """
    if protocol is not None:
        algorithm(protocol)
    participant = Participant(
        problem_fn, protocol=protocol, overrides=settings, noise_factory=noise_factory
    )
    app = ClientApp(mods=mods)
    app.query("privet")(participant.query)
    app.train()(participant.train)
    app.evaluate()(participant.evaluate)
    return app


@lru_cache(maxsize=64)
def _settings(text: str) -> Mapping[str, Any]:
    return MappingProxyType(decode_settings(text))


@lru_cache(maxsize=256)
def _agent_half(protocol: str, settings: str, overrides: tuple[tuple[str, Any], ...]) -> AgentHalf:
    merged = {**decode_settings(settings), **dict(overrides)}
    half: AgentHalf = algorithm(protocol).load_agent().from_settings(merged)
    return half


def _base_state(asked: Instruction, held: AgentState) -> dict[str, Any] | None:
    """Return the state to go on from: the one sent along, else the one held under the tag."""
    if asked.recovery is not None:
        return unpack(asked.recovery)
    return held.at(asked.experiment, asked.tag)


__all__ = ["LOCAL_KEYS", "Participant", "ProblemFn", "agent_name", "client_app"]
