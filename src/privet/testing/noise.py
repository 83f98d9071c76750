"""Checks of the cost of replies: nodes refuse, charged noise is drawn, accounts agree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privet.agents.guard import Received, prepared
from privet.kernel import Clipped, Facts, Perturber, Problem, Records, Release, SeededNoise
from privet.kernel.ledger import LedgerFile
from privet.kernel.streams import Streams
from privet.problems import LinearModel, public_facts
from privet.wire import unpack
from privet.wire.contract import decode_settings

from .subject import Played, Subject, require, require_same

ROUNDS = 3
TARGET = 8.0
DELTA = 1e-5
CLOSE = 1e-9
LIMITED = "1"
"""The agent whose node alone has a budget."""


class Scripted(Perturber):
    """Records the values to be noised, and answers with values that were fixed beforehand."""

    def __init__(self, release: Release, facts: Facts) -> None:
        super().__init__(release, SeededNoise(0), facts)
        self.noised: list[NDArray[Any]] = []

    def perturb(self, clipped: Clipped) -> NDArray[np.float64]:
        """Return the value of this draw, whatever is to be noised."""
        super().perturb(clipped)
        self.noised.append(np.array(clipped.value, np.float64))
        return np.random.default_rng(self.taken).standard_normal(self.facts.dim)


class CountedNoise(SeededNoise):
    """Repeatable noise that counts its draws."""

    __slots__ = ("numbers", "scales")

    def __init__(self, seed: int, *context: str | int) -> None:
        super().__init__(seed, *context)
        self.numbers = 0
        self.scales: set[float] = set()

    def gaussian(self, size: Any, scale: float) -> NDArray[np.float64]:
        """Return normal draws."""
        return self._counted(super().gaussian(size, scale), scale)

    def laplace(self, size: Any, scale: float) -> NDArray[np.float64]:
        """Return Laplace draws."""
        return self._counted(super().laplace(size, scale), scale)

    def _counted(self, drawn: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
        self.numbers += drawn.size
        self.scales.add(scale)
        return drawn


def limited_node_vetoes_what_is_not_noised(subject: Subject) -> None:
    """A node with a budget sends nothing in an un-noised run, and the run goes on without it."""
    with TemporaryDirectory() as folder:
        played = subject.play(nodes=_with_budgets(subject, folder, LIMITED), rounds=ROUNDS)
        written = list(Path(folder).glob("*"))
    for agent, instruction, reply in played.grid.exchanges:
        require(
            agent != LIMITED or (reply is not None and reply.has_error()),
            f"a node with a budget sends an un-noised upload in round {instruction.round}",
        )
    others = tuple(name for name in subject.names if name != LIMITED)
    for done in played.result.history:
        require(done.participants == others, "the veto of one node costs others their round")
    require(not written, "a refused reply was charged")


def charge_is_what_is_drawn(subject: Subject) -> None:
    """Every message takes exactly the draws that its release charges, of the charged scale."""
    sources: dict[tuple[str, int], CountedNoise] = {}

    def factory(agent: str, round_: int) -> CountedNoise:
        return sources.setdefault((agent, round_), CountedNoise(0, agent, round_))

    played = _played_with(subject, factory)
    made = subject.registered.load_agent().from_settings
    for agent, instruction, _ in played.grid.exchanges:
        round_ = instruction.round
        half = made(decode_settings(instruction.settings))
        require(half.private, "clip and noise do not make it private: give private=")
        problem = subject.problems[int(agent)]
        release = half.release(public_facts(problem), round_)
        source = sources[agent, round_]
        require(
            source.numbers == release.draws * problem.dim,
            f"round {round_}: {source.numbers / problem.dim:g} draws, {release.draws} charged",
        )
        require(
            source.scales == {release.scale},
            f"round {round_}: draws of scale {sorted(source.scales)}, {release.scale:g} charged",
        )


def uploads_tell_only_what_was_noised(subject: Subject) -> None:
    """Where the noised values are fixed beforehand, agents with other data send the same."""
    for number, one, two in _scripted(subject, *subject.problems[:2]):
        require(one.uploads.keys() == two.uploads.keys(), "the data decide what is in an upload")
        for name, array in one.uploads.items():
            require(
                np.array_equal(array, two.uploads[name]),
                f"round {number}: {name!r} of the upload holds more of the data than was noised",
            )


def a_record_moves_no_more_than_is_charged(subject: Subject) -> None:
    """One record, however large, moves a noised value by at most what was charged.

    Where the problems are of a linear model, of which a record can be exchanged.
    """
    _moves_no_more(subject, slice(1), "a record")


def an_agent_moves_no_more_than_is_charged(subject: Subject) -> None:
    """All records of an agent, exchanged, move a noised value by at most what was charged.

    With ``relation = replace-agent``, where the algorithm has that key.
    """
    if hasattr(subject.registered.load_agent(), "relation"):
        _moves_no_more(subject, slice(None), "an agent", relation="replace-agent")


def _moves_no_more(subject: Subject, which: slice, who: str, relation: str = "") -> None:
    problem = subject.problems[0]
    if not isinstance(problem, LinearModel):
        return
    features = problem.features.copy()
    features[which] *= -1e4
    other = problem.with_features(features)
    for number, one, two in _scripted(subject, problem, other, relation=relation):
        order = 1 if one.release.norm == "l1" else 2
        for value, neighbour in zip(one.noised, two.noised, strict=True):
            moved = float(np.linalg.norm(value - neighbour, order))
            require(
                moved <= (1 + CLOSE) * one.release.sensitivity,
                f"round {number}: {who} moves a noised value by {moved:.6g}, "
                f"{one.release.sensitivity:.6g} was charged",
            )


class Sent(NamedTuple):
    """A round of one agent: what it uploaded, what it had noised, and for what it was charged."""

    uploads: dict[str, NDArray[Any]]
    noised: list[NDArray[Any]]
    release: Release


def _scripted(
    subject: Subject, *problems: Problem, relation: str = ""
) -> Iterator[tuple[int, Sent, Sent]]:
    """Yield, round by round, the uploads of the first agent with either data.

    It is sent the same as in one private run of all agents, and goes on from its own rounds.
    """
    node_keys = {"relation": relation} if relation else {}
    played = subject.play(
        subject.private_settings | node_keys,
        nodes=[{**node, **node_keys} for node in subject.nodes()],
        rounds=ROUNDS,
    )
    name, made = subject.names[0], subject.registered.load_agent()
    states: list[Any] = [None] * len(problems)
    for agent, instruction, _ in played.grid.exchanges:
        if agent != name:
            continue
        settings, broadcast = (
            decode_settings(instruction.settings),
            Received(instruction.broadcast()),
        )
        half, sent = made.from_settings(settings), list[Sent]()
        streams = Streams(int(settings.get("seed", 0)), name, instruction.round)
        for place, problem in enumerate(problems):
            facts, state = public_facts(problem), states[place]
            if state is None:
                state = (
                    unpack(instruction.recovery)
                    if instruction.recovery
                    else half.restart(broadcast, facts)
                )
            noise = Scripted(half.release(facts, instruction.round), facts)
            records = Records(prepared(half, problem, facts), noise)
            local = half.local_update(Received(state), broadcast, records, streams)
            noise.settle()
            states[place] = local.state
            sent.append(Sent(dict(local.upload), noise.noised, noise.release))
        one, other = sent
        yield instruction.round, one, other
    require(states[0] is not None, f"agent {name} was not chosen in a private run")


def noise_is_the_only_chance(subject: Subject) -> None:
    """The same draws give the same bits, and other draws another model."""
    first, second, other = (
        _played_with(subject, lambda agent, round_, seed=seed: SeededNoise(seed, agent, round_))
        for seed in (0, 0, 1)
    )
    require_same(second.result, first.result, "a run with the same noise")
    require(bool((first.model != other.model).any()), "other noise gives the same model")


def ledger_says_what_the_history_says(subject: Subject) -> None:
    """The nodes' ledgers hold every message once, and their epsilon is the history's."""
    with TemporaryDirectory() as folder:
        nodes = _with_budgets(subject, folder, *subject.names)
        played = subject.play(subject.private_settings, nodes=nodes, rounds=ROUNDS)
        ledgers = [LedgerFile(str(node["ledger-path"])).spent(DELTA) for node in nodes]
    last = played.result.history[-1].epsilon
    require(0 < last < math.inf, f"a private run has epsilon {last} in its history")
    require(
        all(spent.messages == ROUNDS for spent in ledgers),
        f"{ROUNDS} rounds are {[spent.messages for spent in ledgers]} lines of the ledgers",
    )
    most = max(spent.epsilon or 0.0 for spent in ledgers)
    require(
        abs(most - last) <= CLOSE * last,
        f"the ledgers say epsilon {most:.9g}, the history says {last:.9g}",
    )


def target_epsilon_is_met_and_not_passed(subject: Subject) -> None:
    """The noise that is found for a target spends the target, and not more."""
    settings = {**subject.private_settings, subject.noise_key: 0.0, "target-epsilon": TARGET}
    played = subject.play(settings, rounds=ROUNDS)
    spent = played.result.history[-1].epsilon
    require(spent <= TARGET, f"target-epsilon = {TARGET:g} is passed: {spent:.9g}")
    require(spent >= 0.99 * TARGET, f"target-epsilon = {TARGET:g} is missed: {spent:.9g}")
    require(not any(played.failures), "an agent refuses a run that was calibrated for its target")


def seeded_noise_is_marked_not_private(subject: Subject) -> None:
    """With ``noise-seed`` the run repeats, claims nothing, and nodes with a budget refuse."""
    settings = {**subject.private_settings, "noise-seed": 5}
    first, second = (subject.play(settings, rounds=ROUNDS) for _ in range(2))
    require_same(second.result, first.result, "another run of the same noise-seed")
    require(
        all(done.epsilon == math.inf for done in first.result.history),
        "a run with noise-seed claims an epsilon",
    )
    require(
        any("not private" in note for note in first.result.history[0].notes),
        "no note says that a run with noise-seed is not private",
    )
    with TemporaryDirectory() as folder:
        nodes = _with_budgets(subject, folder, LIMITED)
        played = subject.play(settings, nodes=nodes, rounds=1)
    require(
        LIMITED not in played.result.history[0].participants,
        "a node with a budget takes part in a run of seeded noise",
    )


def _played_with(subject: Subject, factory: Any) -> Played:
    """Return a private run whose noise comes from ``(agent, round) -> source``."""
    played = subject.play(
        subject.private_settings, rounds=ROUNDS, app=subject.app(noise_factory=factory)
    )
    require(not any(played.failures), f"a private run has failures: {played.failures}")
    return played


def _with_budgets(subject: Subject, folder: str, *limited: str) -> list[dict[str, Any]]:
    """Return the nodes' configs, some with a large budget and a ledger in a folder."""
    rules = {"max-epsilon": 1e9, "delta": DELTA}
    return [
        {**node, **rules, "ledger-path": f"{folder}/{name}.jsonl"} if name in limited else node
        for name, node in zip(subject.names, subject.nodes(), strict=True)
    ]


CHECKS = (limited_node_vetoes_what_is_not_noised,)
PRIVATE_CHECKS = (
    charge_is_what_is_drawn,
    uploads_tell_only_what_was_noised,
    a_record_moves_no_more_than_is_charged,
    an_agent_moves_no_more_than_is_charged,
    noise_is_the_only_chance,
    ledger_says_what_the_history_says,
    target_epsilon_is_met_and_not_passed,
    seeded_noise_is_marked_not_private,
)
"""Checks of algorithms that have a private form."""
