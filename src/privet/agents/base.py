"""Privacy-critical: an agent's message handlers, shared by every algorithm.

The handlers obey the message and the node config, never ``run_config``, so that they work inside
any Flower project. State is written last and only on success.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import Mod

from privet.core import ConfigError, NotFiniteError, PrivetError, WireError, algorithm
from privet.core.assignments import with_more
from privet.core.errors import ModelError, one_line
from privet.core.library import library_version
from privet.core.threads import pin_blas_threads
from privet.data.agreement import Agreement
from privet.data.dataset import DataError
from privet.data.meaning import (
    ENCODING_RECORD,
    LONGEST,
    Difference,
    Meaning,
    digest,
    is_statement,
)
from privet.kernel import (
    BudgetRefused,
    Facts,
    MaskError,
    NoCertificateError,
    NodeRules,
    NoiseError,
    Problem,
    RecordsError,
    Told,
)
from privet.kernel.door import Held
from privet.kernel.exits import Exits, require_persons, require_public, rows_per_person
from privet.kernel.node_rules import ALLOW_RUN_DATA
from privet.kernel.round import AgentRound, Ended
from privet.problems import L2, LinearModel, PooledL2, public_facts
from privet.problems.regularizers import USUAL_WEIGHT
from privet.wire import (
    ENROL,
    FAILED,
    NOT_FINITE,
    RECORD,
    REFUSED,
    Enrolment,
    Layout,
)
from privet.wire.contract import (
    CONTRACT_VERSION,
    ENROL_AGAIN,
    Instruction,
    decode_settings,
    encode_settings,
    means_privacy,
    read_experiment,
    read_protocol,
)
from privet.wire.enrolment import enrolment_record
from privet.wire.flower_internals import held_by
from privet.wire.records import read_field, record_dict
from privet.wire.rosters import ROSTER, signature_record

from .flower_mods import mod_around
from .guard import (
    NoiseFactory,
    Received,
    checked_settings,
    exits,
    is_private,
    node_rules,
    prepared,
    require_tame,
    screen_analysis,
)
from .half import Half
from .masking import MaskFactory, new_keys, sign_roster
from .measures import EVALUATE_ON, METRICS, evaluated_part, measures, sent_model
from .message_round import MessageRound
from .pace import Pace
from .state import LARGE, PRIVATE_RECORD, read_state
from .survivors import answered
from .terms import ENCODING, MEAN_EXAMPLES, POOLED_WEIGHT
from .unsigned import warn_of_unsigned

log = logging.getLogger("flwr.privet")

ProblemFn = Callable[[Context], Problem]
TableFn = Callable[[Context], Any]
MeaningOf = str | Callable[[Context], str]

_NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})

LOCAL_KEYS = (
    "local-solver",
    "local-epochs",
    "step-size",
    "batch-size",
    "strong-convexity",
    "smoothness",
)
"""Parameters that an agent may set for itself, in its node config or in ``client_app``."""


OWN = (PrivetError, NoCertificateError, NoiseError, MaskError, RecordsError, BudgetRefused)
"""Exceptions whose texts are written by this library and name no record."""
_KINDS: tuple[tuple[type[Exception], Told], ...] = (
    (BudgetRefused, Told.RULES),
    (NotFiniteError, Told.NUMBERS),
    (WireError, Told.MESSAGE),
    (NoCertificateError, Told.PROOF),
    (MaskError, Told.ROSTER),
    (ConfigError, Told.SETTING),
)
"""What a private node sends of an error of these classes that carries no text of its own, where no
record plays a part."""


MOST_FORMS = 8
"""Forms of an encoding, such as orders of columns, that a node that keeps to itself puts its data
into in a run: for each the data are read again."""
FORMS_RECORD = "privet.forms"
"""In a node's context: the digests of the forms that its data were put into."""
MOST_ADDED = 1 << 20
"""Numbers that categories of other sites may add to the rows of a node whose own are fewer."""
_OWN_KINDS = frozenset(("train", "evaluate", ENROL))
"""Messages that this library's own handlers answer, each failure with one line."""


class NotAgreedError(WireError):
    """The agent's data are not encoded as the run's agents have agreed: it is to enrol again."""


class OfRecords(Exception):
    """A failure where records are read, or worked on.

    Its arguments are the error, and what a private node sends of one that carries no text.
    """


@contextmanager
def no_exit() -> Iterator[None]:
    """Make ``sys.exit()`` of an app's own code, which would end the node's process, its failure."""
    try:
        yield
    except SystemExit as left:
        raise RuntimeError(
            f"the app's own code called sys.exit({left.code!r}), which is no way to end a task: "
            "raise an error"
        ) from left


def agent_name(context: Context) -> str:
    """Return the agent's stable name: ``agent`` or ``partition-id`` of the node config, else its
    node id."""
    return name_of(context.node_config, context.node_id)


def name_of(config: Mapping[str, Any], node: int) -> str:
    """Return the name of the agent on a node, by the node's config and id."""
    for key in ("agent", "partition-id"):
        if key in config:
            return str(config[key])
    return str(node)


class Participant:
    """Handles an agent's messages for any registered algorithm.

    Parameters
    ----------
    problem_fn : callable
        ``context -> Problem``; called once per run and node in a process.
    protocol : str, optional
        The only algorithm to serve; by default every registered one.
    overrides : mapping, optional
        The agent's own values of ``LOCAL_KEYS``; its node config may override them again.
    noise_factory : callable, optional
        Replaces the source of privacy noise; its draws count as explicit noise, and the run as not
        private.
    mask_factory : callable, optional
        Replaces the key agreement of secure sums; such a run is not private either.
    train_metrics : bool
        Whether an upload comes with a MetricRecord ``metrics``: ``num-examples``, and ``loss`` and
        the problem's own metrics at the model that was received. Never from a private agent.
    reply_seconds : float
        Seconds that every reply to a training message takes: it is held back until then, and one
        that takes longer is not sent. A private agent with a problem of its own takes part only
        with it in a run in which the time of a reply counts, an asynchronous one for example. A
        node's ``reply-seconds`` goes before it; 0 declares none.
    evaluate_on : str
        The examples that a federated evaluation is of: "training", or "held-out" for those of the
        problem's ``held_out``, a problem as well. The means over agents are weighted by how many
        there are. A private agent declines both.
    meaning : str or callable
        What the problem's numbers mean, or ``context -> str``: columns with units and order,
        classes, anything that the author of the problem can say. Agents of one run state the same,
        or are turned away. Problems of `privet.data` state their columns by themselves.
    table_fn : callable, optional
        ``context -> table``, which analyses read in place of the problem (`Half.of_table`); by
        default they take what ``problem_fn`` returns for one.
    """

    def __init__(
        self,
        problem_fn: ProblemFn,
        *,
        protocol: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        noise_factory: NoiseFactory | None = None,
        mask_factory: MaskFactory | None = None,
        train_metrics: bool = False,
        reply_seconds: float = 0.0,
        evaluate_on: str = "training",
        meaning: MeaningOf = "",
        table_fn: TableFn | None = None,
    ) -> None:
        if not 0 <= reply_seconds < math.inf:
            raise ConfigError(f"reply_seconds is {reply_seconds!r}, expected a number >= 0")
        if evaluate_on not in EVALUATE_ON:
            expected = " or ".join(EVALUATE_ON)
            raise ConfigError(f"evaluate_on is {evaluate_on!r}, expected {expected}")
        for key in overrides or {}:
            if key not in LOCAL_KEYS:
                raise ConfigError(f"{key!r} cannot be set by an agent: {', '.join(LOCAL_KEYS)}")
        self._problem_fn = problem_fn
        self._protocol = protocol
        self._overrides = dict(overrides or {})
        self.noise_factory = noise_factory
        self.mask_factory = mask_factory
        self.train_metrics = train_metrics
        self.reply_seconds = reply_seconds
        self.evaluate_on = evaluate_on
        self._meaning_of = meaning
        self._table_fn = table_fn
        self._analyses: dict[tuple[int, int], Half] = {}
        self._problems: dict[tuple[int, int], Problem] = {}
        self.own_kinds = _OWN_KINDS
        """The types of messages that these handlers answer, and no others of the app."""
        self._prepared: dict[tuple[int, int], tuple[Half, tuple[float, float], Held, Facts]] = {}
        self._decoded: tuple[bytes, bool, dict[str, Any]] = (b"", False, {})

    # ------------------------------------------------------------------ handlers

    def query(self, message: Message, context: Context) -> Message:
        """Answer the enrolment question, or one of a secure sum: to sign its roster, or `answered`.

        Privacy: a signature is of what was sent (`sign_roster`). The reply to the question holds
        the agent's name, its declared number of examples (public), the model's names, shapes and
        dtype, the rounds whose states it holds, the version of this library, what its columns mean
        (of a private agent, and in secure sums, digests of its public schema; of others, where they
        read a file of their own without one, also number, mean and sum of squares of each column),
        the experiment's entries in its ledger file (public numbers, as in every upload) and, for
        secure sums, a fresh public key, and whether its operator has pinned keys; nothing else.
        """
        return self._guarded(self._query, message, context)

    def train(self, message: Message, context: Context) -> Message:
        """Do one round's local work and return the upload.

        Privacy: the upload is one release. It is charged to the agent's ledger and checked against
        its budget before anything is computed from the data. In a run of secure sums it is masked;
        its cost is the same, as if the server saw it.
        """
        return self._guarded(self._train, message, context)

    def evaluate(self, message: Message, context: Context) -> Message:
        """Return the loss, and metrics, of the model at this agent's data, unless it is private.

        Privacy: an evaluation is an un-noised release, so an agent with a budget, or one that was
        enrolled or has taken part in a private run, declines.
        """
        return self._guarded(self._evaluate, message, context)

    def around(self, mods: Collection[Mod] | None) -> Mod:
        """Return the outermost mod of an app with these mods, which may have handlers of others.

        Privacy: a failure of a mod or a handler of the user's would leave with its own text, and
        the handler's answer would be an un-noised release, so a private agent declines.
        """

        def outermost(message: Message, context: Context, call_next: Any) -> Message:
            if not mods and message.metadata.message_type in self.own_kinds:
                answer: Message = call_next(message, context)
                return answer
            return self._of_others(message, context, call_next)

        return outermost

    def _of_others(self, message: Message, context: Context, call_next: Any) -> Message:
        # Decided before the user's code runs, which could change what the decision rests on.
        rules = self.exits(message, context)
        try:
            kind = message.metadata.message_type
            if kind not in self.own_kinds:
                rules.numbers(Told.EVALUATION if kind.startswith("evaluate") else Told.QUERY)
            with no_exit():
                answer: Message = call_next(message, context)
            return answer
        except Exception as error:
            if not rules.quiet:
                raise
            error = OfRecords(error, Told.WORK)
            return Message(
                self._failure(agent_name(context), error, message, context, rules), reply_to=message
            )

    # ------------------------------------------------------------------ implementation

    def _guarded(
        self,
        handler: Callable[[Message, Context, str], RecordDict],
        message: Message,
        context: Context,
    ) -> Message:
        """Run a handler; a failure becomes an error reply of one line naming the agent.

        A message whose time to live has expired, such as one of a round that has ended, is not
        processed. An agent with privacy on sends a text of a closed list (`Told`): any other could
        quote a record, or count them.
        """
        begun = time.monotonic()
        pin_blas_threads()
        name = agent_name(context)
        sent = message.metadata
        if (late := time.time() - sent.created_at - sent.ttl) > 0:
            line = f"agent {name}: the message expired {late:.0f} s ago by this node's clock"
            log.warning("%s: nothing is computed or charged", line)
            if self.exits(message, context).quiet:
                line = f"agent {name}: {Told.EXPIRED}"
            return Message(Error(FAILED, line), reply_to=message)
        try:
            # Steps that are too long overflow; the code that receives the numbers reports it.
            with no_exit(), np.errstate(over="ignore", invalid="ignore"):
                reply = Message(handler(message, context, name), reply_to=message)
        except Exception as error:
            reply = Message(self._failure(name, error, message, context), reply_to=message)
        return self._held_back(reply, name, message, context, begun)

    def _held_back(
        self, reply: Message, name: str, message: Message, context: Context, begun: float
    ) -> Message:
        """Return a reply when its declared time is over, an error if it was before.

        The error leaves at a multiple of that time.
        """
        if not message.metadata.message_type.startswith("train"):
            return reply
        try:
            seconds = node_rules(context).reply_seconds or self.reply_seconds
        except ConfigError:  # which the reply says
            return reply
        if not seconds:
            return reply
        taken = time.monotonic() - begun
        if taken > seconds:
            log.warning("agent %s: %s", name, Told.TOO_LONG)
            reply = Message(Error(REFUSED, f"agent {name}: {Told.TOO_LONG}"), reply_to=message)
        time.sleep(seconds * max(1, math.ceil(taken / seconds)) - taken)
        return reply

    def _failure(
        self,
        name: str,
        error: Exception,
        message: Message,
        context: Context,
        rules: Exits | None = None,
    ) -> Error:
        """Log a failure on the node, and return the error that is sent to the coordinator."""
        kind = next((told for each, told in _KINDS if isinstance(error, each)), Told.WORK)
        of_records = isinstance(error, OfRecords)
        if isinstance(error, OfRecords):
            error, kind = error.args
        library_error = isinstance(error, OWN)
        text = _text(error) if library_error else one_line(_text(error))
        # What failed in the user's own code, for the node's log alone: it may quote a record.
        cause = error.__cause__
        why = f" ({type(cause).__name__}: {one_line(_text(cause))})" if cause else ""
        if isinstance(error, BudgetRefused):
            log.warning("agent %s refuses: %s%s", name, text, why)
        elif library_error:
            log.warning("agent %s: %s%s", name, text, why)
        elif isinstance(error, (DataError, ValueError if kind is Told.DATA else ModelError)):
            # Most often a wrong data file, or a layer whose error explains more than a traceback.
            log.error("agent %s: %s: %s", name, type(error).__name__, text)
        else:
            log.error("agent %s failed", name, exc_info=error)
        rules = rules or self.exits(message, context)
        line = rules.line(error, text, kind)
        if isinstance(error, DataError) and not rules.quiet:  # nobody else is told of a file
            line = getattr(error, "told", "") or line
        code = REFUSED if isinstance(error, BudgetRefused) else FAILED
        if isinstance(error, NotFiniteError):
            code = NOT_FINITE
        if isinstance(error, NotAgreedError):
            code = ENROL_AGAIN
        if of_records and rules.quiet and line is kind:  # its class is that of what failed
            code = FAILED
        return Error(code, f"agent {name}: {line}")

    def exits(self, message: Message, context: Context) -> Exits:
        """Return the rules for what may leave this node in answer to a message."""
        return exits(message, context)

    def _problem(self, context: Context) -> Problem:
        key = (context.run_id, context.node_id)
        if key not in self._problems:
            if next(iter(self._problems), key)[0] != context.run_id:  # all are of one run
                self._problems.clear()
                self._prepared.clear()
            half = self._analyses.get(key)
            try:
                with no_exit():
                    if half is None:
                        self._problems[key] = self._problem_fn(context)
                    else:
                        table = (self._table_fn or self._problem_fn)(context)
                        self._problems[key] = half.of_table(table, context)
            except Exception as error:
                raise OfRecords(error, Told.DATA) from error
        return self._problems[key]

    def _look_as(self, analysis: Half | None, context: Context) -> None:
        """Have an analysis read the node's table; None stands for any other half."""
        key = (context.run_id, context.node_id)
        if self._analyses.get(key) == analysis:
            return
        self.forget(context)
        if next(iter(self._analyses), key)[0] != context.run_id:  # all are of one run
            self._analyses.clear()
        self._analyses.pop(key, None)
        if analysis is not None:
            self._analyses[key] = analysis

    def prepared_problem(
        self, half: Half, context: Context, settings: Mapping[str, Any] = _NO_SETTINGS
    ) -> tuple[Held, Facts]:
        """Return the problem to work on and its public numbers.

        In a private run it is divided by the declared number of examples, whatever the file holds.
        Where agents are weighted by their examples, it is divided by the mean number of them. A
        penalty that is left to the run has the weight that the message's ``settings`` say.
        """
        key = (context.run_id, context.node_id)
        sent = settings.get(MEAN_EXAMPLES, 0.0), settings.get(POOLED_WEIGHT, 0.0)
        known = self._prepared.get(key)
        if known is None or known[0] is not half or known[1] != sent:
            mean, weight = sent
            private = half.private or means_privacy(settings)
            problem = _with_penalty(self._problem(context), weight, private=private)
            if half.private:
                require_public(problem)
                require_persons(problem, _rows_per_person(context))
            if mean:
                problem = _weighted(problem, half, mean)
            rules = node_rules(context)
            facts = declared_facts(problem, rules)
            held = prepared(half, problem, facts)
            if half.private:
                held = held._replace(problem=_divided(held.problem, facts, rules))
            known = self._prepared[key] = (half, sent, held, facts)
        return known[2], known[3]

    @property
    def stackable(self) -> bool:
        """Whether agents may be batched: no replaced noise or masks, no metrics, no reply time."""
        replaced = (self.noise_factory, self.mask_factory, self.train_metrics, self.reply_seconds)
        return type(self) is Participant and not any(replaced)

    def forget(self, context: Context) -> None:
        """Free an agent's problem."""
        for built in (self._problems, self._prepared):
            built.pop((context.run_id, context.node_id), None)

    def has_problem(self, context: Context) -> bool:
        """Whether an agent's problem has been built."""
        return (context.run_id, context.node_id) in self._problems

    def prepared(self, instruction: Instruction, context: Context) -> tuple[Half, Held, Facts]:
        """Return the half, the problem and the facts that an agent uses in a round."""
        half = self.half(instruction, context)
        found = half, *self.prepared_problem(half, context, self.settings(instruction))
        self.require_encoding(instruction, context)
        return found

    def served(self, protocol: str) -> type[Half]:
        """Return the half of an algorithm that this participant serves.

        Raises
        ------
        WireError
            If it serves another one.
        ConfigError
            If there is none of this name.
        """
        if self._protocol not in (None, protocol):
            raise WireError(f"serves {self._protocol}, not {protocol}", Told.ALGORITHM)
        half: type[Half] = algorithm(protocol).load_agent()
        return half

    def half(self, instruction: Instruction, context: Context) -> Half:
        """Return the half that an instruction names (raises ``WireError``)."""
        protocol = instruction.protocol
        self.served(protocol)
        own_settings = self._own_settings(context)
        typed = tuple([(key, value, type(value)) for key, value in own_settings.items()])
        half = _agent_half(protocol, instruction.settings, typed)
        if half.version != instruction.version:
            raise WireError(
                f"speaks {protocol} version {half.version}, the instruction is of version "
                f"{instruction.version}",
                Told.VERSION,
            )
        self._look_as(half if half.reads_tables else None, context)
        return half

    @staticmethod
    def settings(instruction: Instruction) -> Mapping[str, Any]:
        """Return an instruction's checked settings (raises ``ConfigError``)."""
        return _settings(instruction.settings)

    def _own_settings(self, context: Context) -> dict[str, Any]:
        """Return the settings that this agent sets for itself, by key."""
        config = context.node_config
        return {**self._overrides, **{key: config[key] for key in LOCAL_KEYS if key in config}}

    def broadcast(self, instruction: Instruction, private: bool) -> Mapping[str, Any]:
        """Return the decoded broadcast; agents of one process decode the same bytes once.

        A large broadcast is not cached beyond its round.
        """
        payload, checked, arrays = self._decoded
        if payload is not instruction.payload or checked is not private:
            arrays = Received(instruction.broadcast())
            if private:
                require_tame(arrays.values())
            if len(instruction.payload) <= LARGE:
                self._decoded = (instruction.payload, private, arrays)
        return arrays

    def _query(self, message: Message, context: Context, name: str) -> RecordDict:
        question = message.content.get(RECORD)
        if isinstance(question, ConfigRecord) and question.get("kind") == ROSTER:
            signature = sign_roster(context, question, name)
            return record_dict({RECORD: signature_record(name, signature)})
        if isinstance(question, ConfigRecord) and (said := answered(context, question, name)):
            return said
        enrolment = self.enrolment(question, context)
        return record_dict({RECORD: enrolment_record(enrolment)})

    def enrolment(self, question: object, context: Context) -> Enrolment:
        """Return the answer to the enrolment question, as `query` sends it.

        Raises
        ------
        Exception
            As the answer to a message then says.
        """
        name = agent_name(context)
        rules = node_rules(context)  # rules that cannot be read close the node at once
        Pace(rules, context)
        if rules.limited:
            warn_of_unsigned(context.run_id)
        if refusal := mod_around():
            raise BudgetRefused(refusal, Told.MOD)
        if not isinstance(question, ConfigRecord) or question.get("contract") != CONTRACT_VERSION:
            raise WireError(
                f"enrolment question is not of contract version {CONTRACT_VERSION}", Told.CONTRACT
            )
        protocol, experiment = read_protocol(question), read_experiment(question)
        half = self._asked_for(protocol, question, context, rules)
        masked = bool(question.get("secure-sum"))
        quiet = bool(question.get("quiet")) or masked
        silent = quiet or is_private(context)
        if quiet:
            context.state[PRIVATE_RECORD] = ConfigRecord()
        problem = self._enrolled_problem(question, context, name, rules, silent=silent)
        row_norm = read_field(question, "row-norm", float, 0.0)
        encoding = self._statement(problem, context, row_norm, quiet=silent)
        text = read_field(question, ENCODING, str, "")
        if silent and encoding and not text and "data-path" in context.node_config:
            log.info(
                "agent %s: states a digest of what its columns mean, and nothing of its rows: in "
                "what these differ from other sites' is seen by privet data over the files alone",
                name,
            )
        facts = declared_facts(problem, rules)
        if rules.limited:
            _require_divided(facts, rules)
        rules.require_delta(facts.num_examples)
        held = read_state(context)
        layout, buffers = (getattr(problem, name, None) for name in ("layout", "buffers"))
        known = held.rounds if held.experiment == experiment else ()
        return Enrolment(
            agent=name,
            num_examples=facts.num_examples,
            dim=int(problem.dim),
            dtype=facts.dtype,
            protocol=protocol,
            version=half.version,
            experiment=experiment if known else "",
            rounds=known,
            unit=str(context.node_config.get("unit", "")),
            public_key=new_keys(context, experiment) if masked else b"",
            signs=masked and rules.trust_files is not None,
            layout=layout.to_json() if isinstance(layout, Layout) else "",
            buffers=buffers.to_json() if isinstance(buffers, Layout) else "",
            facts=facts.to_json(),
            tied=json.dumps(tied) if (tied := getattr(problem, "tied", None)) else "",
            own_settings=encode_settings(extra) if (extra := self._own_settings(context)) else "",
            library=library_version(),
            ledger=rules.released(experiment, name),
            step_size=0.0 if silent else getattr(problem, "step_size", 0.0),
            encoding=encoding,
        )

    def _asked_for(
        self, protocol: str, question: ConfigRecord, context: Context, rules: NodeRules
    ) -> type[Half]:
        """Return the half that a question is of, whose settings an analysis reads a table by.

        Raises
        ------
        BudgetRefused
            If the node's rules let it answer no such analysis: it is then in no roster of secure
            sums.
        """
        half = self.served(protocol)
        analysis = None
        if half.reads_tables:
            analysis = _agent_half(protocol, read_field(question, "settings", str, "{}"), ())
            screen_analysis(analysis, rules)
        self._look_as(analysis, context)
        return half

    def _enrolled_problem(
        self, question: ConfigRecord, context: Context, name: str, rules: NodeRules, *, silent: bool
    ) -> Problem:
        """Return the problem that an agent takes part with, as the question's encoding has it.

        Raises
        ------
        Exception
            If its data may not take part, or do not fit what the agents have agreed on.
        """
        private, masked = question.get("quiet"), question.get("secure-sum")
        row_norm = read_field(question, "row-norm", float, 0.0)
        text = read_field(question, ENCODING, str, "")
        problem = self._problem_before(text, context)
        # A node that keeps to itself takes nothing of the question before its data may take part:
        # what it then answers would be a function of its records.
        if rules.limited or (private and not masked):
            require_public(problem)
        if silent:
            self._require_stated(problem, context, quiet=True)
        problem = self._agreed_problem(problem, text, context, name, row_norm, quiet=silent)
        for line in () if text else getattr(problem, "doubts", ()):
            log.warning("agent %s: %s", name, line)
        # A node with limits trains in private runs alone. What it states of others, a weight of a
        # pooled mean, would be made of the number of its records, and not of the declared one.
        fixed = read_field(question, "private", bool, False) or rules.limited
        return _with_penalty(problem, 0.0, private=fixed)

    # ------------------------------------------------------------------ what columns mean

    def _meaning(self, problem: Problem, context: Context, row_norm: float) -> Meaning | None:
        """Return what a problem's numbers mean, None where nobody says."""
        own = getattr(problem, "meaning", None)
        known = own if isinstance(own, Meaning) else Meaning(says=str(own)) if own else None
        of = self._meaning_of
        if says := of if isinstance(of, str) else of(context):
            known = replace(known or Meaning(), says=says)
        return known and known.within(row_norm)

    def _require_stated(self, problem: Problem, context: Context, *, quiet: bool) -> None:
        """Refuse data of which the agent would have to say what it may not give away.

        Raises
        ------
        ConfigError
            If what its own file's rows say would have to be agreed on.
        """
        meaning = self._meaning(problem, context, 0.0)
        if meaning is None:
            return
        own = bool(meaning.rows) or "data-path" in context.node_config
        if (quiet and not meaning.public and own) or (meaning.rows and meaning.is_long):
            raise ConfigError(
                "its own rows give scaling, categories or classes, which "
                + ("are not agreed on in a secure sum" if quiet else "are too long to agree on")
                + f": {getattr(problem, 'data_dependent', '')}",
                Told.SCALING,
            )

    def _statement(
        self, problem: Problem, context: Context, row_norm: float, *, quiet: bool
    ) -> str:
        """Return what the agent says of its encoding, digests where it keeps to itself.

        Digests of what was read from the records would give that away to whoever tries tables: of
        a file that is dealt to all agents nothing is said then.

        Raises
        ------
        ConfigError
            As ``_require_stated``.
        """
        self._require_stated(problem, context, quiet=quiet)
        meaning = self._meaning(problem, context, row_norm)
        if meaning is None or (quiet and not meaning.public):
            return ""
        return meaning.statement(private=quiet)

    def _problem_before(self, text: str, context: Context) -> Problem:
        """Return the agent's problem as it was before a question with this encoding came.

        It is encoded as the agent reads it by itself, or as this question had it before.
        """
        held = held_by(context.state)
        known: Any = held.get(ENCODING_RECORD)
        if known is not None and known["mark"] != digest(text):  # of an earlier run on this node
            self._forget_encoding(context)
        return self._problem(context)

    def _forget_encoding(self, context: Context) -> None:
        del context.state[ENCODING_RECORD]
        self.forget(context)

    def _agreed_problem(
        self,
        problem: Problem,
        text: str,
        context: Context,
        name: str,
        row_norm: float,
        *,
        quiet: bool,
    ) -> Problem:
        """Return the agent's problem, encoded as the run's agents have agreed where it can be.

        ``text`` is what they have agreed on, empty while they have not. The node's log says in what
        its data differ. Numbers of rows, which scale the data, are not taken where the agent keeps
        to itself (``quiet``): by whether they overflow, the coordinator could look for a record.
        """
        own = self._meaning(problem, context, row_norm) if text else None
        if own is None or own.text == text:
            return problem
        if len(text) > LONGEST or not is_statement(text):
            raise WireError("enrolment question has an encoding that cannot be read", Told.CONTRACT)
        agreed = Agreement(text)
        taken = agreed.taken_by(own)
        if (
            quiet
            and isinstance(taken, Meaning)
            and (taken.scale, taken.rows) != (own.scale, own.rows)
        ):
            taken = Difference("a scaling of its own", "one by numbers of rows")
        if isinstance(taken, Difference):
            log.warning("agent %s: %s", name, taken.between("this node has", "the others"))
            return problem
        if taken.text == own.text:
            return problem
        more = (taken.num_categories - own.num_categories) * taken.num_vectors
        if (
            getattr(problem, "widens", True)
            and more > problem.dim
            and more * problem.num_examples > MOST_ADDED
        ):
            raise WireError(
                f"enrolment question has an encoding of {more} columns more than the data have",
                Told.CONTRACT,
            )
        form = taken.form
        if quiet:
            _require_few_forms(context, form)
        context.state[ENCODING_RECORD] = ConfigRecord({"text": form, "mark": agreed.mark})
        self.forget(context)
        try:
            return self._problem(context)
        except Exception:
            self._forget_encoding(context)
            raise

    def require_encoding(self, instruction: Instruction, context: Context) -> None:
        """Refuse a message of a run whose agents have agreed on another encoding.

        Raises
        ------
        NotAgreedError
            As where a node has lost what it was told, or reads another file than at enrolment.
        ConfigError
            As the enrolment question of a secure sum: whether a mark fits would say what the
            node's own rows are.
        """
        settings = self.settings(instruction)
        if not (asked := settings.get(ENCODING, "")):
            return
        mark, _, bound = asked.partition(":")
        meaning = self._meaning(self._problem(context), context, float(bound or 0.0))
        if meaning is None:
            return
        if settings.get("secure-sum", False):
            self._require_stated(self._problem(context), context, quiet=True)
        record: Any = held_by(context.state).get(ENCODING_RECORD)
        stated = {digest(meaning.text), digest(meaning.digests)}
        if mark not in (stated if record is None else {record["mark"]}):
            raise NotAgreedError(
                "its data are not encoded as the run's agents have agreed: it is to enrol again",
                Told.ENCODING,
            )

    def _train(self, message: Message, context: Context, name: str) -> RecordDict:
        return played(self._round(message, context, name))

    def _round(self, message: Message, context: Context, name: str) -> MessageRound:
        return MessageRound(self, message, context, name)

    def _evaluate(self, message: Message, context: Context, name: str) -> RecordDict:
        self.exits(message, context).numbers(Told.EVALUATION)
        problem = self._problem(context)
        model = sent_model(message.content, problem)
        return RecordDict({METRICS: measures(evaluated_part(problem, self.evaluate_on), model)})


def played(round_: AgentRound[Any, RecordDict]) -> RecordDict:
    """Return the reply of a round; what fails once the records are handed out is of records."""
    try:
        return round_.play()
    except Ended as ended:
        (reply,) = ended.args
        return cast(RecordDict, reply)
    except Exception as error:
        if round_.opened:
            raise OfRecords(error, Told.WORK) from error
        raise


def _text(error: BaseException) -> str:
    """Return the text of an error; user code writes some, and may fail in it."""
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def _rows_per_person(context: Context) -> int:
    """Return the bound that the node's operator declares.

    That of a run counts where the operator lets a run name the data, as in a simulation. Else a
    coordinator that asks for one bound after the other would learn how many rows a person has.
    """
    node = context.node_config
    return rows_per_person(node, with_more(context.run_config) if node.get(ALLOW_RUN_DATA) else {})


def declared_facts(problem: Problem, rules: NodeRules) -> Facts:
    """Return a problem's public numbers with the number of examples that its node declares.

    Raises
    ------
    ConfigError
        If the node holds more examples than it declares.
    """
    facts, count = public_facts(problem, rules.colluders), rules.num_examples
    if not count or count == facts.num_examples:
        return facts
    if facts.num_examples > count:
        raise ConfigError(
            f"num-examples = {count}: this node holds more examples than it declares", Told.DATA
        )
    by_own_count = facts.divisor == facts.num_examples
    divisor = float(count) if by_own_count else facts.divisor
    return replace(facts, num_examples=count, divisor=divisor)


def _with_penalty(problem: Problem, weight: float, *, private: bool) -> Problem:
    """Return the problem with the weight of its penalty, where that is left to the run.

    In a private run, whose certificates count on a penalty of every coordinate, it is the mean over
    the agent's own examples with the usual l2 term. A ``weight`` of 0 leaves the problem's own.
    """
    term = getattr(problem, "regularizer", None)
    if not (isinstance(problem, LinearModel) and isinstance(term, PooledL2)):
        return problem
    if private:
        return problem.with_divisor(problem.num_examples).with_regularizer(L2(USUAL_WEIGHT))
    if weight in (0.0, term.weight):
        return problem
    return problem.with_regularizer(replace(term, weight=weight))


def _weighted(problem: Problem, half: Half, mean: float) -> Problem:
    """Return the problem divided by the agents' mean number of examples.

    So its f_i counts n_i / mean times. At an agent with many examples, one example would then be
    worth more than the sensitivity of a mean over them says: no private run does so.
    """
    divide = getattr(problem, "with_divisor", None)
    if half.private or divide is None:
        why = "not in a private run" if half.private else "a problem of your own needs with_divisor"
        raise ConfigError(f"agents weighted by their examples: {why}")
    if mean == getattr(problem, "divisor", 0.0):
        return problem
    weighted: Problem = divide(mean)
    return weighted


def _require_divided(facts: Facts, rules: NodeRules) -> None:
    """Refuse a loss that is divided by another number than the declared one, where that of the
    records is not to be told (raises ``ConfigError``)."""
    if rules.relation == "add-remove" and facts.divisor != facts.num_examples:
        raise ConfigError(
            f"relation = 'add-remove': the loss is divided by {facts.divisor:g}, not by this "
            f"node's num-examples = {facts.num_examples}: set divisor = agent"
        )


def _divided(problem: Problem, facts: Facts, rules: NodeRules) -> Problem:
    """Return the problem divided by the number of examples that its node declares.

    Where a record may come or go, any other number could come from counting records, and whether
    a problem can be divided must not depend on how many it holds.
    """
    _require_divided(facts, rules)
    if rules.relation != "add-remove" and facts.divisor == getattr(
        problem, "divisor", problem.num_examples
    ):
        return problem
    divide = getattr(problem, "with_divisor", None)
    if divide is None:
        raise ConfigError(
            "num-examples: a problem of your own needs with_divisor, to be divided by the declared "
            "number"
        )
    divided: Problem = divide(facts.divisor)
    return divided


def _require_few_forms(context: Context, form: str) -> None:
    """Count the form that a question asks the data to be put into (raises ``WireError``)."""
    record: Any = held_by(context.state).get(FORMS_RECORD)
    forms = {digest(form), *(() if record is None else record["forms"])}
    if len(forms) > MOST_FORMS:
        raise WireError(
            f"enrolment question has another order of columns than the {MOST_FORMS} of this run "
            "before",
            Told.CONTRACT,
        )
    context.state[FORMS_RECORD] = ConfigRecord({"forms": sorted(forms)})


@lru_cache(maxsize=64)
def _settings(text: str) -> Mapping[str, Any]:
    return MappingProxyType(checked_settings(text))


@lru_cache(maxsize=256)
def _agent_half(
    protocol: str, settings: str, own_settings: tuple[tuple[str, Any, type], ...]
) -> Half:
    # With types, as True == 1 == 1.0.
    merged = {**decode_settings(settings), **{key: value for key, value, _ in own_settings}}
    half: Half = algorithm(protocol).load_agent().from_settings(merged)
    return half
