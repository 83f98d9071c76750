"""Privacy-critical: gradients of single examples from what layers were given and what came back.

A module and its loss run under ``torch.func.vmap``, one example at a time, so that the loss l_i is
a function of example i. The gradients are taken outside of it, by PyTorch's own backward pass
through the sum of the losses. The parameters are given to the module as b copies, one for every
example: the gradient of sum_i l_i by the copy of example i is that of l_i.

Linear layers, convolutions and embeddings would have no use of copies. They are called with the
parameters themselves for all examples at once, which are looked up by the copies they were given.
What they were given, a_i, is kept, and the backward pass ends where their outputs y_i came from, at
the slopes s_i of l_i by them; no gradient by the parameters themselves is taken. Then the gradient
is, summed over positions,

    s_i a_i^T (linear layers),    s_i by the row that was looked up (embeddings),

and a convolution's gradient by its weights, which PyTorch gives for every example. A parameter that
is used anywhere else as well has the gradient of its copy, and all of it is added up.

The backward pass is one of batched numbers: what it computes of a row depends on that row, as under
vmap. Hooks on tensors, which could see all examples at once, can be neither set under vmap nor
handed in by saved tensors.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .functions import Rule
from .recurrent import recurrent, recurrent_rules, written_out
from .shares import Dense, GradientShare, Looked, Outer, added_up

_UNRULED = {"max_norm": None, "scale_grad_by_freq": False, "dropout": 0.0, "proj_size": 0}
"""Settings of an embedding, and of a GRU or LSTM, without which there are rules."""
_NO_HOOKS = "hooks on saved tensors do not run under torch.func.vmap"


def has_layers(module: Any, names: Iterable[str]) -> bool:
    """Return whether parameters of these names belong to layers that have rules here, and to none
    of PyTorch's layers that have not.

    Those keep ``torch.func.grad`` for the whole module: copies of the weights of a plain recurrent
    layer would make every of its steps a product of its own for each example, and what a
    parametrization, a hook, ``max_norm`` or a layer derived from PyTorch's writes of the weights
    would be one copy for each. Parameters of a module of one's own are copied.
    """
    ruled, own = set[str](), set[str]()
    for place, layer in module.named_modules():
        names_of, known = (own, layer._parameters) if _is_own(layer) else (ruled, ())
        if type(layer) in _layers():
            known = _own_names(layer)
        names_of.update(f"{place}.{name}" if place else name for name in known)
    named = set(names)
    return named <= ruled | own and not named <= own


def _is_own(layer: Any) -> bool:
    """Return whether a module is of no class of PyTorch's but the plainest."""
    plain = (importlib.import_module("torch").nn.Module, object)
    kinds = (kind for kind in type(layer).__mro__ if kind not in plain)
    return all(kind.__module__.partition(".")[0] != "torch" for kind in kinds)


@functools.cache
def _layers() -> frozenset[Any]:
    nn = importlib.import_module("torch").nn
    names = ("Linear", "Conv1d", "Conv2d", "Conv3d", "Embedding", "LayerNorm", "GroupNorm")
    return frozenset(getattr(nn, name) for name in (*names, "GRU", "LSTM"))


def _own_names(layer: Any) -> Sequence[str]:
    """Return the names of the parameters that a layer has rules for."""
    if any(getattr(layer, setting, none) != none for setting, none in _UNRULED.items()):
        return ()
    return getattr(layer, "_flat_weights_names", ("weight", "bias"))


class Uses:
    """The uses of parameters by layers in one block of examples.

    Parameters
    ----------
    loss : callable
        (copies of the parameters, one example's row of every tensor) -> its scalar loss.
    parameters : mapping of str to tensor
    randomness
        As of ``torch.func.vmap``.

    Attributes
    ----------
    rules : mapping
        Of functions of torch, to follow while the module runs.
    """

    def __init__(
        self,
        loss: Callable[[Mapping[str, Any], Sequence[Any]], Any],
        parameters: Mapping[str, Any],
        randomness: str,
    ) -> None:
        self._torch = torch = importlib.import_module("torch")
        self._parameters = {name: each.detach() for name, each in parameters.items()}
        self._own = {name: each.detach().requires_grad_() for name, each in parameters.items()}
        self._names: dict[int, str] = {}
        self._level = -1
        self._uses: list[_Use] = []
        self._count, self._copies, self._work = 0, dict[str, Any](), 0
        functional = torch.nn.functional
        convolutions = dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), self._convolution)
        self.rules: dict[Any, Rule] = {
            **recurrent_rules(),
            **convolutions,
            **dict.fromkeys((torch.gru, torch.lstm), self._recurrent),
            functional.linear: lambda _, args, named: self._linear(*args, **named),
            functional.embedding: self._embedding,
        }

        def one(example: Sequence[Any]) -> Any:
            with self._known_copies() as named:
                return loss(named, example)

        self._losses = torch.func.vmap(one, randomness=randomness)

    def begin(self, count: int) -> None:
        """Copy the parameters for so many examples, without copying their numbers."""
        self._uses, self._count, self._work = [], count, 0
        self._copies = {
            name: each.expand(count, *each.shape).requires_grad_()
            for name, each in self._parameters.items()
        }

    @property
    def work(self) -> int:
        """Multiplications of layers for one example of the last block, forwards."""
        return self._work // self._count

    def slopes(self, block: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of a block's examples by outputs of layers, and by copies.

        To be called where the rules are followed.
        """
        torch, count, copies = self._torch, self._count, self._copies
        with torch.enable_grad(), torch.autograd.graph.disable_saved_tensors_hooks(_NO_HOOKS):
            losses = self._losses(list(block))
            if losses.shape != (count,) or not losses.is_floating_point():
                raise TypeError("a loss must be one floating-point number")
            if not losses.requires_grad:
                return []
            inputs = [*(use.edge for use in self._uses), *copies.values()]
            ones = torch.ones_like(losses)
            return torch.autograd.grad([losses], inputs, [ones], allow_unused=True)  # type: ignore[no-any-return]

    def shares(self, slopes: Sequence[Any]) -> list[GradientShare]:
        """Return the shares of the examples' gradients that these are the slopes of."""
        used, copied = slopes[: len(self._uses)], slopes[len(self._uses) :]
        shares = [
            share
            for use, slope in zip(self._uses, used, strict=False)
            if slope is not None
            for share in use.shares(slope)
        ]
        self._uses = []
        for name, slope in zip(self._own, copied, strict=False):
            if slope is not None:
                shares.append(Dense(name, slope.reshape(len(slope), -1)))
        return added_up(shares)

    @contextmanager
    def _known_copies(self) -> Iterator[Mapping[str, Any]]:
        """Give the copies of parameters to the one example that vmap calls with, and know them."""
        self._level = self._torch._C._functorch.maybe_current_level()
        named = {name: self._as_one(each) for name, each in self._copies.items()}
        self._names = {id(each): name for name, each in named.items()}
        try:
            yield named
        finally:
            self._names = {}

    def _linear(self, inputs: Any, weight: Any, bias: Any = None) -> Any:
        rows, names = self._rows(inputs), self._known_names(weight, bias)
        if rows is None or not names:
            return self._torch.nn.functional.linear(inputs, weight, bias)
        return self._as_one(self._outputs(rows, names))

    def _outputs(self, rows: Any, names: tuple[str, ...]) -> Any:
        """Return the outputs (b, ..., n) of a linear layer."""
        flat = self._torch.nn.functional.linear(
            rows.flatten(0, -2), *(self._own[name] for name in names)
        )
        self._note(_Linear, names, rows, flat)
        return flat.unflatten(0, rows.shape[:-1])

    def _recurrent(self, function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        inputs, given, weights, *rest = args
        rows, names = self._rows(inputs), self._known_names(*weights)
        states = given if isinstance(given, tuple | list) else [given]
        if rows is None or rows.dim() != 4 or not names or not written_out(function, states):
            return recurrent_rules()[function](function, args, named)
        count, batch_first = len(rows), rest[-1]
        of_batch = 1 if batch_first else 2

        def together(state: Any) -> Any:
            """Return the initial states of all examples, (layers, b x batch, .)."""
            separate = self._rows(state)
            separate = state.expand(count, *state.shape) if separate is None else separate
            return separate.movedim(0, 1).flatten(1, 2)

        def linear(steps: Any, weight: Any, bias: Any = None) -> Any:
            """Apply a linear layer to (T, b x batch, .) for all examples."""
            both = tuple(known[id(each)] for each in (weight, bias) if each is not None)
            separate = steps.unflatten(1, (count, -1)).movedim(1, 0)
            return self._outputs(separate, both).movedim(0, 1).flatten(1, 2)

        own = [self._own[name] for name in names]
        known = {id(each): name for each, name in zip(own, names, strict=True)}
        every = rows.movedim(0, of_batch - 1).flatten(of_batch - 1, of_batch)
        begin = [together(state) for state in states]
        outputs, *last = recurrent(function, linear, every, begin, own, *rest)
        outputs = outputs.unflatten(of_batch - 1, (count, -1)).movedim(of_batch - 1, 0)
        separate = (each.unflatten(1, (count, -1)).movedim(1, 0) for each in last)
        return self._as_one(outputs), *map(self._as_one, separate)

    def _embedding(self, function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        inputs, weight, *rest = args
        rows, names = self._rows(inputs), self._known_names(weight)
        plain = all(named.get(setting, none) == none for setting, none in _UNRULED.items())
        if rows is None or not names or not plain:
            return function(*args, **named)
        table = self._own[names[0]]
        padding = rest[0] if rest else named.get("padding_idx")
        outputs = function(rows, table, padding)
        self._note(_Embedding, names, rows, outputs, len(table), padding)
        return self._as_one(outputs)

    def _convolution(self, function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        inputs, weight, *rest = args
        bias = rest[0] if rest else None
        rows, names = self._rows(inputs), self._known_names(weight, bias)
        plain = rows is not None and rows.dim() == weight.dim() + 1 and not named
        if not plain or not names or any(isinstance(each, str) for each in rest[1:]):
            return function(*args, **named)
        own = [self._own[name] for name in names]
        outputs = function(rows.flatten(0, 1), *own, *[None] * (2 - len(own)), *rest[1:])
        self._note(_Convolution, names, rows, outputs, weight.shape, rest[1:])
        return self._as_one(outputs.unflatten(0, rows.shape[:2]))

    def _known_names(self, *parameters: Any) -> tuple[str, ...]:
        """Return the names of a layer's parameters, None left out; none if one is no parameter."""
        names = [self._names.get(id(each)) for each in parameters if each is not None]
        known = tuple(name for name in names if name is not None)
        return known if len(known) == len(names) else ()

    def _rows(self, inputs: Any) -> Any:
        """Return the inputs (b, ...) of all examples; None for any but those of this very vmap."""
        functorch = self._torch._C._functorch
        if functorch.maybe_current_level() != self._level or not functorch.is_batchedtensor(inputs):
            return None
        if functorch.maybe_get_level(inputs) != self._level:
            return None
        rows, at = functorch.get_unwrapped(inputs), functorch.maybe_get_bdim(inputs)
        return rows.movedim(at, 0) if at else rows

    def _note(
        self, use: type[_Use], names: tuple[str, ...], rows: Any, outputs: Any, *more: Any
    ) -> None:
        if outputs.requires_grad:  # not under no_grad
            self._uses.append(use(names, rows, outputs, *more))
            self._work += outputs.numel() * (
                1 if use is _Embedding else self._own[names[0]][0].numel()
            )

    def _as_one(self, outputs: Any) -> Any:
        """Return the outputs (b, ...) of all examples as those of one."""
        return self._torch._C._functorch._add_batch_dim(outputs, 0, self._level)


class _Use:
    """A use of parameters by a layer; ``more`` is what else a layer needs to know."""

    def __init__(self, names: tuple[str, ...], rows: Any, outputs: Any, *more: Any) -> None:
        self.names, self._rows, self._version = names, rows, rows._version
        self._more = more
        # What follows may change outputs in place, so that they come from elsewhere; this is what
        # the layer itself makes, and no view of it.
        torch = importlib.import_module("torch")
        self.edge = torch.autograd.graph.get_gradient_edge(outputs)

    def rows(self) -> Any:
        """Return the layer's inputs (raises ``RuntimeError`` if they were changed in place)."""
        if self._rows._version != self._version:
            raise RuntimeError("what a layer was given is changed in place after it")
        return self._rows

    def shares(self, slopes: Any) -> list[GradientShare]:
        """Return the gradients by its parameters, of the slopes of its outputs."""
        raise NotImplementedError


class _Linear(_Use):
    def shares(self, slopes: Any) -> list[GradientShare]:
        """See `_Use.shares`."""
        rows, slopes = _of_one_dtype(self.rows(), slopes)
        rows, slopes = (each.reshape(len(rows), -1, each.shape[-1]) for each in (rows, slopes))
        if rows.shape[1] == 1:
            return [Outer(self.names, slopes[:, 0], rows[:, 0])]
        weight, *bias = self.names
        product = Dense(weight, (slopes.transpose(1, 2) @ rows).flatten(1))
        return [product, *(Dense(name, slopes.sum(1)) for name in bias)]


class _Embedding(_Use):
    def shares(self, slopes: Any) -> list[GradientShare]:
        """See `_Use.shares`."""
        looked, (count, padding) = self.rows(), self._more
        looked = looked.reshape(len(looked), -1)
        slopes = slopes.reshape(*looked.shape, -1)
        if padding is not None:
            slopes = slopes.masked_fill((looked == padding % count)[..., None], 0.0)
        return [Looked(self.names[0], count, looked, slopes)]


class _Convolution(_Use):
    def shares(self, slopes: Any) -> list[GradientShare]:
        """See `_Use.shares`."""
        torch = importlib.import_module("torch")
        shape, settings = self._more
        weight, *bias = self.names
        rows, slopes = _of_one_dtype(self.rows(), slopes)
        slopes = slopes.unflatten(0, rows.shape[:2])
        of_weights = getattr(torch.nn.grad, f"conv{len(shape) - 2}d_weight")

        def one(given: Any, slope: Any) -> Any:
            return of_weights(given, shape, slope, *settings)

        product = Dense(weight, torch.func.vmap(one)(rows, slopes).flatten(1))
        return [product, *(Dense(name, slopes.flatten(3).sum((1, 3))) for name in bias)]


def _of_one_dtype(one: Any, other: Any) -> tuple[Any, Any]:
    """Return two tensors as the wider of their dtypes, which autocast makes different."""
    kind = importlib.import_module("torch").promote_types(one.dtype, other.dtype)
    return one.to(kind), other.to(kind)
