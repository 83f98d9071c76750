"""The ``privet`` command: what it prints, and one line with the right exit code when it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privet.sim import flower_run
from privet.sim.cli.main import main
from support.paths import golden

Said = tuple[int, str, str]


@pytest.fixture
def privet(capsys: Any) -> Any:
    """Run the command and return (exit code, stdout, stderr)."""

    def call(*arguments: str) -> Said:
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        out, err = capsys.readouterr()
        code = left.value.code
        assert isinstance(code, int)
        return code, out, err

    return call


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["bogus"], 2, "No such command 'bogus'"),
        (["run", "--bogus"], 2, "--bogus"),
        (["run", "rhoo=2"], 2, "unknown config key 'rhoo'; did you mean 'rho'?"),
        (["run", "rho"], 2, "'rho': expected key=value"),
        (["run", "rho=high"], 2, "rho = 'high': expected a number"),
        (["run", "algorithm=fed-ptl"], 2, "unknown algorithm 'fed-ptl'"),
        (["run", "local-solver=newton"], 2, "choose one of gd, agd, sgd, noisy-gd"),
        (["run", "dataset=iris"], 2, "iris"),
        (["run", "output-dir=runs"], 2, "must be an absolute path"),
        (["run", "--config", "/nowhere.toml"], 2, "/nowhere.toml: No such file"),
        (["run", "--engine", "spark"], 2, "'spark': choose one of auto, inline, cohort, ray"),
        (["run", "--actors", "2"], 2, "--actors and --ray-address are of the Ray engine"),
        (["replay", "/nowhere.json"], 2, "/nowhere.json: No such file"),
        (["tune", "fed-avg"], 2, "unknown algorithm 'fed-avg': known are"),
        (["bench", "speed"], 2, "unknown benchmark 'speed'"),
        (["report", "/nowhere"], 1, "/nowhere"),
        (["run", "resume=/nowhere"], 1, "no checkpoint at /nowhere"),
        (["run", "row-norm=0.0", "target-epsilon=1.0"], 2, "target-epsilon needs clip > 0"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    privet: Any, tmp_path: Path, monkeypatch: Any, arguments: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    found = privet(*arguments)
    assert found[0] == code
    (line,) = [line for line in found[2].splitlines() if line.startswith("privet: ")]
    assert said in line


@pytest.mark.parametrize("command", ["run", "tune", "account"])
def test_help_explains_a_key(privet: Any, command: str) -> None:
    code, out, err = privet(command, "--help", "fraction")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "fraction",
        "  share of the agents, in each round; number > 0 <= 1; default 1.0; "
        "used with participation = fraction or balanced",
    ]


def test_help_says_what_a_key_is_to_each_algorithm(privet: Any) -> None:
    code, out, _ = privet("run", "--help", "rho")
    assert code == 0
    name, *lines = out.splitlines()
    assert name == "rho"
    said = {line[line.rindex("(") + 1 : -1]: line for line in lines}
    assert said.keys() == {"fed-plt, fed-split", "dp-iadmm", "fed-pdm", "fed-pd", "five-gcs"}
    assert "default 3.0" in said["fed-plt, fed-split"]
    assert "default 1.0" in said["fed-pdm"]
    assert "0 takes the schedule (24)" in said["dp-iadmm"]


def test_help_of_a_key_that_every_run_has_names_no_algorithm(privet: Any) -> None:
    """Also where an algorithm's agents are told of it."""
    for key in ("seed", "secure-sum", "row-norm"):
        _, out, _ = privet("run", "--help", key)
        name, line = out.splitlines()
        assert name == key
        assert not line.endswith(")")


def test_help_takes_several_keys_with_or_without_values(privet: Any) -> None:
    code, out, _ = privet("run", "dataset=digits", "--help", "local-solver=gd", "tolerance")
    assert code == 0
    heads = [line for line in out.splitlines() if not line.startswith(" ")]
    assert heads == ["local-solver", "tolerance"]
    assert "gd, agd, sgd, noisy-gd; default gd (fed-plt)" in out


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("local-epoch", "unknown config key 'local-epoch'; did you mean 'local-epochs'?"),
        ("local_solver", "unknown config key 'local_solver'; did you mean 'local-solver'?"),
        ("xyzzy", "unknown config key 'xyzzy'"),
    ],
)
def test_help_of_an_unknown_key_is_one_line_with_the_nearest(
    privet: Any, key: str, line: str
) -> None:
    assert privet("run", "--help", key) == (2, "", f"privet: {line}\n")


def test_help_without_a_key_is_that_of_the_command(privet: Any) -> None:
    code, out, _ = privet("run", "--help")
    assert code == 0
    assert "--preset" in out
    code, out, _ = privet("report", "--help")
    assert code == 0
    assert "Usage" in out


def test_every_command_takes_the_config_of_an_app(privet: Any, tmp_path: Path) -> None:
    app, flat = tmp_path / "pyproject.toml", tmp_path / "run.toml"
    keys = "num-agents = 2\nnum-server-rounds = 1\nrhoo = 1.0\n"
    app.write_text(f"[project]\nname = 'app'\n[tool.flwr.app.config]\n{keys}")
    flat.write_text(keys)
    for command in (["run"], ["account"], ["tune", "led"]):
        for file in (app, flat):
            code, _, err = privet(*command, "--config", str(file))
            assert (code, "unknown config key 'rhoo'" in err) == (2, True)
    app.write_text("[tool.flwr.app]\nconfig = 3\n")
    code, _, err = privet("run", "--config", str(app))
    assert code == 2
    assert f"{app}: expected a table [tool.flwr.app.config]" in err


def test_run_prints_what_a_newcomer_wants_to_know(privet: Any, tmp_path: Path) -> None:
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
    ):
        assert figure in out
    (folder,) = tmp_path.iterdir()
    names = {file.name for file in folder.iterdir()}
    assert names == {
        "history.jsonl",
        "model.npz",
        "checkpoint.npz",
        "summary.json",
        "privacy.json",
        "report.html",
    }


def test_run_as_json_and_from_a_file(privet: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('num-server-rounds = 4\nrho = 2.0\ndtype = "float32"\n')
    code, out, _ = privet("run", "--config", str(file), f"output-dir={tmp_path}", "--json")
    summary = json.loads(out)
    assert code == 0
    assert (summary["status"], summary["rounds"]) == ("completed", 4)
    assert summary["config"]["dtype"] == "float32"


def test_failed_run_leaves_what_was_done(privet: Any, tmp_path: Path) -> None:
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


def test_replay_prints_a_line_per_file_and_fails_on_a_difference(
    privet: Any, tmp_path: Path
) -> None:
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
def test_replay_of_something_else_is_one_line(privet: Any, tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    code, _, err = privet("replay", str(file))
    assert code == 2
    assert err.startswith(f"privet: {file}: ")
    assert len(err.splitlines()) == 1


def test_tune_prints_radius_norm_and_rounds(privet: Any) -> None:
    code, out, _ = privet("tune", "fed-plt", "strong-convexity=0.5", "smoothness=1.5", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    costs = [line["cost"] for line in lines]
    assert costs == sorted(costs)
    assert all(0 < line["spectral-radius"] < 1 for line in lines)
    assert all(line["norm"] >= line["spectral-radius"] for line in lines)
    assert privet("tune", "fed-plt")[0] == 0


def test_flower_run_fails_when_the_superlink_says_so(privet: Any, monkeypatch: Any) -> None:
    verdict = flower_run.Outcome("7", "finished:failed", "the ServerApp raised", 1.0)
    monkeypatch.setattr(flower_run, "run_simulation", lambda *a, **k: verdict)
    code, _, err = privet("flower-run")
    assert code == 1
    assert err == "privet: run 7 ended with finished:failed: the ServerApp raised\n"
