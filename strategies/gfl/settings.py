"""The run-config keys of graph federated learning beside those of its agents."""

from __future__ import annotations

from dataclasses import dataclass

from privet.client_apps.gradient_agents import noise
from privet.wire.key import setting

from .graph import GRAPHS
from .mixing import PERTURBATIONS


@dataclass(frozen=True)
class GraphSettings:
    """The servers, their graph, and what they send each other."""

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
        0, "agents a unit asks in a round (L); 0 asks all", low=0, needs={"participation": "all"}
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

    unit: str = setting("", "the unit this server hosts; empty hosts all of them, a simulation")
    unit_agents: int = setting(
        0,
        "agents that this server waits for; 0 takes num-agents / units",
        low=0,
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
    )
    peer_key: str = setting(
        "", "absolute path of the certificate's private key", needs={"unit": None}, operational=True
    )
    peer_ca: str = setting(
        "",
        "absolute path of the authority that signed all servers' certificates",
        needs={"unit": None},
        operational=True,
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
