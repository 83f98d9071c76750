"""The privacy statement of a private run: one page for the data officer, to print and sign."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

from privet.core import format as fmt
from privet.core.errors import listed, one_line
from privet.core.exits import EXIT_CODE, Exit
from privet.core.format import text
from privet.core.library import LIBRARY_VERSION
from privet.kernel import UNITS, AgentLedger
from privet.rounds.account import not_of
from privet.rounds.keep.place import CONTINUED
from privet.rounds.session import Round

from .document import printed
from .runs import (
    HISTORY,
    JOURNAL,
    PRIVACY,
    SUMMARY,
    RecordedPrivacy,
    RecordedRun,
    ReportUsageError,
    data_of,
    diverged,
    settings_of,
)
from .tables import SAMPLER, entries_of

_SCALE = "As a scale, ε = 0 gives nothing away, around 1 protects strongly, above 10 weakly."
_SHOWN_COLUMNS = 40
_SHOWN_AGENTS = 12
BOUND_FILES = ("model.npz", HISTORY, JOURNAL)
"""The files of a run folder whose digests stand in its statement.

The journal tells of a run that asked agents after its end, in a round that no history has yet."""
_LINES = ("Name and function", "Date and place", "Signature")


def in_words(entry: Mapping[str, Any], relation: str) -> str:
    """Return an explanation of an epsilon for readers who do not know it, and its scale.

    The figure is the probability that the best test of two equally likely neighbouring data sets
    names the right one. Where the account is exactly Gaussian, of parameter mu, the releases
    distinguish the two as well as one draw of N(0, 1) or N(mu, 1) does: Phi(mu / 2) (J. Dong,
    A. Roth, W. Su, Gaussian differential privacy, 2022). For any other account it is at most
    (e^epsilon + delta) / (1 + e^epsilon), since the two errors of a test satisfy
    a + e^epsilon b >= 1 - delta and e^epsilon a + b >= 1 - delta (P. Kairouz, S. Oh,
    P. Viswanath, The composition theorem for differential privacy, 2015, theorem 2.1).
    """
    epsilon, delta, mu = (entry.get(key) for key in ("epsilon", "delta", "mu"))
    if not (isinstance(epsilon, int | float) and isinstance(delta, int | float)):
        return ""
    if math.isnan(epsilon) or not 0 <= delta <= 1:
        return ""
    if entry.get("method") == "gaussian" and isinstance(mu, int | float):
        wrong = math.erfc(mu / math.sqrt(8.0)) / 2.0
        right = f"in {100 * (1 - wrong):.3g} %"
    else:
        wrong = (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
        right = f"in {math.ceil(1000 * (1 - wrong)) / 10:g} %"
    if wrong < 1e-3:
        right = "almost always"
    known, question = {
        "add-remove": ("all other records", "whether a given record was there"),
        "replace-agent": (
            "the other agents' records",
            "which of two sets of records a given agent had",
        ),
    }.get(relation, ("all other records", "which of two values a given record had"))
    return (
        f"Someone who sees every message and knows {known} could at best guess "
        f"{question}, and be right {right}; tossing a coin is right in 50 %. {_SCALE}"
    )


def page_of(run: RecordedRun) -> bytes:
    """Return the statement of one private run as a self-contained HTML page for A4 or letter paper.

    It says only what ``privacy.json`` and ``summary.json`` of the run say; no measured accuracy and
    no baseline stands in it. The files are not compared with each other.

    Raises
    ------
    ReportUsageError
        If the run is not private or its model of no use, or it has not ended: nothing can be stated
        of it then.
    """
    require_private([run])
    blocks = [_claim(run, entry) for entry in entries_of(run.privacy)]
    signed = "".join(f"<tr><th>{line}</th><td></td></tr>" for line in _LINES)
    body = (
        f"<h1>Privacy statement</h1>{_rows(_about(run))}{''.join(blocks)}"
        f'<table class="sign">{signed}</table>'
    )
    return printed(f"Privacy statement of {run.name}", body).encode()


def require_private(runs: Sequence[RecordedRun]) -> RecordedRun:
    """Return the one private run with a model of use (raises ``ReportUsageError``)."""
    if len(runs) != 1:
        raise ReportUsageError(f"--statement: a statement is about one run, found {len(runs)}")
    (run,) = runs
    if run.privacy.private is not True or not run.privacy.entries:
        why = run.privacy.reason.removeprefix("not private: ") or "it has no privacy account"
        raise ReportUsageError(
            f"--statement: {run.name} is not private: {why}; there is none to state"
        )
    if os.path.lexists(run.folder / CONTINUED):
        raise ReportUsageError(
            f"--statement: {run.name} went on in another folder, which {CONTINUED} names: only "
            "that run's account holds all that was spent"
        )
    if type(run.summary.get(EXIT_CODE)) is not int:
        raise ReportUsageError(
            f"--statement: {run.name} has not ended: its {SUMMARY} is not there, or has no "
            f"{EXIT_CODE}; resume it"
        )
    if why := _of_no_use(run.summary[EXIT_CODE], diverged(run), folded=any(run.participants)):
        raise ReportUsageError(f"--statement: {run.name} has no model to state this of: {why}")
    if not all(map(says_something, run.privacy.entries)):
        raise ReportUsageError(
            f"--statement: delta of {run.name} and what the drawing of noise adds to it come to 1 "
            "or more, which states nothing: add noise"
        )
    return run


def accounts_of(run: RecordedRun) -> tuple[dict[str, AgentLedger], list[str]]:
    """Return agents' accounts by the releases of a run, and lines on those that are none."""
    accounts, faults = {}, []
    for name, agent in run.privacy.agents.items():
        try:
            said = json.dumps(agent.get("releases"), separators=(",", ":"))  # as it was read
            accounts[name] = AgentLedger.from_json(said)
        except (ValueError, ArithmeticError) as error:
            why = one_line(str(error))
            faults.append(f"{PRIVACY}: agents.{name}.releases: not an account ({why})")
    return accounts, faults


def contradictions(run: RecordedRun, accounts: Mapping[str, AgentLedger]) -> Iterator[str]:
    """Yield a line for each agent that took part more often than its account has messages, and
    for each account of another relation than the run's."""
    for name, rounds in Counter(name for names in run.participants for name in names).items():
        messages = accounts[name].messages if name in accounts else 0
        if messages < rounds and name not in run.privacy.unbound:
            line = f"agent {name} took part in {rounds} rounds, and its account has {messages}"
            yield f"{PRIVACY}: {line} messages"
    for name, one in accounts.items():
        if one.totals.relation not in (None, _relation(run)):
            yield (
                f"{PRIVACY}: agents.{name}.releases are under {one.totals.relation}, and the run "
                f"protects by {_relation(run)}"
            )


def _relation(run: RecordedRun) -> str:
    return str(settings_of(run).get("relation", "replace-one"))


def has_statement(
    privacy: Mapping[str, Any], ended: Mapping[str, Any], history: Sequence[Round]
) -> bool:
    """Return whether a statement can be made of a run: it is private, and its model of use.

    ``privacy`` is the account as ``privacy.json`` has it, ``ended`` the entries of ``summary.json``
    on its end: the exit code, and how it diverged, whatever ended it after that.
    """
    folded = any(done.participants for done in history)
    said = privacy["private"] and all(map(says_something, privacy["accounts"]))
    how = str(ended.get("diverged", ""))
    return bool(said) and not _of_no_use(ended[EXIT_CODE], how, folded=folded)


def _of_no_use(code: int, how: str, *, folded: bool) -> str:
    """Return why the model of a run that ended with this exit code is of no use, "" where it is.

    ``how`` says how it diverged, if it did.
    """
    if not folded:
        return "no upload was folded"
    if how or code == Exit.FRUITLESS:
        return "it diverged" + (f", {one_line(how)}" if how else "")
    return ""


def says_something(entry: Mapping[str, Any]) -> bool:
    """Whether an account's total delta is below 1: at 1 every mechanism has epsilon 0."""
    values = (entry.get("delta", 0.0), entry.get("drawn-delta", 0.0))
    return sum(value for value in values if isinstance(value, int | float)) < 1


def _rows(values: Mapping[str, str]) -> str:
    """Return a table of two columns; the values are HTML."""
    cells = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in values.items())
    return f"<table>{cells}</table>"


def _about(run: RecordedRun) -> dict[str, str]:
    """Return who took part in what, with which library."""
    summary, settings = run.summary, settings_of(run)
    agents = run.privacy.agents
    ended = str(summary.get("ended", ""))[:16].replace("T", " ")
    played = f"{len(run.rounds)} rounds" + (f", ended {ended}" if ended else "")
    where = {
        "True": "a simulation, in which one process holds the records of all agents",
        "False": "nodes of their own",
    }.get(str(summary.get("simulated")), "")
    values = {
        "Run": f"{text(run.name)}, {text(played)}",
        "Who": text(f"{len(agents)} agents" + (f"; {where}" if where else "")),
        "Not of": text(_not_of(run.privacy)),
        "Purpose": text(summary.get("notes") or ""),
        "What": text(f"{settings.get('algorithm')} on {data_of(settings)}"),
        "Records": text(_records(summary)),
        "Taking part": text(_participation(run)),
        "Noise": text(_noise(run)),
        "Trained": text(_trained(summary)),
        "Columns": _schema(summary),
        "Files": _digests(summary),
        "Ledgers": _heads(summary),
        "Library": _library(summary),
    }
    return {key: value for key, value in values.items() if value}


def _not_of(privacy: RecordedPrivacy) -> str:
    """Return on whose records the figures are not, empty where they are on all agents'."""
    lines = [not_of(privacy.unbound)] if privacy.unbound else []
    for name in privacy.apart:
        own = fmt.epsilon(privacy.agents.get(name, {}).get("epsilon"))
        lines.append(f"agent {name} by its own account: {own}, which is in no figure below")
    return "; ".join(lines)


def _records(summary: Mapping[str, Any]) -> str:
    """Return how many records each agent stated, "" where the summary does not say."""
    records = summary.get("records")
    if not isinstance(records, Mapping) or not records:
        return ""
    each = [f"agent {name}: {count}" for name, count in list(records.items())[:_SHOWN_AGENTS]]
    left = len(records) - len(each)
    each += [f"{left} more agents"] if left else []
    return f"{sum(records.values())} in all; {', '.join(each)}"


def _participation(run: RecordedRun) -> str:
    """Return in how many rounds the agents took part, "" where nobody did."""
    counts = Counter(name for names in run.participants for name in names)
    if not counts:
        return ""
    least, most = min(counts.values()), max(counts.values())
    each = f"{most}" if least == most else f"{least} to {most}"
    return f"each agent in {each} of {len(run.rounds)} rounds"


def _noise(run: RecordedRun) -> str:
    """Return the bound of what a record moves and the least noise beside it, "" where unknown.

    The noise of a release is its scale over its sensitivity: the deviation of Gaussian noise, the
    scale b of Laplace noise, in units of the most that the protected change can move.
    """
    clip = settings_of(run).get("clip")
    clipped = isinstance(clip, float) and clip > 0
    bound = f"each contribution is cut to a clip of {clip:g}" if clipped else ""
    accounts, _ = accounts_of(run)
    scaled = [
        release.scale / release.sensitivity
        for account in accounts.values()
        for release, _ in account.entries
        if release.sensitivity > 0
    ]
    least = min(scaled, default=0.0)
    most = "the most that the protected change can move it"
    noise = f"noise of at least {least:.3g} times {most}" if least else ""
    return "; ".join(filter(None, (bound, noise)))


def _chance(entry: Mapping[str, Any]) -> str:
    """Return delta in words, rounded so that it promises no more; "" where it is 0 or unknown."""
    values = (entry.get("delta"), entry.get("drawn-delta", 0.0))
    total = sum(value for value in values if isinstance(value, int | float))
    if not 0 < total < 1:
        return ""
    one_in = Decimal(1 / total)
    step = Decimal(1).scaleb(max(one_in.adjusted() - 1, 0))
    rounded = int(one_in.quantize(step, rounding=ROUND_FLOOR))
    return f"; δ is the chance that it does not hold, at most 1 in {rounded:,}"


def _trained(summary: Mapping[str, Any]) -> str:
    """Return which arrays of the model are trained, empty where all are."""
    names = summary.get("trained")
    if not names:
        return ""
    return f"{len(names)} arrays of the model: {listed(map(str, names))}"


def _schema(summary: Mapping[str, Any]) -> str:
    """Return the public schema, by its digest and columns, "" where there is none."""
    schema = summary.get("schema")
    if not isinstance(schema, Mapping):
        return ""
    columns = schema.get("columns") or {}
    listed = [
        f"{name} {low_high[0]:g} to {low_high[1]:g}"
        if len(low_high) == 2 and all(isinstance(value, int | float) for value in low_high)
        else f"{name}: {', '.join(map(str, low_high))}"
        for name, low_high in list(columns.items())[:_SHOWN_COLUMNS]
    ]
    more = [f"{len(columns) - _SHOWN_COLUMNS} more"] if len(columns) > _SHOWN_COLUMNS else []
    ranges = "; ".join([*listed, *more])
    digest = f"<br><small>SHA-256 of the file: {text(schema.get('sha-256'))}</small>"
    return f"by a schema that the undersigned takes to be public: {text(ranges)}{digest}"


def _claim(run: RecordedRun, entry: Mapping[str, Any]) -> str:
    """Return what is promised towards one observer, and what the promise rests on."""
    relation, epsilon = _relation(run), entry.get("epsilon")
    # `privet statement --verify` reads it.
    exact = f"<small>(exactly {epsilon!r})</small>" if isinstance(epsilon, float) else ""
    values = {
        "Towards": f"the {text(entry['to'])}",
        "Protects": text(f"{UNITS.get(relation, relation)} ({relation})"),
        "Promise": f"<strong>ε = {text(fmt.epsilon(epsilon))}</strong> at "
        f"<strong>δ = {text(fmt.summed_delta(entry))}</strong>, the largest of any agent, "
        f"by the method {text(fmt.setting(entry.get('method')))}{text(_chance(entry))} {exact}",
        "In words": text(in_words(entry, relation)),
        **_person(entry),
        "Provided that": "".join(
            f"<li>{_in_small_print(line)}</li>" for line in entry.get("assumptions") or ()
        ).join(("<ul>", "</ul>")),
    }
    return _rows(values)


def _in_small_print(assumption: str) -> str:
    """Return an assumption as HTML, small where it is of the noise's sampler."""
    return f"<small>{text(assumption)}</small>" if assumption in SAMPLER else text(assumption)


def _person(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the row on a person of several records, none where the run names no number."""
    person = entry.get("person")
    if not isinstance(person, Mapping):
        return {}
    epsilon, delta = fmt.epsilon(person.get("epsilon")), fmt.summed_delta(person)
    said = f"of at most {person.get('rows')} records: ε = {epsilon} at δ = {delta}"
    return {"One person": text(said)}


def digests_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the files of a run that a statement speaks of, those that are there."""
    files = (folder / name for name in BOUND_FILES)
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()
    }


def changed_files(run: RecordedRun) -> list[str]:
    """Return the files of which the run's summary holds another digest."""
    found = digests_of(run.folder)
    known = run.summary.get("sha-256", {})
    return [name for name, digest in known.items() if found.get(name) != digest]


def _library(summary: Mapping[str, Any]) -> str:
    """Return the library's version, and the digest of its code where the summary has one."""
    version = text(f"Privet (flwr-privet) {summary.get(LIBRARY_VERSION, 'not recorded')}")
    if not (code := summary.get("code")):
        return version
    return f"{version}<br><small>SHA-256 of its code at the coordinator: {text(code)}</small>"


def _digests(summary: Mapping[str, Any]) -> str:
    """Return the digests of the run's files, "" where its summary has none."""
    digests = summary.get("sha-256")
    if not isinstance(digests, Mapping):
        return ""
    lines = (
        f"{text(name)}<br><small>SHA-256: {text(one)}</small>" for name, one in digests.items()
    )
    return "<br>".join(lines)


def digest_of_heads(heads: Mapping[str, str]) -> str:
    """Return the SHA-256 of the lines "NAME HEAD", one an agent, in the order of their names."""
    lines = "".join(f"{name} {heads[name]}\n" for name in sorted(heads))
    return hashlib.sha256(lines.encode()).hexdigest()


def _heads(summary: Mapping[str, Any]) -> str:
    """Return the row on the heads that nodes returned of their ledgers, "" without any."""
    heads = summary.get("ledger-heads")
    if not heads:
        return ""
    digest = f"<br><small>SHA-256 of their heads: {text(digest_of_heads(heads))}</small>"
    return f"of {text(len(heads))} agents, to their last replies{digest}"
