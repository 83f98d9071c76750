"""The agents by name: the enrolment question, and the map from agents to nodes.

Every node is asked once for its stable agent name; from then on everything is keyed by name and
folded in sorted order. A name belongs to the node that enrolled with it: while that node is
connected, another one that claims the name is turned away and gets nothing. The `Recovery` of the
run decides what such a node gets once the first is gone.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal, Protocol, cast, runtime_checkable

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from privet.core import WireError
from privet.core.errors import INSTEAD_OF_OTHER_APPS, listed, one_line
from privet.data.meaning import has_numbers, in_digests, is_statement
from privet.data.scaling import fault_of_rows
from privet.kernel import AgentLedger, Facts
from privet.kernel.agent_ledger import LONGEST_ACCOUNT, MOST_RELEASES
from privet.kernel.masks import is_usable
from privet.wire import ENROL, RECORD, Enrolment, Update, sort_names
from privet.wire.contract import CONTRACT_VERSION
from privet.wire.enrolment import read_enrolment, sound
from privet.wire.flower_internals import in_flowers_simulation, without_tracebacks_of
from privet.wire.records import record_dict

from .exchange import NO_HANDLER, NOT_OURS, EngineGrid, Reply, exchange
from .failure import Failure, FailureCode

log = logging.getLogger("flwr.privet")

CLIENT_APP_FAILED = 2
"""Flower's error code for an exception of the ClientApp."""
NODE_UNAVAILABLE = 5
"""Flower's error code for a node that is gone."""
ENROL_PATIENCE = 180.0
"""Seconds the connected nodes have to answer before round 1. After a crash of the SuperLink they
are busy with the lost run for about a minute."""
LEAST_ENROL_TIMEOUT = 1.0
"""Seconds for it where nodes have not answered many times in a row."""
ENROL_TIMEOUT = 30.0
"""Seconds a node that appears later may take to answer; one that does not is asked again."""


FIRST_PAUSE, LAST_PAUSE = 60.0, 3600.0
"""Seconds after which a node that was turned away or did not answer is asked again, at first and at
most; they double. One that was gone in between is asked at once, but for one that did not answer:
who comes and goes would have every round wait for it."""

EXCLUSION = Failure(FailureCode.EXCLUDED, "excluded by the operator")

MOST_EARLIER = 8
"""Other numbers and settings under one name of a private run: each counts for every lost reply."""

Recovery = Literal["yes", "no", "node-key"]
"""The successor of an agent whose node is gone. "yes": the next node that claims its name, with its
state and its account. "no": that node, but it starts from scratch. "node-key": none, as names stay
with nodes' keys."""


def recovery_of(requested: str, grid: Grid) -> Recovery:
    """Return the value of ``recover-by-name`` on a grid: "auto" is yes in simulation, else no.

    In simulation one process starts all nodes, so that nobody else can claim a name, and a node has
    another id in every run. Flower's simulation is recognised by its grid, which keeps the messages
    in memory; a deployment's ServerApp has one that speaks to its SuperLink.
    """
    if requested != "auto":
        return cast("Recovery", requested)
    return "yes" if in_simulation(grid) else "no"


def in_simulation(grid: Grid) -> bool:
    """Whether the nodes of a grid are simulated by one process, on any engine."""
    return isinstance(grid, EngineGrid) or in_flowers_simulation(grid)


@runtime_checkable
class EnrolsTogether(Protocol):
    """A grid that can ask many nodes for their enrolment at once, without messages."""

    def enrol_together(self, question: ConfigRecord, nodes: Sequence[int]) -> dict[int, Enrolment]:
        """Return the answers of those of these nodes that need no message."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """The enrolment question, and the checks of its answers."""

    protocol: str
    version: int
    experiment: str
    check: Callable[[Enrolment], str]
    """Returns why an agent's model or its texts do not fit the run, or an empty text."""
    adopt: Callable[[Enrolment], None]
    """Takes over the model description of an agent that was enrolled."""
    quiet: bool = False
    """Whether agents must keep the texts of their failures to themselves (a private run)."""
    secure_sum: bool = False
    """Whether agents must give a public key, for a run in which uploads are masked."""
    fixed: bool = False
    """Whether no agent may change its number of examples: the noise was set for it."""
    encoding: str = ""
    """What the agents have agreed on that their columns mean; empty where nobody has said."""
    row_norm: float = 0.0
    """The norm that the algorithm itself scales all agents' rows down to; 0 for none."""
    open: bool = False
    """Whether that is still to be agreed on, by the answers to this question."""
    settings: str = ""
    """Those of an analysis, by which agents read their tables; empty for any other half."""
    accounts: bool = True
    """Whether agents account for what they release; else what they state of it is not read."""

    def record(self) -> ConfigRecord:
        """Return the question as it travels."""
        return ConfigRecord(
            {
                "contract": CONTRACT_VERSION,
                "protocol": self.protocol,
                "version": self.version,
                "experiment": self.experiment,
                "quiet": self.quiet,
                "secure-sum": self.secure_sum,
                **({"private": True} if self.fixed else {}),
                **({"encoding": self.encoding} if self.encoding else {}),
                **({"row-norm": self.row_norm} if self.row_norm else {}),
                **({"settings": self.settings} if self.settings else {}),
            }
        )

    def mismatch(self, enrolment: Enrolment) -> str:
        """Return why an agent cannot take part, or an empty text."""
        if (enrolment.protocol, enrolment.version) != (self.protocol, self.version):
            return (
                f"speaks {enrolment.protocol} version {enrolment.version}, "
                f"this run {self.protocol} version {self.version}"
            )
        if enrolment.num_examples < 1:
            return "has no data"
        if unfit := self.check(enrolment):
            return unfit
        if self.secure_sum and not enrolment.public_key:
            return "gives no public key, which this run's secure sum needs"
        if self.secure_sum and not is_usable(enrolment.public_key):
            return "gives a public key that X25519 cannot use"
        return ""


@dataclass(slots=True)
class EnrolledAgent:
    """One enrolled agent.

    ``tag`` is the round of the upload last accepted from it (0 for none); ``held`` are the rounds
    whose state its node is known to hold.
    """

    node: int
    num_examples: int = 0
    tag: int = 0
    held: tuple[int, ...] = ()
    ledger: str = ""
    """The agent's account of its releases, as it last sent it."""
    unit: str = ""
    """The unit in its node config; empty if there is none."""
    public_key: bytes = b""
    """Its key for secure sums; empty if there is none or it was lost."""
    signs: bool = False
    """Whether it signs the rosters of secure sums, as its operator has pinned keys of others."""
    out: str = ""
    """Why it is no longer asked in this run; empty while it is."""
    facts: str = ""
    """Further facts that it stated of its data and problem, as JSON that is not read here."""
    own: str = ""
    """The settings that it follows in place of the run's, as JSON."""
    former: tuple[str, ...] = ()
    """Accounts of the nodes that had this name before and whose state it was not given."""
    apart: bool = False
    """Whether its node took over the name with an empty ledger file, which lacks the releases in
    ``former``."""
    library: str = ""
    """The version of this library on its node; empty if it does not state one."""
    earlier: tuple[tuple[str, str], ...] = ()
    """Other ``facts`` and ``own`` that were stated under this name, by which a lost reply may have
    been computed."""
    tasks: int = 0
    """The number of tasks it was given, in a run that does not wait for all replies."""
    stated: str = ""
    """Its account of the experiment by its node's ledger file, until that is joined."""
    head: str = ""
    """The head of its node's ledger file, as it came with its newest reply; empty without one."""
    step_size: float = 0.0
    """The length of a step of its training loop; 0 where it states none."""
    encoding: str = ""
    """What it stated that its columns mean, empty for nothing."""
    unbound: bool = False
    """Whether an upload of this name stated no finite cost: of its records nothing is claimed."""
    said: str = ""
    """Its account as its node stated it last, where ``ledger`` holds lost replies beyond it; else
    empty."""
    refolded: int = 0
    """The last round in which another upload was folded for it than it sent, 0 for none: its node
    then holds no state of that round that others could go on from."""

    @property
    def is_up_to_date(self) -> bool:
        """Whether its node is known to hold the state after its upload that was folded last."""
        return self.tag in self.held and self.tag != self.refolded

    @property
    def terms(self) -> tuple[tuple[str, str], ...]:
        """All ``facts`` and ``own`` that were stated under this name, the present ones first."""
        return (self.facts, self.own), *self.earlier

    @property
    def own_account(self) -> str:
        """The account that its node stated last; every later one holds it."""
        return self.said or self.ledger

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts of all releases under this name; an empty text is a missing account."""
        current = (self.ledger,) if self.tag or self.ledger else ()
        return (*self.former, *current)

    def spent(self, delta: float) -> float:
        """Return the epsilon of all that was released under this name.

        Infinite where an account is missing or cannot be read: the texts are the agents'.
        """
        return _spent(self.accounts, delta)


def known_facts(agents: Iterable[EnrolledAgent]) -> list[Facts]:
    """Return the public numbers of those agents whose text of them can be read."""
    known = []
    for agent in agents:
        with suppress(ValueError, TypeError):  # the text is the agent's
            known.append(Facts.from_json(agent.facts))
    return known


def _spent(accounts: Iterable[str], delta: float) -> float:
    try:
        return AgentLedger.joined(accounts).spent(delta)
    except (ValueError, ArithmeticError):
        return math.inf


def _as_one(accounts: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Return accounts as one, and empty; or as they are, and why they cannot be one.

    An empty text is a missing account, and stays beside it.
    """
    missing, given = ("",) * ("" in accounts), [text for text in accounts if text]
    if len(given) < 2:
        return (*missing, *given), ""
    try:
        whole = AgentLedger.joined(given).with_all_of(AgentLedger())  # each release once
    except (ValueError, ArithmeticError) as error:  # the texts are the agents'
        return accounts, f"the accounts under its name cannot be read: {one_line(str(error))}"
    text = whole.to_json()
    if len(whole.entries) > MOST_RELEASES or len(text) > LONGEST_ACCOUNT:
        return accounts, "its name has had too many different releases for one account"
    return (*missing, text), ""


def _texts(given: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(str, given))


def _pairs(given: Iterable[tuple[Any, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple((str(facts), str(own)) for facts, own in given)


_COLUMNS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "num-examples": ("num_examples", int),
    "tag": ("tag", int),
    "ledger": ("ledger", str),
    "unit": ("unit", str),
    "node": ("node", int),
    "facts": ("facts", str),
    "own": ("own", str),
    "former": ("former", _texts),
    "earlier": ("earlier", _pairs),
    "tasks": ("tasks", int),
    "head": ("head", str),
    "unbound": ("unbound", bool),
    "said": ("said", str),
    "apart": ("apart", bool),
    "refolded": ("refolded", int),
}
"""The columns of a checkpoint's table of agents: the attribute of each, and its type."""
_LATER: Mapping[str, list[Any]] = {
    "head": [""],
    "unbound": [False],
    "said": ["[]"],
    "apart": [False],
    "refolded": [0],
}
"""Columns that the tables of older checkpoints lack."""


def columns(agents: Mapping[str, EnrolledAgent]) -> dict[str, list[Any]]:
    """Return a checkpoint's table of agents; a column has one entry where all agree."""
    table: dict[str, list[Any]] = {"name": list(agents)}
    for key, (attribute, _) in _COLUMNS.items():
        values = list(map(attrgetter(attribute), agents.values()))
        table[key] = values[:1] if values[:1] * len(values) == values else values
    return table


def updated(
    table: Mapping[str, list[Any]], changes: Iterable[Mapping[str, list[Any]]]
) -> dict[str, list[Any]]:
    """Return a checkpoint's table of agents with the rows that changed since, first to last.

    Raises
    ------
    KeyError, TypeError, ValueError
        As ``from_columns``, or if an agent is not in the table.
    """
    table, names = {**_LATER, **table}, list(table["name"])
    place = {name: number for number, name in enumerate(names)}
    columns = {key: _repeated(table[key], len(names)) for key in _COLUMNS}
    for change in changes:
        places = [place[name] for name in change["name"]]
        for key, column in columns.items():
            changed = _repeated({**_LATER, **change}[key], len(places))
            for number, value in zip(places, changed, strict=True):
                column[number] = value
    return {"name": names, **columns}


def _repeated(column: list[Any], count: int) -> list[Any]:
    return column * count if len(column) == 1 else list(column)


def from_columns(table: Mapping[str, list[Any]]) -> dict[str, EnrolledAgent]:
    """Return the agents of ``columns``, by name.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a column is missing, of another length or of another type.
    """
    table, names = {**_LATER, **table}, list(map(str, table["name"]))
    values = {}
    for key, (attribute, of_type) in _COLUMNS.items():
        values[attribute] = _repeated(list(map(of_type, table[key])), len(names))
    rows = zip(*values.values(), strict=True)
    return {
        name: EnrolledAgent(**dict(zip(values, row, strict=True)))
        for name, row in zip(names, rows, strict=True)
    }


@dataclass(frozen=True, slots=True)
class Unfit:
    """An agent whose model does not fit the starting one, and what its columns mean."""

    name: str
    encoding: str
    fault: str
    dim: int


@dataclass
class Changes:
    """What has changed since the newest checkpoint.

    Attributes
    ----------
    names : set of str
        Agents whose entry, or whose state here or on their node, may have changed.
    everything : bool
        Whether more than these may have.
    """

    names: set[str] = field(default_factory=set)
    everything: bool = True


@dataclass
class Roster:
    """The agents by name, and the nodes that were turned away.

    Nodes in ``rejected`` are asked again after a pause or when they come back, those in ``waiting``
    (with the name they claim) once the node of that name is gone.
    """

    agents: dict[str, EnrolledAgent] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)
    online: frozenset[int] = frozenset()
    recovery: Recovery = "no"
    waiting: dict[int, str] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    """Agents to be enrolled again: an upload does not fit their enrolment, or they were away."""
    holders: Mapping[str, int] = field(default_factory=dict)
    """The nodes that had the names in the checkpoint of a resumed run."""
    excluded: frozenset[str] = frozenset()
    """Agents that the operator leaves out."""
    barred: dict[str, str] = field(default_factory=dict)
    """Why agents are asked no more, whichever node has their name."""
    data_changes: int = 0
    """The number of times that an agent enrolled with another number of examples than before."""
    statements: int = field(default=0, init=False, repr=False, compare=False)
    """The number of times that an agent enrolled with other public numbers than before."""
    stating: set[str] = field(default_factory=set)
    """Agents that may have stated an account of a ledger file that is not joined yet."""
    changes: Changes = field(default_factory=Changes)
    """What the next checkpoint has to hold."""
    saved: dict[str, tuple[str, str]] = field(default_factory=dict, repr=False, compare=False)
    """``facts`` and ``own`` of the agents that the newest two checkpoints of a private run have so:
    a resume may have to go back to the earlier one."""
    unfit: dict[int, Unfit] = field(default_factory=dict)
    """By node, an agent whose model does not fit, while the encoding of the run is not known: what
    it differs in says why."""
    silences: int = 0
    """How often in a row nodes were asked of which some did not answer."""
    _pauses: dict[int, tuple[float, float]] = field(default_factory=dict, init=False)
    """By node, the time on the monotonic clock when it may be asked again, and its last pause."""
    _silent: set[int] = field(default_factory=set, init=False)
    """Nodes that did not answer the newest question that they were asked."""
    _compared: set[tuple[str, str]] = field(default_factory=set, init=False)
    _to_compare: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    _keys: dict[bytes, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Whose each public key is that an agent has given; a secure sum cannot use one of two."""
    _notes: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _restarted: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _newest: dict[str, tuple[str, str]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """As ``saved``, of the newest checkpoint alone."""
    _sorted: tuple[Any, dict[str, int]] = field(
        default=(None, {}), init=False, repr=False, compare=False
    )
    """The dict of agents that was sorted last, and their places."""

    @property
    def names(self) -> list[str]:
        """Agent names in folding order."""
        return list(self.positions)

    @property
    def positions(self) -> Mapping[str, int]:
        """Place of each agent in folding order.

        It is read for every message, so it is cached by the dict's identity and length: agents are
        never removed from a dict.
        """
        of, places = self._sorted
        if of is not self.agents or len(places) != len(self.agents):
            places = {name: place for place, name in enumerate(sort_names(self.agents))}
            self._sorted = self.agents, places
        return places

    def note_saved(self, agents: Mapping[str, EnrolledAgent]) -> None:
        """Note what the newest checkpoint has of the agents."""
        before, self._newest = self._newest, {n: (a.facts, a.own) for n, a in agents.items()}
        self.saved = {n: stated for n, stated in self._newest.items() if before.get(n) == stated}

    def unsaved(self, names: Iterable[str]) -> dict[str, list[Any]]:
        """Return the table of those of these agents that one of two checkpoints has otherwise."""
        agents = ((name, self.agents[name]) for name in names)
        new = {n: one for n, one in agents if self.saved.get(n) != (one.facts, one.own)}
        return columns(new) if new else {}

    def connected(self, name: str) -> bool:
        """Whether the agent's node was connected when the nodes were last listed."""
        return self.agents[name].node in self.online

    def absence(self, name: str) -> Failure | None:
        """Return why an agent cannot be asked now; None if it can."""
        agent = self.agents[name]
        if name in self.excluded:
            return EXCLUSION
        if agent.out:
            return Failure(FailureCode.OUT, agent.out)
        if agent.node not in self.online:
            return Failure(FailureCode.NOT_CONNECTED, "not connected")
        return None

    def leave_out(self, name: str, why: str, *, any_node: bool = False) -> None:
        """Ask an agent no more in this run; with ``any_node`` on no other node of its name either.

        The former is for what another node may mend, the latter for what was done to others.
        """
        self.agents[name].out = why
        if any_node:
            self.barred[name] = why
        self.note(f"agent {name} is asked no more: {why}")

    def turn_away(self, name: str, why: str) -> None:
        """Turn an enrolled agent away, before the run has a state of it."""
        node = self.agents[name].node
        self._forget({name})
        self._reject(node, f"agent {name}: {why}")

    def _forget(self, names: Collection[str]) -> None:
        self.agents = {name: one for name, one in self.agents.items() if name not in names}
        self._to_compare -= set(names)
        self.stating -= set(names)
        self.changes.names -= set(names)

    def compare_libraries(self, version: str) -> None:
        """Note agents whose nodes run another version of this library than the server, once each.

        Versions that speak the same protocols work together; a mixture is worth knowing.
        """
        others: dict[str, list[str]] = {}
        for name in sort_names(self._to_compare):
            library = self.agents[name].library
            if library not in ("", version) and (name, library) not in self._compared:
                self._compared.add((name, library))
                others.setdefault(library, []).append(name)
        self._to_compare.clear()
        for library, names in others.items():
            agents = listed(names)
            self.note(f"privet {version} here, {library} on the nodes of agents {agents}")

    def take_notes(self) -> list[str]:
        """Return, once, the lines for the history on nodes that were turned away or changed."""
        notes, self._notes = self._notes, []
        return notes

    def pop_restarted(self) -> list[str]:
        """Return, once, the agents whose place was taken by a node that starts from scratch."""
        names, self._restarted = self._restarted, []
        return names

    def note_ledger(self, name: str, ledger: str, head: str = "", *, stated: bool = False) -> None:
        """Note an agent's account of its releases, and the head of its node's ledger if given.

        ``stated`` says that it is as its node stated it with an upload. An account that the server
        extended by lost replies may hold releases that the node never made; ``said`` keeps what the
        node stated.
        """
        agent = self.agents[name]
        agent.said = "" if stated else agent.own_account or "[]"
        agent.ledger, agent.head = ledger, head or agent.head
        self.changes.names.add(name)

    def note_unbound(self, name: str) -> bool:
        """Note that an agent stated no finite cost of an upload; return whether that is new."""
        agent = self.agents[name]
        if agent.unbound:
            return False
        agent.unbound = True
        self.changes.names.add(name)
        return True

    @property
    def is_unbound(self) -> bool:
        """Whether no agent that released something has stated a bound on it."""
        return all(agent.unbound for agent in self.agents.values() if agent.accounts)

    def shorter(self, folded: Mapping[str, int]) -> set[str]:
        """Return the agents whose ledger file states fewer releases than uploads were folded.

        Every upload was charged before it left, so such a file is an older copy, or another node's.
        """
        found = set()
        for name in self.stating:
            stated = self.agents[name].stated
            if stated and AgentLedger.from_json(stated).messages < folded.get(name, 0):
                found.add(name)
        return found

    def join_stated(self, delta: float) -> set[str]:
        """Take over the accounts of nodes' ledger files that hold more than the run's own.

        So no fault on either side makes the run's account of an agent shorter than its ledger,
        which holds the releases of all nodes that had the name and charged to the same file; those
        of nodes with another file are kept beside it. A node can only make its own account longer.
        Returned are the names of the agents where it did.
        """
        longer = set()
        for name in self.stating:
            agent = self.agents[name]
            stated, agent.stated = agent.stated, ""
            apart = agent.former if agent.apart else ()
            held = agent.accounts[len(apart) :]
            if stated and AgentLedger.from_json(stated).spent(delta) > _spent(held, delta):
                agent.said, agent.former = agent.own_account or "[]", apart
                agent.ledger = stated
                longer.add(name)
        self.stating.clear()
        self.changes.names |= longer
        return longer

    def note_folded(self, name: str, update: Update, *, refolded: bool = False) -> None:
        """Note that an agent's upload of a round was folded, or another in its place."""
        agent = self.agents[name]
        if refolded:
            agent.refolded = update.round
        agent.held = agent.tag, update.round
        agent.tag, agent.ledger, agent.said = update.round, update.ledger, ""
        self.changes.names.add(name)

    def never_folded(self, names: Iterable[str], *, others: bool = False) -> set[str]:
        """Return those of which no upload was ever folded, if any agent's was.

        ``others`` says that uploads of others were good in a round that is not recorded.
        """
        agents = self.agents
        new = {name for name in names if name in agents and not agents[name].tag}
        folded = others or (bool(new) and any(agent.tag for agent in agents.values()))
        return new if folded else set()

    def enrol_all(self, grid: Grid, question: Question, timeout: float) -> None:
        """Ask every connected node until all have answered or ``timeout`` seconds are over."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            # One long wait: a node that is busy with an older run answers when it is done, and
            # asking it again would only lengthen its queue.
            self.refresh(grid, question, max(left, 1.0))
            if not self._unknown() or time.monotonic() >= deadline:
                return
            time.sleep(0.5)

    def _unknown(self) -> list[int]:
        known = {agent.node for agent in self.agents.values()} - set(self.rejected)
        waiting = {node for node, name in self.waiting.items() if self._is_kept(name)}
        return sorted(self.online - known - waiting - self._paused() - self.unfit.keys())

    def _paused(self) -> set[int]:
        """Nodes that are not to be asked now."""
        now = time.monotonic()
        return {node for node, (until, _) in self._pauses.items() if now < until}

    def _pause(self, node: int) -> None:
        """Pause questions to a node for twice as long as the last time."""
        _, last = self._pauses.get(node, (0.0, FIRST_PAUSE / 2))
        pause = min(2 * last, LAST_PAUSE)
        self._pauses[node] = (time.monotonic() + pause, pause)

    @property
    def has_strangers(self) -> bool:
        """Whether there are connected nodes to be enrolled."""
        return bool(self._unknown())

    def _is_kept(self, name: str) -> bool:
        """Whether a name stays with its present node."""
        return self.recovery == "node-key" or self.connected(name)

    def _stale(self, question: Question) -> list[int]:
        """Nodes of known agents that lost the keys they need, or that are in doubt."""
        silent = self._silent & self._paused()
        agents = self.agents.items() if silent else ()
        held = {name for name, agent in agents if agent.node in silent}
        later = self.doubtful & held
        doubtful, self.doubtful = self.doubtful - later, later
        names = self.agents if question.secure_sum else doubtful
        return [
            agent.node
            for name in names
            if (agent := self.agents.get(name)) is not None
            and (name in doubtful or not agent.public_key)
            and agent.node in self.online - silent
            and agent.node not in self.rejected
        ]

    def refresh(self, grid: Grid, question: Question, timeout: float) -> list[str]:
        """Enrol nodes not seen before, and again those in doubt; return the new names.

        In a private run an agent whose node was away is in doubt: its ledger file may be an older
        copy by now, or hold more.
        """
        before, self.online = self.online, frozenset(grid.get_node_ids())
        if question.fixed and (back := self.online - before):
            self.doubtful |= {name for name, agent in self.agents.items() if agent.node in back}
        now = time.monotonic()
        for node in self._pauses.keys() - self.online:
            until, last = self._pauses[node]
            if node not in self._silent or now > until + LAST_PAUSE:
                del self._pauses[node]
                self._silent.discard(node)
            else:  # one that was mended and started again waits no longer than at first
                self._pauses[node] = (min(until, now + FIRST_PAUSE), last)
        nodes = sorted([*self._unknown(), *self._stale(question)])
        known = set(self.agents) if nodes else set()
        self._ask(grid, nodes, question, timeout)
        return sort_names(self.agents.keys() - known) if nodes else []

    def merge(self, saved: Mapping[str, EnrolledAgent], question: Question) -> list[str]:
        """Give the places of an earlier run to the agents enrolled now; return the new names.

        Agents of the earlier run that have not come back stay in the roster, absent.
        """
        here, self._restarted, self.holders = self.agents, [], {}
        taken = {agent.node: name for name, agent in here.items()}
        self.agents = dict(saved)
        for name, old in saved.items():
            # A node that now claims another name, or was turned away, has given this one up.
            if old.node in self.rejected or taken.get(old.node, name) != name:
                old.node = 0
        for name in sort_names(here):
            self._place(name, here[name], question)
        return sort_names(set(self.agents) - set(saved))

    def ask_again(
        self, grid: Grid, names: Iterable[str], question: Question, timeout: float
    ) -> None:
        """Enrol agents of the roster again: which states they hold, and their public keys."""
        silent = self._silent & self._paused()
        nodes = [self.agents[name].node for name in names]
        self._ask(grid, [node for node in nodes if node not in silent], question, timeout)

    @property
    def encodings(self) -> dict[str, str]:
        """What agents have stated that their columns mean, by name in folding order."""
        stated = {name: agent.encoding for name, agent in self.agents.items()}
        stated |= {one.name: one.encoding for one in self.unfit.values()}
        return {name: stated[name] for name in sort_names(stated) if stated[name]}

    def spare(self, dim: int) -> dict[str, int]:
        """Return by agent how many parameters a model of ``dim`` has more than the agent's own."""
        return dict.fromkeys(self.agents, 0) | {
            one.name: dim - one.dim for one in self.unfit.values()
        }

    def settle(self, grid: Grid, names: Iterable[str], question: Question, timeout: float) -> None:
        """Ask agents again that stated another encoding than the run's, before they take part.

        They answer with that of the run, or are turned away.
        """
        others = set(names)
        nodes = [self.agents[name].node for name in others & self.agents.keys()]
        self._forget(others)
        unfit, self.unfit = self.unfit, {}
        for node, one in unfit.items():
            if one.name in others:
                nodes.append(node)
            else:
                self._reject(node, f"agent {one.name}: {one.fault}")
        self._ask(grid, sorted(nodes), question, timeout)

    def _ask(self, grid: Grid, nodes: list[int], question: Question, timeout: float) -> None:
        if not nodes:
            return
        record = question.record()
        together = grid.enrol_together(record, nodes) if isinstance(grid, EnrolsTogether) else {}
        messages = {
            str(node): Message(record_dict({RECORD: record}), node, ENROL)
            for node in nodes
            if node not in together
        }
        with without_tracebacks_of(NO_HANDLER):  # reported in one line below
            replies = exchange(grid, messages, timeout)
        holds = {agent.node: name for name, agent in self.agents.items()}
        self._note_other_apps([int(node) for node, one in replies.items() if one.code == NOT_OURS])
        found: dict[int, Enrolment] = {}
        for node in nodes:
            try:
                if node in together:
                    found[node] = sound(together[node])
                else:
                    content = self._content(node, holds.get(node), replies[str(node)])
                    if content is not None:
                        found[node] = read_enrolment(content)
            except WireError as error:
                self._reject(node, f"node {node}: {error}")
        self.silences = self.silences + 1 if self._silent.intersection(nodes) else 0
        for node in _most_alike_first(found):
            self._enrol(node, holds.get(node), found[node], question)

    def _content(self, node: int, holds: str | None, reply: Reply) -> RecordDict | None:
        """Return what a node answered; None, and noted, where that is an error or nothing."""
        said = reply.content is not None or reply.is_from_agent
        if said or reply.code in (NOT_OURS, CLIENT_APP_FAILED):
            self._silent.discard(node)
        if reply.content is None:
            if reply.is_from_agent:
                self._reject(node, reply.reason)
            elif reply.code == NOT_OURS:  # noted for all such nodes in one line
                self._reject(node, reply.reason, reply.reason)
            elif reply.code == CLIENT_APP_FAILED:
                self._reject(node, f"node {node}: {reply.reason}")
            elif holds is not None:  # at first it is asked again in the next round
                if node in self._silent:
                    self._pause(node)
                self._silent.add(node)
            else:  # busy or gone
                self._silent.add(node)
                line = f"node {node} did not answer the enrolment question: {reply.reason}"
                if node in self._pauses:
                    log.info("%s", line)
                else:
                    self.note(line)
                self._pause(node)
        return reply.content

    def _enrol(
        self, node: int, holds: str | None, enrolment: Enrolment, question: Question
    ) -> None:
        if not question.accounts:
            enrolment = replace(enrolment, ledger="")
        stated = is_statement(enrolment.encoding)
        of_rows = question.quiet and stated and has_numbers(enrolment.encoding)
        if question.quiet and stated:  # as agents that keep to themselves state it
            enrolment = replace(enrolment, encoding=in_digests(enrolment.encoding))
        problem = question.mismatch(enrolment)
        if of_rows:
            # Agents that keep to themselves take no such scaling: it is not to be that of most.
            problem = "scales its columns by numbers of its rows, which no agent of this run takes"
        elif fault := stated and fault_of_rows(enrolment.encoding, enrolment.num_examples):
            problem = fault  # its numbers are not to be in the scaling that is agreed on
        elif problem and question.open and stated:
            self.unfit[node] = Unfit(
                enrolment.agent, enrolment.encoding, one_line(problem), enrolment.dim
            )
            return
        if not problem and enrolment.public_key:
            owner = self._keys.setdefault(enrolment.public_key, enrolment.agent)
            if owner != enrolment.agent:
                problem = f"gives the public key of agent {owner}"
        if problem:
            self._reject(node, f"agent {enrolment.agent}: {one_line(problem)}")
            return
        if holds not in (None, enrolment.agent):
            self._reject(node, f"agent {holds}: its node {node} now says it is {enrolment.agent}")
            return
        now = EnrolledAgent(
            node,
            enrolment.num_examples,
            held=enrolment.rounds if enrolment.experiment == question.experiment else (),
            unit=enrolment.unit,
            public_key=enrolment.public_key,
            signs=enrolment.signs,
            facts=enrolment.facts,
            own=enrolment.own_settings,
            library=enrolment.library,
            stated=enrolment.ledger,
            step_size=enrolment.step_size,
            encoding=enrolment.encoding,
        )
        self._place(enrolment.agent, now, question)
        if self.agents.get(enrolment.agent) is now:
            question.adopt(enrolment)

    def _place(self, name: str, now: EnrolledAgent, question: Question) -> None:
        """Give a node the place of the name it claims, or turn it away."""
        self.changes.names.add(name)
        self._to_compare.add(name)
        if now.stated:
            self.stating.add(name)
        self.waiting.pop(now.node, None)
        refused = self.rejected.pop(now.node, None)
        old = self.agents.get(name)
        if old is None or old.facts != now.facts:
            self.statements += 1
        if old is None:
            self.agents[name] = now
            return
        now.tasks, now.head, now.unbound = old.tasks, old.head, old.unbound
        if question.fixed:  # else nothing is charged, for which they would count
            now.earlier = tuple(dict.fromkeys(one for one in old.terms if one not in now.terms))
        out = "" if old.out == refused else old.out
        same = old.node == now.node
        now.out = self.barred.get(name) or (out if same else "")
        if not same and self.holders.get(name) == now.node:
            # Both came back with a resume, and the checkpoint decides whose name it is.
            self.agents[name] = now
            self._turn_away(name, old.node, now.node)
            return
        if not same and self._is_kept(name):
            self._turn_away(name, now.node, old.node)
            return
        if old.num_examples != now.num_examples:
            change = f"agent {name}: {now.num_examples} examples, before {old.num_examples}"
            self.data_changes += 1
            if question.fixed:
                self._reject(now.node, f"{change}: a private run keeps the number", refused)
                old.out = self.rejected[now.node] if same else out
                return
            self.note(change)
        if len(now.earlier) > max(MOST_EARLIER, len(old.earlier)):
            why = f"agent {name} changed its numbers or settings more than {MOST_EARLIER} times"
            self._reject(now.node, why, refused)
            old.out = self.rejected[now.node] if same else out
            return
        if same or self.recovery == "yes":
            now.tag, now.ledger, now.former = old.tag, old.ledger, old.former
            now.said, now.apart, now.refolded = old.said, old.apart, old.refolded
            now.unit = old.unit
            self.agents[name] = now
            if not same:
                log.warning("agent %s came back on another node", name)
            return
        now.former, full = _as_one(old.accounts)
        now.apart = bool(now.former) and (old.apart or now.stated in ("", "[]"))
        self.agents[name] = now
        self._restarted.append(name)
        self.note(
            f"agent {name}: node {now.node} takes the place of a lost one and starts from scratch"
        )
        if full:
            self.leave_out(name, full)

    def _turn_away(self, name: str, claims: int, holds: int) -> None:
        """Turn a node away, which waits for a name that another one holds."""
        self.waiting[claims] = name
        self.note(
            f"agent {name}: node {claims} claims this name, which node {holds} holds: turned away"
        )

    def _note_other_apps(self, nodes: list[int]) -> None:
        """Note nodes whose ClientApp is not of this library, once, in one line."""
        new = [node for node in nodes if self.rejected.get(node) != INSTEAD_OF_OTHER_APPS]
        if new:
            nodes_listed = listed(f"node {node}: {INSTEAD_OF_OTHER_APPS}" for node in new)
            self.note(f"turned away: {nodes_listed}")

    def note(self, line: str) -> None:
        """Log a line, and keep it for the history."""
        log.warning("%s", line)
        self._notes.append(line)

    def _reject(self, node: int, reason: str, before: str | None = None) -> None:
        if reason not in (before, self.rejected.get(node)):
            self.note(f"node turned away: {reason}")
        self.rejected[node] = reason
        self._pause(node)


def _most_alike_first(found: Mapping[int, Enrolment]) -> Iterable[int]:
    """Return nodes with those first whose models have the layout of most.

    The first fixes which arrays are trained, so that no single agent chooses for all.
    """
    kinds = Counter((one.layout, one.buffers, one.tied) for one in found.values())
    if len(kinds) < 2:
        return found
    (usual, _), *_ = kinds.most_common(1)
    kind = {node: (one.layout, one.buffers, one.tied) for node, one in found.items()}
    return sorted(found, key=lambda node: kind[node] != usual)
