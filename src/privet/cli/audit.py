"""``privet audit``: what a coordinator can prove of a run's promise, beside the promise."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .config import given_keys
from .keys import ConfigOption, JsonOption, PresetOption, completed

if TYPE_CHECKING:
    from privet.sim.audit import PrivacyAudit

SECONDS = 10.0
"""Between two lines on how far an audit is."""


WhatArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN_FOLDER] [KEY=VALUE]...",
        help="A run to audit the settings of, and run-config keys over it.",
        show_default=False,
        autocompletion=completed,
    ),
]
CanariesOption = Annotated[
    int,
    typer.Option(help="Canaries of all runs, at least; half of them are left to guess on.", min=20),
]
FalseAlarmsOption = Annotated[
    float, typer.Option(help="Chance of an alarm where the run keeps its word.")
]
ColludersOption = Annotated[
    int | None,
    typer.Option(
        help="Nodes with pinned keys, of whom so many help the observer: for noise-sharing.",
        min=0,
    ),
]
PowerOption = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Also say how many canaries find that this share of the noise is missing, "
        "nine times in ten.",
    ),
]


def audit(
    what: WhatArgument = None,
    config: ConfigOption = None,
    preset: PresetOption = "",
    canaries: CanariesOption = 2000,
    false_alarms: FalseAlarmsOption = 1e-3,
    colluders: ColludersOption = None,
    power: PowerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Attack a private run with canaries, and print the epsilon that is proven beside its own.

    The exit code is 1 if more is proven than the run states, and 2 if the audit could not prove
    more whatever the run does. The agents' records are replaced by canaries; of the data only the
    public numbers count.
    """
    from dataclasses import asdict

    from privet.core import ConfigError
    from privet.server_apps.run_folder import to_json
    from privet.sim.audit import audit as audited
    from privet.sim.logs import quiet

    if not 0 < false_alarms < 1:
        raise ConfigError(f"--false-alarms {false_alarms:g}: expected a number in (0, 1)")
    if power is not None and not 0 < power < 1:
        raise ConfigError(f"--power {power:g}: expected a number in (0, 1)")
    quiet()
    raw, written = _settings(what or (), config, preset)
    with _progress(not as_json) as show:
        result = audited(
            raw,
            canaries=canaries,
            false_alarms=false_alarms,
            colluders=colluders,
            on_round=show,
        )
    broken = result.broken or result.bound > written
    promised = min(result.epsilon, written)
    wanted = None if power is None else 2 * result.power.canaries_for(power)
    if as_json:
        record = {key.replace("_", "-"): value for key, value in asdict(result).items()}
        if power is not None:
            record["canaries-for-power"] = wanted or None
        record |= {"written": written, "broken": broken, "reach": result.reach}
        print(json.dumps(to_json(record), allow_nan=False))
    else:
        if math.isfinite(written):
            print(f"epsilon in the run's account: {written:.6g}")
        _show_proven(result)
        if power is not None:
            print(_canaries(power, wanted or 0))
        print(_verdict(result, broken=broken, promised=promised))
    if broken:
        raise typer.Exit(1)
    if result.reach < promised:
        raise typer.Exit(2)


def _settings(
    what: Sequence[str], config: Path | None, preset: str
) -> tuple[Mapping[str, Any], float]:
    """Return the keys to audit, and the epsilon of the run whose folder is named, else infinity.

    Raises
    ------
    ConfigError
        If several folders are named or a preset beside one, or a folder is not of a finished run.
    """
    from privet.core import ConfigError

    folders = [one for one in what if "=" not in one]
    if len(folders) > 1 or (folders and (config or preset)):
        raise ConfigError("audit takes one run folder, or --config and --preset")
    given = given_keys([one for one in what if "=" in one], config, preset)
    if not folders:
        return given, math.inf
    earlier, written = _run(Path(folders[0]))
    return {**earlier, **given}, written


def _show_proven(result: PrivacyAudit) -> None:
    """Print the epsilon of the account, what is proven of it, and what would have been missed."""
    print(f"epsilon by its account: {result.epsilon:.6g} at delta {result.delta:g}")
    print(
        f"proven by guesses: {result.guessed:.4g} ({result.correct} of {result.guesses} right, "
        f"{result.canaries} canaries to guess on, "
        f"{result.runs} {'run' if result.runs == 1 else 'runs'}), "
        f"and {result.provable:.4g} at most, had all been right"
    )
    if not math.isnan(result.measured):
        print(f"proven by the gap of Gaussian means: {result.measured:.4g}")
    if not math.isnan(result.spread):
        print(f"proven by the spread of the noise: {result.spread:.4g}")
    if result.repeated:
        print("played again, the run sent an upload of the same bits: no noise is on it")
    print(_found(result))


@contextmanager
def _progress(wanted: bool) -> Iterator[Callable[[int, int], None]]:
    """Show the rounds of all runs on stderr: a bar on a terminal, elsewhere a line now and then."""
    if not sys.stderr.isatty():
        said = time.monotonic()

        def tell(played: int, total: int) -> None:
            nonlocal said
            if wanted and time.monotonic() - said >= SECONDS:
                said = time.monotonic()
                print(f"{played} of {total} rounds", file=sys.stderr)

        yield tell
        return
    from rich.progress import Progress

    from privet.core.terminal import console

    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("rounds")
        yield lambda played, total: bar.update(task, completed=played, total=total)


def _found(result: PrivacyAudit) -> str:
    """Return the line on what this audit would have missed."""
    drawn = (
        "its draws could not be measured"
        if math.isnan(result.lack_of_draws)
        else f"{100 * result.lack_of_draws:.2g} % of the noise missing where it is drawn"
    )
    lost = (
        "no lack that arises later, however large"
        if math.isnan(result.lack)
        else f"{100 * result.lack:.2g} % missing wherever it got lost"
    )
    return f"the smallest lack found nine times in ten: {drawn}; by the canaries {lost}"


def _canaries(power: float, wanted: int) -> str:
    lack = f"{100 * power:g} % of the noise missing, wherever it got lost"
    if not wanted:
        return f"no number of canaries finds {lack}: a larger delta or --false-alarms may"
    return f"--canaries {wanted} find {lack}, nine times in ten"


def _verdict(result: PrivacyAudit, *, broken: bool, promised: float) -> str:
    error = f"(a false alarm has a chance of at most {result.false_alarms:g})"
    if broken:
        return f"BROKEN: more is proven than the run states {error}"
    if result.reach < promised:
        return (
            f"UNDECIDED: this audit proves {result.reach:.4g} at most, whatever the run does; a "
            f"smaller delta or a larger --false-alarms lets it prove more {error}"
        )
    return f"nothing more is proven {error}"


def _run(folder: Path) -> tuple[Mapping[str, Any], float]:
    """Return the settings of a run and its recorded epsilon, infinity if there is none."""
    from privet.core import ConfigError
    from privet.core.errors import near_path
    from privet.server_apps.config import changed, is_idle
    from privet.server_apps.report.runs import PRIVACY, SUMMARY, read_json

    config = read_json(folder / SUMMARY).get("config")
    accounts = read_json(folder / PRIVACY).get("accounts")
    if config is None or accounts is None:
        raise ConfigError(
            f"{folder}: expected the folder of a finished run, with {SUMMARY} and {PRIVACY}"
            f"{near_path(folder)}"
        )
    written = accounts[0]["epsilon"] if accounts else "inf"
    epsilon = math.inf if written == "inf" else written
    if not isinstance(epsilon, int | float) or math.isnan(epsilon):
        raise ConfigError(
            f"{folder / PRIVACY}: accounts.0.epsilon: expected a number, got {written!r}"
        )
    return {key: value for key, value in changed(config).items() if not is_idle(key)}, epsilon
