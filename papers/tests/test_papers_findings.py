"""Pages of results begin with what was found, and say what the kept runs say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from results import deep, private_accuracy, uneven_budgets, value_bits
from results.dots import Panel, draw
from studies.pages import NOT_SHOWN, by_verdict
from studies.rule import better_or_worse
from studies.runs import Runs
from studies.statistics import Estimate, welch

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGES = sorted(page for page in RESULTS.glob("*.md") if page.stem != "asynchrony")


def between(page: str, name: str) -> str:
    text = (RESULTS / page).read_text()
    return text.split(f"<!-- begin {name} -->")[1].split(f"<!-- end {name} -->")[0].strip()


def said(lines: list[str]) -> str:
    return "\n".join(lines).strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_its_finding(page: Path) -> None:
    blocks = [block for block in page.read_text().split("\n\n") if not block.startswith("<!--")]
    assert blocks[0].startswith("# ")
    assert blocks[1].startswith("**")


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_says_at_its_beginning_what_it_does_not_show(page: Path) -> None:
    text = page.read_text()
    finding = text.split("<!-- begin finding -->")
    if len(finding) == 2 and "\n**" not in finding[0]:
        text = finding[1].split("<!-- end finding -->")[1]
    begins = re.split(r"^(?:#{2} |!\[|<div|\||```|- )", text, flags=re.M)[0]
    assert " ".join([*NOT_SHOWN.split(), ""]) in " ".join(begins.split())


def test_the_page_on_uneven_budgets_is_that_of_its_runs() -> None:
    found = uneven_budgets.measured(RESULTS / "uneven-budgets.jsonl")
    assert list(found) == list(uneven_budgets.SETTINGS)
    assert between("uneven-budgets.md", "finding") == said(uneven_budgets.finding(found))
    tables = [line for data, lines in found.items() for line in uneven_budgets.table(data, lines)]
    assert between("uneven-budgets.md", "tables") == said(tables)


def test_the_page_on_value_bits_is_that_of_its_runs() -> None:
    def play(**run: Any) -> dict[str, Any]:
        raise AssertionError(run)

    found = value_bits.measured(Runs(RESULTS / "value-bits.jsonl", play))
    assert between("value-bits.md", "finding") == said(value_bits.finding(found))
    assert between("value-bits.md", "uploads") == said(value_bits.upload_rows(found))


def test_the_page_on_private_accuracy_is_that_of_its_runs() -> None:
    file = RESULTS / "private.jsonl"
    cells = private_accuracy.measured(file)
    assert between("private.md", "finding") == said(private_accuracy.finding(cells))
    assert between("private.md", "tables") == said(private_accuracy.tables(cells, file))
    assert between("private.md", "best") == said(private_accuracy.best_lines(cells))
    assert between("private.md", "levels") == said(private_accuracy.levels(file))


@pytest.mark.parametrize(
    ("gap", "half", "word"),
    [
        (0.0, 0.009, "level"),
        (0.0, 0.02, "undecided"),
        (0.03, 0.02, "above"),
        (-0.03, 0.02, "below"),
        (-0.005, 0.002, "level"),
    ],
)
def test_level_means_an_interval_within_the_margin(gap: float, half: float, word: str) -> None:
    assert private_accuracy.level(Estimate(gap, half, 5, 5), 0.01) == word


def test_welchs_interval_is_scipys() -> None:
    from scipy.stats import ttest_ind

    ours, other = [1.0, 2.0, 4.0, 3.0, 2.5], [0.5, 0.7, 0.4, 0.6, 0.9]
    bounds = ttest_ind(ours, other, equal_var=False).confidence_interval(0.99)
    found = welch(ours, other, 0.01)
    assert (found.low, found.high) == pytest.approx((bounds.low, bounds.high))


def test_the_page_on_a_small_network_is_that_of_its_runs() -> None:
    found = deep.Measured(deep.runs_of(RESULTS))
    assert between("deep.md", "finding") == said(found.finding())
    assert between("deep.md", "table") == said(found.table())


def test_a_verdict_is_that_of_the_interval() -> None:
    gaps = {"up": Estimate(2.0, 1.0), "down": Estimate(-2.0, 1.0), "open": Estimate(1.0, 1.5)}
    verdicts = {name: better_or_worse(gap.low, gap.high) for name, gap in gaps.items()}
    assert verdicts == {"up": "better", "down": "worse", "open": "undecided"}
    assert better_or_worse(0.5, 0.9, equal=1.0) == "worse"
    better, undecided, worse = by_verdict(gaps.items())
    assert better.endswith("up +2.0 ± 1.0")
    assert undecided.endswith("open +1.0 ± 1.5")
    assert worse.endswith("down -2.0 ± 1.0")


def test_panels_share_rows_and_one_legend() -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    one = {"a": [(0.0, 1.0, 2.0), None], "b": [(1.0, 1.0, 1.0)] * 2}
    panels = [Panel("first", "x", one), Panel("second", "x", {"b": one["b"]}, log=True)]
    draw(["top", "bottom"], panels, figure, alike=False)
    first, second = figure.axes
    assert [label.get_text() for label in first.get_yticklabels()] == ["top", "bottom"]
    assert first.get_ylim() == second.get_ylim() == (1.5, -0.5)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
    assert second.get_lines()[0].get_color() == first.get_lines()[1].get_color() == "C1"
