"""Deployed rounds of models of a million and more numbers, beside those of Flower's FedAvg.

One SuperLink and its SuperNodes on this machine, whose ``state-path`` keeps a node's state. Both
apps send float32 numbers that are no two alike: Flower cuts an array into chunks of 5 MB and sends
and keeps equal ones once, which of a vector of zeros is a quarter of it. Both apps' clients take
two local steps towards a number of their own. A process's peak is the kernel's own, of the largest
of its kind; the peak of all is that of the sum of what they hold, looked at several times a second.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from .deployed import FED_AVG_APP, _descendants, _ends, _memory, _ratio
from .figure import Figure, Show

ROUND_GOAL, MEMORY_GOAL = 1.3, 1.5
ROUNDS, TURNS = 4, 3
KINDS = ("ServerApp", "ClientApp", "SuperLink", "all processes")

_START = 'np.random.default_rng(0).standard_normal(config["dim"], "f4")'
_PROJECT = FED_AVG_APP["pyproject.toml"].replace('out = ""', 'out = ""\ndim = 1')
THEIRS = {
    "pyproject.toml": _PROJECT,
    "empty_server.py": FED_AVG_APP["empty_server.py"].replace("np.zeros(31)", _START),
    "empty_client.py": """\
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    at = float(context.node_config["partition-id"])
    x = message.content["arrays"]["x"].numpy()
    for _ in range(2):
        gradient = x - x.dtype.type(at)
        gradient *= x.dtype.type(0.3)
        x -= gradient
    del gradient
    arrays = ArrayRecord({"x": Array(x)})
    content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)
""",
}
OURS = {
    "pyproject.toml": _PROJECT.replace("empty", "own"),
    "own_server.py": """\
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from privet.strategies import FedPLT

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config

    def ended(number, arrays):
        if number:
            with open(config["out"], "a") as lines:
                lines.write(f"{number}\\n")

    strategy = FedPLT(
        num_agents=config["nodes"], min_agents=config["nodes"], rho=1.0, step_size=0.3,
        local_epochs=2, local_start="model",
    )
    arrays = ArrayRecord({"x": Array(START)})
    strategy.start(grid, arrays, num_rounds=config["rounds"], evaluate_fn=ended)
""".replace("START", _START),
    "own_client.py": """\
from privet.client_apps import CallableProblem, client_app


def problem(context):
    at, dim = float(context.node_config["partition-id"]), int(context.run_config["dim"])
    return CallableProblem(lambda x: 0.0, lambda x: x - x.dtype.type(at), dim, 1, dtype="float32")


app = client_app("fed-plt", problem)
""",
}


def bench_models(show: Show, dim: int, nodes: int, *, quick: bool = False) -> None:
    """Compare seconds a round, and peaks of memory, of runs in turn."""
    from support.processes import AS_INSTALLED, Deployment

    case = f"{nodes} nodes, {dim:.0e} float32"
    with TemporaryDirectory(prefix="privet-bench-") as folder:
        home = Path(folder)
        for name, files in (("theirs", THEIRS), ("ours", OURS)):
            (home / name).mkdir()
            for file, text in files.items():
                (home / name / file).write_text(text)
        with Deployment(home, environment=AS_INSTALLED) as deployment:
            deployment.start_superlink()
            for number in range(nodes):
                place = {"partition-id": number, "num-partitions": nodes}
                own: dict[str, Any] = {**place, "state-path": str(home / f"state-{number}")}
                deployment.start_node(str(number), own)
            deployment.wait_for_nodes()
            rounds = 2 if quick else ROUNDS
            played = {
                name: [_played(deployment, home / name, nodes, rounds, dim, at)]
                for at, name in enumerate(("theirs", "ours"))
            }
            for turn in range(1, 1 if quick else TURNS):
                for at, (name, runs) in enumerate(played.items(), 2 * turn):
                    runs.append(_played(deployment, home / name, nodes, rounds, dim, at))
    theirs, ours = played["theirs"], played["ours"]
    for name, goal in (
        ("seconds a round", ROUND_GOAL),
        *((f"{k}, MB", MEMORY_GOAL) for k in KINDS),
    ):
        fed_avg, fed_plt = ([run[name] for run in runs] for runs in (theirs, ours))
        show(Figure("deployed", case, f"FedAvg, {name}", median(fed_avg)))
        show(Figure("deployed", case, f"Fed-PLT, {name}", median(fed_plt)))
        if len(fed_avg) > 1:
            _ratio(show, case, f"{name}, ratio", fed_plt, fed_avg, goal)


def _played(
    deployment: Any, app: Path, nodes: int, rounds: int, dim: int, number: int
) -> dict[str, float]:
    """Return the seconds a round of a run, the first left out, and the peaks of its processes."""
    out = deployment.home / f"rounds-{number}"
    with _peaks(deployment) as peaks:
        keys = {"nodes": nodes, "rounds": rounds, "out": str(out), "dim": dim}
        run = deployment.submit(app, keys)
        ends = [at for at, *_ in _ends(deployment, run, lambda: out, rounds)]
        verdict = run.wait()
    if not verdict.completed:
        raise RuntimeError(f"{app.name}: {verdict.details}\n{verdict.log[-2000:]}")
    seconds = (ends[-1] - ends[0]) / (len(ends) - 1)
    return {"seconds a round": seconds, **{f"{kind}, MB": peaks[kind] for kind in KINDS}}


@contextmanager
def _peaks(deployment: Any) -> Iterator[dict[str, float]]:
    """Yield the peaks of memory within the block, in MB, as they grow."""
    peaks, over = dict.fromkeys(KINDS, 0.0), threading.Event()

    def watch() -> None:
        while not over.wait(0.3):
            nodes = {node.process.pid for node in deployment.nodes.values()}
            every = _descendants(deployment, {deployment.superlink.pid, *nodes})
            total = 0.0
            for process in deployment.processes.alive():
                if process.pid not in every:
                    continue
                total += _memory(process.pid)
                kind = next((k for k in KINDS[:2] if f"flwr-{k.lower()}" in process.command), "")
                if process.pid == deployment.superlink.pid:
                    kind = "SuperLink"
                if kind:
                    peaks[kind] = max(peaks[kind], _peak(process.pid))
            peaks["all processes"] = max(peaks["all processes"], total)

    # The SuperLink's peak begins anew, as those of the apps, whose processes are new.
    with suppress(OSError):
        Path(f"/proc/{deployment.superlink.pid}/clear_refs").write_text("5")
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()


def _peak(pid: int) -> float:
    """Return the largest resident set that a process has had, in MB."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0
