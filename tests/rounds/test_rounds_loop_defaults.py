"""Open settings of a run around training loops follow from the step that these state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message

from privet.agents.loop_defaults import MOMENTUM_KAPPA, SPLITTING_KAPPA
from privet.client_apps import LoopParticipant
from privet.core import ConfigError, RunError
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn, FedPDM, FedPLT, PrimalDualStrategy, Scaffold

AGENTS, STEPS = 8, 10
START = ArrayRecord({"w": Array(np.zeros(2))})


def grid(step: Any, curvature: float = 1.0, **options: Any) -> InlineGrid:
    """Return agents that minimise c ||w - t_i||^2 / 2, t_i = (i, i), with steps of their own."""
    weights = {"w": np.zeros(2)}
    participant = LoopParticipant(None, weights, lambda context: 5, step_size=step, **options)
    app = participant.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        target = float(context.node_config["partition-id"])
        own = step if isinstance(step, float) and step else 0.1 / curvature
        with participant.round(message, context, weights) as local:
            for _ in range(local.steps):
                gradients = {"w": curvature * (weights["w"] - target)}
                local.correct(weights, gradients)
                weights["w"] -= own * gradients["w"]
        return local.reply()

    return InlineGrid(app, AGENTS)


def begun(strategy: PrimalDualStrategy, step: Any = 0.3) -> dict[str, Any]:
    strategy.begin(grid(step), START)
    return dict(strategy.run.half.settings())


def test_penalties_are_kappa_over_the_length_of_a_round() -> None:
    own = {"max_local_steps": STEPS, "num_agents": AGENTS}
    dyn, pdm = begun(FedDyn(**own)), begun(FedPDM(**own))
    assert dyn["fed-dyn-alpha"] == pdm["rho"] == pytest.approx(MOMENTUM_KAPPA / (STEPS * 0.3))
    assert dyn["step-size-base"] == pdm["step-size-base"] == 0.3
    plt = begun(FedPLT(local_epochs=STEPS, num_agents=AGENTS))
    assert plt["rho"] == pytest.approx(STEPS * 0.3 / SPLITTING_KAPPA)
    assert (plt["relaxation"], plt["step-size"]) == (1.0, 0.3)
    assert begun(Scaffold(num_agents=AGENTS))["step-size-base"] == 0.3


def test_relaxation_and_rho_follow_the_share_that_takes_part() -> None:
    plt = begun(FedPLT(local_epochs=STEPS, num_agents=AGENTS, fraction_train=0.25))
    assert plt["relaxation"] == 4.0
    assert plt["rho"] == pytest.approx(STEPS * 0.3 / (SPLITTING_KAPPA * 0.25))


def test_what_is_given_stays() -> None:
    assert begun(FedPLT(rho=2.0, relaxation=0.5, num_agents=AGENTS))["rho"] == 2.0
    assert begun(FedPLT(relaxation=0.5, num_agents=AGENTS))["relaxation"] == 0.5
    assert begun(FedDyn(fed_dyn_alpha=0.7, num_agents=AGENTS))["fed-dyn-alpha"] == 0.7


def test_the_run_takes_the_median_of_what_the_agents_state() -> None:
    def own(context: Context) -> float:
        number = int(context.node_config["partition-id"])
        return 0.0 if number == 0 else 0.1 * number

    assert begun(FedDyn(num_agents=AGENTS), own)["step-size-base"] == pytest.approx(0.4)


def test_a_run_whose_agents_state_no_step_has_the_defaults_it_had() -> None:
    settings = begun(FedDyn(num_agents=AGENTS), 0.0)
    assert (settings["fed-dyn-alpha"], settings["step-size-base"]) == (0.1, 0.1)


@pytest.mark.parametrize("kind", [FedDyn, FedPDM, FedPLT])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_loss_times_a_hundred_with_a_hundredth_of_the_step_has_the_same_run(
    kind: Any, share: float
) -> None:
    ends = []
    for curvature in (1.0, 100.0):
        strategy = kind(num_agents=AGENTS, fraction_train=share, seed=3)
        result = strategy.start(grid(0.1 / curvature, curvature), START, num_rounds=12)
        ends.append(result.arrays["w"].numpy())
    assert np.abs(ends[0]).max() > 1.0
    assert np.allclose(ends[0], ends[1], rtol=1e-9)


@pytest.mark.parametrize(("share", "rounds"), [(1.0, 250), (0.25, 600)])
def test_fed_plts_limit_is_exact_whatever_share_takes_part(share: float, rounds: int) -> None:
    strategy = FedPLT(num_agents=AGENTS, fraction_train=share)
    result = strategy.start(grid(0.1), START, num_rounds=rounds, log_rounds=False)
    assert np.allclose(result.arrays["w"].numpy(), np.mean(range(AGENTS)), atol=1e-6)


def test_where_most_are_absent_fed_plts_model_is_the_mean_of_those_that_came() -> None:
    strategy, agents = FedPLT(num_agents=AGENTS, fraction_train=0.25), grid(0.1)
    strategy.begin(agents, START)
    for number in (1, 2, 3):
        done = strategy.play_round(agents, number)
        rows = strategy.run.session.roster.positions
        came = strategy.run.session.state.x[[rows[name] for name in done.participants]]
        assert np.allclose(strategy.run.models()["last"], came.mean(axis=0), atol=1e-12)
        assert np.array_equal(strategy.run.models()["last"], strategy.run.model)


def test_private_agents_state_no_step() -> None:
    strategy = FedDyn(clip=1.0, noise_scale=1.0, num_agents=AGENTS)
    strategy.begin(grid(0.3), START)
    agents = strategy.run.session.roster.agents.values()
    assert len(agents) == AGENTS
    assert not any(one.step_size for one in agents)


@pytest.mark.parametrize("step", [-0.1, float("inf"), float("nan")])
def test_a_step_that_is_no_length_is_refused(step: float) -> None:
    with pytest.raises((ConfigError, RunError), match="step_size is"):
        FedDyn(num_agents=AGENTS, patience=0.0, wait_timeout=1.0).begin(grid(step), START)


def test_a_measured_step_is_the_rate_of_plain_sgd_and_longer_with_momentum() -> None:
    torch = pytest.importorskip("torch")
    from privet.client_apps import measured_step

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    batches = [(torch.randn(16, 4), torch.randint(2, (16,))) for _ in range(20)]

    def loss(net: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(net(batch[0]), batch[1])

    before = [one.detach().clone() for one in model.parameters()]

    def step(make: Any) -> float:
        return measured_step(model, make, loss, batches)

    assert step(lambda p: torch.optim.SGD(p, lr=0.05)) == pytest.approx(0.05, rel=1e-4)
    heavy = step(lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5))
    assert 0.05 < heavy <= 0.1
    adam = [step(lambda p, lr=lr: torch.optim.Adam(p, lr=lr)) for lr in (1e-3, 2e-3)]
    assert adam[1] == pytest.approx(2 * adam[0], rel=0.2)
    assert all(map(torch.equal, before, model.parameters()))
    with pytest.raises(ConfigError, match="measured_step: the gradients"):
        measured_step(model, lambda p: torch.optim.SGD(p, lr=0.1), loss, [])
