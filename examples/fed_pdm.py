"""FedPDM: a tenth of the coordinates from half of the agents a round, and how many bytes that is.

    python examples/fed_pdm.py

Indices of rand-k come from a public seed and do not travel; those of top-k do.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from sklearn.datasets import load_digits

from privet.client_apps import client_app
from privet.problems import L2, MultinomialLogistic
from privet.sim import InlineGrid
from privet.strategies import FedPDM, Fraction

AGENTS, CLASSES = 20, 10

images, labels = load_digits(return_X_y=True)
images = images / 16.0
order = np.random.default_rng(0).permutation(len(labels))
test, train = order[:400], order[400:]
# Two shards of the images sorted by label for each agent: two or three of the ten digits.
shards = np.array_split(train[np.argsort(labels[train], kind="stable")], 2 * AGENTS)
parts = [np.concatenate([shards[i], shards[i + AGENTS]]) for i in range(AGENTS)]
problems = [
    MultinomialLogistic(images[part], labels[part], CLASSES, regularizer=L2(1e-4)) for part in parts
]


def problem(context: Context) -> MultinomialLogistic:
    """Return f_i of the agent that this node is."""
    return problems[int(context.node_config["partition-id"])]


start = ArrayRecord({"weights": Array(np.zeros((images.shape[1], CLASSES)))})
for sparsifier, share in (("none", 1.0), ("top-k", 0.1), ("rand-k", 0.1)):
    strategy = FedPDM(
        rho=1.0,
        max_local_steps=10,
        step_size_base=0.2,
        step_size_rule="constant",
        sparsifier=sparsifier,
        alpha_u=share,
        dual="public",
        aggregation="table",  # the duals of absent agents count as well
        participation=Fraction(0.5),
        num_agents=AGENTS,
    )
    grid = InlineGrid(client_app("fed-pdm", problem), AGENTS)
    result = strategy.start(grid, start, num_rounds=100)
    weights = result.arrays["weights"].numpy().ravel()
    accuracy = MultinomialLogistic.accuracy(weights, images[test], labels[test])
    sent = sum(done.bytes_up for done in result.history)
    print(f"{sparsifier}: test accuracy {accuracy:.3f}, {sent} bytes from the agents")
