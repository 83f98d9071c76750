"""``privet statement --verify``: figures, history, heads of ledgers, and damaged records."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType

from privet.client_apps import client_app
from privet.core.errors import PrivetError
from privet.data import problem_from_context
from privet.kernel import AgentLedger, LedgerError, LedgerFile
from privet.rounds.account import apart_line
from privet.server_apps import execute, read_config
from privet.server_apps.report import plots, write_report
from privet.server_apps.report.runs import read_runs
from privet.server_apps.report.statement import BOUND_FILES, page_of
from privet.server_apps.report.verification import checks_of
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline
from support.cli import privet
from support.damage import changes

AGENTS, ROUNDS = 3, 4
SGD = {"algorithm": "dp-fedsgd", "clip": 1.0, "dataset": "synthetic", "num-agents": AGENTS,
       "num-server-rounds": ROUNDS, "target-epsilon": 3.0, "baseline-seconds": 0.0}  # fmt: skip
MIXED = {"algorithm": "dp-iadmm", "local-updates": 2, "mechanism": "laplace"}


@pytest.fixture(autouse=True)
def _no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "have_matplotlib", lambda: False)


def on_nodes(folder: Path, name: str, **more: Any) -> Path:
    """Return the folder of a run on nodes of which each has a ledger."""
    config = {**SGD, "output-dir": str(folder), **more}
    nodes = [
        {
            "partition-id": place,
            "num-partitions": AGENTS,
            "max-epsilon": 100.0,
            "delta": 1e-5,
            "ledger-path": str(folder / f"ledger-{place}"),
        }
        for place in range(AGENTS)
    ]
    grid = InlineGrid(client_app(None, problem_from_context), nodes, config)
    return execute(grid, read_config(config), name).folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, and its nodes' ledgers beside it."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "have_matplotlib", lambda: False)
        on_nodes(folder, "run", **{"rows-per-person": 2})
    return folder


@pytest.fixture
def copied(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "kept"))


def ledger_of(folder: Path, place: int) -> Path:
    return folder / f"ledger-{place}"


def verified(folder: Path, *ledgers: Path, code: int) -> list[str]:
    """Return the lines of what does not hold, where the command ends with this exit code."""
    words = [word for file in ledgers for word in ("--ledger", file)]
    ended, said, err = privet("statement", folder, "--verify", "--json", *words)
    assert ended == code, said + err
    found = json.loads(said)
    wrong = [check["what"] for check in found["checks"] if not check["holds"]]
    assert found["verified"] == (not wrong) == (code == 0)
    return wrong


def edited(folder: Path, change: Callable[[dict[str, Any]], None], name: str) -> None:
    """Change a JSON file of a run, and its statement so that the two agree, as a forger does."""
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))
    (folder / "statement.html").write_bytes(page_of(read_runs([folder])[0]))


def entries(**figures: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change of figures of every entry of an account."""

    def change(account: dict[str, Any]) -> None:
        for entry in account["accounts"]:
            entry.update({key.replace("_", "-"): value for key, value in figures.items()})

    return change


def person(**figures: Any) -> Callable[[dict[str, Any]], None]:
    def change(account: dict[str, Any]) -> None:
        for entry in account["accounts"]:
            entry["person"] |= {key.replace("_", "-"): value for key, value in figures.items()}

    return change


def of_agent(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], None]:
    return lambda account: (change(account["agents"]["1"]), None)[1]


def without_agent(account: dict[str, Any]) -> None:
    del account["agents"]["1"]


FORGED = {
    "epsilon": (entries(epsilon=1.0), "accounts.0.epsilon is 1.0, computed again 2.99"),
    "a little": (entries(epsilon=2.999), "accounts.0.epsilon is 2.999, computed again 2.99"),
    "delta": (entries(delta=1e-9), "accounts.0.epsilon is"),
    "no delta": (entries(delta="none"), "accounts.0.delta: expected a number between 0 and 1"),
    "no epsilon": (entries(epsilon=None), "accounts.0.epsilon is None"),
    "method": (entries(method="pld"), "accounts.0.method is 'pld'"),
    "mu": (entries(mu=0.1), "accounts.0.mu is 0.1"),
    "drawn": (entries(drawn_delta=0.0), "accounts.0.drawn-delta is 0.0"),
    "assumptions": (entries(assumptions=[]), "accounts.0.assumptions lacks: unit: one record"),
    "person": (person(epsilon=3.0), "accounts.0.person.epsilon is 3.0"),
    "person's draws": (person(drawn_delta=0.0), "accounts.0.person.drawn-delta is 0.0"),
    "person's rows": (person(rows=0), "accounts.0.person: expected a number of rows"),
    "agent": (of_agent(lambda agent: agent.update(epsilon=0.5)), "agents.1.epsilon is 0.5"),
    "no releases": (of_agent(lambda agent: agent.pop("releases")), "agents.1.releases: not an"),
    "a release": (
        of_agent(lambda agent: agent["releases"][0].update(scale=-1.0)),
        "agents.1.releases: not an account (agent ledger entry 0: release field 'scale'",
    ),
    "relation": (
        of_agent(lambda agent: agent["releases"][0].update(relation="replace-agent")),
        "agents.1.releases are under replace-agent, and the run protects by replace-one",
    ),
    "a vast scale": (
        of_agent(lambda agent: agent["releases"][0].update(scale=1e30)),
        "the figures cannot be computed from the releases (spacing is",
    ),
    "fewer": (
        of_agent(lambda agent: agent["releases"][0].update(times=3)),
        "agent 1 took part in 4 rounds, and its account has 3 messages",
    ),
    "no agent": (without_agent, "agent 1 took part in 4 rounds, and its account has 0 messages"),
    "no agents": (lambda account: account.update(agents={}), "accounts.0: no agent has a release"),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGED)
def test_a_figure_that_the_releases_do_not_bear_out_is_named(copied: Path, what: str) -> None:
    change, line = FORGED[what]
    edited(copied / "run", change, "privacy.json")
    wrong = verified(copied / "run", code=1)
    assert any(one.startswith(f"privacy.json: {line}") for one in wrong), wrong
    assert not any(one.startswith("statement.html") for one in wrong), "the two agree"


def test_a_name_of_several_lines_is_shown_in_one(copied: Path) -> None:
    def named(account: dict[str, Any]) -> None:
        account["agents"]["1\n\x1b[31mfine"] = account["agents"]["0"] | {"epsilon": 0.5}

    edited(copied / "run", named, "privacy.json")
    code, said, _ = privet("statement", copied / "run", "--verify")
    assert code == 1
    assert all(line.isprintable() for line in said.splitlines())
    assert "DIFFERS: privacy.json: agents.1 ?[31mfine.epsilon is 0.5" in said


def test_an_upper_bound_is_taken(copied: Path) -> None:
    edited(copied / "run", entries(epsilon=3.5, mu=5.0), "privacy.json")
    assert verified(copied / "run", code=0) == []


def test_a_smaller_release_is_named_by_the_ledger(copied: Path) -> None:
    """Releases and figures were both made smaller, so that they agree with each other."""

    def weaker(account: dict[str, Any]) -> None:
        for agent in account["agents"].values():
            agent["releases"][0]["scale"] *= 2

    edited(copied / "run", weaker, "privacy.json")
    assert verified(copied / "run", code=0) == []
    wrong = verified(copied / "run", ledger_of(copied, 1), code=1)
    assert wrong == ["ledger-1: agent 1: 4 messages charged, 4 of them not in the account"]


def test_a_page_with_a_smaller_epsilon_is_named(copied: Path) -> None:
    page = copied / "run" / "statement.html"
    epsilon = json.loads((page.parent / "privacy.json").read_text())["accounts"][0]["epsilon"]
    page.write_text(page.read_text().replace(f"(exactly {epsilon!r})", "(exactly 1.0)"))
    (line,) = verified(page.parent, code=1)
    assert line == f"statement.html: says epsilon 1.0, computed again {epsilon!r}"


@pytest.mark.parametrize("more", [MIXED, {"secure-sum": True, "algorithm": "fed-plt",
    "local-solver": "noisy-gd", "row-norm": 3.0}], ids=["laplace", "sums"])  # fmt: skip
def test_every_kind_of_account_is_computed_again(tmp_path: Path, more: dict[str, Any]) -> None:
    folder = on_nodes(tmp_path, "run", **more)
    ledgers = [ledger_of(tmp_path, place) for place in range(AGENTS)]
    assert verified(folder, *ledgers, code=0) == []
    edited(folder, entries(epsilon=0.5), "privacy.json")
    assert any("accounts.0.epsilon is 0.5" in line for line in verified(folder, code=1))


def test_the_account_of_a_simulation_with_sampled_records_is_computed_again(tmp_path: Path) -> None:
    """Where agents keep no ledger, no head is stated."""
    sampled = {"batch": "poisson", "batch-size": 10, "relation": "add-remove"}
    folder = run_inline({**SGD, **sampled, "output-dir": str(tmp_path)}, "run").folder
    assert verified(folder, code=0) == []
    assert "ledger-heads" not in json.loads((folder / "summary.json").read_text())
    assert "Ledgers" not in (folder / "statement.html").read_text()
    edited(folder, entries(epsilon=2.9), "privacy.json")
    assert any("accounts.0.epsilon is 2.9" in line for line in verified(folder, code=1))


def heads_in(folder: Path) -> dict[str, str]:
    return dict(json.loads((folder / "summary.json").read_text())["ledger-heads"])


def test_a_run_keeps_the_heads_of_its_nodes_ledgers(kept: Path) -> None:
    ledgers = [ledger_of(kept, place) for place in range(AGENTS)]
    last = {str(i): list(LedgerFile(file).verify().heads)[-1] for i, file in enumerate(ledgers)}
    assert heads_in(kept / "run") == last
    assert verified(kept / "run", *ledgers, code=0) == []
    page = (kept / "run" / "statement.html").read_text()
    assert "of 3 agents, to their last replies" in page
    code, said, _ = privet("statement", kept / "run", "--verify", "--ledger", ledgers[0])
    assert code == 0
    assert f"ledger-0: agent 0: holds the head that its node returned, {last['0']}" in said
    assert "agents 1, 2: no ledger was given" in said
    own_word = "summary.json: simulated, records, notes, config.clip: the coordinator's own word"
    assert f"{own_word}, compared with nothing" in said


def test_a_later_run_leaves_the_statement_of_an_earlier_one_valid(copied: Path) -> None:
    ledger = ledger_of(copied, 0)
    content = json.loads((copied / "run" / "privacy.json").read_text())
    before = ledger.read_bytes()
    on_nodes(copied, "later")
    assert ledger.read_bytes().startswith(before)
    assert len(ledger.read_bytes()) > len(before)
    assert verified(copied / "run", ledger, code=0) == []
    assert heads_in(copied / "later")["0"] != heads_in(copied / "run")["0"]
    assert content["private"] is True


@pytest.mark.parametrize("kept_lines", range(1, ROUNDS))
def test_a_ledger_cut_by_whole_lines_is_named(copied: Path, kept_lines: int) -> None:
    ledger = ledger_of(copied, 2)
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:kept_lines]))
    (line,) = verified(copied / "run", ledger, code=1)
    assert line.startswith(f"ledger-2: agent 2: lacks the head that its node returned last, "
                           f"{heads_in(copied / 'run')['2']}")  # fmt: skip


def test_no_flipped_bit_of_a_ledger_is_accepted(copied: Path) -> None:
    """Of any line, the last one included, which reads as torn after some flips."""
    ledger, run = ledger_of(copied, 0), read_runs([copied / "run"])[0]
    data, drawn = ledger.read_bytes(), np.random.default_rng(0)
    last = data[:-1].rfind(b"\n") + 1
    places = [*drawn.integers(last, len(data), 150), *drawn.integers(0, last, 50)]
    for place in map(int, places):
        flipped = bytearray(data)
        flipped[place] ^= 1 << int(drawn.integers(8))
        ledger.write_bytes(bytes(flipped))
        with suppress(LedgerError):
            assert not all(holds for holds, _ in checks_of(run, [ledger])), place


def test_lines_written_anew_under_right_hashes_are_named(copied: Path) -> None:
    """Whoever makes a ledger of the same charges anew does not get the same hashes."""
    old = ledger_of(copied, 0)
    new = LedgerFile(copied / "made-anew")
    experiment = json.loads((copied / "run" / "summary.json").read_text())["experiment"]
    ((release, times),) = LedgerFile(old).released(experiment, "0").entries
    for number in range(times):
        new.charge(release, 1e-5, note=f"run 1 round {number + 1} agent 0", experiment=experiment)
    (line,) = verified(copied / "run", new.path, code=1)
    assert "lacks the head" in line


def test_a_ledger_is_not_compared_with_the_charges_of_another_run(copied: Path) -> None:
    """The record of a run names an earlier one, of which the ledger holds less."""
    folder = on_nodes(copied, "later", **{"num-server-rounds": 2})
    other = json.loads((folder / "summary.json").read_text())["experiment"]
    edited(copied / "run", lambda summary: summary.update(experiment=other), "summary.json")
    wrong = verified(copied / "run", ledger_of(copied, 0), code=1)
    assert any("agent 0: lacks the head" in line for line in wrong)


def test_a_digest_that_was_taken_out_is_named(copied: Path) -> None:
    edited(copied / "run", lambda summary: summary["sha-256"].pop("history.jsonl"), "summary.json")
    assert verified(copied / "run", code=1) == ["summary.json: holds no digest of history.jsonl"]


@pytest.mark.parametrize(
    ("change", "file", "says"),
    [
        (lambda said: said.update(rounds=40), "summary.json", "rounds is 40, and the last of"),
        (
            lambda said: said["config"].update(delta=1e-9),
            "summary.json",
            "accounts.0.delta is 1e-05, and config.delta of summary.json 1e-09",
        ),
    ],
)
def test_files_that_contradict_the_summary_are_named(
    copied: Path, change: Callable[[dict[str, Any]], None], file: str, says: str
) -> None:
    edited(copied / "run", change, file)
    assert any(says in line for line in verified(copied / "run", code=1))


def write_noise(folder: Path, factor: float) -> None:
    """Write all noise so many times as large, and every figure computed anew."""
    account = json.loads((folder / "privacy.json").read_text())
    for agent in account["agents"].values():
        for release in agent["releases"]:
            release["scale"] *= factor
        ledger = AgentLedger.from_json(json.dumps(agent["releases"]))
        agent["epsilon"] = ledger.spent(1e-5)
    worst = max(agent["epsilon"] for agent in account["agents"].values())
    for entry in account["accounts"]:
        entry.update(epsilon=worst, mu=entry["mu"] / factor)
    (folder / "privacy.json").write_text(json.dumps(account))
    (folder / "statement.html").write_bytes(page_of(read_runs([folder])[0]))


def test_an_account_of_less_than_the_history_says_was_spent_is_named(copied: Path) -> None:
    folder = copied / "run"
    (before,) = read_runs([folder])
    write_noise(folder, 2)
    wrong = verified(folder, code=1)
    spent = before.last("epsilon")
    assert spent is not None
    said = f"round {ROUNDS} of history.jsonl says that {spent[1]!r} was spent by then"
    assert any(said in line for line in wrong), wrong


def test_replies_that_were_lost_are_no_contradiction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history counts two lost messages as released, which the agent's next account lacks."""

    class Losing(InlineGrid):
        asked = 0

        def deliver(self, message: Message) -> Message | None:
            node = self.contexts[message.metadata.dst_node_id].node_config
            if message.metadata.message_type == MessageType.TRAIN and node["partition-id"] == 2:
                self.asked += 1
                if self.asked in (2, 3):
                    return None
            return super().deliver(message)

    monkeypatch.setitem(globals(), "InlineGrid", Losing)
    noise = {"partition": "quantity-skew", "target-epsilon": 0.0, "noise-scale": 0.5}
    folder = on_nodes(tmp_path, "losing", **noise, **{"round-timeout": 2.0})
    assert (folder / "statement.html").exists()
    assert verified(folder, code=0) == []
    write_noise(folder, 10)  # the round before any was lost is compared all the same
    wrong = verified(folder, code=1)
    assert any("round 1 of history.jsonl says that " in line for line in wrong), wrong


def test_a_run_without_heads_says_that_a_cut_would_not_be_noticed(copied: Path) -> None:
    edited(copied / "run", lambda summary: summary.pop("ledger-heads"), "summary.json")
    code, said, _ = privet("statement", copied / "run", "--verify", "--ledger", copied / "ledger-0")
    assert code == 0
    assert "agent 0: its node returned no head, so that a cut would not be noticed" in said


def test_heads_are_kept_over_a_resume(tmp_path: Path) -> None:
    """An agent that takes no part after the resume has its head from before."""
    on_nodes(tmp_path, "run", **{"checkpoint-every": 1, "num-server-rounds": 2})
    before = heads_in(tmp_path / "run")
    more = {"num-server-rounds": 3, "target-epsilon": 6.0, "exclude": "0"}
    more["resume"] = str(tmp_path / "run")
    after = heads_in(on_nodes(tmp_path, "again", **more))
    assert after["0"] == before["0"]
    assert after["1"] != before["1"]
    ledgers = [ledger_of(tmp_path, place) for place in range(AGENTS)]
    assert verified(tmp_path / "again", *ledgers, code=0) == []


@pytest.fixture(scope="module")
def with_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run whose statement has every row."""
    folder = tmp_path_factory.mktemp("schema")
    ages = np.random.default_rng(3).integers(20, 90, 300)
    rows = "".join(f"{a},{'ns'[a % 2]},{'well' if a < 50 else 'ill'}\n" for a in ages)
    (folder / "rows.csv").write_text("age,ward,outcome\n" + rows)
    schema = '[columns]\nage = [0, 120]\nward = ["n", "s"]\noutcome = ["ill", "well"]\n'
    (folder / "schema.toml").write_text(schema)
    keys = {"dataset": "csv", "data-path": str(folder / "rows.csv"), "partition": "iid",
            "schema": str(folder / "schema.toml"), "label-column": "outcome", "row-norm": 2.0,
            "rows-per-person": 2, "output-dir": str(folder)}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "have_matplotlib", lambda: False)
        return run_inline({**SGD, **keys}, "run").folder


@pytest.mark.parametrize("file", ["privacy.json", "summary.json"])
def test_damaged_records_give_lines_and_never_a_traceback(
    with_schema: Path, kept: Path, tmp_path: Path, file: str
) -> None:
    """Entries left out or of another type, the file cut, and numbers that JSON does not have."""
    folder = tmp_path / "run"
    shutil.copytree(with_schema, folder)
    whole = (folder / file).read_text()
    document = json.loads(whole)
    if file == "summary.json":
        document["ledger-heads"] = heads_in(kept / "run")
    drawn = np.random.default_rng(0)
    damaged = list(changes(document))
    texts = [json.dumps(changed) for changed in damaged[:: len(damaged) // 700 + 1]]
    texts += [whole[: int(place)] for place in drawn.integers(len(whole), size=20)]
    epsilon = json.loads((folder / "privacy.json").read_text())["accounts"][0]["epsilon"]
    texts += [
        whole.replace(repr(epsilon), one) for one in ("NaN", "Infinity", "-Infinity", "1e999")
    ]
    texts += [whole.replace('"agents"', r'"agents\ud800"'), whole.replace("dp-fedsgd", r"\ud800")]
    texts += ["[" * 200_000, '{"agents": ' + "[" * 200_000, "[]", "1", "", "null"]
    refused = checked = 0
    for text in texts:
        (folder / file).write_text(text)
        try:
            (run,) = read_runs([folder])
            lines = [line for _, line in checks_of(run, [ledger_of(kept, 0)])]
            write_report([folder], folder / "report.html", statement=folder / "other.html")
        except PrivetError as error:
            lines, refused = [str(error)], refused + 1
        else:
            checked += 1
        assert not any("\n" in line for line in lines)
    assert refused > 20
    assert checked > 20


def rewritten(
    run: Path,
    *,
    summary: Callable[[dict[str, Any]], object] = dict,
    account: Callable[[dict[str, Any]], object] = dict,
    history: Callable[[dict[str, Any]], object] = dict,
) -> None:
    """Change the files of a run, their digests and the page, so that all agree."""
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    for line in lines:
        history(line)
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (run / "history.jsonl").write_text(text)

    def bind(content: dict[str, Any]) -> None:
        content["sha-256"]["history.jsonl"] = hashlib.sha256(text.encode()).hexdigest()
        summary(content)

    edited(run, account, "privacy.json")
    edited(run, bind, "summary.json")


SUMMARIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "seeded": (lambda s: s["config"].update({"noise-seed": 3}), "config.noise-seed = 3"),
    "no seed": (lambda s: s["config"].update({"noise-seed": "x"}), "config.noise-seed = 'x'"),
    "paper": (lambda s: s["config"].update(sensitivity="paper"), "config.sensitivity = paper"),
    "algorithm": (lambda s: s.update(algorithm="fed-plt"), "algorithm is 'fed-plt', and config"),
    "dataset": (lambda s: s.update(dataset="patients"), "dataset is 'patients', and config"),
    "simulated": (lambda s: s.update(simulated="no"), "simulated is 'no'"),
    "length 1": (lambda s: s.update({"draw-length": 1}), "draw-length is 1, and a draw has 5"),
    "length 0": (lambda s: s.update({"draw-length": 0}), "draw-length is 0"),
    "negative": (lambda s: s.update({"draw-length": -5}), "draw-length is -5"),
    "no length": (lambda s: s.pop("draw-length"), "draw-length is None"),
    "no such array": (
        lambda s: s.update({"draw-length": 1, "trained": ["y"]}),
        "not all arrays that are trained are in the model",
    ),
}


@pytest.mark.parametrize("what", SUMMARIES)
def test_a_summary_of_which_nothing_could_be_claimed_is_named(copied: Path, what: str) -> None:
    change, expected = SUMMARIES[what]
    rewritten(copied / "run", summary=change)
    assert any(expected in line for line in verified(copied / "run", code=1))


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"to": "coordinator, and anyone who has the disk"}, "accounts.0.to is 'coordinator, and"),
        ({"to": None}, "accounts.0.to is None"),
    ],
)
def test_an_observer_of_the_coordinator_s_own_is_named(
    copied: Path, figures: dict[str, Any], expected: str
) -> None:
    rewritten(copied / "run", account=entries(**figures))
    assert any(expected in line for line in verified(copied / "run", code=1))


def test_an_assumption_of_the_coordinator_s_own_is_named(copied: Path) -> None:
    def add(account: dict[str, Any]) -> None:
        for one in account["accounts"]:
            one["assumptions"] = ["no assumption is made", *one["assumptions"]]

    rewritten(copied / "run", account=add)
    line = "accounts.0.assumptions has a line that no release bears out: no assumption is made"
    assert any(line in one for one in verified(copied / "run", code=1))


def test_an_agent_that_was_left_out_is_named_by_a_ledger_that_charged_it(copied: Path) -> None:
    """As where one operator's file has the charges of two of its agents."""
    shared = copied / "shared"
    content = json.loads((copied / "run" / "privacy.json").read_text())
    experiment = json.loads((copied / "run" / "summary.json").read_text())["experiment"]
    for name in ("1", "2"):
        account = AgentLedger.from_json(json.dumps(content["agents"][name]["releases"]))
        for release, times in account.entries:
            for number in range(times):
                LedgerFile(shared).charge(
                    release, 1e-5, None, f"run 1 round {number + 1} agent {name}",
                    experiment=experiment,
                )  # fmt: skip

    def leave_out(done: dict[str, Any]) -> None:
        done["participants"] = [name for name in done["participants"] if name != "1"]

    rewritten(
        copied / "run",
        account=without_agent,
        history=leave_out,
        summary=lambda summary: summary.pop("ledger-heads"),
    )
    line = "shared: charges agent 1 of this run, of which privacy.json has no account"
    assert verified(copied / "run", shared, code=1) == [line]


def test_an_agent_is_set_apart_only_where_its_account_is_above_the_target(copied: Path) -> None:
    def hide(account: dict[str, Any]) -> None:
        account["apart"] = ["1"]

    rewritten(copied / "run", account=hide)
    line = "apart is ['1'], by the target and the releases []"
    assert any(line in one for one in verified(copied / "run", code=1))


def test_an_account_above_the_target_is_stated_apart(copied: Path) -> None:
    """Its agent's own figure stands on the page, and the others' is theirs."""
    run = copied / "run"
    before = json.loads((run / "privacy.json").read_text())

    def dearer(account: dict[str, Any]) -> None:
        account["agents"]["1"]["releases"][0]["times"] *= 9
        releases = json.dumps(account["agents"]["1"]["releases"])
        ledger = AgentLedger.from_json(releases)
        account["agents"]["1"]["epsilon"] = ledger.spent(1e-5)
        account["apart"] = ["1"]
        for one in account["accounts"]:
            one["assumptions"] += apart_line(["1"], {"1": ledger}, 1e-5)

    rewritten(run, account=dearer)
    assert verified(run, code=0) == []
    after = json.loads((run / "privacy.json").read_text())
    assert after["accounts"][0]["epsilon"] == before["accounts"][0]["epsilon"]
    page = (run / "statement.html").read_text()
    assert "agent 1 by its own account: 1" in page
    rewritten(run, account=lambda account: account.pop("apart"))
    assert verified(run, code=1)


@pytest.mark.parametrize("what", FORGED)
def test_no_statement_is_made_of_figures_that_the_releases_do_not_bear_out(
    copied: Path, what: str
) -> None:
    change, _ = FORGED[what]
    folder = copied / "run"
    edited(folder, change, "privacy.json")
    assert refused(folder)


def refused(folder: Path) -> str:
    (folder / "statement.html").unlink(missing_ok=True)
    code, _, err = privet("statement", folder)
    assert code != 0
    assert err.count("\n") == 1
    assert not (folder / "statement.html").exists()
    return str(err)


def test_no_statement_is_made_of_an_account_of_before_a_resume(tmp_path: Path) -> None:
    """Its releases may be as many as the rounds that were recorded, and bear its figures out."""
    folder = on_nodes(tmp_path, "run", **{"target-epsilon": 0.0, "noise-scale": 1.0})
    earlier = (folder / "privacy.json").read_bytes()
    more = {"num-server-rounds": ROUNDS + 2, "resume": str(folder)}
    on_nodes(tmp_path, "run", **{"target-epsilon": 0.0, "noise-scale": 1.0, **more})
    history = (folder / "history.jsonl").read_bytes()
    lines = history.splitlines(keepends=True)
    (folder / "history.jsonl").write_bytes(b"".join(lines[:ROUNDS]))
    (folder / "privacy.json").write_bytes(earlier)
    summary = json.loads((folder / "summary.json").read_text())
    summary["sha-256"]["history.jsonl"] = hashlib.sha256(b"".join(lines[:ROUNDS])).hexdigest()
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "summary.json: privacy is 'epsilon" in refused(folder)


@pytest.mark.parametrize(
    ("file", "lost"),
    [
        *[(name, "its digest") for name in BOUND_FILES],
        *[(name, "all digests") for name in BOUND_FILES],
        *[(name, "its content") for name in BOUND_FILES],
        ("model.npz", "the file"),
    ],
)
def test_no_statement_is_made_without_the_digests_of_the_files(
    copied: Path, file: str, lost: str
) -> None:
    folder = copied / "run"
    summary = json.loads((folder / "summary.json").read_text())
    if lost == "its digest":
        del summary["sha-256"][file]
    elif lost == "all digests":
        del summary["sha-256"]
    elif lost == "the file":
        (folder / file).unlink()
    else:
        (folder / file).write_bytes((folder / file).read_bytes() + b"\n")
    (folder / "summary.json").write_text(json.dumps(summary))
    said = refused(folder)
    assert f"SHA-256 of {file}" in said or f"{file} is not the file whose SHA-256" in said
