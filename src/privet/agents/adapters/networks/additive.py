"""Privacy-critical: whether the loss of several examples is the mean of their losses.

Two records say little of it: class weights cancel in two examples of one class, and in losses that
are all alike, as those of a network that begins with equal outputs. The examples that are looked
at have different targets, classes that are not among them are made up, and so are parameters.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LOOKED = 1 << 17
"""Numbers of a tensor in which different values are looked for, of longer ones in every n-th
row."""
ALONE = 8
"""Examples whose losses are taken one by one; those of further ones come in two halves."""
MANY = 150
"""Examples that are looked at together, where there is room: what a loss does with a tenth or a
fiftieth of a batch is nothing in a few."""
SPREAD = 4.0
"""Deviation of made-up outputs: some examples are surely of one class, as after training."""
TABLE = 4099
"""Numbers by which made-up parameters differ: a prime, so that rows of a matrix differ."""
GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


class LossGradient(NamedTuple):
    """A loss, and its gradient by whatever is compared, flat."""

    value: float
    slope: Any

    def unlike(self, mean: LossGradient, coarseness: float) -> bool:
        """Return whether a loss of several examples differs from the mean of their single losses.

        ``coarseness`` is the relative rounding error. If only one of the two is finite, they
        differ; if neither is, nothing is known, and they count as alike.
        """
        if not (math.isfinite(self.value) and math.isfinite(mean.value)):
            return math.isfinite(self.value) or math.isfinite(mean.value)
        if not math.isclose(self.value, mean.value, rel_tol=coarseness, abs_tol=1e-5):
            return True
        size = max(float(self.slope.norm()), float(mean.slope.norm()))
        # False where a gradient is not finite.
        return float((self.slope - mean.slope).norm()) > coarseness * size + 1e-6

    def ignores(self, mean: LossGradient) -> bool:
        """Whether examples have no loss alone, and one together with others."""
        return math.isfinite(self.value) and not math.isfinite(mean.value)


def mean_of(losses: Sequence[LossGradient], counts: Sequence[int]) -> LossGradient:
    """Return the mean over examples of losses that are means over so many of them each.

    The gradients are by what each example has of its own, one after the other.
    """
    shares = [count / sum(counts) for count in counts]
    value = sum(share * loss.value for share, loss in zip(shares, losses, strict=True))
    torch = importlib.import_module("torch")
    parts = [share * loss.slope for share, loss in zip(shares, losses, strict=True)]
    return LossGradient(value, torch.cat(parts))


def in_parts(count: int) -> list[slice]:
    """Return so many examples as parts: the first ones alone, and the others in two halves."""
    alone = min(count, ALONE)
    ends = [*range(alone + 1), (alone + count + 1) // 2, count]
    return [slice(a, b) for a, b in itertools.pairwise(ends) if b > a]


def repeated(rows: Sequence[int], most: int) -> list[int]:
    """Return rows, and some of them again, the first ones more often, up to ``most`` or `MANY`.

    So no class is as frequent as another. The first one comes twice more at least. Another number
    than `GOLDEN`, by which outputs are mixed: these have nothing to do with the rows.
    """
    count = max(0, min(most, MANY) - len(rows) - 2)
    again = (rows[int(len(rows) * (k * math.sqrt(2.0) % 1.0) ** 2)] for k in range(count))
    return [*rows, rows[0], rows[0], *again]


def telling_rows(part: Any, most: int) -> list[int]:
    """Return rows of a tensor that hold different values, at most so many.

    Of each value the first row that holds it; of more values than ``most`` the smallest, the
    largest, and others evenly between.
    """
    torch = importlib.import_module("torch")
    rows = part.detach().reshape(len(part), -1)
    step = -(-rows.numel() // LOOKED)
    if step == 0:
        return list(range(min(len(part), most)))
    kept = rows[::step].cpu()
    values, where = torch.unique(kept, return_inverse=True)
    index = torch.arange(len(kept)).unsqueeze(1).expand_as(where)
    first = torch.full((len(values),), len(kept)).scatter_reduce(
        0, where.reshape(-1), index.reshape(-1), "amin"
    )
    even = torch.linspace(0, len(values) - 1, min(len(values), most)).round().long()
    found = [int(row) * step for row in first[even]]
    if step > 1 and rows.dtype != torch.bool:  # such as the mark of an ignored target
        width = rows.shape[1]
        found = [int(rows.argmin()) // width, int(rows.argmax()) // width, *found]
    ends = [*found[:1], *found[-1:], *found[1:-1]]
    return list(dict.fromkeys(ends))[:most]


def moved(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters that differ from those given as random ones of usual size do.

    The same in every call, on the parameters' device: a table of numbers of variance one, the
    fractions of i^2 times an irrational number, is repeated, which is quick for large ones.
    """
    torch = importlib.import_module("torch")
    index = torch.arange(TABLE, dtype=torch.float64, device=next(iter(parameters.values())).device)
    table = math.sqrt(12.0) * ((index * index * GOLDEN).frac() - 0.5)
    found = {}
    for name, each in parameters.items():
        count = each.numel()
        scale = math.sqrt(len(each) / max(count, 1)) if each.dim() > 1 else 0.3
        own = table.to(each.device, each.dtype).repeat(-(-count // TABLE))[:count]
        found[name] = each.detach() + scale * own.reshape(each.shape)
        table = table.roll(1)
    return found


def scattered(like: Any) -> Any:
    """Return numbers of mean zero and deviation `SPREAD` in the shape of a tensor."""
    torch = importlib.import_module("torch")
    index = torch.arange(like.numel(), dtype=torch.float64, device=like.device)
    found = SPREAD * math.sqrt(12.0) * ((index * index * GOLDEN).frac() - 0.5)
    return found.reshape(like.shape).to(like.dtype)


def made_up(rows: Sequence[Any], count: int, values: int, device: Any) -> list[Any]:
    """Return so many examples with the shapes and dtypes of ``rows``, and none of their numbers.

    Floats are in [0, 1), integers from 0 to below ``values``, and 0 in further examples.
    """
    torch = importlib.import_module("torch")
    found = []
    for part in rows:
        shape = (count, *part.shape[1:])
        if part.is_floating_point() or part.is_complex():
            index = torch.arange(1, 1 + math.prod(shape), dtype=torch.float64, device=device)
            found.append((index * GOLDEN).frac().reshape(shape).to(part.dtype))
        else:
            most = 2 if part.dtype == torch.bool else values
            own = torch.arange(count, device=device)
            own = own * (own < most)  # not all as frequent as each other
            each = own.reshape(count, *[1] * (len(shape) - 1)).expand(shape)
            found.append(each.to(part.dtype).contiguous())
    return found
