"""The settings of asynchronous runs, in which uploads are folded as they come."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from privet.core import ConfigError
from privet.core.key import keys_of, setting
from privet.wire.contract import means_privacy

from .half import ServerHalf

log = logging.getLogger("flwr.privet")

Half = TypeVar("Half", bound=ServerHalf[Any])


@dataclass(frozen=True)
class AsynchronySettings:
    """When uploads are folded; the fields are run-config keys."""

    topic: ClassVar[str] = "Asynchronous runs"

    asynchronous: bool = setting(
        False,
        "fold uploads as they come: a round is a version of the model, and an upload is combined "
        "with the model that its agent was sent",
    )
    buffer: int = setting(
        0,
        "uploads that make a version; auto is a tenth of the agents",
        low=0,
        words={"auto": 0},
        needs={"asynchronous": True},
    )
    max_delay: int = setting(
        0,
        "versions after which an agent is waited for, until its task is round-timeout seconds old "
        "and is withdrawn; none never waits for one",
        low=0,
        words={"none": 0},
        needs={"asynchronous": True},
    )
    max_uploads: int = setting(
        0,
        "uploads of an agent in the whole run, at most; none is not for private runs",
        low=0,
        words={"none": 0},
        needs={"asynchronous": True},
    )
    late_replies: str = setting(
        "drop",
        "what becomes of a reply that comes after round-timeout: it is lost, or folded in a later "
        "round",
        choices=("drop", "fold"),
        needs={"asynchronous": False},
    )

    @property
    def folds_old(self) -> bool:
        """Whether an upload may be folded in a later round than that of the model sent."""
        return self.asynchronous or self.late_replies == "fold"

    def versions(self, sweeps: float, agents: int) -> int:
        """Return how many versions have ``sweeps`` uploads of every agent in the mean."""
        return math.ceil(sweeps * agents / self.uploads_of_version(agents))

    def uploads_of_version(self, agents: int) -> int:
        """Return how many uploads make a version of this many agents."""
        return min(self.buffer or max(1, round(agents / 10)), max(1, agents))


def require_asynchrony(half: Half, options: AsynchronySettings, refusal: str) -> Half:
    """Return the half of a run that folds uploads of older models, with steps that do not fall.

    ``refusal`` is the algorithm's own reason against it, empty if there is none.

    Privacy: when an upload comes enters the model, so its time must be no function of records.
    Refused are stopping rules and data-dependent noise; neighbours with different numbers of
    records; noise by the number of the version, which is not the number of an agent's uploads.

    Raises
    ------
    ConfigError
        If this algorithm or these settings cannot do with that.
    """
    what = "asynchronous = true" if options.asynchronous else "late-replies = fold"
    if refusal:
        raise ConfigError(f"{what}: not with {half.name}: {refusal}")
    if half.masked:
        raise ConfigError(
            f"{what}: not with secure-sum: masks are shared by agents that are asked together"
        )
    settings = half.settings()
    rule = settings.get("step-size-rule", "constant")
    if rule != "constant":
        (key,) = (key for key in keys_of(type(half.agent)).values() if key.name == "step-size-rule")
        if key.default != "auto" or rule == "cosine":
            raise ConfigError(f"{what}: step-size-rule = {rule}: versions are not rounds")
        log.info("step-size-rule is constant: versions are not rounds")
        half = half.with_settings({"step-size-rule": "constant"})
    if settings.get("budget-schedule", "constant") != "constant":
        raise ConfigError(
            f"{what}: not with budget-schedule = {settings['budget-schedule']}: the noise would "
            "follow the number of the version, not of the agent's uploads"
        )
    if half.agent.private or settings.get("target-epsilon", 0.0) or means_privacy(settings):
        _require_private(settings, options, what)
    return half


def _require_private(settings: Any, options: AsynchronySettings, what: str) -> None:
    if options.asynchronous and not options.max_uploads:
        raise ConfigError(
            "asynchronous = true: a private run needs max-uploads, the most uploads of an agent: "
            "the guarantee is that of so many"
        )
    for key, value, why in (
        ("nu", 0.0, "the number of steps would depend on the records"),
        ("sensitivity", "clip", "the noise would depend on the records"),
    ):
        if settings.get(key, value) != value:
            raise ConfigError(f"{what}: private, and {key} = {settings[key]}: {why}")
    if settings.get("relation") == "add-remove":
        raise ConfigError(
            f"{what}: not private with relation = add-remove: how long a task takes depends on "
            "the number of records"
        )
