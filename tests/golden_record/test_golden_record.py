"""Every algorithm gives what it gave when the record was made; see the README beside this."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_record import adapter
from golden_record.__main__ import main
from golden_record.cases import CASES, ENGINES_DATA, OBJECTIVE, Case
from golden_record.record import (
    Record,
    differences,
    digest,
    load,
    machine,
    play,
    same_machine,
)

# Ray leaves its own files and processes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

RECORDS = load()
RUNS = [name for name, case in CASES.items() if case.kind == "run"]
ON_RAY = [name for name, case in CASES.items() if case.ray]

Played = Callable[[str], Record]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Return what gives a case's record from a run in this process, played once."""
    found: dict[str, Record] = {}
    folder = tmp_path_factory.mktemp("inline")

    def played(name: str) -> Record:
        if name not in found:
            found[name] = play(CASES[name], folder / CASES[name].kind)
        return found[name]

    return played


@pytest.fixture(scope="module")
def on_ray() -> Iterator[adapter.Run]:
    """Return what runs a config of the shared data on two actors."""
    with adapter.ray({**ENGINES_DATA, **OBJECTIVE}, actors=2) as run:
        yield run


@pytest.mark.parametrize("name", CASES)
def test_runs_give_what_was_recorded(
    name: str, played: Played, record_property: Callable[[str, object], None]
) -> None:
    assert name in RECORDS, "not recorded: make golden"
    old = RECORDS[name]
    mode = "bits" if same_machine(old) else "tolerances"
    record_property("golden record", mode)
    found = differences(CASES[name], old, played(name))
    assert not found, f"compared by {mode}\n" + "\n".join(map(str, found))


@pytest.mark.parametrize("name", RUNS)
def test_the_cohort_engine_gives_the_bits_of_the_inline_run(
    name: str, played: Played, tmp_path: Path
) -> None:
    found = differences(
        CASES[name],
        played(name),
        play(CASES[name], tmp_path, partial(adapter.inline, engine="cohort")),
    )
    assert not found, "\n".join(map(str, found))


@pytest.mark.ray
@pytest.mark.parametrize("name", ON_RAY)
def test_the_ray_engine_gives_the_bits_of_the_inline_run(
    name: str, played: Played, on_ray: adapter.Run, tmp_path: Path
) -> None:
    found = differences(CASES[name], played(name), play(CASES[name], tmp_path, on_ray))
    assert not found, "\n".join(map(str, found))


# ---------------------------------------------------------------- the record itself


def test_every_algorithm_is_recorded_and_nothing_that_is_gone() -> None:
    """Each with a run, and with one that the Ray engine plays."""
    assert set(RECORDS) == set(CASES)
    names = adapter.algorithm_names()
    missing = "_RUNS and _ENGINES of tests/golden_record/cases.py name every algorithm"
    assert {CASES[name].algorithm for name in RUNS} == names, missing
    assert {CASES[name].algorithm for name in ON_RAY} == names, missing


@pytest.mark.parametrize("name", RUNS)
def test_recorded_values_are_those_of_the_recorded_digests(name: str) -> None:
    for array in RECORDS[name]["model"].values():
        values = np.array(array["values"], array["dtype"]).reshape(array["shape"])
        assert digest(values) == array["sha256"]
        assert np.isfinite(values).all()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.first_rounds])
def test_a_resumed_run_is_recorded_as_the_uninterrupted_one(name: str) -> None:
    """Which has the same settings."""
    resumed = RECORDS[name]
    whole = next(
        RECORDS[other]
        for other in RUNS
        if other != name and RECORDS[other]["settings"] == resumed["settings"]
    )
    assert resumed["model"] == whole["model"]


# ---------------------------------------------------------------- the comparison


def changed(record: Record, change: Callable[[Record], object], *, elsewhere: bool) -> Record:
    """Return a copy with a change, as made on this machine or on another."""
    other = copy.deepcopy(record)
    other["machine"] = "another" if elsewhere else machine()
    change(other)
    return other


def shift(by: float) -> Callable[[Record], object]:
    def change(record: Record) -> None:
        values = record["model"]["x"]["values"]
        values[1] += by * abs(values[1])

    return change


@pytest.mark.parametrize(
    ("change", "elsewhere", "fields"),
    [
        (shift(0.0), False, []),
        (shift(1e-15), False, ["model.x.values[1]"]),
        (shift(1e-10), True, []),
        (shift(1e-8), True, ["model.x.values[1]"]),
        (lambda r: r["model"]["x"].update(sha256="0"), False, ["model.x.sha256"]),
        (lambda r: r["model"]["x"].update(sha256="0"), True, []),
        (lambda r: r["model"]["x"]["values"].append(0.0), True, ["model.x.values[4]"]),
        (lambda r: r["history"]["bytes-up"].append(1), True, ["history.bytes-up[5]"]),
        (
            lambda r: r["history"]["participants"][2].pop(),
            True,
            ["history.participants[2][4]"],
        ),
        (lambda r: r["privacy"].update(private=True), True, ["privacy.private"]),
        (lambda r: r["privacy"].update(reason="x"), True, ["privacy.reason"]),
        (lambda r: r["settings"].pop("seed"), False, ["settings.seed"]),
        (
            lambda r: r["history"].update(epsilon=[math.inf] * 5),
            True,
            [f"history.epsilon[{round_}]" for round_ in range(5)],
        ),
    ],
)
def test_a_changed_entry_is_named(
    change: Callable[[Record], object], elsewhere: bool, fields: list[str]
) -> None:
    case = CASES["fed-plt-noise"]
    new = RECORDS[case.name]
    old = changed(new, change, elsewhere=elsewhere)
    assert [found.field for found in differences(case, old, new)] == fields


def test_float32_runs_are_compared_more_loosely() -> None:
    case = CASES["fed-plt-noise-float32"]
    new = RECORDS[case.name]
    for by, fields in ((1e-5, []), (1e-3, ["model.x.values[1]"])):
        old = changed(new, shift(by), elsewhere=True)
        assert [found.field for found in differences(case, old, new)] == fields


def test_writing_and_comparing_by_command(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cases: dict[str, Case] = {
        name: CASES[name] for name in ("fed-plt-noise", "epsilon-scaffold-noise", "fed-plt/base")
    }
    monkeypatch.setattr("golden_record.record.FOLDER", tmp_path)
    monkeypatch.setattr("golden_record.__main__.CASES", cases)
    (tmp_path / "gone.json").write_text("{}")
    assert main(["--write"]) == 0
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["costs.json", "epsilon-scaffold-noise.json", "fed-plt-noise.json"]
    assert load() == {name: {**RECORDS[name], "machine": machine()} for name in cases} or (
        not same_machine(RECORDS["fed-plt-noise"])
    )
    assert main(["--compare"]) == 0
    path = tmp_path / "fed-plt-noise.json"
    path.write_text(path.read_text().replace('"bytes-up": [280', '"bytes-up": [281'))
    capsys.readouterr()
    assert main(["--compare", "fed-plt-*"]) == 1
    assert capsys.readouterr().out == "fed-plt-noise history.bytes-up[0]: 281 -> 280\n"
    with pytest.raises(SystemExit):
        main(["--compare", "no-such-case"])
