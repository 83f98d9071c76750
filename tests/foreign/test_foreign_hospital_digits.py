"""A Flower project of somebody else's: the wheel in a clean environment, ``flwr run``, accuracy."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT
from support.processes import Deployment
from support.wheel import Built, bare_environment, clean_environ, install_with_dependencies, run

# An environment of its own and `flwr run`: a minute for each model.
pytestmark = [pytest.mark.ray, pytest.mark.slow]

PROJECT = ROOT / "tests" / "foreign" / "hospital_digits"
ROUNDS = 20
HOSPITALS = 3

# What somebody would type is `flwr run .`; this also ends the SuperLink that the command leaves.
DRIVER = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from support.simulation import run_simulation
outcome = run_simulation(
    sys.argv[1], num_supernodes=10, run_config={{"model": sys.argv[2]}}, flwr_home=sys.argv[3]
)
sys.exit(f"{{outcome.status}} {{outcome.details}}" if not outcome.completed else 0)
"""


@dataclass(frozen=True, slots=True)
class Foreign:
    """The project's copy outside this repository and the environment it runs in."""

    folder: Path
    python: Path

    def accuracies(self, model: str) -> dict[str, float]:
        """Run the app in Flower's simulation and return each strategy's test accuracy."""
        home = self.folder.parent / f"flwr-{model}"
        arguments = [self.python, "-c", DRIVER, self.folder, model, home]
        done = run(*arguments, cwd=self.folder.parent, env=clean_environ(), timeout=300.0)
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert [entry["rounds"] for entry in found] == [ROUNDS] * 2, done.stdout[-3000:]
        return {entry["strategy"]: entry["accuracy"] for entry in found}


@pytest.fixture(scope="module")
def foreign(
    built: Built, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[tuple[str, ...]], Foreign]:
    """Return what installs the project's dependencies, and more, into an environment of its own."""

    def make(extra: tuple[str, ...]) -> Foreign:
        base = tmp_path_factory.mktemp("foreign")
        folder = base / "project"
        shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        python = bare_environment(base / "venv")
        install_with_dependencies(python, built.wheel, *project["dependencies"], *extra)
        return Foreign(folder, python)

    return make


def say(capsys: Any, model: str, found: dict[str, float], rounds: int = ROUNDS) -> None:
    """Print the accuracies also where pytest captures what passes."""
    with capsys.disabled():
        figures = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
        print(f"\nhospital-digits, {model}, test accuracy after {rounds} rounds: {figures}")


def test_scikit_learn_model(foreign: Callable[..., Foreign], capsys: Any) -> None:
    project = foreign(())
    where = "import privet.strategies as s; print(s.__file__)"
    file = run(project.python, "-c", where, cwd=project.folder, env=clean_environ()).stdout
    assert Path(file.strip()).is_relative_to(project.python.parents[1])
    found = project.accuracies("linear")
    say(capsys, "scikit-learn model", found)
    assert found["fed-plt"] >= found["fed-avg"] > 0.8
    assert found["fed-plt"] > 0.92


@pytest.mark.deployment
@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed: the PyTorch variant needs it",
)
def test_pytorch_model_with_its_own_loop(
    foreign: Callable[..., Foreign], capsys: Any, tmp_path: Path
) -> None:
    """Simulated with ten hospitals, and deployed with three."""
    project = foreign((f"torch=={version('torch')}",))
    found = project.accuracies("network")
    say(capsys, "PyTorch network", found)
    assert found["fed-plt"] > 0.9
    environ = clean_environ()
    environ["PATH"] = f"{project.python.parent}{os.pathsep}{environ['PATH']}"
    with Deployment(tmp_path, environment=environ) as deployment:
        deployment.start_superlink()
        for number in range(HOSPITALS):
            node = {"partition-id": number, "num-partitions": HOSPITALS}
            deployment.start_node(str(number), node)
        deployment.wait_for_nodes()
        config = {"model": "network", "num-hospitals": HOSPITALS, "num-rounds": 10}
        verdict = deployment.submit(project.folder, config).wait()
        assert verdict.completed, verdict.log[-3000:]
    lines = [json.loads(line) for line in verdict.log.splitlines() if line.startswith("{")]
    deployed = {line["strategy"]: line["accuracy"] for line in lines}
    say(capsys, "PyTorch network, three nodes", deployed, 10)
    assert deployed["fed-plt"] > 0.8
