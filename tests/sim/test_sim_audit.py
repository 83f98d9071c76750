"""The audit finds no more than a run says, and finds out a run that says too little."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from redteam.harness import privet

from privet.cli.audit import _run
from privet.cli.presets import load_preset, preset_names
from privet.core import ConfigError, algorithms
from privet.core.errors import PrivetError
from privet.kernel import SystemNoise, gaussian_epsilon
from privet.server_apps import read_config
from privet.sim.audit import audit
from privet.sim.inline import run_inline
from support.damage import changes

RUN: dict[str, Any] = {
    "dataset": "synthetic",
    "features": 50,
    "examples-per-agent": 60,
    "num-agents": 10,
    "num-server-rounds": 6,
    "clip": 1.0,
    "row-norm": 8.0,
    "target-epsilon": 4.0,
}
PRIVATE = tuple(
    name
    for name, one in algorithms().items()
    if getattr(one.load_agent(), "noise_key", "") and one.load_agent().clipping != "update"
)
"""Of those that clip a whole update an agent has one canary, whose row has no bound."""
SHARED = {"algorithm": "dp-fedsgd", "secure-sum": True, "noise-sharing": True}
RARE = 1e-6
"""False alarms of these tests: one run of the suite in a hundred thousand."""


def settings(name: str) -> dict[str, Any]:
    agent: Any = algorithms()[name].load_agent()
    return {**RUN, "algorithm": name, **agent.noise_settings}


@pytest.mark.parametrize("name", PRIVATE)
def test_no_more_is_proven_than_is_said_and_not_much_less(name: str) -> None:
    """Of 4000 canaries 2.7 to 2.9 +- 0.2 is proven: nine deviations above a tenth of 4, or more."""
    found = audit(settings(name), canaries=4000, false_alarms=RARE)
    assert found.epsilon == pytest.approx(4.0, rel=1e-3)
    assert not found.broken
    assert found.measured > 0.1 * found.epsilon
    assert found.canaries == 2000
    assert found.runs == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"relation": "add-remove"},
        {"clipping": "batch"},
        {"relation": "replace-agent"},
        pytest.param({"relation": "replace-agent", "clipping": "batch"}, marks=pytest.mark.slow),
        {"participation": "fraction", "fraction": 0.5},
        {"budget-schedule": "geometric", "budget-ratio": 0.8},
        {"batch": "sample", "batch-size": 30},
        pytest.param({"value-bits": 4}, marks=pytest.mark.slow),
        pytest.param({"dataset": "digits", "dtype": "float32"}, marks=pytest.mark.slow),
        pytest.param({"dataset": "regression", "init-scale": 0.5}, marks=pytest.mark.slow),
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_settings_of_a_run_do_not_break_its_promise(changes: dict[str, Any]) -> None:
    run = {**RUN, "algorithm": "dp-fedsgd", **changes}
    if "dataset" in changes:
        del run["examples-per-agent"]
        if changes["dataset"] == "digits":
            del run["features"]
    found = audit(run, canaries=200, false_alarms=RARE)
    assert found.epsilon == pytest.approx(4.0, rel=1e-3)
    assert not found.broken


LAPLACE = (
    "algorithm=dp-iadmm", "mechanism=laplace", "clip=1", "target-epsilon=4", "dataset=digits",
    "num-agents=10", "num-server-rounds=10", "--false-alarms", str(RARE),
)  # fmt: skip


def drawn(monkeypatch: pytest.MonkeyPatch, kind: str, share: float) -> None:
    """Let every node draw so much of the noise that it is charged."""
    whole = getattr(SystemNoise, kind)

    def less(source: Any, size: Any, scale: float, *rest: Any, **options: Any) -> NDArray[Any]:
        found: NDArray[Any] = whole(source, size, scale, *rest, **options) * share
        return found

    monkeypatch.setattr(SystemNoise, kind, less)


@pytest.mark.parametrize(("share", "code"), [(1.0, 0), (0.9, 1), (0.0, 1)])
def test_laplace_noise_is_measured_against_what_is_charged(
    monkeypatch: pytest.MonkeyPatch, share: float, code: int
) -> None:
    """Of 64,000 draws the spread is known to 0.4 %: at nine tenths that is 25 deviations."""
    drawn(monkeypatch, "laplace", share)
    found, said = privet("audit", *LAPLACE)
    assert found == code, said
    assert ("BROKEN" in said) == (code == 1)
    assert ("the same bits" in said) == (share == 0)
    assert re.search(r"and [\d.]+ at most, had all been right", said)


@pytest.mark.parametrize(
    "changes",
    [
        {"perturbation": "output"},
        {"set": "box"},
        {"dtype": "float32"},
        {"relation": "add-remove", "divisor": "agent"},
        {"budget-schedule": "geometric", "budget-ratio": 0.8},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_right_laplace_noise_is_measured_as_that(changes: dict[str, Any]) -> None:
    """Of 3060 draws, 1.8 %: the bound is 8.6 % above 1 for the error, and 15 % is 8 deviations."""
    found = audit(
        {**settings("dp-iadmm"), "mechanism": "laplace", **changes}, canaries=500, false_alarms=RARE
    )
    assert not found.broken
    assert found.reach == math.inf
    assert 0.8 * found.epsilon < found.spread <= found.epsilon


SAMPLED = (
    "dataset=synthetic", "features=50", "examples-per-agent=60", "num-agents=10", "clip=1",
    "num-server-rounds=4", "target-epsilon=4", "batch=poisson", "batch-size=15",
    "relation=add-remove", "--canaries", "200", "--false-alarms", str(RARE),
)  # fmt: skip


@pytest.mark.parametrize(("share", "code"), [(1.0, 0), (0.5, 1)])
@pytest.mark.parametrize("name", ["dp-fedsgd", "scaffold", "fed-dyn"])
def test_noise_on_sampled_records_is_measured_against_what_is_charged(
    monkeypatch: pytest.MonkeyPatch, name: str, share: float, code: int
) -> None:
    """Of about 900 draws the spread is known to 2.4 %, so that half of the noise is 20 deviations.

    With all of it the alarm has the chance that is asked for.
    """
    drawn(monkeypatch, "gaussian", share)
    found, said = privet("audit", f"algorithm={name}", *SAMPLED)
    assert found == code, said
    assert ("BROKEN" in said) == (code == 1)
    assert "proven by the spread of the noise" in said


IN_TURN = (
    "dataset=synthetic", "features=50", "examples-per-agent=60", "num-agents=10", "clip=1",
    "num-server-rounds=6", "target-epsilon=4", "batch=cyclic", "batches=4",
    "--canaries", "200", "--false-alarms", str(RARE),
)  # fmt: skip


@pytest.mark.parametrize(("share", "code"), [(1.0, 0), (0.5, 1)])
@pytest.mark.parametrize(
    ("name", "bands", "more"),
    [
        ("dp-fedsgd", 1, ()),
        ("dp-fedsgd", 4, ()),
        ("scaffold", 2, ()),
        ("fed-dyn", 4, ()),
        ("fed-pdm", 4, ("max-local-steps=1", "step-size-rule=constant")),
    ],
)
def test_noise_in_bands_is_measured_against_what_is_charged(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    bands: int,
    more: tuple[str, ...],
    share: float,
    code: int,
) -> None:
    """The draws behind the noise of each step: half of the noise is 20 deviations at least.

    With all of it the alarm has the chance that is asked for.
    """
    drawn(monkeypatch, "gaussian", share)
    found, said = privet("audit", f"algorithm={name}", f"noise-bands={bands}", *IN_TURN, *more)
    assert found == code, said
    assert ("BROKEN" in said) == (code == 1)
    assert "proven by the spread of the noise" in said


UPDATES: dict[str, Any] = {
    "algorithm": "dp-fedavg", "clip": 0.5, "target-epsilon": 4.0, "num-agents": 100,
    "examples-per-agent": 5, "features": 10, "dataset": "synthetic",
}  # fmt: skip


@pytest.mark.parametrize("rounds", [1, 2, pytest.param(5, marks=pytest.mark.slow)])
def test_half_the_noise_on_whole_updates_is_found_out_in_any_number_of_rounds(
    monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """By the gap and by the spread.

    Of half the noise the gap proves 7.1 +- 0.4, seven deviations above 4, and the spread, of 1000
    draws a round, 8 +- 0.25.
    """
    run = {**UPDATES, "num-server-rounds": rounds}
    assert not audit(run, canaries=200, false_alarms=RARE).broken
    drawn(monkeypatch, "gaussian", 0.5)
    found = audit(run, false_alarms=RARE)
    assert found.measured > found.epsilon
    assert found.spread > 1.5 * found.epsilon


@pytest.mark.slow
def test_honest_runs_raise_no_more_false_alarms_than_is_said() -> None:
    """Of 150 audits with false alarms of .3 each of the bounds raises .1 at most.

    More than 73 have a chance of 1e-6 at .3. The spread's are .09 or more, as the slack of the grid
    is small: none at all has a chance of 1e-6.
    """
    run = {
        **RUN, "algorithm": "dp-fedsgd", "num-agents": 4, "features": 5, "examples-per-agent": 5,
        "num-server-rounds": 2,
    }  # fmt: skip
    alarms = sum(audit(run, canaries=60, false_alarms=0.3).broken for _ in range(150))
    assert 1 <= alarms <= 73


@pytest.mark.parametrize("share", [pytest.param(1.0, marks=pytest.mark.slow), 0.5])
def test_an_audit_that_could_not_have_proven_more_says_so(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Of several draws the law is not known, and guesses reach less than 4 at this delta."""
    drawn(monkeypatch, "laplace", share)
    code, said = privet("audit", *LAPLACE, "local-updates=4")
    assert code == 2, said
    assert "spread" not in said
    assert "UNDECIDED: this audit proves" in said
    code, said = privet("audit", *LAPLACE, "local-updates=4", "--json")
    told = json.loads(said.splitlines()[0])
    assert code == 2
    assert told["spread"] is None
    assert told["reach"] == told["provable"] < told["epsilon"]


@pytest.mark.parametrize(
    "run",
    [
        {"algorithm": "dp-fedsgd"},
        {"algorithm": "dp-fedsgd", "clipping": "batch"},
        {"algorithm": "fed-pdm", "dual": "public"},
        {"algorithm": "dp-fedavg"},
        {**SHARED, "features": 600},
        {"algorithm": "dp-iadmm", "mechanism": "laplace", "local-updates": 4},
    ],
    ids=lambda run: "-".join(map(str, run.values())),
)
def test_a_run_that_sends_the_same_bits_twice_is_broken(
    monkeypatch: pytest.MonkeyPatch, run: dict[str, Any]
) -> None:
    colluders = 2 if run.get("secure-sum") else None
    few: dict[str, Any] = {"canaries": 200, "false_alarms": RARE, "colluders": colluders}
    assert not audit({**RUN, **run}, **few).repeated
    for kind in ("gaussian", "laplace"):
        drawn(monkeypatch, kind, 0.0)
    found = audit({**RUN, **run}, **few)
    assert found.repeated
    assert found.broken


def test_too_little_noise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the noise that is charged: mu is 5 times what the account says."""
    drawn(monkeypatch, "gaussian", 0.2)
    found = audit(settings("dp-fedsgd"), false_alarms=RARE)
    assert found.epsilon == pytest.approx(4.0, rel=1e-3)
    assert found.broken
    assert found.measured > 2 * found.epsilon


@pytest.mark.slow
def test_a_sum_is_audited_with_its_colluders() -> None:
    """Of 2000 canaries 2.65 +- 0.13 is proven, 17 deviations above a tenth of 4."""
    found = audit({**RUN, **SHARED, "features": 1500}, false_alarms=RARE, colluders=2)
    assert found.epsilon == pytest.approx(4.0, rel=1e-3)
    assert not found.broken
    assert found.bound > 0.1 * found.epsilon


@pytest.mark.slow
def test_a_sum_with_less_noise_than_is_charged_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nine of ten agents help the observer, and the nodes count on two: mu is sqrt(8) times it.

    At epsilon 8, where as many canaries tell more, 24.6 +- 1.0 is proven: 16 deviations above it.
    """
    from privet.sim import audit as module

    trusting = module.trusting_nodes
    monkeypatch.setattr(
        module, "trusting_nodes", lambda folder, names, _, relation: trusting(folder, names, 2)
    )
    run = {**RUN, **SHARED, "features": 1500, "examples-per-agent": 200, "target-epsilon": 8.0}
    found = audit(run, canaries=1500, false_alarms=RARE, colluders=9)
    assert found.epsilon == pytest.approx(8.0, rel=1e-3)
    assert found.broken


@pytest.mark.slow
def test_the_measured_bound_is_that_of_a_known_mu() -> None:
    """Least squares with saturated records: the law of an upload is exactly Gaussian.

    One round, mu 1.5: of 40000 canaries 6.95 +- 0.08 is measured as an epsilon, eight deviations
    below the one limit and 18 above the other.
    """
    mu, rows = 1.5, 60
    run = {
        **{key: value for key, value in RUN.items() if key not in ("target-epsilon", "row-norm")},
        "algorithm": "dp-fedsgd",
        "dataset": "regression",
        "num-server-rounds": 1,
        "noise-scale": 2.0 / rows / mu,
    }
    del run["examples-per-agent"]
    run["examples-per-agent"] = rows
    found = audit(run, canaries=40_000, false_alarms=0.5)
    # The told half, and one coordinate to weigh, cost a little.
    low, high = (gaussian_epsilon(one, 1e-5) for one in (mu - 0.3, mu + 0.1))
    assert low < found.measured < high


def test_runs_that_promise_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="clips and adds noise"):
        audit({"algorithm": "led"})
    plain = {key: value for key, value in RUN.items() if key != "target-epsilon"}
    with pytest.raises(ConfigError, match="says it is not"):
        audit({**plain, "algorithm": "dp-fedsgd", "noise-scale": 0.1, "noise-seed": 1})
    with pytest.raises(ConfigError, match="a column for each"):
        audit({**RUN, **SHARED, "features": 5}, colluders=2)
    with pytest.raises(ConfigError, match="give --colluders"):
        audit({**RUN, **SHARED})
    with pytest.raises(ConfigError, match="colluders: not used without noise-sharing"):
        audit({**RUN, "algorithm": "dp-fedsgd"}, colluders=2)


def test_a_damaged_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    """Each entry left out or of another type, files cut, and numbers that JSON does not have."""
    folder = run_inline({**settings("fed-pdm"), "output-dir": str(tmp_path)}, "one").folder
    for file in ("summary.json", "privacy.json"):
        whole = (folder / file).read_text()
        texts = [json.dumps(changed) for changed in changes(json.loads(whole))][::3]
        texts += [whole[: len(whole) // part] for part in (2, 3, 7)]
        texts += ["[" * 200_000, "[]", "1", "", "null", '{"accounts": [{"epsilon": NaN}]}']
        refused, read = [], 0
        for text in texts:
            (folder / file).write_text(text)
            try:
                config, epsilon = _run(folder)
                read_config(config)
                assert epsilon > 0 or epsilon == -1
                read += 1
            except PrivetError as error:
                refused.append(str(error))
        assert not any("\n" in line for line in refused)
        assert len(refused) > 20
        assert read > 20
        (folder / file).write_text(whole)
    content = json.loads(whole)
    content["accounts"][0]["epsilon"] = None
    (folder / "privacy.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"privacy\.json: accounts\.0\.epsilon: expected a num"):
        _run(folder)


def test_the_command_audits_the_settings_of_a_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    operated = {"output-dir": str(tmp_path), "log-json": True, "tolerance": 1e-9, "exclude": "3"}
    folder = run_inline({**settings("fed-pdm"), **operated}, "one").folder
    monkeypatch.setattr("privet.cli.audit.SECONDS", 0.0)
    code, said = privet("audit", str(folder), "--canaries", "200", "--false-alarms", "1e-6")
    assert code == 0, said
    played = [line for line in said.splitlines() if line.endswith("of 12 rounds")]
    assert played == [f"{number} of 12 rounds" for number in range(1, 13)], "a run, and again"
    assert "epsilon in the run's account: 4" in said
    halved = re.search(r"(\d+) canaries to guess on, 1 run\)", said)
    assert halved is not None
    assert 2 * int(halved[1]) >= 200
    assert "nothing more is proven (a false alarm has a chance of at most 1e-06)" in said
    account = folder / "privacy.json"
    content = json.loads(account.read_text())
    content["accounts"][0]["epsilon"] = 1e-3  # what was proven is compared with this, too
    account.write_text(json.dumps(content))
    code, said = privet("audit", str(folder), "--json")
    assert code == 1
    found = json.loads(said.splitlines()[0])
    assert found["broken"] is True
    assert found["written"] == 1e-3
    assert found["epsilon"] == pytest.approx(4.0, rel=1e-3)
    account.unlink()
    assert "expected the folder of a finished run" in privet("audit", str(folder))[1]
    assert "one run folder" in privet("audit", str(folder), "--preset", "mnist")[1]
    assert "false-alarms" in privet("audit", "algorithm=led", "--false-alarms", "2")[1]


def private_presets() -> list[str]:
    return [name for name in preset_names() if load_preset(name).get("target-epsilon")]


@pytest.mark.slow
@pytest.mark.parametrize("name", private_presets())
def test_no_private_preset_is_broken(name: str) -> None:
    """Its settings, as many agents and rounds at most as the audit has time for."""
    run = load_preset(name)
    shared = run.get("noise-sharing")
    few = {
        "dataset": "digits",
        "num-agents": min(run.get("num-agents", 10), 10),
        "num-server-rounds": min(run["num-server-rounds"], 40),
    }
    run = {key: value for key, value in run.items() if key not in ("data-path", "divisor")}
    found = audit(
        {**run, **few}, canaries=10_000, false_alarms=RARE, colluders=1 if shared else None
    )
    assert found.epsilon == pytest.approx(run["target-epsilon"], rel=1e-3)
    assert not found.broken
    assert found.bound > 0 or found.epsilon <= 1  # which takes more canaries to see at all


@pytest.mark.slow
def test_more_canaries_prove_more() -> None:
    """Of the same run, on average: the audit is not capped by how it guesses."""
    few, many = (
        np.mean([audit(settings("dp-fedsgd"), canaries=count).measured for _ in range(3)])
        for count in (100, 2000)
    )
    assert many > few
