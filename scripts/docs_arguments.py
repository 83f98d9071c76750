"""Griffe extensions of the documentation's build: what the pages show of docstrings.

The constructors of Strategies stand in a base class of each (``constructors.py`` of its folder),
which the pages do not show. An inner product, <a, x>, would be read as a tag of HTML.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

from privet import strategies

_PRODUCT = re.compile(r"<(\w[^<>\n]*, [^<>\n]+)>")


class Arguments(griffe.Extension):
    """Takes the docstrings of the Strategies from the classes."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add what the constructor's docstring says of the arguments."""
        made = getattr(strategies, cls.name, None)
        if cls.docstring and getattr(made, "settings", ()):
            _, _, arguments = (inspect.getdoc(made.__init__) or "").partition("\n\n")
            summary, _, rest = cls.docstring.value.partition("\n\n")
            cls.docstring.value = f"{summary}\n\n{arguments}\n\n{rest}"


class InnerProducts(griffe.Extension):
    """Writes inner products with the brackets of mathematics."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace the brackets in the docstring of whatever has one."""
        if obj.docstring:
            obj.docstring.value = _PRODUCT.sub(r"⟨\1⟩", obj.docstring.value)
