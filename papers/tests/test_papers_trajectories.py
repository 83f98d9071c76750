"""Our models beside another library's: ours by the methods' own lines, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from results.marked import fill
from results.trajectories import AGENTS, PAGE, ROUNDS, difference, ours, schedule_of, work_of

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_our_scaffold_is_that_of_its_few_lines_with_half_present() -> None:
    """S. P. Karimireddy et al., 2020, Algorithm 1, option II."""
    work, schedule = work_of(), schedule_of("half")
    model, own = work.start.copy(), np.zeros((AGENTS, work.start.size))
    common, after = own.mean(axis=0), []
    for row in schedule:
        moves, changes = [], []
        for agent in np.flatnonzero(row):
            features, labels = work.features[agent], work.labels[agent]
            x = model.copy()
            for _ in range(work.epochs):
                chance = 1 / (1 + np.exp(-features @ x))
                gradient = features.T @ (chance - labels) / len(labels) + work.l2 * x
                x -= work.step_size * (gradient - own[agent] + common)
            new = own[agent] - common + (model - x) / (work.epochs * work.step_size)
            moves.append(x - model)
            changes.append(new - own[agent])
            own[agent] = new
        model = model + np.mean(moves, axis=0)
        common = common + np.sum(changes, axis=0) / AGENTS
        after.append(model)
    found = ours(work, schedule)
    assert found["SCAFFOLD"].shape == (ROUNDS, work.start.size)
    np.testing.assert_allclose(found["SCAFFOLD"], after, atol=1e-13)
    assert "FedPD" not in found


def test_a_difference_names_the_first_round_that_has_it() -> None:
    mine = np.cumsum(np.ones((6, 2)), axis=0)
    other = mine.copy()
    assert difference("SCAFFOLD", mine, other) == "0e+00"
    other[3, 1] += 0.5
    assert difference("SCAFFOLD", mine, other) == "5e-01, from round 4 on"
    later = np.vstack([np.zeros((1, 2)), mine])
    assert difference("Fed-PLT", mine, later[:6]) == "0e+00"


def test_the_page_has_a_place_for_the_table(tmp_path: Path) -> None:
    page = tmp_path / PAGE
    page.write_text((RESULTS / PAGE).read_text())
    fill(page, "table", ["here"])
    assert "\nhere\n" in page.read_text()
    assert "from round" not in (RESULTS / PAGE).read_text().partition("<!-- end")[0]
