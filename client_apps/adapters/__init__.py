"""Bring your own model: PyTorch modules, scikit-learn estimators and plain functions as Problems.

torch and scikit-learn are imported by the objects that need them, never by this package.
"""

from .functions import CallableProblem
from .sklearn_linear import SklearnModel, SklearnProblem
from .torch_module import TorchProblem, trainable_arrays

__all__ = [
    "CallableProblem",
    "SklearnModel",
    "SklearnProblem",
    "TorchProblem",
    "trainable_arrays",
]
