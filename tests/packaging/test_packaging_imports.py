"""What importing a room costs: seconds, and packages that are imported only when used."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from support.paths import ROOT
from support.wheel import ROOMS

WHEN_USED = {
    "dp_accounting",
    "fastapi",
    "flwr_datasets",
    "httpcore",
    "matplotlib",
    "mkdocs",
    "networkx",
    "pandas",
    "pyarrow",
    "ray",
    "scipy",
    "sklearn",
    "torch",
    "uvicorn",
}
SECONDS = 2.0

MEASURE = """
import importlib, json, sys, time
began = time.process_time()
for name in sys.argv[1:]:
    importlib.import_module(name)
spent = time.process_time() - began
print(json.dumps([spent, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def imported(*names: str) -> tuple[float, set[str]]:
    """Return the processor's seconds of importing these in a new process, and what is loaded."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *names], capture_output=True, text=True, check=True
    )
    spent, loaded = json.loads(done.stdout)
    return spent, set(loaded)


def test_all_rooms_are_there_in_two_seconds_and_load_nothing_heavy() -> None:
    spent, loaded = imported(*(f"privet.{room}" for room in ROOMS))
    # Flower itself talks HTTP with httpcore; what it loads is not for the rooms to avoid.
    own = loaded - imported("flwr.app", "flwr.serverapp", "flwr.clientapp")[1]
    assert own.isdisjoint(WHEN_USED), sorted(own & WHEN_USED)
    assert loaded.isdisjoint(WHEN_USED - {"httpcore"})
    assert spent < SECONDS


def test_the_room_of_privacy_needs_neither_flower_nor_cryptography() -> None:
    _, loaded = imported("privet.kernel")
    assert loaded.isdisjoint(WHEN_USED | {"flwr", "cryptography"})


def test_the_lazy_names_are_there() -> None:
    _, loaded = imported("privet.agents.adapters", "privet.sim", "privet.sim.engine")
    assert loaded.isdisjoint({"torch", "sklearn", "ray"})
    _, loaded = imported("privet.sim.estimator")
    assert "sklearn" in loaded
    assert loaded.isdisjoint({"torch", "ray", "matplotlib"})


def test_a_message_of_a_deployed_agent_imports_numpy_and_this_library() -> None:
    """Flower starts a process for every message, so each pays for what it imports."""
    done = subprocess.run(
        [sys.executable, "-m", "support.one_message", "own"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
    )
    added = set(json.loads(done.stdout)["added"]) - sys.stdlib_module_names
    public = {name for name in added if not name.startswith("_")}
    assert "privet" in public
    assert public <= {"flower_client", "numpy", "privet", "threadpoolctl"}


COMMAND = """
import json, sys
from privet.cli.main import main
try:
    main(json.loads(sys.argv[1]))
except SystemExit as ended:
    assert not ended.code
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
MOST_MODULES = 420
"""That a command that only tells loads; half of them are Python's own."""


def loaded_by(*words: str) -> list[str]:
    """Return the modules that a command has loaded when it ends."""
    arguments = [sys.executable, "-c", COMMAND, json.dumps(words)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stderr.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "words",
    [["--help"], ["keys"], ["keys", "clip"], ["keys", "glm"], ["run", "--help"], ["new", "--help"]],
    ids=" ".join,
)
def test_a_command_that_only_tells_loads_no_numbers(words: list[str]) -> None:
    loaded = loaded_by(*words)
    assert not {name.partition(".")[0] for name in loaded} & {*WHEN_USED, "numpy", "flwr"}
    assert len(loaded) <= MOST_MODULES


def test_a_run_loads_what_draws_when_it_has_ended(tmp_path: Path) -> None:
    """Before round 1 of the default run there is none of what reads tables and draws."""
    began = (
        "import json, os, sys; from privet.rounds.flower.base import PrimalDualStrategy as S; "
        "S.play_round = lambda *_: (print(json.dumps(sorted(sys.modules)), flush=True), "
        "os._exit(0)); from privet.cli.main import main; main(['run', f'output-dir={sys.argv[1]}'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", began, str(tmp_path)], capture_output=True, text=True, check=True
    )
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "flwr" in loaded
    assert not {name.partition(".")[0] for name in loaded} & WHEN_USED
    assert len(loaded) <= 1_500


HALVES = {"Agent", "Server", "State"}
"""The parts of an algorithm, which bear these names in each algorithm's own files alone."""


def test_a_class_name_means_one_thing() -> None:
    places = defaultdict(set)
    for room in ROOMS:
        for path in (ROOT / "src" / "privet" / room).resolve().rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].add(path.relative_to(ROOT).as_posix())
    assert len(places) > 400
    several = {name: sorted(found) for name, found in places.items() if len(found) > 1}
    assert several.keys() == HALVES, several
    of_algorithms = ("strategies/", "client_apps/")
    assert all(path.startswith(of_algorithms) for name in HALVES for path in several[name])


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_imports_are_relative_within_a_room_and_absolute_across(room: str) -> None:
    folder = (ROOT / "src" / "privet" / room).resolve()
    wrong = []
    for path in folder.rglob("*.py"):
        if "templates" in path.parts:  # the code of apps that stand by themselves
            continue
        depth = len(path.relative_to(folder).parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                own = f"{node.module}.".startswith(f"privet.{room}.") if not node.level else False
                names = [f"{node.module}"] if own or node.level > depth else []
            elif isinstance(node, ast.Import):
                names = [each.name for each in node.names if each.name.startswith("privet.")]
            else:
                continue
            wrong += [f"{path.relative_to(ROOT)}:{node.lineno} {name}" for name in names]
    assert not wrong
