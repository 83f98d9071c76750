"""Sweeps: in order, whatever the workers; a case that fails is named and costs no other."""

from __future__ import annotations

import io
import logging
import sys
from typing import Any

import numpy as np
import pytest

from privet.core import ConfigError
from privet.sim.sweep import SweepError, sweep


def draw(seed: int) -> float:
    rng = np.random.default_rng(seed)
    return float(rng.standard_normal((40, 40)).dot(rng.standard_normal(40)).sum())


def test_results_are_in_the_order_of_the_cases() -> None:
    seen: list[tuple[int, float]] = []
    found = sweep(draw, [5, 3, 9], workers=1, on_result=lambda *one: seen.append(one))
    assert found == [draw(5), draw(3), draw(9)]
    assert seen == list(enumerate(found))
    assert sweep(draw, [], workers=1) == []


def inverse(case: float) -> float:
    return 1.0 / case


def test_failed_case_is_named_and_the_others_are_kept() -> None:
    with pytest.raises(SweepError) as caught:
        sweep(inverse, [2.0, 0.0, 4.0, 0.0], workers=1, label=lambda case: f"rho = {case}")
    assert str(caught.value) == (
        "case 1 (rho = 0.0): ZeroDivisionError: float division by zero; 2 of 4 cases failed"
    )
    assert caught.value.results == {0: 0.5, 2: 0.25}
    assert sorted(caught.value.failures) == [1, 3]


def test_interruption_ends_the_sweep_and_what_was_done_has_been_handed_over() -> None:
    kept: dict[int, float] = {}

    def stop(case: float) -> float:
        if case == 0.0:
            raise KeyboardInterrupt
        return case

    with pytest.raises(KeyboardInterrupt):
        sweep(stop, [1.0, 0.0, 2.0], workers=1, on_result=kept.__setitem__)
    assert kept == {0: 1.0}


def test_no_workers_is_refused() -> None:
    with pytest.raises(ConfigError, match="workers = 0: must be >= 1"):
        sweep(draw, [1], workers=0)


def test_progress_is_a_line_per_case_where_there_is_no_terminal(caplog: Any) -> None:
    caplog.set_level(logging.INFO, logger="flwr.privet")
    sweep(abs, [-1, -2], workers=1)
    said = [record.getMessage() for record in caplog.records]
    assert [line.split(" | ")[:2] for line in said] == [["1/2", "-1"], ["2/2", "-2"]]
    caplog.clear()
    sweep(abs, [-1, -2], workers=1, progress=False)
    assert not caplog.records


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal(monkeypatch: Any) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    sweep(abs, [-1, -2], workers=1)
    assert "2/2" in screen.getvalue()
