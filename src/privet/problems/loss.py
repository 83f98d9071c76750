"""One loss of the run config: its name, its class, the data that fit and its own keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy.typing as npt

from privet.core.rows import NoKeys
from privet.kernel.records import FloatArray

from .linear import LinearModel
from .regularizers import Regularizer

Targets = Literal["signs", "classes", "reals"]
TASKS: Mapping[Targets, tuple[str, ...]] = {
    "signs": ("binary",),
    "classes": ("binary", "multinomial"),
    "reals": ("binary", "regression"),
}
"""Tasks of data sets whose labels can be such targets."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A row of the table of losses; a module of `privet.problems.losses` has it as a global.

    Attributes
    ----------
    name : str
        Value of the run-config key ``loss``.
    problem : type
        The class of the problem. Its ``kind`` is what the kernel knows the loss by: one that is in
        `privet.kernel.curvature.PROVEN` has what is proven there, any other takes the clip of its
        examples and no further proof.
    targets : {"signs", "classes", "reals"}
        What the class takes: -1 and +1, numbers 0 ... classes - 1, or real numbers.
    keys : type
        Frozen dataclass of the loss's own run-config keys, made with `privet.core.key.setting` and
        ``needs={"loss": name}``. The class takes them as keywords of the fields' names, and has
        their values as ``constants``.
    """

    name: str
    problem: type[LinearModel[Any]]
    targets: Targets
    keys: type[Any] = NoKeys

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks of the data sets that the loss fits."""
        return TASKS[self.targets]

    def build(
        self,
        features: FloatArray,
        labels: npt.NDArray[Any],
        keys: Any,
        *,
        task: str,
        classes: int,
        regularizer: Regularizer,
        divisor: float | None,
    ) -> LinearModel[Any]:
        """Return the problem of some rows.

        Parameters
        ----------
        features : (n, d) array
        labels : (n,) array
            As the data set has them: -1 and +1 where ``task`` is "binary".
        keys : dataclass
            Values of the loss's own keys.
        task : str
            One of ``tasks``.
        classes : int
            Number of classes of the data set.
        regularizer, divisor
            As `LinearModel` has them.

        Raises
        ------
        ValueError
            For data that the class refuses.
        """
        kind: Any = self.problem
        targets: tuple[Any, ...] = (labels,)
        if self.targets == "classes":
            targets = ((labels + 1) // 2 if task == "binary" else labels, classes)
        model: LinearModel[Any] = kind(
            features, *targets, regularizer=regularizer, divisor=divisor, **asdict(keys)
        )
        return model
