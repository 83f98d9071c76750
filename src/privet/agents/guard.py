"""Privacy-critical: the guard between an agent's data and its reply.

Everything an upload could reveal passes here once, before it is computed: the rules of the node's
operator are checked, the release is charged to the ledgers, and the noise that was charged is
handed out. The order is rules, ledger on the disk, computation, state, reply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from numpy.typing import NDArray

from privet.core import ConfigError, NotFiniteError, WireError
from privet.core.errors import one_line
from privet.core.key import keys_of, values_of
from privet.data.sql.snapshots import COHORT_RECORD
from privet.kernel import (
    AgentLedger,
    BudgetRefused,
    Facts,
    NoCertificateError,
    NodeRules,
    NoiseSource,
    Perturber,
    Problem,
    Release,
    SeededNoise,
    SystemNoise,
    Told,
)
from privet.kernel.agent_ledger import LONGEST_ACCOUNT, MOST_RELEASES
from privet.kernel.cyclic import Cycle
from privet.kernel.door import Held, within
from privet.kernel.errors import MovedError
from privet.kernel.exits import Exits
from privet.kernel.node_rules import OF_NODES
from privet.kernel.trust import known_by
from privet.wire import Layout, magnitude_bound
from privet.wire.contract import RECORD, decode_settings, encode_settings, means_privacy
from privet.wire.flower_internals import held_by
from privet.wire.magnitude import LARGEST
from privet.wire.payload import BUFFERS, ENCODED, OF_LOOP

from .cycles import forget_cycle, take_cycle
from .half import Half
from .state import PRIVATE_RECORD, read_state
from .terms import MessageTerms, PrivacyTerms

NoiseFactory = Callable[[str, int], NoiseSource]

ANSWERS_RECORD = "privet.answers"
"""In a node's context: how many rounds of an analysis it has answered in the run."""
_LONGEST_KEPT = 1 << 16
"""Longest account, in characters, whose charge is cached."""
_MOST_OF_A_STATE, _HEADS_OF_A_STATE = 16, 1 << 14
"""Vectors in float64 that a state from the server may hold, and bytes of its arrays' names."""
_NUMBERS = ("t", "rho", "indices")
"""Names of received arrays that hold one number; all others are vectors of the model's length."""
TERMS = {key.name: key for owner in (MessageTerms, PrivacyTerms) for key in keys_of(owner).values()}
"""Keys of a message that belong to no half."""


class Received(dict[str, NDArray[Any]]):
    """Arrays of a message; one that a half needs and that is missing is the sender's fault."""

    def __missing__(self, name: str) -> NDArray[Any]:
        raise WireError(f"instruction holds no array {name!r}")


class ReplyCharge(NamedTuple):
    """The cost of one reply: total epsilon so far at delta, and the noise to perturb it with."""

    epsilon: float
    delta: float
    noise: Perturber
    ledger: str
    note: str = ""
    fully_charged: bool = False
    """Whether the reply was charged for noise that nobody can predict."""
    head: str = ""
    """The head of the node's ledger file with the reply; empty where it keeps none."""


class Guard(NamedTuple):
    """The privacy rules of one reply; ``rules`` are those of the node's config."""

    context: Context
    rules: NodeRules
    settings: Mapping[str, Any]
    agent: str
    round: int
    noise_factory: NoiseFactory | None = None
    experiment: str = ""
    summed: tuple[str, ...] = ()
    """The names of the masked sum that the reply is part of."""

    def screen(self, half: Half) -> None:
        """Refuse a run that the rules alone forbid, before anything is read, computed or written.

        Raises
        ------
        BudgetRefused
            If the node's own rules forbid the run: its relation, its noise, its clip, its steps.
        """
        if half.reads_tables:
            screen_analysis(half, self.rules)
            if not self.rules.limited:
                return
            if not half.private:
                raise BudgetRefused(Told.NOISED_ALONE)
        self.rules.screen(
            private=half.private,
            relation=str(self.settings.get("relation", "replace-one")),
            noise_seeded=self._seed >= 0,
            explicit_noise=self.noise_factory is not None,
            data_dependent_sensitivity=self.settings.get("sensitivity") == "paper",
            clip=half.clip or None,
            steps=half.steps_of_round(int(self.settings.get("seed", 0)), self.round),
        )

    def charge(
        self, half: Half, facts: Facts, ledger: str, sent: str = "", held: int | None = None
    ) -> ReplyCharge:
        """Charge one reply to the ledgers and return the total cost so far.

        ``ledger`` is the agent's account of this run before the reply, as JSON, and ``sent`` the
        one that came with the message, which counts where it is longer: the agent may have lost
        its own, or a part of it. ``held`` is the number of its examples, as far as it is known.

        Raises
        ------
        BudgetRefused
            If the node's own rules, or the run's own target, do not allow the reply.
        NoCertificateError
            If the run asks for privacy that cannot be proven.
        """
        explicit, before = self.noise_factory is not None, ledger
        self.rules.require_delta(facts.num_examples)
        release, cycle = self._release(half, facts), None
        if release.batches > 1:
            if held not in (None, facts.num_examples):
                raise BudgetRefused(Told.TURNS)
            cycle = self._cycle(release, facts, missed=_has_missed(ledger, sent))
            release = replace(release, place=cycle.step % release.batches)
        delta = float(self.settings.get("delta", 1e-5))
        epsilon = math.inf
        if release.mechanism != "none":
            ledger, epsilon = self._account(ledger, sent, release, delta)
            self._keep_target(epsilon)
        noise = Perturber(release, self.source(), facts, given=explicit, cycle=cycle)
        if half.reads_tables and release.mechanism == "none":
            self._count_answer()
            settings = encode_settings(values_of(half))
            asked = self.experiment, half.name, settings
            trust = self.rules.trust(self.agent) if self.summed else None
            known = known_by(trust, self.agent)
            self.rules.analyses.note(*asked, self._cohort, self.summed, known)
        try:
            head = self.rules.charge(
                release,
                f"run {self.context.run_id} round {self.round} agent {self.agent}"
                + "".join(f" {key} {value}" for key, value in self._cohort.items()),
                self.experiment,
                cycle.head if cycle else "",
            )
        except MovedError:  # the cycle is forgotten: another one begins
            return self.charge(half, facts, before, sent, held)
        if release.mechanism == "none":
            return ReplyCharge(epsilon, delta, noise, ledger)
        if not (explicit or self._seed >= 0):
            return ReplyCharge(epsilon, delta, noise, ledger, fully_charged=True, head=head)
        why = "noise is given" if explicit else "noise-seed is set"
        note = f"not private: {why}" if self.round == 1 else ""
        return ReplyCharge(math.inf, delta, noise, ledger, note)

    def _cycle(self, release: Release, facts: Facts, *, missed: bool) -> Cycle:
        """Return where the agent stands in its batches (raises ``BudgetRefused``).

        It begins anew where it has ``missed`` a step: then its context is older than a reply.
        """
        if self._cohort:
            raise BudgetRefused(Told.ORDER)
        if missed:
            forget_cycle(self.context)
        return take_cycle(
            self.context,
            release,
            facts,
            int(self.settings.get("seed", 0)),
            self.agent,
            run=f"{self.context.run_id} {self.experiment}",
            ledger=str(self.rules.ledger_path),
            settings=encode_settings(self.settings),
        )

    @property
    def _cohort(self) -> dict[str, Any]:
        """Of which query of a database the node's rows are, and how many; empty for files."""
        known: Any = held_by(self.context.state).get(COHORT_RECORD)
        return {} if known is None else {key: known[key] for key in ("cohort", "query", "rows")}

    def _count_answer(self) -> None:
        """Count a round of an analysis that is answered (raises ``BudgetRefused``)."""
        known: Any = held_by(self.context.state).get(ANSWERS_RECORD)
        before = 0 if known is None else int(known["count"])
        self.rules.analyses.require_few_answers(before)
        self.context.state[ANSWERS_RECORD] = ConfigRecord({"count": before + 1})

    @staticmethod
    def _account(ledger: str, sent: str, release: Release, delta: float) -> tuple[str, float]:
        """Return the run's account with one more release; the account may be the coordinator's.

        Of two accounts the dearer one counts. What an account costs is not computed where all its
        messages are in the other, and of two long ones that differ not for each.
        """
        try:
            if not ledger or sent in ("", ledger):
                text = ledger or sent
                if len(text) <= _LONGEST_KEPT:
                    return _charged(text, release, delta)
                return _with(release, delta, AgentLedger.joined([text]))
            own, told = AgentLedger.from_json(ledger), AgentLedger.from_json(sent)
            if own.covers(told):
                return _with(release, delta, own)
            if min(len(ledger), len(sent)) > _LONGEST_KEPT:  # one is evaluated, which no run needs
                return _with(release, delta, own.with_all_of(told))
            return _with(release, delta, *((told,) if told.covers(own) else (own, told)))
        except (ValueError, ArithmeticError) as error:
            raise WireError(f"the agent's account cannot be read: {one_line(str(error))}") from None

    def _release(self, half: Half, facts: Facts) -> Release:
        """Return the release of the reply.

        Noise that is seeded or explicit is not private whatever is proven of it, so it needs no
        certificate: the reply counts as un-noised.
        """
        try:
            return half.release(facts, self.round)
        except NoCertificateError:
            if self.noise_factory is None and self._seed < 0:
                raise
            return Release("none", what="noise without a certificate")
        except ConfigError:
            raise
        except (ValueError, ArithmeticError) as error:  # a public number under- or overflows
            raise ConfigError(f"clip, noise and step sizes do not go together: {error}") from None

    def _keep_target(self, epsilon: float) -> None:
        """Refuse a reply that would bring the run above the epsilon it was calibrated for."""
        target = float(self.settings.get("target-epsilon", 0.0))
        if 0 < target < epsilon:
            hint = "; dropouts > 0 plans for repeated attempts"
            raise BudgetRefused(
                f"target-epsilon: this reply would bring the run to epsilon {epsilon:.6g}, above "
                f"{target:g}{hint if self.settings.get('noise-sharing') else ''}",
                Told.TARGET,
            )

    @property
    def _seed(self) -> int:
        return int(self.settings.get("noise-seed", -1))

    def source(self) -> NoiseSource:
        """Return the source of the agent's noise in this round."""
        if self.noise_factory is not None:
            return self.noise_factory(self.agent, self.round)
        if self._seed >= 0:
            return SeededNoise(self._seed, self.agent, self.round)
        return SystemNoise()


def _has_missed(ledger: str, sent: str) -> bool:
    """Whether the account that came with a message has releases that the agent's own lacks."""
    if sent in ("", ledger):
        return False
    try:
        own = AgentLedger.from_json(ledger) if ledger else AgentLedger()
        return not own.covers(AgentLedger.from_json(sent))
    except (ValueError, ArithmeticError):
        return True


@lru_cache(maxsize=256)
def _charged(ledger: str, release: Release, delta: float) -> tuple[str, float]:
    """Return the ledger with one more release and its epsilon; equal agents share the work."""
    return _with(release, delta, AgentLedger.joined([ledger]))


def _with(release: Release, delta: float, *accounts: AgentLedger) -> tuple[str, float]:
    """Return the dearest of accounts with one more release, as JSON, and its epsilon.

    Raises
    ------
    ValueError
        If the coordinator, or the agent itself, would not read it again, or if it holds a release
        by another mechanism than the run's: the law of such a sum is the dearest to compute.
    """
    if any(one.mechanism != release.mechanism for each in accounts for one, _ in each.entries):
        raise ValueError(f"it holds releases that are not of the run's, {release.mechanism}")
    every = [account.record(release) for account in accounts]
    texts = [charged.to_json() for charged in every]
    for charged, text in zip(every, texts, strict=True):  # before what it costs is computed
        if len(charged.entries) > MOST_RELEASES or len(text) > LONGEST_ACCOUNT:
            raise ValueError(
                f"it would hold {len(charged.entries)} different releases, too many: one a round, "
                "as budget-schedule = geometric makes them, are for runs of fewer rounds"
            )
    costs = [charged.spent(delta) for charged in every]
    dearest = max(range(len(costs)), key=costs.__getitem__)
    return texts[dearest], costs[dearest]


def checked_settings(text: str) -> dict[str, Any]:
    """Return the settings of a message, with those checked that no half reads.

    Raises
    ------
    ConfigError, WireError
    """
    return checked_terms(decode_settings(text))


def checked_terms(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with those checked that no half reads (raises ``ConfigError``)."""
    terms = {name: key.check(settings[name]) for name, key in TERMS.items() if name in settings}
    return {**settings, **terms}


def screen_analysis(half: Half, rules: NodeRules) -> None:
    """Refuse an analysis that a node's rules forbid, before its table is read.

    What the table's columns are, and that they cannot be used, would be a function of its records.

    Raises
    ------
    BudgetRefused
    """
    if not rules.limited:
        rules.analyses.screen(
            masked=half.secure_sum, baseline=half.pools_baseline, noised=half.asks_noise
        )
    elif not half.asks_noise:
        raise BudgetRefused(Told.NOISED_ALONE)


def require_vectors(
    arrays: Mapping[str, NDArray[Any]], problem: Problem, private: bool = True
) -> None:
    """Refuse received arrays that are no vectors of the model, before anything is charged.

    An array of several rows would have one draw serve all of them, and a column beside a vector
    makes a matrix of the model's size squared. Agents that are not private take a few numbers in
    place of a vector, such as Fed-PLT's adapted rho.

    Raises
    ------
    WireError
    """
    vector, dtype = (problem.dim,), np.dtype(problem.dtype)
    for name, array in arrays.items():
        shape = () if name in _NUMBERS else vector
        if array.shape == shape and (not shape or array.dtype == dtype):
            continue
        most = 2 if getattr(problem, "takes_matrices", False) else 1
        if not private and array.dtype.kind == "f" and array.ndim <= most:
            continue
        if name not in (ENCODED, BUFFERS) and not name.startswith(OF_LOOP):
            raise WireError(
                f"array {name!r} is of shape {array.shape} in {array.dtype}, expected {shape}"
                + (f" in {problem.dtype}" if shape else "")
            )


def require_buffers(arrays: Mapping[str, NDArray[Any]], buffers: Layout | None) -> None:
    """Refuse statistics of another layout than the agent enrolled with (raises ``WireError``)."""
    received = arrays.get(BUFFERS)
    if received is None:
        return
    if buffers is None or received.shape != (buffers.dim,) or received.dtype != buffers.dtype:
        expected = "none" if buffers is None else f"{buffers.dim} in {buffers.dtype}"
        raise WireError(
            f"array {BUFFERS!r} is of shape {received.shape} in {received.dtype}, "
            f"expected {expected}"
        )


def require_small(state: bytes, problem: Problem) -> None:
    """Refuse a packed state from the server that holds more than any half's: a node keeps it.

    Whatever its arrays are called, and whether or not a half reads them.

    Raises
    ------
    WireError
    """
    most = _MOST_OF_A_STATE * 8 * problem.dim + _HEADS_OF_A_STATE
    if len(state) > most:
        raise WireError(
            f"the state that was sent has {len(state)} bytes, expected at most {most} of a model "
            f"of {problem.dim} parameters"
        )


def require_none_of_loop(state: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a state from the server with what only a training loop's agent keeps.

    Raises
    ------
    WireError
    """
    if name := next((name for name in state if name.startswith(OF_LOOP)), ""):
        raise WireError(f"the state that was sent holds {name!r}, which no server has")


def require_tame(arrays: Iterable[NDArray[Any]]) -> None:
    """Refuse received numbers that overflow when they meet the data (raises ``NotFiniteError``).

    Noise cannot hide a value that is no longer a number, and whether one arises depends on the
    records: 0 times infinity gives one, 1 times infinity does not.
    """
    for array in arrays:
        if array.dtype.kind != "f" or not array.size:
            continue
        most = LARGEST.get(array.dtype.itemsize, 0.0)
        if magnitude_bound(array) <= most:
            continue
        if not (float(array.max()) <= most and float(array.min()) >= -most):
            raise NotFiniteError("instruction holds numbers that are too large or not finite")


def prepared(half: Half, problem: Problem, facts: Facts) -> Held:
    """Return the problem that a half works on, with its bound on the rows and its clipping.

    Raises
    ------
    ConfigError, RecordsError
        If its configuration cannot run on the problem.
    """
    return within(problem, half.row_bound(facts), half.clip, half.clipping)


def node_rules(context: Context) -> NodeRules:
    """Return the rules of a node's config (raises ``ConfigError`` where they cannot be read)."""
    config = context.node_config
    # Equal nodes share the work: a key that only identifies the node is no rule.
    return _rules(
        tuple([(*entry, type(entry[1])) for entry in config.items() if entry[0] not in OF_NODES])
    )


@lru_cache(maxsize=1024)
def _rules(entries: tuple[tuple[str, Any, type], ...]) -> NodeRules:
    # With their types: True == 1 == 1.0, and a rule may accept only one of them.
    try:
        return NodeRules.from_node_config({key: value for key, value, _ in entries})
    except ValueError as error:
        raise ConfigError(str(error), Told.RULES_UNREADABLE) from None


def is_private(context: Context) -> bool:
    """Whether an agent has a budget, or was enrolled or has taken part in a private run."""
    if node_rules(context).limited or PRIVATE_RECORD in context.state:
        return True
    held = read_state(context)
    return bool(held.ledger) or held.private


def exits(message: Message, context: Context) -> Exits:
    """Return the rules for what may leave a node in answer to a message."""
    try:
        if is_private(context):
            return Exits(private=True, quiet=True)
        record = message.content.get(RECORD)
        if not isinstance(record, ConfigRecord):
            return Exits(private=False, quiet=False)
        settings = decode_settings(str(record.get("settings", "{}")))
        quiet = bool(record.get("quiet")) or means_privacy(settings)
        return Exits(private=False, quiet=quiet)
    except Exception:  # an unreadable message is treated as private
        return Exits(private=True, quiet=True)
