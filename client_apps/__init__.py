"""Agent halves of the algorithms as Flower ClientApps."""

from privet.kernel.programs.steps import LocalTask, Walk

from .adapters import (
    CallableProblem,
    SklearnModel,
    SklearnProblem,
    TorchProblem,
    trainable_arrays,
)
from .app import client_app
from .base import LOCAL_KEYS, Participant, agent_name
from .half import Half, Local, Streams
from .loop import LocalRound, LoopParticipant, initial_arrays, measured_step
from .sparse_mod import sparse_mod

__all__ = [
    "LOCAL_KEYS",
    "CallableProblem",
    "Half",
    "Local",
    "LocalRound",
    "LocalTask",
    "LoopParticipant",
    "Participant",
    "SklearnModel",
    "SklearnProblem",
    "Streams",
    "TorchProblem",
    "Walk",
    "agent_name",
    "client_app",
    "initial_arrays",
    "measured_step",
    "sparse_mod",
    "trainable_arrays",
]
