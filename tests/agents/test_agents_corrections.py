"""Loops that call ``correct`` themselves: once for every step, and what is refused otherwise."""

from __future__ import annotations

import copy
import importlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message

from privet.agents.loop import private_steps
from privet.agents.loop.optimizer_steps import hooked
from privet.client_apps import LoopParticipant, initial_arrays
from privet.core import RunError
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn
from support.points import Loop, Point, closure_of, played, torch

STEPS = 4
Correct = Callable[[], None]
Steps = Callable[[Correct, Point, int], None]


def sgd(parameters: Any, step: float = 0.05) -> Any:
    return torch.optim.SGD(parameters, lr=step)


def one_call_for_two_optimizers(correct: Correct, model: Point, agent: int) -> None:
    first, last = sgd([model.first]), sgd([model.last])
    for _ in range(STEPS):
        model.zero_grad()
        model.loss(agent).backward()
        correct()
        first.step()
        last.step()


def in_turns(set_to_none: bool, correct: Correct, model: Point, agent: int) -> None:
    """As the two nets of a GAN: each step has its own loss, which the other net takes part in."""
    optimizers = [sgd([model.first]), sgd([model.last])]
    for number in range(2 * STEPS):
        optimizer = optimizers[number % 3 == 0]  # two steps of the one, one of the other
        optimizer.zero_grad(set_to_none=set_to_none)
        model.loss(agent).backward()
        correct()
        optimizer.step()


def one_for_all_after_one_for_a_part(correct: Correct, model: Point, agent: int) -> None:
    for optimizer in (sgd(model.parameters()), sgd([model.last])):
        for _ in range(STEPS):
            model.zero_grad()
            model.loss(agent).backward()
            correct()
            optimizer.step()


def accumulation(correct: Correct, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for number in range(2 * STEPS):
        (model.loss(agent) / 2).backward()
        if number % 2:
            correct()
            optimizer.step()
            optimizer.zero_grad()


def accumulation_in_place(correct: Correct, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        for _ in range(3):
            (model.loss(agent) / 3).backward()
        correct()
        optimizer.step()


def corrected_before_the_backward_pass(correct: Correct, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        correct()
        model.loss(agent).backward()
        optimizer.step()


def skipped_by_a_scaler(set_to_none: bool, correct: Correct, model: Point, agent: int) -> None:
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler("cpu")
    for number in range(STEPS):
        optimizer.zero_grad(set_to_none=set_to_none)
        scaler.scale(model.loss(agent) * (float("inf") if number % 2 else 1.0)).backward()
        scaler.unscale_(optimizer)
        correct()
        scaler.step(optimizer)
        scaler.update()


def in_closures(correct: Correct, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    plain = closure_of(optimizer, model, agent)

    def closure() -> Any:
        loss = plain()
        correct()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def with_a_closure_that_only_has_the_loss(correct: Correct, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        loss = closure_of(optimizer, model, agent)()
        correct()
        optimizer.step(lambda loss=loss: loss)


def after_a_closure_that_failed(correct: Correct, model: Point, agent: int) -> None:
    def broken() -> Any:
        raise ArithmeticError

    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        with pytest.raises(ArithmeticError):
            optimizer.step(broken)
        closure_of(optimizer, model, agent)()
        correct()
        optimizer.step()


def sharpness_aware(both: bool, correct: Correct, model: Point, agent: int) -> None:
    """The gradient of the first pass, corrected or not, is only looked at."""
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model.loss(agent).backward()
        moves = [0.01 * each.grad.sign() for each in model.parameters()]
        if both:
            correct()
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), moves)
        optimizer.zero_grad()
        model.loss(agent).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moves)
        correct()
        optimizer.step()


def unfreezing(correct: Correct, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for number in range(STEPS):
        model.first.requires_grad_(number > 1)
        optimizer.zero_grad()
        model.loss(agent).backward()
        correct()
        optimizer.step()


def clipped_and_replaced(correct: Correct, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for number in range(STEPS):
        optimizer.zero_grad()
        model.loss(agent).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if number % 2:
            for each in model.parameters():
                each.grad = each.grad * 0.5
        correct()
        optimizer.step()


def made_anew(correct: Correct, model: Point, agent: int) -> None:
    for _ in range(STEPS):
        model.zero_grad()
        model.loss(agent).backward()
        correct()
        sgd(model.parameters()).step()


def beside_a_teacher(correct: Correct, model: Point, agent: int) -> None:
    teacher = copy.deepcopy(model)
    own, other = sgd(model.parameters()), sgd(teacher.parameters())
    for _ in range(STEPS):
        for optimizer, net in ((other, teacher), (own, model)):
            optimizer.zero_grad()
            net.loss(agent).backward()
        correct()
        other.step()
        own.step()


class Around(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer whose step is one of another, as Lookahead and SAM have it."""

    def __init__(self, parameters: Any) -> None:
        self.inner = sgd(parameters)
        super().__init__(self.inner.param_groups, {})

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure) if closure is not None else self.inner.step()


class Decayed(torch.optim.SGD):  # type: ignore[misc]
    """It moves the parameters before its base does, and clears the gradients afterwards."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                torch._foreach_mul_(group["params"], 0.99)
        done = super().step(closure)
        self.zero_grad()
        return done


class Beside(torch.optim.SGD):  # type: ignore[misc]
    """Its step begins with one of another model's optimizer."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.05)
        self.other = sgd([torch.nn.Parameter(torch.zeros(1))])

    def step(self, closure: Any = None) -> Any:
        self.other.step()
        return super().step(closure)


def of_kind(kind: Any, correct: Correct, model: Point, agent: int) -> None:
    optimizer = kind(model.parameters())
    for number in range(STEPS):
        plain = closure_of(optimizer, model, agent)

        def closure(plain: Any = plain) -> Any:
            loss = plain()
            correct()
            return loss

        if number % 2:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


RIGHT: dict[str, Steps] = {
    "one-call-for-two-optimizers": one_call_for_two_optimizers,
    "in-turns": partial(in_turns, True),
    "in-turns-in-place": partial(in_turns, False),
    "one-for-all-after-one-for-a-part": one_for_all_after_one_for_a_part,
    "accumulation": accumulation,
    "accumulation-in-place": accumulation_in_place,
    "before-the-backward-pass": corrected_before_the_backward_pass,
    "scaler": partial(skipped_by_a_scaler, True),
    "scaler-in-place": partial(skipped_by_a_scaler, False),
    "closures": in_closures,
    "closure-of-the-loss": with_a_closure_that_only_has_the_loss,
    "closure-that-failed": after_a_closure_that_failed,
    "sharpness-aware": partial(sharpness_aware, False),
    "sharpness-aware-twice": partial(sharpness_aware, True),
    "unfreezing": unfreezing,
    "clipped-and-replaced": clipped_and_replaced,
    "made-anew": made_anew,
    "beside-a-teacher": beside_a_teacher,
    "around": partial(of_kind, Around),
    "beside": partial(of_kind, Beside),
    "decayed": partial(of_kind, partial(Decayed, lr=0.05)),
}


@pytest.mark.parametrize("loop", RIGHT)
def test_no_right_loop_is_refused_and_each_does_what_the_hook_does(loop: str) -> None:
    def by_hand(local: Any, model: Point, agent: int) -> None:
        RIGHT[loop](lambda: local.correct(model), model, agent)

    def by_hook(local: Any, model: Point, agent: int) -> None:
        RIGHT[loop](lambda: None, model, agent)

    found = played("fed-dyn", by_hand, hook=False, rounds=2)
    assert np.allclose(found, played("fed-dyn", by_hook, rounds=2), rtol=1e-12)
    assert np.abs(found).max() > 0.1


def test_an_optimizer_that_corrects_by_itself_is_right() -> None:
    def loop(local: Any, model: Point, agent: int) -> None:
        class Correcting(torch.optim.SGD):  # type: ignore[misc]
            def step(self, closure: Any = None) -> Any:
                local.correct(model)
                return super().step(closure)

        optimizer = Correcting(model.parameters(), lr=0.05)
        for _ in range(STEPS):
            closure_of(optimizer, model, agent)()
            optimizer.step()

    def plain(local: Any, model: Point, agent: int) -> None:
        optimizer = sgd(model.parameters())
        for _ in range(STEPS):
            closure_of(optimizer, model, agent)()
            optimizer.step()

    assert np.array_equal(played("fed-dyn", loop, hook=False), played("fed-dyn", plain))


def test_l_bfgs_steps_by_hand_and_steps_without_a_gradient_are_right() -> None:
    def loop(local: Any, model: Point, agent: int) -> None:
        sgd(model.parameters()).step()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        plain = closure_of(optimizer, model, agent)

        def closure() -> Any:
            loss = plain()
            local.correct(model)
            return loss

        optimizer.step(closure)
        for _ in range(STEPS):
            closure()
            with torch.no_grad():
                for each in model.parameters():
                    each.sub_(each.grad, alpha=0.05)

    assert np.abs(played("fed-dyn", loop, hook=False)).max() > 0.1


def before_each_of_two_optimizers(correct: Correct, model: Point, agent: int) -> None:
    optimizers = sgd([model.first]), sgd([model.last])
    for _ in range(STEPS):
        model.zero_grad()
        model.loss(agent).backward()
        for optimizer in optimizers:
            correct()
            optimizer.step()


def left_to_the_other_net(correct: Correct, model: Point, agent: int) -> None:
    """What the first step leaves in the gradients of the other net is never cleared."""
    optimizers = sgd([model.first]), sgd([model.last])
    for _ in range(STEPS):
        for optimizer in optimizers:
            model.loss(agent).backward()
            correct()
            optimizer.step()
            optimizer.zero_grad()


def in_every_micro_batch(correct: Correct, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for number in range(2 * STEPS):
        (model.loss(agent) / 2).backward()
        correct()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def twice_in_a_row(correct: Correct, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        closure_of(optimizer, model, agent)()
        correct()
        correct()
        optimizer.step()


def cleared_afterwards(correct: Correct, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        model.loss(agent).backward()
        correct()
        optimizer.zero_grad()
        optimizer.step()


def at_the_top(correct: Correct, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        correct()
        closure_of(optimizer, model, agent)()
        optimizer.step()


def before_a_closure(correct: Correct, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        model.loss(agent).backward()
        correct()
        optimizer.step(closure_of(optimizer, model, agent))


def forgotten_once(in_place: bool, correct: Correct, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for number in range(STEPS):
        optimizer.zero_grad(set_to_none=not in_place)
        model.loss(agent).backward()
        if number != 2:
            correct()
        optimizer.step()


def forgotten_in_turns(correct: Correct, model: Point, agent: int) -> None:
    optimizers = sgd([model.first]), sgd([model.last])
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
            model.loss(agent).backward()
            if optimizer is optimizers[0]:
                correct()
            optimizer.step()


def forgotten_around(correct: Correct, model: Point, agent: int) -> None:
    optimizer = Around(model.parameters())
    for number in range(STEPS):
        closure_of(optimizer, model, agent)()
        if number != 2:
            correct()
        optimizer.step()


def corrected_in_the_backward_pass(correct: Correct, model: Point, agent: int) -> None:
    """Each optimizer has one parameter, and each call corrects both."""
    own = {each: sgd([each]) for each in model.parameters()}

    def step(parameter: Any) -> None:
        correct()
        own[parameter].step()
        own[parameter].zero_grad()

    for each in own:
        each.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        model.loss(agent).backward()


NONE = "SGD steps by gradients without the correction: call correct.. once before every step"
TWICE = r"SGD steps by hold the correction more than once: .* and correct\(\) once for a step"
LATE = r"a backward pass came between correct\(\) and the step of SGD"
MAXIMIZE = "SGD has maximize = True, and would step along the correction"
CLEARED = r"cleared between correct\(\) and the step of SGD, .* call zero_grad\(\) before"


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (before_each_of_two_optimizers, TWICE),
        (left_to_the_other_net, TWICE),
        (in_every_micro_batch, TWICE),
        (twice_in_a_row, TWICE),
        (corrected_in_the_backward_pass, TWICE),
        (cleared_afterwards, CLEARED),
        (at_the_top, NONE),
        (before_a_closure, NONE),
        (partial(forgotten_once, False), NONE),
        (partial(forgotten_once, True), NONE),
        (forgotten_in_turns, NONE),
        (forgotten_around, NONE.replace("SGD", "Around|SGD")),
    ],
)
def test_a_step_without_its_correction_or_with_two_is_refused(loop: Steps, said: str) -> None:
    """These ended in other models than they should, and nothing was said."""

    def by_hand(local: Any, model: Point, agent: int) -> None:
        loop(lambda: local.correct(model), model, agent)

    with pytest.raises(RunError, match=said):
        played("fed-dyn", by_hand, hook=False, rounds=1)


def test_a_correction_of_no_whole_gradient_is_refused_where_gradients_are_added_up() -> None:
    """SCAFFOLD replied with the mean of zeros."""

    def by_hand(local: Any, model: Point, agent: int) -> None:
        corrected_before_the_backward_pass(lambda: local.correct(model), model, agent)

    with pytest.raises(RunError, match=LATE):
        played("scaffold", by_hand, hook=False, rounds=1)


@pytest.mark.parametrize("hook", [True, False])
def test_steps_along_the_gradients_are_refused(hook: bool) -> None:
    """The correction had the wrong sign."""

    def loop(local: Any, model: Point, agent: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, maximize=True)
        (-model.loss(agent)).backward()
        if not hook:
            local.correct(model)
        optimizer.step()

    with pytest.raises(RunError, match=MAXIMIZE):
        played("fed-dyn", loop, hook=hook, rounds=1)


class Proximal(torch.optim.SGD):  # type: ignore[misc]
    """Its step takes the model of the round, and not a closure."""

    def step(self, start: Any) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for each, held in zip(group["params"], start, strict=True):
                    each.sub_(each.grad + 0.1 * (each - held), alpha=group["lr"])


def test_an_argument_of_a_step_that_is_no_closure_is_left_as_it_is() -> None:
    def loop(hook: bool, local: Any, model: Point, agent: int) -> None:
        optimizer = Proximal(model.parameters(), lr=0.05)
        start = [each.detach().clone() for each in model.parameters()]
        for _ in range(STEPS):
            closure_of(optimizer, model, agent)()
            if not hook:
                local.correct(model)
            optimizer.step(start)

    found = played("fed-dyn", partial(loop, True), rounds=2)
    assert np.array_equal(found, played("fed-dyn", partial(loop, False), hook=False, rounds=2))


def test_hooks_of_two_rounds_change_the_tables_of_torch_once() -> None:
    """A step in another thread reads these tables meanwhile."""
    tables = importlib.import_module("torch.optim.optimizer")
    seen: list[tuple[Any, ...]] = []
    with hooked(lambda *step: seen.append(("first", *step))):
        held = list(tables._global_optimizer_pre_hooks)
        with hooked(lambda *step: seen.append(("second", *step))):
            assert list(tables._global_optimizer_pre_hooks) == held
            parameter = torch.nn.Parameter(torch.zeros(1))
            sgd([parameter]).step()
    assert [each[0] for each in seen] == ["first", "second"]
    assert not tables._global_optimizer_pre_hooks
    assert not tables._global_optimizer_post_hooks


def test_nothing_of_a_round_is_left_on_a_model() -> None:
    """A model that serves several rounds begins each without marks and hooks."""
    model = Point()
    participant = LoopParticipant("fed-dyn", model, lambda context: 5)
    app = participant.app()
    seen: list[Any] = []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        optimizer = sgd(model.parameters())
        with participant.round(message, context, model) as local:
            local.correct(model)  # on what the round before has left
            optimizer.step()
        assert not any(vars(each.grad) for each in model.parameters())
        seen.append([each._post_accumulate_grad_hooks for each in model.parameters()])
        return local.reply()

    FedDyn(num_agents=1).start(InlineGrid(app, 1), initial_arrays(model), num_rounds=3)
    assert len(seen) == 3
    assert not any(hooks for each in seen for hooks in each)


def no_step(local: Any, model: Point, agent: int) -> None:
    for _ in range(STEPS):
        model.zero_grad()
        model.loss(agent).backward()
        local.correct(model)


def of_another_model(local: Any, model: Point, agent: int) -> None:
    other = copy.deepcopy(model)
    optimizer = sgd(other.parameters())
    for _ in range(STEPS):
        closure_of(optimizer, other, agent)()
        local.correct(model)
        optimizer.step()


def all_skipped(local: Any, model: Point, agent: int) -> None:
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler("cpu")
    scaler.scale(model.loss(agent) * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()


def of_length_zero(local: Any, model: Point, agent: int) -> None:
    """As the first step of a schedule that warms up."""
    optimizer = sgd(model.parameters(), step=0.0)
    closure_of(optimizer, model, agent)()
    local.correct(model)
    optimizer.step()


@pytest.mark.parametrize(
    ("loop", "hook", "warns"),
    [
        (no_step, False, True),
        (of_another_model, False, True),
        (all_skipped, True, True),
        (of_length_zero, False, False),
    ],
)
def test_a_round_that_moved_nothing_is_said_to(
    loop: Loop, hook: bool, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    private_steps.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        played("fed-dyn", loop, hook, rounds=1)
    assert ("a loop left the model as its round began with it" in caplog.text) is warns
