"""Arrays that are in files: what they hold, what they leave in memory, what a full disk does."""

from __future__ import annotations

import errno
import os
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.core import RunError, mapped
from privet.core.files import read_npz, write_npz, write_whole
from support.memory import resident_megabytes


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every array but the smallest count as large, and be worked on in many blocks."""
    monkeypatch.setattr(mapped, "LIMIT", 64)
    monkeypatch.setattr(mapped, "BLOCK", 96)


@given(
    rows=st.integers(1, 40),
    columns=st.integers(2, 30),
    kind=st.sampled_from(["f4", "f8"]),
    seed=st.integers(0, 2**32),
)
def test_sums_by_row_have_the_bits_of_numpys(rows: int, columns: int, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = (rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-9, 9, (rows, 1))).astype(
        kind
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped, "LIMIT", 0)
        found = mapped.column_sums(table)
    assert found.tobytes() == np.add.reduce(table, axis=0).tobytes()


def test_what_is_written_outlasts_a_release(small: None, tmp_path: Path) -> None:
    table = mapped.empty((50, 7), "f8", tmp_path)
    values = np.random.default_rng(0).standard_normal((50, 7))
    for part in mapped.blocks(table):
        table[part] = values[part]
    mapped.release()
    assert table.tobytes() == values.tobytes()
    assert list(tmp_path.iterdir()) == []  # the file has no name and goes with the process


def test_rows_of_zeros_take_up_no_memory_until_they_are_written() -> None:
    before = resident_megabytes()
    table = mapped.repeated(np.zeros(1000, np.float32), 50_000, None)  # 200 MB
    table[7], table[40_000, 3] = np.arange(1000), -0.0
    assert mapped.written(table).tolist() == [7, 40_000]
    assert not np.add.reduce(table, axis=0)[0]
    assert resident_megabytes() - before < 20


@pytest.mark.parametrize("value", [0.0, -0.0, 0.5])
def test_every_row_is_the_one_that_is_repeated(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "SPARSE", 1)
    row = np.full(3, value)
    table = mapped.repeated(row, 5, None)
    assert table.tobytes() == np.tile(row, (5, 1)).tobytes()
    assert mapped.repeated(row, 0, None).shape == (0, 3)


def test_a_mapped_table_is_not_resident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "LIMIT", 1 << 20)
    before = resident_megabytes()
    table, most = mapped.empty((400, 1 << 16), "f8", tmp_path), 0.0  # 200 MB
    for part in mapped.blocks(table):
        table[part] = 1.0
        most = max(most, resident_megabytes())
    assert mapped.column_sums(table)[0] == 400.0
    most = max(most, resident_megabytes())
    assert most - before < 60
    assert table[:].sum() == table.size  # what would be resident otherwise
    assert resident_megabytes() - before > 150
    mapped.release()
    assert resident_megabytes() - before < 60


def test_a_full_disk_is_one_line(small: None, tmp_path: Path, monkeypatch: Any) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match=r"no room for a table of 8,000 bytes \(No space left"):
        mapped.empty((100, 10), "f8", tmp_path)


def test_small_arrays_and_those_without_a_folder_are_in_memory(small: None, tmp_path: Path) -> None:
    assert mapped.empty((2, 4), "f8", tmp_path).base is None
    assert mapped.empty((100, 4), "f8", None).base is None


@given(st.data())
def test_a_spool_gives_back_what_it_was_given(tmp_path_factory: Any, data: Any) -> None:
    spool = mapped.Spool(tmp_path_factory.mktemp("spool"))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    kept = []
    for _ in range(data.draw(st.integers(1, 5))):
        shapes = data.draw(st.lists(st.sampled_from([(), (0,), (3,), (2, 5), (1000,)])))
        arrays: dict[str, Any] = {
            str(n): np.asarray(rng.standard_normal(shape)).astype(rng.choice(["f4", "f8", "u1"]))
            for n, shape in enumerate(shapes)
        }
        kept.append((arrays, spool.keep(arrays)))
    for arrays, load in reversed(kept):
        found = load()
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            assert found[name].shape == array.shape
            assert found[name].tobytes() == array.tobytes()


# ------------------------------------------------------------------ files of large arrays


ARRAYS: dict[str, Any] = {
    "table": np.arange(600.0).reshape(100, 6),
    "narrow": np.arange(50, dtype="f4").reshape(5, 10)[:, ::2],
    "number": np.array(3.5),
    "none": np.empty((0, 7)),
    "text": np.frombuffer(b"{}", np.uint8),
}


def test_large_members_are_read_as_they_were_written(small: None, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write_npz(path, ARRAYS)
    for found in (read_npz(path, tmp_path), dict(np.load(path))):  # numpy reads them as well
        assert found.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            assert found[name].dtype == array.dtype
            assert np.array_equal(found[name], array)
    found = read_npz(path, tmp_path)
    found["table"][0] = 0.0  # it may be written into


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_flipped_bit_in_a_large_member_is_found(
    small: None, tmp_path: Path, share: float
) -> None:
    path = tmp_path / "a.npz"
    write_npz(path, {"table": ARRAYS["table"]})
    data = bytearray(path.read_bytes())
    data[200 + int(share * ARRAYS["table"].nbytes)] ^= 4
    path.write_bytes(data)
    with pytest.raises(ValueError, match="CRC"):
        read_npz(path, tmp_path)


def test_a_large_member_that_claims_another_size_is_refused(small: None, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write_npz(path, {"table": ARRAYS["table"]})
    data = path.read_bytes()
    assert data.count(b"(100, 6)") == 1
    path.write_bytes(data.replace(b"(100, 6)", b"(999, 6)"))
    with pytest.raises(ValueError, match="another format"):
        read_npz(path, tmp_path)


# ------------------------------------------------------------------ files that claim too much


def archive(path: Path, member: bytes, *, compressed: bool = False) -> Path:
    """Write an archive with one member, "x"."""
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as file:
        file.writestr("x.npy", member)
    return path


def header(text: str) -> bytes:
    padded = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()


CLAIM = "{'descr': '<f8', 'fortran_order': False, 'shape': (%s,), }"


@pytest.mark.parametrize(
    "member",
    [
        header(CLAIM % (1 << 40)) + bytes(64),
        header(CLAIM % -1),
        header(CLAIM % (1 << 200)),
        header("(" * 9000),
        b"",
        b"\x93NUMPY",
    ],
    ids=["8 TiB", "negative", "beyond 64 bits", "nested", "empty", "cut"],
)
def test_a_header_that_disagrees_with_its_member_takes_no_memory(
    tmp_path: Path, member: bytes
) -> None:
    with pytest.raises(ValueError, match=r"^\w+: .*$") as found:
        read_npz(archive(tmp_path / "a.npz", member))
    assert len(str(found.value)) <= 300


def test_a_compressed_member_is_refused_before_it_is_read(tmp_path: Path) -> None:
    bomb = archive(
        tmp_path / "a.npz", header(CLAIM % 4_000_000) + bytes(32_000_000), compressed=True
    )
    assert bomb.stat().st_size < 100_000
    tracemalloc.start()
    with pytest.raises(ValueError, match="compressed"):
        read_npz(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


BYTES = "{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }"


def overlapping(path: Path, count: int, size: int) -> Path:
    """Write an archive of stored members each of which lies within the one before."""
    data, entries = bytes(size), []
    for number in range(count):
        data = header(BYTES % len(data)) + data
        entry = zipfile.ZipInfo(f"m{number}.npy")
        entry.CRC, entry.file_size, entry.compress_size = zlib.crc32(data), len(data), len(data)
        data = entry.FileHeader() + data
        entries.append((entry, len(data)))
    with zipfile.ZipFile(path, "w") as file:
        assert file.fp is not None
        file.fp.write(data)
        for entry, from_end in entries:
            entry.header_offset = len(data) - from_end
            file.filelist.append(entry)
        file.start_dir, file.comment = len(data), b"-"  # which has the entries written at the end
    return path


def test_members_that_overlap_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """Each is as long as its header says, and all together are a hundred times the file."""
    whole = read_npz(overlapping(tmp_path / "one.npz", 1, 200_000))
    assert whole["m0"].size == 200_000
    bomb = overlapping(tmp_path / "many.npz", 100, 200_000)
    assert bomb.stat().st_size < 250_000
    tracemalloc.start()
    for compressed in (False, True):
        with pytest.raises(ValueError, match="overlap"):
            read_npz(bomb, compressed=compressed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_a_temporary_file_is_new_its_owners_alone_and_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look(descriptor: int) -> None:
        for one in tmp_path.glob(".a.*.tmp"):  # that of the folder comes after the rename
            seen.append((one.name, one.stat().st_mode & 0o777))

    monkeypatch.setattr("privet.core.files.os.fsync", look)
    before = os.umask(0)
    try:
        for _ in range(2):
            write_whole(tmp_path / "a", b"secret")
    finally:
        os.umask(before)
    assert len({name for name, _ in seen}) == 2
    assert {mode for _, mode in seen} == {0o600}
    victim = tmp_path / "victim"
    victim.write_bytes(b"whole")
    monkeypatch.setattr("privet.core.files.secrets.token_hex", lambda _: "planted")
    (tmp_path / ".a.planted.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "a", b"secret")
    assert victim.read_bytes() == b"whole"


def test_what_is_like_an_array_in_a_file_is_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a large whole is in a file, though it is small itself."""
    sizes: list[tuple[int, ...]] = []
    make = mapped._in_file

    def noted(shape: tuple[int, ...], dtype: Any, folder: Path) -> Any:
        sizes.append(shape)
        return make(shape, dtype, folder)

    monkeypatch.setattr(mapped, "_in_file", noted)
    part = mapped.scratch((5, 2), np.float32, whole=mapped.LIMIT + 1)
    part.flags.writeable = False
    like = mapped.alike(part.view()[1:])
    assert (like.shape, like.dtype) == ((4, 2), np.float32)
    assert sizes == [(5, 2), (4, 2)]
    assert mapped.alike(np.zeros((3, 2))).shape == (3, 2)
    assert len(sizes) == 2
