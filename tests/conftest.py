"""What is made once for all tests."""

from support.fixtures import (
    _baselines_only_where_they_are_looked_at,
    _curves_only_where_they_are_looked_at,
    _loggers_as_imported,
    _nodes_of_this_process_are_all_there,
    built,
    clock,
)

__all__ = [
    "_baselines_only_where_they_are_looked_at",
    "_curves_only_where_they_are_looked_at",
    "_loggers_as_imported",
    "_nodes_of_this_process_are_all_there",
    "built",
    "clock",
]
