"""Privacy-critical: where an agent stands in its batches, a secret that no two steps go on from.

It is taken out of the agent's context when a reply is charged, and put back, one or more steps
further, with the state of the reply: a task that fails, a node that is started again and another
run leave none, and then batches and noise begin anew, with a cycle that is charged. At a node with
a ledger it counts for that charge alone which its last reply wrote last (`Cycle.head`), so that two
tasks at a time, or a copy of an older context, do not go on from the same place. At any node it
begins anew where the account that came with a message has a release that the node's own lacks. It
is in no file, and nothing of it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context

from privet.kernel import Facts, Release
from privet.kernel.cyclic import Cycle
from privet.wire.flower_internals import held_by

RECORD = "privet.cycle"


def take_cycle(
    context: Context, release: Release, facts: Facts, seed: int, agent: str, **more: Any
) -> Cycle:
    """Return where an agent stands, and forget it; a new one where it stood nowhere, or elsewhere.

    Parameters
    ----------
    context : Context
    release, facts
        What a step is charged as, and the public numbers that it rests on.
    seed, agent
        Of the public draw of the batches.
    **more
        What else all steps have in common: texts and numbers.
    """
    alone = replace(facts, agents=1, colluders=-1)  # others of a sum change nothing here
    fixed = {"release": replace(release, place=0, count=1).to_dict(), "facts": alone.to_json()}
    key = json.dumps({**fixed, "seed": seed, "agent": agent, **more}, sort_keys=True)
    new = Cycle(key, seed, agent)
    kept: Any = held_by(context.state).pop(RECORD, None)
    if kept is None or kept["key"] != key:
        return new
    past = tuple(np.frombuffer(each, np.float64) for each in kept["past"])
    return replace(new, step=int(kept["step"]), past=past, head=str(kept["head"]))


def forget_cycle(context: Context) -> None:
    """Have an agent begin anew."""
    held_by(context.state).pop(RECORD, None)


def keep_cycle(context: Context, cycle: Cycle | None, head: str) -> None:
    """Keep where an agent stands after a reply that wrote this head of its ledger."""
    if cycle is not None:
        about: Mapping[str, Any] = {"key": cycle.key, "step": cycle.step, "head": head}
        past = [noise.tobytes() for noise in cycle.past]
        context.state[RECORD] = ConfigRecord({**about, "past": past})
