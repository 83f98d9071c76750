"""Copies between the processor and a GPU: through pinned memory, none of which waits for itself.

A copy from or to pinned memory is made by the GPU while the processor goes on. PyTorch's allocator
keeps pinned memory until the copies from it are done, and a copy to it may be read after `wait`.
No copy changes a number, but for half precision, which travels as float32.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..half import Vector


class Pinned:
    """Pinned memory, for parameters on some GPUs.

    Parameters
    ----------
    devices : iterable of torch.device
    """

    def __init__(self, devices: Iterable[Any]) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._devices = set(devices)

    @classmethod
    def where_useful(cls, tensors: Iterable[Any]) -> Pinned | None:
        """Return what tensors on GPUs need; None where all are on another device."""
        devices = [each.device for each in tensors if each.is_cuda]
        return cls(devices) if devices else None

    def holding(self, vector: Any) -> Any:
        """Return a tensor (d,) in pinned memory."""
        return vector.pin_memory()

    def empty(self, size: int, dtype: Any) -> Any:
        """Return pinned memory of any contents, (size,)."""
        return self._torch.empty(size, dtype=dtype, pin_memory=True)

    def wait(self) -> None:
        """Wait until all copies are done."""
        for device in self._devices:
            self._torch.cuda.current_stream(device).synchronize()

    def gathered(self, tensors: list[Any], dtype: np.dtype[Any]) -> Vector:
        """Return tensors as one flat vector: one after the other, each copied once."""
        kind = self._torch.float64 if dtype == np.float64 else self._torch.float32
        flat = self.empty(sum(each.numel() for each in tensors), kind)
        pieces = flat.split([each.numel() for each in tensors])
        for piece, each in zip(pieces, tensors, strict=True):
            piece.copy_(each.detach().reshape(-1), non_blocking=True)
        self.wait()
        vector: Vector = flat.numpy()
        return vector
