"""pfl: federated averaging in its simulation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from .torch_model import parts, vector
from .work import Work


class _Module(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, module: Any, loss: Any) -> None:
        super().__init__()
        self.module, self.criterion = module, loss

    def loss(self, inputs: Any, targets: Any) -> Any:
        return self.criterion(self.module(inputs), targets)

    def metrics(self, inputs: Any, targets: Any) -> dict[str, Any]:
        return {}


class _Marks(TrainingProcessCallback):  # type: ignore[misc]
    def __init__(self, mark: Callable[[], None]) -> None:
        self.mark = mark

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self.mark()
        return False, Metrics()


def play(work: Work, mark: Callable[[], None]) -> Any:
    """Play the rounds and return the model."""
    module, loss, data = parts(torch, work)
    users = [PyTorchTensorDataset(pair) for pair in data]
    sampler = get_user_sampler("minimize_reuse", list(range(work.agents)))
    agents = FederatedDataset(users.__getitem__, sampler)
    model = PyTorchModel(
        _Module(module, loss),
        partial(torch.optim.SGD, weight_decay=work.l2),
        torch.optim.SGD(module.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(work.rounds, work.rounds + 1, work.agents, None),
        SimulatedBackend(agents, agents),
        model,
        NNTrainHyperParams(
            local_batch_size=work.batch,
            local_num_epochs=work.epochs,
            local_learning_rate=work.step_size,
        ),
        NNEvalHyperParams(local_batch_size=None),
        [_Marks(mark)],
        send_metrics_to_platform=False,
    )
    return vector(torch, module)
