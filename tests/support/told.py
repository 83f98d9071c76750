"""What a private node tells others of a failure, and what its own log says of it."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from privet.core import RunError
from privet.kernel import Told


class Lines(logging.Handler):
    """The lines of nodes' own logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        what = "".join(traceback.format_exception_only(error)) if error else ""
        self.lines.append(f"{record.getMessage()} {what}".strip())

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)


@contextmanager
def own_log() -> Iterator[Lines]:
    """Collect what nodes of this process log."""
    log, lines = logging.getLogger("flwr.privet"), Lines()
    log.addHandler(lines)
    try:
        yield lines
    finally:
        log.removeHandler(lines)


@contextmanager
def refused(
    told: Told, line: str, error: type[Exception] = RunError
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect a run to end with a text of the closed list, and a line in the node's own log.

    ``line`` is a regular expression. What stands in the log alone is not in the error.
    """
    with own_log() as said, pytest.raises(error, match=re.escape(told)) as caught:
        yield caught
    found = re.search(line, said.text)
    assert found, f"{line!r} is not in the node's log: {said.text}"
    assert found[0] in told or found[0] not in str(caught.value)
