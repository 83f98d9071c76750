"""Privacy-critical: one round around a custom training loop.

The loop takes the steps, and `LocalRound` corrects its gradients, or takes its charged steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
from flwr.app import Message

from privet.core import ConfigError
from privet.kernel import Records, Told
from privet.kernel.programs.steps import LocalTask, Walk

from ..half import Half, Local, Vector
from ..inputs import parts
from .corrections import Corrections, unscaling
from .kept_optimizers import KeptOptimizers
from .optimizer_steps import PlainSteps, StepHook, hooked, owned
from .parameters import Model, ModuleParameters, Parameters
from .private_steps import LossFn, PrivateSteps, warn_once

MOST_MOVED = 1e-2
"""How far a model may be from where its round began at its first step, relative to its length."""
MOST_APART = 2.0
"""Factor by which a loop may move further, or less far, than the steps that its method assumes."""


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
        parameters: Parameters,
        send: Callable[[LocalRound, Mapping[str, float]], Message],
        weight: float = 1.0,
        optimizers: KeptOptimizers | None = None,
    ) -> None:
        self.round = round_
        self.step_size, self.steps = task.step_size, task.steps
        self._half, self._records, self._model = half, records, model
        self._parameters, self._optimizers = parameters, optimizers
        parameters.begin(task, bool(task.needs) or half.steps_bind, weight)
        self._private: PrivateSteps | None = None
        if records.charged and half.clipping != "update":
            if not isinstance(parameters, ModuleParameters):
                raise ConfigError(Told.MODULE)
            self._private = PrivateSteps(model, parameters.parameters, task, records)
        # Vectors as large as the model are freed as soon as they are not needed.
        self._task = task if half.steps_bind else task._replace(shift=None, center=None)
        self._corrects = (
            bool(task.needs) or task.shift is not None or task.rho < math.inf or weight != 1
        )
        self._whole = bool(task.needs) or half.steps_bind or weight != 1
        self._took: Counter[str] = Counter()
        self._hooks = self._scaled = self._graded = self._bare = False
        self._plain: PlainSteps | None = None
        self._calls: Corrections | None = None
        self._send, self._ended = send, False
        self._marks = parameters.marks()

    def correct(self, model: Model, gradients: Mapping[str, Any] | None = None) -> None:
        """Add shift + (w - center) / rho to the gradients, in place; call it once a step.

        Where the agents are weighted by their examples, the gradients are multiplied by the weight
        n_i / mean n before.

        Parameters that are frozen now, without ``requires_grad``, are left alone.

        Between the backward pass and the optimizer's step, or at the end of its closure; with mixed
        precision after the gradients are unscaled, or the round is refused; before or after
        clipping, as the loop means it. A parameter without a gradient gets the correction alone.

        A step of a ``torch.optim`` optimizer by gradients that hold no correction, or more than
        one, is refused as far as it can be known: not after ``zero_grad(set_to_none=False)``, nor
        of gradients that the loop has replaced. What steps without such an optimizer is not seen.

        Parameters
        ----------
        model : torch.nn.Module or mapping
            The model of this round.
        gradients : mapping of str to array, optional
            For a mapping of arrays: its gradients, which are changed. A module holds its own.

        Raises
        ------
        ConfigError
            For another model, in a private round, beside ``hook``, and for gradients that cannot be
            changed; the step's own line is raised by the optimizer's ``step``.
        """
        if model is not self._model:
            raise ConfigError(
                "correct() was given another model than the round: give it the module that the "
                "round was opened with, not one around it"
            )
        if self._private is not None:
            raise ConfigError(Told.PRIVATE_STEP)
        if self._hooks:
            raise ConfigError(
                "with hook = True every optimizer step is corrected, and correct() would do it "
                "twice: leave out one of the two"
            )
        held = [] if self._calls is None else self._calls.held()
        self._correct(self._parameters.names, True, gradients)
        if self._calls is not None:
            self._calls.corrected(held)

    def _correct(
        self, names: Collection[str], counts: bool, gradients: Mapping[str, Any] | None = None
    ) -> None:
        """Correct the gradients of some parameters, in a step of its own where it ``counts``."""
        names = self._parameters.trained(names)
        if not self._took and self._private is None:
            self._look_at_start()
        graded = self._parameters.graded(names)
        self._bare = self._bare or (self._hooks and not graded)
        self._graded = self._graded or graded
        self._parameters.correct(gradients, names)
        if counts:
            self._took.update(names)

    @property
    def _taken(self) -> int:
        """Number of steps: those of two optimizers, each of a part of the model, are not added."""
        return max(self._took.values(), default=0)

    @contextmanager
    def watched(self, *, hook: bool) -> Iterator[None]:
        """Watch the module's optimizers; with ``hook`` their steps begin with the correction.

        Without it, for scaled gradients, which would make the loop's own corrections wrong.
        """
        with ExitStack() as stack:
            if isinstance(self._parameters, ModuleParameters):
                parameters = self._parameters.parameters
                if self._half.steps_bind:
                    self._plain = PlainSteps(parameters)
                    stack.enter_context(hooked(self._plain))
                if self._private is None and not hook:
                    self._calls = Corrections(parameters, self._corrects, self._whole)
                    stack.enter_context(self._calls.watched())
            if hook:
                stack.enter_context(self._hooked())
            yield
        self._ended = True
        self._marks = self._parameters.marks()

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        """Let every optimizer of the module begin its steps with the correction."""
        if not isinstance(self._parameters, ModuleParameters):
            raise ConfigError("hook = True corrects the gradients of a torch.nn.Module")
        if self._private is not None:
            raise ConfigError(Told.HOOK)
        self._hooks = True
        parameters, half = self._parameters, self._half
        once = f"{half.name} counts the gradient of every step" if parameters.sums else ""
        hook = StepHook(parameters.parameters, self._correct, parameters.objective, once)
        names = {id(each): name for name, each in parameters.parameters.items()}

        def unscaled(optimizer: Any) -> None:
            """Note a gradient scaler, which may skip every step of a round."""
            self._scaled = self._scaled or bool(owned(optimizer, names))

        with hooked(hook), unscaling(unscaled):
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
            With ``batch="poisson"`` the whole data set, in the same order in every step and every
            round: the step tosses a coin for each example, and divides by the ``batch_size``. With
            ``batch="cyclic"`` it is given the same, and takes the batch whose turn it is.
        optimizer : torch.optim.Optimizer, optional
            Of this model; its step is taken with the noised gradients.

        Raises
        ------
        ConfigError
            In a run without noise and a clip, for a batch of more examples, BatchNorm in training
            mode, a model that something else has changed, a module or a loss that keeps something
            of one example for others, class weights that would cancel, another loss that is no mean
            over examples, as made-up ones show, or an optimizer of Opacus.
        VmapError
            For a layer or a loss that does not run under ``torch.func.vmap``; `check` finds it
            before a round is charged. With ``batch="poisson"`` also for random layers such as
            dropout.
        NoiseError
            For more steps than were charged.

        Notes
        -----
        Privacy: one of the Gaussian releases of this round's upload, of sensitivity 2 C / b in a
        batch of b, whatever the examples are (`privet.kernel.door.Records.clipped_sum`); of sampled
        records as `privet.kernel.sampled` says, with coins that nobody sees. Other
        batches are yours: no record may come twice in one, and which rows it holds must not depend
        on what these hold, as it does where the largest losses are chosen. It is yours, too, that
        frozen parts and buffers of the model were not fitted to these records, that the loss reads
        no records but those of its batch, such as the whole table, that the optimizer's settings
        and state come from noised gradients alone, and that no failure of the loop depends on the
        records. Nothing here holds against code that reaches into this library's own objects.
        """
        if self._private is None:
            if self._half.clipping == "update":
                raise ConfigError(
                    f"{self._half.name} clips the whole update, and no gradient: train without "
                    "private_step(), as under FedAvg",
                    Told.WHOLE_UPDATE,
                )
            raise ConfigError(Told.STEP_NEEDS_NOISE)
        with nullcontext() if self._optimizers is None else self._optimizers.allowed():
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
            If the method needs what the loop did not do: a step, a call of `correct` in every one,
            or exactly ``steps`` of them, of about ``step_size``.
        """
        if not self._ended:
            raise ConfigError("reply() belongs after the with block of the round")
        return self._send(self, metrics or {})

    def _stepped(self) -> bool:
        """Whether a step by gradients was seen, or none was to be taken."""
        if self._private is not None or not self._parameters.trained(self._parameters.names):
            return True
        if self._took and not self._graded:  # such as of a loss under torch.no_grad()
            return False
        return self._calls.stepped if self._calls is not None else self._hooks and self._taken > 0

    def _look_at_start(self) -> None:
        """Warn of a model that is changed before its first step, such as by loaded weights."""
        now = [mark for mark, _ in self._parameters.marks()]
        if now == [mark for mark, _ in self._marks]:
            return
        far, size = apart(self._task, self._parameters.now())
        if far > MOST_MOVED * size + 1e-6:  # more than a change of precision, or a move undone
            warn_once(
                "the model held other numbers at the first step of a round than the round began "
                "with: leave out what loads or changes weights within the round before its steps"
            )

    def _require_steps_within(self) -> None:
        """Refuse steps after the block, which nothing corrected (raises ``ConfigError``).

        Other changes are the loop's: a best model that is loaded has no other gradients.
        """
        pairs = zip(self._marks, self._parameters.marks(), strict=True)
        stepped = (left[0] != now[0] and now[1] not in (None, left[1]) for left, now in pairs)
        if self._corrects and any(stepped):
            raise ConfigError(
                "the model was trained after the with block of the round, where no step is "
                "corrected: move these steps into the block"
            )

    def _local(self, finish: Callable[[LocalTask, Walk], Local]) -> Local:
        """Return the half's outcome of the steps; nothing else keeps its vectors."""
        half, task = self._half, self._task
        if self._private is not None:
            self._private.require_kept()
            if self._taken != task.steps:
                raise ConfigError(
                    f"a private round takes exactly {task.steps} private steps, this loop took "
                    f"{self._taken}",
                    Told.STEPS,
                )
        if self._corrects and not self._taken and (task.needs or not self._scaled):
            if not self._stepped() and stayed(task, self._parameters.now()):
                raise ConfigError(
                    f"{half.name} needs local steps, and this loop took none of the round's model: "
                    "has the agent fewer rows than a batch (drop_last = True), or did the "
                    "optimizer step another model?"
                )
            raise ConfigError(
                f"{half.name} needs a call of correct() in every local step, this loop made none: "
                "call it before each step, or open the round with hook = True and step with a "
                "torch optimizer of this model's parameters"
            )
        counts = sorted({self._took[name] for name in self._parameters.names})
        if half.steps_bind and counts != [task.steps]:
            raise ConfigError(
                f"{half.name} needs exactly {task.steps} local steps with correct() of every "
                f"parameter, this loop took {' and '.join(map(str, counts))}: take local.steps of "
                "them, or set the strategy's number of local steps to the loop's"
            )
        if isinstance(self._parameters, ModuleParameters):
            self._parameters.require_in(self._model)
            self._require_steps_within()
        mean, ends = self._parameters.mean(self._taken), self._parameters.now()
        stepped = self._stepped()
        still = (not stepped or self._private is None) and stayed(task, ends)
        if still and (not stepped or self._parameters.flat()):
            warn_once(
                "a loop left the model as its round began with it: none of its steps reached the "
                "model's parameters, or had a gradient of them"
            )
        elif self._bare:
            warn_once(
                "a loop's step had no gradient of any of its parameters, and moved them by the "
                "correction alone: call backward() before the optimizer's step"
            )
        if self._plain is not None and (other := self._plain.other()):
            raise ConfigError(
                f"{half.name} counts on plain gradient steps, those of {other} are not: train with "
                "torch.optim.SGD without momentum, and write weight decay into the loss"
            )
        if half.steps_bind and mean is not None:
            ratio = length(task, mean, ends, self._parameters.coarseness())
            if ratio > MOST_APART or ratio < 1.0 / MOST_APART:
                raise ConfigError(
                    f"{half.name} counts on {task.steps} plain gradient steps of "
                    f"{task.step_size:.3g}, this loop moved {ratio:.2g} times as far: train with "
                    "SGD of local.step_size, or set the strategy's step size to the loop's"
                )
        # The end takes the room of what every step added.
        task = self._task = task._replace(shift=None, center=None)
        self._parameters.end()
        return finish(task, Walk(self._parameters.joined(ends), self._taken, mean))


def stayed(task: LocalTask, ends: Iterable[Vector]) -> bool:
    """Whether a walk ended where it began. ``ends`` are the flat parts of its end, in order."""
    begin = 0
    for end in ends:
        for part in parts(len(end)):
            start = task.start[begin + part.start : begin + min(part.stop, len(end))]
            if not np.array_equal(start.astype(end.dtype, copy=False), end[part]):
                return False
        begin += len(end)
    return True


def apart(task: LocalTask, ends: Iterable[Vector]) -> tuple[float, float]:
    """Return how far a model is from where a walk began, and the length of that."""
    far, begin = 0.0, 0
    for end in ends:
        for part in parts(len(end)):
            moved = end[part] - task.start[begin + part.start : begin + min(part.stop, len(end))]
            far += float(moved @ moved)
        begin += len(end)
    return math.sqrt(far), float(np.linalg.norm(task.start))


def length(task: LocalTask, mean: Vector, ends: Iterable[Vector], coarseness: float) -> float:
    """Return how far a walk came, in units of the task's gradient steps along the same path.

    Of tasks without a proximal term, of which a walk's mean gradient says all. ``ends`` are the
    flat parts of its end, in order. 1 where the rounding of the iterates, relative to them at most
    ``coarseness``, could be a quarter of the steps.
    """
    square, moved, begin = 0.0, 0.0, 0
    for end in ends:
        for part in parts(len(end)):  # no vectors of the model's length
            here = slice(begin + part.start, begin + min(part.stop, len(end)))
            slope = mean[here] if task.shift is None else mean[here] + task.shift[here]
            square += float(slope @ slope)
            moved += float((task.start[here] - end[part]) @ slope)
        begin += len(end)
    if task.step_size * math.sqrt(square) <= 2.0 * coarseness * float(np.linalg.norm(task.start)):
        return 1.0
    return moved / (task.step_size * task.steps * square)
