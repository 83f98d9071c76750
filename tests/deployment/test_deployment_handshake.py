"""A SuperNode whose TLS handshake is cut: it lives and does nothing, unless it is made to end."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT
from support.processes import LONG, Deployment
from support.proxy import CuttableProxy
from support.tls import make_certificates

pytestmark = [pytest.mark.deployment, pytest.mark.slow]

WATCHED = (sys.executable, str(ROOT / "examples" / "operate" / "supernode.py"))
GIVES_UP = 60.0
"""Seconds in which a SuperNode notices that its link is cut; it calls every few seconds."""


def ended(deployment: Deployment, program: tuple[str, ...]) -> Any:
    """Return the exit status of a node whose handshakes are cut, None while it lives."""
    assert deployment.certificates is not None
    deployment.start_superlink()
    key = deployment.register("0")
    with CuttableProxy(deployment.port) as proxy:
        config = {"partition-id": 0, "num-partitions": 1}
        port = proxy.port
        node = deployment.start_node("0", config, superlink_port=port, key=key, program=program)
        deployment.wait_for_nodes()
        proxy.cut_handshakes()
        deadline = time.monotonic() + GIVES_UP
        while "handshake error" not in node.log.read_text():
            assert time.monotonic() < deadline, node.log.read_text()
            time.sleep(0.1)
        proxy.mend()
        # The link is whole again for all the time that follows.
        deadline = time.monotonic() + 15.0
        while node.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        return node.process.poll()


def test_flowers_own_supernode_lives_on_and_does_nothing(tmp_path: Path) -> None:
    """Why there is a wrapper: once this fails, Flower has mended it and the wrapper can go."""
    with Deployment(tmp_path, make_certificates(tmp_path)) as deployment:
        assert ended(deployment, ()) is None


def test_a_node_cut_in_its_first_handshake_is_started_again_and_trains(tmp_path: Path) -> None:
    with Deployment(tmp_path, make_certificates(tmp_path)) as deployment:
        deployment.start_superlink()
        key = deployment.register("0")
        with CuttableProxy(deployment.port) as proxy:
            proxy.cut_handshakes()
            config = {"partition-id": 0, "num-partitions": 1}
            node = deployment.start_node(
                "0", config, superlink_port=proxy.port, key=key, program=WATCHED
            )
            assert node.process.wait(LONG) == 1
            assert node.node_id() is None
            proxy.mend()
            deployment.restart_node("0")
            run = {"num-agents": 1, "min-agents": 1, "num-server-rounds": 1}
            assert deployment.submit(ROOT, {**run, "output-dir": str(tmp_path)}).wait().completed


def test_the_wrapper_ends_so_that_a_supervisor_starts_it_again(tmp_path: Path) -> None:
    with Deployment(tmp_path, make_certificates(tmp_path)) as deployment:
        assert ended(deployment, WATCHED) == 1
