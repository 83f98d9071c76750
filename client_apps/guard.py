"""What stands between an agent's data and its reply: the account, the budget, the noise.

Everything an upload could reveal passes here once, before it is computed: the release event is
built, the veto of the node's operator is asked, the ledger is charged, and the noise is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Context, Message
from numpy.typing import NDArray

from privet.privacy import (
    AgentLedger,
    NoCertificateError,
    NoiseSource,
    Release,
    SeededNoise,
    SystemNoise,
    Veto,
)
from privet.problems import Problem
from privet.wire import ConfigError, WireError, magnitude_bound
from privet.wire.contract import RECORD, decode_settings, means_privacy

from .half import AgentHalf
from .state import PRIVATE_RECORD, read_state

NoiseFactory = Callable[[str, int], NoiseSource]

LARGEST = {8: 1e100, 4: 1e15}
"""Magnitude of received numbers at most, by size of a float in bytes."""


class Spent(NamedTuple):
    """What one reply costs: total epsilon so far at delta, and what to perturb it with."""

    epsilon: float
    delta: float
    noise: NoiseSource
    ledger: str
    note: str = ""


class Guard(NamedTuple):
    """The privacy rules of one reply."""

    context: Context
    settings: Mapping[str, Any]
    ledger: str
    agent: str
    round: int
    noise_factory: NoiseFactory | None = None

    def charge(self, half: AgentHalf, problem: Problem) -> Spent:
        """Charge one reply to the ledger and return what it has cost so far.

        Raises
        ------
        BudgetRefused
            If the node's own rules do not allow the reply.
        NoCertificateError
            If the run asks for privacy that cannot be proven.
        """
        veto = node_veto(self.context)
        seed = int(self.settings.get("noise-seed", -1))
        explicit = self.noise_factory is not None
        noise = self._noise(seed)
        release = self._release(half, problem, explicit and veto is None)
        delta = float(self.settings.get("delta", 1e-5))
        if veto is not None:
            delta = veto.delta
            veto.authorise(
                release,
                noise_seeded=seed >= 0,
                explicit_noise=explicit,
                data_dependent_sensitivity=self.settings.get("sensitivity") == "paper",
                clip=half.clip or None,
                note=f"run {self.context.run_id} round {self.round} agent {self.agent}",
            )
        if release.mechanism == "none":
            return Spent(math.inf, delta, noise, self.ledger)
        ledger, epsilon = _charged(self.ledger, release, delta)
        if not noise.private:
            why = "noise-seed is set" if seed >= 0 and not explicit else "noise is given"
            note = f"not private: {why}" if self.round == 1 else ""
            return Spent(math.inf, delta, noise, ledger, note)
        return Spent(epsilon, delta, noise, ledger)

    def _release(self, half: AgentHalf, problem: Problem, lenient: bool) -> Release:
        """Return what the reply releases; a replay with given noise needs no certificate."""
        try:
            return half.release(problem, self.round)
        except NoCertificateError:
            if not lenient:
                raise
            return Release("none", what="given noise")

    def _noise(self, seed: int) -> NoiseSource:
        if self.noise_factory is not None:
            return self.noise_factory(self.agent, self.round)
        if seed >= 0:
            return SeededNoise(seed, self.agent, self.round)
        return SystemNoise()


_MOST_LEDGERS = 64
_ledgers: dict[str, AgentLedger] = {}
"""Ledgers by their text: that of this round was written in the last."""


@lru_cache(maxsize=256)
def _charged(ledger: str, release: Release, delta: float) -> tuple[str, float]:
    """Return the ledger with one more release and its epsilon; equal agents share the work."""
    charged = _ledger(ledger).record(release)
    text = charged.to_json()
    if len(_ledgers) >= _MOST_LEDGERS:
        _ledgers.clear()
    _ledgers[text] = charged
    return text, charged.spent(delta)


def _ledger(text: str) -> AgentLedger:
    if not text:
        return AgentLedger()
    return _ledgers.get(text) or AgentLedger.from_json(text)


def require_tame(arrays: Iterable[NDArray[Any]]) -> None:
    """Refuse received numbers that overflow when they meet the data.

    What is not a number any more cannot be hidden by noise, and whether it arises depends on the
    records: 0 times infinity does, 1 times infinity does not.

    Raises
    ------
    WireError
    """
    for array in arrays:
        if array.dtype.kind != "f" or not array.size:
            continue
        most = LARGEST[array.dtype.itemsize]
        if magnitude_bound(array) <= most:
            continue
        if not (float(array.max()) <= most and float(array.min()) >= -most):
            raise WireError("instruction holds numbers that are too large or not finite")


def node_veto(context: Context) -> Veto | None:
    """Return the budget rules of a node's config, None where its operator set none."""
    return _veto(tuple(context.node_config.items()))


@lru_cache(maxsize=1024)
def _veto(items: tuple[tuple[str, Any], ...]) -> Veto | None:
    try:
        return Veto.from_node_config(dict(items))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def is_private(context: Context) -> bool:
    """Whether an agent has a budget, or was enrolled or has taken part in a private run."""
    if node_veto(context) is not None or PRIVATE_RECORD in context.state:
        return True
    return bool(read_state(context).ledger)


def speaks_little(message: Message, context: Context) -> bool:
    """Whether a failure's own text must stay with the agent, because it could quote a record."""
    try:
        if is_private(context):
            return True
        record = message.content.get(RECORD)
        if not isinstance(record, ConfigRecord):
            return False
        settings = decode_settings(str(record.get("settings", "{}")))
        return bool(record.get("quiet")) or means_privacy(settings)
    except Exception:  # whatever the message holds: no text of ours is worth a record
        return True
