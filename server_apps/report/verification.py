"""Privacy-critical: whether the statement of a private run says what its files and ledgers say.

The figures are computed again from the releases in ``privacy.json``: what is written may be larger,
and never smaller. The releases are held against the history, which names who took part in each
round, and against nodes' ledgers, which no coordinator writes. A ledger must hold the line whose
hash its node returned with its last reply (`privet.kernel.ledger`): of a file that was cut before
it, or rewritten, that line is missing. Lines after it belong to later runs, or to replies that did
not arrive, and nobody but the node knows of them.
"""

from __future__ import annotations

import hashlib
import html
import math
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from privet.core.errors import listed, one_line
from privet.core.files import read_npz
from privet.kernel import AgentLedger, LedgerFile, drawn_delta
from privet.rounds.account import apart_line, not_of, set_apart
from privet.wire import sort_names

from ..account import OBSERVERS, assumptions_of, of_description
from .files import STATEMENT
from .runs import HISTORY, JOURNAL, PRIVACY, SUMMARY, RecordedRun, ReportUsageError, settings_of
from .statement import (
    BOUND_FILES,
    accounts_of,
    changed_files,
    contradictions,
    page_of,
    require_private,
)

_SLACK = 1.0 - 1e-9
"""Share of a computed figure that a written one may be: exp and log of another machine differ in
their last bits."""
_ALONE = "simulated", "records", "notes"
"""Entries of the summary that stand on the page and in no other file."""
_EXACT = re.compile(r"\(exactly ([^)\s]+)\)")

Check = tuple[bool, str]
"""Whether something is as the statement says, and a line on it."""


def statement_page(runs: Sequence[RecordedRun]) -> bytes:
    """Return the page of `page_of`, of figures that the run's releases bear out.

    Raises
    ------
    ReportUsageError
        As `page_of`; if there are several runs, a figure is smaller than the one that is computed
        from the releases, or the run's files contradict each other.
    """
    run = require_private(runs)
    accounts, faults = accounts_of(run)
    changed, known = changed_files(run), run.summary.get("sha-256", {})
    for name in BOUND_FILES:
        if name in changed:
            faults.append(f"{name} is not the file whose SHA-256 {SUMMARY} holds")
        elif name not in known and os.path.lexists(run.folder / name):
            faults.append(f"{SUMMARY} holds no SHA-256 of {name}")
    checks = _checks_of_account(run, accounts, faults, {})
    if wrong := [line for holds, line in checks if not holds]:
        raise ReportUsageError(
            f"--statement: the files of {run.name} contradict each other: {listed(wrong)}; put "
            "back those of one run, or resume it if it went on"
        )
    return page_of(run)


def _checks_of_account(
    run: RecordedRun,
    accounts: Mapping[str, AgentLedger],
    faults: Sequence[str],
    costs: dict[float, dict[str, float]],
) -> Iterator[Check]:
    """Yield the checks of what the account and the summary say, by the releases and the history.

    ``faults`` are known already; ``costs`` is filled as `_costs` returns it.
    """
    for line in (*faults, *contradictions(run, accounts)):
        yield False, line
    yield from _checks_of_config(run)
    try:
        costs |= _costs(run, {name: one for name, one in accounts.items() if one.messages})
        yield from _checks_of_figures(run, accounts, costs)
    except (ValueError, ArithmeticError) as error:
        why = one_line(str(error))
        yield False, f"{PRIVACY}: the figures cannot be computed from the releases ({why})"


def checks_of(run: RecordedRun, ledgers: Sequence[Path]) -> Iterator[Check]:
    """Yield whether each thing that a run's statement binds is as it says, and a line on it.

    Raises
    ------
    ReportUsageError
        As `page_of`.
    LedgerError
        If a ledger file cannot be read or was edited.
    """
    expected, page = page_of(run), run.folder / STATEMENT
    accounts, faults = accounts_of(run)
    costs: dict[float, dict[str, float]] = {}
    yield from _checks_of_account(run, accounts, faults, costs)
    counted = [name for name in accounts if name not in run.privacy.apart]
    each = [cost[name] for cost in costs.values() for name in counted if name in cost]
    least = max(each, default=0.0)
    yield _check_of_page(page, expected, least)
    yield from _checks_of_files(run)
    covered: set[str] = set()
    for file in ledgers:
        yield from _checks_of_ledger(run, file, accounts, covered)
    if not ledgers:
        yield True, "no ledger was given: what nodes charged is not compared (--ledger FILE)"
    elif missing := [name for name in accounts if name not in covered]:
        others = listed(f"agent {name}: no ledger was given" for name in missing)
        yield True, f"{others}: what their nodes charged is not compared"


def _checks_of_config(run: RecordedRun) -> Iterator[Check]:
    """Yield lines on what the summary says of the run, where that claims nothing or differs."""
    summary, config = run.summary, run.summary.get("config", {})
    seed = config.get("noise-seed", -1)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed >= 0:
        yield False, f"{SUMMARY}: config.noise-seed = {seed!r}: noise that can be drawn again"
    if config.get("sensitivity") == "paper":
        yield False, f"{SUMMARY}: config.sensitivity = paper: the noise's scale is of the data"
    for key in ("algorithm", "dataset"):
        if key in config and summary.get(key) != config[key]:
            said = f"{key} is {summary.get(key)!r}, and config.{key} {config[key]!r}"
            yield False, f"{SUMMARY}: {said}"
    last = run.rounds[-1] if run.rounds else 0
    if summary.get("rounds") != last:
        said = f"rounds is {summary.get('rounds')!r}, and the last of {HISTORY} {last}"
        yield False, f"{SUMMARY}: {said}"
    delta = config.get("delta")
    for place, entry in enumerate(run.privacy.entries):
        if delta is not None and entry.get("delta") != delta:
            said = f"accounts.{place}.delta is {entry.get('delta')!r}"
            yield False, f"{PRIVACY}: {said}, and config.delta of {SUMMARY} {delta!r}"
    if (reason := summary.get("privacy")) != run.privacy.reason:
        line = f"privacy is {reason!r}, and {PRIVACY} says {run.privacy.reason!r}"
        yield False, f"{SUMMARY}: {one_line(line)}"
    simulated = summary.get("simulated")
    if simulated is not None and not isinstance(simulated, bool):
        yield False, f"{SUMMARY}: simulated is {simulated!r}, expected true or false"
    alone = [key for key in _ALONE if summary.get(key) is not None]
    alone += ["config.clip"] if "clip" in config else []
    if alone:
        yield (
            True,
            f"{SUMMARY}: {', '.join(alone)}: the coordinator's own word, compared with nothing",
        )


def _draw_length(run: RecordedRun) -> tuple[int, str]:
    """Return the least length of a draw that the model gives, and what the summary's lacks of it.

    That is the size of the trained arrays: all of the model file's, or those that the summary, and
    the page, name.
    """
    written = run.summary.get("draw-length")
    length = 0
    if isinstance(written, int) and not isinstance(written, bool):
        length = written
    names = run.summary.get("trained")
    sizes: dict[str, int] = {}
    with suppress(OSError, ValueError, zipfile.BadZipFile):  # the digest of the file says so
        arrays = read_npz(run.folder / "model.npz")
        sizes = {name: one.size for name, one in arrays.items() if one.dtype.kind == "f"}
    further = {name for name in sizes if name.partition("/")[2] in sizes}
    model = {name: size for name, size in sizes.items() if name not in further}
    least = sum(size for name, size in model.items() if not names or name in names)
    fault = "" if length >= max(least, 1) else f"is {written!r}, and a draw has {least} numbers"
    if names and not model.keys() >= set(names):
        fault = "cannot be told: not all arrays that are trained are in the model"
    return max(length, least, 1), fault


def _costs(run: RecordedRun, accounts: Mapping[str, AgentLedger]) -> dict[float, dict[str, float]]:
    """Return each agent's epsilon, computed again, by the deltas at which one is written."""
    deltas = {entry.get("delta") for entry in run.privacy.entries} if accounts else set()
    return {
        delta: {name: one.spent(delta) for name, one in accounts.items()}
        for delta in deltas
        if isinstance(delta, float) and 0 < delta < 1
    }


def _checks_of_figures(
    run: RecordedRun,
    accounts: Mapping[str, AgentLedger],
    costs: Mapping[float, Mapping[str, float]],
) -> Iterator[Check]:
    """Yield lines on the figures of the account, and on what the releases do not bear out."""
    length, fault = _draw_length(run)
    if fault:
        yield False, f"{SUMMARY}: draw-length {fault}"
    for place, entry in enumerate(run.privacy.entries):
        where, delta = f"{PRIVACY}: accounts.{place}", entry.get("delta")
        if isinstance(delta, float) and delta in costs:
            yield from _checks_of_entry(where, entry, run, accounts, costs[delta], length)
        elif any(one.messages for one in accounts.values()):
            yield False, f"{where}.delta: expected a number between 0 and 1, got {delta!r}"
        else:
            yield False, f"{where}: no agent has a release of which it could be computed again"
    yield from _checks_of_history(run)
    for delta, each in costs.items():
        for name, computed in each.items():
            what, stated = f"agents.{name}.epsilon", run.privacy.agents[name].get("epsilon")
            check = _at_least(f"{PRIVACY}: {what}", stated, computed, f"at delta {delta:g}")
            if not check[0]:
                yield check


def _checks_of_history(run: RecordedRun) -> Iterator[Check]:
    """Yield a line if the account is of less than a round of the history says was spent by then.

    Those are the rounds before an agent failed first, for the history counts what may be lost as
    released until its next account says otherwise; and none where agents are apart, of whom no
    entry of the account is.
    """
    if run.privacy.apart:
        return
    first = min((one.round for one in run.incidents if one.agent), default=math.inf)
    finite = [
        (value, number)
        for number, value in zip(*run.series("epsilon"), strict=True)
        if value < math.inf and number < first
    ]
    spent, number = max(finite, default=(0.0, 0))
    for place, entry in enumerate(run.privacy.entries):
        what = f"{PRIVACY}: accounts.{place}.epsilon"
        written = entry.get("epsilon")
        if not _at_least(what, written, spent, "")[0]:
            said = f"round {number} of {HISTORY} says that {spent!r} was spent by then"
            yield False, f"{what} is {written!r}, and {said}"


def _checks_of_entry(
    where: str,
    entry: Mapping[str, Any],
    run: RecordedRun,
    accounts: Mapping[str, AgentLedger],
    costs: Mapping[str, float],
    length: int,
) -> Iterator[Check]:
    """Yield lines on one entry of the account, given each agent's epsilon at its delta."""
    every = {name: one for name, one in accounts.items() if name in costs}
    delta, target = float(entry["delta"]), settings_of(run).get("target-epsilon", 0.0)
    target = float(target) if isinstance(target, int | float) else 0.0
    apart = set_apart(every, target, delta, lambda _: length)
    accounts = {name: one for name, one in every.items() if name not in apart}
    if set(run.privacy.apart) != set(apart):
        stated = sorted(run.privacy.apart)
        yield False, f"{PRIVACY}: apart is {stated}, by the target and the releases {list(apart)}"
    worst = max(accounts, key=lambda name: costs[name])
    totals, whose = accounts[worst].totals, f"by the releases of agent {worst}"
    yield _at_least(f"{where}.epsilon", entry.get("epsilon"), costs[worst], whose)
    yield from _checks_of_drawn(where, entry, accounts, length, costs[worst])
    if entry.get("method") != totals.method:
        yield False, f"{where}.method is {entry.get('method')!r}, {whose} {totals.method!r}"
    elif totals.method == "gaussian":
        yield _at_least(f"{where}.mu", entry.get("mu"), totals.mu, whose)
    said = entry.get("assumptions", ())
    unbound = [not_of(run.privacy.unbound)] if run.privacy.unbound else []
    expected = assumptions_of(accounts[worst], every.values())
    expected += [*unbound, *apart_line(apart, every, delta)]
    schema = run.summary.get("schema") or {}
    expected += of_description(schema.get("described", {}))
    for line in expected:
        if line not in said:
            yield False, f"{where}.assumptions lacks: {line}"
    for line in said:
        if line not in expected:
            yield False, f"{where}.assumptions has a line that no release bears out: {line}"
    if entry.get("to") not in OBSERVERS:
        yield False, f"{where}.to is {entry.get('to')!r}, expected {' or '.join(OBSERVERS)}"
    if isinstance(person := entry.get("person"), Mapping):
        yield from _checks_of_person(f"{where}.person", person, accounts, length)


def _checks_of_person(
    where: str, person: Mapping[str, Any], accounts: Mapping[str, AgentLedger], length: int
) -> Iterator[Check]:
    """Yield lines on the figures of a person of several records."""
    rows, delta = person.get("rows"), person.get("delta")
    if not (isinstance(rows, int) and rows >= 1 and isinstance(delta, float) and 0 < delta < 1):
        yield False, f"{where}: expected a number of rows and a delta between 0 and 1"
        return
    epsilon = max(one.totals.of_group(rows).epsilon(delta) for one in accounts.values())
    yield _at_least(f"{where}.epsilon", person.get("epsilon"), epsilon, f"for {rows} records")
    yield from _checks_of_drawn(where, person, accounts, length, epsilon)


def _checks_of_drawn(
    where: str,
    entry: Mapping[str, Any],
    accounts: Mapping[str, AgentLedger],
    length: int,
    epsilon: float,
) -> Iterator[Check]:
    """Yield a line on what delta grows by as the noise is drawn, where it is written too small."""
    drawn = max(drawn_delta(one.entries, length, epsilon) for one in accounts.values())
    check = _at_least(f"{where}.drawn-delta", entry.get("drawn-delta"), drawn, "by the releases")
    if not check[0]:
        yield check


def _at_least(what: str, written: Any, computed: float, whose: str) -> Check:
    """Return whether a written figure is no smaller than the computed one, and a line on it."""
    value = math.inf if written == "inf" else written
    number = isinstance(value, int | float) and not isinstance(value, bool)
    holds = number and value >= computed * _SLACK
    return holds, f"{what} is {written!r}, computed again {computed!r} {whose}"


def _check_of_page(page: Path, expected: bytes, least: float) -> Check:
    """Return whether the page in the run folder is the one that the account gives.

    Of another page, such as one of another version, its exact figures are held against ``least``.
    """
    if not page.is_file():
        return False, f"{page.name}: not there"
    content = page.read_bytes()
    if content == expected:
        return True, f"{page.name}: as the account and the summary give it"
    for said in _EXACT.findall(html.unescape(content.decode(errors="replace"))):
        try:
            too_small = not float(said) >= least * _SLACK
        except ValueError:
            too_small = True
        if too_small:
            return False, f"{page.name}: says epsilon {said}, computed again {least!r}"
    return False, f"{page.name}: is not what {PRIVACY} and {SUMMARY} give with this version"


def _checks_of_files(run: RecordedRun) -> Iterator[Check]:
    """Yield a line for each of the run's files whose digest the summary holds."""
    known, changed = run.summary.get("sha-256", {}), changed_files(run)
    for name in BOUND_FILES:
        if name not in known and (name != JOURNAL or os.path.lexists(run.folder / name)):
            yield False, f"{SUMMARY}: holds no digest of {name}"
    for name, digest in known.items():
        same = name not in changed
        yield same, f"{name}: SHA-256 {digest}" + ("" if same else ", and the file has another")


def _checks_of_ledger(
    run: RecordedRun, file: Path, accounts: Mapping[str, AgentLedger], covered: set[str]
) -> Iterator[Check]:
    """Yield lines on a ledger, and on each agent of the run that it has charged.

    The names of these agents are added to ``covered``.
    """
    ledger, experiment = LedgerFile(file.absolute()), run.summary.get("experiment", "")
    audit = ledger.verify()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if torn := audit.open_torn:
        yield (
            False,
            f"{file.name}: {torn} lines at its end cannot be read: a write that was interrupted, "
            "or an edit",
        )
    else:
        yield True, f"{file.name}: every line is as it was written; SHA-256 {digest}"
    heads = run.summary.get("ledger-heads", {})
    charged = False
    for name, account in accounts.items():
        held = Counter(dict(ledger.released(experiment, name).entries))
        if not held:
            continue
        charged, stated = True, Counter(dict(account.entries))
        covered.add(name)
        more = (held - stated).total()
        line = f"{file.name}: agent {name}: {held.total()} messages charged, "
        yield not more, line + (f"{more} of them not in the account" if more else "all accounted")
        head, what = heads.get(name, ""), f"{file.name}: agent {name}"
        yield _check_of_head(what, head, audit.heads.get(head) == (experiment, name))
    known = {*accounts, *run.privacy.unbound}
    named = {name for where, name in audit.heads.values() if where and where == experiment}
    for name in sort_names(named - known - {""}):
        charged = True
        yield (
            False,
            f"{file.name}: charges agent {one_line(name)} of this run, of which {PRIVACY} has no "
            "account",
        )
    if not charged:
        yield False, f"{file.name}: charges no message of this run"


def _check_of_head(what: str, head: str, is_there: bool) -> Check:
    """Return whether a ledger holds the run's and agent's line that its node returned the hash of.

    ``head`` is empty where the node returned none.
    """
    if not head:
        return True, f"{what}: its node returned no head, so that a cut would not be noticed"
    if is_there:
        return True, f"{what}: holds the head that its node returned, {head}"
    return (
        False,
        f"{what}: lacks the head that its node returned last, {head}: lines were cut off its end "
        "or written anew, or it is the file of another node",
    )
