"""From a total epsilon to the noise, once the agents and their public numbers are known.

The agent half alone (`Half.release`) gives the cost of a round, for any algorithm: for every agent
and every round that it is planned to take part in, in addition to what it has paid before.
"""

from __future__ import annotations

import bisect
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from privet.agents.half import Half
from privet.core import ConfigError, algorithm
from privet.core.errors import one_line
from privet.core.key import Config, keys_of
from privet.kernel import (
    AgentLedger,
    Facts,
    NoCertificateError,
    NoiseError,
    Release,
    checked_spacing,
)
from privet.kernel.agent_ledger import LONGEST_ACCOUNT, MOST_RELEASES
from privet.kernel.checks import positive
from privet.wire.contract import means_privacy
from privet.wire.rosters import LEAST_ROSTER

from .account import TARGET
from .half import ServerHalf
from .options import RunOptions
from .participation import UpTo
from .roster import EnrolledAgent, known_facts
from .session import Session

log = logging.getLogger("flwr.privet")

RATIO = "budget-ratio"

FEW_RELEASES = 1000
"""Different releases of which an account is short, whatever they are."""
_NEARLY = 0.9
"""A share of the target: who has paid more of it leaves no others the noise that they can bear."""
_OF_OTHERS = 0.5
"""A share of the target: where all agents but one cost less, that one is named."""
_SPENT = 0.999
"""A share of the target above which it counts as spent: what a search for the noise leaves of it
would take noise in which every later round drowns the model."""


SPENT_AFTER = "%s = %g is spent after round %s of %s: the run ends there; raise it to go on"
"""The line on a run that ends before its last round, of the target's key and value."""

SMALLEST, LARGEST = 1e-60, 1e60
_STEP = math.log(8.0)
_FINE, _COARSE = 1e-9, 1e-4


def in_turn(releases: Iterable[Release]) -> Iterator[Release]:
    """Yield releases of an agent as they follow each other, from the first of its batches on."""
    steps = 0
    for one in releases:
        yield replace(one, place=steps % one.batches) if one.batches > 1 else one
        steps += one.count


class SpentError(ConfigError):
    """What agents have paid leaves too little of the target for the rounds to come."""


def smallest_noise(cost: Callable[[float], float], target: float, *, exact: bool = True) -> float:
    """Return the smallest noise that costs at most ``target``, never one that costs more.

    Parameters
    ----------
    cost : callable
        noise > 0 -> epsilon of everything that will have been released with it, and of what was
        released before; it must not grow with the noise.
    target : float
        epsilon > 0.
    exact : bool
        Whether the cost has a closed form; one computed on a grid is searched to a relative
        1e-4 of the noise in place of 1e-9.

    Raises
    ------
    ValueError
        If no noise reaches the target, as where what was paid before passes it, or none is needed.
    """
    positive(target=target)
    tolerance = _FINE if exact else _COARSE

    def excess(place: float) -> float:
        return max(-1e300, min(1e300, cost(math.exp(place)) - target))

    high = 0.0
    while excess(high) > 0:
        high += _STEP
        if high > math.log(LARGEST):
            raise ValueError(f"no noise brings the total down to epsilon {target:g}")
    low = high - _STEP
    while excess(low) <= 0:
        high, low = low, low - _STEP
        if low < math.log(SMALLEST):
            raise ValueError("no noise is needed: nothing is released, or nothing of the data")
    from scipy import optimize

    place = float(optimize.brentq(excess, low, high, xtol=tolerance / 4, rtol=1e-15))
    # The root is met from either side: take the next noise that keeps the promise.
    step = tolerance / 4
    while excess(place) > 0:
        place, step = place + step, 2.0 * step
    return math.exp(place)


@dataclass(frozen=True, slots=True)
class Plan:
    """One agent: its account so far, its public numbers, and the rounds it is to take part in.

    ``sizes`` is the number of agents that are to take part in each round, the same for all plans.
    """

    account: AgentLedger
    facts: Facts
    rounds: tuple[int, ...]
    sizes: Mapping[int, int] = field(default_factory=dict, compare=False)

    def releases(self, half: Half) -> Counter[Release]:
        """Return the most that the agent will release: the number of times of each release.

        In sums of shared noise, with ``dropouts`` agents gone from all of them, and as many
        attempts repeated in the round of least noise, each without two agents for every one that
        is gone.
        """
        if not half.noise_sharing:
            return Counter(in_turn(half.release(self.facts, number) for number in self.rounds))
        gone = half.dropouts

        def attempt(number: int, missing: int) -> Release:
            agents = max(self.sizes[number] - missing, 1)
            return half.release(replace(self.facts, agents=agents), number)

        planned = Counter(attempt(number, gone) for number in self.rounds)
        if gone and self.rounds:
            repeated = (attempt(number, 2 * gone) for number in self.rounds)
            planned[max(repeated, key=lambda release: release.loss)] += gone
        return planned

    def require_noise(self, half: Half) -> None:
        """Refuse noise that every agent would refuse.

        Raises
        ------
        NoiseError
            If it is too large relative to what it hides, e.g. if almost no budget is left.
        NoCertificateError
            If a round has none.
        """
        for release in self.releases(half):
            if release.mechanism != "none":
                checked_spacing(release, self.facts.dim)

    def epsilon(self, half: Half, delta: float) -> float:
        """Return the epsilon of all releases, paid and planned."""
        totals = self.account.totals
        for release, times in self.releases(half).items():
            totals = totals.add(release, times)
        return totals.epsilon(delta)

    def carried_out(self, half: Half) -> str:
        """Return the agent's account after all of it."""
        return AgentLedger.of((*self.account.entries, *self.releases(half).items())).to_json()

    def require_account(self, half: Half) -> None:
        """Refuse rounds of which an agent could not keep the account.

        Raises
        ------
        ConfigError
            Naming the releases that differ, and the keys.
        """
        count = len({*dict(self.account.entries), *self.releases(half)})
        if count <= FEW_RELEASES:
            return
        if count <= MOST_RELEASES and len(self.carried_out(half)) <= LONGEST_ACCOUNT:
            return
        if half.noise_ratio != 1:
            why = "budget-schedule = geometric makes one a round: take constant"
        elif half.noise_sharing:
            why = "sums of different agents make them: ask all agents in each round"
        else:
            why = "step-size-rule makes one a round: take constant"
        raise ConfigError(
            f"num-server-rounds: an agent's account would hold {count} different releases, more "
            f"than are read ({MOST_RELEASES}, or {LONGEST_ACCOUNT} characters); {why}, or ask for "
            "fewer rounds (num-server-rounds, max-uploads)"
        )


def calibrated(
    half: ServerHalf[Any], session: Session, options: RunOptions
) -> tuple[ServerHalf[Any], int | None]:
    """Return the half a run begins with, its noise set to meet a target, and its last round.

    The run's private releases are checked. That is noted in the session, so that an agent that
    joins later is checked alone.

    With a target the noise is the smallest at which no agent costs more in the rounds it is planned
    to take part in, what it has paid before a resume included. The target travels to the agents,
    who refuse to pass it: one that joins later or has an attempt repeated stops in time. A
    certificate that some round lacks is missed here, not half-way.

    A resumed run of which too little is left for that keeps its noise. It ends before the first
    round for which too few agents can pay; those that can pay for none are out.

    Parameters
    ----------
    half : ServerHalf
        Its terms have the target, 0 for noise that is taken as given.
    options : RunOptions
        Without ``max_uploads`` the last round in ``rounds``; None if it is not known yet.

    Raises
    ------
    SpentError
        If too little of the target is left, and more rounds are asked for than before, or another
        target.
    ConfigError
        If the run cannot be private as configured.
    """
    half, last = _with_noise(half, session, options)
    session.calibrated = True
    if last != options.rounds:
        log.warning(SPENT_AFTER, TARGET, half.terms.target_epsilon, last, options.rounds)
    return half, last


def _with_noise(
    half: ServerHalf[Any], session: Session, options: RunOptions
) -> tuple[ServerHalf[Any], int | None]:
    """Return the half with its noise, and the last round that it pays for."""
    half = _with_ratio(half, session)
    target = half.terms.target_epsilon
    if half.terms.noise_seed < 0 and (target > 0 or means_privacy(half.settings())):
        require_delta(half, session.roster.agents)
        require_divisor(half, session.roster.agents)
    known = options.rounds is not None or options.max_uploads
    if target <= 0:
        # Seeded noise needs no certificate.
        if known and half.agent.private and half.terms.noise_seed < 0:
            every = plans(session, options)
            _require_agents(half, every)
            _require_certificates(half, every)
            _require_accounts(half, session, every)
        return half, options.rounds
    if not known:
        raise ConfigError(f"{TARGET}: needs start(), which knows the number of rounds")
    last, before = options.rounds, session.settings_before
    while True:
        every = plans(session, options)
        _require_agents(half, every)
        with suppress(NoCertificateError):  # `_noise` names it
            _require_accounts(half.with_settings({half.noise_key: 1.0}), session, every)
        try:
            noise = _noise(half, before, every)
            if before.get(half.noise_key) != noise:
                _warn_of_one(half, noise, every)
            break
        except SpentError:
            more = 0 < session.rounds_before < (last or 0) or before.get(TARGET) != target
            if more and _leave_out_spent(half, session, options, every):
                continue
            if more:
                raise
            noise = float(before[half.noise_key])
            last = _last_paid(half.with_settings({half.noise_key: noise}), session, options)
            break
        except NoCertificateError as error:
            raise ConfigError(f"{TARGET}: {error}") from None
    log.info("%s %.4g for epsilon %g", half.noise_key, noise, target)
    half = half.with_settings({half.noise_key: noise})
    _require_accounts(half, session, every)
    return half, last


def spent_of(spent: float, target: float) -> str:
    """Return why an agent is asked no more: what it has paid of the target."""
    return f"has paid {spent:.6g} of {TARGET} = {target:g}"


def _leave_out_spent(
    half: ServerHalf[Any], session: Session, options: RunOptions, every: Mapping[str, Plan]
) -> bool:
    """Leave out agents that have paid nearly all of the target, where enough others have not.

    What they have paid is their own word, which must not end the run of the others. Returned is
    whether any is left out.
    """
    target, delta = half.terms.target_epsilon, half.terms.delta
    by_account = {plan.account: plan.account.spent(delta) for plan in set(every.values())}
    spent = {name: by_account[plan.account] for name, plan in every.items()}
    gone = {name: cost for name, cost in spent.items() if cost > _NEARLY * target}
    if not gone or len(every) - len(gone) < max(1, options.min_agents):
        return False
    for name, cost in gone.items():
        session.roster.leave_out(name, spent_of(cost, target))
    return True


def _warn_of_one(half: ServerHalf[Any], noise: float, every: Mapping[str, Plan]) -> None:
    """Name the one agent whose numbers, or whose account, make the noise of all others larger.

    They are its own word. All agents draw noise of the same scale, so that the one of fewest
    records, or that has paid most, sets it.
    """
    key, target, delta = half.noise_key, half.terms.target_epsilon, half.terms.delta
    if len(every) < 3:
        return
    names = Counter(every.values())
    with_noise = half.with_settings({key: noise}).agent
    costs = sorted(((plan.epsilon(with_noise, delta), plan) for plan in names), key=_first)
    if len(costs) < 2 or costs[-2][0] > _OF_OTHERS * target or names[costs[-1][1]] > 1:
        return
    most = costs[-1][1]
    (name,) = (name for name, plan in every.items() if plan == most)
    with suppress(ValueError):  # without it no noise can be found, or none is needed
        others = [plan for plan in names if plan != most]
        less = smallest(half.name, half.settings(), others, target, delta)
        facts, spent = most.facts, most.account.spent(delta)
        log.warning(
            "%s: agent %s alone sets the noise of all agents by what it says of itself (%d "
            "examples, epsilon %.3g paid): %s is %.3g times what the others need; exclude it if "
            "that is not so",
            *(TARGET, name, facts.num_examples, spent, key, noise / less),
        )


def _first(pair: tuple[float, Plan]) -> float:
    return pair[0]


def _last_paid(half: ServerHalf[Any], session: Session, options: RunOptions) -> int | None:
    """Return the last round before the first that too few agents can pay, with the half's noise.

    Agents that can pay for none of theirs are left out. With ``max_uploads`` the round is that in
    ``options.rounds``, unless too few agents are left.
    """
    target, delta, roster = half.terms.target_epsilon, half.terms.delta, session.roster

    def paid(plan: Plan) -> tuple[int, ...]:
        def passes(count: int) -> bool:
            return replace(plan, rounds=plan.rounds[:count]).epsilon(half.agent, delta) > target

        counts = range(1, len(plan.rounds) + 1)
        return plan.rounds[: bisect.bisect_left(counts, True, key=passes)]

    while True:
        every = plans(session, options)
        by_plan = {plan: paid(plan) for plan in set(every.values())}
        rounds = {name: by_plan[plan] for name, plan in every.items()}
        gone = [name for name, plan in every.items() if plan.rounds and not rounds[name]]
        if not gone:
            break
        for name in gone:
            roster.leave_out(name, spent_of(every[name].account.spent(delta), target))
    least = options.least_roster + half.agent.dropouts if half.masked else 1

    def enough(paying: int, chosen: int) -> bool:
        return paying >= max(least, min(options.min_agents, chosen))

    last = options.rounds or session.round
    if options.max_uploads:
        return (
            last if enough(sum(map(bool, rounds.values())), len(roster.agents)) else session.round
        )
    paying = Counter(number for each in rounds.values() for number in each)
    for number in range(session.round + 1, last + 1):
        chosen = options.participation.select(number, roster.names, options.seed)
        if not enough(paying[number], len(chosen)):
            return number - 1
    return last


def require_delta(half: ServerHalf[Any], agents: Mapping[str, EnrolledAgent]) -> None:
    """Refuse a delta of 1 / n or more, n the units that the smallest agent has; warn near it.

    A release that publishes each of n records with a chance of delta is (0, delta)-private, and
    publishes n delta of them in the mean: at 1 / n that is somebody. Where whole agents are the
    unit, n is the number of agents.

    Raises
    ------
    ConfigError
        Naming the agent and the delta to take.
    """
    delta = half.terms.delta
    sizes = {name: agent.num_examples for name, agent in agents.items() if agent.num_examples > 1}
    sizes = sizes or {name: 1 for name, agent in agents.items() if agent.num_examples == 1}
    if not sizes:
        return
    least = min(sizes, key=sizes.__getitem__)
    count, who = sizes[least], f"agent {least} has {sizes[least]} records"
    if half.settings().get("relation") == "replace-agent":
        count, who = len(agents), f"there are {len(agents)} agents"
    if count > 1 and delta * count >= 1:
        raise ConfigError(
            f"delta = {delta:g}: {who}, and 1 / {count} or more lets a run publish one as it is: "
            f"take at most {0.1 / count:.1g}"
        )
    if delta * count * 10 > 1:
        log.warning("delta = %g: %s; a tenth of 1 / %d is usual at most", delta, who, count)


def require_divisor(half: ServerHalf[Any], agents: Mapping[str, EnrolledAgent]) -> None:
    """Refuse add-remove with a loss that agents do not divide by their own number of examples.

    Where a record may come or go, its node would refuse every task: another number could come from
    counting records.

    Raises
    ------
    ConfigError
        Naming the agent and the key.
    """
    if half.settings().get("relation") != "add-remove":
        return
    for name, agent in agents.items():
        facts = facts_of(name, agent) if agent.facts and not agent.out else None
        if facts and facts.divisor != facts.num_examples:
            raise ConfigError(
                f"relation = 'add-remove': agent {name} divides its loss by {facts.divisor:g}, not "
                f"by its own {facts.num_examples} examples, and refuses each task: set divisor = "
                "agent"
            )


def _with_ratio(half: ServerHalf[Any], session: Session) -> ServerHalf[Any]:
    """Return the half with the ratio of its budget schedule, where that is left to theory.

    That of before a resume, else the root of the slowest contraction that agents' numbers give.

    Raises
    ------
    ConfigError
        If theory knows none.
    """
    if half.agent.noise_ratio:
        return half
    ratio = float(session.settings_before.get(RATIO, 0.0))
    if not ratio:
        agents = session.roster.agents.items()
        known = [facts_of(name, agent) for name, agent in agents if not agent.out]
        rate = max(map(half.contraction, known), default=1.0)
        if not 0 < rate < 1:
            raise ConfigError(
                f"{RATIO}: no contraction is known of these settings, theory's rate a round is "
                f"{rate:.4g}: give a ratio"
            )
        ratio = math.sqrt(rate)
        log.info("%s %.4g for a contraction by %.4g a round", RATIO, ratio, rate)
    return half.with_settings({RATIO: ratio})


def plans(session: Session, options: RunOptions) -> dict[str, Plan]:
    """Return who is charged how often in what is left of a run, by agent.

    The noise of a run, `privet account` and the advice on a target all rest on this plan. It has
    the rounds up to ``options.rounds`` by the run's participation. With ``max_uploads`` it has in
    their place as many as an agent has uploads left, whatever the number of versions: an agent may
    be given them all, and is given no more. Agents that are out of the run are in no plan.

    Raises
    ------
    ConfigError
        As `facts_of`.
    """
    who, rounds, seed = options.participation, options.rounds or session.round, options.seed
    if options.max_uploads:
        tasks = {name: agent.tasks for name, agent in session.roster.agents.items()}
        who = UpTo(options.max_uploads, tasks, session.round)
        rounds = session.round + options.max_uploads
    names = session.roster.names
    agents = session.roster.agents
    numbers: dict[str, list[int]] = {name: [] for name in names if not agents[name].out}
    sizes: dict[int, int] = {}
    for number in range(session.round + 1, rounds + 1):
        chosen = [name for name in who.select(number, names, seed) if name in numbers]
        sizes[number] = len(chosen)
        for name in chosen:
            numbers[name].append(number)
    every: dict[str, Plan] = {}
    for name, own in numbers.items():
        agent = agents[name]
        account = AgentLedger.joined(agent.accounts)
        every[name] = Plan(account, facts_of(name, agent), tuple(own), sizes)
    return every


def _require_agents(half: ServerHalf[Any], every: Mapping[str, Plan]) -> None:
    """Refuse dropouts that leave too few agents for a sum (raises ``ConfigError``)."""
    gone = half.agent.dropouts
    for plan in every.values() if gone else ():
        if plan.sizes and (fewest := min(plan.sizes.values())) - gone < LEAST_ROSTER:
            raise ConfigError(
                f"dropouts = {gone}: a round asks {fewest} agents, and a sum needs {LEAST_ROSTER}"
            )


def facts_of(name: str, agent: EnrolledAgent) -> Facts:
    """Return the facts that an agent stated when it was enrolled.

    Raises
    ------
    ConfigError
        If it stated none, or they cannot be read.
    """
    try:
        return Facts.from_json(agent.facts)
    except (ValueError, TypeError):
        raise ConfigError(
            f"agent {name} declares no public numbers: a private run needs its number of examples"
        ) from None


def smallest(
    name: str, settings: Mapping[str, Any], every: Iterable[Plan], target: float, delta: float
) -> float:
    """Return the smallest noise at which no plan of an algorithm costs more than ``target``.

    Parameters
    ----------
    name : str
        The algorithm, which has a ``noise_key``.
    settings : mapping
        The agents' parameters; the noise among them does not matter.

    Raises
    ------
    SpentError
        If what was paid before leaves nothing of the target.
    ConfigError
        If no noise does, or these settings add none that is accounted.
    NoCertificateError
        If nothing is proven of these settings.
    """
    kind, distinct = algorithm(name).load_agent(), set(every)
    spent = max(plan.account.spent(delta) for plan in distinct)
    if spent > _SPENT * target:
        raise SpentError(
            f"{TARGET} = {target:g}: agents have paid {spent:.6g} already; raise it to go on"
        )

    kind.from_settings(settings)  # checked once, and then the noise alone
    (key,) = (key for key in keys_of(kind).values() if key.name == kind.noise_key)

    def with_noise(noise: float) -> Config:
        return Config({**settings, kind.noise_key: key.check(noise)})

    def cost(noise: float) -> float:
        half = kind.from_settings(with_noise(noise))
        if not half.private:
            raise ConfigError(f"{TARGET}: these settings add no noise that is accounted")
        return max(plan.epsilon(half, delta) for plan in distinct)

    try:
        grid = settings.get("mechanism") == "laplace" or settings.get("batch") == "poisson"
        noise = smallest_noise(cost, target, exact=not grid)
        _require_some(distinct, kind.from_settings(with_noise(noise)))
        return noise
    except NoiseError as error:
        if spent:
            paid = f"agents have paid {spent:.6g} already and {error}"
            raise SpentError(f"{TARGET} = {target:g}: {paid}") from None
        raise ConfigError(f"{TARGET} = {target:g}: {error}") from None
    except (ConfigError, NoCertificateError):
        raise
    except ValueError as error:
        raise ConfigError(f"{TARGET} = {target:g}: {error}") from None


def _noise(half: ServerHalf[Any], before: Mapping[str, Any], every: Mapping[str, Plan]) -> float:
    """Return the noise that meets the target: that of before a resume, where it still does."""
    key, target, delta = half.noise_key, half.terms.target_epsilon, half.terms.delta
    if key in before and not any(plan.rounds for plan in every.values()):
        return float(before[key])
    if before.get(TARGET) == target:
        kept = half.with_settings({key: before[key]}).agent
        if max(plan.epsilon(kept, delta) for plan in set(every.values())) <= target:
            return float(before[key])
    return smallest(half.name, half.settings(), every.values(), target, delta)


def _require_certificates(half: ServerHalf[Any], every: Mapping[str, Plan]) -> None:
    """Refuse a run of which some round has no certificate, before its first."""
    try:
        for plan in set(every.values()):
            plan.require_noise(half.agent)
    except ValueError as error:  # no certificate, or numbers that leave the floats together
        raise ConfigError(f"this run cannot be private: {error}") from None


def _require_accounts(half: ServerHalf[Any], session: Session, every: dict[str, Plan]) -> None:
    """Refuse a run whose accounts would grow too long, before its first message.

    Where the run's own releases would fit, agents are left out of run and plans whose account has
    no room for them: it is what they say of themselves. If no agent's has, the run is refused.

    Raises
    ------
    ConfigError
        As `Plan.require_account`.
    """
    faults: dict[Plan, ConfigError] = {}
    different = set(every.values())
    for plan in different:
        try:
            plan.require_account(half.agent)
        except ConfigError as error:
            replace(plan, account=AgentLedger()).require_account(half.agent)
            faults[plan] = error
    if faults and len(faults) == len(different):
        raise next(iter(faults.values()))
    for name in [name for name, plan in every.items() if plan in faults]:
        session.roster.leave_out(name, "its account has no room left for the run's releases")
        del every[name]


def _require_some(every: Iterable[Plan], half: Half) -> None:
    """Refuse noise that no agent would add; one that alone would not is left out of the run.

    Raises
    ------
    NoiseError
        As `Plan.require_noise`, of one of them.
    """
    refused: NoiseError | None = None
    for plan in every:
        try:
            plan.require_noise(half)
        except NoiseError as error:
            refused = error
        else:
            return
    if refused is not None:
        raise refused


def uncertified(half: ServerHalf[Any], facts: Facts, own: Mapping[str, Any]) -> str:
    """Return why the releases of one agent have no certificate, or an empty text.

    Noise that is not set yet, as it follows from a target, is not looked at. ``own`` are the
    settings that the agent follows in place of the run's.
    """
    if half.terms.noise_seed >= 0:  # seeded noise needs none
        return ""
    noised = half.agent.private
    if not noised and half.noise_key and half.terms.target_epsilon > 0:
        half = half.with_settings({half.noise_key: 1.0})
    if not half.agent.private:
        return ""
    if not half.agent.noise_ratio:  # it is not resolved yet, and follows from all agents' numbers
        try:
            rate = half.contraction(facts)
        except (ValueError, ArithmeticError):
            rate = math.inf
        if not 0 < rate < 1:
            return f"no contraction is known of its numbers, which {RATIO} follows from"
        half = half.with_settings({RATIO: 1.0})
    try:
        local = half.with_settings(own) if own else half
        release = local.agent.release(facts, 1)
        if noised and release.mechanism != "none":
            checked_spacing(release, facts.dim)
    except (ValueError, ArithmeticError) as error:
        return one_line(str(error))
    if half.settings().get("relation") == "add-remove" and facts.divisor != facts.num_examples:
        return (
            f"relation = 'add-remove': it divides its loss by {facts.divisor:g}, not by its own "
            f"{facts.num_examples} examples"
        )
    return ""


def first_facts(agents: Iterable[EnrolledAgent]) -> Facts | None:
    """Return the public numbers of the agent with the fewest examples, None if none states them."""
    return min(known_facts(agents), key=lambda facts: facts.num_examples, default=None)
