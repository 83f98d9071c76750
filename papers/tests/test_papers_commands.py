"""The commands that the papers add to `privet`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.figure import Figure
from privet.core.plugins import COMMANDS, PAPERS, plugins
from studies.catalogue import names
from support.cli import privet


def test_every_command_of_the_papers_is_there_and_has_help() -> None:
    assert set(PAPERS[COMMANDS]) <= set(plugins(COMMANDS))
    listed = privet("--help").out
    assert "Measure and print figures" in listed
    for name in PAPERS[COMMANDS]:
        code, out, _ = privet(name, "--help")
        assert (code, f" {name} [OPTIONS]" in out) == (0, True)


def test_the_studies_of_a_paper_are_listed() -> None:
    assert privet("reproduce", "--list")[1].split() == names()
    assert privet("reproduce", "gfl", "--list")[1].split() == [
        name for name in names() if name.startswith("gfl/")
    ]


def test_an_interrupted_study_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("studies.execute.run_studies", stop)
    code, _, err = privet("reproduce", "gfl")
    assert code == 130
    assert err.splitlines()[-1] == (
        "privet: interrupted; finished cases stay in the --output folder; the same command goes on"
    )


def test_a_misspelt_benchmark_is_one_line() -> None:
    code, _, err = privet("bench", "engin")
    assert (code, err.count("\n")) == (2, 1)
    assert "; did you mean 'engine'?" in err


def test_a_figure_of_numpy_s_numbers_is_a_line_of_json() -> None:
    figure = Figure("masks", "d = 1", "ratio", np.float64(1.2), 1.3, at_least=False)
    assert json.loads(json.dumps(figure.to_dict()))["holds"] is True


def test_a_package_of_the_same_name_does_not_hide_the_benchmarks(tmp_path: Path) -> None:
    """Opacus has one: whoever installs it would have none of ours."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    command = [sys.executable, "-m", "privet.cli", "bench", "nope"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown benchmark 'nope': known are clipping" in done.stderr
