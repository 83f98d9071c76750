"""The ``privet`` command, called in this process."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from privet.cli.main import main


class Said(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def privet(*arguments: object) -> Said:
    """Run the command with these words."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as left:
        main([str(word) for word in arguments])
    assert isinstance(left.value.code, int)
    return Said(left.value.code, out.getvalue(), err.getvalue())
