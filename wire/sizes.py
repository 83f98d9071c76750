"""Application bytes of a record: array and bytes lengths, without transport overhead."""

from __future__ import annotations

from flwr.app import ArrayRecord, RecordDict


def content_bytes(content: RecordDict) -> int:
    """Return the summed lengths of all arrays and bytes values in a ``RecordDict``."""
    total = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            total += sum(len(array.data) for array in record.values())
            continue
        for value in record.values():
            if isinstance(value, bytes):
                total += len(value)
            elif isinstance(value, list):
                total += sum(len(item) for item in value if isinstance(item, bytes))
    return total
