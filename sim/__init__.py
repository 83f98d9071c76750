"""Engines that run a federation on one machine, and searches for good settings.

`FederatedClassifier` and `FederatedRegressor` are the front for those who know scikit-learn; they
are imported when asked for, and scikit-learn with them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privet.sim.estimator import FederatedClassifier, FederatedRegressor

__all__ = ["FederatedClassifier", "FederatedRegressor"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("privet.sim.estimator"), name)
