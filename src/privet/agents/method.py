"""The contract of an algorithm's agent half, in twenty names.

In this order: the names that every method defines, those that it may define, and those of a
private one. `Half` adds the names that few methods override, and the derived rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

from privet.kernel import Clipping, Facts, Records, Release
from privet.kernel.programs.steps import LocalTask, Need, Walk
from privet.kernel.streams import Streams

from .inputs import Arrays, Vector


class Local(NamedTuple):
    """The outcome of an agent's local work: new state, upload, and the arrays both sides digest."""

    state: Arrays
    upload: Arrays
    agreed: tuple[Vector, ...]


def agreed_on(state: Arrays, upload: Arrays, *, coded: bool = False) -> tuple[Vector, ...]:
    """Return the arrays whose digest both sides compare.

    They are those of the state that follows which are not as they were uploaded; if there is none,
    or where the upload was coded and may have been decoded otherwise, the uploaded ones as well.
    An array that `Half.follow` takes from the upload as it is is the same object on both sides, as
    the arrays of an upload are objects of their own.
    """
    sent = {id(array) for array in upload.values()}
    computed = tuple(array for array in state.values() if id(array) not in sent)
    return (*computed, *upload.values()) if coded or not computed else computed


class Method(ABC):
    """The contract of an agent half. Every method here is a pure function.

    Subclass `Half`, a frozen dataclass: its fields are the run-config keys of the same names, with
    hyphens.

    *Every method* defines ``name``, ``task`` and ``finish`` (or ``local_update`` in place of both,
    where the solver is part of the method); where agents keep a state, ``restart`` and ``follow``.

    *It may define* ``version``, ``needs``, ``reference``, ``stacks``, ``steps_bind``,
    ``custom_loop_ok``, ``row_bound``, ``divisor`` and ``upload``.

    *A private method* defines ``noise_key``, ``private``, ``clip``, ``clipping`` and
    ``noised_release``.
    """

    name: ClassVar[str] = ""
    """Protocol name, as in the registry."""
    version: ClassVar[int] = 1
    """Protocol version; both halves must agree."""

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return the round's local task; a pure function.

        A half defines ``task`` and ``finish``, or ``local_update`` in place of both.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither task nor local_update")

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Arrays:
        """Return the upload that a walk results in; a pure function, defined with ``task``.

        Its arrays (d,) are coded before they are sent where `ValueBits` asks for it.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither finish nor local_update")

    def follow(self, state: Arrays, broadcast: Arrays, upload: Arrays) -> Arrays:
        """Return the state that both sides hold after an upload: by default none.

        Agent and server each compute it, from the agent's state before the round, the broadcast
        and the decoded upload, and compare a digest of the outcome. A pure function, entry by
        entry: the server gives it rows (N, d) of several agents' arrays with the broadcast (d,)
        that they share, or a part of one agent's.
        """
        return {}

    def restart(self, broadcast: Arrays, facts: Facts) -> Arrays:
        """Return the state of an agent that has none and was sent none: by default nothing."""
        return {}

    @abstractmethod
    def local_update(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> Local:
        """Do one round's local work, taking exactly the draws of the round's release.

        By default the task, the built-in solver's walk, and the state that follows.
        """

    # ------------------------------------------------------------------ optional

    needs: ClassVar[tuple[Need, ...]] = ()
    """Fields of a walk that ``finish`` needs in addition to its end."""
    custom_loop_ok: ClassVar[bool] = False
    """Whether a half that defines ``local_update`` equals, without noise, its ``task`` and
    ``finish``, so that a custom training loop can take the steps."""
    steps_bind: ClassVar[bool] = False
    """Whether the method depends on exactly the number and length of the task's steps."""

    divisor: ClassVar[str] = "agent"
    """Divisor of f_i unless the run config sets another: the number of the agent's own examples,
    or with "federation" that of all agents."""
    upload: ClassVar[str] = "upload"
    """Name of an upload in the ledger."""

    def reference(self, state: Arrays, broadcast: Arrays) -> Arrays:
        """Return arrays that both sides hold and that an upload is near to, by the upload's names.

        ``state`` is the state that the server would send to restore the agent. By default the
        broadcast arrays of the same names; a missing array stands for 0. In a private run it holds
        only what is public of the agent.
        """
        return broadcast

    @property
    def stacks(self) -> bool:
        """Whether ``local_update`` takes the vectors of many agents as rows (N, d) of arrays.

        The records are those of a `privet.problems.stacks.Stack`, and every row has the result of
        that agent alone. This holds where the task and the state that follows are computed entry
        by entry.
        """
        return False

    def row_bound(self, facts: Facts) -> float:
        """Return the bound on the l2 norm of the agent's rows; 0 leaves them as they are.

        Raises
        ------
        ConfigError
            If this configuration cannot run on a problem of these facts.
        """
        return 0.0

    # ------------------------------------------------------------------ private methods

    noise_key: ClassVar[str] = ""
    """The key that a target epsilon is solved for; empty for a half without a private form."""

    @property
    def private(self) -> bool:
        """Whether this configuration is meant to be private; by default it is not."""
        return False

    @property
    def clip(self) -> float:
        """The norm bound of the quantity that ``clipping`` names; 0 for none."""
        return 0.0

    @property
    def clipping(self) -> Clipping | Literal["update"]:
        """The quantity that is clipped where ``clip`` is above 0, by default "example".

        "example" clips the gradient of every example, "batch" that of a whole batch, and "update"
        the sum of all steps of a round (`Records.update`), which takes no problem that can clip.
        """
        return "example"

    def noised_release(self, facts: Facts, round_: int) -> Release:
        """Return the release of a round of a private configuration; a private half defines this.

        Raises
        ------
        NoCertificateError
            If no sensitivity is proven for this configuration.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define noised_release")
