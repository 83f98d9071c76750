"""A table whose rows are files: a new file in the folder is a row, with its own keys."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from privet.core.key import keys_of
from privet.core.rows import owners, rows
from privet.data import problem_from_config
from privet.data.partitions import PARTITIONS
from privet.data.settings import DATA_OWNERS
from privet.problems.losses import LOSSES
from support.paths import PACKAGE, ROOT
from support.wheel import ROOMS

FILE = """
from dataclasses import dataclass
from privet.core.key import setting
from privet.data.dealing import Partition

@dataclass(frozen=True)
class Keys:
    {field}: int = setting(3, "a number", needs={{"partition": "{name}"}})

ROW = Partition("{name}", lambda pool, own: [], keys=Keys)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    package = ModuleType("toy_partitions")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "toy_partitions", package)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("toy_partitions.")]:
        del sys.modules[name]


def found(folder: Path) -> dict[str, object]:
    return rows("toy_partitions", [str(folder)], type(PARTITIONS["iid"]))


def test_a_file_in_the_folder_is_a_row(folder: Path) -> None:
    assert found(folder) == {}
    (folder / "one.py").write_text(FILE.format(name="one", field="one_size"))
    (folder / "two.py").write_text("from toy_partitions.one import ROW\n" + "SAME = ROW\n")
    table = found(folder)
    assert list(table) == ["one"]
    (owner,) = owners(table, PARTITIONS)[:1]
    (key,) = keys_of(owner).values()
    assert key.name == "one-size"
    assert key.unused({"partition": "iid"}) == "not used with partition = iid, only with one"


def test_two_rows_of_one_name_are_refused(folder: Path) -> None:
    (folder / "one.py").write_text(FILE.format(name="one", field="one_size"))
    (folder / "two.py").write_text(FILE.format(name="one", field="two_size"))
    with pytest.raises(ValueError, match=r"toy_partitions\.two: a second row has the name 'one'"):
        found(folder)


def test_a_loss_and_a_partition_of_one_file_each_run_and_refuse(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests/support/toy_rows.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rounds"] == [2, 2]
    assert found["counts"][:2] == [20, 20]
    assert found["counts"][2] > 20
    assert found["weights"] == [{"toy_weight": 4.0}] * 3
    plain = problem_from_config(
        {"dataset": "regression", "partition": "iid", "loss": "ridge"}, 0, 3
    )
    low, regularizer = plain.moduli.strong_convexity, plain.regularizer.moduli.strong_convexity
    assert found["flattest"] - regularizer == pytest.approx(4.0 / 2.0 * (low - regularizer))
    assert found["keys"] == ["toy-block", "toy-weight"]
    assert found["said"] == [
        "toy-weight = 2.0: not used with loss = auto, only with toy",
        "toy-block = 7: not used with partition = iid, only with toy-blocks",
        "toy-weight = 0.0: must be >= 1e-06",
    ]


@pytest.mark.parametrize(("table", "key"), [(LOSSES, "loss"), (PARTITIONS, "partition")])
def test_a_rows_own_keys_are_used_with_it_alone(table: dict[str, object], key: str) -> None:
    for name, row in table.items():
        for own in keys_of(row.keys).values():  # type: ignore[attr-defined]
            assert not own.unused({key: name})
            assert own.unused({key: "another"})
        assert row.keys in DATA_OWNERS or not keys_of(row.keys)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("own", "names"),
    [
        ("problems/losses/huber.py", "huber|huber_threshold"),
        ("data/partitions/quantity_skew.py", "quantity[-_]skew|quantity_power"),
    ],
)
def test_one_file_of_the_library_names_a_loss_or_a_partition(own: str, names: str) -> None:
    folders = [*(PACKAGE / room for room in ROOMS), ROOT / "scripts"]
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    naming = [path for path in paths if re.search(names, path.read_text(), re.IGNORECASE)]
    assert [path.relative_to(PACKAGE) for path in naming] == [Path(own)]
