"""Baselines of a run in a simulation: what other ways would have made of the same rows.

Whoever simulates holds every agent's rows, so that models can be fitted on them without rules,
noise or clipping. On real nodes nobody does, and there are none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.client_apps.gradient_agents import GradientAgent
from privet.client_apps.solver_agents import SolverAgent
from privet.core.errors import one_line
from privet.core.log_level import SILENT, hushed
from privet.kernel import Problem, Zero, best_step, stream
from privet.kernel.programs.gradients import Gradients
from privet.problems import ProximalFunction, minimize
from privet.strategies import PrimalDualStrategy

from .build import starting_model
from .evaluation import Evaluation

Vector = NDArray[Any]

CONSTANT, POOLED, ALONE, FED_AVG = "constant", "pooled", "alone", "fed-avg"
USUAL_SECONDS = 2.0
"""Their processor time in a run that is not private, where the config names none."""
MOST_ALONE = 20
"""The most agents of whom each is fitted alone."""
_FORESIGHT = 0.05
"""Seconds of FedAvg after which its whole time is foreseen."""
_ROUNDS, _ITERATIONS, _TOLERANCE = 20, 50, 1e-6
"""A fit takes so many times so many iterations at most, or ends at this residual."""


class _LeftOutError(Exception):
    """A baseline cannot be had; the text is the reason."""


@dataclass(frozen=True, slots=True)
class _Clock:
    """The processor time that all baselines may take together."""

    seconds: float
    end: float

    def check(self, needed: float = 0.0) -> None:
        """Raise if the time is over, or ``needed`` seconds from now."""
        now = time.process_time()
        if now > self.end:
            raise _LeftOutError(f"left out after {self.seconds:g} s")
        if now + needed > self.end:
            raise _LeftOutError(f"left out, would take {needed:.2g} s")


def baselines(
    evaluation: Evaluation,
    strategy: PrimalDualStrategy,
    config: Mapping[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """Return the baselines of a finished run, measured on the held-out set.

    ``constant`` answers the same for every row: the commonest class, or about the mean. ``pooled``
    minimises sum_i f_i + h over all rows in one place. ``alone`` minimises f_i + h for each agent:
    the mean over agents, the ``lowest`` and ``highest`` accuracy (for a regression, loss), and the
    number of ``agents``, `MOST_ALONE` at most, evenly spread. ``fed-avg`` takes as many rounds,
    participants, local steps and examples in a step as the run, of the run's step size (2 / (L +
    lambda) of each agent where the run computes one, or has none), and averages (H. B. McMahan et
    al., 2017).

    None of them draws from a stream of the run, clips or adds noise.

    Parameters
    ----------
    evaluation : Evaluation
    strategy : PrimalDualStrategy
        After its run.
    config : mapping
        The resolved run config.
    seconds : float
        Processor time that they may take together. What is not ready then is left out, FedAvg as
        soon as that can be foreseen.

    Returns
    -------
    dict
        ``accuracy`` and ``loss`` by baseline, and the reason of each that is ``left-out``.
    """
    clock = _Clock(seconds, time.process_time() + seconds)
    federation, h = evaluation.federation, evaluation.h

    def pooled() -> dict[str, float]:
        best = evaluation.optimum()
        return federation.evaluate(_fit(federation.problems, h, clock) if best is None else best)

    ways: dict[str, Callable[[], dict[str, float]]] = {
        CONSTANT: lambda: _constant(evaluation),
        POOLED: pooled,
        ALONE: lambda: _alone(evaluation, clock),
        FED_AVG: lambda: federation.evaluate(_fed_avg(evaluation, strategy, config, clock)),
    }
    found: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name, way in ways.items():
        with np.errstate(all="ignore"), hushed(SILENT):
            try:
                clock.check()
                found[name] = way()
            except Exception as error:  # the run does not depend on it
                known = isinstance(error, _LeftOutError)
                left_out[name] = str(error) if known else one_line(repr(error))
    return {**found, "left-out": left_out} if left_out else found


def _constant(evaluation: Evaluation) -> dict[str, float]:
    """Return the numbers of the best model whose only feature is the constant 1."""
    federation = evaluation.federation
    data, model = federation.dataset, federation.held_out

    def ones(labels: Vector) -> Any:
        return model.with_features(np.ones((len(labels), 1), data.train_features.dtype), labels)

    best = minimize(ones(data.train_labels), max_iterations=_ITERATIONS, tolerance=_TOLERANCE)
    return federation.evaluate(best.x, ones(data.test_labels))


def _alone(evaluation: Evaluation, clock: _Clock) -> dict[str, float]:
    problems = evaluation.federation.problems
    count = min(len(problems), MOST_ALONE)
    places = [place * len(problems) // count for place in range(count)]
    each = [
        evaluation.federation.evaluate(_fit([problems[place]], evaluation.h, clock))
        for place in places
    ]
    mean = {key: math.fsum(one[key] for one in each) / count for key in each[0]}
    decisive = [one.get("accuracy", one["loss"]) for one in each]
    return {**mean, "lowest": min(decisive), "highest": max(decisive), "agents": count}


def _fit(problems: Sequence[Problem], h: ProximalFunction, clock: _Clock) -> Vector:
    """Return the minimiser of sum_i f_i + h, or where the last iteration stands."""
    x: Vector | None = None
    for _ in range(_ROUNDS):
        found = minimize(problems, h, x0=x, max_iterations=_ITERATIONS, tolerance=_TOLERANCE)
        x = found.x
        if found.residual <= _TOLERANCE or found.iterations < _ITERATIONS:
            break
        clock.check()
    if x is None or not np.isfinite(x).all():
        raise _LeftOutError("its numbers are not finite")
    return x


def _fed_avg(
    evaluation: Evaluation,
    strategy: PrimalDualStrategy,
    config: Mapping[str, Any],
    clock: _Clock,
) -> Vector:
    if not isinstance(evaluation.h, Zero):
        raise _LeftOutError("FedAvg has no shared regulariser h")
    federation, session = evaluation.federation, strategy.run.session
    steps = int(config.get(type(strategy).local_steps, 1))
    gradients = getattr(strategy.half.agent, "gradients", None)
    batch = gradients.batch_size if isinstance(gradients, Gradients) else 0
    x = starting_model(config, federation.dim)["x"].numpy()
    names = session.roster.names
    problem_of = _problems(federation.problems, names)
    begun = time.process_time()
    for number in range(1, session.round + 1):
        ends: list[Vector] = []
        chosen = strategy.participation.select(number, names, config["seed"])
        for name in chosen:
            problem, w = problem_of[name], x
            size = x.dtype.type(_step(strategy, problem, number))
            draws = stream(config["seed"], "baselines", name, number)
            for _ in range(steps):
                rows = None
                if 0 < batch < problem.num_examples:
                    rows = draws.choice(problem.num_examples, batch, replace=False)
                w = w - size * problem.gradient(w, rows)
            ends.append(w)
            spent = time.process_time() - begun
            rounds = session.round - number + 1 - len(ends) / len(chosen)
            # Of less time nothing can be foreseen.
            each = spent / (number - 1 + len(ends) / len(chosen))
            clock.check(each * rounds if spent > _FORESIGHT else 0.0)
        x = np.mean(ends, axis=0, dtype=np.float64).astype(x.dtype) if ends else x
        if not np.isfinite(x).all():
            raise _LeftOutError(f"FedAvg diverges at this step size, in round {number}")
    return x


def _problems(problems: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the problem of each agent: a number is that of its share; names of other kinds do not
    say whose rows are whose, so that they are given the shares in their own order."""
    numbers = {str(number): problem for number, problem in enumerate(problems)}
    if numbers.keys() >= set(names):
        return numbers
    if len(names) != len(problems):
        raise _LeftOutError(
            f"left out, as {len(problems)} shares of the data have {len(names)} agents"
        )
    return dict(zip(names, problems, strict=True))


def _step(strategy: PrimalDualStrategy, problem: Any, number: int) -> float:
    """Return the step size of an agent in a round."""
    agent: Any = strategy.half.agent
    if isinstance(agent, GradientAgent):
        return agent.step_size(number)
    given = getattr(agent, "step_size", 0.0)
    size = given if isinstance(given, float) and given > 0 else best_step(problem.moduli, math.inf)
    return float(agent.scheduled(size, number)) if isinstance(agent, SolverAgent) else size
