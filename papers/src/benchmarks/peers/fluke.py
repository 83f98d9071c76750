"""fluke: FedAvg, with nothing evaluated or kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver

from .torch_model import parts, vector
from .work import Work


class _Marks(FederationObserver):  # type: ignore[misc]
    def __init__(self, mark: Callable[[], None]) -> None:
        self.mark = mark

    def end_round(self, round: int) -> None:
        self.mark()


def play(work: Work, mark: Callable[[], None]) -> Any:
    """Play the rounds and return the model."""
    module, loss, data = parts(torch, work)
    environment = FlukeENV()
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    sgd = DDict(name=torch.optim.SGD, lr=work.step_size, weight_decay=work.l2)
    clients = [
        Client(
            index=place,
            train_set=FastDataLoader(*pair, num_labels=10, batch_size=work.batch),
            test_set=None,
            optimizer_cfg=OptimizerConfigurator(sgd),
            loss_fn=loss,
            local_epochs=work.epochs,
        )
        for place, pair in enumerate(data)
    ]
    server = Server(module, None, clients)
    federation = FedAVG(work.agents, None, DDict(), clients=clients, server=server)
    federation.set_callbacks(_Marks(mark))
    federation.run(work.rounds, 1, finalize=False)
    return vector(torch, server.model)
