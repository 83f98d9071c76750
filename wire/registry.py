"""Which algorithms exist: name -> lazy dotted names of the two halves.

Other packages add theirs by the entry point group ``privet.algorithms``, whose objects are
``Algorithm`` instances. Nothing is imported until a half is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from .errors import ConfigError

ENTRY_POINT_GROUP = "privet.algorithms"
DEFAULT_ALGORITHM = "fed-plt"
"""What runs where nothing is said."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm: where its halves are.

    Attributes
    ----------
    name : str
        Protocol name in messages and run configs, kebab-case.
    strategy : str
        ``"package.module:Class"`` of the Flower Strategy, a ``PrimalDualStrategy``; the class has
        ``from_config(config) -> Strategy``.
    agent : str
        ``"package.module:Class"`` of the agent half; the class has
        ``from_settings(settings) -> half``.
    """

    name: str
    strategy: str
    agent: str

    def load_strategy(self) -> Any:
        """Import and return the Strategy class."""
        return _load(self.strategy)

    def load_agent(self) -> Any:
        """Import and return the agent half's class."""
        return _load(self.agent)


BUILT_IN: tuple[Algorithm, ...] = (
    Algorithm("fed-plt", "privet.strategies.fed_plt:FedPLT", "privet.client_apps.fed_plt:Agent"),
    Algorithm(
        "dp-iadmm", "privet.strategies.dp_iadmm:DPIADMM", "privet.client_apps.dp_iadmm:Agent"
    ),
    Algorithm("fed-pdm", "privet.strategies.fed_pdm:FedPDM", "privet.client_apps.fed_pdm:Agent"),
    Algorithm(
        "dp-fedsgd",
        "privet.strategies.rivals.dp_fedsgd:DPFedSGD",
        "privet.client_apps.rivals.dp_fedsgd:Agent",
    ),
    Algorithm(
        "fed-dyn",
        "privet.strategies.rivals.fed_dyn:FedDyn",
        "privet.client_apps.rivals.fed_dyn:Agent",
    ),
    Algorithm(
        "scaffold",
        "privet.strategies.rivals.scaffold:Scaffold",
        "privet.client_apps.rivals.scaffold:Agent",
    ),
    Algorithm(
        "fed-lin",
        "privet.strategies.rivals.fed_lin:FedLin",
        "privet.client_apps.rivals.fed_lin:Agent",
    ),
    Algorithm(
        "fed-pd", "privet.strategies.rivals.fed_pd:FedPD", "privet.client_apps.rivals.fed_pd:Agent"
    ),
    Algorithm(
        "fed-split",
        "privet.strategies.rivals.fed_split:FedSplit",
        "privet.client_apps.rivals.fed_split:Agent",
    ),
    Algorithm(
        "five-gcs",
        "privet.strategies.rivals.five_gcs:FiveGCS",
        "privet.client_apps.rivals.five_gcs:Agent",
    ),
    Algorithm("led", "privet.strategies.rivals.led:LED", "privet.client_apps.rivals.led:Agent"),
    Algorithm(
        "tamuna", "privet.strategies.rivals.tamuna:Tamuna", "privet.client_apps.rivals.tamuna:Agent"
    ),
    Algorithm("gfl", "privet.strategies.gfl:GFL", "privet.client_apps.gfl:Agent"),
)


@lru_cache(maxsize=1)
def algorithms() -> dict[str, Algorithm]:
    """Return all algorithms by name, the built-in ones and those of entry points."""
    found = {algorithm.name: algorithm for algorithm in BUILT_IN}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        loaded: Algorithm = entry.load()
        found.setdefault(loaded.name, loaded)
    return found


def algorithm(name: str) -> Algorithm:
    """Return one algorithm.

    Raises
    ------
    ConfigError
        If no algorithm of this name is registered; the line lists those that are.
    """
    found = algorithms()
    if name not in found:
        raise ConfigError(f"unknown algorithm {name!r}: known are {', '.join(sorted(found))}")
    return found[name]


def _load(dotted: str) -> Callable[..., Any]:
    module, _, attribute = dotted.partition(":")
    loaded: Callable[..., Any] = getattr(import_module(module), attribute)
    return loaded
