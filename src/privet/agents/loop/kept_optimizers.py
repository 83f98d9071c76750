"""Privacy-critical: the state of a loop's optimizers, from one round to the next.

Momenta and second moments are kept by the names of the parameters that they belong to. Learning
rates and other settings are always those of the round's own optimizer.

Privacy: they never leave the agent. In a private round they are made of noised gradients and
public numbers (a step elsewhere than in ``private_step`` is refused), and a private round begins
with those of a private round alone: they are kept under another name than those of other rounds.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from privet.core import ConfigError
from privet.kernel import Told

from .optimizer_steps import hooked, owned
from .personal import Bytes

State = dict[str, dict[str, Any]]
"""What an optimizer keeps of each parameter, by the parameter's name."""


class KeptOptimizers:
    """Gives the optimizers of a round the state that those of the round before ended with.

    Parameters
    ----------
    model : torch.nn.Module
        The state of its parameters is kept, personal ones too.
    held : array of uint8, optional
        The bytes of ``read``, of the round that this one goes on from.
    private : bool
        Whether steps count only within ``private_step``.

    Notes
    -----
    An optimizer is given its state before its first step: of those that are held and have not been
    given out, the first that shares a parameter with it.
    """

    def __init__(self, model: Any, held: Bytes | None, private: bool = False) -> None:
        self._names = {id(each): name for name, each in model.named_parameters()}
        self._torch: Any = importlib.import_module("torch")
        self._held: list[State] = []
        self._private, self._allowed = private, False
        if held is not None:
            self._held = self._torch.load(
                io.BytesIO(held.tobytes()), map_location="cpu", weights_only=True
            )
        self._seen: list[tuple[Any, State]] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at every optimizer that steps parameters of the model within the block."""
        with hooked(self._before):
            yield

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let an optimizer of a private round step."""
        self._allowed = True
        try:
            yield
        finally:
            self._allowed = False

    def _before(self, optimizer: Any, *_: Any) -> None:
        """Restore an optimizer before its first step; torch's pre-hook."""
        if not (names := owned(optimizer, self._names)):
            return
        if self._private and not self._allowed:
            raise ConfigError(Told.KEPT_OPTIMIZER)
        if any(optimizer is each for each, _ in self._seen):
            return
        held = next((each for each in self._held if each.keys() & set(names)), {})
        if held:
            self._held = [each for each in self._held if each is not held]
            self._restore(optimizer, held)
        self._seen.append((optimizer, held))

    def _restore(self, optimizer: Any, held: State) -> None:
        whole = optimizer.state_dict()
        state = {
            number: held[name] for number, name in self._numbered(optimizer).items() if name in held
        }
        groups, settings = optimizer.param_groups, list(optimizer.param_groups)
        try:
            optimizer.load_state_dict({**whole, "state": state})
        except Exception as error:
            raise ConfigError(
                f"keep_optimizer: {type(optimizer).__name__} does not take the state that the "
                f"optimizer of the round before left: {type(error).__name__}"
            ) from error
        # The loop, a scheduler or an optimizer around this one may hold the groups.
        optimizer.param_groups[:] = settings
        if "param_groups" in vars(optimizer):
            optimizer.param_groups = groups

    def _numbered(self, optimizer: Any) -> dict[int, str]:
        """Return the names of the model's parameters by their numbers in the state dict."""
        every = (each for group in optimizer.param_groups for each in group["params"])
        return {
            number: self._names[id(each)]
            for number, each in enumerate(every)
            if id(each) in self._names
        }

    def read(self) -> Bytes:
        """Return the state of all optimizers; what did not step has that of the round before."""
        kept: list[State] = []
        for optimizer, held in self._seen:
            state = optimizer.state_dict()["state"]
            numbered = self._numbered(optimizer).items()
            now = {name: state[number] for number, name in numbered if number in state}
            kept.append({**held, **now})
        written = io.BytesIO()
        self._torch.save([*kept, *self._held], written)
        return np.frombuffer(written.getbuffer(), np.uint8)
