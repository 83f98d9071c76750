"""Sparse vectors: how they are encoded, which coordinates they hold, and how they are added."""

from .codec import SparseVector, decode, encode
from .index_coding import SparseError

__all__ = ["SparseError", "SparseVector", "decode", "encode"]
