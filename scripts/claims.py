"""Run the commands of docs/results/claims.csv that take little, and compare what they give.

    python scripts/claims.py [DATA] [--most SECONDS]

A row is run where its seconds are at most ``--most`` (300); rows that need DATA, the folder of the
data files, are run where it is given. Commands write to a copy of docs and never to the
documentation itself, with the kernels of `processor.sh`, as many at a time as there are cores. A
row is compared by the files that it wrote, dates and machines apart (`committed.py`), and by its
numbers, each of which must be a number that the command printed or wrote, rounded as it stands in
the row. Studies that keep finished cells beside their page do not play these again. The exit code
is 1 if a command fails or a row differs.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from committed import DIFFERS, SAME, verdicts

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
CLAIMS = ROOT / "docs" / "results" / "claims.csv"
NUMBER = re.compile(r"(?<![\w.])-?(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?(?![\w])")
LINKED = ("examples", "papers", "scripts", "tests")
"""Folders that commands read."""
TEXTS = (".json", ".jsonl", ".csv", ".md", ".html", ".txt")
Claim = Mapping[str, str]


def seconds_of(claim: Claim) -> float:
    """Return what a row takes, infinity where the row has no number."""
    text = claim["seconds of a core"]
    return float(text) if NUMBER.fullmatch(text) else float("inf")


def unmet(claim: Claim, said: str) -> list[str]:
    """Return the numbers of a row that no number of a text rounds to."""
    numbers = [one for one in claim["numbers"].split() if NUMBER.fullmatch(one)]
    found = {float(one) for one in NUMBER.findall(said.replace(",", ""))}
    return [one for one in numbers if not any(_rounds_to(value, one) for value in found)]


def _rounds_to(value: float, text: str) -> bool:
    digits, _, exponent = text.partition("e")
    last = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(abs(value) - abs(float(text))) <= 0.5 * last * (1 + 1e-9)  # prose has no signs


def runnable(command: str, data: Path | None) -> str:
    """Return a row's command with this environment's programs and the folder of the data."""
    own = re.sub(r"^((?:\w+=\S+ )*)(?:\.venv/bin/)?(privet|python)\b", rf"\1{BIN}/\2", command)
    return re.sub(r"\bDATA\b", shlex.quote(str(data)), own)


def written(folder: Path, before: Mapping[Path, int]) -> Iterator[Path]:
    """Yield the files of a folder that were written since; links are not followed."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if path.stat().st_mtime_ns != before.get(path):
                yield path


def check(claim: Claim, data: Path | None, out: Path) -> tuple[str, bool]:
    """Run one row; return its line, and whether it is as committed."""
    folder = Path(tempfile.mkdtemp(dir=out))
    shutil.copytree(ROOT / "docs", folder / "docs")
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    before = {path: path.stat().st_mtime_ns for path in (folder / "docs").rglob("*")}
    processor = shlex.quote(str(ROOT / "scripts" / "processor.sh"))
    began = time.monotonic()
    done = subprocess.run(
        ["sh", "-c", f". {processor}; {runnable(claim['command'], data)}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    took = time.monotonic() - began
    new = list(written(folder, before))
    faults = [] if done.returncode == 0 else [f"exit code {done.returncode}: {done.stderr[-300:]}"]
    found = list(verdicts(new))
    faults += [f"{path.name} {verdict}" for path, verdict in found if verdict == DIFFERS]
    same = sum(verdict == SAME for _, verdict in found)
    texts = [path.read_text(errors="replace") for path in new if path.suffix in TEXTS]
    missing = unmet(claim, "\n".join([done.stdout, done.stderr, *texts]))
    faults += [f"not printed: {' '.join(missing)}"] if missing else []
    if not found and claim["numbers"] == "all":
        faults.append("wrote no file of the results")
    what = f"{same} files" if same else f"{len(claim['numbers'].split())} numbers"
    shutil.rmtree(folder)
    verdict = "; ".join(faults) or f"as committed, {what}"
    return f"{took:5.0f} s  {claim['page']}, {claim['what']}: {verdict}", not faults


def main() -> int:
    """Run the rows and print a line of each; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, nargs="?", help="folder of the data files")
    parser.add_argument("--most", type=float, default=300, help="seconds of a row")
    chosen = parser.parse_args()
    data = chosen.data.resolve() if chosen.data else None
    with CLAIMS.open() as file:
        claims = list(csv.DictReader(file))
    left = [one for one in claims if seconds_of(one) > chosen.most]
    left += [one for one in claims if one not in left and not data and "DATA" in one["command"]]
    for one in left:
        print(f"not run  {one['page']}, {one['what']}: {one['seconds of a core']} s", flush=True)
    fine = True
    with tempfile.TemporaryDirectory() as out, ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = sorted((one for one in claims if one not in left), key=seconds_of, reverse=True)
        for line, same in pool.map(partial(check, data=data, out=Path(out)), rows):
            print(line, flush=True)
            fine = fine and same
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
