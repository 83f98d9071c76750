"""All that this library uses of Flower beyond its public API, in one place.

Tested with flwr 1.41 and 1.42. Another may change any of it: the test of this file then fails
first, and names the version.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from click import ClickException
from flwr.app import Message, RecordDict
from flwr.common.config import flatten_dict, parse_config_args

Record = TypeVar("Record")

MODS = {
    "flwr.clientapp.mod.centraldp_mods",
    "flwr.clientapp.mod.localdp_mod",
    "flwr.client.mod.centraldp_mods",
    "flwr.client.mod.localdp_mod",
    "flwr.client.mod.secure_aggregation.secagg_mod",
    "flwr.client.mod.secure_aggregation.secaggplus_mod",
}
"""Modules of the mods for clipping, noise and secure aggregation, known by name, because importing
the older ones takes half a second."""

_HEADLINE = "An exception was raised when processing a message by %s"
"""Text that Flower's simulation logs before each traceback of a ClientApp."""


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Return nested run-config tables by names joined with dots (raises ``ValueError``)."""
    return dict(flatten_dict(config))


def node_config(text: str) -> dict[str, Any]:
    """Return what a SuperNode reads from its ``--node-config`` (raises ``ValueError``)."""
    try:
        return dict(parse_config_args([text]))
    except OSError as error:
        raise ValueError(f"{text}: {error.strerror}") from None
    except (ClickException, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def dropped_words(text: str) -> list[str]:
    """Return the words of a ``--node-config`` that a SuperNode passes over without saying so."""
    if text.endswith(".toml"):
        return []
    return re.sub(r"\S+?=('[^']*'|\"[^\"]*\"|\S+)", " ", text).split()


def held_by(record: Any) -> dict[str, Any]:
    """Return the dict that a record, or a message's content, holds."""
    held: dict[str, Any] = record.__dict__["_data"]
    return held


def holding(record: Record, held: dict[str, Any]) -> Record:
    """Return a record of the same kind that holds this very dict, without Flower's checks of it."""
    made = object.__new__(record.__class__)
    made.__dict__ = inside = record.__dict__.copy()
    inside["_data"] = held
    return made


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, which has no setter."""
    message.metadata.__dict__["_message_id"] = message_id


def set_identity(run_id: int, node_id: int) -> None:
    """Say who creates messages in this process: ``Message()`` asks for it."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = node_id
    TaskIdentity.task_id = 0


def empty_run(run_id: int) -> Any:
    """Return a ``Run`` of which nothing is known but its id."""
    from flwr.supercore.run import Run

    return Run.create_empty(run_id)


def packed_content(content: RecordDict) -> bytes:
    """Return a message's content as the bytes that Flower sends."""
    from flwr.common.serde import recorddict_to_proto

    packed: bytes = recorddict_to_proto(content).SerializeToString()
    return packed


def unpacked_content(data: bytes) -> RecordDict:
    """Return the content of ``packed_content``."""
    from flwr.common.serde import recorddict_from_proto
    from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

    return recorddict_from_proto(ProtoRecordDict.FromString(data))


def in_flowers_simulation(grid: object) -> bool:
    """Whether a ServerApp's grid keeps its messages in memory, as that of a simulation does."""
    from flwr.superlink.grid import InMemoryGrid

    return isinstance(grid, InMemoryGrid)


@contextmanager
def without_tracebacks_of(reason: str) -> Iterator[None]:
    """Keep what Flower's simulation logs of failures with this reason, 60 lines each, to itself."""

    def others(record: logging.LogRecord) -> bool:
        return reason not in record.getMessage() and record.msg != _HEADLINE

    logger = logging.getLogger("flwr")
    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)
