"""The built wheel, installed alone in a fresh environment, is what users get: test that."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from privet.core.library import library_digest
from support.paths import ROOT
from support.wheel import (
    FILES,
    LINKED,
    ROOMS,
    Built,
    bare_environment,
    clean_environ,
    copy_sources,
    install,
    run,
)

LOADED_BY = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@dataclass(frozen=True)
class Installed:
    """A wheel and the fresh environment it was installed into."""

    wheel: Path
    source: Path
    python: Path
    elsewhere: Path

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command in an empty folder, with nothing of the repository on any path."""
        return run(*command, cwd=self.elsewhere, env=clean_environ())

    def modules_loaded_by(self, *names: str) -> set[str]:
        """Return the top-level modules a new interpreter holds after importing `names`."""
        return set(json.loads(self.run(self.python, "-c", LOADED_BY, *names).stdout))


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    base = tmp_path_factory.mktemp("installed")
    elsewhere = base / "elsewhere"
    elsewhere.mkdir()
    python = bare_environment(base / "venv")
    install(python, built.wheel, options=("--no-deps",))
    # The dependencies come from this environment, by links to all in it but the papers, whose entry
    # points would be found. A path in a .pth file does not execute the .pth files it finds there,
    # so the editable installs of the repository stay out of sight.
    dependencies = base / "dependencies"
    dependencies.mkdir()
    for one in Path(sysconfig.get_path("purelib")).iterdir():
        if not one.name.startswith("privet_papers-"):
            (dependencies / one.name).symlink_to(one)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout
    Path(site.strip(), "dependencies.pth").write_text(f"{dependencies}\n")
    return Installed(built.wheel, built.source, python, elsewhere)


def test_contents_are_the_rooms_and_nothing_else(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = archive.namelist()
        packaged = {name: archive.read(name) for name in names if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(installed.source / "src"))
        for room in ROOMS
        for path in (installed.source / "src" / "privet" / room).rglob("*")
        if path.suffix in {".py", ".toml", ".template", ".json"} or path.name == "README.md"
    }
    expected |= {"privet/__init__.py", "privet/py.typed"}
    sources = installed.source / "src"
    assert packaged == {name: (sources / name).read_bytes() for name in expected}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_code_has_one_digest_in_wheel_and_checkout(installed: Installed) -> None:
    """By the bytes in the archive; a run's statement has it."""
    with zipfile.ZipFile(installed.wheel) as archive:
        code = {
            name.removeprefix("privet/"): hashlib.sha256(archive.read(name)).hexdigest()
            for name in archive.namelist()
            if name.endswith(".py")
        }
    lines = "".join(f"{code[name]} {name}\n" for name in sorted(code))
    digest = hashlib.sha256(lines.encode()).hexdigest()
    script = "from privet.core.library import library_digest; print(library_digest())"
    said = run(installed.python, "-c", script, cwd=installed.elsewhere, env=clean_environ())
    assert said.stdout.strip() == digest == library_digest()


def test_the_sdist_is_complete(installed: Installed) -> None:
    (sdist,) = installed.wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        links = [each.name for each in archive if each.issym() or each.islnk()]
    assert not links
    assert {*FILES, "Makefile", "mkdocs.yml", "docs/index.md", "examples/fed_plt.py"} <= names
    assert {"scripts/venv.sh", "tests/conftest.py", "tests/golden_record/cases.py"} <= names
    assert {f"src/privet/{room}/__init__.py" for room in ROOMS} <= names
    assert not [name for name in names if name.endswith(".pyc")]


def test_a_zip_of_a_commit_is_refused_in_a_line(tmp_path: Path) -> None:
    """Unpacked without links it has texts in their places; a wheel of it would lack rooms."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a clone")
    archive, source = tmp_path / "commit.zip", tmp_path / "source"
    run("git", "archive", "--format=zip", "--output", archive, "HEAD")
    with zipfile.ZipFile(archive) as unpacked:
        unpacked.extractall(source)
    assert (source / "src" / "privet" / "strategies").read_text() == "../../strategies"
    refused(source)


@pytest.mark.parametrize("left", ["a text", "nothing"])
def test_sources_that_lost_their_links_are_refused_in_a_line(tmp_path: Path, left: str) -> None:
    source = tmp_path / "source"
    copy_sources(source)
    for room in LINKED:
        link = source / "src" / "privet" / room
        if link.is_symlink():
            link.unlink()
        else:  # the tests run from an sdist, which has folders
            shutil.rmtree(link)
        if left == "a text":
            link.write_text(f"../../{room}")
    refused(source)


def refused(source: Path) -> None:
    """Require that building a wheel of these sources ends with one line, and leaves none."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    said = [line for line in (done.stdout + done.stderr).splitlines() if "privet: " in line]
    assert len(said) == 1
    assert "src/privet/strategies" in said[0]
    assert "sdist" in said[0]
    assert not list(source.rglob("*.whl"))


def test_a_package_index_takes_both(installed: Installed) -> None:
    files = sorted(installed.wheel.parent.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)


def test_every_room_imports_from_the_wheel(installed: Installed) -> None:
    script = (
        "import importlib, sys; print(*(importlib.import_module(n).__file__ for n in sys.argv[1:]))"
    )
    printed = installed.run(installed.python, "-c", script, *(f"privet.{room}" for room in ROOMS))
    files = [Path(name) for name in printed.stdout.split()]
    assert len(files) == len(ROOMS)
    assert all(file.is_relative_to(installed.python.parents[1]) for file in files)


def test_every_public_name_is_there_in_the_wheel(installed: Installed) -> None:
    names = Path(__file__).with_name("public_names.txt").read_text().split()
    script = (
        "import importlib, sys\n"
        "for package, _, name in (each.rpartition('.') for each in sys.argv[1:]):\n"
        "    getattr(importlib.import_module(package), name)"
    )
    assert len(names) > 200
    installed.run(installed.python, "-c", script, *names)


def test_problems_needs_numpy_alone(installed: Installed) -> None:
    bare = installed.modules_loaded_by()
    added = installed.modules_loaded_by("privet.problems") - bare - set(sys.stdlib_module_names)
    assert added <= {"privet", "numpy"}, sorted(added)


def test_the_command_answers(installed: Installed) -> None:
    done = installed.run(installed.python.parent / "privet", "--help")
    assert "Usage" in done.stdout
    assert "Measure and print figures" not in done.stdout  # bench, of the papers
    assert not done.stderr


def test_the_benchmarks_stay_with_the_source(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = archive.namelist()
        assert not [name for name in names if "benchmarks" in name or "studies" in name]
    assert (installed.source / "papers" / "src" / "benchmarks").is_dir()
    done = subprocess.run(
        [installed.python.parent / "privet", "bench", "masks"],
        cwd=installed.elsewhere,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    said = (
        "privet: bench is in papers/ of Privet's repository: pip install -e papers in a checkout "
        "of it\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
