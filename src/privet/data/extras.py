"""Libraries of data sets and databases that are imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from .dataset import DataError


def optional(name: str, extra: str = "datasets") -> Any:
    """Import a library of an extra of this package, or a module of such a library.

    Raises
    ------
    DataError
        Not installed: names the extra.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(
            f"{name.split('.', maxsplit=1)[0]} cannot be imported ({error}): "
            f"pip install 'flwr-privet[{extra}]'"
        ) from None
