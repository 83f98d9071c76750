"""The constructors of the rivals, written by ``make keys``: do not edit.

An argument is a run-config key: its default and what is said of it are those of the field that
declares it. ``PrimalDualStrategy`` checks what is given. The arguments that all strategies
share are those of `RunArguments`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Unpack

from privet.rounds.flower.arguments import RunArguments
from privet.rounds.flower.base import PrimalDualStrategy
from privet.rounds.flower.configured import takes_run_arguments

from .base import RivalStrategy

if TYPE_CHECKING:
    from privet.problems import ProximalFunction


class DPFedSGDArguments(PrimalDualStrategy):
    """The arguments of DPFedSGD."""

    @takes_run_arguments
    def __init__(
        self,
        *,
        batch: Literal["full", "sample", "poisson", "cyclic"] = "full",
        batch_size: int = 32,
        clip: float | Literal["none"] = "none",
        clipping: Literal["example", "batch"] = "example",
        relation: Literal["replace-one", "add-remove", "replace-agent"] = "replace-one",
        step_size_base: float | Literal["auto"] = "auto",
        step_size_rule: Literal["auto", "constant", "inverse-sqrt", "cosine"] = "auto",
        step_size_rounds: int = 0,
        noise_scale: float | Literal["none"] = "none",
        batches: int | Literal["auto"] = "auto",
        noise_bands: int = 1,
        budget_schedule: Literal["constant", "geometric"] = "constant",
        budget_ratio: float | Literal["auto"] = "auto",
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        noise_sharing: bool = False,
        dropouts: int = 0,
        momentum: float = 0.9,
        delta: float = 1e-05,
        noise_seed: int | Literal["none"] = "none",
        target_epsilon: float | Literal["none"] = "none",
        h: ProximalFunction | None = None,
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of dp-fedsgd.

        Parameters
        ----------
        batch : {"full", "sample", "poisson", "cyclic"}, default "full"
            examples in a step: all, batch-size, poisson: each by a coin that nobody sees, which is
            charged for less (relation add-remove), or cyclic: batches in turn, each example in one
            step of so many
        batch_size : int, default 32
            examples in a step, with batch = poisson on average
        clip : float | "none", default "none"
            norm bound of a gradient, or of an update where that is clipped
        clipping : {"example", "batch"}, default "example"
            what is clipped: each example's gradient or the whole batch's
        relation : {"replace-one", "add-remove", "replace-agent"}, default "replace-one"
            which change of the data epsilon is about: a record replaced, or added or removed, or
            all records of an agent replaced
        step_size_base : float | "auto", default "auto"
            local step size of the first round; auto is 0.04, or 0.1 where no agent knows its moduli
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
        noise_sharing : bool, default False
            agents share out the noise of their masked sum: noise-scale is one agent's share, and
            each node's trust-colluders say how many shares may be missing
        dropouts : int, default 0
            agents that may drop out: target-epsilon sets the shares for sums without them, and for
            one repeated attempt each
        momentum : float, default 0.9
            server momentum: share of the last step that is kept
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
            batch=batch,
            batch_size=batch_size,
            clip=clip,
            clipping=clipping,
            relation=relation,
            step_size_base=step_size_base,
            step_size_rule=step_size_rule,
            step_size_rounds=step_size_rounds,
            noise_scale=noise_scale,
            batches=batches,
            noise_bands=noise_bands,
            budget_schedule=budget_schedule,
            budget_ratio=budget_ratio,
            value_bits=value_bits,
            noise_sharing=noise_sharing,
            dropouts=dropouts,
            momentum=momentum,
            delta=delta,
            noise_seed=noise_seed,
            target_epsilon=target_epsilon,
            h=h,
            **arguments,
        )


class DPFedAvgArguments(PrimalDualStrategy):
    """The arguments of DPFedAvg."""

    @takes_run_arguments
    def __init__(
        self,
        *,
        budget_schedule: Literal["constant", "geometric"] = "constant",
        budget_ratio: float | Literal["auto"] = "auto",
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        noise_scale: float | Literal["none"] = "none",
        noise_sharing: bool = False,
        dropouts: int = 0,
        batch: Literal["full", "sample"] = "full",
        batch_size: int = 32,
        clip: float | Literal["none"] = "none",
        relation: Literal["replace-one", "add-remove", "replace-agent"] = "replace-one",
        step_size_base: float | Literal["auto"] = "auto",
        step_size_rule: Literal["auto", "constant", "inverse-sqrt", "cosine"] = "auto",
        step_size_rounds: int = 0,
        max_local_steps: int = 10,
        delta: float = 1e-05,
        noise_seed: int | Literal["none"] = "none",
        target_epsilon: float | Literal["none"] = "none",
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of dp-fedavg.

        Parameters
        ----------
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
        noise_scale : float | "none", default "none"
            standard deviation of the noise
        noise_sharing : bool, default False
            agents share out the noise of their masked sum: noise-scale is one agent's share, and
            each node's trust-colluders say how many shares may be missing
        dropouts : int, default 0
            agents that may drop out: target-epsilon sets the shares for sums without them, and for
            one repeated attempt each
        batch : {"full", "sample"}, default "full"
            examples in a step: all or batch-size
        batch_size : int, default 32
            examples in a step, with batch = poisson on average
        clip : float | "none", default "none"
            norm bound of a gradient, or of an update where that is clipped
        relation : {"replace-one", "add-remove", "replace-agent"}, default "replace-one"
            which change of the data epsilon is about: a record replaced, or added or removed, or
            all records of an agent replaced
        step_size_base : float | "auto", default "auto"
            local step size of the first round; auto is 0.04, or 0.1 where no agent knows its moduli
        step_size_rule : {"auto", "constant", "inverse-sqrt", "cosine"}, default "auto"
            constant, divided by sqrt(1 + t) in round t = 0, 1, ..., or cosine: half a wave down to
            a hundredth over step-size-rounds, which it keeps then; auto is inverse-sqrt, or
            constant where no agent knows its moduli
        step_size_rounds : int, default 0
            rounds over which the step size falls
        max_local_steps : int, default 10
            local steps in a round (Q)
        delta : float, default 1e-05
            delta at which epsilon is stated
        noise_seed : int | "none", default "none"
            seed of the privacy noise: marks the run not private; none: the system's random bytes
        target_epsilon : float | "none", default "none"
            total epsilon of the run, which sets the noise; none: the noise is taken as given
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            budget_schedule=budget_schedule,
            budget_ratio=budget_ratio,
            value_bits=value_bits,
            noise_scale=noise_scale,
            noise_sharing=noise_sharing,
            dropouts=dropouts,
            batch=batch,
            batch_size=batch_size,
            clip=clip,
            relation=relation,
            step_size_base=step_size_base,
            step_size_rule=step_size_rule,
            step_size_rounds=step_size_rounds,
            max_local_steps=max_local_steps,
            delta=delta,
            noise_seed=noise_seed,
            target_epsilon=target_epsilon,
            **arguments,
        )


class FedDynArguments(PrimalDualStrategy):
    """The arguments of FedDyn."""

    @takes_run_arguments
    def __init__(
        self,
        *,
        batch: Literal["full", "sample", "poisson", "cyclic"] = "full",
        batch_size: int = 32,
        clip: float | Literal["none"] = "none",
        clipping: Literal["example", "batch"] = "example",
        relation: Literal["replace-one", "add-remove", "replace-agent"] = "replace-one",
        step_size_base: float | Literal["auto"] = "auto",
        step_size_rule: Literal["auto", "constant", "inverse-sqrt", "cosine"] = "auto",
        step_size_rounds: int = 0,
        noise_scale: float | Literal["none"] = "none",
        batches: int | Literal["auto"] = "auto",
        noise_bands: int = 1,
        max_local_steps: int = 10,
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        fed_dyn_alpha: float | Literal["auto"] = "auto",
        delta: float = 1e-05,
        noise_seed: int | Literal["none"] = "none",
        target_epsilon: float | Literal["none"] = "none",
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of fed-dyn.

        Parameters
        ----------
        batch : {"full", "sample", "poisson", "cyclic"}, default "full"
            examples in a step: all, batch-size, poisson: each by a coin that nobody sees, which is
            charged for less (relation add-remove), or cyclic: batches in turn, each example in one
            step of so many
        batch_size : int, default 32
            examples in a step, with batch = poisson on average
        clip : float | "none", default "none"
            norm bound of a gradient, or of an update where that is clipped
        clipping : {"example", "batch"}, default "example"
            what is clipped: each example's gradient or the whole batch's
        relation : {"replace-one", "add-remove", "replace-agent"}, default "replace-one"
            which change of the data epsilon is about: a record replaced, or added or removed, or
            all records of an agent replaced
        step_size_base : float | "auto", default "auto"
            local step size of the first round; auto is 0.04, or 0.1 where no agent knows its moduli
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
        max_local_steps : int, default 10
            local steps in a round (Q)
        value_bits : {"none", "4", "8", "16", "32", "noise"}, default "none"
            bits of a number in an upload, coded as its difference to what both sides hold; noise:
            the step is half the charged noise, about 3.7 bits where the noise is as large as the
            signal
        fed_dyn_alpha : float | "auto", default "auto"
            weight of the proximal term; auto is 0.1
        delta : float, default 1e-05
            delta at which epsilon is stated
        noise_seed : int | "none", default "none"
            seed of the privacy noise: marks the run not private; none: the system's random bytes
        target_epsilon : float | "none", default "none"
            total epsilon of the run, which sets the noise; none: the noise is taken as given
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            batch=batch,
            batch_size=batch_size,
            clip=clip,
            clipping=clipping,
            relation=relation,
            step_size_base=step_size_base,
            step_size_rule=step_size_rule,
            step_size_rounds=step_size_rounds,
            noise_scale=noise_scale,
            batches=batches,
            noise_bands=noise_bands,
            max_local_steps=max_local_steps,
            value_bits=value_bits,
            fed_dyn_alpha=fed_dyn_alpha,
            delta=delta,
            noise_seed=noise_seed,
            target_epsilon=target_epsilon,
            **arguments,
        )


class ScaffoldArguments(PrimalDualStrategy):
    """The arguments of Scaffold."""

    @takes_run_arguments
    def __init__(
        self,
        *,
        batch: Literal["full", "sample", "poisson", "cyclic"] = "full",
        batch_size: int = 32,
        clip: float | Literal["none"] = "none",
        clipping: Literal["example", "batch"] = "example",
        relation: Literal["replace-one", "add-remove", "replace-agent"] = "replace-one",
        step_size_base: float | Literal["auto"] = "auto",
        step_size_rule: Literal["auto", "constant", "inverse-sqrt", "cosine"] = "auto",
        step_size_rounds: int = 0,
        noise_scale: float | Literal["none"] = "none",
        batches: int | Literal["auto"] = "auto",
        noise_bands: int = 1,
        max_local_steps: int = 10,
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        server_step_size: float = 1.0,
        delta: float = 1e-05,
        noise_seed: int | Literal["none"] = "none",
        target_epsilon: float | Literal["none"] = "none",
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of scaffold.

        Parameters
        ----------
        batch : {"full", "sample", "poisson", "cyclic"}, default "full"
            examples in a step: all, batch-size, poisson: each by a coin that nobody sees, which is
            charged for less (relation add-remove), or cyclic: batches in turn, each example in one
            step of so many
        batch_size : int, default 32
            examples in a step, with batch = poisson on average
        clip : float | "none", default "none"
            norm bound of a gradient, or of an update where that is clipped
        clipping : {"example", "batch"}, default "example"
            what is clipped: each example's gradient or the whole batch's
        relation : {"replace-one", "add-remove", "replace-agent"}, default "replace-one"
            which change of the data epsilon is about: a record replaced, or added or removed, or
            all records of an agent replaced
        step_size_base : float | "auto", default "auto"
            local step size of the first round; auto is 0.04, or 0.1 where no agent knows its moduli
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
        max_local_steps : int, default 10
            local steps in a round (Q)
        value_bits : {"none", "4", "8", "16", "32", "noise"}, default "none"
            bits of a number in an upload, coded as its difference to what both sides hold; noise:
            the step is half the charged noise, about 3.7 bits where the noise is as large as the
            signal
        server_step_size : float, default 1.0
            eta_g, step of the server along the agents' mean move
        delta : float, default 1e-05
            delta at which epsilon is stated
        noise_seed : int | "none", default "none"
            seed of the privacy noise: marks the run not private; none: the system's random bytes
        target_epsilon : float | "none", default "none"
            total epsilon of the run, which sets the noise; none: the noise is taken as given
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            batch=batch,
            batch_size=batch_size,
            clip=clip,
            clipping=clipping,
            relation=relation,
            step_size_base=step_size_base,
            step_size_rule=step_size_rule,
            step_size_rounds=step_size_rounds,
            noise_scale=noise_scale,
            batches=batches,
            noise_bands=noise_bands,
            max_local_steps=max_local_steps,
            value_bits=value_bits,
            server_step_size=server_step_size,
            delta=delta,
            noise_seed=noise_seed,
            target_epsilon=target_epsilon,
            **arguments,
        )


class FedLinArguments(RivalStrategy):
    """The arguments of FedLin."""

    @takes_run_arguments
    def __init__(
        self,
        *,
        local_solver: Literal["gd"] = "gd",
        local_epochs: int = 10,
        step_size: float | Literal["auto"] = 0.1,
        batch_size: int = 32,
        strong_convexity: float = 0.0,
        smoothness: float | Literal["auto"] = "auto",
        step_size_rule: Literal["constant", "inverse-sqrt", "cosine"] = "constant",
        step_size_rounds: int = 0,
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of fed-lin.

        Parameters
        ----------
        local_solver : {"gd"}, default "gd"
            local solver
        local_epochs : int, default 10
            local solver steps in a round (N_e)
        step_size : float | "auto", default 0.1
            local step size; auto computes it from the moduli
        batch_size : int, default 32
            examples in a step
        strong_convexity : float, default 0.0
            strong convexity of every f_i; 0 is convex and no more
        smoothness : float | "auto", default "auto"
            smoothness of every f_i; auto lets each agent compute its own
        step_size_rule : {"constant", "inverse-sqrt", "cosine"}, default "constant"
            constant, divided by sqrt(1 + t) in round t = 0, 1, ..., or cosine: half a wave down to
            a hundredth over step-size-rounds, which it keeps then
        step_size_rounds : int, default 0
            rounds over which the step size falls
        value_bits : {"none", "4", "8", "16", "32", "noise"}, default "none"
            bits of a number in an upload, coded as its difference to what both sides hold; noise:
            the step is half the charged noise, about 3.7 bits where the noise is as large as the
            signal
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            local_solver=local_solver,
            local_epochs=local_epochs,
            step_size=step_size,
            batch_size=batch_size,
            strong_convexity=strong_convexity,
            smoothness=smoothness,
            step_size_rule=step_size_rule,
            step_size_rounds=step_size_rounds,
            value_bits=value_bits,
            **arguments,
        )


class FedPDArguments(RivalStrategy):
    """The arguments of FedPD."""

    @takes_run_arguments
    def __init__(
        self,
        rho: float = 3.0,
        *,
        local_solver: Literal["gd", "sgd"] = "gd",
        local_epochs: int = 10,
        step_size: float | Literal["auto"] = "auto",
        batch_size: int = 32,
        strong_convexity: float = 0.0,
        smoothness: float | Literal["auto"] = "auto",
        step_size_rule: Literal["constant", "inverse-sqrt", "cosine"] = "constant",
        step_size_rounds: int = 0,
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of fed-pd.

        Parameters
        ----------
        rho : float, default 3.0
            eta, the inverse penalty of the augmented Lagrangian
        local_solver : {"gd", "sgd"}, default "gd"
            local solver
        local_epochs : int, default 10
            local solver steps in a round (N_e)
        step_size : float | "auto", default "auto"
            local step size; auto computes it from the moduli
        batch_size : int, default 32
            examples in a step
        strong_convexity : float, default 0.0
            strong convexity of every f_i; 0 is convex and no more
        smoothness : float | "auto", default "auto"
            smoothness of every f_i; auto lets each agent compute its own
        step_size_rule : {"constant", "inverse-sqrt", "cosine"}, default "constant"
            constant, divided by sqrt(1 + t) in round t = 0, 1, ..., or cosine: half a wave down to
            a hundredth over step-size-rounds, which it keeps then
        step_size_rounds : int, default 0
            rounds over which the step size falls
        value_bits : {"none", "4", "8", "16", "32", "noise"}, default "none"
            bits of a number in an upload, coded as its difference to what both sides hold; noise:
            the step is half the charged noise, about 3.7 bits where the noise is as large as the
            signal
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            rho=rho,
            local_solver=local_solver,
            local_epochs=local_epochs,
            step_size=step_size,
            batch_size=batch_size,
            strong_convexity=strong_convexity,
            smoothness=smoothness,
            step_size_rule=step_size_rule,
            step_size_rounds=step_size_rounds,
            value_bits=value_bits,
            **arguments,
        )


class FedSplitArguments(RivalStrategy):
    """The arguments of FedSplit."""

    @takes_run_arguments
    def __init__(
        self,
        rho: float = 3.0,
        *,
        local_solver: Literal["gd", "agd", "sgd"] = "gd",
        local_epochs: int = 10,
        step_size: float | Literal["auto"] = "auto",
        batch_size: int = 32,
        strong_convexity: float = 0.0,
        smoothness: float | Literal["auto"] = "auto",
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        relaxation: float | Literal["auto"] = "auto",
        returned_model: Literal["auto", "y", "mean", "middle"] = "auto",
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of fed-split.

        Parameters
        ----------
        rho : float, default 3.0
            penalty of the splitting
        local_solver : {"gd", "agd", "sgd"}, default "gd"
            local solver
        local_epochs : int, default 10
            local solver steps in a round (N_e)
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
        returned_model : {"auto", "y", "mean", "middle"}, default "auto"
            the model of a run: y, the mean of all agents' x_i, as in the paper's figures, or the
            middle of y before and after the round; auto is y, or mean where no agent knows its
            moduli
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            rho=rho,
            local_solver=local_solver,
            local_epochs=local_epochs,
            step_size=step_size,
            batch_size=batch_size,
            strong_convexity=strong_convexity,
            smoothness=smoothness,
            value_bits=value_bits,
            relaxation=relaxation,
            returned_model=returned_model,
            **arguments,
        )


class FiveGCSArguments(RivalStrategy):
    """The arguments of FiveGCS."""

    @takes_run_arguments
    def __init__(
        self,
        rho: float = 3.0,
        *,
        local_solver: Literal["gd", "agd", "sgd"] = "gd",
        local_epochs: int = 10,
        step_size: float | Literal["auto"] = "auto",
        batch_size: int = 32,
        strong_convexity: float = 0.0,
        smoothness: float | Literal["auto"] = "auto",
        step_size_rule: Literal["constant", "inverse-sqrt", "cosine"] = "constant",
        step_size_rounds: int = 0,
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        common_convexity: float | Literal["none"] = "none",
        server_step_size: float = 1.0,
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of five-gcs.

        Parameters
        ----------
        rho : float, default 3.0
            1 / (agents * tau) of the paper
        local_solver : {"gd", "agd", "sgd"}, default "gd"
            local solver
        local_epochs : int, default 10
            local solver steps in a round (N_e)
        step_size : float | "auto", default "auto"
            local step size; auto computes it from the moduli
        batch_size : int, default 32
            examples in a step
        strong_convexity : float, default 0.0
            strong convexity of every f_i; 0 is convex and no more
        smoothness : float | "auto", default "auto"
            smoothness of every f_i; auto lets each agent compute its own
        step_size_rule : {"constant", "inverse-sqrt", "cosine"}, default "constant"
            constant, divided by sqrt(1 + t) in round t = 0, 1, ..., or cosine: half a wave down to
            a hundredth over step-size-rounds, which it keeps then
        step_size_rounds : int, default 0
            rounds over which the step size falls
        value_bits : {"none", "4", "8", "16", "32", "noise"}, default "none"
            bits of a number in an upload, coded as its difference to what both sides hold; noise:
            the step is half the charged noise, about 3.7 bits where the noise is as large as the
            signal
        common_convexity : float | "none", default "none"
            strong convexity that every f_i has (mu); none: not known
        server_step_size : float, default 1.0
            gamma of the paper
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            rho=rho,
            local_solver=local_solver,
            local_epochs=local_epochs,
            step_size=step_size,
            batch_size=batch_size,
            strong_convexity=strong_convexity,
            smoothness=smoothness,
            step_size_rule=step_size_rule,
            step_size_rounds=step_size_rounds,
            value_bits=value_bits,
            common_convexity=common_convexity,
            server_step_size=server_step_size,
            **arguments,
        )


class LEDArguments(RivalStrategy):
    """The arguments of LED."""

    @takes_run_arguments
    def __init__(
        self,
        *,
        local_solver: Literal["gd", "sgd"] = "gd",
        local_epochs: int = 10,
        step_size: float = 0.1,
        batch_size: int = 32,
        strong_convexity: float = 0.0,
        smoothness: float | Literal["auto"] = "auto",
        step_size_rule: Literal["constant", "inverse-sqrt", "cosine"] = "constant",
        step_size_rounds: int = 0,
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        dual_step_size: float | Literal["auto"] = "auto",
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of led.

        Parameters
        ----------
        local_solver : {"gd", "sgd"}, default "gd"
            local solver
        local_epochs : int, default 10
            local solver steps in a round (N_e)
        step_size : float, default 0.1
            local step size
        batch_size : int, default 32
            examples in a step
        strong_convexity : float, default 0.0
            strong convexity of every f_i; 0 is convex and no more
        smoothness : float | "auto", default "auto"
            smoothness of every f_i; auto lets each agent compute its own
        step_size_rule : {"constant", "inverse-sqrt", "cosine"}, default "constant"
            constant, divided by sqrt(1 + t) in round t = 0, 1, ..., or cosine: half a wave down to
            a hundredth over step-size-rounds, which it keeps then
        step_size_rounds : int, default 0
            rounds over which the step size falls
        value_bits : {"none", "4", "8", "16", "32", "noise"}, default "none"
            bits of a number in an upload, coded as its difference to what both sides hold; noise:
            the step is half the charged noise, about 3.7 bits where the noise is as large as the
            signal
        dual_step_size : float | "auto", default "auto"
            beta, the weight of y_i in a local step; auto is 1 / local-epochs
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            local_solver=local_solver,
            local_epochs=local_epochs,
            step_size=step_size,
            batch_size=batch_size,
            strong_convexity=strong_convexity,
            smoothness=smoothness,
            step_size_rule=step_size_rule,
            step_size_rounds=step_size_rounds,
            value_bits=value_bits,
            dual_step_size=dual_step_size,
            **arguments,
        )


class TamunaArguments(RivalStrategy):
    """The arguments of Tamuna."""

    @takes_run_arguments
    def __init__(
        self,
        *,
        local_solver: Literal["gd", "sgd"] = "gd",
        local_epochs: int = 10,
        step_size: float = 0.1,
        batch_size: int = 32,
        strong_convexity: float = 0.0,
        smoothness: float | Literal["auto"] = "auto",
        step_size_rule: Literal["constant", "inverse-sqrt", "cosine"] = "constant",
        step_size_rounds: int = 0,
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        dual_step_size: float | Literal["auto"] = "auto",
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of tamuna.

        Parameters
        ----------
        local_solver : {"gd", "sgd"}, default "gd"
            local solver
        local_epochs : int, default 10
            local solver steps in a round (N_e)
        step_size : float, default 0.1
            local step size
        batch_size : int, default 32
            examples in a step
        strong_convexity : float, default 0.0
            strong convexity of every f_i; 0 is convex and no more
        smoothness : float | "auto", default "auto"
            smoothness of every f_i; auto lets each agent compute its own
        step_size_rule : {"constant", "inverse-sqrt", "cosine"}, default "constant"
            constant, divided by sqrt(1 + t) in round t = 0, 1, ..., or cosine: half a wave down to
            a hundredth over step-size-rounds, which it keeps then
        step_size_rounds : int, default 0
            rounds over which the step size falls
        value_bits : {"none", "4", "8", "16", "32", "noise"}, default "none"
            bits of a number in an upload, coded as its difference to what both sides hold; noise:
            the step is half the charged noise, about 3.7 bits where the noise is as large as the
            signal
        dual_step_size : float | "auto", default "auto"
            eta; auto is the largest that theory allows
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            local_solver=local_solver,
            local_epochs=local_epochs,
            step_size=step_size,
            batch_size=batch_size,
            strong_convexity=strong_convexity,
            smoothness=smoothness,
            step_size_rule=step_size_rule,
            step_size_rounds=step_size_rounds,
            value_bits=value_bits,
            dual_step_size=dual_step_size,
            **arguments,
        )


class FedBuffArguments(RivalStrategy):
    """The arguments of FedBuff."""

    @takes_run_arguments
    def __init__(
        self,
        *,
        local_solver: Literal["gd", "sgd"] = "gd",
        local_epochs: int = 10,
        step_size: float = 0.1,
        batch_size: int = 32,
        strong_convexity: float = 0.0,
        smoothness: float | Literal["auto"] = "auto",
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        server_step_size: float = 1.0,
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of fed-buff.

        Parameters
        ----------
        local_solver : {"gd", "sgd"}, default "gd"
            local solver
        local_epochs : int, default 10
            local solver steps in a round (N_e)
        step_size : float, default 0.1
            local step size
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
        server_step_size : float, default 1.0
            eta_g, step of the server along the agents' mean move
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            local_solver=local_solver,
            local_epochs=local_epochs,
            step_size=step_size,
            batch_size=batch_size,
            strong_convexity=strong_convexity,
            smoothness=smoothness,
            value_bits=value_bits,
            server_step_size=server_step_size,
            **arguments,
        )


class FedAsyncArguments(RivalStrategy):
    """The arguments of FedAsync."""

    @takes_run_arguments
    def __init__(
        self,
        *,
        local_solver: Literal["gd", "sgd"] = "gd",
        local_epochs: int = 10,
        step_size: float = 0.1,
        batch_size: int = 32,
        strong_convexity: float = 0.0,
        smoothness: float | Literal["auto"] = "auto",
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        fed_async_rho: float | Literal["none"] = "none",
        fed_async_alpha: float = 0.6,
        staleness_exponent: float = 0.5,
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of fed-async.

        Parameters
        ----------
        local_solver : {"gd", "sgd"}, default "gd"
            local solver
        local_epochs : int, default 10
            local solver steps in a round (N_e)
        step_size : float, default 0.1
            local step size
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
        fed_async_rho : float | "none", default "none"
            weight of the proximal term
        fed_async_alpha : float, default 0.6
            share of an upload in the next model
        staleness_exponent : float, default 0.5
            a of the share alpha (1 + age)^(-a) of an upload of an older model
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            local_solver=local_solver,
            local_epochs=local_epochs,
            step_size=step_size,
            batch_size=batch_size,
            strong_convexity=strong_convexity,
            smoothness=smoothness,
            value_bits=value_bits,
            fed_async_rho=fed_async_rho,
            fed_async_alpha=fed_async_alpha,
            staleness_exponent=staleness_exponent,
            **arguments,
        )


class AREAArguments(RivalStrategy):
    """The arguments of AREA."""

    @takes_run_arguments
    def __init__(
        self,
        *,
        value_bits: Literal["none", "4", "8", "16", "32", "noise"] = "none",
        step_size: float = 0.1,
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of area.

        Parameters
        ----------
        value_bits : {"none", "4", "8", "16", "32", "noise"}, default "none"
            bits of a number in an upload, coded as its difference to what both sides hold; noise:
            the step is half the charged noise, about 3.7 bits where the noise is as large as the
            signal
        step_size : float, default 0.1
            step size, the same for all
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            value_bits=value_bits,
            step_size=step_size,
            **arguments,
        )
