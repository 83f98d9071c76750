"""Names sites whose moves are not like the others': wrong units, turned labels, or meant harm.

Of a round's uploads in clear let m_i be the moves, by how much uploads differ from `Half.reference`
(0 where that is the agent's own), and m their coordinatewise median; and where an upload tells the
gradient g_i of the site's f_i at a point p_i (`Half.gradient_told`), dg_i and dp_i their changes
from a round to the next. Three numbers of each site are compared over the last `WINDOW` rounds in
which it took part:

    far:     log || mean of (m_i - m) / median_j || m_j - m || ||
    against: mean of (<m_i, m> - median_j <m_j, m>) / their spread
    steep:   log of max_k r_ik / median_j r_jk, with r_ik^2 = (sum of dg_ik^2) / (sum of dp_ik^2)

of two changes at least; to each sum the `FLOOR` of its mean over the coordinates k is added, so
that none decides along which a site hardly moves. r_ik is a secant of f_i's curvature, which goes
with the square of a column's unit, and is much the same at honest sites whose coefficients and
labels differ.

A site is named where one of the three lies beyond what the bulk of the sites explains, were these
numbers normal, and is large by itself: twice as far as the median site, four times as steep, which
a unit of half the size is, or a move against m. The bulk are three quarters of the sites, as up to
a quarter may be wrong: location and spread are those of the numbers without the highest quarter
(far, steep), or without the quarter that is farthest from the median (against), and the critical
value is that of the largest of n draws so treated, by simulation. Where a run converges, moves
vanish and what differs of them means nothing: a site's distance has to be a `SHARE` of the largest
that the median site had in any round; and ||m|| has to be one of the largest that it had for a
direction to count, as sites pull against an m that is small by chance alone.

Rounds 5 b - 4 to 5 b are given the level `LEVEL` / (b (b + 1)), a third to each number, which add
up to `LEVEL` over a run of any length. Within five rounds windows overlap and are taken as one
look, and numbers of real sites are not normal: the level is a stated one, held against honest runs
by tests (tests/rounds/test_rounds_odd_sites.py).

That is what an honest site which is really another one looks like, too: who is named is to be asked
first. A coordinator of secure sums sees no upload and names nobody (an agent looks at itself there,
`privet.agents.own_moves`), nor does one of a private run, whose moves are mostly noise; uploads of
models of different ages are not compared.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privet.agents.sparsifiers import PLACES
from privet.core.assignments import comma_list

from .observers import Observer
from .run import Run
from .session import Round
from .uploads import Block

log = logging.getLogger("flwr.privet")

Table = NDArray[np.float64]
Kind = Literal["far", "against"]

LEVEL = 0.05
"""The share of honest runs in which somebody may be named."""
WINDOW = 5
"""Rounds over which a site's moves are averaged."""
FEWEST = 4
"""Uploads of a round below which nobody is named."""
TWICE = 2.0
"""How much farther than the median site one has to be; its square is how much steeper."""
SHARE = 0.25
"""The share of the largest usual distance of a run below which a site's says nothing."""
FLOOR = 0.01
"""The share of a site's mean squared change that is added to that of each coordinate."""
STILL = 1e-4
"""The share of the largest usual step of a run below which changes are of inexact solvers."""
NUMBERS = 1 << 14
"""Numbers of a round's uploads that are looked at, in all: evenly spaced coordinates of each."""
DRAWS = 1 << 17
"""Numbers drawn for a critical value."""
MANY = 64
"""Sites from which on the bulk is well known, and a level is divided by their number."""

ODD = "not like the others: agent "
"""Beginning of the note that the history has of a site."""


def odd_sites(history: Iterable[Round]) -> dict[str, str]:
    """Return by site what the notes of a run's rounds say of those that were named."""
    said = (note.removeprefix(ODD) for one in history for note in one.notes if note.startswith(ODD))
    parts = (line.partition(SINCE) for line in said)
    return {name: f"{SINCE.removeprefix(': ')}{rest}" for name, _, rest in parts}


SINCE = ": since round "


def excess(values: Table, kind: Kind) -> Table:
    """Return how many standard deviations of the bulk rows of values (..., n) lie beyond it.

    ``far`` counts upwards, from the mean of the three quarters that are lowest; ``against``
    downwards, from the median, with the spread of the three quarters nearest to it.
    """
    count = values.shape[-1]
    bulk = count - max(1, count // 4)
    with np.errstate(over="ignore", invalid="ignore"):  # moves may be huge, or all alike
        if kind == "far":
            low = np.sort(values, axis=-1)[..., :bulk]
            gaps, spread = values - low.mean(axis=-1)[..., None], low.std(axis=-1, ddof=1)
        else:
            gaps = np.median(values, axis=-1)[..., None] - values
            near = np.sort(np.abs(gaps), axis=-1)[..., :bulk]
            spread = np.sqrt(np.square(near).mean(axis=-1))
        result: Table = gaps / np.maximum(spread, TINY)[..., None]
    return result


TINY = float(np.finfo(np.float64).tiny)
LARGEST = 1e300
"""Of an excess: where the others are all alike it is near the largest number, and has a mean."""


@lru_cache(maxsize=256)
def critical(count: int, level: float, kind: Kind) -> float:
    """Return what the largest `excess` of normal numbers exceeds with this probability.

    Levels that the draws do not reach are extrapolated by the power law of the tail, which the
    ratio of two normal numbers has.
    """
    if count > MANY:
        return critical(MANY, level * MANY / count, kind)
    draws = DRAWS // count
    values = np.random.default_rng(0).standard_normal((draws, count))
    largest = excess(values, kind).max(axis=-1)
    least = 50.0 / draws
    if level >= least:
        return float(np.quantile(largest, 1.0 - level))
    usual, rare = np.quantile(largest, [1.0 - 4.0 * least, 1.0 - least])
    return float(rare * (rare / usual) ** (math.log(least / level) / math.log(4.0)))


class Look(NamedTuple):
    """What a round shows of one site.

    Attributes
    ----------
    gap : array (k,)
        m_i - m at the coordinates looked at, over the median of the sites' distances.
    opposed : float
        The excess of <m_i, m> downwards.
    along : float
        <m_i, m> / ||m||^2: 1 of a site that moves as the others do.
    distance : float
        ||m_i - m||.
    middle : float
        ||m||, of all sites.
    """

    gap: Table
    opposed: float
    along: float
    distance: float
    middle: float


def look_at(moves: Table) -> list[Look]:
    """Return what a round's moves (n, k) show of each site; nothing where it cannot be computed."""
    with np.errstate(all="ignore"):
        middle = np.median(moves, axis=0)
        gaps = moves - middle
        distances = np.linalg.norm(gaps, axis=1)
        gaps /= np.median(distances)
        along = moves.dot(middle) / middle.dot(middle)
        opposed = excess(along, "against")
        length = float(np.linalg.norm(middle))
    if not (np.isfinite(gaps).all() and np.isfinite(opposed).all()):
        return []
    opposed = np.clip(opposed, -LARGEST, LARGEST)
    each = zip(gaps, opposed.tolist(), along.tolist(), distances.tolist(), strict=True)
    return [Look(*one, length) for one in each]


class OddSites(Observer):
    """Names sites whose moves are not like the others', each once, with what to do.

    Attributes
    ----------
    seen : dict of str to deque of Look
        The last rounds of each site.
    since : dict of str to int
        The round from which on a site has been far or opposed, without the level's account.
    usual, middle : float
        The largest distance that the median site had in a round, and the largest ||m||.
    named : set of str
    told : dict of str to deque of (array, array)
        The last points and gradients of each site, where uploads tell them.
    longest : float
        The longest step of the points that the median site had in a round.
    """

    def __init__(self) -> None:
        self.seen: dict[str, deque[Look]] = {}
        self.since: dict[str, int] = {}
        self.usual = self.middle = 0.0
        self.named: set[str] = set()
        self.told: dict[str, deque[tuple[Table, Table]]] = {}
        self.longest = 0.0
        self._moves: dict[int, Table] = {}
        self._told: dict[int, tuple[Table, Table]] = {}

    def on_begin(self, run: Run) -> None:
        """Look at uploads from now on; who was named before a resume is not named again."""
        self.named = set(odd_sites(run.session.history))
        if not run.private:
            run.session.look = partial(self._note, run)

    def _note(self, run: Run, block: Block) -> None:
        """Keep some coordinates of the moves in a block."""
        positions = block.positions.tolist()
        if positions[0] in self._moves or PLACES in block.upload:  # coordinates of its own
            return
        try:
            near = run.half.agent.reference({}, block.sent)
        except KeyError:  # it is the agent's own
            near = {}
        dim = run.session.layout.dim
        most = max(1, NUMBERS // len(run.session.roster.names))
        step = slice(None, None, max(1, -(-dim // most)))
        parts = []
        like = np.empty(dim, run.session.layout.dtype)
        for name, rows in sorted(block.vectors(like).items()):
            some = rows[:, step].astype(np.float64)
            if name in near:
                some -= near[name][..., step]
            parts.append(some)
        if parts:
            moves = np.concatenate(parts, axis=1)
            self._moves.update(zip(positions, moves, strict=True))
            if step.step == 1:
                self._note_gradients(run, block._replace(upload=block.vectors(like)))

    def _note_gradients(self, run: Run, block: Block) -> None:
        """Keep the gradients that uploads tell."""
        half, dim = run.half, run.session.layout.dim
        known = half.recovery(run.session.state, block.where) or {}
        held, sent = (block.rows_of(arrays, dim) for arrays in (known, block.sent))
        told = half.agent.gradient_told(held, sent, block.upload)
        if told is not None:
            shape = (len(block.positions), dim)
            points, slopes = (np.broadcast_to(one, shape).astype(np.float64) for one in told)
            each = zip(points, slopes, strict=True)
            self._told.update(zip(block.positions.tolist(), each, strict=True))

    def on_round(self, run: Run, done: Round) -> str | None:
        """Compare the round's participants."""
        moves, self._moves = self._moves, {}
        told, self._told = self._told, {}
        for name in self.named & run.session.roster.excluded:  # it may come back, and is looked at
            self.named.discard(name)
            self.seen.pop(name, None)
        if done.versions or len(moves) < FEWEST or len({len(each) for each in moves.values()}) > 1:
            return None
        names = [run.session.roster.names[position] for position in moves]
        looks = look_at(np.array(list(moves.values())))
        for name, look in zip(names, looks, strict=False):
            self.seen.setdefault(name, deque(maxlen=WINDOW)).append(look)
        for position, pair in told.items():
            name = run.session.roster.names[position]
            self.told.setdefault(name, deque(maxlen=WINDOW)).append(pair)
        if looks:
            new = self._odd_ones(run, done.round, names)
            notes = tuple(f"{ODD}{name}{why}" for name, why in new.items())
            if notes:
                run.session.amend(notes=(*done.notes, *notes))
            for name, why in new.items():
                log.warning(
                    "%s%s%s; look at its labels, units and signs, or leave it out: exclude=%s",
                    *(ODD, name, why, comma_list([name])),
                )
        return None

    def _secants(self, names: list[str]) -> Table:
        """Return r / median over sites (n, d), see the module; empty where they say nothing.

        That is of fewer than two changes, and where the median site hardly moves any more.
        """
        windows = [list(self.told.get(name, ())) for name in names]
        length = min(map(len, windows))
        if length < 3:
            return np.zeros((0, 0))
        table = np.array([some[-length:] for some in windows])  # (n, rounds, 2, d)
        with np.errstate(all="ignore"):
            squares = np.square(np.diff(table, axis=1))
            usual = math.sqrt(float(np.median(squares[:, -1, 0].sum(axis=1))))
        self.longest = max(self.longest, usual)
        if not STILL * self.longest < usual < math.inf:
            return np.zeros((0, 0))
        with np.errstate(all="ignore"):
            moved, turned = squares.sum(axis=1).transpose(1, 0, 2)
            moved += FLOOR * moved.mean(axis=1)[:, None]
            turned += FLOOR * turned.mean(axis=1)[:, None]
            secants = np.sqrt(turned / moved)
            return np.asarray(secants / np.median(secants, axis=0))

    def _odd_ones(self, run: Run, round_: int, names: list[str]) -> dict[str, str]:
        """Return the sites that are to be named now, each with why."""
        length = min(len(self.seen[name]) for name in names)
        windows = [list(self.seen[name])[-length:] for name in names]
        with np.errstate(all="ignore"):
            gaps = np.array([np.mean([one.gap for one in some], axis=0) for some in windows])
            far = np.linalg.norm(gaps, axis=1)
            logs = np.log(np.maximum(far, TINY))
        times = far / max(float(np.median(far)), TINY)
        now = np.array([some[-1].distance for some in windows])
        self.usual = max(self.usual, float(np.median(now)))
        matters = now > SHARE * self.usual
        middle = windows[0][-1].middle
        self.middle = max(self.middle, middle)
        leads = middle > SHARE * self.middle
        along = np.array([np.median([one.along for one in some]) for some in windows])
        opposed = np.array([np.mean([one.opposed for one in some]) for some in windows])
        part = 1 + (round_ - 1) // WINDOW
        level = LEVEL / (3 * part * (part + 1))
        count = len(names)
        is_far, is_opposed = matters & (times > TWICE), matters & leads & (along < 0.0)
        secants = self._secants(names)
        steepness, is_steep = np.ones(count), np.zeros(count, bool)
        if secants.size:
            steepness = secants.max(axis=1)
            is_steep = np.isfinite(steepness) & (steepness > TWICE**2 * np.median(steepness))
        for name, odd in zip(names, (is_far | is_opposed | is_steep).tolist(), strict=True):
            if odd:
                self.since.setdefault(name, round_)
            else:
                self.since.pop(name, None)
        is_far &= excess(logs, "far") > critical(count, level, "far")
        is_opposed &= excess(-opposed, "against") > critical(count, level, "against")
        if is_steep.any():
            logs = np.log(np.maximum(steepness, TINY))
            is_steep &= excess(logs, "far") > critical(count, level, "far")
        said: dict[str, str] = {}
        for place in np.flatnonzero(is_far | is_opposed | is_steep).tolist():
            name = names[place]
            if name in self.named:
                continue
            self.named.add(name)
            what = f"its moves are {times[place]:.3g} times as far from theirs as is usual"
            if is_steep[place]:
                at = int(np.argmax(secants[place]))
                what = (
                    f"its gradient changes {steepness[place]:.3g} times as fast as is usual along "
                    f"{_parameter(run, at)}, as it does with other units"
                )
            elif is_opposed[place]:
                what = (
                    f"it moves against them, {along[place]:.2g} along the median move where that "
                    f"of the median site is {np.median(along):.2g}"
                )
            said[name] = f"{SINCE}{self.since[name]} {what} ({count} agents)"
        return said


def _parameter(run: Run, place: int) -> str:
    """Return the column that a parameter of a linear model belongs to, or the parameter's place.

    The column's name is known where all columns are numbers, one parameter each.
    """
    meaning, dim = run.session.encoding.meaning, run.session.layout.dim
    facts = meaning.columns if meaning else {}
    columns = list(facts)
    single = not any({"categories", "gap"} & one.keys() for one in facts.values())
    if single and columns and len(columns) <= dim <= len(columns) + 1:
        return f"column {columns[place]}" if place < len(columns) else "the intercept"
    return f"parameter {place + 1} of {dim}"
