"""BatchNorm whose statistics stay with the nodes: devices with different sensors.

    python examples/torch_batch_norm.py

The weights are trained together; the running means and variances, which are buffers, are each
node's own (Andreux et al., 2020; Li et al., "FedBN", 2021, keep the layers' weights too). With
buffers="local" a node keeps them in its state, where they outlast a restart, and predicts with
them. They are statistics of its records: nothing here sends them.
"""

import numpy as np
import torch
from flwr.app import Context, Message
from torch import nn

from privet.client_apps import LoopParticipant, initial_arrays
from privet.sim import InlineGrid, quiet
from privet.strategies import FedDyn

DEVICES, ROWS = 4, 240


def network() -> nn.Module:
    """Return a perceptron that normalises what the sensors say."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.BatchNorm1d(6), nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3)
    )


def measurements(device: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a device measures: the same classes, on a scale and with an offset of its own."""
    rng = np.random.default_rng(device)
    truth = rng.normal(size=(ROWS, 6))
    classes = (truth[:, :3] + 0.5 * truth[:, 3:]).argmax(1)
    scale, offset = rng.uniform(0.2, 5.0, 6), rng.normal(scale=10.0, size=6)
    return torch.tensor(truth * scale + offset).float(), torch.tensor(classes)


participant = LoopParticipant("fed-dyn", network, lambda context: ROWS, buffers="local")
app = participant.app()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the weights in training mode, in which the layers update their statistics."""
    inputs, classes = measurements(int(context.node_config["partition-id"]))
    model = network().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with participant.round(message, context, model, hook=True) as local:
        for rows in torch.randperm(ROWS).split(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), classes[rows]).backward()
            optimizer.step()
    return local.reply()


def main() -> None:
    """Train the federation and compare a node's own statistics with another's."""
    quiet()
    torch.manual_seed(0)
    grid = InlineGrid(app, DEVICES)
    result = FedDyn(num_agents=DEVICES).start(grid, initial_arrays(network()), num_rounds=15)
    contexts = list(grid.contexts.values())

    def accuracy(device: int, context: Context) -> float:
        model = network().eval()
        model.load_state_dict(result.arrays.to_torch_state_dict())
        participant.recall(model, context)
        inputs, classes = measurements(device)
        return float((model(inputs).argmax(1) == classes).float().mean())

    places = {int(context.node_config["partition-id"]): context for context in contexts}
    own = np.mean([accuracy(device, places[device]) for device in places])
    swapped = np.mean([accuracy(device, places[(device + 1) % DEVICES]) for device in places])
    print(f"accuracy with a device's own statistics {own:.3f}, with its neighbour's {swapped:.3f}")


if __name__ == "__main__":
    main()
