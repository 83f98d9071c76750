"""Checks of uploads that are coded as a few bits a number (`privet.wire.value_coding`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from . import absences, runs
from .subject import Subject, first_failure, logistic_federation, require

KEY = "value-bits"
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
"""What holds of coded uploads as well."""
CLOSE = 0.05
"""How far coding with eight bits may move the model of a short run, of how far the run moved it."""


def coded_uploads_are_shorter_and_agreed_upon(subject: Subject) -> None:
    """With ``value-bits`` both sides go on with what was decoded: nobody's digest differs.

    Uploads are shorter, the model is that of the plain run up to the coding's error, and lost
    replies, lost states and restarts cost what they cost without.
    """
    if KEY not in {key.name for key in subject.registered.load_strategy().config_keys().values()}:
        return
    if subject.problems[0].dim < WIDE:
        subject = replace(subject, problems=logistic_federation(len(subject.problems), dim=WIDE))
    coded = replace(subject, settings={**subject.settings, KEY: "8"})
    plain, played = subject.play(), coded.play()
    require(not any(played.failures), f"coded uploads have failures: {first_failure(played)}")
    for done, before in zip(played.result.history, plain.result.history, strict=True):
        require(
            done.bytes_up < before.bytes_up / 2,
            f"round {done.round}: {done.bytes_up} bytes coded, {before.bytes_up} as they are",
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


CHECKS = (coded_uploads_are_shorter_and_agreed_upon,)
