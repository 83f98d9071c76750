"""``python -m peers.decent_rounds WORK SCHEDULE MODELS``: decent-bench's models, round by round.

Fed-LT (which is Fed-PLT without privacy), SCAFFOLD, FedDyn and FedPD with full gradients; SCHEDULE
is a boolean array (rounds, agents). MODELS gets an array (rounds, d) for each, of the server's
model after each round; FedPD has no absences there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from decent_array import interoperability as iop
from decent_bench.agents import Agent
from decent_bench.algorithms.federated import FedDyn, FedLT, FedPD, Scaffold
from decent_bench.costs import L2RegularizerCost, LogisticRegressionCost
from decent_bench.networks import FedNetwork
from decent_bench.schemes import ClientSelectionScheme

from .work import Work


class Scheduled(ClientSelectionScheme):  # type: ignore[misc]
    """Those whose place in the row of a round is true."""

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule

    def select(self, clients: Sequence[Any], iteration: int) -> list[Any]:
        """Return the clients of a round."""
        row = self.schedule[iteration % len(self.schedule)]
        return [client for client, there in zip(clients, row, strict=True) if there]


def network_of(work: Work) -> FedNetwork:
    """Return agents with the mean logistic loss of their rows and a penalty l2/2 ||w||^2."""
    term = L2RegularizerCost(work.start.shape)
    agents = []
    for features, labels in zip(work.features, work.labels, strict=True):
        rows = zip(features, labels[:, None], strict=True)
        loss = LogisticRegressionCost([(iop.asarray(a), iop.asarray(b)) for a, b in rows])
        agents.append(Agent(loss + work.l2 * term, state_snapshot_period=1))
    return FedNetwork(agents)


def main(given: str, schedule: str, models: str) -> None:
    """Play all of them."""
    iop.set_backend("numpy")
    work, rows = Work.load(Path(given)), np.load(schedule)
    steps = {"step_size": work.step_size, "num_local_steps": work.epochs}
    chosen = {"selection_scheme": Scheduled(rows)}
    algorithms = {
        "Fed-PLT": FedLT(penalty=work.penalty, **chosen, **steps),
        "SCAFFOLD": Scaffold(**chosen, **steps),
        "FedDyn": FedDyn(penalty=work.penalty, **chosen, **steps),
    }
    if rows.all():
        algorithms["FedPD"] = FedPD(penalty=work.penalty, **steps)
    found: dict[str, Any] = {}
    for name, algorithm in algorithms.items():
        network = network_of(work)
        after: list[Any] = []
        algorithm.run(
            network,
            work.rounds,
            progress_callback=lambda _, network=network, after=after: after.append(
                np.array(iop.to_numpy(network.server().x)).ravel()
            ),
        )
        found[name] = np.stack(after)
    np.savez(models, **found)
    print(json.dumps({"version": version("decent-bench")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
