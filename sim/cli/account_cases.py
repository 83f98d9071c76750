"""What ``privet account`` computes: one function an algorithm, from flag values to releases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import click

if TYPE_CHECKING:
    from privet.privacy import Release

Values: TypeAlias = dict[str, Any]

_COMMON = (
    "one agent's rounds are counted as it takes part; who takes part is visible, so nothing is "
    "amplified by sampling",
    "sensitivity, noise and counts are public and do not depend on the data; the noise comes from "
    "the operating system, without noise-seed",
    "noise is real-valued in the proof; floating-point attacks are not covered",
)
_MOST_GFL_ROUNDS = 100_000
_CURVATURE = {"logistic": 0.25, "one-class-logistic": 0.25, "multinomial": 0.5, "ridge": 2.0}


@dataclass(frozen=True, slots=True)
class Case:
    """One question: what is released, what the paper prints, and under which assumptions.

    Attributes
    ----------
    releases : all releases of one agent in the run.
    per_round : the releases of its costliest round.
    as_printed : the paper's own formula, None where it has no value.
    printed_as : its name.
    assumptions : beside those that all accounts share.
    published : why the final model costs an infinite epsilon; empty for post-processing.
    """

    releases: Sequence[Release]
    per_round: Sequence[Release]
    as_printed: float | None
    printed_as: str
    assumptions: tuple[str, ...]
    published: str = ""

    def all_assumptions(self) -> list[str]:
        """Return every assumption, the shared ones last."""
        relation = self.releases[0].relation
        return [f"unit: one record of one agent, {relation}", *self.assumptions, *_COMMON]


def need(values: Values, *names: str) -> list[Any]:
    """Return the values of required flags, or stop with a usage error that names one."""
    for name in names:
        if name not in values:
            raise click.UsageError(f"--{name} is needed")
    return [values[name] for name in names]


def contraction(values: Values) -> float:
    """Return Fed-PLT's chi from the flags; the smoothness comes from the row norm or as given."""
    from privet.privacy import fed_plt_contraction

    step, rho, loss = need(values, "step-size", "rho", "loss")
    weight = values.get("regularizer-weight", 0.0) if values.get("regularizer") != "none" else 0.0
    if "smoothness" in values:
        smoothness = values["smoothness"]
        if smoothness < weight:
            raise click.UsageError(
                f"--smoothness {smoothness:g}: expected at least --regularizer-weight {weight:g}, "
                "which it includes"
            )
    elif loss == "multinomial":
        smoothness = weight
    else:
        (row_norm,) = need(values, "row-norm")
        smoothness = _CURVATURE.get(loss, 0.0) * row_norm**2 + weight
    return fed_plt_contraction(
        loss=loss, step_size=step, strong_convexity=weight, smoothness=max(smoothness, weight),
        rho=rho, regularizer=values.get("regularizer", "l2"),
        solver=values.get("local-solver", "noisy-gd"),
    )  # fmt: skip


def fed_plt(values: Values) -> Case:
    """Fed-PLT with the noisy gradient."""
    from privet.privacy import as_printed, fed_plt_release

    rounds, steps, step, clip, examples, variance = need(
        values, "rounds", "local-steps", "step-size", "clip", "num-examples", "noise-variance"
    )
    chi = contraction(values)
    release = fed_plt_release(
        clip=clip, num_examples=examples, step_size=step, local_steps=steps,
        tau=math.sqrt(variance), contraction=chi, relation=relation(values),
    )  # fmt: skip
    weight = values.get("regularizer-weight", 0.0) if values.get("regularizer") != "none" else 0.0
    printed = None
    if weight > 0:
        printed = as_printed.fed_plt_epsilon(
            sensitivity=2 * clip, strong_convexity=weight, tau=math.sqrt(variance),
            num_examples=examples, step_size=step, rounds=rounds, local_steps=steps,
            delta=delta(values),
        )  # fmt: skip
    return Case(
        [replace(release, count=rounds)], [release], printed, "Proposition 4 and Lemma 5",
        (
            "observer: an honest-but-curious coordinator that sees every message",
            f"every example's gradient is clipped to {clip:g} in L2, the regulariser is not",
            f"local steps contract by chi = {chi:.6g}" if chi < 1 else
            "local steps need not contract: chi = 1 is their composition",
        ),
    )  # fmt: skip


def dp_iadmm(values: Values) -> Case:
    """DP-IADMM with E noisy inner steps a round."""
    from privet.privacy import Release, as_printed, dp_iadmm_release

    (rounds,) = need(values, "rounds")
    updates, mechanism = values.get("local-updates", 1), values.get("mechanism", "gaussian")
    if sum(name in values for name in ("epsilon", "noise-multiplier", "noise-scale")) != 1:
        raise click.UsageError("give one of --epsilon, --noise-multiplier and --noise-scale")
    if "epsilon" in values and mechanism != "laplace":
        raise click.UsageError("--epsilon is laplace's: give --noise-multiplier for gaussian noise")
    if "noise-scale" in values:
        clip, examples = need(values, "clip", "num-examples")
        release = dp_iadmm_release(
            clip=clip, num_examples=examples, noise_scale=values["noise-scale"],
            local_updates=updates, mechanism=mechanism, relation=relation(values),
        )  # fmt: skip
        bound = f"every example's gradient is clipped to {clip:g}"
    else:
        _positive(values, "epsilon", "noise-multiplier")
        multiplier = values.get("noise-multiplier") or 1.0 / values["epsilon"]
        release = Release(
            mechanism=mechanism, scale=multiplier, count=updates, relation=relation(values),
            norm="l1" if mechanism == "laplace" else "l2",
        )  # fmt: skip
        bound = "every example's gradient is clipped; the noise is relative to that sensitivity"
    printed = None
    if mechanism == "laplace" and release.loss < math.inf:
        printed = as_printed.dp_iadmm_epsilon(release.loss)
    return Case(
        [replace(release, count=rounds * updates)], [release], printed, "eps-bar, per iteration",
        (
            "observer: an honest-but-curious coordinator that sees every message",
            f"{bound} in {'L1' if mechanism == 'laplace' else 'L2'}",
            f"each of the {updates} inner steps of a round is a release",
        ),
    )  # fmt: skip


def fed_pdm(values: Values) -> Case:
    """DP-FedPDM with a Gaussian on the upload."""
    from privet.privacy import Release, as_printed

    (rounds,) = need(values, "rounds")
    if ("noise-scale" in values) == ("noise-multiplier" in values):
        raise click.UsageError("give one of --noise-scale and --noise-multiplier")
    sensitivity, case = fed_pdm_sensitivity(values)
    _positive(values, "noise-multiplier")
    scale = values.get("noise-scale", values.get("noise-multiplier", 0.0) * sensitivity)
    release = Release(
        mechanism="gaussian", scale=scale, sensitivity=sensitivity, relation=relation(values)
    )
    printed = None
    if "batch-size" in values and "num-examples" in values:
        share = values["local-steps"] * values["batch-size"] / values["num-examples"]
        printed = as_printed.fed_pdm_theorem_2(
            epsilon=_account(release, delta(values)), rounds=rounds, sampled_share=share,
            participation=values.get("participation", 1.0),
        )  # fmt: skip
    return Case(
        [replace(release, count=rounds)], [release], printed, "Theorem 2 with its c0 taken as 1",
        (
            "observer: an honest-but-curious coordinator that sees every message",
            f"certificate: {case}, sensitivity {sensitivity:.6g}",
            "the number of local steps is fixed and index sets do not depend on the data",
        ),
    )  # fmt: skip


def fed_pdm_sensitivity(values: Values) -> tuple[float, str]:
    """Return FedPDM's certified sensitivity and the case that proves it."""
    from privet.privacy import NoCertificateError, check_sparsifier, fed_pdm_certificate

    rho, step, steps = need(values, "rho", "step-size", "local-steps")
    check_sparsifier(values.get("sparsifier", "none"))
    if values.get("regularizer") == "nonconvex":
        raise NoCertificateError("FedPDM has no privacy certificate for a nonconvex regulariser")
    clipping = values.get("clipping", "example")
    if clipping != "batch":
        need(values, "batch-size")
    certificate = fed_pdm_certificate(
        clipping=clipping, clip=values.get("clip"), rho=rho, step_size=step, local_steps=steps,
        batch_size=values.get("batch-size", 1), num_examples=values.get("num-examples"),
        loss=values.get("loss", "other"), row_norm=values.get("row-norm"),
        smoothness=values.get("smoothness"), dual=values.get("dual", "public"),
        regularizer_modulus=(
            values.get("regularizer-weight", 0.0) if values.get("regularizer") != "none" else 0.0
        ),
        relation=relation(values),
    )  # fmt: skip
    return certificate.sensitivity, certificate.case


def gfl(values: Values) -> Case:
    """Graph federated learning with noise on the links between servers."""
    from privet.privacy import as_printed, gfl_release, unnoised_release

    rounds, step, clip = need(values, "rounds", "step-size", "clip")
    mechanism = values.get("mechanism", "gaussian")
    if rounds > _MOST_GFL_ROUNDS:
        raise click.UsageError(f"--rounds {rounds}: gfl's rounds all differ, at most 100000")
    if ("noise-scale" in values) == ("noise-variance" in values):
        raise click.UsageError("give one of --noise-scale and --noise-variance")
    # Var Laplace(b) = 2 b^2.
    double = 2.0 if mechanism == "laplace" else 1.0
    scale = values.get("noise-scale", math.sqrt(values.get("noise-variance", 0.0) / double))
    printed = as_printed.gfl_theorem_2(
        step_size=step, clip=clip, rounds=rounds, noise_deviation=scale * math.sqrt(double)
    )
    published = "the average of the units' final models carries no noise: it cancels"
    if values.get("observer", "neighbour") == "own-server":
        raw = unnoised_release("raw models", relation=relation(values))
        return Case(
            [raw], [raw], printed, "Theorem 2",
            ("observer: the unit's own server, which sees its agents' raw models; only a secure "
             "sum hides single agents from it, and no noise does",),
            published,
        )  # fmt: skip
    releases = [
        gfl_release(
            clip=clip, step_size=step, round_number=number, noise_scale=scale,
            mechanism=mechanism, relation=relation(values), contraction=values.get("contraction"),
            batch_size=values.get("batch-size"), participants=values.get("participants"),
        )
        for number in range(1, rounds + 1)
    ]  # fmt: skip
    return Case(
        releases, releases[-1:], printed, "Theorem 2",
        (
            "observer: the other units' servers, which see every message between servers; the "
            "unit's own server sees raw models, towards it epsilon is inf (--observer own-server)",
            f"gradients are clipped to {clip:g} in {'L1' if mechanism == 'laplace' else 'L2'}",
            "a record's influence stays in the unit's own model, so the sensitivity grows with "
            "the round",
        ),
        published,
    )  # fmt: skip


CASES: dict[str, Callable[[Values], Case]] = {
    "fed-plt": fed_plt,
    "dp-iadmm": dp_iadmm,
    "fed-pdm": fed_pdm,
    "gfl": gfl,
}


def relation(values: Values) -> Any:
    """Return the neighbouring relation, replace-one unless given."""
    return values.get("relation", "replace-one")


def delta(values: Values) -> float:
    """Return delta, 1e-5 unless given."""
    return float(values.get("delta", 1e-5))


def _positive(values: Values, *names: str) -> None:
    for name in names:
        if name in values and values[name] <= 0:
            raise click.UsageError(f"--{name} {values[name]:g}: expected a number > 0")


def _account(release: Release, at: float) -> float:
    from privet.privacy import account

    return account([release], at).epsilon
