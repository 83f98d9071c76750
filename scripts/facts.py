"""Print measures of how many owners a fact has in this project, and of its size.

Product is what users install: the Python files of the package, and those of the Flower app. A file
names a run-config key where the key, or its spelling as an identifier, is a whole text outside
docstrings or an identifier; it spells a key or an algorithm's name where that is such a text. Only
keys of several words are counted as spelled: "seed" or "rho" may be any word. Circles are those of
all import statements, in functions and under ``TYPE_CHECKING`` too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from audited import print_audited

from privet.server_apps.config import table

PACKAGE = "src/privet/"
OF_ALGORITHMS = ("strategies/", "client_apps/")
REGISTRATIONS = ("Algorithm", "_of_this_library")
"""What makes an entry of the registry, its name first."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A Python file: its lines, syntax tree, texts outside docstrings, and identifiers."""

    lines: int
    tree: ast.Module
    texts: frozenset[str]
    identifiers: frozenset[str]

    @classmethod
    def of(cls, text: str) -> SourceFile:
        """Parse a file's text."""
        tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = {
            node.value
            for node in nodes
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in alone
        }
        identifiers = {
            name
            for node in nodes
            for field in ("id", "attr", "arg")
            if isinstance(name := getattr(node, field, None), str)
        }
        return cls(len(text.splitlines()), tree, frozenset(texts), frozenset(identifiers))

    def names_key(self, key: str) -> bool:
        """Return whether the file names a run-config key."""
        identifier = key.replace("-", "_")
        return key in self.texts or identifier in self.texts or identifier in self.identifiers


def python_files(root: Path) -> list[str]:
    """Return the paths of the Python files that git knows or would add, relative to the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return sorted({path for path in listed.stdout.splitlines() if (root / path).is_file()})


def algorithm_names(sources: Mapping[str, SourceFile]) -> set[str]:
    """Return the names under which the files register algorithms, as ``Algorithm(name, ...)``."""
    return {
        name.value
        for source in sources.values()
        for call in ast.walk(source.tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in REGISTRATIONS
        for name in [*call.args[:1], *(word.value for word in call.keywords if word.arg == "name")]
        if isinstance(name, ast.Constant) and isinstance(name.value, str)
    }


def imports(module: str, is_package: bool, tree: ast.Module) -> Iterator[tuple[str, str | None]]:
    """Yield what every import statement of a module names: a module, and what is taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            base = base[: len(base) - node.level + is_package] if node.level else []
            found = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((found, alias.name) for alias in node.names)


def import_circles(trees: Mapping[str, ast.Module], packages: set[str]) -> list[list[str]]:
    """Return the sets of modules that import each other, directly or through others.

    Parameters
    ----------
    trees : mapping of str to Module
        By the module's full name.
    packages : set of str
        Those modules that are an ``__init__``.
    """
    graph: dict[str, set[str]] = {}
    for module, tree in trees.items():
        edges = graph[module] = set()
        for found, taken in imports(module, module in packages, tree):
            inner = f"{found}.{taken}"
            edges |= {inner if inner in trees else found} & trees.keys()

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        front = [start]
        while front:
            new = graph[front.pop()] - seen
            seen |= new
            front += new
        return seen

    reach = {module: reachable(module) for module in graph}
    circles = {
        frozenset(other for other in reach[module] if module in reach[other]) for module in graph
    }
    return sorted(sorted(circle) for circle in circles if circle)


def main() -> int:
    """Print one line for each measure."""
    root = Path(__file__).resolve().parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["tool"]
    linked = [f"{path.name}/" for path in (root / PACKAGE).iterdir() if path.is_symlink()]
    app = {name.removeprefix("/") for name in project["flwr"]["app"]["fab-include"]}
    files = {path: SourceFile.of((root / path).read_text()) for path in python_files(root)}
    product = {
        path: source
        for path, source in files.items()
        if path in app or path.startswith((PACKAGE, *linked))
    }

    count = {key: sum(source.names_key(key) for source in product.values()) for key in table()}
    spelt = {
        key: sum(key in source.texts for source in product.values()) for key in count if "-" in key
    }
    names = algorithm_names(product)
    spelled = [path for path, source in product.items() if names & source.texts]
    elsewhere = [path for path in spelled if not path.startswith(OF_ALGORITHMS)]

    trees, packages = {}, set()
    for path, source in product.items():
        place = path.removesuffix(".py")
        module = place if path in app else f"privet/{place.removeprefix(PACKAGE)}"
        module = module.replace("/", ".")
        if path.endswith("/__init__.py"):
            module = module.removesuffix(".__init__")
            packages.add(module)
        trees[module] = source.tree
    circles = import_circles(trees, packages)

    print(f"run-config key rho: {count['rho']} product files")
    print(f"run-config keys: {sum(count.values()) / len(count):.1f} product files on average")
    print(f"run-config keys: {sum(spelt.values()) / len(spelt):.1f} of these files spell the key")
    print(
        f"names of {len(names)} algorithms: {len(spelled)} product files,"
        f" {len(elsewhere)} of them outside {' and '.join(OF_ALGORITHMS)}"
    )
    print(f"import circles: {len(circles)}", *(f"({' '.join(circle)})" for circle in circles))
    tests = {path: source for path, source in files.items() if path.startswith("tests/")}
    others = {path: files[path] for path in files.keys() - product.keys() - tests.keys()}
    for name, part in {"product": product, "tests": tests, "examples, scripts": others}.items():
        print(f"{name}: {sum(source.lines for source in part.values())} lines, {len(part)} files")
    print_audited(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
