"""Texts of the other side that cost more to evaluate than to send: a second and 64 MB at most."""

from __future__ import annotations

import gc
import json
import math
import time
import tracemalloc
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.agents import guard
from privet.core import ConfigError
from privet.core.errors import HopelessError
from privet.core.exits import Exit, exit_code
from privet.data.meaning import Meaning
from privet.kernel import AgentLedger, Facts, Release, Told, accountant, loss_law, sampled
from privet.kernel.accountant import Totals
from privet.kernel.agent_ledger import LONGEST_ACCOUNT, MOST_RELEASES
from privet.kernel.laplace import mixed_epsilon
from privet.kernel.masks import MOST_MEMBERS
from privet.kernel.sampled import sampled_epsilon
from privet.problems import public_facts
from privet.rounds.account import expected_release, upload_fault
from privet.rounds.calibration import require_delta
from privet.rounds.keep.checkpoint import load, save
from privet.rounds.roster import MOST_EARLIER, EnrolledAgent
from privet.sim.engine import InlineGrid
from privet.strategies import DPFedSGD, FedPDM, FedPLT
from privet.wire import ENROL, pack
from privet.wire.contract import agent_record, encode_settings, shared_record
from privet.wire.enrolment import LONGEST_LAYOUT
from privet.wire.rosters import with_roster
from redteam.harness import SETTINGS, Node, problem, sent, start
from support.federations import app_of, logistic_agents

SECONDS, MEGABYTES = 1.0, 64.0
"""What a hostile message may cost above an honest one, on a machine that is not busy."""
YARDSTICK, TRACED = 0.2, 0.44
"""The processor time of `slowness`'s work, in seconds, on the machine that these bounds are of,
and while memory is traced there."""
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
        *({"scale": 1 + i * 1e-4, "sampling": 0.3, "times": 1} for i in range(MOST_RELEASES))
    ),
    "as long, of all magnitudes": text(
        *(
            {"scale": 10 ** (i % 977 / 195 - 2), "sampling": 10 ** -(i % 991 / 124 + 0.01)}
            | {"times": 1 + i % 7}
            for i in range(14_000)
        )
    ),
    "as long, of Laplace noise": text(
        *({"mechanism": "laplace", "scale": 1.001**i, "times": 1} for i in range(14_000))
    ),
    "as long, of every kind": text(
        *(
            one
            for i in range(3_600)
            for one in (
                {"mechanism": "laplace", "scale": 1.002**i, "times": 1 + i % 7},
                {"scale": 10 ** (i % 977 / 195 - 2), "sampling": 10 ** -(i % 991 / 124 + 0.01)}
                | {"times": 1 + i % 7},
                {"scale": 10 + i / 7, "times": 1},
            )
        )
    ),
    "more releases than are read": text(
        *({"scale": 1 + i / 64, "times": 1} for i in range(MOST_RELEASES + 1))
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


BUDGETS = {
    "dp-fedavg": AgentLedger.of(
        [(Release("gaussian", 1.234567890123456, 2.0, what="dp-fedavg noised updates"), 1)]
    ).to_json(),
    "dp-fedsgd": AgentLedger.of(
        [(Release("gaussian", 1.234567890123456, 0.1, what="dp-fedsgd noised local gradients"), 1)]
    ).to_json(),
}
"""The shortest accounts that algorithms of this library write of a round."""


def slowness(*, traced: bool = False) -> float:
    """Return how many times slower than usual this machine is now, at least 1.

    A core that others use as well takes several times the processor time for the same work.
    Tracing costs more where memory is slow: its own factor is measured while memory is traced.
    """
    if traced:
        tracemalloc.start()
    began = time.process_time()
    entries = [{"scale": 1 + i / 97, "times": i} for i in range(6000)]
    for _ in range(6):
        sum(sorted(one["scale"] * one["times"] for one in json.loads(json.dumps(entries))))
    values = np.ones(1 << 16)
    for _ in range(60):
        np.fft.irfft(np.fft.rfft(values) ** 2)
    spent = time.process_time() - began
    if traced:
        tracemalloc.stop()
    return max(1.0, spent / (TRACED if traced else YARDSTICK))


def require_seconds(found: float, usual: float, most: float, *, traced: bool = False) -> None:
    """Require at most so many seconds above what is usual, of this machine as busy as it is."""
    above = found - usual
    assert above <= most or above <= most * slowness(traced=traced)


@contextmanager
def small_heap() -> Iterator[None]:
    """Leave what other tests have kept out of the collector's passes while the block runs."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def processor_time(work: Callable[[], object]) -> float:
    """Return the seconds that some work takes the processor."""
    with small_heap():
        began = time.process_time()
        work()
        return time.process_time() - began


class Cost:
    """The processor time and the peak of memory of a block."""

    def __enter__(self) -> Cost:
        self._heap = small_heap()
        self._heap.__enter__()
        tracemalloc.start()
        self._began = time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.process_time() - self._began
        self.megabytes = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        self._heap.__exit__(None, None, None)

    def require(self, honest: Cost) -> None:
        # Tracing makes most of what is traced about four times as slow.
        require_seconds(self.seconds, honest.seconds, 4 * SECONDS, traced=True)
        assert self.megabytes <= honest.megabytes + MEGABYTES


def cost(work: Callable[[], object]) -> Cost:
    with Cost() as found:
        work()
    return found


HONEST = AgentLedger.of(
    [(Release("gaussian", 1.0, relation="add-remove", sampling=0.1), 100)]
).to_json()


def message(account: str, round_: int = 1) -> RecordDict:
    said = encode_settings({**SETTINGS["dp-fedsgd"], "relation": "add-remove"})
    x = np.zeros(4)
    own = agent_record(0, pack(start("dp-fedsgd", x)), account)
    shared = shared_record("dp-fedsgd", 1, "e", round_, said, sent("dp-fedsgd", x))
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


ALL_MAGNITUDES = ACCOUNTS["as long, of all magnitudes"]


def test_every_message_after_a_long_account_costs_a_node_little(
    tmp_path: Path, honest: Cost
) -> None:
    """The node keeps the account, and is sent it again, or another one as long."""
    node = Node(tmp_path, problem(), relation="add-remove")
    node.send(message(ALL_MAGNITUDES))
    other = ALL_MAGNITUDES.replace('"times": 1}', '"times": 9}')

    def seconds(account: str, *rounds: int) -> float:
        """Return the least of some messages; tracing would count many small things fourfold."""
        spent = []
        for number in rounds:
            began = time.process_time()
            node.send(message(account, number))
            spent.append(time.process_time() - began)
        return min(spent)

    require_seconds(seconds("", 2, 3), honest.seconds, SECONDS)
    require_seconds(seconds(ALL_MAGNITUDES, 4, 5), honest.seconds, SECONDS)
    require_seconds(seconds(other, 6, 7), honest.seconds, 2 * SECONDS)  # two accounts are read


def test_no_account_of_more_releases_than_are_read_is_kept(tmp_path: Path) -> None:
    """An account of as many as are read takes one more of a release that it has, and no other."""
    node = Node(tmp_path, problem(), relation="add-remove")
    node.send(message(""))
    own = json.loads(node.written)["release"]
    several = [{"scale": 2 + i / 64, "times": 1} for i in range(MOST_RELEASES)]
    reply = node.send(message(text(*several), 2))
    assert reply.error.reason == f"agent me: {Told.MESSAGE}"
    assert "16001 different releases, too many" in node.said
    assert node.charges == 1
    several[-1] = {**own, "times": 1}
    assert node.send(message(text(*several), 2)).has_content()
    assert node.charges == 2


@pytest.mark.parametrize("name", sorted(BUDGETS))
def test_the_account_of_the_longest_run_whose_noise_changes_is_read(name: str) -> None:
    """As long as the characters allow, whatever an honest release is: every round has its own."""
    (known,) = AgentLedger.from_json(BUDGETS[name]).entries
    characters = len(BUDGETS[name])
    rounds = (LONGEST_ACCOUNT - 2) // (characters - 1)
    assert rounds <= MOST_RELEASES
    scales = (round(1.234567890123456 + i * 1e-12, 15) for i in range(rounds))
    account = AgentLedger.of((replace(known[0], scale=scale), 1) for scale in scales)
    assert len(AgentLedger.from_json(account.to_json()).entries) == rounds


@pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 40), marks=pytest.mark.slow)], ids=["6", "34 more"]
)
def test_random_accounts_cost_a_node_little(seeds: range, tmp_path: Path, honest: Cost) -> None:
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        node = Node(folder, problem(), relation="add-remove")
        cost(lambda: node.send(message(hostile(seed)))).require(honest)  # noqa: B023


# ---------------------------------------------------------------------- the coordinator


class Lying(InlineGrid):
    """A grid whose agent 1 states an account of its own, or any other text, where it enrols.

    Or with its uploads.
    """

    def __init__(
        self, account: str, where: str, algorithm: str = "dp-fedsgd", agents: int = 3
    ) -> None:
        rules = {"relation": "add-remove", "num-examples": 40}
        nodes = [{"partition-id": agent, **rules} for agent in range(agents)]
        super().__init__(app_of(logistic_agents(agents), algorithm), nodes)
        self.account, self.where = account, where

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        agent = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        if reply is None or not reply.has_content() or agent != 1:
            return reply
        record: Any = reply.content["privet"]
        if message.metadata.message_type == ENROL:
            if self.where != "upload" and self.where:
                record["ledger" if self.where == "enrolment" else self.where] = self.account
        elif self.where == "upload":
            about = {**json.loads(record["about"]), "ledger": self.account}
            record["about"] = json.dumps(about)
        return reply


def start_model() -> ArrayRecord:
    return ArrayRecord({"x": Array(np.zeros(4))})


def played(account: str, where: str) -> Any:
    strategy = DPFedSGD(
        num_agents=3,
        clip=1.0,
        noise_scale=1.0,
        relation="add-remove",
        batch="poisson",
        step_size_base=0.1,
    )
    return strategy.start(Lying(account, where), start_model(), num_rounds=2)


@pytest.fixture(scope="module")
def usual() -> Cost:
    played("", "")
    return cost(lambda: played("", ""))


@pytest.mark.parametrize("where", ["enrolment", pytest.param("upload", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ACCOUNTS)
def test_an_account_that_an_agent_states_ends_no_run(name: str, where: str, usual: Cost) -> None:
    results: list[Any] = []
    found = cost(lambda: results.append(played(ACCOUNTS[name], where)))
    (result,) = results
    assert len(result.history) == 2
    assert {"0", "2"} <= set(result.history[-1].participants)
    # Each of two rounds and the end of the run evaluate it once.
    require_seconds(found.seconds, usual.seconds, 3 * 4 * SECONDS, traced=True)
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


@pytest.mark.parametrize("beside", [0.5, pytest.param(0.0, marks=pytest.mark.slow)])
def test_a_law_has_a_bounded_number_of_points(
    beside: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is summed: points are work and memory, on any machine."""
    kept, points, summed = loss_law.window, [0], [0.0]

    def counting(uses: Any, *rest: Any, **options: Any) -> Any:
        points.append(sum(use.masses.size for use in uses))
        found = kept(uses, *rest, **options)
        if found.excess <= 1:
            summed.append((found.high - found.low) * (len(uses) + 15 * options["beside_gaussian"]))
        return found

    monkeypatch.setattr(sampled, "window", counting)
    monkeypatch.setattr("privet.kernel.laplace.window", counting)
    random = np.random.default_rng(int(2 * beside))
    for _ in range(60):
        count = int(random.choice([1, 3, 16, 64]))
        low, high = sorted(random.uniform(-5, 1.2, 2))
        losses = np.sort(10 ** random.uniform(low, high, count)).tolist()
        times = (10 ** random.uniform(0, random.choice([1, 4, 20]), count)).tolist()
        rates = (10 ** random.uniform(-10, -0.01, count)).tolist()
        releases = [(mu, q, int(n)) for mu, q, n in zip(losses, rates, times, strict=True)]
        sampled_epsilon.__wrapped__(beside, tuple(releases), 1e-6)
        mixed_epsilon.__wrapped__(beside, tuple((mu, n) for mu, _, n in releases), 1e-6)
    assert len(summed) > 20
    assert max(points) <= loss_law.MOST_POINTS + 4 * 64
    assert max(summed) <= loss_law.MOST_WORK


@pytest.mark.parametrize(
    "releases",
    [
        ((0.5, 0.01, 10**4),),
        ((3.0, 1e-3, 10**3),),
        ((0.3, 0.5, 100), (1.0, 1e-3, 10**3)),
    ],
)
def test_a_coarser_law_costs_more_and_not_much(
    releases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is computed of too many points is an upper bound of what they would give."""
    fine = sampled_epsilon.__wrapped__(0.0, releases, 1e-5)
    monkeypatch.setattr(loss_law, "MOST_POINTS", 1 << 12)
    coarse = sampled_epsilon.__wrapped__(0.0, releases, 1e-5)
    assert fine < coarse < 1.1 * fine


def test_a_coarser_law_of_laplace_noise_costs_more_and_not_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses = ((0.01, 400), (0.05, 100), (1.0, 5))
    fine = mixed_epsilon.__wrapped__(0.0, losses, 1e-5)
    monkeypatch.setattr(loss_law, "MOST_POINTS", 1 << 12)
    coarse = mixed_epsilon.__wrapped__(0.0, losses, 1e-5)
    assert fine < coarse < 1.1 * fine


def test_wide_mixtures_of_laplace_noise_are_composed_on_a_grid() -> None:
    """Of losses a thousand times apart the closed form would say twice as much."""
    losses = tuple((0.002 * 2.0**i, 60) for i in range(12))
    pure = sum(count * loss for loss, count in losses)
    spread = np.sqrt(sum(count * loss * loss for loss, count in losses))
    mean = sum(count * (loss - 1.0 + np.exp(-loss)) for loss, count in losses)
    found = mixed_epsilon(0.0, losses, 1e-5)
    # Of so many uses the sum is about normal, and delta the tail above epsilon at most.
    assert mean < found < mean + 5.0 * spread < pure


def _sampled(mu: float, q: float) -> Release:
    return Release("gaussian", 1.0 / mu, 1.0, relation="add-remove", sampling=q)


def beside_laplace(seed: int) -> Totals:
    """Return the totals of a ledger of Laplace uses and many kinds of sampled ones."""
    random = np.random.default_rng(seed)
    sampled = [
        Release("gaussian", scale, 1.0, relation="add-remove", sampling=rate)
        for scale, rate in zip(
            10 ** random.uniform(0.1, 2, 60), 10 ** random.uniform(-3.1, -2.9, 60), strict=True
        )
    ]
    pure = [
        Release("laplace", scale, norm="l1", relation="add-remove")
        for scale in 10 ** random.uniform(4.5, 4.6, 8)
    ]
    kinds = [*sampled, *pure]
    return Totals().with_all(zip(kinds, random.integers(1, 9, len(kinds)).tolist(), strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_sampled_uses_beside_laplace_ones_cost_little_and_no_less_than_each_apart(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of these is evaluated with every later charge, under its lock."""
    totals, delta = beside_laplace(seed), 1e-6
    assert len(totals.sampled) > 32
    whole = sampled_epsilon(0.0, totals.sampled, delta)
    laws: list[tuple[int, int]] = []
    kept = sampled.window

    def counting(uses: Any, *rest: Any, **options: Any) -> Any:
        laws.append((len(uses), sum(use.masses.size for use in uses)))
        return kept(uses, *rest, **options)

    monkeypatch.setattr(sampled, "window", counting)
    sampled_epsilon.cache_clear()
    found = totals.epsilon(delta)
    assert 4 <= len(laws) <= 8, "of two bounds and two directions, on a second grid where need be"
    assert all(kinds <= 16 for kinds, _ in laws)
    assert all(points <= loss_law.MOST_POINTS // 32 + 4 * 16 for _, points in laws)
    # Never below the sampled uses alone, and not far above with what Laplace uses add at most.
    assert whole <= found
    assert found <= 1.1 * whole + math.fsum(loss * count for loss, count in totals.laplace)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(1e-3, 20), st.floats(1e-6, 0.9), st.integers(1, 10**6)),
        min_size=1,
        max_size=40,
        unique_by=lambda kind: kind[0],
    ),
    st.integers(1, 20),
)
def test_fewer_kinds_of_sampled_uses_cover_all_there_were(
    kinds: list[tuple[float, float, int]], most: int
) -> None:
    """Each use is found again with no smaller loss and no smaller rate: a matching by flow."""
    every = tuple(sorted(kinds))
    of_both = accountant._Kinds((((mu, q), count) for mu, q, count in every), most).in_order()
    fewer = [(mu, q, count) for (mu, q), count in of_both]
    assert len(fewer) == min(most, len(every))
    assert sum(count for *_, count in fewer) == sum(count for *_, count in every)
    # Blocks of neighbours in mu: the counts in order say which use is in which block.
    left = [list(kind) for kind in every]
    for mu, q, count in sorted(fewer):
        open_ = count
        while open_:
            loss, rate, times = left[0]
            assert loss <= mu
            assert rate <= q
            taken = min(open_, times)
            open_ -= taken
            left[0][2] -= taken
            if not left[0][2]:
                del left[0]


@pytest.mark.parametrize("beside", [0.0, 1e-9])
@pytest.mark.parametrize("honest", [(1.05, 0.017), (0.6, 0.033)])
def test_uses_that_cost_nothing_do_not_make_others_dearer(
    honest: tuple[float, float], beside: float
) -> None:
    """A coordinator can ask for hundreds of kinds of uses whose noise is a thousand times as large.

    They are spread over all sizes, so that rounding all kinds alike would leave one digit of them.
    """
    mu, q = honest
    free = [
        _sampled(1.3e-6 * 2.0**size * (1 + rate), rate)
        for size in range(13)
        for rate in (0.001, 0.003, 0.005, 0.009, 0.02, 0.04, 0.09, 0.2)
    ]
    host = Totals().with_all((one, 1) for one in free)
    if beside:
        host = host.add(Release("laplace", 1 / beside, norm="l1", relation="add-remove"))
    assert host.epsilon(1e-5) < 5e-3
    for uses in (100, 800):
        alone = Totals().add(_sampled(mu, q), uses).epsilon(1e-5)
        assert alone * 0.999 <= host.add(_sampled(mu, q), uses).epsilon(1e-5) <= alone * 1.01


# ---------------------------------------------------------------------- what is not needed


def test_an_account_of_another_mechanism_is_not_evaluated(tmp_path: Path) -> None:
    """No run has two; the law of their sum is the dearest to compute."""
    node = Node(tmp_path, problem(), relation="add-remove")
    account = text({"times": 1}, {"mechanism": "laplace", "times": 1})
    assert node.send(message(account)).error.reason == f"agent me: {Told.MESSAGE}"
    assert "it holds releases that are not of the run's, gaussian" in node.said
    assert node.written == b""


def test_of_two_long_accounts_that_differ_one_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (
        AgentLedger.of((Release("gaussian", 2 + i / step), 1) for i in range(1_000))
        for step in (7, 11)
    )
    composed: list[AgentLedger] = []
    kept = AgentLedger.spent

    def counting(ledger: AgentLedger, delta: float) -> float:
        composed.append(ledger)
        return kept(ledger, delta)

    monkeypatch.setattr(AgentLedger, "spent", counting)
    release = Release("gaussian", 3.0)
    _, epsilon = guard.Guard._account(one.to_json(), other.to_json(), release, 1e-5)
    (evaluated,) = composed
    assert all(evaluated.covers(each.record(release)) for each in (one, other))
    assert epsilon >= max(kept(each.record(release), 1e-5) for each in (one, other))


@pytest.mark.parametrize("more", [0, 1])
def test_an_account_that_is_part_of_the_other_is_not_evaluated(
    more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's own holds all that is sent, or the other way round: one of them is composed."""
    node = Node(tmp_path, problem(), relation="add-remove")
    node.send(message(""))
    (own,) = [json.loads(line)["release"] for line in node.written.splitlines()]
    told = AgentLedger.of([(Release.from_dict(own), 1 + more)]).to_json()
    composed: list[int] = []
    kept = AgentLedger.spent

    def counting(ledger: AgentLedger, delta: float) -> float:
        composed.append(ledger.messages)
        return kept(ledger, delta)

    monkeypatch.setattr(AgentLedger, "spent", counting)
    guard._charged.cache_clear()
    reply = node.send(message(told, round_=2))
    assert reply.has_content()
    assert composed == [2 + more]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=4),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=4),
)
def test_of_two_accounts_the_dearer_counts(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    made = [Release("gaussian", scale, relation="add-remove") for scale in (1.0, 2.0, 5.0)]
    own, told = (AgentLedger.of((made[k], n) for k, n in each) for each in (first, second))
    _, epsilon = guard.Guard._account(own.to_json(), told.to_json(), made[0], 1e-5)
    assert epsilon == max(each.record(made[0]).spent(1e-5) for each in (own, told))
    if own.covers(told):
        assert own.spent(1e-5) >= told.spent(1e-5)


# ---------------------------------------------------------------------- other texts


NESTED = "[" * 900 + "]" * 900
ENROLMENTS = {
    ("layout", '[["x",[1e999]]]'),
    ("layout", '[["x",[NaN]]]'),
    ("layout", '[["x",[-4]]]'),
    ("layout", '[["x",[' + "9," * 400_000 + "9]]]"),
    ("layout", '[["x",' + NESTED + "]]"),
    ("layout", "[" + '["x",[4]],' * 90_000 + '["x",[4]]]'),
    ("buffers", '[["x",[Infinity]]]'),
    ("tied", "{" + ",".join(f'"{i}":"x"' for i in range(90_000)) + "}"),
    ("tied", '{"a":' * 900 + "1" + "}" * 900),
    ("own-settings", '{"local-epochs":"many"}'),
    ("own-settings", '{"local-epochs":1e999}'),
    ("own-settings", '{"step-size":[]}'),
    ("own-settings", "[]"),
    ("facts", NESTED),
    ("ledger", '[{"mechanism":' + NESTED + "}]"),
    ("ledger", '[{"mechanism":"gaussian","scale":' + NESTED + "}]"),
}


@pytest.mark.parametrize("asynchronous", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("field", "said"), sorted(ENROLMENTS))
def test_no_text_of_an_enrolment_ends_a_run(
    field: str, said: str, asynchronous: bool, usual: Cost
) -> None:
    results: list[Any] = []

    def run() -> None:
        strategy = FedPLT(num_agents=3, local_epochs=1, step_size=0.1, asynchronous=asynchronous)
        grid = Lying(said, field, "fed-plt")
        rounds = 8 if asynchronous else 2
        results.append(strategy.start(grid, start_model(), num_rounds=rounds))

    found = cost(run)
    (result,) = results
    taken = {name for done in result.history for name in done.participants}
    assert {"0", "2"} <= taken
    found.require(usual)


GEOMETRIC: dict[str, Any] = {"clip": 1.0, "noise_scale": 5.0} | {
    "budget_schedule": "geometric",
    "budget_ratio": 0.99,
}
IN_SUMS = {"secure_sum": True, "noise_sharing": True}
MANY = 12_000
"""Different sizes of sums that an account names."""


@pytest.mark.parametrize("keys", [{}, IN_SUMS], ids=["in clear", "shared"])
def test_sums_of_many_sizes_cost_a_coordinator_little_after_many_rounds(
    keys: dict[str, Any],
) -> None:
    """With an upload, and where a later one is lost."""
    rounds, enrolled = 60, 5
    half = DPFedSGD(**GEOMETRIC, **keys).half
    facts = Facts(20, 20.0, 4, colluders=1 if keys else -1)
    among = replace(facts, agents=enrolled if keys else 1)
    paid = [half.agent.release(among, number) for number in range(1, rounds + 1)]
    cheapest = min(paid, key=lambda release: release.loss)

    def account(paid: list[Release], scale: float, *more: Release) -> str:
        sums = (replace(cheapest, scale=scale, agents=size, what="") for size in range(2, MANY + 2))
        return AgentLedger.of((one, 1) for one in (*paid, *sums, *more)).to_json()

    ledger = AgentLedger.of((one, 1) for one in paid).to_json()
    agent = EnrolledAgent(1, 20, facts=facts.to_json(), ledger=ledger)

    def upload(text: str) -> None:
        faults.append(upload_fault(half, agent, text, rounds + 1, enrolled=enrolled))

    faults: list[str] = []
    for text in (account(paid, 1e4), account(paid, 1e4, cheapest)):
        require_seconds(processor_time(partial(upload, text)), 0.0, SECONDS)
    named = f"it names a sum of {MANY + 1} agents, and {enrolled} have enrolled: " if keys else ""
    assert faults == [f"{named}it lacks the release that was asked for", ""]
    dear = replace(agent, ledger=account(paid, 1e-2))
    found: list[Release | None] = []

    def lost() -> None:
        found.append(expected_release(half, dear, rounds + 1, among.agents))

    require_seconds(processor_time(lost), 0.0, SECONDS)
    assert found[0] is not None
    assert found[0].scale == 1e-2


NOT_STEADY: dict[str, Any] = {"clip": 1.0, "noise_scale": 1.0, "rho": 1.0, "dual": "public"} | {
    "step_size_base": 0.1, "max_local_steps": 2, "row_norm": 9.0, "batch": "full",
}  # fmt: skip


@pytest.mark.parametrize("name", ["fed-plt", "fed-pdm"])
def test_numbers_that_an_agent_stated_before_cost_a_coordinator_no_more_rounds(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes them as often as it may, and holds a release dearer than any asked for."""
    rounds, noises = 1500, (2.0, 3.0)
    solver = {"local_solver": "noisy-gd", "local_epochs": 2, "row_norm": 9.0}
    ratio = {"budget_schedule": "geometric", "budget_ratio": 0.999}
    noised = {"clip": 1.0, "noise_variance": 1.0, **solver, **ratio}
    half = (FedPLT(**noised) if name == "fed-plt" else FedPDM(**NOT_STEADY)).half
    facts = public_facts(problem())
    earlier = [replace(facts, modulus=0.1 + place / 100) for place in range(MOST_EARLIER)]
    asked = half.agent.release(facts, rounds)
    dear, cheap = replace(asked, scale=asked.scale / 100), replace(asked, scale=asked.scale * 100)
    agent = EnrolledAgent(
        *(1, 20),
        facts=facts.to_json(),
        earlier=tuple((one.to_json(), "") for one in earlier),
        ledger=AgentLedger.of([(asked, 1), (dear, 1)]).to_json(),
    )
    made: list[int] = []
    release = type(half.agent).release

    def counted(agent_half: Any, given: Facts, round_: int) -> Release:
        made.append(round_)
        return release(agent_half, given, round_)

    monkeypatch.setattr(type(half.agent), "release", counted)
    of_present = rounds * (1 + len(noises)) + 100
    assert expected_release(half, agent, rounds, 1, noises) == dear
    assert len(made) <= of_present
    made.clear()
    stated = AgentLedger.of([(asked, 1), (dear, 1), (cheap, 1)]).to_json()
    said = upload_fault(half, agent, stated, rounds, noises, enrolled=4)
    assert said == "it lacks the release that was asked for"
    assert len(made) <= of_present


# ---------------------------------------------------------------------- what is kept and read later

OTHER = Release("gaussian", 5.0, relation="replace-one")
SHARED = Release("gaussian", 5.0, relation="add-remove", agents=3, colluders=2)
KEPT = {
    "no JSON": "nonsense",
    "no list": "{}",
    "no release": '[{"mechanism":1}]',
    "another relation": AgentLedger.of([(OTHER, 1)]).to_json(),
    "another mechanism": AgentLedger.of(
        [(Release("laplace", 5.0, norm="l1", relation="add-remove"), 1)]
    ).to_json(),
    "other colluders": AgentLedger.of([(SHARED, 1)]).to_json(),
}
PLACES = [
    *((place, text) for place in ("upload", "enrolment") for text in KEPT.values()),
    *(("facts", text) for text in ("", "nonsense", "{}", '{"num_examples":40}')),
    ("own-settings", '{"batch-size":"many"}'),
    ("own-settings", "nonsense"),
]
PRIVATE: dict[str, Any] = {
    "clip": 1.0,
    "relation": "add-remove",
    "step_size_base": 0.1,
    "target_epsilon": 4.0,
    "patience": 0.0,
    "wait_timeout": 5.0,
}


class WithoutOne(Lying):
    """A grid to which agent 1 is not connected."""

    def get_node_ids(self) -> list[int]:
        return [
            node
            for node in super().get_node_ids()
            if self.contexts[node].node_config["partition-id"] != 1
        ]


def private_run(
    grid: InlineGrid, folder: Path, *, until: int = 4, resume: bool = False, **keys: Any
) -> Any:
    """Play up to a round of four."""
    strategy = DPFedSGD(num_agents=len(grid.contexts), **{**PRIVATE, **keys})
    options: dict[str, Any] = {"resume": folder} if resume else {}
    file = folder / "checkpoint.npz"
    options |= {"checkpoint": file, "should_stop": lambda done: done.round == until}
    return strategy.start(grid, start_model(), num_rounds=4, **options)


SUMS = {"secure_sum": True, "target_epsilon": 0.0, "noise_scale": 10.0}


@pytest.mark.parametrize("keys", [{}, SUMS], ids=["in clear", "sums"])
@pytest.mark.parametrize(("place", "said"), PLACES)
def test_what_an_agent_states_turns_that_agent_away_and_no_other(
    place: str, said: str, keys: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a first run for a target, in its resume, and in one with agents that have recovered."""
    count = 6 if "secure_sum" in keys else 3  # a sum of which one is gone lacks another
    others = {str(agent) for agent in range(count)} - {"1"}
    lying = partial(Lying, agents=count)
    first = private_run(lying(said, place), tmp_path, **keys)
    assert set(first.history[-1].participants) == others
    away = ("node turned away: agent 1: ", "agent 1 is asked no more: ")
    assert any(line.startswith(away) for line in caplog.messages)
    for grid in (lying(said, place), lying("", "")):
        result = private_run(grid, tmp_path, resume=True, **keys)
        assert result.privacy.private
        assert 0 < result.privacy.epsilon <= 4.0 or keys is SUMS
        assert others <= set(result.privacy.agents)


@pytest.mark.parametrize(
    "change",
    [
        {"ledger": "nonsense"},
        {"ledger": '[{"mechanism":1}]'},
        {"former": ["{}"]},
        {"facts": "nonsense"},
        {"facts": ""},
        {"earlier": [["{}", ""]]},
        {"own": '{"batch-size":"many"}'},
        {"former": [KEPT["another relation"]]},
    ],
    ids=str,
)
def test_a_checkpoint_with_texts_that_cannot_be_read_lacks_that_agent_alone(
    change: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As earlier versions wrote it, of an agent that has not come back."""
    private_run(Lying("", ""), tmp_path, until=2)
    saved = load(tmp_path)
    table = {
        key: column * 3 if len(column) == 1 else column
        for key, column in saved.manifest["agents"].items()
    }
    for key, value in {**change, "node": 0}.items():
        table[key][table["name"].index("1")] = value
    saved.manifest["agents"] = table
    save(tmp_path / "checkpoint.npz", saved)
    result = private_run(WithoutOne("", ""), tmp_path, resume=True)
    assert [set(done.participants) for done in result.history[2:]] == [{"0", "2"}] * 2
    assert any(line.startswith("agent 1 is asked no more: ") for line in caplog.messages)


UNCERTIFIED: dict[str, dict[str, Any]] = {
    "a huge model": {"dim": 1 << 53},
    "another model": {"dim": 5},
    "a tiny divisor": {"divisor": 1e-300},
    "no clipping": {"clips": False},
    "other examples": {"num_examples": 1 << 53, "divisor": float(1 << 53)},
    "another dtype": {"dtype": "float32"},
    "one record": {"num_examples": 1, "divisor": 1.0},
    "a divisor of its own": {"divisor": 41.0},
}


class Stating(InlineGrid):
    """A grid some agents of which state public numbers that are not theirs where they enrol."""

    def __init__(self, change: dict[str, Any], who: Collection[int], relation: str) -> None:
        rules = {"relation": relation, "num-examples": 40}
        nodes = [{"partition-id": agent, **rules} for agent in range(4)]
        super().__init__(app_of(logistic_agents(4), "dp-fedsgd"), nodes)
        self.change, self.who = change, who

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        agent = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        if reply is not None and message.metadata.message_type == ENROL and agent in self.who:
            record: Any = reply.content["privet"]
            record["facts"] = json.dumps({**json.loads(record["facts"]), **self.change})
        return reply


NOISES = {"target": {}, "noise": {"target_epsilon": 0.0, "noise_scale": 10.0}}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", UNCERTIFIED)
def test_an_agent_that_no_run_can_certify_is_turned_away(
    name: str, noise: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    relation = "add-remove" if name == "a divisor of its own" else "replace-one"
    keys = {**NOISES[noise], "relation": relation}
    result = private_run(Stating(UNCERTIFIED[name], {1}, relation), tmp_path, **keys)
    assert [done.participants for done in result.history] == [("0", "2", "3")] * 4
    assert result.privacy.private
    assert sum(line.startswith("node turned away: agent 1: ") for line in caplog.messages) == 1
    with pytest.raises((ConfigError, HopelessError)) as caught:
        private_run(Stating(UNCERTIFIED[name], range(4), relation), tmp_path / "all", **keys)
    assert exit_code(caught.value) == Exit.PERSON


def test_one_agent_of_one_record_does_not_switch_off_the_check_of_delta() -> None:
    half = DPFedSGD(clip=1.0, noise_scale=1.0, step_size_base=0.1, delta=0.1).half
    agents = {"0": EnrolledAgent(1, 40), "1": EnrolledAgent(2, 1)}
    with pytest.raises(ConfigError, match="agent 0 has 40 records"):
        require_delta(half, agents)


def many(count: int, entry: str) -> str:
    return ",".join(entry.format(i) for i in range(count))


NUMBERS = '{{"columns":[{}],"{}":{{{}}}}}'
ENCODINGS = {
    "a scale of many columns": NUMBERS.format(
        many(28_000, '["c{}",{{}}]'), "scale", many(28_000, '"c{}":[0,1]')
    ),
    "a scale of no columns": '{"scale":{' + many(70_000, '"{}":[0,1]') + "}}",
    "rows of no columns": '{"rows":{' + many(55_000, '"{}":[1,1,1]') + "}}",
    "a scale of many numbers": '{"columns":[["c",{}]],"scale":{"c":[' + many(400_000, "0") + "]}}",
    "columns without a fact": '{"columns":[' + many(70_000, '["{}",{{}}]') + "]}",
    "many categories": '{"columns":[["c",{"categories":[' + many(90_000, '"{}"') + "]}]]}",
    "settings of many parts": '{"settings":{"a":[' + many(300_000, "{{}}") + "]}}",
}


@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_an_encoding_costs_no_more_than_an_honest_one(name: str, usual: Cost) -> None:
    said = ENCODINGS[name]
    assert len(said) <= LONGEST_LAYOUT
    results: list[Any] = []

    def run() -> None:
        strategy = FedPLT(num_agents=3, min_agents=2, local_epochs=1, step_size=0.1)
        grid = Lying(said, "encoding", "fed-plt")
        results.append(strategy.start(grid, start_model(), num_rounds=2))

    found = cost(run)
    (result,) = results
    assert {"0", "2"} <= {name for done in result.history for name in done.participants}
    found.require(usual)


def test_an_encoding_with_all_parts_of_many_columns_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the run's encoding is made of it, and all others are compared with it."""
    form = '{{"columns":[{}],"rows":{{{}}},"codes":{{{}}},"trends":{{{}}}}}'
    each = ('["c{}",{{}}]', '"c{}":[10,1.0,2.0]', '"c{}":[1.0,5.0]', '"c{}":1.0')
    said = form.format(*(many(13_100, one) for one in each))
    assert LONGEST_LAYOUT * 0.8 < len(said) <= LONGEST_LAYOUT
    read, results = list[str](), list[Any]()
    from_text = Meaning.from_text
    monkeypatch.setattr(Meaning, "from_text", lambda text: (read.append(text), from_text(text))[1])

    def run(field: str) -> None:
        strategy = FedPLT(num_agents=3, min_agents=2, local_epochs=1, step_size=0.1)
        results.append(strategy.start(Lying(said, field, "fed-plt"), start_model(), num_rounds=2))

    usual = processor_time(lambda: run("none"))
    require_seconds(processor_time(lambda: run("encoding")), usual, SECONDS)
    assert [len(done.participants) for done in results[1].history] == [2, 2]
    assert read == [said]


@pytest.mark.parametrize("count", [1_000, 12_000])
def test_an_encoding_as_long_as_a_wide_table_has_is_read(count: int) -> None:
    text = NUMBERS.format(
        many(count, '["column {:05}",{{}}]'),
        "rows",
        many(count, '"column {:05}":[80.0,51.25,11.5]'),
    )
    meaning = Meaning.from_text(text)
    assert len(meaning.columns) == len(meaning.rows) == count
    assert meaning.text == text
    assert not meaning.is_long


def roster_message(own: bytes, count: int, names: str = "") -> RecordDict:
    """Return a masked task of a roster of so many agents with forged keys, and this one."""
    roster = {f"agent {i}": i.to_bytes(32, "little") for i in range(2, count + 1)}
    said = encode_settings({**SETTINGS["fed-plt"], "secure-sum": True})
    x = np.zeros(4)
    shared = shared_record("fed-plt", 1, "e", 1, said, sent("fed-plt", x))
    masked = with_roster(shared, 1, {**roster, "me": own})
    if names:
        masked["names"] = names
    return RecordDict(
        {"privet": masked, "privet.agent": agent_record(0, pack(start("fed-plt", x)))}
    )


def enrolled(folder: Path) -> tuple[Node, bytes]:
    folder.mkdir()
    node = Node(folder, problem(), num_examples=None)
    reply = node.enrol("fed-plt", **{"secure-sum": True})
    key: Any = reply.content["privet"]["public-key"]
    return node, key


@pytest.mark.parametrize("names", ["", "[" + many(900_000, '"a"') + "]"])
def test_a_roster_that_is_too_long_is_refused_before_a_key_is_agreed_on(
    names: str, tmp_path: Path
) -> None:
    usual = cost(lambda: Trial(tmp_path / "honest", 3).require(accepted=True))
    found = cost(lambda: Trial(tmp_path / "hostile", 20_000, names).require(accepted=False))
    found.require(usual)
    assert not (tmp_path / "hostile" / "ledger.jsonl").exists()


def test_the_largest_roster_is_answered(tmp_path: Path) -> None:
    usual = cost(lambda: Trial(tmp_path / "honest", 3).require(accepted=True))
    found = cost(lambda: Trial(tmp_path / "large", MOST_MEMBERS).require(accepted=True))
    found.require(usual)


class Trial:
    """A node that is enrolled for a secure sum and sent a roster."""

    def __init__(self, folder: Path, count: int, names: str = "") -> None:
        self.node, own = enrolled(folder)
        self.reply = self.node.send(roster_message(own, count, names))

    def require(self, *, accepted: bool) -> None:
        assert self.reply.has_content() is accepted, self.node.said


def test_long_settings_and_names_are_not_read_nor_kept(tmp_path: Path) -> None:
    node = Node(tmp_path, problem())
    texts = [f'{{"k{i}":[' + "{}," * 300_000 + "1]}" for i in range(4)]
    x = np.zeros(4)
    messages = []
    for long in texts:
        shared = shared_record("dp-fedsgd", 1, "e", 1, long, {"x": x})
        messages.append(RecordDict({"privet": shared, "privet.agent": agent_record(0, pack({}))}))
    named = shared_record("p" * 10**6, 1, "e", 1, "{}", {"x": x})
    messages.append(RecordDict({"privet": named, "privet.agent": agent_record(0, pack({}))}))
    node.send(message(""))
    found = cost(lambda: [node.send(one) for one in messages])
    assert found.megabytes <= 8
    require_seconds(found.seconds, 0.0, 4 * SECONDS)
    assert all(node.send(one).has_error() for one in messages)


@pytest.mark.parametrize(
    ("half", "rounds"),
    [
        (
            DPFedSGD(
                clip=1.0, noise_scale=1.0, budget_schedule="geometric", budget_ratio=0.9999
            ).half,
            12_000,
        ),
        (FedPDM(preset="private", noise_scale=0.5).half, 150_000),
    ],
    ids=["geometric", "fed-pdm"],
)
def test_a_dearer_release_is_looked_for_among_so_many_that_were_asked_for(
    half: Any, rounds: int
) -> None:
    """By what the agent states now, with every noise that the run has had."""
    facts = Facts(100, 100.0, 4, loss="logistic", regularizer="l2", modulus=0.1)
    asked = half.agent.release(facts, rounds)
    dearer = replace(asked, sensitivity=10 * asked.sensitivity)
    text = AgentLedger.of([(asked, 1), (dearer, 1)]).to_json()
    agent = EnrolledAgent(1, 20, facts=facts.to_json(), ledger=text)
    noises = tuple(half.settings()[half.noise_key] * (2 + n) for n in range(20))
    began = time.process_time()
    assert expected_release(half, agent, rounds, 3, noises) == dearer
    require_seconds(time.process_time() - began, 0.0, SECONDS)
    late = half.agent.release(facts, rounds - 1)
    more = AgentLedger.of([(asked, 1), (dearer, 1), (late, 1)]).to_json()
    began = time.process_time()
    upload_fault(half, agent, more, rounds, noises, enrolled=3)
    require_seconds(time.process_time() - began, 0.0, SECONDS)
