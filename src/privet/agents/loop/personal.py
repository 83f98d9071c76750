"""Personal layers: parts of a module that stay with the agent, and are no part of the run's model.

A head of one's own is FedPer (M. G. Arivazhagan et al., "Federated Learning with Personalization
Layers", 2019); BatchNorm of one's own is FedBN (X. Li et al., "FedBN: Federated Learning on Non-IID
Features via Local Batch Normalization", 2021).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import ConfigError

from .tied import tied_names

BATCH_NORM = "batch-norm"
"""Among the names of personal layers: every BatchNorm layer of the model."""

Bytes = NDArray[np.uint8]


class Personal:
    """The parameters and persistent buffers of a module's personal layers.

    Parameters
    ----------
    model : torch.nn.Module or mapping
    chosen : sequence of str
        Names of layers, of parameters, or `BATCH_NORM`.

    Attributes
    ----------
    tensors : dict of str to Tensor
        By their names in the state dict.

    Raises
    ------
    ConfigError
        For a name that the model has not, a tensor that is tied to a shared one, or a mapping.
    """

    def __init__(self, model: Any, chosen: Sequence[str]) -> None:
        self.tensors: dict[str, Any] = {}
        if not chosen:
            return
        if not hasattr(model, "named_parameters"):
            raise ConfigError(
                "personal: a mapping of arrays has what travels alone; layers that stay are for a "
                "torch.nn.Module"
            )
        prefixes = [prefix for name in chosen for prefix in _layers(model, name)]
        saved = model.state_dict(keep_vars=True)
        self.tensors = {
            name: each
            for name, each in saved.items()
            if hasattr(each, "detach") and any(_within(name, prefix) for prefix in prefixes)
        }
        for prefix in prefixes:
            if not any(_within(name, prefix) for name in self.tensors):
                raise ConfigError(
                    f"personal: the model has no parameter or layer with parameters {prefix!r}; "
                    f"its parameters are {', '.join(saved)}"
                )
        shared = {name: each for name, each in model.named_parameters() if name not in self.tensors}
        for named, other in ((self.tensors, False), (shared, True)):
            for again, name in tied_names(model, named).items():
                if (again in self.tensors) is other:
                    raise ConfigError(
                        f"personal: {again!r} and {name!r} are one tensor, which cannot both stay "
                        "and travel: name both, or neither"
                    )

    def first(self) -> Bytes | None:
        """Return the numbers, None where there are none yet."""
        known = self.tensors and not any(each.is_meta for each in self.tensors.values())
        return self.read() if known else None

    def read(self) -> Bytes:
        """Return the bytes of all tensors, one after the other, each in its own dtype."""
        torch: Any = importlib.import_module("torch")
        parts = [
            each.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            for each in self.tensors.values()
        ]
        return np.concatenate(parts)

    def write(self, held: Bytes) -> None:
        """Write the bytes of ``read`` into the model.

        Raises
        ------
        ConfigError
            If they are of other layers.
        """
        torch: Any = importlib.import_module("torch")
        sizes = [each.numel() * each.element_size() for each in self.tensors.values()]
        if sum(sizes) != held.size:
            raise ConfigError(
                f"personal: the layers of this model have {sum(sizes)} bytes, those that the agent "
                f"kept {held.size}"
            )
        parts = np.split(held, np.cumsum(sizes)[:-1])
        for each, part in zip(self.tensors.values(), parts, strict=True):
            numbers = torch.from_numpy(part.copy()).view(each.dtype).reshape(each.shape)
            each.detach().copy_(numbers)


def _layers(model: Any, name: str) -> Iterator[str]:
    """Yield the layers that a name stands for (raises ``ConfigError``)."""
    if name != BATCH_NORM:
        yield name
        return
    batch_norm = importlib.import_module("torch").nn.modules.batchnorm._BatchNorm
    found = [
        layer
        for layer, module in model.named_modules()
        if isinstance(module, batch_norm) and module.state_dict()
    ]
    if not found:
        raise ConfigError("personal = batch-norm: the model has no BatchNorm layer")
    yield from found


def _within(name: str, layer: str) -> bool:
    return not layer or name == layer or name.startswith(layer + ".")  # "" is the model itself
