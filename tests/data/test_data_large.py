"""Tables that are larger than memory: the numbers of those in memory, bit for bit, from files."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from privet.core import mapped
from privet.data.frames import table_from_config
from privet.data.loaders import load
from privet.data.tables import doubts
from privet.data.tables.heaps import heaps
from privet.sim.inline import run_inline

ROWS = 3000
FORMULA = "died ~ age + log(creatinine) + C(stage) + visits"


def _table(rows: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    creatinine = np.exp(rng.normal(0.1, 0.4, rows))
    creatinine[rng.random(rows) < 0.05] = np.nan
    age = rng.normal(70.0, 10.0, rows)
    chance = 1.0 / (1.0 + np.exp(-(age - 72.0) / 8.0))
    return pa.table(
        {
            "age": age,
            "creatinine": pa.array(creatinine, from_pandas=True),
            "visits": rng.poisson(3.0, rows),
            "stage": np.array(["I", "II", "III"])[rng.integers(0, 3, rows)],
            "died": (rng.random(rows) < chance).astype(int),
        }
    )


@pytest.fixture
def two(tmp_path: Path) -> Callable[[str], str]:
    """Return what gives the paths of equal files: nothing of one is cached for the other."""
    table = _table(ROWS)

    def path(name: str) -> str:
        (tmp_path / name).mkdir()
        parquet.write_table(table, tmp_path / name / "rows.parquet", row_group_size=700)
        return str(tmp_path / name / "rows.parquet")

    return path


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how large the arrays are that were put into files, as all are from now on, and walked
    over some rows at a time."""
    sizes: list[int] = []
    make = mapped._in_file

    def noted(shape: tuple[int, ...], dtype: Any, folder: Path) -> Any:
        array = make(shape, dtype, folder)
        sizes.append(array.nbytes)
        return array

    monkeypatch.setattr(mapped, "LIMIT", 0)
    monkeypatch.setattr(mapped, "BLOCK", 1 << 12)
    monkeypatch.setattr(doubts, "_AT_ONCE", 700)
    monkeypatch.setattr(mapped, "_in_file", noted)
    return sizes


def _outcome(keys: dict[str, Any], path: str, folder: Path) -> Any:
    raw = {"dataset": "csv", "data-path": path, "output-dir": str(folder), **keys}
    finished = run_inline(raw, "run", engine="inline")
    if keys["algorithm"] in ("describe", "glm"):
        table = json.loads((finished.folder / "table.json").read_text())
        return json.dumps({name: one for name, one in table.items() if name != "site_names"})
    return np.load(finished.folder / "model.npz")["x"].tobytes()


_RUNS: dict[str, dict[str, Any]] = {
    "describe": {"algorithm": "describe", "by": "died"},
    "glm": {"algorithm": "glm", "formula": FORMULA},
    "fed-plt": {
        "algorithm": "fed-plt",
        "label-column": "died",
        "missing": "mean",
        "num-agents": 2,
        "num-server-rounds": 3,
    },
}


@pytest.mark.parametrize("name", _RUNS)
def test_from_files_come_the_bits_of_memory(
    name: str, two: Callable[[str], str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    in_memory = _outcome(_RUNS[name], two("memory"), tmp_path / "a")
    sizes = request.getfixturevalue("in_files")
    assert _outcome(_RUNS[name], two("files"), tmp_path / "b") == in_memory
    assert sum(sizes) >= 8 * ROWS * 4


def test_columns_of_a_large_table_are_in_files(
    two: Callable[[str], str], in_files: list[int]
) -> None:
    frame = table_from_config({"dataset": "csv", "data-path": two("files")}).frame
    given = _table(ROWS)
    for name in ("age", "creatinine", "visits"):
        numbers = frame.numbers[name]
        base = numbers
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        assert isinstance(base, memoryview), name
        assert isinstance(base.obj, mmap.mmap), name
        own = given[name].to_numpy().astype(float)
        assert np.array_equal(numbers, own, equal_nan=True)
    texts = np.array(frame.factors["stage"].levels)[frame.factors["stage"].codes]
    assert texts.tolist() == given["stage"].to_pylist()


def test_training_rows_are_standardised_as_their_definition_says(
    two: Callable[[str], str], in_files: list[int]
) -> None:
    data = load(
        "csv", data_path=two("files"), label_column="died", missing="mean", whole=True, agents=1
    )
    age = _table(ROWS)["age"].to_numpy()
    expected = (age - age.mean()) / age.std()
    assert np.allclose(data.train_features[:, 0], expected, rtol=1e-13, atol=1e-13)
    assert (data.train_features[:, -1] == 1.0).all()
    assert data.train_features.shape == (ROWS, 6)


def _doubtful() -> pa.Table:
    """Return a table in which a label is a sum, two columns are exchanged, one has two units, and
    rows repeat: the two that make the label lack numbers in the first rows."""
    rng = np.random.default_rng(2)
    systolic, diastolic = rng.normal(130, 15, (2, ROWS)).round(1)
    height, weight = rng.normal(169, 6, ROWS).round(1), rng.normal(70, 8, ROWS).round(1)
    swapped = rng.random(ROWS) < 0.02
    crp = np.exp(rng.normal(0.0, 0.3, ROWS)) * np.where(rng.random(ROWS) < 0.4, 1000.0, 1.0)
    lost = np.arange(ROWS) < 900
    table = pa.table(
        {
            "systolic": pa.array(systolic, mask=lost),
            "diastolic": diastolic,
            "height": np.where(swapped, weight, height),
            "weight": np.where(swapped, height, weight),
            "crp": crp,
            "pulse": systolic - diastolic,
        }
    )
    return pa.concat_tables([table.slice(0, ROWS - 100), table.slice(500, 100)])


def test_doubts_are_those_of_memory(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    def read(name: str) -> Any:
        (tmp_path / name).mkdir()
        parquet.write_table(_doubtful(), tmp_path / name / "rows.parquet", row_group_size=700)
        path = str(tmp_path / name / "rows.parquet")
        return load("csv", data_path=path, label_column="pulse", missing="mean", agents=1)

    in_memory = read("memory")
    request.getfixturevalue("in_files")
    texts = [one.text for one in read("files").doubts]
    assert texts == [one.text for one in in_memory.doubts]
    for part in (
        "label pulse is systolic - diastolic in every row",
        "columns height, weight: in ",
        "column crp: about ",
        "rows repeat others in every column",
    ):
        assert any(part in one for one in texts), (part, texts)


def test_heaps_are_parted_where_their_squares_are_least(in_files: list[int]) -> None:
    rng = np.random.default_rng(3)
    for least in (1, 7, 300):
        numbers = np.sort(np.concatenate([rng.normal(0, 1, 900), rng.normal(6, 2, 500)]))
        squares = [
            numbers[:at].var() * at + numbers[at:].var() * (len(numbers) - at)
            for at in range(least, len(numbers) - least + 1)
        ]
        low, high = heaps(numbers, least)
        assert len(low) == least + int(np.argmin(squares))
        np.testing.assert_array_equal(np.concatenate([low, high]), numbers)


def test_without_room_on_the_disk_rows_are_in_memory(
    two: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, begin: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mapped, "LIMIT", 0)
    monkeypatch.setattr("os.posix_fallocate", full)
    frame = table_from_config({"dataset": "csv", "data-path": two("files")}).frame
    assert np.array_equal(frame.numbers["age"], _table(ROWS)["age"].to_numpy())


_MEASURED = """
import json, sys, tempfile, threading, time
from privet.core import mapped
from privet.sim.inline import run_inline
from privet.sim.logs import quiet

def anonymous():
    with open("/proc/self/status") as file:
        (line,) = [line for line in file if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024

def look():
    while True:
        peaks[0] = max(peaks[0], anonymous())
        time.sleep(0.005)

peaks = [0]
small, large, keys = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
quiet()
raw = {"dataset": "csv", "output-dir": tempfile.mkdtemp(), **keys}
run_inline({**raw, "data-path": small}, "first")  # what is imported at the first use
mapped.LIMIT, mapped.BLOCK = 1 << 20, 1 << 19  # as small as the table is
held = anonymous()
threading.Thread(target=look, daemon=True).start()
run_inline({**raw, "data-path": large}, "second")
print(peaks[0] - held)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", _RUNS)
def test_less_than_the_table_is_in_memory(name: str, tmp_path: Path) -> None:
    """Anonymous memory: pages of files are the system's to give back."""
    rows = 300_000
    parquet.write_table(_wide(2000), tmp_path / "small.parquet")
    parquet.write_table(_wide(rows), tmp_path / "large.parquet")
    keys = {**_RUNS[name], "num-agents": 1}
    if name == "glm":
        keys["formula"] = f"died ~ {' + '.join(f'x{place}' for place in range(18))}"
        del keys["num-agents"]
    elif name == "describe":
        keys = {"algorithm": "describe"}
    paths = [str(tmp_path / f"{one}.parquet") for one in ("small", "large")]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *paths, json.dumps(keys)],
        capture_output=True,
        text=True,
        check=True,
    )
    more = int(done.stdout.splitlines()[-1])
    assert more < 8 * rows * 20


def _wide(rows: int) -> pa.Table:
    rng = np.random.default_rng(1)
    numbers = {f"x{place}": rng.standard_normal(rows) for place in range(18)}
    died = (rng.random(rows) < 1.0 / (1.0 + np.exp(-numbers["x0"]))).astype(int)
    return pa.table(
        {**numbers, "sex": np.array(["F", "M"])[rng.integers(0, 2, rows)], "died": died}
    )
