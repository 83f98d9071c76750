"""Privacy-critical: PyTorch modules as Problems, with clipped sums of their gradients.

Torch is imported when one is made, and is not a dependency.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.core import ConfigError, PrivetError
from privet.kernel import Moduli, Norm, RowIndex
from privet.problems import Regularizer
from privet.wire import Layout

from ...inputs import Vector
from ..finite_sum import ClippableSum
from .additive import (
    GOLDEN,
    LossGradient,
    in_parts,
    mean_of,
    moved,
    repeated,
    scattered,
    telling_rows,
)
from .clipping import clipped_gradients
from .memory import Memory, fresh, same_bits

DIFFERENT, ROOM = 1024, 1 << 22
"""Targets that the loss is tried on, where there are so many different ones, and numbers of the
outputs that are beside them."""
BESIDE = 16
"""Examples among which one with other inputs is looked for."""
MIXED = (
    "module gives an example other outputs where another is beside it: take a module without "
    "BatchNorm, such as one with GroupNorm or LayerNorm"
)
AGAIN = (
    "module or loss gives other numbers where it is called again with the same examples: take out "
    "what it draws or counts"
)
NO_GRADIENT = (
    "the loss has no gradient by the module's parameters: leave out detach(), item(), argmax(), "
    "comparisons and torch.no_grad()"
)
IGNORED = (
    "the loss of an example is not finite where it is alone, and is where others are beside it: "
    "leave out examples whose target is ignored (ignore_index), or average each example's own "
    "losses first"
)


class TorchProblem(ClippableSum):
    """f_i(x) = (1/D) sum_i loss(module_x(inputs_i), targets_i) + r(x) of a PyTorch module.

    x holds the module's trainable parameters, in the order of ``module.state_dict()``, so that
    ``ArrayRecord(module.state_dict())`` is its layout and ``result.arrays.to_torch_state_dict()``
    loads into the module.

    Parameters
    ----------
    module : torch.nn.Module
        Copied; used in evaluation mode, so that f_i is a function of x alone (dropout is off).
        All parameters are float32, or all float64.
    loss : callable
        ``(outputs, targets) -> scalar tensor``, the *mean* over the batch, as the functions of
        ``torch.nn.functional`` and the modules of ``torch.nn`` give it by default.
    data : (inputs, targets), Dataset or DataLoader
        Arrays or tensors with one example a row, or a map-style dataset of such pairs, which is
        read once (of a loader, its dataset: batches are drawn by the algorithm). Floating-point
        data take the module's dtype.
    regularizer, divisor, moduli
        As in `FiniteSum`.
    metrics : callable, optional
        ``(outputs, targets) -> {"accuracy": ...}``, reported with the loss by federated
        evaluation.
    held_out : (inputs, targets), Dataset or DataLoader, optional
        Data that ``client_app(evaluate_on="held-out")`` evaluates models on: their mean loss, and
        ``metrics``.
    per_example : {"vmap", "loop"}
        How the clipped gradient gets the gradient of every example: through ``torch.func.vmap``,
        or one backward pass after the other for modules that vmap cannot run.
    buffers : {"refuse", "constant"}
        What to do with a module that has persistent buffers, such as the running statistics of
        BatchNorm: no gradient moves them and they are not part of x. "constant" leaves them as
        they are in the module, the same everywhere; `LoopParticipant` has more to offer.
    chunk_size : int
        Examples of one pass at most, which bounds the memory.

    Raises
    ------
    ConfigError
        torch is missing; tied or mixed parameters; buffers; a loss that is no mean over examples,
        or a layer that mixes them (BatchNorm), which would make per-example clipping untrue; a
        module or loss that draws or counts; a loss without a gradient by the parameters.

    Notes
    -----
    Frozen parameters (``requires_grad`` false) stay at the agent as they are; begin the run with
    `trainable_arrays` and load the result with ``strict=False``. torch is held to one thread in
    this process, as BLAS is, so that the same x gives the same bits.

    Privacy: ``clipped_gradient`` computes the gradient of each example from that example alone. A
    module or a loss that keeps tensors of one example for others is refused, and so is a module
    that ``torch.func.vmap`` cannot run. A loss that reads examples from elsewhere, such as the
    whole table, breaks the claim.
    """

    def __init__(
        self,
        module: Any,
        loss: Callable[[Any, Any], Any],
        data: Any,
        *,
        regularizer: Regularizer | None = None,
        divisor: float | None = None,
        moduli: Moduli | None = None,
        metrics: Callable[[Any, Any], Mapping[str, float]] | None = None,
        held_out: Any = None,
        per_example: str = "vmap",
        buffers: str = "refuse",
        chunk_size: int = 1024,
    ) -> None:
        self._torch = torch = _import_torch()
        if per_example not in ("vmap", "loop"):
            raise ConfigError(f"per_example is {per_example!r}, expected vmap or loop")
        if chunk_size < 1:
            raise ConfigError(f"chunk_size must be >= 1, found {chunk_size}")
        self.module = copy.deepcopy(module).eval()
        _check_buffers(self.module, buffers)
        parameters = _trainable(self.module)
        self.names = tuple(parameters)
        self._shapes = [tuple(p.shape) for p in parameters.values()]
        self._sizes = [p.numel() for p in parameters.values()]
        first = next(iter(parameters.values()))
        self._device = first.device
        self._inputs, self._targets = _tensors(torch, data, first.dtype, self._device)
        dtype = str(first.dtype).removeprefix("torch.")
        if dtype not in ("float32", "float64"):
            raise ConfigError(f"module parameters must be float32 or float64, found {dtype}")
        super().__init__(
            sum(self._sizes),
            len(self._inputs),
            dtype,
            regularizer=regularizer,
            divisor=divisor,
            moduli=moduli,
        )
        self.layout = Layout(self.names, tuple(self._shapes), (dtype,) * len(self.names))
        self._loss, self._metrics = loss, metrics
        self._per_example, self._chunk = per_example, chunk_size
        self._check_mean(self._vector(parameters.values()))
        self.held_out: TorchProblem | None = None
        if held_out is not None:
            self.held_out = TorchProblem(
                module, loss, held_out, metrics=metrics, buffers=buffers, chunk_size=chunk_size
            )

    # ------------------------------------------------------------------ models

    def arrays(self, x: Vector | None = None) -> ArrayRecord:
        """Return x, or the module's own parameters, under the module's parameter names."""
        if x is None:
            return trainable_arrays(self.module)
        parts = np.split(x, np.cumsum(self._sizes)[:-1])
        named = zip(self.names, self._shapes, parts, strict=True)
        return ArrayRecord({name: Array(part.reshape(shape)) for name, shape, part in named})

    def metrics(self, x: Vector) -> dict[str, float]:
        """Return what ``metrics`` measures of all the agent's examples; empty without it."""
        if self._metrics is None:
            return {}
        self._pin()
        with self._torch.no_grad():
            flat = self._flat(self._checked(x))
            outputs = [self._outputs(flat, inputs) for inputs, _ in self._chunks(None)]
            metrics = self._metrics(self._torch.cat(outputs), self._targets)
        return {name: float(number) for name, number in metrics.items()}

    # ------------------------------------------------------------------ methods of the base class

    def _mean_loss(self, x: Vector) -> float:
        self._pin()
        with self._torch.no_grad():
            flat = self._flat(x)
            parts = (
                float(self._loss(self._outputs(flat, inputs), targets)) * len(inputs)
                for inputs, targets in self._chunks(None)
            )
            return math.fsum(parts) / self.num_examples

    def _mean_gradient(self, x: Vector, rows: RowIndex) -> Vector:
        count = self.num_examples if rows is None else len(rows)
        total = np.zeros(self.dim, self.dtype)
        self._pin()
        flat = self._flat(x).requires_grad_()
        for inputs, targets in self._chunks(rows):
            loss = self._loss(self._outputs(flat, inputs), targets)
            (slope,) = self._torch.autograd.grad(loss, flat)
            total += slope.cpu().numpy() * self.dtype.type(len(inputs) / count)
        return total

    def _clipped_sum(self, x: Vector, clip: float, norm: Norm, rows: RowIndex) -> Vector:
        if self._per_example == "loop":
            return super()._clipped_sum(x, clip, norm, rows)
        flat = self._flat(x)
        parameters = self._parameters(flat)
        total = np.zeros(self.dim)
        count = 0
        memory, loss = self._remembered()
        for chunk in self._chunks(rows):
            gradients = clipped_gradients(loss, parameters, chunk, clip, norm, memory=memory)
            total += gradients.cpu().numpy()
            count += len(chunk[0])
        self._require_kept(flat, x)
        total *= self.num_examples / (self.divisor * count)
        return total

    def _sampled_sum(
        self, x: Vector, clip: float, kept: NDArray[np.bool_], expected: int
    ) -> Vector:
        if self._per_example == "loop":
            return super()._sampled_sum(x, clip, kept, expected)
        memory, loss = self._remembered()
        flat = self._flat(x)
        parameters, every = self._parameters(flat), (self._inputs, self._targets)
        total = clipped_gradients(
            loss, parameters, every, clip, memory=memory, kept=kept, expected=expected
        )
        self._require_kept(flat, x)
        gradient: Vector = total.cpu().numpy()
        return gradient

    def _require_kept(self, flat: Any, x: Vector) -> None:
        """Refuse parameters that were written by examples (raises ``ConfigError``)."""
        if not same_bits(flat, self._flat(x)):
            raise ConfigError("module or loss writes parameters of what it computes from examples")

    def _remembered(self) -> tuple[Memory, Callable[..., Any]]:
        """Return the loss of one example, and the memory that it is called with."""
        self._pin()
        memory = Memory(self.module, self._loss)

        def loss(parameters: Mapping[str, Any], example: Sequence[Any]) -> Any:
            inputs, targets = example
            outputs = memory.call(self.module, parameters, (inputs[None],))
            return self._loss(outputs, targets[None])

        return memory, loss

    def _example_gradients(self, x: Vector, rows: RowIndex) -> Iterator[Vector]:
        self._pin()
        parameters = self._parameters(self._flat(x))
        memory = Memory(self.module, self._loss, vmap=False)

        def loss(parameters: Mapping[str, Any], example: Sequence[Any]) -> Any:
            inputs, targets = example  # of a module and loss that have seen no other
            outputs = memory.call(fresh(self.module), parameters, (inputs[None],))
            return copy.deepcopy(self._loss)(outputs, targets[None])

        gradient = self._torch.func.grad(loss)
        for chunk in self._chunks(rows):
            for one in zip(*chunk, strict=True):
                memory.block()
                with memory.watched():
                    gradients = gradient(parameters, one).values()
                memory.require_none()
                yield self._vector(gradients)

    # ------------------------------------------------------------------ tensors

    def _parameters(self, flat: Any) -> dict[str, Any]:
        named = zip(self.names, self._shapes, flat.split(self._sizes), strict=True)
        return {name: part.view(shape) for name, shape, part in named}

    def _outputs(self, flat: Any, inputs: Any) -> Any:
        parameters = self._parameters(flat)
        return self._torch.func.functional_call(self.module, parameters, (inputs,))

    def _chunks(self, rows: RowIndex) -> Iterator[tuple[Any, Any]]:
        inputs, targets = self._inputs, self._targets
        if rows is not None:
            index = self._torch.as_tensor(np.array(rows, np.int64), device=self._device)
            inputs, targets = inputs[index], targets[index]
        return zip(inputs.split(self._chunk), targets.split(self._chunk), strict=True)

    def _flat(self, x: Vector) -> Any:
        # A copy: x may be a read-only view on a message.
        return self._torch.from_numpy(np.array(x)).to(self._device)

    def _vector(self, parameters: Iterable[Any]) -> Vector:
        return np.concatenate([p.detach().cpu().numpy().reshape(-1) for p in parameters])

    def _pin(self) -> None:
        # Asking costs nothing, changing back and forth a millisecond: the process stays at one.
        if self._torch.get_num_threads() != 1:
            self._torch.set_num_threads(1)

    def _check_mean(self, x: Vector) -> None:
        """Refuse a loss that is no mean over examples (raises ``ConfigError``).

        Examples with different targets are looked at, and each of the targets beside the same
        outputs, those that classes could have as well.
        """
        self._pin()
        rows = telling_rows(self._targets, DIFFERENT)
        flat = self._flat(x)
        try:
            fault, alike = self._fault_at(flat, rows)
        except PrivetError:
            raise
        except Exception as error:
            # Without its text, which could quote a record: the node's own log has it.
            raise ConfigError(
                f"module and loss cannot run on one example of data ({type(error).__name__})"
            ) from error
        if not fault and alike:
            parts = moved(self._parameters(flat)).values()
            with suppress(Exception):  # of parameters that the module may not take
                fault, _ = self._fault_at(
                    self._torch.cat([part.reshape(-1) for part in parts]), rows
                )
        if fault:
            raise ConfigError(fault)

    def _unlike(self, rows: Sequence[int]) -> list[int]:
        """Return rows to look at beside the first of some, those with other inputs first."""
        others = [*rows[1:BESIDE], *range(min(self.num_examples, BESIDE))]
        others = [row for row in dict.fromkeys(others) if row != rows[0]]
        first = self._inputs[rows[0]]
        return sorted(others, key=lambda row: bool((self._inputs[row] == first).all()))

    def _tried(
        self, parameters: Any, rows: Sequence[int], targets: Any = None, calls: int = 1
    ) -> tuple[Any, Any]:
        """Return outputs and loss of some examples, by a module and a loss that saw no others.

        Of the last of so many ``calls``; beside their own targets, if none are given.
        """
        module, loss = fresh(self.module), copy.deepcopy(self._loss)
        inputs = self._inputs[list(rows)]
        targets = self._targets[list(rows)] if targets is None else targets
        for _ in range(calls):
            named = {**parameters, **Memory(self.module, self._loss).block()}
            outputs = self._torch.func.functional_call(module, named, (inputs,))
            found = loss(outputs, targets)
        if not isinstance(found, self._torch.Tensor):
            raise ConfigError(f"loss gives {type(found).__name__}, expected a scalar tensor")
        if tuple(found.shape) != ():
            raise ConfigError(f"loss gives shape {tuple(found.shape)}, expected its mean")
        return outputs, found

    def _in_rows(self, together: Any, alone: Sequence[Any]) -> bool:
        """Whether outputs are one row an example."""
        tensor = self._torch.Tensor
        if not all(isinstance(each, tensor) and each.dim() for each in (together, *alone)):
            return False
        joined = (len(alone), *together.shape[1:])
        if not together.is_floating_point() or tuple(together.shape) != joined:
            return False
        return all(tuple(each.shape) == (1, *together.shape[1:]) for each in alone)

    def _fault_at(self, flat: Any, rows: Sequence[int]) -> tuple[str, bool]:
        """Return what is wrong with module and loss, if anything, and whether outputs are alike.

        Such outputs say nothing of the layers before them, and little of the loss.
        """
        torch, pair = self._torch, [rows[0], *self._unlike(rows)][:2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of shapes, which `_fault` names
            given = self._parameters(flat)
            moving = {name: part.clone().requires_grad_() for name, part in given.items()}
            if not self._tried(moving, pair[:1])[1].requires_grad:
                return NO_GRADIENT, True
            with torch.no_grad():
                together, whole = self._tried(given, pair)
                alone = [self._tried(given, [row]) for row in pair]
                _, again = self._tried(given, pair[:1], calls=2)
            if self._value(again).unlike(self._value(alone[0][1]), 1e-3):
                return AGAIN, True
            mean = mean_of([self._value(loss) for _, loss in alone], [1] * len(alone))
            fault = self._fault(self._value(whole), mean, together, self._targets)
            outputs = [each for each, _ in alone]
            if fault or not self._in_rows(together, outputs):
                return fault or self._fault_of_codes(given, pair), True
            joined = torch.cat(outputs)
            alike = bool((joined == joined[:1]).all())
            if self._mixed(together, joined):
                return MIXED, alike
            most = self._most(outputs)
            fault = self._fault_of_loss(outputs, self._targets[repeated(rows[:most], most)])
            return fault or self._fault_of_classes(outputs), alike

    def _value(self, loss: Any) -> LossGradient:
        """Return a loss without its gradient."""
        return LossGradient(float(loss), self._torch.zeros(1))

    @staticmethod
    def _mixed(together: Any, joined: Any) -> bool:
        """Whether examples have other outputs together than alone."""
        size = float(joined.abs().max()) if joined.numel() else 0.0
        return math.isfinite(size) and not bool(
            ((together - joined).abs() <= 1e-3 * size + 1e-5).all()
        )

    def _fault_of_loss(self, outputs: Sequence[Any], targets: Any) -> str:
        """Return what is wrong with the loss of targets beside mixtures of two outputs, if any.

        Beside made-up outputs as far apart as a trained module's, too, if it takes them: a loss
        that bends where its mean is small or large is straight at most starting models.
        """
        torch = self._torch
        share = torch.arange(len(targets), dtype=outputs[0].dtype, device=outputs[0].device)
        share = (share * GOLDEN).frac().reshape(-1, *[1] * (outputs[0].dim() - 1))
        first, last = outputs[0].detach(), outputs[-1].detach()
        mixed = (1.0 - share) * first + share * last  # in all ranges that outputs can have
        if fault := self._fault_beside(mixed, targets):
            return fault
        with suppress(Exception):  # of outputs that it may not take
            fault = self._fault_beside(scattered(mixed), targets)
        return "" if fault == IGNORED else fault

    def _fault_beside(self, outputs: Any, targets: Any) -> str:
        """Return what is wrong with the loss of these outputs and targets, if anything."""

        def loss_of(rows: slice) -> LossGradient:
            own = outputs[rows].clone().requires_grad_()
            value = copy.deepcopy(self._loss)(own, targets[rows])
            return LossGradient(float(value), self._slope(value, own))

        parts = in_parts(len(targets))
        mean = mean_of([loss_of(part) for part in parts], [p.stop - p.start for p in parts])
        return self._fault(loss_of(slice(0, len(targets))), mean, outputs, targets)

    def _fault_of_codes(self, parameters: Any, pair: Sequence[int]) -> str:
        """Return what is wrong with the loss of made-up classes of two examples, if anything.

        Of outputs that are no rows, such as a mapping, of which the number of classes is not known.
        """
        torch, own = self._torch, tuple(self._targets.shape[1:])
        if self._targets.dtype != torch.int64:
            return ""
        for classes in range(8, 1, -1):
            rows = [pair[k % len(pair)] for k in range(classes + 2)]
            made = torch.arange(len(rows), device=self._targets.device) % classes
            made = made.reshape(-1, *[1] * len(own)).expand(len(rows), *own).contiguous()
            with suppress(Exception), torch.no_grad():  # of a class that is too large
                whole = self._tried(parameters, rows, made)[1]
                alone = [
                    self._value(self._tried(parameters, [row], made[k : k + 1])[1])
                    for k, row in enumerate(rows)
                ]
                mean = mean_of(alone, [1] * len(rows))
                fault = self._fault(self._value(whole), mean, None, self._targets)
                return "" if fault == IGNORED else fault
        return ""

    def _fault_of_classes(self, outputs: Sequence[Any]) -> str:
        """Return what is wrong with the loss of classes that the outputs have, if any.

        The agent may have examples of one of them alone. What the loss does not take is no fault.
        """
        torch, targets, shape = self._torch, self._targets, tuple(outputs[0].shape)
        own, count = tuple(targets.shape[1:]), 0
        if targets.dtype == torch.int64 and len(shape) > 1:
            count = shape[1] if own == shape[2:] else shape[-1] if own == shape[1:-1] else 0
        if count < 2 and not bool(((targets == 0) | (targets == 1)).all()):
            return ""
        count = max(count, 2)
        most = self._most(outputs)
        classes = torch.linspace(0, count - 1, min(count, most)).round()
        classes = classes[repeated(range(len(classes)), most)]
        made = classes.to(targets.device, targets.dtype).reshape(-1, *[1] * len(own))
        made = made.expand(len(classes), *own).contiguous()
        try:
            fault = self._fault_of_loss(outputs, made)
        except Exception:
            return ""
        return "" if fault == IGNORED else fault  # classes that no example may have

    def _most(self, outputs: Sequence[Any]) -> int:
        """Return how many targets are tried beside outputs of this size."""
        size: int = outputs[0].numel()
        return max(2, min(DIFFERENT, ROOM // max(1, size)))

    def _slope(self, loss: Any, by: Any) -> Any:
        if not loss.requires_grad:
            return self._torch.zeros_like(by).reshape(-1)
        (slope,) = self._torch.autograd.grad(loss, by, allow_unused=True)
        return (self._torch.zeros_like(by) if slope is None else slope).reshape(-1)

    def _fault(self, whole: LossGradient, mean: LossGradient, outputs: Any, targets: Any) -> str:
        """Return a line if a loss of examples is not the mean of theirs, else nothing."""
        if not whole.unlike(mean, 1e-3):
            return ""
        if whole.ignores(mean):
            return IGNORED
        one, other = (tuple(getattr(each, "shape", ())[1:]) for each in (outputs, targets))
        if math.prod(one) == math.prod(other) and one != other and targets.is_floating_point():
            return (
                f"an example has outputs of shape {one} and targets of shape {other}, of which the "
                "loss makes all pairs: give both the same shape"
            )
        return (
            "the loss of two examples is not the mean of their losses: give a loss with "
            "reduction='mean' and no class weights, and a module without BatchNorm"
        )


def _import_torch() -> Any:
    """Return the torch module (raises ``ConfigError`` where it is not installed)."""
    try:
        import torch
        import torch.func
    except ImportError as error:
        raise ConfigError(
            f"TorchProblem needs PyTorch: pip install torch ({type(error).__name__}: {error})"
        ) from None
    return torch


def trainable_arrays(module: Any) -> ArrayRecord:
    """Return a module's trainable parameters by name: what a run of `TorchProblem` begins with.

    Equal to ``ArrayRecord(module.state_dict())`` for a module without buffers and frozen
    parameters.
    """
    return ArrayRecord(
        {
            name: Array(parameter.detach().cpu().numpy())
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
    )


def _trainable(module: Any) -> dict[str, Any]:
    """Return the trainable parameters in the order of the state dict."""
    every = list(module.named_parameters(remove_duplicate=False))
    if len({id(parameter) for _, parameter in every}) < len(every):
        raise ConfigError("module has tied parameters: two names of one tensor are not supported")
    chosen = {name: parameter for name, parameter in every if parameter.requires_grad}
    if not chosen:
        raise ConfigError("module has no trainable parameters")
    kinds = {(str(p.dtype), str(p.device)) for p in chosen.values()}
    if len(kinds) > 1:
        raise ConfigError(f"module mixes parameters: {sorted(kinds)}")
    return chosen


def _check_buffers(module: Any, buffers: str) -> None:
    """Refuse persistent buffers, unless they are constants."""
    if buffers not in ("refuse", "constant"):
        raise ConfigError(f"buffers is {buffers!r}, expected refuse or constant")
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    kept = [name for name in module.state_dict() if name not in parameters]
    if kept and buffers == "refuse":
        raise ConfigError(
            f"module has buffers ({kept[0]}), which no gradient moves: use GroupNorm or LayerNorm "
            "in place of BatchNorm, or buffers='constant'"
        )


def _tensors(torch: Any, data: Any, dtype: Any, device: Any) -> tuple[Any, Any]:
    """Return inputs and targets as tensors with one example a row."""
    if isinstance(data, torch.utils.data.DataLoader):
        data = data.dataset
    if not isinstance(data, tuple | list):
        pairs = [data[i] for i in range(len(data))]
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise ConfigError("data must be (inputs, targets), or a dataset of such pairs")
        data = [torch.stack([torch.as_tensor(pair[k]) for pair in pairs]) for k in (0, 1)]
    if len(data) != 2:
        raise ConfigError(f"data must be (inputs, targets), found {len(data)} parts")
    inputs, targets = (_tensor(torch, part, dtype, device) for part in data)
    if len(inputs) != len(targets):
        raise ConfigError(f"data has {len(inputs)} inputs and {len(targets)} targets")
    if not len(inputs):
        raise ConfigError("agent has no data")
    return inputs, targets


def _tensor(torch: Any, part: Any, dtype: Any, device: Any) -> Any:
    tensor = part if isinstance(part, torch.Tensor) else torch.from_numpy(np.array(part))
    tensor = tensor.detach()
    if tensor.is_floating_point():
        return tensor.to(device, dtype)
    whole = (torch.int8, torch.int16, torch.int32)
    return tensor.to(device, torch.int64 if tensor.dtype in whole else tensor.dtype)
