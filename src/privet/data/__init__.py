"""Data sets, their partitions over agents, and the problem each agent minimises."""

from __future__ import annotations

from .context import problem_from_context, table_from_context
from .dataset import DataError, Dataset, Part, Source
from .encoding import encoded_rows
from .held_out import split
from .loaders import NAMES, DataFormat, load
from .partitions import SCHEMES, partition
from .problem import (
    Federation,
    federation_from_config,
    planned_facts,
    problem_from_config,
)
from .settings import DataSettings
from .tables.files import read_rows

__all__ = [
    "NAMES",
    "SCHEMES",
    "DataError",
    "DataFormat",
    "DataSettings",
    "Dataset",
    "Federation",
    "Part",
    "Source",
    "encoded_rows",
    "federation_from_config",
    "load",
    "partition",
    "planned_facts",
    "problem_from_config",
    "problem_from_context",
    "read_rows",
    "split",
    "table_from_context",
]
