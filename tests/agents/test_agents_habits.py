"""Habits of PyTorch users: loops that ran under Flower's FedAvg, unchanged, in no more lines."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from privet.client_apps import LoopParticipant, initial_arrays
from privet.core import ConfigError
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT

torch = pytest.importorskip("torch", reason="needs the group torch")
nn = torch.nn
loss_of = nn.functional.cross_entropy
INPUTS = torch.randn(96, 8, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS.sum(1) > 0).long()
Loop = Callable[[Any, int], None]


def make() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def batches() -> Any:
    return zip(INPUTS.split(16), LABELS.split(16), strict=True)


def flowers(loop: Loop, made: Callable[[], Any] = make) -> Any:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = made()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loop(model, message.content["config"]["server-round"])
        metrics = MetricRecord({"num-examples": 96})
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    return app


def privets(loop: Loop, made: Callable[[], Any] = make) -> Any:
    participant = LoopParticipant(None, made, lambda context: 96)
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = made()
        with participant.round(message, context, model, hook=True) as local:
            loop(model, local.round)
        return local.reply()

    return app


def adam(model: Any, number: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
    for inputs, labels in batches():
        optimizer.zero_grad()
        loss_of(model(inputs), labels).backward()
        optimizer.step()


def schedules(model: Any, number: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2 * 0.9**number)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    for inputs, labels in batches():
        optimizer.zero_grad()
        loss_of(model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def accumulation(model: Any, number: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for place, (inputs, labels) in enumerate(batches()):
        (loss_of(model(inputs), labels) / 2).backward()
        if place % 2:
            optimizer.step()
            optimizer.zero_grad()


def half_precision(model: Any, number: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for inputs, labels in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model(inputs), labels)
        loss.backward()
        optimizer.step()


def sharpness_aware(model: Any, number: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for inputs, labels in batches():
        optimizer.zero_grad()
        loss_of(model(inputs), labels).backward()
        moves = [0.01 * each.grad.sign() for each in model.parameters()]
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), moves)
        optimizer.zero_grad()
        loss_of(model(inputs), labels).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moves)
        optimizer.step()


def two_optimizers(model: Any, number: int) -> None:
    first = torch.optim.SGD(model[0].parameters(), lr=0.2)
    last = torch.optim.Adam(model[2].parameters(), lr=0.03)
    for inputs, labels in batches():
        model.zero_grad()
        loss_of(model(inputs), labels).backward()
        first.step()
        last.step()


def teacher(model: Any, number: int) -> None:
    """The one it learns from is another network, with an optimizer of its own."""
    other = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.2) for each in (other, model)]
    for inputs, labels in batches():
        other.zero_grad()
        model.zero_grad()
        loss_of(other(inputs), labels).backward()
        soft = other(inputs).detach().softmax(1)
        (loss_of(model(inputs), labels) + loss_of(model(inputs), soft)).backward()
        for optimizer in optimizers:
            optimizer.step()


def unfreezing(model: Any, number: int) -> None:
    model[0].requires_grad_(number > 1)
    adam(model, number)


def class_weights(model: Any, number: int) -> None:
    loss, optimizer = (
        nn.CrossEntropyLoss(weight=torch.tensor([0.5, 2.0])),
        torch.optim.SGD(model.parameters(), lr=0.2),
    )
    for inputs, labels in batches():
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()
        optimizer.step()


def compiled(model: Any, number: int) -> None:
    fast = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.2)
    for inputs, labels in batches():
        optimizer.zero_grad()
        loss_of(fast(inputs), labels).backward()
        optimizer.step()


def loader_workers(model: Any, number: int) -> None:
    rows = torch.utils.data.TensorDataset(INPUTS, LABELS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for inputs, labels in torch.utils.data.DataLoader(rows, 16, shuffle=True, num_workers=1):
        optimizer.zero_grad()
        loss_of(model(inputs), labels).backward()
        optimizer.step()


def closures(model: Any, number: int) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")
    for inputs, labels in batches():

        def closure(inputs: Any = inputs, labels: Any = labels) -> Any:
            optimizer.zero_grad()
            loss = loss_of(model(inputs), labels)
            loss.backward()
            return loss

        optimizer.step(closure)


def scaled_gradients(model: Any, number: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = torch.amp.GradScaler("cpu")
    for inputs, labels in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def steps_in_the_backward_pass(model: Any, number: int) -> None:
    """An optimizer a parameter, which steps as soon as its gradient is there."""
    own = {each: torch.optim.SGD([each], lr=0.2) for each in model.parameters()}

    def step(parameter: Any) -> None:
        own[parameter].step()
        own[parameter].zero_grad()

    for each in own:
        each.register_post_accumulate_grad_hook(step)
    for inputs, labels in batches():
        loss_of(model(inputs), labels).backward()


def groups_and_an_average(model: Any, number: int) -> None:
    """Layers have steps of their own, and the mean of the iterates is what is sent."""
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.2, momentum=0.9, nesterov=True, weight_decay=1e-4)
    average = torch.optim.swa_utils.AveragedModel(model)
    for inputs, labels in batches():
        optimizer.zero_grad()
        loss_of(model(inputs), labels).backward()
        optimizer.step()
        average.update_parameters(model)
    model.load_state_dict(average.module.state_dict())


HABITS = (
    adam,
    schedules,
    accumulation,
    half_precision,
    sharpness_aware,
    two_optimizers,
    teacher,
    unfreezing,
    class_weights,
    closures,
    scaled_gradients,
    steps_in_the_backward_pass,
    groups_and_an_average,
)
SLOW = (compiled, loader_workers)  # what they load and start


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
@pytest.mark.parametrize(
    "loop",
    [*HABITS, *(pytest.param(loop, marks=pytest.mark.slow) for loop in SLOW)],
    ids=lambda loop: loop.__name__,
)
def test_a_habit_is_kept(loop: Loop) -> None:
    strategy: Any = FedPLT(num_agents=2)
    result = strategy.start(InlineGrid(privets(loop), 2), initial_arrays(make()), num_rounds=3)
    assert not any(each.failures for each in result.history)
    model = make()
    before = loss_of(model(INPUTS), LABELS).item()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    assert loss_of(model(INPUTS), LABELS).item() < before


def lazy() -> Any:
    """Lazy layers have their shapes after a call."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(2))
    model(INPUTS[:1])
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "bfloat16": lambda: nn.Sequential(Cast(torch.bfloat16), make().bfloat16(), Cast(torch.float32)),
    "mixed": lambda: nn.Sequential(make(), Cast(torch.float64), nn.Linear(2, 2).double()),
    "data-parallel": lambda: nn.DataParallel(make()),
    "lazy": lazy,
}


class Cast(nn.Module):  # type: ignore[misc]
    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, inputs: Any) -> Any:
        return inputs.to(self.dtype)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_kept_as_it_is(name: str) -> None:
    made = MODELS[name]
    strategy: Any = FedPLT(num_agents=2)
    result = strategy.start(
        InlineGrid(privets(adam, made), 2), initial_arrays(made()), num_rounds=3
    )
    model = made()
    before = loss_of(model(INPUTS).float(), LABELS).item()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    assert loss_of(model(INPUTS).float(), LABELS).item() < before


def test_a_lazy_layer_without_a_shape_is_named() -> None:
    def made() -> Any:
        return nn.Sequential(nn.LazyLinear(2))

    with pytest.raises(ConfigError, match=r"'0.weight' is a lazy parameter, .* call the model on"):
        LoopParticipant(None, made, lambda context: 96)
    with pytest.raises(ConfigError, match=r"'0.weight' is a lazy parameter"):
        initial_arrays(made())


@pytest.mark.filterwarnings("ignore")
def test_no_habit_takes_more_lines_than_under_fed_avg() -> None:
    """Both apps take each loop as it is, so that what is around it decides."""
    ours, theirs = (len(inspect.getsource(each).splitlines()) for each in (privets, flowers))
    assert ours <= theirs
    strategy: Any = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    start = ArrayRecord(make().state_dict())
    for loop in HABITS:
        grid = InlineGrid(flowers(loop), 2)
        assert strategy.start(grid, start, num_rounds=1).arrays


def test_the_best_model_and_early_stopping_on_validation_data() -> None:
    """As under FedAvg ``evaluate_fn`` keeps the best; the record has what it returned."""
    best: dict[str, Any] = {"accuracy": -1.0}

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = make()
        model.load_state_dict(arrays.to_torch_state_dict())
        outputs = model(INPUTS)
        accuracy = float((outputs.argmax(1) == LABELS).float().mean())
        if accuracy > best["accuracy"]:
            best.update(accuracy=accuracy, arrays=arrays, round=number)
        return MetricRecord({"accuracy": accuracy, "loss": loss_of(outputs, LABELS).item()})

    strategy: Any = FedPLT(num_agents=2)
    result = strategy.start(
        InlineGrid(privets(adam), 2),
        initial_arrays(make()),
        num_rounds=20,
        evaluate_fn=evaluate,
        should_stop=lambda done: done.accuracy >= 0.97,
    )
    last = result.history[-1]
    assert 0 < last.round < 20
    assert best["round"] == last.round
    assert best["accuracy"] == last.accuracy >= 0.97
    assert last.loss == result.evaluate_metrics_serverapp[last.round]["loss"]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_loop_of_opacus_is_one_with_the_hook() -> None:
    """With no noise and no clip that is reached it gives the numbers of the plain loop."""
    opacus = pytest.importorskip("opacus", reason="needs the group torch")

    def plain(model: Any, number: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model(INPUTS), LABELS).backward()
            optimizer.step()

    def private(model: Any, number: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = torch.utils.data.TensorDataset(INPUTS, LABELS)
        loader = torch.utils.data.DataLoader(rows, batch_size=len(INPUTS))
        wrapped, optimizer, loader = opacus.PrivacyEngine().make_private(
            module=model.train(),
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=0.0,
            max_grad_norm=1e4,
            poisson_sampling=False,
        )
        for _ in range(3):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_of(wrapped(inputs), labels).backward()
                optimizer.step()

    found = [
        FedPLT(num_agents=2, rho=2.0).start(
            InlineGrid(privets(loop), 2), initial_arrays(make()), num_rounds=3
        )
        for loop in (plain, private)
    ]
    assert not any(done.failures for each in found for done in each.history)
    for name, array in found[0].arrays.items():
        assert found[1].arrays[name].numpy() == pytest.approx(array.numpy(), abs=2e-6)
        assert abs(array.numpy() - initial_arrays(make())[name].numpy()).max() > 1e-3
