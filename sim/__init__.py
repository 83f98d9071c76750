"""Engines that run a federation on one machine, and searches for good settings.

`FederatedClassifier` and `FederatedRegressor` are the front for those who know scikit-learn,
`run_inline` that for run configs, `InlineGrid` what a strategy's ``start`` takes. Each is imported
when asked for, and what it needs with it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import InlineGrid
    from .estimator import FederatedClassifier, FederatedRegressor
    from .inline import grid_of, run_inline
    from .logs import quiet

__all__ = [
    "FederatedClassifier",
    "FederatedRegressor",
    "InlineGrid",
    "grid_of",
    "quiet",
    "run_inline",
]

_MODULES = {
    "FederatedClassifier": "estimator",
    "FederatedRegressor": "estimator",
    "InlineGrid": "engine",
    "grid_of": "inline",
    "quiet": "logs",
    "run_inline": "inline",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"privet.sim.{_MODULES[name]}"), name)
