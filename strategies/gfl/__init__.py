"""Graph federated learning: the servers of a graph, each with agents of its own."""

from .strategy import GFL

__all__ = ["GFL"]
