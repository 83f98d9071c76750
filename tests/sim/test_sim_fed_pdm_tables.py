"""The runs behind the FedPDM tables: an identity on small data, and the figures on MNIST."""

from __future__ import annotations

import numpy as np
import pytest

from privet.problems import MultinomialLogistic
from privet.sim.experiments.fed_pdm import STEPS, Task, mnist, run, run_flower
from privet.sim.experiments.fed_pdm_tables import _settings, markdown, plain_lines, private
from privet.strategies import Balanced
from support.paths import data_file


@pytest.fixture(scope="module")
def task() -> Task:
    """Ten agents with data of their own direction."""
    rng = np.random.default_rng(1)
    true = rng.standard_normal((6, 3))
    problems = []
    for _ in range(10):
        features = rng.standard_normal((20, 6)).astype("f4")
        labels = (features @ (true + 0.3 * rng.standard_normal((6, 3)))).argmax(axis=1)
        problems.append(MultinomialLogistic(features, labels, 3))
    features = rng.standard_normal((500, 6)).astype("f4")
    return Task(tuple(problems), features, (features @ true).argmax(axis=1))


def test_memory_one_half_is_fed_sgd(task: Task) -> None:
    common = {"rounds": 10, "participation": Balanced(0.3)}
    pdm = run(task, "fed-pdm", **_settings("fed-pdm", "memory", 0.5, 0.8, {}), **common)
    sgd = run(task, "dp-fedsgd", **_settings("dp-fedsgd", "momentum", 0.0, 0.8, {}), **common)
    assert pdm.accuracies == sgd.accuracies
    assert pdm.rounds[-1] == 10
    assert pdm.final > 0.6


def test_every_private_run_costs_what_the_table_says(task: Task) -> None:
    lines = private(task, 3.0, 10, (0.5,), (1.0,))
    assert len(lines) == 6
    text = markdown("small", lines)
    assert text.count("\n| ") == 7
    for algorithm, knob, value in (("fed-pdm", "memory", 0.1), ("scaffold", "server_step_size", 1)):
        scale = 2.0 / 20 * (2 * value * 0.5 if algorithm == "fed-pdm" else 1.0)
        settings = _settings(algorithm, knob, value, 0.5, {})
        found = run(
            task,
            algorithm,
            rounds=10,
            participation=Balanced(0.3),
            clip=1.0,
            noise_scale=10 * scale,
            delta=1e-4,
            **settings,
        )
        reference = run(
            task,
            "dp-fedsgd",
            rounds=10,
            participation=Balanced(0.3),
            clip=1.0,
            noise_scale=10 * 2.0 / 20,
            delta=1e-4,
            max_local_steps=1,
        )
        assert found.epsilon == pytest.approx(reference.epsilon, rel=1e-9)


def test_flowers_own_strategy_counts_its_bytes(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    import privet.sim.experiments.fed_pdm as module

    monkeypatch.setattr(module, "AGENTS", 10)
    found = run_flower(task, "fed-avg", rounds=4, **{**STEPS, "batch_size": 5})
    rows = plain_lines({"FedAvg": found})
    assert rows[0]["bytes-up"] >= 4 * 3 * 4 * 18
    assert found.final > 0.4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("images", "settings", "expected"),
    [
        (100, {"rho": 1.0}, 0.899),
        (100, {"rho": 10.0}, 0.881),
        (600, {"rho": 10.0, "sparsifier": "rand-k", "alpha_u": 0.1}, 0.773),
        (600, {"rho": 10.0, "sparsifier": "top-k", "alpha_u": 0.5}, 0.868),
    ],
)
def test_accuracy_on_mnist(images: int, settings: dict[str, object], expected: float) -> None:
    task = mnist(str(data_file("mnist_20k.npz")), images)
    assert run(task, "fed-pdm", **STEPS, **settings).final == pytest.approx(expected, abs=0.02)
