"""Privacy-critical: programs of other packages, which vouch for them.

    PROGRAM = register_program("my-program", proof="A. Author (2025), Theorem 2", run=run)

where ``run(problem, noise, streams, **arguments)`` returns an array, and a half that returns
``PROGRAM.release(...)`` in ``noised_release`` calls ``records.custom("my-program", streams, ...)``.

Privacy: a custom program is code that holds records, as those of `privet.kernel.programs` do; an
auditor reads it too. Nothing here checks its promises: that every value it hands to
``noise.perturb`` moves by no more between neighbours than the `Clipped` says, that its result is
computed from these noised values and its arguments alone, that it keeps nothing else, and that no
error depends on the records. It holds all the same that the noise that was charged is drawn, that
no value may move by more than was charged, and that whoever reads a ledger, an account or a report
of it sees the program's name and its proof.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import NoiseError, RecordsError
from ..events import LONGEST_TEXT, Mechanism, Release
from ..perturb import Perturber
from ..records import FloatArray, Problem
from ..streams import Streams

Run = Callable[..., FloatArray]
"""``run(problem, noise, streams, **arguments)``: arguments are public numbers, texts and arrays."""

NAMED = "custom program "
"""Prefix of the description of a custom program's release."""
BUILT_IN = (
    "clipped-sum",
    "custom",
    "difference",
    "drift",
    "gradient",
    "inexact",
    "noised-statistics",
    "settle",
    "statistics",
    "un-noised",
    "update",
    "walk",
)
"""Names that no custom program can have: those of `privet.kernel.Records`."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PROGRAMS: dict[str, Program] = {}


@dataclass(frozen=True, slots=True)
class Program:
    """A custom program, as `register_program` makes it.

    Attributes
    ----------
    name : str
    proof : str
        The reason why it is as private as its releases say, or where that is proved.
    run : callable
        ``run(problem, noise, streams, **arguments) -> array``. Where nothing is charged
        ``noise.charged`` is false, and it gives its value without noise.
    """

    name: str
    proof: str
    run: Run

    @property
    def what(self) -> str:
        """The description of its releases in every ledger and account."""
        return f"{NAMED}{self.name}: {self.proof}"

    def release(self, mechanism: Mechanism, **numbers: Any) -> Release:
        """Return a release that names the program.

        ``numbers`` are the other arguments of `Release`: scale, sensitivity, count, relation, ...
        It raises the same errors.
        """
        return Release(mechanism, what=self.what, program=f"{NAMED}{self.name}", **numbers)


def register_program(name: str, *, proof: str, run: Run) -> Program:
    """Register a custom program, once for all halves of a process, and return it.

    Called where a package's agent half is defined, so that it is registered whenever the half is
    loaded. Registering the same program again, as when a module is reloaded, replaces the former.

    Parameters
    ----------
    name : str
        In kebab-case.
    proof : str
        One line, text or reference. With the name it must fit the description of a release:
        "custom program NAME: PROOF" is at most 200 characters long.
    run : callable
        A function of the package; see `Program`.

    Raises
    ------
    ValueError
        For a name that is a built-in program's, or is registered with another proof or function,
        and for what is no name or no proof.
    """
    made = Program(name, proof, run)
    if not _NAME.fullmatch(name):
        raise ValueError(f"a program's name is in kebab-case, found {name!r}")
    if name in BUILT_IN:
        raise ValueError(f"program {name!r} is built in: give yours another name")
    if not proof.isprintable() or not proof.strip():
        raise ValueError(f"program {name!r} needs a proof, or where to read it, in one line")
    if len(made.what) > LONGEST_TEXT:
        most = LONGEST_TEXT - len(made.what) + len(proof)
        raise ValueError(f"program {name!r}: its proof is longer than {most} characters")
    known = _PROGRAMS.get(name)
    if known is not None and _identity(known) != _identity(made):
        raise ValueError(f"program {name!r} is registered with another proof or function")
    _PROGRAMS[name] = made
    return made


def _identity(program: Program) -> tuple[Any, ...]:
    names = (getattr(program.run, name, "") for name in ("__module__", "__qualname__"))
    return program.proof, *names


def custom(
    name: str, problem: Problem, noise: Perturber, streams: Streams, **arguments: Any
) -> FloatArray:
    """Return the result of a registered program.

    Raises
    ------
    RecordsError
        If no program has this name.
    NoiseError
        If noise is charged for something else.
    """
    program = _PROGRAMS.get(name)
    if program is None:
        raise RecordsError(f"no custom program {name!r} is registered")
    if noise.charged and noise.release.what != program.what:
        raise NoiseError(
            f"the charge is for {noise.release.what!r}, not for custom program {name!r}: take "
            "the release from the program"
        )
    return program.run(problem, noise, streams, **arguments)


def custom_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts that describe a custom program's release, in order, each once."""
    return tuple(dict.fromkeys(text for text in texts if text.startswith(NAMED)))


__all__ = ["Program", "custom", "custom_in", "register_program"]
