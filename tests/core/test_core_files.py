"""Files that are whole or not there: what they may take the place of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from privet.core.errors import near_path
from privet.core.files import require_room, write_named, write_whole


def test_a_pipe_or_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for write in (lambda: write_whole(pipe, b"a"), lambda: require_room(pipe, 1)):
        with pytest.raises(OSError, match="not a regular file"):
            write()
    assert pipe.is_fifo()
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_named(pipe, b"abc")
    assert os.read(reader, 9) == b"abc"
    os.close(reader)
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


def test_a_link_in_a_folder_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"there")
    link = tmp_path / "link"
    link.symlink_to("there")
    write_whole(link, b"here")
    assert (link.read_bytes(), link.is_symlink()) == (b"here", False)
    assert (tmp_path / "there").read_bytes() == b"there"


def test_a_link_to_nothing_is_not_told_to_be_itself(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").symlink_to("gone")
    assert near_path(tmp_path / "rows.csv") == ""
    (tmp_path / "row.csv").touch()
    assert near_path(tmp_path / "rows.csv") == f"; did you mean {str(tmp_path / 'row.csv')!r}?"
