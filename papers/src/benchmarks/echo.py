"""The smallest federations: clients that train nothing, on whatever grid they are given.

One speaks this library's messages, the other is Flower's FedAvg; the same code runs on the
in-process engine and, as a Flower app, in the Ray simulation.
"""

from __future__ import annotations

import json
import logging
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from privet.core.log_level import hushed
from privet.rounds.exchange import exchange
from privet.wire import AGENT_RECORD, RECORD, Update, pack
from privet.wire.contract import (
    agent_record,
    read_instruction,
    read_update,
    shared_record,
    update_record,
)
from privet.wire.records import record_dict

MARKER = "privet-echo "
PROTOCOL, VERSION = "echo", 1

SMALL = 10_000
"""Floats up to which a round is short enough to be repeated."""

APP_FILES = {
    "pyproject.toml": """\
[project]
name = "echo-app"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "privet"

[tool.flwr.app.components]
serverapp = "echo_server:app"
clientapp = "echo_client:app"

[tool.flwr.app.config]
sizes = "10"
rounds = 1
turns = 1
""",
    "echo_server.py": "from benchmarks.echo import server\n\napp = server()\n",
    "echo_client.py": "from benchmarks.echo import client\n\napp = client()\n",
}


def client() -> ClientApp:
    """Return the client: reads the model of either kind of message and sends it back."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if RECORD in message.content:
            return Message(_echo(message.content), reply_to=message)
        arrays = message.content["arrays"]
        echoed = ArrayRecord(arrays.to_numpy_ndarrays())  # type: ignore[union-attr]
        content = RecordDict({"arrays": echoed, "metrics": MetricRecord({"num-examples": 1})})
        return Message(content, reply_to=message)

    return app


def _echo(content: RecordDict) -> RecordDict:
    asked = read_instruction(content)
    arrays = asked.broadcast()
    update = Update("0", asked.round, 1, 0, pack(arrays), 0.0, 1e-5, "", "")
    return record_dict({RECORD: update_record(PROTOCOL, VERSION, update)})


def server() -> ServerApp:
    """Return the ServerApp that times both kinds of rounds and prints a line per array size."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        rounds = int(context.run_config["rounds"])
        for size in map(int, str(context.run_config["sizes"]).split(",")):
            nodes = _settled(grid)
            turns = range(int(context.run_config["turns"]) if size <= SMALL else 1)
            line = {
                "size": size,
                "own": nodes * rounds / min(exchange_seconds(grid, size, rounds) for _ in turns),
                "fed-avg": nodes * rounds / min(fed_avg_seconds(grid, size, rounds) for _ in turns),
            }
            print(MARKER + json.dumps(line), flush=True)

    return app


def exchange_seconds(grid: Grid, size: int, rounds: int) -> float:
    """Return the wall time of some rounds of this library's messages, built and read."""
    nodes = list(grid.get_node_ids())
    model = np.zeros(size)
    if size <= SMALL:
        _exchange_round(grid, nodes, 1, model)  # start the clients' processes first
    begin = time.perf_counter()
    for number in range(1, rounds + 1):
        _exchange_round(grid, nodes, number, model)
    return time.perf_counter() - begin


def _exchange_round(grid: Grid, nodes: list[int], number: int, model: np.ndarray) -> None:
    shared = shared_record(PROTOCOL, VERSION, "bench", number, "{}", {"x": model})
    own = agent_record(number)
    content = RecordDict({RECORD: shared, AGENT_RECORD: own})
    messages = {str(node): Message(content.copy(), node, MessageType.TRAIN) for node in nodes}
    for reply in exchange(grid, messages, 3600.0).values():
        assert reply.content is not None, reply.reason
        read_update(reply.content, PROTOCOL, VERSION, number).arrays()


def fed_avg_seconds(grid: Grid, size: int, rounds: int) -> float:
    """Return the wall time of some rounds of Flower's FedAvg on arrays of this many float64."""
    count = len(list(grid.get_node_ids()))
    arrays = ArrayRecord({"x": Array(np.zeros(size))})
    with hushed(logging.ERROR):  # FedAvg warns of what is asked for here: no evaluation
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count)
    begin = time.perf_counter()
    strategy.start(grid, arrays, num_rounds=rounds)
    return time.perf_counter() - begin


def _settled(grid: Grid) -> int:
    """Wait until the nodes have registered and return how many they are."""
    count, since = 0, time.monotonic()
    while True:
        found = len(list(grid.get_node_ids()))
        if found != count:
            count, since = found, time.monotonic()
        if count and time.monotonic() - since > 1.0:
            return count
        time.sleep(0.1)
