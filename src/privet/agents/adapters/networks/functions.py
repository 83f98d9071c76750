"""Privacy-critical: functions of PyTorch that are looked at, or done in another way, in a module.

A function that says itself what it does with a batch of examples under ``torch.func.vmap`` may mix
them, which nothing else would notice: an ``autograd.Function`` with a ``vmap`` of its own, and an
operator of another package with a kernel for batches. Both are refused while examples are batched.
``generate_vmap_rule = True`` runs the function's own ``forward`` and ``backward`` under vmap, which
is safe. What such a function calls is not seen by the context that it was called in, so that
Functions are looked at where vmap itself dispatches them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from privet.core import ConfigError
from privet.kernel import Told

Rule = Callable[..., Any]
"""(the function, its arguments, those by name) -> what is returned in place of its result."""


def ruled(
    rules: Mapping[Any, Rule], see: Callable[[Any], None] | None = None, *, batched: bool = False
) -> Any:
    """Return a context in which functions of torch follow rules, and results are seen.

    One context for all rules: each that is open costs microseconds for every function called. What
    a rule calls itself follows none. Where examples are ``batched``, functions that do batches in
    their own way are refused.
    """
    if batched:
        _look_at_functions()
    return _mode()(rules, see, batched)


_open: ContextVar[Any] = ContextVar("open", default=None)
"""The innermost context that is open where examples are batched."""


def _refuse(name: str) -> None:
    raise ConfigError(
        f"{name} has a vmap of its own, which may mix examples: set generate_vmap_rule = True in "
        "its place, or write it in functions of torch",
        Told.OWN_VMAP,
    )


@functools.lru_cache(maxsize=1024)
def _require_no_batches(operator: Any) -> None:
    """Refuse an operator that is not PyTorch's and has a kernel for batches of examples."""
    torch = importlib.import_module("torch")
    if isinstance(operator, torch._ops.OpOverload):
        names = [operator.name()]
    else:
        names = [getattr(operator, each).name() for each in operator.overloads()]
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for each in names:
        if not each.startswith("aten::") and has_kernel(each, "FuncTorchBatched"):
            _refuse(f"the operator {each}")


@functools.cache
def _look_at_functions() -> None:
    """Look at every Function that vmap calls while a context is open, once for the process."""
    torch = importlib.import_module("torch")
    table = importlib.import_module("torch._functorch.autograd_function").custom_function_call
    vmap = importlib.import_module("torch._C._functorch").TransformType.Vmap
    call = table.functorch_table[vmap]

    def looked_at(interpreter: Any, function: Any, *operands: Any, **named: Any) -> Any:
        mode = _open.get()
        if mode is None:
            return call(interpreter, function, *operands, **named)
        if function.vmap is not torch.autograd.Function.vmap:
            _refuse(f"the autograd.Function {function.__name__}")
        with mode.within():
            return call(interpreter, function, *operands, **named)

    table.functorch_table[vmap] = looked_at


@functools.cache
def _mode() -> Any:
    torch = importlib.import_module("torch")
    mode: Any = torch.overrides.TorchFunctionMode
    operators = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)

    class Ruled(mode):  # type: ignore[misc]
        def __init__(
            self,
            rules: Mapping[Any, Rule],
            see: Callable[[Any], None] | None,
            batched: bool,
        ) -> None:
            super().__init__()
            self._rules, self._see, self._batched = rules, see, batched

        def __enter__(self) -> Any:
            self._before = _open.set(self) if self._batched else None
            return super().__enter__()

        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            if self._before is not None:
                _open.reset(self._before)

        def within(self) -> Ruled:
            """Return the context of what a Function calls, without the rules."""
            return Ruled({}, self._see, self._batched)

        def __torch_function__(
            self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            rule = self._rules.get(function)
            if rule is None:
                if self._batched and type(function) in operators:
                    _require_no_batches(function)
                result = function(*args, **(kwargs or {}))
            else:
                result = rule(function, args, kwargs or {})
            if self._see is not None:
                self._see(result)
            return result

    return Ruled
