"""Algorithms of other packages: one that cannot be used costs its own runs only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from privet.core import ConfigError, algorithm, algorithms
from privet.server_apps import read_config
from privet.server_apps.config import table
from support.outside import installed

PYPROJECT = """
[project]
name = "{name}"
version = "1"
[project.entry-points."privet.algorithms"]
{name} = "{module}:ALGORITHM"
"""
REGISTERS = """
from privet.core import Algorithm
ALGORITHM = Algorithm("{name}", "{module}.halves:Own", "{module}.halves:Agent")
"""
HALVES = """
from dataclasses import dataclass
from privet.client_apps.rivals.led import Agent as Led
from privet.strategies import LED
from privet.core.key import setting

@dataclass(frozen=True)
class Agent(Led):
    probability: float = setting(0.5, "of a coin of its own", low=0, high=1)

class Own(LED):
    settings = (Agent,)
"""


@pytest.fixture
def package(tmp_path: Path) -> Callable[[str, str, str], Path]:
    def write(name: str, init: str, halves: str = "") -> Path:
        module = name.replace("-", "_")
        folder = tmp_path / module / module
        folder.mkdir(parents=True)
        (folder.parent / "pyproject.toml").write_text(PYPROJECT.format(name=name, module=module))
        (folder / "__init__.py").write_text(init.format(name=name, module=module))
        (folder / "halves.py").write_text(halves)
        return folder.parent

    return write


def test_a_package_that_cannot_be_imported(
    package: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), installed(package("torn", "import no_such_module")):
        assert "torn" not in algorithms()
        assert read_config({"algorithm": "led"})["algorithm"] == "led"
        with pytest.raises(ConfigError, match=r"'torn': torn:ALGORITHM .*no_such_module") as error:
            algorithm("torn")
    assert "\n" not in str(error.value)
    assert sum("torn is left out" in line for line in caplog.messages) == 1
    assert "torn" not in algorithms()


@pytest.mark.parametrize("made", ["ALGORITHM = 'led'", "def ALGORITHM(): ..."])
def test_an_entry_point_that_is_no_algorithm(package: Callable[..., Path], made: str) -> None:
    with installed(package("odd", made)):
        assert "odd" not in algorithms()
        assert read_config({"algorithm": "led"})["algorithm"] == "led"
        with pytest.raises(ConfigError, match=r"'odd': odd:ALGORITHM is of type \w+, not an Alg"):
            algorithm("odd")


def test_a_torn_package_of_the_name_of_one_that_is_there(package: Callable[..., Path]) -> None:
    with installed(package("led", "import no_such_module")):
        assert algorithm("led").agent == "privet.client_apps.rivals.led:Agent"


def test_halves_that_cannot_be_imported(package: Callable[..., Path]) -> None:
    with installed(package("half-torn", REGISTERS, "raise KeyError('gone')")):
        assert "rho" in table()
        with pytest.raises(ConfigError, match=r"halves:Own cannot be imported: KeyError: 'gone'"):
            read_config({"algorithm": "half-torn"})


def test_a_key_of_every_run_with_another_meaning(package: Callable[..., Path]) -> None:
    with installed(package("coin", REGISTERS, HALVES)):
        assert table()["probability"].owners.keys() == {""}
        with pytest.raises(ConfigError, match="probability: already a key of every run: give coin"):
            read_config({"algorithm": "coin"})
