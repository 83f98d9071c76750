"""A coordinator that asks agents to share out noise, and tries to see less of it than is charged.

Nodes trust masked sums of pinned peers. All messages are the coordinator's own; it can choose
rosters, keys, settings and models, and tell every node something else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from privet.agents import masking
from privet.agents.masking import task_digest
from privet.client_apps import client_app
from privet.kernel import (
    Binding,
    GivenMasks,
    KeyPair,
    PairwiseMasks,
    Told,
    gaussian_epsilon,
    key_pair,
    shared_spacing,
)
from privet.kernel.events import SHARED_GRID
from privet.kernel.masks import apply_streams, key_stream
from privet.problems import L2, RidgeRegression
from privet.sim.empirical import mu_bound
from privet.sim.engine import InlineGrid
from privet.sim.trusting import trusting_nodes
from privet.strategies import DPFedSGD
from privet.wire import ENROL, ring
from privet.wire.contract import (
    CONTRACT_VERSION,
    agent_record,
    encode_settings,
    is_need_state,
    read_update,
    shared_record,
)
from privet.wire.enrolment import read_enrolment
from privet.wire.payload import to_payload
from privet.wire.rosters import read_signature, roster_question, with_roster, with_signatures
from redteam.harness import DELTA, differ, privet, privet_json
from support.adversary import ZeroNoise
from support.audit import epsilon_lower_bound
from support.told import own_log

ROWS, DIM, SCALE = 4, 3, 0.5
SENSITIVITY = 2.0 / ROWS
SETTINGS: dict[str, Any] = {
    **DPFedSGD(
        clip=1.0,
        noise_scale=SCALE,
        step_size_base=0.1,
        step_size_rule="constant",
        secure_sum=True,
        noise_sharing=True,
    ).half.settings(),
    "seed": 0,
}
Words = NDArray[np.uint64]


def problem(place: int) -> RidgeRegression:
    rng = np.random.default_rng(place)
    return RidgeRegression(
        rng.standard_normal((ROWS, DIM)), rng.standard_normal(ROWS), regularizer=L2(0.2)
    )


class Federation:
    """Nodes "0", "1", ... of whom each has a ledger and has pinned the keys of all."""

    def __init__(
        self, folder: Path, count: int = 6, colluders: int = 2, *, budget: float = 1e3, **rules: Any
    ) -> None:
        self.folder = folder
        configs = trusting_nodes(folder, map(str, range(count)), colluders)
        for place, config in enumerate(configs):
            config |= {
                "max-epsilon": budget,
                "delta": DELTA,
                "ledger-path": str(folder / f"{place}.jsonl"),
                **{key.replace("_", "-"): value for key, value in rules.items()},
            }
        self.configs = configs
        self.app = client_app(
            "dp-fedsgd", lambda context: problem(int(context.node_config["partition-id"]))
        )
        self.grid = InlineGrid(self.app, configs)
        self.keys: dict[str, bytes] = {}
        self.signed: dict[tuple[Any, ...], dict[str, bytes]] = {}
        self.claims: dict[str, float] = {}

    @classmethod
    def of(cls, app: Any, configs: list[dict[str, Any]]) -> Federation:
        """Return one of given nodes, which have no limits."""
        made = cls.__new__(cls)
        made.grid, made.keys, made.claims, made.signed = InlineGrid(app, configs), {}, {}, {}
        return made

    @property
    def nodes(self) -> list[int]:
        return sorted(self.grid.node_configs)

    def enrol(self, experiment: str = "e", **question: Any) -> dict[str, bytes]:
        asked = {
            "contract": CONTRACT_VERSION,
            "protocol": "dp-fedsgd",
            "version": 1,
            "experiment": experiment,
            "quiet": True,
            "secure-sum": True,
            **question,
        }
        for place, node in enumerate(self.nodes):
            reply = self.send(node, RecordDict({"privet": ConfigRecord(asked)}), ENROL)
            self.keys[str(place)] = read_enrolment(reply.content).public_key
        return self.keys

    def send(self, node: int, content: RecordDict, kind: str = "train") -> Message:
        (reply,) = self.grid.send_and_receive([Message(content, node, kind)])
        return reply

    def signatures(self, shared: ConfigRecord) -> dict[str, bytes]:
        """Return the signatures of a roster by those who give one; each is asked once."""
        header = [shared[key] for key in ("protocol", "version", "settings", "payload")]
        question = roster_question(shared, task_digest(*header))  # type: ignore[arg-type]
        asked = tuple(question.items())
        if asked not in self.signed:
            self.signed[asked] = {}
            for name, node in zip(self.keys, self.nodes, strict=False):
                reply = self.send(node, RecordDict({"privet": question}), ENROL)
                if reply.has_content():
                    self.signed[asked][name] = read_signature(reply.content, "privet", name)
        return self.signed[asked]

    def ask(
        self,
        name: str,
        roster: Mapping[str, bytes] | Iterable[str] = (),
        *,
        attempt: int = 1,
        round_: int = 1,
        x: float = 0.0,
        protocol: str = "dp-fedsgd",
        ledger: str = "",
        **changes: Any,
    ) -> Words | str:
        """Return the words of an agent's upload, or why there is none."""
        settings = {**SETTINGS, **{key.replace("_", "-"): v for key, v in changes.items()}}
        arrays = {"x": np.full(DIM, x)}
        shared = shared_record(protocol, 1, "e", round_, encode_settings(settings), arrays)
        if attempt:
            keys = roster if isinstance(roster, Mapping) else {n: self.keys[n] for n in roster}
            shared = with_roster(shared, attempt, dict(keys) or self.keys)
            shared = with_signatures(shared, self.signatures(shared))
        own = agent_record(0, None, ledger)
        with own_log() as said:
            reply = self.send(
                self.nodes[int(name)], RecordDict({"privet": shared, "privet.agent": own})
            )
        self.said = said.text
        if reply.has_error():
            return str(reply.error.reason)
        if is_need_state(reply.content):
            return "need-state"
        self.update = read_update(reply.content, protocol, 1, round_)
        self.claims[name] = self.update.epsilon
        if not attempt:
            return self.update.arrays()["g"]
        return ring.from_bytes(self.update.payload, {"g": (DIM,), ring.MEMBERS: ()}).words

    def asked_all(self, names: Iterable[str] = (), **message: Any) -> list[Words]:
        found = [self.ask(name, names or (), **message) for name in names or self.keys]
        assert not any(isinstance(one, str) for one in found), found
        return found  # type: ignore[return-value]

    def charged(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"{name}.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [json.loads(line)["release"] for line in lines]


def cancelled(words: Iterable[Words]) -> NDArray[np.int64] | None:
    """Return the sums of what was masked, None where masks are left."""
    parts = list(words)
    total = np.add.reduce(parts).view(np.int64)
    return total[:DIM] if total[DIM] == len(parts) * 2**40 else None


def loss(honest: int) -> float:
    return SENSITIVITY / (SCALE * math.sqrt(honest))


def test_an_attempt_is_charged_for_the_noise_of_those_who_do_not_collude(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    uploads = federation.asked_all()
    assert cancelled(uploads) is not None
    for name in federation.keys:
        (charged,) = federation.charged(name)
        assert (charged["agents"], charged["colluders"]) == (6, 2)
        assert charged["scale"] == SCALE
    said = federation.update.epsilon
    assert gaussian_epsilon(loss(4), DELTA) < said < gaussian_epsilon(loss(4) * 1.001, DELTA)
    # All but one are missing: nothing is left to see.
    assert all(
        cancelled(uploads[:place] + uploads[place + 1 :]) is None for place in range(len(uploads))
    )


def test_a_smaller_roster_costs_more_and_at_last_the_whole_local_price(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    epsilons = []
    for attempt, count in enumerate((6, 4, 3), start=1):
        names = [str(place) for place in range(count)]
        if attempt == 3:
            federation.enrol()  # else rosters must not shrink by one
        federation.asked_all(names, attempt=attempt, round_=attempt)
        epsilons.append(federation.charged("0")[-1])
    honest = [max(1, one["agents"] - one["colluders"]) for one in epsilons]
    assert honest == [4, 2, 1]


def test_a_node_with_too_small_a_budget_refuses_the_small_roster(tmp_path: Path) -> None:
    enough = gaussian_epsilon(loss(4) * 1.001, DELTA)
    federation = Federation(tmp_path, budget=enough)
    federation.enrol()
    refusal = federation.ask("0", ["0", "1", "2"])
    assert refusal == f"agent 0: {Told.BUDGET}"
    assert "above max-epsilon" in federation.said
    assert federation.charged("0") == []
    assert not isinstance(federation.ask("0", round_=2), str)


def test_the_least_noise_of_a_node_counts_the_sum(tmp_path: Path) -> None:
    federation = Federation(tmp_path, min_noise=1.9)  # sqrt(4) SCALE / SENSITIVITY = 2
    federation.enrol()
    assert "min-noise" in str(federation.ask("0", ["0", "1", "2", "3"]))
    assert not isinstance(federation.ask("0", round_=2), str)


def test_thresholds_in_a_message_are_not_those_of_the_node(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    said = {"colluders": 0, "trust-colluders": 0, "trust": "sum", "agents": 1000}
    assert not isinstance(federation.ask("0", **said), str)
    assert federation.charged("0")[0]["colluders"] == 2
    assert federation.charged("0")[0]["agents"] == 6


def test_peers_that_are_not_pinned_are_refused_before_the_charge(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    stranger = {**federation.keys, "mallory": key_pair().public}
    refusal = federation.ask("0", stranger)
    assert refusal == f"agent 0: {Told.ROSTER}"
    assert "mallory is no peer whose key this node has pinned" in federation.said
    assert federation.charged("0") == []


def masks_of(me: str, keys: KeyPair, binding: Binding, other: str) -> Words:
    """Return the mask that one agent would add for another, by the keys of the run alone."""
    words = np.zeros(DIM + 1, np.uint64)
    key = PairwiseMasks(keys).pair_keys(me, binding)[other]
    apply_streams(words, [(me < other, key_stream(key))])
    return words


def unmasked_with_own_keys(federation: Federation, **changes: Any) -> Words | str:
    """Return an upload less all that a coordinator can know that put its keys in the roster, or why
    there is none."""
    federation.enrol()
    mine = {name: key_pair() for name in federation.keys if name != "0"}
    roster = {"0": federation.keys["0"], **{name: keys.public for name, keys in mine.items()}}
    words = federation.ask("0", roster, **changes)
    if isinstance(words, str):
        return words
    settings = {**SETTINGS, **{key.replace("_", "-"): value for key, value in changes.items()}}
    payload = to_payload({"x": np.zeros(DIM)})
    grid = SHARED_GRID if settings["noise-sharing"] else 0.0
    task = task_digest("dp-fedsgd", 1, encode_settings(settings), payload, grid)
    binding = Binding("e", 1, 1, tuple(roster.items()), task)
    return sum((masks_of(name, keys, binding, "0") for name, keys in mine.items()), words)


def test_a_coordinator_with_keys_of_its_own_in_the_roster_gets_nothing(tmp_path: Path) -> None:
    """It agrees on the run's keys with the victim, but lacks the signatures of the peers."""
    federation = Federation(tmp_path)
    assert unmasked_with_own_keys(federation) == f"agent 0: {Told.UNSIGNED}"
    assert "agent 1 has not signed these keys" in federation.said
    assert federation.charged("0") == []


def test_without_pinned_keys_that_attack_works_and_so_all_is_charged(tmp_path: Path) -> None:
    """The same arithmetic on an ordinary secure sum: the test above can fail."""
    federation = Federation(tmp_path)
    for config in federation.configs:
        for key in [key for key in config if key.startswith("trust")]:
            del config[key]
    federation.grid = InlineGrid(federation.app, federation.configs)
    left = unmasked_with_own_keys(federation, noise_sharing=False)
    assert not isinstance(left, str)
    assert int(left.view(np.int64)[DIM]) == 2**40
    (charged,) = federation.charged("0")
    assert "agents" not in charged


@pytest.mark.parametrize(
    "told",
    [
        {"noise_scale": 0.1},
        {"clip": 0.5},
        {"x": 0.25},
        {"seed": 1},
        {"round_": 2},
        {"attempt": 2},
    ],
    ids=lambda told: next(iter(told)),
)
def test_peers_who_are_told_something_else_share_no_mask(
    told: dict[str, Any], tmp_path: Path
) -> None:
    """As peers that are to add less noise, or to compute at another model."""
    federation = Federation(tmp_path)
    federation.enrol()
    victim = federation.ask("0")
    assert not isinstance(victim, str)
    others = [federation.ask(name, **told) for name in federation.keys if name != "0"]
    if told.keys() & {"round_", "attempt"}:
        assert not any(isinstance(one, str) for one in others)
        assert cancelled([victim, *others]) is None  # type: ignore[list-item]
    else:  # of one attempt they have signed another task
        assert {str(one)[9:] for one in others} == {Told.UNSIGNED}


@pytest.mark.parametrize("sharing", [True, False])
def test_peers_whose_library_has_another_grid_share_no_mask_where_they_share_noise(
    sharing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares of noise in cells of different widths do not add up to what is charged."""
    federation = Federation(tmp_path)
    federation.enrol()
    found = [federation.ask("0", noise_sharing=sharing)]
    monkeypatch.setattr(masking, "SHARED_GRID", SHARED_GRID / 2.0)
    found += [federation.ask(name, noise_sharing=sharing) for name in [*federation.keys][1:]]
    assert not any(isinstance(one, str) for one in found)
    assert (cancelled(found) is None) is sharing  # type: ignore[arg-type]


def test_a_repeated_request_gets_nothing(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    federation.asked_all()
    again = federation.ask("0")
    assert isinstance(again, str)
    assert "a mask is used once" in again
    assert len(federation.charged("0")) == 1


def test_every_attempt_draws_afresh_and_is_charged(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    sums = [cancelled(federation.asked_all(attempt=attempt)) for attempt in (1, 2, 3)]
    assert all(one is not None for one in sums)
    for one, other in combinations(sums, 2):
        assert differ(one, other)  # type: ignore[arg-type]
    assert all(len(federation.charged(name)) == 3 for name in federation.keys)


def test_a_node_that_forgets_its_upload_masks_no_other_with_it(tmp_path: Path) -> None:
    """As one that is killed before it stores its state, or that two processes serve at once.

    Its noise could be averaged away otherwise, and that of the others would be all that is left.
    """
    federation = Federation(tmp_path)
    federation.enrol()
    context = federation.grid.contexts[federation.nodes[0]]
    before = dict(context.state.items())

    def forget() -> None:
        for key in list(context.state):
            del context.state[key]
        for key, record in before.items():
            context.state[key] = record

    assert not isinstance(federation.ask("0"), str)
    for told in ({}, {"x": 0.5}, {"noise_scale": 0.1}):
        forget()
        why = "has not signed" if told else "masked an upload of this attempt before"
        assert why in str(federation.ask("0", **told))
    forget()
    assert not isinstance(federation.ask("0", round_=2), str)
    assert len(federation.charged("0")) == 2
    federation.enrol()  # other keys, other masks, and the same sums before
    assert "a mask is used once" in str(federation.ask("0"))
    assert not isinstance(federation.ask("0", round_=3), str)


def test_a_file_of_used_masks_that_was_spoilt_closes_the_node(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    used = tmp_path / "0.key.used"
    used.write_bytes(b"no table of masks" * 100)
    assert "cannot write down which masks it uses" in str(federation.ask("0"))
    assert federation.charged("0") == []
    used.unlink()
    assert not isinstance(federation.ask("0"), str)
    assert used.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_read_or_write_closes_the_node(mode: int, tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    (tmp_path / "0.key").chmod(mode)
    assert "this node's keys cannot be read or used" in str(federation.ask("0"))
    assert federation.charged("0") == []
    (tmp_path / "0.key").chmod(0o400)
    assert not isinstance(federation.ask("0"), str)


def test_a_node_that_cannot_write_down_its_masks_uses_none(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    (tmp_path / "other").touch()
    for made in (Path.mkdir, lambda path: path.symlink_to(tmp_path / "other")):
        made(tmp_path / "0.key.used")
        refusal = str(federation.ask("0"))
        assert "cannot write down which masks it uses" in refusal
        assert str(tmp_path) not in refusal
        assert federation.charged("0") == []
        (tmp_path / "0.key.used").rename(tmp_path / f"away-{len(list(tmp_path.iterdir()))}")
        federation.enrol()
    assert (tmp_path / "other").read_bytes() == b""


def test_a_clear_upload_with_a_share_of_the_noise_is_charged_in_full(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    found = federation.ask("0", attempt=0, secure_sum=False)
    assert not isinstance(found, str)
    (charged,) = federation.charged("0")
    assert "agents" not in charged
    assert federation.update.epsilon > gaussian_epsilon(loss(1), DELTA)


def test_an_agent_enrolled_for_sums_sends_nothing_in_clear(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    refusal = federation.ask("0", attempt=0, secure_sum=False)
    assert "in the clear" in str(refusal)
    assert federation.charged("0") == []


def test_a_node_that_trusts_nobody_takes_no_part(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    config = federation.grid.node_configs[federation.nodes[0]]
    for key in [key for key in config if key.startswith("trust")]:
        del config[key]
    federation.grid = InlineGrid(federation.app, [config, *federation.configs[1:]])
    federation.enrol()
    refusal = federation.ask("0")
    assert refusal == f"agent 0: {Told.PROOF}"
    assert "does not trust other agents" in federation.said
    assert federation.charged("0") == []
    assert not isinstance(federation.ask("0", round_=2, noise_sharing=False), str)
    assert "agents" not in federation.charged("0")[0]


def test_a_ledger_holds_for_one_number_of_colluders(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    assert not isinstance(federation.ask("0"), str)
    for config in federation.configs:
        config["trust-colluders"] = 1
    federation.grid = InlineGrid(federation.app, federation.configs)
    federation.enrol()
    assert "this node's ledger cannot take the charge" in str(federation.ask("0", round_=2))
    assert len(federation.charged("0")) == 1


def test_seeded_noise_and_given_masks_are_refused(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    assert "noise-seed" in str(federation.ask("0", noise_seed=1))
    federation.app = client_app(
        "dp-fedsgd", lambda context: problem(0), mask_factory=lambda agent, round_: GivenMasks({})
    )
    federation.grid = InlineGrid(federation.app, federation.configs)
    federation.enrol()
    assert "handed in from outside" in str(federation.ask("0"))
    assert federation.charged("0") == []


def test_masks_given_to_a_node_without_limits_hide_nothing_and_are_charged_so(
    tmp_path: Path,
) -> None:
    federation = Federation(tmp_path)
    for config in federation.configs:
        for key in ("max-epsilon", "delta", "ledger-path"):
            del config[key]
    pairs = {
        (str(i), str(j)): np.zeros(DIM + 1, np.uint64) for i in range(6) for j in range(i + 1, 6)
    }
    federation.app = client_app(
        "dp-fedsgd",
        lambda context: problem(0),
        mask_factory=lambda agent, round_: GivenMasks(pairs),
    )
    federation.grid = InlineGrid(federation.app, federation.configs)
    federation.enrol()
    assert not isinstance(federation.ask("0"), str)
    assert federation.update.epsilon > gaussian_epsilon(loss(1), DELTA)


@pytest.mark.parametrize("spoilt", ["missing", "another's", "twice", "not a key", "own"])
def test_keys_that_cannot_be_used_close_the_node(spoilt: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    peers = tmp_path / "peers.toml"
    lines = peers.read_text().splitlines()
    key = tmp_path / "0.key"
    if spoilt == "missing":
        peers.unlink()
    elif spoilt == "another's":
        key.write_bytes((tmp_path / "1.key").read_bytes())
    elif spoilt == "twice":
        peers.write_text("\n".join([*lines, lines[1].replace('"1"', '"7"')]))
    elif spoilt == "not a key":
        peers.write_text("\n".join([*lines, '"7" = "AAAA"']))
    else:
        peers.write_text("\n".join([*lines[1:], lines[0].replace('"0"', '"7"')]))
    refusal = federation.ask("0")
    assert "this node's keys cannot be read or used" in str(refusal)
    assert str(tmp_path) not in str(refusal)
    assert federation.charged("0") == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"trust": "all"}, "trust = 'all', expected none or sum"),
        ({"trust-colluders": -1}, "trust-colluders = -1"),
        ({"trust-colluders": True}, "trust-colluders = True"),
        ({"trust-key": "sum.key"}, "trust-key = 'sum.key', expected an absolute path"),
        ({"trust-peers": None}, "trust-peers is missing"),
        ({"trust": "none"}, "trust-colluders is not used without trust = 'sum'"),
        ({"trust-coluders": 1}, "unknown key 'trust-coluders'; did you mean trust-colluders?"),
    ],
)
def test_a_trust_that_cannot_be_read_closes_the_node(
    changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    config = {**federation.configs[0], **changes}
    config = {key: value for key, value in config.items() if value is not None}
    federation.grid = InlineGrid(federation.app, [config])
    assert federation.ask("0") == f"agent 0: {Told.RULES_UNREADABLE}"
    assert line in federation.said
    assert federation.charged("0") == []


def test_releases_in_the_file_say_the_adversary(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.enrol()
    federation.asked_all()
    code, said = privet("ledger", str(tmp_path / "0.jsonl"))
    assert code == 0
    assert "towards the coordinator and at most 2 other agents" in said


PLANNED = (
    *("algorithm=dp-fedsgd", "clip=1", "secure-sum=true", "noise-sharing=true", "num-agents=8"),
    *("dataset=synthetic", "num-server-rounds=6"),
)


@pytest.mark.parametrize("noise", ["target-epsilon=1.25", "noise-scale=0.02"])
def test_the_planner_and_the_run_agree_to_the_last_digit(
    noise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planned = privet_json("account", *PLANNED, noise, "colluders=2")
    privet_json("run", *PLANNED, noise, "--colluders", "2")
    (account,) = tmp_path.rglob("privacy.json")
    written = json.loads(account.read_text())
    assert written["accounts"][0]["epsilon"] == planned["epsilon"]
    assert "at most 2 other agents, in sums of 8 or more" in written["reason"]
    assert written["reason"] == planned["reason"]


def test_more_colluders_cost_more(tmp_path: Path) -> None:
    costs = [
        privet_json("account", *PLANNED, "noise-scale=0.02", f"colluders={count}")["epsilon"]
        for count in (0, 2, 5, 7)
    ]
    assert costs == sorted(costs)
    alone = privet_json("account", *PLANNED[:2], *PLANNED[4:], "noise-scale=0.02")["epsilon"]
    assert costs[3] == pytest.approx(alone, rel=5e-4)  # none but one's own
    code, said = privet("account", *PLANNED, "noise-scale=0.02")
    assert code != 0
    assert "noise-sharing = true: give colluders" in said


# ------------------------------------------------------------------ audits of the sum

SUMS, AUDITED, KNOWN = 5000, 6, 2


def audited_sums(folder: Path, side: int, scale: float) -> tuple[NDArray[np.float64], float]:
    """Return the first coordinate of sums without the colluders' part, and the epsilon said.

    Agent 0 has one of two neighbours as its data, by ``side``; the last two agents add no noise
    and tell the coordinator what they uploaded: it takes their part out of every sum.
    """
    data = [saturated(side if place == 0 else 1) for place in range(AUDITED)]

    def problem_of(context: Any) -> RidgeRegression:
        return data[int(context.node_config["partition-id"])]

    honest = client_app("dp-fedsgd", problem_of)
    silent = client_app(
        "dp-fedsgd",
        problem_of,
        noise_factory=lambda agent, round_: ZeroNoise(),  # type: ignore[arg-type, return-value]
    )

    def app(message: Message, context: Any) -> Message:
        place = int(context.node_config["partition-id"])
        return (silent if place >= AUDITED - KNOWN else honest)(message, context)

    folder.mkdir()
    configs = trusting_nodes(folder, map(str, range(AUDITED)), KNOWN)
    federation = Federation.of(app, configs)
    federation.enrol()
    unit = shared_spacing(scale, DIM) * ring.UNIT / 2.0**40
    values, claim = np.empty(SUMS), 0.0
    for number in range(SUMS):
        uploads = [
            federation.ask(name, round_=number + 1, noise_scale=scale) for name in federation.keys
        ]
        assert not any(isinstance(one, str) for one in uploads), uploads
        claim = claim or federation.claims["0"]
        total = cancelled(uploads)  # type: ignore[arg-type]
        assert total is not None
        values[number] = total[0] * unit
    return values, claim


def saturated(side: int) -> RidgeRegression:
    """Return data whose record 0 has a clipped gradient of +1 or -1 along the first coordinate."""
    rows = np.zeros((ROWS, DIM))
    rows[:, 0] = 1.0
    targets = np.zeros(ROWS)
    targets[0] = 50.0 if side else -50.0
    return RidgeRegression(rows, targets, regularizer=L2(0.2))


@pytest.mark.slow
def test_an_observer_of_the_sum_with_all_colluders_proves_no_more_than_is_said(
    tmp_path: Path,
) -> None:
    """By Clopper and Pearson, and, as the sum is Gaussian, by the gap of its means.

    With the noise of one agent more in the account the second would fail. Margins: 40 standard
    deviations below the claim and 8 above the share of it, and 5.3 for the last line.
    """
    honest, mu = AUDITED - KNOWN, 1.5
    scale = SENSITIVITY / (mu * math.sqrt(honest))
    first, claim = audited_sums(tmp_path / "0", 0, scale)
    second, same = audited_sums(tmp_path / "1", 1, scale)
    assert claim == same
    assert gaussian_epsilon(mu, DELTA) < claim < gaussian_epsilon(mu * 1.001, DELTA)
    bound = epsilon_lower_bound(first, second, DELTA, confidence=1 - 1e-4)
    assert 0.15 * claim <= bound <= claim
    assert mu_bound(first, second, error=3e-7) <= mu
    assert mu_bound(first, second, error=0.3) > SENSITIVITY / (scale * math.sqrt(honest + 1))
