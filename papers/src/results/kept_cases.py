"""The results of a folder that ``privet reproduce`` wrote, by study, label and seed.

``.venv/bin/python -m results.kept_cases FOLDER DATA STUDY...`` prints them, for
the files of cases in docs/results. A line is one run, with its settings in its result; of the seeds
of a label beyond the first twenty one line has the numbers that entries are judged by.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from studies import Options
from studies.catalogue import chosen
from studies.execute import CASES
from studies.runs import Runs
from studies.study import Case

WHOLE = 20
"""Seeds of a label whose results are kept whole."""
NUMBERS = "value", "best", "bytes"
"""Numbers of a result that are kept of each further seed."""


def lines(folder: Path, data: Path, names: Sequence[str]) -> Iterator[str]:
    """Yield the lines; raises ``KeyError`` where a case was not run."""
    found = Runs(folder / CASES).found
    for study in chosen(names):
        labels: dict[str, list[Case]] = {}
        for case in study.cases(Options(data_path=data.resolve())):
            labels.setdefault(case.label, []).append(case)
        for label, cases in labels.items():
            for case in cases[:WHOLE]:
                kept = found[case.key]
                own = {"study": study.name, "case": label, "seed": case.seed}
                own |= {"result": kept["result"], "seconds": round(kept["seconds"], 2)}
                yield json.dumps(own)
            if further := cases[WHOLE:]:
                each = [found[case.key] for case in further]
                own = {"study": study.name, "case": label, "seed": further[0].seed}
                results = {
                    name: [one["result"][name] for one in each]
                    for name in NUMBERS
                    if name in each[0]["result"]
                }
                seconds = round(fmean(one["seconds"] for one in each), 2)
                yield json.dumps(own | {"results": results, "seconds": seconds})


def kept(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the runs of a file, each with study, case, seed, result and seconds."""
    for line in map(json.loads, file.read_text().splitlines()):
        columns = line.pop("results", None)
        if columns is None:
            yield line
            continue
        for further, row in enumerate(zip(*columns.values(), strict=True)):
            result = dict(zip(columns, row, strict=True))
            yield {**line, "seed": line["seed"] + further, "result": result}


if __name__ == "__main__":
    print("\n".join(lines(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
