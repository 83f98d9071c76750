"""The tasks of the suite of networks: data, agents, networks, and how a loop trains them.

(a) MNIST's digits dealt by Dirichlet(0.3), a network of two convolutions; (b) FEMNIST's writers, a
residual network with GroupNorm, a tenth of the agents in a round; (c) Adult by occupation, 15
agents of very different size, a perceptron with embeddings; (d) characters of files of Python's
standard library, an agent a file, a GRU; (e) the same characters, a small transformer whose output
layer is its embedding, trained before on other files, of which LoRA's matrices are trained.

Three more played no part when the methods' defaults and constants were chosen: (f) generated
series dealt by Dirichlet(0.3), convolutions in one dimension, a fifth of the agents in a round;
(g) scikit-learn's digits dealt likewise, attention over their rows; (h) patches of scikit-learn's
two photographs, an agent a tile of them, a perceptron.

Of every agent's examples a share is held out: settings are chosen by it, and never trained on it.
The test examples are looked at by the runs that are reported alone.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_image
from torch import nn

from privet.data.partitions import partition
from privet.kernel import stream

HELD_OUT = 0.15
"""Share of an agent's examples by which settings are chosen."""
SIZES = ("quick", "small", "full")

Tensors = tuple[torch.Tensor, torch.Tensor]
Sized = Mapping[str, int]


@dataclass(frozen=True)
class Agents:
    """Who holds what: of each agent inputs and labels to train on, and those of all to look at.

    ``digest`` is that of data which this machine's Python, or a decoder of pictures, may have
    otherwise; empty for others.
    """

    train: Sequence[Tensors]
    validation: Tensors
    test: Tensors
    digest: str = ""


@dataclass(frozen=True)
class Task:
    """A task: its data, its network, and the work of a round.

    Attributes
    ----------
    agents : callable
        ``(folder, seed) -> Agents``.
    network : callable
        ``(seed, size) -> module``; the same for the same seed.
    share : float
        Of the agents that take part in a round.
    step : float
        Where every method's search of its step size begins.
    rounds : mapping of str to int
        By size.
    fresh : bool
        Whether it played no part when defaults and constants were chosen.
    """

    title: str
    agents: Callable[[Path, int], Agents]
    network: Callable[[int, str], nn.Module]
    share: float
    batch: int
    step: float
    rounds: Sized
    steps: int = 10
    fresh: bool = False


def split(parts: Sequence[Tensors], test: Tensors, digest: str = "") -> Agents:
    """Hold a share of every agent's examples out, at least one of two."""
    train, held = [], []
    for number, (inputs, labels) in enumerate(parts):
        order = torch.from_numpy(
            stream(0, "held-out", str(number)).permutation(len(labels)).astype("i8")
        )
        count = max(1, int(HELD_OUT * len(labels))) if len(labels) > 1 else 0
        train.append((inputs[order[count:]], labels[order[count:]]))
        held.append((inputs[order[:count]], labels[order[:count]]))
    validation = torch.cat([one for one, _ in held]), torch.cat([one for _, one in held])
    return Agents(train, validation, test, digest)


# ------------------------------------------------------------------ (a) digits


@cache
def _digits(folder: Path) -> tuple[Tensors, Tensors]:
    def images(rows: Any) -> torch.Tensor:
        return torch.tensor(rows.astype("f4") / 255).reshape(-1, 1, 28, 28)

    with np.load(folder / "mnist_20k.npz") as held:
        train, test = (
            (images(held[f"x_{part}"]), torch.tensor(held[f"y_{part}"].astype("i8")))
            for part in ("train", "test")
        )
    return train, test


def _dealt(train: Tensors, test: Tensors, agents: int, seed: int) -> Agents:
    """Deal examples by Dirichlet(0.3)."""
    inputs, labels = train
    parts = partition(labels.numpy(), agents, "dirichlet", seed=seed, dirichlet_alpha=0.3)
    return split([(inputs[rows], labels[rows]) for rows in parts], test)


def digits(folder: Path, seed: int) -> Agents:
    """Deal 10,000 digits to 10 agents by Dirichlet(0.3), anew for every seed."""
    return _dealt(*_digits(folder), 10, seed)


def convolutions(seed: int, size: str) -> nn.Module:
    """Return two convolutions and two linear layers, 20,522 parameters."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


# ------------------------------------------------------------------ (b) writers


@cache
def _writers(folder: Path) -> Agents:
    with np.load(folder / "femnist_114_writers.npz") as held:
        parts = {
            part: (
                torch.tensor(1 - held[f"x_{part}"].astype("f4") / 255).reshape(-1, 1, 28, 28),
                torch.tensor(held[f"y_{part}"].astype("i8")),
                held[f"w_{part}"],
            )
            for part in ("train", "test")
        }
    halved = {part: nn.functional.avg_pool2d(one[0], 2) for part, one in parts.items()}
    _, labels, writers = parts["train"]
    own = [np.flatnonzero(writers == name) for name in np.unique(writers)]
    return split(
        [(halved["train"][rows], labels[rows]) for rows in own], (halved["test"], parts["test"][1])
    )


def writers(folder: Path, seed: int) -> Agents:
    """Return FEMNIST's 114 writers, an agent each, with images of 14 x 14 pixels."""
    return _writers(folder)


class _Block(nn.Module):
    """Two convolutions with GroupNorm around a shortcut, which halves the picture."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, 2, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(inside, outside, 1, 2, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, outside) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the halved pictures (n, outside, h / 2, w / 2)."""
        made = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(made)) + self.short(x))


def residual(seed: int, size: str) -> nn.Module:
    """Return a residual network of two blocks; 3 blocks and twice the width in full size."""
    torch.manual_seed(seed)
    width = 32 if size == "full" else 16
    blocks = [_Block(width, 2 * width), _Block(2 * width, 2 * width)]
    if size == "full":
        blocks.append(_Block(2 * width, 4 * width))
    last = 4 * width if size == "full" else 2 * width
    return nn.Sequential(
        nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.GroupNorm(4, width), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 62),
    )  # fmt: skip


# ------------------------------------------------------------------ (c) occupations

NUMBERS, CATEGORIES, OCCUPATION = (0, 2, 4, 10, 11, 12), (1, 3, 5, 7, 8, 9, 13), 6
"""Columns of Adult: numbers, categories, and by which the rows are dealt."""


def _table(path: Path) -> list[list[str]]:
    with gzip.open(path, "rt", newline="") as lines:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    return [row for row in rows if len(row) == 15]


@cache
def _occupations(folder: Path) -> tuple[Agents, tuple[int, ...]]:
    train, test = (_table(folder / f"adult-{part}.csv.gz") for part in ("train", "test"))
    codes = [{name: at for at, name in enumerate(sorted({row[column] for row in train}))}
             for column in CATEGORIES]  # fmt: skip
    numbers = np.array([[float(row[at]) for at in NUMBERS] for row in train])
    numbers[:, 3:5] = np.log1p(numbers[:, 3:5])
    middle, spread = numbers.mean(0), numbers.std(0)

    def tensors(rows: Sequence[Sequence[str]]) -> Tensors:
        values = np.array([[float(row[at]) for at in NUMBERS] for row in rows])
        values[:, 3:5] = np.log1p(values[:, 3:5])
        coded = [
            [known.get(row[at], 0) for at, known in zip(CATEGORIES, codes, strict=True)]
            for row in rows
        ]
        inputs = np.hstack([np.array(coded), (values - middle) / spread]).astype("f4")
        labels = np.array([row[-1].startswith(">") for row in rows]).astype("i8")
        return torch.tensor(inputs), torch.tensor(labels)

    names = sorted({row[OCCUPATION] for row in train})
    parts = [tensors([row for row in train if row[OCCUPATION] == name]) for name in names]
    return split(parts, tensors(test)), tuple(map(len, codes))


def occupations(folder: Path, seed: int) -> Agents:
    """Return Adult's rows by occupation, of which one has 9 rows and one 4,140."""
    return _occupations(folder)[0]


SHAPES = (9, 16, 7, 6, 5, 2, 42)
"""Numbers of Adult's categories, column by column."""


class _Embedded(nn.Module):
    """Embeddings of the categories beside the numbers, and a perceptron."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(count, 4) for count in SHAPES)
        self.layers = nn.Sequential(
            nn.Linear(4 * len(SHAPES) + len(NUMBERS), hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores (n, 2) of rows (n, categories + numbers)."""
        count = len(self.embeddings)
        coded = x[:, :count].long()
        made = [one(coded[:, at]) for at, one in enumerate(self.embeddings)]
        return self.layers(torch.cat([*made, x[:, count:]], 1))  # type: ignore[no-any-return]


def perceptron(seed: int, size: str) -> nn.Module:
    """Return the perceptron with embeddings."""
    torch.manual_seed(seed)
    return _Embedded(64 if size == "full" else 32)


# ------------------------------------------------------------------ (d), (e) characters

LENGTH = 32
"""Characters of an example."""
SOURCES = (
    "argparse.py", "_pydecimal.py", "pydoc_data/topics.py", "html/entities.py",
    "encodings/cp1252.py", "typing.py", "imaplib.py", "email/_header_value_parser.py",
)  # fmt: skip
"""Files of the standard library, an agent each."""
BEFORE = ("datetime.py", "_pydatetime.py", "doctest.py", "difflib.py", "tarfile.py", "pickle.py",
          "inspect.py", "mailbox.py", "optparse.py", "ftplib.py")  # fmt: skip
"""Those that the transformer is trained on before; the ones that a version has not are left out."""
ALPHABET = [chr(code) for code in (10, *range(32, 127))]
MOST_CHARACTERS = 40_000


def read_source(name: str) -> str:
    path = Path(os.path.dirname(os.__file__)) / name
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return "".join(one for one in text if one in "\n" or " " <= one <= "~")


def windows(text: str) -> Tensors:
    """Return inputs and the characters that follow, (n, LENGTH) both."""
    known = {character: at for at, character in enumerate(ALPHABET)}
    codes = torch.tensor([known[one] for one in text[:MOST_CHARACTERS]])
    count = (len(codes) - 1) // LENGTH
    return (
        codes[: count * LENGTH].reshape(count, LENGTH),
        codes[1 : count * LENGTH + 1].reshape(count, LENGTH),
    )


@cache
def _texts() -> Agents:
    texts = [read_source(name) for name in SOURCES]
    digest = hashlib.sha256("".join(texts).encode()).hexdigest()[:12]
    parts, tests = [], []
    for inputs, labels in map(windows, texts):
        last = len(labels) // 5  # the end of every file
        parts.append((inputs[:-last], labels[:-last]))
        tests.append((inputs[-last:], labels[-last:]))
    test = torch.cat([one for one, _ in tests]), torch.cat([one for _, one in tests])
    return split(parts, test, digest)


def texts(folder: Path, seed: int) -> Agents:
    """Return the characters of eight files; the last fifth of each is for the test."""
    return _texts()


class _Recurrent(nn.Module):
    """An embedding, a GRU and a linear layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(ALPHABET), 16)
        self.gru = nn.GRU(16, hidden, batch_first=True)
        self.last = nn.Linear(hidden, len(ALPHABET))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores (n, LENGTH, characters)."""
        return self.last(self.gru(self.embedding(x))[0])  # type: ignore[no-any-return]


def recurrent(seed: int, size: str) -> nn.Module:
    """Return the network of characters."""
    torch.manual_seed(seed)
    return _Recurrent(64 if size == "full" else 48)


class _LowRank(nn.Module):
    """A frozen linear layer with LoRA's two matrices beside it: W x + 2 B A x.

    E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2022), with B = 0 at the
    start and alpha / r = 2.
    """

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return W x + 2 B A x."""
        return self.layer(x) + 2.0 * (x @ self.a.T) @ self.b.T  # type: ignore[no-any-return]


class _Attention(nn.Module):
    """A layer of a transformer: attention, to earlier places alone if causal, and a perceptron."""

    def __init__(self, width: int, heads: int, *, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next layer's (n, LENGTH, width)."""
        made = self.before(x)
        parts = (
            one(made).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(self.between(x))))  # type: ignore[no-any-return]


class _Transformer(nn.Module):
    """A small transformer whose output layer is its embedding."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(ALPHABET), width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.layers = nn.Sequential(*(_Attention(width, 4) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(ALPHABET), bias=False)
        self.head.weight = self.embedding.weight  # tied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores (n, LENGTH, characters)."""
        made = self.layers(self.embedding(x) + self.places[: x.shape[1]])
        return self.head(self.norm(made))  # type: ignore[no-any-return]


@cache
def _trained_before(size: str) -> Mapping[str, torch.Tensor]:
    """Return the weights of the transformer after Adam on other files."""
    torch.manual_seed(0)
    width, layers, steps = (64, 2, 1500) if size == "full" else (32, 2, 400)
    model = _Transformer(width, layers if size != "quick" else 1)
    parts = [windows(text) for name in BEFORE if (text := read_source(name))]
    inputs, labels = (torch.cat(one) for one in zip(*parts, strict=True))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    draw = stream(0, "before")
    for _ in range(steps if size != "quick" else 50):
        rows = torch.from_numpy(draw.choice(len(labels), 32).astype("i8"))
        optimizer.zero_grad()
        loss_of(model, inputs[rows], labels[rows]).backward()
        optimizer.step()
    return {name: one.clone() for name, one in model.state_dict().items()}


def transformer(seed: int, size: str) -> nn.Module:
    """Return the transformer trained before, frozen, with LoRA at its linear layers of attention.

    The embedding, which is the output layer too, is trained as well.
    """
    width, layers = (64, 2) if size == "full" else (32, 1 if size == "quick" else 2)
    model = _Transformer(width, layers)
    model.load_state_dict(dict(_trained_before(size)))
    model.requires_grad_(False)
    model.embedding.weight.requires_grad_(True)
    torch.manual_seed(seed)
    for layer in model.layers:
        for name in ("query", "value"):
            setattr(layer, name, _LowRank(getattr(layer, name), 4))
    return model


# ------------------------------------------------------------------ (f) series

CURVES, POINTS = 10, 64
"""Kinds of series, and the length of one."""


@cache
def _series() -> tuple[Tensors, Tensors]:
    kinds = stream(0, "series", "kinds").normal(size=(CURVES, 2, 6))

    def drawn(name: str, count: int) -> Tensors:
        draw = stream(0, "series", name)
        labels = draw.integers(CURVES, size=count)
        pace, start, height = (
            draw.uniform(low, high, (count, 1)) for low, high in ((0.7, 1.3), (0, 1), (0.5, 1.5))
        )
        times = 2 * np.pi * (pace * np.arange(POINTS) / POINTS + start)
        waves = times[:, None, :] * np.arange(1, 7)[None, :, None]
        cosines, sines = kinds[labels, 0, :, None], kinds[labels, 1, :, None]
        curves = (cosines * np.cos(waves) + sines * np.sin(waves)).sum(1)
        values = height * curves / 2 + draw.normal(size=(count, POINTS)) / 2
        return torch.tensor(values[:, None].astype("f4")), torch.tensor(labels.astype("i8"))

    return drawn("train", 4000), drawn("test", 2000)


def series(folder: Path, seed: int) -> Agents:
    """Deal 4,000 series to 20 agents by Dirichlet(0.3), anew for every seed.

    A kind is a sum of six waves; a series is one of a kind at a pace, place and height of its own,
    with noise.
    """
    return _dealt(*_series(), 20, seed)


def convolutions_of_series(seed: int, size: str) -> nn.Module:
    """Return two convolutions in one dimension with GroupNorm, and a linear layer."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv1d(1, 16, 7, 2, 3), nn.GroupNorm(4, 16), nn.ReLU()),
        *(nn.Conv1d(16, 32, 5, 2, 2), nn.GroupNorm(4, 32), nn.ReLU()),
        *(nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(128, CURVES)),
    )


# ------------------------------------------------------------------ (g) rows of digits


@cache
def _small_digits() -> tuple[Tensors, Tensors]:
    inputs, labels = load_digits(return_X_y=True)
    images = torch.tensor((inputs / 16).astype("f4")).reshape(-1, 8, 8)
    codes = torch.tensor(labels.astype("i8"))
    order = torch.from_numpy(stream(0, "digits").permutation(len(codes)).astype("i8"))
    train, test = order[450:], order[:450]
    return (images[train], codes[train]), (images[test], codes[test])


def small_digits(folder: Path, seed: int) -> Agents:
    """Deal 1,347 digits of 8 x 8 pixels to 6 agents by Dirichlet(0.3), anew for every seed."""
    return _dealt(*_small_digits(), 6, seed)


class _Rows(nn.Module):
    """Attention of every row of a picture to every other, and a linear layer of their mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inputs, self.places = nn.Linear(8, width), nn.Parameter(0.1 * torch.randn(8, width))
        self.layer = _Attention(width, 4, causal=False)
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores (n, 10) of pictures (n, 8, 8)."""
        made = self.layer(self.inputs(x) + self.places)
        return self.last(self.norm(made).mean(1))  # type: ignore[no-any-return]


def attention_to_rows(seed: int, size: str) -> nn.Module:
    """Return the network of attention."""
    torch.manual_seed(seed)
    return _Rows(24)


# ------------------------------------------------------------------ (h) patches

SIDE, LEVELS = 7, 8
"""Pixels of a patch's side, and levels of brightness."""


@cache
def _patches() -> Agents:
    parts: list[list[Any]] = []
    for name in ("china.jpg", "flower.jpg"):
        grey = load_sample_image(name).mean(2)
        tall, wide = (length // SIDE for length in grey.shape)
        kept = grey[: tall * SIDE, : wide * SIDE].reshape(tall, SIDE, wide, SIDE).swapaxes(1, 2)
        for half in np.array_split(kept, 2):
            parts += [tile.reshape(-1, SIDE, SIDE) for tile in np.array_split(half, 2, axis=1)]
    pixels = np.concatenate(parts)
    digest = hashlib.sha256(pixels.astype("f4").tobytes()).hexdigest()[:12]
    middle = SIDE // 2
    levels = np.quantile(pixels[:, middle, middle], np.arange(1, LEVELS) / LEVELS)
    around = np.ones((SIDE, SIDE), bool)
    around[middle, middle] = False
    train, tests = [], []
    for number, part in enumerate(parts):
        own = part[stream(0, "patches", str(number)).permutation(len(part))]
        inputs = torch.tensor((own[:, around] / 64 - 2).astype("f4"))
        labels = torch.tensor(np.searchsorted(levels, own[:, middle, middle]).astype("i8"))
        last = len(labels) // 5
        train.append((inputs[last:], labels[last:]))
        tests.append((inputs[:last], labels[:last]))
    test = torch.cat([one for one, _ in tests]), torch.cat([one for _, one in tests])
    return split(train, test, digest)


def patches(folder: Path, seed: int) -> Agents:
    """Return the patches of two photographs, an agent one of four tiles of each.

    The label is the level of brightness of the pixel in the middle, the inputs are the pixels
    around; a fifth of the patches is for the test, and none overlap.
    """
    return _patches()


def perceptron_of_patches(seed: int, size: str) -> nn.Module:
    """Return a perceptron of two hidden layers."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Linear(SIDE * SIDE - 1, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU()),
        nn.Linear(48, LEVELS),
    )


# ------------------------------------------------------------------ a loop


def loss_of(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy; of every character where there are several to an example."""
    scores = model(inputs)
    return nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


def accuracy(model: nn.Module, part: Tensors) -> float:
    """Return the share of labels that the model names; NaN where it is not finite."""
    right = count = 0
    with torch.no_grad():
        for inputs, labels in zip(part[0].split(1000), part[1].split(1000), strict=True):
            scores = model(inputs)
            if not bool(torch.isfinite(scores).all()):
                return float("nan")
            right += int((scores.argmax(-1) == labels).sum())
            count += labels.numel()
    return right / count


def train(
    model: nn.Module, part: Tensors, draw: np.random.Generator, steps: int, batch: int,
    step_size: float, correct: Callable[[], object],
) -> None:  # fmt: skip
    """Take SGD steps on batches of a part; ``correct`` changes the gradients in place."""
    inputs, labels = part
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=step_size)
    for _ in range(steps):
        rows = draw.choice(len(labels), batch, replace=len(labels) < batch)
        chosen = torch.from_numpy(rows.astype("i8"))
        optimizer.zero_grad()
        loss_of(model, inputs[chosen], labels[chosen]).backward()
        correct()
        optimizer.step()


TASKS: Mapping[str, Task] = {
    "mnist": Task(
        "MNIST, two convolutions, 10 agents, Dirichlet(0.3)", digits, convolutions,
        1.0, 32, 0.3, {"quick": 8, "small": 12, "full": 40},
    ),
    "femnist": Task(
        "FEMNIST, residual network with GroupNorm, 11 of 114 writers a round", writers, residual,
        0.1, 20, 0.3, {"quick": 3, "small": 20, "full": 100},
    ),
    "adult": Task(
        "Adult, embeddings and a perceptron, 15 occupations", occupations, perceptron,
        1.0, 32, 0.3, {"quick": 4, "small": 12, "full": 40},
    ),
    "gru": Task(
        "Characters, GRU, 8 files", texts, recurrent,
        1.0, 16, 2.0, {"quick": 4, "small": 15, "full": 60},
    ),
    "lora": Task(
        "Characters, LoRA on a transformer with a tied embedding, 8 files", texts, transformer,
        1.0, 16, 1.0, {"quick": 4, "small": 10, "full": 40},
    ),
    "series": Task(
        "Generated series, convolutions in one dimension, 4 of 20 agents a round, Dirichlet(0.3)",
        series, convolutions_of_series,
        0.2, 32, 0.3, {"quick": 4, "small": 12, "full": 60}, fresh=True,
    ),
    "attention": Task(
        "Rows of small digits, attention, 6 agents, Dirichlet(0.3)", small_digits,
        attention_to_rows,
        1.0, 32, 0.3, {"quick": 4, "small": 8, "full": 40}, fresh=True,
    ),
    "patches": Task(
        "Patches of two photographs, a perceptron, 8 tiles", patches, perceptron_of_patches,
        1.0, 32, 0.3, {"quick": 4, "small": 8, "full": 40}, fresh=True,
    ),
}  # fmt: skip
