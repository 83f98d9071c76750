"""Checks of what agents do wrong: not being there, losing things, sending what cannot be used."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message
from numpy.typing import NDArray

from privet.kernel import Problem
from privet.sim.inline import app_of
from privet.wire import RECORD
from privet.wire.payload import ENCODED, encoded, from_payload, to_payload
from privet.wire.records import read_field
from privet.wire.sparse import decode, encode
from privet.wire.value_coding import decode_values, length_of

from .grids import Fate, Fated, changed, disconnect, lose_reply, lose_state
from .subject import (
    FAULTS,
    HALF,
    ROUNDS,
    CheckFailed,
    Played,
    Subject,
    require,
    require_same,
    says_restart,
)


def absent_agents_are_not_waited_for(subject: Subject) -> None:
    """An agent that is not chosen gets no message and is not missed, or absences are refused."""
    absent = subject.absent
    if absent is None:
        return
    for number, done in enumerate(absent.result.history, 1):
        expected = tuple(name for name in subject.names if FAULTS.get(name) != number)
        require(
            done.participants == expected,
            f"round {number}: participants are {done.participants}, chosen were {expected}",
        )
        require(not done.failures, f"round {number}: an agent that was not chosen has failed")
    require(bool(np.isfinite(absent.model).all()), "the model is not finite with absent agents")


def disconnected_agent_is_an_absent_one(subject: Subject) -> None:
    """A node that is away is named, and the run is the one in which it was not chosen."""
    _costs_its_agent_only(subject, disconnect, "a disconnected node")


def lost_reply_is_an_absence(subject: Subject) -> None:
    """A reply that never arrives is named, and its agent goes on from the state before it."""
    _costs_its_agent_only(subject, lose_reply, "a lost reply")


def lost_state_is_made_good(subject: Subject) -> None:
    """An agent that lost its state is sent it, or starts again; the history says which.

    Where it is sent all of it, the run has the same bits; a note that something restarts says
    that it was not all.
    """
    for participants in ({}, HALF):
        whole = subject.play_if_allowed(participants)
        if whole is not None:
            _require_made_good(subject, participants, whole)


def _require_made_good(subject: Subject, participants: dict[str, Any], whole: Played) -> None:
    """Play a run once more, in which agents lose their states."""
    losses = []
    for number in FAULTS.values():  # another participant in each round
        participants_then = whole.result.history[number - 1].participants
        losses.append((participants_then[number % len(participants_then)], number))
    settings = {**subject.settings, **participants}
    played = subject.play(settings, fates=dict.fromkeys(losses, lose_state))
    restarted = False
    for name, number in losses:
        done = played.result.history[number - 1]
        require(
            name in done.participants,
            f"agent {name} lost its state and is out of round {number}: "
            f"{done.failures.get(name, 'no reason is given')}",
        )
        last = played.grid.sent_to(name, number)[-1]
        if last.recovery is not None and last.tag == 0:
            continue  # it had never taken part: it is sent a first state like all others
        require(
            last.recovery is not None or last.tag == 0,
            f"agent {name} goes on from a state of round {last.tag} that it does not hold",
        )
        agent_notes = [note for note in done.notes if note.startswith(f"agent {name} ")]
        require(
            any("state" in note for note in agent_notes),
            f"no note of round {number} says that agent {name} lost its state",
        )
        restarts = says_restart(done, name)
        require(
            restarts or last.recovery is not None,
            f"agent {name} starts again in round {number}, which no note says",
        )
        restarted = restarted or restarts
    if not restarted:
        require_same(played.result, whole.result, "lost states that were sent back")
    require(bool(np.isfinite(played.model).all()), "the model is not finite after a lost state")


# ------------------------------------------------------------------ replies that cannot be used


def reply_of_nan_is_dropped(subject: Subject) -> None:
    """An agent whose gradients are no numbers costs its own replies only."""
    _spoilt_gradients_cost_their_agent_only(subject, np.nan)


def reply_of_infinity_is_dropped(subject: Subject) -> None:
    """An agent whose gradients are not finite costs its own replies only."""
    _spoilt_gradients_cost_their_agent_only(subject, np.inf)


def reply_of_wrong_shape_is_dropped(subject: Subject) -> None:
    """A vector of another length costs its agent's reply only."""
    _costs_its_agent_only(subject, upload(lambda x: np.append(x, x[:1])), "a longer reply")


def reply_of_wrong_dtype_is_dropped(subject: Subject) -> None:
    """A vector in another precision costs its agent's reply only."""
    _costs_its_agent_only(subject, upload(_other_precision), "a reply in another precision")


def reply_without_arrays_is_dropped(subject: Subject) -> None:
    """An upload that lacks what the server expects costs its agent's reply only."""

    def emptied(reply: Message) -> None:
        _record_of(reply)["payload"] = to_payload({})

    _costs_its_agent_only(subject, changed(emptied), "a reply without arrays")


def reply_of_wrong_digest_is_dropped(subject: Subject) -> None:
    """An agent that does not agree on the new state with the server costs its reply only."""

    def disagreeing(reply: Message) -> None:
        record = _record_of(reply)
        about = json.loads(str(record["about"]))
        record["about"] = json.dumps({**about, "digest": about["digest"] ^ 1})

    _costs_its_agent_only(subject, changed(disagreeing), "a reply with another digest")


def upload(change: Callable[[NDArray[Any]], NDArray[Any]]) -> Fate:
    """Return the fate of a message whose reply's vectors are changed."""

    def spoil(reply: Message) -> None:
        arrays = uploaded(reply)
        if ENCODED in arrays:
            vector = decode(arrays[ENCODED].tobytes(), max_dim=1 << 20)
            arrays = encoded(encode(change(vector.to_dense())))
        else:
            arrays = {
                name: change(_numbers(array))
                if array.dtype.kind in "fu" and array.ndim == 1
                else array
                for name, array in arrays.items()
            }
        _record_of(reply)["payload"] = to_payload(arrays)

    return changed(spoil)


def uploaded(reply: Message) -> dict[str, NDArray[Any]]:
    """Return the arrays of an upload as they travel."""
    return from_payload(read_field(_record_of(reply), "payload", bytes))


def _numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of an upload, one that is coded as differences to 0."""
    if array.dtype != np.uint8:
        return array
    return decode_values(array, length_of(array), np.dtype("f8"))


def _record_of(reply: Message) -> ConfigRecord:
    record = reply.content[RECORD]
    if not isinstance(record, ConfigRecord):
        raise CheckFailed("a reply's record is not a ConfigRecord")
    return record


def _other_precision(x: NDArray[Any]) -> NDArray[Any]:
    return x.astype(np.float32 if x.dtype == np.float64 else np.float64)


def _spoilt_gradients_cost_their_agent_only(subject: Subject, value: float) -> None:
    """Let agents compute with spoilt gradients, so that all that they send fits together."""
    app = app_of(subject.name, [_spoilt(problem, value) for problem in subject.problems])

    def spoil(grid: Fated, message: Message) -> Message | None:
        return grid.deliver_to(app, message)

    _costs_its_agent_only(subject, spoil, f"a reply of gradients of {value}")


GRADIENTS = ("gradient", "clipped_gradient", "batch_clipped_gradient")
"""Methods of a problem that agent halves call for gradients."""


def _spoilt(problem: Problem, value: float) -> Problem:
    """Return a copy of a problem whose gradients are this number, whichever entries are sent."""

    def spoil(honest: Callable[..., NDArray[Any]], *args: Any, **options: Any) -> NDArray[Any]:
        return np.full_like(honest(*args, **options), value)

    spoilt = copy.copy(problem)
    for name in GRADIENTS:
        if hasattr(problem, name):
            setattr(spoilt, name, partial(spoil, getattr(problem, name)))
    return spoilt


def _costs_its_agent_only(subject: Subject, fate: Fate, what: str) -> None:
    """Require that a fate costs its agent that round: it is named, and as if it had been absent.

    The models are not compared where a note says that the agent restarted.
    """
    require(len(subject.plain.failures) == ROUNDS, "the run in which nothing is wrong ended early")
    fates = dict.fromkeys(FAULTS.items(), fate)
    with np.errstate(all="ignore"):
        played = subject.play(fates=fates)
    _require_named(played, what)
    require(bool(np.isfinite(played.model).all()), f"{what}: the model is not finite")
    if subject.absent is not None and not any(map(says_restart, played.result.history)):
        require_same(played.result, subject.absent.result, f"{what}, beside the run without it")


def _require_named(played: Played, what: str) -> None:
    for number, failures in enumerate(played.failures, 1):
        expected = [name for name, at in FAULTS.items() if at == number]
        require(
            sorted(failures) == expected,
            f"{what} to agents {expected} in round {number}: failures are of {sorted(failures)}",
        )
        for name, why in failures.items():
            require(
                bool(why) and why.isprintable(),
                f"{what}: the reason of agent {name} is not one line: {why!r}",
            )
    require(len(played.failures) == ROUNDS, f"{what} ended the run")


CHECKS = (
    absent_agents_are_not_waited_for,
    disconnected_agent_is_an_absent_one,
    lost_reply_is_an_absence,
    lost_state_is_made_good,
    reply_of_nan_is_dropped,
    reply_of_infinity_is_dropped,
    reply_of_wrong_shape_is_dropped,
    reply_of_wrong_dtype_is_dropped,
    reply_without_arrays_is_dropped,
    reply_of_wrong_digest_is_dropped,
)
