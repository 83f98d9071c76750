"""Each number of the paper stands in a file that its paragraph links."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
LINK = re.compile(r"\]\(([^)#]*)(?:#[^)]*)?\)")
NOISE = (r"\]\([^)]*\)", r"`[^`]*`", r"\$[^$]*\$", r"^## \d+\.", r"\b1e-5\b", r"section \d+")
PARAGRAPHS = [one for one in (DOCS / "paper.md").read_text().split("\n\n") if one.strip()]


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DOCS.parent / "scripts"))
    return import_module("claims")


def missing(claims: Any, paragraph: str) -> list[str]:
    """Return the numbers of a paragraph that no file which it links has."""
    files = [DOCS / target for target in LINK.findall(paragraph) if target]
    said = re.sub("|".join(NOISE), " ", paragraph, flags=re.M)
    numbers = " ".join(claims.NUMBER.findall(said.replace("1,000,000", "1000000")))
    text = "\n".join(path.read_text() for path in files)
    return list(claims.unmet({"numbers": numbers.replace(",", "")}, text))


@pytest.mark.parametrize("paragraph", PARAGRAPHS, ids=range(len(PARAGRAPHS)))
def test_every_number_of_a_paragraph_is_in_a_file_that_it_links(
    claims: Any, paragraph: str
) -> None:
    assert missing(claims, paragraph) == []


def test_a_number_that_no_file_has_is_found(claims: Any) -> None:
    last = next(one for one in PARAGRAPHS if "89 of 90" in one)
    assert missing(claims, last.replace("89 of 90", "8917 of 90")) == ["8917"]
    assert missing(claims, re.sub(r"\]\([^)]*\)", "]", last))
