"""Agent halves of the algorithms as Flower ClientApps."""

from .adapters import (
    CallableProblem,
    SklearnModel,
    SklearnProblem,
    TorchProblem,
    trainable_arrays,
)
from .app import client_app
from .base import LOCAL_KEYS, Participant, agent_name
from .half import AgentHalf, Local, Streams
from .sparse_mod import sparse_mod

__all__ = [
    "LOCAL_KEYS",
    "AgentHalf",
    "CallableProblem",
    "Local",
    "Participant",
    "SklearnModel",
    "SklearnProblem",
    "Streams",
    "TorchProblem",
    "agent_name",
    "client_app",
    "sparse_mod",
    "trainable_arrays",
]
