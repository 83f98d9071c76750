"""The README as a package index shows it: it is short, links hold, commands and code run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.problems import minimize
from privet.server_apps.config import defaults
from privet.sim.engine import InlineGrid
from support.cli import privet
from support.paths import ROOT

TEXT = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = re.compile(
    r"https://(?:github|raw\.githubusercontent)\.com/flwr-privet/flwr-privet/"
    r"(?:(?:blob|tree)/)?main/([^#]*)(?:#(.*))?"
)


def blocks(language: str, text: str = TEXT) -> list[str]:
    """Return the fenced blocks of a language, the empty one for none."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [body for name, body in fenced if name == language]


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 150


def test_links_and_images_hold_on_a_package_index() -> None:
    links = re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", TEXT)
    assert len(links) > 20
    for link in (markdown or html for markdown, html in links):
        assert link.startswith("https://"), link
        if "/main/" not in link:
            continue
        found = OURS.fullmatch(link)
        assert found, link
        path, anchor = ROOT / found[1], found[2]
        assert path.exists(), link
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [h.lower().replace(" ", "-") for h in headings], link


def test_the_version_is_the_same_everywhere() -> None:
    version = PROJECT["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_counts_of_verdicts_are_those_of_the_results() -> None:
    last = (ROOT / "docs/results/index.md").read_text().rpartition("| **all** |")[2]
    reproduced, contradicted, open_, *_ = re.findall(r"\*\*(\d+)\*\*", last)
    said = f"{reproduced} entries were reproduced, {contradicted} contradicted, and {open_} cannot"
    assert said in TEXT
    page = (ROOT / "docs/which-algorithm.md").read_text()
    said = f"{reproduced} are *reproduced*, {contradicted} *contradicted*, {open_} *not determined*"
    assert said in page


def test_badges_say_what_the_package_says() -> None:
    versions = [c.rpartition(" :: ")[2] for c in PROJECT["classifiers"] if ":: 3." in c]
    assert f"Python {versions[0]}-{versions[-1]}" in TEXT
    (flower,) = (d for d in PROJECT["dependencies"] if d.startswith("flwr"))
    least, below = re.findall(r"1\.(\d+)", flower)
    assert f"Flower 1.{least}-1.{int(below) - 1}" in TEXT


def test_the_command_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (expected,) = (block for block in blocks("") if "test accuracy" in block)
    code, out, _ = privet("run", "num-server-rounds=40")
    assert code == 0
    assert set(expected.splitlines()) <= set(out.splitlines())


def test_the_strategy_in_place_of_fedavg_trains_the_model(capsys: Any) -> None:
    """The lines with a plus run, with the page's client; those with a minus are Flower's own."""
    (diff,) = blocks("diff")
    before, after = (
        "\n".join(line[1:] for line in diff.splitlines() if line[:1] != other) for other in "+-"
    )
    compile(before, "before", "exec")
    assert sum(line[:1] == "+" for line in diff.splitlines()) == 2
    names: dict[str, Any] = {}
    page = (ROOT / "docs" / "how-to" / "flower-project.md").read_text()
    exec(blocks("python", page)[0], names)
    exec(after, names)
    grid = InlineGrid(names["app"], 4)
    context = next(iter(grid.contexts.values()))
    names["server"](grid, context)
    found = np.array([float(text) for text in re.findall(r"-?\d+\.\d+", capsys.readouterr().out)])
    problems = [names["problem"](context) for context in grid.contexts.values()]
    assert np.allclose(found, minimize(problems).x, atol=0.05)


def test_keys_in_the_commands_exist() -> None:
    keys = set(re.findall(r"(?<![\w-])([a-z][a-z-]+)=[\w.\"]+", "".join(blocks(""))))
    assert keys >= {"local-epochs", "target-epsilon"}
    assert keys - {"key"} <= set(defaults())
