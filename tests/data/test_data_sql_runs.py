"""Runs on cohorts of a database: the bits of files, nodes that are left out, and their ledgers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from privet.client_apps import SklearnProblem, TorchProblem, client_app
from privet.data import load, problem_from_context, table_from_context
from privet.data.sql.cohorts import cohort_of
from privet.kernel import Told
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT
from support.cohorts import QUERY, cohorts, database, node
from support.sites import NAMES, SCHEMA, nodes, rows, table, train, turned_away

SITES = [rows(60, 1), rows(45, 2), rows(70, 3)]


def sql_nodes(folder: Path, **keys: Any) -> list[dict[str, Any]]:
    """Return the configs of three nodes, each with a database of its own that has a schema."""
    configs = nodes(folder, [table(one) for one in SITES], [SCHEMA] * 3, dataset="sql", **keys)
    for config, name, columns in zip(configs, NAMES, SITES, strict=False):
        site = folder / f"of-{name}"
        site.mkdir()
        database(site / "site.db", columns)
        config |= {"data-path": str(cohorts(site)), "state-path": str(site / "state")}
    return configs


def run(configs: list[dict[str, Any]], rounds: int = 3, **options: Any) -> FedPLT:
    """Return the strategy of a run that names the cohort ``stroke``, and no other data."""
    strategy = FedPLT(num_agents=3, min_agents=1, **options)
    app = client_app("fed-plt", problem_from_context)
    grid = InlineGrid(app, configs, {"cohort": "stroke"})
    start = ArrayRecord({"x": Array(np.zeros(4))})
    strategy.start(grid, start, num_rounds=rounds, log_rounds=False)
    return strategy


def test_a_run_on_databases_has_the_bits_of_one_on_files(tmp_path: Path) -> None:
    of_files, _ = train(nodes(tmp_path / "files", [table(one) for one in SITES], [SCHEMA] * 3))
    configs = [{**one, "cohort": "stroke"} for one in sql_nodes(tmp_path)]
    of_databases, strategy = train(configs)
    np.testing.assert_array_equal(of_databases, of_files)
    assert turned_away(strategy) == []
    mixed, _ = train([*nodes(tmp_path / "both", [table(SITES[0])], [SCHEMA]), *configs[1:]])
    np.testing.assert_array_equal(mixed, of_files)


def test_a_node_whose_database_is_away_is_absent_and_back_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configs = sql_nodes(tmp_path)
    away = Path(configs[1]["data-path"]).with_name("site.db")
    away.rename(away.with_suffix(".away"))
    strategy = run(configs)
    assert turned_away(strategy) == [f"agent graz: {Told.DATABASE}"]
    (line,) = [one for one in caplog.messages if "unable to open database file" in one]
    file = configs[1]["data-path"]  # a site's own log names its file and cohort
    assert line == f"agent graz: DataError: {file}: cohort stroke: unable to open database file"
    away.with_suffix(".away").rename(away)
    assert turned_away(run(configs)) == []


def test_a_cohort_that_a_node_does_not_have_is_told_by_a_fixed_text(tmp_path: Path) -> None:
    configs = sql_nodes(tmp_path)
    file = Path(configs[2]["data-path"])
    file.write_text(file.read_text().replace("stroke", "secret-study"))
    assert turned_away(run(configs)) == [f"agent linz: {Told.COHORT}"]


BUDGET = {"max-epsilon": 90.0, "delta": 1e-3}


def private(configs: list[dict[str, Any]], rounds: int) -> FedPLT:
    options = {"local_solver": "noisy-gd", "local_epochs": 2, "clip": 1.0, "row_norm": 2.0}
    return run(configs, rounds, noise_variance=50.0, delta=1e-3, **options)


def test_a_ledger_says_of_which_query_and_how_many_rows(tmp_path: Path) -> None:
    configs = sql_nodes(tmp_path, **BUDGET, **{"row-norm": 2.0})
    ledgers = [tmp_path / f"{one['agent']}.jsonl" for one in configs]
    configs = [
        {**one, "ledger-path": str(ledger)} for one, ledger in zip(configs, ledgers, strict=True)
    ]
    away = Path(configs[1]["data-path"]).with_name("site.db")
    away.rename(away.with_suffix(".away"))
    strategy = private(configs, 2)
    assert turned_away(strategy) == [f"agent graz: {Told.DATABASE}"]
    assert not ledgers[1].exists()  # nothing is charged that was not used
    digest = cohort_of(configs[0]["data-path"], "stroke").digest
    for place, count in ((0, 60), (2, 70)):
        lines = [json.loads(line)["note"] for line in ledgers[place].read_text().splitlines()]
        assert len(lines) == 2
        end = f"agent {NAMES[place]} cohort stroke query {digest} rows {count}"
        assert all(re.fullmatch(rf"run \d+ round [12] {end}", line) for line in lines)
    from support.cli import privet

    _, out, _ = privet("ledger", ledgers[0], "--json")
    assert json.loads(out)["runs"][0]["agents"] == ["bern"]


def test_adapters_take_the_rows_of_a_cohort(tmp_path: Path) -> None:
    """At the model 0 the gradient of the mean logistic loss is X'(1/2 - y) / n."""
    torch: Any = pytest.importorskip("torch", reason="needs the group torch")
    linear_model = pytest.importorskip("sklearn.linear_model")
    database(tmp_path / "site.db", SITES[0])
    frame = table_from_context(node(cohorts(tmp_path))).frame
    features = np.column_stack([frame.numbers["age"], frame.numbers["sodium"]])
    labels = frame.numbers["died"].astype(np.int64)
    own = np.column_stack([SITES[0]["age"], SITES[0]["sodium"], np.ones(60)])
    expected = own.T @ (0.5 - np.array(SITES[0]["died"], float)) / 60

    def loss(scores: Any, targets: Any) -> Any:
        return torch.nn.functional.binary_cross_entropy_with_logits(scores[:, 0], targets)

    module = torch.nn.Linear(2, 1, dtype=torch.float64)
    tensors = torch.tensor(features), torch.tensor(labels.astype(float))
    for problem in (
        TorchProblem(module, loss, tensors),
        SklearnProblem(linear_model.LogisticRegression(), features, labels),
    ):
        np.testing.assert_allclose(problem.gradient(np.zeros(3)), expected, rtol=1e-9)


def test_rows_of_one_person_are_dealt_and_held_out_together(tmp_path: Path) -> None:
    columns = rows(80, 1)
    database(tmp_path / "site.db", columns)
    query = QUERY.replace("age,", "id / 4 as person, age,")
    more = 'person-column = "person"\ndrop-columns = "ward"\nlabel-column = "died"'
    dataset = load("sql", data_path=cohorts(tmp_path, query, more), cohort="stroke")
    assert dataset.train_persons is not None
    sizes = np.unique(dataset.train_persons, return_counts=True)[1]
    assert sizes.tolist() == [4] * 16  # of 20 persons a fifth is held out
