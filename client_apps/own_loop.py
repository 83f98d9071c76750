"""Agents that train with a loop of their own: any optimizer, any data loader, any device.

What an agent does in a round is the same for all of these methods (`client_apps.local_task`): a few
steps on

    f_i(w) + <shift, w> + ||w - center||^2 / (2 rho)       from w = start.

Here the steps are the user's. The model is given the start; `LocalRound.correct` adds
shift + (w - center) / rho to the gradients, where they are; what the model then holds is the end of
the walk, of which the agent's half makes its new state and its upload. Numbers cross between
the model and numpy once in and once out of a round.

Privacy: none. A loop of one's own does what it likes with the records, so its upload is accounted
as un-noised, a node with a budget refuses it, and a run with noise or a clip is refused. A node
that is private answers no evaluation either, whoever wrote the handler.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from privet.privacy import BudgetRefused
from privet.problems import Moduli
from privet.wire import ConfigError, Layout, algorithm

from .base import METRICS, Opened, Participant, agent_name
from .guard import is_private
from .half import Half, Vector
from .local_task import LocalTask, Walk

SUGGESTED_STEP = 0.1
"""Step size that is suggested for a loss whose smoothness nobody knows and no proximal term."""

Count = Callable[[Context], int]
Model = Any
"""A ``torch.nn.Module``, or a mapping of names to arrays of floats that can be written into."""


class Declined(Exception):
    """A round that ends before its local work; its one argument is the reply."""


class LocalRound:
    """One agent's round around a training loop; `LoopParticipant.round` opens one.

    Attributes
    ----------
    round : int
        Number of the round.
    step_size : float
        A suggestion: the run's ``step-size``, else one for a smoothness of 20.
    steps : int
        A suggestion: the run's number of local steps.
    """

    def __init__(self, opened: Opened, task: LocalTask, model: Model) -> None:
        self.round = opened.asked.round
        self.step_size, self.steps = task.step_size, task.steps
        self._opened, self._task, self._model = opened, task, model
        self._parameters = parameters_of(model)
        self._parameters.begin(task)
        self._taken = 0
        self._finish: Callable[[Walk], RecordDict] | None = None
        self._message: Message | None = None

    def correct(self, model: Model, gradients: Mapping[str, Any] | None = None) -> None:
        """Add shift + (w - center) / rho to the gradients, in place; call it once a step.

        Between the backward pass and the optimizer's step; with mixed precision after the gradients
        are unscaled; before or after clipping, as the loop means it. A parameter without a gradient
        gets the correction alone.

        Parameters
        ----------
        model : torch.nn.Module or mapping
            The model of this round.
        gradients : mapping of str to array, optional
            For a mapping of arrays: its gradients, which are changed. A module holds its own.
        """
        if model is not self._model:
            raise ConfigError("correct() was given another model than the round")
        self._parameters.correct(gradients)
        self._taken += 1

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
            exactly ``steps`` of them.
        """
        if self._finish is None or self._message is None:
            raise ConfigError("reply() belongs after the with block of the round")
        half: Any = self._opened.half
        task = self._task
        if half.steps_bind and self._taken != task.steps:
            raise ConfigError(
                f"{half.name} needs exactly {task.steps} local steps with correct(), "
                f"this loop took {self._taken}"
            )
        if task.needs and not self._taken:
            raise ConfigError(f"{half.name} needs a call of correct() in every local step")
        content = self._finish(self._parameters.walk(self._taken))
        if metrics:
            numbers = {name: float(value) for name, value in metrics.items()}
            content[METRICS] = MetricRecord(
                {"num-examples": self._opened.facts.num_examples, **numbers}
            )
        return Message(content, reply_to=self._message)


class LoopParticipant(Participant):
    """What an agent with a training loop of its own does with an algorithm's messages.

    Parameters
    ----------
    protocol : str
        Name of the algorithm, whose local work must be a local task and nothing else.
        ``led`` and ``tamuna`` need plain gradient steps of exactly ``steps`` and ``step_size``.
    model : callable or model
        What is trained, or a function without arguments that makes one: its layout is compared with
        the run's. Of a module, the parameters with ``requires_grad`` are trained; the others, and
        buffers, stay with the agent.
    num_examples : callable
        ``context -> int``, public.

    Raises
    ------
    ConfigError
        For an unknown algorithm, or one whose local work is more than a local task.

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

    def __init__(self, protocol: str, model: Callable[[], Model] | Model, num_examples: Count):
        half = algorithm(protocol).load_agent()
        if half.local_update is not Half.local_update:
            raise ConfigError(
                f"{protocol} does its local steps itself: a loop of one's own cannot replace them"
            )
        if "end_gradient" in half.needs:
            raise ConfigError(f"{protocol} needs a gradient of all examples after its local steps")
        made = model() if callable(model) and not hasattr(model, "named_parameters") else model
        layout = Layout.of(initial_arrays(made))
        super().__init__(
            lambda context: LoopProblem(layout, num_examples(context)), protocol=protocol
        )

    def app(self, **options: Any) -> ClientApp:
        """Return a Flower ClientApp that enrols; register ``@app.train()`` with `round` in it."""
        app = ClientApp(mods=[*options.pop("mods", ()), self._answer], **options)
        app.query("privet")(self.query)
        return app

    @contextmanager
    def round(self, message: Message, context: Context, model: Model) -> Iterator[LocalRound]:
        """Open a round: the model is given the start, and `LocalRound` what goes with it.

        Everything that is asked before the work comes first: the node's rules, the ledger,
        the agent's state. What ends the round there raises, and `app` sends the right reply.
        """
        name = agent_name(context)
        opened = self._open(message, context, name)
        if isinstance(opened, RecordDict):
            raise Declined(Message(opened, reply_to=message))
        half: Any = opened.half
        task = half.task(
            opened.base, opened.broadcast, opened.problem, opened.facts, opened.streams
        )
        if task.noise_variance > 0 or task.gradients.noise_scale > 0 or task.gradients.clip > 0:
            raise ConfigError("a training loop of one's own adds no noise and clips nothing")
        local = LocalRound(opened, task, model)
        yield local
        local._message = message
        local._finish = lambda walk: self._close(
            opened, half.finish(opened.base, opened.broadcast, task, walk), context, name
        )

    def _answer(self, message: Message, context: Context, call_next: Any) -> Message:
        """Turn what a round raises into the reply that the server understands.

        Privacy: an evaluation is an un-noised release, so a private agent declines.
        """
        kind = message.metadata.message_type.partition(".")[0]
        if kind == "query":  # answered by `query`, errors and all, or by the user
            answer: Message = call_next(message, context)
            return answer

        def content(message: Message, context: Context, name: str) -> RecordDict:
            if kind == "evaluate" and is_private(context):
                raise BudgetRefused("declines evaluation: it would be an un-noised release")
            try:
                reply: Message = call_next(message, context)
            except Declined as declined:
                (reply,) = declined.args
            if reply.has_error():
                raise ConfigError(reply.error.reason)
            return reply.content

        return self._guarded(content, message, context)


class LoopProblem:
    """What is known of an agent's problem whose gradients the library never sees."""

    def __init__(self, layout: Layout, num_examples: int) -> None:
        self.dim, self.dtype, self.num_examples = layout.dim, layout.dtype, num_examples
        self.moduli = Moduli(0.0, 2.0 / SUGGESTED_STEP)

    def value(self, x: Vector) -> float:
        """Refuse: the loss is the user's."""
        raise ConfigError("the loss of a training loop of one's own is not known here")

    def gradient(self, x: Vector, rows: Vector | None = None) -> Vector:
        """Refuse: the gradient is the user's."""
        raise ConfigError("the gradient of a training loop of one's own is not known here")


def initial_arrays(model: Model) -> ArrayRecord:
    """Return what a run of this model begins with: its trained parameters by name."""
    return parameters_of(model).record()


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
        """Return a part of the flat vector as what can be added to a parameter's gradient."""

    @abstractmethod
    def gradient(self, name: str, gradients: Mapping[str, Any] | None) -> Any:
        """Return a parameter's gradient, to be changed in place."""

    def record(self) -> ArrayRecord:
        """Return the parameters by name."""
        return ArrayRecord({name: Array(self.read(name)) for name in self.names})

    def begin(self, task: LocalTask) -> None:
        """Write the start into the model and bring the task's vectors to where it lies."""
        shapes = {name: self.read(name).shape for name in self.names}
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
        self._dtype, self._pull = task.start.dtype, 1.0 / task.rho
        self._shift = None if task.shift is None else placed(task.shift)
        self._center = None if task.center is None else placed(task.center)
        summed = "mean_gradient" in task.needs
        self._slopes = placed(np.zeros_like(task.start)) if summed else None

    def correct(self, gradients: Mapping[str, Any] | None) -> None:
        """Add shift + (w - center) / rho to every gradient, and sum up what the task needs."""
        for name in self.names:
            value, gradient = self.value(name), self.gradient(name, gradients)
            if self._slopes is not None:
                self._slopes[name] += gradient
            if self._shift is not None:
                gradient += self._shift[name]
            if self._pull:
                apart = value if self._center is None else value - self._center[name]
                gradient += apart * self._pull

    def walk(self, steps: int) -> Walk:
        """Return the walk that ends where the model is now."""
        mean, sums = None, self._slopes
        if sums is not None:
            mean = self._flat(lambda name: as_numpy(sums[name] / steps))
        return Walk(self._flat(self.read), steps, mean)

    def _flat(self, part: Callable[[str], Vector]) -> Vector:
        whole = np.concatenate([part(name).reshape(-1) for name in self.names])
        return whole.astype(self._dtype, copy=False)


class ArrayParameters(Parameters):
    """Arrays in a mapping, which is given new ones."""

    def __init__(self, model: MutableMapping[str, Any]) -> None:
        self.model, self.names = model, tuple(model)

    def value(self, name: str) -> Any:
        return self.model[name]

    def fill(self, name: str, part: Vector) -> None:
        self.model[name] = part.astype(self.model[name].dtype)

    def read(self, name: str) -> Vector:
        return as_numpy(self.model[name])

    def like(self, part: Vector, name: str) -> Any:
        return part.copy()

    def gradient(self, name: str, gradients: Mapping[str, Any] | None) -> Any:
        if gradients is None or name not in gradients:
            raise ConfigError(f"correct() was given no gradient of {name!r}")
        return gradients[name]


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
        self.value(name).copy_(self.torch.tensor(part))

    def read(self, name: str) -> Vector:
        return as_numpy(self.parameters[name])

    def like(self, part: Vector, name: str) -> Any:
        parameter = self.parameters[name]
        return self.torch.tensor(part, device=parameter.device)

    def gradient(self, name: str, gradients: Mapping[str, Any] | None) -> Any:
        parameter = self.parameters[name]
        if parameter.grad is None:
            parameter.grad = self.torch.zeros_like(parameter)
        return parameter.grad


def as_numpy(values: Any) -> Vector:
    """Return an array or a tensor as numpy floats of 64 bits if it has them, else of 32."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values if str(values.dtype) == "torch.float64" else values.float()).numpy()
    wide: Vector = np.asarray(values)
    return wide if wide.dtype == np.float64 else wide.astype(np.float32, copy=False)


def parameters_of(model: Model) -> Parameters:
    """Return the parameters of a model (raises ``ConfigError`` for what is none)."""
    if hasattr(model, "named_parameters"):
        return ModuleParameters(model)
    if isinstance(model, MutableMapping):
        return ArrayParameters(model)
    raise ConfigError(
        f"a model is a torch.nn.Module or a mapping of arrays, found {type(model).__name__}"
    )
