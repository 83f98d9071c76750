"""``privet reproduce``: the papers' tables, figures and theorems, with a verdict an entry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from studies import Options
    from studies.study import Outcome, Study


def completed_study(incomplete: str) -> list[str]:
    """Return the papers and studies that a word may become: studies of the one paper it names."""
    from studies.catalogue import PAPERS, studies_of

    papers = [one for one in (*PAPERS, "all") if one.startswith(incomplete.partition("/")[0])]
    if len(papers) > 1:  # no module of a paper is imported for its name alone
        return papers
    own = [one.name for paper in papers if paper in PAPERS for one in studies_of(paper)]
    return [one for one in (*papers, *own) if one.startswith(incomplete)]


StudiesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="e.g. fed-plt/table-2, a paper (fed-plt, dp-iadmm, fedpdm, gfl), or all.",
        autocompletion=completed_study,
    ),
]
OutputOption = Annotated[
    Path, typer.Option(help="Folder for CSV, plots and verdicts; finished cases stay there.")
]
DataPathOption = Annotated[
    Path | None, typer.Option(help="Folder with MNIST, FEMNIST and Adult files.")
]
FullOption = Annotated[
    bool,
    typer.Option("--full", help="Use the papers' own horizons and repetitions; takes many hours."),
]
NightOption = Annotated[
    bool,
    typer.Option(
        "--night",
        help="Use the papers' own horizons with few seeds, and MNIST whole if --data-path has "
        "mnist.npz; says first how long it takes, and goes on where it was.",
    ),
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Run cases again even if their results exist.")
]
WorkersOption = Annotated[
    int | None, typer.Option(help="Cases at a time, else one per core.", min=1)
]
RayAddressOption = Annotated[
    str, typer.Option(help="Ray cluster to run on, host:port; else Ray starts here.")
]
ListOption = Annotated[
    bool, typer.Option("--list", help="Print the names, of all or of those given, and stop.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per entry.")]


def reproduce(
    studies: StudiesArgument = None,
    output: OutputOption = Path("reproduced"),
    data_path: DataPathOption = None,
    full: FullOption = False,
    night: NightOption = False,
    fresh: FreshOption = False,
    workers: WorkersOption = None,
    ray_address: RayAddressOption = "",
    list_only: ListOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Run studies, print a verdict for every entry, and write rows, plots and a page per paper.

    The exit code is 0 whatever the verdicts are, 1 if a case failed. After an interruption, the
    same command goes on where it stopped.
    """
    from privet.core import ConfigError
    from privet.sim.logs import plain, quiet
    from studies import Options
    from studies.catalogue import NIGHT, chosen
    from studies.execute import run_studies
    from studies.pages import summary, write_pages, write_study

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
        _show_hours(wanted, options, output)
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
        _show_verdicts(study, outcome, json_lines=json_lines)
    page = write_pages(output)
    if not json_lines:
        print(f"\n{summary(output)}\n{page.resolve()}")


def _show_hours(studies: Sequence[Study], options: Options, output: Path) -> None:
    """Print how long the cases take that are not finished, kind by kind."""
    from studies.execute import foreseen

    planned = {case.key: case for study in studies for case in study.cases(options)}
    total = 0.0
    for label, count, seconds in foreseen(list(planned.values()), output):
        total += seconds
        hours = f"{seconds / 3600:7.2f} h, {total / 3600:8.2f} h in all"
        print(f"{label:58} {count:4} runs {hours}", flush=True)


def _show_verdicts(study: Study, outcome: Outcome, *, json_lines: bool) -> None:
    """Print the entries of a study with what the paper has, what is found here, and the verdict."""
    from studies.pages import number, row_line

    if not json_lines:
        print(f"\n{study.name}: {study.title}")
    for row in outcome.rows:
        if json_lines:
            print(json.dumps(row_line(study.name, row)), flush=True)
            continue
        ours = str(row.ours)
        print(f"  {row.what:58} paper {number(row.printed):>12}  ours {ours}  {row.verdict}")
