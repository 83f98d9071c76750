"""Presets: each is a run config, and is found by its name."""

from __future__ import annotations

import pytest

from privet.cli.presets import load_preset, preset_names
from privet.core import ConfigError
from privet.server_apps import read_config


def test_every_preset_is_a_run_config() -> None:
    assert {"dp-iadmm/adult", "dp-iadmm/mnist"} <= set(preset_names())
    for name in preset_names():
        config = read_config(load_preset(name))
        assert config["algorithm"] == name.partition("/")[0]
        assert config["data-path"] == ""


def test_a_preset_is_found_by_its_short_name() -> None:
    assert load_preset("mnist", "dp-iadmm") == load_preset("dp-iadmm/mnist")
    with pytest.raises(ConfigError, match=r"preset 'nope': known are .*dp-iadmm/mnist"):
        load_preset("nope")
    with pytest.raises(ConfigError, match="preset 'mnist': known are none"):
        load_preset("mnist", "no-such-algorithm")
