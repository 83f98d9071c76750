"""Resumes by ``start`` in Python, of paths and checkpoints read: no request is forgotten."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MessageType

from privet.core import ConfigError, RunError
from privet.core.errors import HopelessError
from privet.rounds.keep import place
from privet.rounds.keep.checkpoint import FILE_NAME, Checkpoint, load
from privet.rounds.keep.journal import Request
from privet.rounds.keep.place import CONTINUED, take_place
from privet.sim.engine import InlineGrid
from privet.strategies import DPFedSGD, FedPLT
from support.federations import app_of, logistic_agents

AGENTS = 3


class Stopped(Exception):
    """What ends a run between two rounds."""


class Counting(InlineGrid):
    """Counts the messages of rounds to each agent."""

    asked: Counter[str]

    def deliver(self, message: Message) -> Message | None:
        if message.metadata.message_type == MessageType.TRAIN:
            node = self.contexts[message.metadata.dst_node_id].node_config
            self.asked[str(node["partition-id"])] += 1
        return super().deliver(message)


def start(
    file: Path | None,
    rounds: int,
    fail: int = 0,
    resume: Path | Checkpoint | None = None,
    *,
    asked: Counter[str] | None = None,
    private: bool = True,
    then: Callable[[], object] | None = None,
) -> Any:
    """Play a run up to a round; call ``then`` or raise `Stopped` after round ``fail``."""

    def watch(done: Any, _: Any) -> None:
        if done.round == fail:
            if then is None:
                raise Stopped
            then()

    nodes = [{"partition-id": one, "num-partitions": AGENTS} for one in range(AGENTS)]
    name = "dp-fedsgd" if private else "fed-plt"
    grid = Counting(app_of(logistic_agents(AGENTS), name), nodes)
    grid.asked = Counter() if asked is None else asked
    noise = {"clip": 1.0, "noise_scale": 0.5}
    strategy = (
        DPFedSGD(**noise, num_agents=AGENTS, patience=0.0)
        if private
        else FedPLT(rho=3.0, num_agents=AGENTS)
    )
    model = ArrayRecord({"x": Array(np.zeros(4))})
    return strategy.start(
        grid, model, num_rounds=rounds, checkpoint=file, observers=[watch], resume=resume
    )


def charged(done: Any) -> Counter[str]:
    """Return the messages that a result's account holds of each agent."""
    return Counter({name: agent.messages for name, agent in done.privacy.agents.items()})


@pytest.mark.parametrize("fail", [0, 4])
def test_one_that_was_read_before_the_run_went_on_is_refused(tmp_path: Path, fail: int) -> None:
    file = tmp_path / FILE_NAME
    start(file, 2)
    old = load(file)
    if fail:
        with pytest.raises(Stopped):
            start(file, 6, fail, old)
    else:
        start(file, 6, resume=old)
    with pytest.raises(HopelessError, match="what the agents have spent since round 2"):
        start(file, 6, resume=old)


def test_one_that_is_read_anew_goes_on_and_counts_all(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    start(file, 2)
    with pytest.raises(Stopped):
        start(file, 6, 4, load(file))
    done = start(file, 6, resume=load(file))
    assert set(charged(done).values()) == {6}


def test_no_run_begins_over_the_file_of_another(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    start(file, 2)
    before = file.read_bytes()
    with pytest.raises(ConfigError, match="holds a private run"):
        start(file, 2)
    assert file.read_bytes() == before


@pytest.mark.parametrize("read", [True, False])
def test_a_private_run_goes_on_with_a_file_to_write_to_alone(tmp_path: Path, read: bool) -> None:
    """Without one, nothing says afterwards whom it asked."""
    asked: Counter[str] = Counter()
    start(tmp_path / FILE_NAME, 2, asked=asked)
    before = Counter(asked)
    with pytest.raises(ConfigError, match="goes on needs checkpoint") as refused:
        start(None, 4, resume=load(tmp_path) if read else tmp_path, asked=asked)
    assert "\n" not in str(refused.value)
    assert asked == before
    done = start(tmp_path / FILE_NAME, 4, resume=tmp_path, asked=asked)
    assert charged(done) == asked


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("name", [FILE_NAME, "run.npz"])
def test_one_place_alone_goes_on_from_a_private_run(tmp_path: Path, name: str, read: bool) -> None:
    asked: Counter[str] = Counter()
    places = [tmp_path / one for one in ("first", "second", "third")]
    for folder in places:
        folder.mkdir()
    first, second, third = (folder / name for folder in places)
    start(first, 2, asked=asked)
    old = load(first) if read else first
    with pytest.raises(Stopped):
        start(second, 6, 4, old, asked=asked)
    before = Counter(asked)
    there = second.parent if name == FILE_NAME else second
    for file in (third, first):
        with pytest.raises(RunError, match=f"went on in {there}") as refused:
            start(file, 6, resume=old, asked=asked)
        assert "\n" not in str(refused.value)
    assert asked == before
    assert charged(start(second, 6, resume=second, asked=asked)) == asked


@pytest.mark.parametrize("elsewhere", [True, False])
def test_of_two_that_go_on_at_once_the_first_ends(tmp_path: Path, elsewhere: bool) -> None:
    """In the middle of its rounds; the account of the other holds what it asked for."""
    asked: Counter[str] = Counter()
    file = tmp_path / FILE_NAME
    other = tmp_path / "other" / FILE_NAME if elsewhere else file
    other.parent.mkdir(exist_ok=True)
    found: list[Any] = []

    def goes_on() -> None:
        found.append(start(other, 6, resume=file, asked=asked))

    with pytest.raises(RunError, match="changed by another process"):
        start(file, 6, 3, asked=asked, then=goes_on)
    assert charged(found[0]) == asked


@pytest.mark.parametrize("elsewhere", [True, False])
def test_of_two_that_read_one_checkpoint_one_goes_on(tmp_path: Path, elsewhere: bool) -> None:
    file = tmp_path / FILE_NAME
    start(file, 2)
    read = [load(file), load(file)]
    places = [tmp_path / name / FILE_NAME if elsewhere else file for name in ("one", "two")]
    for one in places:
        one.parent.mkdir(exist_ok=True)
    take_place(read[0], places[0], private=True)
    with pytest.raises(RunError, match="went on in" if elsewhere else "changed by another"):
        take_place(read[1], places[1], private=True)
    assert not (places[1].with_name("asked.jsonl")).exists() or not elsewhere


def test_of_two_that_begin_at_one_file_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other began while this one looked at what is there."""
    file, real = tmp_path / FILE_NAME, place.require_unspent

    def slow(checkpoint: Path, **given: bool) -> None:
        real(checkpoint, **given)
        monkeypatch.setattr(place, "require_unspent", real)
        take_place(None, file, private=True)

    monkeypatch.setattr(place, "require_unspent", slow)
    with pytest.raises(RunError, match="changed by another process"):
        take_place(None, file, private=True)


@pytest.mark.parametrize("there", ["private", "plain"])
@pytest.mark.parametrize("private", [True, False])
def test_no_run_goes_on_over_the_files_of_another(
    tmp_path: Path, private: bool, there: str
) -> None:
    """A plain one may replace a plain one."""
    source, other = tmp_path / "source" / FILE_NAME, tmp_path / FILE_NAME
    source.parent.mkdir()
    start(source, 2, private=private)
    start(other, 3, private=there == "private")
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    if not private and there == "plain":
        start(other, 4, resume=source, private=False)
        return
    with pytest.raises(ConfigError, match="holds a"):
        start(other, 4, resume=source, private=private)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.*")} == before
    assert not (source.parent / CONTINUED).exists()


# ---------------------------------------------------------------------- agents of later rounds


@pytest.mark.parametrize("back", [False, True])
def test_an_agent_that_enrolled_after_the_checkpoint_is_charged_though_it_is_away(
    tmp_path: Path, back: bool
) -> None:
    """The checkpoint has nothing of it: the journal says by what numbers it was asked."""
    files, killed = tmp_path / "run", tmp_path / "killed"
    asked: Counter[str] = Counter()
    alive: Counter[str] = Counter()
    files.mkdir()

    def play(folder: Path, kill: int = 0, **options: Any) -> Any:
        nodes = [{"partition-id": one, "num-partitions": AGENTS} for one in range(AGENTS)]
        grid = Counting(app_of(logistic_agents(AGENTS), "dp-fedsgd"), nodes)
        grid.asked = asked
        newest = max(grid.online)
        grid.online.discard(newest)

        def watch(done: Any, _: Any) -> None:
            if done.round == 2 and (kill or back):
                grid.online.add(newest)
            if done.round == kill:  # what a process that is killed now leaves
                shutil.copytree(files, killed)
                alive.update(asked)
                raise Stopped

        strategy = DPFedSGD(
            clip=1.0, noise_scale=0.5, num_agents=AGENTS - 1, min_agents=1, patience=0.0
        )
        return strategy.start(
            grid,
            ArrayRecord({"x": Array(np.zeros(4))}),
            num_rounds=6,
            checkpoint=folder / FILE_NAME,
            checkpoint_every=10,
            observers=[watch],
            log_rounds=False,
            **options,
        )

    with pytest.raises(Stopped):
        play(files, kill=4)
    assert alive["2"] == 2
    result = play(killed, resume=killed / FILE_NAME)
    stated = {name: account.messages for name, account in result.privacy.agents.items()}
    assert stated == dict(asked)
    assert (asked["2"] > alive["2"]) is back


def test_a_request_to_an_agent_of_whom_nothing_is_known_ends_the_resume(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    with pytest.raises(Stopped):
        start(file, 4, 2, asked=Counter())
    saved = load(file)
    with pytest.raises(HopelessError, match="round 3 asked agents 7, of whom neither"):
        start(file, 4, resume=replace(saved, where=None, requests=[Request(3, ("7",))]))
