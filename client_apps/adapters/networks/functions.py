"""Functions of PyTorch that are looked at, or done in another way, while a module runs."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

Rule = Callable[..., Any]
"""(the function, its arguments, those by name) -> what is returned in place of its result."""


def ruled(rules: Mapping[Any, Rule], see: Callable[[Any], None] | None = None) -> Any:
    """Return a context in which functions of torch follow rules, and results are seen.

    One context for all rules: each that is open costs microseconds for every function called. What
    a rule calls itself follows none.
    """
    return _mode()(rules, see)


@functools.cache
def _mode() -> Any:
    torch = importlib.import_module("torch")
    mode: Any = torch.overrides.TorchFunctionMode

    class Ruled(mode):  # type: ignore[misc]
        def __init__(self, rules: Mapping[Any, Rule], see: Callable[[Any], None] | None) -> None:
            super().__init__()
            self._rules, self._see = rules, see

        def __torch_function__(
            self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            rule = self._rules.get(function)
            if rule is None:
                result = function(*args, **(kwargs or {}))
            else:
                result = rule(function, args, kwargs or {})
            if self._see is not None:
                self._see(result)
            return result

    return Ruled
