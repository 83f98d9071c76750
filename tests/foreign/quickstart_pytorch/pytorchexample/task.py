"""Model, data and training of the app; nothing here knows which strategy trains."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Net(torch.nn.Sequential):
    """A small CNN for images of 8 by 8 pixels."""

    def __init__(self):
        super().__init__(
            torch.nn.Conv2d(1, 8, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(128, 10),
        )


def load_data(partition_id, num_partitions, batch_size):
    """Return the loaders of one node: half of its images show few of the ten digits."""
    images, labels = load_digits(return_X_y=True)
    by_digit = torch.tensor(labels).argsort(stable=True)
    at_random = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    halves = [order.chunk(num_partitions)[partition_id][::2] for order in (by_digit, at_random)]
    rows = torch.cat(halves).unique()
    inputs = torch.tensor(images[rows], dtype=torch.float32).view(-1, 1, 8, 8) / 16
    data = TensorDataset(inputs, torch.tensor(labels[rows]))
    train, held_out = torch.utils.data.random_split(
        data, [0.8, 0.2], generator=torch.Generator().manual_seed(42)
    )
    return DataLoader(train, batch_size, shuffle=True), DataLoader(held_out, batch_size)


def train(net, trainloader, epochs, lr, device):
    """Train with SGD and momentum; return the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    total = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(trainloader))


def test(net, loader, device):
    """Return the share of labels that the model guesses."""
    with torch.no_grad():
        right = [(net(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in loader]
    return sum(right) / len(loader.dataset)
