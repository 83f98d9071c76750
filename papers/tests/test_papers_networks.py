"""The suite of networks: one task of it by its command, and what its data and networks promise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from results import networks  # noqa: E402
from results.network_tasks import TASKS, accuracy, transformer  # noqa: E402
from support.paths import ROOT, data_file  # noqa: E402


def test_the_page_says_how_settings_are_tried_and_who_is_flowers_own() -> None:
    page = " ".join((ROOT / "docs/results/networks.md").read_text().split())
    assert f"{networks.TRIALS} settings are tried, and up to {networks.BOUND} where" in page
    *some, last = (
        name for name, one in networks.METHODS.items() if not one.protocol and not one.open
    )
    assert f"{', '.join(some)} and {last} are Flower's own" in page


@pytest.mark.parametrize(
    "methods",
    [
        pytest.param(["FedAvg", "FedAdam", "Fed-PLT, defaults"], id="three"),
        pytest.param(list(networks.METHODS), id="all", marks=pytest.mark.slow),
    ],
)
def test_one_task_is_tuned_played_and_written_by_the_command(
    methods: list[str], tmp_path: Path
) -> None:
    folder = data_file("mnist_20k.npz").parent
    shutil.copy(ROOT / "docs/results/networks.md", tmp_path)
    chosen = [word for method in methods for word in ("--method", method)]
    command = [str(tmp_path), str(folder), "--size", "quick", "--task", "adult", *chosen]
    networks.main(command)
    lines = (tmp_path / "networks.jsonl").read_text().splitlines()
    # Two processes may play the same run at once: a method's tuning and that of its defaults.
    keys = {json.dumps(json.loads(line)["run"], sort_keys=True) for line in lines}
    runs = [json.loads(key) for key in keys]
    for method in methods:
        made = networks.METHODS[method]
        own = [run for run in runs if run["method"] == method]
        tuning = [run for run in own if run["part"] == "validation"]
        seeds = len(networks.CONSTANT_SEEDS)
        least = 0 if made.open else networks.TRIALS
        most = 0 if made.open else networks.BOUND + seeds * len(networks.KAPPAS.get(method, (0,)))
        assert least <= len(tuning) <= most
        assert sorted(run["seed"] for run in own if run["part"] == "test") == [0, 1, 2]
        assert {run["seed"] for run in tuning} <= set(networks.CONSTANT_SEEDS)
    page = (tmp_path / "networks.md").read_text()
    assert all(f"| {method} | " in page for method in methods)
    adaptive = page.partition("<!-- begin adaptive -->")[2].partition("<!-- end adaptive -->")[0]
    for method in networks.ADAPTIVE:
        assert (f"| {method} | " in adaptive) is (method in methods)
    before = len(lines)
    networks.main(command)
    assert len((tmp_path / "networks.jsonl").read_text().splitlines()) == before


def test_a_task_that_is_left_out_has_the_constant_that_is_best_on_the_others() -> None:
    gains = {"a": (9.0, 0.0), "b": (-1.0, 2.0), "c": (1.0, 2.0)}
    assert list(networks.left_out(gains, (0.1, 0.3))) == [
        ["a", "+9.0, +0.0", "0.3", "+0.0"],
        ["b", "-1.0, +2.0", "0.1", "-1.0"],
        ["c", "+1.0, +2.0", "0.1", "+1.0"],
    ]


def test_no_example_is_held_out_and_trained_on_and_agents_differ_in_size() -> None:
    folder = data_file("adult-train.csv.gz").parent
    held = TASKS["adult"].agents(folder, 0)
    sizes = [len(labels) for _, labels in held.train]
    assert sum(sizes) + len(held.validation[1]) == 32_561
    assert (len(sizes), min(sizes)) == (15, 8)
    assert len(held.test[1]) == 16_281


def test_the_transformers_output_layer_is_its_embedding_and_the_rest_is_frozen() -> None:
    model = transformer(0, "quick")
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert trained == {"embedding.weight"} | {
        f"layers.0.{layer}.{matrix}" for layer in ("query", "value") for matrix in "ab"
    }
    assert model.head.weight is model.embedding.weight
    held = TASKS["lora"].agents(Path(), 0)
    assert held.digest
    assert accuracy(model, held.test) > 1.5 / 96  # it was trained before
