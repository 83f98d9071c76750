"""Calibration: the total it was asked for, reached from below and not wastefully."""

from __future__ import annotations

import math

import pytest

from privet.privacy import (
    Release,
    Veto,
    account,
    calibrate,
    dp_iadmm_release,
    epsilon_rdp,
    fed_pdm_certificate,
    fed_plt_release,
    gfl_release,
)
from privet.privacy.mechanisms import gaussian_scale

DELTA = 1e-5


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("count", [1, 300])
def test_gaussian_multiplier_is_the_analytic_one(epsilon: float, count: int) -> None:
    """`count` Gaussians are one Gaussian of sqrt(count) times the sensitivity."""
    found = calibrate.noise_multiplier(epsilon=epsilon, delta=DELTA, count=count)
    assert found == pytest.approx(gaussian_scale(epsilon, DELTA) * math.sqrt(count), rel=1e-5)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("accountant", ["smaller", "rdp"])
def test_target_is_met_from_below_and_closely(mechanism: str, accountant: str) -> None:
    norm = "l1" if mechanism == "laplace" else "l2"

    def cost(multiplier: float) -> float:
        releases = [Release(mechanism=mechanism, scale=multiplier, norm=norm, count=200)]
        return (
            epsilon_rdp(releases, DELTA)
            if accountant == "rdp"
            else account(releases, DELTA).epsilon
        )

    found = calibrate.noise_multiplier(
        epsilon=3.0, delta=DELTA, count=200, mechanism=mechanism, accountant=accountant
    )
    assert cost(found) <= 3.0 < cost(found * (1 - 3e-4))


def test_totals_of_the_account_are_inverted() -> None:
    found = calibrate.noise_multiplier(
        epsilon=53.703, delta=DELTA, count=20000, mechanism="laplace"
    )
    assert found == pytest.approx(20.0, rel=1e-3)


def test_every_algorithm_reaches_its_target() -> None:
    target = {"epsilon": 2.0, "delta": DELTA, "rounds": 40}
    plt = {"clip": 1.0, "num_examples": 500, "step_size": 0.3, "local_steps": 5,
           "contraction": 0.8}  # fmt: skip
    tau = calibrate.fed_plt_tau(**target, **plt)
    assert reached([fed_plt_release(**plt, tau=tau)] * 40) == pytest.approx(2.0, rel=1e-4)

    for mechanism in ("gaussian", "laplace"):
        iadmm = {"clip": 0.5, "num_examples": 1000, "local_updates": 10, "mechanism": mechanism}
        scale = calibrate.dp_iadmm_noise_scale(**target, **iadmm)
        total = reached([dp_iadmm_release(**iadmm, noise_scale=scale)] * 40)
        assert total == pytest.approx(2.0, rel=1e-3)

        gfl = {"clip": 0.5, "step_size": 0.1, "mechanism": mechanism}
        scale = calibrate.gfl_noise_scale(**target, **gfl)
        rounds = [gfl_release(**gfl, noise_scale=scale, round_number=j) for j in range(1, 41)]
        assert reached(rounds) == pytest.approx(2.0, rel=1e-2 if mechanism == "laplace" else 1e-4)

    sensitivities = [
        fed_pdm_certificate(
            clipping="example", clip=1.0, rho=1.0, step_size=0.5 / math.sqrt(1 + t),
            local_steps=1, batch_size=100,
        ).sensitivity
        for t in range(40)
    ]  # fmt: skip
    sigma = calibrate.fed_pdm_noise_scale(sensitivities, epsilon=2.0, delta=DELTA)
    releases = [Release(mechanism="gaussian", scale=sigma, sensitivity=s) for s in sensitivities]
    assert reached(releases) == pytest.approx(2.0, rel=1e-4)
    # Equal composition of unequal sensitivities: the root of their sum of squares.
    norm = math.sqrt(sum(s * s for s in sensitivities))
    assert sigma == pytest.approx(gaussian_scale(2.0, DELTA, sensitivity=norm), rel=1e-5)


def reached(releases: list[Release]) -> float:
    epsilon = account(releases, DELTA).epsilon
    assert epsilon <= 2.0
    return epsilon


def test_rdp_calibration_passes_the_veto_for_all_rounds(tmp_path) -> None:
    """The reported total is smaller still; noise calibrated for the report stops early."""
    rounds, budget = 12, 1.0
    granted = {}
    for accountant in ("rdp", "smaller"):
        guard = Veto.from_node_config(
            {"max-epsilon": budget, "delta": DELTA,
             "ledger-path": str(tmp_path / f"{accountant}.jsonl")}
        )  # fmt: skip
        assert guard is not None
        multiplier = calibrate.noise_multiplier(
            epsilon=budget, delta=DELTA, count=rounds, accountant=accountant
        )
        granted[accountant] = 0
        for _ in range(rounds):
            try:
                guard.authorise(
                    Release(mechanism="gaussian", scale=multiplier), noise_seeded=False,
                    explicit_noise=False, data_dependent_sensitivity=False, clip=1.0,
                )  # fmt: skip
            except ValueError:
                break
            granted[accountant] += 1
    assert granted["rdp"] == rounds
    assert granted["smaller"] < rounds


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: calibrate.noise_multiplier(epsilon=0.0, delta=DELTA, count=1), "epsilon"),
        (lambda: calibrate.noise_multiplier(epsilon=1.0, delta=0.0, count=1), "delta"),
        (lambda: calibrate.noise_multiplier(epsilon=1.0, delta=DELTA, count=0), "count"),
        (
            lambda: calibrate.noise_multiplier(epsilon=1.0, delta=DELTA, count=1, accountant="pld"),
            "accountant",
        ),
        (lambda: calibrate.fed_pdm_noise_scale([], epsilon=1.0, delta=DELTA), "sensitivities"),
        (
            lambda: calibrate.fed_pdm_noise_scale([0.0], epsilon=1.0, delta=DELTA),
            "no noise is needed",
        ),
        (
            lambda: calibrate.noise_scale(
                lambda scale: [Release(mechanism="none")], epsilon=1.0, delta=DELTA
            ),
            "un-noised",
        ),
    ],
)
def test_bad_requests_are_refused(call, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        call()
