"""Privacy-critical: all that may leave a node, and what of it a private node sends.

    exit         what leaves                                    of a private node
    ----         -----------                                    -----------------
    upload       what `privet.kernel.round.Round.seal` makes    the same: it was charged and noised
    enrolment    declared numbers (`privet.kernel.Facts`),      the same: none is computed from the
                 the model's names and shapes, the account      records (`require_public`)
    evaluation   loss and metrics at a model                    nothing (`Exits.numbers`)
    metrics      numbers beside an upload                       none (where it is packed:
                                                                `MessageRound`, `LoopParticipant`)
    buffers      statistics such as BatchNorm's, averaged       nothing (`LoopParticipant`)
    failure      a code and one line                            lines of this library's own, whose
                                                                texts name no record (`Exits.line`)
    log          nothing: it is written on the node alone       the same

How long a node takes is not covered.
"""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple

from privet.kernel.errors import BudgetRefused, NoCertificateError
from privet.kernel.records import Problem

LIBRARY = __name__.partition(".")[0]


class Exits(NamedTuple):
    """The rules for what may leave a node in answer to one message.

    Attributes
    ----------
    private : bool
        Whether the node has a budget, or was enrolled or has taken part in a private run.
    quiet : bool
        Whether texts are withheld: where the node is private, and where the message asks for
        privacy.
    """

    private: bool
    quiet: bool

    def numbers(self, what: str) -> None:
        """Refuse numbers that are computed from the records and not noised.

        Raises
        ------
        BudgetRefused
            If the node is private.
        """
        if self.private:
            raise BudgetRefused(f"declines {what}: it would be an un-noised release")

    def line(self, error: BaseException, text: str, *, library_error: bool) -> str:
        """Return the line that is sent about a failure.

        Parameters
        ----------
        error : BaseException
        text : str
            The error's text, as one line.
        library_error : bool
            Whether its class is one of this library's, whose texts name no record.
        """
        kind = type(error).__name__
        if self.quiet and not (library_error and _raised_here(error.__traceback__)):
            known = next(each for each in type(error).__mro__ if _is_known(each))
            return f"{known.__name__} (text withheld: private run)"
        if isinstance(error, KeyError):  # whose text is the key alone
            text = f"{kind}: {text}"
        return text or kind


def _is_known(kind: type) -> bool:
    """Whether a class has a name that no other code chose: one could be that of a record."""
    return kind.__module__.partition(".")[0] in ("builtins", LIBRARY)


def require_public(problem: Problem) -> None:
    """Refuse a problem whose shape or scaling is an un-noised function of the records.

    Raises
    ------
    NoCertificateError
    """
    if why := getattr(problem, "data_dependent", ""):
        raise NoCertificateError(f"a private run refuses data-dependent preprocessing: {why}")


def _raised_here(trace: TracebackType | None) -> bool:
    """Whether this library's code raised the error, and not user code with one of its classes."""
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    name = str(trace.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == LIBRARY
