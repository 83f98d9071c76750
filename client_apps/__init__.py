"""Agent halves of the algorithms as Flower ClientApps."""

from privet.agents.adapters import (
    CallableProblem,
    SklearnModel,
    SklearnProblem,
    TorchProblem,
    trainable_arrays,
)
from privet.agents.base import LOCAL_KEYS, Participant, agent_name
from privet.agents.half import Half, Local, Streams
from privet.agents.loop import LocalRound, LoopParticipant, initial_arrays, measured_step
from privet.kernel.programs.steps import LocalTask, Walk

from .app import client_app
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
