"""The constructors of the strategies of this folder, written by ``make keys``: do not edit.

An argument is a run-config key: its default and what is said of it are those of the field that
declares it. ``PrimalDualStrategy`` checks what is given. The arguments that all strategies
share are those of `RunArguments`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Unpack

from privet.rounds.flower.arguments import RunArguments
from privet.rounds.flower.base import PrimalDualStrategy
from privet.rounds.flower.configured import takes_run_arguments

if TYPE_CHECKING:
    from privet.problems import ProximalFunction


class FedPLTArguments(PrimalDualStrategy):
    """The arguments of FedPLT."""

    @takes_run_arguments
    def __init__(
        self,
        rho: float | Literal["auto"] = "auto",
        local_epochs: int = 10,
        local_solver: Literal["auto", "newton", "gd", "agd", "sgd", "noisy-gd"] = "auto",
        step_size: float | Literal["auto"] = "auto",
        *,
        batch_size: int = 32,
        strong_convexity: float = 0.0,
        smoothness: float | Literal["auto"] = "auto",
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        relaxation: float | Literal["auto"] = "auto",
        step_size_rule: Literal["constant", "inverse-sqrt", "cosine"] = "constant",
        step_size_rounds: int = 0,
        budget_schedule: Literal["constant", "geometric"] = "constant",
        budget_ratio: float | Literal["auto"] = "auto",
        acceleration: Literal["auto", "quasi-newton", "none"] = "auto",
        local_start: Literal["auto", "own", "model"] = "auto",
        row_norm: float | Literal["none"] = "none",
        clip: float | Literal["none"] = "none",
        noise_variance: float | Literal["none"] = "none",
        relation: Literal["replace-one", "add-remove", "replace-agent"] = "replace-one",
        returned_model: Literal["auto", "y", "mean", "middle"] = "auto",
        delta: float = 1e-05,
        noise_seed: int | Literal["none"] = "none",
        target_epsilon: float | Literal["none"] = "none",
        h: ProximalFunction | None = None,
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of fed-plt.

        Parameters
        ----------
        rho : float | "auto", default "auto"
            penalty of the splitting; auto is 3.0, or 10.0 where no agent knows its moduli
        local_epochs : int, default 10
            local solver steps in a round (N_e)
        local_solver : {"auto", "newton", "gd", "agd", "sgd", "noisy-gd"}, default "auto"
            local solver; auto: newton where agents know the moduli of smooth problems and add no
            noise, else gd
        step_size : float | "auto", default "auto"
            local step size; auto computes it from the moduli
        batch_size : int, default 32
            examples in a step
        strong_convexity : float, default 0.0
            strong convexity of every f_i; 0 is convex and no more
        smoothness : float | "auto", default "auto"
            smoothness of every f_i; auto lets each agent compute its own
        value_bits : {"none", "4", "8", "16", "32", "noise"}, default "none"
            bits of a number in an upload, coded as its difference to what both sides hold; noise:
            the step is half the charged noise, about 3.7 bits where the noise is as large as the
            signal
        relaxation : float | "auto", default "auto"
            a in z_i + 2 a (x_i - y): 1 is the paper's; auto is 1, or in an asynchronous run 1/2
            unless theory proves 1, or around training loops 1 / s, s the share that takes part
        step_size_rule : {"constant", "inverse-sqrt", "cosine"}, default "constant"
            constant, divided by sqrt(1 + t) in round t = 0, 1, ..., or cosine: half a wave down to
            a hundredth over step-size-rounds, which it keeps then
        step_size_rounds : int, default 0
            rounds over which the step size falls
        budget_schedule : {"constant", "geometric"}, default "constant"
            noise over the rounds: the same in all, or geometric, where noise and its key are those
            of round 1 and each later round has budget-ratio times that before
        budget_ratio : float | "auto", default "auto"
            noise of a round over that of the round before; auto is the root of the rate at which
            the algorithm contracts, where theory knows it
        acceleration : {"auto", "quasi-newton", "none"}, default "auto"
            acceleration across rounds; auto: quasi-newton with newton, of models up to 10^6 numbers
            over all agents, else none
        local_start : {"auto", "own", "model"}, default "auto"
            where local steps begin: at the agent's own x_i, as in the paper, or at the model y;
            auto is own, or model where no agent knows its moduli
        row_norm : float | "none", default "none"
            rows, the intercept included, are scaled down to this public L2 norm; none leaves them
        clip : float | "none", default "none"
            norm bound of a gradient, or of an update where that is clipped
        noise_variance : float | "none", default "none"
            variance tau^2 of the noisy gradient (13)
        relation : {"replace-one", "add-remove", "replace-agent"}, default "replace-one"
            which change of the data epsilon is about: a record replaced, or added or removed, or
            all records of an agent replaced
        returned_model : {"auto", "y", "mean", "middle"}, default "auto"
            the model of a run: y, the mean of all agents' x_i, as in the paper's figures, or the
            middle of y before and after the round; auto is y, or mean where no agent knows its
            moduli
        delta : float, default 1e-05
            delta at which epsilon is stated
        noise_seed : int | "none", default "none"
            seed of the privacy noise: marks the run not private; none: the system's random bytes
        target_epsilon : float | "none", default "none"
            total epsilon of the run, which sets the noise; none: the noise is taken as given
        h : ProximalFunction | None, optional
            shared regulariser with a proximal operator; none by default
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            rho=rho,
            local_epochs=local_epochs,
            local_solver=local_solver,
            step_size=step_size,
            batch_size=batch_size,
            strong_convexity=strong_convexity,
            smoothness=smoothness,
            value_bits=value_bits,
            relaxation=relaxation,
            step_size_rule=step_size_rule,
            step_size_rounds=step_size_rounds,
            budget_schedule=budget_schedule,
            budget_ratio=budget_ratio,
            acceleration=acceleration,
            local_start=local_start,
            row_norm=row_norm,
            clip=clip,
            noise_variance=noise_variance,
            relation=relation,
            returned_model=returned_model,
            delta=delta,
            noise_seed=noise_seed,
            target_epsilon=target_epsilon,
            h=h,
            **arguments,
        )


class DPIADMMArguments(PrimalDualStrategy):
    """The arguments of DPIADMM."""

    @takes_run_arguments
    def __init__(
        self,
        local_updates: int = 1,
        eta_rule: Literal["smooth", "nonsmooth", "strongly-convex"] = "nonsmooth",
        epsilon: float = math.inf,
        rho: float | Literal["auto"] = "auto",
        perturbation: Literal["none", "objective", "output"] = "objective",
        mechanism: Literal["gaussian", "laplace"] = "gaussian",
        *,
        budget_schedule: Literal["constant", "geometric"] = "constant",
        budget_ratio: float | Literal["auto"] = "auto",
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        strong_convexity: float | Literal["auto"] = "auto",
        smoothness: float | Literal["auto"] = "auto",
        set: Literal["none", "box", "l2"] = "none",
        set_radius: float = 1.0,
        sensitivity: Literal["clip", "paper"] = "clip",
        noise_scale: float | Literal["auto"] = "auto",
        clip: float | Literal["none"] = "none",
        row_norm: float | Literal["none"] = "none",
        delta: float = 1e-05,
        relation: Literal["replace-one", "add-remove", "replace-agent"] = "replace-one",
        rho_c1: float = 2.0,
        rho_c2: float = 5.0,
        rho_growth: float = 1.2,
        rho_period: int = 10000,
        rho_max: float = 1000000000.0,
        noise_seed: int | Literal["none"] = "none",
        target_epsilon: float | Literal["none"] = "none",
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of dp-iadmm.

        Parameters
        ----------
        local_updates : int, default 1
            inner steps in a round (E)
        eta_rule : {"smooth", "nonsmooth", "strongly-convex"}, default "nonsmooth"
            step sizes by (15), (19) or (22)
        epsilon : float, default math.inf
            epsilon of one release: its noise, where noise-scale is auto, and the schedules; inf is
            none
        rho : float | "auto", default "auto"
            constant penalty; auto takes the schedule (24)
        perturbation : {"none", "objective", "output"}, default "objective"
            what the noise is added to
        mechanism : {"gaussian", "laplace"}, default "gaussian"
            distribution of the noise
        budget_schedule : {"constant", "geometric"}, default "constant"
            noise over the rounds: the same in all, or geometric, where noise and its key are those
            of round 1 and each later round has budget-ratio times that before
        budget_ratio : float | "auto", default "auto"
            noise of a round over that of the round before; auto is the root of the rate at which
            the algorithm contracts, where theory knows it
        value_bits : {"none", "4", "8", "16", "32", "noise"}, default "none"
            bits of a number in an upload, coded as its difference to what both sides hold; noise:
            the step is half the charged noise, about 3.7 bits where the noise is as large as the
            signal
        strong_convexity : float | "auto", default "auto"
            strong convexity of every f_p (alpha); auto is the problem's
        smoothness : float | "auto", default "auto"
            smoothness of every f_p (L); auto is the problem's
        set : {"none", "box", "l2"}, default "none"
            the set W that models stay in
        set_radius : float, default 1.0
            radius of the set
        sensitivity : {"clip", "paper"}, default "clip"
            what noise is scaled by; paper: a number computed from the data, which is not private
        noise_scale : float | "auto", default "auto"
            scale of the noise on a gradient; auto is epsilon's
        clip : float | "none", default "none"
            norm bound of a gradient, or of an update where that is clipped
        row_norm : float | "none", default "none"
            rows, the intercept included, are scaled down to this public L2 norm; none leaves them
        delta : float, default 1e-05
            delta at which epsilon is stated
        relation : {"replace-one", "add-remove", "replace-agent"}, default "replace-one"
            which change of the data epsilon is about: a record replaced, or added or removed, or
            all records of an agent replaced
        rho_c1 : float, default 2.0
            c1 of the schedule (24)
        rho_c2 : float, default 5.0
            c2 of (24), divided by epsilon
        rho_growth : float, default 1.2
            factor of c1 after every period; rho never decreases
        rho_period : int, default 10000
            rounds of a period (T_c)
        rho_max : float, default 1000000000.0
            largest rho
        noise_seed : int | "none", default "none"
            seed of the privacy noise: marks the run not private; none: the system's random bytes
        target_epsilon : float | "none", default "none"
            total epsilon of the run, which sets the noise; none: the noise is taken as given
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            local_updates=local_updates,
            eta_rule=eta_rule,
            epsilon=epsilon,
            rho=rho,
            perturbation=perturbation,
            mechanism=mechanism,
            budget_schedule=budget_schedule,
            budget_ratio=budget_ratio,
            value_bits=value_bits,
            strong_convexity=strong_convexity,
            smoothness=smoothness,
            set=set,
            set_radius=set_radius,
            sensitivity=sensitivity,
            noise_scale=noise_scale,
            clip=clip,
            row_norm=row_norm,
            delta=delta,
            relation=relation,
            rho_c1=rho_c1,
            rho_c2=rho_c2,
            rho_growth=rho_growth,
            rho_period=rho_period,
            rho_max=rho_max,
            noise_seed=noise_seed,
            target_epsilon=target_epsilon,
            **arguments,
        )


class FedPDMArguments(PrimalDualStrategy):
    """The arguments of FedPDM."""

    @takes_run_arguments
    def __init__(
        self,
        rho: float | Literal["auto"] = "auto",
        max_local_steps: int = 10,
        step_size_base: float | Literal["auto"] = "auto",
        sparsifier: Literal["none", "top-k", "rand-k", "public-top-k", "noisy-top-k"] = "none",
        dual: Literal["auto", "private", "public"] = "auto",
        *,
        preset: Literal["none", "private"] = "none",
        batch: Literal["full", "sample", "cyclic"] = "full",
        batch_size: int = 32,
        clip: float | Literal["none"] = "none",
        clipping: Literal["example", "batch"] = "example",
        relation: Literal["replace-one", "add-remove", "replace-agent"] = "replace-one",
        step_size_rule: Literal["auto", "constant", "inverse-sqrt", "cosine"] = "auto",
        step_size_rounds: int = 0,
        noise_scale: float | Literal["none"] = "none",
        batches: int | Literal["auto"] = "auto",
        noise_bands: int = 1,
        budget_schedule: Literal["constant", "geometric"] = "constant",
        budget_ratio: float | Literal["auto"] = "auto",
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        nu: float | Literal["none"] = "none",
        uplink_k: int | Literal["auto"] = "auto",
        alpha_u: float = 1.0,
        row_norm: float | Literal["none"] = "none",
        aggregation: Literal["participants", "plain", "table", "latest"] = "participants",
        downlink_k: int | Literal["auto"] = "auto",
        alpha_d: float = 1.0,
        delta: float = 1e-05,
        noise_seed: int | Literal["none"] = "none",
        target_epsilon: float | Literal["none"] = "none",
        h: ProximalFunction | None = None,
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of fed-pdm.

        Parameters
        ----------
        rho : float | "auto", default "auto"
            penalty of the augmented Lagrangian; auto is 1.0, or 0.1 where no agent knows its moduli
        max_local_steps : int, default 10
            local steps in a round (Q)
        step_size_base : float | "auto", default "auto"
            local step size of the first round; auto is 0.04, or 0.1 where no agent knows its moduli
        sparsifier : {"none", "top-k", "rand-k", "public-top-k", "noisy-top-k"}, default "none"
            which coordinates an agent sends
        dual : {"auto", "private", "public"}, default "auto"
            the paper's, or computed by both sides from what was released; auto: public with noise
        preset : {"none", "private"}, default "none"
            private: values for a certified run in place of defaults
        batch : {"full", "sample", "cyclic"}, default "full"
            examples in a step: all, batch-size, or cyclic: batches in turn, each example in one
            round of so many, with one local step and dual = public
        batch_size : int, default 32
            examples in a step, with batch = poisson on average
        clip : float | "none", default "none"
            norm bound of a gradient, or of an update where that is clipped
        clipping : {"example", "batch"}, default "example"
            what is clipped: each example's gradient or the whole batch's
        relation : {"replace-one", "add-remove", "replace-agent"}, default "replace-one"
            which change of the data epsilon is about: a record replaced, or added or removed, or
            all records of an agent replaced
        step_size_rule : {"auto", "constant", "inverse-sqrt", "cosine"}, default "auto"
            constant, divided by sqrt(1 + t) in round t = 0, 1, ..., or cosine: half a wave down to
            a hundredth over step-size-rounds, which it keeps then; auto is inverse-sqrt, or
            constant where no agent knows its moduli
        step_size_rounds : int, default 0
            rounds over which the step size falls
        noise_scale : float | "none", default "none"
            standard deviation of the noise
        batches : int | "auto", default "auto"
            batches that an agent's examples are put in with batch = cyclic; auto takes noise-bands
        noise_bands : int, default 1
            steps in a row whose noise is correlated so that sums over steps have less of it, at
            most batches; 1 for independent noise
        budget_schedule : {"constant", "geometric"}, default "constant"
            noise over the rounds: the same in all, or geometric, where noise and its key are those
            of round 1 and each later round has budget-ratio times that before
        budget_ratio : float | "auto", default "auto"
            noise of a round over that of the round before; auto is the root of the rate at which
            the algorithm contracts, where theory knows it
        value_bits : {"none", "4", "8", "16", "32", "noise"}, default "none"
            bits of a number in an upload, coded as its difference to what both sides hold; noise:
            the step is half the charged noise, about 3.7 bits where the noise is as large as the
            signal
        nu : float | "none", default "none"
            local steps end when the squared gradient norm is at most this; none takes them all
        uplink_k : int | "auto", default "auto"
            coordinates an agent sends; auto takes alpha-u
        alpha_u : float, default 1.0
            share of the coordinates an agent sends
        row_norm : float | "none", default "none"
            rows, the intercept included, are scaled down to this public L2 norm; none leaves them
        aggregation : {"participants", "plain", "table", "latest"}, default "participants"
            mean over those that sent a coordinate, plain mean, with a table of all duals, or mean
            of what all agents sent last, which an asynchronous run needs
        downlink_k : int | "auto", default "auto"
            coordinates the server sends; auto takes alpha-d
        alpha_d : float, default 1.0
            share of the coordinates the server sends
        delta : float, default 1e-05
            delta at which epsilon is stated
        noise_seed : int | "none", default "none"
            seed of the privacy noise: marks the run not private; none: the system's random bytes
        target_epsilon : float | "none", default "none"
            total epsilon of the run, which sets the noise; none: the noise is taken as given
        h : ProximalFunction | None, optional
            weighed against the mean of the f_i; none by default
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            rho=rho,
            max_local_steps=max_local_steps,
            step_size_base=step_size_base,
            sparsifier=sparsifier,
            dual=dual,
            preset=preset,
            batch=batch,
            batch_size=batch_size,
            clip=clip,
            clipping=clipping,
            relation=relation,
            step_size_rule=step_size_rule,
            step_size_rounds=step_size_rounds,
            noise_scale=noise_scale,
            batches=batches,
            noise_bands=noise_bands,
            budget_schedule=budget_schedule,
            budget_ratio=budget_ratio,
            value_bits=value_bits,
            nu=nu,
            uplink_k=uplink_k,
            alpha_u=alpha_u,
            row_norm=row_norm,
            aggregation=aggregation,
            downlink_k=downlink_k,
            alpha_d=alpha_d,
            delta=delta,
            noise_seed=noise_seed,
            target_epsilon=target_epsilon,
            h=h,
            **arguments,
        )
