"""GFL with one ServerApp for each unit, in threads, against one process that hosts all units."""

from __future__ import annotations

import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.core import ConfigError, RunError
from privet.kernel import epsilon_of
from privet.problems import public_facts
from privet.server_apps import Finished, build, execute, read_config
from privet.server_apps.build import build_evaluation
from privet.server_apps.peers.run import unit_agents
from privet.server_apps.peers.settling import Settling
from privet.strategies.gfl.account import Links
from support.graph_servers import (
    Hosts,
    assert_same_trajectory,
    at_once,
    simulated,
    unit_config,
    unit_grid,
)
from support.run_files import history

COMMON: dict[str, Any] = {
    "num-server-rounds": 4,
    "num-agents": 6,
    "units": 3,
    "graph": "path",
    "participants": 1,
    "noise-variance": 0.01,
    "noise-seed": 5,
    "seed": 7,
    "init-scale": 1.0,
    "batch": "sample",
    "batch-size": 8,
    "step-size": 0.5,
    "local-epochs": 3,
    "peer-timeout": 20.0,
}


def serve(hosts: Hosts, name: str, output: Path, run_id: str = "", **changed: Any) -> Finished:
    """Run a unit's ServerApp with its two agents on the in-process engine."""
    config = {**unit_config(hosts, name, **COMMON), "output-dir": str(output), **changed}
    return execute(unit_grid(config), read_config(config), run_id or f"unit-{name}")


@pytest.mark.parametrize("kind", ["homomorphic", "random"])
def test_three_servers_follow_the_trajectory_of_the_simulation(tmp_path: Path, kind: str) -> None:
    extra = {"perturbation": kind}
    with Hosts(tmp_path, 3) as hosts:
        jobs = [lambda n=name: serve(hosts, n, tmp_path, **extra) for name in hosts.names]
        done: list[Finished] = at_once(jobs)
    assert_same_trajectory([f.folder for f in done], {**COMMON, **extra}, {})
    assert [len(history(f.folder)[0]["participants"]) for f in done] == [1, 1, 1]


def test_closing_exchanges_bring_the_servers_together(tmp_path: Path) -> None:
    config = {**COMMON, "closing-rounds": 40, "num-server-rounds": 2}
    with Hosts(tmp_path, 3) as hosts:
        jobs = [lambda n=name: serve(hosts, n, tmp_path, **config) for name in hosts.names]
        done = at_once(jobs)
    models = [np.load(f.folder / "model.npz")["x"] for f in done]
    strategy = simulated({**config, "closing-rounds": 0}, {})
    assert strategy.session is not None
    centroid = strategy.half.models(strategy.session.state)["last"]
    for model in models:
        np.testing.assert_allclose(model, centroid, rtol=0, atol=1e-6)


def test_a_resumed_server_rejoins_and_the_others_say_what_they_did(tmp_path: Path) -> None:
    """Unit 1 stops after round 2 and returns when the others have played round 3 without it."""
    short = {"peer-timeout": 3.0, "graph": "complete"}
    last = 12
    with Hosts(tmp_path, 3) as hosts:

        def leave_and_return() -> Finished:
            first = serve(hosts, "1", tmp_path, **short, **{"num-server-rounds": 2})
            others = [tmp_path / f"unit-{n}" / "history.jsonl" for n in (0, 2)]
            while any(len(file.read_text().splitlines()) < 3 for file in others):
                time.sleep(0.05)
            late = {"num-server-rounds": last, "resume": str(first.folder), "peer-timeout": 20.0}
            return serve(hosts, "1", tmp_path, "resumed", **{**short, **late})

        stay = {**short, "num-server-rounds": last}
        done = at_once(
            [
                lambda: serve(hosts, "0", tmp_path, **stay),
                leave_and_return,
                lambda: serve(hosts, "2", tmp_path, **stay),
            ]
        )
    rounds = [history(f.folder) for f in done]
    assert [[line["round"] for line in lines] for lines in rounds] == [list(range(1, last + 1))] * 3
    dropped = [
        {
            (line["round"], note[5:8])
            for line in lines
            for note in line["notes"]
            if "was dropped: " in note
        }
        for lines in rounds
    ]
    # Both ends dropped the same edges in the same rounds, and none of the last.
    for unit, edge in ((0, "0-1"), (2, "1-2")):
        mine = {round_ for round_, what in dropped[unit] if what == edge}
        assert mine == {round_ for round_, what in dropped[1] if what == edge}
        assert mine
        assert last not in mine
        assert min(mine) == 3
    assert not any("0-2" in what for lines in dropped for _, what in lines)
    cut = {
        round_: [(0, 1)] * ((round_, "0-1") in dropped[1])
        + [(1, 2)] * ((round_, "1-2") in dropped[1])
        for round_ in range(1, last + 1)
    }
    config = {**COMMON, "num-server-rounds": last, "graph": "complete"}
    assert_same_trajectory([f.folder for f in done], config, cut)


def test_a_server_that_was_away_for_long_joins_the_present_round(tmp_path: Path) -> None:
    """Its agents are not asked in the rounds that it leaves out."""
    config = {**COMMON, "graph": "complete", "peer-timeout": 6.0, "num-server-rounds": 24}
    with Hosts(tmp_path, 3) as hosts:

        def leave_and_return() -> Finished:
            first = serve(hosts, "1", tmp_path, **{**config, "num-server-rounds": 2})
            others = [tmp_path / f"unit-{n}" / "history.jsonl" for n in (0, 2)]
            while any(len(file.read_text().splitlines()) < 6 for file in others):
                time.sleep(0.05)
            return serve(hosts, "1", tmp_path, "resumed", **config, resume=str(first.folder))

        done = at_once(
            [
                lambda: serve(hosts, "0", tmp_path, **config),
                leave_and_return,
                lambda: serve(hosts, "2", tmp_path, **config),
            ]
        )
    rounds = [history(finished.folder) for finished in done]
    assert [[line["round"] for line in lines] for lines in rounds] == [list(range(1, 25))] * 3
    skipped = [line["round"] for line in rounds[1] if not line["participants"]]
    assert skipped == list(range(3, skipped[-1] + 1))
    assert skipped[-1] >= 6
    assert all("not played: this server was away" in rounds[1][n - 1]["notes"][0] for n in skipped)
    for lines in rounds:  # from some round on all edges count
        dropped = [ln["round"] for ln in lines if any("was dropped" in n for n in ln["notes"])]
        assert max(dropped, default=0) <= skipped[-1] + 2
    for unit in (0, 2):  # one round waits for the whole of peer-timeout, the others do not
        assert sum(line["seconds"] >= 6.0 for line in rounds[unit]) == 1


def test_only_gfl_has_units() -> None:
    with pytest.raises(ConfigError, match="unit = 0: fed-plt does not use it; it is a key of gfl"):
        read_config({"algorithm": "fed-plt", "num-agents": 2, "unit": "0"})


def test_a_server_alone_ends_with_one_line(tmp_path: Path) -> None:
    with Hosts(tmp_path, 3) as hosts, pytest.raises(RunError, match="missing: unit 1 "):
        serve(hosts, "0", tmp_path, **{"wait-timeout": 0.3})


def test_a_server_builds_its_strategy_once_and_before_it_reads_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noted(name: str) -> Any:
        function = getattr(build, name)

        def call(*arguments: Any, **options: Any) -> Any:
            done.append(name)
            return function(*arguments, **options)

        return call

    for name in ("build_strategy", "build_evaluation"):
        monkeypatch.setattr(import_module("privet.server_apps.execute"), name, noted(name))
    with Hosts(tmp_path, 3) as hosts, pytest.raises(RunError, match="missing: unit 1 "):
        serve(hosts, "0", tmp_path, **{"wait-timeout": 0.3})
    assert done == ["build_strategy", "build_evaluation"]
    done.clear()
    with Hosts(tmp_path / "again", 3) as hosts:
        at_once([lambda n=name: serve(hosts, n, tmp_path / "again") for name in hosts.names])
    assert sorted(done) == ["build_evaluation"] * 3 + ["build_strategy"] * 3


def test_the_agents_of_a_unit_are_counted() -> None:
    config = read_config({"num-agents": 6, "units": 3, "unit": "0", "algorithm": "gfl"})
    assert unit_agents(config) == 2
    assert unit_agents({**config, "unit-agents": 3}) == 3
    with pytest.raises(ConfigError, match="7 agents cannot be divided by 3 units"):
        unit_agents({**config, "num-agents": 7})


def test_a_server_that_ends_within_a_round_releases_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unit 1 ends when its message of round 3 has left, and sends another after its resume."""
    deliver, ended = Settling._deliver, []

    def once(self: Settling) -> bool:
        done = deliver(self)
        if self.identity.unit == "1" and self.number >> 16 == 3 and not ended:
            ended.append(self.link.unit)
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Settling, "_deliver", once)
    config = {**COMMON, "graph": "complete", "participants": 2, "noise-seed": -1, "clip": 1.0}
    config |= {"num-server-rounds": 5}
    with Hosts(tmp_path, 3) as hosts:

        def end_and_return() -> Finished:
            with pytest.raises(BaseException, match="interrupted"):
                serve(hosts, "1", tmp_path, **config)
            folder = str(tmp_path / "unit-1")
            return serve(hosts, "1", tmp_path, "resumed", **config, resume=folder)

        others = [lambda n=name: serve(hosts, n, tmp_path, **config) for name in ("0", "2")]
        resumed, usual, _ = at_once([end_and_return, *others])
    assert ended

    def epsilon(finished: Finished) -> float:
        accounts = json.loads((finished.folder / "privacy.json").read_text())["accounts"]
        return float(next(one["epsilon"] for one in accounts if one["to"] == "links"))

    del config["peer-timeout"]
    settings = read_config({**config, "algorithm": "gfl"})
    links = Links.of(settings, public_facts(build_evaluation(settings).federation.problems[0]))
    assert links is not None
    releases = [links.release(number) for number in (1, 2, 3, 3, 4, 5)]
    assert epsilon(resumed) == epsilon_of([(one, 1) for one in releases if one], 1e-5)
    assert epsilon(usual) < epsilon(resumed)
    lines = history(resumed.folder)
    assert lines[1]["measures"]["epsilon-links"] < epsilon(usual)
    assert lines[2]["measures"]["epsilon-links"] is None
    assert any("round 3 may have left more than once" in note for note in lines[2]["notes"])
    assert "epsilon-links" in history(usual.folder)[-1]["measures"]
