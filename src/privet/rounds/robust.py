"""Robust folds: uploads of a round are changed so that a few wrong ones cannot move it at will.

With m_i the move of upload i, by how much it differs from `Half.reference` (0 where that is the
agent's own), n uploads of which at most f = `faulty` may be wrong, and v the coordinatewise median:

* trimmed: of each coordinate the f lowest and the f highest of the m_i are replaced by the mean of
  the others, so that the mean over all is the trimmed mean of D. Yin, Y. Chen, R. Kannan,
  P. Bartlett, "Byzantine-Robust Distributed Learning" (2018), Definition 2;
* median: every m_i is replaced by v (Definition 1 there);
* centred-clipping: m_i <- v + min(1, tau / ||m_i - v||) (m_i - v), the step of S. P. Karimireddy,
  L. He, M. Jaggi, "Learning from History for Byzantine Robust Optimization" (2021), equation (CC),
  from the median in place of the last round's aggregate. tau is the largest ||m_i - v|| but for the
  floor(2 (f / n) (n - f)) largest, the number that Y. Allouah et al., "Adaptive Gradient Clipping
  for Robust Federated Learning" (2025), clip;
* robust-mixing, before each of these: every m_i is replaced by the mean of the n - f moves nearest
  to it, itself among them: Y. Allouah et al., "Fixing by Mixing" (2023).

A fold returns *uploads*, and the method goes on with them as with any others: its mean, its duals
and its tables are those of what was folded. An agent that keeps a state computed it from what it
had sent; where that was changed, the next message has the state that follows what was folded
(`EnrolledAgent.refolded`). A median, and moves that were mixed, are no agent's own: no dual follows
them, and methods whose agents keep one refuse these two.

It is computed of uploads that were released, so in a private run it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privet.core import ConfigError, RunError
from privet.core.key import setting

from .half import ServerHalf
from .participation import Fraction, Participation
from .uploads import Block, Uploads

Table = NDArray[Any]

NONE, TRIMMED, MEDIAN, CLIPPING = "none", "trimmed", "median", "centred-clipping"
FOLDS = (TRIMMED, MEDIAN, CLIPPING)


@dataclass(frozen=True)
class RobustSettings:
    """Run-config keys of the robust fold."""

    topic: ClassVar[str] = "Sites that are wrong"

    robust: str = setting(
        NONE,
        "what a round's uploads are folded by, so that a few wrong ones cannot move it at will",
        choices=(NONE, *FOLDS),
    )
    faulty: int = setting(
        1, "how many uploads of a round may be wrong, at most", low=1, needs={"robust": FOLDS}
    )
    robust_mixing: bool = setting(
        False,
        "whether each upload is replaced by the mean of those nearest to it before that",
        needs={"robust": FOLDS},
    )


# ------------------------------------------------------------------ the folds, of moves


class Moves(NamedTuple):
    """Moves (n, d) as they are folded, and which of their numbers are not as they were sent."""

    values: Table
    changed: NDArray[np.bool_]


def trimmed(moves: Table, faulty: int) -> Moves:
    """Return moves whose mean is the trimmed mean of each coordinate.

    Of numbers that are equal the agents' order decides which are trimmed.
    """
    order = np.argsort(moves, axis=0, kind="stable")
    kept = order[faulty : len(moves) - faulty]
    mean = np.take_along_axis(moves, kept, axis=0).mean(axis=0)
    changed = np.ones(moves.shape, bool)
    np.put_along_axis(changed, kept, False, axis=0)
    return Moves(np.where(changed, mean, moves), changed)


def median(moves: Table, faulty: int) -> Moves:
    """Return the coordinatewise median of the moves, in the place of each."""
    middle = np.median(moves, axis=0)
    return Moves(np.broadcast_to(middle, moves.shape), np.ones(moves.shape, bool))


def centred_clipping(moves: Table, faulty: int) -> Moves:
    """Return moves that are no farther from the median than all but some are, see the module."""
    count = len(moves)
    middle = np.median(moves, axis=0)
    gaps = moves - middle
    far = np.linalg.norm(gaps, axis=1)
    clipped = min(2 * faulty * (count - faulty) // count, count - 1)
    radius = np.partition(far, count - 1 - clipped)[count - 1 - clipped]
    beyond = far > radius
    share = radius / np.where(beyond, far, 1.0)
    values = np.where(beyond[:, None], middle + share[:, None] * gaps, moves)
    return Moves(values, np.broadcast_to(beyond[:, None], moves.shape))


def mixed(moves: Table, faulty: int) -> Table:
    """Return for each move the mean of the n - faulty ones that are nearest to it.

    Of moves that are equally near those first in the agents' order are taken.
    """
    squares = np.einsum("ij,ij->i", moves, moves)
    apart = squares[:, None] + squares - 2.0 * moves @ moves.T
    np.fill_diagonal(apart, -1.0)
    apart[np.isnan(apart)] = np.inf
    near = np.argsort(apart, axis=1, kind="stable")[:, : len(moves) - faulty]
    return np.array([_mean(moves[rows]) for rows in near])


def _mean(moves: Table) -> Table:
    """Return the mean of moves (k, d), also where their sum is more than the largest number."""
    mean: Table = moves.mean(axis=0)
    return np.where(np.isfinite(mean), mean, (moves / len(moves)).sum(axis=0))


_FOLDS: Mapping[str, Callable[[Table, int], Moves]] = {
    TRIMMED: trimmed,
    MEDIAN: median,
    CLIPPING: centred_clipping,
}


# ------------------------------------------------------------------ the fold of a run


@dataclass
class RobustFold:
    """The robust fold of a run.

    Attributes
    ----------
    settings : RobustSettings
    changed : frozenset of int
        The positions of agents whose state follows another upload than they sent last.
    """

    settings: RobustSettings = field(default_factory=RobustSettings)
    changed: frozenset[int] = frozenset()

    def folded(self, half: ServerHalf[Any], state: Any, uploads: Uploads) -> Uploads:
        """Return the uploads that a round folds in place of those that came; all are in memory.

        Raises
        ------
        RunError
            If there are too few, so that most of them might be wrong.
        """
        self.changed = frozenset()
        if self.settings.robust == NONE or not uploads:
            return uploads
        faulty, count = self.settings.faulty, len(uploads)
        if count <= 2 * faulty:
            raise RunError(
                f"robust = {self.settings.robust}: a round has {count} uploads, of which faulty = "
                f"{faulty} may be wrong: set min-agents = {2 * faulty + 1}, so that it is tried "
                "again, or a smaller faulty"
            )
        like = half.model(state)
        blocks = [block._replace(upload=block.vectors(like), state=None) for block in uploads]
        # Each method that takes such a fold sends one vector.
        (name,) = blocks[0].upload
        sent = np.concatenate([block.upload[name] for block in blocks])
        near = np.concatenate([_near(half, state, block, name) for block in blocks])
        moves = sent.astype(np.float64) - near
        with np.errstate(over="ignore", invalid="ignore"):  # of moves that are meant to overflow
            before = mixed(moves, faulty) if self.settings.robust_mixing else moves
            new, changed = _FOLDS[self.settings.robust](before, faulty)
        changed = changed | (before is not moves)
        folded = np.where(changed, near + new, sent).astype(sent.dtype)
        if half.rows(like):
            # In a private run of all, so that whom a message is larger for says nothing.
            differs = (folded != sent).any(axis=1) | half.agent.private
            self.changed = frozenset(np.array(uploads.positions)[differs].tolist())
        ends = np.cumsum([len(block.positions) for block in blocks])[:-1]
        parts = zip(blocks, np.split(folded, ends), strict=True)
        result = Uploads.of(
            *(block._replace(upload={name: rows}) for block, rows in parts), ages=uploads.ages
        )
        result.gaps = uploads.gaps
        return result

    def average(self, statistics: Sequence[Table]) -> Table:
        """Return the mean of the agents' statistics, or their median where the fold is robust."""
        average = np.mean if self.settings.robust == NONE else np.median
        result: Table = average(np.array(statistics, np.float64), axis=0)
        return result


def _near(half: ServerHalf[Any], state: Any, block: Block, name: str) -> Table:
    """Return what both sides hold that the uploads (k, d) of a block are near to."""
    held = half.recovery(state, block.where) or {}
    rows = block.upload[name]
    near = half.agent.reference(held, block.sent).get(name, np.zeros(1))
    return np.broadcast_to(np.asarray(near, np.float64), rows.shape)


# ------------------------------------------------------------------ who takes it


def require_robust(
    half: ServerHalf[Any], settings: RobustSettings, *, folds_old: bool
) -> ServerHalf[Any]:
    """Return the half of a run with a robust fold.

    Raises
    ------
    ConfigError
        If the method does not take it, naming why.
    """
    what = f"robust = {settings.robust}: not with "
    if half.masked:
        raise ConfigError(f"{what}secure-sum, whose server sees no upload")
    if folds_old:
        raise ConfigError(f"{what}a run that folds uploads as they come: it compares all at once")
    if half.no_robust:
        raise ConfigError(f"{what}{half.name}: {half.no_robust}")
    half = half.guarded()
    if half.rows(np.zeros(1)) and (settings.robust_mixing or settings.robust == MEDIAN):
        which = "robust-mixing" if settings.robust_mixing else "robust = median"
        raise ConfigError(
            f"{which}: not with {half.name}, whose agents keep a dual, which could follow no move "
            "but the agent's own: use trimmed or centred-clipping"
        )
    return half


def require_most_right(
    settings: RobustSettings, num_agents: int, min_agents: int, participation: Participation
) -> None:
    """Refuse rounds of which most uploads may be wrong (raises ``ConfigError``)."""
    if settings.robust == NONE:
        return
    least = 2 * settings.faulty + 1
    needed = f"robust = {settings.robust} with faulty = {settings.faulty} needs {least} at least"
    if 0 < num_agents < least:
        raise ConfigError(f"num-agents = {num_agents}: {needed}")
    chosen = num_agents
    if isinstance(participation, Fraction) and num_agents:
        chosen = participation.count(num_agents)
    if 0 < chosen < least:
        raise ConfigError(f"participation: {chosen} agents in a round: {needed}")
    if min_agents < least:
        raise ConfigError(f"min-agents = {min_agents}: {needed}")
