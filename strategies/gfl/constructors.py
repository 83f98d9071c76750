"""The constructors of GFL, written by ``make keys``: do not edit.

An argument is a run-config key: its default and what is said of it are those of the field that
declares it. ``PrimalDualStrategy`` checks what is given. The arguments that all strategies
share are those of `RunArguments`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack

from privet.rounds.flower.arguments import RunArguments
from privet.rounds.flower.base import PrimalDualStrategy
from privet.rounds.flower.configured import takes_run_arguments

if TYPE_CHECKING:
    from privet.kernel import NoiseSource

    from .mixing import Mixer
    from .noise import LinkNoise


class GFLArguments(PrimalDualStrategy):
    """The arguments of GFL."""

    @takes_run_arguments
    def __init__(
        self,
        units: int = 5,
        graph: Literal["ring", "complete", "path", "star", "erdos-renyi", "grid", "edges"] = "ring",
        step_size: float = 0.1,
        participants: int | Literal["all"] = "all",
        perturbation: Literal["auto", "none", "random", "homomorphic"] = "auto",
        noise_variance: float | Literal["none"] = "none",
        *,
        batch: Literal["full", "sample"] = "full",
        batch_size: int = 32,
        clip: float | Literal["none"] = "none",
        clipping: Literal["example", "batch"] = "example",
        relation: Literal["replace-one", "add-remove", "replace-agent"] = "replace-one",
        local_epochs: int = 10,
        graph_edges: str = "",
        graph_seed: int = 0,
        graph_probability: float = 0.5,
        graph_lazy: bool = False,
        mechanism: Literal["gaussian", "laplace"] = "gaussian",
        closing_rounds: int = 0,
        delta: float = 1e-05,
        noise_seed: int | Literal["none"] = "none",
        weights: Any = None,
        mixer: Mixer | None = None,
        noise: NoiseSource | None = None,
        link_noise: LinkNoise | None = None,
        **arguments: Unpack[RunArguments],
    ) -> None:
        """Take the parameters of gfl.

        Parameters
        ----------
        units : int, default 5
            servers, each with its own agents (P)
        graph : {"ring", "complete", "path", "star", "erdos-renyi", "grid", "edges"}, default "ring"
            which servers exchange models
        step_size : float, default 0.1
            mu; each of the local-epochs steps is mu / E_k
        participants : int | "all", default "all"
            agents a unit asks in a round (L)
        perturbation : {"auto", "none", "random", "homomorphic"}, default "auto"
            noise on a message between servers; auto: homomorphic where there is a variance
        noise_variance : float | "none", default "none"
            sigma_g^2 of a message between servers
        batch : {"full", "sample"}, default "full"
            examples in a step: all or batch-size
        batch_size : int, default 32
            examples in a step, with batch = poisson on average
        clip : float | "none", default "none"
            norm bound of a gradient, or of an update where that is clipped
        clipping : {"example", "batch"}, default "example"
            what is clipped: each example's gradient or the whole batch's
        relation : {"replace-one", "add-remove", "replace-agent"}, default "replace-one"
            which change of the data epsilon is about: a record replaced, or added or removed, or
            all records of an agent replaced
        local_epochs : int, default 10
            local steps in a round (E_k)
        graph_edges : str, default ""
            pairs of units, such as 0-1,1-2
        graph_seed : int, default 0
            seed of the graph
        graph_probability : float, default 0.5
            share of the pairs that are joined, where graph = erdos-renyi
        graph_lazy : bool, default False
            weights (A + I) / 2 in place of Metropolis weights A
        mechanism : {"gaussian", "laplace"}, default "gaussian"
            distribution of the noise
        closing_rounds : int, default 0
            exchanges without noise after the last round, towards the mean of the models
        delta : float, default 1e-05
            delta at which epsilon is stated
        noise_seed : int | "none", default "none"
            seed of the privacy noise: marks the run not private; none: the system's random bytes
        weights : Any, optional
            array (P, P), the combination matrix A in place of Metropolis weights on ``graph``
        mixer : Mixer | None, optional
            carries the messages in place of a simulation in this process; has its own A
        noise : NoiseSource | None, optional
            such as `privet.kernel.SystemNoise()`, in place of ``noise_seed``
        link_noise : LinkNoise | None, optional
            gives the noise itself, in place of ``noise`` and its distribution
        **arguments
            what every strategy takes: `privet.strategies.RunArguments` says what each is
        """
        super().__init__(
            units=units,
            graph=graph,
            step_size=step_size,
            participants=participants,
            perturbation=perturbation,
            noise_variance=noise_variance,
            batch=batch,
            batch_size=batch_size,
            clip=clip,
            clipping=clipping,
            relation=relation,
            local_epochs=local_epochs,
            graph_edges=graph_edges,
            graph_seed=graph_seed,
            graph_probability=graph_probability,
            graph_lazy=graph_lazy,
            mechanism=mechanism,
            closing_rounds=closing_rounds,
            delta=delta,
            noise_seed=noise_seed,
            weights=weights,
            mixer=mixer,
            noise=noise,
            link_noise=link_noise,
            **arguments,
        )
