"""Privacy-critical: the charged steps of a custom training loop on a PyTorch module.

A step's data term is the sum of the gradients of a batch's examples, each clipped to C, times
n / (D b): its sensitivity is that of the built-in solvers, and so are noise, grid and account. What
follows the noise - shift, proximal term, optimizer - is post-processing. A step is all that may
move the model between the start that was received and the upload.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from privet.privacy import Perturber
from privet.problems import Clipped, Problem, clipped_sensitivity
from privet.wire import ConfigError

from .adapters.torch_clipping import clipped_gradients
from .local_task import LocalTask

LossFn = Callable[[Any, Any], Any]
"""(model, batch) -> scalar tensor, the mean of the examples' losses."""


class PrivateSteps:
    """The noised gradients of one round, and the guard between them.

    Parameters
    ----------
    model : torch.nn.Module
    parameters : mapping
        Its trained parameters, in the order of the run's vector.
    task : LocalTask
        What is clipped, and how.
    problem : Problem
        Its numbers of examples.
    noise : Perturber
        Of the release that was charged.
    """

    def __init__(
        self,
        model: Any,
        parameters: Mapping[str, Any],
        task: LocalTask,
        problem: Problem,
        noise: Perturber,
    ) -> None:
        require_plain(model)
        if noise.release.steps > 1:
            raise ConfigError("noisy steps that are not released need a built-in solver")
        self._parameters, self._noise = parameters, noise
        self._clip = task.gradients.clip
        count = problem.num_examples
        divisor = float(getattr(problem, "divisor", count))
        sampled = task.gradients.size(problem)
        self._size = count if sampled is None else sampled
        self._share = count / (divisor * self._size)
        self._sensitivity = clipped_sensitivity(
            self._clip,
            divisor=divisor,
            num_examples=count,
            batch_size=sampled,
            relation=task.gradients.relation,
            dtype=problem.dtype,
        )
        # Fed-PLT's noise goes onto the step, (13); that of the others onto the gradient.
        self._unit = -task.step_size if task.solver == "noisy-gd" else 1.0
        self._torch = importlib.import_module("torch")  # which the model comes from
        self._model, self._step_size = model, task.step_size
        self._seen = self._copies()

    def _copies(self) -> list[Any]:
        return [parameter.detach().clone() for parameter in self._parameters.values()]

    def step(
        self, loss_fn: LossFn, batch: Any, optimizer: Any, correct: Callable[[], None]
    ) -> None:
        """Take one charged step, see `LocalRound.private_step`.

        ``correct`` adds to the parameters' ``.grad`` what does not depend on the records.
        """
        require_plain(optimizer)
        gradients = self._gradients(loss_fn, batch)
        self.require_kept()  # by the loss as well
        for parameter, gradient in zip(self._parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        correct()
        if optimizer is not None:
            optimizer.step()
        else:
            with self._torch.no_grad():
                for parameter in self._parameters.values():
                    parameter.sub_(parameter.grad, alpha=self._step_size)
        self._seen = self._copies()

    def require_kept(self) -> None:
        """Refuse a model that was moved by anything else (raises ``ConfigError``)."""
        for parameter, seen in zip(self._parameters.values(), self._seen, strict=True):
            if not _same_bits(self._torch, parameter.detach(), seen):
                raise ConfigError(
                    "the model was changed outside of private_step, which no noise covers"
                )

    def _gradients(self, loss_fn: LossFn, batch: Any) -> list[Any]:
        """Return the noised clipped gradient of f_i, one tensor a parameter.

        Privacy: one of the draws that were charged.

        Raises
        ------
        ConfigError
            For a batch of more examples than was charged for, or a layer that mixes examples.
        """
        for layer in self._model.modules():
            if isinstance(layer, self._torch.nn.modules.batchnorm._BatchNorm) and layer.training:
                raise ConfigError(
                    "BatchNorm mixes the examples of a batch, so that none can be clipped for "
                    "itself: use GroupNorm or LayerNorm"
                )
        rows, build = _rows(batch)
        counts = {len(part) for part in rows}
        if len(counts) != 1 or not 1 <= min(counts) <= self._size:
            raise ConfigError(
                f"a private step takes a batch of 1 to {self._size} examples, the run's batch-size "
                f"(with batch = 'full', all), found {sorted(counts)}"
            )
        objective = _objective(self._torch, self._model, loss_fn)

        def loss(parameters: Mapping[str, Any], example: Any) -> Any:
            one = build([part[None] for part in example])
            return self._torch.func.functional_call(objective, parameters, (one,))

        named = {f"model.{name}": value.detach() for name, value in self._parameters.items()}
        first = next(iter(named.values()))
        rows = [part.to(first.device) for part in rows]
        total = clipped_gradients(loss, named, rows, self._clip, randomness="different")
        clipped = Clipped(total.cpu().numpy() * self._share, self._sensitivity, "l2")
        noised = self._noise.perturb(clipped.scaled(self._unit)) / self._unit
        parts = self._torch.from_numpy(noised).split([part.numel() for part in named.values()])
        return [
            part.reshape(value.shape).to(value.device, value.dtype)
            for part, value in zip(parts, named.values(), strict=True)
        ]


def require_plain(*objects: Any) -> None:
    """Refuse modules and optimizers of Opacus, whose clips and noise are not those charged."""
    for each in objects:
        if any(kind.__module__.partition(".")[0] == "opacus" for kind in type(each).__mro__):
            raise ConfigError(
                f"{type(each).__name__} of Opacus in a private round: its noise is not what was "
                "charged; give private_step the plain module and optimizer"
            )


def _objective(torch: Any, model: Any, loss_fn: LossFn) -> Any:
    """Return loss_fn(model, .) as a module, whose parameters can be replaced for a call."""

    class Objective(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: Any) -> Any:
            return loss_fn(self.model, batch)

    return Objective()


def _rows(batch: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the tensors of a batch in a list, and what makes a batch of such a list again."""
    if hasattr(batch, "detach"):
        if not batch.dim():
            raise ConfigError("a tensor of a private step's batch has no dimension of examples")
        return [batch.detach()], lambda parts: parts[0]
    if isinstance(batch, Mapping):
        keys, values = list(batch), list(batch.values())
    elif isinstance(batch, tuple | list):
        keys, values = None, list(batch)
    else:
        raise ConfigError(
            "a batch of a private step is a tensor, or a tuple, list or mapping of tensors, one "
            f"example a row, found {type(batch).__name__}"
        )
    found = [_rows(value) for value in values]
    lengths = [len(rows) for rows, _ in found]

    def build(parts: list[Any]) -> Any:
        pieces, begin = [], 0
        for length, (_, make) in zip(lengths, found, strict=True):
            pieces.append(make(parts[begin : begin + length]))
            begin += length
        return tuple(pieces) if keys is None else dict(zip(keys, pieces, strict=True))

    return [row for rows, _ in found for row in rows], build


def _same_bits(torch: Any, one: Any, other: Any) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    raw = [each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    return bool(torch.equal(*raw))
