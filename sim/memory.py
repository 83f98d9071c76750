"""Freed memory is kept for the next message instead of being handed back to the system.

Messages of a round are allocated and freed together; with the C library's defaults every payload
above 128 kB is mapped, zeroed page by page and unmapped again, which costs ten times the copy.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEPT_BYTES = (1 << 31) - 1  # the most an int takes
LARGEST_KEPT = 32 << 20  # the most that glibc accepts


@lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Tell the C library, once; return whether it could be told (glibc only)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    told = (mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT), mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
    return all(told)
