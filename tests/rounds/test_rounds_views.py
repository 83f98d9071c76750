"""Results, accounts and histories as a notebook shows them, and their curves."""

from __future__ import annotations

import re
import sys
import types
from dataclasses import replace
from typing import Any

import pytest

from privet.core import ConfigError
from privet.rounds.views import LARGEST, History
from privet.server_apps import progress_bar as shown
from privet.server_apps.account import Account
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT, PrivetResult
from support.federations import app_of, logistic_agents, zeros


@pytest.fixture(scope="module")
def result() -> PrivetResult:
    monitor: Any = lambda number, models: {"loss": 1.0 / (number + 1), "accuracy": 0.5}  # noqa: E731
    strategy = FedPLT(num_agents=3, monitor=monitor)
    grid = InlineGrid(app_of(logistic_agents(3)), 3)
    return strategy.start(grid, zeros(4), num_rounds=25, log_rounds=False)


def cells(html: str) -> list[list[str]]:
    return [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]


def test_a_result_is_a_line_and_a_small_table(result: PrivetResult) -> None:
    assert str(result).startswith("rounds: 25 (stopped by rounds); loss: 0.03846; accuracy: 50.00")
    assert str(result).endswith("privacy: not private: updates leave without accounted noise")
    rows = dict(cells(result._repr_html_()))
    assert rows["accuracy"] == "50.00 %"
    assert rows["rounds"] == "25 (stopped by rounds)"


def test_a_history_is_a_list_and_a_table_of_some_rounds(result: PrivetResult) -> None:
    head, *rows = cells(result.history._repr_html_())
    assert head == ["round", "loss", "accuracy", "residual"]
    assert [rows[0][0], rows[-1][0]] == ["1", "25"]
    assert len(rows) <= LARGEST + 1
    lines = History(done.to_dict() for done in result.history)
    assert lines._repr_html_() == result.history._repr_html_()
    assert cells(History()._repr_html_()) == [["round"]]


def test_texts_are_escaped(result: PrivetResult) -> None:
    faulty = replace(result, diverged="<script>", stopped="a & b")
    assert "<script>" not in faulty._repr_html_()
    assert "&lt;script&gt;" in faulty._repr_html_()
    account = Account(private=True, reason="<i>", agents={"<b>": {"epsilon": 1.00001}})
    assert cells(account._repr_html_())[1] == ["&lt;b&gt;", "1.01"], "rounded up"
    assert str(account) == "<i>"
    assert "<i>" not in account._repr_html_()


def test_curves_are_of_what_was_recorded(result: PrivetResult) -> None:
    figure = result.plot()
    assert [axes.get_title() for axes in figure.axes] == ["loss", "accuracy"]
    (line,) = figure.axes[0].lines
    assert list(line.get_ydata()) == [done.loss for done in result.history]
    assert figure._repr_png_().startswith(b"\x89PNG")
    (axes,) = result.plot("residual").axes
    assert axes.get_title() == "residual"
    with pytest.raises(ConfigError, match="no round has 'epsilon'; recorded are loss, accuracy"):
        result.plot("epsilon")


def test_without_matplotlib_a_line_names_the_extra(
    result: PrivetResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"plot\(\) needs matplotlib: .*flwr-privet\[plots\]"):
        result.plot()


def test_a_notebook_has_one_bar_that_is_updated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pages: list[str] = []
    handle = types.SimpleNamespace(update=pages.append)

    def display(page: str, *, display_id: bool) -> Any:
        pages.append(page)
        return handle

    shell = types.SimpleNamespace(kernel=object())
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
    page: Any = types.SimpleNamespace(display=display, HTML=str)
    monkeypatch.setitem(sys.modules, "IPython.display", page)
    strategy = FedPLT(num_agents=3)
    grid = InlineGrid(app_of(logistic_agents(3)), 3)
    with shown.progress(5) as bar:
        strategy.start(grid, zeros(4), num_rounds=5, observers=[bar], log_rounds=False)
    assert pages[0] == '<progress value="0" max="5"></progress> starting'
    assert pages[-1].startswith('<progress value="5" max="5"></progress> 5/5')
    assert not [line for line in caplog.messages if "ound 5" in line]
