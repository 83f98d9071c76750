"""What a hospital does: local training for FedAvg, and Privet's rounds beside it."""

from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .data import hospital, place
from .models import chosen

app = ClientApp()


@app.query("privet")
def query(message, context):
    """Answer Privet's enrolment question."""
    return chosen(context).privet(message, context)


@app.train()
def train(message, context):
    """Answer FedAvg, which sends arrays, and Privet."""
    if "arrays" not in message.content:
        return chosen(context).privet(message, context)
    number, count = place(context)
    epochs = int(context.run_config["local-epochs"])
    arrays = chosen(context).train(message.content["arrays"], number, count, epochs)
    metrics = MetricRecord({"num-examples": len(hospital(number, count)[1])})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
