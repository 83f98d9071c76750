"""Privacy-critical: that a module and its loss keep nothing of one example for the next.

The gradient of an example is a function of that example and the parameters only if every block of
examples starts from the same module. Buffers are given to each block as copies. What is left then
are tensors that something keeps - the module, the loss, a global name: those made of examples are
still batched tensors of ``torch.func.vmap`` after it, by which they are found. Attributes,
containers and closures are searched, as they have names to give; every other tensor that torch
returned in a block must be gone when the block ends.
"""

from __future__ import annotations

import copy
import functools
import gc
import importlib
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from privet.core import ConfigError

LONGEST = 4096
"""Items of a container that are looked at; nobody keeps a memory in a longer one by accident."""
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType)


class Memory:
    """State that a module and its loss could carry from one example to another.

    Parameters
    ----------
    module : torch.nn.Module
    loss
        The function or object that is called with the module and examples.
    prefix : str
        Of the names of the module's buffers where they are given to ``functional_call``.
    vmap : bool
        Whether examples are batched tensors; without vmap any tensor of ``torch.func.grad`` counts.
    """

    def __init__(self, module: Any, loss: Any, prefix: str = "", *, vmap: bool = True) -> None:
        self._module, self._loss, self._prefix, self._vmap = module, loss, prefix, vmap
        self._torch = importlib.import_module("torch")  # which the module comes from
        self._given: dict[str, Any] = {}

    def begin(self) -> None:
        """Let what follows from the parameters alone, as a spectral norm's vectors, take a step."""
        with self._torch.no_grad():
            for part in self._module.modules():
                for name in getattr(part, "parametrizations", None) or ():
                    getattr(part, name)

    def block(self) -> dict[str, Any]:
        """Copy the buffers for the next block of examples, a tied one once.

        Raises
        ------
        ConfigError
            If one is new, and made of examples.
        """
        same: dict[int, Any] = {}
        self._given = {}
        for name, each in self._module.named_buffers(remove_duplicate=False):
            if self._batched(each):
                self._refuse(f"the buffer {name!r}")
            if id(each) not in same:
                same[id(each)] = each.detach().clone()
            self._given[self._prefix + name] = same[id(each)]
        return dict(self._given)

    def call(self, module: Any, parameters: Mapping[str, Any], inputs: tuple[Any, ...]) -> Any:
        """Return what a module gives with these parameters and the copies of its buffers.

        Raises
        ------
        ConfigError
            If it changed one of them.
        """
        named = {**parameters, **self._given}
        outputs = self._torch.func.functional_call(module, named, inputs)
        for name, given in self._given.items():
            if named[name] is not given:
                self._refuse(f"the buffer {name.removeprefix(self._prefix)!r}")
        return outputs

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Refuse tensors of examples that outlive a block (raises ``ConfigError``)."""
        made: list[weakref.ref[Any]] = []
        mode: Any = self._torch.overrides.TorchFunctionMode

        class Noting(mode):  # type: ignore[misc]
            def __torch_function__(
                self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                result = function(*args, **(kwargs or {}))
                made.extend(map(weakref.ref, tensors_in(result)))
                return result

        with Noting():
            yield
        if self._outlive(made):
            gc.collect()  # of what refers to itself
            if self._outlive(made):
                self.require_none()
                self._refuse("a global name, a class or an object outside of the module")

    def _outlive(self, made: list[weakref.ref[Any]]) -> bool:
        kept = (each() for each in made)
        return any(each is not None and self._batched(each) for each in kept)

    def require_none(self) -> None:
        """Refuse what the last block left behind (raises ``ConfigError``)."""
        for name, buffer in self._module.named_buffers(remove_duplicate=False):
            given = self._given.get(self._prefix + name)
            from_parameters = "parametrizations." in name
            if given is not None and not from_parameters and not same_bits(given, buffer):
                self._refuse(f"the buffer {name!r}")
        for name, part in self._module.named_modules():
            for key, value in vars(part).items():
                if key != "_modules" and any(map(self._batched, tensors_in(value))):
                    where = ".".join(filter(None, (name, key)))
                    self._refuse(f"{where!r} of {type(part).__name__}")
        if any(map(self._batched, tensors_in(self._loss))):
            self._refuse("the loss")

    def _refuse(self, what: str) -> None:
        raise ConfigError(
            f"{what} keeps what it computes from one example for others, so that none can be "
            "clipped for itself: take the memory out, or use GroupNorm or LayerNorm"
        )

    def _batched(self, tensor: Any) -> bool:
        functorch = self._torch._C._functorch
        while functorch.is_functorch_wrapped_tensor(tensor):
            if not self._vmap or functorch.is_batchedtensor(tensor):
                return True
            tensor = functorch.get_unwrapped(tensor)
        return False


def fresh(module: Any) -> Any:
    """Return a copy of a module that shares its parameters and buffers and nothing else."""
    shared = {id(each): each for each in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, shared)


def tensors_in(held: Any) -> Iterator[Any]:
    """Yield the tensors that an object holds: in attributes, containers and closures."""
    waiting, seen = [held], set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, _PLAIN) or id(one) in seen:
            continue
        seen.add(id(one))
        if hasattr(one, "detach") and hasattr(one, "dim"):
            yield one
        elif isinstance(one, dict):
            if len(one) <= LONGEST:
                waiting.extend(one.values())
        elif isinstance(one, list | tuple | set | frozenset | deque):
            if len(one) <= LONGEST:
                waiting.extend(one)
        elif isinstance(one, types.FunctionType):
            waiting.extend(_of_function(one))
        elif isinstance(one, types.MethodType):
            waiting += [one.__self__, one.__func__]
        elif isinstance(one, functools.partial):
            waiting += [one.func, one.args, one.keywords, vars(one)]
        elif isinstance(attributes := getattr(one, "__dict__", None), dict):
            waiting.append(attributes)


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    yield from (function.__defaults__, function.__kwdefaults__, function.__dict__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def same_bits(one: Any, other: Any) -> bool:
    """Return whether two tensors have the same shape, dtype and bits."""
    torch = importlib.import_module("torch")
    if one is other:
        return True
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    raw = [each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    return bool(torch.equal(*raw))
