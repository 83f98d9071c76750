"""What the fold of large uploads costs: no copies of rows, one decoding, nothing kept."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from privet.core import RunError, mapped
from privet.rounds import uploads
from privet.rounds.half import mean_rows
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn, FedPDM
from privet.wire.sparse import codec
from support.federations import app_of, logistic_agents, zeros


@pytest.mark.parametrize("limit", [mapped.LIMIT, 0], ids=["memory", "file"])
def test_the_mean_of_long_rows_copies_none(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    table = np.random.default_rng(0).standard_normal((8, 300_000)).astype("f4")
    places = [0, 3, 4, 6, 7]
    expected = np.zeros_like(table[0])
    for place in places:
        expected += table[place]
    expected /= np.float32(len(places))
    monkeypatch.setattr(mapped, "LIMIT", limit)
    tracemalloc.start()
    found = mean_rows(table, places)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(found, expected)
    assert peak < 1.5 * table[0].nbytes


def played(strategy: Any, name: str) -> Any:
    strategy.start(InlineGrid(app_of(logistic_agents(3), name), 3), zeros(4), num_rounds=2)
    return strategy


def test_an_upload_of_all_coordinates_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(*given: Any, **options: Any) -> Any:
        read.append(1)
        return codec.decode(*given, **options)

    monkeypatch.setattr(uploads, "decode", counted)
    played(FedPDM(num_agents=3), "fed-pdm")
    assert len(read) == 2 * 3


def test_a_folded_round_holds_no_uploads() -> None:
    """They would stay in memory while the agents of the next round work."""
    done = played(FedDyn(num_agents=3), "fed-dyn").run.opened.tally.uploads
    assert len(done) == 3
    for each in done.values():
        with pytest.raises(RunError, match="folded once"):
            each.load()
