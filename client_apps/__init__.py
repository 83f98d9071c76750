"""Agent halves of the algorithms as Flower ClientApps."""

from privet.agents.adapters import (
    CallableProblem,
    CoxProblem,
    SklearnModel,
    SklearnProblem,
    TorchProblem,
    trainable_arrays,
)
from privet.agents.base import LOCAL_KEYS, Participant, agent_name
from privet.agents.half import Half, Local, Streams
from privet.agents.loop import LocalRound, LoopParticipant, initial_arrays, measured_step
from privet.agents.sparsifiers import Choice, sparse_arrays
from privet.agents.value_bits import ValueBits
from privet.kernel.programs.gradients import Gradients
from privet.kernel.programs.steps import LocalTask, Walk
from privet.kernel.programs.update import ClippedUpdate

from .app import client_app
from .gradient_agents import ClippedGradients, GradientAgent, NoisyStepsAgent, SeveralStepsAgent
from .sparse_mod import sparse_mod

__all__ = [
    "LOCAL_KEYS",
    "CallableProblem",
    "Choice",
    "ClippedGradients",
    "ClippedUpdate",
    "CoxProblem",
    "GradientAgent",
    "Gradients",
    "Half",
    "Local",
    "LocalRound",
    "LocalTask",
    "LoopParticipant",
    "NoisyStepsAgent",
    "Participant",
    "SeveralStepsAgent",
    "SklearnModel",
    "SklearnProblem",
    "Streams",
    "TorchProblem",
    "ValueBits",
    "Walk",
    "agent_name",
    "client_app",
    "initial_arrays",
    "measured_step",
    "sparse_arrays",
    "sparse_mod",
    "trainable_arrays",
]
