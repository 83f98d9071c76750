"""Privacy-critical: all that may leave a node, and what of it a private node sends.

    exit         what leaves                                    of a private node
    ----         -----------                                    -----------------
    upload       what `privet.kernel.round.AgentRound.seal`     the same: it was charged and noised
    head         the hash in the last line of the node's        the same: the line is made of the
                 ledger, beside an upload                       charge, texts of messages and the
                                                                time, before the records are read
    enrolment    declared numbers (`privet.kernel.Facts`),      the same: none is computed from the
                 the model's names and shapes, the account      records (`require_public`)
    encoding     what columns mean; of a file of the node's     digests of its public schema and
                 own without a schema also each column's        settings (`Participant.enrolment`)
                 number, mean and sum of squares
    evaluation   loss and metrics at a model                    nothing (`Exits.numbers`)
    metrics      numbers beside an upload                       none (where it is packed:
                                                                `MessageRound`, `LoopParticipant`)
    buffers      statistics such as BatchNorm's, averaged       nothing (`LoopParticipant`)
    failure      a code and one line                            a text of a closed list, without
                                                                numbers or names (`Told`)
    log          nothing: it is written on the node alone       the same

How long a node takes is not covered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .errors import BudgetRefused, NoCertificateError
from .records import Problem
from .told import Told, told_by

KEY = "rows-per-person"
"""The run-config key of the bound for which a run's account states epsilon of a person."""


class Exits(NamedTuple):
    """The rules for what may leave a node in answer to one message.

    Attributes
    ----------
    private : bool
        Whether the node has a budget, or was enrolled or has taken part in a private run.
    quiet : bool
        Whether failures are told by the closed list alone: where the node is private, and where the
        message asks for privacy.
    """

    private: bool
    quiet: bool

    def numbers(self, declined: Told) -> None:
        """Refuse numbers that are computed from the records and not noised, with this text.

        Raises
        ------
        BudgetRefused
            If the node is private.
        """
        if self.private:
            raise BudgetRefused(declined)

    def line(self, error: BaseException, text: str, kind: Told) -> str:
        """Return the line that is sent about a failure.

        Parameters
        ----------
        error : BaseException
        text : str
            The error's text, as one line.
        kind : Told
            What a private node sends of an error that carries no text of the list.
        """
        if self.quiet:
            return told_by(error) or kind
        if isinstance(error, KeyError):  # whose text is the key alone
            text = f"{type(error).__name__}: {text}"
        return text or type(error).__name__


def require_public(problem: Problem) -> None:
    """Refuse a problem whose shape or scaling is an un-noised function of the records.

    Raises
    ------
    NoCertificateError
    """
    if why := getattr(problem, "data_dependent", ""):
        raise NoCertificateError(
            f"a private run refuses data-dependent preprocessing: {why}", Told.PREPARATION
        )


def rows_per_person(*configs: Mapping[str, Any]) -> int:
    """Return the public bound on the rows of one person: the smallest that a run's or a node's
    config declares, 1 where none does."""
    return min((int(one[KEY]) for one in configs if KEY in one), default=1)


def require_persons(problem: Problem, rows_per_person: int) -> None:
    """Refuse a problem of which a person may have more rows than an account of persons counts.

    Epsilon is that of a record; of a person with k records it is that of a group of k. The bound is
    public, and how many rows the largest person has is not: the text does not say.

    Parameters
    ----------
    problem : Problem
        ``person_rows``, the rows of the person with most, where its data say whose rows are.
    rows_per_person : int
        The declared public bound.

    Raises
    ------
    NoCertificateError
    """
    if getattr(problem, "person_rows", 1) > rows_per_person:
        raise NoCertificateError(
            "person-column: a person has more rows in an agent than rows-per-person = "
            f"{rows_per_person}, for which epsilon is stated: declare a larger public bound, or "
            "take rows out",
            Told.PERSONS,
        )
