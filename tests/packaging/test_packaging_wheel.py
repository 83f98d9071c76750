"""The built wheel, installed alone in a fresh environment, is what users get: test that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.paths import ROOT

ROOMS = (
    "problems",
    "privacy",
    "wire",
    "datasets",
    "strategies",
    "client_apps",
    "server_apps",
    "sim",
)
HEAVY = ("ray", "sklearn", "matplotlib", "dp_accounting", "scipy")

LOADED_BY = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@dataclass(frozen=True)
class Installed:
    """A wheel and the fresh environment it was installed into."""

    wheel: Path
    source: Path
    python: Path
    elsewhere: Path

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command in an empty folder, with nothing of the repository on any path."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        return _run(*command, cwd=self.elsewhere, env=env)

    def modules_loaded_by(self, *names: str) -> set[str]:
        """Return the top-level modules a new interpreter holds after importing `names`."""
        return set(json.loads(self.run(self.python, "-c", LOADED_BY, *names).stdout))


def _run(
    *command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    arguments = [str(part) for part in command]
    done = subprocess.run(
        arguments, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done


def _copy_sources(target: Path) -> None:
    """Copy what the build reads, so that leftovers of earlier builds cannot enter the wheel."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in (*ROOMS, "tests"):
        shutil.copytree(ROOT / name, target / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, target / name)


def _installer() -> list[str]:
    """Return the command prefix of an installer that can target another interpreter."""
    own = Path(sysconfig.get_path("scripts")) / "uv"
    uv = str(own) if own.exists() else shutil.which("uv")
    return [uv, "pip"] if uv else [sys.executable, "-m", "pip"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    base = tmp_path_factory.mktemp("wheel")
    source, dist, elsewhere = base / "source", base / "dist", base / "elsewhere"
    for folder in (source, elsewhere):
        folder.mkdir()
    _copy_sources(source)

    # Without --wheel, `build` makes the wheel from the unpacked sdist: both are tested.
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source)
    (wheel,) = dist.glob("*.whl")
    _run(sys.executable, "-m", "venv", "--without-pip", base / "venv")
    python = base / "venv" / "bin" / "python"
    _run(*_installer(), "install", "--quiet", "--no-deps", "--python", python, wheel)
    # The dependencies come from this environment. A path in a .pth file does not execute the .pth
    # files it finds there, so the editable install of the repository stays out of sight.
    own = sysconfig.get_path("purelib")
    site = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout
    Path(site.strip(), "dependencies.pth").write_text(own + "\n")
    return Installed(wheel, source, python, elsewhere)


def test_contents_are_the_rooms_and_nothing_else(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = archive.namelist()
    packaged = {name for name in names if ".dist-info/" not in name}
    expected = {
        f"privet/{path.relative_to(installed.source)}"
        for room in ROOMS
        for path in (installed.source / room).rglob("*")
        if path.suffix in {".py", ".toml"} or path.name == "py.typed"
    }
    assert packaged == expected
    assert {f"privet/{room}/py.typed" for room in ROOMS} <= packaged
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_every_room_imports_from_the_wheel(installed: Installed) -> None:
    script = (
        "import importlib, sys; print(*(importlib.import_module(n).__file__ for n in sys.argv[1:]))"
    )
    printed = installed.run(installed.python, "-c", script, *(f"privet.{room}" for room in ROOMS))
    files = [Path(name) for name in printed.stdout.split()]
    assert len(files) == len(ROOMS)
    assert all(file.is_relative_to(installed.python.parents[1]) for file in files)


def test_importing_the_rooms_loads_nothing_heavy(installed: Installed) -> None:
    loaded = installed.modules_loaded_by(*(f"privet.{room}" for room in ROOMS))
    assert loaded.isdisjoint(HEAVY), sorted(loaded & set(HEAVY))


def test_problems_needs_numpy_alone(installed: Installed) -> None:
    bare = installed.modules_loaded_by()
    added = installed.modules_loaded_by("privet.problems") - bare - set(sys.stdlib_module_names)
    assert added <= {"privet", "numpy"}, sorted(added)


def test_the_command_answers(installed: Installed) -> None:
    done = installed.run(installed.python.parent / "privet", "--help")
    assert "Usage" in done.stdout
    assert not done.stderr
