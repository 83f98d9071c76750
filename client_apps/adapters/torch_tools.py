"""What a `TorchProblem` needs of torch: the import, a module's parameters, data as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from privet.wire import ConfigError


def import_torch() -> Any:
    """Return the torch module (raises ``ConfigError`` where it is not installed)."""
    try:
        import torch
        import torch.func
    except ImportError as error:
        raise ConfigError(
            f"TorchProblem needs PyTorch: pip install torch ({type(error).__name__}: {error})"
        ) from None
    return torch


def trainable_arrays(module: Any) -> ArrayRecord:
    """Return a module's trainable parameters by name: what a run of `TorchProblem` begins with.

    Equal to ``ArrayRecord(module.state_dict())`` for a module without buffers and frozen
    parameters.
    """
    return ArrayRecord(
        {
            name: Array(parameter.detach().cpu().numpy())
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
    )


def trainable(module: Any) -> dict[str, Any]:
    """Return the trainable parameters in the order of the state dict."""
    every = list(module.named_parameters(remove_duplicate=False))
    if len({id(parameter) for _, parameter in every}) < len(every):
        raise ConfigError("module has tied parameters: two names of one tensor are not supported")
    chosen = {name: parameter for name, parameter in every if parameter.requires_grad}
    if not chosen:
        raise ConfigError("module has no trainable parameters")
    kinds = {(str(p.dtype), str(p.device)) for p in chosen.values()}
    if len(kinds) > 1:
        raise ConfigError(f"module mixes parameters: {sorted(kinds)}")
    return chosen


def check_buffers(module: Any, buffers: str) -> None:
    """Refuse persistent buffers, unless they are to be kept as constants."""
    if buffers not in ("refuse", "keep"):
        raise ConfigError(f"buffers is {buffers!r}, expected refuse or keep")
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    kept = [name for name in module.state_dict() if name not in parameters]
    if kept and buffers == "refuse":
        raise ConfigError(
            f"module has buffers ({kept[0]}), which no gradient moves: use GroupNorm or LayerNorm "
            "in place of BatchNorm, or buffers='keep' to hold them constant"
        )


def tensors(torch: Any, data: Any, dtype: Any, device: Any) -> tuple[Any, Any]:
    """Return inputs and targets as tensors with one example a row."""
    if isinstance(data, torch.utils.data.DataLoader):
        data = data.dataset
    if not isinstance(data, tuple | list):
        pairs = [data[i] for i in range(len(data))]
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise ConfigError("data must be (inputs, targets), or a dataset of such pairs")
        data = [torch.stack([torch.as_tensor(pair[k]) for pair in pairs]) for k in (0, 1)]
    if len(data) != 2:
        raise ConfigError(f"data must be (inputs, targets), found {len(data)} parts")
    inputs, targets = (_tensor(torch, part, dtype, device) for part in data)
    if len(inputs) != len(targets):
        raise ConfigError(f"data has {len(inputs)} inputs and {len(targets)} targets")
    if not len(inputs):
        raise ConfigError("agent has no data")
    return inputs, targets


def _tensor(torch: Any, part: Any, dtype: Any, device: Any) -> Any:
    tensor = part if isinstance(part, torch.Tensor) else torch.from_numpy(np.array(part))
    tensor = tensor.detach()
    if tensor.is_floating_point():
        return tensor.to(device, dtype)
    whole = (torch.int8, torch.int16, torch.int32)
    return tensor.to(device, torch.int64 if tensor.dtype in whole else tensor.dtype)
