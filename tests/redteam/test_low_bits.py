"""What arithmetic does to noise must not tell neighbours apart: low bits, and large terms.

I. Mironov, "On significance of the least significant bits for differential privacy" (2012).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from scipy import stats

from privet.problems import L2, BinaryLogistic
from privet.sim.inline import app_of
from privet.strategies import DPFedSGD
from privet.testing.grids import WatchedGrid
from privet.wire.contract import read_update
from redteam.harness import DELTA, Node, releases
from support.audit import epsilon_lower_bound

Array = NDArray[Any]

ROWS, OWN = 200, 300
MESSAGES = 130
SCALE = 0.042
"""With clip 1 and 200 rows the sensitivity is .01, and one message costs about .88."""
BY_TWO: dict[str, dict[str, Any]] = {
    "dp-fedsgd": {},
    "scaffold": {},
    # Everything that follows the noise is a shift by zero or a factor that is a power of two, so
    # that the grid is still there in the upload: z = -(g + noise) / 2, and y = -(g + noise).
    "dp-iadmm": {"broadcast": {"rho": np.array(1.0)}},
    "fed-pdm": {"step_size_base": 0.5},
}
SLACK = 8.0


def with_record(present: bool, dtype: str) -> BinaryLogistic:
    """Two hundred rows, of which the last one alone has the last 300 features, or has none."""
    rows = np.zeros((ROWS, 2 + OWN), dtype)
    rows[:, :2] = np.random.default_rng(5).standard_normal((ROWS, 2))
    if present:
        rows[-1] = np.r_[0.0, 0.0, np.ones(OWN)]
    labels = np.where(np.arange(ROWS) % 2 == 0, 1.0, -1.0)
    return BinaryLogistic(rows, labels, regularizer=L2(0.05))


def uploads(name: str, present: bool, dtype: str, folder: Path) -> Array:
    """Return the record's 300 coordinates of every message, all sent at x = 0."""
    folder.mkdir()
    node = Node(folder, with_record(present, dtype), max_epsilon=1e3)
    found = []
    for _ in range(MESSAGES):
        answer = node.train(name, 0.0, noise_scale=SCALE, **BY_TWO[name])
        assert answer.upload is not None, answer.refusal
        found.append(answer.upload[2:])
    return np.array(found)


def finest(values: Array) -> Array:
    """Return the weight of the lowest set bit of each number, infinity of zero."""
    mantissas, exponents = np.frexp(values.astype(np.float64))
    whole = (mantissas * 2.0**53).astype(np.int64)
    lowest = (whole & -whole).astype(np.float64)
    return np.where(whole == 0, np.inf, np.ldexp(lowest, exponents - 53))


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float64") for name in BY_TWO), ("dp-fedsgd", "float32")]
)
def test_fine_bits_say_nothing_of_a_record(name: str, dtype: str, tmp_path: Path) -> None:
    """Without the record a small draw arrives with all its bits; beside a record's share it cannot.

    On the grid no number has a bit below the spacing D, and the last bits of the multiples of D
    are those of fair coins with the record and without: chi-square at a false alarm of 1e-8.
    """
    share = 1.0 / (ROWS * math.sqrt(OWN))
    threshold = np.spacing(np.dtype(dtype).type(share)) / 2
    spacing = min(2.0 / ROWS, SCALE) / 4096 / math.sqrt(2 + OWN) / SLACK
    sides = [uploads(name, present, dtype, tmp_path / str(present)) for present in (False, True)]
    fine = [int((finest(side) < threshold).any(axis=1).sum()) for side in sides]
    assert fine == [0, 0]
    grid = min(float(finest(side).min()) for side in sides)
    assert grid >= spacing
    for side in sides:
        counts = np.bincount((side.astype(np.float64) / grid).astype(np.int64).ravel() & 3)
        assert stats.chisquare(counts).pvalue > 1e-8


# ------------------------------------------------------------------ hidden steps


HIDDEN: dict[str, dict[str, Any]] = {
    # keep = 1 - step / rho is a power of two: half a unit of an earlier step would show as such.
    "half kept": {"step_size": 0.5, "rho": 1.0, "local_epochs": 2},
    "many steps": {"step_size": 0.1, "rho": 3.0, "local_epochs": 7},
    "best step": {"step_size": 0.0, "rho": 2.0, "local_epochs": 3},
}


@pytest.mark.parametrize("setting", HIDDEN)
def test_hidden_steps_leave_no_bit_behind(setting: str, tmp_path: Path) -> None:
    """Where the charge counts on steps that nobody sees, Fed-PLT sends multiples of the grid only.

    An iterate of which only the last noise is on the grid has the earlier draws in the bits below
    it, keep^j of each. The last bits of the multiples are fair coins, with a record or without:
    chi-square, a false alarm in one of five million runs of all settings together.
    """
    for present in (False, True):
        folder = tmp_path / str(present)
        folder.mkdir()
        node = Node(folder, with_record(present, "float64"), max_epsilon=1e6)
        settings = {**HIDDEN[setting], "noise_variance": 0.01, "row_norm": 1.0}
        found = []
        for _ in range(MESSAGES // 2):
            answer = node.train("fed-plt", 0.3, **settings)
            assert answer.upload is not None, answer.refusal
            found.append(answer.upload)
        (charged,) = {json.dumps(release) for release in releases(node)}
        release = json.loads(charged)
        assert release["steps"] == settings["local_epochs"]
        assert release["contraction"] < 1
        assert "count" not in release
        least = min(release["scale"], release["sensitivity"]) / 8192 / math.sqrt(node.dim)
        spacing = 2.0 ** math.floor(math.log2(least))
        multiples = np.array(found) / spacing
        np.testing.assert_array_equal(multiples, np.rint(multiples))
        for bits in (1, 2, 3):
            counts = np.bincount(multiples.astype(np.int64).ravel() & (2**bits - 1))
            assert counts.size == 2**bits
            assert stats.chisquare(counts).pvalue > 1e-8


def test_steps_that_are_released_are_not_on_the_grid(tmp_path: Path) -> None:
    """The test above can fail: a composed iterate has all its bits, public but for its noise."""
    node = Node(tmp_path, with_record(False, "float64"), max_epsilon=1e6)
    settings = {"step_size": 0.1, "smoothness": 2.0, "noise_variance": 0.01}
    answer = node.train("fed-plt", 0.3, **settings)
    assert answer.upload is not None
    assert "steps" not in releases(node)[0]
    release = releases(node)[0]
    least = min(release["scale"], release["sensitivity"]) / 8192 / math.sqrt(node.dim)
    multiples = answer.upload / 2.0 ** math.floor(math.log2(least))
    assert (multiples != np.rint(multiples)).mean() > 0.5


# ------------------------------------------------------------------ a large regulariser


EXAMPLES, WEIGHT, FAR = 5000, 1e6, 1e8
"""The regulariser's gradient is 1e14, where doubles are 2^-6 apart; the noise is a tenth of that,
and forty clipped records of five thousand add up to just more than half of it."""


def pushing(records: int) -> BinaryLogistic:
    """At x = 1e8, so many records have the gradient +1 and all others none."""
    labels = np.ones(EXAMPLES)
    labels[:records] = -1.0
    return BinaryLogistic(np.ones((EXAMPLES, 1)), labels, regularizer=L2(WEIGHT))


def test_a_large_regulariser_does_not_swallow_the_noise(tmp_path: Path) -> None:
    """A refusal, the same on both sides and for nothing, is as good."""
    unit = float(np.spacing(WEIGHT * FAR))
    assert 39 / EXAMPLES < unit / 2 < 40 / EXAMPLES
    scale = 4.2 * 2.0 / EXAMPLES
    sides, refusals, claim = [], set(), 0.0
    for records in (39, 40):
        folder = tmp_path / str(records)
        folder.mkdir()
        node = Node(folder, pushing(records), max_epsilon=1e3)
        answers = []
        for number in range(200):
            answer = node.train("dp-fedsgd", FAR, noise_scale=scale, experiment=f"e{number}")
            if answer.upload is None:
                assert node.written == b""
                refusals.add(answer.refusal)
                break
            answers.append(answer.upload[0])
            claim = claim or answer.epsilon
        sides.append(np.array(answers, np.float64))
    if refusals:
        assert len(refusals) == 1
        assert not any(side.size for side in sides)
        return
    assert set(sides[0]) & set(sides[1])
    assert epsilon_lower_bound(sides[0], sides[1], DELTA, confidence=1 - 1e-6) <= claim


@pytest.mark.parametrize("trial", range(3))
def test_the_end_model_alone_gives_the_noised_gradients_of_two_rounds_away(trial: int) -> None:
    """Why no account counts on the rounds being hidden from those who see the end model alone.

    x_1 = -eta D m_1 and x_2 = (1 - eta lam) x_1 - eta D m_2, with D m_k the noised gradients: whole
    numbers of less than 20 bits each, of which 53 bits of x_2 leave one pair. Amplification by
    iteration needs noise that has a density on the whole of x.
    """
    weight, step, spacing = 0.1234567, 0.31371, 2.0**-14
    data = BinaryLogistic(
        np.random.default_rng(trial).standard_normal((4, 1)),
        np.array([1.0, -1.0, 1.0, 1.0]),
        regularizer=L2(weight),
    )
    strategy = DPFedSGD(
        num_agents=1,
        clip=1.0,
        noise_scale=1.0,
        momentum=0.0,
        step_size_base=step,
        step_size_rule="constant",
    )
    grid = WatchedGrid(app_of("dp-fedsgd", [data]), [{"partition-id": 0}])
    start = ArrayRecord({"x": FlowerArray(np.zeros(1))})
    (end,) = strategy.start(grid, start, num_rounds=2, log_rounds=False).arrays["x"].numpy()
    sent = [
        read_update(one.reply.content, "dp-fedsgd", 1, number).arrays()["g"][0]
        for number, one in enumerate(grid.exchanges, 1)
        if one.reply is not None
    ]
    first = np.arange(-200_000, 200_001)
    second = -end / (step * spacing) - (1 - step * weight) * first
    away = np.abs(second - np.rint(second))
    place, next_best = np.argsort(away)[:2]
    assert away[place] < 1e-9
    assert away[next_best] > 1e-7
    assert spacing * first[place] == sent[0]
    assert spacing * np.rint(second[place]) == pytest.approx(
        sent[1] + step * weight * sent[0], rel=1e-12
    )
