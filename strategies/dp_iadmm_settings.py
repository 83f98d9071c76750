"""Settings of DP-IADMM: which keys travel, the penalty's schedule, and what contradicts itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privet.wire import ConfigError

AGENT_KEYS = (
    "local-updates",
    "eta-rule",
    "epsilon",
    "strong-convexity",
    "smoothness",
    "set",
    "set-radius",
    "perturbation",
    "mechanism",
    "sensitivity",
    "noise-scale",
    "clip",
    "row-norm",
    "noise-seed",
    "delta",
    "relation",
)
SCHEDULE_KEYS = ("rho", "rho-c1", "rho-c2", "rho-growth", "rho-period", "rho-max")
PERTURBATIONS = ("none", "objective", "output")


@dataclass(frozen=True, slots=True)
class Penalty:
    """The penalty rho_t, constant or by (24); it never decreases.

    rho_t = min(largest, c1 growth^floor(t / period) + c2 / epsilon), t = 1, 2, ...; ``constant``
    > 0 stands in for all of it.

    Raises
    ------
    ConfigError
        If it would not be positive.
    """

    constant: float = 0.0
    c1: float = 2.0
    c2: float = 5.0
    growth: float = 1.2
    period: int = 10_000
    largest: float = 1e9
    epsilon: float = math.inf

    def __post_init__(self) -> None:
        if self.growth < 1:
            raise ConfigError(f"rho-growth = {self.growth!r}: must be >= 1, rho never decreases")
        if self(1) <= 0:
            raise ConfigError("rho-c1 = 0: needs rho > 0, or rho-c2 > 0 with a finite epsilon")

    def __call__(self, t: int) -> float:
        """Return rho_t."""
        if self.constant > 0:
            return self.constant
        power = t // self.period
        if power * math.log(self.growth) > 700:
            return self.largest
        return min(self.largest, self.c1 * self.growth**power + self.c2 / self.epsilon)


def check_noise(config: Mapping[str, Any]) -> None:
    """Refuse settings of the noise that contradict each other or name no scale."""
    if config["perturbation"] not in PERTURBATIONS:
        raise ConfigError(
            f"perturbation = {config['perturbation']!r}: dp-iadmm has {', '.join(PERTURBATIONS)}"
        )
    if config["perturbation"] == "none":
        return
    if config["sensitivity"] == "paper":
        for name, wanted in (
            ("mechanism", "laplace"),
            ("perturbation", "objective"),
            ("clip", 0.0),
            ("noise-scale", 0.0),
        ):
            if config[name] != wanted:
                raise ConfigError(f"sensitivity = paper needs {name} = {wanted}")
    elif config["epsilon"] < math.inf and not config["clip"] and not config["noise-scale"]:
        raise ConfigError(
            f"epsilon = {config['epsilon']:g} needs clip > 0 (or perturbation = none, or "
            "sensitivity = paper)"
        )
