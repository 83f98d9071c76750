"""The losses that a run config can ask for; each module has one, with its row of the table.

Not public: names in here may move without notice.
"""

from __future__ import annotations

from privet.core.rows import rows

from ..loss import Loss

LOSSES: dict[str, Loss] = rows(__name__, __path__, Loss)
"""The losses by the names that the key ``loss`` has for them."""
