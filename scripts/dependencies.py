"""Print a digest of what an installation of the project depends on.

These are the build system, the project's own table (with its dependencies, extras and commands),
the dependency groups and the packages of ``pyproject.toml``, and the script that installs them; not
the settings of tools nor of the Flower app. The standard library alone is used, for nothing else is
installed yet.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from pathlib import Path


def digest(pyproject: str, installer: bytes) -> str:
    """Return the digest, in hexadecimal, of the tables of a pyproject.toml and of an installer."""
    file = tomllib.loads(pyproject)
    owners = ("build-system", "project", "dependency-groups")
    tables = [*(file.get(name) for name in owners), file["tool"].get("setuptools")]
    made = hashlib.sha256(json.dumps(tables, sort_keys=True).encode())
    made.update(installer)
    return made.hexdigest()


if __name__ == "__main__":
    root = Path(__file__).resolve().parent.parent
    installer = (root / "scripts" / "venv.sh").read_bytes()
    sys.stdout.write(digest((root / "pyproject.toml").read_text(), installer) + "\n")
