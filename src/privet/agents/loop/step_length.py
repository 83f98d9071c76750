"""The length of an optimizer's steps where it is no learning rate."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

from privet.core import ConfigError

from .private_steps import LossFn


def measured_step(
    model: Any, optimizer: Callable[[Any], Any], loss_fn: LossFn, batches: Iterable[Any]
) -> float:
    """Return how far an optimizer moves per gradient: ||w_K - w_0|| / ||g_0 + ... + g_{K-1}||.

    A copy of the model is trained, a step a batch. Of plain SGD it is the learning rate, with
    momentum somewhat below lr / (1 - momentum). Of Adam and others, whose steps do not grow with
    the gradient, it is what a plain step would have to be to come as far.

    Parameters
    ----------
    model : torch.nn.Module
        At the start of the run.
    optimizer : callable
        ``parameters -> torch.optim.Optimizer``, as of the loop.
    loss_fn : callable
        ``(model, batch) -> scalar tensor``.
    batches : iterable
        Those of a round.

    Raises
    ------
    ConfigError
        Where no batch comes, or the gradients are 0 or not finite.

    Notes
    -----
    Privacy: a function of the records, without noise. `LoopParticipant` sends it in runs without
    privacy alone.
    """
    trained = copy.deepcopy(model)
    parameters = [one for one in trained.parameters() if one.requires_grad]
    begun = [one.detach().clone() for one in parameters]
    sums = [one.detach() * 0 for one in parameters]
    steps = optimizer(parameters)
    for batch in batches:
        steps.zero_grad()
        loss_fn(trained, batch).backward()
        sums = [
            total if one.grad is None else total + one.grad
            for total, one in zip(sums, parameters, strict=True)
        ]
        steps.step()
    moved = [one.detach() - start for one, start in zip(parameters, begun, strict=True)]
    along, far = (math.sqrt(sum(float((one**2).sum()) for one in each)) for each in (sums, moved))
    if not 0.0 < along < math.inf or not far < math.inf:
        raise ConfigError(
            f"measured_step: the gradients of these batches add up to a vector of length {along}"
        )
    return far / along
