"""The table of run-config keys: one truth for the command, Flower and the data settings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from privet.datasets import SCHEMES, DataSettings
from privet.problems import H_NAMES, REGULARIZER_NAMES
from privet.wire import (
    Algorithm,
    ConfigError,
    Key,
    Layout,
    algorithm,
    algorithms,
    defaults,
    resolve,
)
from privet.wire.files import write_npz
from privet.wire.keys import TABLE, key
from support.paths import ROOT


def test_flower_knows_the_same_keys_with_the_same_defaults() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"] == defaults()


def test_data_settings_have_the_same_defaults() -> None:
    table = defaults()
    for name, value in vars_of(DataSettings()).items():
        assert table[name.replace("_", "-")] == value, name


def vars_of(settings: DataSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in DataSettings.__dataclass_fields__}


def test_names_of_functions_are_those_of_the_problems() -> None:
    assert set(key("h").choices) == set(H_NAMES)
    assert set(key("regularizer").choices) == set(REGULARIZER_NAMES)
    assert key("partition").choices == SCHEMES


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
def test_every_default_passes_its_own_check(entry: Key) -> None:
    assert entry.check(entry.default) == entry.default
    assert re.fullmatch(r"[a-z][a-z0-9-]*", entry.name)
    assert entry.doc


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown config key 'local-epoch'; did you mean 'local-"
    ):
        resolve({"local-epoch": 3}, "fed-plt")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("local-solver", "newton", "choose one of gd, agd, sgd, noisy-gd"),
        ("local-epochs", 0, "must be >= 1"),
        ("local-epochs", 2.5, "a whole number"),
        ("local-epochs", True, "a whole number"),
        ("fraction", 0.0, "must be > 0 and <= 1"),
        ("fraction", float("nan"), "must be > 0 and <= 1"),
        ("rho", "big", "a number"),
        ("rho", -1.0, "must be >= 0"),
        ("dataset", 3, "a text"),
    ],
)
def test_bad_values_name_the_key_and_what_is_expected(name: str, value: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        resolve({name: value}, "fed-plt")
    assert str(caught.value).startswith(f"{name} = {value!r}: ")
    assert "\n" not in str(caught.value)


def test_whole_numbers_serve_as_numbers() -> None:
    rho = resolve({"rho": 2}, "fed-plt")["rho"]
    assert rho == 2.0
    assert type(rho) is float


def test_auto_default_depends_on_the_algorithm() -> None:
    assert resolve({}, "fed-plt")["rho"] == 3.0
    assert resolve({"rho": 0.5}, "fed-plt")["rho"] == 0.5
    assert resolve({}, "of-somebody-else")["rho"] == 0.0


def test_extra_keys_of_a_foreign_algorithm() -> None:
    extra = [Key("own-momentum", 0.9, "momentum", low=0, high=1)]
    assert resolve({"own-momentum": 0.5}, "own", extra)["own-momentum"] == 0.5
    with pytest.raises(ConfigError, match="unknown config key 'own-momentum'"):
        resolve({"own-momentum": 0.5}, "fed-plt")


def test_unknown_algorithm_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"unknown algorithm 'fed-ptl': known are .*fed-plt"):
        algorithm("fed-ptl")


@pytest.mark.parametrize("entry", algorithms().values(), ids=lambda entry: entry.name)
def test_both_halves_of_every_algorithm_load_and_agree(entry: Algorithm) -> None:
    strategy, agent = entry.load_strategy(), entry.load_agent()
    assert strategy.algorithm == entry.name == agent.name
    built = strategy.from_config(resolve({}, entry.name, entry.keys))
    assert (built.half.name, built.half.version) == (agent.name, agent.version)
    agent.from_settings(dict(built.half.settings()))


def test_layout_flattens_and_restores_the_users_arrays() -> None:
    arrays = ArrayRecord(
        {
            "conv.weight": Array(np.arange(6, dtype="f4").reshape(2, 3)),
            "conv.bias": Array(np.array([7.0, 8.0])),
        }
    )
    layout = Layout.of(arrays)
    vector = layout.flatten(arrays)
    assert (layout.dim, vector.dtype) == (8, np.dtype("f8"))
    back = layout.restore(vector)
    for name in arrays:
        assert np.array_equal(back[name].numpy(), arrays[name].numpy())
        assert back[name].numpy().dtype == arrays[name].numpy().dtype


def test_layout_of_single_precision_stays_single() -> None:
    arrays = ArrayRecord({"x": Array(np.ones(2, "f4"))})
    assert Layout.of(arrays).flatten(arrays).dtype == np.float32


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [(ArrayRecord(), "empty"), (ArrayRecord({"n": Array(np.ones(2, "i8"))}), "'n' is int64")],
)
def test_layout_refuses_what_cannot_be_trained(arrays: ArrayRecord, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Layout.of(arrays)


def test_failed_write_leaves_the_previous_file(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "file.npz"
    write_npz(path, {"a": np.ones(3)})
    before = path.read_bytes()

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        write_npz(path, {"a": np.zeros(3)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["seed", "tolerance", "algorithm"])
def test_whole_numbers_fit_into_a_message(name: str) -> None:
    for value in (2**63, -(2**63) - 1, 10**400):
        with pytest.raises(ConfigError, match=f"{name}: a whole number of more than 64 bits"):
            key(name).check(value)
    assert key("seed").check(2**63 - 1) == 2**63 - 1
