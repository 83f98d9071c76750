"""A client that counts its calls in its state."""

import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Reply with the partition and how often this node was called."""
    calls = 1
    if "calls" in context.state:
        calls += int(context.state["calls"]["number"])
    context.state["calls"] = ConfigRecord({"number": calls})
    time.sleep(float(message.content["task"]["pause"]))
    partition = int(context.node_config["partition-id"])
    answer = ConfigRecord({"partition": partition, "calls": calls})
    return Message(RecordDict({"answer": answer}), reply_to=message)
