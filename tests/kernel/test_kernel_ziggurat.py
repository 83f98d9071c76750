"""The sampler against exact and high-precision arithmetic.

Statistical checks reject at probability 1e-7 under the null, on fixed seeds.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from privet.kernel import SeededNoise, total_variation, ziggurat
from privet.kernel.ziggurat import CELL_BITS, LAYERS, Mechanism, Ziggurat
from privet.kernel.ziggurat_points import exact_cell, threshold

ALARM = 1e-7
MECHANISMS: tuple[Mechanism, ...] = ("gaussian", "laplace")
RNG = np.random.default_rng(11)


@pytest.fixture(params=MECHANISMS)
def sampler(request: pytest.FixtureRequest) -> Ziggurat:
    return ziggurat.ziggurat(request.param)


def minus_log(sampler: Ziggurat, x: Any) -> Any:
    return x * x / 2 if sampler.gaussian else x


def heights(sampler: Ziggurat) -> tuple[list[Any], Any]:
    """Return y_1 ... y_LAYERS and v to 60 digits, from the widths alone."""
    widths = [mpmath.mpf(float(x)) for x in sampler.widths]
    base = mpmath.exp(-minus_log(sampler, mpmath.mpf(sampler.start)))
    area = widths[0] * base
    edges = [base]
    for width in widths[1:]:
        edges.append(edges[-1] + area / width)
    return edges, area


def words(layer: Any, upper: Any) -> NDArray[np.int64]:
    """Return words of these layers and these upper 53 bits, signed."""
    return (np.asarray(upper, np.int64) << np.int64(11)) | np.asarray(layer, np.int64)


class Script:
    """A stream that returns given words, then those of a generator, and keeps them all."""

    def __init__(self, given: NDArray[np.int64]) -> None:
        self.given, self.seen = given, np.empty(0, np.int64)
        self.rng = np.random.default_rng(5)

    def __call__(self, count: int) -> NDArray[np.int64]:
        part, self.given = self.given[:count], self.given[count:]
        more = self.rng.integers(-(2**63), 2**63, count - part.size, dtype=np.int64)
        out = np.concatenate([part, more])
        self.seen = np.concatenate([self.seen, out])
        return out


# ------------------------------------------------------------------ the layers


def test_layers_cover_the_curve_with_equal_areas(sampler: Ziggurat) -> None:
    """Every layer reaches beyond the curve, and its inner part is under it with room to spare."""
    with mpmath.workdps(60):
        edges, area = heights(sampler)
        assert 1 <= edges[-1] < 1.001
        assert sampler.top == pytest.approx(float(edges[-1]), rel=1e-15)
        for i in range(1, LAYERS):
            width, inner = (mpmath.mpf(float(x[i])) for x in (sampler.widths, sampler.inner))
            gap = edges[i - 1] - mpmath.exp(-minus_log(sampler, width))
            assert 0 <= gap < mpmath.mpf(2) ** -28
            if i < LAYERS - 1:
                within = inner * width * mpmath.mpf(2) ** -52
                assert mpmath.exp(-minus_log(sampler, within)) > edges[i]
        assert sampler.inner[-1] < 0
        r = mpmath.mpf(sampler.start)
        tail = mpmath.quad(lambda x: mpmath.exp(-minus_log(sampler, x)), [r, r + 5, r + 60])
        share = 1 - mpmath.mpf(float(sampler.inner[0])) * mpmath.mpf(2) ** -52
        # What layer 0 gives its tail, against the tail: one of the small terms of the bound.
        assert abs(share - tail / area) / LAYERS < mpmath.mpf(2) ** -62


def test_threshold_is_right_to_2_to_the_minus_49_and_so_is_the_bound(sampler: Ziggurat) -> None:
    """The stated share of the curve is the measured rounding times the share of draws compared."""
    inner = np.maximum(sampler.inner[1:] * 2.0**-52, 0)
    layer = np.repeat(np.arange(1, LAYERS), 6)
    near = np.repeat(inner, 6)
    share = near + (1 - near) * np.tile([0.0, 2.0**-20, 0.25, 0.5, 0.9, 1 - 2.0**-20], LAYERS - 1)
    share = np.minimum(share, 1 - 2.0**-53)
    got = sampler._threshold(layer, share)
    columns = (sampler.widths, sampler.gains, sampler.floors)
    for row in zip(
        *(column[layer].tolist() for column in columns), share.tolist(), got, strict=True
    ):
        # Exponentials of two libraries may differ by some units in the last place.
        assert threshold(*row[:4], sampler.gaussian, math.expm1) == pytest.approx(
            row[4], abs=2**-51
        )
    with mpmath.workdps(50):
        edges, area = heights(sampler)
        worst = 0.0
        for i, u, height in zip(layer.tolist(), share.tolist(), got.tolist(), strict=True):
            width = mpmath.mpf(float(sampler.widths[i]))
            curve = mpmath.exp(-minus_log(sampler, mpmath.mpf(u) * width))
            exact = (curve - edges[i - 1]) * width / area
            worst = max(worst, abs(float(height - exact)))
    assert 0 < worst < 2.0**-49
    compared = float(np.sum(1 - inner)) / LAYERS
    assert compared * (2.0**-49 + 2.0**-53) < ziggurat.CURVE_ERROR
    assert compared * (worst + 2.0**-53) < 0.6 * ziggurat.CURVE_ERROR


def test_points_above_the_curve_are_never_kept(sampler: Ziggurat) -> None:
    """At the edges, which lie beyond the curve, no uniform is below the threshold.

    Layer 1 ends on the curve; a draw that layer 0 gives to the tail is not drawn anew.
    """
    layer = np.arange(2, LAYERS)
    assert np.all(sampler._threshold(layer, np.full(layer.size, 1 - 2.0**-53)) <= 0)
    assert np.all(sampler._threshold(np.zeros(1, np.int64), np.ones(1)) >= 1)


# ------------------------------------------------------------------ the position


def test_a_draw_is_the_cell_of_the_exact_product(sampler: Ziggurat) -> None:
    """Words at the extremes and at random: rational arithmetic agrees whatever the unseen bits."""
    extremes = [0, 1, 2, 3, -1, -2, 2**20, -(2**20), 2**40 + 1, 2**51, -(2**51) - 1]
    upper = np.concatenate([np.repeat(extremes, 64), RNG.integers(-(2**52), 2**52, 4096)])
    layer = RNG.integers(0, LAYERS, upper.size)
    keep = np.abs(upper + 0.5) < sampler.inner[layer]
    upper, layer = upper[keep], layer[keep]
    scale = 0.7321
    width = ziggurat.cell(sampler.mechanism, scale)
    draws = sampler.draw(Script(words(layer, upper)), upper.size, scale)
    settled = 0
    for u, i, draw in zip(upper.tolist(), layer.tolist(), draws.tolist(), strict=True):
        step = Fraction(float(sampler.widths[i])) * Fraction(scale) / Fraction(width) / 2**52
        ends = {math.floor(u * step), math.ceil((u + 1) * step) - 1}
        assert math.floor(Fraction(draw) / Fraction(width)) in ends
        settled += len(ends) == 1
    assert settled > 0.9 * upper.size


def test_exact_cells_agree_with_rational_arithmetic(sampler: Ziggurat) -> None:
    """At borders of cells, with every word known; also for the blocks of a tail, on either side."""
    ratio = 1.6180339887 * 2.0 ** CELL_BITS[sampler.mechanism]
    layer = RNG.integers(0, LAYERS, 3000)
    width = sampler.widths[layer]
    target = RNG.integers(1, 2**30, 3000) * 2.0**8
    position = np.floor(target / (width * ratio * 2.0**-52)) + 0.5
    position = np.minimum(position, 2.0**52 - 0.5)  # the largest there is
    drawn = RNG.integers(-(2**63), 2**63, 3000, dtype=np.int64)
    bits = ziggurat._uniforms(drawn)
    beyond = sampler.start + RNG.integers(0, 54, 3000) * sampler.block
    for offset, sign in ((np.zeros(3000), 1), (np.zeros(3000), -1), (beyond, 1), (beyond, -1)):
        near = 0
        for p, word, b, x, a in zip(
            *(array.tolist() for array in (sign * position, drawn, bits, width, sign * offset)),
            strict=True,
        ):
            got = exact_cell(p, word, x, a, ratio)
            place = Fraction(p) + Fraction(b) - Fraction(1, 2)
            exact = (Fraction(a) + Fraction(x) * place / 2**52) * Fraction(ratio)
            assert got == math.floor(exact) + 0.5
            fraction = exact - math.floor(exact)
            near += min(fraction, 1 - fraction) < Fraction(1, 100)
        assert near > (20 if offset.any() else 500)


def test_few_points_are_settled_as_many_are(
    sampler: Ziggurat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words give the same draws, bit for bit, with rejections, tails and open cells."""
    layer = np.concatenate([RNG.integers(0, LAYERS, 2000), np.zeros(50, np.int64)])
    upper = np.trunc(sampler.inner[layer] * RNG.choice([-1, 1], layer.size)).astype(np.int64)
    upper += np.sign(upper) * RNG.integers(0, 2**38, layer.size)
    given = words(layer, np.clip(upper, -(2**52), 2**52 - 1))
    for size in (3, 40, given.size):
        for scale in (0.3, 1.0, 2.7e9):
            found = []
            for few in (0, given.size):
                monkeypatch.setattr(ziggurat, "_FEW", few)
                script = Script(given)
                found.append((sampler.draw(script, size, scale), script.seen))
            (many, seen), (few_, also) = found
            np.testing.assert_array_equal(many, few_)
            np.testing.assert_array_equal(seen, also)
            assert seen.size > size


def test_uncertain_cells_are_found(sampler: Ziggurat) -> None:
    """Where either end of the unseen bits lies in another cell, the first look says so."""
    layer = RNG.integers(0, LAYERS, 20_000)
    upper = RNG.integers(-(2**52), 2**52, 20_000)
    ratio = 1.999 * 2.0 ** CELL_BITS[sampler.mechanism]
    steps = sampler.widths * (ratio * 2.0**-52)
    cells, unsure = sampler._cells(layer, upper + 0.5, steps)
    assert 0 < unsure.mean() < 0.02
    for i, u, cell, doubt in zip(
        layer.tolist(), upper.tolist(), cells.tolist(), unsure.tolist(), strict=True
    ):
        step = Fraction(float(sampler.widths[i])) * Fraction(ratio) / 2**52
        settled = math.floor(u * step) == math.ceil((u + 1) * step) - 1 == math.floor(cell)
        assert settled or doubt


def test_draws_never_lie_half_way(sampler: Ziggurat) -> None:
    """Odd multiples of half a cell, so rounding to a coarser grid cannot meet a tie."""
    for scale in (1.0, 1.9999, 3e-90, 7e80):
        width = ziggurat.cell(sampler.mechanism, scale)
        draws = sampler.draw(Script(np.empty(0, np.int64)), 5000, scale)
        assert np.all((draws / (width / 2)) % 2 == 1)
        assert np.all(np.abs(draws / width) < 2.0**50)


# ------------------------------------------------------------------ the tail and the law


def test_uniforms_and_blocks_at_chosen_words(sampler: Ziggurat) -> None:
    chosen = np.array([0, -1, -(2**63), 2**63 - 1, 2**12], np.int64)
    expected = [Fraction(2 * m + 1, 2**53) for m in (0, 2**52 - 1, 2**51, 2**51 - 1, 1)]
    assert [Fraction(u) for u in ziggurat._uniforms(chosen).tolist()] == expected
    # J is the number of leading zeros of 53 bits; the smallest place and uniform keep a point,
    # except where the Gaussian has 2^-53 of the block's height or less.
    zeros = [0, 1, 2, 3, 40] + ([] if sampler.gaussian else [53])
    first = np.array([-(2**63), 2**62, 2**61, 2**60, 2**23, 2**10], np.int64)[: len(zeros)]
    script = Script(np.concatenate([first, np.zeros(2 * first.size, np.int64)]))
    blocks, within = sampler._tail(script, first.size)
    assert blocks.tolist() == zeros
    assert within.tolist() == [0.5] * first.size
    assert script.seen.size == 3 * first.size


def test_tail_has_the_law_beyond_its_start(sampler: Ziggurat) -> None:
    blocks, within = sampler._tail(Script(np.empty(0, np.int64)), 200_000)
    x = sampler.start + (blocks + within * 2.0**-52) * sampler.block
    law = stats.norm if sampler.gaussian else stats.laplace
    beyond = law.sf(x) / law.sf(sampler.start)
    assert stats.kstest(beyond, "uniform").pvalue > ALARM
    assert sampler.gaussian or x.max() > sampler.start + 8


def test_draws_beyond_the_start_are_as_many_as_they_should_be() -> None:
    for mechanism in MECHANISMS:
        start = ziggurat.ziggurat(mechanism).start
        law = stats.norm if mechanism == "gaussian" else stats.laplace
        draws = getattr(SeededNoise(29), mechanism)(4_000_000, 1.0)
        seen = int((np.abs(draws) > start).sum())
        assert seen > 0
        assert stats.binomtest(seen, draws.size, 2 * float(law.sf(start))).pvalue > ALARM
        positive = int((draws > start).sum())
        assert stats.binomtest(positive, seen, 0.5).pvalue > ALARM


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("power", [-1, -4])
def test_rounded_draws_have_the_rounded_law(mechanism: Mechanism, power: int) -> None:
    """Chi-square on the grid D = 2^power, probabilities as differences of the ideal law."""
    scale, spacing, size = 1.37, 2.0**power, 2_000_000
    k = np.rint(getattr(SeededNoise(17, power), mechanism)(size, scale) / spacing).astype(int)
    law = (stats.norm if mechanism == "gaussian" else stats.laplace)(scale=scale)
    top = round(4 * scale / spacing)
    counts = np.bincount(np.clip(k + top, 0, 2 * top))
    edges = (np.arange(-top, top) + 0.5) * spacing
    shares = np.diff(np.concatenate([[0.0], law.cdf(edges), [1.0]]))
    assert stats.chisquare(counts, shares * size).pvalue > ALARM


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_low_bits_of_a_fine_grid_are_uniform(mechanism: Mechanism) -> None:
    spacing = 2.0**-24
    k = np.rint(getattr(SeededNoise(19), mechanism)(1_000_000, 1.1) / spacing).astype(np.int64)
    counts = np.bincount(k % 64, minlength=64)
    assert stats.chisquare(counts).pvalue > ALARM


# ------------------------------------------------------------------ the bound


def test_total_variation_of_a_message() -> None:
    for mechanism in MECHANISMS:
        width = 2.0 ** -CELL_BITS[mechanism]
        at_finest = total_variation(mechanism, 1, 2 * width, 1.0)
        assert at_finest == 2.0**-56 + 2.0**-52
        for dim in (0, 10_000, 1_000_000):
            coarse = total_variation(mechanism, dim, 2.0**-20, 1.0)
            assert coarse == pytest.approx(dim * (2.0**-56 + 2.0**-31 * width), rel=1e-14)
        assert total_variation(mechanism, 10**30, 0.5, 1.0) == 1.0
        # The cells follow the power of two below the scale.
        assert total_variation(mechanism, 1, 4 * width, 3.9) == at_finest


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("staircase", 1, 0.5, 1.0), "mechanism"),
        (("gaussian", -1, 0.5, 1.0), "dim"),
        (("gaussian", 1, 0.3, 1.0), "spacing"),
        (("gaussian", 1, 0.0, 1.0), "spacing"),
        (("gaussian", 1, math.nan, 1.0), "spacing"),
        (("gaussian", 1, 2.0**-38, 1.0), "finer"),
        (("laplace", 1, 2.0**-40, 1.0), "finer"),
        (("gaussian", 1, 0.5, 0.0), "scale"),
        (("gaussian", 1, 0.5, math.nan), "scale"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[Any, ...], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        total_variation(*arguments)
