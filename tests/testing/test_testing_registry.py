"""What every algorithm of this library has beside its two halves."""

from __future__ import annotations

import re

import pytest

import privet.strategies
from privet.core.registry import BUILT_IN, Algorithm
from support import recursions
from support.paths import ROOT

OURS = pytest.mark.parametrize("one", BUILT_IN, ids=lambda one: one.name)
ROWS = [
    line
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for line in page.read_text().splitlines()
    if line.startswith("|")
]


@OURS
def test_its_strategy_is_exported(one: Algorithm) -> None:
    strategy = one.load_strategy()
    assert strategy.__name__ in privet.strategies.__all__, "export it in strategies/__init__.py"
    assert getattr(privet.strategies, strategy.__name__) is strategy


@OURS
def test_a_table_of_the_documentation_names_it(one: Algorithm) -> None:
    assert any(f"`{one.name}`" in row for row in ROWS), f"give {one.name} a row in docs/rivals.md"


@OURS
def test_its_recursion_is_written_down_once_more(one: Algorithm) -> None:
    """And a test compares the two: somewhere in the tests of strategies it is called."""
    name = one.name.replace("-", "_")
    assert hasattr(recursions, name), f"write {name}() with loops in tests/support/recursions.py"
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "strategies").glob("*.py"))
    assert re.search(rf"\brecursions\.{name}\b", tests), f"no test calls recursions.{name}()"


@OURS
def test_it_can_be_tuned_where_others_say_how(one: Algorithm) -> None:
    """Once a Strategy says what ``privet tune`` searches, all of them do."""
    if any(other.load_strategy().search for other in BUILT_IN):
        assert one.load_strategy().search
