"""``privet new``: what it writes is an app that Flower bundles and that trains."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict

from privet.cli.config import parse_assignments
from privet.cli.new import MODELS
from privet.cli.presets import load_preset
from privet.core import algorithms, analyses
from privet.data.settings import DATA_OWNERS
from privet.server_apps import load_model
from privet.server_apps.config import (
    keys_of_run,
    owned_by,
    read_config,
    table,
    without_stand_ins,
)
from privet.sim.engine import InlineGrid
from support.cli import privet
from support.messy import LABEL, write_messy
from support.processes import Deployment
from support.simulation import NO_INSTALLATION, run_simulation
from support.wheel import (
    Built,
    bare_environment,
    clean_environ,
    install,
    install_with_dependencies,
    run,
)

Make = Callable[..., Path]
ROOT = Path(__file__).parents[2]
DATASETS = table()["dataset"].owners[""].choices


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return what calls the command for a model and returns the app's folder."""

    def call(model: str, *options: str) -> Path:
        folder = tmp_path / f"my-app-{model}"
        code, _, err = privet("new", folder, "--model", model, *options)
        assert (code, err) == (0, "")
        return folder

    return call


def config_of(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


@pytest.mark.parametrize("model", MODELS)
def test_flower_bundles_it_with_what_it_needs(make: Make, model: str) -> None:
    folder = make(model)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"my-app-{model}"
    (library,) = [one for one in project["dependencies"] if one.startswith("flwr-privet[")]
    assert library == f"flwr-privet[simulation,plots]~={version('flwr-privet')}"
    assert any(one.startswith("torch") for one in project["dependencies"]) == (model == "torch")
    run(Path(sys.executable).with_name("flwr"), "build", cwd=folder)
    (bundle,) = folder.glob("*.fab")
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
    package = project["name"].replace("-", "_")
    assert {f"{package}/client_app.py", f"{package}/server_app.py", "pyproject.toml"} <= names
    others = {name for name in names if not name.startswith((f"{package}/", ".info/"))}
    assert others <= {"pyproject.toml", "README.md"}
    assert "$" not in (folder / "README.md").read_text().replace("$PWD", "")


def play(folder: Path, package: str, agents: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an app that was written, as its own package, in its folder."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    client = importlib.import_module(f"{package}.client_app")
    server = importlib.import_module(f"{package}.server_app")
    context = Context(0, 0, {}, RecordDict(), config_of(folder))
    server.app(InlineGrid(client.app, agents), context)


@pytest.mark.parametrize("model", ["sklearn", "torch"])
def test_a_model_of_ones_own_is_trained(
    make: Make, model: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if model == "torch":
        pytest.importorskip("torch")
    folder = make(model)
    package = f"my_app_{model}"
    play(folder, package, 3, monkeypatch)
    accuracy = float(capsys.readouterr().out.rpartition(": ")[2])
    assert accuracy > 0.9
    (run_folder,) = (folder / "runs").iterdir()
    saved = load_model(run_folder)
    record = ArrayRecord(
        {name: Array(array) for name, array in saved.arrays.items() if "/" not in name}
    )
    assert importlib.import_module(f"{package}.model").accuracy(record) == pytest.approx(
        accuracy, abs=1e-4
    )
    assert len((run_folder / "history.jsonl").read_text().splitlines()) == 20
    assert "accuracy" in (run_folder / "report.html").read_text()
    summary = json.loads((run_folder / "summary.json").read_text())
    assert summary["accuracy"] == pytest.approx(accuracy, abs=1e-4)
    assert saved.about["privacy"] == {"private": False, "reason": summary["privacy"]}
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


@pytest.mark.parametrize("model", ["sklearn", "torch"])
def test_another_algorithm_is_what_its_readme_says(
    make: Make, model: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    if model == "torch":
        pytest.importorskip("torch")
    folder = make(model).rename(tmp_path / "other")
    package = folder / f"my_app_{model}"
    package = package.rename(folder / f"other_{model}")
    (settings,) = re.findall(r"`SETTINGS = (.+?)`", (folder / "README.md").read_text())
    server_app, own = package / "server_app.py", package / "model.py"
    text = server_app.read_text().replace("FedPLT", "FedDyn")
    server_app.write_text(text.replace("local_epochs=", "max_local_steps="))
    before, _, after = own.read_text().partition("SETTINGS: dict[str, Any] = ")
    own.write_text(f"{before}SETTINGS: dict[str, Any] = {settings}{after[after.index('}') + 1 :]}")
    play(folder, package.name, 2, monkeypatch)
    assert float(capsys.readouterr().out.rpartition(": ")[2]) > 0.9


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        ("target-epsilon=4", "clip > 0; add local-solver=noisy-gd clip=1.0 row-norm=5.6"),
        ("target-epsilon=4 clip=1", "only with noisy-gd; add local-solver=noisy-gd row-norm=5.6"),
        ("algorithm=dp-fedsgd target-epsilon=4", "clip > 0; add clip=1.0"),
        (
            "algorithm=dp-fedsgd target-epsilon=4 dataset=csv data-path=/there.csv",
            "clip > 0; add clip=1.0 schema=schema.toml, where privet data",
        ),
    ],
)
def test_a_private_app_has_all_that_its_run_needs(
    given: str, lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `privet run` says it; the records need not be here."""
    monkeypatch.chdir(tmp_path)
    code, out, err = privet("new", "app", *given.split())
    assert (code, out) == (2, "")
    assert lacks in err
    assert not (tmp_path / "app").exists()
    more = re.findall(r"[\w-]+=[\w.-]+", lacks)
    if "dataset=csv" in given:
        (tmp_path / "schema.toml").write_text('[columns]\n"age" = [0, 120]\n')
    keys = dict(one.split("=") for one in (*given.split(), *more))
    code, _, err = privet("new", "app", *(f"{key}={value}" for key, value in keys.items()))
    assert (code, err) == (0, "")
    assert keys.keys() <= config_of(tmp_path / "app").keys()


@pytest.mark.parametrize("model", MODELS)
def test_flower_installs_nothing_for_a_run(make: Make, model: str, tmp_path: Path) -> None:
    """By the command that Flower gives uv for a run, without any index."""
    folder = make(model)
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(tmp_path / "env"), "UV_OFFLINE": "1"}
    sync = ["sync", "--python", sys.executable, "--no-install-project", "--inexact"]
    run(sys.executable, "-m", "uv", *sync, cwd=folder, env=environment)
    packages = next((tmp_path / "env" / "lib").glob("python*")) / "site-packages"
    assert not list(packages.glob("*.dist-info"))


def test_flower_installs_what_is_asked_for(tmp_path: Path) -> None:
    code, _, _ = privet("new", tmp_path / "app", "--runtime-installation")
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert (code, "uv" in project["tool"]) == (0, False)


def test_a_wheel_stands_beside_the_app(tmp_path: Path) -> None:
    wheel = tmp_path / f"flwr_privet-{version('flwr-privet')}-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    code, out, _ = privet("new", tmp_path / "app", "--wheel", wheel)
    assert (code, "pip install -e . --find-links wheels && flwr run" in out) == (0, True)
    assert (tmp_path / "app" / "wheels" / wheel.name).read_bytes() == b"wheel"
    assert "pip install -e . --find-links wheels\n" in (tmp_path / "app/README.md").read_text()
    (other := tmp_path / "flwr_privet-0.0.1-py3-none-any.whl").touch()
    for wrong in (other, tmp_path / "none.whl", tmp_path):
        code, _, err = privet("new", tmp_path / "none", "--wheel", wrong)
        says = f"--wheel {wrong}: no wheel of flwr-privet {version('flwr-privet')}"
        assert (code, err) == (2, f"privet: {says}\n")
        assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("model", MODELS)
def test_a_project_may_be_moved(make: Make, model: str) -> None:
    """It has no path of this machine, and its runs go where it is run from."""
    folder = make(model)
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert not any(here in path.read_text() for here in (str(folder.parent), str(ROOT)))
    assert config_of(folder)["output-dir"] == ""
    assert "output-dir='$PWD/runs'" in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", [*algorithms(), *analyses()])
def test_an_app_lists_the_keys_of_its_method(name: str, tmp_path: Path) -> None:
    """And runs as the method does by its defaults."""
    code, _, err = privet("new", tmp_path / "app", f"algorithm={name}")
    assert (code, err) == (0, "")
    found = config_of(tmp_path / "app")
    assert 12 <= len(found) <= 20
    text = (tmp_path / "app" / "pyproject.toml").read_text().partition("app.config]\n")[2]
    assert all(re.fullmatch(r"[\w-]+ = .+  # .{10,}", line) for line in text.splitlines())
    assert [key for key in found if key != "more" and key not in keys_of_run(name)] == []
    assert read_config(without_stand_ins(found)) == read_config(
        {"algorithm": name, "num-agents": 2}
    )
    # Another one may be chosen by --run-config, which replaces values of listed keys.
    other = without_stand_ins({**found, "algorithm": "fed-plt"})
    assert read_config(other) == read_config({"num-agents": 2})


@pytest.mark.parametrize("dataset", DATASETS)
def test_an_app_lists_the_keys_of_its_data(dataset: str, tmp_path: Path) -> None:
    code, _, err = privet("new", tmp_path / "app", f"dataset={dataset}")
    assert (code, err) == (0, "")
    found = config_of(tmp_path / "app")
    assert len(found) <= 20
    assert found["dataset"] == dataset
    owned = owned_by(DATA_OWNERS)
    used = {
        key for key in found.keys() & owned.keys() if not owned[key].unused({"dataset": dataset})
    }
    assert used == found.keys() & owned.keys()
    assert ("features" in found) == (dataset in ("synthetic", "regression"))
    assert ("label-column" in found) == (dataset in owned["label-column"].needs["dataset"])


def test_an_app_lists_what_is_given(tmp_path: Path) -> None:
    """However many; a relative path is one from the working directory."""
    given = ["algorithm=cox", "dataset=csv", "data-path=t.csv", "time-column=days", "seed=3"]
    code, _, _ = privet("new", tmp_path / "app", *given)
    assert code == 0
    found = config_of(tmp_path / "app")
    assert found["data-path"] == str(Path.cwd() / "t.csv")
    assert (found["time-column"], found["seed"], found["event-column"]) == ("days", 3, "")
    code, _, _ = privet("new", tmp_path / "preset", "--preset", "mnist", "data-path=m.npz")
    assert code == 0
    asked = load_preset("mnist", "")
    assert asked.items() <= config_of(tmp_path / "preset").items()
    for wrong, says in (
        (["rhoo=2"], "unknown config key 'rhoo'; did you mean 'rho'?"),
        (["--model", "torch", "rho=2"], "rho: keys are of --model table; this app has its own"),
    ):
        code, _, err = privet("new", tmp_path / "none", *wrong)
        assert (code, err) == (2, f"privet: {says}\n")
        assert not (tmp_path / "none").exists()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("model", ["table", "sklearn"])
def test_flower_runs_it(
    make: Make, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing set: what Flower would install for the run is here already."""
    monkeypatch.setenv(NO_INSTALLATION, "0")
    lines: list[str] = []
    outcome = run_simulation(
        make(model), num_supernodes=2, flwr_home=tmp_path / "flwr", on_line=lines.append
    )
    assert outcome.completed, lines[-20:]


@pytest.mark.ray
@pytest.mark.slow
def test_flower_runs_the_checkout_with_what_it_installs_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As ``flwr run .`` does where nothing is set: uv resolves every extra and every group."""
    monkeypatch.setenv(NO_INSTALLATION, "0")
    lines: list[str] = []
    outcome = run_simulation(
        ROOT, num_supernodes=2, run_config={"output-dir": str(tmp_path)}, on_line=lines.append
    )
    assert outcome.completed, lines[-20:]
    assert any("dependencies installed" in line for line in lines)


@pytest.mark.deployment
@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_fresh_superlink_installs_what_it_needs(
    make: Make, model: str, built: Built, tmp_path: Path
) -> None:
    """SuperLink and nodes have Flower alone, and find this wheel in a folder."""
    folder = make(model, "--runtime-installation")
    if model == "torch":
        pytest.importorskip("torch")
        # The version that is here: any other is a download of gigabytes.
        project = folder / "pyproject.toml"
        here = f"torch=={version('torch')}"
        project.write_text(project.read_text().replace("torch>=2.4", here))
    python = bare_environment(tmp_path / "flower")
    install(python, f"flwr=={version('flwr')}")
    links = [str(built.wheel.parent), *os.environ.get("PIP_FIND_LINKS", "").split()]
    environment = {"UV_FIND_LINKS": ",".join(links)}
    if certificates := os.environ.get("PIP_CERT"):
        environment["SSL_CERT_FILE"] = certificates
    with Deployment(tmp_path, None, environment, python.parent) as deployment:
        deployment.start_superlink()
        for node in range(2):
            config = {"agent": f"site-{node}", "partition-id": node, "num-partitions": 2}
            deployment.start_node(str(node), config)
        deployment.wait_for_nodes()
        verdict = deployment.submit(folder, {"num-server-rounds": 2}).wait(400.0)
    assert verdict.completed, verdict
    assert f"flwr-privet=={version('flwr-privet')}" in verdict.log
    assert "aggregate_train: 2 results" in verdict.log or "round 2/2 | 2 agents" in verdict.log


@pytest.mark.deployment
@pytest.mark.slow
def test_a_messy_table_is_trained_on_and_predicted_by_the_app_with_scikit_learn(
    built: Built, tmp_path: Path
) -> None:
    """In a fresh environment, with the wheel."""
    python = bare_environment(tmp_path / "venv")
    install_with_dependencies(python, built.wheel)
    command, clean = python.with_name("privet"), clean_environ()
    table, new, labels = write_messy(tmp_path)
    listed = subprocess.run(
        [command, "data", table, f"label-column={LABEL}"],
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    printed = parse_assignments(shlex.split(listed.stdout.splitlines()[-1])[2:])
    folder = tmp_path / "my-app-sklearn"
    run(command, "new", folder, "--model", "sklearn", env=clean)
    model = folder / "my_app_sklearn" / "model.py"
    digits = '{"dataset": "digits"}'
    assert digits in model.read_text()
    model.write_text(model.read_text().replace(digits, repr(printed), 1))
    with Deployment(tmp_path, None, None, python.parent) as deployment:
        deployment.start_superlink()
        for node in range(2):
            deployment.start_node(str(node), {"partition-id": node, "num-partitions": 2})
        deployment.wait_for_nodes()
        given = {"num-server-rounds": 3, "output-dir": str(folder / "runs")}
        verdict = deployment.submit(folder, given).wait(400.0)
    assert verdict.completed, verdict
    (saved,) = (folder / "runs").iterdir()
    script = "import sys; from my_app_sklearn.model import predict; print(*predict(*sys.argv[1:]))"
    said = run(python, "-c", script, saved, new, cwd=folder, env=clean).stdout
    assert said.split() == labels


@pytest.mark.parametrize(
    ("folder", "model", "says"),
    [
        ("app", "jax", "--model 'jax': choose one of table, sklearn, torch"),
        ("torch", "torch", "not the name of a package"),
        ("9", "table", "a letter first"),
        ("my app", "table", "letters, digits and hyphens"),
        ("full", "table", "exists already"),
    ],
)
def test_what_cannot_be_is_one_line(folder: str, model: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    code, _, said = privet("new", tmp_path / folder, "--model", model)
    assert code == 2
    assert said.count("\n") == 1
    assert says in said
