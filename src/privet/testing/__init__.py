"""A conformance kit: every promise of this library, run on any registered algorithm.

``check_algorithm("my-algorithm")`` runs all checks and returns a report; ``checks("my-algorithm")``
gives them one by one, for pytest. An algorithm of another package is treated as ours are.
"""

from .kit import Check, Report, check_algorithm, checks
from .subject import CheckFailed, logistic_federation

__all__ = ["Check", "CheckFailed", "Report", "check_algorithm", "checks", "logistic_federation"]
