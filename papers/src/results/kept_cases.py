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


def lines(folder: Path, data: Path, names: Sequence[str]) -> Iterator[str]:
    """Yield the lines; raises ``FileNotFoundError`` where a case was not run."""
    for study in chosen(names):
        for case in study.cases(Options(data_path=data.resolve())):
            kept = json.loads((folder / CASES / f"{case.key}.json").read_text())
            own = {"study": study.name, "case": case.label, "seed": case.seed}
            yield json.dumps(own | {"result": kept["result"], "seconds": round(kept["seconds"], 2)})


if __name__ == "__main__":
    print("\n".join(lines(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
