"""The key ``more``: pairs in one text, which every reader of a run config takes as keys."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from flwr.common.config import parse_config_args
from hypothesis import given
from hypothesis import strategies as st

from privet.cli.new import toml
from privet.core import ConfigError
from privet.core.assignments import parse_assignments, with_more

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(min_codepoint=32, max_codepoint=0xD7FF, exclude_characters="\x7f")),
)
KEYS = st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True).filter(lambda key: key != "more")


@given(st.dictionaries(KEYS, SCALARS, max_size=5))
def test_toml_in_it_is_read_as_keys(keys: dict[str, Any]) -> None:
    assert with_more({"more": toml(keys)}) == keys


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("""more="clip=1 rho=2.5" num-agents=3""", {"num-agents": 3, "clip": 1, "rho": 2.5}),
        ("""more='tags="a b" log-json=true'""", {"tags": "a b", "log-json": True}),
        ('''more="formula='y ~ C(s, ref=1) + x'"''', {"formula": "y ~ C(s, ref=1) + x"}),
        ("""more='formula="C(s, ref=\\\\"a\\\\")"'""", {"formula": 'C(s, ref="a")'}),
        ("more='until=2024-02-29 level=.5'", {"until": "2024-02-29", "level": 0.5}),
        (
            "more='cohort=risk drop-columns=days,died'",
            {"cohort": "risk", "drop-columns": "days,died"},
        ),
        ("more=''", {}),
    ],
)
def test_it_is_read_as_flower_gives_it(typed: str, keys: dict[str, Any]) -> None:
    asked = parse_config_args([typed])
    asked["more"] = asked["more"].replace("\\\\", "\\")
    assert with_more(asked) == keys


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("clip", "more: 'clip' is not key=value"),
        (
            "clip=1 and rho=2",
            "more: 'and rho=2' is not key=value; a value with spaces is in",
        ),
        ("formula='y ~ x", 'more: "formula=\'y ~ x" is not key=value'),
        ('tags="a"b', "more: 'tags=\"a\"b' is not key=value"),
        ("clip=1 clip=2", "clip: given twice"),
        ("rho=2", "rho: in more and a key of its own in the app's pyproject.toml"),
        (3, "more = 3: expected a text"),
    ],
)
def test_what_cannot_be_read_is_one_line(more: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_more({"rho": 0.0, "more": more})
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


def test_a_long_text_takes_no_time() -> None:
    text = " ".join(f"key-{number}={json.dumps('x ' * 20)}" for number in range(2_000))
    assert len(with_more({"more": text})) == 2_000
    for spoilt in ('a="' + "\\" * 50_000, "a" * 100_000, " " * 100_000 + "a", "a " * 50_000):
        with pytest.raises(ConfigError):
            with_more({"more": spoilt})


@pytest.mark.parametrize("value", ["1" * 5_000, "[" * 5_000, "{a=" * 5_000])
def test_a_value_that_python_cannot_read_is_one_line_that_names_its_key(value: str) -> None:
    for read in (
        lambda: parse_assignments([f"clip={value}"]),
        lambda: with_more({"more": f"clip={value}"}),
    ):
        with pytest.raises(ConfigError, match=r"^clip: its value is too long to be read$"):
            read()


def test_a_config_without_it_is_the_same() -> None:
    raw = tomllib.loads("rho = 2.0\ntags = 'more'")
    assert with_more(raw) == raw
