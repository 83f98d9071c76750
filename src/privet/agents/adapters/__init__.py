"""Bring your own model: PyTorch modules, scikit-learn estimators and plain functions as Problems.

torch and scikit-learn are imported by the objects that need them, never by this package.
"""

from .cox import CoxProblem
from .functions import CallableProblem
from .networks.module import TorchProblem, trainable_arrays
from .sklearn_linear import SklearnModel, SklearnProblem

__all__ = [
    "CallableProblem",
    "CoxProblem",
    "SklearnModel",
    "SklearnProblem",
    "TorchProblem",
    "trainable_arrays",
]
