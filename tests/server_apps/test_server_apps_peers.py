"""The peer service: who is let in, what is refused, and what late or repeated messages do."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from privet.core import ConfigError, WireError
from privet.server_apps.peers.client import ANSWER_LIMIT, EdgeConnection, Health, LinkError
from privet.server_apps.peers.edge import Board
from privet.server_apps.peers.exchange import Peers
from privet.server_apps.peers.messages import (
    HEAD_LIMIT,
    EdgeOutcome,
    Head,
    Parcel,
    Shape,
    decode,
    encode,
)
from privet.server_apps.peers.settings import parse_bind, parse_peers, peer_settings
from privet.server_apps.peers.tls import Credentials
from support.graph_servers import RUN, Hosts, at_once
from support.tls import make_unit_certificates

DIM = 3
SHAPE = Shape(DIM, "float64")
VECTOR = np.array([1.0, -2.0, 0.5])
LONG = 60.0
"""Seconds for what takes milliseconds on a quiet machine."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Hosts(tmp_path_factory.mktemp("hosts"), 4) as made:
        yield made


@pytest.fixture
def server(hosts: Hosts) -> Iterator[Peers]:
    """Unit 1, whose neighbours are 0 and 2 but not 3; only its service runs."""
    with Peers(hosts.settings("1", timeout=0.4), ("0", "2"), SHAPE, "agreed") as peers:
        peers._service.start()
        yield peers


@pytest.fixture(scope="module")
def standing(hosts: Hosts) -> Iterator[Peers]:
    """Unit 1 once more, for tests that leave nothing behind."""
    settings = replace(hosts.settings("1"), bind=("127.0.0.1", 0))
    with Peers(settings, ("0", "2"), SHAPE, "agreed") as peers:
        peers._service.start()
        yield peers


def link(hosts: Hosts, name: str, port: int | None = None) -> EdgeConnection:
    """Return a unit's link to unit 1."""
    context = hosts.credentials(name).client_context()
    return EdgeConnection("1", f"https://127.0.0.1:{port or hosts.ports['1']}", context)


def head(unit: str = "0", round_: int = 1, vector: Any = VECTOR, **changed: Any) -> Head:
    parcel = Parcel.of(vector, 7)
    made = Head(unit, "1", RUN, "agreed", round_, 7, parcel.checksum)
    return replace(made, **changed)


def message(unit: str = "0", round_: int = 1, vector: Any = VECTOR, **changed: Any) -> bytes:
    return encode(head(unit, round_, vector, **changed), Parcel.of(vector, 7).data)


# ---------------------------------------------------------------------- who is let in


def test_a_neighbour_with_its_certificate_is_heard(hosts: Hosts, server: Peers) -> None:
    with link(hosts, "0") as client:
        said = client.health(LONG)
        assert (said.unit, said.run, said.agreement, said.closed) == ("1", RUN, "agreed", 0)
        assert client.post("/psi", message(), LONG).status == 200
    stored = server.board.edges["0"].inbox[1]
    assert SHAPE.read(stored.data).tobytes() == VECTOR.tobytes()


@pytest.mark.parametrize("path", ["/psi", "/commit", "/health"])
def test_a_unit_that_is_not_a_neighbour_is_refused(hosts: Hosts, server: Peers, path: str) -> None:
    with link(hosts, "3") as client:
        if path == "/health":
            with pytest.raises(LinkError, match="certificate names 3: not a neighbour of 1"):
                client.health(LONG)
        else:
            answer = client.post(path, message("3"), LONG)
            assert (answer.status, answer.outcome) == (403, None)
    assert not any(edge.inbox for edge in server.board.edges.values())


def test_a_neighbour_cannot_speak_for_another(hosts: Hosts, server: Peers) -> None:
    with link(hosts, "2") as client:
        answer = client.post("/psi", message("0"), LONG)
    assert answer.status == 403
    assert answer.reason == "claims to be unit 0, the certificate does not"
    assert not server.board.edges["0"].inbox


def test_a_certificate_of_another_authority_is_refused_both_ways(
    hosts: Hosts, server: Peers, tmp_path: Path
) -> None:
    forged = make_unit_certificates(tmp_path, ["0", "1"], authority="other-ca")
    theirs = Credentials(forged["0"].certificate, forged["0"].key, hosts.credentials("0").authority)
    with (
        EdgeConnection(
            "1", f"https://127.0.0.1:{hosts.ports['1']}", theirs.client_context()
        ) as client,
        pytest.raises(LinkError),
    ):
        client.post("/psi", message(), LONG)
    assert not server.board.edges["0"].inbox
    # The other way round: a server of another authority in the place of unit 2's.
    settings = replace(
        hosts.settings("1"),
        bind=("127.0.0.1", hosts.ports["2"]),
        credentials=Credentials(
            forged["1"].certificate, forged["1"].key, hosts.credentials("0").authority
        ),
    )
    with Peers(settings, ("0",), SHAPE, "agreed") as impostor:
        impostor._service.start()
        client = EdgeConnection(
            "1",
            f"https://127.0.0.1:{hosts.ports['2']}",
            hosts.credentials("0").client_context(),
        )
        with client, pytest.raises(LinkError, match="CERTIFICATE_VERIFY_FAILED"):
            client.post("/psi", message(), LONG)
        assert not impostor.board.edges["0"].inbox


def test_a_client_without_a_certificate_is_refused(hosts: Hosts, server: Peers) -> None:
    context = ssl.create_default_context(cafile=str(hosts.credentials("0").authority))
    context.check_hostname = False
    with (
        httpx.Client(verify=context, trust_env=False) as client,
        pytest.raises(httpx.TransportError),
    ):
        client.get(f"https://127.0.0.1:{hosts.ports['1']}/health")


def test_nothing_is_sent_to_a_server_that_is_another_unit(hosts: Hosts, server: Peers) -> None:
    """Unit 0's address of unit 2 leads to unit 1: the certificate is looked at first."""
    context = hosts.credentials("0").client_context()
    client = EdgeConnection("2", f"https://127.0.0.1:{hosts.ports['1']}", context)
    with client, pytest.raises(LinkError, match="unit-2"):
        client.post("/psi", message(), LONG)
    assert not server.board.edges["0"].inbox


# ---------------------------------------------------------------------- what a neighbour answers

SAID = json.dumps({"unit": "1", "run": RUN, "agreement": "a", "attempt": 7, "closed": 3}).encode()
OK = b"HTTP/1.1 200 OK\r\n"
SHORT = 0.5
"""Seconds that a request may take which is not answered in time."""
SOON = 4.0
"""Seconds within which it has ended on a busy machine; what it is sent takes `SLOW`."""
SLOW = 8.0


class Neighbour:
    """A server without TLS that sends each request the next of some answers, part by part."""

    def __init__(self, *answers: Iterable[bytes]) -> None:
        self._answers = iter(answers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.heads: list[bytes] = []
        self.connections = self.sent = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # an accept under way does not end by a close
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(LONG)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                with connection, suppress(OSError):
                    while asked := connection.recv(1 << 16):
                        self.heads.append(asked)
                        for part in next(self._answers):
                            connection.sendall(part)
                            self.sent += len(part)


def sized(body: bytes, *headers: bytes) -> bytes:
    lines = [b"Content-Length: %d" % len(body), *headers]
    return OK + b"\r\n".join(lines) + b"\r\n\r\n" + body


def slowly(before: bytes, part: bytes) -> Iterator[bytes]:
    """Yield a beginning, and then something every tenth of a second."""
    yield before
    for _ in range(int(SLOW / 0.1)):
        time.sleep(0.1)
        yield part


def asked(neighbour: Neighbour, timeout: float = LONG) -> Health:
    with EdgeConnection("1", neighbour.address, ssl.create_default_context()) as client:
        return client.health(timeout)


def test_an_answer_is_read_up_to_its_limit_and_no_further() -> None:
    whole = SAID.ljust(ANSWER_LIMIT)
    with Neighbour([sized(whole)]) as neighbour:
        assert asked(neighbour) == Health("1", RUN, "a", 7, 3)
    chunked = OK + b"Transfer-Encoding: chunked\r\n\r\n"
    pieces = [whole[i : i + 1000] for i in range(0, len(whole), 1000)]
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    with Neighbour([chunked, *chunks, b"0\r\n\r\n"]) as neighbour:
        assert asked(neighbour).closed == 3
    line = f"^answer above {ANSWER_LIMIT} bytes$"
    with Neighbour([sized(whole + b" ")]) as neighbour, pytest.raises(LinkError, match=line):
        asked(neighbour)
    with (
        Neighbour([chunked, *chunks, b"1\r\n \r\n0\r\n\r\n"]) as neighbour,
        pytest.raises(LinkError, match=line),
    ):
        asked(neighbour)


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "streamed"])
def test_the_rest_of_an_answer_that_is_too_large_is_not_read(declared: bool) -> None:
    part, count = bytes(1 << 20), 64
    length = b"Content-Length: %d\r\n" % (count << 20) if declared else b"Connection: close\r\n"
    parts = itertools.chain([OK + length + b"\r\n"], [part] * count)
    with Neighbour(parts) as neighbour, pytest.raises(LinkError):
        asked(neighbour)
    # What the sockets' buffers hold was sent, and not read.
    assert neighbour.sent < 32 << 20


def test_a_compressed_answer_is_refused_and_none_is_asked_for() -> None:
    large = gzip.compress(bytes(30 << 20))
    answers = [
        [sized(gzip.compress(SAID), b"Content-Encoding: gzip")],
        [sized(large, b"content-encoding: x-gzip")],
        [sized(SAID, b"Content-Encoding: identity, br")],
        [sized(SAID, b"Content-Encoding: Identity")],
    ]
    with Neighbour(*answers) as neighbour:
        for named in ("gzip", "x-gzip", "identity, br"):
            line = f"^answer with Content-Encoding '{named}', which is not read$"
            with pytest.raises(LinkError, match=line):
                asked(neighbour)
        assert asked(neighbour).closed == 3
    assert all(b"\r\naccept-encoding: identity\r\n" in head.lower() for head in neighbour.heads)


@pytest.mark.parametrize(
    ("before", "part"),
    [
        (b"HTTP/1.1 200 ", b"O"),
        (OK + b"X: ", b"x"),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (OK + b"Content-Length: 1000\r\n\r\n", b" "),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x"),
    ],
    ids=["status", "header", "informational", "body", "chunks", "chunk-header"],
)
def test_an_answer_that_trickles_is_not_waited_for(before: bytes, part: bytes) -> None:
    began = time.monotonic()
    with Neighbour(slowly(before, part)) as neighbour:
        with pytest.raises(LinkError, match=f"^no whole answer within {SHORT} s$"):
            asked(neighbour, SHORT)
        assert time.monotonic() - began < SOON


def test_a_link_goes_on_after_an_answer_that_it_refused() -> None:
    good = [sized(SAID)]
    large = [sized(bytes(ANSWER_LIMIT + 1))]
    late = slowly(OK + b"Content-Length: 1000\r\n\r\n", b" ")
    with (
        Neighbour(good, good, large, good, late, good) as neighbour,
        EdgeConnection("1", neighbour.address, ssl.create_default_context()) as client,
    ):
        assert client.health(LONG) == client.health(LONG)
        assert neighbour.connections == 1
        with pytest.raises(LinkError, match="above"):
            client.health(LONG)
        assert client.health(LONG).closed == 3
        with pytest.raises(LinkError, match="within"):
            client.health(SHORT)
        assert client.health(LONG).closed == 3
        assert neighbour.connections == 3


def test_a_neighbour_that_does_not_speak_tls_is_not_waited_for(hosts: Hosts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with link(hosts, "0", silent.getsockname()[1]) as client, pytest.raises(LinkError):
            client.health(SHORT)
        assert time.monotonic() - began < SOON


# ---------------------------------------------------------------------- what is refused


def body_of(**fields: Any) -> bytes:
    """Return a body whose head has these fields."""
    good = json.loads(message()[4 : 4 + struct.unpack_from("<I", message())[0]])
    text = json.dumps({**good, **fields}).encode()
    return struct.pack("<I", len(text)) + text + Parcel.of(VECTOR, 7).data


REFUSED: dict[str, tuple[bytes, int, str]] = {
    "tampered": (message()[:-1] + b"\x00", 400, "checksum of the vector of round 1"),
    "checksum": (message(checksum="0" * 64), 400, "checksum of the vector of round 1"),
    "too short": (message(vector=VECTOR[:2]), 400, "expected (3,) float64"),
    "single precision": (message(vector=VECTOR.astype("float32")), 400, "expected (3,) float64"),
    "not finite": (message(vector=np.array([1.0, np.nan, 0.0])), 400, "not finite"),
    "empty": (b"", 400, "body is truncated"),
    "no head": (struct.pack("<I", 50), 400, "does not fit"),
    "long head": (struct.pack("<I", HEAD_LIMIT + 1) + bytes(HEAD_LIMIT + 1), 400, "not fit"),
    "not json": (struct.pack("<I", 4) + b"\x80abc", 400, "head is not JSON"),
    "a list": (struct.pack("<I", 2) + b"[]", 400, "not a JSON object"),
    "a pickle": (struct.pack("<I", 6) + b"\x80\x04N.\x00\x00", 400, "head is not JSON"),
    "round 0": (message(round=0), 400, "head field 'round' is 0"),
    "round -1": (body_of(round=-1), 400, "'round' is not a whole number"),
    "round 1.5": (body_of(round=1.5), 400, "'round' is not a whole number"),
    "round true": (body_of(round=True), 400, "'round' is not a whole number"),
    "round 1e30": (message(round=10**30), 400, "head field 'round' is 1000"),
    "no attempt": (body_of(attempt=None), 400, "'attempt' is not a whole number"),
    "unit 0": (body_of(unit=0), 400, "'unit' is not a text"),
    "outcome": (body_of(outcomes={"1": "perhaps"}), 400, "'outcomes' is malformed"),
    "outcomes": (body_of(outcomes={str(i): "used" for i in range(9)}), 400, "short object"),
    "another run": (message(run="older"), 409, "message of run 'older', this is 'test'"),
    "another graph": (message(agreement="?"), 409, "graph, weights or model differ"),
    "to another": (message(to="2"), 409, "message to unit 2, this is unit 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_with_its_reason(
    hosts: Hosts, standing: Peers, case: str
) -> None:
    body, status, reason = REFUSED[case]
    inbox = standing.board.edges["0"].inbox
    inbox.clear()
    with link(hosts, "0", standing.port) as client:
        answer = client.post("/psi", body, LONG)
        assert answer.status == status
        assert reason in answer.reason
        assert not inbox
        assert client.post("/psi", message(), LONG).status == 200
        assert list(inbox) == [1]


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "streamed"])
def test_a_body_that_is_too_large_is_refused(hosts: Hosts, standing: Peers, declared: bool) -> None:
    body = bytes(SHAPE.limit + 1)
    content: Any = body if declared else (body[i : i + 999] for i in range(0, len(body), 999))
    client = httpx.Client(
        base_url=f"https://127.0.0.1:{standing.port}",
        verify=hosts.credentials("0").client_context(),
        trust_env=False,
    )
    with client:
        answer = client.post("/psi", content=content, extensions={"sni_hostname": "unit-1"})
        assert answer.status_code == 413
        assert str(SHAPE.limit) in answer.json()["reason"]
        # The largest vector there can be fits.
        assert len(message()) <= SHAPE.limit


def test_heads_survive_the_way() -> None:
    sent = head(outcomes={1: EdgeOutcome.USED, 2: EdgeOutcome.DOUBT}, yours="ab")
    data = Parcel.of(VECTOR, 7).data
    assert decode(encode(sent, data)) == (sent, data)
    with pytest.raises(WireError, match="checksum"):
        decode(encode(replace(sent, checksum=sent.checksum[::-1]), data))


# ---------------------------------------------------------------------- late, repeated, wrong


def test_the_same_vector_twice_is_one_and_another_is_refused(hosts: Hosts, server: Peers) -> None:
    with link(hosts, "0") as client:
        assert client.post("/psi", message(), LONG).status == 200
        assert client.post("/psi", message(), LONG).status == 200
        other = client.post("/psi", message(vector=VECTOR + 1), LONG)
        assert other.status == 409
        assert "another vector of round 1" in other.reason
        # But for a server that was started again, whose attempts count on.
        assert client.post("/psi", message(vector=VECTOR + 1, attempt=8), LONG).status == 200
        assert client.post("/psi", message(vector=VECTOR + 2, attempt=7), LONG).status == 409
    stored = server.board.edges["0"].inbox[1]
    np.testing.assert_array_equal(SHAPE.read(stored.data), VECTOR + 1)


def test_a_vector_that_comes_too_late_is_told_so(hosts: Hosts, server: Peers) -> None:
    began = time.monotonic()
    done = server.exchange(5, {"0": VECTOR, "2": VECTOR})
    assert time.monotonic() - began < server.settings.longest
    assert done.outcomes == {"0": EdgeOutcome.DROPPED, "2": EdgeOutcome.DROPPED}
    assert done.vectors == {}
    with link(hosts, "0") as client:
        assert client.health(LONG).closed == 5
        for round_ in (3, 5):
            late = client.post("/psi", message(round_=round_), LONG)
            assert (late.status, late.outcome) == (410, EdgeOutcome.DROPPED)
            assert late.reason == f"round {round_} is closed here"
        late = client.post("/commit", encode(head(round_=5)), LONG)
        assert (late.status, late.outcome) == (410, EdgeOutcome.DROPPED)
        # The next round may come early.
        assert client.post("/psi", message(round_=6), LONG).status == 200
        assert client.post("/psi", message(round_=7), LONG).status == 200
        assert client.post("/psi", message(round_=8), LONG).status == 200
    assert sorted(server.board.edges["0"].inbox) == [7, 8]


def test_a_neighbour_that_went_on_is_not_waited_for(hosts: Hosts) -> None:
    with Peers(hosts.settings("1", timeout=30.0), ("0",), SHAPE, "agreed") as server:
        server._service.start()
        with link(hosts, "0") as client:
            assert client.post("/psi", message(round_=9), LONG).status == 200
        began = time.monotonic()
        done = server.exchange(5, {"0": VECTOR})
        assert time.monotonic() - began < server.settings.timeout
    assert done.reasons == {"0": "the other end has closed this round"}


@pytest.mark.parametrize("restarted", ["0", "1"])
def test_a_server_that_was_started_again_is_sent_the_vector_once_more(
    hosts: Hosts, restarted: str
) -> None:
    """Its predecessor had taken the vector and said so; unit 0 leads, unit 1 follows."""
    (other,) = {"0", "1"} - {restarted}

    def peers(name: str) -> Peers:
        made = Peers(hosts.settings(name), tuple({"0", "1"} - {name}), SHAPE, "agreed")
        made._service.start()
        return made

    with peers(other) as stays, ThreadPoolExecutor(1) as pool:
        with peers(restarted) as first:
            there = pool.submit(stays.exchange, 4, {restarted: VECTOR})
            edge = first.board.edges[other]
            assert first.board.wait(lambda: 4 in edge.inbox, time.monotonic() + LONG)
        with peers(restarted) as second:
            here = second.exchange(4, {other: VECTOR + 1})
        assert here.outcomes == {other: EdgeOutcome.USED}
        assert there.result().outcomes == {restarted: EdgeOutcome.USED}
        np.testing.assert_array_equal(here.vectors[other], VECTOR)


def test_an_edge_that_was_given_up_is_closed_before_the_others_are(hosts: Hosts) -> None:
    """Unit 1 cannot reach unit 0 and waits for unit 2: who asks for unit 0 hears it is over."""
    settings = replace(hosts.settings("1", timeout=0.3), longest=60.0)
    with Peers(settings, ("0", "2"), SHAPE, "agreed") as server, ThreadPoolExecutor(1) as pool:
        server._service.start()
        with Peers(hosts.settings("2"), ("1",), SHAPE, "agreed") as slow:
            slow._service.start()
            done = pool.submit(server.exchange, 4, {"0": VECTOR, "2": VECTOR})
            with link(hosts, "0") as client:
                until = time.monotonic() + LONG
                while client.health(LONG).closed < 4 and time.monotonic() < until:
                    time.sleep(0.02)
                assert client.health(LONG).closed == 4
            assert not done.done()
            with link(hosts, "2") as client:
                assert client.health(LONG).closed < 4
            assert slow.exchange(4, {"1": VECTOR}).outcomes == {"1": EdgeOutcome.USED}
        assert done.result().outcomes == {"0": EdgeOutcome.DROPPED, "2": EdgeOutcome.USED}


def open_board(unit: str = "1") -> tuple[Board, Parcel]:
    """Return a board in round 4 with the vector of unit 0 there, and its own parcel."""
    board = Board(unit, ["0", "2"])
    own = Parcel.of(VECTOR + 5, 1)
    board.open(4, {"0": own, "2": own})
    assert board.receive(head(round_=4), Parcel.of(VECTOR, 7).data).status == 200
    return board, own


def test_an_edge_counts_only_for_the_very_vectors_that_were_exchanged() -> None:
    board, own = open_board()
    good = head(round_=4, yours=own.checksum)
    assert board.commit(replace(good, yours="0" * 64)).status == 409
    assert board.commit(replace(good, checksum="0" * 64)).status == 409
    assert board.commit(replace(good, round=5)).status == 409
    assert board.commit(replace(good, unit="2")).status == 409  # unit 1 leads that edge
    assert board.edges["0"].outcomes == {}
    for _ in range(2):
        answer = board.commit(good)
        assert (answer.status, answer.outcome) == (200, EdgeOutcome.USED)
    # Once it counts, another attempt's vector no longer changes it.
    newer = replace(head(round_=4, vector=VECTOR + 1), attempt=9)
    refused = board.receive(newer, Parcel.of(VECTOR + 1, 9).data)
    assert (refused.status, refused.outcome) == (410, EdgeOutcome.USED)
    assert board.edges["0"].chosen == Parcel.of(VECTOR, 7)
    (news,) = board.news()
    assert (news.round, news.unit, news.mine) == (4, "0", EdgeOutcome.USED)


def test_a_dropped_edge_stays_dropped() -> None:
    board, own = open_board()
    assert board.decide("0", 4, EdgeOutcome.DROPPED) is EdgeOutcome.DROPPED
    answer = board.commit(head(round_=4, yours=own.checksum))
    assert (answer.status, answer.outcome) == (410, EdgeOutcome.DROPPED)
    assert board.decide("0", 4, EdgeOutcome.USED) is EdgeOutcome.DROPPED


@pytest.mark.parametrize(
    ("mine", "theirs", "told"),
    [
        (EdgeOutcome.USED, EdgeOutcome.USED, False),
        (EdgeOutcome.DROPPED, EdgeOutcome.DROPPED, False),
        (EdgeOutcome.USED, EdgeOutcome.DOUBT, False),
        (EdgeOutcome.USED, EdgeOutcome.DROPPED, True),
        (EdgeOutcome.DROPPED, EdgeOutcome.USED, True),
        (EdgeOutcome.DOUBT, EdgeOutcome.USED, True),
        (EdgeOutcome.DOUBT, EdgeOutcome.DROPPED, True),
    ],
)
def test_a_difference_between_the_ends_is_told_once(
    mine: EdgeOutcome, theirs: EdgeOutcome, told: bool
) -> None:
    board, own = open_board("0" if mine is EdgeOutcome.DOUBT else "1")
    neighbour = "2" if mine is EdgeOutcome.DOUBT else "0"
    board.decide(neighbour, 4, mine)
    board.open(5, {"0": own, "2": own})
    for round_ in (5, 6):
        later = head(neighbour, round_, outcomes={4: theirs})
        board.receive(later, Parcel.of(VECTOR, 7).data)
    news = board.news()
    assert [(n.round, n.unit, n.mine, n.theirs) for n in news] == (
        [(4, neighbour, mine, theirs)] if told else []
    )
    assert board.news() == []


# ---------------------------------------------------------------------- beginning


def test_servers_wait_for_the_run_they_agreed_on(hosts: Hosts) -> None:
    """A server still busy with an older run is waited for, not taken for a partner."""
    older = Peers(hosts.settings("0", run="older"), ("1",), SHAPE, "agreed")
    older._service.start()
    server = Peers(hosts.settings("1"), ("0",), SHAPE, "agreed")
    replacement: list[Peers] = []

    def replace_older() -> None:
        time.sleep(0.5)
        assert server.board.edges["0"].left == 0
        older.close()
        replacement.append(Peers(hosts.settings("0"), ("1",), SHAPE, "agreed"))
        replacement[0].start(LONG)

    try:
        at_once([lambda: server.start(LONG), replace_older])
    finally:
        for peers in (server, older, *replacement):
            peers.close()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        (" 1 = https://b.example:9443 ,2=https://10.0.0.2:1/,",
         {"1": "https://b.example:9443", "2": "https://10.0.0.2:1"}),
        ("1=https://[::1]:9443", {"1": "https://[::1]:9443"}),
    ],
)  # fmt: skip
def test_addresses_are_read(text: str, found: dict[str, str]) -> None:
    assert parse_peers(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "1=",
        "1=b:9443",
        "1=http://b:9443",
        "1=https://b",
        "1=https://b:x",
        "1=https://b:1/psi",
        f"1=https://{'b' * 64}:1",
        "=https://b:1",
        "A_1=https://b:1",
        "1=https://b:1,1=https://c:1",
    ],
)
def test_addresses_that_cannot_be_used_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^(peers|unit)"):
        parse_peers(text)


def test_where_to_listen_is_read() -> None:
    assert parse_bind("127.0.0.1:9443") == ("127.0.0.1", 9443)
    assert parse_bind("[::]:0") == ("::", 0)
    for text in ("9443", ":9443", "a:", "a:b", "a:65536"):
        with pytest.raises(ConfigError, match="peer-bind"):
            parse_bind(text)


def config_of(hosts: Hosts, **changed: Any) -> dict[str, Any]:
    made = hosts.certificates["1"]
    return {
        "unit": "1",
        "peers": "0=https://127.0.0.1:1,1=https://127.0.0.1:2",
        "peer-bind": "127.0.0.1:0",
        "peer-certificate": str(made.certificate),
        "peer-key": str(made.key),
        "peer-ca": str(made.authority),
        "peer-timeout": 3.0,
        "round-timeout": 40.0,
        "gfl-run": "night",
        **changed,
    }


def test_settings_are_read_from_the_run_config(hosts: Hosts) -> None:
    settings = peer_settings(config_of(hosts))
    assert settings.addresses == {"0": "https://127.0.0.1:1"}
    assert (settings.unit, settings.run) == ("1", "night")
    assert (settings.timeout, settings.longest) == (3.0, 43.0)
    with Peers(settings, ("0",), SHAPE, "x") as peers:
        assert peers.port > 0
    with pytest.raises(ConfigError, match="peers: no address of unit 2, a neighbour"):
        Peers(settings, ("0", "2"), SHAPE, "x")


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"peer-ca": ""}, "peer-ca = '': no such file"),
        ({"peer-key": "/nowhere/key"}, "peer-key = '/nowhere/key': no such file"),
        ({"gfl-run": ""}, "gfl-run"),
        ({"unit": "Ward 1"}, "unit = 'Ward 1'"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    hosts: Hosts, changed: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        peer_settings(config_of(hosts, **changed))


def test_credentials_and_addresses_that_do_not_work_are_named(hosts: Hosts, server: Peers) -> None:
    wrong = config_of(hosts, **{"peer-key": str(hosts.certificates["0"].key)})
    with pytest.raises(ConfigError, match=r"peer-certificate = .* with peer-key = "):
        Peers(peer_settings(wrong), ("0",), SHAPE, "x")
    no_ca = config_of(hosts, **{"peer-ca": str(hosts.certificates["0"].key)})
    with pytest.raises(ConfigError, match="peer-ca = "):
        Peers(peer_settings(no_ca), ("0",), SHAPE, "x")
    taken = config_of(hosts, **{"peer-bind": f"127.0.0.1:{hosts.ports['1']}"})
    with pytest.raises(ConfigError, match=r"peer-bind = .*: Address already in use"):
        Peers(peer_settings(taken), ("0",), SHAPE, "x")
