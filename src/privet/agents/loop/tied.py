"""Tied tensors of a PyTorch module: one that its state dict has under several names.

``named_parameters()`` has it once, and so has the run's vector. Every other name under which the
starting model has it must come back with the trained values.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from privet.core import ConfigError


def tied_names(model: Any, chosen: Mapping[str, Any]) -> dict[str, str]:
    """Return each further name of these tensors in the state dict, with the name in ``chosen``.

    Raises
    ------
    ConfigError
        If one of them shares memory with another entry without being the same tensor: what is
        written into the one would change the other.
    """
    names = {_identity(each): name for name, each in chosen.items()}
    tied: dict[str, str] = {}
    others: dict[str, Any] = {}
    for name, each in model.state_dict(keep_vars=True).items():
        if name in chosen or not hasattr(each, "detach"):
            continue
        if first := names.get(_identity(each)):
            tied[name] = first
        else:
            others[name] = each
    _require_apart(chosen, others)
    return tied


def _require_apart(chosen: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    spans = sorted([*_spans(chosen, True), *_spans(others, False)], key=lambda span: span[:3])
    for (device, _, end, name, ours), (where, begin, _, other, too) in pairwise(spans):
        if device == where and begin < end and (ours or too):
            raise ConfigError(
                f"{name!r} and {other!r} of the model share memory without being one parameter: "
                "tie them by assigning the same torch.nn.Parameter to both"
            )


def _spans(tensors: Mapping[str, Any], ours: bool) -> Iterator[tuple[str, int, int, str, bool]]:
    """Yield device, addresses and name of those that fill their memory without a gap."""
    for name, each in tensors.items():
        size = each.numel()
        extent = 1 + sum((n - 1) * step for n, step in zip(each.shape, each.stride(), strict=True))
        if (at := _address(each)) and extent == size:
            yield str(each.device), at, at + size * each.element_size(), name, ours


def _identity(tensor: Any) -> Hashable:
    """Return what is equal for tensors that are the same numbers at the same address."""
    if at := _address(tensor):
        return str(tensor.device), at, tensor.dtype, tuple(tensor.shape), tensor.stride()
    return id(tensor)


def _address(tensor: Any) -> int:
    """Return where a tensor's numbers lie, 0 where it has none or does not say."""
    try:
        return 0 if tensor.is_meta or not tensor.numel() else int(tensor.data_ptr())
    except (RuntimeError, ValueError):  # a subclass without memory, or a lazy parameter
        return 0
