"""From a total epsilon to the noise: set once the agents and their example counts are known."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from privet.datasets import Federation
from privet.privacy import NoCertificateError
from privet.privacy.calibrate import dp_iadmm_noise_scale, fed_plt_tau
from privet.privacy.sensitivity import fed_plt_contraction
from privet.problems import best_step
from privet.strategies.roster import Roster
from privet.wire import ConfigError

from .calibration_scheduled import calibrate_scheduled

log = logging.getLogger("flwr.privet")

Prepare = Callable[[Any, Roster], Any]


def calibrate(config: Mapping[str, Any], federation: Federation) -> Prepare | None:
    """Return what sets the noise for ``target-epsilon``, None where no target is given.

    The noise is set for an agent that takes part in every round and has the fewest examples, so
    that no agent can exceed the target whoever is drawn; for FedPDM and its rivals for the agent
    that will pay most under the planned participation. The account afterwards counts what each
    agent really did.

    Raises
    ------
    ConfigError
        If the run cannot be private as configured.
    """
    target = float(config["target-epsilon"])
    if target <= 0:
        return None
    if config["algorithm"] not in (*_CALIBRATORS, *_SCHEDULED):
        raise ConfigError(f"target-epsilon: {config['algorithm']} has no calibration")
    if config["clip"] <= 0:
        raise ConfigError("target-epsilon needs clip > 0")

    def prepare(half: Any, roster: Roster) -> Any:
        try:
            if config["algorithm"] in _SCHEDULED:
                return calibrate_scheduled(half, config, federation, roster)
            return _for_every_round(half, roster)
        except NoCertificateError as error:
            raise ConfigError(f"target-epsilon: {error}") from None

    def _for_every_round(half: Any, roster: Roster) -> Any:
        fewest = min(agent.num_examples for agent in roster.agents.values())
        if fewest < 1:
            raise ConfigError("target-epsilon needs agents that declare their example counts")
        return _CALIBRATORS[config["algorithm"]](half, config, federation, fewest)

    return prepare


def fed_plt_step(config: Mapping[str, Any], federation: Federation) -> tuple[float, float]:
    """Return (gamma, chi) of Fed-PLT's clipped steps from public numbers only.

    Raises
    ------
    ConfigError
        Without ``row-norm``.
    NoCertificateError
        For settings in which nothing is proven.
    """
    first = federation.problems[0]
    if config["row-norm"] <= 0:
        raise ConfigError("a private run needs row-norm, a public bound on the rows")
    moduli = type(first).public_moduli(config["row-norm"], first.regularizer)
    step = config["step-size"] or best_step(moduli, config["rho"])
    chi = fed_plt_contraction(
        loss=first.kind,
        step_size=step,
        strong_convexity=max(moduli.strong_convexity, 0.0),
        smoothness=moduli.smoothness,
        rho=config["rho"],
        regularizer=first.regularizer.kind,
        solver=config["local-solver"],
    )
    return step, chi


def _fed_plt(half: Any, config: Mapping[str, Any], federation: Federation, fewest: int) -> Any:
    step, chi = fed_plt_step(config, federation)
    tau = fed_plt_tau(
        epsilon=config["target-epsilon"],
        delta=config["delta"],
        rounds=config["num-server-rounds"],
        clip=config["clip"],
        num_examples=fewest,
        step_size=step,
        local_steps=config["local-epochs"],
        contraction=chi,
        relation=config["relation"],
    )
    log.info("noise-variance %.4g for epsilon %g", tau**2, config["target-epsilon"])
    return replace(half, agent_settings={**half.agent_settings, "noise-variance": tau**2})


_SCHEDULED = ("fed-pdm", "dp-fedsgd", "fed-dyn", "scaffold")


def _dp_iadmm(half: Any, config: Mapping[str, Any], federation: Federation, fewest: int) -> Any:
    own = all(problem.divisor == problem.num_examples for problem in federation.problems)
    divisor = fewest if own else int(min(problem.divisor for problem in federation.problems))
    once = config["perturbation"] == "output"
    scale = dp_iadmm_noise_scale(
        epsilon=config["target-epsilon"],
        delta=config["delta"],
        rounds=config["num-server-rounds"],
        clip=config["clip"],
        num_examples=divisor,
        local_updates=1 if once else config["local-updates"],
        mechanism=config["mechanism"],
        relation=config["relation"],
    )
    log.info("noise-scale %.4g for epsilon %g", scale, config["target-epsilon"])
    return replace(half, agent_settings={**half.agent_settings, "noise-scale": scale})


_CALIBRATORS: dict[str, Callable[[Any, Mapping[str, Any], Federation, int], Any]] = {
    "dp-iadmm": _dp_iadmm,
    "fed-plt": _fed_plt,
}

__all__ = ["calibrate", "fed_plt_step"]
