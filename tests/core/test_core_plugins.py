"""Data sets and commands of other packages: the package of the documentation, and broken ones."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from privet.core import ConfigError, plugins
from privet.core.plugins import COMMANDS, DATA_SETS, PAPERS, Names
from privet.data import DataError, DataSettings, load
from privet.data.loaders import FROM_PATH, NAMES
from privet.server_apps import read_config
from support.cli import privet
from support.outside import installed
from support.paths import ROOT

PAGE = (ROOT / "docs" / "how-to" / "add-an-algorithm.md").read_text()


def block(language: str) -> str:
    """Return the block of a package with a data set; the page has one of an algorithm as well."""
    found = re.search(rf"```{language}\n((?:(?!```).)*CLINIC.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def clinic(tmp_path: Path) -> Iterator[Path]:
    """Return a file of the data set that a package of somebody else's reads."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "clinic.py").write_text(block("python"))
    (project / "pyproject.toml").write_text(block("toml"))
    rng = np.random.default_rng(0)
    features = rng.normal(size=(50, 3))
    labels = np.where(features @ [1.0, -2.0, 0.5] > 0, 1.0, -1.0)
    file = tmp_path / "clinic.txt"
    np.savetxt(file, np.column_stack([features, labels]))
    with installed(project):
        yield file


def test_a_data_set_of_another_package_is_loaded_and_trained_on(
    clinic: Path, tmp_path: Path
) -> None:
    data = load("clinic", data_path=clinic)
    assert (data.name, data.columns) == ("clinic", 4)
    whole = np.loadtxt(clinic)
    rows = np.vstack([data.train_features, data.test_features])
    assert sorted(rows[:, 0]) == sorted(whole[:, 0])
    assert np.all(rows[:, 3] == 1)
    assert load("clinic", data_path=clinic, intercept=False).columns == 3
    given = ("dataset=clinic", f"data-path={clinic}", "num-agents=3", "partition=iid")
    code, _, err = privet("run", *given, "num-server-rounds=2", f"output-dir={tmp_path / 'r'}")
    assert code == 0, err
    assert "fed-plt on clinic, 3 agents" in err
    assert "clinic" in privet("run", "--help").out


def test_its_faults_are_those_of_any_data_set(clinic: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="needed for dataset clinic: a file with lines of numbers"):
        load("clinic")
    clinic.write_text("1 2 x\n")
    code, _, err = privet("data", "dataset=clinic", f"data-path={clinic}", "num-agents=2")
    assert (code, err.count("\n")) == (2, 1)
    assert f"{clinic}: expected lines of numbers" in err
    with pytest.raises(ConfigError, match=r"known|choose one of .*clinic.*did you mean 'clinic'"):
        read_config({"dataset": "clinik"})


def test_a_command_of_another_package_is_run_and_listed(clinic: Path) -> None:
    assert privet("clinic-rows", str(clinic)) == (0, "50\n", "")
    assert "Print how many rows a file has." in privet("--help").out
    code, _, err = privet("clinic-rows")
    assert (code, err.count("\n")) == (2, 1)
    assert "Missing argument 'FILE'" in err
    assert "Did you mean 'clinic-rows'; see" in privet("clinic-row").err


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[str, str], Path]:
    """Return a project whose entry point of a group names something that it has not."""

    def made(group: str, name: str) -> Path:
        (tmp_path / "brittle.py").write_text("NUMBER = 3\n")
        text = f'[project]\nname = "brittle"\nversion = "1"\n[project.entry-points."{group}"]\n'
        targets = f'{name} = "brittle:NUMBER"\n{name}-gone = "brittle:gone"\n'
        (tmp_path / "pyproject.toml").write_text(text + targets)
        return tmp_path

    return made


def test_what_is_no_data_set_is_named_and_reads_nothing(
    broken: Callable[[str, str], Path], tmp_path: Path
) -> None:
    with installed(broken(DATA_SETS, "brittle")):
        for name, said in (
            ("brittle", "brittle:NUMBER .* is of type int, not a DataFormat"),
            ("brittle-gone", "brittle:gone .* cannot be imported: AttributeError"),
        ):
            with pytest.raises(DataError, match=f"dataset {name}: {said}"):
                load(name, data_path=tmp_path)
        assert load("digits").name == "digits"


def test_a_broken_command_is_one_line_and_the_others_go_on(
    broken: Callable[[str, str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with installed(broken(COMMANDS, "brittle")):
        code, _, err = privet("brittle")
        assert (code, err.count("\n")) == (2, 1)
        assert "brittle:NUMBER" in err
        assert "not a function" in err
        with caplog.at_level(logging.WARNING):
            code, out, _ = privet("--help")
        assert (code, "brittle" in out, "report" in out) == (0, False, True)
        assert "command brittle-gone: brittle:gone" in caplog.text
        assert privet("algorithms").code == 0


def test_a_name_of_this_library_stays_its_own(broken: Callable[[str, str], Path]) -> None:
    with installed(broken(DATA_SETS, "digits")):
        assert load("digits").name == "digits"
        assert list(NAMES).count("digits") == 1
    with installed(broken(COMMANDS, "keys")):
        assert privet("keys", "rho").code == 0


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have no package beside this library, as where its wheel is installed."""
    cached = plugins.plugins
    cached.cache_clear()
    monkeypatch.setattr(plugins, "entry_points", lambda group: [])
    yield
    cached.cache_clear()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", PAPERS[COMMANDS])
def test_without_the_papers_their_commands_are_one_line(name: str) -> None:
    code, out, err = privet(name, "--help")
    assert (code, out) == (2, "")
    said = "is in papers/ of Privet's repository: pip install -e papers in a checkout of it"
    assert err == f"privet: {name} {said}\n"
    listed = privet("--help").out
    assert "report" in listed.split()
    assert name not in listed.split()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", PAPERS[DATA_SETS])
def test_without_the_papers_their_data_sets_are_one_line(name: str, tmp_path: Path) -> None:
    said = f"{name} is in papers/ of Privet's repository: pip install -e papers in a checkout"
    with pytest.raises(DataError, match=said):
        load(name, data_path=tmp_path)
    with pytest.raises(DataError, match=said):
        DataSettings.from_config({"dataset": name, "data-path": str(tmp_path)})
    code, _, err = privet("run", f"dataset={name}", f"data-path={tmp_path}")
    assert (code, err.count("\n"), said in err) == (2, 1, True)
    assert name not in NAMES


@pytest.mark.usefixtures("alone")
def test_names_are_those_of_the_library_and_of_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(FROM_PATH) == ["mnist", "click", "csv", "sql"]
    both = Names(("a", "b"), DATA_SETS)
    monkeypatch.setattr(plugins, "plugins", lambda group: {"b": None, "c": None})
    assert list(both) == ["a", "b", "c"]
    assert ", ".join(both) == "a, b, c"
    assert [one in both for one in "abcd"] == [True, True, True, False]
