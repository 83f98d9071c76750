"""Steps of optimizers in a round: closures, steps within steps, parts of a model, scaled losses."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message

from privet.client_apps import LoopParticipant, initial_arrays
from privet.core import RunError
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn
from support.points import (
    AGENTS,
    OPTIMUM,
    STRATEGIES,
    TARGET,
    Loop,
    Point,
    closure_of,
    played,
    torch,
)


def plain(local: Any, model: Point, agent: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=local.step_size)
    for _ in range(local.steps):
        closure_of(optimizer, model, agent)()
        optimizer.step()


def by_closure(local: Any, model: Point, agent: int, keyword: bool = False) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=local.step_size)
    for _ in range(local.steps):
        closure = closure_of(optimizer, model, agent)
        optimizer.step(closure=closure) if keyword else optimizer.step(closure)


def by_keyword(local: Any, model: Point, agent: int) -> None:
    by_closure(local, model, agent, keyword=True)


def evaluated_before(local: Any, model: Point, agent: int) -> None:
    """The closure is only asked for the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=local.step_size)
    for _ in range(local.steps):
        loss = closure_of(optimizer, model, agent)()
        optimizer.step(lambda loss=loss: loss)


class Around(torch.optim.Optimizer):
    """An optimizer whose step is one of another, as Lookahead and SAM have it."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure) if closure is not None else self.inner.step()


class Derived(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def nested(kind: Any, closed: bool, local: Any, model: Point, agent: int) -> None:
    optimizer = kind(model.parameters(), local.step_size)
    for _ in range(local.steps):
        closure = closure_of(optimizer, model, agent)
        if closed:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def after_one_that_failed(local: Any, model: Point, agent: int) -> None:
    """What a step that raised had begun says nothing of the next."""

    def broken() -> Any:
        raise ArithmeticError

    optimizer = torch.optim.SGD(model.parameters(), lr=local.step_size)
    for _ in range(local.steps):
        with pytest.raises(ArithmeticError):
            optimizer.step(broken)
        closure_of(optimizer, model, agent)()
        optimizer.step()


def two_optimizers(local: Any, model: Point, agent: int) -> None:
    """Each has a part of the model, and both gradients are made before the first step."""
    optimizers = [torch.optim.SGD([part], lr=local.step_size) for part in model.parameters()]
    for _ in range(local.steps):
        model.zero_grad()
        model.loss(agent).backward()
        for optimizer in optimizers:
            optimizer.step()


def around(parameters: Any, step: float) -> Around:
    return Around(torch.optim.SGD(parameters, lr=step))


LOOPS: dict[str, Loop] = {
    "closure": by_closure,
    "keyword": by_keyword,
    "evaluated-before": evaluated_before,
    "around": lambda *given: nested(around, False, *given),
    "around-closure": lambda *given: nested(around, True, *given),
    "derived": lambda *given: nested(Derived, False, *given),
    "derived-closure": lambda *given: nested(Derived, True, *given),
    "after-one-that-failed": after_one_that_failed,
    "two-optimizers": two_optimizers,
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_way_to_step_is_corrected_once(name: str, loop: str) -> None:
    def by_hand(local: Any, model: Point, agent: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=local.step_size)
        for _ in range(local.steps):
            closure_of(optimizer, model, agent)()
            local.correct(model)
            optimizer.step()

    expected = played(name, by_hand, hook=False)
    assert np.array_equal(played(name, plain), expected)
    assert np.array_equal(played(name, LOOPS[loop]), expected)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_l_bfgs_minimises_the_corrected_objective(search: str | None) -> None:
    """So exact local steps end in the optimum of the sum, not in the mean of the agents' own."""
    slopes: list[tuple[float, float]] = []

    def loop(local: Any, model: Point, agent: int) -> None:
        optimizer = torch.optim.LBFGS(
            model.parameters(), max_iter=30, line_search_fn=search, tolerance_grad=1e-13
        )
        closure = closure_of(optimizer, model, agent)
        optimizer.step(closure)
        assert local._taken == 1
        closure()
        local._parameters.correct(None)
        slope, values = float(model.first.grad), []
        with torch.no_grad():
            for shift in (1e-5, -2e-5):
                model.first += shift
                value = local._parameters.objective(model.loss(agent), ["first", "last"])
                values.append(float(value))
            model.first += 1e-5
        slopes.append((slope, (values[0] - values[1]) / 2e-5))

    found = played("fed-plt", loop, rounds=40)
    assert np.allclose(found, OPTIMUM, atol=1e-6)
    assert np.abs(OPTIMUM - TARGET.mean(0).numpy()).min() > 0.3
    assert all(slope == pytest.approx(apart, abs=1e-6) for slope, apart in slopes)


def test_the_value_of_a_closure_is_that_of_the_corrected_objective() -> None:
    """f + ||w||^2 / (2 rho) in the first round of Fed-PLT, whose center is the start."""
    found: list[tuple[float, float]] = []

    def loop(local: Any, model: Point, agent: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            with torch.no_grad():
                pull = sum(float((each**2).sum()) for each in model.parameters()) / (2 * 0.5)
                expected = float(model.loss(agent)) + pull
            found.append((float(optimizer.step(closure_of(optimizer, model, agent))), expected))

    played("fed-plt", loop, rounds=1)
    assert all(value == pytest.approx(expected, rel=1e-12) for value, expected in found)
    assert len({value for value, _ in found}) == 3 * AGENTS


def test_a_line_search_that_cannot_be_served_is_refused_by_name() -> None:
    def loop(local: Any, model: Point, agent: int) -> None:
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        for _ in range(local.steps):
            optimizer.step(closure_of(optimizer, model, agent))

    line = "scaffold counts the gradient of every step, and LBFGS evaluates its closure more than"
    with pytest.raises(RunError, match=line):
        played("scaffold", loop)


@pytest.mark.parametrize("fused", [False, True])
def test_a_correction_of_scaled_gradients_is_refused(fused: bool) -> None:
    """The scaler would divide it by 65,536. The first step is skipped: its gradient overflows."""
    unscale = torch.amp.GradScaler.unscale_

    def scaled(order: str, local: Any, model: Point, agent: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        for number in range(local.steps + 1):
            optimizer.zero_grad(set_to_none=number % 2 == 0)
            loss = model.loss(agent) * (float("inf") if number == 0 else 1.0)
            scaler.scale(loss).backward()
            if order == "right":
                scaler.unscale_(optimizer)
            local.correct(model)
            scaler.step(optimizer)
            scaler.update()

    right = played("fed-dyn", lambda *given: scaled("right", *given), hook=False)
    assert np.allclose(right, played("fed-dyn", plain), rtol=1e-9)
    with pytest.raises(RunError, match=r"correct\(\) came before the gradients were unscaled"):
        played("fed-dyn", lambda *given: scaled("wrong", *given), hook=False)
    assert torch.amp.GradScaler.unscale_ is unscale


@pytest.mark.parametrize("hook", [False, True])
@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("Adam", {}, "Adam"),
        ("SGD", {"momentum": 0.2}, "SGD with momentum"),
        ("SGD", {"weight_decay": 1e-4}, "SGD with weight_decay"),
        ("Derived", {}, ""),
    ],
)
def test_steps_that_are_not_plain_are_refused_by_name_whatever_their_length(
    kind: str, options: dict[str, Any], said: str, hook: bool
) -> None:
    """At one of these steps each agent comes about as far as by gradient steps."""

    def loop(step: float, local: Any, model: Point, agent: int) -> None:
        optimizer = getattr(torch.optim, kind, Derived)(model.parameters(), lr=step, **options)
        for _ in range(local.steps):
            closure_of(optimizer, model, agent)()
            if not hook:
                local.correct(model)
            optimizer.step()

    for step in (0.05,) if kind != "Adam" else (0.02, 0.05, 0.1, 0.2, 0.4):
        if said:
            with pytest.raises(RunError, match=f"scaffold counts on plain .* those of {said} are"):
                played("scaffold", partial(loop, step), hook)
        else:
            played("scaffold", partial(loop, step), hook)


def twice(local: Any, model: Point, agent: int) -> None:
    model.loss(agent).backward()
    local.correct(model)


def replaced(local: Any, model: Point, agent: int) -> None:
    model.last = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    plain(local, model, agent)


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (twice, r"with hook = True .* correct\(\) would do it twice: leave out one"),
        (replaced, "parameter 'last' of the model was replaced within the round"),
    ],
)
def test_a_loop_whose_numbers_would_be_wrong_is_refused(loop: Loop, said: str) -> None:
    with pytest.raises(RunError, match=said):
        played("fed-dyn", loop)


@pytest.mark.parametrize("value", ["good", None, [0.5, 0.6]])
def test_a_metric_that_is_no_number_is_refused_by_name(value: Any) -> None:
    participant = LoopParticipant("fed-dyn", Point, lambda context: 5)
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = Point()
        with participant.round(message, context, model, hook=True) as local:
            plain(local, model, 0)
        return local.reply({"loss": value})

    with pytest.raises(RunError, match=r"'loss' is .*, expected a number"):
        FedDyn(num_agents=1).start(InlineGrid(app, 1), initial_arrays(Point()), num_rounds=1)
