"""The page on graph federated learning: Section V of the paper, measured.

``python -m privet.sim.experiments.gfl_tables DATA docs/results [KEPT]`` with DATA a folder that
holds the Adult files; ten minutes on one core. KEPT is a folder with finished cases of an earlier
run, also of ``privet reproduce``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privet.sim.logs import quiet
from privet.sim.reproduce import Options, Outcome
from privet.sim.reproduce.gfl import STUDIES
from privet.sim.reproduce.gfl_cases import NOISY, VARIANCES
from privet.sim.reproduce.gfl_steady import STEPS
from privet.sim.reproduce.runner import run_studies
from privet.sim.reproduce.written import draw

Row = Mapping[str, Any]


def main(data: Path, folder: Path, kept: Path | None = None) -> None:
    """Run what is not kept; write ``gfl.md`` and a ``.svg`` for each study."""
    quiet()
    options = Options(data_path=data)
    with tempfile.TemporaryDirectory() as scratch:
        found = run_studies(STUDIES, options, kept or Path(scratch), workers=1)
    folder.mkdir(parents=True, exist_ok=True)
    for study in STUDIES:
        draw(folder / f"{study.name.replace('/', '-')}.svg", study.title, found[study.name].panels)
    (folder / "gfl.md").write_text(page(found))


def page(found: Mapping[str, Outcome]) -> str:
    """Return the page for the outcomes of all studies."""
    rows = found["gfl/steady-state"].rows
    return TEXT.format(
        centroid=_table(rows, "centroid"),
        units=_table(rows, "units"),
        remedies=_remedies(rows),
        notes="\n".join(f"- {note}" for note in found["gfl/steady-state"].notes),
        **{
            study.name.partition("/")[2].replace("-", "_"): verdicts(found[study.name])
            for study in STUDIES
        },
    )


def verdicts(outcome: Outcome) -> str:
    """Return claims, measurements and verdicts as a table."""
    lines = ["| claim | paper | measured | verdict |", "|---|---|---|---|"]
    lines += [f"| {e.what} | {e.paper} | {e.ours} | {e.verdict} |" for e in outcome.entries]
    return "\n".join(lines)


def _table(rows: Sequence[Row], name: str) -> str:
    """Return one deviation, noise and variance by step."""
    values = {(row["noise"], row["sigma^2"], row["mu"]): row.get(name) for row in rows}
    head = "| noise | sigma_g^2 | " + " | ".join(f"mu {mu:g}" for mu in STEPS) + " |"
    lines = [head, "|---" * (2 + len(STEPS)) + "|"]
    for kind, variance in [("none", 0.0), *((k, v) for k in NOISY for v in VARIANCES)]:
        cells = [f"{values[kind, variance, mu]:.1e}" for mu in STEPS]
        shown = "-" if kind == "none" else f"{variance:g}"
        lines.append(f"| {kind} | {shown} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _remedies(rows: Sequence[Row]) -> str:
    extra = [row for row in rows if ", " in row["noise"]]
    return "\n".join(f"| {row['noise']} | {row['units']:.1e} |" for row in extra)


TEXT = """# Graph federated learning, measured

Written by `python -m privet.sim.experiments.gfl_tables DATA docs/results`; the same studies run as
`privet reproduce gfl`. Mean-square deviations from the minimiser of all agents' losses: of the
centroid, eq. (58), and the mean over the units, eq. (59).

Section V-A: 10 units of 100 agents with 100 examples of two features each, rho .1, 11 agents of
each unit a round, 1 to 10 epochs and batches of 5 to 10 drawn with replacement, Laplace noise. The
paper gives neither its graph nor its covariances and noises: here an Erdos-Renyi graph of
probability .4 with Metropolis weights, and the data set `regression`.

## Steady states

Centroid:

{centroid}

Single units:

{units}

What helps single units under homomorphic noise (sigma_g^2 .1, mu .7):

| | single units |
|---|---|
{remedies}

{steady_state}

{notes}

![Steady states](gfl-steady-state.svg)

## Figure 2: the three variants

{figure_2}

![Figure 2](gfl-figure-2.svg)

## Figure 3: growing variance

{figure_3}

![Figure 3](gfl-figure-3.svg)

## Figure 4: steps

The printed mu = 5 diverges, with and without noise, on this problem: its steps are divided by the
number of epochs, and agents with a single one multiply their error by more than one in absolute
value.

{figure_4}

![Figure 4](gfl-figure-4.svg)

## Figure 5: classification

Section V-B on Adult in place of the click data: 5 units of 10 agents on a ring, 5,101 training
examples dealt unequally, Gaussian noise of each agent's own deviation (up to 1) on its features,
logistic loss with rho .03, mu .5, sigma_g^2 .6, all agents in every round; test error of the
centroid on the clean test set. With 83 parameters this noise has a norm of 7 on every link.

{figure_5}

![Figure 5](gfl-figure-5.svg)
"""

if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3:] else None)
