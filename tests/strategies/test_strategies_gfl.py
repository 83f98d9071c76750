"""GFL's server half on numbers one can check by hand, and what the strategy refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from privet.core import ConfigError, UploadError
from privet.kernel import SystemNoise
from privet.rounds.half import Turn, grouped
from privet.server_apps import read_config
from privet.strategies import GFL, Fraction, PerGroup
from privet.strategies.gfl.graph import combination_matrix
from privet.strategies.gfl.mixing import LocalMixer, Perturbation
from privet.strategies.gfl.server import Server, State
from privet.wire import digest
from support.server_rounds import accept, fold

WEIGHTS = [[0.75, 0.25], [0.25, 0.75]]
START = np.array([1.0, -1.0])


class Ones:
    """g_p = (p + 1) (1, 1) in every round."""

    def shared(self, unit: int, round_: int, dim: int) -> Any:
        return np.full(dim, unit + 1.0)

    def independent(self, unit: int, round_: int, receivers: Any, dim: int) -> Any:
        return {receiver: np.full(dim, unit + 1.0) for receiver in receivers}


def server(kind: str = "none", **options: Any) -> Server:
    return Server(mixer=LocalMixer(WEIGHTS), perturbation=Perturbation(kind, Ones()), **options)


def placed(half: Server, units: str = "0011") -> State:
    state = half.initialise(START, len(units))
    for position, unit in enumerate(units):
        state = half.place(state, position, f"a{position}", unit)
    return state


def upload(*values: float) -> dict[str, Any]:
    return {"x": np.array(values, float)}


def test_a_round_by_hand() -> None:
    """psi = (2, 0), (4, 8); w_0 = 3/4 psi_0 + 1/4 psi_1 and so on; homomorphic adds (A - I) g."""
    half = server()
    uploads = {0: upload(1, -1), 1: upload(3, 1), 3: upload(4, 8)}
    state = fold(half, placed(half), uploads, {})
    assert state.psi.tolist() == [[2, 0], [4, 8]]
    assert state.models.tolist() == [[2.5, 2], [3.5, 6]]
    assert state.round == 1
    assert state.silent == ()
    assert state.notes == ()
    assert state.residual == pytest.approx(2**2 + 5**2)
    assert half.measures(state) == {"disagreement": 0.25 + 4.0, "centroid-noise": 0.0}
    assert half.models(state)["last"].tolist() == [3, 4]
    assert half.models(state)["unit-1"].tolist() == [3.5, 6]

    noisy = server("homomorphic")
    state = fold(noisy, placed(noisy), uploads, {})
    # (A - I) g with g = 1, 2: row 0 is -1/4 + 2/4, row 1 the opposite.
    assert state.models.tolist() == [[2.75, 2.25], [3.25, 5.75]]
    assert noisy.measures(state)["centroid-noise"] == 0
    random = server("random")
    state = fold(random, placed(random), uploads, {})
    assert state.models.tolist() == [[3, 2.5], [3.75, 6.25]]
    assert random.measures(state)["centroid-noise"] == pytest.approx(math.hypot(0.375, 0.375))


def test_a_unit_without_uploads_goes_on_with_its_own_model() -> None:
    half = server()
    state = fold(half, placed(half), {2: upload(5, 3)}, {})
    assert state.psi.tolist() == [[1, -1], [5, 3]]
    assert state.models.tolist() == [[2, 0], [4, 2]]
    assert state.silent == ("unit 0 had no upload: it continues with its own model",)
    state = fold(half, state, {}, {})
    assert len(state.silent) == 2
    assert state.psi.tolist() == [[2, 0], [4, 2]]


def test_agents_are_placed_by_name_or_dealt_in_blocks() -> None:
    half = server()
    assert grouped(half) is not None
    assert [half.group(placed(half, "1001"), i) for i in range(4)] == ["1", "0", "0", "1"]
    state = half.initialise(START, 5)
    for position in range(5):
        state = half.place(state, position, str(position), "")
    assert state.members.tolist() == [0, 0, 0, 1, 1]
    state = half.place(half.admit(state, 2, START), 2, "late", "1")
    assert state.members.tolist() == [0, 0, 1, 0, 1, 1]
    for place, unit in enumerate(("2", "-1", "x", "0.0")):
        state = half.place(half.admit(state, place, START), place, "late", unit)
        assert half.group(state, place) == "none"


def test_a_latecomer_of_another_unit_costs_nobody_else() -> None:
    half = server()
    state = fold(half, placed(half), {0: upload(0, 0), 2: upload(4, 4)}, {})
    state = half.place(half.admit(state, 1, START), 1, "late", "7")
    assert [half.group(state, i) for i in range(5)] == ["0", "none", "0", "1", "1"]
    assert half.broadcast_to(state, "none") == {}
    with pytest.raises(UploadError, match="belongs to no unit"):
        accept(half, state, 1, upload(1, 1), {})
    state = fold(half, state, {2: upload(2, 2), 3: upload(4, 4)}, {})
    assert state.psi.tolist() == [[2, 2], [4, 4]]


def test_each_unit_is_sent_its_own_model() -> None:
    half = server()
    state = fold(half, placed(half), {0: upload(0, 0), 2: upload(4, 4)}, {})
    state, common = half.broadcast(state, Turn(1))
    assert common == {}
    assert half.broadcast_to(state, "0")["w"].tolist() == [1, 1]
    assert half.broadcast_to(state, "1")["w"].tolist() == [3, 3]


def test_an_upload_that_diverges_is_refused() -> None:
    half = server()
    with pytest.raises(UploadError, match="too large"):
        accept(half, placed(half), 0, upload(1.0, -1.7e308), {})
    good = upload(1, 2)
    assert accept(half, placed(half), 0, good, {})[1] == digest(good["x"])


def test_closing_exchanges_go_to_the_centroid() -> None:
    half = server("homomorphic", closing_rounds=3)
    state = fold(half, placed(half), {0: upload(0, 0), 2: upload(4, 4)}, {})
    closed = half.close(state)
    np.testing.assert_allclose(closed.models.mean(axis=0), state.models.mean(axis=0), atol=1e-15)
    before, after = half.measures(state), half.measures(closed)
    # iota_2 = 1/2, and deviations shrink by it in each exchange.
    assert after["disagreement"] == pytest.approx(before["disagreement"] * 0.25**3)
    assert closed.round == state.round


def test_participants_are_drawn_per_group() -> None:
    groups = ["0", "1", "0", "1", "0", "1", "0", "2"]
    names = [f"a{i}" for i in range(len(groups))]
    chosen = PerGroup(2, lambda: groups)
    seen: dict[str, int] = dict.fromkeys(names, 0)
    for number in range(1, 201):
        found = chosen.select(number, names, 5)
        assert found == sorted(found)
        counts = [sum(groups[names.index(n)] == g for n in found) for g in ("0", "1", "2")]
        assert counts == [2, 2, 1]
        for name in found:
            seen[name] += 1
    # 200 draws of 2 in 4 (3): a false alarm at five standard deviations.
    for name, group in zip(names, groups, strict=True):
        share = {"0": 2 / 4, "1": 2 / 3, "2": 1.0}[group]
        assert abs(seen[name] - 200 * share) <= 5 * math.sqrt(200 * share * (1 - share))
    # A group draws the same whether or not others are there.
    alone = PerGroup(2, lambda: ["1"] * 3)
    own = [name for name, group in zip(names, groups, strict=True) if group == "1"]
    together = [name for name in chosen.select(9, names, 5) if name in own]
    assert alone.select(9, own, 5) == together
    with pytest.raises(ConfigError, match="participants = 0"):
        PerGroup(0, list)


def test_configuration() -> None:
    strategy = GFL(units=4, graph="path", noise_variance=0.1, noise=SystemNoise(), local_epochs=2)
    assert strategy.server.perturbation.kind == "homomorphic"
    assert strategy.server.settings()["step-size"] == 0.1
    assert strategy.server.mixer.weights.shape == (4, 4)
    assert GFL().server.perturbation.kind == "none"
    plain = combination_matrix(read_config({"units": 4, "graph": "star", "algorithm": "gfl"}))
    halved = combination_matrix(
        read_config({"units": 4, "graph": "star", "graph-lazy": True, "algorithm": "gfl"})
    )
    np.testing.assert_allclose(halved, (plain + np.eye(4)) / 2)
    seeded = GFL(noise_variance=0.1, noise_seed=3, perturbation="random")
    assert seeded.server.perturbation.kind == "random"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"perturbation": "objective"},
            "perturbation = 'objective': choose one of auto, none, random, homomorphic",
        ),
        ({"perturbation": "homomorphic", "noise_seed": 1}, "noise-variance = 0"),
        ({"noise_variance": 0.1}, "noise-seed"),
        ({"participants": 2, "participation": Fraction(0.5)}, "participants"),
        ({"units": 0}, "units = 0"),
        ({"graph": "wheel"}, "graph = 'wheel'"),
        ({"weights": [[1.0, 0.0], [0.0, 1.0]]}, "not connected"),
    ],
)
def test_settings_that_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GFL(**options)
