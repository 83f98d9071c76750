"""A hook of the documentation's build: cells know their column; phones show rows as cards.

Short names in code, such as ``fed-plt``, are not broken at their hyphens, and numbers neither at
the sign of their exponent nor before their interval.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape, unescape
from typing import Any

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEAD = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_NAME = re.compile(r"<code>(?=[^<\s]{1,20}</code>)")
_NUMBER = r"[+-]?\d*\.?\d+(?:e[+-]?\d+)?"
_WHOLE = re.compile(rf"(?<![\w.])(?:{_NUMBER} ± {_NUMBER}|\d*\.?\d+e-\d+)(?![\w.]*\w)(?![^<]*>)")


def on_page_content(html: str, **_: Any) -> str:
    """Name each cell's column in ``data-label``, which ``assets/pages.css`` shows on phones."""
    return _TABLE.sub(lambda found: _labelled(_unbroken(found[0])), html)


def _unbroken(table: str) -> str:
    named = _NAME.sub('<code class="name">', table)
    return _WHOLE.sub(r'<span class="number">\g<0></span>', named)


def _labelled(table: str) -> str:
    labels = [unescape(_TAG.sub("", head)).strip() for head in _HEAD.findall(table)]
    return "<tr>".join(_row(row, iter(labels)) for row in table.split("<tr>"))


def _row(row: str, labels: Iterator[str]) -> str:
    return re.sub(r"<td(?=[ >])", lambda _: f'<td data-label="{escape(next(labels, ""))}"', row)
