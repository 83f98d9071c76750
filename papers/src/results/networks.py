"""Methods on five networks, equally tuned: the page docs/results/networks.md.

    .venv/bin/python -m results.networks docs/results FOLDER --size small

FOLDER has mnist_20k.npz, femnist_114_writers.npz and Adult's two files. Two processes play what
is not yet in docs/results/networks.jsonl, a line a run, and write the page; the command can be
stopped at any time, begins with an estimate, and says the size on the page. ``--write`` plays
nothing, ``--task`` one task alone, ``--size full`` takes two nights.

The settings of a method are searched on examples that are held out, by runs of another seed:
`TRIALS` for each, and up to `BOUND` where the best is at the end of what was tried.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, FedYogi

from privet.client_apps import LoopParticipant, initial_arrays
from privet.core import RunError
from privet.kernel import stream
from privet.sim.engine import InlineGrid
from privet.sim.logs import quiet
from privet.strategies import LED, FedDyn, FedPDM, FedPLT, Scaffold
from results.marked import fill, suite
from results.network_tasks import SIZES, TASKS, Agents, accuracy, train
from studies.pages import compared, points, verdict_word
from studies.rule import standing
from studies.runs import Runs
from studies.search import Found, compass
from studies.statistics import Estimate, difference

Values = dict[str, float]

TRIALS, BOUND = 7, 13
TUNING = 1000
"""Seed of the runs that choose a method's settings."""
CONSTANT_SEEDS = (1000, 1001, 1002)
"""Seeds of the runs, on examples held out, that compare the constants of the defaults."""
SEEDS: Mapping[str, int] = {"quick": 3, "small": 10, "full": 5}
LOOKS = 4
"""Times at which the model is looked at, evenly over the rounds."""
FIRST_GUESS: Mapping[str, float] = {
    "mnist": 4, "femnist": 20, "adult": 2, "gru": 10, "lora": 8,
    "series": 3, "attention": 4, "patches": 3,
}  # fmt: skip
"""Seconds of one core that a run of small size is guessed to take, before one was played."""
LARGER: Mapping[str, float] = {"quick": 0.2, "small": 1.0, "full": 6.0}


# ------------------------------------------------------------------ methods


@dataclass(frozen=True)
class Method:
    """A method with the middle of its grid, beside the step size, whose middle is the task's.

    ``make`` is given the settings, a round's local steps and what every strategy takes; Flower's
    own methods have no ``protocol``. ``most`` is a setting's largest value that is allowed. One
    whose settings are ``open`` searches nothing: it takes FedAvg's step, and its defaults, or all
    settings of the method that it is ``like``.
    """

    make: Callable[[Values, int, dict[str, Any]], Any]
    protocol: str = ""
    grid: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, float] = field(default_factory=dict)
    open: bool = False
    like: str = ""


def _momentum(values: Values, steps: int, common: dict[str, Any]) -> Any:
    return FedAvgM(server_momentum=1.0 - values["1 - momentum"], **common)


def _penalised(name: str, kind: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes FedDyn or FedPDM with alpha (rho) = kappa / (step K)."""

    def make(values: Values, steps: int, common: dict[str, Any]) -> Any:
        own = {name: values["kappa"] / (values["step"] * steps)}
        return kind(max_local_steps=steps, **own, **common)

    return make


def _splitting(values: Values, steps: int, common: dict[str, Any]) -> Any:
    rho = values["step"] * steps / (values["kappa"] * common["fraction_train"])
    return FedPLT(rho=rho, local_epochs=steps, **common)


def _scaffold(values: Values, steps: int, common: dict[str, Any]) -> Any:
    return Scaffold(max_local_steps=steps, server_step_size=values["server step"], **common)


def _led(values: Values, steps: int, common: dict[str, Any]) -> Any:
    return LED(
        step_size=values["step"], local_epochs=steps,
        dual_step_size=values["dual step times K"] / steps, **common,
    )  # fmt: skip


def _adaptive(kind: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes FedDyn or SCAFFOLD with Adam at the server."""

    def make(values: Values, steps: int, common: dict[str, Any]) -> Any:
        return kind(
            max_local_steps=steps, server_optimizer="adam",
            server_learning_rate=values["server step"], **common,
        )  # fmt: skip

    return make


def _twice(values: Values, steps: int, common: dict[str, Any]) -> Any:
    """FedAvg with the server step of 2 that Fed-PLT's defaults amount to."""
    return FedAvgM(server_learning_rate=2.0, server_momentum=0.0, **common)


LIKE_ADAM = "FedDyn, Adam, FedAdam's settings"
METHODS: Mapping[str, Method] = {
    "FedAvg": Method(lambda values, steps, common: FedAvg(**common)),
    "FedAvgM": Method(_momentum, "", {"1 - momentum": 0.3}, {"1 - momentum": 1.0}),
    "FedProx": Method(
        lambda values, steps, common: FedProx(proximal_mu=values["mu"], **common), "", {"mu": 0.01}
    ),
    "FedAdam": Method(
        lambda values, steps, common: FedAdam(eta=values["server step"], **common), "",
        {"server step": 0.03},
    ),
    "FedYogi": Method(
        lambda values, steps, common: FedYogi(eta=values["server step"], **common), "",
        {"server step": 0.03},
    ),
    "FedAvg, server step 2": Method(_twice, open=True),
    "FedDyn, Adam": Method(_adaptive(FedDyn), "fed-dyn", {"server step": 0.03}),
    LIKE_ADAM: Method(_adaptive(FedDyn), "fed-dyn", open=True, like="FedAdam"),
    "SCAFFOLD, Adam": Method(_adaptive(Scaffold), "scaffold", {"server step": 0.03}),
    "Fed-PLT": Method(_splitting, "fed-plt", {"kappa": 0.2}),
    "FedPDM": Method(_penalised("rho", FedPDM), "fed-pdm", {"kappa": 0.2}),
    "FedDyn": Method(_penalised("fed_dyn_alpha", FedDyn), "fed-dyn", {"kappa": 0.2}),
    "SCAFFOLD": Method(_scaffold, "scaffold", {"server step": 1.0}),
    "LED": Method(_led, "led", {"dual step times K": 1.0}),
    "Fed-PLT, defaults": Method(
        lambda values, steps, common: FedPLT(local_epochs=steps, **common), "fed-plt", open=True
    ),
    "FedPDM, defaults": Method(
        lambda values, steps, common: FedPDM(max_local_steps=steps, **common), "fed-pdm", open=True
    ),
    "FedDyn, defaults": Method(
        lambda values, steps, common: FedDyn(max_local_steps=steps, **common), "fed-dyn", open=True
    ),
}  # fmt: skip
REFERENCE = "FedAvg"
ADAPTIVE = ("FedDyn, Adam", LIKE_ADAM, "SCAFFOLD, Adam")
"""Dual methods whose server is as adaptive as FedAdam's."""
KAPPAS: Mapping[str, Sequence[float]] = {"FedDyn": (0.1, 0.3, 0.9), "Fed-PLT": (0.07, 0.2, 0.6)}
"""The values of the constants of `privet.agents.loop_defaults` that are compared."""


# ------------------------------------------------------------------ a run


@lru_cache(maxsize=2)
def agents_of(folder: Path, task: str, seed: int) -> Agents:
    """Return a task's agents, of whom the last two are kept."""
    return TASKS[task].agents(folder, seed)


def play(
    folder: Path, *, size: str, task: str, method: str, seed: int, part: str, values: Values,
    data: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Play one run: accuracy of the model it returns, by round, and its seconds of one core.

    ``part`` is what is looked at, the examples held out ("validation") or those of the test.
    """
    torch.set_num_threads(1)
    began = time.process_time()
    chosen, work, held = METHODS[method], TASKS[task], agents_of(folder, task, seed)
    model, judge = work.network(seed, size), work.network(seed, size)
    rounds = work.rounds[size]
    looks = {max(1, round(rounds * (at + 1) / LOOKS)) for at in range(LOOKS)}
    app = (_own_app if chosen.protocol else _flower_app)(chosen, task, size, seed, held, values)
    common: dict[str, Any] = {"fraction_train": work.share, "fraction_evaluate": 0.0}
    if chosen.protocol:
        common["seed"] = seed
    random.seed(seed)  # Flower's own strategies draw their nodes from it
    curve: dict[int, float] = {}

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        if number in looks:
            judge.load_state_dict(arrays.to_torch_state_dict(), strict=False)
            curve[number] = accuracy(judge, held.test if part == "test" else held.validation)

    strategy = chosen.make(values, work.steps, common)
    grid = InlineGrid(app, len(held.train))
    start = initial_arrays(model)
    with suppress(RunError):  # numbers without end: what was looked at by then stays
        strategy.start(grid, start, num_rounds=rounds, evaluate_fn=evaluate)
    found = [curve.get(number, math.nan) for number in sorted(looks)]
    return {
        "accuracy": [None if math.isnan(one) else round(one, 5) for one in found],
        "seconds": round(time.process_time() - began, 2),
    }


def _loop(
    task: str, held: Agents, seed: int, values: Values, model: torch.nn.Module
) -> Callable[[int, int, Callable[[], object]], None]:
    work = TASKS[task]

    def steps(own: int, number: int, correct: Callable[[], object]) -> None:
        draw = stream(seed, "batches", str(own), round_=number)
        train(model, held.train[own], draw, work.steps, work.batch, values["step"], correct)

    return steps


def _own_app(
    method: Method, task: str, size: str, seed: int, held: Agents, values: Values
) -> ClientApp:
    made, model = (TASKS[task].network(seed, size) for _ in range(2))
    steps = _loop(task, held, seed, values, model)
    participant = LoopParticipant(
        method.protocol, made, lambda context: len(held.train[_number(context)][1]),
        step_size=values["step"],
    )  # fmt: skip
    app = participant.app()

    @app.train()
    def train_(message: Message, context: Context) -> Message:
        with participant.round(message, context, model) as local:
            steps(_number(context), local.round, lambda: local.correct(model))
        return local.reply()

    return app


def _flower_app(
    method: Method, task: str, size: str, seed: int, held: Agents, values: Values
) -> ClientApp:
    model = TASKS[task].network(seed, size)
    steps = _loop(task, held, seed, values, model)
    trained = [one for one in model.parameters() if one.requires_grad]
    app = ClientApp()

    @app.train()
    def train_(message: Message, context: Context) -> Message:
        content: Any = message.content
        model.load_state_dict(content["arrays"].to_torch_state_dict(), strict=False)
        begun = [one.detach().clone() for one in trained]
        mu = float(content["config"].get("proximal-mu", 0.0))

        def pull() -> None:
            for one, start in zip(trained, begun, strict=True) if mu else ():
                one.grad += mu * (one.detach() - start)

        steps(_number(context), int(content["config"]["server-round"]), pull)
        count = len(held.train[_number(context)][1])
        return Message(
            RecordDict(
                {"arrays": initial_arrays(model), "metrics": MetricRecord({"num-examples": count})}
            ),
            reply_to=message,
        )

    return app


def _number(context: Context) -> int:
    return int(context.node_config["partition-id"])


# ------------------------------------------------------------------ a method on a task


class Study:
    """The runs of one method on one task: those that choose its settings, and those reported."""

    def __init__(self, runs: Runs, size: str, task: str, method: str, digest: str) -> None:
        self.size, self.task, self.method = size, task, method
        own = {"data": digest} if digest else {}
        self._run = partial(runs, size=size, task=task, method=method, **own)
        chosen, step = METHODS[method], TASKS[task].step
        self.found: Found
        if chosen.open:
            other = Study(runs, size, task, chosen.like or REFERENCE, digest).found.values
            self.found = Found(other if chosen.like else {"step": other["step"]}, 0)
        else:
            self.found = compass(
                {"step": step, **chosen.grid}, chosen.most, self._score, TRIALS, BOUND
            )

    def _score(self, values: Values) -> float:
        found = self._run(seed=TUNING, part="validation", values=values)["accuracy"][-1]
        return 0.0 if found is None else -float(found)

    def ends(self) -> list[float]:
        """Return the accuracies in % on the test examples, by seed; of a broken run 0."""
        return [100.0 * (run["accuracy"][-1] or 0.0) for run in self.runs()]

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs that are reported."""
        one = partial(self._run, part="test", values=self.found.values)
        return [one(seed=seed) for seed in range(SEEDS[self.size])]

    @property
    def settings(self) -> str:
        """The chosen values, how many were tried, and whether the grid ended there."""
        text = ", ".join(f"{key} {value:g}" for key, value in self.found.values.items())
        edge = "" if self.found.inside else ", **at the edge of its grid**"
        return (
            f"{text}; {self.found.trials} tried{edge}"
            if self.found.trials
            else f"{text}, {METHODS[self.method].like or REFERENCE}'s"
        )


def digest_of(folder: Path, task: str) -> str:
    """Return the digest of a task's texts or pictures, which other versions may have otherwise."""
    return agents_of(folder, task, 0).digest if task in ("gru", "lora", "patches") else ""


def job(results: Path, folder: Path, size: str, task: str, method: str) -> None:
    """Play what is missing of one method on one task."""
    quiet()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    runs = Runs(results / "networks.jsonl", partial(play, folder))
    digest = digest_of(folder, task)
    Study(runs, size, task, method, digest).runs()
    name = method.removesuffix(", defaults")
    if METHODS[method].open and name in KAPPAS and not TASKS[task].fresh:
        list(constants(runs, size, task, name, digest))


# ------------------------------------------------------------------ the page


def studies(runs: Runs, size: str, task: str, digest: str) -> dict[str, Study]:
    """Return the methods of a task whose runs are all there."""
    found = {}
    for method in METHODS:
        with suppress(LookupError):
            study = Study(runs, size, task, method, digest)
            study.runs()
            found[method] = study
    return found


def constants(runs: Runs, size: str, task: str, method: str, digest: str) -> Iterator[float]:
    """Yield by how many points each constant is above FedAvg, on the examples held out."""
    step = Study(runs, size, task, REFERENCE, digest).found.values["step"]
    own = {"data": digest} if digest else {}
    one = partial(runs, size=size, task=task, part="validation", **own)

    def end(method: str, values: Values) -> float:
        found = [one(method=method, seed=seed, values=values) for seed in CONSTANT_SEEDS]
        return 100.0 * sum(run["accuracy"][-1] or 0.0 for run in found) / len(found)

    other = end(REFERENCE, {"step": step})
    for kappa in KAPPAS[method]:
        yield end(method, {"step": step, "kappa": kappa}) - other


def left_out(gains: Mapping[str, Sequence[float]], kappas: Sequence[float]) -> Iterator[list[str]]:
    """Yield for each task the constant that is best on the others, and its gain on this one."""
    for task, own in gains.items():
        others = np.array([each for name, each in gains.items() if name != task])
        at = int(np.argmax(others.mean(axis=0)))
        each = ", ".join(f"{one:+.1f}" for one in own)
        yield [task, each, f"{kappas[at]:g}", f"{own[at]:+.1f}"]


def constants_table(
    runs: Runs, size: str, method: str, digests: Mapping[str, str]
) -> Iterator[str]:
    """Yield the lines of the table of a method's constant, each task left out once."""
    gains: dict[str, Sequence[float]] = {}
    for task in (one for one in TASKS if not TASKS[one].fresh):
        with suppress(LookupError):
            gains[task] = list(constants(runs, size, task, method, digests[task]))
    if len(gains) < 3:
        yield "Not run."
        return
    head = ", ".join(f"{one:g}" for one in KAPPAS[method])
    yield f"| task | gain at kappa {head} | best on the others | gain here |"
    yield "| --- | --- | --- | --- |"
    for row in left_out(gains, KAPPAS[method]):
        yield f"| {' | '.join(row)} |"


def gap(study: Study, other: Study) -> Estimate:
    """Return by how many points a method ends above another, seed by seed."""
    return difference(study.ends(), other.ends())


def table(found: Mapping[str, Study]) -> Iterator[str]:
    """Yield the lines of a task's table, the most accurate method first."""
    if REFERENCE not in found:
        yield "Not run."
        return
    yield "| method | against FedAvg | accuracy, % | least | chosen |"
    yield "| --- | --- | --- | --- | --- |"
    ends = {name: Estimate.of(study.ends()) for name, study in found.items()}
    for name in sorted(found, key=lambda one: -ends[one].mean):
        against = "" if name == REFERENCE else compared(gap(found[name], found[REFERENCE]))
        mean, least = ends[name], min(found[name].ends())
        accuracy_ = f"{mean.mean:.1f} ± {mean.half_width:.1f}"
        yield f"| {name} | {against} | {accuracy_} | {least:.1f} | {found[name].settings} |"


def finding(
    found: Mapping[str, Mapping[str, Study]],
    reference: str = REFERENCE,
    methods: Sequence[str] = tuple(METHODS),
) -> Iterator[str]:
    """Yield a table, a row a method: on which tasks it ends above the reference, and on which
    below, by Holm's procedure over these methods and all tasks; those tasks in a table of their own
    that played no part in any choice."""
    cells = [
        (method, task, gap(own[method], own[reference]))
        for method in methods
        for task, own in found.items()
        if method != reference and method in own and reference in own
    ]
    words = standing([one for _, _, one in cells])
    said = {
        (method, task): f"{verdict_word(word)} {points(one)}"
        for (method, task, one), word in zip(cells, words, strict=True)
    }
    for fresh in (False, True):
        tasks = [one for one in found if TASKS[one].fresh is fresh]
        tasks = [one for one in tasks if any(task == one for _, task in said)]
        if not tasks:
            continue
        if fresh:
            yield from ("", "**The same on three tasks that played no part in any choice:**", "")
        yield f"| method | {' | '.join(tasks)} |"
        yield f"| --- |{' --- |' * len(tasks)}"
        for method in methods:
            row = [said.get((method, task), "") for task in tasks]
            if any(row):
                yield f"| {method} | {' | '.join(row)} |"


def write(results: Path, folder: Path, size: str) -> None:
    """Write the page's parts from the runs that are there."""
    runs = Runs(results / "networks.jsonl")
    digests = {task: digest_of(folder, task) for task in TASKS}
    found = {task: studies(runs, size, task, digests[task]) for task in TASKS}
    lines = [f"Size **{size}**: " + "; ".join(_sized(task, size) for task in TASKS) + "."]
    for task, own in found.items():
        lines += ["", f"## {TASKS[task].title}", "", *table(own)]
    for method in KAPPAS:
        lines += ["", f"## The constant of {method}'s defaults", ""]
        lines += constants_table(runs, size, method, digests)
    head = (
        "**Points of accuracy at the end against FedAvg, all equally tuned; better and worse are "
        "what stands by Holm's procedure over all of these cells:**"
    )
    fill(results / "networks.md", "finding", [head, "", *finding(found)])
    head = "**The same against FedAdam, by Holm's procedure over these cells:**"
    fill(results / "networks.md", "adaptive", [head, "", *finding(found, "FedAdam", ADAPTIVE)])
    fill(results / "networks.md", "tables", lines)


def _sized(task: str, size: str) -> str:
    model, work = TASKS[task].network(0, size), TASKS[task]
    count = sum(one.numel() for one in model.parameters() if one.requires_grad)
    return f"{task} {work.rounds[size]} rounds, {count:,} parameters trained"


def estimate(file: Path, size: str, tasks: Sequence[str]) -> str:
    """Return how many runs are missing at most, and about how long they take."""
    done = [one for one in Runs(file).found.values() if one["run"]["size"] == size]
    left, seconds = 0, 0.0
    for task in tasks:
        own = [one for one in done if one["run"]["task"] == task]
        tuned = sum(not one.open for one in METHODS.values())
        constant = (1 + sum(map(len, KAPPAS.values()))) * len(CONSTANT_SEEDS)
        every = tuned * (TRIALS + 2) + len(METHODS) * SEEDS[size]
        every += 0 if TASKS[task].fresh else constant
        count = max(0, every - len(own))
        each = sum(one["seconds"] for one in own) / len(own) if own else 0.0
        left, seconds = left + count, seconds + count * (each or FIRST_GUESS[task] * LARGER[size])
    return f"about {left} runs to play, {seconds / 60:.0f} minutes of one core"


def main(arguments: Sequence[str] | None = None) -> None:
    """Play what is missing, and write the page."""
    parser = suite(__doc__.splitlines()[0], SIZES, TASKS, METHODS)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    if not given.write:
        tasks = given.task or list(TASKS)
        print(estimate(given.results / "networks.jsonl", given.size, tasks), flush=True)
        order = sorted(given.method or METHODS, key=lambda one: not METHODS[one].open)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(given.processes, context) as pool:
            # Others take its step, or another's settings: two processes would play the same runs.
            others = [one for one in order if one != REFERENCE]
            alike = [one for one in others if METHODS[one].like]
            for methods in ([REFERENCE], [one for one in others if one not in alike], alike):
                for done in [
                    pool.submit(job, given.results, given.folder, given.size, task, method)
                    for method in methods
                    if method in order
                    for task in tasks
                ]:
                    done.result()
    write(given.results, given.folder, given.size)


if __name__ == "__main__":
    main()
