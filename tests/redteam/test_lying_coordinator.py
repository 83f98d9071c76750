"""A coordinator that lies about a secure sum to nodes that have pinned the keys of their peers.

All messages are its own: it chooses keys, names, rosters, rounds, settings, models and signatures,
and tells every node something else. It gets no upload, and each attempt is a line at the node.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from privet.agents.masking import MASK_RECORD, task_digest
from privet.client_apps import client_app
from privet.core import RunError
from privet.kernel import Binding, GivenMasks, Told, key_pair
from privet.kernel.masks import statement
from privet.problems import RidgeRegression
from privet.server_apps import read_config
from privet.server_apps.analysis import execute_analysis
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app
from privet.sim.trusting import trusting_nodes
from privet.strategies import DPFedSGD
from privet.wire import ENROL
from privet.wire.contract import agent_record, encode_settings, is_need_state, shared_record
from privet.wire.payload import to_payload
from privet.wire.rosters import roster_question, with_roster, with_signatures
from redteam.test_shared_noise import (
    DIM,
    SETTINGS,
    Federation,
    Words,
    cancelled,
    masks_of,
    problem,
)
from support.analysis_runs import KINDS, config
from support.analysis_sites import PATIENTS, own_tables
from support.told import own_log

COUNT, LEAST, FUZZED = 6, 3, 400
PLAIN = {**SETTINGS, "noise-sharing": False}


def a_bit_turned(data: bytes) -> bytes:
    """Return other bytes: a zero in place of the last byte may be the byte that was there."""
    return data[:-1] + bytes([data[-1] ^ 1])


def pinning(configs: Iterable[dict[str, Any]], least: int = LEAST) -> list[dict[str, Any]]:
    """The configs of nodes that trust no sum with their noise, and know their peers."""
    return [
        {
            **{key: value for key, value in one.items() if key not in ("trust", "trust-colluders")},
            "least-trusted": least,
        }
        for one in configs
    ]


class Liar(Federation):
    """Nodes "0", "1", ... of whom each has pinned the keys of all, and their coordinator."""

    def __init__(self, folder: Path, count: int = COUNT, least: int = LEAST) -> None:
        super().__init__(folder, count)
        self.configs = pinning(self.configs, least)
        self.grid = InlineGrid(self.app, self.configs)
        self.enrol()

    def shared(self, roster: Mapping[str, bytes], **told: Any) -> ConfigRecord:
        """Return the record of an attempt, without signatures."""
        settings = {**PLAIN, **told.get("settings", {})}
        arrays = {"x": np.full(DIM, told.get("x", 0.0))}
        header = "dp-fedsgd", 1, told.get("experiment", "e"), told.get("round_", 1)
        shared = shared_record(*header, encode_settings(settings), arrays)
        return with_roster(shared, told.get("attempt", 1), roster)

    def train(self, name: str, shared: ConfigRecord) -> str:
        """Ask for an upload by a record; return why there is none, "" where there is one."""
        content = RecordDict({"privet": shared, "privet.agent": agent_record(0)})
        reply = self.send(self.nodes[int(name)], content)
        if reply.has_error():
            return str(reply.error.reason)
        return "need-state" if is_need_state(reply.content) else ""

    def sign(self, name: str, shared: ConfigRecord, **changes: Any) -> str:
        """Ask for a signature; return why there is none, "" where there is one."""
        header = [shared[key] for key in ("protocol", "version", "settings", "payload")]
        question = roster_question(shared, task_digest(*header))  # type: ignore[arg-type]
        content = RecordDict({"privet": ConfigRecord({**question, **changes})})
        with own_log() as said:
            reply = self.send(self.nodes[int(name)], content, ENROL)
        self.said = said.text
        return str(reply.error.reason) if reply.has_error() else ""

    def refused(self, name: str, shared: ConfigRecord, told: Told, line: str) -> None:
        """Expect one line at the node, a text of the list to the coordinator, and no charge."""
        with own_log() as said:
            reason = self.train(name, shared)
        assert reason == f"agent {name}: {told}", said.text
        assert line in said.text
        assert len(said.lines) == 1, said.text
        assert self.charged(name) == []

    def honest(self, **told: Any) -> ConfigRecord:
        """Return a record that all have signed."""
        shared = self.shared(self.keys, **told)
        signed = with_signatures(shared, self.signatures(shared))
        assert len(self.signatures(shared)) == len(self.keys)
        return signed


@pytest.fixture
def liar(tmp_path: Path) -> Liar:
    return Liar(tmp_path)


def test_an_honest_coordinator_gets_the_sum(liar: Liar) -> None:
    """The attacks below fail for what they change alone."""
    words = [liar.ask(name, noise_sharing=False) for name in liar.keys]
    assert not any(isinstance(one, str) for one in words), words
    assert cancelled(words) is not None  # type: ignore[arg-type]
    for name in liar.keys:
        (charged,) = liar.charged(name)  # in full: nobody's noise is counted on
        assert "agents" not in charged


@pytest.mark.parametrize("threshold", [0, 3])
def test_no_refusal_says_how_large_an_agents_own_numbers_are(
    tmp_path: Path, threshold: int
) -> None:
    """At a model of the coordinator's choice, without noise: a secure sum shows totals alone."""
    rows = np.random.default_rng(0).standard_normal((4, 50, 3))
    problems = [RidgeRegression((1 + k) * rows[k], rows[k, :, 0]) for k in range(4)]
    named = ("trust-key", "trust-peers")
    peers = trusting_nodes(tmp_path, map(str, range(4)), 0)
    for pinned in (True, False):
        said: list[str] = []

        class Told(InlineGrid):
            def deliver(self, message: Message) -> Message | None:
                reply = super().deliver(message)
                if reply is not None and reply.has_error():
                    said.append(reply.error.reason)  # noqa: B023
                return reply

        nodes = [
            {
                "partition-id": place,
                "num-partitions": 4,
                **({"least-trusted": 2, **{key: one[key] for key in named}} if pinned else {}),
            }
            for place, one in enumerate(peers)
        ]
        app = client_app("dp-fedsgd", lambda context: problems[context.node_config["partition-id"]])
        made = DPFedSGD(
            num_agents=4, step_size_base=0.1, secure_sum=True, sum_threshold=threshold, patience=0.0
        )
        model = ArrayRecord({"x": Array(np.array([2e6, 0.0, 0.0]))})
        with contextlib.suppress(RunError):
            made.start(Told(app, nodes), model, num_rounds=1)
        assert bool(said) != pinned, said


@pytest.mark.parametrize("swapped", [["1"], ["5"], ["1", "2", "3", "4", "5"]])
def test_swapped_keys(liar: Liar, swapped: list[str]) -> None:
    roster = {**liar.keys, **{name: key_pair().public for name in swapped}}
    shared = liar.shared(roster)
    signed = liar.signatures(shared)
    assert not signed.keys() & set(swapped)  # they see another key than theirs
    liar.refused(
        "0",
        with_signatures(shared, signed),
        Told.UNSIGNED,
        f"agent {swapped[0]} has not signed these keys",
    )
    mine = {**liar.keys, "0": key_pair().public}
    assert "not its own" in liar.sign("0", liar.shared(mine)) + liar.said


def test_invented_agents(liar: Liar) -> None:
    """None of them is one of those that the node asks for."""
    invented = {f"ward-{place}": key_pair().public for place in range(20)}
    few = {name: liar.keys[name] for name in ("0", "1", "2")}
    shared = liar.shared({**few, **invented})
    assert "agent ward-0 is no peer whose key this node has pinned; 2 are" in _signing(liar, shared)
    signed = with_signatures(shared, dict.fromkeys(few, bytes(64)))
    liar.refused("0", signed, Told.ROSTER, "agent ward-0 is no peer whose key this node has pinned")


def _signing(liar: Liar, shared: ConfigRecord, name: str = "0", **changes: Any) -> str:
    assert liar.sign(name, shared, **changes)
    return liar.said


def test_invented_agents_beside_enough_peers_uncover_nothing(liar: Liar) -> None:
    """Their masks, which the coordinator knows, are taken off; those of the peers stay."""
    mine = {f"ward-{place}": key_pair() for place in range(5)}
    few = {name: liar.keys[name] for name in ("0", "1", "2", "3")}
    roster = {**few, **{name: keys.public for name, keys in mine.items()}}
    shared = liar.shared(roster)
    signed = liar.signatures(shared)
    assert set(signed) == set(few)
    words = liar.ask("0", roster, noise_sharing=False)
    assert not isinstance(words, str)
    task = task_digest("dp-fedsgd", 1, encode_settings(PLAIN), to_payload({"x": np.zeros(DIM)}))
    binding = Binding("e", 1, 1, tuple(roster.items()), task)
    left: Words = sum((masks_of(name, keys, binding, "0") for name, keys in mine.items()), words)
    assert abs(int(left.view(np.int64)[DIM])) > 2**41


@pytest.mark.parametrize(
    "told",
    [{"round_": 2}, {"attempt": 2}, {"x": 0.5}, {"settings": {"clip": 0.5}}],
    ids=["round", "attempt", "model", "settings"],
)
def test_signatures_of_something_else(liar: Liar, told: dict[str, Any]) -> None:
    """As those of an older round, or of a task that the peers were told."""
    signed = liar.honest()["signed"]
    liar.refused(
        "0",
        ConfigRecord({**liar.shared(liar.keys, **told), "signed": signed}),
        Told.UNSIGNED,
        "agent 1 has not signed these keys, this roster, round and settings",
    )
    assert liar.train("0", liar.honest()) == ""


def test_a_replayed_roster_of_an_earlier_enrolment_or_run(liar: Liar) -> None:
    """With the keys and signatures that belong together: the node has a new key itself."""
    old = liar.honest()
    before = dict(liar.keys)
    liar.enrol()
    liar.refused("0", old, Told.ROSTER, "agent 0 is listed with a public key that is not its own")
    # Its peers' old keys and signatures beside its new one, in one roster.
    mixed = {**before, "0": liar.keys["0"]}
    shared = ConfigRecord({**liar.shared(mixed), "signed": old["signed"]})
    liar.refused("0", shared, Told.UNSIGNED, "agent 1 has not signed")
    # Of another run of this name the peers have other keys as well.
    liar.enrol("f")
    other = ConfigRecord({**liar.shared(liar.keys, experiment="f"), "signed": old["signed"]})
    liar.refused("0", other, Told.UNSIGNED, "agent 1 has not signed")


def test_two_rosters_of_a_round(liar: Liar) -> None:
    """Each half of the nodes is shown a roster that lacks one of the other half, or names more."""
    first = {name: liar.keys[name] for name in ("0", "1", "2", "3", "4")}
    second = {name: liar.keys[name] for name in ("1", "2", "3", "4", "5")}
    one, two = liar.shared(first), liar.shared(second)
    assert liar.sign("0", one) == ""
    for name in ("1", "2"):
        assert liar.sign(name, two) == ""
        assert liar.sign(name, one) == f"agent {name}: {Told.SIGNED_BEFORE}"
        assert liar.said.count("\n") == 0
        assert Told.SIGNED_BEFORE in liar.said
    signed = liar.signatures(one)
    assert not signed.keys() & {"0", "1", "2"}  # each was asked before
    liar.refused("0", with_signatures(one, signed), Told.UNSIGNED, "agent 1 has not signed")


def test_a_second_roster_is_signed_by_no_node_that_forgot(liar: Liar) -> None:
    """As one that was killed before it stored its state: a file remembers."""
    context = liar.grid.contexts[liar.nodes[0]]
    before = dict(context.state.items())
    assert liar.sign("0", liar.shared(liar.keys)) == ""
    context.state[MASK_RECORD] = before[MASK_RECORD]
    assert liar.sign("0", liar.shared(liar.keys, x=0.5)) == f"agent 0: {Told.SIGNED_BEFORE}"


@pytest.mark.parametrize("kind", ["none", "zeros", "another's", "turned", "own task"])
def test_signatures_that_are_none(liar: Liar, kind: str) -> None:
    shared = liar.shared(liar.keys)
    signed = dict(liar.signatures(shared))
    if kind == "none":
        forged = shared
    elif kind == "zeros":
        forged = with_signatures(shared, {})
    elif kind == "another's":
        forged = with_signatures(shared, {**signed, "1": signed["2"]})
    elif kind == "turned":
        forged = with_signatures(shared, {**signed, "1": a_bit_turned(signed["1"])})
    else:
        forged = with_signatures(shared, {**signed, "1": signed["0"]})
    liar.refused("0", forged, Told.UNSIGNED, "agent 1 has not signed")
    assert liar.train("0", with_signatures(shared, signed)) == ""


def test_a_signature_of_nothing_is_not_given(liar: Liar) -> None:
    """Of a run or a roster that the node is not in, or of what is no task."""
    shared = liar.shared(liar.keys)
    assert "holds no key" in _signing(liar, shared, experiment="another")
    assert "holds no key" in _signing(liar, shared, task=b"short")
    assert "holds no key" in _signing(liar, shared, task=bytes(33))
    others = {name: key for name, key in liar.keys.items() if name != "0"}
    assert "agent 0 is not on the roster" in _signing(liar, liar.shared(others))
    twice = {**liar.keys, "1": liar.keys["2"]}
    assert "two agents are listed with one public key" in _signing(liar, liar.shared(twice))
    assert liar.sign("0", shared) == ""


def test_a_node_without_pinned_keys_signs_nothing(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    for one in federation.configs:
        for key in [key for key in one if key.startswith("trust")]:
            del one[key]
    federation.grid = InlineGrid(federation.app, federation.configs)
    federation.enrol()
    shared = Liar.shared(federation, federation.keys)  # type: ignore[arg-type]
    assert Liar.sign(federation, "0", shared)  # type: ignore[arg-type]
    assert "its operator has pinned no keys" in federation.said


def test_an_app_that_brings_the_masks_gets_nothing_of_a_node_with_peers(liar: Liar) -> None:
    """Also without a limit: whoever gave the masks takes them off again."""
    pairs = {(str(i), str(j)): np.zeros(DIM + 1, np.uint64) for i in range(6) for j in range(i, 6)}
    for one in liar.configs:
        for key in ("max-epsilon", "delta", "ledger-path"):
            del one[key]
    liar.app = client_app(
        "dp-fedsgd",
        lambda context: problem(0),
        mask_factory=lambda agent, round_: GivenMasks(pairs),
    )
    liar.grid = InlineGrid(liar.app, liar.configs)
    liar.enrol()
    assert liar.ask("0", noise_sharing=False) == f"agent 0: {Told.GIVEN_MASKS}"


def test_a_statement_is_of_all_that_a_sum_is_bound_to() -> None:
    keys = [key_pair().public for _ in range(4)]
    roster = tuple(zip(("a", "b", "c"), keys, strict=False))
    one = Binding("run", 1, 1, roster, bytes(32))
    others = [
        Binding("ru", 1, 1, roster, bytes(32)),
        Binding("run", 11, 1, roster, bytes(32)),
        Binding("run", 1, 11, roster, bytes(32)),
        Binding("run", 1, 1, roster[:2], bytes(32)),
        Binding("run", 1, 1, (*roster[:2], ("c", keys[3])), bytes(32)),
        Binding("run", 1, 1, (*roster[:2], ("d", keys[2])), bytes(32)),
        Binding("run", 1, 1, roster, bytes(31) + b"\x01"),
    ]
    assert len({statement(each) for each in (one, *others)}) == len(others) + 1
    assert statement(Binding("run", 1, 1, roster[::-1], bytes(32))) == statement(one)


def test_fuzzed_exchanges_bring_no_upload(liar: Liar) -> None:
    """A field of a signed message is changed, by a bit or to another message's."""
    rng = np.random.default_rng(0)
    honest = {number: liar.honest(round_=number) for number in (1, 2)}
    fields = ("names", "keys", "signed", "payload", "settings", "experiment", "round", "attempt")
    others = liar.shared({**liar.keys, "1": key_pair().public}, x=0.5, attempt=2, round_=3)
    for _ in range(FUZZED):
        changed = dict(honest[1])
        for field in rng.choice(fields, rng.integers(1, 4), replace=False):
            value = changed[field]
            if rng.random() < 0.3:
                source = honest[2] if rng.random() < 0.5 else others
                changed[field] = source.get(field, b"")
            elif isinstance(value, int):
                changed[field] = int(value + rng.integers(1, 3))
            else:
                raw = bytearray(value if isinstance(value, bytes) else str(value).encode())
                raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(7))
                changed[field] = (
                    bytes(raw) if isinstance(value, bytes) else raw.decode(errors="replace")
                )
        if _same_for_the_node(changed, honest.values()):
            continue
        assert liar.train("0", ConfigRecord(changed))
    assert liar.charged("0") == []
    assert liar.train("0", honest[1]) == ""


def _same_for_the_node(changed: Mapping[str, Any], honest: Iterable[ConfigRecord]) -> bool:
    """Whether a message is one of the honest ones, but for the node's own signature and order."""
    mine = 64 * list(json.loads(str(next(iter(honest))["names"]))).index("0")

    def told(one: Mapping[str, Any]) -> dict[str, Any]:
        signed = bytes(one["signed"])
        return {**one, "signed": signed[:mine] + signed[mine + 64 :]}

    return any(told(changed) == told(dict(one)) for one in honest)


# ------------------------------------------------------------------ analyses and whole runs


class LyingGrid(InlineGrid):
    """Nodes of a run whose messages a coordinator of its own changes on their way."""

    def __init__(self, nodes: list[dict[str, Any]], settled: Any, lie: str) -> None:
        super().__init__(configured_app(), nodes, settled)
        self.lie, self.uploads, self.asked = lie, 0, 0

    def deliver(self, message: Message) -> Message | None:
        record: Any = message.content.get("privet")
        self.asked += record.get("kind") == "roster"
        if self.lie and "keys" in record:
            changed = dict(record)
            if self.lie == "swapped":
                changed["keys"] = record["keys"][:-32] + key_pair().public
            elif self.lie == "unsigned":
                changed.pop("signed", None)
            elif "settings" in record:
                changed["settings"] = record["settings"].replace(":true", ":true ", 1)
            message.content["privet"] = ConfigRecord(changed)
        reply = super().deliver(message)
        if reply is not None and reply.has_content():
            answer: Any = reply.content["privet"]
            self.uploads += answer.get("kind") == "update"
        return reply


def analysis(
    folder: Path, kind: str, lie: str = "", *, pinned: bool = True
) -> tuple[dict[str, Any], LyingGrid]:
    name, schema = KINDS[kind][0], PATIENTS + ("days = [0, 10000]\n" if kind == "cox" else "")
    nodes = own_tables(folder, schema=schema, name=name, sums_only=True)
    if pinned:
        peers = trusting_nodes(folder, (one["agent"] for one in nodes), 0)
        keys = ("trust-key", "trust-peers")
        nodes = [
            {**one, "least-trusted": 2, **{key: peer[key] for key in keys}}
            for one, peer in zip(nodes, peers, strict=True)
        ]
    raw = config(folder, kind, num_agents=len(nodes), schema=str(folder / "schema.toml"))
    raw |= {"secure-sum": True, "patience": 0.0}
    del raw["data-path"], raw["id-column"]
    settled = read_config(raw)
    grid = LyingGrid(nodes, settled, lie)
    try:
        return dict(execute_analysis(grid, settled, "run").result.table), grid
    except RunError as error:
        return {"error": str(error)}, grid


@pytest.mark.parametrize("kind", ["glm", "describe", "cox"])
def test_pinned_keys_change_no_number_of_an_analysis(tmp_path: Path, kind: str) -> None:
    tables = []
    for pinned in (False, True):
        (tmp_path / str(pinned)).mkdir()
        table, grid = analysis(tmp_path / str(pinned), kind, pinned=pinned)
        assert (grid.asked > 0) is pinned
        assert grid.uploads
        assert table["complete"]
        tables.append(json.dumps(table))
    assert tables[0] == tables[1]


@pytest.mark.parametrize("lie", ["swapped", "unsigned", "settings"])
@pytest.mark.parametrize("kind", ["glm", "describe", "cox"])
def test_a_lying_coordinator_of_an_analysis_gets_nothing(
    tmp_path: Path, kind: str, lie: str
) -> None:
    with own_log() as said:
        table, grid = analysis(tmp_path, kind, lie)
    assert "error" in table
    assert grid.uploads == 0
    why = "not its own" if lie == "swapped" else "has not signed"
    assert why in said.text
