"""Training loops that do what they should not: refused by a line, warned of, or right after all."""

from __future__ import annotations

import copy
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from privet.agents.loop import private_steps
from privet.client_apps import LoopParticipant, initial_arrays
from privet.core import RunError
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn
from support.points import AGENTS, Loop, Point, closure_of, played, torch

STEPS = 4
DOUBLE = torch.float64


def sgd(parameters: Any, step: float = 0.05) -> Any:
    return torch.optim.SGD(parameters, lr=step)


def plain(local: Any, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        closure_of(optimizer, model, agent)()
        optimizer.step()


def on_a_copy(local: Any, model: Point, agent: int) -> None:
    other = copy.deepcopy(model)
    plain(local, other, agent)
    model.load_state_dict(other.state_dict())


def without_an_optimizer(local: Any, model: Point, agent: int) -> None:
    for _ in range(STEPS):
        model.zero_grad()
        model.loss(agent).backward()
        with torch.no_grad():
            for each in model.parameters():
                each.sub_(each.grad, alpha=0.05)


def by_functions(local: Any, model: Point, agent: int) -> None:
    for _ in range(STEPS):
        slopes = torch.autograd.grad(model.loss(agent), list(model.parameters()))
        with torch.no_grad():
            for each, slope in zip(model.parameters(), slopes, strict=True):
                each.sub_(slope, alpha=0.05)


def of_detached_parameters(local: Any, model: Point, agent: int) -> None:
    optimizer = sgd([each.detach().clone().requires_grad_() for each in model.parameters()])
    for _ in range(STEPS):
        model.zero_grad()
        model.loss(agent).backward()
        optimizer.step()


def with_a_step_that_is_no_number(local: Any, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters(), float("nan"))
    closure_of(optimizer, model, agent)()
    optimizer.step()


def with_an_infinite_start(local: Any, model: Point, agent: int) -> None:
    with torch.no_grad():
        model.first.fill_(float("inf"))
    plain(local, model, agent)


def with_another_shape(local: Any, model: Point, agent: int) -> None:
    model.first.data = torch.zeros(2, dtype=DOUBLE)
    plain(local, model, agent)


def with_a_parameter_less(local: Any, model: Point, agent: int) -> None:
    del model.last
    model.last = torch.zeros(1, dtype=DOUBLE)
    optimizer = sgd([model.first])
    closure_of(optimizer, model, agent)()
    optimizer.step()


def that_leaves(local: Any, model: Point, agent: int) -> None:
    sys.exit("no rows")


def out_of_memory(local: Any, model: Point, agent: int) -> None:
    raise MemoryError("cannot allocate")


UNCORRECTED = r"needs a call of correct\(\) in every local step, this loop made none"


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (on_a_copy, UNCORRECTED),
        (without_an_optimizer, UNCORRECTED),
        (by_functions, UNCORRECTED),
        (of_detached_parameters, "this loop took none of the round's model"),
        (with_a_step_that_is_no_number, "numbers that are not finite"),
        (with_an_infinite_start, "numbers that are not finite"),
        (with_another_shape, r"'first' of the model has shape \(2,\) after the round, \(1,\)"),
        (with_a_parameter_less, "parameter 'last' of the model was replaced"),
        (that_leaves, r"own code called sys.exit\('no rows'\)"),
        (out_of_memory, "cannot allocate"),
    ],
)
@pytest.mark.parametrize("name", ["fed-dyn", "fed-plt"])
def test_a_loop_that_trains_something_else_is_refused(name: str, loop: Loop, said: str) -> None:
    with pytest.raises(RunError, match=said):
        played(name, loop, rounds=1)


def test_an_exit_costs_its_agent_alone() -> None:
    """In one process it ended the run of all."""

    def leaving(local: Any, model: Point, agent: int) -> None:
        if agent == 1:
            sys.exit(3)
        plain(local, model, agent)

    def failing(local: Any, model: Point, agent: int) -> None:
        if agent == 1:
            raise ValueError
        plain(local, model, agent)

    found = played("fed-dyn", leaving, rounds=2)
    assert np.array_equal(found, played("fed-dyn", failing, rounds=2))


def never_cleared(local: Any, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        model.loss(agent).backward()
        optimizer.step()


def test_gradients_that_are_never_cleared_add_up_as_those_of_the_corrected_objective() -> None:
    """FedDyn's local objective with its whole gradient, by torch alone, added up as the loop's."""

    def by_hand(local: Any, model: Point, agent: int) -> None:
        added = [torch.zeros_like(each) for each in model.parameters()]
        for _ in range(STEPS):
            model.zero_grad()
            model.loss(agent).backward()
            local.correct(model)
            with torch.no_grad():
                for each, total in zip(model.parameters(), added, strict=True):
                    total.add_(each.grad)
                    each.sub_(total, alpha=0.05)

    found = played("fed-dyn", never_cleared, rounds=3)
    assert np.allclose(found, played("fed-dyn", by_hand, hook=False, rounds=3), rtol=1e-12)


def test_gradients_that_are_never_cleared_are_not_counted_twice() -> None:
    with pytest.raises(RunError, match=r"SGD hold that of the step before: call zero_grad\(\)"):
        played("scaffold", never_cleared, rounds=1)


def averaged(local: Any, model: Point, agent: int) -> None:
    """It ends with the mean of its iterates, as stochastic weight averaging does."""
    optimizer, mean = sgd(model.parameters()), torch.optim.swa_utils.AveragedModel(model)
    for _ in range(STEPS):
        closure_of(optimizer, model, agent)()
        optimizer.step()
        mean.update_parameters(model)
    model.load_state_dict(mean.module.state_dict())


def in_another_thread(local: Any, model: Point, agent: int) -> None:
    thread = threading.Thread(target=plain, args=(local, model, agent))
    thread.start()
    thread.join()


def with_second_derivatives(local: Any, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model.loss(agent).backward(create_graph=True)
        optimizer.step()


def with_a_parameter_more(local: Any, model: Point, agent: int) -> None:
    model.extra = torch.nn.Parameter(torch.zeros(1, dtype=DOUBLE))
    plain(local, model, agent)


def of_two_losses(local: Any, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            (0.5 * model.loss(agent)).backward()
        optimizer.step()


def of_a_wrapped_model(local: Any, model: Point, agent: int) -> None:
    plain(local, torch.nn.DataParallel(model).module, agent)


def in_groups(local: Any, model: Point, agent: int) -> None:
    optimizer = sgd([{"params": [each]} for each in model.parameters()])
    for _ in range(STEPS):
        closure_of(optimizer, model, agent)()
        optimizer.step()


def with_gradients_put_there(local: Any, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        slopes = torch.autograd.grad(model.loss(agent), list(model.parameters()))
        for each, slope in zip(model.parameters(), slopes, strict=True):
            each.grad = slope
        optimizer.step()


def with_tensors_swapped(local: Any, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        closure_of(optimizer, model, agent)()
        optimizer.step()
        torch.utils.swap_tensors(model.first, torch.nn.Parameter(model.first.detach().clone()))


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
@pytest.mark.parametrize(
    "loop",
    [
        in_another_thread, with_second_derivatives, with_a_parameter_more, of_two_losses,
        of_a_wrapped_model, in_groups, with_gradients_put_there, with_tensors_swapped,
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["fed-dyn", "fed-plt", "scaffold"])
def test_odd_loops_are_what_they_should_be(name: str, loop: Loop) -> None:
    assert np.array_equal(played(name, loop), played(name, plain))


def test_a_mean_of_iterates_is_sent_as_it_is() -> None:
    assert np.isfinite(played("fed-dyn", averaged)).all()


def loaded(local: Any, model: Point, agent: int) -> None:
    """As where a client keeps loading its first weights: the broadcast is lost."""
    model.load_state_dict(Point().state_dict())
    plain(local, model, agent)


def replaced_numbers(local: Any, model: Point, agent: int) -> None:
    model.first.data = torch.ones(1, dtype=DOUBLE)
    plain(local, model, agent)


def without_gradients(local: Any, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.no_grad():
            model.loss(agent)
        optimizer.step()


def perturbed(local: Any, model: Point, agent: int) -> None:
    """It is back where it was, but for rounding, as its first step begins."""
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        with torch.no_grad():
            model.first += 0.1
        closure_of(optimizer, model, agent)()
        with torch.no_grad():
            model.first -= 0.1
        optimizer.step()


def cleared_to_zero(local: Any, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        model.loss(agent).backward()
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()


def a_step_behind(local: Any, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        optimizer.step()
        closure_of(optimizer, model, agent)()


def cleared_late(local: Any, model: Point, agent: int) -> None:
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        model.loss(agent).backward()
        optimizer.zero_grad()
        optimizer.step()


def from_its_own_average(local: Any, model: Point, agent: int) -> None:
    model.load_state_dict({name: each + 1 for name, each in model.state_dict().items()})
    plain(local, model, agent)


ELSEWHERE = "the model held other numbers at the first step of a round than the round began with"
UNMOVED = "none of its steps reached the model's parameters, or had a gradient of them"
BEHIND = "step had no gradient of any of its parameters"


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (loaded, ELSEWHERE),
        (replaced_numbers, ELSEWHERE),
        (without_gradients, UNMOVED),
        (cleared_to_zero, UNMOVED),
        (cleared_late, UNMOVED),
        (a_step_behind, BEHIND),
        (from_its_own_average, ELSEWHERE),
        (perturbed, ""),
        (plain, ""),
    ],
)
def test_what_goes_wrong_in_silence_is_warned_of(
    loop: Loop, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    private_steps.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        played("fed-dyn", loop, rounds=2)
    for line in (ELSEWHERE, UNMOVED, BEHIND):
        assert (line in caplog.text) is (line == said)


@pytest.mark.parametrize("name", ["fed-dyn", "fed-plt", "scaffold"])
def test_gradients_of_the_round_before_are_not_added_to(name: str) -> None:
    """A module that outlasts the rounds, and a loop that clears after its steps alone."""
    kept = [Point() for _ in range(AGENTS)]

    def left_over(local: Any, model: Point, agent: int) -> None:
        optimizer = sgd(model.parameters())
        for _ in range(STEPS):
            model.loss(agent).backward()
            optimizer.step()
            optimizer.zero_grad()
        model.loss(agent).backward()  # of micro-batches too few for another step

    assert np.array_equal(played(name, left_over, models=kept), played(name, plain))


# ---------------------------------------------------------------------- handlers

Handler = Callable[[LoopParticipant, Message, Context], Any]


def handled(handler: Handler, rounds: int = 2) -> Any:
    """Return the model of a run of two agents whose handler this is."""
    participant = LoopParticipant("fed-dyn", Point, lambda context: 5)
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Any:
        return handler(participant, message, context)

    strategy = FedDyn(num_agents=2, fed_dyn_alpha=1.0, step_size_base=0.05)
    done = strategy.start(InlineGrid(app, 2), initial_arrays(Point()), num_rounds=rounds)
    return np.concatenate([array.numpy() for array in done.arrays.values()])


def good(participant: LoopParticipant, message: Message, context: Context) -> Message:
    model = Point()
    with participant.round(message, context, model, hook=True) as local:
        plain(local, model, 0)
    return local.reply()


def flowers_reply(participant: LoopParticipant, message: Message, context: Context) -> Message:
    model = Point()
    with participant.round(message, context, model, hook=True) as local:
        plain(local, model, 0)
    metrics = MetricRecord({"num-examples": 5})
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


def without_a_round(participant: LoopParticipant, message: Message, context: Context) -> Message:
    content = {"arrays": ArrayRecord(Point().state_dict())}
    return Message(RecordDict(content), reply_to=message)


def swallowed(participant: LoopParticipant, message: Message, context: Context) -> Message:
    model = Point()
    try:
        with participant.round(message, context, model, hook=True) as local:
            plain(local, model, 0)
            raise ValueError
    except ValueError:
        pass
    return local.reply()


def within_another(participant: LoopParticipant, message: Message, context: Context) -> Message:
    model = Point()
    with (
        participant.round(message, context, model, hook=True) as local,
        participant.round(message, context, model, hook=True),
    ):
        plain(local, model, 0)
    return local.reply()


def after_the_round(participant: LoopParticipant, message: Message, context: Context) -> Message:
    model = Point()
    with participant.round(message, context, model, hook=True) as local:
        pass
    plain(local, model, 0)
    return local.reply()


def on_after_the_round(participant: LoopParticipant, message: Message, context: Context) -> Message:
    model = Point()
    with participant.round(message, context, model, hook=True) as local:
        plain(local, model, 0)
    plain(local, model, 0)
    return local.reply()


def of_a_state_dict(participant: LoopParticipant, message: Message, context: Context) -> Message:
    with participant.round(message, context, Point().state_dict()) as local:
        pass
    return local.reply()


def of_a_class(participant: LoopParticipant, message: Message, context: Context) -> Message:
    with participant.round(message, context, Point) as local:
        pass
    return local.reply()


def of_another_model(participant: LoopParticipant, message: Message, context: Context) -> Message:
    with participant.round(message, context, torch.nn.Linear(1, 1).double()) as local:
        pass
    return local.reply()


def without_with(participant: LoopParticipant, message: Message, context: Context) -> Any:
    return participant.round(message, context, Point()).reply()  # type: ignore[attr-defined]


NO_RECORD = "message has no record 'privet'"


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (flowers_reply, NO_RECORD),
        (without_a_round, NO_RECORD),
        (swallowed, r"reply\(\) belongs after the with block"),
        (within_another, "a round of this message is open"),
        (after_the_round, UNCORRECTED),
        (on_after_the_round, "was trained after the with block of the round"),
        (of_a_state_dict, "or a module .not its state dict"),
        (of_a_class, "a model is a torch.nn.Module or a mapping of arrays, found type"),
        (of_another_model, r"has 'weight' of shape \(1, 1\) where 'first'"),
        (without_with, "no attribute 'reply'"),
    ],
)
def test_a_handler_that_does_otherwise_is_refused(handler: Handler, said: str) -> None:
    with pytest.raises(RunError, match=said):
        handled(handler, rounds=1)


def test_a_reply_of_the_round_before_is_refused() -> None:
    earlier: list[Message] = []

    def again(participant: LoopParticipant, message: Message, context: Context) -> Message:
        earlier.append(good(participant, message, context))
        return Message(earlier[0].content, reply_to=message)

    with pytest.raises(RunError, match="reply is of round 1, expected 2"):
        handled(again)


def twice(participant: LoopParticipant, message: Message, context: Context) -> Message:
    good(participant, message, context)
    return good(participant, message, context)


def best(participant: LoopParticipant, message: Message, context: Context) -> Message:
    """What is loaded after the block is no step, also where gradients are cleared."""
    model = Point()
    with participant.round(message, context, model, hook=True) as local:
        plain(local, model, 0)
    kept = copy.deepcopy(model.state_dict())
    model.zero_grad()
    model.load_state_dict(kept)
    return local.reply()


def evaluated(participant: LoopParticipant, message: Message, context: Context) -> Message:
    model = Point()
    with participant.round(message, context, model, hook=True) as local:
        plain(local, model, 0)
    model.loss(0).backward()
    return local.reply({"loss": float(model.loss(0).detach())})


@pytest.mark.parametrize("handler", [twice, best, evaluated])
def test_a_handler_that_does_more_is_right(handler: Handler) -> None:
    assert np.array_equal(handled(handler), handled(good))
