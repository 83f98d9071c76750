"""Checks of uploads that are coded as a few bits a number (`privet.wire.value_coding`)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np
from flwr.app import Message

from privet.agents.value_bits import NONE
from privet.wire.payload import ENCODED
from privet.wire.sparse import decode

from . import absences, noise, runs
from .subject import CODED, Subject, first_failure, logistic_federation, require

WIDE = 40
"""Numbers of an upload below which a code may be as long as the numbers themselves."""
SAME = (
    runs.same_seed_gives_the_same_bits,
    runs.resumed_run_is_the_uninterrupted_one,
    runs.run_goes_on_when_all_nodes_restart,
    absences.lost_reply_is_an_absence,
    absences.lost_state_is_made_good,
    absences.reply_of_nan_is_dropped,
    absences.reply_of_wrong_shape_is_dropped,
)
"""Checks that coded uploads pass as well."""
CLOSE = 0.05
"""Largest change of a short run's model by eight-bit coding, relative to the run's own change."""


def coded_uploads_are_shorter_and_agreed_upon(subject: Subject) -> None:
    """With ``value-bits`` both sides go on with what decodes: digests agree.

    Uploads are shorter, the model is that of the plain run up to the coding's error, and lost
    replies, lost states and restarts cost what they cost without. The models are large enough for
    `WIDE` numbers in an upload, of methods that send a share of them too.
    """
    if not _offered(subject):
        return
    subject = _wide(subject)
    coded = replace(subject, settings={**subject.settings, CODED: "8"})
    plain, played = subject.plain, coded.play()
    sent = _numbers_sent(subject)
    about = f"where an upload has k = {sent} of d = {subject.problems[0].dim} numbers"
    if sent < WIDE:
        about += f": give settings= or problems= with which it has {WIDE}"
    require(not any(played.failures), f"coded uploads have failures: {first_failure(played)}")
    for done, before in zip(played.result.history, plain.result.history, strict=True):
        size, most = done.bytes_up, before.bytes_up / 2
        require(
            size < most,
            f"{CODED}, round {done.round}: {size} bytes are not below {most:.0f}, {about}",
        )
    gap = float(np.linalg.norm(played.model - plain.model))
    require(
        0 < gap <= CLOSE * float(np.linalg.norm(plain.model)),
        f"coding with 8 bits moves the model by {gap:.3g}",
    )
    for promise in SAME:
        promise(coded)
    if len(coded.engines) > 1:
        runs.engines_agree_to_the_bit(coded)


def codes_tell_only_what_was_noised(subject: Subject) -> None:
    """Nor does a private upload that is coded: step and reference come from public numbers."""
    if _offered(subject):
        coded = replace(_wide(subject), private={**subject.private, CODED: "8"})
        noise.uploads_tell_only_what_was_noised(coded)


def _offered(subject: Subject) -> bool:
    """Return whether an algorithm's uploads can be coded."""
    known = {key.name for key in subject.registered.load_strategy().config_keys().values()}
    return CODED in known


def _wide(subject: Subject) -> Subject:
    """Return the subject without codes, on problems large enough for them to be worth it."""
    subject = replace(subject, settings={**subject.settings, CODED: NONE})
    dim, sent = subject.problems[0].dim, _numbers_sent(subject)
    if sent >= WIDE:
        return subject
    dim = math.ceil(WIDE * dim / sent)
    return replace(subject, problems=logistic_federation(len(subject.problems), dim=dim))


def _numbers_sent(subject: Subject) -> int:
    """Return how many numbers the longest array of an upload has, where nothing is coded."""
    reply = subject.plain.grid.exchanges[0].reply
    require(reply is not None, "the first agent that is sent a message does not answer")
    arrays = absences.uploaded(cast(Message, reply))
    if ENCODED in arrays:
        return decode(arrays[ENCODED].tobytes(), max_dim=1 << 20).values.size
    return max((array.size for array in arrays.values()), default=0)


CHECKS = (coded_uploads_are_shorter_and_agreed_upon,)
PRIVATE_CHECKS = (codes_tell_only_what_was_noised,)
