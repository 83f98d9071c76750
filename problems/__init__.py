"""What is minimised: the agents' losses f_i, the shared term h and the set W.

The federation minimises sum_i f_i(x) + h(x) over x in W, where

* f_i, a `Problem`, is the mean loss over agent i's examples plus a smooth regulariser:
  `BinaryLogistic`, `MultinomialLogistic`, `RidgeRegression`, `OneClassLogistic`;
* h, from `make_h`, has a proximal operator; W, from `make_set`, a projection;
* x is a flat vector, float32 or float64 like the data, and so is everything computed from it.

`minimize` finds the centralised optimum. The package needs numpy only.
"""

from privet.problems.base import (
    ClippableProblem,
    FloatArray,
    Moduli,
    Norm,
    Problem,
    RowIndex,
    best_step,
)
from privet.problems.binary_logistic import BinaryLogistic
from privet.problems.clipping import (
    RELATIONS,
    Clipped,
    Clipping,
    Relation,
    clip_rows,
    clipped_sensitivity,
    clipped_sum,
    clipped_term,
    clipped_terms,
    clipped_whole,
)
from privet.problems.curvature import loss_curvature, public_moduli
from privet.problems.linear import LinearModel, can_clip
from privet.problems.multinomial_logistic import MultinomialLogistic
from privet.problems.one_class_logistic import OneClassLogistic
from privet.problems.proximal import (
    H_NAMES,
    ElasticNet,
    GroupL1,
    ProximalFunction,
    Scaled,
    make_h,
    soft_threshold,
)
from privet.problems.reference import Minimum, minimize
from privet.problems.regularizers import (
    L2,
    REGULARIZER_NAMES,
    Nonconvex,
    NoRegularizer,
    Regularizer,
    make_regularizer,
)
from privet.problems.ridge_regression import RidgeRegression
from privet.problems.sets import SET_NAMES, Box, ConvexSet, L2Ball, Zero, make_set

__all__ = [
    "H_NAMES",
    "L2",
    "REGULARIZER_NAMES",
    "RELATIONS",
    "SET_NAMES",
    "BinaryLogistic",
    "Box",
    "ClippableProblem",
    "Clipped",
    "Clipping",
    "ConvexSet",
    "ElasticNet",
    "FloatArray",
    "GroupL1",
    "L2Ball",
    "LinearModel",
    "Minimum",
    "Moduli",
    "MultinomialLogistic",
    "NoRegularizer",
    "Nonconvex",
    "Norm",
    "OneClassLogistic",
    "Problem",
    "ProximalFunction",
    "Regularizer",
    "Relation",
    "RidgeRegression",
    "RowIndex",
    "Scaled",
    "Zero",
    "best_step",
    "can_clip",
    "clip_rows",
    "clipped_sensitivity",
    "clipped_sum",
    "clipped_term",
    "clipped_terms",
    "clipped_whole",
    "loss_curvature",
    "make_h",
    "make_regularizer",
    "make_set",
    "minimize",
    "public_moduli",
    "soft_threshold",
]
