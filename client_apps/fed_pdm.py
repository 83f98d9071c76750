"""DP-FedPDM and BSDP-FedPDM: the federated primal-dual method, the agent half.

Y. Li, C.-W. Huang, S. Wang, C.-Y. Chi, T. Q. S. Quek, "Privacy-preserving Federated Primal-Dual
Learning for Non-convex and Non-smooth Problems with Model Sparsification", Algorithms 1 and 2.
The agent keeps lam_i; when it takes part it computes, starting at x = x0hat,

    v = grad f_i(x; batch) - lam_i + rho (x - x0hat),   x <- x - eta_t v,
    until ||v||^2 <= nu (v before the step) or Q steps are done,
    lam_i <- lam_i + rho (x0hat - x),   y = x - lam_i / rho,

and sends k of the coordinates of y, with noise. With the public dual lam_i is computed from what
was sent instead (`public_dual`), so that the server knows it too. A private agent walks itself, a
fixed number of steps, with the public part of the iterate separate from the noised part
(`privet.kernel.programs.drift`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from privet.agents.half import Arrays, Local, Streams, Vector
from privet.agents.loop_defaults import Loops, alpha
from privet.agents.sparsifiers import VALUES, Choice, choose_shared, sparse_arrays, sparse_vector
from privet.agents.terms import BudgetSchedule, MessageTerms
from privet.agents.upload_bounds import data_term, decay_of, is_bounded, iterate_bound, norm_of
from privet.agents.value_bits import ValueBits
from privet.core import ConfigError
from privet.core.key import Scalar, same, setting
from privet.data import DataSettings
from privet.kernel import (
    Clipping,
    Facts,
    NoCertificateError,
    Records,
    Release,
    check_sparsifier,
    epsilon_of,
    norm_bound,
)
from privet.kernel.programs.drift import Drift
from privet.kernel.programs.steps import LocalTask, Walk
from privet.wire.payload import ENCODED
from privet.wire.sparse import SparseVector, decode

from .as_printed import fed_pdm_theorem_2
from .gradient_agents import InTurnAgent, SeveralStepsAgent
from .solver_agents import penalty

_BOUND = {"logistic": 1.0, "one-class-logistic": 1.0, "multinomial": math.sqrt(2.0)}
"""Largest norm of an example's gradient, by loss, in units of the norm of its row."""


def public_dual(lam: Vector, center: Vector, released: SparseVector, rho: float) -> Vector:
    """Return the dual that follows from the released vectors, shape (d,). Both sides compute it.

    lam <- (lam + rho (x0hat - y)) / 2 at the coordinates that were sent, unchanged elsewhere. With
    y = x - lam_new / rho, all of it sent and no noise this is the paper's
    lam + rho (x0hat - x) exactly.

    Parameters
    ----------
    lam : array (d,)
        The agent's dual before the round.
    center : array (d,)
        x0hat, as broadcast.
    released : SparseVector
        y as it left the agent, noise included.
    """
    new: Vector = lam.copy()
    where = slice(None) if released.positions is None else released.positions
    moved = center[where] - released.values
    moved *= rho
    moved += lam[where]
    moved *= 0.5
    new[where] = moved
    return new


SPARSIFIERS = ("top-k", "rand-k", "public-top-k", "noisy-top-k")


@dataclass(frozen=True)
class Agent(ValueBits, BudgetSchedule, InTurnAgent):
    """Agent half of FedPDM; the fields are the run-config keys of the same names."""

    name: ClassVar[str] = "fed-pdm"
    upload: ClassVar[str] = "y"
    custom_loop_ok: ClassVar[bool] = True

    batch: str = setting(
        "full",
        "examples in a step: all, batch-size, or cyclic: batches in turn, each example in one "
        "round of so many, with one local step and dual = public",
        choices=("full", "sample", "cyclic"),
        topic="Local steps",
    )
    rho: float = penalty(0.0, "penalty of the augmented Lagrangian", (1.0, 0.1))
    max_local_steps: int = same(SeveralStepsAgent, "max_local_steps")
    nu: float = setting(
        0.0,
        "local steps end when the squared gradient norm is at most this; none takes them all",
        low=0,
        words={"none": 0},
    )
    dual: str = setting(
        "private",
        "the paper's (private), or computed by both sides from what was released (public)",
        choices=("private", "public"),
    )
    sparsifier: str = setting(
        "none",
        "which coordinates an agent sends",
        choices=("none", *SPARSIFIERS),
        topic="Size of messages",
    )
    uplink_k: int = setting(
        0,
        "coordinates an agent sends; auto takes alpha-u",
        low=0,
        words={"auto": 0},
        needs={"sparsifier": SPARSIFIERS},
        topic="Size of messages",
    )
    alpha_u: float = setting(
        1.0,
        "share of the coordinates an agent sends",
        low=0,
        high=1,
        open_low=True,
        needs={"sparsifier": SPARSIFIERS, "uplink_k": 0},
        topic="Size of messages",
    )
    row_norm: float = same(DataSettings, "row_norm")
    secure_sum: bool = same(MessageTerms, "secure_sum")

    def no_turns(self) -> str:
        if self.max_local_steps > 1:
            return "has a proof where every step is noised: take one (max-local-steps = 1)"
        if self.dual != "public":
            return "needs dual = public: a private dual is hidden state"
        if self.step_size_rule != "constant":
            return (
                "needs steps of one size, as what a record moves is in proportion to it: use "
                "step-size-rule = constant"
            )
        return super().no_turns()

    @property
    def steps(self) -> int:
        """Q; fewer where nu > 0 ends them."""
        return self.max_local_steps

    @property
    def private(self) -> bool:
        """Whether noised, and bounded: by a clip, or for some losses by the rows' norm."""
        return self.noise_scale > 0 and (self.clip > 0 or self.row_norm > 0)

    def around_loops(self, loops: Loops) -> Mapping[str, Scalar]:
        """Return rho of `loop_defaults` with the step, where they are open."""
        values = dict(super().around_loops(loops))
        if "rho" in values:
            values["rho"] = alpha(loops, self.steps)
        return values

    def row_bound(self, facts: Facts) -> float:
        """Return ``row-norm``, on which a certificate may rest."""
        if not self.private or self.row_norm <= 0:
            return 0.0
        if not facts.linear:
            raise ConfigError("row-norm: the rows of a problem of your own cannot be clipped")
        return self.row_norm

    def restart(self, broadcast: Arrays, facts: Facts) -> Arrays:
        """Return lam_i = 0: the start of a run, or of an agent whose private dual is lost."""
        return {"lam": np.zeros(facts.dim, facts.dtype)}

    def noised_release(self, facts: Facts, round_: int) -> Release:
        """Return the Gaussian release of a round's y.

        Raises
        ------
        NoCertificateError
            Where no sensitivity is proven: a private dual, plain top-k, a stopping rule, more than
            one local step without a bound that covers it, 1 < (rho + regulariser) * step size.
        """
        check_sparsifier("none" if self._choice.keeps_all(facts.dim) else self.sparsifier)
        steps = self._drift(facts, round_)
        return steps.release(facts, self.row_norm, self.noise_scale, "fed-pdm y")

    def _bound(self, facts: Facts) -> float:
        """Return C: the clip, or what the rows' norm bounds an example's gradient by."""
        if self.clip > 0:
            return self.clip
        if facts.loss not in _BOUND or self.row_norm <= 0:
            raise NoCertificateError(
                f"gradients of loss {facts.loss!r} are unbounded without clipping or without a row "
                "norm"
            )
        return _BOUND[facts.loss] * self.row_norm

    def _drift(self, facts: Facts, round_: int) -> Drift:
        """Return the program of a private round.

        Raises
        ------
        NoCertificateError
            With a private dual, or without a bound on an example's gradient.
        """
        if self.dual != "public":
            raise NoCertificateError(
                "a private dual is hidden state that no noise of this library covers: use "
                "dual = public"
            )
        bounded = replace(
            self.gradients, clip=self._bound(facts), clipping=self._clipping_of_examples
        )
        step = self.step_size(round_)
        return Drift(self.rho, step, self.max_local_steps, bounded, self._clipping, self.nu)

    @property
    def _clipping(self) -> str:
        return self.clipping if self.clip > 0 else "none"

    @property
    def _clipping_of_examples(self) -> Clipping:
        """Without a clip every example is held to what the rows' norm bounds it by anyway."""
        return "batch" if self._clipping == "batch" else "example"

    def upload_bound(self, facts: Facts, state: Arrays, broadcast: Arrays, round_: int) -> float:
        """Return the bound of y = 2 p - x0hat - lam / rho + t (`privet.kernel.programs.drift`).

        t alone has the noise; a sparsified y is no longer than y.
        """
        if not is_bounded(facts):
            return math.inf
        step, rho, decay = self.step_size(round_), self.rho, decay_of(facts)
        center, lam = norm_of(broadcast["x"]), norm_of(state["lam"])
        clipped = 2.0 * step * data_term(facts, self._bound(facts))
        keep, decay = 1.0 - rho * step, decay * step
        moved = iterate_bound(0.0, keep, decay, clipped, self.steps)
        public = iterate_bound(center, keep, decay, step * (rho * center + lam), self.steps)
        noised = norm_bound(self.release(facts, round_), facts.dim, moved)
        return noised + 2.0 * public + center + lam / rho

    def as_printed(self, facts: Facts, rounds: int, delta: float) -> float | None:
        """Return Theorem 2's figure with its unknown constant as 1 and p = 1; it is no claim.

        None where the formula has no value: Q b must be below the number of examples. Its share of
        sampled examples amplifies for one record, not for all of an agent.
        """
        if not self.private or self.relation == "replace-agent":
            return None
        share = self.max_local_steps * self._batch(facts) / facts.num_examples
        if share >= 1:
            return None
        return fed_pdm_theorem_2(
            epsilon=epsilon_of([(self.release(facts, 1), 1)], delta),
            participation=1.0,
            sampled_share=share,
            rounds=rounds,
        )

    def _batch(self, facts: Facts) -> int:
        whole = self.batch == "full"
        return facts.num_examples if whole else min(self.batch_size, facts.num_examples)

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return f_i(w) - <lam_i, w> + (rho/2) ||w - x0hat||^2, from x0hat.

        Algorithm 1, lines 9-12, and (10).
        """
        center = self._center(broadcast, records)
        return self.local_task(
            center,
            streams,
            center=center,
            rho=1.0 / self.rho,
            shift=-state["lam"],
            tolerance=self.nu,
        )

    def local_update(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> Local:
        if not records.charged:
            return super().local_update(state, broadcast, records, streams)
        center, lam = self._center(broadcast, records), state["lam"]
        y = records.drift(self._drift(records.facts, streams.round), center, lam, streams)
        return self._sent(state, {**broadcast, "x": center}, y, records, streams)

    def finished(
        self,
        state: Arrays,
        broadcast: Arrays,
        task: LocalTask,
        walk: Walk,
        records: Records,
        streams: Streams,
    ) -> Local:
        """Return lam_i and y; y is coded once its coordinates are chosen."""
        y, new = self._ascended(state, task, walk.end)
        hidden = None if self.dual == "public" else {"lam": new}
        return self._sent(state, {**broadcast, "x": task.start}, y, records, streams, hidden)

    def follow(self, state: Arrays, broadcast: Arrays, upload: Arrays) -> Arrays:
        """Return the public dual; nothing where the dual is the agent's own.

        ``broadcast`` has x0hat as ``x``. Of one agent.
        """
        if self.dual != "public":
            return {}
        center = broadcast["x"]
        sent = sparse_vector(upload, center.size)
        return {"lam": public_dual(state["lam"], center, sent, self.rho)}

    def reference(self, state: Arrays, broadcast: Arrays) -> Arrays:
        """Return x0hat - lam_i / rho with a public dual, which y is in the limit; else x0hat."""
        center = broadcast["x"]
        if self.dual != "public":
            return {VALUES: center}
        lam = state["lam"]
        return {VALUES: center - lam / lam.dtype.type(self.rho)}

    def _ascended(self, state: Arrays, task: LocalTask, end: Vector) -> tuple[Vector, Vector]:
        """Return y and the new lam_i, of where the steps from x0hat ended."""
        center = task.start
        rho = center.dtype.type(self.rho)
        new = center - end
        new *= rho
        new += state["lam"]
        return end - new / rho, new

    def _sent(
        self,
        state: Arrays,
        broadcast: Arrays,
        y: Vector,
        records: Records,
        streams: Streams,
        hidden: Arrays | None = None,
    ) -> Local:
        """Return what is sent of y and the dual, which is in ``hidden`` or follows."""
        if not self.secure_sum:
            return self.conclude_sparse(
                state, broadcast, y, self._choice, records, streams, hidden=hidden
            )
        seed = int(broadcast["indices"]) if "indices" in broadcast else None
        sent = choose_shared(self._choice, y, seed, records)
        new = self.follow(state, broadcast, sparse_arrays(sent))
        return Local({**new, **(hidden or {})}, {"y": sent.values}, ())

    @property
    def _choice(self) -> Choice:
        return Choice(self.sparsifier, self.uplink_k, self.alpha_u, self.noise_scale)

    def _center(self, broadcast: Arrays, records: Records) -> Vector:
        """Return x0hat; a view on the message where it is dense."""
        data = broadcast.get(ENCODED)
        if data is None:
            raise ConfigError("broadcast holds no sparse vector")
        sparse = decode(data, max_dim=records.dim)
        if sparse.dim != records.dim or sparse.values.dtype != records.dtype:
            raise ConfigError(
                f"broadcast is of length {sparse.dim} in {sparse.values.dtype}, "
                f"expected {records.dim} in {records.dtype}"
            )
        return sparse.values if sparse.positions is None else sparse.to_dense()
