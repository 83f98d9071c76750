"""Robust folds: formulas, what each side goes on from, who keeps its limit, what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import trim_mean

from privet.agents.state import read_state
from privet.core import ConfigError, RunError, algorithm
from privet.core.registry import algorithms
from privet.problems import L2, BinaryLogistic
from privet.rounds.observers import Observer
from privet.rounds.participation import Fraction
from privet.rounds.robust import RobustFold, centred_clipping, median, mixed, trimmed
from privet.rounds.session import Session
from privet.rounds.uploads import Block, Uploads
from privet.sim.inline import grid_of
from privet.testing import checks, logistic_federation
from privet.testing.attacks import ATTACKS, Attack, attacked_grid
from privet.testing.runs import agent_states
from privet.wire import unpack
from support.every_algorithm import EVERY_ALGORITHM
from support.paths import ROOT

AGENTS, FAULTY, WRONG = 7, 2, (1, 4)
MOVES = np.random.default_rng(61).standard_normal((AGENTS, 5))
ON: dict[str, Any] = {"faulty": FAULTY, "min_agents": 2 * FAULTY + 1, "num_agents": AGENTS}
STATEFUL: Mapping[str, Mapping[str, Any]] = {
    "fed-dyn": {"step_size_base": 0.3, "fed_dyn_alpha": 0.3},
    "fed-pdm": {
        "dual": "public", "step_size_base": 0.3, "step_size_rule": "constant", "rho": 1.0
    },
    "fed-plt": {"rho": 1.0},
    "scaffold": {"step_size_base": 0.3},
}  # fmt: skip
STATELESS: Mapping[str, Mapping[str, Any]] = {
    "dp-fedavg": {"step_size_base": 0.3},
    "dp-fedsgd": {"step_size_base": 0.3},
    "gfl": {"units": 1, "step_size": 1.0},
}
ROBUST = {**STATEFUL, **STATELESS}


def strategy(name: str, **arguments: Any) -> Any:
    settings = {**ROBUST.get(name, {}), **arguments}
    return algorithm(name).load_strategy()(**settings)


def start(dim: int) -> ArrayRecord:
    return ArrayRecord({"x": Array(np.zeros(dim))})


def play(name: str, problems: Any, rounds: int, attack: Attack | None = None, **keys: Any) -> Any:
    grid = attacked_grid(name, problems, WRONG, attack) if attack else grid_of(name, problems)
    made = strategy(name, **{**keys, "num_agents": len(problems)})
    result = made.start(grid, start(problems[0].dim), num_rounds=rounds, log_rounds=False)
    return result, grid, made


# ------------------------------------------------------------------ the formulas


def test_the_mean_of_trimmed_moves_is_the_trimmed_mean_of_each_coordinate() -> None:
    new, changed = trimmed(MOVES, FAULTY)
    assert np.allclose(new.mean(axis=0), trim_mean(MOVES, FAULTY / AGENTS + 1e-9, axis=0))
    assert np.array_equal(new[~changed], MOVES[~changed])
    assert (changed.sum(axis=0) == 2 * FAULTY).all()


def test_numbers_that_are_equal_are_trimmed_by_the_agents_order() -> None:
    _, changed = trimmed(np.zeros((5, 1)), 1)
    assert changed[:, 0].tolist() == [True, False, False, False, True]


def test_a_median_is_in_the_place_of_every_move() -> None:
    new, changed = median(MOVES, FAULTY)
    expected = [sorted(column)[AGENTS // 2] for column in MOVES.T]
    assert all(np.array_equal(row, expected) for row in new)
    assert changed.all()


def test_clipped_moves_are_as_near_to_the_median_as_all_but_the_farthest() -> None:
    new, changed = centred_clipping(MOVES, FAULTY)
    middle = np.array([sorted(column)[AGENTS // 2] for column in MOVES.T])
    far = [float(np.sqrt(((row - middle) ** 2).sum())) for row in MOVES]
    clipped = int(2 * (FAULTY / AGENTS) * (AGENTS - FAULTY))  # 2 of 7: 2.86, so 2
    tau = sorted(far)[AGENTS - 1 - clipped]
    for row, move, distance, is_new in zip(new, MOVES, far, changed[:, 0], strict=True):
        assert np.allclose(row, middle + min(1.0, tau / distance) * (move - middle))
        assert is_new == (distance > tau)
    assert changed[:, 0].sum() == clipped == 2


def test_moves_that_are_mostly_the_same_are_clipped_to_these() -> None:
    moves = np.zeros((7, 3))
    moves[2] = 5.0
    new, changed = centred_clipping(moves, 2)
    assert not new.any()
    assert changed[:, 0].tolist() == [place == 2 for place in range(7)]


def test_mixed_moves_are_means_of_those_nearest() -> None:
    new = mixed(MOVES, FAULTY)
    for row, move in zip(new, MOVES, strict=True):
        order = sorted(MOVES.tolist(), key=lambda one: float(((one - move) ** 2).sum()))
        assert np.allclose(row, np.mean(order[: AGENTS - FAULTY], axis=0))


@pytest.mark.parametrize("fold", [trimmed, median, centred_clipping])
def test_one_move_of_any_size_moves_the_mean_no_farther_than_the_others_spread(fold: Any) -> None:
    spread = np.ptp(MOVES, axis=0).max() * np.sqrt(MOVES.shape[1])
    for size in (10.0, 1e6, 1e150):
        moves = MOVES.copy()
        moves[3] = size
        new, _ = fold(moves, FAULTY)
        assert np.isfinite(new).all()
        assert np.linalg.norm(new.mean(axis=0) - MOVES.mean(axis=0)) <= 2 * spread


# ------------------------------------------------------------------ a round


class Sent(Observer):
    """Keeps what agents sent, and what the server knows of each, after every round."""

    def __init__(self) -> None:
        self.uploads: dict[int, NDArray[Any]] = {}
        self.rounds: list[tuple[dict[int, NDArray[Any]], NDArray[Any]]] = []
        self.held: list[list[dict[str, NDArray[Any]]]] = []

    def on_begin(self, run: Any) -> None:
        run.session.look = self._look

    def _look(self, block: Block) -> None:
        ((_, rows),) = block.upload.items()
        self.uploads |= dict(zip(block.positions.tolist(), rows.copy(), strict=True))

    def on_round(self, run: Any, done: Any) -> str | None:
        self.rounds.append((self.uploads, run.half.model(run.session.state).copy()))
        self.uploads = {}
        state, names = run.session.state, run.session.roster.names
        held = [
            run.half.recovery_of(state, place, run.session.start) for place in range(len(names))
        ]
        self.held.append([{key: array.copy() for key, array in one.items()} for one in held])
        return None


@pytest.mark.parametrize("mixing", [False, True])
@pytest.mark.parametrize("fold", [trimmed, median, centred_clipping])
def test_the_largest_numbers_there_are_move_no_fold(fold: Any, mixing: bool) -> None:
    """Two that are wrong may have a sum, a square or a distance that no float64 is."""
    honest = np.abs(MOVES).max() * np.sqrt(MOVES.shape[1])
    for size in (1e150, 1e200, 1.7e308):
        for signs in ((1, 1), (-1, -1), (1, -1)):
            for places in ((0, 1), (2, 5), (5, 6)):
                moves = MOVES.copy()
                moves[list(places)] = size * np.array(signs)[:, None]
                with np.errstate(over="ignore", invalid="ignore"):  # as RobustFold does
                    before = mixed(moves, FAULTY) if mixing else moves
                    values, _ = fold(before, FAULTY)
                assert np.abs(values).max() <= 3.0 * honest


@pytest.mark.parametrize("rule", ["trimmed", "median"])
def test_the_step_of_averaging_is_the_aggregate_of_what_was_sent(rule: str) -> None:
    problems, sent = logistic_federation(AGENTS), Sent()
    made = strategy("dp-fedavg", robust=rule, **ON)
    made.start(grid_of("dp-fedavg", problems), start(4), num_rounds=3, observers=[sent])
    before = np.zeros(4)
    for uploads, model in sent.rounds:
        moves = np.array([uploads[place] for place in range(AGENTS)])
        share = FAULTY / AGENTS + 1e-9 if rule == "trimmed" else 0.499
        assert np.allclose(model - before, trim_mean(moves, share, axis=0))
        before = model


@pytest.mark.parametrize("rule", ["trimmed", "centred-clipping"])
@pytest.mark.parametrize("name", sorted(STATEFUL))
def test_agents_go_on_from_the_state_that_follows_what_was_folded(name: str, rule: str) -> None:
    problems, sent = logistic_federation(AGENTS), Sent()
    grid = attacked_grid(name, problems, WRONG, ATTACKS["scaled"])
    made = strategy(name, robust=rule, **ON)
    found = made.start(grid, start(4), num_rounds=4, observers=[sent])
    assert [done.failures for done in found.history] == [{}] * 4  # digests are compared
    assert not any("was sent its state" in note for done in found.history for note in done.notes)
    differs = 0
    for agent, new in agent_states(grid).items():
        place = made.session.roster.positions[agent]
        for key, array in sent.held[-2][place].items():
            (base,) = _base(grid, agent, key)
            assert np.array_equal(base, array)
        known = sent.held[-1][place]
        differs += any(not np.array_equal(new[key], array) for key, array in known.items())
    assert differs >= len(WRONG)  # the last upload of these was folded otherwise, too


def _base(grid: Any, agent: str, key: str) -> list[NDArray[Any]]:
    """Return what an agent began its last round from."""
    return [
        unpack(read_state(context).states[0])[key]
        for context in grid.contexts.values()
        if str(context.node_config["partition-id"]) == agent
    ]


def test_without_a_robust_fold_the_uploads_are_the_same_object() -> None:
    uploads = Uploads.of(Block(np.arange(2), {"x": np.zeros((2, 3))}, {}))
    half: Any = None
    assert RobustFold().folded(half, None, uploads) is uploads


def test_statistics_of_buffers_are_their_median() -> None:
    rows = [np.array([1.0, 5.0], np.float32), np.array([2.0, 6.0]), np.array([1e6, -1e6])]
    session = Session.of("e", start(2))
    session.statistics = rows[0]
    session.average(rows)
    assert np.allclose(session.statistics, [1000003 / 3, -999989 / 3])
    made = strategy("dp-fedavg", robust="trimmed", faulty=1, min_agents=3)
    session.robust.settings = made.options
    session.average(rows)
    assert session.statistics.tolist() == [2.0, 5.0]


def test_too_few_uploads_to_tell_end_the_run_with_what_to_set() -> None:
    made = strategy("dp-fedavg", robust="trimmed", faulty=2, min_agents=5)
    expected = r"a round has 4 uploads, of which faulty = 2 may be wrong: set min-agents = 5"
    uploads = Uploads.of(Block(np.arange(4), {"u": np.zeros((4, 3))}, {}))
    with pytest.raises(RunError, match=expected):
        RobustFold(made.options).folded(made.half, None, uploads)


# ------------------------------------------------------------------ the promises


PROMISED = (
    "absent_agents_are_not_waited_for",
    "engines_agree_to_the_bit",
    "lost_reply_is_an_absence",
    "order_of_nodes_changes_nothing",
    "resumed_run_is_the_uninterrupted_one",
    "run_goes_on_when_all_nodes_restart",
    "uploads_tell_only_what_was_noised",
)


@pytest.mark.parametrize("rule", ["trimmed", "centred-clipping"])
@pytest.mark.parametrize("name", ["fed-pdm", "fed-plt", "scaffold"])
def test_a_robust_run_keeps_what_every_algorithm_promises(name: str, rule: str) -> None:
    settings = {"robust": rule, "faulty": 1, "min-agents": 3}
    settings |= {"dual": "public"} if name == "fed-pdm" else {}
    private = {"local-solver": "noisy-gd"} if name == "fed-plt" else {}
    found = checks(name, settings=settings, private=private or None)
    for check in found:
        if check.name in PROMISED:
            check()


# ------------------------------------------------------------------ limits and attacks


def sites(count: int, dim: int = 4, apart: float = 0.2) -> list[BinaryLogistic]:
    """Return sites whose coefficients differ by this standard deviation."""
    rng, found = np.random.default_rng([61, count]), []
    truth = rng.standard_normal(dim)
    for _ in range(count):
        features = rng.standard_normal((80, dim))
        own = truth + rng.normal(0, apart, dim)
        labels = np.where(rng.random(80) < 1 / (1 + np.exp(-features @ own)), 1.0, -1.0)
        found.append(BinaryLogistic(features, labels, regularizer=L2(0.05)))
    return found


def optimum(problems: Any) -> NDArray[Any]:
    """Return the minimiser of the mean objective, by scipy."""
    found = minimize(
        lambda x: float(np.mean([one.value(x) for one in problems])),
        np.zeros(problems[0].dim),
        jac=lambda x: np.mean([one.gradient(x) for one in problems], axis=0),
        tol=1e-10,
    )
    return np.asarray(found.x)


@pytest.mark.parametrize(
    "name",
    [
        *("fed-pdm", "fed-plt", "scaffold"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("fed-dyn", "fed-split")),
    ],
)
def test_clipping_leaves_honest_runs_of_these_methods_nearer_to_their_limit(name: str) -> None:
    problems = sites(AGENTS)
    best = optimum(problems)
    far = {}
    for rule in ("trimmed", "centred-clipping"):
        found, _, _ = play(name, problems, 100, **ON, robust=rule)
        far[rule] = np.linalg.norm(found.arrays["x"].numpy() - best) / np.linalg.norm(best)
    assert far["centred-clipping"] < min(0.02, far["trimmed"])
    assert far["trimmed"] < 0.2


@pytest.mark.parametrize("attack", sorted(ATTACKS))
@pytest.mark.parametrize("rule", ["trimmed", "median", "centred-clipping"])
@pytest.mark.parametrize("name", sorted(ROBUST))
def test_every_robust_method_is_played_against_every_attack(
    name: str, rule: str, attack: str
) -> None:
    if rule == "median" and name in STATEFUL:
        pytest.skip("refused by name")
    problems = sites(11)
    right = [one for place, one in enumerate(problems) if place not in WRONG]
    target = optimum(right)
    keys = {**ON, "robust": rule}
    found, _, _ = play(name, problems, 20, ATTACKS[attack], **keys)
    error = np.linalg.norm(found.arrays["x"].numpy() - target)
    assert [done.failures for done in found.history] == [{}] * 20
    # No attack takes the model farther from there than the start is.
    assert error < np.linalg.norm(target)


def test_scaled_uploads_move_a_plain_run_without_bound() -> None:
    problems = sites(11)
    plain, _, _ = play("fed-plt", problems, 20, ATTACKS["scaled"])
    assert np.linalg.norm(plain.arrays["x"].numpy()) > 1e6


# ------------------------------------------------------------------ what is refused


def test_the_page_names_the_algorithms_that_take_it() -> None:
    page = (ROOT / "docs" / "how-to" / "robust.md").read_text()
    rows = page.partition("| method | folds |")[2].partition("All others refuse it")[0]
    named = set(re.findall(r"`([a-z-]+)`", rows)) & set(algorithms())
    assert named == {*ROBUST, "fed-split"}


@pytest.mark.parametrize("name", EVERY_ALGORITHM)
def test_every_other_algorithm_refuses_it_by_name(name: str) -> None:
    load = algorithm(name).load_strategy()
    dual = {"dual": "public"} if name == "fed-pdm" else {}
    units = {"units": 1} if name == "gfl" else {}
    if name in (*ROBUST, "fed-split"):
        assert load(robust="trimmed", min_agents=3, **dual, **units).options.robust == "trimmed"
    else:
        with pytest.raises(ConfigError, match=f"robust = trimmed: not with {name}: "):
            load(robust="trimmed", min_agents=3)


@pytest.mark.parametrize(
    ("name", "keys", "line"),
    [
        ("fed-plt", {"secure_sum": True}, "not with secure-sum, whose server sees no upload"),
        ("dp-fedavg", {"secure_sum": True}, "not with secure-sum, whose server sees no upload"),
        ("scaffold", {"asynchronous": True}, "not with a run that folds uploads as they come"),
        ("fed-plt", {"acceleration": "quasi-newton"}, "not with acceleration = quasi-newton"),
        ("fed-pdm", {"dual": "private"}, "not with dual = private"),
        ("fed-pdm", {"sparsifier": "rand-k", "uplink_k": 2}, "not with sparsifier = rand-k"),
        ("scaffold", {"robust": "median"}, "robust = median: not with scaffold, whose agents"),
        ("fed-plt", {"robust_mixing": True}, "robust-mixing: not with fed-plt, whose agents keep"),
        ("dp-fedavg", {"min_agents": 2}, r"min-agents = 2: robust = trimmed .* needs 3 at least"),
        ("dp-fedavg", {"num_agents": 4, "faulty": 2, "min_agents": 4}, "num-agents = 4: robust"),
        (
            "dp-fedavg",
            {"num_agents": 10, "participation": Fraction(0.2)},
            "participation: 2 agents in a round: robust",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, keys: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        strategy(name, **{"robust": "trimmed", "min_agents": 3, **keys})


def test_a_server_optimizer_takes_the_robust_step() -> None:
    problems = sites(AGENTS)
    keys = {**ON, "robust": "trimmed", "server_optimizer": "momentum", "server_momentum": 0.0}
    stepped, _, _ = play("dp-fedavg", problems, 4, ATTACKS["scaled"], **keys)
    plain, _, _ = play("dp-fedavg", problems, 4, ATTACKS["scaled"], **ON, robust="trimmed")
    assert np.allclose(stepped.arrays["x"].numpy(), plain.arrays["x"].numpy())
    keys |= {"server_optimizer": "adam", "server_learning_rate": 0.1}
    assert np.isfinite(
        play("dp-fedavg", problems, 9, ATTACKS["scaled"], **keys)[0].arrays["x"].numpy()
    ).all()
