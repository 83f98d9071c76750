"""What the page of frequent errors says an error says, it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.cli import privet
from support.paths import ROOT

PAGE = (ROOT / "docs" / "faq.md").read_text()
CASES = re.findall(r"^## `(.*)`\n\n```\nprivet (.*)\n```$", PAGE, re.MULTILINE)


def test_there_are_errors_to_bring_about() -> None:
    assert len(CASES) >= 6


@pytest.mark.parametrize(("said", "command"), CASES, ids=[command for _, command in CASES])
def test_the_command_fails_with_these_words(
    said: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = privet(*command.split())
    assert code in {1, 2, 3}
    last = err.splitlines()[-1]
    assert last.startswith("privet: ")
    assert said in last
