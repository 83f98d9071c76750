"""Optional dependencies that tests need."""

from __future__ import annotations

from typing import Any

import pytest

from privet.data import DataError
from privet.data.extras import optional


def extra(name: str, of: str = "datasets") -> Any:
    """Return a library of an extra, skipping the test where it is not installed."""
    try:
        return optional(name, of)
    except DataError as missing:
        pytest.skip(str(missing), allow_module_level=True)
