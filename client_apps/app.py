"""One Flower ClientApp for every primal-dual algorithm."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from privet.agents.base import MeaningOf, Participant, ProblemFn, TableFn
from privet.agents.flower_mods import refuse_mods
from privet.agents.guard import NoiseFactory
from privet.agents.masking import MaskFactory
from privet.core import algorithm

log = logging.getLogger("flwr.privet")

Handler = Callable[[Message, Context], Message]

SLOW = 15.0
"""Seconds of Flower's 30 after which a start is worth a line."""


def process_age() -> float:
    """Return the seconds since this process was started, 0 where the system does not say."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return 0.0


def warn_of_slow_start() -> None:
    """Warn, in a process that Flower started for one message, if it took long to come this far."""
    if Path(sys.argv[0]).name == "flwr-clientapp" and (age := process_age()) > SLOW:
        log.warning(
            "this ClientApp needed %.0f s to start; Flower gives a process 30 s, and a node whose "
            "processes need more answers nothing: import less, or free the machine",
            age,
        )


class AgentApp(ClientApp):
    """A ClientApp that knows who handles its messages: ``participant``, None behind mods.

    An ``@app.evaluate()`` of the user's takes the place of the participant's.
    """

    def __init__(self, participant: Participant, mods: list[Mod] | None) -> None:
        super().__init__(mods=[participant.around(mods), *(mods or ())])
        self.participant = None if mods else participant
        self._handlers, self._complete = participant, False
        self.query("privet")(participant.query)
        self.train()(participant.train)

    def evaluate(
        self, action: str = "default", *, mods: list[Mod] | None = None
    ) -> Callable[[Handler], Handler]:
        """Register a handler of the user's own, as `flwr.clientapp.ClientApp.evaluate` does.

        Privacy: a private agent declines, as its answer would be an un-noised release.
        """
        register = super().evaluate(action, mods=mods)

        def registered(handler: Handler) -> Handler:
            if action == "default":
                self._handlers.own_kinds -= {"evaluate"}
            return register(handler)

        return registered

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message, as `flwr.clientapp.ClientApp` does."""
        if not self._complete:
            with suppress(ValueError):  # where one of the user's is registered
                super().evaluate()(self._handlers.evaluate)
            self._complete = True
        return super().__call__(message, context)


def client_app(
    protocol: str | None,
    problem_fn: ProblemFn,
    *,
    settings: Mapping[str, Any] | None = None,
    noise_factory: NoiseFactory | None = None,
    mask_factory: MaskFactory | None = None,
    train_metrics: bool = False,
    reply_seconds: float = 0.0,
    evaluate_on: str = "training",
    meaning: MeaningOf = "",
    table_fn: TableFn | None = None,
    mods: list[Mod] | None = None,
) -> ClientApp:
    """Return a Flower ClientApp that takes part in an algorithm.

    ``@app.evaluate()`` registers an evaluation of your own in place of this library's.

    Parameters
    ----------
    protocol : str or None
        Name of the algorithm; None serves every registered one, as the message asks.
    problem_fn : callable
        ``context -> Problem``, the agent's own data and loss.
    settings : mapping, optional
        The agent's own ``local-solver``, ``local-epochs``, ``step-size``, ``batch-size``,
        ``strong-convexity``, ``smoothness``.
    noise_factory : callable, optional
        ``(agent, round) -> NoiseSource`` in place of the system's noise; for replays.
    mask_factory : callable, optional
        ``(agent, round) -> MaskSource`` in place of the key agreement of secure sums; for replays.
    train_metrics : bool
        Whether uploads come with the loss of the received model, as in `Participant`.
    reply_seconds : float
        Seconds that every reply to a training message takes, as in `Participant`.
    evaluate_on : str
        "training" or "held-out", as in `Participant`.
    meaning : str or callable
        What the numbers of a problem of your own mean, as in `Participant`.
    table_fn : callable, optional
        ``context -> table``, what analyses read, as in `Participant`.
    mods : list of Flower mods, optional
        Not those for clipping, noise or secure aggregation, which do not see what is sent here.

    Raises
    ------
    ConfigError
        An unknown algorithm, a key that an agent cannot set, or one of those mods.

    Examples
    --------
    >>> import numpy as np
    >>> from privet.problems import RidgeRegression
    >>> app = client_app("fed-plt", lambda context: RidgeRegression(np.eye(2), np.ones(2)))
    """
    if protocol is not None:
        algorithm(protocol)
    refuse_mods(mods or ())
    participant = Participant(
        problem_fn,
        protocol=protocol,
        overrides=settings,
        noise_factory=noise_factory,
        mask_factory=mask_factory,
        train_metrics=train_metrics,
        reply_seconds=reply_seconds,
        evaluate_on=evaluate_on,
        meaning=meaning,
        table_fn=table_fn,
    )
    warn_of_slow_start()
    return AgentApp(participant, mods)
