"""GFL: four regions on a ring, each with a server and five agents; noise between the servers only.

    python examples/gfl.py

Homomorphic noise cancels in the mean of the regions' models; independent noise does not.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, Context

from privet.client_apps import client_app
from privet.kernel import SystemNoise
from privet.problems import L2, BinaryLogistic, minimize
from privet.sim import InlineGrid
from privet.strategies import GFL

REGIONS, AGENTS, FEATURES = 4, 5, 5


def agent(region: int, number: int) -> BinaryLogistic:
    """Return an agent's data; each region has its own mixture of patients."""
    rng = np.random.default_rng([region, number])
    middle = np.random.default_rng(region).normal(size=FEATURES)
    features = rng.normal(loc=middle / 2, size=(100, FEATURES))
    chance = 1 / (1 + np.exp(-features @ [1.0, -2.0, 0.5, 0.0, 1.0]))
    return BinaryLogistic(features, np.where(rng.random(100) < chance, 1, -1), regularizer=L2(0.1))


nodes = [
    {"agent": f"{region}-{number}", "unit": str(region), "region": region, "number": number}
    for region in range(REGIONS)
    for number in range(AGENTS)
]
problems = {node["agent"]: agent(node["region"], node["number"]) for node in nodes}


def problem(context: Context) -> BinaryLogistic:
    """Return the problem of the agent that this node is."""
    return problems[str(context.node_config["agent"])]


optimum = minimize(list(problems.values())).x
start = ArrayRecord({"coefficients": Array(np.zeros(FEATURES))})
for perturbation in ("none", "random", "homomorphic"):
    strategy = GFL(
        units=REGIONS,
        graph="ring",
        step_size=0.3,
        local_epochs=5,
        perturbation=perturbation,
        noise_variance=0.0 if perturbation == "none" else 0.01,
        clip=1.0,
        noise=None if perturbation == "none" else SystemNoise(),
        num_agents=REGIONS * AGENTS,
    )
    result = strategy.start(InlineGrid(client_app("gfl", problem), nodes), start, num_rounds=200)
    found = result.arrays["coefficients"].numpy()
    print(f"{perturbation} noise: centroid {np.linalg.norm(found - optimum):.1e} from the optimum")
