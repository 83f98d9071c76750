"""Settings that were left open, and follow from what the enrolled agents state of themselves."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from privet.agents.loop_defaults import Loops
from privet.core import ConfigError
from privet.data.agreement import Agreement
from privet.kernel import Facts
from privet.kernel.programs.gradients import Gradients
from privet.wire.contract import means_privacy

from .calibration import facts_of
from .enrol.penalties import pooled
from .half import ServerHalf
from .options import RunOptions
from .session import Session

log = logging.getLogger("flwr.privet")

LOOKED_AT = 20
"""Rounds whose participants say what share takes part."""


def with_open_settings(
    half: ServerHalf[Any], options: RunOptions, session: Session
) -> ServerHalf[Any]:
    """Return the half with defaults for what was left open, if no agent knows its moduli.

    Also those of a run that folds uploads of older models. A private run keeps the usual values:
    its noise is planned from flags alone.
    """
    known_columns = session.encoding if session.encoding.text else Agreement(options.encoding)
    half = half.informed(known_columns)
    agents = session.roster.agents.items()
    known: list[Facts] = []
    readable = True
    try:
        known = [facts_of(name, agent) for name, agent in agents if agent.facts]
    except ConfigError:  # the agent may know its moduli
        readable = False
    if readable and len(known) == len(agents):
        known = pooled(half, options, session, known)
    if options.folds_old:
        half = half.delayed(known)
    elif readable and len(known) == len(agents):
        half = half.with_moduli(known)
    private = means_privacy(half.settings())
    if not readable or private or not known or any(facts.moduli for facts in known):
        return half
    loops = _loops(options, session)
    left_open = half.agent.around_loops(loops) if loops.step else half.agent.without_moduli
    half = half.without_moduli(loops)
    if left_open:
        values = ", ".join(
            f"{key} is {value:.4g}" if isinstance(value, float) else f"{key} is {value}"
            for key, value in left_open.items()
        )
        why = (
            f"the agents' training loops take steps of {loops.step:.4g}, and {loops.share:.2g} of "
            "the agents take part in a round"
            if loops.step
            else "no agent knows the moduli of its problem, or states the step of a training loop "
            "(LoopParticipant's step_size)"
        )
        log.info("%s: %s", why, values)
    if weak := half.weakness(loops):
        log.warning("%s: %s", half.name, weak)
    return half


def _loops(options: RunOptions, session: Session) -> Loops:
    """Return the median step that training loops state, and the share that takes part."""
    roster, who = session.roster, options.participation
    steps = sorted(one.step_size for one in roster.agents.values() if one.step_size)
    names = roster.names
    counts = [len(who.select(number, names, options.seed)) for number in range(1, LOOKED_AT + 1)]
    middle = steps[len(steps) // 2] if steps else 0.0
    return Loops(middle, float(np.mean(counts)) / len(names))


def log_misfits(half: ServerHalf[Any], options: RunOptions, session: Session) -> None:
    """Log batch sizes larger than agents' data sets, and probabilities of unknown agents."""
    per_agent = getattr(options.participation, "own", {})
    if unknown := sorted(per_agent.keys() - session.roster.agents.keys()):
        log.warning("probability: no agent is called %s", ", ".join(unknown))
    size = getattr(half.agent, "gradients", Gradients()).batch_size
    counts = [agent.num_examples for agent in session.roster.agents.values()]
    fewer = [count for count in counts if count < size]
    if fewer:
        log.info(
            "batch-size = %d: %d of %d agents have fewer examples, %d at least, and take all of "
            "them in a step",
            *(size, len(fewer), len(counts), min(fewer)),
        )
