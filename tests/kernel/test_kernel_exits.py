"""What may leave a node beside its uploads."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from privet.core import ConfigError
from privet.kernel import BudgetRefused, NoiseError, Told
from privet.kernel.exits import Exits
from privet.kernel.told import OF_RELATION, told_by
from support.paths import PACKAGE

OPEN, QUIET = Exits(private=False, quiet=False), Exits(private=False, quiet=True)
CLOSED = Exits(private=True, quiet=True)
SECRET = "row 7 is 4.2"
ROOMS = ("kernel", "agents", "analyses", "client_apps", "data", "wire")


def test_a_private_node_sends_no_numbers() -> None:
    for exits in (OPEN, QUIET):
        exits.numbers(Told.EVALUATION)
    with pytest.raises(BudgetRefused, match=r"^declines evaluation: it would be an un-noised"):
        CLOSED.numbers(Told.EVALUATION)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(SECRET),
        KeyError(SECRET),
        NoiseError(SECRET),
        ConfigError(SECRET, told=SECRET),
        ConfigError(SECRET, told=str(Told.BATCH)),
        ConfigError(),
    ],
)
def test_a_quiet_node_sends_no_text_that_is_not_of_the_list(error: Exception) -> None:
    for exits in (QUIET, CLOSED):
        assert exits.line(error, SECRET, Told.WORK) is Told.WORK
    assert SECRET in OPEN.line(error, SECRET, Told.WORK)


def test_an_error_carries_its_text_as_its_own_or_beside_it() -> None:
    for error in (ConfigError(SECRET, told=Told.BATCH), NoiseError(SECRET, Told.BATCH)):
        assert CLOSED.line(error, str(error), Told.WORK) is Told.BATCH
        assert OPEN.line(error, str(error), Told.WORK) == SECRET
    assert told_by(BudgetRefused(Told.NO_CLIP)) is Told.NO_CLIP
    assert told_by(RuntimeError(SECRET)) is None


def test_an_error_without_a_text_has_its_name() -> None:
    assert OPEN.line(ValueError(), "", Told.WORK) == "ValueError"
    assert OPEN.line(KeyError("x"), "'x'", Told.WORK) == "KeyError: 'x'"


@pytest.mark.parametrize("told", Told)
def test_a_text_of_the_list_is_one_line_without_a_number(told: Told) -> None:
    assert told.isprintable()
    assert len(told) < 250
    # Settings and bounds that the text itself fixes, and functions of torch.
    rest = re.sub(r"1 to batch-size|dropouts > 0|batch of one", "", told)
    assert not re.search(r"\d", rest)
    assert not re.search(r"[{}%]", told)


def test_every_text_of_the_list_is_used_and_every_one_used_is_of_the_list() -> None:
    used = Counter[str]()
    for room in ROOMS:
        for path in (PACKAGE / room).rglob("*.py"):
            if path == PACKAGE / "kernel/told.py":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "Told":
                    used[node.attr] += 1
    used.update(told.name for told in OF_RELATION.values())
    assert used.keys() == set(Told.__members__)


def test_no_text_of_the_list_is_made_of_others() -> None:
    """A text is taken as it stands: put into another it would carry what that one says."""
    for room in ROOMS:
        for path in (PACKAGE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Told":
                    raise AssertionError(f"{path}: a text is looked up by what something else says")
