"""What is public: the names that an ``__init__`` lists, which stand in ``public_names.txt``."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import griffe
import pytest

from support.paths import PACKAGE, ROOT
from support.public import packages, public_names

LISTED = Path(__file__).with_name("public_names.txt")
NOT_PUBLIC = "\nNot public: "
"""What the docstring of a package says that lists no names."""
BLOCK = re.compile(r"^([ \t]*)```(?:python|py)\b[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def test_the_list_is_whole() -> None:
    """Change the list with ``__all__``; a name that leaves it stands in docs/how-to/migrate.md."""
    assert LISTED.read_text().splitlines() == [".".join(each) for each in public_names()]


def test_every_public_name_is_there_with_a_docstring() -> None:
    whole = griffe.load("privet", search_paths=[PACKAGE.parent], resolve_aliases=True)
    for package, name in public_names():
        assert hasattr(import_module(package), name), f"{package}.{name}"
        found = whole[f"{package}.{name}".removeprefix("privet.")]
        assert found.has_docstring, f"{package}.{name} has no docstring"


@pytest.mark.parametrize("package", list(packages()))
def test_a_package_lists_names_or_says_that_it_is_not_public(package: str) -> None:
    module = import_module(package)
    says = NOT_PUBLIC in (module.__doc__ or "")
    assert says is not hasattr(module, "__all__")


def sources() -> Iterator[tuple[str, str]]:
    """Yield the Python code of pages, examples, templates and packages of others, by place."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for number, (_, code) in enumerate(BLOCK.findall(page.read_text())):
            yield f"{page.relative_to(ROOT)}#{number}", textwrap.dedent(code)
    outside = [path for path in (ROOT / "tests" / "foreign").iterdir() if path.is_dir()]
    for folder in (ROOT / "examples", PACKAGE / "cli" / "templates", *outside):
        for file in [*folder.rglob("*.py"), *folder.rglob("*.template")]:
            yield str(file.relative_to(ROOT)), file.read_text()
        for file in folder.rglob("*.ipynb"):
            cells = json.loads(file.read_text())["cells"]
            code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
            yield str(file.relative_to(ROOT)), "\n".join(code)


def imported(code: str) -> Iterator[tuple[str, str]]:
    """Yield a module of privet and a name for each that code imports; shell lines are left out."""
    lines = [line for line in code.splitlines() if not line.lstrip().startswith(("%", "!", ">>>"))]
    try:
        nodes = list(ast.walk(ast.parse("\n".join(lines))))
    except SyntaxError:  # a piece of a file: its import statements, where they are whole
        found = re.findall(r"^from privet[\w.]* import (?:\([^)]*\)|[^\n(]+)", code, re.MULTILINE)
        nodes = [node for each in found for node in ast.walk(ast.parse(each))]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and re.match(r"privet(\.|$)", node.module or ""):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if re.match(r"privet(\.|$)", a.name))


def test_pages_examples_templates_and_packages_of_others_import_public_names_alone() -> None:
    public = set(public_names()) | {(package, "") for package, _ in public_names()}
    used = {(place, each) for place, code in sources() for each in imported(code)}
    assert len(used) > 100
    assert not sorted((place, *each) for place, each in used if each not in public)
