"""Sparse replies for any Flower ClientApp: a mod that sends k coordinates of the change.

For other people's strategies, such as Flower's own FedAvg: the mod replaces the model in a TRAIN
reply by the k largest (or k random) coordinates of its difference to the model that was sent, as
one bytes field; ``privet.strategies.SparseUplink`` puts the models together again on the server.
"""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable, Mod

from privet.agents.base import agent_name
from privet.agents.value_bits import WIDTHS, Coder
from privet.core import ConfigError, WireError
from privet.kernel.streams import Streams
from privet.wire import Layout
from privet.wire.contract import SPARSE_FIELD
from privet.wire.sparse import encode
from privet.wire.sparse.selection import budget, index_seed, rand_k, top_k

SPARSIFIERS = ("top-k", "rand-k")


def sparse_mod(
    share: float = 0.1,
    *,
    count: int = 0,
    sparsifier: str = "top-k",
    value_bits: int = 0,
    seed: int = 0,
) -> Mod:
    """Return a mod for ``ClientApp(mods=[...])``.

    Parameters
    ----------
    share, count : float, int
        Coordinates to send, as a share or (if > 0) as a number.
    sparsifier : {"top-k", "rand-k"}
        rand-k draws an index set per (seed, agent, reply) and sends no indices.
    value_bits : {0, 4, 8, 16, 32}
        Bits of a number of the change, dithered without bias (`privet.wire.value_coding`); 0 sends
        them as they are.
    seed : int
        Of rand-k, and of the dither.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    Privacy: none is added; top-k's index set is a function of the data.
    """
    if sparsifier not in SPARSIFIERS:
        raise ConfigError(f"sparsifier = {sparsifier!r}: choose one of {', '.join(SPARSIFIERS)}")
    if str(value_bits) not in WIDTHS:
        raise ConfigError(f"value_bits = {value_bits!r}: choose one of {', '.join(WIDTHS)}")
    if count < 0 or not 0 < share <= 1:
        raise ConfigError(f"share = {share!r}, count = {count!r}: expected 0 < share <= 1")

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not message.metadata.message_type.startswith(MessageType.TRAIN):
            return call_next(message, context)
        received = only_arrays(message)
        layout = Layout.of(received)
        before = layout.flatten(received)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        name = next(k for k, v in reply.content.items() if isinstance(v, ArrayRecord))
        arrays = only_arrays(reply)
        if Layout.of(arrays) != layout:
            raise WireError("the reply's arrays are not those of the message: cannot be compared")
        change = layout.flatten(arrays) - before
        agent, k = agent_name(context), budget(count, share, layout.dim)
        drawn = sparsifier == "rand-k" and k < layout.dim
        number = _replies(context) if drawn or value_bits else 0
        places_seed = index_seed(seed, agent, number)
        values = change[places := rand_k(places_seed, layout.dim, k) if drawn else top_k(change, k)]
        code = b""
        if value_bits:
            values, code = Coder(Streams(seed, agent, number), value_bits)(values)
        if drawn:
            data = encode(values, dim=layout.dim, seed=places_seed, code=code)
        else:
            data = encode(values, places, layout.dim, code=code)
        reply.content[name] = ConfigRecord({SPARSE_FIELD: data})
        return reply

    return mod


def only_arrays(message: Message) -> ArrayRecord:
    """Return the one ``ArrayRecord`` of a message (raises ``WireError``)."""
    records = [v for v in message.content.values() if isinstance(v, ArrayRecord)]
    if len(records) != 1:
        raise WireError(f"message has {len(records)} ArrayRecords, sparse replies need exactly one")
    return records[0]


def _replies(context: Context) -> int:
    """Count this node's replies in its state, so that every one draws a fresh index set."""
    record = context.state.get("privet.sparse-mod")
    done = record["replies"] if isinstance(record, ConfigRecord) else 0
    number = 1 + (done if isinstance(done, int) else 0)
    context.state["privet.sparse-mod"] = ConfigRecord({"replies": number})
    return number
