"""The statement of a private run: what it says is what its account says, and no more."""

from __future__ import annotations

import hashlib
import html
import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.core.library import library_digest, library_version
from privet.server_apps.report import plots
from privet.sim.inline import run_inline
from support.cli import privet

KEYS = {"num-agents": 3, "num-server-rounds": 2, "partition": "iid"}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("statement")
    draw = np.random.default_rng(3)
    table, schema = folder / "rows.csv", folder / "schema.toml"
    ages = draw.integers(20, 90, 300)
    table.write_text(
        "age,ward,outcome\n"
        + "".join(f"{a},{'ns'[a % 2]},{'well' if a < 50 else 'ill'}\n" for a in ages)
    )
    schema.write_text('[columns]\nage = [0, 120]\nward = ["n", "s"]\noutcome = ["ill", "well"]\n')
    keys = {"dataset": "csv", "data-path": str(table), "schema": str(schema), "clip": 1.0,
            "label-column": "outcome", "local-solver": "noisy-gd", "row-norm": 2.0,
            "target-epsilon": 4.0, "output-dir": str(folder), "baseline-seconds": 0.0,
            "notes": "does wave 2 repeat wave 1?"}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "have_matplotlib", lambda: False)
        return run_inline({**KEYS, **keys}, "run")


def statement(folder: Path) -> str:
    return html.unescape((folder / "statement.html").read_text())


def test_it_states_who_what_and_how_much(finished: Any) -> None:
    text = statement(finished.folder)
    account = json.loads((finished.folder / "privacy.json").read_text())["accounts"][0]
    schema = (finished.folder.parent / "schema.toml").read_bytes()
    assert finished.summary["schema"]["sha-256"] == hashlib.sha256(schema).hexdigest()
    for said in (
        "ε = 4",
        "δ = 10⁻⁵",
        "3 agents; a simulation, in which one process holds the records of all agents",
        "one record of one agent (replace-one)",
        "age 0 to 120; ward: n, s; outcome: ill, well",
        hashlib.sha256(schema).hexdigest(),
        f"Privet (flwr-privet) {library_version()}",
        f"SHA-256 of its code at the coordinator: {library_digest()}",
        "2 rounds, ended",
        "fed-plt on csv, rows.csv",
        "240 in all; agent 0: 80, agent 1: 80, agent 2: 80",
        "each agent in 2 of 2 rounds",
        "each contribution is cut to a clip of 1; noise of at least ",
        "does wave 2 repeat wave 1?",
        "δ is the chance that it does not hold, at most 1 in 99,000",
        "Name and function",
        "Date and place",
        "Signature",
        *account["assumptions"],
    ):
        assert said in text, said
    assert "ccuracy" not in text
    assert f"<li><small>{account['assumptions'][-1]}</small></li>" in text
    page = (finished.folder / "report.html").read_text()
    assert "<h1>fed-plt on csv, rows.csv</h1>" in page
    exact = f"<small>(exactly {account['epsilon']!r})</small>"  # which --verify reads
    assert text.count(repr(account["epsilon"])) == text.count(exact) == 1


def test_the_noise_is_in_units_of_what_is_protected(tmp_path: Path) -> None:
    """T releases of Gaussian noise of r times the sensitivity have mu = sqrt(T) / r."""
    keys = {"algorithm": "dp-fedsgd", "clip": 0.5, "target-epsilon": 2.0, "baseline-seconds": 0.0}
    folder = run_inline({**KEYS, **keys, "output-dir": str(tmp_path)}, "run").folder
    mu = json.loads((folder / "privacy.json").read_text())["accounts"][0]["mu"]
    said = re.findall(r"cut to a clip of 0.5; noise of at least ([\d.]+) times", statement(folder))
    assert [float(one) for one in said] == [pytest.approx(math.sqrt(2) / mu, rel=5e-3)]


def test_the_command_writes_the_same(finished: Any, tmp_path: Path) -> None:
    out = tmp_path / "for-the-officer.html"
    code, said, _ = privet(
        "report", finished.folder, "--out", tmp_path / "page.html", "--statement", out
    )
    assert code == 0
    assert said.split()[-1] == str(out)
    assert out.read_bytes() == (finished.folder / "statement.html").read_bytes()


def test_without_a_promise_there_is_none(finished: Any, tmp_path: Path) -> None:
    """It says why, in one line, and writes nothing."""
    folder = run_inline({**KEYS, "output-dir": str(tmp_path)}, "open").folder
    assert not (folder / "statement.html").exists()
    out = tmp_path / "statement.html"
    code, _, err = privet("report", folder, "--statement", out)
    assert code != 0
    assert err == (
        "privet: --statement: open is not private: updates leave without accounted noise; there "
        "is none to state\n"
    )
    code, _, err = privet("report", folder, finished.folder, "--statement", out)
    assert "about one run, found 2" in err
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
def test_it_prints_on_one_page(finished: Any, tmp_path: Path) -> None:
    pdf = tmp_path / "statement.pdf"
    subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer",
         f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={pdf}",
         str(finished.folder / "statement.html")],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    assert pdf.read_bytes().count(b"/Type /Page\n") == 1


def contradicting(folder: Path, what: str) -> None:
    """Make the files of a run those of different runs."""
    if what == "no summary":
        (folder / "summary.json").unlink()
        return
    name = "privacy.json" if what == "too few" else "summary.json"
    content = json.loads((folder / name).read_text())
    if what == "no exit code":
        del content["exit-code"]
    elif what == "relation":
        content["config"]["relation"] = "add-remove"
    elif what == "too few":
        content["agents"]["0"]["releases"][0]["times"] = 1
    else:
        content["sha-256"]["history.jsonl"] = 64 * "0"
    (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("no summary", "run has not ended: its summary.json is not there"),
        ("no exit code", "run has not ended: its summary.json is not there, or has no exit-code"),
        ("relation", "are under replace-one, and the run protects by add-remove"),
        ("too few", "agent 0 took part in 2 rounds, and its account has 1 messages"),
        ("history", "history.jsonl is not the file whose SHA-256 summary.json holds"),
    ],
)
def test_of_files_that_contradict_each_other_none_is_written(
    finished: Any, tmp_path: Path, what: str, line: str
) -> None:
    folder = Path(shutil.copytree(finished.folder, tmp_path / "run"))
    contradicting(folder, what)
    (folder / "statement.html").unlink()
    code, _, err = privet("statement", folder)
    assert code != 0
    assert line in err
    assert err.count("\n") == 1
    assert not (folder / "statement.html").exists()
