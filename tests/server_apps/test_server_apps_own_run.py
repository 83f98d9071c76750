"""Run folders of models of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message

from privet import load_model
from privet.client_apps import LoopParticipant, initial_arrays
from privet.server_apps import run_and_save
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn


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
