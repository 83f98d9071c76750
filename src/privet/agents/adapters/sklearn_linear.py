"""scikit-learn's linear estimators as Problems, and models as fitted estimators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

from privet.core import ConfigError
from privet.data.meaning import Meaning
from privet.kernel import FloatArray
from privet.problems import (
    L2,
    BinaryLogistic,
    LinearModel,
    MultinomialLogistic,
    NoRegularizer,
    Regularizer,
    RidgeRegression,
    SlopesL2,
)
from privet.problems.linear import MatrixScoreModel
from privet.wire import Layout

from ..inputs import Vector

Metrics = Callable[[Any, Any], Mapping[str, float]]
CLASSIFIERS = ("LogisticRegression", "SGDClassifier")
REGRESSORS = ("LinearRegression", "Ridge", "SGDRegressor")


class OneVsRestLogistic(MatrixScoreModel):
    """f(X) = (1/D) sum_i sum_k log(1 + exp(-b_ik <a_i, X_k>)) + r(X), b_ik = +1 iff c_i = k.

    X has shape (d, K), one column a class, and is flattened in C order. ``labels`` (n,) are the
    c_i, integers 0..classes-1, K = ``classes`` >= 2; `LinearModel` has the other arguments.
    """

    kind: ClassVar[str] = "one-vs-rest-logistic"

    def _scores(self, x: FloatArray, design: FloatArray) -> FloatArray:
        scores: FloatArray = x.reshape(-1, self.classes).T.dot(design.T)
        return scores

    def _losses(self, x: FloatArray) -> FloatArray:
        signed = self._scores(x, self._design)
        signed[self._targets, np.arange(self.num_examples)] *= -1.0
        result: FloatArray = np.logaddexp(0.0, signed, dtype=self.dtype).sum(axis=0)
        return result

    def _residuals(
        self, x: FloatArray, design: FloatArray, targets: npt.NDArray[np.intp]
    ) -> FloatArray:
        # The sigmoid through tanh, which cannot overflow.
        result = self._scores(x, design)
        result *= 0.5
        np.tanh(result, result)
        result *= 0.5
        result += 0.5
        result[targets, np.arange(len(targets))] -= 1.0
        return result

    def _product(self, design: FloatArray, residuals: FloatArray) -> FloatArray:
        result: FloatArray = residuals.dot(design)
        return result

    def _flatten(self, product: FloatArray) -> FloatArray:
        return product.T.reshape(-1)

    predict_margin = staticmethod(MultinomialLogistic.predict_margin)


@dataclass(frozen=True, eq=False)
class SklearnModel:
    """The settings that server and agents share to train a linear estimator of scikit-learn.

    f_i is the mean over the agent's examples of

    - ``LogisticRegression``: the (multinomial) logistic loss, plus ||w||^2 / (2 C n);
    - ``SGDClassifier(loss="log_loss")``: the logistic loss, for more than two classes the sum of
      one for each class against the rest, plus alpha ||w||^2 / 2;
    - ``Ridge``: (<a, w> - t)^2, plus alpha ||w||^2 / n;
    - ``SGDRegressor(loss="squared_error")``: (<a, w> - t)^2, plus alpha ||w||^2;
    - ``LinearRegression``: (<a, w> - t)^2.

    n is ``total_examples``; w leaves the intercept out. With ``divisor = total_examples / agents``
    at every agent the minimiser of sum_i f_i is what the estimator would find on everybody's data.

    Parameters
    ----------
    estimator : scikit-learn estimator
        Its settings; an estimator that is fitted gives the starting coefficients.
    num_features : int
    classes : sequence
        All labels of the federation, in the order of ``classes_`` (sorted); empty for regressors.
    total_examples : int, optional
        Examples of all agents; the agent's own number unless given. Only estimators whose
        penalty is weighed against a sum (C, Ridge's alpha) need it.
    regularize_intercept : bool
        scikit-learn does not; privacy certificates want it (where ``fit_intercept`` holds).
    dtype : str
        "float64" or "float32".

    Raises
    ------
    ConfigError
        For estimators and settings without a smooth loss and an l2 (or no) penalty.
    """

    estimator: Any
    num_features: int
    classes: Sequence[Any] = ()
    total_examples: int | None = None
    regularize_intercept: bool = False
    dtype: str = "float64"

    def __post_init__(self) -> None:
        name = self._name
        if name not in (*CLASSIFIERS, *REGRESSORS):
            known = ", ".join((*CLASSIFIERS, *REGRESSORS))
            raise ConfigError(f"estimator {name} is not supported: use one of {known}")
        if name in CLASSIFIERS and len(self.classes) < 2:
            raise ConfigError(f"{name} needs classes, all labels of the federation (at least two)")
        if name in REGRESSORS and len(self.classes):
            raise ConfigError(f"{name} is a regressor and has no classes")
        _check_settings(name, self.estimator.get_params(deep=False))

    @property
    def _name(self) -> str:
        return type(self.estimator).__name__

    @property
    def _columns(self) -> int:
        """Score columns: one a class, but one for two classes and for regressors."""
        return len(self.classes) if len(self.classes) > 2 else 1

    @property
    def _intercept(self) -> bool:
        return bool(self.estimator.fit_intercept)

    def arrays(self) -> ArrayRecord:
        """Return the starting model: ``coef`` (d,) or (d, K), and ``intercept`` (1,) or (K,).

        Zeros, or the coefficients of a fitted estimator. The flat vector is ``coef`` in C order
        and then ``intercept``.
        """
        columns, dtype = self._columns, np.dtype(self.dtype)
        coef = np.zeros((self.num_features, columns))
        intercept = np.zeros(columns)
        if hasattr(self.estimator, "coef_"):
            coef = np.atleast_2d(self.estimator.coef_).T
            intercept = np.broadcast_to(self.estimator.intercept_, columns)
            if coef.shape != (self.num_features, columns):
                raise ConfigError(
                    f"estimator has coefficients of shape {coef.T.shape}, "
                    f"expected {(columns, self.num_features)}"
                )
        shaped = coef[:, 0] if columns == 1 else coef
        record = {"coef": Array(np.ascontiguousarray(shaped, dtype))}
        if self._intercept:
            record["intercept"] = Array(intercept.astype(dtype))
        return ArrayRecord(record)

    def problem(
        self,
        features: npt.ArrayLike,
        targets: npt.ArrayLike,
        *,
        divisor: float | None = None,
        held_out: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        metrics: Metrics | None = None,
    ) -> LinearModel[Any]:
        """Return f_i on an agent's data; a `LinearModel`, as privacy certificates know them.

        Its ``meaning`` states the classes and the number of features: agents of one run have the
        same.

        Parameters
        ----------
        features : (n, d) array
        targets : (n,) array
            Labels of ``classes``, or numbers.
        divisor : float, optional
        held_out : pair of array (m, d) and array (m,), optional
            Data that ``client_app(evaluate_on="held-out")`` evaluates models on: their mean loss,
            and ``metrics``.
        metrics : callable, optional
            ``(scores, targets) -> mapping of str to float``, what an evaluation reports beside the
            loss, in place of accuracy and, of two classes, AUC. Scores are those of
            ``decision_function``, (n,) or (n, classes), or a regressor's predictions.

        Raises
        ------
        ConfigError, ValueError
            If the data do not fit the model: one line.
        """
        problem = self._mean(features, targets, metrics, divisor=divisor)
        problem.regularizer = self.regularizer(problem.num_examples)
        if held_out is not None:
            problem.held_out = self._mean(*held_out, metrics)
        facts = {"loss": problem.kind, "features": self.num_features, "intercept": self._intercept}
        label = {"classes": list(map(_text, self.classes))} if len(self.classes) else {}
        problem.meaning = Meaning(label=label, settings=facts)
        return problem

    def _mean(
        self,
        features: npt.ArrayLike,
        targets: npt.ArrayLike,
        metrics: Metrics | None,
        divisor: float | None = None,
    ) -> LinearModel[Any]:
        """Return the mean loss of examples, without the penalty."""
        rows = np.asarray(features, dtype=self.dtype)
        if rows.ndim != 2 or rows.shape[1] != self.num_features:
            raise ConfigError(
                f"features have shape {rows.shape}, expected (examples, {self.num_features})"
            )
        if self._intercept:
            rows = np.hstack([rows, np.ones((len(rows), 1), rows.dtype)])
        problem = self._loss(rows, np.asarray(targets), {"divisor": divisor})
        if metrics is not None:
            problem.own_metrics = self._of_labels(metrics)
        return problem

    def _of_labels(self, metrics: Metrics) -> Metrics:
        """Return a function of scores and of the numbers that stand for labels in a problem."""
        if self._name in REGRESSORS:
            return metrics
        classes = np.asarray(self.classes)
        if len(classes) == 2:
            return lambda scores, signs: metrics(scores, classes[(signs > 0).astype(int)])
        return lambda scores, numbers: metrics(scores, classes[numbers])

    def _loss(self, rows: FloatArray, targets: Vector, options: Any) -> LinearModel[Any]:
        if self._name in REGRESSORS:
            return RidgeRegression(rows, targets, **options)
        numbers = self._numbers(targets)
        if len(self.classes) == 2:
            return BinaryLogistic(rows, 2 * numbers - 1, **options)
        many = MultinomialLogistic if self._name == "LogisticRegression" else OneVsRestLogistic
        return many(rows, numbers, len(self.classes), **options)

    def regularizer(self, examples: int) -> Regularizer:
        """Return r for an agent of so many examples, if ``total_examples`` does not say it."""
        total, settings = self.total_examples or examples, self.estimator.get_params(deep=False)
        penalty = settings.get("penalty", "l2")
        if self._name == "LinearRegression" or penalty is None:
            return NoRegularizer()
        weight = {
            "LogisticRegression": lambda: 1.0 / (settings["C"] * total),
            "SGDClassifier": lambda: settings["alpha"],
            "SGDRegressor": lambda: 2.0 * settings["alpha"],
            "Ridge": lambda: 2.0 * settings["alpha"] / total,
        }[self._name]()
        if weight == 0:
            return NoRegularizer()
        if self.regularize_intercept or not self._intercept:
            return L2(weight)
        return SlopesL2(weight, self._columns)

    def fitted(self, arrays: ArrayRecord | Vector) -> Any:
        """Return a clone of the estimator with the model as its ``coef_`` and ``intercept_``.

        ``arrays`` is a result's record, or the flat vector.
        """
        from sklearn.base import clone

        if not isinstance(arrays, ArrayRecord):
            layout = Layout.of(self.arrays())
            if np.shape(arrays) != (layout.dim,):
                raise ConfigError(f"x must have shape ({layout.dim},), found {np.shape(arrays)}")
            arrays = layout.restore(arrays)
        done = clone(self.estimator)
        coef = arrays["coef"].numpy()
        expected = (
            (self.num_features,) if self._columns == 1 else (self.num_features, self._columns)
        )
        if coef.shape != expected:
            raise ConfigError(f"coef has shape {coef.shape}, expected {expected}")
        intercept = arrays["intercept"].numpy() if self._intercept else np.zeros(self._columns)
        if self._name in REGRESSORS:
            done.coef_ = coef.copy()
            done.intercept_ = intercept.copy() if "SGD" in self._name else float(intercept[0])
        else:
            done.coef_ = np.ascontiguousarray(coef.reshape(self.num_features, -1).T)
            done.intercept_ = intercept.copy()
            done.classes_ = np.asarray(self.classes)
        done.n_features_in_ = self.num_features
        if "SGD" in self._name:
            done.t_ = 1.0  # so that partial_fit can go on from here
        return done

    def _numbers(self, labels: Vector) -> Vector:
        """Return the place of every label in ``classes``."""
        known = np.asarray(self.classes)
        order = np.argsort(known)
        places = np.minimum(np.searchsorted(known, labels, sorter=order), len(known) - 1)
        numbers: Vector = order[places]
        if labels.ndim != 1 or not np.array_equal(known[numbers], labels):
            raise ConfigError("labels hold a value that is not in classes")
        return numbers


def SklearnProblem(
    estimator: Any,
    features: npt.ArrayLike,
    targets: npt.ArrayLike,
    *,
    classes: Sequence[Any] | None = None,
    total_examples: int | None = None,
    regularize_intercept: bool = False,
    divisor: float | None = None,
    dtype: str = "float64",
) -> LinearModel[Any]:
    """Return f_i of a scikit-learn estimator on an agent's data; short for `SklearnModel`.

    ``classes`` are the labels of the whole federation; those that occur at the agent unless given
    (regressors have none).
    """
    shape = np.shape(features)
    if len(shape) != 2:
        raise ConfigError(f"features have shape {shape}, expected (examples, features)")
    given = classes is not None
    if classes is None:
        is_classifier = type(estimator).__name__ in CLASSIFIERS
        classes = list(np.unique(targets)) if is_classifier else []
    model = SklearnModel(estimator, shape[1], classes, total_examples, regularize_intercept, dtype)
    problem = model.problem(features, targets, divisor=divisor)
    if not given:  # they are read from the records, and what is stated is public
        problem.meaning = None
    return problem


def _text(label: Any) -> str:
    """Return a label as a text: 1, 1.0 and True are one label, as they are for scikit-learn."""
    try:
        number = math.nan if isinstance(label, str) else float(label)
    except (TypeError, ValueError):
        number = math.nan
    return str(int(number)) if number.is_integer() else str(label)


def _check_settings(name: str, settings: dict[str, Any]) -> None:
    """Refuse settings that the problems do not have."""
    loss = {"SGDClassifier": "log_loss", "SGDRegressor": "squared_error"}.get(name)
    if loss is not None and settings["loss"] != loss:
        raise ConfigError(f"{name}(loss={settings['loss']!r}): use loss={loss!r}, which is smooth")
    penalty = settings.get("penalty", "l2")
    elastic = settings.get("l1_ratio") if name == "LogisticRegression" else None
    if penalty not in ("l2", None, "deprecated") or elastic:
        raise ConfigError(
            f"{name}: use penalty 'l2' or None, and the strategy's h for an l1 or elastic-net term"
        )
    if not float(settings.get("C", 1.0)) > 0 or not float(settings.get("alpha", 0.0)) >= 0:
        raise ConfigError(f"{name}: C must be > 0 and alpha >= 0")
    if settings.get("class_weight") is not None:
        raise ConfigError(f"{name}: class_weight is not supported")
    if settings.get("positive"):
        raise ConfigError(f"{name}: positive=True is not supported")
