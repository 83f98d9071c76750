"""The trained parameters of a model in one round: given the start, corrected, read."""

from __future__ import annotations

import importlib
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from privet.core import ConfigError
from privet.kernel.programs.steps import LocalTask
from privet.wire import Layout

from ..half import Vector
from .crossing import Pinned

Model = Any
"""A ``torch.nn.Module``, or a mapping of names to arrays of floats that can be written into."""


def layout_of(named: Mapping[str, Any]) -> Layout:
    """Return the layout of floats as they travel: half precision as float32."""
    return Layout(
        tuple(named),
        tuple(tuple(each.shape) for each in named.values()),
        tuple(
            "float64" if str(each.dtype).endswith("float64") else "float32"
            for each in named.values()
        ),
    )


class Parameters(ABC):
    """A model's trained parameters in one round: given the start, corrected, read.

    A subclass says where a parameter and its gradient lie, and how numbers get there from numpy;
    the arithmetic is the same for arrays and tensors.
    """

    names: tuple[str, ...]

    @abstractmethod
    def value(self, name: str) -> Any:
        """Return a parameter as it is now."""

    def sent(self, vector: Vector) -> Any:
        """Return a flat vector as it is copied from, part by part, to where the model lies."""
        return vector

    @abstractmethod
    def fill(self, name: str, part: Any) -> None:
        """Write a part of what `sent` returned into a parameter."""

    @abstractmethod
    def read(self, name: str) -> Vector:
        """Return a parameter as numpy floats of 32 or 64 bits."""

    @abstractmethod
    def like(self, part: Any, name: str) -> Any:
        """Return a part of what `sent` returned as what adds to a parameter's gradient."""

    @abstractmethod
    def zeros(self, size: int, dtype: np.dtype[Any]) -> Any:
        """Return a flat vector of zeros where the model lies."""

    def fetched(self, total: Any, pieces: Mapping[str, Any]) -> Vector:
        """Return what `zeros` gave, whose parts of the parameters were changed, as numpy floats."""
        vector: Vector = total
        return vector

    @abstractmethod
    def gradient(self, name: str, gradients: Mapping[str, Any] | None) -> Any:
        """Return a parameter's gradient, to be changed in place."""

    @abstractmethod
    def add(self, targets: list[Any], terms: list[Any], factor: float = 1.0) -> None:
        """Add factor times each term to its target, in place."""

    def terms(self, names: Collection[str]) -> list[Any]:
        """Return parameters as they are now, as terms of `add`."""
        return [self.value(name) for name in names]

    def trained(self, names: Collection[str]) -> Collection[str]:
        """Return those of the parameters that are not frozen now."""
        return names

    def graded(self, names: Collection[str]) -> bool:
        """Whether any of the parameters has a gradient."""
        return True

    def flat(self) -> bool:
        """Whether gradients are left of all parameters, and all are zero."""
        return False

    def marks(self) -> list[tuple[object, object]]:
        """Return what differs after a change of each parameter, and of its gradient."""
        return []

    @abstractmethod
    def coarseness(self) -> float:
        """Return the largest relative rounding error of a parameter."""

    def record(self) -> ArrayRecord:
        """Return the parameters by name."""
        return ArrayRecord({name: Array(self.read(name)) for name in self.names})

    def layout(self) -> Layout:
        """Return names, shapes and dtypes of `record`, without reading a number."""
        return layout_of({name: self.value(name) for name in self.names})

    def begin(self, task: LocalTask, summed: bool, weight: float = 1.0) -> None:
        """Write the start into the model and bring the task's vectors to where it lies.

        Every gradient counts ``weight`` times.
        """
        size = sum(math.prod(self.value(name).shape) for name in self.names)
        if size != task.start.size:
            raise ConfigError(
                f"the model has {size} trained parameters, the run's has {task.start.size}"
            )

        def placed(whole: Any) -> dict[str, Any]:
            return {name: self.like(part, name) for name, part in self._parts(whole).items()}

        for name, part in self._parts(self.sent(task.start)).items():
            self.fill(name, part)
        self._dtype, self._pull, self._weight = task.start.dtype, 1.0 / task.rho, weight
        fixed, factor, self._constant = task.shift, 1.0, 0.0
        if self._pull and task.center is not None:
            self._constant = 0.5 * self._pull * float(np.dot(task.center, task.center))
            if fixed is None:
                fixed, factor = task.center, -self._pull
            else:
                pulled = task.center * -self._pull
                pulled += fixed
                fixed = pulled
        self._fixed = None if fixed is None else placed(self.sent(fixed))
        self._factor = factor
        self._total = self.zeros(size, self._dtype) if summed else None
        self._slopes = placed(self._total) if summed else None

    def _parts(self, whole: Any) -> dict[str, Any]:
        """Return the parts of a flat vector, each in the shape of its parameter."""
        parts, end = {}, 0
        for name in self.names:
            shape = tuple(self.value(name).shape)
            begin, end = end, end + math.prod(shape)
            parts[name] = whole[begin:end].reshape(shape)
        return parts

    @property
    def sums(self) -> bool:
        """Whether gradients are summed up."""
        return self._slopes is not None

    def correct(
        self, gradients: Mapping[str, Any] | None, names: Collection[str] | None = None
    ) -> None:
        """Add shift - center / rho + w / rho to gradients, and sum them up where required.

        No temporary vector is made. Where gamma / rho <= 1, as it must be for the steps to
        converge, rounding w / rho separately from center / rho moves an iterate by no more than
        its own rounding does.
        """
        names = self.names if names is None else names
        if not names:
            return
        held = [self.gradient(name, gradients) for name in names]
        if self._weight != 1:
            self.add(held, held, self._weight - 1.0)
        if self._slopes is not None:
            self.add([self._slopes[name] for name in names], held)
        if self._fixed is not None:
            self.add(held, [self._fixed[name] for name in names], self._factor)
        if self._pull:
            self.add(held, self.terms(names), self._pull)

    def mean(self, steps: int) -> Vector | None:
        """Return the mean of the gradients that were summed up, in the sums' own memory."""
        if self._slopes is None or not steps:
            return None
        mean = self.fetched(self._total, self._slopes)
        mean /= steps
        self._slopes = self._total = None
        return mean

    def now(self) -> list[Vector]:
        """Return the flat parts of the model as it is now: of its own memory where they can be."""
        return [self.read(name).reshape(-1) for name in self.names]

    def joined(self, parts: list[Vector]) -> Vector:
        """Return the parts of `now` as a vector that the model does not change."""
        return np.concatenate(parts).astype(self._dtype, copy=False)

    def end(self) -> None:
        """Let go of the task's vectors."""
        self._slopes = self._total = self._fixed = None


class ArrayParameters(Parameters):
    """Arrays in a mapping, which is given new ones."""

    def __init__(self, model: MutableMapping[str, Any]) -> None:
        self.model, self.names = model, tuple(model)
        if not self.names:
            raise ConfigError("the mapping of arrays is empty")
        for name, array in model.items():
            kind = getattr(array, "dtype", type(array).__name__)
            if not isinstance(kind, np.dtype) or kind.kind != "f":
                raise ConfigError(
                    f"{name!r} of the mapping is {kind}: numpy arrays of floats are trained, or a "
                    "module (not its state dict)"
                )

    def value(self, name: str) -> Any:
        return self.model[name]

    def fill(self, name: str, part: Vector) -> None:
        self.model[name] = part.astype(self.model[name].dtype)

    def read(self, name: str) -> Vector:
        return as_numpy(self.model[name])

    def like(self, part: Vector, name: str) -> Any:
        return part

    def zeros(self, size: int, dtype: np.dtype[Any]) -> Any:
        return np.zeros(size, dtype)

    def add(self, targets: list[Any], terms: list[Any], factor: float = 1.0) -> None:
        for target, term in zip(targets, terms, strict=True):
            np.add(target, term if factor == 1 else term * factor, out=target, casting="same_kind")

    def coarseness(self) -> float:
        return max(float(np.finfo(array.dtype).eps) for array in self.model.values())

    def gradient(self, name: str, gradients: Mapping[str, Any] | None) -> Any:
        if gradients is None or name not in gradients:
            raise ConfigError(f"correct() was given no gradient of {name!r}")
        gradient, shape = gradients[name], self.model[name].shape
        if (
            not isinstance(gradient, np.ndarray)
            or gradient.dtype.kind != "f"
            or gradient.shape != shape
            or not gradient.flags.writeable
        ):
            raise ConfigError(
                f"correct() changes the gradient of {name!r} in place: it must be a writable numpy "
                f"array of floats of shape {shape}"
            )
        return gradient


class ModuleParameters(Parameters):
    """The parameters of a ``torch.nn.Module`` that travel, on its device.

    Parameters
    ----------
    model : torch.nn.Module
    expected : collection of str, optional
        The names of those that travel: frozen ones, which stay as they are, among them. By default
        all with ``requires_grad`` travel.
    personal : collection of str
        The names of those that stay with the agent.

    Raises
    ------
    ConfigError
        If the model trains none, or lazy ones without a shape.
    """

    def __init__(
        self,
        model: Any,
        expected: Collection[str] | None = None,
        personal: Collection[str] = (),
    ) -> None:
        self.parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if name not in personal
            and (parameter.requires_grad or (expected is not None and name in expected))
        }
        if not self.parameters:
            raise ConfigError("module has no trainable parameters")
        self.names = tuple(self.parameters)
        self.torch = importlib.import_module("torch")  # which the module comes from
        for name, parameter in self.parameters.items():
            if self.torch.nn.parameter.is_lazy(parameter):
                raise ConfigError(
                    f"{name!r} is a lazy parameter, which has no shape yet: call the model on a "
                    "batch, of zeros if you like, in the function that makes it"
                )
        self._shapes = {name: tuple(each.shape) for name, each in self.parameters.items()}

    def require_in(self, model: Any) -> None:
        """Raise a ConfigError if another parameter has taken the place of one that is sent, or
        numbers of another shape that of its own."""
        held = {id(parameter) for parameter in model.parameters()}
        for name, parameter in self.parameters.items():
            if tuple(parameter.shape) != self._shapes[name]:
                raise ConfigError(
                    f"parameter '{name}' of the model has shape {tuple(parameter.shape)} after the "
                    f"round, {self._shapes[name]} before it: change layers in the function that "
                    "makes the model"
                )
            if id(parameter) not in held:
                raise ConfigError(
                    f"parameter '{name}' of the model was replaced within the round, and what "
                    "took its place would not be sent: change layers in the function that makes "
                    "the model"
                )

    def value(self, name: str) -> Any:
        return self.parameters[name].detach()

    def sent(self, vector: Vector) -> Any:
        tensor = self._tensor(vector)
        pinned = Pinned.where_useful(self.parameters.values())
        self._at_once = pinned is not None
        return tensor if pinned is None else pinned.holding(tensor)

    def fill(self, name: str, part: Any) -> None:
        self.value(name).copy_(part, non_blocking=self._at_once)
        # What is left of the round before is the gradient of other numbers, and would be added to.
        self.parameters[name].grad = None

    def like(self, part: Any, name: str) -> Any:
        return part.to(self.parameters[name].device, non_blocking=self._at_once)

    def read(self, name: str) -> Vector:
        return as_numpy(self.parameters[name])

    def now(self) -> list[Vector]:
        held = [self.value(name) for name in self.names]
        pinned = Pinned.where_useful(held)  # a trainer may have moved the model
        return super().now() if pinned is None else [pinned.gathered(held, self._dtype)]

    def joined(self, parts: list[Vector]) -> Vector:
        (first, *others), own = parts, self.value(self.names[0])
        return super().joined(parts) if others or own.device.type == "cpu" else first

    def zeros(self, size: int, dtype: np.dtype[Any]) -> Any:
        kind = self.torch.float64 if dtype == np.float64 else self.torch.float32
        return self.torch.zeros(size, dtype=kind, device=self.parameters[self.names[0]].device)

    def fetched(self, total: Any, pieces: Mapping[str, Any]) -> Vector:
        moved = any(each.device != total.device for each in pieces.values())  # or lies on several
        parts = list(pieces.values()) if moved else [total]
        pinned = Pinned.where_useful(parts)
        if pinned is not None:
            return pinned.gathered(parts, self._dtype)
        numbers = [as_numpy(part).reshape(-1) for part in parts]
        return numbers[0] if not moved else np.concatenate(numbers)

    def add(self, targets: list[Any], terms: list[Any], factor: float = 1.0) -> None:
        self.torch._foreach_add_(targets, terms, alpha=factor)

    def terms(self, names: Collection[str]) -> list[Any]:
        return [self.parameters[name].data for name in names]  # to detach each takes longer

    def trained(self, names: Collection[str]) -> Collection[str]:
        return [name for name in names if self.parameters[name].requires_grad]

    def graded(self, names: Collection[str]) -> bool:
        return any(self.parameters[name].grad is not None for name in names)

    def flat(self) -> bool:
        held = (each.grad for each in self.parameters.values())
        return all(each is not None and not (each.is_sparse or bool(each.any())) for each in held)

    def marks(self) -> list[tuple[object, object]]:
        return [
            (
                (each._version, each.data_ptr()),
                None if each.grad is None else (id(each.grad), each.grad._version),
            )
            for each in self.parameters.values()
        ]

    def correct(
        self, gradients: Mapping[str, Any] | None, names: Collection[str] | None = None
    ) -> None:
        first = self.names[0]  # of all, which are moved together
        for placed in (self._fixed, self._slopes):
            if placed and placed[first].device != self.parameters[first].device:
                for name, term in placed.items():  # a trainer has moved the model
                    placed[name] = term.to(self.parameters[name].device)
        super().correct(gradients, names)

    def objective(self, loss: Any, names: Collection[str]) -> Any:
        """Return weight f + <shift, w> + ||w - center||^2 / (2 rho) of f, as `correct` has it.

        Of some parameters alone up to a constant.
        """
        added = self._constant
        for name in names:
            wide = self.value(name).reshape(-1).double()
            if self._fixed is not None:
                fixed = self._fixed[name].reshape(-1).double()
                added += self._factor * float(self.torch.dot(fixed, wide))
            if self._pull:
                added += 0.5 * self._pull * float(self.torch.dot(wide, wide))
        return loss * self._weight + added

    def _tensor(self, part: Vector) -> Any:
        """Return an array as a tensor that shares its memory, to be read only."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writ")
            return self.torch.from_numpy(np.require(part, requirements="A"))

    def coarseness(self) -> float:
        finfo = self.torch.finfo
        return max(float(finfo(each.dtype).eps) for each in self.parameters.values())

    def gradient(self, name: str, gradients: Mapping[str, Any] | None) -> Any:
        if gradients is not None:
            raise ConfigError("a module holds its gradients: call correct(module)")
        parameter = self.parameters[name]
        if hasattr(parameter, "summed_grad") and not hasattr(parameter.summed_grad, "_processed"):
            raise ConfigError(
                "an optimizer of Opacus rewrites .grad in its step: make correct() its step "
                "hook, optimizer.attach_step_hook(lambda _: local.correct(model))"
            )
        if parameter.grad is None:
            parameter.grad = self.torch.zeros_like(parameter)
        elif parameter.grad.is_sparse:  # what is added is not
            parameter.grad = parameter.grad.to_dense()
        return parameter.grad


def as_numpy(values: Any) -> Vector:
    """Return an array or a tensor as numpy floats of 64 bits if it has them, else of 32."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values if str(values.dtype) == "torch.float64" else values.float()).numpy()
    wide: Vector = np.asarray(values)
    return wide if wide.dtype == np.float64 else wide.astype(np.float32, copy=False)


def require_same(layout: Layout, expected: Layout) -> None:
    """Refuse the model of a round that is not the participant's (raises ``ConfigError``)."""
    if len(layout.names) != len(expected.names):
        other = sorted({*layout.names} ^ {*expected.names})[0]
        raise ConfigError(
            f"the model of this round has {len(layout.names)} trained parameters, the "
            f"participant's {len(expected.names)}, which differ in {other!r}: what is trained in "
            "any round has requires_grad where the participant is made"
        )
    if difference := layout.difference(expected):
        raise ConfigError(f"the model of this round has {difference} by the participant")


def parameters_of(
    model: Model, expected: Collection[str] | None = None, personal: Collection[str] = ()
) -> Parameters:
    """Return the parameters of a model that travel, as `ModuleParameters` has them.

    Raises
    ------
    ConfigError
        For what is no model.
    """
    if hasattr(model, "named_parameters") and not isinstance(model, type):
        return ModuleParameters(model, expected, personal)
    if isinstance(model, MutableMapping):
        return ArrayParameters(model)
    raise ConfigError(
        f"a model is a torch.nn.Module or a mapping of arrays, found {type(model).__name__}"
    )
