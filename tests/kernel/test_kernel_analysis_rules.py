"""What a node's operator lets analyses have: every key, and a count that outlives processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from privet.kernel import BudgetRefused, Told
from privet.kernel.analysis_rules import KEYS, NO_RULES, AnalysisRules
from privet.kernel.node_rules import NodeRules

FLAGS = ("allow-analyses", "sums-only", "pooled-baseline")
COUNTS = ("min-records", "min-cell", "max-analyses")


def rules(**keys: Any) -> AnalysisRules:
    return AnalysisRules.from_node_config({k.replace("_", "-"): v for k, v in keys.items()})


def counted(path: Path, most: int = 2) -> AnalysisRules:
    return rules(max_analyses=most, analyses_path=str(path))


def test_a_node_without_a_table_of_its_own_has_no_rules() -> None:
    assert rules() == NO_RULES
    assert (NO_RULES.allowed, NO_RULES.min_records, NO_RULES.min_cell) == (True, 1, 1)
    assert (NO_RULES.most, NO_RULES.sums_only, NO_RULES.path) == (0, False, "")


def test_a_node_with_a_table_of_its_own_hides_small_cells() -> None:
    own = rules(data_path="/data/table.csv")
    assert (own.allowed, own.min_records, own.min_cell) == (True, 10, 5)
    assert (own.most, own.sums_only, own.path) == (0, False, "")
    assert (own.pooled_baseline, NO_RULES.pooled_baseline) == (False, True)


def test_every_key_is_read(tmp_path: Path) -> None:
    keys = {
        "allow-analyses": False,
        "min-records": 20,
        "min-cell": 7,
        "max-analyses": 3,
        "sums-only": True,
        "pooled-baseline": False,
        "analyses-path": str(tmp_path / "log"),
    }
    assert set(keys) == set(KEYS)
    expected = AnalysisRules(
        allowed=False,
        min_records=20,
        min_cell=7,
        most=3,
        sums_only=True,
        pooled_baseline=False,
        path=str(tmp_path / "log"),
    )
    assert AnalysisRules.from_node_config(keys) == expected
    assert NodeRules.from_node_config({"partition-id": 0, **keys}).analyses == expected


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "5", None])
def test_a_count_is_a_whole_number_from_1_on(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"node-config: {key} = ") as caught:
        AnalysisRules.from_node_config({key: value, "analyses-path": "/log"})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_a_flag_is_true_or_false(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"node-config: {key} = .*expected true or false"):
        AnalysisRules.from_node_config({key: value})


@pytest.mark.parametrize("value", ["log", "./log", 3, None, True])
def test_the_path_is_absolute(value: Any) -> None:
    with pytest.raises(ValueError, match=r"node-config: analyses-path = .*an absolute path"):
        rules(analyses_path=value)


def test_a_number_of_analyses_needs_a_file_to_count_in() -> None:
    with pytest.raises(ValueError, match="max-analyses needs analyses-path"):
        rules(max_analyses=3)


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("masked", [False, True])
def test_a_node_that_answers_none_says_so(masked: bool) -> None:
    with pytest.raises(BudgetRefused) as caught:
        rules(allow_analyses=False).screen(masked=masked)
    assert caught.value.args[0] is Told.ANALYSES


def test_a_table_of_ones_own_is_noised_under_a_budget_alone() -> None:
    NO_RULES.screen(masked=False, noised=True)
    with pytest.raises(BudgetRefused) as caught:
        rules(data_path="/t.csv").screen(masked=False, noised=True)
    assert caught.value.args[0] is Told.NO_BUDGET


def test_sums_only_lets_secure_sums_pass() -> None:
    own = rules(sums_only=True)
    own.screen(masked=True)
    with pytest.raises(BudgetRefused) as caught:
        own.screen(masked=False)
    assert caught.value.args[0] is Told.SUMS_ONLY


def test_a_baseline_is_pooled_where_the_operator_lets_it() -> None:
    NO_RULES.screen(masked=False, baseline=True)
    own = rules(data_path="/t.csv")
    own.screen(masked=True)
    rules(data_path="/t.csv", pooled_baseline=True).screen(masked=True, baseline=True)
    for masked in (False, True):
        with pytest.raises(BudgetRefused) as caught:
            own.screen(masked=masked, baseline=True)
        assert caught.value.args[0] is Told.POOLED_BASELINE


def test_too_few_rows_are_told_without_their_number() -> None:
    own = rules(min_records=10)
    own.require_records(10)
    with pytest.raises(BudgetRefused) as caught:
        own.require_records(9)
    assert caught.value.args[0] is Told.FEW_RECORDS
    assert "9" not in str(caught.value)
    assert "9 are complete" in str(caught.value.__cause__)


# ------------------------------------------------------------------ the count


def test_a_run_counts_once_however_often_it_asks(tmp_path: Path) -> None:
    own = counted(tmp_path / "log")
    for _ in range(5):
        own.note("first", "glm", '{"formula": "y ~ x"}')
    own.note("second", "glm", '{"formula": "y ~ x"}')
    for _ in range(2):
        with pytest.raises(BudgetRefused) as caught:
            own.note("third", "describe", "{}")
        assert caught.value.args[0] is Told.MOST_ANALYSES
    own.note("first", "glm", '{"formula": "y ~ x"}')
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["run"] for line in lines if "run" in line] == ["first", "second"]
    first = [line for line in lines if line["mark"] == lines[0]["mark"]]
    assert [line.get("round", 1) for line in first] == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("what", "settings"),
    [("cox", "{}"), ("glm", '{"formula": "y ~ z"}'), ("glm", "{}" + " " * 5000 + "1")],
)
def test_a_run_of_another_name_settings_or_analysis_counts_anew(
    tmp_path: Path, what: str, settings: str
) -> None:
    """A coordinator names the run, and may take one name for all."""
    own = counted(tmp_path / "log", most=1)
    own.note("run", "glm", "{}" + " " * 5000)
    with pytest.raises(BudgetRefused, match="max-analyses"):
        own.note("run", what, settings)


def test_the_count_is_one_over_processes(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from privet.kernel.analysis_rules import AnalysisRules\n"
        "from privet.kernel import BudgetRefused\n"
        "rules = AnalysisRules(most=5, path=sys.argv[1])\n"
        "for at in range(4):\n"
        "    try:\n"
        "        rules.note(f'{sys.argv[2]}-{at}', 'glm', '{}')\n"
        "        print('answered')\n"
        "    except BudgetRefused:\n"
        "        print('refused')\n"
    )
    path = tmp_path / "log"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(number)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    said = [word for one in started for word in one.communicate(timeout=300)[0].split()]
    assert sorted(said) == ["answered"] * 5 + ["refused"] * 7
    assert len(path.read_text().splitlines()) == 5


def test_rounds_are_counted_over_all_runs_of_one_name_and_settings(tmp_path: Path) -> None:
    """A coordinator that begins anew under the same name is told no more than in one run."""
    own = AnalysisRules(answers=3, path=str(tmp_path / "log"))
    for _ in range(3):
        own.note("run", "glm", "{}")
    own.note("other", "glm", "{}")
    for _ in range(2):
        with pytest.raises(BudgetRefused) as caught:
            own.note("run", "glm", "{}")
        assert caught.value.args[0] is Told.MOST_ANSWERS
    assert len((tmp_path / "log").read_text().splitlines()) == 4


def test_without_a_path_nothing_is_written() -> None:
    rules().note("run", "glm", "{}")


@pytest.mark.parametrize(
    "damage", [b"no json\n", b"3\n", b"[]\n", b"{}\n", b'{"run": "a"}\n', b"\xff\xfe\n", b"null\n"]
)
def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(damage)
    with pytest.raises(BudgetRefused) as caught:
        counted(path).note("run", "glm", "{}")
    assert caught.value.args[0] is Told.ANALYSES_FILE
    assert path.read_bytes() == damage


@pytest.mark.parametrize("kind", ["symlink", "folder", "fifo", "nowhere"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "log"
    if kind == "symlink":
        (tmp_path / "other").touch()
        path.symlink_to(tmp_path / "other")
    elif kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path = tmp_path / "none" / "log"
    with pytest.raises(BudgetRefused) as caught:
        counted(path).note("run", "glm", "{}")
    assert caught.value.args[0] is Told.ANALYSES_FILE


def test_a_line_that_is_cut_off_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk refuses one analysis, and does not damage the file for all."""
    own, write = counted(tmp_path / "log"), os.write
    own.note("first", "glm", "{}")
    monkeypatch.setattr(os, "write", lambda file, text: write(file, text[:7]))
    with pytest.raises(BudgetRefused) as caught:
        own.note("second", "glm", "{}")
    assert caught.value.args[0] is Told.ANALYSES_FILE
    monkeypatch.undo()
    own.note("second", "glm", "{}")
    assert len((tmp_path / "log").read_text().splitlines()) == 2


def test_a_long_file_of_analyses_costs_each_answer_little(tmp_path: Path) -> None:
    """Without max-analyses it grows; what is counted in it stays counted in a new process."""
    path = tmp_path / "log"
    node = rules(analyses_path=str(path), data_path="/own.csv")
    node.note("first", "glm", "{}")
    (line,) = path.read_text().splitlines()
    more = [line.replace(json.loads(line)["mark"], f"{number:064x}") for number in range(100_000)]
    path.write_text("\n".join([line, *more]) + "\n")
    began = time.process_time()
    for _ in range(5):
        rules(analyses_path=str(path), data_path="/own.csv").note("first", "glm", "{}")
    assert time.process_time() - began < 5 * 0.2
    last = path.read_text().splitlines()[-1]
    assert json.loads(last)["round"] == 6
    bounded = rules(max_analyses=100_001, analyses_path=str(path))
    bounded.note("first", "glm", "{}")
    with pytest.raises(BudgetRefused, match=Told.MOST_ANALYSES):
        bounded.note("another", "glm", "{}")


def test_a_file_of_analyses_has_a_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "log"
    node = rules(analyses_path=str(path))
    node.note("first", "glm", "{}")
    line = path.read_text()
    path.write_text(line * (2**25 // len(line) + 1))
    with pytest.raises(BudgetRefused, match=Told.ANALYSES_FILE) as caught:
        node.note("first", "glm", "{}")
    assert "over 32 MiB: set max-analyses" in str(caught.value.__cause__)
    path.write_text(line[: len(line) // 2] + line)
    with pytest.raises(BudgetRefused, match=Told.ANALYSES_FILE):
        node.note("first", "glm", "{}")


def test_names_of_sums_fill_no_file(tmp_path: Path) -> None:
    """A coordinator makes up as many as it likes: all rounds of an analysis write them once."""
    path = tmp_path / "log"
    node = rules(analyses_path=str(path), data_path="/own.csv")
    with pytest.raises(BudgetRefused, match=Told.ANALYSES_FILE) as caught:
        node.note("e", "glm", "{}", summed=[f"made-up-{place}" for place in range(10_000)])
    assert "more than 65536 bytes" in str(caught.value.__cause__)
    assert not path.read_bytes()
    sites = [f"{place:03d}{'x' * 125}" for place in range(150)]
    for gone in range(0, 100, 2):
        node.note("e", "glm", "{}", summed=sites[gone:])
    assert path.stat().st_size < 150 * 132 * 2 + 50 * 130
    with pytest.raises(BudgetRefused, match=Told.DIFFERENCE):
        rules(analyses_path=str(path)).note("e", "glm", "{}", summed=sites[99:])
    rules(analyses_path=str(path)).note("e", "glm", "{}", summed=sites[100:])


def test_no_setting_looks_like_another_analysis(tmp_path: Path) -> None:
    path = tmp_path / "log"
    node = rules(analyses_path=str(path), max_analyses=2)
    text = '{"run": "x", "mark": "' + "0" * 64 + '"}\n{"run": "y"}\n'
    for place in range(3):
        node.note(text, "glm", text)
        assert path.read_bytes().count(b"\n") == place + 1
    node.note("second", "glm", text)
    with pytest.raises(BudgetRefused, match=Told.MOST_ANALYSES):
        node.note("third", "glm", text)


def test_a_long_file_is_held_once(tmp_path: Path) -> None:
    path = tmp_path / "analyses.jsonl"
    line = {"run": "r", "analysis": "glm", "settings": "x" * 4000, "mark": "0" * 64}
    path.write_text((json.dumps(line) + "\n") * 8000)
    rules = AnalysisRules.from_node_config({"analyses-path": str(path)})
    tracemalloc.start()
    rules.note("e", "glm", "s")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 32_000_000
    assert peak < 1.5 * (1 << 25)
    assert path.read_text().count('"mark": ') == 8001
