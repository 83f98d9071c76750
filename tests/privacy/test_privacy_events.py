"""Release events and the in-memory ledger: round trips and hostile input."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.privacy import AgentLedger, Release, account, epsilon_rdp, unnoised_release

DELTA = 1e-5
POSITIVE = st.floats(1e-6, 1e6)


@st.composite
def any_release(draw: st.DrawFn) -> Release:
    mechanism = draw(st.sampled_from(["gaussian", "laplace", "none"]))
    return Release(
        mechanism=mechanism,
        scale=draw(POSITIVE),
        sensitivity=draw(POSITIVE),
        norm="l1" if mechanism == "laplace" else "l2",
        count=draw(st.integers(1, 10**6)),
        relation=draw(st.sampled_from(["replace-one", "add-remove"])),
        to=draw(st.sampled_from(["coordinator", "world"])),
        what=draw(st.text(max_size=40)),
    )


@given(any_release())
def test_round_trip_through_json(release: Release) -> None:
    mapping = json.loads(json.dumps(release.to_dict()))
    assert all(isinstance(value, str | int | float) for value in mapping.values())
    assert Release.from_dict(mapping) == release


@given(st.dictionaries(st.text(max_size=12), st.one_of(
    st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=5),
    st.lists(st.integers(), max_size=2))))  # fmt: skip
def test_arbitrary_mappings_are_refused(mapping: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="release field"):
        Release.from_dict(mapping)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("mechanism", ["gauss", "", None, 3, ["gaussian"]]),
        ("scale", [math.nan, math.inf, -1.0, "1", None, True, [1.0], 10**400]),
        ("sensitivity", [math.nan, -math.inf, -1e-300, "1", None, False]),
        ("norm", ["l1", "linf", None]),
        ("count", [0, -1, 1.0, math.nan, True, "1", None, 10**13]),
        ("sampling", ["bernoulli", None]),
        ("relation", ["replace", "", None]),
        ("unit", ["agent", "user", None]),
        ("to", ["everyone", None]),
        ("what", [None, 3, "x" * 201]),
    ],
)
def test_hostile_fields_are_named(field: str, values: list[object]) -> None:
    good = Release(mechanism="gaussian", scale=1.0, sensitivity=1.0).to_dict()
    for value in values:
        with pytest.raises(ValueError, match=f"'{field}'") as caught:
            Release.from_dict({**good, field: value})
        assert "\n" not in str(caught.value)
    without = {key: value for key, value in good.items() if key != field}
    with pytest.raises(ValueError, match=f"'{field}' is missing"):
        Release.from_dict(without)


def test_unknown_fields_and_other_types_are_refused() -> None:
    good = Release(mechanism="gaussian", scale=1.0, sensitivity=1.0).to_dict()
    with pytest.raises(ValueError, match="'extra' is unknown"):
        Release.from_dict({**good, "extra": 1})
    for junk in (None, 3, "x", [good]):
        with pytest.raises(ValueError, match="expected a mapping"):
            Release.from_dict(junk)  # type: ignore[arg-type]


def test_norm_must_fit_the_mechanism() -> None:
    with pytest.raises(ValueError, match="l1 sensitivity"):
        Release(mechanism="laplace", scale=1.0, sensitivity=1.0)
    with pytest.raises(ValueError, match="l2 sensitivity"):
        Release(mechanism="gaussian", scale=1.0, sensitivity=1.0, norm="l1")
    with pytest.raises(ValueError, match="both 0"):
        Release(mechanism="gaussian", scale=0.0, sensitivity=0.0)


def test_multiplier_and_loss() -> None:
    release = Release(mechanism="gaussian", scale=3.0, sensitivity=0.5)
    assert release.noise_multiplier == 6.0
    assert release.loss == pytest.approx(1 / 6)
    assert unnoised_release("x").noise_multiplier == 0.0
    assert unnoised_release("x").loss == math.inf
    assert replace(release, sensitivity=0.0).noise_multiplier == math.inf
    assert replace(release, sensitivity=0.0).loss == 0.0
    assert replace(release, scale=0.0).loss == math.inf
    assert Release(mechanism="gaussian", scale=1, count=np.int64(3)).to_dict()["count"] == 3


def test_releases_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        unnoised_release("x").scale = 1.0  # type: ignore[misc]


@given(st.lists(any_release().filter(lambda r: r.relation == "replace-one"), max_size=8),
       st.integers(1, 5))  # fmt: skip
def test_agent_ledger_is_the_list_of_what_was_recorded(
    releases: list[Release], repeats: int
) -> None:
    ledger = AgentLedger()
    everything = [release for release in releases for _ in range(repeats)]
    for release in everything:
        ledger = ledger.record(release)
    assert ledger.messages == len(everything)
    assert len(ledger.entries) == len(set(releases))
    assert AgentLedger.from_json(ledger.to_json()) == ledger
    assert "\n" not in ledger.to_json()
    assert ledger.spent(DELTA) == pytest.approx(epsilon_rdp(everything, DELTA), rel=1e-9)


def test_agent_ledger_accounts_like_the_full_list() -> None:
    release = Release(mechanism="laplace", scale=20.0, norm="l1", count=2)
    other = Release(mechanism="gaussian", scale=30.0)
    ledger = AgentLedger()
    for one in [release, other, release]:
        ledger = ledger.record(one)
    expected = account([release, other, release], DELTA)
    assert ledger.account(DELTA).pld == pytest.approx(expected.pld, rel=1e-12)
    assert ledger.account(DELTA).rdp == pytest.approx(expected.rdp, rel=1e-12)
    assert AgentLedger().spent(DELTA) == 0.0
    assert AgentLedger().record(unnoised_release("evaluation")).spent(DELTA) == math.inf


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "{}", "[1]", "[{}]", '[{"times":1}]', '[{"times":0}]', "[" * 100_000,
     '[{"times":true}]', '[{"times":1,"mechanism":"gaussian"}]'],
)  # fmt: skip
def test_agent_ledger_refuses_other_texts(text: str) -> None:
    with pytest.raises(ValueError, match="agent ledger"):
        AgentLedger.from_json(text)


def test_importing_the_room_is_light() -> None:
    """Heavy packages are imported by the functions that need them, and no other room is."""
    heavy = ("scipy", "dp_accounting", "cryptography", "flwr", "privet.problems", "privet.wire")
    code = f"import sys, privet.privacy; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
