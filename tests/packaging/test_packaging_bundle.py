"""The bundle that Flower makes of this repository, which is an app too."""

from __future__ import annotations

import io
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_files
from packaging.requirements import Requirement

from support.paths import PACKAGE, ROOT
from support.wheel import APP, clean_environ, run

pytestmark = [
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone"),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def bundle() -> zipfile.ZipFile:
    """Return what Flower makes of the files of this checkout that git knows."""
    listed = run("git", "ls-files").stdout.splitlines()
    files = {name: ROOT / name for name in listed if (ROOT / name).is_file()}
    return zipfile.ZipFile(io.BytesIO(build_fab_from_files(files)[0]))


def test_it_holds_what_the_app_names_and_no_other(bundle: zipfile.ZipFile) -> None:
    names = {name for name in bundle.namelist() if not name.startswith(".info/")}
    assert names == set(APP)


def test_every_package_index_has_what_flower_resolves_for_it(bundle: zipfile.ZipFile) -> None:
    """Flower has uv resolve extras and groups too; a build with a local version is in no index."""
    project = tomllib.loads(bundle.read("pyproject.toml").decode())
    extras = project["project"]["optional-dependencies"].values()
    groups = project["dependency-groups"].values()
    needed = [*project["project"]["dependencies"], *chain.from_iterable([*extras, *groups])]
    assert len(needed) > 20
    local = [one for one in needed if "+" in str(Requirement(one).specifier)]
    assert not local


def test_one_command_makes_it(bundle: zipfile.ZipFile, tmp_path: Path) -> None:
    """`make bundle`, in another folder: it holds what git knows."""
    recipes = run("make", "-n", "bundle").stdout
    (recipe,) = (line for line in recipes.splitlines() if "/flwr build" in line)
    command = recipe.rpartition("/flwr ")[2].replace("--app ..", f"--app {ROOT}").split()
    run(Path(sys.executable).with_name("flwr"), *command, cwd=tmp_path)
    (made,) = tmp_path.glob("*.fab")
    assert {*zipfile.ZipFile(made).namelist()} == {*bundle.namelist()}


@pytest.mark.parametrize("app", ["flower_server", "flower_client"])
def test_its_apps_import_the_installed_package(
    bundle: zipfile.ZipFile, tmp_path: Path, app: str
) -> None:
    """A folder ``privet`` in the bundle would come first, and have no names."""
    bundle.extractall(tmp_path)
    code = f"import {app}, privet; from privet import load_model; print(privet.__file__)"
    done = run(sys.executable, "-c", code, cwd=tmp_path, env=clean_environ())
    assert Path(done.stdout.strip()) == PACKAGE / "__init__.py"
