"""Which algorithms and settings can do with sums, and the server halves by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privet.client_apps.fed_plt import Agent
from privet.core import ConfigError, algorithms
from privet.problems import make_h
from privet.rounds.half import Turn
from privet.rounds.uploads import MaskedTotals
from privet.server_apps import read_config
from privet.strategies import DPIADMM, FedPDM, FedPLT, PrimalDualStrategy
from privet.strategies.fed_plt import Server
from privet.wire.payload import ENCODED
from privet.wire.sparse.selection import rand_k

ABLE = {"fed-plt", "dp-iadmm", "dp-fedsgd", "dp-fedavg", "fed-pdm", "gfl"}


def build(name: str, **keys: Any) -> PrimalDualStrategy:
    found = algorithms()[name]
    config = read_config({"algorithm": name, **keys})
    strategy: PrimalDualStrategy = found.load_strategy().from_config(config)
    return strategy


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_every_algorithm_masks_or_says_why_not(name: str) -> None:
    assert not build(name).half.masked
    if name in ABLE:
        half = build(name, **{"secure-sum": True}).half
        assert half.masked
        assert half.name == name
        return
    with pytest.raises(
        ConfigError, match=rf"secure-sum = true: not with {name}: its server "
    ) as no:
        build(name, **{"secure-sum": True})
    assert "\n" not in str(no.value)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"sparsifier": "top-k", "alpha-u": 0.1}, "sparsifier = 'top-k'"),
        ({"sparsifier": "noisy-top-k", "alpha-u": 0.1}, "sparsifier = 'noisy-top-k'"),
        ({"sparsifier": "public-top-k", "alpha-u": 0.1}, "sparsifier = 'public-top-k'"),
        ({"aggregation": "table", "dual": "public"}, "aggregation = 'table'"),
    ],
)
def test_fed_pdm_settings_that_need_more_than_sums_are_refused(keys: Any, reason: str) -> None:
    assert not build("fed-pdm", **keys).half.masked
    with pytest.raises(ConfigError, match=f"secure-sum = true: not with {reason}"):
        build("fed-pdm", **keys, **{"secure-sum": True})


def test_strategies_take_the_argument_too() -> None:
    assert FedPLT(secure_sum=True).half.masked
    assert DPIADMM(perturbation="none", secure_sum=True).half.masked
    assert FedPDM(sparsifier="rand-k", alpha_u=0.5, secure_sum=True).half.masked


# ------------------------------------------------------------------ halves on numbers by hand


def test_fed_plt_moves_the_mean_of_z_by_the_participants() -> None:
    half = Server(Agent(rho=2.0, secure_sum=True), h=make_h("l1", **{"h-weight": 3.0}))
    state = half.initialise(np.array([4.0, -8.0]), 4)
    state, sent = half.broadcast(state, Turn(1))
    # prox of (rho/N) 3 |.| = 1.5 |.|
    assert sent["y"].tolist() == [2.5, -6.5]
    arrays = {"x": np.array([7.0, -11.0]), "distance": np.array(3.0)}
    sums = MaskedTotals(arrays, (0, 2), sent)
    state = half.fold_sums(state, sums, Turn(1))
    # z_i of the two moved by 2 (x_i - y): in sum 2 (7 - 5, -11 + 13) = (4, 4).
    assert state.total.tolist() == [20.0, -28.0]
    assert half.models(state)["last"].tolist() == [3.5, -5.5]
    assert half.residual(state) == 2.25
    state = half.admit(state, 1, np.array([5.0, 3.0]))
    assert (state.total.tolist(), state.count) == ([25.0, -25.0], 5)
    assert half.models(state)["last"].tolist() == pytest.approx([3.8, -3.8])
    again = half.load(half.dump(state))
    assert np.array_equal(half.models(again)["last"], half.models(state)["last"])
    begins = half.recovery_of(again, 0, np.array([4.0, -8.0]))
    assert begins is not None
    assert {name: array.tolist() for name, array in begins.items()} == {
        "x": [4.0, -8.0],
        "z": [4.0, -8.0],
    }


def test_sums_of_several_groups_are_one_sum_where_the_algorithm_has_none() -> None:
    half = Server(Agent(rho=1.0, secure_sum=True))
    whole, parts = (half.initialise(np.array([1.0]), 4) for _ in range(2))
    sent = {"y": whole.y}
    one = MaskedTotals({"x": np.array([6.0]), "distance": np.array(2.0)}, (0, 1, 3), sent)
    two = MaskedTotals.joined(
        {
            "a": MaskedTotals({"x": np.array([5.0]), "distance": np.array(0.5)}, (0, 1), sent),
            "b": MaskedTotals({"x": np.array([1.0]), "distance": np.array(1.5)}, (3,), sent),
        },
        sent,
    )
    assert half.fold_sums(whole, one, Turn(1)).total == half.fold_sums(parts, two, Turn(1)).total


def test_dp_iadmm_runs_on_means() -> None:
    half = DPIADMM(rho=2.0, perturbation="none", secure_sum=True).half
    state = half.initialise(np.array([1.0]), 4)
    state, sent = half.broadcast(state, Turn(1))
    assert (sent["w"].tolist(), int(sent["t"]), float(sent["rho"])) == ([1.0], 1, 2.0)
    # Agents 0 and 1 move from 1 to 2 and 5; the others are absent.
    # Their z_p - lam_p / 2 moves by 2 * 2 - 1 - 1 and 2 * 5 - 1 - 1.
    arrays = {"moved": np.array([10.0]), "distance": np.array(5.0)}
    state = half.fold_sums(state, MaskedTotals(arrays, (0, 1), sent), Turn(1))
    # lam: 0 + 2 (1 - 2) = -2 and 2 (1 - 5) = -8, mean over four -2.5; z: mean (2 + 5 + 1 + 1)/4.
    assert half.models(state)["last"].tolist() == [2.25 + 2.5 / 2.0]
    assert half.residual(state) == 2.5**2 + 2.5**2
    # Another agent at the start: z mean (9 + 1)/5, lam mean -10/5.
    state = half.admit(state, 4, np.array([1.0]))
    assert half.models(state)["last"].tolist() == pytest.approx([2.0 + 2.0 / 2.0])
    again = half.load(half.dump(state))
    assert half.models(again)["last"].tolist() == half.models(state)["last"].tolist()


def test_fed_pdm_shares_one_index_set_a_round() -> None:
    strategy = FedPDM(sparsifier="rand-k", uplink_k=2, secure_sum=True, seed=7, rho=1.0)
    half = strategy.half
    state = half.initialise(np.zeros(6), 3)
    seeds = []
    for number in range(1, 4):
        state, sent = half.broadcast(state, Turn(number, seed=7))
        seeds.append(int(sent["indices"]))
        assert ENCODED in sent
        assert half.summands(state) == {"y": (2,)}
    assert len(set(seeds)) == 3
    sums = MaskedTotals({"y": np.array([3.0, 6.0])}, (0, 1, 2), sent)
    state = half.fold_sums(state, sums, Turn(3, seed=7))
    wanted = np.zeros(6)
    wanted[rand_k(seeds[-1], 6, 2)] = [1.0, 2.0]
    assert half.models(state)["last"].tolist() == wanted.tolist()
    state = half.load(half.dump(state))
    assert int(half.broadcast(state, Turn(4, seed=7))[1]["indices"]) not in seeds
    assert half.recovery_of(state, 0, np.zeros(6)) is None
