"""Privacy of a whole run: the veto, the ledger, the account, and every byte an agent returns."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from privet.client_apps import client_app
from privet.core import ConfigError
from privet.kernel import AgentLedger, SeededNoise, Told
from privet.problems import L2, BinaryLogistic, MultinomialLogistic, RidgeRegression
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT, PrivetResult, Schedule
from privet.wire import pack
from privet.wire.contract import agent_record, encode_settings, shared_record
from support.federations import (
    FaultyGrid,
    app_of,
    logistic_agents,
    lose_reply,
    lose_state,
    model,
    position,
    zeros,
)
from support.told import own_log
from support.told import refused as refused_by_agents

PRIVATE: dict[str, Any] = {
    "local_solver": "noisy-gd",
    "clip": 0.5,
    "row_norm": 2.0,
    "noise_variance": 0.01,
    "local_epochs": 3,
}


def run(
    problems: list[Any], rounds: int, nodes: list[dict[str, Any]] | None = None, **options: Any
) -> tuple[PrivetResult, FedPLT, InlineGrid]:
    configs = [{"partition-id": i, **(nodes[i] if nodes else {})} for i in range(len(problems))]
    grid = InlineGrid(app_of(problems), configs)
    strategy = FedPLT(**{"num_agents": len(problems), **PRIVATE, **options})
    result = strategy.start(grid, zeros(problems[0].dim), num_rounds=rounds)
    return result, strategy, grid


def budget(tmp_path: Path, epsilon: float, name: str = "ledger") -> dict[str, Any]:
    return {"max-epsilon": epsilon, "delta": 1e-5, "ledger-path": str(tmp_path / name)}


def spent_after(rounds: int) -> float:
    """Return what an agent of these runs has spent after some rounds, by its own account."""
    result, _, _ = run(logistic_agents(2), rounds)
    return result.history[-1].epsilon


# --------------------------------------------------------------------------- the account


def refused(reason: str, told: Told, problems: list[Any], **options: Any) -> None:
    """Expect the server to refuse the run, and the agents where it does not look."""
    with pytest.raises(ConfigError, match=f"this run cannot be private: .*{reason}"):
        run(problems, 1, **options)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("privet.rounds.run.calibrated", lambda half, *_: (half, None))
        with refused_by_agents(told, reason):
            run(problems, 1, **options)


def test_settings_without_a_certificate_are_refused() -> None:
    refused("a private run needs row-norm", Told.SETTING, logistic_agents(2), row_norm=0.0)


def test_step_size_of_a_private_agent_does_not_depend_on_its_data() -> None:
    """Two data sets, same public bounds: the noise-free part differs, the release does not."""
    ledgers = []
    for scale in (0.1, 7.0):
        features = scale * np.random.default_rng(0).standard_normal((20, 4))
        _, strategy, _ = run([BinaryLogistic(features, [1, -1] * 10, regularizer=L2(0.5))], 1)
        assert strategy.session is not None
        ledgers.append(strategy.session.roster.agents["0"].ledger)
    assert ledgers[0] == ledgers[1]


def test_rows_are_held_to_the_public_bound_by_the_agent() -> None:
    long = np.random.default_rng(0).standard_normal((20, 4)) * 100
    clipped = long * (2.0 / np.linalg.norm(long, axis=1))[:, None] * (1 - 1e-12)
    labels = [1, -1] * 10
    models = [
        model(run([BinaryLogistic(rows, labels, regularizer=L2(0.5))], 3, noise_seed=1)[0])
        for rows in (long, clipped)
    ]
    assert np.allclose(*models, atol=1e-9)


@pytest.mark.parametrize(
    "problem",
    [
        RidgeRegression(np.eye(4), np.ones(4), regularizer=L2(0.5)),
        MultinomialLogistic(np.eye(2), [0, 1], 2, regularizer=L2(0.5)),
    ],
)
def test_other_losses_are_accounted(problem: Any) -> None:
    result, _, _ = run([problem], 2)
    assert 0 < result.history[-1].epsilon < math.inf


# --------------------------------------------------------------------------- the veto


def test_budget_stops_its_agent_and_the_run_goes_on(tmp_path: Path, caplog: Any) -> None:
    limit = spent_after(3)
    nodes = [{}, budget(tmp_path, limit * (1 + 1e-9)), {}]
    result, _, _ = run(logistic_agents(3), 5, nodes)
    taken = [done.participants for done in result.history]
    assert taken == [("0", "1", "2")] * 3 + [("0", "2")] * 2
    reason = result.history[3].failures["1"].text
    assert reason.startswith("agent 1: ")
    assert "budget" in reason or "epsilon" in reason
    assert "agent 1" in caplog.text


def test_budget_is_for_life_over_all_runs(tmp_path: Path) -> None:
    nodes = [budget(tmp_path, spent_after(3) * (1 + 1e-9)), {}]
    first, _, _ = run(logistic_agents(2), 2, nodes)
    assert first.history[-1].participants == ("0", "1")
    second, _, _ = run(logistic_agents(2), 2, nodes)
    assert [done.participants for done in second.history] == [("0", "1"), ("1",)]


def test_replayed_rounds_count(tmp_path: Path) -> None:
    """A lost reply is paid for: the ledger never rolls back with the state."""
    problems = logistic_agents(2)
    app = app_of(problems)
    grid = FaultyGrid(app, 2, {(0, 1): lose_reply})
    grid.contexts[1000].node_config.update(budget(tmp_path, spent_after(2) * (1 + 1e-9)))
    strategy = FedPLT(**{"num_agents": 2, "round_timeout": 0.05, **PRIVATE})
    result = strategy.start(grid, zeros(4), num_rounds=3)
    assert [done.participants for done in result.history] == [("1",), ("0", "1"), ("1",)]


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"max-epsilon": 1.0}, "delta is missing"),
        ({"max-epsilon": 1.0, "delta": 1e-5, "ledger-path": "here"}, "absolute path"),
        ({"max-epsilon": -1.0, "delta": 1e-5, "ledger-path": "/x"}, "max-epsilon = -1.0"),
        ({"max_epsilon": 1.0}, "did you mean max-epsilon"),
    ],
)
def test_budget_that_cannot_be_kept_closes_the_node(node: dict[str, Any], reason: str) -> None:
    """A node whose rules are misspelt must not train without them."""
    with own_log() as said:
        _, strategy, _ = run(logistic_agents(2), 1, [node, {}])
    assert strategy.session is not None
    assert list(strategy.session.roster.agents) == ["1"]
    assert [*strategy.session.roster.rejected.values()] == [f"agent 0: {Told.RULES_UNREADABLE}"]
    assert reason in said.text


def test_given_noise_is_refused_by_a_node_with_rules() -> None:
    problems = logistic_agents(2)
    app = client_app(
        "fed-plt",
        lambda context: problems[position(context)],
        noise_factory=lambda agent, number: SeededNoise(1, agent, number),
    )
    grid = InlineGrid(app, [{"partition-id": 0, "max-clip": 1.0}, {"partition-id": 1}])
    result = FedPLT(**{"num_agents": 2, **PRIVATE}).start(grid, zeros(4), num_rounds=1)
    assert "noise that is supplied from outside" in result.history[0].failures["0"].text
    assert result.history[0].epsilon == math.inf


# --------------------------------------------------------------------------- what is returned


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return every scalar and bytes value of a reply with its path."""
    if isinstance(value, RecordDict | ConfigRecord | MetricRecord | ArrayRecord):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{path}/{key}")]
    if isinstance(value, list):
        return [leaf for i, item in enumerate(value) for leaf in leaves(item, f"{path}[{i}]")]
    return [(path, value)]


class RecordingGrid(InlineGrid):
    """Keeps every reply."""

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        assert reply is not None
        self.seen = [*getattr(self, "seen", []), reply]
        return reply


PUBLIC = {
    # path: why it may leave
    "/privet/kind": "constant",
    "/privet/contract": "constant",
    "/privet/agent": "the agent's name, set by its operator",
    "/privet/unit": "the agent's unit, set by its operator",
    "/privet/library-version": "constant",
    "/privet/num-examples": "declared public",
    "/privet/facts": "the public numbers that a charge rests on",
    "/privet/own-settings": "set by its operator",
    "/privet/dim": "shape of the model",
    "/privet/dtype": "declared in the configuration",
    "/privet/protocol": "constant",
    "/privet/version": "constant",
    "/privet/experiment": "came from the server",
}
PUBLIC_ABOUT = {
    "protocol",
    "version",
    "agent",
    "round",
    "num-examples",
    "epsilon",
    "delta",
    "ledger",
}


def test_every_byte_an_agent_returns_is_accounted_or_public() -> None:
    """Two agents whose records differ in everything but the public facts return, apart from the
    accounted payload and the digest of it, exactly the same."""
    returned = []
    for seed in (1, 2):
        features = np.random.default_rng(seed).standard_normal((20, 4)) * 3
        problem = BinaryLogistic(features, [1, -1] * 10, regularizer=L2(0.5))
        app = client_app("fed-plt", lambda context, problem=problem: problem)
        grid = RecordingGrid(app, 1)
        strategy = FedPLT(**{"num_agents": 1, **PRIVATE})
        strategy.start(grid, zeros(4), num_rounds=2)
        evaluation = Message(
            RecordDict({"arrays": zeros(4), "config": ConfigRecord()}), 1000, "evaluate"
        )
        list(grid.send_and_receive([evaluation]))
        public: list[Any] = []
        for reply in grid.seen:
            if reply.has_error():
                public.append((reply.error.code, reply.error.reason))
                continue
            for path, value in leaves(reply.content):
                if path == "/privet/payload":
                    continue  # the noised release itself: charged to the ledger
                if path == "/privet/about":
                    about = json.loads(value)
                    about.pop("digest")  # a function of the released payload and public z
                    assert set(about) <= PUBLIC_ABOUT
                    public.append(about)
                    continue
                assert path in PUBLIC, f"{path} leaves an agent unaccounted"
                if path != "/privet/experiment":
                    public.append((path, value))
        returned.append(public)
    assert returned[0] == returned[1]
    assert "declines evaluation" in returned[0][-1][1]


def test_unusable_data_of_a_private_run_are_not_described() -> None:
    def make(context: Any) -> BinaryLogistic:
        if position(context) == 0:
            return BinaryLogistic(np.eye(4), [1, -1, 1, 77])
        return logistic_agents(1)[0]

    grid = InlineGrid(client_app("fed-plt", make), 2)
    strategy = FedPLT(**{"num_agents": 2, **PRIVATE})
    with own_log() as said:
        strategy.start(grid, zeros(4), num_rounds=1)
    assert strategy.session is not None
    assert [*strategy.session.roster.rejected.values()] == [f"agent 0: {Told.DATA}"]
    assert "agent 0: ValueError: labels must be -1 or +1, found 77" in said.text


def test_nobody_evaluates_in_a_private_run() -> None:
    """Not even an agent that has not taken part yet: its next upload could not be accounted."""
    problems = logistic_agents(3)
    grid = InlineGrid(app_of(problems), 3)
    only_first = Schedule((("0",),))
    strategy = FedPLT(
        **{"num_agents": 3, "participation": only_first, "fraction_evaluate": 1.0, **PRIVATE}
    )
    result = strategy.start(grid, zeros(4), num_rounds=1)
    assert result.evaluate_metrics_clientapp == {}
    asked = Message(RecordDict({"arrays": zeros(4), "config": ConfigRecord()}), 1002, "evaluate")
    (reply,) = grid.send_and_receive([asked])
    assert "declines evaluation" in reply.error.reason


# --------------------------------------------------------------------------- hostile instructions


def instruct(
    problem: Any, x: list[float], y: list[float], z: list[float] | None = None, **options: Any
) -> Message:
    """Return an agent's reply to an instruction written by hand."""
    grid = InlineGrid(client_app("fed-plt", lambda context: problem), 1)
    half = FedPLT(**{**PRIVATE, **options}).half
    settings = encode_settings({**half.settings(), "seed": 0})
    shared = shared_record("fed-plt", 1, "e", 1, settings, {"y": np.array(y)})
    own = agent_record(0, pack({"x": np.array(x), "z": np.array(y if z is None else z)}))
    message = Message(RecordDict({"privet": shared, "privet.agent": own}), 1000, "train")
    (reply,) = grid.send_and_receive([message])
    return reply


@pytest.mark.parametrize("bad", [math.inf, math.nan, -1e300])
def test_numbers_that_meet_the_data_as_nan_are_refused(bad: float) -> None:
    """Whether inf * a_ij is NaN tells whether a_ij is 0, and no noise hides a NaN."""
    zero = [0.0] * 4
    far = [bad, 0.0, 0.0, 0.0]
    for x, y, z in ((far, zero, zero), (zero, far, zero), (zero, zero, far)):
        reply = instruct(logistic_agents(1)[0], x, y, z)
        assert "too large or not finite" in reply.error.reason


def test_noise_that_rounding_would_swallow_is_refused() -> None:
    """At 2^53 neighbouring numbers are 2 apart: noise of 0.04 is rounded away, the data are not.

    A single step's noise is on the data term alone, before anything can swallow it.
    """
    far = [2.0**53, 0.0, 0.0, 0.0]
    options = {"local_epochs": 2, "step_size": 1.0, "clip": 2.0, "rho": 1e9, "noise_variance": 1e-3}
    with own_log() as said:
        reply = instruct(logistic_agents(1)[0], far, far, **options)
    assert reply.error.reason.endswith(f": {Told.WORK}")
    assert "too large for noise" in said.text
    assert instruct(logistic_agents(1)[0], [1.0] * 4, [1.0] * 4, **options).has_content()


# --------------------------------------------------------------------------- what is counted


def test_restarted_agent_goes_on_with_its_account() -> None:
    """It lost its memory, and with it its ledger; what had left it before still counts."""
    problems = logistic_agents(2)
    grid = FaultyGrid(app_of(problems), 2, {(1, 4): lose_state})
    strategy = FedPLT(**{"num_agents": 2, **PRIVATE})
    result = strategy.start(grid, zeros(4), num_rounds=5)
    assert strategy.session is not None
    agents = strategy.session.roster.agents
    assert AgentLedger.from_json(agents["1"].ledger).messages == 5
    assert agents["0"].ledger == agents["1"].ledger
    assert result.history[-1].epsilon == pytest.approx(spent_after(5))


def test_resumed_run_counts_what_left_before(tmp_path: Path) -> None:
    problems = logistic_agents(2)
    file = tmp_path / "checkpoint.npz"
    app = app_of(problems)

    class Forgetful(InlineGrid):
        """Agents whose memory ends with the run, as that of SuperNodes does."""

        def restore_node_states(self, states: Any) -> None:
            pass

    for rounds, options in ((2, {"checkpoint": file}), (5, {"resume": file, "checkpoint": file})):
        strategy = FedPLT(**{"num_agents": 2, **PRIVATE})
        strategy.start(Forgetful(app, 2), zeros(4), num_rounds=rounds, **options)
    assert strategy.session is not None
    for agent in strategy.session.roster.agents.values():
        assert AgentLedger.from_json(agent.ledger).messages == 5
