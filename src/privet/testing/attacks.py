"""Attacks for simulated runs: sites whose data are wrong, or that send what they did not compute.

    grid = attacked_grid("fed-plt", problems, {3, 7}, ATTACKS["alie"])
    FedPLT(num_agents=len(problems)).start(grid, start, num_rounds=20)

What a wrong site sends fits together: state and digest follow the upload that is folded, as those
of an agent that deviates on purpose would, and no check of a reply can tell. Its uploads are
changed as *moves*, by how much they differ from `Half.reference`, the arrays that both sides hold.
The wrong sites know the honest moves of their round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context, Message, MessageType
from numpy.typing import NDArray

from privet.agents.base import Participant
from privet.agents.half import Half, Local
from privet.agents.inputs import Arrays
from privet.agents.method import agreed_on
from privet.agents.sparsifiers import VALUES
from privet.client_apps.app import AgentApp
from privet.core import ConfigError
from privet.problems import L2, BinaryLogistic, MultinomialLogistic
from privet.sim.engine import InlineGrid
from privet.sim.grid import NodeConfig
from privet.wire.contract import Instruction
from privet.wire.payload import ENCODED, encoded, opened
from privet.wire.sparse import decode, encode

Vector = NDArray[Any]

MOST = 1 << 24
"""Numbers of the largest model that is attacked."""


class Seen(NamedTuple):
    """What a wrong site knows when it sends one array of its upload.

    Attributes
    ----------
    own : array (d,)
        The move that it computed, as an honest site would.
    honest : array (k, d)
        The moves of the round's k >= 1 honest participants, in the order of their names.
    wrong : int
        The number of wrong sites.
    round : int
    """

    own: Vector
    honest: Vector
    wrong: int
    round: int


def _as_it_is(arrays: Any) -> Any:
    return arrays


@dataclass(frozen=True)
class Attack:
    """What is wrong at a site: its data, the state that it works from, or the moves that it sends.

    Attributes
    ----------
    name : str
    loud : bool
        Whether one look at the uploads should tell; the others are built to hide.
    problem : callable
        ``problem -> problem``, the data of the site.
    state : callable
        ``state -> state``, what it works from; what follows its upload is that of its true state.
    move : callable, optional
        ``Seen -> array (d,)``, the move that it sends in place of its own.
    """

    name: str
    loud: bool = False
    problem: Callable[[Any], Any] = _as_it_is
    state: Callable[[Arrays], Arrays] = _as_it_is
    move: Callable[[Seen], Vector] | None = None


def differing_sites(
    count: int, seed: int, apart: float = 0.2, skew: float = 0.0
) -> list[BinaryLogistic]:
    """Return honest sites of one truth that differ, to attack: logistic problems of 8 features.

    They differ in size (12 to some hundred rows), in means and in coefficients.

    Parameters
    ----------
    apart : float
        Standard deviation of coefficients between sites; those of the truth have 1.
    skew : float
        With skew > 0 a site keeps its labels with probabilities of a Dirichlet(skew) distribution.
    """
    rng = np.random.default_rng([61, seed, count])
    truth, found = rng.standard_normal(8), []
    for _ in range(count):
        rows = int(np.exp(rng.normal(4.5, 0.7))) + 12
        features = rng.standard_normal((rows, len(truth))) + rng.normal(0, 0.3, len(truth))
        features[:, 0] = 1.0
        chance = 1 / (1 + np.exp(-features @ (truth + rng.normal(0, apart, len(truth)))))
        labels = np.where(rng.random(rows) < chance, 1.0, -1.0)
        if skew:
            share = rng.dirichlet([skew, skew])[0]
            kept = rng.random(rows) < np.where(labels > 0, share, 1 - share)
            kept[:6] = True
            features, labels = features[kept], labels[kept]
        found.append(BinaryLogistic(features, labels, regularizer=L2(0.01)))
    return found


# ------------------------------------------------------------------ wrong data


def with_data(problem: Any, features: Vector, targets: Vector) -> Any:
    """Return a problem of this library's linear models with other data, all else as it is.

    Raises
    ------
    ConfigError
        If it is another problem.
    """
    if not hasattr(problem, "features") or not hasattr(problem, "divisor"):
        raise ConfigError(f"attack on data: {type(problem).__name__} is no linear model")
    named = dict(getattr(problem, "constants", {}))
    if isinstance(problem, MultinomialLogistic):
        named["classes"] = problem.classes
    rule = {"regularizer": problem.regularizer, "divisor": problem.divisor}
    return type(problem)(features, targets, **rule, **named)


def flipped_labels(problem: Any) -> Any:
    """Return a problem with label b as -b, class c as K - 1 - c, or a target as its negative."""
    if isinstance(problem, MultinomialLogistic):
        return with_data(problem, problem.features, problem.classes - 1 - problem.labels)
    held = problem.labels if isinstance(problem, BinaryLogistic) else problem.targets
    return with_data(problem, problem.features, -held)


def other_units(factor: float = 10.0, column: int = 0) -> Callable[[Any], Any]:
    """Return the change of a problem in which one column is in other units."""

    def change(problem: Any) -> Any:
        features = np.array(problem.features)
        features[:, column] *= factor
        targets = problem.labels if hasattr(problem, "labels") else problem.targets
        return with_data(problem, features, targets)

    return change


# ------------------------------------------------------------------ wrong uploads


def scaled(factor: float = 10.0) -> Callable[[Seen], Vector]:
    """Return the attack that sends ``factor`` times the site's own move."""
    return lambda seen: factor * seen.own


def alie(seen: Seen) -> Vector:
    """Return m - z s, with mean m and standard deviation s of the honest moves, entry by entry.

    M. Baruch, G. Baruch, Y. Goldberg, "A Little Is Enough" (2019), Algorithm 3: of n sites f are
    wrong, and with k = floor(n / 2 + 1) - f honest ones farther out than z = Phi^-1((n - f - k) /
    (n - f)) deviations a wrong one is among the half nearest to the mean.
    """
    count = len(seen.honest) + seen.wrong
    share = (len(seen.honest) - (count // 2 + 1 - seen.wrong)) / len(seen.honest)
    z = NormalDist().inv_cdf(min(max(share, 0.5), 0.999))
    result: Vector = seen.honest.mean(axis=0) - z * seen.honest.std(axis=0)
    return result


def against_the_mean(strength: float = 0.5) -> Callable[[Seen], Vector]:
    """Return the attack that sends ``-strength`` times the mean of the honest moves.

    C. Xie, O. Koyejo, I. Gupta, "Fall of Empires" (2020): the mean of all moves then may have a
    negative inner product with the honest one, while each of them is short.
    """
    return lambda seen: -strength * seen.honest.mean(axis=0)


def mimic(seen: Seen) -> Vector:
    """Return the move of the honest site that is first by name, which then counts several times.

    S. P. Karimireddy, L. He, M. Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via
    Bucketing" (2022), section 3, of a fixed site.
    """
    return np.array(seen.honest[0])


def drift(share: float = 0.1) -> Callable[[Seen], Vector]:
    """Return the attack that adds, in round t, ``share`` t times the usual honest norm.

    The addition has equal entries, and the site's own move stays in it.
    """

    def move(seen: Seen) -> Vector:
        usual = float(np.median(np.linalg.norm(seen.honest, axis=1)))
        moved: Vector = seen.own + seen.round * share * usual / math.sqrt(seen.own.size)
        return moved

    return move


def negated_dual(state: Arrays) -> Arrays:
    """Return a state in which all arrays have the opposite sign, but for a model ``x``."""
    return {
        name: array if name == "x" or array.dtype.kind != "f" else -array
        for name, array in state.items()
    }


ATTACKS: Mapping[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack("labels", loud=True, problem=flipped_labels),
        Attack("units", loud=True, problem=other_units()),
        Attack("scaled", loud=True, move=scaled()),
        Attack("flipped", loud=True, move=scaled(-1.0)),
        Attack("dual", loud=True, state=negated_dual),
        Attack("alie", move=alie),
        Attack("inner-product", move=against_the_mean()),
        Attack("mimic", move=mimic),
        Attack("drift", move=drift()),
    )
}
"""The attacks by name; "dual" is nothing where agents keep no dual."""


# ------------------------------------------------------------------ agents and engine


class _Together:
    """What the sites of a grid share: the honest moves of the round under way."""

    def __init__(self, wrong: Collection[int], attack: Attack) -> None:
        self.wrong, self.attack = frozenset(wrong), attack
        self.round, self.moves = 0, list[Arrays]()

    def note(self, round_: int, moves: Arrays) -> None:
        """Keep the move of an honest site."""
        if round_ != self.round:
            self.round, self.moves = round_, []
        self.moves.append(moves)

    def sent(self, name: str, own: Vector, round_: int) -> Vector:
        """Return the move that a wrong site sends."""
        if self.attack.move is None or round_ != self.round:
            return own
        honest = np.array([moves[name] for moves in self.moves])
        return self.attack.move(Seen(own, honest, len(self.wrong), round_))


class _Watched:
    """An agent half whose moves are noted, or changed; all else is that of the half."""

    def __init__(self, half: Half, together: _Together, *, wrong: bool) -> None:
        self.half, self.together, self.wrong = half, together, wrong

    def __getattr__(self, name: str) -> Any:
        return getattr(self.half, name)

    def local_update(self, state: Arrays, broadcast: Arrays, records: Any, streams: Any) -> Local:
        """Do the round's local work; of a wrong site, from and with what is wrong."""
        half, round_, together = self.half, streams.round, self.together
        start = together.attack.state(state) if self.wrong else state
        local = half.local_update(start, broadcast, records, streams)
        told = opened(broadcast, MOST)
        near, own = half.reference(state, told), _vectors(half, local.upload)
        moves = {name: array - near.get(name, 0.0) for name, array in own.items()}
        if not self.wrong:
            together.note(round_, moves)
            return local
        sent = dict(own)
        for name, array in own.items():
            move = together.sent(name, moves[name], round_)
            if move is not moves[name]:  # there and back again it would lose its last bit
                away: Vector = move + near.get(name, 0.0)
                sent[name] = away.astype(array.dtype, copy=False)
        new = half.follow(state, told, sent)
        agreed = agreed_on(new, sent)
        if ENCODED in local.upload:
            sent = encoded(encode(sent[VALUES]))
        return Local({**local.state, **new}, sent, agreed)


def _vectors(half: Half, upload: Arrays) -> dict[str, Vector]:
    """Return the arrays (d,) of an upload (raises ``ConfigError`` for a share or a code of one)."""
    arrays = dict(upload)
    if ENCODED in arrays:
        vector = decode(arrays.pop(ENCODED).tobytes(), max_dim=MOST)
        if vector.positions is not None:
            raise ConfigError(f"attacks: {half.name} sends some coordinates alone: send all")
        arrays[VALUES] = vector.values
    if half.codes:
        raise ConfigError("attacks: uploads are coded: set value-bits = none")
    return arrays


class _Site(Participant):
    """A participant whose halves are watched."""

    def __init__(self, problems: Sequence[Any], protocol: str, together: _Together) -> None:
        changed = together.attack.problem
        self._sites = [
            changed(one) if place in together.wrong else one for place, one in enumerate(problems)
        ]
        self._together = together
        super().__init__(lambda context: self._sites[_place(context)], protocol=protocol)

    def half(self, instruction: Instruction, context: Context) -> Half:
        """Return the half that an instruction names, watched."""
        half: Any = super().half(instruction, context)
        wrong = _place(context) in self._together.wrong
        return _Watched(half, self._together, wrong=wrong)  # type: ignore[return-value]


def _place(context: Context) -> int:
    return int(context.node_config["partition-id"])


class _AttackedGrid(InlineGrid):
    """Runs every agent in this process, the wrong ones of a round last."""

    wrong: frozenset[int] = frozenset()

    def dispatch(self, messages: list[Message]) -> None:
        """Run the honest agents first; in a round's messages alone is there a difference."""
        super().dispatch(sorted(messages, key=self._is_wrong))

    def _is_wrong(self, message: Message) -> bool:
        if message.metadata.message_type != MessageType.TRAIN:
            return False
        return _place(self.contexts[message.metadata.dst_node_id]) in self.wrong


def attacked_grid(
    algorithm: str,
    problems: Sequence[Any],
    wrong: Collection[int],
    attack: Attack,
    nodes: Sequence[NodeConfig] = (),
) -> InlineGrid:
    """Return the engine in this process on which the agents of some places are wrong.

    Parameters
    ----------
    algorithm : str
    problems : sequence of Problem
        Agent i, of partition-id i, holds problem i; a wrong one holds ``attack.problem`` of it.
    wrong : collection of int
    attack : Attack
        One of `ATTACKS`, or of your own.
    nodes : sequence of mappings, optional
        Further keys of the node configs, in order.

    Raises
    ------
    ConfigError
        If every agent is wrong, or the attack cannot change these problems.

    Notes
    -----
    Uploads that are coded, or a share of the model's numbers, are refused by a line of the agent.
    """
    if not set(wrong) < set(range(len(problems))):
        raise ConfigError(f"attacked_grid: wrong is {sorted(wrong)} of {len(problems)} agents")
    app = AgentApp(_Site(problems, algorithm, _Together(wrong, attack)), None)
    extra = nodes or ({},) * len(problems)
    count = len(problems)
    configs = [{"partition-id": i, "num-partitions": count, **extra[i]} for i in range(count)]
    grid = _AttackedGrid(app, configs)
    grid.wrong = frozenset(wrong)
    return grid
