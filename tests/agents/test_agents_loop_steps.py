"""The steps in which a training loop's round is opened: admission, and what is carried beside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privet.agents.half import Local
from privet.agents.loop.admission import (
    covers,
    is_whole,
    require_playable,
    require_private_loop,
    weight_of,
)
from privet.agents.loop.buffers import Buffers
from privet.agents.loop.carried import LOCAL_BUFFERS, OPTIMIZERS, PERSONAL, Carried
from privet.agents.loop.parameters import parameters_of
from privet.agents.loop.personal import Personal
from privet.agents.loop.problem import LoopProblem
from privet.client_apps.rivals import dp_fedavg, fed_dyn
from privet.core import ConfigError
from privet.kernel import Told
from privet.kernel.programs.steps import LocalTask
from privet.kernel.round import View
from privet.wire.payload import BUFFERS

STEPS = fed_dyn.Agent()
NOISED = fed_dyn.Agent(clip=1.0, noise_scale=1.0)
WHOLE = dp_fedavg.Agent(clip=1.0, noise_scale=1.0)


class OwnSolver(fed_dyn.Agent):
    """A half whose local work is more than the steps of its task."""

    def local_update(self, *arguments: Any) -> Any:
        return super().local_update(*arguments)


def records(charged: bool) -> Any:
    return SimpleNamespace(charged=charged)


def task(tolerance: float = 0.0) -> LocalTask:
    return LocalTask(np.zeros(2), 0.1, 3, tolerance=tolerance)


@pytest.mark.parametrize(
    ("personal", "alone", "said"),
    [
        (True, True, Told.PERSONAL),
        (True, False, Told.PERSONAL),
        (False, False, Told.OPENED_ONCE),
        (False, True, None),
    ],
)
def test_a_private_round_is_alone_and_without_own_layers(
    personal: bool, alone: bool, said: Told | None
) -> None:
    weights = {"w": np.zeros(2)}
    found = None
    try:
        require_private_loop(weights, parameters_of(weights), personal=personal, alone=alone)
    except ConfigError as error:
        found = str(error)
    assert found == said


@pytest.mark.parametrize(
    ("half", "charged", "covered"),
    [
        (NOISED, True, True),
        (NOISED, False, False),
        (WHOLE, True, True),
        (WHOLE, False, False),
        (OwnSolver(clip=1.0, noise_scale=1.0), True, False),
    ],
)
def test_a_charge_covers_the_steps_that_it_was_made_for(
    half: Any, charged: bool, covered: bool
) -> None:
    assert covers(half, records(charged)) is covered
    assert is_whole(half) is (half is WHOLE)


@pytest.mark.parametrize(
    ("half", "covered", "tolerance", "said"),
    [
        (STEPS, False, 0.0, None),
        (NOISED, True, 0.0, None),
        (NOISED, False, 0.0, Told.CLIP_AND_NOISE),
        (fed_dyn.Agent(clip=1.0), False, 0.0, Told.CLIP_AND_NOISE),
        (WHOLE, False, 0.0, Told.CLIP_AND_NOISE),
        (dp_fedavg.Agent(clip=1.0), False, 0.0, None),  # it clips the update itself
        (STEPS, False, 1e-3, "cannot be stopped by a gradient norm"),
    ],
)
def test_gradients_are_not_clipped_or_noised_without_a_charge(
    half: Any, covered: bool, tolerance: float, said: str | None
) -> None:
    found = None
    try:
        require_playable(half, task(tolerance), covered=covered)
    except ConfigError as error:
        found = str(error)
    assert (said or "") in (found or "")
    assert (found is None) is (said is None)


def test_gradients_are_weighted_by_the_examples_but_in_charged_rounds() -> None:
    layout = parameters_of({"w": np.zeros(2)}).layout()
    problem: Any = LoopProblem(layout, 6).with_divisor(4.0)
    assert weight_of(problem, covered=False) == 1.5
    assert weight_of(problem, covered=True) == 1.0
    another: Any = SimpleNamespace(num_examples=6, divisor=4.0)
    assert weight_of(another, covered=False) == 1.0


def carried(model: Any, view: View, kind: Any, personal: str, *, noised: bool) -> Carried:
    own = Personal(model, (personal,) if personal else ())
    buffers = Buffers(model, kind, own.tensors)
    first = (buffers.first(), own.first())
    return Carried.restored(own, buffers, kind, view, noised=noised, first=first, optimized=model)


def view_of(state: dict[str, Any], broadcast: dict[str, Any]) -> View:
    nothing: Any = None
    return View(state, broadcast, nothing, nothing)


def network(torch: Any) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))


@pytest.mark.parametrize("noised", [False, True])
def test_own_buffers_go_on_from_rounds_of_their_kind(noised: bool) -> None:
    torch = pytest.importorskip("torch", reason="needs the group torch")
    model = network(torch)
    kept, other = np.arange(5.0), np.full(5, 9.0)
    view = view_of({LOCAL_BUFFERS[noised]: kept, LOCAL_BUFFERS[not noised]: other}, {})
    one = carried(model, view, "local", "", noised=noised)
    assert model[0].running_mean.tolist() == [0.0, 1.0]
    assert int(model[0].num_batches_tracked) == 4
    model[0].running_mean += 10.0
    done = one.ended(Local({"d": np.ones(1)}, {"x": np.ones(1)}, ()))
    assert done.state.keys() == {"d", LOCAL_BUFFERS[noised], OPTIMIZERS[noised]}
    assert done.state[LOCAL_BUFFERS[noised]].tolist() == [10.0, 11.0, 2.0, 3.0, 4.0]
    assert done.upload.keys() == {"x"}


def test_averaged_buffers_come_with_the_broadcast_and_are_sent() -> None:
    torch = pytest.importorskip("torch", reason="needs the group torch")
    model = network(torch)
    view = view_of({BUFFERS: np.full(4, 9.0)}, {BUFFERS: np.arange(4.0, dtype="f4")})
    one = carried(model, view, "average", "", noised=False)
    assert model[0].running_var.tolist() == [2.0, 3.0]
    model[0].running_var += 1.0
    done = one.ended(Local({}, {"x": np.ones(1)}, ()))
    assert done.upload[BUFFERS].tolist() == [0.0, 1.0, 3.0, 4.0]
    assert done.state.keys() == {OPTIMIZERS[False]}


def test_constant_buffers_end_as_the_round_began_with_them_and_are_not_sent() -> None:
    torch = pytest.importorskip("torch", reason="needs the group torch")
    model = network(torch)
    one = carried(model, view_of({}, {BUFFERS: np.arange(4.0)}), "constant", "", noised=False)
    model[0].running_mean += 5.0
    done = one.ended(Local({}, {"x": np.ones(1)}, ()))
    assert model[0].running_mean.tolist() == [0.0, 1.0]
    assert done.upload.keys() == {"x"}


def test_own_layers_go_on_from_the_state_and_stay_in_it() -> None:
    torch = pytest.importorskip("torch", reason="needs the group torch")
    model, other = network(torch), network(torch)
    with torch.no_grad():
        other[1].weight.fill_(3.0)
    held = Personal(other, ("1",)).read()
    one = carried(model, view_of({PERSONAL: held}, {}), "constant", "1", noised=False)
    assert model[1].weight.tolist() == [[3.0, 3.0]]
    with torch.no_grad():
        model[1].weight += 1.0
    done = one.ended(Local({}, {"x": np.ones(1)}, ()))
    again = network(torch)
    Personal(again, ("1",)).write(done.state[PERSONAL])
    assert again[1].weight.tolist() == [[4.0, 4.0]]
    assert done.upload.keys() == {"x"}
