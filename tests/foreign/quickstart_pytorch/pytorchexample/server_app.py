"""What the server does."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from pytorchexample.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds and print how well each of them does."""
    arrays = ArrayRecord(Net().state_dict())
    strategy = FedAvg(fraction_evaluate=1.0)
    lr = ConfigRecord({"lr": 0.02})
    result = strategy.start(grid=grid, initial_arrays=arrays, train_config=lr, num_rounds=8)
    print([round(result.evaluate_metrics_clientapp[n]["eval_acc"], 3) for n in range(1, 9)])
