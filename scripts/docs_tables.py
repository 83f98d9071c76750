"""A hook of the documentation's build: cells know their column; phones show rows as cards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape, unescape
from typing import Any

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEAD = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")


def on_page_content(html: str, **_: Any) -> str:
    """Name each cell's column in ``data-label``, which ``assets/pages.css`` shows on phones."""
    return _TABLE.sub(lambda found: _labelled(found[0]), html)


def _labelled(table: str) -> str:
    labels = [unescape(_TAG.sub("", head)).strip() for head in _HEAD.findall(table)]
    return "<tr>".join(_row(row, iter(labels)) for row in table.split("<tr>"))


def _row(row: str, labels: Iterator[str]) -> str:
    return re.sub(r"<td(?=[ >])", lambda _: f'<td data-label="{escape(next(labels, ""))}"', row)
