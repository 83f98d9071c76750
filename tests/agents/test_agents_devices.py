"""What crosses between a model's device and the processor in a round, on a device that counts it.

The device is made of tensors that say they lie on ``meta`` and hold their numbers apart. As on a
GPU, an operation on tensors of two devices fails, and so does numpy; a copy from one to the other
is written down.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import Context, Message

from privet.agents.loop import parameters as of_parameters
from privet.agents.loop.crossing import Pinned
from privet.agents.loop.parameters import parameters_of
from privet.client_apps import LoopParticipant, initial_arrays
from privet.kernel.programs.steps import LocalTask
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn, FedPDM, FedPLT, PrimalDualStrategy, Scaffold

torch = pytest.importorskip("torch", reason="needs the group torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map_only  # noqa: E402

AGENTS, ROWS, STEPS = 2, 12, 3
LOCAL: dict[str, Any] = {
    "step_size_base": 0.05,
    "step_size_rule": "constant",
    "max_local_steps": STEPS,
}
FED_PLT: dict[str, Any] = {"num_agents": AGENTS, "step_size": 0.05, "local_epochs": STEPS}
crossed: Counter[str] = Counter()


class Far(torch.Tensor):  # type: ignore[misc]
    """A tensor on the device; ``held`` has its numbers."""

    @staticmethod
    def __new__(cls, held: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, dtype=held.dtype, device="meta", strides=held.stride()
        )

    def __init__(self, held: Any) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(function, args, kwargs or {})


class Device(TorchDispatchMode):  # type: ignore[misc]
    """Lets new tensors get to the device, and old ones."""

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(function, args, kwargs or {})


def compute(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation where its tensors lie, and write down what it copies to where."""
    aten = torch.ops.aten
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    far = [isinstance(each, Far) for each in tensors]
    target = kwargs.get("device")
    to_far = any(far) if target is None else torch.device(target).type == "meta"
    if function is aten._to_copy.default:
        if to_far != far[0]:
            crossed["in" if to_far else "out"] += tensors[0].numel()
    elif function is aten.copy_.default:
        if far[0] != far[1]:
            crossed["in" if far[0] else "out"] += tensors[1].numel()
        if far[1] and not far[0] and len(args) > 2 and args[2]:  # non_blocking
            FakePinned.late.append((tensors[0], tensors[1].held.clone()))
            return tensors[0]
    elif any(far):
        near = [each for each in tensors if not isinstance(each, Far) and each.dim()]
        assert not near, f"{function} of tensors on two devices"
        if function in (aten._local_scalar_dense.default, aten.equal.default):
            crossed["looks"] += 1
    args_held, kwargs_held = tree_map_only(Far, lambda each: each.held, (args, kwargs))
    if to_far and target is not None:
        kwargs_held["device"] = "cpu"
    found = function(*args_held, **kwargs_held)
    if not to_far or found is None:
        return found
    if function._schema.is_mutable and isinstance(found, torch.Tensor):
        return args[0]
    return tree_map_only(torch.Tensor, Far, found)


def moved(module: Any) -> Any:
    """Return a module whose parameters and buffers are on the device."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            part._parameters[name] = torch.nn.Parameter(Far(parameter.detach().clone()))
        for name, buffer in part._buffers.items():
            part._buffers[name] = Far(buffer.clone())
    return module


def network(kind: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.ReLU(), nn.Linear(3, 2)).to(kind)


def batch_normed(kind: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).to(kind)


def loss_of(model: Any, batch: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


Loop = Callable[[Any, Any, Any], None]


def own_steps(local: Any, model: Any, batch: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=local.step_size, momentum=0.0)
    for _ in range(local.steps):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        local.correct(model)
        optimizer.step()


def private_steps(local: Any, model: Any, batch: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=local.step_size)
    for _ in range(local.steps):
        local.private_step(loss_of, batch, optimizer)


def trained(
    strategy: PrimalDualStrategy,
    name: str,
    make: Callable[[], Any],
    loop: Loop = own_steps,
    *,
    far: bool,
) -> tuple[Any, list[dict[str, Counter[str]]]]:
    """Run three rounds; return the result and what crossed in the parts of every agent's round."""
    participant = LoopParticipant(name, make, lambda context: ROWS)
    app, seen = participant.app(), []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        draw = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
        batch: Any = (
            torch.randn(ROWS, 4, generator=draw).to(next(make().parameters()).dtype),
            torch.randint(2, (ROWS,), generator=draw),
        )
        model, parts = make(), {}
        if far:
            model, batch = moved(model), tuple(map(Far, batch))
        with Device() if far else contextlib.nullcontext():
            crossed.clear()
            with participant.round(message, context, model) as local:
                parts["begin"] = Counter(crossed)
                crossed.clear()
                loop(local, model, batch)
                parts["steps"] = Counter(crossed)
                crossed.clear()
            reply = local.reply()
            parts["reply"] = Counter(crossed)
        seen.append(parts)
        return reply

    result = strategy.start(InlineGrid(app, AGENTS), initial_arrays(make()), num_rounds=3)
    return result, seen


def same_arrays(one: Any, other: Any) -> bool:
    return all(
        np.array_equal(one.arrays[key].numpy(), other.arrays[key].numpy()) for key in one.arrays
    )


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("name", "strategy", "vectors_out"),
    [
        ("fed-plt", lambda: FedPLT(**FED_PLT), 1),
        ("fed-pdm", lambda: FedPDM(num_agents=AGENTS, **LOCAL), 1),
        ("fed-dyn", lambda: FedDyn(num_agents=AGENTS, **LOCAL), 1),
        ("scaffold", lambda: Scaffold(num_agents=AGENTS, **LOCAL), 2),
    ],
    ids=["fed-plt", "fed-pdm", "fed-dyn", "scaffold"],
)
def test_a_round_crosses_once_in_and_once_out(
    kind: Any, name: str, strategy: Any, vectors_out: int
) -> None:
    """Start and what every step adds in, the end out; SCAFFOLD's mean gradient too."""

    def make() -> Any:
        return network(kind)

    dim = sum(each.numel() for each in make().parameters())
    near, _ = trained(strategy(), name, make, far=False)
    result, seen = trained(strategy(), name, make, far=True)
    assert len(seen) == 3 * AGENTS
    for parts in seen:
        assert parts["steps"] == Counter()
        assert parts["reply"] == Counter(out=vectors_out * dim)
    assert {parts["begin"]["in"] for parts in seen} == {2 * dim}
    assert same_arrays(result, near)


class FakePinned(Pinned):
    """Pinned memory of the test's device: what is copied to it is there after `wait` alone."""

    vectors: ClassVar[Counter[str]] = Counter()
    late: ClassVar[list[tuple[Any, Any]]] = []

    @classmethod
    def where_useful(cls, tensors: Any) -> Any:
        return cls(()) if any(isinstance(each.data, Far) for each in tensors) else None

    def holding(self, vector: Any) -> Any:
        self.vectors["in"] += 1
        return vector.clone()

    def empty(self, size: int, dtype: Any) -> Any:
        self.vectors["out"] += 1
        return torch.full((size,), math.nan, dtype=dtype)

    def wait(self) -> None:
        for near, far in self.late:
            near.copy_(far)
        self.late.clear()


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        (torch.float64, lambda: FedPLT(**FED_PLT)),
        (torch.bfloat16, lambda: Scaffold(num_agents=AGENTS, **LOCAL)),
    ],
    ids=["fed-plt", "scaffold"],
)
def test_copies_of_a_gpu_go_through_pinned_memory_and_are_waited_for(
    kind: Any, strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that copies later stands for one: none is at hand in the tests."""
    make, name = lambda: network(kind), strategy().algorithm
    near, _ = trained(strategy(), name, make, far=False)
    monkeypatch.setattr(of_parameters, "Pinned", FakePinned)
    FakePinned.vectors.clear()
    result, seen = trained(strategy(), name, make, far=True)
    assert FakePinned.vectors["in"] == 2 * len(seen), "start and what is added"
    assert FakePinned.vectors["out"] == {"fed-plt": 1, "scaffold": 2}[name] * len(seen)
    assert not FakePinned.late
    assert same_arrays(result, near)


def test_averaged_statistics_cross_with_the_parameters() -> None:
    dims = [each.numel() for each in batch_normed().parameters()]
    dim, statistics = sum(dims), 6
    strategy: Any = FedDyn(num_agents=AGENTS, **LOCAL)
    near, _ = trained(strategy, "fed-dyn", batch_normed, far=False)
    strategy = FedDyn(num_agents=AGENTS, **LOCAL)
    result, seen = trained(strategy, "fed-dyn", batch_normed, far=True)
    for parts in seen:
        assert parts["begin"] == Counter({"in": 2 * dim + statistics})
        assert parts["steps"] == Counter()
        assert parts["reply"] == Counter(out=dim + statistics)
    assert same_arrays(result, near)


def test_a_private_step_crosses_with_its_clipped_sum_alone(monkeypatch: Any) -> None:
    """Noise is drawn where all noise is; what else is read are answers of yes and no."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # no meta
    dim = sum(each.numel() for each in network().parameters())

    def strategy() -> FedDyn:
        return FedDyn(num_agents=AGENTS, clip=1.0, noise_scale=0.1, noise_seed=7, **LOCAL)

    near, _ = trained(strategy(), "fed-dyn", network, private_steps, far=False)
    result, seen = trained(strategy(), "fed-dyn", network, private_steps, far=True)
    tensors = len(list(network().parameters()))
    for parts in seen:
        assert parts["steps"]["out"] == parts["steps"]["in"] == STEPS * dim
        mean = 5  # losses, and sizes of gradients: whether they are means over examples, a round
        assert parts["steps"]["looks"] == STEPS * (1 + tensors) + mean
        assert parts["reply"]["out"] == dim
    assert same_arrays(result, near)


def test_what_is_added_follows_a_model_that_a_trainer_has_moved() -> None:
    """As Lightning does within ``fit``: the round began where the model lay before."""
    model = network()
    parameters = parameters_of(model)
    dim = sum(each.numel() for each in model.parameters())
    shift = np.arange(dim, dtype="f4")
    task = LocalTask(np.zeros(dim, "f4"), 0.1, 1, shift=shift)
    parameters.begin(task, False)
    parameters._fixed = {name: Far(term) for name, term in (parameters._fixed or {}).items()}
    crossed.clear()
    for _ in range(2):
        parameters.correct(None)
    found = torch.cat([each.grad.reshape(-1) for each in model.parameters()])
    assert np.array_equal(found.numpy(), 2 * shift)
    assert crossed == Counter(out=dim)  # once


def test_sums_are_one_vector_which_is_copied_where_a_model_was_moved_alone() -> None:
    """Of gradients 1, 2 and 3 the mean is 2, on either device at the end."""
    dim = sum(each.numel() for each in network().parameters())
    for away in (False, True):
        model = network()
        parameters = parameters_of(model)
        parameters.begin(LocalTask(np.zeros(dim, "f4"), 0.1, 3), True)
        total = parameters._total
        for number in (1.0, 2.0, 3.0):
            for each in model.parameters():
                each.grad = torch.full_like(each, number)
            parameters.correct(None)
        if away:
            slopes = (parameters._slopes or {}).items()
            parameters._slopes = {name: Far(term.clone()) for name, term in slopes}
            total.fill_(math.nan)
        mean = parameters.mean(3)
        assert mean is not None
        assert np.array_equal(mean, np.full(dim, 2.0, "f4"))
        assert np.shares_memory(mean, total.numpy()) is not away
