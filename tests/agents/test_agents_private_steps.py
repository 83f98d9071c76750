"""Charged steps in a training loop of one's own: the built-in solvers' iterates, and the guard."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, MetricRecord

from privet.agents.loop.private_steps import summed, warn_once
from privet.client_apps import LoopParticipant, TorchProblem, client_app, initial_arrays
from privet.core import ConfigError, RunError
from privet.kernel import Told, clipped_sensitivity
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn, FedPLT, PrimalDualStrategy, Scaffold
from support.told import refused

torch = pytest.importorskip("torch", reason="needs the group torch")

AGENTS, ROWS = 3, 40
GRADIENTS = {
    "num_agents": AGENTS,
    "clip": 0.5,
    "noise_scale": 0.02,
    "step_size_base": 0.3,
    "step_size_rule": "constant",
    "max_local_steps": 3,
}
STRATEGIES: dict[str, Callable[..., PrimalDualStrategy]] = {
    "fed-dyn": lambda **more: FedDyn(**{**GRADIENTS, **more}),
    "scaffold": lambda **more: Scaffold(**{**GRADIENTS, **more}),
    "fed-plt": lambda **more: FedPLT(
        num_agents=AGENTS,
        rho=2.0,
        local_solver="noisy-gd",
        step_size=0.3,
        local_epochs=3,
        clip=0.5,
        noise_variance=1e-3,
        **more,
    ),
}


def network(dtype: Any = torch.float64) -> Any:
    torch.manual_seed(5)
    made = torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 4, 4)),
        torch.nn.Conv2d(1, 3, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(12, 3),
    )
    return made.to(dtype)


def data(agent: int, dtype: Any = torch.float64) -> Any:
    generator = torch.Generator().manual_seed(agent)
    inputs = torch.randn(ROWS, 16, generator=generator, dtype=dtype)
    return inputs, (inputs[:, :3] * 2.0).argmax(1)


def loss(model: Any, batch: Any) -> Any:
    inputs, targets = batch
    return torch.nn.functional.cross_entropy(model(inputs), targets)


def taking_part(
    name: str,
    loop: Callable[[Any, Any, Any], dict[str, float] | None],
    make: Any = network,
    buffers: str = "constant",
) -> Any:
    """Return an app whose round is ``loop(local, model, batch)``."""
    participant = LoopParticipant(name, make, lambda context: ROWS, buffers=buffers)
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = make()
        with participant.round(message, context, model) as local:
            metrics = loop(local, model, data(int(context.node_config["partition-id"])))
        return local.reply(metrics)

    return app


def all_steps(local: Any, model: Any, batch: Any) -> None:
    for _ in range(local.steps):
        local.private_step(loss, batch)


def play(strategy: PrimalDualStrategy, app: Any, rounds: int = 3, nodes: Any = AGENTS) -> Any:
    return strategy.start(InlineGrid(app, nodes), initial_arrays(network()), num_rounds=rounds)


def problem(context: Context) -> TorchProblem:
    cross_entropy = torch.nn.functional.cross_entropy
    return TorchProblem(network(), cross_entropy, data(int(context.node_config["partition-id"])))


@pytest.mark.parametrize("name", STRATEGIES)
def test_private_steps_are_the_built_in_solver_and_cost_the_same(name: str) -> None:
    built_in = play(STRATEGIES[name](noise_seed=3), client_app(name, problem))
    own = play(STRATEGIES[name](noise_seed=3), taking_part(name, all_steps))
    for key, array in built_in.arrays.items():
        assert np.abs(array.numpy() - initial_arrays(network())[key].numpy()).max() > 1e-3
        assert np.allclose(own.arrays[key].numpy(), array.numpy(), rtol=0, atol=1e-9)
    charged = [
        play(STRATEGIES[name](), app).history[-1].epsilon
        for app in (client_app(name, problem), taking_part(name, all_steps))
    ]
    assert 0 < charged[0] == charged[1] < np.inf


def test_a_target_is_met_and_a_node_with_a_budget_takes_part_until_it_is_spent(
    tmp_path: Path,
) -> None:
    app = taking_part("fed-dyn", all_steps)
    aimed = play(STRATEGIES["fed-dyn"](target_epsilon=4.0), app)
    assert aimed.history[-1].epsilon == pytest.approx(4.0, rel=1e-3)
    budget = {"max-epsilon": 4.0, "delta": 1e-5}
    nodes = [
        {"partition-id": i, "ledger-path": str(tmp_path / f"{i}.jsonl"), **budget}
        for i in range(AGENTS)
    ]
    spent = play(STRATEGIES["fed-dyn"](target_epsilon=3.9), app, nodes=nodes)
    assert not any(done.failures for done in spent.history)
    with pytest.raises(RunError, match="max-epsilon"):
        play(STRATEGIES["fed-dyn"](target_epsilon=3.9), app, nodes=nodes)


def test_an_optimizer_takes_the_step_with_the_noised_gradient() -> None:
    seen = []

    def loop(local: Any, model: Any, batch: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        for _ in range(local.steps):
            local.private_step(loss, batch, optimizer)
        seen.append(next(iter(optimizer.state.values()))["momentum_buffer"])

    done = play(STRATEGIES["fed-dyn"](), taking_part("fed-dyn", loop), rounds=1)
    assert not done.history[0].failures
    assert all(float(buffer.abs().sum()) > 0 for buffer in seen)


def moved(local: Any, model: Any, batch: Any) -> None:
    all_steps(local, model, batch)
    with torch.no_grad():
        model[1].bias[0] += 1e-12


def moved_between(local: Any, model: Any, batch: Any) -> None:
    local.private_step(loss, batch)
    loss(model, batch).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    local.private_step(loss, batch)


def one_short(local: Any, model: Any, batch: Any) -> None:
    for _ in range(local.steps - 1):
        local.private_step(loss, batch)


def one_more(local: Any, model: Any, batch: Any) -> None:
    all_steps(local, model, batch)
    local.private_step(loss, batch)


def corrected(local: Any, model: Any, batch: Any) -> None:
    loss(model, batch).backward()
    local.correct(model)


def with_metrics(local: Any, model: Any, batch: Any) -> dict[str, float]:
    all_steps(local, model, batch)
    return {"loss": 1.0}


def larger(local: Any, model: Any, batch: Any) -> None:
    local.private_step(loss, [torch.cat([part, part]) for part in batch])


def uneven(local: Any, model: Any, batch: Any) -> None:
    local.private_step(loss, (batch[0], batch[1][:5]))


def scalar(local: Any, model: Any, batch: Any) -> None:
    local.private_step(loss, {"inputs": batch[0], "weight": torch.tensor(1.0)})


def text(local: Any, model: Any, batch: Any) -> None:
    local.private_step(loss, "rows")


@pytest.mark.parametrize(
    ("loop", "told", "line"),
    [
        (moved, Told.MOVED, "the model was changed outside of private_step"),
        (moved_between, Told.MOVED, "the model was changed outside of private_step"),
        (one_short, Told.STEPS, "takes exactly 3 private steps, this loop took 2"),
        (one_more, Told.DRAWS, "more than the 3 draws that were charged"),
        (corrected, Told.PRIVATE_STEP, r"steps with private_step\(\), not with correct"),
        (with_metrics, Told.METRICS, r"reply\(metrics=...\) of a private agent"),
        (larger, Told.BATCH, r"a batch of 1 to 40 examples, .* found \[80\]"),
        (uneven, Told.BATCH, r"found \[5, 40\]"),
        (scalar, Told.TENSORS, "no dimension of examples"),
        (text, Told.TENSORS, "a tensor, or a tuple, list or mapping of tensors, .* found str"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_no_charge_covers_does_not_leave(loop: Any, told: Told, line: str) -> None:
    with refused(told, line):
        play(STRATEGIES["fed-dyn"](), taking_part("fed-dyn", loop), rounds=1)


def test_a_run_without_noise_has_no_private_steps() -> None:
    with pytest.raises(RunError, match="needs a run with noise and a clip"):
        play(FedDyn(num_agents=AGENTS), taking_part("fed-dyn", all_steps), rounds=1)


def opacus_pair(model: Any) -> tuple[Any, Any]:
    """Return a module and an optimizer of Opacus around a model."""
    grad_sample = pytest.importorskip("opacus.grad_sample", reason="needs the group torch")
    optimizers = pytest.importorskip("opacus.optimizers", reason="needs the group torch")
    wrapped = grad_sample.GradSampleModule(model)
    plain = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    settings = {"noise_multiplier": 0.5, "max_grad_norm": 1.0, "expected_batch_size": ROWS}
    return wrapped, optimizers.DPOptimizer(plain, **settings)


@pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning")
def test_noise_of_opacus_counts_as_none(tmp_path: Path) -> None:
    """Its gradients take the correction in the optimizer's hook, or the loop is told to."""
    participant = LoopParticipant("fed-dyn", network, lambda context: ROWS)
    hooked, corrections = participant.app(), []

    @hooked.train()
    def train(message: Message, context: Context) -> Message:
        model, optimizer = opacus_pair(network())
        with participant.round(message, context, model) as local:

            def correct(_: Any) -> None:
                noised = model._module[1].bias.grad.clone()
                local.correct(model)
                corrections.append(float((model._module[1].bias.grad - noised).abs().sum()))

            optimizer.attach_step_hook(correct)
            for _ in range(local.steps):
                optimizer.zero_grad()
                loss(model, data(int(context.node_config["partition-id"]))).backward()
                if not hooked_only:
                    local.correct(model)
                optimizer.step()
        return local.reply()

    hooked_only = True
    done = play(FedDyn(num_agents=AGENTS, max_local_steps=2), hooked, rounds=2)
    assert not any(each.failures for each in done.history)
    assert done.history[-1].epsilon == np.inf
    assert len(corrections) == 2 * 2 * AGENTS
    assert min(corrections[-AGENTS:]) > 0
    nodes = [
        {
            "partition-id": i,
            "ledger-path": str(tmp_path / f"{i}"),
            "max-epsilon": 9.0,
            "delta": 1e-5,
        }
        for i in range(AGENTS)
    ]
    with pytest.raises(RunError, match="refuses to train without clipping"):
        play(FedDyn(num_agents=AGENTS, max_local_steps=2), hooked, rounds=1, nodes=nodes)
    hooked_only = False
    with pytest.raises(RunError, match=r"rewrites \.grad in its step"):
        play(FedDyn(num_agents=AGENTS, max_local_steps=2), hooked, rounds=1)


def test_a_private_round_takes_nothing_of_opacus() -> None:
    def optimizer(local: Any, model: Any, batch: Any) -> None:
        local.private_step(loss, batch, opacus_pair(model)[1])

    with refused(Told.OPACUS, "DPOptimizer of Opacus in a private round"):
        play(STRATEGIES["fed-dyn"](), taking_part("fed-dyn", optimizer), rounds=1)
    wrapped = taking_part("fed-dyn", all_steps, lambda: opacus_pair(network())[0])
    with refused(Told.OPACUS, "GradSampleModule of Opacus in a private round"):
        play(STRATEGIES["fed-dyn"](), wrapped, rounds=1)


def test_a_private_round_has_no_hook() -> None:
    participant = LoopParticipant("fed-dyn", network, lambda context: ROWS)
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = network()
        with participant.round(message, context, model, hook=True) as local:
            all_steps(local, model, data(0))
        return local.reply()

    with pytest.raises(RunError, match="hook = True is not for private rounds"):
        play(STRATEGIES["fed-dyn"](), app, rounds=1)


def test_a_batch_is_divided_by_the_size_that_was_charged() -> None:
    """Fewer examples than the batch size weigh less, more are refused."""
    settings = {"noise_scale": 1e-6, "max_local_steps": 1, "batch": "sample", "batch_size": 8}
    start = initial_arrays(network())
    steps = {}
    for taken in (4, 8):

        def loop(local: Any, model: Any, batch: Any, taken: int = taken) -> None:
            rows = [part[:1].expand(taken, *part.shape[1:]) for part in batch]
            local.private_step(loss, rows)

        strategy = Scaffold(**{**GRADIENTS, **settings})
        found = play(strategy, taking_part("scaffold", loop), rounds=1)
        steps[taken] = found.arrays["4.bias"].numpy() - start["4.bias"].numpy()
    assert np.allclose(2.0 * steps[4], steps[8], rtol=0, atol=1e-5)
    assert np.abs(steps[8]).max() > 0.01


def test_layers_that_mix_examples_are_refused_unless_they_are_constant() -> None:
    def normalised() -> Any:
        return torch.nn.Sequential(torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3)).double()

    def constant(local: Any, model: Any, batch: Any) -> None:
        model.eval()
        all_steps(local, model, batch)

    for loop, line in ((all_steps, "BatchNorm mixes the examples"), (constant, None)):
        strategy = STRATEGIES["fed-dyn"]()
        grid = InlineGrid(taking_part("fed-dyn", loop, normalised), AGENTS)
        if line:
            with pytest.raises(RunError, match=line):
                strategy.start(grid, initial_arrays(normalised()), num_rounds=1)
        else:
            done = strategy.start(grid, initial_arrays(normalised()), num_rounds=1)
            assert not done.history[0].failures


def test_dropout_and_batches_by_name_and_half_precision_work() -> None:
    def half() -> Any:
        made = network(torch.bfloat16)
        return torch.nn.Sequential(torch.nn.Dropout(0.5), made)

    def named(model: Any, batch: Any) -> Any:
        return loss(model, (batch["x"], batch["rest"][0]))

    def loop(local: Any, model: Any, batch: Any) -> None:
        for _ in range(local.steps):
            local.private_step(named, {"x": batch[0].bfloat16(), "rest": [batch[1]]})

    grid = InlineGrid(taking_part("fed-dyn", loop, half), AGENTS)
    done = STRATEGIES["fed-dyn"]().start(grid, initial_arrays(half()), num_rounds=2)
    assert not any(each.failures for each in done.history)
    assert 0 < done.history[-1].epsilon < np.inf


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 50.0])
def test_one_example_moves_the_sum_by_no_more_than_its_sensitivity(dtype: str, clip: float) -> None:
    """Also one whose gradient overflows, or is no number."""
    kind = getattr(torch, dtype)
    inputs, targets = data(1, kind)
    sums = []
    extremes = (None, 1e4, 1e30, torch.finfo(kind).max, float("inf"), float("nan"), -1e4)
    for extreme in extremes:
        replaced = inputs.clone()
        if extreme is not None:
            replaced[7] = extreme
        problem = TorchProblem(
            network(kind), torch.nn.functional.cross_entropy, (replaced, targets)
        )
        start = np.concatenate([p.detach().numpy().ravel() for p in network(kind).parameters()])
        sums.append(problem.clipped_term(start, clip)[0])
    bound = clipped_sensitivity(clip, divisor=ROWS, num_examples=ROWS, dtype=dtype)
    distances = [np.linalg.norm(one - other) for one, other in itertools.combinations(sums, 2)]
    assert all(np.isfinite(each).all() for each in sums)
    assert max(distances) <= bound
    assert max(distances) > 0.5 * bound or clip == 50.0


def test_reduced_precision_of_products_leaves_the_clip_alone() -> None:
    """bfloat16 products, as autocast and the "medium" precision make them, err by 2^-9."""
    from privet.agents.adapters.networks.shares import Dense, clipped_sum

    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(2000, generator=generator)
    gradients = direction.expand(128, -1) * torch.linspace(1, 3, 128)[:, None]
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            shares = [Dense("a", gradients[:, :900]), Dense("b", gradients[:, 900:])]
            found = clipped_sum(shares, {"a": 900, "b": 1100}, 0.3)
    finally:
        torch.set_float32_matmul_precision("highest")
    exact = 0.3 * 128 * direction.double() / torch.linalg.vector_norm(direction.double())
    assert float(torch.linalg.vector_norm(found - exact)) < 1e-5


def test_a_loss_that_moves_the_model_does_not_leave() -> None:
    def loop(local: Any, model: Any, batch: Any) -> None:
        view, shift = model[1].bias.detach().numpy(), float(batch[0].mean())

        def moving(model: Any, one: Any) -> Any:
            view[0] += shift
            return loss(model, one)

        for _ in range(local.steps):
            local.private_step(moving, batch)

    with pytest.raises(RunError, match="the model was changed outside of private_step"):
        play(STRATEGIES["fed-dyn"](), taking_part("fed-dyn", loop), rounds=1)


def test_a_private_reply_takes_nothing_that_was_put_in_afterwards() -> None:
    participant = LoopParticipant("fed-dyn", network, lambda context: ROWS)
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = network()
        with participant.round(message, context, model) as local:
            if private:
                all_steps(local, model, data(0))
            else:
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
                local.correct(model)
        reply = local.reply()
        reply.content["metrics"] = MetricRecord({"num-examples": ROWS, "loss": 0.5})
        return reply

    private = False
    free = play(FedDyn(num_agents=AGENTS), app, rounds=1)
    assert not free.history[0].failures
    private = True
    with pytest.raises(RunError, match="a private agent sends what local"):
        play(STRATEGIES["fed-dyn"](), app, rounds=1)


def test_what_a_private_handler_says_of_its_failure_stays_with_the_agent() -> None:
    app = LoopParticipant("fed-dyn", network, lambda context: ROWS).app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(Error(0, "row 7: Ada, 1815"), reply_to=message)

    with pytest.raises(RunError, match="Ada"):
        play(FedDyn(num_agents=AGENTS), app, rounds=1)
    with refused(Told.WORK, "row 7: Ada, 1815"):
        play(STRATEGIES["fed-dyn"](), app, rounds=1)


# ------------------------------------------------------------------ sampled records

SAMPLED = {"batch": "poisson", "batch_size": 10, "relation": "add-remove"}
DECLARED = [
    {"partition-id": i, "num-partitions": AGENTS, "relation": "add-remove", "num-examples": ROWS}
    for i in range(AGENTS)
]


@pytest.mark.parametrize("name", ["fed-dyn", "scaffold"])
def test_sampled_private_steps_are_the_built_in_solver_and_cost_less(name: str) -> None:
    """With a seed the coins are the same, and so are the steps but for the order of the sums."""
    apps = client_app(name, problem), taking_part(name, all_steps)
    built_in, own = (
        play(STRATEGIES[name](noise_seed=3, **SAMPLED), app, nodes=DECLARED) for app in apps
    )
    for key, array in built_in.arrays.items():
        assert np.abs(array.numpy() - initial_arrays(network())[key].numpy()).max() > 1e-3
        assert np.allclose(own.arrays[key].numpy(), array.numpy(), rtol=0, atol=1e-9)
    charged = [
        play(STRATEGIES[name](**SAMPLED), app, nodes=DECLARED).history[-1].epsilon for app in apps
    ]
    assert 0 < charged[0] == charged[1] < np.inf
    fixed = {**SAMPLED, "batch": "sample", "relation": "replace-one"}
    whole = play(STRATEGIES[name](**fixed), apps[0]).history[-1].epsilon
    assert charged[0] < whole


def test_a_step_holds_as_many_records_as_coins_fall_and_tells_nobody() -> None:
    counts: list[int] = []

    def loop(local: Any, model: Any, batch: Any) -> None:
        before = summed.calls
        for _ in range(local.steps):
            local.private_step(loss, batch)
        counts.extend(summed.calls[len(before) :])

    from privet.agents.loop import private_steps

    class Recorder:
        """What a step sums over, seen from outside."""

        def __init__(self) -> None:
            self.calls: list[int] = []
            self.whole = private_steps.summed

        def __call__(self, *arguments: Any, kept: Any = None, expected: int = 1) -> Any:
            if kept is not None:
                self.calls = [*self.calls, int(kept.sum())]
            return self.whole(*arguments, kept=kept, expected=expected)

    summed = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private_steps, "summed", summed)
        result = play(
            STRATEGIES["fed-dyn"](**SAMPLED), taking_part("fed-dyn", loop), 8, nodes=DECLARED
        )
    # 72 binomial numbers of mean 10 and deviation 2.7: all alike have no chance.
    assert len(counts) == 72
    assert len(set(counts)) > 3
    assert abs(np.mean(counts) - 10) < 6 * 2.74 / np.sqrt(72)
    assert not any(done.failures for done in result.history)


def test_a_sampled_step_refuses_another_data_set_and_random_layers() -> None:
    def smaller(local: Any, model: Any, batch: Any) -> None:
        local.private_step(loss, batch)
        local.private_step(loss, (batch[0][:20], batch[1][:20]))

    def dropping() -> Any:
        return torch.nn.Sequential(torch.nn.Dropout(0.5), *network())

    for loop, make in ((smaller, network), (all_steps, dropping)):
        with pytest.raises(RunError):
            play(
                STRATEGIES["fed-dyn"](**SAMPLED), taking_part("fed-dyn", loop, make), nodes=DECLARED
            )


@pytest.mark.parametrize("whole", [True, False])
def test_a_sampled_step_of_fewer_rows_than_declared_is_said_once(
    whole: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not refused: a record that is not there must not be seen by the server."""
    warn_once.cache_clear()

    def loop(local: Any, model: Any, batch: Any) -> None:
        all_steps(local, model, batch if whole else tuple(part[:10] for part in batch))

    result = play(STRATEGIES["fed-dyn"](**SAMPLED), taking_part("fed-dyn", loop), nodes=DECLARED)
    assert not any(done.failures for done in result.history)
    line = f"a private step was given 10 examples, num-examples is {ROWS}"
    assert caplog.text.count(line) == (not whole)


RNG = np.random.default_rng(0)


def draw() -> float:
    return float(RNG.random())


@pytest.mark.parametrize("kind", ["numpy", "python", "held", "named", "closure", "class", "module"])
def test_a_loss_that_draws_or_counts_is_refused_where_records_are_sampled(kind: str) -> None:
    """The coin of one record moves others to another call: their numbers must not depend on it."""
    counts, held = {"calls": 0}, np.random.default_rng(0)

    class Counting:
        calls = 0

        def factor(self) -> float:
            type(self).calls += 1
            return 1.0 + self.calls % 2

    class Growing(torch.nn.Sequential):  # type: ignore[misc]
        steps = 0

        def forward(self, x: Any) -> Any:
            self.steps += 1
            return super().forward(x) * self.steps

    counting = Counting()

    def closure() -> float:
        counts["calls"] += 1
        return float(counts["calls"])

    factors: dict[str, Callable[[], float]] = {
        "numpy": np.random.random,
        "python": random.random,
        "held": held.random,
        "named": draw,
        "closure": closure,
        "class": counting.factor,
        "module": lambda: 1.0,
    }
    factor = factors[kind]

    def drawing(model: Any, batch: Any) -> Any:
        return factor() * loss(model, batch)

    model = Growing(*network()) if kind == "module" else network()
    rows, build = list(data(0)), tuple
    arguments = model, dict(model.named_parameters()), drawing, rows, build, 0.5
    kept = np.arange(ROWS) % 2 == 0
    summed(*arguments)  # every record has its place then
    with pytest.raises(ConfigError, match=r"batch = 'poisson': .* change what the others add"):
        summed(*arguments, kept=kept, expected=4)


def test_what_a_loss_keeps_from_its_first_call_on_may_stay() -> None:
    cache: dict[str, float] = {}

    def caching(model: Any, batch: Any) -> Any:
        cache.setdefault("factor", 2.0)
        return loss(model, batch) * cache["factor"]

    model, kept = network(), np.arange(ROWS) % 2 == 0
    arguments = dict(model.named_parameters()), caching, list(data(0)), tuple, 50.0
    sampled, _ = summed(model, *arguments, kept=kept, expected=4)
    halves = [part[kept] for part in data(0)]
    alone, _ = summed(model, *arguments[:2], halves, tuple, 50.0)
    assert np.allclose(sampled, alone, rtol=0, atol=1e-12)


class Sequences(torch.nn.Module):
    """A recurrent layer over four steps of four numbers, and a linear one on its last output."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.body, self.cell = getattr(torch.nn, kind)(4, 5, **options), "Cell" in kind
        self.head = torch.nn.LazyLinear(3)
        self.double()(data(0)[0])

    def forward(self, x: Any) -> Any:
        steps = x.unflatten(1, (4, 4))
        if self.cell:
            state = None
            for step in steps.unbind(1):
                state = self.body(step, state)
            return self.head(state)
        if self.body.batch_first:
            return self.head(self.body(steps)[0][:, -1])
        return self.head(self.body(steps.transpose(0, 1))[0][-1])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("GRU", {"batch_first": True}),
        ("GRU", {"num_layers": 2, "bidirectional": True}),
        ("RNN", {"batch_first": True}),
        ("RNN", {"nonlinearity": "relu", "bias": False}),
        ("LSTM", {"batch_first": True}),
        ("GRUCell", {}),
        ("RNNCell", {}),
        ("RNNCell", {"nonlinearity": "relu"}),
    ],
)
def test_recurrent_layers_are_clipped_example_by_example(kind: str, options: Any) -> None:
    """Against one backward pass after the other, of all examples and of some."""
    torch.manual_seed(3)
    model, rows, clip = Sequences(kind, **options), list(data(0)), 0.4
    trained = dict(model.named_parameters())
    parts, kept = [], np.arange(ROWS) % 3 > 0
    for example in zip(*rows, strict=True):
        model.zero_grad()
        loss(model, [part[None] for part in example]).backward()
        gradient = torch.cat([each.grad.flatten() for each in trained.values()])
        parts.append(gradient * min(1.0, clip / float(gradient.norm())))
    each = torch.stack(parts)
    assert 0 < int((each.norm(dim=1) > 0.999 * clip).sum()) <= ROWS
    found, _ = summed(model, trained, loss, rows, tuple, clip)
    some, _ = summed(model, trained, loss, rows, tuple, clip, kept=kept, expected=8)
    assert np.allclose(found, each.sum(0), rtol=0, atol=1e-12)
    assert np.allclose(some, each[torch.from_numpy(kept)].sum(0), rtol=0, atol=1e-12)


def test_a_record_in_float32_leaves_the_others_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever others take part, what an example adds is the same: sums differ by it alone."""
    from privet.agents.adapters.networks import clipping

    model = network(torch.float32)
    inputs, targets = data(0, torch.float32)

    def one(parameters: Any, example: Any) -> Any:
        row, target = example
        out = torch.func.functional_call(model, parameters, (1e4 * row[None],))
        return torch.nn.functional.cross_entropy(out, target[None])

    named = {name: value.detach() for name, value in model.named_parameters()}
    rng = np.random.default_rng(0)
    take = partial(clipping.clipped_gradients, one, named, (inputs, targets), 0.5)
    for width in (1, 4, 8):
        monkeypatch.setattr(clipping, "batch_width", lambda *public, width=width: width)
        alone = None
        for _ in range(5):
            kept = rng.random(ROWS) < 0.4
            kept[7] = False
            without, kept_too = kept.copy(), kept.copy()
            kept_too[7] = True
            gap = (take(kept=kept_too) - take(kept=without)).numpy()
            alone = gap if alone is None else alone
            assert np.abs(gap - alone).max() < 1e-13
            assert np.linalg.norm(gap) <= 0.5 * (1 + 1e-6)


# ------------------------------------------------------------------ batches in turn

IN_TURN = {"batch": "cyclic", "batches": 3, "noise_bands": 3}


@pytest.mark.parametrize("name", ["fed-dyn", "scaffold"])
def test_private_steps_take_batches_in_turn_as_the_built_in_solver(name: str) -> None:
    """With a seed the noise is the same, and so are the steps but for the order of the sums."""
    apps = client_app(name, problem), taking_part(name, all_steps)
    built_in, own = (play(STRATEGIES[name](noise_seed=3, **IN_TURN), app) for app in apps)
    for key, array in built_in.arrays.items():
        assert np.abs(array.numpy() - initial_arrays(network())[key].numpy()).max() > 1e-3
        assert np.allclose(own.arrays[key].numpy(), array.numpy(), rtol=0, atol=1e-9)
    charged = [play(STRATEGIES[name](**IN_TURN), app).history[-1].epsilon for app in apps]
    assert 0 < charged[0] == charged[1] < np.inf
    apart = {**IN_TURN, "batch": "sample", "batch_size": ROWS // 3, "batches": 0, "noise_bands": 1}
    assert charged[0] < play(STRATEGIES[name](**apart), apps[0]).history[-1].epsilon


def test_a_step_in_turn_is_refused_without_the_whole_data_set() -> None:
    def loop(local: Any, model: Any, batch: Any) -> None:
        for _ in range(local.steps):
            local.private_step(loss, [part[1:] for part in batch])

    with refused(Told.BATCH, "the agent states"):
        play(STRATEGIES["fed-dyn"](**IN_TURN), taking_part("fed-dyn", loop), rounds=1)
