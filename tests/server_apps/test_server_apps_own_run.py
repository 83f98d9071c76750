"""Run folders of models of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message

from privet import load_model
from privet.client_apps import LoopParticipant, client_app, initial_arrays
from privet.data import problem_from_context
from privet.server_apps import read_config, run_and_save
from privet.server_apps.build import build_federation, build_strategy, starting_model
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn
from support.cli import privet


def test_a_model_file_has_the_settings_that_the_run_chose(tmp_path: Path) -> None:
    """The agents' loops say how long their steps are, and the rest follows."""

    def weights() -> dict[str, Any]:
        return {"w": np.zeros(2)}

    participant = LoopParticipant(None, weights, lambda context: 5, step_size=0.02)
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = weights()
        with participant.round(message, context, model) as local:
            gradients = {"w": model["w"] - 1.0}
            local.correct(model, gradients)
            model["w"] -= local.step_size * gradients["w"]
        return local.reply()

    strategy, start = FedDyn(num_agents=2), initial_arrays(weights())
    done = run_and_save(
        strategy, InlineGrid(app, 2), start, 2, name="one", output_dir=str(tmp_path)
    )
    settings = strategy.run.half.settings()
    assert settings["step-size-base"] == 0.02
    assert done.summary["config"]["step-size-base"] == 0.02
    assert f"'fed-dyn-alpha': {settings['fed-dyn-alpha']}" in load_model(done.folder).describe()


def test_the_statement_of_a_private_run_can_be_verified(tmp_path: Path) -> None:
    raw = {"algorithm": "dp-fedsgd", "clip": 1.0, "noise-scale": 0.1, "dataset": "synthetic",
           "num-agents": 2, "num-server-rounds": 2}  # fmt: skip
    config, ledger = read_config(raw), tmp_path / "ledger"
    rules = {"max-epsilon": 100.0, "delta": 1e-5, "ledger-path": str(ledger)}
    nodes = [{"partition-id": place, "num-partitions": 2} for place in range(2)]
    grid = InlineGrid(
        client_app(None, problem_from_context), [{**nodes[0], **rules}, nodes[1]], config
    )
    start = starting_model(config, build_federation(config).dim)
    done = run_and_save(
        build_strategy(config), grid, start, 2, name="own", output_dir=str(tmp_path)
    )
    command = ("statement", done.folder, "--verify", "--ledger", ledger)
    code, said, _ = privet(*command)
    assert code == 0, said
    assert "agent 0: holds the head that its node returned" in said
    ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0])
    assert privet(*command).code == 1
