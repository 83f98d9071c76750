"""Accuracy and bytes of the methods on a small network: the page docs/results/deep.md.

``PYTHONPATH=tests:papers/src python -m benchmarks.deep mnist_20k.npz docs/results`` plays what is
not yet in ``deep.csv``, a line a run, and writes the page. Every method has the same training loop,
batches and starts; Privet's run through `LoopParticipant`, FedAvg, FedAvgM, FedProx and FedAdam are
Flower's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx

from privet.client_apps import LoopParticipant, initial_arrays
from privet.client_apps.sparse_mod import sparse_mod
from privet.kernel import stream
from privet.sim.engine import InlineGrid
from privet.sim.logs import quiet
from privet.strategies import FedDyn, FedPDM, FedPLT, Scaffold, SparseUplink
from privet.wire import content_bytes
from results.deep import LOOKS, write
from studies.small_network import Digits, network

from .lines import append, read

AGENTS, STEPS, ROUNDS, SEEDS = 10, 10, 20, range(5)
FIELDS = ("method", "settings", "seed", *(f"round {look}" for look in LOOKS), "up", "down")


@dataclass(frozen=True)
class Entry:
    """A method with its settings: what makes the Strategy, and the loop's own step size.

    ``protocol`` is empty for Flower's own strategies; a step of 0 takes the one suggested.
    """

    method: str
    settings: str
    make: Callable[..., Any]
    protocol: str = ""
    step: float = 0.0
    mods: tuple[Any, ...] = field(default=())


def averaged(step: float) -> Entry:
    """Return FedAvg at a step size."""
    return Entry("FedAvg", f"step {step}", lambda: FedAvg(fraction_evaluate=0.0), step=step)


def defaults(kind: Any, protocol: str, settings: str = "defaults", **own: Any) -> Entry:
    """Return one of Privet's methods at its defaults, but for what is given."""
    return Entry(kind.__name__, settings, partial(kind, **own), protocol)


def weighted(entry: Entry) -> Entry:
    """Return one of Privet's methods with agents that count by their examples."""

    def make() -> Any:
        return entry.make(agent_weights="examples")

    return replace(entry, settings=f"{entry.settings}, weighted by examples", make=make)


FED_PLT = defaults(FedPLT, "fed-plt")
FED_PDM = defaults(FedPDM, "fed-pdm")
FED_DYN = defaults(FedDyn, "fed-dyn")
SCAFFOLD = defaults(
    Scaffold, "scaffold", "step 0.02", step_size_base=0.02, step_size_rule="constant"
)


ENTRIES = (
    FED_PLT,
    FED_PDM,
    FED_DYN,
    averaged(0.3),
    averaged(0.2),
    averaged(0.4),
    SCAFFOLD,
    defaults(FedPDM, "fed-pdm", "top-k 0.1 up", sparsifier="top-k", alpha_u=0.1),
    Entry(
        "FedAvg",
        "top-k 0.1 up, step 0.3",
        lambda: SparseUplink(FedAvg(fraction_evaluate=0.0)),
        step=0.3,
        mods=(sparse_mod(0.1),),
    ),
    Entry(
        "FedProx",
        "step 0.3, mu 0.01",
        lambda: FedProx(fraction_evaluate=0.0, proximal_mu=0.01),
        step=0.3,
    ),
    Entry(
        "FedAvgM",
        "step 0.2, server momentum 0.7",
        lambda: FedAvgM(fraction_evaluate=0.0, server_momentum=0.7),
        step=0.2,
    ),
    Entry(
        "FedAdam",
        "step 0.1, server step 0.01",
        lambda: FedAdam(fraction_evaluate=0.0, eta=0.01),
        step=0.1,
    ),
    defaults(
        FedPLT, "fed-plt", "local-start own, y returned", local_start="own", returned_model="y"
    ),
    *map(weighted, (FED_PLT, FED_PDM, FED_DYN, SCAFFOLD)),
    weighted(defaults(FedPLT, "fed-plt", "step 0.08", step_size=0.08)),
)
"""The steps of FedAvg are those tried, the best of which FedProx has too; SCAFFOLD collapses at
longer ones."""


def play(entry: Entry, seed: int, data: Digits) -> dict[str, Any]:
    """Play one run and return its line of the table."""
    torch.set_num_threads(1)
    parts, made = data.parts(AGENTS, seed), network(seed)
    model = network(seed)  # one for all agents: they are asked one after the other
    moved = {"up": 0, "down": 0}

    def count(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        if message.metadata.message_type.startswith("train"):
            moved["down"] += content_bytes(message.content)
            moved["up"] += content_bytes(reply.content)
        return reply

    def steps(context: Context, number: int, change: Callable[[], object], step: float) -> None:
        own = int(context.node_config["partition-id"])
        draw = stream(seed, "batches", str(own), round_=number)
        data.train(model, parts[own], draw, STEPS, step, change)

    def size(context: Context) -> int:
        return len(parts[int(context.node_config["partition-id"])])

    if entry.protocol:
        participant = LoopParticipant(entry.protocol, made, size)
        app = participant.app(mods=[count])
    else:
        app = ClientApp(mods=[count, *entry.mods])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if entry.protocol:
            with participant.round(message, context, model) as local:
                step = entry.step or local.step_size
                steps(context, local.round, lambda: local.correct(model), step)
            return local.reply()
        return usual_round(message, model, size(context), partial(steps, context, step=entry.step))

    seen: dict[int, float] = {}
    judge = network(seed)

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        if number not in LOOKS:
            return None
        judge.load_state_dict(arrays.to_torch_state_dict())
        seen[number] = data.accuracy(judge)
        return None

    strategy = entry.make()
    strategy.start(
        InlineGrid(app, AGENTS), initial_arrays(made), num_rounds=ROUNDS, evaluate_fn=evaluate
    )
    accuracies = {f"round {look}": f"{seen[look]:.4f}" for look in LOOKS}
    return {"method": entry.method, "settings": entry.settings, "seed": seed, **accuracies, **moved}


def usual_round(
    message: Message, model: Any, examples: int, steps: Callable[[int, Callable[[], object]], None]
) -> Message:
    """Train as under Flower's own strategies, and return the reply.

    ``steps`` takes the number of the round and what is called before each step: the pull towards
    the round's start where FedProx asks for one.
    """
    content: Any = message.content
    arrays, config = content["arrays"], content["config"]
    model.load_state_dict(arrays.to_torch_state_dict())
    parameters: list[Any] = list(model.parameters())
    start = [parameter.detach().clone() for parameter in parameters]
    mu = float(config.get("proximal-mu", 0.0))

    def pull() -> None:
        if mu:
            for parameter, begun in zip(parameters, start, strict=True):
                parameter.grad += mu * (parameter.detach() - begun)

    steps(int(config["server-round"]), pull)
    metrics = MetricRecord({"num-examples": examples})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
        reply_to=message,
    )


def main(source: str, folder: str, *seeds: str) -> None:
    """Play what is missing (of some seeds), a line a run, and write the page's parts."""
    quiet()
    results = Path(folder)
    lines = results / "deep.csv"
    data, rows = Digits(Path(source)), read(lines)
    there = {(row["method"], row["settings"], row["seed"]) for row in rows}
    for seed in map(int, seeds or SEEDS):
        for entry in ENTRIES:
            if (entry.method, entry.settings, str(seed)) in there:
                continue
            row = play(entry, seed, data)
            append(lines, FIELDS, row)
            print(*row.values(), flush=True)
    write(results)


if __name__ == "__main__":
    main(*sys.argv[1:])
