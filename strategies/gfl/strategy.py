"""Graph federated learning (GFL): several servers, each with its own agents; the strategy.

E. Rizk, S. Vlaski, A. H. Sayed, "Privatized Graph Federated Learning", eqs. (6)-(8). In a round the
agents of unit p start from w_p and take E_k stochastic gradient steps of mu/E_k; then

    psi_p = mean over the participants of unit p of their models
    w_p   = sum_m a_pm (psi_m + g_pm)                               the exchange between servers

and the centroid w_c = (1/P) sum_p w_p approaches the minimiser of sum_i f_i (units of equal size).
The graph is in ``graph.py``, what servers send each other and how it is combined in
``mixing.py``, the server half in ``server.py``. One process may host all units, which
*simulates* the privacy scheme, or one unit whose mixer talks to the other servers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self, cast

from privet.wire import ConfigError, resolve

from .. import participation
from ..base import RUN_ARGUMENTS, PrimalDualStrategy
from ..exchange import Reply
from ..history import Round
from ..loop import PrivetResult
from .graph import Matrix, graph_edges, lazy, metropolis, second_eigenvalue
from .mixing import LocalMixer, Mixer, Perturbation
from .noise import Draws, LinkNoise, SampledNoise
from .server import Server, State

log = logging.getLogger("flwr.privet")

AGENT_KEYS = (
    "step-size",
    "local-epochs",
    "batch",
    "batch-size",
    "clip",
    "clipping",
    "delta",
    "relation",
)
SERVER_KEYS = (
    "units",
    "graph",
    "graph-edges",
    "graph-seed",
    "graph-probability",
    "graph-lazy",
    "perturbation",
    "mechanism",
    "noise-variance",
    "noise-seed",
    "closing-rounds",
)


class GFL(PrimalDualStrategy):
    """Graph federated learning as a Flower Strategy.

    Parameters
    ----------
    units : int
        P; agents say theirs (0 ... P - 1) as ``unit`` in the node config, those that do not are
        dealt to the units in blocks, by name.
    graph : str
        Which servers exchange models; see `privet.strategies.gfl.graph.graph_edges`.
    step_size : float
        mu; every one of the ``local_epochs`` steps of an agent is mu/E_k. 0 takes 0.1.
    participants : int
        L, the agents a unit asks in a round, drawn anew each round; 0 asks all.
    perturbation : {"auto", "none", "random", "homomorphic"}
        Noise on the messages between servers; "auto" is homomorphic where there is a variance.
    noise_variance : float
        sigma_g^2 of one coordinate of a message.
    weights : array (P, P), optional
        The combination matrix A in place of Metropolis weights on ``graph``.
    mixer : Mixer, optional
        Carries the messages in place of a simulation in this process; has its own A.
    noise : Draws, optional
        Source of the noise, such as `privet.privacy.SystemNoise()`; ``noise_seed`` replaces it.
    link_noise : LinkNoise, optional
        Gives the noise itself, in place of ``noise`` and its distribution.
    secure_sum : bool
        Whether the agents of a unit mask their uploads towards its server (48).
    options
        Further settings by run-config name with underscores (``graph_lazy``, ``clip``,
        ``mechanism``, ``closing_rounds``, ...), then the arguments of ``PrimalDualStrategy``.

    Notes
    -----
    Who is averaged when some are absent: a unit's participants only; a unit without any brings its
    own w_p to the exchange.
    Privacy: noise is added between servers only. A unit's own server sees its agents' models as
    they are (with ``secure_sum`` their sum), so agents with a budget refuse; see docs/gfl.md for
    what the noise gives whom.
    """

    algorithm: ClassVar[str] = "gfl"
    h_over_mean: ClassVar[bool] = True
    adds_noise: ClassVar[bool] = True
    """Whether the server itself draws privacy noise and is to be given a source of it."""

    def __init__(
        self,
        units: int = 5,
        graph: str = "ring",
        step_size: float = 0.0,
        participants: int = 0,
        perturbation: str = "auto",
        noise_variance: float = 0.0,
        *,
        weights: Any = None,
        mixer: Mixer | None = None,
        noise: Draws | None = None,
        link_noise: LinkNoise | None = None,
        secure_sum: bool = False,
        **options: Any,
    ) -> None:
        own: dict[str, Any] = {
            "units": units,
            "graph": graph,
            "step-size": step_size,
            "participants": participants,
            "perturbation": perturbation,
            "noise-variance": noise_variance,
        }
        for name in (*AGENT_KEYS, *SERVER_KEYS):
            if name.replace("-", "_") in options:
                own[name] = options.pop(name.replace("-", "_"))
        config = resolve(own, self.algorithm)
        if mixer is None:
            mixer = LocalMixer(combination_matrix(config) if weights is None else weights)
        half = Server(
            mixer=mixer,
            perturbation=_perturbation(config, noise, link_noise),
            closing_rounds=config["closing-rounds"],
            agent_settings={name: config[name] for name in AGENT_KEYS},
            secure_sum=secure_sum,
        )
        if config["participants"]:
            if not isinstance(options.get("participation"), participation.All | None):
                raise ConfigError("participants: not together with another participation")
            options["participation"] = participation.PerGroup(config["participants"], self.units_of)
        super().__init__(half, secure_sum=secure_sum, **options)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """Return the strategy that a resolved run config asks for (raises ``ConfigError``)."""
        if config["h"] != "zero":
            raise ConfigError(f"h = {config['h']!r}: gfl has no shared regulariser")
        names = (*AGENT_KEYS, *SERVER_KEYS, "participants")
        return cls(
            **{name.replace("-", "_"): config[name] for name in names},
            participation=participation.from_config(config),
            secure_sum=config["secure-sum"],
            **{name.replace("-", "_"): config[name] for name in RUN_ARGUMENTS},
            **options,
        )

    @property
    def server(self) -> Server:
        """The server half."""
        return cast(Server, self.half)

    def units_of(self) -> list[str]:
        """Return the unit of every agent, in the order of the sorted names."""
        session = self._session()
        return [self.server.group(session.state, i) for i in range(len(session.roster.agents))]

    def summary(self) -> None:
        """Log the parameters, the graph and iota_2, its second largest eigenvalue modulus."""
        super().summary()
        weights = self.server.mixer.weights
        log.info("\t└──> Graph: %d units, iota_2 = %.4g", len(weights), second_eigenvalue(weights))
        if len(self.server.mixer.units) == len(weights) > 1:
            log.info("\t     one process hosts all units: a simulation of the privacy scheme")

    def fold_round(self, replies: Mapping[str, Reply]) -> Round:
        """End a round; its record also says what became of the exchange."""
        done = super().fold_round(replies)
        session = self._session()
        state: State = session.state
        for note in state.silent:
            log.warning("round %d: %s", done.round, note)
        done = replace(
            done,
            notes=(*done.notes, *state.silent, *state.notes),
            measures={**done.measures, **self.server.measures(state)},
        )
        session.history[-1] = done
        return done

    def start(self, *args: Any, **kwargs: Any) -> PrivetResult:
        """Run, and close with exchanges without noise; see ``PrimalDualStrategy.start``.

        What is in the checkpoint is the state before the closing exchanges, so that a run can be
        resumed after them.
        """
        result = super().start(*args, **kwargs)
        session = self._session()
        if self.server.closing_rounds:
            session.state = self.server.close(session.state)
            log.info("closed with %d exchanges without noise", self.server.closing_rounds)
            result.models = {
                name: session.layout.restore(model)
                for name, model in self.half.models(session.state).items()
            }
            result.arrays = result.models["last"]
        return result


def combination_matrix(config: Mapping[str, Any]) -> Matrix:
    """Return A for a resolved run config: Metropolis weights on its graph, lazy if asked."""
    edges = graph_edges(
        config["graph"],
        config["units"],
        edges=config["graph-edges"],
        seed=config["graph-seed"],
        probability=config["graph-probability"],
    )
    weights = metropolis(edges, config["units"])
    return lazy(weights) if config["graph-lazy"] else weights


def perturbation_kind(config: Mapping[str, Any], *, given: bool = False) -> str:
    """Return what ``perturbation`` means: "auto" is homomorphic where there is noise."""
    if config["perturbation"] != "auto":
        return str(config["perturbation"])
    return "homomorphic" if given or config["noise-variance"] > 0 else "none"


def _perturbation(
    config: Mapping[str, Any], noise: Draws | None, link_noise: LinkNoise | None
) -> Perturbation:
    kind = perturbation_kind(config, given=link_noise is not None)
    if kind not in ("random", "homomorphic") or link_noise is not None:
        return Perturbation(kind, link_noise)
    sampled = SampledNoise(
        config["noise-variance"], config["mechanism"], config["noise-seed"], noise
    )
    return Perturbation(kind, sampled)
