"""A hook of the documentation's build: formulas as MathML; pages need no script."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from math_core import LatexToMathML

_FOUND = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
# A prime is raised by itself in the fonts of texts, and as a superscript would float away.
_PRIME = re.compile(r"<msup>(<m[in]>[^<]*</m[in]>)<mo>\u2032</mo></msup>")
_CONVERTER = LatexToMathML()


def on_page_content(html: str, **_: Any) -> str:
    """Put MathML in place of the LaTeX that arithmatex has marked."""
    return _FOUND.sub(_mathml, html)


def _mathml(found: re.Match[str]) -> str:
    display = found[1] == "div"
    formula = _CONVERTER.convert_with_local_state(unescape(found[2]), displaystyle=display)
    return _PRIME.sub('<mrow>\\1<mo lspace="0" rspace="0">\u2032</mo></mrow>', formula)
