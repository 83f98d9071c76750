"""Every example runs as it stands and prints what it promises."""

from __future__ import annotations

import json
import os
import re
import runpy
import time
from pathlib import Path
from typing import Any

import pytest

from support.keeper import Processes, free_ports
from support.paths import ROOT

EXAMPLES = ROOT / "examples"
QUICKSTARTS = ("fed_plt.py", "dp_iadmm.py", "fed_pdm.py", "gfl.py")
WITH_TORCH = (
    "torch_batch_norm.py",
    "torch_cnn.py",
    "torch_private.py",
    "torch_tabular.py",
    "torch_text_lora.py",
)
OTHERS = (
    "bring_your_own_model.py",
    "compare_algorithms.py",
    "deploy_private.sh",
    "multi_site.py",
)


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: Any, capsys: Any) -> Any:
    """Return what runs an example in an empty folder and returns what it printed."""

    def play(name: str, *arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", [name, *arguments])
        if name in WITH_TORCH:
            pytest.importorskip("torch", reason="needs the group torch")
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return str(capsys.readouterr().out)

    return play


def numbers(pattern: str, text: str) -> list[float]:
    """Return the numbers that the pattern's group matches, in order."""
    return [float(found) for found in re.findall(pattern, text)]


def test_every_example_is_tested_and_quickstarts_are_short() -> None:
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".sh"}}
    assert names == {*QUICKSTARTS, *WITH_TORCH, *OTHERS}
    for name in QUICKSTARTS:
        assert len((EXAMPLES / name).read_text().splitlines()) <= 60, name


def test_fed_plt_reaches_the_pooled_optimum(printed: Any) -> None:
    text = printed("fed_plt.py")
    assert numbers(r"accuracy on all data: (\S+)", text)[0] > 0.95
    assert numbers(r"optimum of the pooled data: (\S+)", text)[0] < 1e-3


def test_dp_iadmm_pays_for_accuracy(printed: Any) -> None:
    text = printed("dp_iadmm.py")
    accuracies = numbers(r"test accuracy ([\d.]+)", text)
    totals = numbers(r"in total (\S+)", text)
    assert len(accuracies) == len(totals) == 3
    assert totals[0] == float("inf") > totals[1] > totals[2] > 0
    assert accuracies[0] > max(accuracies[1:])
    assert min(accuracies) > 0.5


def test_fed_pdm_saves_bytes(printed: Any) -> None:
    text = printed("fed_pdm.py")
    accuracy = dict(re.findall(r"^(\S+): test accuracy ([\d.]+)", text, re.MULTILINE))
    sent = dict(re.findall(r"^(\S+): .*, (\d+) bytes", text, re.MULTILINE))
    assert set(accuracy) == {"none", "top-k", "rand-k"}
    assert float(accuracy["none"]) > 0.9
    assert float(accuracy["rand-k"]) > 0.9
    assert float(accuracy["top-k"]) > 0.7
    assert max(int(sent["top-k"]), int(sent["rand-k"])) < 0.15 * int(sent["none"])


def test_gfl_noise_that_cancels_costs_the_centroid_little(printed: Any) -> None:
    found = dict(re.findall(r"^(\w+) noise: centroid (\S+) from", printed("gfl.py"), re.MULTILINE))
    assert set(found) == {"none", "random", "homomorphic"}
    assert float(found["none"]) < 0.1
    assert abs(float(found["homomorphic"]) - float(found["none"])) < 0.03


def test_own_model_reaches_the_pooled_optimum(printed: Any) -> None:
    text = printed("bring_your_own_model.py")
    assert numbers(r"optimum of the pooled data: (\S+)", text)[0] < 1e-5


def test_comparison_holds_what_its_tables_say(printed: Any, tmp_path: Path) -> None:
    text = printed("compare_algorithms.py")
    _, everyone, half, private, *_ = re.split(r"\n(?:everyone|half|private)\n", text)
    assert max(numbers(r"^fed-plt +\S+ +(\S+)", everyone.splitlines()[1])) < 1e-4
    assert len(re.findall(r"^fed-pdm +", half, re.MULTILINE)) == 1
    epsilons = [float(line.split()[-1]) for line in private.splitlines()[1:4]]
    assert epsilons == pytest.approx([8.0] * 3, abs=0.05)
    assert 'id="run-6-' in (tmp_path / "runs" / "compare.html").read_text()


@pytest.mark.slow
@pytest.mark.deployment
def test_deployment_with_tls_and_a_budget(tmp_path: Path) -> None:
    ports = dict(zip(("PORT", "NODE0_PORT", "NODE1_PORT"), map(str, free_ports(3)), strict=True))
    # How often SuperLink and SuperNodes look for an app to start; one second unasked.
    quick = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2", "OMP_NUM_THREADS": "1"}
    with Processes({**os.environ, **ports, **quick}) as processes:
        command = ["sh", str(EXAMPLES / "deploy_private.sh"), str(tmp_path)]
        done = processes.call(command, timeout=500.0)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        # Flower's launchers notice within seconds that what started them is gone.
        deadline = time.monotonic() + 120.0
        while processes.alive() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not processes.alive()
    folders = sorted((tmp_path / "runs").glob("*/"), key=lambda path: path.stat().st_mtime)
    private, plain = (json.loads((path / "summary.json").read_text()) for path in folders)
    assert (private["status"], private["private"]) == ("completed", True)
    assert (plain["status"], plain["private"]) == ("completed", False)
    history = (folders[1] / "history.jsonl").read_text()
    assert json.loads(history)["participants"] == ["0"]
    assert "refuses to train without clipping" in history
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 2


def test_a_cnn_beside_fed_avg(printed: Any, tmp_path: Path) -> None:
    found = numbers(r"accuracy (\S+) after", printed("torch_cnn.py"))
    assert len(found) == 2
    assert found[1] > found[0]
    assert "<svg" in (tmp_path / "torch_cnn.svg").read_text()


def test_private_networks_spend_what_they_are_given(printed: Any) -> None:
    arguments = ("--algorithm", "fed-pdm", "scaffold", "--gradients", "6", "--step-size", "2")
    lines = [json.loads(line) for line in printed("torch_private.py", *arguments).splitlines()]
    assert [line["algorithm"] for line in lines] == ["fed-pdm", "scaffold"]
    assert [line["rounds"] for line in lines] == [6, 2]
    for line in lines:
        assert line["epsilon"] == pytest.approx(16.0, rel=1e-3)
        assert line["accuracy"] > 0.2


def test_tables_with_categories(printed: Any) -> None:
    assert numbers(r"hospitals: (\S+)", printed("torch_tabular.py"))[0] > 0.88


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_lora_travels_alone(printed: Any) -> None:
    pytest.importorskip("peft", reason="needs the group torch")
    text = printed("torch_text_lora.py")
    sent, whole = map(int, re.findall(r"(\d+) of (\d+) weights", text)[0])
    assert sent < whole / 10
    assert numbers(r"accuracy (\S+)", text)[0] > 0.9


def test_statistics_of_batch_norm_are_each_devices_own(printed: Any) -> None:
    own, swapped = numbers(r"(0\.\d+)", printed("torch_batch_norm.py"))
    assert own > 0.9
    assert swapped < 0.6


def test_the_comparison_of_multi_site_fits_is_that_of_the_page(printed: Any) -> None:
    text = printed("multi_site.py")
    page = (ROOT / "docs" / "how-to" / "multi-site-study.md").read_text()
    assert text.count("below 1e-7") == 5
    assert text in page
