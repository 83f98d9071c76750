"""The ``privet`` command: what it prints, and one line with the right exit code when it cannot."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.cli.keys import COMMON, FIRST, completed
from privet.core import ConfigError, algorithms
from privet.core.files import write_npz
from privet.data import NAMES
from privet.server_apps import progress_bar as progress
from privet.server_apps.config import keys_of_algorithm, read_config, table
from privet.server_apps.execute import execute
from privet.strategies import Round
from support.cli import privet
from support.paths import golden

SUMS = ("algorithm=dp-fedsgd", "secure-sum=true", "noise-sharing=true", "clip=1", "noise-scale=1")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["bogus"], 2, "No such command 'bogus'; see "),
        (["rn"], 2, "No such command 'rn'. Did you mean 'run'; see "),
        (["report"], 2, "Missing argument 'RUN_DIR...'; see "),
        (["run", "rho=1", "rho=2"], 2, "rho: given twice"),
        (["run", "algorithm=fedplt"], 2, "; did you mean 'fed-plt'?"),
        (["run", "algorithm=fedavg"], 2, "Flower's own: flwr.serverapp.strategy.FedAvg"),
        (["run", "algorithm=FedProx"], 2, "Flower's own: flwr.serverapp.strategy.FedProx"),
        (["run", "dataset=mnst"], 2, "; did you mean 'mnist'?"),
        (["run", "--engine", "rai"], 2, "ray; did you mean 'ray'?"),
        (["run", "--preset", "dp-iadmm/mnst"], 2, "; did you mean 'dp-iadmm/mnist'?"),
        (["keys", "locl-epochs"], 2, "'locl-epochs'; did you mean 'local-epochs'?"),
        (["tune", "led", "algorithm=gfl"], 2, "algorithm = gfl: the command names led"),
        (["run", "--bogus"], 2, "--bogus"),
        (["run", "--num-agents", "4"], 2, "--num-agents is a run-config key: write num-agents=4;"),
        (["tune", "led", "--num-agents=4"], 2, "run-config key: write num-agents=4; see "),
        (["account", "--num_agents"], 2, "run-config key: write num-agents=VALUE; see "),
        (["report", "--num-agents", "4"], 2, "No such option '--num-agents'; see "),
        (["run", "num_agents=4"], 2, "unknown config key 'num_agents': write num-agents=4"),
        (["run", "dataset=w.csv"], 2, "dataset = 'w.csv': write dataset=csv data-path=w.csv"),
        (["keys", "epsilonn"], 2, "did you mean 'target-epsilon' or 'epsilon'?"),
        (["run", "epsilonn=2"], 2, "did you mean 'target-epsilon' or 'epsilon'?"),
        (["reproduce", "fedplt/table-2"], 2, "or all; did you mean 'fed-plt/table-2'?"),
        (["reproduce", "fed-pdm"], 2, "or all; did you mean 'fedpdm'?"),
        (["reproduce", "fed-plt/tabel-2"], 2, "theorems; did you mean 'fed-plt/table-2'?"),
        (["errata", "fed-plt/prop3"], 2, "fed-plt/prop-4; did you mean 'fed-plt/prop-3'?"),
        (["errata", "fed-pdm"], 2, "or all; did you mean 'fedpdm'?"),
        (["new", ""], 2, "new: name the folder to write, e.g. privet new my-app"),
        (["resume"], 2, "No such command 'resume': write privet run resume=RUN_DIR; see "),
        (["train"], 2, "No such command 'train': write privet run; see "),
        (["run", "rounds=5"], 2, "'rounds'; did you mean 'num-server-rounds'?"),
        (["run", "num_rounds=5"], 2, "did you mean 'num-server-rounds'?"),
        (["run", "--rounds", "5"], 2, "--rounds is a run-config key: write num-server-rounds=5;"),
        (["run", "lr=0.1"], 2, "'lr'; did you mean 'step-size' or 'step-size-base'?"),
        (["run", "learning-rate=0.1"], 2, "did you mean 'step-size' or 'step-size-base'?"),
        (["run", "clients=5"], 2, "'clients'; did you mean 'num-agents'?"),
        (["run", "nodes=3"], 2, "did you mean 'num-agents'?"),
        (["run", "epochs=5"], 2, "did you mean 'local-epochs' or 'max-local-steps'?"),
        (["run", "optimizer=sgd"], 2, "did you mean 'local-solver'?"),
        (["run", "alpha=0"], 2, "did you mean 'dirichlet-alpha' or 'alpha-u'?"),
        (["run", "dp=true"], 2, "did you mean 'target-epsilon'?"),
        (["run", "eps=4"], 2, "did you mean 'target-epsilon'?"),
        (["run", "epsilon=4"], 2, "it is a key of dp-iadmm; did you mean 'target-epsilon'?"),
        (["run", "momentum=.9"], 2, "it is a key of dp-fedsgd; did you mean 'server-momentum'?"),
        (["run", "max_grad_norm=1"], 2, "did you mean 'clip'?"),
        (["run", "noise_multiplier=1"], 2, "did you mean 'noise-scale' or 'noise-variance'?"),
        (["run", "clip=off"], 2, "clip = 'off': expected none or a number"),
        (["run", "clip=-1"], 2, "clip = -1.0: must be none or > 0 and <= 1e+100"),
        (["run", "clip=1e-200"], 2, "clip = 1e-200: must be none or >= 1e-100"),
        (["run", "tolerance=off"], 2, "tolerance = 'off': expected auto or none or a number"),
        (["run", "metrics-port=70000"], 2, "must be none or > 0 and <= 65535"),
        (["run", "regularizer-weight=-1.5"], 2, "must be auto or none or > 0"),
        (["run", "buffer=none", "asynchronous=true"], 2, "expected auto or a whole number"),
        (["run", "algorithm=gfl", "participants=some"], 2, "expected all or a whole number"),
        (["run", "algorithm=led", "value-bits=5"], 2, "choose one of none, 4, 8, 16, 32, noise"),
        (["run", "target-epsilon=0"], 2, "no noise brings the total down to that"),
        (["run", "seed=abc"], 2, "seed = 'abc': expected a whole number"),
        (["run", "rhoo=2"], 2, "unknown config key 'rhoo'; did you mean 'rho'?"),
        (["run", "rho"], 2, "'rho': expected key=value"),
        (["run", "=5"], 2, "'=5': expected key=value"),
        (["run", "--config", "/dev/zero"], 2, "/dev/zero: File too large; expected a TOML file"),
        (["run", "--engine", "ray", "--ray-runtime-env", "/dev/zero"], 2, "File too large"),
        (["data", "a.csv", "schema=/dev/zero"], 2, "schema /dev/zero: File too large"),
        (["check-node", "nowhere.toml"], 2, "privet: nowhere.toml: No such file"),
        (["check-node", "node.yaml"], 2, "privet: node.yaml: no key=value and no .toml file"),
        (["check-node", "max-epsilon: 4 delta=1e-5"], 2, "privet: max-epsilon: 4: no key=value"),
        (["data", "https://example.org/a.csv"], 2, "a.csv': expected a path: fetch the file"),
        (["data", "hf:"], 2, "hf:: expected the name of a data set of the hub, or a folder"),
        (["describe", "a.csv", "columns=2"], 2, "it is a key of every training"),
        (["run", "regularizer-weight=1e-400"], 2, "nearer 0 than a number can be held"),
        (["run", "regularizer-weight=.1e-400"], 2, "nearer 0 than a number can be held"),
        (["run", "num-agents=1000000000000"], 2, "must be auto or > 0 and <= 1e+07"),
        (["run", "rho=high"], 2, "rho = 'high': expected auto or a number"),
        (["run", "--config", "/nowhere.toml"], 2, "directory; expected a TOML file of keys"),
        (["run", "--engine", "spark"], 2, "'spark': choose one of auto, inline, cohort, ray"),
        (["run", "--actors", "2"], 2, "--ray-runtime-env belong to the Ray engine"),
        (
            ["run", "--engine", "ray", "--ray-runtime-env", "[1]"],
            2,
            "--ray-runtime-env [1]: No such file",
        ),
        (["replay", "/nowhere.json"], 2, "/nowhere.json: No such file"),
        (["tune", "fed-avg"], 2, "unknown algorithm 'fed-avg': known are"),
        (["bench", "speed"], 2, "unknown benchmark 'speed'"),
        (["bench", "wire", "--peers", "python"], 2, "--peers: bench wire has none"),
        (["bench", "wire", "--nodes", "8"], 2, "--nodes: bench wire starts none"),
        (["report", "/nowhere"], 2, "/nowhere"),
        (["watch", "/nowhere"], 2, "/nowhere: no run writes here"),
        (["ledger", "/nowhere"], 2, "/nowhere: no such file; expected a node's ledger"),
        (["ledger", "oditties.py"], 2, "a node's ledger; did you mean 'oddities.py'?"),
        (["run", "--config", "odities.py"], 2, "; did you mean 'oddities.py'?"),
        (["run", "resume=rnus"], 2, "/runs'?"),
        (["data", "odities.py"], 2, "/oddities.py'?"),
        (["predict", "rnus", "oddities.py"], 2, "; did you mean 'runs'?"),
        (["audit", "rnus"], 2, "; did you mean 'runs'?"),
        (["watch", "rnus"], 2, "; did you mean 'runs'?"),
        (["report", "rnus"], 2, "a run folder; did you mean 'runs'?"),
        (["replay", "odities.py"], 2, "; did you mean 'oddities.py'?"),
        (["new", "app", "--model", "torhc"], 2, "torch; did you mean 'torch'?"),
        (["run", "--preset", "mnits"], 2, "; did you mean 'mnist'?"),
        (["run", "relation=replaceone"], 2, "; did you mean 'replace-one'?"),
        (["run", "resume=/nowhere"], 2, "no checkpoint at /nowhere"),
        (["run", "row-norm=0.0", "target-epsilon=1.0"], 2, "target-epsilon needs clip > 0"),
        (["run", "delta=0.1"], 2, "delta = 0.1: not used without noise"),
        (
            ["run", "local-solver=newton", "step-size=0.1"],
            2,
            "step-size = 0.1: not used with local-solver = newton, which takes its own steps",
        ),
        (["run", "local-solver=agd", "step-size=0.1"], 2, "step-size = 0.1: not used with local"),
        (["run", "relation=add-remove"], 2, "relation = add-remove: not used without noise"),
        (["run", "participation=fraction"], 2, "participation = fraction: fraction = 1.0 asks all"),
        (["run", "max-epsilon=3"], 2, "max-epsilon is a node's own key"),
        (["account", "colluders=3"], 2, "colluders: not used without noise-sharing = true"),
        (["tune", "--app", "nofolder"], 2, "nofolder: no such folder"),
        (["run", "h=group-l1", "h-weight=.1", "h-group-size=7"], 2, "7 does not divide 31"),
        (["run", "intercept=true"], 2, "intercept = True: choose one of auto, yes, no"),
        (["data", "a.csv", "data-path=/b.csv"], 2, "data-path = /b.csv: the file is a.csv"),
        (["data", "dataset=digits", "partition=natural-id"], 2, "give id-column (dataset csv"),
        (["account", *SUMS], 2, "noise-sharing = true: give colluders"),
        (["account", *SUMS, "colluders=10"], 2, "colluders = 10: the run has 10 agents; take at"),
        (["audit", *SUMS, "--colluders", "99"], 2, "--colluders 99: the run has 10 agents"),
        (["tune", "led", "--out", "x"], 2, "--out is of an app's folder"),
        (["tune", "led", "--app", "oddities:fails"], 2, "oddities:fails: KeyError: 'x' (/"),
        (["tune", "led", "--app", "oddities:nothing"], 2, "expected a problem, found NoneType"),
        (["tune", "led", "--app", "unreadable:f"], 2, "SyntaxError: invalid syntax (/"),
        (["keys", "fedplt"], 2, "unknown config key 'fedplt'; did you mean 'fed-plt'?"),
        (["new", "/proc/app"], 1, "/proc/app: No such file or directory"),
        (["watch", "runs", "--port", "70000"], 2, "70000 is not in the range"),
        (["report", "runs"], 2, "expected a run folder, such as runs/1"),
        (["run", "num-agents=1000"], 2, "455 examples cannot give each of 1000 agents one"),
        (["data", __file__, "dataset=mnist"], 2, "not an .npz file"),
        (["report", __file__], 2, "no such file; expected a run folder"),
        (["watch", __file__], 2, "no run writes here"),
        (["ledger", __file__], 1, "line 1 is not a ledger entry"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    tmp_path: Path, monkeypatch: Any, arguments: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "oddities.py").write_text("def fails(c): {}['x']\ndef nothing(c): pass\n")
    (tmp_path / "unreadable.py").write_text("def f(:\n")
    (tmp_path / "runs" / "1").mkdir(parents=True)
    (tmp_path / "runs" / "1" / "history.jsonl").touch()
    found = privet(*arguments)
    assert found[0] == code
    (line,) = [line for line in found[2].splitlines() if line.startswith("privet: ")]
    assert said in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["num-agents=2", "min-agents=3"], "min-agents = 3: above num-agents = 2, so that"),
        (["secure-sum=true", "num-agents=2"], "num-agents = 2: a secure sum needs 3 agents"),
        (
            ["secure-sum=true", "participation=balanced", "fraction=0.2"],
            "participation: 2 agents in a round: a secure sum needs 3 agents",
        ),
        ([f"resume={__file__}"], "is damaged, or no checkpoint"),
        (["resume=/dev/null"], "is damaged, or no checkpoint (not a regular file)"),
        (["resume=model.npz"], "model.npz is no checkpoint"),
        (["--colluders", "2"], "--colluders: not used without noise-sharing = true"),
        (SUMS, "noise-sharing = true: give --colluders, how many of the nodes may collude"),
        ([*SUMS, "--colluders", "10"], "--colluders 10: the run has 10 agents; take at most 9"),
    ],
)
def test_what_can_never_run_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch: Any, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "model.npz", {"x": np.zeros(3)})
    _, out, err = privet("run", *arguments)
    assert said in err
    assert (out, err.count("\n")) == ("", 1)
    assert not (tmp_path / "runs").exists()


def test_a_checkpoint_of_another_algorithm_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = ("num-agents=2", "num-server-rounds=2", "baseline-seconds=0", "output-dir=first")
    assert privet("run", *keys).code == 0
    (folder,) = (tmp_path / "first").iterdir()
    code, out, err = privet("run", "algorithm=fed-dyn", f"resume={folder}", "num-server-rounds=3")
    said = "the checkpoint is of fed-plt version 1, this run of fed-dyn version 1: set algorithm"
    assert (code, out, err) == (2, "", f"privet: resume: {said} = fed-plt\n")
    assert not (tmp_path / "runs").exists()


def test_a_private_run_on_a_table_names_all_that_is_missing_with_the_schema(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(60)))
    table = ("dataset=csv", f"data-path={tmp_path / 'a.csv'}", "num-agents=3")
    code, out, err = privet("run", "target-epsilon=4", *table)
    assert (code, out, err.count("\n")) == (2, "", 1)
    added, _, how = err.partition("; add ")[2].partition(", where ")
    assert added == "local-solver=noisy-gd clip=1.0 row-norm=1.4 schema=schema.toml"
    assert how == f"privet data {tmp_path / 'a.csv'} --schema schema.toml writes a first one\n"
    code, out, _ = privet(*shlex.split(how)[1:5])
    file = tmp_path / "schema.toml"
    file.write_text(file.read_text().replace("from-records = true\n", ""))
    assert (
        privet("run", "target-epsilon=4", "num-server-rounds=1", *table, *added.split()).code == 0
    )
    private = shlex.split(out.splitlines()[-1])
    assert private[:2] == ["privet", "run"], "the line to copy"
    assert f"schema={file}" in private
    assert privet(*private[1:], "num-server-rounds=1", "num-agents=3").code == 0


def test_the_private_run_that_a_schema_ends_with_deals_as_it_says(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    rows = [f"{n % 50},{n % 3},{n % 2}" for n in range(90)]
    table.write_text("\n".join(["x,ward,y", *rows, ",0,1"]) + "\n")
    keys = ["num-agents=3", "missing=mean", "id-column=ward"]
    out = privet("data", table, *keys, "--schema", tmp_path / "one.toml").out
    *_, note, command = out.splitlines()
    assert "3 agents, partition = natural-id" in out
    assert note == "(dealt by partition=iid of the preset, not as above)"
    words = shlex.split(command)
    assert "num-agents=3" in words
    assert not [word for word in words if word.startswith("missing=")], "a private run refuses it"
    out = privet("data", table, *keys, "partition=iid", "--schema", tmp_path / "two.toml").out
    assert "not as above" not in out
    assert "partition=iid" in shlex.split(out.splitlines()[-1])


@pytest.mark.parametrize("command", [["account"], ["run", "num-server-rounds=2"]])
def test_private_runs_on_a_table_without_schema_are_refused_at_once(
    tmp_path: Path, monkeypatch: Any, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(60)))
    keys = ["local-solver=noisy-gd", "clip=1", "row-norm=1", "target-epsilon=4"]
    code, out, err = privet(*command, "dataset=csv", f"data-path={tmp_path / 'a.csv'}", *keys)
    assert (code, out) == (2, "")
    assert err.startswith("privet: a private run refuses data-dependent preprocessing: scaling")
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_preset_is_the_run_that_it_names(tmp_path: Path) -> None:
    """With a file whose labels are none of its classes, which is said in a line."""
    images, labels = np.zeros((20, 784), np.uint8), np.array([0, 11] * 10, np.uint8)
    file = tmp_path / "bad.npz"
    np.savez(file, x_train=images, y_train=labels, x_test=images, y_test=labels)
    code, _, err = privet("run", "--preset", "dp-iadmm/mnist", f"data-path={file}")
    assert (code, err.count("\n")) == (2, 1)
    assert "y_train in 0 ... 9, got 0 ... 11" in err


def test_account_names_keys_that_it_does_not_use() -> None:
    given = ("num-examples=100", "num-server-rounds=3", "resume=/nowhere", "log-json=true")
    code, out, _ = privet("account", *given)
    assert code == 0
    assert out.startswith(
        "not used here, as no account depends on them: resume, log-json\n"
        "planned for agents of 100 examples each, without reading data\n"
    )
    preset = ("--preset", "adult", "algorithm=dp-iadmm", "num-examples=100")
    assert "not used here" not in privet("account", *preset).out, "nobody gave what a preset has"


def test_data_names_keys_that_it_does_not_use() -> None:
    given = ("dataset=digits", "num-agents=3", "algorithm=led", "step-size=1", "row-norm=2")
    code, out, _ = privet("data", *given)
    assert code == 0
    assert "not used here, as nothing of the data depends on them: step-size\n" in out
    assert "not used" not in privet("data", *given[:3])[1]


@pytest.mark.parametrize("command", ["run", "tune", "account"])
def test_help_explains_a_key(command: str) -> None:
    code, out, err = privet(command, "--help", "fraction")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "fraction",
        "  share of the agents that take part in a round; number > 0 and <= 1; default 1.0; "
        "used with participation = fraction or balanced",
    ]


def test_help_says_what_a_key_is_to_each_algorithm() -> None:
    code, out, _ = privet("run", "--help", "rho")
    assert code == 0
    name, *lines = out.splitlines()
    assert name == "rho"
    said = {line[line.rindex("(") + 1 : -1]: line for line in lines}
    assert said.keys() == {"fed-plt", "fed-split", "dp-iadmm", "fed-pdm", "fed-pd", "five-gcs"}
    assert "default 3.0" in said["fed-split"]
    assert "auto is 1.0, or 0.1 where no agent knows its moduli" in said["fed-pdm"]
    assert "auto takes the schedule (24)" in said["dp-iadmm"]


def test_help_of_a_key_that_every_run_has_names_no_algorithm() -> None:
    """Also where an algorithm's agents are told of it."""
    for key in ("seed", "secure-sum", "row-norm"):
        _, out, _ = privet("run", "--help", key)
        name, line = out.splitlines()
        assert name == key
        assert not line.endswith(")")


def test_help_takes_several_keys_with_or_without_values() -> None:
    code, out, _ = privet("run", "dataset=digits", "--help", "local-solver=gd", "tolerance")
    assert code == 0
    heads = [line for line in out.splitlines() if not line.startswith(" ")]
    assert heads == ["local-solver", "tolerance"]
    assert "auto, newton, gd, agd, sgd, noisy-gd; default auto (fed-plt)" in out


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("local-epoch", "unknown config key 'local-epoch'; did you mean 'local-epochs'?"),
        ("local_solver", "unknown config key 'local_solver'; did you mean 'local-solver'?"),
        ("xyzzy", "unknown config key 'xyzzy'; privet keys --all lists them"),
    ],
)
def test_help_of_an_unknown_key_is_one_line_with_the_nearest(key: str, line: str) -> None:
    assert privet("run", "--help", key) == (2, "", f"privet: {line}\n")


def test_help_of_run_names_algorithms_data_sets_common_keys_and_an_example_that_runs(
    tmp_path: Path,
) -> None:
    code, out, _ = privet("run", "-h")
    assert code == 0
    for name in (*algorithms(), *NAMES, *COMMON):
        assert name in out
    example = next(line.split() for line in out.splitlines() if "privet run algorithm=" in line)
    code, out, _ = privet(*example[1:-1], "num-server-rounds=2", f"output-dir={tmp_path}")
    assert (code, "test accuracy" in out) == (0, True)


def test_every_key_is_listed_and_found_by_a_word() -> None:
    _, out, _ = privet("keys", "--all")
    rows = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert rows[: len(COMMON)] == list(COMMON)
    assert sorted(rows) == sorted(table())
    _, out, _ = privet("keys", "metropolis")
    assert [line.split()[0] for line in out.splitlines()] == ["graph-lazy"]
    _, out, _ = privet("keys", "led")
    assert {line.split()[0] for line in out.splitlines()} == set(keys_of_algorithm("led"))
    assert privet("keys", "rho") == privet("run", "--help", "rho")


def test_keys_are_listed_by_the_topic_that_their_owner_names() -> None:
    _, out, _ = privet("keys", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    topics = {row["key"]: row["topic"] for row in rows}
    assert sorted(topics) == sorted(table())
    assert {topics[key] for key in COMMON} == {"Common"}
    assert {topics[key] for key in ("delta", "clip", "noise-scale", "row-norm")} == {"Privacy"}
    assert {topics[key] for key in ("batch-size", "max-local-steps")} == {"Local steps"}
    assert topics["rho"] == "Of single algorithms"
    of_every_run = {row["topic"] for row in rows if "" in row["of"]}
    assert "Of single algorithms" not in of_every_run, "give the class of settings a topic"
    _, listed, _ = privet("keys", "--all")
    headings = [line.removesuffix(":") for line in listed.splitlines() if line[0] != " "]
    assert headings == list(dict.fromkeys(topics.values()))
    *_, last = lines = privet("keys")[1].splitlines()
    counted = {topic: list(topics.values()).count(topic) for topic in headings}
    for topic in headings:
        assert (f"{topic}:" if topic in FIRST else f"{topic}: {counted[topic]} keys") in lines
    assert sum(line.startswith("  ") for line in lines) == sum(counted[topic] for topic in FIRST)
    assert "privet keys --all" in last


def test_every_algorithm_is_listed() -> None:
    _, out, _ = privet("algorithms", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["name"] for row in rows] == list(algorithms())
    assert {row["name"]: row["noise"] for row in rows}["dp-iadmm"] == "noise-scale"
    assert all(row["title"] for row in rows)
    assert "Peaceman" in privet("algorithms")[1]


def test_the_version_is_that_of_the_package() -> None:
    assert privet("--version")[1].split()[:2] == ["privet", version("flwr-privet")]


def test_completion_knows_keys_and_values() -> None:
    assert "local-epochs=" in completed("local-e")
    assert completed("algorithm=fed-p") == [
        f"algorithm={name}" for name in sorted(algorithms()) if name.startswith("fed-p")
    ]
    assert completed("local-solver=noi") == ["local-solver=noisy-gd"]
    assert completed("dataset=mn") == ["dataset=mnist"]
    assert completed("nothing=") == []
    assert completed("secure-s") == ["secure-sum=", "secure-sum=false", "secure-sum=true"]
    assert completed("num-ag") == ["num-agents=", "num-agents=10"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["run", "dataset", "=", "mn"], ["mnist"]),
        (["data", "partition", "=", "ii"], ["iid"]),
        (["run", "secure-sum", "="], ["false", "true"]),
        (["run", "data-path", "=", "/etc"], []),
        (["run", "num-agents", "=", "3", "loss", "=", "hub"], ["huber"]),
        (["data", "num-ag"], ["num-agents=", "num-agents=10"]),
        (["tune", "fed-pl"], ["fed-plt"]),
        (["keys", "five"], ["five-gcs"]),
        (["run", "--preset", "dp-iadmm/m"], ["dp-iadmm/mnist"]),
        (["run", "--engine", "co"], ["cohort"]),
        (["audit", "--preset", "dp-iadmm/m"], ["dp-iadmm/mnist"]),
        (["export", "RUN", "--to", "s"], ["sklearn", "safetensors"]),
        (["predict", "RUN", "ROWS", "--unknown", "m"], ["missing"]),
        (["reproduce", "fed"], ["fed-plt", "fedpdm"]),
        (["reproduce", "fed-plt/table-8"], ["fed-plt/table-8"]),
        (["reproduce", "all"], ["all"]),
        (["bench", "eng"], ["engine"]),
    ],
)
def test_bash_completes_words_that_it_splits_at_the_equals_sign(
    monkeypatch: pytest.MonkeyPatch, words: list[str], found: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["privet"])
    monkeypatch.setenv("_PRIVET_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(["privet", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    code, out, _ = privet()
    assert (code, out.split()) == (0, found)


def test_what_commands_write_and_show_is_one_object_with_json(tmp_path: Path) -> None:
    out = privet("data", "dataset=digits", "num-agents=3", "rho=2", "--json").out
    data = json.loads(out)
    assert (data["rows"], sum(data["examples"]), data["unused-keys"]) == (1438, 1438, ["rho"])
    table_file = tmp_path / "own.csv"
    rows = [f"note {n},{30 + n % 7},{n % 2}" for n in range(120)]
    table_file.write_text("\n".join(["note,age,y", *rows]) + "\n")
    code, out, _ = privet("data", table_file, "--json")
    faults = json.loads(out)
    assert (code, faults["keys"], len(faults["faults"])) == (2, {"drop-columns": "note"}, 1)
    app = json.loads(privet("new", tmp_path / "my-app", "--json").out)
    assert app["folder"] == str(tmp_path / "my-app")
    assert all((tmp_path / "my-app" / name).is_file() for name in app["files"])
    assert "flwr run" in app["next"]


def test_no_color_leaves_no_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.table import Table

    from privet.core.terminal import console

    table = Table("algorithm")
    table.add_row("[bold]fed-plt")
    monkeypatch.setenv("FORCE_COLOR", "1")
    for name, value, codes in (("TERM", "xterm", True), ("NO_COLOR", "1", False)):
        monkeypatch.setenv(name, value)
        screen = console()
        with screen.capture() as shown:
            screen.print(table)
        assert ("\x1b[" in shown.get()) == codes


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("clip=1", "clip = 1.0: not used with local-solver = auto, only with noisy-gd; add "),
        ("row-norm=5", "target-epsilon needs clip > 0; add "),
        ("noise-variance=2", "noise-variance = 2.0: not used with target-epsilon, which sets"),
    ],
)
def test_a_private_run_with_a_key_too_few_names_the_others(given: str, said: str) -> None:
    """The key that is not used stands first, then what makes it count."""
    code, out, err = privet("run", "target-epsilon=4", "num-server-rounds=1", given)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"privet: {said}")
    added = err.rstrip().partition("; add ")[2].split()
    kept = [] if "not used with target-epsilon" in said else [given]
    assert privet("account", "target-epsilon=4", *kept, *added)[0] == 0


def test_account_names_all_that_is_missing() -> None:
    code, out, err = privet("account", "target-epsilon=4", "num-examples=100")
    assert (code, out) == (2, "")
    given = err.rstrip().partition("; add ")[2].split()
    assert [word.partition("=")[0] for word in given] == [
        "local-solver",
        "clip",
        "loss",
        "row-norm",
    ]
    assert privet("account", "target-epsilon=4", "num-examples=100", *given)[0] == 0
    code, _, err = privet("run", "target-epsilon=4", "num-server-rounds=1")
    assert code == 2
    assert err.endswith("; add local-solver=noisy-gd clip=1.0 row-norm=5.6\n"), "of 31 columns"
    for one in given[1:]:
        others = [each for each in given if each != one]
        _, _, err = privet("account", "target-epsilon=4", "num-examples=100", *others)
        assert err.endswith(f"; add {one}\n")


class TestInterrupted:
    """Ctrl-C: one line that says how to go on, exit code 130."""

    def test_in_a_run_that_can_go_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def stop(self: Any, run: Any, done: Any) -> None:
            if done.round == 4:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(progress._Lines, "on_round", stop)
            code, _, err = privet("run", "num-server-rounds=9", f"output-dir={tmp_path}")
        (folder,) = tmp_path.iterdir()
        line = err.splitlines()[-1]
        assert code == 130
        assert line == (
            "privet: interrupted after round 4 of 9; to go on, the same command with "
            f"resume={folder}"
        )
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["status"], summary["rounds"]) == ("interrupted", 4)
        code, out, _ = privet(
            "run", "num-server-rounds=9", f"output-dir={tmp_path}", line.split()[-1]
        )
        assert (code, "rounds: 9" in out) == (0, True)

    def test_twice(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second while the first is seen to: in what is written, or on the way out."""

        def stop(self: Any, run: Any, done: Any) -> None:
            if done.round == 2:
                raise KeyboardInterrupt

        def again(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        def on_the_way_out(*arguments: Any) -> Any:
            try:
                return execute(*arguments)
            except KeyboardInterrupt:
                again()

        monkeypatch.setattr(progress._Lines, "on_round", stop)
        for module, place, interrupt in (
            ("privet.server_apps.execute", "finish", again),
            ("privet.sim.inline", "execute", on_the_way_out),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(sys.modules[module], place, interrupt)
                folder = tmp_path / place
                code, _, err = privet("run", "num-server-rounds=9", f"output-dir={folder}")
            (run,) = folder.iterdir()
            assert code == 130
            assert err.splitlines()[-1] == (
                "privet: interrupted after round 2 of 9; to go on, the same command with "
                f"resume={run}"
            )

    @pytest.mark.parametrize(
        ("command", "place", "said"),
        [
            (["run"], "privet.sim.inline.run_inline", "interrupted"),
            (["tune", "led"], "privet.sim.tuning.tune_task", "nothing of the search is kept"),
        ],
    )
    def test_at_other_moments(
        self, monkeypatch: Any, command: list[str], place: str, said: str
    ) -> None:
        def stop(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(place, stop)
        code, _, err = privet(*command)
        assert code == 130
        assert err.splitlines()[-1].startswith("privet: interrupted")
        assert said in err.splitlines()[-1]

    def test_while_the_command_is_loaded(self) -> None:
        stopped = (
            "import builtins, os, signal, sys\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # under nohup as well
            "import privet.cli.__main__ as begin\n"
            "real = builtins.__import__\n"
            "def load(name, *rest):\n"
            "    if name == 'main':  # from .main import\n"
            "        os.kill(os.getpid(), signal.SIGINT)\n"
            "    return real(name, *rest)\n"
            "builtins.__import__ = load\n"
            "begin.main()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", stopped], check=False, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "privet: interrupted\n")


def test_help_without_a_key_is_that_of_the_command() -> None:
    code, out, _ = privet("run", "--help")
    assert code == 0
    assert "--preset" in out
    code, out, _ = privet("report", "--help")
    assert code == 0
    assert "Usage" in out


def test_every_command_takes_the_config_of_an_app(tmp_path: Path) -> None:
    app, flat = tmp_path / "pyproject.toml", tmp_path / "run.toml"
    keys = "num-agents = 2\nnum-server-rounds = 1\nrhoo = 1.0\n"
    app.write_text(f"[project]\nname = 'app'\n[tool.flwr.app.config]\n{keys}")
    flat.write_text(keys)
    for command in (["run"], ["account"], ["tune", "led"]):
        for file in (app, flat):
            code, _, err = privet(*command, "--config", str(file))
            assert (code, "unknown config key 'rhoo'" in err) == (2, True)
    flat.write_text("[a]\nb = 1\n")
    _, _, err = privet("run", "--config", str(flat))
    assert err == (
        f"privet: {flat}: found a table [a]; expected keys alone, or [tool.flwr.app.config]\n"
    )
    app.write_text("[tool.flwr.app]\nconfig = 3\n")
    code, _, err = privet("run", "--config", str(app))
    assert code == 2
    assert f"{app}: expected a table [tool.flwr.app.config]" in err


def test_run_prints_what_a_newcomer_wants_to_know(tmp_path: Path) -> None:
    code, out, _ = privet("run", f"output-dir={tmp_path}", "num-server-rounds=5")
    assert code == 0
    for figure in (
        "test accuracy",
        "squared gradient norm at the mean model",
        "distance to the centralised optimum",
        "bytes up",
        "bytes down",
        "not private",
        f"run folder: {tmp_path}",
        "report.html",
    ):
        assert figure in out
    (folder,) = tmp_path.iterdir()
    names = {file.name for file in folder.iterdir() if not file.name.startswith(".")}
    assert names == {
        "history.jsonl",
        "model.npz",
        "checkpoint.npz",
        "checkpoint.previous.npz",
        "summary.json",
        "privacy.json",
        "report.html",
    }


def test_run_as_json_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('num-server-rounds = 4\nrho = 2.0\ndtype = "float32"\n')
    code, out, _ = privet("run", "--config", str(file), f"output-dir={tmp_path}", "--json")
    summary = json.loads(out)
    assert code == 0
    assert (summary["status"], summary["rounds"]) == ("completed", 4)
    assert summary["config"]["dtype"] == "float32"


def test_failed_run_leaves_what_was_done(tmp_path: Path) -> None:
    code, _, err = privet(
        "run",
        f"output-dir={tmp_path}",
        "participation=schedule",
        "schedule=0,1;7,99",
    )
    assert code == 2
    assert "schedule names agent '99', which is not enrolled" in err
    (folder,) = tmp_path.iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("failed", 1)
    assert "agent '99'" in summary["cause"]
    assert (folder / "report.html").exists()


def test_the_progress_of_a_run_fits_80_columns_with_bar_and_time_left() -> None:
    done = Round(
        1000,
        ("a",),
        {"b": "late"},
        loss=0.123456,
        accuracy=0.5,
        stationarity=1e-10,
        epsilon=3.004,
    )
    with progress._bar() as bar:
        bar.console.width = 80
        bar.update(
            bar.add_task("", total=2000), completed=1000, description=progress.brief(done, 2000)
        )
        with bar.console.capture() as shown:
            bar.console.print(bar.get_renderable())
    text = shown.get()
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("━")
    assert " 1000/2000 1 failed acc 0.5000 loss 0.1235 ε 3.01 grad² 1" in text


def test_relative_paths_are_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "own.csv").write_text("a,y\n" + "".join(f"{n},{n % 2}\n" for n in range(40)))
    (tmp_path / "own.toml").write_text("[columns]\na = [0, 40]\ny = ['0', '1']\n")
    (tmp_path / "run.toml").write_text("schema = 'own.toml'\n")
    keys = ("--json", "--config", "run.toml", "dataset=csv", "data-path=own.csv", "num-agents=2")
    first = privet("run", *keys, "num-server-rounds=2", "output-dir=~/first")
    assert first.code == 0, first.err
    (folder,) = (tmp_path / "home" / "first").iterdir()
    config = json.loads((folder / "summary.json").read_text())["config"]
    assert config["data-path"] == str(tmp_path / "own.csv")
    assert config["schema"] == str(tmp_path / "own.toml")
    resume = f"resume={folder.relative_to(tmp_path)}"
    second = privet("run", *keys, "num-server-rounds=3", "output-dir=second", resume)
    assert second.code == 0, second.err
    assert json.loads(second.out)["config"]["resume"] == str(folder)
    assert len(list((tmp_path / "second").iterdir())) == 1


@pytest.mark.parametrize("key", ["data-path", "output-dir", "resume", "schema"])
def test_a_run_config_has_whole_paths(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} = 'some/where': must be an absolute path"):
        read_config({"dataset": "csv", "data-path": "/a.csv", key: "some/where"})
    for whole in ("/some/where", ""):
        assert read_config({"dataset": "csv", "data-path": "/a.csv", key: whole})[key] == whole
    assert read_config({"resume": "auto"})["resume"] == "auto"
    hub = {"dataset": "csv", "data-path": "hf:some/where"}
    assert read_config(hub)["data-path"] == "hf:some/where"


class TestData:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        rows = [f"{n},{'fm'[n % 2]},{n % 3 == 0}" for n in range(40)]
        path = tmp_path / "own.csv"
        path.write_text("\n".join(["age,sex,label", *rows]) + "\n")
        return path

    def test_shows_columns_labels_and_what_each_agent_gets(self, table: Path) -> None:
        code, out, _ = privet("data", str(table), "num-agents=2", "partition=iid")
        assert code == 0
        words = [line.replace("│", " ").split() for line in out.splitlines()]
        assert ["age", "numbers", "0", "to", "39", "0", "1"] in words
        assert "32 rows to train on, 8 held out" in out
        assert "false, true; +1 is true" in out
        agents = [line for line in words if line and line[0] in ("0", "1") and len(line) == 4]
        assert [int(line[1]) for line in agents] == [16, 16]
        assert all(int(line[2]) + int(line[3]) == int(line[1]) for line in agents)
        assert "give schema" in out

    def test_writes_a_schema_that_it_reads(self, table: Path) -> None:
        schema = table.with_name("schema.toml")
        assert privet("data", str(table), "--schema", str(schema))[0] == 0
        code, out, _ = privet("data", str(table), f"schema={schema}")
        assert (code, "give schema" in out) == (0, False)
        code, _, err = privet("data", str(table), "--schema", str(schema))
        assert (code, "exists already" in err) == (2, True)

    def test_a_schema_of_a_table_with_gaps_leads_to_a_private_run(self, tmp_path: Path) -> None:
        table, schema = tmp_path / "gaps.csv", tmp_path / "schema.toml"
        rows = [f"{n},{n % 5},{n % 3 == 0}" for n in range(60)] + [
            ",1,true",
            "3,,false",
            "inf,1,true",
        ]
        table.write_text("\n".join(["age,score,label", *rows]) + "\n")
        asked = ["data", str(table), "num-agents=2", "--schema", str(schema)]
        code, out, err = privet(*asked)
        assert (code, schema.exists()) == (2, False)
        again = shlex.split(out.splitlines()[-1])
        mended = {"infinite=missing", "missing=category"}
        assert (set(again) - set(asked) - {"privet"}, again[-2:]) == (mended, asked[-2:])
        run = shlex.split(privet(*again[1:]).out.splitlines()[-1])
        public = schema.read_text().replace("from-records = true\n", "")
        schema.write_text(public)
        code, out, err = privet(*run[1:], "num-server-rounds=1", f"output-dir={tmp_path / 'runs'}")
        assert (code, "statement to sign: " in out) == (0, True), err

        # Values that a private run refuses are not silently left out of its command.
        taken = ["missing=mean", "infinite=drop", "--schema", str(tmp_path / "other.toml")]
        out = privet("data", str(table), "num-agents=2", *taken).out
        assert "private run refuses missing = mean: where values are missing, write" in out
        assert "private run refuses infinite = drop: take the rows with infinite numbers" in out
        assert "missing=" not in out.splitlines()[-1]

    @pytest.mark.parametrize(("gap", "becomes"), [(', ""', "category"), ("", "zero")])
    def test_what_gaps_become_by_a_schema_is_what_private_runs_take(
        self, tmp_path: Path, gap: str, becomes: str
    ) -> None:
        table, schema = tmp_path / "gaps.csv", tmp_path / "schema.toml"
        rows = [f"{n},{n % 3 == 0}" for n in range(40)] + [",true"]
        table.write_text("\n".join(["age,label", *rows]) + "\n")
        schema.write_text(f'[columns]\nage = [0.0, 90.0{gap}]\nlabel = ["false", "true"]\n')
        asked = ["data", str(table), "num-agents=2", f"schema={schema}"]
        code, out, _ = privet(*asked)
        assert (code, out.splitlines()[-1].split()[-1]) == (2, f"missing={becomes}")
        assert privet(*asked, f"missing={becomes}")[0] == 0

    def test_shows_the_columns_of_a_table_that_cannot_be_dealt(self, table: Path) -> None:
        code, out, err = privet("data", str(table), "num-agents=33")
        assert (code, "numbers 0 to 39" in out, "agent" in out) == (2, True, False)
        assert err.endswith("32 examples cannot give each of 33 agents one\n")
        code, _, err = privet("data", str(table), "--schema", "/nowhere/schema.toml")
        assert err == "privet: --schema /nowhere/schema.toml: No such file or directory\n"

    def test_compares_the_tables_of_several_sites(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        rows = [(str(n), f"{n % 7}.5", "yes" if n % 3 else "no") for n in range(20)]
        for name, head, order in (
            ("bern.csv", "age,sodium,y", (0, 1, 2)),
            ("graz.csv", "y,sodium,age", (2, 1, 0)),
            ("linz.csv", "age,creatinine,y", (0, 1, 2)),
        ):
            lines = [",".join(row[at] for at in order) for row in rows]
            Path(name).write_text("\n".join([head, *lines]) + "\n")
        code, out, err = privet("data", "bern.csv", "graz.csv", "label-column=y")
        assert (code, err) == (0, "")
        head, bern, graz, scaled = out.splitlines()
        assert head == "columns: age, sodium; label y: no, yes"
        assert bern == "- bern.csv: as the others"
        assert graz == "- graz.csv: as the others in another order, which is put into theirs"
        assert "private runs and secure sums need a schema" in scaled
        files = ["linz.csv", "bern.csv", "graz.csv"]
        code, out, err = privet("data", *files, "label-column=y")
        assert (code, err) == (2, "")
        assert "- linz.csv: has creatinine, the others sodium" in out.splitlines()
        code, out, _ = privet("data", *files, "label-column=y", "--json")
        found = json.loads(out)
        assert (code, found["same"]) == (2, False)
        for name, wards in (("bern.csv", "ab"), ("graz.csv", "aa")):
            lines = [",".join([*row, wards[n % 2]]) for n, row in enumerate(rows)]
            Path(name).write_text("\n".join(["age,sodium,y,ward", *lines]) + "\n")
        code, out, err = privet("data", "bern.csv", "graz.csv", "label-column=y")
        assert (code, err) == (0, "")
        assert "- graz.csv: as the others" in out.splitlines()
        (odd,) = [line for line in out.splitlines() if "column ward" in line]
        assert odd.startswith("- column ward: a in every row of 'graz.csv', and other values")
        lines = [",".join([*row, "abc"[n % 3]]) for n, row in enumerate(rows)]
        Path("bern.csv").write_text("\n".join(["age,sodium,y,ward", *lines]) + "\n")
        lines = [",".join([*row, "bc"[n % 2]]) for n, row in enumerate(rows)]
        Path("graz.csv").write_text("\n".join(["age,sodium,y,ward", *lines]) + "\n")
        code, out, err = privet("data", "graz.csv", "bern.csv", "label-column=y")
        assert (code, err) == (0, "")
        assert "- bern.csv: as the others" in out.splitlines()
        assert "- graz.csv: as the others" in out.splitlines()
        odd = "graz.csv: column ward: no row has a, which other tables have: if it writes one of "
        odd += "these in another way, write it as they do"
        assert [line for line in out.splitlines() if "column ward" in line] == [
            "- column ward: the category 'a' in 'bern.csv' alone, in 7 rows: if another spelling, "
            "write it as the other sites do"
        ]
        Path("linz.csv").write_text(Path("bern.csv").read_text())
        known = json.loads(privet("data", *files, "label-column=y", "--json").out)
        assert [line for line in known["doubts"] if "column ward" in line] == [odd]
        differences = {name: one["difference"] for name, one in found["tables"].items()}
        assert differences == {
            "linz.csv": "has creatinine, the others sodium",
            "bern.csv": "",
            "graz.csv": "",
        }
        code, out, err = privet("data", "bern.csv", "odd.csv")
        assert (code, err) == (2, "")
        assert "- odd.csv: cannot be used: no such file" in out
        assert "- bern.csv: can be read" in out

    def test_a_fault_that_no_key_mends_is_left_for_an_editor(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        rows = [f"{n * n % 7}.5,{n % 2},{'No' if n % 2 else 'no'}" for n in range(40)]
        Path("own.csv").write_text("\n".join(["age,01,y", *rows]) + "\n")
        code, out, err = privet("data", "own.csv", 'drop-columns="01"')
        assert (code, err) == (2, "")
        *_, fault, left, dealing, empty, command = out.splitlines()
        assert fault.startswith("- column y: 'No' and 'no' differ by case alone: write them alike")
        assert (left, empty) == (
            "- no key repairs all of it: edit the file, then check it again",
            "",
        )
        assert dealing.startswith("rows are dealt at random, the default for a table")
        assert shlex.split(command) == ["privet", "data", "own.csv", 'drop-columns="01"']

    def test_says_what_is_left_out(self, tmp_path: Path) -> None:
        rows = [f"{n},ICU,7,{n % 2}" for n in range(40)]
        path = tmp_path / "own.csv"
        path.write_text("\n".join(["age,unit,seven,y", *rows]) + "\n")
        out = privet("data", path, "partition=iid", "num-agents=2").out
        words = [line.replace("│", " ").split() for line in out.splitlines()]
        assert ["unit", "ICU", "in", "every", "row", "0", "left", "out"] in words
        assert ["seven", "7", "in", "every", "row", "0", "1"] in words

    def test_shows_any_data_set(
        self,
    ) -> None:
        code, out, _ = privet("data", "dataset=digits", "num-agents=30")
        assert code == 0
        assert "1438 rows to train on, 359 held out; 10 classes" in out
        assert "..." in out

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["/nowhere.csv"], "/nowhere.csv: no such file"),
            (["dataset=digits", "num-agents=1", "partition=none"], "partition none holds nothing"),
            (["a.csv", "b.csv", "--schema", "s"], "--schema: expected one file, found a.csv"),
            (["dataset=digits", "--schema", "s.toml"], "digits has fixed columns"),
            (["dataset=digits", "schema=s.toml"], "not used with dataset = digits, only with csv"),
        ],
    )
    def test_what_cannot_be_shown_is_one_line(self, arguments: list[str], said: str) -> None:
        code, _, err = privet("data", *arguments)
        assert code == 2
        assert said in err
        assert err.count("\n") == 1


def test_replay_prints_a_line_per_file_and_fails_on_a_difference(tmp_path: Path) -> None:
    files = golden("fed-plt-*.json")
    code, out, _ = privet("replay", *map(str, files))
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [line["file"] for line in lines] == [str(file) for file in files]
    assert all(line["max-abs-error"] <= 1e-12 for line in lines)
    assert all((line["algorithm"], line["rounds"]) == ("fed-plt", 5) for line in lines)
    changed = json.loads(files[0].read_text())
    changed["rounds"][2]["x"][1][0] += 1e-6
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(changed))
    code, out, _ = privet("replay", str(files[0]), str(wrong))
    assert code == 1
    assert json.loads(out.splitlines()[1])["max-abs-error"] == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "algorithm": "x"}'])
def test_replay_of_something_else_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    code, _, err = privet("replay", str(file))
    assert code == 2
    assert err.startswith(f"privet: {file}: ")
    assert len(err.splitlines()) == 1


def test_tune_prints_radius_norm_and_rounds() -> None:
    code, out, _ = privet("tune", "fed-plt", "strong-convexity=0.5", "smoothness=1.5", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    costs = [line["cost"] for line in lines]
    assert costs == sorted(costs)
    assert all(0 < line["spectral-radius"] < 1 for line in lines)
    assert all(line["norm"] >= line["spectral-radius"] for line in lines)
    assert privet("tune", "fed-plt")[0] == 0


def test_settings_may_be_one_text_as_flower_takes_them(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    text = 'algorithm="fed-lin" num-server-rounds=1 num-agents = 3 output-dir="my own runs"'
    code, _, err = privet("run", text)
    assert code == 0, err
    (folder,) = (tmp_path / "my own runs").iterdir()
    assert folder.name.endswith("fed-lin")


@pytest.mark.parametrize("command", ["run", "data", "tune", "account"])
def test_help_ends_with_an_example_of_the_command_that_runs(command: str) -> None:
    _, out, _ = privet(command, "--help")
    example = out.rstrip().splitlines()[-1].split()
    assert example[:2] == ["privet", command]
    if command in ("data", "account"):
        assert privet(*example[1:])[0] == 0


def test_commands_are_listed_by_what_they_are_for() -> None:
    _, out, _ = privet("--help")
    headings = [line.split()[1] for line in out.splitlines() if line.startswith("╭")]
    assert headings == ["Options", "Start", "Choose", "Privacy", "Plugins"]


def test_the_table_of_help_is_that_of_the_declarations() -> None:
    """`make keys` writes it."""
    from privet.cli.key_table import FILE, key_table, written
    from privet.server_apps.config import table

    assert FILE.read_text() == written()
    assert dict(key_table()) == table()
    topics = [(name, entry.topic) for name, entry in key_table().items()]
    assert topics == [(name, entry.topic) for name, entry in table().items()]
