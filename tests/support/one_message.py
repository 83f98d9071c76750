"""A ClientApp process without its SuperNode: what Flower imports, an app, and one message.

Run as a program it prints, as JSON, the processor's seconds that the process has taken after each
of the three, and the packages that the app added to those of ``flwr-clientapp``. The app is
Flower's FedAvg with an empty client, or the ClientApp of this library, which answers Fed-PLT's
first message with the default data.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

# Flower imports all of this before it looks for the app.
from flwr.supernode.cli import flwr_clientapp  # noqa: F401

BEFORE = frozenset(sys.modules)


def own() -> tuple[Any, Any]:
    """Return this library's app, and a message of Fed-PLT without its agent's half."""
    import numpy as np
    from flwr.app import RecordDict

    import flower_client
    from privet.wire import AGENT_RECORD, RECORD
    from privet.wire.contract import agent_record, shared_record

    shared = shared_record("fed-plt", 1, "bench", 1, "{}", {"y": np.zeros(31)})
    return flower_client.app, RecordDict({RECORD: shared, AGENT_RECORD: agent_record(0)})


def flower() -> tuple[Any, Any]:
    """Return an empty client, and a message of FedAvg."""
    import numpy as np
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        arrays = message.content["arrays"]
        content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    arrays = ArrayRecord({"x": Array(np.zeros(31))})
    return app, RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})


def answer(app: Any, content: Any) -> None:
    """Have an app answer a training message."""
    from flwr.app import Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 2, 3
    message = Message(content, 2, "train")
    message.metadata.__dict__["_message_id"] = "asked"
    config = {"partition-id": 0, "num-partitions": 4}
    context = Context(run_id=1, node_id=2, node_config=config, state=RecordDict(), run_config={})
    reply = app(message, context)
    assert not reply.has_error(), reply.error


if __name__ == "__main__":
    seconds = [time.process_time()]
    asked = {"own": own, "flower": flower}[sys.argv[1]]()
    seconds.append(time.process_time())
    answer(*asked)
    seconds.append(time.process_time())
    added = sorted({name.partition(".")[0] for name in sys.modules.keys() - BEFORE})
    print(json.dumps({"seconds": seconds, "added": added}))
