"""Libraries of data sets that are imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from .dataset import DataError

_EXTRA = "pip install 'flwr-privet[datasets]'"


def optional(name: str) -> Any:
    """Import ``datasets`` (Hugging Face's) or ``flwr_datasets``, or a module of theirs.

    Raises
    ------
    DataError
        Not installed: names the extra.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(
            f"{name.split('.', maxsplit=1)[0]} cannot be imported ({error}): {_EXTRA}"
        ) from None
