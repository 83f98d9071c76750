"""``privet reproduce``: the papers' tables, figures and theorems, with a verdict an entry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def completed_study(incomplete: str) -> list[str]:
    """Return the papers and studies that a word may become: studies of the one paper it names."""
    from studies.catalogue import PAPERS, studies_of

    papers = [one for one in (*PAPERS, "all") if one.startswith(incomplete.partition("/")[0])]
    if len(papers) > 1:  # no module of a paper is imported for its name alone
        return papers
    own = [one.name for paper in papers if paper in PAPERS for one in studies_of(paper)]
    return [one for one in (*papers, *own) if one.startswith(incomplete)]


def reproduce(
    studies: Annotated[
        list[str] | None,
        typer.Argument(
            help="e.g. fed-plt/table-2, a paper (fed-plt, dp-iadmm, fedpdm, gfl), or all.",
            autocompletion=completed_study,
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Folder for CSV, plots and verdicts; finished cases stay there.")
    ] = Path("reproduced"),
    data_path: Annotated[
        Path | None, typer.Option(help="Folder with MNIST, FEMNIST and Adult files.")
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Use the papers' own horizons and repetitions; takes many hours."
        ),
    ] = False,
    night: Annotated[
        bool,
        typer.Option(
            "--night",
            help="Use the papers' own horizons with few seeds, and MNIST whole if --data-path has "
            "mnist.npz; says first how long it takes, and goes on where it was.",
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run cases again even if their results exist.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="Cases at a time, else one per core.", min=1)
    ] = None,
    ray_address: Annotated[
        str, typer.Option(help="Ray cluster to run on, host:port; else Ray starts here.")
    ] = "",
    list_only: Annotated[
        bool, typer.Option("--list", help="Print the names, of all or of those given, and stop.")
    ] = False,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per entry.")
    ] = False,
) -> None:
    """Run studies, print a verdict for every entry, and write rows, plots and a page per paper.

    The exit code is 0 whatever the verdicts are, 1 if a case failed. After an interruption, the
    same command goes on where it stopped.
    """
    from privet.core import ConfigError
    from privet.sim.logs import plain, quiet
    from studies import Options
    from studies.catalogue import NIGHT, chosen
    from studies.execute import foreseen, run_studies
    from studies.pages import number, row_line, summary, write_pages, write_study

    if list_only:
        print("\n".join(study.name for study in chosen(studies or ["all"], full=True)))
        return
    if night and full:
        raise ConfigError("--night and --full: give one of them")
    if not studies:
        if not night:
            raise ConfigError("name a study, a paper or all; --list prints the names")
        studies = list(NIGHT)
    quiet() if json_lines else plain()
    wanted = chosen(studies, full=full)
    if data_path is not None and not data_path.is_dir():
        raise ConfigError(f"--data-path {data_path}: no such folder")
    options = Options(full, None if data_path is None else data_path.resolve(), night)
    if night:
        planned = {case.key: case for study in wanted for case in study.cases(options)}
        total = 0.0
        for label, count, seconds in foreseen(list(planned.values()), output):
            total += seconds
            hours = f"{seconds / 3600:7.2f} h, {total / 3600:8.2f} h in all"
            print(f"{label:58} {count:4} runs {hours}", flush=True)
    try:
        outcomes = run_studies(
            wanted, options, output, workers=workers, address=ray_address or None, fresh=fresh
        )
    except KeyboardInterrupt as interrupt:
        kept = "finished cases stay in the --output folder; the same command goes on"
        raise KeyboardInterrupt(str(interrupt) or f"interrupted; {kept}") from None
    for study in wanted:
        outcome = outcomes[study.name]
        write_study(study, outcome, output, full=full or night)
        if not json_lines:
            print(f"\n{study.name}: {study.title}")
        for row in outcome.rows:
            if json_lines:
                print(json.dumps(row_line(study.name, row)), flush=True)
                continue
            ours = str(row.ours)
            print(f"  {row.what:58} paper {number(row.printed):>12}  ours {ours}  {row.verdict}")
    page = write_pages(output)
    if not json_lines:
        print(f"\n{summary(output)}\n{page.resolve()}")
