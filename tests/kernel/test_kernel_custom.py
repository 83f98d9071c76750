"""Programs of other packages: named where they are charged, and run behind nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from privet.kernel import (
    Clipped,
    NoiseError,
    Perturber,
    Records,
    RecordsError,
    Release,
    SeededNoise,
    clipped_term,
)
from privet.kernel.door import Held
from privet.kernel.programs import custom as module
from privet.kernel.programs.custom import Program, custom_in, register_program
from privet.kernel.streams import Streams
from privet.problems import RidgeRegression, public_facts

PROBLEM = RidgeRegression(np.arange(12.0).reshape(6, 2), np.arange(6.0))
FACTS = public_facts(PROBLEM)
STREAMS = Streams(0, "0", 1)
PROOF = "one clipped gradient is a Gaussian release (see the handbook [3], Lemma 2)"


def twice(problem: Any, noise: Perturber, streams: Streams, *, x: Any, clip: float) -> Any:
    """Return twice a clipped gradient."""
    clipped, _ = clipped_term(problem, x, clip)
    return 2.0 * (noise.perturb(clipped) if noise.charged else clipped.value)


def thrice(problem: Any, noise: Perturber, streams: Streams) -> Any:
    return noise.perturb(Clipped(np.zeros(2), 3.0, "l2"))


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    monkeypatch.setattr(module, "_PROGRAMS", {})
    return register_program("twice-a-gradient", proof=PROOF, run=twice)  # type: ignore[return-value]


def charged(program: Program, **changes: Any) -> Release:
    sensitivity = FACTS.sensitivity(0.7, relation="replace-one")
    return program.release("gaussian", **{"scale": 0.5, "sensitivity": sensitivity, **changes})


def records(release: Release) -> tuple[Records, Perturber]:
    noise = Perturber(release, SeededNoise(0), FACTS)
    return Records(Held(PROBLEM), noise), noise


def test_its_release_names_it_with_its_proof(program: Program) -> None:
    release = charged(program, count=3, relation="replace-one")
    assert release.what == f"custom program twice-a-gradient: {PROOF}"
    assert (release.mechanism, release.scale, release.count) == ("gaussian", 0.5, 3)
    assert custom_in([release.what, "of x", release.what]) == (release.what,)


def test_it_runs_behind_its_own_charge(program: Program) -> None:
    held, noise = records(charged(program))
    found = held.custom("twice-a-gradient", STREAMS, x=np.ones(2), clip=0.7)
    noise.settle()
    drawn = SeededNoise(0).gaussian((1, 2), 0.5)[0]
    value = clipped_term(PROBLEM, np.ones(2), 0.7)[0].value
    assert found / 2 - drawn == pytest.approx(value, abs=1e-3)
    with pytest.raises(NoiseError, match="more than the 1 draws"):
        held.custom("twice-a-gradient", STREAMS, x=np.ones(2), clip=0.7)


def test_without_a_charge_it_runs_without_noise() -> None:
    held, _ = records(Release("none"))
    found = held.custom("twice-a-gradient", STREAMS, x=np.ones(2), clip=0.7)
    assert np.array_equal(found, 2 * clipped_term(PROBLEM, np.ones(2), 0.7)[0].value)


@pytest.mark.parametrize(
    "what",
    ["", "dp-fedsgd noised local gradients", "custom program other: " + PROOF,
     "custom program twice-a-gradient: something else"],
)  # fmt: skip
def test_a_charge_for_something_else_is_refused(program: Program, what: str) -> None:
    held, noise = records(Release("gaussian", scale=0.5, sensitivity=1.0, what=what))
    with pytest.raises(NoiseError, match="not for custom program 'twice-a-gradient'"):
        held.custom("twice-a-gradient", STREAMS, x=np.ones(2), clip=0.7)
    assert noise.taken == 0


def test_no_value_may_move_by_more_than_was_charged() -> None:
    other = register_program("thrice", proof=PROOF, run=thrice)
    held, _ = records(other.release("gaussian", scale=0.5, sensitivity=2.9))
    with pytest.raises(NoiseError, match=r"moves by 3 in l2, more than the 2\.9"):
        held.custom("thrice", STREAMS)


def test_what_is_not_registered_cannot_be_asked_for() -> None:
    held, _ = records(Release("none"))
    with pytest.raises(RecordsError, match="no custom program 'unheard-of' is registered"):
        held.custom("unheard-of", STREAMS)


@pytest.mark.parametrize(
    "argument",
    [[1.0], {"x": 1.0}, twice, np.array([twice], object), (1.0, [2.0]), PROBLEM],
    ids=lambda argument: type(argument).__name__,
)
def test_arguments_are_public_numbers_texts_and_arrays(program: Program, argument: Any) -> None:
    """A list that the half keeps a hold of could be written into."""
    held, noise = records(charged(program))
    with pytest.raises(NoiseError, match="takes numbers, texts and vectors"):
        held.custom("twice-a-gradient", STREAMS, x=argument, clip=0.7)
    assert noise.taken == 0


BUILT_IN = {name for name in vars(Records) if not name.startswith("_")}
OTHERS = {"charged", "dim", "dtype", "facts", "release"}
"""What `Records` has that is no program."""


@pytest.mark.parametrize("name", sorted(BUILT_IN - OTHERS))
def test_no_built_in_name_is_free(name: str) -> None:
    with pytest.raises(ValueError, match="is built in: give yours another name"):
        register_program(name.replace("_", "-"), proof=PROOF, run=twice)


@pytest.mark.parametrize("name", ["", "Twice", "two words", "a:b", "-a", "a--b", "a_b", "zwölf"])
def test_a_name_is_in_kebab_case(name: str) -> None:
    with pytest.raises(ValueError, match="name is in kebab-case"):
        register_program(name, proof=PROOF, run=twice)


@pytest.mark.parametrize(
    ("proof", "says"),
    [("", "needs a proof"), ("  ", "needs a proof"), ("two\nlines", "in one line"),
     ("x" * 180, "longer than 179 characters")],
)  # fmt: skip
def test_a_proof_is_a_line_that_a_release_can_hold(proof: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        register_program("long", proof=proof, run=twice)


def test_the_longest_proof_fits_a_release() -> None:
    made = register_program("long", proof="x" * 179, run=twice)
    assert len(charged(made).what) == 200


def test_a_name_is_registered_with_one_proof_and_function(program: Program) -> None:
    assert register_program("twice-a-gradient", proof=PROOF, run=twice) == program
    says = "'twice-a-gradient' is registered with another proof or function"
    with pytest.raises(ValueError, match=says):
        register_program("twice-a-gradient", proof="another", run=twice)
    with pytest.raises(ValueError, match=says):
        register_program("twice-a-gradient", proof=PROOF, run=thrice)
    held, _ = records(Release("none"))
    assert held.custom("twice-a-gradient", STREAMS, x=np.ones(2), clip=0.7).any()
