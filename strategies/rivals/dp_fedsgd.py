"""DP-FedSGD with server momentum, the server half: the baseline of private learning.

H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
(2017), FedSGD; M. Abadi et al., "Deep Learning with Differential Privacy" (2016), clip and noise.
Every participant sends one (clipped, noised) gradient g_i at x, and

    m <- momentum m + mean_S g_i,    x <- prox_{eta h}(x - eta m).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from privet.problems import ProximalFunction, Zero
from privet.wire import ConfigError, Settings, UploadError, digest, finite

from ..configured import GRADIENT_KEYS, ConfiguredStrategy, step_size
from ..half import Arrays, Vector


@dataclass(slots=True)
class State:
    """The model x and the velocity m, both (d,), and the number of rounds done."""

    x: Vector
    velocity: Vector
    rounds: int = 0
    residual: float = math.nan


def checked(upload: Arrays, name: str, like: Vector) -> Vector:
    """Return one array of an upload, of the shape and dtype of ``like`` and finite.

    Raises
    ------
    UploadError
    """
    array = upload.get(name)
    if array is None or array.shape != like.shape or array.dtype != like.dtype:
        said = f"no {name}" if array is None else f"{name} of shape {array.shape} {array.dtype}"
        raise UploadError(f"upload has {said}, expected {like.shape} {like.dtype}")
    if not finite(array):
        raise UploadError("upload holds numbers that are not finite")
    return array


def mean_of(uploads: Mapping[int, Arrays], name: str, like: Vector) -> Vector:
    """Return the mean of one array over the uploads, in order, one at a time."""
    total = np.zeros_like(like)
    for arrays in uploads.values():
        total += arrays[name]
    total /= total.dtype.type(len(uploads))
    return total


@dataclass(frozen=True)
class Server:
    """Server half of DP-FedSGD; it minimises (1/N) sum_i f_i + h."""

    name: ClassVar[str] = "dp-fedsgd"
    version: ClassVar[int] = 1

    momentum: float = 0.9
    h: ProximalFunction = field(default_factory=Zero)
    agent_settings: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> Settings:
        """Return what the agents need to know."""
        return dict(self.agent_settings)

    def initialise(self, start: Vector, count: int) -> State:
        """Return x = start and no velocity."""
        return State(start, np.zeros_like(start))

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state as it is: nothing is kept per agent."""
        return state

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state as it is: nothing is kept per agent."""
        return state

    def broadcast(self, state: State) -> tuple[State, Arrays]:
        """Return x."""
        return state, {"x": state.x}

    def accept(self, state: State, position: int, upload: Arrays) -> tuple[Arrays, int]:
        """Check the gradient."""
        g = checked(upload, "g", state.x)
        return {"g": g}, digest(g)

    def fold(self, state: State, uploads: Mapping[int, Arrays]) -> State:
        """Take one momentum step."""
        if not uploads:
            return state
        kind = state.x.dtype.type
        step = step_size(self.agent_settings, state.rounds + 1)
        velocity = kind(self.momentum) * state.velocity
        velocity += mean_of(uploads, "g", state.x)
        x = self.h.prox(state.x - kind(step) * velocity, step)
        gap = x - state.x
        return State(x, velocity, state.rounds + 1, float(gap @ gap))

    def recovery(self, state: State, position: int) -> Arrays | None:
        """Return nothing: agents hold no state."""
        return {}

    def models(self, state: State) -> Arrays:
        """Return ``last``: x."""
        return {"last": state.x}

    def residual(self, state: State) -> float:
        """Return ||x - x of the round before||^2."""
        return state.residual

    def dump(self, state: State) -> Arrays:
        """Return x, m, the round and the residual."""
        return {
            "x": state.x,
            "velocity": state.velocity,
            "scalars": np.array([state.rounds, state.residual]),
        }

    def load(self, arrays: Arrays) -> State:
        """Return the state of ``dump``."""
        rounds, residual = arrays["scalars"]
        return State(arrays["x"], arrays["velocity"], int(rounds), float(residual))


class DPFedSGD(ConfiguredStrategy):
    """DP-FedSGD with momentum; keys: ``momentum`` and those of the gradient steps.

    Privacy: with ``clip`` and ``noise_scale`` > 0 each upload is one Gaussian release.
    """

    algorithm: ClassVar[str] = "dp-fedsgd"
    keys: ClassVar[tuple[str, ...]] = (*GRADIENT_KEYS, "momentum")

    @staticmethod
    def half_of(config: Mapping[str, Any], h: ProximalFunction) -> Server:
        """Return the server half."""
        if config["max-local-steps"] != 1:
            raise ConfigError("max-local-steps: dp-fedsgd takes one gradient a round")
        settings = {name: config[name] for name in GRADIENT_KEYS}
        return Server(config["momentum"], h, settings)
