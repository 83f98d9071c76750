"""A cohort of a database larger than memory: described, fitted and trained on, beside pandas and
DuckDB alone.

The table has 16 columns of numbers, three of categories and an outcome, in a DuckDB file. Every
figure is of a process of its own. Seconds are those of the processor, which other work of the
machine hardly moves. Memory is what is anonymous at most (``RssAnon``, looked at every 5 ms): pages
of files are the system's to give back.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .figure import Figure, Show

ROWS, NUMBERS = 10_000_000, 16
MEMORY_GOAL = 1000.0
ROUNDS = 2
_CHILD = "from benchmarks.sql import measured; measured({!r}, {!r})"
_TASKS = (
    *(f"Privet, {what}" for what in ("describe", "glm", "fed-plt")),
    *("pandas, describe", "DuckDB, describe"),
)
_COHORTS = 'url = "duckdb:///records.duckdb"\n\n[cohorts.all]\nquery = "select * from visits"\n'


def make_records(folder: Path, rows: int) -> None:
    """Write a database, and the operator's file of its cohort, into a folder."""
    import duckdb

    normal = "sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random())"
    numbers = ", ".join(f"{normal} as x{place}" for place in range(NUMBERS))
    drawn = f"""
        select {numbers},
            case when random() < 0.5 then 'F' else 'M' end as sex,
            case when random() < 0.3 then 'yes' else 'no' end as smoker,
            ['I', 'II', 'III'][1 + cast(floor(3 * random()) as int)] as stage
        from range({rows})
    """
    with duckdb.connect(str(folder / "records.duckdb")) as connection:
        connection.execute("set threads = 1")
        connection.execute("select setseed(0.5)")
        connection.execute(
            f"create table visits as select *, cast(random() < 1 / (1 + exp(0.5 - x0 + x1 / 2)) "
            f"as int) as died from ({drawn})"
        )
    (folder / "cohorts.toml").write_text(_COHORTS)


def bench_sql(show: Show, *, quick: bool = False) -> None:
    """Measure rows a second and memory, of each task in a process of its own."""
    rows = ROWS // 50 if quick else ROWS
    case = f"DuckDB, {rows:g} rows, {NUMBERS + 4} columns"
    with TemporaryDirectory(prefix="privet-bench-") as folder:
        make_records(Path(folder), rows)
        for task in _TASKS:
            done = subprocess.run(
                [sys.executable, "-c", _CHILD.format(task, folder)],
                capture_output=True,
                text=True,
                check=True,
            )
            found = json.loads(done.stdout.splitlines()[-1])
            show(Figure("sql", case, f"{task}, rows a second", rows / found["seconds"]))
            goal = MEMORY_GOAL if task.startswith("Privet") else None
            memory = Figure("sql", case, f"{task}, MB", found["MB"], goal, at_least=False)
            show(memory)


def measured(task: str, folder: str) -> None:
    """Print the processor's seconds of a task, and the process's largest anonymous memory."""
    peaks = [0.0]

    def look() -> None:
        while True:
            peaks[0] = max(peaks[0], anonymous_megabytes())
            time.sleep(0.005)

    threading.Thread(target=look, daemon=True).start()
    program, _, what = task.partition(", ")
    action: Callable[[], Any] = {
        "Privet": lambda: _privet(what, Path(folder)),
        "pandas": lambda: _pandas(Path(folder)),
        "DuckDB": lambda: _duckdb(Path(folder)),
    }[program]
    begin = time.process_time()
    action()
    print(json.dumps({"seconds": time.process_time() - begin, "MB": peaks[0]}))


def anonymous_megabytes() -> float:
    """Return the resident anonymous memory of this process. Linux only."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024 / 1e6


def _privet(algorithm: str, folder: Path) -> None:
    from privet.sim import quiet, run_inline

    quiet()
    terms = [f"x{place}" for place in range(NUMBERS)] + ["sex", "smoker", "stage"]
    more: dict[str, dict[str, Any]] = {
        "describe": {},
        "glm": {"formula": f"died ~ {' + '.join(terms)}"},
        "fed-plt": {
            "label-column": "died",
            "num-agents": 1,
            "num-server-rounds": ROUNDS,
            "baseline-seconds": 0.0,
        },
    }
    source = {"dataset": "sql", "data-path": str(folder / "cohorts.toml"), "cohort": "all"}
    run_inline(
        {"algorithm": algorithm, **source, **more[algorithm], "output-dir": str(folder)}, algorithm
    )


def _pandas(folder: Path) -> None:
    import duckdb

    with duckdb.connect(str(folder / "records.duckdb"), read_only=True) as connection:
        connection.sql("select * from visits").df().describe(include="all")


def _duckdb(folder: Path) -> None:
    import duckdb

    with duckdb.connect(str(folder / "records.duckdb"), read_only=True) as connection:
        connection.execute("set threads = 1")
        connection.execute("summarize visits").fetchall()
