"""The figures that a data protection officer asks for: delta, persons, digests and ledgers."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from privet.core import ConfigError
from privet.kernel import LedgerFile, Release, gaussian_epsilon
from privet.server_apps import read_config
from privet.server_apps.planning import plan_account
from privet.sim.inline import run_inline
from support.cli import privet

SGD = {"algorithm": "dp-fedsgd", "clip": 1.0, "dataset": "synthetic", "num-agents": 3,
       "num-server-rounds": 4, "target-epsilon": 3.0}  # fmt: skip
PUBLIC = {"num-examples": 1000, "dim": 20}


def planned(**given: Any) -> dict[str, Any]:
    keys = {key.replace("_", "-"): value for key, value in given.items()}
    account = plan_account(read_config({**SGD, **keys}), PUBLIC).account
    return {"reason": account["reason"], **account["accounts"][0]}


@pytest.mark.parametrize("delta", [0.4, 1e-3])
def test_delta_of_one_record_in_n_is_refused(delta: float, tmp_path: Path) -> None:
    line = f"delta = {delta:g}: agent 0 has 1000 records, .* take at most 0.0001"
    with pytest.raises(ConfigError, match=line):
        planned(delta=delta)
    with pytest.raises(ConfigError, match=r"delta = 0\.4: agent . has"):
        run_inline({**SGD, "delta": 0.4, "output-dir": str(tmp_path)}, "run")
    assert not list(tmp_path.rglob("statement.html"))


def test_delta_near_one_in_n_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    planned(delta=9e-4)
    assert "delta = 0.0009: agent 0 has 1000 records; a tenth of 1 / 1000" in caplog.text
    caplog.clear()
    planned(delta=1e-4)
    assert "a tenth" not in caplog.text


def test_delta_of_whole_agents_is_compared_with_their_number() -> None:
    keys = {"relation": "replace-agent", "num-agents": 40}
    with pytest.raises(ConfigError, match=r"delta = 0.03: there are 40 agents"):
        planned(delta=0.03, **keys)
    assert planned(delta=2e-3, **keys)["delta"] == 2e-3


def test_target_of_zero_is_an_error_where_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('algorithm = "dp-fedsgd"\ntarget-epsilon = 0.0\n')
    for words in (["target-epsilon=0"], ["target-epsilon=0.0"], ["--config", str(file)]):
        code, _, said = privet("run", "algorithm=dp-fedsgd", *words)
        assert (code, said.count("\n")) == (2, 1)
        assert "target-epsilon = 0" in said
        assert "leave the key out" in said
    without = {key: value for key, value in SGD.items() if key not in ("target-epsilon", "clip")}
    assert read_config(without)["target-epsilon"] == 0


def test_sampler_is_in_the_delta_shown() -> None:
    usual, small = planned(), planned(delta=1e-12)
    draws = SGD["num-server-rounds"] * PUBLIC["dim"]
    for account in (usual, small):
        assert 0 < account["drawn-delta"] < (1 + math.exp(3)) * draws * 2.4e-16
    assert usual["reason"].startswith("epsilon 3 at delta 1e-05 (")
    shown = small["reason"].split("delta ")[1].split(" (")[0]
    ideal, drawn = map(float, shown.split(" + "))
    assert ideal == 1e-12
    assert small["drawn-delta"] <= drawn <= 1.1 * small["drawn-delta"]


def test_person_of_several_records_has_an_epsilon_of_its_own() -> None:
    assert "person" not in planned()
    account = planned(rows_per_person=3)
    person = account["person"]
    assert person["rows"] == 3
    exact = gaussian_epsilon(3 * account["mu"], 1e-5)
    assert exact <= person["epsilon"] <= exact * (1 + 1e-9)
    assert person["drawn-delta"] > account["drawn-delta"]
    words = [f"{key}={value}" for key, value in {**SGD, **PUBLIC, "rows-per-person": 3}.items()]
    code, said, _ = privet("account", *words)
    assert code == 0
    assert "a person of 3 records" in said


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("officer")
    return run_inline({**SGD, "rows-per-person": 2, "output-dir": str(folder)}, "run")


@pytest.fixture
def copied(finished: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished.folder, tmp_path / finished.folder.name))


def test_statement_names_a_person_and_the_digests(finished: Any) -> None:
    page = (finished.folder / "statement.html").read_text()
    assert "of at most 2 records: ε = " in page
    for digest in finished.summary["sha-256"].values():
        assert digest in page
    assert set(finished.summary["sha-256"]) == {"model.npz", "history.jsonl", "asked.jsonl"}
    code, said, _ = privet("statement", finished.folder, "--verify")
    assert (code, "DIFFERS" in said, "no ledger was given" in said) == (0, False, True)


@pytest.mark.parametrize(
    "name", ["model.npz", "history.jsonl", "asked.jsonl", "statement.html", "privacy.json"]
)
def test_a_changed_file_is_found(copied: Path, name: str) -> None:
    file = copied / name
    if name == "privacy.json":
        account = json.loads(file.read_text())
        for entry in account["accounts"]:
            entry["epsilon"] = 1.0
        file.write_text(json.dumps(account))
    elif name == "history.jsonl":
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(lines).replace("0", "1", 1))
    else:
        file.write_bytes(file.read_bytes() + b" ")
    code, said, _ = privet("statement", copied, "--verify", "--json")
    found = json.loads(said)
    assert (code, found["verified"]) == (1, False)
    wrong = [check["what"] for check in found["checks"] if not check["holds"]]
    assert any(line.startswith(("statement.html", name)) for line in wrong)


def test_a_ledger_is_compared_with_the_account(finished: Any, tmp_path: Path) -> None:
    account = json.loads((finished.folder / "privacy.json").read_text())
    experiment = finished.summary["experiment"]
    (entry,) = account["agents"]["1"]["releases"]
    release = Release.from_dict({key: value for key, value in entry.items() if key != "times"})
    ledger = LedgerFile(tmp_path / "ledger.jsonl")
    for number in range(entry["times"]):
        ledger.charge(
            release, 1e-5, note=f"run 7 round {number + 1} agent 1", experiment=experiment
        )
    command = ("statement", finished.folder, "--verify", "--ledger", ledger.path)
    code, said, _ = privet(*command)
    assert code == 0
    assert "agent 1: 4 messages charged, all accounted" in said
    ledger.charge(release, 1e-5, note="run 8 round 9 agent 1", experiment=experiment)
    code, said, _ = privet(*command)
    assert code == 1
    assert "5 messages charged, 1 of them not in the account" in said
    data = ledger.path.read_bytes()
    ledger.path.write_bytes(
        data.replace(b'"round 1', b'"round 2', 1).replace(b"run 7", b"run 6", 1)
    )
    code, _, said = privet(*command)
    assert (code, said.count("\n")) == (1, 1)
    assert "ledger" in said


def test_ledger_without_verify_is_refused(finished: Any) -> None:
    code, _, said = privet("statement", finished.folder, "--ledger", "x")
    assert (code, "--ledger: goes with --verify" in said) == (2, True)
