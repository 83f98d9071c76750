"""Further tries of a round: who is asked again, and what a round that was mended says."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

from privet.rounds.collect import outcome
from privet.rounds.collect.outcome import TooFewError
from privet.sim.inline import app_of
from privet.strategies import FedPLT
from privet.testing import logistic_federation
from privet.testing.grids import Fate, WatchedGrid, changed, lose_reply
from privet.wire import RECORD

AGENTS = 3


def other_digest(reply: Message) -> None:
    """Let an agent hold another state than the server has of it."""
    record: Any = reply.content[RECORD]
    record["about"] = json.dumps(json.loads(record["about"]) | {"digest": 5})


def three(fates: dict[tuple[str, int], Fate]) -> tuple[WatchedGrid, ArrayRecord]:
    problems = logistic_federation()[:AGENTS]
    places = [{"partition-id": place, "num-partitions": AGENTS} for place in range(AGENTS)]
    grid = WatchedGrid(app_of("fed-plt", problems), places, fates)
    return grid, ArrayRecord({"x": Array(np.zeros(problems[0].dim))})


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "FIRST_PAUSE", 0.01)


def test_an_agent_of_another_state_is_asked_again_with_the_servers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "flwr.privet")
    grid, start = three({("1", 2): changed(other_digest)})
    result = FedPLT(min_agents=AGENTS, patience=60.0).start(grid, start, 3, log_rounds=False)
    assert result.status == "completed"
    assert [done.participants for done in result.history] == [("0", "1", "2")] * 3
    assert [len(grid.sent_to(name, 2)) for name in "012"] == [1, 2, 1]
    assert "agent 1 was sent its state of round 1" in result.history[1].notes
    assert "digest differs" in caplog.text


def test_an_agent_that_never_agrees_is_asked_once_more_and_ends_the_round() -> None:
    """Whatever the patience: the fault is not one of a lost state."""
    grid, start = three({("1", 2): changed(other_digest)})
    strategy = FedPLT(min_agents=AGENTS, patience=1e6)
    forever = {("1", 2): changed(other_digest)}

    class Again(dict[tuple[str, int], Fate]):
        def pop(self, key: Any, *default: Any) -> Any:
            return forever.get(key, *default)

    grid.fates = Again(forever)
    with pytest.raises(TooFewError, match="digest differs"):
        strategy.start(grid, start, 3, log_rounds=False)
    assert len(grid.sent_to("1", 2)) == 2


@pytest.mark.parametrize("fate", [lose_reply, changed(other_digest)])
def test_a_last_round_that_a_further_try_mended_has_not_failed(fate: Fate) -> None:
    grid, start = three({("1", 2): fate})
    strategy = FedPLT(min_agents=AGENTS, patience=60.0, round_timeout=1.0)
    result = strategy.start(grid, start, 2, log_rounds=False)
    assert result.status == "completed"
    assert any("tried 2 times" in note for note in result.history[-1].notes)
    assert strategy.run.failed is None
    assert strategy.run.failed_tries == 0
