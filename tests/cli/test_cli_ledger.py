"""`privet ledger`: what was spent, by run; the verdict; nothing is changed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from privet.kernel import LedgerFile, Release, epsilon_of
from support.cli import privet

DELTA = 1e-5
CHEAP = Release("gaussian", scale=50.0)
DEAR = Release("gaussian", scale=5.0, count=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a ledger of two runs, the second with two agents' names."""
    path = tmp_path / "ledger.jsonl"
    ledger = LedgerFile(path)
    for number in (1, 2, 3):
        ledger.charge(CHEAP, DELTA, note=f"run 17 round {number} agent a")
    ledger.charge(DEAR, DELTA, note="run 18 round 4 agent a")
    ledger.charge(DEAR, DELTA, note="run 18 round 9 agent [b]x")
    return path


def test_spent_in_total_and_by_run(path: Path) -> None:
    before = path.read_bytes()
    code, out, err = privet("ledger", path, "--json", "--delta", 1e-6)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["epsilon"] == epsilon_of([(CHEAP, 3), (DEAR, 2)], 1e-6)
    assert (found["delta"], found["messages"], found["torn"]) == (1e-6, 5, 0)
    first, second = found["runs"]
    assert (first["run"], first["agents"], first["rounds"]) == ("17", ["a"], [1, 3])
    assert first["epsilon"] == epsilon_of([(CHEAP, 3)], 1e-6)
    assert (second["agents"], second["rounds"], second["messages"]) == (["a", "[b]x"], [4, 9], 2)
    assert second["first"] <= second["last"]
    assert path.read_bytes() == before


def test_table(path: Path) -> None:
    code, out, err = privet("ledger", path)
    assert (code, err) == (0, "")
    total = epsilon_of([(CHEAP, 3), (DEAR, 2)], DELTA)
    for text in ("17", "18", "1-3", "4-9", "[b]x", f"{total:.6g}", "delta = 1e-05"):
        assert text in out
    assert "every line is as it was written" in out


def test_a_narrow_table_cuts_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    number = "16186853022414738161"
    LedgerFile(path).charge(DEAR, DELTA, note=f"run {number} round 1 agent a")
    _, out, _ = privet("ledger", path)
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    day = json.loads(path.read_text().splitlines()[0])["time"][:10]
    assert day in out


@pytest.mark.parametrize("relation", ["replace-one", "add-remove", "replace-agent"])
def test_the_unit_of_an_epsilon_stands_beside_it(tmp_path: Path, relation: Any) -> None:
    path = tmp_path / "ledger.jsonl"
    LedgerFile(path).charge(Release("gaussian", scale=5.0, relation=relation), DELTA)
    assert f"delta = 1e-05 ({relation})" in privet("ledger", path)[1]
    assert json.loads(privet("ledger", path, "--json")[1])["relation"] == relation


def test_torn_lines_are_shown_and_counted(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b'{"version":2,"seq')
    code, out, _ = privet("ledger", path, "--json")
    found = json.loads(out)
    assert (code, found["messages"], found["torn"], found["open-torn"]) == (0, 6, 1, 1)
    assert found["epsilon"] == epsilon_of([(CHEAP, 3), (DEAR, 3)], DELTA)
    LedgerFile(path).charge(CHEAP, DELTA, note="run 19 round 1 agent a")
    found = json.loads(privet("ledger", path, "--json")[1])
    assert [one["run"] for one in found["runs"]] == ["17", "18", "", "19"]
    assert (found["runs"][2]["torn"], found["open-torn"]) == (1, 0)


def test_first_bad_line_is_named_in_one_line(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], lines[1].replace("round 2", "round 7"), *lines[2:]]))
    code, out, err = privet("ledger", path)
    assert (code, out) == (1, "")
    assert "line 2 was edited" in err
    assert err.count("\n") == 1


def test_entries_without_noise_cost_infinity(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    LedgerFile(path).charge(Release("none"), DELTA)
    found = json.loads(privet("ledger", path, "--json")[1])
    assert math.isinf(float(found["epsilon"]))
    assert found["runs"][0]["epsilon"] == "inf"
    assert "inf" in privet("ledger", path)[1]


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [(["missing.jsonl"], 2, "missing.jsonl"), ([], 2, "FILE"),
     (["/dev/null", "--delta", "2"], 2, "delta"), (["/dev/null"], 2, "not a regular file"),
     (["."], 2, "not a regular file")],
)  # fmt: skip
def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch, arguments, code, named) -> None:
    monkeypatch.chdir(tmp_path)
    found, out, err = privet("ledger", *arguments)
    assert (found, out) == (code, "")
    assert named in err
    assert not list(tmp_path.iterdir())


def test_an_empty_ledger_is_sound(tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    code, out, _ = privet("ledger", tmp_path / "new")
    assert code == 0
    assert "total" in out
