"""DP-FedPDM and BSDP-FedPDM: the federated primal-dual method, the agent half.

Y. Li, C.-W. Huang, S. Wang, C.-Y. Chi, T. Q. S. Quek, "Privacy-preserving Federated Primal-Dual
Learning for Non-convex and Non-smooth Problems with Model Sparsification", Algorithms 1 and 2.
The agent keeps lam_i; when it takes part it computes, starting at x = x0hat,

    v = grad f_i(x; batch) - lam_i + rho (x - x0hat),   x <- x - eta_t v,
    until ||v||^2 <= nu (v before the step) or Q steps are done,
    lam_i <- lam_i + rho (x0hat - x),   y = x - lam_i / rho,

and sends k of the coordinates of y, with noise. With the public dual lam_i is computed from what
was sent instead (`privet.wire.agreement.public_dual`), so that the server knows it too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from privet.privacy import (
    NoCertificateError,
    NoiseSource,
    Release,
    fed_pdm_certificate,
    fed_pdm_release,
)
from privet.problems import LinearModel, Problem
from privet.wire import ConfigError
from privet.wire.agreement import public_dual
from privet.wire.payload import ENCODED, encoded
from privet.wire.sparse import decode

from .audible import require_audible, within_earshot
from .gradients import GradientAgent
from .half import Arrays, Local, Streams, Vector
from .sparsifiers import Choice, choose, choose_shared

UN_NOISED = Release("none", what="fed-pdm y")
HIDDEN = "hidden"
"""Entry of the state of an agent with a private dual: what its neighbours' can differ by."""


@dataclass(frozen=True)
class Agent(GradientAgent):
    """Agent half of FedPDM; the fields are the run-config keys of the same names."""

    name: ClassVar[str] = "fed-pdm"

    rho: float = 1.0
    nu: float = 0.0
    dual: str = "private"
    sparsifier: str = "none"
    uplink_k: int = 0
    alpha_u: float = 1.0
    row_norm: float = 0.0
    secure_sum: bool = False

    def __post_init__(self) -> None:
        if self.dual == "auto":
            raise ConfigError("dual = 'auto': the server must say public or private")

    @property
    def private(self) -> bool:
        """Whether noised, and bounded: by a clip, or for some losses by the rows' norm."""
        return self.noise_scale > 0 and (self.clip > 0 or self.row_norm > 0)

    def prepare(self, problem: Problem) -> Problem:
        """Return the problem with rows clipped to ``row-norm``, on which a certificate may rest."""
        self.require_clipping(problem)
        if not self.private or self.row_norm <= 0:
            return problem
        if not isinstance(problem, LinearModel):
            raise ConfigError("row-norm: the rows of a problem of your own cannot be clipped")
        return problem.with_rows_within(self.row_norm)

    def restart(self, broadcast: Arrays, problem: Problem) -> Arrays:
        """Return lam_i = 0: the start of a run, or of an agent whose private dual is lost."""
        return {"lam": np.zeros(problem.dim, problem.dtype)}

    def release(self, problem: Problem, round_: int) -> Release:
        """Return the Gaussian release of a round's y.

        Raises
        ------
        NoCertificateError
            Where no sensitivity is proven: plain top-k, a stopping rule, more than one local step
            without a bound that covers it, 1 < (rho + regulariser) * step size.
        """
        if not self.private:
            return UN_NOISED
        self.require_mean(problem)
        return fed_pdm_release(
            noise_scale=self.noise_scale,
            sparsifier="none" if self._choice.keeps_all(problem.dim) else self.sparsifier,
            **self._bounds(problem, round_),
        )

    def _bounds(self, problem: Problem, round_: int) -> dict[str, Any]:
        """Return what the certificate of a round rests on."""
        clipped = self.clip > 0
        return {
            "clipping": self.clipping if clipped else "none",
            "clip": self.clip if clipped else None,
            "rho": self.rho,
            "step_size": self.step_size(round_),
            "local_steps": self.max_local_steps,
            "batch_size": self.size_of_batch(problem),
            "num_examples": problem.num_examples,
            "loss": getattr(problem, "kind", type(problem).__name__),
            "row_norm": self.row_norm or None,
            "regularizer_modulus": _regularizer_modulus(problem, self.max_local_steps),
            "stopping_threshold": self.nu,
            "dual": self.dual,
            "relation": self.relation,
        }

    def local_update(
        self,
        state: Arrays,
        broadcast: Arrays,
        problem: Problem,
        streams: Streams,
        noise: NoiseSource,
    ) -> Local:
        """Do one round: local steps, the dual, and what is sent of y."""
        lam = state["lam"]
        center = self._center(broadcast, problem)
        hidden = 0.0
        if self.private:
            hidden = self._hidden(state, problem, streams.round)
            step = self.step_size(streams.round)
            require_audible(self.noise_scale / max(1.0, step), center)
            if hidden > 0:
                lam = within_earshot(self.noise_scale * self.rho, lam)
            else:
                require_audible(self.noise_scale, lam / self.rho)
        x = self._descend(problem, center, lam, streams)
        rho = center.dtype.type(self.rho)
        new = center - x
        new *= rho
        new += lam
        y = x - new / rho
        if self.secure_sum:
            seed = int(broadcast["indices"]) if "indices" in broadcast else None
            sent = choose_shared(self._choice, y, seed, noise)
            upload: Arrays = {"y": sent.values}
        else:
            data, sent = choose(self._choice, y, center, streams, noise)
            upload = encoded(data)
        if self.dual == "public":
            new = public_dual(lam, center, sent, self.rho)
            return Local({"lam": new}, upload, new)
        kept: Arrays = {"lam": new, HIDDEN: np.array(hidden)} if hidden > 0 else {"lam": new}
        return Local(kept, upload, sent.values)

    def _hidden(self, state: Arrays, problem: Problem, round_: int) -> float:
        """Return how far the duals of neighbours can be apart, 0 where the dual is public.

        Raises
        ------
        ConfigError
            If they can be further apart than this round's certificate allows, because the dual
            is of a round with looser bounds.
        """
        if self.dual == "public" and HIDDEN not in state:
            return 0.0
        try:
            hidden = fed_pdm_certificate(**self._bounds(problem, round_)).hidden
        except NoCertificateError:
            hidden = math.inf  # reached with given noise alone, which is not accounted
        if HIDDEN in state and not float(state[HIDDEN]) <= hidden:
            raise ConfigError(
                "the private dual was made under looser bounds than this round's (dual, clip, "
                "batch): noise for these would not cover it"
            )
        return hidden

    @property
    def _choice(self) -> Choice:
        return Choice(self.sparsifier, self.uplink_k, self.alpha_u, self.noise_scale)

    def _center(self, broadcast: Arrays, problem: Problem) -> Vector:
        """Return x0hat; a view on the message where it is dense."""
        data = broadcast.get(ENCODED)
        if data is None:
            raise ConfigError("broadcast holds no sparse vector")
        found = decode(data, max_dim=problem.dim)
        if found.dim != problem.dim or found.values.dtype != problem.dtype:
            raise ConfigError(
                f"broadcast is of length {found.dim} in {found.values.dtype}, "
                f"expected {problem.dim} in {problem.dtype}"
            )
        return found.values if found.positions is None else found.to_dense()

    def _descend(self, problem: Problem, center: Vector, lam: Vector, streams: Streams) -> Vector:
        """Return x after the local steps, eq. (10) and Algorithm 1, lines 9-12."""
        kind = center.dtype.type
        rho, step = kind(self.rho), kind(self.step_size(streams.round))
        fixed = lam + rho * center
        batches = self.batches(problem, streams)
        x = center
        for _ in range(self.max_local_steps):
            v = rho * x
            v += self.gradient(problem, x, batches.draw())
            v -= fixed
            small = self.nu > 0 and float(v @ v) <= self.nu
            v *= step
            x = x - v
            if small:
                break
        return x


def _regularizer_modulus(problem: Problem, steps: int) -> float:
    """Return beta of f_i's quadratic regulariser, which slows a difference down at each step."""
    regularizer = getattr(problem, "regularizer", None)
    kind = getattr(regularizer, "kind", "none")
    if kind == "none" or steps == 1:
        # One step moves a difference by the data term alone, whatever the regulariser is.
        return 0.0
    if kind != "l2" or regularizer is None:
        raise NoCertificateError(
            f"FedPDM with regularizer {kind!r} and more than one local step has no privacy "
            "certificate: take one step, or l2"
        )
    return float(regularizer.moduli.strong_convexity)
