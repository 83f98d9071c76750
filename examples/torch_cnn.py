"""A CNN with one training loop, under Flower's FedAvg and under FedDyn, and a figure of both.

    python examples/torch_cnn.py                       # scikit-learn's digits, some seconds of work
    python examples/torch_cnn.py mnist.npz --rounds 20

Ten digits are dealt so that each of five nodes mostly sees two. A file has x_train, y_train, x_test
and y_test, as MNIST's has. The figure goes to `torch_cnn.svg`.
"""

import argparse

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from privet.client_apps import LoopParticipant
from privet.sim import InlineGrid, quiet
from privet.strategies import FedDyn

NODES, STEPS, BATCH, STEP = 5, 10, 32, 0.1


def images(path: str) -> list[torch.Tensor]:
    """Return images and labels for training, then for the test."""
    if path:
        with np.load(path) as file:
            parts = [file[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    else:
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        train, test = order[:1400], order[1400:]
        parts = [part[rows] for rows in (train, test) for part in (digits.data, digits.target)]
    side = round(np.sqrt(parts[0][0].size))
    shaped = [torch.tensor(x, dtype=torch.float32).reshape(-1, 1, side, side) for x in parts[::2]]
    labels = [torch.tensor(y.astype("i8")) for y in parts[1::2]]
    return [shaped[0] / shaped[0].max(), labels[0], shaped[1] / shaped[0].max(), labels[1]]


def main() -> None:
    """Train both ways from the same start and draw their test accuracy by round."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?", default="")
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    quiet()
    x, y, x_test, y_test = images(asked.data)
    left = x.shape[2] // 4

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(16 * left * left, 10)),
        )

    # Three quarters of a node's images show its own digits.
    own, rest = torch.arange(len(y)) % 4 != 0, torch.arange(len(y)) % 4 == 0
    by_digit = own.nonzero().squeeze(1)[y[own].argsort(stable=True)].chunk(NODES)
    mixed = rest.nonzero().squeeze(1).chunk(NODES)
    nodes = [torch.cat(pair) for pair in zip(by_digit, mixed, strict=True)]

    def loop(model: nn.Module, context: Context) -> None:
        """Take the local steps: yours, the same for both."""
        rows = nodes[int(context.node_config["partition-id"])]
        optimizer = torch.optim.SGD(model.parameters(), lr=STEP)
        for _ in range(STEPS):
            batch = rows[torch.randint(len(rows), (BATCH,))]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()

    fed_avg = ClientApp()

    @fed_avg.train()
    def average(message: Message, context: Context) -> Message:
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loop(model, context)
        metrics = MetricRecord({"num-examples": 1})  # every node counts the same
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    participant = LoopParticipant("fed-dyn", network, lambda context: len(y) // NODES)
    fed_dyn = participant.app()

    @fed_dyn.train()
    def correct(message: Message, context: Context) -> Message:
        model = network()
        with participant.round(message, context, model, hook=True) as local:
            loop(model, context)
        return local.reply()

    def accuracy(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = network()
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            right = (model(x_test).argmax(1) == y_test).float().mean()
        return MetricRecord({"accuracy": float(right)})

    figure, axes = plt.subplots(figsize=(6, 3.5))
    strategies = {
        "FedAvg": (FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES), fed_avg),
        "FedDyn": (FedDyn(num_agents=NODES, fed_dyn_alpha=0.1), fed_dyn),
    }
    for name, (strategy, app) in strategies.items():
        torch.manual_seed(1)
        start = ArrayRecord(network().state_dict())
        result = strategy.start(
            InlineGrid(app, NODES), start, num_rounds=asked.rounds, evaluate_fn=accuracy
        )
        found = [metrics["accuracy"] for metrics in result.evaluate_metrics_serverapp.values()]
        print(f"{name}: accuracy {found[-1]:.3f} after {asked.rounds} rounds")
        axes.plot(range(len(found)), found, label=name)
    axes.set(xlabel="round", ylabel="test accuracy")
    axes.legend()
    figure.tight_layout()
    figure.savefig("torch_cnn.svg")
    print("figure: torch_cnn.svg")


if __name__ == "__main__":
    main()
