"""A coordinator that lies about who dropped out of a secure sum, to nodes with pinned keys.

All messages are its own. It gets one share of each agent from each node, once, for one list that
enough have signed; each other attempt is a line at the node, and a text of the closed list to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from privet.agents.masking import task_digest
from privet.agents.survivors import SUM_RECORD
from privet.kernel import Binding, Told, key_pair
from privet.kernel.survivors import (
    SEALED_BYTES,
    SEED_BYTES,
    SharedSum,
    SumSecrets,
    open_sum,
)
from privet.sim.engine import InlineGrid
from privet.wire import ENROL, ring
from privet.wire.contract import agent_record, read_update
from privet.wire.rosters import read_signature, with_signatures
from privet.wire.survivors import (
    GivenShares,
    SumKeys,
    keys_question,
    read_keys,
    read_shares,
    shares_question,
    survivors_question,
    with_keys,
)
from redteam.test_lying_coordinator import COUNT, LEAST, Liar
from redteam.test_shared_noise import DIM, Words, cancelled
from support.told import own_log

THRESHOLD = 4
TOLD = {"settings": {"sum-threshold": THRESHOLD}}
EVERY = tuple(map(str, range(COUNT)))
NONE = bytes(64)


class Teller(Liar):
    """A coordinator of sums that open without the agents that dropped out."""

    def __init__(self, folder: Path, count: int = COUNT, least: int = LEAST) -> None:
        super().__init__(folder, count, least)
        self.begin()

    def begin(self, **told: Any) -> None:
        """Forget the sum, and name the next one."""
        self.record = self.shared(self.keys, **{**TOLD, **told})
        self.drawn: dict[str, SumKeys] = {}

    def question(self, name: str, record: ConfigRecord) -> RecordDict | str:
        """Return a node's answer to a question, or why there is none; its log is in ``said``."""
        content = RecordDict({"privet": record})
        with own_log() as said:
            reply = self.send(self.nodes[int(name)], content, ENROL)
        self.said, self.lines = said.text, said.lines
        return str(reply.error.reason) if reply.has_error() else reply.content

    def declined(self, answer: Any, name: str, told: Told, line: str) -> None:
        """Expect a text of the list for the coordinator, and one line at the node."""
        assert answer == f"agent {name}: {told}", self.said
        assert line in self.said
        assert len(self.lines) == 1, self.said

    def draw(
        self, name: str, record: ConfigRecord | None = None, threshold: int = THRESHOLD
    ) -> SumKeys | str:
        """Ask a node for keys of the sum."""
        record = record or self.record
        header = [record[key] for key in ("protocol", "version", "settings", "payload")]
        question = keys_question(record, task_digest(*header), threshold)  # type: ignore[arg-type]
        answer = self.question(name, question)
        if isinstance(answer, str):
            return answer
        places = {one: place for place, one in enumerate(self.names(record))}
        return read_keys(answer, "privet", name, places)

    @staticmethod
    def names(record: Mapping[str, Any]) -> tuple[str, ...]:
        names = str(record["names"]).strip("[]").replace('"', "").split(", ")
        return tuple(names)

    def draw_all(self) -> ConfigRecord:
        """Ask all for keys; return the record that asks for uploads to this sum."""
        for name in self.names(self.record):
            drawn = self.draw(name)
            assert not isinstance(drawn, str), self.said
            self.drawn[name] = drawn
        return self.told()

    def told(
        self, keys: Mapping[str, bytes] | None = None, signed: Mapping[str, bytes] | None = None
    ) -> ConfigRecord:
        names = self.names(self.record)
        mine = {name: self.drawn[name].public for name in names} | dict(keys or {})
        signatures = {name: self.drawn[name].signature for name in names} | dict(signed or {})
        record = with_signatures(self.record, signatures)
        return with_keys(record, [mine[name] for name in names])

    def upload(self, name: str, record: ConfigRecord) -> Words | str:
        content = RecordDict({"privet": record, "privet.agent": agent_record(0)})
        with own_log() as said:
            reply = self.send(self.nodes[int(name)], content)
        self.said, self.lines = said.text, said.lines
        if reply.has_error():
            return str(reply.error.reason)
        update = read_update(reply.content, "dp-fedsgd", 1, int(str(record["round"])))
        return ring.from_bytes(update.payload, {"g": (DIM,), ring.MEMBERS: ()}).words

    @property
    def sum(self) -> SharedSum:
        """The sum that all have drawn keys for."""
        record: Any = self.record
        header = [record[key] for key in ("protocol", "version", "settings", "payload")]
        names = self.names(record)
        roster = tuple((name, self.keys[name]) for name in names)
        run = Binding(
            *(record["experiment"], record["round"], record["attempt"], roster),
            task_digest(*header),
        )
        return SharedSum(run, THRESHOLD, tuple(self.drawn[name].public for name in names))

    def uploaded(self) -> dict[str, Words]:
        """Have all upload to a sum."""
        record = self.draw_all()
        uploads = {name: self.upload(name, record) for name in self.names(record)}
        assert not any(isinstance(one, str) for one in uploads.values()), self.said
        return uploads  # type: ignore[return-value]

    def sign_list(self, name: str, listed: Collection[str], **changes: Any) -> bytes | str:
        question = survivors_question(self.record, self.sum.marks(listed))
        answer = self.question(name, ConfigRecord({**question, **changes}))
        return answer if isinstance(answer, str) else read_signature(answer, "privet", name)

    def signatures_of(self, listed: Collection[str]) -> dict[str, bytes]:
        signed = {name: self.sign_list(name, listed) for name in listed}
        return {name: one for name, one in signed.items() if isinstance(one, bytes)}

    def ask_shares(
        self,
        name: str,
        listed: Collection[str],
        signed: Mapping[str, bytes],
        **changes: Any,
    ) -> GivenShares | str:
        names = self.sum.names
        place = names.index(name)
        sealed = [self.drawn[giver].sealed[place] for giver in names]
        every = [signed.get(one, NONE) for one in names]
        question = shares_question(self.record, self.sum.marks(listed), every, sealed)
        answer = self.question(name, ConfigRecord({**question, **changes}))
        if isinstance(answer, str):
            return answer
        return read_shares(answer, "privet", name, self.sum.givers)


@pytest.fixture
def teller(tmp_path: Path) -> Teller:
    return Teller(tmp_path)


SURVIVORS = ("0", "1", "2", "4", "5")
FEW = EVERY[:4]
"""Those of a later sum: two agents fewer."""


def test_an_honest_coordinator_gets_the_sum_and_one_charge_an_agent(teller: Teller) -> None:
    """The attacks below fail for what they change alone."""
    uploads = teller.uploaded()
    signed = teller.signatures_of(SURVIVORS)
    assert len(signed) == len(SURVIVORS)
    given = {name: teller.ask_shares(name, SURVIVORS, signed) for name in SURVIVORS}
    assert not any(isinstance(one, str) for one in given.values()), teller.said
    total = np.add.reduce([uploads[name] for name in SURVIVORS])
    assert cancelled([uploads[name] for name in SURVIVORS]) is None
    shares = {name: one.shares for name, one in given.items() if not isinstance(one, str)}
    own = {name: one.own for name, one in given.items() if not isinstance(one, str)}
    for known in (own, {}):  # the seeds themselves, or shares of them alone
        opened = total.copy()
        open_sum(opened, teller.sum, SURVIVORS, shares, known)
        assert int(opened.view(np.int64)[DIM]) == len(SURVIVORS) * 2**40
    open_sum(total, teller.sum, SURVIVORS, shares, own)
    assert int(total.view(np.int64)[DIM]) == len(SURVIVORS) * 2**40
    assert [len(teller.charged(name)) for name in EVERY] == [1] * COUNT


@pytest.mark.parametrize("later", [{"attempt": 2}, {"round_": 2}], ids=["attempt", "round"])
@pytest.mark.parametrize("signed", [False, True])
def test_no_list_is_opened_after_a_later_sum(
    teller: Teller, later: dict[str, int], signed: bool
) -> None:
    """A sum without sum-threshold over two fewer; then a list of it and exactly one agent more.

    The difference would be that agent's upload. Whoever is in the later sum signs no list of the
    one before, and gives no shares; of the others there are too few.
    """
    teller.uploaded()
    first = teller.record
    before = teller.signatures_of(EVERY) if signed else {}
    teller.record = teller.shared({name: teller.keys[name] for name in FEW}, **later)
    signatures = teller.signatures(teller.record)
    plain = with_signatures(teller.record, {name: signatures[name] for name in FEW})
    for name in FEW:
        assert not isinstance(teller.upload(name, plain), str), teller.said
    teller.record = first
    line = "or one of a later sum since"
    listed = EVERY if signed else EVERY[:5]
    for name in FEW:
        if not signed:
            teller.declined(teller.sign_list(name, listed), name, Told.ROSTER, line)
        teller.declined(teller.ask_shares(name, listed, before), name, Told.ROSTER, line)
    assert len(EVERY) - len(FEW) < THRESHOLD


@pytest.mark.parametrize("number", [-1, 0, 2**53, 2**62])
@pytest.mark.parametrize("which", ["round_", "attempt"])
def test_rounds_and_attempts_that_do_not_exist(teller: Teller, which: str, number: int) -> None:
    """What a node keeps in place of an attempt, once a round is closed to it, is none of them."""
    if (which, number) == ("round_", 2**53):
        number += 1  # the last round there is
    line = f"message field {which.strip('_')!r} is {number}, expected 1 to"
    teller.begin(**{which: number})
    teller.declined(teller.draw("0"), "0", Told.MESSAGE, line)
    assert teller.sign("0", teller.record) == f"agent 0: {Told.MESSAGE}"
    assert line in teller.said
    teller.declined(teller.upload("0", teller.record), "0", Told.MESSAGE, line)
    assert teller.charged("0") == []


# ---------------------------------------------------------------------- before the upload


def test_swapped_keys_of_the_sum(teller: Teller) -> None:
    teller.draw_all()
    mine = SumSecrets.fresh().public
    answer = teller.upload("0", teller.told({"1": mine}))
    teller.declined(answer, "0", Told.UNSIGNED, "agent 1 has not signed these keys")
    answer = teller.upload("0", teller.told({"0": mine}))
    teller.declined(answer, "0", Told.ROSTER, "has drawn no keys for this sum, or other ones")
    assert teller.charged("0") == []


def test_swapped_keys_of_the_run(teller: Teller) -> None:
    """The peers see a key that is not theirs, and draw none; the victim is sent no signature."""
    swapped = {**teller.keys, "1": key_pair().public}
    teller.record = teller.shared(swapped, **TOLD)
    answer = teller.draw("1")
    teller.declined(answer, "1", Told.ROSTER, "a public key that is not its own")
    drawn = teller.draw("0")
    assert isinstance(drawn, SumKeys)
    teller.drawn = dict.fromkeys(EVERY, SumKeys(SumSecrets.fresh().public, NONE, ()))
    teller.drawn["0"] = drawn
    answer = teller.upload("0", teller.told())
    teller.declined(answer, "0", Told.UNSIGNED, "agent 1 has not signed these keys")


def test_invented_agents(teller: Teller) -> None:
    """Beside too few peers; and beside enough, where they count as the coordinator's own."""
    invented = {f"ward-{place}": key_pair().public for place in range(3)}
    few = {name: teller.keys[name] for name in EVERY[:3]}
    answer = teller.draw("0", teller.shared({**few, **invented}, **TOLD))
    teller.declined(answer, "0", Told.ROSTER, "agent ward-0 is no peer whose key")
    five = {name: teller.keys[name] for name in EVERY[:5]}
    answer = teller.draw("0", teller.shared({**five, **invented}, **TOLD))
    line = "of 8 agents of whom 4 may help the coordinator, it is 7 to 8"
    teller.declined(answer, "0", Told.ROSTER, line)


@pytest.mark.parametrize("threshold", [0, 1, 2, 3, 7, 2**20])
def test_a_threshold_that_lets_two_lists_be_signed(teller: Teller, threshold: int) -> None:
    answer = teller.draw("0", threshold=threshold)
    line = "of 6 agents of whom 1 may help the coordinator, it is 4 to 6"
    teller.declined(answer, "0", Told.ROSTER, line)


def test_a_threshold_for_the_shares_and_another_for_the_upload(teller: Teller) -> None:
    assert isinstance(teller.draw("0", threshold=5), SumKeys)
    for name in EVERY[1:]:
        drawn = teller.draw(name)
        assert isinstance(drawn, SumKeys)
        teller.drawn[name] = drawn
    teller.drawn["0"] = SumKeys(teller.drawn["1"].public, NONE, ())
    answer = teller.upload("0", teller.told())
    teller.declined(answer, "0", Told.ROSTER, "has drawn no keys for this sum, or other ones")


def test_keys_are_drawn_once_for_an_attempt(teller: Teller) -> None:
    """Also by a node that forgot, as one that was killed before it stored its state."""
    context = teller.grid.contexts[teller.nodes[0]]
    assert isinstance(teller.draw("0"), SumKeys)
    teller.declined(teller.draw("0"), "0", Told.MASK_ONCE, "they are drawn once")
    del context.state[SUM_RECORD]
    teller.declined(teller.draw("0"), "0", Told.SIGNED_BEFORE, "signed a roster of this attempt")
    plain = teller.shared(teller.keys)
    assert teller.sign("0", plain) == f"agent 0: {Told.SIGNED_BEFORE}"


@pytest.mark.parametrize(
    "told",
    [{"round_": 2}, {"attempt": 2}, {"x": 0.5}, {"settings": {"clip": 0.5, "sum-threshold": 4}}],
    ids=["round", "attempt", "model", "settings"],
)
def test_a_replayed_agreement(teller: Teller, told: dict[str, Any]) -> None:
    """Keys and signatures of one sum with the message of another."""
    teller.draw_all()
    teller.record = teller.shared(teller.keys, **{**TOLD, **told})
    answer = teller.upload("0", teller.told())
    teller.declined(answer, "0", Told.ROSTER, "has drawn no keys for this sum, or other ones")
    assert teller.charged("0") == []


def test_a_replayed_agreement_of_an_earlier_enrolment(teller: Teller) -> None:
    old = teller.draw_all()
    teller.enrol()
    answer = teller.upload("0", old)
    teller.declined(answer, "0", Told.ROSTER, "has drawn no keys for this sum, or other ones")


def test_an_upload_to_a_sum_of_the_other_kind(teller: Teller) -> None:
    """Without the threshold in the settings the peers' signatures are of something else."""
    record = teller.draw_all()
    plain = teller.shared(teller.keys)
    mixed = ConfigRecord({**plain, "signed": record["signed"], "sum-keys": record["sum-keys"]})
    answer = teller.upload("0", mixed)
    teller.declined(answer, "0", Told.UNSIGNED, "agent 1 has not signed these keys")
    bare = ConfigRecord({key: value for key, value in record.items() if key != "sum-keys"})
    teller.declined(teller.upload("0", bare), "0", Told.ROSTER, "has drawn no keys")


# ---------------------------------------------------------------------- lists


def test_two_lists_of_survivors(teller: Teller) -> None:
    teller.uploaded()
    assert isinstance(teller.sign_list("0", SURVIVORS), bytes)
    for other in (EVERY, SURVIVORS[:4], SURVIVORS):
        answer = teller.sign_list("0", other)
        teller.declined(answer, "0", Told.OTHER_LIST, "signed a list of survivors of this sum")
    answer = teller.ask_shares("0", EVERY, {})
    teller.declined(answer, "0", Told.OTHER_LIST, "signed a list of survivors of this sum")


def test_two_lists_cannot_both_be_signed_by_enough(teller: Teller) -> None:
    teller.uploaded()
    first, second = EVERY[:5], EVERY[1:]
    signed = {name: teller.sign_list(name, first) for name in ("0", "1", "2")}
    others = {name: teller.sign_list(name, second) for name in ("3", "4", "5")}
    assert all(isinstance(one, bytes) for one in (*signed.values(), *others.values()))
    for name, listed, have in (("0", first, signed), ("3", second, others)):
        answer = teller.ask_shares(name, listed, have)  # type: ignore[arg-type]
        line = "3 of those listed have signed this list, and sum-threshold is 4"
        teller.declined(answer, name, Told.ROSTER, line)


def test_a_node_that_forgot_signs_no_second_list_and_gives_no_second_share(
    teller: Teller,
) -> None:
    """As one that was killed before it stored its state: a file remembers."""
    teller.uploaded()
    context = teller.grid.contexts[teller.nodes[0]]
    before = dict(context.state.items())
    signed = teller.signatures_of(SURVIVORS)
    context.state[SUM_RECORD] = before[SUM_RECORD]
    answer = teller.sign_list("0", EVERY)
    teller.declined(answer, "0", Told.OTHER_LIST, "signed a list of survivors of this sum")
    assert isinstance(teller.ask_shares("0", SURVIVORS, signed), GivenShares)
    context.state[SUM_RECORD] = before[SUM_RECORD]
    answer = teller.ask_shares("0", SURVIVORS, signed)
    teller.declined(answer, "0", Told.SHARED_BEFORE, "given its shares of this sum before")


def test_a_list_with_too_few_pinned_peers(tmp_path: Path) -> None:
    """Enough agents are listed, and those who are no peers of this node do not count."""
    teller = Teller(tmp_path, 7)
    peers = Path(teller.configs[0]["trust-peers"])
    lines = peers.read_text().splitlines(keepends=True)
    own = tmp_path / "peers-of-0.toml"
    own.write_text("".join(line for line in lines if not line.startswith(('"5"', '"6"'))))
    teller.configs[0] = {**teller.configs[0], "trust-peers": str(own), "least-trusted": 4}
    teller.grid = InlineGrid(teller.app, teller.configs)
    teller.enrol()
    teller.record = teller.shared(teller.keys, settings={"sum-threshold": 6})
    for name in teller.names(teller.record):
        drawn = teller.draw(name, threshold=6)
        assert isinstance(drawn, SumKeys), teller.said
        teller.drawn[name] = drawn
    assert not isinstance(teller.upload("0", teller.told()), str), teller.said
    answer = teller.sign_list("0", ("0", "1", "2", "3", "5", "6"))
    teller.declined(answer, "0", Told.ROSTER, "agent 5 is no peer whose key this node has pinned")
    assert "takes part in a sum with 4" in teller.said
    assert isinstance(teller.sign_list("0", ("0", "1", "2", "3", "4", "6")), bytes)


@pytest.mark.parametrize(
    ("listed", "line"),
    [
        (("0", "1", "2"), "3 are listed, and sum-threshold is 4"),
        (("1", "2", "3", "4"), "agent 0 is not on the list"),
        ((), "agent 0 is not on the list"),
    ],
)
def test_lists_that_no_share_is_given_for(
    teller: Teller, listed: tuple[str, ...], line: str
) -> None:
    teller.uploaded()
    teller.declined(teller.sign_list("0", listed), "0", Told.ROSTER, line)
    teller.declined(teller.ask_shares("0", listed, {}), "0", Told.ROSTER, line)


@pytest.mark.parametrize("marks", [b"", b"\x01" * 5, b"\x01" * 7, b"\x02" * 6, b"\xff" * 6])
def test_lists_of_no_form(teller: Teller, marks: bytes) -> None:
    teller.uploaded()
    answer = teller.sign_list("0", EVERY, marks=marks)
    teller.declined(answer, "0", Told.ROSTER, "none of this sum's agents")


def test_a_list_of_another_sum(teller: Teller) -> None:
    teller.uploaded()
    for changes in ({"round": 2}, {"attempt": 2}, {"experiment": "f"}):
        answer = teller.sign_list("0", EVERY, **changes)
        assert answer == f"agent 0: {Told.ROSTER}"
        assert "has masked no upload of round" in teller.said


def test_a_list_before_the_upload(teller: Teller) -> None:
    """A share of a key would open the masks of an upload that is to come."""
    teller.draw_all()
    for answer in (teller.sign_list("0", EVERY), teller.ask_shares("0", EVERY, {})):
        teller.declined(answer, "0", Told.ROSTER, "has masked no upload of round 1 attempt 1")


def test_lists_that_give_one_agent_away_by_a_second_attempt(teller: Teller) -> None:
    """The first sum is opened; the second would be over all of it but agent 3."""
    teller.uploaded()
    signed = teller.signatures_of(EVERY)
    assert isinstance(teller.ask_shares("0", EVERY, signed), GivenShares)
    teller.begin(attempt=2)
    teller.uploaded()
    answer = teller.sign_list("0", SURVIVORS)
    teller.declined(answer, "0", Told.DIFFERENCE, "would reveal the upload of one agent")
    assert isinstance(teller.sign_list("0", SURVIVORS[:4]), bytes)
    # And the list counts in place of the roster for a third.
    teller.begin(attempt=3)
    record = teller.draw_all()
    teller.declined(
        teller.upload("0", record), "0", Told.DIFFERENCE, "would reveal the upload of one agent"
    )


# ---------------------------------------------------------------------- shares


def test_seed_and_share(teller: Teller) -> None:
    """One of them comes of each agent, and nothing on a second request, whatever it lists."""
    teller.uploaded()
    signed = teller.signatures_of(SURVIVORS)
    given = teller.ask_shares("0", SURVIVORS, signed)
    assert isinstance(given, GivenShares)
    assert {len(share) for share in given.shares.values()} == {SEED_BYTES}
    assert set(given.shares) == set(EVERY) - {"0"}
    for listed in (SURVIVORS, EVERY, ("0", "1", "2", "3")):
        answer = teller.ask_shares("0", listed, signed)
        teller.declined(answer, "0", Told.ROSTER, "or has given its shares of that sum")


@pytest.mark.parametrize("kind", ["none", "three", "forged", "another's", "of another list"])
def test_signatures_that_are_too_few(teller: Teller, kind: str) -> None:
    teller.uploaded()
    signed = teller.signatures_of(SURVIVORS)
    mine = SumSecrets.fresh().sign(teller.sum.said(SURVIVORS))
    three = dict(list(signed.items())[:3])
    changed = {
        "none": {},
        "three": three,
        "forged": {**three, "4": mine, "5": mine, "3": mine},
        "another's": {**three, "4": signed["0"], "5": signed["1"]},
        "of another list": {**three, "3": signed["4"]},
    }[kind]
    answer = teller.ask_shares("0", SURVIVORS, changed)
    line = "3 of those listed have signed this list, and sum-threshold is 4"
    teller.declined(answer, "0", Told.ROSTER, line if changed else "0 of those listed")
    assert isinstance(teller.ask_shares("0", SURVIVORS, signed), GivenShares)


def test_shares_that_were_sealed_for_another_sum_or_agent(teller: Teller) -> None:
    teller.uploaded()
    old = {name: drawn.sealed[0] for name, drawn in teller.drawn.items()}
    teller.begin(round_=2)
    teller.uploaded()
    signed = teller.signatures_of(EVERY)
    now = [teller.drawn[giver].sealed[0] for giver in EVERY]
    sealed = [now[0], now[1], old["2"], teller.drawn["3"].sealed[1], NONE[:SEALED_BYTES], now[1]]
    given = teller.ask_shares("0", EVERY, signed, sealed=b"".join(sealed))
    assert isinstance(given, GivenShares)
    assert set(given.shares) == {"1"}


@pytest.mark.parametrize("changes", [{"sealed": b"short"}, {"marks": b"short"}, {"marks": 1}])
def test_fields_of_no_form(teller: Teller, changes: dict[str, Any]) -> None:
    teller.uploaded()
    signed = teller.signatures_of(EVERY)
    answer = teller.ask_shares("0", EVERY, signed, **changes)
    assert isinstance(answer, str)
    assert isinstance(teller.ask_shares("0", EVERY, signed), GivenShares)


# ---------------------------------------------------------------------- whatever it tries


def fuzz(teller: Teller, exchanges: int) -> int:
    """Send messages of which some are changed; return how many sums could be opened.

    What the coordinator has found is counted: of no agent the seed of its own mask and its key,
    with one agent that tells it all that it holds (c = 1).
    """
    rng = np.random.default_rng(0)
    sent = opened = number = 0
    uploads: dict[str, int] = defaultdict(int)
    while sent < exchanges:
        number += 1
        teller.begin(round_=number, x=float(rng.random()))
        honest = teller.draw_all()
        own: dict[str, set[str]] = {name: {"5"} for name in EVERY}
        pair: dict[str, set[str]] = {name: {"5"} for name in EVERY}
        signed: dict[tuple[str, ...], dict[str, bytes]] = defaultdict(dict)
        here: dict[str, Words] = {}
        lists = [EVERY, SURVIVORS, EVERY[:4], EVERY[2:], ("0", "1")]
        lists = [lists[int(rng.integers(3))], *lists]  # one of them is told to most
        for _ in range(90):
            sent += 1
            name, listed = str(rng.choice(EVERY)), lists[min(int(rng.geometric(0.85)) - 1, 5)]
            action = rng.choice(["upload", "sign", "shares"])
            if action == "upload":
                record = honest if rng.random() < 0.7 else _changed(rng, honest)
                answer = teller.upload(name, record)
                if not isinstance(answer, str):
                    uploads[name] += 1
                    here[name] = answer
            elif action == "sign":
                got = teller.sign_list(name, listed, **_some(rng, teller.record))
                if isinstance(got, bytes):
                    assert name not in signed[listed]
                    signed[listed][name] = got
            else:
                have = dict(signed[listed])
                if rng.random() < 0.3:
                    have |= {str(rng.choice(EVERY)): bytes(rng.bytes(64))}
                given = teller.ask_shares(name, listed, have)
                if isinstance(given, GivenShares):
                    assert len(listed) >= THRESHOLD
                    own[name] |= set(EVERY)  # the seed itself is as good as all its shares
                    for other in given.shares:
                        (own if other in listed else pair)[other].add(name)
        for name in EVERY:
            found = [len(part[name]) >= THRESHOLD for part in (own, pair)]
            assert not all(found)
        full = [name for name in EVERY if len(own[name]) >= THRESHOLD]
        opened += any(set(listed) <= set(full) for listed in lists[:-1])
        for name in EVERY:
            assert len(teller.charged(name)) == uploads[name]
    return opened


def _some(rng: np.random.Generator, record: ConfigRecord) -> dict[str, Any]:
    if rng.random() < 0.8:
        return {}
    key = str(rng.choice(["round", "attempt", "marks"]))
    if key == "marks":
        return {key: bytes(rng.integers(0, 3, COUNT, np.uint8))}
    return {key: int(str(record[key])) + int(rng.integers(-1, 2))}


def _changed(rng: np.random.Generator, record: ConfigRecord) -> ConfigRecord:
    """Return a message with one field changed by a bit, or by one."""
    field = str(rng.choice(["keys", "signed", "sum-keys", "payload", "round", "attempt"]))
    value = record[field]
    if isinstance(value, int):
        return ConfigRecord({**record, field: value + 1})
    raw = bytearray(value)  # type: ignore[arg-type]
    raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
    return ConfigRecord({**record, field: bytes(raw)})


def test_fuzzed_exchanges_find_no_upload_and_undercharge_nobody(teller: Teller) -> None:
    assert fuzz(teller, 600) > 0


@pytest.mark.slow
def test_ten_thousand_fuzzed_exchanges(teller: Teller) -> None:
    assert fuzz(teller, 10_000) > 10
