"""A federation as a scikit-learn classifier or regressor, on the in-process engine."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import sklearn.utils.validation
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from privet.client_apps import SklearnModel
from privet.core import algorithm
from privet.core.log_level import hushed
from privet.core.registry import DEFAULT_ALGORITHM
from privet.data.scaling import moments_of, several_units
from privet.data.source_column import ColumnFacts, SourceColumn
from privet.data.tables.sites import between
from privet.problems import LinearModel
from privet.problems.reference import NEWTON_UP_TO
from privet.rounds.nearness import REACHED, rounds_to
from privet.rounds.views import History, plot
from privet.server_apps import read_config
from privet.server_apps.account import privacy_account
from privet.server_apps.build import build_strategy
from privet.server_apps.progress_bar import is_live, progress
from privet.strategies import Observer, PrivetResult
from privet.wire import Layout
from privet.wire.contract import means_privacy

from .inline import grid_of

Part = tuple[NDArray[Any], NDArray[Any]]

FAR = 0.01
"""Loss above the pooled optimum, relative to it, or distance to it over the norm, from which a fit
warns."""


class _Federated(BaseEstimator):  # type: ignore[misc]
    """Base of classifier and regressor: parameters, partitioning of the data, the run."""

    def __init__(
        self,
        strategy: str = DEFAULT_ALGORITHM,
        estimator: Any = None,
        *,
        n_agents: int = 5,
        rounds: int = 100,
        settings: Mapping[str, Any] | None = None,
        target_epsilon: float | None = None,
        delta: float = 1e-5,
        clip: float = 1.0,
        row_norm: float = 1.0,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.strategy = strategy
        self.estimator = estimator
        self.n_agents = n_agents
        self.rounds = rounds
        self.settings = settings
        self.target_epsilon = target_epsilon
        self.delta = delta
        self.clip = clip
        self.row_norm = row_norm
        self.random_state = random_state
        self.verbose = verbose

    # ------------------------------------------------------------------ fitting

    def _fit(
        self,
        parts: list[Part],
        classes: Sequence[Any],
        usual: Any,
        random: Any,
        test: Part | None,
    ) -> None:
        """Train on the parts of the agents; ``usual`` is the estimator where none is given.

        ``test`` is what loss and accuracy are of; without it they are those of the training data.
        """
        private = self.target_epsilon is not None
        total = sum(len(labels) for _, labels in parts)
        model = SklearnModel(
            usual if self.estimator is None else clone(self.estimator),
            self.n_features_in_,
            classes,
            total,
            regularize_intercept=private,
        )
        divisor = None if private else total / len(parts)
        problems = tuple(model.problem(rows, targets, divisor=divisor) for rows, targets in parts)
        seed = int(random.randint(2**31 - 1))
        result = self._run(model, problems, seed, test, _pooled(parts))
        self.estimator_ = model.fitted(result.arrays)
        self.coef_, self.intercept_ = self.estimator_.coef_, self.estimator_.intercept_
        self.history_ = History(done.to_dict() for done in result.history)
        self.n_iter_ = len(result.history)
        self.estimated_error_ = result.estimated_error

    def _run(
        self,
        model: SklearnModel,
        problems: tuple[LinearModel[Any], ...],
        seed: int,
        test: Part | None,
        training: Part,
    ) -> PrivetResult:
        config = read_config(self._config(len(problems), seed))
        strategy = build_strategy(config)
        # Loss and accuracy of training data are releases that no account covers.
        private = self.target_epsilon is not None or means_privacy(config)
        if test is not None or not private:
            strategy.monitor = _Monitor(model, *(test or training))
        grid = grid_of(config["algorithm"], problems)
        rounds = int(config["num-server-rounds"])
        with _shown(rounds, self.verbose) as observers:
            result = strategy.start(
                grid,
                model.arrays(),
                num_rounds=rounds,
                tolerance=config["tolerance"],
                observers=observers,
                log_rounds=False,
            )
        if not private and config.get("h", "zero") == "zero":
            self._warn_if_far(model, training, result)
        # The formula as printed needs a run config's regulariser, and is no claim.
        self.privacy_ = privacy_account(strategy, {**config, "regularizer": "none"})
        return result

    def _config(self, agents: int, seed: int) -> dict[str, Any]:
        """Return the run config; ``settings`` has the last word."""
        config: dict[str, Any] = {
            "algorithm": self.strategy,
            "num-server-rounds": self.rounds,
            "num-agents": agents,
            "seed": seed,
        }
        if self.target_epsilon is not None:
            config["target-epsilon"] = float(self.target_epsilon)
            config["delta"] = float(self.delta)
            config["clip"], config["row-norm"] = float(self.clip), float(self.row_norm)
            config |= algorithm(self.strategy).load_agent().noise_settings
        extra = {key.replace("_", "-"): value for key, value in (self.settings or {}).items()}
        return {**config, **extra}

    def _warn_if_far(self, model: SklearnModel, training: Part, result: PrivetResult) -> None:
        """Warn of a fit that ended far above the optimum of the pooled data."""
        pooled = model.problem(*training)
        x = Layout.of(result.arrays).flatten(result.arrays)
        with np.errstate(over="ignore", invalid="ignore"):
            value = pooled.value(x)
        excess = _excess(pooled, x) if math.isfinite(value) else math.inf
        away = _relative_distance(pooled, x) if result.estimated_error > FAR else 0.0
        if excess <= FAR * (value - excess) and away <= FAR:
            return
        far = f"the pooled data's least is about {value - excess:.3g}"
        if away > FAR:
            far += f", {away:.2g} of the coefficients' norm away"
        advice = "give more rounds or local-epochs"
        if more := rounds_to(result.history, REACHED):
            advice = f"give about {more} more rounds"
        if not math.isfinite(value):
            far, advice = "it diverged", "give a smaller step-size"
        elif _has_hessian(pooled):
            given = _condition(pooled)
            scaled = _condition(
                model.problem(StandardScaler().fit_transform(training[0]), training[1])
            )
            far += f"; the condition number is {given:.1g}"
            if scaled < 0.1 * given:
                far += f", {scaled:.1g} with scaled features"
                advice = "put a StandardScaler before it"
        warnings.warn(
            f"{self.strategy}: the loss is {value:.3g} after {len(result.history)} rounds, {far}: "
            f"{advice}",
            ConvergenceWarning,
            stacklevel=5,
        )

    # ------------------------------------------------------------------ data

    def _parts(self, X: Any, y: Any, random: Any) -> list[Part]:
        """Return checked (features, labels) of every agent."""
        if _is_parted(X):
            return self._given_parts(X, y)
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        features, labels = _validated(self, X, y, reset=True)
        agents = self._agents(len(labels))
        order = random.permutation(len(labels))
        return [(features[rows], labels[rows]) for rows in np.array_split(order, agents)]

    def _agents(self, count: int) -> int:
        """Return the number of agents that so many examples are dealt to."""
        agents = self._positive("n_agents")
        if agents > count:
            samples = "1 sample" if count == 1 else f"{count} samples"
            raise ValueError(f"n_agents: {samples} cannot give each of {agents} agents one")
        return agents

    def _given_parts(self, X: Sequence[Any], y: Any) -> list[Part]:
        if y is None or len(X) != len(y):
            given = "no labels" if y is None else f"{len(y)} label arrays"
            raise ValueError(f"found {len(X)} feature arrays and {given}: one each per agent")
        parts = []
        for number, (rows, labels) in enumerate(zip(X, y, strict=True)):
            try:
                parts.append(_validated(self, rows, labels, reset=number == 0))
            except ValueError as error:
                raise ValueError(f"agent {number}: {error}") from None
        if self.target_epsilon is None:  # a warning would tell of the records
            known = getattr(self, "feature_names_in_", range(parts[0][0].shape[1]))
            names, columns = [f"feature {name}" for name in known], [rows for rows, _ in parts]
            if is_regressor(self):
                names, columns = [*names, "y"], [np.column_stack(part) for part in parts]
            _warn_of_units(columns, names)
        return parts

    def _test(self, given: tuple[Any, Any] | None) -> Part | None:
        """Return the checked features and labels of an ``eval_set``."""
        if given is None:
            return None
        try:
            rows, labels = given
            features, labels = _validated(self, rows, labels, reset=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"eval_set: expected a pair (X, y): {error}") from None
        return features, labels

    def plot(self, *names: str) -> Any:
        """Return a matplotlib figure of measures over the rounds, as `PrivetResult.plot`."""
        check_is_fitted(self)
        return plot(self.history_, *names)

    def _positive(self, name: str) -> int:
        value = int(getattr(self, name))
        if value < 1:
            raise ValueError(f"{name} must be >= 1, found {value}")
        return value

    def _rows(self, X: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self)
        rows: NDArray[Any] = _validated(self, X, None, reset=False)
        return rows


class _Monitor:
    """Loss (a mean, without the penalty) and accuracy of the models on given data."""

    def __init__(self, model: SklearnModel, features: NDArray[Any], labels: NDArray[Any]) -> None:
        self.model, self.features, self.labels = model, features, labels
        self.regression = not len(model.classes)
        self.problem = model.problem(features, labels)

    def __call__(self, round_: int, models: Mapping[str, Any]) -> dict[str, float]:
        """Return ``loss``, and the ``accuracy`` of a classifier."""
        x = models["last"]
        numbers = {"loss": float(self.problem.value(x) - self.problem.regularizer.value(x))}
        if not self.regression:
            fitted = self.model.fitted(x)
            numbers["accuracy"] = float(np.mean(fitted.predict(self.features) == self.labels))
        return numbers


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """Trains a linear scikit-learn classifier over agents that keep their data.

    ``fit`` takes one data set per agent, or one data set that it deals to ``n_agents`` agents at
    random. Everything runs in this process, through the strategies, messages and agent halves of a
    deployment: what an agent sends, and what it costs, is what it would be there.

    Parameters
    ----------
    strategy : str
        Name of the algorithm: "fed-plt", "dp-iadmm", "fed-pdm", ...
    estimator : LogisticRegression or SGDClassifier(loss="log_loss"), optional
        The model and its penalty, as in `privet.client_apps.SklearnModel`;
        ``LogisticRegression()`` by default.
    n_agents : int
        Agents a single data set is dealt to; more than it has examples are refused.
    rounds : int
        Communication rounds.
    settings : mapping, optional
        Run-config keys of the algorithm, e.g. ``{"rho": 5.0, "local-epochs": 20, "h": "l1"}``;
        underscores may stand for hyphens.
    target_epsilon : float, optional
        Total privacy budget of every agent's records over the whole run; the noise is solved for
        it. None trains without noise.
    delta : float
        Of the budget.
    clip, row_norm : float
        Bounds of an example's gradient and of its features (with the intercept's 1), enforced
        where ``target_epsilon`` is given. Public: choose them without looking at the data.
    random_state : int, RandomState or None
        Deals the data and draws participants and mini-batches; never the noise.
    verbose : bool
        Whether to show the run: a bar on a terminal and in a notebook, else its settings and a
        line of the log now and then.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_, coef_, intercept_
        As in scikit-learn; the names are those of a DataFrame.
    estimator_ : classifier
        A fitted clone of ``estimator``.
    history_ : list of dict
        One entry a round: loss, accuracy, participants, bytes up and down, residual, epsilon, ...
        Loss (a mean, without the penalty) and accuracy are those of ``eval_set``; without it,
        those of the training data, or None in a private run, as no account would cover them. A
        notebook shows a table of it.
    privacy_ : dict
        The account of the run: ``private``, ``reason``, ``accounts``; ``str`` is one line.
    n_iter_ : int
        Rounds that were run: fewer than ``rounds`` where the algorithm estimates before that the
        model is the pooled optimum to six digits (key ``tolerance``).
    estimated_error_ : float
        That estimate, from above: the distance to the pooled optimum over the norm, by what the
        coordinator receives; NaN for algorithms that have none.

    Notes
    -----
    Without ``target_epsilon`` the run's optimum is that of ``estimator`` on the pooled data. With
    it, each f_i is the mean over the agent's own examples and the intercept is regularised, as the
    certificates ask; how many examples each agent holds, and which labels occur, is public.

    scikit-learn's ``check_estimator`` passes, where a single ``(X, y)`` is dealt to the agents; the
    input of one data set per agent, a list of two-dimensional arrays, has no place in it. There
    are no sample weights, no sparse matrices and no ``partial_fit``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_iris(return_X_y=True)
    >>> X = scale(X)
    >>> clinics = [slice(i, None, 3) for i in range(3)]
    >>> model = FederatedClassifier(rounds=50, random_state=0)
    >>> model.fit([X[c] for c in clinics], [y[c] for c in clinics]).score(X, y) > 0.9
    True
    """

    def fit(self, X: Any, y: Any, *, eval_set: tuple[Any, Any] | None = None) -> Self:
        """Train the model.

        Parameters
        ----------
        X : list of arrays (n_i, d), array (n, d), or DataFrames of them
            One an agent, or examples to be dealt.
        y : list of arrays (n_i,), or array (n,)
            Their labels.
        eval_set : pair of array (m, d) and array (m,), optional
            Test data that loss and accuracy of every round are of. They are no agent's: in a
            private run no account covers them.

        Raises
        ------
        ValueError
            If data or settings cannot be used (``ConfigError`` is one).

        Warns
        -----
        UserWarning
            Where agents spell two classes differently, as yes, no and ja, nein; or, in a run
            without privacy, have a feature in numbers so far apart that units may differ.
        ConvergenceWarning
            Where the fit ends far from the pooled optimum.
        """
        random = check_random_state(self.random_state)
        parts = self._parts(X, y, random)
        labels = np.concatenate([labels for _, labels in parts])
        try:
            self.classes_, numbers = np.unique(labels, return_inverse=True)
        except TypeError:
            raise ValueError(_of_types([labels for _, labels in parts])) from None
        if len(self.classes_) < 2:
            raise ValueError("a classifier needs at least two classes, found 1 class")
        if _is_parted(X):
            _warn_if_parted(self.classes_, numbers, [len(labels) for _, labels in parts])
        coded = np.split(numbers, np.cumsum([len(labels) for _, labels in parts])[:-1])
        data = [(rows, code) for (rows, _), code in zip(parts, coded, strict=True)]
        test = self._test(eval_set)
        if test is not None:
            unknown = np.setdiff1d(test[1], self.classes_)
            if len(unknown):
                label = str(unknown[0])
                raise ValueError(f"eval_set: label {label!r} is no class of the training data")
            test = test[0], np.searchsorted(self.classes_, test[1])
        self._fit(data, range(len(self.classes_)), LogisticRegression(), random, test)
        self.estimator_.classes_ = np.arange(len(self.classes_))
        return self

    # ------------------------------------------------------------------ use

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """Return the scores: (n,) for two classes, positive for the second, else (n, classes)."""
        rows = self._rows(X)
        scores: NDArray[Any] = self.estimator_.decision_function(rows)
        return scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of every example."""
        rows = self._rows(X)
        labels: NDArray[Any] = self.classes_[self.estimator_.predict(rows)]
        return labels

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return the probabilities of the classes, (n, classes)."""
        rows = self._rows(X)
        probabilities: NDArray[Any] = self.estimator_.predict_proba(rows)
        return probabilities


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """Trains a linear scikit-learn regressor over agents that keep their data.

    `FederatedClassifier` has the parameters, but for

    Parameters
    ----------
    estimator : Ridge, LinearRegression or SGDRegressor(loss="squared_error"), optional
        The model and its penalty, as in `privet.client_apps.SklearnModel`; ``Ridge()`` by default.

    Attributes
    ----------
    n_features_in_, feature_names_in_, coef_, intercept_
        As in scikit-learn; the names are those of a DataFrame.
    estimator_, history_, privacy_, n_iter_, estimated_error_
        As there.

    Notes
    -----
    Without ``target_epsilon`` the run's optimum is that of ``estimator`` on the pooled data. Scale
    features and target: local gradient steps take long where their sizes differ much.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = FederatedRegressor(n_agents=3, rounds=50, random_state=0)
    >>> model.fit(scale(X), scale(y)).score(scale(X), scale(y)) > 0.5
    True
    """

    def fit(self, X: Any, y: Any, *, eval_set: tuple[Any, Any] | None = None) -> Self:
        """Train the model.

        Parameters
        ----------
        X : list of arrays (n_i, d), array (n, d), or DataFrames of them
            One an agent, or examples to be dealt.
        y : list of arrays (n_i,), or array (n,)
            Their targets, numbers.
        eval_set : pair of array (m, d) and array (m,), optional
            Test data that the loss of every round is of, as in `FederatedClassifier.fit`.

        Raises
        ------
        ValueError
            If data or settings cannot be used (``ConfigError`` is one).
        """
        random = check_random_state(self.random_state)
        parts = self._parts(X, y, random)
        self._fit(parts, (), Ridge(), random, self._test(eval_set))
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the value of every example, (n,)."""
        rows = self._rows(X)
        values: NDArray[Any] = self.estimator_.predict(rows)
        return values


@contextmanager
def _shown(rounds: int, verbose: bool) -> Iterator[tuple[Observer, ...]]:
    """Give what shows the rounds; nothing is shown, but warnings, where not ``verbose``."""
    if verbose:
        level = logging.WARNING if is_live() else logging.INFO
        with hushed(level), progress(rounds, every=max(1, rounds // 20)) as show:
            yield (show,)
    else:
        with hushed():
            yield ()


def _excess(pooled: LinearModel[Any], x: NDArray[Any]) -> float:
    """Return about how far the loss at x lies above its least.

    It is what a Newton step gains, g' H^-1 g / 2 (Boyd and Vandenberghe, "Convex Optimization"
    (2004), 9.5.1); where there is no Hessian, or more than `NEWTON_UP_TO` parameters, it is
    g' g / (2 L), which is never above the excess.
    """
    gradient = pooled.gradient(x)
    if not _has_hessian(pooled):
        return float(gradient @ gradient) / (2.0 * pooled.moduli.smoothness)
    return 0.5 * float(gradient @ _newton_step(pooled, x, gradient))


def _relative_distance(pooled: LinearModel[Any], x: NDArray[Any]) -> float:
    """Return the length of a Newton step over the norm of x; 0 where there is no Hessian."""
    if not _has_hessian(pooled):
        return 0.0
    step = _newton_step(pooled, x, pooled.gradient(x))
    return float(np.linalg.norm(step)) / max(float(np.linalg.norm(x)), 1e-300)


def _newton_step(pooled: LinearModel[Any], x: NDArray[Any], gradient: NDArray[Any]) -> NDArray[Any]:
    hessian = pooled.hessian(x)  # type: ignore[attr-defined]
    step: NDArray[Any] = np.linalg.lstsq(hessian, gradient.astype(np.float64))[0]
    return step


def _has_hessian(problem: LinearModel[Any]) -> bool:
    return problem.dim <= NEWTON_UP_TO and hasattr(problem, "hessian")


def _condition(problem: LinearModel[Any]) -> float:
    """Return the condition number of the Hessian at 0, on its range."""
    matrix = problem.hessian(np.zeros(problem.dim))  # type: ignore[attr-defined]
    eigenvalues = np.linalg.eigvalsh(matrix)
    largest = float(eigenvalues[-1])
    floor = problem.dim * np.finfo(np.float64).eps * largest
    return largest / float(eigenvalues[eigenvalues > floor][0])


def _pooled(parts: Sequence[Part]) -> Part:
    return np.concatenate([rows for rows, _ in parts]), np.concatenate([one for _, one in parts])


def _is_parted(X: Any) -> bool:
    """Return whether the data are one array per agent: a list of two-dimensional arrays."""
    return isinstance(X, list | tuple) and len(X) > 0 and np.ndim(X[0]) == 2


def _of_types(labels: Sequence[NDArray[Any]]) -> str:
    """Return whose labels are of several types, or of another than the first agent's."""
    kinds = [sorted({type(one).__name__ for one in own.tolist()}) for own in labels]
    for number, own in enumerate(kinds):
        if len(own) > 1 or own != kinds[0]:
            beside = f", those of agent 0 {kinds[0][0]}" if len(own) == 1 else ""
            return f"agent {number}: labels are {' and '.join(own)}{beside}: expected one type"
    return f"labels of type {kinds[0][0]} cannot be sorted"


def _warn_if_parted(classes: NDArray[Any], numbers: NDArray[Any], counts: Sequence[int]) -> None:
    """Warn where classes part along agents, as along the files of a folder: two of them may be one
    in other words."""
    names = tuple(map(str, classes.tolist()))
    sites = {}
    for place, own in enumerate(np.split(numbers, np.cumsum(counts)[:-1])):
        found, rows = np.unique(own, return_counts=True)
        each = {names[code]: int(count) for code, count in zip(found, rows, strict=True)}
        sites[f"agent {place}"] = ColumnFacts(len(own), 0, counts=each)
    for doubt in between([SourceColumn("y", 0, names)], {"y": sites}, "y"):
        warnings.warn(doubt.text, UserWarning, stacklevel=3)


def _warn_of_units(columns: Sequence[NDArray[Any]], names: Sequence[str]) -> None:
    """Warn where a column lies so far apart at agents that it may be in several units."""
    for at, name in enumerate(names):
        known = {f"agent {n}": moments_of(own[:, at]) for n, own in enumerate(columns)}
        for found in several_units(known):
            warnings.warn(f"{name}: {found}", UserWarning, stacklevel=4)


def _validated(estimator: Any, X: Any, y: Any, *, reset: bool) -> Any:
    """Return checked arrays, as scikit-learn checks them; sets ``n_features_in_`` on a reset."""
    options: dict[str, Any] = {"reset": reset, "dtype": np.float64, "order": "C"}
    check = getattr(sklearn.utils.validation, "validate_data", None)
    if check is None:  # scikit-learn before 1.6
        check = type(estimator)._validate_data
    if y is None:
        return check(estimator, X, **options)
    numbers = is_regressor(estimator)
    features, labels = check(estimator, X, y, y_numeric=numbers, **options)
    if not numbers:
        check_classification_targets(labels)
    return features, column_or_1d(labels, dtype=np.float64 if numbers else None, warn=True)
