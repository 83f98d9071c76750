"""Print a digest of what an installation of the project depends on.

These are the build system, the project's own table (with its dependencies, extras and commands),
the dependency groups and the packages of ``pyproject.toml`` here and in ``papers/``, and the script
that installs them; not the settings of tools nor of the Flower app. The standard library alone is
used, for nothing else is installed yet.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path


def digest(pyprojects: Iterable[str], installer: bytes) -> str:
    """Return the digest, in hexadecimal, of tables of pyproject.toml files and of an installer."""
    owners = ("build-system", "project", "dependency-groups")
    tables = []
    for file in map(tomllib.loads, pyprojects):
        tables += [*(file.get(name) for name in owners), file["tool"].get("setuptools")]
    made = hashlib.sha256(json.dumps(tables, sort_keys=True).encode())
    made.update(installer)
    return made.hexdigest()


if __name__ == "__main__":
    root = Path(__file__).resolve().parent.parent
    files = [(folder / "pyproject.toml").read_text() for folder in (root, root / "papers")]
    installer = (root / "scripts" / "venv.sh").read_bytes()
    sys.stdout.write(digest(files, installer) + "\n")
