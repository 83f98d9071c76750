"""Noise for algorithms whose cost depends on who takes part when: FedPDM and its rivals.

Who takes part follows from the seed and the agents' names before the run begins, and what a round
costs an agent from public numbers; so the noise is set for the agent that will pay most.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from privet.datasets import Federation
from privet.privacy import check_sparsifier, fed_pdm_certificate
from privet.privacy.calibrate import fed_pdm_noise_scale
from privet.problems import LinearModel
from privet.strategies import participation
from privet.strategies.configured import step_size
from privet.strategies.roster import Roster
from privet.wire import ConfigError
from privet.wire.selection import budget

log = logging.getLogger("flwr.privet")

Sensitivity = Callable[[int, int], float]
"""(round, number of examples) -> sensitivity of one use of the mechanism."""


def calibrate_scheduled(
    half: Any, config: Mapping[str, Any], federation: Federation, roster: Roster
) -> Any:
    """Return the half whose ``noise-scale`` meets ``target-epsilon`` for every planned agent.

    An agent that joins later changes the schedule; the account counts what really happened.

    Raises
    ------
    ConfigError
        If an agent declares no number of examples.
    NoCertificateError
        If no sensitivity is proven for the configuration.
    """
    uses = planned(config, roster)
    if config["algorithm"] == "fed-pdm":
        sensitivity, repeats = _fed_pdm(half, config, federation), 1
    else:
        sensitivity, repeats = _clipped_steps(config), int(config["max-local-steps"])
    costs = [[sensitivity(t, count) for t in rounds] for count, rounds in uses if rounds]
    # Gaussian releases compose by the sum of squares, whatever their order.
    worst = max(costs, key=lambda cost: math.fsum(s * s for s in cost))
    scale = fed_pdm_noise_scale(
        [s for s in worst for _ in range(repeats)],
        epsilon=config["target-epsilon"],
        delta=config["delta"],
    )
    log.info(
        "noise-scale %.4g for epsilon %g, %d participations at most",
        scale,
        config["target-epsilon"],
        max(map(len, costs)),
    )
    return replace(half, agent_settings={**half.agent_settings, "noise-scale": scale})


def planned(config: Mapping[str, Any], roster: Roster) -> list[tuple[int, list[int]]]:
    """Return (number of examples, rounds it takes part in) of every agent."""
    names = roster.names
    rounds: dict[str, list[int]] = {name: [] for name in names}
    who = participation.from_config(config)
    for number in range(1, config["num-server-rounds"] + 1):
        for name in who.select(number, names, config["seed"]):
            rounds[name].append(number)
    counts = {name: roster.agents[name].num_examples for name in names}
    if min(counts.values()) < 1:
        raise ConfigError("target-epsilon needs agents that declare their example counts")
    return [(counts[name], rounds[name]) for name in names]


def _batch(config: Mapping[str, Any], count: int) -> int:
    return count if config["batch"] == "full" else min(int(config["batch-size"]), count)


def _fed_pdm(half: Any, config: Mapping[str, Any], federation: Federation) -> Sensitivity:
    first: LinearModel[Any] = federation.problems[0]
    steps = int(config["max-local-steps"])
    settings = half.settings()
    whole = budget(config["uplink-k"], config["alpha-u"], first.dim) == first.dim
    check_sparsifier("none" if whole else str(config["sparsifier"]))

    def sensitivity(round_: int, count: int) -> float:
        return fed_pdm_certificate(
            clipping=config["clipping"],
            clip=config["clip"],
            rho=config["rho"],
            step_size=step_size(config, round_),
            local_steps=steps,
            batch_size=_batch(config, count),
            num_examples=count,
            loss=first.kind,
            row_norm=config["row-norm"] or None,
            regularizer_modulus=(first.regularizer.moduli.strong_convexity if steps > 1 else 0.0),
            stopping_threshold=config["nu"],
            dual=settings["dual"],
            relation=config["relation"],
        ).sensitivity

    return sensitivity


def _clipped_steps(config: Mapping[str, Any]) -> Sensitivity:
    """One noised mean of clipped gradients: 2C/b (replace-one), C/b, or 2C for whole batches."""
    clip = float(config["clip"])
    moved = 2.0 if config["relation"] == "replace-one" else 1.0
    if config["clipping"] == "batch":
        return lambda round_, count: 2.0 * clip
    return lambda round_, count: moved * clip / _batch(config, count)
