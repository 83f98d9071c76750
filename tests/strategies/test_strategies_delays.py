"""Asynchronous runs beside a second implementation, and the theorem on their limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as some
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import assume, given, settings
from numpy.typing import NDArray

from privet.kernel import Moduli
from privet.problems import L2, BinaryLogistic, RidgeRegression, make_h
from privet.sim.inline import grid_of
from privet.strategies import DPIADMM, FedPLT, PrimalDualStrategy, Scaffold
from privet.strategies.fed_plt_theory import Setting, delayed_factor, delayed_rate
from studies.replays import replay_file
from studies.replays.instance import agent_states
from support import asynchrony_reference as reference
from support.asynchrony_reference import Absence, Schedule, Trace
from support.paths import golden

DIM = 3
Table = NDArray[np.float64]


def test_worked_instances_are_reproduced() -> None:
    for path in golden("async-fed-plt-*.json"):
        found = replay_file(path)
        assert found.rounds >= 6
        assert found.max_abs_error <= 1e-9


# ---------------------------------------------------------------------- the real code


def logistic(seed: int, count: int) -> list[BinaryLogistic]:
    """Return problems of agents with 3 to 6 rows each."""
    rng = np.random.default_rng(seed)
    problems = []
    for _ in range(count):
        rows = rng.standard_normal((rng.integers(3, 7), DIM)) + rng.standard_normal(DIM)
        labels = np.where(rng.random(len(rows)) < 0.5, -1.0, 1.0)
        problems.append(BinaryLogistic(rows, labels, regularizer=L2(0.5)))
    return problems


class Played:
    """A real run of a schedule: its server's tables and agents' states after every version."""

    def __init__(
        self,
        strategy: Callable[..., PrimalDualStrategy],
        problems: Sequence[Any],
        schedule: Schedule,
        versions: int,
        *,
        tables: dict[str, Table] | None = None,
        nodes: Sequence[dict[str, Any]] = (),
        engine: str = "inline",
    ) -> None:
        count = len(problems)
        grid = grid_of(
            strategy().half.name, problems, nodes or [{} for _ in problems], engine=engine
        )
        self.states: list[Any] = []
        self.agents: list[dict[str, dict[str, Table]]] = []
        with TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.csv"
            write_trace(trace, schedule)
            made = strategy(
                asynchronous=True,
                buffer=schedule.buffer,
                max_delay=schedule.max_delay,
                max_uploads=schedule.most,
                round_timeout=min(schedule.timeout, 1e6),
                speeds=str(trace),
            )
            first = made.half.with_tables(*tables.values()) if tables else None
            start = ArrayRecord({"x": Array(np.zeros(problems[0].dim))})
            session = made.begin(grid, start, state=first)
            for number in range(1, versions + 1):
                made.play_round(grid, number)
                known = session.roster.agents.items()
                self.states.append(made.half.dump(session.state))
                self.states[-1] = {key: np.array(own) for key, own in self.states[-1].items()}
                self.agents.append(agent_states(grid, {name: own.tag for name, own in known}))
        self.history = session.history
        self.computed = [session.roster.agents[str(agent)].tasks for agent in range(count)]
        self.trace = Trace(
            participants=[[int(name) for name in done.participants] for done in self.history],
            versions=[list(done.versions) for done in self.history],
            withdrawn=[sorted(int(name) for name in done.failures) for done in self.history],
            clock=[done.clock for done in self.history],
            computed=self.computed,
        )


def write_trace(path: Path, schedule: Schedule) -> None:
    lines = ["agent,seconds,away-from,back-at"]
    for agent, own in enumerate(schedule.seconds):
        lines += [f"{agent},{seconds!r},," for seconds in own]
    lines += [f"{one.agent},,{one.away!r},{one.back!r}" for one in schedule.absences]
    path.write_text("\n".join(lines) + "\n")


@some.composite
def schedules(draw: Any, *, most: int = 5, timeouts: bool = True) -> Schedule:
    """Schedules of 1 to ``most`` agents: few distinct times, so that many are the same."""
    count = draw(some.integers(1, most))
    times = some.sampled_from([1.0, 1.5, 2.0, 3.0, 10.0, 40.0])
    own = some.lists(times, min_size=1, max_size=4)
    spans = some.tuples(
        some.integers(0, count - 1), some.sampled_from([0.0, 1.0, 4.0, 12.5]), times
    )
    absences = draw(some.lists(spans, max_size=4))
    return Schedule(
        [draw(own) for _ in range(count)],
        [Absence(agent, away, away + length) for agent, away, length in absences],
        buffer=draw(some.integers(1, count)),
        max_delay=draw(some.integers(0, 4)),
        timeout=draw(some.sampled_from([math.inf, 9.0, 60.0] if timeouts else [math.inf])),
    )


def compare(seed: int, schedule: Schedule, engine: str, versions: int) -> None:
    """Play Fed-PLT with both implementations: random problems, l1 or none, gd or agd."""
    rng = np.random.default_rng(seed)
    count = len(schedule.seconds)
    problems = logistic(seed, count)
    x, z = rng.standard_normal((2, count, DIM))
    epochs = rng.integers(1, 5, count)
    steps = rng.uniform(0.1, 0.4, count)
    rho, relaxation = rng.uniform(0.5, 1.5), rng.choice([0.5, 0.75, 1.0])
    weight, fast = rng.choice([0.0, 0.3]), bool(rng.integers(2))
    moduli = [(own.strong_convexity, own.smoothness) for own in (p.moduli for p in problems)]
    method = reference.FedPLT(
        [own.gradient for own in problems],
        list(x),
        list(z),
        rho,
        relaxation,
        list(epochs),
        list(steps),
        moduli if fast else (),
        reference.soft_threshold(weight),
    )
    tables: list[tuple[Table, Table, Table]] = []

    def keep(version: int) -> None:
        tables.append((np.array(method.x), np.array(method.z), method.sent()))

    expected = reference.play(method, schedule, versions, keep)
    assume(len(expected.clock) == versions)  # else the tasks of a version were all withdrawn

    def made(**more: Any) -> FedPLT:
        solver = "agd" if fast else "gd"
        h = {"h": make_h("l1", **{"h-weight": float(weight)})} if weight else {}
        return FedPLT(rho=rho, relaxation=float(relaxation), local_solver=solver, **h, **more)

    nodes = [
        {"local-epochs": int(own), "step-size": float(step)}
        for own, step in zip(epochs, steps, strict=True)
    ]
    found = Played(
        made,
        problems,
        schedule,
        versions,
        tables={"x": x, "z": z},
        nodes=nodes,
        engine=engine,
    )
    assert found.trace == expected
    for (own_x, own_z, _), state, agents in zip(tables, found.states, found.agents, strict=True):
        np.testing.assert_allclose(state["x"], own_x, rtol=0, atol=1e-9)
        np.testing.assert_allclose(state["z"], own_z, rtol=0, atol=1e-9)
        for name, held in agents.items():
            np.testing.assert_array_equal(held["x"], state["x"][int(name)])
            np.testing.assert_array_equal(held["z"], state["z"][int(name)])


@settings(max_examples=25, deadline=None)
@given(some.integers(0, 2**20), schedules(), some.sampled_from(["inline", "cohort"]))
def test_both_implementations_agree(seed: int, schedule: Schedule, engine: str) -> None:
    compare(seed, schedule, engine, 8)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(some.integers(0, 2**20), schedules(most=12), some.sampled_from(["inline", "cohort"]))
def test_both_implementations_agree_at_length(seed: int, schedule: Schedule, engine: str) -> None:
    compare(seed, schedule, engine, 40)
