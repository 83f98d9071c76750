"""What a node reads is its operator's choice, and what it says of it nobody else's business.

Nothing that one record decides may shape the others' rows, or the model, of a private run.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.client_apps import client_app
from privet.data import problem_from_context
from privet.kernel import Told
from privet.problems import BinaryLogistic
from privet.sim.engine import InlineGrid
from redteam.harness import Answer, Node, read_answer
from support.cli import privet

ADULT = (
    "{age}, {work}, {weight}, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, United-States, {income}"
)


class Watch:
    """What this process opens or connects to, by Python's own audit events."""

    EVENTS = ("open", "os.listdir", "os.scandir", "socket.connect", "socket.getaddrinfo")

    def __init__(self) -> None:
        self.active = False
        self.seen: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.active and event in self.EVENTS:
            self.seen.append(f"{event} {arguments[0]!r} {arguments[1:]!r}")


_WATCH = Watch()


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Watch from here to the end of the test; an audit hook cannot be taken out again."""
    _WATCH.seen.clear()
    _WATCH.active = True
    yield _WATCH
    _WATCH.active = False


class Site(Node):
    """A node whose problem comes from its configs, as that of the bundled app does."""

    def __init__(self, folder: Path, run: dict[str, Any], **rules: Any) -> None:
        super().__init__(folder, BinaryLogistic(np.ones((1, 1)), np.ones(1)), **rules)
        (config,) = self.grid.node_configs.values()
        config = {"partition-id": 0, "num-partitions": 1, **config}
        self.grid = InlineGrid(client_app(None, problem_from_context), [config], run)


OPEN: dict[str, Any] = dict.fromkeys(("max_epsilon", "delta", "ledger_path", "num_examples"))
"""A node without rules of its own."""


def texts(site: Site) -> list[str]:
    """Return what the coordinator is told at enrolment and at a training message."""
    replies = (site.enrol("dp-fedsgd", quiet=False), site.send_train("dp-fedsgd", clip=1.0))
    assert all(reply.has_error() for reply in replies)
    return [reply.error.reason for reply in replies]


# ------------------------------------------------------------------ paths of a run config


@pytest.mark.parametrize("rules", [OPEN, {}], ids=["open", "budget"])
@pytest.mark.parametrize("dataset", ["mnist", "click", "adult", "femnist", "csv"])
def test_a_run_config_makes_a_node_open_nothing(
    dataset: str, rules: dict[str, Any], tmp_path: Path, watch: Watch
) -> None:
    """A file, a folder, nothing or a name of the hub: one answer, and nothing is opened."""
    secret = tmp_path / "secret"
    secret.write_text("root:x:0:0")
    said = set()
    for path in (str(secret), str(tmp_path), str(tmp_path / "missing"), "hf:etc/passwd"):
        run = {"dataset": dataset, "data-path": path, "num-agents": 1, "columns": 3, "schema": path}
        site = Site(tmp_path, run, **rules)
        watch.seen.clear()
        said |= set(texts(site))
        for event in watch.seen:
            assert str(tmp_path) not in event
            assert not event.startswith("socket")
    assert len(said) == 1
    assert "allow-run-data" in said.pop()


def test_the_operator_may_allow_it(tmp_path: Path) -> None:
    path = tmp_path / "clicks.svm"
    path.write_text("1 1:1\n0 2:1\n" * 10)
    run = {
        "dataset": "click",
        "data-path": str(path),
        "columns": 2,
        "partition": "iid",
        "num-agents": 1,
    }
    site = Site(tmp_path, run, **OPEN, allow_run_data=True)
    assert not site.enrol("dp-fedsgd", quiet=False).has_error()


@pytest.mark.parametrize("key", ["data-path", "schema", "label-column"])
@pytest.mark.parametrize("dataset", [None, "synthetic"])
def test_a_file_that_the_nodes_data_set_does_not_read_is_named(
    dataset: str | None, key: str, tmp_path: Path
) -> None:
    """Not left aside for examples that are built in."""
    file = tmp_path / "own.csv"
    file.write_text("age,y\n" + "1,no\n2,yes\n" * 5)
    own = {key: str(file), "partition": "none"} | ({"dataset": dataset} if dataset else {})
    site = Site(tmp_path, {"dataset": "csv"}, **own, **OPEN)
    line = f"{key} is not used with dataset = {dataset or 'breast-cancer'}, only with "
    assert site.enrol("dp-fedsgd", quiet=False).error.reason.startswith(
        f"agent me: node-config: {line}"
    )
    assert line in site.said
    assert site.send_train("dp-fedsgd", clip=1.0).has_error()
    assert line in site.said  # a private run is told no more than that the data cannot be used


def test_bundled_data_are_free(tmp_path: Path) -> None:
    for dataset in ("breast-cancer", "digits", "synthetic"):
        site = Site(tmp_path, {"dataset": dataset, "partition": "iid", "num-agents": 1}, **OPEN)
        assert not site.enrol("dp-fedsgd", quiet=False).has_error()


LARGE = {
    "agents": {"dataset": "synthetic", "num-agents": 3_000_000, "examples-per-agent": 1},
    "features": {"dataset": "synthetic", "features": 20_000, "examples-per-agent": 20_000},
    "numbers beyond any memory": {"dataset": "synthetic", "features": 10**9},
    "covariances": {"dataset": "regression", "features": 5_000, "examples-per-agent": 1},
    "shares": {"dataset": "breast-cancer", "partition": "dirichlet", "num-agents": 200_000},
}


@pytest.mark.parametrize("name", LARGE)
def test_a_run_config_makes_a_node_make_no_large_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without data of its own, which are refused before an example is made or dealt."""
    monkeypatch.setattr("privet.data.problem._agents", lambda *_: pytest.fail("data were made"))
    run = {"num-agents": 4, "partition": "iid", "features": 5, "examples-per-agent": 50}
    site = Site(tmp_path, {**run, **LARGE[name]})
    assert site.enrol("dp-fedsgd").error.reason == f"agent me: {Told.DATA}"
    assert "the run config asks for " in site.said
    assert site.train("dp-fedsgd").refusal == f"agent me: {Told.DATA}"
    assert site.written == b""


# ------------------------------------------------------------------ what an error says


def adult(folder: Path, *rows: dict[str, Any]) -> Path:
    """Write both files of the Adult data with these rows."""
    folder.mkdir(exist_ok=True)
    ordinary = {"age": 39, "work": "State-gov", "weight": 77516, "income": "<=50K"}
    for name in ("adult-train.csv.gz", "adult-test.csv.gz"):
        with gzip.open(folder / name, "wt") as file:
            for row in rows:
                file.write(ADULT.format(**{**ordinary, **row}) + "\n")
    return folder


@pytest.mark.parametrize("rules", [OPEN, {}], ids=["open", "budget"])
def test_an_error_quotes_no_contents(rules: dict[str, Any], tmp_path: Path) -> None:
    """The node's own file; whether it is missing, or what is wrong with it, stays in its log."""
    bad = adult(tmp_path / "bad", {}, {"work": "Secret-Employer-Ltd"})
    labels = tmp_path / "labels.svm"
    labels.write_text("42.5 1:1\n1 2:1\n")
    said = set()
    for dataset, path in (("adult", bad), ("adult", tmp_path / "gone"), ("click", labels)):
        own = {
            "dataset": dataset,
            "data-path": str(path),
            "partition": "none",
            "columns": 3,
            **rules,
        }
        said |= set(texts(Site(tmp_path, {"num-agents": 1}, **own)))
    for text in said:
        for word in ("Secret", "workclass", "42.5", str(tmp_path), "gone"):
            assert word not in text
    assert len(said) == 1


# ------------------------------------------------------------------ preprocessing


def first_upload(site: Site, dim: int) -> Answer:
    """Return the answer to a first round at x = 0 with next to no noise."""
    site.dim = dim
    reply = site.send_train("dp-fedsgd", 0.0, noise_scale=1e-6, clip=0.5)
    return read_answer(reply, "dp-fedsgd", 1)


def test_adults_rows_do_not_depend_on_each_other(tmp_path: Path) -> None:
    """With the node's own mean and deviation one record moved all others: 2.3 x the claim."""
    ordinary = [
        {"age": 20 + i, "weight": 5e4 + 1e4 * i, "income": ("<=50K", ">50K")[i // 10]}
        for i in range(20)
    ]
    uploads = []
    for number, last in enumerate(({"weight": 6e4}, {"weight": 9e9, "age": 1e6})):
        folder = adult(tmp_path / str(number), *ordinary, last)
        own = {"dataset": "adult", "data-path": str(folder), "partition": "none"}
        site = Site(folder, {}, max_epsilon=1e200, num_examples=21, **own)
        answer = first_upload(site, 83)
        if answer.upload is None:
            assert answer.refusal is not None
            assert "standard" in answer.refusal
            assert site.written == b""
            return
        uploads.append(answer.upload)
    assert np.linalg.norm(uploads[0] - uploads[1]) <= 2 * 0.5 / 21 + 1e-4


@pytest.mark.parametrize("private", [True, False])
def test_a_private_run_is_not_shaped_by_a_record(
    private: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The largest index of one record would be the length of the model."""
    path = tmp_path / "train.svm"
    path.write_text("1 1:1\n0 2:1\n" * 5 + "1 4000:1\n")
    (tmp_path / "test.svm").write_text("1 1:1\n")
    own = {"dataset": "click", "data-path": str(tmp_path), "columns": 0, "partition": "none"}
    rules = {"num_examples": 11} if private else OPEN
    site = Site(tmp_path, {}, **own, **rules)
    reply = site.enrol("dp-fedsgd", quiet=private)
    if not private:
        assert not reply.has_error()
        return
    assert reply.has_error()
    assert "columns" in reply.error.reason + caplog.text
    assert "4001" not in reply.error.reason
    assert first_upload(site, 4001).upload is None
    assert site.written == b""


def test_a_private_run_alone_makes_it_private(tmp_path: Path) -> None:
    """A node without rules, asked to take part in a run that clips and adds noise."""
    path = tmp_path / "train.svm"
    path.write_text("1 1:1\n0 2:1\n" * 5 + "1 4000:1\n")
    (tmp_path / "test.svm").write_text("1 1:1\n")
    own = {"dataset": "click", "data-path": str(tmp_path), "columns": 0, "partition": "none"}
    assert first_upload(Site(tmp_path, {}, **own, **OPEN), 4001).upload is None


def test_a_schema_that_was_written_from_the_records_is_not_public(tmp_path: Path) -> None:
    """One record at the end of a range moved the upload by 1.93 times what was charged."""
    table, schema = tmp_path / "own.csv", tmp_path / "schema.toml"
    rows = [f"{30 + n},{'fm'[n % 2]},{n % 2}" for n in range(19)]
    uploads = []
    for last in ("49,f,1", "4900,f,1"):
        table.write_text("\n".join(["age,sex,y", *rows, last]) + "\n")
        schema.unlink(missing_ok=True)
        assert privet("data", table, "partition=iid", "--schema", schema).code == 0
        own = {"dataset": "csv", "data-path": str(table), "schema": str(schema)}
        site = Site(tmp_path, {}, **own, partition="none", num_examples=20, max_epsilon=1e200)
        uploads.append(first_upload(site, 3))
        assert "take out the line from-records" in site.said
    assert [answer.upload for answer in uploads] == [None, None]
    assert [answer.refusal for answer in uploads] == 2 * [f"agent me: {Told.PREPARATION}"]
    assert site.written == b""
    # The operator has put public values in, and answers for it.
    schema.write_text("[columns]\nage = [0, 9999]\nsex = ['f', 'm']\ny = ['0', '1']\n")
    own = {**own, "schema": str(schema.rename(tmp_path / "public.toml"))}
    site = Site(tmp_path, {}, **own, partition="none", num_examples=20, max_epsilon=1e200)
    assert first_upload(site, 3).upload is not None


@pytest.mark.parametrize(("missing", "sent"), [("refuse", True), ("mean", False), ("drop", False)])
def test_what_fills_a_gap_is_no_other_record(missing: str, sent: bool, tmp_path: Path) -> None:
    """The mean is the others' too, and the number of complete rows that of all of them."""
    table, schema = tmp_path / "own.csv", tmp_path / "schema.toml"
    schema.write_text("[columns]\nage = [0, 100]\ny = ['0', '1']\n")
    table.write_text("\n".join(["age,y", *(f"{30 + n},{n % 2}" for n in range(20))]) + "\n")
    own = {"dataset": "csv", "data-path": str(table), "schema": str(schema), "missing": missing}
    site = Site(tmp_path, {}, **own, partition="none", num_examples=20, max_epsilon=1e200)
    assert (first_upload(site, 2).upload is not None) is sent


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ({"partition": "none"}, True),
        ({"partition": "none", "divisor": "federation"}, False),
        ({"partition": "iid"}, False),
        ({"partition": "flwr-iid"}, False),
    ],
)
def test_a_deleted_record_does_not_deal_the_others_anew(
    keys: dict[str, Any], sent: bool, tmp_path: Path
) -> None:
    """Under add-remove one record less must change its own contribution alone."""
    path = tmp_path / "train.svm"
    path.write_text("1 1:1\n0 2:1\n" * 10)
    (tmp_path / "test.svm").write_text("1 1:1\n")
    own = {
        "dataset": "click",
        "data-path": str(tmp_path),
        "columns": 2,
        "num-partitions": 2,
        **keys,
    }
    site = Site(tmp_path, {}, **own, num_examples=50, relation="add-remove")
    site.dim = 3  # with the intercept
    answer = site.train("dp-fedsgd", noise_scale=1.0, clip=0.5, relation="add-remove")
    assert (answer.upload is not None) is sent
    if not sent:
        assert answer.refusal is not None
        assert "data-dependent" in answer.refusal
        assert site.written == b""
