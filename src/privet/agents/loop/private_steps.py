"""Privacy-critical: the charged steps of a custom training loop on a PyTorch module.

A step sums the gradients of a batch's examples, each clipped to C; `Records.clipped_sum` makes the
noised gradient of it: sensitivity, noise, grid and account are those of the built-in solvers. What
follows the noise - shift, proximal term, optimizer - is post-processing. A step is all that may
move the model between the start that was received and the upload.

The sum is copied to the processor for its noise, and back, whatever device the model is on: the
proof is of AES-256 in counter mode, keyed by the operating system, and of a sum on a grid, exact in
float64 (`privet.kernel.noise`, `privet.kernel.perturb`). The generators of a GPU are counter-based
ones of a 64-bit seed, no cryptographic streams, and its noise would be computed outside the kernel.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import ConfigError, PrivetError
from privet.kernel import Records, Told
from privet.kernel.door import cyclic_sum, sampled_sum
from privet.kernel.programs.steps import LocalTask
from privet.kernel.records import FloatArray

from ..adapters.networks.additive import MANY, LossGradient, made_up, moved, telling_rows
from ..adapters.networks.clipping import clipped_gradients
from ..adapters.networks.functions import Rule, ruled
from ..adapters.networks.memory import Memory, fresh, same_bits
from ..adapters.networks.recurrent import recurrent_rules

log = logging.getLogger("flwr.privet")

FEW, LOOKED = 8, 1 << 12
"""Examples of which it is looked whether the loss is their mean, and numbers of a batch in which
they are looked for."""

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
    records : Records
        Which noise the sum of a step.
    """

    def __init__(
        self, model: Any, parameters: Mapping[str, Any], task: LocalTask, records: Records
    ) -> None:
        require_plain(model)
        if records.release.steps > 1:
            raise ConfigError("noisy steps that are not released need a built-in solver")
        self._parameters, self._records = parameters, records
        self._gradient = task.gradients
        self._sampled = records.release.sampling < 1
        declared = records.facts.num_examples
        self._size = declared if self._sampled else task.gradients.size(records.facts) or declared
        self._held = 0
        # Fed-PLT's noise goes onto the step, (13); that of the others onto the gradient.
        self._unit = -task.step_size if task.solver == "noisy-gd" else 1.0
        self._torch = importlib.import_module("torch")  # which the model comes from
        self._model, self._step_size = model, task.step_size
        self._seen = [each.detach().clone() for each in self._guarded()]
        self._begun = False

    def _guarded(self) -> list[Any]:
        """Return what nothing else may change: parameters, and buffers that they do not imply."""
        buffers = self._model.named_buffers()
        kept = [each for name, each in buffers if "parametrizations." not in name]
        return [*self._parameters.values(), *kept]

    def step(
        self, loss_fn: LossFn, batch: Any, optimizer: Any, correct: Callable[[], None]
    ) -> None:
        """Take one charged step, see `LocalRound.private_step`.

        ``correct`` adds to the parameters' ``.grad`` what does not depend on the records.
        """
        require_plain(optimizer)
        require_trained(self._parameters)
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
        # The buffers stay what they were: no optimizer moves them.
        moved = [each.detach().clone() for each in self._parameters.values()]
        self._seen[: len(moved)] = moved

    def require_kept(self) -> None:
        """Refuse a model that was moved by anything else (raises ``ConfigError``)."""
        held = self._guarded()
        if len(held) != len(self._seen) or not all(map(same_bits, held, self._seen)):
            raise ConfigError(Told.MOVED)

    def _gradients(self, loss_fn: LossFn, batch: Any) -> list[Any]:
        """Return the noised clipped gradient of f_i, one tensor a parameter.

        Privacy: one of the draws that were charged.

        Raises
        ------
        ConfigError
            For a batch of more examples than was charged for, or a layer that mixes examples.
        """
        require_separate(self._model)
        rows, build = _rows(batch)
        counts = {len(part) for part in rows}
        if len(counts) != 1 or not 1 <= min(counts) <= self._size:
            raise ConfigError(
                f"a private step takes a batch of 1 to {self._size} examples, the run's batch-size "
                f"(with batch = 'full', 'poisson' or 'cyclic', all), found {sorted(counts)}",
                Told.BATCH,
            )
        named: Mapping[str, Any] = {}

        def sum_of(kept: NDArray[np.bool_] | None, parts: list[Any] = rows) -> FloatArray:
            nonlocal named
            arguments = self._model, self._parameters, loss_fn, parts, build, self._gradient.clip
            total, named = summed(*arguments, kept=kept, expected=self._gradient.batch_size)
            array: FloatArray = total.cpu().numpy()
            return array

        if self._sampled:
            self._require_same(*counts)
            noised = sampled_sum(self._records, self._gradient, self._held, sum_of, self._unit)
        elif self._records.release.batches > 1:

            def turn(chosen: NDArray[np.int64]) -> FloatArray:
                places = self._torch.from_numpy(chosen)
                return sum_of(None, [part[places.to(part.device)] for part in rows])

            noised = cyclic_sum(self._records, self._gradient, min(counts), turn)
        else:
            noised = self._records.clipped_sum(self._gradient, sum_of(None), self._unit)
        if not self._begun:
            self._begun = True
            held = self._model, self._parameters, loss_fn, rows, build
            tried = require_mean(*held)
            if warning := not_a_mean(*held, slopes=not tried):
                warn_once(warning)
        parts = self._torch.from_numpy(noised).split([part.numel() for part in named.values()])
        return [
            part.reshape(value.shape).to(value.device, value.dtype)
            for part, value in zip(parts, named.values(), strict=True)
        ]

    def _require_same(self, count: int) -> None:
        """Refuse a data set that is not the one of the step before (raises ``ConfigError``)."""
        if self._held not in (0, count):
            raise ConfigError(
                f"batch = 'poisson': a private step is given the whole data set, every time the "
                f"same, found {count} examples after {self._held}",
                Told.SAME_DATA,
            )
        if not self._held and count < self._size:
            # No refusal: `num-examples` is an upper bound, and the server would see from it
            # whether a record is there. The log stays with the node.
            warn_once(
                f"batch = 'poisson': a private step was given {count} examples, num-examples is "
                f"{self._size}: unless these are all that the node has, pass the whole data set, "
                "of which the step draws its batch"
            )
        self._held = count


def dry_run(model: Any, parameters: Mapping[str, Any], loss_fn: LossFn, batch: Any) -> None:
    """Take the gradients of the first examples of a batch, and change nothing.

    Raises
    ------
    ConfigError
        For what a private step refuses, and a loss that is no mean over examples.
    VmapError
        For what does not run under ``torch.func.vmap``.
    """
    require_plain(model)
    require_separate(model)
    rows, build = _rows(batch)
    rows = _few(rows)
    summed(model, parameters, loss_fn, rows, build, 1.0)
    require_mean(model, parameters, loss_fn, rows, build, count=MANY)
    if problem := not_a_mean(model, parameters, loss_fn, rows, build):
        raise ConfigError(problem)


def require_mean(
    model: Any,
    parameters: Mapping[str, Any],
    loss_fn: LossFn,
    rows: list[Any],
    build: Callable[[list[Any]], Any],
    count: int = 0,
) -> bool:
    """Refuse a loss that is no mean over examples, as examples that are made up show.

    Of ``rows`` only shapes and dtypes count, so that a refusal says nothing of a record. Integers
    are the first eight or fewer, as many as the loss takes as classes or codes: two on a GPU,
    which would not go on after one that is too large. False is returned where it takes none. There
    are two examples more than integers, or ``count``: what a loss does with a tenth of a batch is
    nothing in a few.

    Raises
    ------
    ConfigError
    """
    first = next(iter(parameters.values()))
    codes = first.device.type == "cpu" and not all(part.is_floating_point() for part in rows)
    for batched, values in itertools.product((True, False), range(8, 1, -1) if codes else (2,)):
        made = made_up(rows, max(values + 2, count), values, first.device)
        try:
            fault = _apart(model, parameters, loss_fn, made, build, own=False, batched=batched)
        except PrivetError:
            raise
        except Exception:  # such as a class that is too large: the step itself says what fails
            continue
        if fault:
            raise ConfigError(Told.NO_MEAN)
        return True
    return False


def not_a_mean(
    model: Any,
    parameters: Mapping[str, Any],
    loss_fn: LossFn,
    rows: list[Any],
    build: Callable[[list[Any]], Any],
    *,
    slopes: bool = True,
) -> str:
    """Return a warning if the loss of a few examples is not their mean, else an empty text.

    ``slopes`` says whether gradients are compared as well. The warning is for the node's own log,
    as it says something of the records: one with an ignored target may be among them.
    """
    modes = [(layer, layer.training) for layer in model.modules()]
    try:
        if any(len(part) < 2 for part in rows) or not _apart(
            model, parameters, loss_fn, _few(rows), build, slopes=slopes
        ):
            return ""
    except PrivetError:
        raise
    except Exception:  # it cannot be compared
        return ""
    finally:
        for layer, training in modes:
            layer.training = training
    return (
        "the loss of some examples is not the mean of their losses (class weights, a sum, ignored "
        "targets): a private step calls it on one example at a time, and minimises the mean"
    )


def _few(rows: list[Any]) -> list[Any]:
    """Return a few examples of a batch, those first that differ in a class or another code."""
    count = min(len(part) for part in rows)
    own = [part[:count] for part in rows if part.device.type == "cpu"]  # others would be copied
    codes = [part for part in own if not part.is_floating_point() or part[:1].numel() < 2]
    found = []
    for part in codes:
        step = -(-part.numel() // LOOKED) or 1
        found.append([step * row for row in telling_rows(part[::step], FEW)])
    first = itertools.chain(*sorted(found, key=len), range(min(count, FEW)))
    chosen = list(dict.fromkeys(first))[:FEW]
    return [part[chosen] for part in rows]


def _apart(
    model: Any,
    parameters: Mapping[str, Any],
    loss_fn: LossFn,
    rows: list[Any],
    build: Callable[[list[Any]], Any],
    *,
    own: bool = True,
    slopes: bool = True,
    batched: bool = True,
) -> bool:
    """Whether the loss of some examples is not the mean of theirs.

    Gradients are compared too, as losses are all alike where a network begins with equal outputs.
    This is done in evaluation mode and, where ``batched``, under vmap, so that state that module or
    loss keep of the examples is detected; with ``own`` false on a copy of the module, with made-up
    parameters.
    """
    torch = importlib.import_module("torch")
    model = model if own else fresh(model)
    memory = Memory(model, loss_fn, "model.")
    objective = _objectives()(model, loss_fn)
    named = {f"model.{name}": value.detach() for name, value in parameters.items()}
    named = named if own else moved(named)
    rows = [part.to(next(iter(named.values())).device) for part in rows]

    def loss(parameters: Mapping[str, Any], example: Any) -> Any:
        return memory.call(objective, parameters, (build(example),))

    measured = torch.func.grad_and_value(loss) if slopes else loss
    each = torch.func.vmap(measured, in_dims=(None, 0), randomness="different")
    if not batched:
        each = functools.partial(_one_by_one, measured)

    rules = {**recurrent_rules(), **_weighted()}

    def mean_loss(batches: list[Any]) -> LossGradient:
        """Return the mean over batches of the loss and its gradient."""
        memory.block()
        with ruled(rules, batched=True), torch.set_grad_enabled(slopes):
            found = each(named, batches)
        by, values = found if slopes else ({"": torch.zeros(1, 1)}, found)
        flat = [part.double().mean(0).reshape(-1) for part in by.values()]
        return LossGradient(float(values.double().mean()), torch.cat(flat))

    try:
        model.eval()
        whole = mean_loss([part[None] for part in rows])
        mean = mean_loss([part[:, None] for part in rows])
        # Other devices may multiply floats of ten bits (TF32).
        least = 1e-2 if own or rows[0].device.type != "cpu" else 1e-3
        coarseness = max(least, *(8 * torch.finfo(value.dtype).eps for value in named.values()))
        if not whole.unlike(mean, coarseness):
            return False
        again = mean_loss([part[None] for part in rows])
    finally:
        if own:
            memory.require_none()
    # A random loss proves nothing.
    return whole.value == again.value and bool((whole.slope == again.slope).all())


def _one_by_one(measured: Callable[..., Any], named: Mapping[str, Any], batches: list[Any]) -> Any:
    """Return the gradients by name, and the losses, of batches of examples."""
    torch = importlib.import_module("torch")
    found = [measured(named, list(each)) for each in zip(*batches, strict=True)]
    slopes = {name: torch.stack([by[name] for by, _ in found]) for name in named}
    return slopes, torch.stack([value for _, value in found])


@functools.lru_cache(maxsize=64)
def warn_once(line: str) -> None:
    """Log a warning, once a process."""
    log.warning("%s", line)


def summed(
    model: Any,
    parameters: Mapping[str, Any],
    loss_fn: LossFn,
    rows: list[Any],
    build: Callable[[list[Any]], Any],
    clip: float,
    kept: NDArray[np.bool_] | None = None,
    expected: int = 1,
) -> tuple[Any, dict[str, Any]]:
    """Return the sum of the examples' clipped gradients, (d,), and the parameters it is of.

    Of those that are ``kept``, where given, ``expected`` on average. Random layers are refused
    then: a seed that somebody knows would tie the others' draws to whether one takes part.
    """
    memory = Memory(model, loss_fn, "model.")
    objective = _objectives()(model, loss_fn)

    def loss(parameters: Mapping[str, Any], example: Any) -> Any:
        return memory.call(objective, parameters, (build([part[None] for part in example]),))

    named = {f"model.{name}": value.detach() for name, value in parameters.items()}
    first = next(iter(named.values()))
    rows = [part.to(first.device) for part in rows]
    randomness = "different" if kept is None else "error"
    total = clipped_gradients(
        *(loss, named, rows, clip),
        randomness=randomness,
        memory=memory,
        kept=kept,
        expected=expected,
        rules=_weighted(),
    )
    return total, named


def require_trained(parameters: Mapping[str, Any]) -> None:
    """Refuse frozen parameters, whose choice no noise would cover (raises ``ConfigError``)."""
    frozen = next((name for name, each in parameters.items() if not each.requires_grad), None)
    if frozen is not None:
        raise ConfigError(
            f"{frozen!r} is frozen in this round: a private round trains all that it sends; freeze "
            "it where the participant is made",
            Told.FROZEN,
        )


def require_separate(model: Any) -> None:
    """Refuse layers that mix the examples of a batch (raises ``ConfigError``)."""
    torch = importlib.import_module("torch")
    for layer in model.modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.training:
            raise ConfigError(Told.BATCH_NORM)


def _refuse_weights(function: Any, args: Any, named: Any) -> Any:
    """Refuse class weights in a mean over one target, where they cancel."""
    if named.get("weight") is not None:
        target = args[1] if len(args) > 1 else named["target"]
        if named.get("reduction", "mean") == "mean" and len(target.reshape(-1)) == 1:
            raise ConfigError(
                f"{function.__name__}(weight=...) divides by the weights of a batch, which "
                "cancels them in a batch of one example: multiply them to the losses, "
                "(weight[targets] * cross_entropy(..., reduction='none')).mean()",
                Told.CLASS_WEIGHTS,
            )
    return function(*args, **named)


def require_plain(*objects: Any) -> None:
    """Refuse modules and optimizers of Opacus, whose clips and noise are not those charged."""
    for each in objects:
        if any(kind.__module__.partition(".")[0] == "opacus" for kind in type(each).__mro__):
            raise ConfigError(
                f"{type(each).__name__} of Opacus in a private round: its noise is not what was "
                "charged; give private_step the plain module and optimizer",
                Told.OPACUS,
            )


@functools.cache
def _weighted() -> Mapping[Any, Rule]:
    """Return the rules by which class weights that cancel are refused."""
    functional = importlib.import_module("torch").nn.functional
    return dict.fromkeys((functional.cross_entropy, functional.nll_loss), _refuse_weights)


@functools.cache
def _objectives() -> Any:
    """Return the class of loss_fn(model, .) as a module, whose parameters calls can replace."""
    module: Any = importlib.import_module("torch").nn.Module

    class Objective(module):  # type: ignore[misc]
        def __init__(self, model: Any, loss_fn: LossFn) -> None:
            super().__init__()
            self.model = model
            self.held = (loss_fn,)  # which is no part of this, if it is a module

        def forward(self, batch: Any) -> Any:
            (loss_fn,) = self.held
            return loss_fn(self.model, batch)

    return Objective


def _rows(batch: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return a batch as a list of tensors, and a function that rebuilds it from such a list."""
    if hasattr(batch, "detach"):
        if not batch.dim():
            raise ConfigError(
                "a tensor of a private step's batch has no dimension of examples", Told.TENSORS
            )
        return [batch.detach()], lambda parts: parts[0]
    if isinstance(batch, Mapping):
        keys, values = list(batch), list(batch.values())
    elif isinstance(batch, tuple | list):
        keys, values = None, list(batch)
    else:
        raise ConfigError(
            "a batch of a private step is a tensor, or a tuple, list or mapping of tensors, one "
            f"example a row, found {type(batch).__name__}",
            Told.TENSORS,
        )
    readers = [_rows(value) for value in values]
    lengths = [len(rows) for rows, _ in readers]

    def build(parts: list[Any]) -> Any:
        pieces, begin = [], 0
        for length, (_, make) in zip(lengths, readers, strict=True):
            pieces.append(make(parts[begin : begin + length]))
            begin += length
        return tuple(pieces) if keys is None else dict(zip(keys, pieces, strict=True))

    return [row for rows, _ in readers for row in rows], build
