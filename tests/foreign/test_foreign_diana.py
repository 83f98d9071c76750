"""An algorithm that sends sparse vectors by default keeps every promise, and a wrong one does not.

DIANA sends a quarter of the numbers of every vector; the kit plays that, and the whole ones too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from privet.agents.method import agreed_on
from privet.client_apps import Local, sparse_arrays
from privet.core import algorithm
from privet.problems import minimize
from privet.rounds import uploads
from privet.server_apps import read_config
from privet.sim import InlineGrid
from privet.testing import Check, CheckFailed, checks, logistic_federation
from privet.wire.payload import encoded
from privet.wire.sparse import SparseVector, encode, top_k
from support.federations import app_of, zeros
from support.outside import installed
from support.paths import ROOT

WHOLE = {"whole vectors": {"share": 1.0}}
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module", autouse=True)
def diana() -> Iterator[None]:
    with installed(ROOT / "tests" / "foreign" / "diana"):
        yield


def check_of(name: str, variant: str = "", **options: Any) -> Check:
    (found,) = (
        check
        for check in checks("diana", **options)
        if (check.name, check.subject.variant) == (name, variant)
    )
    return found


def seen(patch: Patch) -> set[tuple[int, int]]:
    """Return what is filled with k and d of every upload that a server of DIANA reads."""
    read, found = uploads.checked_sparse, set[tuple[int, int]]()

    def reading(*arguments: Any) -> Any:
        vector = read(*arguments)
        found.add((vector.values.size, vector.dim))
        return vector

    patch.setattr(uploads, "checked_sparse", reading)
    return found


@pytest.mark.parametrize(
    ("variant", "sent"),
    [
        ("", {(1, 4), (40, 160)}),  # the latter where what is sent is coded
        pytest.param("whole vectors", {(4, 4), (40, 40)}, marks=pytest.mark.slow),
    ],
)
def test_it_keeps_every_promise_with_sparse_vectors_and_with_whole_ones(
    monkeypatch: Patch, variant: str, sent: set[tuple[int, int]]
) -> None:
    found = seen(monkeypatch)
    for check in checks("diana", variants=WHOLE):
        if check.subject.variant == variant:
            check()
    assert found == sent


def test_variants_are_named_and_play_no_check_of_names_and_keys_again() -> None:
    every = [str(check) for check in checks("diana", variants=WHOLE)]
    assert len(set(every)) == len(every)
    assert "diana-lost_reply_is_an_absence" in every
    assert "diana-lost_reply_is_an_absence[whole vectors]" in every
    assert "diana-keys_are_documented" in every
    assert "diana-keys_are_documented[whole vectors]" not in every


def test_a_variant_that_no_run_takes_is_named() -> None:
    name = "run_is_finite_and_makes_progress"
    with pytest.raises(CheckFailed, match=r"unknown config key 'sharre'; did you mean .*'share'"):
        check_of(name, "misspelt", variants={"misspelt": {"sharre": 0.5}})()


def test_a_variant_may_refuse_un_noised_runs_alone() -> None:
    noised = {"coded by the noise": {"value-bits": "noise"}}
    name, called = "lost_reply_is_an_absence", []
    check = check_of(name, "coded by the noise", variants=noised)
    assert not check.subject.can_run(private=False)
    assert check.subject.can_run(private=True)
    replace(check, promise=called.append)()
    assert not called
    with pytest.raises(CheckFailed, match="value-bits = noise: not used without noise"):
        check_of(name, settings=noised["coded by the noise"])()


@pytest.mark.parametrize("bits", ["4", pytest.param("32", marks=pytest.mark.slow)])
def test_coding_may_be_among_the_settings(bits: str) -> None:
    """Coded messages are compared with plain ones all the same, and engines with each other."""
    settings, problems = {"value-bits": bits, "share": 1.0}, logistic_federation(dim=40)
    for name in ("coded_uploads_are_shorter_and_agreed_upon", "ledger_says_what_the_history_says"):
        check_of(name, settings=settings, problems=problems)()


def test_its_limit_is_the_centralised_optimum() -> None:
    problems = logistic_federation()
    config = read_config(
        {
            "algorithm": "diana",
            "num-agents": 6,
            "step-size-base": 0.3,
            "step-size-rule": "constant",
        }
    )
    strategy = algorithm("diana").load_strategy().from_config(config)
    grid = InlineGrid(app_of(problems, "diana"), 6)
    result = strategy.start(grid, zeros(4), num_rounds=400)
    assert np.abs(result.arrays["x"].numpy() - minimize(list(problems)).x).max() < 1e-9


# ------------------------------------------------------------------ wrong forms of it


def spoilt_replies_that_nobody_looks_at(patch: Patch) -> None:
    patch.setattr(uploads, "require_finite", lambda array: None)


def server_that_follows_with_all_coordinates(patch: Patch) -> None:
    server = import_module("diana.strategy").Server

    def fold(original: Any, half: Any, state: Any, given: Any, turn: Any) -> Any:
        state = original(half, state, given, turn)
        state.h += 1e-9 * (state.h == 0)
        return state

    original = server.fold
    patch.setattr(server, "fold", lambda half, *given: fold(original, half, *given))


def updating(patch: Patch, change: Callable[..., Local]) -> None:
    half = algorithm("diana").load_agent()
    original = half.local_update

    def local_update(self: Any, *arguments: Any) -> Local:
        return change(self, original(self, *arguments), *arguments)

    patch.setattr(half, "local_update", local_update)


def agent_that_keeps_what_it_did_not_send(patch: Patch) -> None:
    def change(half: Any, local: Local, state: Any, broadcast: Any, records: Any, *_: Any) -> Local:
        return local._replace(state={"h": records.un_noised.gradient(broadcast["x"])})

    updating(patch, change)


def agent_that_sends_the_largest_of_the_true_gradient(patch: Patch) -> None:
    """Its values are noised, and which ones are sent is not: it goes behind what it is given."""

    def change(half: Any, local: Local, state: Any, broadcast: Any, records: Any, *_: Any) -> Local:
        if not half.private:
            return local
        problem = records._problem
        places = top_k(problem.gradient(broadcast["x"]), 1)
        sent = SparseVector(problem.dim, local.state["h"][places], places)
        new = half.follow(state, broadcast, sparse_arrays(sent))
        data = encode(sent.values, places, problem.dim)
        return Local(new, encoded(data), agreed_on(new, {"values": sent.values}))

    updating(patch, change)


WRONG: dict[Callable[[Patch], None], tuple[str, ...]] = {
    spoilt_replies_that_nobody_looks_at: (
        "reply_of_nan_is_dropped",
        "reply_of_infinity_is_dropped",
    ),
    server_that_follows_with_all_coordinates: ("same_seed_gives_the_same_bits",),
    agent_that_keeps_what_it_did_not_send: (
        "resumed_run_is_the_uninterrupted_one",
        "lost_state_is_made_good",
    ),
    agent_that_sends_the_largest_of_the_true_gradient: ("uploads_tell_only_what_was_noised",),
}


@pytest.mark.parametrize("breaks", WRONG, ids=lambda breaks: breaks.__name__)
def test_a_wrong_one_is_caught(breaks: Callable[[Patch], None], monkeypatch: Patch) -> None:
    breaks(monkeypatch)
    for name in WRONG[breaks]:
        with pytest.raises(CheckFailed, match=f"diana-{name}: "):
            check_of(name)()


@pytest.mark.parametrize("name", ["reply_of_nan_is_dropped", "reply_of_infinity_is_dropped"])
def test_whichever_entries_are_sent_they_are_spoilt(name: str) -> None:
    """One of 40 is sent, which is hardly ever the first."""
    problems = logistic_federation(dim=40)
    check_of(name, settings={"share": 1 / 40}, problems=problems)()
