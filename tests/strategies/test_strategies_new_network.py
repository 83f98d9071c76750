"""A network and data that no default was chosen on: three lines around a loop, against FedAvg."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

torch = pytest.importorskip("torch")

from privet.client_apps import LoopParticipant, initial_arrays  # noqa: E402
from privet.sim.engine import InlineGrid  # noqa: E402
from privet.strategies import FedDyn, FedPLT  # noqa: E402

AGENTS, ROUNDS, RATE = 20, 12, 0.3


def network() -> Any:
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_defaults_end_no_lower_than_the_same_loops_fed_avg(share: float) -> None:
    from sklearn.datasets import load_digits

    rows, names = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(rows / 16.0, dtype=torch.float32), torch.tensor(names)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    test, rest = order[:500], order[500:]
    shards = np.array_split(rest[np.argsort(names[rest], kind="stable")], 2 * AGENTS)
    dealt = rng.permutation(2 * AGENTS).reshape(AGENTS, 2)
    parts = [np.concatenate([shards[one] for one in pair]) for pair in dealt]
    model = network()

    def loop(context: Context, number: int) -> None:
        own = int(context.node_config["partition-id"])
        draw = np.random.default_rng([own, number])
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for _ in range(10):
            chosen = draw.choice(parts[own], 16)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
            optimizer.step()

    def accuracy(app: ClientApp, strategy: Any) -> float:
        start = initial_arrays(network())
        result = strategy.start(InlineGrid(app, AGENTS), start, num_rounds=ROUNDS)
        model.load_state_dict(result.arrays.to_torch_state_dict())
        with torch.no_grad():
            return float((model(inputs[test]).argmax(1) == labels[test]).float().mean())

    plain = ClientApp()

    @plain.train()
    def averaged(message: Message, context: Context) -> Message:
        content: Any = message.content
        model.load_state_dict(content["arrays"].to_torch_state_dict())
        loop(context, int(content["config"]["server-round"]))
        metrics = MetricRecord({"num-examples": len(parts[0])})
        arrays = ArrayRecord(model.state_dict())
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    participant = LoopParticipant(None, network, lambda context: len(parts[0]), step_size=RATE)
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        with participant.round(message, context, model, hook=True) as local:
            loop(context, local.round)
        return local.reply()

    random.seed(0)
    least = accuracy(plain, FedAvg(fraction_train=share, fraction_evaluate=0.0))
    for kind in (FedDyn, FedPLT):
        assert accuracy(app, kind(num_agents=AGENTS, fraction_train=share)) >= least
