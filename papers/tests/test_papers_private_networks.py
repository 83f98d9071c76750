"""Private networks: a cell of every method, the pages by their command, and the data's promises."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus", reason="needs the group torch")

from privet.kernel import gaussian_epsilon  # noqa: E402
from results import deep_private, opacus_fedavg  # noqa: E402
from results.deep_private import ADVICE, METHODS, TUNING, play  # noqa: E402
from results.network_tasks import loss_of  # noqa: E402
from results.private_tasks import REPORTED, TASKS, TUNED_ON  # noqa: E402
from support.paths import ROOT, data_file  # noqa: E402


@pytest.mark.parametrize("method", METHODS)
def test_a_cell_of_every_method_spends_its_epsilon(method: str) -> None:
    folder = data_file("adult-train.csv.gz").parent
    values = {"clip": 1.0, "step" if METHODS[method].update else "length": 1.0}
    run = {"size": "quick", "task": "adult", "method": method, "seed": 0, "values": values}
    done = play(folder, epsilon=2, **run)
    assert 0.0 < done["accuracy"] < 1.0
    if METHODS[method].make is not None:
        assert done["spent"] == pytest.approx(2.0, rel=1e-3)
    else:
        assert done["multiplier"] > 0


def test_opacus_has_the_noise_of_our_account() -> None:
    z = opacus_fedavg.multiplier(2.0, 1.0, 12)
    assert gaussian_epsilon(2.0 * 12**0.5 / z, opacus_fedavg.DELTA) == pytest.approx(2.0)


def test_opacus_clips_and_averages_full_batches() -> None:
    """Without noise a round of two equal agents is the mean of their clipped steps."""
    parts = [(torch.randn(6, 3), torch.randint(2, (6,))) for _ in range(2)]

    def make() -> torch.nn.Module:
        torch.manual_seed(1)
        return torch.nn.Linear(3, 2)

    clip, step, model = 0.3, 0.7, make()
    moved = [torch.zeros_like(one) for one in model.parameters()]
    for inputs, labels in parts:
        for one in range(6):
            model.zero_grad()
            loss_of(model, inputs[one : one + 1], labels[one : one + 1]).backward()
            gradients = [each.grad for each in model.parameters()]
            norm = float(sum((each**2).sum() for each in gradients)) ** 0.5
            for total, each in zip(moved, gradients, strict=True):
                total.sub_(each, alpha=step * min(1.0, clip / norm) / 12)
    expected = [a.detach() + b for a, b in zip(model.parameters(), moved, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opacus_fedavg, "multiplier", lambda *_: 0.0)
        found, _ = opacus_fedavg.trained(
            make, parts, 0, epsilon=1.0, rate=1.0, rounds=1, steps=1, clip=clip, step=step
        )
    for one, other in zip(found.values(), expected, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_the_command_tunes_plays_and_writes_both_pages(tmp_path: Path) -> None:
    folder = data_file("adult-train.csv.gz").parent
    for name in ("results/deep-private.md", ADVICE):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "docs" / name, tmp_path / name)
    (tmp_path / "images").mkdir()
    command = [str(tmp_path / "results"), str(folder), "--size", "quick", "--task", "adult"]
    methods = ["DP-FedSGD", "DP-FedAvg"]
    deep_private.main([*command, *(word for one in methods for word in ("--method", one))])
    file = tmp_path / "results" / "deep-private.jsonl"
    runs = [json.loads(line)["run"] for line in file.read_text().splitlines()]
    for method in methods:
        own = [run for run in runs if run["method"] == method]
        assert {run["epsilon"] for run in own if run["seed"] == TUNING} == {2}
        assert sorted(run["seed"] for run in own if run["seed"] != TUNING) == [0] * 4 + [1] * 4
    page = (tmp_path / "results/deep-private.md").read_text()
    assert all(f"| {method} | " in page for method in methods)
    assert "Size **quick**" in page
    before = page, file.read_text()
    deep_private.main([*command, "--write"])
    assert ((tmp_path / "results/deep-private.md").read_text(), file.read_text()) == before


def test_the_pages_are_those_of_their_runs(tmp_path: Path) -> None:
    names = ("results/deep-private.md", "results/deep-private.jsonl", ADVICE)
    (tmp_path / "images").mkdir()
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "docs" / name, tmp_path / name)
    deep_private.write(tmp_path / "results", "small")
    for name in names:
        assert (tmp_path / name).read_bytes() == (ROOT / "docs" / name).read_bytes()


@pytest.mark.parametrize("task", TASKS)
def test_settings_are_chosen_on_records_of_others(task: str) -> None:
    """Agents of a run, its test set and both sides of the search have no record in common."""
    folder = data_file("adult-train.csv.gz").parent
    work = TASKS[task]
    parts = [work.parts(folder, "quick", seed, seed == TUNING) for seed in (0, 1, TUNING)]
    assert all(len({len(labels) for _, labels in one.agents}) == 1 for one in parts)
    if task == "gru":
        assert not {*REPORTED} & {*TUNED_ON}
        return
    first, _, other = parts
    sets = [[x for x, _ in one.agents] for one in (first, other)]
    sets += [[one.looked_at[0]] for one in (first, other)]
    rows = [{one.numpy().tobytes() for part in each for one in part} for each in sets]
    doubles = sum(len(one & two) for i, one in enumerate(rows) for two in rows[:i])
    assert doubles < 0.01 * sum(map(len, rows))  # Adult has some rows twice
