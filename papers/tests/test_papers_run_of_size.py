"""The run of size: its models are of the size that it says, and each method plays a tiny one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the group torch")

from benchmarks import run_of_size  # noqa: E402


def test_the_models_are_of_size() -> None:
    def counts(model: torch.nn.Module) -> tuple[int, int]:
        trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
        return sum(one.numel() for one in model.parameters()), trained

    with torch.device("meta"):
        every, trained = counts(run_of_size.resnet())
        assert every == trained == 11_172_810  # those of ResNet-18 for 32 x 32, of one channel
        every, trained = counts(run_of_size.lora())
    assert every > 100e6
    assert trained == 12 * 2 * 2 * 16 * 1024 + 96 * 1024


def test_the_pictures_are_scikit_learns_digits() -> None:
    held = run_of_size.digits()
    assert held.test[0].shape == (360, 1, 32, 32)
    assert len(held.train) == 8
    parts = [*held.train, held.validation, held.test]
    assert sum(len(labels) for _, labels in parts) == 1797
    assert {int(label) for _, labels in parts for label in labels} == set(range(10))


TINY = ["--device", "cpu", "--width", "8", "--rounds", "2", "--steps", "2", "--batch", "4"]


class Here:
    """A process that is none."""

    exitcode = 0

    def __init__(self, target: Any, args: Any) -> None:
        self.start, self.join = (lambda: target(*args)), (lambda: None)


@pytest.mark.parametrize("model", ["resnet", "lora"])
def test_every_method_plays_a_tiny_run(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows() -> list[list[str]]:
        found = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
        return [row for row in found if row[0] == f"| {model}"]

    monkeypatch.setattr(Here, "Process", Here, raising=False)
    monkeypatch.setattr(run_of_size.multiprocessing, "get_context", lambda kind: Here)
    run_of_size.main([str(tmp_path), "--models", model, *TINY])
    first = rows()
    assert [row[1:3] for row in first] == [[method, "2"] for method in run_of_size.METHODS]
    for method in run_of_size.METHODS:
        lines = (tmp_path / f"{model}-{method}-inline-0-cpu.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == [1, 2]
        assert 0 < json.loads(lines[-1])["accuracy"] < 1
    up = {
        json.loads(line)["up"]
        for method in ("FedAvg", "Fed-PLT")
        for line in (tmp_path / f"{model}-{method}-inline-0-cpu.messages.jsonl")
        .read_text()
        .splitlines()
    }
    assert 0 < max(up) < min(up) + 10_000
    run_of_size.main([str(tmp_path), "--models", model, *TINY])  # what is there is not played again
    assert rows() == first


@pytest.mark.slow
def test_a_run_has_a_process_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_of_size.main([str(tmp_path), "--models", "resnet", "--methods", "Fed-PLT", *TINY])
    assert "| resnet | Fed-PLT | 2 |" in capsys.readouterr().out
