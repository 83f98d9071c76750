"""The work's model, loss and data as PyTorch has them, which the caller imports."""

from __future__ import annotations

from typing import Any

from .work import Work


def network(torch: Any, case: str) -> Any:
    """Return a module for rows of 784 numbers and ten classes."""
    nn = torch.nn
    if case == "perceptron 8M":
        layers = [nn.Linear(784, 2000), nn.ReLU(), nn.Linear(2000, 3200), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(3200, 10))
    if case == "CNN 8M":
        wide = [(1, 64, 5, 2, 2), (64, 256, 3, 2, 1), (256, 512, 3, 2, 1)]
        shapes = [*wide, (512, 512, 3, 1, 1), (512, 512, 3, 1, 1)]
        pairs = [(nn.Conv2d(*shape), nn.ReLU()) for shape in shapes]
        layers = [*(layer for pair in pairs for layer in pair), nn.MaxPool2d(2), nn.Flatten()]
        layers += [nn.Linear(2048, 950), nn.ReLU(), nn.Linear(950, 10)]
    else:
        layers = [nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        layers += [nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 10)]
    return nn.Sequential(nn.Unflatten(1, (1, 28, 28)), *layers)


def parts(torch: Any, work: Work) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """Return the module at the start, the loss of a batch and each agent's inputs and targets."""
    nn = torch.nn
    torch.set_num_threads(1)
    inputs = torch.tensor(work.features, dtype=torch.float32)
    if work.model == "logistic":
        module, loss = nn.Linear(work.features.shape[-1], 1, bias=False), nn.BCEWithLogitsLoss()
        targets = torch.tensor(work.labels, dtype=torch.float32)[..., None]
    else:
        module, loss = network(torch, work.model), nn.CrossEntropyLoss()
        targets = torch.tensor(work.labels, dtype=torch.int64)
    start = torch.tensor(work.start, dtype=torch.float32)
    nn.utils.vector_to_parameters(start, module.parameters())
    return module, loss, list(zip(inputs, targets, strict=True))


def vector(torch: Any, module: Any) -> Any:
    """Return the parameters one after the other."""
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
