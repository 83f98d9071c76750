"""The norms that are not formed, and what one example adds: against exact rational numbers."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privet.agents.loop.private_steps import summed
from privet.kernel import clipped_sensitivity

torch = pytest.importorskip("torch", reason="needs the group torch")
shares = pytest.importorskip("privet.agents.adapters.networks.shares")
nn = torch.nn
SLACK = Fraction(1) + Fraction(1, 2**20)

_WIDE = st.builds(
    math.ldexp,
    st.floats(-1.0, 1.0),
    st.sampled_from([-1074, -1040, -960, -700, -530, -300, -60, -1, 0, 1, 60, 300, 530, 900, 1023]),
)
NUMBERS = st.one_of(_WIDE, st.just(0.0), st.sampled_from([math.inf, -math.inf, math.nan]))
CLIPS = st.sampled_from([2.0**-600, 2.0**-300, 1e-3, 1.0, 7.0, 2.0**300, 2.0**600])


def exact_length(gradient: list[Fraction], order: int) -> Fraction:
    """Return the norm, or its square, as a rational number."""
    return sum((abs(each) ** order for each in gradient), Fraction(0))


def require_clipped(
    share: Any, gradient: list[Fraction], clip: float, order: int, moderate: bool
) -> None:
    """What one example adds is no longer than the clip, and it is its gradient times a factor.

    It may count as zero where numbers are not ``moderate``.
    """
    sizes = dict.fromkeys(share.names, 0)
    found = shares.clipped_sum([share], sizes, clip, "l1" if order == 1 else "l2").tolist()
    assert len(found) == len(gradient)
    added = [Fraction(each) for each in found]  # raises for what is not finite
    limit = (Fraction(clip) * SLACK) ** order
    assert exact_length(added, order) <= limit
    length = exact_length(gradient, order)
    if length <= limit:
        factor = 1.0
    else:
        ratio = Fraction(clip) ** order / length
        factor = math.exp((math.log(ratio.numerator) - math.log(ratio.denominator)) / order)
    if not any(added) and (factor < 2.0**-119 or not moderate):
        return  # it counts as zero
    for one, other in zip(added, gradient, strict=True):
        assert abs(one - other * Fraction(factor)) <= Fraction(clip) / 2**20


def product(slopes: list[float], rows: list[float]) -> list[Fraction]:
    return [Fraction(s) * Fraction(a) for s in slopes for a in rows]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("biased", [True, False])
@given(
    slopes=st.lists(NUMBERS, min_size=2, max_size=2),
    rows=st.lists(NUMBERS, min_size=1, max_size=3),
    clip=CLIPS,
)
@example(slopes=[1.5 * 2.0**774, 0.0], rows=[2.0**-1074], clip=2.0**-300)
@example(slopes=[2.0**-560, 0.0], rows=[1.0], clip=2.0**-600)
@example(slopes=[2.0**-1060, 0.0], rows=[2.0**900], clip=2.0**-300)
@settings(max_examples=150, deadline=None)
def test_a_product_is_clipped_as_if_it_were_formed(
    slopes: list[float], rows: list[float], clip: float, order: int, biased: bool
) -> None:
    one, other = (torch.tensor([each], dtype=torch.float64) for each in (slopes, rows))
    share = shares.Outer(("w", "b") if biased else ("w",), one, other)
    if not all(map(math.isfinite, [*slopes, *rows])):
        found = shares.clipped_sum([share], dict.fromkeys(share.names, 0), clip)
        assert not found.any()
        return
    gradient = product(slopes, rows) + [Fraction(each) for each in slopes if biased]
    moderate = all(each == 0 or 2.0**-300 <= abs(each) <= 2.0**300 for each in [*slopes, *rows])
    require_clipped(share, gradient, clip, order, moderate)


@pytest.mark.parametrize("order", [1, 2])
@given(
    looked=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    numbers=st.lists(NUMBERS, min_size=8, max_size=8),
    clip=CLIPS,
)
@example(looked=[1, 1], numbers=[2.0**-560] * 8, clip=2.0**-600)
@settings(max_examples=150, deadline=None)
def test_rows_that_are_looked_up_again_are_added_before_they_are_clipped(
    looked: list[int], numbers: list[float], clip: float, order: int
) -> None:
    slopes = np.array(numbers[: 2 * len(looked)]).reshape(-1, 2)
    share = shares.Looked("t", 3, torch.tensor([looked]), torch.from_numpy(slopes)[None])
    if not np.isfinite(slopes).all():
        assert not shares.clipped_sum([share], {"t": 6}, clip).any()
        return
    table = np.zeros((3, 2))
    with np.errstate(over="ignore"):
        np.add.at(table, looked, slopes)
    if not np.isfinite(table).all():
        assert not shares.clipped_sum([share], {"t": 6}, clip).any()
        return
    gradient = [Fraction(each) for each in table.ravel().tolist()]
    require_clipped(share, gradient, clip, order, bool(np.abs(table).max() <= 2.0**300))


EXTREMES = (0.0, 1e-45, 1e-30, 1e-3, 1e4, 1e19, 3e38, math.inf, math.nan, -1e30)


class Words(nn.Module):
    """A table whose rows come again, a number for each word, and layers at one position."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.table, self.each = nn.Embedding(5, 4, padding_idx=0), nn.Linear(4, 3)
        self.norm, self.last = nn.LayerNorm(5), nn.Linear(5, 3)
        self.first = nn.Linear(2, 2)

    def forward(self, rows: Any) -> Any:
        words, numbers = rows
        found = self.each(self.table(words)).sum(1)
        return self.last(self.norm(torch.cat([found, self.first(numbers)], 1)))


@given(
    one=st.tuples(*[st.sampled_from(EXTREMES)] * 2),
    other=st.tuples(*[st.sampled_from(EXTREMES)] * 2),
    words=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    clip=st.sampled_from([1e-3, 1.0, 50.0]),
    dtype=st.sampled_from(["float32", "float64"]),
)
@settings(max_examples=30, deadline=None)
def test_one_example_moves_the_sum_by_no_more_than_its_sensitivity(
    one: Any, other: Any, words: list[int], clip: float, dtype: str
) -> None:
    """It is replaced, and it is left out, of a batch of one as well."""
    kind = getattr(torch, dtype)
    model = Words().to(kind)
    trained = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(0)
    for count in (1, 6):
        numbers = torch.randn(count, 2, generator=generator, dtype=kind)
        texts = torch.randint(5, (count, 3), generator=generator)
        targets = torch.arange(count) % 3
        sums = []
        for extreme in (one, other):
            numbers[0], texts[0] = torch.tensor(extreme, dtype=kind), torch.tensor(words)
            rows = [texts.clone(), numbers.clone(), targets]
            kept = np.ones(count, np.bool_)
            for there in (True, False):
                kept[0] = there
                sums.append(
                    summed(
                        model, trained, mean_loss, rows, tuple, clip, kept=kept.copy(), expected=3
                    )[0]
                )
            sums.append(summed(model, trained, mean_loss, rows, tuple, clip)[0])
        assert all(bool(each.isfinite().all()) for each in sums)
        assert torch.equal(sums[1], sums[4])  # without it, whatever it is
        for relation, pairs in (
            ("add-remove", [(0, 1), (3, 4)]),
            ("replace-one", [(0, 3), (2, 5)]),
        ):
            bound = clipped_sensitivity(
                clip, divisor=1.0, num_examples=count, relation=relation, dtype=dtype
            )
            for a, b in pairs:
                assert float((sums[a] - sums[b]).norm()) <= bound


def mean_loss(model: Any, rows: Any) -> Any:
    words, numbers, targets = rows
    return nn.functional.cross_entropy(model((words, numbers)), targets)


def test_blocks_of_many_examples_add_up_what_each_adds() -> None:
    generator = torch.Generator().manual_seed(1)
    slopes, rows = (torch.randn(40, n, generator=generator).double() for n in (3, 5))
    slopes[3] = math.inf
    rows[7] *= 1e300
    there = torch.arange(40) % 4 > 0
    for order, norm in ((1, "l1"), (2, "l2")):
        share = shares.Outer(("w", "b"), slopes, rows)
        found = shares.clipped_sum([share], {"w": 15, "b": 3}, 2.0, norm, there)
        total = np.zeros(18)
        for i, (s, a) in enumerate(zip(slopes.numpy(), rows.numpy(), strict=True)):
            gradient = np.concatenate([np.outer(s, a).ravel(), s])
            if there[i] and i not in (3, 7):
                total += gradient * min(1.0, 2.0 / np.linalg.norm(gradient, order))
        assert np.allclose(found, total, rtol=0, atol=1e-12)


@pytest.mark.parametrize("parts", list(itertools.permutations(range(3), 2)))
def test_shares_by_one_parameter_are_added_up(parts: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(2)
    slopes, rows = (torch.randn(4, n, generator=generator).double() for n in (3, 2))
    words = torch.tensor([[0, 0], [1, 2], [2, 2], [0, 1]])
    looked = torch.randn(4, 2, 2, generator=generator).double()
    every = [
        shares.Outer(("w", "b"), slopes, rows),
        shares.Looked("w", 3, words, looked),
        shares.Dense("w", torch.randn(4, 6, generator=generator).double()),
    ]
    both = [every[at] for at in parts]
    dense = [dict(share.dense())["w"] for share in both]
    gradients = dense[0] + dense[1]
    biases = slopes if 0 in parts else torch.zeros(4, 3)
    whole = torch.cat([gradients, biases], 1)
    exact = (whole / whole.norm(dim=1).clamp(min=1.0)[:, None]).sum(0)
    made = shares.added_up([*both, shares.Dense("c", torch.zeros(4, 1))])
    found = shares.clipped_sum(made, {"w": 6, "b": 3, "c": 1}, 1.0)
    assert np.allclose(found[:9], exact, rtol=0, atol=1e-12)
    assert np.allclose(every[0].dense()[0][1][1], np.outer(slopes[1], rows[1]).ravel())
    assert np.allclose(every[1].dense()[0][1][2].reshape(3, 2)[2], looked[2].sum(0))
