"""What an agent of a secure sum sees of itself, for its own node's log alone.

A coordinator of secure sums sees no upload and can name nobody (`privet.rounds.odd_sites`). An
agent knows its own move m_i of a round, by how much its upload differs from `Half.reference`, and,
when it is asked again, the step s of the model. Where s is c times the mean move of all n agents of
the run (`Half.model_step`, `ServerHalf.steps_by_mean`), it knows the mean of the others, too:

    o = (n s - c m_i) / (n - 1)

Sums show no spread between sites, so there is no test of a level: two numbers of the last `WINDOW`
rounds of one roster, `LEAST` of them at least, are held against fixed bounds,

    against:  sum <c m_i, s> / root of (sum ||c m_i||^2 sum ||s||^2)  <  AGAINST
    far:      root of (sum ||c m_i||^2 / sum ||o||^2)  >  FAR

The first has the agent's own part in s, and needs of c the sign alone. A run that converges has
moves that cancel whatever the sites: both are looked at while s is at least a `SHARE` of the
longest step. How many honest sites are warned, and which wrong ones, is measured
(tests/sim/test_sim_own_moves.py).

Nothing of it is sent, and no number that is sent depends on it: it is a function of the upload
before it is masked and of what all agents were sent, and goes to the node's log and to Flower's
context of the node, where the agent's state is. Private runs, whose moves are mostly noise, have
none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Context
from numpy.typing import NDArray

from privet.wire.contract import Instruction
from privet.wire.flower_internals import held_by

from .half import Half
from .inputs import Arrays
from .measures import MODELS

log = logging.getLogger("flwr.privet")

Table = NDArray[np.float64]

OWN_RECORD = "privet.moves"
"""Name of the record in Flower's context."""
WINDOW = 5
"""Rounds over which an agent's moves are compared with the model's steps."""
LEAST = 3
"""Rounds before which nothing is said."""
FEWEST = 4
"""Agents of a sum below which nothing is said."""
AGAINST = -0.1
"""The cosine below which moves go against the model's steps."""
FAR = 4.0
"""How many times as long as the others' mean move an agent's has to be."""
SHARE = 0.25
"""The share of the longest step of a run below which a step says nothing."""
NUMBERS = 1 << 11
"""Coordinates that are looked at, evenly spaced."""


class Shown(NamedTuple):
    """What a round shows an agent of itself, at the coordinates looked at.

    Attributes
    ----------
    model, move : float64 array (k,)
        The model that was sent, and c m_i.
    """

    model: Table
    move: Table


class Compared(NamedTuple):
    """A round's <c m_i, s>, ||c m_i||^2, ||s||^2, and ||o||^2, NaN where o is not known."""

    inner: float
    own: float
    step: float
    others: float


def shown(half: Half, broadcast: Arrays, upload: Arrays) -> Shown | None:
    """Return what a round shows of an upload that is not masked yet; None where that is nothing."""
    model = next((broadcast[name] for name in MODELS if name in broadcast), None)
    if half.private or not half.model_step or model is None:
        return None
    some = slice(None, None, max(1, -(-model.size // NUMBERS)))
    near = half.reference({}, broadcast)
    for name, array in upload.items():
        if array.shape == model.shape:
            move = array[some].astype(np.float64)
            if name in near:
                move -= near[name][some]
            return Shown(model[some].astype(np.float64), half.model_step * move)
    return None


def compared(before: Shown, model: Table, agents: int) -> Compared:
    """Return the numbers of a round, of the model (k,) that followed it.

    ``agents`` is n where s is c times the mean of all their moves, else 0.
    """
    with np.errstate(all="ignore"):
        step, move = model - before.model, before.move
        others = math.nan
        if agents > 1:
            mean = (agents * step - move) / (agents - 1)
            others = float(mean @ mean)
        return Compared(float(move @ step), float(move @ move), float(step @ step), others)


def oddness(rounds: list[Compared], longest: float) -> str:
    """Return how an agent is not like the others by its last rounds; empty where it may be.

    ``longest`` is the largest ||s||^2 of the run.
    """
    inner, own, step, others = np.sum(rounds, axis=0).tolist()
    leads = rounds[-1].step > SHARE**2 * longest
    if len(rounds) < LEAST or not leads or not 0.0 < own * step < math.inf:
        return ""
    cosine = inner / math.sqrt(own * step)
    if cosine < AGAINST:
        return f"went against the steps of the model, at a cosine of {cosine:.2g}"
    if others > 0.0 and own > FAR**2 * others:
        return f"were {math.sqrt(own / others):.3g} times as long as the mean move of the others"
    return ""


def note(
    context: Context, agent: str, instruction: Instruction, now: Shown | None, whole: int
) -> None:
    """Compare the round before with the model that followed it, and warn in the log, once.

    ``instruction`` is that of the round that ``now`` is of. A round counts where its upload was
    folded and the same agents are asked for the next one. ``whole`` is `MessageTerms.whole_sum`.
    """
    if now is None:
        return
    record: Mapping[str, Any] = held_by(context.state).get(OWN_RECORD) or {}
    names = [name for name, _ in instruction.roster]
    mark = hashlib.sha256(json.dumps([instruction.experiment, *names]).encode()).hexdigest()
    before, said, longest = None, False, 0.0
    rounds: list[Compared] = []
    if record.get("mark") == mark:
        said, longest = bool(record["said"]), float(record["longest"])
        if record["round"] == instruction.tag == instruction.round - 1:
            table = np.frombuffer(record["rounds"]).reshape(-1, len(Compared._fields))
            rounds = [Compared(*row) for row in table.tolist()]
            before = Shown(np.frombuffer(record["model"]), np.frombuffer(record["move"]))
    if before is not None and before.model.size == now.model.size:
        agents = whole if whole == len(names) else 0
        rounds = [*rounds, compared(before, now.model, agents)][-WINDOW:]
        longest = max(longest, rounds[-1].step)
        odd = "" if said or len(names) < FEWEST else oddness(rounds, longest)
        if odd:
            said = True
            log.warning(
                "agent %s is not like the others of the secure sum: its moves of the last %d "
                "rounds %s (%d agents); look at its labels, units and signs; nobody else is told",
                *(agent, len(rounds), odd, len(names)),
            )
    context.state[OWN_RECORD] = ConfigRecord(
        {
            "mark": mark,
            "round": instruction.round,
            "model": now.model.tobytes(),
            "move": now.move.tobytes(),
            "rounds": np.array(rounds, np.float64).tobytes(),
            "longest": longest,
            "said": said,
        }
    )
