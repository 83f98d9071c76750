"""Checkpoints given to ``start`` in Python: no request that left is forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from privet.core import ConfigError
from privet.core.errors import HopelessError
from privet.rounds.keep.checkpoint import FILE_NAME, Checkpoint, load
from privet.sim.engine import InlineGrid
from privet.strategies import DPFedSGD
from support.federations import app_of, logistic_agents

AGENTS = 3


class Stopped(Exception):
    """What ends a run between two rounds."""


def start(file: Path, rounds: int, fail: int = 0, resume: Checkpoint | None = None) -> Any:
    """Play a run up to a round; raise `Stopped` after round ``fail``."""

    def watch(done: Any, _: Any) -> None:
        if done.round == fail:
            raise Stopped

    nodes = [{"partition-id": one, "num-partitions": AGENTS} for one in range(AGENTS)]
    grid = InlineGrid(app_of(logistic_agents(AGENTS), "dp-fedsgd"), nodes)
    strategy = DPFedSGD(clip=1.0, noise_scale=0.5, num_agents=AGENTS, patience=0.0)
    model = ArrayRecord({"x": Array(np.zeros(4))})
    options: dict[str, Any] = {"resume": resume} if resume else {}
    return strategy.start(
        grid, model, num_rounds=rounds, checkpoint=file, observers=[watch], **options
    )


@pytest.mark.parametrize("fail", [0, 4])
def test_one_that_was_read_before_the_run_went_on_is_refused(tmp_path: Path, fail: int) -> None:
    file = tmp_path / FILE_NAME
    start(file, 2)
    old = load(file)
    if fail:
        with pytest.raises(Stopped):
            start(file, 6, fail, old)
    else:
        start(file, 6, resume=old)
    with pytest.raises(HopelessError, match="what the agents have spent since round 2"):
        start(file, 6, resume=old)


def test_one_that_is_read_anew_goes_on_and_counts_all(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    start(file, 2)
    with pytest.raises(Stopped):
        start(file, 6, 4, load(file))
    done = start(file, 6, resume=load(file))
    assert {agent.messages for agent in done.privacy.agents.values()} == {6}


def test_no_run_begins_over_the_file_of_another(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    start(file, 2)
    before = file.read_bytes()
    with pytest.raises(ConfigError, match="a private run is there"):
        start(file, 2)
    assert file.read_bytes() == before
