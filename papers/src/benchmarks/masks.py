"""What masking an upload costs, against nothing but the key streams and the additions.

The bare work is that of the same loop with the streams' keys at hand. On top of it come checking
the roster, its digest and one HKDF per pair; the key agreement is once per pair and run, and shown
by itself. The third figure adds the encoding in the ring and the bytes that travel.

Then a whole round of eight agents and their coordinator, where a sum opens without agents that drop
out, beside one where it does not, with eight rows an agent: of as many local steps as are taken by
default, and of one, so that next to nothing but masks and messages is in it. The two are played in
turns, and the exchanges are counted.

Then a round of 1,000 agents whose sum opens without those that drop out, each with masks of the
neighbours that it draws, at d = 1e5 in one process: every agent's part, their coordinator and all
messages. The ChaCha20 bytes that it needs are measured beside it.

The last is one agent's part of a sum of 1,000 at d = 1e5, as a node with pinned keys does it in
every round: it checks all signatures, too, which is a cost of its own. The ChaCha20 bytes that it
needs are measured beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from privet.client_apps import client_app
from privet.kernel import Binding, KeyPair, PairwiseMasks, Trust, key_pair, stream
from privet.kernel.masks import apply_streams, key_stream, statement
from privet.kernel.neighbours import NEIGHBOURS, least_threshold
from privet.problems import L2, RidgeRegression
from privet.sim.engine import InlineGrid
from privet.strategies import FedPDM
from privet.wire import ring

from .figure import Figure, Show, best_seconds

GOAL, LARGE_GOAL, WITH_GOAL = 1.5, 1.3, 1.3
MEMBERS, MANY = 10, 1000
LONG, SURVIVED, THRESHOLD, LOCAL_STEPS = 100_000, 8, 5, 10
ME = "5"


def bench_masks(show: Show, *, quick: bool = False) -> None:
    """Time one agent's masks for a roster of ten at d = 1e4 and 1e6."""
    rounds = 3 if quick else 30
    keys = {str(number): key_pair() for number in range(MEMBERS)}
    roster = tuple((name, pair.public) for name, pair in keys.items())
    agreed = best_seconds(partial(_agree, keys[ME], roster), rounds)
    show(Figure("masks", f"roster {MEMBERS}", "key agreement, once a run (s)", agreed))
    # Short measurements, and many: between those that other work disturbs some are whole.
    for dim, calls, repeats in ((10_000, 2, 10 * rounds), (1_000_000, 1, rounds)):
        case = f"d = {dim:.0e}, roster {MEMBERS}"
        binding = Binding("bench", 1, 1, roster)
        words = np.zeros(dim, np.uint64)
        bare_keys = PairwiseMasks(keys[ME]).pair_keys(ME, binding)
        bare = partial(_bare, words, bare_keys, calls)
        masked = partial(_masked, words, keys[ME], binding, calls)
        numbers = stream(0, "bench").standard_normal(dim)
        upload = partial(_upload, numbers, keys[ME], binding, calls)
        # In turns, so that a busy machine disturbs all of them alike.
        times = np.full(3, np.inf)
        for _ in range(repeats):
            times = np.minimum(times, [best_seconds(work, 1) for work in (bare, masked, upload)])
        names = ("masks / bare streams and additions", "encoded, masked, packed / bare")
        show(Figure("masks", case, "bare streams and additions (s)", times[0] / calls))
        show(Figure("masks", case, names[0], times[1] / times[0], GOAL, at_least=False))
        show(Figure("masks", case, names[1], times[2] / times[0]))
    _bench_survivors(show, 2 if quick else 10)
    _bench_sparse(show, 128 if quick else MANY)
    _bench_many(show, 1 if quick else 5)


def _bench_survivors(show: Show, repeats: int) -> None:
    rng = np.random.default_rng(0)
    problems = [
        RidgeRegression(rng.standard_normal((8, LONG)), rng.standard_normal(8), regularizer=L2(0.5))
        for _ in range(SURVIVED)
    ]
    app = client_app("fed-pdm", lambda c: problems[int(c.node_config["partition-id"])])
    streams, agreements = _floor(10 * repeats)
    case = f"d = {LONG:.0e}, roster {SURVIVED}, sum-threshold {THRESHOLD}"
    show(Figure("masks", case, "own masks, drawn twice (s of CPU)", streams))
    show(Figure("masks", case, "fresh agreements (s of CPU)", agreements))
    name = "a round with / without"
    for steps, goal in ((LOCAL_STEPS, WITH_GOAL), (1, None)):
        pairs = [
            [_round(app, threshold, steps=steps) for threshold in (0, THRESHOLD)]
            for _ in range(repeats)
        ]
        times = [[one.seconds for one in pair] for pair in pairs]
        best = np.min(times, axis=0)
        paired = float(np.median([with_ / without for without, with_ in times]))
        here = f"{case}, local steps {steps}"
        show(Figure("masks", here, "a round without (s of CPU)", best[0]))
        floor = 1 + (streams + agreements) / best[0]
        show(Figure("masks", here, "floor: own masks, agreements, without / without", floor))
        show(Figure("masks", here, f"{name}, median of pairs", paired, goal, at_least=False))
        show(Figure("masks", here, f"{name}, the least of either", best[1] / best[0]))
    for what, one in zip(("without", "with"), pairs[0], strict=True):
        show(Figure("masks", case, f"messages of a round {what}", one.messages))


def _floor(repeats: int) -> tuple[float, float]:
    """Return the processor's time of what a round with cannot do without."""
    words, keys = np.zeros(LONG, np.uint64), [X25519PrivateKey.generate() for _ in range(SURVIVED)]
    public = [key.public_key() for key in keys]
    taken = np.full(2, np.inf)
    for _ in range(repeats):
        begun = time.process_time()
        drawn = [(True, key_stream(bytes([place] * 32))) for place in range(2 * SURVIVED)]
        for one in drawn:
            apply_streams(words, [one])
        masked = time.process_time()
        for key in keys:
            for other in public:
                key.exchange(other)
        agreed = (time.process_time() - masked) * (SURVIVED - 1) / SURVIVED / 2  # once a pair
        taken = np.minimum(taken, (masked - begun, agreed))
    return float(taken[0]), float(taken[1])


class Round(NamedTuple):
    """The processor's time of a round, and its messages and their bytes to and from all agents."""

    seconds: float
    messages: float
    bytes_down: float
    bytes_up: float


def _round(
    app: ClientApp,
    threshold: int,
    agents: int = SURVIVED,
    rounds: tuple[int, int] = (2, 8),
    steps: int = 1,
) -> Round:
    """Return what a round takes, of a longer run less a shorter."""
    taken = []
    for number in rounds:
        grid = CountingGrid(app, agents)
        strategy = FedPDM(
            num_agents=agents,
            max_local_steps=steps,
            step_size_base=1e-6,
            step_size_rule="constant",
            secure_sum=True,
            sum_threshold=threshold,
        )
        start = ArrayRecord({"x": Array(np.zeros(LONG))})
        begun = time.process_time()
        history = strategy.start(grid, start, num_rounds=number).history
        seconds = time.process_time() - begun
        sent = [sum(getattr(one, way) for one in history) for way in ("bytes_down", "bytes_up")]
        taken.append((seconds, grid.messages, *sent))
    short, long = np.array(taken) / (rounds[1] - rounds[0])
    return Round(*(long - short).tolist())


def _bench_sparse(show: Show, agents: int) -> None:
    rng = np.random.default_rng(0)
    problem = RidgeRegression(
        rng.standard_normal((8, LONG)), rng.standard_normal(8), regularizer=L2(0.5)
    )
    app, threshold = client_app("fed-pdm", lambda context: problem), least_threshold(agents, 1)
    streams = [key_stream(bytes([place] * 32)) for place in range(100)]
    before = _processor(partial(_bytes_alone, streams, LONG))
    taken = _round(app, threshold, agents, (1, 2))
    alone = (before + _processor(partial(_bytes_alone, streams, LONG))) / 2 / len(streams)
    others = agents - 1
    neighbours = others * (1 - (1 - NEIGHBOURS / others) ** 2)
    drawn = agents * (neighbours + 2) * alone  # own masks are drawn twice
    case = f"d = {LONG:.0e}, roster {agents}, sum-threshold {threshold}"
    show(Figure("masks", case, "neighbours of an agent, on average", neighbours))
    show(Figure("masks", case, "ChaCha20 bytes alone (s of CPU)", drawn))
    show(Figure("masks", case, "a round (s of CPU)", taken.seconds))
    show(Figure("masks", case, "a round / bytes alone", taken.seconds / drawn))
    show(Figure("masks", case, "messages of a round", taken.messages))
    upload = 8 * (LONG + 1)
    show(
        Figure(
            "masks", case, "bytes from an agent beside its upload", taken.bytes_up / agents - upload
        )
    )
    show(
        Figure(
            "masks",
            case,
            "bytes to an agent beside the model",
            taken.bytes_down / agents - 8 * LONG,
        )
    )


def _processor(work: Callable[[], None]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


class CountingGrid(InlineGrid):
    """Counts the messages that agents are sent."""

    messages = 0

    def deliver(self, message: Message) -> Message | None:
        self.messages += 1
        return super().deliver(message)


def _bench_many(show: Show, repeats: int) -> None:
    dim, words = 100_000, np.zeros(100_000, np.uint64)
    keys = {str(number): key_pair() for number in range(MANY)}
    roster = tuple((name, pair.public) for name, pair in keys.items())
    operators = [Ed25519PrivateKey.generate() for _ in roster]
    pinned = {
        name: one.public_key().public_bytes_raw() for name, one in zip(keys, operators, strict=True)
    }
    trust = Trust(-1, KeyPair(b"", b""), pinned)
    PairwiseMasks(keys[ME]).pair_keys(ME, Binding("many", 1, 1, roster))  # the agreements, kept
    times = np.full(3, np.inf)
    for attempt in range(1, repeats + 1):
        binding = Binding("many", 1, attempt, roster)
        said = statement(binding)
        signed = [one.sign(said) for one in operators]
        streams = [
            key_stream(key) for key in PairwiseMasks(keys[ME]).pair_keys(ME, binding).values()
        ]
        steps = (
            partial(_bytes_alone, streams, dim),
            partial(trust.require_signed, binding.names, [said] * MANY, signed),
            partial(_masked, words, keys[ME], binding, 1),
        )
        times = np.minimum(times, [best_seconds(step, 1) for step in steps])
    case = f"d = {dim:.0e}, roster {MANY}, pinned keys"
    show(Figure("masks", case, "ChaCha20 bytes alone (s)", times[0]))
    show(Figure("masks", case, "signatures (s)", times[1]))
    names = ("masks / bytes alone", "signatures and masks / bytes alone")
    show(Figure("masks", case, names[0], times[2] / times[0], LARGE_GOAL, at_least=False))
    show(Figure("masks", case, names[1], (times[1] + times[2]) / times[0]))


def _bytes_alone(streams: list[Any], dim: int) -> None:
    nothing, drawn = bytes(1 << 17), bytearray(1 << 17)
    for stream_ in streams:
        for start in range(0, 8 * dim, 1 << 17):
            stream_.update_into(memoryview(nothing)[: min(1 << 17, 8 * dim - start)], drawn)


def _agree(keys: KeyPair, roster: tuple[tuple[str, bytes], ...]) -> None:
    # An experiment of its own each time: agreed secrets are kept.
    PairwiseMasks(keys).pair_keys(ME, Binding(key_pair().public.hex(), 1, 1, roster))


def _bare(words: NDArray[np.uint64], keys: dict[str, bytes], calls: int) -> None:
    for _ in range(calls):
        apply_streams(words, [(name > ME, key_stream(key)) for name, key in keys.items()])


def _masked(words: NDArray[np.uint64], keys: KeyPair, binding: Binding, calls: int) -> None:
    for _ in range(calls):
        PairwiseMasks(keys).apply(words, ME, binding)


def _upload(numbers: NDArray[Any], keys: KeyPair, binding: Binding, calls: int) -> None:
    for _ in range(calls):
        words = ring.encode({"x": numbers}, MEMBERS)
        PairwiseMasks(keys).apply(words.words, ME, binding)
        words.to_bytes()
