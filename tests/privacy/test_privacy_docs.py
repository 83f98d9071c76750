"""The page for data officers: its commands run and its SuperNode line arms the veto."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.testing import CliRunner

from privet.privacy import Veto
from privet.privacy.veto import KEYS
from privet.sim.cli.account import account_app
from support.paths import ROOT

PAGE = (ROOT / "docs" / "privacy.md").read_text()
BLOCKS = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
COMMANDS = [shlex.split(line) for line in BLOCKS.splitlines() if line.startswith("privet account")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_run(command: list[str]) -> None:
    result = CliRunner().invoke(account_app, command[2:])
    assert result.exit_code == 0, result.output


def test_all_algorithms_are_shown() -> None:
    assert {command[2] for command in COMMANDS} == {
        "fed-plt",
        "dp-iadmm",
        "fed-pdm",
        "gfl",
        "solve",
    }


def test_supernode_line_sets_every_key() -> None:
    from flwr.common.config import parse_config_args

    (line,) = (line for line in BLOCKS.splitlines() if line.startswith("flower-supernode"))
    words = shlex.split(line)
    config = parse_config_args([words[words.index("--node-config") + 1]])
    assert set(KEYS) <= set(config)
    veto = Veto.from_node_config(config)
    assert veto is not None
    assert veto.max_epsilon == config["max-epsilon"]
    for key in KEYS:
        assert f"| `{key}` |" in PAGE
