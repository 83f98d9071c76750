"""Every algorithm of this library keeps every promise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from privet.core import ConfigError, algorithms
from privet.testing import Check, CheckFailed, check_algorithm, checks, kit
from privet.testing.sharded import kept_actors
from support.every_algorithm import SLOW

SETTINGS: Mapping[str, Mapping[str, Any]] = {"gfl": {"units": 2}}
"""Of un-noised runs, where the defaults do not fit six agents."""
PRIVATE: Mapping[str, Mapping[str, Any]] = {"fed-plt": {"local-solver": "noisy-gd"}}
"""What makes a run private besides a clip and noise."""

QUICK = ("engines_agree_to_the_bit", "lost_state_is_made_good")
"""Checks that are played on Ray every time."""
OF_STATE = (
    "lost_reply_is_an_absence",
    "lost_state_is_made_good",
    "resumed_run_is_the_uninterrupted_one",
    "run_goes_on_when_all_nodes_restart",
)
VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "fed-plt": {
        "accelerated": {"local-solver": "agd"},
        "mini-batches": {"local-solver": "sgd", "batch-size": 4, "step-size": 0.1},
    },
    "dp-iadmm": {
        "seeded noise": {"epsilon": 5.0, "clip": 0.5, "noise-seed": 3, "rho-period": 2},
        "several inner steps": {"local-updates": 3},
        "output noise": {
            "epsilon": 5.0,
            "clip": 0.5,
            "noise-seed": 3,
            "local-updates": 3,
            "perturbation": "output",
            "row-norm": 3.0,
        },
    },
    "fed-pdm": {
        "public dual": {"dual": "public"},
        "sparse both ways": {
            "sparsifier": "rand-k",
            "alpha-u": 0.5,
            "alpha-d": 0.75,
            "batch": "sample",
            "batch-size": 5,
            "dual": "public",
        },
        "sparse, private dual": {
            "sparsifier": "rand-k",
            "alpha-u": 0.5,
            "alpha-d": 0.75,
            "batch": "sample",
        },
    },
}
"""Settings under which agents hold or send something else than by default."""


def every_check(*engines: str) -> list[Check]:
    return [
        check
        for name in sorted(algorithms())
        for check in checks(
            name, settings=SETTINGS.get(name), private=PRIVATE.get(name), engines=engines
        )
    ]


CODED = "coded_uploads_are_shorter_and_agreed_upon"
CODED_QUICKLY = ("dp-iadmm", "fed-pdm", "fed-plt", "scaffold")
"""Algorithms whose coded uploads are looked at every time: the four kinds of state there are."""


def marked(check: Check) -> Any:
    coded = check.name == CODED and check.algorithm not in CODED_QUICKLY
    seldom = coded or check.algorithm in SLOW
    return pytest.param(check, marks=[pytest.mark.slow] if seldom else [], id=str(check))


@pytest.mark.parametrize("check", [marked(check) for check in every_check("inline", "cohort")])
def test_algorithm_keeps_its_promise(check: Check) -> None:
    check()


@pytest.mark.parametrize(
    "check",
    [
        check
        for name, variants in VARIANTS.items()
        for check in checks(name, variants=variants)
        if check.subject.variant and check.name in OF_STATE
    ],
    ids=str,
)
def test_variant_keeps_the_promises_of_its_state(check: Check) -> None:
    check()


@pytest.mark.parametrize("name", ["led", "fed-pdm"])
def test_coding_may_be_among_the_settings(name: str) -> None:
    for check in checks(name, settings={"value-bits": "8"}):
        if check.name == "coded_uploads_are_shorter_and_agreed_upon":
            check()


def test_too_few_numbers_for_a_code_are_said_with_their_number() -> None:
    """However large the model is, two coordinates are sent of it."""
    (check,) = (
        check
        for check in checks("fed-pdm", settings={"sparsifier": "rand-k", "uplink-k": 2})
        if check.name == "coded_uploads_are_shorter_and_agreed_upon"
    )
    with pytest.raises(
        CheckFailed,
        match=r"value-bits, round 1: \d+ bytes are not below \d+, where an upload has k = 2 of "
        r"d = 80 numbers: give settings= or problems= with which it has 40$",
    ):
        check()


@pytest.fixture(scope="module")
def actors() -> Iterator[None]:
    with kept_actors():
        yield


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=() if check.name in QUICK else pytest.mark.slow, id=str(check))
        for check in every_check("inline", "ray")
    ],
)
def test_algorithm_keeps_its_promise_on_ray(check: Check, actors: None) -> None:
    check()


def test_unknown_algorithms_and_engines_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown algorithm 'fed-nothing'"):
        check_algorithm("fed-nothing")
    with pytest.raises(ValueError, match="engine 'spark': choose of inline, cohort, ray"):
        check_algorithm("led", engines=("spark",))


def test_report_says_what_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first promises; TAMUNA has no private form, of which more would be checked."""
    first = kit.PROMISES[:2]
    monkeypatch.setattr(kit, "PROMISES", first)
    report = check_algorithm("tamuna", engines=("inline",))
    assert report.algorithm == "tamuna"
    assert report.passed == tuple(promise.__name__ for promise in first)
    assert str(report).startswith("tamuna: 2 checks passed in ")
