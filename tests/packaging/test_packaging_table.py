"""A messy table becomes a model in use, by what the commands print alone."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from support.messy import LABEL, write_messy
from support.wheel import Built, bare_environment, clean_environ, install_with_dependencies


@pytest.mark.slow
def test_four_commands_of_a_fresh_environment(built: Built, tmp_path: Path) -> None:
    python = bare_environment(tmp_path / "venv")
    install_with_dependencies(python, built.wheel)
    table, new, labels = write_messy(tmp_path)

    def call(command: str, code: int = 0) -> str:
        program, *words = shlex.split(command)
        assert program == "privet"
        done = subprocess.run(
            [python.with_name(program), *words],
            cwd=tmp_path,
            env=clean_environ(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    asked = call(f"privet data {shlex.quote(table.name)}", code=2).splitlines()[-1]
    assert "label-column=COLUMN" in asked
    line = call(asked.replace("COLUMN", LABEL), code=2).splitlines()[-1]
    predict = call(line).splitlines()[-1].removeprefix("predict new rows: ")
    said = call(predict.replace("ROWS.csv", new.name)).splitlines()
    assert [row.partition(",")[0] for row in said] == ["prediction", *labels]
