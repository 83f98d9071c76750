"""Running studies: every case once, its result kept as soon as it is there, then the verdicts."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from privet.core import ConfigError
from privet.sim.sweep import SweepError, sweep

from .runner import play
from .runs import Runs
from .search import searched
from .study import Case, Options, Outcome, Result, Study

log = logging.getLogger("flwr.privet")

PROBES = (2, 10)
"""Rounds that an estimate plays."""
CASES = "cases.jsonl"
"""File of the kept results, inside the output folder."""


def timed(case: Case) -> tuple[Result, float]:
    """Run one case, and say how many seconds of a core it took; sent to other processes."""
    began = time.process_time()
    return play(searched(case)), time.process_time() - began


def run_studies(
    studies: Sequence[Study],
    options: Options,
    folder: Path,
    *,
    workers: int | None = None,
    address: str | None = None,
    fresh: bool = False,
) -> dict[str, Outcome]:
    """Run the cases of all studies that are not yet in ``folder``, and conclude.

    Raises
    ------
    ConfigError
        If a study needs data and there is no ``data_path``, or files are missing there.
    SweepError
        If cases failed; the results of the others are kept.
    """
    _require_files(studies, options.data_path)
    planned = {study.name: list(study.cases(options)) for study in studies}
    jobs = {case.key: case for own in planned.values() for case in own}
    folder.mkdir(parents=True, exist_ok=True)
    kept = Runs(folder / CASES)
    results: dict[str, Result] = {}
    if not fresh:
        results = {key: kept.found[key]["result"] for key in jobs if key in kept.found}
    missing = [case for key, case in jobs.items() if key not in results]
    missing.sort(key=lambda case: case.seed)  # the arms of a seed share their data
    if results:
        log.info("%d of %d cases are there already", len(results), len(jobs))

    def keep(position: int, found: tuple[Result, float]) -> None:
        case, (result, seconds) = missing[position], found
        results[case.key] = result
        own = {"key": case.key, "case": case.label, "seed": case.seed}
        kept.keep(case.key, own | {"result": dict(result), "seconds": seconds})

    failed: SweepError | None = None
    try:
        sweep(timed, missing, workers=workers, address=address, label=_label, on_result=keep)
    except SweepError as error:
        failed = error
    outcomes: dict[str, Outcome] = {}
    for study in studies:
        own = planned[study.name]
        if all(case.key in results for case in own):
            outcomes[study.name] = study.judge(grouped(own, results), options)
    if failed is not None:
        raise failed
    return outcomes


def foreseen(cases: Sequence[Case], folder: Path) -> list[tuple[str, int, float]]:
    """Return for each label how many cases are missing, and their seconds of a core.

    A case of each is played for two rounds, twice, as the first loads data, and for ten.
    """
    missing: dict[str, dict[str, Case]] = {}
    kept = Runs(folder / CASES)
    for case in cases:
        if case.key not in kept.found:
            label = f"{case.label} ({case.workload['name']})" if case.workload else case.label
            missing.setdefault(label, {})[case.key] = case
    found = []
    for label, own in missing.items():
        one = next(iter(own.values()))
        options = {**one.options, "every": 1} if "every" in one.options else one.options
        _, few, many = (
            timed(replace(one, rounds=rounds, options=options))[1]
            for rounds in (PROBES[0], *PROBES)
        )
        per_round = max(many - few, 0.0) / (PROBES[1] - PROBES[0])
        each = few + per_round * (one.rounds - PROBES[0])
        found.append((label, len(own), len(own) * each))
    return found


def grouped(cases: Sequence[Case], results: Mapping[str, Result]) -> dict[str, list[Result]]:
    """Return the results by label, in the order of the seeds."""
    found: dict[str, list[Result]] = {}
    for case in cases:
        found.setdefault(case.label, []).append(results[case.key])
    return found


def _require_files(studies: Sequence[Study], folder: Path | None) -> None:
    needed: dict[str, str] = {}
    for study in studies:
        for name in study.files:
            needed.setdefault(name, study.name)
    if folder is None and needed:
        first = next(iter(needed.values()))
        raise ConfigError(f"{first} needs --data-path, a folder with {', '.join(needed)}")
    missing = [name for name in needed if folder and not (folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"--data-path {folder}: no {', '.join(missing)}, which {needed[missing[0]]} needs"
        )


def _label(case: Case) -> str:
    return f"{case.label}, seed {case.seed}"
