"""Buffers of a module: numbers that are no parameters, such as running statistics of BatchNorm."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args

import numpy as np
from flwr.app import Array, ArrayRecord

from privet.core import ConfigError
from privet.wire import Layout
from privet.wire.payload import BUFFERS

from ..half import Vector
from .parameters import (
    Model,
    as_numpy,
    layout_of,
    parameters_of,
)

BuffersAre = Literal["average", "local", "constant"]
BUFFERS_ARE = get_args(BuffersAre)
"""The treatments of a module's buffers. Average: a round begins with the mean of the
buffers that the agents ended the round before with, as in FedAvg. Local: an agent goes on from its
own, as in M. Andreux et al., "Siloed Federated Learning for Multi-Centric Histopathology Datasets"
(2020). Constant: every round begins, and ends, with those of the starting model."""


def initial_arrays(model: Model) -> ArrayRecord:
    """Return the start of a run of this model: its trained parameters and buffers by name.

    For a module ``ArrayRecord(model.state_dict())`` serves as well, with its frozen parameters in
    addition. Parameters of bfloat16, which an `ArrayRecord` cannot hold, are float32 here.
    """
    return ArrayRecord({**parameters_of(model).record(), **Buffers(model, "local").record()})


class Buffers:
    """The persistent buffers of a model that a run treats.

    Those of floats, and with "local" also those of integers; none of personal layers.

    Attributes
    ----------
    tensors : dict of str to Tensor
        The buffers by name.
    shared : Layout or None
        Of those that come from the server.
    """

    def __init__(self, model: Model, kind: BuffersAre, personal: Collection[str] = ()) -> None:
        if kind not in BUFFERS_ARE:
            raise ConfigError(f"buffers is {kind!r}, expected {', '.join(BUFFERS_ARE)}")
        saved = model.state_dict() if hasattr(model, "named_buffers") else {}
        self.tensors = {
            name: buffer
            for name, buffer in (model.named_buffers() if saved else ())
            if name in saved
            and name not in personal
            and (buffer.is_floating_point() or (kind == "local" and not buffer.is_complex()))
        }
        self.shared: Layout | None = None
        self._dtype = np.dtype("f8")  # which holds counts of batches exactly
        if kind != "local" and self.tensors:
            self.shared = layout_of(self.tensors)
            self._dtype = self.shared.dtype

    def first(self) -> Vector | None:
        """Return the numbers, None where there are none."""
        known = not any(buffer.is_meta for buffer in self.tensors.values())
        return self.read().get(BUFFERS) if known else None

    def record(self) -> ArrayRecord:
        """Return the buffers by name."""
        return ArrayRecord(
            {
                name: Array(as_numpy(each) if each.is_floating_point() else each.cpu().numpy())
                for name, each in self.tensors.items()
            }
        )

    def read(self) -> dict[str, Vector]:
        """Return the numbers as one vector under `BUFFERS`, nothing where there are none."""
        parts = [each.detach().cpu().reshape(-1).double().numpy() for each in self.tensors.values()]
        return {BUFFERS: np.concatenate(parts).astype(self._dtype, copy=False)} if parts else {}

    def write(self, vector: Vector | None) -> None:
        """Write the numbers of ``read`` into the model (raises ``ConfigError``)."""
        if vector is None:  # of a model without, or of which only the round has numbers
            return
        sizes = [each.numel() for each in self.tensors.values()]
        if sum(sizes) != vector.size:
            raise ConfigError(
                f"the buffers of this round's model have {sum(sizes)} numbers, not {vector.size}"
            )
        parts = np.split(vector, np.cumsum(sizes)[:-1])
        for each, part in zip(self.tensors.values(), parts, strict=True):
            each.detach().copy_(each.new_tensor(part, device="cpu").reshape(each.shape))
