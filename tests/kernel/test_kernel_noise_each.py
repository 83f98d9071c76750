"""Several sources drawn from together give what each gives alone, word for word."""

import numpy as np
import pytest

from privet.kernel import Clipped, Facts, NoiseError, Perturber, Release, SeededNoise, SystemNoise
from privet.kernel.noise import draw_each
from privet.kernel.perturb import Perturbers
from privet.kernel.ziggurat import Mechanism


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("size", [1, 5, 700])
def test_draws_are_those_of_each_source_alone(size: int, mechanism: Mechanism) -> None:
    """Also where draws need a second look, and in what the streams give afterwards."""
    count = 2000 // size + 60
    scales = np.geomspace(1e-3, 1e3, count)[:, None]
    together = [SeededNoise(7, agent) for agent in range(count)]
    alone = [SeededNoise(7, agent) for agent in range(count)]
    for _ in range(3):
        drawn = draw_each(together, mechanism, size, scales)
        expected = [
            getattr(one, mechanism)(size, float(s))
            for one, s in zip(alone, scales[:, 0], strict=True)
        ]
        assert drawn.tobytes() == np.stack(expected).tobytes()


def test_scales_of_zero_and_sources_of_the_system() -> None:
    scales = np.array([[0.0], [2.0]])
    seeded = draw_each([SeededNoise(1, 0), SeededNoise(1, 1)], "gaussian", 3, scales)
    assert not seeded[0].any()
    assert np.array_equal(seeded[1], SeededNoise(1, 1).gaussian(3, 2.0))
    system = [draw_each([SystemNoise()] * 4, "laplace", 5, np.ones((4, 1))) for _ in range(2)]
    assert len(np.unique(system)) == 40
    with pytest.raises(ValueError, match="noise scale"):
        draw_each([SeededNoise(1, 0)], "gaussian", 3, np.array([[-1.0]]))


@pytest.mark.parametrize("seed", range(8))
def test_charged_noise_is_what_each_agent_takes_alone(seed: int) -> None:
    """Of either mechanism, in several uses or hidden steps, beside rows that are not finite."""
    rng = np.random.default_rng(seed)
    dim, agents = int(rng.integers(1, 9)), int(rng.integers(1, 40))
    laplace = seed % 2 == 0
    shape = {"count": int(rng.integers(1, 5))} if laplace or seed % 4 == 1 else {"steps": 3}
    release = Release(
        "laplace" if laplace else "gaussian",
        scale=float(rng.choice([1e-3, 1.0, 50.0])),
        sensitivity=0.5,
        norm="l1" if laplace else "l2",
        what="test",
        **shape,
    )
    facts = Facts(num_examples=4, divisor=4.0, dim=dim)
    together = Perturbers(
        release, agents, lambda: [SeededNoise(seed, one) for one in range(agents)], facts
    )
    alone = [Perturber(release, SeededNoise(seed, one), facts) for one in range(agents)]
    values = []
    for _ in range(release.draws):
        value = rng.standard_normal((agents, dim))
        value[rng.integers(agents), rng.integers(dim)] = rng.choice([np.nan, np.inf, 1e300])
        values.append(value)
    noised = [together.perturb(Clipped(value, 0.5, release.norm)) for value in values]
    for row, one in enumerate(alone):
        for value, found in zip(values, noised, strict=True):
            expected = one.perturb(Clipped(value[row], 0.5, release.norm))
            assert found[row].tobytes() == expected.tobytes()
        one.settle()
    together.settle()
    first = together.first()
    for value, found in zip(values, noised, strict=True):
        again = first.perturb(Clipped(value[0], 0.5, release.norm))
        assert again.tobytes() == found[0].tobytes()


def test_noise_of_several_agents_is_bound_to_what_was_charged() -> None:
    facts = Facts(num_examples=4, divisor=4.0, dim=2)
    release = Release("gaussian", scale=1.0, sensitivity=0.5, what="test")
    noise = Perturbers(release, 3, lambda: [SystemNoise()] * 3, facts)
    zero = np.zeros((3, 2))
    for clipped, why in (
        (Clipped(zero, 0.6, "l2"), "more than the 0.5"),
        (Clipped(zero, 0.5, "l1"), "in l1"),
        (Clipped(zero[:2], 0.5, "l2"), "expected \\(3, 2\\)"),
    ):
        with pytest.raises(NoiseError, match=why):
            noise.perturb(clipped)
    with pytest.raises(NoiseError, match="0 draws were taken, 1 charged"):
        noise.settle()
    with pytest.raises(NoiseError, match="in addition"):
        noise.unaccounted(zero, 1.0)
    # On a grid of 2^-15 two of six agree once in 8000 runs, and two pairs once in 1e8.
    assert len(np.unique(noise.perturb(Clipped(zero, 0.5, "l2")))) >= 5
    with pytest.raises(NoiseError, match="more than the 1 draws"):
        noise.perturb(Clipped(zero, 0.5, "l2"))


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_noise_that_nothing_is_charged_for_can_be_had_again_by_the_first(mechanism: str) -> None:
    facts = Facts(num_examples=4, divisor=4.0, dim=2)
    free = Perturbers(Release("none", what="test"), 2, lambda: [SystemNoise()] * 2, facts)
    with pytest.raises(NoiseError, match="not charged"):
        free.perturb(Clipped(np.zeros((2, 2)), 0.5, "l2"))
    drawn = free.unaccounted(np.zeros((2, 2)), np.array([[1.0], [3.0]]), mechanism)
    assert len(np.unique(drawn)) == 4
    again = free.first().unaccounted(np.zeros(2), 1.0, mechanism)
    assert again.tobytes() == drawn[0].tobytes()
