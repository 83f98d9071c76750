"""What a description says the sites disagree about: each kind, and nothing where there is none."""

from __future__ import annotations

import logging
import sys
from typing import Any

import numpy as np
import pytest

from privet.analyses.description import DescribeAnalysis
from privet.analyses.description_table import FACTORS, disagreements
from privet.analyses.frame import Frame

RNG = np.random.default_rng(6)


def described(frames: list[Frame], least: int = 1) -> dict[str, Any]:
    """The table of sites s0, s1, ..., whose categories are agreed on as nodes do."""
    names = dict.fromkeys(name for frame in frames for name in frame.names)
    levels = {
        name: tuple(
            sorted(
                {t for f in frames if name in f.factors for t in f.factors[name].frequent(least)}
            )
        )
        for name in names
    }
    analysis = DescribeAnalysis()
    sites = [analysis.sums(frame, levels) for frame in frames]
    sites = [analysis.guarded(site, least) if least > 1 else site for site in sites]
    state = analysis.begin(levels)
    while not state.done:
        answers = [site.statistics(analysis.point(state)) for site in sites]
        totals = {name: sum(one[name] for one in answers) for name in answers[0]}
        state = analysis.by_site(state, analysis.step(state, totals), answers)
    return {**analysis.table(state), "site_names": [f"s{at}" for at in range(len(frames))]}


def lines(columns: list[dict[str, Any]], least: int = 1) -> list[str]:
    return disagreements(described([Frame.of(one) for one in columns], least))


@pytest.fixture(autouse=True)
def same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test draws the same numbers, whichever ran before it."""
    monkeypatch.setattr(sys.modules[__name__], "RNG", np.random.default_rng(6))


def numbers(mean: float, spread: float, rows: int = 300) -> Any:
    return RNG.normal(mean, spread, rows)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("down", [False, True])
def test_a_unit_that_differs_is_guessed_by_its_factor(factor: float, down: bool) -> None:
    own = 1.0 / factor if down else factor
    found = lines([{"x": numbers(100.0, 8.0)} for _ in range(3)] + [{"x": numbers(100, 8) * own}])
    [line] = found
    assert line.startswith("column x: the mean at s3 is ")
    assert f"another unit? ({FACTORS[factor]})" in line


def test_fahrenheit_beside_celsius_is_guessed() -> None:
    celsius = [{"t": numbers(37.0, 0.5)} for _ in range(2)]
    [line] = lines([*celsius, {"t": numbers(37.0, 0.5) * 1.8 + 32}])
    assert "the mean at s2" in line
    assert "degrees Fahrenheit beside Celsius" in line


def test_follow_up_in_years_beside_days_is_guessed() -> None:
    """As an exponential follow-up has it, whose deviation is its mean."""
    days = [RNG.exponential(600.0, 500) for _ in range(4)]
    [line] = lines([{"t": one} for one in [*days[:3], days[3] / 365.25]])
    assert line.endswith("another unit? (days beside years)")
    assert "the mean at s3 is " in line
    [line] = lines([{"t": one / 30.44} for one in [*days[:3], days[3] / 12]])
    assert line.endswith("another unit? (months beside years)")


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.97])
def test_codes_1_and_2_beside_0_and_1_are_named(share: float) -> None:
    sites = [(RNG.random(400) < share).astype(float) for _ in range(3)]
    found = lines([{"died": sites[0]}, {"died": sites[1] + 1.0}, {"died": sites[2]}])
    assert "column died: the codes seem to be 1 and 2 at s1, and 0 and 1 at s0, s2" in found
    for low in (0.0, 1.0):
        alike = lines([{"died": low + one} for one in sites])
        assert not [line for line in alike if "codes" in line]


def test_numbers_between_0_and_2_are_no_codes() -> None:
    shares = [{"x": RNG.random(400)}, {"x": 1.0 + RNG.random(400)}]
    assert not [line for line in lines(shares) if "codes" in line]
    counts = [{"x": RNG.poisson(0.5, 400).astype(float)}, {"x": 1.0 + RNG.integers(0, 2, 400)}]
    assert not [line for line in lines(counts) if "codes" in line]


@pytest.mark.parametrize("ratio", [1.0, 1.3, 1.6])
def test_sites_that_differ_as_sites_do_are_in_no_line(ratio: float) -> None:
    assert (
        lines(
            [
                {"x": numbers(100.0, 8.0)},
                {"x": numbers(90.0, 9.0)},
                {"x": ratio * numbers(100.0, 8.0)},
            ]
        )
        == []
    )


def test_a_mean_ten_times_as_large_with_the_others_spread_is_no_unit() -> None:
    assert (
        lines([{"x": numbers(100.0, 8.0)}, {"x": numbers(101.0, 8.0)}, {"x": numbers(1000.0, 8.0)}])
        == []
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Female", "female"),
        ("never smoked", "never_smoked"),
        ("never smoked", "never  smoked"),
        ("ja", "yes"),
        ("non", "No"),
        ("männlich", "M"),
        ("w", "female"),
        ("STRASSE", "straße"),
    ],
)
def test_categories_that_differ_by_case_spelling_or_language_are_named(
    first: str, second: str
) -> None:
    found = lines([{"c": [first] * 20 + ["other"] * 20}, {"c": [second] * 20 + ["other"] * 20}])
    [line] = found
    assert line.startswith("column c: ")
    assert "may be the same" in line
    assert f"s0 has {first}" in line
    assert f"s1 has {second}" in line


def test_categories_of_different_meaning_are_in_no_line() -> None:
    assert (
        lines([{"c": ["a", "b"] * 20}, {"c": ["b", "yes"] * 20}, {"c": ["no", "yes"] * 20}]) == []
    )


def test_a_column_that_a_site_lacks_or_has_as_another_kind_is_named() -> None:
    found = lines(
        [
            {"x": numbers(1, 1), "y": numbers(1, 1)},
            {"y": numbers(1, 1)},
            {"x": ["a"] * 300, "y": numbers(1, 1)},
        ]
    )
    assert (
        "column x: no column of categories at s0, s1" in found
        or "column x: no column of numbers at s1, s2" in found
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_constant_at_one_site_is_named_and_one_at_all_sites_is_not(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "RNG", np.random.default_rng(seed))
    still = {"x": [4.0] * 50, "y": [1.0] * 50}
    found = lines(
        [
            still,
            {"x": numbers(4, 1, 50), "y": [1.0] * 50},
            {"x": numbers(4, 1, 50), "y": [1.0] * 50},
        ]
    )
    assert found == ["column x: every value is the same at s0"]


def test_dates_in_two_orders_are_named() -> None:
    first, second = "(dates, day first)", "(dates, month first)"
    [line] = lines([{"d": [first] * 20}, {"d": [second] * 20}, {"d": ["(dates)"] * 20}])
    assert line == "column d: dates are written day first at some sites, month first at others"
    assert lines([{"d": [first] * 20}, {"d": ["(dates)"] * 20}]) == []


def test_no_line_has_a_category_of_few_rows() -> None:
    columns = [{"c": ["Yes"] * 30 + ["secret"] * 2}, {"c": ["yes"] * 30 + ["Secret"] * 3}]
    found = lines(columns, least=5)
    assert any("may be the same" in line for line in found)
    assert not any("ecret" in line for line in found)


def test_no_line_has_the_mean_of_few_values() -> None:
    """Of a site with fewer values than a cell needs, nor that all are the same."""
    few = {"x": [9000.0] * 3 + [None] * 30}
    found = lines([few, *({"x": numbers(90, 5)} for _ in range(3))], least=5)
    assert not any("9000" in line or "same" in line for line in found)


def test_a_site_in_secure_sums_compares_itself_in_its_own_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody else sees its mean; of many rows of the others the pooled one is about theirs."""
    frames = [Frame.of({"x": numbers(100.0, 8.0, 2000)}) for _ in range(3)]
    frames.append(Frame.of({"x": numbers(100.0, 8.0, 60) / 18.02}))
    analysis = DescribeAnalysis()
    sites = [analysis.unseen(analysis.sums(frame, {"x": ()})) for frame in frames]
    state, said = analysis.begin({"x": ()}), [""] * 4
    while not state.done:
        totals: dict[str, Any] = {}
        for at, site in enumerate(sites):
            with caplog.at_level(logging.WARNING, logger="flwr.privet"):
                caplog.clear()
                answer = site.statistics(analysis.point(state))
                said[at] += caplog.text
            totals = {name: totals.get(name, 0.0) + array for name, array in answer.items()}
        state = analysis.step(state, totals)
    assert said[:3] == ["", "", ""]
    assert "column x: the mean is 5." in said[3]
    assert "another unit? (glucose in mg/dl beside mmol/l)" in said[3]
