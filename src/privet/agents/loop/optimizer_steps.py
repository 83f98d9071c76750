"""Steps of PyTorch optimizers in a training loop of one's own: corrected, or only watched.

A step that takes a closure minimises f_i + <shift, w> + ||w - center||^2 / (2 rho) like any other:
the closure's gradients are corrected after it, and what it returns is the loss plus the rest of
that objective, so that a line search compares values and slopes of one function.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from privet.core import ConfigError


class StepHook:
    """Begins every step of an optimizer of some parameters with their correction.

    Parameters
    ----------
    parameters : mapping of str to torch.nn.Parameter
    correct : callable
        Corrects the gradients of these names.
    objective : callable
        ``(loss, names) -> loss`` with what `correct` adds, as a function of the parameters.
    once : str
        Why a step may evaluate its closure only once, and takes a gradient that holds nothing of
        the step before; empty where it may do so more often.

    Notes
    -----
    Each optimizer has its own parameters corrected. A step within a step, as of an optimizer around
    another or of a subclass that calls its base, is one step.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        correct: Callable[[Collection[str], bool], None],
        objective: Callable[[Any, Collection[str]], Any],
        once: str,
    ) -> None:
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._parameters, self._correct = parameters, correct
        self._objective, self._once = objective, once
        self._outer: FrameType | None = None
        self._covered: set[str] = set()
        self._left: dict[str, tuple[Any, int]] = {}

    def __call__(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Correct, or return arguments of the step whose closure does; torch's pre-hook."""
        names = owned(optimizer, self._names)
        if not names:
            return None
        if getattr(optimizer, "grad_scale", None) is not None:
            raise ConfigError(
                "a fused optimizer would unscale what hook = True adds to its gradients: "
                "call scaler.unscale_(optimizer) before scaler.step(optimizer)"
            )
        refuse_maximize(optimizer)
        frame = sys._getframe(2)  # of the step, which calls the hooks
        if not _within(frame, self._outer):
            self._outer, self._covered = frame, set()
        given = closure_of(args, kwargs)
        if given is None:
            if fresh := [name for name in names if name not in self._covered]:
                self._covered.update(fresh)
                self._require_cleared(optimizer, fresh[0])
                self._correct(fresh, True)
                if (gradient := self._parameters[fresh[0]].grad) is not None:
                    self._left[fresh[0]] = gradient, gradient._version
            return None
        if isinstance(given, _Corrected):  # handed on by an optimizer around this one
            return None
        self._covered.update(names)
        closure = _Corrected(given, functools.partial(self._evaluate, optimizer, names))
        if given is kwargs.get("closure"):
            return args, {**kwargs, "closure": closure}
        return (args[0], closure, *args[2:]), kwargs

    def _require_cleared(self, optimizer: Any, name: str) -> None:
        """Refuse a gradient that one backward pass added to the corrected one of the step before.

        Where gradients are counted, that would be counted again. Elsewhere the loop adds up the
        gradients of the corrected objective, as it would those of its own.
        """
        gradient, version = self._left.get(name, (None, 0))
        held = self._parameters[name].grad
        if self._once and held is not None and held is gradient and held._version == version + 1:
            raise ConfigError(
                f"{self._once}, and those of {type(optimizer).__name__} hold that of the step "
                "before: call zero_grad() before the backward pass"
            )

    def _evaluate(self, optimizer: Any, names: Collection[str], closure: _Corrected) -> Any:
        """Evaluate a closure; correct its loss, and its gradients if it made any."""
        loss = closure.given()
        held = [self._parameters[name].grad for name in names]
        # Of an evaluation without a backward pass they are those that are corrected already.
        if closure.left != _versions(held):
            if closure.evaluations and self._once:
                raise ConfigError(
                    f"{self._once}, and {type(optimizer).__name__} evaluates its closure more than "
                    "once a step: train with torch.optim.SGD"
                )
            self._correct(names, not closure.evaluations)
            closure.evaluations += 1
            closure.held = [self._parameters[name].grad for name in names]
            closure.left = _versions(closure.held)
        return None if loss is None else self._objective(loss, names)


class _Corrected:
    """A closure of a step, with what it left behind when it was evaluated last."""

    def __init__(self, given: Callable[[], Any], evaluate: Callable[[_Corrected], Any]) -> None:
        self.given, self._evaluate = given, evaluate
        self.evaluations = 0
        self.held: list[Any] = []  # kept, so that no other gradient gets the same identity
        self.left: list[tuple[int, int]] = []

    def __call__(self) -> Any:
        return self._evaluate(self)


_hooks: list[tuple[Callable[..., Any], Callable[..., Any] | None]] = []
_handles: list[Any] = []
_lock = threading.Lock()


@contextmanager
def hooked(before: Callable[..., Any], after: Callable[..., Any] | None = None) -> Iterator[None]:
    """Call hooks before and after every step of every optimizer.

    torch reads its own tables of hooks in every step, of whatever thread: they change as the first
    hook is added and the last one removed, and not while another round is open.
    """
    torch: Any = importlib.import_module("torch.optim.optimizer")
    pair = (before, after)
    with _lock:
        if not _hooks:
            _handles.append(torch.register_optimizer_step_pre_hook(_before))
            _handles.append(torch.register_optimizer_step_post_hook(_after))
        _hooks.append(pair)
    try:
        yield
    finally:
        with _lock:
            _hooks.remove(pair)
            if not _hooks:
                while _handles:
                    _handles.pop().remove()


def _before(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call all hooks before a step, each with the arguments that the one before it returned."""
    changed = None
    for before, _ in tuple(_hooks):
        if (found := before(optimizer, args, kwargs)) is not None:
            changed = args, kwargs = found
    return changed


def _after(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call all hooks after a step."""
    for _, after in tuple(_hooks):
        if after is not None:
            after(optimizer, args, kwargs)


def closure_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the closure that a step was given: not a list or a model, its first argument."""
    module = importlib.import_module("torch.nn").Module
    given = args[1] if len(args) > 1 else kwargs.get("closure")
    return given if callable(given) and not isinstance(given, module) else None


def refuse_maximize(optimizer: Any) -> None:
    """Raise ``ConfigError`` for steps along the gradients, to which the correction is added."""
    for group in optimizer.param_groups:
        if group.get("maximize"):
            raise ConfigError(
                f"{type(optimizer).__name__} has maximize = True, and would step along the "
                "correction instead of against it: leave it out, and minimise minus the objective"
            )


class PlainSteps:
    """Notes the optimizers that step some parameters: has one steps that are not plain ones?

    An optimizer whose step is more than its gradient times a learning rate keeps momenta, second
    moments or former steps; how far it came says nothing, as that may fit by chance. Of PyTorch's
    own, `torch.optim.SGD` alone has plain steps. Weight decay moves a step by what no gradient
    holds.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._seen: list[Any] = []

    def __call__(self, optimizer: Any, *_: Any) -> None:
        """Note an optimizer; torch's pre-hook."""
        if owned(optimizer, self._names) and not any(optimizer is each for each in self._seen):
            self._seen.append(optimizer)

    def other(self) -> str:
        """Return the name of an optimizer whose steps were not plain; empty if there was none."""
        sgd = importlib.import_module("torch.optim").SGD
        for each in self._seen:
            own = type(each).__module__.startswith("torch.optim.") and not isinstance(each, sgd)
            if own or any(map(_holds_arrays, each.state.values())):
                return f"{type(each).__name__}{' with momentum' if isinstance(each, sgd) else ''}"
            if isinstance(each, sgd) and any(group["weight_decay"] for group in each.param_groups):
                return "SGD with weight_decay"
        return ""


def _holds_arrays(state: Mapping[str, Any]) -> bool:
    return any(getattr(value, "ndim", 0) > 0 for value in state.values())


def owned(optimizer: Any, names: Mapping[int, str]) -> list[str]:
    """Return the names of those parameters, by their identities, that an optimizer steps."""
    every = (each for group in optimizer.param_groups for each in group["params"])
    return [names[id(each)] for each in every if id(each) in names]


def _versions(gradients: list[Any]) -> list[tuple[int, int]]:
    """Return what differs after a gradient was replaced or changed in place."""
    return [(id(each), -1 if each is None else each._version) for each in gradients]


def _within(frame: FrameType | None, outer: FrameType | None) -> bool:
    while outer is not None and frame is not None:
        if frame is outer:
            return True
        frame = frame.f_back
    return False
