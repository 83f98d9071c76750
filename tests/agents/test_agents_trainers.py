"""Rounds around the trainers of PyTorch Lightning and Hugging Face, in the real libraries."""

from __future__ import annotations

import logging
import runpy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message

from privet.agents.loop.trainers import chosen, require_one_process
from privet.client_apps import LoopParticipant, initial_arrays
from privet.core import ConfigError, RunError
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn, FedPLT, PrimalDualStrategy
from support.paths import ROOT

AGENTS, ROWS, STEPS = 2, 12, 4
STRATEGIES: dict[str, Callable[[], PrimalDualStrategy]] = {
    "fed-dyn": lambda: FedDyn(num_agents=AGENTS, step_size_base=0.05),
    "fed-plt": lambda: FedPLT(num_agents=AGENTS, step_size=0.05),
}


def test_a_trainer_of_several_processes_is_refused() -> None:
    require_one_process(1)
    with pytest.raises(ConfigError, match="runs in 2 processes: a round corrects"):
        require_one_process(2)


def test_a_metric_that_was_not_logged_is_named() -> None:
    assert chosen({"a": np.float32(1.5), "b": 2}, ["a"]) == {"a": 1.5}
    with pytest.raises(ConfigError, match=r"logged no 'c', only a, b"):
        chosen({"a": 1.0, "b": 2.0}, ["c"])


def batches(agent: int, torch: Any) -> Any:
    rng = np.random.default_rng(agent)
    inputs = torch.tensor(rng.normal(size=(ROWS, 3)), dtype=torch.float32)
    rows = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True) + agent)
    return torch.utils.data.DataLoader(rows, batch_size=ROWS // STEPS)


def regression(torch: Any, lightning: Any, kind: str) -> Any:
    """Return a LightningModule whose optimizer is of a kind, or that steps two by itself."""

    class Regression(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.first, self.last = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
            self.automatic_optimization = kind != "manual"

        def forward(self, inputs: Any) -> Any:
            return self.last(self.first(inputs))

        def loss(self, batch: Any) -> Any:
            return torch.nn.functional.mse_loss(self(batch[0]), batch[1])

        def training_step(self, batch: Any, number: int) -> Any:
            loss = self.loss(batch)
            self.log("train_loss", loss)
            if kind == "manual":
                for optimizer in self.optimizers():
                    optimizer.zero_grad()
                self.manual_backward(loss)
                for optimizer in self.optimizers():
                    optimizer.step()
            return loss

        def configure_optimizers(self) -> Any:
            parts = [self] if kind != "manual" else [self.first, self.last]
            make = torch.optim.Adam if kind == "adam" else torch.optim.SGD
            return [make(part.parameters(), lr=0.05) for part in parts]

    return Regression()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sgd", "adam", "manual"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_lightning_takes_the_steps_of_a_plain_loop(name: str, kind: str) -> None:
    torch = pytest.importorskip("torch", reason="needs the group torch")
    lightning = pytest.importorskip("lightning", reason="needs the group torch")
    taking_part = LoopParticipant(
        None,
        lambda: regression(torch, lightning, kind),
        lambda context: ROWS,
        keep_optimizer=kind == "adam",
    )
    trained, plain = taking_part.app(), taking_part.app()

    @trained.train()
    def train(message: Message, context: Context) -> Message:
        data = batches(int(context.node_config["partition-id"]), torch)
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model = regression(torch, lightning, kind)
        return taking_part.lightning(trainer, message, context, model, data, metrics=["train_loss"])

    @plain.train()
    def own(message: Message, context: Context) -> Message:
        model = regression(torch, lightning, kind)
        optimizers = model.configure_optimizers()
        with taking_part.round(message, context, model, hook=True) as local:
            for batch in batches(int(context.node_config["partition-id"]), torch):
                model.zero_grad()
                model.loss(batch).backward()
                for optimizer in optimizers:
                    optimizer.step()
        return local.reply()

    results = []
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's on workers and deprecations of its own
        for app in (trained, plain):
            start = initial_arrays(regression(torch, lightning, kind))
            results.append(STRATEGIES[name]().start(InlineGrid(app, AGENTS), start, num_rounds=3))
    for key, array in results[1].arrays.items():
        assert np.array_equal(results[0].arrays[key].numpy(), array.numpy())
    losses = [each["train_loss"] for each in results[0].train_metrics_clientapp.values()]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_a_trainer_of_hugging_face_trains_as_the_loop_of_the_example(tmp_path: Path) -> None:
    """LoRA of the example under ``transformers.Trainer``, whose Adam goes on round by round."""
    transformers = pytest.importorskip("transformers", reason="needs the group torch")
    example = runpy.run_path(str(ROOT / "examples" / "torch_text_lora.py"))
    network, texts = example["network"], example["TEXTS"]
    taking_part = LoopParticipant(None, network, lambda context: texts, keep_optimizer=True)
    app = taking_part.app()
    counts: list[float] = []
    options = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        lr_scheduler_type="constant",
        per_device_train_batch_size=16,
        max_steps=6,
        learning_rate=0.01,
    )

    @app.train()
    def train(message: Message, context: Context) -> Message:
        held = example["reviews"](int(context.node_config["partition-id"]))
        rows = [{name: part[row] for name, part in held.items()} for row in range(texts)]
        trainer = transformers.Trainer(network(), options, train_dataset=rows)
        reply = taking_part.hugging_face(trainer, message, context, metrics=["train_loss"])
        counts.append(float(trainer.optimizer.state_dict()["state"][0]["step"]))
        return reply

    strategy = FedDyn(num_agents=2, fed_dyn_alpha=0.01)
    done = strategy.start(InlineGrid(app, 2), initial_arrays(network()), num_rounds=4)
    assert counts[::2] == [6.0, 12.0, 18.0, 24.0]
    losses = [each["train_loss"] for each in done.train_metrics_clientapp.values()]
    assert losses[-1] < losses[0]
    model = network().eval()
    model.load_state_dict(done.arrays.to_torch_state_dict(), strict=False)
    unseen = example["reviews"](99)
    labels = unseen.pop("labels")
    assert float((model(**unseen).logits.argmax(1) == labels).float().mean()) > 0.9


@pytest.mark.slow
def test_a_trainer_cannot_play_a_private_round() -> None:
    torch = pytest.importorskip("torch", reason="needs the group torch")
    lightning = pytest.importorskip("lightning", reason="needs the group torch")
    taking_part = LoopParticipant(
        None, lambda: regression(torch, lightning, "sgd"), lambda context: ROWS
    )
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False)
        model = regression(torch, lightning, "sgd")
        return taking_part.lightning(trainer, message, context, model, batches(0, torch))

    start = initial_arrays(regression(torch, lightning, "sgd"))
    strategy = FedDyn(num_agents=1, step_size_base=0.05, clip=1.0, noise_scale=1.0)
    with pytest.raises(RunError, match="hook = True is not for private rounds"):
        strategy.start(InlineGrid(app, 1), start, num_rounds=1)
