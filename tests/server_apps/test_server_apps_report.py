"""The report: its numbers are the history's, it stands alone, and names cannot inject markup."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from decimal import Decimal
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from privet.cli.config import parse_assignments
from privet.core import format as report_format
from privet.core.library import LIBRARY_VERSION
from privet.server_apps.config import read_config
from privet.server_apps.report import ReportError, write_report
from privet.server_apps.report.rows import csv_table
from privet.server_apps.report.runs import read_runs
from privet.server_apps.report.script import HASH, SCRIPT
from privet.server_apps.report.statement import in_words
from privet.sim.inline import run_inline
from privet.strategies import Failure, FailureCode
from support.cli import privet
from support.reports import Page, render, rounds, run_folder


class TestNumbers:
    def test_are_those_of_the_history(self, tmp_path: Path) -> None:
        histories = [rounds(40, seed=1), rounds(25, seed=2)]
        page = render(
            *(run_folder(tmp_path / f"run{i}", history) for i, history in enumerate(histories))
        )
        for run, history in enumerate(histories):
            for key in ("loss", "accuracy", "stationarity", "epsilon"):
                assert page.value(run, key) == history[-1][key]
            for key in ("bytes-up", "bytes-down"):
                assert page.value(run, key) == sum(line[key] for line in history)
            seconds = math.fsum(line["seconds"] for line in history)
            assert page.value(run, "seconds") == pytest.approx(seconds, rel=1e-12)
            present = [len(line["participants"]) for line in history]
            assert page.value(run, "participants") == pytest.approx(np.mean(present))
            assert page.value(run, "rounds") == len(history)
            assert page.value(run, "failures") == 0

    def test_are_shown_rounded_beside_the_exact_value(self, tmp_path: Path) -> None:
        history = rounds(3, loss=0.123456789, accuracy=0.97368, stationarity=1.2346e-9)
        history[-1] |= {"bytes-up": 2_000_000 - sum(line["bytes-up"] for line in history[:-1])}
        page = render(run_folder(tmp_path / "run", history))
        shown = {key: page.texts[f"run-0-{key}"] for key in ("loss", "accuracy", "bytes-up")}
        assert shown == {"loss": "0.1235", "accuracy": "97.37 %", "bytes-up": "2 MB"}
        stationarity = re.sub(r"\s", " ", page.texts["run-0-stationarity"])
        assert stationarity == "1.235 \N{MULTIPLICATION SIGN} 10⁻⁹"

    def test_the_last_recorded_value_counts_and_names_its_round(self, tmp_path: Path) -> None:
        history = rounds(6)
        for line in history[4:]:
            line["accuracy"] = line["loss"] = None
        page = render(run_folder(tmp_path / "run", history))
        assert page.value(0, "accuracy") == history[3]["accuracy"]
        assert page.value(0, "loss") == history[3]["loss"]
        assert "(round 4)" in page.texts["run-0-accuracy"]
        assert "round" not in page.texts["run-0-stationarity"]

    @pytest.mark.curves
    def test_what_was_never_recorded_is_said_and_not_invented(self, tmp_path: Path) -> None:
        bare = rounds(2, loss=None, accuracy=None)
        page = render(run_folder(tmp_path / "full", rounds(4)), run_folder(tmp_path / "bare", bare))
        assert page.value(1, "loss") is None
        assert page.texts["run-1-loss"] == "not recorded"
        assert page.value(1, "rounds") == 2
        alone = render(run_folder(tmp_path / "alone", bare))
        assert "run-0-loss" not in alone.ids
        assert "Not recorded: loss, accuracy" in alone.html

    @pytest.mark.curves
    def test_infinity_is_kept(self, tmp_path: Path) -> None:
        history = rounds(3, epsilon="inf")
        history[-1]["loss"] = math.inf
        page = render(run_folder(tmp_path / "run", history))
        assert page.value(0, "epsilon") == math.inf
        assert page.value(0, "loss") == math.inf
        assert "diverged" in page.html
        assert "infinite ε, no guarantee: 3 of 3 rounds" in page.html

    def test_the_rounds_table_holds_first_and_last_and_is_short(self, tmp_path: Path) -> None:
        history = rounds(997)
        page = render(run_folder(tmp_path / "run", history))
        shown = [int(a["data-round"] or 0) for _, a in page.tags if "data-round" in a]
        assert shown[0] == 1
        assert shown[-1] == 997
        assert len(shown) <= 21

    def test_distance_and_settings_come_from_the_summary(self, tmp_path: Path) -> None:
        summary = {
            "algorithm": "fed-plt",
            "dataset": "digits",
            "distance-to-optimum": 3e-9,
            "config": {"rho": 1.5, "h": "l1", "resume": ""},
        }
        page = render(run_folder(tmp_path / "run", rounds(2), summary=summary))
        assert page.value(0, "distance") == 3e-9
        keys = {a["data-key"] for _, a in page.tags if "data-key" in a}
        assert {"config.rho", "config.h", "algorithm"} <= keys
        assert "<h1>fed-plt on digits</h1>" in page.html


@given(st.floats(1e-12, 1e12))
def test_an_epsilon_is_never_shown_smaller_than_it_is(value: float) -> None:
    shown = Decimal(report_format.epsilon(value))
    assert Decimal(value) <= shown * (1 + Decimal("1e-15"))
    assert shown <= Decimal(value) * Decimal("1.01001")


@pytest.mark.curves
class TestCurves:
    def coordinates(self, page: Page, figure: str) -> np.ndarray:
        start = page.html.index(f'id="figure-{figure}"')
        svg = page.html[start : page.html.index("</figure>", start)]
        found = re.search(r'<path d="([^"]*)"[^>]*stroke: var\(--run-0\)', svg)
        assert found
        return np.array([float(x) for x in re.findall(r"-?[\d.]+", found[1])]).reshape(-1, 2)

    def test_draw_the_values(self, tmp_path: Path) -> None:
        history = rounds(40)
        page = render(run_folder(tmp_path / "run", history))
        for key in ("loss", "accuracy", "stationarity", "bytes"):
            column = {"bytes": "bytes-up"}.get(key, key)
            values = np.array([line[column] for line in history], dtype=float)
            if key == "bytes":
                values = np.cumsum(values)
            if key == "stationarity" or (key == "loss" and values.max() > 30 * values.min()):
                values = np.log10(values)
            x, y = self.coordinates(page, key).T
            assert len(x) == 40, key
            for drawn, data in ((x, np.arange(1, 41)), (y, values)):
                slope, offset = np.polyfit(data, drawn, 1)
                np.testing.assert_allclose(drawn, slope * data + offset, atol=0.02, err_msg=key)
            assert y[np.argmax(values)] < y[np.argmin(values)], key

    def test_say_what_they_leave_out(self, tmp_path: Path) -> None:
        history = rounds(10)
        history[4]["stationarity"] = 0.0
        history[7]["loss"] = math.inf
        page = render(run_folder(tmp_path / "run", history))
        assert "zero, negative, infinite or too large, not drawn: 1 of 10 rounds" in page.html
        assert "infinite or too large, not drawn: 1 of 10 rounds" in page.html

    def test_label_axes_with_units_and_scale(self, tmp_path: Path) -> None:
        history = rounds(10, **{"bytes-up": 3_000_000})
        page = render(run_folder(tmp_path / "run", history))
        for label in (">%</text>", ">log scale</text>", ">MB</text>", ">round</text>"):
            assert label in page.html
        assert ">accuracy</text>" not in page.html, "the title of the card says it"

    def test_of_several_runs_share_axes_and_have_a_legend(self, tmp_path: Path) -> None:
        folders = [run_folder(tmp_path / f"run{i}", rounds(30, seed=i)) for i in range(3)]
        page = render(*folders)
        start = page.html.index('id="figure-accuracy"')
        figure = page.html[start : page.html.index("</figure>", start)]
        assert figure.count("</svg>") == 4, "plots over four axes"
        for i in range(3):
            assert page.html.count(f"</svg>run{i}</li>") == 1, "one legend for all figures"
            assert f"stroke: var(--run-{i})" in figure

    def test_may_be_looked_at_over_rounds_bytes_seconds_and_epsilon(self, tmp_path: Path) -> None:
        history = rounds(12)
        page = render(run_folder(tmp_path / "run", history))
        offered = [a["id"] for tag, a in page.tags if tag == "input"]
        assert offered == ["over-round", "over-bytes", "over-seconds", "over-epsilon"]
        start = page.html.index('id="figure-loss"')
        figure = page.html[start : page.html.index("</figure>", start)]
        for over, values in (
            ("bytes", np.cumsum([line["bytes-up"] + line["bytes-down"] for line in history])),
            ("seconds", np.cumsum([line["seconds"] for line in history])),
            ("epsilon", np.array([line["epsilon"] for line in history])),
        ):
            part = figure[figure.index(f'class="over over-{over}"') :]
            found = re.search(r'<path d="([^"]*)"[^>]*stroke: var\(--run-0\)', part)
            assert found
            x = np.array(re.findall(r"-?[\d.]+", found[1]), dtype=float).reshape(-1, 2)[:, 0]
            slope, offset = np.polyfit(values, x, 1)
            np.testing.assert_allclose(x, slope * values + offset, atol=0.02)
        plain = render(run_folder(tmp_path / "plain", rounds(12, epsilon="inf")))
        assert "over-epsilon" not in plain.ids

    def test_of_an_asynchronous_run_may_be_looked_at_over_clock_and_uploads(
        self, tmp_path: Path
    ) -> None:
        history = rounds(12)
        for number, line in enumerate(history, 1):
            count = 1 + number % 2
            line |= {
                "participants": ["a", "b"][:count],
                "versions": [number, max(1, number - 4)][:count],
                "clock": 7.0 * number**2,
                "failures": {"b": Failure(FailureCode.LATE, "no reply within 9 s").to_json()}
                if number == 3
                else {},
            }
        page = render(run_folder(tmp_path / "run", history))
        offered = [a["id"] for tag, a in page.tags if tag == "input"]
        assert offered[:4] == ["over-round", "over-clock", "over-uploads", "over-bytes"]
        start = page.html.index('id="figure-loss"')
        figure = page.html[start : page.html.index("</figure>", start)]
        uploads = np.cumsum([len(line["participants"]) for line in history])
        clock = np.array([line["clock"] for line in history])
        for over, values in (("clock", clock), ("uploads", uploads)):
            part = figure[figure.index(f'class="over over-{over}"') :]
            found = re.search(r'<path d="([^"]*)"[^>]*stroke: var\(--run-0\)', part)
            assert found
            x = np.array(re.findall(r"-?[\d.]+", found[1]), dtype=float).reshape(-1, 2)[:, 0]
            slope, offset = np.polyfit(values, x, 1)
            np.testing.assert_allclose(x, slope * values + offset, atol=0.02)
        (row,) = re.findall(r'<tr data-run="0" data-agent="b">(.*?)</tr>', page.html)
        ages = [min(4, number - 1) for number in range(1, 13, 2)]
        cells = re.findall(r"<td>(.*?)</td>", row)
        mean = f"{sum(ages) / len(ages):.1f}"
        assert cells[:5] == [str(len(ages)), mean, "4", "1", "1"]

    def test_say_values_at_their_places(self, tmp_path: Path) -> None:
        history = rounds(12)
        page = render(run_folder(tmp_path / "run", history))
        start = page.html.index('id="figure-accuracy"')
        figure = page.html[start : page.html.index('class="over over-bytes"', start)]
        spots = re.findall(
            r'<circle class="spot" data-run="0" cx="([\d.]+)" cy="([\d.]+)".*?<title>(.*?)</title>',
            figure,
        )
        line = self.coordinates(page, "accuracy")
        np.testing.assert_allclose([(float(x), float(y)) for x, y, _ in spots], line, atol=0.06)
        assert [said for *_, said in spots] == [
            f"round {done['round']}: {100 * done['accuracy']:.2f} %" for done in history
        ]

    def test_empty_ones_are_left_out_and_said(self, tmp_path: Path) -> None:
        page = render(run_folder(tmp_path / "run", rounds(3, epsilon="inf", participants=["a"])))
        assert not {"figure-failures", "figure-epsilon", "figure-participants"} & page.ids.keys()
        assert "1 agent in every round" in page.html

    def test_ten_thousand_rounds_stay_small(self, tmp_path: Path) -> None:
        page = render(run_folder(tmp_path / "run", rounds(10_000)))
        assert len(page.html) < 3_000_000

    @pytest.mark.parametrize("count", [0, 1])
    def test_hardly_any_round_is_no_error(self, tmp_path: Path, count: int) -> None:
        page = render(run_folder(tmp_path / "run", rounds(count)))
        assert ("No round was finished" in page.html) == (count == 0)
        assert ('id="figure-loss"' in page.html) == (count == 1)

    def test_the_same_runs_give_the_same_file(self, tmp_path: Path) -> None:
        folder = run_folder(tmp_path / "run", rounds(12))
        assert render(folder).html == render(folder).html

    def test_without_matplotlib_everything_else_is_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = run_folder(tmp_path / "run", rounds(12), summary={"algorithm": "fed-plt"})
        drawn = render(folder)
        for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        plain = render(folder)
        assert "pip install 'flwr-privet[plots]'" in plain.texts["no-plots"]
        assert "no-plots" not in drawn.ids
        assert "svg" in drawn.names
        assert "svg" not in plain.names
        cells = {name: a for name, a in drawn.ids.items() if name.startswith("run-")}
        assert len(cells) >= 10
        assert cells == {name: a for name, a in plain.ids.items() if name.startswith("run-")}


def summary_of(**config: Any) -> dict[str, Any]:
    full = read_config({"dataset": "digits", **config})
    return {"algorithm": full["algorithm"], "dataset": "digits", "config": full}


class TestHeadline:
    def test_is_accuracy_beside_its_baselines_privacy_and_rounds(self, tmp_path: Path) -> None:
        baselines = {"pooled": {"loss": 0.1, "accuracy": 0.975}}
        summary = {"baselines": baselines, "config": {"num-server-rounds": 40}}
        entry = {"to": "coordinator", "epsilon": 2.0, "delta": 1e-5, "method": "pld"}
        account = {"private": True, "reason": "", "accounts": [entry]}
        history = rounds(3, epsilon=2.0, accuracy=0.96, loss=1.0)
        page = render(run_folder(tmp_path / "run", history, summary=summary, privacy=account))
        large = page.html[page.html.index('<dl class="large">') :].partition('<dl class="tiles">')[
            0
        ]
        shown = unescape(re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", large)))
        assert "96.00 %" in shown
        assert "all rows in one place 97.50 %" in shown
        assert "Privacy spent, ε 2 at δ = 10⁻⁵, against the coordinator" in shown
        assert "Rounds finished 3 of 40 at most" in shown
        assert page.texts["run-0-loss"] == "1.000", "digits are not dropped"

    def test_red_is_a_broken_promise_alone(self, tmp_path: Path) -> None:
        account = {"private": False, "reason": "not private: noise-seed is set", "accounts": []}
        for name, target in (("none", 0.0), ("broken", 4.0)):
            summary = {"config": {"target-epsilon": target}}
            page = render(run_folder(tmp_path / name, rounds(2), summary=summary, privacy=account))
            red = re.findall(r'<p class="warn" data-privacy="broken">(.*?)</p>', page.html)
            said = "Privacy: target-epsilon = 4 was asked for, and the run is not private."
            assert red == ([said] if target else [])

    @pytest.mark.curves
    def test_a_private_curve_that_swings_is_said_to_be_noise(self, tmp_path: Path) -> None:
        account = {"private": True, "reason": "", "accounts": []}
        calm, wild = rounds(20), rounds(20)
        for t in range(20):
            calm[t] |= {"accuracy": 0.5 + 0.01 * t, "loss": 1.0}
            wild[t] |= {"accuracy": 0.5 + 0.04 * (-1) ** t, "loss": 1.0}
        (quiet, noisy) = (
            render(run_folder(tmp_path / name, history, privacy=account)).html
            for name, history in (("calm", calm), ("wild", wild))
        )
        assert "data-swing" not in quiet
        assert "Noise dominates: the accuracy moves by 8.0 points" in noisy
        open_run = render(run_folder(tmp_path / "open", wild)).html
        assert "data-swing" not in open_run, "without noise it is something else"


class TestManyRuns:
    @pytest.mark.curves
    def test_have_a_row_each_that_sorts_by_exact_values(self, tmp_path: Path) -> None:
        folders = [
            run_folder(tmp_path / f"r{n}", rounds(2, seed=n), summary=summary_of(rho=n + 0.5))
            for n in range(10)
        ]
        page = render(*folders)
        start = page.html.index('class="numbers sortable"')
        table = page.html[start : page.html.index("</table>", start)]
        rows = re.findall(r'<tr data-run="(\d+)">(.*?)</tr>', table)
        assert [int(number) for number, _ in rows] == list(range(10))
        assert all(f'<td data-key="rho">{n + 0.5:g}</td>' in rows[n][1] for n in range(10))
        heads = re.findall(r'<th scope="col">(.*?)</th>', table)
        assert heads[:5] == ["Run", "Accuracy", "Loss", "Privacy spent, ε", "rho"]
        for n in range(10):
            assert f'id="run-{n}-loss"' in rows[n][1]
            assert page.value(n, "loss") == rounds(2, seed=n)[-1]["loss"]
        start = page.html.index('<div class="plots">')
        assert 'class="legend"' not in page.html[page.html.index('class="curves"') : start]
        assert re.search(r'<g class="curve" data-run="9"', page.html), "a filter hides it"

    def test_a_star_is_for_numbers_of_the_same_quantity(self, tmp_path: Path) -> None:
        def starred(*configs: dict[str, Any]) -> set[str]:
            folders = [
                run_folder(
                    tmp_path / f"{len(list(tmp_path.iterdir()))}",
                    rounds(
                        1,
                        accuracy=0.9 - n / 10,
                        **dict.fromkeys(("loss", "residual", "bytes-up", "seconds"), 1.0 + n),
                    ),
                    summary=summary_of(**config) | {"dataset": config.get("dataset", "digits")},
                )
                for n, config in enumerate(configs)
            ]
            ids = render(*folders).ids
            best = {name for name, cell in ids.items() if cell.get("class") == "best"}
            kinds = {name.split("-", 2)[2] for name in best}
            return kinds & {"loss", "accuracy", "residual", "bytes-up", "seconds"}

        work = {"bytes-up", "seconds"}
        assert starred({}, {"rho": 2.0}) == {"loss", "accuracy", "residual"} | work
        assert starred({}, {"algorithm": "led"}) == {"loss", "accuracy"} | work
        assert starred({}, {"regularizer-weight": 1.0}) == {"accuracy"} | work
        assert starred({}, {"num-server-rounds": 9}) == {"loss", "accuracy", "residual"}
        assert starred({}, {"dataset": "breast-cancer"}) == set()

    def test_defaults_are_said_to_be_defaults(self, tmp_path: Path) -> None:
        folders = [
            run_folder(tmp_path / name, rounds(1), summary=summary_of(**config))
            for name, config in (("a", {}), ("b", {"step-size": 0.5}))
        ]
        html = render(*folders).html
        tuned = re.findall(r"<td data-run=\"\d\" data-tuned>(.*?)</td>", html)
        assert tuned == ["defaults, not tuned", "step-size=0.5"]
        assert '<div class="outcome"><h3>' not in html.replace("No privacy", ""), "no empty cards"


class TestSettings:
    def test_runs_are_told_apart_by_what_is_not_a_default(self, tmp_path: Path) -> None:
        configs: list[dict[str, Any]] = [
            {},
            {"local-epochs": 1},
            {"local-epochs": 20, "seed": 3, "target-epsilon": 4.0},
            {"algorithm": "led"},
        ]
        folders = [
            run_folder(tmp_path / f"20261120-221646-{i}-x", rounds(2), summary=summary_of(**config))
            for i, config in enumerate(configs)
        ]
        labels = [run.label for run in read_runs(folders)]
        assert labels == [
            "fed-plt",
            "fed-plt local-epochs=1",
            "fed-plt target-epsilon=4 seed=3 local-epochs=20",
            "led",
        ]
        alike = run_folder(tmp_path / "9-x", rounds(2), summary=summary_of(**configs[1]))
        twice = [run.label for run in read_runs([folders[1], alike])]
        assert len(set(twice)) == 2

    def test_what_is_not_a_default_comes_first_and_the_command_repeats_it(
        self, tmp_path: Path
    ) -> None:
        config = {"rho": 2.5, "schedule": "0;1", "participation": "schedule"}
        page = render(run_folder(tmp_path / "run", rounds(2), summary=summary_of(**config)))
        start = page.html.index("Settings</h2>")
        shown = page.html[start : page.html.index("<details>", start)]
        keys = set(re.findall(r'data-key="config\.([^"]+)"', shown))
        assert keys == {"rho", "schedule", "participation"}
        (command,) = re.findall(r"<code>privet run (.*?)</code>", page.html)
        words = shlex.split(unescape(command))
        assert read_config(parse_assignments(words)) == summary_of(**config)["config"]

    def test_the_page_says_when_it_was_made_and_by_what(self, tmp_path: Path) -> None:
        summary = {"ended": "2026-11-22T20:07:57+00:00", LIBRARY_VERSION: "0.1.0"}
        page = render(run_folder(tmp_path / "run", rounds(2), summary=summary))
        assert "run, ended 2026-11-22 20:07, Privet 0.1.0" in page.html

    def test_runs_of_one_objective_are_judged_by_it(self, tmp_path: Path) -> None:
        """Also where the accuracy says otherwise; of other objectives there is no best."""
        config = {"algorithm": "fed-plt", "regularizer-weight": 0.1}
        folders = [
            run_folder(
                tmp_path / name,
                rounds(3, accuracy=accuracy),
                summary={"objective-excess": excess, "config": {**config, **others}},
            )
            for name, accuracy, excess, others in (
                ("a", 0.9, 1e-7, {}),
                ("b", 0.95, 1e-2, {}),
                ("c", 0.9, 1e-9, {"regularizer-weight": 0.2}),
            )
        ]
        page = render(*folders[:2])
        assert page.value(0, "objective") == 1e-7
        best = {name for name, cell in page.ids.items() if cell.get("class") == "best"}
        assert {"run-0-objective", "run-1-accuracy"} <= best
        assert "Pooled objective above its least" in page.html
        other = render(*folders)
        assert not any(
            name.endswith("-objective") and cell.get("class") == "best"
            for name, cell in other.ids.items()
        )

    def test_no_loss_of_a_model_on_its_way_is_the_best(self, tmp_path: Path) -> None:
        """It may be the less because the penalty has not shrunk the model yet."""
        config = {"algorithm": "fed-plt", "regularizer-weight": 0.1}
        folders = [
            run_folder(
                tmp_path / name,
                rounds(3, loss=loss),
                summary={"objective-excess": excess, "config": config},
            )
            for name, loss, excess in (("a", 0.4, 0.3), ("b", 0.5, 1e-7), ("c", 0.6, 5e-3))
        ]
        page = render(*folders)
        best = {name for name, cell in page.ids.items() if cell.get("class") == "best"}
        assert {name for name in best if name.endswith("loss")} == {"run-1-loss"}
        assert page.html.index(">Accuracy<") < page.html.index(">Rounds finished<")

    def test_the_best_of_a_row_is_marked_among_runs_that_did_not_fail(self, tmp_path: Path) -> None:
        folders = [
            run_folder(tmp_path / name, rounds(1, **measured), summary={"status": status})
            for name, status, measured in (
                ("a", "completed", {"loss": 0.5, "accuracy": 0.9, "residual": 1.0}),
                ("b", "completed", {"loss": 0.4, "accuracy": 0.8, "residual": 1.0}),
                ("c", "failed", {"loss": 0.1, "accuracy": 1.0, "residual": 1.0}),
            )
        ]
        page = render(*folders)
        best = {name for name, cell in page.ids.items() if cell.get("class") == "best"}
        assert {name for name in best if name.endswith(("loss", "accuracy", "residual"))} == {
            "run-1-loss",
            "run-0-accuracy",
        }

    def test_agents_have_their_rounds_failures_bytes_and_epsilon(self, tmp_path: Path) -> None:
        history = rounds(3, participants=["10", "9"], **{"bytes-up": 3000})
        history[1] |= {"participants": ["9"], "failures": {"10": {"code": "lost", "text": "late"}}}
        account = {"private": True, "reason": "", "agents": {"9": {"epsilon": 1.001}}}
        page = render(run_folder(tmp_path / "run", history, privacy=account))
        found = re.findall(
            r'data-agent="(\d+)"><th scope="row">\d+</th>'
            r"<td>(\d+)</td><td>(\d+)</td><td>(.*?)</td><td>(.*?)</td>",
            page.html,
        )
        assert found == [("9", "3", "0", "6 kB", "1.01"), ("10", "2", "1", "3 kB", "not stated")]


class TestPrivacy:
    ACCOUNT = (
        {
            "to": "coordinator",
            "epsilon": 3.14159,
            "delta": 1e-5,
            "method": "pld",
            "assumptions": ["replace one record", "clip 0.5"],
            "as-printed": 0.05,
        },
        {
            "to": "world",
            "epsilon": "inf",
            "delta": 1e-5,
            "method": "none",
            "assumptions": [],
            "as-printed": None,
        },
    )

    def test_the_account_is_shown_entry_by_entry(self, tmp_path: Path) -> None:
        account = {"private": True, "reason": "", "accounts": list(self.ACCOUNT)}
        page = render(run_folder(tmp_path / "run", rounds(2), privacy=account))
        assert float(page.ids["run-0-privacy-0-epsilon"]["data-value"] or "") == 3.14159
        assert page.texts["run-0-privacy-0-epsilon"] == "3.15"
        assert page.ids["run-0-privacy-0-as-printed"]["data-value"] == "0.05"
        assert page.ids["run-0-privacy-1-epsilon"]["data-value"] == "inf"
        assert page.texts["run-0-privacy-0-assumptions"] == "replace one recordclip 0.5"
        assert "no guarantee towards the world" in page.html
        assert "not private" not in page.html

    @pytest.mark.parametrize(
        ("epsilon", "delta", "said"),
        [
            (0.0, 0.0, "in 50 %"),
            (1.0, 1e-5, "in 73.2 %"),
            (3.0, 1e-5, "in 95.3 %"),
            (20.0, 1e-5, "almost always"),
        ],
    )
    def test_an_epsilon_is_toldin_words(
        self, tmp_path: Path, epsilon: float, delta: float, said: str
    ) -> None:
        entry = {"epsilon": epsilon, "delta": delta, "method": "pld", "assumptions": []}
        entries = [{"to": to, **entry} for to in ("coordinator", "world")]
        account = {"private": True, "reason": "", "accounts": entries}
        history = rounds(2, epsilon=epsilon)
        page = render(run_folder(tmp_path / "run", history, privacy=account))
        assert f"be right {said}; tossing a coin" in page.html
        assert page.html.count("towards the coordinator and world") == 1
        assert "run-0-epsilon" not in page.ids, "one epsilon"
        assert "run-0-privacy-1-epsilon" not in page.ids

    @pytest.mark.parametrize(("epsilon", "said"), [(1.0, 55.3), (4.0, 67.8), (8.0, 79.8)])
    def test_a_gaussian_account_tells_its_exact_probability(
        self, tmp_path: Path, epsilon: float, said: float
    ) -> None:
        """By scipy: mu from (epsilon, delta), and the test that splits the two means in half."""

        def excess(mu: float) -> float:
            below = norm.cdf(-epsilon / mu + mu / 2)
            return float(below - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2) - 1e-5)

        exact = 100 * norm.cdf(brentq(excess, 1e-3, 10.0) / 2)
        assert exact == pytest.approx(said, abs=0.05)
        run = {
            "algorithm": "dp-fedsgd", "clip": 1.0, "target-epsilon": epsilon, "partition": "iid",
            "num-agents": 3, "num-server-rounds": 2, "output-dir": str(tmp_path),
        }  # fmt: skip
        page = (run_inline(run, "run").folder / "report.html").read_text()
        (told,) = re.findall(r"be right in ([\d.]+) %; tossing a coin is right in 50 %\.", page)
        assert float(told) == pytest.approx(exact, abs=0.051)
        assert "ε = 0 gives nothing away, around 1 protects strongly, above 10 weakly" in page

    def test_no_test_beats_the_probability_that_is_told(self) -> None:
        """Randomised response, which is the hardest case of an epsilon, reaches it."""
        for epsilon in (0.1, 1.0, 4.0):
            words = in_words({"epsilon": epsilon, "delta": 0.0}, "")
            (told,) = re.findall(r"right in ([\d.]+) %;", words)
            truth = math.exp(epsilon) / (1 + math.exp(epsilon))
            assert 100 * truth <= float(told) < 100 * truth + 0.1

    def test_a_run_that_is_not_private_says_so_beside_every_epsilon(self, tmp_path: Path) -> None:
        account = {
            "private": False,
            "reason": "not private: noise-seed is set",
            "accounts": list(self.ACCOUNT),
        }
        page = render(run_folder(tmp_path / "run", rounds(2), privacy=account))
        assert page.texts["run-0-epsilon"] == "Not private"
        assert page.html.count("noise-seed is set") == 1
        assert 'class="warn" data' not in page.html, "nothing was promised"
        for cell in ("run-0-privacy-0-epsilon", "run-0-privacy-1-epsilon"):
            assert "(not private)" in page.texts[cell]
        assert "ε = 3.15 at" not in page.html

    def test_no_account_claims_nothing(self, tmp_path: Path) -> None:
        page = render(run_folder(tmp_path / "run", rounds(2)))
        assert "no privacy is claimed" in page.html
        assert "Privacy account</h2>" not in page.html


class TestFailures:
    def test_are_listed_with_their_reasons(self, tmp_path: Path) -> None:
        history = rounds(12)
        for t in (2, 5):
            history[t]["failures"] = {"agent-7": {"code": "dropped", "text": "upload has NaN"}}
        history[3]["notes"] = ["agent-2 was sent its state again"]
        page = render(run_folder(tmp_path / "run", history))
        assert page.value(0, "failures") == 2
        assert "upload has NaN</td>" in page.html
        assert "<td>3, 6</td>" in page.html
        assert "agent-2 was sent its state again" in page.html

    def test_the_round_that_ended_a_run_is_among_them_with_advice(self, tmp_path: Path) -> None:
        reason = "upload holds numbers that are not finite, or too large"
        summary = {
            "status": "failed",
            "cause": "round 13: 0 of 3 agents replied",
            "failed-round": 13,
            "failures": {key: {"code": "not finite", "text": reason} for key in "012"},
            "diverged": "uploads that are not finite in round 13",
            "config": {"algorithm": "fed-plt", "step-size": 1000.0},
        }
        page = render(run_folder(tmp_path / "run", rounds(12), summary=summary))
        assert page.value(0, "failures") == 3
        assert f'<th scope="row">0, 1, 2</th><td>{reason}</td>' in page.html
        assert "Try a smaller step-size" in page.html
        assert "No failure" not in page.html
        del summary["diverged"]
        silent = {**summary, "failures": {"1": {"code": "lost", "text": "no reply within 600 s"}}}
        page = render(run_folder(tmp_path / "silent", rounds(12), summary=silent))
        assert "raise round-timeout" in page.html

    def test_an_interrupted_run_says_how_to_go_on(self, tmp_path: Path) -> None:
        folder = run_folder(tmp_path / "run", rounds(2), summary={"status": "interrupted"})
        assert f"It goes on with resume={folder}." in render(folder).html

    @pytest.mark.curves
    def test_none_is_said_in_words(self, tmp_path: Path) -> None:
        assert (
            "No failure in any recorded round" in render(run_folder(tmp_path / "r", rounds(3))).html
        )

    def test_a_failed_run_says_why(self, tmp_path: Path) -> None:
        summary = {"status": "failed", "cause": "2 of 10 agents came"}
        page = render(run_folder(tmp_path / "run", rounds(1), summary=summary))
        assert "The run failed: 2 of 10 agents came" in page.html


@pytest.mark.curves
class TestSafety:
    HOSTILE = "\"><img src=x onerror=alert(1)>'&amp;<b>"

    def test_no_name_becomes_markup(self, tmp_path: Path) -> None:
        evil = self.HOSTILE
        failures = {evil: {"code": "lost", "text": evil}}
        history = rounds(30, participants=[evil], failures=failures, notes=[evil])
        entry = dict.fromkeys(("to", "epsilon", "delta", "method", "as-printed"), evil)
        entries = [{**entry, "assumptions": [evil]}]
        account = {"private": False, "reason": evil, "accounts": entries}
        summary = {evil: evil, "algorithm": evil, "dataset": evil, "config": {evil: {evil: [evil]}}}
        files = {"summary": summary, "privacy": account}
        first = run_folder(tmp_path / evil, history, **files)
        second = run_folder(tmp_path / "$\\frac{1}{0}$", history, **files)
        for folders in ([first], [first, second]):
            page = render(*folders)
            assert not {"img", "b"} & page.names
            assert re.findall(r"<script.*?</script>", page.html, re.DOTALL) == [
                f"<script>{SCRIPT}</script>"
            ]
            assert not [name for _, a in page.tags for name in a if name.startswith("on")]
            assert evil in "".join(page.texts.values()) or evil in [
                value for _, a in page.tags for value in a.values()
            ]

    def test_nothing_is_loaded_from_anywhere(self, tmp_path: Path) -> None:
        folders = [run_folder(tmp_path / f"run{i}", rounds(30, seed=i)) for i in range(2)]
        page = render(*folders)
        assert "http://" not in page.html
        assert "https://" not in page.html
        assert not {"link", "img", "iframe", "object", "embed", "base"} & page.names
        for _, attributes in page.tags:
            for name, value in attributes.items():
                assert name != "src"
                if name in ("href", "xlink:href"):
                    assert (value or "").startswith("#")
                    assert (value or "")[1:] in page.ids
        assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page.html))
        assert "@import" not in page.html
        assert f"script-src 'sha256-{HASH}'" in page.html

    def test_fits_phones(self, tmp_path: Path) -> None:
        page = render(run_folder(tmp_path / "run", rounds(3)))
        viewports = [a["content"] for _, a in page.tags if a.get("name") == "viewport"]
        assert viewports == ["width=device-width, initial-scale=1"]
        plots = [a for tag, a in page.tags if tag == "svg"]
        assert all("viewbox" in a and "width" not in a and "height" not in a for a in plots)
        assert "prefers-color-scheme:dark" in page.html


class TestReading:
    def test_half_a_last_line_is_left_out_and_mentioned(self, tmp_path: Path) -> None:
        folder = run_folder(tmp_path / "run", rounds(5))
        path = folder / "history.jsonl"
        path.write_text(path.read_text() + '{"round": 6, "loss": 0.')
        page = render(folder)
        assert page.value(0, "rounds") == 5
        assert "last line of history.jsonl is incomplete" in page.html

    def test_a_round_recorded_again_replaces_the_first(self, tmp_path: Path) -> None:
        history = rounds(4)
        again = history[2] | {"bytes-up": 7}
        page = render(run_folder(tmp_path / "run", [*history, again]))
        kept = sum(line["bytes-up"] for line in (history[0], history[1], history[3]))
        assert page.value(0, "bytes-up") == kept + 7
        assert "round 3 was recorded more than once" in page.html

    @pytest.mark.parametrize(
        "line", ['{"round": 1', "[1]", '{"round": 1, "loss": "low"}', "garbage", "\0" * 50]
    )
    def test_a_wrong_line_is_named(self, tmp_path: Path, line: str) -> None:
        folder = run_folder(tmp_path / "run", rounds(1))
        with (folder / "history.jsonl").open("a") as file:
            file.write(line + "\n")
        with pytest.raises(ReportError, match=r"history\.jsonl, line 2: not a round \(") as caught:
            write_report([folder], tmp_path / "out.html")
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out.html").exists()

    @pytest.mark.parametrize(("name", "content"), [("summary", "[1]"), ("privacy", "{")])
    def test_a_wrong_file_is_named(self, tmp_path: Path, name: str, content: str) -> None:
        folder = run_folder(tmp_path / "run", rounds(2))
        (folder / f"{name}.json").write_text(content)
        with pytest.raises(ReportError, match=rf"{name}\.json: expected"):
            write_report([folder], tmp_path / "out.html")

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ReportError, match="nowhere"):
            write_report([tmp_path / "nowhere"], tmp_path / "out.html")
        with pytest.raises(ReportError, match="at least one"):
            write_report([], tmp_path / "out.html")

    def test_runs_of_one_name_are_told_apart(self, tmp_path: Path) -> None:
        folders = [run_folder(tmp_path / parent / "run", rounds(3)) for parent in "ab"]
        page = render(*folders)
        assert re.findall(r'<th scope="col"><svg.*?</svg>(.*?)</th>', page.html) == [
            "a/run",
            "b/run",
        ]

    def test_a_folder_as_target_gets_report_html(self, tmp_path: Path) -> None:
        folder = run_folder(tmp_path / "run", rounds(3))
        assert write_report([folder], folder) == folder / "report.html"


@pytest.mark.curves
class TestMeasures:
    """Columns an algorithm adds to the history."""

    def test_have_a_number_a_curve_and_a_column(self, tmp_path: Path) -> None:
        history = rounds(30)
        for line in history:
            line["measures"] = {"msd-units": 2.0 ** -line["round"], "epsilon-links": 1.2301}
            line["residual"] = 3.0 ** -line["round"]
        bare = run_folder(tmp_path / "bare", rounds(3))
        page = render(run_folder(tmp_path / "run", history), bare)
        assert page.value(0, "msd-units") == 2.0**-30
        assert page.value(0, "residual") == 3.0**-30
        assert page.texts["run-0-epsilon-links"] == "1.24", "an epsilon is rounded up"
        assert page.texts["run-1-msd-units"] == "not recorded"
        for key in ("residual", "added-msd-units", "added-epsilon-links"):
            start = page.html.index(f'id="figure-{key}"')
            assert "stroke: var(--run-0)" in page.html[start : page.html.index("</figure>", start)]
        assert "<h3>Msd units</h3>" in page.html

    @pytest.mark.parametrize(
        ("measures", "expected"),
        [
            ({"loss": 1.0}, r"a new name in kebab-case, got measure 'loss'"),
            ({"privacy-0-epsilon": 1.0}, r"a new name in kebab-case, got measure 'privacy-0-"),
            ({"Two Words": 1.0}, r"a new name in kebab-case, got measure 'Two Words'"),
            ({"a": "b"}, r"line 1: not a round \(ValueError: measures\.a: expected a number"),
        ],
    )
    def test_a_wrong_one_is_named(self, tmp_path: Path, measures: Any, expected: str) -> None:
        folder = run_folder(tmp_path / "run", rounds(1, measures=measures))
        with pytest.raises(ReportError, match=expected):
            write_report([folder], tmp_path / "out.html")


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["20261120-221646-11-fed-plt", "20261120-221650-12-gfl"], ["fed-plt", "gfl"]),
        (
            ["20261120-221646-11-gfl", "20261120-221650-12-gfl"],
            ["gfl 22:16:46", "gfl 22:16:50"],
        ),
        (
            ["20261120-221646-11-gfl", "20261121-221646-11-gfl"],
            ["20261120-221646-11-gfl", "20261121-221646-11-gfl"],
        ),
        (["20261120-221646-11-gfl", "mine"], ["20261120-221646-11-gfl", "mine"]),
    ],
)
def test_runs_named_by_the_command_get_short_labels(
    tmp_path: Path, names: list[str], labels: list[str]
) -> None:
    page = render(*(run_folder(tmp_path / name, rounds(2)) for name in names))
    heads = re.findall(r'<th scope="col"><svg.*?</svg>(.*?)</th>', page.html)
    assert heads[: len(labels)] == labels
    assert all(name in page.html for name in names)


class TestCommand:
    def test_writes_next_to_the_run_and_prints_where(self, tmp_path: Path) -> None:
        folder = run_folder(tmp_path / "run", rounds(3))
        csv_file, parquet_file = tmp_path / "history.csv", tmp_path / "history.parquet"
        code, out, _ = privet("report", folder, "--csv", csv_file, "--parquet", parquet_file)
        assert code == 0
        printed = out.split()
        assert printed == [str(folder / "report.html"), str(csv_file), str(parquet_file)]
        assert parquet_file.exists()
        assert (folder / "report.html").exists()
        assert (tmp_path / "history.csv").read_text().count("\n") == 4

    def test_compares_several_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folders = [run_folder(tmp_path / f"run{i}", rounds(3)) for i in range(2)]
        monkeypatch.chdir(tmp_path)
        assert privet("report", *folders).code == 0
        assert "Comparison of 2 runs" in (tmp_path / "report.html").read_text()
        assert privet("report", *folders, "--out", tmp_path / "both.html").code == 0
        assert (tmp_path / "both.html").exists()

    def test_a_path_that_is_not_there_is_one_line_and_exit_2(self, tmp_path: Path) -> None:
        code, out, err = privet("report", tmp_path / "nowhere")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "nowhere" in err


EXTREMES = [
    [1e17 * 1e16**n for n in range(18)],
    [5e-324, 1.7e308],
    [0.0, 1.7e308, -1.7e308],
    [math.inf, math.inf],
]


@pytest.mark.curves
@pytest.mark.parametrize("values", EXTREMES, ids=str)
def test_a_diverged_run_has_its_page(tmp_path: Path, values: list[float]) -> None:
    keys = ("loss", "accuracy", "stationarity", "residual", "seconds", "epsilon", "bytes-up")
    history = rounds(len(values))
    for line, value in zip(history, values, strict=True):
        line |= {**dict.fromkeys(keys, value), "measures": {"gap": value}}
    page = render(run_folder(tmp_path / "run", history))
    assert page.value(0, "loss") == values[-1]
    drawn = any(0 < value < 1e300 for value in values)
    assert ("figure-stationarity" in page.ids) == drawn
    assert ("stroke: var(--run-0)" in page.texts.get("figure-stationarity", "")) is False
    assert ("negative, infinite or too large, not drawn" in page.html) == any(
        not 0 < value < 1e300 for value in values
    )


@pytest.mark.curves
def test_a_diverged_run_does_not_flatten_the_curves_of_the_others(tmp_path: Path) -> None:
    steady = [1.0, 0.5, 0.25]
    folders = [
        run_folder(
            tmp_path / name,
            [line | {"loss": value} for line, value in zip(rounds(3), losses, strict=True)],
            summary={"diverged": name if name == "up" else ""},
        )
        for name, losses in (("down", steady), ("up", [2.0, 1e20, 1e200]))
    ]
    html = render(*folders).html
    figure = html[html.index('id="figure-loss"') :]
    low, high = map(float, figure.split('data-axis="')[1].split()[:2])
    assert low < 0.25
    assert 2.0 < high < 10
    assert "up: infinite or too large, not drawn: 2 of 3 rounds" in figure
    alone = render(folders[1]).html
    assert "not drawn" not in alone[alone.index('id="figure-loss"') :].split("</figure>")[0]


@pytest.mark.parametrize(
    "account", ['{"private": "yes"}', '{"private": true, "accounts": 3}', '{"accounts": [1]}']
)
def test_an_account_of_another_form_is_refused(tmp_path: Path, account: str) -> None:
    folder = run_folder(tmp_path / "run", rounds(3))
    (folder / "privacy.json").write_text(account)
    with pytest.raises(ReportError, match=r"privacy\.json: [a-z0.]+: expected"):
        render(folder)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--csv", "run/history.jsonl"],
            "--csv run/history.jsonl: history.jsonl belongs to the run itself",
        ),
        (
            ["--out", "run/summary.json"],
            "--out run/summary.json: summary.json belongs to the run itself",
        ),
        (["--csv", "link.csv"], "--csv link.csv: history.jsonl belongs to the run itself"),
        (["--csv", "run/report.html", "--out", "a.html"], "report.html belongs to the run itself"),
        (["--csv", "a", "--out", "run/../a"], "choose another file than --out's"),
        (["--csv", "run"], "--csv run: Is a directory"),
        (["--csv", "rounds.xlsx"], "--csv rounds.xlsx: expected a name in .csv"),
        (["--parquet", "rounds.csv"], "--parquet rounds.csv: expected a name in .parquet"),
        (["--out", "page.pdf"], "--out page.pdf: expected a name in .html or .htm"),
        (["--out", "/proc/nowhere/page.html"], "--out /proc/nowhere/page.html: No such file"),
    ],
)
def test_a_target_that_cannot_be_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    folder = run_folder(tmp_path / "run", rounds(3))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.csv").symlink_to(folder / "history.jsonl")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, _, err = privet("report", "run", *arguments)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1
    assert before.items() <= {path.name: path.read_bytes() for path in folder.iterdir()}.items()


def test_a_comparison_may_replace_a_page(tmp_path: Path) -> None:
    folder, other = (run_folder(tmp_path / name, rounds(2)) for name in ("run", "other"))
    write_report([folder], folder)
    write_report([folder, other], folder / "report.html")
    assert "Comparison of 2 runs" in (folder / "report.html").read_text()


def test_a_folder_whose_name_is_no_text_is_reported(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / os.fsdecode(b"caf\xe9"), rounds(2))
    assert "caf\N{REPLACEMENT CHARACTER}" in render(folder).html
    assert b"\xef\xbf\xbd" in csv_table(read_runs([folder]))


def test_a_run_is_not_compared_with_itself(tmp_path: Path) -> None:
    folder, other = (run_folder(tmp_path / name, rounds(2)) for name in ("run", "other"))
    (tmp_path / "link").symlink_to(folder)
    for again in (folder, tmp_path / "other" / ".." / "run", tmp_path / "link"):
        with pytest.raises(ReportError, match=f"{folder}: named twice; name each run once"):
            read_runs([folder, other, again])


def test_of_several_runs_those_that_were_refused_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    played, refused = run_folder(tmp_path / "a", rounds(2)), tmp_path / "b"
    refused.mkdir()
    (refused / "summary.json").write_text("{}")
    assert [run.folder for run in read_runs([refused, played])] == [played]
    assert f"{refused}: its run was refused before the first round" in caplog.text
    with pytest.raises(ReportError, match="no such file"):
        read_runs([refused])
