"""Baselines of a run in a simulation: what other ways would have made of the same rows.

Whoever simulates holds every agent's rows, so that models can be fitted on them without rules,
noise or clipping. On real nodes nobody does, and there are none.
"""

from __future__ import annotations

import math
import time
import warnings
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
from privet.problems import (
    BinaryLogistic,
    MultinomialLogistic,
    ProximalFunction,
    RidgeRegression,
    minimize,
)
from privet.strategies import PrimalDualStrategy

from .build import starting_model
from .evaluation import Evaluation, is_large

Vector = NDArray[Any]

CONSTANT, POOLED, ALONE, FED_AVG = "constant", "pooled", "alone", "fed-avg"
SCIKIT, VALIDATED = "scikit-learn", "cross-validated"
USUAL_SECONDS = 2.0
"""Their processor time in a run that is not private, where the config names none."""
MOST_ALONE = 20
"""The most agents of whom each is fitted alone."""
_FORESIGHT = 0.05
"""Seconds of FedAvg after which its whole time is foreseen."""
_SCALES, _SMALLEST_SCALE = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0), 0.05
"""Multiples of the usual step that FedAvg tries, until one is worse than that before."""
_NEWTON_WORK = 30
"""Gradients that FedAvg is given for the products of a round's Newton steps, 12 to 30."""
_VALIDATIONS = 50
"""Fits of scikit-learn's cross-validation by default: ten weights, five folds."""
_ROUNDS, _ITERATIONS, _TOLERANCE = 20, 50, 1e-6
"""A fit takes so many times so many iterations at most, or ends at this residual."""


class _LeftOutError(Exception):
    """A baseline cannot be had; the text is the reason."""


class _DivergedError(_LeftOutError):
    """FedAvg diverged."""


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
    minimises sum_i f_i + h over all rows in one place. ``scikit-learn`` is LogisticRegression() or
    Ridge() with their defaults on these rows, ``cross-validated`` LogisticRegressionCV() or
    RidgeCV(). ``alone`` minimises f_i + h for each agent: the mean over agents, the ``lowest`` and
    ``highest`` accuracy (for a regression, loss), and the number of ``agents``, `MOST_ALONE` at
    most, evenly spread. ``fed-avg`` takes as many rounds, participants, local gradients and
    examples in a step as the run (of Newton steps, their products with Hessians count), and
    averages (H. B. McMahan et al., 2017). Of `_SCALES` times the run's step size (2 / (L + lambda)
    of each agent where the run computes one, or has none) it has the one of the least pooled
    objective, of those that there is time for.

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
        By baseline ``accuracy``, ``loss`` and the ``distance`` to the pooled optimum, where they
        have a meaning, and a ``setting`` that was chosen; the reason of each that is ``left-out``.
    """
    clock = _Clock(seconds, time.process_time() + seconds)
    federation, h = evaluation.federation, evaluation.h

    def pooled() -> dict[str, Any]:
        best = evaluation.optimum()
        found = _fit(federation.problems, h, clock) if best is None else best
        return _measured(evaluation, found)

    ways: dict[str, Callable[[], dict[str, Any]]] = {
        CONSTANT: lambda: _constant(evaluation),
        POOLED: pooled,
        SCIKIT: lambda: _scikit_learn(evaluation, None),
        ALONE: lambda: _alone(evaluation, clock),
        VALIDATED: lambda: _scikit_learn(evaluation, clock),
        FED_AVG: lambda: _fed_avg(evaluation, strategy, config, clock),
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


def _measured(evaluation: Evaluation, x: Vector) -> dict[str, Any]:
    """Return accuracy and loss of a model, and its distance to the pooled optimum if that is."""
    numbers: dict[str, Any] = dict(evaluation.federation.evaluate(x))
    away = evaluation.distance(x)
    return {**numbers, **({"distance": away} if math.isfinite(away) else {})}


def _scikit_learn(evaluation: Evaluation, clock: _Clock | None) -> dict[str, Any]:
    """Return the numbers of scikit-learn's own estimator on the pooled rows.

    With a clock it is the cross-validated one, where there is time for it. It fits an intercept, in
    place of a last column of ones. The distance is that of its coefficients, where they are those
    of a model of the run.
    """
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV
    from sklearn.metrics import log_loss

    problems, held_out = evaluation.federation.problems, evaluation.federation.held_out
    if not isinstance(held_out, BinaryLogistic | MultinomialLogistic | RidgeRegression):
        raise _LeftOutError(f"scikit-learn has no default for loss {held_out.kind}")
    if is_large(problems):
        raise _LeftOutError("the rows take more than 512 MB, and scikit-learn would copy them")
    rows = np.concatenate([problem.features for problem in problems]).astype(np.float64)
    labels, truth = np.concatenate(list(map(_answers, problems))), _answers(held_out)
    test = held_out.features.astype(np.float64)
    ones = bool(np.all(rows[:, -1] == 1.0) and np.all(test[:, -1] == 1.0))
    rows, test = (rows[:, :-1], test[:, :-1]) if ones else (rows, test)
    regression = isinstance(held_out, RidgeRegression)
    model = Ridge() if regression else LogisticRegression()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fit that takes more than a hundred iterations
        if clock is None:
            model.fit(rows, labels)
        elif regression:
            model = RidgeCV().fit(rows, labels)
        else:  # of one minimiser for every weight, whichever solver finds it: a fast one
            solver = "newton-cholesky" if isinstance(held_out, BinaryLogistic) else "lbfgs"
            begun = time.process_time()
            model.set_params(solver=solver).fit(rows, labels)
            clock.check(_VALIDATIONS * (time.process_time() - begun))
            model = LogisticRegressionCV(solver=solver).fit(rows, labels)
    if regression:
        numbers = {"loss": float(np.mean((model.predict(test) - truth) ** 2))}
    else:
        chances = model.predict_proba(test)
        numbers = {
            "loss": float(log_loss(truth, chances, labels=model.classes_)),
            "accuracy": float(model.score(test, truth)),
        }
    weights = np.atleast_2d(model.coef_).T
    if ones:
        weights = np.vstack([weights, np.atleast_1d(model.intercept_)])
    away = math.nan
    if weights.size == evaluation.federation.dim and (ones or not np.any(model.intercept_)):
        away = evaluation.distance(weights.ravel())
    chosen = ""
    if clock is not None:
        chosen = f"alpha = {model.alpha_:.4g}" if regression else f"C = {np.mean(model.C_):.4g}"
    return {
        **numbers,
        **({"distance": away} if math.isfinite(away) else {}),
        **({"setting": chosen} if chosen else {}),
    }


def _answers(problem: Any) -> Vector:
    """Return the labels or targets of a problem's rows."""
    answers: Vector = problem.targets if hasattr(problem, "targets") else problem.labels
    return answers


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
    each = [_measured(evaluation, _fit([problems[place]], evaluation.h, clock)) for place in places]
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
) -> dict[str, Any]:
    """Return the numbers of FedAvg at the best multiple of its step that there was time for."""
    if not isinstance(evaluation.h, Zero):
        raise _LeftOutError("FedAvg has no shared regulariser h")
    problems = evaluation.federation.problems
    best, least, chosen = None, math.inf, 1.0
    scales = list(_SCALES)
    while scales:
        scale = scales.pop(0)
        try:
            x = _averaged(evaluation, strategy, config, clock, scale)
        except _DivergedError as error:
            if best is None and scale < _SMALLEST_SCALE:
                raise _LeftOutError(str(error)) from None
            scales = [0.5 * scale] if best is None else []
            continue
        except _LeftOutError:
            if best is None:
                raise
            break
        value = math.fsum(problem.value(x) for problem in problems)
        if not value < least and best is not None:
            break
        best, least, chosen = x, value, scale
    assert best is not None
    steps = _gradients(strategy, config)
    setting = f"{steps} gradient steps a round, {chosen:g} times the usual step"
    return {**_measured(evaluation, best), "setting": setting}


def _gradients(strategy: PrimalDualStrategy, config: Mapping[str, Any]) -> int:
    """Return the local gradients of a round: a product with a Hessian has the price of one."""
    if getattr(strategy.half.agent, "local_solver", "") == "newton":
        return _NEWTON_WORK
    return int(config.get(type(strategy).local_steps, 1))


def _averaged(
    evaluation: Evaluation,
    strategy: PrimalDualStrategy,
    config: Mapping[str, Any],
    clock: _Clock,
    scale: float,
) -> Vector:
    """Return the model of FedAvg after the run's rounds, with ``scale`` times the usual steps."""
    federation, session = evaluation.federation, strategy.run.session
    steps = _gradients(strategy, config)
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
            size = x.dtype.type(scale * _step(strategy, problem, number))
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
            raise _DivergedError(f"FedAvg diverges at this step size, in round {number}")
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
