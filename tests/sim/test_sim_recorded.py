"""A run whose uploads were folded as they came is played again from its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.core import ConfigError, RunError
from privet.core.errors import PrivetError
from privet.server_apps.execute import headline
from privet.sim.inline import run_inline
from privet.sim.recorded import replay_run
from support.cli import privet
from support.damage import changes

CONFIG: dict[str, Any] = {
    "num-agents": 5,
    "num-server-rounds": 25,
    "dataset": "synthetic",
    "local-epochs": 5,
    "baseline-seconds": 0.0,
}


@pytest.mark.parametrize(
    "more",
    [
        {"asynchronous": True, "buffer": 2, "speeds": "stragglers", "slow-share": 0.2},
        {"late-replies": "fold", "speeds": "lognormal", "round-timeout": 14.0},
        {"asynchronous": True, "algorithm": "dp-iadmm", "rho": 0.5, "perturbation": "none",
         "local-updates": 5, "speeds": "lognormal", "round-timeout": 20.0},
    ],
)  # fmt: skip
def test_a_recorded_run_is_played_again_to_the_bit(tmp_path: Path, more: dict[str, Any]) -> None:
    """With withdrawn tasks in the last one."""
    config = {**CONFIG, **more, "output-dir": str(tmp_path)}
    if "algorithm" in more:
        del config["local-epochs"]
    finished = run_inline(config, "run")
    folder = finished.folder
    uploads = sum(len(done.participants) for done in finished.result.history)
    seconds = finished.result.history[-1].clock
    shown = headline(finished.summary)["uploads"]
    assert shown == f"{uploads}, {uploads / 5:.4g} sweeps in {seconds:.6g} s"
    assert replay_run(folder).max_abs_error == 0.0
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert len({version for line in lines for version in line["versions"]}) > 5
    # Another order of the same uploads gives other numbers.
    for line in lines:
        line["versions"] = [line["round"]] * len(line["versions"])
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, _ = privet("replay", str(folder))
    assert code == 1
    assert json.loads(out)["max-abs-error"] > 1e-6


def test_what_cannot_be_played_again_says_why(tmp_path: Path) -> None:
    config = {**CONFIG, "num-server-rounds": 2, "output-dir": str(tmp_path)}
    waits = run_inline(config, "waits").folder
    with pytest.raises(ConfigError, match="waited for all replies"):
        replay_run(waits)
    noise = {"local-solver": "noisy-gd", "clip": 1.0, "row-norm": 9.0, "noise-variance": 1e-2}
    private = {"asynchronous": True, "max-uploads": 9, **noise}
    with pytest.raises(ConfigError, match="noise cannot be drawn again"):
        replay_run(run_inline({**config, **private}, "private").folder)


def test_a_damaged_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    """Or played again, and then the numbers may differ; it never waits for ever."""
    more = {"asynchronous": True, "buffer": 2, "speeds": "stragglers", "local-epochs": 1}
    sizes = {"num-server-rounds": 4, "num-agents": 3, "features": 3, "examples-per-agent": 9}
    folder = run_inline({**CONFIG, **more, **sizes, "output-dir": str(tmp_path)}, "run").folder
    summary, history = ((folder / name).read_text() for name in ("summary.json", "history.jsonl"))
    first, *rest = history.splitlines()
    drawn = np.random.default_rng(0)

    def some(document: Any, count: int) -> list[str]:
        texts = [json.dumps(changed) for changed in changes(document)]
        return [texts[place] for place in drawn.choice(len(texts), count, replace=False)]

    damaged = {
        "summary.json": [*some(json.loads(summary), 150), summary[:99], "[" * 200_000, "[]", ""],
        "history.jsonl": ["\n".join([line, *rest]) for line in some(json.loads(first), 150)],
    }
    damaged["history.jsonl"] += [history[:-9], "", "\n".join(rest), "\n".join([first, first])]
    for name, texts in damaged.items():
        refused, played = [], 0
        for text in texts:
            (folder / name).write_text(text)
            try:
                replay_run(folder)
                played += 1
            except PrivetError as error:
                refused.append(str(error))
        assert not any("\n" in line for line in refused)
        assert len(refused) > 4
        assert played > 4
        (folder / name).write_text(summary if name == "summary.json" else history)
    sizes = sizes | {"features": 4, "output-dir": str(tmp_path)}
    other = run_inline({**CONFIG, **sizes}, "other").folder
    (folder / "model.npz").write_bytes((other / "model.npz").read_bytes())
    with pytest.raises(RunError, match="has no array 'x' of"):
        replay_run(folder)
