"""Says at the end of a test run how the record was compared."""

from __future__ import annotations

from collections import Counter
from typing import Any

PROPERTY = "golden record"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many cases were compared to the bit, and how many at tolerances."""
    reports = (report for found in terminalreporter.stats.values() for report in found)
    modes = Counter(
        value
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == PROPERTY and report.when == "call"
    )
    if modes:
        counts = ", ".join(f"{count} cases by {mode}" for mode, count in sorted(modes.items()))
        terminalreporter.write_line(f"{PROPERTY}: {counts}")
