"""`AnalysisStrategy`: an analysis of several sites' tables as a Flower Strategy.

Every round asks all sites for sums at a public point, and ends with the analysis' own step. A run
ends when nothing is left to ask, with a table (`AnalysisResult.table`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, get_type_hints

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from privet.analyses.analysis import Analysis, Progress
from privet.analyses.frame import AnalysisError, Levels
from privet.analyses.glm_state import LARGEST
from privet.analyses.possible import impossible
from privet.client_apps.analyses.half import AnalysisAgent
from privet.core import ConfigError
from privet.core.errors import (
    INSTEAD_OF_OTHER_APPS,
    HopelessError,
    ImpossibleError,
    listed,
)
from privet.core.exits import Exit
from privet.core.key import Config
from privet.data.agreement import Agreement
from privet.data.analysed import AnalysedTable, levels_of
from privet.data.meaning import Meaning
from privet.rounds import Observer, Round, Run
from privet.rounds.account import PrivetResult
from privet.rounds.failure import FOR_A_PERSON, FailureCode
from privet.rounds.flower.base import PrimalDualStrategy
from privet.rounds.half import Arrays, HalfState, ServerHalf, Turn, Vector
from privet.rounds.roster import in_simulation
from privet.rounds.uploads import Block, ClearSums, Sums, Uploads
from privet.wire.ring import largest

log = logging.getLogger("flwr.privet")

MOST_DEPARTURES = 3
"""How often a site may leave the sums that it was in."""
ASKED_TWICE = range(20, 1 << 20, 10)
"""Rounds that are asked once more at the same point, where an honest site says the same."""
MOST_ROUNDS = 60
"""Rounds of an analysis at most, unless it is asked for others: few take more than ten."""
COMPLETE = "the analysis is complete"
"""Why a run of an analysis ends."""
WITHOUT = "the analysis is complete but for sites that refuse or left"
"""Why it ends where the others' sums are all that there will be."""
_PART = "progress."


@dataclass(slots=True)
class State(HalfState):
    """The analysis' own progress, and whose sums it rests on.

    ``x`` (1,) stands where other methods have a model: the number of sites in the last sums. The
    residual is the square of the last step, in standard errors where there are any. ``rows`` are
    those that the sites at ``positions`` said in the first round, or their total where sums are
    masked; ``told`` is one number of each one's sums, where they are asked for once more.
    """

    x: Vector
    progress: Progress
    sites: int = 0
    positions: Vector = field(default_factory=lambda: np.empty(0))
    rows: Vector = field(default_factory=lambda: np.empty(0))
    told: Vector = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True)
class AnalysisServer(ServerHalf[State]):
    """Server half of any analysis; ``levels`` are the agreed categories by column."""

    state = State

    agent: AnalysisAgent
    levels: Levels | None = field(default=None, kw_only=True, compare=False)
    names: tuple[str, ...] = field(default=(), kw_only=True, compare=False)

    @cached_property
    def analysis(self) -> Analysis[Any]:
        """The analysis of the agreed columns (raises ``ConfigError``)."""
        return self.analysed()

    def analysed(self) -> Analysis[Any]:
        """Return the analysis of the agreed columns, with what the coordinator alone knows."""
        return self.agent.analysis.over(self.names)

    def informed(self, encoding: Agreement) -> ServerHalf[State]:
        meaning = encoding.meaning
        if meaning is None and encoding.text:
            raise ConfigError(
                "schema: in a secure sum, or after a private run, sites state digests of their "
                "schema alone: give the coordinator the same schema"
            )
        if meaning is None:
            return replace(self, levels={})
        levels = levels_of(meaning, self.agent.analysis)
        return replace(self, levels=levels, names=tuple(meaning.columns))

    def initialise(self, start: Vector, count: int) -> State:
        return State(np.zeros(1), self.analysis.begin(self.levels or {}))

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Number the sites of the last sums anew: the analysis is not done without this one."""
        state.positions = state.positions + (state.positions >= position)
        return state

    def renew(self, state: State, position: int, start: Vector) -> State:
        return state

    def broadcast(self, state: State, turn: Turn) -> tuple[State, Arrays]:
        with _computed(self.name):
            point = self.analysis.point(state.progress)
        return state, {name: np.asarray(array, np.float64) for name, array in point.items()}

    def summands(self, state: State) -> Mapping[str, tuple[int, ...]]:
        return dict(sorted(self.analysis.shapes(state.progress).items()))

    def accept(self, state: State, block: Block) -> tuple[Block, NDArray[np.uint64]]:
        """Check each site's sums too: whether any rows could give them."""
        block, digests = super().accept(state, block)
        before = dict(zip(state.positions.tolist(), state.rows.tolist(), strict=False))
        told = dict(zip(state.positions.tolist(), state.told.tolist(), strict=False))
        for row, position in enumerate(block.positions.tolist()):
            sums, rows = block.one(row), before.get(position, math.nan)
            why = impossible(self.analysis, state.progress, sums, rows)
            if not why and position in told:
                one = told[position]
                if abs(_one_number(sums) - one) > 1e-6 * (1.0 + abs(one)):
                    why = "others than in the round before, at the same point"
            if why:
                raise ImpossibleError(f"its sums are impossible: {why}")
        return block, digests

    def fold(self, state: State, uploads: Uploads, turn: Turn) -> State:
        sites = [block.one(row) for block in uploads for row in range(len(block.positions))]
        state.told = np.empty(0)
        same = np.array_equal(np.array(uploads.positions, np.float64), state.positions)
        if turn.t in ASKED_TWICE and same and not state.progress.done:
            state.told = np.array([_one_number(one) for one in sites])
            return state
        return self._stepped(state, ClearSums(uploads), sites)

    def fold_sums(self, state: State, sums: Sums, turn: Turn) -> State:
        """Take the step of masked sums, of which each site's were bounded by the ring."""
        most = largest(len(sums.positions) or 1)
        return self._stepped(state, sums, (), most if most < LARGEST else math.inf)

    def _stepped(
        self, state: State, sums: Sums, sites: Sequence[Arrays], most: float = math.inf
    ) -> State:
        """Take the analysis' step; where other sites reply than before, it may begin again."""
        if not sums.positions:
            return state
        analysis, before = self.analysis, state.progress
        positions = np.array(sums.positions, np.float64)
        if state.sites and not np.array_equal(positions, state.positions):
            fresh = analysis.again(before, self.levels or {})
            if fresh is not before:  # what was summed before is not of these sites
                state.progress, state.positions, state.rows = fresh, positions, np.empty(0)
                state.residual = math.nan
                return state
        elif before.done:  # the run only waits for sites that are away
            return state
        totals = {name: sums.total(name) for name in self.summands(state)}
        if most < math.inf and analysis.saturates(analysis.point(before)):
            # The analysis looks for sums at its own bound, which is above that of so many sites.
            totals = {
                name: np.where(np.abs(total) < most / 2, total, np.copysign(LARGEST, total))
                for name, total in totals.items()
            }
        said = [analysis.rows_said(before, one) for one in sites or [totals]]
        if not sites:
            rows = state.rows[0] if len(state.rows) else math.nan
            if why := impossible(analysis, before, totals, rows, len(positions)):
                raise HopelessError(f"{self.name}: {_OF_SOME}: {why}")
        with _computed(self.name):
            after = analysis.step(before, totals)
            state.progress = analysis.by_site(before, after, sites) if sites else after
        if not any(map(math.isnan, said)):
            state.rows = np.array(said)
        if line := analysis.said(before, after):
            log.info(line)
        state.positions, state.sites = positions, len(positions)
        state.x = np.array([float(state.sites)])
        gap = state.progress.gap
        state.residual = gap * gap
        return state

    def summed(self, state: State) -> Sequence[int]:
        return [int(position) for position in state.positions]

    def ended(self, state: State) -> bool:
        """Return whether nothing is left to ask."""
        return state.progress.done

    def table(self, state: State) -> dict[str, Any]:
        """Return the analysis' table."""
        with _computed(self.name):
            return self.analysis.table(state.progress)

    def dump(self, state: State, changed: Any = None) -> Arrays:
        arrays = super().dump(replace(state, progress=None), changed)  # type: ignore[arg-type]
        del arrays["progress"]
        return {**arrays, **_dumped(state.progress, _PART)}

    def load(self, arrays: Arrays) -> State:
        kind = self.agent.analysis.progress  # the columns are agreed on after a checkpoint is read
        own = {n.removeprefix(_PART): a for n, a in arrays.items() if n.startswith(_PART)}
        others = {n: a for n, a in arrays.items() if not n.startswith(_PART)}
        try:
            progress = _loaded(kind, own)
        except (KeyError, TypeError):
            raise HopelessError(f"resume: the checkpoint's state is none of {self.name}") from None
        rest: dict[str, Any] = {n: a if a.ndim else a.item() for n, a in others.items()}
        return State(progress=progress, **rest)


def _one_number(sums: Arrays) -> float:
    """Return a number of a site's sums that is another for others, but by chance."""
    values = np.concatenate([np.ravel(sums[name]) for name in sorted(sums)])
    return float(values @ np.cos(np.arange(len(values))))


_OF_SOME = "the sums of some site are impossible"


@contextmanager
def _computed(name: str) -> Iterator[None]:
    """Raise ``HopelessError`` for sums without a result: they are as they are."""
    try:
        yield
    except AnalysisError as error:
        raise HopelessError(f"{name}: {error}") from None
    except np.linalg.LinAlgError as error:
        raise HopelessError(f"{name}: {_OF_SOME}, or too far apart: {error}") from None


def _dumped(progress: Progress, prefix: str) -> Arrays:
    """Return the arrays of a state by the names of its fields; those of a state within it too."""
    arrays: Arrays = {}
    for entry in fields(progress):
        value, name = getattr(progress, entry.name), prefix + entry.name
        within = _dumped(value, f"{name}.") if isinstance(value, Progress) else None
        arrays |= {name: np.asarray(value)} if within is None else within
    return arrays


def _loaded(kind: type[Any], arrays: Arrays) -> Any:
    """Return the state of a class (raises ``KeyError``, ``TypeError`` for arrays of another)."""
    found: dict[str, Any] = {}
    rest = dict(arrays)
    for name, of_field in get_type_hints(kind).items():
        if isinstance(of_field, type) and issubclass(of_field, Progress):
            own = {n: rest.pop(n) for n in arrays if n.startswith(f"{name}.")}
            within = {n.removeprefix(f"{name}."): array for n, array in own.items()}
            found[name] = _loaded(of_field, within)
        else:
            array = rest.pop(name)
            found[name] = array if array.ndim else array.item()
    return kind(**found, **rest)


@dataclass(repr=False)
class AnalysisResult(PrivetResult):
    """The result of an analysis.

    Attributes
    ----------
    table : dict
        As it is written to ``table.json``: JSON types, flat.
    complete : bool
        Whether the analysis ended, with every enrolled site's sums in the table.
    untested : str
        Why a test that was asked for is not in the table; empty where none is missing.
    fitted
        The table by the names that users of statsmodels and lifelines know, which this result has
        as well (`GlmResult`, `CoxResult`, `KaplanMeierResult`); None of a description.
    """

    table: dict[str, Any] = field(default_factory=dict)
    complete: bool = False
    untested: str = ""
    fitted: Any = None

    @property
    def exit_code(self) -> Exit:
        """The exit code of ``privet run``: another one where a site is not in the table, or a test
        that was asked for.
        """
        return Exit.DONE if self.complete and not self.untested else Exit.FRUITLESS

    def __getattr__(self, name: str) -> Any:
        """Return what the fitted model has by this name, such as ``params`` or ``summary``."""
        fitted = self.__dict__.get("fitted")
        if fitted is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(fitted, name)


class _Done(Observer):
    """Ends a run when the analysis has ended, with all sites or those that can be in it.

    Of simulated sites all are looked at before the first is asked, which may cost it a release.
    """

    def __init__(self, *, simulated: bool) -> None:
        self._simulated = simulated

    def on_begin(self, run: Run) -> None:
        if self._simulated:
            _require_all_sites(run)

    def on_round(self, run: Run, done: Round) -> str | None:
        _leave_out(run, done)
        if is_complete(run):
            return COMPLETE
        half: Any = run.half
        return WITHOUT if half.ended(run.session.state) and not _may_come(run, done) else None


def _leave_out(run: Run, done: Round) -> None:
    """Ask a site no more whose sums are impossible, or for which the others have begun again often.

    Without it they come to an end. No site joins masked sums again, so none is counted there.
    """
    roster, before = run.session.roster, run.session.history
    for name, failure in done.failures.items():
        if name not in roster.agents or roster.agents[name].out or name in roster.excluded:
            continue
        if failure.code is FailureCode.IMPOSSIBLE:
            roster.leave_out(name, failure.text, any_node=True)
        elif not run.half.masked and _departures(before, name) >= MOST_DEPARTURES:
            why = f"left {MOST_DEPARTURES} times, and the analysis began again: {failure.text}"
            roster.leave_out(name, why, any_node=True)


def _departures(history: Sequence[Round], name: str) -> int:
    """Return in how many rounds a site was away that had been in the one before."""
    there = [name in one.participants for one in history]
    return sum(was and not now for was, now in pairwise(there))


def _require_all_sites(run: Run) -> None:
    """Refuse a table without a simulated site: nobody mends it while the run waits."""
    if others := run.session.roster.rejected:
        raise HopelessError(
            f"{len(others)} sites cannot be in the table: {listed(others.values())}; "
            "mend their tables, or leave them out"
        )


def _may_come(run: Run, done: Round) -> bool:
    """Return whether a site that is away may be in the result if it is waited for.

    A refusal, and an error of its own, would be the same again; and no site joins the secure sums
    of a run that began without it.
    """
    roster = run.session.roster
    gone = {name for name, agent in roster.agents.items() if agent.out} | set(roster.excluded)
    away = set(roster.names) - set(sites_in(run)) - gone
    if run.half.masked:
        return False
    codes = [done.failures[name].code for name in away if name in done.failures]
    return len(codes) < len(away) or any(code not in _FINAL for code in codes)


_FINAL = FOR_A_PERSON | {FailureCode.FAILED}


def is_complete(run: Run) -> bool:
    """Return whether the analysis has ended with the sums of every site that takes part."""
    half: Any = run.half
    roster = run.session.roster
    wanted = set(roster.agents) - set(roster.excluded)
    everybody = wanted <= set(sites_in(run)) and not turned_away(run)
    return half.ended(run.session.state) and everybody


def turned_away(run: Run) -> list[str]:
    """Return why nodes of this library are not in the run that would be sites of it."""
    rejected = run.session.roster.rejected.values()
    return [why for why in rejected if why != INSTEAD_OF_OTHER_APPS]


def sites_in(run: Run) -> list[str]:
    """Return the names of the sites whose sums the result rests on."""
    names = run.session.roster.names
    return [names[int(place)] for place in run.session.state.positions]


class AnalysisStrategy(PrimalDualStrategy):
    """An analysis of several sites' tables.

    Who is summed when some are absent: the sites of a round. The result says how many there were,
    and the run goes on until all enrolled sites are in it, or its rounds are over.
    Privacy: none; sums are un-noised. With ``secure-sum`` the server sees sums over sites alone.
    """

    local_steps = ""
    server_half = AnalysisServer
    objects: ClassVar[Mapping[str, tuple[str, str]]] = {
        "table": (
            "SiteTable | Frame | None",
            "a table with the columns and categories of all sites, rows or none, such as that of a "
            "schema: needed where sites state digests alone",
        )
    }
    no_asynchrony: ClassVar[str] = "its sums are those of one round"

    def __init__(self, *placed: Any, **arguments: Any) -> None:
        if len(placed) > len(self.positional):
            raise TypeError(
                f"{type(self).__name__} takes {len(self.positional)} arguments by their place"
            )
        super().__init__(**dict(zip(self.positional, placed, strict=False)), **arguments)

    @staticmethod
    def fitted(table: Mapping[str, Any]) -> Any:
        """Return a table as users of other libraries read it; None where there is no such class."""
        return None

    @property
    def length(self) -> int:
        """The length of the model that stands for the progress."""
        return 1

    @property
    def most_rounds(self) -> int:
        """The rounds that the analysis can make use of."""
        return 1 << 20

    @classmethod
    def half_of(cls, config: Config, **objects: Any) -> ServerHalf[Any]:
        return super().half_of(config)

    columns: Meaning | None = None
    """What the coordinator knows of the columns, where it knows any."""

    def _set_up(self, config: Config, arguments: Mapping[str, Any]) -> None:
        super()._set_up(config, arguments)
        if arguments.get("table") is not None:
            self.reads_as(arguments["table"])

    def reads_as(self, table: Any) -> None:
        """Take the columns and categories of a table for those of all sites.

        Raises
        ------
        DataError
            If the analysis cannot read it.
        """
        agent = self.half.agent
        assert isinstance(agent, AnalysisAgent)
        self.columns = self._problem_of(agent, table).meaning
        self.options = replace(self.options, encoding=self.columns.text)

    def _problem_of(self, agent: AnalysisAgent, table: Any) -> AnalysedTable:
        return AnalysedTable(agent.analysis, agent.prepared(table))

    def start(  # type: ignore[override]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = MOST_ROUNDS,
        **options: Any,
    ) -> AnalysisResult:
        """Run the analysis on a grid; see `PrimalDualStrategy.start` for the other arguments.

        Raises
        ------
        ConfigError, RunError
            As there; ``RunError`` too where a simulated site's table does not fit, and where the
            sums show that there is no result, such as a column that is a combination of others.
        """
        arrays = initial_arrays or ArrayRecord({"x": Array(np.zeros(self.length))})
        found = super().start(grid, arrays, min(num_rounds, self.most_rounds), **options)
        if in_simulation(grid):
            _require_all_sites(self.run)
        values = {entry.name: getattr(found, entry.name) for entry in fields(found) if entry.init}
        result = AnalysisResult(**values)
        for entry in fields(found):
            if not entry.init:
                setattr(result, entry.name, getattr(found, entry.name))
        result.complete = is_complete(self.run)
        half: Any = self.run.half
        if half.ended(self.run.session.state):
            result.table = self.table()
            result.fitted = self.fitted(result.table)
        return result

    def table(self) -> dict[str, Any]:
        """Return the table of the run so far, with the sites that it rests on."""
        half: Any = self.run.half
        names = sites_in(self.run)
        away = [name for name in self.run.session.roster.names if name not in names]
        return {
            **half.table(self.run.session.state),
            "analysis": self.algorithm,
            "complete": is_complete(self.run),
            "sites": len(names),
            "site_names": names,
            "sites_away": away,
            **({"turned_away": lines} if (lines := turned_away(self.run)) else {}),
        }

    def _measuring(self, grid: Grid, *others: Any, **options: Any) -> Iterator[Observer]:
        yield _Done(simulated=in_simulation(grid))


__all__ = ["AnalysisResult", "AnalysisServer", "AnalysisStrategy", "State"]
