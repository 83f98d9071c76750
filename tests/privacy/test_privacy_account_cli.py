"""``privet account``: the figures it prints are those of the account, and its errors are lines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from privet.privacy import account, dp_iadmm_release, fed_pdm_release, fed_plt_release
from privet.sim.cli.account import account_app

PLT = ("--rounds 30 --local-steps 5 --step-size 0.4 --rho 2 --clip 1 --num-examples 500 "
       "--loss logistic --row-norm 1 --regularizer-weight 0.05")  # fmt: skip
PDM = ("--rounds 100 --local-steps 1 --step-size 0.5 --rho 1 --clip 1 --batch-size 100 "
       "--num-examples 1000")  # fmt: skip
GFL = "--rounds 100 --step-size 0.7 --clip 1"
KEYS = {"to", "epsilon", "delta", "method", "assumptions", "as-printed"}


def lines(command: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(account_app, [*command.split(), "--json"])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def rows(command: str) -> tuple[dict[str, Any], dict[str, Any]]:
    coordinator, world = lines(command)
    for row, to in ((coordinator, "coordinator"), (world, "world")):
        assert set(row) == KEYS
        assert row["to"] == to
        assert row["epsilon"] == "inf" or row["epsilon"] >= 0
        assert row["as-printed"] is None or row["as-printed"] >= 0
        assert row["method"] in ("rdp", "pld", "none")
        assert row["assumptions"]
        assert all(isinstance(line, str) and line for line in row["assumptions"])
    return coordinator, world


def usage_error(command: str) -> str:
    """The message of a usage error, which must be one line; the exit code must be 2."""
    result = CliRunner().invoke(account_app, command.split())
    assert result.exit_code == 2, result.output
    group = typer.main.get_command(account_app)
    with pytest.raises(click.UsageError) as caught:
        group.main(command.split(), standalone_mode=False)
    message = caught.value.format_message()
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("updates", "epsilon"), [(1, 53.7), (10, 339.5)])
def test_dp_iadmm_totals(updates: int, epsilon: float) -> None:
    coordinator, world = rows(
        f"dp-iadmm --mechanism laplace --epsilon 0.05 --rounds 20000 --local-updates {updates} "
        "--delta 1e-5"
    )
    assert coordinator["epsilon"] == pytest.approx(epsilon, rel=0.01)
    assert world["epsilon"] == coordinator["epsilon"]
    assert coordinator["as-printed"] == 0.05
    assert coordinator["delta"] == 1e-5
    assert coordinator["method"] == "pld"


def test_dp_iadmm_scale_and_multiplier_agree() -> None:
    by_scale, _ = rows("dp-iadmm --clip 0.5 --num-examples 1000 --noise-scale 0.02 --rounds 50")
    by_multiplier, _ = rows("dp-iadmm --noise-multiplier 20 --rounds 50")
    release = dp_iadmm_release(clip=0.5, num_examples=1000, noise_scale=0.02)
    expected = account([release] * 50, 1e-5).epsilon
    assert by_scale["epsilon"] == pytest.approx(expected, rel=1e-9)
    assert by_multiplier["epsilon"] == pytest.approx(expected, rel=1e-9)
    assert by_scale["as-printed"] is None


def test_fed_plt_account_and_the_printed_value_beside_it() -> None:
    coordinator, world = rows(f"fed-plt {PLT} --noise-variance 1e-3")
    release = fed_plt_release(
        clip=1.0, num_examples=500, step_size=0.4, local_steps=5, tau=math.sqrt(1e-3),
        contraction=1 - 0.4 * (0.05 + 0.5),
    )  # fmt: skip
    assert coordinator["epsilon"] == pytest.approx(account([release] * 30, 1e-5).epsilon, rel=1e-9)
    assert world["epsilon"] == coordinator["epsilon"]
    slope = (2 / (math.sqrt(1e-3) * 500)) ** 2 / 0.05 * -math.expm1(-0.05 * 0.4 * 150 / 2)
    printed = slope + 2 * math.sqrt(slope * math.log(1e5))
    assert coordinator["as-printed"] == pytest.approx(printed, rel=1e-9)


def test_fed_plt_without_noise_is_infinite() -> None:
    coordinator, world = rows(f"fed-plt {PLT} --noise-variance 0")
    assert coordinator["epsilon"] == world["epsilon"] == "inf"
    assert coordinator["as-printed"] is None
    assert coordinator["method"] == "none"


def test_fed_pdm_account() -> None:
    coordinator, _ = rows(f"fed-pdm {PDM} --noise-scale 0.1 --participation 0.3")
    release = fed_pdm_release(
        noise_scale=0.1, clipping="example", clip=1.0, rho=1.0, step_size=0.5, local_steps=1,
        batch_size=100,
    )  # fmt: skip
    expected = account([release] * 100, 1e-5).epsilon
    assert coordinator["epsilon"] == pytest.approx(expected, rel=1e-9)
    assert any("one step" in line for line in coordinator["assumptions"])
    assert isinstance(coordinator["as-printed"], float)


def test_gfl_observers() -> None:
    neighbour, world = rows(f"gfl {GFL} --mechanism laplace --noise-variance 0.1")
    assert neighbour["as-printed"] == pytest.approx(3.16e4, rel=0.01)
    assert neighbour["epsilon"] == pytest.approx(3.16e4, rel=0.01)
    assert world["epsilon"] == "inf"
    assert any("--observer own-server" in line for line in neighbour["assumptions"])
    own, _ = rows(f"gfl {GFL} --noise-scale 100 --observer own-server")
    assert own["epsilon"] == "inf"


@pytest.mark.parametrize(
    ("algorithm", "flags", "parameter"),
    [
        ("fed-plt", PLT, "noise-variance"),
        ("dp-iadmm", "--rounds 100 --local-updates 5", "noise-multiplier"),
        ("dp-iadmm", "--rounds 100 --mechanism laplace --clip 1 --num-examples 50", "noise-scale"),
        ("fed-pdm", PDM, "noise-scale"),
        ("gfl", "--rounds 20 --step-size 0.1 --clip 1", "noise-scale"),
    ],
)
@pytest.mark.parametrize("accountant", ["smaller", "rdp"])
def test_solve_meets_its_target(
    algorithm: str, flags: str, parameter: str, accountant: str
) -> None:
    request = f"solve {algorithm} {flags} --target-epsilon 2 --accountant {accountant}"
    solution, coordinator, _ = lines(request)
    assert solution["parameter"] == parameter
    assert 1.6 < coordinator["epsilon"] <= 2
    if accountant == "smaller":
        assert coordinator["epsilon"] > 1.99
    again, _ = rows(f"{algorithm} {flags} --{parameter} {solution['value']!r}")
    assert again["epsilon"] == pytest.approx(coordinator["epsilon"], rel=1e-9)


def test_table_shows_rounds_totals_the_printed_value_and_assumptions() -> None:
    result = CliRunner().invoke(
        account_app, ["dp-iadmm", "--mechanism", "laplace", "--epsilon", "0.05", "--rounds", "9"]
    )
    assert result.exit_code == 0, result.output
    for text in ("one round", "total", "final model", "as printed, no claim", "Assumptions:",
                 "0.05", "RDP", "PLD"):  # fmt: skip
        assert text in result.output


def test_config_file_gives_what_flags_leave_out(tmp_path: Path) -> None:
    """Run-config names and defaults; flags win; what says nothing about privacy is ignored."""
    path = tmp_path / "run.toml"
    path.write_text(
        'algorithm = "fed-plt"\nnum-server-rounds = 30\nlocal-epochs = 5\nstep-size = 0.4\n'
        'rho = 2.0\nclip = 1.0\nloss = "binary-logistic"\nregularizer-weight = 0.05\n'
        'row-norm = 1.0\nnoise-variance = 1e-3\nlocal-solver = "noisy-gd"\nseed = 4\n'
    )
    by_file, _ = rows(f"fed-plt --config {path} --num-examples 500")
    by_flags, _ = rows(f"fed-plt {PLT} --noise-variance 1e-3")
    assert by_file["epsilon"] == by_flags["epsilon"]
    twice, _ = rows(f"fed-plt --config {path} --num-examples 500 --rounds 60")
    assert twice["epsilon"] > by_file["epsilon"]
    nested = tmp_path / "pyproject.toml"
    nested.write_text("[tool.flwr.app.config]\n" + path.read_text())
    assert rows(f"fed-plt --config {nested} --num-examples 500")[0] == by_file


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("nonsense-key = 1\n", "nonsense-key"),
        ('clip = "much"\n', "clip"),
        ('algorithm = "gfl"\n', "algorithm is 'gfl'"),
        ("not toml", "--config"),
        ("num-examples = 2.5\n", "num-examples"),
    ],
)
def test_bad_config_files(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(content)
    assert reason in usage_error(f"fed-plt {PLT} --noise-variance 1 --config {path}")
    assert "--config" in usage_error(f"fed-plt --config {tmp_path / 'missing.toml'}")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("nothing", "nothing"),
        ("fed-plt", "--rounds is needed"),
        ("fed-plt --frobnicate 3", "--frobnicate"),
        ("dp-iadmm --rounds 10", "one of --epsilon"),
        ("dp-iadmm --rounds 10 --epsilon 0.1", "--noise-multiplier for gaussian"),
        ("dp-iadmm --rounds 10 --epsilon 0.1 --noise-multiplier 3 --mechanism laplace", "one of"),
        ("dp-iadmm --rounds 10 --epsilon 0 --mechanism laplace", "--epsilon 0"),
        ("dp-iadmm --rounds 0 --noise-multiplier 3", "--rounds 0"),
        ("dp-iadmm --rounds ten --noise-multiplier 3", "--rounds"),
        ("dp-iadmm --rounds 10 --noise-multiplier nan", "--noise-multiplier nan"),
        ("dp-iadmm --rounds 10 --noise-multiplier 3 --delta 1", "delta"),
        ("dp-iadmm --rounds 10 --noise-multiplier 3 --mechanism cauchy", "cauchy"),
        (f"fed-plt {PLT} --noise-variance -1", "--noise-variance -1"),
        (f"fed-plt {PLT} --noise-variance 1 --local-solver agd", "agd"),
        (f"fed-plt {PLT} --noise-variance 1 --regularizer nonconvex", "nonconvex"),
        (f"fed-pdm {PDM} --noise-scale 1 --sparsifier top-k", "top-k"),
        (f"fed-pdm {PDM} --noise-scale 1 --local-steps 3", "smoothness is public"),
        (f"fed-pdm {PDM}", "one of --noise-scale"),
        (f"gfl {GFL} --noise-scale 1 --noise-variance 2", "one of --noise-scale"),
        (f"gfl {GFL} --noise-scale 1 --contraction 0.5", "batch_size and participants"),
        ("solve dp-iadmm --rounds 3", "--target-epsilon is needed"),
        ("solve dp-iadmm --rounds 3 --target-epsilon 0", "epsilon"),
        (f"solve gfl {GFL} --target-epsilon 1 --observer own-server", "raw models"),
        ("solve fed-plt --target-epsilon 1", "is needed"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(command: str, reason: str) -> None:
    assert reason in usage_error(command)
