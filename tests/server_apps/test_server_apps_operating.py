"""What an operator sees of a run from outside, and may ask of it."""

from __future__ import annotations

import json
import logging
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict

from privet.core import ConfigError, RunError
from privet.core.assignments import comma_list
from privet.rounds import Run
from privet.rounds.collect.round import OpenRound
from privet.rounds.keep.checkpoint import HistoryFile, read_manifest
from privet.server_apps import server_app
from privet.server_apps.control import Alarms, Control, _names
from privet.server_apps.telemetry import Metrics, _Server, served
from privet.sim.engine import InlineGrid
from privet.sim.inline import app_of, run_inline
from privet.strategies import DPFedAvg, Observer, Round
from privet.testing import logistic_federation
from support.keeper import free_ports
from support.run_files import settings


def after_round(monkeypatch: Any, number: int, action: Any) -> None:
    """Do something when a round has been written."""
    append = HistoryFile.append

    def watch(self: HistoryFile, done: Any) -> None:
        append(self, done)
        if done.round == number:
            action(self.path.parent)

    monkeypatch.setattr(HistoryFile, "append", watch)


@pytest.mark.parametrize("name", ["hill", "St. Mary, ward 3", "a\\", "a\\, b", "a\\ b"])
def test_the_list_that_is_offered_leaves_this_agent_out(name: str) -> None:
    assert _names(comma_list([name, "b"])) == {name, "b"}


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=600) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_endpoint_tells_how_a_run_fares(tmp_path: Path, monkeypatch: Any) -> None:
    (port,) = free_ports(1)
    said: dict[str, tuple[int, str]] = {}

    def ask(folder: Path) -> None:
        said.update({path: get(port, path) for path in ("/metrics", "/healthz", "/readyz")})

    after_round(monkeypatch, 3, ask)
    keys = settings(tmp_path, metrics_port=port, exclude="2", target_epsilon=0.0)
    finished = run_inline(keys, "run")
    assert said["/healthz"] == said["/readyz"] == (200, "ok\n")
    status, text = said["/metrics"]
    assert status == 200
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    history = finished.result.history
    expected = {
        "privet_round": 2,
        "privet_agents": 4,
        "privet_participants": 3,
        'privet_failures_total{reason="excluded"}': 2,
        'privet_bytes_total{direction="up"}': sum(done.bytes_up for done in history[:2]),
        'privet_bytes_total{direction="down"}': sum(done.bytes_down for done in history[:2]),
        "privet_epsilon": np.inf,
        'privet_absences{agent="2"}': 2,
        "privet_checkpoint_round": 2,
        "privet_checkpoint_failures": 0,
        f'privet_library_agents{{version="{finished.summary["library-version"]}"}}': 4,
        "privet_round_failed_tries": 0,
    }
    assert {name: float(values[name]) for name in expected} == expected
    assert np.isnan(float(values["privet_residual"]))  # agent 2 was in no round
    with pytest.raises(urllib.error.URLError):
        get(port, "/healthz")  # it ends with the run


def test_a_run_that_does_not_end_its_first_round_can_be_seen_to_stall(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The time of the last checkpoint is there before the first round has ended."""
    (port,) = free_ports(1)
    said: list[str] = []
    after_round(monkeypatch, 1, lambda folder: said.append(get(port, "/metrics")[1]))
    began = time.time()
    run_inline(settings(tmp_path, metrics_port=port), "run")
    values = dict(line.rsplit(" ", 1) for line in said[0].splitlines() if line[0] != "#")
    assert float(values["privet_round"]) == float(values["privet_checkpoint_round"]) == 0
    assert float(values["privet_checkpoint_timestamp_seconds"]) >= began


def test_a_failure_before_the_run_has_a_folder_says_its_exit_code(
    tmp_path: Path, caplog: Any
) -> None:
    keys = {"algorithm": "fed-plt", "rho": -1.0, "output-dir": str(tmp_path / "runs")}
    context = Context(1, 0, {}, RecordDict(), keys)
    with pytest.raises(ConfigError, match="rho = -1"):
        server_app()(grid=None, context=context)
    assert caplog.messages[-1] == "the run ends with exit code 2"
    assert not (tmp_path / "runs").exists()


def test_readyz_waits_for_the_agents_and_a_taken_port_is_one_line(
    tmp_path: Path, monkeypatch: Any
) -> None:
    (port,) = free_ports(1)
    said: list[int] = []
    before = "privet.rounds.run.wait_for_nodes"
    monkeypatch.setattr(before, lambda *_: said.append(get(port, "/readyz")[0]))
    run_inline(settings(tmp_path, metrics_port=port), "run")
    assert said == [503]
    monkeypatch.setattr(
        before, lambda *_: run_inline(settings(tmp_path, metrics_port=port), "second")
    )
    with pytest.raises(ConfigError, match=f"metrics-port = {port}: Address already in use"):
        run_inline(settings(tmp_path, metrics_port=port), "third")


def test_log_lines_are_json_where_asked(tmp_path: Path, capsys: Any) -> None:
    before = list(logging.getLogger("flwr.privet").handlers)
    run_inline(settings(tmp_path, log_json=True), "run")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line[0] == "{"]
    rounds = [line for line in lines if line["message"].startswith("round 4/4 | 4 agents")]
    assert [(line["run"], line["level"]) for line in rounds] == [("run", "INFO")]
    assert logging.getLogger("flwr.privet").handlers == before


def test_a_silent_connection_stops_neither_the_health_check_nor_the_end(
    tmp_path: Path, monkeypatch: Any
) -> None:
    (port,) = free_ports(1)
    silent: list[socket.socket] = []
    said: list[int] = []

    def ask(folder: Path) -> None:
        silent.append(socket.create_connection(("127.0.0.1", port)))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=4) as answer:
            said.append(answer.status)

    after_round(monkeypatch, 2, ask)
    monkeypatch.setattr("privet.server_apps.telemetry._Silent.timeout", 3600.0)  # it stays open
    ended = threading.Event()

    def play() -> None:
        run_inline(settings(tmp_path, metrics_port=port), "run")
        ended.set()

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    try:
        assert ended.wait(60)
        assert said == [200]
    finally:
        for connection in silent:
            connection.close()
        thread.join(60)


def test_a_connection_that_says_nothing_or_is_cut_prints_nothing(
    monkeypatch: Any, capfd: Any, caplog: Any
) -> None:
    """What the health check of a load balancer does every ten seconds."""
    monkeypatch.setattr("privet.server_apps.telemetry._Silent.timeout", 0.05)
    ended = threading.Semaphore(0)
    shut = _Server.shutdown_request
    monkeypatch.setattr(_Server, "shutdown_request", lambda *a: (shut(*a), ended.release()))
    (port,) = free_ports(1)
    with served(Metrics(1.0, Alarms(1.0)), "127.0.0.1", port):
        for sent in (b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
            for cut in (False, True):
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    connection.sendall(sent)
                    if cut:
                        reset = struct.pack("ii", 1, 0)
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                        connection.close()
                    assert ended.acquire(timeout=600)
    assert capfd.readouterr() == ("", "")
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:9464", 200),
        ("[::1]:9464", 200),
        ("192.0.2.7:9464", 200),
        ("FL.example.org:9464", 200),
        ("attacker.example", 403),
        ("127.0.0.1.attacker.example:9464", 403),
        ("fl.example.org.attacker.example", 403),
        ("attacker.example@", 403),
        ("[", 403),
    ],
)
def test_the_metrics_are_for_this_host_and_named_ones(host: str, status: int) -> None:
    (port,) = free_ports(1)
    with served(Metrics(1.0, Alarms(1.0)), "127.0.0.1, fl.example.org", port):
        for path in ("/metrics", "/healthz"):
            connection = HTTPConnection("127.0.0.1", port, timeout=600)
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            assert answer.status == status
            assert (b"privet_" in answer.read()) == (status == 200 and path == "/metrics")
            connection.close()


# ------------------------------------------------------------------ control.toml


def test_agents_are_left_out_from_one_round_to_another(tmp_path: Path, monkeypatch: Any) -> None:
    def write(folder: Path) -> None:
        (folder / "control.toml").write_text('exclude = "1, 3"\n')

    after_round(monkeypatch, 2, write)
    finished = run_inline(settings(tmp_path, exclude="0"), "run")
    assert [done.participants for done in finished.result.history] == [
        ("1", "2", "3"),
        ("1", "2", "3"),
        ("0", "2"),
        ("0", "2"),
    ]
    assert finished.result.history[3].failures["1"].text == "excluded by the operator"
    schedule = "1,2,3;1,2,3;0,2;0,2"
    absent = settings(tmp_path, participation="schedule", schedule=schedule)
    reference = run_inline(absent, "reference")
    ours, theirs = (run.result.arrays["x"].numpy() for run in (finished, reference))
    assert np.array_equal(ours, theirs)


class _Away(Observer):
    """Takes the node of agent 1 away for some rounds, and brings it back."""

    def __init__(self, grid: Any, rounds: range) -> None:
        self.grid, self.rounds = grid, rounds

    def on_round(self, run: Any, done: Round) -> str | None:
        node = run.session.roster.agents["1"].node
        self.grid.hidden = {node} if done.round + 1 in self.rounds else set()
        return None


class _Hiding(InlineGrid):
    hidden: ClassVar[set[int]] = set()

    def get_node_ids(self) -> list[int]:
        return [node for node in super().get_node_ids() if node not in self.hidden]


@pytest.mark.parametrize(
    ("readmit", "away", "expected"),
    [
        (True, range(4, 6), [2, 2, 2, 2, 2, 2, 3, 3]),  # its return is seen in round 6
        (True, range(0), [2] * 8),
        (False, range(4, 6), [2] * 8),
    ],
)
def test_an_excluded_agent_whose_node_was_away_comes_back_where_that_is_allowed(
    tmp_path: Path, caplog: Any, readmit: bool, away: range, expected: list[int]
) -> None:
    problems = logistic_federation(3)
    nodes = [{"partition-id": place, "num-partitions": 3} for place in range(3)]
    grid = _Hiding(app_of("dp-fedavg", problems), nodes)
    control = Control(tmp_path, "1", None, readmit=readmit)
    found = DPFedAvg(num_agents=3, recover_by_name="yes").start(
        grid,
        ArrayRecord({"x": Array(np.zeros(4))}),
        num_rounds=8,
        observers=[_Away(grid, away), control],
    )
    assert [len(done.participants) for done in found.history] == expected
    said = "agent 1 takes part again: its node is back"
    lines = [line for line in caplog.messages if said in line]
    assert len(lines) == (max(expected) == 3)


def test_a_name_that_nobody_has_is_a_warning_once(tmp_path: Path, caplog: Any) -> None:
    finished = run_inline(settings(tmp_path, exclude="2,9,ward-b"), "run")
    assert finished.summary["rounds"] == 4
    lines = [line for line in caplog.messages if line.startswith("exclude: ")]
    assert lines == ["exclude: no agent is called 9, ward-b"]


def test_a_run_drains_when_the_file_says_stop(tmp_path: Path, monkeypatch: Any) -> None:
    def write(folder: Path) -> None:
        (folder / "control.toml").write_text("stop = true\n")

    after_round(monkeypatch, 2, write)
    finished = run_inline(settings(tmp_path, checkpoint_every=0), "run")
    said = finished.summary
    assert (said["status"], said["rounds"], said["checkpoint-round"]) == ("stopped", 2, 2)


@pytest.mark.parametrize(
    "text", ["stop = ", "stop = 1", 'drop = "3"', "exclude = 3", "a=" + "[" * 99_999]
)
def test_a_control_file_that_says_nothing_changes_nothing(
    tmp_path: Path, text: str, monkeypatch: Any, caplog: Any
) -> None:
    def write(folder: Path) -> None:
        (folder / "other.toml").write_text(text)
        (folder / "other.toml").replace(folder / "control.toml")  # or half of it may be read

    after_round(monkeypatch, 1, write)
    assert run_inline(settings(tmp_path), "run").summary["rounds"] == 4
    assert sum("control.toml is not followed" in line for line in caplog.messages) == 1


def test_units_are_left_out_by_the_mixer(tmp_path: Path) -> None:
    class Mixer:
        left: frozenset[str] = frozenset("x")

        def leave_out(self, units: frozenset[str]) -> None:
            self.left = units

    class Roster:
        excluded: Any = None
        agents: ClassVar[dict[str, Any]] = {}

    class Fake:
        def __init__(self) -> None:
            self.session = type("S", (), {"roster": Roster()})()

    mixer, run = Mixer(), Fake()
    control = Control(tmp_path, "", mixer)
    control.on_begin(run)  # type: ignore[arg-type]
    assert mixer.left == frozenset()
    (tmp_path / "control.toml").write_text('exclude-units = "1,4"')
    control.on_begin(run)  # type: ignore[arg-type]
    assert mixer.left == {"1", "4"}


def test_an_exclusion_below_min_agents_can_be_corrected_while_the_round_is_tried_again(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    """The file is read before every try; nothing ends while there is patience."""
    monkeypatch.setattr("privet.rounds.collect.outcome.FIRST_PAUSE", 0.001)
    control = tmp_path / "run" / "control.toml"
    after_round(monkeypatch, 2, lambda folder: control.write_text('exclude = "0,1,2,3"\n'))
    begin_again = OpenRound.begin_again

    def corrected(self: OpenRound) -> None:
        if len(self.tally.failed_at) == 2:
            control.unlink()
        begin_again(self)

    monkeypatch.setattr(OpenRound, "begin_again", corrected)
    finished = run_inline(settings(tmp_path), "run")
    assert [done.participants for done in finished.result.history] == [("0", "1", "2", "3")] * 4
    assert "tried 4 times" in "".join(finished.result.history[2].notes)
    assert "excluded by the operator; tried again in" in caplog.text


def test_a_stop_is_heard_while_a_round_is_tried_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("privet.rounds.collect.outcome.FIRST_PAUSE", 0.001)
    control = tmp_path / "run" / "control.toml"
    after_round(monkeypatch, 2, lambda folder: control.write_text('exclude = "0,1,2,3"\n'))
    begin_again = OpenRound.begin_again

    def stop(self: OpenRound) -> None:
        control.write_text('exclude = "0,1,2,3"\nstop = true\n')
        begin_again(self)

    monkeypatch.setattr(OpenRound, "begin_again", stop)
    finished = run_inline(settings(tmp_path, checkpoint_every=0), "run")
    said = finished.summary
    assert (said["status"], said["rounds"], said["checkpoint-round"]) == ("stopped", 2, 2)


@pytest.mark.parametrize("error", [RunError, RuntimeError, KeyboardInterrupt, SystemExit])
def test_every_way_to_fail_leaves_a_checkpoint_of_the_last_round(
    tmp_path: Path, monkeypatch: Any, error: type[BaseException]
) -> None:
    open_round = Run.open_round

    def fail(self: Run, number: int, grid: Any) -> Any:
        if number == 3:
            raise error("on fire")
        return open_round(self, number, grid)

    monkeypatch.setattr(Run, "open_round", fail)
    with pytest.raises(error):
        run_inline(settings(tmp_path, checkpoint_every=50), "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["checkpoint-round"] == 2
    monkeypatch.undo()
    again = run_inline(settings(tmp_path, resume=str(tmp_path / "run")), "again")
    whole = run_inline(settings(tmp_path), "whole")
    ours, theirs = (run.result.arrays["x"].numpy() for run in (again, whole))
    assert np.array_equal(ours, theirs)


def test_no_checkpoint_is_written_of_a_half_folded_state(tmp_path: Path, monkeypatch: Any) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("half of a fold")

    def break_fold(folder: Path) -> None:
        monkeypatch.setattr("privet.rounds.collect.clear.fold_accepted", fail)

    after_round(monkeypatch, 2, break_fold)
    with pytest.raises(RuntimeError):
        run_inline(settings(tmp_path, checkpoint_every=50, secure_sum=False), "run")
    assert read_manifest(tmp_path / "run")["round"] == 0  # that of before the first message


# ------------------------------------------------------------------ thresholds


def test_absences_in_a_row_are_a_warning_once(tmp_path: Path, caplog: Any) -> None:
    run_inline(settings(tmp_path, num_server_rounds=8, exclude="2"), "run")
    lines = [line for line in caplog.messages if "in a row" in line]
    assert lines == ["round 3: agent 2 was absent in 3 rounds in a row: excluded by the operator"]


def test_an_epsilon_near_its_target_is_no_warning(tmp_path: Path, caplog: Any) -> None:
    private = {"local_solver": "noisy-gd", "clip": 1.0, "row_norm": 9.0, "target_epsilon": 5.0}
    with caplog.at_level(logging.INFO, "flwr.privet"):
        run_inline(settings(tmp_path, num_server_rounds=12, **private), "run")
    lines = [one for one in caplog.records if "near the target" in one.getMessage()]
    assert [one.levelno for one in lines] == [logging.INFO]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("3,7", ["3", "7"]),
        (" a , b ,", ["a", "b"]),
        (r"a\,b,c", ["a,b", "c"]),
        (r"\ x, y\ ", [" x", "y "]),
        (r"a\b", [r"a\b"]),
        ("a\\\\,b", ["a\\", "b"]),
    ],
)
def test_any_name_can_be_left_out(text: str, names: list[str]) -> None:
    """Agents choose their names: also ones with a comma, or a space at an end."""
    assert _names(text) == set(names)
