"""``privet reproduce``: cases run once and are kept, verdicts follow from their results."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from privet.datasets import federation_from_config
from privet.privacy import gaussian_scale
from privet.sim.cli.main import main
from privet.sim.reproduce import (
    Case,
    Curve,
    Entry,
    Options,
    Outcome,
    Panel,
    Result,
    Study,
    catalogue,
)
from privet.sim.reproduce.runner import run_studies
from privet.sim.reproduce.study import ADULT, MNIST
from privet.sim.reproduce.written import write_study, write_summary
from privet.sim.sweep import SweepError
from privet.wire import ConfigError
from support.paths import SHARED

RAN: list[int] = []


def square(case: Case) -> Result:
    RAN.append(case["n"])
    if case["n"] < 0:
        raise ValueError("negative")
    return {"square": case["n"] ** 2}


def conclude(options: Options, cases: Sequence[Case], results: Sequence[Result]) -> Outcome:
    rows = [{**case, **result} for case, result in zip(cases, results, strict=True)]
    entries = [
        Entry.number("four squared", 16.0, results[-1]["square"], within=0.1),
        Entry.number("off", 20.0, results[-1]["square"], within=0.1, reason="4 is not 4.5"),
        Entry("not comparable", 1.0, 2.0, None),
    ]
    curve = Curve([case["n"] for case in cases], [result["square"] for result in results])
    return Outcome(rows, entries, [Panel("squares", "n", "n^2", {"n^2": curve})], ["a remark"])


def study(name: str, *numbers: int, **options: Any) -> Study:
    def cases(_: Options) -> Sequence[Case]:
        return [{"case": f"n = {n}", "n": n} for n in numbers]

    return Study(name, "Squares", cases, square, conclude, **options)


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def test_equal_cases_run_once_and_are_kept(tmp_path: Path) -> None:
    both = [study("a/one", 2, 4), study("a/two", 3, 4)]
    found = run_studies(both, Options(), tmp_path, workers=1)
    assert sorted(RAN) == [2, 3, 4]
    assert [row["square"] for row in found["a/two"].rows] == [9, 16]
    again = run_studies(both, Options(), tmp_path, workers=1)
    assert len(RAN) == 3
    assert again == found
    run_studies(both[:1], Options(), tmp_path, workers=1, fresh=True)
    assert len(RAN) == 5


def test_a_damaged_result_is_run_again(tmp_path: Path) -> None:
    run_studies([study("a/one", 2, 4)], Options(), tmp_path, workers=1)
    for path in (tmp_path / "cases").iterdir():
        path.write_text("{")
    run_studies([study("a/one", 2, 4)], Options(), tmp_path, workers=1)
    assert RAN == [2, 4, 2, 4]


def test_a_failed_case_loses_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="n = -1"):
        run_studies([study("a/one", 2, -1, 4)], Options(), tmp_path, workers=1)
    with pytest.raises(SweepError):
        run_studies([study("a/one", 2, -1, 4)], Options(), tmp_path, workers=1)
    assert RAN == [2, -1, 4, -1]


def test_data_that_are_needed_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a/one needs --data-path"):
        run_studies([study("a/one", 2, files=MNIST + ADULT)], Options(), tmp_path, workers=1)


def test_files_that_are_missing_are_named_before_a_case_runs(tmp_path: Path) -> None:
    data, output = tmp_path / "data", tmp_path / "output"
    data.mkdir()
    studies = [study("a/free", 2), study("a/one", 3, files=MNIST + ADULT)]
    with pytest.raises(ConfigError) as caught:
        run_studies(studies, Options(data_path=data), output, workers=1)
    files = ("mnist_20k.npz", "adult-train.csv.gz", "adult-test.csv.gz")
    assert str(caught.value) == f"--data-path {data}: no {', '.join(files)}, which a/one needs"
    (data / files[0]).touch()
    with pytest.raises(ConfigError, match=r": no adult-train\.csv\.gz, adult-test\.csv\.gz, which"):
        run_studies(studies, Options(data_path=data), output, workers=1)
    assert not RAN
    assert not output.exists()
    own = study("a/own", 3, files=(files[0],))
    run_studies([own], Options(data_path=data), output, workers=1)
    assert RAN == [3]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dp-iadmm/figure-1", ["mnist_20k.npz"]),
        ("gfl/figure-5", ["adult-train.csv.gz", "adult-test.csv.gz"]),
        ("gfl/figure-2", []),
        ("fedpdm/figure-2", ["mnist_20k.npz", "adult-train.csv.gz", "adult-test.csv.gz"]),
    ],
)
def test_a_study_needs_the_files_it_reads(name: str, expected: list[str]) -> None:
    (found,) = catalogue.chosen([name])
    assert list(found.files) == expected


def test_verdicts_that_cannot_be_read_are_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = study("a/one", 2, 4)
    write_study(one, run_studies([one], Options(), tmp_path, workers=1)["a/one"], tmp_path)
    wrong = {
        "broken": "{",
        "lacking": '{"study": "a/two"}',
        "other": '{"study": "a/two", "title": "", "entries": [3]}',
        "number": "3",
    }
    for name, text in wrong.items():
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    (tmp_path / "foreign.json").write_text('{"somebody": "else"}')
    page = write_summary(tmp_path).read_text()
    assert "| [a/one](#aone) | Squares | 1 | 1 | 1 |" in page
    assert "a/two" not in page
    for name in (*wrong, "bytes"):
        (record,) = [one for one in caplog.records if f"{name}.json is left out" in one.message]
        assert "\n" not in record.message
    assert "foreign" not in caplog.text


def test_what_is_written(tmp_path: Path) -> None:
    one = study("a/one", 2, 4)
    outcome = run_studies([one], Options(), tmp_path, workers=1)["a/one"]
    write_study(one, outcome, tmp_path)
    with (tmp_path / "a-one.csv").open() as file:
        assert [row["square"] for row in csv.DictReader(file)] == ["4", "16"]
    verdicts = json.loads((tmp_path / "a-one.json").read_text())["entries"]
    assert [line["holds"] for line in verdicts] == [True, False, None]
    assert (tmp_path / "a-one.svg").read_text().startswith("<?xml")
    page = write_summary(tmp_path).read_text()
    assert "| [a/one](#aone) | Squares | 1 | 1 | 1 |" in page
    assert "| off | 20 | 16 | 10 % | does not hold: 4 is not 4.5 |" in page
    assert "- a remark" in page


def test_the_catalogue_names_every_table_and_figure() -> None:
    names = catalogue.names()
    assert names == sorted(set(names), key=names.index)
    wanted = (
        *(f"fed-plt/table-{number}" for number in range(2, 10)),
        *(f"dp-iadmm/figure-{number}" for number in range(1, 5)),
        *(f"fedpdm/figure-{number}" for number in range(2, 9)),
        *(f"gfl/figure-{number}" for number in range(2, 6)),
        "gfl/steady-state",
    )
    assert names == list(wanted)
    for study in catalogue.chosen(["all"]):
        cases = study.cases(Options(data_path=Path("data")))
        assert cases
        assert json.loads(json.dumps([dict(case) for case in cases])) == [dict(c) for c in cases]


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


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="needs the MNIST and Adult data")
def test_cases_of_the_data_figures_run(tmp_path: Path) -> None:
    """One short case of each kind, as the studies run them."""
    from privet.sim.reproduce import dp_iadmm, fed_pdm

    options = Options(data_path=SHARED / "data")
    for case in (*dp_iadmm.comparison(options)[::4], *dp_iadmm.penalties(options)[::19]):
        result = dp_iadmm.run_case({**case, "rounds": 2})
        assert len(result["errors"]) == len(result["noise"]) == 2
    cases = [
        case
        for study in fed_pdm.STUDIES
        for case in study.cases(options)
        if case["data"] == "Adult"
    ]
    for case in {
        (c["method"], c["epsilon"] > 0, *sorted(c["settings"])): c for c in cases
    }.values():
        result = fed_pdm.run_case({**case, "rounds": 10})
        assert 0.2 < result["accuracy"] <= 1.0


@pytest.mark.parametrize("number", [1, 2])
def test_noise_of_figure_3_is_what_reaches_the_output(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E |N(0, s^2)| with s = (2C/I) sigma(epsilon, delta) / (rho_t + 1/eta_t)."""
    from privet.sim.reproduce import dp_iadmm

    digits = federation_from_config(
        {"algorithm": "dp-iadmm", "dataset": "digits", "partition": "iid", "beta": 1e-6}, 5
    )
    monkeypatch.setattr(dp_iadmm, "_digits", lambda folder: digits)
    epsilon, examples = 6.0, sum(problem.num_examples for problem in digits.problems)
    settings = dp_iadmm.METHODS["OutP"]
    case = {"method": "OutP", "epsilon": epsilon, "seed": 1, "rounds": 2, "data": ""}
    found = dp_iadmm.run_case({**case, "settings": settings})["noise"][number - 1]
    drawn = 2 * settings["clip"] / examples * gaussian_scale(epsilon, settings["delta"])
    rho = settings["rho_c1"] + settings["rho_c2"] / epsilon
    wanted = math.sqrt(2 / math.pi) * drawn / (rho + math.sqrt(number))
    assert found == pytest.approx(wanted, rel=0.05)  # 5 agents of 650 draws: 1.3 %
