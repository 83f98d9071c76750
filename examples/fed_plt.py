"""Fed-PLT: ten agents with different data, half of them a round, and still the exact optimum.

    python examples/fed_plt.py

The agents run in this process; in a Flower project the same strategy and ClientApp run anywhere.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

from privet.client_apps import client_app
from privet.problems import L2, BinaryLogistic, minimize
from privet.sim import InlineGrid
from privet.strategies import FedPLT, Fraction

AGENTS = 10

features, labels = load_breast_cancer(return_X_y=True)
features = StandardScaler().fit_transform(features)
# Sorted by label before they are dealt: most agents see one class only.
parts = np.array_split(np.argsort(labels, kind="stable"), AGENTS)
problems = [
    BinaryLogistic(features[part], 2 * labels[part] - 1, regularizer=L2(0.05)) for part in parts
]


def problem(context: Context) -> BinaryLogistic:
    """Return f_i of the agent that this node is."""
    return problems[int(context.node_config["partition-id"])]


grid = InlineGrid(client_app("fed-plt", problem), AGENTS)
strategy = FedPLT(rho=3.0, local_epochs=10, participation=Fraction(0.5), num_agents=AGENTS)
start = ArrayRecord({"coefficients": Array(np.zeros(features.shape[1]))})
result = strategy.start(grid, start, num_rounds=100)

found = result.arrays["coefficients"].numpy()
optimum = minimize(problems)
accuracy = BinaryLogistic.accuracy(found, features, 2 * labels - 1)
sent = sum(done.bytes_up + done.bytes_down for done in result.history)
print(f"accuracy on all data: {accuracy:.3f}")
print(f"distance to the optimum of the pooled data: {np.linalg.norm(found - optimum.x):.1e}")
print(f"bytes sent: {sent}")
