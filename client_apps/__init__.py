"""Agent halves of the algorithms as Flower ClientApps."""

from .base import LOCAL_KEYS, Participant, agent_name, client_app
from .half import AgentHalf, Local, Streams
from .sparse_mod import sparse_mod

__all__ = [
    "LOCAL_KEYS",
    "AgentHalf",
    "Local",
    "Participant",
    "Streams",
    "agent_name",
    "client_app",
    "sparse_mod",
]
