"""Refuse to build without the folders that `src/privet` links to; all else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup

LINKED = ("strategies", "client_apps", "server_apps", "sim")

lost = [f"src/privet/{name}" for name in LINKED if not Path("src/privet", name).is_dir()]
if lost:
    raise SystemExit(
        f"privet: {', '.join(lost)} must be links to folders, and these sources lost them, as some "
        "archives do: build from a clone made with core.symlinks, or from the sdist"
    )
setup()
