"""Every ``flwr run --run-config`` of pages and examples gives keys that the app lists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from privet.core.assignments import with_more
from privet.server_apps.config import read_config, without_stand_ins
from support.paths import ROOT
from support.run_config import listed

TYPED = re.compile(r"""--run-config[ \n]+('[^']*'|"(?:\\.|[^"\\])*")""")
FILES = [
    file
    for folder in ("docs", "examples")
    for file in sorted((ROOT / folder).rglob("*"))
    if file.suffix in {".md", ".sh", ".yaml"} and "results" not in file.parts
]


def typed_in(file: Path) -> list[str]:
    found = [text[1:-1].replace('\\"', '"') for text in TYPED.findall(file.read_text())]
    return [re.sub(r"\\?\n\s*", " ", text) for text in found]


GIVEN = [
    (file.relative_to(ROOT).as_posix(), text)
    for file in FILES
    for text in typed_in(file)
    if "=" in text
]


@pytest.mark.parametrize(("file", "text"), GIVEN)
def test_keys_are_listed_and_read(file: str, text: str) -> None:
    keys = parse_config_args([re.sub(r"\$\w+", "/srv", text.replace("$common", ""))])
    assert keys
    own = listed(ROOT)
    assert keys.keys() <= own.keys(), "Flower refuses others by no name"
    read_config(without_stand_ins({**own, **keys}))


def test_pages_have_some() -> None:
    assert len(GIVEN) >= 9


@pytest.mark.parametrize(
    ("page", "begin"),
    [("operate", "num-agents = 20"), ("multi-site-study", 'algorithm = "glm"')],
)
def test_files_of_pages_are_listed_and_read(page: str, begin: str) -> None:
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text()
    (found,) = re.findall(rf"^{re.escape(begin)}\n(?:.+\n)*?(?=END|```)", text, re.M)
    keys = tomllib.loads(found)
    own = listed(ROOT)
    assert keys.keys() <= own.keys()
    assert with_more(keys).keys() > keys.keys() - {"more"}
    read_config(without_stand_ins({**own, **keys}))
