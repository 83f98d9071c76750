"""Claims have commands, and what is kept for machines is what the commands give."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import tomllib
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from privet.cli.main import main
from results.kept_cases import kept
from studies import Options
from studies.catalogue import NIGHT, PAPERS, chosen, names
from studies.pages import judged, row_line, summary

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
with (RESULTS / "claims.csv").open() as _file:
    CLAIMS = list(csv.DictReader(_file))
NUMBER = re.compile(r"(?<![\w.-])(?:\d+(?:\.\d+)?|\.\d+)(?:e-?\d+)?(?![\w-])")


def results_in(text: str) -> set[str]:
    """Return the numbers of a text, without commands, addresses, code and names of versions."""
    parts = re.split(r"^```.*\n", text, flags=re.M)  # every second one is a block
    kept = [part for place, part in enumerate(parts) if place % 2 == 0 or "test accuracy" in part]
    said = "".join(kept).replace("Apache-2.0", "").replace("0.x", "")
    for noise in (r"<[^>]*>", r"!\[[^\]]*\]\([^)]*\)", r"\]\([^)]*\)", r"`[^`\n]*`"):
        said = re.sub(noise, "", said, flags=re.S)
    return set(NUMBER.findall(said))


def test_every_number_of_the_readme_has_its_line() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split("\n> "))
    counts = summary(RESULTS)
    assert counts in readme, "the row of counts by kind is about this sentence"
    own = [line for line in CLAIMS if line["page"] == "README.md"]
    known = {number for line in own for number in line["numbers"].split()}
    found = results_in((ROOT / "README.md").read_text().replace("\n> ", " ").replace(counts, ""))
    assert {"0.9737", "7.12"} <= found
    assert found <= known, f"no command for {sorted(found - known)}"
    assert {number for number in known if number[0].isdigit() or number[0] == "."} <= found


def test_every_page_of_results_has_its_row_and_every_row_its_command() -> None:
    pages = {line["page"] for line in CLAIMS}
    assert {f"docs/results/{page.name}" for page in RESULTS.glob("*.md")} <= pages
    assert all((ROOT / page).is_file() for page in pages)
    for line in CLAIMS:
        assert all(line.values()), line
        command = line["command"]
        if module := re.search(r"-m (results\.\w+)", command):
            assert find_spec(module[1]), command
        if studies := re.match(r"privet reproduce ((?:[a-z][\w./-]* ?)+)", command):
            for one in studies[1].split():
                assert one == "all" or any(name.startswith(one) for name in names()), command


def test_counterexamples_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["errata", "all", "--json"])
    assert capsys.readouterr().out == (RESULTS / "errata.jsonl").read_text()


@pytest.mark.parametrize("paper", PAPERS)
def test_the_rows_of_a_paper_follow_from_the_kept_cases(paper: str) -> None:
    found: dict[str, dict[str, list[Any]]] = {}
    for run in kept(RESULTS / f"{paper}-cases.jsonl"):
        results = found.setdefault(run["study"], {}).setdefault(run["case"], [])
        assert run["seed"] == len(results) or run["study"].endswith("/theorems")
        results.append(run["result"])
    assert set(found) == {one.name for one in chosen([paper])}
    for name, results in found.items():
        (study,) = chosen([name])
        cases = Counter(case.label for case in study.cases(Options(data_path=RESULTS)))
        assert {label: len(own) for label, own in results.items()} == cases
        rows = study.judge(results, Options()).rows
        text = json.loads((RESULTS / f"{name.replace('/', '-')}.json").read_text())
        assert [row_line(name, row) | {"judged": judged(row)} for row in rows] == text["entries"]


def test_the_lock_meets_what_the_project_asks() -> None:
    lock = dict(
        line.lower().replace("_", "-").split("==")
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in project["dependencies"]:
        asked = Requirement(text)
        assert asked.specifier.contains(lock[asked.name.lower()]), text


@pytest.mark.parametrize("script", ["night.sh", "processor.sh"])
def test_scripts_are_shell(script: str) -> None:
    subprocess.run(["sh", "-n", ROOT / "scripts" / script], check=True)


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return import_module("claims")


def test_a_claims_number_is_one_that_was_printed_rounded(claims: Any) -> None:
    claim = {"numbers": "0.9825 2.316e-07 .69 26 on the page"}
    assert claims.unmet(claim, "0.98249, 2.3157e-07 and 0.694 after 26 rounds") == []
    assert claims.unmet(claim, "0.98256, 2.3149e-07 and 0.696 after 126 rounds") == [
        "0.9825",
        "2.316e-07",
        ".69",
        "26",
    ]


def test_a_page_of_studies_that_were_not_run_is_not_compared(claims: Any, tmp_path: Path) -> None:
    for name, added in (("index.md", "x"), ("errata.jsonl", ""), ("fed-plt.md", "x")):
        (tmp_path / name).write_text(added + (RESULTS / name).read_text())
    found = {path.name: said for path, said in claims.verdicts(tmp_path.iterdir())}
    assert found["index.md"] == found["fed-plt.md"] == "studies were not run"
    assert found["errata.jsonl"] == claims.SAME


def test_a_row_that_gives_other_files_or_numbers_differs(claims: Any, tmp_path: Path) -> None:
    row = {"page": "docs/results/errata.md", "what": "counterexamples", "numbers": "all"}
    written = {**row, "command": "privet errata all --json > docs/results/errata.jsonl"}
    line, same = claims.check(written, None, tmp_path)
    assert same, line
    other = {**row, "command": "privet errata all > docs/results/errata.jsonl"}
    line, same = claims.check(other, None, tmp_path)
    assert (same, line.endswith("errata.jsonl differs")) == (False, True)
    line, same = claims.check({**row, "command": "privet errata nothing"}, None, tmp_path)
    assert (same, "exit code 2" in line) == (False, True)
    line, same = claims.check({**row, "numbers": ".987", "command": "privet keys"}, None, tmp_path)
    assert (same, line.endswith("not printed: .987")) == (False, True)
    assert not list(tmp_path.iterdir())


def test_a_night_names_studies_that_there_are() -> None:
    assert set(NIGHT) <= set(names())
