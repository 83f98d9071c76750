"""``privet account``: the figures it prints are those of the account, and its errors are lines."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from privet.client_apps import as_printed
from privet.core import algorithm
from privet.kernel import Facts, Totals
from privet.server_apps.config import table
from support.cli import privet

PLT = ("algorithm=fed-plt local-solver=noisy-gd num-server-rounds=30 local-epochs=5 step-size=0.4 "
       "rho=2 clip=1 num-agents=4 num-examples=500 dim=3 loss=binary-logistic row-norm=1 "
       "regularizer=l2 regularizer-weight=0.05")  # fmt: skip
PDM = ("algorithm=fed-pdm dual=public num-server-rounds=100 max-local-steps=1 step-size-base=0.5 "
       "step-size-rule=constant rho=1 clip=1 batch=sample batch-size=100 num-agents=2 "
       "num-examples=1000")  # fmt: skip
SGD = "algorithm=dp-fedsgd num-server-rounds=50 clip=1 num-agents=3 num-examples=200"
IADMM = "algorithm=dp-iadmm num-server-rounds=50 clip=0.5 num-agents=2 num-examples=1000"
GFL = ("algorithm=gfl num-server-rounds=100 step-size=0.7 clip=1 num-agents=4 num-examples=50 "
       "dim=1 units=2 perturbation=homomorphic regularizer=none")  # fmt: skip
KEYS = {"to", "epsilon", "delta", "method", "mu", "assumptions", "as-printed"}


def planned(command: str, *more: str) -> dict[str, Any]:
    code, out, err = privet("account", *command.split(), *more, "--json")
    assert code == 0, err
    (line,) = out.splitlines()
    found: dict[str, Any] = json.loads(line)
    for entry in found["accounts"]:
        drawn = set() if found["algorithm"] == "gfl" else {"drawn-delta"}
        assert set(entry) == KEYS | drawn
        assert entry["epsilon"] == "inf" or entry["epsilon"] >= 0
        assert entry["method"] in ("gaussian", "pld", "none")
        assert (entry["mu"] is not None) == (entry["method"] == "gaussian")
        assert entry["assumptions"]
    return found


def usage_error(*arguments: str) -> str:
    """The message of a usage error, which must be one line; the exit code must be 2."""
    code, _, err = privet("account", *arguments)
    assert code == 2
    (line,) = err.splitlines()
    return line


def total(name: str, facts: Facts, rounds: int, **settings: Any) -> float:
    half = algorithm(name).load_agent().from_settings(settings)
    totals = Totals()
    for number in range(1, rounds + 1):
        totals = totals.add(half.release(facts, number))
    return totals.epsilon(1e-5)


# ---------------------------------------------------------------------- figures


def test_dp_iadmm_divides_by_all_agents_examples() -> None:
    found = planned(f"{IADMM} noise-scale=0.02")
    facts = Facts(1000, 2000.0, 1, loss="multinomial")
    settings = {"clip": 0.5, "noise-scale": 0.02}
    assert found["epsilon"] == pytest.approx(total("dp-iadmm", facts, 50, **settings), rel=1e-12)
    assert found["accounts"][0]["as-printed"] is None
    assert found["noise"] == {"noise-scale": 0.02}


def test_fed_plt_account_and_the_printed_value_beside_it() -> None:
    found = planned(f"{PLT} noise-variance=1e-3")
    facts = Facts(500, 500.0, 3, loss="logistic", regularizer="l2", modulus=0.05)
    settings = {"local-solver": "noisy-gd", "local-epochs": 5, "step-size": 0.4, "rho": 2.0,
                "clip": 1.0, "row-norm": 1.0, "noise-variance": 1e-3}  # fmt: skip
    assert found["epsilon"] == pytest.approx(total("fed-plt", facts, 30, **settings), rel=1e-12)
    # By hand, from chi = 1 - 0.4 (0.05 + 0.5), up to what the grid is charged for.
    chi = 1 - 0.4 * 0.55
    mu = 2 * 0.4 / 500 * sum(chi**j for j in range(5))
    mu /= math.sqrt(2 * 0.4 * 1e-3 * sum(chi ** (2 * j) for j in range(5)))
    from privet.kernel import gaussian_epsilon

    assert found["epsilon"] == pytest.approx(gaussian_epsilon(mu * 30**0.5, 1e-5), rel=1e-3)
    printed = as_printed.fed_plt_epsilon(
        sensitivity=2.0, strong_convexity=0.05, tau=math.sqrt(1e-3), num_examples=500,
        step_size=0.4, rounds=30, local_steps=5, delta=1e-5,
    )  # fmt: skip
    assert found["accounts"][0]["as-printed"] == pytest.approx(printed, rel=1e-9)


def test_fed_pdm_account_counts_participations() -> None:
    found = planned(f"{PDM} noise-scale=0.1")
    facts = Facts(1000, 1000.0, 1)
    settings = {"dual": "public", "max-local-steps": 1, "step-size-base": 0.5, "rho": 1.0,
                "step-size-rule": "constant", "clip": 1.0, "batch": "sample",
                "batch-size": 100, "noise-scale": 0.1}  # fmt: skip
    assert found["epsilon"] == pytest.approx(total("fed-pdm", facts, 100, **settings), rel=1e-12)
    assert isinstance(found["accounts"][0]["as-printed"], float)
    half = planned(f"{PDM} noise-scale=0.1 participation=schedule", "schedule=0;1")
    assert half["epsilon"] == pytest.approx(total("fed-pdm", facts, 50, **settings), rel=1e-12)


def test_an_asynchronous_run_is_planned_for_its_uploads_not_its_versions() -> None:
    """Ten uploads of an agent, whatever the number of versions; the figure is that of ten."""
    versions = "num-server-rounds=200 asynchronous=true max-uploads=10"
    command = f"algorithm=scaffold clip=1 max-local-steps=1 num-examples=1000 {versions}"
    found = planned(f"{command} target-epsilon=4")
    assert 3.999 <= found["epsilon"] <= 4
    facts, settings = Facts(1000, 1000.0, 1), {"clip": 1.0, "noise-scale": 0.05}
    expected = total("scaffold", facts, 10, **settings, **{"max-local-steps": 1})
    assert planned(f"{command} noise-scale=0.05")["epsilon"] == pytest.approx(expected, rel=1e-12)


def test_the_advice_of_an_asynchronous_plan_names_its_uploads() -> None:
    asked = "asynchronous=true max-uploads=50 target-epsilon=.5 num-server-rounds=2000"
    command = "algorithm=scaffold clip=1 max-local-steps=1"
    found = planned(f"{command} num-examples=100 dim=99 {asked}")
    assert found["advice"].startswith("50 uploads share epsilon 0.5: ")
    assert "with max-uploads=" in found["advice"]


def test_gfl_observers() -> None:
    """Raw models towards the own server; the links' figure is the paper's where it holds."""
    found = planned(f"{GFL} mechanism=laplace noise-variance=0.1")
    assert not found["private"]
    accounts = {entry["to"]: entry for entry in found["accounts"]}
    assert accounts["coordinator"]["epsilon"] == accounts["world"]["epsilon"] == "inf"
    assert accounts["links"]["as-printed"] == pytest.approx(3.16e4, rel=0.01)
    # More than 64 different losses are rounded up, so 100 rounds are overcharged a little.
    assert 1.0 <= accounts["links"]["epsilon"] / accounts["links"]["as-printed"] <= 1.02
    sixty = planned(
        GFL.replace("rounds=100", "rounds=60") + " mechanism=laplace noise-variance=0.1",
    )
    (links,) = (entry for entry in sixty["accounts"] if entry["to"] == "links")
    # Below the sum of pure losses, by as little as delta = 1e-5 buys.
    assert 0.99 <= links["epsilon"] / links["as-printed"] <= 1.0


@pytest.mark.parametrize("weight", ["0.0", "0.05"])
def test_without_noise_epsilon_is_infinite(weight: str) -> None:
    """Whether or not the regulariser contracts."""
    command = PLT.replace("weight=0.05", f"weight={weight}")
    found = planned(f"{command} noise-variance=0")
    assert not found["private"]
    assert found["epsilon"] == "inf"
    assert "not private" in found["reason"]


def test_seeded_noise_is_no_privacy() -> None:
    found = planned(f"{SGD} noise-scale=0.1 noise-seed=3")
    assert (found["private"], found["epsilon"]) == (False, "inf")
    assert "seeded" in found["reason"]


def test_table_shows_rounds_totals_the_printed_value_and_assumptions() -> None:
    code, out, _ = privet("account", *f"{PLT} target-epsilon=2".split())
    assert code == 0
    for text in ("noise-variance = ", "for epsilon 2", "coordinator", "costliest round", "world",
                 "as printed, no claim", "replace-one", "- unit: one record"):  # fmt: skip
        assert text in out
    code, out, _ = privet("account", *f"{SGD} target-epsilon=2".split())
    assert (code, "costliest round" in out, "as printed" in out) == (0, True, False)


def test_the_noise_that_is_named_meets_the_target() -> None:
    """As printed, to the last digit: whoever copies it stays at the target."""
    _, out, _ = privet("account", *f"{PLT} target-epsilon=2".split())
    match = re.search(r"^fed-plt: noise-variance = (\S+) for epsilon 2$", out, re.MULTILINE)
    assert match is not None
    assert 1.99 < planned(f"{PLT} noise-variance={match[1]}")["epsilon"] <= 2.0


# ---------------------------------------------------------------------- config and errors


def test_config_file_gives_what_arguments_leave_out(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'algorithm = "fed-plt"\nnum-server-rounds = 30\nlocal-epochs = 5\nstep-size = 0.4\n'
        'rho = 2.0\nclip = 1.0\nloss = "binary-logistic"\nregularizer-weight = 0.05\n'
        'row-norm = 1.0\nnoise-variance = 1e-3\nlocal-solver = "noisy-gd"\nseed = 4\n'
        "num-agents = 4\n"
    )
    wanted = planned(f"{PLT} noise-variance=1e-3")
    file = ("--config", str(path))
    found = planned("num-examples=500 dim=3 regularizer=l2", *file)
    assert found["epsilon"] == wanted["epsilon"]
    longer = planned("num-examples=500 num-server-rounds=60 regularizer=l2", *file)
    assert longer["epsilon"] > found["epsilon"]
    nested = tmp_path / "pyproject.toml"
    nested.write_text("[tool.flwr.app.config]\n" + path.read_text())
    again = planned("num-examples=500 dim=3 regularizer=l2", "--config", str(nested))
    assert again == found


def test_a_bound_of_zero_is_no_bound() -> None:
    """It would understate epsilon; the run would refuse it, and so does its account."""
    line = usage_error(*PLT.split(), "noise-variance=1e-3", "row-norm=0")
    assert "row-norm" in line
    unclipped = planned(SGD.replace("clip=1", "clip=0") + " noise-scale=0.1")
    assert (unclipped["private"], unclipped["epsilon"]) == (False, "inf")


@pytest.mark.parametrize(
    ("key", "value"),
    [("clip", "-1"), ("rho", "nan"), ("row-norm", "inf"), ("delta", "-inf"), ("step-size", "nan")],
)
def test_bounds_must_be_finite_and_not_negative(key: str, value: str) -> None:
    line = usage_error(*PLT.split(), "noise-variance=1e-3", f"{key}={value}")
    assert key in line


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("algorithm=nothing", "nothing"),
        ("fed-plt", "fed-plt"),
        (f"{PLT} frobnicate=3", "frobnicate"),
        *(
            (
                re.sub(rf" {key}=\d+", f" {key}={value}", f"{PLT} noise-variance=1e-3"),
                f"{key} = .*: expected a whole number >= 1",
            )
            for key in ("num-examples", "dim")
            for value in ("0", "-5", "2.5", "many")
        ),
        (f"{GFL} noise-variance=1 target-epsilon=1", "target-epsilon = 1: gfl does not use it"),
        ("algorithm=dp-fedsgd num-agents=2 dim=3", "num-examples"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(command: str, reason: str) -> None:
    assert re.search(reason, usage_error(*command.split()))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("nonsense-key = 1\n", "nonsense-key"),
        ('clip = "much"\n', "clip"),
        ("not toml", "run.toml"),
        ("num-examples = 2.5\n", "num-examples"),
    ],
)
def test_bad_config_files(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(content)
    arguments = [word for word in PLT.split() if not word.startswith(("clip", "num-examples"))]
    assert reason in usage_error(*arguments, "noise-variance=1", "--config", str(path))
    missing = str(tmp_path / "missing.toml")
    assert "missing.toml" in usage_error(*arguments, "--config", missing)


OPERATED = {
    "num-server-rounds": "7",
    "rows-per-person": "3",
    "min-agents": "2",
    "round-timeout": "77",
    "wait-timeout": "77",
    "patience": "77",
    "recover-by-name": "yes",
    "on-divergence": "stop",
    "tolerance": "0.1",
    "evaluate-every": "4",
    "checkpoint-every": "3",
    "output-dir": "/nowhere",
    "resume": "/nowhere",
    "exclude": "1",
    "readmit": "true",
    "metrics-port": "9",
    "baseline-seconds": "1",
    "log-json": "true",
    "track": "mlflow",
    "keep-best": "loss",
    "tags": "a",
    "notes": "b",
}


def test_a_key_is_not_used_where_the_account_is_the_same_without_it() -> None:
    known = {name for name, entry in table().items() if "" in entry.owners}
    operated = {name for name in known if table()[name].owners[""].operational}
    assert operated - OPERATED.keys() <= {"num-sweeps", "evaluate-sweeps", "metrics-host"}
    base = [*SGD.replace("num-server-rounds=50 ", "").split(), "noise-scale=5"]
    without = privet("account", *base).out
    for key, value in OPERATED.items():
        done = privet("account", *base, f"{key}={value}")
        assert done.code == 0, done.err
        line = f"not used here, as no account depends on them: {key}\n"
        assert (done.out.removeprefix(line) != without) is not done.out.startswith(line), key


@pytest.mark.parametrize("noise", ["noise-scale=5", "target-epsilon=2"])
def test_add_remove_with_a_divisor_that_nodes_refuse_is_not_planned(noise: str) -> None:
    """DP-IADMM divides by the federation's number of examples, unless it is told otherwise."""
    command = [*IADMM.split(), noise, "relation=add-remove"]
    line = "agent 0 divides its loss by 2000, not by its own 1000 examples, and refuses each task"
    for more in ((), ("divisor=federation",)):
        assert f"{line}: set divisor = agent" in usage_error(*command, *more)
    assert privet("account", *command, "divisor=agent").code == 0
    assert privet("account", *IADMM.split(), noise).code == 0
