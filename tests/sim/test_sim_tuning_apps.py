"""``privet tune --app FOLDER``: successive halving around the strategy that a Flower app starts."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.core import ConfigError
from privet.sim.tuning import Budget
from privet.sim.tuning_apps import AROUND, Search, Started, stages
from support.cli import privet

NUMBERS = count()
TOML = """
[tool.flwr.app.components]
serverapp = "{module}:server"
clientapp = "{module}:client"
[tool.flwr.app.config]
num-server-rounds = 9
scale = 1.0
[tool.flwr.app.config.deep]
wished = 3.0
"""
APP = """
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from privet import strategies
from privet.client_apps import CallableProblem, client_app

TARGETS = np.random.default_rng(5).normal(size=(3, 2))
SCALE = np.array([1.0, 4.0])
CALLS = []


def problem(context):
    assert context.run_config["num-server-rounds"] >= 1
    target = TARGETS[int(context.node_config["partition-id"])] * context.run_config["scale"]
    return CallableProblem(
        lambda x: float(SCALE @ (x - target) ** 2 / 2), lambda x: SCALE * (x - target), 2, 10
    )


client = client_app(None, problem)
server = ServerApp()


def evaluate(number, arrays):
    CALLS.append(number)
    x = arrays["x"].numpy()
    return MetricRecord({"loss": float(SCALE @ (x - TARGETS.mean(0)) ** 2), "rounds": number})


@server.main()
def main(grid, context):
    rounds = context.run_config["num-server-rounds"]
    start = ArrayRecord({"x": Array(np.full(2, context.run_config["deep.wished"]))})
    strategy = %s
    strategy.start(grid, start, num_rounds=rounds, %s)
    raise AssertionError("the search plays the rounds itself")
"""

LOOP = """
import torch
from flwr.app import MetricRecord
from flwr.serverapp import ServerApp

from privet import strategies
from privet.client_apps import LoopParticipant, initial_arrays

COUNTS = []


def make():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 1)


participant = LoopParticipant(None, make, lambda context: 5, keep_optimizer=True)
client = participant.app()
server = ServerApp()


@client.train()
def train(message, context):
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with participant.round(message, context, model, hook=True) as local:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(5, 2)).square().mean().backward()
            optimizer.step()
    steps, = {float(each["step"]) for each in optimizer.state.values()}
    COUNTS.append((local.round, steps))
    return local.reply()


@server.main()
def main(grid, context):
    strategy = %s
    strategy.start(grid, initial_arrays(make()), num_rounds=9, %s)
"""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    paths = list(sys.path)

    def made(strategy: str, arguments: str = "evaluate_fn=evaluate", source: str = APP) -> Path:
        folder = tmp_path / f"app-{next(NUMBERS)}"
        folder.mkdir()
        module = f"{folder.name.replace('-', '_')}_of_{tmp_path.parent.name.replace('-', '_')}"
        (folder / f"{module}.py").write_text(source % (strategy, arguments))
        (folder / "pyproject.toml").write_text(TOML.format(module=module))
        return folder

    yield made
    sys.path[:] = paths


def module_of(folder: Path) -> Any:
    (source,) = folder.glob("*.py")
    return sys.modules[source.stem]


def search(folder: Path, trials: int = 9, **options: Any) -> Search:
    started = Started.of(folder, options.pop("config", {}), 3)
    given = options.pop("given", {})
    return Search(started, given, Budget(trials), options.pop("out", folder / "out"), **options)


STRATEGIES = {
    "FedPLT(rho=1.0, step_size=0.1, local_epochs=5)": {"rho", "step-size"},
    "FedPLT()": {"rho", "step-size"},
    "FedPDM()": {"rho", "step-size-base"},
    "FedDyn()": {"fed-dyn-alpha", "step-size-base"},
    "Scaffold()": {"step-size-base", "server-step-size"},
    "DPIADMM(rho=1.0)": {"rho"},
    "DPFedSGD()": {"step-size-base", "momentum"},
    "LED()": {"step-size", "dual-step-size"},
    "Tamuna()": {"step-size", "dual-step-size"},
    "FedLin()": {"step-size"},
    "FedPD()": {"rho", "step-size"},
    "FedSplit()": {"rho", "step-size"},
    "FiveGCS()": {"rho", "server-step-size"},
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_is_tuned_around_what_the_app_gives(strategy: str, make: Any) -> None:
    found = search(make(f"strategies.{strategy}"), 4)
    assert {axis.key for axis in found.axes} == STRATEGIES[strategy]
    lines = found.run()
    assert [line.rounds for line in lines] == [9, 3, 3, 3]
    assert next(line.settings for line in found.lines if line.trial == 0) == {}
    for line in lines[1:]:
        assert line.value >= min(each.value for each in lines[1:]) >= 0
    assert math.isfinite(lines[0].value)
    if strategy.startswith("FedPLT(rho"):
        (rho, step) = found.axes
        assert (rho.low, rho.high) == (1.0 / AROUND, AROUND)
        assert step.low == pytest.approx(0.1 / AROUND)
        assert found.round_cost == 3 * (5 * 1.0 + 10.0)


def test_a_third_goes_on_and_ends_where_an_unbroken_run_does(make: Any) -> None:
    folder = make("strategies.FedPLT(rho=1.0, step_size=0.1, num_agents=3)")
    found = search(folder)
    lines = found.run()
    assert stages(9, 9) == [1, 3, 9]
    by_stage = {n: [line for line in found.lines if line.rounds == n] for n in (1, 3, 9)}
    assert [len(part) for part in by_stage.values()] == [9, 3, 1]
    for n, kept in ((1, 3), (3, 1)):
        best = sorted(by_stage[n], key=lambda line: line.value)[:kept]
        following = by_stage[3 * n]
        assert {line.trial for line in following} == {line.trial for line in best}
    module = module_of(folder)
    whole = found.base.varied(lines[0].settings).start(
        module_grid(found), found.started.arrays, num_rounds=9
    )
    expected = module.evaluate(9, whole.arrays)["loss"]
    assert lines[0].value == expected
    assert lines[0].cost == 9 * found.round_cost


def module_grid(found: Search) -> Any:
    from privet.sim.engine import InlineGrid

    started = found.started
    return InlineGrid(started.client_app, started.nodes, started.run_config)


def test_a_search_that_was_stopped_goes_on(make: Any) -> None:
    folder = make("strategies.FedDyn(step_size_base=0.05)")
    whole = search(folder)
    expected = whole.run()
    text = (folder / "out" / "trials.jsonl").read_text().splitlines()
    for kept in (1, 5, 11):
        cut = [*text[:kept], text[kept][:20]]
        (folder / "out" / "trials.jsonl").write_text("\n".join(cut))
        calls = module_of(folder).CALLS
        calls.clear()
        again = search(folder)
        assert again.run() == expected
        assert len([number for number in calls if number]) == len(text) - kept
    with pytest.raises(ConfigError, match=r"trials.jsonl is of another search: .* --out"):
        search(folder, 8)
    page = (folder / "out" / "tuning.html").read_text()
    assert page.count('<th scope="row">') == 9
    assert "fed-dyn-alpha" in page


@pytest.mark.parametrize(
    ("strategy", "arguments", "said"),
    [
        ("FedAvg()", "", "its ServerApp starts no strategy of privet"),
        (
            "strategies.FedDyn(clip=1.0, noise_scale=1.0)",
            "",
            "cannot tune fed-dyn in a private run: its noise is planned",
        ),
        ("strategies.FedDyn()", "", "cannot tune by a metric: the app reports none"),
        ("strategies.DPIADMM()", "", "rho = auto is nothing to search around: set it in the app"),
    ],
)
def test_what_cannot_be_tuned_is_said(strategy: str, arguments: str, said: str, make: Any) -> None:
    folder = make(strategy, arguments)
    if strategy == "FedAvg()":
        (source,) = folder.glob("*.py")
        source.write_text(source.read_text().replace("raise Assertion", "return; raise Assertion"))
        source.write_text(source.read_text().replace("strategy.start(", "(lambda *a, **k: 0)("))
    with pytest.raises(ConfigError, match=said):
        search(folder).run()


def test_metrics_and_keys_are_checked(make: Any, tmp_path: Path) -> None:
    folder = make("strategies.FedDyn()")
    with pytest.raises(ConfigError, match=r"deep\.wish: no run-config key of"):
        search(folder, config={"deep.wish": 1.0})
    with pytest.raises(ConfigError, match="rho: fed-dyn has no such key"):
        search(folder, given={"rho": 1.0})
    with pytest.raises(ConfigError, match="fed-dyn: it has no key left to search"):
        search(folder, given={"fed-dyn-alpha": 1.0, "step-size-base": 0.1})
    with pytest.raises(ConfigError, match="cannot tune by speed: the app reports loss, rounds"):
        search(folder, metric="speed", out=tmp_path / "speed").run()
    given = search(folder, 2, given={"fed-dyn-alpha": 0.5}, out=tmp_path / "given")
    assert given.base.half.settings()["fed-dyn-alpha"] == 0.5
    assert [axis.key for axis in given.axes] == ["step-size-base"]
    most = search(
        folder, 2, metric="max:rounds", out=tmp_path / "most", config={"deep.wished": 1.0}
    )
    assert np.array_equal(most.started.arrays["x"].numpy(), np.ones(2))
    assert {line.value for line in most.run()} == {-9.0}


def test_the_command_prints_what_it_found(make: Any, tmp_path: Path) -> None:
    folder, out = make("strategies.FedDyn()"), tmp_path / "out"
    command = ["tune", "--app", str(folder), "num-agents=3", "num-server-rounds=4", "--budget=3"]
    code, printed, _ = privet(*command, f"--out={out}", "--json")
    assert not code
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [line["rounds"] for line in lines] == [4, 2, 2]
    assert out.joinpath("tuning.html").exists()
    for words, said in (
        (["fed-plt", "--app", str(folder), "num-agents=3"], "app of "),
        (["--app", str(folder)], "num-agents: how many nodes the app is simulated with"),
        (["--app", str(tmp_path)], "expected a Flower app's pyproject.toml"),
        (["--app", str(folder), "--theory"], "leave --theory"),
        ([], "tune: name an algorithm, or give --app FOLDER"),
        (["led", "--metric=loss"], "--metric is of an app's folder"),
    ):
        code, _, err = privet("tune", *words)
        assert code == 2
        assert said in err


def test_an_optimizer_goes_on_through_the_stages_of_a_search(make: Any) -> None:
    pytest.importorskip("torch", reason="needs the group torch")
    evaluate = (
        'evaluate_fn=lambda number, arrays: MetricRecord({"loss": float('
        "sum((each.numpy() ** 2).sum() for each in arrays.values()))})"
    )
    folder = make("strategies.FedDyn()", evaluate, LOOP)
    search(folder, 3).run()
    counts = module_of(folder).COUNTS
    assert {number for number, _ in counts} == set(range(1, 10))
    assert all(steps == 2 * number for number, steps in counts)
