"""Write the record anew, or say what differs from it: ``python -m golden_record --help``."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from golden_record.cases import CASES, Case
from golden_record.record import Record, differences, load, play, same_machine, save


def main(arguments: Sequence[str] | None = None) -> int:
    """Play cases, then write or compare; the exit code is 1 where a comparison found something."""
    parser = argparse.ArgumentParser(prog="python -m golden_record", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the record of the cases anew")
    what.add_argument(
        "--compare", action="store_true", help="print every entry that differs, one a line"
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="name or pattern; all by default")
    given = parser.parse_args(arguments)
    chosen = _chosen(given.cases)
    if not chosen:
        parser.error(f"no case is called {' or '.join(given.cases)}")
    if given.write:
        _write(chosen)
        return 0
    return _compare(chosen, whole=not given.cases)


def _chosen(patterns: Sequence[str]) -> dict[str, Case]:
    def asked(name: str) -> bool:
        return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)

    return {name: case for name, case in CASES.items() if asked(name)}


def _play(chosen: Mapping[str, Case]) -> dict[str, Record]:
    with tempfile.TemporaryDirectory() as folder:
        return {name: play(case, Path(folder, case.kind)) for name, case in chosen.items()}


def _write(chosen: Mapping[str, Case]) -> None:
    if any(case.kind == "cost" for case in chosen.values()):  # one table, so from one machine
        costs = {name: case for name, case in CASES.items() if case.kind == "cost"}
        chosen = {**chosen, **costs}
    kept = {name: record for name, record in load().items() if name in CASES}
    save({**kept, **_play(chosen)}, CASES)
    print(f"{len(chosen)} cases written")


def _compare(chosen: Mapping[str, Case], *, whole: bool) -> int:
    old, new = load(), _play(chosen)
    lines = [
        f"{name} {entry}"
        for name in chosen.keys() & old.keys()
        for entry in differences(chosen[name], old[name], new[name])
    ]
    lines += [f"{name} is not recorded" for name in chosen.keys() - old.keys()]
    if whole:
        lines += [f"{name} is recorded and no case" for name in old.keys() - chosen.keys()]
    for line in sorted(lines):
        print(line)
    bits = sum(same_machine(old[name]) for name in chosen.keys() & old.keys())
    print(
        f"{len(lines)} differences in {len(chosen)} cases: {bits} compared by bits, "
        f"{len(chosen.keys() & old.keys()) - bits} at tolerances",
        file=sys.stderr,
    )
    return 1 if lines else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.exit(main())
