"""Code on the pages: Python blocks run, commands of Privet run, keys of longer commands exist."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from privet import client_apps, sim
from privet.client_apps import LOCAL_KEYS
from privet.core.assignments import MORE
from privet.data.settings import DATA_KEYS
from privet.kernel.node_rules import KEYS, OF_NODES
from privet.server_apps.config import defaults
from privet.sim.engine import InlineGrid
from privet.wire import ENROL
from privet.wire.contract import CONTRACT_VERSION
from support.absent import hide
from support.cli import privet
from support.paths import PACKAGE, ROOT
from support.wheel import ROOMS, run

DOCS = ROOT / "docs"
FIRST = ("index", "tutorial", "choose", "fed-plt", "sparse-messages")
OURS = [DOCS / f"{name}.md" for name in FIRST]
OURS += sorted((DOCS / "how-to").glob("*.md"))
PAGES = sorted(DOCS.rglob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language; an empty one stands for no language."""
    fenced: list[tuple[str, str]] = re.findall(
        r"^```(\w*)\n(.*?)^```$", page.read_text(), re.S | re.M
    )
    return [text for name, text in fenced if name == language]


def title(page: Path) -> str:
    return str(page.relative_to(DOCS))


def run_of(page: Path) -> Any:
    """Return a page as a parameter; what loads Lightning and transformers is slow."""
    if page.stem != "own-loop":
        return pytest.param(page, id=title(page))
    others = pytest.mark.filterwarnings("ignore")
    return pytest.param(page, id=title(page), marks=[pytest.mark.slow, others])


@pytest.mark.parametrize("page", [run_of(p) for p in OURS if blocks(p, "python")])
def test_python_blocks_run_one_after_the_other(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.stem == "own-loop":
        for library in ("torch", "lightning", "transformers"):
            pytest.importorskip(library, reason="needs the group torch")
    elif page.stem != "own-data":
        # Nothing that they have the reader install brings it.
        hide(monkeypatch, "pandas")
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), names)


def test_the_page_on_own_data_takes_columns_by_their_names(tmp_path: Path) -> None:
    """A file in another order gives the same problem, and other texts are an error."""
    page = DOCS / "how-to" / "own-data.md"
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(blocks(page, "python")[0], str(page), "exec"), names)
    tables = {
        "a": "age,sodium,died\n70,135,yes\n30,140,no\n",
        "b": "died,note,sodium,age\nyes,x,135,70\nno,y,140,30\n",
        "coded": "age,sodium,died\n70,135,1\n30,140,0\n",
        "other": "age,kalium,died\n70,135,yes\n30,140,no\n",
    }
    made = {}
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
        context = SimpleNamespace(node_config={"table": str(tmp_path / name)})
        if name in ("coded", "other"):
            with pytest.raises(KeyError):
                names["problem"](context)
        else:
            made[name] = names["problem"](context)
    assert made["a"].features.tolist() == [[1.0, -1.0], [-1.0, 0.0]]
    assert made["a"].labels.tolist() == [1, -1]
    assert made["b"].features.tolist() == made["a"].features.tolist()
    grid = InlineGrid(names["app"], [{"table": str(tmp_path / "b")}])
    question = ConfigRecord({"contract": CONTRACT_VERSION, "protocol": "fed-plt", "experiment": ""})
    (answer,) = grid.send_and_receive([Message(RecordDict({"privet": question}), 1000, ENROL)])
    assert names["MEANING"] in str(answer.content["privet"]["encoding"])


def test_the_files_of_the_page_on_projects_make_an_app(tmp_path: Path) -> None:
    page = DOCS / "how-to" / "flower-project.md"
    project = tmp_path / "my-app"
    module = project / "my_app"
    module.mkdir(parents=True)
    (project / "pyproject.toml").write_text(blocks(page, "toml")[0])
    (module / "__init__.py").touch()
    for name, block in zip(("client", "server"), blocks(page, "python")[:2], strict=True):
        (module / f"{name}.py").write_text(block)
    run(Path(sys.executable).with_name("flwr"), "build", cwd=project)
    assert list(project.glob("*.fab"))


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_a_checkout_is_installed_editable(page: Path) -> None:
    """A copy of it in the environment would take the place of what `make venv` installed."""
    assert not re.findall(r"pip install ['\"]?\.(?=[\[\s'\"])", page.read_text())


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=title)
def test_python_blocks_import_what_exists(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("privet"):
                exec(ast.unparse(node))


@pytest.mark.parametrize("page", [p for p in OURS if blocks(p, "bash")], ids=title)
def test_commands_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; a shell only expands what they are given."""
    monkeypatch.chdir(tmp_path)
    for command in "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines():
        expanded = subprocess.run(
            ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, text=True, check=True
        )
        program, *arguments = expanded.stdout.rstrip("\0").split("\0")
        assert program == "privet"
        assert privet(*arguments).code == 0, command


def test_the_commands_of_the_page_on_databases_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the database that its code makes, whose table of predictions is then there."""
    monkeypatch.chdir(tmp_path)
    page = DOCS / "how-to" / "database.md"
    (code,) = blocks(page, "py")
    exec(compile(code, str(page), "exec"), {"__name__": "page"})
    for command in "".join(blocks(page, "")).splitlines():
        if command.startswith("privet "):
            arguments = [str(one) for word in shlex.split(command)[1:] for one in _globbed(word)]
            assert privet(*arguments).code == 0, command
    with closing(sqlite3.connect("records.db")) as records:
        found = records.execute("select id, prediction from risk").fetchall()
    assert [one for one, _ in found] == list(range(290, 300))


def _globbed(word: str) -> list[Any]:
    return list(Path().glob(word)) if "*" in word else [word]


def test_the_commands_of_the_page_on_studies_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, on the tables that it names, and on a file for each site."""
    monkeypatch.chdir(tmp_path)
    commands = "".join(blocks(DOCS / "how-to" / "multi-site-study.md", "")).replace("\\\n", " ")
    for old, new in re.findall(r"^cp (\S+) (\S+)$", commands, re.M):
        Path(new).write_text((ROOT / old).read_text())
    header, *rows = Path("study.csv").read_text().splitlines()
    assert header.startswith("site,")
    Path("sites").mkdir()
    for site in {row.partition(",")[0] for row in rows}:
        own = [row.partition(",")[2] for row in [header, *rows] if row.startswith(("site", site))]
        Path(f"sites/{site}.csv").write_text("\n".join(own) + "\n")
    public = '[columns]\nage = [0, 120]\nsex = ["F", "M"]\ndied = ["0", "1"]\n'
    Path("public.toml").write_text(public)
    Path("times.toml").write_text(public + "days = [0, 3650]\n")
    ours = [one for one in re.findall(r"^privet (.*)$", commands, re.M) if "/srv/" not in one]
    assert len(ours) == 19
    before: Path | str = ""
    for place, command in enumerate(ours):  # a folder each: names are of process and second
        whole = command.replace("runs/RUN", str(before))
        whole = whole.replace("RUN PATIENTS.csv", f"{before} survival.csv")
        folder = [] if whole.startswith("predict") else [f"output-dir={tmp_path / str(place)}"]
        assert privet(*shlex.split(whole), *folder).code == 0, whole
        before = next((tmp_path / str(place)).glob("*"), "")


@pytest.mark.parametrize("name", ["tutorial", "how-to/private-run", "how-to/budget", "how-to/csv"])
def test_the_private_example_is_that_of_the_readme(name: str) -> None:
    text = (ROOT / "README.md").read_text()
    example = re.search(r"^privet run (algorithm=.*target-epsilon.*)\n +(.*?)$", text, re.M)
    assert example is not None
    one, another = example.groups()
    page = " ".join((DOCS / f"{name}.md").read_text().split())
    assert f"privet run {one} {another}" in page


@pytest.mark.parametrize("page", OURS, ids=title)
def test_keys_in_the_commands_exist(page: Path) -> None:
    of_nodes = {*OF_NODES, *KEYS, *LOCAL_KEYS, *DATA_KEYS}
    of_flower = {"num-supernodes", "client-resources-num-cpus"}
    known = {*defaults(), *of_nodes, *of_flower, "table", MORE}
    for block in (*blocks(page, ""), *blocks(page, "bash")):
        text = re.sub(r"--config-|\$\([^)]*\)", "", block)
        keys = re.findall(r"(?<![\w-])([a-z][a-z-]+)=[\w.\"/$]+", text)
        assert set(keys) <= known, (page, set(keys) - known)


DOTTED = re.compile(r"\bprivet(?:\.\w+)+")
LINK = re.compile(r"https?://\S+|\w+://\S+")
RECORDS = {"privet.agent", "privet.forms", "privet.masks", "privet.private", "privet.privacy"}
RECORDS |= {"privet.sparse", "privet.state", "privet.encoding", "privet.answers", "privet.cohort"}
RECORDS |= {"privet.cycle", "privet.moves", "privet.sum", "privet.sums"}
RECORDS |= {"privet.arrays", "privet.bytes"}
RECORDS |= {"privet.algorithms", "privet.commands", "privet.datasets"}  # of entry points
"""Names of records in messages and states, and of entry points."""


def exists(name: str) -> bool:
    """Whether a dotted name is that of a module, or of something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            fields = getattr(found, "__dataclass_fields__", {})
            found = getattr(found, part, fields.get(part))
            if found is None:
                return False
        return True
    return False


def dotted_names(text: str) -> set[str]:
    return set(DOTTED.findall(LINK.sub("", text))) - RECORDS


TOLD_OLD = {DOCS / "how-to" / "migrate.md"}
"""The page whose left column has names of earlier versions."""


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_dotted_names_on_the_pages_exist(page: Path) -> None:
    if page in TOLD_OLD:
        return
    missing = sorted(name for name in dotted_names(page.read_text()) if not exists(name))
    assert not missing, (page, missing)


def test_dotted_names_in_docstrings_and_comments_exist() -> None:
    missing = {
        (str(path.relative_to(ROOT)), name)
        for room in ROOMS
        for path in (PACKAGE / room).resolve().rglob("*.py")
        for name in dotted_names(path.read_text())
        if not exists(name)
    }
    assert not missing


HOMES = dict.fromkeys(client_apps.__all__, "privet.client_apps")
HOMES |= dict.fromkeys(sim.__all__, "privet.sim")
HOMES["RayGrid"] = "privet.sim.ray.engine"


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_a_page_says_where_what_it_calls_is_imported_from(page: Path) -> None:
    text = page.read_text()
    called = set(re.findall(r"(?<![\w.])([A-Z]\w+)\(", text)) & HOMES.keys()
    assert not sorted(name for name in called if HOMES[name] not in text)
