"""A model that Privet does not have: robust regression, trained over five clinics.

    python examples/bring_your_own_model.py

A problem is anything with these attributes and methods on a flat vector; the strategy takes and
returns your own named arrays.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from scipy.optimize import minimize

from privet.client_apps import client_app
from privet.kernel import Moduli
from privet.sim import InlineGrid
from privet.strategies import FedPLT

CLINICS, ROWS, FEATURES, WEIGHT = 5, 200, 4, 0.1


class RobustRegression:
    """f(w) = mean(sqrt(1 + r_i^2) - 1) + (weight/2) ||w||^2, r_i = a_i w - y_i (pseudo-Huber)."""

    def __init__(self, features: np.ndarray, targets: np.ndarray) -> None:
        self.features, self.targets = features, targets
        self.dim = features.shape[1]
        self.dtype = np.dtype(np.float64)
        self.num_examples = len(targets)
        # Bounds of the Hessian: step sizes follow from them. Without, give FedPLT a step_size.
        curvature = np.linalg.norm(features, 2) ** 2 / len(features)
        self.moduli = Moduli(strong_convexity=WEIGHT, smoothness=WEIGHT + curvature)

    def value(self, x: np.ndarray) -> float:
        """Return f(x)."""
        residuals = self.features @ x - self.targets
        return float(np.mean(np.sqrt(1 + residuals**2) - 1) + WEIGHT / 2 * x @ x)

    def gradient(self, x: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the gradient at x, on a mini-batch where rows are given."""
        features = self.features if rows is None else self.features[rows]
        targets = self.targets if rows is None else self.targets[rows]
        residuals = features @ x - targets
        slopes = residuals / np.sqrt(1 + residuals**2)
        return features.T @ slopes / len(features) + WEIGHT * x


def clinic(number: int) -> RobustRegression:
    """Return the data of one clinic: patients of its own kind, and some wild measurements."""
    rng = np.random.default_rng(number)
    features = rng.normal(loc=rng.normal(size=FEATURES), size=(ROWS, FEATURES))
    targets = features @ [2.0, -1.0, 0.5, 0.0] + rng.standard_t(df=1.5, size=ROWS)
    return RobustRegression(features, targets)


clinics = [clinic(number) for number in range(CLINICS)]


def problem(context: Context) -> RobustRegression:
    """Return the problem of the clinic that this node is."""
    return clinics[int(context.node_config["partition-id"])]


start = ArrayRecord({"dose": Array(np.zeros(1)), "vitals": Array(np.zeros(FEATURES - 1))})
strategy = FedPLT(rho=2.0, local_epochs=10, num_agents=CLINICS)
result = strategy.start(InlineGrid(client_app("fed-plt", problem), CLINICS), start, num_rounds=60)

found = np.concatenate([result.arrays[name].numpy() for name in ("dose", "vitals")])
pooled = minimize(
    lambda x: sum(clinic.value(x) for clinic in clinics),
    np.zeros(FEATURES),
    method="BFGS",
    tol=1e-9,
)
print("coefficients:", np.round(found, 4))
print(f"from the optimum of the pooled data: {np.abs(found - pooled.x).max():.1e} away")
