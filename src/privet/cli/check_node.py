"""``privet check-node``: what a node's configuration means, before the node is connected."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from privet.core import ConfigError
from privet.core.errors import near_path

if TYPE_CHECKING:
    from privet.kernel import NodeRules

GOOD, WEAK, WRONG = 0, 1, 2
_MARKS = ("ok  ", "weak", "bad ")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Said(NamedTuple):
    """A line, and how bad it is: 0 as it should be, 1 weak, 2 the node cannot work with it."""

    level: int
    text: str


def check_node(
    node_config: Annotated[
        str,
        typer.Argument(
            metavar="NODE_CONFIG",
            help="What the SuperNode's --node-config will be: keys and values, or a TOML file.",
        ),
    ],
    trusted_entities: Annotated[
        Path | None,
        typer.Option(help="The file that the SuperNode's --trusted-entities will name."),
    ] = None,
) -> None:
    """Show a node's rules, keys and paths, and what a coordinator could ask of it.

    Run it as the user of the node. It changes nothing. Exit code 0: a private run is held to the
    node's own limits; 1: something is weak; 2: the node would refuse everything.
    """
    from privet.kernel import NodeRules
    from privet.wire.flower_internals import dropped_words
    from privet.wire.flower_internals import node_config as parsed

    if dropped := dropped_words(node_config):
        raise ConfigError(
            f"{' '.join(dropped)}: no key=value and no .toml file: a SuperNode passes over it "
            "without a word"
        )
    try:
        config = parsed(node_config)
        rules = NodeRules.from_node_config(config)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    parts = {
        "rules": [*_rules(rules), *_delta(rules, config)],
        "keys": _keys(config),
        "paths": _paths(rules, config, trusted_entities),
        "a coordinator could": _asks(rules, config, trusted_entities),
    }
    worst = GOOD
    for title, lines in parts.items():
        for place, said in enumerate(lines):
            if not place:
                typer.echo(f"{title}:")
            typer.echo(f"  {_MARKS[said.level]} {said.text}")
            worst = max(worst, said.level)
    raise typer.Exit(worst)


def _rules(rules: NodeRules) -> Iterator[Said]:
    """Yield the rules that hold whatever a run asks."""
    if not rules.limited:
        yield Said(WEAK, "no limits: none of max-epsilon, delta, ledger-path, min-noise, max-clip")
    if rules.max_epsilon is None:
        yield Said(WEAK, "max-epsilon: none, so nothing adds up what all runs together spend")
    else:
        yield Said(GOOD, f"max-epsilon: {rules.max_epsilon:g} at delta {rules.delta:g}, for life")
    for name, value, without in (
        ("min-noise", rules.min_noise, "any noise that the budget pays for"),
        ("max-clip", rules.max_clip, "any bound"),
    ):
        yield Said(GOOD, f"{name}: {f'{value:g}' if value is not None else f'none, {without}'}")
    declared = rules.num_examples or "as many as there are, which the coordinator is told"
    yield Said(GOOD, f"relation: {rules.relation}; num-examples: {declared}")
    yield from _analyses(rules)
    if rules.least_trusted:
        yield Said(
            GOOD, f"least-trusted: secure sums with {rules.least_trusted} pinned peers or more"
        )
    if rules.colluders >= 0:
        yield Said(GOOD, f"trust: sums of pinned peers, up to {rules.colluders} against this node")
    if rules.max_steps:
        yield Said(GOOD, f"max-steps: {rules.max_steps} local steps in a round")
    if rules.min_seconds_between:
        yield Said(GOOD, f"min-seconds-between: {rules.min_seconds_between:g}")
    if rules.reply_seconds:
        yield Said(GOOD, f"reply-seconds: {rules.reply_seconds:g}")


def _analyses(rules: NodeRules) -> Iterator[Said]:
    """Yield what un-noised analyses may have of the node."""
    own = rules.analyses
    if rules.limited:
        yield Said(GOOD, "analyses: noised descriptions and curves alone, under the budget")
    elif not own.allowed:
        yield Said(GOOD, "analyses: none, as allow-analyses = false")
    else:
        sums = "in secure sums alone (sums-only)" if own.sums_only else "in the clear or masked"
        cells = f"min-records {own.min_records}, min-cell {own.min_cell}"
        yield Said(GOOD, f"analyses: un-noised, {sums}; {cells}")
        pooled = "leaves" if own.pooled_baseline else "does not leave"
        yield Said(GOOD, f"pooled-baseline: the baseline hazard {pooled} this node")
        most = str(own.most) if own.most else "any number, as max-analyses sets none"
        if not own.most and own.min_cell > 1 and not own.sums_only:
            most += ": which of them min-cell refuses can be searched for a row's value"
        yield Said(GOOD if own.most else WEAK, f"max-analyses: {most}")
    if own.path:
        yield _written("analyses-path", Path(own.path))


def _delta(rules: NodeRules, config: Mapping[str, Any]) -> Iterator[Said]:
    """Yield whether the budget's delta is small enough for the node's number of examples."""
    from privet.data import DataError, problem_from_config
    from privet.data.sql.cohorts import SQL
    from privet.kernel import BudgetRefused

    if rules.max_epsilon is None or rules.relation == "replace-agent":
        return
    count, data = rules.num_examples, str(config.get("data-path", ""))
    read = config.get("dataset") != SQL and Path(data).exists()  # a database counts for a run
    if not count and "partition-id" in config and read and data:
        agents = int(config.get("num-agents", config.get("num-partitions", 0)))
        try:
            share = problem_from_config(config, int(config["partition-id"]), agents, own=True)
            count = share.num_examples
        except DataError as error:
            yield Said(WRONG, str(error))
            return
    try:
        rules.require_delta(count)
    except BudgetRefused as error:
        yield Said(WRONG, str(error))
        return
    high = rules.delta * count > 0.1
    tenth = f"; a tenth of 1 / {count}, its examples, is usual at most" * high
    most = math.ceil(1 / rules.delta)
    text = f"delta: {rules.delta:g}, which a node of {most} examples or more refuses{tenth}"
    yield Said(WEAK if high else GOOD, text)


def _keys(config: Mapping[str, Any]) -> Iterator[Said]:
    """Yield which keys there are, and those that nothing of this library reads."""
    from privet.agents.base import LOCAL_KEYS
    from privet.data import DataError
    from privet.data.settings import DATA_KEYS, require_used
    from privet.kernel.node_rules import KEYS, OF_NODES

    data, local = sorted(DATA_KEYS & config.keys()), sorted({*LOCAL_KEYS} & config.keys())
    try:
        require_used(config)
    except DataError as error:
        yield Said(WRONG, str(error))
    if data:
        yield Said(GOOD, f"its own data, whatever a run config says: {', '.join(data)}")
    if local:
        yield Said(GOOD, f"its own settings of the local steps: {', '.join(local)}")
    other = sorted(config.keys() - {*KEYS, *OF_NODES, *LOCAL_KEYS} - DATA_KEYS)
    if other:
        yield Said(WEAK, f"not read by Privet, so an app of your own has to: {', '.join(other)}")
    if "agent" not in config:
        name = config.get("partition-id", "its node id, which Flower draws")
        yield Said(GOOD, f"agent: no name given, so it is {name}")


def _paths(rules: NodeRules, config: Mapping[str, Any], trusted: Path | None) -> Iterator[Said]:
    """Yield whether the node can use the files that it names, and who else may."""
    from privet.data.sql.cohorts import SQL, URLS

    if rules.ledger_path is not None:
        yield from _ledger(Path(rules.ledger_path), rules.delta)
    if rules.trust_files is not None:
        yield _trust(rules, str(config.get("agent", config.get("partition-id", ""))))
    if (state := config.get("state-path")) is not None:
        yield _written("state-path", Path(str(state)))
    elif rules.min_seconds_between:
        yield Said(WRONG, "min-seconds-between needs state-path, beside which the time is kept")
    data = str(config.get("data-path", ""))
    if data and not data.startswith(("hf:", *URLS)):
        path = Path(data)
        readable = path.exists() and os.access(path, os.R_OK)
        missing = "cannot be read" if path.exists() else f"no such file{near_path(path)}"
        yield Said(*(GOOD, f"data-path: {path}") if readable else (WRONG, f"{path}: {missing}"))
    if schema := str(config.get("schema", "")):
        yield _schema(schema, private=rules.limited)
    if config.get("dataset") == SQL:
        yield from _cohorts(data, config)
    if trusted is not None and not trusted.is_file():
        yield Said(WRONG, f"--trusted-entities {trusted}: no such file{near_path(trusted)}")


def _schema(path: str, *, private: bool) -> Said:
    """Return whether a schema can be read, and be public where the node has limits."""
    from privet.data import DataError
    from privet.data.tables.schema import read_schema

    try:
        schema = read_schema(path)
    except DataError as error:
        return Said(WRONG, str(error))
    if private and schema.from_records:
        return Said(WRONG, f"{path}: {schema.dependence}")
    return Said(GOOD, f"schema: {path}, {len(schema.columns)} columns")


def _cohorts(data: str, config: Mapping[str, Any]) -> Iterator[Said]:
    """Yield the cohorts that runs may name; no database is asked."""
    from privet.data import DataError
    from privet.data.sql.cohorts import URLS, cohort_names

    if "state-path" not in config:
        yield Said(WRONG, "dataset = sql needs state-path, beside which a run's rows are kept")
    if data.startswith(URLS):
        yield Said(WRONG, "data-path is a URL, of which a run could name any table: name a file")
        return
    try:
        names = cohort_names(data)
    except DataError as error:
        yield Said(WRONG, str(error))
        return
    if Path(data).stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield Said(WEAK, f"{data}: others may write it, and so say which rows a run reads")
    only = str(config.get("cohort", ""))
    if only and only not in names:
        yield Said(WRONG, f"cohort = {only}: {data} has {', '.join(names)}")
        return
    yield Said(GOOD, f"cohorts that a run may name: {only or ', '.join(names)}")
    yield Said(GOOD, f"their rows: as long as a run lasts in {config.get('state-path')}.cohorts")


def _ledger(path: Path, delta: float) -> Iterator[Said]:
    from privet.kernel import LedgerError, LedgerFile

    yield _written("ledger-path", path)
    if path.exists():
        try:
            spent = LedgerFile(path).spent(delta)
        except LedgerError as error:
            yield Said(WRONG, str(error))
        else:
            epsilon = math.inf if spent.epsilon is None else spent.epsilon
            yield Said(GOOD, f"spent: epsilon {epsilon:.6g} in {spent.messages} messages")


def _written(key: str, path: Path) -> Said:
    """Return whether a file that the node writes can be, and whether others may write it too."""
    if not path.is_absolute():
        return Said(WRONG, f"{key}: {path} is no absolute path")
    if not path.parent.is_dir():
        return Said(WRONG, f"{key}: there is no folder {path.parent}{near_path(path.parent)}")
    there = path if path.exists() else path.parent
    if not os.access(there, os.R_OK | os.W_OK):
        return Said(WRONG, f"{key}: {there} cannot be read and written by this user")
    if path.exists() and not path.is_file():
        return Said(WRONG, f"{key}: {path} is not a regular file")
    new = "" if path.exists() else " (not there yet)"
    for each, others in ((path, _OTHERS), (path.parent, stat.S_IWOTH)):
        mode = stat.S_IMODE(each.stat().st_mode) if each.exists() else 0
        if mode & others and not mode & stat.S_ISVTX:
            return Said(WEAK, f"{key}: {each} is open to others (mode {mode:04o})")
    return Said(GOOD, f"{key}: {path}{new}")


def _trust(rules: NodeRules, agent: str) -> Said:
    from privet.kernel import BudgetRefused

    try:
        trust = rules.trust(agent)
    except BudgetRefused as error:
        return Said(WRONG, f"trust-key, trust-peers: {error.__cause__}")
    count = 0 if trust is None else len(trust.peers)
    return Said(GOOD, f"trust-key, trust-peers: {count} peers are pinned")


def _asks(rules: NodeRules, config: Mapping[str, Any], trusted: Path | None) -> Iterator[Said]:
    """Yield what a coordinator could ask of this node under its rules."""
    from privet.data.settings import DATA_KEYS

    if trusted is None:
        yield Said(
            WEAK,
            "send other code than Privet's, which need not keep any rule: start the SuperNode with "
            "--trusted-entities (docs/privacy.md, Pin the code)",
        )
    else:
        yield Said(GOOD, f"send only apps that a key in {trusted} has signed")
    if rules.limited:
        noise = "any noise" if rules.min_noise is None else f"noise of {rules.min_noise:g} or more"
        clip = "any clip" if rules.max_clip is None else f"a clip up to {rules.max_clip:g}"
        yield Said(GOOD, f"ask for private uploads, with {clip} and {noise}")
    else:
        yield Said(WEAK, "ask for evaluations and uploads without noise, in any run not private")
    if rules.max_epsilon is None:
        yield Said(WEAK, "ask as often as it likes: nothing stops it")
    elif not rules.min_seconds_between:
        yield Said(GOOD, "spend all of max-epsilon in one night: min-seconds-between slows it down")
    if not rules.max_steps:
        yield Said(GOOD, "ask for up to 100,000 local steps in a round: max-steps bounds them")
    if rules.allow_run_data:
        yield Said(WEAK, "name any file that this user can read: allow-run-data = true")
    elif not DATA_KEYS & config.keys():
        yield Said(GOOD, "choose which of the data sets that need no file the bundled app reads")
    if not rules.reply_seconds:
        yield Said(
            GOOD,
            "see how long a task takes: reply-seconds holds every reply back, and asynchronous or "
            "sampled private runs of code of your own are refused without it",
        )
