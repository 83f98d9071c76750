"""Recurrent layers of PyTorch under ``torch.func.vmap``, by the gradients of single examples.

Recurrent layers add in place to what they make of a state, which vmap refuses for the zeros that
all examples begin with: every example is given zeros of its own. And a GRU is written out, as the
gradient of its recurrent weights would otherwise be built up step by step, an array as large as the
weights for every example and step. With h_t the states, W the weights, and [.] what is held fixed,

    W h_{t-1} is computed as [W] h_{t-1} + W [h_{t-1}] - [W h_{t-1}],

whose value and derivatives are the same (the product rule), and the second term is one product for
all steps together. It takes the states first, from a pass without derivatives.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .functions import Rule, ruled

_LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def separate_states() -> Any:
    """Return a context in which recurrent layers run under vmap."""
    return ruled(recurrent_rules())


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
            if function == torch.gru and rows.dim() == 3:
                return gru(torch.nn.functional.linear, *args)
        return function(*args, **named)

    names = (*_LAYERS, *(f"{name}_cell" for name in _LAYERS))
    return {getattr(torch, name): separate for name in names}


def gru(
    linear: Callable[..., Any], rows: Any, states: Any, weights: Sequence[Any], biased: bool,
    layers: int, dropout: float, training: bool, both_ways: bool, batch_first: bool,
) -> tuple[Any, Any]:  # fmt: skip
    """Return what ``torch.gru`` does: the outputs of the last layer, and the last states of all.

    ``linear`` is that of torch, or does the same and notes what it was given.
    """
    torch = importlib.import_module("torch")
    steps = rows.transpose(0, 1) if batch_first else rows
    ways = (1, -1) if both_ways else (1,)
    last: list[Any] = []
    every = iter(weights)
    for layer in range(layers):
        if layer and dropout:
            steps = torch.nn.functional.dropout(steps, dropout, training)
        outputs = []
        for way in ways:
            own = [next(every) for _ in range(4 if biased else 2)]
            ordered = steps if way > 0 else steps.flip(0)
            made = _one_way(linear, ordered, states[len(last)], own)
            last.append(made[-1])
            outputs.append(made if way > 0 else made.flip(0))
        steps = torch.cat(outputs, -1)
    return steps.transpose(0, 1) if batch_first else steps, torch.stack(last)


def _one_way(linear: Callable[..., Any], rows: Any, state: Any, weights: Sequence[Any]) -> Any:
    """Return the states (T, b, H) after the steps (T, b, F) of one layer in one direction."""
    torch = importlib.import_module("torch")
    from_rows, from_state, *biases = weights
    fixed = [each.detach() for each in weights]
    with torch.no_grad():
        begin = rows.detach(), state.detach()[None], fixed
        flags = bool(biases), 1, 0.0, False, False, False
        held = torch.cat([begin[1], torch.gru(*begin, *flags)[0]])
    of_weights = linear(held[:-1], from_state, *biases[1:])
    of_weights = of_weights - of_weights.detach()
    gates = linear(rows, from_rows, *biases[:1])
    made = []
    for gate, of_weight in zip(gates.unbind(0), of_weights.unbind(0), strict=True):
        hidden = torch.nn.functional.linear(state, fixed[1], *fixed[3:]) + of_weight
        size = state.shape[-1]
        opened = torch.sigmoid(gate[..., : 2 * size] + hidden[..., : 2 * size])
        reset, keep = opened.split(size, -1)
        new = torch.tanh(gate[..., 2 * size :] + reset * hidden[..., 2 * size :])
        state = new + keep * (state - new)
        made.append(state)
    return torch.stack(made)
