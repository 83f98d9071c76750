"""JSON documents with one entry damaged."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

VALUES = (None, -1, True, "a", "inf", [], {}, [None], {"a": None}, 10**400, 1e308, [{"b": [1]}])
GONE = object()


def changes(value: Any) -> Iterator[Any]:
    """Yield a JSON value with each entry left out or replaced, at every depth."""
    for key in list(value) if isinstance(value, dict) else range(min(len(value), 2)):
        deeper = changes(value[key]) if isinstance(value[key], dict | list) else ()
        for other in (GONE, *VALUES, *deeper):
            changed = copy.copy(value)
            if other is GONE:
                del changed[key]
            else:
                changed[key] = other
            yield changed
