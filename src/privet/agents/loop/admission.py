"""Privacy-critical: which rounds a training loop may play, and what of them was charged."""

from __future__ import annotations

from typing import Any

from privet.core import ConfigError
from privet.kernel import Problem, Records, Told
from privet.kernel.programs.steps import LocalTask

from ..half import Half
from .parameters import Model, ModuleParameters, Parameters
from .private_steps import require_plain, require_trained
from .problem import LoopProblem


def require_private_loop(
    model: Model, parameters: Parameters, *, personal: bool, alone: bool
) -> None:
    """Refuse a private round before anything is charged.

    Parameters
    ----------
    model, parameters
        Of the round.
    personal : bool
        Whether it has layers that stay with the agent.
    alone : bool
        Whether it is the only round of its message: of several a loop could choose one.

    Raises
    ------
    ConfigError
        If it has own layers, is not alone, or cannot take a private step with this model.
    """
    if personal:
        raise ConfigError(Told.PERSONAL)
    if not alone:
        raise ConfigError(Told.OPENED_ONCE)
    if hasattr(model, "named_parameters"):
        require_plain(model)
    if isinstance(parameters, ModuleParameters):
        require_trained(parameters.parameters)


def is_whole(half: Half) -> bool:
    """Whether a half clips whole updates, whatever the steps are."""
    return half.clipping == "update"


def covers(half: Half, records: Records) -> bool:
    """Whether what was charged covers a loop: whole updates, or the steps that every half takes."""
    usual = type(half).local_update is Half.local_update
    return records.charged and (is_whole(half) or usual)


def require_playable(half: Half, task: LocalTask, *, covered: bool) -> None:
    """Refuse a task that a loop cannot do as its method means it.

    Raises
    ------
    ConfigError
        If gradients are to be clipped or noised and nothing was charged that covers them, or the
        steps end by a gradient norm.
    """
    algorithm: Any = half
    noise = getattr(half, half.noise_key.replace("-", "_"), 0.0) if half.noise_key else 0.0
    if (noise > 0 or (algorithm.clip > 0 and not is_whole(half))) and not covered:
        raise ConfigError(Told.CLIP_AND_NOISE)
    if task.tolerance > 0:
        raise ConfigError("a custom training loop cannot be stopped by a gradient norm")


def weight_of(problem: Problem, *, covered: bool) -> float:
    """Return the factor of a loop's gradients: n_i / mean n where agents weigh by their examples.

    1 in a charged round, whose steps divide by the declared number of examples themselves.
    """
    if covered or not isinstance(problem, LoopProblem):
        return 1.0
    return problem.num_examples / problem.divisor
