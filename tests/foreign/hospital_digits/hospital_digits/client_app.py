"""What a hospital does: local training for FedAvg, and Privet's agent half in its own handlers."""

from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from privet.client_apps import Participant

from .data import hospital
from .models import chosen

app = ClientApp()


def place(context):
    """Return which hospital of how many this node is."""
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])


participant = Participant(lambda context: chosen(context).problem(*place(context)))
app.query("privet")(participant.query)


@app.train()
def train(message, context):
    """Answer FedAvg, which sends arrays, and every algorithm of Privet."""
    if "arrays" not in message.content:
        return participant.train(message, context)
    number, count = place(context)
    epochs = int(context.run_config["local-epochs"])
    arrays = chosen(context).train(message.content["arrays"], number, count, epochs)
    metrics = MetricRecord({"num-examples": len(hospital(number, count)[1])})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
