"""Train with FedAvg and with Fed-PLT on the same hospitals, and print both accuracies."""

import json

from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from privet.strategies import FedPLT

from .models import chosen

app = ServerApp()


@app.main()
def main(grid, context):
    """Run both strategies for as many rounds, with as many passes over the local data in each."""
    model = chosen(context)
    hospitals = int(context.run_config["num-hospitals"])
    rounds = int(context.run_config["num-rounds"])
    epochs = int(context.run_config["local-epochs"])
    strategies = {
        "fed-avg": FedAvg(
            fraction_evaluate=0.0, min_train_nodes=hospitals, min_available_nodes=hospitals
        ),
        "fed-plt": FedPLT(local_epochs=epochs, num_agents=hospitals, **model.SETTINGS),
    }
    for name, strategy in strategies.items():
        result = strategy.start(grid, model.start(), num_rounds=rounds)
        found = {"strategy": name, "rounds": rounds, "accuracy": model.accuracy(result.arrays)}
        print(json.dumps(found), flush=True)
