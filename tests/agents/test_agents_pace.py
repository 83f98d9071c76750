"""When a node computes and when its reply leaves: the operator's pace, a declared reply time."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from redteam.harness import Node, problem

from privet.agents.pace import Pace
from privet.client_apps import LoopParticipant, client_app
from privet.client_apps.local_sgd import local_sgd_app
from privet.core import ConfigError, RunError
from privet.kernel import NodeRules, Told
from privet.problems import L2, BinaryLogistic
from privet.sim.cohort import CohortGrid
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn, FedPLT, PrivetResult
from privet.testing import logistic_federation
from support.federations import zeros
from support.late_grid import LateGrid
from support.told import refused

pytestmark = pytest.mark.usefixtures("clock")

PROBLEMS = logistic_federation(2)
PRIVATE: dict[str, Any] = {
    "local_solver": "noisy-gd",
    "local_epochs": 2,
    "clip": 1.0,
    "row_norm": 9.0,
    "noise_variance": 1e-2,
}
ASYNCHRONOUS: dict[str, Any] = {"asynchronous": True, "buffer": 1, "max_uploads": 9}


class Own(BinaryLogistic):
    """A problem of the user's, whose steps may take any time."""

    seconds = 0.0
    """What a gradient takes; a negative number fails."""

    def with_rows_within(self, norm: float) -> Any:
        return self

    def clipped_term(self, *args: Any, **more: Any) -> Any:
        if self.seconds < 0:
            raise ArithmeticError("no gradient")
        time.sleep(self.seconds)
        return super().clipped_term(*args, **more)


def own(seconds: float = 0.0) -> Own:
    problem = Own(PROBLEMS[0].features, PROBLEMS[0].labels, regularizer=L2(0.5))
    problem.seconds = seconds
    return problem


def play(grid: Any, rounds: int, **options: Any) -> PrivetResult:
    return FedPLT(patience=0.0, **options).start(
        grid, zeros(4), num_rounds=rounds, log_rounds=False
    )


def paced(path: Path, **more: Any) -> InlineGrid:
    node = {"agent": "a", "state-path": str(path), "min-seconds-between": 100.0, **more}
    return InlineGrid(client_app(None, lambda _: PROBLEMS[0]), [node])


# ---------------------------------------------------------------------- the operator's pace


def test_a_node_lets_the_seconds_of_its_rule_pass_between_tasks(tmp_path: Path) -> None:
    """In one run, and over runs: the time is kept beside the state."""
    begun = time.time()
    play(paced(tmp_path / "state"), 3)
    assert 200.0 <= time.time() - begun < 201.0
    play(paced(tmp_path / "state"), 1)
    assert 300.0 <= time.time() - begun < 301.0
    play(paced(tmp_path / "another"), 1)
    assert time.time() - begun < 301.0


def test_a_task_that_fails_counts_as_computed(tmp_path: Path) -> None:
    broken = own(-1.0)
    node = {"agent": "a", "state-path": str(tmp_path / "s"), "min-seconds-between": 100.0}
    grid = InlineGrid(client_app(None, lambda _: broken), [node])
    begun = time.time()
    for _ in range(2):
        with pytest.raises(RunError):
            play(grid, 1, **PRIVATE)
    assert 100.0 <= time.time() - begun < 105.0


def test_a_lock_that_is_a_link_is_named_and_not_followed(tmp_path: Path) -> None:
    """Whoever may write in the folder would have the node open a file of its choice."""
    other = tmp_path / "other"
    other.write_text("kept")
    grid = paced(tmp_path / "state")
    play(grid, 1)
    (lock,) = tmp_path.glob("*.lock")
    assert lock.stat().st_mode & 0o777 == 0o600
    lock.unlink()
    lock.symlink_to(other)
    with pytest.raises(RunError, match=r"state.*\.lock: .*: it is a file of this node's"):
        play(paced(tmp_path / "state"), 1)
    lock.unlink()
    lock.mkdir()
    with pytest.raises(RunError, match=r"state.*\.lock: .*: it is a file of this node's"):
        play(paced(tmp_path / "state"), 1)
    assert other.read_text() == "kept"


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "soon"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    """The wait until then would never end."""
    grid = paced(tmp_path / "state")
    play(grid, 1)
    (file,) = tmp_path.glob("*.ended")
    file.write_text(text)
    with pytest.raises(RunError, match="is damaged: it holds no time"):
        play(paced(tmp_path / "state"), 1)


def test_a_message_that_nobody_waits_for_so_long_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "state"
    play(paced(path), 1)
    grid = LateGrid([PROBLEMS[0]], lambda *_: 1.0)
    (context,) = grid.inner.contexts.values()
    context.node_config.update({"state-path": str(path), "min-seconds-between": 100.0})
    begun = time.time()
    with pytest.raises(RunError, match=r"this node computes its next task in (99|100) s"):
        play(grid, 1, round_timeout=50.0)
    assert time.time() - begun < 10.0


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"min-seconds-between": 0}, "expected a finite number > 0"),
        ({"min-second-between": 9}, "did you mean min-seconds-between"),
        ({"reply-seconds": 5.0, "min-seconds-between": 9.0}, "below min-seconds-between"),
    ],
)
def test_a_pace_that_cannot_be_kept_is_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        NodeRules.from_node_config(config)


def test_a_pace_without_a_place_for_the_time_is_refused() -> None:
    node = {"agent": "a", "min-seconds-between": 100.0}
    with pytest.raises(RunError, match="min-seconds-between needs state-path"):
        play(InlineGrid(client_app(None, lambda _: PROBLEMS[0]), [node]), 1)


def test_tasks_of_several_runs_wait_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ask at once: each sees the time of the one before, not that of a common past."""
    pause, clock, begun = 100.0, [0.0], threading.Barrier(3)
    monkeypatch.setattr("time.time", lambda: 1e9 + clock[0])

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr("time.sleep", sleep)
    rules = NodeRules(min_seconds_between=pause)

    def compute() -> None:
        context = Context(1, 1, {"state-path": str(tmp_path / "state")}, RecordDict(), {})
        message = Message(RecordDict(), 1, "train")
        message.metadata.__dict__["_created_at"] = time.time()
        begun.wait()
        with Pace(rules, context).turn(message):
            pass

    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock == [2 * pause]


def test_a_task_that_is_refused_uncharged_holds_up_no_other(tmp_path: Path) -> None:
    """Another run's coordinator would stop this one's tasks for nothing."""
    pause = 100.0
    rules = {"min_seconds_between": pause, "state_path": str(tmp_path / "state.npz")}
    node = Node(tmp_path, problem(), **rules)
    assert not node.send_train("dp-fedsgd").has_error()
    time.sleep(pause)
    began = time.time()
    for _ in range(3):
        reply = node.send_train("dp-fedsgd", experiment="h", target_epsilon=1e-9)
        assert reply.error.reason.startswith("agent me: target-epsilon: this reply would bring")
    assert not node.send_train("dp-fedsgd", round_=2).has_error()
    assert time.time() - began < 1.0
    assert not node.send_train("dp-fedsgd", round_=3).has_error()
    assert time.time() - began >= pause
    assert node.charges == 3


# ---------------------------------------------------------------------- a declared reply time


@pytest.mark.parametrize("kind", [InlineGrid, CohortGrid])
@pytest.mark.parametrize("options", [ASYNCHRONOUS, {"late_replies": "fold"}])
def test_a_problem_of_ones_own_needs_a_declared_time_before_anything_is_charged(
    kind: type[InlineGrid], options: dict[str, Any], tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    node = {"agent": "a", "max-epsilon": 9.0, "delta": 1e-5, "ledger-path": str(ledger)}
    app = client_app(None, lambda _: own())
    for nodes in ([node], 5):
        with refused(Told.ARRIVALS, "needs reply-seconds"):
            play(kind(app, nodes), 1, **PRIVATE, **options)
    assert not ledger.exists()
    play(kind(app, 1), 1, **PRIVATE)  # a round that waits for all
    play(kind(app, 1), 1, **options)  # and one that is not private
    play(kind(client_app(None, lambda _: PROBLEMS[0]), 1), 1, **PRIVATE, **options)


SAMPLED: dict[str, Any] = {"batch": "poisson", "batch_size": 4, "relation": "add-remove"}


@pytest.mark.parametrize("limits", [{}, {"max-clip": 1.0}])
def test_sampled_steps_of_ones_own_take_a_declared_time_at_a_node_with_limits(
    limits: dict[str, Any],
) -> None:
    """How many records take part is a secret, and takes its time."""
    asked = []

    def round_of(made: Any, **rules: Any) -> None:
        def problem(context: Context) -> Any:
            asked.append(context)
            return made

        declared = {"relation": "add-remove", "num-examples": made.num_examples}
        grid = InlineGrid(
            client_app(None, problem), [{"agent": "a", **declared, **limits, **rules}]
        )
        strategy = FedDyn(num_agents=1, step_size_base=0.1, clip=1.0, noise_scale=1.0,
                          max_local_steps=2, patience=0.0, **SAMPLED)  # fmt: skip
        done = strategy.start(grid, zeros(4), num_rounds=1, log_rounds=False)
        assert 0 < done.history[-1].epsilon < np.inf

    if limits:
        with refused(Told.POISSON_TIME, "needs reply-seconds"):
            round_of(own())
    else:
        round_of(own())
    begun = time.monotonic()
    round_of(own(1.0), **{"reply-seconds": 20.0})
    assert time.monotonic() - begun == 20.0
    round_of(PROBLEMS[0])  # computes every row, whatever the coins are
    assert len(asked) == 3


def test_nor_is_one_charged_in_a_run_of_flowers_own(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    node = {"max-epsilon": 9.0, "delta": 1e-5, "ledger-path": str(ledger), "agent": "a",
            "relation": "add-remove", "num-examples": own().num_examples}  # fmt: skip
    asked = RecordDict(
        {
            "arrays": ArrayRecord({"x": Array(np.zeros(4))}),
            "config": ConfigRecord({"server-round": 1}),
        }
    )
    settings = {"clip": 1.0, "noise_scale": 1.0, **SAMPLED}
    app = local_sgd_app(lambda _: own(), **settings)
    (reply,) = InlineGrid(app, [node]).send_and_receive([Message(asked, 1000, "train")])
    assert reply.error.reason == f"agent a: {Told.POISSON_TIME}"
    assert not ledger.exists()
    node["reply-seconds"] = 5.0
    (reply,) = InlineGrid(app, [node]).send_and_receive([Message(asked, 1000, "train")])
    assert reply.has_content(), reply.error.reason


def test_every_reply_takes_the_declared_time_and_a_longer_task_is_refused() -> None:
    def length(seconds: float, *, rounds: int = 2, **node: Any) -> float:
        app = client_app(None, lambda _: own(seconds), reply_seconds=5.0)
        begun = time.monotonic()
        play(InlineGrid(app, [{"agent": "a", **node}]), rounds, **PRIVATE, **ASYNCHRONOUS)
        return time.monotonic() - begun

    assert length(0.0) == length(1.0) == 2 * 5.0
    assert length(3.0, **{"reply-seconds": 20.0}) == 2 * 20.0
    begun = time.monotonic()
    with pytest.raises(RunError, match="agent a: the task took longer than this node's reply-s"):
        length(3.0, rounds=1)
    assert time.monotonic() - begun == 2 * 5.0


def test_no_setting_of_a_run_switches_the_declared_time_off() -> None:
    """The coordinator decides which late replies count, whatever its messages say of that."""
    app = client_app(None, lambda _: own(1.0), reply_seconds=5.0)
    for options in (PRIVATE, {}):
        begun = time.monotonic()
        play(InlineGrid(app, [{"agent": "a"}]), 2, **options)
        assert time.monotonic() - begun == 2 * 5.0


def test_a_loop_of_ones_own_declares_its_time_too() -> None:
    def grid(**options: Any) -> InlineGrid:
        torch = pytest.importorskip("torch")
        model = torch.nn.Linear(4, 1, bias=False, dtype=torch.float64)
        participant = LoopParticipant("fed-plt", model, lambda _: 8, **options)
        app = participant.app()
        batch = torch.ones(8, 4, dtype=torch.float64)

        @app.train()
        def train(message: Any, context: Any) -> Any:
            with participant.round(message, context, model) as local:
                for _ in range(local.steps):
                    local.private_step(lambda net, rows: net(rows).square().mean(), batch)
            return local.reply()

        return InlineGrid(app, [{"agent": "a"}])

    options: dict[str, Any] = {**PRIVATE, **ASYNCHRONOUS, "step_size": 0.1, "rho": 1.0}
    del options["row_norm"]
    with refused(Told.ARRIVALS, "needs reply-seconds"):
        play(grid(), 1, **options)
    begun = time.monotonic()
    assert np.isfinite(play(grid(reply_seconds=9.0), 1, **options).privacy.epsilon)
    assert time.monotonic() - begun == 9.0


def test_a_reply_time_that_is_no_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="reply_seconds is -1"):
        client_app(None, lambda _: PROBLEMS[0], reply_seconds=-1)
