"""What masking an upload costs, against nothing but the key streams and the additions.

The bare work is that of the same loop with the streams' keys at hand. On top of it come checking
the roster, its digest and one HKDF per pair; the key agreement is once per pair and run, and shown
by itself. The third figure adds the encoding in the ring and the bytes that travel.

Then a whole round of eight agents and their coordinator, where a sum opens without agents that drop
out, beside one where it does not: one local step of eight rows, so that next to nothing but masks
and messages is in it. The two are played in turns, and the exchanges are counted.

The last is one agent's part of a sum of 1,000 at d = 1e5, as a node with pinned keys does it in
every round: it checks all signatures, too, which is a cost of its own. The ChaCha20 bytes that it
needs are measured beside it.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from privet.client_apps import client_app
from privet.kernel import Binding, KeyPair, PairwiseMasks, Trust, key_pair, stream
from privet.kernel.masks import apply_streams, key_stream, statement
from privet.problems import L2, RidgeRegression
from privet.sim.engine import InlineGrid
from privet.strategies import FedPDM
from privet.wire import ring

from .figure import Figure, Show, best_seconds

GOAL, LARGE_GOAL, WITH_GOAL = 1.5, 1.3, 1.3
MEMBERS, MANY = 10, 1000
LONG, SURVIVED, THRESHOLD = 100_000, 8, 5
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
    _bench_many(show, 1 if quick else 5)


def _bench_survivors(show: Show, repeats: int) -> None:
    rng = np.random.default_rng(0)
    problems = [
        RidgeRegression(rng.standard_normal((8, LONG)), rng.standard_normal(8), regularizer=L2(0.5))
        for _ in range(SURVIVED)
    ]
    app = client_app("fed-pdm", lambda c: problems[int(c.node_config["partition-id"])])
    asked = [_round(app, threshold)[1] for threshold in (0, THRESHOLD)]
    times = [[_round(app, threshold)[0] for threshold in (0, THRESHOLD)] for _ in range(repeats)]
    best = np.min(times, axis=0)
    paired = float(np.median([with_ / without for without, with_ in times]))
    streams, agreements = _floor(10 * repeats)
    case = f"d = {LONG:.0e}, roster {SURVIVED}, sum-threshold {THRESHOLD}"
    show(Figure("masks", case, "a round without (s of CPU)", best[0]))
    show(Figure("masks", case, "own masks, drawn twice (s of CPU)", streams))
    show(Figure("masks", case, "fresh agreements (s of CPU)", agreements))
    floor = 1 + (streams + agreements) / best[0]
    show(Figure("masks", case, "floor: these and a round without / without", floor))
    name = "a round with / without"
    show(Figure("masks", case, f"{name}, median of pairs", paired, WITH_GOAL, at_least=False))
    show(Figure("masks", case, f"{name}, the least of either", best[1] / best[0]))
    show(Figure("masks", case, "messages of a round without", asked[0]))
    show(Figure("masks", case, "messages of a round with", asked[1]))


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
        agreed = (time.process_time() - masked) * (SURVIVED - 1) / SURVIVED
        taken = np.minimum(taken, (masked - begun, agreed))
    return float(taken[0]), float(taken[1])


def _round(app: ClientApp, threshold: int) -> tuple[float, float]:
    """Return the processor's time of a round and its messages, of a longer run less a shorter."""
    taken = []
    for rounds in (2, 8):
        grid = CountingGrid(app, SURVIVED)
        strategy = FedPDM(
            num_agents=SURVIVED,
            max_local_steps=1,
            step_size_base=1e-6,
            step_size_rule="constant",
            secure_sum=True,
            sum_threshold=threshold,
        )
        start = ArrayRecord({"x": Array(np.zeros(LONG))})
        begun = time.process_time()
        strategy.start(grid, start, num_rounds=rounds)
        taken.append((time.process_time() - begun, grid.messages))
    (short, few), (long, many) = taken
    return (long - short) / 6, (many - few) / 6


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
