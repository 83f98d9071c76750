"""AREA: asynchronous exact averaging, the server half.

C. Iakovidou, K. Kim, "Asynchronous Federated Stochastic Optimization for Heterogeneous Objectives
Under Arbitrary Delays" (2024, arXiv 2405.10123), with one gradient an upload; the same as DAve-RPG
of K. Mishchenko, F. Iutzeler, J. Malick, "A Distributed Flexible Delay-Tolerant Proximal Gradient
Algorithm" (SIAM Journal on Optimization, 2020), without its proximal term. The server keeps the
last step z_i of every agent, from the model x^(t_i) that it was sent, and

    z_i <- x^(t_i) - gamma grad f_i(x^(t_i))     for the agents whose gradient has come,
    x   <- (1/N) sum_i z_i                       over ALL agents.

In the limit x = z_i + gamma grad f_i(x) of all of them, so that the gradients add up to 0, whoever
uploads how often. It needs one gamma for all; with several local steps the limit is another. With
the uploads of all agents in every version it is gradient descent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from privet.client_apps.rivals.area import Agent
from privet.core.key import LARGEST, SMALLEST, setting
from privet.rounds.half import Arrays, HalfState, Positions, ServerHalf, Turn, Vector, mean_row
from privet.rounds.hooks import SearchAxis
from privet.rounds.uploads import Uploads
from privet.wire.ring import Shapes

from .constructors import AREAArguments


@dataclass(slots=True)
class State(HalfState):
    """The model x (d,), and the z_i (N, d); the residual is the squared last step of x."""

    x: Vector
    z: Vector


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """Server half of AREA; its agents hold nothing."""

    state = State

    agent: Agent = field(default_factory=Agent)
    step_size: float = setting(0.1, "step size, the same for all", low=SMALLEST, high=LARGEST)

    def rows(self, start: Vector) -> Arrays:
        return {"z": start}

    def recovery(self, state: State, positions: Positions) -> Arrays:
        """Return nothing: the z_i are the server's own."""
        return {}

    def summands(self, state: State) -> Shapes:
        """Return g_i (d,)."""
        return {"g": state.x.shape}

    def fold(self, state: State, uploads: Uploads, turn: Turn) -> State:
        """Take the agents' steps from the models that they were sent, and the mean over all."""
        if not uploads:
            return state
        gamma = state.x.dtype.type(self.step_size)
        for block in uploads:
            state.z[block.where] = block.sent["x"] - gamma * block.upload["g"]
        x = mean_row(state.z)
        return State(x, state.z, residual=uploads.step(x, state.x))


class AREA(AREAArguments):
    """AREA as a Flower Strategy, or DAve-RPG.

    Notes
    -----
    Who is averaged when some are absent: all agents, absent ones with their old z_i.
    Privacy: none.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = (Agent, Server)
    server_half = Server
    local_steps: ClassVar[str] = ""
    search: ClassVar[tuple[SearchAxis, ...]] = (SearchAxis("step-size", 0.05, 5.0, "smoothness"),)
    partial: ClassVar[bool] = True
