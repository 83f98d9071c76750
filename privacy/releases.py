"""One release event for each algorithm: what an agent's message of one round is worth.

Every function takes plain numbers and returns a `Release` that an accountant can cost without
knowing the algorithm. The observer is an honest-but-curious coordinator that sees every message;
what is made of the messages later, the final model included, costs nothing more.
"""

from __future__ import annotations

from privet.privacy.events import Mechanism, Relation, Release
from privet.privacy.sensitivity import (
    check_sparsifier,
    dp_iadmm_sensitivity,
    fed_plt_round,
    gfl_sensitivity,
)
from privet.privacy.sensitivity_fed_pdm import Clipping, Dual, fed_pdm_certificate


def fed_plt_release(
    *,
    clip: float,
    num_examples: int,
    step_size: float,
    local_steps: int,
    tau: float,
    contraction: float,
    relation: Relation = "replace-one",
) -> Release:
    """Return the release of one Fed-PLT round with the noisy gradient (13).

    Gaussian with noise multiplier 1/mu, mu as in `sensitivity.fed_plt_round` (the same
    arguments); tau = 0 gives a release of infinite cost.
    """
    sensitivity, scale = fed_plt_round(
        clip=clip,
        num_examples=num_examples,
        step_size=step_size,
        local_steps=local_steps,
        tau=tau,
        contraction=contraction,
        relation=relation,
    )
    return Release(
        mechanism="gaussian",
        scale=scale,
        sensitivity=sensitivity,
        relation=relation,
        what="fed-plt x_i after noisy local steps",
    )


def dp_iadmm_release(
    *,
    clip: float,
    num_examples: int,
    noise_scale: float,
    local_updates: int = 1,
    mechanism: Mechanism = "gaussian",
    relation: Relation = "replace-one",
) -> Release:
    """Return the release of one DP-IADMM round: E uses of the mechanism on clipped gradients.

    Parameters
    ----------
    clip, num_examples
        C (L2 for gaussian, L1 for laplace) and I, as in `sensitivity.dp_iadmm_sensitivity`.
    noise_scale
        Standard deviation (gaussian) or scale b (laplace) of the noise xi on the gradient.
    local_updates
        E. Every inner step counts; the mean of the inner iterates is post-processing.
    """
    return Release(
        mechanism=_noisy(mechanism),
        scale=noise_scale,
        sensitivity=dp_iadmm_sensitivity(clip=clip, num_examples=num_examples, relation=relation),
        norm="l1" if mechanism == "laplace" else "l2",
        count=local_updates,
        relation=relation,
        what="dp-iadmm z_p after noisy inner steps",
    )


def fed_pdm_release(
    *,
    noise_scale: float,
    clipping: Clipping,
    clip: float | None,
    rho: float,
    step_size: float,
    local_steps: int,
    batch_size: int = 1,
    num_examples: int | None = None,
    loss: str = "other",
    row_norm: float | None = None,
    smoothness: float | None = None,
    regularizer_modulus: float = 0.0,
    stopping_threshold: float = 0.0,
    dual: Dual = "public",
    sparsifier: str = "none",
    relation: Relation = "replace-one",
) -> Release:
    """Return the release of one DP-FedPDM upload: y plus N(0, noise_scale^2) on each coordinate.

    The arguments are those of `sensitivity_fed_pdm.fed_pdm_certificate`, and the sparsifier of
    `sensitivity.check_sparsifier`; both refuse what has no certificate.
    """
    check_sparsifier(sparsifier)
    certificate = fed_pdm_certificate(
        clipping=clipping,
        clip=clip,
        rho=rho,
        step_size=step_size,
        local_steps=local_steps,
        batch_size=batch_size,
        num_examples=num_examples,
        loss=loss,
        row_norm=row_norm,
        smoothness=smoothness,
        regularizer_modulus=regularizer_modulus,
        stopping_threshold=stopping_threshold,
        dual=dual,
        relation=relation,
    )
    return Release(
        mechanism="gaussian",
        scale=noise_scale,
        sensitivity=certificate.sensitivity,
        relation=relation,
        what=f"fed-pdm y ({certificate.case})",
    )


def gfl_release(
    *,
    clip: float,
    step_size: float,
    round_number: int,
    noise_scale: float,
    mechanism: Mechanism = "gaussian",
    relation: Relation = "replace-one",
    contraction: float | None = None,
    batch_size: int | None = None,
    participants: int | None = None,
) -> Release:
    """Return the release of one GFL round: the model a unit shows its neighbours.

    The observer sees every message between servers, but not the inside of the unit: its own
    server sees raw models, against which noise on the links does nothing. `noise_scale` is the
    standard deviation (gaussian) or scale b (laplace; the paper's sigma_g is sqrt(2) b); the
    other arguments are those of `sensitivity.gfl_sensitivity`.
    """
    if mechanism == "laplace" and contraction is not None:
        raise ValueError("contraction is proved in L2 only: use gaussian noise with it")
    return Release(
        mechanism=_noisy(mechanism),
        scale=noise_scale,
        sensitivity=gfl_sensitivity(
            clip=clip,
            step_size=step_size,
            round_number=round_number,
            relation=relation,
            contraction=contraction,
            batch_size=batch_size,
            participants=participants,
        ),
        norm="l1" if mechanism == "laplace" else "l2",
        relation=relation,
        what="gfl psi_p on the links to neighbouring servers",
    )


def unnoised_release(what: str, *, relation: Relation = "replace-one") -> Release:
    """Return the release of anything that leaves an agent without noise; its cost is infinite."""
    return Release(mechanism="none", relation=relation, what=what)


def _noisy(mechanism: Mechanism) -> Mechanism:
    if mechanism not in ("gaussian", "laplace"):
        raise ValueError(f"mechanism is {mechanism!r}, expected gaussian or laplace")
    return mechanism
