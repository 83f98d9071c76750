"""Flower's usual arguments, metrics, mods, and a user's own ClientApp around an agent half."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import mod as older_mods
from flwr.clientapp import ClientApp
from flwr.clientapp import mod as flower_mods
from flwr.clientapp.mod import arrays_size_mod, message_size_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)
from hypothesis import given
from hypothesis import strategies as st

from privet.client_apps import CallableProblem, Participant
from privet.core import ConfigError, RunError
from privet.rounds.flower.options import FlowerOptions, NodeSample, average_metrics
from privet.sim.engine import InlineGrid
from privet.strategies import DPIADMM, DPFedSGD, FedPDM, FedPLT, Fraction, Scaffold
from support.federations import app_of, logistic_agents, model, position, zeros

OWN = {"fraction_evaluate"}
"""What the strategies took before in a way of their own, with the same name and meaning."""


def test_every_argument_of_fed_avg_is_known() -> None:
    theirs = set(inspect.signature(FedAvg).parameters)
    ours = set(FlowerOptions.__dataclass_fields__) | OWN
    assert theirs <= ours


def test_every_argument_of_fed_avgs_start_is_known() -> None:
    theirs = inspect.signature(FedAvg.start).parameters
    assert list(theirs) == list(inspect.signature(FedPLT.start).parameters)[: len(theirs)]


@given(
    st.integers(1, 40),
    st.floats(0.01, 1.0),
    st.integers(1, 50),
)
def test_sample_is_as_large_as_fed_avgs(total: int, fraction: float, least: int) -> None:
    chosen = NodeSample(fraction, least).select(1, [str(i) for i in range(total)], seed=0)
    assert len(chosen) == len(set(chosen)) == min(total, max(int(total * fraction), least))


def test_fraction_train_samples_as_many_nodes_as_fed_avg() -> None:
    problems = logistic_agents(7)
    options: Any = {"fraction_train": 0.5, "min_train_nodes": 2, "min_available_nodes": 7}
    messages = list(
        FedAvg(**options).configure_train(
            1, zeros(4), ConfigRecord(), InlineGrid(app_of(problems), 7)
        )
    )
    result = FedPLT(**options).start(InlineGrid(app_of(problems), 7), zeros(4), num_rounds=6)
    assert {len(done.participants) for done in result.history} == {len(messages)} == {3}
    assert len({done.participants for done in result.history}) > 1


class Gathering(InlineGrid):
    """Nodes come online one at a time, each time the grid is asked."""

    def get_node_ids(self) -> Any:
        self.asked = getattr(self, "asked", 0) + 1
        return sorted(self.online)[: self.asked]


def test_min_available_nodes_are_waited_for() -> None:
    problems = logistic_agents(4)
    result = FedPLT(min_available_nodes=3, wait_timeout=5).start(
        Gathering(app_of(problems), 4), zeros(4), num_rounds=1
    )
    assert len(result.history[0].participants) >= 3


def test_a_round_waits_for_nodes_that_left() -> None:
    problems = logistic_agents(3)
    grid = InlineGrid(app_of(problems), 3)
    strategy = FedPLT(min_available_nodes=3, wait_timeout=0.2)
    strategy.configure_train(1, zeros(4), ConfigRecord(), grid)
    grid.online.pop()
    with pytest.raises(RunError, match=r"waited 0.2 s for 3 agents and 2 came"):
        strategy.configure_train(2, zeros(4), ConfigRecord(), grid)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"fraction_train": 0.0}, "fraction-train"),
        ({"fraction_train": 1.5}, "fraction-train"),
        ({"fraction_train": 0.5, "participation": Fraction(0.5)}, "not both"),
        ({"min_available_nodes": -1}, "min-available-nodes"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        FedPLT(**options)


# ---------------------------------------------------------------------- evaluation


def recording_app(problems: list[Any], seen: list[Message], **options: Any) -> Any:
    """The agents' app; evaluation messages are kept."""
    app = app_of(problems, **options)

    def handle(message: Message, context: Any) -> Message:
        if message.metadata.message_type == "evaluate":
            seen.append(message)
        return app(message, context)

    return handle


def test_evaluation_is_that_of_fed_avg() -> None:
    problems = logistic_agents(5)
    seen: list[Message] = []
    grid = InlineGrid(recording_app(problems, seen), 5)
    options: Any = {"fraction_evaluate": 0.5, "min_evaluate_nodes": 3}
    strategy = FedPLT(num_agents=5, **options)
    result = strategy.start(
        grid, zeros(4), num_rounds=1, evaluate_config=ConfigRecord({"verbose": True})
    )
    assert len(seen) == 3
    assert sorted(seen[0].content.config_records["config"].items()) == [
        ("server-round", 1),
        ("verbose", True),
    ]
    asked = list(seen)
    replies = [grid.deliver(message) for message in asked]
    theirs = FedAvg().aggregate_evaluate(1, [reply for reply in replies if reply])
    assert theirs is not None
    ours = result.evaluate_metrics_clientapp[1]
    assert ours["loss"] == pytest.approx(theirs["loss"])
    agents = [position(grid.contexts[message.metadata.dst_node_id]) for message in asked]
    losses = [problems[agent].value(model(result)) for agent in agents]
    assert ours["loss"] == pytest.approx(np.mean(losses))


def test_record_keys_weights_and_aggregation_are_the_users() -> None:
    problems = logistic_agents(3)
    seen: list[Message] = []
    called: list[tuple[int, str]] = []

    def worst(replies: list[RecordDict], key: str) -> MetricRecord:
        called.append((len(replies), key))
        records = [next(iter(reply.metric_records.values())) for reply in replies]
        return MetricRecord({"worst": max(record["loss"] for record in records)})

    strategy = FedPLT(
        num_agents=3,
        fraction_evaluate=1.0,
        arrayrecord_key="model",
        configrecord_key="settings",
        weighted_by_key="rows",
        evaluate_metrics_aggr_fn=worst,
    )
    result = strategy.start(InlineGrid(recording_app(problems, seen), 3), zeros(4), num_rounds=1)
    assert sorted(seen[0].content) == ["model", "settings"]
    assert called == [(3, "rows")]
    losses = [problem.value(model(result)) for problem in problems]
    assert result.evaluate_metrics_clientapp[1]["worst"] == pytest.approx(max(losses))


def test_aggregation_that_raises_leaves_the_run_alone() -> None:
    def broken(replies: list[RecordDict], key: str) -> MetricRecord:
        raise KeyError(key)

    strategy = FedPLT(num_agents=2, fraction_evaluate=1.0, evaluate_metrics_aggr_fn=broken)
    problems = logistic_agents(2)
    result = strategy.start(InlineGrid(app_of(problems), 2), zeros(4), num_rounds=2)
    assert len(result.history) == 2
    assert not result.evaluate_metrics_clientapp


class Told(CallableProblem):
    """A problem with a metric of its own."""

    def metrics(self, x: np.ndarray) -> dict[str, float]:
        return {"length": float(np.linalg.norm(x))}


def told(count: int) -> list[Told]:
    return [Told(lambda x: float(x @ x) / 2, lambda x: x, 2, 4 + 4 * i) for i in range(count)]


def test_metrics_of_a_problem_are_averaged_with_the_loss() -> None:
    strategy = FedPLT(num_agents=2, step_size=0.1, fraction_evaluate=1.0)
    start = zeros(2)
    result = strategy.start(InlineGrid(app_of(told(2)), 2), start, num_rounds=1)
    found = result.evaluate_metrics_clientapp[1]
    assert found["length"] == pytest.approx(np.linalg.norm(model(result)))


# ---------------------------------------------------------------------- training metrics


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("fed-plt", lambda: FedPLT(num_agents=3)),
        ("dp-iadmm", lambda: DPIADMM(num_agents=3)),
        ("fed-pdm", lambda: FedPDM(num_agents=3)),
        ("scaffold", lambda: Scaffold(num_agents=3)),
    ],
)
def test_training_loss_is_that_of_the_model_sent(name: str, strategy: Any) -> None:
    problems = [logistic_agents(1, rows=rows, seed=rows)[0] for rows in (10, 20, 40)]
    app = app_of(problems, name, train_metrics=True)
    start = zeros(4)
    result = strategy().start(InlineGrid(app, 3), start, num_rounds=1)
    x = np.zeros(4)
    expected = sum(p.num_examples * p.value(x) for p in problems) / 70
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(expected)


def test_training_metrics_by_the_users_function_and_through_flowers_interface() -> None:
    problems = logistic_agents(3)
    grid = InlineGrid(app_of(problems, train_metrics=True), 3)
    strategy = FedPLT(
        num_agents=3,
        train_metrics_aggr_fn=lambda replies, key: MetricRecord({"replies": len(replies)}),
    )
    messages = strategy.configure_train(1, zeros(4), ConfigRecord(), grid)
    _, metrics = strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert metrics is not None
    assert metrics["replies"] == 3
    assert metrics["participants"] == 3


def test_no_training_metrics_unless_asked_for() -> None:
    problems = logistic_agents(2)
    result = FedPLT(num_agents=2).start(InlineGrid(app_of(problems), 2), zeros(4), num_rounds=1)
    assert not result.train_metrics_clientapp


def test_private_agents_report_no_training_metrics() -> None:
    problems = logistic_agents(2)
    private: Any = {
        "local_solver": "noisy-gd",
        "clip": 1.0,
        "noise_variance": 1.0,
        "row_norm": 5.0,
    }
    app = app_of(problems, train_metrics=True)
    strategy = FedPLT(num_agents=2, fraction_evaluate=1.0, **private)
    result = strategy.start(InlineGrid(app, 2), zeros(4), num_rounds=2)
    assert 0 < result.history[-1].epsilon < np.inf
    assert not result.train_metrics_clientapp
    assert not result.evaluate_metrics_clientapp


# ---------------------------------------------------------------------- a user's own app


def own_app(problems: list[Any], log: list[str]) -> ClientApp:
    """A Flower app with handlers of its own, which hands Privet's messages on."""
    app = ClientApp()
    agent = Participant(lambda context: problems[position(context)], protocol="fed-plt")
    app.query("privet")(agent.query)

    @app.train()
    def train(message: Message, context: Any) -> Message:
        if "privet" not in message.content:
            log.append("own")
            metrics = MetricRecord({"num-examples": 1})
            arrays = message.content["arrays"]
            return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
        reply = agent.train(message, context)
        log.append("privet")
        reply.content["extra"] = MetricRecord({"num-examples": 1, "answer": 42.0})
        return reply

    @app.query()
    def query(message: Message, context: Any) -> Message:
        log.append("query")
        return Message(RecordDict({"q": ConfigRecord({"own": True})}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        metrics = MetricRecord({"num-examples": 1, "own-accuracy": 0.25})
        return Message(RecordDict({"m": metrics}), reply_to=message)

    return app


def test_agent_half_in_two_lines_of_an_own_app() -> None:
    problems = logistic_agents(3)
    log: list[str] = []
    grid = InlineGrid(own_app(problems, log), 3)
    result = FedPLT(num_agents=3, rho=1.0, fraction_evaluate=1.0).start(
        grid, zeros(4), num_rounds=2
    )
    plain = FedPLT(num_agents=3, rho=1.0).start(
        InlineGrid(app_of(problems), 3), zeros(4), num_rounds=2
    )
    assert np.array_equal(model(result), model(plain))
    assert [done.participants for done in result.history] == [("0", "1", "2")] * 2
    assert result.train_metrics_clientapp[2]["answer"] == 42.0
    assert result.evaluate_metrics_clientapp[1]["own-accuracy"] == 0.25
    assert log == ["privet"] * 6


def test_own_handlers_still_serve_flower() -> None:
    log: list[str] = []
    grid = InlineGrid(own_app(logistic_agents(2), log), 2)
    result = FedAvg(fraction_evaluate=0.0).start(grid, zeros(4), num_rounds=1)
    assert result.arrays is not None
    message = Message(RecordDict({"q": ConfigRecord({"x": 1})}), 1000, "query")
    reply = next(iter(grid.send_and_receive([message])))
    assert reply.content["q"] == ConfigRecord({"own": True})
    assert log == ["own", "own", "query"]


# ---------------------------------------------------------------------- mods


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fed-plt", {"fraction_evaluate": 1.0}),
        ("dp-iadmm", {}),
        ("fed-pdm", {"sparsifier": "top-k", "alpha_u": 0.5}),
        ("scaffold", {"participation": Fraction(0.5)}),
    ],
)
def test_flowers_mods_leave_the_numbers_alone(name: str, options: dict[str, Any]) -> None:
    strategies = {"fed-plt": FedPLT, "dp-iadmm": DPIADMM, "fed-pdm": FedPDM, "scaffold": Scaffold}
    problems = logistic_agents(3)
    models = []
    for mods in ([], [arrays_size_mod, message_size_mod]):
        app = app_of(problems, name, mods=mods)
        result = strategies[name](num_agents=3, **options).start(
            InlineGrid(app, 3), zeros(4), num_rounds=3
        )
        assert not any(done.failures for done in result.history)
        models.append(model(result))
    assert np.array_equal(*models)


REFUSED_MODS = {
    "fixedclipping_mod": flower_mods.fixedclipping_mod,
    "adaptiveclipping_mod": flower_mods.adaptiveclipping_mod,
    "LocalDpMod": flower_mods.LocalDpMod(1.0, 1.0, 1.0, 1e-5),
    "older fixedclipping_mod": older_mods.fixedclipping_mod,
    "older adaptiveclipping_mod": older_mods.adaptiveclipping_mod,
    "older LocalDpMod": older_mods.LocalDpMod(1.0, 1.0, 1.0, 1e-5),
    "secagg_mod": older_mods.secagg_mod,
    "secaggplus_mod": older_mods.secaggplus_mod,
}


class OwnLocalDpMod(flower_mods.LocalDpMod):
    """A user's variant."""


@pytest.mark.parametrize("name", REFUSED_MODS)
def test_flowers_mods_for_privacy_are_refused_where_an_app_is_made(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        app_of(logistic_agents(1), mods=[arrays_size_mod, REFUSED_MODS[name]])
    shown = name.removeprefix("older ")
    assert str(caught.value) == (
        f"Flower's mod {shown} protects nothing here: take it off, and use an "
        "algorithm's own clip with target-epsilon (or its noise), and secure-sum where the "
        "coordinator is to see sums alone"
    )


def test_a_subclass_of_such_a_mod_is_refused_too() -> None:
    with pytest.raises(ConfigError, match="Flower's mod LocalDpMod protects nothing"):
        app_of(logistic_agents(1), mods=[OwnLocalDpMod(1.0, 1.0, 1.0, 1e-5)])


def through(mod: Any) -> Any:
    """Return a user's mod that calls another, and is not known by name."""

    def own(message: Message, context: Any, call_next: Any) -> Message:
        reply: Message = mod(message, context, call_next)
        return reply

    return own


def modded(
    problems: list[Any], mod: Any, asked: list[str] | None = None, *, bad: int | None = None
) -> Any:
    """A user's own app, in which node ``bad`` (or every one) has the mod around Privet's agent."""
    agent = Participant(lambda context: problems[position(context)])
    apps = []
    for mods in ([], [mod]):
        app = ClientApp(mods=mods)
        app.query("privet")(agent.query)
        app.train()(agent.train)
        apps.append(app)

    def handle(message: Message, context: Any) -> Message:
        has_it = bad is None or position(context) == bad
        if asked is not None and has_it:
            asked.append(message.metadata.message_type)
        return apps[has_it](message, context)

    return handle


@pytest.mark.parametrize("name", REFUSED_MODS)
def test_a_mod_in_a_users_own_app_ends_the_run_at_the_first_question(name: str) -> None:
    asked: list[str] = []
    grid = InlineGrid(modded(logistic_agents(3), through(REFUSED_MODS[name]), asked), 3)
    # secagg_mod hands over to secaggplus_mod.
    shown = name.removeprefix("older ").replace("secagg_mod", "secaggplus_mod")
    with pytest.raises(RunError, match=rf"{shown}.*: take it off, and use .*clip with") as caught:
        FedPLT(num_agents=3).start(grid, zeros(4), num_rounds=5)
    assert "\n" not in str(caught.value)
    assert asked == ["query.privet"] * 3


def test_one_such_node_does_not_end_the_run_and_is_asked_once() -> None:
    asked: list[str] = []
    grid = InlineGrid(modded(logistic_agents(3), REFUSED_MODS["LocalDpMod"], asked, bad=1), 3)
    result = FedPLT().start(grid, zeros(4), num_rounds=6)
    assert [done.participants for done in result.history] == [("0", "2")] * 6
    assert asked == ["query.privet"]


def test_a_mod_of_the_train_handler_alone_is_named_in_the_first_round() -> None:
    agent = Participant(lambda context: logistic_agents(2)[position(context)])
    app = ClientApp()
    app.query("privet")(agent.query)
    app.train(mods=[REFUSED_MODS["LocalDpMod"]])(agent.train)
    with pytest.raises(RunError, match=r"round 1: .*LocalDpMod .*: take it off"):
        FedPLT(num_agents=2).start(InlineGrid(app, 2), zeros(4), num_rounds=5)


def test_a_users_own_mod_that_changes_nothing_is_welcome() -> None:
    seen: list[str] = []

    def watch(message: Message, context: Any, call_next: Any) -> Message:
        seen.append(message.metadata.message_type)
        reply: Message = call_next(message, context)
        return reply

    problems = logistic_agents(2)
    models = []
    for app in (app_of(problems), app_of(problems, mods=[watch]), modded(problems, watch)):
        result = FedPLT(num_agents=2).start(InlineGrid(app, 2), zeros(4), num_rounds=2)
        models.append(model(result))
    assert np.array_equal(models[0], models[1])
    assert np.array_equal(models[0], models[2])
    assert seen == (["query.privet"] * 2 + ["train"] * 4) * 2


# ---------------------------------------------------------------------- wrappers


class OwnWrapper(DifferentialPrivacyServerSideFixedClipping):
    """A user's variant, with a round of its own."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        return self.strategy.configure_train(server_round, arrays, config, grid)


WRAPPERS: dict[str, Any] = {
    "DifferentialPrivacyServerSideFixedClipping": lambda inner: (
        DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 1.0, 2)
    ),
    "DifferentialPrivacyClientSideFixedClipping": lambda inner: (
        DifferentialPrivacyClientSideFixedClipping(inner, 1.0, 1.0, 2)
    ),
    "DifferentialPrivacyServerSideAdaptiveClipping": lambda inner: (
        DifferentialPrivacyServerSideAdaptiveClipping(inner, 0.05, 2)
    ),
    "DifferentialPrivacyClientSideAdaptiveClipping": lambda inner: (
        DifferentialPrivacyClientSideAdaptiveClipping(inner, 0.05, 2)
    ),
    "OwnWrapper": lambda inner: OwnWrapper(inner, 1.0, 1.0, 2),
}


class Plain(Strategy):
    """A wrapper that changes nothing."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner

    def configure_train(self, *arguments: Any) -> Any:
        return self.inner.configure_train(*arguments)

    def aggregate_train(self, *arguments: Any) -> Any:
        return self.inner.aggregate_train(*arguments)

    def configure_evaluate(self, *arguments: Any) -> Any:
        return self.inner.configure_evaluate(*arguments)

    def aggregate_evaluate(self, *arguments: Any) -> Any:
        return self.inner.aggregate_evaluate(*arguments)

    def summary(self) -> None:
        self.inner.summary()


def silent(message: Message, context: Any) -> Message:
    raise AssertionError("a node is asked")


@pytest.mark.parametrize("between", [lambda inner: inner, Plain])
@pytest.mark.parametrize("name", WRAPPERS)
def test_flowers_wrappers_for_privacy_are_refused_before_a_node_is_asked(
    name: str, between: Any
) -> None:
    wrapped = WRAPPERS[name](between(FedPLT(num_agents=2)))
    with pytest.raises(ConfigError) as caught:
        wrapped.start(InlineGrid(silent, 2), zeros(4), num_rounds=3)
    assert str(caught.value) == (
        f"{name} around FedPLT protects nothing: take it off, and use an algorithm's own clip with "
        "target-epsilon (or its noise), and secure-sum where the coordinator is to see sums alone"
    )


@pytest.mark.parametrize("name", WRAPPERS)
def test_such_a_wrapper_is_refused_in_somebody_elses_loop(name: str) -> None:
    problems = logistic_agents(2)
    strategy = FedPLT(num_agents=2)
    wrapped = WRAPPERS[name](strategy)
    config = ConfigRecord()
    with pytest.raises(ConfigError, match=name):
        wrapped.configure_train(1, zeros(4), config, InlineGrid(silent, 2))
    grid = InlineGrid(app_of(problems), 2)
    messages = strategy.configure_train(1, zeros(4), config, grid)
    with pytest.raises(ConfigError, match=name):
        wrapped.aggregate_train(1, grid.send_and_receive(messages))


def test_a_wrapper_that_changes_nothing_may_drive_a_strategy() -> None:
    problems = logistic_agents(2)
    own = FedPLT(num_agents=2).start(InlineGrid(app_of(problems), 2), zeros(4), num_rounds=3)
    theirs = Plain(FedPLT(num_agents=2)).start(
        InlineGrid(app_of(problems), 2), zeros(4), num_rounds=3
    )
    assert np.array_equal(model(own), theirs.arrays["x"].numpy())


class Changing(Plain):
    """A wrapper that changes the model between two rounds."""

    def aggregate_train(self, *arguments: Any) -> Any:
        arrays, metrics = self.inner.aggregate_train(*arguments)
        changed = {name: Array(2.0 * array.numpy()) for name, array in arrays.items()}
        return ArrayRecord(changed), metrics


def test_a_wrapper_that_changes_the_model_is_refused_before_it_would_be_ignored() -> None:
    problems = logistic_agents(2)
    strategy = FedPLT(num_agents=2)
    with pytest.raises(ConfigError, match="FedPLT: the model given is not the one it returned"):
        Changing(strategy).start(InlineGrid(app_of(problems), 2), zeros(4), num_rounds=3)
    assert strategy.run.session.round == 1


def test_a_wrapper_may_hand_on_a_copy_of_the_model() -> None:
    problems = logistic_agents(2)

    class Copying(Plain):
        def configure_train(self, number: int, arrays: ArrayRecord, *others: Any) -> Any:
            copied = {name: Array(array.numpy().copy()) for name, array in arrays.items()}
            return self.inner.configure_train(number, ArrayRecord(copied), *others)

    result = Copying(FedPLT(num_agents=2)).start(
        InlineGrid(app_of(problems), 2), zeros(4), num_rounds=3
    )
    assert result.train_metrics_clientapp[3]["participants"] == 2


def test_flowers_wrappers_still_serve_flower() -> None:
    """The refusal concerns this library's strategies, not the process it is imported in."""

    def ones(message: Message, context: Any) -> Message:
        arrays = ArrayRecord({"x": Array(np.ones(4))})
        content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    inner = FedAvg(fraction_evaluate=0.0)
    wrapped = WRAPPERS["DifferentialPrivacyServerSideFixedClipping"](inner)
    result = wrapped.start(InlineGrid(ones, 2), zeros(4), num_rounds=1)
    # Clipped from 1 to 1/2, and noise.
    assert not set(result.arrays["x"].numpy()) & {0.0, 0.5, 1.0}


def test_a_strategy_of_privet_with_fed_avgs_arguments_in_fed_avgs_place() -> None:
    problems = logistic_agents(4)
    arguments: Any = {
        "fraction_train": 1.0,
        "fraction_evaluate": 1.0,
        "min_train_nodes": 4,
        "min_evaluate_nodes": 4,
        "min_available_nodes": 4,
    }
    result = FedPLT(rho=1.0, **arguments).start(
        grid=InlineGrid(app_of(problems), 4),
        initial_arrays=zeros(4),
        num_rounds=60,
        timeout=30.0,
        train_config=ConfigRecord({"lr": 0.1}),
        evaluate_fn=lambda number, arrays: MetricRecord({"round": number}),
    )
    assert isinstance(result.arrays, ArrayRecord)
    assert list(result.evaluate_metrics_serverapp) == list(range(61))
    total = sum(problem.gradient(model(result)) for problem in problems)
    assert np.linalg.norm(total) < 1e-4


def test_a_reply_with_very_many_metrics_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """They are kept in the history, a line a round."""
    large = [
        {f"m{i}": 1.0 for i in range(20_000)},
        {"long": [1.0] * 20_000},
        {"n" * 10**6: 1.0},
    ]
    options, fine = FlowerOptions(), {"num-examples": 4, "loss": 1.0}
    replies = [RecordDict({"metrics": MetricRecord({**fine, **each})}) for each in large]
    assert options.train_metrics(replies) is None
    assert "training metrics: 3 replies left out, which hold more than 300" in caplog.text
    several = RecordDict({str(i): MetricRecord({}) for i in range(1_000)})
    for taken in (options.train_metrics, options.evaluate_metrics):
        honest = RecordDict({"metrics": MetricRecord(fine)})
        assert dict(taken([*replies, several, honest]) or {}) == {"loss": 1.0}


@pytest.mark.parametrize("name", ["\x1b[2J", "a\n2026-01-01 INFO: run completed", "b\r"])
@pytest.mark.parametrize("aggregate", [None, average_metrics])
def test_a_metric_whose_name_cannot_be_printed_is_left_out(
    name: str, aggregate: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = FlowerOptions(train_metrics_aggr_fn=aggregate, evaluate_metrics_aggr_fn=aggregate)
    fine = {"num-examples": 4, "loss": 1.0}
    replies = [RecordDict({"metrics": MetricRecord(one)}) for one in ({**fine, name: 9.0}, fine)]
    for taken in (options.train_metrics, options.evaluate_metrics):
        assert dict(taken(replies) or {}) == {"loss": 1.0}
    assert "names that cannot be printed" in caplog.text
    assert not any(name in message for message in caplog.messages)


class Measuring(InlineGrid):
    """A grid whose agents send metrics with their uploads, whatever the run is."""

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        if reply is not None and reply.has_content() and message.metadata.message_type == "train":
            reply.content["metrics"] = MetricRecord({"num-examples": 4, "epsilon": 0.0})
        return reply


@pytest.mark.parametrize("noise", [0.0, 5.0])
def test_no_metrics_of_private_agents_are_kept(noise: float) -> None:
    """No private agent sends any: what comes is of one that is none of this library's."""
    strategy = DPFedSGD(num_agents=3, clip=1.0 if noise else 0.0, noise_scale=noise)
    grid = Measuring(app_of(logistic_agents(3), "dp-fedsgd"), 3)
    (done,) = strategy.start(grid, zeros(4), num_rounds=1).history
    assert done.participants == ("0", "1", "2")
    assert dict(done.train_metrics_clientapp) == ({} if noise else {"epsilon": 0.0})
