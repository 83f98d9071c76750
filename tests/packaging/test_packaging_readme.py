"""The README as a package index shows it: it is short, links hold, commands and code run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from numpy.typing import NDArray

from privet.core import RunError
from privet.problems import L2, BinaryLogistic, minimize
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
    assert len(TEXT.splitlines()) <= 159
    assert len(TEXT.split()) <= 1000


def test_it_begins_with_the_commands_of_a_checkout() -> None:
    first = blocks("")[0]
    assert TEXT.index(first) < TEXT.index("<picture>")
    clone, *commands = first.splitlines()
    assert clone.startswith("git clone https://github.com/flwr-privet/flwr-privet && cd ")
    said = [command.partition(" #") for command in commands]
    assert [command.split() for command, _, _ in said] == [["make", "run"], ["make", "test"]]
    assert all(re.search(r"\babout \d+ (s|minutes)\b", takes) for _, _, takes in said)
    for command, _, _ in said:
        target = command.split()[1]
        assert re.search(rf"^{target}: ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert first.partition("#")[0].rstrip() in (ROOT / "docs" / "index.md").read_text()


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
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## [{version}]" in changes
    _, highlights, _ = re.split("### Highlights|### Breaks", changes, maxsplit=2)
    assert len(highlights.split()) <= 700
    assert f"(changes/{version}.md)" in changes
    for page in (ROOT / "CHANGELOG.md", ROOT / "changes" / f"{version}.md"):
        for link in re.findall(r"\]\(((?!http)[^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), link


def test_pages_install_this_version() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*")]
    said = {
        found
        for page in pages
        if page.suffix in {".md", ".yml", ".yaml", ".toml", ".txt", ".service"}
        for found in re.findall(
            r"flwr[-_]privet(?:\[[a-z,]*\])?(?:[=~]=|-|:)(\d+\.\d+\.\d+)", page.read_text()
        )
    }
    assert said == {PROJECT["version"]}


def test_the_counts_of_verdicts_are_those_of_the_results() -> None:
    index = (ROOT / "docs/results/index.md").read_text()
    said = index.split("**")[1].rstrip(".")
    assert said.startswith("Of ")
    assert said in TEXT
    assert said in (ROOT / "docs/choose.md").read_text()


def test_badges_say_what_the_package_says() -> None:
    versions = [c.rpartition(" :: ")[2] for c in PROJECT["classifiers"] if ":: 3." in c]
    assert f"Python {versions[0]}-{versions[-1]}" in TEXT
    (flower,) = (d for d in PROJECT["dependencies"] if d.startswith("flwr"))
    least, below = re.findall(r"1\.(\d+)", flower)
    assert f"Flower 1.{least}-1.{int(below) - 1}" in TEXT


@pytest.mark.baselines
def test_the_command_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (expected,) = (block for block in blocks("") if "test accuracy" in block)
    code, out, _ = privet("run", "num-server-rounds=40")
    assert code == 0
    assert set(expected.splitlines()) <= set(out.splitlines())
    (distance,) = (line for line in out.splitlines() if line.startswith("distance to the"))
    assert float(distance.rpartition(" ")[2]) < 1e-6


FEDAVG = {
    "server.py": """\
import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=0.5)
    start = ArrayRecord({"x": Array(np.zeros(5))})
    result = strategy.start(grid, start, num_rounds=20)
    print(result.arrays["x"].numpy())
""",
    "client.py": """\
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    x = fit(message.content["arrays"]["x"].numpy(), *load(context))
    arrays, metrics = ArrayRecord({"x": Array(x)}), MetricRecord({"num-examples": 100})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
""",
}
"""An app as it is with FedAvg."""


def load(context: Context) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    rows = rng.standard_normal((100, 5))
    noise = rng.standard_normal(100)
    return rows, np.where(rows @ [1.0, -2.0, 0.0, 0.5, 0.0] + noise > 0, 1.0, -1.0)


def fit(x: NDArray[Any], rows: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    problem = BinaryLogistic(rows, labels, regularizer=L2(0.1))
    for _ in range(5):
        x = x - problem.gradient(x)
    return x


def patched(files: dict[str, str], diff: str) -> dict[str, str]:
    """Return files with the hunks of a diff, each of which has to fit exactly once."""
    found = dict(files)
    for part in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:]:
        name, _, hunks = part.partition("\n")
        for hunk in re.split(r"^@@\n", hunks, flags=re.MULTILINE):
            lines = hunk.splitlines(keepends=True)
            old, new = ("".join(line[1:] for line in lines if line[0] != other) for other in "+-")
            assert found[name].count(old) == 1, hunk
            found[name] = found[name].replace(old, new)
    return found


def played(files: dict[str, str], capsys: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the model that an app of four nodes prints, and the optimum of their data."""
    names: dict[str, Any] = {"load": load, "fit": fit}
    for text in files.values():
        exec(text, names)
    grid = InlineGrid(names["app"], 4)
    contexts = list(grid.contexts.values())
    names["server"](grid, contexts[0])
    found = [float(text) for text in re.findall(r"-?\d+\.\d+", capsys.readouterr().out)]
    problems = [BinaryLogistic(*load(context), regularizer=L2(0.1)) for context in contexts]
    return np.array(found), minimize(problems).x


def test_both_halves_in_place_of_fedavg_train_the_model(capsys: Any) -> None:
    """Flower's own app as the diff finds it runs, and so does what the diff makes of it."""
    (diff,) = blocks("diff")
    changed = patched(FEDAVG, diff)
    assert changed.keys() == FEDAVG.keys()
    assert all(changed[name] != FEDAVG[name] for name in FEDAVG)
    found, _ = played(FEDAVG, capsys)
    assert found.shape == (5,)
    found, optimum = played(changed, capsys)
    assert np.allclose(found, optimum, atol=0.05)
    with pytest.raises(RunError, match="this ClientApp is not Privet's"):
        played({**changed, "client.py": FEDAVG["client.py"]}, capsys)


def test_keys_in_the_commands_exist() -> None:
    keys = set(re.findall(r"(?<![\w-])([a-z][a-z-]+)=[\w.\"]+", "".join(blocks(""))))
    assert keys >= {"formula", "target-epsilon"}
    assert keys - {"key"} <= set(defaults())
