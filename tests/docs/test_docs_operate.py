"""The files that operators copy: they name what exists, and the supervised run gets through."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from prometheus_client import generate_latest

from privet.client_apps import app
from privet.kernel import NodeRules
from privet.rounds.failure import FailureCode
from privet.server_apps import read_config
from privet.server_apps.control import Alarms
from privet.server_apps.telemetry import Metrics
from privet.wire.flower_internals import node_config as parsed
from support.paths import ROOT
from support.processes import LONG, Deployment
from support.tls import make_certificates

OPERATE = ROOT / "examples" / "operate"
PAGE = (ROOT / "docs" / "how-to" / "operate.md").read_text()


NODE_CONFIG = re.compile(
    r"""(?:--node-config(?:\s|\\\n)+|start_node\ \S+\ \S+\ )("(?:\\.|[^"\\])*"|'[^']*')""", re.S
)


def node_configs(text: str) -> list[str]:
    """Return what a text gives as ``--node-config``, as the shell passes it on."""
    return [shlex.split(re.sub(r"\\\n\s*", "", one))[0] for one in NODE_CONFIG.findall(text)]


def metrics() -> set[str]:
    """Return the names under which a run is seen."""
    told = generate_latest(Metrics(1.0, Alarms(1.0)).registry).decode()
    return set(re.findall(r"^# TYPE (\w+)", told, re.M))


def written() -> set[str]:
    """Return the metrics of the supervisor's textfile."""
    return set(re.findall(r"privet_supervised_\w+", (OPERATE / "supervise.sh").read_text()))


def test_dashboard_and_page_name_metrics_that_exist() -> None:
    board = json.loads((OPERATE / "grafana.json").read_text())
    shown = " ".join(t["expr"] for panel in board["panels"] for t in panel["targets"])
    counted = {name.removesuffix("_total") for name in metrics()} | written()
    for text in (shown, PAGE):
        names = set(re.findall(r"privet_\w+", text))
        assert len(names) > 10
        assert {name.removesuffix("_total") for name in names} <= counted


def test_the_page_names_every_reason_of_a_failure() -> None:
    (row,) = re.findall(r"^\| `privet_failures_total\{reason\}` \| (.*): \[", PAGE, re.M)
    assert sorted(row.split(", ")) == sorted(code.value for code in FailureCode)


def test_flowers_limits_are_on_the_page() -> None:
    assert f"**{HEARTBEAT_DEFAULT_INTERVAL} seconds to start a ClientApp.**" in PAGE
    assert "**80 seconds of silence of a ServerApp.**" in PAGE
    tls = (ROOT / "docs" / "how-to" / "tls.md").read_text()
    assert "(operate.md#flowers-limits)" in tls


def test_run_configs_are_read() -> None:
    compose = yaml.safe_load((OPERATE / "compose.yaml").read_text())
    (on_the_page,) = re.findall(r"run\.toml <<'END'\n(.*?)END", PAGE, re.S)
    for text in (compose["configs"]["run"]["content"], on_the_page):
        assert read_config(tomllib.loads(text))["resume"] == "auto"


def test_node_configs_of_examples_and_pages_are_read() -> None:
    """A node whose config cannot be used is turned away from every run."""
    files = [*(ROOT / "examples").rglob("*"), *(ROOT / "docs").rglob("*.md")]
    given = {
        (file.relative_to(ROOT).as_posix(), text)
        for file in files
        if file.suffix in {".md", ".service", ".sh", ".yaml"}
        for text in node_configs(file.read_text())
        if "$config" not in text
    }
    assert len(given) >= 12, given
    named = {name for name, _ in given}
    assert {f"examples/{name}" for name in ("operate/compose.yaml", "deploy_private.sh")} <= named
    for name, text in given:
        absolute = re.sub(r"\$\w+(?=/)", "", re.sub(r"=\$\w+", "=1", text))
        try:
            NodeRules.from_node_config(parsed(absolute))
        except ValueError as error:
            pytest.fail(f"{name}: {text}: {error}")


@pytest.mark.parametrize("script", ["supervise.sh", "register.sh", "upgrade.sh", "ray.sbatch"])
def test_scripts_are_shell(script: str) -> None:
    subprocess.run(["sh", "-n", str(OPERATE / script)], check=True)


@pytest.mark.parametrize("unit", ["superlink", "supernode"])
def test_units_give_options_that_exist(unit: str) -> None:
    text = (OPERATE / f"{unit}.service").read_text()
    program = ROOT / ".venv" / "bin" / f"flower-{unit}"
    if not program.exists():
        pytest.skip("no environment in the checkout")
    known = subprocess.run([str(program), "--help"], capture_output=True, text=True, check=True)
    (command,) = re.findall(r"ExecStart=(.*(?:\\\n.*)*)", text)
    options = set(re.findall(r"(?<=\s)--[a-z-]+", command))
    assert options
    assert options <= set(re.findall(r"--[a-z-]+", known.stdout))


def test_a_slow_start_is_told_in_the_nodes_log(monkeypatch: Any, caplog: Any) -> None:
    assert 0 < app.process_age() < 1e6
    monkeypatch.setattr(app, "process_age", lambda: 21.0)
    app.warn_of_slow_start()
    assert not caplog.messages  # pytest is no process that Flower started
    monkeypatch.setattr("sys.argv", ["/opt/venv/bin/flwr-clientapp"])
    app.warn_of_slow_start()
    assert "needed 21 s to start; Flower gives a process 30 s" in caplog.text


@pytest.mark.slow
@pytest.mark.deployment
def test_the_supervised_run_outlives_its_server_app(tmp_path: Path) -> None:
    """The containers' commands as processes: SuperLink, two SuperNodes, the supervised run."""
    compose = yaml.safe_load((OPERATE / "compose.yaml").read_text())
    config = tomllib.loads(compose["configs"]["run"]["content"])
    config |= {"output-dir": str(tmp_path / "runs"), "num-server-rounds": 4}
    del config["more"]  # where the metrics are served
    toml = tmp_path / "run.toml"
    toml.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
    history = "runs/*/history.jsonl"
    with Deployment(tmp_path) as deployment:
        deployment.start_superlink()
        for number in range(2):
            own = tmp_path / f"own{number}"
            own.mkdir()
            (text,) = node_configs(compose["services"][f"node{number}"]["command"])
            deployment.start_node(str(number), parsed(text.replace("/home/privet/own", str(own))))
        deployment.wait_for_nodes()
        script = ["sh", str(OPERATE / "supervise.sh"), str(ROOT), "dep", str(toml)]
        killed, submitted = False, 0
        while True:
            submitted += 1
            child = deployment.processes.start(script, tmp_path / f"supervised-{submitted}.log")
            while child.poll() is None:
                time.sleep(0.5)
                rounds = sum(len(f.read_text().splitlines()) for f in tmp_path.glob(history))
                if rounds >= 2 and not killed:
                    deployment.kill(*(app.pid for app in deployment.server_apps()))
                    killed = True
            if child.returncode == 0:
                break
            assert submitted < 4
    assert (killed, submitted) == (True, 2)
    (file,) = tmp_path.glob(history)
    rounds = [json.loads(line)["round"] for line in file.read_text().splitlines()]
    assert rounds == [1, 2, 3, 4]
    spent = [len((tmp_path / f"own{i}" / "ledger.jsonl").read_text().splitlines()) for i in (0, 1)]
    assert min(spent) >= 4


# ------------------------------------------------------------------ how a supervised run ends


@pytest.mark.slow
@pytest.mark.deployment
def test_the_supervisor_knows_the_ends_of_real_runs(tmp_path: Path) -> None:
    """An unknown key, a value that cannot be, a run that diverged, one that ended well."""
    prom = tmp_path / "privet.prom"
    base = {"num-agents": 1, "num-server-rounds": 1, "resume": "auto", "more": "min-agents=1"}
    diverging = {"local-solver": "gd", "step-size": 1e5, "more": "min-agents=1 on-divergence=stop"}
    with Deployment(tmp_path) as deployment:
        deployment.start_superlink()
        deployment.start_node("0", {"partition-id": 0, "num-partitions": 1})
        deployment.wait_for_nodes()
        for name, code, keys in (
            ("key", 2, {"no-such-key": 1}),
            ("value", 2, {"rho": -1.0}),
            ("diverged", 3, diverging),
            ("well", 0, {}),
        ):
            toml, log = tmp_path / f"{name}.toml", tmp_path / f"{name}.log"
            config = {**base, **keys, "output-dir": str(tmp_path / name)}
            toml.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in config.items()))
            script = ["sh", str(OPERATE / "supervise.sh"), str(ROOT), "dep", str(toml), str(prom)]
            child = deployment.processes.start(script, log)
            assert child.wait(LONG) == code, log.read_text()[-3000:]
            # Flower itself refuses what the app does not list; all others are runs of its own.
            assert ("was not accepted" in log.read_text()) is (name == "key")
            assert f"privet_supervised_exit_code {code}\n" in prom.read_text()


FLWR = """#!/bin/sh
case $1 in
run) echo "{accepted}"; {run} ;;
ls) case "$*" in *--run-id*) {status} ;; esac ;;
esac
"""


def supervised(
    folder: Path, run: str, status: str, accepted: str = "Successfully started run 7"
) -> tuple[int, str, dict[str, float]]:
    """Return exit status, errors and textfile of supervise.sh beside a `flwr` made of two lines."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, text in {
        "flwr": FLWR.format(run=run, status=status, accepted=accepted),
        "sleep": "#!/bin/sh\necho slept $1 >&2\n",
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (folder / "run.toml").write_text(f'output-dir = "{folder}/runs"\n')
    prom = folder / "privet.prom"
    done = subprocess.run(
        ["sh", str(OPERATE / "supervise.sh"), "app", "link", str(folder / "run.toml"), str(prom)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        check=False,
    )
    told = dict(line.split() for line in prom.read_text().splitlines() if line[0] != "#")
    return done.returncode, done.stderr, {key: float(value) for key, value in told.items()}


def summary(folder: Path, name: str, code: int) -> str:
    """Return the command that writes the summary of a run that ends with an exit code."""
    text = json.dumps({"status": "x", "exit-code": code}, indent=2)
    return (
        f"sleep 0; mkdir -p {folder}/runs/{name}; echo '{text}' > {folder}/runs/{name}/summary.json"
    )


FAILED = """echo '{ "status": "finished:failed" }'"""
COMPLETED = """echo '{ "status": "finished:completed" }'"""


def test_the_supervisor_ends_with_the_code_of_the_run(tmp_path: Path) -> None:
    for code in (0, 1, 2, 3):
        run = summary(tmp_path, f"run-{code}", code)
        ended, _, told = supervised(tmp_path, run, FAILED if code else COMPLETED)
        assert ended == code
        assert told["privet_supervised_exit_code"] == code
        if code == 0:
            success = told["privet_supervised_success_timestamp_seconds"]
            assert abs(success - time.time()) < 600
        # The last success is kept through the failures after it.
        assert told["privet_supervised_success_timestamp_seconds"] == success


def test_an_older_summary_is_not_that_of_a_run_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "runs" / "old").mkdir(parents=True)
    old = tmp_path / "runs" / "old" / "summary.json"
    old.write_text(json.dumps({"exit-code": 2}, indent=2))
    os.utime(old, (1e9, 1e9))
    assert supervised(tmp_path, ":", FAILED)[0] == 1
    assert supervised(tmp_path, ":", COMPLETED)[0] == 0


def test_a_run_that_the_superlink_gave_up_goes_on(tmp_path: Path) -> None:
    """Its ServerApp is interrupted as by ``flwr stop``, and says that all is well."""
    stopped = """echo '{ "status": "finished:stopped" }'"""
    assert supervised(tmp_path, summary(tmp_path, "run", 0), FAILED)[0] == 1
    assert supervised(tmp_path, summary(tmp_path, "run", 0), stopped)[0] == 0


def test_a_run_that_has_no_folder_says_its_exit_code_in_its_log(tmp_path: Path) -> None:
    for code in (1, 2):
        run = f"echo 'ERROR :  the run ends with exit code {code}'"
        assert supervised(tmp_path, run, FAILED)[0] == code
    # What the folder of the run says comes first.
    run = f"{summary(tmp_path, 'run', 3)}; echo 'the run ends with exit code 1'"
    assert supervised(tmp_path, run, FAILED)[0] == 3


def test_an_agents_name_and_words_are_no_exit_code(tmp_path: Path) -> None:
    """One may be called exit-code, and be late, and say how the run ends."""
    said = "WARNING :   round 1: agent evil dropped: agent evil: the run ends with exit code"
    for code in (0, 2, 3):
        assert supervised(tmp_path, f"echo '{said} {code}'", FAILED)[0] == 1
    folder = tmp_path / "runs" / "named"
    told = {"late": {"exit-code": {"late": 1, "exit-code": 1}}, "exit-code": 3}
    write = f"mkdir -p {folder}; cat > {folder}/summary.json <<'END'\n"
    run = f"{write}{json.dumps(told, indent=2)}\nEND\necho '{said} 0'"
    assert supervised(tmp_path, run, COMPLETED)[0] == 3


def test_a_run_that_is_not_accepted_is_tried_again_unless_its_keys_are_wrong(
    tmp_path: Path,
) -> None:
    assert supervised(tmp_path, ":", "exit 1", "The SuperLink is unavailable.")[0] == 1
    wrong = "[code: 15] Invalid run configuration."
    assert supervised(tmp_path, ":", "exit 1", wrong)[0] == 2


def test_the_textfile_has_no_exit_code_while_a_run_is_under_way(tmp_path: Path) -> None:
    during = tmp_path / "during.prom"
    run = f"cp {tmp_path}/privet.prom {during}"
    first = supervised(tmp_path, run, COMPLETED)[2]
    assert first["privet_supervised_exit_code"] == 0
    assert not during.read_text()  # nothing has ended yet
    supervised(tmp_path, run, FAILED)
    lines = [line for line in during.read_text().splitlines() if line[0] != "#"]
    success = "privet_supervised_success_timestamp_seconds"
    assert lines == [f"{success} {first[success]:.0f}"]


def test_a_run_that_the_superlink_does_not_know_is_given_up_within_a_minute(tmp_path: Path) -> None:
    ended, said, _ = supervised(tmp_path, ":", "exit 1")
    assert ended == 2
    assert "its database is lost" in said
    assert "operate.md, Backup and restore" in said
    assert said.count("slept 5") * 5 <= 60
    assert "## Backup and restore" in PAGE


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="no sqlite3 command")
def test_the_coordinators_database_is_backed_up_while_it_is_written(tmp_path: Path) -> None:
    """The page's own commands: what is committed is in the copy, and what is not is not."""
    kept = ["keys", "ca.key", "ca.crt", "server.key", "server.pem", "flwr", "run.toml", "runs"]
    for name in kept:
        (tmp_path / name).write_text(f"of {name}")
    back_up, restore = (
        next(
            one
            for one in re.findall(r"```\n(cd /srv/privet\n.*?|systemctl stop.*?)```", PAGE, re.S)
            if part in one
        )
        for part in ("sqlite3", "tar --extract")
    )
    writer = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
    writer.execute("pragma journal_mode = wal")
    writer.execute("create table run (id integer)")
    writer.executemany("insert into run values (?)", [(one,) for one in range(1000)])
    writer.execute("begin")
    writer.execute("insert into run values (-1)")
    commands(back_up, tmp_path)
    writer.execute("commit")
    writer.close()
    for file in (*tmp_path.glob("state.db*"), *(tmp_path / name for name in kept)):
        file.unlink()
    commands(restore, tmp_path)
    assert [(tmp_path / name).read_text() for name in kept] == [f"of {name}" for name in kept]
    found = sqlite3.connect(tmp_path / "state.db")
    assert found.execute("select count(*), min(id) from run").fetchone() == (1000, 0)
    assert found.execute("pragma integrity_check").fetchone() == ("ok",)
    found.close()


def commands(text: str, folder: Path) -> None:
    """Run a page's commands in a folder, in place of /srv/privet, without its services."""
    lines = [one for one in text.splitlines() if not one.startswith(("systemctl", "cd "))]
    subprocess.run(["bash", "-ec", "\n".join(lines)], cwd=folder, check=True, timeout=60)


def test_units_stop_where_a_person_is_needed_and_call_one() -> None:
    for unit in ("superlink", "supernode", "privet-run"):
        text = (OPERATE / f"{unit}.service").read_text()
        for setting in (
            "OnFailure=privet-call@%n.service",
            "StartLimitIntervalSec=",
            "StartLimitBurst=",
        ):
            assert setting in text.partition("[Service]")[0], (unit, setting)
    assert "RestartPreventExitStatus=2 3\n" in (OPERATE / "privet-run.service").read_text()
    assert (OPERATE / "privet-call@.service").exists()


def test_alerts_name_metrics_that_exist_and_two_outlive_the_run() -> None:
    rules = yaml.safe_load((OPERATE / "alerts.yaml").read_text())["groups"][0]["rules"]
    named = set(re.findall(r"privet_\w+", " ".join(rule["expr"] for rule in rules)))
    assert named <= {name.removesuffix("_total") for name in metrics()} | written()
    assert len(named & written()) == 2
    assert any(rule["expr"].startswith("absent(privet_round) unless") for rule in rules)


def test_promtool_accepts_rules_metrics_and_textfile(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")

    def check(*arguments: str, said: str = "") -> None:
        done = subprocess.run(
            [promtool, *arguments], input=said, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    check("check", "rules", str(OPERATE / "alerts.yaml"))
    check("test", "rules", str(OPERATE / "alerts.test.yaml"))
    seen = Metrics(1.0, Alarms(1.0))
    seen.failures.labels("late").inc()
    seen.absences.labels("north").set(1)
    check("check", "metrics", said=generate_latest(seen.registry).decode())
    supervised(tmp_path, ":", FAILED)
    supervised(tmp_path, ":", """echo '{ "status": "finished:completed" }'""")
    check("check", "metrics", said=(tmp_path / "privet.prom").read_text())


def test_every_rule_is_played() -> None:
    rules = yaml.safe_load((OPERATE / "alerts.yaml").read_text())["groups"][0]["rules"]
    played = yaml.safe_load((OPERATE / "alerts.test.yaml").read_text())["tests"]
    raised = {
        one["alertname"] for test in played for one in test["alert_rule_test"] if one["exp_alerts"]
    }
    assert raised == {rule["alert"] for rule in rules}


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    for unit in OPERATE.glob("*.service"):
        # The programs of an installation are not here.
        (tmp_path / unit.name).write_text(
            re.sub(r"/srv/privet/venv/\S+", "/bin/sh", unit.read_text())
        )
    for name in ("superlink", "supernode", "privet-run"):
        done = subprocess.run(
            [program, "verify", f"./{name}.service"],
            cwd=tmp_path,
            env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_what_must_outlive_a_container_is_in_volumes() -> None:
    compose = yaml.safe_load((OPERATE / "compose.yaml").read_text())
    mounts = {
        name: [mount.split(":")[1] for mount in service.get("volumes", [])]
        for name, service in compose["services"].items()
    }
    for name, service in compose["services"].items():
        paths = re.findall(
            r"(?:--database |(?:state|ledger)-path=.\")([^ \"\\]+)", service["command"]
        )
        assert len(paths) == {"superlink": 1, "run": 0}.get(name, 2)
        assert all(str(Path(path).parent) in mounts[name] for path in paths)
    named = {
        mount.split(":")[0] for s in compose["services"].values() for mount in s.get("volumes", [])
    }
    assert named == set(compose["volumes"])


def test_compose_with_tls_changes_what_tls_asks_for() -> None:
    """Every service of the override, with options that exist and files that it mounts."""
    plain = yaml.safe_load((OPERATE / "compose.yaml").read_text())["services"]
    tls = yaml.safe_load((OPERATE / "compose.tls.yaml").read_text())
    assert tls["services"].keys() == {*plain, "register"}
    for name, service in tls["services"].items():
        command = service.get("command", "")
        assert "--insecure" not in command
        mounts = [mount.split(":") for mount in service["volumes"]]
        mounted = {inside for outside, inside, mode in mounts if mode == "ro"}
        assert len(mounted) == len(mounts)
        assert set(re.findall(r"(?<= )/keys/[a-z0-9.]+", command)) <= mounted
        private = {outside for outside, *_ in mounts if re.search(r"(node\d|\.key)$", outside)}
        own = {"superlink": {"./keys/server.key"}}.get(name, {f"./keys/{name}"})
        assert private == (own if name.startswith(("superlink", "node")) else set())
        if program := re.match(r"flower-\w+", command):
            options = set(re.findall(r"(?<= )--[a-z-]+", command))
            here = Path(sys.executable).with_name(program[0])
            known = subprocess.run([here, "--help"], capture_output=True, text=True, check=True)
            assert options <= set(re.findall(r"--[a-z-]+", known.stdout))
        both = (service, plain.get(name, service))
        rules = [re.findall(r'--node-config "(.*)"$', one.get("command", "")) for one in both]
        assert rules[0] == rules[1] or name == "run"
        waits = service.get("depends_on", {})
        assert ("register" in waits) == name.startswith("node")
    content = tomllib.loads(tls["configs"]["flower"]["content"])["superlink"]["hospitals"]
    first = yaml.safe_load((OPERATE / "compose.yaml").read_text())["configs"]["flower"]["content"]
    before = tomllib.loads(first)["superlink"]["hospitals"]
    assert content == {"address": before["address"], "root-certificates": "/keys/ca.crt"}


@pytest.mark.parametrize(("online", "hosts"), [("2", ["a", "b"]), ("1", ["a"])])
def test_nodes_are_upgraded_one_by_one(tmp_path: Path, online: str, hosts: list[str]) -> None:
    """With programs that write down what they are asked: a node that is not back ends it."""
    node = r'{"status": "online"}'
    written = {
        "flwr": f"n=2; [ ! -f {tmp_path}/asked ] || n={online}\n"
        f"echo '['; while [ $n -gt 0 ]; do echo '{node},'; n=$((n - 1)); done; echo ']'",
        "ssh": f'echo "$1 $2" >> {tmp_path}/asked',
        "sleep": ":",
    }
    for name, text in written.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["sh", str(OPERATE / "upgrade.sh"), "hospitals", "0.2.1", "a", "b"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[0] for line in asked] == hosts
    assert all("'flwr-privet==0.2.1' && sudo systemctl restart supernode" in one for one in asked)
    assert done.returncode == len(["a", "b"]) - len(hosts)
    assert ("a is not back" in done.stderr) == (hosts == ["a"])


def test_every_deployed_example_keeps_states_on_the_nodes_disk() -> None:
    for path in (
        OPERATE / "supernode.service",
        OPERATE / "compose.yaml",
        ROOT / "examples" / "deploy_private.sh",
    ):
        assert "state-path=" in path.read_text()
    assert (ROOT / "docs" / "how-to" / "tls.md").read_text().count("state-path=") == 2


SHIFT = """
import os, time, datetime
import flwr.supercore.date as date
now, clock, by = date.now, time.time, float(os.environ["SHIFT"])
date.now = lambda: now() + datetime.timedelta(seconds=by)
time.time = lambda: clock() + by
"""


@pytest.mark.slow
@pytest.mark.deployment
def test_a_lost_database_and_a_clock_that_is_off_on_real_nodes(tmp_path: Path) -> None:
    """The supervisor gives up, register.sh brings the nodes back, the next submission completes."""
    config = {
        "num-agents": 2,
        "num-server-rounds": 5,
        "resume": "auto",
        "output-dir": str(tmp_path / "runs"),
    }
    toml = tmp_path / "run.toml"
    toml.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
    certificates = make_certificates(tmp_path)
    program = [sys.executable, str(OPERATE / "supernode.py")]
    with Deployment(tmp_path, certificates) as deployment:
        deployment.start_superlink()
        keys = [deployment.register(str(number)) for number in range(2)]
        nodes = [
            {"partition-id": number, "num-partitions": 2, "state-path": f"{tmp_path}/s{number}"}
            for number in range(2)
        ]
        for number, key in enumerate(keys):
            deployment.start_node(str(number), nodes[number], key=key, program=program)
        deployment.wait_for_nodes()
        script = ["sh", str(OPERATE / "supervise.sh"), str(ROOT), "dep", str(toml)]
        child = deployment.processes.start(script, tmp_path / "first.log")
        while not any(
            len(f.read_text().splitlines()) >= 2 for f in tmp_path.glob("runs/*/history.jsonl")
        ):
            assert child.poll() is None
            time.sleep(0.2)
        deployment.kill_superlink()
        for file in tmp_path.glob("state.db*"):
            file.unlink()
        deployment.start_superlink()
        lost = time.monotonic()
        assert child.wait(600) == 2
        waited = time.monotonic() - lost
        assert "its database is lost" in (tmp_path / "first.log").read_text()
        register = ["sh", str(OPERATE / "register.sh"), str(keys[0].parent), "dep"]
        first = deployment.processes.call(register)
        assert (first.returncode, first.stdout.count("registered ")) == (0, 2)
        again = deployment.processes.call(register)
        assert (again.returncode, again.stdout) == (0, "")
        for number in range(2):
            deployment.kill_node(str(number))  # what Restart=always does; it was refused
        for number, key in enumerate(keys):
            deployment.start_node(str(number), nodes[number], key=key, program=program)
        deployment.wait_for_nodes()
        child = deployment.processes.start(script, tmp_path / "second.log")
        assert child.wait(900) == 0
        (tmp_path / "shifted").mkdir()
        (tmp_path / "shifted" / "sitecustomize.py").write_text(SHIFT)
        key = deployment.register("ahead")
        for shift, said in ((40, "ahead of"), (-400, "behind")):
            environment = f"PYTHONPATH={tmp_path}/shifted"
            shifted = ["env", environment, f"SHIFT={shift}", *program]
            ahead = deployment.start_node(f"clock{shift}", {}, key=key, program=shifted)
            ahead.process.wait(300)
            (seconds,) = re.findall(
                rf"clock is (\d+) s {said} the SuperLink's", ahead.log.read_text()
            )
            assert abs(int(seconds) - abs(shift)) <= 3
    (folder,) = (tmp_path / "runs").glob("*/")
    lines = (folder / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4, 5]
    print(f"unknown for {waited:.0f} s")
