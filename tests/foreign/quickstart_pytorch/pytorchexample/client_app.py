"""What a node does for FedAvg."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pytorchexample.task import Net, load_data
from pytorchexample.task import test as test_fn
from pytorchexample.task import train as train_fn

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def loaders(context: Context):
    """Return this node's loaders."""
    return load_data(context.node_config["partition-id"], context.node_config["num-partitions"], 32)


app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    """Train the model on the node's data."""
    trainloader, _ = loaders(context)
    model = Net().to(DEVICE)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    train_loss = train_fn(model, trainloader, 1, msg.content["config"]["lr"], DEVICE)
    metrics = {"train_loss": train_loss, "num-examples": len(trainloader.dataset)}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Test the model on examples that the node held out."""
    _, valloader = loaders(context)
    model = Net().to(DEVICE)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    metrics = {
        "eval_acc": test_fn(model, valloader, DEVICE),
        "num-examples": len(valloader.dataset),
    }
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
