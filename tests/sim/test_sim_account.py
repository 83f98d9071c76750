"""``privet account``: what a run would cost, from the arguments of ``privet run``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from privet.sim.cli.main import main

PLT = [
    "num-agents=3",
    "num-server-rounds=30",
    "local-solver=noisy-gd",
    "local-epochs=5",
    "step-size=0.4",
    "rho=2",
    "clip=1.0",
    "row-norm=1.0",
    "noise-variance=0.001",
    "num-examples=500",
    "dim=9",
    "loss=binary-logistic",
]


@pytest.fixture
def account(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command and return (exit code, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["account", *arguments])
        assert isinstance(left.value.code, int)
        out, err = capsys.readouterr()
        return left.value.code, out, err

    return call


def found(account: Any, *arguments: str) -> Any:
    code, out, err = account(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def changed(**keys: object) -> list[str]:
    """Return the arguments with some replaced, and those that are None left out."""
    settings = dict(pair.split("=") for pair in PLT)
    settings |= {key.replace("_", "-"): value for key, value in keys.items()}  # type: ignore[misc]
    return [f"{key}={value}" for key, value in settings.items() if value is not None]


@pytest.mark.parametrize(
    "key", ["clip", "noise-variance", "row-norm", "step-size", "rho", "delta", "smoothness"]
)
@pytest.mark.parametrize("value", ["-1", "nan", "-inf"])
def test_a_number_must_be_one(account: Any, key: str, value: str) -> None:
    code, _, err = account(*changed(**{key: value}))
    assert code == 2
    (line,) = [line for line in err.splitlines() if line.startswith("privet: ")]
    assert f"{key} = {value}" in line


@pytest.mark.parametrize("key", ["num-examples", "dim"])
@pytest.mark.parametrize("value", ["0", "-5", "2.5", "many"])
def test_a_public_number_is_a_whole_one(account: Any, key: str, value: str) -> None:
    code, _, err = account(*changed(**{key: value}))
    assert code == 2
    assert re.fullmatch(rf"privet: {key} = .*: expected a whole number >= 1\n", err)


def test_a_bound_of_zero_is_no_bound(account: Any) -> None:
    code, _, err = account(*changed(row_norm="0.0"))
    assert code == 2
    assert "needs row-norm, a public bound on the rows" in err
    unclipped = found(account, *changed(clip="0.0"))
    assert (unclipped["private"], unclipped["epsilon"]) == (False, "inf")


@pytest.mark.parametrize("weight", ["0.0", "0.05"])
def test_without_noise_epsilon_is_infinite(account: Any, weight: str) -> None:
    """Whether or not the regulariser contracts."""
    said = found(account, *changed(noise_variance="0.0", regularizer_weight=weight))
    assert (said["private"], said["epsilon"]) == (False, "inf")


def test_a_config_file_is_read_and_arguments_come_first(account: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        "".join(
            f'{key} = "{value}"\n' if re.match("[a-z]", value) else f"{key} = {value}\n"
            for key, _, value in (pair.partition("=") for pair in PLT)
        )
    )
    said = found(account, *PLT)
    assert 1 < said["epsilon"] < 10
    assert found(account, "--config", str(path)) == said
    louder = found(account, "--config", str(path), "noise-variance=0.01")
    assert louder["epsilon"] < said["epsilon"]


def test_the_noise_that_is_named_meets_the_target(account: Any) -> None:
    """As printed, to the last digit: whoever copies it stays at the target."""
    code, out, _ = account(*changed(noise_variance=None, target_epsilon="2.0"))
    assert code == 0
    match = re.search(r"^fed-plt: noise-variance = (\S+) for epsilon 2$", out, re.MULTILINE)
    assert match is not None
    assert 1.99 < found(account, *changed(noise_variance=match[1]))["epsilon"] <= 2.0


def test_more_examples_cost_less_and_more_rounds_more(account: Any) -> None:
    said = found(account, *PLT)["epsilon"]
    assert found(account, *changed(num_examples="5000"))["epsilon"] < said / 5
    assert found(account, *changed(num_server_rounds="60"))["epsilon"] > said
