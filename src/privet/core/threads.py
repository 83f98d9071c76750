"""One BLAS thread: the same bits on every engine, and no fight between client processes."""

from __future__ import annotations

from functools import lru_cache

from threadpoolctl import threadpool_limits


@lru_cache(maxsize=1)
def pin_blas_threads() -> None:
    """Limit this process to one BLAS thread, once."""
    threadpool_limits(limits=1, user_api="blas")
