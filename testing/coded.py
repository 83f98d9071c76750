"""Checks of messages that are coded as a few bits a number (`privet.wire.value_coding`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from . import absences, noise, runs
from .subject import Subject, first_failure, logistic_federation, require

UP, DOWN = "value-bits", "broadcast-bits"
WIDE = 40
"""Parameters of a model below which a code may be as long as the numbers themselves."""
SAME = (
    runs.same_seed_gives_the_same_bits,
    runs.resumed_run_is_the_uninterrupted_one,
    runs.run_goes_on_when_all_nodes_restart,
    absences.lost_reply_is_an_absence,
    absences.lost_state_is_made_good,
    absences.reply_of_nan_is_dropped,
    absences.reply_of_wrong_shape_is_dropped,
)
"""What holds of coded messages as well."""
CLOSE = 0.05
"""How far coding with eight bits may move the model of a short run, of how far the run moved it."""


def coded_messages_are_shorter_and_agreed_upon(subject: Subject) -> None:
    """With ``value-bits``, ``broadcast-bits`` both sides go on with what decodes: digests agree.

    Messages are shorter, the model is that of the plain run up to the coding's error, and lost
    replies, lost states and restarts cost what they cost without.
    """
    offered, subject = _offered(subject), _wide(subject)
    if not offered:
        return
    coded = replace(subject, settings={**subject.settings, **dict.fromkeys(offered, "8")})
    plain, played = subject.play(), coded.play()
    require(not any(played.failures), f"coded messages have failures: {first_failure(played)}")
    for done, before in zip(played.result.history, plain.result.history, strict=True):
        sizes = [(UP, done.bytes_up, before.bytes_up / 2)]
        if done.round > 1:  # the first broadcast is in full
            sizes.append((DOWN, done.bytes_down, 0.75 * before.bytes_down))
        for key, size, most in sizes:
            require(
                key not in offered or size < most,
                f"{key}, round {done.round}: {size} bytes are not below {most:.0f}",
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
    if UP in _offered(subject):
        coded = replace(_wide(subject), private={**subject.private, UP: "8"})
        # On one engine: how long a code is depends on the noise, which is another on the next.
        noise.uploads_tell_only_what_was_noised(replace(coded, engines=("inline",)))


def _offered(subject: Subject) -> list[str]:
    """Return the keys of coded messages that an algorithm has."""
    known = {key.name for key in subject.registered.load_strategy().config_keys().values()}
    return [key for key in (UP, DOWN) if key in known]


def _wide(subject: Subject) -> Subject:
    """Return the subject on problems large enough for a code to be worth it."""
    if subject.problems[0].dim >= WIDE:
        return subject
    return replace(subject, problems=logistic_federation(len(subject.problems), dim=WIDE))


CHECKS = (coded_messages_are_shorter_and_agreed_upon,)
PRIVATE_CHECKS = (codes_tell_only_what_was_noised,)
