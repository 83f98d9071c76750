"""The study of wrong sites: a gradient, rounds of Flower's, a run, and the page."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from scipy.optimize import approx_fprime
from scipy.stats import chi2

from privet.testing.attacks import ATTACKS, Attack
from results import robust
from results.robust import Perceptron, dealt, flower, play, width
from support.paths import ROOT


def test_the_gradient_of_the_network_is_that_of_finite_differences() -> None:
    rng, sizes = np.random.default_rng(61), (5, 4, 3, 2)
    problem = Perceptron(rng.standard_normal((7, 5)), rng.integers(0, 2, 7), sizes)
    x = rng.standard_normal(width(sizes))
    expected = approx_fprime(x, problem.value, 1e-7)
    assert np.allclose(problem.gradient(x), expected, atol=1e-5)


def test_a_round_of_flowers_averaging_is_the_mean_of_what_sites_send() -> None:
    held = dealt("logistic", "iid", 11, 0)
    step, ends = 0.1, []
    for place, problem in enumerate(held.problems):
        w = held.start.copy()
        for _ in range(robust.STEPS):
            w = w - step * problem.gradient(w)
        factor = 10.0 if place in held.wrong else 1.0
        ends.append(held.start + factor * (w - held.start))
    found = flower(FedAvg(), held.problems, held.wrong, ATTACKS["scaled"], held.start, 1, step)
    assert np.allclose(found, np.mean(ends, axis=0))


def test_without_wrong_sites_flowers_averaging_and_ours_are_alike() -> None:
    held = dealt("softmax", "iid", 11, 1)
    plain = flower(FedAvg(), held.problems, held.wrong, Attack("none"), held.start, 3, 0.5)
    method = robust._ours(robust.DPFedAvg, "dp-fedavg", **robust.STEPPED)
    model, _ = robust.ours(method, held, Attack("none"), 3, 0.5)
    assert np.allclose(model, plain)


def test_a_run_says_its_accuracy_and_whom_it_named() -> None:
    done = play(
        task="logistic", split="iid", sites=11, method="Fed-PLT, clipped", attack="scaled",
        seed=0, step=0.3, part="test",
    )  # fmt: skip
    assert 0.5 < done["accuracy"] <= 1
    assert 0 < done["found"] <= 5


def test_folds_of_honest_moves_are_as_far_from_their_mean_as_their_definitions_say() -> None:
    run = {"task": "logistic", "split": "dirichlet", "sites": 11, "seed": 2}
    done = robust.play_honest(**run, part=robust.HONEST)
    held, made = dealt("logistic", "dirichlet", 11, 2), robust.TASKS["logistic"]
    x, errors = held.start, []
    for _ in range(made.rounds):
        moves = np.array(robust.local_moves(held.problems, x, made.step))
        near = np.array([moves[np.argsort(((moves - m) ** 2).sum(1))[:9]].mean(0) for m in moves])
        mean = moves.mean(axis=0)
        spread = ((moves - mean) ** 2).sum() / 11
        ends = [np.sort(one, axis=0)[2:-2].mean(axis=0) for one in (moves, near)]
        errors.append([((one - mean) ** 2).sum() / spread for one in ends])
        x = x + mean
    assert [done["trimmed"], done["mixed"]] == pytest.approx(np.mean(errors, axis=0), abs=1e-5)


def test_a_run_of_a_loud_attack_says_by_how_many_errors_the_model_moved() -> None:
    none = robust.play_loud(task=robust.APART, method="FedAvg", attack="none", seed=3)
    assert (none["found"], none["blamed"], none["moved"]) == (0, 0, 0.0)
    done = robust.play_loud(task=robust.APART, method="FedAvg", attack="flipped", seed=3)
    assert 0 < done["found"] <= robust.EARLY
    problems = robust.differing_sites(11, 3)
    start, sent = np.zeros(8), robust.LOUD["flipped"]
    x, y = (
        robust.ours(
            robust.DEFAULTS["FedAvg"],
            robust.Dealt(problems, frozenset({2, 7}), {}, 2, start), how, robust.LOUD_ROUNDS, 0.0,
        )[0]
        for how in (Attack("none"), sent)
    )  # fmt: skip
    # The pooled Hessian, column by column, of the summed gradients without their l2 terms.
    slopes = [
        sum(len(one.labels) * (one.gradient(x + e) - one.gradient(x - e)) for one in problems)
        / 2e-5
        for e in 1e-5 * np.eye(8)
    ]
    rows = sum(len(one.labels) for one in problems)
    information = np.array(slopes) - 0.01 * rows * np.eye(8)
    assert done["moved"] == pytest.approx((y - x) @ information @ (y - x), abs=0.02)


def test_what_the_page_says_of_other_units_is_what_the_runs_say() -> None:
    page = " ".join((ROOT / "docs/results/robust.md").read_text().split())
    said = re.search(
        r"Of (\d+) runs with other units (\d+) moved the model by more than the noise, and most of "
        r"the others are named too: at Fed-PLT's defaults all by round ten, with FedAvg, .*?, "
        r"(\d+) of (\d+) with tenths, in round ten",
        page,
    )
    assert said is not None
    lines = map(json.loads, (ROOT / "docs/results/robust.jsonl").read_text().splitlines())
    runs = [one for one in lines if str(one["run"].get("attack")).startswith("units")]
    still = [one for one in runs if one["moved"] < chi2.ppf(0.95, 8)]
    assert sum(one["found"] > 0 for one in still) > len(still) / 2

    def found(method: str, attack: str) -> list[int]:
        own = [one for one in runs if one["run"]["method"] == method]
        return [one["found"] for one in own if one["run"]["attack"].endswith(attack)]

    assert all(0 < one <= 10 for one in found("Fed-PLT", "s"))
    tenths = found("FedAvg", "tenths")
    assert [one for one in tenths if one] == [10]
    counts = (len(runs), len(runs) - len(still), sum(one > 0 for one in tenths), len(tenths))
    assert tuple(map(int, said.groups())) == counts


def test_the_page_is_what_the_runs_say(tmp_path: Path) -> None:
    for name in ("robust.md", "robust.jsonl"):
        shutil.copy(ROOT / "docs/results" / name, tmp_path)
    robust.main([str(tmp_path), "--write"])
    assert (tmp_path / "robust.md").read_text() == (ROOT / "docs/results/robust.md").read_text()
