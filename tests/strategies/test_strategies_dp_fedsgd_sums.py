"""DP-FedSGD by masked sums: the run in clear, the noise of the sum, targets, dropouts, accounts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from scipy import stats

from privet.core import ConfigError, RunError
from privet.kernel import Release, SeededNoise, Totals
from privet.problems import RidgeRegression, make_h
from privet.rounds.participation import Fraction
from privet.sim.engine import InlineGrid
from privet.sim.trusting import trusting_nodes
from privet.strategies import DPFedSGD, FedPDM
from support.federations import FaultyGrid, app_of, lose_reply, model
from support.masked import ridge_agents, start_at

pytestmark = pytest.mark.usefixtures("clock")
COUNT = 6
DELTA = 1e-5


def play(
    nodes: Any, rounds: int = 5, faults: Any = None, count: int = COUNT, **options: Any
) -> tuple[Any, DPFedSGD, Any]:
    problems = ridge_agents(count)
    app = app_of(problems, "dp-fedsgd")
    grid = InlineGrid(app, nodes) if faults is None else FaultyGrid(app, nodes, faults)
    strategy = DPFedSGD(
        num_agents=count,
        **{"clip": 1.0, "step_size_base": 0.1, "step_size_rule": "constant", **options},
    )
    return strategy.start(grid, start_at(0.3), num_rounds=rounds), strategy, grid


def sharing(folder: Path, colluders: int = 1, count: int = COUNT, **options: Any) -> Any:
    nodes = trusting_nodes(folder, map(str, range(count)), colluders)
    return play(nodes, count=count, secure_sum=True, noise_sharing=True, **options)


@pytest.mark.parametrize("who", [None, Fraction(0.6)])
def test_masked_sums_are_the_run_in_clear(who: Any) -> None:
    options = {"participation": who, "h": make_h("l1", **{"h-weight": 0.05}), "momentum": 0.7}
    clear, _, _ = play(COUNT, 12, **options)
    masked, _, _ = play(COUNT, 12, secure_sum=True, **options)
    assert np.max(np.abs(model(clear) - model(masked))) < 1e-10
    assert not any(entry.failures for entry in masked.history)


def test_shared_noise_has_the_deviation_of_the_sum(tmp_path: Path) -> None:
    """One round from one start: x moves by the step times the mean of all noise.

    False alarms: 1e-8 for each of seven bounds, by the laws of the sums.
    """
    scale, step, runs, dim = 0.3, 0.1, 10, 300
    rng = np.random.default_rng(6)
    problems = [
        RidgeRegression(rng.standard_normal((8, dim)), rng.standard_normal(8)) for _ in range(COUNT)
    ]
    app = app_of(problems, "dp-fedsgd")
    start = ArrayRecord({"x": Array(np.full(dim, 0.3))})

    def end(nodes: Any, **options: Any) -> Any:
        strategy = DPFedSGD(
            num_agents=COUNT, clip=1.0, step_size_base=step, step_size_rule="constant", **options
        )
        grid = InlineGrid(app, nodes)
        return model(strategy.start(grid, start, num_rounds=1, log_rounds=False))

    nodes = trusting_nodes(tmp_path, map(str, range(COUNT)), 1)
    options = {"noise_scale": scale, "secure_sum": True, "noise_sharing": True}
    ends = np.array([end(nodes, **options) for _ in range(runs)])
    z = (ends - end(COUNT)) / (step * scale / math.sqrt(COUNT))
    assert abs(z.sum()) < stats.norm.isf(0.5e-8) * math.sqrt(z.size)
    # The deviation, and that neither runs nor the coordinates of one have their noise in common.
    for squares in (z**2, runs * z.mean(axis=0) ** 2, dim * z.mean(axis=1) ** 2):
        assert 1e-8 < stats.chi2.cdf(squares.sum(), squares.size) < 1 - 1e-8


class Mirrored(SeededNoise):
    """Draws of the other sign: FedPDM sends a model, from which a gradient is subtracted."""

    def gaussian(self, size: Any, scale: float) -> Any:
        return -super().gaussian(size, scale)


def fed_pdm(noise: float, **app: Any) -> Any:
    """Return a run with Q = 1 and 2 rho eta = 1: y_i = x - (gradient of i) / rho, noise / rho."""
    problems = ridge_agents(COUNT)
    grid = InlineGrid(app_of(problems, "fed-pdm", **app), COUNT)
    return FedPDM(
        rho=RHO,
        max_local_steps=1,
        step_size_base=1 / (2 * RHO),
        step_size_rule="constant",
        dual="public",
        clip=1.0,
        noise_scale=noise / RHO,
        num_agents=COUNT,
    ).start(grid, start_at(0.3), num_rounds=9)


RHO = 8.0
AS_FED_PDM: dict[str, Any] = {"rounds": 9, "momentum": 0.0, "step_size_base": 1 / RHO}


def test_fed_pdm_without_state_is_fed_sgd_with_shared_noise(tmp_path: Path) -> None:
    """Of the same draws they make the same model, but for the grid; of the same noise, they cost
    the same towards a coordinator with whom all other agents collude."""
    scale = 0.3
    pdm = fed_pdm(scale, noise_factory=lambda agent, round_: Mirrored(3, agent, round_))
    options = {"secure_sum": True, "noise_sharing": True, "noise_scale": scale, **AS_FED_PDM}
    summed, _, _ = play(COUNT, noise_seed=3, **options)
    quiet, _, _ = play(COUNT, **AS_FED_PDM)
    assert np.max(np.abs(model(summed) - model(quiet))) > 0.01
    assert np.max(np.abs(model(pdm) - model(summed))) < 9 * scale * 2.0**-16 / RHO
    alone = sharing(tmp_path, COUNT - 1, noise_scale=scale, **AS_FED_PDM)[0].privacy
    assert fed_pdm(scale).privacy.epsilon == pytest.approx(alone.epsilon, rel=1e-3)
    assert alone.private


def test_a_target_is_met_by_the_sum_and_not_passed(tmp_path: Path) -> None:
    result, strategy, _ = sharing(tmp_path, 2, rounds=7, target_epsilon=1.5)
    found = result.privacy
    assert found is not None
    assert found.private
    assert 1.5 * (1 - 1e-7) < found.epsilon <= 1.5
    scale = float(strategy.half.settings()["noise-scale"])
    sensitivity = 2.0 / 8 * (1 + 2**-18)
    mu = math.sqrt(7) * (sensitivity / scale + 2.0**-16) / math.sqrt(COUNT - 2)
    closed = Totals().add(
        Release("gaussian", scale=1.0, sensitivity=mu / (1 + 2**-12), what="the same mu")
    )
    assert found.epsilon == pytest.approx(closed.epsilon(DELTA), rel=1e-5)
    for ledger in found.agents.values():
        assert ledger.totals.colluders == 2
        (entry,) = ledger.entries
        assert (entry[0].agents, entry[0].colluders, entry[1]) == (COUNT, 2, 7)


def test_participation_in_part_counts_the_agents_of_each_sum(tmp_path: Path) -> None:
    result, _, _ = sharing(
        tmp_path, 1, rounds=8, target_epsilon=1.5, participation=Fraction(0.5), count=10
    )
    ledgers = result.privacy.agents.values()
    assert {release.agents for ledger in ledgers for release, _ in ledger.entries} == {5}
    assert 1.5 * (1 - 1e-7) < result.privacy.epsilon <= 1.5


def test_an_agent_that_drops_out_costs_an_attempt_and_the_noise_of_two(tmp_path: Path) -> None:
    """One is gone in round 2: it and another one leave, and all pay for both attempts."""
    result, _, _ = sharing(
        tmp_path, 1, rounds=4, noise_scale=1.0, faults={(3, 2): lose_reply}, round_timeout=1.0
    )
    sizes = [len(entry.participants) for entry in result.history]
    assert sizes == [6, 4, 6, 6]
    stayed = result.history[1].participants
    for name, ledger in result.privacy.agents.items():
        spent = {release.agents: times for release, times in ledger.entries}
        if name in stayed:
            assert spent == {6: 4, 4: 1}
        else:
            assert spent == {6: 4}


def test_a_target_holds_where_attempts_are_repeated(tmp_path: Path) -> None:
    """The noise was set for four attempts; the fifth is refused, and the model of round 3 stays."""
    with pytest.raises(RunError, match=r"target-epsilon.*dropouts > 0 plans for repeated"):
        sharing(
            tmp_path,
            1,
            round_timeout=1.0,
            rounds=4,
            target_epsilon=1.5,
            faults={(3, 2): lose_reply},
        )


@pytest.mark.parametrize("ratio", [1.0, 0.7])
def test_dropouts_that_were_planned_for_leave_the_target_unspent(
    ratio: float, tmp_path: Path
) -> None:
    """Also where the attempt is repeated in the last round, which a schedule gives least noise."""
    schedule = {"budget_schedule": "geometric", "budget_ratio": ratio} if ratio < 1 else {}
    result, _, _ = sharing(
        tmp_path,
        1,
        rounds=4,
        target_epsilon=1.5,
        dropouts=1,
        faults={(4, 4): lose_reply},
        round_timeout=2.0,
        **schedule,
    )
    assert [len(entry.participants) for entry in result.history] == [6, 6, 6, 4]
    assert 1.0 < result.privacy.epsilon <= 1.5
    quiet, _, _ = sharing(tmp_path, 1, rounds=4, target_epsilon=1.5, dropouts=1, **schedule)
    assert quiet.privacy.epsilon < result.privacy.epsilon


@pytest.mark.parametrize("noise", [{"noise_scale": 1.0}, {"target_epsilon": 1.5}])
def test_dropouts_that_leave_no_sum_are_refused_by_name(
    noise: dict[str, float], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="dropouts = 4: a round asks 6 agents, and a sum needs 3"):
        sharing(tmp_path, 1, rounds=2, dropouts=4, **noise)


def test_noise_sharing_is_refused_where_nothing_is_proven(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="noise-sharing = true needs secure-sum = true"):
        DPFedSGD(noise_sharing=True, clip=1.0, noise_scale=1.0)
    with pytest.raises(ConfigError, match=r"does not trust other agents .*trust = none"):
        play(COUNT, secure_sum=True, noise_sharing=True, noise_scale=1.0)
    with pytest.raises(ConfigError, match=r"does not trust other agents .*trust = none"):
        play(COUNT, secure_sum=True, noise_sharing=True, target_epsilon=1.0)


def test_seeded_noise_simulates_it_without_trust() -> None:
    result, _, _ = play(
        COUNT, 2, secure_sum=True, noise_sharing=True, noise_scale=0.1, noise_seed=3
    )
    assert result.privacy is not None
    assert not result.privacy.private
