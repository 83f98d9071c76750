"""Texts of the other side that cost more to evaluate than to send: a second and 64 MB at most."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict

from privet.kernel import AgentLedger, Release
from privet.kernel.agent_ledger import LONGEST_ACCOUNT
from privet.kernel.loss_law import MOST_POINTS
from privet.kernel.sampled import sampled_epsilon
from privet.sim.engine import InlineGrid
from privet.strategies import DPFedSGD
from privet.wire import ENROL, pack
from privet.wire.contract import agent_record, encode_settings, shared_record
from redteam.harness import SETTINGS, Node, problem, sent, start
from support.federations import app_of, logistic_agents

SECONDS, MEGABYTES = 1.0, 64.0
"""What a hostile message may cost above an honest one, on a machine that is not busy."""
GIVEN = {"scale": 1.0, "sensitivity": 1.0, "relation": "add-remove"}


def text(*releases: dict[str, Any]) -> str:
    return json.dumps([{"mechanism": "gaussian", **GIVEN, **one} for one in releases])


REVIEWED = text(
    {"sampling": 0.01, "count": 10**6, "times": 10**9}, {"sampling": 0.5, "times": 10**12}
)
ACCOUNTS = {
    "two releases, 1e15 uses": REVIEWED,
    "a rate of 2e-8": text({"sampling": 1.9e-8, "scale": 0.21, "times": 1}),
    "the largest count of the largest count": text({"count": 10**12, "times": 10**12}),
    "many sampled": text(*({"sampling": 0.3, "scale": 1 + i / 97} for i in range(64))).replace(
        "}", ', "times": 1000000}'
    ),
    "wide beside narrow": text(
        {"sampling": 1e-9, "scale": 9e5, "times": 10**12},
        {"sampling": 0.5, "scale": 0.04, "times": 1},
    ),
    "sampled beside Gaussian": text(
        {"sampling": 1e-3, "scale": 0.5, "times": 10**6}, {"scale": 3.0, "times": 10**6}
    ),
    "small and large Laplace": text(
        *(
            {"mechanism": "laplace", "scale": 10.0**i, "times": 10**7, "relation": "replace-one"}
            for i in range(-1, 5)
        )
    ),
    "many Laplace": text(
        *(
            {"mechanism": "laplace", "scale": 1.2**i, "times": 40, "relation": "replace-one"}
            for i in range(64)
        )
    ),
    "as long as is read": text(
        *({"scale": 1 + i * 1e-4, "sampling": 0.3, "times": 1} for i in range(19_000))
    ),
    "longer": "[" + "1," * LONGEST_ACCOUNT,
    "nested": "[" * 10**5,
    "empty objects": "[" + "{}," * 500_000 + "{}]",
    "a number of a million digits": '[{"times": ' + "9" * 10**6 + "}]",
}


def hostile(seed: int) -> str:
    """Return a random account: few or many releases, of any noise, rate and number."""
    random = np.random.default_rng(seed)
    sampled = bool(random.integers(2))
    releases: list[dict[str, Any]] = []
    for _ in range(random.choice([1, 2, 5, 64, 300])):
        release: dict[str, Any] = {"scale": float(10 ** random.uniform(-1.5, 6))}
        kind = random.integers(3)
        if sampled and kind:
            release["sampling"] = float(10 ** random.uniform(-9, -1e-3))
        elif kind:
            release["mechanism"] = "laplace"
        release["count"] = int(10 ** random.uniform(0, random.choice([1, 12])))
        release["times"] = int(10 ** random.uniform(0, random.choice([1, 4, 12])))
        releases.append(release)
    return text(*releases)


class Cost:
    """The processor time and the peak of memory of a block."""

    def __enter__(self) -> Cost:
        tracemalloc.start()
        self._began = time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.process_time() - self._began
        self.megabytes = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()

    def require(self, honest: Cost) -> None:
        # Tracing memory makes what is traced up to four times as slow.
        assert self.seconds <= honest.seconds + 4 * SECONDS
        assert self.megabytes <= honest.megabytes + MEGABYTES


def cost(work: Callable[[], object]) -> Cost:
    with Cost() as found:
        work()
    return found


HONEST = AgentLedger.of(
    [(Release("gaussian", 1.0, relation="add-remove", sampling=0.1), 100)]
).to_json()


def message(account: str) -> RecordDict:
    settings = {**SETTINGS["dp-fedsgd"], "relation": "add-remove"}
    x = np.zeros(4)
    own = agent_record(0, pack(start("dp-fedsgd", x)), account)
    shared = shared_record("dp-fedsgd", 1, "e", 1, encode_settings(settings), sent("dp-fedsgd", x))
    return RecordDict({"privet": shared, "privet.agent": own})


@pytest.fixture
def honest(tmp_path: Path) -> Cost:
    (tmp_path / "honest").mkdir()
    node = Node(tmp_path / "honest", problem(), relation="add-remove")
    node.send(message(HONEST))
    return cost(lambda: node.send(message(HONEST)))


@pytest.mark.parametrize("name", ACCOUNTS)
def test_an_account_that_a_coordinator_sends_costs_a_node_little(
    name: str, tmp_path: Path, honest: Cost
) -> None:
    node = Node(tmp_path, problem(), relation="add-remove")
    cost(lambda: node.send(message(ACCOUNTS[name]))).require(honest)


def test_random_accounts_cost_a_node_little(tmp_path: Path, honest: Cost) -> None:
    for seed in range(40):
        folder = tmp_path / str(seed)
        folder.mkdir()
        node = Node(folder, problem(), relation="add-remove")
        cost(lambda: node.send(message(hostile(seed)))).require(honest)  # noqa: B023


# ---------------------------------------------------------------------- the coordinator


class Lying(InlineGrid):
    """A grid whose agent 1 states an account of its own, enrolled or with its uploads."""

    def __init__(self, account: str, where: str) -> None:
        rules = {"relation": "add-remove", "num-examples": 40}
        nodes = [{"partition-id": agent, **rules} for agent in range(3)]
        super().__init__(app_of(logistic_agents(3), "dp-fedsgd"), nodes)
        self.account, self.where = account, where

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        agent = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        if reply is None or not reply.has_content() or agent != 1:
            return reply
        record: Any = reply.content["privet"]
        if message.metadata.message_type == ENROL:
            if self.where == "enrolment":
                record["ledger"] = self.account
        elif self.where == "upload":
            about = {**json.loads(record["about"]), "ledger": self.account}
            record["about"] = json.dumps(about)
        return reply


def played(account: str, where: str) -> Any:
    strategy = DPFedSGD(
        num_agents=3,
        clip=1.0,
        noise_scale=1.0,
        relation="add-remove",
        batch="poisson",
        step_size_base=0.1,
    )
    start = ArrayRecord({"x": Array(np.zeros(4))})
    return strategy.start(Lying(account, where), start, num_rounds=2)


@pytest.fixture(scope="module")
def usual() -> Cost:
    played("", "")
    return cost(lambda: played("", ""))


@pytest.mark.parametrize("where", ["enrolment", "upload"])
@pytest.mark.parametrize("name", ACCOUNTS)
def test_an_account_that_an_agent_states_ends_no_run(name: str, where: str, usual: Cost) -> None:
    results: list[Any] = []
    found = cost(lambda: results.append(played(ACCOUNTS[name], where)))
    (result,) = results
    assert len(result.history) == 2
    assert {"0", "2"} <= set(result.history[-1].participants)
    # Each of two rounds and the end of the run evaluate it once.
    assert found.seconds <= usual.seconds + 3 * 4 * SECONDS
    assert found.megabytes <= usual.megabytes + MEGABYTES


# ---------------------------------------------------------------------- the law


def test_a_law_that_is_given_up_costs_what_no_sampling_costs() -> None:
    """Where the grid would be too large the closed form counts, which is never below the truth."""
    every = tuple((0.3 + i / 1000, 0.4, 10**9) for i in range(64))
    closed = AgentLedger.of(
        [(Release("gaussian", 1 / mu, relation="add-remove"), n) for mu, _, n in every]
    )
    found = sampled_epsilon(0.0, every, 1e-5)
    assert 0 < found <= closed.spent(1e-5)


@pytest.mark.parametrize("uses", [1, 10**3, 10**6, 10**9, 10**12])
def test_epsilon_of_ever_more_uses_is_never_below_that_of_fewer(uses: int) -> None:
    """The law's window follows its mean: of many uses that is far above 0."""
    mu, q, delta = 0.5, 0.01, 1e-5
    many = sampled_epsilon(0.0, ((mu, q, uses),), delta)
    # A sum of many losses is about normal: its mean and deviation, by quadrature of one use.
    x = np.linspace(-12.0, 12.0 + mu, 200_001)
    loss = np.log1p(-q + q * np.exp(mu * x - mu * mu / 2))
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi) * np.exp(loss)
    mean = uses * float(np.trapezoid(density * loss, x))
    deviation = np.sqrt(uses * float(np.trapezoid(density * loss**2, x)))
    if uses == 10**6:  # of more, the closed form counts
        assert many >= mean + 3.0 * deviation
        assert many <= 1.05 * (mean + 6.0 * deviation)
    assert many >= sampled_epsilon(0.0, ((mu, q, max(1, uses // 2)),), delta)


def test_one_use_has_a_bounded_number_of_points(monkeypatch: pytest.MonkeyPatch) -> None:
    from privet.kernel import sampled

    made = sampled._one_use
    points: list[int] = []

    def counting(*arguments: Any) -> Any:
        masses, first = made(*arguments)
        points.append(masses.size)
        return masses, first

    monkeypatch.setattr(sampled, "_one_use", counting)
    sampled_epsilon.cache_clear()
    sampled_epsilon(0.0, ((4.7, 1.9e-8, 3), (30.0, 1e-9, 1)), 1e-6)
    assert points
    assert max(points) <= MOST_POINTS + 2
