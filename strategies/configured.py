"""Strategies whose constructor arguments are run-config keys with underscores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from privet.problems import ProximalFunction, Zero, make_h
from privet.wire import resolve

from . import participation
from .base import RUN_ARGUMENTS, PrimalDualStrategy
from .half import ServerHalf

GRADIENT_KEYS = (
    "step-size-base",
    "step-size-rule",
    "max-local-steps",
    "batch",
    "batch-size",
    "clip",
    "clipping",
    "noise-scale",
    "noise-seed",
    "delta",
    "relation",
)
"""Settings of agents that take local gradient steps."""


class ConfiguredStrategy(PrimalDualStrategy):
    """A Strategy built from run-config keys.

    Parameters
    ----------
    h : ProximalFunction, optional
        Shared regulariser; none by default.
    secure_sum : bool
        Whether uploads are masked, where the algorithm can do with sums.
    options
        Run-config keys of the algorithm with underscores, then the arguments of
        ``PrimalDualStrategy``.
    """

    h_over_mean: ClassVar[bool] = True
    keys: ClassVar[tuple[str, ...]] = GRADIENT_KEYS
    """Run-config keys of the algorithm."""

    def __init__(
        self, *, h: ProximalFunction | None = None, secure_sum: bool = False, **options: Any
    ) -> None:
        own: dict[str, Any] = {}
        for name in (*self.keys, "preset"):
            key = name.replace("-", "_")
            if key in options:
                own[name] = options.pop(key)
        config = resolve(own, self.algorithm)
        half = self.half_of(config, h or Zero())
        if secure_sum:
            half = self.summing_half_of(half, config, int(options.get("seed", 0)))
        super().__init__(half, secure_sum=secure_sum, **options)

    @staticmethod
    @abstractmethod
    def half_of(config: Mapping[str, Any], h: ProximalFunction) -> ServerHalf[Any]:
        """Return the server half for a resolved config."""

    @classmethod
    def summing_half_of(
        cls, half: ServerHalf[Any], config: Mapping[str, Any], seed: int
    ) -> ServerHalf[Any]:
        """Return a half of the same settings for masked uploads, where there is one.

        Raises
        ------
        ConfigError
            If these settings need more than sums.
        """
        return half

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """Return the strategy that a resolved run config asks for (raises ``ConfigError``)."""
        return cls(
            **{name.replace("-", "_"): config[name] for name in cls.keys},
            h=make_h(config["h"], **{k: v for k, v in config.items() if k.startswith("h-")}),
            participation=participation.from_config(config),
            secure_sum=config["secure-sum"],
            **{name.replace("-", "_"): config[name] for name in RUN_ARGUMENTS},
            **options,
        )


def step_size(settings: Mapping[str, Any], round_: int) -> float:
    """Return eta_t of a round counted from 1, as the agents compute it."""
    base = float(settings["step-size-base"])
    return base if settings["step-size-rule"] == "constant" else base / float(round_) ** 0.5
