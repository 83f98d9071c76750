"""Run folders with one entry of one file damaged: a page, or one line that names the file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.core.errors import PrivetError
from privet.core.shapes import REAL, Entries, Items, parsed, require
from privet.server_apps.report import plots, write_report
from privet.sim.inline import run_inline
from support.damage import changes

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"num-agents": 3},
    "private": {"algorithm": "dp-fedsgd", "clip": 1.0, "target-epsilon": 4.0},
    "asynchronous": {"asynchronous": True, "speeds": "stragglers"},
}
FILES = ("summary.json", "privacy.json", "history.jsonl")


@pytest.fixture(scope="module", params=KINDS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = {"num-agents": 3, "num-server-rounds": 3, "features": 3, "examples-per-agent": 20}
    keys |= {"dataset": "synthetic", "output-dir": str(tmp_path_factory.mktemp("runs"))}
    return run_inline(keys | KINDS[request.param], request.param).folder


def said(folder: Path, private: bool, parquet: bool = False) -> str:
    """Return the line of a report that is refused, "" where there is a page."""
    outputs = {"csv": folder / "a.csv", "parquet": folder / "a.parquet" if parquet else None}
    statement = folder / "statement.html" if private else None
    try:
        write_report([folder], folder, statement=statement, **outputs)
    except PrivetError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("file", FILES)
def test_an_entry_that_is_gone_or_of_another_form(
    whole: Path, tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "have_matplotlib", lambda: False)
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    first, *rest = (folder / file).read_text().splitlines()
    document = json.loads(first if file == "history.jsonl" else (folder / file).read_text())
    lines = rest if file == "history.jsonl" else []
    damaged = list(changes(document))
    refused = pages = 0
    for changed in damaged[:: len(damaged) // 100 + 1]:
        (folder / file).write_text("\n".join([json.dumps(changed), *lines]))
        # None is stated of another history than the summary's.
        line = said(folder, whole.name == "private" and file != "history.jsonl")
        assert "\n" not in line
        refused, pages = refused + bool(line), pages + (not line)
    assert refused >= 3
    assert pages >= 3


@pytest.mark.parametrize("file", FILES)
def test_a_pipe_or_device_in_a_folder_is_named(whole: Path, tmp_path: Path, file: str) -> None:
    """It is neither waited for nor read to its end, and a file of any size takes no memory."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    place = folder / file
    for make in (os.mkfifo, lambda name: os.symlink("/dev/zero", name)):
        place.unlink()
        make(place)
        line = said(folder, whole.name == "private")
        assert file in line
        assert "not a regular file" in line
    place.unlink()
    place.touch()
    os.truncate(place, 1 << 40)
    assert "File too large" in said(folder, whole.name == "private")


def test_bytes_that_are_flipped_cut_or_zeroed(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "have_matplotlib", lambda: False)
    folder = tmp_path / "run"
    drawn = np.random.default_rng(0)
    for file in FILES:
        data = (whole / file).read_bytes()
        flipped = []
        for place in drawn.integers(len(data), size=20):
            other = bytearray(data)
            other[place] ^= 1 << int(drawn.integers(8))
            flipped.append(bytes(other))
        cut = [data[: int(place)] for place in drawn.integers(len(data), size=5)]
        deep = [b'{"config": ' + b"[" * 200_000, b"[" * 200_000]
        for damaged in (*flipped, *cut, *deep, b"", bytes(len(data)), b"\xff\xfe", b"[]", b"1"):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole, folder)
            (folder / file).write_bytes(damaged)
            line = said(folder, whole.name == "private")
            assert "\n" not in line
            assert not line or file in line or "--statement" in line, line


@pytest.mark.parametrize(
    ("shape", "fitting", "others"),
    [
        (str, ["", "a"], [1, None, [], {}]),
        (int, [0, -(2**63), 2**63 - 1], [2**63, True, 1.0, "1", None]),
        (float, [0, 1.5, -(2**63)], [10**400, False, "inf", None]),
        (bool, [True], [1, "true"]),
        (REAL, [1, 0.5, None, "inf", "-inf"], ["a", True, [], 10**400]),
        (Items(int), [[], [1, 2]], [{}, [1, "a"], "ab", 1]),
        (
            Entries({"a": int}, others=str, required=("a",)),
            [{"a": 1, "b": ""}],
            [{}, {"a": ""}, []],
        ),
    ],
)
def test_values_that_fit_a_shape_and_others(shape: Any, fitting: Any, others: Any) -> None:
    for value in fitting:
        require(value, shape)
    for value in others:
        with pytest.raises(ValueError, match=r"^(a: )?(\d+: )?expected "):
            require(value, shape)


def test_a_line_names_the_entry() -> None:
    shape = Entries({"a": Items(Entries({"b": str}))})
    with pytest.raises(ValueError, match=r"^a\.1\.b: expected a text$"):
        require({"a": [{"b": ""}, {"b": 1}]}, shape)
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed("[" * 200_000)
    assert parsed(r'["\ud83d\uDE00", "\ud83dx"]'.replace("x", r"\ude00")) == ["\U0001f600"] * 2
    for half in (r'["\ud83d"]', r'{"\uDE00": 1}', rb'["\uD83D"]'):
        with pytest.raises(ValueError, match="half of a pair"):
            parsed(half)
