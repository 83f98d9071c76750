"""Privacy-critical: local steps without noise, whose whole difference is clipped and noised once.

DP-FedAvg's program: H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private
Recurrent Language Models" (2018), with an agent for a user; and that of methods which weigh the
same uploads otherwise, such as FedExP (D. Jhunjhunwala, S. Wang, G. Joshi, 2023). From a public
start w_0 the solver of a local task (`privet.kernel.programs.steps`) comes to w_K without any
noise, and what leaves is

    u + N(0, sigma^2 I),        u = min(1, C / ||w_K - w_0||) (w_K - w_0).

Sensitivity. Whatever the records are, ||u|| <= C. Two points of that ball are at most 2 C apart, so
2 C bounds what u moves by between any two data sets: with one record replaced, with one there or
not, and with all of an agent's replaced. Nothing else is needed of the loss, the steps, their
number or their batches, so a training loop of the user's may take them (`clipped_difference`), with
state of its own from round to round: given what was sent before, u is a function of the records and
of coins that are not the noise's. No less is true of one record either: of a loss whose gradients
have no bound, one decides in which direction the steps go.

Rounding. The norm is taken in float64, with a relative error of at most (d + 4) 2^-53, and the
factor and its products add three roundings; the difference is clipped to C (1 - 2^-20), so that
its norm is at most C for d < 2^31. A difference that is not finite counts as zero where noise is
charged.

Nothing else leaves: not the number of steps, which a tolerance makes depend on the records, no
gradient, and no error. The start is public, and a problem that fails there is reported as by every
program; all later iterates are un-noised functions of the records, and a gradient that fails at one
is no number, so that the difference counts as zero.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..bounded import Clipped, Relation, clipped_whole
from ..errors import NoiseError, RecordsError
from ..events import Release
from ..facts import Facts
from ..noise import SystemNoise
from ..perturb import Perturber
from ..records import FloatArray, Problem
from ..streams import Streams
from .steps import LocalTask, walk

log = logging.getLogger("flwr.privet")

_WITHIN = 1.0 - 2.0**-20
"""Factor of a clip, so that no rounding brings a norm above it."""
_GRADIENTS = ("gradient", "clipped_gradient", "batch_clipped_gradient")


@dataclass(frozen=True, slots=True)
class ClippedUpdate:
    """The public numbers of the upload.

    Attributes
    ----------
    clip : float
        C; 0 for none, and then nothing can be charged.
    relation : {"replace-one", "add-remove", "replace-agent"}
        Neighbouring data that the release is stated for.
    """

    clip: float = 0.0
    relation: Relation = "replace-one"

    @property
    def sensitivity(self) -> float:
        """2 C, in l2 and whatever the relation."""
        return 2.0 * self.clip

    def release(self, facts: Facts, scale: float, what: str, *, shared: bool = False) -> Release:
        """Return the release of one upload with noise of this scale: one use of a Gaussian.

        No number of ``facts`` enters it, unless noise is ``shared``: then it is that of the masked
        sum of all agents (`Facts.agents`).

        Raises
        ------
        NoCertificateError
            For shared noise on a node that trusts no other agent.
        ValueError
            For a clip or a scale that no noise can be charged for, 0 among them.
        """
        agents, colluders = facts.sharing(shared)
        return Release(
            "gaussian",
            scale=scale,
            sensitivity=self.sensitivity,
            relation=self.relation,
            what=what,
            agents=agents,
            colluders=colluders,
            program="update",
        )


def clipped_update(
    program: ClippedUpdate,
    task: LocalTask,
    problem: Problem,
    row_norm: float,
    streams: Streams,
    noise: Perturber,
) -> FloatArray:
    """Return the clipped difference of the task's steps, shape (d,) or of a stack (N, d), noised.

    Where nothing is charged it has no noise, and with a clip of 0 it is the difference as it is.
    In the problem's dtype, or, as long as it has to stay on the grid of a shared noise, float64.

    Privacy: one draw.

    Raises
    ------
    RecordsError
        For a task that asks for more than the difference, or a stack whose rows would not all take
        the same steps.
    NoiseError
        If noise is charged and there is no clip, or the steps have a noise of their own.
    """
    start = task.start
    if task.needs:
        raise RecordsError(f"an update does not supply {task.needs[0]}: its vector alone leaves")
    if start.dtype != problem.dtype:
        raise RecordsError(f"the start is in {start.dtype}, the problem in {problem.dtype}")
    if task.tolerance > 0 and start.ndim > 1:
        raise RecordsError("an update of a stack takes no tolerance: give every agent its own")
    if not noise.charged:
        end = walk(task, problem, row_norm, streams, noise).end
        return clipped_difference(program, start, end, noise)
    if task.solver == "noisy-gd" or task.gradients.noise_scale > 0:
        raise NoiseError("the steps of an update that is charged take no noise of their own")
    silent = Perturber(Release("none"), SystemNoise(), noise.facts)  # of which no step asks any
    with np.errstate(all="ignore"):
        end = walk(task, cast(Problem, _Sheltered(problem)), row_norm, streams, silent).end
    return clipped_difference(program, start, end, noise)


def clipped_difference(
    program: ClippedUpdate, start: FloatArray, end: FloatArray, noise: Perturber
) -> FloatArray:
    """Return the clipped difference of two models (d,), or stacks (N, d), noised, as an update.

    Privacy: one draw, whatever brought the start to the end.

    Raises
    ------
    NoiseError
        If noise is charged and there is no clip.
    """
    if not noise.charged:
        # What is no number stays none: the server then drops the reply and says so.
        moved = np.where(np.isfinite(end), _clipped(end, start, program.clip), np.nan)
        return moved.astype(start.dtype, copy=False)
    if not program.clip > 0:
        raise NoiseError("noise was charged for an update without a clip")
    with np.errstate(all="ignore"):
        value = _clipped(end, start, program.clip)
    noised: FloatArray = noise.perturb(Clipped(value, program.sensitivity, "l2"))
    return noised if noise.shared else noised.astype(start.dtype, copy=False)


def _clipped(end: FloatArray, start: FloatArray, clip: float) -> NDArray[np.float64]:
    """Return the difference in float64, every row of it within the clip; 0 for none."""
    difference: NDArray[np.float64] = end.astype(np.float64) - start
    return clipped_whole(difference, clip * _WITHIN) if clip > 0 else difference


class _Sheltered:
    """A problem whose gradients fail at the first point alone; elsewhere they are then NaN."""

    __slots__ = ("_begun", "_problem")

    def __init__(self, problem: Problem) -> None:
        self._problem, self._begun = problem, False

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._problem, name)
        return partial(self._gradient, attribute) if name in _GRADIENTS else attribute

    def _gradient(
        self, gradient: Callable[..., FloatArray], x: FloatArray, *rest: Any, **options: Any
    ) -> FloatArray:
        first, self._begun = not self._begun, True
        if x.ndim > 1 or np.isfinite(x).all():
            try:
                return gradient(x, *rest, **options)
            except Exception as error:
                if first:
                    raise
                log.warning("the local steps failed (%s): the update is zero", type(error).__name__)
        return np.full_like(x, np.nan)


__all__ = ["ClippedUpdate", "clipped_difference", "clipped_update"]
