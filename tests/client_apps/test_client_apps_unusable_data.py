"""A wrong data file on a node: one line in its own log, and nothing of it in a private run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privet.client_apps import client_app
from privet.datasets import problem_from_context
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT
from support.federations import logistic_agents, position, zeros

PRIVATE: dict[str, Any] = {
    "local_solver": "noisy-gd",
    "clip": 0.5,
    "row_norm": 2.0,
    "noise_variance": 0.01,
}


def refused(problem_fn: Any, **options: Any) -> str:
    """Return what the server hears of agent 0."""
    grid = InlineGrid(client_app("fed-plt", problem_fn), 2)
    strategy = FedPLT(**{"num_agents": 2, "min_agents": 1, **options})
    strategy.start(grid, zeros(4), num_rounds=1)
    assert strategy.session is not None
    (why,) = strategy.session.roster.rejected.values()
    return str(why)


@pytest.mark.parametrize("private", [False, True])
def test_a_wrong_file_is_one_line_without_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, private: bool
) -> None:
    file = tmp_path / "clicks.svm"
    file.write_text("1 1:1\nsubject-4711 2:1\n")

    def problem(context: Any) -> Any:
        if position(context) == 1:
            return logistic_agents(1)[0]
        data = {"dataset": "click", "data-path": str(file), "partition": "none"}
        context.node_config = {**context.node_config, **data}
        return problem_from_context(context)

    why = refused(problem, **(PRIVATE if private else {}))
    (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert record.message.startswith(f"agent 0: DataError: {file}, line 2: expected LIBSVM rows")
    assert record.exc_info is None
    assert "\n" not in record.message
    assert "Traceback" not in caplog.text
    if private:
        assert why == "agent 0: DataError (text withheld: private run)"
    else:
        assert why.startswith(f"agent 0: {file}, line 2: expected LIBSVM rows")


def test_a_mistake_in_the_code_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def problem(context: Any) -> Any:
        if position(context) == 1:
            return logistic_agents(1)[0]
        return {}["no such key"]

    assert "no such key" in refused(problem)
    assert "Traceback" in caplog.text
