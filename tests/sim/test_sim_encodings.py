"""What the columns of sites mean is the same before anything is averaged, or a site is not in."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from sklearn.linear_model import LogisticRegression

from privet.client_apps import (
    LoopParticipant,
    Participant,
    SklearnModel,
    SklearnProblem,
    client_app,
)
from privet.core import RunError
from privet.data import problem_from_config, problem_from_context
from privet.data.meaning import ENCODING_RECORD, Meaning
from privet.problems import L2, BinaryLogistic
from privet.rounds.failure import FailureCode
from privet.server_apps import execute, read_config
from privet.server_apps.model_file import load_model
from privet.sim.cohort import CohortGrid
from privet.sim.engine import InlineGrid
from privet.sim.inline import app_of, configured_app, run_inline
from privet.strategies import FedPLT
from privet.wire import ENROL
from privet.wire.contract import CONTRACT_VERSION
from support.cli import privet
from support.simulation import run_simulation
from support.sites import COLUMNS, PERMUTED, SCHEMA, nodes, rows, table, train, turned_away
from support.told import own_log

BERN, GRAZ, LINZ = rows(80, 1), rows(120, 2), rows(60, 3)
PRIVATE: dict[str, Any] = {
    "target_epsilon": 8.0,
    "clip": 1.0,
    "local_solver": "noisy-gd",
    "row_norm": 3.0,
}
SEEDED: dict[str, Any] = {**PRIVATE, "noise_seed": 3}


def pooled_optimum(*sites: dict[str, list[Any]], wards: str = "ab", weight: float = 0.05) -> Any:
    """Return the minimiser of the sum of the sites' mean losses on columns that are standardised
    with the numbers of all their rows, by Newton's method written out here."""
    whole = {name: np.concatenate([one[name] for one in sites]) for name in COLUMNS}
    parts = []
    for site in sites:
        numbers = [
            (np.array(site[name]) - whole[name].mean()) / whole[name].std()
            for name in ("age", "sodium")
        ]
        ward = [np.array([float(one == each) for one in site["ward"]]) for each in wards[1:]]
        signs = np.array([1.0 if one == "1" else -1.0 for one in site["died"]])
        parts.append((np.column_stack([*numbers, *ward, np.ones(len(signs))]), signs))
    dim = 2 + len(wards)
    x = np.zeros(dim)
    for _ in range(50):
        gradient, hessian = len(parts) * weight * x, len(parts) * weight * np.eye(dim)
        for design, signs in parts:
            share = 1 / (1 + np.exp(signs * (design @ x)))
            gradient = gradient - design.T @ (signs * share) / len(signs)
            curvature = share * (1 - share) / len(signs)
            hessian = hessian + (design * curvature[:, None]).T @ design
        x = x - np.linalg.solve(hessian, gradient)
    return x


@pytest.mark.parametrize("engine", [InlineGrid, CohortGrid])
def test_plain_sites_scale_by_all_rows_so_that_the_model_is_the_pooled_one(
    tmp_path: Path, engine: Any
) -> None:
    sites = nodes(tmp_path, [table(one) for one in (BERN, GRAZ, LINZ)])
    model, strategy = train(sites, 300, engine=engine, rho=1.0)
    assert not turned_away(strategy)
    assert model == pytest.approx(pooled_optimum(BERN, GRAZ, LINZ), abs=1e-9)


@pytest.mark.parametrize("engine", [InlineGrid, CohortGrid])
def test_sites_that_lack_categories_have_the_pooled_model(
    tmp_path: Path, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    given = [
        {**one, "ward": [wards[at % len(wards)] for at in range(len(one["ward"]))]}
        for one, wards in ((BERN, "abc"), (GRAZ, "ab"), (LINZ, "ac"))
    ]
    caplog.set_level("INFO", logger="flwr.privet")
    sites = nodes(tmp_path / "lacking", [table(one) for one in given])
    model, strategy = train(sites, 300, engine=engine, rho=1.0, dim=5)
    assert not turned_away(strategy)
    assert model == pytest.approx(pooled_optimum(*given, wards="abc"), abs=1e-9)
    assert "categories of a single agent" not in caplog.text
    train(nodes(tmp_path / "two", [table(one) for one in given[:2]]), 1, engine=engine, dim=5)
    assert "categories of a single agent: column ward: 'c' in 'bern'" in caplog.text
    schemas = (SCHEMA.replace('["a", "b"]', '["a", "b", "c"]'), SCHEMA)
    sites = nodes(tmp_path / "stated", [table(one) for one in given[:2]], schemas)
    _, strategy = train(sites, 1, engine=engine, dim=5)
    (why,) = turned_away(strategy)
    assert "ward = a, b" in why


@pytest.mark.parametrize("more", [1, 5000])
def test_categories_that_one_agent_states_turn_no_other_away(tmp_path: Path, more: int) -> None:
    """Its statement alone is false: its model has the length of the others'."""

    class Lying(InlineGrid):
        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            node = self.contexts[message.metadata.dst_node_id].node_config
            if message.metadata.message_type == ENROL and node["partition-id"] == 1 and reply:
                record = reply.content["privet"]
                stated = Meaning.from_text(str(record["encoding"]))
                known = [*stated.columns["ward"]["categories"], *(f"x{i}" for i in range(more))]
                columns = {**stated.columns, "ward": {"categories": known}}
                record["encoding"] = replace(stated, columns=columns).text
            return reply

    sites = nodes(tmp_path, [table(one) for one in (BERN, GRAZ, LINZ)])
    _, strategy = train(sites, 2, engine=Lying)
    (why,) = turned_away(strategy)
    assert "x0" in why
    assert all(len(done.participants) == 2 for done in strategy.run.session.history)


def test_a_question_adds_no_more_columns_to_a_nodes_rows_than_it_can_hold(tmp_path: Path) -> None:
    def enrolled(wards: int) -> Message:
        (node,) = nodes(tmp_path, [table(BERN)])
        grid = InlineGrid(client_app(None, problem_from_context), [node])
        question = {"contract": CONTRACT_VERSION, "protocol": "fed-plt", "version": 1}
        question |= {"experiment": "e", "quiet": False, "secure-sum": False}

        def ask(**more: str) -> Message:
            record = RecordDict({"privet": ConfigRecord({**question, **more})})
            (reply,) = grid.send_and_receive([Message(record, 1000, ENROL)])
            return reply

        stated = Meaning.from_text(str(ask().content["privet"]["encoding"]))
        known = [*stated.columns["ward"]["categories"], *(f"x{i}" for i in range(wards))]
        scale = dict.fromkeys(stated.rows, (0.0, 1.0))
        columns = {**stated.columns, "ward": {"categories": known}}
        return ask(encoding=replace(stated.without_rows(), columns=columns, scale=scale).text)

    few, many = enrolled(40), enrolled(30_000)
    assert few.content["privet"]["dim"] == 44
    assert many.has_error()
    assert "30000 columns more than the data have" in many.error.reason


def test_the_coordinator_says_where_units_may_differ(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Means and deviations of all rows hide it: sodium in mg/dl is 2.3 times that in mmol/l."""
    graz = {**GRAZ, "sodium": [2.3 * one for one in GRAZ["sodium"]]}
    _, strategy = train(nodes(tmp_path / "units", [table(one) for one in (BERN, graz, LINZ)]), 1)
    assert not turned_away(strategy)
    assert "column sodium: about 138 in 'bern', 'linz' and about 317 in 'graz'" in caplog.text
    assert "column age" not in caplog.text
    caplog.clear()
    train(nodes(tmp_path / "alike", [table(one) for one in (BERN, GRAZ, LINZ)]), 1)
    assert "units differ" not in caplog.text


def test_the_coordinator_says_where_codes_may_differ(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sex is 0 and 1 at two sites and 1 and 2 at the third; what one states is sent to no other."""
    seen: list[str] = []

    class Watched(InlineGrid):
        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            seen.extend(str(one.content) for one in messages)
            return super().push_messages(messages)

    tables = [
        {**one, "age": [float(at % 2) for at in range(len(one["age"]))]} for one in (BERN, GRAZ)
    ]
    later = {**LINZ, "age": [float(at % 2 + 1) for at in range(len(LINZ["age"]))]}
    sites = nodes(tmp_path / "codes", [table(one) for one in (*tables, later)])
    _, strategy = train(sites, 1, engine=Watched)
    assert not turned_away(strategy)
    assert "column age: 0, 1 in 'bern', 'graz' and 1, 2 in 'linz'" in caplog.text
    assert any('"scale"' in one for one in seen)
    assert not any("codes" in one for one in seen)
    caplog.clear()
    train(nodes(tmp_path / "alike", [table(one) for one in tables]), 1)
    assert "codes" not in caplog.text


TRUTH = {"ward=a": "FALSE", "ward=b": "TRUE", "died=0": "False", "died=1": "true"}
ONES = {"ward=a": "0", "ward=b": "1"}


@pytest.mark.parametrize("missing", ["refuse", "mean"])
@pytest.mark.parametrize("most", [TRUTH, ONES], ids=["words", "ones"])
def test_booleans_of_nodes_are_one_however_they_are_spelt(
    tmp_path: Path, most: dict[str, str], missing: str
) -> None:
    """As in a folder: the model is that of sites which all write true and false."""
    sites: list[dict[str, list[Any]]] = [{**one, "ward": [*one["ward"]]} for one in (BERN, GRAZ)]
    if missing == "mean":
        for site in sites:
            site["ward"][::7] = [""] * len(site["ward"][::7])
    spelt = [table(sites[0], values=TRUTH), table(sites[1], values=ONES), table(LINZ, values=most)]
    alike = [table(one, values=TRUTH) for one in (*sites, LINZ)]
    found = []
    for name, tables in {"spelt": spelt, "alike": alike}.items():
        model, strategy = train(nodes(tmp_path / name, tables, missing=missing), 3)
        assert not turned_away(strategy)
        found.append(model)
    np.testing.assert_array_equal(*found)
    for at, text in enumerate(spelt):
        (tmp_path / f"{at}.csv").write_text(text)
    files = [str(tmp_path / f"{at}.csv") for at in range(3)]
    keys = ("label-column=died", f"missing={missing}")
    said = privet("data", *files, *keys)
    assert said.code == 0
    assert "no row has" not in said.out
    (tmp_path / "folder").mkdir()
    for at, text in enumerate(spelt):
        (tmp_path / "folder" / f"{at}.csv").write_text(text)
    assert privet("data", str(tmp_path / "folder"), *keys).code == 0


@pytest.mark.parametrize("private", [False, True])
def test_the_coordinator_says_which_site_has_its_classes_reversed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, private: bool
) -> None:
    """A node that keeps to itself states nothing of how its columns go with the label."""
    seen: list[str] = []

    class Watched(InlineGrid):
        def send_and_receive(self, messages: Any, **options: Any) -> Any:
            replies = list(super().send_and_receive(messages, **options))
            seen.extend(str(one.content) for one in replies if one.has_content())
            return replies

        def pull_messages(self, message_ids: Any) -> Any:
            replies = list(super().pull_messages(message_ids))
            seen.extend(str(one.content) for one in replies if one.has_content())
            return replies

    schemas, keys = ((SCHEMA,) * 3, SEEDED) if private else ((), {})
    bern, graz, linz = (rows(400, seed) for seed in (1, 2, 3))
    odd = {**graz, "died": [str(1 - int(one)) for one in graz["died"]]}
    sites = nodes(tmp_path / "odd", [table(one) for one in (bern, odd, linz)], schemas)
    with own_log() as said:
        _, strategy = train(sites, 1, engine=Watched, **keys)
    assert not turned_away(strategy)
    silent = "agent graz: states a digest of what its columns mean, and nothing of its rows"
    assert said.text.count(silent) == private
    line = "column died: 'age', 'sodium' go with it in 'graz' the other way round than elsewhere"
    assert (line in caplog.text) == (not private)
    assert any("trends" in one for one in seen) == (not private)
    caplog.clear()
    sites = nodes(tmp_path / "alike", [table(one) for one in (bern, graz, linz)], schemas)
    train(sites, 1, **keys)
    assert "the other way round" not in caplog.text


@pytest.mark.parametrize(
    ("schemas", "options"),
    [((), {}), ((SCHEMA, PERMUTED), {}), ((SCHEMA, PERMUTED), SEEDED)],
    ids=["plain", "schema", "private"],
)
@pytest.mark.parametrize("engine", [InlineGrid, CohortGrid])
def test_columns_in_another_order_give_the_same_model_bit_for_bit(
    tmp_path: Path, schemas: tuple[str, ...], options: dict[str, Any], engine: Any
) -> None:
    same = schemas and (SCHEMA, SCHEMA)
    straight = nodes(tmp_path / "straight", [table(BERN), table(GRAZ)], same)
    order = ("died", "ward", "sodium", "age")
    permuted = nodes(tmp_path / "permuted", [table(BERN), table(GRAZ, order)], schemas)
    expected, _ = train(straight, 5, engine=engine, **options)
    found, strategy = train(permuted, 5, engine=engine, **options)
    assert not turned_away(strategy)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("schemas", [(), (SCHEMA, SCHEMA)], ids=["plain", "schema"])
@pytest.mark.parametrize("engine", [InlineGrid, CohortGrid])
def test_a_site_may_write_its_dates_as_it_does(
    tmp_path: Path, schemas: tuple[str, ...], engine: Any
) -> None:
    """Days are days, by whatever order of day and month a node reads its own."""
    days = [
        [date.fromordinal(719_163 + 18_000 + (37 * at) % 700) for at in range(len(one["age"]))]
        for one in (BERN, GRAZ)
    ]
    same = [one.replace("[columns]", "[columns]\nday = [18000, 18800]") for one in schemas]
    order = ("day", *COLUMNS)

    def model(name: str, *written: str) -> Any:
        texts = [
            table({**one, "day": [each.strftime(how) for each in own]}, order)
            for one, own, how in zip((BERN, GRAZ), days, written, strict=True)
        ]
        sites = nodes(tmp_path / name, texts, same)
        for site, how in zip(sites, written, strict=True):
            site["dates"] = "day-first" if how == "%d/%m/%Y" else "month-first"
        found, strategy = train(sites, 5, engine=engine, dim=5)
        assert not turned_away(strategy)
        return found.tobytes()

    expected = model("alike", "%d/%m/%Y", "%d/%m/%Y")
    assert model("mixed", "%d/%m/%Y", "%m/%d/%Y") == expected
    assert model("turned", "%m/%d/%Y", "%d/%m/%Y") == expected


REFUSED = [
    pytest.param(
        {"names": {"sodium": "creatinine"}}, "has creatinine, the others sodium", id="column"
    ),
    pytest.param(
        {"order": ("age", "ward", "died")}, "has no sodium, the others have it", id="less"
    ),
    pytest.param(
        {"values": {"ward=a": "c", "ward=b": "d"}},
        "has ward = c, d, the others ward = a, b",
        id="categories",
    ),
    pytest.param(
        {"values": {"died=0": "nein", "died=1": "ja"}},
        "has the classes ja, nein of died, the others the classes 0, 1 of died",
        id="classes",
    ),
    pytest.param(
        {"values": {"ward=a": "1", "ward=b": "2"}},
        "has numbers in ward, the others categories",
        id="type",
    ),
]


@pytest.mark.parametrize(("change", "line"), REFUSED)
@pytest.mark.parametrize("engine", [InlineGrid, CohortGrid])
def test_a_table_that_means_something_else_is_turned_away(
    tmp_path: Path,
    change: dict[str, Any],
    line: str,
    engine: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sites = nodes(tmp_path, [table(BERN), table(LINZ), table(GRAZ, **change)])
    for one, name in zip(sites, ("bern", "linz", "graz"), strict=True):
        one["agent"] = name
    model, strategy = train(sites, 5, engine=engine)
    assert turned_away(strategy) == [f"agent graz: {line}"]
    assert f"agent graz: this node {line}" in caplog.text
    fit = nodes(tmp_path / "fit", [table(BERN), table(LINZ)])
    fit[1]["agent"] = "linz"
    assert model.tobytes() == train(fit, 5, engine=engine)[0].tobytes()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (('["0", "1"]', '["1", "0"]'), "the classes 1, 0 of died"),
        (('["a", "b"]', '["b", "a"]'), "the reference b of ward"),
        (("120", "150"), "the range [0, 150] of age"),
    ],
    ids=["classes", "reference", "range"],
)
def test_a_schema_that_means_something_else_is_turned_away(
    tmp_path: Path, change: tuple[str, str], line: str
) -> None:
    schemas = [SCHEMA, SCHEMA, SCHEMA.replace(*change)]
    _, strategy = train(nodes(tmp_path, [table(one) for one in (BERN, GRAZ, LINZ)], schemas), 1)
    (why,) = turned_away(strategy)
    assert why.startswith(f"agent linz: has {line}, the others the ")


@pytest.mark.parametrize("change", [("120", "150"), ('["0", "1"]', '["1", "0"]')])
def test_a_private_node_is_turned_away_by_digests_before_a_charge(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    schemas = [SCHEMA, SCHEMA, SCHEMA.replace(*change)]
    sites = nodes(tmp_path, [table(one) for one in (BERN, GRAZ, LINZ)], schemas)
    for site in sites:
        site |= {"max-epsilon": 9.0, "delta": 1e-5}
        site["ledger-path"] = str(tmp_path / f"{site['agent']}.ledger")
    seen: list[str] = []

    class Watched(InlineGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            replies = list(super().pull_messages(message_ids))
            seen.extend(str(one.content) for one in replies if one.has_content())
            return replies

    _, strategy = train(sites, 1, engine=Watched, **PRIVATE)
    (why,) = turned_away(strategy)
    assert why.startswith("agent linz: has another encoding of its columns (")
    assert not Path(sites[2]["ledger-path"]).exists()
    assert all(Path(one["ledger-path"]).exists() for one in sites[:2])
    assert seen
    assert not any("sodium" in one or "ward" in one for one in seen)


def test_a_private_node_without_a_schema_is_told_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"needs schema, a file of public ranges \(privet data FILE"):
        train(nodes(tmp_path, [table(BERN), table(GRAZ)]), 1, **PRIVATE)


def test_a_node_logs_the_doubts_about_its_own_file_and_tells_nobody(tmp_path: Path) -> None:
    """Once a run, also where it keeps prepared rows; what leaves has no word of it."""
    doubtful = table({**BERN, "age": [7.0] * 80})
    sites = nodes(tmp_path, [table(GRAZ), doubtful])
    sites[1]["state-path"] = str(tmp_path / "state")
    os.utime(sites[1]["data-path"], (1e9, 1e9))  # settled, so that prepared rows are kept
    line = f"agent graz: {sites[1]['data-path']}: column age: 7 in every row, which no model "
    line += "learns from: leave it out"
    for _ in range(2):
        seen: list[str] = []

        class Watched(InlineGrid):
            def pull_messages(self, message_ids: Any) -> Any:
                replies = list(super().pull_messages(message_ids))
                seen.extend(str(one) for one in replies)  # noqa: B023
                return replies

        with own_log() as said:
            _, strategy = train(sites, 3, engine=Watched)
        assert not turned_away(strategy)
        assert said.lines.count(line) == 1
        assert f"privet data {sites[1]['data-path']}" in said.text
        assert seen
        assert not any("no model learns" in one for one in seen)
    assert list(tmp_path.glob("state.data/*"))


LAB = {**BERN, "lab": np.random.default_rng(4).uniform(1, 2, 80).round(3).tolist()}


@pytest.mark.parametrize(
    ("odd", "line"),
    [
        ({**LAB, "ward": ["ab"[int(one)] for one in LAB["died"]]}, "says the same as died"),
        ({name: own[:40] * 2 for name, own in LAB.items()}, "40 rows repeat others in every"),
        ({**LAB, "lab": [99.0, *LAB["lab"][1:]]}, "column lab: 99 in 1 row, far from all other"),
    ],
)
def test_what_a_private_node_states_does_not_depend_on_doubts_about_its_records(
    tmp_path: Path, odd: dict[str, list[Any]], line: str
) -> None:
    """They are in the node's own log; its statement at enrolment is that of other records."""
    stated, said, private = [], [], {**PRIVATE, "dim": 5}
    for at, own in enumerate((LAB, odd)):
        replies: list[str] = []

        class Watched(InlineGrid):
            def pull_messages(self, message_ids: Any) -> Any:
                found = list(super().pull_messages(message_ids))
                replies.extend(str(one.content) for one in found if one.has_content())  # noqa: B023
                return found

        with own_log() as log:
            order, public = (*COLUMNS, "lab"), f"{SCHEMA}lab = [0, 100]\n"
            tables = [table(own, order), table(LAB, order)]
            train(nodes(tmp_path / str(at), tables, [public] * 2), 1, engine=Watched, **private)
        stated.append(replies[:2])
        said.append(log.text)
    assert line in said[1]
    assert line not in said[0]
    assert len(stated[0]) == 2
    assert stated[0] == stated[1]


def test_a_secure_sum_agrees_on_no_means_of_rows(tmp_path: Path) -> None:
    tables = [table(one) for one in (BERN, GRAZ, LINZ)]
    with pytest.raises(RunError, match=r"a secure sum do not agree on: it needs schema"):
        train(nodes(tmp_path, tables), 1, secure_sum=True)
    sites = nodes(tmp_path, tables, [SCHEMA, PERMUTED, SCHEMA])
    _, strategy = train(sites, 1, secure_sum=True)
    assert not turned_away(strategy)


def test_a_secure_sum_is_sent_no_digest_of_categories_that_were_read_from_records(
    tmp_path: Path,
) -> None:
    """Tables of texts have no means: their digest would name them to whoever tries tables."""
    texts = [table(one, ("ward", "died")) for one in (BERN, GRAZ, LINZ)]
    public = '[columns]\nward = ["a", "b"]\ndied = ["0", "1"]\n'
    line = "secure sum do not agree on: it needs schema"
    with pytest.raises(RunError, match=line):
        train(nodes(tmp_path, texts), 1, secure_sum=True)
    marked = f"from-records = true\n{public}"
    with pytest.raises(RunError, match=line):
        train(nodes(tmp_path, texts, [marked] * 3), 1, secure_sum=True)
    _, strategy = train(nodes(tmp_path, texts, [public] * 3), 1, dim=2, secure_sum=True)
    assert not turned_away(strategy)


def test_a_table_that_is_dealt_states_nothing_in_a_secure_sum(tmp_path: Path) -> None:
    file = tmp_path / "bern.csv"
    file.write_text(table(BERN, ("ward", "died")))
    context = Context(1, 0, {"partition-id": 0, "num-partitions": 4}, RecordDict(), {})
    config = {"dataset": "csv", "data-path": str(file), "label-column": "died"}
    problem = problem_from_config(config, 0, 4)
    participant = Participant(lambda context: problem)
    said = {}
    for quiet in (False, True):
        question: dict[str, Any] = {"kind": "enrol", "contract": CONTRACT_VERSION}
        question |= {"protocol": "fed-plt", "experiment": "e", "secure-sum": quiet}
        said[quiet] = participant.enrolment(ConfigRecord(question), context).encoding
    assert json.loads(said[False])["columns"] == [["ward", {"categories": ["a", "b"]}]]
    assert said[True] == ""


def test_a_text_that_all_rows_have_is_coded_as_where_there_are_two(tmp_path: Path) -> None:
    """Without the others a site cannot know that its only ward is not the reference."""
    only = {
        name: [v for v, w in zip(GRAZ[name], GRAZ["ward"], strict=True) if w == "b"]
        for name in GRAZ
    }
    model, strategy = train(nodes(tmp_path, [table(BERN), table(only)]), 300, rho=1.0)
    assert not turned_away(strategy)
    assert model == pytest.approx(pooled_optimum(BERN, only), abs=1e-9)


def test_more_numbers_of_columns_than_the_model_has_are_explained(tmp_path: Path) -> None:
    wide = {**GRAZ, "weight": GRAZ["age"]}
    sites = nodes(tmp_path, [table(BERN), table(LINZ), table(wide, (*COLUMNS, "weight"))])
    _, strategy = train(sites, 1)
    assert turned_away(strategy) == ["agent linz: has weight, the others do not"]


def test_a_node_that_lost_what_it_was_told_is_told_again(tmp_path: Path) -> None:
    """Its round is lost, and no model of other columns is folded."""
    order = ("died", "ward", "sodium", "age")
    sites = nodes(tmp_path, [table(BERN), table(GRAZ, order)])

    class Forgetful(InlineGrid):
        rounds = 0

        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            training = messages[0].metadata.message_type == "train"
            self.rounds += training
            if training and self.rounds == 3:
                (_, graz) = self._nodes.contexts.values()
                del graz.state[ENCODING_RECORD]
                app.participant.forget(graz)
            return super().push_messages(messages)

    app = client_app("fed-plt", problem_from_context)
    strategy = FedPLT(num_agents=2, min_agents=1, rho=1.0)
    start = ArrayRecord({"x": Array(np.zeros(4))})
    result = strategy.start(Forgetful(app, sites), start, num_rounds=300, log_rounds=False)
    lost = {done.round: done.failures for done in result.history if done.failures}
    assert list(lost) == [3]
    assert lost[3]["graz"].code is FailureCode.ENROL_AGAIN
    assert result.arrays["x"].numpy() == pytest.approx(pooled_optimum(BERN, GRAZ), abs=1e-9)


def test_a_node_whose_columns_change_during_a_run_gives_no_more_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As deployed, where a process reads the file for every message; nobody was told anything."""
    monkeypatch.setattr("privet.rounds.enrol.admission.in_simulation", lambda grid: False)
    sites = nodes(tmp_path, [table(BERN), table(GRAZ)], [SCHEMA, SCHEMA])
    app = client_app("fed-plt", problem_from_context)

    class Rereading(InlineGrid):
        rounds = 0

        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            self.rounds += messages[0].metadata.message_type == "train"
            if self.rounds == 3:
                Path(sites[1]["schema"]).write_text(SCHEMA.replace("120", "150"))
            for context in self.contexts.values():
                app.participant.forget(context)
            return super().push_messages(messages)

    strategy = FedPLT(num_agents=2, min_agents=1)
    start = ArrayRecord({"x": Array(np.zeros(4))})
    result = strategy.start(Rereading(app, sites), start, num_rounds=5, log_rounds=False)
    both, alone = ("bern", "graz"), ("bern",)
    assert [done.participants for done in result.history] == [both, both, alone, alone, alone]
    (why,) = turned_away(strategy)
    line = "has the range [0, 150] of age, the others the range [0, 120] of age"
    assert why == f"agent graz: {line}"


def test_a_newcomer_takes_the_encoding_of_those_that_were_there(tmp_path: Path) -> None:
    order = ("died", "ward", "sodium", "age")
    odd = table(GRAZ, names={"sodium": "creatinine"})
    sites = nodes(tmp_path, [table(BERN), table(GRAZ), table(LINZ, order), odd])

    class Late(InlineGrid):
        rounds = 0

        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            self.rounds += messages[0].metadata.message_type == "train"
            self.online = set(self.node_configs if self.rounds > 2 else list(self.node_configs)[:2])
            return super().push_messages(messages)

    strategy = FedPLT(num_agents=2, min_agents=1, rho=1.0)
    start = ArrayRecord({"x": Array(np.zeros(4))})
    grid = Late(client_app("fed-plt", problem_from_context), sites)
    grid.online = set(list(grid.node_configs)[:2])
    result = strategy.start(grid, start, num_rounds=400, log_rounds=False)
    assert turned_away(strategy) == ["agent nice: has creatinine, the others sodium"]
    assert result.history[-1].participants == ("bern", "graz", "linz")
    problems = [grid_problem(grid, node) for node in list(grid.node_configs)[:3]]
    assert problems[2].features[:, 3].all(), "the intercept is last"
    gradient = sum(one.gradient(result.arrays["x"].numpy()) for one in problems)
    assert np.linalg.norm(gradient) < 1e-8


def grid_problem(grid: InlineGrid, node: int) -> Any:
    """Return the problem of a node, by its context."""
    return problem_from_context(grid.contexts[node])


def test_a_resumed_run_keeps_the_encoding(tmp_path: Path) -> None:
    """Also where the site that all others follow has not come back."""
    order = ("died", "ward", "sodium", "age")
    sites = nodes(tmp_path, [table(BERN), table(GRAZ, order), table(LINZ, order)])
    start = ArrayRecord({"x": Array(np.zeros(4))})

    def played(configs: list[dict[str, Any]], last: int, **more: Any) -> Any:
        strategy = FedPLT(num_agents=len(configs), min_agents=1)
        grid = InlineGrid(client_app("fed-plt", problem_from_context), configs)
        return strategy.start(grid, start, num_rounds=last, log_rounds=False, **more)

    whole = played(sites, 8)
    saved = tmp_path / "checkpoint"
    played(sites, 4, checkpoint=saved)
    assert played(sites, 8, resume=saved).arrays["x"].numpy().tobytes() == (
        whole.arrays["x"].numpy().tobytes()
    )


def test_the_coordinator_evaluates_and_saves_with_the_agreed_scaling(tmp_path: Path) -> None:
    """Its public sample has other means; a new row is predicted as its columns say."""
    order = ("died", "ward", "sodium", "age")
    sites = nodes(tmp_path, [table(GRAZ), table(BERN, order)])
    public = tmp_path / "public.csv"
    public.write_text(table(rows(50, 4)))
    config = read_config(
        {
            "num-agents": 2,
            "num-server-rounds": 300,
            "rho": 1.0,
            "dataset": "csv",
            "data-path": str(public),
            "label-column": "died",
            "partition": "iid",
            "output-dir": str(tmp_path / "runs"),
        }
    )
    grid = InlineGrid(configured_app(), sites, config)
    finished = execute(grid, config, "run")
    best = pooled_optimum(GRAZ, BERN)
    assert finished.result.arrays["x"].numpy() == pytest.approx(best, abs=1e-8)
    model = load_model(finished.folder)
    age = np.array(GRAZ["age"] + BERN["age"])
    sodium = np.array(GRAZ["sodium"] + BERN["sodium"])
    assert model.encoding is not None
    assert model.encoding.origin[:2] == pytest.approx([age.mean(), sodium.mean()])
    assert model.encoding.unit[:2] == pytest.approx([age.std(), sodium.std()])


@pytest.mark.parametrize("algorithm", ["fed-plt", "dp-iadmm", "dp-fedsgd"])
def test_a_row_norm_that_the_algorithm_brings_need_not_be_set_at_the_nodes(
    tmp_path: Path, algorithm: str
) -> None:
    """With an algorithm that does not, a node without it has other rows than the coordinator."""
    public, schema = tmp_path / "public.csv", tmp_path / "schema.toml"
    public.write_text(table(rows(50, 4)))
    schema.write_text(SCHEMA)
    sites = nodes(tmp_path / "sites", [table(BERN), table(GRAZ)], [SCHEMA, PERMUTED])
    keys: dict[str, Any] = {
        "algorithm": algorithm,
        "num-agents": 2,
        "min-agents": 1,
        "num-server-rounds": 2,
        "clip": 1.0,
        "row-norm": 3.0,
        "target-epsilon": 8.0,
        "dataset": "csv",
        "data-path": str(public),
        "schema": str(schema),
        "label-column": "died",
        "partition": "iid",
        "output-dir": str(tmp_path),
    }
    if algorithm == "fed-plt":
        keys["local-solver"] = "noisy-gd"
    if algorithm == "dp-fedsgd":
        keys |= {"step-size-base": 0.1, "step-size-rule": "constant"}
    config = read_config(keys)
    grid = InlineGrid(configured_app(), sites, config)
    if algorithm == "dp-fedsgd":
        with pytest.raises(RunError, match="bern, graz: has another encoding of its columns"):
            execute(grid, config, "run")
    else:
        done = execute(grid, config, "run").result.history
        assert [one.participants for one in done] == [("bern", "graz")] * 2


def test_a_coordinator_with_other_data_takes_no_site_in(tmp_path: Path) -> None:
    sites = nodes(tmp_path, [table(BERN), table(GRAZ)])
    public = tmp_path / "public.csv"
    public.write_text(table(rows(50, 4), names={"sodium": "creatinine"}))
    data = {"dataset": "csv", "data-path": str(public), "label-column": "died", "partition": "iid"}
    config = read_config({"num-agents": 2, **data, "output-dir": str(tmp_path / "runs")})
    with pytest.raises(RunError, match="has sodium, the coordinator's data creatinine"):
        execute(InlineGrid(configured_app(), sites, config), config, "run")


def logistic(seed: int) -> BinaryLogistic:
    draws = np.random.default_rng(seed)
    return BinaryLogistic(
        draws.normal(size=(30, 4)), draws.choice([-1, 1], 30), regularizer=L2(0.5)
    )


def test_problems_of_ones_own_are_compared_by_what_their_authors_state() -> None:
    said = {0: "age, sodium", 1: "age, sodium", 2: "sodium, age"}
    problems = [logistic(seed) for seed in range(3)]
    app = app_of(
        "fed-plt", problems, meaning=lambda context: said[int(context.node_config["partition-id"])]
    )
    strategy = FedPLT(num_agents=3, min_agents=1)
    strategy.start(InlineGrid(app, 3), ArrayRecord({"x": Array(np.zeros(4))}), num_rounds=1)
    (why,) = turned_away(strategy)
    assert why == "agent 2: has the meaning 'sodium, age', the others the meaning 'age, sodium'"
    problems[1].meaning = "sodium, age"
    strategy = FedPLT(num_agents=3, min_agents=1)
    app = app_of("fed-plt", problems)
    strategy.start(InlineGrid(app, 3), ArrayRecord({"x": Array(np.zeros(4))}), num_rounds=1)
    assert not turned_away(strategy), "who states nothing is not compared"


def test_a_training_loop_and_an_estimator_are_compared_by_what_they_state() -> None:
    weights = {"w": np.zeros(2)}

    def app_with(says: str) -> Any:
        participant = LoopParticipant("fed-plt", weights, lambda context: 10, meaning=says)
        return participant.app()

    apps = [app_with("age, sodium"), app_with("age, sodium"), app_with("sodium, age")]

    def answer(message: Message, context: Context) -> Message:
        return apps[int(context.node_config["partition-id"])](message, context)

    strategy = FedPLT(num_agents=3, min_agents=1)
    strategy.begin(InlineGrid(answer, 3), ArrayRecord({"w": Array(np.zeros(2))}))
    line = "has the meaning 'sodium, age', the others the meaning 'age, sodium'"
    assert turned_away(strategy) == [f"agent 2: {line}"]

    labels = {0: (0, 1), 1: (0.0, 1.0), 2: (1, 0)}
    problems = [
        SklearnModel(LogisticRegression(), 2, classes=known).problem(np.eye(2), np.array([0, 1]))
        for known in labels.values()
    ]
    model = SklearnModel(LogisticRegression(), 2, classes=(0, 1))
    strategy = FedPLT(num_agents=3, min_agents=1)
    strategy.begin(InlineGrid(app_of("fed-plt", problems), 3), model.arrays())
    line = "has the classes 1, 0, the others the classes 0, 1"
    assert turned_away(strategy) == [f"agent 2: {line}"]


def test_classes_that_are_read_from_labels_are_not_stated() -> None:
    """A private agent states what is public alone."""
    problem = SklearnProblem(LogisticRegression(), np.eye(2), np.array([0, 1]))
    assert problem.meaning is None


def test_a_coordinators_table_is_not_compared_with_problems_of_another_kind(tmp_path: Path) -> None:
    public = tmp_path / "public.csv"
    public.write_text(table(rows(50, 4)))
    data = {"dataset": "csv", "data-path": str(public), "label-column": "died", "partition": "iid"}
    rounds = {"num-agents": 2, "num-server-rounds": 1, "output-dir": str(tmp_path)}
    config = read_config({**data, **rounds})
    app = app_of("fed-plt", [logistic(0), logistic(1)], meaning="four numbers")
    assert execute(InlineGrid(app, 2, config), config, "run").result.history[0].participants


def test_one_dataset_dealt_to_agents_asks_nobody_again(tmp_path: Path) -> None:
    """And no message of a round names an encoding."""
    path = tmp_path / "all.csv"
    path.write_text(table(rows(200, 1)))
    asked: list[str] = []

    class Counted(InlineGrid):
        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            asked.extend(one.metadata.message_type for one in messages)
            for one in messages:
                settings = str(one.content["privet"].get("settings", ""))
                assert "encoding" not in settings
            return super().push_messages(messages)

    data = {"dataset": "csv", "data-path": str(path), "label-column": "died", "partition": "iid"}
    config = read_config(
        {"num-agents": 5, "num-server-rounds": 2, **data, "output-dir": str(tmp_path)}
    )
    execute(Counted(configured_app(), 5, config), config, "run")
    assert asked.count("query.privet") == 5


def test_a_notebook_that_corrects_a_table_gets_the_corrected_model(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    config = {
        "num-agents": 2,
        "num-server-rounds": 3,
        "dataset": "csv",
        "data-path": str(path),
        "label-column": "died",
        "partition": "iid",
        "output-dir": str(tmp_path),
    }

    def model(text: str, name: str) -> Any:
        path.write_text(text)
        return load_model(run_inline(config, name).folder)

    first = model(table(BERN, ("age", "died")), "first")
    negated = {**BERN, "age": [-one for one in BERN["age"]]}
    second = model(table(negated, ("age", "died")), "second")
    assert second.arrays["x"][0] == pytest.approx(-first.arrays["x"][0], rel=1e-9)
    third = model(table(negated, ("age", "sodium", "died")), "third")
    assert third.columns == ["age", "sodium"]


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_ray_engine_compares_tables_that_its_nodes_read(tmp_path: Path) -> None:
    from privet.sim.ray.engine import RayGrid

    odd = table(GRAZ, names={"sodium": "creatinine"})
    permuted = table(LINZ, ("died", "ward", "sodium", "age"))
    sites = nodes(tmp_path / "sites", [table(BERN), odd, permuted])
    start = ArrayRecord({"x": Array(np.zeros(4))})
    strategy = FedPLT(num_agents=3, min_agents=1)
    with RayGrid(configured_app, sites, actors=2) as grid:
        result = strategy.start(grid, start, num_rounds=5, log_rounds=False)
    assert turned_away(strategy) == ["agent graz: has creatinine, the others sodium"]
    alike = nodes(tmp_path / "alike", [table(BERN), table(LINZ)])
    alike[1]["agent"] = "linz"
    assert result.arrays["x"].numpy().tobytes() == train(alike, 5)[0].tobytes()


PROJECT = """
[project]
name = "sites"
version = "0.1.0"

[tool.flwr.app]
publisher = "sites"

[tool.flwr.app.components]
serverapp = "sites_server:app"
clientapp = "sites_client:app"

[tool.flwr.app.config]
folder = ""
"""
CLIENT = """
from privet.client_apps import client_app
from privet.data import problem_from_config, problem_from_context

def problem(context):
    names = ("bern", "graz", "linz", "nice")
    name = names[int(context.node_config["partition-id"])]
    path = context.run_config["folder"] + "/" + name + ".csv"
    keys = {"dataset": "csv", "data-path": path, "label-column": "died", "partition": "none"}
    keys["regularizer-weight"] = 0.05
    context.node_config.update(keys)
    return problem_from_context(context)

app = client_app("fed-plt", problem)
"""
SERVER = """
import json
import pathlib

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from privet.strategies import FedPLT

app = ServerApp()

@app.main()
def main(grid, context):
    strategy = FedPLT(num_agents=4, min_agents=1)
    start = ArrayRecord({"x": Array(np.zeros(4))})
    result = strategy.start(grid, start, num_rounds=5)
    rejected = sorted(strategy.session.roster.rejected.values())
    model = result.arrays["x"].numpy().tolist()
    path = pathlib.Path(context.run_config["folder"], "result.json")
    path.write_text(json.dumps({"model": model, "rejected": rejected}))
"""


@pytest.mark.ray
def test_flowers_simulation_compares_tables_that_its_nodes_read(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "sites_client.py").write_text(CLIENT)
    (app / "sites_server.py").write_text(SERVER)
    odd = table(GRAZ, names={"sodium": "creatinine"})
    permuted = table(LINZ, ("died", "ward", "sodium", "age"))
    words = table(rows(70, 5), values={"died=0": "nein", "died=1": "ja"})
    nodes(tmp_path / "sites", [table(BERN), odd, permuted, words])
    config = {"folder": str(tmp_path / "sites")}
    outcome = run_simulation(app, num_supernodes=4, run_config=config, on_line=lambda line: None)
    assert outcome.completed, outcome.details
    found = json.loads((tmp_path / "sites" / "result.json").read_text())
    assert found["rejected"] == [
        "agent 1: has creatinine, '0', '2' sodium",
        "agent 3: has the classes ja, nein of died, '0', '2' the classes 0, 1 of died",
    ]
    alike = nodes(tmp_path / "alike", [table(BERN), table(LINZ)])
    alike[1]["agent"] = "linz"
    assert found["model"] == train(alike, 5)[0].tolist()
