"""Benchmarks: each prints figures and ratios measured in one run, with the goals they have."""

from __future__ import annotations

from .clipping import bench_clipping
from .deployed import bench_deployed
from .engine import bench_engine
from .figure import Benchmark, Figure
from .gfl import bench_gfl
from .glm import bench_glm
from .hosts import bench_hosts
from .iadmm import bench_iadmm
from .masks import bench_masks
from .privacy import bench_privacy
from .private_step import bench_private_step
from .sql import bench_sql
from .startup import bench_startup
from .torch_rounds import bench_torch
from .wire import bench_wire

BENCHMARKS: dict[str, Benchmark] = {
    "engine": bench_engine,
    "clipping": bench_clipping,
    "deployed": bench_deployed,
    "gfl": bench_gfl,
    "glm": bench_glm,
    "hosts": bench_hosts,
    "iadmm": bench_iadmm,
    "masks": bench_masks,
    "privacy": bench_privacy,
    "private-step": bench_private_step,
    "sql": bench_sql,
    "startup": bench_startup,
    "torch": bench_torch,
    "wire": bench_wire,
}

__all__ = ["BENCHMARKS", "Benchmark", "Figure"]
