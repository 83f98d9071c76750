"""Release events and the in-memory ledger: round trips and hostile input."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.kernel import AgentLedger, Release, UnsupportedAccountError, epsilon_of
from privet.kernel.events import geometric

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
        what=draw(st.text(max_size=40)),
        steps=draw(st.integers(1, 50)) if mechanism == "gaussian" else 1,
        contraction=draw(st.floats(0, 1)),
    )


@given(any_release())
def test_round_trip_through_json(release: Release) -> None:
    mapping = json.loads(json.dumps(release.to_dict()))
    assert all(isinstance(value, str | int | float) for value in mapping.values())
    assert Release.from_dict(mapping) == release
    full = {each.name: getattr(release, each.name) for each in fields(Release) if each.compare}
    assert Release.from_dict(full) == release


def test_what_is_usual_is_left_out() -> None:
    usual = Release("laplace", scale=2.0, sensitivity=1.0, norm="l1")
    assert list(usual.to_dict()) == ["mechanism", "scale", "sensitivity", "relation"]
    hidden = replace(usual, mechanism="gaussian", norm="l2", steps=3, contraction=0.5)
    assert hidden.to_dict()["steps"] == 3
    assert Release.from_dict(Release("none", norm="l1").to_dict()).norm == "l1"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("mechanism", ["gauss", "", None, 3, ["gaussian"]]),
        ("scale", [math.nan, math.inf, -1.0, "1", None, True, [1.0], 10**400, 0.0, 9e-101, 2e100]),
        ("sensitivity", [math.nan, -math.inf, -1e-300, "1", None, False, 0, 1e-322, 1.1e100]),
        ("norm", ["l1", "linf", None]),
        ("count", [0, -1, 1.0, math.nan, True, "1", None, 10**13]),
        ("sampling", ["poisson", "without-replacement", "bernoulli", None]),
        ("relation", ["replace", "", None]),
        ("unit", ["agent", "user", None]),
        ("to", ["everyone", None]),
        ("what", [None, 3, "x" * 201]),
        ("steps", [0, 1.5, None, 10**13]),
        ("contraction", [-0.1, 1.1, math.nan, None, "1"]),
    ],
)
def test_hostile_fields_are_named(field: str, values: list[object]) -> None:
    good = Release(mechanism="gaussian", scale=1.0, sensitivity=1.0).to_dict()
    for value in values:
        with pytest.raises(ValueError, match=f"'{field}'") as caught:
            Release.from_dict({**good, field: value})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["mechanism", "scale", "sensitivity", "relation"])
def test_missing_fields_are_named(field: str) -> None:
    good = Release(mechanism="gaussian", scale=1.0, sensitivity=1.0).to_dict()
    del good[field]
    with pytest.raises(ValueError, match=f"'{field}' is missing"):
        Release.from_dict(good)


@pytest.mark.parametrize("bound", [1e-100, 1e100])
def test_bounds_belong_to_the_range(bound: float) -> None:
    assert Release("gaussian", scale=bound, sensitivity=bound).loss == 1 + 2**-12
    assert 0 < Release("gaussian", scale=bound, sensitivity=1 / bound).loss < math.inf


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
    for mechanism, norm in (("laplace", "l1"), ("none", "l2")):
        with pytest.raises(ValueError, match="'steps'"):
            Release(mechanism=mechanism, scale=1.0, norm=norm, steps=2)
    with pytest.raises(ValueError, match="'scale'"):
        Release(mechanism="gaussian", sensitivity=1.0)


def test_loss_multiplier_and_draws() -> None:
    release = Release(mechanism="gaussian", scale=3.0, sensitivity=0.5, count=4)
    assert release.loss == (0.5 + 0.5 / 4096) / 3.0
    assert release.noise_multiplier == 6.0  # of the noise itself: the grid is not its matter
    assert release.draws == 4
    assert replace(release, steps=5).draws == 20
    # The grid is tied to the smaller of sensitivity and scale.
    assert replace(release, scale=0.01).loss == pytest.approx(50 + 1 / 4096, rel=1e-15)
    assert Release("none", what="x").noise_multiplier == 0.0
    assert Release("none", what="x").loss == math.inf
    assert Release("none", what="x").draws == 0
    assert Release(mechanism="gaussian", scale=1, count=np.int64(3)).to_dict()["count"] == 3


@pytest.mark.parametrize("chi", [0.0, 1e-9, 0.5, 0.97, 1 - 1e-9, 1 - 2**-53, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 5, 40])
def test_hidden_steps_cost_what_the_worst_linear_steps_show(chi: float, steps: int) -> None:
    """Simulated: w <- chi w + shift against w <- chi w, noise of variance scale^2 a step."""
    release = Release("gaussian", scale=2.0, sensitivity=0.3, steps=steps, contraction=chi)
    apart = variance = 0.0
    for _ in range(steps):
        apart, variance = chi * apart + 0.3 * (1 + 2**-12), chi * chi * variance + 4.0
    assert release.loss == pytest.approx(apart / math.sqrt(variance), rel=1e-12)
    assert geometric(chi, steps) == pytest.approx(sum(chi**j for j in range(steps)), rel=1e-12)


@given(st.lists(any_release().map(lambda r: replace(r, relation="replace-one")), max_size=8),
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
    assert ledger.totals.mu == AgentLedger.from_json(ledger.to_json()).totals.mu
    assert ledger.spent(DELTA) == epsilon_of(((release, 1) for release in everything), DELTA)


def test_agent_ledger_refuses_another_relation_and_counts_what_had_no_noise() -> None:
    release = Release(mechanism="gaussian", scale=30.0)
    assert AgentLedger().spent(DELTA) == 0.0
    assert AgentLedger().record(Release("none", what="evaluation")).spent(DELTA) == math.inf
    with pytest.raises(UnsupportedAccountError, match=r"replace-one.*add-remove"):
        AgentLedger().record(release).record(replace(release, relation="add-remove"))


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "{}", "[1]", "[{}]", '[{"times":1}]', '[{"times":0}]', "[" * 100_000,
     '[{"times":true}]', '[{"times":1,"mechanism":"gaussian"}]'],
)  # fmt: skip
def test_agent_ledger_refuses_other_texts(text: str) -> None:
    with pytest.raises(ValueError, match="agent ledger"):
        AgentLedger.from_json(text)
