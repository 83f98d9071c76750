"""Peers of the benchmarks: found or named, played in processes, and on equal work."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import cohort
from benchmarks.figure import Figure
from benchmarks.peer_rows import TOLERANCE, Peers, play, show_difference
from benchmarks.peers.work import Work
from privet.core import ConfigError
from privet.problems import L2, BinaryLogistic


def _interpreter(folder: Path, lines: str) -> str:
    """Return a program that is asked as an interpreter is."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport sys\nimport numpy as np\n{lines}\n")
    path.chmod(0o755)
    return str(path)


def test_a_peer_that_nobody_has_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[Figure] = []
    cohort.bench_peers(shown.append, interpreters=[sys.executable])
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        f"not installed: {name}" for name in ("decent-bench", "fedjax", "fluke-fl", "pfl")
    ]
    assert not shown


def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="--peers /no/python: No such file"):
        Peers(["pfl"], ["/no/python"])


def test_what_a_peer_prints_before_its_last_line_is_passed_over(tmp_path: Path) -> None:
    lines = "np.save(sys.argv[5], np.arange(3.0))\nprint('round 1')\n"
    lines += """print('{"version": "1.2", "seconds": 0.5}')"""
    played = play("pfl", _interpreter(tmp_path, lines), tmp_path / "work.npz")
    assert (played.version, played.seconds, *played.model) == ("1.2", 0.5, 0.0, 1.0, 2.0)


def test_a_peer_that_fails_is_one_line(tmp_path: Path) -> None:
    failing = _interpreter(tmp_path, "raise ValueError('no such round')")
    with pytest.raises(RuntimeError, match=r"^pfl with .*: ValueError: no such round$"):
        play("pfl", failing, tmp_path / "work.npz")


FAILURES = {
    "raises": ("raise ValueError('no such round')", "ValueError: no such round"),
    "prints nothing": ("", "IndexError: list index out of range"),
    "saves nothing": ("""print('{"version": "1", "seconds": 1.0}')""", "FileNotFoundError: "),
    "of another size": (
        """np.save(sys.argv[5], np.ones(2)); print('{"version": "1", "seconds": 1.0}')""",
        "a model of shape (2,)",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_the_others_go_on_where_a_peer_is_broken(
    failure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It breaks in its second turn, and is asked no more; which one it is, is said."""
    lines, said = FAILURES[failure]
    good = """np.save(sys.argv[5], np.zeros(5)); print('{"version": "2", "seconds": 0.5}')"""
    marks = tmp_path / "marks"
    player = f"""
if sys.argv[1] == "-c":
    sys.exit(sys.argv[3] not in ("fedjax", "fluke"))
marks = open({str(marks)!r}, "a+"); marks.write(sys.argv[3] + "\\n"); marks.seek(0)
if sys.argv[3] == "fedjax" and marks.read().count("fedjax") > 1:
    {lines or "pass"}
else:
    {good}
"""
    peers = Peers(("fedjax", "fluke-fl"), [_interpreter(tmp_path, player)])
    found = peers.play(cohort.peer_work(cohort.Case(3, 8, 5)), 3, lambda: None)
    broken = [line for line in capsys.readouterr().err.splitlines() if line.startswith("broken")]
    assert len(broken) == 1
    assert broken[0].startswith("broken: fedjax")
    assert said in broken[0]
    assert list(found) == list(peers.interpreters) == ["fluke-fl"]
    assert marks.read_text().split() == ["fedjax", "fluke-fl"] * 2 + ["fluke-fl"]


def test_work_comes_back_from_its_file(tmp_path: Path) -> None:
    work = cohort.peer_work(cohort.Case(3, 8, 2))
    work.save(tmp_path / "work.npz")
    again = Work.load(tmp_path / "work.npz")
    np.testing.assert_array_equal(again.features, work.features)
    np.testing.assert_array_equal(again.labels, work.labels)
    empty = np.zeros(0)
    bare = dict.fromkeys(("features", "labels", "start"), empty)
    assert str(replace(again, **bare)) == str(replace(work, **bare))


@pytest.mark.parametrize("epochs", [4, 6])
def test_a_step_more_or_less_is_seen(epochs: int) -> None:
    work = cohort.peer_work(cohort.Case(20, 50, 5))
    problems = [
        BinaryLogistic(features, 2 * labels - 1, regularizer=L2(work.l2))
        for features, labels in zip(work.features, work.labels, strict=True)
    ]
    models = [cohort.averaged(problems, each) for each in (work, replace(work, epochs=epochs))]
    values = [
        float(np.mean([problem.value(model) for problem in problems]))
        for model in (work.start, models[1], models[0])
    ]
    shown: list[Figure] = []
    show_difference(shown.append, "engine", "case", "peer", values)
    show_difference(shown.append, "engine", "case", "peer", [values[0], values[2], values[2]])
    assert [each.holds for each in shown] == [False, True]
    assert shown[0].value > 10 * TOLERANCE
