"""A griffe extension of the documentation's build: the arguments of Strategies.

Their constructors stand in a base class of each (``constructors.py`` of its folder), which the
pages do not show.
"""

from __future__ import annotations

import inspect
from typing import Any

import griffe

from privet import strategies


class Arguments(griffe.Extension):
    """Takes the docstrings of the Strategies from the classes."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add what the constructor's docstring says of the arguments."""
        made = getattr(strategies, cls.name, None)
        if cls.docstring and getattr(made, "settings", ()):
            _, _, arguments = (inspect.getdoc(made.__init__) or "").partition("\n\n")
            summary, _, rest = cls.docstring.value.partition("\n\n")
            cls.docstring.value = f"{summary}\n\n{arguments}\n\n{rest}"
