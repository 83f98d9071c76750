"""The run-config keys of the shared regulariser h."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privet.core.key import setting, values_of
from privet.problems import H_NAMES, ProximalFunction, make_h


@dataclass(frozen=True)
class RegularizerSettings:
    """h, which is in the objective once, and has a proximal operator."""

    topic: ClassVar[str] = "Shared regulariser h"

    h: str = setting("zero", "shared regulariser h with a proximal operator", choices=H_NAMES)
    h_weight: float = setting(
        0.0, "weight of h", low=0, needs={"h": ("l1", "elastic-net", "group-l1")}
    )
    h_ratio: float = setting(
        0.5, "share of the l1 term in h = elastic-net", low=0, high=1, needs={"h": "elastic-net"}
    )
    h_radius: float = setting(
        1.0,
        "radius of the ball, half the width of the box",
        low=0,
        open_low=True,
        needs={"h": ("box", "l2-ball")},
    )
    h_group_size: int = setting(
        1, "number of parameters in each group", low=1, needs={"h": "group-l1"}
    )

    def make(self) -> ProximalFunction:
        """Return h (raises ``ValueError`` for parameters that do not fit)."""
        values = values_of(self)
        return make_h(values.pop("h"), **values)
