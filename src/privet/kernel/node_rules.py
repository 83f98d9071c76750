"""Privacy-critical: the rules an operator sets on a node, which no message can change."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .analysis_rules import KEYS as OF_ANALYSES
from .analysis_rules import NO_RULES, AnalysisRules
from .bounded import RELATIONS, Relation
from .checks import count_in, flag_in
from .errors import BudgetRefused, LedgerError, UnsupportedAccountError
from .events import Release
from .ledger import LedgerFile
from .told import OF_RELATION, Told
from .trust import Trust

BUDGET_KEYS = ("max-epsilon", "delta", "ledger-path")
LIMITS = (*BUDGET_KEYS, "min-noise", "max-clip")
ALLOW_RUN_DATA = "allow-run-data"
"""Lets a run config say which file or table a node reads. No run config can set it; this library's
own engines do, where one operator runs coordinator and nodes."""
KEEP_DATA = "keep-data"
"""Whether a node with a ``state-path`` keeps its prepared records on its disk."""
LEAST_TRUSTED = "least-trusted"
TRUST = ("trust", "trust-colluders", "trust-key", "trust-peers", LEAST_TRUSTED)
PACE = ("min-seconds-between", "reply-seconds")
MAX_STEPS = "max-steps"
KEYS = (
    *LIMITS,
    "relation",
    "num-examples",
    ALLOW_RUN_DATA,
    KEEP_DATA,
    *TRUST,
    *PACE,
    MAX_STEPS,
    *OF_ANALYSES,
)
_DEFAULT_DELTA = 1e-5
_DEFAULT_STEPS = 10_000
"""``max-steps`` of a limited node: where the whole update is noised, steps cost no epsilon."""
_LIKENESS = 0.75
"""Similarity to a known key from which an unknown key is taken for a mistyped one."""
OF_NODES = ("partition-id", "num-partitions", "agent", "unit", "state-path")
"""Keys that identify a node and set no rule."""


@dataclass(frozen=True, slots=True)
class NodeRules:
    """The rules of a node, which hold whatever the coordinator asks.

    Any of ``max-epsilon``, ``delta``, ``ledger-path``, ``min-noise`` and ``max-clip`` makes it a
    *limited* node: it then also refuses replies without noise or account, seeded or given noise, a
    data-dependent sensitivity, and missing clipping.

    Parameters
    ----------
    max_epsilon, delta, ledger_path
        Lifetime budget over all runs and where it is kept; all three or none.
    min_noise
        Smallest noise multiplier of a release.
    max_clip
        Largest clipping bound.
    relation
        Neighbouring relation in which this node's privacy is meant; a run under another one is
        refused.
    num_examples
        Declared number of examples, by which a private run divides whatever the file holds; 0
        declares the number there is, which neighbours under replace-one
        and replace-agent share.
    allow_run_data
        Whether a run config may name files and hub data sets that this node reads.
    keep_data
        Whether the node's prepared records are kept beside its ``state-path``.
    trust_files
        (t, trust-key, trust-peers) of a node that has pinned the keys of peers. Where
        ``trust = "sum"`` it counts their noise in masked sums, but for t of them; else t is -1.
        None, the default: it knows no one.
    least_trusted
        Pinned peers, beside itself, that a secure sum has at least where the node takes part.
    min_seconds_between
        Seconds that pass at least between the ends of two tasks that the node computes.
    reply_seconds
        Seconds that every reply to a training message takes; 0 declares none.
    max_steps
        Largest number of local steps in a round, 10,000 by default at a limited node; 0 for no rule
        of the node's.
    analyses
        What un-noised analyses may have; a limited node answers none.
    """

    max_epsilon: float | None = None
    delta: float = _DEFAULT_DELTA
    ledger_path: str | None = None
    min_noise: float | None = None
    max_clip: float | None = None
    relation: Relation = "replace-one"
    num_examples: int = 0
    allow_run_data: bool = False
    keep_data: bool = True
    trust_files: tuple[int, str, str] | None = None
    least_trusted: int = 0
    limited: bool = False
    min_seconds_between: float = 0.0
    reply_seconds: float = 0.0
    max_steps: int = 0
    analyses: AnalysisRules = NO_RULES

    @classmethod
    def from_node_config(cls, mapping: Mapping[str, Any]) -> NodeRules:
        """Read the rules from a SuperNode's node_config.

        Raises
        ------
        ValueError
            One line naming the key: one that is nearly ours, a bad value, a relative ledger path,
            or one of max-epsilon, delta and ledger-path without the others.
        """
        _refuse_misspelt(mapping)
        if any(key in mapping for key in BUDGET_KEYS):
            for key in BUDGET_KEYS:
                if key not in mapping:
                    raise ValueError(
                        f"node-config: {key} is missing; max-epsilon, delta and ledger-path are "
                        "given together"
                    )
        delta = _number(mapping, "delta")
        if delta is not None and delta >= 1:
            raise ValueError(f"node-config: delta = {delta!r}, expected a number below 1")
        limited = any(key in mapping for key in LIMITS)
        count = count_in(mapping, "num-examples", 0)
        relation = mapping.get("relation", "replace-one")
        if relation not in RELATIONS:
            raise ValueError(
                f"node-config: relation = {relation!r}, expected one of {', '.join(RELATIONS)}"
            )
        if relation == "add-remove" and not count:
            raise ValueError(
                "node-config: relation = 'add-remove' needs num-examples, a number that does not "
                "change when a record is added or removed"
            )
        pause, seconds = (_number(mapping, key) or 0.0 for key in PACE)
        if 0 < seconds < pause:
            raise ValueError(
                f"node-config: reply-seconds = {seconds:g}: below min-seconds-between = {pause:g}, "
                "so that the wait alone would take longer than a reply may"
            )
        return cls(
            max_epsilon=_number(mapping, "max-epsilon"),
            delta=_DEFAULT_DELTA if delta is None else delta,
            ledger_path=_absolute_path(mapping, "ledger-path"),
            min_noise=_number(mapping, "min-noise"),
            max_clip=_number(mapping, "max-clip"),
            relation=relation,
            num_examples=count,
            allow_run_data=flag_in(mapping, ALLOW_RUN_DATA, default=False),
            keep_data=flag_in(mapping, KEEP_DATA, default=True),
            trust_files=_trust_files(mapping),
            least_trusted=_least_trusted(mapping),
            limited=limited,
            min_seconds_between=pause,
            reply_seconds=seconds,
            max_steps=count_in(mapping, MAX_STEPS, _DEFAULT_STEPS if limited else 0),
            analyses=AnalysisRules.from_node_config(mapping),
        )

    @property
    def colluders(self) -> int:
        """t of a node that trusts sums, -1 of one that does not."""
        return -1 if self.trust_files is None else self.trust_files[0]

    def trust(self, agent: str) -> Trust | None:
        """Return the pinned keys, None where the node has none.

        Raises
        ------
        BudgetRefused
            If a file cannot be read, or pins another key under this agent's own name; `__cause__`
            says why, for the node's own log.
        """
        if self.trust_files is None:
            return None
        try:
            trust = Trust.read(*self.trust_files)
            others = {name: key for name, key in trust.peers.items() if name != agent}
            if trust.peers.get(agent, trust.keys.public) != trust.keys.public:
                raise ValueError(f"trust-peers: the key of {agent} is not that of trust-key")
            if trust.keys.public in others.values():
                raise ValueError("trust-peers: a peer has the key of trust-key")
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise BudgetRefused(Told.TRUST) from error
        return replace(trust, peers=others)

    def require_delta(self, num_examples: int) -> None:
        """Refuse a budget whose delta is 1 / n or more, n the number of examples that is declared.

        A release that publishes each of n records with a chance of delta is (0, delta)-private, and
        publishes n delta of them in the mean. Where whole agents are the unit, n is theirs, which
        the coordinator knows.

        Raises
        ------
        BudgetRefused
        """
        if self.max_epsilon is None or self.relation == "replace-agent" or num_examples < 2:
            return
        if self.delta * num_examples >= 1:
            raise BudgetRefused(
                f"delta = {self.delta:g}: this node has {num_examples} examples, and "
                f"1 / {num_examples} or more lets a run publish one as it is: take at most "
                f"{0.1 / num_examples:.1g}",
                Told.DELTA,
            )

    def screen(
        self,
        *,
        private: bool,
        relation: str,
        noise_seeded: bool,
        explicit_noise: bool,
        data_dependent_sensitivity: bool,
        clip: float | None,
        steps: int = 0,
    ) -> None:
        """Refuse a run that the rules forbid, before anything is read, computed or written.

        Parameters
        ----------
        private
            Whether the run means its replies to be private.
        relation
            Its neighbouring relation.
        noise_seeded, explicit_noise
            Whether the noise comes from a seed, or was handed in from outside.
        data_dependent_sensitivity
            Whether the sensitivity is computed from the data (sensitivity = "paper").
        clip
            The clipping bound in force (or the public gradient bound that stands in for it);
            None without.
        steps
            Local steps in a round.

        Raises
        ------
        BudgetRefused
            With the reason.
        """
        if 0 < self.max_steps < steps:
            raise BudgetRefused(
                f"{steps} local steps in a round are above this node's max-steps {self.max_steps}",
                Told.MAX_STEPS,
            )
        if (private or self.limited) and relation != self.relation:
            raise BudgetRefused(
                f"relation = {relation!r}: this node's is {self.relation!r}, as its config says "
                f"('replace-one' where it says nothing): set relation = {relation!r} there "
                "to agree",
                OF_RELATION[self.relation],
            )
        if not self.limited:
            return
        if noise_seeded:
            raise BudgetRefused(Told.SEEDED_NOISE)
        if explicit_noise:
            raise BudgetRefused(Told.GIVEN_NOISE)
        if data_dependent_sensitivity:
            raise BudgetRefused(Told.SENSITIVITY)
        if clip is None or not (math.isfinite(clip) and clip > 0):
            raise BudgetRefused(Told.NO_CLIP)
        if self.max_clip is not None and clip > self.max_clip:
            raise BudgetRefused(
                f"clip {clip:g} is above this node's max-clip {self.max_clip:g}", Told.MAX_CLIP
            )
        if not private:
            raise BudgetRefused(Told.NO_NOISE)

    def wait(self, ended: float, now: float, left: float) -> float:
        """Return the seconds until this node may end another task.

        Parameters
        ----------
        ended
            When it computed last, in seconds of the node's clock.
        now
            The time by that clock; one that was set back since costs the whole time once more.
        left
            Seconds after which nobody waits for the reply any more.

        Raises
        ------
        BudgetRefused
            If nobody waits that long: nothing is then computed or charged.
        """
        pause = min(max(0.0, ended + self.min_seconds_between - now), self.min_seconds_between)
        if pause >= left:
            raise BudgetRefused(
                f"min-seconds-between: this node computes its next task in {pause:.0f} s",
                Told.PAUSE,
            )
        return pause

    def released(self, experiment: str, agent: str) -> str:
        """Return an agent's account of an experiment by the node's ledger file, as JSON.

        Empty where the node keeps no ledger file, and where it cannot be read: no reply is charged
        to it then. A file without an entry of the experiment, or that is gone, gives an account
        without releases.
        """
        if self.ledger_path is None:
            return ""
        try:
            account = LedgerFile(self.ledger_path).released(experiment, agent)
        except (LedgerError, UnsupportedAccountError):
            return ""
        return account.to_json()

    def charge(
        self, release: Release, note: str = "", experiment: str = "", after: str = ""
    ) -> str:
        """Charge a reply to the node's budget, or refuse it; return the head of its ledger.

        Called before anything is computed from the data: when it returns, the charge is on the
        disk. It is never taken back, even if the reply then fails or is lost. The head
        (`privet.kernel.ledger.Spent`) is empty where the node keeps no ledger.

        Parameters
        ----------
        release
            The release of the reply.
        note
            Free text for the ledger, such as run and round.
        experiment
            The run and all that resume it.
        after
            The head that the ledger must have, if any (`privet.kernel.ledger.LedgerFile.charge`).

        Raises
        ------
        MovedError
            If the ledger has another head; nothing is written.
        BudgetRefused
            With the reason. When the ledger cannot be read, trusted or written the reason does
            not say why; `__cause__` does, for the node's own log.
        """
        if not self.limited:
            return ""
        if release.noise_multiplier == 0:
            what = release.what or "reply"
            raise BudgetRefused(f"this node sends nothing without noise ({what})", Told.NO_NOISE)
        if release.relation != self.relation:
            raise BudgetRefused(
                f"a release of relation = {release.relation!r}: this node's config says "
                f"{self.relation!r}",
                OF_RELATION[self.relation],
            )
        if self.min_noise is not None and release.noise_multiplier < self.min_noise:
            raise BudgetRefused(
                f"noise multiplier {release.noise_multiplier:g} is below this node's min-noise "
                f"{self.min_noise:g}",
                Told.MIN_NOISE,
            )
        if self.max_epsilon is None or self.ledger_path is None:
            return ""
        try:
            spent = LedgerFile(self.ledger_path).charge(
                release, self.delta, self.max_epsilon, note, experiment=experiment, after=after
            )
        except (LedgerError, UnsupportedAccountError) as error:
            raise BudgetRefused(Told.LEDGER) from error
        return spent.head


def _trust_files(mapping: Mapping[str, Any]) -> tuple[int, str, str] | None:
    trust = mapping.get("trust", "none")
    if trust not in ("none", "sum"):
        raise ValueError(f"node-config: trust = {trust!r}, expected none or sum")
    pins = trust == "sum" or LEAST_TRUSTED in mapping
    needs = {"trust-colluders": trust == "sum", "trust-key": pins, "trust-peers": pins}
    for key, needed in needs.items():
        if (key in mapping) != needed:
            user = "trust = 'sum'" if trust == "sum" or key == "trust-colluders" else LEAST_TRUSTED
            raise ValueError(
                f"node-config: {key} is missing; {user} needs it"
                if needed
                else f"node-config: {key} is not used without {user}"
            )
    if not pins:
        return None
    colluders = mapping.get("trust-colluders", -1)
    if trust == "sum" and (type(colluders) is not int or colluders < 0):
        raise ValueError(
            f"node-config: trust-colluders = {colluders!r}, expected a whole number >= 0"
        )
    files = (_absolute_path(mapping, key) for key in ("trust-key", "trust-peers"))
    return colluders, *map(str, files)


def _least_trusted(mapping: Mapping[str, Any]) -> int:
    least = mapping.get(LEAST_TRUSTED, 0)
    if LEAST_TRUSTED in mapping and (type(least) is not int or least < 2):
        raise ValueError(
            f"node-config: {LEAST_TRUSTED} = {least!r}, expected a whole number >= 2: with one "
            "peer, that peer reads the node's upload from the sum"
        )
    return int(least)


def _refuse_misspelt(mapping: Mapping[str, Any]) -> None:
    """Refuse keys that are nearly one of ours: a limit must never be off because of a letter."""
    for key in mapping:
        if key in KEYS or key in OF_NODES:
            continue
        meant = str(key).strip().lower().replace("_", "-")
        near = difflib.get_close_matches(meant, (*KEYS, *OF_NODES), 1, _LIKENESS)
        if near and near[0] in KEYS:
            raise ValueError(f"node-config: unknown key {key!r}; did you mean {near[0]}?")


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


def _absolute_path(mapping: Mapping[str, Any], key: str) -> str | None:
    if key not in mapping:
        return None
    value = mapping[key]
    if not isinstance(value, str) or not Path(value).is_absolute():
        raise ValueError(f"node-config: {key} = {value!r}, expected an absolute path")
    return value
