"""The optimisation problem: the agents' losses f_i, the shared term h and the set W.

The federation minimises sum_i f_i(x) + h(x) over x in W, where

* f_i, a `Problem`, is the mean loss over agent i's examples plus a smooth regulariser:
  `BinaryLogistic`, `MultinomialLogistic`, `RidgeRegression`, `OneClassLogistic`;
* h, from `make_h`, has a proximal operator; W, from `make_set`, a projection;
* x is a flat vector, float32 or float64 like the data, and so is everything computed from it.

`minimize` finds the centralised optimum. The package needs numpy only.
"""

from .facts import public_facts
from .linear import LinearModel
from .losses.binary_logistic import BinaryLogistic
from .losses.multinomial_logistic import MultinomialLogistic
from .losses.one_class_logistic import OneClassLogistic
from .losses.ridge_regression import RidgeRegression
from .proximal import (
    H_NAMES,
    ElasticNet,
    GroupL1,
    ProximalFunction,
    Scaled,
    make_h,
    soft_threshold,
)
from .reference import Minimum, minimize
from .regularizers import (
    L2,
    REGULARIZER_NAMES,
    Nonconvex,
    NoRegularizer,
    PooledL2,
    Regularizer,
    SlopesL2,
    make_regularizer,
)

__all__ = [
    "H_NAMES",
    "L2",
    "REGULARIZER_NAMES",
    "BinaryLogistic",
    "ElasticNet",
    "GroupL1",
    "LinearModel",
    "Minimum",
    "MultinomialLogistic",
    "NoRegularizer",
    "Nonconvex",
    "OneClassLogistic",
    "PooledL2",
    "ProximalFunction",
    "Regularizer",
    "RidgeRegression",
    "Scaled",
    "SlopesL2",
    "make_h",
    "make_regularizer",
    "minimize",
    "public_facts",
    "soft_threshold",
]
