"""Messages that are no messages: one line of the library's own, whatever is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from privet.client_apps import client_app
from privet.client_apps.rivals.tamuna import local_steps
from privet.core import ConfigError, algorithm
from privet.kernel import BudgetRefused, NoiseError, Problem, Told
from privet.kernel.programs.steps import MOST_STEPS
from privet.sim.engine import InlineGrid
from privet.strategies import Tamuna
from privet.wire import AGENT_RECORD, ENROL, RECORD, pack
from privet.wire.contract import agent_record, encode_settings, shared_record
from privet.wire.payload import from_payload, to_payload
from redteam.harness import PRIVATE, SETTINGS, Node, problem
from support.federations import app_of, logistic_agents

SETTINGS_TEXTS = {
    "nested lists": "[" * 100_000,
    "nested objects": '{"clip":' * 50_000 + "1" + "}" * 50_000,
    "a list": "[1]",
    "nothing": "{}",
    "a number beyond floats": '{"a":1e999}',
    "a number of ten thousand digits": '{"clip": ' + "9" * 10_000 + "}",
    "a list for a number": json.dumps({**SETTINGS["dp-fedsgd"], "clip": [1.0]}),
    "an object for a number": json.dumps({**SETTINGS["dp-fedsgd"], "noise-scale": {}}),
    "nothing for a number": json.dumps({**SETTINGS["dp-fedsgd"], "clip": None}),
    "a text for the seed": json.dumps({**SETTINGS["dp-fedsgd"], "seed": "x"}),
    "a list for the noise-seed": json.dumps({**SETTINGS["dp-fedsgd"], "noise-seed": []}),
    "a text for delta": json.dumps({**SETTINGS["dp-fedsgd"], "delta": "small"}),
}


def require_line(reason: str) -> None:
    assert reason.startswith("agent me: ")
    assert "withheld" not in reason  # it is no error of ours that could quote a record
    assert "\n" not in reason
    assert len(reason) <= 500


@pytest.mark.parametrize("text", SETTINGS_TEXTS)
def test_settings_that_are_none(text: str, tmp_path: Path) -> None:
    node = Node(tmp_path, problem())
    reply = node.send_raw("dp-fedsgd", SETTINGS_TEXTS[text])
    assert reply.has_error()
    require_line(reply.error.reason)
    assert node.written == b""


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("fed-plt", "local-epochs"),
        ("dp-iadmm", "local-updates"),
        ("fed-pdm", "max-local-steps"),
        ("scaffold", "max-local-steps"),
    ],
)
@pytest.mark.parametrize("steps", [10**6, 10**12, 2**62])
def test_no_message_keeps_a_node_at_work_for_ever(
    steps: int, name: str, key: str, tmp_path: Path
) -> None:
    """With noise so large that a budget alone would allow it."""
    node = Node(tmp_path, problem())
    noise = {"noise_scale": 1e4, "noise_variance": 1e6, "perturbation": "output", "row_norm": 1.0}
    answer = node.train(name, **{key: steps, **noise})
    assert answer.refusal is not None
    assert key in node.said
    assert node.written == b""


STEPS = {
    "fed-plt": "local_epochs",
    "dp-iadmm": "local_updates",
    "fed-pdm": "max_local_steps",
    "dp-fedavg": "max_local_steps",
    "fed-dyn": "max_local_steps",
    "scaffold": "max_local_steps",
}


def test_every_private_algorithm_of_several_steps_is_bounded() -> None:
    one_step = {"dp-fedsgd"}
    assert STEPS.keys() | one_step == set(PRIVATE)


@pytest.mark.parametrize("own", [None, 7])
@pytest.mark.parametrize("name", STEPS)
def test_steps_above_a_nodes_own_bound_are_refused_before_anything_is_charged(
    own: int | None, name: str, tmp_path: Path
) -> None:
    """One release may cover as many steps as one likes, so no budget bounds them."""
    node = Node(tmp_path, problem(), max_steps=own)
    noise = {"noise_scale": 1e4, "noise_variance": 1e6, "perturbation": "output"}
    most = own or 10_000
    answer = node.train(name, **{STEPS[name]: most + 1, **noise})
    assert answer.refusal == f"agent me: {Told.MAX_STEPS}"
    assert f"{most + 1} local steps in a round are above this node's max-steps {most}" in node.said
    assert node.written == b""
    few = {STEPS[name]: min(most, 7), **noise}
    assert "max-steps" not in (node.train(name, **few).refusal or "")


def test_a_node_without_limits_bounds_the_steps_where_it_says_so(tmp_path: Path) -> None:
    for own, steps in ((None, 10_001), (5, 6)):
        free = {"max_epsilon": None, "delta": None, "ledger_path": None, "max_steps": own}
        node = Node(tmp_path, problem(), **free)
        un_noised = {"clip": 0.0, "noise_variance": 0.0, "local_solver": "gd", "row_norm": 0.0}
        answer = node.train("fed-plt", local_epochs=steps, **un_noised)
        assert (answer.refusal is None) is (own is None), node.said


def test_a_drawn_number_of_steps_is_bounded_as_any_other(tmp_path: Path) -> None:
    """TAMUNA draws it from the seed and the round, which the coordinator chooses."""
    most, mean, x = 100, 50, np.zeros(4)
    draws = [local_steps(seed, 1, mean) for seed in range(400)]
    over, under = (draws.index(found(draws)) for found in (max, min))
    assert draws[over] > most > draws[under]
    assert local_steps(7, 1, MOST_STEPS) <= MOST_STEPS
    free = {"max_epsilon": None, "delta": None, "ledger_path": None, "num_examples": None}
    node = Node(tmp_path, problem(), max_steps=most, **free)
    settings = Tamuna(local_epochs=mean, step_size=0.01).half.settings()
    for seed, refused in ((under, False), (over, True)):
        said = encode_settings({**settings, "seed": seed})
        sent = {"x": x, "y": x, "c": x, "rate": np.array(0.5)}
        shared = shared_record("tamuna", 1, "e", 1, said, sent)
        own = agent_record(0, pack({"h": x, "c": x, "x": x}))
        reply = node.send(RecordDict({"privet": shared, "privet.agent": own}))
        assert reply.has_error() is refused, node.said
    assert f"{draws[over]} local steps in a round are above this node's max-steps" in node.said


ACCOUNTS = {
    "no JSON": "{",
    "nested": "[" * 100_000,
    "another relation": [{"relation": "add-remove"}],
    "a huge number of times": [{"times": 10**400}],
    "a list for a field": [{"mechanism": []}],
    "no times": [{"times": None}],
    "a scale that is none": [{"scale": float("nan")}],
    "huge": " " * (1 << 25),
}
ENTRY = {
    "mechanism": "gaussian",
    "scale": 1.0,
    "sensitivity": 1.0,
    "relation": "replace-one",
    "times": 1,
}


@pytest.mark.parametrize("account", ACCOUNTS)
def test_an_account_that_is_none(account: str, tmp_path: Path) -> None:
    """A coordinator gives an agent that has lost its state the account that it last saw."""
    hostile = ACCOUNTS[account]
    text = hostile if isinstance(hostile, str) else json.dumps([{**ENTRY, **hostile[0]}])
    node = Node(tmp_path, problem())
    model = np.zeros(node.dim)
    settings = encode_settings(SETTINGS["dp-fedsgd"])
    shared = shared_record("dp-fedsgd", 1, "e", 1, settings, {"x": model})
    own = agent_record(0, pack({}), text)
    reply = node.send(RecordDict({"privet": shared, "privet.agent": own}))
    assert reply.has_error()
    require_line(reply.error.reason)
    assert node.written == b""


@pytest.mark.parametrize("round_", [0, -1, -(2**62), 2**62])
@pytest.mark.parametrize("name", PRIVATE)
def test_rounds_that_do_not_exist(name: str, round_: int, tmp_path: Path) -> None:
    node = Node(tmp_path, problem())
    answer = node.train(name, round_=round_, step_size_rule="inverse-sqrt")
    assert answer.refusal is not None
    require_line(answer.refusal)
    assert node.written == b""
    assert node.train(name).refusal is None


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize(
    "arrays",
    [
        {"state": {}},
        {"state": {"x": np.zeros(7)}},
        {"broadcast": {"x": np.zeros(7), "y": np.zeros(7), "w": np.zeros(7)}},
        {"broadcast": {"rho": np.array(0.0), "t": np.array(0)}},
        {"broadcast": {"rho": np.zeros(3), "t": np.zeros((2, 2))}},
    ],
    ids=["no state", "other state", "other model", "no penalty", "many penalties"],
)
def test_arrays_that_are_not_the_rounds(name: str, arrays: dict[str, Any], tmp_path: Path) -> None:
    """Either the algorithm does not look at them, or it says what is wrong."""
    node = Node(tmp_path, problem())
    answer = node.train(name, **arrays)
    if answer.refusal is not None:
        require_line(answer.refusal)


@pytest.mark.parametrize("where", ["broadcast", "state"])
@pytest.mark.parametrize("shape", [(-1, 1), (1, -1), (-1, 1, 1)], ids=str)
@pytest.mark.parametrize("name", ["fed-plt", "fed-dyn", "led", "scaffold", "tamuna"])
def test_an_agent_that_is_not_private_takes_no_table_for_a_vector(
    name: str, shape: tuple[int, ...], where: str
) -> None:
    """A column beside the agent's own vectors would make a matrix of the model's size squared."""
    sent: list[RecordDict] = []

    class Grid(InlineGrid):
        def deliver(self, message: Message) -> Message | None:
            if message.metadata.message_type != ENROL:
                sent.append(message.content)
            return super().deliver(message)

    agents = logistic_agents(1, rows=20, dim=500)
    grid = Grid(app_of(agents, name), [{"partition-id": 0}])
    model = ArrayRecord({"x": Array(np.zeros(500))})
    algorithm(name).load_strategy()(num_agents=1).start(grid, model, num_rounds=1)
    shared, own = sent[0][RECORD], sent[0][AGENT_RECORD]
    assert isinstance(shared, ConfigRecord)
    arrays = from_payload(shared["payload"])
    tables = {key: one.reshape(shape) if one.size > 1 else one for key, one in arrays.items()}
    if where == "broadcast":
        shared = ConfigRecord({**shared, "payload": to_payload(tables)})
    else:
        own = agent_record(0, pack(tables))
    fresh = InlineGrid(app_of(agents, name), [{"partition-id": 0}])
    (node,) = fresh.get_node_ids()
    content = RecordDict({RECORD: shared, AGENT_RECORD: own})
    (reply,) = fresh.send_and_receive([Message(content, node, "train")])
    assert "expected (500,) in float64" in reply.error.reason


@pytest.mark.parametrize("kind", [ValueError, KeyError, ConfigError, NoiseError, BudgetRefused])
def test_a_limited_node_quotes_nothing_whatever_the_question_says(
    tmp_path: Path, kind: type[Exception]
) -> None:
    """No message need say that a run is private for the operator's limits to count.

    Nor does a text become this library's by the class that somebody else's code raises.
    """

    def read(context: Context) -> Problem:
        raise kind("row 7: 'Secret-Employer-Ltd'")

    node = Node(tmp_path, problem())
    for limits, withheld in (({"max-clip": 1.0}, True), ({}, False)):
        node.grid = InlineGrid(client_app(None, read), [{"agent": "me", **limits}])
        reason = node.enrol("fed-plt", quiet=False).error.reason
        assert (reason == f"agent me: {Told.DATA}") is withheld
        assert ("Secret" not in reason) is withheld
