"""Asynchronous runs: uploads are folded as they come, with the models that their agents had."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.core import ConfigError, algorithm
from privet.core.registry import BUILT_IN
from privet.problems import L2, BinaryLogistic, RidgeRegression
from privet.problems.reference import minimize
from privet.rounds.keep.checkpoint import load
from privet.rounds.stop import Stop
from privet.sim.inline import grid_of
from privet.strategies import (
    AREA,
    DPIADMM,
    FedAsync,
    FedBuff,
    FedPD,
    FedPDM,
    FedPLT,
    FedSplit,
    PrimalDualStrategy,
    Scaffold,
)
from privet.testing import logistic_federation

Vector = NDArray[np.float64]
PROBLEMS = logistic_federation()
ODD: dict[str, Any] = {"asynchronous": True, "speeds": "lognormal", "speed_spread": 1.0}
START = ArrayRecord({"x": Array(np.zeros(4))})
STEADY = {"strong_convexity": 0.5, "smoothness": 1.6}


def play(
    strategy: PrimalDualStrategy, rounds: int, *, engine: str = "inline", **start: Any
) -> tuple[Any, PrimalDualStrategy]:
    grid = grid_of(strategy.half.name, start.pop("problems", PROBLEMS), engine=engine)
    return strategy.start(grid, START, num_rounds=rounds, log_rounds=False, **start), strategy


def vector(result: Any) -> NDArray[Any]:
    return result.arrays["x"].numpy()


@pytest.fixture(scope="module")
def optimum() -> NDArray[Any]:
    """The minimiser of the sum, found centrally."""
    return minimize(PROBLEMS, tolerance=1e-12).x


@pytest.mark.parametrize("engine", ["inline", "cohort"])
def test_a_buffer_of_all_agents_at_equal_speeds_is_the_synchronous_run(engine: str) -> None:
    count = len(PROBLEMS)
    waits, _ = play(FedPLT(rho=3.0, relaxation=1.0), 12)
    comes, _ = play(
        FedPLT(rho=3.0, relaxation=1.0, asynchronous=True, buffer=count), 12, engine=engine
    )
    np.testing.assert_array_equal(vector(waits), vector(comes))
    assert [done.residual for done in waits.history] == [done.residual for done in comes.history]
    assert comes.history[-1].clock == 12 * 20.0  # task-latency and ten steps
    assert comes.history[-1].versions == (12,) * count


def fed_pdm(**more: Any) -> FedPDM:
    return FedPDM(**more, aggregation="latest", step_size_base=0.3, max_local_steps=5, rho=1.0)


STRATEGIES: dict[str, Callable[..., PrimalDualStrategy]] = {
    "fed-plt": lambda **more: FedPLT(**more, local_epochs=5),
    "fed-split": lambda **more: FedSplit(**more, local_epochs=60),
    "fed-pd": lambda **more: FedPD(**more, local_epochs=20),
    "dp-iadmm": lambda **more: DPIADMM(**more, rho=0.5, perturbation="none", eta_rule="smooth"),
    "scaffold": lambda **more: Scaffold(**more, step_size_base=0.2, server_step_size=1.0),
    "fed-pdm": lambda **more: fed_pdm(**more, sparsifier="rand-k", uplink_k=2, dual="public"),
    "fed-pdm, coded": lambda **more: fed_pdm(**more, value_bits="8", dual="public"),
    "fed-pdm, private dual": fed_pdm,
    "area": lambda **more: AREA(**more, step_size=1.0),
    "fed-buff": lambda **more: FedBuff(**more, step_size=0.3),
    "fed-async": lambda **more: FedAsync(**more, step_size=0.3),
}
QUICK = ("fed-plt", "fed-pd", "dp-iadmm", "scaffold", "fed-pdm")
"""Of the others the runs of every engine are slow tests."""
EVERY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in STRATEGIES]

SLOW = [
    pytest.param(name, buffer, marks=pytest.mark.slow)
    for name in STRATEGIES
    for buffer in (1, 3)
    if (name, buffer) != ("fed-plt", 3) and name not in ("fed-buff", "fed-async")
]


@pytest.mark.parametrize(("name", "buffer"), [("fed-plt", 3), *SLOW])
def test_the_limit_is_exact_where_one_agent_is_ten_times_slower(
    name: str, buffer: int, optimum: NDArray[Any]
) -> None:
    strategy = STRATEGIES[name](
        asynchronous=True,
        buffer=buffer,
        speeds="stragglers",
        slow_share=0.2,
        round_timeout=3600.0,
    )
    result, _ = play(strategy, 2400 // buffer)
    assert not any(done.failures for done in result.history)
    assert np.linalg.norm(vector(result) - optimum) < 1e-7 * np.linalg.norm(optimum)
    uploads = [name for done in result.history for name in done.participants]
    counts = sorted(uploads.count(str(agent)) for agent in range(len(PROBLEMS)))
    assert counts[0] * 5 < counts[-1]  # so the limit has no bias to the fast


@pytest.mark.parametrize("name", EVERY)
def test_agents_that_work_together_give_the_same_bits(name: str) -> None:
    runs = [
        play(STRATEGIES[name](asynchronous=True, buffer=2, speeds="lognormal"), 40, engine=engine)[
            0
        ]
        for engine in ("inline", "cohort")
    ]
    np.testing.assert_array_equal(*map(vector, runs))
    inline, cohort = ([{**d.to_dict(), "seconds": 0} for d in r.history] for r in runs)
    assert inline == cohort


@pytest.mark.parametrize("engine", ["inline", "cohort"])
@pytest.mark.parametrize("name", EVERY)
def test_a_resume_in_the_middle_of_tasks_gives_the_same_bits(
    name: str, engine: str, tmp_path: Path
) -> None:
    def made() -> PrimalDualStrategy:
        return STRATEGIES[name](asynchronous=True, buffer=2, speeds="lognormal", seed=3)

    whole, _ = play(made(), 20, engine=engine)
    play(made(), 7, engine=engine, checkpoint=tmp_path / "checkpoint.npz")
    saved = load(tmp_path)
    assert saved.manifest["tasks"]
    rest, _ = play(made(), 20, engine=engine, resume=saved)
    np.testing.assert_array_equal(vector(whole), vector(rest))
    first, second = ([{**d.to_dict(), "seconds": 0} for d in r.history] for r in (whole, rest))
    assert first == second


def buff(sent: list[Vector], ends: list[Vector], ages: list[int], x: Vector) -> Vector:
    """FedBuff's Algorithm 1, from the differences."""
    moves = [(1 + a) ** -0.5 * (w - v) for a, w, v in zip(ages, ends, sent, strict=True)]
    return x + 0.7 * sum(moves) / len(moves)


def mixed(sent: list[Vector], ends: list[Vector], ages: list[int], x: Vector) -> Vector:
    """FedAsync's Algorithm 1 with one upload a version."""
    ((age, end),) = zip(ages, ends, strict=True)
    share = 0.6 * (1 + age) ** -0.5
    return (1 - share) * x + share * end


@pytest.mark.parametrize(
    ("strategy", "fold", "proximal"),
    [
        (FedBuff(step_size=0.3, local_epochs=4, server_step_size=0.7, **ODD, buffer=3), buff, 0.0),
        (FedAsync(step_size=0.3, local_epochs=4, fed_async_rho=0.5, **ODD, buffer=1), mixed, 0.5),
    ],
    ids=["fed-buff", "fed-async"],
)
def test_a_rival_is_its_papers_recursion(
    strategy: PrimalDualStrategy, fold: Callable[..., Vector], proximal: float
) -> None:
    """Over the history's agents and the versions that they were sent, which are of all ages."""
    result, _ = play(strategy, 20)
    models, seen = [np.zeros(4)], set()
    for done in result.history:
        sent, ends = [models[version - 1] for version in done.versions], []
        for name, start in zip(done.participants, sent, strict=True):
            w = start
            for _ in range(4):
                w = w - 0.3 * (PROBLEMS[int(name)].gradient(w) + proximal * (w - start))
            ends.append(w)
        ages = [done.round - version for version in done.versions]
        seen.update(ages)
        models.append(fold(sent, ends, ages, models[-1]))
    assert len(seen) > 3
    assert np.abs(vector(result) - models[-1]).max() < 1e-12


def test_area_is_its_papers_recursion() -> None:
    result, _ = play(AREA(step_size=0.4, **ODD, buffer=2), 20)
    z, models = np.zeros((len(PROBLEMS), 4)), [np.zeros(4)]
    for done in result.history:
        for name, version in zip(done.participants, done.versions, strict=True):
            x = models[version - 1]
            z[int(name)] = x - 0.4 * PROBLEMS[int(name)].gradient(x)
        models.append(z.mean(axis=0))
    assert np.abs(vector(result) - models[-1]).max() < 1e-12


@pytest.mark.parametrize("dual", ["private", "public"])
def test_fed_pdm_with_the_latest_uploads_is_its_recursion(dual: str) -> None:
    """With the duals of the paper, of which the public one is the same where all is sent."""
    result, _ = play(fed_pdm(dual=dual, step_size_rule="constant", **ODD, buffer=2), 20)
    lam, y, models = np.zeros((len(PROBLEMS), 4)), np.zeros((len(PROBLEMS), 4)), [np.zeros(4)]
    for done in result.history:
        for name, version in zip(done.participants, done.versions, strict=True):
            i, sent = int(name), models[version - 1]
            x = sent
            for _ in range(5):
                x = x - 0.3 * (PROBLEMS[i].gradient(x) - lam[i] + (x - sent))
            lam[i] = lam[i] + (sent - x)
            y[i] = x - lam[i]
        models.append(y.mean(axis=0))
    assert np.abs(vector(result) - models[-1]).max() < 1e-12


def test_fed_buff_and_fed_async_stop_where_fast_agents_pull_and_others_do_not(
    tmp_path: Path,
) -> None:
    """One of four agents is five times slower and holds other data."""
    trace = tmp_path / "trace.csv"
    trace.write_text("agent,seconds\n0,50\n1,9\n2,10\n3,11\n")
    run: dict[str, Any] = {"asynchronous": True, "speeds": str(trace)}
    rng, rows = np.random.default_rng(0), np.sqrt(2.0) * np.eye(4)  # Hessians are I
    targets = [rng.standard_normal(4) + 6.0 * (agent == 0) for agent in range(4)]
    problems = [RidgeRegression(rows, np.sqrt(2.0) * target) for target in targets]
    optimum = np.mean(targets, axis=0)

    def error(strategy: PrimalDualStrategy) -> float:
        tail: list[NDArray[Any]] = []

        def keep(done: Any, one: Any) -> None:
            tail.append(one.run.model.copy())

        play(strategy, 60, problems=problems, observers=[keep])
        gap = np.mean(tail[-20:], axis=0) - optimum
        return float(np.linalg.norm(gap) / np.linalg.norm(optimum))

    known = {"strong_convexity": 1.0, "smoothness": 1.0}
    assert error(FedPLT(rho=1.0, local_epochs=3, buffer=1, **known, **run)) < 1e-6
    assert error(AREA(step_size=1.0, buffer=1, **run)) < 1e-6
    for step in (0.05, 0.3):
        assert error(FedBuff(step_size=step, local_epochs=3, buffer=2, **run)) > 0.1
        assert error(FedAsync(step_size=step, local_epochs=3, buffer=1, **run)) > 0.1


def test_a_relaxation_of_one_diverges_at_equal_speeds_and_one_half_does_not() -> None:
    """Where rho times the curvature is .1, far from 1/2 < rho h < 2 (docs/async.md)."""
    rng = np.random.default_rng(0)
    rows = np.sqrt(2.0) * np.eye(4)  # of 4 rows the mean squared error has the Hessian I
    problems = [RidgeRegression(rows, rng.standard_normal(4)) for _ in range(12)]
    ends = []
    for relaxation in (1.0, 0.5):
        strategy = FedPLT(
            rho=0.1,
            relaxation=relaxation,
            local_epochs=30,
            asynchronous=True,
            buffer=1,
            strong_convexity=1.0,
            smoothness=1.0,
        )
        result, _ = play(strategy, 480, problems=problems)
        course = [done.residual for done in result.history]
        ends.append(np.mean(course[-12:]) / np.mean(course[12:24]))
    assert ends[0] > 100
    assert ends[1] < 1e-2


@pytest.mark.parametrize(
    ("rho", "steps", "smoothness", "chosen"),
    [(1.0, 10, 1.6, 1.0), (1.0, 1, 1.6, 0.5), (3.0, 10, 1.6, 0.5), (1.0, 10, 0.0, 0.5)],
)
def test_the_relaxation_is_one_where_theory_proves_it(
    rho: float, steps: int, smoothness: float, chosen: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    convexity = 0.8 if smoothness else 0.0
    strategy = FedPLT(
        rho=rho,
        local_epochs=steps,
        strong_convexity=convexity,
        smoothness=smoothness,
        relaxation="auto",
        asynchronous=True,
    )
    play(strategy, 1)
    assert strategy.half.settings()["relaxation"] == chosen
    assert f"relaxation {chosen:g}: " in caplog.text


def test_a_late_agent_that_is_folded_later_leaves_no_bias(optimum: NDArray[Any]) -> None:
    late = {"speeds": "stragglers", "slow_share": 0.2, "round_timeout": 40.0}
    drops, _ = play(FedPLT(**late), 60)
    folds, _ = play(FedPLT(**late, late_replies="fold"), 180)
    scale = np.linalg.norm(optimum)
    assert np.linalg.norm(vector(drops) - optimum) > 1e-2 * scale
    assert np.linalg.norm(vector(folds) - optimum) < 1e-5 * scale
    assert all(len(done.failures) == 1 for done in drops.history)


def test_a_task_that_is_too_old_is_withdrawn_and_its_agent_asked_again(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = ["agent,seconds", "0,500", "0,10", *(f"{agent},10" for agent in range(1, 6))]
    trace.write_text("\n".join(rows) + "\n")
    strategy = FedPLT(
        asynchronous=True, buffer=5, speeds=str(trace), round_timeout=100.0, relaxation=0.5
    )
    result, _ = play(strategy, 14)
    (withdrawn,) = [done for done in result.history if done.failures]
    assert withdrawn.failures["0"].text == "no reply within 100 s"
    assert withdrawn.clock == 100.0
    later = [done for done in result.history if done.round > withdrawn.round]
    assert any("0" in done.participants for done in later)


def test_max_delay_waits_for_an_agent(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = ["agent,seconds", "0,500", *(f"{agent},10" for agent in range(1, 6))]
    trace.write_text("\n".join(rows) + "\n")

    def clocks(delay: int) -> list[tuple[float, bool]]:
        strategy = FedPLT(asynchronous=True, buffer=5, speeds=str(trace), max_delay=delay)
        result, _ = play(strategy, 6)
        return [(done.clock, "0" in done.participants) for done in result.history]

    assert clocks(0) == [(10.0 * version, False) for version in range(1, 7)]
    assert clocks(3) == [
        (10.0, False),
        (20.0, False),
        (30.0, False),
        (500.0, True),
        (510.0, False),
        (520.0, False),
    ]


def test_every_agent_sends_max_uploads_and_the_run_ends() -> None:
    strategy = FedPLT(asynchronous=True, buffer=2, speeds="stragglers", max_uploads=7)
    result, _ = play(strategy, 1000)
    uploads = [name for done in result.history for name in done.participants]
    assert {uploads.count(str(agent)) for agent in range(len(PROBLEMS))} == {7}
    assert result.stopped == Stop.UPLOADS


def test_a_buffer_above_the_agents_that_are_there_hangs_nobody() -> None:
    grid = grid_of("fed-plt", PROBLEMS)
    strategy = FedPLT(asynchronous=True, buffer=6, relaxation=0.5)
    nodes = sorted(grid.online)

    def leave(done: Any, _: Any) -> None:
        if done.round == 3:
            grid.online = set(nodes[:2])
        if done.round == 6:
            grid.online = set(nodes)

    result = strategy.start(grid, START, num_rounds=9, log_rounds=False, observers=[leave])
    assert [len(done.participants) for done in result.history] == [6, 6, 6, 2, 2, 2, 6, 6, 6]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: FedPLT(asynchronous=True, secure_sum=True), "masks are shared"),
        (lambda: FedPLT(asynchronous=True, step_size_rule="cosine", step_size_rounds=9), "cosine"),
        (lambda: FedPLT(asynchronous=True, fraction_evaluate=0.5), "fraction-evaluate"),
        (lambda: FedPLT(speeds="equal", secure_sum=True), "speeds"),
        (
            lambda: FedPLT(
                asynchronous=True, local_solver="noisy-gd", clip=1.0, noise_variance=1.0
            ),
            "max-uploads",
        ),
        (
            lambda: FedPLT(
                asynchronous=True,
                max_uploads=3,
                local_solver="noisy-gd",
                clip=1.0,
                noise_variance=1.0,
                relation="add-remove",
            ),
            "add-remove",
        ),
        (
            lambda: FedPLT(
                asynchronous=True,
                max_uploads=3,
                local_solver="noisy-gd",
                clip=1.0,
                noise_variance=1.0,
                budget_schedule="geometric",
            ),
            "budget-schedule",
        ),
    ],
)
def test_what_cannot_be_asynchronous_says_why(
    make: Callable[[], PrimalDualStrategy], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        make()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda **more: DPIADMM(**more, perturbation="none"), "rho > 0"),
        (FedPDM, "aggregation = latest, not participants: x0 would be the mean over agents"),
        (lambda **more: fed_pdm(**more, nu=0.1), "nu = none, a fixed number of local steps"),
    ],
)
def test_settings_that_go_with_no_old_model_are_refused_as_a_run_begins(
    make: Callable[..., PrimalDualStrategy], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        play(make(asynchronous=True), 1)


REASONS = {
    "led": "an agent corrects itself by the mean of the x_i of its own round",
    "tamuna": "those of a cohort that works on one model together",
    "fed-dyn": "which of one upload is that agent's own",
    "fed-lin": "an iteration is two exchanges",
    "five-gcs": "a cohort that is drawn at random, and whoever is quickest is not",
    "dp-fedsgd": "of uploads as they come fast agents would have more",
    "dp-fedavg": "of uploads as they come fast agents would have more",
    "gfl": "those that their neighbours have in the same round",
}


@pytest.mark.parametrize("name", [one.name for one in BUILT_IN])
def test_an_algorithm_that_cannot_be_asynchronous_has_its_own_reason(name: str) -> None:
    strategy = algorithm(name).load_strategy()
    if name not in REASONS:
        assert strategy(asynchronous=True).options.asynchronous
        return
    for keys in ({"asynchronous": True}, {"late_replies": "fold"}):
        with pytest.raises(ConfigError, match=f"not with {name}: .*{REASONS[name]}"):
            strategy(**keys)


def test_flowers_own_loop_is_told_what_to_call() -> None:
    from flwr.app import ConfigRecord

    strategy = FedPLT(asynchronous=True)
    with pytest.raises(ConfigError, match=r"call strategy\.start"):
        strategy.configure_train(1, START, ConfigRecord(), grid_of("fed-plt", PROBLEMS))


def test_a_private_run_is_planned_for_its_cap_and_ledgers_hold_what_was_computed() -> None:
    rng = np.random.default_rng(1)
    problems = []
    for _ in range(4):
        rows = rng.standard_normal((30, 4))
        rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
        problems.append(BinaryLogistic(rows, np.sign(rows[:, 0]), regularizer=L2(0.5)))
    strategy = FedPLT(
        asynchronous=True,
        buffer=1,
        speeds="stragglers",
        slow_share=0.25,
        max_uploads=5,
        local_solver="noisy-gd",
        clip=1.0,
        row_norm=1.0,
        target_epsilon=2.0,
    )
    result, _ = play(strategy, 12, problems=problems)
    agents = strategy.run.session.roster.agents
    assert result.privacy is not None
    assert result.privacy.private
    given = {name: agent.tasks for name, agent in agents.items()}
    spent = {
        name: sum(times for _, times in ledger.entries)
        for name, ledger in result.privacy.agents.items()
    }
    assert spent == given  # those that were out at the end as well
    assert 0 < result.privacy.epsilon < 2.0
    full, _ = play(strategy.varied({}), 1000, problems=problems)
    assert full.stopped == Stop.UPLOADS
    assert 1.99 < full.privacy.epsilon <= 2.0
