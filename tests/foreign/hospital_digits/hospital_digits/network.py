"""A PyTorch network with a training loop of its own; the result is its state dict."""

import torch
from flwr.app import ArrayRecord
from torch import nn

from privet.client_apps import LoopParticipant

from .data import CLASSES, digits, hospital, place

SETTINGS = {}
STEP = 0.5


def module():
    """Return a network of two layers."""
    torch.manual_seed(0)
    features = digits()[0].shape[1]
    return nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def tensors(images, labels):
    """Return images and labels as torch wants them."""
    return torch.tensor(images, dtype=torch.float32), torch.tensor(labels)


def start():
    """Return the model before round 1: the network's own initial parameters."""
    return ArrayRecord(module().state_dict())


def fit(network, number, count, epochs, step):
    """Take full-batch steps on one hospital's images."""
    images, labels = tensors(*hospital(number, count))
    optimizer = torch.optim.SGD(network.parameters(), lr=step)
    for _ in range(epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()


participant = LoopParticipant("fed-plt", module, lambda context: len(hospital(*place(context))[1]))
privet = participant.app()


@privet.train()
def own_loop(message, context):
    """Do a round of Privet with the loop that FedAvg has."""
    network = module()
    with participant.round(message, context, network, hook=True) as local:
        fit(network, *place(context), local.steps, local.step_size)
    return local.reply()


def train(arrays, number, count, epochs):
    """Return the model after one hospital's steps: FedAvg's local training."""
    network = module()
    network.load_state_dict(arrays.to_torch_state_dict())
    fit(network, number, count, epochs, STEP)
    return ArrayRecord(network.state_dict())


def accuracy(arrays):
    """Return the test accuracy of the network with these parameters."""
    network = module()
    network.load_state_dict(arrays.to_torch_state_dict())
    _, images, _, labels = digits()
    images, labels = tensors(images, labels)
    with torch.no_grad():
        return float((network(images).argmax(dim=1) == labels).float().mean())
