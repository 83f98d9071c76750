"""A griffe extension of the documentation's build: the docstrings of Strategies as they are.

What a docstring says of an argument is made from the run-config key that the argument is, when the
class is; reading the source alone does not see it.
"""

from __future__ import annotations

import inspect
from typing import Any

import griffe

from privet import strategies


class Arguments(griffe.Extension):
    """Takes the docstrings of the Strategies from the classes."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Replace the docstring that was read."""
        made = getattr(strategies, cls.name, None)
        if cls.docstring and getattr(made, "settings", ()):
            cls.docstring.value = inspect.getdoc(made) or ""
