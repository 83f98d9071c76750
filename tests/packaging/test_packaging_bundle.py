"""The bundle that Flower makes of this repository, which is an app too."""

from __future__ import annotations

import io
import subprocess
import zipfile

import pytest
from flwr.cli.build import build_fab_from_files

from support.paths import ROOT
from support.wheel import APP


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone")
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_it_holds_what_the_app_names_and_no_other() -> None:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {name: ROOT / name for name in done.stdout.splitlines() if (ROOT / name).is_file()}
    bundle, _ = build_fab_from_files(files)
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        names = {name for name in archive.namelist() if not name.startswith(".info/")}
    assert names == set(APP)
