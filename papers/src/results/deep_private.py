"""Private networks, equally tuned: accuracy against epsilon, the page docs/results/deep-private.md.

    .venv/bin/python -m results.deep_private docs/results FOLDER --size small

FOLDER has mnist_20k.npz and Adult's two files. What is not yet in docs/results/deep-private.jsonl
is played, a line a run, and the page is written; the command can be stopped at any time, begins
with an estimate, and the page says the size. ``--write`` plays nothing, ``--task`` one network
alone. The compact networks of ``--size small`` take two hours of one core.

A method's step and clip are searched on other agents' records, with a validation set of their own
(`results.private_tasks`), at the epsilon of the reported run or, in full size, at one near it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from flwr.app import ArrayRecord, Context

from privet.client_apps import TorchProblem, client_app
from privet.kernel import gaussian_epsilon, gaussian_scale
from privet.kernel.sampled import sampled_epsilon
from privet.sim.engine import InlineGrid
from privet.sim.logs import quiet
from privet.sim.trusting import trusting_nodes
from privet.strategies import DPFedAvg, DPFedSGD, FedDyn, FedPDM, Scaffold
from results.dots import Interval, Panel, draw, interval
from results.marked import fill, suite
from results.network_tasks import accuracy, loss_of
from results.opacus_fedavg import DELTA, opacus, trained
from results.private_accuracy import level
from results.private_tasks import SIZES, TASKS, Parts
from results.themes import themed
from studies.pages import points
from studies.rule import BETTER, WORSE, standing
from studies.runs import Runs
from studies.search import Found, compass
from studies.statistics import Estimate, difference

Values = dict[str, float]

ADVICE = "choose.md"
EPSILONS = (1, 2, 4, 8)
TUNED_AT = {
    "quick": {1: 2, 2: 2, 4: 2, 8: 2},
    "small": {1: 1, 2: 2, 4: 4, 8: 8},
    "full": {1: 1, 2: 1, 4: 4, 8: 4},
}
"""By size, the epsilon at which the settings of each epsilon are searched."""
TUNING = 1000
"""Seed of the runs that choose a method's settings."""
SEEDS = {"quick": 2, "small": 10, "full": 5}
TRIALS = {"quick": 1, "small": 6, "full": 9}
BOUND = {"quick": 1, "small": 12, "full": 13}
FIRST_GUESS = {"quick": 0.5, "small": 2.0, "full": 60.0}
"""Seconds of one core that a run is guessed to take, before one was played."""
STEPS = 3
"""Local steps of a round, where there are several."""
BATCHES = 4
"""Sampled steps that take as many gradients as one of all examples."""
COLLUDERS = 1
MIDDLE_CLIP = 1.0


# ------------------------------------------------------------------ methods


@dataclass(frozen=True)
class Method:
    """A method: what plays it, and which step suits it where plain gradient descent takes 1.

    Attributes
    ----------
    make : callable, optional
        ``(step, clip, local steps, what every strategy takes) -> strategy``; Opacus has none.
    steps : int
        Gradients of all its examples that an agent takes in a round.
    times : int
        Steps for one gradient of all examples, of which each takes part by a coin if above 1, or
        with ``bands`` in its turn, a round each.
    bands : int
        Steps in a row with correlated noise, of batches in turn; 0 for other batches.
    relation : str
        Whose change epsilon is about.
    update : bool
        Whether the update is clipped, and not every example's gradient.
    """

    make: Callable[[float, float, int, dict[str, Any]], Any] | None
    steps: int = 1
    scale: float = 1.0
    times: int = 1
    relation: str = "replace-one"
    shared: bool = False
    update: bool = False
    bands: int = 0


def _sgd(step: float, clip: float, steps: int, run: dict[str, Any]) -> Any:
    return DPFedSGD(momentum=0.0, step_size_base=step, clip=clip, **run)


def _momentum(step: float, clip: float, steps: int, run: dict[str, Any]) -> Any:
    return DPFedSGD(momentum=0.9, step_size_base=step, clip=clip, **run)


def _pdm(step: float, clip: float, steps: int, run: dict[str, Any]) -> Any:
    own: dict[str, Any] = {"rho": RHO_ETA / step, "max_local_steps": 1, "dual": "public"}
    return FedPDM(step_size_base=step, clip=clip, **own, **run)


def _dyn(step: float, clip: float, steps: int, run: dict[str, Any]) -> Any:
    own: dict[str, Any] = {"fed_dyn_alpha": KAPPA / (steps * step), "max_local_steps": steps}
    return FedDyn(step_size_base=step, clip=clip, **own, **run)


def _scaffold(step: float, clip: float, steps: int, run: dict[str, Any]) -> Any:
    return Scaffold(max_local_steps=steps, step_size_base=step, clip=clip, **run)


def _fedavg(step: float, clip: float, steps: int, run: dict[str, Any]) -> Any:
    return DPFedAvg(max_local_steps=steps, step_size_base=step, clip=clip, **run)


RHO_ETA = 0.25
"""Of FedPDM: a momentum of 3/4. At 1/2 it is DP-FedSGD of twice its step (docs/identities.md)."""
KAPPA = 0.3
"""Of FedDyn: alpha is this over the length of a round's steps, as by default around loops."""
REFERENCE = "DP-FedSGD"
SGD_ADD_REMOVE, ADD_REMOVE = "DP-FedSGD, add-remove", "SCAFFOLD, add-remove"
OWN_ACCOUNT = "Opacus in FedAvg, own account"
METHODS: Mapping[str, Method] = {
    "DP-FedSGD": Method(_sgd),
    "DP-FedSGD, momentum 0.9": Method(_momentum, scale=0.2),
    "FedPDM, Q = 1": Method(_pdm, scale=0.4),
    "FedDyn": Method(_dyn, STEPS),
    "SCAFFOLD": Method(_scaffold, STEPS),
    "Opacus in FedAvg": Method(None, STEPS),
    "DP-FedAvg": Method(_fedavg, STEPS, update=True),
    "DP-FedSGD, shared noise": Method(_sgd, shared=True),
    "DP-FedAvg, shared noise": Method(_fedavg, STEPS, shared=True, update=True),
    SGD_ADD_REMOVE: Method(_sgd, relation="add-remove"),
    ADD_REMOVE: Method(_scaffold, STEPS, relation="add-remove"),
    OWN_ACCOUNT: Method(None, STEPS, 1.0 / BATCHES, BATCHES, "add-remove"),
    "DP-FedSGD, in turn": Method(_sgd, 1, 1.0 / BATCHES, BATCHES, bands=1),
    "DP-FedSGD, in turn, bands": Method(_sgd, 1, 1.0 / BATCHES, BATCHES, bands=BATCHES),
    "FedPDM, in turn": Method(_pdm, 1, 0.4 / BATCHES, BATCHES, bands=1),
    "FedPDM, in turn, bands": Method(_pdm, 1, 0.4 / BATCHES, BATCHES, bands=BATCHES),
}
BANDED: Mapping[str, tuple[str, ...]] = {
    "DP-FedSGD, in turn, bands": ("DP-FedSGD", "DP-FedSGD, in turn"),
    "FedPDM, in turn, bands": ("FedPDM, Q = 1", "FedPDM, in turn"),
}
"""Methods with correlated noise, and those of as many gradients whose noise is independent."""


# ------------------------------------------------------------------ a run


@lru_cache(maxsize=2)
def parts_of(folder: Path, task: str, size: str, seed: int, tuning: bool) -> Parts:
    """Return a task's agents, of whom the last two are kept."""
    return TASKS[task].parts(folder, size, seed, tuning)


def _loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


@lru_cache(maxsize=1)
def problems_of(
    folder: Path, task: str, size: str, seed: int, tuning: bool, double: bool
) -> list[TorchProblem]:
    """Return the agents' problems, all from the seed's network."""
    network = TASKS[task].network(seed, size)
    network = network.double() if double else network
    parts = parts_of(folder, task, size, seed, tuning)
    return [TorchProblem(network, _loss, part) for part in parts.agents]


def play(
    folder: Path, *, size: str, task: str, method: str, epsilon: int, seed: int, values: Values,
    gradients: int = 0, batches: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Play one run: accuracy and loss after the last round, epsilon spent, seconds of a core.

    ``gradients`` of all its examples are taken by every agent, the task's own number where 0, in
    ``batches`` times as many steps where they are sampled. With the seed `TUNING` the other agents
    play, and what is looked at is their validation set.
    """
    torch.set_num_threads(1)
    began = time.process_time()
    work, chosen, tuning = TASKS[task], METHODS[method], seed == TUNING
    parts, made = parts_of(folder, task, size, seed, tuning), partial(work.network, seed, size)
    rounds = (gradients or work.gradients[size]) // chosen.steps
    times = batches or chosen.times
    if chosen.bands:
        rounds, steps = rounds * times, chosen.steps
    else:
        steps = chosen.steps * times
    model = made()
    clip = values["clip"]
    step = values["step"] if chosen.update else values["length"] / clip
    done: dict[str, Any]
    if chosen.make is None:
        found, noise = trained(
            made, parts.agents, seed, epsilon=float(epsilon), rate=1.0 / times, rounds=rounds,
            steps=steps, clip=clip, step=step,
        )  # fmt: skip
        done = {"multiplier": noise}
    else:
        # The account under add-remove of sums of all examples holds in float64.
        double = chosen.relation == "add-remove" and times == 1
        problems = problems_of(folder, task, size, seed, tuning, double)
        strategy = partial(chosen.make, step, clip, steps)
        terms = _terms(chosen, problems, times, epsilon)
        found, spent = _run(chosen, strategy, problems, {**terms, "seed": seed}, rounds)
        done = {"spent": round(spent, 6)}
    model.load_state_dict(dict(found))
    right, loss = accuracy(model, parts.looked_at), _mean_loss(model, parts)
    return {
        "accuracy": None if math.isnan(right) else round(right, 5),
        "loss": round(loss, 5) if math.isfinite(loss) else None,
        **done,
        **({"data": parts.digest} if parts.digest else {}),
        "seconds": round(time.process_time() - began, 2),
    }


@torch.no_grad()
def _mean_loss(model: torch.nn.Module, parts: Parts) -> float:
    inputs, labels = parts.looked_at
    pairs = zip(inputs.split(1000), labels.split(1000), strict=True)
    return sum(float(loss_of(model, *pair)) * len(pair[1]) for pair in pairs) / len(labels)


def _terms(
    method: Method, problems: Sequence[TorchProblem], times: int, epsilon: int
) -> dict[str, Any]:
    """Return what every strategy takes: whose change epsilon is about, batches and noise."""
    terms: dict[str, Any] = {
        "step_size_rule": "constant", "relation": method.relation, "target_epsilon": float(epsilon),
    }  # fmt: skip
    if method.bands:
        terms |= {"batch": "cyclic", "batches": times, "noise_bands": method.bands}
    elif times > 1:
        terms |= {"batch": "poisson", "batch_size": problems[0].num_examples // times}
    if method.shared:
        terms |= {"secure_sum": True, "noise_sharing": True, "num_agents": len(problems)}
    return terms


def _run(
    method: Method, make: Callable[[dict[str, Any]], Any], problems: Sequence[TorchProblem],
    terms: dict[str, Any], rounds: int,
) -> tuple[Mapping[str, torch.Tensor], float]:  # fmt: skip
    relation, strategy = method.relation, make(terms)

    def problem(context: Context) -> TorchProblem:
        return problems[int(context.node_config["partition-id"])]

    with TemporaryDirectory() as place:
        own: list[dict[str, Any]] = [{} for _ in problems]
        if method.shared:
            names = map(str, range(len(problems)))
            own = trusting_nodes(Path(place), names, COLLUDERS, relation)
        nodes = [
            {"relation": relation, "num-examples": one.num_examples, **keys,
             "partition-id": number}
            for number, (one, keys) in enumerate(zip(problems, own, strict=True))
        ]  # fmt: skip
        grid = InlineGrid(client_app(strategy.algorithm, problem), nodes)
        start: ArrayRecord = problems[0].arrays()
        result = strategy.start(grid, start, num_rounds=rounds)
    return result.arrays.to_torch_state_dict(), result.history[-1].epsilon


# ------------------------------------------------------------------ a method on a task


class Study:
    """The runs of one method on one task: those that choose its settings, and those reported."""

    def __init__(self, runs: Runs, size: str, task: str, method: str) -> None:
        self.size, self.task, self.method = size, task, method
        self._run = partial(runs, size=size, task=task, method=method)
        chosen, length = METHODS[method], TASKS[task].length
        if chosen.update:
            self._middle = {"clip": length, "step": length}
        else:
            self._middle = {"length": length * chosen.scale, "clip": MIDDLE_CLIP}

    def found(self, epsilon: int) -> Found:
        """Return the settings that are best on the other agents' validation set."""
        at = TUNED_AT[self.size][epsilon]

        def score(values: Values) -> float:
            found = self._run(epsilon=at, seed=TUNING, values=values)
            # Of equal accuracies that with the smaller loss: where all name the commonest class.
            return 1e-6 * min(found["loss"] or 100.0, 100.0) - float(found["accuracy"] or 0.0)

        return compass(self._middle, {}, score, TRIALS[self.size], BOUND[self.size])

    def one(self, epsilon: int, seed: int) -> dict[str, Any]:
        """Return a run that is reported."""
        return self._run(epsilon=epsilon, seed=seed, values=self.found(epsilon).values)

    def ends(self, epsilon: int) -> dict[int, float]:
        """Return the accuracies in % on the test examples, by seed; of a broken run 0."""
        found = {}
        for seed in range(SEEDS[self.size]):
            with suppress(LookupError):
                found[seed] = 100.0 * (self.one(epsilon, seed)["accuracy"] or 0.0)
        return found


def searched_at(size: str) -> list[int]:
    """Return the epsilons at which settings are searched."""
    return sorted(set(TUNED_AT[size].values()))


def play_all(runs: Runs, size: str, tasks: Sequence[str], methods: Sequence[str]) -> None:
    """Play what is missing: settings first, then seed by seed."""
    studies = [Study(runs, size, task, method) for task in tasks for method in methods]
    for study in studies:
        for epsilon in searched_at(size):
            study.found(epsilon)
    for seed in range(SEEDS[size]):
        for study in studies:
            for epsilon in EPSILONS:
                study.one(epsilon, seed)


# ------------------------------------------------------------------ one thing changed at a time


def there(found: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield what is there, up to the first that is not."""
    with suppress(LookupError):
        yield from found


class Sweeps:
    """Clip, step, rounds and batch on one network at one epsilon, for the page on choosing them.

    Step, or step and clip, are those of the table where they are not what is changed; where rounds
    or batches are, a step is chosen among three, on the other agents as well.
    """

    task, epsilon, seeds = "mnist", 2, 3
    clips, lengths = (0.1, 0.3, 1.0, 3.0, 10.0), (1 / 9, 1 / 3, 1.0, 3.0, 9.0)
    rounds, batches = (3, 6, 12, 24, 48), (1, 4)

    def __init__(self, runs: Runs, size: str) -> None:
        self._one = partial(runs, size=size, task=self.task, epsilon=self.epsilon)
        self._own = TASKS[self.task].gradients[size]
        self.values = Study(runs, size, self.task, REFERENCE).found(self.epsilon).values

    def _ends(self, method: str, values: Values, **changed: int) -> Estimate:
        changed = {key: number for key, number in changed.items() if number}
        found = [
            self._one(method=method, seed=seed, values=values, **changed)["accuracy"]
            for seed in range(self.seeds)
        ]
        return Estimate.of([100.0 * (one or 0.0) for one in found])

    def _stepped(self, method: str, middle: Values, **changed: int) -> tuple[float, Estimate]:
        """Return the best of three lengths, and what it gives."""
        changed = {key: number for key, number in changed.items() if number}

        def score(length: float) -> float:
            values = {**middle, "length": length}
            found = self._one(method=method, seed=TUNING, values=values, **changed)["accuracy"]
            return float(found or 0.0)

        best = max((_four(middle["length"] * share) for share in (1 / 3, 1.0, 3.0)), key=score)
        return best, self._ends(method, {**middle, "length": best}, **changed)

    def clip(self) -> Iterator[tuple[float, Estimate]]:
        """Yield clips, step times clip being the same, and accuracies."""
        for clip in self.clips:
            yield clip, self._ends(REFERENCE, {**self.values, "clip": clip})

    def length(self) -> Iterator[tuple[float, Estimate]]:
        """Yield steps times clip, and accuracies."""
        for share in self.lengths:
            length = _four(self.values["length"] * share)
            yield length, self._ends(REFERENCE, {**self.values, "length": length})

    def round(self) -> Iterator[tuple[int, float, Estimate]]:
        """Yield numbers of rounds, the step times clip that was best, and accuracies."""
        for count in self.rounds:
            gradients = 0 if count == self._own else count
            yield count, *self._stepped(REFERENCE, self.values, gradients=gradients)

    def batch(self) -> Iterator[tuple[int, float, Estimate]]:
        """Yield steps that take as many gradients as one of all examples, likewise."""
        for times in self.batches:
            middle = {**self.values, "length": _four(self.values["length"] / times)}
            changed = 0 if times == 1 else times
            yield times, *self._stepped(ADD_REMOVE, middle, batches=changed)

    def play(self) -> None:
        """Play what is missing."""
        for one in (self.clip, self.length, self.round, self.batch):
            list(one())

    def tables(self) -> list[str]:
        """Return the lines of the page's tables."""
        lines = [
            f"DP-FedSGD on {TASKS[self.task].title} at epsilon {self.epsilon}, {self._own} rounds, "
            f"clip {self.values['clip']:g}, step times clip {self.values['length']:g} where they "
            f"are not what is changed; {self.seeds} seeds.",
        ]
        changed: dict[str, Iterator[tuple[Any, ...]]] = {
            "clip": self.clip(), "step times clip": self.length(), "rounds": self.round(),
            f"{ADD_REMOVE}: steps for one gradient of all": self.batch(),
        }  # fmt: skip
        for head, found in changed.items():
            if each := list(there(found)):
                lines += ["", row(head, *(f"{one[0]:g}" for one in each)), rule(len(each))]
                lines += [row("accuracy, %", *(said(one[-1]) for one in each))]
                if len(each[0]) == 3:  # where the step is chosen anew
                    lines += [row("step times clip", *(f"{one[1]:g}" for one in each))]
        return lines


def _four(number: float) -> float:
    return float(f"{number:.4g}")


# ------------------------------------------------------------------ the page


LOCAL = [name for name, one in METHODS.items() if not one.shared and one.relation == "replace-one"]
MARGIN = 1.0
"""Points within which two methods are level."""


def said(found: Estimate) -> str:
    """Return a mean in % with half its interval, which one run has not."""
    return f"{found.mean:.1f}" + (f" ± {found.half_width:.1f}" if found.count > 1 else "")


def word(gap: Estimate) -> str:
    """Return where the interval of a difference lies; of one run that it is one."""
    return level(gap, MARGIN) if gap.count > 1 else "one run"


def against(gap: Estimate) -> str:
    """Return the cell of a difference, whose interval one run has not."""
    return f"{word(gap)} {points(gap)}" if gap.count > 1 else f"one run {gap.mean:+.1f}"


class Measured:
    """What is there of a size: accuracies in % by task, method, epsilon and seed."""

    def __init__(self, runs: Runs, size: str) -> None:
        self.runs, self.size = runs, size
        self.studies = {
            (task, name): Study(runs, size, task, name) for task in TASKS for name in METHODS
        }
        self._ends = {
            (*key, epsilon): study.ends(epsilon)
            for key, study in self.studies.items()
            for epsilon in EPSILONS
        }
        self.names = {
            task: [
                name
                for name in METHODS
                if all(self._ends[task, name, epsilon] for epsilon in EPSILONS)
            ]
            for task in TASKS
        }
        self.tasks = [task for task in TASKS if REFERENCE in self.names[task]]

    def at(self, task: str, name: str, epsilon: int) -> Estimate:
        """Return the mean accuracy."""
        return Estimate.of(list(self._ends[task, name, epsilon].values()))

    def gap(self, task: str, name: str, other: str, epsilon: int) -> Estimate:
        """Return by how many points a method is above another, over common seeds."""
        own, its = self._ends[task, name, epsilon], self._ends[task, other, epsilon]
        seeds = [seed for seed in own if seed in its]
        return difference([own[seed] for seed in seeds], [its[seed] for seed in seeds])

    def best(self, task: str, epsilon: int) -> str:
        """Return the cell of the best method with noise of its own, and who is level with it."""
        there = [name for name in LOCAL if name in self.names[task]]
        order = sorted(there, key=lambda name: -self.at(task, name, epsilon).mean)
        first = order[0]
        near: dict[str, list[str]] = {"level": [], "undecided": []}
        for name in order[1:]:
            found = word(self.gap(task, name, first, epsilon))
            if found in near:
                near[found].append(name)
        text = f"**{first}** {self.at(task, first, epsilon).mean:.1f}"
        return text + "".join(f"; {word}: {', '.join(own)}" for word, own in near.items() if own)

    def finding(self) -> list[str]:
        """Return who is best at which epsilon."""
        lines = [
            "**The most accurate method at each epsilon, when every agent adds its own noise:**",
            "", row("", *(f"epsilon {epsilon}" for epsilon in EPSILONS)), rule(len(EPSILONS)),
        ]  # fmt: skip
        lines += [
            row(TASKS[task].title, *(self.best(task, epsilon) for epsilon in EPSILONS))
            for task in self.tasks
        ]
        return lines

    def tables(self) -> list[str]:
        """Return accuracies and differences to the reference of each network."""
        lines = [f"Size **{self.size}**: " + "; ".join(map(self._sized, self.tasks)) + "."]
        epsilons = [f"epsilon {epsilon}" for epsilon in EPSILONS]
        for task in self.tasks:
            lines += ["", f"## {TASKS[task].title}", ""]
            heads = [f"chosen at {epsilon}" for epsilon in searched_at(self.size)]
            lines += [row("accuracy, %", *epsilons, "seeds", *heads)]
            lines += [rule(len(epsilons) + 1 + len(heads))]
            for name in self.names[task]:
                cells = [said(self.at(task, name, epsilon)) for epsilon in EPSILONS]
                counts = {self.at(task, name, epsilon).count for epsilon in EPSILONS}
                chosen = [self._chosen(task, name, epsilon) for epsilon in searched_at(self.size)]
                lines += [row(name, *cells, " to ".join(map(str, sorted(counts))), *chosen)]
            lines += ["", row(f"points above {REFERENCE}", *epsilons), rule(len(epsilons))]
            for name in self.names[task]:
                if name != REFERENCE:
                    gaps = [self.gap(task, name, REFERENCE, epsilon) for epsilon in EPSILONS]
                    lines += [row(name, *map(against, gaps))]
        return lines

    def _chosen(self, task: str, name: str, epsilon: int) -> str:
        found = self.studies[task, name].found(epsilon)
        text = ", ".join(f"{key} {value:g}" for key, value in found.values.items())
        return text + ("" if found.inside else " (edge)")

    def _sized(self, task: str) -> str:
        model, work = TASKS[task].network(0, self.size), TASKS[task]
        count = sum(one.numel() for one in model.parameters())
        return f"{work.title}, {count:,} parameters, {work.gradients[self.size]} gradients an agent"

    def turns(self) -> list[str]:
        """Return by how much noise in bands gains on the better of the methods without, corrected.

        By Holm's procedure over all cells. Which is better is chosen by the means of the same runs,
        to the disadvantage of the bands.
        """
        cells: dict[tuple[str, str, int], tuple[str, Estimate]] = {}
        for name, others in BANDED.items():
            for task in self.tasks:
                if not {name, *others} <= {*self.names[task]}:
                    continue
                for epsilon in EPSILONS:
                    best = max(others, key=lambda one: self.at(task, one, epsilon).mean)
                    cells[name, task, epsilon] = best, self.gap(task, name, best, epsilon)
        if not cells:
            return ["Not run."]
        words = dict(zip(cells, standing([gap for _, gap in cells.values()]), strict=True))
        lines = [row("points", *(f"epsilon {one}" for one in EPSILONS)), rule(len(EPSILONS))]
        for name, task in dict.fromkeys(key[:2] for key in cells):
            found = {epsilon: cells[name, task, epsilon] for epsilon in EPSILONS}
            texts = [
                f"{words[name, task, epsilon]} {points(gap)} against *{best}*"
                for epsilon, (best, gap) in found.items()
            ]
            lines += [row(f"{name}: {TASKS[task].title}", *texts)]
            plain = BANDED[name][1]
            same = [self.gap(task, name, plain, epsilon) for epsilon in EPSILONS]
            lines += [row(f"the same, against *{plain}*", *map(points, same))]
        count = sum(word == BETTER for word in words.values())
        below = sum(word == WORSE for word in words.values())
        return [
            f"**Of {len(words)} cells bands are above the better of both in {count}, below it in "
            f"{below}, by Holm's procedure over all of them.**", "", *lines,
        ]  # fmt: skip

    def picture(self, figure: Any) -> None:
        """Draw the accuracies, a panel for each network."""
        panels = [
            Panel(
                TASKS[task].title.replace(", ", ",\n"),
                "test accuracy, %",
                {f"epsilon {epsilon}": self._row(task, epsilon) for epsilon in (1, 8)},
            )
            for task in self.tasks
        ]
        draw(list(METHODS), panels, figure, alike=False)

    def _row(self, task: str, epsilon: int) -> list[Interval | None]:
        there = self.names[task]
        return [
            interval(self.at(task, name, epsilon)) if name in there else None for name in METHODS
        ]

    def accounts(self) -> list[str]:
        """Return the noise of sampled steps by Opacus's account, and what ours says of it."""
        lines = [
            row("epsilon, add-remove", "noise / clip, Opacus's account", "our epsilon of it",
                "noise of a run / that without sampling"),
            rule(3),
        ]  # fmt: skip
        for task in self.tasks[:1]:
            if OWN_ACCOUNT not in self.names[task]:
                return ["Not run."]
            steps = TASKS[task].gradients[self.size]
            study = self.studies[task, OWN_ACCOUNT]
            lines += [row(epsilon, *self._account(study, epsilon, steps)) for epsilon in EPSILONS]
        heads = [f"epsilon {epsilon}" for epsilon in EPSILONS]
        lines += ["", row(f"points of {OWN_ACCOUNT}, above", *heads), rule(len(heads))]
        for task in self.tasks:
            for name in (SGD_ADD_REMOVE, ADD_REMOVE):
                if {name, OWN_ACCOUNT} <= {*self.names[task]}:
                    gaps = [self.gap(task, OWN_ACCOUNT, name, epsilon) for epsilon in EPSILONS]
                    lines += [row(f"{name}: {TASKS[task].title}", *map(against, gaps))]
        return lines

    def _account(self, study: Study, epsilon: int, steps: int) -> list[str]:
        noise = study.one(epsilon, 0)["multiplier"]
        sampled = ((1 / noise, 1 / BATCHES, steps * BATCHES),)
        ours = sampled_epsilon(0.0, sampled, DELTA)
        whole = math.sqrt(steps) * gaussian_scale(float(epsilon), DELTA)
        return [f"{noise:.3f}", f"{ours:.3f}", f"{math.sqrt(BATCHES) * noise / whole:.2f}"]

    def price(self) -> list[str]:
        """Return what the search would have cost on the agents' own records."""
        trials = (
            self.studies[task, name].found(epsilon).trials
            for task in self.tasks
            for name in self.names[task]
            for epsilon in searched_at(self.size)
        )
        most = max(trials, default=BOUND[self.size])
        parts = []
        for epsilon in searched_at(self.size):
            once = 1.0 / gaussian_scale(float(epsilon), DELTA)
            total = gaussian_epsilon(math.sqrt(most + 1) * once, DELTA)
            parts.append(f"{total:.1f} in place of {epsilon}")
        return [
            f"A search took up to {most} runs. On the agents' own records it would have been "
            f"charged: with {most} trials and the run itself epsilon {' and '.join(parts)}."
        ]


def row(*cells: object) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def rule(count: int) -> str:
    """Return the line below a table's head with so many columns beside the first."""
    return row("---", *["---"] * count)


def write(results: Path, size: str) -> None:
    """Write the parts of both pages, and the picture, from the runs that are there."""
    runs = Runs(results / "deep-private.jsonl")
    found = Measured(runs, size)
    for name, part in (
        ("finding", found.finding), ("tables", found.tables), ("accounts", found.accounts),
        ("price", found.price), ("turns", found.turns),
    ):  # fmt: skip
        fill(results / "deep-private.md", name, part())
    if found.tasks:
        themed(results.parent / "images" / "deep-private", (9.0, 3.6), found.picture)
    with suppress(LookupError):
        fill(results.parent / ADVICE, "sweeps", Sweeps(runs, size).tables())


def estimate(file: Path, size: str, tasks: Sequence[str], methods: Sequence[str]) -> str:
    """Return about how many runs are missing, and how long they take."""
    done = [one for one in Runs(file).found.values() if one["run"]["size"] == size]
    each = TRIALS[size] * len(searched_at(size)) + SEEDS[size] * len(EPSILONS)
    left, seconds = 0, 0.0
    for task in tasks:
        own = [one for one in done if one["run"]["task"] == task]
        count = max(0, each * len(methods) - len(own))
        taken = sum(one["seconds"] for one in own) / len(own) if own else FIRST_GUESS[size]
        left, seconds = left + count, seconds + count * taken
    return f"about {left} runs to play, {seconds / 60:.0f} minutes of one core"


def main(arguments: Sequence[str] | None = None) -> None:
    """Play what is missing, and write the page."""
    given = suite(__doc__.splitlines()[0], SIZES, TASKS, METHODS).parse_args(arguments)
    if not given.write:
        opacus("optimizers")  # which is missed now, and not in an hour
        quiet()
        logging.getLogger("flwr").setLevel(logging.ERROR)
        tasks, methods = given.task or list(TASKS), given.method or list(METHODS)
        file = given.results / "deep-private.jsonl"
        print(estimate(file, given.size, tasks, methods), flush=True)
        runs = Runs(file, partial(play, given.folder))
        play_all(runs, given.size, tasks, methods)
        if Sweeps.task in tasks and REFERENCE in methods:
            Sweeps(runs, given.size).play()
    write(given.results, given.size)


if __name__ == "__main__":
    main()
