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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

from numpy.typing import NDArray

from privet.agents.terms import NoiseTerms, PrivacyTerms
from privet.client_apps.gfl import Agent
from privet.client_apps.gradient_agents import noise
from privet.core import ConfigError
from privet.core.key import Config, read, setting
from privet.data import Federation
from privet.kernel import NoiseSource, SystemNoise
from privet.problems import public_facts
from privet.rounds import Observer, Run, participation
from privet.rounds.account import PrivetResult
from privet.rounds.hooks import Monitor, SearchAxis, Stated

from .account import Links, Spending, gfl_account
from .constructors import GFLArguments
from .graph import GRAPHS, combination_matrix, second_eigenvalue
from .measures import GflMeasures
from .mixing import PERTURBATIONS, LocalMixer, Mixer, Perturbation, perturbation_kind
from .noise import LinkNoise, SampledNoise
from .server import Server

log = logging.getLogger("flwr.privet")

Vector = NDArray[Any]


@dataclass(frozen=True)
class GraphSettings:
    """The servers, their graph, and what they send each other."""

    topic: ClassVar[str] = "Servers of graph federated learning"

    units: int = setting(5, "servers, each with its own agents (P)", low=1)
    graph: str = setting(
        "ring",
        "which servers exchange models",
        choices=GRAPHS,
    )
    graph_edges: str = setting("", "pairs of units, such as 0-1,1-2", needs={"graph": "edges"})
    graph_seed: int = setting(0, "seed of the graph", low=0, needs={"graph": "erdos-renyi"})
    graph_probability: float = setting(
        0.5,
        "share of the pairs that are joined, where graph = erdos-renyi",
        low=0,
        high=1,
        needs={"graph": "erdos-renyi"},
    )
    graph_lazy: bool = setting(False, "weights (A + I) / 2 in place of Metropolis weights A")
    participants: int = setting(
        0,
        "agents a unit asks in a round (L)",
        low=0,
        words={"all": 0},
        needs={"participation": "all"},
    )
    perturbation: str = setting(
        "auto",
        "noise on a message between servers; auto: homomorphic where there is a variance",
        choices=("auto", *PERTURBATIONS),
    )
    mechanism: str = setting(
        "gaussian", "distribution of the noise", choices=("gaussian", "laplace")
    )
    noise_variance: float = noise(0.0, "sigma_g^2 of a message between servers")
    closing_rounds: int = setting(
        0,
        "exchanges without noise after the last round, towards the mean of the models",
        low=0,
    )


@dataclass(frozen=True)
class PeerKeys:
    """Where a server that hosts one unit finds the others."""

    topic: ClassVar[str] = "Servers of graph federated learning"

    unit: str = setting("", "the unit this server hosts; empty hosts all of them, a simulation")
    unit_agents: int = setting(
        0,
        "agents that this server waits for; auto is num-agents / units",
        low=0,
        words={"auto": 0},
        needs={"unit": None},
    )
    peers: str = setting(
        "",
        "the other servers, such as 1=https://host:9443,2=https://host:9443",
        needs={"unit": None},
        operational=True,
    )
    peer_bind: str = setting(
        "127.0.0.1:9443",
        "address and port at which this server listens for the others",
        needs={"unit": None},
        operational=True,
    )
    peer_certificate: str = setting(
        "",
        "absolute path of the certificate with the name unit-<unit>",
        needs={"unit": None},
        operational=True,
        path=(),
    )
    peer_key: str = setting(
        "",
        "absolute path of the certificate's private key",
        needs={"unit": None},
        operational=True,
        path=(),
    )
    peer_ca: str = setting(
        "",
        "absolute path of the authority that signed all servers' certificates",
        needs={"unit": None},
        operational=True,
        path=(),
    )
    peer_timeout: float = setting(
        60.0,
        "seconds that a round waits for another server",
        low=0,
        open_low=True,
        needs={"unit": None},
        operational=True,
    )
    gfl_run: str = setting("gfl", "name of the run, the same on all servers", needs={"unit": None})


class GFL(GFLArguments):
    """Graph federated learning as a Flower Strategy.

    Notes
    -----
    Agents say their unit (0 ... P - 1) as ``unit`` in the node config; those that do not are dealt
    to the units in blocks, by name. The graphs are those of
    `privet.strategies.gfl.graph.graph_edges`.
    Who is averaged when some are absent: a unit's participants only; a unit without any brings its
    own w_p to the exchange.
    Privacy: noise is added between servers only. A unit's own server sees its agents' models as
    they are, with ``secure_sum`` (48) their sum, so agents with a budget refuse; see docs/gfl.md
    for what the noise gives whom.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = (
        "units mix their models with those that their neighbours have in the same round"
    )
    settings: ClassVar[tuple[type, ...]] = (Agent, GraphSettings, PeerKeys, NoiseTerms)
    server_half = Server
    positional = ("units", "graph", "step_size", "participants", "perturbation", "noise_variance")
    h_over_mean: ClassVar[bool] = True
    search: ClassVar[tuple[SearchAxis, ...]] = (SearchAxis("step-size", 0.05, 3.0, "smoothness"),)

    objects: ClassVar[Mapping[str, tuple[str, str]]] = {
        "weights": (
            "Any",
            "array (P, P), the combination matrix A in place of Metropolis weights on ``graph``",
        ),
        "mixer": (
            "Mixer | None",
            "carries the messages in place of a simulation in this process; has its own A",
        ),
        "noise": (
            "NoiseSource | None",
            "such as `privet.kernel.SystemNoise()`, in place of ``noise_seed``",
        ),
        "link_noise": (
            "LinkNoise | None",
            "gives the noise itself, in place of ``noise`` and its distribution",
        ),
    }
    config_only: ClassVar[tuple[type, ...]] = (PeerKeys,)

    @classmethod
    def half_of(cls, config: Config, **objects: Any) -> Server:
        """As every algorithm, with what carries and noises the messages between servers."""
        mixer: Mixer | None = objects.get("mixer")
        if mixer is None:
            weights = objects.get("weights")
            mixer = LocalMixer(combination_matrix(config) if weights is None else weights)
        return Server(
            Agent.from_settings(config),
            perturbation=_perturbation(config, objects.get("noise"), objects.get("link_noise")),
            closing_rounds=config["closing-rounds"],
            secure_sum=config.get("secure-sum", False),
            mixer=mixer,
            terms=read(PrivacyTerms, config),
        )

    def _set_up(self, config: Config, arguments: Mapping[str, Any]) -> None:
        if config["participants"]:
            if not isinstance(arguments.get("participation"), participation.All | None):
                raise ConfigError("participants: not together with another participation")
            who = participation.PerGroup(config["participants"], self.units_of)
            arguments = {**arguments, "participation": who}
        super()._set_up(config, arguments)

    @classmethod
    def from_config(cls, config: Config, **options: Any) -> Self:
        """Return the strategy of a resolved run config; the noise is the system's if not given."""
        return super().from_config(config, **{"noise": SystemNoise(), **options})

    @classmethod
    def measures(
        cls, config: Mapping[str, Any], federation: Federation, optimum: Callable[[], Vector | None]
    ) -> tuple[Monitor, ...]:
        """Return `GflMeasures`: deviations from the optimum, and the epsilon of the links."""
        links = Links.of(config, public_facts(federation.problems[0]))
        spending = None if links is None else Spending(links, config["delta"])
        return (GflMeasures(optimum, config["units"], spending),)

    def account(
        self, config: Mapping[str, Any], stated: Callable[[], Stated | None]
    ) -> dict[str, Any]:
        """Return the account: never private as a whole, with a bound on the links alone."""
        if self.session is None:
            return gfl_account(self.server, config, 0, None)
        state = self.session.state  # None in a plan
        repeated = [] if state is None else state.repeated.tolist()
        return gfl_account(self.server, config, self.session.round, stated(), repeated)

    @property
    def server(self) -> Server:
        """The server half."""
        return cast(Server, self.half)

    def units_of(self) -> list[str]:
        """Return the unit of every agent, in the order of the sorted names."""
        session = self.run.session
        return [self.server.group(session.state, i) for i in range(len(session.roster.agents))]

    def summary(self) -> None:
        """Log the parameters, the graph and iota_2, its second largest eigenvalue modulus."""
        super().summary()
        weights = self.server.mixer.weights
        log.info("\t└──> Graph: %d units, iota_2 = %.4g", len(weights), second_eigenvalue(weights))
        if len(self.server.mixer.units) == len(weights) > 1:
            log.info("\t     one process hosts all units: a simulation of the privacy scheme")

    def start(self, *args: Any, **kwargs: Any) -> PrivetResult:
        """Run, and close with exchanges without noise; see ``PrimalDualStrategy.start``.

        What is in the checkpoint is the state before the closing exchanges, so that a run can be
        resumed after them.
        """
        observers = (*kwargs.pop("observers", ()), _Closing())
        return super().start(*args, observers=observers, **kwargs)


class _Closing(Observer):
    """Brings the units together at the end of a run."""

    def on_end(self, run: Run) -> None:
        """Do the closing exchanges."""
        half = cast(Server, run.half)
        if half.closing_rounds:
            run.session.state = half.close(run.session.state)
            log.info("closed with %d exchanges without noise", half.closing_rounds)


def _perturbation(
    config: Mapping[str, Any], noise: NoiseSource | None, link_noise: LinkNoise | None
) -> Perturbation:
    kind = perturbation_kind(config, given=link_noise is not None)
    if kind not in ("random", "homomorphic") or link_noise is not None:
        return Perturbation(kind, link_noise)
    sampled = SampledNoise(
        config["noise-variance"], config["mechanism"], config["noise-seed"], noise
    )
    return Perturbation(kind, sampled)
