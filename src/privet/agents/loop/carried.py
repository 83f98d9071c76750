"""Privacy-critical: what a model has beside its trained parameters, from round to round.

Privacy: layers, buffers and optimizers of the agent's own never leave it. A round whose every
gradient is noised goes on from those of such rounds alone: buffers and optimizers are kept under
other names than those of other rounds.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from privet.kernel.round import View
from privet.wire.payload import BUFFERS, OF_LOOP

from ..half import Local, Vector
from .buffers import Buffers, BuffersAre
from .kept_optimizers import KeptOptimizers
from .personal import Bytes, Personal

PERSONAL = OF_LOOP + "personal"
OPTIMIZERS = {False: OF_LOOP + "optimizers", True: OF_LOOP + "noised-optimizers"}
LOCAL_BUFFERS = {False: BUFFERS, True: OF_LOOP + "noised-buffers"}
"""Names in an agent's state: of personal layers, and of optimizers and the agent's own buffers in a
round whose every gradient is noised, or another."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What the model of a round has beside its trained parameters.

    Attributes
    ----------
    own : Personal
        Layers that stay with the agent.
    buffers : Buffers
    kind : {"average", "local", "constant"}
        Their treatment: `BUFFERS_ARE`.
    noised : bool
        Whether every gradient that an optimizer sees in this round is noised.
    begun : array, optional
        The buffers that the round begins with.
    optimizers : KeptOptimizers, optional
        Where they are kept.
    """

    own: Personal
    buffers: Buffers
    kind: BuffersAre
    noised: bool
    begun: Vector | None
    optimizers: KeptOptimizers | None

    @classmethod
    def restored(
        cls,
        own: Personal,
        buffers: Buffers,
        kind: BuffersAre,
        view: View,
        *,
        noised: bool,
        first: tuple[Vector | None, Bytes | None],
        optimized: Any = None,
    ) -> Carried:
        """Write into a model what its round begins with.

        Parameters
        ----------
        own, buffers, kind, noised
            As the attributes.
        view : View
            The state that the agent starts from, and the broadcast.
        first : tuple
            Buffers and bytes of the own layers where neither has any.
        optimized : torch.nn.Module, optional
            The model, where its optimizers go on from the state.

        Raises
        ------
        ConfigError
            If they are of another model.
        """
        first_buffers, first_own = first
        if buffers.shared:
            begun = view.broadcast.get(BUFFERS, first_buffers)
        else:
            begun = view.state.get(LOCAL_BUFFERS[noised], first_buffers)
        buffers.write(begun)
        if (kept := view.state.get(PERSONAL, first_own)) is not None:
            own.write(kept)
        optimizers = None
        if optimized is not None:
            optimizers = KeptOptimizers(optimized, view.state.get(OPTIMIZERS[noised]), noised)
        return cls(own, buffers, kind, noised, begun, optimizers)

    def watched(self) -> AbstractContextManager[None]:
        """Give the optimizers that step within the block what is kept of them."""
        return nullcontext() if self.optimizers is None else self.optimizers.watched()

    def ended(self, done: Local) -> Local:
        """Return a half's outcome with what the model has now: in the state, or in the upload."""
        kept: dict[str, Any] = {}
        if self.own.tensors:
            kept[PERSONAL] = self.own.read()
        if self.optimizers is not None:
            kept[OPTIMIZERS[self.noised]] = self.optimizers.read()
        if self.kind == "constant":
            self.buffers.write(self.begun)
        elif self.kind == "local":
            if (ended := self.buffers.read().get(BUFFERS)) is not None:
                kept[LOCAL_BUFFERS[self.noised]] = ended
        else:
            done = done._replace(upload={**done.upload, **self.buffers.read()})
        return done._replace(state={**done.state, **kept}) if kept else done
