"""Privacy-critical: sums of a PyTorch module's per-example gradients, each clipped, on its device.

Every example's gradient is taken from that example alone: by the rules of its layers
(`layers`) where all trained parameters belong to layers that have one, which is faster with
small layers, whose calls count, and with large ones, whose gradients are not formed; else by
``torch.func.grad`` under ``torch.func.vmap``. Norms, factors and sums are in float64, whose
products no reduced-precision mode (TF32, autocast) rounds further. They err by less than
`privet.kernel.clipped_sensitivity` covers, which allows for float32; `shares` has the
proof.
"""

from __future__ import annotations

import functools
import importlib
import math
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import PrivetError
from privet.core.errors import ModelError, one_line
from privet.kernel import Norm, Told
from privet.kernel.bounded import BLOCK, places

from .functions import Rule, ruled
from .layers import Uses, has_layers
from .memory import Memory
from .recurrent import recurrent_rules
from .shares import Dense, GradientShare, clipped_sum

FLOATS = 1 << 24
"""Numbers of per-example gradients held at a time."""
CALLED, ROW = 1 << 22, 1 << 13
"""Time of a network's call, and of each example in it, in multiplications of its layers."""
PLACES = 16
"""Of a network whose layers have no rules, a parameter is taken to be used in so many places."""
CACHED = 1 << 22
"""Above so many, gradients leave a processor's cache: a block has half as many examples then."""


class VmapError(ModelError):
    """A module or loss that does not run under ``torch.func.vmap``; one line says which."""


Loss = Callable[[Mapping[str, Any], Sequence[Any]], Any]
"""(parameters, one example's row of every tensor) -> the scalar loss of that example."""


def clipped_gradients(
    loss: Loss,
    parameters: Mapping[str, Any],
    batch: Sequence[Any],
    clip: float,
    norm: Norm = "l2",
    randomness: str = "error",
    memory: Memory | None = None,
    kept: NDArray[np.bool_] | None = None,
    expected: int = 1,
    rules: Mapping[Any, Rule] | None = None,
) -> Any:
    """Return the sum over the examples of g_i min(1, clip / ||g_i||), shape (d,), float64.

    An example whose gradient is not finite, or so long that its factor would not be a normal
    number, counts as zero.

    Parameters
    ----------
    loss, parameters
        g_i is the gradient of the loss of example i by all parameters, in their order. The caller
        sees to it that they have not changed afterwards: a loss can write their memory.
    batch : sequence of tensors
        One example a row of each.
    clip, norm
        The bound and the norm it holds in.
    randomness : {"error", "different", "same"}
        What becomes of random operations in the loss, as ``torch.func.vmap`` has it.
    memory : Memory, optional
        Of what the loss calls; every block of examples begins with the same.
    kept : (n,) array of bool, optional
        The examples to sum over. They come in batches of one width (`batch_width`), each at a place
        of its own (`privet.kernel.bounded.places`), and are added up in float64.
    expected : int
        How many are kept on average: a public number.

    Raises
    ------
    VmapError
        If the loss does not run under ``torch.func.vmap``.
    ConfigError
        If it keeps something of one example for others, or, where examples are ``kept``, if
        anything differs from one block to the next.

    Notes
    -----
    Privacy: replacing one example moves the sum by at most 2 clip and the margin for rounding of
    `privet.kernel.clipped_sensitivity`. Nothing is noised here.
    """
    torch = importlib.import_module("torch")
    layered = memory is not None and has_layers(*memory.owners(parameters))
    way = (Uses if layered else _Gradients)(loss, parameters, randomness)
    rules = {**way.rules, **(rules or {})}
    sizes = {name: parameter.numel() for name, parameter in parameters.items()}
    dim = sum(sizes.values())
    first = next(iter(parameters.values()))
    total = torch.zeros(dim, dtype=torch.float64, device=first.device)
    sampled = memory if kept is not None else None
    if memory is not None:
        memory.begin()
    if sampled is not None:
        sampled.begin_sampled()
    rows = block_rows(dim, layered)
    if memory is not None and (kept is not None or (layered and rows < BLOCK)):
        # One example shows how many numbers are formed, and what the module sets at first.
        memory.block()
        tried = _run(way, [part[:1] for part in batch], memory, rules)
        rows = block_rows(sum(share.held for share in tried), layered)
    if sampled is not None:
        sampled.require_steady()
    blocks: Iterator[tuple[list[Any], Any]] = (
        ((list(block), None) for block in zip(*(part.split(rows) for part in batch), strict=True))
        if kept is None
        else _placed(batch, kept, min(batch_width(expected, way.work), rows))
    )
    for block, there in blocks:
        if memory is not None:
            memory.block()
        found = _run(way, block, memory, rules)
        with _plain(first):
            total += clipped_sum(found, sizes, clip, norm, there).to(total.device)
    if memory is not None:
        memory.require_none()
    if sampled is not None:
        sampled.require_steady()
    return total


def block_rows(held: int, layered: bool = False) -> int:
    """Return how many examples of which so many numbers each are held are a block.

    By the rules of layers most of these are not formed, so that their cache is of no account.
    """
    most = BLOCK if layered or BLOCK * held <= CACHED else BLOCK // 2
    return max(1, min(most, FLOATS // max(held, 1)))


@functools.lru_cache(maxsize=256)
def batch_width(expected: int, work: int) -> int:
    """Return how many places a batch of sampled examples has: a power of two, from public numbers.

    Of w places each has a number of kept examples that is Poisson with mean b / w, about, where b
    is the number that is ``expected``, and the largest of them is the number of batches. With C for
    calling the network at all and c for each example, they take C + c w each: more places cost less
    calls and more rows that stand in for none. ``work`` is how many multiplications an example
    takes, of which there are `CALLED` in C.
    """
    widths = [
        width for width in (1 << k for k in range(BLOCK.bit_length())) if 256 * width > expected
    ]

    def cost(width: int) -> float:
        return _batches(expected / width, width) * (CALLED + width * (ROW + work))

    return min(widths, key=cost, default=BLOCK)


def _batches(mean: float, width: int) -> float:
    """Return the mean of the largest of so many Poisson numbers: the sum of P[largest > k]."""
    chance = below = math.exp(-mean)
    total, k = 1.0 - below**width, 0
    while k < mean or below**width < 1.0 - 1e-9:
        k += 1
        chance *= mean / k
        below = min(below + chance, 1.0)
        total += 1.0 - below**width
    return total


def _placed(
    batch: Sequence[Any], kept: NDArray[np.bool_], width: int
) -> Iterator[tuple[list[Any], Any]]:
    """Yield the kept examples in batches of fixed shape, and which rows of each count."""
    torch = importlib.import_module("torch")
    for rows, there in places(kept, width):
        index = torch.from_numpy(rows)
        yield [part[index.to(part.device)] for part in batch], torch.from_numpy(there)


class _Gradients:
    """The gradients of a block's examples by ``torch.func.grad``, for any module."""

    def __init__(self, loss: Loss, parameters: Mapping[str, Any], randomness: str) -> None:
        self.rules = recurrent_rules()
        self.work = PLACES * sum(each.numel() for each in parameters.values())
        func = importlib.import_module("torch").func
        gradients = func.vmap(func.grad(loss), in_dims=(None, 0), randomness=randomness)
        self.slopes = functools.partial(gradients, parameters)

    def begin(self, count: int) -> None:
        """See `Uses.begin`; nothing is to be done."""

    def shares(self, slopes: Any) -> list[GradientShare]:
        """See `Uses.shares`."""
        return [Dense(name, part.reshape(len(part), -1)) for name, part in slopes.items()]


def _run(
    way: Uses | _Gradients, block: list[Any], memory: Memory | None, rules: Mapping[Any, Rule]
) -> Sequence[GradientShare]:
    """Return the gradients of a block of examples (raises ``VmapError``)."""
    try:
        way.begin(len(block[0]))
        watched = ruled(rules, batched=True) if memory is None else memory.watched(rules)
        with watched, warnings.catch_warnings():  # that an operation is slow
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            slopes = way.slopes(block)
        with _plain(block[0]):
            return way.shares(slopes)
    except PrivetError:
        raise
    except Exception as error:
        if memory is not None:
            memory.require_none()  # of another block, which fits no longer
        text = f"{type(error).__name__}: {one_line(str(error))}"
        line = f"{_where(error)} does not run under torch.func.vmap: {text}"
        raise VmapError(line, Told.VMAP) from error


@contextmanager
def _plain(tensor: Any) -> Iterator[None]:
    """Take no gradients, and no lower precision than asked for, on a tensor's device."""
    torch = importlib.import_module("torch")
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        yield


def _where(error: Exception) -> str:
    """Return the innermost layer that an error came from, by name and type."""
    torch = importlib.import_module("torch")
    owners = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    layers = [each for each in owners if isinstance(each, torch.nn.Module)]
    if not layers:
        return "the loss"
    outer, inner = layers[0], layers[-1]
    name = next((name for name, each in outer.named_modules() if each is inner), "")
    return f"layer {name.removeprefix('model.')!r} ({type(inner).__name__})"
