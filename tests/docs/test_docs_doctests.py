"""The examples in the docstrings of every room."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from types import ModuleType

import numpy as np
import pytest

from support.wheel import ROOMS


def modules() -> list[str]:
    """Return the dotted names of all modules of all rooms, the programs left out."""
    found = []
    for room in ROOMS:
        package = importlib.import_module(f"privet.{room}")
        found.append(package.__name__)
        walked = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        found += [module.name for module in walked if not module.name.endswith("__main__")]
    return found


def examples_in(module: ModuleType) -> list[doctest.DocTest]:
    """Return the docstrings of a module that hold examples."""
    tests = doctest.DocTestFinder(exclude_empty=True).find(module)
    return [test for test in tests if test.examples]


NAMES = modules()
CHECKED = pytest.param("privet.testing.kit", marks=pytest.mark.slow)
"""Its example plays all promises of an algorithm, which tests of their own do too."""


@pytest.mark.parametrize("name", [CHECKED if n == CHECKED.values[0] else n for n in NAMES])
def test_examples_give_what_they_say(name: str) -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=flags, verbose=False)
    told: list[str] = []
    with np.printoptions(legacy=False):
        for test in examples_in(importlib.import_module(name)):
            runner.run(test, out=told.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(told)


def test_there_are_examples_to_run() -> None:
    counted = [name for name in NAMES if examples_in(importlib.import_module(name))]
    assert len(counted) >= 5
