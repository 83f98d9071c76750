"""``privet check-node``: what it says of a configuration is what a node of it does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from privet.client_apps import client_app
from privet.kernel import Release
from privet.kernel.ledger import LedgerFile
from privet.problems import L2, BinaryLogistic
from privet.sim.engine import InlineGrid
from privet.wire import ENROL
from privet.wire.contract import CONTRACT_VERSION
from support.cli import privet


def text(config: dict[str, Any]) -> str:
    return " ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={str(value).lower()}"
        for key, value in config.items()
    )


def limits(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "agent": "me",
        "max-epsilon": 3.0,
        "delta": 1e-5,
        "ledger-path": str(folder / "ledger.jsonl"),
        **{key.replace("_", "-"): value for key, value in more.items()},
    }


def check(config: dict[str, Any], *options: str) -> tuple[int, str]:
    done = privet("check-node", text(config), *options)
    return done.code, done.out + done.err


@pytest.fixture
def trusted(tmp_path: Path) -> str:
    path = tmp_path / "trusted.yaml"
    path.write_text("key: ssh-ed25519 AAAA\n")
    return f"--trusted-entities={path}"


def answers(config: dict[str, Any]) -> dict[str, bool]:
    """Return whether a node with this configuration enrols, and sends a loss without noise."""
    problem = BinaryLogistic(np.eye(4), [1, -1, 1, -1], regularizer=L2(0.1))
    grid = InlineGrid(client_app(None, lambda context: problem), [config])
    asked = {"contract": CONTRACT_VERSION, "protocol": "fed-plt", "version": 1}
    question = ConfigRecord({**asked, "experiment": "e", "quiet": False, "secure-sum": False})
    model = ArrayRecord({"x": Array(np.zeros(4))})
    contents = {
        ENROL: RecordDict({"privet": question}),
        "evaluate": RecordDict({"arrays": model, "config": ConfigRecord()}),
    }
    return {
        kind: not next(iter(grid.send_and_receive([Message(content, 1000, kind)]))).has_error()
        for kind, content in contents.items()
    }


def test_a_node_with_limits_and_signed_apps_is_as_it_should_be(
    tmp_path: Path, trusted: str
) -> None:
    config = limits(tmp_path, min_noise=4.0, max_clip=1.0)
    code, said = check(config, trusted)
    assert code == 0, said
    assert "max-epsilon: 3 at delta 1e-05, for life" in said
    assert "private uploads, with a clip up to 1 and noise of 4 or more" in said
    assert "weak" not in said
    assert answers(config) == {ENROL: True, "evaluate": False}
    assert not (tmp_path / "ledger.jsonl").exists()  # nothing is changed


@pytest.mark.parametrize(
    ("own", "line"),
    [
        ({}, "max-steps: 10000 local steps in a round"),
        ({"max_steps": 50}, "max-steps: 50 local steps in a round"),
    ],
)
def test_the_bound_on_the_steps_is_shown(
    own: dict[str, Any], line: str, tmp_path: Path, trusted: str
) -> None:
    code, said = check(limits(tmp_path, **own), trusted)
    assert code == 0, said
    assert line in said
    assert "up to 100,000 local steps" in check({"agent": "me"}, trusted)[1]


@pytest.mark.parametrize(
    ("keys", "code", "lines"),
    [
        (
            {},
            1,
            [
                "analyses: un-noised, in the clear or masked; min-records 10, min-cell 5",
                "  weak max-analyses: any number, as max-analyses sets none: which of them min",
            ],
        ),
        ({"min-cell": 1}, 1, ["  weak max-analyses: any number, as max-analyses sets none\n"]),
        (
            {"sums-only": True, "min-records": 20, "min-cell": 7},
            1,
            ["in secure sums alone (sums-only); min-records 20, min-cell 7"],
        ),
        ({"allow-analyses": False}, 1, ["analyses: none, as allow-analyses = false"]),
        ({"max-analyses": 3}, 2, ["max-analyses needs analyses-path"]),
        ({"min-cell": 0}, 2, ["node-config: min-cell = 0"]),
    ],
)
def test_the_rules_for_analyses_are_shown(
    tmp_path: Path, trusted: str, keys: dict[str, Any], code: int, lines: list[str]
) -> None:
    (tmp_path / "t.csv").write_text("age,died\n1,0\n2,1\n")
    own = {"agent": "me", "dataset": "csv", "data-path": str(tmp_path / "t.csv"), **keys}
    found, said = check(own, trusted)
    assert found == code, said
    for line in lines:
        assert line in said


def test_a_schema_is_opened(tmp_path: Path, trusted: str) -> None:
    """One that was read from the records is none of a node whose messages are noised."""
    (tmp_path / "t.csv").write_text("age,died\n1,0\n2,1\n")
    path = tmp_path / "schema.toml"
    own = {"agent": "me", "dataset": "csv", "data-path": str(tmp_path / "t.csv")}
    own["schema"] = str(path)
    code, said = check(own, trusted)
    assert (code, f"bad  schema {path}: No such file" in said) == (2, True)
    path.write_text("from-records = true\n[columns]\nage = [0, 9]\ndied = [0, 1]\n")
    assert f"ok   schema: {path}, 2 columns" in check(own, trusted)[1]
    limited = {**limits(tmp_path), **own, "num-examples": 1000}
    code, said = check(limited, trusted)
    assert (code, "the schema holds from-records = true" in said) == (2, True)
    path.write_text(path.read_text().replace("from-records = true\n", ""))
    assert "from-records" not in check(limited, trusted)[1]


def test_the_number_of_analyses_is_shown(tmp_path: Path, trusted: str) -> None:
    own = {"agent": "me", "max-analyses": 3, "analyses-path": str(tmp_path / "analyses.jsonl")}
    _, said = check(own, trusted)
    assert "max-analyses: 3" in said
    assert "weak max-analyses" not in said


def test_a_node_with_a_budget_answers_noised_descriptions_alone(
    tmp_path: Path, trusted: str
) -> None:
    _, said = check(limits(tmp_path), trusted)
    assert "analyses: noised descriptions and curves alone, under the budget" in said


def test_what_was_spent_is_shown(tmp_path: Path, trusted: str) -> None:
    release = Release("gaussian", sensitivity=1.0, scale=10.0)
    spent = LedgerFile(tmp_path / "ledger.jsonl").charge(release, 1e-5)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    code, said = check(limits(tmp_path), trusted)
    assert code == 0, said
    assert f"spent: epsilon {spent.epsilon:.6g} in 1 messages" in said
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("config", "line", "un_noised"),
    [
        ({"agent": "me"}, "ask for evaluations and uploads without noise", True),
        ({"agent": "me", "max-clip": 1.0}, "ask as often as it likes: nothing stops it", False),
        ({"agent": "me", "max-clip": 1.0, "allow-run-data": True}, "name any file", False),
        ({"agent": "me", "max-clip": 1.0, "colour": "red"}, "not read by Privet", False),
    ],
)
def test_what_is_weak_is_named(
    config: dict[str, Any], line: str, un_noised: bool, trusted: str
) -> None:
    code, said = check(config, trusted)
    assert code == 1
    assert any(each.startswith("  weak") and line in each for each in said.splitlines())
    assert answers(config) == {ENROL: True, "evaluate": un_noised}


def test_unsigned_apps_are_weak(tmp_path: Path) -> None:
    code, said = check(limits(tmp_path))
    assert code == 1
    assert "send other code than Privet's" in said


def test_a_ledger_that_others_may_write_is_weak(tmp_path: Path, trusted: str) -> None:
    path = tmp_path / "ledger.jsonl"
    path.touch(0o600)
    path.chmod(0o666)
    code, said = check(limits(tmp_path), trusted)
    assert code == 1
    assert f"ledger-path: {path} is open to others (mode 0666)" in said


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"max-cllip": 1.0}, "unknown key 'max-cllip'; did you mean max-clip?"),
        ({"max-steps": 0}, "max-steps = 0, expected a number >= 1"),
        ({"delta": 2.0}, "delta = 2.0, expected a number below 1"),
        ({"ledger-path": "here"}, "expected an absolute path"),
        ({"ledger-path": "/nowhere/at/all.jsonl"}, "there is no folder /nowhere/at"),
        ({"min-seconds-between": 5}, "min-seconds-between needs state-path"),
        ({"data-path": "/nowhere.csv", "dataset": "csv"}, "/nowhere.csv: no such file"),
        ({"data-path": "/nowhere.csv"}, "data-path is not used with dataset = breast-cancer"),
        (
            {"trust": "sum", "trust-colluders": 1, "trust-key": "/no", "trust-peers": "/no"},
            "trust-key, trust-peers: [Errno 2]",
        ),
        (
            {"least-trusted": 2, "trust-key": "/no", "trust-peers": "/no"},
            "trust-key, trust-peers: [Errno 2]",
        ),
        ({"least-trusted": 2}, "trust-key is missing; least-trusted needs it"),
        ({"trust-key": "/no"}, "trust-key is not used without least-trusted"),
        ({"least-trusted": 1, "trust-key": "/no", "trust-peers": "/no"}, "a whole number >= 2"),
        (
            {"least-trusted": 2, "trust-key": "/no", "trust-peers": "/no", "trust-colluders": 1},
            "trust-colluders is not used without trust = 'sum'",
        ),
        ({"least-trsted": 2}, "unknown key 'least-trsted'; did you mean least-trusted?"),
    ],
)
def test_what_a_node_cannot_work_with(
    changes: dict[str, Any], line: str, tmp_path: Path, trusted: str
) -> None:
    code, said = check({**limits(tmp_path), **changes}, trusted)
    assert code == 2
    assert line in said


@pytest.mark.parametrize(
    ("delta", "level", "line", "enrols"),
    [
        (0.02, "ok  ", "which a node of 50 examples or more refuses", True),
        (0.05, "weak", "a tenth of 1 / 4, its examples, is usual at most", True),
        (0.25, "bad ", "1 / 4 or more lets a run publish one as it is: take at most 0.03", False),
    ],
)
@pytest.mark.parametrize("declared", [True, False])
def test_delta_is_held_against_the_nodes_own_number_of_examples(
    delta: float,
    level: str,
    line: str,
    enrols: bool,
    declared: bool,
    tmp_path: Path,
    trusted: str,
) -> None:
    """Of a number that is declared, and of a file of four rows."""
    (tmp_path / "d.csv").write_text("x,y\n1,0\n2,1\n3,0\n4,1\n")
    own = {"dataset": "csv", "data-path": str(tmp_path / "d.csv"), "partition": "none"}
    own |= {"partition-id": 0, "num-partitions": 2}
    config = {**limits(tmp_path, delta=delta), **({"num-examples": 4} if declared else own)}
    code, said = check(config, trusted)
    assert code == ["ok  ", "weak", "bad "].index(level)
    (found,) = [each for each in said.splitlines() if line in " ".join(each.split())]
    assert found.startswith(f"  {level} delta")
    assert answers(config)[ENROL] is enrols


def test_a_damaged_ledger_is_named(tmp_path: Path, trusted: str) -> None:
    (tmp_path / "ledger.jsonl").write_text("edited\n")
    os.chmod(tmp_path / "ledger.jsonl", 0o600)
    code, said = check(limits(tmp_path), trusted)
    assert code == 2
    assert "nothing is released until it has been inspected" in said


def test_a_configuration_comes_from_a_file_too(tmp_path: Path, trusted: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        f'agent = "me"\nmax-epsilon = 3.0\ndelta = 1e-5\nledger-path = "{tmp_path}/l"\n'
    )
    done = privet("check-node", str(file), trusted)
    assert done.code == 0, done.out
    done = privet("check-node", str(tmp_path / "none.toml"), trusted)
    assert done.code == 2
    assert done.err.count("\n") == 1
