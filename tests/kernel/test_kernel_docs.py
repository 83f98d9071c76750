"""The pages on privacy: commands run, figures hold, the SuperNode line sets limits."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privet.cli.main import app
from privet.kernel import NodeRules, Release, total_variation
from privet.kernel.node_rules import KEYS, LIMITS
from privet.kernel.perturb import spacing
from privet.kernel.trust import make_key, peer_line, read_key, read_peers
from privet.kernel.ziggurat import Mechanism
from privet.sim.trusting import trusting_nodes
from support.paths import ROOT

PAGE = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("privacy", "privacy-proofs"))
BLOCKS = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
COMMANDS = [shlex.split(line) for line in BLOCKS.splitlines() if line.startswith("privet account")]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_run(command: list[str]) -> None:
    assert run(*command[1:])


def test_all_private_algorithms_are_shown_and_a_target() -> None:
    words = {word for command in COMMANDS for word in command}
    assert {f"algorithm={name}" for name in ("fed-plt", "dp-iadmm", "fed-pdm", "gfl")} <= words
    assert "target-epsilon=1" in words


@pytest.mark.parametrize(("updates", "epsilon"), [(1, "53.7"), (10, "339.6")])
def test_figures_beside_the_printed_ones(updates: int, epsilon: str) -> None:
    (command,) = (command for command in COMMANDS if "algorithm=dp-iadmm" in command)
    others = [word for word in command[1:] if not word.startswith("local-updates=")]
    said = run(*others, f"local-updates={updates}")
    assert f"{json.loads(said)['epsilon']:.1f}" == epsilon
    assert epsilon in PAGE


@pytest.mark.parametrize(
    ("mechanism", "dim", "equal", "most"),
    [
        ("gaussian", 10_000, "1.4e-13", "2.4e-12"),
        ("gaussian", 1_000_000, "1.4e-11", "2.4e-10"),
        ("laplace", 1_000_000, "1.8e-11", "2.4e-10"),
    ],
)
def test_bounds_of_the_sampler(mechanism: Mechanism, dim: int, equal: str, most: str) -> None:
    release = Release(mechanism, scale=1.0, norm="l1" if mechanism == "laplace" else "l2")
    bound = total_variation(mechanism, dim, spacing(release, dim), 1.0)
    assert 0.9 * float(equal) < bound <= float(equal)
    # The finest grid that is accepted, which noise far above the sensitivity leads to.
    cells = 37 if mechanism == "gaussian" else 39
    assert total_variation(mechanism, dim, 2.0**-cells, 1.0) <= float(most)
    assert equal in PAGE
    assert most in PAGE


def test_supernode_line_sets_the_limits() -> None:
    from flwr.common.config import parse_config_args

    (line,) = (line for line in BLOCKS.splitlines() if line.startswith("flower-supernode"))
    words = shlex.split(line)
    config = parse_config_args([words[words.index("--node-config") + 1]])
    assert set(LIMITS) <= set(config)
    rules = NodeRules.from_node_config(config)
    assert rules.limited
    assert rules.max_epsilon == config["max-epsilon"]
    assert not rules.allow_run_data
    for key in KEYS:
        assert f"| `{key}` |" in PAGE


def test_the_file_of_pinned_keys_is_read(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (config,) = trusting_nodes(tmp_path, ["me"], 1)
    peers = tmp_path / "peers.toml"
    peers.write_text(block)
    found = NodeRules.from_node_config(config).trust("me")
    assert found is not None
    assert {name: len(key) for name, key in found.peers.items()} == {"site-1": 32, "site-2": 32}
    # And a key is made, and the lines of the others are collected, as the page says.
    (tmp_path / "site-2.toml").write_text(f'"site-2" = "{own_line(tmp_path / "0.key")}"')
    make_key(tmp_path / "3.key")
    (tmp_path / "site-3.toml").write_text(f'"site-3" = "{own_line(tmp_path / "3.key")}"')
    peers.unlink()
    made, collected = (line for line in BLOCKS.splitlines() if line.startswith("privet pin"))
    for line in (made, collected):
        placed = line.replace("/etc/privet", str(tmp_path)).replace(" site-", f" {tmp_path}/site-")
        words = shlex.split(placed.replace(f"--agent {tmp_path}/", "--agent "), comments=True)
        assert run(*words[1:]).startswith('"site-1" = "MCowBQYDK2VwAyEA')
    config["trust-key"] = str(tmp_path / "sum.key")
    ours = NodeRules.from_node_config(config).trust("site-1")
    assert ours is not None
    assert ours.peers == {
        f"site-{number}": read_key(str(tmp_path / f"{place}.key")).public
        for number, place in ((2, 0), (3, 3))
    }


def own_line(key: Path) -> str:
    """Return the base64 of a key's public half, as openssl prints it."""
    words = ["openssl", "pkey", "-in", str(key), "-pubout"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[1]


def test_a_key_of_openssl_serves_and_one_of_another_kind_does_not(tmp_path: Path) -> None:
    for kind, usable in (("ED25519", True), ("X25519", False)):
        key = tmp_path / kind
        subprocess.run(["openssl", "genpkey", "-algorithm", kind, "-out", str(key)], check=True)
        key.chmod(0o600)
        if usable:
            line = peer_line("me", read_key(str(key)).public)
            assert line == f'"me" = "{own_line(key)}"\n'
        else:
            with pytest.raises(ValueError, match="not an Ed25519 private key: privet pin"):
                read_key(str(key))
            with pytest.raises(ValueError, match="key of me is not an Ed25519 public key"):
                read_peers(f'"me" = "{own_line(key)}"')
