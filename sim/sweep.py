"""One function over many cases: parameter sweeps and Monte Carlo repetitions.

The cases run as Ray tasks, on this machine or on a cluster, or one after the other in this process.
Which of these it is changes no result: a case carries all it depends on, its seed included.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from privet.core import ConfigError, RunError
from privet.core.errors import one_line, said_of
from privet.core.threads import pin_blas_threads

from .ray.session import cluster_cpus, is_connected, local_cpus, ray_session

log = logging.getLogger("flwr.privet")

Case = TypeVar("Case")
Result = TypeVar("Result")
Outcome = tuple[Any, str | None]
"""The result of a case, and why it failed (None if it did not)."""


class SweepError(RunError):
    """Cases failed. The text names the first of them.

    Attributes
    ----------
    results : dict of int to result
        Results of the cases that finished, by position.
    failures : dict of int to str
        Reasons of those that failed, by position.
    """

    def __init__(self, text: str, results: Mapping[int, Any], failures: Mapping[int, str]) -> None:
        super().__init__(text)
        self.results = dict(results)
        self.failures = dict(failures)


def sweep(
    function: Callable[[Case], Result],
    cases: Sequence[Case],
    *,
    address: str | None = None,
    workers: int | None = None,
    progress: bool = True,
    label: Callable[[Case], str] = repr,
    on_result: Callable[[int, Result], None] | None = None,
) -> list[Result]:
    """Return ``[function(case) for case in cases]``, computed side by side.

    Every process computes with one BLAS thread, so the results are the same bits whatever
    ``workers`` and ``address`` are. A case that fails does not stop the others.

    Parameters
    ----------
    function : callable
        Of one case. With more than one worker it is sent to other processes: a function of a
        module that is installed there, or one that holds all it needs.
    cases : sequence
        What the function is called with; must hold everything a result depends on.
    address : str, optional
        A running Ray cluster (see ``privet.sim.ray.session``); a local Ray by default. Inside an
        open ``ray_session`` that one is used, so that several sweeps start Ray once.
    workers : int, optional
        Cases that run at a time: one per core (of the cluster, or of the open session) by default.
        1 without an address runs them in this process, without Ray.
    progress : bool
        Show a bar on a terminal, a log line per finished case elsewhere.
    label : callable
        ``case -> str``, the case in progress and error lines.
    on_result : callable, optional
        ``(position, result)``, called in this process as soon as a case has finished, in whatever
        order they do; for results that are to be kept should the program be stopped.

    Raises
    ------
    SweepError
        After the last case, if any has failed; it holds the results of the others.
    ConfigError
        If ``workers`` is below 1, Ray is needed and not installed, or the function cannot be sent
        to other processes.
    RunError
        If Ray does not start.

    Examples
    --------
    >>> sweep(abs, [-2, 3, -4], workers=1, progress=False)
    [2, 3, 4]
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"workers = {workers!r}: must be >= 1")
    results: dict[int, Result] = {}
    failures: dict[int, str] = {}
    outcomes = closing(_outcomes(function, cases, address, workers))
    with outcomes as ended, _shown(len(cases), progress) as show:
        for position, (result, failure) in ended:
            named = one_line(label(cases[position]))
            if failure is None:
                results[position] = result
                if on_result is not None:
                    on_result(position, result)
            else:
                failures[position] = failure
            show(named if failure is None else f"{named} failed: {failure}")
    if failures:
        first = min(failures)
        others = f"; {len(failures)} of {len(cases)} cases failed" if len(failures) > 1 else ""
        text = f"case {first} ({one_line(label(cases[first]))}): {failures[first]}{others}"
        raise SweepError(text, results, failures)
    return [results[position] for position in range(len(cases))]


def _outcomes(
    function: Callable[[Any], Any], cases: Sequence[Any], address: str | None, workers: int | None
) -> Generator[tuple[int, Outcome]]:
    """Yield position and outcome of every case as it finishes."""
    if address is None:
        if not is_connected():
            workers = min(workers or local_cpus(), max(1, len(cases)))
        if workers == 1:
            for position, case in enumerate(cases):
                yield position, _outcome(function, case)
            return
    with ray_session(address=address, num_cpus=workers) as ray:
        yield from _ray_outcomes(ray, function, cases, workers or cluster_cpus(ray))


def _ray_outcomes(
    ray: Any, function: Callable[[Any], Any], cases: Sequence[Any], workers: int
) -> Iterator[tuple[int, Outcome]]:
    try:  # Sent once: what a function holds, such as data, may be large.
        sent = ray.put(function)
    except Exception as error:
        named = getattr(function, "__qualname__", type(function).__qualname__)
        why = said_of(error.__cause__ or error)
        raise ConfigError(f"{named} cannot be sent to other processes: {why}") from None
    task = ray.remote(num_cpus=1, max_retries=1)(_outcome)
    waiting: dict[Any, int] = {}
    left = enumerate(cases)
    try:
        while True:
            while len(waiting) < workers and (following := next(left, None)) is not None:
                position, case = following
                try:
                    waiting[task.remote(sent, case)] = position
                except Exception as error:  # it cannot be pickled
                    yield position, (None, said_of(error.__cause__ or error))
            if not waiting:
                return
            (finished, *_), _ = ray.wait(list(waiting), num_returns=1)
            position = waiting.pop(finished)
            try:
                outcome = ray.get(finished)
            except ray.exceptions.RayError as error:  # its process died, or its result stays there
                outcome = None, said_of(getattr(error, "cause", None) or error)
            yield position, outcome
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)


def _outcome(function: Callable[[Any], Any], case: Any) -> Outcome:
    pin_blas_threads()
    try:
        return function(case), None
    except Exception as error:
        log.debug("case %r failed", case, exc_info=True)
        return None, said_of(error)


@contextmanager
def _shown(total: int, wanted: bool) -> Iterator[Callable[[str], None]]:
    """Give a function that says that a case has ended."""
    if not wanted or not sys.stderr.isatty():
        begun, ended = time.monotonic(), 0

        def tell(text: str) -> None:
            nonlocal ended
            ended += 1
            if wanted:
                log.info("%d/%d | %s | %.1f s", ended, total, text, time.monotonic() - begun)

        yield tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    from privet.core.terminal import console

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), Left())
    with Progress(*columns, console=console(stderr=True)) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)
