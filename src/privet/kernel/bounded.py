"""Privacy-critical: clipped sums whose sensitivity is known, and rows within a public norm.

What bounds one example's influence, and by how much it is bounded, stand together here: a clipped
sum comes with its sensitivity (`Clipped`), which `clipped_sensitivity` states from public numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial, wraps
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

import numpy as np
import numpy.typing as npt

from .checks import check_features, check_positive
from .errors import RecordsError
from .records import (
    ClippableProblem,
    FloatArray,
    Norm,
    Problem,
    RowIndex,
    Samplable,
)

BoolArray: TypeAlias = npt.NDArray[np.bool_]
IntArray: TypeAlias = npt.NDArray[np.int64]
Clipping: TypeAlias = Literal["example", "batch"]
"""What is clipped: each example's term, or the mean over a batch."""
Relation: TypeAlias = Literal["replace-one", "add-remove", "replace-agent"]
"""Neighbouring data: one record is replaced, is there or not, or all of an agent are replaced."""
RELATIONS: tuple[str, ...] = get_args(Relation)
"""The values of `Relation`."""

BLOCK = 256
"""Examples that a float32 product sums up; the sums of blocks are added up in float64."""

_SLACK = 2.0**-20
_UNIT = {np.dtype("f4"): 2.0**-24, np.dtype("f8"): 2.0**-53}
_RANGE = {np.dtype("f4"): 2.0**60, np.dtype("f8"): 2.0**600}
# Below these, a clipped residual has no accurate norm, and a factor no full precision.
_SHORTEST_RESIDUAL = {np.dtype("f4"): 2.0**-120, np.dtype("f8"): 2.0**-480}
_SMALLEST_FACTOR = 2.0**-960


class Clipped(NamedTuple):
    """A clipped sum and its sensitivity: all that noise needs to know.

    Attributes
    ----------
    value : (d,) float64 array
        The sum over the examples of their clipped data-term gradients, divided by D (n/(D b)
        times the sum over a mini-batch of b); no regulariser.
    sensitivity : float
        The largest change between neighbours in ``norm``, the rounding of the sum included.
    norm : {"l1", "l2"}
    """

    value: npt.NDArray[np.float64]
    sensitivity: float
    norm: Norm

    def scaled(self, factor: float) -> Clipped:
        """Return the value times a number, which moves by that much."""
        return Clipped(factor * self.value, abs(factor) * self.sensitivity, self.norm)


@lru_cache(maxsize=256)
def clipped_sensitivity(
    clip: float,
    *,
    divisor: float,
    num_examples: int,
    batch_size: int | None = None,
    clipping: Clipping = "example",
    relation: Relation = "replace-one",
    dtype: npt.DTypeLike = "float64",
) -> float:
    """Return how far a clipped sum as computed can be from that of neighbouring data.

    For examples clipped to C it is moved C n / (D b) (1 + margin), where moved is 2
    (replace-one), 1 (add-remove) or 2 b (replace-agent), n = ``num_examples`` and b =
    ``batch_size`` (n for None); for whole batches 2 C (1 + 2^-20), whatever the relation.

    Parameters
    ----------
    clip, divisor, num_examples, batch_size, clipping, relation
        C, D, n, b and what is clipped: public numbers. A batch holds no example twice.
    dtype : dtype-like
        float32 or float64, in which the examples' gradients are computed.

    Returns
    -------
    float
        In the norm that was clipped in.

    Raises
    ------
    ValueError
        For numbers that are not finite and positive, unknown names, or a clip so far from 1
        (2^60 in float32, 2^600 in float64) that products would leave the range of the dtype.

    Notes
    -----
    With replace-agent neighbours are any two data sets of n examples. Else they agree in all
    examples but one, each in its own place: with add-remove that one's contribution is there or is
    zero. A file from which a row is deleted, so that others move up,
    is not covered: a matrix product may round a row by its place, and a model can be chosen whose
    scores are rounding alone (least squares in float32 was moved by three times the bound so).

    In place, the others' residuals are the same products of the same numbers and have the same
    bits. The rest is arithmetic. Let u be the unit roundoff of the dtype, w = 2^-53, and
    gamma_m = m u / (1 - m u) (omega_m with w).

    1. An example adds r a^T, with r its clipped residual and a its features, of norm |r| |a|
       in l2 and in l1. The norms of r and a are taken in float64 (relative error at most
       (d + K + 4) w for d features and K classes); the limit C / |a|, and for vectors the factor
       and its product with r, are rounded to the dtype (3u). So |r| |a| <= C (1 + s) with
       s = 3u + (d + K + 4) w, below 2^-20 for d + K < 2^31.
    2. A product of the dtype sums m of these, in any order, fused or not: entry (k, j) errs by at
       most gamma_m sum_i |r_ik| |a_ij|, so the whole errs by at most gamma_m m C (1 + s) in
       either norm. Float32 takes blocks of m <= 256. Blocks without the changed example are the
       same products of the same numbers and give the same bits; the one block it is in errs on
       both sides: 2 m gamma_m C (1 + s).
    3. Adding up in float64 - of blocks, or in float64 of all b examples at once - and scaling in
       float64 errs on either side by at most omega_{b+2} b C (1 + s) (1 + gamma_m).
    4. Underflow adds at most 2^-126 an entry and product in float32 (2^-1022 in float64), far
       below the slack at the clips allowed.

    Together the change is at most
    (1 + 2^-20)(1 + (2/moved)(m gamma_m + b omega_{b+2} (1 + gamma_m))) moved C n / (D b),
    where float64 has omega_{b+2} alone. With replace-agent all blocks may differ, and err by
    b gamma_m C (1 + s) in place of m gamma_m C (1 + s).
    """
    kind = np.dtype(dtype)
    if kind not in _UNIT:
        raise ValueError(f"dtype must be float32 or float64, found {kind}")
    clip = check_positive("clip", clip)
    if not 1.0 / _RANGE[kind] <= clip <= _RANGE[kind]:
        raise ValueError(
            f"clip = {clip:g} is out of the range that {kind} sums allow: choose one nearer to 1"
        )
    if clipping == "batch":
        return 2.0 * clip * (1.0 + _SLACK)
    if clipping != "example":
        raise ValueError(f"clipping must be example or batch, found {clipping!r}")
    if relation not in RELATIONS:
        raise ValueError(f"relation must be one of {', '.join(RELATIONS)}, found {relation!r}")
    total = check_positive("num_examples", num_examples)
    batch = total if batch_size is None else check_positive("batch_size", batch_size)
    whole = relation == "replace-agent"
    moved = {"replace-one": 2.0, "add-remove": 1.0, "replace-agent": 2.0 * batch}[relation]
    margin = batch * _gamma(batch + 2.0, _UNIT[np.dtype("f8")])
    if kind == np.float32:
        block = min(batch, float(BLOCK))
        product = _gamma(block, _UNIT[kind])
        margin = (batch if whole else block) * product + margin * (1.0 + product)
    margin = (1.0 + _SLACK) * (1.0 + 2.0 / moved * margin)
    return moved * clip * (total / batch) / check_positive("divisor", divisor) * margin


def _gamma(count: float, unit: float) -> float:
    if count * unit >= 0.5:
        raise ValueError(f"the rounding error of a sum of {count:g} examples has no useful bound")
    return count * unit / (1.0 - count * unit)


ClippedTerms: TypeAlias = Callable[..., tuple[Clipped, FloatArray | None]]
Method = TypeVar("Method", bound=Callable[..., Any])
_Split: TypeAlias = Callable[..., tuple[npt.NDArray[np.float64], FloatArray | None]]


def clipped_terms(
    problem: Problem,
    clip: float,
    *,
    norm: Norm = "l2",
    clipping: Clipping = "example",
    relation: Relation = "replace-one",
    batch_size: int | None = None,
    sensitivity: float | None = None,
    silenced: bool = False,
) -> ClippedTerms:
    """Return the function of a problem's clipped data term, to be noised, and its regulariser.

    It is called with x (d,), and with the rows of a mini-batch, and returns the `Clipped` term and
    the regulariser's gradient at x in the problem's dtype, None where there is none. A problem
    with a method ``clipped_term`` gives the two separately (see `ClippableProblem`); of another the
    value is its whole ``clipped_gradient``, whose sensitivity it vouches for. The sensitivity is
    worked out once, not at every step.

    Parameters
    ----------
    problem : ClippableProblem
        Of one that is not, a ``TypeError`` says so.
    clip, norm
        C and the norm it bounds; whole batches are clipped in l2.
    clipping, relation
        As in `clipped_sensitivity`.
    batch_size : int, optional
        Number of rows of every call, no example twice; None for calls on all examples.
    sensitivity : float, optional
        Sensitivity of the value, where it follows from public numbers (`Facts.sensitivity`):
        computed from the problem, it depends on how many records the problem holds.
    silenced : bool
        Whether numpy's warnings of overflow are off already where the function is called.

    Raises
    ------
    ValueError
        For settings that cannot be met; the function, for rows that are repeated or of another
        number, or a ``clipped_gradient`` that is not finite.

    Notes
    -----
    Privacy: nothing is noised here. The value depends on the records and must not leave the agent
    as it is; sensitivity, norm and rest are public as far as x is.
    """
    if norm not in ("l1", "l2"):
        raise ValueError(f"norm must be l1 or l2, found {norm!r}")
    if clipping == "batch" and norm != "l2":
        raise ValueError("clipping = 'batch' needs norm = 'l2'")
    if sensitivity is None:
        count = problem.num_examples
        sensitivity = clipped_sensitivity(
            clip,
            divisor=float(getattr(problem, "divisor", count)),
            num_examples=count,
            batch_size=batch_size,
            clipping=clipping,
            relation=relation,
            dtype=problem.dtype,
        )
    split: _Split = getattr(problem, "clipped_term", None) or _whole_gradient(problem, clipping)
    if silenced and hasattr(split, "loud"):
        split = partial(split.loud, problem)

    def term(x: FloatArray, rows: RowIndex = None) -> tuple[Clipped, FloatArray | None]:
        if rows is not None or batch_size is not None:
            _check_batch(rows, batch_size)
        value, rest = split(x, clip, norm, rows, clipping)
        return Clipped(value, sensitivity, norm), rest

    return term


def sampled_terms(
    problem: Problem, clip: float, rate: float, expected: int, sensitivity: float
) -> Any:
    """Return the function of x and of which records are kept, for their noised sum over q D.

    Its value is ``Samplable.sampled_term`` divided by q, the rate. It returns what
    `clipped_terms` does.

    Raises
    ------
    RecordsError
        For a problem that cannot leave records out in place.

    Notes
    -----
    Privacy: as of `clipped_terms`.
    """
    if not isinstance(problem, Samplable):
        raise RecordsError(
            "batch = 'poisson': this problem cannot leave records out in their place: it needs a "
            "method sampled_term"
        )

    def term(x: FloatArray, kept: npt.NDArray[np.bool_]) -> tuple[Clipped, FloatArray | None]:
        value, rest = problem.sampled_term(x, clip, kept, expected)
        value /= rate
        return Clipped(value, sensitivity, "l2"), rest

    return term


def places(kept: npt.NDArray[np.bool_], width: int) -> Iterator[tuple[IntArray, BoolArray]]:
    """Yield the kept records as batches of one shape: rows (width,), and which of them count.

    Record i comes at place i mod ``width``, behind the kept records of that place before it. So the
    place and the shape of its batch are the same whichever others are kept, and a computation
    whose rows depend on their place, the shape and themselves alone gives it the same bits; a row
    that does not count stands in for one that is missing. One record's coming or going moves others
    to another batch, which is why sums over a batch are to be taken in float64.
    """
    rows = np.flatnonzero(kept)
    place = rows % width
    order = np.argsort(place, kind="stable")
    lengths = np.bincount(place, minlength=width)
    begin = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    for layer in range(int(lengths.max(initial=0))):
        there = lengths > layer
        chosen = np.zeros(width, np.int64)
        chosen[there] = rows[order[begin[there] + layer]]
        yield chosen, there


def silently(method: Method) -> Method:
    """Return a method that keeps numpy's warnings of overflow off; its ``loud`` does not.

    Scores of extreme rows overflow, and what is not finite then counts as zero. To turn the
    warnings off takes 1 us a call, which a walk of many steps pays once.
    """

    @wraps(method)
    def silent(*arguments: Any, **options: Any) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):
            return method(*arguments, **options)

    silent.loud = method  # type: ignore[attr-defined]
    return cast(Method, silent)


def _whole_gradient(problem: Problem, clipping: Clipping) -> _Split:
    """Return ``clipped_term`` of a problem that does not give its regulariser separately."""
    if clipping == "batch":
        raise ValueError("clipping = 'batch': this problem cannot clip its gradient")
    if not isinstance(problem, ClippableProblem):
        raise TypeError("this problem cannot clip per example")

    def split(
        x: FloatArray, clip: float, norm: Norm, rows: RowIndex, _: Clipping
    ) -> tuple[npt.NDArray[np.float64], None]:
        value = np.asarray(problem.clipped_gradient(x, clip, norm, rows), np.float64)
        if value.shape != (problem.dim,) or not np.isfinite(value).all():
            raise ValueError(f"clipped_gradient must give {problem.dim} finite numbers")
        return value, None

    return split


def clipped_term(
    problem: Problem,
    x: FloatArray,
    clip: float,
    *,
    norm: Norm = "l2",
    rows: RowIndex = None,
    clipping: Clipping = "example",
    relation: Relation = "replace-one",
    sensitivity: float | None = None,
) -> tuple[Clipped, FloatArray | None]:
    """Return `clipped_terms` at one x (d,), on ``rows`` or on all examples."""
    terms = clipped_terms(
        problem,
        clip,
        norm=norm,
        clipping=clipping,
        relation=relation,
        batch_size=None if rows is None else len(rows),
        sensitivity=sensitivity,
    )
    return terms(x, rows)


def _check_batch(rows: RowIndex, batch_size: int | None) -> None:
    if rows is None or rows.shape[-1] != batch_size:
        raise ValueError(f"the sensitivity is that of batch_size = {batch_size} rows")
    ordered = np.sort(rows, axis=-1)
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        raise ValueError("rows holds an example twice: its share would not be bounded by one clip")


def clipped_sum(
    gradients: FloatArray, clip: float, norm: Norm = "l2", kept: BoolArray | None = None
) -> npt.NDArray[np.float64]:
    """Return the sum of the rows of ``gradients`` (b, d), each scaled down to norm ``clip``.

    Of those that are ``kept`` (b,) alone, where given; the others count as zero in their place.
    Computed in float64. A row that is not finite, or so long that its factor would not be a
    normal number, counts as zero: what one example adds must be bounded whatever the example is.
    """
    clip = check_positive("clip", clip)
    wide = gradients.astype(np.float64, copy=False)
    if kept is not None:
        wide = np.where(kept[:, None], wide, 0.0)
    lengths = row_norms(wide, norm)
    weights = clip / np.maximum(lengths, clip)
    unusable = ~(weights >= _SMALLEST_FACTOR)  # NaN too
    if unusable.any():
        # A weight of zero would leave NaN and infinity what they are.
        wide, weights = wide[~unusable], weights[~unusable]
    total: npt.NDArray[np.float64] = weights @ wide
    return total


def clipped_whole(vector: npt.NDArray[np.float64], clip: float) -> npt.NDArray[np.float64]:
    """Return a vector (or each row of several) scaled down to l2 norm ``clip`` in place.

    Zero where it is not finite, or so long that its factor would not be a normal number.
    """
    if vector.ndim > 1:
        for row in vector:
            clipped_whole(row, clip)
        return vector
    clip = check_positive("clip", clip)
    with np.errstate(over="ignore", invalid="ignore"):
        length = float(np.linalg.norm(vector))
    if not 2.0**-400 <= length <= 2.0**400:
        length = float(row_norms(vector[None], "l2")[0])
    weight = clip / max(length, clip)
    if np.isfinite(length) and weight >= _SMALLEST_FACTOR:
        vector *= weight
    else:
        vector[:] = 0.0
    return vector


class Limits(NamedTuple):
    """The norms that the residuals of examples may have, and which examples count as zero."""

    most: FloatArray
    dropped: npt.NDArray[np.bool_] | None

    def of(self, rows: RowIndex) -> Limits:
        """Return the limits of some examples, or of all for None."""
        if rows is None:
            return self
        # For a stack, rows are indices within each model.
        of = rows if rows.ndim == 1 else (np.arange(len(rows))[:, None], rows)
        return Limits(self.most[of], None if self.dropped is None else self.dropped[of])


def residual_limits(norms: npt.NDArray[np.float64], clip: float, dtype: np.dtype[Any]) -> Limits:
    """Return ``clip`` / norm for rows of these norms.

    Examples count as zero whose rows are so long (2^120 clips in float32, 2^480 in float64) that a
    residual within the limit would lose its digits.
    """
    # Zero rows have no limit; half the largest number stands for that without warnings.
    floor = 2.0 * max(clip, 1.0) / float(np.finfo(dtype).max)
    wide = clip / np.maximum(norms, floor)
    shortest = _SHORTEST_RESIDUAL[dtype]
    dropped = ~(wide >= shortest)
    if not dropped.any():
        return Limits(wide.astype(dtype), None)
    # Their limit is never used; it stays a number that can be divided by.
    wide[dropped] = shortest
    return Limits(wide.astype(dtype), dropped)


def row_norms(features: FloatArray, norm: Norm) -> npt.NDArray[np.float64]:
    """Return the norm of every row in float64, without overflow or underflow on the way.

    Infinite where the norm itself is beyond float64 or an entry is; NaN where one is NaN.
    """
    if norm not in ("l1", "l2"):
        raise ValueError(f"norm must be l1 or l2, found {norm!r}")
    with np.errstate(over="ignore", invalid="ignore"):
        if norm == "l1":
            sums: npt.NDArray[np.float64] = np.abs(features).sum(axis=1, dtype=np.float64)
            return sums
        squares = np.einsum("nd,nd->n", features, features, dtype=np.float64)
        result: npt.NDArray[np.float64] = np.sqrt(squares)
        # Squares that may have lost small entries or overflowed, the zero rows among them.
        unsafe = ~((squares >= 2.0**-800) & (squares <= 2.0**1000))
        if unsafe.any():
            scaled, exponents = _to_unit(features[unsafe].astype(np.float64))
            lengths = np.sqrt(np.einsum("nd,nd->n", scaled, scaled))
            result[unsafe] = np.ldexp(lengths, exponents)
    return result


def clip_rows(features: npt.ArrayLike, radius: float) -> FloatArray:
    """Return a copy of the features whose rows are scaled down to l2 norm <= ``radius``.

    Rows inside the ball keep their exact values; norms are taken in float64 without overflow, and
    longer rows are shrunk by a few units in the last place more than needed, so that rounding
    cannot leave one outside.

    Raises
    ------
    ValueError
        For features that are not finite, or a radius that is not positive or so small that rows
        within it would not be normal numbers (1e-31 in float32).

    Notes
    -----
    Privacy: every row depends on itself alone, so the clipped data set has the neighbours of
    the original one; the radius must be public.
    """
    radius = check_positive("radius", radius)
    result = np.array(check_features(features))
    limits = np.finfo(result.dtype)
    if radius < float(limits.tiny) / float(limits.eps):
        raise ValueError(f"radius is {radius:g}: too small for rows in {result.dtype}")
    outside = row_norms(result, "l2") > radius
    if outside.any():
        # Scaled by powers of two, which changes no digit, so that no norm can overflow.
        scaled, _ = _to_unit(result[outside].astype(np.float64))
        shrunk = radius * (1.0 - 4.0 * float(limits.eps))
        result[outside] = scaled * (shrunk / np.linalg.norm(scaled, axis=1))[:, None]
    return result


def _to_unit(
    rows: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.intc]]:
    """Return rows 2^-e with a largest entry in [1/2, 1) each, and the e; others as they are."""
    largest = np.abs(rows).max(axis=1)
    _, exponents = np.frexp(largest)
    return np.ldexp(rows, -exponents[:, None]), exponents
