"""Training loops of one's own: the same iterates as the built-in solvers, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from sklearn.linear_model import SGDRegressor

from privet.agents.loop.parameters import parameters_of, require_same
from privet.agents.loop.round import length
from privet.client_apps import LoopParticipant, client_app, initial_arrays
from privet.core import ConfigError, RunError
from privet.kernel import Told
from privet.kernel.programs.steps import LocalTask
from privet.problems import L2, RidgeRegression
from privet.sim.engine import InlineGrid
from privet.strategies import (
    LED,
    Failure,
    FailureCode,
    FedAsync,
    FedDyn,
    FedPD,
    FedPDM,
    FedPLT,
    FedSplit,
    PrimalDualStrategy,
    Scaffold,
    Tamuna,
)
from privet.wire import Layout
from support.told import refused

AGENTS, ROWS, DIM = 3, 12, 4
rng = np.random.default_rng(3)
PROBLEMS = [
    RidgeRegression(
        rng.standard_normal((ROWS, DIM)), rng.standard_normal(ROWS), regularizer=L2(0.1)
    )
    for _ in range(AGENTS)
]
CENTER = {"returned_model": "y"}
GIVEN = {"step_size_base": 0.05, "step_size_rule": "constant", "max_local_steps": 4}
STRATEGIES: dict[str, Callable[[], PrimalDualStrategy]] = {
    "fed-plt": lambda: FedPLT(
        num_agents=AGENTS, rho=0.7, step_size=0.05, local_epochs=4, local_start="own", **CENTER
    ),
    "fed-split": lambda: FedSplit(
        num_agents=AGENTS, rho=0.7, step_size=0.05, local_epochs=4, **CENTER
    ),
    "fed-pd": lambda: FedPD(num_agents=AGENTS, rho=0.7, step_size=0.05, local_epochs=4),
    "fed-pdm": lambda: FedPDM(num_agents=AGENTS, rho=0.5, **GIVEN),
    "fed-dyn": lambda: FedDyn(num_agents=AGENTS, **GIVEN),
    "scaffold": lambda: Scaffold(num_agents=AGENTS, **GIVEN),
    "led": lambda: LED(num_agents=AGENTS, step_size=0.05, local_epochs=4),
    "tamuna": lambda: Tamuna(num_agents=AGENTS, step_size=0.05, local_epochs=4),
    "fed-async": lambda: FedAsync(
        num_agents=AGENTS, step_size=0.05, local_epochs=4, fed_async_rho=0.5
    ),
}


def problem_of(context: Context) -> RidgeRegression:
    return PROBLEMS[int(context.node_config["partition-id"])]


def participant(name: str) -> LoopParticipant:
    return LoopParticipant(name, model, lambda context: ROWS)


def model() -> dict[str, Any]:
    """Return two arrays that are one vector of the problem."""
    return {"first": np.zeros((2, 1)), "rest": np.zeros(DIM - 2)}


def vector(arrays: dict[str, Any]) -> Any:
    return np.concatenate([array.reshape(-1) for array in arrays.values()])


def loop_app(name: str, **changes: Any) -> Any:
    """Return an app whose loop takes the steps that the built-in solver takes."""
    taking_part = participant(name)
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        weights = model()
        with taking_part.round(message, context, weights) as local:
            step = local.step_size * changes.get("longer", 1.0)
            for _ in range(local.steps + changes.get("more", 0)):
                slope = problem_of(context).gradient(vector(weights))
                slopes = {"first": slope[:2].reshape(2, 1).copy(), "rest": slope[2:].copy()}
                if changes.get("break") == context.node_config["partition-id"]:
                    raise ValueError("the loop\nbroke")
                local.correct(weights, slopes)
                for key, part in slopes.items():
                    weights[key] = weights[key] - step * part
        return local.reply(changes.get("metrics"))

    return app


def result(strategy: PrimalDualStrategy, app: Any, rounds: int = 6) -> Any:
    return strategy.start(InlineGrid(app, AGENTS), initial_arrays(model()), num_rounds=rounds)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_loop_of_gradient_steps_is_the_built_in_solver(name: str) -> None:
    built_in = result(STRATEGIES[name](), client_app(name, problem_of))
    own = result(STRATEGIES[name](), loop_app(name))
    for key, array in built_in.arrays.items():
        scale = np.abs(array.numpy()).max()
        assert np.allclose(own.arrays[key].numpy(), array.numpy(), rtol=0, atol=1e-12 * scale)
        assert scale > 0.01


@pytest.mark.parametrize("sparsifier", ["top-k", "rand-k", "public-top-k"])
@pytest.mark.parametrize("dual", ["private", "public"])
def test_a_loop_sends_the_coordinates_that_the_built_in_solver_sends(
    sparsifier: str, dual: str
) -> None:
    def strategy() -> FedPDM:
        return FedPDM(0.5, sparsifier=sparsifier, dual=dual, uplink_k=2, downlink_k=3, **GIVEN)

    built_in = result(strategy(), client_app("fed-pdm", problem_of))
    own = result(strategy(), loop_app("fed-pdm"))
    for key, array in built_in.arrays.items():
        assert np.allclose(own.arrays[key].numpy(), array.numpy(), rtol=0, atol=1e-12)
    assert own.history[-1].bytes_up == built_in.history[-1].bytes_up


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"noise_scale": 0.1}, "needs a clip with its noise"),
        ({"nu": 0.1}, "cannot be stopped by a gradient norm"),
    ],
)
def test_what_a_loop_cannot_keep_to_is_refused(keys: dict[str, float], said: str) -> None:
    with pytest.raises((RunError, ConfigError), match=said):
        result(FedPDM(num_agents=AGENTS, **keys), loop_app("fed-pdm"), rounds=1)


def test_a_start_in_another_order_is_refused_by_name() -> None:
    """The same number of parameters, so that nothing else would notice."""
    turned = initial_arrays({"rest": np.zeros(DIM - 2), "first": np.zeros((2, 1))})
    with pytest.raises(RunError, match=r"its model has 'first' of shape \(2, 1\) where 'rest'"):
        FedPLT(num_agents=AGENTS).start(InlineGrid(loop_app("fed-plt"), AGENTS), turned)
    turned["beside"] = Array(np.zeros(3))
    with pytest.raises(RunError, match=r"\d+ parameters, the server's \d+: 'first' of .* 'rest'"):
        FedPLT(num_agents=AGENTS).start(InlineGrid(loop_app("fed-plt"), AGENTS), turned)


def test_metrics_of_the_loop_reach_the_server() -> None:
    strategy = FedPLT(num_agents=AGENTS, step_size=0.05)
    found = result(strategy, loop_app("fed-plt", metrics={"loss": 2.5}), rounds=2)
    assert found.train_metrics_clientapp[2]["loss"] == 2.5


def test_an_agent_that_lost_its_state_is_sent_it() -> None:
    whole = result(STRATEGIES["fed-plt"](), loop_app("fed-plt"), rounds=3)
    strategy = STRATEGIES["fed-plt"]()
    grid = InlineGrid(loop_app("fed-plt"), AGENTS)
    strategy.begin(grid, initial_arrays(model()))
    for number in (1, 2, 3):
        if number == 3:
            next(iter(grid.contexts.values())).state = RecordDict()
        done = strategy.play_round(grid, number)
    assert any("was sent its state of round 2" in note for note in done.notes)
    for key, array in whole.arrays.items():
        assert np.array_equal(strategy.run.arrays[key].numpy(), array.numpy())


def test_what_breaks_in_the_loop_costs_that_agent_only(caplog: pytest.LogCaptureFixture) -> None:
    app = loop_app("fed-plt", **{"break": 1})
    strategy = FedPLT(num_agents=AGENTS, min_agents=2, step_size=0.05)
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        done = result(strategy, app, rounds=1).history[0]
    assert done.participants == ("0", "2")
    assert done.failures == {"1": Failure(FailureCode.FAILED, "agent 1: the loop broke")}


def test_a_number_of_examples_is_a_function() -> None:
    with pytest.raises(ConfigError, match=r"num_examples is 600, expected context -> int"):
        LoopParticipant("fed-plt", {"w": np.zeros(2)}, 600)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["dp-iadmm", "dp-fedsgd", "fed-lin"])
def test_algorithms_that_step_by_themselves_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} does its local steps itself"):
        participant(name)


def test_a_gradient_of_all_examples_cannot_be_supplied() -> None:
    with pytest.raises(ConfigError, match="five-gcs needs a gradient of all examples"):
        participant("five-gcs")


@pytest.mark.parametrize("name", ["scaffold", "led", "tamuna"])
def test_other_than_the_steps_that_bind_are_refused(name: str) -> None:
    with pytest.raises(RunError, match=rf"{name} needs exactly (\d) local steps.* took (?!\1)"):
        result(STRATEGIES[name](), loop_app(name, more=1), rounds=1)
    with pytest.raises(RunError, match=rf"{name} counts on \d plain .* 0.05, .* 5 times as far"):
        result(STRATEGIES[name](), loop_app(name, longer=5.0), rounds=1)
    near = result(STRATEGIES[name](), loop_app(name, longer=1.5), rounds=1)
    assert near.history[0].participants == ("0", "1", "2")


def test_steps_that_rounding_swallows_are_not_called_short() -> None:
    """At the optimum nothing of a step may be left, whose length then says nothing."""
    slope = np.full(2, 1e-4, np.float32)
    task = LocalTask(np.full(2, 1e3, np.float32), 0.05, 4, needs=("mean_gradient",))
    stuck = task.start[:1], task.start[1:]
    assert length(task, slope, stuck, float(np.finfo("f4").eps)) == 1.0
    assert length(task, slope, stuck, 0.0) == 0.0


def test_private_runs_and_nodes_with_a_budget_refuse(tmp_path: Path) -> None:
    private = FedPLT(
        num_agents=AGENTS,
        local_solver="noisy-gd",
        clip=1.0,
        smoothness=2.0,
        noise_variance=1.0,
        noise_seed=7,
    )
    with refused(Told.SETTING, "agent 0: a private run needs a problem that can clip"):
        result(private, loop_app("fed-plt"), rounds=1)
    budget = {"max-epsilon": 1.0, "delta": 1e-5}
    configs = [
        {"partition-id": i, "ledger-path": str(tmp_path / f"{i}.jsonl"), **budget}
        for i in range(AGENTS)
    ]
    strategy = FedPLT(num_agents=AGENTS, step_size=0.05)
    with pytest.raises(RunError, match="this node refuses to train without clipping"):
        strategy.start(
            InlineGrid(loop_app("fed-plt"), configs), initial_arrays(model()), num_rounds=1
        )


def test_a_run_with_noise_or_a_clip_is_refused() -> None:
    """The loop would drop them in silence: noise without a clip, a clip without noise."""
    noisy = FedPLT(num_agents=AGENTS, local_solver="noisy-gd", step_size=0.05, noise_variance=1.0)
    clipped = FedPLT(num_agents=AGENTS, local_solver="noisy-gd", step_size=0.05, clip=1.0)
    neither = Told.CLIP_AND_NOISE, "custom training loop needs a clip with its noise, or neither"
    unclipped = Told.WORK, "clip = 1: this problem cannot clip"
    for strategy, why in ((noisy, neither), (clipped, unclipped)):
        with refused(*why):
            result(strategy, loop_app("fed-plt"), rounds=1)
    with pytest.raises(
        RunError, match="custom training loop needs a clip with its noise, or neither"
    ):
        result(
            Scaffold(num_agents=AGENTS, step_size_base=0.05, noise_scale=1.0),
            loop_app("scaffold"),
            rounds=1,
        )


@pytest.mark.parametrize("config", [{"max-clip": 1.0}, {"max-clipp": 1.0}])
def test_a_private_node_answers_no_evaluation_and_the_question_in_one_line(
    config: dict[str, Any],
) -> None:
    app = participant("fed-plt").app()
    asked = []

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        asked.append(message)
        return Message(RecordDict(), reply_to=message)

    grid = InlineGrid(app, [{"agent": "me", **config}])
    node = next(iter(grid.online))
    (reply,) = grid.send_and_receive([Message(RecordDict(), node, "evaluate")])
    assert reply.has_error()
    assert not asked
    (reply,) = grid.send_and_receive([Message(RecordDict(), node, "query.privet")])
    assert reply.error.reason.count("agent me") == 1


def test_wrong_use_is_one_line() -> None:
    taking_part = participant("scaffold")
    said: list[str] = []
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        weights = model()
        with taking_part.round(message, context, weights) as local:
            for wrong in (
                local.reply,
                lambda: local.correct(model(), {}),
                lambda: local.correct(weights),
            ):
                with pytest.raises(ConfigError) as caught:
                    wrong()
                said.append(str(caught.value))
        return local.reply()

    strategy = Scaffold(num_agents=1, step_size_base=0.05)
    whole = (
        r"agents? 0[, 1-9]*: scaffold needs local steps, and this loop took none of the round's "
        r"model: has the agent fewer rows than a batch \(drop_last = True\), or did the optimizer "
        r"step another model\?"
    )
    with pytest.raises(RunError, match=whole):
        strategy.start(InlineGrid(app, 1), initial_arrays(model()), num_rounds=1)
    assert said == [
        "reply() belongs after the with block of the round",
        "correct() was given another model than the round: give it the module that the "
        "round was opened with, not one around it",
        "correct() was given no gradient of 'first'",
    ]
    for wrong, text in (
        ([1.0], "a mapping of arrays, found list"),
        ({}, "the mapping of arrays is empty"),
        ({"w": [1.0]}, "'w' of the mapping is list: numpy arrays of floats are trained"),
        ({"w": np.zeros(2, int)}, "'w' of the mapping is int64"),
    ):
        with pytest.raises(ConfigError, match=text):
            LoopParticipant("fed-plt", wrong, lambda context: 1)


@pytest.mark.parametrize(
    "gradient",
    [[1.0, 1.0], np.float64(1.0), np.ones(2, int), np.ones((3, 2)), np.broadcast_to(1.0, 2)],
    ids=["list", "scalar", "integers", "shape", "read-only"],
)
def test_a_gradient_that_cannot_be_changed_is_refused(gradient: Any) -> None:
    """Added to a list or a scalar the correction would be lost, and nobody told."""
    parameters = parameters_of({"w": np.zeros(2)})
    parameters.begin(LocalTask(np.zeros(2), 0.1, 1, shift=np.ones(2)), summed=False)
    with pytest.raises(ConfigError, match=r"'w' in place: .* writable .* of shape \(2,\)"):
        parameters.correct({"w": gradient})


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"rest": np.zeros(2), "first": np.zeros((2, 1))}, "has 'rest' of shape .* where 'first'"),
        ({"first": np.zeros((1, 2)), "rest": np.zeros(2)}, r"'first' of shape \(1, 2\) where"),
        ({"all": np.zeros(4)}, "1 trained parameters, the participant's 2, which differ in 'all'"),
    ],
    ids=["order", "shape", "number"],
)
def test_another_model_in_a_round_is_refused(found: dict[str, Any], text: str) -> None:
    taking_part = participant("fed-plt")
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        with taking_part.round(message, context, found) as local:
            pass
        return local.reply()

    with pytest.raises(RunError, match=text):
        result(FedPLT(num_agents=AGENTS), app, rounds=1)


def test_a_handler_that_returns_nothing_is_told() -> None:
    taking_part = participant("fed-plt")
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Any:
        with taking_part.round(message, context, model()):
            pass

    with pytest.raises(RunError, match=r"returned NoneType: return a message, .* local.reply\(\)"):
        result(FedPLT(num_agents=AGENTS), app, rounds=1)


def test_enrolment_says_what_the_loop_trains() -> None:
    grid = InlineGrid(loop_app("fed-plt"), AGENTS)
    with pytest.raises(RunError, match="4 parameters"):
        FedPLT(num_agents=AGENTS).begin(grid, initial_arrays({"x": np.zeros(7)}))


# ---------------------------------------------------------------- PyTorch


def module_app(dtype: str = "float32", amp: bool = False) -> Any:
    import torch

    kind = getattr(torch, dtype)

    def make() -> Any:
        return torch.nn.Linear(DIM, 1, bias=False, dtype=kind)

    taking_part = LoopParticipant("fed-plt", make, lambda context: ROWS)
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        problem, module = problem_of(context), make()
        inputs = torch.tensor(problem.features, dtype=kind)
        targets = torch.tensor(problem.targets, dtype=kind)
        with taking_part.round(message, context, module) as local:
            optimizer = torch.optim.SGD(module.parameters(), lr=local.step_size, weight_decay=0.1)
            for _ in range(local.steps):
                optimizer.zero_grad()
                ((module(inputs)[:, 0] - targets) ** 2).mean().backward()
                local.correct(module)
                optimizer.step()
        return local.reply()

    return app, make


@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-12), ("float32", 1e-5)])
def test_a_torch_loop_is_the_built_in_solver(dtype: str, error: float) -> None:
    pytest.importorskip("torch")
    app, make = module_app(dtype)
    own = STRATEGIES["fed-plt"]().start(
        InlineGrid(app, AGENTS), initial_arrays(zeroed(make())), num_rounds=6
    )
    built_in = result(STRATEGIES["fed-plt"](), client_app("fed-plt", problem_of))
    expected = vector({k: v.numpy() for k, v in built_in.arrays.items()})
    assert np.allclose(own.arrays["weight"].numpy()[0], expected, rtol=0, atol=error)


def test_the_hook_corrects_what_steps_on_the_model_and_nothing_else() -> None:
    torch = pytest.importorskip("torch")
    found = {}
    for hook in (False, True):
        taking_part = LoopParticipant("fed-plt", lambda: torch.nn.Linear(3, 1), lambda context: 5)
        app = taking_part.app()

        @app.train()
        def train(
            message: Message, context: Context, taking_part: Any = taking_part, hook: bool = hook
        ) -> Message:
            model, other = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
            optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, other)]
            for parameter in other.parameters():
                parameter.grad = torch.zeros_like(parameter)
            inputs = torch.arange(15.0).reshape(5, 3) / 15
            with taking_part.round(message, context, model, hook=hook) as local:
                for _ in range(4):
                    optimizers[0].zero_grad()
                    model(inputs).square().mean().backward()
                    if not hook:
                        local.correct(model)
                    for optimizer in optimizers:
                        optimizer.step()
            reply = local.reply()
            after = [each.detach().clone() for each in model.parameters()]
            optimizers[0].zero_grad()
            model(inputs).sum().backward()
            slopes = [each.grad.clone() for each in model.parameters()]
            optimizers[0].step()  # of the user's own, after the round
            for parameter, kept, slope in zip(model.parameters(), after, slopes, strict=True):
                assert torch.allclose(parameter, kept - 0.1 * slope)
                assert not torch.equal(parameter, kept)
            return reply

        torch.manual_seed(3)
        start = initial_arrays(torch.nn.Linear(3, 1))
        strategy = FedPLT(num_agents=2, rho=0.5, step_size=0.1)
        done = strategy.start(InlineGrid(app, 2), start, num_rounds=3)
        found[hook] = [array.numpy() for array in done.arrays.values()]
    for own, hooked in zip(found[False], found[True], strict=True):
        assert np.array_equal(own, hooked)


@pytest.mark.parametrize("way", ["correct", "hook", "fused"])
def test_scaled_gradients_are_corrected_once_they_are_unscaled(way: str) -> None:
    """The loss is scaled by 65,536, of which a correction of scaled gradients would vanish."""
    torch = pytest.importorskip("torch", reason="needs the group torch")
    taking_part = LoopParticipant("fed-dyn", lambda: torch.nn.Linear(3, 1), lambda context: 5)
    app = taking_part.app()
    inputs = torch.arange(15.0).reshape(5, 3) / 15

    def train(message: Message, context: Context, scaled: bool) -> Message:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=way == "fused")
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        target = float(context.node_config["partition-id"])
        with taking_part.round(message, context, model, hook=way != "correct") as local:
            for _ in range(4):
                optimizer.zero_grad()
                scaler.scale((model(inputs) - target).square().mean()).backward()
                if way == "correct":
                    scaler.unscale_(optimizer)
                    local.correct(model)
                scaler.step(optimizer)
                scaler.update()
        return local.reply()

    found = []
    for scaled in (False, True):
        app = taking_part.app()
        app.train()(partial(train, scaled=scaled))
        torch.manual_seed(3)
        start = initial_arrays(torch.nn.Linear(3, 1))
        strategy = FedDyn(num_agents=2, step_size_base=0.1, fed_dyn_alpha=0.5)
        if way == "fused" and scaled:
            with pytest.raises(RunError, match=r"call scaler.unscale_\(optimizer\) before"):
                strategy.start(InlineGrid(app, 2), start, num_rounds=3)
            return
        done = strategy.start(InlineGrid(app, 2), start, num_rounds=3)
        found.append(vector({key: each.numpy() for key, each in done.arrays.items()}))
    assert np.array_equal(*found)


def test_partial_fit_of_scikit_learn_is_a_loop() -> None:
    """What a call of it moved, over its step, is a gradient: one example is one SGD step."""
    strategy = STRATEGIES["fed-dyn"]
    taking_part = participant("fed-dyn")
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        problem, weights = problem_of(context), model()
        estimator = SGDRegressor(
            alpha=0.0, fit_intercept=False, learning_rate="constant", eta0=0.05
        )
        with taking_part.round(message, context, weights) as local:
            for row in range(local.steps):
                before = vector(weights)
                estimator.coef_, estimator.intercept_ = before.copy(), np.zeros(1)
                estimator.partial_fit(problem.features[[row]], problem.targets[[row]])
                slope = (before - estimator.coef_) / estimator.eta0
                slopes = {"first": slope[:2].reshape(2, 1), "rest": slope[2:]}
                local.correct(weights, slopes)
                for key, part in slopes.items():
                    weights[key] = weights[key] - estimator.eta0 * part
        return local.reply()

    @(plain := taking_part.app()).train()
    def by_hand(message: Message, context: Context) -> Message:
        problem, weights = problem_of(context), model()
        with taking_part.round(message, context, weights) as local:
            for row in range(local.steps):
                features = problem.features[row]
                slope = (features @ vector(weights) - problem.targets[row]) * features
                slopes = {"first": slope[:2].reshape(2, 1), "rest": slope[2:]}
                local.correct(weights, slopes)
                for key, part in slopes.items():
                    weights[key] = weights[key] - 0.05 * part
        return local.reply()

    fitted, expected = result(strategy(), app), result(strategy(), plain)
    for key, array in expected.arrays.items():
        assert np.allclose(fitted.arrays[key].numpy(), array.numpy(), rtol=0, atol=1e-12)
        assert np.abs(array.numpy()).max() > 0.01


def test_a_mapping_of_arrays_has_no_hook() -> None:
    taking_part = participant("fed-plt")
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        with taking_part.round(message, context, model(), hook=True) as local:
            pass
        return local.reply()

    with pytest.raises(RunError, match="hook = True corrects the gradients of a"):
        result(FedPLT(num_agents=AGENTS, step_size=0.05), app, rounds=1)


def test_half_precision_travels_as_float32() -> None:
    pytest.importorskip("torch")
    app, make = module_app("bfloat16")
    arrays = initial_arrays(zeroed(make()))
    assert arrays["weight"].dtype == "float32"
    found = STRATEGIES["fed-plt"]().start(InlineGrid(app, AGENTS), arrays, num_rounds=2)
    assert found.arrays["weight"].dtype == "float32"
    assert np.isfinite(found.arrays["weight"].numpy()).all()


def zeroed(module: Any) -> Any:
    for parameter in module.parameters():
        parameter.detach().zero_()
    return module


def test_frozen_parameters_stay_and_unused_ones_get_the_correction() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.ModuleDict(
        {"body": torch.nn.Linear(2, 2, bias=False), "head": torch.nn.Linear(2, 1, bias=False)}
    )
    module["body"].weight.requires_grad_(False)
    assert list(initial_arrays(module)) == ["head.weight"]
    before = module["body"].weight.clone()
    taking_part = LoopParticipant("fed-plt", lambda: module, lambda context: 3)
    app = taking_part.app()
    slopes = []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        with taking_part.round(message, context, module) as local:
            module["head"].weight.grad = None
            module["head"].weight.data += 1.0
            local.correct(module)
            slopes.append(module["head"].weight.grad.clone())
        return local.reply()

    strategy = FedPLT(num_agents=1, rho=0.5, step_size=0.25)
    strategy.start(InlineGrid(app, 1), initial_arrays(module), num_rounds=1)
    assert torch.equal(module["body"].weight, before)
    # w - center = 1 beside a penalty of 1 / rho = 2
    assert torch.allclose(slopes[0], torch.full((1, 2), 2.0))


def test_a_wrapped_module_is_the_same_model_and_a_sparse_gradient_is_filled() -> None:
    torch = pytest.importorskip("torch")
    table = torch.nn.Embedding(3, 2, sparse=True)
    assert initial_arrays(table)["weight"].numpy().shape == (3, 2)
    wrapped = torch.nn.ModuleDict({"module": table})
    require_same(parameters_of(wrapped).layout(), parameters_of(table).layout())
    parameters = parameters_of(wrapped)
    task = LocalTask(np.zeros(6, np.float32), 0.1, 1, shift=np.ones(6, np.float32))
    parameters.begin(task, summed=True)
    table(torch.tensor([1])).sum().backward()
    parameters.correct(None)
    assert table.weight.grad.tolist() == [[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]]
    assert np.array_equal(parameters.mean(1), [0, 0, 1, 1, 0, 0])
    with pytest.raises(ConfigError, match=r"a module holds its gradients: call correct\(module\)"):
        parameters.correct({"module.weight": table.weight.grad})


def test_a_layout_needs_no_numbers() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 2, device="meta")
    LoopParticipant("fed-plt", module, lambda context: 1)
    assert parameters_of(module).layout() == Layout.of(initial_arrays(torch.nn.Linear(3, 2)))
    half = torch.nn.Linear(3, 2, dtype=torch.bfloat16)
    assert parameters_of(half).layout() == Layout.of(initial_arrays(half))


def test_messages_of_another_kind_are_left_to_the_app() -> None:
    """An evaluation is the user's own, and what it raises is one line too."""
    taking_part = participant("fed-plt")
    app = taking_part.app()

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        raise ValueError("no\nmodel")

    grid = InlineGrid(app, 1)
    message = Message(RecordDict({"config": ConfigRecord()}), next(iter(grid.online)), "evaluate")
    (reply,) = grid.send_and_receive([message])
    assert reply.error.reason == "agent 0: no model"


def test_what_flowers_messages_have_and_these_lack_is_named() -> None:
    def app_of(line: Callable[[Message], Any]) -> Any:
        taking_part = participant("fed-plt")
        app = taking_part.app()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            line(message)
            raise AssertionError("unreachable")

        return app

    for line, said in (
        (
            lambda message: message.content["arrays"],
            r"has no 'arrays': participant.round\(\.\.\.\)",
        ),
        (
            lambda message: message.content["config"]["lr"],
            r"has no 'config': give strategy.start\(..., train_config=...\)",
        ),
        (lambda message: {}["rows"], r"KeyError: 'rows'"),
    ):
        with pytest.raises(RunError, match=said):
            result(STRATEGIES["fed-plt"](), app_of(line), rounds=1)


def reading(seen: list[tuple[int, dict[str, Any]]], key: str = "config") -> Any:
    """Return an app of a loop that notes the config of each training message, if there is one."""
    taking_part = participant("fed-plt")
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        problem, weights = problem_of(context), model()
        with taking_part.round(message, context, weights) as local:
            found = message.content.config_records.get(key, ConfigRecord())
            seen.append((int(context.node_config["partition-id"]), dict(found)))
            slope = problem.gradient(vector(weights))
            slopes = {"first": slope[:2].reshape(2, 1).copy(), "rest": slope[2:].copy()}
            local.correct(weights, slopes)
            for name, part in slopes.items():
                weights[name] = weights[name] - 0.05 * part
        return local.reply()

    return app


@pytest.mark.parametrize("key", ["config", "mine"])
@pytest.mark.parametrize("name", ["fed-plt", "asynchronous"])
def test_a_train_config_reaches_the_handlers_of_every_round(name: str, key: str) -> None:
    seen: list[tuple[int, dict[str, Any]]] = []
    options: dict[str, Any] = {"asynchronous": True, "buffer": 2} if name == "asynchronous" else {}
    strategy = FedPLT(num_agents=AGENTS, rho=2.0, configrecord_key=key, **options)
    grid, config = InlineGrid(reading(seen, key), AGENTS), ConfigRecord({"lr": 0.1, "epochs": 2})
    found = strategy.start(grid, initial_arrays(model()), num_rounds=3, train_config=config)
    assert not any(done.failures for done in found.history)
    assert {agent for agent, _ in seen} == set(range(AGENTS))
    assert all(each["lr"] == 0.1 and each["epochs"] == 2 for _, each in seen)
    assert {each["server-round"] for _, each in seen} >= {1, 2, 3}
    assert dict(config) == {"lr": 0.1, "epochs": 2}  # as it was given


def test_without_a_train_config_messages_are_as_they_were() -> None:
    seen: list[tuple[int, dict[str, Any]]] = []
    with_one: list[tuple[int, dict[str, Any]]] = []
    results = [
        FedPLT(num_agents=AGENTS, rho=2.0).start(
            InlineGrid(reading(noted), AGENTS),
            initial_arrays(model()),
            num_rounds=2,
            train_config=config,
        )
        for noted, config in ((seen, None), (with_one, ConfigRecord({"lr": 0.1})))
    ]
    assert [each for _, each in seen] == [{}] * (2 * AGENTS)
    assert len(with_one) == 2 * AGENTS
    for name, array in results[0].arrays.items():  # the algorithm does not read it
        assert np.array_equal(array.numpy(), results[1].arrays[name].numpy())


def test_a_strategy_may_change_the_config_from_round_to_round() -> None:
    class Decaying(FedPLT):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> list[Message]:
            decayed = ConfigRecord({"lr": float(config["lr"]) / server_round})  # type: ignore[arg-type]
            return super().configure_train(server_round, arrays, decayed, grid)

    seen: list[tuple[int, dict[str, Any]]] = []
    Decaying(num_agents=AGENTS, rho=2.0).start(
        InlineGrid(reading(seen), AGENTS),
        initial_arrays(model()),
        num_rounds=2,
        train_config=ConfigRecord({"lr": 0.1}),
    )
    rates = {each["server-round"]: each["lr"] for _, each in seen}
    assert rates == {1: 0.1, 2: 0.05}


def test_a_record_of_privets_own_is_no_place_for_a_config() -> None:
    with pytest.raises(ConfigError, match="configrecord-key = 'privet'"):
        FedPLT(configrecord_key="privet")
