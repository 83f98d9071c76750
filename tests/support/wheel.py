"""The wheel as users get it, and fresh environments to install it into."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.paths import ROOT

ROOMS = (
    "core",
    "problems",
    "analyses",
    "kernel",
    "wire",
    "data",
    "agents",
    "rounds",
    "strategies",
    "client_apps",
    "server_apps",
    "sim",
    "cli",
    "testing",
)
LINKED = ("strategies", "client_apps", "server_apps", "sim")
"""Rooms whose folders stand at the root; in the package are links to them."""
NOT_PACKAGED = ("papers", "tests", "docs", "examples", "scripts")
APP = ("pyproject.toml", "README.md", "LICENSE", "flower_server.py", "flower_client.py")
"""Files of the Flower app that this repository is."""
PAPERS = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md")
FILES = (*APP, *PAPERS, "MANIFEST.in", "Makefile", "mkdocs.yml", "setup.py")


@dataclass(frozen=True, slots=True)
class Built:
    """A wheel and the copy of the sources it was built from."""

    wheel: Path
    source: Path


def run(
    *command: str | Path,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; another exit code than 0 fails the test with what it printed."""
    arguments = [str(part) for part in command]
    done = subprocess.run(
        arguments, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done


def build_wheel(base: Path) -> Built:
    """Build the wheel from the sdist, so that both are tested, in folders below `base`.

    The build reads a copy, so that leftovers of earlier builds cannot enter the wheel.
    """
    source, dist = base / "source", base / "dist"
    copy_sources(source)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source)
    (wheel,) = dist.glob("*.whl")
    return Built(wheel, source)


def copy_sources(target: Path) -> None:
    """Copy what a clone has, the links of the package as links."""
    target.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", *LINKED, *NOT_PACKAGED):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=ignore)
    for name in FILES:
        shutil.copy2(ROOT / name, target / name)


def uv() -> str | None:
    """Return uv, the one beside the running interpreter first."""
    own = Path(sysconfig.get_path("scripts")) / "uv"
    return str(own) if own.exists() else shutil.which("uv")


def clean_environ() -> dict[str, str]:
    """Return the environment without anything that points an interpreter to other packages."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


def bare_environment(folder: Path) -> Path:
    """Make an environment with nothing in it, and return its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    return folder / "bin" / "python"


def install(python: Path, *packages: str | Path, options: tuple[str, ...] = ()) -> None:
    """Install packages for another interpreter, with uv where there is one."""
    tool = uv()
    prefix = [tool, "pip"] if tool else [sys.executable, "-m", "pip"]
    run(*prefix, "install", "--quiet", "--python", python, *options, *packages, timeout=600.0)


def install_with_dependencies(python: Path, wheel: Path, *requirements: str) -> None:
    """Install a wheel, other requirements and all they declare, at the versions tests run with.

    With uv they come from its cache, where these versions are since this environment was made;
    the network is asked only for what is not there.
    """
    constraints = python.parents[1] / "constraints.txt"
    ours = f"flwr-privet @ {wheel.as_uri()}\n"
    constraints.write_text(ours + run(sys.executable, "-c", _FREEZE).stdout)
    options = ("--constraint", str(constraints), str(wheel))
    # uv does not read pip's settings.
    if links := os.environ.get("PIP_FIND_LINKS"):
        options = ("--find-links", links, *options)
    if uv() is None:
        install(python, *requirements, options=options)
        return
    try:
        install(python, *requirements, options=("--offline", *options))
    except AssertionError:
        install(python, *requirements, options=options)


_FREEZE = """
from importlib.metadata import distributions
for found in distributions():
    name = found.metadata["Name"]
    if name != "flwr-privet":
        print(f"{name}=={found.version}")
"""
