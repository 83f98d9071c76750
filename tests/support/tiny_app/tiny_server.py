"""A server that calls every node once a round and prints what came back, one JSON line a round."""

import json
import time

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


def exchange(grid: Grid, messages: list[Message]) -> list[Message]:
    """Send and collect like `send_and_receive`, which looks only every three seconds."""
    waiting = set(grid.push_messages(messages))
    replies: list[Message] = []
    while waiting:
        replies += (new := list(grid.pull_messages(waiting)))
        waiting -= {message.metadata.reply_to_message_id for message in new}
        time.sleep(0.1 if waiting else 0.0)
    return replies


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, then raise when there is a message to raise."""
    config = context.run_config
    while len(nodes := sorted(grid.get_node_ids())) < int(config["nodes"]):
        time.sleep(0.1)
    array = ArrayRecord([np.zeros(int(config["floats"]))])
    print(json.dumps({"nodes": len(nodes)}), flush=True)
    for number in range(1, int(config["rounds"]) + 1):
        content = RecordDict({"model": array, "task": ConfigRecord({"pause": config["pause"]})})
        replies = exchange(
            grid, [Message(content, dst_node_id=node, message_type="train") for node in nodes]
        )
        answers = [dict(reply.content["answer"]) for reply in replies if not reply.has_error()]
        errors = [reply.error.code for reply in replies if reply.has_error()]
        answers.sort(key=lambda answer: answer["partition"])
        print(json.dumps({"round": number, "answers": answers, "errors": errors}), flush=True)
    if config["message"]:
        raise RuntimeError(str(config["message"]))
