"""The agent's veto: rules an operator sets on a node, which no run config can change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privet.privacy.errors import BudgetRefused, LedgerError, UnsupportedAccountError
from privet.privacy.events import Release
from privet.privacy.ledger import LedgerFile, Spent

KEYS = ("max-epsilon", "delta", "min-noise", "max-clip", "ledger-path")
_BUDGET_KEYS = ("max-epsilon", "delta", "ledger-path")
_DEFAULT_DELTA = 1e-5


@dataclass(frozen=True, slots=True)
class Veto:
    """What a node refuses, whatever the coordinator asks.

    Any of the node-config keys switches the veto on; it then also refuses replies without noise
    or account, seeded or given noise, a data-dependent sensitivity, and missing clipping.

    Parameters
    ----------
    max_epsilon, delta, ledger_path
        Lifetime budget over all runs and where it is kept; all three or none. The check uses the
        RDP epsilon (well under a millisecond), which is somewhat above the smaller-of-RDP-and-PLD
        that reports show: the veto can only stop early.
    min_noise
        Smallest noise multiplier (scale / sensitivity) of a release.
    max_clip
        Largest clipping bound.
    """

    max_epsilon: float | None = None
    delta: float = _DEFAULT_DELTA
    ledger_path: str | None = None
    min_noise: float | None = None
    max_clip: float | None = None

    @classmethod
    def from_node_config(cls, mapping: Mapping[str, Any]) -> Veto | None:
        """Read the veto from a SuperNode's node_config; None if it sets none of the keys.

        Raises
        ------
        ValueError
            One line naming the key: a misspelt key, a bad value, a relative ledger path, or one
            of max-epsilon, delta and ledger-path without the others.
        """
        _refuse_misspelt(mapping)
        if not any(key in mapping for key in KEYS):
            return None
        if any(key in mapping for key in _BUDGET_KEYS):
            for key in _BUDGET_KEYS:
                if key not in mapping:
                    raise ValueError(
                        f"node-config: {key} is missing; max-epsilon, delta and ledger-path are "
                        "given together"
                    )
        delta = _number(mapping, "delta")
        if delta is not None and delta >= 1:
            raise ValueError(f"node-config: delta = {delta!r}, expected a number below 1")
        return cls(
            max_epsilon=_number(mapping, "max-epsilon"),
            delta=_DEFAULT_DELTA if delta is None else delta,
            ledger_path=_absolute_path(mapping),
            min_noise=_number(mapping, "min-noise"),
            max_clip=_number(mapping, "max-clip"),
        )

    def authorise(
        self,
        release: Release | None,
        *,
        noise_seeded: bool,
        explicit_noise: bool,
        data_dependent_sensitivity: bool,
        clip: float | None,
        note: str = "",
    ) -> Spent:
        """Charge a reply to the budget, or refuse it.

        Call it after the reply is ready and before it leaves: when it returns, the charge is on
        the disk. A charge is never taken back, even if the reply is then lost.

        Parameters
        ----------
        release
            What the reply is worth; None for a reply nobody accounts (evaluation, for example).
        noise_seeded, explicit_noise
            Whether the noise comes from a seed, or was handed in from outside.
        data_dependent_sensitivity
            Whether the sensitivity was computed from the data (sensitivity = "paper").
        clip
            The clipping bound in force (or the public gradient bound that stands in for it);
            None without.
        note
            Free text for the ledger, such as run and round.

        Returns
        -------
        Spent
            The lifetime total after this reply; its epsilon is None without a budget.

        Raises
        ------
        BudgetRefused
            With the reason. When the ledger cannot be read, trusted or written the reason does
            not say why; `__cause__` does, for the node's own log.
        """
        if release is None:
            raise BudgetRefused("this node sends no reply that is not accounted")
        if noise_seeded:
            raise BudgetRefused("this node refuses noise-seed: seeded noise can be predicted")
        if explicit_noise:
            raise BudgetRefused("this node refuses noise that comes from outside")
        if data_dependent_sensitivity:
            raise BudgetRefused(
                "this node refuses a sensitivity computed from the data: its noise scale leaks"
            )
        self._check_strength(release, clip)
        if self.max_epsilon is None or self.ledger_path is None:
            return Spent(None, self.delta, 0)
        try:
            ledger = LedgerFile(self.ledger_path)
            return ledger.charge(release, self.delta, self.max_epsilon, note)
        except (LedgerError, UnsupportedAccountError) as error:
            raise BudgetRefused("budget: this node's ledger cannot take the charge") from error

    def _check_strength(self, release: Release, clip: float | None) -> None:
        if release.noise_multiplier == 0:
            what = release.what or "reply"
            raise BudgetRefused(f"this node sends nothing without noise ({what})")
        if clip is None or not (math.isfinite(clip) and clip > 0):
            raise BudgetRefused("this node refuses to train without clipping")
        if self.max_clip is not None and clip > self.max_clip:
            raise BudgetRefused(f"clip {clip:g} is above this node's max-clip {self.max_clip:g}")
        if self.min_noise is not None and release.noise_multiplier < self.min_noise:
            raise BudgetRefused(
                f"noise multiplier {release.noise_multiplier:g} is below this node's min-noise "
                f"{self.min_noise:g}"
            )


def _refuse_misspelt(mapping: Mapping[str, Any]) -> None:
    for key in mapping:
        meant = str(key).strip().lower().replace("_", "-")
        if meant in KEYS and key not in KEYS:
            raise ValueError(f"node-config: unknown key {key!r}; did you mean {meant}?")


def _number(mapping: Mapping[str, Any], key: str) -> float | None:
    if key not in mapping:
        return None
    value = mapping[key]
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (math.isfinite(value) and value > 0)
    ):
        raise ValueError(f"node-config: {key} = {value!r}, expected a finite number > 0")
    return float(value)


def _absolute_path(mapping: Mapping[str, Any]) -> str | None:
    if "ledger-path" not in mapping:
        return None
    value = mapping["ledger-path"]
    if not isinstance(value, str) or not Path(value).is_absolute():
        raise ValueError(f"node-config: ledger-path = {value!r}, expected an absolute path")
    return value
