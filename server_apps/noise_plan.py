"""The noise of a planned private run beside the most that its records can say, before it runs.

All is of public numbers: the agents' facts, and the releases that their accounts will be charged
for.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from privet.agents.half import Half
from privet.kernel import Facts, Release
from privet.rounds.account import TARGET
from privet.rounds.calibration import Plan, plans
from privet.strategies import Observer, PrimalDualStrategy, Run

log = logging.getLogger("flwr.privet")

CLEAR = 2.0
"""The ratio of signal to noise in a step of a proposed plan, where two steps or more have it: at 1
the noise is as long as the longest update there can be, and those of a run are shorter."""


@dataclass(frozen=True, slots=True)
class NoisePlan:
    """The signal and the noise of a planned run.

    A record moves what an agent releases by at most s, so all its n records move it by at most n s:
    it lies within r = n s / 2 of a point that says nothing of them (n s where a neighbour is one
    record less, of which s counts the whole). Where a whole update is clipped, all of them together
    move it by at most s, and r = s / 2 (program ``update``). Of noise of deviation sigma on each of
    d coordinates, the mean over the N agents of a round has the ratio

        N r / sqrt(d sum_i sigma_i^2) = sqrt(N / (d mean_i (sigma_i / r)^2)),

    and sigma_i / r = 2 / (n mu_i) follows from the cost mu_i of a release alone. The squares of the
    ratios of all noised steps add up to R^2, which a total epsilon fixes, however many steps share
    it: R = sqrt(N) n mu / (2 sqrt(d)) for N equal agents of Gaussian-DP parameter mu. In each of S
    steps the ratio is R / sqrt(S).

    Attributes
    ----------
    squared : float
        R^2.
    rounds : int
        Rounds that are planned.
    local : int
        Noised steps of an agent in a round.
    sharing : float
        The factor of R if the agents shared out the noise, and none colluded.
    whole : bool
        Whether a whole update is clipped, whatever the number of its records.
    """

    squared: float
    rounds: int
    local: int
    sharing: float = 1.0
    whole: bool = False

    @property
    def noise(self) -> float:
        """Noise of a step over the longest update, at least."""
        return self.noise_of(self.rounds * self.local)

    def noise_of(self, steps: int) -> float:
        """Return the noise of a step over the longest update where so many steps share R."""
        return math.sqrt(steps / self.squared) if self.squared > 0 else math.inf

    def advice(self, epsilon: float, local_key: str, rounds_key: str = "num-server-rounds") -> str:
        """Return one line on a plan whose noise is above the signal, "" on any other.

        Parameters
        ----------
        epsilon : float
            The total.
        local_key : str
            Run-config key of the local steps, "" if there is none.
        rounds_key : str
            Run-config key of the number of rounds that an agent is planned to take part in.
        """
        if self.noise <= 1:
            return ""
        steps = f" of {self.local} noised steps" if self.local > 1 else ""
        what = rounds_key.rpartition("-")[2]
        text = (
            f"{self.rounds} {what}{steps} share epsilon {epsilon:g}: the noise of a step is "
            f"{self.noise:.2g} times the longest update that the records can make"
        )
        steps_left = int(self.squared / CLEAR**2)
        if steps_left < 2:
            steps_left = int(self.squared)
        if steps_left < 1:
            return f"{text}, and {self.noise_of(1):.2g} times in a single round; {self._way_out}"
        few = min(self.rounds, steps_left)
        local = min(self.local, steps_left // few) if local_key else self.local
        keys = [f"{rounds_key}={few}"] if few < self.rounds else []
        keys += [f"{local_key}={local}"] if local < self.local else []
        return f"{text}; with {' '.join(keys)} it is {self.noise_of(few * local):.2g} times"

    @property
    def _way_out(self) -> str:
        """What helps where even one round is too noisy."""
        others = "more agents" if self.whole else "fewer agents with more records each"
        ways = f"raise target-epsilon, or have {others}"
        if self.sharing > 1:
            algorithm = "dp-fedavg" if self.whole else "dp-fedsgd"
            ways += (
                f", or agents that share the noise (algorithm={algorithm} secure-sum=true "
                f"noise-sharing=true), then {self.noise_of(1) / self.sharing:.2g} times"
            )
        return ways


def noise_plan(half: Half, every: Mapping[str, Plan]) -> NoisePlan:
    """Return the signal and the noise of what is planned of these agents.

    Parameters
    ----------
    half : Half
        The agent half, with its noise.
    every : mapping of str to Plan
        By agent; all of them have the same ``sizes``.
    """
    agents = Counter(plan.facts for plan in every.values() if plan.rounds)
    sizes = {number: size for plan in every.values() for number, size in plan.sizes.items() if size}
    total, local = 0.0, 1
    for number, size in sizes.items():
        inverse = 0.0
        for facts, count in agents.items():
            among = replace(facts, agents=size) if half.noise_sharing else facts
            release = half.release(among, number)
            inverse += count / _squared_ratio(release, facts)
            local = max(local, release.count * release.steps)
        dim = max(facts.dim for facts in agents)
        total += size * sum(agents.values()) / (dim * inverse) if inverse > 0 else math.inf
    sharing = 1.0 if half.noise_sharing or not sizes else math.sqrt(max(sizes.values()))
    return NoisePlan(total, len(sizes), local, sharing, half.clipping == "update")


def _squared_ratio(release: Release, facts: Facts) -> float:
    """Return (r / sigma)^2 of the noise that one agent adds, for all uses in a message."""
    if release.mechanism == "none":
        return math.inf
    units = 1 if release.relation == "replace-agent" else facts.num_examples
    reach = float(units) if release.relation == "add-remove" else units / 2.0
    if release.program == "update":
        reach = 0.5
    reach *= release.sampling  # a sampled record moves so much more
    # The loss of a shared noise is that of the sum, and Laplace's is in units of its scale.
    own = release.loss**2 * release.honest / (2.0 if release.mechanism == "laplace" else 1.0)
    return reach**2 * own * release.count


def planned_noise(strategy: PrimalDualStrategy, run: Run) -> str:
    """Return the line on a run with a target epsilon whose noise is above the signal, else ""."""
    target, options = run.half.terms.target_epsilon, run.options
    begun = run.session.round > 0
    if target <= 0 or begun or options.rounds is None or not run.half.agent.private:
        return ""
    every = plans(run.session, options)
    if not any(plan.rounds for plan in every.values()):
        return ""
    local_key = type(strategy).local_steps
    rounds_key = "max-uploads" if options.max_uploads else "num-server-rounds"
    return noise_plan(run.half.agent, every).advice(target, local_key, rounds_key)


class NoiseOfPlan(Observer):
    """Warns before the first round of a private run whose noise is above its signal.

    Attributes
    ----------
    said : str
        The line.
    """

    def __init__(self, strategy: PrimalDualStrategy) -> None:
        self.strategy, self.said = strategy, ""

    def on_begin(self, run: Run) -> None:
        """Look at the noise that was calibrated, and at the rounds that are left."""
        self.said = planned_noise(self.strategy, run)
        if self.said:
            log.warning("%s: %s", TARGET, self.said)
