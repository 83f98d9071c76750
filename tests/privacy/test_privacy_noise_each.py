"""Several sources drawn from together give what each gives alone, word for word."""

import numpy as np
import pytest

from privet.privacy import Facts, NoiseError, Release, SeededNoise, SystemNoise
from privet.privacy.noise import gaussian_each
from privet.privacy.perturb import Perturbers


@pytest.mark.parametrize("size", [1, 5, 700])
def test_draws_are_those_of_each_source_alone(size: int) -> None:
    """Also where draws need a second look, and in what the streams give afterwards."""
    count = 2000 // size + 60
    scales = np.geomspace(1e-3, 1e3, count)[:, None]
    together = [SeededNoise(7, agent) for agent in range(count)]
    alone = [SeededNoise(7, agent) for agent in range(count)]
    for _ in range(3):
        drawn = gaussian_each(together, size, scales)
        expected = [
            one.gaussian(size, float(s)) for one, s in zip(alone, scales[:, 0], strict=True)
        ]
        assert drawn.tobytes() == np.stack(expected).tobytes()


def test_scales_of_zero_and_sources_of_the_system() -> None:
    scales = np.array([[0.0], [2.0]])
    seeded = gaussian_each([SeededNoise(1, 0), SeededNoise(1, 1)], 3, scales)
    assert not seeded[0].any()
    assert np.array_equal(seeded[1], SeededNoise(1, 1).gaussian(3, 2.0))
    system = [gaussian_each([SystemNoise()] * 4, 5, np.ones((4, 1))) for _ in range(2)]
    assert len(np.unique(system)) == 40
    with pytest.raises(ValueError, match="noise scale"):
        gaussian_each([SeededNoise(1, 0)], 3, np.array([[-1.0]]))


def test_charged_noise_is_not_taken_together() -> None:
    facts = Facts(num_examples=4, divisor=4.0, dim=2)
    charged = Release("gaussian", scale=1.0, sensitivity=0.5, what="test")
    with pytest.raises(NoiseError, match="one agent at a time"):
        Perturbers(charged, list, facts)
    free = Perturbers(Release("none", what="test"), lambda: [SeededNoise(1, 0)], facts)
    assert free.repeatable
    with pytest.raises(NoiseError, match="laplace noise"):
        free.unaccounted(np.zeros((1, 2)), 1.0, "laplace")
    assert free.unaccounted(np.zeros((1, 2)), 1.0).any()
    assert free.repeatable
