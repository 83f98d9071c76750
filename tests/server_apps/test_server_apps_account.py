"""What ``privacy.json`` claims, and when it claims nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from privet.client_apps import client_app
from privet.core import RunError
from privet.data import problem_from_context
from privet.kernel import AgentLedger, Release
from privet.server_apps import execute, read_config
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline

PRIVATE: dict[str, Any] = {
    "num-agents": 3,
    "num-server-rounds": 3,
    "local-solver": "noisy-gd",
    "clip": 1.0,
    "noise-variance": 0.01,
    "row-norm": 3.0,
}
OPEN: dict[str, Any] = {"num-agents": 3, "num-server-rounds": 2}


class Lying(InlineGrid):
    """Agent 1 sends an account of its own making."""

    ledger = ""

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        if reply is not None and message.metadata.message_type == "train":
            record = reply.content["privet"]
            if message.metadata.dst_node_id == 1001:
                about = json.loads(str(record["about"]))  # type: ignore[index]
                record["about"] = json.dumps(about | {"ledger": self.ledger})  # type: ignore[index]
        return reply


def account_with(ledger: str, folder: Path) -> Any:
    raw = {**PRIVATE, "output-dir": str(folder)}
    grid = Lying(client_app(None, problem_from_context), 3, read_config(raw))
    grid.ledger = ledger
    finished = execute(grid, read_config(raw), "run")
    assert len(finished.result.history) == 3
    return json.loads((finished.folder / "privacy.json").read_text())


def forged(**fields: Any) -> str:
    (entry,) = json.loads(AgentLedger().record(Release("gaussian", scale=1.0)).to_json())
    return json.dumps([{**entry, **fields}])


@pytest.mark.parametrize(
    "ledger",
    ["nonsense", "{}", "[" * 5000, forged(times=10**30), forged(scale="1"), forged(count=-1)],
)
def test_an_agent_whose_account_cannot_be_read_is_charged_as_asked_and_left_out(
    ledger: str, tmp_path: Path
) -> None:
    found = account_with(ledger, tmp_path)
    assert found["private"] is True
    messages = {
        name: sum(release["times"] for release in said["releases"])
        for name, said in found["agents"].items()
    }
    assert messages == {"0": 3, "1": 1, "2": 3}
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    history = [json.loads(line) for line in lines]
    assert [done["participants"] for done in history] == [["0", "2"]] * 3
    assert "cannot be used" in history[0]["failures"]["1"]["text"]
    assert history[1]["failures"]["1"]["code"] == "out"


def test_noise_without_effect_claims_nothing(tmp_path: Path) -> None:
    assert account_with(forged(scale=1e-100, sensitivity=10.0), tmp_path)["private"] is False


def test_run_that_began_without_noise_cannot_become_private(tmp_path: Path) -> None:
    place = {"output-dir": str(tmp_path)}
    run_inline({**OPEN, **place}, "first")
    with pytest.raises(RunError, match=r"of another run: .*noise-variance 0.0 -> "):
        run_inline({**PRIVATE, **place, "resume": str(tmp_path / "first")}, "second")


def test_papers_formula_that_does_not_apply_is_left_out(tmp_path: Path) -> None:
    raw = {**PRIVATE, "regularizer": "none", "output-dir": str(tmp_path)}
    finished = run_inline(raw, "run")
    found = json.loads((finished.folder / "privacy.json").read_text())
    assert found["private"] is True
    assert [entry["as-printed"] for entry in found["accounts"]] == [None, None]


def test_automatic_resume_of_a_finished_run_reports_it_again(tmp_path: Path) -> None:
    place = {"output-dir": str(tmp_path)}
    first = run_inline({**PRIVATE, **place}, "first")
    before = {name: (first.folder / name).read_bytes() for name in ("history.jsonl", "model.npz")}
    again = run_inline({**PRIVATE, **place, "resume": "auto"}, "again")
    assert again.folder == first.folder
    for name, content in before.items():
        assert (again.folder / name).read_bytes() == content
    assert again.summary["privacy"] == first.summary["privacy"]
