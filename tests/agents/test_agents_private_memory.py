"""Private steps on modules and losses that remember examples, or do not run under vmap."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message

from privet.agents.adapters.networks.clipping import VmapError
from privet.agents.loop.private_steps import summed
from privet.client_apps import LoopParticipant, TorchProblem, client_app, initial_arrays
from privet.core import ConfigError, RunError
from privet.kernel import Told, clipped_sensitivity
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn, Scaffold
from support.told import refused

torch = pytest.importorskip("torch", reason="needs the group torch")
nn = torch.nn
ROWS = 300  # three blocks of at most 128
FEW = 140
SETTINGS = {"num_agents": 1, "clip": 0.5, "noise_scale": 0.02, "max_local_steps": 1}


class Remembering(nn.Module):
    """A linear layer that keeps something of what it sees, and uses it."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.how = nn.Linear(4, 2).double(), how
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
        self.plain, self.list = torch.zeros(4, dtype=torch.float64), list[Any]()
        self.table = {"seen": self.plain}

    def forward(self, inputs: Any) -> Any:
        seen = inputs.detach().abs().mean(0)
        if self.how == "buffer":
            self.mean = torch.maximum(self.mean, seen)
        elif self.how == "attribute":
            self.plain = torch.maximum(self.plain, seen)
        elif self.how == "list":
            self.list.append(seen)
        elif self.how == "table":
            self.table["seen"] = torch.maximum(self.table["seen"], seen)
        elif self.how == "new":
            self.register_buffer("fresh", seen)
        last = self.list[-1] if self.list else 0.0
        return self.layer(inputs - self.mean - self.plain - self.table["seen"] - last)


def loss(model: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def remembering_loss() -> Callable[[Any, Any], Any]:
    kept: list[Any] = []

    def remembers(model: Any, batch: Any) -> Any:
        outputs = model(batch[0])
        kept.append(outputs.detach())
        return nn.functional.cross_entropy(outputs - kept[0], batch[1])

    return remembers


class RememberingLoss:
    def __init__(self) -> None:
        self.kept: Any = None

    def __call__(self, model: Any, batch: Any) -> Any:
        outputs = model(batch[0])
        self.kept = outputs.detach()
        return nn.functional.cross_entropy(outputs, batch[1])


def data(rows: int = ROWS) -> Any:
    inputs = torch.randn(rows, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return inputs, (inputs[:, 0] > 0).long()


def played(make: Any, loss_fn: Any, batch: Any = None, nodes: Any = 1, **more: Any) -> Any:
    """Return the result of a round whose step is taken twice, the first one of another loop."""
    batch = data() if batch is None else batch
    rows = len(batch[0])
    participant = LoopParticipant("scaffold", make, lambda context: rows, buffers="constant")
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = make()
        with participant.round(message, context, model) as local:
            for _ in range(local.steps):
                local.private_step(loss_fn, batch)
        return local.reply()

    strategy = Scaffold(**{**SETTINGS, **more})
    return strategy.start(InlineGrid(app, nodes), initial_arrays(make()), num_rounds=1)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("buffer", "the buffer 'mean'"),
        ("attribute", "'plain' of Remembering"),
        ("list", "'list' of Remembering"),
        ("table", "'table' of Remembering"),
        ("new", "('_buffers' of Remembering|the buffer 'fresh')"),
    ],
)
@pytest.mark.parametrize("rows", [ROWS, 5])
def test_a_module_that_remembers_is_refused(how: str, said: str, rows: int) -> None:
    with refused(Told.MEMORY, f"{said} keeps what it computes from one example for other"):
        played(lambda: Remembering(how), loss, data(rows))


def test_a_module_that_remembers_nothing_is_not() -> None:
    assert not played(Remembering, loss).history[0].failures


@pytest.mark.parametrize("made", [remembering_loss, RememberingLoss])
def test_a_loss_that_remembers_is_refused(made: Any) -> None:
    with refused(Told.MEMORY, "the loss keeps what it computes from one example"):
        played(Remembering, made())


KEPT: list[Any] = []


class Outside(nn.Module):
    """What it keeps is no attribute of an instance."""

    seen: Any = None

    def __init__(self, where: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.where = nn.Linear(4, 2).double(), where

    def forward(self, inputs: Any) -> Any:
        mean = inputs.detach().mean(0)
        if self.where == "class":
            held = Outside.seen
            mean = Outside.seen = mean if held is None else torch.maximum(held, mean)
        elif self.where == "file":
            KEPT.append(mean)
            mean = KEPT[0]
        elif self.where == "handed on" and KEPT:  # by one block, to the next, which keeps nothing
            mean = KEPT.pop()
        elif self.where == "handed on":
            KEPT.append(mean)
        return self.layer(inputs - mean if self.where else inputs)


@pytest.fixture
def nothing_kept() -> Iterator[None]:
    yield
    Outside.seen = None
    KEPT.clear()


OUTSIDE = "a global name, a class or an object outside of the module keeps what it computes"


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("where", ["class", "file", "handed on"])
def test_what_is_kept_outside_of_the_module_is_found(where: str) -> None:
    """Wherever it is, and after the block that left it: 200 rows are two blocks."""
    with refused(Told.MEMORY, OUTSIDE):
        played(lambda: Outside(where), loss, data(200))


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("per_example", ["vmap", "loop"])
@pytest.mark.parametrize("where", ["class", "file", "handed on"])
def test_the_built_in_solver_finds_it_too(where: str, per_example: str) -> None:
    cross_entropy = nn.functional.cross_entropy
    problem = TorchProblem(Outside(""), cross_entropy, data(200), per_example=per_example)
    problem.module.where = where
    with pytest.raises(ConfigError, match=OUTSIDE):
        problem.clipped_term(np.full(problem.dim, 0.3), 0.1)


def test_what_refers_to_itself_is_not_kept() -> None:
    """A tensor in a circle of references lives until it is collected, and is no memory."""

    class Circle(Remembering):
        def forward(self, inputs: Any) -> Any:
            circle: dict[str, Any] = {"seen": inputs * 2.0}
            circle["itself"] = circle
            return self.layer(circle["seen"])

    assert not played(Circle, loss).history[0].failures


@pytest.mark.parametrize("per_example", ["vmap", "loop"])
@pytest.mark.parametrize("how", ["buffer", "attribute", "list", "table"])
def test_the_built_in_solver_refuses_it_or_forgets_it(how: str, per_example: str) -> None:
    """What one record moves stays below the sensitivity, where it would move all that follow."""
    inputs, targets = data(FEW)
    loud = inputs.clone()
    loud[0] = 50.0
    sums = []
    for each in (inputs, loud):
        problem = TorchProblem(
            Remembering(),
            nn.functional.cross_entropy,
            (each, targets),
            per_example=per_example,
            buffers="constant",
        )
        problem.module.how = how
        start = np.full(problem.dim, 0.3)
        if per_example == "vmap" or how == "buffer":
            with pytest.raises(ConfigError, match="keeps what it computes from one example"):
                problem.clipped_term(start, 0.1)
            return
        sums.append(problem.clipped_term(start, 0.1)[0])
    bound = clipped_sensitivity(0.1, divisor=FEW, num_examples=FEW, dtype="float64")
    assert np.linalg.norm(sums[0] - sums[1]) <= bound


class Renormed(Remembering):
    """It writes rows of its weights that it looks up as those of a table."""

    def forward(self, inputs: Any) -> Any:
        known = (inputs[:, 0] > 0).long()
        looked = nn.functional.embedding(known, self.layer.weight, max_norm=0.1)
        return self.layer(inputs + looked)


def test_weights_that_a_record_writes_do_not_leave() -> None:
    with pytest.raises(RunError, match="the model was changed outside of private_step"):
        played(Renormed, loss)
    problem = TorchProblem(Renormed(), nn.functional.cross_entropy, data(), buffers="constant")
    with pytest.raises(ConfigError, match="module or loss writes parameters"):
        problem.clipped_term(np.full(problem.dim, 0.3), 0.1)


def test_a_buffer_that_is_moved_between_steps_does_not_leave() -> None:
    def moves(model: Any, batch: Any) -> Any:
        return loss(model, batch)

    participant = LoopParticipant("fed-dyn", Remembering, lambda context: ROWS, buffers="constant")
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = Remembering()
        with participant.round(message, context, model) as local:
            local.private_step(moves, data())
            model.mean += data()[0].mean(0)
        return local.reply()

    with pytest.raises(RunError, match="the model was changed outside of private_step"):
        FedDyn(**SETTINGS).start(InlineGrid(app, 1), initial_arrays(Remembering()), num_rounds=1)


def test_a_spectral_norm_goes_on_with_its_iteration() -> None:
    """Its vectors follow from the weights alone; copies would begin anew in every step."""

    def make() -> Any:
        torch.manual_seed(3)
        layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2).double())
        return nn.Sequential(layer)

    name = "0.parametrizations.weight.0._u"
    seen: list[Any] = []

    participant = LoopParticipant("fed-dyn", make, lambda context: 5, buffers="constant")
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = make()
        with participant.round(message, context, model) as local:
            for _ in range(local.steps):
                seen.append(dict(model.named_buffers())[name].clone())
                local.private_step(loss, data(5))
        return local.reply()

    settings = {**SETTINGS, "max_local_steps": 4, "step_size_base": 2.0}
    strategy = FedDyn(**settings, step_size_rule="constant")
    done = strategy.start(InlineGrid(app, 1), initial_arrays(make()), num_rounds=1)
    assert not done.history[0].failures
    assert len({tuple(each.tolist()) for each in seen}) >= 3


WEIGHT = torch.tensor([0.01, 20.0], dtype=torch.float64)


def weighted(model: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], weight=WEIGHT)


def weighted_module(model: Any, batch: Any) -> Any:
    return nn.CrossEntropyLoss(weight=WEIGHT)(model(batch[0]), batch[1])


def weighted_nll(model: Any, batch: Any) -> Any:
    return nn.functional.nll_loss(model(batch[0]).log_softmax(1), batch[1], weight=WEIGHT)


def weighted_exactly(model: Any, batch: Any) -> Any:
    each = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return (WEIGHT[batch[1]] * each).mean()


def weighted_by_hand(model: Any, batch: Any) -> Any:
    each = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return (WEIGHT[batch[1]] * each).sum() / WEIGHT[batch[1]].sum()


def test_class_weights_that_would_cancel_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    for loss_fn in (weighted, weighted_module, weighted_nll):
        with refused(Told.CLASS_WEIGHTS, r"\(weight=...\) divides by the weights of a batch"):
            played(Remembering, loss_fn)
    with refused(Told.NO_MEAN, "not the mean of their losses"):
        played(Remembering, weighted_by_hand)
    caplog.clear()
    assert not played(Remembering, weighted_exactly).history[0].failures
    assert "not the mean" not in caplog.text


class Zero(nn.Module):
    """All losses are ln 2 at its start, whatever their weights, also those of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2).double()
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, inputs: Any) -> Any:
        return self.layer(inputs)


def test_weights_are_noticed_where_all_losses_are_equal() -> None:
    inputs, targets = data(8)
    sequences = torch.stack([inputs, inputs.flip(0)], 1), torch.stack([targets, targets.flip(0)], 1)

    def of_sequences(model: Any, batch: Any) -> Any:
        logits = model(batch[0]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, batch[1].flatten(), weight=WEIGHT)

    participant = LoopParticipant("scaffold", Zero, lambda context: 8)
    for loss_fn, batch in ((weighted_by_hand, data(8)), (of_sequences, sequences)):
        with pytest.raises(ConfigError, match="not the mean of their losses"):
            participant.check(loss_fn, batch)
    for loss_fn in (loss, weighted_exactly):
        participant.check(loss_fn, data(8))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 2).double())
        self.chooser = Chooser()

    def forward(self, inputs: Any) -> Any:
        return self.chooser(self.inner(inputs))


class Chooser(nn.Module):
    def forward(self, inputs: Any) -> Any:
        return inputs if inputs.sum() > 0 else 1.0 * inputs


def test_what_does_not_run_under_vmap_is_one_line_at_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.WARNING, "flwr.privet"),
        pytest.raises(RunError, match=Told.VMAP.split(";")[0]) as refused,
    ):
        played(Branching, loss)
    line = r"layer 'chooser' (Chooser) does not run under torch.func.vmap: RuntimeError: vmap: It"
    assert line not in str(refused.value)
    (record,) = [each for each in caplog.records if line in each.getMessage()]
    assert record.exc_info is None
    assert "\n" not in record.getMessage()


def test_check_says_it_before_a_round() -> None:
    made_up = (torch.zeros(3, 4, dtype=torch.float64), torch.tensor([0, 1, 0]))
    for make, loss_fn, kind, said in (
        (Branching, loss, VmapError, "layer 'chooser'"),
        (lambda: Remembering("list"), loss, ConfigError, "'list' of Remembering keeps"),
        (lambda: nn.BatchNorm1d(4).double(), loss, ConfigError, "BatchNorm mixes"),
        (Remembering, weighted, ConfigError, "divides by the weights"),
        (Remembering, weighted_by_hand, ConfigError, "not the mean of their losses"),
        (lambda: {"w": np.zeros(4)}, loss, ConfigError, "trains a torch.nn.Module"),
    ):
        participant = LoopParticipant("scaffold", make, lambda context: 3)
        with pytest.raises(kind, match=said):
            participant.check(loss_fn, made_up)
    LoopParticipant("scaffold", Remembering, lambda context: 3).check(loss, made_up)


def test_a_built_in_solver_says_it_in_one_line_too(caplog: pytest.LogCaptureFixture) -> None:
    def problem(context: Context) -> TorchProblem:
        return TorchProblem(Branching(), nn.functional.cross_entropy, data())

    grid, start = InlineGrid(client_app("scaffold", problem), 1), initial_arrays(Branching())
    with (
        caplog.at_level(logging.WARNING, "flwr.privet"),
        pytest.raises(RunError, match=Told.VMAP.split(";")[0]),
    ):
        Scaffold(**SETTINGS).start(grid, start, num_rounds=1)
    assert "layer 'chooser' (Chooser) does not run under torch.func.vmap" in caplog.text


class Largest(torch.autograd.Function):
    """Twice its input, with slopes times the largest number that it was given."""

    @staticmethod
    def forward(inputs: Any) -> Any:
        return 2.0 * inputs

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, slopes: Any) -> Any:
        (inputs,) = ctx.saved_tensors
        return slopes * inputs.abs().max()


class MixedByVmap(Largest):
    @staticmethod
    def vmap(info: Any, in_dims: Any, inputs: Any) -> Any:
        return MixedByVmap.apply(inputs), in_dims[0]


class Apart(Largest):
    generate_vmap_rule = True


class Rowwise(Apart):
    """With slopes times the largest number of each example."""

    @staticmethod
    def backward(ctx: Any, slopes: Any) -> Any:
        (inputs,) = ctx.saved_tensors
        return slopes * inputs.abs().amax(-1, keepdim=True)


class Around(torch.autograd.Function):
    """Whose own rule is safe, and which calls one that is not."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Any) -> Any:
        return MixedByVmap.apply(inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, slopes: Any) -> Any:
        return slopes * 2.0


def of_largest(inputs: Any) -> Any:
    """Return what an operator would that sees all examples at once."""
    return inputs.clone() / inputs.abs().max()


def own_operator(name: str) -> Any:
    schema = "(Tensor inputs) -> Tensor"
    return torch.library.custom_op(name, of_largest, mutates_args=(), schema=schema)


@functools.cache
def operator() -> Any:
    made = own_operator("privet_tests::of_largest")
    made.register_vmap(lambda info, in_dims, inputs: (made(inputs), in_dims[0]))
    return made


@functools.cache
def plain_operator() -> Any:
    return own_operator("privet_tests::plain")


@functools.cache
def around_operator() -> Any:
    class AroundOperator(Around):
        @staticmethod
        def forward(inputs: Any) -> Any:
            return operator()(inputs)

    return AroundOperator.apply


class Through(nn.Module):
    """A layer, and what is done with its output; of one without rules vmap takes the gradients."""

    def __init__(self, function: Any, ruled: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Linear(4, 2).double(), function
        self.last = nn.Identity() if ruled else nn.PReLU().double()

    def forward(self, inputs: Any) -> Any:
        return self.last(self.function(self.layer(inputs)))


def sum_of(function: Any, rows: list[Any], ruled: bool = True) -> Any:
    model = Through(function, ruled)
    total, _ = summed(model, dict(model.named_parameters()), loss, rows, tuple, 0.3)
    return total


OF_OPERATORS: dict[str, Any] = {
    "operator": lambda inputs: inputs + operator()(inputs.detach()),
    "packet": lambda inputs: inputs + torch.ops.privet_tests.of_largest(inputs.detach()),
    "overload": lambda inputs: inputs + torch.ops.privet_tests.of_largest.default(inputs.detach()),
}


@pytest.mark.parametrize("ruled", [True, False])
@pytest.mark.parametrize(
    "function",
    [
        MixedByVmap.apply,
        Around.apply,
        *OF_OPERATORS.values(),
        lambda inputs: around_operator()(inputs.detach()) + inputs,
    ],
    ids=["Function", "within", *OF_OPERATORS, "operator within"],
)
def test_what_does_batches_in_its_own_way_is_refused(function: Any, ruled: bool) -> None:
    operator()  # which has the name that the others look up
    with pytest.raises(
        ConfigError, match="has a vmap of its own, which may mix examples"
    ) as caught:
        sum_of(function, list(data()), ruled)
    assert caught.value.told is Told.OWN_VMAP
    with refused(Told.OWN_VMAP, "set generate_vmap_rule = True"):
        played(lambda: Through(function, ruled), loss)


@pytest.mark.parametrize("ruled", [True, False])
@pytest.mark.parametrize(
    "function", [Apart.apply, lambda inputs: inputs + plain_operator()(inputs.detach())]
)
def test_what_is_run_example_by_example_is_not(function: Any, ruled: bool) -> None:
    """The sum of a batch is that of its examples, each by itself.

    A loss of a batch that is another one is refused for that, where gradients show it.
    """
    plain_operator()
    rows = list(data())
    each = [
        sum_of(function, [part[i : i + 1] for part in rows], ruled) for i in range(len(rows[0]))
    ]
    assert torch.allclose(sum_of(function, rows, ruled), sum(each), rtol=1e-9, atol=1e-12)
    if ruled:
        with refused(Told.NO_MEAN, "not the mean of their losses"):
            played(lambda: Through(function, ruled), loss)
    assert not played(lambda: Through(Rowwise.apply, ruled), loss).history[0].failures


def test_elsewhere_a_vmap_of_ones_own_is_as_it_was() -> None:
    rows = data()[0]
    sum_of(Apart.apply, list(data()))  # from now on Functions are looked at
    assert torch.equal(torch.func.vmap(MixedByVmap.apply)(rows), 2.0 * rows)
