"""What the author of an algorithm writes of its agent half: the contract, in twenty names.

In this order: what every method gives, what it may give, what a private one gives. `Half` has what
few methods change, and what is derived from these for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

from privet.kernel import Clipping, Facts, Records, Release
from privet.kernel.programs.steps import LocalTask, Need, Walk
from privet.kernel.streams import Streams

from .inputs import Arrays, Vector


class Local(NamedTuple):
    """What an agent's local work leaves: its new state, what it uploads, what both agree on."""

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

    *Every method* gives ``name``, ``task`` and ``finish`` (or ``local_update`` in place of both,
    where the solver is part of the method); where agents keep a state, ``restart`` and ``follow``.

    *It may give* ``version``, ``needs``, ``reference``, ``stacks``, ``steps_bind``,
    ``custom_loop_ok``, ``row_bound``, ``divisor`` and ``upload``.

    *A private method* gives ``noise_key``, ``private``, ``clip``, ``clipping`` and
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

        A half gives ``task`` and ``finish``, or ``local_update`` in place of both.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither task nor local_update")

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Arrays:
        """Return the upload that a walk comes to; a pure function that a half gives with ``task``.

        Its arrays (d,) are coded on their way where `ValueBits` asks for it.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither finish nor local_update")

    def follow(self, state: Arrays, broadcast: Arrays, upload: Arrays) -> Arrays:
        """Return the state that both sides hold after an upload: by default none.

        Agent and server each compute it, from the agent's state before the round, what it was
        broadcast and what it uploaded (as it decodes), and compare a digest of the outcome. A pure
        function, entry by entry: the server gives it rows (N, d) of several agents' arrays beside
        what they were all broadcast, (d,), or a part of one agent's.
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

        By default the task, the built-in solver's walk, and what follows of it.
        """

    # ------------------------------------------------------------------ what it may give

    needs: ClassVar[tuple[Need, ...]] = ()
    """What ``finish`` needs of a walk besides its end."""
    custom_loop_ok: ClassVar[bool] = False
    """Whether a half that gives ``local_update`` does without noise what ``task`` and ``finish``
    say, so that a custom training loop can take the steps."""
    steps_bind: ClassVar[bool] = False
    """Whether the method counts on the number and length of the task's steps, and on no other."""

    divisor: ClassVar[str] = "agent"
    """What f_i is divided by unless the run config says otherwise: the agent's own examples, or
    with "federation" those of all agents."""
    upload: ClassVar[str] = "upload"
    """What an upload is, in the ledger."""

    def reference(self, state: Arrays, broadcast: Arrays) -> Arrays:
        """Return what both sides hold that an upload is near to, by the upload's names.

        ``state`` is what the server would send to restore the agent's. By default what was
        broadcast under the same name; what is not there stands for 0. Only what is public of the
        agent in a private run.
        """
        return broadcast

    @property
    def stacks(self) -> bool:
        """Whether ``local_update`` takes the vectors of many agents as rows (N, d) of arrays.

        With the records of a `privet.problems.stacks.Stack`, and every row as if it were alone:
        so it is where a task and what follows of its walk are made entry by entry.
        """
        return False

    def row_bound(self, facts: Facts) -> float:
        """Return the l2 norm that the agent's rows are to be held to; 0 leaves them as they are.

        Raises
        ------
        ConfigError
            If this configuration cannot run on a problem of these facts.
        """
        return 0.0

    # ------------------------------------------------------------------ what a private one gives

    noise_key: ClassVar[str] = ""
    """The key that a target epsilon is solved for; empty for a half without a private form."""

    @property
    def private(self) -> bool:
        """Whether this configuration means to be private: it is not."""
        return False

    @property
    def clip(self) -> float:
        """The norm bound of what ``clipping`` says: none."""
        return 0.0

    @property
    def clipping(self) -> Clipping | Literal["update"]:
        """What is clipped where ``clip`` is above 0: the gradient of every example.

        Or "batch", that of a whole batch, or "update", all that the steps of a round come to
        (`Records.update`), which takes no problem that can clip.
        """
        return "example"

    def noised_release(self, facts: Facts, round_: int) -> Release:
        """Return what a round of a private configuration releases; a private half gives this.

        Raises
        ------
        NoCertificateError
            If no sensitivity is proven for this configuration.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define noised_release")
