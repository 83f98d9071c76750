"""A run that comes to nothing says so: its losses, its record, and no alarm in healthy runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits

from privet.client_apps import LoopParticipant, initial_arrays
from privet.problems import L2, RidgeRegression
from privet.rounds.divergence import Course
from privet.rounds.keep.checkpoint import load
from privet.server_apps.advice import advice
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline
from privet.strategies import FedDyn, FedPLT, Round, Stop
from support.federations import app_of, logistic_agents, position, zeros

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
TOO_LONG = {"step-size-base": 8.0, "step-size-rule": "constant"}
NO_BETTER = "this run is no better than its start"
STEPS: dict[str, Any] = {"step_size_rule": "constant", "max_local_steps": 10}


def said(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [one.getMessage() for one in caplog.records if words in one.getMessage()]


# --------------------------------------------------------------------------- networks


class Digits:
    """Eight agents with few of the ten digits each, and a small network."""

    agents = 8

    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images / 16.0, dtype=torch.float32)
        self.labels = torch.tensor(labels)
        order = np.random.default_rng(0).permutation(len(labels))
        self.test, rest = order[:400], order[400:]
        sorted_rows = rest[np.argsort(labels[rest], kind="stable")]
        shards = np.array_split(sorted_rows, 2 * self.agents)
        self.rows = [np.concatenate(shards[i :: self.agents]) for i in range(self.agents)]

    @staticmethod
    def network() -> Any:
        torch.manual_seed(0)
        nn = torch.nn
        return nn.Sequential(
            nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def loss(self, model: Any, rows: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(self.images[rows]), self.labels[rows])

    def app(self, name: str) -> ClientApp:
        participant = LoopParticipant(
            name, self.network, lambda context: len(self.rows[position(context)])
        )
        app = ClientApp()
        app.query("privet")(participant.query)

        @app.train()
        def train(message: Message, context: Context) -> Message:
            model, losses = self.network(), []
            with participant.round(message, context, model) as local:
                optimizer = torch.optim.SGD(model.parameters(), lr=local.step_size)
                draws = np.random.default_rng([position(context), local.round])
                for _ in range(local.steps):
                    optimizer.zero_grad()
                    rows = draws.choice(self.rows[position(context)], 20, replace=False)
                    loss = self.loss(model, rows)
                    loss.backward()
                    losses.append(loss.item())
                    local.correct(model)
                    optimizer.step()
            return local.reply(metrics={"loss": float(np.mean(losses))})

        return app

    def evaluate(self, number: int, arrays: ArrayRecord) -> MetricRecord:
        model = self.network()
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            outputs = model(self.images[self.test])
            right = (outputs.argmax(1) == self.labels[self.test]).float().mean()
            return MetricRecord(
                {"loss": float(self.loss(model, self.test)), "accuracy": float(right)}
            )

    def play(self, strategy: Any, *, evaluated: bool, rounds: int = 12, **start: Any) -> Any:
        grid = InlineGrid(self.app(strategy.half.name), self.agents)
        evaluate = self.evaluate if evaluated else None
        first = initial_arrays(self.network())
        return strategy.start(grid, first, rounds, evaluate_fn=evaluate, **start)


@needs_torch
@pytest.mark.parametrize("evaluated", [True, False])
def test_a_network_that_collapses_is_no_better_than_its_start(
    caplog: pytest.LogCaptureFixture, evaluated: bool
) -> None:
    """Its residual and its losses stay small: at chance from the first round on."""
    found = Digits().play(FedDyn(step_size_base=1.0, **STEPS), evaluated=evaluated, rounds=20)
    (line,) = said(caplog, NO_BETTER)
    assert "try half of step-size-base" in line
    assert f"start, {'loss' if evaluated else 'train loss'} " in line
    assert (found.stopped, found.diverged, len(found.history)) == (Stop.ROUNDS, "", 20)
    if evaluated:
        assert found.no_better.endswith("at the start")


@needs_torch
@pytest.mark.parametrize("evaluated", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("step", [0.005, 0.1])
def test_a_network_that_learns_is_not_complained_of(
    caplog: pytest.LogCaptureFixture, step: float, evaluated: bool
) -> None:
    """Also one that is so slow that it loses a per cent of its loss, while its residual grows."""
    for strategy in (FedDyn(step_size_base=step, **STEPS), FedPLT(step_size=step)):
        found = Digits().play(strategy, evaluated=evaluated, rounds=20 if step < 0.1 else 12)
        assert (found.no_better, found.diverged) == ("", "")
    assert said(caplog, NO_BETTER) == []


@needs_torch
def test_a_network_that_explodes_is_named_in_that_round() -> None:
    digits = Digits()
    first = digits.play(FedDyn(step_size_base=4.0, on_divergence="stop", **STEPS), evaluated=True)
    assert (first.stopped, len(first.history)) == (Stop.DIVERGENCE, 1)
    assert first.diverged.startswith("loss ")
    second = digits.play(FedPLT(step_size=2.0, on_divergence="stop"), evaluated=False)
    assert (second.stopped, len(second.history)) == (Stop.DIVERGENCE, 2)
    assert second.diverged.startswith("train loss ")


# --------------------------------------------------------------------------- without torch

rng = np.random.default_rng(8)
RIDGES = [
    RidgeRegression(rng.standard_normal((9, 2)), rng.standard_normal(9), regularizer=L2(0.1))
    for _ in range(3)
]


def play(strategy: Any, rounds: int = 12, first: float = 0.0, **start: Any) -> Any:
    app = app_of(RIDGES, strategy.half.name, train_metrics=True)
    model = ArrayRecord({"x": Array(np.full(2, first))})
    return strategy.start(InlineGrid(app, 3), model, num_rounds=rounds, **start)


def test_an_arrays_problem_that_gets_worse_by_its_train_loss() -> None:
    steep = FedDyn(step_size_base=0.44, step_size_rule="constant", max_local_steps=3, num_agents=3)
    found = play(steep, first=1.0)
    assert found.no_better.startswith("train loss ")
    well = play(FedPLT(num_agents=3), rounds=200)
    assert (well.no_better, well.diverged) == ("", "")


def test_the_record_of_a_round_has_its_metrics() -> None:
    seen: list[tuple[float, float, dict[str, Any], dict[str, Any]]] = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord(
            {"loss": 1.0 / (1 + number), "accuracy": 0.5, "f1": [0.25, 0.5 * number]}
        )

    def watch(done: Round, strategy: Any) -> None:
        train, server = done.train_metrics_clientapp, done.evaluate_metrics_serverapp
        seen.append((done.loss, done.accuracy, dict(train), dict(server)))

    def enough(done: Round) -> bool:
        return done.loss < 0.3

    found = play(FedPLT(num_agents=3), evaluate_fn=evaluate, observers=[watch], should_stop=enough)
    assert (found.stopped, len(found.history)) == (Stop.SHOULD_STOP, 3)
    loss, accuracy, train, server = seen[-1]
    assert (loss, accuracy, server["f1"]) == (0.25, 0.5, [0.25, 1.5])
    assert 0 < train["loss"] < math.inf
    assert list(found.evaluate_metrics_serverapp) == [0, 1, 2, 3]
    assert list(found.train_metrics_clientapp) == [1, 2, 3]


def test_the_agents_own_evaluation_is_in_the_record() -> None:
    found = play(FedPLT(num_agents=3, fraction_evaluate=1.0), rounds=3)
    for done in found.history:
        assert done.evaluate_metrics_clientapp["loss"] == done.loss
    assert list(found.evaluate_metrics_clientapp) == [1, 2, 3]


def test_metrics_outlast_a_resume(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.npz"

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"loss": 2.0, "share": [0.5, math.inf], "count": number})

    play(FedPLT(num_agents=3, rho=3.0), 9, checkpoint=file, evaluate_fn=evaluate)
    assert load(file).history[8].evaluate_metrics_serverapp["count"] == 9
    found = play(FedPLT(num_agents=3, rho=3.0), 10, resume=file, evaluate_fn=evaluate)
    assert dict(found.evaluate_metrics_serverapp[0]) == dict(evaluate(0, zeros(2)))
    assert dict(found.evaluate_metrics_serverapp[9]) == dict(evaluate(9, zeros(2)))
    assert found.no_better == "loss 2 in round 10, 2 at the start"


def test_a_round_without_metrics_has_no_line_for_them() -> None:
    line = json.loads(json.dumps(Round(1, ("0",)).to_dict()))
    assert not any("metrics" in key for key in line)
    assert Round.from_dict(line).train_metrics_clientapp == {}


def course(values: list[float], start: float = math.nan, **more: Any) -> Course:
    made = Course("loss", start=start, usual=0.0 if math.isnan(start) else start, **more)
    for value in values:
        made.add(value)
    return made


@pytest.mark.parametrize(
    ("values", "start", "expected"),
    [
        ([2.30, 2.31, 2.32, 2.30], 2.30, True),
        ([2.29, 2.30, 2.29, 2.30, 2.29, 2.30], 2.32, True),  # flat, a little below its start
        ([2.31, 2.30, 2.29, 2.28, 2.275, 2.27], 2.32, False),  # as little below it, and falling
        ([2.4, 2.5, 2.1, 2.2], 2.3, False),
        ([5.0, 2.0, 1.0, 0.5], math.nan, False),
        ([1.7, 2.0, 1.9, 1.8], math.nan, True),
        ([-1.0, -1.0, -0.9, -0.8], math.nan, True),
        ([-1.0, -1.1, -1.2, -1.3], math.nan, False),
        ([2.3, 2.3], 2.3, False),  # too few
    ],
)
def test_the_rule(values: list[float], start: float, expected: bool) -> None:
    assert course(values, start).is_no_better(noisy=False) == expected


def test_noise_has_to_lift_all_of_the_last() -> None:
    made = course([2.4, 2.5, 2.1, 2.4], 2.3)
    assert made.is_no_better(noisy=False)
    assert not made.is_no_better(noisy=True)


def test_a_better_accuracy_is_better() -> None:
    """As of a private run, whose loss noise lifts."""
    made = Course("loss", start=0.69, accuracy=0.5)
    for _ in range(3):
        made.add(1.4, 0.8)
    assert not made.is_no_better(noisy=True)
    for _ in range(3):
        made.add(1.4, 0.51)
    assert made.is_no_better(noisy=True)


def test_a_start_that_was_trained_for_a_round_has_to_be_left_behind_by_far() -> None:
    assert not course([1.0, 1.0, 1.05, 1.04, 1.02], late=True).is_no_better(noisy=False)
    assert course([1.0, 1.2, 1.3, 1.2, 1.2], late=True).is_no_better(noisy=False)


def test_summary_and_report_say_so_and_what_to_try(tmp_path: Path) -> None:
    config: dict[str, Any] = {"algorithm": "fed-dyn", "dataset": "synthetic", "num-agents": 3}
    config |= {"features": 4, "examples-per-agent": 16, "output-dir": str(tmp_path)}
    config |= {**TOO_LONG, "num-server-rounds": 12}
    finished = run_inline(config, "run")
    assert finished.summary["no-better"] == finished.result.no_better != ""
    page = (tmp_path / "run" / "report.html").read_text()
    assert "The run is no better than its start: loss " in page
    assert "try half of step-size-base" in page


def test_doubts_about_the_data_are_what_to_look_at_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Classes that no site has are held out: no step helps."""
    draws = np.random.default_rng(0)
    for site, classes in (("bern", "no,yes"), ("graz", "nein,ja"), ("test", "no.,yes.")):
        lines = [f"{draws.normal():.3f},{one}" for one in 20 * classes.split(",")]
        (tmp_path / f"{site}.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    config: dict[str, Any] = {"algorithm": "fed-dyn", "dataset": "csv", "num-agents": 2}
    config |= {"data-path": str(tmp_path), "partition": "natural-id", "num-server-rounds": 12}
    config |= {"output-dir": str(tmp_path / "out"), "step-size-base": 0.1}
    finished = run_inline(config, "run")
    assert finished.summary["no-better"]
    assert "are in no other file" in caplog.text
    (line,) = said(caplog, NO_BETTER)
    look = "ook first at the doubts about its data, which the log and privet data name; else unless"
    assert f": l{look}" in line
    assert f"L{look}" in (tmp_path / "out" / "run" / "report.html").read_text()
    clean: dict[str, Any] = {**config, "dataset": "synthetic", "data-path": ""}
    clean |= {"features": 4, "examples-per-agent": 16, "partition": "iid"}
    summary = run_inline({**clean, **TOO_LONG}, "clean").summary
    assert summary["no-better"]
    assert "doubtful-data" not in summary
    assert "privet data" not in advice(summary)


def test_noise_that_is_too_much_is_said_in_its_own_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    noisy = FedDyn(num_agents=3, clip=1.0, noise_scale=1e3, step_size_base=0.1, **STEPS)

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"loss": 0.69 + (number > 0)})

    app = app_of(logistic_agents(3), "fed-dyn")
    noisy.start(InlineGrid(app, 3), zeros(4), num_rounds=4, evaluate_fn=evaluate)
    (line,) = said(caplog, NO_BETTER)
    assert line.endswith("try fewer rounds, a smaller clip or step-size-base, or a larger epsilon")
