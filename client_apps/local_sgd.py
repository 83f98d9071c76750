"""Privacy-critical: the round of an agent in a run of Flower's own FedAvg or FedProx.

H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
(2017); T. Li et al., "Federated Optimization in Heterogeneous Networks" (2020): K steps
w <- w - eta_t (g(w) + mu (w - x)) from w = x, where FedProx sends mu as ``proximal-mu``. Clipping,
noise and account are those of the other rivals: every local gradient is noised and counted, and
the node's budget is checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from privet.agents.base import Participant, ProblemFn, played
from privet.agents.cycles import keep_cycle
from privet.agents.guard import TERMS, Guard, ReplyCharge, checked_terms, node_rules, require_tame
from privet.agents.half import Arrays, Local, Streams
from privet.agents.pace import Pace, require_fixed_time
from privet.agents.state import read_state, require_room, write_state
from privet.core import ConfigError, WireError
from privet.core.errors import did_you_mean
from privet.core.key import keys_of
from privet.kernel import Records
from privet.kernel.exits import Exits
from privet.kernel.programs.steps import LocalTask, Walk
from privet.kernel.round import AgentRound, View
from privet.wire import Layout

from .gradient_agents import SeveralStepsAgent


@dataclass(frozen=True)
class Agent(SeveralStepsAgent):
    """K clipped, noised gradient steps with an optional proximal term; no state."""

    name: ClassVar[str] = "local-sgd"

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return f_i(w) + (mu/2) ||w - x||^2, from x."""
        x, mu = broadcast["x"], float(broadcast["mu"])
        return self.local_task(x, streams, center=x, rho=1.0 / mu if mu else math.inf)

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Arrays:
        """Return the last w."""
        return {"x": walk.end}


class LocalSGD(Participant):
    """Answers TRAIN messages of Flower's FedAvg and FedProx."""

    def __init__(self, problem_fn: ProblemFn, settings: Mapping[str, Any]) -> None:
        super().__init__(problem_fn)
        agent_keys = {key.name for key in keys_of(Agent).values()}
        for name in settings.keys() - agent_keys - TERMS.keys():
            hint = did_you_mean(name, agent_keys | TERMS.keys())
            raise ConfigError(f"unknown setting {name!r}{hint}")
        self.agent = Agent.from_settings(settings)
        self.terms = checked_terms(settings)

    def exits(self, message: Message, context: Context) -> Exits:
        # Flower's own messages do not say that the run is private; the app's settings do.
        if self.agent.private:
            return Exits(private=True, quiet=True)
        return super().exits(message, context)

    def _train(self, message: Message, context: Context, name: str) -> RecordDict:
        return played(FlowerRound(self, self.agent, self.terms, message, context, name))


class FlowerRound(AgentRound[Local, RecordDict]):
    """One agent's round in a run of Flower's own strategy, whose upload is not masked."""

    def __init__(
        self,
        participant: LocalSGD,
        half: Agent,
        settings: Mapping[str, Any],
        message: Message,
        context: Context,
        name: str,
    ) -> None:
        arrays, config = message.content.get("arrays"), message.content.get("config")
        if not isinstance(arrays, ArrayRecord) or not isinstance(config, ConfigRecord):
            raise WireError("message has no records 'arrays' and 'config': not of FedAvg")
        number = config.get("server-round")
        if not isinstance(number, int):
            raise WireError("message has no 'server-round'")
        self._participant, self._context = participant, context
        self.worker = self._half = half
        self._arrays, self._layout = arrays, Layout.of(arrays)
        self._mu = config.get("proximal-mu", 0.0)
        self._streams = Streams(int(settings.get("seed", 0)), name, number)
        self._rules = rules = node_rules(context)
        self._settings = settings
        self._guard = Guard(context, rules, settings, name, number)
        self._message, self._pace = message, Pace(rules, context)
        self._spent: ReplyCharge

    def screen(self) -> None:
        self._guard.screen(self._half)

    def receive(self) -> None:
        self._held = read_state(self._context).of(f"flower run {self._context.run_id}")
        self._prepared, self._facts = self._participant.prepared_problem(
            self._half, self._context, self._settings
        )
        x, problem = self._layout.flatten(self._arrays), self._prepared.problem
        if x.size != problem.dim or x.dtype != problem.dtype:
            raise ConfigError(
                f"model has {x.size} parameters in {x.dtype}, the problem "
                f"{problem.dim} in {problem.dtype}"
            )
        self._broadcast = {"x": x, "mu": np.array(self._mu, x.dtype)}

    def check(self) -> None:
        seconds = self._rules.reply_seconds or self._participant.reply_seconds
        require_fixed_time(
            *(self._prepared.problem, self._settings, self._half.private, seconds),
            limited=self._rules.limited,
        )
        if self._half.private:
            require_tame(self._broadcast.values())

    def charge(self) -> None:
        require_room(self._context, 0)
        with self._pace.turn(self._message):
            self._spent = self._guard.charge(self._half, self._facts, self._held.ledger)

    def grant(self) -> list[View]:
        records = Records(self._prepared, self._spent.noise)
        return [View({}, self._broadcast, records, self._streams)]

    def seal(self, done: list[Local]) -> RecordDict:
        arrays = self._layout.restore(done.pop().upload["x"])
        spent = self._spent
        metrics = MetricRecord({"num-examples": self._facts.num_examples, "epsilon": spent.epsilon})
        return RecordDict({"arrays": arrays, "metrics": metrics})

    def keep(self) -> None:
        spent = self._spent
        held = self._held._replace(ledger=spent.ledger, fully_charged=spent.fully_charged)
        keep_cycle(self._context, spent.noise.cycle, spent.head)
        write_state(self._context, held)
        self._pace.note()


def local_sgd_app(
    problem_fn: ProblemFn, *, mods: list[Mod] | None = None, **settings: Any
) -> ClientApp:
    """Return a ClientApp for Flower's FedAvg or FedProx.

    Parameters
    ----------
    problem_fn : callable
        ``context -> Problem``.
    mods : list of Flower mods, optional
    settings
        Run-config keys of the gradient steps with underscores: ``step_size_base``,
        ``max_local_steps``, ``batch``, ``clip``, ``noise_scale``, ..., ``seed``, ``delta``.

    Privacy: with ``clip`` and ``noise_scale`` > 0 an upload is ``max_local_steps`` Gaussian
    releases; the reply's metric ``epsilon`` is the agent's total so far.

    Raises
    ------
    ConfigError
        For an unknown setting, or a value out of range.
    """
    named = {name.replace("_", "-"): value for name, value in settings.items()}
    participant = LocalSGD(problem_fn, named)
    app = ClientApp(mods=[participant.around(mods), *(mods or ())])
    app.train()(participant.train)
    app.evaluate()(participant.evaluate)
    return app
