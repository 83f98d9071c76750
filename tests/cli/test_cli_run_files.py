"""``privet run``: configuration files that cannot be read, and a run that diverges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli import privet


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("algorithm = 'fed-plt' # caf\xe9\n".encode("latin-1"), "can't decode byte 0xe9"),
        (b"\xff\xfer\x00h\x00o\x00", "can't decode byte 0xff"),
        (b"rho = \n", "expected TOML (Invalid value (at line 1, column 7))"),
        (b"rho = " + b"9" * 5000, "expected TOML (Exceeds the limit"),
        (b"rho = " + b"[" * 100_000, "expected a flat table"),
    ],
    ids=["latin-1", "utf-16", "no value", "digits", "deep"],
)
def test_a_file_that_is_no_toml_is_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    code, _, err = privet("run", "--config", str(file), f"output-dir={tmp_path}")
    assert code == 2
    assert err.startswith(f"privet: {file}: ")
    assert said in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [file]


def test_a_diverging_run_ends_in_one_line_with_its_page(tmp_path: Path) -> None:
    keys = ["num-agents=4", "num-server-rounds=40", "step-size=100", f"output-dir={tmp_path}"]
    code, _, err = privet("run", *keys)
    assert code == 3  # its model is of no use
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("privet: ")]
    assert err.splitlines()[-1] == line
    assert "round 20: 0 of 4 agents replied" in line
    assert err.count("this run diverges, loss ") == 1
    assert "Try a smaller step-size; privet tune finds settings that converge." in err
    assert "RuntimeWarning" not in err
    (folder,) = tmp_path.iterdir()
    page = (folder / "report.html").read_text()
    assert 'data-status="failed"' in page
    page_before = folder / "report.html"
    page_before.unlink()
    csv = tmp_path / "rounds.csv"
    written = json.loads(privet("report", folder, "--csv", csv, "--json").out)
    assert written == {"report": str(page_before), "csv": str(csv)}
    assert page_before.read_text() == page
