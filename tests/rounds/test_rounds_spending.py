"""A private run that spends and gains nothing ends with a line and an exit code of its own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MessageType

from privet.client_apps import client_app
from privet.core import ConfigError, PrivetError
from privet.core.errors import FruitlessError, HopelessError
from privet.core.exits import Exit, exit_code
from privet.data import problem_from_context
from privet.kernel.node_rules import ALLOW_RUN_DATA
from privet.rounds.collect.masked import MOST_ATTEMPTS
from privet.rounds.collect.outcome import DeclinedError, InVainError, OverflowedError, TooFewError
from privet.rounds.run import Run
from privet.rounds.session import REPEATS
from privet.rounds.stop import Stop
from privet.server_apps import execute, read_config
from privet.server_apps.execute import ATTEMPTS
from privet.server_apps.own_run import run_and_save
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline, simulated
from privet.strategies import DPFedSGD, FedPLT, Probability
from privet.wire import REFUSED
from support.cli import privet
from support.federations import app_of, logistic_agents

AGENTS = 4
PATIENT: dict[str, Any] = {"patience": 600.0, "round_timeout": 5.0}
STRAGGLERS: dict[str, Any] = {
    "algorithm": "fed-plt",
    "dataset": "synthetic",
    "num-agents": 6,
    "asynchronous": True,
    "speeds": "stragglers",
    "round-timeout": 2.0,
    "max-uploads": 5,
    "target-epsilon": 3.0,
    "clip": 1.0,
    "row-norm": 1.0,
    "local-solver": "noisy-gd",
}


class Dead(BaseException):
    """Ends a run as a lost process does."""


class Silent(InlineGrid):
    """A grid on which the replies of some agents to training messages are lost."""

    def __init__(self, name: str, lost: str = "", away: int = 10**6) -> None:
        super().__init__(app_of(logistic_agents(AGENTS), name), AGENTS)
        self.silent, self.until, self.counted = lost, away, Counter[str]()

    def deliver(self, message: Message) -> Message | None:
        agent = str(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
        reply = super().deliver(message)
        if message.metadata.message_type == MessageType.TRAIN:
            self.counted[agent] += 1
            if agent in self.silent and self.counted[agent] <= self.until:
                return None
        return reply


class Answering(InlineGrid):
    """A grid on which agents answer training messages with an error of their own."""

    def __init__(self, errors: dict[str, Error]) -> None:
        super().__init__(app_of(logistic_agents(AGENTS), "dp-fedsgd"), AGENTS)
        self.errors = errors

    def deliver(self, message: Message) -> Message | None:
        agent = str(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
        if message.metadata.message_type == MessageType.TRAIN:
            return Message(self.errors[agent], reply_to=message)
        return super().deliver(message)


def start() -> ArrayRecord:
    return ArrayRecord({"x": Array(np.zeros(4))})


def private(**options: Any) -> DPFedSGD:
    noised: dict[str, Any] = {"clip": 1.0, "noise_scale": 1.0, "step_size_base": 0.1}
    return DPFedSGD(num_agents=AGENTS, **noised, **PATIENT, **options)


def test_an_asynchronous_run_stops_once_each_agent_spent_a_task(tmp_path: Path) -> None:
    config = {**STRAGGLERS, "output-dir": str(tmp_path)}
    with pytest.raises(FruitlessError, match=r"round-timeout = 2 is shorter than a task.*raise it"):
        run_inline(config, "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["exit-code"]) == ("failed", Exit.FRUITLESS)
    assert not (tmp_path / "run" / "statement.html").exists()
    account = json.loads((tmp_path / "run" / "privacy.json").read_text())
    for agent in account["agents"].values():
        assert sum(one["times"] for one in agent["releases"]) == 1
    with pytest.raises(HopelessError, match="ended without a model of use"):
        run_inline({**config, "resume": "auto"}, "again")
    enough = {**config, "round-timeout": 1e4, "max-uploads": 3, "num-server-rounds": 3}
    assert run_inline(enough, "enough").result.exit_code == Exit.DONE


def test_a_private_run_that_folded_nothing_states_nothing_whatever_its_code(tmp_path: Path) -> None:
    config = {
        "algorithm": "dp-fedsgd",
        "dataset": "synthetic",
        "num-agents": 4,
        "min-agents": 2,
        "exclude": "0,1,2",
        "clip": 1.0,
        "noise-scale": 1.0,
        "patience": 0.0,
        "output-dir": str(tmp_path),
    }
    with pytest.raises(PrivetError) as ended:
        run_inline(config, "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["exit-code"] == exit_code(ended.value) != Exit.FRUITLESS
    assert not (tmp_path / "run" / "statement.html").exists()
    page = tmp_path / "page.html"
    code, _, error = privet("report", tmp_path / "run", "--statement", page)
    assert (code, page.exists()) == (Exit.PERSON, False)
    assert "no upload was folded" in error


@pytest.mark.usefixtures("clock")
def test_a_synchronous_round_without_a_reply_is_not_tried_again_and_again() -> None:
    grid = Silent("dp-fedsgd", lost="0123")
    with pytest.raises(InVainError, match="4 agents were charged for tasks without an upload"):
        private().start(grid, start(), num_rounds=3)
    assert grid.counted == dict.fromkeys("0123", 1)


@pytest.mark.usefixtures("clock")
def test_an_agent_is_asked_at_most_three_times_while_others_uploads_wait() -> None:
    grid = Silent("dp-fedsgd", lost="2")
    with pytest.raises(InVainError, match="3 of 4 agents replied"):
        private(min_agents=AGENTS).start(grid, start(), num_rounds=3)
    assert grid.counted == {"0": 1, "1": 1, "2": 3, "3": 1}


@pytest.mark.usefixtures("clock")
def test_an_agent_that_comes_back_takes_part_and_may_be_lost_again() -> None:
    grid = Silent("dp-fedsgd", lost="2", away=2)
    found = private(min_agents=AGENTS).start(grid, start(), num_rounds=3)
    assert [done.participants for done in found.history] == [tuple("0123")] * 3
    assert grid.counted == {"0": 3, "1": 3, "2": 5, "3": 3}


@pytest.mark.usefixtures("clock")
def test_a_target_that_a_lost_reply_spends_ends_the_run_in_order() -> None:
    grid = Silent("dp-fedsgd", lost="2", away=1)
    keys: dict[str, Any] = {"clip": 1.0, "target_epsilon": 4.0, "step_size_base": 0.1, **PATIENT}
    strategy = DPFedSGD(num_agents=AGENTS, min_agents=AGENTS, **keys)
    found = strategy.start(grid, start(), num_rounds=3)
    assert (found.stopped, found.exit_code, len(found.history)) == (Stop.BUDGET, Exit.DONE, 2)
    assert found.privacy is not None
    assert found.privacy.agents["2"].messages == 3
    assert found.privacy.epsilon <= 4.0


@pytest.mark.usefixtures("clock")
def test_a_run_without_noise_is_tried_as_long_as_it_has_patience() -> None:
    grid = Silent("fed-plt", lost="0123", away=3)
    found = FedPLT(num_agents=AGENTS, **PATIENT).start(grid, start(), num_rounds=2)
    assert len(found.history) == 2
    assert grid.counted == dict.fromkeys("0123", 5)


@pytest.mark.usefixtures("clock")
def test_secure_sums_without_a_reply_are_not_tried_again_and_again() -> None:
    """Nor is one whose attempts each lack a reply, of which all others were charged."""
    grid = Silent("dp-fedsgd", lost="0123")
    with pytest.raises(InVainError, match="agents were charged for tasks without an upload"):
        private(secure_sum=True).start(grid, start(), num_rounds=3)
    assert grid.counted == dict.fromkeys("0123", 1)
    grid = Silent("dp-fedsgd", lost="2")
    with pytest.raises(InVainError, match="agents were charged for tasks without an upload"):
        private(secure_sum=True, min_agents=AGENTS).start(grid, start(), num_rounds=3)
    assert max(grid.counted.values()) <= MOST_ATTEMPTS


PRIVATE_RUN: dict[str, Any] = {
    "algorithm": "dp-fedsgd",
    "dataset": "synthetic",
    "examples-per-agent": 20,
    "num-agents": 3,
    "num-server-rounds": 4,
    "clip": 1.0,
    "noise-scale": 1.0,
    "baseline-seconds": 0.0,
}


@pytest.mark.parametrize("dies_in", [1, 2])
def test_a_round_that_processes_die_in_is_charged_five_times_at_most(
    tmp_path: Path, dies_in: int
) -> None:
    """By ``resume = auto``; a person may name the folder."""
    raw = {**PRIVATE_RUN, "output-dir": str(tmp_path), "resume": "auto"}
    app = client_app(None, problem_from_context)

    def attempt(dying: int, **keys: Any) -> None:
        class Dying(InlineGrid):
            def deliver(self, message: Message) -> Message | None:
                training = message.metadata.message_type == MessageType.TRAIN
                if training and message.content["privet"]["round"] == dying:  # type: ignore[index]
                    raise Dead
                return super().deliver(message)

        config = {**raw, **keys}
        execute(Dying(app, simulated(config), config), read_config(config), "run")

    for _ in range(ATTEMPTS):
        with pytest.raises(Dead):
            attempt(dies_in)
    with pytest.raises(HopelessError, match=f"charged 5 times for round {dies_in}"):
        attempt(0)
    attempt(0, resume=str(tmp_path / "run"))
    account = json.loads((tmp_path / "run" / "privacy.json").read_text())
    for agent in account["agents"].values():
        assert sum(one["times"] for one in agent["releases"]) == 4 + ATTEMPTS


def test_an_agent_that_went_away_leaves_the_attempts_counted(tmp_path: Path) -> None:
    raw = {**PRIVATE_RUN, "output-dir": str(tmp_path), "resume": "auto", "min-agents": 2}
    raw["wait-timeout"] = 0.1
    app = client_app(None, problem_from_context)

    class Dying(InlineGrid):
        def deliver(self, message: Message) -> Message | None:
            if message.metadata.message_type == MessageType.TRAIN:
                raise Dead
            return super().deliver(message)

    def attempt(present: int) -> None:
        nodes = [
            {"partition-id": i, "num-partitions": 3, ALLOW_RUN_DATA: True} for i in range(present)
        ]
        execute(Dying(app, nodes, raw), read_config(raw), "run")

    for number in range(ATTEMPTS):
        with pytest.raises(Dead):
            attempt(3 if number == 0 else 2)
    with pytest.raises(HopelessError, match="charged 5 times for round 1"):
        attempt(2)


def test_a_run_whose_agents_all_decline_needs_a_person() -> None:
    refused = Answering({str(i): Error(REFUSED, "budget") for i in range(AGENTS)})
    with pytest.raises(HopelessError, match="0 of 4 agents replied"):
        private().start(refused, start(), num_rounds=3)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), Exit.PERSON),
        (HopelessError("x"), Exit.PERSON),
        (DeclinedError("x"), Exit.PERSON),
        (FruitlessError("x"), Exit.FRUITLESS),
        (OverflowedError("x"), Exit.FRUITLESS),
        (TooFewError("x"), Exit.RETRY),
        (OSError(28, "No space left on device"), Exit.RETRY),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
    ],
)
def test_every_failure_has_its_exit_code(error: BaseException, code: Exit) -> None:
    assert exit_code(error) == code


def test_the_command_exits_with_the_code_in_the_summary(tmp_path: Path) -> None:
    def run(name: str, settings: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        folder = tmp_path / name
        words = [f"{key}={json.dumps(value).strip(chr(34))}" for key, value in settings.items()]
        code, _, _ = privet("run", *words, f"output-dir={folder}")
        (found,) = folder.glob("*/summary.json")
        return code, json.loads(found.read_text())

    for name, settings, expected in (
        ("done", PRIVATE_RUN, Exit.DONE),
        ("slow", STRAGGLERS, Exit.FRUITLESS),
        ("person", {**PRIVATE_RUN, "participation": "schedule", "schedule": "9"}, Exit.PERSON),
        ("nobody", {**PRIVATE_RUN, "participation": "probability", "probability": "1e-9"},
         Exit.FRUITLESS),
    ):  # fmt: skip
        code, summary = run(name, settings)
        assert (code, summary["exit-code"]) == (expected, expected), name
        has_statement = (Path(summary["run-folder"]) / "statement.html").exists()
        assert has_statement == (expected == Exit.DONE), name


def test_a_statement_of_a_run_of_no_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FruitlessError):
        run_inline({**STRAGGLERS, "output-dir": str(tmp_path)}, "run")
    code, _, err = privet("report", str(tmp_path / "run"), "--statement", str(tmp_path / "s.html"))
    assert code != 0
    assert "no upload was folded" in err


def test_an_app_of_its_own_that_folds_nothing_fails_after_its_summary(tmp_path: Path) -> None:
    """So that Flower marks the run as failed."""
    strategy = FedPLT(num_agents=AGENTS, participation=Probability(1e-9))
    grid = InlineGrid(app_of(logistic_agents(AGENTS), "fed-plt"), AGENTS)
    with pytest.raises(FruitlessError, match="no upload was folded in 2 rounds"):
        run_and_save(strategy, grid, start(), 2, name="own", output_dir=str(tmp_path))
    summary = json.loads((tmp_path / "own" / "summary.json").read_text())
    assert (summary["status"], summary["exit-code"]) == ("failed", Exit.FRUITLESS)


def test_a_run_that_diverged_offers_no_statement_and_has_a_code(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "algorithm": "dp-fedsgd",
        "dataset": "synthetic",
        "num-agents": 3,
        "clip": 1.0,
        "noise-scale": 0.1,
        "step-size-base": 1e8,
        "step-size-rule": "constant",
        "on-divergence": "stop",
        "output-dir": str(tmp_path),
    }
    finished = run_inline(config, "run")
    assert finished.summary["status"] == "diverged"
    assert finished.summary["exit-code"] == finished.result.exit_code == Exit.FRUITLESS
    assert finished.summary["private"]
    assert not (tmp_path / "run" / "statement.html").exists()


@pytest.mark.usefixtures("clock")
def test_an_agent_whose_tasks_come_to_nothing_is_asked_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Uploads of others are folded all the time, so that the run itself gains."""
    grid = Silent("dp-fedsgd", lost="2")
    options = {**PATIENT, "patience": 0.0, "min_agents": 2}
    noised: dict[str, Any] = {"clip": 1.0, "noise_scale": 1.0, "step_size_base": 0.1}
    strategy = DPFedSGD(num_agents=AGENTS, **noised, **options)
    result = strategy.start(grid, start(), num_rounds=8)
    assert [done.participants for done in result.history] == [("0", "1", "3")] * 8
    assert grid.counted["2"] == REPEATS
    line = f"agent 2 is asked no more: its last {REPEATS} tasks came to nothing"
    assert any(one.startswith(line) for one in caplog.messages)
    account = result.privacy.agents
    assert [account[name].messages for name in "0123"] == [8, 8, REPEATS, 8]


@pytest.mark.parametrize("what", ["the record", "its form", "the round"])
def test_a_reply_that_cannot_be_read_is_charged(what: str) -> None:
    """Its agent has drawn the noise, and no later reply of it may come."""

    class Unreadable(Silent):
        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            if self.counted["2"] == 2 and reply is not None and reply.has_content():
                agent = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
                record: Any = reply.content.get("privet")
                if agent != 2 or record is None or "about" not in record:
                    return reply
                if what == "the record":
                    del reply.content["privet"]
                else:
                    about = {**json.loads(record["about"]), "round": 9}
                    record["about"] = json.dumps(about) if what == "the round" else "{"
            return reply

    noised: dict[str, Any] = {"clip": 1.0, "noise_scale": 1.0, "step_size_base": 0.1}
    grid = Unreadable("dp-fedsgd")
    result = DPFedSGD(num_agents=AGENTS, min_agents=2, **noised).start(grid, start(), num_rounds=2)
    assert "2" in result.history[1].failures
    messages = {name: account.messages for name, account in result.privacy.agents.items()}
    assert messages == dict(grid.counted)
    assert messages["2"] == 2


@pytest.mark.usefixtures("clock")
def test_short_processes_ask_an_agent_no_oftener_than_a_long_one(tmp_path: Path) -> None:
    """Two rounds a process, by ``resume=auto``; a person may name the folder and ask it again."""
    raw: dict[str, Any] = {"algorithm": "dp-fedsgd", "dataset": "synthetic", "clip": 1.0}
    raw |= {"noise-scale": 1.0, "num-agents": AGENTS, "features": 4, "round-timeout": 5.0}
    raw |= {"output-dir": str(tmp_path), "min-agents": 2, "patience": 0.0}

    def played(rounds: int, resume: str, lost: str = "2") -> tuple[int, tuple[str, ...]]:
        config = {**raw, "num-server-rounds": rounds, "resume": resume}
        nodes = [{"partition-id": place, "num-partitions": AGENTS} for place in range(AGENTS)]
        grid = Silent.__new__(Silent)
        InlineGrid.__init__(grid, client_app(None, problem_from_context), nodes, config)
        grid.silent, grid.until, grid.counted = lost, 10**6, Counter[str]()
        done = execute(grid, read_config(config), "run").result.history[-1]
        return grid.counted["2"], done.participants

    asked = [played(rounds, "auto")[0] for rounds in (2, 4, 6, 8)]
    assert asked == [2, 1, 0, 0]
    assert played(10, str(tmp_path / "run"))[0] == 2
    # Asked again and answering, it takes part from then on, whoever resumes.
    assert played(12, str(tmp_path / "run"), lost="")[1] == ("0", "1", "2", "3")
    assert played(14, "auto", lost="")[1] == ("0", "1", "2", "3")


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_an_agent_that_answers_in_between_or_owes_nothing_is_asked_on(noise: float) -> None:
    class Now(Silent):
        def deliver(self, message: Message) -> Message | None:
            agent = str(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
            self.until = 10**6 if noise == 0 or self.counted[agent] % REPEATS else 0
            return super().deliver(message)

    grid = Now("dp-fedsgd", lost="2")
    noised: dict[str, Any] = {"clip": noise, "noise_scale": noise, "step_size_base": 0.1}
    options = {**PATIENT, "patience": 0.0, "min_agents": 2}
    DPFedSGD(num_agents=AGENTS, **noised, **options).start(grid, start(), num_rounds=9)
    assert grid.counted["2"] == 9


def test_an_asynchronous_run_whose_tasks_are_all_lost_says_that_no_try_helps(
    tmp_path: Path,
) -> None:
    """Each start died before an upload was folded: their requests use up max-uploads."""
    keys: dict[str, Any] = {"local_solver": "noisy-gd", "local_epochs": 2, "clip": 1.0}
    keys |= {"row_norm": 9.0, "noise_variance": 1e-2, "asynchronous": True, "buffer": 1}

    def started(most: int, *, dies: bool) -> Any:
        strategy = FedPLT(num_agents=AGENTS, max_uploads=most, **keys)
        grid = InlineGrid(app_of(logistic_agents(AGENTS), "fed-plt"), AGENTS)
        file = tmp_path / "checkpoint.npz"
        options = {"resume": tmp_path} if file.exists() else {}
        with pytest.MonkeyPatch.context() as patch:
            if dies:
                patch.setattr(Run, "close_round", lambda *_: (_ for _ in ()).throw(Dead()))
            return strategy.start(grid, start(), num_rounds=9, checkpoint=file, **options)

    for _ in range(2):
        with pytest.raises(Dead):
            started(2, dies=True)
    with pytest.raises(InVainError, match=r"max-uploads = 2: 4 agents have had all") as ended:
        started(2, dies=False)
    assert exit_code(ended.value) == Exit.FRUITLESS
