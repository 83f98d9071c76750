"""``privet pin``: make a node's long-lived key, and collect those of its peers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privet.core import ConfigError


def pin(
    key: Annotated[Path, typer.Argument(help="The node's trust-key; made unless it is there.")],
    lines: Annotated[
        list[Path] | None,
        typer.Argument(help="Files with the lines that other operators gave you."),
    ] = None,
    agent: Annotated[str, typer.Option(help="The agent's name on this node.")] = "",
    peers: Annotated[
        Path | None, typer.Option(help="The node's trust-peers, to which the lines are added.")
    ] = None,
) -> None:
    """Make a node's key for secure sums, print its line, and collect the lines of its peers.

    Give the line to the operators of the other nodes yourself, never through the coordinator. A
    name that is there with another key is refused: take its old line out first.
    """
    from privet.core.files import read_text, write_whole
    from privet.kernel.trust import make_key, peer_line, read_key, read_peers
    from privet.wire.rosters import is_name, sort_names

    if not is_name(agent):
        raise ConfigError("--agent: give the name that the agent on this node has in runs")
    if lines and peers is None:
        raise ConfigError("--peers: give the file that the lines of other operators are added to")
    if not key.exists():
        make_key(key)
    try:
        own = peer_line(agent, read_key(str(key)).public)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{key}: {error}") from None
    typer.echo(own, nl=False)
    if peers is None:
        return
    known: dict[str, bytes] = {}
    before = [peers] if peers.exists() else []
    for file in (key, *before, *(lines or [])):
        try:
            found = read_peers(own if file == key else read_text(file))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{file}: {error}") from None
        for name, public in found.items():
            if known.setdefault(name, public) != public:
                raise ConfigError(f"{file}: {name} has another key than before: take one out")
            if len(set(known.values())) != len(known):
                raise ConfigError(f"{file}: the key of {name} is another agent's as well")
    text = "".join(peer_line(name, known[name]) for name in sort_names(known))
    write_whole(peers, text.encode())
    typer.echo(f"{peers}: {len(known)} agents", err=True)
