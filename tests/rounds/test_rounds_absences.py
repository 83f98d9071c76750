"""The residual is that of all agents: unknown while one was never folded, honest without some."""

from __future__ import annotations

import logging
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from hypothesis import given
from hypothesis import strategies as st

from privet.core import algorithms
from privet.rounds.failure import Failure, FailureCode
from privet.rounds.gaps import Gaps
from privet.rounds.late import late_agents
from privet.rounds.participation import Fraction, Schedule
from privet.rounds.uploads import Block, ClearSums, Uploads
from privet.sim.inline import run_inline
from privet.strategies import Round
from support import masked
from support.federations import FaultyGrid, app_of, logistic_agents, lose_reply, position, train

ROUNDS = 40


def losing(agents: tuple[int, ...], rounds: range, count: int = 6) -> FaultyGrid:
    """Return a grid whose agents with these numbers answer too late in these rounds."""
    faults = {(agent, number): lose_reply for agent in agents for number in rounds}
    return FaultyGrid(app_of(logistic_agents(count)), count, faults)


@pytest.mark.usefixtures("clock")
def test_a_run_without_its_late_agents_is_not_called_converged(caplog: Any) -> None:
    caplog.set_level(logging.INFO, logger="flwr.privet")
    options: dict[str, Any] = {"local_epochs": 10, "round_timeout": 0.05}
    result, strategy, _ = train(
        logistic_agents(6),
        ROUNDS,
        grid=losing((1, 4), range(1, ROUNDS + 1)),
        start={"tolerance": 1e-10},
        **options,
    )
    assert (result.stopped, result.diverged, len(result.history)) == ("rounds", "", ROUNDS)
    assert strategy.session is not None
    gaps = strategy.session.gaps.tables["x"]
    assert np.isnan(gaps[[1, 4]]).all()
    assert np.delete(gaps, [1, 4]).mean() < 1e-10  # of the participants alone it is converged
    assert all(math.isnan(done.residual) for done in result.history)
    assert result.late == {"1": (ROUNDS, ROUNDS), "4": (ROUNDS, ROUNDS)}
    assert result.residual_unknown == "agents 1, 4: late in 40 of 40 rounds"
    (line,) = [one.message for one in caplog.records if "ends elsewhere" in one.message]
    assert line == (
        "agents 1, 4: late in 3 rounds in a row; without them the run ends elsewhere: try a "
        "round-timeout above 0.05, or a smaller local-epochs in the config of their nodes "
        "(docs/how-to/slow-agents.md)"
    )


@pytest.mark.usefixtures("clock")
def test_what_keeps_an_agent_out_is_logged_once_and_counted(caplog: Any) -> None:
    """Numbers in a reason make no other reason; another reason is logged at once."""

    def refuse(grid: FaultyGrid, message: Message, agent: int) -> Message:
        reasons.append(f"epsilon {len(reasons) + 0.5} above 8" if len(reasons) < 9 else "no file")
        return Message(Error(0, reasons[-1]), reply_to=message)

    reasons: list[str] = []
    caplog.set_level(logging.INFO, logger="flwr.privet")
    faults: dict[Any, Any] = {(2, number): refuse for number in range(2, 13)}
    faults |= {(1, 5): lose_reply, (3, 6): lose_reply, (3, 7): lose_reply}
    grid = FaultyGrid(app_of(logistic_agents(4)), 4, faults)
    result, _, _ = train(logistic_agents(4), 12, grid=grid, local_epochs=2, round_timeout=0.05)
    lines = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    first = [re.match(r"round (\d+): agent (\d)", line) for line in lines]
    assert [one.groups() for one in first if one] == [
        ("2", "2"),
        ("5", "1"),
        ("6", "3"),
        ("11", "2"),
    ]
    ends = [line for line in lines if " times: " in line]
    assert [line.partition(":")[0] for line in ends] == [
        "agent 2, 9 times",
        "agent 3, 2 times",
        "agent 2, 2 times",
    ]
    assert "epsilon 0.5 above 8" in ends[0]
    assert sum("2" in done.failures for done in result.history) == 11  # each is in the history


@pytest.mark.usefixtures("clock")
def test_an_agent_that_was_folded_once_holds_the_residual_up() -> None:
    """The others' gaps vanish; the mean keeps the one that it had in round 1."""
    late = range(2, ROUNDS + 1)
    options: dict[str, Any] = {"local_epochs": 10, "round_timeout": 0.05}
    grid = losing((3,), late)
    result, strategy, _ = train(logistic_agents(6), ROUNDS, grid=grid, **options)
    first, _, _ = train(logistic_agents(6), 1, local_epochs=10)
    assert strategy.session is not None
    gap = strategy.session.gaps.tables["x"][3]
    assert result.history[0].residual == first.history[0].residual > gap / 6 > 0
    assert result.history[-1].residual == pytest.approx(gap / 6, rel=1e-6)
    assert result.residual_unknown == ""
    assert result.late == {"3": (39, 40)}


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_no_algorithm_knows_its_residual_without_an_agent(name: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {"algorithm": name, "num-agents": 4, "num-server-rounds": 4}
    config |= {"participation": "schedule", "schedule": "0,1,3", "output-dir": str(tmp_path)}
    finished = run_inline(config, "run")
    result, unknown = finished.result, "agent 2: never chosen"
    assert [done.residual for done in result.history] == pytest.approx([math.nan] * 4, nan_ok=True)
    assert result.residual_unknown == finished.summary["residual-unknown"] == unknown
    page = (finished.folder / "report.html").read_text(encoding="utf-8")
    assert f"The residual is unknown: {unknown}." in page


@pytest.mark.parametrize("name", ["fed-plt", "dp-iadmm", "fed-pdm", "gfl"])
def test_secure_sums_know_the_residual_if_all_agents_are_in_them(name: str) -> None:
    some = Schedule((tuple("01234"), tuple("0124")))
    result, _, _ = masked.play(name, rounds=4, secure_sum=True, participation=some)
    assert [math.isnan(done.residual) for done in result.history] == [False, True] * 2
    assert result.residual_unknown == (
        "a secure sum has it of all agents alone; in the last one agent 3: not chosen"
    )


@pytest.mark.usefixtures("clock")
def test_the_residual_is_unknown_from_a_newcomer_to_its_first_upload() -> None:
    grid = FaultyGrid(app_of(logistic_agents(4)), 4, {(3, 3): lose_reply})
    (node,) = [node for node, context in grid.contexts.items() if position(context) == 3]
    grid.online.discard(node)
    options: dict[str, Any] = {"num_agents": 3, "round_timeout": 0.05}
    _, strategy, _ = train(logistic_agents(4), 2, grid=grid, **options)
    grid.online.add(node)
    assert strategy.session is not None
    done = [*strategy.session.history, *(strategy.play_round(grid, number) for number in (3, 4))]
    assert [len(one.participants) for one in done] == [3, 3, 3, 4]
    assert [math.isnan(one.residual) for one in done] == [False, False, True, False]
    assert done[3].residual == pytest.approx(strategy.session.gaps.tables["x"].mean())


def test_a_resumed_run_knows_what_it_knew(tmp_path: Path) -> None:
    """Its residuals have the same bits, those that come from rounds before the resume too."""
    options: dict[str, Any] = {"participation": Fraction(0.4), "seed": 3}
    whole, strategy, _ = train(logistic_agents(6), 9, **options)
    residuals = [done.residual for done in whole.history]
    assert 2 < sum(map(math.isnan, residuals)) < 9
    file = tmp_path / "checkpoint.npz"
    for last in (2, 6, 9):
        start = {"checkpoint": file, **({"resume": file} if file.exists() else {})}
        result, again, _ = train(logistic_agents(6), last, start=start, **options)
    np.testing.assert_array_equal([done.residual for done in result.history], residuals)
    assert strategy.session is not None
    assert again.session is not None
    mine, theirs = (one.session.gaps.tables for one in (strategy, again))
    assert mine.keys() == theirs.keys() == {"x"}
    assert np.array_equal(mine["x"], theirs["x"])


Event = st.tuples(st.sampled_from(["fold", "fold", "fold", "insert", "forget"]), st.integers(0))


@given(st.lists(Event, max_size=12), st.integers(1, 5), st.sampled_from(["f4", "f8"]))
def test_the_residual_is_the_mean_of_all_agents_last_gaps(
    events: list[tuple[str, int]], count: int, dtype: str
) -> None:
    """Agent by agent: who was folded when, by the sums of a run and one after the other."""
    gaps, last = Gaps(count), [math.nan] * count
    steps = [math.nan] * count
    for what, seed in events:
        draw = np.random.default_rng(seed)
        position = int(draw.integers(len(last)))
        if what == "insert":
            gaps.insert(position)
            last.insert(position, math.nan)
            steps.insert(position, math.nan)
        elif what == "forget":
            gaps.forget(position)
            last[position] = steps[position] = math.nan
        else:
            chosen = np.flatnonzero(draw.random(len(last)) < 0.7)
            if not chosen.size:
                continue
            rows = draw.standard_normal((len(chosen), 3)).astype(dtype)
            center, old = draw.standard_normal((2, 3)).astype(dtype)
            if draw.random() < 0.1:
                rows[0, 0] = np.nan
            parts = np.split(np.arange(len(chosen)), [1])  # a block of one, and one of the others
            blocks = [Block(chosen[p], {"x": rows[p]}, {"y": center}) for p in parts if p.size]
            uploads = Uploads.of(*blocks)
            uploads.gaps = gaps
            for place, row in zip(chosen.tolist(), rows, strict=True):
                square = float(np.sum(np.float64(row - center) ** 2))
                last[place] = math.inf if math.isnan(square) else square
                steps[place] = float(np.sum(np.float64(center - old) ** 2))
            with np.errstate(invalid="ignore"):
                found = ClearSums(uploads).gap("x", "y"), uploads.step(center, old)
            expected = math.inf if math.inf in last else sum(last) / len(last)
            assert found[0] == pytest.approx(expected, rel=1e-5, nan_ok=True)
            assert found[1] == pytest.approx(sum(steps) / len(steps), rel=1e-5, nan_ok=True)
    unknown = [place for place, gap in enumerate(last) if math.isnan(gap)]
    assert gaps.unknown() == (unknown if gaps.tables else list(range(len(last))))


def test_rounds_that_an_agent_was_late_in_are_counted_of_those_it_was_chosen_in() -> None:
    late = Failure(FailureCode.LATE, "no reply within 5 s")
    lost = Failure(FailureCode.LOST, "no reply within 5 s")
    history = [
        Round(1, ("0", "1"), {"2": late}),
        Round(2, ("0",), {"2": lost, "1": late}),
        Round(3, ("0", "1", "2")),
        Round(4, ("0", "1")),
    ]
    found = late_agents(history)
    assert found == {"2": (1, 3), "1": (1, 4)}
    assert str(found["2"]) == "late in 1 of 3 rounds"
    assert late_agents(history[2:]) == {}


@pytest.mark.usefixtures("clock")
def test_an_agent_is_named_once_and_only_if_it_is_late_again_and_again(caplog: Any) -> None:
    options = {"round_timeout": 0.05, "participation": Schedule((("0", "1"), ("0", "2")))}
    train(logistic_agents(3), 12, grid=losing((1,), range(1, 13), 3), **options)  # every second
    assert caplog.text.count("ends elsewhere") == 1
    caplog.clear()
    grid = losing((1,), range(1, 3), 3)
    grid.faults |= {(1, number): lose_reply for number in (4, 5, 7)}
    train(logistic_agents(3), 8, grid=grid, round_timeout=0.05)
    assert "ends elsewhere" not in caplog.text
