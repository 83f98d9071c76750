"""The ServerApp: Fed-PLT over all nodes, with the test accuracy after every round."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from privet.server_apps import run_and_save
from privet.strategies import FedPLT

from .model import SETTINGS, accuracy, start

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, save the run, and print where it is and the accuracy of the last model."""
    config = context.run_config
    strategy = FedPLT(
        local_epochs=int(config["local-epochs"]),
        min_available_nodes=int(config["min-nodes"]),
        **SETTINGS,
    )
    rounds = int(config["num-server-rounds"])
    finished = run_and_save(
        strategy,
        grid,
        start(),
        rounds,
        name=str(context.run_id),
        output_dir=str(config["output-dir"]),
        evaluate_fn=evaluate,
    )
    print(f"run folder: {finished.folder}")
    print(f"test accuracy after {rounds} rounds: {accuracy(finished.result.arrays):.4f}")


def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the metrics of the model after a round; Flower logs them."""
    return MetricRecord({"accuracy": accuracy(arrays)})
