"""Somebody else's algorithm, found by its entry point, keeps every promise that ours keep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from privet.core import ConfigError, algorithm, algorithms
from privet.kernel import Facts, Totals, stream
from privet.problems import minimize
from privet.server_apps import read_config
from privet.sim import InlineGrid, run_inline
from privet.testing import check_algorithm, checks, logistic_federation
from support import recursions
from support.cli import privet
from support.federations import app_of
from support.outside import installed
from support.paths import ROOT

GAMMA, P, COIN_SEED = 0.3, 0.4, 5
PROBLEMS = logistic_federation()


@pytest.fixture(scope="module", autouse=True)
def scaffnew() -> Iterator[None]:
    with installed(ROOT / "tests" / "foreign" / "scaffnew"):
        yield
    assert "scaffnew" not in algorithms()


def model(rounds: int) -> Any:
    own = {"gamma": GAMMA, "communication-probability": P, "coin-seed": COIN_SEED}
    found = algorithm("scaffnew")
    config = read_config({"algorithm": "scaffnew", "num-agents": 6, **own})
    app = app_of(PROBLEMS, "scaffnew")
    start = ArrayRecord({"x": Array(np.zeros(4))})
    strategy = found.load_strategy().from_config(config)
    return strategy.start(InlineGrid(app, 6), start, num_rounds=rounds).arrays["x"].numpy()


@pytest.mark.slow
def test_it_keeps_every_promise() -> None:
    report = check_algorithm("scaffnew", settings={"communication-probability": 0.4})
    assert report.passed == tuple(check.name for check in checks("scaffnew"))


def test_it_is_the_papers_recursion() -> None:
    """With everybody there it is TAMUNA's, with Scaffnew's rate in place of TAMUNA's."""
    rounds = 10
    steps = [int(stream(COIN_SEED, "coins", round_=t).geometric(P)) for t in range(1, rounds + 1)]
    everybody = [range(6)] * rounds
    gamma = recursions.constant(GAMMA)
    expected = recursions.tamuna(
        list(PROBLEMS), np.zeros(4), everybody, gamma=gamma, p=P, steps=steps, eta=P
    )
    assert np.abs(model(rounds) - expected).max() < 1e-12


def test_its_limit_is_the_centralised_optimum() -> None:
    assert np.abs(model(300) - minimize(list(PROBLEMS)).x).max() < 1e-9


DATA = {"dataset": "synthetic", "examples-per-agent": 40, "num-agents": 3, "partition": "iid"}


def words(**more: Any) -> list[str]:
    return [f"{key.replace('_', '-')}={value}" for key, value in {**DATA, **more}.items()]


def called(*arguments: str) -> list[Any]:
    code, out, err = privet(*arguments, "--json")
    assert not code, err
    return [json.loads(line) for line in out.splitlines()]


def test_it_is_run_with_its_keys(tmp_path: Path) -> None:
    raw = {**DATA, "algorithm": "scaffnew", "num-server-rounds": 3, "output-dir": str(tmp_path)}
    slow, fast = (run_inline({**raw, "gamma": step}, f"{step}") for step in (1e-3, 0.5))
    lengths = [np.linalg.norm(one.result.arrays["x"].numpy()) for one in (slow, fast)]
    assert 0 < lengths[0] < lengths[1]
    with pytest.raises(ConfigError, match=r"gamma = 0\.0: must be > 0"):
        run_inline({**raw, "gamma": 0.0}, "none")
    with pytest.raises(
        ConfigError, match=r"gamma = 0\.2: led does not use it; it is a key of scaff"
    ):
        read_config({"algorithm": "led", "gamma": 0.2})


def test_its_keys_are_explained() -> None:
    code, out, _ = privet("run", "--help", "coin-seed")
    assert not code
    assert "seed of the coins, which are public" in out


def test_it_is_planned_and_calibrated(tmp_path: Path) -> None:
    """The plan without data says what the run's account says."""
    config = words(algorithm="scaffnew", clip=1.0, target_epsilon=2.0, num_server_rounds=7)
    (planned,) = called("account", *config, "num-examples=40", "loss=binary-logistic")
    noise = planned["noise"]["noise-scale"]
    half = algorithm("scaffnew").load_agent()(clip=1.0, noise_scale=noise)
    totals = Totals()
    for number in range(1, 8):
        totals = totals.add(half.release(Facts(40, 40.0, 1), number))
    assert planned["epsilon"] == pytest.approx(totals.epsilon(1e-5))
    assert 1.9 < planned["epsilon"] <= 2.0
    (done,) = called("run", *config, f"output-dir={tmp_path}")
    privacy = json.loads((Path(done["run-folder"]) / "privacy.json").read_text())
    assert privacy["accounts"][0]["epsilon"] == pytest.approx(planned["epsilon"], rel=1e-6)


def test_it_is_tuned() -> None:
    rows = called("tune", "scaffnew", *words(), "--budget=12", "--top=12")
    assert rows[0]["reached"]
    steps = {row["gamma"] for row in rows}
    assert len(steps) >= 10  # those at an end of the range coincide
    assert max(steps) / min(steps) <= 100
    assert "nothing is left to search" in privet("tune", "scaffnew", *words(), "gamma=0.1").err


def test_without_a_search_space_the_error_says_how_to_give_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(algorithm("scaffnew").load_strategy(), "search", ())
    code, _, err = privet("tune", "scaffnew", *words())
    assert code == 2
    (line,) = err.splitlines()
    assert "give the class search = (SearchAxis(key, low, high, unit), ...)" in line
