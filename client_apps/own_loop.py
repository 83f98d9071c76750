"""Privacy-critical: agents with a training loop of their own, any optimizer, loader and device.

What an agent does in a round is the same for all of these methods
(`privet.kernel.programs.steps`): a few steps on

    f_i(w) + <shift, w> + ||w - center||^2 / (2 rho)       from w = start.

Here the steps are the user's. The model is given the start; `LocalRound.correct` adds
shift + (w - center) / rho to the gradients, where they are; what the model then holds is the end of
the walk, of which the agent's half makes its new state and its upload. Numbers cross between
the model and numpy once in and once out of a round.

A module's buffers, such as the running statistics of BatchNorm, are no parameters: their mean over
the agents of a round, or what the server began with, is written into the model before the loop, or
they stay with the agent (`BUFFERS_ARE`).

Privacy: in a run with noise and a clip every step is `LocalRound.private_step`, which clips each
example's gradient, adds noise and is charged as the built-in solvers are; nothing else may move the
model. What leaves is what `LocalRound.reply` packed, and of an error this library's text alone. The
batches are the loop's, and what it must promise of them stands at `LocalRound.private_step`. Of any
other run there is none: the loop does what it likes with the records, so its upload is accounted as
un-noised, and a node with a budget refuses it. A node that is private answers no evaluation and no
query of the user's either.
"""

from __future__ import annotations

import copy
import importlib
import math
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from privet.core import ConfigError, algorithm
from privet.kernel import Norm, Records
from privet.kernel.exits import Exits
from privet.kernel.programs.steps import LocalTask, Walk
from privet.kernel.round import Ended
from privet.wire import RECORD, Layout, unpack
from privet.wire.contract import decode_settings, means_privacy, read_instruction
from privet.wire.payload import BUFFERS

from .base import Participant, agent_name
from .guard import is_private
from .half import Half, Local, Vector
from .inputs import parts
from .measures import METRICS
from .message_round import MessageRound
from .optimizer_steps import ScaledGradients, StepHook, hooked
from .private_steps import LossFn, PrivateSteps, dry_run, require_runs
from .state import read_state
from .tied import tied_names

MOST_APART = 2.0
"""Factor by which a loop may move further, or less far, than steps that its method counts on."""
BUFFERS_ARE = ("average", "local", "constant")
"""What becomes of a module's buffers. Averaged: the mean of those with which the agents of a round
end is what the next one begins with, as in FedAvg. Local: an agent goes on from its own, as in
M. Andreux et al., "Siloed Federated Learning for Multi-Centric Histopathology Datasets" (2020).
Constant: every round begins, and ends, with those of the starting model."""

NOT_SENT = {
    "arrays": "participant.round(...) gives the model its start",
    "config": "take local.step_size, or a key of context.run_config",
}
"""Records that a training message of Flower's own strategies has, with what there is instead."""

Count = Callable[[Context], int]
Model = Any
"""A ``torch.nn.Module``, or a mapping of names to arrays of floats that can be written into."""


class LocalRound:
    """One agent's round around a training loop; `LoopParticipant.round` opens one.

    Attributes
    ----------
    round : int
        Number of the round.
    step_size : float
        A suggestion: the run's ``step-size``, else one for the usual smoothness.
    steps : int
        A suggestion: the run's number of local steps.
    """

    def __init__(
        self,
        half: Half,
        records: Records,
        round_: int,
        task: LocalTask,
        model: Model,
        weight: float = 1.0,
    ) -> None:
        self.round = round_
        self.step_size, self.steps = task.step_size, task.steps
        self._half, self._records, self._model = half, records, model
        self._parameters = parameters_of(model)
        self._parameters.begin(task, bool(task.needs) or half.steps_bind, weight)
        self._private: PrivateSteps | None = None
        if records.charged:
            if not isinstance(self._parameters, ModuleParameters):
                raise ConfigError("a private round trains a torch.nn.Module")
            self._private = PrivateSteps(model, self._parameters.parameters, task, records)
        # What is as large as the model and of no more use goes at once.
        self._task = task if half.steps_bind else task._replace(shift=None, center=None)
        self._corrects = (
            bool(task.needs) or task.shift is not None or task.rho < math.inf or weight != 1
        )
        self._took: Counter[str] = Counter()
        self._scaled: ScaledGradients | None = None
        self._send: Callable[[LocalRound, Mapping[str, float]], Message] | None = None

    def correct(self, model: Model, gradients: Mapping[str, Any] | None = None) -> None:
        """Add shift + (w - center) / rho to the gradients, in place; call it once a step.

        Where the agents are weighted by their examples, the gradients are multiplied by the weight
        n_i / mean n before.

        Between the backward pass and the optimizer's step, or at the end of its closure; with mixed
        precision after the gradients are unscaled, or the round is refused; before or after
        clipping, as the loop means it. A parameter without a gradient gets the correction alone.

        Parameters
        ----------
        model : torch.nn.Module or mapping
            The model of this round.
        gradients : mapping of str to array, optional
            For a mapping of arrays: its gradients, which are changed. A module holds its own.
        """
        if model is not self._model:
            raise ConfigError("correct() was given another model than the round")
        if self._private is not None:
            raise ConfigError("a private round steps with private_step(), not with correct()")
        self._correct(self._parameters.names, True, gradients)
        if self._scaled is not None:
            self._scaled.corrected()

    def _correct(
        self, names: Collection[str], counts: bool, gradients: Mapping[str, Any] | None = None
    ) -> None:
        """Correct the gradients of some parameters, in a step of its own where it ``counts``."""
        self._parameters.correct(gradients, names)
        if counts:
            self._took.update(names)

    @property
    def _taken(self) -> int:
        """Number of steps: those of two optimizers, each of a part of the model, are not added."""
        return max(self._took.values(), default=0)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Look out for what makes a correction wrong that the loop calls for itself."""
        if isinstance(self._parameters, ModuleParameters) and self._private is None:
            self._scaled = ScaledGradients(self._parameters.parameters)
            with self._scaled.watched():
                yield
        else:
            yield

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Let every optimizer of the module begin its steps with the correction."""
        if not isinstance(self._parameters, ModuleParameters):
            raise ConfigError("hook = True corrects the gradients of a torch.nn.Module")
        if self._private is not None:
            raise ConfigError(
                "hook = True is not for private rounds: private_step corrects the gradients"
            )
        parameters, half = self._parameters, self._half
        once = f"{half.name} counts the gradient of every step" if parameters.sums else ""
        hook = StepHook(parameters.parameters, self._correct, parameters.objective, once)
        with hooked(hook):
            yield

    def private_step(self, loss_fn: LossFn, batch: Any, optimizer: Any = None) -> None:
        """Take one charged step on the model's device.

        The gradients of the batch's examples are clipped one by one and summed up, noise is added,
        then what `correct` adds, and the step is taken: by the optimizer, or by a plain one of
        ``step_size``. A private round takes exactly ``steps`` of them, and nothing else may change
        the model.

        Parameters
        ----------
        loss_fn : callable
            ``(model, batch) -> scalar tensor``, called on batches of one example; a mean over
            them. The model is that of the round.
        batch : tensor, or tuple, list or mapping of tensors
            One example a row of each, of which at most the run's ``batch_size`` (all, with
            ``batch="full"``), none twice. The sum is divided by that number, however many come.
        optimizer : torch.optim.Optimizer, optional
            Of this model; its step is taken with the noised gradients.

        Raises
        ------
        ConfigError
            In a run without noise and a clip, for a batch of more examples, BatchNorm in training
            mode, a model that something else has changed, a module or a loss that keeps something
            of one example for others, class weights that would cancel, or an optimizer of Opacus.
        VmapError
            For a layer or a loss that does not run under ``torch.func.vmap``; `check` finds it
            before a round is charged.
        NoiseError
            For more steps than were charged.

        Privacy: one of the Gaussian releases of this round's upload, of sensitivity 2 C / b in a
        batch of b, whatever the examples are (`privet.kernel.door.Records.clipped_sum`). The
        batches are yours: no record may come twice in one, and which rows it holds must not depend
        on what these hold, as it does where the largest losses are chosen. It is yours, too, that
        frozen parts and buffers of the model were not fitted to these records, that the loss reads
        no records but those of its batch, such as the whole table, that the optimizer's settings
        and state come from noised gradients alone, and that no failure of the loop depends on the
        records. Nothing here holds against code that reaches into this library's own objects.
        """
        if self._private is None:
            raise ConfigError("private_step() needs a run with noise and a clip")
        self._private.step(loss_fn, batch, optimizer, lambda: self._parameters.correct(None))
        self._took.update(self._parameters.names)

    def reply(self, metrics: Mapping[str, float] | None = None) -> Message:
        """Return the upload of what the model holds now, after the ``with`` block.

        Parameters
        ----------
        metrics : mapping, optional
            Numbers for the server's log, averaged over the agents by their numbers of examples;
            they are sent as they are.

        Raises
        ------
        ConfigError
            If the method needs what the loop did not do: a call of `correct` in every step, or
            exactly ``steps`` of them, of about ``step_size``.
        """
        if self._send is None:
            raise ConfigError("reply() belongs after the with block of the round")
        return self._send(self, metrics or {})

    def _local(self, finish: Callable[[LocalTask, Walk], Local]) -> Local:
        """Return what the half makes of the steps; nothing else keeps its vectors."""
        half, task = self._half, self._task
        if self._private is not None:
            self._private.require_kept()
            if self._taken != task.steps:
                raise ConfigError(
                    f"a private round takes exactly {task.steps} private steps, this loop took "
                    f"{self._taken}"
                )
        if self._corrects and not self._taken:
            raise ConfigError(
                f"{half.name} needs a call of correct() in every local step, this loop made none"
            )
        if half.steps_bind and {*self._took.values()} != {task.steps}:
            raise ConfigError(
                f"{half.name} needs exactly {task.steps} local steps with correct(), "
                f"this loop took {' and '.join(map(str, sorted({*self._took.values()}) or [0]))}"
            )
        walk = self._parameters.walk(self._taken)
        if half.steps_bind:
            apart = length(task, walk, self._parameters.coarseness())
            if apart > MOST_APART or apart < 1.0 / MOST_APART:
                raise ConfigError(
                    f"{half.name} counts on {task.steps} plain gradient steps of "
                    f"{task.step_size:.3g}, this loop moved {apart:.2g} times as far: train with "
                    "SGD of local.step_size, or set the strategy's step size to the loop's"
                )
        task = self._task = task._replace(shift=None, center=None)
        self._parameters.end()
        return finish(task, walk)


class _Call:
    """What this library knows of one message, whatever the user's code does with it.

    Attributes
    ----------
    quiet : bool
        Whether the agent or the run is private.
    opened : bool
        Whether a round was opened.
    sent : dict, optional
        The record of the reply that was packed.
    """

    __slots__ = ("opened", "quiet", "sent")

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.opened = quiet, False
        self.sent: dict[str, Any] | None = None

    def packed(self, content: RecordDict) -> RecordDict:
        """Return a reply's content, of which the record is noted."""
        self.sent = dict(content[RECORD])
        return content

    def lets(self, content: RecordDict) -> bool:
        """Whether the content of a reply may leave: of a private agent what was packed alone."""
        if not self.quiet:
            return True
        return content.keys() == {RECORD} and dict(content[RECORD]) == self.sent


class LoopParticipant(Participant):
    """What an agent with a training loop of its own does with an algorithm's messages.

    Parameters
    ----------
    protocol : str
        Name of the algorithm, whose local work must be a local task and nothing else.
        ``scaffold``, ``led`` and ``tamuna`` need plain gradient steps of exactly ``steps`` and
        ``step_size``.
    model : callable or model
        What is trained, or a function without arguments that makes one: its layout is compared with
        the run's, and with that of every round's model. Of a module, the parameters with
        ``requires_grad`` are trained; the others stay with the agent.
    num_examples : callable
        ``context -> int``, public.
    buffers : {"average", "local", "constant"}
        What becomes of a module's persistent buffers of floats, such as the running statistics of
        BatchNorm: `BUFFERS_ARE`. Those of integers stay as the model has them, with "local" as the
        agent has them.

    Raises
    ------
    ConfigError
        For an unknown algorithm, or one whose local work is more than a local task.

    Notes
    -----
    Privacy: statistics are made of the records and not noised. An agent with a budget, one in a
    private run and one of a secure sum refuse to have theirs averaged.

    Examples
    --------
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
        protocol: str,
        model: Callable[[], Model] | Model,
        num_examples: Count,
        *,
        buffers: str = "average",
    ) -> None:
        half = algorithm(protocol).load_agent()
        if half.local_update is not Half.local_update and not half.task_alone:
            raise ConfigError(
                f"{protocol} does its local steps itself: a custom loop cannot replace them"
            )
        if "end_gradient" in half.needs:
            raise ConfigError(f"{protocol} needs a gradient of all examples after its local steps")
        if not callable(num_examples):
            raise ConfigError(f"num_examples is {num_examples!r}, expected context -> int")
        self._model = model
        made = self._made()
        parameters = parameters_of(made)
        layout = self._layout = parameters.layout()
        known: type[LoopProblem] = LoopProblem
        held = Buffers(made, buffers)
        self._kind, self._shared, self._first = buffers, held.shared, held.first()
        tied: dict[str, str] = {}
        if isinstance(parameters, ModuleParameters):
            known = ClippableLoopProblem
            sent = held.tensors if held.shared else {}
            tied = tied_names(made, {**parameters.parameters, **sent})
        self._calls: dict[int, _Call] = {}
        super().__init__(
            lambda context: known(layout, num_examples(context), held.shared, tied),
            protocol=protocol,
        )

    def _made(self) -> Model:
        made = self._model
        if isinstance(made, type) or not hasattr(made, "named_parameters"):
            made = made() if callable(made) else made
        return made

    def check(self, loss_fn: LossFn, batch: Any) -> None:
        """Try `LocalRound.private_step` on up to eight examples of a batch; nothing is charged.

        Call it where the app is made, with zeros or examples that you made up: what does not work
        is then an error before the first round. The model is the participant's.

        Parameters
        ----------
        loss_fn, batch
            As those of `LocalRound.private_step`.

        Raises
        ------
        ConfigError
            For what a private step refuses, and a loss that is no mean over examples.
        VmapError
            A RuntimeError: for a layer or a loss that does not run under ``torch.func.vmap``.
        """
        parameters = parameters_of(model := self._made())
        if not isinstance(parameters, ModuleParameters):
            raise ConfigError("a private round trains a torch.nn.Module")
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
        """Open a round: the model is given the start, and `LocalRound` what goes with it.

        With ``hook`` every step of a PyTorch optimizer of the model's parameters within the block
        begins with what `LocalRound.correct` does, which the loop then leaves out. A step that
        takes a closure, as that of L-BFGS, sees the corrected objective, its value too; however
        often it evaluates it, it is one step.

        Everything that is asked before the work comes first: the node's rules, the ledger,
        the agent's state. What ends the round there raises, and `app` sends the right reply.
        """
        require_same(parameters_of(model).layout(), self._layout)
        buffers = Buffers(model, self._kind)
        if buffers.shared != self._shared:  # of which nobody was asked whether they may leave
            raise ConfigError("the model of this round has other buffers than the participant's")
        settings = decode_settings(read_instruction(message.content).settings)
        call = self._calls.get(id(message), _Call(False))
        if means_privacy(settings):
            if not call.quiet or call.opened:  # of several rounds a loop could choose one
                raise ConfigError(
                    "a private round is opened once, with the message that a handler of "
                    "participant.app() was given"
                )
            if hasattr(model, "named_parameters"):
                require_runs(model)  # before anything is charged
        call.opened = True
        name = agent_name(context)
        opened = self._round(message, context, name)
        try:
            opened.open()
        except Ended as ended:
            call.packed(*ended.args)
            raise
        half: Any = opened.half
        (view,) = opened.views
        task = half.task(*view)
        noise = getattr(half, half.noise_key.replace("-", "_"), 0.0) if half.noise_key else 0.0
        records, problem, weight = view.records, opened.problem, 1.0
        charged = records.charged and type(half).local_update is Half.local_update
        if (noise > 0 or half.clip > 0) and not charged:
            raise ConfigError("a custom training loop needs a clip with its noise, or neither")
        if task.tolerance > 0:
            raise ConfigError("a custom training loop cannot be stopped by a gradient norm")
        received = view.broadcast if buffers.shared else view.state
        given = received.get(BUFFERS, self._first)
        buffers.write(given)
        if isinstance(problem, LoopProblem) and not charged:
            weight = problem.num_examples / problem.divisor
        local = LocalRound(half, records, opened.asked.round, task, model, weight)
        del task
        with local.hooked() if hook else local._watched():
            yield local

        def left(task: LocalTask, walk: Walk) -> Local:
            state, broadcast, _, streams = view
            done: Local = half.finished(state, broadcast, task, walk, records, streams)
            if self._kind == "constant":
                buffers.write(given)
            elif self._kind == "local":
                return done._replace(state={**done.state, **buffers.read()})
            else:
                return done._replace(upload={**done.upload, **buffers.read()})
            return done

        def send(local: LocalRound, metrics: Mapping[str, float]) -> Message:
            if metrics and (half.private or call.quiet or is_private(context)):
                raise ConfigError(
                    "reply(metrics=...) of a private agent would be an un-noised release"
                )
            # No name is given to what the steps came to: it goes as soon as it is packed.
            content = call.packed(opened.close([local._local(left)]))
            if metrics:
                numbers = {name: float(value) for name, value in metrics.items()}
                content[METRICS] = MetricRecord(
                    {"num-examples": opened.facts.num_examples, **numbers}
                )
            return Message(content, reply_to=message)

        local._send = send

    def recall(self, model: Model, context: Context) -> None:
        """Write the agent's own buffers of its last round into a model; for ``buffers="local"``.

        They are not part of the run's model: an ``@app.evaluate()`` handler needs both.
        """
        held = read_state(context)
        state = unpack(held.states[-1]) if held.states else {}
        Buffers(model, self._kind).write(state.get(BUFFERS))

    def _round(self, message: Message, context: Context, name: str) -> MessageRound:
        """Return the round, where its buffers may leave."""
        if self._kind == "average" and self._shared is not None:
            settings = decode_settings(read_instruction(message.content).settings)
            if settings.get("secure-sum") or self.exits(message, context).quiet:
                raise ConfigError(
                    f"buffers = 'average' would send {self._shared.names[0]!r}, un-noised "
                    "statistics of the records: use 'local' or 'constant', or GroupNorm"
                )
        return super()._round(message, context, name)

    def _answer(self, message: Message, context: Context, call_next: Any) -> Message:
        """Turn what a round raises into the reply that the server understands.

        Privacy: evaluations, and queries of the user's, are un-noised releases, so a private agent
        declines.
        """
        # Asked before the user's code, which could change what the answer rests on.
        call = self._calls[id(message)] = _Call(self.exits(message, context).quiet)
        try:
            kind = message.metadata.message_type
            if kind == "query.privet" or (kind.startswith("query") and not call.quiet):
                answer: Message = call_next(message, context)  # errors and all
                return answer
            return self._guarded(self._handled(call, call_next), message, context)
        finally:
            del self._calls[id(message)]

    def _handled(
        self, call: _Call, call_next: Any
    ) -> Callable[[Message, Context, str], RecordDict]:
        """Return what gives the content of a reply of the user's handler."""

        def content(message: Message, context: Context, name: str) -> RecordDict:
            kind = message.metadata.message_type.partition(".")[0]
            if kind != "train":
                what = "evaluation" if kind == "evaluate" else "a query of its own app"
                self.exits(message, context).numbers(what)
            try:
                reply: Message = call_next(message, context)
            except Ended as ended:
                (reply,) = (Message(content, reply_to=message) for content in ended.args)
            except KeyError as missing:
                key = missing.args[0] if missing.args else None
                if kind == "train" and key in NOT_SENT and key not in message.content:
                    raise ConfigError(
                        f"KeyError: a training message of Privet has no {key!r}: {NOT_SENT[key]}"
                    ) from missing
                raise
            if not isinstance(reply, Message):
                raise ConfigError(
                    f"a handler returned {type(reply).__name__}: return a message, in training "
                    "that of local.reply()"
                )
            if reply.has_error():  # the user's text, which could quote a record
                raise RuntimeError(reply.error.reason)
            if not call.lets(reply.content):
                raise ConfigError("a private agent sends what local.reply() returned alone")
            return reply.content

        return content

    def exits(self, message: Message, context: Context) -> Exits:
        call = self._calls.get(id(message))
        if call is not None and call.quiet:
            return Exits(private=True, quiet=True)
        return super().exits(message, context)


class LoopProblem:
    """What is known of an agent's problem whose gradients the library never sees."""

    def __init__(
        self,
        layout: Layout,
        num_examples: int,
        buffers: Layout | None = None,
        tied: Mapping[str, str] | None = None,
    ) -> None:
        self.dim, self.dtype, self.num_examples = layout.dim, layout.dtype, num_examples
        self.layout, self.divisor, self.buffers = layout, float(num_examples), buffers
        self.tied = tied or {}

    def value(self, x: Vector) -> float:
        """Refuse: the loss is the user's."""
        raise ConfigError("the loss of a custom training loop is unknown to this library")

    def gradient(self, x: Vector, rows: Vector | None = None) -> Vector:
        """Refuse: the gradient is the user's."""
        raise ConfigError("the gradient of a custom training loop is unknown to this library")

    def with_divisor(self, divisor: float) -> Self:
        """Return the problem divided by another number, of which `divisor` is the attribute."""
        other = copy.copy(self)
        other.divisor = divisor
        return other


class ClippableLoopProblem(LoopProblem):
    """That of a module, whose examples' gradients `LocalRound.private_step` can clip."""

    def clipped_gradient(
        self, x: Vector, clip: float, norm: Norm = "l2", rows: Vector | None = None
    ) -> Vector:
        """Refuse: the steps are the user's."""
        return self.gradient(x, rows)


def initial_arrays(model: Model) -> ArrayRecord:
    """Return what a run of this model begins with: its trained parameters and buffers by name.

    Of a module ``ArrayRecord(model.state_dict())`` serves as well, which has its frozen parameters
    besides; parameters of bfloat16, which an `ArrayRecord` cannot hold, are float32 here.
    """
    return ArrayRecord({**parameters_of(model).record(), **Buffers(model, "local").record()})


class Buffers:
    """The persistent buffers of a model that a run says something of.

    Those of floats, and with "local" also those of integers.

    Attributes
    ----------
    tensors : dict of str to Tensor
        The buffers by name.
    shared : Layout or None
        Of those that come from the server.
    """

    def __init__(self, model: Model, kind: str) -> None:
        if kind not in BUFFERS_ARE:
            raise ConfigError(f"buffers is {kind!r}, expected {', '.join(BUFFERS_ARE)}")
        saved = model.state_dict() if hasattr(model, "named_buffers") else {}
        self.tensors = {
            name: buffer
            for name, buffer in (model.named_buffers() if saved else ())
            if name in saved
            and (buffer.is_floating_point() or (kind == "local" and not buffer.is_complex()))
        }
        self.shared: Layout | None = None
        self._dtype = np.dtype("f8")  # which holds counts of batches exactly
        if kind != "local" and self.tensors:
            self.shared = layout_of(self.tensors)
            self._dtype = self.shared.dtype

    def first(self) -> Vector | None:
        """Return the numbers, None where there are none."""
        known = not any(buffer.is_meta for buffer in self.tensors.values())
        return self.read().get(BUFFERS) if known else None

    def record(self) -> ArrayRecord:
        """Return the buffers by name."""
        return ArrayRecord(
            {
                name: Array(as_numpy(each) if each.is_floating_point() else each.cpu().numpy())
                for name, each in self.tensors.items()
            }
        )

    def read(self) -> dict[str, Vector]:
        """Return the numbers as one vector under `BUFFERS`, nothing where there are none."""
        parts = [each.detach().cpu().reshape(-1).double().numpy() for each in self.tensors.values()]
        return {BUFFERS: np.concatenate(parts).astype(self._dtype, copy=False)} if parts else {}

    def write(self, vector: Vector | None) -> None:
        """Write the numbers of ``read`` into the model (raises ``ConfigError``)."""
        if vector is None:  # of a model without, or of which only the round has numbers
            return
        sizes = [each.numel() for each in self.tensors.values()]
        if sum(sizes) != vector.size:
            raise ConfigError(
                f"the buffers of this round's model have {sum(sizes)} numbers, not {vector.size}"
            )
        parts = np.split(vector, np.cumsum(sizes)[:-1])
        for each, part in zip(self.tensors.values(), parts, strict=True):
            each.detach().copy_(each.new_tensor(part, device="cpu").reshape(each.shape))


def layout_of(named: Mapping[str, Any]) -> Layout:
    """Return the layout of floats as they travel: half precision as float32."""
    return Layout(
        tuple(named),
        tuple(tuple(each.shape) for each in named.values()),
        tuple(
            "float64" if str(each.dtype).endswith("float64") else "float32"
            for each in named.values()
        ),
    )


class Parameters(ABC):
    """A model's trained parameters in one round: given the start, corrected, read.

    A subclass says where a parameter and its gradient lie, and how numbers get there from numpy;
    the arithmetic is the same for arrays and tensors.
    """

    names: tuple[str, ...]

    @abstractmethod
    def value(self, name: str) -> Any:
        """Return a parameter as it is now."""

    @abstractmethod
    def fill(self, name: str, part: Vector) -> None:
        """Write a part of the flat vector into a parameter."""

    @abstractmethod
    def read(self, name: str) -> Vector:
        """Return a parameter as numpy floats of 32 or 64 bits."""

    @abstractmethod
    def like(self, part: Vector, name: str) -> Any:
        """Return a part of the flat vector as what adds to a parameter's gradient."""

    @abstractmethod
    def gradient(self, name: str, gradients: Mapping[str, Any] | None) -> Any:
        """Return a parameter's gradient, to be changed in place."""

    @abstractmethod
    def add(self, targets: list[Any], terms: list[Any], factor: float = 1.0) -> None:
        """Add factor times each term to its target, in place."""

    @abstractmethod
    def coarseness(self) -> float:
        """Return the largest relative rounding error of a parameter."""

    def record(self) -> ArrayRecord:
        """Return the parameters by name."""
        return ArrayRecord({name: Array(self.read(name)) for name in self.names})

    def layout(self) -> Layout:
        """Return names, shapes and dtypes of `record`, without reading a number."""
        return layout_of({name: self.value(name) for name in self.names})

    def begin(self, task: LocalTask, summed: bool, weight: float = 1.0) -> None:
        """Write the start into the model and bring the task's vectors to where it lies.

        Every gradient counts ``weight`` times.
        """
        shapes = {name: tuple(self.value(name).shape) for name in self.names}
        ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
        if ends[-1] != task.start.size:
            raise ConfigError(
                f"the model has {ends[-1]} trained parameters, the run's has {task.start.size}"
            )

        def parts(vector: Vector) -> dict[str, Vector]:
            pieces = np.split(vector, ends[:-1])
            named = zip(shapes.items(), pieces, strict=True)
            return {name: piece.reshape(shape) for (name, shape), piece in named}

        def placed(vector: Vector) -> dict[str, Any]:
            return {name: self.like(part, name) for name, part in parts(vector).items()}

        for name, part in parts(task.start).items():
            self.fill(name, part)
        self._dtype, self._pull, self._weight = task.start.dtype, 1.0 / task.rho, weight
        fixed, factor, self._constant = task.shift, 1.0, 0.0
        if self._pull and task.center is not None:
            self._constant = 0.5 * self._pull * float(np.dot(task.center, task.center))
            if fixed is None:
                fixed, factor = task.center, -self._pull
            else:
                pulled = task.center * -self._pull
                pulled += fixed
                fixed = pulled
        self._fixed, self._factor = None if fixed is None else placed(fixed), factor
        self._total = np.zeros_like(task.start) if summed else None
        self._totals = {} if self._total is None else parts(self._total)
        self._slopes = None if self._total is None else placed(self._total)

    @property
    def sums(self) -> bool:
        """Whether gradients are summed up."""
        return self._total is not None

    def correct(
        self, gradients: Mapping[str, Any] | None, names: Collection[str] | None = None
    ) -> None:
        """Add shift - center / rho + w / rho to gradients, and sum them up where asked.

        No vector is made on the way. Where gamma / rho <= 1, as it must be for the steps to
        converge, the rounding of w / rho apart from center / rho moves an iterate by no more than
        its own does.
        """
        names = self.names if names is None else names
        held = [self.gradient(name, gradients) for name in names]
        if self._weight != 1:
            self.add(held, held, self._weight - 1.0)
        if self._slopes is not None:
            self.add([self._slopes[name] for name in names], held)
        if self._fixed is not None:
            self.add(held, [self._fixed[name] for name in names], self._factor)
        if self._pull:
            self.add(held, [self.value(name) for name in names], self._pull)

    def walk(self, steps: int) -> Walk:
        """Return the walk that ends where the model is now."""
        mean, sums = None, self._slopes
        if sums is not None and steps:
            for name, total in self._totals.items():
                sums[name] /= steps
                total[...] = as_numpy(sums[name])  # itself, but from a device
            mean = self._total
        end = np.concatenate([self.read(name).reshape(-1) for name in self.names])
        return Walk(end.astype(self._dtype, copy=False), steps, mean)

    def end(self) -> None:
        """Let go of the task's vectors."""
        self._slopes = self._total = self._fixed = None
        self._totals.clear()


class ArrayParameters(Parameters):
    """Arrays in a mapping, which is given new ones."""

    def __init__(self, model: MutableMapping[str, Any]) -> None:
        self.model, self.names = model, tuple(model)
        if not self.names:
            raise ConfigError("the mapping of arrays is empty")
        for name, array in model.items():
            kind = getattr(array, "dtype", type(array).__name__)
            if not isinstance(kind, np.dtype) or kind.kind != "f":
                raise ConfigError(
                    f"{name!r} of the mapping is {kind}: numpy arrays of floats are trained, or a "
                    "module (not its state dict)"
                )

    def value(self, name: str) -> Any:
        return self.model[name]

    def fill(self, name: str, part: Vector) -> None:
        self.model[name] = part.astype(self.model[name].dtype)

    def read(self, name: str) -> Vector:
        return as_numpy(self.model[name])

    def like(self, part: Vector, name: str) -> Any:
        return part

    def add(self, targets: list[Any], terms: list[Any], factor: float = 1.0) -> None:
        for target, term in zip(targets, terms, strict=True):
            np.add(target, term if factor == 1 else term * factor, out=target, casting="same_kind")

    def coarseness(self) -> float:
        return max(float(np.finfo(array.dtype).eps) for array in self.model.values())

    def gradient(self, name: str, gradients: Mapping[str, Any] | None) -> Any:
        if gradients is None or name not in gradients:
            raise ConfigError(f"correct() was given no gradient of {name!r}")
        gradient, shape = gradients[name], self.model[name].shape
        if (
            not isinstance(gradient, np.ndarray)
            or gradient.dtype.kind != "f"
            or gradient.shape != shape
            or not gradient.flags.writeable
        ):
            raise ConfigError(
                f"correct() changes the gradient of {name!r} in place: it must be a writable numpy "
                f"array of floats of shape {shape}"
            )
        return gradient


class ModuleParameters(Parameters):
    """The parameters of a ``torch.nn.Module`` with ``requires_grad``, on its device."""

    def __init__(self, model: Any) -> None:
        self.parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        if not self.parameters:
            raise ConfigError("module has no trainable parameters")
        self.names = tuple(self.parameters)
        self.torch = importlib.import_module("torch")  # which the module comes from

    def value(self, name: str) -> Any:
        return self.parameters[name].detach()

    def fill(self, name: str, part: Vector) -> None:
        self.value(name).copy_(self._tensor(part))

    def read(self, name: str) -> Vector:
        return as_numpy(self.parameters[name])

    def like(self, part: Vector, name: str) -> Any:
        return self._tensor(part).to(self.parameters[name].device)

    def add(self, targets: list[Any], terms: list[Any], factor: float = 1.0) -> None:
        self.torch._foreach_add_(targets, terms, alpha=factor)

    def objective(self, loss: Any, names: Collection[str]) -> Any:
        """Return weight f + <shift, w> + ||w - center||^2 / (2 rho) of f, as `correct` has it.

        Of some parameters alone up to a constant.
        """
        added = self._constant
        for name in names:
            wide = self.value(name).reshape(-1).double()
            if self._fixed is not None:
                fixed = self._fixed[name].reshape(-1).double()
                added += self._factor * float(self.torch.dot(fixed, wide))
            if self._pull:
                added += 0.5 * self._pull * float(self.torch.dot(wide, wide))
        return loss * self._weight + added

    def _tensor(self, part: Vector) -> Any:
        """Return an array as a tensor that shares its memory, to be read only."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writ")
            return self.torch.from_numpy(np.require(part, requirements="A"))

    def coarseness(self) -> float:
        finfo = self.torch.finfo
        return max(float(finfo(each.dtype).eps) for each in self.parameters.values())

    def gradient(self, name: str, gradients: Mapping[str, Any] | None) -> Any:
        if gradients is not None:
            raise ConfigError("a module holds its gradients: call correct(module)")
        parameter = self.parameters[name]
        if hasattr(parameter, "summed_grad") and not hasattr(parameter.summed_grad, "_processed"):
            raise ConfigError(
                "an optimizer of Opacus writes .grad anew in its step: make correct() its step "
                "hook, optimizer.attach_step_hook(lambda _: local.correct(model))"
            )
        if parameter.grad is None:
            parameter.grad = self.torch.zeros_like(parameter)
        elif parameter.grad.is_sparse:  # what is added is not
            parameter.grad = parameter.grad.to_dense()
        return parameter.grad


def as_numpy(values: Any) -> Vector:
    """Return an array or a tensor as numpy floats of 64 bits if it has them, else of 32."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values if str(values.dtype) == "torch.float64" else values.float()).numpy()
    wide: Vector = np.asarray(values)
    return wide if wide.dtype == np.float64 else wide.astype(np.float32, copy=False)


def length(task: LocalTask, walk: Walk, coarseness: float) -> float:
    """Return how far a walk came, in units of the task's gradient steps along the same path.

    Of tasks without a proximal term, of which a walk's mean gradient says all. 1 where the rounding
    of the iterates, relative to them at most ``coarseness``, could be a quarter of the steps.
    """
    mean = walk.supplied("mean_gradient")
    square = moved = 0.0
    for part in parts(len(mean)):  # no vectors of the model's length
        slope = mean[part] if task.shift is None else mean[part] + task.shift[part]
        square += float(slope @ slope)
        moved += float((task.start[part] - walk.end[part]) @ slope)
    if task.step_size * math.sqrt(square) <= 2.0 * coarseness * float(np.linalg.norm(task.start)):
        return 1.0
    return moved / (task.step_size * task.steps * square)


def require_same(found: Layout, expected: Layout) -> None:
    """Refuse the model of a round that is not the participant's (raises ``ConfigError``)."""
    if len(found.names) != len(expected.names):
        raise ConfigError(
            f"the model of this round has {len(found.names)} trained parameters, the "
            f"participant's {len(expected.names)}: requires_grad must not change between rounds"
        )
    if apart := found.difference(expected):
        raise ConfigError(f"the model of this round has {apart} by the participant")


def parameters_of(model: Model) -> Parameters:
    """Return the parameters of a model (raises ``ConfigError`` for what is none)."""
    if hasattr(model, "named_parameters"):
        return ModuleParameters(model)
    if isinstance(model, MutableMapping):
        return ArrayParameters(model)
    raise ConfigError(
        f"a model is a torch.nn.Module or a mapping of arrays, found {type(model).__name__}"
    )
