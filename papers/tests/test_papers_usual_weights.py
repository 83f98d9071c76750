"""Rounds to the pooled optimum at scikit-learn's weights: a quick run, measures and the page."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from privet.problems.stacks import Observed
from privet.sim.race import GivenUp
from results import usual_weights
from results.usual_weights import METHODS, OURS, WORK, Course, instance, local_steps, stacked
from studies.runs import Runs

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize(
    "methods",
    [
        pytest.param([OURS, "FedAvg"], id="two"),
        pytest.param(list(METHODS), id="all", marks=pytest.mark.slow),
    ],
)
def test_the_quick_run_arrives_with_fed_plt_and_not_with_fed_avg(
    methods: list[str], tmp_path: Path
) -> None:
    shutil.copy(RESULTS / "usual-weights.md", tmp_path)
    chosen = [word for method in methods for word in ("--method", method)]
    command = [str(tmp_path), str(tmp_path), "--size", "quick", *chosen]
    usual_weights.main(command)
    file = tmp_path / "usual-weights.jsonl"
    done = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(done) == 2 * len(methods)
    for one in done:
        if one["run"]["method"] == OURS:
            assert one["distance"] <= 1e-6
            assert one["rounds"] == sorted(one["rounds"])
            assert one["rounds"][-1] == one["played"] <= 30
        else:
            assert one["trials"] >= usual_weights.TRIALS
            assert one["rounds"][-1] is None
        if one["run"]["method"] == "FedAvg":
            assert one["distance"] > 1e-2
            assert one["rounds"] == [None, None, None]
    assert "| iris | label | 1 | " in (tmp_path / "usual-weights.md").read_text()
    before = file.read_text()
    usual_weights.main(command)
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("task", "c"), [("breast-cancer", 0.1), ("breast-cancer", 10.0), ("iris", 1.0)]
)
def test_the_reference_is_scikit_learns_fit_of_the_pooled_rows(
    task: str, c: float, tmp_path: Path
) -> None:
    cell = instance(tmp_path, task, "dirichlet .3", c)
    rows = np.concatenate([one.features for one in cell.problems])
    labels = np.concatenate([one.labels for one in cell.problems])
    solver = "newton-cholesky" if task == "breast-cancer" else "lbfgs"
    fit = LogisticRegression(C=c, solver=solver, tol=1e-12, max_iter=10_000).fit(
        rows[:, :-1], labels
    )
    theirs = np.vstack([fit.coef_.T, fit.intercept_]).ravel()
    assert np.linalg.norm(cell.optimum - theirs) < 1e-6 * np.linalg.norm(theirs)
    assert len(rows) == {"breast-cancer": 455, "iris": 0.8 * len(load_iris().data)}[task]


@pytest.mark.parametrize("name", [name for name in METHODS if name != OURS])
def test_every_rival_takes_as_many_local_gradients(name: str, tmp_path: Path) -> None:
    cell, method, count = instance(tmp_path, "breast-cancer", "label", 1.0), METHODS[name], 0

    def seen(x: Any) -> None:
        nonlocal count
        count += 1

    watched = [Observed(problem, seen) for problem in cell.problems]
    counted = usual_weights.Instance(watched, cell.optimum, cell.moduli, cell.config)
    course = usual_weights.run(counted, method, method.start(cell.moduli) / 10, 4)
    assert len(course.distances) == 4
    assert count == 4 * len(watched) * WORK


def test_steps_of_fed_avg_are_those_of_the_pooled_objective(tmp_path: Path) -> None:
    cell, step = instance(tmp_path, "breast-cancer", "dirichlet .3", 1.0), 1e-9
    sizes = np.array([one.num_examples for one in cell.problems])

    def mean_move(x: Any) -> Any:
        moves = [(local_steps(one, x, step, 0.0) - x) / (step * WORK) for one in cell.problems]
        return np.average(moves, axis=0, weights=sizes)

    slope = np.sum([one.gradient(np.zeros(31)) for one in cell.problems], axis=0)
    np.testing.assert_allclose(mean_move(np.zeros(31)), -slope / len(sizes), rtol=1e-4, atol=1e-6)
    assert np.linalg.norm(mean_move(cell.optimum)) < 1e-5


def test_agents_in_a_stack_take_the_steps_that_they_take_alone(tmp_path: Path) -> None:
    sizes = []
    for task, partition in product(("iris", "breast-cancer", "diabetes"), ("iid", "dirichlet .3")):
        cell = instance(tmp_path, task, partition, 1.0)
        x, step = np.linspace(-1.0, 1.0, cell.optimum.size), 0.1 / cell.moduli.smoothness
        ends = {}
        for places, some in stacked(cell.problems):
            sizes.append(len(places))
            start = np.tile(x, (len(places), 1)) if len(places) > 1 else x
            ends |= zip(places, np.atleast_2d(local_steps(some, start, step, 0.3)), strict=True)
        assert sorted(ends) == list(range(len(cell.problems)))
        for place, problem in enumerate(cell.problems):
            assert ends[place].tobytes() == local_steps(problem, x, step, 0.3).tobytes()
    assert max(sizes) == 10
    assert min(sizes) == 1


@pytest.mark.parametrize("name", ["FedLin", "LED"])
def test_a_setting_is_not_played_longer_than_the_quickest_that_arrived(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = {"size": "full", "task": "breast-cancer", "partition": "label", "c": 0.01}
    courses: list[Course] = []

    def watched(*given: Any) -> Course:
        courses.append(run(*given))
        return courses[-1]

    run = usual_weights.run
    monkeypatch.setattr(usual_weights, "run", watched)
    done = usual_weights.play(tmp_path, **cell, method=name)
    quickest = 200
    for course in courses:
        assert len(course.distances) <= quickest
        if course.reached(1e-6):
            quickest = len(course.distances)
    assert any(not course.reached(1e-6) for course in courses)
    assert quickest == done["rounds"][-1] == done["played"]
    kept = Runs(RESULTS / "usual-weights.jsonl")(**cell, method=name)
    assert {key: done[key] for key in kept.keys() - {"run", "seconds"}} == {
        key: kept[key] for key in kept.keys() - {"run", "seconds"}
    }


def test_a_course_ends_where_it_is_decided() -> None:
    best = np.array([3.0, 4.0])
    course = Course(best)
    for away, sent in ((5.0, 1e6), (0.04, 2e6), (0.0006, 3e6)):
        course.add(best + np.array([away, 0.0]), sent)
    assert course.reached(1e-2) == (2, 2.0)
    assert course.reached(1e-3) == (3, 3.0)
    assert course.reached(1e-4) is None
    assert course.score(10) == pytest.approx(0.00012)
    with pytest.raises(GivenUp):
        course.add(best, 4e6)
    assert course.score(10) == pytest.approx(0.4e-6)
    away = Course(best)
    with pytest.raises(GivenUp):
        away.add(best * np.nan, 1e6)
    assert away.diverged
    assert away.score(10) > usual_weights.DIVERGED


def test_a_run_that_stands_still_is_ended_and_a_slow_one_is_not() -> None:
    best, slow = np.ones(1), Course(np.ones(1))
    for number in range(200):
        slow.add(best * (1.0 + 0.5 * 0.9999**number), 1e6)
    standing, number = Course(best), 0
    with suppress(GivenUp):
        while number < 200:
            standing.add(best * (1.3 + 0.5**number), 1e6)
            number += 1
    assert 20 < number < 40
    assert not standing.diverged
    assert standing.score(200) == pytest.approx(0.3, rel=1e-4)


def _played(rounds: list[int | None], distance: float | None) -> dict[str, Any]:
    sizes = [one and 0.1 * one for one in rounds]
    return {
        "rounds": rounds, "megabytes": sizes, "distance": distance, "chosen": {}, "inside": True,
    }  # fmt: skip


def test_a_rival_that_is_quicker_is_named_and_cells_not_played_are_counted() -> None:
    behind = {name: _played([None] * 3, 0.3) for name in METHODS}
    cell = ("wine", "iid", 1.0)
    quicker = behind | {OURS: _played([5, 9, 20], 1e-7), "LED": _played([4, 8, 10], 1e-7)}
    slower = quicker | {"LED": _played([4, 8, 30], 1e-7)}
    alone = {OURS: _played([5, 9, 20], 1e-7)}
    text = "\n".join(usual_weights.finding({cell: quicker, ("iris", "iid", 1.0): alone}))
    assert "wine, iid, C = 1 (LED: 10 rounds, Fed-PLT: 20 rounds)" in text
    assert "Fed-PLT in 88 of 90 cells, its rivals in 89" in text
    assert "quicker" not in "\n".join(usual_weights.finding({cell: slower}))
    rows = "\n".join(usual_weights.summary({cell: quicker, ("iris", "iid", 1.0): alone}))
    assert "| wine | iid | 1 | 5 (0.5 MB) | 9 (0.9 MB) | 20 (2 MB) |" in rows
    assert "| LED | 10 (1 MB) | 3.0e-01 |" in rows
    assert "| iris | iid | 1 | 5 (0.5 MB) | 9 (0.9 MB) | 20 (2 MB) | not run yet |" in rows


def test_the_page_is_that_of_its_runs() -> None:
    found = usual_weights.measured(Runs(RESULTS / "usual-weights.jsonl"), "full")
    text = (RESULTS / "usual-weights.md").read_text()
    for name in ("finding", "summary", "tables"):
        part = text.split(f"<!-- begin {name} -->")[1].split(f"<!-- end {name} -->")[0]
        assert part.strip() == "\n".join(getattr(usual_weights, name)(found)).strip()
