"""Nodes whose operators have pinned each other's keys: in simulation, one operator is all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from privet.core import ConfigError
from privet.kernel.node_rules import ALLOW_RUN_DATA
from privet.kernel.trust import make_key, peer_line, read_key
from privet.server_apps.build import agents_of
from privet.server_apps.planning import require_fewer


def require_colluders(config: Mapping[str, Any], colluders: int | None) -> None:
    """Raise ``ConfigError`` unless a number is given where noise is shared, and only there.

    It is of the nodes beside the one that is promised something, so below the number of agents.
    """
    sharing = bool(config.get("noise-sharing", False))
    if colluders is not None and not sharing:
        raise ConfigError("--colluders: not used without noise-sharing = true")
    if colluders is None and sharing:
        raise ConfigError(
            "noise-sharing = true: give --colluders, how many of the nodes may collude"
        )
    if colluders is not None:
        require_fewer("--colluders", colluders, agents_of(config))


def trusting_nodes(
    folder: Path, names: Iterable[str], colluders: int, relation: str = "replace-one"
) -> list[dict[str, Any]]:
    """Write long-lived keys of agents into a folder, and return the configs of nodes with them.

    Parameters
    ----------
    folder : Path
        Absolute; it must stay while the nodes work.
    names : iterable of str
        Of the agents, of whom each pins all.
    colluders : int
        The nodes' ``trust-colluders``.
    relation : str
        The nodes' own.
    """
    names = list(names)
    peers, lines = folder / "peers.toml", []
    configs: list[dict[str, Any]] = []
    for place, name in enumerate(names):
        key = folder / f"{place}.key"
        key.unlink(missing_ok=True)
        make_key(key)
        lines.append(peer_line(name, read_key(str(key)).public))
        configs.append(
            {
                "agent": name,
                "partition-id": place,
                "num-partitions": len(names),
                ALLOW_RUN_DATA: True,
                "relation": relation,
                "trust": "sum",
                "trust-colluders": colluders,
                "trust-key": str(key),
                "trust-peers": str(peers),
            }
        )
    peers.write_text("".join(lines))
    return configs
