"""``privet reproduce``: cases run once and are kept, verdicts follow from the measured spread."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.cli.main import main
from privet.core import ConfigError
from privet.sim.sweep import SweepError
from studies import (
    Case,
    Curve,
    Options,
    Outcome,
    Panel,
    Row,
    Setting,
    Study,
    Verdict,
    catalogue,
    checks,
    execute,
    fed_plt,
    fed_plt_rivals,
    theorems,
)
from studies.catalogue import PAPERS, chosen
from studies.execute import CASES, run_studies
from studies.pages import summary, write_pages, write_study
from studies.plots import draw
from studies.rule import Gap, Side, all_of, standing
from studies.statistics import Estimate, common, difference
from studies.study import ADULT, FEMNIST, FURTHER, MNIST, Results, Rows, said_of

RAN: list[int] = []


def square(case: Case) -> dict[str, Any]:
    number = case.settings["n"]
    RAN.append(number)
    if number < 0:
        raise ValueError("negative")
    return {"value": number**2}


@pytest.fixture(autouse=True)
def squares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "play", square)
    RAN.clear()


def conclude(found: Results) -> Outcome:
    value = Estimate(list(found.values())[-1][0]["value"])
    rows, open_ = Rows(), Rows(changed="rho is not printed")
    rows.number("four squared", 16.0, value, exact=True)
    rows.number("off", 25.0, value, exact=True)
    open_.number("near", 17.0, value, exact=True)
    open_.number("far", 25.0, value, exact=True)
    open_.number("open", 20.0, value)
    drawing = Row("a drawing", "-", "-", Verdict.NOT_TESTABLE, "nothing to measure")
    rows += [*open_, drawing]
    panel = Panel("squares", "n", "n^2", {"n^2": Curve([2], [4])}, {"printed": Curve([2], [4])})
    return Outcome(rows, [panel], ["a remark"])


def study(name: str, *numbers: int, **options: Any) -> Study:
    def cases(_: Options) -> Sequence[Case]:
        return [Case(f"n = {n}", 0, settings={"n": n}) for n in numbers]

    settings = (Setting("rho", "not printed", "1.3, **fitted**", "not printed"),)
    return Study(name, "Squares", cases, conclude, settings, **options)


# ------------------------------------------------------------------ statistics and verdicts


def test_intervals_are_students() -> None:
    one = Estimate.of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert one.mean == 3.0
    assert one.half_width == pytest.approx(2.776445 * math.sqrt(2.5) / math.sqrt(5))
    assert str(Estimate.of([9.0, None, 9.0])) == "9 (2 of 3 arrive)"
    assert str(Estimate.of([None])) == "0 of 1 arrive"
    assert difference([3.0, None, 5.0], [1.0, 2.0, 3.0]).count == 2


def test_arms_of_unlike_numbers_of_seeds_are_compared_over_those_of_both() -> None:
    long, short = [3.0, 5.0, 9.0, 100.0], [1.0, 2.0, 3.0]
    assert difference(long, short) == Estimate.of([2.0, 3.0, 6.0])
    assert common(long, short) == [long[:3], short]
    curve = Curve.course([{"course": [1.0, 2.0]}, {"value": 7.0}, {"course": [3.0, 4.0]}])
    assert curve.y == [2.0, 3.0]


def two_arms(first: Sequence[float], second: Sequence[float]) -> dict[str, list[Any]]:
    """Return results of arms of which "b" and "c" alone have three further seeds."""
    b, c = ([{"value": one} for one in own] for own in (first, second))
    return {"a": [{"value": 0.0}] * 5, "b": b, "c": c}


@pytest.mark.parametrize(
    ("further", "verdict"),
    [([3.0, 3.1, 2.9], Verdict.REPRODUCED), ([-3.0, -3.1, -2.9], Verdict.CONTRADICTED)],
)
def test_an_open_entry_is_judged_by_its_further_seeds_alone(
    monkeypatch: pytest.MonkeyPatch, further: list[float], verdict: Verdict
) -> None:
    """The first five say neither, and are not counted again; what they decide stays decided."""

    def conclude(found: Results) -> Outcome:
        rows, own = Rows(), {name: [one["value"] for one in found[name]] for name in found}
        rows.claim("b above c", difference(own["b"], own["c"]))
        rows.claim("c above a", difference(own["c"], own["a"]))
        rows.claim("c below 10", Estimate.of(own["c"]).below(10.0))
        return Outcome(rows)

    monkeypatch.setattr("studies.study.further_seeds", lambda name: {"b": 3, "c": 3})
    study = Study("paper/part", "", lambda options: [], conclude)
    first = [1.0, -1.0, 2.0, -2.0, 0.5]
    found = two_arms([*first, *further], [0.1, -0.1, 0.05, -0.05, 0.0, 0.0, 0.1, -0.1])
    one, other, decided = study.judge(found, Options()).rows
    assert (one.verdict, one.gaps[""][0].ours.tried) == (verdict, 3)
    assert one.why.endswith(FURTHER)
    assert (other.verdict, other.gaps[""][0].ours.tried) == (Verdict.NOT_DETERMINED, 5)
    assert (decided.verdict, decided.gaps[""][0].ours.tried) == (Verdict.REPRODUCED, 5)
    whole = study.judge(found, Options(full=True)).rows
    assert [row.gaps[""][0].ours.tried for row in whole] == [8, 5, 8]


def test_further_seeds_are_of_labels_that_there_are() -> None:
    """A name that no case has would be passed over in silence."""
    seen = 0
    for paper in PAPERS:
        for part, own in said_of(paper).get("seeds", {}).items():
            (study,) = chosen([f"{paper}/{part}"])
            played = Counter(case.label for case in study.cases(Options(data_path=Path("none"))))
            assert own.keys() <= played.keys(), study.name
            night = Counter(
                case.label for case in study.cases(Options(night=True, data_path=Path("none")))
            )
            if paper != "gfl":  # whose nights are not longer
                assert all(played[label] >= night[label] + own[label] for label in own), part
            seen += len(own)
    assert seen > 50


def test_a_course_has_bands_in_rounds_as_far_apart_as_the_first() -> None:
    """The last rounds are looked at one by one; where runs differ in length the shorter counts."""
    rounds = [5, 10, 15, 16, 17]
    results = [{"rounds": rounds, "course": [1.0, 2.0, 9.0, 9.0, 9.0]}, {"course": [3.0, 2.0]}]
    curve = Curve.course(results)
    assert curve.x == [5, 10]
    assert curve.y == [2.0, 2.0]
    np.testing.assert_allclose(np.subtract(curve.high, curve.low), [2 * 12.7062, 0], rtol=1e-5)
    every = Curve.course([{"rounds": rounds, "course": [1.0, 2.0, 3.0, 4.0, 5.0]}])
    assert (every.x, every.y, every.low) == ([5, 10, 15], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0])


ALIKE = [1.0, 1.1, 0.9, 1.0, 1.0]


@pytest.mark.parametrize(
    ("values", "changed", "expected"),
    [
        (ALIKE, "", Verdict.REPRODUCED),
        (ALIKE, "the start", Verdict.AGREES),
        ([-one for one in ALIKE], "", Verdict.CONTRADICTED),
        ([-one for one in ALIKE], "the start", Verdict.DIFFERS),
        ([-1.0, 1.1, 0.9], "", Verdict.NOT_DETERMINED),
        ([-1.0, 1.1, 0.9], "the start", Verdict.NOT_DETERMINED),
        ([1.0], "", Verdict.NOT_DETERMINED),
        ([*ALIKE, None], "", Verdict.NOT_DETERMINED),
    ],
)
def test_a_claim_is_judged_alike_on_both_sides(
    values: list[float | None], changed: str, expected: Verdict
) -> None:
    rows = Rows(changed=changed)
    rows.claim("a above b", Estimate.of(values))
    (row,) = rows
    assert row.verdict is expected
    assert changed in row.why
    if expected is Verdict.NOT_DETERMINED:
        assert row.why.startswith(("alike within", "one run has no interval", "not all arrive"))


def test_a_claim_is_judged_under_every_reading() -> None:
    up, down = Estimate(1.0, 0.1, 5, 5), Estimate(-1.0, 0.1, 5, 5)
    lost = Estimate.of([None])
    for gaps, changed, verdict, why in (
        ((up, up), "rho", Verdict.AGREES, "rho"),
        ((up, down), "", Verdict.NOT_DETERMINED, "theory: as printed; free: the opposite was "),
        ((up, lost), "", Verdict.NOT_DETERMINED, "theory: as printed; free: not all arrive"),
        ((down, down), "rho", Verdict.DIFFERS, "rho"),
        ((down, down), "", Verdict.CONTRADICTED, ""),
    ):
        rows = Rows(changed=changed)
        own = {name: [gap] for name, gap in zip(("theory", "free"), gaps, strict=True)}
        rows.readings("a is faster than b", own, "both")
        assert rows[0].verdict is verdict
        assert rows[0].why.startswith(why)


def test_a_number_needs_an_interval_inside_or_outside_its_tolerance() -> None:
    near, across = Estimate(21.0, 0.5, 5, 5), Estimate(23.0, 1.5, 5, 5)
    far, wide, lost = Estimate(30.0, 1.0, 5, 5), Estimate(30.0, 12.0, 5, 5), Estimate(20, 1.0, 4, 5)
    for changed, agrees, differs in (
        ("", Verdict.REPRODUCED, Verdict.CONTRADICTED),
        ("rho", Verdict.AGREES, Verdict.DIFFERS),
    ):
        rows = Rows(changed=changed)
        for one in (near, across, far, wide, lost, Estimate(21.0)):
            rows.number("x", 20.0, one)
        rows.number("x", 20.0, Estimate(21.0), exact=True)
        rows.number("x", 20.0, near, readings={"other": far})
        open_ = Verdict.NOT_DETERMINED
        wanted = [agrees, open_, differs, open_, open_, open_, agrees, open_]
        assert [row.verdict for row in rows] == wanted


def test_what_is_tuned_to_the_end_of_its_grid_is_not_determined() -> None:
    rows = Rows()
    rows.claim("a above b", Estimate(1.0, 0.1, 5, 5), untuned="b's step is the end of its grid")
    assert rows[0].verdict is Verdict.NOT_DETERMINED
    assert rows[0].why.startswith("b's step is the end of its grid")


def test_intervals_widen_with_the_number_of_entries() -> None:
    """Student's t of 4 degrees at .05 / 50 is 8.6103, at .05 2.7764; by tables."""
    wide = Estimate(1.0, 0.5, 5, 5).at(0.05 / 50)
    assert wide.half_width == pytest.approx(0.5 * 8.6103 / 2.776445, rel=1e-4)
    gap = Gap(Estimate(1.0, 0.5, 5, 5))
    assert (gap.side(1), gap.side(50)) == (Side.INSIDE, Side.OPEN)
    assert Rows("fed-plt").entries == said_of("fed-plt")["entries"]


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=4), st.floats(0.01, 2), st.integers(1, 100))
def test_the_mirror_image_of_a_claim_has_the_opposite_verdict(
    means: list[float], half: float, entries: int
) -> None:
    """With one gap the sides are each other's mirror; of several all must agree, or one differ."""
    gaps = [Gap(Estimate(mean, half, 5, 5)) for mean in means]
    turned = [Gap(Estimate(-mean, half, 5, 5)) for mean in means]
    side, other = all_of(gaps, entries), all_of(turned, entries)
    if side is Side.INSIDE or (len(gaps) == 1 and side is not Side.OPEN):
        assert other is (Side.OUTSIDE if side is Side.INSIDE else Side.INSIDE) or len(gaps) > 1
    assert not (side is Side.INSIDE and other is Side.INSIDE)


@pytest.mark.parametrize("paper", catalogue.PAPERS)
def test_no_paper_has_more_judged_entries_than_it_states(paper: str) -> None:
    folder = Path(__file__).parents[2] / "docs" / "results"
    texts = [json.loads(path.read_text()) for path in folder.glob(f"{paper}-*.json")]
    judged = [line for text in texts for line in text["entries"] if line["judged"]]
    assert 0 < len(judged) <= said_of(paper)["entries"]


def test_the_readme_counts_entries_by_kind_as_the_pages_do() -> None:
    root = Path(__file__).parents[2]
    said = summary(root / "docs" / "results")
    assert said in " ".join((root / "README.md").read_text().replace("> ", "").split())
    assert f"**{said}**" in (root / "docs" / "results" / "index.md").read_text()


# ------------------------------------------------------------------ running


def test_equal_cases_run_once_and_are_kept(tmp_path: Path) -> None:
    both = [study("a/one", 2, 4), study("a/two", 3, 4)]
    found = run_studies(both, Options(), tmp_path, workers=1)
    assert sorted(RAN) == [2, 3, 4]
    again = run_studies(both, Options(), tmp_path, workers=1)
    assert len(RAN) == 3
    assert again == found
    run_studies(both[:1], Options(), tmp_path, workers=1, fresh=True)
    assert len(RAN) == 5


def test_the_label_is_no_part_of_a_case() -> None:
    one, other = Case("one", 3, settings={"n": 1}), Case("two", 3, settings={"n": 1})
    assert one.key == other.key
    assert one.key != Case("one", 4, settings={"n": 1}).key


def test_a_damaged_result_is_named_and_run_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_studies([study("a/one", 2, 4)], Options(), tmp_path, workers=1)
    file = tmp_path / CASES
    one, other = file.read_text().splitlines()
    file.write_text(f"{one[:-9]}\n{other[:9]}")
    for _ in range(2):
        run_studies([study("a/one", 2, 4)], Options(), tmp_path, workers=1)
    assert RAN == [2, 4, 2, 4]
    for number in (1, 2):
        said = f"{file}, line {number}: cannot be read; its run counts as missing"
        assert caplog.messages.count(said) == 2
    assert [line[0] for line in file.read_text().splitlines()] == ["{"] * 4


def test_a_failed_case_loses_nothing_else(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(SweepError, match="n = -1"):
            run_studies([study("a/one", 2, -1, 4)], Options(), tmp_path, workers=1)
    assert RAN == [2, -1, 4, -1]


def test_files_that_are_missing_are_named_before_a_case_runs(tmp_path: Path) -> None:
    data, output = tmp_path / "data", tmp_path / "output"
    data.mkdir()
    studies = [study("a/free", 2), study("a/one", 3, files=MNIST + ADULT)]
    with pytest.raises(ConfigError, match="a/one needs --data-path"):
        run_studies(studies, Options(), output, workers=1)
    with pytest.raises(ConfigError) as caught:
        run_studies(studies, Options(data_path=data), output, workers=1)
    files = ("mnist_20k.npz", "adult-train.csv.gz", "adult-test.csv.gz")
    assert str(caught.value) == f"--data-path {data}: no {', '.join(files)}, which a/one needs"
    assert not RAN
    assert not output.exists()


# ------------------------------------------------------------------ pages


def test_what_is_written(tmp_path: Path) -> None:
    one = study("a/one", 2, 4)
    outcome = run_studies([one], Options(), tmp_path, workers=1)["a/one"]
    write_study(one, outcome, tmp_path)
    with (tmp_path / "a-one.csv").open() as file:
        assert [row["verdict"] for row in csv.DictReader(file)] == [
            "reproduced",
            "contradicted",
            "agrees under changed settings",
            "differs under changed settings",
            "not determined",
            "not testable",
        ]
    text = json.loads((tmp_path / "a-one.json").read_text())
    assert [line["holds"] for line in text["entries"]] == [True, False, True, False, None, None]
    assert set(text["provenance"]) == {"machine", "python", "versions", "date", "full"}
    assert (tmp_path / "a-one.svg").read_text().startswith("<?xml")
    overview = write_pages(tmp_path).read_text()
    of_entries = overview.split("## a\n")[1]
    assert "[Squares](a.md#aone)" in of_entries
    for verdict in (Verdict.REPRODUCED, Verdict.CONTRADICTED, Verdict.AGREES, Verdict.DIFFERS):
        assert f'title="1 {verdict}">1</span>' in of_entries, verdict
    assert f"{Verdict.VACUOUS}" not in of_entries
    said = (
        "Of 5 entries of tables and figures that can be tested 1 is reproduced, 1 agrees under "
        "changed settings, 1 differs under changed settings, 1 is not determined and 1 is "
        "contradicted."
    )
    assert f"**{said}**" in overview
    assert text["entries"][0]["judged"] == [
        {"reading": "", "mean": 16.0, "half-width": 0.0, "repetitions": 1, "tried": 1}
        | {"region": [pytest.approx(12.8), pytest.approx(19.2)]}
    ]
    assert '<span class="contradicted" style="flex:1" title="1 contradicted">1</span>' in overview
    assert "Not run, and left out: fed-plt/table-2" in overview
    page = (tmp_path / "a.md").read_text()
    assert "| rho | not printed | 1.3, **fitted** | not printed |" in page
    verdict = '<span class="verdict not-determined">not determined</span>'
    why = "one run has no interval; rho is not printed"
    assert f"| open | 20 | 16 | {verdict} | {why} |" in page
    parts = ("**Of 5 entries", "## Squares { #aone }", "(a-one.svg)", "| entry |", "| setting |")
    places = [page.index(part) for part in (*parts, "Seeds are 0, 1, 2")]
    assert places == sorted(places), "the finding first, how it was run last"
    assert "- a remark" in page


def test_plots_are_side_by_side_under_one_legend(tmp_path: Path) -> None:
    curves = {
        label: Curve([1, 2, 3], [1, 2, 3], [0, 1, 2], [2, 3, 4]) for label in ("led", "dense")
    }
    panels = [Panel(f"panel {number}", "n", "y", curves) for number in range(3)]
    bars = Panel("bars", "", "rounds", {"led": Curve([0], [3])}, bars=True)
    with mpl.rc_context({"svg.fonttype": "none"}):
        draw(tmp_path / "a.svg", "Three", [*panels, bars])
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.count(">dense</text>") == 1
    (width, height) = map(float, re.findall(r' (?:width|height)="([\d.]+)pt"', drawn)[:2])
    assert 550 < width < 650
    assert height < width, "two rows of plots and one of bars"


def test_bars_are_wide_enough_for_their_axis_and_numbers_are_plain(tmp_path: Path) -> None:
    bars = Panel(
        "of all", "", "rounds", {"led": Curve([0], [3])}, {"led": Curve([0], [4])}, bars=True
    )
    with mpl.rc_context({"svg.fonttype": "none"}):
        draw(tmp_path / "bars.svg", "of all", [bars])
        few = Panel("", "n", "y", {"led": Curve([1, 2], [20, 90])}, y_log=True)
        draw(tmp_path / "few.svg", "Few", [few])
    drawn = (tmp_path / "bars.svg").read_text()
    assert drawn.count(">of all</text>") == 1, "no title twice"
    assert drawn.count(">printed</text>") == 1
    assert float(re.findall(r' width="([\d.]+)pt"', drawn)[0]) > 450
    assert ">50</text>" in (tmp_path / "few.svg").read_text()


def test_files_that_cannot_be_read_are_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = study("a/one", 2, 4)
    write_study(one, run_studies([one], Options(), tmp_path, workers=1)["a/one"], tmp_path)
    wrong = {"broken": "{", "lacking": '{"study": "a/two"}', "number": "3"}
    for name, text in wrong.items():
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    (tmp_path / "foreign.json").write_text('{"somebody": "else"}')
    assert "a/two" not in write_pages(tmp_path).read_text()
    for name in (*wrong, "bytes"):
        (record,) = [one for one in caplog.records if f"{name}.json is left out" in one.message]
        assert "\n" not in record.message
    assert "foreign" not in caplog.text


# ------------------------------------------------------------------ the catalogue


def test_the_catalogue_names_every_table_and_figure() -> None:
    names = catalogue.names()
    wanted = (
        *(f"fed-plt/table-{number}" for number in range(2, 10)),
        "fed-plt/theorems",
        *(f"dp-iadmm/figure-{number}" for number in range(1, 5)),
        *(f"dp-iadmm/figure-{number}-femnist" for number in range(1, 5)),
        *(f"dp-iadmm/{name}" for name in ("horizon", "horizon-objpm", "horizon-femnist")),
        "dp-iadmm/theorems",
        *(f"fedpdm/figure-{number}" for number in range(2, 9)),
        "fedpdm/theorems",
        *(f"gfl/figure-{number}" for number in range(2, 6)),
        *("gfl/steady-state", "gfl/theorems"),
    )
    assert names == list(wanted)


@pytest.mark.parametrize("paper", catalogue.PAPERS)
def test_every_line_of_a_data_file_is_used(paper: str) -> None:
    said = said_of(paper)
    settings = [setting for one in catalogue.studies_of(paper) for setting in one.settings]
    shown = {(setting.what, setting.printed) for setting in settings}
    assert {tuple(line[:2]) for line in said["settings"].values()} <= shown
    assert not [setting for setting in settings if "{" in setting.ours + setting.why]
    checked = [one for one in theorems.STATEMENTS[paper] if one.check]
    assert checked
    assert all(callable(getattr(checks, one.check)) for one in checked)
    assert all(
        any(f"{{{name}}}" in one.get("why", "") for one in said["statements"])
        for name in said["reasons"]
    )


@pytest.mark.parametrize("full", [False, True])
def test_cases_are_data_with_five_seeds_or_more(full: bool) -> None:
    for one in catalogue.chosen(["all"], full=full):
        assert one.settings, one.name
        cases = one.cases(Options(full, Path("data")))
        for case in {case.label: case for case in cases}.values():
            assert json.loads(json.dumps(asdict(case))) == asdict(case)
        labels = [case.label for case in cases]
        exact = {"ObjP, epsilon inf", "ObjPM, epsilon inf"}
        if not (one.full_only or one.name.endswith("theorems")):
            assert all(labels.count(label) >= 5 for label in set(labels) - exact), one.name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dp-iadmm/figure-1", MNIST),
        ("dp-iadmm/figure-1-femnist", FEMNIST),
        ("dp-iadmm/horizon-femnist", FEMNIST),
        ("gfl/figure-5", ADULT),
        ("gfl/figure-2", ()),
        ("fedpdm/figure-2", MNIST + ADULT),
    ],
)
def test_a_study_needs_the_files_it_reads(name: str, expected: tuple[str, ...]) -> None:
    (found,) = catalogue.chosen([name])
    assert found.files == expected


def test_the_printed_horizon_is_run_in_full_or_by_its_name() -> None:
    name = "dp-iadmm/horizon"
    for wanted in ("all", "dp-iadmm"):
        assert name not in [one.name for one in catalogue.chosen([wanted])]
        assert name in [one.name for one in catalogue.chosen([wanted], full=True)]
    (found,) = catalogue.chosen([name])
    cases = found.cases(Options(data_path=Path("data")))
    assert {case.rounds for case in cases} == {20_000}
    result = {"value": 9.5, "best": 20.0, "rounds": [200], "course": [9.5]}
    rows = found.conclude({case.label: [result] for case in cases}).rows
    assert [(row.printed, row.verdict) for row in rows] == [
        (9.1, Verdict.AGREES),
        (21.79, Verdict.NOT_DETERMINED),
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [("fed-plt/table-1", "known are fed-plt/table-2"), ("other/table-2", "papers are fed-plt")],
)
def test_unknown_studies_are_named(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", name])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


def test_json_lines_are_one_entry_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalogue, "chosen", lambda wanted, full: [study("a/one", 2, 4)])
    command = ["reproduce", "a/one", "--json", "--workers", "1", "--output", str(tmp_path)]
    with pytest.raises(SystemExit):
        main(command)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["holds"] for line in lines] == [True, False, True, False, None, None]
    assert {"study", "entry", "paper", "ours", "reason", "verdict"} <= set(lines[0])


def test_printed_iterations_are_those_of_the_papers_times() -> None:
    """Time = N (gradients t_G + exchanges t_C) iterations, with the gradients the paper counts."""
    thousands = {
        "convex": (70.5, 15.6, 25.5, 51, 57, 13.5),
        "nonconvex": (223.5, 31.2, None, 438, 39, 21),
        "half active": (None, None, 53.25, None, 22.5, 21.75),
        "accelerated": (None, None, None, None, 57, 15),
        "accelerated, half active": (None, None, None, None, 23.25, 28.5),
        "100 features": (2040, 364, 720, 1020, 900, 300),
    }
    order = ("fed-pd", "fed-lin", "tamuna", "led", "five-gcs", "fed-plt")
    own = fed_plt_rivals
    for one in (own.CONVEX, own.NONCONVEX[0], own.HALF, own.AGD, own.AGD_HALF, own.LARGE):
        cost = 200.0 if one is own.LARGE else 10.0
        times = dict(zip(order, thousands[one.name.split(", from")[0]], strict=True))
        assert set(one.printed) == {name for name, time in times.items() if time is not None}
        for name, count in one.printed.items():
            time = 100 * one.fraction * own.time_of(one, name, count, cost)
            assert time == pytest.approx(1000 * (times[name] or 0)), (one.name, name)
    six = {share: 100 * share * 15 * count for share, count in fed_plt.TABLE_VI.items()}
    printed = (22.8e3, 21.75e3, 19.8e3, 19.95e3, 16.8e3, 16.2e3, 13.5e3)
    assert list(six.values()) == pytest.approx(printed)
    nine = {epochs: 100 * (epochs + 10) * count for epochs, count in fed_plt.TABLE_IX.items()}
    assert list(nine.values()) == pytest.approx([31.9e3, 18e3, 13.5e3, 14.4e3, 16e3, 24e3])
    eight = [1500 * count for count in fed_plt.TABLE_VIII.values()]
    assert eight == pytest.approx([184.5e3, 58.5e3, 243e3])


def test_of_many_differences_those_stand_that_holm_leaves() -> None:
    """p values are scipy's; a family of none that differ has a wrong word in one of twenty."""
    from scipy.stats import ttest_1samp

    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(400):
        rows = rng.standard_normal((12, 10)) + np.repeat([0.0, 1.2], [9, 3])[:, None]
        chances = ttest_1samp(rows, 0.0, axis=1).pvalue
        expected, left = ["undecided"] * 12, 12
        for at in np.argsort(chances):
            if chances[at] > 0.05 / left:
                break
            expected[at], left = "better" if rows[at].mean() > 0 else "worse", left - 1
        assert standing([Estimate.of(row.tolist()) for row in rows]) == expected
        wrong += any(word != "undecided" for word in expected[:9])
    assert wrong <= 40  # at most 20 are expected: 20 + 5 standard deviations of 4.4
