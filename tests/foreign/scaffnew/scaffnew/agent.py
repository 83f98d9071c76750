"""Scaffnew, the agent half."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privet.client_apps import ClippedGradients, GradientAgent, Gradients, Half, LocalTask
from privet.core import same, setting
from privet.kernel import stream


@dataclass(frozen=True)
class Agent(Half):
    """Its state is h_i, and the end of the last steps until the next x is known.

    Privacy: with ``clip`` and ``noise_scale`` every step is one Gaussian release.
    """

    name: ClassVar[str] = "scaffnew"
    noise_key: ClassVar[str] = "noise-scale"

    gamma: float = setting(0.1, "step size of a local step", low=0, open_low=True)
    communication_probability: float = setting(
        0.25, "chance that a step is a round's last (p)", low=0, high=1, open_low=True
    )
    coin_seed: int = setting(0, "seed of the coins, which are public", low=0)
    clip: float = same(ClippedGradients, "clip")
    noise_scale: float = same(GradientAgent, "noise_scale")
    relation: str = same(ClippedGradients, "relation")

    @property
    def private(self):
        return self.clip > 0 and self.noise_scale > 0

    @property
    def gradients(self):
        return Gradients(clip=self.clip, relation=self.relation, noise_scale=self.noise_scale)

    @property
    def rate(self):
        return self.communication_probability / self.gamma

    def steps(self, number):
        coins = stream(self.coin_seed, "coins", round_=number)
        return int(coins.geometric(self.communication_probability))

    def noised_release(self, facts, round_):
        what = "scaffnew noised local gradients"
        return self.gradients.release(facts, count=self.steps(round_), what=what)

    def restart(self, broadcast, facts):
        return {"h": np.zeros(facts.dim, facts.dtype), "end": broadcast["x"]}

    def current(self, state, broadcast):
        return state["h"] + self.rate * (broadcast["x"] - state["end"])

    def task(self, state, broadcast, records, streams):
        steps, shift = self.steps(streams.round), -self.current(state, broadcast)
        return LocalTask(broadcast["x"], self.gamma, steps, shift=shift, gradients=self.gradients)

    def finish(self, state, broadcast, task, walk):
        return {"end": walk.end}

    def follow(self, state, broadcast, upload):
        return {"h": self.current(state, broadcast), "end": upload["end"]}
