"""Where a report may be written: all files or none, and never over what a run left behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from privet.server_apps.report import write_report
from privet.server_apps.report.files import Output, write_outputs
from privet.server_apps.report.json import ReportError
from support.reports import rounds, run_folder


def report(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    """Run ``privet report`` and return its exit code and what it said on stderr."""
    from privet.sim.cli.main import main

    with pytest.raises(SystemExit) as left:
        main(["report", *map(str, arguments)])
    return int(left.value.code or 0), capsys.readouterr().err


def content(folder: Path) -> dict[str, bytes | None]:
    """Return all files below a folder, and folders as None."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "run", rounds(3), summary={"algorithm": "fed-plt"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--csv", "run/history.jsonl"], "--csv run/history.jsonl: history.jsonl is the run's own"),
        (["--out", "run/summary.json"], "--out run/summary.json: summary.json is the run's own"),
        (["--csv", "link.csv"], "--csv link.csv: history.jsonl is the run's own"),
        (["--csv", "run/checkpoint.npz"], "checkpoint.npz is the run's own"),
        (["--csv", "run/report.html", "--out", "a.html"], "report.html is the run's own"),
        (["--csv", "run/report.html"], "--csv run/report.html: expected another file than --out's"),
        (["--csv", "a.csv", "--out", "run/../a.csv"], "expected another file than --out's"),
        (["--csv", "run"], "--csv run: expected a file to write, found a folder"),
        (["--out", "run"], "--out run: expected a file to write, found a folder"),
        (["--csv", "run/history.jsonl/a.csv"], "--csv run/history.jsonl/a.csv: "),
        (["--csv", "a" * 300], ": File name too long"),
        (["--csv", "self.csv"], "--csv self.csv: Too many levels of symbolic links"),
    ],
)
def test_a_target_that_cannot_be_is_one_line_and_nothing_is_written(
    tmp_path: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.csv").symlink_to(folder / "history.jsonl")
    (tmp_path / "self.csv").symlink_to("self.csv")
    before = content(tmp_path)
    code, err = report(capsys, "run", *arguments)
    assert code == 1
    assert said in err
    assert err.count("\n") == 1
    assert content(tmp_path) == before


def test_without_pyarrow_no_page_is_written_either(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, err = report(capsys, folder, "--parquet", folder.parent / "a.parquet")
    assert (code, err.count("\n")) == (1, 1)
    assert not (folder / "report.html").exists()


def test_a_file_that_fails_leaves_all_as_they_were(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, table = folder / "report.html", folder.parent / "table.csv"
    page.write_text("the page before")
    before = content(folder.parent)
    written = iter([None, OSError(28, "No space left on device")])

    def sync(_: int) -> None:
        if problem := next(written):
            raise problem

    monkeypatch.setattr(os, "fsync", sync)
    outputs = [Output("--out", page, b"new", is_page=True), Output("--csv", table, b"new")]
    with pytest.raises(ReportError, match=rf"^--csv {table}: No space left on device$"):
        write_outputs(outputs, [folder])
    assert content(folder.parent) == before


def test_a_link_stays_one_and_a_pipe_gets_the_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    link = tmp_path / "latest.html"
    link.symlink_to(tmp_path / "pages" / "1.html")
    write_report([folder], link)
    assert link.is_symlink()
    assert (tmp_path / "pages" / "1.html").read_text().startswith("<!doctype html>")
    assert os.listdir(tmp_path / "pages") == ["1.html"]
    reading, writing = os.pipe()
    try:
        write_outputs([Output("--csv", Path(f"/dev/fd/{writing}"), b"run,")], [folder])
        assert os.read(reading, 4) == b"run,"
    finally:
        os.close(reading)
        os.close(writing)


def test_a_comparison_may_replace_a_page(folder: Path) -> None:
    other = run_folder(folder.parent / "other", rounds(2))
    write_report([folder], folder)
    write_report([folder, other], folder / "report.html")
    assert "Comparison of 2 runs" in (folder / "report.html").read_text()
