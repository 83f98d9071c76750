"""Three networks under privacy: agents of equal size, and other data on which settings are chosen.

Of each data set some records are the agents' whose runs are reported, with a test set, and others,
disjoint from both, are those of the agents that settings are tried on, with a validation set. So a
choice of settings tells nothing of a record that a reported run promises something about.

Small networks take what is small at the agents: noise grows with the root of their parameters.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from privet.kernel import stream
from results.network_tasks import (
    ALPHABET,
    CATEGORIES,
    LENGTH,
    NUMBERS,
    OCCUPATION,
    SHAPES,
    SIZES,
    Tensors,
    convolutions,
    perceptron,
    read_source,
    recurrent,
    windows,
)

Sized = Mapping[str, int]


@dataclass(frozen=True)
class Parts:
    """What the agents hold, equally many examples each, and what the model is looked at with."""

    agents: Sequence[Tensors]
    looked_at: Tensors
    digest: str = ""


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes
    ----------
    parts : callable
        ``(folder, size, seed, tuning) -> Parts``.
    network : callable
        ``(seed, size) -> module``; the same for the same seed.
    gradients : mapping of str to int
        Gradients of all its examples that every agent takes in a run, by size.
    length : float
        Step times clip, where every method's search begins.
    """

    title: str
    parts: Callable[[Path, str, int, bool], Parts]
    network: Callable[[int, str], nn.Module]
    gradients: Sized
    length: float


def _dealt(
    labels: np.ndarray, agents: int, each: int, seed: int, alpha: float = 0.3
) -> list[np.ndarray]:
    """Deal as many records to every agent, in proportions of classes of a Dirichlet law."""
    draw = stream(seed, "private networks", "deal")
    piles = [list(draw.permutation(np.flatnonzero(labels == one))) for one in np.unique(labels)]
    wishes = draw.dirichlet([alpha] * len(piles), agents)
    parts: list[list[int]] = [[] for _ in range(agents)]
    for _ in range(each):
        for own, wish in zip(parts, wishes, strict=True):
            weights = wish * [len(pile) > 0 for pile in piles]
            if not weights.sum() > 0:
                weights = np.array([float(len(pile)) for pile in piles])
            own.append(piles[draw.choice(len(piles), p=weights / weights.sum())].pop())
    return [np.array(own) for own in parts]


def _tensors(inputs: np.ndarray, labels: np.ndarray) -> Tensors:
    return torch.from_numpy(inputs), torch.from_numpy(labels)


# ------------------------------------------------------------------ digits

AGENTS: Sized = {"quick": 5, "small": 5, "full": 10}
"""Of the digits and of Adult; of the characters at most eight."""


@cache
def _digits(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / "mnist_20k.npz") as held:
        images = np.concatenate([held["x_train"], held["x_test"]])
        labels = np.concatenate([held["y_train"], held["y_test"]]).astype("i8")
    return (images.astype("f4") / 255).reshape(-1, 1, 28, 28), labels


def digits(folder: Path, size: str, seed: int, tuning: bool) -> Parts:
    """Return MNIST's digits, dealt to the agents by Dirichlet(0.3), anew for every seed."""
    each = {"quick": 60, "small": 400, "full": 800}[size]
    images, labels = _digits(folder)
    order = stream(0, "private networks", "digits").permutation(len(labels))
    rows, looked_at = order[:8000], order[8000:11000]
    if tuning:
        rows, looked_at = order[11000:19000], order[19000:]
    rows = rows[: AGENTS[size] * each]
    parts = [rows[own] for own in _dealt(labels[rows], AGENTS[size], each, seed)]
    return Parts(
        [_tensors(images[own], labels[own]) for own in parts],
        _tensors(images[looked_at], labels[looked_at]),
    )


def compact_convolutions(seed: int, size: str) -> nn.Module:
    """Return two convolutions and a linear layer, 2,178 parameters; the suite's in full size."""
    if size == "full":
        return convolutions(seed, size)
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.AvgPool2d(2), nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.Tanh()),
        *(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.Tanh()),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )


# ------------------------------------------------------------------ occupations


@cache
def _rows(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return Adult's rows in the order of their occupations, and who earns more."""
    rows: list[list[str]] = []
    for part in ("train", "test"):
        with gzip.open(folder / f"adult-{part}.csv.gz", "rt", newline="") as lines:
            cells = ([cell.strip() for cell in line.split(",")] for line in lines)
            rows += [row for row in cells if len(row) == 15]
    rows.sort(key=lambda row: row[OCCUPATION])
    names = [sorted({row[at] for row in rows}) for at in CATEGORIES]
    coded = [[known.index(row[at]) for at, known in zip(CATEGORIES, names, strict=True)]
             for row in rows]  # fmt: skip
    values = np.array([[float(row[at]) for at in NUMBERS] for row in rows])
    values[:, 3:5] = np.log1p(values[:, 3:5])
    # Public constants, as of another census: age, weight, years of education, gains, losses, hours.
    values = (values - [38, 190_000, 10, 0.7, 0.3, 40]) / [14, 105_000, 2.6, 2.5, 1.6, 12]
    inputs = np.hstack([np.array(coded), values]).astype("f4")
    return inputs, np.array([row[-1].startswith(">") for row in rows]).astype("i8")


def occupations(folder: Path, size: str, seed: int, tuning: bool) -> Parts:
    """Return Adult's rows, sorted by occupation and cut into agents of equal size."""
    each = {"quick": 30, "small": 600, "full": 1900}[size]
    inputs, labels = _rows(folder)
    order = stream(0, "private networks", "adult").permutation(len(labels))
    rows, looked_at = order[:19000], order[19000:27000]
    if tuning:
        rows, looked_at = order[27000:46000], order[46000:]
    draw = stream(seed, "private networks", "adult", "rows")
    chosen = draw.permutation(rows)[: AGENTS[size] * each]
    return Parts(
        [_tensors(inputs[own], labels[own]) for own in np.split(np.sort(chosen), AGENTS[size])],
        _tensors(inputs[looked_at], labels[looked_at]),
    )


class _Embedded(nn.Module):
    """Embeddings of two numbers a category beside the numbers, and a hidden layer of 16."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(count, 2) for count in SHAPES)
        self.layers = nn.Sequential(
            nn.Linear(2 * len(SHAPES) + len(NUMBERS), 16), nn.ReLU(), nn.Linear(16, 2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores (n, 2) of rows (n, categories + numbers)."""
        count = len(self.embeddings)
        coded = x[:, :count].long()
        made = [one(coded[:, at]) for at, one in enumerate(self.embeddings)]
        return self.layers(torch.cat([*made, x[:, count:]], 1))  # type: ignore[no-any-return]


def compact_perceptron(seed: int, size: str) -> nn.Module:
    """Return a perceptron with embeddings, 544 parameters; the suite's in full size."""
    if size == "full":
        return perceptron(seed, size)
    torch.manual_seed(seed)
    return _Embedded()


# ------------------------------------------------------------------ characters

REPORTED = (
    "encodings/cp437.py", "encodings/cp864.py", "encodings/mac_arabic.py", "html/entities.py",
    "pydoc_data/topics.py", "encodings/cp775.py", "encodings/cp855.py", "encodings/cp869.py",
)  # fmt: skip
TUNED_ON = (
    "encodings/cp852.py", "encodings/cp862.py", "encodings/cp1125.py", "_pydecimal.py",
    "argparse.py", "encodings/cp866.py", "encodings/cp857.py", "encodings/cp737.py",
)  # fmt: skip
BEFORE = ("subprocess.py", "unittest/mock.py", "http/client.py", "xml/etree/ElementTree.py",
          "threading.py", "logging/__init__.py", "statistics.py", "ssl.py")  # fmt: skip
"""Files of Python's standard library: an agent each, or what the GRU is trained on before."""


@cache
def _texts(names: tuple[str, ...]) -> tuple[list[Tensors], str]:
    found = [read_source(name) for name in names]
    digest = hashlib.sha256("".join(found).encode()).hexdigest()[:12]
    return [_halved(windows(text)) for text in found], digest


def _halved(part: Tensors) -> Tensors:
    """Return twice as many examples of half the length."""
    return tuple(one.reshape(-1, LENGTH // 2) for one in part)  # type: ignore[return-value]


def texts(folder: Path, size: str, seed: int, tuning: bool) -> Parts:
    """Return characters of files, an agent each; the last fifth of each is looked at."""
    each = {"quick": 40, "small": 200, "full": 1600}[size]
    found, digest = _texts(TUNED_ON if tuning else REPORTED)
    agents, ends = [], []
    for place, (inputs, labels) in enumerate(found[: AGENTS[size]]):
        last = len(labels) - len(labels) // 5
        draw = stream(seed, "private networks", "characters", str(place))
        rows = torch.from_numpy(draw.permutation(last)[:each].astype("i8"))
        agents.append((inputs[rows], labels[rows]))
        ends.append((inputs[last:], labels[last:]))
    looked_at = torch.cat([one for one, _ in ends]), torch.cat([one for _, one in ends])
    return Parts(agents, looked_at, digest)


class _Recurrent(nn.Module):
    """An embedding, a GRU and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(ALPHABET), 8)
        self.gru = nn.GRU(8, 16, batch_first=True)
        self.last = nn.Linear(16, len(ALPHABET))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores (n, LENGTH, characters)."""
        return self.last(self.gru(self.embedding(x))[0])  # type: ignore[no-any-return]


@cache
def _trained_before(size: str) -> Mapping[str, torch.Tensor]:
    """Return the weights of the GRU after Adam on other files."""
    torch.manual_seed(0)
    model = recurrent(0, size) if size == "full" else _Recurrent()
    found, _ = _texts(BEFORE)
    inputs, labels = (torch.cat(one) for one in zip(*found, strict=True))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    draw = stream(0, "private networks", "before")
    for _ in range({"quick": 20, "small": 300, "full": 1000}[size]):
        rows = torch.from_numpy(draw.choice(len(labels), 32).astype("i8"))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            model(inputs[rows]).flatten(0, -2), labels[rows].flatten()
        )
        loss.backward()
        optimizer.step()
    return {name: one.clone() for name, one in model.state_dict().items()}


def compact_recurrent(seed: int, size: str) -> nn.Module:
    """Return a GRU of 16 units, trained before on other files; the suite's in full size."""
    model = recurrent(seed, size) if size == "full" else _Recurrent()
    model.load_state_dict(dict(_trained_before(size)))
    return model


TASKS: Mapping[str, Task] = {
    "adult": Task(
        "Adult, embeddings and a perceptron", occupations, compact_perceptron,
        {"quick": 3, "small": 12, "full": 48}, 3.0,
    ),
    "mnist": Task(
        "MNIST, two convolutions", digits, compact_convolutions,
        {"quick": 3, "small": 12, "full": 48}, 3.0,
    ),
    "gru": Task(
        "Characters, a GRU", texts, compact_recurrent,
        {"quick": 3, "small": 12, "full": 48}, 3.0,
    ),
}  # fmt: skip
__all__ = ["AGENTS", "LENGTH", "SIZES", "TASKS", "Parts", "Task"]
