"""Agents with a training loop of their own, any optimizer, loader and device.

What an agent does in a round is the same for all of these methods
(`privet.kernel.programs.steps`): a few steps on

    f_i(w) + <shift, w> + ||w - center||^2 / (2 rho)       from w = start.

Here the steps are the user's. The model is given the start; `LocalRound.correct` adds
shift + (w - center) / rho to the gradients, where they are; what the model then holds is the end of
the walk, of which the agent's half makes its new state and its upload. Numbers cross between
the model and numpy once in and once out of a round.

A module's buffers, such as the running statistics of BatchNorm, are no parameters: their mean over
the agents of a round, or what the server began with, is written into the model before the loop, or
they stay with the agent (`BUFFERS_ARE`).

Privacy: in a run with noise and a clip every step is `LocalRound.private_step`, which clips each
example's gradient, adds noise and is charged as the built-in solvers are; nothing else may move the
model. What leaves is what `LocalRound.reply` packed, and of an error this library's text alone. The
batches are the loop's, and what it must promise of them stands at `LocalRound.private_step`. Of any
other run there is none: the loop does what it likes with the records, so its upload is accounted as
un-noised, and a node with a budget refuses it. A node that is private answers no evaluation and no
query of the user's either.
"""

from .buffers import initial_arrays
from .participant import LoopParticipant
from .round import LocalRound
from .step_length import measured_step

__all__ = ["LocalRound", "LoopParticipant", "initial_arrays", "measured_step"]
