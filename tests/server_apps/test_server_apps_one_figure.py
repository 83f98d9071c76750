"""The run's one figure: whoever says what a run cost says the same."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message

from privet.client_apps import client_app
from privet.client_apps.rivals.dp_fedsgd import Agent as DPFedSGDAgent
from privet.core import ConfigError
from privet.core import format as fmt
from privet.data import problem_from_context
from privet.kernel import AgentLedger, Facts, LedgerFile, Problem, Told, gaussian_epsilon
from privet.problems import L2, BinaryLogistic
from privet.server_apps import Finished, execute, read_config
from privet.sim.engine import InlineGrid
from support.cli import privet
from support.reports import Page
from support.told import own_log

AGENTS = 3
DELTA = 1e-5
RUN: dict[str, Any] = {
    "num-agents": AGENTS,
    "num-server-rounds": 4,
    "clip": 1.0,
    "evaluate-every": 4,
}
IADMM: dict[str, Any] = {"algorithm": "dp-iadmm", "num-server-rounds": 3}
PRIVATE: dict[str, dict[str, Any]] = {
    "fed-plt": {"local-solver": "noisy-gd", "row-norm": 3.0, "noise-variance": 0.01},
    "fed-plt-float32": {
        "local-solver": "noisy-gd",
        "row-norm": 3.0,
        "dtype": "float32",
        "noise-variance": 0.01,
    },
    "fed-plt-secure-sum": {
        "local-solver": "noisy-gd",
        "row-norm": 3.0,
        "secure-sum": True,
        "noise-variance": 0.01,
    },
    "fed-pdm": {"algorithm": "fed-pdm", "preset": "private", "noise-scale": 0.05},
    "fed-pdm-batch": {
        "algorithm": "fed-pdm",
        "dual": "public",
        "max-local-steps": 3,
        "clipping": "batch",
        "rho": 2.0,
        "noise-scale": 0.5,
    },
    "dp-iadmm": {**IADMM, "local-updates": 2, "noise-scale": 0.05},
    "dp-iadmm-laplace": {
        **IADMM,
        "local-updates": 2,
        "mechanism": "laplace",
        "noise-scale": 0.1,
    },
    "dp-iadmm-output": {**IADMM, "perturbation": "output", "noise-scale": 0.05},
    "dp-iadmm-output-laplace": {
        **IADMM,
        "perturbation": "output",
        "mechanism": "laplace",
        "noise-scale": 0.1,
    },
    "dp-fedsgd": {"algorithm": "dp-fedsgd", "noise-scale": 0.05},
    "scaffold": {"algorithm": "scaffold", "max-local-steps": 2, "noise-scale": 0.05},
    "fed-dyn": {"algorithm": "fed-dyn", "max-local-steps": 2, "noise-scale": 0.05},
}
"""Run-config keys of every private form, with a noise of its own choosing."""


def target_of(settings: Mapping[str, Any], epsilon: float) -> dict[str, Any]:
    """Return the settings with a target in place of their noise."""
    kept = {key: value for key, value in settings.items() if not key.startswith("noise-")}
    return {**kept, "target-epsilon": epsilon}


class Watched(InlineGrid):
    """Notes who was asked to train.

    The run is interrupted before request ``stop_at``, or asked to end after the round of request
    ``last``.
    """

    stop_at = last = 10**6

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.trained: list[int] = []

    def deliver(self, message: Message) -> Message | None:
        if message.metadata.message_type == "train":
            if len(self.trained) >= self.stop_at:
                raise KeyboardInterrupt
            self.trained.append(message.metadata.dst_node_id)
            if len(self.trained) == self.last:
                signal.raise_signal(signal.SIGTERM)
        return super().deliver(message)


def nodes(folder: Path, **more: Any) -> list[dict[str, Any]]:
    """Return the configs of nodes of which each has a ledger of its own."""
    return [
        {
            "partition-id": place,
            "num-partitions": AGENTS,
            "max-epsilon": 100.0,
            "delta": DELTA,
            "ledger-path": str(folder / f"ledger-{place}"),
            **more,
        }
        for place in range(AGENTS)
    ]


def played(raw: Mapping[str, Any], folder: Path, name: str = "run", **more: Any) -> Finished:
    """Run on nodes with ledgers."""
    config = {**RUN, **raw, "output-dir": str(folder)}
    grid = Watched(client_app(None, problem_from_context), nodes(folder, **more), config)
    return execute(grid, read_config(config), name)


def arguments(raw: Mapping[str, Any]) -> list[str]:
    """Return a run config as arguments of ``privet run`` and ``privet account``."""
    return [f"{key}={json.dumps(value)}" for key, value in raw.items()]


def planned(raw: Mapping[str, Any]) -> tuple[Any, str]:
    """Return what ``privet account`` says of a run, as JSON and in its table."""
    said = []
    for form in (["--json"], []):
        code, out, err = privet("account", *arguments({**RUN, **raw}), *form)
        assert not code, err
        said.append(out)
    return json.loads(said[0]), said[1]


def account_in(finished: Finished) -> Any:
    return json.loads((finished.folder / "privacy.json").read_text())


def require_one_figure(finished: Finished, folder: Path | None = None) -> float:
    """Return the epsilon of a run after a look at everything that names it."""
    account = account_in(finished)
    assert account["private"] is True
    (epsilon,) = {entry["epsilon"] for entry in account["accounts"]}
    printed = fmt.epsilon(epsilon)
    assert finished.result.history[-1].epsilon == epsilon
    assert finished.summary["privacy"] == f"epsilon {printed} at delta 1e-05 (replace-one)"
    assert account["reason"] == finished.summary["privacy"]
    page = Page((finished.folder / "report.html").read_text())
    assert "run-0-epsilon" not in page.ids  # it is said once, by the account
    cells = [cell for cell in page.ids if re.fullmatch(r"run-0-privacy-\d+-epsilon", cell)]
    assert cells
    for cell in cells:
        assert page.ids[cell]["data-value"] == repr(epsilon)
        assert page.texts[cell] == printed
    each = {name: agent["epsilon"] for name, agent in account["agents"].items()}
    assert max(each.values()) == epsilon
    for name, agent in account["agents"].items():
        released = AgentLedger.from_json(json.dumps(agent["releases"]))
        assert released.spent(DELTA) == each[name]
        if folder is not None:
            spent = LedgerFile(folder / f"ledger-{name}").spent(DELTA)
            assert (spent.epsilon, spent.messages) == (each[name], released.messages)
    files = [] if folder is None else [folder / f"ledger-{name}" for name in each]
    words = [word for file in files for word in ("--ledger", file)]
    code, said, _ = privet("statement", finished.folder, "--verify", *words)
    assert (code, said.count("holds the head that its node returned")) == (0, len(files)), said
    return epsilon


@pytest.mark.parametrize("name", PRIVATE)
def test_everybody_names_the_same_figure(name: str, tmp_path: Path) -> None:
    settings = PRIVATE[name]
    finished = played(settings, tmp_path)
    epsilon = require_one_figure(finished, tmp_path)
    said, table = planned(settings)
    assert (said["epsilon"], said["private"]) == (epsilon, True)
    assert finished.summary["privacy"] in table
    assert table.count(f" {fmt.epsilon(epsilon)} ") >= len(said["accounts"])
    assert account_in(finished)["accounts"] == said["accounts"]


def test_the_figure_is_that_of_the_mechanism() -> None:
    """T rounds of one gradient: mu = 2 C sqrt(T) / (n sigma), from the numbers alone."""
    count, rounds, scale = 200, 9, 0.05
    facts = Facts(count, float(count), 5, loss="logistic")
    release = DPFedSGDAgent(clip=1.0, noise_scale=scale).release(facts, 1)
    spent = AgentLedger.of([(release, rounds)]).spent(DELTA)
    ideal = gaussian_epsilon(2.0 * rounds**0.5 / (count * scale), DELTA)
    assert ideal <= spent <= ideal * 1.001


# ------------------------------------------------------------------ resumed runs


def interrupted(raw: Mapping[str, Any], folder: Path, after: int) -> Path:
    """Return the folder of a run that was interrupted in the round after some, as it asks."""
    config = {**RUN, **raw, "output-dir": str(folder)}
    grid = Watched(client_app(None, problem_from_context), AGENTS, config)
    grid.stop_at = after * AGENTS
    with pytest.raises(KeyboardInterrupt):
        execute(grid, read_config(config), "first")
    return folder / "first"


def ended(raw: Mapping[str, Any], folder: Path, after: int) -> Path:
    """Return the folder of a run that was asked to end after some rounds."""
    config = {**RUN, **raw, "output-dir": str(folder)}
    grid = Watched(client_app(None, problem_from_context), AGENTS, config)
    grid.last = after * AGENTS
    assert execute(grid, read_config(config), "first").result.stopped == "request"
    return folder / "first"


def noises(finished: Finished) -> list[tuple[float, int]]:
    """Return the scales that every agent drew with, the least first, and how often."""
    (releases,) = {
        tuple(sorted((one["scale"], one["times"]) for one in agent["releases"]))
        for agent in account_in(finished)["agents"].values()
    }
    return list(releases)


@pytest.mark.parametrize("name", ["fed-plt", "fed-pdm", "dp-iadmm-laplace", "scaffold"])
def test_a_resumed_run_of_the_same_rounds_keeps_its_noise(name: str, tmp_path: Path) -> None:
    raw = {**target_of(PRIVATE[name], 3.0), "output-dir": str(tmp_path), "num-server-rounds": 4}
    first = ended(raw, tmp_path, 2)
    config = {**RUN, **raw, "resume": str(first)}
    grid = Watched(client_app(None, problem_from_context), AGENTS, config)
    finished = execute(grid, read_config(config), "second")
    assert 2.99 < require_one_figure(finished) <= 3.0
    assert [times for _, times in noises(finished)] == [4]


@pytest.mark.parametrize("name", ["fed-plt", "fed-pdm", "dp-iadmm-laplace", "scaffold"])
def test_a_resume_pays_for_the_round_that_was_interrupted(name: str, tmp_path: Path) -> None:
    """Two rounds and the lost one at the first noise; the two that are left share what remains."""
    raw = {**target_of(PRIVATE[name], 3.0), "output-dir": str(tmp_path), "num-server-rounds": 4}
    first = interrupted(raw, tmp_path, 2)
    config = {**RUN, **raw, "resume": str(first)}
    grid = Watched(client_app(None, problem_from_context), AGENTS, config)
    finished = execute(grid, read_config(config), "second")
    assert 2.99 < require_one_figure(finished) <= 3.0
    assert [times for _, times in noises(finished)] == [3, 2]


def test_a_target_may_be_raised_on_a_resume(tmp_path: Path) -> None:
    raw = {**target_of(PRIVATE["fed-plt"], 3.0), "output-dir": str(tmp_path)}
    first = interrupted(raw, tmp_path, 2)
    config = {**RUN, **raw, "target-epsilon": 4.0, "resume": str(first)}
    finished = execute(
        Watched(client_app(None, problem_from_context), AGENTS, config),
        read_config(config),
        "second",
    )
    assert "resume: target-epsilon 3.0 -> 4.0" in finished.result.history[2].notes
    assert 3.99 < require_one_figure(finished) <= 4.0


# ------------------------------------------------------------------ declared numbers, newcomers


@pytest.mark.parametrize("name", ["fed-plt", "fed-pdm-batch", "dp-fedsgd", "scaffold"])
@pytest.mark.parametrize("by_target", [False, True])
def test_a_declared_number_of_examples_is_what_counts(
    name: str, by_target: bool, tmp_path: Path
) -> None:
    """Every node holds about 150 examples and declares 300."""
    settings = PRIVATE[name]
    if by_target:
        settings = target_of(settings, 3.0)
    finished = played(settings, tmp_path, **{"num-examples": 300})
    epsilon = require_one_figure(finished, tmp_path)
    public = {"num-examples": 300, "dim": 31, "loss": "binary-logistic"}
    said, _ = planned({**settings, **public})
    assert said["epsilon"] == epsilon
    held, _ = planned(settings)
    if by_target or settings.get("clipping") == "batch":  # a batch's clip knows no number
        assert held["epsilon"] == pytest.approx(epsilon)
    else:
        assert held["epsilon"] > 1.5 * epsilon


def test_a_newcomer_stops_at_the_target_and_the_run_goes_on(tmp_path: Path) -> None:
    """Its 40 examples hide less than the others' 150, for whom the noise was set."""
    newcomer = 1000 + AGENTS

    class Later(Watched):
        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            if len(self.trained) == 2 * AGENTS:
                self.online.add(newcomer)
            return reply

    def problem_of(context: Context) -> Problem:
        if context.node_id != newcomer:
            return problem_from_context(context)
        known = problem_from_context(
            Context(0, 0, {"partition-id": 0, "num-partitions": AGENTS}, context.state, config)
        )
        assert isinstance(known, BinaryLogistic)
        return BinaryLogistic(known.features[:40], known.labels[:40], regularizer=L2(0.05))

    config = {
        **RUN,
        **target_of(PRIVATE["dp-fedsgd"], 3.0),
        "num-server-rounds": 30,
        "output-dir": str(tmp_path),
    }
    grid = Later(client_app(None, problem_of), AGENTS + 1, config)
    grid.online.discard(newcomer)
    with own_log() as said:
        finished = execute(grid, read_config(config), "run")
    assert 2.99 < require_one_figure(finished) <= 3.0
    history = finished.result.history
    assert len(history) == 30
    assert all({"0", "1", "2"} <= set(done.participants) for done in history)
    joined = [done.round for done in history if "3" in done.participants]
    assert joined == list(range(3, 3 + len(joined)))
    assert 0 < len(joined) < 10
    assert history[joined[-1]].failures["3"].text == f"agent 3: {Told.TARGET}"
    assert "target-epsilon: this reply would bring the run to epsilon" in said.text
    spent = account_in(finished)["agents"]["3"]["epsilon"]
    assert spent <= 3.0


# ------------------------------------------------------------------ what is paid and not folded


def test_an_upload_that_is_not_folded_was_paid_for(tmp_path: Path) -> None:
    """The costliest agent's last upload arrives damaged: the history counts it as well."""
    config = {**RUN, **PRIVATE["dp-fedsgd"], "output-dir": str(tmp_path)}

    class Damaging(Watched):
        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            if len(self.trained) == 4 * AGENTS and reply is not None:
                record = reply.content["privet"]
                about = json.loads(str(record["about"]))  # type: ignore[index]
                record["about"] = json.dumps(about | {"digest": 1})  # type: ignore[index]
            return reply

    grid = Damaging(client_app(None, small_at("2")), AGENTS, config)
    finished = execute(grid, read_config(config), "run")
    last = finished.result.history[-1]
    assert last.participants == ("0", "1")
    assert "digest differs" in last.failures["2"].text
    require_one_figure(finished)
    (release,) = account_in(finished)["agents"]["2"]["releases"]
    assert release["times"] == 4


def small_at(partition: str) -> Callable[[Context], Problem]:
    """Return what gives one agent the first 40 of its examples, so that it pays the most."""

    def problem_of(context: Context) -> Problem:
        known = problem_from_context(context)
        if str(context.node_config["partition-id"]) != partition:
            return known
        assert isinstance(known, BinaryLogistic)
        return BinaryLogistic(known.features[:40], known.labels[:40], regularizer=L2(0.05))

    return problem_of


def test_a_lost_nodes_account_counts_with_its_successors(tmp_path: Path) -> None:
    config = {
        **RUN,
        **PRIVATE["dp-fedsgd"],
        "num-server-rounds": 6,
        "recover-by-name": "no",
        "output-dir": str(tmp_path),
    }
    successor = 1000 + AGENTS

    class Replaced(Watched):
        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            if len(self.trained) == 2 * AGENTS and successor not in self.online:
                self.online.discard(1000)
                self.online.add(successor)
            return reply

    place = {"num-partitions": AGENTS}
    places = [{**place, "partition-id": number} for number in (0, 1, 2, 0)]
    grid = Replaced(client_app(None, small_at("0")), places, config)
    grid.online.discard(successor)
    finished = execute(grid, read_config(config), "run")
    assert grid.trained.count(1000) == 2
    assert grid.trained.count(successor) == 4
    # Its own account would say four rounds; six were released under the name.
    whole = execute(
        Watched(client_app(None, small_at("0")), AGENTS, config), read_config(config), "whole"
    )
    assert require_one_figure(finished) == require_one_figure(whole)


# ------------------------------------------------------------------ certificates, before round 1

UNPROVEN: dict[str, dict[str, Any]] = {
    "a step that overshoots": {
        "algorithm": "fed-pdm",
        "dual": "public",
        "max-local-steps": 3,
        "rho": 2.0,
        "step-size-base": 1.0,
    },
    "a stopping rule": {"algorithm": "fed-pdm", "preset": "private", "nu": 0.1},
    "a private dual of one step": {"algorithm": "fed-pdm", "dual": "private", "max-local-steps": 1},
    "a private dual": {"algorithm": "fed-pdm", "dual": "private"},
    "a nonconvex regulariser": {
        "algorithm": "fed-pdm",
        "dual": "public",
        "max-local-steps": 2,
        "regularizer": "nonconvex",
    },
}


def refused(raw: Mapping[str, Any], folder: Path) -> str:
    """Return the line with which a run ends before anybody is asked to train."""
    config = {**RUN, **raw, "output-dir": str(folder)}
    grid = Watched(client_app(None, problem_from_context), AGENTS, config)
    with pytest.raises(ConfigError) as caught:
        execute(grid, read_config(config), "run")
    assert grid.trained == []
    assert not (folder / "run" / "checkpoint.npz").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("by_target", [False, True])
@pytest.mark.parametrize("name", UNPROVEN)
def test_what_has_no_certificate_is_refused_before_round_1(
    name: str, by_target: bool, tmp_path: Path
) -> None:
    settings = {**UNPROVEN[name], "noise-scale": 0.1}
    if by_target:
        settings = target_of(settings, 3.0)
    line = refused(settings, tmp_path)
    assert line.startswith("target-epsilon: " if by_target else "this run cannot be private: ")
    assert read_config({**RUN, **settings})  # the config itself is sound
    code, _, err = privet("account", *arguments({**RUN, **settings}))
    assert code == 2
    said = err.splitlines()
    assert [text for text in said if text.startswith("privet: ")] == [f"privet: {line}"]


@pytest.mark.parametrize("by_target", [False, True])
def test_indices_from_the_data_are_refused_before_round_1(by_target: bool, tmp_path: Path) -> None:
    settings = {**PRIVATE["fed-pdm"], "sparsifier": "top-k", "alpha-u": 0.5}
    if by_target:
        settings = target_of(settings, 3.0)
    assert refused(settings, tmp_path).startswith("sparsifier = 'top-k' sends an index set")
