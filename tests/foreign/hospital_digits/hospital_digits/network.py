"""A PyTorch network, trained over the hospitals; the result is its state dict."""

from functools import cache

import torch
from flwr.app import ArrayRecord
from torch import nn

from privet.client_apps import TorchProblem

from .data import CLASSES, digits, hospital

SETTINGS = {"rho": 1.0, "step_size": 0.2}
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


@cache
def problem(number, count):
    """Return what a hospital minimises."""
    return TorchProblem(module(), nn.CrossEntropyLoss(), tensors(*hospital(number, count)))


def train(arrays, number, count, epochs):
    """Return the model after full-batch steps on one hospital's images: FedAvg's local training."""
    network, (images, labels) = module(), tensors(*hospital(number, count))
    network.load_state_dict(arrays.to_torch_state_dict())
    optimizer = torch.optim.SGD(network.parameters(), lr=STEP)
    for _ in range(epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
    return ArrayRecord(network.state_dict())


def accuracy(arrays):
    """Return the test accuracy of the network with these parameters."""
    network = module()
    network.load_state_dict(arrays.to_torch_state_dict())
    _, images, _, labels = digits()
    images, labels = tensors(images, labels)
    with torch.no_grad():
        return float((network(images).argmax(dim=1) == labels).float().mean())
