"""Tied parameters in a training loop of one's own: every name has the trained values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from privet.client_apps import LoopParticipant, initial_arrays
from privet.core import ConfigError, RunError
from privet.rounds.session import Session
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT
from privet.wire import Enrolment, Layout

torch = pytest.importorskip("torch", reason="needs the group torch")
AGENTS, WORDS = 3, 7


class Language(torch.nn.Module):
    """A language model whose output layer is its embedding, and a norm that is used twice."""

    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embedding = torch.nn.Embedding(WORDS, 5)
        self.first = self.second = torch.nn.BatchNorm1d(5)
        self.frozen = torch.nn.Parameter(torch.ones(5), requires_grad=False)
        self.head = torch.nn.Linear(5, WORDS, bias=False)
        if tie:
            self.head.weight = self.embedding.weight

    def forward(self, words: Any) -> Any:
        return self.head(self.second(self.first(self.embedding(words) * self.frozen)))


def loss(model: Any, agent: int = 0) -> Any:
    words = torch.arange(WORDS)
    return torch.nn.functional.cross_entropy(model(words), (words + 1 + agent) % WORDS)


def app_of(make: Any, heard: list[Any], **options: Any) -> Any:
    participant = LoopParticipant("fed-plt", make, lambda context: WORDS, **options)
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with participant.round(message, context, model, hook=True) as local:
            for _ in range(local.steps):
                optimizer.zero_grad()
                loss(model).backward()
                optimizer.step()
        return local.reply({"loss": loss(model).item()})

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        heard.append(message.content["arrays"])
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def played(app: Any, start: ArrayRecord, rounds: int = 4, **options: Any) -> Any:
    strategy = FedPLT(num_agents=AGENTS, rho=5.0, local_epochs=8, fraction_evaluate=1.0)
    return strategy.start(InlineGrid(app, AGENTS), start, num_rounds=rounds, **options)


def loaded(arrays: ArrayRecord) -> Any:
    model = Language()
    model.load_state_dict(arrays.to_torch_state_dict())  # strict
    return model


def test_every_name_of_a_tied_tensor_comes_back_trained(tmp_path: Path) -> None:
    start = ArrayRecord(Language().state_dict())
    assert {"embedding.weight", "head.weight", "second.running_mean"} <= start.keys()
    told: list[Any] = []
    seen: list[Any] = []

    def evaluate_fn(number: int, arrays: ArrayRecord) -> None:
        seen.append(arrays)

    app = app_of(Language, told)
    done = played(app, start, evaluate_fn=evaluate_fn, checkpoint=tmp_path / "checkpoint.npz")
    # All agents have the same data, and so the mean of their losses is that of the result.
    assert loss(loaded(done.arrays)).item() == pytest.approx(
        done.train_metrics_clientapp[4]["loss"], abs=0.05
    )
    assert loss(loaded(done.arrays)).item() < 0.5 * loss(Language()).item()
    went_on = played(app, start, 5, resume=tmp_path / "checkpoint.npz")
    for arrays in (*seen, *told, done.arrays, *done.models.values(), went_on.arrays):
        assert list(arrays) == list(start)
        for one, other in (
            ("embedding.weight", "head.weight"),
            ("first.running_mean", "second.running_mean"),
            ("first.weight", "second.weight"),
        ):
            assert np.array_equal(arrays[one].numpy(), arrays[other].numpy()), one
    for name in ("head.weight", "second.running_mean"):
        assert not np.array_equal(done.arrays[name].numpy(), start[name].numpy())
    assert np.array_equal(done.arrays["frozen"].numpy(), start["frozen"].numpy())
    trained = done.arrays["head.weight"].numpy()
    without = played(app, initial_arrays(Language()))
    assert np.array_equal(without.arrays["embedding.weight"].numpy(), trained)


def test_names_of_a_wrapped_module_are_tied_too() -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Language()

        def forward(self, words: Any) -> Any:
            return self.inner(words)

    done = played(app_of(Wrapped, []), ArrayRecord(Language().state_dict()))
    assert loss(loaded(done.arrays)).item() < 0.5 * loss(Language()).item()
    start = ArrayRecord(Wrapped().state_dict())
    model = Wrapped()
    model.load_state_dict(played(app_of(Language, []), start).arrays.to_torch_state_dict())
    assert loss(model).item() < 0.5 * loss(Language()).item()


def test_tensors_that_share_memory_without_being_one_are_refused() -> None:
    class Shared(torch.nn.Module):
        def __init__(self, second: str) -> None:
            super().__init__()
            self.first = torch.nn.Parameter(torch.zeros(6))
            part = self.first.detach()
            if second == "parameter":
                self.other = torch.nn.Parameter(part[2:])
            else:
                self.register_buffer("other", part.view(2, 3))

    for second in ("parameter", "buffer"):
        with pytest.raises(ConfigError, match="'first' and 'other' of the model share memory"):
            LoopParticipant("fed-plt", Shared(second), lambda context: 1)


def test_agents_that_tie_differently_do_not_take_part_together() -> None:
    class Frozen(Language):
        """Its head is not the embedding, and so stays as it is."""

        def __init__(self) -> None:
            super().__init__(tie=False)
            self.head.weight.requires_grad_(False)

    kinds = [app_of(kind, []) for kind in (Language, Frozen)]

    def mixed(message: Message, context: Context) -> Message:
        return kinds[context.node_config["partition-id"] == 2](message, context)

    strategy = FedPLT(num_agents=AGENTS, wait_timeout=0.0, min_agents=AGENTS)
    with pytest.raises(RunError, match="it ties other parameters of its model than other agents"):
        strategy.start(
            InlineGrid(mixed, AGENTS), ArrayRecord(Language().state_dict()), num_rounds=1
        )


@pytest.mark.parametrize(
    ("tied", "line"),
    [
        ("[1]", "not a table of names"),
        ('{"b": 3}', "not a table of names"),
        ("[" * 50_000, "not a table of names"),
        ('{"b": "c"}', "ties 'b' to 'c', which it does not train"),
        ('{"b": "a"}', "ties 'b' to 'a', of another shape in the start"),
        ('{"a": "a"}', "ties 'a' to 'a', but trains both"),
    ],
)
def test_what_an_agent_says_of_tied_names_is_checked(tied: str, line: str) -> None:
    arrays = ArrayRecord({"a": _array(2), "b": _array(3)})
    said = Enrolment(
        *("0", 1, 2, "float32", "fed-plt", 1, "", ()),
        layout=Layout(("a",), ((2,),), ("float32",)).to_json(),
        tied=tied,
    )
    assert line in Session.of("run", arrays).check(said)


def _array(size: int) -> Any:
    return ArrayRecord([np.zeros(size, np.float32)])["0"]
