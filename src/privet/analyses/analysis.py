"""`Analysis`: rounds of sums over the sites' records, each followed by a step of the coordinator.

    theta_{t+1} = step(theta_t, sum_s S_s(theta_t))

S_s is a sum over the records of site s of a small function at a public point theta. A description
is one of these, and so are Newton's method on a likelihood that is a sum over sites and the curves
of survival times. Everything here is a pure function of arrays: who is asked, by which messages,
masked or in the clear, is none of its business.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from .frame import AnalysisError, FloatArray, Frame, Levels

Arrays = Mapping[str, FloatArray]
Shapes = Mapping[str, tuple[int, ...]]


class SiteSums(Protocol):
    """A site's rows, coded for an analysis: its sums at a point."""

    @property
    def num_examples(self) -> int:
        """The rows that the analysis uses: complete cases."""
        ...

    @property
    def left_out(self) -> Mapping[str, int]:
        """By column, the rows left out since its value is missing; "" counts all of them."""
        ...

    def statistics(self, point: Arrays) -> dict[str, FloatArray]:
        """Return the sums over the site's rows at a public point, float64.

        The shapes are those of `Analysis.shapes`. All are divided by ``point["unit"]``, shape (),
        a power of two near the number of all rows, so that they fit a secure sum's fixed point.
        """
        ...


class NoisedSums(Protocol):
    """Which entry of one noised sum is what, of public columns alone."""

    @property
    def width(self) -> int:
        """k, the length of the sum; 0 where no column is public."""
        ...

    def contributions(self, frame: Frame) -> Iterator[FloatArray]:
        """Yield what each record adds, in blocks (m, k): no entry below 0, l2 norm at most 1."""
        ...

    def table(self, total: FloatArray, deviation: float) -> dict[str, Any]:
        """Return what a sum (k,) says, with noise of this standard deviation on each entry."""
        ...


@dataclass(slots=True)
class Progress:
    """The coordinator's state: arrays and Python numbers alone, since it goes into checkpoints.

    Attributes
    ----------
    gap : float
        How far the last step went, in standard errors where there are any; NaN while unknown.
    done : bool
        Whether nothing is left to ask.
    """

    gap: float
    done: bool


@dataclass(frozen=True, slots=True)
class Claim:
    """What a site says that its sums are, or the total of several where they are masked.

    Attributes
    ----------
    sums : mapping of str to array
    rows : float
        How many rows it has; NaN where it has not said.
    sites : int
    """

    sums: Arrays
    rows: float
    sites: int


P = TypeVar("P", bound=Progress)


@dataclass(frozen=True)
class Analysis(ABC, Generic[P]):
    """An analysis of given settings; its fields are run-config keys with texts and numbers."""

    name: ClassVar[str] = ""
    """As ``algorithm`` names it."""
    progress: ClassVar[type[Any]] = Progress
    """The class of its states."""
    needs_levels: ClassVar[bool] = True
    """Whether categories have to be agreed on before anything is summed."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads, in order; empty for all of the table.

        Raises
        ------
        AnalysisError
            For a setting that cannot be read, such as a formula that is none.
        """

    @property
    def grouped_by(self) -> str:
        """The column within whose categories all others are summed as well; empty for none."""
        return ""

    def over(self, names: Sequence[str]) -> Self:
        """Return the analysis of a table with these columns: nothing is left to its columns then.

        By default the same; one of *all other columns* names them. Sites and coordinator give the
        names that they have agreed on, in the same order, before `begin`.
        """
        return self

    def factors(self, frame: Frame) -> tuple[str, ...]:
        """Return the columns that are used as categories and need agreed ``levels``.

        By default those that are texts.
        """
        used = self.columns or frame.names
        return tuple(name for name in used if name in frame.factors)

    @abstractmethod
    def sums(self, frame: Frame, levels: Levels) -> SiteSums:
        """Return what a site sums, of its rows and the agreed categories.

        Raises
        ------
        AnalysisError
            For a column that is not there or cannot be used; the line names no value.
        """

    @abstractmethod
    def guarded(self, sums: Any, least: int) -> SiteSums:
        """Return what a site sums such that no cell of 1 to ``least`` - 1 records can be seen.

        Raises
        ------
        AnalysisError
            If the analysis cannot be answered so.
        """

    def unseen(self, sums: Any) -> SiteSums:
        """Return what a site sums whose sums nobody sees but it, as in a secure sum.

        By default the same; it may compare its own with the pooled ones, in its own log.
        """
        found: SiteSums = sums
        return found

    @abstractmethod
    def begin(self, levels: Levels) -> P:
        """Return the state before the first round."""

    def again(self, state: P, levels: Levels) -> P:
        """Return the state to go on from where other sites reply than in the round before.

        By default the analysis begins again. A step whose sums say all by themselves goes on.
        """
        return self.begin(levels)

    @abstractmethod
    def point(self, state: P) -> dict[str, FloatArray]:
        """Return the public arrays at which the sites are asked for their sums."""

    @abstractmethod
    def shapes(self, state: P) -> Shapes:
        """Return the names and shapes of the sums that `point` asks for, in order."""

    @abstractmethod
    def step(self, state: P, totals: Arrays) -> P:
        """Return the next state of the sums over all sites.

        Raises
        ------
        AnalysisError
            If the sums show that there is no result: names a column or key.
        """

    def by_site(self, before: P, after: P, sites: Sequence[Arrays]) -> P:
        """Return a state after a step with what is kept of each site's sums, in the clear.

        ``before`` asked for them, and they are in the order of the sites. By default nothing is.
        """
        return after

    def rows_said(self, state: P, sums: Arrays) -> float:
        """Return how many rows sums are of, NaN where they do not say: in all rounds the same."""
        return math.nan

    def impossible(self, state: P, claim: Claim) -> str:
        """Return what a site's finite sums cannot be, whatever its rows; "" where nothing shows.

        See `possible`. ``state`` asked for them. By default nothing shows.
        """
        return ""

    def saturates(self, point: Arrays) -> bool:
        """Whether the sums at a point are bounded, and asked for again where one is at its bound.

        By default not: they are counts, or in units of the largest of all sites' numbers.
        """
        return False

    def said(self, before: P, after: P) -> str:
        """Return what a run logs after a step, such as what the next rounds cost; "" for none."""
        return ""

    def noised(self, levels: Levels, ranges: Mapping[str, tuple[float, float]]) -> NoisedSums:
        """Return the analysis by one noised sum, of the categories and ranges of a public schema.

        Raises
        ------
        AnalysisError
            If there is none.
        """
        raise AnalysisError(f"{self.name} has no noised sum")

    @abstractmethod
    def table(self, state: P) -> dict[str, Any]:
        """Return the result as JSON types, flat, as it is written to ``table.json``."""
