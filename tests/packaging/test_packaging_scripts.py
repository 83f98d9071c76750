"""The scripts of the repository: when an environment is installed anew, and what is measured."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from support.paths import ROOT

PROJECT = """
[project]
name = "some"
dependencies = ["numpy>=1.26"]
[tool.setuptools]
packages = ["some.room"]
[tool.ruff]
line-length = 100
[tool.flwr.app.config]
seed = 0
"""


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("facts", ROOT / "scripts" / "facts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "facts", module)  # dataclasses look their module up
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def install(tmp_path: Path) -> Callable[..., list[str]]:
    """Return what installs, with a uv that writes down its calls and installs nothing."""
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "pyproject.toml").write_text(PROJECT)
    scripts, bin_folder = tmp_path / "scripts", tmp_path / "environment" / "bin"
    scripts.mkdir()
    for name in ("venv.sh", "dependencies.py"):
        shutil.copy2(ROOT / "scripts" / name, scripts)
    bin_folder.mkdir(parents=True)
    python = bin_folder / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in "-m pip"*) exit ${{NO_PIP:-0}};; "-m ensurepip"*) '
        f'echo "$@" >> "{tmp_path}/calls"; exit ${{NO_ENSUREPIP:-0}};; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    uv = tmp_path / "uv"
    uv.write_text(
        f'#!/bin/sh\ntest "$1" = --version && exit\necho "$@" >> "{tmp_path}/calls"\n'
        f'case "$*" in *${{REFUSED:-nothing}}*) exit 1; esac\n'
    )
    python.chmod(0o755)
    uv.chmod(0o755)
    stamps = [tmp_path / "first", tmp_path / "second"]

    def calls(project: str, extras: str = "dev", **environment: str) -> list[str]:
        (tmp_path / "pyproject.toml").write_text(project)
        command = ["scripts/venv.sh", "environment", extras, *map(str, stamps)]
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, **environment}
        subprocess.run(command, cwd=tmp_path, env=variables, check=True)
        assert stamps[0].read_text() == stamps[1].read_text() != ""
        return (tmp_path / "calls").read_text().splitlines()

    return calls


def test_an_environment_is_installed_anew_when_dependencies_change_only(
    tmp_path: Path, install: Callable[..., list[str]]
) -> None:
    assert len(install(PROJECT)) == 1
    assert len(install(PROJECT)) == 1
    other_settings = PROJECT.replace("100", "90").replace("seed = 0", "seed = 1")
    assert len(install(other_settings)) == 1
    assert len(install(PROJECT.replace("1.26", "2"))) == 2
    other = PROJECT.replace("1.26", "2").replace("some.room", "some.other")
    assert len(install(other)) == 3
    assert len(install(other + "[dependency-groups]\ntorch = ['torch']\n")) == 4
    (tmp_path / "papers" / "pyproject.toml").write_text(other)
    assert len(install(other)) == 5
    script = tmp_path / "scripts" / "venv.sh"
    script.write_text(script.read_text() + "# changed\n")
    assert len(install(other)) == 6


def test_development_has_torch_unless_it_cannot_be_had(
    install: Callable[..., list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    (only,) = install(PROJECT, "plots")
    assert "--group" not in only
    *_, with_torch = install(PROJECT.replace("1.26", "2"), "plots,dev")
    build = " torch==2.13.0+cpu" if sys.platform == "linux" else ""
    assert with_torch.endswith(f"papers{build} --group torch")
    assert "skipped" not in capfd.readouterr().err
    *_, refused, without = install(PROJECT, "plots,dev", REFUSED="torch")
    assert (refused, without) == (with_torch, with_torch.removesuffix(f"{build} --group torch"))
    assert "tests of PyTorch will be skipped" in capfd.readouterr().err


def test_an_environment_may_have_another_flower_and_leave_compiling(
    install: Callable[..., list[str]],
) -> None:
    everything, flower = install(PROJECT, FLOWER="1.41", COMPILE="no")
    assert "compile" not in everything
    assert flower.endswith("--no-deps flwr==1.41.*")
    *_, newest = install(PROJECT.replace("1.26", "2"))
    assert "--compile-bytecode" in newest


def test_an_environment_has_pip_which_the_pages_call(
    install: Callable[..., list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    """An environment of uv's has none, and `pip install` would be that of another Python."""
    (_,) = install(PROJECT)
    *_, bundled = install(PROJECT.replace("1.26", "2"), NO_PIP="1")
    assert bundled == "-m ensurepip --default-pip"
    *_, fetched = install(PROJECT, NO_PIP="1", NO_ENSUREPIP="1")
    assert fetched.startswith("pip install")
    assert fetched.endswith(" pip")
    assert capfd.readouterr().err == ""
    install(PROJECT.replace("1.26", "3"), NO_PIP="1", NO_ENSUREPIP="1", REFUSED="bytecode pip")
    assert "no pip in environment" in capfd.readouterr().err


def test_the_environment_has_no_gpu_libraries() -> None:
    """The plain wheel of PyTorch for Linux would bring gigabytes of them."""
    torch = pytest.importorskip("torch")
    assert torch.version.cuda is None


def test_circles_are_found_wherever_the_import_stands(facts: ModuleType) -> None:
    texts = {
        "p": "",
        "p.a": "if TYPE_CHECKING:\n    from p.b import B",
        "p.b": "def f():\n    from p import c",
        "p.c": "from .a import A",
        "p.d": "import p.e",
        "p.e": "from p.a import A",
        "p.inner": "from . import f",
        "p.inner.f": "from ..inner import g",
        "p.inner.g": "import p.inner.f, numpy",
    }
    trees = {name: ast.parse(text) for name, text in texts.items()}
    found = facts.import_circles(trees, {"p", "p.inner"})
    assert found == [["p.a", "p.b", "p.c"], ["p.inner.f", "p.inner.g"]]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('settings["step-size"]', True),
        ('getattr(half, "step_size")', True),
        ("half.step_size", True),
        ("f(step_size=1)", True),
        ("def f(step_size): ...", True),
        ('"""step-size"""', False),
        ('x = "the step-size of all"', False),
        ("# step_size\nstep_size_base = 1", False),
    ],
)
def test_where_a_key_is_named(facts: ModuleType, text: str, named: bool) -> None:
    assert facts.SourceFile.of(text).names_key("step-size") is named


def test_names_of_algorithms_are_those_registered(facts: ModuleType) -> None:
    text = 'ALL = (Algorithm("fed-x", "a:b"), Algorithm(name="fed-y"), Other("z"), Algorithm(w))'
    assert facts.algorithm_names({"registry.py": facts.SourceFile.of(text)}) == {"fed-x", "fed-y"}


def test_every_measure_has_its_line() -> None:
    command = [sys.executable, "scripts/facts.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    subjects = [line.partition(":")[0].split()[0] for line in lines]
    assert subjects == [
        "run-config",
        "run-config",
        "run-config",
        "names",
        "import",
        "product",
        "tests",
        "examples,",
        "what",
    ]
    assert "import circles: 0" in lines
