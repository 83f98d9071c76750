"""Private primal-dual federated learning on Flower.

`load_model` reads the model of a finished run. All else is in the packages below:
`privet.strategies`, `privet.client_apps`, `privet.server_apps`, `privet.data` and so on. Public is
what a package lists in ``__all__``; modules, and packages that say "Not public:", are nobody's to
import and may change without notice.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privet.server_apps import load_model

__all__ = ["load_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("privet.server_apps"), name)
