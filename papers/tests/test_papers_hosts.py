"""A run over several Ray hosts, as the benchmark plays it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.hosts import bench_hosts


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_run_that_loses_a_host_finishes_and_its_account_is_right() -> None:
    """What `privet bench hosts` prints; its goals hold."""
    figures: list[Any] = []
    bench_hosts(figures.append)
    values = {(one.case, one.figure): one for one in figures}
    assert all(one.holds is not False for one in figures)
    assert values["a host dies", "rounds"].value == 30
    assert values["a host dies", "absent agents"].value == 3
    assert values["a host dies", "first round with absent agents"].value in (10, 11, 12)
