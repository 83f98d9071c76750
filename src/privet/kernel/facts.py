"""Privacy-critical: the public numbers of an agent that the cost of its releases rests on.

They are the same whoever computes the cost: the agent takes them from its problem, the coordinator
from the agent's enrolment, and a planner from the command line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, Literal

from .bounded import Relation, clipped_sensitivity
from .curvature import PROVEN, public_moduli
from .errors import NoCertificateError
from .records import Moduli

OTHER = "other"
"""Loss of a problem of which nothing is known except how its examples are clipped."""
_LONGEST = 2000
_LARGEST = 1 << 53
_STEEPEST = 1e60
"""Magnitude of a penalty at most, so that products of it with other keys do not overflow."""


def proven_loss(kind: str) -> str:
    """Return the name of a linear model's loss in its facts: that in `PROVEN`, else "other"."""
    return kind if kind in PROVEN else OTHER


@dataclass(frozen=True, slots=True)
class Facts:
    """Public numbers of one agent; nothing here may depend on a record.

    Attributes
    ----------
    num_examples : int
        n, as declared: the neighbours of a data set have the same.
    divisor : float
        D, by which the sum over the examples is divided: n, or the examples of all agents.
    dim : int
        Length of the model.
    dtype : str
        "float32" or "float64".
    loss : str
        Name of the loss as `proven_loss` gives it: "other" for a custom problem.
    regularizer : str
        Kind of the regulariser.
    modulus : float
        beta of an l2 regulariser, beta ||x||^2 / 2; 0 for any other.
    clips : bool
        Whether the problem can clip the gradient of every example.
    moduli : bool
        Whether the problem knows its moduli.
    colluders : int
        Number of peers in a masked sum that may collude, by the node's own config; -1 where it
        trusts no sum.
    agents : int
        Agents in the masked sum that an upload goes into, the agent itself included; 1 where it
        leaves in clear, or the node trusts no sum.
    penalty : float
        Weight of an l2 penalty of all coordinates, or of all but the intercepts: rho may be chosen
        by it. No certificate counts on it.
    """

    num_examples: int
    divisor: float
    dim: int
    dtype: str = "float64"
    loss: str = OTHER
    regularizer: str = "none"
    modulus: float = 0.0
    clips: bool = True
    moduli: bool = True
    colluders: int = -1
    agents: int = 1
    penalty: float = 0.0

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            if type(getattr(self, name)) is not kind:
                raise ValueError(f"fact {name!r} is not of type {kind.__name__}")
        if not (1 <= self.num_examples <= _LARGEST and 1 <= self.dim <= _LARGEST):
            raise ValueError("facts 'num_examples' and 'dim' must be from 1 to 2^53")
        if self.colluders < -1 or self.agents < 1:
            raise ValueError("fact 'colluders' must be at least -1, 'agents' at least 1")
        if not 1.0 / _STEEPEST <= self.divisor <= _STEEPEST:
            raise ValueError(f"fact 'divisor' must be from {1.0 / _STEEPEST:g} to {_STEEPEST:g}")
        if not (0 <= self.modulus <= _STEEPEST and 0 <= self.penalty <= _STEEPEST):
            raise ValueError(f"facts 'modulus' and 'penalty' must be from 0 to {_STEEPEST:g}")
        if self.dtype not in ("float32", "float64"):
            raise ValueError("fact 'dtype' must be float32 or float64")

    @property
    def linear(self) -> bool:
        """Whether the loss is one of the kernel's list, of which more than its clip is known."""
        return self.loss != OTHER

    def sharing(self, shared: bool) -> tuple[int, int]:
        """Return a release's agents and colluders, as its noise is ``shared`` or of one alone.

        Raises
        ------
        NoCertificateError
            For shared noise where the node trusts no other agent to add some.
        """
        if shared and self.colluders < 0:
            raise NoCertificateError(
                "noise-sharing: this node's config does not trust other agents to add noise "
                "(trust = none)"
            )
        return (self.agents, self.colluders) if shared else (1, 0)

    def sensitivity(
        self,
        clip: float,
        *,
        relation: Relation,
        clipping: Literal["example", "batch"] = "example",
        batch_size: int | None = None,
        in_place: bool = False,
    ) -> float:
        """Return how far one record can move the clipped gradient; see `clipped_sensitivity`.

        ``in_place`` says that the others are computed alike whether one record counts or not.

        Raises
        ------
        NoCertificateError
            If examples cannot be clipped, or the sum is divided by less than their number, so that
            a clipped record moves it further than the sensitivity says.
        """
        if clipping == "example" and not self.clips:
            raise NoCertificateError(
                "this problem cannot clip per example, so it has no certificate: it needs a method "
                "clipped_gradient, a CallableProblem the argument per_example_gradient; where a "
                "record is in the loss of others, as in the risk sets of a Cox model, there is none"
            )
        if relation == "add-remove" and not in_place and self.dtype != "float64":
            raise NoCertificateError(
                "relation = 'add-remove' needs dtype = float64: in float32 the other rows are "
                "rounded differently when one is removed"
            )
        if self.divisor < self.num_examples:
            raise NoCertificateError(
                f"the loss of {self.num_examples} examples is divided by {self.divisor:g}: a "
                "certificate needs a divisor of at least their number"
            )
        return clipped_sensitivity(
            clip,
            divisor=self.divisor,
            num_examples=self.num_examples,
            batch_size=batch_size,
            clipping=clipping,
            relation=relation,
            dtype=self.dtype,
        )

    def public_moduli(self, row_norm: float) -> Moduli:
        """Return moduli of f_i that hold for all rows of l2 norm at most ``row_norm``.

        Raises
        ------
        NoCertificateError
            For a custom loss.
        """
        if not self.linear:
            raise NoCertificateError("the moduli of a custom loss are unknown")
        return public_moduli(
            self.loss,
            row_norm,
            Moduli(self.modulus, self.modulus),
            share=self.num_examples / self.divisor,
        )

    def to_json(self) -> str:
        """Return the facts as one JSON text, for the enrolment."""
        return _json(self)

    @staticmethod
    def from_json(text: str) -> Facts:
        """Return the facts of ``to_json``; raises ``ValueError`` for anything else."""
        if len(text) > _LONGEST:
            raise ValueError(f"facts are longer than {_LONGEST} characters")
        return _read(text)


@lru_cache(maxsize=64)  # agents of equal numbers share these two
def _json(facts: Facts) -> str:
    return json.dumps(asdict(facts), separators=(",", ":"))


@lru_cache(maxsize=64)
def _read(text: str) -> Facts:
    try:
        decoded: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("facts are not JSON") from None
    if not isinstance(decoded, Mapping) or decoded.keys() != _KINDS.keys():
        raise ValueError("facts do not hold the names that are expected")
    facts = Facts(**decoded)
    if proven_loss(facts.loss) != facts.loss:
        raise ValueError(f"fact 'loss' must be {OTHER} or one of {', '.join(sorted(PROVEN))}")
    return facts


_TYPES: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
_KINDS = {field.name: _TYPES[str(field.type)] for field in fields(Facts)}
