"""Which algorithms exist: name -> lazy dotted names of the two halves.

Other packages add theirs by the entry point group ``privet.algorithms``, whose objects are
``Algorithm`` instances. Nothing is imported until a half is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from .errors import ConfigError, did_you_mean, said_of

log = logging.getLogger("flwr.privet")

ENTRY_POINT_GROUP = "privet.algorithms"
DEFAULT_ALGORITHM = "fed-plt"
"""The algorithm that runs where none is named."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm: where its halves are.

    Attributes
    ----------
    name : str
        Protocol name in messages and run configs, kebab-case.
    strategy : str or type
        ``"package.module:Class"`` of the Flower Strategy, a ``PrimalDualStrategy``, or the class.
    agent : str or type
        ``"package.module:Class"`` of the agent half, or the class.
    """

    name: str
    strategy: str | type
    agent: str | type

    def load_strategy(self) -> Any:
        """Import and return the Strategy class (raises ``ConfigError``)."""
        return _load(self.strategy)

    def load_agent(self) -> Any:
        """Import and return the agent half's class (raises ``ConfigError``)."""
        return _load(self.agent)


def _of_this_library(name: str, module: str, strategy: str) -> Algorithm:
    """Return an algorithm whose halves are in modules of the same name."""
    agent = f"privet.client_apps.{module}:Agent"
    return Algorithm(name, f"privet.strategies.{module}:{strategy}", agent)


BUILT_IN: tuple[Algorithm, ...] = (
    _of_this_library("fed-plt", "fed_plt", "FedPLT"),
    _of_this_library("dp-iadmm", "dp_iadmm", "DPIADMM"),
    _of_this_library("fed-pdm", "fed_pdm", "FedPDM"),
    _of_this_library("dp-fedsgd", "rivals.dp_fedsgd", "DPFedSGD"),
    _of_this_library("dp-fedavg", "rivals.dp_fedavg", "DPFedAvg"),
    _of_this_library("fed-dyn", "rivals.fed_dyn", "FedDyn"),
    _of_this_library("scaffold", "rivals.scaffold", "Scaffold"),
    _of_this_library("fed-lin", "rivals.fed_lin", "FedLin"),
    _of_this_library("fed-pd", "rivals.fed_pd", "FedPD"),
    _of_this_library("fed-split", "rivals.fed_split", "FedSplit"),
    _of_this_library("five-gcs", "rivals.five_gcs", "FiveGCS"),
    _of_this_library("led", "rivals.led", "LED"),
    _of_this_library("tamuna", "rivals.tamuna", "Tamuna"),
    _of_this_library("fed-buff", "rivals.fed_buff", "FedBuff"),
    _of_this_library("fed-async", "rivals.fed_async", "FedAsync"),
    _of_this_library("area", "rivals.area", "AREA"),
    _of_this_library("gfl", "gfl", "GFL"),
)


ANALYSES: tuple[Algorithm, ...] = (
    _of_this_library("describe", "analyses.describe", "Describe"),
    _of_this_library("glm", "analyses.glm", "GLM"),
    _of_this_library("cox", "analyses.cox", "Cox"),
    _of_this_library("kaplan-meier", "analyses.kaplan_meier", "KaplanMeier"),
)
"""What is computed of tables by sums, and trains no model."""


def analyses() -> dict[str, Algorithm]:
    """Return all analyses by name."""
    return {analysis.name: analysis for analysis in ANALYSES}


def algorithms() -> dict[str, Algorithm]:
    """Return all algorithms by name, the built-in ones and those of entry points."""
    return _available()[0]


@lru_cache(maxsize=1)
def _available() -> tuple[dict[str, Algorithm], dict[str, str]]:
    """Return the algorithms by name, and by entry point why those of a package cannot be had."""
    available, broken = {one.name: one for one in BUILT_IN} | _REGISTERED, {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            loaded = entry.load()
        except Exception as error:  # whatever another package's import does
            why = f"{entry.value} cannot be imported: {said_of(error)}"
        else:
            if isinstance(loaded, Algorithm):
                available.setdefault(loaded.name, loaded)
                continue
            why = f"{entry.value} is of type {type(loaded).__name__}, not an Algorithm"
        log.warning("algorithm %s is left out: %s", entry.name, why)
        broken[entry.name] = why
    return available, broken


def _of_this_process() -> dict[str, Algorithm]:
    """Return the algorithms that no other package has to be asked for."""
    return {algorithm.name: algorithm for algorithm in (*BUILT_IN, *ANALYSES)} | _REGISTERED


def algorithm(name: str) -> Algorithm:
    """Return one algorithm.

    Entry points are looked for where this library has none of the name, as that reads a file of
    each installed package: a tenth of what a message costs that starts a process.

    Raises
    ------
    ConfigError
        If no algorithm of this name is registered, or its package cannot be imported; the line
        lists those that are, and says where a strategy of Flower's own is.
    """
    if (own := _of_this_process().get(name)) is not None:
        return own
    available, broken = _available()
    if name not in available:
        if name in broken:
            raise ConfigError(f"algorithm {name!r}: {broken[name]}")
        near = _of_flower(name) or did_you_mean(name, {**available, **analyses()})
        raise ConfigError(
            f"unknown algorithm {name!r}: known are {', '.join(sorted(available))}, and the "
            f"analyses {', '.join(sorted(analyses()))}{near}"
        )
    return available[name]


def _of_flower(name: str) -> str:
    """Return the end of a line on the name of one of Flower's own strategies, or nothing."""
    from flwr.serverapp import strategy

    named = {one.lower(): one for one in strategy.__all__}
    known = named.get(name.lower().replace("-", "").replace("_", ""))
    return f"; {known} is Flower's own: flwr.serverapp.strategy.{known}" if known else ""


_REGISTERED: dict[str, Algorithm] = {}


@contextmanager
def registered(algorithm: Algorithm) -> Iterator[None]:
    """Have an algorithm known in this process, as in a notebook or a test, while the block runs.

    Other processes, such as Ray's, know those of entry points alone.
    """
    _REGISTERED[algorithm.name] = algorithm
    _available.cache_clear()
    try:
        yield
    finally:
        del _REGISTERED[algorithm.name]
        _available.cache_clear()


@lru_cache(maxsize=256)
def _load(dotted: str | type) -> Any:
    if isinstance(dotted, type):
        return dotted
    module, _, attribute = dotted.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:
        raise ConfigError(f"{dotted} cannot be imported: {said_of(error)}") from error
