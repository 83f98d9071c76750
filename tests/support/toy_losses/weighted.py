"""A loss in one file: (w/2) (s - t)^2, whose curvature is its key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from privet.core.key import setting
from privet.problems.linear import ScalarScoreModel
from privet.problems.loss import Loss


@dataclass(frozen=True)
class Keys:
    toy_weight: float = setting(1.0, "weight of an example", low=1e-6, needs={"loss": "toy"})


class Weighted(ScalarScoreModel):
    kind: ClassVar[str] = "toy"

    def __init__(self, features: Any, targets: Any, *, toy_weight: float, **more: Any) -> None:
        super().__init__(features, **more)
        self.constants = {"toy_weight": toy_weight}
        self._weight = toy_weight
        self._set_data(self.features, np.asarray(targets, self.dtype), self.num_features)

    @property
    def score_curvature(self) -> tuple[float, float]:
        return self._weight, self._weight

    def _losses(self, x: Any) -> Any:
        return self._weight / 2 * (self._design.dot(x) - self._targets) ** 2

    def slopes(self, scores: Any, targets: Any) -> Any:
        scores -= targets
        scores *= self._weight
        return scores


LOSS = Loss("toy", Weighted, "reals", Keys)
