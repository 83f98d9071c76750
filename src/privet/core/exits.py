"""The exit codes of ``privet run``, also in ``summary.json``: may it be repeated as it is?"""

from __future__ import annotations

from enum import IntEnum

from .errors import ConfigError, FruitlessError, HopelessError

EXIT_CODE = "exit-code"
"""The summary's key of the code with which ``privet run`` exits, also for other ways to run."""


class Exit(IntEnum):
    """How a run ended, for supervisors."""

    DONE = 0
    """Completed, stopped on request, or with its target spent and a model."""
    RETRY = 1
    """Failed, and another attempt may do: nodes were away, a server was lost, a disk was full."""
    PERSON = 2
    """A person must change something first: the configuration, a file, the target."""
    FRUITLESS = 3
    """Ended with a model that is of no use: it diverged, or no upload was folded."""
    INTERRUPTED = 130


def exit_code(error: BaseException) -> Exit:
    """Return the exit code of a failure.

    >>> exit_code(ConfigError("clip = -1: must be >= 0")).name
    'PERSON'
    """
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    if isinstance(error, FruitlessError):
        return Exit.FRUITLESS
    return Exit.PERSON if isinstance(error, ConfigError | HopelessError) else Exit.RETRY
