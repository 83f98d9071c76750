"""Sensitivities and certificates by hand-computed numbers, and everything that is refused."""

from __future__ import annotations

import math

import pytest

from privet.privacy import (
    NoCertificateError,
    as_printed,
    check_sparsifier,
    dp_iadmm_release,
    fed_pdm_certificate,
    fed_pdm_release,
    fed_plt_contraction,
    fed_plt_release,
    gfl_release,
    gfl_sensitivity,
)

PLT = {"step_size": 0.5, "strong_convexity": 0.1, "smoothness": 1.1, "rho": 2.0}
PDM = {"clipping": "example", "clip": 1.0, "rho": 0.5, "step_size": 1.0, "local_steps": 1,
       "batch_size": 10}  # fmt: skip


def test_fed_plt_contraction_by_hand() -> None:
    assert fed_plt_contraction(loss="logistic", **PLT) == pytest.approx(1 - 0.5 * 0.6)
    assert fed_plt_contraction(loss="ridge", **{**PLT, "step_size": 1.2}) == pytest.approx(
        abs(1 - 1.2 * 1.6)
    )
    assert fed_plt_contraction(loss="multinomial", **PLT) == 1.0
    # A step beyond 2 / (L + 1/rho) expands; composition of the steps still holds.
    assert fed_plt_contraction(loss="logistic", **{**PLT, "step_size": 2.0}) == 1.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"loss": "nonconvex"}, "loss 'nonconvex'"),
        ({"loss": "auto"}, "loss 'auto'"),
        ({"regularizer": "nonconvex"}, "nonconvex regulariser"),
        ({"solver": "agd"}, "solver 'agd'"),
        ({"solver": "gd"}, "solver 'gd'"),
        ({"solver": "sgd"}, "solver 'sgd'"),
    ],
)
def test_fed_plt_refuses_what_has_no_certificate(change: dict[str, str], reason: str) -> None:
    with pytest.raises(NoCertificateError, match=reason) as caught:
        fed_plt_contraction(**{"loss": "logistic", **PLT, **change})
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_fed_plt_release_by_hand() -> None:
    release = fed_plt_release(
        clip=2.0, num_examples=100, step_size=0.5, local_steps=3, tau=0.3, contraction=0.5
    )
    shift = 2 * 2.0 * 0.5 / 100 * (1 + 0.5 + 0.25)
    spread = math.sqrt(2 * 0.5) * 0.3 * math.sqrt(1 + 0.25 + 0.0625)
    assert release.loss == pytest.approx(shift / spread, rel=1e-12)
    assert (release.mechanism, release.norm, release.count) == ("gaussian", "l2", 1)
    halved = fed_plt_release(
        clip=2.0, num_examples=100, step_size=0.5, local_steps=3, tau=0.3, contraction=0.5,
        relation="add-remove",
    )  # fmt: skip
    assert halved.loss == pytest.approx(release.loss / 2, rel=1e-12)
    assert halved.relation == "add-remove"


@pytest.mark.parametrize(("contraction", "mu"), [(1.0, math.sqrt(40)), (0.0, 1.0)])
def test_fed_plt_extremes_of_contraction(contraction: float, mu: float) -> None:
    """chi = 1 is composition of the Ne steps, chi = 0 forgets all but the last."""
    one, many = (
        fed_plt_release(
            clip=1.0, num_examples=10, step_size=0.1, local_steps=steps, tau=1.0,
            contraction=contraction,
        ).loss
        for steps in (1, 40)
    )  # fmt: skip
    assert many / one == pytest.approx(mu, rel=1e-12)
    assert fed_plt_release(
        clip=1.0, num_examples=10, step_size=0.1, local_steps=40, tau=1.0,
        contraction=1 - 1e-13,
    ).loss == pytest.approx(one * math.sqrt(40), rel=1e-9)  # fmt: skip


def test_no_noise_is_a_release_of_infinite_loss() -> None:
    release = fed_plt_release(
        clip=1.0, num_examples=10, step_size=0.1, local_steps=4, tau=0.0, contraction=0.9
    )
    assert release.loss == math.inf


@pytest.mark.parametrize(("mechanism", "norm"), [("gaussian", "l2"), ("laplace", "l1")])
def test_dp_iadmm_release_by_hand(mechanism: str, norm: str) -> None:
    release = dp_iadmm_release(
        clip=0.5, num_examples=1000, noise_scale=0.02, local_updates=10, mechanism=mechanism
    )
    assert release.sensitivity == pytest.approx(2 * 0.5 / 1000)
    assert (release.count, release.norm, release.scale) == (10, norm, 0.02)
    with pytest.raises(ValueError, match="mechanism"):
        dp_iadmm_release(clip=1, num_examples=1, noise_scale=1.0, mechanism="none")


def test_fed_pdm_one_step_is_4_k_c_over_rho_b() -> None:
    assert fed_pdm_certificate(**PDM).sensitivity == pytest.approx(4 * 0.5 * 1.0 / (0.5 * 10))
    release = fed_pdm_release(noise_scale=0.3, **PDM)
    assert (release.scale, release.sensitivity) == (0.3, pytest.approx(0.4))
    full = {**PDM, "num_examples": 10, "relation": "add-remove"}
    assert fed_pdm_certificate(**full).sensitivity == pytest.approx(0.2)


def test_fed_pdm_rho_eta_one_resets() -> None:
    """With rho eta = 1 the last gradient alone counts: k = 1 whatever Q is."""
    for steps in (1, 7):
        case = fed_pdm_certificate(
            clipping="batch", clip=3.0, rho=2.0, step_size=0.5, local_steps=steps
        )
        assert case.sensitivity == pytest.approx(4 * 3.0 / 2.0)


def test_private_dual_is_at_most_6_g_over_rho() -> None:
    for product in (0.01, 0.3, 0.5, 0.9, 1.0):
        s = fed_pdm_certificate(
            clipping="batch", clip=1.0, rho=2.0, step_size=product / 2, local_steps=4,
            dual="private",
        ).sensitivity  # fmt: skip
        assert s * (1 + 1e-12) >= 2 / 2.0
        assert s <= 6 / 2.0 * (1 + 1e-12)


@pytest.mark.parametrize(("clipping", "batch", "steps"), [("example", 4, 1), ("batch", 4, 3)])
def test_private_duals_of_neighbours_are_at_most_the_hidden_bound_apart(
    clipping: str, batch: int, steps: int
) -> None:
    """Two agents whose mean gradients always differ by the most there can be: 2C/b, or 2G."""
    clip, rho, eta = 1.5, 2.0, 0.15
    found = fed_pdm_certificate(
        clipping=clipping,  # type: ignore[arg-type]
        clip=clip,
        rho=rho,
        step_size=eta,
        local_steps=steps,
        batch_size=batch,
        dual="private",
    )
    gap = 2 * clip / (batch if clipping == "example" else 1)
    duals = [0.0, 0.0]
    for _ in range(200):
        for side, slope in enumerate((gap / 2, -gap / 2)):
            x = 0.0
            for _ in range(steps):
                x -= eta * (slope - duals[side] + rho * x)
            duals[side] -= rho * x
        assert abs(duals[0] - duals[1]) <= found.hidden * (1 + 1e-12)
    assert abs(duals[0] - duals[1]) == pytest.approx(found.hidden)


def test_softmax_with_clip_by_hand() -> None:
    c, bend = 1 - 0.2 * 0.5, 0.2 * 2.0
    q = math.sqrt(c * c + c * bend / 4 + bend * bend)
    s = fed_pdm_certificate(
        clipping="example", clip=0.7, rho=0.5, step_size=0.2, local_steps=3, batch_size=5,
        loss="multinomial", row_norm=2.0,
    )  # fmt: skip
    assert s.sensitivity == pytest.approx(2 * 0.2 * (2 * 0.7 / 5) * (1 + q + q * q))
    assert "softmax" in s.case
    smooth = fed_pdm_certificate(
        clipping="example", clip=0.7, rho=0.5, step_size=0.2, local_steps=3, batch_size=5,
        loss="other", smoothness=2.0,
    )  # fmt: skip
    q = c + bend
    assert smooth.sensitivity == pytest.approx(2 * 0.2 * (2 * 0.7 / 5) * (1 + q + q * q))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"step_size": 2.1}, "<= 1"),
        ({"regularizer_modulus": 0.6}, "<= 1"),
        ({"stopping_threshold": 1e-2}, "stopping rule"),
        ({"local_steps": 2}, "smoothness is public"),
        ({"local_steps": 2, "loss": "logistic"}, "smoothness is public"),
        ({"local_steps": 2, "dual": "private"}, "private dual"),
        ({"clip": None}, "needs a clip bound"),
        ({"clipping": "none"}, "unbounded"),
        ({"clipping": "none", "loss": "ridge", "row_norm": 1.0}, "unbounded"),
        ({"relation": "add-remove"}, "full batches"),
        ({"relation": "add-remove", "num_examples": 11}, "full batches"),
        ({"local_steps": 1000, "smoothness": 1000.0}, "explodes"),
        ({"sparsifier": "top-k"}, "index set"),
        ({"sparsifier": "mystery"}, "mystery"),
    ],
)
def test_fed_pdm_refuses_what_has_no_certificate(change: dict[str, object], reason: str) -> None:
    with pytest.raises(NoCertificateError, match=reason) as caught:
        fed_pdm_release(noise_scale=1.0, **{**PDM, **change})
    assert "\n" not in str(caught.value)


def test_sparsifiers_with_public_index_sets_pass() -> None:
    for name in ("none", "rand-k", "public-top-k", "noisy-top-k"):
        check_sparsifier(name)


def test_gfl_by_hand() -> None:
    assert gfl_sensitivity(clip=0.5, step_size=0.7, round_number=3) == pytest.approx(2.1)
    s = gfl_sensitivity(
        clip=0.5, step_size=0.7, round_number=3, contraction=0.5, batch_size=10, participants=4
    )
    assert s == pytest.approx(2 * 0.7 * 0.5 / 40 * 1.75)
    with pytest.raises(ValueError, match="contraction"):
        gfl_release(
            clip=1.0, step_size=0.7, round_number=1, noise_scale=1.0, mechanism="laplace",
            contraction=1.0, batch_size=1, participants=1,
        )  # fmt: skip
    with pytest.raises(ValueError, match="batch_size and participants"):
        gfl_sensitivity(clip=0.5, step_size=0.7, round_number=3, contraction=0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("clip", 0.0), ("clip", math.nan), ("step_size", -1.0), ("num_examples", 0),
     ("num_examples", 2.5), ("local_steps", True), ("tau", -0.1), ("contraction", 1.5),
     ("relation", "swap")],
)  # fmt: skip
def test_bad_numbers_name_themselves(name: str, value: object) -> None:
    good = {"clip": 1.0, "num_examples": 10, "step_size": 0.1, "local_steps": 2, "tau": 1.0,
            "contraction": 0.5}  # fmt: skip
    with pytest.raises(ValueError, match=name):
        fed_plt_release(**{**good, name: value})


def test_as_printed_fed_plt_is_bounded_and_optimised() -> None:
    numbers = {"sensitivity": 2.0, "strong_convexity": 0.5, "tau": 0.2, "num_examples": 100,
               "step_size": 0.1, "rounds": 30, "local_steps": 5}  # fmt: skip
    slope = as_printed.fed_plt_proposition_4(**numbers)
    ceiling = (2.0 / (0.2 * 100)) ** 2 / 0.5
    assert slope == pytest.approx(ceiling * (1 - math.exp(-0.5 * 0.1 * 150 / 2)))
    assert as_printed.fed_plt_proposition_4(**{**numbers, "rounds": 10**6}) == pytest.approx(
        ceiling
    )
    best = min(
        slope * a + math.log(1e5) / (a - 1)
        for a in [1 + 10 ** (j / 500) for j in range(-500, 2000)]
    )
    assert as_printed.fed_plt_epsilon(**numbers, delta=1e-5) == pytest.approx(best, rel=1e-5)


def test_as_printed_fed_pdm_and_gfl() -> None:
    assert as_printed.fed_pdm_sensitivity(
        clip=1.0, rho=1.0, step_size=2.0, local_steps=3
    ) == pytest.approx(24.0)
    assert as_printed.fed_pdm_sensitivity(
        clip=1.0, rho=1.0, step_size=0.5, local_steps=2
    ) == pytest.approx(4 * 0.75)
    assert as_printed.fed_pdm_theorem_2(
        epsilon=0.5, participation=0.3, sampled_share=0.5, rounds=200
    ) == pytest.approx(0.25 * 0.5 * math.sqrt(0.3 * 200 / 0.5))
    assert as_printed.fed_pdm_theorem_2(
        epsilon=0.5, participation=0.3, sampled_share=1.0, rounds=200
    ) is None  # fmt: skip
    printed = as_printed.gfl_theorem_2(
        step_size=0.7, clip=1.0, rounds=100, noise_deviation=math.sqrt(0.1)
    )
    assert printed == pytest.approx(3.16e4, rel=0.01)
    assert as_printed.gfl_theorem_2(
        step_size=0.5, clip=2.0, rounds=2, noise_deviation=3.0
    ) == pytest.approx(math.sqrt(2) * 0.5 * 2.0 * 3 * 2 / 3.0, rel=1e-12)
    assert as_printed.gfl_theorem_2(
        step_size=0.5, clip=2.0, rounds=2, noise_deviation=0.0
    ) == math.inf  # fmt: skip
