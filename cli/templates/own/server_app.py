"""The ServerApp: Fed-PLT over all nodes, with the test accuracy after every round."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from privet.strategies import FedPLT

from .model import SETTINGS, accuracy, start

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print the accuracy of the last model."""
    config = context.run_config
    strategy = FedPLT(
        local_epochs=int(config["local-epochs"]),
        min_available_nodes=int(config["min-nodes"]),
        **SETTINGS,
    )
    rounds = int(config["num-server-rounds"])
    result = strategy.start(grid, start(), num_rounds=rounds, evaluate_fn=evaluate)
    print(f"test accuracy after {rounds} rounds: {accuracy(result.arrays):.4f}")


def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the metrics of the model after a round; Flower logs them."""
    return MetricRecord({"accuracy": accuracy(arrays)})
