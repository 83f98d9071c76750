"""The list of checks, and what runs them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

from privet.core import ConfigError, algorithm
from privet.core.errors import one_line, said_of
from privet.kernel import Problem

from . import absences, coded, halves, noise, runs
from .subject import ENGINES, CheckFailed, Subject

Promise = Callable[[Subject], None]

PROMISES: tuple[Promise, ...] = (
    *halves.CHECKS,
    *runs.CHECKS,
    *absences.CHECKS,
    *noise.CHECKS,
    *coded.CHECKS,
)
"""Checks of every algorithm."""
PRIVATE_PROMISES: tuple[Promise, ...] = noise.PRIVATE_CHECKS + coded.PRIVATE_CHECKS
"""Further checks of an algorithm with a private form."""


class SubjectArguments(TypedDict, total=False):
    """Optional arguments of `checks`."""

    settings: Mapping[str, Any] | None
    private: Mapping[str, Any] | None
    problems: Sequence[Problem] | None
    engines: Sequence[str]
    variants: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Check:
    """One promise, to be checked of one algorithm by calling it.

    Attributes
    ----------
    algorithm, name : str
        Of the algorithm and of the promise.
    doc : str
        Text of the promise.
    """

    algorithm: str
    name: str
    doc: str
    promise: Promise
    subject: Subject

    def __call__(self) -> None:
        """Check the promise.

        Raises
        ------
        CheckFailed
            With one line that names the algorithm and the check.
        """
        try:
            with _no_log():
                if self.subject.can_run(private=self.promise in PRIVATE_PROMISES):
                    self.promise(self.subject)
        except CheckFailed as failure:
            raise CheckFailed(f"{self}: {one_line(str(failure))}") from None
        except Exception as error:
            reason = said_of(error)
            raise CheckFailed(f"{self}: {reason}") from error

    def __str__(self) -> str:
        """Return algorithm, name, and variant if it is of one, as pytest shows them."""
        variant = self.subject.variant
        return f"{self.algorithm}-{self.name}{variant and f'[{variant}]'}"


@dataclass(frozen=True, slots=True)
class Report:
    """The checks that an algorithm has passed.

    ``passed`` names the checks, in order, with their variants in brackets.
    """

    algorithm: str
    passed: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.algorithm}: {len(self.passed)} checks passed in {self.seconds:.1f} s"


def checks(name: str, **subject: Unpack[SubjectArguments]) -> tuple[Check, ...]:
    """Return the checks of an algorithm, to be called one by one.

    Parameters
    ----------
    name : str
        A registered algorithm, of this library or of another package.
    settings : mapping, optional
        Run-config keys of the un-noised runs, in which everybody takes part; the defaults
        otherwise.
    private : mapping, optional
        Run-config keys that make a run private, beside a clip and the algorithm's ``noise_key``.
    problems : sequence of Problem, optional
        One for each agent, of the same number of examples, at least six where secure sums are
        offered; small logistic problems otherwise.
    engines : sequence of str
        Those that are to agree with "inline": "cohort", by default, and "ray".
    variants : mapping of str to mapping, optional
        Further run-config keys beside ``settings``, by a name for them: with each the runs are
        played once more, such as with the whole vector by an algorithm that sends a share of it.
        Of the un-noised and the private runs of a variant the algorithm may refuse one kind.

    Raises
    ------
    ConfigError
        If no algorithm of this name is registered.
    ValueError
        If there is no such engine, or a variant draws unseeded noise in runs that are compared.

    Examples
    --------
    A test for each promise:

        @pytest.mark.parametrize("check", checks("my-algorithm"), ids=str)
        def test_my_algorithm(check):
            check()
    """
    algorithm(name)
    given: dict[str, Any] = {key: value for key, value in subject.items() if value is not None}
    variants = given.pop("variants", {})
    tested = Subject(name, **given)
    for engine in tested.engines:
        if engine not in ENGINES:
            raise ValueError(f"engine {engine!r}: choose of {', '.join(ENGINES)}")
    collected = _checks(tested)
    for variant, more in variants.items():
        settings = {**tested.settings, **more}
        if _draws_unseeded(tested, settings):
            raise ValueError(
                f"variant {variant!r} draws unseeded noise in runs that are compared with each "
                "other: give such keys as private=, or a noise-seed"
            )
        collected += _checks(replace(tested, settings=settings, variant=variant))
    return collected


def _draws_unseeded(subject: Subject, settings: Mapping[str, Any]) -> bool:
    """Return whether these settings draw unseeded noise; what an algorithm refuses does not."""
    if settings.get("noise-seed", -1) >= 0:
        return False
    try:
        return bool(subject.strategy(settings).half.agent.private)
    except ConfigError:
        return False


def _checks(subject: Subject) -> tuple[Check, ...]:
    """Return the checks of an algorithm with some settings; of a variant those that play runs."""
    promises = PROMISES
    if subject.variant:
        promises = tuple(one for one in promises if one not in halves.CHECKS)
    if subject.noise_key:
        promises += PRIVATE_PROMISES
    if len(subject.engines) > 1:
        promises += (runs.engines_agree_to_the_bit,)
    return tuple(
        Check(subject.name, one.__name__, one.__doc__ or "", one, subject) for one in promises
    )


def check_algorithm(name: str, **subject: Unpack[SubjectArguments]) -> Report:
    """Run every check of an algorithm, with the arguments of ``checks``.

    Raises
    ------
    CheckFailed
        At the first promise that is broken, with one line that names it.

    Examples
    --------
    >>> print(check_algorithm("led").passed[0])
    halves_agree_on_name_and_version
    """
    began = time.monotonic()
    passed = []
    for check in checks(name, **subject):
        check()
        passed.append(str(check).removeprefix(f"{name}-"))
    return Report(name, tuple(passed), time.monotonic() - began)


@contextmanager
def _no_log() -> Iterator[None]:
    """Keep the runs' log to itself: most of them go wrong on purpose."""
    log = logging.getLogger("flwr.privet")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
