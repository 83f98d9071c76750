"""Recurrent layers of PyTorch under ``torch.func.vmap``, by the gradients of single examples.

Recurrent layers add in place to what they make of a state, which vmap refuses for the zeros that
all examples begin with: every example is given zeros of its own. GRUs and LSTMs are written out, as
the gradient of their recurrent weights would otherwise be built up step by step, an array as large
as the weights for every example and step. With h_t the states, W the weights, and [.] what is held
fixed,

    W h_{t-1} is computed as [W] h_{t-1} + W [h_{t-1}] - [W h_{t-1}],

whose value and derivatives are the same (the product rule), and the second term is one product for
all steps together. It takes the states first, from a pass without derivatives.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .functions import Rule

_LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@functools.cache
def recurrent_rules() -> Mapping[Any, Rule]:
    """Return the rules under which recurrent layers run under vmap."""
    torch = importlib.import_module("torch")

    def separate(function: Any, args: Any, named: Any) -> Any:
        rows, given, *rest = args
        states = given if isinstance(given, tuple | list) else [given]
        if all(state.is_floating_point() for state in states):  # not of packed sequences
            own = [state + rows.new_zeros(state.shape) for state in states]
            args = (rows, own if len(own) > 1 else own[0], *rest)
            if written_out(function, states) and rows.dim() == 3:
                return recurrent(function, torch.nn.functional.linear, rows, own, *rest)
        return function(*args, **named)

    names = (*_LAYERS, *(f"{name}_cell" for name in _LAYERS))
    return {getattr(torch, name): separate for name in names}


def written_out(function: Any, states: Sequence[Any]) -> bool:
    """Return whether `recurrent` does what this function does with these states.

    An LSTM with projections, whose two states are of different sizes, is left as it is.
    """
    return function in _cells() and len({state.shape[-1] for state in states}) == 1


@functools.cache
def _cells() -> Mapping[Any, Callable[[Any, Any, Sequence[Any]], tuple[Any, ...]]]:
    torch = importlib.import_module("torch")
    return {torch.gru: _gru_cell, torch.lstm: _lstm_cell}


def recurrent(
    function: Any, linear: Callable[..., Any], rows: Any, states: Sequence[Any],
    weights: Sequence[Any], biased: bool, layers: int, dropout: float, training: bool,
    both_ways: bool, batch_first: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the last layer's outputs and all last states, as ``torch.gru`` and ``torch.lstm`` do.

    ``linear`` is that of torch, or does the same and notes what it was given; ``states`` are the
    first h of all layers, and of an LSTM the first c.
    """
    torch = importlib.import_module("torch")
    steps = rows.transpose(0, 1) if batch_first else rows
    ways = (1, -1) if both_ways else (1,)
    last: list[tuple[Any, ...]] = []
    every = iter(weights)
    for layer in range(layers):
        if layer and dropout:
            steps = torch.nn.functional.dropout(steps, dropout, training)
        outputs = []
        for way in ways:
            own = [next(every) for _ in range(4 if biased else 2)]
            ordered = steps if way > 0 else steps.flip(0)
            begin = tuple(state[len(last)] for state in states)
            made, rest = _one_way(function, linear, ordered, begin, own)
            last.append((made[-1], *rest))
            outputs.append(made if way > 0 else made.flip(0))
        steps = torch.cat(outputs, -1)
    ends = (torch.stack(each) for each in zip(*last, strict=True))
    return steps.transpose(0, 1) if batch_first else steps, *ends


def _one_way(
    function: Any, linear: Callable[..., Any], rows: Any, state: tuple[Any, ...],
    weights: Sequence[Any],
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    """Return the h (T, b, H) after the steps (T, b, F) of one layer in one way, and the last c."""
    torch = importlib.import_module("torch")
    from_rows, from_state, *biases = weights
    fixed = [each.detach() for each in weights]
    with torch.no_grad():
        first, *rest = (each.detach()[None] for each in state)
        begin = rows.detach(), [first, *rest] if rest else first, fixed
        flags = bool(biases), 1, 0.0, False, False, False
        held = torch.cat([first, function(*begin, *flags)[0]])
    of_weights = linear(held[:-1], from_state, *biases[1:])
    of_weights = of_weights - of_weights.detach()
    gates = linear(rows, from_rows, *biases[:1])
    cell = _cells()[function]
    made = []
    for gate, of_weight in zip(gates.unbind(0), of_weights.unbind(0), strict=True):
        hidden = torch.nn.functional.linear(state[0], fixed[1], *fixed[3:]) + of_weight
        state = cell(gate, hidden, state)
        made.append(state[0])
    return torch.stack(made), state[1:]


def _gru_cell(gate: Any, hidden: Any, state: Sequence[Any]) -> tuple[Any, ...]:
    torch = importlib.import_module("torch")
    (before,) = state
    size = before.shape[-1]
    opened = torch.sigmoid(gate[..., : 2 * size] + hidden[..., : 2 * size])
    reset, keep = opened.split(size, -1)
    new = torch.tanh(gate[..., 2 * size :] + reset * hidden[..., 2 * size :])
    return (new + keep * (before - new),)


def _lstm_cell(gate: Any, hidden: Any, state: Sequence[Any]) -> tuple[Any, ...]:
    torch = importlib.import_module("torch")
    size, both = state[1].shape[-1], gate + hidden
    take, keep, _, give = torch.sigmoid(both).split(size, -1)
    held = keep * state[1] + take * torch.tanh(both[..., 2 * size : 3 * size])
    return give * torch.tanh(held), held
