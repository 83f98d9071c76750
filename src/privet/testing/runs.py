"""Checks of whole runs in which nothing goes wrong: progress, the same bits, going on later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from numpy.typing import NDArray

from privet.agents.state import STATE_RECORD, AgentState
from privet.client_apps import agent_name
from privet.sim.engine import InlineGrid
from privet.strategies import Round

from .subject import (
    ENGINES,
    HALF,
    ROUNDS,
    Played,
    Subject,
    first_failure,
    require,
    require_same,
    says_restart,
)

LONG = 3 * ROUNDS
FEW = 3
"""Rounds of a secure sum."""
CONVERGED, EXACT = 150, 1e-9
"""Rounds after which the mean gradient of a method that converges exactly is at most this."""
OWN_STEPS = {"local-epochs": 7, "step-size": 0.05}
"""Keys that a node may set for itself, at other values than a run has."""
MASKED_ERROR = 256 * 2.0**-40
"""Error of the model after a few rounds of rounded masked numbers, on problems of this size."""
ARITHMETIC_ERROR = 16
"""Roundings of the arithmetic itself, where that is coarser (float32)."""


def run_is_finite_and_makes_progress(subject: Subject) -> None:
    """Without noise the residual falls, and so does the gradient of the agents' mean loss."""
    played = subject.play(rounds=LONG)
    require(bool(np.isfinite(played.model).all()), "the model is not finite")
    residuals = [done.residual for done in played.result.history]
    seen = [residual for residual in residuals if not math.isnan(residual)]
    require(bool(seen) and not math.isnan(residuals[-1]), "the residual is not a number")
    require(min(seen) >= 0, f"a residual is negative: {min(seen):.3g}")
    require(seen[-1] < max(seen), f"the residual never fell below its first value, {seen[0]:.3g}")
    start, end = (_slope(subject, x) for x in (np.zeros_like(played.model), played.model))
    require(
        end < start,
        f"the mean gradient's norm went from {start:.3g} to {end:.3g} in {LONG} rounds",
    )


def steps_of_a_nodes_own_move_no_limit(subject: Subject) -> None:
    """Where runs converge exactly, a node with other local steps changes the path, not the limit.

    Values that both sides must agree on are sent, not computed from keys that a node may set for
    itself.
    """
    if _slope(subject, subject.play(rounds=CONVERGED).model) > EXACT:
        return
    first, *others = subject.nodes()
    played = subject.play(rounds=CONVERGED, nodes=[first | OWN_STEPS, *others])
    settings = " ".join(f"{key}={value}" for key, value in OWN_STEPS.items())
    require(not any(played.failures), f"with {settings} at one node: {first_failure(played)}")
    slope = _slope(subject, played.model)
    require(
        slope <= EXACT, f"with {settings} at one node the mean gradient ends at {slope:.3g}, not 0"
    )


def same_seed_gives_the_same_bits(subject: Subject) -> None:
    """Two runs of one seed agree to the bit, with everybody and with drawn participants."""
    require_same(subject.play().result, subject.plain.result, "another run of the same seed")
    first, second = (subject.play_if_allowed(HALF) for _ in range(2))
    if first is not None and second is not None:
        require_same(second.result, first.result, "another run with drawn participants")


def order_of_nodes_changes_nothing(subject: Subject) -> None:
    """Uploads are folded in the order of names, whatever the order of the nodes is."""
    turned = subject.play(nodes=subject.nodes()[::-1])
    require_same(turned.result, subject.plain.result, "nodes in the opposite order")


def agents_share_nothing(subject: Subject) -> None:
    """Agents of one process act as if each had its own: none writes into data of another."""
    apps = {name: subject.app() for name in subject.names}

    def one_app_each(message: Message, context: Context) -> Message:
        return apps[str(context.node_config["partition-id"])](message, context)

    played = subject.play(app=one_app_each)
    require_same(played.result, subject.plain.result, "every agent in a process of its own")


def data_are_not_written_to(subject: Subject) -> None:
    """The agents' data are after a run what they were before it.

    Nor can anything be written that travelled: it is read from the bytes of messages.
    """
    before = _data_of(subject)
    subject.play(rounds=2)
    after = _data_of(subject)  # with what was computed from them since, and kept
    require(before.items() <= after.items(), "a run writes into the agents' data")


def resumed_run_is_the_uninterrupted_one(subject: Subject) -> None:
    """A run that is ended and resumed from its checkpoint has the same bits."""
    for participants in ({}, HALF):
        whole = subject.play_if_allowed(participants)
        if whole is None:
            continue
        for after in (ROUNDS // 2, ROUNDS // 2 + 1):
            resumed = _resumed(subject, participants, after, keeps_states=True)
            require_same(resumed.result, whole.result, f"resumed after round {after}")
            sent, expected = (
                [done.bytes_up for done in run.result.history] for run in (resumed, whole)
            )
            require(sent == expected, "a resumed run sends other messages")


def rounds_leave_the_rows_of_absent_agents(subject: Subject) -> None:
    """A round changes the rows of its participants alone: a checkpoint looks for no others."""
    before: dict[str, NDArray[Any]] = {}

    def look(done: Round, strategy: Any) -> None:
        half, session = strategy.half, strategy.session
        if done.round == 1:  # another engine's run
            before.clear()
        absent = [p for n, p in session.roster.positions.items() if n not in done.participants]
        for name in () if half.masked else half.rows(np.empty(0)):
            table = np.asarray(getattr(session.state, name))
            if table.ndim == 2 and name in before:
                same = table[absent].tobytes() == before[name][absent].tobytes()
                require(same, f"round {done.round} changes rows of {name} of agents without upload")
            before[name] = table.copy()

    subject.play_if_allowed(HALF, observers=[look])


def run_goes_on_when_all_nodes_restart(subject: Subject) -> None:
    """Nodes that lost everything are sent their states, and the run has the same bits.

    Where the server does not hold all of a state, the history says which agents restart.
    """
    after = ROUNDS // 2
    resumed = _resumed(subject, {}, after, keeps_states=False)
    done = resumed.result.history[after]
    require(bool(np.isfinite(resumed.model).all()), "the model is not finite after a restart")
    for name in subject.names:
        require(
            says_restart(done, name) or not _starts_again(resumed, name, after + 1),
            f"no note says that agent {name} starts again",
        )
    if not says_restart(done):
        require_same(resumed.result, subject.plain.result, "all nodes restarted")


def secure_sum_is_the_sum_in_clear(subject: Subject) -> None:
    """Masked uploads give the model of the run in clear, up to the rounding of what is masked."""
    masked = subject.play_if_allowed({"secure-sum": True}, rounds=FEW)
    if masked is None:
        return
    require(
        all(exchange.instruction.attempt > 0 for exchange in masked.grid.exchanges),
        "secure-sum = true is ignored: agents are asked for uploads in the clear",
    )
    require(not any(masked.failures), f"a secure sum has failures: {first_failure(masked)}")
    clear = subject.play(rounds=FEW).model
    gap = float(np.abs(masked.model - clear).max())
    allowed = max(MASKED_ERROR, ARITHMETIC_ERROR * float(np.finfo(clear.dtype).eps))
    require(
        gap <= allowed * max(1.0, float(np.abs(clear).max())),
        f"the model of the secure sum is {gap:.3g} away from that in clear",
    )


def engines_agree_to_the_bit(subject: Subject) -> None:
    """All engines give the bits of the in-process one: also with drawn participants, and noise."""
    cases: list[dict[str, Any]] = [{}, HALF]
    if subject.noise_key:
        cases.append({**subject.private_settings, "noise-seed": 1})
    for changes in cases:
        played = subject.play_if_allowed(changes)
        if played is None:
            continue
        for name in subject.engines:
            with ENGINES[name](subject) as grid:
                strategy = subject.strategy({**subject.settings, **changes})
                result = strategy.start(grid, subject.start(), num_rounds=ROUNDS)
            require_same(result, played.result, f"the engine {name!r}")


def agent_states(
    grid: InlineGrid, tags: Mapping[str, int] | None = None
) -> dict[str, dict[str, NDArray[Any]]]:
    """Return the newest state every agent of the engine holds, by agent name.

    With ``tags`` it is that of the round given for the agent; 0 leaves the agent out.
    """
    states: dict[str, dict[str, NDArray[Any]]] = {}
    for context in grid.contexts.values():
        record = context.state.get(STATE_RECORD)
        if isinstance(record, ConfigRecord):
            held = AgentState.from_record(record)
            name = agent_name(context)
            found = held.at(held.experiment, held.rounds[-1] if tags is None else tags[name])
            if found is not None:
                states[name] = found
    return states


def _resumed(
    subject: Subject, changes: dict[str, Any], after: int, *, keeps_states: bool
) -> Played:
    """Return a run that was ended after a round and resumed on nodes that are new."""
    settings = {**subject.settings, **changes}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint.npz"
        subject.play(settings, rounds=after, checkpoint=file, keeps_states=keeps_states)
        return subject.play(settings, resume=file)


def _starts_again(played: Played, agent: str, round_: int) -> bool:
    """Return whether an agent's last instruction named no state and brought none."""
    sent = played.grid.sent_to(agent, round_)
    return bool(sent) and sent[-1].tag == 0 and sent[-1].recovery is None


def _slope(subject: Subject, x: NDArray[Any]) -> float:
    """Return the norm of the mean of the agents' gradients."""
    return float(np.linalg.norm(sum(problem.gradient(x) for problem in subject.problems)))


def _data_of(subject: Subject) -> dict[tuple[int, str], bytes]:
    """Return the bytes of all arrays that the problems hold, by problem and attribute."""
    return {
        (place, name): value.tobytes()
        for place, problem in enumerate(subject.problems)
        for name, value in getattr(problem, "__dict__", {}).items()
        if isinstance(value, np.ndarray)
    }


CHECKS = (
    run_is_finite_and_makes_progress,
    steps_of_a_nodes_own_move_no_limit,
    same_seed_gives_the_same_bits,
    order_of_nodes_changes_nothing,
    agents_share_nothing,
    data_are_not_written_to,
    resumed_run_is_the_uninterrupted_one,
    rounds_leave_the_rows_of_absent_agents,
    run_goes_on_when_all_nodes_restart,
    secure_sum_is_the_sum_in_clear,
)
