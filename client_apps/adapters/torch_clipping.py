"""Privacy-critical: sums of a PyTorch module's per-example gradients, each clipped, on its device.

``torch.func`` takes the gradient of every example from that example alone. Norms and factors are
computed in float64; the products, and their sums over at most 128 examples, in the gradients' dtype
without a matrix product, which reduced-precision modes (TF32, autocast) would round further than
`privet.problems.clipped_sensitivity` covers; the sums of blocks in float64.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import PrivetError
from privet.core.errors import ModelError, one_line
from privet.kernel import Norm
from privet.kernel.bounded import BLOCK, places

from .torch_memory import Memory

FLOATS = 1 << 25
"""Numbers of per-example gradients held at a time."""
ROWS = BLOCK // 2
"""Examples of a block at most; of more, the gradients leave a processor's cache."""
_SMALLEST_FACTOR = 2.0**-120
"""Below it a factor is no normal float32."""


_LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_RECURRENT = {*_LAYERS, *(f"{name}_cell" for name in _LAYERS)}


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
    width: int = 1,
) -> Any:
    """Return the sum over the examples of g_i min(1, clip / ||g_i||), shape (d,), float64.

    An example whose gradient is not finite, or so long that its factor would not be a normal
    number, counts as zero.

    Parameters
    ----------
    loss, parameters
        g_i is the gradient of the loss of example i by all parameters, in their order.
    batch : sequence of tensors
        One example a row of each.
    clip, norm
        The bound and the norm it holds in.
    randomness : {"error", "different", "same"}
        What becomes of random operations in the loss, as ``torch.func.vmap`` has it.
    memory : Memory, optional
        Of what the loss calls; every block of examples begins with the same.
    kept : (n,) array of bool, optional
        The examples to sum over. They come in batches of ``width``, each at a place of its own
        (`privet.kernel.bounded.places`), and are added up in float64.

    Raises
    ------
    VmapError
        If the loss does not run under ``torch.func.vmap``.
    ConfigError
        If it keeps something of one example for others, or, where examples are ``kept``, if
        anything differs from one block to the next.

    Privacy: replacing one example moves the sum by at most 2 clip and the margin for rounding of
    `privet.problems.clipped_sensitivity`. Nothing is noised here.
    """
    torch = importlib.import_module("torch")
    gradient = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0), randomness=randomness)
    dim = sum(parameter.numel() for parameter in parameters.values())
    rows = max(1, min(ROWS, FLOATS // dim))
    first = next(iter(parameters.values()))
    total = torch.zeros(dim, dtype=torch.float64, device=first.device)
    if memory is not None:
        memory.begin()
    blocks: Iterator[tuple[list[Any], Any]] = (
        ((list(block), None) for block in zip(*(part.split(rows) for part in batch), strict=True))
        if kept is None
        else _placed(batch, kept, min(width, rows))
    )
    sampled = memory if kept is not None else None
    if sampled is not None:
        sampled.begin_sampled()
    for number, (block, there) in enumerate(blocks):
        if memory is not None:
            memory.block()
        gradients = _run(gradient, parameters, block, memory).values()
        if sampled is not None and number == 0:
            sampled.require_steady()
        with torch.no_grad(), torch.autocast(first.device.type, enabled=False):
            parts = [part.reshape(len(part), -1) for part in gradients]
            total += _clipped_block(parts, clip, norm, there)
    if memory is not None:
        memory.require_none()
    if sampled is not None:
        sampled.require_steady()
    return total


def _placed(
    batch: Sequence[Any], kept: NDArray[np.bool_], width: int
) -> Iterator[tuple[list[Any], Any]]:
    """Yield the kept examples in batches of fixed shape, and which rows of each count."""
    torch = importlib.import_module("torch")
    for rows, there in places(kept, width):
        index = torch.from_numpy(rows)
        yield [part[index.to(part.device)] for part in batch], torch.from_numpy(there)


def _run(
    gradient: Callable[..., Any],
    parameters: Mapping[str, Any],
    block: list[Any],
    memory: Memory | None,
) -> Any:
    """Return the gradients of a block of examples (raises ``VmapError``)."""
    try:
        watched = contextlib.nullcontext() if memory is None else memory.watched()
        with watched, own_states(), warnings.catch_warnings():  # that an operation is slow
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            return gradient(parameters, block)
    except PrivetError:
        raise
    except Exception as error:
        if memory is not None:
            memory.require_none()  # of another block, which fits no longer
        text = f"{type(error).__name__}: {one_line(str(error))}"
        raise VmapError(f"{_where(error)} does not run under torch.func.vmap: {text}") from error


def own_states() -> Any:
    """Return a context in which examples have first hidden states of their own.

    Recurrent layers add to what they make of a state in place, which vmap refuses for the zeros
    that all examples begin with.
    """
    return _own_states()()


@functools.cache
def _own_states() -> Any:
    torch = importlib.import_module("torch")

    class OwnStates(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if getattr(function, "__name__", "") in _RECURRENT:
                rows, given, *rest = args
                states = given if isinstance(given, tuple | list) else [given]
                if all(state.is_floating_point() for state in states):  # not of packed sequences
                    own = [state + rows.new_zeros(state.shape) for state in states]
                    args = (rows, own if len(own) > 1 else own[0], *rest)
            return function(*args, **(kwargs or {}))

    return OwnStates


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


def _clipped_block(parts: Sequence[Any], clip: float, norm: Norm, there: Any = None) -> Any:
    """Return the clipped sum of gradients that lie in several tensors (b, ...).

    Where ``there`` says which rows count, it is summed in float64.
    """
    torch = importlib.import_module("torch")
    wide = [part if part.dtype == torch.float64 else part.float() for part in parts]
    order = 1 if norm == "l1" else 2
    # In units of the clip, float64 before the squares: these could leave its range.
    each = [
        torch.linalg.vector_norm(part / clip, order, 1)
        if part.dtype == torch.float64
        else torch.linalg.vector_norm(part, order, 1, dtype=torch.float64) / clip
        for part in wide
    ]
    factors = 1.0 / torch.linalg.vector_norm(torch.stack(each), order, 0).clamp(min=1.0)
    unusable = ~(factors >= _SMALLEST_FACTOR)  # NaN too
    if there is not None:
        unusable |= ~there.to(unusable.device)
        wide = [part.double() for part in wide]
    if unusable.any():
        # A factor of zero would leave NaN and infinity what they are.
        wide = [part.masked_fill(unusable[:, None], 0.0) for part in wide]
        factors = factors.masked_fill(unusable, 0.0)
    sums = [(part * factors[:, None].to(part.dtype)).sum(0).double() for part in wide]
    return torch.cat(sums)
