"""Sites whose moves are not like the others' are named: how many honest ones, and which attacks."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from scipy.stats import chi2

from privet.core import algorithm as algorithms_by_name
from privet.data.agreement import Agreement
from privet.data.meaning import Meaning
from privet.rounds import Run
from privet.rounds.flower import base
from privet.rounds.observers import Observer
from privet.rounds.odd_sites import (
    FEWEST,
    LEVEL,
    ODD,
    OddSites,
    _parameter,
    critical,
    excess,
    look_at,
    odd_sites,
)
from privet.rounds.session import Round
from privet.server_apps import read_config
from privet.server_apps.execute import bad_ends, headline
from privet.server_apps.report import write_report
from privet.sim.inline import grid_of, run_inline
from privet.strategies import DPFedAvg, FedPDM, FedPLT, Scaffold
from privet.testing.attacks import (
    ATTACKS,
    Attack,
    attacked_grid,
    differing_sites,
    other_units,
    scaled,
)
from privet.wire import Layout
from support.every_algorithm import EVERY_ALGORITHM
from support.federations import bits

DIM = 8
WRONG = {5: (2,), 11: (2, 7), 20: (1, 5, 9, 16)}
SUMMARY: dict[str, Any] = {
    **dict.fromkeys(("private", "privacy", "run-folder"), ""),
    **dict.fromkeys(("rounds", "bytes-up", "bytes-down"), 0),
}
STRATEGIES: dict[str, Any] = {
    "fed-plt": lambda count: FedPLT(num_agents=count),
    "fed-plt as printed": lambda count: FedPLT(1.0, num_agents=count),
    "dp-fedavg": lambda count: DPFedAvg(num_agents=count),
    "scaffold": lambda count: Scaffold(num_agents=count),
}


def play(
    name: str,
    problems: Sequence[Any],
    attack: Attack | None = None,
    rounds: int = 5,
    **options: Any,
) -> Any:
    count, algorithm = len(problems), name.partition(" ")[0]
    grid = grid_of(algorithm, problems)
    if attack is not None:
        grid = attacked_grid(algorithm, problems, WRONG[count], attack)
    start = ArrayRecord({"x": Array(np.zeros(DIM))})
    return STRATEGIES[name](count).start(grid, start, num_rounds=rounds, **options)


# ------------------------------------------------------------------ the numbers


def test_a_look_has_distance_and_direction_by_their_definitions() -> None:
    moves = np.array([[1.0, 2], [2, 2], [3, 2], [2, 5], [-2, -2]])
    looks = look_at(moves)
    middle = np.array([2.0, 2.0])
    distances = [1.0, 0.0, 1.0, 3.0, np.sqrt(32)]
    for look, move, distance in zip(looks, moves, distances, strict=True):
        assert look.distance == pytest.approx(distance)
        assert np.allclose(look.gap, (move - middle) / 1.0)  # the median distance is 1
        assert look.along == pytest.approx(move @ middle / 8)
    # Along: .75, 1, 1.25, 1.75, -1; the bulk are the four nearest to 1: gaps 0, .25, .25, .75.
    spread = np.sqrt((0 + 0.25**2 + 0.25**2 + 0.75**2) / 4)
    assert looks[4].opposed == pytest.approx(2.0 / spread)


def test_excess_upwards_is_from_the_mean_of_the_lowest_three_quarters() -> None:
    values = np.array([1.0, 2, 3, 10, 4, 5, 6, 30])
    low = np.array([1.0, 2, 3, 4, 5, 6])
    expected = (values - low.mean()) / low.std(ddof=1)
    assert np.allclose(excess(values, "far"), expected)


def test_moves_that_are_all_the_same_show_nothing() -> None:
    assert look_at(np.ones((6, 3))) == []


@pytest.mark.parametrize("kind", ["far", "against"])
@pytest.mark.parametrize(("count", "level"), [(4, 0.0125), (11, 0.0125), (20, 0.0125), (11, 4e-4)])
def test_normal_numbers_exceed_the_critical_value_as_often_as_stated(
    count: int, level: float, kind: Any
) -> None:
    rng, draws = np.random.default_rng(99), int(200 / level)
    over = 0
    for _ in range(10):
        values = np.sort(rng.normal(3.0, 7.0, (draws // 10, count)), axis=1)
        bulk = count - max(1, count // 4)
        if kind == "far":
            low = values[:, :bulk]
            largest = (values[:, -1] - low.mean(axis=1)) / low.std(axis=1, ddof=1)
        else:
            middle = np.median(values, axis=1)
            gaps = np.sort(np.abs(values - middle[:, None]), axis=1)[:, :bulk]
            largest = (middle - values[:, 0]) / np.sqrt((gaps**2).mean(axis=1))
        over += int((largest > critical(count, level, kind)).sum())
    # 200 are expected, +-14 by these draws; the critical value is of few draws itself.
    assert 130 < over < 300


@pytest.mark.parametrize(("first", "named"), [(5.0, set()), (0.2, {"4"})])
def test_a_direction_counts_only_while_the_median_site_moves(first: float, named: set[str]) -> None:
    own = 0.1 * np.random.default_rng(5).standard_normal((11, 6))
    own -= np.median(own, axis=0)
    own[:, 0] *= 0.1
    names = tuple(str(place) for place in range(11))
    roster = SimpleNamespace(names=names, excluded=set())
    run: Any = SimpleNamespace(session=SimpleNamespace(roster=roster, amend=lambda notes: None))
    watch = OddSites()
    for number, length in enumerate([first, *[0.2] * 8], 1):
        moves = own.copy()
        moves[:, 0] += length
        if number > 1:
            moves[4, 0] = -length
        watch._moves = dict(enumerate(moves))
        watch.on_round(run, Round(number, names))
    assert watch.named == named


def test_gradients_of_quadratics_change_as_fast_as_their_curvature_says() -> None:
    watch, points = OddSites(), np.random.default_rng(1).standard_normal((4, 3))
    for place, curvature in enumerate([1.0, 1.5, 7.0]):
        watch.told[str(place)] = deque((one, curvature * one) for one in points)
    secants = watch._secants(["0", "1", "2"])
    assert np.allclose(secants, np.array([1.0, 1.5, 7.0])[:, None] / 1.5)
    watch.told["3"] = deque([(points[0], points[0])] * 2)
    assert not watch._secants(["0", "3"]).size  # one change


def test_the_secant_of_a_column_in_other_units_goes_with_their_square() -> None:
    watch, rng = OddSites(), np.random.default_rng(2)
    curvature, points = np.diag([1.0, 2.0, 3.0]) + 0.1, rng.standard_normal((4, 3))
    for place, factor in enumerate([1.0, 1.0, 1.0, 10.0]):
        units = np.array([1.0, factor, 1.0])
        held = units[:, None] * curvature * units
        watch.told[str(place)] = deque((one / units, held @ (one / units)) for one in points)
    secants = watch._secants(["0", "1", "2", "3"])
    assert np.allclose(secants[:3], 1.0)
    gradients, moves = np.diff(points @ curvature, axis=0), np.diff(points, axis=0)
    moved, turned = np.square(moves).sum(axis=0), np.square(gradients).sum(axis=0)
    plain = (turned[1] + turned.mean() / 100) / (moved[1] + moved.mean() / 100)
    moved[1], turned[1] = moved[1] / 100, 100 * turned[1]
    scaled = (turned[1] + turned.mean() / 100) / (moved[1] + moved.mean() / 100)
    assert secants[3, 1] == pytest.approx(np.sqrt(scaled / plain))
    assert secants[3, 1] > 30
    assert max(secants[3, 0], secants[3, 2]) < 6


@pytest.mark.parametrize(
    ("algorithm", "keys", "error"),
    [
        ("fed-plt", {"local_solver": "gd", "rho": 1.0, "local_epochs": 400}, 1e-6),
        ("fed-plt", {}, 1e-3),  # accelerated, of a few Newton steps
        ("fed-dyn", {"step_size_base": 0.3, "max_local_steps": 400}, 1e-3),
        ("scaffold", {"step_size_base": 1e-9}, 1e-6),
        ("dp-fedsgd", {}, 1e-6),
    ],
)
def test_what_an_upload_tells_is_the_gradient_of_the_site(
    algorithm: str, keys: dict[str, Any], error: float
) -> None:
    class Look(OddSites):
        def on_round(self, run: Run, done: Round) -> str | None:
            for place, (point, slope) in self._told.items():
                gaps.append(np.linalg.norm(slope - problems[place].gradient(point)))
            return super().on_round(run, done)

    gaps: list[Any] = []
    problems = differing_sites(5, 8)
    load = algorithms_by_name(algorithm).load_strategy()
    start = ArrayRecord({"x": Array(np.zeros(DIM))})
    load(num_agents=5, **keys).start(
        grid_of(algorithm, problems), start, num_rounds=3, observers=[Look()]
    )
    assert len(gaps) == 15
    assert max(gaps) < error


@pytest.mark.parametrize(
    ("columns", "place", "said"),
    [
        ({"age": {}, "weight": {}}, 1, "column weight"),
        ({"age": {}, "weight": {}}, 2, "the intercept"),
        ({"age": {}, "sex": {"categories": ["f", "m"]}}, 1, "parameter 2 of 3"),
        ({}, 0, "parameter 1 of 3"),
    ],
)
def test_the_column_of_a_parameter_is_named_where_it_is_known(
    columns: dict[str, Any], place: int, said: str
) -> None:
    text = Meaning(columns).text if columns else ""
    layout = Layout.of_floats(ArrayRecord({"x": Array(np.zeros(3))}))
    session = SimpleNamespace(encoding=Agreement(text), layout=layout)
    run: Any = SimpleNamespace(session=session)
    assert _parameter(run, place) == said


# ------------------------------------------------------------------ honest runs


def honest(count: int) -> int:
    """Return in how many honest runs of 25 rounds somebody is named."""
    named = 0
    for seed in range(count):
        kind = seed % 4
        name = ("fed-plt", "dp-fedavg", "scaffold")[seed % 3]
        skew, apart = (0.3 if kind == 3 else 0.0), (0.2, 0.4, 0.6, 0.2)[kind]
        size = (5, 11, 20)[seed // 4 % 3]
        named += bool(
            play(name, differing_sites(size, 1000 + seed, apart, skew), rounds=25).odd_sites
        )
    return named


def test_of_a_few_honest_heterogeneous_runs_hardly_any_names_somebody() -> None:
    assert honest(24) <= 3


@pytest.mark.slow
def test_of_200_honest_heterogeneous_runs_16_at_most_name_somebody() -> None:
    assert honest(200) <= 16  # the 95 % upper end of a binomial of 5 %


def test_among_fewer_than_four_sites_nobody_is_named() -> None:
    problems = differing_sites(3, 1)
    start = ArrayRecord({"x": Array(np.zeros(DIM))})
    for count in (3, FEWEST - 1):
        grid = attacked_grid("dp-fedavg", problems[:count], {1}, Attack("far", move=scaled(1e6)))
        found = DPFedAvg(num_agents=count).start(grid, start, num_rounds=3)
        assert found.odd_sites == {}


# ------------------------------------------------------------------ attacks


LOUD = {
    **{name: attack for name, attack in ATTACKS.items() if attack.loud},
    "units": Attack("units", problem=other_units(column=1)),  # column 0 is the intercept
    "units, hundredths": Attack("units", problem=other_units(100.0, column=1)),
}


@pytest.mark.parametrize("attack", sorted(LOUD))
def test_loud_attacks_are_named_within_five_rounds_in_nine_of_ten_runs(attack: str) -> None:
    named = 0
    for seed in range(10):
        found = play("fed-plt as printed", differing_sites(11, seed), LOUD[attack])
        named += bool({str(place) for place in WRONG[11]} & found.odd_sites.keys())
    assert named >= 9


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["labels", "units, hundredths", "scaled", "flipped"])
@pytest.mark.parametrize("name", ["dp-fedavg", "scaffold"])
def test_loud_attacks_are_named_in_runs_whose_uploads_are_moves(name: str, attack: str) -> None:
    named = 0
    for seed in range(10):
        found = play(name, differing_sites(20, seed), LOUD[attack])
        named += bool({str(place) for place in WRONG[20]} & found.odd_sites.keys())
    assert named >= 9


def squared_errors(problems: Sequence[Any], x: Any, away: Any) -> float:
    """Return (away - x)^T H (away - x) with H the pooled Fisher information of the rows at x."""
    features = np.concatenate([one.features for one in problems])
    chance = 1 / (1 + np.exp(-features @ x))
    scores = features @ (away - x)
    return float((chance * (1 - chance)) @ scores**2)


@pytest.mark.slow
@pytest.mark.parametrize("attack", sorted(LOUD.keys() - {"dual"}))  # agents keep none there
def test_at_the_defaults_loud_attacks_that_move_the_model_by_more_than_noise_are_named(
    attack: str,
) -> None:
    named = []
    for seed in range(20):
        problems = differing_sites(11, seed)
        (x, _), (away, early) = (
            (found.arrays["x"].numpy(), [n for d in found.history[:5] for n in d.notes])
            for found in (play("fed-plt", problems, how, rounds=10) for how in (None, LOUD[attack]))
        )
        if not squared_errors(problems, x, away) < chi2.ppf(0.95, DIM):
            wrong = [f"{ODD}{place}:" for place in WRONG[11]]
            named.append(any(note.startswith(tuple(wrong)) for note in early))
    assert len(named) >= 4
    assert sum(named) >= 0.9 * len(named)


class LateAttack(Observer):
    """Turns an honest federation's site wrong after a round."""

    def __init__(self, grid: Any, after: int) -> None:
        self.grid, self.after = grid, after

    def on_round(self, run: Any, done: Round) -> str | None:
        if done.round == self.after:
            self.grid.switch["on"] = True
        return None


def test_a_site_that_turns_wrong_in_a_run_that_has_converged_is_named_since_then() -> None:
    problems, switch = differing_sites(11, 3), {"on": False}
    late = Attack("late", move=lambda seen: 10.0 + seen.own if switch["on"] else seen.own)
    grid: Any = attacked_grid("fed-plt", problems, {4}, late)
    grid.switch = switch
    start = ArrayRecord({"x": Array(np.zeros(DIM))})
    found = FedPLT(num_agents=11).start(
        grid, start, num_rounds=18, observers=[LateAttack(grid, after=12)]
    )
    assert list(found.odd_sites) == ["4"]
    assert found.odd_sites["4"].startswith("since round 13 ")


# ------------------------------------------------------------------ where it is said


def test_a_site_is_named_once_in_log_history_and_result_with_exclude(
    caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    problems = differing_sites(5, 4)
    nodes = [{"agent": name} for name in ("north", "hill, old", "east", "west", "south")]
    attack = Attack("far", move=scaled(-30.0))
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        grid = attacked_grid("dp-fedavg", problems, {1}, attack, nodes)
        start = ArrayRecord({"x": Array(np.zeros(DIM))})
        strategy = DPFedAvg(num_agents=5)
        found = strategy.start(grid, start, num_rounds=6, checkpoint=tmp_path / "checkpoint.npz")
    (line,) = [one.getMessage() for one in caplog.records if ODD in one.getMessage()]
    assert line.startswith("not like the others: agent hill, old: since round 1 it moves against")
    assert line.endswith(r"or leave it out: exclude=hill\, old")
    notes = [note for done in found.history for note in done.notes if note.startswith(ODD)]
    assert [f"{ODD}{name}: {why}" for name, why in found.odd_sites.items()] == notes
    assert list(found.odd_sites) == ["hill, old"]
    assert ("not like the others", f"agent hill, old: {found.odd_sites['hill, old']}") in (
        found._rows()
    )

    summary = {**SUMMARY, **bad_ends(strategy.run)}
    assert summary["odd-sites"] == found.odd_sites
    said = headline(summary)["not like the others"]
    assert said == f"agent hill, old: {found.odd_sites['hill, old']}"

    grid = attacked_grid("dp-fedavg", problems, {1}, attack, nodes)
    again = DPFedAvg(num_agents=5).start(
        grid, start, num_rounds=12, resume=tmp_path / "checkpoint.npz"
    )
    assert again.odd_sites == found.odd_sites


def test_the_report_names_the_site_of_a_run(tmp_path: Any) -> None:
    line = Round(1, ("a", "<b>"), notes=(f"{ODD}<b>: since round 1 it moves against them",))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "history.jsonl").write_text(json.dumps(line.to_dict()) + "\n")
    page = write_report([folder], tmp_path / "report.html").read_text()
    assert "Agent &lt;b&gt; is not like the others: since round 1 it moves against them" in page


def test_watching_costs_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = differing_sites(11, 5)
    watched = play("fed-plt", problems, ATTACKS["scaled"], rounds=4)
    monkeypatch.setattr(base, "OddSites", Observer)
    plain = play("fed-plt", problems, ATTACKS["scaled"], rounds=4)
    assert watched.odd_sites
    assert not plain.odd_sites
    assert bits(watched) == bits(plain)


def test_a_server_of_secure_sums_sees_no_upload_and_names_nobody() -> None:
    problems = differing_sites(11, 6)
    problems[3] = ATTACKS["units"].problem(problems[3])
    seen: list[Any] = []

    class Look(OddSites):
        def _note(self, run: Any, block: Any) -> None:
            seen.append(block)

    start = ArrayRecord({"x": Array(np.zeros(DIM))})
    found = FedPLT(num_agents=11, secure_sum=True).start(
        grid_of("fed-plt", problems), start, num_rounds=3, observers=[Look()]
    )
    assert (found.odd_sites, seen) == ({}, [])


@pytest.mark.parametrize("bits", ["0", "8"])
@pytest.mark.parametrize(("sparsifier", "looked"), [("none", 11), ("top-k", 0)])
def test_agents_that_send_coordinates_of_their_own_are_not_compared(
    sparsifier: str, looked: int, bits: str
) -> None:
    class Look(OddSites):
        def on_round(self, run: Any, done: Round) -> str | None:
            seen.append(len(self._moves))
            return super().on_round(run, done)

    seen: list[int] = []
    problems, keys = differing_sites(11, 7), {"uplink-k": 3} if looked == 0 else {}
    config = {"algorithm": "fed-pdm", "num-agents": 11, "sparsifier": sparsifier, **keys}
    strategy = FedPDM.from_config(read_config({**config, "value-bits": bits}))
    strategy.start(
        grid_of("fed-pdm", problems),
        ArrayRecord({"x": Array(np.zeros(DIM))}),
        num_rounds=2,
        observers=[Look()],
    )
    assert seen == [looked] * 2


@pytest.mark.parametrize("name", EVERY_ALGORITHM)
def test_uploads_of_every_algorithm_are_compared(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    seen: list[int] = []
    plain = OddSites.on_round

    def on_round(self: OddSites, run: Any, done: Round) -> str | None:
        seen.append(len(self._moves))
        return plain(self, run, done)

    monkeypatch.setattr(OddSites, "on_round", on_round)
    units = {"units": 2} if name == "gfl" else {}
    config = {"algorithm": name, "dataset": "synthetic", "num-agents": 6, "features": 4}
    run_inline({**config, **units, "num-server-rounds": 2, "output-dir": str(tmp_path)}, "run")
    assert seen == [6, 6]


def test_notes_give_sites_whatever_their_names() -> None:
    notes = (f"{ODD}a: b: since round 3 it moves", "agent c joined")
    assert odd_sites([Round(3, (), notes=notes)]) == {"a: b": "since round 3 it moves"}


def test_the_levels_of_all_rounds_add_up_to_what_is_stated() -> None:
    parts = np.arange(1, 200_000, dtype=float)
    assert 3 * (LEVEL / (3 * parts * (parts + 1))).sum() == pytest.approx(LEVEL, rel=1e-4)


def test_one_against_sites_that_are_all_alike_has_a_mean_over_rounds() -> None:
    """The spread of the others is the smallest number, and twice its inverse is no number."""
    moves = np.array([[1.0, 0.1], [1.0, -0.1], [1.0, 0.2], [1.0, -0.2], [-1.0, 0.0]])
    looks = [look_at(moves)[-1] for _ in range(5)]
    with np.errstate(over="raise"):
        assert np.mean([one.opposed for one in looks]) >= 1e299
