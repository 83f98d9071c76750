"""Data sets, their partitions over agents, and the problem each agent minimises."""

from __future__ import annotations

from privet.data.context import problem_from_context
from privet.data.dataset import DataError, Dataset, Part, Source
from privet.data.encoding import encoded_rows
from privet.data.held_out import split
from privet.data.loaders import NAMES, DataFormat, load
from privet.data.partitions import SCHEMES, partition
from privet.data.problem import (
    Federation,
    federation_from_config,
    planned_facts,
    problem_from_config,
)
from privet.data.settings import DataSettings
from privet.data.tables.files import read_rows

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
]
