"""The run config: every key is a field of whoever uses it, and a given key is used or refused."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any

import pytest

from privet.core import ConfigError, algorithms
from privet.core.key import Key, keys_of, read, same, setting
from privet.data import DataSettings
from privet.server_apps.config import (
    COMMON,
    RunConfig,
    defaults,
    keys_of_algorithm,
    read_config,
    table,
    without_stand_ins,
)
from support.paths import ROOT

KEYS = [
    (owner or "every run", key) for entry in table().values() for owner, key in entry.owners.items()
]


def test_the_app_lists_a_few_keys_and_more_holds_the_others() -> None:
    """`flwr run .` alone simulates two nodes."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert {"algorithm", "dataset", "clip", "target-epsilon"} < listed.keys()
    assert len(listed) <= 20
    assert listed.pop("more") == ""
    unset = {"step-size": "auto", "rho": "auto", "clip": "none", "row-norm": "none"}
    unset |= {"target-epsilon": "none", "num-agents": 2}
    assert listed == {**{key: defaults()[key] for key in listed}, **unset}
    assert without_stand_ins({**listed, "algorithm": "led", "clip": 0.0}) == {
        "algorithm": "led",
        "num-agents": 2,
    }
    given = without_stand_ins({**listed, "more": "seed=1 tags='a b'"})
    assert given == {"num-agents": 2, "seed": 1, "tags": "a b"}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("rhoo=2", "unknown config key 'rhoo'; did you mean 'rho'?"),
        ("max_uploads=2", "unknown config key 'max_uploads': write max-uploads=2"),
        ("delta=2", "delta = 2.0: must be "),
        ("fed-dyn-alpha=1", "fed-dyn-alpha = 1: fed-plt does not use it"),
        ("target-epsilon=0", "target-epsilon = 0: no noise brings the total down to that"),
        ("resume=here", "resume = 'here': must be an absolute path"),
        ("more=2", "more: it cannot hold itself"),
    ],
)
def test_what_stands_in_more_is_checked_as_a_key_of_its_own(more: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(without_stand_ins({"num-agents": 2, "more": more}))
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(("owner", "key"), KEYS, ids=lambda value: getattr(value, "name", value))
def test_every_default_passes_its_own_check(owner: str, key: Key) -> None:
    assert key.check(key.default) == key.default
    assert re.fullmatch(r"[a-z][a-z0-9-]*", key.name)
    assert key.doc
    for other in key.needs:
        assert other in table(), f"{owner}: {key.name} goes by {other}, which is no key"


def test_owners_of_a_key_agree_on_its_type() -> None:
    for entry in table().values():
        assert len({type(key.default) for key in entry.owners.values()}) == 1, entry.name


@pytest.mark.parametrize("name", algorithms())
def test_flowers_whole_table_reads_like_an_empty_config(name: str) -> None:
    whole = {**defaults(), "algorithm": name}
    assert read_config({**without_stand_ins(whole), "algorithm": name}) == read_config(
        {"algorithm": name}
    )


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"algorithm": "led", "step-size": 0}, "step-size = 0.0: must be >= 1e-100"),
        ({"algorithm": "fed-pd", "rho": 0.0}, "rho = 0.0: must be >= 1e-100"),
        ({"algorithm": "tamuna", "step-size": 0}, "step-size = 0.0: must be >= 1e-100"),
        ({"algorithm": "led", "rho": 0.0}, "rho = 0.0: led does not use it; it is a key of "),
    ],
)
def test_a_value_that_stands_for_a_default_elsewhere_is_taken_at_its_word(
    config: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(config)
    assert str(caught.value).startswith(line)
    assert read_config({"algorithm": "fed-lin", "step-size": 0.0})["step-size"] == 0.0


def test_a_number_for_a_key_of_texts_is_its_text() -> None:
    config = read_config({"participation": "probability", "probability": 0.3, "exclude": 7})
    assert (config["probability"], config["exclude"]) == ("0.3", "7")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("local-solver", "newtonn", "choose one of auto, newton, gd, agd, sgd, noisy-gd"),
        ("local-epochs", 0, "must be >= 1"),
        ("local-epochs", 2.5, "a whole number"),
        ("local-epochs", True, "a whole number"),
        ("fraction", 0.0, "must be > 0 and <= 1"),
        ("fraction", float("nan"), "must be > 0 and <= 1"),
        ("rho", "big", "a number"),
        ("rho", -1.0, "must be "),
        ("dataset", True, "choose one of breast-cancer, "),
        ("data-path", True, "a text"),
        ("features", 1, "must be >= 2"),
        ("beta", -0.5, "must be none or > 0"),
    ],
)
def test_bad_values_name_the_key_and_what_is_expected(name: str, value: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        read_config({name: value})
    assert str(caught.value).startswith(f"{name} = {value!r}: ")
    assert "\n" not in str(caught.value)


def test_whole_numbers_serve_as_numbers() -> None:
    rho = read_config({"rho": 2})["rho"]
    assert rho == 2.0
    assert type(rho) is float


def test_a_default_is_its_owners() -> None:
    assert read_config({})["rho"] == 0.0, "left open until the agents are known"
    assert read_config({"local-solver": "gd"})["rho"] == 3.0
    assert read_config({"rho": 0.5})["rho"] == 0.5
    assert read_config({"algorithm": "fed-pdm", "rho": 2.0})["rho"] == 2.0
    assert defaults()["rho"] == 0.0


@pytest.mark.parametrize("name", ["relaxation", "rho", "step-size"])
def test_a_number_that_the_library_chooses_is_written_auto(name: str) -> None:
    assert read_config({name: "auto"}) == read_config({})
    key = keys_of_algorithm("fed-plt")[name]
    assert (key.check("auto"), key.default_text) == (0.0, "auto")
    with pytest.raises(ConfigError, match=f"{name} = 'own': expected auto or a number"):
        read_config({name: "own"})


def test_other_numbers_are_not_written_auto() -> None:
    with pytest.raises(ConfigError, match="patience = 'auto': expected a number"):
        read_config({"patience": "auto"})


NAMED = [(owner, key) for owner, key in KEYS if key.words]


@pytest.mark.parametrize(("owner", "key"), NAMED, ids=lambda it: getattr(it, "name", it))
def test_a_word_and_the_number_it_stands_for_are_one_value(owner: str, key: Key) -> None:
    for word, value in key.words.items():
        assert key.check(word) == key.check(type(key.default)(value)) == value
        assert type(key.check(word)) is type(key.default)
        assert key.text(value) == word


def test_no_number_means_off_or_choose_without_a_word() -> None:
    """The two that say what 0 does mean the number: no seconds, and no convexity beyond."""
    said = {key.name for _, key in KEYS if re.search(r"[;,] (0|-1)\b", key.doc)}
    assert said == {"strong-convexity", "patience"}
    assert not [key.name for _, key in KEYS if key.low == -1]


def test_zero_of_tolerance_is_not_auto() -> None:
    """none never stops early; auto is the default. Summaries have 0 and -1."""
    assert read_config({"tolerance": "none"})["tolerance"] == 0.0
    assert read_config({})["tolerance"] == read_config({"tolerance": "auto"})["tolerance"] == -1.0
    assert read_config({"tolerance": 0})["tolerance"] == 0.0
    assert read_config({"tolerance": -1.0})["tolerance"] == -1.0  # as a summary has it
    assert keys_of(RunConfig)["tolerance"].default_text == "auto"
    with pytest.raises(ConfigError, match=r"tolerance = -0\.5: must be auto or none or > 0"):
        read_config({"tolerance": -0.5})


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"algorithm": "led", "rho": 2.0}, "rho = 2.0: led does not use it; it is a key of "),
        ({"fraction": 0.5}, "fraction = 0.5: not used with participation = all"),
        ({"schedule": "0,1"}, "schedule = 0,1: not used with participation = all"),
        ({"data-path": "/data/x.npz"}, "data-path = /data/x.npz: not used with dataset = breast-"),
        ({"dataset": "digits", "columns": 9}, "columns = 9: not used with dataset = digits"),
        ({"dirichlet-alpha": 0.1}, "dirichlet-alpha = 0.1: not used with partition = label"),
        ({"batch-size": 8}, "batch-size = 8: not used with local-solver = auto"),
        ({"h-weight": 0.1}, "h-weight = 0.1: not used with h = zero"),
        ({"h": "l1", "h-weight": 0.1, "h-radius": 2.0}, "h-radius = 2.0: not used with h = l1"),
        ({"h": "l1"}, "h = l1: not used with h-weight = 0"),
        ({"noise-seed": 3}, "noise-seed = 3: "),
        ({"local-solver": "noisy-gd"}, "local-solver = noisy-gd: "),
        (
            {
                "local-solver": "noisy-gd",
                "clip": 1.0,
                "row-norm": 5.0,
                "target-epsilon": 8.0,
                "noise-variance": 0.1,
            },
            "noise-variance = 0.1: ",
        ),
        ({"algorithm": "dp-iadmm", "h": "l1"}, "h = l1: dp-iadmm does not use it; it is a key of "),
        ({"algorithm": "dp-iadmm", "rho": 1.0, "rho-c1": 3.0}, "rho-c1 = 3.0: not used with rho"),
        ({"algorithm": "gfl", "graph-edges": "0-1"}, "graph-edges = 0-1: not used with graph = "),
        ({"algorithm": "gfl", "peer-bind": "127.0.0.1:1"}, "peer-bind = 127.0.0.1:1: not used "),
        (
            {"buffer": 3, "num-sweeps": 9.0, "evaluate-sweeps": 2.0, "fraction": 0.5},
            "buffer = 3, num-sweeps = 9.0, evaluate-sweeps = 2.0: not used with asynchronous = ",
        ),
    ],
)
def test_a_key_that_is_not_used_is_refused_and_says_why(config: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(config)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_only_keys_of_the_run_are_in_its_config() -> None:
    config = read_config({"algorithm": "led"})
    own = {key.name for owner in COMMON for key in keys_of(owner).values()}
    assert config.keys() == own | keys_of_algorithm("led").keys()


@dataclass(frozen=True)
class Base:
    weight: float = setting(1.0, "a weight", low=0)


@dataclass(frozen=True)
class Other(Base):
    weight: float = 2.0
    copied: int = 3
    factor: float = same(Base, "weight")


def test_a_subclass_gives_a_key_another_default_and_keeps_its_range() -> None:
    keys = keys_of(Other)
    assert keys["weight"].default == 2.0
    assert keys["weight"].doc == "a weight"
    assert "copied" not in keys
    assert keys["factor"].default == 1.0
    with pytest.raises(ConfigError, match=r"weight = -1\.0: must be >= 0"):
        read(Other, {"weight": -1})
    assert read(Other, {"weight": 4, "unknown": 1}).weight == 4.0


def test_data_settings_refuse_by_the_keys_name() -> None:
    with pytest.raises(ValueError, match="classes-per-agent = 0: must be >= 1"):
        DataSettings.from_config({"classes-per-agent": 0})
