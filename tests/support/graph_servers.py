"""Servers of a graph on loopback, without Flower: peer services and mixers over real mutual TLS."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core.key import keys_of
from privet.server_apps import read_config
from privet.server_apps.build import build_evaluation, build_strategy, starting_model
from privet.server_apps.peers.client import EdgeConnection, Health, LinkError
from privet.server_apps.peers.edge import Answer
from privet.server_apps.peers.exchange import Peers
from privet.server_apps.peers.messages import Shape
from privet.server_apps.peers.mixer import NetworkMixer
from privet.server_apps.peers.settings import PeerSettings
from privet.server_apps.peers.tls import Credentials
from privet.sim.engine import InlineGrid
from privet.sim.grid import App
from privet.sim.inline import configured_app
from privet.strategies.gfl import GFL
from privet.strategies.gfl.graph import Edge, combination_matrix
from privet.strategies.gfl.mixing import LocalMixer, Mixed, MixingInput
from privet.strategies.gfl.strategy import PeerKeys
from support.keeper import free_ports
from support.proxy import CuttableProxy
from support.tls import make_unit_certificates

Vector = NDArray[Any]
RUN = "test"


class Hosts:
    """Addresses and certificates of the units, and a proxy on each link that may be cut.

    Both directions of a cuttable edge go through a proxy of their own.
    """

    def __init__(self, folder: Path, units: int, cuttable: Iterable[Edge] = ()) -> None:
        self.names = [str(unit) for unit in range(units)]
        self.ports = dict(zip(self.names, free_ports(units), strict=True))
        self.certificates = make_unit_certificates(folder, self.names)
        self._stack = ExitStack()
        self.proxies = {
            (str(a), str(b)): self._stack.enter_context(CuttableProxy(self.ports[str(b)]))
            for edge in cuttable
            for a, b in (edge, edge[::-1])
        }

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def credentials(self, name: str) -> Credentials:
        """Return a unit's certificate, key and authority."""
        made = self.certificates[name]
        return Credentials(made.certificate, made.key, made.authority)

    def addresses(self, name: str) -> dict[str, str]:
        """Return where a unit reaches the others, through a proxy where there is one."""
        ports = {m: self.proxies[name, m].port if (name, m) in self.proxies else self.ports[m]
                 for m in self.names}  # fmt: skip
        return {m: f"https://127.0.0.1:{port}" for m, port in ports.items()}

    def settings(self, name: str, timeout: float = 5.0, run: str = RUN) -> PeerSettings:
        """Return the settings of a unit's server."""
        bind = ("127.0.0.1", self.ports[name])
        return PeerSettings(
            name, self.addresses(name), bind, self.credentials(name), run, timeout, 20.0
        )

    def cut(self, edge: Edge) -> None:
        """Cut an edge in both directions."""
        for a, b in (edge, edge[::-1]):
            self.proxies[str(a), str(b)].cut()

    def mend(self, edge: Edge) -> None:
        """Mend an edge in both directions."""
        for a, b in (edge, edge[::-1]):
            self.proxies[str(a), str(b)].mend()


def at_once(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run each job in a thread of its own and return their results in order."""
    with ThreadPoolExecutor(max(1, len(jobs))) as pool:
        return [job.result() for job in [pool.submit(job) for job in jobs]]


class Mixers:
    """A mixer for every unit, all started; `mix` lets them exchange at once."""

    def __init__(
        self, hosts: Hosts, weights: Any, dim: int, timeout: float = 5.0, dtype: str = "float64"
    ) -> None:
        self.hosts, self.weights, self.timeout = hosts, weights, timeout
        self.shape = Shape(dim, dtype)
        self.all = [self.make(name) for name in hosts.names]
        at_once([lambda mixer=mixer: mixer.start(self.shape, 20.0) for mixer in self.all])

    def make(self, name: str, **agreed: Any) -> NetworkMixer:
        """Return a new mixer for a unit, not started."""
        settings = self.hosts.settings(name, self.timeout)
        return NetworkMixer(self.weights, settings, agreed)

    def __enter__(self) -> Mixers:
        return self

    def __exit__(self, *error: object) -> None:
        at_once([mixer.close for mixer in self.all])

    def mix(
        self, round_: int, outgoing: Mapping[int, MixingInput], step: int = 0
    ) -> dict[int, Mixed]:
        """Let the given units exchange at once."""
        jobs = {
            unit: (lambda unit=unit: self.all[unit].mix(round_, outgoing[unit], step=step))
            for unit in outgoing
        }
        return dict(zip(jobs, at_once(list(jobs.values())), strict=True))


def split(outgoing: MixingInput) -> dict[int, MixingInput]:
    """Return what each unit's own server would hold of what one process holds for all."""
    return {
        unit: MixingInput(
            (unit,),
            outgoing.models[index : index + 1],
            {u: g for u, g in outgoing.shared.items() if u == unit},
            {link: g for link, g in outgoing.links.items() if link[0] == unit},
        )
        for index, unit in enumerate(outgoing.units)
    }


def rows(mixed: Mapping[int, Mixed]) -> Vector:
    """Return the models of all units (P, d)."""
    return np.concatenate([mixed[unit].models for unit in sorted(mixed)])


class LossyLink:
    """A link on which chosen requests, or the answers to them, get lost.

    ``fate`` is given the path of each request and returns "whole", "request" or "answer".
    """

    def __init__(self, peers: Peers, unit: str, fate: Callable[[str], str]) -> None:
        self.unit = unit
        self._link: EdgeConnection = peers._links[unit]
        self._fate = fate
        peers._links[unit] = self  # type: ignore[assignment]

    def post(self, path: str, body: bytes, timeout: float) -> Answer:
        """Post, and lose what is to be lost."""
        fate = self._fate(path)
        if fate == "request":
            raise LinkError("lost on the way")
        answer = self._link.post(path, body, timeout)
        if fate == "answer":
            raise LinkError("answer lost")
        return answer

    def health(self, timeout: float) -> Health:
        """Ask how the neighbour is, unless that is to be lost."""
        if self._fate("/health") != "whole":
            raise LinkError("lost on the way")
        return self._link.health(timeout)

    def close(self) -> None:
        """Close the link."""
        self._link.close()


def unit_config(hosts: Hosts, name: str, **common: Any) -> dict[str, Any]:
    """Return the run config of a unit's server."""
    made = hosts.certificates[name]
    peers = ",".join(f"{unit}={address}" for unit, address in hosts.addresses(name).items())
    return {
        "algorithm": "gfl",
        "unit": name,
        "peers": peers,
        "peer-bind": f"127.0.0.1:{hosts.ports[name]}",
        "peer-certificate": str(made.certificate),
        "peer-key": str(made.key),
        "peer-ca": str(made.authority),
        **common,
    }


def unit_grid(config: Mapping[str, Any], app: App | None = None) -> InlineGrid:
    """Return the in-process engine with the agents of the config's unit, or of all units."""
    each = config["num-agents"] // config["units"]
    dealt = [(i, str(i // each)) for i in range(config["num-agents"])]
    hosted = config.get("unit")
    nodes = [{"partition-id": i, "unit": u} for i, u in dealt if hosted in (None, u)]
    return InlineGrid(app or configured_app(), nodes, config)


def read_whole(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of one server with all units, of what several servers are given."""
    peer_keys = {key.name for key in keys_of(PeerKeys).values()}
    given = {name: value for name, value in config.items() if name not in peer_keys}
    return read_config({"algorithm": "gfl", **given})


def simulated(config: Mapping[str, Any], cut: Mapping[int, Iterable[Edge]]) -> GFL:
    """Run GFL with all units in this process and some edges failing; return the strategy."""
    resolved = read_whole(config)
    evaluation = build_evaluation(resolved)
    mixer = LocalMixer(combination_matrix(resolved), cut)
    strategy = build_strategy(resolved, monitor=evaluation, mixer=mixer)
    assert isinstance(strategy, GFL)
    grid = InlineGrid(configured_app(), resolved["num-agents"], resolved)
    start = starting_model(resolved, evaluation.federation.dim)
    strategy.start(grid, start, num_rounds=resolved["num-server-rounds"])
    return strategy


def trajectory(
    config: Mapping[str, Any], cut: Mapping[int, Iterable[Edge]] | None = None
) -> list[dict[str, Vector]]:
    """Return the units' models after 1, 2, ... rounds of a simulation."""
    found = []
    for rounds in range(1, config["num-server-rounds"] + 1):
        strategy = simulated({**config, "num-server-rounds": rounds}, cut or {})
        assert strategy.session is not None
        if config.get("perturbation") != "random":  # the only noise that does not cancel
            assert strategy.session.history[-1].measures["centroid-noise"] < 1e-14
        found.append(strategy.half.models(strategy.session.state))
    return found


def assert_same_trajectory(
    folders: Sequence[Path], config: Mapping[str, Any], cut: Mapping[int, Iterable[Edge]]
) -> None:
    """Check the units' run folders against a simulation: every round, and the last models."""
    expected = trajectory(config, cut)
    federation = build_evaluation(read_whole(config)).federation
    for unit, folder in enumerate(folders):
        rounds = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        assert [done["round"] for done in rounds] == list(range(1, len(expected) + 1))
        for done, models in zip(rounds, expected, strict=True):
            model = models[f"unit-{unit}"]
            loss, slope = federation.evaluate(model)["loss"], federation.gradient(model)
            np.testing.assert_allclose(done["loss"], loss, rtol=1e-12)
            np.testing.assert_allclose(done["stationarity"], slope @ slope, rtol=1e-12)
        with np.load(folder / "model.npz") as file:
            np.testing.assert_allclose(file["x"], expected[-1][f"unit-{unit}"], rtol=0, atol=1e-12)
