"""``target-epsilon`` is never passed, and one run has one epsilon wherever it is printed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message

from privet.client_apps import client_app
from privet.client_apps.fed_pdm import Agent
from privet.core import PrivetError
from privet.core import format as report_format
from privet.data import problem_from_context
from privet.kernel import Told
from privet.problems import LinearModel
from privet.server_apps import execute, read_config
from privet.sim.engine import InlineGrid
from redteam.harness import Node, privet, privet_json, problem, spent
from support.told import refused

COMMON = "num-agents=4 num-server-rounds=10"
RUNS = {
    "fed-plt": "algorithm=fed-plt local-solver=noisy-gd clip=1 row-norm=5",
    "fed-plt given smoothness": (
        "algorithm=fed-plt local-solver=noisy-gd clip=1 row-norm=5 smoothness=2.0"
    ),
    "fed-plt given moduli": (
        "algorithm=fed-plt local-solver=noisy-gd clip=1 row-norm=5 smoothness=6.3 "
        "strong-convexity=0.05"
    ),
    "fed-plt iid": (
        "algorithm=fed-plt local-solver=noisy-gd clip=1 row-norm=5 partition=iid local-epochs=3"
    ),
    "fed-plt float32": "algorithm=fed-plt local-solver=noisy-gd clip=1 row-norm=3 dtype=float32",
    "fed-plt masked": "algorithm=fed-plt local-solver=noisy-gd clip=1 row-norm=3 secure-sum=true",
    "dp-iadmm": "algorithm=dp-iadmm clip=1",
    "dp-iadmm adaptive": "algorithm=dp-iadmm clip=0.5 local-updates=4 divisor=agent",
    "dp-iadmm laplace": "algorithm=dp-iadmm clip=1 mechanism=laplace",
    "dp-iadmm output": "algorithm=dp-iadmm clip=1 perturbation=output",
    "dp-iadmm output adaptive": (
        "algorithm=dp-iadmm clip=1 perturbation=output local-updates=3 row-norm=5"
    ),
    "fed-pdm": "algorithm=fed-pdm preset=private",
    "fed-pdm five steps": (
        "algorithm=fed-pdm preset=private max-local-steps=5 row-norm=2 step-size-base=0.1"
    ),
    "fed-pdm batch": "algorithm=fed-pdm preset=private max-local-steps=3 clipping=batch",
    "dp-fedsgd": "algorithm=dp-fedsgd clip=1",
    "dp-fedsgd sampled": "algorithm=dp-fedsgd clip=1 batch=sample batch-size=16",
    "dp-fedsgd half of them": "algorithm=dp-fedsgd clip=1 participation=fraction fraction=0.5",
    "fed-dyn": "algorithm=fed-dyn clip=1 max-local-steps=2",
    "scaffold": "algorithm=scaffold clip=1 max-local-steps=3",
}


def words(text: str, **more: Any) -> list[str]:
    extra = [f"{key.replace('_', '-')}={value}" for key, value in more.items()]
    last = {word.partition("=")[0]: word for word in (*COMMON.split(), *text.split(), *extra)}
    return list(last.values())


def config(text: str, **more: Any) -> dict[str, Any]:
    from privet.cli.config import parse_assignments

    return parse_assignments(words(text, **more))


class Said:
    """What a finished run says of its epsilon, in each place."""

    def __init__(self, summary: Mapping[str, Any]) -> None:
        folder = Path(summary["run-folder"])
        privacy = json.loads((folder / "privacy.json").read_text())
        assert privacy["private"], privacy["reason"]
        self.history = [json.loads(x) for x in (folder / "history.jsonl").read_text().splitlines()]
        self.summary = str(summary["privacy"])
        self.accounts = privacy["accounts"]
        self.epsilon = float(privacy["accounts"][0]["epsilon"])
        self.agents = {name: float(said["epsilon"]) for name, said in privacy["agents"].items()}

    def require_one_number(self) -> None:
        assert {entry["epsilon"] for entry in self.accounts} == {self.epsilon}
        assert max(self.agents.values()) == self.epsilon
        assert max(done["epsilon"] for done in self.history) == self.epsilon
        shown = float(self.summary.split()[1])
        assert self.epsilon <= shown == pytest.approx(self.epsilon, rel=5e-3)
        assert report_format.epsilon(self.epsilon) == self.summary.split()[1]


def play(text: str, folder: Path, **more: Any) -> Said:
    """Run a command's arguments to the end."""
    return Said(privet_json("run", *words(text, output_dir=folder, **more)))


def said_by_the_account(text: str, **more: Any) -> list[dict[str, Any]]:
    """Return the accounts that ``privet account`` prints of the same words."""
    accounts: list[dict[str, Any]] = privet_json("account", *words(text, **more))["accounts"]
    return accounts


@pytest.mark.parametrize("run", RUNS)
def test_the_target_is_met_and_not_passed_and_every_place_says_one_number(
    run: str, tmp_path: Path
) -> None:
    """The account says it with the same words, before anything is run."""
    said = play(RUNS[run], tmp_path, target_epsilon=8)
    said.require_one_number()
    # Who takes part by chance may have paid less than was planned for; nobody pays more.
    by_chance = "fraction" in RUNS[run]
    assert (0.0 if by_chance else 0.98 * 8) <= said.epsilon <= 8
    if not by_chance:
        assert said_by_the_account(RUNS[run], target_epsilon=8) == said.accounts


def test_the_page_prints_it(tmp_path: Path) -> None:
    said = play(RUNS["fed-plt given smoothness"], tmp_path, target_epsilon=8)
    (page,) = tmp_path.rglob("report.html")
    assert f"{said.epsilon:.4g}" in page.read_text()
    assert f"{said.history[-1]['epsilon']:.4g}" == f"{said.epsilon:.4g}"


@pytest.mark.parametrize(
    ("run", "noise"),
    [
        ("fed-plt given smoothness", {"noise_variance": 0.01}),
        ("dp-iadmm laplace", {"noise_scale": 0.05}),
        ("dp-iadmm output", {"epsilon": 1.5}),
    ],
)
def test_the_account_of_a_given_noise(run: str, noise: dict[str, Any], tmp_path: Path) -> None:
    said = play(RUNS[run], tmp_path, **noise)
    said.require_one_number()
    assert said_by_the_account(RUNS[run], **noise) == said.accounts


@pytest.mark.parametrize("noise", [{"noise_scale": 2.0}, {"target_epsilon": 8}])
def test_a_private_dual_is_refused_before_the_first_round(
    noise: dict[str, Any], tmp_path: Path
) -> None:
    text = "algorithm=fed-pdm preset=private dual=private"
    for order in ("run", "account"):
        more = {"output_dir": tmp_path} if order == "run" else {}
        code, said = privet(order, *words(text, **noise, **more))
        assert code != 0
        assert "dual" in said.splitlines()[-1]
    assert rounds_of(tmp_path) == ""


def rounds_of(root: Path) -> str:
    """Return the history of whatever was run under a folder."""
    return "".join(path.read_text() for path in root.rglob("history.jsonl"))


def rising(agent: Agent, round_: int) -> float:
    """A schedule of steps that begins with a certificate and loses it in round 7."""
    return 0.4 / agent.rho * math.sqrt(round_)


@pytest.mark.parametrize("noise", [{"noise_scale": 2.0}, {"target_epsilon": 8}])
def test_a_later_round_without_a_certificate_ends_the_run_at_its_start(
    noise: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(rho + regulariser) * step size passes 1 after six of ten rounds."""
    monkeypatch.setattr(Agent, "step_size", rising)
    text = "algorithm=fed-pdm preset=private rho=1"
    six = play(f"{text} num-server-rounds=6", tmp_path / "six", **noise)
    assert len(six.history) == 6
    for order in ("run", "account"):
        more = {"output_dir": tmp_path / "ten"} if order == "run" else {}
        code, said = privet(order, *words(text, **noise, **more))
        assert code != 0
        assert "step size" in said.splitlines()[-1]
    assert rounds_of(tmp_path / "ten") == ""


def test_noise_that_a_later_round_cannot_add_ends_the_run_at_its_start(tmp_path: Path) -> None:
    """FedPDM's steps shrink, and with them what the noise hides, until the grid is too fine."""
    text = "algorithm=fed-pdm clip=1 dual=public max-local-steps=1"
    noise = 1.0
    while privet("account", *words(text, num_server_rounds=1, noise_scale=noise))[0] == 0:
        noise *= 2
    first = noise / 2
    assert first > 1
    play(text, tmp_path / "one", num_server_rounds=1, noise_scale=first)
    code, said = privet(
        "run",
        *words(text, num_server_rounds=40, noise_scale=first, output_dir=tmp_path / "all"),
    )
    assert code != 0
    assert "noise" in said.splitlines()[-1]
    assert rounds_of(tmp_path / "all") == ""


def test_the_account_takes_gfl_too() -> None:
    """Its servers exchange noised models: the same words as a run's."""
    text = "algorithm=gfl clip=1 noise-variance=4.0 units=2"
    assert float(privet_json("account", *words(text))["epsilon"]) > 0


# ------------------------------------------------------------------ resumed runs


def folder_of(root: Path) -> str:
    (found,) = root.glob("*/")
    return str(found)


@pytest.mark.parametrize(
    "run", ["fed-plt given smoothness", "dp-iadmm laplace", "fed-pdm", "scaffold"]
)
def test_what_was_paid_counts_after_a_resume(run: str, tmp_path: Path) -> None:
    """Half the target is spent in ten rounds; ten more go on to the target, not past it."""
    play(RUNS[run], tmp_path / "first", target_epsilon=4)
    more = {"target_epsilon": 8, "num_server_rounds": 20, "resume": folder_of(tmp_path / "first")}
    said = play(RUNS[run], tmp_path / "second", **more)
    said.require_one_number()
    assert len(said.history) == 20
    assert 0.98 * 8 <= said.epsilon <= 8


def test_nothing_is_left_after_the_target(tmp_path: Path) -> None:
    """Ten more rounds of a run that has spent its target are refused by name, not drowned."""
    run = "dp-fedsgd"
    play(RUNS[run], tmp_path / "first", target_epsilon=8)
    more = {"target_epsilon": 8, "num_server_rounds": 20, "resume": folder_of(tmp_path / "first")}
    code, text = privet("run", *words(RUNS[run], output_dir=tmp_path / "second", **more), "--json")
    assert code != 0
    assert "target-epsilon = 8: agents have paid" in text


# ------------------------------------------------------------------ other numbers of examples


def with_nodes(
    text: str,
    folder: Path,
    problem_fn: Callable[[Context], LinearModel[Any]] = problem_from_context,
    *,
    rules: Mapping[str, Any] | None = None,
    app: Callable[[Message, Context], Message] | None = None,
    **more: Any,
) -> Said:
    """Run with nodes of one's own."""
    raw = config(text, output_dir=str(folder), **more)
    nodes = [{"partition-id": i, "num-partitions": 4, **(rules or {})} for i in range(4)]
    grid = InlineGrid(app or client_app(None, problem_fn), nodes, raw)
    return Said(execute(grid, read_config(raw), "run").summary)


@pytest.mark.parametrize("run", ["dp-fedsgd", "fed-plt"])
def test_the_declared_number_is_what_noise_is_set_for(run: str, tmp_path: Path) -> None:
    """Nodes that declare 150 for their hundred-odd examples, and nodes that declare 600."""
    noises = []
    for declared in (150, 600):
        said = with_nodes(
            RUNS[run],
            tmp_path / str(declared),
            rules={"num-examples": declared},
            target_epsilon=8,
            partition="iid",
        )
        assert 0.98 * 8 <= said.epsilon <= 8
        privacy = json.loads((tmp_path / str(declared) / "run" / "privacy.json").read_text())
        (release, *_) = privacy["agents"]["0"]["releases"]
        noises.append(release["sensitivity"])
    assert noises[0] / noises[1] == pytest.approx(4.0, rel=0.01)


def test_more_examples_than_declared_close_a_node(tmp_path: Path) -> None:
    line = "num-examples = 60: this node holds more"
    with refused(Told.DATA, line, PrivetError) as caught:
        with_nodes(
            RUNS["dp-fedsgd"],
            tmp_path,
            rules={"num-examples": 60},
            target_epsilon=8,
            partition="iid",
        )
    assert "\n" not in str(caught.value)


ADD_REMOVE = "algorithm=dp-fedsgd clip=1 relation=add-remove"


def test_add_remove_is_the_nodes_to_allow(tmp_path: Path) -> None:
    """With its own relation and a declared number a record costs half of an exchanged one."""
    said = {}
    for relation in ("add-remove", "replace-one"):
        said[relation] = with_nodes(
            ADD_REMOVE,
            tmp_path / relation,
            rules={"num-examples": 200, "relation": relation},
            relation=relation,
            target_epsilon=8,
            partition="iid",
        )
        said[relation].require_one_number()
        assert 0.98 * 8 <= said[relation].epsilon <= 8
    scales = [
        json.loads((tmp_path / relation / "run" / "privacy.json").read_text())["agents"]["0"][
            "releases"
        ][0]["scale"]
        for relation in said
    ]
    assert scales[0] / scales[1] == pytest.approx(0.5, rel=1e-6)


def finished(run: Callable[[], Said]) -> Said | str:
    """Return what a run says, or the line with which it ended."""
    try:
        return run()
    except PrivetError as error:
        return str(error)


def fewer(context: Context) -> LinearModel[Any]:
    """The first 25 of a node's examples: its file has changed."""
    whole = problem_from_context(context)
    targets = whole.labels  # type: ignore[attr-defined]
    return type(whole)(whole.features[:25], targets[:25], regularizer=whole.regularizer)  # type: ignore[call-arg]


@pytest.mark.parametrize("run", ["dp-fedsgd", "dp-iadmm adaptive"])
def test_fewer_examples_do_not_cost_more(run: str, tmp_path: Path) -> None:
    """From round 4 on the nodes hold a quarter of what they enrolled with."""
    before, after = (client_app(None, fn) for fn in (problem_from_context, fewer))
    trained: set[str] = set()

    def app(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train":
            trained.add(f"{context.node_id} {message.metadata.message_id}")
        return (before if len(trained) <= 12 else after)(message, context)

    said = finished(
        lambda: with_nodes(RUNS[run], tmp_path, app=app, target_epsilon=8, partition="iid")
    )
    if isinstance(said, str):
        assert "target-epsilon" in said
        return
    assert said.epsilon <= 8
    words_of = json.dumps([[done["notes"], done["failures"]] for done in said.history])
    assert "target-epsilon" in words_of


def test_fewer_examples_after_a_resume(tmp_path: Path) -> None:
    run = "dp-fedsgd"
    with_nodes(RUNS[run], tmp_path / "first", target_epsilon=4, partition="iid")
    resume = str(tmp_path / "first" / "run")
    said = finished(
        lambda: with_nodes(
            RUNS[run],
            tmp_path / "second",
            fewer,
            partition="iid",
            target_epsilon=5,
            num_server_rounds=20,
            resume=resume,
        )
    )
    if isinstance(said, str):
        assert "examples" in said
        return
    assert said.epsilon <= 5


# ------------------------------------------------------------------ with a budget on the nodes


def test_ledgers_agree_with_the_run(tmp_path: Path) -> None:
    """The line of every node's ledger, the history and privacy.json: one number."""
    raw = config(RUNS["dp-fedsgd"], output_dir=str(tmp_path), target_epsilon=2, partition="iid")
    ledgers = [tmp_path / f"ledger-{i}" for i in range(4)]
    nodes = [
        {
            "partition-id": i,
            "num-partitions": 4,
            "max-epsilon": 2.0,
            "delta": 1e-5,
            "ledger-path": str(path),
            "num-examples": 150,
        }
        for i, path in enumerate(ledgers)
    ]
    grid = InlineGrid(client_app(None, problem_from_context), nodes, raw)
    said = Said(execute(grid, read_config(raw), "run").summary)
    assert [done["participants"] for done in said.history] == [["0", "1", "2", "3"]] * 10
    said.require_one_number()
    for name, path in enumerate(ledgers):
        assert f"{spent(path):.10g}" == f"{said.agents[str(name)]:.10g}"


def test_a_node_is_charged_what_it_was_told(tmp_path: Path) -> None:
    """The epsilon in an upload is the ledger's, also where the coordinator plans another delta."""
    node = Node(tmp_path, problem())
    answer = node.train("dp-fedsgd", delta=1e-9)
    assert answer.refusal is None
    assert answer.epsilon >= spent(node.ledger) * (1 - 1e-12)


SAMPLED: dict[str, Any] = {"batch": "poisson", "batch_size": 5}


@pytest.mark.parametrize("first", ["laplace", "sampled"])
def test_no_message_closes_a_ledger_to_runs_of_another_kind(first: str, tmp_path: Path) -> None:
    """One that costs next to nothing: the ledger may never be deleted."""
    node = Node(tmp_path, problem(), relation="add-remove", max_epsilon=8.0)
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "laplace": ("dp-iadmm", {"mechanism": "laplace"}),
        "sampled": ("dp-fedsgd", SAMPLED),
    }
    name, keys = kinds.pop(first)
    tiny = node.train(name, relation="add-remove", noise_scale=1e3, experiment="tiny", **keys)
    assert tiny.refusal is None
    before = spent(node.ledger)
    ((other, keys),) = kinds.values()
    for round_ in (1, 2, 3):
        message = {"relation": "add-remove", "noise_scale": 1.0, "round_": round_, **keys}
        assert node.train(other, experiment="honest", **message).refusal is None
    alone = Node(tmp_path / "alone", problem(), relation="add-remove", max_epsilon=8.0)
    alone.ledger.parent.mkdir()
    for round_ in (1, 2, 3):
        message = {"relation": "add-remove", "noise_scale": 1.0, "round_": round_, **keys}
        assert alone.train(other, experiment="honest", **message).refusal is None
    assert spent(alone.ledger) <= spent(node.ledger) <= 1.1 * spent(alone.ledger) + before
