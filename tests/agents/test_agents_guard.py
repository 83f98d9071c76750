"""The order in which an agent asks, pays, computes and replies."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from privet.agents.base import Participant
from privet.agents.cycles import RECORD
from privet.agents.guard import node_rules
from privet.client_apps import client_app
from privet.client_apps.fed_pdm import Agent as FedPDMAgent
from privet.client_apps.rivals.dp_fedsgd import Agent as FedSGD
from privet.core import ConfigError
from privet.kernel import (
    AgentLedger,
    ClippableProblem,
    LedgerFile,
    Perturber,
    Told,
    Totals,
    epsilon_of,
)
from privet.problems import L2, BinaryLogistic, public_facts
from privet.sim.engine import InlineGrid
from privet.wire import ENROL, FAILED, REFUSED, pack
from privet.wire.contract import (
    CONTRACT_VERSION,
    Instruction,
    agent_record,
    encode_settings,
    read_update,
    shared_record,
)
from privet.wire.payload import from_payload
from support.told import own_log

ROWS = np.random.default_rng(0).standard_normal((20, 3))
LABELS = np.where(np.arange(20) % 3, 1.0, -1.0)
SETTINGS: dict[str, Any] = {
    "clip": 1.0,
    "noise-scale": 0.5,
    "max-local-steps": 1,
    "delta": 1e-5,
    "seed": 0,
}


def problem(rows: int = 20, **options: Any) -> BinaryLogistic:
    return BinaryLogistic(ROWS[:rows], LABELS[:rows], regularizer=L2(0.1), **options)


class Node:
    """One node, whose problem function says how often it was asked."""

    def __init__(self, folder: Path, made: Any = None, budget: bool = True, **rules: Any) -> None:
        self.ledger = folder / "ledger.jsonl"
        self.asked = 0
        self.made = problem() if made is None else made

        def problem_fn(context: Any) -> Any:
            self.asked += 1
            if isinstance(self.made, Exception):
                raise self.made
            return self.made

        limits = {"max-epsilon": 50.0, "delta": 1e-5, "ledger-path": str(self.ledger)}
        config = {"agent": "me", **(limits if budget else {}), **rules}
        self.grid = InlineGrid(client_app(None, problem_fn), [config])

    @property
    def lines(self) -> int:
        return len(self.ledger.read_text().splitlines()) if self.ledger.exists() else 0

    @property
    def wrote_state(self) -> bool:
        return "privet.state" in self.grid.contexts[1000].state

    def send(self, content: RecordDict, kind: str = "train") -> Message:
        with own_log() as said:
            (reply,) = self.grid.send_and_receive([Message(content, 1000, kind)])
        self.said = said.text
        return reply

    def told(self, reply: Message, told: Told, line: str) -> bool:
        """Whether a reply says just this, and the node's own log holds the line."""
        found: str = reply.error.reason
        return found == f"agent me: {told}" and line in self.said

    def train(
        self,
        settings: Mapping[str, Any] | str = SETTINGS,
        round_: int = 1,
        name: str = "dp-fedsgd",
        x: Any = None,
        state: Mapping[str, Any] | None = None,
        account: str = "",
    ) -> Message:
        text = settings if isinstance(settings, str) else encode_settings(settings)
        broadcast = {"y" if name == "fed-plt" else "x": np.zeros(3) if x is None else x}
        shared = shared_record(name, 1, "e", round_, text, broadcast)
        own = agent_record(round_ - 1, pack(state or {}), account)
        return self.send(RecordDict({"privet": shared, "privet.agent": own}))

    def enrol(self, quiet: bool = True) -> Message:
        asked = {"contract": CONTRACT_VERSION, "protocol": "dp-fedsgd", "version": 1}
        question = ConfigRecord({**asked, "experiment": "e", "quiet": quiet, "secure-sum": False})
        return self.send(RecordDict({"privet": question}), ENROL)


def update(reply: Message, round_: int = 1) -> Any:
    assert reply.has_content(), reply.error.reason
    return read_update(reply.content, "dp-fedsgd", 1, round_)


# ------------------------------------------------------------------ before anything is read


@pytest.mark.parametrize(
    ("rules", "settings", "told", "line"),
    [
        ({}, {"noise-seed": 3}, Told.SEEDED_NOISE, "noise-seed"),
        ({}, {"clip": 0.0}, Told.NO_CLIP, "without clipping"),
        ({}, {"noise-scale": 0.0}, Told.NO_NOISE, "without noise"),
        ({"max-clip": 0.5}, {}, Told.MAX_CLIP, "clip 1 is above this node's max-clip 0.5"),
        (
            {},
            {"relation": "add-remove"},
            Told.REPLACE_ONE,
            "relation = 'add-remove': this node's is 'replace-one', as its config says "
            "('replace-one' where it says nothing): set relation = 'add-remove' there to agree",
        ),
        (
            {"relation": "add-remove", "num-examples": 20},
            {},
            Told.ADD_REMOVE,
            "relation = 'replace-one'",
        ),
    ],
)
def test_rules_are_asked_before_any_data_is_read(
    rules: dict[str, Any], settings: dict[str, Any], told: Told, line: str, tmp_path: Path
) -> None:
    node = Node(tmp_path, RuntimeError("patient 4711"), **rules)
    reply = node.train({**SETTINGS, **settings})
    assert reply.error.code == REFUSED
    assert node.told(reply, told, line)
    assert node.asked == 0
    assert not node.ledger.exists()
    # What its rules do allow does read the data.
    allowed = {**SETTINGS, "clip": 0.4, "relation": rules.get("relation", "replace-one")}
    assert node.told(node.train(allowed), Told.DATA, "patient 4711")
    assert node.asked == 1
    assert node.lines == 0


def test_the_relation_stands_in_the_node_config_without_a_budget_too(tmp_path: Path) -> None:
    node = Node(tmp_path, budget=False)
    reply = node.train({**SETTINGS, "relation": "add-remove"})
    assert reply.error.code == REFUSED
    assert node.asked == 0
    assert update(node.train()).epsilon > 0


def test_sensitivity_of_the_data_is_refused_unread(tmp_path: Path) -> None:
    node = Node(tmp_path, RuntimeError())
    settings = {"sensitivity": "paper", "epsilon": 1.0, "mechanism": "laplace"}
    reply = node.train(settings, name="dp-iadmm")
    assert "sensitivity computed from the data" in reply.error.reason
    assert node.asked == 0


# ------------------------------------------------------------------ paid before it is computed


def test_the_ledger_is_written_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, seen = Node(tmp_path), []

    def breaks(self: Any, *args: Any, **options: Any) -> Any:
        seen.append(node.lines)
        raise ValueError("patient 4711")

    monkeypatch.setattr(FedSGD, "local_update", breaks)
    for number in (1, 2):
        reply = node.train(round_=number)
        assert reply.error.code == FAILED
        assert "4711" not in reply.error.reason
    assert seen == [1, 2]
    assert node.lines == 2
    assert not node.wrote_state
    monkeypatch.undo()
    # What was paid for and lost is paid for.
    done = update(node.train(round_=3), 3)
    ((release, times),) = AgentLedger.from_json(done.ledger).entries
    assert times == 1
    limit = epsilon_of([(release, 3)], 1e-5)
    strict = Node(tmp_path, **{"max-epsilon": limit * (1 - 1e-9)})
    assert strict.train().error.code == REFUSED
    assert strict.lines == 3


def test_a_charge_that_cannot_be_noised_is_not_written(tmp_path: Path) -> None:
    """Noise so loud that float64 cannot hold it beside what it hides."""
    node = Node(tmp_path)
    reply = node.train({**SETTINGS, "clip": 1e-30, "noise-scale": 1e10})
    assert node.told(reply, Told.WORK, "too large for a sensitivity")
    assert node.lines == 0


# ------------------------------------------------------------------ declared number of examples


def released(reply: Message) -> Any:
    ((release, times),) = AgentLedger.from_json(update(reply).ledger).entries
    assert times == 1
    return release


def test_an_open_run_divides_by_what_there_is(tmp_path: Path) -> None:
    node = Node(tmp_path, budget=False, **{"num-examples": 30})
    reply = node.train({**SETTINGS, "clip": 0.0, "noise-scale": 0.0})
    np.testing.assert_allclose(
        from_payload(update(reply).payload)["g"], problem().gradient(np.zeros(3)), atol=1e-15
    )


def test_a_node_that_holds_more_than_it_declares_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path, **{"num-examples": 19})
    for ask in (node.enrol, node.train):
        line = "num-examples = 19: this node holds more examples than it declares"
        assert node.told(ask(), Told.DATA, line)
    assert node.lines == 0


def test_a_divisor_of_its_own_stays_under_replace_one_alone(tmp_path: Path) -> None:
    """A number of all agents' examples could count the record that comes or goes."""
    made = problem(divisor=100.0)
    node = Node(tmp_path, made, **{"num-examples": 30})
    assert released(node.train()).sensitivity == pytest.approx(2 / 100, rel=1e-5)
    rules = {"num-examples": 30, "relation": "add-remove"}
    other = Node(tmp_path / "other", made, budget=False, **rules)
    reply = other.train({**SETTINGS, "relation": "add-remove"})
    line = "divided by 100, not by this node's num-examples = 30"
    assert other.told(reply, Told.SETTING, line)


class Foreign:
    """A problem of one's own that clips, and cannot be divided by another number."""

    dim, dtype, num_examples = 3, np.dtype(float), 20

    def value(self, x: Any) -> float:
        return problem().value(x)

    def gradient(self, x: Any, rows: Any = None) -> Any:
        return problem().gradient(x, rows)

    def clipped_gradient(self, x: Any, clip: float, norm: Any = "l2", rows: Any = None) -> Any:
        return BinaryLogistic(ROWS, LABELS).clipped_gradient(x, clip, norm, rows)


def test_a_problem_that_cannot_be_divided_is_refused_before_it_is_charged(tmp_path: Path) -> None:
    foreign = Foreign()
    assert isinstance(foreign, ClippableProblem)
    assert update(Node(tmp_path / "a", foreign, budget=False).train()).epsilon > 0
    assert update(Node(tmp_path / "b", foreign, budget=False, **{"num-examples": 20}).train())
    node = Node(tmp_path, foreign, **{"num-examples": 30})
    assert node.told(node.train(), Told.SETTING, "needs with_divisor")
    assert node.lines == 0
    # Where a record may be missing, that it could be divided must not depend on how many there are.
    rules = {"num-examples": 20, "relation": "add-remove"}
    node = Node(tmp_path, foreign, budget=False, **rules)
    reply = node.train({**SETTINGS, "relation": "add-remove"})
    assert node.told(reply, Told.SETTING, "needs with_divisor")


# ------------------------------------------------------------------ the run's own target


def test_a_reply_that_would_pass_the_target_is_refused_and_not_written(tmp_path: Path) -> None:
    node = Node(tmp_path)
    release = FedSGD.from_settings(
        {k: v for k, v in SETTINGS.items() if k not in ("delta", "seed")}
    ).release(public_facts(problem()), 1)
    target = epsilon_of([(release, 2)], 1e-5)
    settings = {**SETTINGS, "target-epsilon": target}
    for number in (1, 2):
        assert update(node.train(settings, number), number).epsilon <= target
    kept = node.grid.contexts[1000].state["privet.state"]
    reply = node.train(settings, 3)
    assert reply.error.code == REFUSED
    assert "target-epsilon" in reply.error.reason
    assert node.lines == 2
    assert node.grid.contexts[1000].state["privet.state"] == kept
    # It holds for the sum of all rounds of the run, whatever round the message says it is.
    assert node.train(settings, 1).error.code == REFUSED
    louder = {**settings, "noise-scale": 50.0}
    assert node.train(louder, 3).error.code == REFUSED  # nothing is left
    assert node.train({**settings, "target-epsilon": 2 * target}, 3).has_content()


# ------------------------------------------------------------------ data-dependent preprocessing


def test_preprocessing_by_the_data_is_refused_at_enrolment_and_in_training(tmp_path: Path) -> None:
    made = problem()
    made.data_dependent = "columns are scaled by this node's own rows"
    node = Node(tmp_path, made)
    line = "scaled by this node's own rows"
    for ask in (node.enrol, lambda: node.enrol(quiet=False), node.train):
        reply = ask()
        assert reply.error.code == FAILED
        assert node.told(reply, Told.PREPARATION, line)
    assert node.lines == 0
    free = Node(tmp_path / "free", made, budget=False)
    assert "data-dependent" in free.enrol().error.reason
    assert "data-dependent" in free.train().error.reason
    assert "data-dependent" in free.train({**SETTINGS, "noise-seed": 1}).error.reason
    assert free.enrol(quiet=False).has_content()
    assert free.train({**SETTINGS, "noise-scale": 0.0}).has_content()


@pytest.mark.parametrize("declared", [{}, {"num-examples": 30}])
def test_clipped_rows_and_another_divisor_do_not_hide_what_made_them(
    declared: dict[str, Any], tmp_path: Path
) -> None:
    """A message that was never preceded by an enrolment."""
    made = problem()
    made.data_dependent = "columns are scaled by this node's own rows"
    node = Node(tmp_path, made, **declared)
    settings = {"local-solver": "noisy-gd", "row-norm": 0.5, "noise-variance": 1.0, "clip": 1.0}
    zero = np.zeros(3)
    reply = node.train(settings, name="fed-plt", state={"x": zero, "z": zero})
    assert node.told(reply, Told.PREPARATION, "scaled by this node's own rows")
    assert node.lines == 0
    clean = Node(tmp_path, problem(), **declared)
    assert clean.train(settings, name="fed-plt", state={"x": zero, "z": zero}).has_content()


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [("allow-run-data", True, 1), ("max-clip", 1, True), ("num-examples", 10, 10.0)],
)
def test_a_bad_rule_is_not_taken_for_an_equal_one_of_another_node(
    key: str, good: Any, bad: Any
) -> None:
    def rules(value: Any) -> Any:
        return node_rules(Context(1, 1, {key: value}, RecordDict(), {}))

    rules(good)
    with pytest.raises(ConfigError, match=key):
        rules(bad)


def test_an_agents_bad_setting_is_not_taken_for_an_equal_one_of_another() -> None:
    def half(epochs: Any) -> Any:
        context = Context(1, 1, {"local-epochs": epochs}, RecordDict(), {})
        participant = Participant(lambda _: pytest.fail("no data"))
        asked = Instruction("fed-plt", 1, "", 1, "{}", b"", 0, None)
        return participant.half(asked, context)

    half(1)
    for bad in (True, 1.0):
        with pytest.raises(ConfigError, match="local-epochs"):
            half(bad)


def test_a_delta_that_publishes_a_record_is_refused_before_a_charge(tmp_path: Path) -> None:
    """At 1 / n, n the declared examples; what leaves has no number in it."""
    node = Node(tmp_path, delta=0.049)
    update(node.train())
    assert node.lines == 1
    node = Node(tmp_path / "other", delta=0.05)
    for reply in (node.enrol(), node.enrol(quiet=False), node.train()):
        assert reply.error.code == REFUSED
        assert node.told(reply, Told.DELTA, "delta = 0.05: this node has 20 examples, and 1 / 20")
    assert not node.ledger.parent.exists()
    declared = Node(tmp_path / "third", delta=0.049, **{"num-examples": 21})
    assert declared.told(declared.enrol(), Told.DELTA, "this node has 21 examples")


# ------------------------------------------------------------------ batches in turn

TURNS: dict[str, Any] = {**SETTINGS, "batch": "cyclic", "batches": 4, "noise-bands": 3}


def places(reply: Message, round_: int) -> list[int]:
    """Return where each message of an account began, those of one place as often as it did."""
    entries = AgentLedger.from_json(update(reply, round_).ledger).entries
    return [release.place for release, times in entries for _ in range(times)]


def turn(node: Node, round_: int, settings: Mapping[str, Any] = TURNS) -> Message:
    reply = node.train(settings, round_)
    update(reply, round_)
    return reply


@pytest.mark.parametrize("budget", [True, False])
def test_batches_take_turns_over_messages_and_a_cycle_is_charged_once(
    tmp_path: Path, budget: bool
) -> None:
    node = Node(tmp_path, budget=budget)
    replies = [turn(node, number) for number in range(1, 10)]
    assert sorted(places(replies[-1], 9)) == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    costs = [update(reply, number).epsilon for number, reply in enumerate(replies, 1)]
    assert costs[0] == costs[3] < costs[4] == costs[7] < costs[8]
    if budget:
        assert LedgerFile(node.ledger).spent(1e-5).epsilon == costs[-1]
    record = node.grid.contexts[1000].state[RECORD]
    assert record["step"] == 9
    assert len(record["past"]) == 2


def test_a_round_that_is_asked_for_again_has_the_next_batch_and_its_own_noise(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    first, again = turn(node, 1), turn(node, 1)
    assert places(again, 1) == [0, 1]
    one, other = (from_payload(update(reply, 1).payload)["g"] for reply in (first, again))
    assert not np.allclose(one, other)


def _older(node: Node, context: Context) -> None:
    node.grid.contexts[1000].state = context.state


def _charge(node: Node, context: Context) -> None:
    release = FedSGD.from_settings(SETTINGS).release(public_facts(node.made), 1)
    LedgerFile(node.ledger).charge(release, 1e-5)


def _lost(node: Node, context: Context) -> None:
    node.grid.contexts[1000].state = RecordDict()


def _torn(node: Node, context: Context) -> None:
    with node.ledger.open("a") as file:
        file.write('{"version": 2, "rel')


@pytest.mark.parametrize("happens", [_older, _charge, _lost, _torn])
def test_a_step_that_may_be_missing_begins_a_cycle(tmp_path: Path, happens: Any) -> None:
    """An older copy, as of two tasks at a time, another charge, a lost context, a torn line."""
    node = Node(tmp_path)
    turn(node, 1)
    context = copy.deepcopy(node.grid.contexts[1000])
    turn(node, 2)
    before = LedgerFile(node.ledger).spent(1e-5).epsilon or 0.0
    happens(node, context)
    turn(node, 3)
    audit = LedgerFile(node.ledger).verify()
    (spent,) = [run for run in audit.runs if run.agents]
    assert spent.messages == 3
    twice = Totals().add(_turns(node), 2).epsilon(1e-5)
    assert spent.totals.epsilon(1e-5) == twice > before
    assert node.grid.contexts[1000].state[RECORD]["step"] == 1


def test_a_context_older_than_the_message_begins_a_cycle_without_a_ledger_too(
    tmp_path: Path,
) -> None:
    """Its upload left and its context was lost: the account that is sent has a release more."""
    node = Node(tmp_path, budget=False)
    turn(node, 1)
    older = copy.deepcopy(node.grid.contexts[1000].state)
    account = update(turn(node, 2), 2).ledger
    for _ in range(3):
        node.grid.contexts[1000].state = copy.deepcopy(older)
        reply = node.train(TURNS, 3, account=account)
        account = update(reply, 3).ledger
        assert node.grid.contexts[1000].state[RECORD]["step"] == 1
    assert places(reply, 3).count(0) == 4
    assert update(reply, 3).epsilon == Totals().add(_turns(node), 4).epsilon(1e-5)


def test_a_node_of_fewer_examples_than_it_declares_takes_no_turns_and_pays_nothing(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, **{"num-examples": 25})
    reply = node.train(TURNS)
    assert reply.error.reason == f"agent me: {Told.TURNS}"
    assert node.lines == 0


def _turns(node: Node) -> Any:
    return FedSGD.from_settings(TURNS).release(public_facts(node.made), 1)


@pytest.mark.parametrize(
    "other", [{"seed": 3}, {"clip": 0.5}, {"noise-scale": 0.7}, {"batches": 5}, {"noise-bands": 2}]
)
def test_another_order_or_noise_begins_a_cycle(tmp_path: Path, other: dict[str, Any]) -> None:
    node = Node(tmp_path)
    turn(node, 1)
    turn(node, 2)
    reply = turn(node, 3, {**TURNS, **other})
    assert sorted(places(reply, 3)) == [0, 0, 1]


def test_a_task_that_fails_leaves_no_turn(tmp_path: Path) -> None:
    node = Node(tmp_path)
    turn(node, 1)
    node.grid.contexts[1000].state.pop("privet.state")
    assert node.train(TURNS, 2, x=np.zeros(4)).has_error()  # before it is charged
    assert RECORD in node.grid.contexts[1000].state
    whole = Perturber.perturb
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Perturber, "perturb", lambda *arguments: 1 / 0)
        assert node.train(TURNS, 2).has_error()
    assert Perturber.perturb is whole
    assert RECORD not in node.grid.contexts[1000].state
    assert _begins(node.train(TURNS, 2))


def _begins(reply: Message) -> bool:
    (last,) = [one for one, _ in AgentLedger.from_json(update(reply, 2).ledger).entries][-1:]
    return last.place == 0


def test_rows_of_a_query_are_not_taken_in_turn(tmp_path: Path) -> None:
    node = Node(tmp_path)
    known = {"cohort": "all", "query": "0" * 64, "rows": 20}
    node.enrol()
    node.grid.contexts[1000].state["privet.cohort"] = ConfigRecord(known)
    reply = node.train(TURNS)
    assert reply.has_error()
    assert reply.error.reason == f"agent me: {Told.ORDER}"
    assert node.lines == 0


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"batches": 1, "noise-bands": 1}, "batch = 'cyclic' needs batches, 2 or more"),
        ({"batches": 2}, "noise-bands = 3 is more than batches = 2"),
        ({"relation": "add-remove"}, "batch = 'cyclic' has no proof under relation"),
        ({"relation": "replace-agent"}, "batch = 'cyclic' has no proof under relation"),
        ({"clip": 0.0}, "batch = 'cyclic' is charged by cycles of batches and needs clip"),
        ({"secure-sum": True, "noise-sharing": True}, "has no proof with noise-sharing"),
        ({"budget-schedule": "geometric", "budget-ratio": 0.9}, "needs the same noise in all"),
    ],
)
def test_settings_without_a_proof_are_refused_by_name(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        FedSGD.from_settings({**TURNS, **settings})


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"max-local-steps": 2}, "has a proof where every step is noised: take one"),
        ({"dual": "private"}, "needs dual = public"),
        ({"step-size-rule": "inverse-sqrt"}, "needs steps of one size"),
        ({"batches": 2}, "noise-bands = 3 is more than batches = 2"),
        ({"budget-schedule": "geometric", "budget-ratio": 0.9}, "needs the same noise in all"),
    ],
)
def test_fedpdm_takes_turns_with_one_step_and_a_public_dual(
    settings: dict[str, Any], line: str
) -> None:
    own = {"rho": 1.0, "dual": "public", "max-local-steps": 1, "step-size-rule": "constant"}
    assert FedPDMAgent.from_settings({**TURNS, **own}).gradients.bands == 3
    with pytest.raises(ConfigError, match=line):
        FedPDMAgent.from_settings({**TURNS, **own, **settings})


def test_as_many_batches_as_bands_unless_another_number_is_given() -> None:
    turns = {key: value for key, value in TURNS.items() if key != "batches"}
    assert FedSGD.from_settings(turns).gradients.batches == 3
