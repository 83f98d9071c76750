"""Privacy-critical: how long an example's gradient is, and sums of what clipping leaves of it.

The gradient g_i of example i comes in shares, each by some of the parameters:

- `Dense`: its numbers.
- `Outer`: slopes s_i and rows a_i, whose product s_i a_i^T is a linear layer's gradient by its
  weights where it was called once, for one position; s_i is that by its bias. The product is not
  formed: ||s_i a_i^T|| = ||s_i|| ||a_i|| in l2 and in l1, and the sum of the clipped ones is one
  product of matrices. Of more positions the norm of the sum of products would be one of scalar
  products that may cancel, with no relative bound on its rounding: such a sum is formed (`Dense`).
- `Looked`: the rows of a table that the example has looked up, and the gradient by each.

**Rounding.** Each of these *is* g_i: numbers of the module's dtype that depend on example i alone,
whatever rounding made of the true derivative. What is left is to show that example i adds a vector
of norm at most C (1 + s), s < 2^-20, and that sums are no worse than `clipped_sensitivity` has
them. All is in float64, w = 2^-53; n is the number of entries.

1. *Norms.* Those of float32 numbers and below have squares inside float64's range: a norm errs by
   (n + 2) w, relatively. Of float64 numbers `Dense` and `Looked` take them in units of C: what
   overflows makes the example count as zero, what underflows is below 2^-511 C an entry. `Outer`
   takes out of slopes and rows a unit u_s and u_a, their largest entry but at least 2^-900: a norm
   in this unit is zero or at least 2^-174, so that what its squares lose is below w of it, and at
   most sqrt(n). With a bias the row has another entry, 1. The length is the product of u_s / C,
   u_a ||a_i / u_a|| and ||s_i / u_s||: what overflows makes the example count as zero, and a
   quotient that underflows loses 2^-1075 of it, times at most 2^1024 n: 2^-51 n to a length of 1.
   All of these, and the norm of all lengths, err by 12 w more.
2. *The factor* f_i is 1 or the reciprocal of the length in units of C, at least 2^-120, else the
   example counts as zero. So f_i ||g_i|| <= C (1 + (n + 14) w + 2^-51 n).
3. *What is added.* `Outer` adds the product of f_i u_a s_i and a_i / u_a. The number f_i u_a is at
   least 2^-1020, so that it has full precision; the others err by w each, or by 2^-1075 an entry
   where they underflow, against at most sqrt(n) of the other. `Dense` and `Looked` multiply every
   number by f_i, with an error of w. In the end s is below 2^-20 for n < 2^29.
4. *Sums.* Every entry of the sum is one of at most b products in float64, in any order, fused or
   not: it errs by omega_b sum_i |t_ik| |a_ij|, as step 3 of `clipped_sensitivity` counts. A
   product of float64 is rounded no further in any mode of torch (TF32, autocast).

Where tables' rows are looked up more than once, equal ones are added up before norms are taken:
g_i is then what this sum was rounded to.
"""

from __future__ import annotations

import functools
import importlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from privet.kernel import Norm

_SMALLEST_UNIT = 2.0**-900
_SMALLEST_FACTOR = 2.0**-120
"""An example of a smaller factor counts as zero."""

Named = Sequence[tuple[str, Any]]
"""Names of parameters, and tensors that belong to them."""


class GradientShare(ABC):
    """A share of every example's gradient, of b examples."""

    names: tuple[str, ...]
    held: int
    """Numbers of one example that are held, whatever the example is."""

    @abstractmethod
    def lengths(self, clip: float, order: int) -> Any:
        """Return each example's norm in units of the clip, (b,) float64; NaN or inf if unusable."""

    @abstractmethod
    def sums(self, factors: Any, unusable: Any) -> Named:
        """Return the sum of the examples' shares times their factors, flat, float64.

        What is ``unusable``, (b,) bool or None for none, is left out whatever its numbers are.
        """

    @abstractmethod
    def dense(self) -> Named:
        """Return the numbers of the share, (b, numbers of the parameter)."""


class Dense(GradientShare):
    """The numbers (b, n) of a gradient by one parameter."""

    def __init__(self, name: str, part: Any) -> None:
        self.names, self.held, self._part = (name,), part.shape[1], part
        self._wide = part.double()

    def lengths(self, clip: float, order: int) -> Any:
        """See `GradientShare.lengths`."""
        return _norms(self._wide, self._part.dtype, clip, order)

    def sums(self, factors: Any, unusable: Any) -> Named:
        """See `GradientShare.sums`."""
        return [(self.names[0], factors @ _without(self._wide, unusable))]

    def dense(self) -> Named:
        """See `GradientShare.dense`."""
        return [(self.names[0], self._part)]


class Outer(GradientShare):
    """Gradients s_i a_i^T by the weights of a linear layer, and s_i by its bias.

    Parameters
    ----------
    names
        Of the weights, and of the bias where the layer has one.
    slopes, rows
        s (b, outputs) and a (b, inputs).
    """

    def __init__(self, names: tuple[str, ...], slopes: Any, rows: Any) -> None:
        self.names, self._slopes, self._rows = names, slopes, rows
        self.held = slopes.shape[1] + rows.shape[1]
        self._biased = len(names) > 1
        self._unit, self._scaled = _in_unit(rows)

    def lengths(self, clip: float, order: int) -> Any:
        """See `GradientShare.lengths`."""
        torch = _torch()
        unit, slopes = _in_unit(self._slopes)
        slopes, rows = (torch.linalg.vector_norm(x, order, 1) for x in (slopes, self._scaled))
        reach = rows * self._unit
        if self._biased:  # as if rows had another number, 1
            reach = reach + 1.0 if order == 1 else torch.hypot(reach, torch.ones_like(reach))
        return (unit / clip * reach) * slopes

    def sums(self, factors: Any, unusable: Any) -> Named:
        """See `GradientShare.sums`."""
        slopes = _without(self._slopes.double(), unusable)
        weights = _without(factors * self._unit, unusable)
        product = (slopes * weights[:, None]).T @ _without(self._scaled, unusable)
        sums = [(self.names[0], product.flatten())]
        return [*sums, (self.names[1], factors @ slopes)] if self._biased else sums

    def dense(self) -> Named:
        """See `GradientShare.dense`."""
        product = self._slopes[:, :, None] * self._rows[:, None, :]
        parts = [(self.names[0], product.flatten(1))]
        return [*parts, (self.names[1], self._slopes)] if self._biased else parts


class Looked(GradientShare):
    """Gradients by a table (rows, n) of whose rows each example has looked some up.

    Parameters
    ----------
    table : str
        Its name.
    rows
        How many it has.
    looked, slopes
        The numbers of the rows (b, m), and the gradients by what was found (b, m, n).
    """

    def __init__(self, table: str, rows: int, looked: Any, slopes: Any) -> None:
        torch = _torch()
        self.names, self._rows, self._count = (table,), rows, len(looked)
        self.held = slopes.shape[1] * slopes.shape[2]
        self._alone = looked.shape[1] == 1
        owners = torch.arange(self._count, device=looked.device)
        self._kind, numbers = slopes.dtype, slopes.flatten(0, 1).double()
        if self._alone:
            self._owners, self._looked, self._numbers = owners, looked.flatten(), numbers
            return
        pairs, places = torch.unique(looked + rows * owners[:, None], return_inverse=True)
        self._owners, self._looked = pairs // rows, pairs % rows
        self._numbers = numbers.new_zeros(len(pairs), slopes.shape[2])
        self._numbers.index_add_(0, places.flatten(), numbers)

    def lengths(self, clip: float, order: int) -> Any:
        """See `GradientShare.lengths`."""
        each = _norms(self._numbers, self._kind, clip, order)
        if self._alone:
            return each
        return each.new_zeros(self._count).index_add_(0, self._owners, each**order) ** (1 / order)

    def sums(self, factors: Any, unusable: Any) -> Named:
        """See `GradientShare.sums`."""
        of_rows = (None if each is None else each[self._owners] for each in (factors, unusable))
        factors, unusable = (factors, unusable) if self._alone else of_rows
        numbers = _without(self._numbers, unusable) * factors[:, None]
        table = numbers.new_zeros(self._rows, numbers.shape[1])
        return [(self.names[0], table.index_add_(0, self._looked, numbers).flatten())]

    def dense(self) -> Named:
        """See `GradientShare.dense`."""
        places = self._looked + self._rows * self._owners
        tables = self._numbers.new_zeros(self._count * self._rows, self._numbers.shape[1])
        tables.index_add_(0, places, self._numbers)
        return [(self.names[0], tables.view(self._count, -1))]


def clipped_sum(
    shares: Sequence[GradientShare],
    sizes: Mapping[str, int],
    clip: float,
    norm: Norm = "l2",
    there: Any = None,
) -> Any:
    """Return sum_i g_i min(1, clip / ||g_i||) of a block of examples, flat, float64.

    Parameters
    ----------
    shares : sequence of Share
        At most one by each parameter.
    sizes : mapping of str to int
        The parameters in their order, and their numbers of numbers.
    clip, norm
        The bound, and the norm it holds in.
    there : (b,) bool tensor, optional
        The examples to sum over.
    """
    torch = _torch()
    if not shares:  # no parameter plays a part in any loss
        return torch.zeros(sum(sizes.values()), dtype=torch.float64)
    order = 1 if norm == "l1" else 2
    lengths = torch.stack([share.lengths(clip, order) for share in shares])
    factors = 1.0 / torch.linalg.vector_norm(lengths, order, 0).clamp(min=1.0)
    unusable = ~(factors >= _SMALLEST_FACTOR)  # NaN too
    if there is not None:
        unusable |= ~there.to(unusable.device)
    without = unusable if unusable.any() else None
    if without is not None:
        # A factor of zero would leave NaN and infinity what they are.
        factors = factors.masked_fill(unusable, 0.0)
    sums = dict(pair for share in shares for pair in share.sums(factors, without))
    every = [sums[name] if name in sums else factors.new_zeros(n) for name, n in sizes.items()]
    return torch.cat(every)


def added_up(shares: Sequence[GradientShare]) -> list[GradientShare]:
    """Return shares of which no two are by one parameter."""
    counts = Counter(name for share in shares for name in share.names)
    again = {
        name for share in shares if any(counts[n] > 1 for n in share.names) for name in share.names
    }
    kept = [share for share in shares if not again.intersection(share.names)]
    parts: dict[str, Any] = {}
    for share in shares:
        for name, part in share.dense() if again.intersection(share.names) else ():
            parts[name] = parts[name] + part if name in parts else part
    return [*kept, *(Dense(name, part) for name, part in parts.items())]


def _norms(wide: Any, kind: Any, clip: float, order: int) -> Any:
    """Return the norms (b,) in units of the clip of numbers (b, n) that were of a dtype."""
    norm = _torch().linalg.vector_norm
    if kind == _torch().float64:  # of which squares may leave its range
        return norm(wide / clip, order, 1)
    return norm(wide, order, 1) / clip


def _in_unit(part: Any) -> tuple[Any, Any]:
    """Return a unit for each example (b,), and its numbers (b, n) in it as float64."""
    torch = _torch()
    if part.dtype != torch.float64:
        return 1.0, part.double()
    unit = part.abs().amax(1).clamp(min=_SMALLEST_UNIT)
    return unit, part / unit[:, None]


def _without(part: Any, unusable: Any) -> Any:
    """Return what belongs to each example, (b,) or (b, n), as zeros where it is not usable."""
    if unusable is None:
        return part
    return part.masked_fill(unusable.view(-1, *[1] * (part.dim() - 1)), 0.0)


@functools.cache
def _torch() -> Any:
    return importlib.import_module("torch")
