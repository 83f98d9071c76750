"""``privet account``: a bound of 0 is no bound, and would understate epsilon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privet.sim.cli.account_flags import COMMANDS, FLAGS
from privet.sim.cli.main import main

PLT = ("--rounds=30 --local-steps=5 --step-size=0.4 --rho=2 --clip=1 --num-examples=500 "
       "--loss=logistic --row-norm=1 --regularizer-weight=0.05 --noise-variance=0.001")  # fmt: skip
ZERO = {"noise-variance", "noise-scale", "regularizer-weight"}
"""No noise is an infinite epsilon, and no regulariser contracts nothing."""
BOUNDS = [
    (algorithm, name)
    for algorithm, names in COMMANDS.items()
    for name in names
    if FLAGS[name].kind is float and name not in ZERO
]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["account", *arguments])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def epsilon(capsys: pytest.CaptureFixture[str], *flags: str) -> Any:
    with pytest.raises(SystemExit) as stop:
        main(["account", "fed-plt", *flags, "--json"])
    assert not stop.value.code
    return json.loads(capsys.readouterr().out.splitlines()[0])["epsilon"]


@pytest.mark.parametrize(("algorithm", "name"), BOUNDS)
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_number_must_be_positive(
    capsys: pytest.CaptureFixture[str], algorithm: str, name: str, value: str
) -> None:
    line = said(capsys, algorithm, f"--{name}={value}")
    assert f"--{name} {value}: expected a finite number > 0" in line


@pytest.mark.parametrize("name", ["row-norm", "smoothness"])
def test_a_bound_of_zero_does_not_lower_epsilon(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert f"--{name} 0: expected" in said(capsys, "fed-plt", *PLT.split(), f"--{name}=0")


def test_a_smoothness_below_the_regularizer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    line = said(capsys, "fed-plt", *PLT.split(), "--smoothness=0.01")
    assert "--smoothness 0.01: expected at least --regularizer-weight 0.05" in line


def test_zero_in_a_run_config_is_still_not_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text('smoothness = 0.0\nrow-norm = 0.0\nlocal-solver = "noisy-gd"\n')
    by_flags = epsilon(capsys, *PLT.split())
    assert 1 < by_flags < 10
    assert epsilon(capsys, *PLT.split(), f"--config={path}") == by_flags


@pytest.mark.parametrize("weight", ["0", "0.05"])
def test_without_noise_epsilon_is_infinite(capsys: pytest.CaptureFixture[str], weight: str) -> None:
    flags = [*PLT.split(), "--noise-variance=0", f"--regularizer-weight={weight}"]
    assert epsilon(capsys, *flags) == "inf"
