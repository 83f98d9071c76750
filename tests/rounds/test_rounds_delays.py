"""Asynchronous runs beside a second implementation, and the theorem on their limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from privet.testing.runs import agent_states
from support import asynchrony_reference as reference
from support.asynchrony_reference import Absence, Schedule, Trace

DIM = 3
Table = NDArray[np.float64]


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


UNEVEN = Schedule(
    [[1.0, 4.0], [1.0], [2.5, 1.0, 1.0], [30.0, 1.0], [3.0]],
    [Absence(1, 5.0, 9.0), Absence(4, 0.0, 2.0)],
    buffer=2,
    max_delay=9,
    timeout=12.0,
)
"""Of five agents: absences, delays that are waited for, and tasks that are withdrawn."""


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
            fresh = [table.copy() for table in (tables or {}).values()]  # the run writes into them
            first = made.half.with_tables(*fresh) if fresh else None
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


def test_dp_iadmm_agrees_with_its_recursion() -> None:
    rng = np.random.default_rng(3)
    problems = logistic(3, 5)
    z, lam = rng.standard_normal((2, 5, DIM))
    gradients = [own.gradient for own in problems]
    method = reference.DPIADMM(gradients, list(z), list(lam), list(z), 0.7, 1 / 2.5, [2] * 5)
    tables: list[tuple[Table, Table]] = []

    def keep(version: int) -> None:
        tables.append((np.array(method.z), np.array(method.duals)))

    expected = reference.play(method, UNEVEN, 30, keep)

    def made(**more: Any) -> DPIADMM:
        smooth = {"eta_rule": "smooth", "smoothness": 2.5}
        return DPIADMM(rho=0.7, local_updates=2, perturbation="none", **smooth, **more)

    for engine in ("inline", "cohort"):
        found = Played(made, problems, UNEVEN, 30, tables={"z": z, "lam": lam}, engine=engine)
        assert found.trace == expected
        for (own_z, own_lam), state, agents in zip(tables, found.states, found.agents, strict=True):
            np.testing.assert_allclose(state["z"], own_z, rtol=0, atol=1e-9)
            np.testing.assert_allclose(state["lam"], own_lam, rtol=0, atol=1e-9)
            for name, held in agents.items():
                np.testing.assert_array_equal(held["z"], state["z"][int(name)])
                np.testing.assert_array_equal(held["lam"], state["lam"][int(name)])


def test_scaffold_agrees_with_its_recursion() -> None:
    problems = logistic(4, 5)
    zero = np.zeros(DIM)
    gradients = [own.gradient for own in problems]
    method = reference.Scaffold(gradients, zero, zero, [zero] * 5, 0.1, [4] * 5)
    tables: list[tuple[Table, Table, Table]] = []

    def keep(version: int) -> None:
        tables.append((method.x, method.c, np.array(method.own)))

    expected = reference.play(method, UNEVEN, 30, keep)

    def made(**more: Any) -> Scaffold:
        return Scaffold(step_size_base=0.1, max_local_steps=4, server_step_size=1.0, **more)

    for engine in ("inline", "cohort"):
        found = Played(made, problems, UNEVEN, 30, engine=engine)
        assert found.trace == expected
        for (x, c, own), state, agents in zip(tables, found.states, found.agents, strict=True):
            np.testing.assert_allclose(state["x"], x, rtol=0, atol=1e-9)
            np.testing.assert_allclose(state["mean"], c, rtol=0, atol=1e-9)
            np.testing.assert_allclose(state["c"], own, rtol=0, atol=1e-9)
            for name, held in agents.items():
                np.testing.assert_array_equal(held["c"], state["c"][int(name)])


# ---------------------------------------------------------------------- the theorem


class Quadratics:
    """f_i(x) = (x - b_i)' H_i (x - b_i) / 2 with curvatures from lam to L, and h = weight |x|_1."""

    def __init__(self, rng: np.random.Generator, count: int, dim: int, kappa: float) -> None:
        self.moduli = Moduli(1.0, kappa)
        self.hessians = []
        for _ in range(count):
            turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
            curvatures = rng.uniform(1.0, kappa, dim)
            curvatures[rng.integers(dim)] = rng.choice([1.0, kappa])
            self.hessians.append(turn @ np.diag(curvatures) @ turn.T)
        self.centers = rng.standard_normal((count, dim)) * 3

    def gradient(self, agent: int, x: Table) -> Table:
        own: Table = self.hessians[agent] @ (x - self.centers[agent])
        return own

    def solved(self, agent: int, v: Table, rho: float) -> Table:
        """Return the minimiser of f_i(w) + |w - v|^2 / (2 rho)."""
        hessian = self.hessians[agent]
        whole = hessian + np.eye(len(v)) / rho
        return np.linalg.solve(whole, hessian @ self.centers[agent] + v / rho)

    def optimum(self, weight: float) -> Table:
        """Return the minimiser of the sum of the f_i and h, by proximal gradient steps."""
        count, threshold = len(self.hessians), reference.soft_threshold(weight)
        total, x = sum(self.hessians), np.zeros(len(self.centers[0]))
        if not weight:
            pulls = zip(self.hessians, self.centers, strict=True)
            return np.linalg.solve(total, sum(hessian @ b for hessian, b in pulls))
        step = 1 / (count * self.moduli.smoothness)
        for _ in range(400):
            slope = sum(self.gradient(agent, x) for agent in range(count))
            x = threshold(x - step * slope, step)
        return x

    def problems(self) -> list[RidgeRegression]:
        """Return the f_i, up to a constant, as mean squared errors of as many rows as entries."""
        found = []
        for hessian, center in zip(self.hessians, self.centers, strict=True):
            rows = np.linalg.cholesky(hessian * len(center) / 2).T
            found.append(RidgeRegression(rows, rows @ center))
        return found


def abrupt(rng: np.random.Generator, count: int, **more: Any) -> Schedule:
    """Return a schedule in which every agent's speed changes abruptly, by factors up to 100."""
    own = []
    for _ in range(count):
        parts = [rng.choice([0.1, 1.0, 10.0]) * np.ones(rng.integers(1, 9)) for _ in range(12)]
        times = np.concatenate(parts)
        own.append([float(time) for time in times * rng.uniform(0.8, 1.2, len(times))])
    return Schedule(own, buffer=int(rng.integers(1, count + 1)), **more)


def largest(table: Sequence[Table] | Table, center: Table) -> float:
    """Return max_i |row_i - center_i|."""
    return float(np.linalg.norm(np.asarray(table) - center, axis=1).max())


def within(errors: Sequence[float], start: float, rate: float, trace: Trace, count: int) -> int:
    """Require errors below rate^k times the first, and return the completed stages k."""
    stages = reference.stages(trace.participants, trace.versions, count)
    for error, complete in zip(errors, stages, strict=True):
        assert error <= rate**complete * start * (1 + 1e-9) + 1e-11
    return stages[-1] if stages else 0


@settings(max_examples=60, deadline=None)
@given(some.floats(1.0, 50.0), some.floats(0.02, 3.0), some.floats(0.05, 1.0))
def test_the_factor_is_the_maximum_over_all_shares(kappa: float, rho: float, a: float) -> None:
    high, low = (1 - rho) / (1 + rho), (1 - rho * kappa) / (1 + rho * kappa)
    p = np.linspace(0, 1, 20001)
    kept = np.sqrt(p * (1 - a - a * high) ** 2 + (1 - p) * (1 - a - a * low) ** 2)
    moved = np.sqrt(p * high**2 + (1 - p) * low**2)
    found = delayed_factor(Moduli(1.0, kappa), rho, a)
    brute = np.max(kept + 2 * a * moved)
    assert brute - 1e-12 <= found <= brute + 1e-4


def bounded(seed: int) -> int:
    """Play exact Fed-PLT on random quadratics, and return the stages; 0: no theorem covers it."""
    rng = np.random.default_rng(seed)
    count, dim, kappa = int(rng.integers(2, 6)), int(rng.integers(1, 4)), rng.uniform(1.0, 4.0)
    rho, a = rng.uniform(0.3, 2.0) / math.sqrt(kappa), float(rng.choice([0.5, 0.75, 1.0]))
    problem = Quadratics(rng, count, dim, kappa)
    factor = delayed_factor(problem.moduli, rho, a)
    return kept_within(rng, problem, rho, a, factor, float(rng.choice([0.0, 1.0])))


def kept_within(
    rng: np.random.Generator,
    problem: Quadratics,
    rho: float,
    a: float,
    factor: float,
    weight: float,
) -> int:
    """Play exact Fed-PLT, require the factor in every stage, and return the stages."""
    if factor >= 1:
        return 0
    count, dim = problem.centers.shape
    x = problem.optimum(weight)
    limit = np.array([x - rho * problem.gradient(agent, x) for agent in range(count)])
    z = limit + rng.standard_normal((count, dim))
    errors: list[float] = []
    method = reference.FedPLT(
        [lambda w: w] * count,
        list(z),
        list(z),
        rho,
        a,
        [0] * count,
        prox=reference.soft_threshold(weight),
        exact=lambda agent, v: problem.solved(agent, v, rho),
    )
    schedule = abrupt(rng, count, timeout=float(rng.choice([math.inf, 5.0])))
    trace = reference.play(
        method, schedule, 150, lambda version: errors.append(largest(method.z, limit))
    )
    return within(errors, largest(z, limit), factor, trace, count)


def test_the_bound_of_the_theorem_is_never_passed() -> None:
    reached = [bounded(seed) for seed in range(60)]
    assert sum(stages > 3 for stages in reached) > 15


@pytest.mark.slow
def test_the_bound_of_the_theorem_is_never_passed_on_many_problems() -> None:
    reached = [bounded(1000 + seed) for seed in range(3000)]
    assert sum(stages > 3 for stages in reached) > 800


def bounded_on_the_real_code(seed: int, engine: str, steps: int) -> int:
    """Play the Strategy on quadratics with ``steps`` local steps, and return the stages."""
    rng = np.random.default_rng(seed)
    count, kappa = int(rng.integers(2, 6)), rng.uniform(1.0, 1.5)
    rho, a = 1 / math.sqrt(kappa), float(rng.choice([0.5, 0.75, 1.0]))
    problem = Quadratics(rng, count, DIM, kappa)
    gamma = 2 / (1 + kappa + 2 / rho)
    rate = delayed_rate(problem.moduli, Setting(rho, gamma, steps), a)
    assert rate < 1
    chi = max(abs(1 - gamma * (own + 1 / rho)) for own in (1.0, kappa)) ** steps
    p = 1 / (1 + rho)
    factor = delayed_factor(problem.moduli, rho, a)
    matrix = [[chi, 3 * (1 + chi) * p], [2 * a * chi, factor + 6 * a * chi * p]]
    values, vectors = np.linalg.eig(np.array(matrix))
    np.testing.assert_allclose(max(abs(values)), rate, rtol=1e-12)
    weights = np.abs(vectors[:, np.argmax(values)])  # in this norm the pair contracts by rate
    x = problem.optimum(0.0)
    limit = np.array([x - rho * problem.gradient(agent, x) for agent in range(count)])
    tables = {"x": x + rng.standard_normal((count, DIM)), "z": limit + rng.standard_normal(x.shape)}

    def made(**more: Any) -> FedPLT:
        return FedPLT(rho=rho, relaxation=a, step_size=gamma, local_epochs=steps, **more)

    def error(own: dict[str, Table]) -> float:
        return max(largest(own["x"], x) / weights[0], largest(own["z"], limit) / weights[1])

    schedule = abrupt(rng, count)
    found = Played(made, problem.problems(), schedule, 60, tables=tables, engine=engine)
    errors = [error(state) for state in found.states]
    assert not any(found.trace.withdrawn)
    return within(errors, error(tables), rate, found.trace, count)


@pytest.mark.parametrize(("engine", "steps"), [("inline", 4), ("cohort", 40)])
def test_the_bound_of_inexact_steps_is_never_passed(engine: str, steps: int) -> None:
    assert sum(bounded_on_the_real_code(seed, engine, steps) for seed in range(4)) > 8


@pytest.mark.slow
@pytest.mark.parametrize("steps", [3, 4, 6, 40])
@pytest.mark.parametrize("engine", ["inline", "cohort"])
def test_the_bound_is_never_passed_on_many_runs(engine: str, steps: int) -> None:
    assert sum(bounded_on_the_real_code(seed, engine, steps) for seed in range(100, 140)) > 80


# ------------------------------------------------------- own blocks are never old, h = 0


def factor_of(count: int, moduli: Moduli, rho: float, a: float) -> float:
    """Return c_N(a) of docs/async.md, by all shares of the two ends."""
    high, low = (
        (1 - rho * m) / (1 + rho * m) for m in (moduli.strong_convexity, moduli.smoothness)
    )
    p, own = np.linspace(0, 1, 4001), 1 - 2 / count
    kept = [(1 - a - a * own * r) ** 2 for r in (high, low)]
    moved = 2 * a * (1 - 1 / count) * np.sqrt(p * high**2 + (1 - p) * low**2)
    return float(np.max(np.sqrt(p * kept[0] + (1 - p) * kept[1]) + moved)) + 1e-7


def bounded_by_number(seed: int) -> int:
    """Play exact Fed-PLT where the number of agents alone makes it contract."""
    rng = np.random.default_rng(seed)
    count, dim = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    kappa = float(rng.uniform(1.0, 1000.0 if count == 2 else 9.0))
    rho, a = rng.uniform(0.2, 5.0) / math.sqrt(kappa), float(rng.choice([0.25, 0.5, 1.0]))
    problem = Quadratics(rng, count, dim, kappa)
    factor = factor_of(count, problem.moduli, rho, a)
    assert factor < delayed_factor(problem.moduli, rho, a) + 1e-6
    assert factor < 1 or count > 2
    return kept_within(rng, problem, rho, a, factor, 0.0)


def test_two_agents_contract_at_every_rho_and_more_where_c_n_is_below_1() -> None:
    reached = [bounded_by_number(seed) for seed in range(80)]
    assert sum(stages > 3 for stages in reached) > 20


def bursts(curvatures: Sequence[float], rho: float, a: float, repeats: int) -> float:
    """Return what a cycle multiplies z_1 by: uploads of agent 1 alone, then of the others."""
    p = 1 / (1 + rho * np.array(curvatures))
    z = np.zeros(len(p))
    z[0] = 1.0
    sent = np.full(len(p), z.mean())
    for agent in [*([*range(1, len(p))] * repeats), *([0] * repeats)]:
        x = p[agent] * (2 * sent[agent] - z[agent])
        z[agent] += 2 * a * (x - sent[agent])
        sent[agent] = z.mean()
    return float(z[0])


@pytest.mark.parametrize("count", [2, 3, 5, 10])
@pytest.mark.parametrize("a", [0.2, 0.5])
def test_a_cycle_of_bursts_multiplies_by_what_the_theorem_says(count: int, a: float) -> None:
    for r, s in ((0.2, 0.5), (0.6, 0.8), (0.9, 0.9)):
        curvatures = [(1 + r) / (1 - r), *[(1 - s) / (1 + s)] * (count - 1)]
        u = 1 - 2 / count
        gain = -r * s * (1 - u**2) / ((1 - r * u) * (1 - s * u))
        assert bursts(curvatures, 1.0, a, 2000) == pytest.approx(gain, rel=1e-9)


@pytest.mark.parametrize("count", [3, 4, 8])
def test_in_one_dimension_rho_has_a_sharp_end(count: int) -> None:
    """Below 2 (N - 1) / (N - 2) over L every order contracts; above it bursts diverge."""
    end = 2 * (count - 1) / (count - 2)
    a = 0.5
    for share, contracts in ((0.99, True), (1.01, False)):
        rho = share * end  # L = 1
        low = (1 - rho) / (1 + rho)
        flat = 1e-4
        high = (1 - rho * flat) / (1 + rho * flat)
        sums = [
            abs(1 - a - a * (1 - 2 / count) * r) + 2 * a * (1 - 1 / count) * abs(r)
            for r in np.linspace(low, high, 1001)
        ]
        assert (max(sums) < 1) == contracts
        cycle = abs(bursts([1.0, *[flat] * (count - 1)], rho, a, 100_000 // count))
        assert (cycle < 1) == contracts


def test_of_seven_agents_bursts_diverge_from_34_on_at_the_usual_rho() -> None:
    for kappa, diverges in ((33.9, False), (34.1, True)):
        curvatures = [kappa, *[1.0] * 6]
        for a in (0.05, 0.5):
            cycle = abs(bursts(curvatures, 1 / math.sqrt(kappa), a, int(800 / a)))
            assert (cycle > 1) == diverges


def test_the_real_code_diverges_in_bursts_and_nowhere_else() -> None:
    """Three agents of one parameter: 24 uploads a cycle, by speeds that a file may state."""
    curvatures = [1 / 0.02 - 1, 1 / 0.98 - 1, 1 / 0.98 - 1]  # p = 1 / (1 + curvature) at rho = 1
    problems = [RidgeRegression([[math.sqrt(c / 2)]], [0.0]) for c in curvatures]
    tables = {"x": np.ones((3, 1)), "z": np.array([[1.0], [-0.5], [-0.5]])}

    def made(**more: Any) -> FedPLT:
        # A step of 1 / (curvature + 1 / rho) solves the subproblem of one parameter.
        return FedPLT(rho=1.0, relaxation=0.5, local_epochs=1, local_solver="gd", **more)

    once, long = [1.0] * 9, 9.5
    in_bursts = Schedule([[*once, 9.0], [long, *once[1:], 0.5], [long, *once[1:], 0.5]])
    alike = Schedule([[1.0], [1.1], [1.2]])
    ends = []
    for schedule in (in_bursts, alike):
        found = Played(made, problems, schedule, 260, tables=tables)
        ends.append([float(np.abs(state["z"]).max()) for state in found.states])
    assert max(ends[0][-60:]) > 2 * max(ends[0][60:120]) > 2 * max(ends[0][:20])
    assert ends[1][-1] < 1e-3


@pytest.mark.parametrize("smoothness", [1e308, math.inf])
def test_moduli_beyond_all_numbers_prove_nothing(smoothness: float) -> None:
    assert delayed_rate(Moduli(1.0, smoothness), Setting(1.0, 10.0, 1), 1.0) == math.inf
