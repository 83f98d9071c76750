"""Optional dependencies that tests need."""

from __future__ import annotations

from typing import Any

import pytest

from privet.data import DataError
from privet.data.extras import optional


def extra(name: str) -> Any:
    """Return a library of the extra ``datasets``, skipping the test where it is not installed."""
    try:
        return optional(name)
    except DataError as missing:
        pytest.skip(str(missing), allow_module_level=True)
