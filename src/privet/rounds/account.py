"""The result of a run, its agents' releases, and their privacy cost."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Result

from privet.agents.base import LOCAL_KEYS
from privet.agents.half import Half
from privet.core import format as fmt
from privet.core.errors import listed, one_line
from privet.core.exits import Exit
from privet.kernel import AgentLedger, Facts, Release, checked_spacing, drawn_delta
from privet.kernel.ledger_lines import dearer
from privet.kernel.programs.custom import custom_in
from privet.wire import sort_names
from privet.wire.contract import decode_settings, means_privacy

from .half import ServerHalf
from .late import Late
from .roster import EnrolledAgent
from .session import Round, Session
from .stop import Stop
from .views import History, in_words, last_measures, plot, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("flwr.privet")

TARGET = "target-epsilon"


@dataclass(frozen=True, slots=True)
class Privacy:
    """The guarantee of a run for every agent's records, against the coordinator and so everybody.

    Attributes
    ----------
    private : bool
    reason : str
        Why there is no guarantee; empty if there is one.
    epsilon, delta : float
        The largest epsilon of an agent at delta; infinity if the run is not private.
    relation : str
        The relation that defines neighbouring data sets.
    agents : mapping of str to AgentLedger
        The account of each agent's releases, its predecessors of the same name included.
    drawn : float
        What delta grows by as the noise is drawn by a computer, the largest of any agent
        (`privet.kernel.drawn_delta`); ``delta`` is that of ideal noise.
    """

    private: bool
    reason: str
    epsilon: float
    delta: float
    relation: str
    agents: Mapping[str, AgentLedger] = field(default_factory=dict)
    drawn: float = 0.0
    unbound: tuple[str, ...] = ()
    """Agents that stated no bound on what they release: nothing is claimed of their records. That
    of the others rests on their own noise alone."""
    apart: tuple[str, ...] = ()
    """Agents whose accounts are above the run's target, or state nothing: `agents` has them, and
    the figures are those of the others."""

    @property
    def counted(self) -> dict[str, AgentLedger]:
        """The accounts that the run's figures are the largest of."""
        return {name: one for name, one in self.agents.items() if name not in self.apart}

    @property
    def worst(self) -> str:
        """The agent that released most; its account is the run's."""
        counted = self.counted
        return max(counted, key=lambda name: counted[name].spent(self.delta))

    def __str__(self) -> str:
        if not self.private:
            return self.reason
        delta = fmt.delta(self.delta, self.drawn)
        text = f"epsilon {fmt.epsilon(self.epsilon)} at delta {delta} ({self.relation})"
        return "; ".join([text, *self.not_covered])

    @property
    def not_covered(self) -> list[str]:
        """Lines on the agents whose records the figures are not of."""
        lines = [not_of(self.unbound)] if self.unbound else []
        return [*lines, *apart_line(self.apart, self.agents, self.delta)]

    def _repr_html_(self) -> str:
        rows = [
            (name, fmt.epsilon(ledger.spent(self.delta))) for name, ledger in self.agents.items()
        ]
        agents = table(["agent", "epsilon"], rows) if rows else ""
        return f"<p>Privacy: {fmt.text(self)}</p>{agents}"


@dataclass
class PrivetResult(Result):
    """Flower's result, with the history, models and privacy of a primal-dual run.

    Attributes
    ----------
    models : dict of str to ArrayRecord
        ``"last"`` (= ``arrays``) and further models, e.g. the mean of the agents' models.
    history : list of Round
        One entry per round, those before a resume included.
    stopped : str
        Why the run ended: a `Stop`, or the reason that an observer gave.
    diverged : str
        The quantity that diverged, and in which round; empty if none did.
    no_better : str
        The last loss and the start's, if the run is no better than its start; else empty.
    estimated_error : float
        Estimate from above of the model's distance to the pooled optimum over its norm; NaN for
        algorithms that have none.
    late : dict of str to Late
        Agents that missed the deadline of a round, with the number of these rounds.
    odd_sites : dict of str to str
        Agents that were named as not like the others, with what is odd and since which round.
    residual_unknown : str
        Why the last residual is unknown, with the agents that it lacks; empty if it is known.
    privacy : Privacy, optional
        The run's guarantee, and the account of every agent's releases.
    """

    models: dict[str, ArrayRecord] = field(default_factory=dict)
    history: History[Round] = field(default_factory=History)
    stopped: str = Stop.ROUNDS
    diverged: str = ""
    no_better: str = ""
    estimated_error: float = math.nan
    late: dict[str, Late] = field(default_factory=dict)
    odd_sites: dict[str, str] = field(default_factory=dict)
    residual_unknown: str = ""
    privacy: Privacy | None = None

    @property
    def status(self) -> str:
        """How the run ended: "completed", "stopped" (on request), "diverged", or "failed".

        It failed if no upload was ever folded: its model is the start.
        """
        if self.diverged:
            return "diverged"
        if self.stopped == Stop.REQUEST:
            return "stopped"
        return "completed" if any(done.participants for done in self.history) else "failed"

    @property
    def exit_code(self) -> Exit:
        """The exit code of ``privet run`` for a run that ended so."""
        return Exit.FRUITLESS if self.status in ("diverged", "failed") else Exit.DONE

    def plot(self, *names: str) -> Figure:
        """Return a matplotlib figure of measures over the rounds.

        Parameters
        ----------
        *names : str
            Of "loss", "accuracy", "stationarity", "residual" and "epsilon"; by default loss,
            accuracy and epsilon, those of them that were recorded.

        Raises
        ------
        ConfigError
            If matplotlib (the extra ``plots``) is not installed, or a measure was not recorded.
        """
        return plot(self.history, *names)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("rounds", f"{len(self.history)} (stopped by {self.stopped})")]
        rows += [(key, in_words({key: value}).partition(" ")[2]) for key, value in self._last()]
        rows += [(key, text) for key, text in self._faults() if text]
        return rows + ([] if self.privacy is None else [("privacy", str(self.privacy))])

    def _last(self) -> list[tuple[str, float]]:
        # The account has the epsilon.
        return [(k, v) for k, v in last_measures(self.history).items() if k != "epsilon"]

    def _faults(self) -> list[tuple[str, str]]:
        odd = "; ".join(f"agent {name}: {why}" for name, why in self.odd_sites.items())
        return [
            ("diverged", self.diverged),
            ("no better than its start", self.no_better),
            ("not like the others", odd),
        ]

    def __str__(self) -> str:
        return "; ".join(f"{name}: {text}" for name, text in self._rows())

    def _repr_html_(self) -> str:
        return table([], self._rows())


def not_of(unbound: Iterable[str]) -> str:
    """Return the line on agents of whose records nothing is claimed."""
    names = listed(f"agent {name}" for name in unbound)
    return f"nothing is claimed of the records of {names}, which stated no bound"


def apart_line(
    apart: Collection[str], accounts: Mapping[str, AgentLedger], delta: float
) -> list[str]:
    """Return the line on agents that the figures of a run leave out; empty without any."""
    if not apart:
        return []
    each = listed(f"agent {name} ({fmt.epsilon(accounts[name].spent(delta))})" for name in apart)
    return [
        f"epsilon is not that of {each}: its own account is above what the run asked for, and says "
        "nothing of the other agents' records"
    ]


def set_apart(
    accounts: Mapping[str, AgentLedger],
    target: float,
    delta: float,
    length: Callable[[str], int],
) -> tuple[str, ...]:
    """Return the agents whose accounts are above the target, or leave no total delta below 1.

    An agent's account is its own word on its own records, whose cost no other's noise depends on.
    A node of this library refuses what passes the target, but what was lost on the way, or spent
    under an earlier target or by other settings of its own, may be counted above it. Where all are
    above, as after a resume with a smaller target, none is left out.

    ``length`` gives the length of an agent's draws.

    Raises
    ------
    ValueError, ArithmeticError
        If an account cannot be evaluated.
    """
    spent = {name: one.spent(delta) for name, one in accounts.items()}
    within = {name for name, cost in spent.items() if not _is_above(target, cost)}
    counted = within or set(spent)

    def total(name: str, epsilon: float) -> float:
        return delta + drawn_delta(accounts[name].entries, length(name), epsilon)

    def is_sound(names: Collection[str]) -> bool:
        largest = max((spent[name] for name in names), default=0.0)
        return all(total(name, largest) < 1 for name in names)

    if not is_sound(counted):
        # At the epsilon of the dearest the others' draws may say nothing: it is stated apart.
        sound = sorted((n for n in counted if total(n, spent[n]) < 1), key=spent.__getitem__)
        while sound and not is_sound(sound):
            sound.pop()
        counted = set(sound) or counted
    return tuple(sort_names(spent.keys() - counted))


def is_above_target(half: ServerHalf[Any], spent: float) -> bool:
    """Whether an epsilon is above the target that a run has."""
    return _is_above(half.terms.target_epsilon, spent)


def _is_above(target: float, spent: float) -> bool:
    return 0 < target < spent * _AS_SPENT


_AS_SPENT = 1.0 - 1e-9
"""Share of a computed epsilon that is held against a target: the same releases in another order
give another last bit."""


def privacy_of(half: ServerHalf[Any], session: Session | None) -> Privacy:
    """Return a run's guarantee, from the accounts of all its agents.

    There is none if the run itself adds no noise, if anything left without it, now or before a
    resume, or if no agent's account can be read. An agent that itself states no bound has none, and
    costs the others theirs only where they share the noise; one whose account is above the run's
    target has a figure of its own.
    """
    agents = {} if session is None else session.roster.agents
    unbound = tuple(sort_names(name for name, agent in agents.items() if agent.unbound))
    every = {name: agent.accounts for name, agent in agents.items() if agent.accounts}
    accounts = {name: texts for name, texts in every.items() if name not in unbound}
    relation = str(half.settings().get("relation", "replace-one"))

    def refused(reason: str) -> Privacy:
        return Privacy(False, f"not private: {reason}", math.inf, half.terms.delta, relation)

    history = [] if session is None else session.history
    said = [text for texts in (accounts or every).values() for text in texts]
    reason = _not_private(half, said)
    spent_all = bool(history) and math.isinf(history[-1].epsilon)
    if not reason and (spent_all or not accounts):
        reason = "an agent's update left without noise of its own"
    if reason:
        return refused(reason)
    ledgers: dict[str, AgentLedger] = {}
    faults: dict[str, str] = {}
    delta, target = half.terms.delta, half.terms.target_epsilon
    lengths = {name: draw_length(agents[name], session) for name in accounts}
    for name, texts in accounts.items():
        try:
            ledger = AgentLedger.joined(texts)
            spent = ledger.spent(delta)
            if math.isinf(spent):
                faults[name] = "the noise is too small for any epsilon"
                continue
            drawn_delta(ledger.entries, lengths[name], spent)
            ledgers[name] = ledger
        except (ValueError, ArithmeticError) as error:  # the text is the agent's
            why = one_line(str(error))
            faults[name] = f"the account of agent {name} cannot be read: {why}"
    if not ledgers:
        return refused(next(iter(faults.values())))
    unbound = tuple(sort_names({*unbound, *faults}))
    apart = set_apart(ledgers, target, delta, lengths.__getitem__)
    counted = [name for name in ledgers if name not in apart]
    largest = max(ledgers[name].spent(delta) for name in counted)
    drawn = max(drawn_delta(ledgers[name].entries, lengths[name], largest) for name in counted)
    return Privacy(True, "", largest, delta, relation, ledgers, drawn, unbound, apart)


def draw_length(agent: EnrolledAgent, session: Session | None) -> int:
    """Return the length of the draws of an agent, by its facts, else by the model."""
    dims = []
    with suppress(ValueError):  # the text is the agent's; that of a private run was read
        dims = [Facts.from_json(known).dim for known, _ in agent.terms if known]
    start = 0 if session is None else session.layout.dim
    return max(dims, default=max(start, 1))


def _not_private(half: ServerHalf[Any], ledgers: list[str]) -> str:
    if not half.agent.private:  # whatever accounts an agent states
        if why := _no_claim(half):
            return why
        if means_privacy(half.settings()):
            return "noise without a clip, or a clip without noise, proves nothing"
        return "updates leave without accounted noise"
    if not ledgers:
        return "no agent has taken part"
    if why := _no_claim(half):
        return why
    if not all(ledgers):
        return "updates leave without accounted noise"
    return ""


def _no_claim(half: ServerHalf[Any]) -> str:
    """Return why nothing is claimed of noise that is charged, or an empty text."""
    if half.terms.noise_seed >= 0:
        return "the noise is seeded (noise-seed)"
    if half.settings().get("sensitivity") == "paper":
        return "the noise's scale is computed from the data (sensitivity = paper)"
    return ""


def claims_by_agent(half: ServerHalf[Any]) -> bool:
    """Whether a run claims something of each agent's records by that agent's own noise alone.

    Then an agent without a bound costs itself alone the claim. Where agents share their noise, the
    others' rests on it too.
    """
    return half.agent.private and not half.agent.noise_sharing and not _no_claim(half)


def keep_unclaimed(half: ServerHalf[Any], session: Session) -> None:
    """Claim nothing of the agents of a history without an epsilon, which does not name whose.

    So are those of older checkpoints.
    """
    agents, history = session.roster.agents, session.history
    if not (claims_by_agent(half) and history and math.isinf(history[-1].epsilon)):
        return
    if not any(agent.unbound for agent in agents.values()):
        for name, agent in agents.items():
            if agent.accounts:
                session.roster.note_unbound(name)


def own_settings(text: str) -> dict[str, Any]:
    """Return the settings that an agent states it follows in place of the run's.

    Raises
    ------
    WireError
    """
    stated = decode_settings(text) if text else {}
    return {key: stated[key] for key in LOCAL_KEYS if key in stated}


def refused_settings(half: ServerHalf[Any], text: str) -> str:
    """Return why an agent cannot follow the settings that it states, or an empty text."""
    try:
        if given := own_settings(text):
            half.with_settings(given)
    except (ValueError, TypeError, ArithmeticError) as error:  # the text is the agent's
        return f"its own settings: {one_line(str(error))}"
    return ""


REPEATS = 8
"""Releases for a round that an account may hold before it is evaluated as a whole: attempts at
secure sums, and lost replies."""


def upload_fault(
    half: ServerHalf[Any],
    agent: EnrolledAgent,
    text: str,
    number: int,
    noises: Collection[float] = (),
    *,
    enrolled: int,
) -> str:
    """Return why the account that came with an upload cannot be kept, or an empty text.

    As `account_fault`; and where uploads are charged, it must hold what the agent stated before,
    and beyond that a release no cheaper than one that it was asked for up to this round, by any
    facts, settings and ``noises`` that were stated under its name. Where agents share their noise,
    that is one in the largest sum that the added releases name of at most ``enrolled`` agents,
    which are all agents of the roster, those that have left included.
    """
    if _is_as_asked(half, agent, text, number):
        return ""
    if text and (why := account_fault(half, agent, text, number)):
        return why
    if not (agent.facts and half.agent.private) or _no_claim(half):
        return ""
    try:
        stated = _stated(half, agent)
        asked = [local.agent.release(replace(facts, agents=1), number) for local, facts in stated]
        if any(one.mechanism == "none" for one in asked):
            return ""
        more = _beyond(agent.own_account, text)
        if more is None:
            return "it lacks releases that it held before"
        if not _hold_one(more, asked):
            sums = {one.agents for one in more} if half.agent.noise_sharing else {1}
            largest = max((agents for agents in sums if agents <= enrolled), default=1)
            if not _hold_one(more, _cheapest_asked(stated, number, largest, noises)):
                why, named = "it lacks the release that was asked for", max(sums, default=1)
                if named <= enrolled:
                    return why
                return f"it names a sum of {named} agents, and {enrolled} have enrolled: {why}"
    except (ValueError, TypeError, ArithmeticError) as error:
        return one_line(str(error))
    return ""


def _is_as_asked(half: ServerHalf[Any], agent: EnrolledAgent, text: str, number: int) -> bool:
    """Whether an account is the one that is kept with just the release that was asked for.

    That is what a node of this library sends. A False says nothing.
    """
    known = agent.ledger
    if not (agent.facts and half.agent.private) or agent.own or agent.earlier or agent.said:
        return False
    if not known or max(len(known), len(text)) > _SHORT:
        return False
    expected = half.accounts_as_asked.get((known, agent.facts, number))
    if expected is None:
        try:
            asked = half.agent.release(Facts.from_json(agent.facts), number)
            expected = AgentLedger.from_json(known).record(asked).to_json()
        except (ValueError, ArithmeticError):
            return False
        if len(half.accounts_as_asked) >= _MOST_ACCOUNTS:
            half.accounts_as_asked.clear()
        half.accounts_as_asked[known, agent.facts, number] = expected
    return text == expected


_SHORT = 1 << 10
"""Characters of an account that is compared as a text."""
_MOST_ACCOUNTS = 256
"""Such accounts that are kept with one more release; equal agents share them."""


def _stated(half: ServerHalf[Any], agent: EnrolledAgent) -> list[tuple[ServerHalf[Any], Facts]]:
    """Return the halves and facts by which an agent may compute (raises ``ValueError``)."""
    return [
        (half.with_settings(own_settings(own)) if own else half, Facts.from_json(known))
        for known, own in agent.terms
    ]


def terms_of(agents: Iterable[EnrolledAgent]) -> list[tuple[Facts, dict[str, Any]]] | None:
    """Return what agents may have computed by, each once: their public numbers, and the settings
    that they follow in place of the run's; None where an agent states none that can be read.
    """
    texts = dict.fromkeys(terms for agent in agents for terms in agent.terms)
    try:
        return [(Facts.from_json(known), own_settings(own)) for known, own in texts]
    except (ValueError, TypeError):  # the texts are the agents'
        return None


def _appended(known: str, text: str) -> str:
    """Return the account that ``text`` has after all of ``known``; empty where that is no start."""
    if known.endswith("}]") and text.startswith(f"{known[:-1]},"):
        return "[" + text[len(known) :]
    return ""


def _beyond(known: str, text: str) -> Collection[Release] | None:
    """Return the releases of an account beyond those of an earlier one; None if it lacks some."""
    if added := _appended(known, text):
        return {one for one, _ in AgentLedger.from_json(added).entries}
    before = Counter(dict(AgentLedger.joined([known]).entries))
    now = Counter(dict(AgentLedger.joined([text]).entries))
    return (now - before).keys() if before <= now else None


def _hold_one(releases: Iterable[Release], asked: Iterable[Release]) -> bool:
    """Whether one of these releases costs no less than one of those that were asked for."""
    cheapest = _cheapest(asked)
    return any(_costs_no_less(one, other, _AS_SPENT) for one in releases for other in cheapest)


def _costs_no_less(one: Release, other: Release, share: float = 1.0) -> bool:
    """Whether a release costs no less than such a share of another one."""
    return (
        one.loss >= other.loss * share
        and one.count >= other.count
        and one.sampling >= other.sampling * share
    )


def _cheapest(releases: Iterable[Release]) -> list[Release]:
    """Return these releases without those that cost no less than another one of them."""
    found: list[Release] = []
    for one in releases:
        if not any(_costs_no_less(one, other) for other in found):
            found = [other for other in found if not _costs_no_less(other, one)]
            found.append(one)
    return found


def _programs_fault(
    half: ServerHalf[Any], agent: EnrolledAgent, ledger: AgentLedger, number: int
) -> str:
    """Return why the custom programs that an account names are not this run's, or an empty text.

    The statement of a run repeats what a program says of itself, so that no agent may write it.
    """
    named = custom_in(release.what for release, _ in ledger.entries)
    if not named:
        return ""
    own: set[str] = set()
    with suppress(ValueError, TypeError, ArithmeticError):  # then nothing that is named is known
        own = {
            local.agent.release(facts, number).what
            for local, facts in (_stated(half, agent) if agent.facts else ())
        }
    foreign = next((one for one in named if one not in own), "")
    return f"it names {one_line(foreign)!r}, which this run does not use" if foreign else ""


def account_fault(
    half: ServerHalf[Any], agent: EnrolledAgent, text: str, number: int, *, to_target: bool = True
) -> str:
    """Return why an account that an agent states cannot be kept, or an empty text.

    What is kept is read and evaluated much later, so it must be readable, and of releases that
    compose with each other and with what the run asks for in a round: under one relation, of one
    mechanism, against one number of colluders, of noise that an agent draws. It must have a finite
    epsilon at a total delta below 1, and for ``to_target`` within the run's target. The epsilon is
    computed only if the text adds dearer releases than the run asks for, or more of them, to the
    account that is kept of the agent; otherwise only the added releases are looked at, which is
    quick. Custom programs that it names must be the run's.
    """
    known = agent.ledger
    added = _appended(known, text) or text
    try:
        ledger = AgentLedger.from_json(added)
        if not (ledger.entries and half.agent.private):
            return ""
        if why := _programs_fault(half, agent, ledger, number):
            return why
        if not agent.facts:
            return ""
        facts = Facts.from_json(agent.facts)
        asked = half.agent.release(facts, number)
    except (ValueError, ArithmeticError) as error:
        return one_line(str(error))
    for one, _ in ledger.entries:
        if one.mechanism != asked.mechanism or one.relation != asked.relation:
            return (
                f"it has releases of {one.mechanism} noise under {one.relation!r}, this run's are "
                f"of {asked.mechanism} noise under {asked.relation!r}"
            )
        if one.agents > 1 and one.colluders != asked.colluders:
            return f"it has releases against {one.colluders} colluders, not {asked.colluders}"
    if asked.mechanism == "none":
        return ""
    try:
        for one, _ in ledger.entries:
            if one != asked:
                checked_spacing(one, facts.dim)
        target = half.terms.target_epsilon if to_target else 0.0
        most = 1 if target > 0 else REPEATS * number
        if not _is_usual(ledger.entries, asked, most):
            more = Counter(dict(ledger.entries))
            if added is text and known:
                more -= Counter(dict(AgentLedger.from_json(known).entries))
            if not _is_usual(more.items(), asked, most):
                whole = ledger if added is text else AgentLedger.from_json(text)
                return _states_nothing(whole, facts.dim, half.terms.delta, target)
    except (ValueError, ArithmeticError) as error:
        return one_line(str(error))
    return ""


def _is_usual(entries: Iterable[tuple[Release, int]], asked: Release, most: int) -> bool:
    """Whether releases are at most so many, none of which costs more than what the run asks for."""
    left = most
    for one, times in entries:
        left -= times
        dearer_use = one.loss > asked.loss or one.sampling > asked.sampling
        if left < 0 or (one != asked and (dearer_use or one.count > asked.count)):
            return False
    return True


def _states_nothing(ledger: AgentLedger, dim: int, delta: float, target: float) -> str:
    """Return why an account has no epsilon that a run can state, or an empty text.

    That is one at a total delta below 1, within the target if there is one.
    """
    epsilon = ledger.spent(delta)
    if math.isinf(epsilon):
        return "it has no finite epsilon"
    if _is_above(target, epsilon):
        return f"it comes to epsilon {fmt.epsilon(epsilon)}, above {TARGET} = {target:g}"
    if delta + drawn_delta(ledger.entries, dim, epsilon) >= 1:
        return f"its delta comes to 1 or more at epsilon {fmt.epsilon(epsilon)}"
    return ""


def refused_facts(text: str) -> str:
    """Return why an agent's public numbers cannot be read, or an empty text."""
    try:
        Facts.from_json(text)
    except (ValueError, TypeError) as error:
        return f"its public numbers cannot be read: {one_line(str(error))}"
    return ""


def unreadable(half: ServerHalf[Any], agent: EnrolledAgent) -> str:
    """Return why the cost of an agent's releases cannot be told from what is kept of it, or ""."""
    for known, own in agent.terms:
        if why := (known and refused_facts(known)) or refused_settings(half, own):
            return why
    try:
        AgentLedger.joined(agent.accounts)
    except (ValueError, ArithmeticError) as error:
        return f"its account cannot be read, so what it has paid is unknown: {one_line(str(error))}"
    return ""


def expected_release(
    half: ServerHalf[Any],
    agent: EnrolledAgent,
    number: int,
    agents: int,
    noises: Collection[float] = (),
    *,
    as_before: bool = True,
) -> Release | None:
    """Return the least release of an agent's reply in a round; None if none is accounted.

    The agent half computes it from the facts and settings that were stated under the agent's name,
    of which the dearest count. An agent that has released more than it was asked for in one of its
    messages is assumed to do so again, but for ``as_before`` = False: an agent whose account cannot
    be kept is charged as asked. ``agents`` is the number of agents in its sum, if uploads are
    masked; ``noises`` are those that the run has asked for before.
    """
    if not (agent.facts and means_privacy(half.settings())):
        return None
    try:
        stated = _stated(half, agent)
        releases = [
            local.agent.release(replace(facts, agents=agents), number) for local, facts in stated
        ]
        if releases[0].mechanism == "none":
            return None
        asked = reduce(dearer, releases[1:], releases[0])
        if not as_before:
            return asked
        ledger = AgentLedger.joined([*agent.former, agent.ledger])
        more = {one for one, _ in ledger.entries if dearer(asked, one) != asked}
        if more:
            before = _asked_before(stated, number, noises)
            shared = half.agent.noise_sharing
            more = {o for o in more if (replace(o, agents=1) if shared else o) not in before}
    except (ValueError, TypeError, ArithmeticError):
        return None
    return reduce(dearer, (one for one, _ in ledger.entries if one in more), asked)


def _asked_before(
    stated: Sequence[tuple[ServerHalf[Any], Facts]], number: int, noises: Collection[float]
) -> set[Release]:
    """Return the releases that agents were asked for up to a round, as if in sums of one agent.

    Others differ in `Release.agents` alone. ``stated`` are the halves and facts by which agents
    compute.
    """
    agent = stated[0][0].agent
    alike = agent.steady and agent.noise_ratio == 1
    rounds = (1,) if alike else range(max(1, number - _MOST_PRESENT + 1), number + 1)
    return {
        half.release(replace(facts, agents=1), round_)
        for half, facts in _by_noise(stated, noises, len(rounds))
        for round_ in rounds
    }


def _cheapest_asked(
    stated: Sequence[tuple[ServerHalf[Any], Facts]],
    number: int,
    agents: int,
    noises: Collection[float],
) -> list[Release]:
    """Return the cheapest releases of `_asked_before`, in sums of so many agents.

    Where rounds differ in their noise alone, and that by one ratio from round to round, the first
    or the last round is the cheapest.
    """
    steady, first = stated[0][0].agent.steady, max(1, number - _MOST_PRESENT + 1)
    rounds = (1, number) if steady else range(first, number + 1)
    return _cheapest(
        half.release(replace(facts, agents=agents), round_)
        for half, facts in _by_noise(stated, noises, len(rounds))
        for round_ in rounds
    )


_MOST_ASKED = 1 << 12
"""Releases that an agent was asked for which an account is compared with, those by its present
numbers and settings in any case (`_MOST_PRESENT`): it may change them `MOST_EARLIER` times. One
that is compared with fewer is charged no less for a lost reply."""


_MOST_PRESENT = 1 << 14
"""Such releases by its present numbers and settings: a run has one noise, and another one for each
target that it was resumed with, and accounts have no room for many more rounds that differ."""


def _by_noise(
    stated: Sequence[tuple[ServerHalf[Any], Facts]], noises: Collection[float], rounds: int
) -> Iterator[tuple[Half, Facts]]:
    """Yield the agent halves by which agents may have computed, with their facts.

    Each is asked for releases of so many ``rounds``; the present ones of an agent come first.
    """
    most = _MOST_ASKED // (rounds * (1 + len(noises)))
    few = list(noises)[: max(0, _MOST_PRESENT // rounds - 1)]
    for local, facts in stated[: max(1, most)]:
        yield local.agent, facts
        if key := local.noise_key:
            yield from ((local.with_settings({key: noise}).agent, facts) for noise in few)


def with_lost(account: str, release: Release) -> str:
    """Return an agent's account with a release that may have left and did not arrive."""
    known = AgentLedger.joined([account])
    try:
        after = known.record(release)
    except ValueError:  # e.g. under another relation: the two accounts do not compose
        after = AgentLedger((*known.entries, (release, 1)))
    return after.to_json()


def spent_up(
    half: ServerHalf[Any],
    agent: EnrolledAgent,
    number: int,
    agents: int,
    noises: Collection[float] = (),
) -> str:
    """Return why an agent must not be asked: with its predecessors it would exceed the target.

    An agent itself refuses to exceed it, but knows only its own releases. The arguments are those
    of `expected_release`.
    """
    target = half.terms.target_epsilon
    if not (target > 0 and agent.former):
        return ""
    after = spent_after(half, agent, number, agents, noises)
    return f"target-epsilon: {after:.6g} under this name" if after > target else ""


def spent_after(
    half: ServerHalf[Any],
    agent: EnrolledAgent,
    number: int,
    agents: int,
    noises: Collection[float] = (),
) -> float:
    """Return the epsilon under an agent's name after one more reply, 0 if none is accounted.

    It is infinite where the account cannot be evaluated. The arguments are those of
    `expected_release`.
    """
    release = expected_release(half, agent, number, agents, noises)
    if release is None:
        return 0.0
    try:
        return AgentLedger.joined(agent.accounts).record(release).spent(half.terms.delta)
    except (ValueError, ArithmeticError):  # the texts are the agents'
        return math.inf
