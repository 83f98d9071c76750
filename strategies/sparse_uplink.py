"""Sparse replies for any Flower Strategy: the server side of ``privet.client_apps.sparse_mod``."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from privet.wire import Layout
from privet.wire.contract import SPARSE_FIELD
from privet.wire.sparse import decode
from privet.wire.sparse.index_coding import SparseError

log = logging.getLogger("flwr.privet")


class SparseUplink(Strategy):
    """Wraps a Strategy whose clients run ``sparse_mod``.

    Every sparse reply becomes the dense model it stands for, the model sent plus the change, before
    the wrapped strategy sees it. A reply that cannot be decoded, holds several sparse models or
    numbers that are not finite is dropped with one line.

    Parameters
    ----------
    inner : Strategy
        Flower's FedAvg, for example; its messages carry one ``ArrayRecord``.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> strategy = SparseUplink(FedAvg(fraction_evaluate=0.0))
    """

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        self._sent: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the inner strategy build the messages, and keep the model they carry."""
        self._sent = arrays
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Restore the models and hand them to the inner strategy."""
        return self.inner.aggregate_train(
            server_round, [reply for reply in replies if self._restored(reply)]
        )

    def _restored(self, reply: Message) -> bool:
        """Put the dense model into a sparse reply; False if it cannot be."""
        if reply.has_error() or self._sent is None:
            return True
        sparse = {
            name: data
            for name, record in reply.content.items()
            if isinstance(record, ConfigRecord)
            and isinstance(data := record.get(SPARSE_FIELD), bytes)
        }
        try:
            if len(sparse) > 1:  # each would be as large as the model
                raise SparseError(f"reply holds {len(sparse)} sparse models, expected one")
            for name, data in sparse.items():
                reply.content[name] = self._dense(data)
        except SparseError as error:
            log.warning("node %d dropped: %s", reply.metadata.src_node_id, error)
            return False
        return True

    def _dense(self, data: bytes) -> ArrayRecord:
        assert self._sent is not None
        layout = Layout.of(self._sent)
        change = decode(data, max_dim=layout.dim)
        if change.dim != layout.dim:
            raise SparseError(f"change of length {change.dim}, expected {layout.dim}")
        vector = layout.flatten(self._sent)
        with np.errstate(over="ignore", invalid="ignore"):  # refused in the next lines
            changed = (vector[change.indices] + change.values).astype(vector.dtype)
        largest = min(float(np.finfo(dtype).max) for dtype in layout.dtypes)
        if not (np.abs(changed) <= largest).all():
            raise SparseError("change to numbers that are not finite")
        vector[change.indices] = changed
        return layout.restore(vector)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.inner.summary()
