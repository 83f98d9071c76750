"""The noised gradient of a clipped sum that the caller computed: its factor, bound and refusals."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest

from privet.kernel import (
    Facts,
    NoCertificateError,
    NoiseError,
    Perturber,
    Records,
    Relation,
    Release,
    SystemNoise,
)
from privet.kernel.door import Held
from privet.kernel.noise import Draws, Size
from privet.kernel.programs.gradients import Gradients

CLIP, DIM, DECLARED = 0.5, 3, 10


class Numbers:
    """The numbers of records that the kernel never sees."""

    dim, dtype = DIM, np.dtype("f8")

    def __init__(self, num_examples: int) -> None:
        self.num_examples = num_examples

    def value(self, x: Any) -> float:
        raise AssertionError

    def gradient(self, x: Any, rows: Any = None) -> Any:
        raise AssertionError


class Zeros:
    """Noise that shows what it was added to."""

    private = False

    def gaussian(self, size: Size, scale: float) -> Draws:
        return np.zeros(size)

    laplace = gaussian


def records(
    held: int,
    sensitivity: float,
    draws: int = 1,
    divisor: float = float(DECLARED),
    program: str = "gradients",
    relation: Relation = "replace-one",
) -> Records:
    facts = Facts(DECLARED, divisor, DIM)
    release = Release(
        "gaussian",
        scale=1.0,
        sensitivity=sensitivity,
        count=draws,
        program=program,
        relation=relation,
    )
    return Records(Held(Numbers(held)), Perturber(release, Zeros(), facts, given=True))


def program(unit: float) -> str:
    return "gradients" if unit == 1.0 else "iterate"


@pytest.mark.parametrize("held", [4, DECLARED])
@pytest.mark.parametrize("batch", [0, 1, 3, 7, 50])
@pytest.mark.parametrize("divisor", [10.0, 40.0])
@pytest.mark.parametrize("unit", [1.0, -0.25])
def test_it_is_the_estimate_of_a_gradient(
    held: int, batch: int, divisor: float, unit: float
) -> None:
    """Its mean over all batches is the clipped sum of the records that are held, over D."""
    rows = np.random.default_rng(1).normal(size=(held, DIM))
    rows *= CLIP / np.linalg.norm(rows, axis=1, keepdims=True)
    gradients = Gradients(batch, clip=CLIP)
    found = [
        records(held, 10.0, divisor=divisor, program=program(unit)).clipped_sum(
            gradients, rows[list(chosen)].sum(0), unit
        )
        for chosen in itertools.combinations(range(held), min(batch or held, held))
    ]
    assert np.allclose(np.mean(found, axis=0), rows.sum(0) / divisor, rtol=1e-12, atol=0)


@pytest.mark.parametrize("held", [4, DECLARED])
@pytest.mark.parametrize("batch", [0, 3, 7, 50])
@pytest.mark.parametrize(
    ("relation", "least"), [("replace-one", 2.0), ("add-remove", 1.0), ("replace-agent", None)]
)
def test_neighbours_are_no_further_apart_than_is_charged(
    held: int, batch: int, relation: Any, least: float | None
) -> None:
    """The worst are vectors on a line; one that is charged less than they are apart is refused."""
    size = min(batch or held, held)
    changed = size if least is None else 1
    gradients = Gradients(batch, clip=CLIP, relation=relation)
    facts = Facts(DECLARED, float(DECLARED), DIM)
    if relation == "add-remove" and 0 < batch < DECLARED:
        with pytest.raises(NoCertificateError, match="needs batch = 'full'"):
            records(held, 9.0, relation=relation).clipped_sum(gradients, np.zeros(DIM))
        return
    charged = gradients.sensitivity(facts)
    one, other = (np.full((size, DIM), CLIP / np.sqrt(DIM)) for _ in range(2))
    other[:changed] *= 0.0 if relation == "add-remove" else -1.0
    found = [
        records(held, charged, program=program(unit), relation=relation).clipped_sum(
            gradients, rows.sum(0), unit
        )
        for rows, unit in itertools.product((one, other), (1.0, -0.5))
    ]
    apart = [float(np.linalg.norm(found[0] - found[2])), float(np.linalg.norm(found[1] - found[3]))]
    assert max(apart) <= charged
    if held == DECLARED:
        assert min(apart) >= charged * (1.0 - 1e-5)
    with pytest.raises(NoiseError, match=r"a value moves by .* more than the"):
        records(held, charged * 0.999, relation=relation).clipped_sum(gradients, one.sum(0))


def test_the_unit_is_charged() -> None:
    bound = Facts(DECLARED, float(DECLARED), DIM).sensitivity(CLIP, relation="replace-one")
    gradients, total = Gradients(clip=CLIP), np.ones(DIM)
    records(DECLARED, 0.25 * bound, program="iterate").clipped_sum(gradients, total, -0.25)
    for unit in (-0.26, 1.0, np.nan, np.inf):
        with pytest.raises(NoiseError, match="a value moves by"):
            records(DECLARED, 0.25 * bound, program=program(unit)).clipped_sum(
                gradients, total, unit
            )
    for unit, other in ((1.0, "iterate"), (-0.25, "gradients"), (1.0, "drift")):
        with pytest.raises(NoiseError, match=f"'{other}' was charged"):
            records(DECLARED, bound, program=other).clipped_sum(gradients, total, unit)


def test_draws_are_counted_and_not_copied() -> None:
    gradients, total = Gradients(clip=CLIP), np.ones(DIM)
    opened = records(DECLARED, 1.0, draws=2)
    for _ in range(2):
        opened.clipped_sum(gradients, total)
        for copied in (copy.deepcopy, lambda held: copy.copy(held._noise)):
            with pytest.raises(NoiseError, match="the noise of a release is not copied"):
                copied(opened)
    with pytest.raises(NoiseError, match="more than the 2 draws"):
        opened.clipped_sum(gradients, total)
    with pytest.raises(NoiseError, match="more than the 2 draws"):
        copy.copy(opened).clipped_sum(gradients, total)


def test_what_is_no_sum_of_plain_numbers_is_refused() -> None:
    class Other(Gradients):
        pass

    class Rows(np.ndarray):  # type: ignore[type-arg]
        pass

    plain, total = Gradients(clip=CLIP), np.ones(DIM)
    for gradients, given, said in (
        (Other(clip=CLIP), total, "Other"),
        (plain, total.view(Rows), "an array of floats"),
        (plain, np.ones(DIM + 1), "has shape"),
        (plain, np.ones((2, DIM)), "has shape"),
    ):
        with pytest.raises(NoiseError, match=said):
            records(DECLARED, 1.0).clipped_sum(gradients, given)
    nothing = Perturber(Release("none"), SystemNoise(), Facts(DECLARED, float(DECLARED), DIM))
    with pytest.raises(NoiseError, match="program 'gradients' was asked for, '' was charged"):
        Records(Held(Numbers(DECLARED)), nothing).clipped_sum(plain, total)


def test_the_sum_that_was_given_stays_what_it_was() -> None:
    total = np.arange(3.0)
    records(DECLARED, 1.0).clipped_sum(Gradients(clip=CLIP), total)
    assert total.tolist() == [0.0, 1.0, 2.0]
