"""Sparse vectors: how they are encoded, which coordinates they hold, and how they are added."""

from .codec import SparseVector, decode, encode
from .index_coding import SparseError
from .selection import rand_k, top_k
from .sums import SparseSum

__all__ = ["SparseError", "SparseSum", "SparseVector", "decode", "encode", "rand_k", "top_k"]
