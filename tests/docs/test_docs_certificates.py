"""Certificates made as the pages say pass strict verification, which Python 3.13 does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.paths import ROOT
from support.tls import make_certificates, make_unit_certificates

DEPLOY = (ROOT / "docs" / "how-to" / "tls.md").read_text()
EXAMPLE = (ROOT / "examples" / "deploy_private.sh").read_text()
GRAPH = (ROOT / "docs" / "gfl-deployed.md").read_text()


def verify(folder: Path, authority: str, *certificates: str) -> None:
    """Let OpenSSL verify certificates by the rules of RFC 5280."""
    command = ["openssl", "verify", "-x509_strict", "-CAfile", authority, *certificates]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def run(script: str, folder: Path) -> None:
    """Run commands, keys cut down to 2048 bits, and servers and Flower's commands left out."""
    quick = re.sub(r"\b(4096|3072)\b", "2048", script)
    no_servers = "flower-superlink() { :; }; flwr() { :; }; set -eu\n"
    environ = {**os.environ, "FLWR_HOME": str(folder / "flwr"), "LINKS": ""}
    done = subprocess.run(
        ["bash", "-c", no_servers + quick],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def not_ignored(folder: Path) -> list[str]:
    """Return the files that git would offer to commit if the folder were a checkout."""
    shutil.copy2(ROOT / ".gitignore", folder)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    command = ["git", "ls-files", "--others", "--exclude-standard", "--exclude=/flwr/"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if name != ".gitignore"]


@pytest.mark.parametrize("text", [DEPLOY, EXAMPLE], ids=["page", "example"])
def test_of_the_coordinator(text: str, tmp_path: Path) -> None:
    (script,) = re.findall(
        r"^cat > certificate\.conf .*?-extensions server[^\n]*$", text, re.DOTALL | re.MULTILINE
    )
    run(script, tmp_path)
    verify(tmp_path, "ca.crt", "server.pem")
    for name in ("node0", "node1.pub", "state.db", "ledger.jsonl", "superlink.log"):
        (tmp_path / name).touch()
    assert not not_ignored(tmp_path)


def test_of_servers_of_a_graph(tmp_path: Path) -> None:
    scripts = [
        block for block in re.findall(r"^```\n(.*?)^```$", GRAPH, re.S | re.M) if "openssl" in block
    ]
    assert len(scripts) == 4
    run("".join(scripts), tmp_path)
    verify(tmp_path, "peer-ca.crt", *(f"unit-{unit}.pem" for unit in range(3)))
    for unit in range(3):
        verify(tmp_path / f"hospital-{unit}", "ca.crt", "link.pem")
    assert not not_ignored(tmp_path)


def test_of_the_tests(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    verify(tmp_path, made.authority.name, made.certificate.name)
    for unit in make_unit_certificates(tmp_path, ["0", "1"]).values():
        verify(tmp_path, unit.authority.name, unit.certificate.name)
