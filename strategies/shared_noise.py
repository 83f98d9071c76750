"""Strategies whose agents may share the noise of their masked sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from privet.core import ConfigError
from privet.core.key import Config
from privet.rounds.flower.base import PrimalDualStrategy
from privet.rounds.half import ServerHalf


class SharesNoise(PrimalDualStrategy):
    """The conditions of a noise that agents share (`privet.client_apps.shared_noise`)."""

    @classmethod
    def half_of(cls, config: Config, **objects: Any) -> ServerHalf[Any]:
        """As every algorithm; agents share noise in a secure sum alone."""
        if config["noise-sharing"] and not config["secure-sum"]:
            raise ConfigError("noise-sharing = true needs secure-sum = true")
        return super().half_of(config, **objects)

    @classmethod
    def unused(
        cls, given: Mapping[str, Any], config: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """As every algorithm, and shared noise where there is none."""
        yield from super().unused(given, config)
        private = config["clip"] > 0 and cls.is_noised(config)
        if given.get("noise-sharing") and not (private or config["target-epsilon"] > 0):
            yield "noise-sharing", "not used without clip, and noise-scale or target-epsilon"
