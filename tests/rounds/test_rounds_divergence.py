"""A run that blows up says so, or ends; what is logged of rounds, who stops them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MessageType, MetricRecord

from privet.client_apps import CallableProblem
from privet.core import ConfigError, RunError
from privet.problems import L2, RidgeRegression, minimize
from privet.rounds.divergence import UPLOADS, Divergence, found_in
from privet.rounds.failure import Failure, FailureCode
from privet.rounds.participation import Probability
from privet.rounds.session import Session
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline
from privet.strategies import FedDyn, FedPLT, Round
from support.every_algorithm import EVERY_ALGORITHM
from support.federations import app_of

AGENTS, DIM = 3, 2
rng = np.random.default_rng(8)
PROBLEMS = [
    RidgeRegression(rng.standard_normal((9, DIM)), rng.standard_normal(9), regularizer=L2(0.1))
    for _ in range(AGENTS)
]
STEEP: dict[str, Any] = {"step_size_rule": "constant", "max_local_steps": 3, "num_agents": AGENTS}


def play(strategy: Any, rounds: int = 30, **start: Any) -> Any:
    name = strategy.half.name
    app = app_of(PROBLEMS, name)
    first = start.pop("first", ArrayRecord({"x": Array(np.ones(DIM))}))
    return strategy.start(InlineGrid(app, AGENTS), first, num_rounds=rounds, **start)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "this run diverges" in one.getMessage()]


def test_a_run_that_blows_up_is_warned_of_once_with_the_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        found = play(FedDyn(step_size_base=2.0, **STEEP))
    (line,) = warnings(caplog)
    assert line.endswith("try a smaller step-size-base")
    assert found.diverged
    assert found.diverged in line
    assert (found.stopped, len(found.history)) == ("rounds", 30)


def test_a_run_that_converges_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        found = play(FedPLT(num_agents=AGENTS), rounds=200)
        again = play(FedPLT(num_agents=AGENTS), rounds=50, first=found.arrays)
    assert (found.diverged, again.diverged, warnings(caplog)) == ("", "", [])
    assert found.history[-1].residual < 1e-20


@pytest.mark.parametrize(
    ("residuals", "said"),
    [
        # Fed-PLT on a CNN, agents weighted by examples: from 80 % to 10 % in rounds 12 to 15 ...
        ([1.36, 1.41, 1.37, 2.41, 3.4, 6.3, 6.02, 63.8, 744, 461, 87.4, 48.6], "461 in round 10"),
        # ... and another seed, which falls to 70 % and is back at 88 % at the end.
        ([0.47, 0.76, 1.0, 1.43, 5.45, 18.1, 33.7, 16.1, 5.74, 3.96, 8.32, 5.38], ""),
    ],
)
def test_a_network_that_collapses_is_told_from_one_that_recovers(
    residuals: list[float], said: str
) -> None:
    rounds = [Round(i, ("0",), residual=residual) for i, residual in enumerate(residuals, 1)]
    assert diverged(rounds) == (f"residual {said}" if said else "")


def diverged(rounds: list[Round]) -> str:
    found = Divergence(ends=False, keys=["step-size"])
    session = Session.of("", ArrayRecord({"x": Array(np.zeros(1))}))
    session.initial = Round(0, ())
    options = SimpleNamespace(doubtful=False)
    run: Any = SimpleNamespace(diverged="", session=session, options=options)
    run.usual_loss = run.usual_train_loss = math.nan  # agents state none
    found.on_begin(run)
    for done in rounds:
        session.history.append(done)
        found.on_round(run, done)
    assert found_in(rounds, session.initial) == run.diverged
    return str(run.diverged)


def test_the_record_of_a_run_shows_whether_it_diverged() -> None:
    """By its numbers, where no note says so; of one agent's word or fault it says nothing."""
    start = Round(0, (), loss=1.0)
    fine = Round(1, ("0",), loss=2.0, train_metrics_clientapp={"loss": 1.0})
    odd = {name: Failure(FailureCode.NOT_FINITE, "x") for name in "12"}
    told = {"loss": 1e9}
    for second, said in (
        (Round(2, ("0",), loss=1001.0), "loss 1e+03 in round 2"),
        (Round(2, ("0",), loss=999.0), ""),
        (Round(2, ("0",), residual=math.inf), "residual inf in round 2"),
        (Round(2, ("0",), notes=("this run diverges, loss 7 in round 2",)), "loss 7 in round 2"),
        (Round(2, ("0",), loss=1e9, evaluate_metrics_clientapp=told), ""),
        (Round(2, ("0",), train_metrics_clientapp=told), ""),
        (Round(2, ("0",), loss=1.0, train_metrics_clientapp=told), ""),
        (Round(2, ("0",), odd), ""),  # of agents of which nothing was ever folded
    ):
        assert found_in([fine, second], start) == said
    both = Round(1, ("0", "1", "2"))
    assert found_in([both, Round(2, ("0",), odd)], start) == f"{UPLOADS} in round 2"
    assert found_in([both, Round(2, ("0", "3"), {"1": odd["1"]})], start) == ""
    stated = [Round(1, ("0",), loss=1.0, residual=1.0, evaluate_metrics_clientapp={"loss": 1.0})]
    stated.append(Round(2, ("0",), loss=1e9, residual=1e9, evaluate_metrics_clientapp=told))
    assert found_in(stated, Round(0, ())) == ""


def test_a_residual_that_grows_as_steady_steps_do_is_no_divergence() -> None:
    """Agents that move apart steadily: the distance grows with the rounds, its square so too."""
    steady = [Round(i, ("0",), residual=1e-8 * i**2) for i in range(1, 200)]
    assert diverged(steady) == ""
    growing = [Round(i, ("0",), residual=1e-8 * 1.5**i) for i in range(1, 200)]
    assert diverged(growing) == f"residual {1e-8 * 1.5**14:.3g} in round 14"


def test_a_residual_that_grows_below_a_falling_loss_is_no_divergence() -> None:
    rounds = [Round(i, ("0",), residual=1e-8 * 2**i, loss=1.17 - 1e-3 * i) for i in range(1, 30)]
    assert diverged(rounds) == ""


@pytest.mark.parametrize("ends", ["stop", "warn"])
@pytest.mark.parametrize("agents", [2, 4])
def test_one_agents_nan_is_its_own(
    ends: str, agents: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Agent 1 has a row of NaN: it is named and dropped; the others learn what they do alone."""

    class Broken(CallableProblem):
        def __init__(self) -> None:
            super().__init__(
                lambda x: math.nan, lambda x: np.full(DIM, math.nan), DIM, num_examples=9
            )

    sites = [PROBLEMS[0], Broken(), *PROBLEMS[1:]][:agents]
    start = ArrayRecord({"x": Array(np.ones(DIM))})
    strategy = FedPLT(num_agents=agents, step_size=0.05, on_divergence=ends)
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        found = strategy.start(InlineGrid(app_of(sites), agents), start, num_rounds=40)
    assert (found.diverged, found.stopped, len(found.history)) == ("", "rounds", 40)
    assert warnings(caplog) == []
    named = "agent 1: not finite since its first round, as others are: look at its data"
    assert [one.getMessage() for one in caplog.records].count(named) == 1
    healthy = [site for site in sites if not isinstance(site, Broken)]
    least = minimize(healthy)

    def excess(x: np.ndarray) -> float:
        return sum(site.value(x) for site in healthy) - least.value

    assert excess(found.arrays["x"].numpy()) < 0.1 * excess(np.ones(DIM))


def test_an_unknown_residual_says_nothing_and_an_infinite_one_is_divergence() -> None:
    unknown = [Round(number, ("0",)) for number in (1, 2)]
    assert diverged(unknown) == ""
    assert diverged([*unknown, Round(3, ("0",), residual=math.inf)]) == "residual inf in round 3"


def test_a_first_round_in_which_nobody_is_asked_is_no_divergence() -> None:
    seldom = FedPLT(
        participation=Probability(0.15), seed=1, num_agents=AGENTS, on_divergence="stop"
    )
    found = play(seldom, rounds=12)
    assert found.history[0].participants == ()
    assert (found.stopped, found.diverged, len(found.history)) == ("rounds", "", 12)


@pytest.mark.parametrize("name", EVERY_ALGORITHM)
def test_no_algorithm_is_complained_of_in_a_healthy_run(name: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {"algorithm": name, "num-agents": 3, "num-server-rounds": 6}
    config |= {"on-divergence": "stop", "output-dir": str(tmp_path)}
    found = run_inline(config, "run").result
    assert (found.diverged, found.no_better, len(found.history)) == ("", "", 6)


def test_it_ends_where_that_is_asked_for() -> None:
    found = play(FedDyn(step_size_base=2.0, on_divergence="stop", **STEEP))
    assert found.stopped == "divergence"
    assert 1 < len(found.history) < 30


@pytest.mark.parametrize("secure_sum", [False, True])
@pytest.mark.parametrize("away", [{}, {"0": "no reply", "1": "disk full", "2": "is away"}], ids=len)
def test_it_is_divergence_however_many_other_reasons_there_are(
    secure_sum: bool, away: dict[str, str]
) -> None:
    class Failing(InlineGrid):
        def deliver(self, message: Message) -> Message | None:
            agent = str(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
            if message.metadata.message_type == MessageType.TRAIN and agent in away:
                return Message(Error(101, away[agent]), reply_to=message)
            return super().deliver(message)

    problems = [PROBLEMS[i % AGENTS] for i in range(6)]
    first = ArrayRecord({"x": Array(np.ones(DIM))})
    steep: dict[str, Any] = {"min_agents": 4, "step_size": 1e100, "on_divergence": "stop"}
    strategy = FedPLT(num_agents=6, patience=0.0, secure_sum=secure_sum, **steep)
    found = strategy.start(Failing(app_of(problems), 6), first, num_rounds=9)
    assert found.stopped == "divergence"
    assert found.diverged == "uploads that are not finite in round 1"


def test_uploads_that_are_not_finite_are_divergence_as_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    beyond = {**STEEP, "step_size_base": 1e100, "max_local_steps": 4}
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        with pytest.raises(RunError, match="numbers that are not finite"):
            play(FedDyn(**beyond), rounds=9)
        (line,) = warnings(caplog)
        assert line.endswith("try a smaller step-size-base")
        ended = play(FedDyn(on_divergence="stop", **beyond), rounds=9)
    assert (ended.stopped, ended.history) == ("divergence", [])
    assert ended.diverged == "uploads that are not finite in round 1"
    assert ended.arrays["x"].numpy().tolist() == [1.0] * DIM


def test_the_summary_of_a_run_that_diverged_says_so(tmp_path: Any) -> None:
    config = {"algorithm": "fed-dyn", "dataset": "synthetic", "num-agents": 3}
    config |= {"features": 4, "examples-per-agent": 16, "output-dir": str(tmp_path)}
    config |= {"step-size-base": 50.0, "step-size-rule": "constant", "num-server-rounds": 12}
    summary = run_inline({**config, "on-divergence": "stop"}, "run").summary
    assert (summary["status"], summary["stopped"]) == ("diverged", "divergence")
    assert "in round" in summary["diverged"]


# --------------------------------------------------------------------------- rounds


def test_rounds_are_logged_as_flower_logs_them(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flwr.privet"):
        play(FedPLT(num_agents=AGENTS), rounds=2)
    lines = [one.getMessage() for one in caplog.records]
    at = lines.index("[ROUND 2/2]")
    assert lines[at + 1] == "aggregate_train: 3 results and 0 failures"
    assert "'residual': " in lines[at + 2]


def test_should_stop_is_asked_after_every_round() -> None:
    seen: list[int] = []

    def should_stop(done: Round) -> bool:
        seen.append(done.round)
        return done.round == 3

    assert play(FedPLT(num_agents=AGENTS), should_stop=should_stop).stopped == "should_stop"
    assert seen == [1, 2, 3]


def test_an_overridden_aggregate_train_is_heard() -> None:
    class Counting(FedPLT):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            arrays, _ = super().aggregate_train(server_round, replies)
            return arrays, MetricRecord({"twice": 2 * server_round})

    found = play(Counting(num_agents=AGENTS), rounds=2)
    assert {k: v["twice"] for k, v in found.train_metrics_clientapp.items()} == {1: 2, 2: 4}


def test_a_model_changed_by_aggregate_train_is_refused() -> None:
    class Changing(FedPLT):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            _, metrics = super().aggregate_train(server_round, replies)
            return ArrayRecord({"x": Array(np.full(DIM, math.pi))}), metrics

    with pytest.raises(ConfigError, match="changes nothing"):
        play(Changing(num_agents=AGENTS), rounds=1)


class Exaggerating(InlineGrid):
    """Agents of these places state a loss of a million, after the first round."""

    liars: tuple[int, ...] = ()

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        node = self.contexts[message.metadata.dst_node_id].node_config
        told = message.metadata.message_type in (MessageType.TRAIN, MessageType.EVALUATE)
        if told and reply is not None and reply.has_content():
            self.told = getattr(self, "told", 0) + 1
            for record in reply.content.values():
                if isinstance(record, MetricRecord) and node["partition-id"] in self.liars:
                    record["loss"] = 1e9 if self.told > 2 * AGENTS else 1.0
        return reply


@pytest.mark.parametrize("evaluated", [True, False])
@pytest.mark.parametrize(("liars", "diverges"), [((0,), False), ((2,), False), ((0, 2), True)])
def test_a_loss_that_one_agent_states_is_no_divergence(
    liars: tuple[int, ...], diverges: bool, evaluated: bool
) -> None:
    grid = Exaggerating(app_of(PROBLEMS, "fed-plt", train_metrics=not evaluated), AGENTS)
    grid.liars = liars
    strategy = FedPLT(
        rho=1.0,
        num_agents=AGENTS,
        fraction_evaluate=float(evaluated),
        on_divergence="stop",
    )
    found = strategy.start(grid, ArrayRecord({"x": Array(np.ones(DIM))}), num_rounds=6)
    assert found.status == ("diverged" if diverges else "completed")
    assert bool(found_in(found.history, Round(0, ()))) == diverges
    metrics = found.history[-1]
    stated = metrics.evaluate_metrics_clientapp if evaluated else metrics.train_metrics_clientapp
    assert stated["loss"] > 1e8  # type: ignore[operator]
