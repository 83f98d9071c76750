"""The enrolment question, and which answers fit the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from privet.wire import Enrolment
from privet.wire.contract import CONTRACT_VERSION


@dataclass(frozen=True, slots=True)
class Question:
    """What enrolment asks about and checks against."""

    protocol: str
    version: int
    experiment: str
    dim: int
    dtype: np.dtype[Any]
    quiet: bool = False
    """Whether agents must keep the texts of their failures to themselves (a private run)."""
    secure_sum: bool = False
    """Whether agents must give a public key, for a run in which uploads are masked."""
    fixed: bool = False
    """Whether no agent may change its number of examples: the noise was set for it."""

    def record(self) -> ConfigRecord:
        """Return the question as it travels."""
        return ConfigRecord(
            {
                "contract": CONTRACT_VERSION,
                "protocol": self.protocol,
                "version": self.version,
                "experiment": self.experiment,
                "quiet": self.quiet,
                "secure-sum": self.secure_sum,
            }
        )

    def mismatch(self, said: Enrolment) -> str:
        """Return why an agent cannot take part, or nothing."""
        if (said.protocol, said.version) != (self.protocol, self.version):
            return (
                f"speaks {said.protocol} version {said.version}, "
                f"this run {self.protocol} version {self.version}"
            )
        if said.num_examples < 1:
            return "has no data"
        if said.dim != self.dim:
            return f"its model has {said.dim} parameters, the server's {self.dim}"
        if said.dtype != str(self.dtype):
            return f"computes in {said.dtype}, the server in {self.dtype}"
        if self.secure_sum and not said.public_key:
            return "gives no public key, which this run's secure sum needs"
        return ""
