"""Privacy-critical: that a module and its loss keep nothing of one example for the next.

The gradient of an example is a function of that example and the parameters only if every block of
examples starts from the same module. Buffers are given to each block as copies. What is left then
are tensors that something keeps - the module, the loss, a global name: those made of examples are
still batched tensors of ``torch.func.vmap`` after it, by which they are found. Attributes,
containers and closures are searched, as they have names to give; every other tensor that torch
returned in a block must be gone when the block ends.

Where records are sampled, how many blocks there are, and which block a record is in, depends on
coins. Then nothing may differ from block to block, be it made of examples or not: a count of calls
or a draw of Python's or numpy's generators would let the coin of one record change what the others
add. Numbers and generators that the module and the loss hold or name are compared.
"""

from __future__ import annotations

import copy
import functools
import gc
import importlib
import itertools
import random
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from privet.core import ConfigError
from privet.kernel import Told

from .functions import Rule, ruled

LONGEST = 4096
"""Items of a container that are looked at; nobody keeps a memory in a longer one by accident."""
_NUMBERS = (str, bytes, int, float, complex, bool, np.generic)
_PLAIN = (*_NUMBERS, type(None), type, types.ModuleType)
_EMPTIED = (OrderedDict, dict, set)
_NAMED = (
    *_NUMBERS, types.FunctionType, itertools.count, random.Random, np.random.Generator,
    np.random.RandomState,
)  # fmt: skip


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
        self._parameters: Mapping[str, Any] = {}
        self._drawn: Any = None
        self._kept: list[Any] = []

    def owners(self, parameters: Iterable[str]) -> tuple[Any, list[str]]:
        """Return the module, and its own names of what it is called with."""
        return self._module, [name.removeprefix(self._prefix) for name in parameters]

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
        self._parameters = parameters
        named = {**parameters, **self._given}
        outputs = self._torch.func.functional_call(module, named, inputs)
        for name, given in self._given.items():
            if named[name] is not given:
                self._refuse(f"the buffer {name.removeprefix(self._prefix)!r}")
        return outputs

    @contextmanager
    def watched(self, rules: Mapping[Any, Rule] | None = None) -> Iterator[None]:
        """Refuse tensors of examples that outlive a block (raises ``ConfigError``).

        Functions of torch follow the rules meanwhile.
        """
        made: list[weakref.ref[Any]] = []

        tensor = self._torch.Tensor

        def see(result: Any) -> None:
            if isinstance(result, tensor):
                made.append(weakref.ref(result))
            elif not isinstance(result, _PLAIN):
                made.extend(map(weakref.ref, tensors_in(result)))

        with ruled(rules or {}, see, batched=self._vmap):
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
        for name, part in self._module.named_modules():
            for key, buffer in part._buffers.items():
                self._require_kept(".".join(filter(None, (name, key))), buffer)
            for key, value in vars(part).items():
                kind = type(value)
                if kind in _EMPTIED and not value:
                    continue  # most are, or plain, and this is done every step
                if kind in _PLAIN or isinstance(value, _PLAIN):
                    continue
                if key != "_modules" and any(map(self._batched, tensors_in(value))):
                    where = ".".join(filter(None, (name, key)))
                    self._refuse(f"{where!r} of {type(part).__name__}")
        if any(map(self._batched, tensors_in(self._loss))):
            self._refuse("the loss")

    def _require_kept(self, name: str, buffer: Any) -> None:
        given = self._given.get(self._prefix + name)
        if given is None or "parametrizations." in name:
            return
        if buffer is None or not same_bits(given, buffer):
            self._refuse(f"the buffer {name!r}")

    def begin_sampled(self) -> None:
        """Note the state of the generators that all code shares, before blocks of sampled rows."""
        self._drawn, self._kept = _shared_generators(), []

    def require_steady(self) -> None:
        """Refuse what changes from one block of sampled records to the next.

        To be called after the first and the last of a step: what the first one sets, as a cache
        does, may stay.

        Raises
        ------
        ConfigError
        """
        kept = list(_numbers_in([self._loss, *self._module.modules()]))
        if self._drawn != _shared_generators():
            self._unsteady("random numbers of Python or numpy are drawn")
        if self._kept and kept != self._kept:
            self._unsteady("a number or a generator changes, as a count of calls does")
        self._kept = kept

    @staticmethod
    def _unsteady(what: str) -> None:
        raise ConfigError(
            f"batch = 'poisson': {what} in the module or the loss from one call to the next, so "
            "that whether one record takes part would change what the others add: draw and count "
            "outside, or use batch = 'sample'",
            Told.UNSTEADY,
        )

    def _refuse(self, what: str) -> None:
        raise ConfigError(
            f"{what} keeps what it computes from one example for others, so that none can be "
            "clipped for itself: take the memory out, or use GroupNorm or LayerNorm",
            Told.MEMORY,
        )

    def _batched(self, tensor: Any) -> bool:
        functorch, inner = self._torch._C._functorch, tensor
        while functorch.is_functorch_wrapped_tensor(inner):
            if not self._vmap or functorch.is_batchedtensor(inner):
                # Recurrent layers keep the parameters they had last, of which there may be copies.
                return all(tensor is not each for each in self._parameters.values())
            inner = functorch.get_unwrapped(inner)
        return False


def fresh(module: Any) -> Any:
    """Return a copy of a module that shares its parameters and buffers and nothing else."""
    shared = {id(each): each for each in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, shared)


def tensors_in(held: Any) -> Iterator[Any]:
    """Yield the tensors that an object holds: in attributes, containers and closures."""
    return (one for one in _parts_of(held) if _is_tensor(one))


def _is_tensor(one: Any) -> bool:
    return hasattr(one, "detach") and hasattr(one, "dim")


def _shared_generators() -> tuple[Any, ...]:
    """Return the states of the generators of Python and numpy that all code shares."""
    return random.getstate(), *_legacy(np.random)


def _legacy(generator: Any) -> tuple[Any, ...]:
    _, words, *rest = generator.get_state()
    return words.tobytes(), *rest


def _numbers_in(held: Any) -> Iterator[Any]:
    """Yield what tells the numbers, texts and generators that an object holds, or names."""
    for one in _parts_of(held, named=True):
        if isinstance(one, np.random.Generator):
            yield repr(one.bit_generator.state)
        elif isinstance(one, np.random.RandomState):
            yield _legacy(one)
        elif isinstance(one, random.Random):
            yield one.getstate()
        elif isinstance(one, (*_NUMBERS, itertools.count)):
            yield repr(one)
        elif isinstance(one, np.ndarray) and not one.dtype.hasobject and one.size <= LONGEST:
            yield one.tobytes()


def _parts_of(held: Any, *, named: bool = False) -> Iterator[Any]:
    """Yield an object and what it holds.

    Where what is ``named`` counts as well, these are also plain numbers, and what classes hold and
    functions read of their globals: numbers, generators and other functions.
    """
    waiting, seen = [held], set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, _PLAIN):
            if named:
                yield one
            continue
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if _is_tensor(one):
            continue
        if isinstance(one, dict):
            if len(one) <= LONGEST:
                waiting.extend(one.values())
        elif isinstance(one, list | tuple | set | frozenset | deque):
            if len(one) <= LONGEST:
                waiting.extend(one)
        elif isinstance(one, types.FunctionType):
            waiting.extend(_of_function(one))
            if named:
                waiting.extend(_globals_of(one))
        elif isinstance(one, types.MethodType):
            waiting += [one.__self__, one.__func__]
        elif isinstance(one, types.BuiltinMethodType):
            waiting.append(one.__self__)
        elif isinstance(one, functools.partial):
            waiting += [one.func, one.args, one.keywords, vars(one)]
        elif isinstance(attributes := getattr(one, "__dict__", None), dict):
            waiting.append(attributes)
            if named:
                waiting.extend(_of_classes(one))


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    yield from (function.__defaults__, function.__kwdefaults__, function.__dict__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _globals_of(function: types.FunctionType) -> Iterator[Any]:
    if not _is_foreign(function):
        values = map(function.__globals__.get, function.__code__.co_names)
        yield from (one for one in values if isinstance(one, _NAMED))


def _of_classes(one: Any) -> Iterator[Any]:
    for kind in type(one).__mro__:
        if not _is_foreign(kind):
            yield from (each for each in vars(kind).values() if isinstance(each, _NAMED))


def _is_foreign(one: Any) -> bool:
    """Whether a class or function is of Python, torch or numpy."""
    return str(one.__module__).partition(".")[0] in ("builtins", "torch", "numpy", "functools")


def same_bits(one: Any, other: Any) -> bool:
    """Return whether two tensors have the same shape, dtype and bits."""
    torch = importlib.import_module("torch")
    if one is other:
        return True
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    raw = [each.detach().contiguous() for each in (one, other)]
    if not one.dim():
        raw = [each.reshape(1) for each in raw]
    return bool(torch.equal(*(each.view(torch.uint8) for each in raw)))
