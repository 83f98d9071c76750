"""The results of a folder that ``privet reproduce`` wrote, as one line a case and study.

``.venv/bin/python -m results.kept_cases FOLDER DATA STUDY...`` prints them, for
the files of cases in docs/results; a case's settings are in its result.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from studies import Options
from studies.catalogue import chosen
from studies.execute import CASES
from studies.runs import Runs


def lines(folder: Path, data: Path, names: Sequence[str]) -> Iterator[str]:
    """Yield the lines; raises ``KeyError`` where a case was not run."""
    found = Runs(folder / CASES).found
    for study in chosen(names):
        for case in study.cases(Options(data_path=data.resolve())):
            kept = found[case.key]
            own = {"study": study.name, "case": case.label, "seed": case.seed}
            yield json.dumps(own | {"result": kept["result"], "seconds": round(kept["seconds"], 2)})


if __name__ == "__main__":
    print("\n".join(lines(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
