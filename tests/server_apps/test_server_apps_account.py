"""What ``privacy.json`` claims, and when it claims nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

from privet.client_apps import client_app
from privet.core import RunError
from privet.core.exits import Exit
from privet.data import problem_from_context
from privet.kernel import AgentLedger, Facts, Release
from privet.rounds.account import account_fault, claims_by_agent, keep_unclaimed, privacy_of
from privet.rounds.roster import EnrolledAgent
from privet.rounds.session import Round, Session
from privet.server_apps import execute, read_config
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline
from privet.strategies import DPFedSGD
from support.cli import privet

PRIVATE: dict[str, Any] = {
    "num-agents": 3,
    "num-server-rounds": 3,
    "local-solver": "noisy-gd",
    "clip": 1.0,
    "noise-variance": 0.01,
    "row-norm": 3.0,
}
OPEN: dict[str, Any] = {"num-agents": 3, "num-server-rounds": 2}


class Lying(InlineGrid):
    """Agent 1 sends an account of its own making."""

    said: dict[str, Any]

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        if reply is not None and message.metadata.message_type == "train":
            record = reply.content["privet"]
            if message.metadata.dst_node_id == 1001:
                about = json.loads(str(record["about"]))  # type: ignore[index]
                record["about"] = json.dumps(about | self.said)  # type: ignore[index]
        return reply


def account_with(folder: Path, keys: dict[str, Any] | None = None, **said: Any) -> Any:
    raw = {**PRIVATE, **(keys or {}), "output-dir": str(folder)}
    grid = Lying(client_app(None, problem_from_context), 3, read_config(raw))
    grid.said = said
    finished = execute(grid, read_config(raw), "run")
    assert len(finished.result.history) == 3
    return json.loads((finished.folder / "privacy.json").read_text())


def forged(**fields: Any) -> str:
    (entry,) = json.loads(AgentLedger().record(Release("gaussian", scale=1.0)).to_json())
    return json.dumps([{**entry, **fields}])


HOSTILE: dict[str, dict[str, Any]] = {
    "no JSON": {"ledger": "nonsense"},
    "no list": {"ledger": "{}"},
    "nested": {"ledger": "[" * 5000},
    "too many": {"ledger": forged(times=10**30)},
    "a text for a number": {"ledger": forged(scale="1")},
    "a negative count": {"ledger": forged(count=-1)},
    "noise finer than its grid": {"ledger": forged(scale=1e5, sensitivity=1e-5)},
    "noise of 1e9": {"ledger": forged(scale=1e9)},
    "noise of no effect": {"ledger": forged(scale=1e-100, sensitivity=10.0)},
    "delta beyond 1": {"ledger": forged(times=10**12)},
    "many uses": {"ledger": forged(count=10**12)},
    "many steps": {"ledger": forged(steps=10**12, contraction=1.0 - 2.0**-53)},
    "no account": {"ledger": ""},
    "an empty account": {"ledger": "[]"},
    "no bound, and no account": {"ledger": "", "epsilon": "inf"},
    "less than was asked for": {"ledger": forged(scale=1e3)},
}
"""What agent 1 says of its releases, in place of the truth."""


@pytest.mark.parametrize("said", HOSTILE)
@pytest.mark.parametrize("keys", [{}, {"rows-per-person": 3}], ids=["record", "person"])
def test_an_agent_whose_account_is_of_no_use_is_charged_as_asked_and_left_out(
    said: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    found = account_with(tmp_path, keys, **HOSTILE[said])
    assert found["private"] is True
    messages = {
        name: sum(release["times"] for release in said["releases"])
        for name, said in found["agents"].items()
    }
    assert messages == {"0": 3, "1": 1, "2": 3}
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    history = [json.loads(line) for line in lines]
    assert [done["participants"] for done in history] == [["0", "2"]] * 3
    assert "cannot be used" in history[0]["failures"]["1"]["text"]
    assert history[1]["failures"]["1"]["code"] == "out"
    assert all(isinstance(done["epsilon"], float) for done in history)
    assert (tmp_path / "run" / "model.npz").exists()


UNBOUND: dict[str, dict[str, Any]] = {
    "an infinite epsilon": {"epsilon": "inf"},
}
"""What agent 1 says of a release that has no bound."""


@pytest.mark.parametrize("said", UNBOUND)
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"noise-variance": 0.0, "target-epsilon": 3.0},
        {"rows-per-person": 3},
        {"secure-sum": True},
    ],
    ids=["noise", "target", "person", "masked"],
)
def test_an_agent_without_a_bound_costs_itself_alone_the_claim(
    said: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    honest = account_with(tmp_path / "honest", keys)
    found = account_with(tmp_path, keys, **UNBOUND[said])
    line = "nothing is claimed of the records of agent 1, which stated no bound"
    assert found["private"] is True
    assert found["unbound"] == ["1"]
    assert found["reason"].endswith(line)
    assert all(line in one["assumptions"] for one in found["accounts"])
    assert sorted(found["agents"]) == ["0", "2"]
    assert found["agents"] == {name: honest["agents"][name] for name in ("0", "2")}
    assert found["accounts"][0]["epsilon"] == honest["accounts"][0]["epsilon"]
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["participants"] for line in lines] == [["0", "1", "2"]] * 3
    assert all(isinstance(json.loads(line)["epsilon"], float) for line in lines)
    page = (tmp_path / "run" / "statement.html").read_text()
    assert "Nothing is claimed of the records of agent 1".lower() in page.lower()
    checked = privet("statement", str(tmp_path / "run"), "--verify")
    assert checked.code == 0, checked.out + checked.err


def test_a_statement_does_not_hide_who_has_no_bound(tmp_path: Path) -> None:
    """Nor does the account of a run that is forged so that the line is gone."""
    account_with(tmp_path, **UNBOUND["an infinite epsilon"])
    file = tmp_path / "run" / "privacy.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "unbound": []}))
    checked = privet("statement", str(tmp_path / "run"), "--verify")
    assert checked.code == 1
    assert "agent 1 took part in 3 rounds, and its account has 0" in checked.out + checked.err


def test_who_had_no_bound_is_known_after_a_resume(tmp_path: Path) -> None:
    account_with(tmp_path, **UNBOUND["an infinite epsilon"])
    raw = {**PRIVATE, "output-dir": str(tmp_path), "resume": str(tmp_path / "run")}
    config = read_config({**raw, "num-server-rounds": 5})
    finished = execute(InlineGrid(client_app(None, problem_from_context), 3, config), config, "on")
    found = json.loads((finished.folder / "privacy.json").read_text())
    assert found["private"] is True
    assert found["unbound"] == ["1"]


def test_a_history_without_an_epsilon_claims_nothing_of_its_agents(tmp_path: Path) -> None:
    """Of a checkpoint that does not say whose: all of them are without a bound."""
    half = DPFedSGD(clip=1.0, noise_scale=1.0, step_size_base=0.1).half
    session = Session.of("", ArrayRecord({"x": Array(np.zeros(4))}))
    release = half.agent.release(Facts(20, 20.0, 4), 1)
    account = AgentLedger.of([(release, 1)]).to_json()
    session.roster.agents = {name: EnrolledAgent(1, 20, tag=1, ledger=account) for name in "ab"}
    done = Round(1, ("a", "b"), {}, epsilon=math.inf)
    session.history.append(done)
    keep_unclaimed(half, session)
    assert all(agent.unbound for agent in session.roster.agents.values())
    assert not privacy_of(half, session).private
    session.roster.agents["c"] = EnrolledAgent(3, 20, tag=2, ledger=account)
    session.history.append(replace(done, round=2, epsilon=1.0))
    found = privacy_of(half, session)
    assert (found.private, found.unbound, sorted(found.agents)) == (True, ("a", "b"), ["c"])


def test_an_agent_without_a_bound_costs_all_the_claim_where_noise_is_shared() -> None:
    shared = DPFedSGD(clip=1.0, noise_scale=1.0, noise_sharing=True, secure_sum=True).half
    assert not claims_by_agent(shared)
    assert claims_by_agent(DPFedSGD(clip=1.0, noise_scale=1.0, secure_sum=True).half)
    assert not claims_by_agent(DPFedSGD(clip=1.0, noise_scale=1.0, noise_seed=3).half)
    assert not claims_by_agent(DPFedSGD().half)


def test_accounts_that_grow_as_asked_are_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a message costs does not grow with the account; repeats of lost replies included."""
    half = DPFedSGD(clip=1.0, noise_scale=1.0, step_size_base=0.1).half
    facts = Facts(20, 20.0, 4)
    agent = EnrolledAgent(1, 20, facts=facts.to_json())
    asked, dearer = half.agent.release(facts, 1), Release("gaussian", scale=0.5, sensitivity=0.1)
    agent.ledger = AgentLedger.of([(dearer, 10**6), (asked, 3)]).to_json()
    evaluated: list[float] = []
    monkeypatch.setattr(AgentLedger, "spent", lambda self, delta: evaluated.append(delta) or 1.0)
    grown = AgentLedger.of([(dearer, 10**6), (asked, 5)]).to_json()
    assert account_fault(half, agent, grown, 4) == ""
    assert not evaluated
    more = AgentLedger.of([(dearer, 10**6 + 1), (asked, 5)]).to_json()
    account_fault(half, agent, more, 4)
    assert len(evaluated) == 1


@pytest.mark.parametrize("evaluation", ["drawn_delta", "AgentLedger.spent"])
def test_an_account_that_cannot_be_evaluated_costs_the_claim_and_not_the_model(
    evaluation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any) -> float:
        raise ValueError("no figure")

    monkeypatch.setattr(f"privet.rounds.account.{evaluation}", fails)
    finished = run_inline({**PRIVATE, "output-dir": str(tmp_path)}, "run")
    assert (finished.folder / "model.npz").exists()
    assert finished.summary["private"] is False
    assert "the account of agent 0 cannot be read: no figure" in finished.summary["privacy"]
    assert not (finished.folder / "statement.html").exists()


def test_a_person_s_figure_that_does_not_exist_is_infinite(tmp_path: Path) -> None:
    keys = {**PRIVATE, "noise-variance": 1e-4, "rows-per-person": 10**6}
    finished = run_inline({**keys, "output-dir": str(tmp_path)}, "run")
    found = json.loads((finished.folder / "privacy.json").read_text())
    assert found["private"] is True
    person = found["accounts"][0]["person"]
    assert (person["epsilon"], person["drawn-delta"]) == ("inf", 0.0)


@pytest.mark.parametrize("variance", [1e-6, 1e-9, 1e-100])
def test_a_total_delta_of_1_has_no_statement(variance: float, tmp_path: Path) -> None:
    """Any mechanism is (0, 1)-private."""
    keys = {**PRIVATE, "noise-variance": variance, "num-server-rounds": 1}
    finished = run_inline({**keys, "output-dir": str(tmp_path)}, "run")
    assert not (finished.folder / "statement.html").exists()
    if finished.summary["private"]:
        page = tmp_path / "page.html"
        code, _, error = privet("report", finished.folder, "--statement", page)
        assert (code, page.exists()) == (Exit.PERSON, False)
        assert "come to 1 or more" in error


def test_run_that_began_without_noise_cannot_become_private(tmp_path: Path) -> None:
    place = {"output-dir": str(tmp_path)}
    run_inline({**OPEN, **place}, "first")
    with pytest.raises(RunError, match=r"of another run: .*noise-variance 0.0 -> "):
        run_inline({**PRIVATE, **place, "resume": str(tmp_path / "first")}, "second")


def test_papers_formula_that_does_not_apply_is_left_out(tmp_path: Path) -> None:
    raw = {**PRIVATE, "regularizer": "none", "output-dir": str(tmp_path)}
    finished = run_inline(raw, "run")
    found = json.loads((finished.folder / "privacy.json").read_text())
    assert found["private"] is True
    assert [entry["as-printed"] for entry in found["accounts"]] == [None, None]


def test_automatic_resume_of_a_finished_run_reports_it_again(tmp_path: Path) -> None:
    place = {"output-dir": str(tmp_path)}
    first = run_inline({**PRIVATE, **place}, "first")
    before = {name: (first.folder / name).read_bytes() for name in ("history.jsonl", "model.npz")}
    again = run_inline({**PRIVATE, **place, "resume": "auto"}, "again")
    assert again.folder == first.folder
    for name, content in before.items():
        assert (again.folder / name).read_bytes() == content
    assert again.summary["privacy"] == first.summary["privacy"]
