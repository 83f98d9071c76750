"""Batches between processes: what comes out is what went in, and what is shared goes once."""

from __future__ import annotations

import errno
import gc
import os
import sys
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from privet.sim.engine import InlineGrid
from privet.sim.ray import batches
from privet.sim.ray.batches import CROSSES_ONCE, Arena, Common, pack, unpack

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no shared memory")

VALUES = [bytes([number]) * 10_000 for number in range(4)]


@pytest.fixture
def messages() -> list[Message]:
    """Return messages of which two share a record, and an error."""
    InlineGrid(lambda message, context: message, 1)  # lets messages be made in this process
    shared = ConfigRecord({"payload": VALUES[0], "list": [1, 2], "text": "t"})
    both: list[dict[str, Any]] = [
        {"all": shared, "own": ConfigRecord({"payload": VALUES[1]})},
        {"all": shared, "own": ArrayRecord({"x": Array(np.arange(2_000.0))})},
    ]
    sent = [Message(RecordDict({**one, "m": MetricRecord({"a": 0.5})}), 7, "train") for one in both]
    return [*sent, Message(Error(101, "agent 3: no"), reply_to=sent[0])]


@pytest.mark.parametrize(("size", "in_the_pickle"), [(0, 36_000), (1_000_000, 0), (25_000, 16_000)])
def test_messages_come_back_as_they_were(
    messages: list[Message], size: int, in_the_pickle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an arena, with one that is large enough, and with one that is not."""
    ours = theirs = None
    if size:
        monkeypatch.setattr(batches, "SIZE", size)
        ours = Arena()
        theirs = Arena(ours.address)
    for _ in range(2):  # an arena is written again
        packed = pack(messages, ours).batch
        first, second, error = unpack(packed, theirs)
        assert first.content == messages[0].content
        assert second.content == messages[1].content
        assert vars(first.metadata) == vars(messages[0].metadata)
        assert first.content["all"] is second.content["all"]
        assert (error.error.code, error.error.reason) == (101, "agent 3: no")
        assert len(packed) == pytest.approx(in_the_pickle, abs=3_000)


def test_values_for_which_the_system_has_no_memory_stay_in_the_pickle(
    messages: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing them would end the process with SIGBUS; what is reserved already is still used."""
    ours = Arena()
    theirs = Arena(ours.address)
    pack(messages[1:2], ours)

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    packed = pack(messages, ours).batch
    back = list(unpack(packed, theirs))
    assert [one.content for one in back[:2]] == [one.content for one in messages[:2]]
    assert len(packed) == pytest.approx(16_000, abs=3_000)


def test_what_several_batches_have_in_common_is_put_once() -> None:
    """The model that all are sent, in a record or in arrays; what one is sent stays with it."""
    InlineGrid(lambda message, context: message, 1)
    large = [bytes([number]) * CROSSES_ONCE for number in range(4)]
    arrays = ArrayRecord({"x": Array(np.ones(CROSSES_ONCE // 8))})
    all_ = ConfigRecord({"payload": large[3], "small": VALUES[0]})
    sent = [
        Message(
            RecordDict({"all": all_, "x": arrays, "own": ConfigRecord({"payload": own})}),
            *(7, "train"),
        )
        for own in large[:3]
    ]
    rounds: list[list[Message]] = [sent[:2], sent[2:], [Message(Error(1, "no"), reply_to=sent[0])]]
    put: list[bytes] = []

    def reference(value: bytes) -> int:
        put.append(value)
        return len(put) - 1

    common = Common(reference)
    for batch in rounds:
        common.note(batch)
    for batch, own in zip(rounds, (2, 1, 0), strict=True):
        packed = pack(batch, None, common)
        assert len(packed.batch) == pytest.approx(own * CROSSES_ONCE + 10_000, abs=15_000)
        values = [put[number] for number in packed.references]
        back = list(unpack(packed.batch, None, values))
        assert [one.content for one in back if one.has_content()] == [
            one.content for one in batch if one.has_content()
        ]
    assert put == [large[3], arrays["x"].data]


def test_arena_of_another_process_or_machine_is_not_mistaken_for_ours() -> None:
    """The address may name a file of something else there, or none at all."""
    ours, other = Arena(), Arena()
    path = ours.address.split()[0]
    name = other.address.split()[1]
    for wrong in (f"{path} {name}", f"/proc/self/fd/0 {name}", f"/proc/0/fd/9 {name}"):
        with pytest.raises(
            OSError, match=r"the expected shared memory|No such file|Invalid argument"
        ):
            Arena(wrong)
        assert batches.new_arena(wrong) is None


def test_arena_that_is_no_longer_used_is_given_back() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        ours = Arena()
        Arena(ours.address)
    del ours
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
