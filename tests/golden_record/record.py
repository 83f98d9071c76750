"""What is kept of a run, where, and what counts as the same."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from golden_record.adapter import Run, inline
from golden_record.cases import Case
from privet.rounds.odd_sites import ODD
from privet.server_apps.model_file import ABOUT

FOLDER = Path(__file__).parent / "data"
COSTS = "costs.json"
"""The file of all cases of kind ``cost``; every other case has one of its own."""

RELATIVE: Mapping[str, float] = {"float64": 1e-9, "float32": 1e-4}
ABSOLUTE: Mapping[str, float] = {"float64": 1e-12, "float32": 1e-6}
"""On other machines |old - new| <= max(RELATIVE * larger, ABSOLUTE), by the run's dtype."""

Record = dict[str, Any]


class Difference(NamedTuple):
    """One entry that is not as recorded; ``None`` stands for an entry that is not there."""

    field: str
    old: Any
    new: Any

    def __str__(self) -> str:
        """Return the entry in one line."""
        return f"{self.field}: {_said(self.old)} -> {_said(self.new)}"


@lru_cache(maxsize=1)
def machine() -> str:
    """Return what the last bits depend on: numpy, the BLAS kernels and the processor."""
    kernels = {
        f"{pool.get('internal_api')} {pool.get('architecture')}"
        for pool in threadpool_info()
        if pool.get("user_api") == "blas"
    }
    return f"numpy {np.__version__}; {', '.join(sorted(kernels))}; {_processor()}"


def _processor() -> str:
    """Return the processor's name and model number: virtual machines may share a name alone."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    entries = (line.partition(":") for line in lines)
    first: dict[str, str] = {}
    for key, _, value in entries:
        first.setdefault(key.strip(), value.strip())
    name = first.get("model name") or platform.processor() or platform.machine()
    numbers = [first[key] for key in ("cpu family", "model", "stepping") if key in first]
    return f"{name} {'-'.join(numbers)}".strip()


# ---------------------------------------------------------------- playing


def play(case: Case, folder: Path, run: Run = inline) -> Record:
    """Play a case below an empty folder and return what is recorded of it."""
    settings = {**case.config, "output-dir": str(folder)}
    if case.first_rounds:
        first = run({**settings, "num-server-rounds": case.first_rounds}, f"{case.name}-first")
        settings["resume"] = str(first)
    return capture(case, run(settings, case.name.replace("/", "-")))


def capture(case: Case, folder: Path) -> Record:
    """Return what is recorded of a run folder."""
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    for done in history:  # who is named is decided at a threshold, which a last bit may pass
        done["notes"] = [note for note in done["notes"] if not note.startswith(ODD)]
    privacy = json.loads((folder / "privacy.json").read_text())
    record: Record = {"machine": machine(), "settings": dict(case.settings)}
    if case.first_rounds:
        record["first-rounds"] = case.first_rounds
    if case.kind == "cost":
        agents = privacy.get("agents", {})
        return {
            **record,
            "reason": privacy["reason"],
            "epsilon": _column(history, "epsilon"),
            "releases": agents[min(agents)]["releases"] if agents else [],
        }
    record["privacy"] = privacy
    if case.kind == "epsilon":
        kept = ("round", "participants", "failures", "epsilon")
        return {**record, "history": {key: _column(history, key) for key in kept}}
    names = {key for line in history for key in line} - {"seconds"}
    record["history"] = {key: _column(history, key) for key in names}
    with np.load(folder / "model.npz") as arrays:
        record["model"] = {
            name: {
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                "sha256": digest(array),
                "values": array.ravel().tolist(),
            }
            for name, array in arrays.items()
            if name != ABOUT
        }
    return record


def _column(history: list[dict[str, Any]], key: str) -> list[Any]:
    """Return what every round has under a key, ``None`` where it has nothing."""
    return [line.get(key) for line in history]


def digest(array: NDArray[Any]) -> str:
    """Return the sha256 of an array's bytes, in C order."""
    return hashlib.sha256(array.tobytes()).hexdigest()


# ---------------------------------------------------------------- comparing


def same_machine(old: Record) -> bool:
    """Return whether bits of this record can be expected here."""
    return bool(old["machine"] == machine())


def differences(case: Case, old: Record, new: Record) -> list[Difference]:
    """Return the entries of two records that differ.

    Where the old one was made on a machine like this, to the bit; elsewhere digests are left out,
    real numbers are close (``RELATIVE``, ``ABSOLUTE``), and counts, names and texts are the same.
    """
    dtype = str(case.settings.get("dtype", "float64"))
    exact = same_machine(old)
    left, right = (dict(_flat("", record)) for record in (old, new))
    found = []
    for field in sorted(left.keys() | right.keys(), key=_order):
        if field == "machine" or (not exact and field.endswith(".sha256")):
            continue
        a, b = left.get(field), right.get(field)
        if type(a) is type(b) and (a == b or (not exact and _close(a, b, dtype))):
            continue
        found.append(Difference(field, a, b))
    return found


def _close(a: Any, b: Any, dtype: str) -> bool:
    if not isinstance(a, float):
        return False
    return math.isclose(a, b, rel_tol=RELATIVE[dtype], abs_tol=ABSOLUTE[dtype])


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a record with their paths; empty containers are leaves."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}" if path else key, inner)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _flat(f"{path}[{index}]", inner)
    else:
        yield path, value


def _order(field: str) -> list[tuple[int, str]]:
    """Sort indices by number."""
    parts = field.replace("[", "\0").replace("]", "\0").split("\0")
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _said(value: Any) -> str:
    return "absent" if value is None else json.dumps(value)


# ---------------------------------------------------------------- files


def load() -> dict[str, Record]:
    """Return all records by the names of their cases."""
    found: dict[str, Record] = {}
    for path in sorted(FOLDER.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if path.name == COSTS:
            made = content["machine"]
            found |= {name: {"machine": made, **row} for name, row in content["rows"].items()}
        else:
            found[path.stem] = content
    return found


def save(records: Mapping[str, Record], cases: Mapping[str, Case]) -> None:
    """Write the records of all cases, and remove files of cases that are no more.

    Raises
    ------
    ValueError
        If the rows of the table of costs are not from one machine.
    """
    FOLDER.mkdir(exist_ok=True)
    rows = {name: record for name, record in records.items() if cases[name].kind == "cost"}
    made = {record["machine"] for record in rows.values()}
    if len(made) > 1:
        raise ValueError(f"{COSTS}: rows from several machines: {'; '.join(sorted(made))}")
    for name in records.keys() - rows.keys():
        _write(f"{name}.json", records[name])
    table = {
        name: {key: value for key, value in row.items() if key != "machine"}
        for name, row in rows.items()
    }
    _write(COSTS, {"machine": made.pop(), "rows": table})
    kept = {COSTS, *(f"{name}.json" for name in records.keys() - rows.keys())}
    for path in FOLDER.glob("*.json"):
        if path.name not in kept:
            path.unlink()


def _write(name: str, content: Record) -> None:
    (FOLDER / name).write_text(render(content) + "\n", encoding="utf-8")


WIDTH = 240


def render(value: Any, indent: int = 0) -> str:
    """Return JSON with sorted keys in which whatever fits a line is on one."""
    line = json.dumps(value, sort_keys=True)
    if indent + len(line) <= WIDTH or not isinstance(value, dict | list) or not value:
        return line
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        items = [
            f"{inner}{json.dumps(key)}: {render(value[key], indent + 1)}" for key in sorted(value)
        ]
        return "{\n" + ",\n".join(items) + "\n" + " " * indent + "}"
    items = [inner + render(item, indent + 1) for item in value]
    return "[\n" + ",\n".join(items) + "\n" + " " * indent + "]"
