"""Privacy-critical: when a node computes, and when its reply leaves.

Where uploads are folded as they come, the time of a reply decides which model it is combined with,
so it must be no function of the records. The steps of this library's own problems are the same
whatever the records are. Those of others take a time that their node declares: every reply is held
back until then, in every run, and one that took longer is replaced by an error.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from privet.core import ConfigError
from privet.core.files import open_own, state_path, write_whole
from privet.kernel import BudgetRefused, NodeRules, Problem, Told

from .terms import ARRIVAL_TIMES

OWN_PROBLEMS = "privet.problems."
"""The modules of problems whose steps take the same time whatever the records are."""


def require_fixed_time(
    problem: Problem,
    settings: Mapping[str, Any],
    private: bool,
    seconds: float,
    *,
    limited: bool = False,
) -> None:
    """Refuse a private task whose run time may depend on the records, before it is charged.

    That counts where uploads are folded as they come, and at a node with limits where records are
    sampled: how many take part is a secret, and takes its time.

    Parameters
    ----------
    problem
        A problem of another module than this library's may take as long as it likes.
    settings
        Those of the message, which say whether the time of a reply counts, and how records are
        chosen.
    private
        Whether the reply is charged.
    seconds
        The declared time of every reply; 0 where none is declared.
    limited
        Whether the node has limits of its own.

    Raises
    ------
    BudgetRefused
    """
    if not private or seconds or type(problem).__module__.startswith(OWN_PROBLEMS):
        return
    if settings.get(ARRIVAL_TIMES):
        raise BudgetRefused(Told.ARRIVALS)
    if limited and settings.get("batch") == "poisson":
        raise BudgetRefused(Told.POISSON_TIME)


class Pace:
    """The time between the tasks of a node, kept in a file beside its ``state-path``.

    Raises
    ------
    ConfigError
        If the node has a ``min-seconds-between`` and no ``state-path``, or its file is damaged.
    """

    def __init__(self, rules: NodeRules, context: Context) -> None:
        self._rules = rules
        if rules.min_seconds_between:
            if (path := state_path(context.node_config)) is None:
                raise ConfigError(
                    "node-config: min-seconds-between needs state-path, beside which the time of "
                    "the last task is kept",
                    Told.RULES_UNREADABLE,
                )
            self._file: Path = path.with_name(f"{path.name}.ended")

    @contextmanager
    def turn(self, message: Message) -> Iterator[None]:
        """Wait until another task may be computed, and note that one is; the block charges it.

        The time is written before, so that a disk that takes no more is found out uncharged. A
        task that the block refuses is no task: the time of the one before is put back, or a
        coordinator without a budget left could hold up all others.

        Raises
        ------
        BudgetRefused
            If its message expires before that.
        """
        if not self._rules.min_seconds_between:
            yield
            return
        sent, waited = message.metadata, None
        with self._locked():
            while (ended := self._ended()) != waited:  # a task may end meanwhile
                now = time.time()
                time.sleep(self._rules.wait(ended, now, sent.created_at + sent.ttl - now))
                waited = ended
            self.note()
            try:
                yield
            except BaseException:
                self._write(ended)
                raise

    def _ended(self) -> float:
        try:
            ended = float(self._file.read_text()) if self._file.exists() else 0.0
            if not math.isfinite(ended):
                raise ValueError(ended)
            return ended
        except ValueError:
            raise ConfigError(f"{self._file} is damaged: it holds no time", Told.STATE) from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Have the processes of several runs wait one after the other."""
        path = Path(f"{self._file}.lock")
        try:
            lock = open_own(path)
        except OSError as error:
            raise ConfigError(
                f"{path}: {error.strerror}: it is a file of this node's", Told.STATE
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def note(self) -> None:
        """Write down that a task ends now, or begins: one that fails counts as well."""
        if self._rules.min_seconds_between:
            self._write(time.time())

    def _write(self, ended: float) -> None:
        write_whole(self._file, repr(ended).encode())
