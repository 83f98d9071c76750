"""``privet pin``: a node's key is made once, and lines of peers are collected."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from privet.kernel.trust import read_key, read_peers
from support.cli import privet


def line_of(folder: Path, name: str) -> Path:
    """Return a file with the line that another operator's node prints."""
    code, line, _ = privet("pin", str(folder / f"{name}.key"), "--agent", name)
    assert code == 0
    (folder / f"{name}.toml").write_text(line)
    return folder / f"{name}.toml"


def test_a_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    key = tmp_path / "sum.key"
    first = privet("pin", str(key), "--agent", "site-1")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    made = key.read_bytes()
    assert privet("pin", str(key), "--agent", "site-1") == first
    assert key.read_bytes() == made
    assert read_peers(first[1]) == {"site-1": read_key(str(key)).public}
    assert "PRIVATE" not in first[1]


def test_lines_are_collected_beside_those_that_are_there(tmp_path: Path) -> None:
    lines = [line_of(tmp_path, name) for name in ("b", "c", "10", "9")]
    peers = tmp_path / "peers.toml"
    own = ("pin", str(tmp_path / "a.key"), "--agent", "a", "--peers", str(peers))
    assert privet(*own, str(lines[0]))[0] == 0
    code, _, said = privet(*own, *map(str, lines[1:]))
    assert code == 0
    assert f"{peers}: 5 agents" in said
    assert list(read_peers(peers.read_text())) == ["9", "10", "a", "b", "c"]


@pytest.mark.parametrize(
    ("spoilt", "line"),
    [
        ("other", "b has another key than before: take one out"),
        ("same key", "the key of d is another agent's as well"),
        ("no key", "is not an Ed25519 public key"),
        ("no toml", "bad.toml: "),
        ("missing", "No such file"),
        ("open", "trust-key is open to others (mode 0644)"),
        ("no name", "--agent: give the name"),
        ("no peers", "--peers: give the file"),
    ],
)
def test_what_is_not_collected(tmp_path: Path, spoilt: str, line: str) -> None:
    good = line_of(tmp_path, "b")
    peers, bad = tmp_path / "peers.toml", tmp_path / "bad.toml"
    own = ["pin", str(tmp_path / "a.key"), "--agent", "a"]
    given = [*own, "--peers", str(peers), str(good)]
    assert privet(*given)[0] == 0
    before = peers.read_text()
    line_of(tmp_path, "c")
    if spoilt == "other":
        bad.write_text((tmp_path / "c.toml").read_text().replace('"c"', '"b"'))
    elif spoilt == "same key":
        bad.write_text(good.read_text().replace('"b"', '"d"'))
    elif spoilt == "no key":
        bad.write_text('"d" = "MCowBQYDK2VuAyEAY5N1tVn2V0yYw1UkbEo6mF0fA8cI3Yx1rL8m0yqXq1Y="')
    elif spoilt == "no toml":
        bad.write_text("d: MCow")
    elif spoilt == "open":
        bad.write_text("")
        (tmp_path / "a.key").chmod(0o644)
    elif spoilt == "no name":
        own[-1] = "a: b"
    words = [*own, *([] if spoilt == "no peers" else ["--peers", str(peers)]), str(bad)]
    code, _, said = privet(*words)
    assert code in (1, 2)
    assert line in said
    assert said.count("\n") == 1
    assert peers.read_text() == before
