"""Optimizers of the server: what a method aggregates is taken as a step of the model.

With x what the agents were sent last, x' what the method makes of their uploads, and d = x' - x:

* momentum, of T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of Non-Identical Data
  Distribution for Federated Visual Classification" (2019), FedAvgM:
  m <- beta m - d,   x <- x - eta m;
* adam and yogi, of S. J. Reddi et al., "Adaptive Federated Optimization" (2021), Algorithm 2:
  m <- beta m + (1 - beta) d,   x <- x + eta m / (sqrt(v) + tau), with
  v <- beta_2 v + (1 - beta_2) d^2 (adam) or v <- v - (1 - beta_2) d^2 sign(v - d^2) (yogi).

In round t adam's eta is multiplied by sqrt(1 - beta_2^(t + 1)) / (1 - beta^(t + 1)), as Flower's
FedAdam does. Whatever the method, d = 0 and m = 0 leave the model where it is: the limit is the
method's own.

A method whose own step is no mean of gradients gives adam and yogi another d (`ServerHalf.ascent`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privet.core import RunError
from privet.core.key import setting

from .half import ServerHalf, Turn

ADAPTIVE = ("adam", "yogi")
"""The optimizers that take another step than a multiple of the method's own steps."""
SAVED = "server-steps/"
"""What the names of an optimizer's vectors begin with in a checkpoint."""


@dataclass(frozen=True)
class ServerStepSettings:
    """Run-config keys of the server's optimizer."""

    topic: ClassVar[str] = "The server's step"

    server_optimizer: str = setting(
        "none",
        "what the server makes of a round's step: none takes it as it is",
        choices=("none", "momentum", "adam", "yogi"),
    )
    server_learning_rate: float = setting(
        1.0,
        "eta of the server's optimizer; adam and yogi need a small one",
        low=0,
        open_low=True,
        needs={"server_optimizer": ("momentum", "adam", "yogi")},
    )
    server_momentum: float = setting(
        0.9,
        "beta of the server's optimizer",
        low=0,
        high=1,
        needs={"server_optimizer": ("momentum", "adam", "yogi")},
    )
    server_beta_2: float = setting(
        0.99, "decay of adam's and yogi's v", low=0, high=1,
        needs={"server_optimizer": ("adam", "yogi")},
    )  # fmt: skip
    server_tau: float = setting(
        1e-3, "adaptivity of adam and yogi: the least they divide by", low=0, open_low=True,
        needs={"server_optimizer": ("adam", "yogi")},
    )  # fmt: skip


@dataclass
class ServerSteps:
    """The server's optimizer with its vectors (d,).

    Attributes
    ----------
    model : array (d,), optional
        x after the last round; None before the first.
    m, v : array (d,), optional
    """

    settings: ServerStepSettings = field(default_factory=ServerStepSettings)
    model: NDArray[Any] | None = None
    m: NDArray[Any] | None = None
    v: NDArray[Any] | None = None

    def place(self, half: ServerHalf[Any], state: Any) -> None:
        """Put the model into a state that was recomputed since, as after a resume."""
        if self.model is not None:
            setattr(state, half.last, self.model)

    def folded(self, half: ServerHalf[Any], state: Any, turn: Turn, fold: Callable[[], Any]) -> Any:
        """Return the state that a fold makes, with the optimizer's step in place of its own."""
        if self.settings.server_optimizer == "none":
            return fold()
        before = getattr(state, half.last).copy()  # a fold may reuse the state's arrays
        after = fold()
        if self.settings.server_optimizer == "momentum":
            self.model = self._momentum(before, getattr(after, half.last))
        else:
            self.model = self._adaptive(before, half.ascent(before, after, turn), turn.t)
        self.place(half, after)
        return after

    def _momentum(self, x: NDArray[Any], aggregate: NDArray[Any]) -> NDArray[Any]:
        """Return the model after a round, of the models before it and aggregated."""
        back = x - aggregate
        self.m = back if self.m is None else self.settings.server_momentum * self.m + back
        return np.asarray(x - self.settings.server_learning_rate * self.m)

    def _adaptive(self, x: NDArray[Any], moved: NDArray[Any], number: int) -> NDArray[Any]:
        """Return the model after a round counted from 1, of the model before it and d."""
        given = self.settings
        rate, beta, beta_2 = (
            given.server_learning_rate, given.server_momentum, given.server_beta_2,
        )  # fmt: skip
        m, v = (np.zeros_like(x) if one is None else one for one in (self.m, self.v))
        self.m = m = beta * m + (1 - beta) * moved
        if given.server_optimizer == "adam":
            v = beta_2 * v + (1 - beta_2) * moved**2
            left, left_2 = (1 - np.power(one, number + 1.0) for one in (beta, beta_2))
            rate = float(rate * np.sqrt(left_2) / left)
        else:
            v = v - (1.0 - beta_2) * moved**2 * np.sign(v - moved**2)
        self.v = v
        return np.asarray(x + rate * m / (np.sqrt(v) + given.server_tau))

    def dump(self) -> dict[str, NDArray[Any]]:
        """Return the vectors for a checkpoint, by name."""
        held = {"model": self.model, "m": self.m, "v": self.v}
        return {f"{SAVED}{name}": one for name, one in held.items() if one is not None}

    def load(self, arrays: Mapping[str, NDArray[Any]], like: NDArray[Any]) -> None:
        """Take over the vectors of ``dump`` (raises ``RunError`` for those of another model)."""
        for name, one in arrays.items():
            if (one.shape, one.dtype) != (like.shape, like.dtype):
                raise RunError(
                    f"resume: the checkpoint's {name} is of {one.shape} {one.dtype}, not "
                    f"{like.shape} {like.dtype}"
                )
            setattr(self, name[len(SAVED) :], one.copy())
