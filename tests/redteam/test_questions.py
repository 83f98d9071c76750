"""What a node that keeps to itself answers to an enrolment question is no function of its records.

A coordinator may send any encoding with it: scalings by which a record overflows, lists of
categories of which a column has one or none, any of them one after the other.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from privet.agents import base
from privet.core import algorithms
from privet.data import problem
from privet.data.meaning import Meaning, digest
from privet.data.problem import problem_from_config
from privet.kernel import Told
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app
from privet.wire import ENROL
from privet.wire.contract import CONTRACT_VERSION, encode_settings
from redteam.test_data import OPEN, Site

ROWS = 6
SCHEMA = "[columns]\nage = [0, 120]\nill = ['flu', 'hiv', 'none']\ny = ['no', 'yes']\n"
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "budget": ({"max_epsilon": 5.0}, {"quiet": True}),
    "budget, asked openly": ({"max_epsilon": 5.0}, {"quiet": False}),
    "floor": ({**OPEN, "min_noise": 1.0}, {"quiet": False, "secure-sum": True}),
    "private run": (OPEN, {"quiet": True}),
    "secure sum": (OPEN, {"quiet": False, "secure-sum": True}),
}
"""A node's rules and how it is asked."""

Records = list[tuple[float, str]]


def table(folder: Path, records: Records) -> Path:
    """Write a table of an age and an illness a row; the labels take turns."""
    lines = [f"{age!r},{ill},{('no', 'yes')[row % 2]}" for row, (age, ill) in enumerate(records)]
    folder.mkdir()
    path = folder / "own.csv"
    path.write_text("\n".join(["age,ill,y", *lines]) + "\n")
    return path


def config(path: Path, schema: bool) -> dict[str, Any]:
    own = {"dataset": "csv", "data-path": str(path), "label-column": "y", "partition": "none"}
    if schema:
        file = path.with_name("schema.toml")
        file.write_text(SCHEMA)
        own["schema"] = str(file)
    return own


def site(path: Path, kind: str, schema: bool) -> Site:
    rules, _ = KINDS[kind]
    known = {"num_examples": ROWS} if rules.get("max_epsilon") else {}
    return Site(path.parent, {}, **config(path, schema), **{**rules, **known})


def said(reply: Message) -> Any:
    """Return all of an answer but the fresh key of a secure sum."""
    if reply.has_error():
        return reply.error.code, reply.error.reason
    record: Any = reply.content["privet"]
    return {key: value for key, value in dict(record).items() if key != "public-key"}


def asked(asking: Site, kind: str, text: str) -> list[Any]:
    """Return what a node says to a question with an encoding, and to a message of that run."""
    _, question = KINDS[kind]
    replies = [
        asking.enrol("dp-fedsgd", encoding=text, **question),
        asking.send_train("dp-fedsgd", encoding=digest(text), round_=1, experiment=digest(text)),
    ]
    answers = [said(reply) for reply in replies if reply.has_error()]
    return [said(replies[0]), *answers]


def settings_of(folder: Path, schema: bool) -> Meaning:
    """Return what the coordinator knows of the nodes' encodings by one of its own."""
    path = table(folder, [(50.0, "flu")] * ROWS)
    found = problem_from_config(config(path, schema), 0, 1, own=True).meaning
    assert isinstance(found, Meaning)
    return found


RECORDS = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 64.0, 77.0, 120.0]), st.sampled_from(["flu", "hiv"])),
    min_size=ROWS,
    max_size=ROWS,
)
NUMBERS = st.sampled_from([0.0, 1.0, 1000.0, 1e308, -1e308])
UNITS = st.sampled_from([5e-324, 1e-320, 70 / 1.7976931348623157e308, 1e-154, 1.0, 1e308])
ENCODINGS = st.fixed_dictionaries(
    {
        "age": st.fixed_dictionaries({}, optional={"range": st.just([0.0, 120.0])}),
        "ill": st.lists(st.sampled_from(["flu", "hiv", "none", "x"]), min_size=1, unique=True),
        "stated": st.booleans(),
        "turned": st.booleans(),
        "scale": st.none() | st.tuples(NUMBERS, UNITS),
        "rows": st.none() | st.tuples(NUMBERS, NUMBERS, NUMBERS),
        "digests": st.booleans(),
    }
)


def text_of(given: dict[str, Any], known: Meaning) -> str:
    ill = {"categories": given["ill"], **({"stated": True} if given["stated"] else {})}
    columns = {"age": {**given["age"], **({"stated": True} if given["stated"] else {})}, "ill": ill}
    if given["turned"]:
        columns = dict(reversed(columns.items()))
    numbers = ({"age": list(one)} if one else {} for one in (given["scale"], given["rows"]))
    meaning = Meaning(columns, known.label, known.settings, "", *numbers)
    return meaning.digests if given["digests"] else meaning.text


PLAIN = {"age": {}, "stated": False, "turned": False, "rows": None, "digests": False}
OLD = [(20.0, "flu")] * (ROWS - 1)
LARGEST = {**PLAIN, "ill": ["flu"], "scale": (0.0, 70 / 1.7976931348623157e308)}
"""Overflows where an age is above 70."""
HIV = {**PLAIN, "ill": ["hiv", "x"], "scale": (0.0, 1e-320)}
"""Always overflows, where it is taken."""


@pytest.mark.parametrize("schema", [False, True], ids=["no schema", "schema"])
@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(one=RECORDS, other=RECORDS, questions=st.lists(ENCODINGS, min_size=1, max_size=3))
@example(one=[*OLD, (77.0, "flu")], other=[*OLD, (64.0, "flu")], questions=[LARGEST])
@example(one=[(20.0, "hiv")] * ROWS, other=[(20.0, "flu")] * ROWS, questions=[HIV])
def test_no_answer_to_an_encoding_depends_on_the_records(
    kind: str, schema: bool, one: Records, other: Records, questions: list[dict[str, Any]]
) -> None:
    with TemporaryDirectory() as folder:
        known = settings_of(Path(folder) / "known", schema)
        sites = [
            site(table(Path(folder) / str(number), records), kind, schema)
            for number, records in enumerate((one, other))
        ]
        for given_ in questions:
            text = text_of(given_, known)
            first, second = (asked(each, kind, text) for each in sites)
            assert first == second
        assert sites[0].written.count(b"\n") == sites[1].written.count(b"\n")


TRAININGS = sorted(name for name, one in algorithms().items() if not one.load_agent().reads_tables)


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("divisor", ["", "agent", "federation"])
@pytest.mark.parametrize("name", TRAININGS)
def test_no_answer_of_a_node_that_declares_a_number_depends_on_how_many_records_it_holds(
    name: str, divisor: str, partitions: int, tmp_path: Path
) -> None:
    """Whatever the question says of privacy, as those of honest runs without noise do."""
    answers = []
    for rows in (ROWS, ROWS + 1):
        path = table(tmp_path / str(rows), [(20.0, "flu")] * rows)
        own = {**config(path, schema=True), **({"divisor": divisor} if divisor else {})}
        rules = {"max_epsilon": 5.0, "relation": "add-remove", "num_examples": 100}
        node = Site(path.parent, {}, **own, **rules, num_partitions=partitions)
        answers.append(
            [
                said(node.enrol(name, quiet=quiet, private=private))
                for quiet in (False, True)
                for private in (False, True)
            ]
        )
    assert answers[0] == answers[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_without_an_encoding_is_answered_the_same_way(kind: str, tmp_path: Path) -> None:
    """Of a table without a schema, which no private run or secure sum takes."""
    node = site(table(tmp_path / "a", [(20.0, "flu")] * ROWS), kind, schema=False)
    _, question = KINDS[kind]
    told = Told.SCALING if kind == "secure sum" else Told.PREPARATION
    known = settings_of(tmp_path / "known", schema=False)
    for text in ("", text_of(LARGEST, known), text_of(HIV, known), "no encoding"):
        reply = node.enrol("dp-fedsgd", encoding=text, **question)
        assert reply.error.reason.endswith(told)


def test_a_public_table_is_put_in_the_order_that_was_agreed_on(tmp_path: Path) -> None:
    """What needs no number of rows is still taken."""
    node = site(table(tmp_path / "a", [(20.0, "flu")] * ROWS), "budget", schema=True)
    own = settings_of(tmp_path / "known", schema=True)
    turned = Meaning(dict(reversed(own.columns.items())), own.label, own.settings)
    assert turned.digests != own.digests
    stated: Any = node.enrol("dp-fedsgd", encoding=turned.text).content["privet"]
    assert stated["encoding"] == turned.digests
    scaled = Meaning(turned.columns, turned.label, turned.settings, scale={"age": [0.0, 1e-320]})
    stated = node.enrol("dp-fedsgd", encoding=scaled.text).content["privet"]
    assert stated["encoding"] == own.digests  # not taken, and the coordinator sees it
    assert "one by numbers of rows" in node.said


def test_a_table_is_read_again_for_few_orders_of_its_columns_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for none of the settings that an encoding names, which rows are not read by."""
    node = site(table(tmp_path / "a", [(20.0, "flu")] * ROWS), "budget", schema=True)
    own = settings_of(tmp_path / "known", schema=True)
    read: list[Any] = []
    dataset = problem._dataset
    monkeypatch.setattr(problem, "_dataset", lambda *of: read.append(of) or dataset(*of))
    monkeypatch.setattr(base, "MOST_FORMS", 2)

    def ask(meaning: Meaning, row_norm: float) -> Message:
        text = meaning.within(row_norm).text
        return node.enrol("dp-fedsgd", encoding=text, **{"row-norm": row_norm})

    turned = replace(own, columns=dict(reversed(own.columns.items())))
    ill = {**own.columns["ill"], "categories": ["flu", "none", "hiv"]}
    other, third = (replace(each, columns={**each.columns, "ill": ill}) for each in (own, turned))
    for row_norm in (0.5, 1.0, 2.0, 4.0):
        for order in (own, turned, other):
            assert not ask(order, row_norm).has_error()
    assert len(read) == 3
    assert ask(third, 1.0).error.reason.endswith(Told.CONTRACT)
    assert "order of columns" in node.said
    assert not ask(turned, 1.0).has_error()
    assert len(read) == 3


def test_an_encoding_that_cannot_be_used_is_not_kept(tmp_path: Path) -> None:
    """A node that keeps nothing back is asked with a scaling that overflows, and then again."""
    rows = [(20.0 + row, "flu") for row in range(ROWS)]
    node = site(table(tmp_path / "a", rows), "private run", schema=False)
    known = settings_of(tmp_path / "known", schema=False)
    text = text_of({**PLAIN, "ill": ["flu"], "scale": (0.0, 1e-320)}, known)
    assert node.enrol("dp-fedsgd", quiet=False, encoding=text).has_error()
    (context,) = node.grid.contexts.values()
    assert "privet.encoding" not in context.state
    text = text_of({**PLAIN, "ill": ["flu"], "scale": (0.0, 2.0)}, known)
    assert node.enrol("dp-fedsgd", quiet=False, encoding=text).has_content()


ANALYSED = {
    "glm": {"formula": "y ~ C(age) + ill", "family": "gaussian"},
    "cox": {"formula": "C(age)", "time-column": "age", "event-column": "y"},
    "kaplan-meier": {"time-column": "age", "event-column": "y", "group-column": "age"},
    "describe": {"by": "age"},
    "durations": {"start-column": "age", "end-column": "y", "event-column": "y", "formula": "ill"},
    "noised": {"by": "age", "noised": True, "target-epsilon": 1.0},
    "curves": {
        "noised": True,
        "target-epsilon": 1.0,
        "horizon": 100.0,
        "time-unit": 10.0,
        "start-column": "age",
        "end-column": "y",
        "event-column": "y",
    },
    "noised, all columns": {"noised": True, "target-epsilon": 1.0},
}
"""Questions of analyses, by their settings."""


@pytest.mark.parametrize("schema", [False, True], ids=["no schema", "schema"])
@pytest.mark.parametrize("what", ANALYSED)
@pytest.mark.parametrize("masked", [False, True])
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(one=RECORDS, other=RECORDS)
@example(one=[*OLD, (77.0, "flu")], other=[*OLD, (64.0, "flu")])
def test_no_answer_of_a_node_with_a_budget_to_an_analysis_depends_on_the_records(
    what: str, schema: bool, masked: bool, one: Records, other: Records
) -> None:
    kinds = {"durations": "cox", "curves": "kaplan-meier"}
    name = kinds.get(what, what.partition(",")[0].replace("noised", "describe"))
    asked = {
        "contract": CONTRACT_VERSION,
        "protocol": name,
        "version": 1,
        "experiment": "e",
        "quiet": True,
        "secure-sum": masked,
        "settings": encode_settings({**ANALYSED[what], "secure-sum": masked}),
    }
    answers = []
    for records in (one, other):
        with TemporaryDirectory() as folder:
            rules = {"max-epsilon": 5.0, "delta": 1e-5, "ledger-path": f"{folder}/ledger"}
            node = config(table(Path(folder) / "own", records), schema)
            node |= {"partition-id": 0, "agent": "me", "num-examples": ROWS, **rules}
            grid = InlineGrid(configured_app(), [node], {})
            question = RecordDict({"privet": ConfigRecord(asked)})
            (reply,) = grid.send_and_receive([Message(question, 1000, ENROL)])
            answers.append(said(reply))
    assert answers[0] == answers[1]
    enrolled = what == "noised, all columns" and schema
    assert ("encoding" in answers[0]) == enrolled


@pytest.mark.parametrize("what", ["glm", "cox", "kaplan-meier", "describe"])
@pytest.mark.parametrize("schema", ["", "[columns]\nage = [0, 120]\ny = ['no', 'yes']\n"])
def test_no_answer_in_the_clear_holds_a_value_of_few_records(
    what: str, schema: str, tmp_path: Path
) -> None:
    of_names = {
        "glm": {"formula": "age ~ ill + C(age)"},
        "cox": {**ANALYSED["cox"], "formula": "ill + C(age)"},
        "kaplan-meier": {**ANALYSED["kaplan-meier"], "group-column": "ill"},
        "describe": {"by": "ill"},
    }
    records = [(20.0 + row, "flu") for row in range(ROWS - 1)] + [(97.0, "name of a patient")]
    node = {**config(table(tmp_path / "own", records), False), "partition-id": 0, "agent": "me"}
    if schema:
        (tmp_path / "schema.toml").write_text(schema)
        node["schema"] = str(tmp_path / "schema.toml")
    for rules in ({}, {"allow-analyses": False}, {"sums-only": True}):
        asked = {
            "contract": CONTRACT_VERSION,
            "protocol": what,
            "version": 1,
            "experiment": "e",
            "quiet": False,
            "secure-sum": False,
            "settings": encode_settings(of_names[what]),
        }
        grid = InlineGrid(configured_app(), [{**node, **rules}], {})
        question = RecordDict({"privet": ConfigRecord(asked)})
        (reply,) = grid.send_and_receive([Message(question, 1000, ENROL)])
        answer = str(said(reply))
        assert "patient" not in answer
        assert "97" not in answer
        assert reply.has_error() or (what == "describe" and not rules)
