"""Audit the privacy of a run: the run itself, with canaries in place of records.

Every agent's records are replaced by canaries: one row each with a single entry, in a separate
column, whose clipped gradient has the largest possible norm. A coin toss decides whether its
neighbour is there instead: the row with the other sign, or none (relation add-remove), so that the
gradient moves by as much as a record can move it. The other rows are zero; where a whole agent is
the unit (relation replace-agent), they are copies of its one canary. Numbers that the account
rests on - examples, divisor, loss, regulariser, clip, noise, rounds - are those of the run, and the
participants, the strategy, masks and accounts are the real ones.

The coordinator sees every upload in clear, or every masked sum, and every model. From half of the
canaries, whose coins are revealed to it, it learns which weights of the rounds separate the two (a
linear discriminant), and guesses the coins of the others. No choice of weights can make the bounds
wrong, only weak. Colluding agents of a shared noise add none.

Two more checks need no guess. The first run is repeated: an upload that then has the same bits had
no noise. And the distance of each of its uploads in clear from the same upload without noise is
measured in units of the charged scale (`privet.sim.residuals`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import Context, Message, MessageType, RecordDict
from numpy.typing import NDArray

from privet.core import ConfigError, RunError, algorithm
from privet.core.key import Config
from privet.kernel import AgentLedger
from privet.problems import LinearModel, RidgeRegression
from privet.server_apps import read_config
from privet.server_apps.build import build_federation, build_strategy, starting_model
from privet.strategies import Round
from privet.wire import ring
from privet.wire.contract import Instruction, Update, read_instruction, read_update
from privet.wire.payload import ENCODED
from privet.wire.records import own_content

from .empirical import (
    best_guesses,
    deviation_bound,
    gaussian_bound,
    guessing_bound,
    numbers_of_guesses,
    scale_bound,
)
from .engine import InlineGrid
from .grid import App, NodeConfig
from .inline import app_of
from .power import Power, separation, smallest_lack_of_draws
from .residuals import Replays, Residuals, Silence, vectors_of
from .trusting import require_colluders, trusting_nodes

Vector = NDArray[np.float64]
Signs = NDArray[np.float64]

CANARIES = 2000
FALSE_ALARMS = 1e-3
CODED = "value-bits"
"""The key that an audit ignores: it encodes noised numbers, which proves nothing more."""
BOUNDS = 3
"""That share the chance of a false alarm: by guesses, by the gap of means, by the spread."""
SHARES = (0.005, 0.02, 0.1, 0.3, 1.0)
"""Of the canaries that are guessed on, the surest of them and all: those that delta lets prove."""
FEWEST_NUMBERS = 4
"""Of an upload that is compared with itself: grids and noise are such that the chance of one equal
number is below 2^-12, and so below 2^-48 for the whole."""
SMOOTH = 3
"""Degree of the polynomials that fit a canary's signal over the rounds."""
LOUD = 8.0
"""Entry of a canary, in units of the clip: its gradient is beyond the clip, and stays there."""
FAR = 1e4
"""Where an update is clipped, how much farther its target is: short steps, too, have to bring the
update beyond the clip."""


@dataclass(frozen=True, slots=True)
class PrivacyAudit:
    """The bounds proven for a run, and the privacy it claims.

    Attributes
    ----------
    epsilon, delta : float
        The privacy that the run claims by its account.
    guessed : float
        Lower bound on epsilon by the guesses on canaries (`privet.sim.empirical`).
    provable : float
        The value of ``guessed`` had every guess been right.
    measured : float
        Lower bound on epsilon by the gap of the means, exact where what is seen is Gaussian; NaN
        where the noise is not.
    spread : float
        Epsilon of the account with the largest scale that the noise may have by what was seen of
        it; NaN where it cannot be separated in the uploads.
    repeated : bool
        True if an upload had the same bits when the first run was repeated.
    canaries, guesses, correct : int
        Canaries that were left to guess on, half of all; how many guesses the bound is of, and how
        many were right.
    runs : int
        Runs that were played.
    false_alarms : float
        The chance that a bound is above the epsilon of a mechanism that keeps it.
    lack : float
        The smallest share of the noise that could be missing, wherever it got lost, and be found by
        the canaries nine times in ten; NaN if none would be (`privet.sim.power`).
    lack_of_draws : float
        The same of noise that is drawn too small, by the spread; NaN where that is not measured.
    power : Power
        What ``lack`` follows from.
    """

    epsilon: float
    delta: float
    guessed: float
    provable: float
    measured: float
    spread: float
    repeated: bool
    canaries: int
    guesses: int
    correct: int
    runs: int
    false_alarms: float
    lack: float
    lack_of_draws: float
    power: Power

    @property
    def bound(self) -> float:
        """The largest bound."""
        return max(
            bound for bound in (self.guessed, self.measured, self.spread) if not math.isnan(bound)
        )

    @property
    def broken(self) -> bool:
        """True if a bound is above the claimed epsilon, or an upload was repeated."""
        return self.repeated or self.bound > self.epsilon

    @property
    def reach(self) -> float:
        """The largest epsilon that could have been proven; the law of the noise has no limit."""
        by_guesses_alone = math.isnan(self.measured) and math.isnan(self.spread)
        return self.provable if by_guesses_alone else math.inf


def audit(
    raw: Mapping[str, Any],
    *,
    canaries: int = CANARIES,
    false_alarms: float = FALSE_ALARMS,
    colluders: int | None = None,
    rng: np.random.Generator | None = None,
    on_round: Callable[[int, int], None] | None = None,
) -> PrivacyAudit:
    """Audit the privacy that a run config promises, in this process.

    Parameters
    ----------
    raw : mapping
        Run config; the keys are those of ``privet.server_apps.config``. Its data give their public
        numbers alone.
    canaries : int
        Least number of canaries, over as many runs as needed.
    false_alarms : float
        The chance of an alarm that all bounds may have together, where the run keeps its word.
    colluders : int, optional
        Nodes pin each other's keys and trust all but so many, as in ``run_inline``.
    rng : Generator, optional
        Generator of the coins; by default seeded by the system.
    on_round : callable, optional
        ``(played, all)``, called after every round with the number of rounds so far and of all
        runs.

    Raises
    ------
    ConfigError
        If the config cannot be used, or promises nothing.
    RunError
        If the run fails.
    """
    config = read_config({key: value for key, value in raw.items() if key != CODED})
    require_colluders(config, colluders)
    rng = rng or np.random.default_rng()
    problems = build_federation(config).problems
    if not config.get("clip", 0.0):
        raise ConfigError("clip = none: an audit needs a run that clips and adds noise")
    first = _coins(config, problems, canaries, colluders or 0, rng)
    watched = sum(one.present.size for one in first[: len(first) - (colluders or 0)])
    runs = -(-canaries // max(watched, 1))
    after = _told(on_round, (runs + 1) * config["num-server-rounds"])
    seen = [_play(config, first, colluders, after, residuals=Residuals())]
    while sum(one.present.size for one in seen) < canaries:
        coins = _coins(config, problems, canaries, colluders or 0, rng)
        seen.append(_play(config, coins, colluders, after))
    if not all(0 < one.epsilon < math.inf for one in seen):
        raise ConfigError("an audit needs a run that is private, and this one says it is not")
    delta, error = seen[0].delta, false_alarms / BOUNDS
    scores, truth = _scores(seen, rng)
    counts = numbers_of_guesses(scores.size, delta, error=error, shares=SHARES)
    guessed, guesses, correct = best_guesses(scores, truth, delta, error=error, counts=counts)
    gaussian = all(one.ledger.totals.method == "gaussian" for one in seen)
    epsilon = max(one.epsilon for one in seen)
    power = Power(
        separation=separation(scores[truth], scores[~truth]),
        epsilon=epsilon,
        delta=delta,
        mu=max(one.ledger.totals.mu for one in seen) if gaussian else math.nan,
        error=error,
        shares=SHARES,
    )
    return PrivacyAudit(
        epsilon=epsilon,
        delta=delta,
        guessed=guessed,
        provable=max(
            guessing_bound(count, count, scores.size, delta, error=error / len(counts))
            for count in counts
        ),
        measured=_gap(scores, truth, delta, error) if gaussian else math.nan,
        spread=_spread(seen[0], error),
        repeated=not seen[0].uploads.isdisjoint(_play(config, first, colluders, after).uploads),
        canaries=scores.size,
        guesses=guesses,
        correct=correct,
        runs=len(seen),
        false_alarms=false_alarms,
        lack=power.smallest_lack(scores.size),
        lack_of_draws=_lack_of_draws(seen[0].residuals, error),
        power=power,
    )


def _told(
    on_round: Callable[[int, int], None] | None, rounds: int
) -> Callable[[Round, object], None]:
    """Return a callback of rounds, which calls ``on_round`` with those played and all there are."""
    played = itertools.count(1)

    def after(done: Round, strategy: object) -> None:
        if on_round is not None:
            on_round(next(played), rounds)

    return after


def _gap(scores: Vector, truth: NDArray[np.bool_], delta: float, error: float) -> float:
    """Return the epsilon that the gap of two Gaussian means proves, NaN where none is measured.

    ``truth`` says which scores are of canaries that were there.
    """
    halves = scores[truth], scores[~truth]
    # Coins may fall all alike, and scores of a run without noise have no deviation to measure by.
    spreads = all(half.size for half in halves) and any(np.ptp(half) > 0 for half in halves)
    return gaussian_bound(*halves, delta, error=error) if spreads else math.nan


def _lack_of_draws(residuals: Residuals | None, error: float) -> float:
    if residuals is None or not residuals.fits:
        return math.nan
    return smallest_lack_of_draws(residuals.count, gaussian=residuals.gaussian, error=error)


def _spread(seen: _Seen, error: float) -> float:
    """Return the epsilon of an account with the noise's scale as it is at most, NaN if unknown."""
    residuals = seen.residuals
    if residuals is None or not (residuals.fits and residuals.count):
        return math.nan
    bound = deviation_bound if residuals.gaussian else scale_bound
    share = bound(residuals.total, residuals.count, error=error)
    entries = (
        (replace(release, scale=release.scale * share), times)
        for release, times in seen.ledger.entries
    )
    spent = AgentLedger.of(entries).spent(seen.delta)
    return spent if share < 1 else min(spent, seen.epsilon)


# ------------------------------------------------------------------ canaries


@dataclass(frozen=True, slots=True)
class _Planted:
    """One agent's canaries: its problem, whether each is there, and where to look for it.

    ``looks`` (c, d) are the directions of their gradients at the start.
    """

    problem: LinearModel[Any]
    present: NDArray[np.bool_]
    looks: Vector


def _coins(
    config: Mapping[str, Any],
    problems: Sequence[LinearModel[Any]],
    wanted: int,
    colluders: int,
    rng: np.random.Generator,
) -> list[_Planted]:
    """Return every agent's canaries, in disjoint columns where uploads are summed."""
    disjoint = bool(config.get("secure-sum"))
    columns = min(problem.features.shape[1] for problem in problems)
    watched = max(len(problems) - colluders, 1)
    if disjoint:
        columns //= len(problems)
    if columns < 1:
        raise ConfigError(
            f"an audit of a sum needs a column for each of the {len(problems)} agents: take data "
            "of more columns, or fewer agents"
        )
    alone = _clipped_whole(config) or config.get("relation") == "replace-agent"
    most = 1 if alone else min(columns, -(-wanted // watched))
    return [
        _planted(config, problem, place * columns if disjoint else 0, most, rng)
        for place, problem in enumerate(problems)
    ]


def _clips_update(config: Mapping[str, Any]) -> bool:
    agent = algorithm(str(config["algorithm"])).load_agent()
    return bool(agent.clipping == "update")


def _clipped_whole(config: Mapping[str, Any]) -> bool:
    """Whether one clip bounds what all records of an agent do together."""
    return config.get("clipping") == "batch" or _clips_update(config)


def _planted(
    config: Mapping[str, Any],
    problem: LinearModel[Any],
    first: int,
    most: int,
    rng: np.random.Generator,
) -> _Planted:
    count = min(most, problem.num_examples)
    rows = np.zeros(problem.features.shape, problem.dtype)
    if whole_update := _clips_update(config):
        # Whatever the loss is, the clip alone bounds an update. That of least squares with a far
        # target stays beyond it in every round, where a logistic loss comes to rest.
        kept = problem.regularizer, problem.divisor
        problem = RidgeRegression(rows, np.zeros(len(rows)), regularizer=kept[0], divisor=kept[1])
    size, squares = LOUD * float(config["clip"]), isinstance(problem, RidgeRegression)
    if _clipped_whole(config):
        size *= problem.num_examples
    target = LOUD * max(size, 1.0)
    if whole_update:
        size, target = 1.0, FAR * size
    if bound := float(config.get("row-norm", 0.0)):
        size = min(size, bound)
    rows[np.arange(count), first + np.arange(count)] = size
    targets: Any = getattr(problem, "labels", None)
    if squares:
        targets = np.full(len(rows), target)
    if whole := config.get("relation") == "replace-agent":
        rows[1:], targets = rows[0], np.full_like(targets, targets[0])
    full = problem.with_features(rows, targets)
    start = starting_model(config, problem.dim)["x"].numpy()
    plain = full.regularizer.gradient(start)
    looks = np.array([full.gradient(start, np.array([row])) - plain for row in range(count)])
    norms = np.linalg.norm(looks, axis=1, keepdims=True)
    present = rng.random(count) < 0.5
    absent = 0.0 if config.get("relation") == "add-remove" else -1.0
    signs = np.ones(len(rows), problem.dtype)
    signs[:count] = np.where(present, 1.0, absent)
    if whole:
        signs[:] = signs[0]
    other = full.with_features(full.features * signs[:, None])
    return _Planted(other, present, looks / norms)


# ------------------------------------------------------------------ what is seen


@dataclass(frozen=True, slots=True)
class _Seen:
    """Observations of one run's canaries, and whether each was present (m,).

    ``features`` (m, K, q) are q numbers of each round.

    The other fields are the cost that the honest agents state for their uploads, the ledger of the
    agent with the largest cost, a digest of every upload or sum with its round and agents, and the
    residuals of the uploads from the same uploads without noise.
    """

    features: Vector
    present: NDArray[np.bool_]
    epsilon: float
    delta: float
    ledger: AgentLedger
    uploads: frozenset[tuple[int, tuple[int, ...], bytes]]
    residuals: Residuals | None


def _play(
    config: Config,
    planted: Sequence[_Planted],
    colluders: int | None,
    after: Callable[[Round, Any], None],
    *,
    residuals: Residuals | None = None,
) -> _Seen:
    """Return the observations of a run's canaries; measure ``residuals`` if given."""
    count, silent = len(planted), colluders or 0
    problems = [one.problem for one in planted]
    strategy = build_strategy(config)
    name = str(config["algorithm"])
    honest = app_of(name, problems)
    helper = app_of(name, problems, noise_factory=lambda agent, round_: Silence())

    def app(message: Message, context: Context) -> Message:
        place = int(context.node_config["partition-id"])
        return (helper if place >= count - silent else honest)(message, context)

    with _nodes(problems, colluders, str(config.get("relation", "replace-one"))) as nodes:
        grid = _ObservingGrid(app, nodes, planted[: count - silent])
        if residuals is not None:
            replays = Replays(name, problems, grid.run.run_id, grid.node_configs)
            grid.measure = partial(replays.measure, residuals)
        start = starting_model(config, problems[0].dim)
        rounds = config["num-server-rounds"]
        strategy.start(grid, start, num_rounds=rounds, log_rounds=False, observers=[after])
    return replace(grid.seen(), residuals=residuals)


@contextmanager
def _nodes(
    problems: Sequence[LinearModel[Any]], colluders: int | None, relation: str
) -> Iterator[list[NodeConfig]]:
    """Yield the node configs, whose operators agree to the run's neighbouring relation."""
    configs: list[dict[str, Any]] = [
        {"partition-id": place, "num-partitions": len(problems), "relation": relation}
        for place in range(len(problems))
    ]
    if relation == "add-remove":
        for one, problem in zip(configs, problems, strict=True):
            one["num-examples"] = problem.num_examples
    if colluders is None:
        yield [*configs]
        return
    with TemporaryDirectory() as folder:
        names = map(str, range(len(problems)))
        trusting = trusting_nodes(Path(folder), names, colluders, relation)
        yield [{**one, **other} for one, other in zip(configs, trusting, strict=True)]


@dataclass
class _Sum:
    """Masked uploads of a roster, added up as they come."""

    missing: int
    words: ring.Words | None = None
    places: list[int] = field(default_factory=list)


class _ObservingGrid(InlineGrid):
    """Records the projections of uploads and models on every canary, and nothing else of them."""

    def __init__(self, app: App, nodes: Sequence[NodeConfig], planted: Sequence[_Planted]) -> None:
        super().__init__(app, nodes)
        self._planted = planted
        self._observed: dict[int, dict[int, list[Vector]]] = {i: {} for i in range(len(planted))}
        self._sums: dict[tuple[int, int, tuple[str, ...]], _Sum] = {}
        self._last: dict[int, Update] = {}
        self._uploads: set[tuple[int, tuple[int, ...], bytes]] = set()
        self.measure: Callable[[Message, RecordDict, Instruction, Update], None] | None = None
        """Called with honest agents' messages, their states before these, and the replies."""

    def deliver(self, message: Message) -> Message | None:
        """Deliver a message and record its reply."""
        state = self.contexts[message.metadata.dst_node_id].state
        before = RecordDict() if self.measure is None else own_content(state)
        reply = super().deliver(message)
        if message.metadata.message_type != MessageType.TRAIN:
            return reply
        if reply is None or reply.has_error():
            why = "no reply" if reply is None else reply.error.reason
            raise RunError(f"an agent takes no part in the audit: {why}")
        instruction = read_instruction(message.content)
        update = read_update(
            reply.content, instruction.protocol, instruction.version, instruction.round
        )
        place = int(self.node_configs[message.metadata.dst_node_id]["partition-id"])
        if place < len(self._planted):
            self._last[place] = update
            if self.measure is not None:
                self.measure(message, before, instruction, update)
        if instruction.attempt:
            self._add(instruction, update.payload, place)
        else:
            self._record(instruction, update.arrays(), [place])
        return reply

    @property
    def _dim(self) -> int:
        return self._planted[0].problem.dim

    def _add(self, instruction: Instruction, payload: bytes, place: int) -> None:
        """Add a masked upload to its sum; record a complete sum for all its agents."""
        names = tuple(name for name, _ in instruction.roster)
        one = self._sums.setdefault(
            (instruction.round, instruction.attempt, names), _Sum(len(names))
        )
        words = ring.from_bytes(payload)
        if one.words is None:
            one.words = words
        else:
            ring.add(one.words, words)
        one.places.append(place)
        one.missing -= 1
        if not one.missing:
            self._record(instruction, ring.decode(one.words), one.places)

    def _record(
        self, instruction: Instruction, arrays: Mapping[str, NDArray[Any]], places: Sequence[int]
    ) -> None:
        vectors = vectors_of(arrays, self._dim)
        # Entries that a sparse upload leaves out are zero in every run.
        sparse = ENCODED in arrays
        numbers = sum(int(np.count_nonzero(one)) if sparse else one.size for one in vectors)
        if numbers >= FEWEST_NUMBERS and min(places) < len(self._planted):
            bits = sha256(b"".join(vector.tobytes() for vector in vectors)).digest()
            self._uploads.add((instruction.round, tuple(sorted(places)), bits))
        both = np.array([*vectors, *vectors_of(instruction.broadcast(), self._dim)], np.float64)
        for place in places:
            if place < len(self._planted):
                self._observed[place][instruction.round] = [
                    *(self._planted[place].looks @ both.T).T
                ]

    def seen(self) -> _Seen:
        """Return the observations of all canaries; zero in rounds without their agent."""
        rounds = sorted({number for rows in self._observed.values() for number in rows})
        width = max(
            (len(one) for rows in self._observed.values() for one in rows.values()), default=0
        )
        parts = []
        for place, rows in self._observed.items():
            table = np.zeros((self._planted[place].present.size, len(rounds), width))
            for at, number in enumerate(rounds):
                for which, values in enumerate(rows.get(number, ())):
                    table[:, at, which] = values
            parts.append(table)
        worst = max(self._last.values(), key=lambda update: update.epsilon)
        return _Seen(
            np.concatenate(parts),
            np.concatenate([one.present for one in self._planted]),
            worst.epsilon,
            worst.delta,
            AgentLedger.joined([worst.ledger]),
            frozenset(self._uploads),
            None,
        )


# ------------------------------------------------------------------ guesses


def _scores(seen: Sequence[_Seen], rng: np.random.Generator) -> tuple[Vector, NDArray[np.bool_]]:
    """Return scores and coins of half of the canaries; the other half is the training half.

    Fisher's discriminant w = S^-1 delta around the middle, S the covariance and delta the
    difference of the means. As delta is small compared with its error, only the part of it that
    varies smoothly over the rounds is used: B (B' S^-1 B)^-1 B' S^-1 delta, with polynomials in B.
    """
    features = np.concatenate([one.features for one in seen])
    present = np.concatenate([one.present for one in seen])
    count, rounds, width = features.shape
    smooth = np.polynomial.legendre.legvander(np.linspace(-1, 1, rounds), min(SMOOTH, rounds - 1))
    basis = np.kron(smooth, np.eye(width))
    training = np.zeros(count, bool)
    training[rng.permutation(count)[: count // 2]] = True
    flat = features.reshape(count, -1)
    spread = flat[training].std(axis=0)
    used = flat[:, spread > 0] / spread[spread > 0]
    basis = basis[spread > 0] / spread[spread > 0, None]
    sides = [training & (present == side) for side in (True, False)]
    if not used.size or not all(map(np.any, sides)) or not np.isfinite(used).all():
        raise RunError("too few canaries to audit: take more")
    means = [used[side].mean(axis=0) for side in sides]
    centred = used[training] - np.where(present[training][:, None], *means)
    covariance = centred.T @ centred / len(centred)
    # Small, as uploads that add up over rounds differ by little; not zero, as some repeat others.
    ridge = 1e-6 + 0.1 * max(used.shape[1] / len(centred) - 0.25, 0.0)
    covariance += ridge * np.eye(used.shape[1])
    inverse = np.linalg.solve(covariance, np.column_stack([basis, means[0] - means[1]]))
    fitted, *_ = np.linalg.lstsq(basis.T @ inverse[:, :-1], basis.T @ inverse[:, -1], rcond=1e-10)
    weights = inverse[:, :-1] @ fitted
    middle = (means[0] + means[1]) @ weights / 2.0
    return used[~training] @ weights - middle, present[~training]


__all__ = ["CANARIES", "FALSE_ALARMS", "PrivacyAudit", "audit"]
