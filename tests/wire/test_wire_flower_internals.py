"""What this library uses of Flower beyond its public API: fails first where Flower changed it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.superlink.grid import InMemoryGrid

from privet.sim.engine import InlineGrid
from privet.wire import flower_internals
from support.paths import PACKAGE

ROOMS = (
    "core",
    "wire",
    "kernel",
    "data",
    "agents",
    "rounds",
    "client_apps",
    "strategies",
    "server_apps",
    "sim",
    "cli",
)
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.clientapp.typing", "flwr.serverapp")


@contextmanager
def of_this_flower() -> Iterator[None]:
    """Name Flower's version where something is not as it was."""
    version = importlib.metadata.version("flwr")
    try:
        yield
    except Exception as error:
        pytest.fail(f"flwr {version} changed what privet.wire.flower_internals uses: {error!r}")


def test_records_hold_a_dict() -> None:
    with of_this_flower():
        record = flower_internals.holding(ConfigRecord(), {"a": 1})
        assert record == ConfigRecord({"a": 1})
        assert flower_internals.held_by(record) == {"a": 1}
        assert flower_internals.held_by(RecordDict({"b": record})) == {"b": record}


def test_messages_have_an_identity_and_an_id() -> None:
    with of_this_flower():
        flower_internals.set_identity(7, 1)
        message = Message(RecordDict(), 2, "train")
        assert message.metadata.src_node_id == 1
        flower_internals.set_message_id(message, "5")
        assert message.metadata.message_id == "5"
        assert Message(RecordDict(), reply_to=message).metadata.reply_to_message_id == "5"
        assert flower_internals.empty_run(7).run_id == 7


def test_what_the_simulation_logs_of_a_reason_is_left_out_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with of_this_flower():
        from flwr.supercore import log
    headline = "An exception was raised when processing a message by %s"
    for quiet in (nullcontext(), flower_internals.without_tracebacks_of("no such handler")):
        with quiet:
            log(logging.ERROR, headline, "RayBackend")
            log(logging.ERROR, ValueError("no such handler"))
            log(logging.ERROR, "Traceback ...\nValueError: no such handler")
            log(logging.ERROR, ValueError("another"))
    log(logging.ERROR, "no such handler")
    said = [record.getMessage() for record in caplog.records if record.name == "flwr"]
    assert said[4:] == ["another", "no such handler"]
    assert len(said) == 6


def told(message: Message) -> dict[str, object]:
    """What a message says of itself but when it was made and how long it may live."""
    metadata = dict(vars(message.metadata))
    made, ttl = metadata.pop("_created_at"), metadata.pop("_ttl")
    assert 0 <= time.time() - made < 60
    return metadata | {"expires": round(made + ttl, 3), "content": message.content}


def test_flowers_simulation_is_known_by_its_grid() -> None:
    with of_this_flower():
        assert flower_internals.in_flowers_simulation(InMemoryGrid.__new__(InMemoryGrid))
        assert not flower_internals.in_flowers_simulation(InlineGrid(lambda *_: None, 1))  # type: ignore[arg-type, return-value]


def test_mods_are_where_they_were() -> None:
    """Those of the newer place; the older one goes when Flower drops it."""
    with of_this_flower():
        for module in flower_internals.MODS:
            assert module.startswith("flwr.client.") or importlib.util.find_spec(module)


def test_no_other_file_leans_on_what_is_not_public() -> None:
    found = []
    for room in ROOMS:
        for path in (PACKAGE / room).rglob("*.py"):
            for line in path.read_text().splitlines():
                words = line.split()
                if words[:1] != ["from"] or not words[1].startswith("flwr."):
                    continue
                public = words[1] in PUBLIC or words[1] == "flwr.serverapp.strategy"
                if not public and path.name != "flower_internals.py":
                    found.append(f"{path.relative_to(PACKAGE)}: {line.strip()}")
    assert found == []
