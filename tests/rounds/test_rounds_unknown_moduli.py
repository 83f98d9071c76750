"""What is left open is settled when the agents have said whether they know their moduli."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context

from privet.client_apps import CallableProblem, client_app
from privet.core import ConfigError
from privet.kernel import Moduli
from privet.problems import L2, RidgeRegression
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn, FedPDM, FedPLT, PrimalDualStrategy
from support.federations import app_of

AGENTS, ROWS, DIM = 3, 8, 2
rng = np.random.default_rng(5)
TARGETS = rng.standard_normal((AGENTS, DIM))
RIDGES = [
    RidgeRegression(
        rng.standard_normal((ROWS, DIM)), rng.standard_normal(ROWS), regularizer=L2(0.1)
    )
    for _ in range(AGENTS)
]


def quadratic(position: int, moduli: Moduli | None = None) -> CallableProblem:
    """Return ||x - t||^2 / 2 as two functions."""
    target = TARGETS[position]

    def each(x: Any, rows: Any) -> Any:
        return np.tile(x - target, (len(rows), 1))

    return CallableProblem(
        lambda x: float((x - target) @ (x - target)) / 2,
        lambda x: x - target,
        DIM,
        ROWS,
        moduli=moduli,
        per_example_gradient=each,
    )


def begun(strategy: PrimalDualStrategy, problem: Any) -> dict[str, Any]:
    """Return the agents' settings of a run that has begun."""
    name = strategy.half.name
    app = client_app(name, lambda context: problem(int(context.node_config["partition-id"])))
    strategy.begin(InlineGrid(app, AGENTS), ArrayRecord({"x": Array(np.zeros(DIM))}))
    return dict(strategy.run.half.settings())


USUAL = {
    FedPLT: {"local-solver": "newton", "acceleration": "quasi-newton", "local-start": "own"},
    FedPDM: {"rho": 1.0, "step-size-base": 0.04, "step-size-rule": "inverse-sqrt"},
    FedDyn: {"step-size-base": 0.04, "step-size-rule": "inverse-sqrt"},
}
UNKNOWN = {
    FedPLT: {"rho": 10.0, "local-start": "model"},
    FedPDM: {"rho": 0.1, "step-size-base": 0.1, "step-size-rule": "constant"},
    FedDyn: {"step-size-base": 0.1, "step-size-rule": "constant"},
}


@pytest.mark.parametrize("kind", USUAL)
def test_defaults_follow_from_what_the_agents_know(kind: Any) -> None:
    assert USUAL[kind].items() <= begun(kind(), RIDGES.__getitem__).items()
    given = begun(kind(), lambda position: quadratic(position, Moduli(1.0, 1.0)))
    assert USUAL[kind].items() <= given.items()
    assert UNKNOWN[kind].items() <= begun(kind(), quadratic).items()


def test_fed_plt_returns_the_mean_of_the_agents_models() -> None:
    strategy = FedPLT(num_agents=AGENTS)
    begun(strategy, quadratic)
    app = client_app("fed-plt", lambda context: quadratic(int(context.node_config["partition-id"])))
    strategy.play_round(InlineGrid(app, AGENTS), 1)
    models = strategy.run.models()
    assert np.array_equal(models["last"], strategy.run.session.state.x.mean(axis=0))
    assert not np.array_equal(models["last"], strategy.run.session.state.center)
    known = FedPLT(num_agents=AGENTS)
    begun(known, RIDGES.__getitem__)
    assert known.run.model is known.run.session.state.center


def test_one_agent_that_knows_its_moduli_is_enough() -> None:
    def problem(position: int) -> Any:
        return RIDGES[0] if position == 1 else quadratic(position)

    assert USUAL[FedPDM].items() <= begun(FedPDM(), problem).items()


def test_what_is_given_stays() -> None:
    given = FedPDM(rho=1.0, step_size_base=0.04, step_size_rule="inverse-sqrt")
    assert USUAL[FedPDM].items() <= begun(given, quadratic).items()


def test_a_private_run_keeps_what_its_noise_is_planned_for() -> None:
    private = FedPDM(preset="private", clip=1.0, noise_scale=0.5)
    settings = begun(private, quadratic)
    assert (settings["rho"], settings["step-size-base"]) == (1.0, 0.5)


def test_fed_plt_finds_a_step_without_moduli_and_agd_does_not() -> None:
    def result(strategy: FedPLT) -> Any:
        def problem(context: Context) -> CallableProblem:
            return quadratic(int(context.node_config["partition-id"]))

        grid = InlineGrid(client_app("fed-plt", problem), AGENTS)
        start = ArrayRecord({"x": Array(np.zeros(DIM))})
        return strategy.start(grid, start, num_rounds=60)

    found = result(FedPLT(num_agents=AGENTS))
    assert np.allclose(found.arrays["x"].numpy(), TARGETS.mean(axis=0), atol=1e-6)
    with pytest.raises(Exception, match="agd needs smoothness"):
        result(FedPLT(num_agents=AGENTS, local_solver="agd", min_agents=1))


def test_dense_fed_pdm_is_fed_dyn() -> None:
    penalty, step, steps = 0.4, 0.05, 3
    pdm: dict[str, Any] = {"step_size_base": step, "step_size_rule": "constant"}
    pdm["max_local_steps"] = steps
    runs = {
        "fed-pdm": FedPDM(rho=penalty, **pdm),
        "fed-dyn": FedDyn(fed_dyn_alpha=penalty, **pdm),
    }
    ends = []
    for name, strategy in runs.items():
        app = app_of(RIDGES, name)
        start = ArrayRecord({"x": Array(np.ones(DIM))})
        ends.append(strategy.start(InlineGrid(app, AGENTS), start, num_rounds=7).arrays["x"])
    first, other = (end.numpy() for end in ends)
    assert np.abs(first - 1).max() > 0.1
    assert np.allclose(other, first, rtol=0, atol=1e-12)


def test_fed_plt_started_at_the_model_has_the_same_limit() -> None:
    app = app_of(RIDGES)
    start = ArrayRecord({"x": Array(np.ones(DIM))})
    ends = [
        FedPLT(rho=1.0, local_start=begin).start(InlineGrid(app, AGENTS), start, num_rounds=300)
        for begin in ("own", "model")
    ]
    own, model = (end.arrays["x"].numpy() for end in ends)
    assert np.allclose(model, own, rtol=0, atol=1e-9)
    slope = sum(problem.gradient(model) for problem in RIDGES)
    assert np.abs(slope).max() < 1e-9


def test_a_choice_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="local-start = 'here': choose one of auto, own, model"):
        FedPLT(local_start="here")


def test_the_header_of_a_run_says_what_is_settled_later(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        FedPLT().summary()
        assert "rho: 3.0, or 10.0 where no agent knows its moduli" in caplog.text
        caplog.clear()
        FedPLT(rho=3.0).summary()
        FedPLT(local_solver="noisy-gd", clip=1.0, noise_variance=1.0).summary()
        FedDyn().summary()
    assert caplog.text.count("rho: 3.0\n") == 2, "given, and kept by a private run"
    assert "fed-dyn-alpha: 0.1\n" in caplog.text, "the same either way"
