"""DP-IADMM: noise in every inner step, the model kept in a box, and what it all cost.

    python examples/dp_iadmm.py

The total epsilon is towards a coordinator that keeps every message, at delta 1e-5.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from sklearn.datasets import load_digits

from privet.client_apps import client_app
from privet.problems import MultinomialLogistic
from privet.sim import InlineGrid
from privet.strategies import DPIADMM

AGENTS, CLASSES = 10, 10

images, labels = load_digits(return_X_y=True)
images = images / 16.0
order = np.random.default_rng(0).permutation(len(labels))
test, train = order[:400], order[400:]
parts = np.array_split(train, AGENTS)
# The paper's f_p is a sum over the agent's examples divided by the number of all examples.
problems = [
    MultinomialLogistic(images[part], labels[part], CLASSES, divisor=len(train)) for part in parts
]


def problem(context: Context) -> MultinomialLogistic:
    """Return f_p of the agent that this node is."""
    return problems[int(context.node_config["partition-id"])]


start = ArrayRecord({"weights": Array(np.zeros((images.shape[1], CLASSES)))})
for epsilon in (np.inf, 1.0, 0.3):
    strategy = DPIADMM(
        rho=0.5,
        local_updates=3,
        epsilon=epsilon,  # of one inner step
        clip=1.0 if epsilon < np.inf else 0.0,
        set="box",
        set_radius=20.0,
        num_agents=AGENTS,
    )
    grid = InlineGrid(client_app("dp-iadmm", problem), AGENTS)
    result = strategy.start(grid, start, num_rounds=60)
    weights = result.arrays["weights"].numpy().ravel()
    accuracy = MultinomialLogistic.accuracy(weights, images[test], labels[test])
    total = result.history[-1].epsilon
    print(f"epsilon of one step {epsilon}: test accuracy {accuracy:.3f}, in total {total:.1f}")
