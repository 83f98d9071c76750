"""Asynchronous training a second time: a heap of events and the papers' steps, without the package.

A version begins with the server sending its model to every agent without a task. A task takes the
seconds that the schedule says, and is withdrawn once it is ``timeout`` seconds old. The version
waits for ``buffer`` uploads, or for all tasks that are out if those are fewer, and with a
``max_delay`` for every agent whose model is that many versions old. It folds the uploads in the
agents' order, each with what its agent was sent.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Gradient = Callable[[Vector], Vector]


class Absence(NamedTuple):
    """The time between two instants in which an agent does not work; its task goes on after it."""

    agent: int
    away: float
    back: float


@dataclass(frozen=True)
class Schedule:
    """When tasks end: the seconds of each agent's tasks in order, repeated, and the absences."""

    seconds: Sequence[Sequence[float]]
    absences: Sequence[Absence] = ()
    buffer: int = 1
    max_delay: int = 0
    timeout: float = math.inf
    most: int = 0
    """The tasks that an agent is given in all, at most; 0 is no limit."""

    def end(self, agent: int, number: int, start: float) -> float:
        """Return when the agent ends its ``number``-th task, counted from 0."""
        own = self.seconds[agent]
        left, now = own[number % len(own)], start
        spans = [(one.away, one.back) for one in self.absences if one.agent == agent]
        while True:
            now = _awake(spans, now)
            away = min((gone for gone, _ in spans if gone > now), default=math.inf)
            if now + left <= away:
                return now + left
            left, now = left - (away - now), away


def _awake(spans: Sequence[tuple[float, float]], now: float) -> float:
    """Return the first instant from ``now`` on that no absence holds."""
    while inside := [back for gone, back in spans if gone <= now < back]:
        now = max(inside)
    return now


class Task(NamedTuple):
    """What one agent is computing."""

    version: int
    sent: Any
    end: float
    lost: bool
    """Whether it is withdrawn at its end, as it takes longer than the timeout."""


@dataclass
class Trace:
    """What happened, a list entry a version."""

    participants: list[list[int]] = field(default_factory=list)
    versions: list[list[int]] = field(default_factory=list)
    """Of each participant, the version whose model it was sent."""
    withdrawn: list[list[int]] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    """How many tasks of each agent were begun, in the end."""


class Method(Protocol):
    """One algorithm: what is sent, what an agent makes of it, how it is folded."""

    count: int

    def sent(self) -> Any:
        """Return what an agent that is asked now is sent."""

    def compute(self, agent: int, sent: Any) -> Any:
        """Return the agent's upload and next state."""

    def fold(self, agent: int, sent: Any, upload: Any) -> None:
        """Combine an upload with what its agent was sent."""


def play(
    method: Method,
    schedule: Schedule,
    versions: int,
    after: Callable[[int], None] = lambda version: None,
) -> Trace:
    """Run the versions, call ``after`` at the end of each, and return what happened."""
    trace = Trace(computed=[0] * method.count)
    events: list[tuple[float, int]] = []
    out: dict[int, Task] = {}
    now = 0.0
    for version in range(1, versions + 1):
        model = method.sent()
        for agent in range(method.count):
            if agent in out or 0 < schedule.most <= trace.computed[agent]:
                continue
            end = schedule.end(agent, trace.computed[agent], now)
            latest = now + schedule.timeout
            out[agent] = Task(version, model, min(end, latest), end > latest)
            trace.computed[agent] += 1
            heapq.heappush(events, (out[agent].end, agent))
        arrived: dict[int, Task] = {}
        withdrawn: list[int] = []

        def waits(version: int = version, arrived: dict[int, Task] = arrived) -> bool:
            late = any(version - task.version >= schedule.max_delay > 0 for task in out.values())
            return bool(out) and (late or len(arrived) < schedule.buffer)

        while waits():
            now, agent = heapq.heappop(events)
            task = out.pop(agent)
            if task.lost:
                withdrawn.append(agent)
            else:
                arrived[agent] = task
        if not arrived:
            break
        for agent in sorted(arrived):
            sent = arrived[agent].sent
            method.fold(agent, sent, method.compute(agent, sent))
        trace.participants.append(sorted(arrived))
        trace.versions.append([arrived[agent].version for agent in sorted(arrived)])
        trace.withdrawn.append(sorted(withdrawn))
        trace.clock.append(now)
        after(version)
    return trace


def soft_threshold(weight: float) -> Callable[[Vector, float], Vector]:
    """Return the proximal operator of weight * |x|_1, of (x, t)."""
    return lambda x, t: np.sign(x) * np.maximum(np.abs(x) - t * weight, 0.0)


def no_prox(x: Vector, t: float) -> Vector:
    """Return x: h = 0."""
    return x


@dataclass
class FedPLT:
    """Fed-PLT; ``moduli`` (lam, L) of each agent make its local solver the accelerated one.

    ``exact``, of (agent, v), is a solver in its place.

    y = prox_{(rho/N) h}(mean z);  v = 2 y - z_i;  N_e steps on f_i(w) + |w - v|^2 / (2 rho) from
    x_i;  z_i += 2a (x_i - y).
    """

    gradients: Sequence[Gradient]
    x: list[Vector]
    z: list[Vector]
    rho: float
    relaxation: float
    epochs: Sequence[int]
    steps: Sequence[float] = ()
    moduli: Sequence[tuple[float, float]] = ()
    prox: Callable[[Vector, float], Vector] = no_prox
    exact: Callable[[int, Vector], Vector] | None = None

    @property
    def count(self) -> int:
        """Return N."""
        return len(self.gradients)

    def sent(self) -> Vector:
        """Return y of the present table."""
        return self.prox(sum(self.z) / self.count, self.rho / self.count)

    def compute(self, agent: int, sent: Vector) -> Vector:
        """Return x_i after the local steps."""
        v = 2 * sent - self.z[agent]
        if self.exact is not None:
            return self.exact(agent, v)

        def slope(w: Vector) -> Vector:
            return self.gradients[agent](w) + (w - v) / self.rho

        if self.moduli:
            low, high = (modulus + 1 / self.rho for modulus in self.moduli[agent])
            root = math.sqrt(high / low)
            momentum = (root - 1) / (root + 1)
            u = w = self.x[agent]
            for _ in range(self.epochs[agent]):
                last, u = u, w - slope(w) / high
                w = u + momentum * (u - last)
            return w
        w = self.x[agent]
        for _ in range(self.epochs[agent]):
            w = w - self.steps[agent] * slope(w)
        return w

    def fold(self, agent: int, sent: Vector, upload: Vector) -> None:
        """Reflect at the model that the agent was sent."""
        self.z[agent] = self.z[agent] + 2 * self.relaxation * (upload - sent)
        self.x[agent] = upload


@dataclass
class DPIADMM:
    """DP-IADMM, its schedules constant: E inexact steps with the linearised loss.

    w = mean(z - lam/rho);  u <- (rho w + lam_i - grad f_i(u) + u/eta) / (rho + 1/eta);
    z_i = mean of the u;  lam_i += rho (w - z_i).
    """

    gradients: Sequence[Gradient]
    z: list[Vector]
    duals: list[Vector]
    inner: list[Vector]
    rho: float
    eta: float
    updates: Sequence[int]

    @property
    def count(self) -> int:
        """Return P."""
        return len(self.gradients)

    def sent(self) -> Vector:
        """Return w of the present tables."""
        pairs = zip(self.z, self.duals, strict=True)
        return sum(z - dual / self.rho for z, dual in pairs) / self.count

    def compute(self, agent: int, sent: Vector) -> tuple[Vector, Vector]:
        """Return the mean of the inner steps and the last of them."""
        u, steps = self.inner[agent], []
        for _ in range(self.updates[agent]):
            top = self.rho * sent + self.duals[agent] - self.gradients[agent](u) + u / self.eta
            u = top / (self.rho + 1 / self.eta)
            steps.append(u)
        return sum(steps) / len(steps), u

    def fold(self, agent: int, sent: Vector, upload: tuple[Vector, Vector]) -> None:
        """Take z_i and move the dual by the w that the agent was sent."""
        self.z[agent], self.inner[agent] = upload
        self.duals[agent] = self.duals[agent] + self.rho * (sent - self.z[agent])


@dataclass
class Scaffold:
    """SCAFFOLD with option II: a version moves x by the server step times the mean of the moves."""

    gradients: Sequence[Gradient]
    x: Vector
    c: Vector
    own: list[Vector]
    step: float
    epochs: Sequence[int]

    @property
    def count(self) -> int:
        """Return N."""
        return len(self.gradients)

    def sent(self) -> tuple[Vector, Vector]:
        """Return x and c."""
        return self.x, self.c

    def compute(self, agent: int, sent: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
        """Return the move of x and the change of c_i."""
        (x, c), y = sent, sent[0]
        for _ in range(self.epochs[agent]):
            y = y - self.step * (self.gradients[agent](y) - self.own[agent] + c)
        new = self.own[agent] - c + (x - y) / (self.epochs[agent] * self.step)
        return y - x, new - self.own[agent]

    def fold(self, agent: int, sent: Any, upload: tuple[Vector, Vector]) -> None:
        """Move the present x and c by 1/N of an upload."""
        move, change = upload
        self.x = self.x + move / self.count
        self.c = self.c + change / self.count
        self.own[agent] = self.own[agent] + change


def stages(
    participants: Sequence[Sequence[int]], versions: Sequence[Sequence[int]], count: int
) -> list[int]:
    """Return how many stages are complete after each version.

    A stage is complete when every agent has folded an upload of a model that it was sent within
    the stage: of a version after the last one of the stage before.
    """
    complete, begun, missing, counts = 0, 1, set(range(count)), []
    for version, (folded, sent) in enumerate(zip(participants, versions, strict=True), 1):
        missing -= {agent for agent, own in zip(folded, sent, strict=True) if own >= begun}
        if not missing:
            complete, begun, missing = complete + 1, version + 1, set(range(count))
        counts.append(complete)
    return counts
