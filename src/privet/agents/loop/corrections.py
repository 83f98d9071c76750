"""Calls of `LocalRound.correct` by a loop: every step of an optimizer needs one, and only one.

PyTorch says before and after a step which optimizer takes it, and says of a parameter when a
backward pass has added to its gradient. A gradient counts its changes in place, and keeps what is
noted on it for as long as it lives. So it is known of most gradients how many corrections they hold
at least, or that they hold none; what is not known is never refused:

- gradients that are set to zero in place, where ``zero_grad`` has been given
  ``set_to_none=False``, after they were corrected;
- gradients that took another one's place, or were changed by the loop between two corrections;
- steps without a ``torch.optim`` optimizer.
"""

from __future__ import annotations

import functools
import importlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from privet.core import ConfigError

from .optimizer_steps import closure_of, hooked, refuse_maximize

Unscaled = Callable[[Any], None]
_watching: list[Unscaled] = []
_lock = threading.Lock()

NONE = (
    "{0} steps by gradients without the correction: call correct() once before every step, after "
    "its last backward pass and zero_grad() (of a closure: at its end), or open the round with "
    "hook = True"
)
CLEARED = (
    "the gradients were cleared between correct() and the step of {0}, which loses the correction: "
    "call zero_grad() before the backward pass, or after the step"
)
TWICE = (
    "the gradients that {0} steps by hold the correction more than once: call its zero_grad() "
    "before the backward pass (what .data clears is not seen), and correct() once for a step, "
    "after the last backward pass, and once for all optimizers that step by the same gradients; or "
    "open the round with hook = True"
)
LATE = (
    "a backward pass came between correct() and the step of {0}, and what it added is missing in "
    "what this method makes of the gradients: call correct() after the last backward pass"
)


class _Mark(NamedTuple):
    """The corrections that a gradient holds, valid for one version: an attribute of the tensor.

    Attributes
    ----------
    round : object
        Marks of other rounds say nothing.
    version : int
        torch's count of changes in place.
    times : int
        It holds at least so many corrections.
    bare : bool
        Whether it holds none for sure.
    late : bool
        Whether a backward pass added to it after a correction.
    """

    round: object
    version: int
    times: int
    bare: bool
    late: bool


class _Step(NamedTuple):
    """A step that has begun."""

    optimizer: Any
    right: bool
    found: int
    calls: int
    fault: str


class Corrections:
    """Refuses steps whose gradients hold no correction, or more than one.

    Parameters
    ----------
    parameters : mapping of str to torch.nn.Parameter
    needed : bool
        Whether a correction changes a gradient at all.
    whole : bool
        Whether a correction has to be one of the whole gradient, which it adds up or weights.

    Attributes
    ----------
    stepped : bool
        Whether an optimizer has stepped any of the parameters.

    Notes
    -----
    Of every optimizer the first parameter with a gradient is looked at, as a correction is one of
    all parameters. So a step costs nothing that grows with the model, but for the first one of an
    optimizer. A step within a step, as of an optimizer around another or of a subclass that calls
    its base, is one step.
    """

    def __init__(self, parameters: Mapping[str, Any], needed: bool, whole: bool) -> None:
        self._needed, self._whole = needed, whole
        self._parameters = list(parameters.values())
        self._ids = {id(parameter) for parameter in parameters.values()}
        # Those whose gradients are noted: looked at, or of an optimizer that has not stepped yet.
        self._noted = {id(parameter): parameter for parameter in parameters.values()}
        self._round = object()
        self._calls = self._found = 0
        self._before: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._open: list[_Step] = []
        self._handles: dict[int, Any] = {}
        self.stepped = False

    def held(self) -> list[tuple[Any, int]]:
        """Return the watched parameters and how many corrections each gradient holds by now."""
        return [
            (each, self._times(each.grad)) for each in self._noted.values() if each.requires_grad
        ]

    def corrected(self, held: list[tuple[Any, int]]) -> None:
        """Note a correction of what `held` returned."""
        self._calls += 1
        for parameter, times in held:
            self._note(parameter.grad, times + 1)

    def _note(self, gradient: Any, times: int, bare: bool = False, late: bool = False) -> None:
        gradient._privet = _Mark(self._round, gradient._version, times, bare, late)

    def _mark(self, gradient: Any) -> _Mark | None:
        mark: _Mark | None = getattr(gradient, "_privet", None)
        return mark if mark is not None and mark.round is self._round else None

    def _times(self, gradient: Any) -> int:
        """Return how many corrections a gradient holds at least."""
        mark = self._mark(gradient)
        return 0 if mark is None or mark.version != gradient._version else mark.times

    def _accumulated(self, parameter: Any) -> None:
        """Note what a backward pass has added to; torch's hook of a parameter."""
        gradient = parameter.grad
        if gradient is None:  # a hook before this one has taken it
            return
        mark = self._mark(gradient)
        if mark is None:
            self._note(gradient, 0, bare=True)
        elif mark.version + 1 == gradient._version:  # nothing else has changed it
            self._note(gradient, mark.times, mark.bare, late=mark.times > 0)
        else:
            self._note(gradient, 0)

    def _look_at(self, parameter: Any) -> None:
        """Have every backward pass of a parameter noted, from the next one on."""
        key = id(parameter)
        if key in self._handles:
            return
        self._handles[key] = parameter.register_post_accumulate_grad_hook(self._accumulated)
        if key not in self._noted:  # so what was noted once is of the past
            self._noted[key] = parameter
            self._note(parameter.grad, 0)

    def _ours(self, optimizer: Any) -> Iterator[Any]:
        """Yield those of the parameters, not frozen, that an optimizer steps."""
        for group in optimizer.param_groups:
            for each in group["params"]:
                if each.requires_grad and id(each) in self._ids:
                    yield each

    def _first(self, optimizer: Any) -> tuple[bool, Any]:
        """Return whether an optimizer steps any, and the first that has a gradient."""
        ours = False
        for each in self._ours(optimizer):
            if each.grad is not None:
                return True, each
            ours = True
        return ours, None

    def _fault(self, optimizer: Any, parameter: Any) -> str:
        """Return the error of a step by these gradients; empty if there is none."""
        before = self._before.get(optimizer, -1)
        corrected = self._calls > max(before, 0)
        if parameter is None:
            return CLEARED.format(type(optimizer).__name__) if corrected else ""
        self._look_at(parameter)
        if before < 0:
            for each in self._ours(optimizer):
                if id(each) not in self._handles:
                    self._noted.pop(id(each), None)
        mark = self._mark(parameter.grad)
        if mark is not None and mark.times > 1:
            return TWICE.format(type(optimizer).__name__)
        if self._whole and mark is not None and mark.late:
            return LATE.format(type(optimizer).__name__)
        if not corrected or (mark is not None and mark.bare):
            return NONE.format(type(optimizer).__name__)
        return ""

    def _begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at a step before it is taken; torch's pre-hook."""
        ours, parameter = self._first(optimizer)
        if not ours:
            return
        self.stepped = True
        if self._needed:
            refuse_maximize(optimizer)
        if self._calls and getattr(optimizer, "grad_scale", None) is not None:
            _refuse_scaled()
        if not self._needed:
            return
        fault, right = "", any(step.right for step in self._open)
        if not right and closure_of(args, kwargs) is None:
            fault = self._fault(optimizer, parameter)
            if right := not fault:
                self._is_right(optimizer)
        self._open.append(_Step(optimizer, right, self._found, self._calls, fault))

    def _ends(self, optimizer: Any, *_: Any) -> None:
        """Refuse a step that had no correction, nor was given one within; torch's post-hook."""
        if all(step.optimizer is not optimizer for step in self._open):
            return
        while (step := self._open.pop()).optimizer is not optimizer:
            pass  # above it are steps that raised
        if step.right or self._found > step.found:
            return
        unchanged = step.fault and self._calls == step.calls
        if fault := step.fault if unchanged else self._fault(optimizer, self._first(optimizer)[1]):
            raise ConfigError(fault)
        self._is_right(optimizer)

    def _is_right(self, optimizer: Any) -> None:
        self._found += 1
        self._before[optimizer] = self._calls

    def _unscaling(self, optimizer: Any) -> None:
        """Refuse to unscale gradients that nothing has changed since they were corrected."""
        noted = (each for each in self._ours(optimizer) if id(each) in self._noted)
        times = [self._times(each.grad) for each in noted if each.grad is not None]
        if times and all(times):
            _refuse_scaled()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at what optimizers and gradient scalers do within the block."""
        if self._needed:
            trained = [each for each in self._noted.values() if each.requires_grad]
            for parameter in trained[:1]:  # of other optimizers', once they step
                self._look_at(parameter)
        try:
            with unscaling(self._unscaling), hooked(self._begins, self._ends):
                yield
        finally:
            for handle in self._handles.values():
                handle.remove()
            for parameter in self._parameters:  # a gradient that somebody saves is torch's alone
                if parameter.grad is not None:
                    vars(parameter.grad).pop("_privet", None)


def _refuse_scaled() -> None:
    raise ConfigError(
        "correct() came before the gradients were unscaled, which divides the correction by "
        "the scale: call scaler.unscale_(optimizer), correct() and scaler.step(optimizer)"
    )


@contextmanager
def unscaling(watch: Unscaled) -> Iterator[None]:
    """Call a function with the optimizer before a ``torch.amp.GradScaler`` unscales its gradients.

    torch has hooks for optimizers and none for scalers: the method is replaced while a round is
    open, and put back after the last.
    """
    kind = importlib.import_module("torch.amp").GradScaler
    with _lock:
        if not _watching:
            kind.unscale_ = _watched(kind.unscale_)
        _watching.append(watch)
    try:
        yield
    finally:
        with _lock:
            _watching.remove(watch)
            if not _watching:
                kind.unscale_ = kind.unscale_.__wrapped__


def _watched(unscale: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @functools.wraps(unscale)
    def unscale_(scaler: Any, optimizer: Any) -> None:
        if scaler.is_enabled():
            for watch in tuple(_watching):
                watch(optimizer)
        unscale(scaler, optimizer)

    return unscale_
