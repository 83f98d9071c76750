"""Run folders of models of one's own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message

from privet import load_model
from privet.client_apps import LoopParticipant, client_app, initial_arrays
from privet.core.errors import ConfigError, HopelessError, RunError
from privet.core.exits import EXIT_CODE, Exit
from privet.data import problem_from_context
from privet.rounds.keep.checkpoint import load
from privet.server_apps import read_config, run_and_save
from privet.server_apps.build import build_federation, build_strategy, starting_model
from privet.server_apps.execute import Finished, finish, finish_failed
from privet.server_apps.run_folder import RunFolder
from privet.server_apps.tracking import Tracking
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn
from support.cli import privet
from support.run_files import Killed


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


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, RunFolder]:
    """A private run that has ended: its config, its strategy and its folder."""
    folder = tmp_path_factory.mktemp("ended")
    raw = {"algorithm": "dp-fedsgd", "clip": 1.0, "noise-scale": 0.1, "dataset": "synthetic",
           "num-agents": 2}  # fmt: skip
    config = read_config(raw)
    strategy = build_strategy(config)
    start = starting_model(config, build_federation(config).dim)
    nodes = [{"partition-id": place, "num-partitions": 2} for place in range(2)]
    grid = InlineGrid(client_app(None, problem_from_context), nodes, config)
    done = run_and_save(strategy, grid, start, 1, name="one", output_dir=str(folder))
    return config, strategy, RunFolder(done.folder)


class Lacking(dict[str, Any]):
    """A config of which any key may be missing: none may be read as if it were there."""

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)


@pytest.mark.parametrize("there", [True, False], ids=["every key", "no key"])
def test_a_run_ends_in_order_whichever_key_its_config_lacks(
    ended: tuple[Any, Any, RunFolder], there: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """``privet run`` gives every key, and an app of its own those that it likes."""
    whole, strategy, folder = ended
    config = Lacking(whole if there else {})
    tracking = Tracking((), folder.path, config)
    finish(folder, strategy, config, tracking, {"status": "completed", EXIT_CODE: Exit.DONE})
    assert folder.summary()["status"] == "completed"
    assert (folder.path / "report.html").exists()
    finish_failed(folder, strategy, config, tracking, RunError("nodes away"))
    assert folder.summary()["cause"] == "nodes away"
    assert not caplog.messages


class Dies(InlineGrid):
    """A grid whose coordinator dies once the agents have answered."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = list(super().pull_messages(message_ids))
        if any(reply.metadata.message_type == "train" for reply in found):
            raise Killed
        return found


def test_a_run_that_went_on_in_code_has_no_statement_of_its_earlier_end(tmp_path: Path) -> None:
    """The round that it died in is in its journal alone."""
    raw = {"algorithm": "dp-fedsgd", "clip": 1.0, "noise-scale": 0.1, "dataset": "synthetic",
           "num-agents": 2}  # fmt: skip
    config, app = read_config(raw), client_app(None, problem_from_context)
    start = starting_model(config, build_federation(config).dim)
    nodes = [{"partition-id": place, "num-partitions": 2} for place in range(2)]
    begun = (build_strategy(config), InlineGrid(app, nodes, config), start, 2)
    run = run_and_save(*begun, name="one", output_dir=str(tmp_path)).folder
    assert privet("statement", run, "--verify").code == 0
    where = {"resume": run, "checkpoint": run / "checkpoint.npz"}
    with pytest.raises(Killed):
        build_strategy(config).start(Dies(app, nodes, config), start, 4, **where)
    verified = privet("statement", run, "--verify")
    assert verified.code == 1
    assert "DIFFERS: asked.jsonl" in verified.out
    said = privet("statement", run)
    assert said.code == Exit.PERSON
    assert "asked.jsonl is not the file whose SHA-256 summary.json holds" in said.err


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_private_run_that_goes_on_and_fails_states_all_that_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    raw = {"algorithm": "dp-fedsgd", "clip": 1.0, "noise-scale": 0.1, "dataset": "synthetic",
           "num-agents": 2}  # fmt: skip
    config, left = read_config(raw), list[str]()
    start = starting_model(config, build_federation(config).dim)
    nodes = [{"partition-id": place, "num-partitions": 2} for place in range(2)]

    def play(rounds: int, name: str, **options: Any) -> Finished:
        grid = InlineGrid(client_app(None, problem_from_context), nodes, config)
        return run_and_save(
            *(build_strategy(config), grid, start, rounds),
            **{"name": name, "output_dir": str(tmp_path), **options},
        )

    def fails(done: Any, _: Any) -> None:
        names = ("privacy.json", "summary.json", "report.html", "statement.html")
        left.extend(name for name in names if (folder / name).exists())
        if done.round == 4:
            raise RuntimeError("nodes away")

    before, name = play(2, "one"), "two" if elsewhere else "one"
    with pytest.raises(ConfigError, match="holds a private run"):
        play(2, "one")
    folder = tmp_path / name
    with pytest.raises(RuntimeError, match="nodes away"):
        play(6, name, resume=str(before.folder), observers=[fails])
    assert not left, "what the earlier end stated is gone before the first message"
    account = json.loads((folder / "privacy.json").read_text())
    assert account["agents"]["0"]["releases"][0]["times"] == 4
    epsilon = account["accounts"][0]["epsilon"]
    assert epsilon > before.result.privacy.epsilon
    assert f"exactly {epsilon!r}" in (folder / "statement.html").read_text()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["exit-code"], summary["rounds"]) == ("failed", 1, 4)
    assert "tags" not in summary["config"]
    assert (tmp_path / ".newest-private-run").read_text() == f"{name}\n"
    with pytest.raises(ConfigError, match="give the folder's path in place of a checkpoint"):
        play(8, "three", resume=load(folder))
    if elsewhere:
        with pytest.raises(HopelessError, match="went on in"):
            play(6, "three", resume=str(before.folder))
        for options in ((), ("--verify",)):
            code, said, error = privet("statement", before.folder, *options)
            assert (code, said) == (2, "")
            assert "only that run's account holds all that was spent" in error
