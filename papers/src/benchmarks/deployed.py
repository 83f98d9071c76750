"""A deployed round of Fed-PLT beside one of FedAvg with an empty client, and what nodes cost.

One SuperLink, SuperNodes on the same machine with Flower's own polling intervals, the bundled app
with its default keys; the two apps play runs in turn. A round is timed from the end of one to the
end of the next, so what a server does in between is in it. Nodes have a ``state-path``, as nodes
that outlive a restart do.

A message waits up to 3 s for its SuperNode to ask the SuperLink for it, and up to 1 s for its
helper to start a process. That takes 1.1 to 1.3 s of the processor before it looks at an
app: it imports all of the SuperNode (SQLAlchemy, FastAPI, gRPC). This library's imports take 0.1 s
more, a message with the default data 0.03 s. FedAvg looks for replies every 3 s; this library's
server first after 0.01 s, then with pauses of up to 0.5 s. So of the round of a few nodes, waiting
is the larger part, in both, and with N nodes on c cores it is at least N x 1.3 s / c.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean, median, stdev
from tempfile import TemporaryDirectory
from typing import Any

from .figure import Figure, Show

NODES, ROUNDS, TURNS, PAIRS = 4, 6, 5, 15
ROUND_GOAL, IMPORT_GOAL = 1.2, 1.15
IDLE_SECONDS = 30.0

FED_AVG_APP = {
    "pyproject.toml": """\
[project]
name = "empty-app"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "privet"

[tool.flwr.app.components]
serverapp = "empty_server:app"
clientapp = "empty_client:app"

[tool.flwr.app.config]
rounds = 1
nodes = 1
out = ""
""",
    "empty_server.py": """\
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    count = config["nodes"]

    def ended(number, arrays):
        if number:
            with open(config["out"], "a") as lines:
                lines.write(f"{number}\\n")

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count)
    arrays = ArrayRecord({"x": Array(np.zeros(31))})
    strategy.start(grid, arrays, num_rounds=config["rounds"], evaluate_fn=ended)
""",
    "empty_client.py": """\
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)
""",
}
"""Flower's FedAvg over the default data's 31 numbers, whose clients send back what they got."""


def bench_deployed(show: Show, *, quick: bool = False, nodes: int = 0, dim: int = 0) -> None:
    """Compare processes that answer one message, and rounds; print what nodes cost.

    With ``dim`` the rounds of models of so many numbers, see `deployed_models`.
    """
    if dim:
        from .deployed_models import bench_models

        bench_models(show, dim, nodes or 3, quick=quick)
        return
    nodes = nodes or NODES
    from support.paths import ROOT
    from support.processes import AS_INSTALLED, Deployment

    _processes(show, 3 if quick else PAIRS)
    case = f"{nodes} nodes, {os.cpu_count()} cores"
    with TemporaryDirectory(prefix="privet-bench-") as folder:
        home = Path(folder)
        empty = home / "empty-app"
        empty.mkdir()
        for name, text in FED_AVG_APP.items():
            (empty / name).write_text(text)
        with Deployment(home, environment=AS_INSTALLED) as deployment:
            deployment.start_superlink()
            begun = time.monotonic()
            for number in range(nodes):
                state = str(home / f"state-{number}")
                place = {"partition-id": number, "num-partitions": nodes}
                deployment.start_node(str(number), {**place, "state-path": state})
            deployment.wait_for_nodes()
            show(Figure("deployed", case, "until all nodes are connected, s", _since(begun)))

            def play(own: bool, rounds: int) -> Played:
                return _played(deployment, ROOT if own else empty, nodes, rounds, own)

            for own in (False, True):  # files are compiled, and data prepared, at the first use
                play(own, 2)
            _idle(show, case, deployment, nodes)
            rounds, repeats = (3, 2) if quick else (ROUNDS, TURNS)
            turns = [(play(False, rounds), play(True, rounds)) for _ in range(repeats)]
    theirs, ours = zip(*turns, strict=True)
    for at, (name, goal) in enumerate(
        (
            ("seconds a round", ROUND_GOAL),
            ("CPU seconds of a node a message", None),
            ("CPU seconds of the SuperLink a message", None),
        )
    ):
        fed_avg, fed_plt = ([played[at] for played in runs] for runs in (theirs, ours))
        show(Figure("deployed", case, f"FedAvg, {name}", median(fed_avg)))
        show(Figure("deployed", case, f"Fed-PLT, {name}", median(fed_plt)))
        _ratio(show, case, f"{name}, ratio", fed_plt, fed_avg, goal)


def _processes(show: Show, pairs: int) -> None:
    """Compare the processor's seconds of whole processes that answer one message."""
    spent: dict[str, list[list[float]]] = {"flower": [], "own": []}
    for turn in range(pairs + 1):
        for kind, runs in spent.items():
            found = _one_message(kind)
            if turn:  # files are compiled at the first
                runs.append(found)
    case = "a ClientApp process, one message"
    for kind, name in (("flower", "FedAvg"), ("own", "Fed-PLT")):
        flower, imported, answered = map(median, zip(*spent[kind], strict=True))
        show(Figure("deployed", case, f"{name}, CPU seconds", answered))
        show(Figure("deployed", case, "  of them Flower's imports", flower))
        show(Figure("deployed", case, "  the app's imports", imported - flower))
        show(Figure("deployed", case, "  the message and its data", answered - imported))
    own, flowers = ([run[-1] for run in spent[kind]] for kind in ("own", "flower"))
    _ratio(show, case, "CPU seconds, ratio", own, flowers, IMPORT_GOAL)


def _one_message(kind: str) -> list[float]:
    from support.paths import ROOT
    from support.processes import AS_INSTALLED

    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-m", "support.one_message", kind],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **AS_INSTALLED, "PYTHONPATH": path},
    )
    return list(json.loads(done.stdout)["seconds"])


def _ratio(
    show: Show,
    case: str,
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    goal: float | None,
) -> None:
    """Show the mean ratio of pairs, of its logarithm, with the ends of a 95 % interval."""
    from scipy.stats import t

    logs = [math.log(own / their) for own, their in zip(ours, theirs, strict=True)]
    half = t.ppf(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    show(Figure("deployed", case, name, math.exp(mean(logs)), goal, at_least=False))
    for end, sign in (("lower", -1), ("upper", 1)):
        show(Figure("deployed", case, f"  {end} end, 95 %", math.exp(mean(logs) + sign * half)))


Played = tuple[float, float, float]
"""Seconds a round, the first left out, and CPU seconds a message of a node and of the SuperLink."""


def _played(deployment: Any, app: Path, nodes: int, rounds: int, own: bool) -> Played:
    """Play a run to its end."""
    out = deployment.home / f"out-{time.monotonic_ns()}"
    if own:
        keys = {"num-agents": nodes, "num-server-rounds": rounds, "output-dir": str(out)}
    else:
        keys = {"nodes": nodes, "rounds": rounds, "out": str(out)}
    run = deployment.submit(app, keys)
    ends = _ends(deployment, run, lambda: next(out.glob("*/history.jsonl"), out), rounds)
    verdict = run.wait()
    if not verdict.completed:
        raise RuntimeError(f"{app.name}: {verdict.details}\n{verdict.log[-2000:]}")
    seconds, node, link = (last - first for first, last in zip(ends[0], ends[-1], strict=True))
    count = len(ends) - 1
    return seconds / count, node / (count * nodes), link / (count * nodes)


def _ends(deployment: Any, run: Any, file: Callable[[], Path], rounds: int) -> list[Played]:
    """Return when each round ended, by the lines of a file, and what had been spent by then."""
    ends: list[Played] = []
    while len(ends) < rounds:
        over = run.ended
        lines = 0
        with suppress(OSError):
            lines = file().read_bytes().count(b"\n")
        if lines > len(ends):
            spent = node_seconds(deployment), _cpu(deployment.superlink.pid)
            ends += [(time.monotonic(), *spent)] * (lines - len(ends))
        elif over:
            raise RuntimeError(f"the run ended after {lines} of {rounds} rounds:\n{run.log()}")
        time.sleep(0.1)
    return ends


def node_seconds(deployment: Any) -> float:
    """Return the processor's seconds of all SuperNodes, their helpers and ended ClientApps."""
    nodes = {node.process.pid for node in deployment.nodes.values()}
    return sum(_cpu(pid) for pid in _descendants(deployment, nodes))


def _descendants(deployment: Any, roots: set[int]) -> set[int]:
    alive, found = deployment.processes.alive(), set(roots)
    while more := {p.pid for p in alive if p.parent in found} - found:
        found |= more
    return found


def _cpu(pid: int) -> float:
    """Return the seconds of a process and of its children that have ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _memory(pid: int) -> float:
    """Return a process's share of memory in MB: what others have mapped as well counts in part."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _idle(show: Show, case: str, deployment: Any, nodes: int) -> None:
    """Show what nodes and their SuperLink cost that have nothing to do."""
    link = {deployment.superlink.pid}

    def spent() -> tuple[float, float]:
        helpers = _descendants(deployment, link)
        return node_seconds(deployment), sum(map(_cpu, helpers))

    before, begun = spent(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    after, seconds = spent(), _since(begun)
    node, superlink = (100 * (b - a) / seconds for a, b in zip(before, after, strict=True))
    show(Figure("deployed", case, "an idle node, % of a core", node / nodes))
    show(Figure("deployed", case, "SuperLink of idle nodes, % of a core", superlink))
    roots = {node.process.pid for node in deployment.nodes.values()}
    memory = sum(map(_memory, _descendants(deployment, roots)))
    show(Figure("deployed", case, "an idle node, MB", memory / nodes))
    memory = sum(map(_memory, _descendants(deployment, link)))
    show(Figure("deployed", case, "SuperLink, MB", memory))


def _since(begun: float) -> float:
    return time.monotonic() - begun
