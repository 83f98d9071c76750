"""Privacy-critical: the participant that opens a training loop's rounds and sends their uploads."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from privet.core import ConfigError
from privet.kernel import Told
from privet.kernel.exits import Exits
from privet.kernel.programs.steps import LocalTask, Walk
from privet.kernel.round import Ended
from privet.wire import RECORD, unpack
from privet.wire.contract import decode_settings, means_privacy, read_instruction

from ..base import MeaningOf, OfRecords, Participant, agent_name
from ..guard import is_private
from ..half import Half, Local
from ..measures import METRICS
from ..message_round import MessageRound
from ..state import read_state
from .admission import covers, is_whole, require_playable, require_private_loop, weight_of
from .buffers import Buffers, BuffersAre
from .carried import LOCAL_BUFFERS, PERSONAL, Carried
from .parameters import (
    Model,
    ModuleParameters,
    Parameters,
    parameters_of,
    require_same,
)
from .personal import Personal
from .private_steps import LossFn, dry_run
from .problem import ClippableLoopProblem, LoopProblem
from .round import LocalRound
from .tied import tied_names
from .trainers import chosen, require_one_process

NOT_SENT = {
    "arrays": "participant.round(...) gives the model its start",
    "config": "give strategy.start(..., train_config=...), or take local.step_size",
}
"""Records that training messages of Flower's own strategies always have, with their replacement."""
Count = Callable[[Context], int]
Length = Callable[[Context], float]


class _Call:
    """The library's record of one message, whatever the user's code does with it.

    Attributes
    ----------
    quiet : bool
        Whether the agent or the run is private.
    opened, granted : bool
        Whether a round was opened, and whether it was charged and its records were handed out.
    inside : bool
        Whether its with block has not ended.
    sent : dict, optional
        The record of the reply that was packed.
    """

    __slots__ = ("granted", "inside", "opened", "quiet", "sent")

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.opened, self.granted, self.inside = quiet, False, False, False
        self.sent: dict[str, Any] | None = None

    def packed(self, content: RecordDict) -> RecordDict:
        """Note the record of a reply, and return the reply's content."""
        self.sent = dict(content[RECORD])
        return content

    def allows(self, content: RecordDict) -> bool:
        """Whether the content of a reply may leave: of a private agent only what was packed."""
        if not self.quiet:
            return True
        return content.keys() == {RECORD} and dict(content[RECORD]) == self.sent


class LoopParticipant(Participant):
    """Handles an algorithm's messages for an agent with a custom training loop.

    Parameters
    ----------
    protocol : str or None
        Name of the algorithm, whose local work must be a local task and nothing else; None serves
        every such algorithm, as the run's strategy has it.
        ``scaffold``, ``led`` and ``tamuna`` need plain gradient steps of exactly ``steps`` and
        ``step_size``.
    model : callable or model
        The model that is trained, or a function without arguments that makes one. Its layout is
        compared with the run's, and with that of every round's model. Of a module, the parameters
        with ``requires_grad`` are trained; the others stay with the agent.
    num_examples : callable
        ``context -> int``, public.
    buffers : {"average", "local", "constant"}
        Treatment of a module's persistent buffers of floats, such as the running statistics of
        BatchNorm: `BUFFERS_ARE`. Buffers of integers stay as the model has them, with "local" as
        the agent has them.
    personal : str or sequence of str
        Layers of a module that stay with the agent, with their buffers: names of layers or of
        parameters, or "batch-norm" for all BatchNorm layers. An agent begins with those of the
        ``model`` given here, and goes on from its own; the run's result has those of the server's
        start. They are no part of what the method corrects.
    keep_optimizer : bool
        Whether an optimizer of a module's parameters goes on from the state, such as momenta, with
        which that of the agent's round before ended. Its settings are those of the round's own.
    step_size : float or callable
        Length of a step of the loop, or ``context -> float``: the learning rate of plain SGD,
        lr / (1 - momentum) with momentum, `measured_step` for other optimizers. The strategy's
        open settings follow from it (`privet.agents.loop_defaults`): one value for the run,
        the median of the agents'. 0 states none.
    reply_seconds : float
        As of `Participant`; private rounds of an asynchronous run need it.
    meaning : str or callable
        As of `Participant`: what inputs and classes mean, which agents of one run have in common.

    Raises
    ------
    ConfigError
        For an unknown algorithm, or one whose local work is more than a local task.

    Notes
    -----
    Privacy: private agents and secure sums do not state a step, as a measured one depends on
    records. Statistics are computed from the records and not noised. An agent with a budget, one in
    a private run and one in a secure sum refuse to have theirs averaged. Personal layers never
    leave the agent, but are trained without noise, and every gradient of the others depends on
    them: a private round refuses them. Optimizers of a private round go on from those of private
    rounds alone.

    Examples
    --------
    >>> import numpy as np
    >>> weights = {"w": np.zeros(2)}
    >>> participant = LoopParticipant("fed-plt", weights, lambda context: 10)
    >>> app = participant.app()
    >>> @app.train()
    ... def train(message, context):
    ...     with participant.round(message, context, weights) as local:
    ...         for _ in range(local.steps):
    ...             gradients = {"w": weights["w"] - 1.0}
    ...             local.correct(weights, gradients)
    ...             weights["w"] -= local.step_size * gradients["w"]
    ...     return local.reply()
    """

    def __init__(
        self,
        protocol: str | None,
        model: Callable[[], Model] | Model,
        num_examples: Count,
        *,
        buffers: BuffersAre = "average",
        personal: str | Sequence[str] = (),
        keep_optimizer: bool = False,
        step_size: float | Length = 0.0,
        reply_seconds: float = 0.0,
        meaning: MeaningOf = "",
    ) -> None:
        if not callable(num_examples):
            raise ConfigError(f"num_examples is {num_examples!r}, expected context -> int")
        self._model = model
        made = self._made()
        self._personal = (personal,) if isinstance(personal, str) else tuple(personal)
        own = Personal(made, self._personal)
        parameters = parameters_of(made, personal=own.tensors)
        layout = self._layout = parameters.layout()
        known: type[LoopProblem] = LoopProblem
        held = Buffers(made, buffers, own.tensors)
        self._kind, self._shared, self._first = buffers, held.shared, held.first()
        self._first_own, self._keeps = own.first(), keep_optimizer
        if keep_optimizer and not isinstance(parameters, ModuleParameters):
            raise ConfigError("keep_optimizer: a mapping of arrays has no torch.optim.Optimizer")
        tied: dict[str, str] = {}
        if isinstance(parameters, ModuleParameters):
            known = ClippableLoopProblem
            sent = held.tensors if held.shared else {}
            tied = tied_names(made, {**parameters.parameters, **sent})
        self._calls: dict[int, _Call] = {}
        super().__init__(
            lambda context: known(
                layout, num_examples(context), held.shared, tied, _length(step_size, context)
            ),
            protocol=protocol,
            reply_seconds=reply_seconds,
            meaning=meaning,
        )
        if protocol is not None:
            self.served(protocol)

    def served(self, protocol: str) -> type[Half]:
        half = super().served(protocol)
        if half.local_update is not Half.local_update and not half.custom_loop_ok:
            raise ConfigError(
                f"{protocol} does its local steps itself: a custom loop cannot replace them",
                Told.CUSTOM_LOOP,
            )
        if "end_gradient" in half.needs:
            raise ConfigError(
                f"{protocol} needs a gradient of all examples after its local steps",
                Told.CUSTOM_LOOP,
            )
        return half

    def _made(self) -> Model:
        made = self._model
        if isinstance(made, type) or not hasattr(made, "named_parameters"):
            made = made() if callable(made) else made
        return made

    def check(self, loss_fn: LossFn, batch: Any) -> None:
        """Try `LocalRound.private_step` on up to eight examples of a batch; nothing is charged.

        Call it where the app is made, with zeros or examples that you made up: a failure is then
        reported before the first round. The model is the participant's.

        Parameters
        ----------
        loss_fn, batch
            As those of `LocalRound.private_step`.

        Raises
        ------
        ConfigError
            If a private step would refuse the model or batch, or the loss is no mean over examples.
        VmapError
            A RuntimeError: for a layer or a loss that does not run under ``torch.func.vmap``.
        """
        if self._personal:
            raise ConfigError(Told.PERSONAL)
        parameters = parameters_of(model := self._made())
        if not isinstance(parameters, ModuleParameters):
            raise ConfigError(Told.MODULE)
        dry_run(model, parameters.parameters, loss_fn, batch)

    def app(self, **options: Any) -> ClientApp:
        """Return a Flower ClientApp that enrols; register ``@app.train()`` with `round` in it."""
        app = ClientApp(mods=[self._answer, *options.pop("mods", ())], **options)
        app.query("privet")(self.query)
        return app

    @contextmanager
    def round(
        self, message: Message, context: Context, model: Model, *, hook: bool = False
    ) -> Iterator[LocalRound]:
        """Open a round: write the start into the model, and yield its `LocalRound`.

        With ``hook`` every step of a PyTorch optimizer of the model's parameters within the block
        begins with what `LocalRound.correct` does, which the loop then leaves out. A step that
        takes a closure, as that of L-BFGS, sees the corrected objective, its value too; however
        often it evaluates it, it is one step.

        All checks come before the work: the node's rules, the ledger, the agent's state. A round
        that ends there raises an exception, and `app` sends the right reply.
        """
        own, parameters, buffers = self._parts(model)
        settings = decode_settings(read_instruction(message.content).settings)
        call = self._calls.get(id(message), _Call(False))
        if means_privacy(settings):
            alone = call.quiet and not call.opened
            require_private_loop(model, parameters, personal=bool(self._personal), alone=alone)
        opened = self._opened(message, context, call)
        (view,) = opened.views
        half, covered = opened.half, covers(opened.half, view.records)
        task = half.task(*view)
        require_playable(half, task, covered=covered)
        private = means_privacy(settings) or view.records.charged
        carried = Carried.restored(
            *(own, buffers, self._kind, view),
            noised=private and not is_whole(half),  # every gradient that an optimizer sees
            first=(self._first, self._first_own),
            optimized=model if self._keeps else None,
        )

        def finish(task: LocalTask, walk: Walk) -> Local:
            state, broadcast, records, streams = view
            return carried.ended(half.finished(state, broadcast, task, walk, records, streams))

        def send(local: LocalRound, metrics: Mapping[str, float]) -> Message:
            if metrics and (half.private or call.quiet or is_private(context)):
                raise ConfigError(Told.METRICS)
            # The outcome has no name here, so that it is freed as soon as it is packed.
            content = call.packed(opened.close([local._local(finish)]))
            if metrics:
                content[METRICS] = MetricRecord(
                    {"num-examples": opened.facts.num_examples, **_numbers(metrics)}
                )
            return Message(content, reply_to=message)

        weight, number = weight_of(opened.problem, covered=covered), opened.instruction.round
        local = LocalRound(
            *(half, view.records, number, task, model, parameters, send),
            weight=weight,
            optimizers=carried.optimizers,
        )
        del task
        if call.inside:
            raise ConfigError(
                "a round of this message is open: its with block ends before another one begins"
            )
        call.inside = True
        try:
            with carried.watched(), local.watched(hook=hook):
                yield local
        finally:
            call.inside = False

    def _parts(self, model: Model) -> tuple[Personal, Parameters, Buffers]:
        """Return own layers, trained parameters and buffers of a round's model.

        Raises
        ------
        ConfigError
            If they are not those of the participant's.
        """
        own = Personal(model, self._personal)
        parameters = parameters_of(model, self._layout.names, own.tensors)
        require_same(parameters.layout(), self._layout)
        buffers = Buffers(model, self._kind, own.tensors)
        if buffers.shared != self._shared:  # not those that were checked for leaving the node
            raise ConfigError("the model of this round has other buffers than the participant's")
        return own, parameters, buffers

    def _opened(self, message: Message, context: Context, call: _Call) -> MessageRound:
        """Open a round (raises ``Ended``, with the reply, where it ends there)."""
        call.opened = True
        opened = self._round(message, context, agent_name(context))
        try:
            opened.open()
        except Ended as ended:
            call.packed(*ended.args)
            raise
        call.granted = True
        return opened

    def lightning(
        self,
        trainer: Any,
        message: Message,
        context: Context,
        model: Any,
        *data: Any,
        metrics: Collection[str] = (),
        **options: Any,
    ) -> Message:
        """Play a round in which a PyTorch Lightning trainer trains, and return the reply.

        It is `round` with ``hook``, around ``trainer.fit(model, *data, **options)``.

        Parameters
        ----------
        trainer : lightning.Trainer
            Of one process. Make a new one a round, as a trainer counts its epochs.
        model : lightning.LightningModule
        metrics : collection of str
            Names of logged numbers that are sent for the server's log, as by `LocalRound.reply`.

        Raises
        ------
        ConfigError
            As `round` and `LocalRound.reply`, for several processes, and for a metric that was not
            logged.
        """
        require_one_process(trainer.world_size)
        with self.round(message, context, model, hook=True) as local:
            trainer.fit(model, *data, **options)
        return local.reply(chosen(trainer.callback_metrics, metrics))

    def hugging_face(
        self,
        trainer: Any,
        message: Message,
        context: Context,
        *,
        metrics: Collection[str] = (),
        **options: Any,
    ) -> Message:
        """Play a round in which a ``transformers.Trainer`` trains its model, and return the reply.

        It is `round` with ``hook``, around ``trainer.train(**options)``; parameters and errors are
        those of `lightning`. ``metrics`` are names of what ``train`` returns, such as
        ``train_loss``.
        """
        require_one_process(trainer.args.world_size)
        with self.round(message, context, trainer.model, hook=True) as local:
            done = trainer.train(**options)
        return local.reply(chosen(done.metrics, metrics))

    def recall(self, model: Model, context: Context) -> None:
        """Write the agent's own layers and buffers of its last round into a model.

        Those of ``personal`` and ``buffers="local"`` are not part of the run's model: an
        ``@app.evaluate()`` handler needs both.
        """
        held = read_state(context)
        state = unpack(held.states[-1]) if held.states else {}
        own = Personal(model, self._personal)
        buffers = [state[name] for name in LOCAL_BUFFERS.values() if name in state]
        Buffers(model, self._kind, own.tensors).write(buffers[0] if buffers else None)
        if (kept := state.get(PERSONAL, self._first_own)) is not None:
            own.write(kept)

    def _round(self, message: Message, context: Context, name: str) -> MessageRound:
        """Return the round (raises ``ConfigError`` if its buffers must not leave)."""
        if self._kind == "average" and self._shared is not None:
            settings = decode_settings(read_instruction(message.content).settings)
            if settings.get("secure-sum") or self.exits(message, context).quiet:
                raise ConfigError(
                    f"buffers = 'average' would send {self._shared.names[0]!r}, un-noised "
                    "statistics of the records: use 'local' or 'constant', or GroupNorm",
                    Told.BUFFERS,
                )
        return super()._round(message, context, name)

    def _answer(self, message: Message, context: Context, call_next: Any) -> Message:
        """Turn an exception of a round into the reply that the server understands.

        Privacy: evaluations, and queries of the user's, are un-noised releases, so a private agent
        declines.
        """
        # Decided before the user's code runs, which could change what the decision rests on.
        call = self._calls[id(message)] = _Call(self.exits(message, context).quiet)
        try:
            if message.metadata.message_type.startswith("query"):
                return self._of_others(message, context, call_next)
            return self._guarded(self._handled(call, call_next), message, context)
        finally:
            del self._calls[id(message)]

    def _handled(
        self, call: _Call, call_next: Any
    ) -> Callable[[Message, Context, str], RecordDict]:
        """Return a function that checks and returns the content of the user's reply."""

        def content(message: Message, context: Context, name: str) -> RecordDict:
            kind = message.metadata.message_type.partition(".")[0]
            if kind != "train":
                self.exits(message, context).numbers(Told.EVALUATION)
            try:
                reply: Message = call_next(message, context)
            except Ended as ended:
                (reply,) = (Message(content, reply_to=message) for content in ended.args)
            except KeyError as missing:
                key = missing.args[0] if missing.args else None
                if kind == "train" and key in NOT_SENT and key not in message.content:
                    raise ConfigError(
                        f"KeyError: a training message of Privet has no {key!r}: {NOT_SENT[key]}",
                        Told.NOT_SENT,
                    ) from missing
                raise
            except Exception as error:
                if call.opened and not call.granted:  # raised by the checks of a round
                    raise
                raise OfRecords(error, Told.WORK) from error
            if not isinstance(reply, Message):
                raise ConfigError(
                    f"a handler returned {type(reply).__name__}: return a message, in training "
                    "that of local.reply()",
                    Told.HANDLER,
                )
            if reply.has_error():  # the user's text, which could quote a record
                raise RuntimeError(reply.error.reason)
            if not call.allows(reply.content):
                raise ConfigError(Told.REPLY_ALONE)
            return reply.content

        return content

    def exits(self, message: Message, context: Context) -> Exits:
        call = self._calls.get(id(message))
        if call is not None and call.quiet:
            return Exits(private=True, quiet=True)
        return super().exits(message, context)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as floats (raises ``ConfigError``)."""
    found = {}
    for name, value in metrics.items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"reply(metrics=...): {name!r} is {value!r:.80}, expected a number"
            ) from error
    return found


def _length(given: float | Length, context: Context) -> float:
    """Return the length of a loop's step (raises ``ConfigError``)."""
    step = float(given(context) if callable(given) else given)
    if not 0.0 <= step < math.inf:
        raise ConfigError(f"step_size is {step}, expected a length or 0")
    return step
